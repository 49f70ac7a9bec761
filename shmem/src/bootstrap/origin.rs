//! Which launcher started this process, where the environment has the variables of several.
//!
//! A launcher's variables are inherited by all that its processes start, other launchers too. So the innermost launcher
//! counts: the one whose variables the fewest ancestors of this process have with the same values. Where two set their
//! variables for the same process, they must agree on its number and the number of processes.

use std::collections::HashMap;
use std::fmt;

use super::error::{Error, Result};
use super::{launcher, uid};

/// Variables that describe a process's place in a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// `symrail run`.
    Launcher,
    /// `SYMRAIL_BOOTSTRAP_UID` and its companions.
    Uid,
    /// A process manager with PMIx.
    Pmix,
    /// `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`: torchrun, or the user.
    Ranks,
    /// `RANK` and `WORLD_SIZE` without the address of rank 0.
    RanksWithoutAddress,
    /// `srun` without PMIx.
    Srun,
    /// A process manager with PMI-1 or PMI-2, such as MPICH's.
    Pmi,
}

/// In the order in which those that agree are preferred.
const ALL: [Origin; 7] = [
    Origin::Launcher,
    Origin::Uid,
    Origin::Pmix,
    Origin::Ranks,
    Origin::Srun,
    Origin::Pmi,
    Origin::RanksWithoutAddress,
];
/// The most ancestors that are looked at.
const DEPTH: usize = 64;

type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Origin {
    /// The variables that tell one process of one job from all others.
    fn variables(self) -> &'static [&'static str] {
        match self {
            Origin::Launcher => &[launcher::ADDRESS, launcher::PE, launcher::N_PES],
            Origin::Uid => &[uid::UID, uid::PE, uid::N_PES],
            Origin::Pmix => &["PMIX_NAMESPACE", "PMIX_RANK"],
            Origin::Ranks => &["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"],
            Origin::RanksWithoutAddress => &["RANK", "WORLD_SIZE"],
            Origin::Srun => &["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"],
            Origin::Pmi => &["PMI_RANK", "PMI_SIZE"],
        }
    }

    /// Some variables of the first two are enough: a PE that has lost the others must not start a job of its own.
    fn is_present(self, variable: Lookup<'_>) -> bool {
        let is_set = |name: &&str| variable(name).is_some();
        match self {
            Origin::Launcher | Origin::Uid => self.variables().iter().any(is_set),
            Origin::RanksWithoutAddress => self.variables().iter().all(is_set) && !Origin::Ranks.is_present(variable),
            _ => self.variables().iter().all(is_set),
        }
    }

    /// Whether programs can join the job, in any language.
    fn can_join(self) -> bool {
        !matches!(self, Origin::Srun | Origin::Pmi | Origin::RanksWithoutAddress)
    }

    /// This process's number and the number of processes, as far as the variables have them.
    fn place(self, variable: Lookup<'_>) -> Place {
        let number = |name: &str| variable(name)?.trim().parse().ok();
        let [rank, size]: [&[&str]; 2] = match self {
            Origin::Launcher => [&[launcher::PE], &[launcher::N_PES]],
            Origin::Uid => [&[uid::PE], &[uid::N_PES]],
            Origin::Pmix => [&["PMIX_RANK"], &["OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"]],
            Origin::Ranks | Origin::RanksWithoutAddress => [&["RANK"], &["WORLD_SIZE"]],
            Origin::Srun => [&["SLURM_PROCID"], &["SLURM_STEP_NUM_TASKS"]],
            Origin::Pmi => [&["PMI_RANK"], &["PMI_SIZE"]],
        };
        let first = |names: &[&str]| names.iter().find_map(|name| number(name));
        Place { origin: self, rank: first(rank), size: first(size) }
    }
}

/// A process's number in a job, and the job's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    origin: Origin,
    rank: Option<u32>,
    size: Option<u32>,
}

impl Place {
    /// Whether both may be the same process of the same job.
    fn agrees(&self, other: &Place) -> bool {
        let same = |one: Option<u32>, other: Option<u32>| one.is_none() || other.is_none() || one == other;
        same(self.rank, other.rank) && same(self.size, other.size)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [rank, size] = [self.rank, self.size].map(|it| it.map_or_else(|| "?".to_owned(), |it| it.to_string()));
        match self.origin {
            Origin::Launcher => write!(f, "symrail run started this process as PE {rank} of {size}"),
            Origin::Uid => write!(f, "{}={rank} and {}={size} are set", uid::PE, uid::N_PES),
            Origin::Pmix => write!(f, "PMIx (mpirun, srun) started this process as rank {rank} of {size}"),
            Origin::Ranks => write!(f, "RANK={rank} and WORLD_SIZE={size} are set"),
            Origin::RanksWithoutAddress => {
                write!(f, "RANK={rank} and WORLD_SIZE={size} are set, MASTER_ADDR and MASTER_PORT not both")
            }
            Origin::Srun => write!(f, "srun started this process as task {rank} of {size}, without PMIx"),
            Origin::Pmi => write!(f, "PMI_RANK={rank} and PMI_SIZE={size} are set"),
        }
    }
}

