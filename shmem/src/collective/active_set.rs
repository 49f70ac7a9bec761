//! Active sets: PEs that wait for one another through an array of the caller (`pSync`), as in OpenSHMEM before teams.
//!
//! PEs that use an array for the first time make a team, which serves them whenever they use that array again. Threads
//! may use several arrays at once, but never the same one, so each array has its own team. `reuse` decides when an
//! array may be used again.
//!
//! A program may use more arrays than there are team areas. All calls on the other arrays use barriers on the array's
//! own words, as the agreement on an area does. These words are 0 again whenever a call returns, since the same array
//! may serve other PEs next.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use symrail_core::lock;
use symrail_transport::Operation;

use super::call::Call;
use super::element::{ElementType, Extent};
use super::members::{Buffer, Members};
use super::reduction::Reduction;
use super::reuse::{Calls, Use};
use super::{direct, quick, spans, tree};
use crate::error::Result;
use crate::operations::Operations;
use crate::rma::{SignalOp, Strided};
use crate::runtime::Runtime;
use crate::space::load;
use crate::sync::Everybody;
use crate::team::{Areas, Group, Team};
use crate::waiting::Among;

/// The number of words in the array.
pub const SYNC_WORDS: usize = 4;
/// The word that holds the areas that a PE offers, while all PEs agree on one.
const OFFER: usize = 3;
/// Children of a PE in the tree of a set's barrier.
const FAN: u32 = 4;

/// The active sets of a program.
pub struct ActiveSets {
    areas: Arc<Areas>,
    /// Several threads may use sets at once, on some PE.
    several_threads: bool,
    /// Keyed by PEs and array.
    known: Mutex<HashMap<(Group, usize), Known>>,
    runtime: Runtime,
}

/// The state that a set keeps between calls.
#[derive(Clone)]
struct Known {
    /// The set's team, if there was an area for it.
    team: Option<Arc<Team>>,
    /// The calls of the same PEs on all of their arrays.
    calls: Arc<Calls>,
}

impl ActiveSets {
    /// No sets yet; `world` is the job's team of all PEs. `several_threads`: threads of this PE may use sets at once.
    /// Collective.
    ///
    /// # Errors
    /// A peer that does not answer.
    pub fn new(world: &Team, several_threads: bool) -> Result<ActiveSets> {
        let (runtime, areas) = (world.runtime().clone(), Arc::clone(world.areas()));
        // All PEs of a set must decide alike.
        let several_threads = runtime.everybody().any("an agreement on active sets", several_threads)?;
        Ok(ActiveSets { areas, several_threads, known: Mutex::default(), runtime })
    }

    /// The set of the PEs of `group` that use the array `words`. Collective over the group the first time.
    ///
    /// # Safety
    /// `words` is aligned and valid for reads and writes of [`SYNC_WORDS`] words, all 0 on all of the PEs, and nothing
    /// else uses it until the returned set is dropped.
    ///
    /// # Errors
    /// Words that are not symmetric, or a peer that does not answer.
    pub unsafe fn set(&self, group: Group, words: *mut u64) -> Result<ActiveSet<'_>> {
        let key = (group, words.addr());
        let known = lock(&self.known).get(&key).cloned();
        let set = |known| ActiveSet { everybody: self.runtime.everybody(), group, words, known };
        if let Some(known) = known {
            return Ok(set(known));
        }
        let calls = {
            let known = lock(&self.known);
            let same = known.iter().find(|((of, _), _)| *of == group).map(|(_, same)| Arc::clone(&same.calls));
            same.unwrap_or_else(|| Arc::new(Calls::new(self.several_threads)))
        };
        let mut set = set(Known { team: None, calls });
        set.known.team = self.team_of(&set)?.map(Arc::new);
        lock(&self.known).insert(key, set.known.clone());
        Ok(set)
    }

    /// Makes a team of a set's PEs, if there are several and an area is free for it.
    fn team_of(&self, set: &ActiveSet<'_>) -> Result<Option<Team>> {
        if set.group.size() == 1 {
            return Ok(None);
        }
        let comm = self.runtime.comm();
        comm.space.must_be_host("an active set's array", [set.words.cast(); 2])?;
        comm.space.word(Operation::Amo, comm.job.me, set.words.cast(), 8)?;
        let array = comm.space.offset(Operation::Amo, comm.job.me, set.words.cast(), 8 * SYNC_WORDS)?;
        set.wait_for_all()?;
        let area = self.areas.for_set(array, |offer| set.common(offer))?;
        Ok(area.map(|area| Team::new(&self.runtime, set.group, area, Arc::default(), Arc::clone(&self.areas))))
    }
}

/// PEs and the symmetric array that they use.
pub struct ActiveSet<'a> {
    everybody: Everybody<'a>,
    group: Group,
    words: *mut u64,
    known: Known,
}

