//! Which plan for which call, by facts that all PEs have in common.

use symrail::{Pe, Runtime};

use crate::build::{Shape, all_reduce, moves};
use crate::error::{Error, Result};
use crate::plan::registry::{Registry, Wanted};
use crate::plan::{Check, Collective, Document, Plan};

/// The plan of a call.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Choice {
    /// A user's, by its name.
    User(String),
    /// One of ours, with so many blocks.
    Own(Algorithm, usize),
}

impl Choice {
    pub fn unknown(&self) -> Error {
        Error::Call(format!("there is no plan {self:?}"))
    }
}

/// The algorithms of this crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Algorithm {
    OneShot,
    TwoPhase,
    Direct,
    Hierarchical,
    ByPuts,
    AllGather,
    ReduceScatter,
    AllToAll,
    BroadcastFrom(u32),
    ReduceTo(u32),
}

impl Algorithm {
    fn document(self, shape: &Shape) -> Document {
        match self {
            Algorithm::OneShot => all_reduce::one_shot(shape),
            Algorithm::TwoPhase => all_reduce::two_phase(shape),
            Algorithm::Direct => all_reduce::direct(shape),
            Algorithm::Hierarchical => all_reduce::hierarchical(shape).unwrap_or_else(|| all_reduce::by_puts(shape)),
            Algorithm::ByPuts => all_reduce::by_puts(shape),
            Algorithm::AllGather => moves::all_gather(shape),
            Algorithm::ReduceScatter => moves::reduce_scatter(shape),
            Algorithm::AllToAll => moves::all_to_all(shape),
            Algorithm::BroadcastFrom(root) => moves::broadcast(shape, root as usize),
            Algorithm::ReduceTo(root) => moves::reduce(shape, root as usize),
        }
    }
}

/// From which sizes on a device does what.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// The largest message of an all-reduce, in bytes, for which every PE sends everything to everybody.
    pub one_shot: u64,
    /// The largest one that travels in packets.
    pub packets: u64,
    /// Bytes of a message for which it is worth having one more block, as packets and otherwise, and how many can be
    /// worth it.
    pub block_bytes: (u64, u64),
    /// See `block_bytes`.
    pub most_blocks: usize,
}

/// Threads of the CPU device.
pub(crate) const CPU: Limits =
    Limits { one_shot: 4 << 10, packets: 64 << 10, block_bytes: (128 << 10, 128 << 10), most_blocks: 2 };
/// GPUs that reach one another over NVLink.
pub(crate) const GPU: Limits =
    Limits { one_shot: 32 << 10, packets: 512 << 10, block_bytes: (8 << 10, 64 << 10), most_blocks: 32 };

impl Limits {
    /// A power of two, so that there are few different plans.
    fn blocks(&self, algorithm: Algorithm, message: u64) -> usize {
        let bytes = match algorithm {
            Algorithm::OneShot | Algorithm::TwoPhase => self.block_bytes.0,
            _ => self.block_bytes.1,
        };
        let worth = (message / bytes).clamp(1, self.most_blocks as u64);
        1 << worth.ilog2()
    }
}

/// What is chosen from.
#[derive(Debug)]
pub(crate) struct Selection {
    hosts: Vec<u32>,
    pub users: Registry,
    limits: Limits,
}

impl Selection {
    pub fn new(hosts: Vec<u32>, limits: Limits) -> Selection {
        Selection { hosts, users: Registry::default(), limits }
    }

    /// Refuses a root that is no PE.
    pub fn check_root(&self, collective: &Collective, root: u32) -> Result<()> {
        let n = self.hosts.len();
        if (root as usize) < n {
            return Ok(());
        }
        Err(Error::Call(format!("{collective:?} with PE {root} of {n} as its root")))
    }

    /// The bytes that each PE gets of an all-to-all's input.
    pub fn part_of_all_to_all(&self, input: u64, overlap: bool) -> Result<u64> {
        let n = self.hosts.len() as u64;
        if !input.is_multiple_of(n) {
            return Err(Error::Call(format!("an all-to-all of {input} bytes among {n} PEs")));
        }
        if overlap {
            return Err(Error::Call("an all-to-all's input and output overlap".into()));
        }
        Ok(input / n)
    }

