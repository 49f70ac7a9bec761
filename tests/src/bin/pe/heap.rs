//! The symmetric heap's collective calls. The first argument selects the case:
//!
//! | argument | what happens |
//! |---|---|
//! | `grow` | blocks beyond the first segments, accessed by every kind of operation; blocks that span segments |
//! | `cycles` | thousands of allocations and frees, with neighbours writing to live blocks |
//! | `mismatch` | PEs make different calls; all get an error, nothing is done, everything continues |
//! | `exhausted` | more than the heap has |
//! | `realloc` | blocks that grow, shrink, move, end |
//! | `refused` | PE 1's system refuses memory |
//! | `teams` | the team of all PEs repeatedly, and teams that are made and destroyed |
use symrail::{Cmp, Result, Runtime, SignalUpdate, SymSlice};
use symrail_tests::pattern::{bytes, mix};
use symrail_tests::pe::{self, before, neighbour};

const M: usize = 1 << 20;

pub fn main() -> std::process::ExitCode {
    match pe::arg(0, String::new()).as_str() {
        "grow" => pe::run(grow),
        "cycles" => pe::run(|rt| cycles(rt, pe::arg(1, 3000))),
        "mismatch" => pe::run(mismatch),
        "exhausted" => pe::run(exhausted),
        "realloc" => pe::run(realloc),
        "refused" => pe::run(refused),
        "teams" => pe::run(teams),
        what => panic!("nothing is called {what}"),
    }
}

/// The error's text.
fn error<T>(result: Result<T>) -> String {
    result.map(drop).expect_err("it was not refused").to_string()
}

/// Writes to the neighbour's elements `at` by all kinds of operations, and checks the other neighbour's writes here.
fn reach(rt: &Runtime, block: &SymSlice<u64>, at: usize, count: usize) -> Result<()> {
    let (peer, source, me) = (neighbour(rt, 1), before(rt, 1), u64::from(rt.my_pe()));
    let value = |pe: u64, i: usize| mix(pe + 1, (at + i) as u64) | 1;
    let mine: Vec<u64> = (0..count).map(|i| value(me, i)).collect();
    let theirs: Vec<u64> = (0..count).map(|i| value(source.into(), i)).collect();
    block.put(at, &mine, peer)?;
    rt.barrier_all()?;
    let mut found = vec![0; count];
    block.read_slice(at, &mut found)?;
    assert!(found == theirs, "PE {me}: put to elements {at}..");
    block.get(at, &mut found, peer)?;
    assert!(found == mine, "PE {me}: get of elements {at}..");
    rt.barrier_all()?;
    block.atomic_set(at, 7, peer)?;
    assert_eq!(block.atomic_fetch_inc(at, peer)?, 7);
    rt.barrier_all()?;
    assert_eq!(block.read(at)?, 8, "PE {me}: AMO on element {at}");
    rt.barrier_all()?;
    block.put_signal(at + 1, &mine[1..], SignalUpdate::set((block, at), 99), peer)?;
    block.wait_until(at, Cmp::Eq, 99)?;
    block.read_slice(at, &mut found)?;
    assert!(found[1..] == theirs[1..], "PE {me}: put-signal to elements {at}..");
    rt.barrier_all()
}

fn grow(rt: &Runtime) -> Result<()> {
    // The first segment has 64 MiB. This block spans into the second, and further.
    let mut blocks = Vec::new();
    for elements in [40 * M / 8, 100 * M / 8, 3 * M / 8, 130 * M / 8] {
        let block = rt.alloc_slice::<u64>(elements)?;
        for at in [0, elements / 2 - 500, elements - 1000] {
            reach(rt, &block, at, 1000)?;
        }
        blocks.push(block);
    }
    // All of it in one operation, across all borders of segments.
    let (whole, copy) = (&blocks[1], &blocks[3]);
    for i in (0..whole.len()).step_by(512) {
        whole.write(i, mix(rt.my_pe().into(), i as u64))?;
    }
    rt.barrier_all()?;
    whole.get_nbi(0, copy, 0, whole.len(), neighbour(rt, 1))?;
    rt.quiet()?;
    for i in (0..whole.len()).step_by(512) {
        assert_eq!(copy.read(i)?, mix(neighbour(rt, 1).into(), i as u64), "element {i}");
    }
    // Blocks from before the heap grew are still accessible.
    reach(rt, &blocks[0], 0, 100)?;
    blocks.into_iter().try_for_each(SymSlice::free)
}

