//! Three PEs continue after they have lost the fourth. The argument selects how: `kill`, `stop`, or `vanish` with its
//! host; `unwired`, in which it is killed and no PE has a wire that would report it; or `leave`, in which its process
//! continues without the job, and no PE may need the whole time-out to detect that.
//!
//! Started without a launcher, which would end the job: PE 0 starts the others. To `vanish`, it has to be started in a
//! network namespace of its own; PE 3 then runs in another one, at the far end of a cable that is cut before it is
//! killed, so that no packet from it arrives any more.
//!
//! The survivors exchange verified data while, in turn, one of them waits for an answer from PE 3; then all of them
//! wait for PE 3 in several ways, each of which must end in time with an error that names it. Each prints `PE N is
//! through`.
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use symrail::bootstrap::uid;
use symrail::collective::Reduction;
use symrail::team::{Group, Team};
use symrail::{Cmp, Result, Runtime, SignalUpdate, SymSlice};
use symrail_tests::pe;
use symrail_tests::unlaunched::{self, Other};

const N: u32 = 4;
const LOST: u32 = N - 1;
/// What the lost PE prints when it has left the job.
const LEFT: &str = "left";
/// Words of a block that one PE puts to another; and of one that is larger than all buffers on its way.
const BLOCK: usize = 3000;
const LARGE: usize = 2 << 20;
/// The address of a PE's end of the network, and of the lost PE's end.
const NEAR: &str = "10.92.0.1";
const FAR: &str = "10.92.0.2";

pub fn main() -> ExitCode {
    let death = pe::arg(0, String::new());
    if let Some((id, pe)) = unlaunched::started() {
        let rt = unlaunched::join(id, pe, N);
        let ended = if pe == LOST { be_lost(rt, &death) } else { survive(&rt, || ()) };
        return ended.map_or_else(|error| panic!("{error}"), |()| ExitCode::SUCCESS);
    }
    let vanishes = death == "vanish";
    if vanishes {
        command("ip link set lo up; ip link add hub type bridge; ip addr add 10.92.0.1/24 dev hub; ip link set hub up");
    }
    let id = uid::create(vanishes.then(|| NEAR.parse().unwrap())).unwrap();
    let others: Vec<Other> = (1..LOST).map(|pe| Other::start(unlaunched::this_program(), id, pe, N)).collect();
    let mut lost = if vanishes { start_far(id) } else { start_near(id) };
    let rt = unlaunched::join(id, 0, N);
    survive(&rt, || await_loss(&mut lost, &death)).unwrap();
    Other::end_well(others);
    ExitCode::SUCCESS
}

/// Waits until PE 3 is lost, which it announces shortly before: an operation that is earlier may succeed.
fn await_loss(lost: &mut Other, death: &str) {
    match death {
        "vanish" => {
            command("ip link del cable");
            lost.0.kill().unwrap();
        }
        "leave" => {
            let output = BufReader::new(lost.0.stdout.take().unwrap());
            assert!(output.lines().any(|line| line.unwrap() == LEFT), "PE {LOST} ended");
        }
        "stop" => {
            let status = waitpid(Pid::from_raw(lost.0.id() as i32), Some(WaitPidFlag::WUNTRACED)).unwrap();
            assert!(matches!(status, WaitStatus::Stopped(..)), "{status:?}");
        }
        _ => drop(lost.0.wait().unwrap()),
    }
}

/// Runs a line of a shell.
fn command(line: &str) {
    assert!(Command::new("sh").args(["-ec", line]).status().unwrap().success(), "{line}");
}

/// Starts the PE that is to be lost, whose output says that it has left.
fn start_near(id: uid::UniqueId) -> Other {
    let mut command = unlaunched::this_program();
    command.stdout(Stdio::piped());
    Other::start(command, id, LOST, N)
}

