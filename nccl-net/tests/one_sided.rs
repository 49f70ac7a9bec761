//! The tables of one-sided operations between two and four processes over libfabric's `tcp;ofi_rxm` on loopback and
//! `shm`, called in the order of NCCL's proxy.
//!
//! This program starts itself as the other processes: `other` is their test. They pass handles by files.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::ffi::c_void;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::driver::one_sided::{Rma, Signal};
use crate::driver::{INVALID_ARGUMENT, PATIENCE, REMOTE_ERROR, SUCCESS};
use crate::libraries::{job_slot, remove_settings};

type Ptr = *mut c_void;

const ROLE: &str = "NCCL_NET_TEST_ROLE";
/// Version, rank, number of ranks.
const PLACE: &str = "NCCL_NET_TEST_PLACE";
const FOLDER: &str = "NCCL_NET_TEST_FOLDER";
const TIMEOUT_S: u64 = 20;
const INC: u32 = 1;
const ADD: u32 = 2;

/// Runs processes in a role. `rails` is the number of rails on loopback; 0 is shared memory.
fn group(rails: usize, version: u32, ranks: usize, role: &str) {
    let _slot = job_slot(std::env::current_exe().unwrap().parent().unwrap());
    let folder =
        std::env::temp_dir().join(format!("symrail-one-sided-{}-{role}-{version}-{rails}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let list = (0..rails).map(|i| format!("127.0.0.{}", i + 2)).collect::<Vec<_>>().join(",");
    let start = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        remove_settings(&mut command, &["SYMRAIL_"]);
        command.args(["one_sided::other", "--exact", "--nocapture", "--test-threads=1"]);
        command.env("SYMRAIL_TRANSPORT", "libfabric").env("SYMRAIL_TIMEOUT_S", TIMEOUT_S.to_string());
        match rails {
            0 => command.env("SYMRAIL_LIBFABRIC_PROVIDER", "shm"),
            _ => command.env("SYMRAIL_LIBFABRIC_PROVIDER", "tcp;ofi_rxm").env("SYMRAIL_NIC_LIST", &list),
        };
        command.env(ROLE, role).env(PLACE, format!("{version} {rank} {ranks}")).env(FOLDER, &folder);
        command.spawn().unwrap()
    };
    let all: Vec<_> = (0..ranks).map(start).collect();
    let ends: Vec<_> = all.into_iter().map(|mut child| child.wait().unwrap()).collect();
    std::fs::remove_dir_all(&folder).unwrap();
    for (rank, end) in ends.iter().enumerate() {
        let dies = role == "a rank dies" && rank == 1;
        assert!(end.success() != dies, "{role}: rank {rank}: {end}");
    }
}

/// One process of a group.
struct Member {
    rma: Rma,
    rank: usize,
    ranks: usize,
    version: u32,
}

/// The bootstrap: a file for each rank and step.
struct Bootstrap {
    folder: PathBuf,
    rank: usize,
    ranks: usize,
    step: usize,
}

impl Bootstrap {
    fn gather(&mut self, mine: &[u8]) -> Vec<Vec<u8>> {
        let file = |rank: usize| self.folder.join(format!("{}.{rank}", self.step));
        let draft = self.folder.join(format!("draft.{}", self.rank));
        std::fs::write(&draft, mine).unwrap();
        std::fs::rename(draft, file(self.rank)).unwrap();
        let begun = Instant::now();
        let all = (0..self.ranks).map(|rank| {
            loop {
                if let Ok(bytes) = std::fs::read(file(rank)) {
                    return bytes;
                }
                assert!(begun.elapsed() < PATIENCE, "rank {rank} does not come");
                std::thread::yield_now();
            }
        });
        let all = all.collect();
        self.step += 1;
        all
    }
}

/// The other processes.
#[test]
fn other() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let place: Vec<usize> = std::env::var(PLACE).unwrap().split(' ').map(|n| n.parse().unwrap()).collect();
    let (version, rank, ranks) = (place[0] as u32, place[1], place[2]);
    let folder = std::env::var(FOLDER).unwrap().into();
    let mut bootstrap = Bootstrap { folder, rank, ranks, step: 0 };
    let rma = match Rma::open(version, (rank, ranks), 2, &mut |mine| bootstrap.gather(mine)) {
        Ok(rma) => rma,
        Err(code) => return println!("\nSKIPPED: listen returned {code}; the provider is not there"),
    };
    let member = Member { rma, rank, ranks, version };
    match role.as_str() {
        "all to all" => all_to_all(&member, &mut bootstrap),
        "strong signals" => strong_signals(&member, &mut bootstrap),
        "a rank leaves" if rank == 1 => return leave(member, &mut bootstrap),
        "a rank dies" | "a rank leaves" => a_rank_ends(&member, &mut bootstrap),
        "refusals" => refusals(&member, &mut bootstrap),
        other => panic!("{other}"),
    }
    bootstrap.gather(b"done");
    member.rma.close();
}