fn cycles(rt: &Runtime, rounds: u64) -> Result<()> {
    let peer = neighbour(rt, 1);
    let mut live: Vec<Option<SymSlice<u8>>> = (0..16).map(|_| None).collect();
    for round in 0..rounds {
        let random = mix(11, round);
        let slot = &mut live[(random % 16) as usize];
        if let Some(block) = slot.take() {
            if round % 16 == 0 {
                // The neighbour's writes from when the block was new.
                let (stamp, len) = (block.read(0)?, block.len());
                assert_eq!(block.read(len - 1)?, stamp, "a block of {len} bytes");
            }
            block.free()?;
        } else {
            let size = 1 + (random >> 8) as usize % (1 << (4 + (random >> 40) % 14));
            let block = rt.alloc_slice::<u8>(size)?;
            assert!(block.read(0)? == 0 && block.read(size - 1)? == 0, "a new block is not zero");
            rt.sync_all()?;
            let stamp = [round as u8 | 1];
            block.put(0, &stamp, peer)?;
            rt.fence()?;
            block.put(size - 1, &stamp, peer)?;
            *slot = Some(block);
        }
    }
    rt.barrier_all()?;
    live.into_iter().flatten().try_for_each(SymSlice::free)?;
    // Nothing was lost: as much as at first fits in one block.
    let all = rt.alloc_slice::<u8>(rt.settings().heap_size - 2 * M)?;
    all.free()
}

fn mismatch(rt: &Runtime) -> Result<()> {
    let odd = rt.my_pe() == 1;
    for (mine, other) in [(64, 128), (100 * M, 64), (64, 100 * M)] {
        let text = error(rt.malloc(if odd { other } else { mine }));
        for word in ["PE 1", &format!("{other} bytes"), &format!("{mine} bytes"), "symmetric heap"] {
            assert!(text.contains(word), "{text:?} does not say {word:?}");
        }
        // Nothing was done, so the next equal calls get the same block on all PEs.
        let block = rt.alloc_slice::<u64>(2000)?;
        reach(rt, &block, 0, 2000)?;
        block.free()?;
    }
    let large = rt.alloc_slice::<u64>(100 * M / 8)?;
    reach(rt, &large, large.len() - 100, 100)?;
    let (a, b) = (rt.malloc(100)?, rt.malloc(100)?);
    let text = error(rt.free(if odd { b } else { a }));
    assert!(text.contains("free of offset") && text.contains("PE 1"), "{text}");
    let text = error(rt.realloc(a, if odd { 500 } else { 400 }).map(drop));
    assert!(text.contains("realloc") && text.contains("500 bytes") && text.contains("400 bytes"), "{text}");
    let text = error(if odd { rt.malloc(64).map(drop) } else { rt.free(a) });
    assert!(text.contains("64 bytes") && text.contains("free of offset"), "{text}");
    rt.free(b)?;
    rt.free(a)?;
    large.free()
}

fn exhausted(rt: &Runtime) -> Result<()> {
    let heap = rt.settings().heap_size;
    for size in [heap + 1, heap * 100, usize::MAX / 2] {
        let text = error(rt.malloc(size));
        for word in [&size.to_string(), &heap.to_string(), "SYMRAIL_HEAP_SIZE", "are free"] {
            assert!(text.contains(word), "{text:?} does not say {word:?}");
        }
    }
    assert!(error(rt.calloc(usize::MAX, 2)).contains("SYMRAIL_HEAP_SIZE"));
    assert!(error(rt.alloc_slice::<u64>(usize::MAX)).contains("SYMRAIL_HEAP_SIZE"));
    for align in [3, 4, 0, 1 << 40] {
        assert!(error(rt.align(align, 64)).contains("power of two"), "{align}");
    }
    assert_eq!(rt.align(4096, 100)?.addr() % 4096, 0);
    // Until it is full; then some of it is freed.
    let mut blocks = Vec::new();
    let text = loop {
        match rt.malloc(M) {
            Ok(block) => blocks.push(block),
            Err(error) => break error.to_string(),
        }
    };
    assert!(
        text.contains("no room for 1048576 bytes") && blocks.len() >= heap / M - 2,
        "{} blocks: {text}",
        blocks.len()
    );
    rt.free(blocks.pop().unwrap())?;
    let block = rt.alloc_slice::<u64>(M / 8)?;
    reach(rt, &block, 0, 500)?;
    block.free()
}

