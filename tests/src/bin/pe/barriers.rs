//! Barriers of CPU devices, of all PEs and of teams, repeated. Puts to other PEs before a barrier must have arrived
//! after it. The argument is the number of barriers. Each PE prints for each kind of barrier the number of work
//! requests that so many barriers cost it: `NAME: REQUESTS`.
use symrail::{Group, Runtime};
use symrail_kernels::cpu::{DeviceError, DeviceTeam, DeviceView, Grid, Symmetric, Thread};
use symrail_tests::{device, pe};

pub fn main() -> std::process::ExitCode {
    let rounds = pe::arg(0, 300);
    pe::run(|rt| {
        let (view, world) = (device::view(rt), rt.team_world()?);
        let area = rt.alloc_slice::<u64>(rt.n_pes() as usize)?;
        let words = device::name(&view, rt, &area).unwrap();
        let n = i64::from(rt.n_pes());
        let run = |name: &str, group: Group, team: &DeviceTeam| {
            barriers(&view, words, group, team, rounds);
            let requests = requests(rt, &view, team, rounds);
            println!("{name}: {requests}");
        };
        run("all", world.group(), &world.on_cpu_device());
        for (name, (start, stride, size)) in
            [("reversed", (n - 1, -1, n)), ("even", (0, 2, (n + 1) / 2)), ("odd", (1, 2, n / 2))]
        {
            // A second team finds the first one's values in the same words.
            for _ in 0..2 {
                area.fill(0)?;
                rt.barrier_all()?;
                let team = world.split(Group::new(start, stride, size, rt.my_pe(), rt.n_pes()))?;
                if let Some(team) = team {
                    run(name, team.group(), &team.on_cpu_device());
                    team.destroy()?;
                }
            }
        }
        rt.barrier_all()?;
        area.free()
    })
}

fn run(view: &DeviceView, kernel: impl Fn(&Thread<'_>) -> std::result::Result<(), DeviceError> + Sync) {
    Grid { blocks: 1, threads_per_block: 1 }.launch(view, kernel).unwrap();
}

fn barriers(view: &DeviceView, words: Symmetric<u64>, group: Group, team: &DeviceTeam, rounds: u64) {
    run(view, |me| {
        let members = (0..group.size()).map(|index| group.pe(index));
        for round in 1..=rounds {
            members.clone().try_for_each(|pe| me.p(words.at(me.my_pe().into())?, round, pe))?;
            me.barrier(team)?;
            for pe in members.clone() {
                let signal = me.signal_fetch(words.at(pe.into())?)?;
                assert_eq!(signal, round, "PE {}: from PE {pe}", me.my_pe());
            }
            // No PE overwrites data that others still read.
            me.team_sync(team)?;
        }
        Ok(())
    });
}

/// The number of work requests that this PE posts for so many barriers.
fn requests(rt: &Runtime, view: &DeviceView, team: &DeviceTeam, rounds: u64) -> u64 {
    let posted = || rt.counters().iter().map(|lane| lane.writes + lane.reads + lane.requests).sum::<u64>();
    let before = posted();
    run(view, |me| {
        (0..rounds).try_for_each(|_| me.team_sync(team))?;
        me.quiet()
    });
    posted() - before
}
