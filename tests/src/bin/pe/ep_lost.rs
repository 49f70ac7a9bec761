//! Three ranks continue low-latency dispatch and combine after the fourth was killed in the midst of a dispatch: within
//! their time limit they get an error with its name, mask it, and run 1,000 verified rounds. The argument is when it
//! dies: `before` it sends, or `after`; or `mask`, if late ranks are masked without an error. With `handed-on` it dies
//! in a high-throughput dispatch in which one rank forwards rows to another one: the errors of both name it.
//!
//! Started without a launcher, which would end the job: PE 0 starts the others. Each survivor prints `PE N is through`.
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use symrail::bootstrap::uid;
use symrail::{Cmp, Runtime, SignalOp, rounds};
use symrail_ep::high_throughput::Tokens;
use symrail_ep::low_latency::Shape;
use symrail_ep::plan::sizes;
use symrail_ep::{DataType, Error, HighThroughput, Layout, LowLatency, Result, Rows, TopK, WaitLimit};
use symrail_tests::pe;
use symrail_tests::unlaunched::{self, Other};

const RANKS: u32 = 4;
const LOST: u32 = RANKS - 1;
const ROUNDS: u64 = 1000;
const DIES_IN: u64 = 5;
const HIDDEN: usize = 16;
const K: usize = 4;
const SHARE: i64 = 2;
const LIMIT: Duration = Duration::from_secs(7);
/// What a busy machine adds to a bound on several limits.
const SLACK: Duration = Duration::from_secs(15);

pub fn main() -> ExitCode {
    let death = pe::arg(0, "before".to_owned());
    if let Some((id, me)) = unlaunched::started() {
        return work(id, me, &death);
    }
    let id = uid::create(None).unwrap();
    let others: Vec<_> = (1..RANKS).map(|pe| Other::start(unlaunched::this_program(), id, pe, RANKS)).collect();
    let code = work(id, 0, &death);
    Other::end_well(others.into_iter().take(LOST as usize - 1));
    code
}

fn work(id: uid::UniqueId, me: u32, death: &str) -> ExitCode {
    let rt = unlaunched::join(id, me, RANKS);
    let done = if death == "handed-on" { handed_on(&rt) } else { rounds(&rt, death) };
    if let Err(error) = done {
        panic!("PE {me}: {error}");
    }
    println!("PE {me} is through");
    ExitCode::SUCCESS
}

/// The slots of a rank's tokens in a round: some for every rank, different in each round.
fn slots(rank: u32, round: u64) -> Vec<i64> {
    let experts = SHARE * i64::from(RANKS);
    (0..12).map(|i| (i * 3 + i64::from(rank) + round as i64 * 5) % experts).collect()
}

/// A token of a round, and an expert's result for it.
fn token(rank: u32, round: u64, token: usize) -> f32 {
    (rank * 100 + token as u32) as f32 + (round % 64) as f32 / 64.0
}

fn rounds(rt: &Runtime, death: &str) -> Result<()> {
    let (me, experts) = (rt.my_pe(), (SHARE * i64::from(RANKS)) as usize);
    let shape = Shape { most_tokens: 3, token: 4 * HIDDEN, scales: 0, experts, k: K };
    let mut buffers = LowLatency::new(rt, shape, WaitLimit { time: LIMIT })?;
    buffers.mask_late(death == "mask");
    for round in 0..ROUNDS + DIES_IN {
        let slots = slots(me, round);
        let topk = TopK::new(&slots, K)?;
        let row = |i| std::iter::repeat_n(token(me, round, i).to_ne_bytes(), HIDDEN).flatten();
        let rows: Vec<u8> = (0..topk.tokens()).flat_map(row).collect();
        let dies = me == LOST && round == DIES_IN;
        if dies && death != "after" {
            kill(Pid::this(), Signal::SIGKILL).unwrap();
        }
        let begun = Instant::now();
        let sent = buffers.send_dispatch(Rows::new(&rows, 4 * HIDDEN)?, None, topk)?;
        if dies {
            kill(Pid::this(), Signal::SIGKILL).unwrap();
        }
        let found = insisting(&mut buffers, begun, |buffers| buffers.receive_dispatch(&sent))?;
        // Expert `e` multiplies by `e + 1`.
        let mut made = found.rows;
        let most = made.len() / SHARE as usize;
        for (local, of_expert) in made.chunks_exact_mut(most).enumerate() {
            let factor = (i64::from(me) * SHARE + local as i64 + 1) as f32;
            for value in of_expert.as_chunks_mut::<4>().0 {
                *value = (f32::from_ne_bytes(*value) * factor).to_ne_bytes();
            }
        }
        let made = Rows::new(&made, 4 * HIDDEN)?;
        let begun = Instant::now();
        let sent = buffers.send_combine(made, DataType::Float32, &found.ranges)?;
        let weights = vec![0.5; slots.len()];
        let sums = insisting(&mut buffers, begun, |buffers| buffers.receive_combine(&sent, topk, &weights))?;
        let takes_part = |expert: &&i64| !buffers.masked()[(**expert / SHARE) as usize];
        for (i, sum) in sums.chunks_exact(4 * HIDDEN).enumerate() {
            let all = topk.of(i).iter().filter(takes_part);
            let wanted = all.fold(0.0, |sum, &expert| sum + token(me, round, i) * (expert + 1) as f32 * 0.5);
            for value in sum.as_chunks::<4>().0 {
                assert_eq!(f32::from_ne_bytes(*value), wanted, "PE {me}, round {round}, token {i}");
            }
        }
        let masked: Vec<u32> = (0..RANKS).filter(|&rank| buffers.masked()[rank as usize]).collect();
        assert!(masked == if round < DIES_IN { &[][..] } else { &[LOST] }, "PE {me}, round {round}: {masked:?}");
    }
    let back = buffers.mask(LOST, false);
    assert!(matches!(back, Err(Error::Order { .. })), "{back:?}");
    Ok(())
}

