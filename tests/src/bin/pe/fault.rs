//! Failures. The first argument selects the case:
//!
//! | argument | what happens |
//! |---|---|
//! | `join` | no failure: joins, waits for the others, leaves |
//! | `refusals` | calls with wrong arguments, each of which must fail with a message and do no harm |
//! | `exit` | PE 1 exits without leaving the job |
//! | `kill` | PE 1 is killed amid the puts of all PEs |
//! | `survive OPERATION kill\|stop` | started without a launcher: starts PE 1 itself, which is killed or stopped during the operation; prints PE 0's error, and how long it took |
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use symrail::bootstrap::uid;
use symrail::{AmoOp, AmoType, Cmp, Error, Result, Runtime, SignalOp, SignalUpdate, SymSlice};
use symrail_tests::pe;
use symrail_tests::unlaunched::{self, Other};

/// Operations that succeed before PE 1 is killed or stopped.
const GOING_WELL: u64 = 50;
const LARGE: usize = (256 << 10) / 8;

pub fn main() -> ExitCode {
    match pe::arg(0, String::new()).as_str() {
        "join" => pe::run(|rt| rt.barrier_all()),
        "refusals" => pe::run(refusals),
        "exit" => pe::run(|rt| {
            rt.barrier_all()?;
            if rt.my_pe() == 1 {
                std::process::exit(0);
            }
            rt.barrier_all()
        }),
        "kill" => pe::run(|rt| {
            let words = rt.alloc_slice::<u64>(LARGE)?;
            let data = vec![1; LARGE];
            rt.barrier_all()?;
            for round in 0.. {
                if rt.my_pe() == 1 && round == GOING_WELL {
                    kill(Pid::this(), Signal::SIGKILL).unwrap();
                }
                words.put(0, &data, pe::neighbour(rt, 1))?;
                rt.quiet()?;
            }
            Ok(())
        }),
        "survive" => survive(&pe::arg(1, String::new()), &pe::arg(2, String::new())),
        what => panic!("nothing is called {what}"),
    }
}

/// Checks that a call failed with an error that contains these words.
fn refused<T>(result: Result<T>, words: &[&str]) {
    let Err(error) = result else { panic!("not refused: {words:?}") };
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text:?} does not say {words:?}");
}

fn refusals(rt: &Runtime) -> Result<()> {
    let n = rt.n_pes();
    let words = rt.alloc_slice::<u64>(8)?;
    words.fill(77)?;
    rt.barrier_all()?;
    let (ptr, mut private, signal) = (words.as_ptr(), [0u64; 8], SignalUpdate::set(words.as_ptr(), 1));
    let (byte, buffer) = (ptr.cast::<u8>(), private.as_mut_ptr().cast::<u8>());
    let add = |at: *mut u8, pe| rt.amo(at, AmoType::U64, AmoOp::Add, 1, 0, pe);
    for wrong in [n, n + 1, u32::MAX] {
        let words = [&*format!("PE {wrong} does not exist"), &format!("PEs 0 to {}", n - 1)];
        // SAFETY: the buffers are valid.
        unsafe {
            refused(rt.put(byte, buffer, 8, wrong), &words);
            refused(rt.put_nbi(byte, buffer, 8, wrong), &words);
            refused(rt.get(buffer, byte, 8, wrong), &words);
            refused(rt.get_nbi(buffer, byte, 8, wrong), &words);
            refused(rt.put_signal(byte, buffer, 8, signal, wrong), &words);
        }
        refused(add(byte, wrong), &words);
        refused(rt.fetch_add(ptr, 1, wrong), &words);
        refused(rt.signal_op(ptr, 1, SignalOp::Add, wrong), &words);
    }
    for peer in 0..n {
        let name = format!("PE {peer}");
        let heap = rt.fetch_amo(std::ptr::null_mut(), AmoType::U64, AmoOp::Fetch, 0, 0, peer);
        let Err(Error::NotSymmetric { heap, heap_bytes, .. }) = heap else { panic!("address 0") };
        let end = std::ptr::with_exposed_provenance_mut::<u8>(heap + heap_bytes);
        let outside = [buffer, end, end.wrapping_sub(4), byte.wrapping_sub(1 << 40), std::ptr::null_mut()];
        for address in outside {
            let (at, words) = (format!("{:#x}", address.addr()), ["not in the symmetric heap", &name]);
            // SAFETY: the buffers are valid.
            unsafe {
                refused(rt.put(address, buffer, 8, peer), &[&words[..], &[&at, "put"]].concat());
                refused(rt.get(buffer, address, 8, peer), &[&words[..], &[&at, "get"]].concat());
                refused(rt.put_signal(address, buffer, 8, signal, peer), &words);
                refused(rt.put_signal(byte, buffer, 8, SignalUpdate::set(address.cast(), 1), peer), &words);
            }
            refused(add(address, peer), &[&words[..], &["amo"]].concat());
        }
        // Lengths beyond the end, or that wrap around.
        for len in [heap_bytes + 1, usize::MAX, usize::MAX - 8, isize::MAX as usize] {
            // SAFETY: a refused call reads and writes nothing.
            unsafe {
                refused(rt.put(byte, buffer, len, peer), &["not in the symmetric heap", &format!("{len} bytes")]);
                refused(rt.get(buffer, byte, len, peer), &["not in the symmetric heap", &format!("{len} bytes")]);
            }
        }
        for shift in [1, 2, 4, 7] {
            refused(add(byte.wrapping_add(shift), peer), &["amo", "8-byte alignment", &name]);
            let word = byte.wrapping_add(shift).cast();
            refused(rt.signal_op(word, 1, SignalOp::Set, peer), &["8-byte alignment", &name]);
        }
        let misaligned = rt.amo(byte.wrapping_add(2), AmoType::I32, AmoOp::Set, 1, 0, peer);
        refused(misaligned, &["4-byte alignment", &name]);
        for (ty, op) in [(AmoType::F64, AmoOp::Xor), (AmoType::F32, AmoOp::And), (AmoType::F32, AmoOp::CompareSwap)] {
            refused(rt.amo(byte, ty, op, 1, 0, peer), &[&format!("{op:?} on {ty:?}"), "integer"]);
        }
        slices(&words, peer);
    }
    rt.barrier_all()?;
    assert_eq!(words.to_vec()?, [77; 8], "something refused was done all the same");
    // Everything still works.
    rt.barrier_all()?;
    words.p(0, 5, pe::neighbour(rt, 1))?;
    words.wait_until(0, Cmp::Eq, 5)?;
    rt.barrier_all()?;
    words.free()
}

