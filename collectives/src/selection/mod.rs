//! The choice of a plan for a call, by facts that all PEs share.
//!
//! | file | concept |
//! |---|---|
//! | here | the choice |
//! | `algorithm` | the algorithms of this crate, and their plans |
//! | `limits` | the sizes of messages for which a device's algorithms are |
//! | `asked` | what users ask of a communicator's choices, and set |

mod algorithm;
mod asked;
mod limits;

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::hash::{DefaultHasher, Hasher};

use symrail::Pe;

use crate::build::Shape;
use crate::defaults::Defaults;
use crate::error::{Error, Result};
use crate::gpu::straight;
use crate::members::Members;
use crate::plan::registry::{Registry, Wanted};
use crate::plan::{Check, Collective, Plan};
use crate::tuning::{MOST_BLOCKS, Row, Table, Tuning};

pub(crate) use algorithm::Algorithm;
use algorithm::NAMES;
use limits::MOST_BLOCKS_OF_PUSHES;
pub(crate) use limits::{CPU, GPU, Limits};

/// The choice for a call.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Choice {
    /// A user's plan, by its number.
    User(usize),
    /// A default plan, by its number.
    Default(usize),
    /// A built-in algorithm, with this number of blocks.
    Own(Algorithm, usize),
}

impl std::fmt::Display for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Choice::User(place) => write!(f, "the user's number {place}"),
            Choice::Default(place) => write!(f, "the default number {place}"),
            Choice::Own(algorithm, blocks) => write!(f, "{algorithm} with {blocks} blocks"),
        }
    }
}

impl Choice {
    pub fn unknown(&self) -> Error {
        Error::Call(format!("there is no plan of {self}"))
    }
}

/// A hash of the ranks that are `near` this one, including itself.
fn all_near(me: u32, n: u32, near: impl Fn(u32) -> bool) -> u64 {
    let mut all = DefaultHasher::new();
    (0..n).filter(|&rank| rank == me || near(rank)).for_each(|rank| all.write_u32(rank));
    all.finish()
}

/// The number of each PE's host, which is that of the host's first PE, from values that PEs of one host share.
fn numbers(in_common: impl Iterator<Item = u64>) -> Vec<u32> {
    let mut first = HashMap::new();
    (0..).zip(in_common).map(|(pe, of_host)| *first.entry(of_host).or_insert(pe)).collect()
}

/// Whether a device that has algorithms without a plan can use them among these PEs.
fn near_each_other(limits: Limits, hosts: &[u32]) -> bool {
    limits.straight && (2..=straight::MOST_RANKS).contains(&hosts.len()) && hosts.iter().all(|&host| host == hosts[0])
}

/// The alternatives of a communicator, and the choice among them. All its PEs add the same plans, ask for the same
/// algorithm and use the same table, between the same calls.
#[derive(Debug)]
pub struct Selection {
    hosts: Vec<u32>,
    users: Registry,
    defaults: Defaults,
    limits: Limits,
    device: String,
    tuning: Tuning,
    /// The algorithm or plan that users have asked for by name.
    asked: Option<String>,
    /// Whether this device can use algorithms without a plan among these PEs; and whether buffers may be any memory, so
    /// that plans need copies.
    straight: bool,
    /// See `straight`.
    pub(crate) any_memory: bool,
}

