//! All collectives of devices: types, operations, sizes, in place or not, misaligned or not; flags that wrap around;
//! and a PE that does not arrive or is killed. All of it also among PEs of teams, two at a time.
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use symrail::bootstrap::uid;
use symrail::rounds::Error::{Aborted, TimedOut};
use symrail::{Result, Runtime, SymSlice, Team, TeamHeap};
use symrail_collectives::plan::{Check, Collective, Plan};
use symrail_collectives::{Buffer, Call, Communicator, DataType, Error, Prepared, ReduceOp, Reduction, Transfer};
use symrail_tests::collectives::{ALL, Data, OPS, SIZES, difference, places};
use symrail_tests::pe;
use symrail_tests::unlaunched::{self, Other};

pub fn main() -> ExitCode {
    let what: String = pe::arg(0, "all".into());
    if what == "killed" {
        return one_is_killed();
    }
    // The folder that SYMRAIL_CACHE_DIR names exists for PE 0 alone.
    let folder: String = pe::arg(1, String::new());
    if !folder.is_empty() && std::env::var("SYMRAIL_LAUNCHER_PE").is_ok_and(|pe| pe == "0") {
        std::env::set_current_dir(folder).unwrap();
    }
    pe::run(|rt| match what.as_str() {
        "flags" => flags_come_round(rt),
        "late" => somebody_does_not_come(rt),
        "sizes" => sizes_that_differ(rt),
        "defaults" => default_plans(rt),
        "rooted" => default_plans_with_roots(rt),
        "teams" => teams(rt),
        _ => World::new(rt)?.everything(),
    })
}

struct World<'rt> {
    rt: &'rt Runtime,
    /// The team, if it is not all PEs.
    team: Option<&'rt Team>,
    all: Communicator,
    source: SymSlice<u8>,
    dest: SymSlice<u8>,
    round: usize,
}

const LARGEST: usize = 300_000;

impl<'rt> World<'rt> {
    fn new(rt: &'rt Runtime) -> Result<Self> {
        World::among(rt, None, Communicator::new(rt).unwrap())
    }

    /// The world of a communicator. Collective over all PEs of the job.
    fn among(rt: &'rt Runtime, team: Option<&'rt Team>, all: Communicator) -> Result<Self> {
        let room = rt.n_pes() as usize * LARGEST + 64;
        let (source, dest) = (rt.alloc_slice(room)?, rt.alloc_slice(room)?);
        Ok(World { rt, team, all, source, dest, round: 0 })
    }

    /// Waits for the communicator's PEs.
    fn sync(&self) -> Result<()> {
        self.team.map_or_else(|| self.rt.sync_all(), Team::sync)
    }

    fn everything(mut self) -> Result<()> {
        self.types()?;
        self.sizes()?;
        self.all.free().unwrap();
        two_at_once(self.rt)
    }

    fn types(&mut self) -> Result<()> {
        for &ty in DataType::ALL {
            for op in OPS.into_iter().filter(|op| op.suits(ty).is_ok()) {
                self.call(&Collective::AllReduce, ty, op, 100, false)?;
            }
            self.call(&Collective::AllReduce, ty, ReduceOp::Sum, 5001, true)?;
            self.call(&Collective::ReduceScatter, ty, ReduceOp::Sum, 1001, false)?;
        }
        Ok(())
    }

    fn sizes(&mut self) -> Result<()> {
        for collective in &ALL {
            for (ty, count) in SIZES.into_iter().chain([(DataType::Float64, LARGEST / 8)]) {
                self.call(collective, ty, ReduceOp::Sum, count, false)?;
                self.call(collective, ty, ReduceOp::Sum, count, true)?;
            }
        }
        self.averages()?;
        (0..3).try_for_each(|round| self.transfers(round))
    }

