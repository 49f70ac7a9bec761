//! The blocks between a PE and others in one operation. Pure geometry: transposes, halos and all-to-alls reduce to
//! this.

use crate::view::View;

/// The blocks from a PE to another one, and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flow {
    /// The other PE's rank in the team.
    pub rank: usize,
    /// The slot of the pair at this PE.
    pub here: usize,
    /// The slot of the pair at the other one.
    pub there: usize,
    /// The number of this part of the pair's blocks.
    pub part: usize,
    /// The block for the other PE, in this PE's input.
    pub from: View,
    /// The same block in the other PE's output. Only the arrangement of the elements counts there; the receiver sets
    /// the start.
    pub into: View,
    /// The other PE's block, in this PE's output.
    pub at: View,
}

impl Flow {
    /// Elements of the larger of its two blocks.
    pub fn most(&self) -> usize {
        self.from.len().max(self.at.len())
    }
}

/// All blocks of a PE in one operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Flows {
    /// The blocks with other PEs, starting with the PE after this one, so that not all PEs access the same one first.
    pub others: Vec<Flow>,
    /// The blocks from the input to the output of this PE.
    pub own: Vec<(View, View)>,
    /// The number of slots of each PE.
    pub slots: usize,
    /// The number of elements of the input, and of the output.
    pub elements: (usize, usize),
    /// Whether input and output may be one buffer, because the elements that are read and those that are written are
    /// disjoint.
    pub disjoint: bool,
}