impl Selection {
    /// Combines the facts of all members: which PEs are `near` which, and default plans. PEs that are near the same PEs
    /// count as a host, so all PEs of a host access one another. Collective.
    ///
    /// # Errors
    /// The runtime's; or PEs have different default plans.
    pub(crate) fn agree(
        members: &Members,
        limits: Limits,
        device: String,
        near: impl Fn(Pe) -> bool,
    ) -> Result<Selection> {
        let defaults = Defaults::load(members.runtime().settings().cache_dir.as_deref())?;
        let pe = |rank: u32| members.pe(rank as usize);
        let near = all_near(members.me(), members.n(), |rank| near(pe(rank)));
        let said = members.gather(&[near, defaults.fingerprint])?;
        if let Some(other) = said.chunks(2).position(|of_pe| of_pe[1] != defaults.fingerprint) {
            let remedy = "give all PEs the same files in the folder default of SYMRAIL_CACHE_DIR";
            let (me, other) = (pe(members.me()), members.pe(other));
            return Err(Error::Call(format!("PEs {me} and {other} have different default plans: {remedy}")));
        }
        let hosts = numbers(said.chunks(2).map(|of_pe| of_pe[0]));
        let (users, tuning) = (Registry::default(), Tuning::default());
        let (straight, any_memory) = (near_each_other(limits, &hosts), false);
        let mut selection =
            Selection { hosts, users, defaults, limits, device, tuning, asked: None, straight, any_memory };
        let (device, hosts) = (selection.device.as_str(), selection.n_hosts());
        selection.tuning = Tuning::agree(members, device, hosts, |table| selection.accepts(table))?;
        match &selection.tuning {
            Tuning { table: Some((file, _)), .. } => tracing::info!("collectives: table {file}"),
            Tuning { untaken: Some(why), .. } => tracing::warn!("collectives: {why}"),
            Tuning { .. } => {}
        }
        Ok(selection)
    }

    fn n_hosts(&self) -> usize {
        self.hosts.iter().collect::<HashSet<_>>().len()
    }

    /// Refuses an unsuitable table, with the reason.
    fn accepts(&self, table: &Table) -> std::result::Result<(), String> {
        let Table { device, pes, hosts, rows } = table;
        let (own, n, n_hosts) = (&self.device, self.hosts.len(), self.n_hosts());
        if (device, *pes, *hosts) != (own, n, n_hosts) {
            return Err(format!("it is for {device}, {pes} PEs on {hosts} hosts, and not for {own}, {n} on {n_hosts}"));
        }
        let known = |row: &Row| {
            let collective = Collective::of(&row.collective);
            let way = self.algorithms(&collective, 0, false).into_iter().any(|one| one.name() == row.way.algorithm);
            way && (1..=MOST_BLOCKS).contains(&row.way.blocks)
        };
        match rows.iter().position(|row| !known(row)) {
            Some(place) => Err(format!("row {}: there is no such way here: {}", place + 1, rows[place].way)),
            None => Ok(()),
        }
    }

    /// The algorithms of a collective among these hosts.
    fn algorithms(&self, collective: &Collective, root: u32, in_place: bool) -> Vec<Algorithm> {
        let straight = match straight::parts(collective, 0) {
            Some(_) if self.straight => vec![Algorithm::Packets, Algorithm::Pushed],
            _ => Vec::new(),
        };
        let plans = match collective {
            Collective::AllReduce if self.one_host() => {
                vec![Algorithm::OneShot, Algorithm::TwoPhase, Algorithm::Direct, Algorithm::OneRound, Algorithm::ByPuts]
            }
            Collective::AllReduce if self.hosts_are_alike() => {
                vec![Algorithm::OneRound, Algorithm::Hierarchical, Algorithm::ByPuts]
            }
            Collective::AllReduce => vec![Algorithm::OneRound, Algorithm::ByPuts],
            Collective::AllGather => vec![Algorithm::AllGather],
            Collective::ReduceScatter => vec![Algorithm::ReduceScatter],
            Collective::AllToAll if in_place => vec![Algorithm::AllToAllInPlace],
            Collective::AllToAll => vec![Algorithm::AllToAll],
            Collective::Broadcast => vec![Algorithm::BroadcastFrom(root)],
            Collective::Reduce => vec![Algorithm::ReduceTo(root)],
            Collective::Other(_) => Vec::new(),
        };
        [straight, plans].concat()
    }

    /// Whether packets can carry a message.
    fn fits_packets(&self, collective: &Collective, message: u64) -> bool {
        let n = self.hosts.len() as u64;
        let parts = straight::parts(collective, n).map_or(1, |(inputs, outputs)| inputs.max(outputs));
        message / parts <= straight::most_in_packets(n)
    }