    /// Each PE sends each PE several messages of different sizes, in one call; and parts of all sizes.
    fn transfers(&mut self, round: usize) -> Result<()> {
        let (me, n) = (self.all.rank() as usize, self.all.size() as usize);
        // The messages from PE 0 to PE 1 are more than all slots hold.
        let sizes = |from: usize, to: usize| match (from, to) {
            (0, 1) => [LARGEST - 70_000, 0, 65_537],
            _ => [1 + 1000 * from + 7 * to, 3, 700 * (from + to)],
        };
        let byte = |from: usize, to: usize, at: usize| (from * 89 + to * 37 + round * 11 + at * 7 + at / 251) as u8;
        let bytes = |from, to| (0..sizes(from, to).iter().sum()).map(|at| byte(from, to, at)).collect::<Vec<u8>>();
        let own = Buffer::of(&self.source).unwrap();
        let dest = Buffer::of(&self.dest).unwrap();
        let place = |all: Buffer, peer: usize, start: usize, len: usize| {
            all.part((peer * LARGEST + start) as u64, len as u64).unwrap()
        };
        self.dest.write_slice(0, &vec![0; n * LARGEST])?;
        let (mut transfers, mut parts) = (Vec::new(), (Vec::new(), Vec::new()));
        for peer in 0..n {
            self.source.write_slice(peer * LARGEST, &bytes(me, peer))?;
            let (mut sent, mut got) = (0, 0);
            for (to, from) in sizes(me, peer).into_iter().zip(sizes(peer, me)) {
                transfers.push(Transfer::Send { to: peer as u32, memory: place(own, peer, sent, to) });
                transfers.push(Transfer::Receive { from: peer as u32, memory: place(dest, peer, got, from) });
                (sent, got) = (sent + to, got + from);
            }
            parts.0.push(place(own, peer, 0, sent));
            parts.1.push(place(dest, peer, 0, got));
        }
        for kind in ["sends and receives", "all_to_all_v"] {
            pe::doing(format!("{kind}, round {round}"));
            let done = match kind {
                "all_to_all_v" => self.all.all_to_all_v(&parts.0, &parts.1),
                _ => self.all.exchange(&transfers),
            };
            done.unwrap_or_else(|error| panic!("PE {me}, {kind}: {error}"));
            for peer in 0..n {
                let expected = bytes(peer, me);
                let mut found = vec![0; expected.len()];
                self.dest.read_slice(peer * LARGEST, &mut found)?;
                assert!(found == expected, "PE {me}, {kind} from PE {peer}, round {round}");
            }
            self.dest.write_slice(0, &vec![0; n * LARGEST])?;
        }
        Ok(())
    }

    /// A call on parts of `count` elements, which begin at any byte.
    fn call(
        &mut self,
        collective: &Collective,
        ty: DataType,
        op: ReduceOp,
        count: usize,
        in_place: bool,
    ) -> Result<()> {
        let (me, n, part) = (self.all.rank() as usize, self.all.size() as usize, count * ty.size());
        self.round += 1;
        let data = Data { ty, op, n, round: self.round };
        let shift = self.round % 5;
        pe::doing(format!("{collective:?} of {count} {ty:?}, {op:?}, in place: {in_place}, at byte {shift}"));
        let places = places(collective, (me, n), part, in_place);
        let from = if in_place { &self.dest } else { &self.source };
        let at = |slice: &SymSlice<u8>, (start, len): (usize, usize)| {
            Buffer::of(slice).unwrap().part((shift + start) as u64, len as u64).unwrap()
        };
        let (input, output) = (at(from, places.input), at(&self.dest, places.output));
        let (first, last) = (shift + places.input.0, shift + places.output.0);
        self.dest.write_slice(0, &vec![0xee; n * part + 64])?;
        from.write_slice(first, &data.input(me, places.input.1 / ty.size()))?;
        let mut run = |input| match collective {
            Collective::AllReduce => self.all.all_reduce(input, output, ty, op),
            Collective::ReduceScatter => self.all.reduce_scatter(input, output, ty, op),
            Collective::AllGather => self.all.all_gather(input, output),
            Collective::AllToAll => self.all.all_to_all(input, output),
            Collective::Reduce => self.all.reduce(input, output, ty, op, 0),
            _ => self.all.broadcast(input, output, 0),
        };
        if in_place && part > 1 {
            let beside = at(from, (places.input.0 + 1, places.input.1));
            let refused = run(beside).unwrap_err().to_string();
            assert!(refused.contains("input and output overlap"), "PE {me}, {collective:?}: {refused}");
        }
        run(input).unwrap_or_else(|error| panic!("PE {me}, {collective:?} of {count} {ty:?}: {error}"));
        let mut found = vec![0; places.output.1];
        self.dest.read_slice(last, &mut found)?;
        let has_result = *collective != Collective::Reduce || me == 0;
        if let Some(difference) = difference(&found, &data.output(collective, me, count)).filter(|_| has_result) {
            panic!("PE {me}, {collective:?} of {count} {ty:?}, {op:?}, in place: {in_place}: {difference}");
        }
        // The memory around it is unchanged.
        if !in_place {
            let (before, after) = (last.checked_sub(1), last + places.output.1);
            assert!(before.into_iter().chain([after]).all(|i| self.dest.read(i).unwrap() == 0xee), "{collective:?}");
        }
        // No PE changes data that a peer has not compared yet: the collective itself does not wait for that.
        self.sync()
    }

