//! Collectives of all PEs of a job, by whichever plan suits.
//!
//! What is chosen depends on facts that all PEs have in common: the collective, its size, who is on which host, and the
//! plans that users have added. So all PEs choose alike. [`Communicator::explain`] says what and why.

use std::collections::BTreeMap;

use symrail::Runtime;

use crate::build::{Shape, all_reduce, moves};
use crate::error::{Error, Result};
use crate::number::{Accumulate, DataType, ReduceOp};
use crate::plan::registry::{Registry, Wanted};
use crate::plan::{Check, Collective, Document, Plan};
use crate::run::{Buffer, Call, Prepared, divide_elements};

/// The largest message of an all-reduce, in bytes, for which every PE sends everything to everybody.
const ONE_SHOT: u64 = 4 << 10;
/// The largest one that travels in packets.
const PACKETS: u64 = 64 << 10;
/// The smallest message on which two blocks of each PE work.
const TWO_BLOCKS: u64 = 256 << 10;
/// The memory for a plan's first call is for parts of so many bytes at least.
const LEAST_CAPACITY: u64 = 64 << 10;

/// What a reduction gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// What the operation makes of all elements.
    Of(ReduceOp),
    /// Their sum, divided by the number of PEs; integers are cut.
    Average,
}

impl Reduction {
    fn op(self) -> ReduceOp {
        match self {
            Reduction::Of(op) => op,
            Reduction::Average => ReduceOp::Sum,
        }
    }
}

impl From<ReduceOp> for Reduction {
    fn from(op: ReduceOp) -> Self {
        Reduction::Of(op)
    }
}

/// The plan of a call.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Choice {
    /// A user's, by its name.
    User(String),
    /// One of ours, with so many blocks.
    Own(Algorithm, usize),
}

/// The algorithms of this crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Algorithm {
    OneShot,
    TwoPhase,
    Direct,
    Hierarchical,
    ByPuts,
    AllGather,
    ReduceScatter,
    AllToAll,
    BroadcastFrom(u32),
}

impl Algorithm {
    fn document(self, shape: &Shape) -> Document {
        match self {
            Algorithm::OneShot => all_reduce::one_shot(shape),
            Algorithm::TwoPhase => all_reduce::two_phase(shape),
            Algorithm::Direct => all_reduce::direct(shape),
            Algorithm::Hierarchical => all_reduce::hierarchical(shape).unwrap_or_else(|| all_reduce::by_puts(shape)),
            Algorithm::ByPuts => all_reduce::by_puts(shape),
            Algorithm::AllGather => moves::all_gather(shape),
            Algorithm::ReduceScatter => moves::reduce_scatter(shape),
            Algorithm::AllToAll => moves::all_to_all(shape),
            Algorithm::BroadcastFrom(root) => moves::broadcast(shape, root as usize),
        }
    }
}

/// A communicator of all PEs. Its calls are collective: all PEs make the same ones in the same order, with the same
/// sizes, types and operations.
pub struct Communicator<'rt> {
    runtime: &'rt Runtime,
    hosts: Vec<u32>,
    users: Registry,
    prepared: BTreeMap<Choice, Prepared<'rt>>,
    /// In which type narrow elements are reduced.
    pub accumulate: Accumulate,
}

impl std::fmt::Debug for Communicator<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Communicator").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

impl<'rt> Communicator<'rt> {
    /// Makes a communicator of all PEs. Collective.
    ///
    /// # Errors
    /// The runtime's.
    pub fn new(runtime: &'rt Runtime) -> Result<Self> {
        let n = runtime.n_pes();
        let all = runtime.alloc_slice::<u64>(n as usize)?;
        // A PE whose heap is mapped is on this host; its lowest PE is the host's number.
        let near = |&pe: &u32| !runtime.peer_ptr(all.as_ptr().cast(), pe).is_null();
        let mine = (0..n).find(near).unwrap_or(runtime.my_pe());
        (0..n).try_for_each(|pe| all.put(runtime.my_pe() as usize, &[u64::from(mine)], pe))?;
        runtime.barrier_all()?;
        let hosts = all.to_vec().into_iter().map(|host| host as u32).collect();
        all.free()?;
        let accumulate = Accumulate::default();
        Ok(Communicator { runtime, hosts, users: Registry::default(), prepared: BTreeMap::new(), accumulate })
    }

