//! PEs that do not do the same. The first argument selects the case:
//!
//! | argument | what happens |
//! |---|---|
//! | `differ` | PE 0 makes one collective call and PE 1 another one, of many kinds in turn; with `SYMRAIL_CHECK_COLLECTIVES` the errors of both must name both calls |
//! | `teams` | PE 0 waits in a team of two, the others in barriers of all; as above |
//! | `threads` | threads of both PEs allocate and free memory of the heap, in any order |
//! | `late` | PE 1 is late: at the job, at a barrier, at the end |
//! | `leave` | PE 1 leaves without the others, which wait for it |
//! | `fork` | children of both PEs make forbidden calls, while their parents continue |
use std::process::ExitCode;
use std::time::Duration;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use symrail::collective::Reduction;
use symrail::{Cmp, Error, Result, Runtime, SymSlice, Team};
use symrail_tests::pe;

/// Longer than the test's time-out, and than the warning about it takes; and a busy machine delays the start of the
/// wait.
const LATE: Duration = Duration::from_secs(6);

pub fn main() -> ExitCode {
    let what = pe::arg(0, String::new());
    match what.as_str() {
        "differ" => pe::run(differ),
        "threads" => pe::run(threads),
        "late" => {
            let late = std::env::var("SYMRAIL_LAUNCHER_PE").unwrap() == "1";
            let pause = || {
                if late {
                    std::thread::sleep(LATE);
                }
            };
            if pe::arg(1, String::new()) == "join" {
                pause();
            }
            // Not `pe::run`: this program has no subscriber for warnings.
            let rt = Runtime::init().unwrap();
            pause();
            rt.barrier_all().unwrap();
            pause();
            rt.finalize().unwrap();
            ExitCode::SUCCESS
        }
        "teams" => {
            let rt = Runtime::init().unwrap();
            println!("PE {}: {}", rt.my_pe(), teams(&rt).unwrap_err());
            ExitCode::SUCCESS
        }
        "leave" => {
            let rt = Runtime::init().unwrap();
            if rt.my_pe() == 1 {
                drop(rt);
                loop {
                    std::thread::park(); // runs until the launcher ends the job
                }
            }
            let word = rt.alloc_slice::<u64>(1);
            println!("error: {}", word.map(|_| ()).unwrap_err());
            ExitCode::FAILURE
        }
        "fork" => forks(),
        what => panic!("nothing is called {what}"),
    }
}

/// The compared calls, each with its words in an error.
const CALLS: [&str; 11] = [
    "barrier_all",
    "sync_all",
    "80 bytes aligned to 64",
    "free of offset",
    "realloc of offset",
    "broadcast of 8 bytes from root 1",
    "broadcast of 16 bytes from root 0",
    "sum reduction of 8 bytes",
    "sync",
    "split of a team",
    "end of a team",
];

fn call(rt: &Runtime, which: usize, data: &SymSlice<u64>, world: &Team) -> Result<()> {
    let words = data.as_ptr().cast::<u8>();
    // SAFETY: the words are symmetric, and as many as the largest call needs.
    unsafe {
        match which {
            0 => rt.barrier_all(),
            1 => rt.sync_all(),
            2 => rt.malloc(80).map(drop),
            3 => rt.free(words),
            4 => rt.realloc(words, 999).map(drop),
            5 => world.broadcast(words, words, 8, 1),
            6 => world.broadcast(words, words, 16, 0),
            7 => world.reduce(words, words, 1, Reduction::sum::<u64>()),
            8 => world.sync(),
            9 => world.split(None).map(drop),
            _ => rt.team_world()?.destroy(),
        }
    }
}

fn differ(rt: &Runtime) -> Result<()> {
    let (world, data) = (rt.team_world()?, rt.alloc_slice::<u64>(8)?);
    for first in 0..CALLS.len() {
        let calls = [first, (first + 1 + first / 4) % CALLS.len()];
        let mine = calls[rt.my_pe() as usize];
        let error = call(rt, mine, &data, &world).expect_err("calls that differ");
        let text = error.to_string();
        assert!(calls.iter().all(|&which| text.contains(CALLS[which])), "{text:?} does not name {calls:?}");
        assert!(text.contains("PE 0") && text.contains("PE 1"), "{text}");
        // Nothing was done, and PEs that agree again continue.
        data.p(0, first as u64, pe::neighbour(rt, 1))?;
        rt.barrier_all()?;
        assert_eq!(data.read(0)?, first as u64);
        rt.barrier_all()?;
    }
    data.free()
}

