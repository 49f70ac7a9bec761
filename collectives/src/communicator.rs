//! Collectives of all PEs of a job, or of a team's, by whichever plan suits.
//!
//! What is chosen depends on facts that all PEs have in common: the collective, its size, who is on which host, and the
//! plans that users have added. So all PEs choose alike. [`Communicator::explain`] says what and why.

use std::collections::BTreeMap;

use symrail::{Runtime, Team, TeamHeap};

use crate::error::{Error, Result};
use crate::members::Members;
use crate::number::{Accumulate, DataType, ReduceOp};
use crate::plan::{Collective, Plan};
use crate::run::exchange::Exchange;
use crate::run::{Buffer, Call, Prepared, divide_elements};
use crate::selection::{CPU, Choice, Selection, message_of};
use crate::transfer::{Transfer, all_to_all_v};
use crate::tuning::{Row, Table, Tuning, Way};

/// The memory for a plan's first call is for parts of so many bytes at least.
const LEAST_CAPACITY: u64 = 64 << 10;

/// What a reduction gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// What the operation makes of all elements.
    Of(ReduceOp),
    /// Their sum, divided by the number of PEs; integers are cut.
    Average,
    /// Their sum, after each PE has multiplied its own by a factor of its own: on GPUs, where buffers may be any
    /// memory.
    ScaledSum(Factor),
}

/// An element by which others are multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Factor {
    /// Its bytes, from the lowest on.
    Value(u64),
    /// Its address in the GPU's memory, where it is read when the stream has come so far.
    At(u64),
}

impl Factor {
    /// As the kernel takes it.
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

impl From<ReduceOp> for Reduction {
    fn from(op: ReduceOp) -> Self {
        Reduction::Of(op)
    }
}

/// A communicator of all PEs, or of a team's; those are its ranks. Its calls are collective: all its PEs make the same
/// ones in the same order, with the same sizes, types and operations.
pub struct Communicator<'rt> {
    members: Members<'rt>,
    selection: Selection,
    prepared: BTreeMap<Choice, Prepared<'rt>>,
    exchange: Exchange<'rt>,
    /// In which type narrow elements are reduced.
    pub accumulate: Accumulate,
}

impl std::fmt::Debug for Communicator<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Communicator").field("selection", &self.selection).finish_non_exhaustive()
    }
}

impl<'rt> Communicator<'rt> {
    /// Makes a communicator of all PEs. Collective.
    ///
    /// # Errors
    /// The runtime's.
    pub fn new(runtime: &'rt Runtime) -> Result<Self> {
        Communicator::among(Members::all(runtime))
    }

    /// Makes a communicator of a team's PEs, whose numbers in the team are their ranks: roots, sends and receives name
    /// those. It takes its memory from `heap`, so that other PEs take no part. Buffers are at the same place of the
    /// symmetric heap on all PEs of the team. Collective over the team.
    ///
    /// # Errors
    /// The runtime's; or [`Error::OtherRuntime`].
    pub fn of_team(team: &'rt Team<'rt>, heap: &'rt TeamHeap<'rt>) -> Result<Self> {
        Communicator::among(Members::of_team(heap.runtime(), team, heap)?)
    }

    fn among(members: Members<'rt>) -> Result<Self> {
        let exchange = Exchange::new(members)?;
        let near = |pe| !members.runtime().peer_ptr(exchange.start(), pe).is_null();
        let (selection, accumulate) = (Selection::agree(members, CPU, "cpu".into(), near)?, Accumulate::default());
        Ok(Communicator { members, selection, prepared: BTreeMap::new(), exchange, accumulate })
    }