    /// Adds a plan, which is taken before those of this crate where it suits. All PEs add the same ones.
    pub fn add_plan(&mut self, plan: Plan) {
        self.users.add(plan);
    }

    /// What would be done for a message of so many bytes, and of the plans that users have added, why not.
    #[must_use]
    pub fn explain(&self, collective: &Collective, message: u64, in_place: bool) -> Vec<String> {
        let mut lines = self.users.explain(&self.wanted(collective, message, in_place));
        lines.push(match self.choose(collective, message, in_place, 0) {
            Ok(Choice::Own(algorithm, blocks)) => format!("{algorithm:?} with {blocks} blocks: chosen"),
            Ok(Choice::User(_)) => return lines,
            Err(error) => error.to_string(),
        });
        lines
    }

    /// Reduces all PEs' inputs into everybody's output, which may be the input.
    ///
    /// # Errors
    /// As for [`Prepared::run`].
    pub fn all_reduce(&mut self, input: Buffer, output: Buffer, ty: DataType, op: impl Into<Reduction>) -> Result<()> {
        self.run(&Collective::AllReduce, (input, output), input.len(), ty, op.into(), 0)
    }

    /// Reduces all PEs' inputs, of which each gets its part. The output may be that part of the input.
    ///
    /// # Errors
    /// As for [`Prepared::run`].
    pub fn reduce_scatter(
        &mut self,
        input: Buffer,
        output: Buffer,
        ty: DataType,
        op: impl Into<Reduction>,
    ) -> Result<()> {
        self.run(&Collective::ReduceScatter, (input, output), output.len(), ty, op.into(), 0)
    }

    /// Gives everybody all PEs' inputs, in the order of PEs. The input may be its place in the output.
    ///
    /// # Errors
    /// As for [`Prepared::run`].
    pub fn all_gather(&mut self, input: Buffer, output: Buffer) -> Result<()> {
        self.move_only(&Collective::AllGather, (input, output), input.len(), 0)
    }

    /// Gives every PE its part of everybody's input. Input and output are different memory.
    ///
    /// # Errors
    /// As for [`Prepared::run`]; or the parts are not all alike, or input and output overlap.
    pub fn all_to_all(&mut self, input: Buffer, output: Buffer) -> Result<()> {
        let n = u64::from(self.runtime.n_pes());
        if !input.len().is_multiple_of(n) {
            return Err(Error::Call(format!("an all-to-all of {} bytes among {n} PEs", input.len())));
        }
        if input.overlaps(output) {
            return Err(Error::Call("an all-to-all's input and output overlap".into()));
        }
        self.move_only(&Collective::AllToAll, (input, output), input.len() / n, 0)
    }

    /// Gives everybody the input of PE `root`. The input may be the output.
    ///
    /// # Errors
    /// As for [`Prepared::run`]; or there is no such PE.
    pub fn broadcast(&mut self, input: Buffer, output: Buffer, root: u32) -> Result<()> {
        let n = self.runtime.n_pes();
        if root >= n {
            return Err(Error::Call(format!("a broadcast from PE {root} of {n}")));
        }
        self.move_only(&Collective::Broadcast, (input, output), input.len(), root)
    }

    /// Gives the plans' memory back. Collective.
    ///
    /// # Errors
    /// The runtime's.
    pub fn free(mut self) -> Result<()> {
        // In the same order on all PEs.
        std::mem::take(&mut self.prepared).into_values().try_for_each(Prepared::free)
    }