fn teams(rt: &Runtime) -> Result<()> {
    let world = rt.team_world()?;
    let pair = world.split(world.group().part(0, 1, 2).flatten())?;
    match pair {
        Some(pair) if rt.my_pe() == 0 => pair.sync(),
        _ => rt.barrier_all(),
    }
}

fn threads(rt: &Runtime) -> Result<()> {
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for _ in 0..10 {
                    // Each thread uses another size, so that PEs whose threads come in another order get an error.
                    let Ok(words) = rt.alloc_slice::<u64>(100 + thread) else { continue };
                    words.fill(thread as u64).unwrap();
                    assert_eq!(words.to_vec().unwrap(), vec![thread as u64; 100 + thread], "a block of two threads");
                    let _ = words.free();
                }
            });
        }
    });
    Ok(())
}

fn is_refused<T>(result: Result<T>) {
    let Err(error) = result else { panic!("a child takes part in the job") };
    assert!(matches!(error, Error::Forked { .. }) && error.to_string().contains("forked from it"), "{error}");
}

/// A forked child uses its parent's runtime.
fn child(rt: Runtime, finalizes: bool) -> ! {
    {
        let (words, other) = (rt.alloc_slice::<u64>(1), pe::neighbour(&rt, 1));
        is_refused(words);
        let word = [0u64; 8];
        let at = word.as_ptr().cast_mut().cast::<u8>();
        is_refused(rt.barrier_all());
        is_refused(rt.sync_all());
        is_refused(rt.quiet());
        is_refused(rt.create_context().and_then(|context| context.quiet()));
        // SAFETY: the buffer is valid, and no operation is started.
        unsafe {
            is_refused(rt.wait_until(word.as_ptr(), Cmp::Ne, 0));
            is_refused(rt.put(heap(&rt), at, 8, other));
            is_refused(rt.get(at, heap(&rt), 8, other));
        }
        is_refused(rt.fetch_add(heap(&rt).cast::<u64>(), 1, other));
        rt.abort(9, "nobody hears this");
    }
    if finalizes {
        is_refused(rt.finalize());
    } else {
        drop(rt);
    }
    std::process::exit(0)
}

/// An address in the heap, taken from an error.
fn heap(rt: &Runtime) -> *mut u8 {
    // SAFETY: a refused call reads nothing.
    let refused = unsafe { rt.put(std::ptr::null_mut(), [0u8; 8].as_ptr(), 8, rt.my_pe()) };
    let Err(Error::NotSymmetric { heap, .. }) = refused else { panic!("address 0") };
    std::ptr::with_exposed_provenance_mut(heap)
}

fn forks() -> ExitCode {
    let rt = Runtime::init().unwrap();
    {
        let words = rt.alloc_slice::<u64>(1000).unwrap();
        let put = |round: u64| {
            words.put(0, &[round; 1000], pe::neighbour(&rt, 1)).and_then(|()| rt.barrier_all()).unwrap();
            assert_eq!(words.to_vec().unwrap(), [round; 1000]);
            rt.barrier_all().unwrap();
        };
        for finalizes in [false, true] {
            put(1);
            // SAFETY: the child allocates, as glibc's children may.
            let ForkResult::Parent { child: pid } = (unsafe { fork() }).unwrap() else {
                // SAFETY: a bitwise copy of a runtime; the original on this stack is never dropped in the child, which
                // exits.
                child(unsafe { std::ptr::read(&raw const rt) }, finalizes)
            };
            put(2);
            let ended = waitpid(pid, None).unwrap();
            assert!(matches!(ended, WaitStatus::Exited(_, 0)), "{ended:?}");
            put(3);
        }
        words.free().unwrap();
    }
    rt.finalize().unwrap();
    ExitCode::SUCCESS
}
