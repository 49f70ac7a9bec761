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
    AllToAllInPlace,
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

impl std::fmt::Display for Algorithm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Algorithm::AllGather => f.write_str("all_gather"),
            Algorithm::ReduceScatter => f.write_str("reduce_scatter"),
            Algorithm::AllToAll => f.write_str("all_to_all"),
            Algorithm::AllToAllInPlace => f.write_str("all_to_all in place"),
            Algorithm::BroadcastFrom(root) => write!(f, "broadcast from rank {root}"),
            Algorithm::ReduceTo(root) => write!(f, "reduce to rank {root}"),
            named => f.write_str(named.name()),
        }
    }
}

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
            Algorithm::AllToAllInPlace => moves::all_to_all_in_place(shape),
            Algorithm::BroadcastFrom(root) => moves::broadcast(shape, root as usize),
            Algorithm::ReduceTo(root) => moves::reduce(shape, root as usize),
        })
    }
}