    /// The best algorithm without a plan, if one suits.
    fn straight(&self, collective: &Collective, message: u64) -> Option<Algorithm> {
        straight::parts(collective, 0).filter(|_| self.straight)?;
        let n = self.hosts.len() as u64;
        // The root would receive what an all-reduce distributes.
        let is_better = *collective != Collective::Reduce || n == 2;
        // A plan of two phases sends fewer packets, but among four H200 it takes 31 us where these take 8 to 11.
        match (self.fits_packets(collective, message), self.any_memory && is_better) {
            (true, _) => Some(Algorithm::Packets),
            (false, true) => Some(Algorithm::Pushed),
            _ => None,
        }
    }

    /// The row of the table for a message, limited to one algorithm if it is `asked` for: the file, the row's number
    /// from 1 on, and its content.
    fn row(&self, call: &Wanted<'_>, asked: Option<Algorithm>) -> Option<(String, Algorithm, usize)> {
        let (file, table) = self.tuning.table.as_ref()?;
        let wanted = |name: &str| asked.is_none_or(|one| one.name() == name);
        let (place, row) = table.row(&call.collective, call.message, wanted)?;
        let named = |one: &Algorithm| one.name() == row.way.algorithm;
        let algorithm = self.algorithms(&call.collective, call.root, call.in_place).into_iter().find(named)?;
        Some((format!("by table {file}, row {}: {row}", place + 1), algorithm, row.way.blocks))
    }

    /// The bytes that are pushed at a time, if the table sets them.
    pub(crate) fn chunk(&self, collective: &Collective, message: u64) -> Option<u64> {
        let (_, table) = self.tuning.table.as_ref()?;
        table.row(collective, message, |name| name == Algorithm::Pushed.name())?.1.way.chunk
    }

    /// Whether all PEs are on one host.
    pub(crate) fn one_host(&self) -> bool {
        self.hosts.iter().all(|&host| host == self.hosts[0])
    }

    /// Whether algorithms without a plan can be used among these PEs.
    pub(crate) fn is_straight(&self) -> bool {
        self.straight
    }

    /// Refuses a root that is no PE.
    pub(crate) fn check_root(&self, collective: impl Display, root: u32) -> Result<()> {
        let n = self.hosts.len();
        if (root as usize) < n {
            return Ok(());
        }
        Err(Error::Call(format!("{collective} with PE {root} of {n} as its root")))
    }

    /// The bytes that each PE gets of an all-to-all's input.
    pub(crate) fn part_of_all_to_all(&self, input: u64) -> Result<u64> {
        let n = self.hosts.len() as u64;
        if !input.is_multiple_of(n) {
            return Err(Error::Call(format!("an all-to-all of {input} bytes among {n} PEs")));
        }
        Ok(input / n)
    }

    /// Logs the choice for a first call of its kind, and the reason.
    pub(crate) fn log(&self, collective: &Collective, message: u64, in_place: bool, root: u32) {
        if tracing::enabled!(tracing::Level::INFO) {
            let why = self.explain(collective, message, in_place, root).join("; ");
            tracing::info!("collectives: {collective} of {message} bytes: {why}");
        }
    }

    pub(crate) fn choose(&self, collective: &Collective, message: u64, in_place: bool, root: u32) -> Result<Choice> {
        let wanted = self.wanted(collective, message, in_place, root);
        if let Some(name) = &self.asked {
            return self.named(name, &wanted);
        }
        if let Some(choice) = self.added(&wanted) {
            return Ok(choice);
        }
        if let Some((_, algorithm, blocks)) = self.row(&wanted, None) {
            return Ok(self.own(collective, message, algorithm, blocks));
        }
        if let Some(algorithm) = self.straight(collective, message) {
            return Ok(Choice::Own(algorithm, self.limits.blocks(algorithm, message)));
        }
        let one_host = self.one_host();
        let algorithm = match collective {
            Collective::AllReduce if one_host && message <= self.limits.one_shot => Algorithm::OneShot,
            Collective::AllReduce if one_host && message <= self.limits.packets => Algorithm::TwoPhase,
            Collective::AllReduce if one_host => Algorithm::Direct,
            Collective::AllReduce if self.hosts.len() == 2 && message <= self.limits.one_round => Algorithm::OneRound,
            Collective::AllReduce if self.hosts_are_alike() => Algorithm::Hierarchical,
            Collective::AllReduce => Algorithm::ByPuts,
            Collective::AllGather => Algorithm::AllGather,
            Collective::ReduceScatter => Algorithm::ReduceScatter,
            Collective::AllToAll if in_place => Algorithm::AllToAllInPlace,
            Collective::AllToAll => Algorithm::AllToAll,
            Collective::Broadcast => Algorithm::BroadcastFrom(root),
            Collective::Reduce => Algorithm::ReduceTo(root),
            Collective::Other(name) => return Err(Error::Call(format!("there is no plan for {name}"))),
        };
        Ok(Choice::Own(algorithm, self.limits.blocks(algorithm, message)))
    }