fn slices(words: &SymSlice<u64>, peer: u32) {
    let two = ["elements", "among its 8"];
    refused(words.put(7, &[0; 2], peer), &two);
    refused(words.put(9, &[], peer), &two);
    refused(words.put(usize::MAX, &[0], peer), &two);
    refused(words.get(1, &mut [0; 8], peer), &two);
    refused(words.p(8, 0, peer), &two);
    refused(words.g(8, peer), &two);
    refused(words.put_nbi(0, words, 1, 8, peer), &two);
    refused(words.get_nbi(1, words, 0, usize::MAX, peer), &two);
    refused(words.iput(0, 3, &[0; 4], 1, 4, peer), &two);
    refused(words.iput(0, usize::MAX, &[0; 4], 1, 3, peer), &two);
    refused(words.iput(0, 2, &[0; 4], 2, 3, peer), &["elements", "among its 4"]);
    refused(words.iget(0, 1, &mut [0; 4], 1, 5, peer), &["elements", "among its 4"]);
    refused(words.put_signal(0, &[0], SignalUpdate::set((words, 8), 1), peer), &two);
    refused(words.atomic_inc(8, peer), &two);
    refused(words.read(8), &two);
    refused(words.write(8, 1), &two);
}

/// PE 0 of a job of two without a launcher; PE 1 is the same program, started with a unique id in its environment.
fn survive(operation: &str, death: &str) -> ExitCode {
    if unlaunched::started().is_some() {
        return pe::run(|rt| victim(rt, operation, death));
    }
    let id = uid::create(None).unwrap();
    let mut other = Some(Other::start(unlaunched::this_program(), id, 1, 2));
    let rt = unlaunched::join(id, 0, 2);
    let survived = survivor(&rt, operation);
    if operation != "put" {
        // The creator of a unique id waits some seconds for the others to leave: once is enough.
        other = None;
    }
    let leaving = Instant::now();
    drop(rt);
    println!("left in {} ms", leaving.elapsed().as_millis());
    drop(other);
    if let Err(error) = survived {
        println!("error: {error}");
    }
    ExitCode::SUCCESS
}

struct Areas {
    words: SymSlice<u64>,
    source: SymSlice<u64>,
}

fn areas(rt: &Runtime) -> Result<Areas> {
    let areas = Areas { words: rt.alloc_slice(LARGE)?, source: rt.alloc_slice(LARGE)? };
    rt.barrier_all()?;
    Ok(areas)
}

/// Repeats the operation until it fails, and prints how long the last one took.
fn survivor(rt: &Runtime, operation: &str) -> Result<()> {
    let Areas { words, source } = areas(rt)?;
    for round in 1.. {
        let start = Instant::now();
        let done = match operation {
            "put" => words.p(1, round, 1).and_then(|()| rt.quiet()),
            "put-large" => words.put_nbi(1, &source, 1, LARGE - 1, 1).and_then(|()| rt.quiet()),
            // SAFETY: the source is symmetric memory.
            "put-large-blocking" => unsafe {
                rt.put(words.as_ptr().wrapping_add(1).cast(), source.as_ptr().cast(), LARGE * 8 - 8, 1)
            },
            "get" => words.g(1, 1).map(drop),
            "get-large" => words.get_nbi(1, &source, 1, LARGE - 1, 1).and_then(|()| rt.quiet()),
            "amo" => words.atomic_fetch_inc(1, 1).map(drop),
            "put-signal" => {
                words.put_signal(2, &[round], SignalUpdate::set((&words, 1), round), 1).and_then(|()| rt.quiet())
            }
            "wait" => words.wait_until(1, Cmp::Ge, round).map(drop),
            "barrier" => rt.barrier_all(),
            _ => panic!("no operation {operation}"),
        };
        // Reports progress to PE 1; with a dead peer this may fail as well.
        let done = done.and_then(|()| if operation == "barrier" { Ok(()) } else { words.p(0, round, 1) });
        if let Err(error) = done {
            println!("after {} ms", start.elapsed().as_millis());
            return Err(error);
        }
        assert!(round < GOING_WELL || start.elapsed() < Duration::from_secs(30), "nothing is noticed");
    }
    Ok(())
}

/// PE 1: takes part, until it is killed or stopped.
fn victim(rt: &Runtime, operation: &str, death: &str) -> Result<()> {
    let Areas { words, .. } = areas(rt)?;
    match operation {
        "barrier" => (0..GOING_WELL).try_for_each(|_| rt.barrier_all())?,
        "wait" => (1..GOING_WELL).try_for_each(|round| words.p(1, round, 0).and_then(|()| rt.quiet()))?,
        _ => drop(words.wait_until(0, Cmp::Ge, GOING_WELL)?),
    }
    kill(Pid::this(), if death == "stop" { Signal::SIGSTOP } else { Signal::SIGKILL }).unwrap();
    panic!("still there")
}
