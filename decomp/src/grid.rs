//! The distribution of a three-dimensional array over a grid of processes.
//!
//! A pencil has one axis whole. The other two axes, in ascending order, are split over the two dimensions of the
//! process grid: X pencils split Y and Z, Y pencils split X and Z, Z pencils split X and Y.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::pencil::{Form, Pencil};

/// The most bytes of a pencil: sums of a few of them do not overflow.
const MOST_BYTES: usize = isize::MAX as usize / 16;

/// An axis of the array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Axis {
    /// Axis 0.
    X,
    /// Axis 1.
    Y,
    /// Axis 2.
    Z,
}

impl Axis {
    /// All axes, in order.
    pub const ALL: [Axis; 3] = [Axis::X, Axis::Y, Axis::Z];

    /// 0, 1 or 2.
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }
}

/// The coordinate of the process grid that runs fastest with the rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum RankOrder {
    /// The second.
    #[default]
    RowMajor,
    /// The first.
    ColumnMajor,
}

/// An array, and the process grid over which it is spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Grid {
    /// Elements along X, Y and Z.
    pub extents: [usize; 3],
    /// Extents by which the shares are made, at most `extents`. Elements beyond them go to the last share that is not
    /// empty, so that arrays of slightly different extents (real and complex ones of an FFT) have the same shares.
    pub distributed: [usize; 3],
    /// The process grid.
    pub processes: [usize; 2],
    /// The order of ranks on the process grid.
    pub ranks: RankOrder,
    /// For pencils of each axis, the axes in the order of memory, the fastest first.
    pub memory: [[usize; 3]; 3],
}

impl Grid {
    /// An array with X fastest in all pencils, on a grid with ranks in row-major order.
    #[must_use]
    pub fn new(extents: [usize; 3], processes: [usize; 2]) -> Grid {
        Grid { extents, distributed: extents, processes, ranks: RankOrder::RowMajor, memory: [[0, 1, 2]; 3] }
    }

    /// An array on such a grid, with each pencil contiguous along its own axis.
    #[must_use]
    pub fn axis_contiguous(self) -> Grid {
        Grid { memory: [[0, 1, 2], [1, 2, 0], [2, 0, 1]], ..self }
    }

    /// Returns an error for an invalid grid, or for one that needs another number of processes.
    ///
    /// # Errors
    /// [`Error::Grid`].
    pub fn check(&self, processes: usize) -> Result<()> {
        self.check_shape()?;
        let refuse = |reason: String| Err(Error::Grid { reason });
        let Grid { extents, processes: grid, .. } = *self;
        if !self.is_countable() {
            return refuse(format!("extents {extents:?}: so many elements cannot be counted"));
        }
        if grid[0].checked_mul(grid[1]) != Some(processes) {
            return refuse(format!("a process grid of {} x {} is not for {processes} PEs", grid[0], grid[1]));
        }
        Ok(())
    }

    /// Returns an error for invalid extents or memory orders, whatever the number of processes.
    ///
    /// # Errors
    /// [`Error::Grid`].
    pub fn check_shape(&self) -> Result<()> {
        let refuse = |reason: String| Err(Error::Grid { reason });
        let Grid { extents, distributed, memory, .. } = *self;
        if extents.contains(&0) || distributed.contains(&0) {
            return refuse(format!("extents {extents:?}, distributed as {distributed:?}: each is at least 1"));
        }
        if distributed.iter().zip(extents).any(|(&part, all)| part > all) {
            return refuse(format!("distributed extents {distributed:?} are beyond the array's, {extents:?}"));
        }
        for (axis, order) in Axis::ALL.iter().zip(memory) {
            if !(0..3).all(|dim| order.contains(&dim)) {
                return refuse(format!("memory order {order:?} of {axis:?} pencils: each of 0, 1 and 2 comes once"));
            }
        }
        Ok(())
    }