    /// This PE's rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.members.me()
    }

    /// How many ranks there are.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.members.n()
    }

    /// Adds a plan, which is taken before those of this crate where it suits. All PEs add the same ones.
    pub fn add_plan(&mut self, plan: Plan) {
        self.selection.users.add(plan);
    }

    /// The kind of device, as tables of `symrail tune` have it.
    #[must_use]
    pub fn device_kind(&self) -> &str {
        &self.selection.device
    }

    /// All ways in which a collective can be carried out here, of which a table chooses.
    #[must_use]
    pub fn ways(&self, collective: &Collective) -> Vec<Way> {
        self.selection.ways(collective)
    }

    /// A table with these rows for communicators like this one.
    #[must_use]
    pub fn table(&self, rows: Vec<Row>) -> Table {
        self.selection.table(rows)
    }

    /// From now on takes what a table says, in place of the one that was found when this was made. All PEs give the
    /// same one.
    ///
    /// # Errors
    /// It is for others, or names a way that there is not.
    pub fn tune(&mut self, table: Table) -> Result<()> {
        self.selection.accepts(&table).map_err(|why| Error::Call(format!("a table is not taken: {why}")))?;
        self.selection.tuning = Tuning { table: Some(("given by the program".into(), table)), untaken: None };
        Ok(())
    }

    /// From now on calls take the algorithm of this name (`one_shot`, `two_phase`, `direct`, `one_round`,
    /// `hierarchical`, `by_puts`), or the added plan of this name, and are refused where that does not suit; with `None`
    /// what suits best. All PEs ask for the same.
    pub fn ask_for(&mut self, algorithm: Option<&str>) {
        self.selection.asked = algorithm.map(Into::into);
    }

    /// What would be done for a message of so many bytes, and of the plans that users have added, why not. The root is
    /// that of a broadcast or a reduction to one PE.
    #[must_use]
    pub fn explain(&self, collective: &Collective, message: u64, in_place: bool, root: u32) -> Vec<String> {
        self.selection.explain(collective, message, in_place, root)
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
        let part = self.selection.part_of_all_to_all(input.len(), input.overlaps(output))?;
        self.move_only(&Collective::AllToAll, (input, output), part, 0)
    }

    /// Gives everybody the input of PE `root`. The input may be the output.
    ///
    /// # Errors
    /// As for [`Prepared::run`]; or there is no such PE.
    pub fn broadcast(&mut self, input: Buffer, output: Buffer, root: u32) -> Result<()> {
        self.move_only(&Collective::Broadcast, (input, output), input.len(), root)
    }

    /// Reduces all PEs' inputs into the output of PE `root`, which may be its input. The others name an output of the
    /// same size, which is left alone.
    ///
    /// # Errors
    /// As for [`Prepared::run`]; or there is no such PE.
    pub fn reduce(
        &mut self,
        input: Buffer,
        output: Buffer,
        ty: DataType,
        op: impl Into<Reduction>,
        root: u32,
    ) -> Result<()> {
        self.run(&Collective::Reduce, (input, output), input.len(), ty, op.into(), root)
    }

    /// Sends and receives, all at once. Not collective: the PEs that are named take part, and the n-th send from a PE
    /// to another meets the n-th receive there, of the same size, in whichever of their calls both are. Returns when
    /// all has been received, and what was sent may be changed.
    ///
    /// # Errors
    /// There is no such PE. One did not do its part in time ([`Error::Late`]), or a send met a receive of another size
    /// ([`Error::Sizes`]; of a send that had ended by then, the next call says so): then there are no further transfers.
    pub fn exchange(&mut self, transfers: &[Transfer<Buffer>]) -> Result<()> {
        self.exchange.run(transfers)
    }

    /// Gives every PE its part of everybody's input, of any sizes: part `i` of `inputs` goes to PE `i`, and from PE `i`
    /// comes part `i` of `outputs`.
    ///
    /// # Errors
    /// As for [`Communicator::exchange`]; or there is not a part for each PE.
    pub fn all_to_all_v(&mut self, inputs: &[Buffer], outputs: &[Buffer]) -> Result<()> {
        self.exchange.run(&all_to_all_v(self.members.n(), inputs, outputs)?)
    }

    /// Gives the plans' memory back. Collective.
    ///
    /// # Errors
    /// The runtime's.
    pub fn free(mut self) -> Result<()> {
        // In the same order on all PEs.
        std::mem::take(&mut self.prepared).into_values().try_for_each(Prepared::free)?;
        self.exchange.free()
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
        self.selection.check_root(collective, root)?;
        if matches!(reduction, Reduction::ScaledSum(_)) {
            return Err(Error::Call("a scaled sum is for GPUs".into()));
        }
        if part == 0 {
            return Ok(());
        }
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

    /// A plan with memory for parts of so many bytes.
    fn prepare(&mut self, choice: &Choice, part: u64) -> Result<&mut Prepared<'rt>> {
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
            self.prepared.insert(choice.clone(), Prepared::of(self.members, &plan, capacity)?);
        }
        self.prepared.get_mut(choice).ok_or_else(|| choice.unknown())
    }
}