    /// The first suitable plan that users have added, or else of the default ones.
    fn added(&self, wanted: &Wanted<'_>) -> Option<Choice> {
        let default = || self.defaults.plans.select(wanted).map(Choice::Default);
        self.users.select(wanted).map(Choice::User).or_else(default)
    }

    /// Whether a plan that is not built in is chosen for a call.
    pub(crate) fn has_plan(&self, collective: &Collective, message: u64, in_place: bool, root: u32) -> bool {
        let wanted = self.wanted(collective, message, in_place, root);
        match &self.asked {
            Some(name) => self.users.named(name, &wanted).is_some(),
            None => self.added(&wanted).is_some(),
        }
    }

    /// The choice of a table's row, if the message fits.
    fn own(&self, collective: &Collective, message: u64, algorithm: Algorithm, blocks: usize) -> Choice {
        if algorithm == Algorithm::Packets && !self.fits_packets(collective, message) {
            return Choice::Own(Algorithm::Pushed, MOST_BLOCKS_OF_PUSHES);
        }
        Choice::Own(algorithm, blocks)
    }

    /// The algorithm or the user's plan with a name, if it suits.
    fn named(&self, name: &str, wanted: &Wanted<'_>) -> Result<Choice> {
        let collective = &wanted.collective;
        let refuse = |why: String| Err(Error::Call(format!("the algorithm {name}: {why}")));
        match self.users.named(name, wanted) {
            Some(Ok(place)) => return Ok(Choice::User(place)),
            Some(Err(why)) => return refuse(why),
            None => {}
        }
        if matches!(collective, Collective::Broadcast | Collective::Reduce) && !self.straight {
            return refuse(format!("{collective} has one algorithm, which has no name"));
        }
        let Some(&(_, algorithm)) = NAMES.iter().find(|(known, _)| *known == name) else {
            let known = NAMES.map(|(known, _)| known).join(", ");
            return refuse(format!("there is none; there are {known}, and plans that were added"));
        };
        match algorithm {
            Algorithm::Packets | Algorithm::Pushed if !self.straight => {
                let most = straight::MOST_RANKS;
                refuse(format!("it is for GPUs of 2 to {most} PEs on one host that reach one another"))
            }
            Algorithm::Packets if !self.fits_packets(collective, wanted.message) => {
                let most = straight::most_in_packets(self.hosts.len() as u64);
                refuse(format!("parts of a message are of {most} bytes at most"))
            }
            Algorithm::Packets | Algorithm::Pushed if straight::parts(collective, 0).is_none() => {
                refuse(format!("it is not for {collective}"))
            }
            Algorithm::Packets | Algorithm::Pushed => Ok(Choice::Own(algorithm, self.measured(wanted, algorithm))),
            _ if *collective != Collective::AllReduce => refuse("it is an all-reduce".into()),
            Algorithm::OneShot | Algorithm::TwoPhase | Algorithm::Direct if !self.one_host() => {
                refuse("it is for PEs of one host".into())
            }
            Algorithm::Hierarchical if !self.hosts_are_alike() => {
                refuse("it is for hosts with equally many PEs".into())
            }
            _ => Ok(Choice::Own(algorithm, self.measured(wanted, algorithm))),
        }
    }

    /// The number of blocks of a requested algorithm.
    fn measured(&self, wanted: &Wanted<'_>, algorithm: Algorithm) -> usize {
        let measured = self.row(wanted, Some(algorithm)).map(|(.., blocks)| blocks);
        measured.unwrap_or_else(|| self.limits.blocks(algorithm, wanted.message))
    }

