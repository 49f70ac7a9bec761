//! Memory of this PE and of its peers, and the means of access: rails, the CPU, or only a copy engine.

use symrail_heap::CopyEngine;
use symrail_transport::device::Export;
use symrail_transport::grown::GrownKeys;
use symrail_transport::region::{Regions, Segment};
use symrail_transport::{Error, Pe, Result};

use super::{Engine, STAGE};
use crate::stage::{STAGING_BUFFER_ID, Stage, WordLocks};

impl Engine {
    /// Registers a segment of this PE with all rails and opens it to peers' requests.
    ///
    /// # Safety
    /// The segment stays mapped as long as the engine lives.
    ///
    /// # Errors
    /// The error of the provider.
    pub unsafe fn register(&mut self, segment: Segment) -> Result<Vec<u8>> {
        // SAFETY: the caller's promise.
        let connection_info = unsafe { self.endpoint.register(segment) }?;
        // SAFETY: the caller's promise.
        unsafe { self.agent.add_segment(segment) };
        Ok(connection_info)
    }

    /// As [`Engine::register`], for a segment by which memory that begins with the segment `first` has grown. See
    /// [`Endpoint::register_grown`](symrail_transport::endpoint::Endpoint::register_grown).
    ///
    /// # Safety
    /// As for [`Engine::register`].
    ///
    /// # Errors
    /// The error of the provider.
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

    /// Sends operations on memory that neither rails nor the CPU can access through the copy engine's staging buffer.
    /// The connection info goes to [`Engine::learn_window`] on all PEs. Either all PEs stage, or none.
    ///
    /// # Errors
    /// The window is too small, or the provider cannot register it.
    pub fn stage(&mut self, copy_engine: Box<dyn CopyEngine>) -> Result<Vec<u8>> {
        let stage = Stage::new(copy_engine, STAGE, self.endpoint.n_pes(), self.endpoint.policy().timeout_s)?;
        // SAFETY: the staging buffer lives as long as the copy engine, which the engine drops after the endpoint.
        let connection_info = unsafe { self.endpoint.register(stage.staging_buffer()) }?;
        // SAFETY: as above. Puts to a window may arrive as requests.
        unsafe { self.agent.add_segment(stage.staging_buffer()) };
        self.agent.stage();
        self.stage = Some(Box::new(stage));
        Ok(connection_info)
    }

    /// Keeps AMOs and signals on staged words atomic with those of other engines that stage the same memory. All these
    /// engines get clones of the same locks. It has no effect before [`Engine::stage`].
    pub fn share_words(&mut self, locks: &WordLocks) {
        if let Some(stage) = &mut self.stage {
            stage.share_words(locks.clone());
        }
    }

    /// Stores the connection infos of all PEs' windows.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn learn_window(&mut self, connection_infos: &[Vec<u8>]) -> Result<()> {
        self.endpoint.learn(STAGING_BUFFER_ID, connection_infos)
    }

    /// Adds a segment of symmetric memory that only the copy engine can access. Every PE has one at the same offset. It
    /// has no effect before [`Engine::stage`].
    ///
    /// # Safety
    /// The segment stays until [`Engine::deregister`], or until the engine is dropped, and the copy engine can access
    /// it.
    pub unsafe fn add_staged_segment(&mut self, segment: Segment) {
        if let Some(stage) = &mut self.stage {
            stage.add_segment(segment);
        }
    }

    /// Lets rails move large data to and from a staged segment themselves, if all of them can access it. The connection
    /// info goes to [`Engine::learn_direct`] on all PEs.
    ///
    /// # Safety
    /// As for [`Engine::register`].
    ///
    /// # Errors
    /// The error of the first rail that cannot access it.
    pub unsafe fn register_direct(&mut self, segment: Segment, export: Export<'_>) -> Result<Vec<u8>> {
        // SAFETY: the caller's promise. The agent does not learn of the segment, since the CPU does not touch it.
        unsafe { self.endpoint.register_device(segment, export) }
    }

    /// Stores all PEs' connection infos of a segment that all their rails can access. If one of them is empty, this
    /// PE's rails forget the segment instead.
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

    /// Stores the addresses at which this PE's device has mapped each PE's part of a staged segment, 0 where it has
    /// not. From now on the PE's copy engine copies there and from there to and from its own staged memory. It has no
    /// effect before [`Engine::stage`]. Other PEs need not know it.
    ///
    /// Returns the PEs to whose memory the copy engine cannot copy, and the reasons. Data to and from those goes
    /// through the window.
    ///
    /// # Safety
    /// Each base is 0, or the address at which the copy engine's device has mapped as many bytes as the segment has,
    /// until the engine is dropped.
    #[must_use]
    pub unsafe fn map_peers(&mut self, segment: &Segment, bases: Vec<usize>) -> Vec<(Pe, String)> {
        let me = self.endpoint.me();
        self.stage.as_mut().map_or_else(Vec::new, |stage| stage.map_peers(me, segment, bases))
    }

    /// Makes NICs' writes to staged memory visible to its device, before any other notification of them.
    pub fn flush_nic_writes(&mut self) {
        if let Some(stage) = &mut self.stage {
            stage.flush_nic_writes();
        }
    }

    /// Notes that `pe` has laid out `len` bytes of memory separately at `offset`, which only its copy engine can
    /// access.
    ///
    /// # Errors
    /// Nothing is staged here, or the PE does not exist.
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

    /// Whether some memory is staged.
    #[must_use]
    pub fn stages(&self) -> bool {
        self.stage.is_some()
    }

    /// Whether a separate segment of `pe` that begins at `offset` is known.
    #[must_use]
    pub fn knows_separate(&self, pe: Pe, offset: u64) -> bool {
        let knows = |regions: &Regions| regions.knows_separate(pe, offset);
        knows(self.endpoint.regions()) || self.stage.as_ref().is_some_and(|stage| knows(stage.memory()))
    }

    /// Forgets a separate segment of any kind.
    pub fn forget_separate(&mut self, pe: Pe, offset: u64) {
        self.endpoint.forget_separate(pe, offset);
        if let Some(stage) = &mut self.stage {
            stage.forget_separate(pe, offset);
        }
    }

    /// Adds a local buffer that only the copy engine can access, for use as a source or destination. `id` belongs to no
    /// other buffer. It has no effect before [`Engine::stage`].
    ///
    /// # Safety
    /// The copy engine can access the buffer, which stays until [`Engine::remove_staged_buffer`].
    pub unsafe fn add_staged_buffer(&mut self, base: *mut u8, len: usize, id: u32) {
        if let Some(stage) = &mut self.stage {
            // SAFETY: the caller's promise.
            unsafe { stage.add_buffer(base, len, id) };
        }
    }

    /// Forgets the staged buffer that starts at `base`; unknown ones are ignored. No operation may be using it.
    pub fn remove_staged_buffer(&mut self, base: *const u8, id: u32) {
        if let Some(stage) = &mut self.stage {
            stage.remove_buffer(base, id);
        }
    }
}