/// What describes this process's place in a job; `None` if nothing does.
///
/// # Errors
/// Two that describe this very process contradict each other.
pub fn find() -> Result<Option<Origin>> {
    choose(&variable, &mut Ancestors::new())
}

/// Whether this process is a PE of a job that a launcher of this library's jobs has started: `symrail run`, a program
/// that passes a unique id, or a process manager with PMIx.
#[must_use]
pub fn is_pe() -> bool {
    [Origin::Launcher, Origin::Uid, Origin::Pmix].into_iter().any(|origin| origin.is_present(&variable))
}

fn choose(
    variable: Lookup<'_>,
    ancestors: &mut dyn Iterator<Item = HashMap<String, String>>,
) -> Result<Option<Origin>> {
    let present: Vec<Origin> = ALL.into_iter().filter(|origin| origin.is_present(variable)).collect();
    let (mut joinable, others): (Vec<Origin>, Vec<Origin>) = present.into_iter().partition(|origin| origin.can_join());
    if joinable.is_empty() {
        return Ok(others.first().copied());
    }
    // Leaves those whose variables were set last.
    let mut looked_at = 0;
    while joinable.len() > 1 {
        let Some(environment) = ancestors.next() else { break };
        looked_at += 1;
        let value = |name: &str| environment.get(name).filter(|value| !value.is_empty()).cloned();
        let inherited = |origin: &Origin| origin.variables().iter().all(|name| value(name) == variable(name));
        let inner: Vec<Origin> = joinable.iter().copied().filter(|origin| !inherited(origin)).collect();
        if !inner.is_empty() {
            joinable = inner;
            break;
        }
    }
    let places: Vec<Place> = joinable.iter().map(|origin| origin.place(variable)).collect();
    match places.iter().find(|place| !place.agrees(&places[0])) {
        Some(other) => Err(contradiction(&places[0], other, looked_at > 0)),
        None => Ok(Some(joinable[0])),
    }
}

fn contradiction(one: &Place, other: &Place, nested: bool) -> Error {
    let remedy = if nested {
        "unset the variables of the one that does not count"
    } else {
        "which is the inner one cannot be told, since /proc does not show this process's parent; unset the variables of \
         the other"
    };
    Error::Origin { what: format!("{one}, but {other}"), remedy }
}

/// Checks that a job that this process cannot join has no other process.
pub(super) fn check_alone(origin: Origin) -> Result<()> {
    check_place(&origin.place(&variable))
}

fn check_place(place: &Place) -> Result<()> {
    if place.size == Some(1) {
        return Ok(());
    }
    let remedy = match place.origin {
        Origin::Srun => "add --mpi=pmix, or unset SLURM_STEP_NUM_TASKS where each process is to be a job of its own",
        Origin::Pmi => "start it with symrail run, or unset PMI_SIZE where each process is to be a job of its own",
        Origin::RanksWithoutAddress => {
            "set MASTER_ADDR and MASTER_PORT, by which Python programs join, or unset WORLD_SIZE where each process is \
             to be a job of its own"
        }
        _ => {
            "by these only Python programs join: start this one with symrail run, or unset WORLD_SIZE where each \
             process is to be a job of its own"
        }
    };
    Err(Error::Origin { what: place.to_string(), remedy })
}

/// A variable of this process; an empty one counts as unset, as everywhere.
fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(|value| value.to_string_lossy().into_owned())
}

/// The environments of this process's ancestors, the parent first, as they were when each began; until one that the
/// system does not show.
struct Ancestors {
    next: Option<u32>,
    left: usize,
}

impl Ancestors {
    fn new() -> Ancestors {
        Ancestors { next: Some(std::os::unix::process::parent_id()), left: DEPTH }
    }
}

impl Iterator for Ancestors {
    type Item = HashMap<String, String>;

