//! All collectives of devices: types, operations, sizes, in place or not, misaligned or not; and what happens when
//! flags come round, and when a PE does not arrive or is killed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use symrail::bootstrap::uid;
use symrail::{Result, Runtime, SymSlice};
use symrail_collectives::plan::{Check, Collective, Plan};
use symrail_collectives::{Buffer, Call, Communicator, DataType, Error, Prepared, ReduceOp, Reduction};
use symrail_tests::collectives::{ALL, Data, difference, parts};
use symrail_tests::pe;
use symrail_tests::unlaunched::{self, Other};

fn main() -> ExitCode {
    let what: String = pe::arg(0, "all".into());
    if what == "killed" {
        return one_is_killed();
    }
    pe::run(|rt| match what.as_str() {
        "flags" => flags_come_round(rt),
        "late" => somebody_does_not_come(rt),
        _ => World::new(rt)?.everything(),
    })
}

struct World<'rt> {
    rt: &'rt Runtime,
    all: Communicator<'rt>,
    source: SymSlice<'rt, u8>,
    dest: SymSlice<'rt, u8>,
    round: usize,
}

const LARGEST: usize = 300_000;

impl<'rt> World<'rt> {
    fn new(rt: &'rt Runtime) -> Result<Self> {
        let room = rt.n_pes() as usize * LARGEST + 64;
        let (source, dest) = (rt.alloc_slice(room)?, rt.alloc_slice(room)?);
        Ok(World { rt, all: Communicator::new(rt).unwrap(), source, dest, round: 0 })
    }

    fn everything(mut self) -> Result<()> {
        for &ty in DataType::ALL {
            for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max] {
                self.call(&Collective::AllReduce, ty, op, 100, false)?;
            }
            self.call(&Collective::AllReduce, ty, ReduceOp::Sum, 5001, true)?;
            self.call(&Collective::ReduceScatter, ty, ReduceOp::Sum, 1001, false)?;
        }
        for collective in &ALL {
            for (ty, count) in [
                (DataType::U8, 1),
                (DataType::I8, 4095),
                (DataType::BF16, 1),
                (DataType::F16, 33_001),
                (DataType::F32, 1024),
                (DataType::F64, LARGEST / 8),
            ] {
                self.call(collective, ty, ReduceOp::Sum, count, false)?;
                if *collective != Collective::AllToAll {
                    self.call(collective, ty, ReduceOp::Sum, count, true)?;
                }
            }
        }
        self.averages()?;
        self.all.free().unwrap();
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
        let (me, n, part) = (self.rt.my_pe() as usize, self.rt.n_pes() as usize, count * ty.size());
        self.round += 1;
        let data = Data { ty, op, n, round: self.round };
        let shift = self.round % 5;
        pe::doing(format!("{collective:?} of {count} {ty:?}, {op:?}, in place: {in_place}, at byte {shift}"));
        let (inputs, outputs) = parts(collective, n);
        let at = |slice: &SymSlice<'_, u8>, start: usize, parts: usize| {
            Buffer::of(slice).unwrap().part((shift + start) as u64, (parts * part) as u64).unwrap()
        };
        let own = me * part;
        let (input, output) = match (in_place, inputs.cmp(&outputs)) {
            (false, _) => (at(&self.source, 0, inputs), at(&self.dest, 0, outputs)),
            (true, std::cmp::Ordering::Less) => (at(&self.dest, own, 1), at(&self.dest, 0, outputs)),
            (true, std::cmp::Ordering::Equal) => (at(&self.dest, 0, inputs), at(&self.dest, 0, inputs)),
            (true, std::cmp::Ordering::Greater) => (at(&self.dest, 0, inputs), at(&self.dest, own, 1)),
        };
        let starts = |in_it: bool| shift + if in_it { own } else { 0 };
        let from = if in_place { &self.dest } else { &self.source };
        let (first, last) = (starts(in_place && outputs > inputs), starts(in_place && outputs < inputs));
        self.dest.write_slice(0, &vec![0xee; n * part + 64])?;
        from.write_slice(first, &data.input(me, inputs * count))?;
        let done = match collective {
            Collective::AllReduce => self.all.all_reduce(input, output, ty, op),
            Collective::ReduceScatter => self.all.reduce_scatter(input, output, ty, op),
            Collective::AllGather => self.all.all_gather(input, output),
            Collective::AllToAll => self.all.all_to_all(input, output),
            Collective::Reduce => self.all.reduce(input, output, ty, op, 0),
            _ => self.all.broadcast(input, output, 0),
        };
        done.unwrap_or_else(|error| panic!("PE {me}, {collective:?} of {count} {ty:?}: {error}"));
        let mut found = vec![0; outputs * part];
        self.dest.read_slice(last, &mut found)?;
        let has_result = *collective != Collective::Reduce || me == 0;
        if let Some(difference) = difference(&found, &data.output(collective, me, count)).filter(|_| has_result) {
            panic!("PE {me}, {collective:?} of {count} {ty:?}, {op:?}, in place: {in_place}: {difference}");
        }
        // What is around it was left alone.
        if !in_place {
            let (before, after) = (last.checked_sub(1), last + outputs * part);
            assert!(before.into_iter().chain([after]).all(|i| self.dest.read(i).unwrap() == 0xee), "{collective:?}");
        }
        // Nobody changes what a peer has not compared yet: that peers are through with it is their own affair.
        self.rt.sync_all()
    }

    fn averages(&mut self) -> Result<()> {
        let (me, n) = (f64::from(self.rt.my_pe()), f64::from(self.rt.n_pes()));
        self.dest.write_slice(0, &(me * 2.0).to_ne_bytes())?;
        self.rt.sync_all()?;
        let buffer = Buffer::of(&self.dest).unwrap().part(0, 8).unwrap();
        self.all.all_reduce(buffer, buffer, DataType::F64, Reduction::Average).unwrap();
        let mut found = [0; 8];
        self.dest.read_slice(0, &mut found)?;
        assert_eq!(f64::from_ne_bytes(found), n - 1.0);
        Ok(())
    }
}

