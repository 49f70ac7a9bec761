//! Collectives of all PEs of a job, or of a team's, with the plan that suits best.
//!
//! The choice depends on facts that all PEs share: the collective, its size, the hosts of the PEs, and the plans that
//! users have added. So all PEs choose alike. [`Selection::explain`] reports the choice and the reason.

use std::collections::BTreeMap;

use symrail::{Runtime, Team, TeamHeap};

use crate::buffers::Buffers;
use crate::error::{Error, Result};
use crate::members::Members;
use crate::number::{Accumulate, DataType, ReduceOp};
use crate::plan::Collective;
use crate::run::exchange::Exchange;
use crate::run::{Buffer, Call, Prepared, divide_elements};
use crate::selection::{CPU, Choice, Selection, message_of};
use crate::transfer::{Transfer, all_to_all_v};

/// A plan's memory is for parts of at least so many bytes.
const LEAST_CAPACITY: u64 = 64 << 10;

/// The result of a reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// The operation, applied to all elements.
    Of(ReduceOp),
    /// Their sum, divided by the number of PEs; integers are truncated.
    Average,
    /// Their sum, after each PE has multiplied its elements by its own factor: on GPUs, if buffers may be any memory.
    ScaledSum(Factor),
}

/// An element with which others are multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Factor {
    /// Its bytes, from the lowest on.
    Value(u64),
    /// Its address in the GPU's memory; the kernel reads it when the stream reaches the call.
    At(u64),
}

impl Factor {
    /// The kernel's arguments.
    pub(crate) fn arguments(self) -> [u64; 2] {
        match self {
            Factor::Value(bytes) => [bytes, 1],
            Factor::At(address) => [address, 0],
        }
    }
}

impl Reduction {
    pub(crate) fn op(self) -> ReduceOp {
        match self {
            Reduction::Of(op) => op,
            Reduction::Average | Reduction::ScaledSum(_) => ReduceOp::Sum,
        }
    }
}

impl std::fmt::Display for Reduction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reduction::Of(op) => op.fmt(f),
            Reduction::Average => f.write_str("avg"),
            Reduction::ScaledSum(_) => f.write_str("scaled sum"),
        }
    }
}

impl std::str::FromStr for Reduction {
    type Err = Error;

    fn from_str(name: &str) -> Result<Reduction> {
        if name == "avg" {
            return Ok(Reduction::Average);
        }
        let known = || ReduceOp::ALL.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        name.parse::<ReduceOp>()
            .map(Reduction::Of)
            .map_err(|_| Error::Call(format!("op is {name}; there are {} and avg", known())))
    }
}

impl From<ReduceOp> for Reduction {
    fn from(op: ReduceOp) -> Self {
        Reduction::Of(op)
    }
}

/// A communicator of all PEs, or of a team's; these are its ranks. Its calls are collective: all its PEs make the same
/// ones in the same order, with the same sizes, types and operations.
pub struct Communicator {
    selection: Selection,
    prepared: BTreeMap<Choice, Prepared>,
    exchange: Exchange,
    /// The type in which narrow elements are reduced.
    pub accumulate: Accumulate,
    members: Members,
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Communicator").field("selection", &self.selection).finish_non_exhaustive()
    }
}

impl Communicator {
    /// Makes a communicator of all PEs. Collective.
    ///
    /// # Errors
    /// The runtime's.
    pub fn new(runtime: &Runtime) -> Result<Self> {
        Communicator::among(Members::all(runtime)?)
    }

    /// Makes a communicator of a team's PEs; their numbers in the team are their ranks, which roots, sends and receives
    /// name. Its memory comes from `heap`, so other PEs take no part. Buffers have the same offset in the symmetric
    /// heap on all PEs of the team. Collective over the team.
    ///
    /// # Errors
    /// The runtime's; or [`Error::OtherRuntime`].
    pub fn of_team(team: &Team, heap: &TeamHeap) -> Result<Self> {
        Communicator::among(Members::of_team(heap.runtime(), team, heap)?)
    }

    fn among(members: Members) -> Result<Self> {
        let exchange = Exchange::new(&members)?;
        let near = |pe| !members.runtime().peer_ptr(exchange.start(), pe).is_null();
        let (selection, accumulate) = (Selection::agree(&members, CPU, "cpu".into(), near)?, Accumulate::default());
        Ok(Communicator { members, selection, prepared: BTreeMap::new(), exchange, accumulate })
    }