impl Members for ActiveSet<'_> {
    fn ops(&self) -> Operations<'_> {
        self.everybody.ops
    }

    fn group(&self) -> Group {
        self.group
    }

    /// Barrier on the array's words: arrivals are counted up a tree; the release comes down.
    fn wait_for_all(&self) -> Result<()> {
        let (me, size) = (self.group.me(), self.group.size());
        let children = (1..=FAN).map(|i| me * FAN + i).take_while(|&child| child < size);
        let arrivals = children.clone().count() as u64;
        if arrivals > 0 {
            self.take(0, arrivals)?;
        }
        if me > 0 {
            self.ops().signal_op(self.word(0), 1, SignalOp::Add, self.group.pe((me - 1) / FAN))?;
            self.take(1, 1)?;
        }
        for child in children {
            self.ops().signal_op(self.word(1), 1, SignalOp::Add, self.group.pe(child))?;
        }
        Ok(())
    }
}

impl ActiveSet<'_> {
    fn word(&self, index: usize) -> *mut u64 {
        self.words.wrapping_add(index)
    }

    /// Waits until a word has a value, and sets it to 0.
    fn take(&self, index: usize, value: u64) -> Result<()> {
        let word = self.word(index);
        self.ops().wait_for("a collective of an active set", Among::All(self.group), || {
            // SAFETY: the promise to `ActiveSets::set`.
            (unsafe { load(word.cast(), 8) } == value).then_some(())
        })?;
        // SAFETY: as above. No PE adds to it before all have arrived here.
        unsafe { AtomicU64::from_ptr(word) }.store(0, Ordering::Release);
        Ok(())
    }

    fn team(&self) -> Option<&Team> {
        self.known.team.as_deref()
    }

    /// Begins a call: returns when this PE may write to other PEs.
    fn begin(&self, what: Use<'_>) -> Result<()> {
        let team = self.team();
        // If calls are compared, the comparison has waited for all PEs already.
        let compared = team.is_some() && self.ops().comm.job.settings.check_collectives;
        if self.group.size() == 1 || compared {
            return Ok(());
        }
        self.known.calls.begin(&self.everybody, self.words.addr(), team, what, || match team {
            Some(team) => team.sync_flags(),
            None => self.wait_for_all(),
        })
    }

    /// The set, with its barriers on the array's words, for a host-thread collective on these buffers.
    fn on_host(&self, name: &'static str, buffers: [Buffer; 2]) -> Result<&Self> {
        self.must_hold(name, &buffers)?;
        Ok(self)
    }

    /// The bytes of a block of each PE.
    fn of_all(&self, bytes: usize) -> usize {
        bytes.saturating_mul(self.group.size() as usize)
    }

    /// The bits that are set in all PEs' numbers.
    fn common(&self, mine: u64) -> Result<u64> {
        let (offer, mut common) = (self.word(OFFER), 0u64);
        let result = (&raw mut common).cast();
        // SAFETY: the promise to `ActiveSets::set`; the result is this call's own. All PEs have read the word when the
        // reduction returns.
        unsafe {
            AtomicU64::from_ptr(offer).store(mine, Ordering::Release);
            direct::reduce(self, result, offer.cast(), 1, Reduction::and::<u64>())?;
            AtomicU64::from_ptr(offer).store(0, Ordering::Release);
        }
        Ok(common)
    }

    /// Waits for all PEs of the set.
    ///
    /// # Errors
    /// A peer that does not answer.
    pub fn sync(&self) -> Result<()> {
        self.begin(Use::Waits)?;
        match self.team() {
            Some(team) => team.sync(),
            None => self.wait_for_all(),
        }
    }

    /// Completes all operations that this PE has issued, then waits for all PEs of the set.
    ///
    /// # Errors
    /// As for [`ActiveSet::sync`], or an operation that failed.
    pub fn barrier(&self) -> Result<()> {
        self.ops().quiet()?;
        self.sync()
    }

    /// Copies `extent` from `source` on the PE with index `root` to `dest` on all others.
    ///
    /// # Safety
    /// As for [`Team`]'s operations.
    ///
    /// # Errors
    /// As for [`Team`]'s operations.
    pub unsafe fn broadcast(
        &self,
        dest: *mut u8,
        source: *const u8,
        extent: impl Into<Extent>,
        root: u32,
    ) -> Result<()> {
        let call = Call { root, ..Call::new("broadcast", extent) };
        let bytes = call.bytes;
        let buffers = [(dest.cast_const(), bytes), (source, if self.group.me() == root { bytes } else { 0 })];
        let Some(team) = self.team() else {
            self.begin(Use::Writes)?;
            // SAFETY: the caller's promise.
            return unsafe { direct::broadcast(self.on_host("broadcast", buffers)?, dest, source, bytes, root) };
        };
        team.call("broadcast", call, buffers, || {
            team.pe(root.into())?;
            let children = tree::children(team.hosts(), root);
            self.begin(Use::Broadcast { root, children: &children })?;
            // This PE runs ahead of other PEs only as far as the array's next use.
            let ticket = quick::ticket(team, true)?;
            // SAFETY: the caller's promise.
            unsafe { quick::pass_on(team, dest, source, bytes, root, ticket, &children) }
        })
    }

    /// As [`Team::fcollect`].
    ///
    /// # Safety
    /// As for [`Team`]'s operations.
    ///
    /// # Errors
    /// As for [`Team`]'s operations.
    pub unsafe fn fcollect(&self, dest: *mut u8, source: *const u8, extent: impl Into<Extent>) -> Result<()> {
        let extent = extent.into();
        self.begin(Use::Writes)?;
        // SAFETY: the caller's promise.
        unsafe {
            match self.team() {
                Some(team) => team.fcollect(dest, source, extent),
                None => {
                    let bytes = extent.bytes;
                    let buffers = [(dest.cast_const(), self.of_all(bytes)), (source, bytes)];
                    let before = bytes.saturating_mul(self.group.me() as usize);
                    direct::to_all(self.on_host("fcollect", buffers)?, dest, source, bytes, before)
                }
            }
        }
    }

    /// As [`Team::collect`].
    ///
    /// # Safety
    /// As for [`Team`]'s operations.
    ///
    /// # Errors
    /// As for [`Team`]'s operations.
    pub unsafe fn collect(&self, dest: *mut u8, source: *const u8, extent: impl Into<Extent>) -> Result<()> {
        let extent = extent.into();
        // A team's PEs first exchange their lengths.
        self.begin(if self.team().is_some() { Use::Waits } else { Use::Writes })?;
        // SAFETY: the caller's promise.
        unsafe {
            match self.team() {
                Some(team) => team.collect(dest, source, extent),
                None => {
                    let bytes = extent.bytes;
                    let buffers = [(dest.cast_const(), bytes), (source, bytes)];
                    let before = self.on_host("collect", buffers)?.bytes_before(bytes as u64)?;
                    direct::to_all(self, dest, source, bytes, before as usize)
                }
            }
        }
    }

    /// The total length of the blocks before this PE's: each PE sends the next one the start of its block.
    fn bytes_before(&self, bytes: u64) -> Result<u64> {
        let me = self.group.me();
        let mut before = 0;
        if me > 0 {
            let word = self.word(2);
            let seen = self.ops().wait_for("a collect of an active set", Among::All(self.group), || {
                // SAFETY: the promise to `ActiveSets::set`.
                Some(unsafe { load(word.cast(), 8) }).filter(|&seen| seen != 0)
            })?;
            // SAFETY: the promise to `ActiveSets::set`. The word is next written in the next collect, after all PEs
            // have arrived.
            unsafe { AtomicU64::from_ptr(word) }.store(0, Ordering::Release);
            before = seen - 1;
        }
        if me + 1 < self.group.size() {
            let next = before.saturating_add(bytes).saturating_add(1);
            self.ops().signal_op(self.word(2), next, SignalOp::Set, self.group.pe(me + 1))?;
        }
        Ok(before)
    }

    /// As [`Team::alltoall`].
    ///
    /// # Safety
    /// As for [`Team`]'s operations.
    ///
    /// # Errors
    /// As for [`Team`]'s operations.
    pub unsafe fn alltoall(&self, dest: *mut u8, source: *const u8, extent: impl Into<Extent>) -> Result<()> {
        let extent = extent.into();
        self.begin(Use::Writes)?;
        // SAFETY: the caller's promise.
        unsafe {
            match self.team() {
                Some(team) => team.alltoall(dest, source, extent),
                None => {
                    let (bytes, all) = (extent.bytes, self.of_all(extent.bytes));
                    let shape = Strided { dest_stride: 1, source_stride: 1, size: bytes, count: bytes.min(1) };
                    let here = self.on_host("alltoall", [(dest, all), (source, all)])?;
                    direct::all_to_all_strided(here, dest, source, shape)
                }
            }
        }
    }

    /// As [`Team::alltoalls`].
    ///
    /// # Safety
    /// As for [`Team`]'s operations.
    ///
    /// # Errors
    /// As for [`Team`]'s operations.
    pub unsafe fn alltoalls(&self, dest: *mut u8, source: *const u8, shape: Strided, ty: ElementType) -> Result<()> {
        self.begin(Use::Writes)?;
        // SAFETY: the caller's promise.
        unsafe {
            match self.team() {
                Some(team) => team.alltoalls(dest, source, shape, ty),
                None => {
                    let here = self.on_host("alltoalls", spans(self, dest, source, shape))?;
                    direct::all_to_all_strided(here, dest, source, shape)
                }
            }
        }
    }

    /// As [`Team::reduce`], but sources are symmetric whatever their size.
    ///
    /// # Safety
    /// As for [`Team`]'s operations.
    ///
    /// # Errors
    /// As for [`Team`]'s operations.
    pub unsafe fn reduce(&self, dest: *mut u8, source: *const u8, count: usize, reduction: Reduction) -> Result<()> {
        // No PE takes part in a reduction of no elements.
        if count > 0 {
            self.begin(Use::Waits)?;
        }
        // SAFETY: the caller's promise.
        unsafe {
            match self.team() {
                Some(team) => team.reduce(dest, source, count, reduction),
                None => {
                    let bytes = reduction.extent(count).bytes;
                    direct::reduce(
                        self.on_host("reduce", [(dest, bytes), (source, bytes)])?,
                        dest,
                        source,
                        count,
                        reduction,
                    )?;
                    reduction.finish(dest, count, self.group.size());
                    Ok(())
                }
            }
        }
    }
}