    /// Why an algorithm is chosen.
    fn reason(&self, algorithm: Algorithm) -> String {
        let Limits { one_shot, packets, .. } = self.limits;
        match algorithm {
            Algorithm::Packets => "for GPUs of one host and a message that fits".into(),
            Algorithm::Pushed => "for GPUs of one host, large messages and any memory".into(),
            Algorithm::OneShot => format!("for one host and up to {one_shot} bytes"),
            Algorithm::TwoPhase => format!("for one host and {} to {packets} bytes", one_shot + 1),
            Algorithm::Direct => format!("for one host and more than {packets} bytes"),
            Algorithm::OneRound => "for two hosts with one PE each".into(),
            Algorithm::Hierarchical => "for several hosts with equally many PEs".into(),
            Algorithm::ByPuts => "for hosts with different numbers of PEs".into(),
            _ => "the only one of this collective".into(),
        }
    }

    /// The plan of a choice, proved.
    pub(crate) fn plan(&self, choice: &Choice) -> Result<Plan> {
        match *choice {
            Choice::User(place) => self.users.get(place).cloned().ok_or_else(|| choice.unknown()),
            Choice::Default(place) => self.defaults.plans.get(place).cloned().ok_or_else(|| choice.unknown()),
            Choice::Own(algorithm, blocks) => {
                let shape = Shape { hosts: self.hosts.clone(), blocks };
                Plan::new(&algorithm.document(&shape).ok_or_else(|| choice.unknown())?, Check::Result)
            }
        }
    }

    fn hosts_are_alike(&self) -> bool {
        let pes = |host: &u32| self.hosts.iter().filter(|other| *other == host).count();
        self.hosts.iter().all(|host| pes(host) == pes(&self.hosts[0]))
    }

    fn wanted(&self, collective: &Collective, message: u64, in_place: bool, root: u32) -> Wanted<'_> {
        Wanted { collective: collective.clone(), message, hosts: &self.hosts, in_place, root }
    }
}

