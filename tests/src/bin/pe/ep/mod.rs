//! Expert-parallel dispatch and combine, compared with a reference that each PE computes alone from seeds of all ranks'
//! tokens and routes. Arguments: `high`, `low`, `both`, `groups` (jobs of pairs of 4 PEs), `named` (all cases of its
//! table), `refuse`, `count`, `count-parts` or `cross`; the number of cases; the seed.
//!
//! | file | concept |
//! |---|---|
//! | `case` | the input of all ranks, and the results of experts |
//! | `named` | the table of cases that have a name |
//! | `high`, `low` | both ways, compared with the reference |
//! | `cost` | their cost on the wire |
//! | `refuse` | invalid arguments, and calls that differ |
mod case;
mod cost;
mod high;
mod low;
mod named;
mod refuse;

use std::process::ExitCode;

use symrail::Runtime;
use symrail::bootstrap::uid;
use symrail_tests::pe;

use case::Case;
use high::{high, high_buffers};
use low::{low, low_buffers};
use named::NAMED;

pub fn main() -> ExitCode {
    let (what, cases, seed) = (pe::arg(0, "high".to_owned()), pe::arg(1, 10u64), pe::arg(2, 1u64));
    pe::run(|rt| {
        let ranks = rt.n_pes() as usize;
        let cases: Vec<Case> = match &what[..] {
            "named" => NAMED.iter().enumerate().map(|(number, named)| Case::named(named, number, ranks)).collect(),
            _ => (0..cases).map(|case| Case::random(seed * 1000 + case, ranks)).collect(),
        };
        for case in &cases {
            pe::doing(format!("{what}: {}", case.name));
            let checked = match &what[..] {
                "groups" => groups(rt, seed),
                "high" => of_high(rt, case),
                "low" => of_low(rt, case),
                "named" => of_high(rt, case).and_then(|()| of_low(rt, case)),
                "both" => both(rt, case),
                "refuse" => refuse::refuse(rt),
                "count" => cost::count(rt),
                "count-parts" => cost::count_parts(rt),
                "cross" => cost::cross(rt),
                _ => panic!("{what}"),
            };
            checked.unwrap_or_else(|error| panic!("{error}"));
        }
        Ok(())
    })
}

fn of_high(rt: &Runtime, case: &Case) -> symrail_ep::Result<()> {
    let mut buffers = high_buffers(rt, case)?;
    high(rt, case, &mut buffers)?;
    buffers.free()
}

fn of_low(rt: &Runtime, case: &Case) -> symrail_ep::Result<()> {
    let mut buffers = low_buffers(rt, case)?;
    low(rt, case, &mut buffers)?;
    buffers.free()
}

/// Runs both ways in two groups of each of 4 PEs at the same time: neighbours, and PEs that are two apart, of which the
/// higher one is the first rank.
fn groups(rt: &Runtime, seed: u64) -> symrail_ep::Result<()> {
    let (world, me) = (rt.team_world()?, i64::from(rt.my_pe()));
    let job_of = |start: i64, stride: i64| {
        let team = world.split(world.group().part(start, stride, 2).unwrap())?.unwrap();
        let (rank, other) = (team.group().me(), team.group().pe(1 - team.group().me()));
        let bootstrap = uid::open(team.unique_id(None)?, rank, 2).map_err(symrail::Error::from)?;
        let job = Runtime::join(rt.settings().clone(), bootstrap)?;
        assert_eq!((job.my_pe(), job.n_pes(), job.is_mapped(1 - rank)), (rank, 2, rt.is_mapped(other)));
        team.destroy()?;
        Ok::<_, symrail_ep::Error>(job)
    };
    let jobs = [job_of(me / 2 * 2, 1)?, job_of(me % 2 + 2, -2)?];
    let seeds = [me / 2, 2 + me % 2].map(|group| seed * 100 + group as u64);
    std::thread::scope(|scope| {
        let runs = jobs.iter().zip(seeds).map(|(job, seed)| {
            scope.spawn(move || {
                (0..4).try_for_each(|round| {
                    let case = Case::random(10 * seed + round, 2);
                    of_high(job, &case).and_then(|()| of_low(job, &case))
                })
            })
        });
        runs.collect::<Vec<_>>().into_iter().try_for_each(|run| run.join().unwrap())
    })?;
    jobs.into_iter().try_for_each(|job| Ok(job.finalize()?))
}

/// Runs both ways at the same time, one thread for each.
fn both(rt: &Runtime, case: &Case) -> symrail_ep::Result<()> {
    let (mut of_high, mut of_low) = (high_buffers(rt, case)?, low_buffers(rt, case)?);
    let (first, second) = std::thread::scope(|scope| {
        let other = scope.spawn(|| (0..3).try_for_each(|_| low(rt, case, &mut of_low)));
        ((0..3).try_for_each(|_| high(rt, case, &mut of_high)), other.join())
    });
    first?;
    second.unwrap()?;
    of_high.free()?;
    of_low.free()
}
