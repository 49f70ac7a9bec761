//! Two processes that map each other's memory, and copies by libc between the mappings.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;
use symrail::Settings;
use symrail::bootstrap::Bootstrap;

use super::wait::{FOR_THE_OTHER, Wait};
use super::{Memory, failed};
use crate::perf::backend::{Backend, area};
use crate::perf::error::{Error, Result};

/// This PE's shared memory and its peer's.
pub struct Copies {
    mine: Memory,
    theirs: Memory,
    me: u32,
    barriers: u64,
    timeout: Duration,
}

impl Copies {
    /// Maps both. Collective.
    pub fn open(settings: &Settings, bootstrap: &mut dyn Bootstrap, bytes: usize) -> Result<Copies> {
        if bootstrap.n_pes() != 2 {
            return Err(Error::Arguments(format!("raw tests are for 2 PEs, and there are {}", bootstrap.n_pes())));
        }
        let file = memfd_create("symrail-copies", MFdFlags::MFD_CLOEXEC).map_err(failed("memfd_create"))?;
        let length = i64::try_from(bytes).map_err(|_| Error::Arguments("an area beyond all memory".into()))?;
        ftruncate(&file, length).map_err(failed("ftruncate"))?;
        let mine = Memory::of_file(&file, bytes)?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let paths = bootstrap.allgather(path.as_bytes())?;
        let me = bootstrap.pe();
        let theirs = String::from_utf8_lossy(&paths[1 - me as usize]).into_owned();
        let failed = |reason: std::io::Error| Error::System {
            what: format!("opening {theirs} (are both PEs on one host?)"),
            reason: reason.to_string(),
        };
        let opened = File::options().read(true).write(true).open(&theirs).map_err(failed)?;
        let theirs = Memory::of_file(&opened, bytes)?;
        // The files may be closed once both are mapped.
        bootstrap.barrier()?;
        Ok(Copies { mine, theirs, me, barriers: 0, timeout: Duration::from_secs(settings.timeout_s) })
    }
}

impl Backend for Copies {
    fn pe(&self) -> u32 {
        self.me
    }

    fn n_pes(&self) -> u32 {
        2
    }

    #[inline]
    fn base(&self) -> *mut u8 {
        self.mine.base.as_ptr()
    }

    #[inline]
    fn start_put(&mut self, _pe: u32, dest: usize, source: usize, len: usize) -> Result<()> {
        // SAFETY: both mappings hold the area, and tests stay inside it; the mappings are different memory.
        unsafe { std::ptr::copy_nonoverlapping(self.at(source), self.theirs.base.as_ptr().add(dest), len) };
        Ok(())
    }

    #[inline]
    fn put_word(&mut self, _pe: u32, word: usize, value: u64) -> Result<()> {
        // SAFETY: an aligned word of the peer's area; all accesses to it are atomic.
        unsafe { AtomicU64::from_ptr(self.theirs.base.as_ptr().add(word).cast()) }.store(value, Ordering::Release);
        Ok(())
    }

    #[inline]
    fn start_get(&mut self, _pe: u32, dest: usize, source: usize, len: usize) -> Result<()> {
        // SAFETY: as for `start_put`.
        unsafe { std::ptr::copy_nonoverlapping(self.theirs.base.as_ptr().add(source), self.at(dest), len) };
        Ok(())
    }

    #[inline]
    fn get(&mut self, pe: u32, dest: usize, source: usize, len: usize) -> Result<()> {
        self.start_get(pe, dest, source, len)
    }

    #[inline]
    fn quiet(&mut self) -> Result<()> {
        fence(Ordering::SeqCst);
        Ok(())
    }

    fn wait(&mut self, word: usize, value: u64) -> Result<()> {
        let mut wait = Wait::new(self.me, "a word", self.timeout * FOR_THE_OTHER);
        while self.word(word) < value {
            std::hint::spin_loop();
            wait.step()?;
        }
        Ok(())
    }

    fn barrier(&mut self) -> Result<()> {
        self.quiet()?;
        self.barriers += 1;
        self.put_word(1 - self.me, area::BARRIER, self.barriers)?;
        self.wait(area::BARRIER, self.barriers)
    }
}
