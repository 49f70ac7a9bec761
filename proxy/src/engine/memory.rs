//! Which memory there is, of this PE and of others, and who reaches it: rails, the CPU, or a copy engine only.

use symrail_heap::CopyEngine;
use symrail_transport::device::Export;
use symrail_transport::grown::GrownKeys;
use symrail_transport::region::{Regions, Segment};
use symrail_transport::{Error, Pe, Result};

use super::{Engine, STAGE};
use crate::stage::{STAGING_BUFFER_ID, Stage, WordLocks};

impl Engine {
    /// Registers a segment of this PE with all rails and opens it to requests of peers.
    ///
    /// # Safety
    /// The segment stays mapped as long as the engine lives.
    ///
    /// # Errors
    /// What the provider says.
    pub unsafe fn register(&mut self, segment: Segment) -> Result<Vec<u8>> {
        // SAFETY: the caller's promise.
        let connection_info = unsafe { self.endpoint.register(segment) }?;
        // SAFETY: the caller's promise.
        unsafe { self.agent.add_segment(segment) };
        Ok(connection_info)
    }

    /// The same for a segment by which memory that begins with the segment `first` has grown: see
    /// [`Endpoint::register_grown`](symrail_transport::endpoint::Endpoint::register_grown).
    ///
    /// # Safety
    /// As for [`Engine::register`].
    ///
    /// # Errors
    /// What the provider says.
    pub unsafe fn register_grown(&mut self, segment: Segment, first: &Segment) -> Result<GrownKeys> {
        // SAFETY: the caller's promise.
        let keys = unsafe { self.endpoint.register_grown(segment, first) }?;
        // SAFETY: the caller's promise.
        unsafe { self.agent.add_segment(segment) };
        Ok(keys)
    }

    /// Undoes [`Engine::register`] and [`Engine::add_staged_segment`]. Peers' operations on the segment must have
    /// ended.
    pub fn deregister(&mut self, id: u32) {
        self.agent.remove_segment(id);
        self.endpoint.deregister(id);
        if let Some(stage) = &mut self.stage {
            stage.remove_segment(id);
        }
    }

    /// From now on operations on memory that rails and the CPU do not reach go through the copy engine's staging
    /// buffer. The connection info goes to [`Engine::learn_window`] on all PEs; all of them stage, or none.
    ///
    /// # Errors
    /// The window is too small, or what the provider says about registering it.
    pub fn stage(&mut self, copy_engine: Box<dyn CopyEngine>) -> Result<Vec<u8>> {
        let stage = Stage::new(copy_engine, STAGE, self.endpoint.n_pes(), self.endpoint.policy().timeout_s)?;
        // SAFETY: the staging buffer lives as long as the copy engine, which the engine drops after the endpoint.
        let connection_info = unsafe { self.endpoint.register(stage.staging_buffer()) }?;
        // SAFETY: as above. What is put into a window may come as a request.
        unsafe { self.agent.add_segment(stage.staging_buffer()) };
        self.agent.stage();
        // What takes its target longer is answered once.
        self.endpoint.disable_failover();
        self.stage = Some(Box::new(stage));
        Ok(connection_info)
    }

    /// Keeps AMOs and signals on staged words atomic with those of other engines that stage the same memory: all of
    /// them are given clones of the same locks. Before [`Engine::stage`] nothing happens.
    pub fn share_words(&mut self, locks: &WordLocks) {
        if let Some(stage) = &mut self.stage {
            stage.share_words(locks.clone());
        }
    }

