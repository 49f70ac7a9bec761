//! Three ranks get errors with the name of the fourth one, which is killed in the midst of a product. The argument
//! selects the kind of product: `pull`, `ring`, `scatter` or `everywhere`.
//!
//! Started without a launcher, which would end the job: PE 0 starts the others. Each survivor prints `PE N is through`.
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use symrail::bootstrap::uid;
use symrail::{Cmp, Runtime, SignalUpdate, TeamHeap, rounds};
use symrail_overlap::step::Observer;
use symrail_overlap::{AllGatherMatmul, Error, Layout, MatmulReduce, Reduced, Result, Schedule, Shards, Step, Weight};
use symrail_tests::pe;
use symrail_tests::unlaunched::{self, Other};

const RANKS: u32 = 4;
const LOST: u32 = RANKS - 1;
const DIES_IN: u32 = 5;
const WIDTH: usize = 8;
/// How long a survivor waits until the others have the error too.
const PATIENCE: Duration = Duration::from_secs(30);

pub fn main() -> ExitCode {
    let what = pe::arg(0, "pull".to_owned());
    if let Some((id, me)) = unlaunched::started() {
        return work(id, me, &what);
    }
    let id = uid::create(None).unwrap();
    let others: Vec<_> = (1..RANKS).map(|pe| Other::start(unlaunched::this_program(), id, pe, RANKS)).collect();
    let code = work(id, 0, &what);
    Other::end_well(others.into_iter().take(LOST as usize - 1));
    code
}

fn work(id: uid::UniqueId, me: u32, what: &str) -> ExitCode {
    let rt = unlaunched::join(id, me, RANKS);
    if let Err(error) = lose(&rt, what) {
        panic!("PE {me}: {error}");
    }
    println!("PE {me} is through");
    ExitCode::SUCCESS
}

/// Kills this process in the second product of a round.
fn death() -> Observer {
    let mut products = 0;
    Box::new(move |step| {
        products += u32::from(matches!(step, Step::Multiply { .. }));
        if products == 2 {
            kill(Pid::this(), Signal::SIGKILL).unwrap();
        }
    })
}

fn lose(rt: &Runtime, what: &str) -> Result<()> {
    let (heap, team) = (TeamHeap::new(rt, 1 << 20)?, rt.team_world()?);
    let through = rt.alloc_slice::<u64>(1)?;
    let shards = Shards::split(40, RANKS as usize);
    let own = shards.of(rt.my_pe() as usize).len();
    let values = [1.0; WIDTH * WIDTH];
    let weight = Weight::new(&values, Layout::ByInputs, WIDTH, WIDTH);
    let direct = Schedule::Direct { rows: 3 };
    let dies = |round| rt.my_pe() == LOST && round == DIES_IN;
    let rounds = |run: &mut dyn FnMut(u32) -> Result<()>| (0..1000).map(run).find_map(Result::err);
    let (first, second) = match what {
        "pull" | "ring" => {
            let schedule = if what == "pull" { direct } else { Schedule::Ring { rows: 3 } };
            let mut plan = AllGatherMatmul::new(&heap, &team, &shards, WIDTH, schedule)?;
            let (rows, mut output) = (vec![1.0; own * WIDTH], [0.0; 40 * WIDTH]);
            let mut run = |round| {
                plan.observe(dies(round).then(death));
                plan.run(&rows, &weight, &mut output)
            };
            (rounds(&mut run), run(0).err())
        }
        _ => {
            let reduced = if what == "scatter" { Reduced::ToShards } else { Reduced::Everywhere };
            let mut plan = MatmulReduce::new(&heap, &team, &shards, WIDTH, direct, reduced)?;
            let count = if reduced == Reduced::ToShards { own } else { 40 };
            let (rows, mut output) = ([1.0; 40 * WIDTH], vec![0.0; count * WIDTH]);
            let mut run = |round| {
                plan.observe(dies(round).then(death));
                plan.run(&rows, &weight, &mut output)
            };
            (rounds(&mut run), run(0).err())
        }
    };
    let first = first.unwrap().to_string();
    assert!(first.contains("PE 3"), "{first}");
    assert!(matches!(second, Some(Error::Round(rounds::Error::Poisoned { .. }))), "{second:?}");
    // If a PE left before the others know, their errors would name it.
    for pe in (0..LOST).filter(|&pe| pe != rt.my_pe()) {
        through.put_signal(0, &[], SignalUpdate::add((&through, 0), 1), pe)?;
    }
    let begun = Instant::now();
    while !through.test(0, Cmp::Ge, u64::from(LOST) - 1)? {
        assert!(begun.elapsed() < PATIENCE, "the other survivors have not learnt it");
    }
    Ok(())
}
