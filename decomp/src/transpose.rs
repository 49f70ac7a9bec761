//! Transposes: which blocks go from pencils along one axis to pencils along another. `flight` moves them on the host,
//! `cuda::binding` on GPUs.

use symrail::team::heap::ALIGN;

use crate::error::{Error, Result};
use crate::flow::{Flow, Flows};
use crate::grid::{Axis, Grid};
use crate::mode::Mode;
use crate::parts;
use crate::pencil::Form;

/// A transpose: X to Y, Y to Z, or back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Transpose {
    /// The axis of the input's pencils.
    pub from: Axis,
    /// The axis of the output's pencils.
    pub to: Axis,
    /// Bytes of an element.
    pub element: usize,
    /// The number of arrays that are transposed at once. Their pencils are contiguous.
    pub fields: usize,
    /// Halo and padding of the input.
    pub input: Form,
    /// Halo and padding of the output.
    pub output: Form,
    /// The mode of the plan.
    pub mode: Mode,
}

impl Transpose {
    /// The four transposes, in the order in which an FFT and its inverse need them.
    pub const ALL: [(Axis, Axis); 4] = [(Axis::X, Axis::Y), (Axis::Y, Axis::Z), (Axis::Z, Axis::Y), (Axis::Y, Axis::X)];

    /// A transpose of one array without halo and padding.
    #[must_use]
    pub fn new((from, to): (Axis, Axis), element: usize) -> Transpose {
        let form = Form::default();
        Transpose { from, to, element, fields: 1, input: form, output: form, mode: Mode::default() }
    }

    /// The blocks that the PE of a rank exchanges with others.
    ///
    /// # Errors
    /// [`Error::Plan`] for a pair of axes without a transpose, or for pencils whose bytes cannot be counted.
    pub(crate) fn flows(&self, grid: &Grid, rank: usize) -> Result<Flows> {
        let (Some(along), true) = (Grid::split(self.from, self.to.index()), self.from != self.to) else {
            return Err(self.no_such());
        };
        if Grid::split(self.to, self.from.index()) != Some(along) {
            return Err(self.no_such());
        }
        grid.check_bytes("transpose", self.from, self.input, self.element, self.fields)?;
        grid.check_bytes("transpose", self.to, self.output, self.element, self.fields)?;
        let place = grid.place(rank);
        let input = |rank| grid.pencil(rank, self.from, self.input);
        let output = |rank| grid.pencil(rank, self.to, self.output);
        let (own_input, own_output) = (input(rank), output(rank));
        let ranks = grid.processes[along];
        let flow = |distance: usize| {
            let part = (place[along] + distance) % ranks;
            let mut there = place;
            there[along] = part;
            let other = grid.rank(there);
            let (other_input, other_output) = (input(other), output(other));
            Flow {
                rank: other,
                here: part,
                there: place[along],
                part: 0,
                from: own_input.common(&other_output, self.fields),
                into: other_output.common(&own_input, self.fields),
                at: own_output.common(&other_input, self.fields),
            }
        };
        let own = flow(0);
        Ok(Flows {
            others: (1..ranks).map(flow).collect(),
            own: vec![(own.from, own.at)],
            slots: ranks,
            elements: (own_input.len() * self.fields, own_output.len() * self.fields),
            disjoint: false,
        })
    }

    /// Bytes of workspace with which a rank can run it, over any path, in place or not; 0 for a transpose without a
    /// plan.
    #[must_use]
    pub fn workspace_bytes(&self, grid: &Grid, rank: usize) -> usize {
        let Ok(flows) = self.flows(grid, rank) else { return 0 };
        let bytes = |len: usize| (len * self.element).next_multiple_of(ALIGN) + parts::slack(len * self.element);
        let others = flows.others.iter().map(|flow| bytes(flow.from.len()) + bytes(flow.at.len()));
        others.sum::<usize>() + flows.own.iter().map(|(from, _)| bytes(from.len())).sum::<usize>()
    }

    fn no_such(&self) -> Error {
        let reason = format!("from {:?} to {:?} pencils: X and Y, or Y and Z, are neighbours", self.from, self.to);
        Error::Plan { what: "transpose", reason }
    }

    /// The parameters that must be the same on all PEs.
    pub(crate) fn parameters(&self) -> Vec<(&'static str, u64)> {
        let Transpose { from, to, element, fields, mode, input, output } = self;
        let mut all = vec![
            ("the input's axis", from.index() as u64),
            ("the output's axis", to.index() as u64),
            ("bytes of an element", *element as u64),
            ("the number of fields", *fields as u64),
        ];
        all.extend(mode.parameters());
        all.extend(input.parameters("the input's halo or padding"));
        all.extend(output.parameters("the output's halo or padding"));
        all
    }
}
