//! Parts of large blocks, which GPUs exchange one after the other: while one is on its way, the one before is unpacked.

use crate::flow::{Flow, Flows};
use crate::view::View;
use symrail::team::heap::ALIGN;

/// The most parts of a block.
pub(crate) const MOST: usize = 4;
/// The least bytes of a part: the launches of another one would take longer than what they hide.
pub(crate) const LEAST: usize = 64 << 20;

/// The bytes by which a workspace for a block of so many bytes grows since each part is aligned.
pub(crate) fn slack(bytes: usize) -> usize {
    if bytes < 2 * LEAST { 0 } else { (MOST - 1) * ALIGN }
}

impl Flows {
    /// The same blocks, of elements of `element` bytes, in parts of at least `least` bytes: first the first parts of
    /// all blocks. Both ends of a pair make the same parts.
    pub fn in_parts(self, element: usize, least: usize) -> Flows {
        let number = |flow: &Flow| (flow.most() * element / least).clamp(1, MOST);
        let part = |k: usize| {
            let parts = self.others.iter().filter(move |flow| k < number(flow));
            parts.map(move |flow| flow.part_of(k, number(flow)))
        };
        Flows { others: (0..MOST).flat_map(part).collect(), slots: self.slots * MOST, ..self }
    }
}

impl Flow {
    fn part_of(&self, k: usize, parts: usize) -> Flow {
        // The receiver's arrangement decides, which both ends know.
        let (sent, received) = (slowest(&self.into, parts), slowest(&self.at, parts));
        Flow {
            rank: self.rank,
            here: self.here * MOST + k,
            there: self.there * MOST + k,
            part: k,
            from: slice(&self.from, sent, k, parts),
            into: slice(&self.into, sent, k, parts),
            at: slice(&self.at, received, k, parts),
        }
    }
}

/// The slowest dimension that has `parts` elements, or else the one with the most.
fn slowest(view: &View, parts: usize) -> usize {
    let key = |dim: &usize| (view.extents[*dim].min(parts), view.strides[*dim]);
    (0..4).max_by_key(key).unwrap_or(0)
}

/// The `k`th of `parts` parts along a dimension.
fn slice(view: &View, dim: usize, k: usize, parts: usize) -> View {
    let [from, to] = [k, k + 1].map(|k| view.extents[dim] * k / parts);
    let mut part = *view;
    part.offset += from * view.strides[dim];
    part.extents[dim] = to - from;
    part
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Grid, Transpose};

    #[test]
    #[allow(clippy::unwrap_used)]
    fn both_ends_make_the_same_parts_of_all_elements() {
        let grid = Grid { memory: [[0, 1, 2], [1, 2, 0], [2, 0, 1]], ..Grid::new([9, 10, 35], [3, 1]) };
        for axes in Transpose::ALL {
            let transpose = Transpose::new(axes, 8);
            let whole: Vec<_> = (0..3).map(|rank| transpose.flows(&grid, rank).unwrap()).collect();
            let parts: Vec<_> = whole.iter().map(|flows| flows.clone().in_parts(8, 600)).collect();
            for (me, flows) in parts.iter().enumerate() {
                assert_eq!(flows.slots, whole[me].slots * MOST);
                let len = |flows: &Flows| flows.others.iter().map(|flow| flow.at.len()).sum::<usize>();
                assert_eq!(len(flows), len(&whole[me]));
                assert!(flows.others.is_sorted_by_key(|flow| flow.part));
                for flow in &flows.others {
                    let same = |other: &&Flow| other.rank == me && other.here == flow.there;
                    let other = parts[flow.rank].others.iter().find(same).unwrap();
                    assert_eq!((flow.into, flow.part, flow.here), (other.at, other.part, other.there));
                }
            }
        }
        let small = Transpose::new(Transpose::ALL[0], 8).flows(&grid, 0).unwrap().in_parts(8, LEAST);
        assert!(small.others.iter().all(|flow| flow.part == 0), "small blocks stay whole");
    }
}