/// Packets of the last flags are not taken for those of the first ones.
fn flags_come_round(rt: &Runtime) -> Result<()> {
    let shape = symrail_collectives::build::Shape { hosts: vec![0; rt.n_pes() as usize], blocks: 2 };
    let plan = Plan::new(&symrail_collectives::build::all_reduce::two_phase(&shape), Check::Result).unwrap();
    let mut prepared = Prepared::new(rt, &plan, 4096).unwrap();
    let data = rt.alloc_slice::<u32>(1000)?;
    let buffer = Buffer::of(&data).unwrap();
    let (data_type, op, accumulate) = (DataType::U32, ReduceOp::Sum, Default::default());
    let call = Call { input: buffer, output: buffer, part: buffer.len(), data_type, op, accumulate };
    let mut run = |epoch: Option<u64>, value: u32| -> Result<()> {
        if let Some(epoch) = epoch {
            prepared.set_epoch(epoch);
        }
        data.fill(value);
        rt.sync_all()?;
        prepared.run(&call).unwrap_or_else(|error| panic!("{error}"));
        assert!(data.to_vec().iter().all(|&sum| sum == value * rt.n_pes()), "an old packet, {value}");
        rt.sync_all()
    };
    // There are 2^32 - 1 flags. After twice as many calls a flag finds its old packets in the same half, if nobody has
    // written there since.
    (0..40).try_for_each(|i| run(Some(2 * i * u64::from(u32::MAX)), 10 + i as u32))
}

/// PE 1 does not come to the second call. The others are told within the time-out, by name, and the plan is not run
/// any more.
fn somebody_does_not_come(rt: &Runtime) -> Result<()> {
    let shape = symrail_collectives::build::Shape { hosts: vec![0; rt.n_pes() as usize], blocks: 1 };
    let plan = Plan::new(&symrail_collectives::build::all_reduce::one_shot(&shape), Check::Result).unwrap();
    let mut prepared = Prepared::new(rt, &plan, 64).unwrap();
    let data = rt.alloc_slice::<u32>(16)?;
    let buffer = Buffer::of(&data).unwrap();
    let (data_type, op, accumulate) = (DataType::U32, ReduceOp::Sum, Default::default());
    let call = Call { input: buffer, output: buffer, part: 64, data_type, op, accumulate };
    prepared.run(&call).unwrap();
    if rt.my_pe() != 1 {
        let error = prepared.run(&call).unwrap_err();
        let named = matches!(error, Error::Late { pe: 1, .. } | Error::Aborted { .. });
        assert!(named, "{error}");
        println!("{error}");
        let again = prepared.run(&call).unwrap_err().to_string();
        assert!(again.contains("an earlier call has failed"), "{again}");
    }
    rt.barrier_all()
}

/// Started without a launcher: the last of three PEs is killed while it makes one call after the other. The others
/// get an error that names it, or learn that the other one has given up.
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
    let (data_type, op, accumulate) = (DataType::U32, ReduceOp::Sum, Default::default());
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
        assert!(error.to_string().contains(&lost) || matches!(error, Error::Aborted { .. }), "{error}");
        println!("PE {} is through: {error}", rt.my_pe());
    });
    ExitCode::SUCCESS
}
