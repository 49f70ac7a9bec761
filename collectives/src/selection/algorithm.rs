//! The algorithms of this crate, and their plans.

use crate::build::{Shape, all_reduce, moves};
use crate::plan::Document;

/// The algorithms of this crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Algorithm {
    /// The algorithms of `gpu::straight`, for several collectives.
    Packets,
    Pushed,
    OneShot,
    TwoPhase,
    Direct,
    OneRound,
    Hierarchical,
    ByPuts,
    AllGather,
    ReduceScatter,
    AllToAll,
    BroadcastFrom(u32),
    ReduceTo(u32),
}

/// The algorithms that have names for users and tables.
pub(super) const NAMES: [(&str, Algorithm); 8] = [
    ("packets", Algorithm::Packets),
    ("pushed", Algorithm::Pushed),
    ("one_shot", Algorithm::OneShot),
    ("two_phase", Algorithm::TwoPhase),
    ("direct", Algorithm::Direct),
    ("one_round", Algorithm::OneRound),
    ("hierarchical", Algorithm::Hierarchical),
    ("by_puts", Algorithm::ByPuts),
];

impl Algorithm {
    /// Its name in tables: collectives with one algorithm have no names for it.
    pub(super) fn name(self) -> &'static str {
        NAMES.iter().find(|(_, one)| *one == self).map_or("own", |(name, _)| name)
    }

    /// The plan, unless it needs none.
    pub(super) fn document(self, shape: &Shape) -> Option<Document> {
        Some(match self {
            Algorithm::Packets | Algorithm::Pushed => return None,
            Algorithm::OneShot => all_reduce::one_shot(shape),
            Algorithm::TwoPhase => all_reduce::two_phase(shape),
            Algorithm::Direct => all_reduce::direct(shape),
            Algorithm::OneRound => all_reduce::one_round(shape),
            Algorithm::Hierarchical => all_reduce::hierarchical(shape).unwrap_or_else(|| all_reduce::by_puts(shape)),
            Algorithm::ByPuts => all_reduce::by_puts(shape),
            Algorithm::AllGather => moves::all_gather(shape),
            Algorithm::ReduceScatter => moves::reduce_scatter(shape),
            Algorithm::AllToAll => moves::all_to_all(shape),
            Algorithm::BroadcastFrom(root) => moves::broadcast(shape, root as usize),
            Algorithm::ReduceTo(root) => moves::reduce(shape, root as usize),
        })
    }
}
