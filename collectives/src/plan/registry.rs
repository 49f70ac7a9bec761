//! The choice among several plans, by facts that all PEs share.

use super::{Collective, Plan};

/// Plans, in the order in which they are tried.
#[derive(Debug, Default)]
pub struct Registry {
    plans: Vec<Plan>,
}

/// The requirements on a plan.
#[derive(Debug, Clone)]
pub struct Wanted<'a> {
    /// The collective.
    pub collective: Collective,
    /// Bytes of a PE's input; of its output, in an all-gather.
    pub message: u64,
    /// The number of each PE's host.
    pub hosts: &'a [u32],
    /// Whether input and output are the same memory.
    pub in_place: bool,
    /// The root of a broadcast or of a reduction to one PE.
    pub root: u32,
}

impl Registry {
    /// Adds a plan, behind the others.
    pub fn add(&mut self, plan: Plan) {
        self.plans.push(plan);
    }

    /// The plan that was added as number `place`, from 0 on: several may have the same name.
    #[must_use]
    pub fn get(&self, place: usize) -> Option<&Plan> {
        self.plans.get(place)
    }

    /// The number of the first suitable plan.
    #[must_use]
    pub fn select(&self, wanted: &Wanted<'_>) -> Option<usize> {
        self.plans.iter().position(|plan| plan.unsuitable(wanted).is_none())
    }

    /// The number of the first suitable plan of this name, or why the last of this name does not suit; `None` if there
    /// is none.
    #[must_use]
    pub fn named(&self, name: &str, wanted: &Wanted<'_>) -> Option<Result<usize, String>> {
        let of_name = || (0..).zip(&self.plans).filter(|(_, plan)| plan.name == name);
        let suits = of_name().find(|(_, plan)| plan.unsuitable(wanted).is_none());
        let why_not = || of_name().filter_map(|(_, plan)| plan.unsuitable(wanted)).last().map(Err);
        suits.map(|(place, _)| Ok(place)).or_else(why_not)
    }

    /// For each plan, why it is not chosen, or that it is.
    #[must_use]
    pub fn explain(&self, wanted: &Wanted<'_>) -> Vec<String> {
        let mut chosen = false;
        let mut line = |plan: &Plan| match plan.unsuitable(wanted) {
            Some(reason) => format!("{}: {reason}", plan.name),
            None if std::mem::replace(&mut chosen, true) => format!("{}: comes after the chosen one", plan.name),
            None => format!("{}: chosen", plan.name),
        };
        self.plans.iter().map(&mut line).collect()
    }
}

impl Plan {
    /// Why the plan does not suit.
    fn unsuitable(&self, wanted: &Wanted<'_>) -> Option<String> {
        let hosts = wanted.hosts;
        if self.collective != wanted.collective {
            return Some(format!("it is for {}", self.collective));
        }
        let has_root = matches!(self.collective, Collective::Broadcast | Collective::Reduce);
        match self.root.filter(|_| has_root) {
            Some(root) if root != wanted.root => return Some(format!("its root is rank {root}")),
            None if has_root => return Some("its root is unknown: its result was not checked".into()),
            _ => {}
        }
        if self.ranks.len() != hosts.len() {
            return Some(format!("it is for {} PEs", self.ranks.len()));
        }
        if self.in_place != wanted.in_place {
            return Some(format!("it is {}in place", if self.in_place { "" } else { "not " }));
        }
        if !self.sizes.contains(&wanted.message) {
            return Some(format!("it is for {} to {} bytes", self.sizes.start(), self.sizes.end()));
        }
        let apart = self.groups.iter().enumerate().find(|&(rank, &group)| hosts[rank] != hosts[group]);
        apart.map(|(rank, group)| format!("its ranks {group} and {rank} use memory channels and are on two hosts"))
    }
}