/// A dispatch during which the last rank dies: the second of its tokens lies in memory that it may not read.
fn handed_on(rt: &Runtime) -> Result<()> {
    const TOKEN: usize = 4096;
    let ended = rt.alloc_slice::<u64>(1)?;
    let (me, ranks) = (rt.my_pe(), RANKS as usize);
    let mut buffers = HighThroughput::new(rt, sizes::high_throughput(ranks, 1, 2 * TOKEN), WaitLimit { time: LIMIT })?;
    let slots: Vec<i64> = (0..8).flat_map(|_| 0..i64::from(RANKS)).collect();
    let topk = TopK::new(&slots, ranks)?;
    let layout = Layout::of(&topk, ranks, ranks)?;
    let rows = tokens_of_pages(8 * TOKEN, if me == LOST { TOKEN } else { 8 * TOKEN });
    let tokens = Tokens { rows: Rows::new(rows, TOKEN)?, scales: None, topk: None };
    let (begun, dispatched) = (Instant::now(), buffers.dispatch(&tokens, &layout).map(|_| ()));
    assert!(begun.elapsed() < LIMIT * 3 + SLACK, "took {:?}", begun.elapsed());
    let Err(Error::Round(rounds::Error::TimedOut { late, .. })) = &dispatched else { panic!("{dispatched:?}") };
    // A busy machine may make late, too, the rank that hands rows on and waits as long itself.
    assert!(late.contains(&LOST), "PE {me}: {dispatched:?}");
    let again = buffers.dispatch(&tokens, &layout).map(|_| ());
    assert!(matches!(again, Err(Error::Round(rounds::Error::Poisoned { .. }))), "{again:?}");
    // No PE exits before all have got the error.
    for other in (0..LOST).filter(|&other| other != me) {
        ended.signal_op(0, 1, SignalOp::Add, other)?;
    }
    while !ended.test(0, Cmp::Ge, u64::from(LOST) - 1)? {
        assert!(begun.elapsed() < LIMIT * 5 + SLACK, "the others have not been told");
        std::thread::yield_now();
    }
    Ok(())
}

/// Zeros in separate pages. A read behind the first of them kills the process.
fn tokens_of_pages(bytes: usize, readable: usize) -> &'static [u8] {
    // SAFETY: new memory, which stays until the process ends; a read of unreadable memory is the death that the test is
    // about.
    unsafe {
        let (prot, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let at = libc::mmap(std::ptr::null_mut(), bytes, prot, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        assert_eq!(libc::mprotect(at.byte_add(readable), bytes - readable, libc::PROT_NONE), 0);
        std::slice::from_raw_parts(at.cast(), bytes)
    }
}

/// Receives; a late rank must be the killed one, and is masked.
fn insisting<T>(
    buffers: &mut LowLatency,
    begun: Instant,
    mut receive: impl FnMut(&mut LowLatency) -> Result<T>,
) -> Result<T> {
    let received = receive(buffers);
    assert!(begun.elapsed() < LIMIT * 3 + SLACK, "took {:?}", begun.elapsed());
    match received {
        Err(Error::Round(rounds::Error::TimedOut { late, .. })) => {
            assert_eq!(late, [LOST]);
            buffers.mask(LOST, true)?;
            receive(buffers)
        }
        other => other,
    }
}