    fn averages(&mut self) -> Result<()> {
        let (me, n) = (f64::from(self.all.rank()), f64::from(self.all.size()));
        let numbers = |first: f64| (0..LARGEST / 8).flat_map(|i| (first + i as f64).to_ne_bytes()).collect::<Vec<u8>>();
        let mut found = numbers(me * 2.0);
        self.dest.write_slice(3, &found)?;
        self.sync()?;
        let buffer = Buffer::of(&self.dest).unwrap().part(3, found.len() as u64).unwrap();
        self.all.all_reduce(buffer, buffer, DataType::Float64, Reduction::Average).unwrap();
        self.dest.read_slice(3, &mut found)?;
        assert_eq!(difference(&found, &numbers(n - 1.0)), None);
        Ok(())
    }
}

/// Two teams, of PEs with even numbers and of those with odd ones in reverse order, which make different calls at the
/// same time.
fn teams(rt: &Runtime) -> Result<()> {
    let heap = TeamHeap::new(rt, 32 << 20)?;
    let (me, n) = (i64::from(rt.my_pe()), i64::from(rt.n_pes()));
    let last_odd = n - 1 - n % 2;
    let (start, stride, size) = if me % 2 == 0 { (0, 2, (n + 1) / 2) } else { (last_odd, -2, n / 2) };
    let all = rt.team_world()?;
    let team = all.split(all.group().part(start, stride, size).unwrap())?.unwrap();
    let mut world = World::among(rt, Some(&team), Communicator::of_team(&team, &heap).unwrap())?;
    assert_eq!((i64::from(world.all.rank()), i64::from(world.all.size())), ((me - start) / stride, size));
    for _ in 0..1 + me % 2 {
        world.sizes()?;
    }
    // Odd numbers alone, after the others have ended.
    if me % 2 == 1 {
        world.types()?;
    }
    world.all.free().unwrap();
    team.destroy()?;
    rt.barrier_all()?;
    heap.free()
}

/// Two communicators, each on its own thread.
fn two_at_once(rt: &Runtime) -> Result<()> {
    const COUNT: usize = 5000;
    let mut both: Vec<_> =
        (0..2).map(|_| (Communicator::new(rt).unwrap(), rt.alloc_slice::<u32>(COUNT).unwrap())).collect();
    let (me, n) = (rt.my_pe(), rt.n_pes());
    let round = |which: u32, round: u32, all: &mut Communicator, data: &SymSlice<u32>| {
        let value = |pe: u32| pe * 7 + which * 1000 + round;
        data.fill(value(me)).unwrap();
        let buffer = Buffer::of(data).unwrap();
        all.all_reduce(buffer, buffer, DataType::Uint32, ReduceOp::Sum).unwrap_or_else(|error| panic!("{error}"));
        let sum: u32 = (0..n).map(value).sum();
        assert!(
            data.to_vec().unwrap().iter().all(|&found| found == sum),
            "PE {me}, communicator {which}, call {round}"
        );
    };
    // First calls allocate memory, in the same order on all PEs.
    both.iter_mut().zip(0..).for_each(|((all, data), which)| round(which, 0, all, data));
    std::thread::scope(|scope| {
        for ((all, data), which) in both.iter_mut().zip(0..) {
            scope.spawn(move || (1..50).for_each(|call| round(which, call, all, data)));
        }
    });
    rt.barrier_all()?;
    for (all, data) in both {
        all.free().unwrap();
        data.free()?;
    }
    Ok(())
}

/// A small all-reduce by the default choice, and the reason for it.
fn default_plans(rt: &Runtime) -> Result<()> {
    let mut all = match Communicator::new(rt) {
        Ok(all) => all,
        Err(error) => {
            println!("{error}");
            return rt.barrier_all();
        }
    };
    let (from, to) = (rt.alloc_slice::<u32>(250)?, rt.alloc_slice::<u32>(250)?);
    from.fill(rt.my_pe() + 1)?;
    let buffers = (Buffer::of(&from).unwrap(), Buffer::of(&to).unwrap());
    all.all_reduce(buffers.0, buffers.1, DataType::Uint32, ReduceOp::Sum).unwrap_or_else(|error| panic!("{error}"));
    let expected: u32 = (1..=rt.n_pes()).sum();
    assert!(to.to_vec()?.iter().all(|&sum| sum == expected));
    all.selection().explain(&Collective::AllReduce, 1000, false, 0).iter().for_each(|line| println!("{line}"));
    all.free().unwrap();
    rt.barrier_all()
}