    /// What would be done, and of the plans that users have added, why not.
    pub fn explain(&self, collective: &Collective, message: u64, in_place: bool) -> Vec<String> {
        let mut lines = self.users.explain(&self.wanted(collective, message, in_place));
        lines.push(match self.choose(collective, message, in_place, 0) {
            Ok(Choice::Own(algorithm, blocks)) => {
                format!("{algorithm:?} with {blocks} blocks: chosen, {}", self.reason(algorithm))
            }
            Ok(Choice::User(_)) => return lines,
            Err(error) => error.to_string(),
        });
        lines
    }

    pub fn choose(&self, collective: &Collective, message: u64, in_place: bool, root: u32) -> Result<Choice> {
        // A user's broadcast or reduction is one PE's, which the registry does not know.
        if !matches!(collective, Collective::Broadcast | Collective::Reduce)
            && let Some(plan) = self.users.select(&self.wanted(collective, message, in_place))
        {
            return Ok(Choice::User(plan.name().into()));
        }
        let one_host = self.hosts.iter().all(|&host| host == self.hosts[0]);
        let algorithm = match collective {
            Collective::AllReduce if one_host && message <= self.limits.one_shot => Algorithm::OneShot,
            Collective::AllReduce if one_host && message <= self.limits.packets => Algorithm::TwoPhase,
            Collective::AllReduce if one_host => Algorithm::Direct,
            Collective::AllReduce if self.hosts_are_alike() => Algorithm::Hierarchical,
            Collective::AllReduce => Algorithm::ByPuts,
            Collective::AllGather => Algorithm::AllGather,
            Collective::ReduceScatter => Algorithm::ReduceScatter,
            Collective::AllToAll => Algorithm::AllToAll,
            Collective::Broadcast => Algorithm::BroadcastFrom(root),
            Collective::Reduce => Algorithm::ReduceTo(root),
            Collective::Other(name) => return Err(Error::Call(format!("there is no plan for {name}"))),
        };
        Ok(Choice::Own(algorithm, self.limits.blocks(algorithm, message)))
    }

    /// Why an algorithm is chosen.
    fn reason(&self, algorithm: Algorithm) -> String {
        let Limits { one_shot, packets, .. } = self.limits;
        match algorithm {
            Algorithm::OneShot => format!("for one host and up to {one_shot} bytes"),
            Algorithm::TwoPhase => format!("for one host and {} to {packets} bytes", one_shot + 1),
            Algorithm::Direct => format!("for one host and more than {packets} bytes"),
            Algorithm::Hierarchical => "for several hosts with equally many PEs".into(),
            Algorithm::ByPuts => "for hosts with different numbers of PEs".into(),
            _ => "the only one of this collective".into(),
        }
    }

    /// The plan of a choice, proved.
    pub fn plan(&self, choice: &Choice) -> Result<Plan> {
        match choice {
            Choice::User(name) => self.users.named(name).cloned().ok_or_else(|| choice.unknown()),
            &Choice::Own(algorithm, blocks) => {
                let shape = Shape { hosts: self.hosts.clone(), blocks };
                Plan::new(&algorithm.document(&shape), Check::Result)
            }
        }
    }

    fn hosts_are_alike(&self) -> bool {
        let pes = |host: &u32| self.hosts.iter().filter(|other| *other == host).count();
        self.hosts.iter().all(|host| pes(host) == pes(&self.hosts[0]))
    }

    fn wanted(&self, collective: &Collective, message: u64, in_place: bool) -> Wanted<'_> {
        Wanted { collective: collective.clone(), message, hosts: &self.hosts, in_place }
    }
}

/// The size of a message as plans limit it; in place, one of the two buffers holds the other.
pub(crate) fn message_of(collective: &Collective, input: u64, output: u64) -> u64 {
    if *collective == Collective::AllGather { output } else { input }
}

/// For each PE the number of its host: the lowest PE that is near. Collective.
///
/// # Errors
/// The runtime's.
pub(crate) fn hosts(runtime: &Runtime, near: impl Fn(Pe) -> bool) -> Result<Vec<u32>> {
    let (me, n) = (runtime.my_pe(), runtime.n_pes());
    let all = runtime.alloc_slice::<u64>(n as usize)?;
    let mine = (0..n).find(|&pe| near(pe)).unwrap_or(me);
    (0..n).try_for_each(|pe| all.put(me as usize, &[u64::from(mine)], pe))?;
    runtime.barrier_all()?;
    let hosts = all.to_vec().into_iter().map(|host| host as u32).collect();
    all.free()?;
    Ok(hosts)
}