/// The size of a message in terms of plans' limits; in place, one of the two buffers contains the other.
pub(crate) fn message_of(collective: &Collective, input: u64, output: u64) -> u64 {
    if *collective == Collective::AllGather { output } else { input }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::build::{all_reduce, moves};
    use crate::plan::Document;
    use crate::tuning::Way;

    fn of_two_pes(tuning: Tuning) -> Selection {
        let (hosts, defaults, users) = (vec![0, 0], Defaults::default(), Registry::default());
        let (device, straight, any_memory) = (String::new(), false, false);
        Selection { hosts, users, defaults, limits: CPU, device, tuning, asked: None, straight, any_memory }
    }

    #[test]
    fn an_algorithm_that_is_asked_for_has_the_blocks_that_were_measured() {
        let row = |algorithm: &str, up_to, blocks| {
            let way = Way { algorithm: algorithm.into(), blocks, chunk: None };
            Row { collective: "allreduce".into(), up_to, way, microseconds: None }
        };
        let rows = vec![row("one_shot", Some(1000), 2), row("direct", Some(2000), 7), row("by_puts", None, 5)];
        let mut all = of_two_pes(Tuning::default());
        all.tuning.table = Some(("FILE".into(), all.table(rows)));
        let mut chosen = |name: &str, message| {
            all.asked = Some(name.into());
            let lines = all.explain(&Collective::AllReduce, message, true, 0);
            (all.choose(&Collective::AllReduce, message, true, 0).unwrap(), lines.concat())
        };
        // A row of another algorithm precedes it.
        let (choice, why) = chosen("direct", 500);
        assert_eq!(choice, Choice::Own(Algorithm::Direct, 7));
        assert!(why.contains("direct with 7 blocks") && why.contains("table FILE, row 2"), "{why}");
        let (choice, why) = chosen("direct", 2001);
        assert_eq!(choice, Choice::Own(Algorithm::Direct, 1), "it was not measured");
        assert!(!why.contains("table"), "{why}");
        assert_eq!(chosen("by_puts", 1 << 30).0, Choice::Own(Algorithm::ByPuts, 5));
    }

    #[test]
    fn what_is_explained_is_of_the_root_that_is_named() {
        let all = of_two_pes(Tuning::default());
        for (collective, expected) in
            [(Collective::Broadcast, "broadcast from rank 1"), (Collective::Reduce, "reduce to rank 1")]
        {
            let why = all.explain(&collective, 100, false, 1).concat();
            assert!(why.contains(expected), "{why}");
            let none = all.explain(&collective, 100, false, 2).concat();
            assert!(none.contains("PE 2 of 2 as its root"), "{none}");
        }
    }

    #[test]
    fn among_several_gpus_no_all_reduce_runs_as_a_plan() {
        for n in [2, 4, 8] {
            let all = Selection {
                hosts: vec![0; n],
                limits: GPU,
                straight: true,
                any_memory: true,
                ..of_two_pes(Tuning::default())
            };
            let chosen = |message| all.choose(&Collective::AllReduce, message, false, 0).unwrap();
            let most = straight::most_in_packets(n as u64);
            for message in [8, 64 << 10, most] {
                assert!(matches!(chosen(message), Choice::Own(Algorithm::Packets, _)), "{n} GPUs, {message} bytes");
            }
            for message in [most + 16, 4 << 20, 1 << 30] {
                assert!(matches!(chosen(message), Choice::Own(Algorithm::Pushed, _)), "{n} GPUs, {message} bytes");
            }
        }
    }

    #[test]
    fn plans_with_a_root_are_for_its_calls() {
        let mut all = of_two_pes(Tuning::default());
        let document = Document { name: "mine".into(), ..moves::broadcast(&Shape::one_host(2, 1), 1) };
        all.add_plan(Plan::new(&document, Check::Result).unwrap()).unwrap();
        let choose = |all: &Selection, root| all.choose(&Collective::Broadcast, 100, false, root);
        assert_eq!(choose(&all, 0).unwrap(), Choice::Own(Algorithm::BroadcastFrom(0), 1));
        assert_eq!(choose(&all, 1).unwrap(), Choice::User(0));
        let has = [0, 1].map(|root| all.has_plan(&Collective::Broadcast, 100, false, root));
        assert_eq!((has, all.has_plan(&Collective::Reduce, 100, false, 1)), ([false, true], false));
        all.ask_for(Some("mine"));
        assert_eq!(choose(&all, 1).unwrap(), Choice::User(0));
        let why = choose(&all, 0).unwrap_err().to_string();
        assert!(why.contains("its root is rank 1"), "{why}");
        all.ask_for(Some("direct"));
        let why = choose(&all, 1).unwrap_err().to_string();
        assert!(why.contains("has one algorithm, which has no name"), "{why}");
    }

    #[test]
    fn plans_of_one_name_are_told_apart() {
        let shape = Shape::one_host(2, 1);
        let small = Document { max_message_size: 1024, ..all_reduce::one_shot(&shape) };
        let large = Document { name: small.name.clone(), min_message_size: 1025, ..all_reduce::direct(&shape) };
        let mut all = of_two_pes(Tuning::default());
        for document in [&small, &large] {
            all.users.add(Plan::new(document, Check::Result).unwrap());
        }
        for message in [8, 2000] {
            let choice = all.choose(&Collective::AllReduce, message, false, 0).unwrap();
            assert!(all.plan(&choice).unwrap().sizes.contains(&message), "{message}");
        }
    }

    #[test]
    fn pes_of_a_host_are_all_near_one_another() {
        let hosts = |n, near: &dyn Fn(Pe, Pe) -> bool| numbers((0..n).map(|me| all_near(me, n, |pe| near(me, pe))));
        assert_eq!(hosts(5, &|a, b| a / 2 == b / 2), [0, 0, 2, 2, 4]);
        assert_eq!(hosts(3, &|_, _| false), [0, 1, 2]);
        // The PE in the middle is near both others, which cannot access each other.
        assert_eq!(hosts(3, &|a, b| a.abs_diff(b) < 2), [0, 1, 2]);
    }
}