fn realloc(rt: &Runtime) -> Result<()> {
    let me = u64::from(rt.my_pe());
    let mut ptr = std::ptr::null_mut();
    let mut old = 0usize;
    let mut between = Vec::new();
    for size in [100, 200, 5000, 64, 3 * M, 70 * M, 80 * M, 1000] {
        ptr = rt.realloc(ptr, size)?;
        let kept = old.min(size);
        let mut found = vec![0; kept];
        // SAFETY: the block has at least so many bytes.
        unsafe { rt.get(found.as_mut_ptr(), ptr, kept, rt.my_pe()) }?;
        assert!(found == bytes(me, kept), "PE {me}: {kept} bytes of {old} are not kept by a realloc to {size}");
        rt.sync_all()?;
        // The neighbour can access the block, from first to last byte.
        let data = bytes(before(rt, 0).into(), size);
        // SAFETY: as above.
        unsafe { rt.put(ptr, bytes(neighbour(rt, 1).into(), size).as_ptr(), size, neighbour(rt, 1)) }?;
        rt.barrier_all()?;
        let mut found = vec![0; size];
        // SAFETY: as above.
        unsafe { rt.get(found.as_mut_ptr(), ptr, size, rt.my_pe()) }?;
        assert!(found == data, "PE {me}: {size} bytes after a realloc");
        // So that the next block cannot always grow in place.
        between.push(rt.malloc(64)?);
        old = size;
    }
    let inside = ptr.wrapping_add(64);
    assert!(error(rt.realloc(inside, 10)).contains("not the start of an allocated block"));
    assert!(error(rt.free(inside)).contains("not the start of an allocated block"));
    let huge = error(rt.realloc(ptr, 1 << 50));
    assert!(huge.contains("SYMRAIL_HEAP_SIZE"), "{huge}");
    assert!(rt.realloc(ptr, 0)?.is_null());
    assert!(error(rt.free(ptr)).contains("freed already"));
    between.into_iter().try_for_each(|block| rt.free(block))
}

/// Makes every further `fallocate` of this process fail with "no space".
fn refuse_memory() {
    const LOAD_NUMBER: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let line = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let refusal = libc::SECCOMP_RET_ERRNO | libc::ENOSPC as u32;
    let mut filter = [
        line(LOAD_NUMBER, 0, 0, 0),
        line(JUMP_IF_EQUAL, 0, 1, libc::SYS_fallocate as u32),
        line(RETURN, 0, 0, refusal),
        line(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program is valid during the calls, which copy it.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

fn refused(rt: &Runtime) -> Result<()> {
    let small = rt.alloc_slice::<u64>(1000)?;
    if rt.my_pe() == 1 {
        refuse_memory();
    }
    for size in [100 * M, 70 * M] {
        let text = error(rt.malloc(size));
        assert!(text.contains("PE 1 could not grow it") && text.contains("stays at"), "{text}");
        // A block that fits in the existing heap can still be allocated and accessed.
        let block = rt.alloc_slice::<u64>(M / 8)?;
        reach(rt, &block, M / 8 - 100, 100)?;
        block.free()?;
    }
    reach(rt, &small, 0, 1000)?;
    small.free()
}

/// The team of all PEs costs memory once, and is the same for all holders; destroyed teams cost nothing.
fn teams(rt: &Runtime) -> Result<()> {
    let kept = rt.team_world()?;
    for round in 0..2000 {
        let world = rt.team_world()?;
        if round % 2 == 0 {
            world.sync()?;
        } else {
            kept.sync()?;
        }
        if round % 100 == 0
            && let Some(all) = world.split(Some(world.group()))?
        {
            all.sync()?;
            all.destroy()?;
        }
        if round % 3 == 0 {
            world.destroy()?;
        }
    }
    kept.barrier()
}