    /// This PE's rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.members.me()
    }

    /// The number of ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.members.n()
    }

    /// The choice of algorithms and plans.
    #[must_use]
    pub fn selection(&self) -> &Selection {
        &self.selection
    }

    /// As [`Self::selection`], to change it: on all PEs alike.
    #[must_use]
    pub fn selection_mut(&mut self) -> &mut Selection {
        &mut self.selection
    }

    /// Reduces all PEs' inputs into the output of every PE, which may be the input.
    ///
    /// # Errors
    /// As for [`Prepared::run`]; or input and output overlap in another way.
    pub fn all_reduce(&mut self, input: Buffer, output: Buffer, ty: DataType, op: impl Into<Reduction>) -> Result<()> {
        self.run(&Collective::AllReduce, Buffers { input, output, part: input.len() }, ty, op.into(), 0)
    }

    /// Reduces all PEs' inputs; each PE gets its part. The output may be that part of the input.
    ///
    /// # Errors
    /// As for [`Communicator::all_reduce`].
    pub fn reduce_scatter(
        &mut self,
        input: Buffer,
        output: Buffer,
        ty: DataType,
        op: impl Into<Reduction>,
    ) -> Result<()> {
        self.run(&Collective::ReduceScatter, Buffers { input, output, part: output.len() }, ty, op.into(), 0)
    }

    /// Gives every PE all PEs' inputs, in the order of PEs. The input may be its own part of the output.
    ///
    /// # Errors
    /// As for [`Communicator::all_reduce`].
    pub fn all_gather(&mut self, input: Buffer, output: Buffer) -> Result<()> {
        self.move_only(&Collective::AllGather, Buffers { input, output, part: input.len() }, 0)
    }

    /// Gives every PE its part of every input. The output may be the input.
    ///
    /// # Errors
    /// As for [`Communicator::all_reduce`]; or the parts have different sizes.
    pub fn all_to_all(&mut self, input: Buffer, output: Buffer) -> Result<()> {
        let part = self.selection.part_of_all_to_all(input.len())?;
        self.move_only(&Collective::AllToAll, Buffers { input, output, part }, 0)
    }

    /// Gives every PE the input of PE `root`. The input may be the output.
    ///
    /// # Errors
    /// As for [`Communicator::all_reduce`]; or there is no such PE.
    pub fn broadcast(&mut self, input: Buffer, output: Buffer, root: u32) -> Result<()> {
        self.move_only(&Collective::Broadcast, Buffers { input, output, part: input.len() }, root)
    }

    /// Reduces all PEs' inputs into the output of PE `root`, which may be its input. The others pass an output of the
    /// same size, which stays unchanged.
    ///
    /// # Errors
    /// As for [`Communicator::all_reduce`]; or there is no such PE.
    pub fn reduce(
        &mut self,
        input: Buffer,
        output: Buffer,
        ty: DataType,
        op: impl Into<Reduction>,
        root: u32,
    ) -> Result<()> {
        self.run(&Collective::Reduce, Buffers { input, output, part: input.len() }, ty, op.into(), root)
    }

    /// Sends and receives, all at once. Not collective: only the named PEs take part. The n-th send from a PE to
    /// another matches the n-th receive there, of the same size, in whichever calls both are. Returns when all data has
    /// been received, and the sources may be changed.
    ///
    /// # Errors
    /// There is no such PE. A PE did not do its part in time ([`Error::Round`]), or a send matched a receive of another
    /// size ([`Error::Sizes`]; if that send had already returned, the next call reports it): then no further transfers
    /// are possible.
    pub fn exchange(&mut self, transfers: &[Transfer<Buffer>]) -> Result<()> {
        self.exchange.run(transfers)
    }

    /// Gives every PE its part of every input, of any sizes: part `i` of `inputs` goes to PE `i`, and part `i` of
    /// `outputs` comes from PE `i`.
    ///
    /// # Errors
    /// As for [`Communicator::exchange`]; or there is not a part for each PE.
    pub fn all_to_all_v(&mut self, inputs: &[Buffer], outputs: &[Buffer]) -> Result<()> {
        self.exchange.run(&all_to_all_v(self.members.n(), inputs, outputs, Buffer::span)?)
    }

    /// Frees the plans' memory. Collective.
    ///
    /// # Errors
    /// The runtime's.
    pub fn free(mut self) -> Result<()> {
        // In the same order on all PEs.
        std::mem::take(&mut self.prepared).into_values().try_for_each(Prepared::free)?;
        self.exchange.free()
    }

    fn move_only(&mut self, collective: &Collective, buffers: Buffers<Buffer>, root: u32) -> Result<()> {
        self.run(collective, buffers, DataType::Uint8, ReduceOp::Sum.into(), root)
    }

    fn run(
        &mut self,
        collective: &Collective,
        Buffers { input, output, part }: Buffers<Buffer>,
        data_type: DataType,
        reduction: Reduction,
        root: u32,
    ) -> Result<()> {
        self.selection.check_root(collective, root)?;
        reduction.op().suits(data_type)?;
        if (reduction, data_type) == (Reduction::Average, DataType::Bool) {
            return Err(Error::Call("elements of bool have no avg".into()));
        }
        if matches!(reduction, Reduction::ScaledSum(_)) {
            return Err(Error::Call("a scaled sum is for GPUs".into()));
        }
        if part == 0 {
            return Ok(());
        }
        collective.check_overlap(self.rank(), &input.span(), &output.span())?;
        let message = message_of(collective, input.len(), output.len());
        let in_place = input.overlaps(output);
        let (op, accumulate) = (reduction.op(), self.accumulate);
        let call = Call { input, output, part, data_type, op, accumulate };
        let choice = self.selection.choose(collective, message, in_place, root)?;
        if !self.prepared.contains_key(&choice) {
            self.selection.log(collective, message, in_place, root);
        }
        self.prepare(&choice, part)?.run(&call)?;
        if reduction == Reduction::Average && (*collective != Collective::Reduce || root == self.members.me()) {
            divide_elements(self.members.runtime(), output, data_type, self.members.n())?;
        }
        Ok(())
    }

    /// A plan with memory for parts of `part` bytes.
    fn prepare(&mut self, choice: &Choice, part: u64) -> Result<&mut Prepared> {
        let kept = self.prepared.get(choice);
        if kept.is_none_or(|kept| kept.capacity() < part) {
            let plan = match kept {
                Some(kept) => kept.plan().clone(),
                None => self.selection.plan(choice)?,
            };
            if let Some(small) = self.prepared.remove(choice) {
                small.free()?;
            }
            let capacity = part.next_power_of_two().max(LEAST_CAPACITY);
            self.prepared.insert(choice.clone(), Prepared::of(&self.members, &plan, capacity)?);
        }
        self.prepared.get_mut(choice).ok_or_else(|| choice.unknown())
    }
}