/// Memory that other ranks write to.
struct Memory(Vec<AtomicU64>);

impl Memory {
    fn new(words: usize) -> Memory {
        Memory((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    fn base(&self) -> *mut u8 {
        self.0.as_ptr().cast_mut().cast()
    }

    fn bytes(&self) -> usize {
        8 * self.0.len()
    }

    fn word(&self, at: usize) -> u64 {
        self.0[at].load(Ordering::Acquire)
    }

    fn fill(&self, from: usize, words: usize, value: impl Fn(usize) -> u64) {
        (0..words).for_each(|i| self.0[from + i].store(value(i), Ordering::Release));
    }

    fn wait(&self, rma: &Rma, at: usize, value: u64) {
        let begun = Instant::now();
        while self.word(at) < value {
            assert_eq!(rma.progress(), SUCCESS);
            assert!(begun.elapsed() < PATIENCE, "word {at} is {}, not {value}", self.word(at));
            std::thread::yield_now();
        }
        assert_eq!(self.word(at), value, "word {at}");
    }
}

const PART: usize = 40_000;

fn value(from: usize, to: usize, round: usize, i: usize) -> u64 {
    (from as u64) << 48 | (to as u64) << 40 | (round as u64) << 32 | i as u64
}

/// Each rank sends a part to each, also to itself; the receivers verify each part behind its signal.
fn all_to_all(m: &Member, bootstrap: &mut Bootstrap) {
    let (rma, ranks) = (&m.rma, m.ranks);
    let words = rma.properties();
    assert_eq!((words[6], words[14]), (3, 2), "host and GPU memory; NCCL's proxy");
    let (source, dest, signals) = (Memory::new(ranks * PART), Memory::new(ranks * PART), Memory::new(64));
    let [s, d, w] = [&source, &dest, &signals].map(|memory| rma.register(memory.base(), memory.bytes(), 1).unwrap());
    // NCCL registers the same memory with each of its groups.
    let again = rma.register(dest.base(), dest.bytes(), 1).unwrap();
    for (round, words) in [1, 64, 513, 8_191, PART].into_iter().enumerate() {
        let mut requests: Vec<Ptr> = Vec::new();
        for to in 0..ranks {
            source.fill(to * PART, words, |i| value(m.rank, to, round, i));
            let (from, at) = ((s, 8 * (to * PART) as u64), ([d, again][round % 2], 8 * (m.rank * PART) as u64));
            let signal =
                |at: usize, value, op| Signal { memory: w, at: 8 * at as u64, value, op, strong: round % 2 == 0 };
            let context = if m.version == 11 { 0 } else { (to % 2) as i32 };
            requests.push(rma.put_signal(context, from, 8 * words, at, to as u32, signal(m.rank, 9, INC)).unwrap());
            // A signal alone, and a put without bytes.
            requests.push(rma.put_signal(context, (s, 0), 0, (d, 0), to as u32, signal(16, 5, ADD)).unwrap());
            let none = (std::ptr::null_mut(), 0);
            requests.push(rma.put_signal(context, none, 0, none, to as u32, signal(17, 1, INC)).unwrap());
            requests.push(rma.put(context, (s, 0), 0, (d, 0), to as u32).unwrap());
            assert!(requests.iter().all(|request| !request.is_null()));
        }
        for from in 0..ranks {
            signals.wait(rma, from, round as u64 + 1);
            for i in (0..words).rev() {
                assert_eq!(dest.word(from * PART + i), value(from, m.rank, round, i), "from {from}, word {i}");
            }
        }
        signals.wait(rma, 16, 5 * (ranks * (round + 1)) as u64);
        signals.wait(rma, 17, (ranks * (round + 1)) as u64);
        requests.into_iter().for_each(|request| rma.finish(request).unwrap());
        bootstrap.gather(b"round");
    }
    if m.version > 11 {
        // Each rank reads what the next one has sent to it.
        let next = (m.rank + 1) % ranks;
        source.fill(0, ranks * PART, |i| value(m.rank, 0, 9, i));
        bootstrap.gather(b"filled");
        let got = rma.get(1, (s, 8), 8 * (PART - 1), (d, 16), next as u32).unwrap();
        let flushed = rma.flush(1, w, next as u32).unwrap();
        rma.finish(flushed).unwrap();
        assert!((0..PART - 1).all(|i| dest.word(2 + i) == value(next, 0, 9, 1 + i)), "a flush waits for gets");
        rma.finish(got).unwrap();
        assert!(!rma.has_error());
        bootstrap.gather(b"read");
    }
    [s, again, d, w].into_iter().for_each(|memory| rma.deregister(memory));
}

/// Many puts of different sizes, and one strong signal: who sees it sees all of them. Another context is not waited for.
fn strong_signals(m: &Member, bootstrap: &mut Bootstrap) {
    const PUTS: usize = 24;
    const WORDS: usize = 12_000;
    /// The last put before the signal, which takes long on all rails.
    const LAST: usize = 500_000;
    let rma = &m.rma;
    let all = PUTS * WORDS + LAST;
    let (source, dest, signals) = (Memory::new(all), Memory::new(all), Memory::new(64));
    let [s, d, w] = [&source, &dest, &signals].map(|memory| rma.register(memory.base(), memory.bytes(), 1).unwrap());
    let size = |put: usize| [WORDS, 1, 700, 5_000][put % 4];
    for round in 1..=20 {
        if m.rank == 0 {
            source.fill(0, all, |i| value(0, 1, round, i));
            let mut requests = Vec::new();
            for put in 0..PUTS {
                let at = 8 * (put * WORDS) as u64;
                requests.push(rma.put(0, (s, at), 8 * size(put), (d, at), 1).unwrap());
                // Signals behind data, of which those before the last one change other words.
                if put % 5 == 4 {
                    let signal = Signal { memory: w, at: 8 * (put % 2) as u64, value: 1, op: ADD, strong: true };
                    requests.push(rma.put_signal(0, (s, at), 8, (d, at), 1, signal).unwrap());
                }
            }
            let last = 8 * (PUTS * WORDS) as u64;
            requests.push(rma.put(0, (s, last), 8 * LAST, (d, last), 1).unwrap());
            let signal = Signal { memory: w, at: 80, value: 1, op: INC, strong: true };
            requests.push(rma.put_signal(0, (s, 0), 8, (d, 0), 1, signal).unwrap());
            requests.into_iter().rev().for_each(|request| rma.finish(request).unwrap());
        } else {
            signals.wait(rma, 10, round as u64);
            for at in (PUTS * WORDS..all).rev() {
                assert_eq!(dest.word(at), value(0, 1, round, at), "round {round}, the last put, word {at}");
            }
            for put in 0..PUTS {
                for i in 0..size(put) {
                    let at = put * WORDS + i;
                    assert_eq!(dest.word(at), value(0, 1, round, at), "round {round}, put {put}, word {i}");
                }
            }
            assert_eq!((signals.word(0), signals.word(1)), (2 * round as u64, 2 * round as u64), "earlier signals");
        }
        bootstrap.gather(b"round");
    }
    [s, d, w].into_iter().for_each(|memory| rma.deregister(memory));
}

/// The survivor's operations fail, and so does the group; nothing hangs.
fn a_rank_ends(m: &Member, bootstrap: &mut Bootstrap) {
    let rma = &m.rma;
    let data = Memory::new(4096);
    let memory = rma.register(data.base(), data.bytes(), 1).unwrap();
    bootstrap.gather(b"registered");
    if m.rank == 1 {
        // SAFETY: it has no conditions.
        unsafe { libc::raise(libc::SIGKILL) };
    }
    let begun = Instant::now();
    let signal = Signal { memory, at: 8, value: 1, op: INC, strong: true };
    let code = loop {
        let posted = rma.put_signal(0, (memory, 0), 4096, (memory, 8192), 1, signal);
        if let Err(code) = posted.and_then(|request| rma.finish(request)) {
            break code;
        }
        assert!(begun.elapsed() < PATIENCE, "no error");
    };
    assert_eq!(code, REMOTE_ERROR);
    assert!(begun.elapsed() < Duration::from_secs(TIMEOUT_S), "its process has ended, which is known at once");
    assert!(rma.has_error());
    assert!(rma.put(0, (memory, 0), 8, (memory, 8), 0).is_err(), "the group has failed");
    rma.deregister(memory);
    std::process::exit(0);
}

/// Closes the group while the other rank uses it, and ends.
fn leave(m: Member, bootstrap: &mut Bootstrap) {
    let data = Memory::new(4096);
    let memory = m.rma.register(data.base(), data.bytes(), 1).unwrap();
    bootstrap.gather(b"registered");
    m.rma.deregister(memory);
    m.rma.close();
}

/// What is wrong is refused by code, and the group stays usable.
fn refusals(m: &Member, bootstrap: &mut Bootstrap) {
    let rma = &m.rma;
    let data = Memory::new(64);
    assert_eq!(rma.register(data.base(), 512, 4), Err(INVALID_ARGUMENT), "a kind that does not exist");
    assert!(rma.register(data.base(), 512, 2).is_err(), "GPU memory without a GPU");
    let memory = rma.register(data.base(), 512, 1).unwrap();
    assert_eq!(rma.put(0, (memory, 0), 8, (memory, 0), m.ranks as u32), Err(INVALID_ARGUMENT));
    assert_eq!(rma.put(2, (memory, 0), 8, (memory, 0), 0), Err(INVALID_ARGUMENT), "a context");
    assert_eq!(rma.put(0, (std::ptr::null_mut(), 0), 8, (memory, 0), 0), Err(INVALID_ARGUMENT), "no memory");
    assert_eq!(rma.test(std::ptr::without_provenance_mut(99)), Err(INVALID_ARGUMENT), "a request");
    let signal = Signal { memory, at: 0, value: 1, op: 7, strong: false };
    assert_eq!(rma.put_signal(0, (memory, 0), 8, (memory, 0), 0, signal), Err(INVALID_ARGUMENT), "an operation");
    assert_eq!(rma.put(0, (memory, 510), 8, (memory, 0), 0), Err(INVALID_ARGUMENT), "outside of the source");
    assert_eq!(rma.put(0, (memory, 0), 8, (memory, 510), 0), Err(INVALID_ARGUMENT), "outside of the target");
    let signal = Signal { memory, at: 4, value: 1, op: INC, strong: false };
    assert_eq!(rma.put_signal(0, (memory, 0), 8, (memory, 0), 0, signal), Err(INVALID_ARGUMENT), "a word");
    assert!(!rma.has_error());
    let request = rma.put(0, (memory, 0), 8, (memory, 64), 0).unwrap();
    rma.finish(request).unwrap();
    bootstrap.gather(b"refused");
    rma.deregister(memory);
}

#[test]
fn gin_11_between_two_ranks_over_one_rail() {
    group(1, 11, 2, "all to all");
}

#[test]
fn rma_13_between_four_ranks_over_two_rails() {
    group(2, 13, 4, "all to all");
}

#[test]
fn rma_14_between_two_ranks_over_shared_memory() {
    group(0, 14, 2, "all to all");
}

#[test]
fn rma_15_between_four_ranks_over_one_rail() {
    group(1, 15, 4, "all to all");
}

#[test]
fn rma_16_between_two_ranks_over_four_rails() {
    group(4, 16, 2, "all to all");
}

#[test]
fn who_sees_a_strong_signal_sees_all_puts_before_it() {
    for (rails, version) in [(2, 14), (2, 11), (0, 16)] {
        group(rails, version, 2, "strong signals");
    }
}

#[test]
fn a_rank_that_dies_fails_the_group() {
    group(2, 14, 2, "a rank dies");
}

#[test]
fn operations_to_a_rank_that_has_left_fail_at_once() {
    group(2, 14, 2, "a rank leaves");
}

#[test]
fn what_is_wrong_is_refused_and_the_group_goes_on() {
    group(1, 15, 2, "refusals");
}
