//! What goes between a PE and others in one operation. Pure geometry: transposes, halos and all-to-alls come to this.

use crate::view::View;

/// Blocks of a PE for another one, and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flow {
    /// The other one's rank in the team.
    pub rank: usize,
    /// The slot of the pair at this PE.
    pub here: usize,
    /// The slot of the pair at the other one.
    pub there: usize,
    /// What it gets, in this PE's input.
    pub from: View,
    /// The same in its output. Only how the elements lie counts there; where they begin, the receiver says.
    pub into: View,
    /// What comes back, in this PE's output.
    pub at: View,
}

impl Flow {
    /// Elements of the larger of its two blocks.
    pub fn most(&self) -> usize {
        self.from.len().max(self.at.len())
    }
}

/// All of a PE in one operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Flows {
    /// With other PEs, starting behind this one, so that not everybody turns to the same PE first.
    pub others: Vec<Flow>,
    /// From the input to the output of this PE.
    pub own: Vec<(View, View)>,
    /// Slots of each PE.
    pub slots: usize,
    /// Elements of the input, and of the output.
    pub elements: (usize, usize),
    /// Input and output may be one buffer because what is read and what is written are disjoint.
    pub disjoint: bool,
}