/// Starts the PE that is to be lost, at the far end of a cable.
fn start_far(id: uid::UniqueId) -> Other {
    let mut command = Command::new("sh");
    // It waits for its end of the cable.
    command.args(["-ec", r#"read go; exec "$@""#, "sh"]).arg(std::env::current_exe().unwrap());
    command.args(std::env::args_os().skip(1)).stdin(Stdio::piped()).env("SYMRAIL_NIC_LIST", FAR);
    // SAFETY: one system call between fork and exec, which does not concern other threads.
    unsafe { command.pre_exec(|| Ok(unshare(CloneFlags::CLONE_NEWNET)?)) };
    let mut other = Other::start(command, id, LOST, N);
    lay_cable(other.0.id());
    other.0.stdin.take().unwrap().write_all(b"go\n").unwrap();
    other
}

/// From this network namespace to that of a process.
fn lay_cable(process: u32) {
    command(&format!(
        "ip link add cable type veth peer name far; ip link set far netns {process}; ip link set cable master hub up
         there() {{ nsenter --net=/proc/{process}/ns/net ip \"$@\"; }}
         there link set lo up; there addr add {FAR}/24 dev far; there link set far up
         until bridge link show dev cable | grep -q 'state forwarding'; do sleep 0.02; done"
    ));
}

/// Takes part, and is then lost.
fn be_lost(rt: Runtime, death: &str) -> Result<()> {
    let job = Job::new(&rt)?;
    for pe in 0..LOST {
        job.words.p(0, 1, pe)?;
    }
    rt.quiet()?;
    match death {
        "leave" => {
            drop(job);
            drop(rt);
            println!("{LEFT}");
            loop {
                std::thread::park();
            }
        }
        "kill" | "unwired" => kill(Pid::this(), Signal::SIGKILL).unwrap(),
        "stop" => kill(Pid::this(), Signal::SIGSTOP).unwrap(),
        _ => drop(job.words.wait_until(0, Cmp::Eq, u64::MAX)?),
    }
    panic!("still there")
}

struct Job<'rt> {
    rt: &'rt Runtime,
    /// Word 0: PE 3 is about to be lost. 1: signals; 2: counter; 3: never changes. Then two alternating blocks for each
    /// PE: a sender knows that the block before the last was read.
    words: SymSlice<u64>,
    /// A large block for each PE.
    large: SymSlice<u64>,
    survivors: Option<Team>,
}

impl<'rt> Job<'rt> {
    /// Allocates memory, and talks with all PEs, so that there are connections to be lost.
    fn new(rt: &'rt Runtime) -> Result<Self> {
        let words = rt.alloc_slice::<u64>(4 + 2 * N as usize * BLOCK)?;
        let large = rt.alloc_slice::<u64>(N as usize * LARGE)?;
        let part = Group::new(0, 1, i64::from(LOST), rt.my_pe(), N);
        let survivors = rt.team_world()?.split(part)?;
        for pe in 0..N {
            words.put(4, &vec![0; 2 * N as usize * BLOCK], pe)?;
            assert!(words.atomic_fetch_add(2, 0, pe)? == 0);
        }
        rt.barrier_all()?;
        Ok(Job { rt, words, large, survivors })
    }

    /// Exchanges data with `partner`, also through `target`'s memory, while `target` is busy.
    fn work(&self, partner: u32, target: u32, round: u64) -> Result<()> {
        let (me, start) = (self.rt.my_pe(), Instant::now());
        let block =
            |pe: u32| -> Vec<u64> { (0..BLOCK as u64).map(|i| u64::from(pe) << 48 | round << 24 | i).collect() };
        let at = |pe: u32| 4 + (2 * pe as usize + round as usize % 2) * BLOCK;
        self.words.put(at(me), &block(me), target)?;
        self.words.atomic_inc(2, target)?;
        self.words.put_signal(at(me), &block(me), SignalUpdate::set((&self.words, 1), round), partner)?;
        self.words.wait_until(1, Cmp::Ge, round)?;
        let mut found = vec![0; BLOCK];
        self.words.read_slice(at(partner), &mut found)?;
        assert!(found == block(partner), "round {round}: wrong data from PE {partner}");
        self.rt.quiet()?;
        self.words.get(at(me), &mut found, target)?;
        assert!(found == block(me), "round {round}: wrong data at PE {target}");
        let took = start.elapsed();
        assert!(took < limit(), "round {round} of PE {me} took {took:?}: it waited for what it does not need");
        Ok(())
    }
}

/// The limit for an operation that needs a lost PE; and for a wait, which first probes. All learn of a PE that has
/// left.
fn limit() -> Duration {
    let known = Duration::from_secs(10);
    let timeout = Duration::from_secs(std::env::var("SYMRAIL_TIMEOUT_S").unwrap().parse().unwrap());
    timeout.min(known)
}

/// Runs an operation that needs PE 3. It must fail within so many time-outs.
fn fails<T>(what: &str, time_outs: u32, operation: impl FnOnce() -> Result<T>) {
    let start = Instant::now();
    let result = operation().map(drop);
    let (took, slack) = (start.elapsed(), Duration::from_secs(10));
    let Err(error) = result else { panic!("{what} succeeded") };
    assert!(error.to_string().contains(&format!("PE {LOST}")), "{what} does not name it: {error}");
    assert!(took < limit() * time_outs + slack, "{what} took {took:?}");
}

fn survive(rt: &Runtime, cut: impl FnOnce()) -> Result<()> {
    let me = rt.my_pe();
    let job = Job::new(rt)?;
    let words = &job.words;
    let team = job.survivors.as_ref().expect("the team of survivors");
    words.wait_until(0, Cmp::Eq, 1)?;
    team.barrier()?;
    cut();
    team.barrier()?;
    if rt.rails().is_empty() {
        fails("wait", 1, || words.wait_until(3, Cmp::Eq, 1));
        fails("barrier", 1, || rt.barrier_all());
        team.barrier()?;
        println!("PE {me} is through");
        return Ok(());
    }
    for waiting in 0..LOST {
        if me == waiting {
            match me {
                0 => fails("get", 1, || words.g(3, LOST)),
                1 => fails("AMO", 1, || words.atomic_fetch_inc(3, LOST)),
                _ => {
                    fails("put", 1, || words.put(4, &vec![1; BLOCK], LOST).and_then(|()| rt.quiet()));
                    // A quiet ends with the first failure. A later failure, on the other lane, is reported by the next
                    // quiet.
                    assert!((0..4).any(|_| rt.quiet().is_ok()), "what was put to PE {LOST} fails again and again");
                }
            }
        } else {
            let partner = LOST - me - waiting;
            for round in 1..=20 {
                job.work(partner, waiting, u64::from(waiting) << 8 | round)?;
            }
        }
        // Its answer to the others was never late.
        team.barrier()?;
        assert_eq!(words.read(2)?, if me <= waiting { 40 } else { 0 });
        let mut sum = u64::from(me) + 1;
        let word = (&raw mut sum).cast::<u8>();
        // SAFETY: the word is this call's own, both in and out; the team's PEs are in the same call.
        unsafe { team.reduce(word, word, 1, Reduction::sum::<u64>()) }?;
        assert_eq!(sum, 6);
    }
    fails("wait", 2, || words.wait_until(3, Cmp::Eq, 1));
    fails("barrier", 2, || rt.barrier_all());
    let all = job.large.as_ptr();
    fails("fcollect", 2, || {
        // SAFETY: there is space for the blocks of all PEs, one of which is this PE's own.
        unsafe { rt.team_world()?.fcollect(all.cast(), all.wrapping_add(me as usize * LARGE).cast(), LARGE * 8) }
    });
    let (to, from) = (words.as_ptr().wrapping_add(4 + N as usize * BLOCK).cast(), words.as_ptr().wrapping_add(4));
    // None of them has harmed the others.
    team.barrier()?;
    words.write_slice(4, &[u64::from(me); BLOCK])?;
    // SAFETY: the second half of the words has space for all blocks, and no PE writes there any more.
    unsafe { team.fcollect(to, from.cast(), BLOCK * 8) }?;
    let mut found = vec![0; LOST as usize * BLOCK];
    words.read_slice(4 + N as usize * BLOCK, &mut found)?;
    assert!((0..).zip(found.chunks(BLOCK)).all(|(pe, block)| block.iter().all(|&word| word == pe)), "{found:?}");
    team.barrier()?;
    println!("PE {me} is through");
    Ok(())
}