    fn move_only(&mut self, collective: &Collective, buffers: (Buffer, Buffer), part: u64, root: u32) -> Result<()> {
        self.run(collective, buffers, part, DataType::U8, ReduceOp::Sum.into(), root)
    }

    fn run(
        &mut self,
        collective: &Collective,
        (input, output): (Buffer, Buffer),
        part: u64,
        data_type: DataType,
        reduction: Reduction,
        root: u32,
    ) -> Result<()> {
        if part == 0 {
            return Ok(());
        }
        // As plans limit it; in place, one of the two holds the other.
        let message = match collective {
            Collective::AllGather => output.len(),
            _ => input.len(),
        };
        let in_place = input.overlaps(output);
        let (op, accumulate) = (reduction.op(), self.accumulate);
        let call = Call { input, output, part, data_type, op, accumulate };
        let choice = self.choose(collective, message, in_place, root)?;
        self.prepare(&choice, part)?.run(&call)?;
        if reduction == Reduction::Average {
            divide_elements(self.runtime, output, data_type)?;
        }
        Ok(())
    }

    /// A plan with memory for parts of so many bytes.
    fn prepare(&mut self, choice: &Choice, part: u64) -> Result<&mut Prepared<'rt>> {
        let kept = self.prepared.get(choice);
        if kept.is_none_or(|kept| kept.capacity() < part) {
            let plan = match (kept, choice) {
                (Some(kept), _) => kept.plan().clone(),
                (None, Choice::User(name)) => self.users.named(name).cloned().ok_or_else(|| unknown(choice))?,
                (None, &Choice::Own(algorithm, blocks)) => {
                    let shape = Shape { hosts: self.hosts.clone(), blocks };
                    Plan::new(&algorithm.document(&shape), Check::Result)?
                }
            };
            if let Some(small) = self.prepared.remove(choice) {
                small.free()?;
            }
            let capacity = part.next_power_of_two().max(LEAST_CAPACITY);
            self.prepared.insert(choice.clone(), Prepared::new(self.runtime, &plan, capacity)?);
        }
        self.prepared.get_mut(choice).ok_or_else(|| unknown(choice))
    }

    fn choose(&self, collective: &Collective, message: u64, in_place: bool, root: u32) -> Result<Choice> {
        // A user's broadcast is from one PE, which the registry does not know.
        if *collective != Collective::Broadcast
            && let Some(plan) = self.users.select(&self.wanted(collective, message, in_place))
        {
            return Ok(Choice::User(plan.name().into()));
        }
        let one_host = self.hosts.iter().all(|&host| host == self.hosts[0]);
        let algorithm = match collective {
            Collective::AllReduce if one_host && message <= ONE_SHOT => Algorithm::OneShot,
            Collective::AllReduce if one_host && message <= PACKETS => Algorithm::TwoPhase,
            Collective::AllReduce if one_host => Algorithm::Direct,
            Collective::AllReduce if self.hosts_are_alike() => Algorithm::Hierarchical,
            Collective::AllReduce => Algorithm::ByPuts,
            Collective::AllGather => Algorithm::AllGather,
            Collective::ReduceScatter => Algorithm::ReduceScatter,
            Collective::AllToAll => Algorithm::AllToAll,
            Collective::Broadcast => Algorithm::BroadcastFrom(root),
            Collective::Other(name) => return Err(Error::Call(format!("there is no plan for {name}"))),
        };
        Ok(Choice::Own(algorithm, if message < TWO_BLOCKS { 1 } else { 2 }))
    }

    fn hosts_are_alike(&self) -> bool {
        let pes = |host: &u32| self.hosts.iter().filter(|other| *other == host).count();
        self.hosts.iter().all(|host| pes(host) == pes(&self.hosts[0]))
    }

    fn wanted(&self, collective: &Collective, message: u64, in_place: bool) -> Wanted<'_> {
        Wanted { collective: collective.clone(), message, hosts: &self.hosts, in_place }
    }
}

fn unknown(choice: &Choice) -> Error {
    Error::Call(format!("there is no plan {choice:?}"))
}