    /// Whether the number of all elements can be counted.
    #[must_use]
    pub fn is_countable(&self) -> bool {
        self.extents.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent)).is_some()
    }

    /// Whether a PE has no elements in its pencil along an axis.
    #[must_use]
    pub fn has_empty_pencils(&self, axis: Axis) -> bool {
        let fewer =
            |dim: usize| Grid::split(axis, dim).is_some_and(|along| self.distributed[dim] < self.processes[along]);
        (0..3).any(fewer)
    }

    /// The coordinates of a rank on the process grid.
    #[must_use]
    pub fn place(&self, rank: usize) -> [usize; 2] {
        let [rows, columns] = self.processes;
        match self.ranks {
            RankOrder::RowMajor => [rank / columns, rank % columns],
            RankOrder::ColumnMajor => [rank % rows, rank / rows],
        }
    }

    /// The rank at coordinates of the process grid.
    #[must_use]
    pub fn rank(&self, [row, column]: [usize; 2]) -> usize {
        match self.ranks {
            RankOrder::RowMajor => row * self.processes[1] + column,
            RankOrder::ColumnMajor => column * self.processes[0] + row,
        }
    }

    /// The dimension of the process grid over which pencils of `axis` split dimension `dim`; `None` for the axis.
    #[must_use]
    pub fn split(axis: Axis, dim: usize) -> Option<usize> {
        let mut others = (0..3).filter(|&other| other != axis.index());
        others.position(|other| other == dim)
    }

    /// The share of dimension `dim` for part `part` of `parts`: its first element, and the end.
    #[must_use]
    pub fn share(&self, dim: usize, part: usize, parts: usize) -> (usize, usize) {
        let (all, distributed) = (self.extents[dim], self.distributed[dim]);
        let (each, more) = (distributed / parts, distributed % parts);
        let start = |part: usize| part * each + part.min(more);
        let last = parts.min(distributed) - 1;
        match part.cmp(&last) {
            std::cmp::Ordering::Less => (start(part), start(part + 1)),
            std::cmp::Ordering::Equal => (start(part), all),
            std::cmp::Ordering::Greater => (all, all),
        }
    }

    /// The pencil of a rank along an axis.
    #[must_use]
    pub fn pencil(&self, rank: usize, axis: Axis, form: Form) -> Pencil {
        let place = self.place(rank);
        let share = |dim: usize| match Grid::split(axis, dim) {
            Some(split) => self.share(dim, place[split], self.processes[split]),
            None => (0, self.extents[dim]),
        };
        let shares = [share(0), share(1), share(2)];
        Pencil {
            from: shares.map(|share| share.0),
            to: shares.map(|share| share.1),
            order: self.memory[axis.index()],
            form,
        }
    }

    /// The largest extents of any rank's pencil along an axis.
    #[must_use]
    pub fn largest_extents(&self, axis: Axis) -> [usize; 3] {
        [0, 1, 2].map(|dim| match Grid::split(axis, dim) {
            None => self.extents[dim],
            Some(split) => {
                let parts = self.processes[split];
                let shares = (0..parts).map(|part| self.share(dim, part, parts));
                shares.map(|(from, to)| to - from).max().unwrap_or(0)
            }
        })
    }

    /// Checks that the bytes of all pencils along an axis can be counted, and sums of their blocks' bytes. All ranks
    /// get the same answer.
    pub(crate) fn check_bytes(
        &self,
        what: &'static str,
        axis: Axis,
        form: Form,
        element: usize,
        fields: usize,
    ) -> Result<()> {
        let own = self.largest_extents(axis);
        let sides = [0, 1, 2].map(|dim| {
            let halo = form.halo[dim].checked_mul(2)?;
            own[dim].checked_add(halo)?.checked_add(form.padding[dim])
        });
        let all = sides.into_iter().chain([Some(element.max(1)), Some(fields.max(1))]);
        let bytes = all.into_iter().try_fold(1usize, |bytes, number| bytes.checked_mul(number?));
        if bytes.is_some_and(|bytes| bytes <= MOST_BYTES) {
            return Ok(());
        }
        let Form { halo, padding } = form;
        let reason = format!(
            "{axis:?} pencils of up to {own:?} elements with halo {halo:?} and padding {padding:?}, {fields} fields, \
             {element} bytes an element: use at most {MOST_BYTES} bytes"
        );
        Err(Error::Plan { what, reason })
    }

    /// All process grids for `processes` processes.
    pub fn factors(processes: usize) -> impl Iterator<Item = [usize; 2]> {
        (1..=processes).filter(move |rows| processes.is_multiple_of(*rows)).map(move |rows| [rows, processes / rows])
    }

    /// The parameters that must be the same on all PEs, with their names.
    pub(crate) fn parameters(&self) -> Vec<(&'static str, u64)> {
        let Grid { extents, distributed, processes, ranks, memory } = self;
        let mut all = Vec::new();
        let mut add = |name, numbers: &[usize]| all.extend(numbers.iter().map(|&number| (name, number as u64)));
        add("extents", extents);
        add("distributed extents", distributed);
        add("process grid", processes);
        add("rank order", &[*ranks as usize]);
        add("memory order", memory.as_flattened());
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::halo::Halo;
    use crate::mode::Mode;
    use crate::transpose::Transpose;

    #[test]
    fn pencils_whose_bytes_cannot_be_counted_are_refused() {
        let grid = Grid::new([8, 8, 8], [2, 2]);
        let form = |halo: usize, padding: usize| Form { halo: [halo; 3], padding: [padding; 3] };
        let c_int = i32::MAX as usize;
        for (form, fields, fits) in [
            (form(2, 3), 5, true),
            (form(c_int, 0), 1, false),
            (form(0, c_int), 1, false),
            (form(usize::MAX / 2 + 1, 0), 1, false),
            (form(0, usize::MAX), 0, false),
            (form(1, 0), usize::MAX / 8, false),
        ] {
            let halo = Halo { axis: Axis::Y, dim: 0, periodic: true, form, element: 8, fields, mode: Mode::default() };
            let plain = Transpose { fields, ..Transpose::new((Axis::X, Axis::Y), 8) };
            let transposes = [Transpose { input: form, ..plain }, Transpose { output: form, ..plain }];
            for rank in 0..4 {
                let made = halo.flows(&grid, rank);
                assert!(
                    if fits { made.is_ok() } else { matches!(made, Err(Error::Plan { what: "halo", .. })) },
                    "{made:?}"
                );
                for transpose in transposes {
                    assert_eq!(transpose.flows(&grid, rank).is_ok(), fits, "{form:?}, {fields} fields");
                    assert_eq!(transpose.workspace_bytes(&grid, rank) > 0, fits);
                }
            }
        }
    }
}