/// Broadcasts from each PE and reductions to each, and which of them a default plan carries out.
fn default_plans_with_roots(rt: &Runtime) -> Result<()> {
    let mut all = Communicator::new(rt).unwrap();
    let (from, to) = (rt.alloc_slice::<u32>(250)?, rt.alloc_slice::<u32>(250)?);
    from.fill(rt.my_pe() + 1)?;
    let (input, output) = (Buffer::of(&from).unwrap(), Buffer::of(&to).unwrap());
    for root in 0..rt.n_pes() {
        all.broadcast(input, output, root).unwrap_or_else(|error| panic!("{error}"));
        assert!(to.to_vec()?.iter().all(|&value| value == root + 1), "from PE {root}");
        all.reduce(input, output, DataType::Uint32, ReduceOp::Sum, root).unwrap_or_else(|error| panic!("{error}"));
        let expected = if root == rt.my_pe() { (1..=rt.n_pes()).sum() } else { root + 1 };
        assert!(to.to_vec()?.iter().all(|&value| value == expected), "to PE {root}");
        for collective in [Collective::Broadcast, Collective::Reduce] {
            let lines = all.selection().explain(&collective, 1000, false, root);
            let chosen = lines.iter().find(|line| line.contains(": chosen")).unwrap();
            println!("{collective:?} of PE {root}: {chosen}");
        }
        rt.barrier_all()?;
    }
    all.free().unwrap();
    rt.barrier_all()
}

/// Packets with the last flags are not taken for those with the first ones.
fn flags_come_round(rt: &Runtime) -> Result<()> {
    let shape = symrail_collectives::build::Shape { hosts: vec![0; rt.n_pes() as usize], blocks: 2 };
    let plan = Plan::new(&symrail_collectives::build::all_reduce::two_phase(&shape), Check::Result).unwrap();
    let mut prepared = Prepared::new(rt, &plan, 4096).unwrap();
    let data = rt.alloc_slice::<u32>(1000)?;
    let buffer = Buffer::of(&data).unwrap();
    let (data_type, op, accumulate) = (DataType::Uint32, ReduceOp::Sum, Default::default());
    let call = Call { input: buffer, output: buffer, part: buffer.len(), data_type, op, accumulate };
    let mut run = |epoch: Option<u64>, value: u32| -> Result<()> {
        if let Some(epoch) = epoch {
            prepared.set_epoch(epoch);
        }
        data.fill(value)?;
        rt.sync_all()?;
        prepared.run(&call).unwrap_or_else(|error| panic!("{error}"));
        assert!(data.to_vec()?.iter().all(|&sum| sum == value * rt.n_pes()), "an old packet, {value}");
        rt.sync_all()
    };
    // There are 2^32 - 1 flags. After twice as many calls a flag finds its old packets in the same half, if nothing was
    // written there since.
    (0..40).try_for_each(|i| run(Some(2 * i * u64::from(u32::MAX)), 10 + i as u32))
}

/// PE 1 does not make the second call. The others get an error with its name within the time-out, and the plan is not
/// run any more.
fn somebody_does_not_come(rt: &Runtime) -> Result<()> {
    let shape = symrail_collectives::build::Shape { hosts: vec![0; rt.n_pes() as usize], blocks: 1 };
    let plan = Plan::new(&symrail_collectives::build::all_reduce::one_shot(&shape), Check::Result).unwrap();
    let mut prepared = Prepared::new(rt, &plan, 64).unwrap();
    let data = rt.alloc_slice::<u32>(16)?;
    let buffer = Buffer::of(&data).unwrap();
    let (data_type, op, accumulate) = (DataType::Uint32, ReduceOp::Sum, Default::default());
    let call = Call { input: buffer, output: buffer, part: 64, data_type, op, accumulate };
    prepared.run(&call).unwrap();
    if rt.my_pe() != 1 {
        let error = prepared.run(&call).unwrap_err();
        let named = matches!(&error, Error::Round(TimedOut { late, .. }) if late == &[1])
            || matches!(error, Error::Round(Aborted { .. }));
        assert!(named, "{error}");
        println!("{error}");
        let again = prepared.run(&call).unwrap_err().to_string();
        assert!(again.contains("cannot be used any more"), "{again}");
    }
    rt.barrier_all()
}