    fn next(&mut self) -> Option<Self::Item> {
        let pid = self.next.take().filter(|pid| *pid != 0)?;
        self.left = self.left.checked_sub(1)?;
        let bytes = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The program's name may hold anything, so it is skipped by its last parenthesis.
        let parent = stat.rsplit_once(')').and_then(|(_, fields)| fields.split_whitespace().nth(1)?.parse().ok());
        self.next = parent;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let variable = |line: &[u8]| {
            let at = line.iter().position(|byte| *byte == b'=')?;
            Some((text(&line[..at]), text(&line[at + 1..])))
        };
        Some(bytes.split(|byte| *byte == 0).filter_map(variable).collect())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const RUN: &[(&str, &str)] = &[(launcher::ADDRESS, "127.0.0.1:1"), (launcher::PE, "0"), (launcher::N_PES, "1")];
    const RANKS: &[(&str, &str)] =
        &[("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "1")];
    const MPIRUN: &[(&str, &str)] = &[("PMIX_NAMESPACE", "7"), ("PMIX_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")];

    fn environment(of: &[&[(&str, &str)]]) -> HashMap<String, String> {
        of.iter().flat_map(|all| all.iter()).map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    /// The origin of a process with the first environment, whose ancestors have the others.
    fn origin(of: &[&[&[(&str, &str)]]]) -> Result<Option<Origin>> {
        let all: Vec<_> = of.iter().map(|all| environment(all)).collect();
        choose(&|name| all[0].get(name).cloned(), &mut all[1..].iter().cloned())
    }

    #[test]
    fn the_innermost_launcher_counts() {
        assert_eq!(origin(&[&[], &[]]), Ok(None));
        for (inner, outer, found) in [
            (RANKS, RUN, Origin::Ranks),
            (MPIRUN, RUN, Origin::Pmix),
            (RUN, RANKS, Origin::Launcher),
            (RUN, MPIRUN, Origin::Launcher),
            (RANKS, MPIRUN, Origin::Ranks),
            (MPIRUN, RANKS, Origin::Pmix),
        ] {
            assert_eq!(origin(&[&[inner]]), Ok(Some(found)));
            assert_eq!(origin(&[&[inner, outer], &[outer], &[outer], &[]]), Ok(Some(found)), "{inner:?} in {outer:?}");
            // A shell between the two, and one behind the inner.
            assert_eq!(origin(&[&[inner, outer], &[inner, outer], &[outer], &[]]), Ok(Some(found)), "{inner:?}");
        }
        // A pod's, around mpirun, whose variables have other values there.
        let pod: &[_] = &[("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "pod"), ("MASTER_PORT", "1")];
        assert_eq!(origin(&[&[RANKS, RUN], &[pod, RUN], &[pod]]), Ok(Some(Origin::Ranks)));
    }

    #[test]
    fn launchers_of_one_process_must_agree() {
        let named = |of: &[&[&[(&str, &str)]]]| origin(of).unwrap_err().to_string();
        #[allow(clippy::type_complexity)] // levels of processes, launchers and variables
        let cases: [&[&[&[(&str, &str)]]]; 2] = [&[&[RUN, RANKS], &[]], &[&[RUN, RANKS]]];
        for of in cases {
            let text = named(of);
            assert!(
                text.contains("symrail run started this process as PE 0 of 1, but RANK=1 and WORLD_SIZE=2 are set"),
                "{text}"
            );
        }
        let ranks: &[_] = &[("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "pod"), ("MASTER_PORT", "1")];
        assert!(named(&[&[MPIRUN, ranks], &[]]).contains("rank 1 of 2, but RANK=0 and WORLD_SIZE=1"));
        assert_eq!(origin(&[&[RUN, ranks], &[]]), Ok(Some(Origin::Launcher)));
        assert_eq!(origin(&[&[MPIRUN, RANKS], &[]]), Ok(Some(Origin::Pmix)));
    }

    #[test]
    fn a_job_that_cannot_be_joined_is_no_job_of_one() {
        let srun = |tasks| {
            [("SLURM_JOB_ID", "3"), ("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", tasks)]
        };
        assert_eq!(origin(&[&[&srun("2")], &[]]), Ok(Some(Origin::Srun)));
        assert_eq!(origin(&[&[&srun("2"), RUN], &[]]), Ok(Some(Origin::Launcher)));
        for some in [&RANKS[..2], &RANKS[..3]] {
            assert_eq!(origin(&[&[some], &[]]), Ok(Some(Origin::RanksWithoutAddress)));
            assert_eq!(origin(&[&[some, RUN], &[]]), Ok(Some(Origin::Launcher)));
        }
        assert_eq!(origin(&[&[&RANKS[1..]], &[]]), Ok(None));
        for (origin, size, words) in [
            (Origin::Srun, 2, "srun started this process as task 0 of 2, without PMIx; add --mpi=pmix"),
            (Origin::Pmi, 2, "PMI_RANK=0 and PMI_SIZE=2 are set; start it with symrail run"),
            (Origin::Ranks, 2, "RANK=0 and WORLD_SIZE=2 are set; by these only Python programs join"),
            (Origin::RanksWithoutAddress, 2, "MASTER_ADDR and MASTER_PORT not both; set MASTER_ADDR and MASTER_PORT"),
        ] {
            let place = |size| Place { origin, rank: Some(0), size: Some(size) };
            let text = check_place(&place(size)).unwrap_err().to_string();
            assert!(text.contains(words), "{text}");
            assert_eq!(check_place(&place(1)), Ok(()));
        }
    }
}
