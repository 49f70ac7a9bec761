//! The plan of a node's children: which PEs it serves itself, and which through relays.

use std::ops::Range;

use symrail_transport::Pe;

/// The default number of PEs and relays that a node serves. Smaller jobs have no relays.
pub const FAN_OUT: u32 = 32;

/// The shape of the tree below one of its nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// Each node serves at most this many PEs and relays, and at least three. PEs run the relays.
    FanOut(u32),
    /// One relay for each host, run by a separate process. The numbers are those of consecutive PEs on each host.
    Hosts(Vec<u32>),
}

impl Shape {
    /// One node serves all PEs.
    pub const STAR: Shape = Shape::FanOut(u32::MAX);
}

/// The other end of a link to a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A PE.
    Pe,
    /// A relay that the first of its PEs runs.
    Relay,
    /// A relay that none of its PEs runs.
    Agent,
}

/// A child of a node: consecutive PEs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Branch {
    /// Its PEs.
    pub pes: Range<Pe>,
    /// What connects for them.
    pub role: Role,
}

impl Shape {
    /// The children of a node that serves these PEs, ordered by PE.
    #[must_use]
    pub fn children(&self, pes: Range<Pe>) -> Vec<Branch> {
        match self {
            Shape::FanOut(fan_out) => tree(pes, (*fan_out).max(3)),
            Shape::Hosts(sizes) => {
                let mut end = pes.start;
                let branch = |size: &u32| {
                    let start = end;
                    end = start.saturating_add(*size).min(pes.end);
                    Branch { pes: start..end, role: Role::Agent }
                };
                sizes.iter().map(branch).filter(|branch| !branch.pes.is_empty()).collect()
            }
        }
    }

    /// The number of levels of relays below a node that serves these PEs.
    #[must_use]
    pub fn height(&self, pes: Range<Pe>) -> u32 {
        match self {
            Shape::Hosts(_) => 1,
            Shape::FanOut(_) => {
                let relays = self.children(pes).into_iter().filter(|child| child.role != Role::Pe);
                let longest = relays.max_by_key(|child| child.pes.len());
                longest.map_or(0, |child| 1 + self.height(child.pes))
            }
        }
    }
}

/// A node serves few PEs directly. Of many PEs it serves the first directly, and relays serve the others in shares as
/// equal as possible.
fn tree(pes: Range<Pe>, fan_out: u32) -> Vec<Branch> {
    let pe = |pe| Branch { pes: pe..pe + 1, role: Role::Pe };
    let count = pes.end.saturating_sub(pes.start);
    if count <= fan_out {
        return pes.map(pe).collect();
    }
    let first = pes.start + fan_out / 2;
    let others = pes.end - first;
    let relays = others.div_ceil(fan_out).min(fan_out - fan_out / 2);
    // A share's beginning, computed in a type in which no product overflows.
    let start = |relay: u32| first + (u64::from(others) * u64::from(relay) / u64::from(relays)) as u32;
    let relay = |relay| Branch { pes: start(relay)..start(relay + 1), role: Role::Relay };
    (pes.start..first).map(pe).chain((0..relays).map(relay)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every node below one that serves these PEs, with its PEs and children.
    fn nodes(shape: &Shape, pes: Range<Pe>) -> Vec<(Range<Pe>, Vec<Branch>)> {
        let children = shape.children(pes.clone());
        let below: Vec<_> = children
            .iter()
            .filter(|child| child.role != Role::Pe)
            .flat_map(|child| nodes(shape, child.pes.clone()))
            .collect();
        std::iter::once((pes, children)).chain(below).collect()
    }

    #[test]
    fn every_pe_is_served_once_and_no_node_serves_many() {
        for fan_out in [3, 4, 7, 16, FAN_OUT] {
            for n in (1..200).chain([1000, 4096, 16_384]) {
                let shape = Shape::FanOut(fan_out);
                let nodes = nodes(&shape, 0..n);
                for (pes, children) in &nodes {
                    assert!(children.len() <= fan_out as usize, "{n} PEs, {fan_out}: {children:?}");
                    let ends = children.iter().map(|child| child.pes.end);
                    let starts: Vec<Pe> = std::iter::once(pes.start).chain(ends).collect();
                    assert!(children.iter().map(|child| child.pes.start).eq(starts[..children.len()].iter().copied()));
                    assert_eq!(starts.last(), Some(&pes.end));
                }
                let mut relays: Vec<Pe> = nodes[1..].iter().map(|(pes, _)| pes.start).collect();
                let count = relays.len();
                relays.dedup();
                assert!(relays.len() == count && (n > fan_out || count == 0), "a PE runs one relay: {relays:?}");
            }
        }
        assert_eq!([32, 33, 1000, 16_384, 1 << 20].map(|n| Shape::FanOut(FAN_OUT).height(0..n)), [0, 1, 2, 3, 4]);
        assert_eq!(Shape::STAR.height(0..5000), 0);
    }

    #[test]
    fn hosts_have_one_relay_each() {
        let children = Shape::Hosts(vec![2, 0, 3]).children(0..5);
        assert_eq!(children, [0..2, 2..5].map(|pes| Branch { pes, role: Role::Agent }));
    }
}