/// PE 0 sends a message that PE 1 receives with another size: both get an error with both sizes, whichever of them
/// waits, and neither uses the rest for another message. A send that fits into the slots has returned by then, and the
/// next call reports it.
fn sizes_that_differ(rt: &Runtime) -> Result<()> {
    const MOST: usize = 400_000;
    let data = rt.alloc_slice::<u8>(MOST)?;
    let memory = |bytes: usize| Buffer::of(&data).unwrap().part(0, bytes as u64).unwrap();
    for (sent, received) in [(1000, 600), (600, 1000), (64, 65), (MOST, MOST - 1), (MOST - 100_000, MOST), (9, MOST)] {
        let mut all = Communicator::new(rt).unwrap();
        let same = if rt.my_pe() == 0 {
            Transfer::Send { to: 1, memory: memory(5000) }
        } else {
            Transfer::Receive { from: 0, memory: memory(5000) }
        };
        all.exchange(&[same]).unwrap();
        let done = match rt.my_pe() {
            0 => all.exchange(&[Transfer::Send { to: 1, memory: memory(sent) }]),
            _ => all.exchange(&[Transfer::Receive { from: 0, memory: memory(received) }]),
        };
        rt.barrier_all()?;
        let error = match done {
            Ok(()) => all.exchange(&[]).expect_err("sizes differ, and nobody says so"),
            Err(error) => error,
        };
        let expected = (0, 1, sent as u64, received as u64);
        match error {
            Error::Sizes { from, to, sent, received } => assert_eq!((from, to, sent, received), expected),
            error => panic!("PE {}, {expected:?}: {error}", rt.my_pe()),
        }
        assert!(all.exchange(&[same]).is_err(), "what still arrives is an earlier one's");
        rt.barrier_all()?;
        all.free().unwrap();
    }
    Ok(())
}

/// Started without a launcher: the last of three PEs is killed while it makes one call after the other. The others get
/// an error that names it, or one that another PE has given up.
fn one_is_killed() -> ExitCode {
    const N: u32 = 3;
    const CALLS: u32 = 50;
    if let Some((id, me)) = unlaunched::started() {
        return calls(&unlaunched::join(id, me, N), if me == N - 1 { CALLS } else { u32::MAX });
    }
    let id = uid::create(None).unwrap();
    let mut others: Vec<_> = (1..N).map(|pe| Other::start(unlaunched::this_program(), id, pe, N)).collect();
    let code = calls(&unlaunched::join(id, 0, N), u32::MAX);
    let mut killed = others.pop().unwrap();
    Other::end_well(others);
    assert_eq!(killed.0.wait().unwrap().code(), None, "it was to be killed");
    code
}

/// Makes calls until one fails. Another thread kills the process after so many.
fn calls(rt: &Runtime, last: u32) -> ExitCode {
    let shape = symrail_collectives::build::Shape { hosts: vec![0; rt.n_pes() as usize], blocks: 1 };
    let plan = Plan::new(&symrail_collectives::build::all_reduce::one_shot(&shape), Check::Result).unwrap();
    let mut prepared = Prepared::new(rt, &plan, 64).unwrap();
    let data = rt.alloc_slice::<u32>(16).unwrap();
    let buffer = Buffer::of(&data).unwrap();
    let (data_type, op, accumulate) = (DataType::Uint32, ReduceOp::Sum, Default::default());
    let call = Call { input: buffer, output: buffer, part: 64, data_type, op, accumulate };
    let made = AtomicU32::new(0);
    std::thread::scope(|scope| {
        if last < u32::MAX {
            scope.spawn(|| {
                while made.load(Ordering::Relaxed) < last {
                    std::thread::yield_now();
                }
                kill(Pid::this(), Signal::SIGKILL).unwrap();
            });
        }
        let error = loop {
            match prepared.run(&call) {
                Ok(()) => made.fetch_add(1, Ordering::Relaxed),
                Err(error) => break error,
            };
        };
        let lost = format!("PE {}", rt.n_pes() - 1);
        assert!(error.to_string().contains(&lost) || matches!(error, Error::Round(Aborted { .. })), "{error}");
        println!("PE {} is through: {error}", rt.my_pe());
    });
    ExitCode::SUCCESS
}
