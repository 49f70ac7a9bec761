//! Halos: layers of neighbours' elements around a pencil's own.
//!
//! An update of one dimension copies the layers before and after a pencil's own, with the halo of the other dimensions.
//! So after updates of all dimensions, one after the other, the corners are right, too. Only neighbours along the
//! dimension take part.

use crate::error::{Error, Result};
use crate::flow::{Flow, Flows};
use crate::grid::{Axis, Grid};
use crate::mode::Mode;
use crate::pencil::Form;

/// Slots of a PE's pairs: with the neighbour below, and with the one above.
const BELOW: usize = 0;
const ABOVE: usize = 1;

/// An update of the halo along one dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Halo {
    /// The axis of the pencils.
    pub axis: Axis,
    /// The dimension along which the neighbours are: 0, 1 or 2.
    pub dim: usize,
    /// Whether the last element is the neighbour of the first.
    pub periodic: bool,
    /// Halo and padding.
    pub form: Form,
    /// Bytes of an element.
    pub element: usize,
    /// The number of arrays that are updated at once. Their pencils are contiguous.
    pub fields: usize,
    /// The mode of the plan.
    pub mode: Mode,
}

impl Halo {
    /// The ranks of the neighbours below and above, of a rank's pencil along `axis` in dimension `dim`.
    #[must_use]
    pub fn neighbours(grid: &Grid, rank: usize, axis: Axis, dim: usize, periodic: bool) -> [Option<usize>; 2] {
        [-1, 1].map(|by| shifted(grid, rank, axis, dim, by, periodic))
    }

    /// The blocks that the PE of a rank exchanges with others.
    ///
    /// # Errors
    /// [`Error::Plan`] for a dimension that does not exist, for pencils whose bytes cannot be counted, or for a halo
    /// that is wider than a PE's share and so reaches beyond neighbours.
    pub(crate) fn flows(&self, grid: &Grid, rank: usize) -> Result<Flows> {
        let refuse = |reason| Err(Error::Plan { what: "halo", reason });
        if self.dim > 2 {
            return refuse(format!("dimension {}: use 0, 1 or 2", self.dim));
        }
        grid.check_bytes("halo", self.axis, self.form, self.element, self.fields)?;
        let pencil = |rank| grid.pencil(rank, self.axis, self.form);
        let (own, width) = (pencil(rank), self.form.halo[self.dim]);
        let parts = Grid::split(self.axis, self.dim).map_or(1, |split| grid.processes[split]);
        let all = own.len() * self.fields;
        let mut flows = Flows { others: Vec::new(), own: Vec::new(), slots: 2, elements: (all, all), disjoint: true };
        if width == 0 || parts == 1 && !self.periodic {
            return Ok(flows);
        }
        let least = (0..parts).map(|part| grid.share(self.dim, part, parts)).map(|(from, to)| to - from).min();
        if let Some(least) = least.filter(|least| *least < width) {
            return refuse(format!(
                "{width} layers along dimension {} where a PE has {least}: they would come from beyond its neighbour; \
                 use fewer PEs along it",
                self.dim
            ));
        }
        let len = own.extents()[self.dim];
        let layers = |rank: usize, first: usize| pencil(rank).layers(self.dim, first, width, self.fields);
        // The first layers of the faces that are sent, and of the halos that are received, below and above.
        let (faces, halos) = ([width, len], [0, width + len]);
        if parts == 1 {
            flows.own = vec![
                (layers(rank, faces[BELOW]), layers(rank, halos[ABOVE])),
                (layers(rank, faces[ABOVE]), layers(rank, halos[BELOW])),
            ];
            return Ok(flows);
        }
        let neighbours = Halo::neighbours(grid, rank, self.axis, self.dim, self.periodic);
        for (here, there) in [(ABOVE, BELOW), (BELOW, ABOVE)] {
            let Some(other) = neighbours[here] else { continue };
            let other_len = pencil(other).extents()[self.dim];
            let into = [0, width + other_len][there];
            flows.others.push(Flow {
                rank: other,
                here,
                there,
                part: 0,
                from: layers(rank, faces[here]),
                into: layers(other, into),
                at: layers(rank, halos[here]),
            });
        }
        Ok(flows)
    }

    /// The parameters that must be the same on all PEs.
    pub(crate) fn parameters(&self) -> Vec<(&'static str, u64)> {
        let Halo { axis, dim, periodic, element, fields, mode, form } = self;
        let mut all = vec![
            ("the axis", axis.index() as u64),
            ("the dimension", *dim as u64),
            ("the period", (*periodic).into()),
            ("bytes of an element", *element as u64),
            ("the number of fields", *fields as u64),
        ];
        all.extend(mode.parameters());
        all.extend(form.parameters("halo or padding"));
        all
    }
}

/// The rank that is `by` further along dimension `dim` of pencils along `axis`; `None` beyond the array.
#[must_use]
pub fn shifted(grid: &Grid, rank: usize, axis: Axis, dim: usize, by: i64, periodic: bool) -> Option<usize> {
    let mut place = grid.place(rank);
    let Some(split) = Grid::split(axis, dim) else { return (periodic || by == 0).then_some(rank) };
    let parts = grid.processes[split] as i64;
    let at = place[split] as i64 + by;
    if !periodic && !(0..parts).contains(&at) {
        return None;
    }
    place[split] = at.rem_euclid(parts) as usize;
    Some(grid.rank(place))
}