    /// Takes in what all PEs said about their windows.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn learn_window(&mut self, connection_infos: &[Vec<u8>]) -> Result<()> {
        self.endpoint.learn(STAGING_BUFFER_ID, connection_infos)
    }

    /// Adds a segment of symmetric memory that only the copy engine reaches; every PE has one at the same offset.
    /// Before [`Engine::stage`] nothing happens.
    ///
    /// # Safety
    /// The segment stays until [`Engine::deregister`], or until the engine is dropped, and the copy engine reaches it.
    pub unsafe fn add_staged_segment(&mut self, segment: Segment) {
        if let Some(stage) = &mut self.stage {
            stage.add_segment(segment);
        }
    }

    /// Lets rails move what is large to and from a staged segment themselves, if all of them reach it. The connection
    /// info goes to [`Engine::learn_direct`] on all PEs.
    ///
    /// # Safety
    /// As for [`Engine::register`].
    ///
    /// # Errors
    /// What the first rail says that does not.
    pub unsafe fn register_direct(&mut self, segment: Segment, export: Export<'_>) -> Result<Vec<u8>> {
        // SAFETY: the caller's promise. The agent is not told, since the CPU does not touch it.
        unsafe { self.endpoint.register_device(segment, export) }
    }

    /// Takes in what all PEs said about a segment that all their rails reach; or, where one has nothing to say (an
    /// empty connection info), lets this PE's rails forget theirs.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn learn_direct(&mut self, id: u32, connection_infos: &[Vec<u8>]) -> Result<bool> {
        let all = connection_infos.iter().all(|connection_info| !connection_info.is_empty());
        if all {
            self.endpoint.learn(id, connection_infos)?;
        } else {
            self.endpoint.deregister(id);
        }
        Ok(all)
    }

    /// Takes in where this PE's device has mapped a staged segment of each PE, 0 where it has not: from now on its copy
    /// engine copies there and from there what lies in staged memory of this PE. Before [`Engine::stage`] nothing
    /// happens. Nobody else has to know of it.
    ///
    /// Returns the PEs to whose memory the copy engine cannot copy, and why: what goes there and comes from there goes
    /// through the window.
    ///
    /// # Safety
    /// Each base is 0, or where the device that the copy engine is for has mapped as many bytes as the segment has,
    /// until the engine is dropped.
    #[must_use]
    pub unsafe fn map_peers(&mut self, segment: &Segment, bases: Vec<usize>) -> Vec<(Pe, String)> {
        let me = self.endpoint.me();
        self.stage.as_mut().map_or_else(Vec::new, |stage| stage.map_peers(me, segment, bases))
    }

    /// Makes what NICs have written to staged memory visible to its device, before something else tells of it.
    pub fn flush_nic_writes(&mut self) {
        if let Some(stage) = &mut self.stage {
            stage.flush_nic_writes();
        }
    }

    /// Takes in that `pe` has laid out `len` bytes of memory at `offset`, separately from others, which only its
    /// copy engine reaches.
    ///
    /// # Errors
    /// Nothing is staged here; no such PE.
    pub fn learn_staged(&mut self, pe: Pe, offset: u64, len: u64) -> Result<()> {
        let n_pes = self.endpoint.n_pes();
        let Some(stage) = &mut self.stage else {
            return Err(Error::Unsupported {
                what: format!("memory of PE {pe} that neither rails nor the CPU reach"),
                by: "a PE that stages nothing".into(),
                remedy: "run on a machine with a GPU, or use a heap in host memory".into(),
            });
        };
        stage.learn_separate((pe, n_pes), offset, len)
    }

    /// Whether a segment of `pe` that begins at `offset`, separately from others, is known.
    #[must_use]
    pub fn knows_separate(&self, pe: Pe, offset: u64) -> bool {
        let knows = |regions: &Regions| regions.knows_separate(pe, offset);
        knows(self.endpoint.regions()) || self.stage.as_ref().is_some_and(|stage| knows(stage.memory()))
    }

    /// Forgets it, of whatever kind it is.
    pub fn forget_separate(&mut self, pe: Pe, offset: u64) {
        self.endpoint.forget_separate(pe, offset);
        if let Some(stage) = &mut self.stage {
            stage.forget_separate(pe, offset);
        }
    }

    /// Adds a local buffer that only the copy engine reaches, for use as a source or destination. `id` is no other
    /// buffer's. Before [`Engine::stage`] nothing happens.
    ///
    /// # Safety
    /// The copy engine reaches the buffer, which stays until [`Engine::remove_staged_buffer`].
    pub unsafe fn add_staged_buffer(&mut self, base: *mut u8, len: usize, id: u32) {
        if let Some(stage) = &mut self.stage {
            // SAFETY: the caller's promise.
            unsafe { stage.add_buffer(base, len, id) };
        }
    }

    /// Forgets the staged buffer that starts at `base`; unknown ones are ignored. Nothing may be using it.
    pub fn remove_staged_buffer(&mut self, base: *const u8) {
        if let Some(stage) = &mut self.stage {
            stage.remove_buffer(base);
        }
    }
}
