//! Posting and polling on a bare endpoint, between two PEs.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::{Duration, Instant};

use libfabric_sys as ffi;
use symrail::Settings;
use symrail::bootstrap::Bootstrap;
use symrail_heap::{HostIdentity, Site};
use symrail_transport::backend::HostPes;

use super::Memory;
use super::open::{Endpoint, Object, nic};
use super::wait::{FOR_THE_OTHER, Wait};
use crate::perf::backend::{Backend, area};
use crate::perf::error::{Error, Result};
use crate::perf::plan::LARGEST_WINDOW;

/// Completions that are read at once.
const BATCH: usize = 16;
/// Contexts that providers with `FI_CONTEXT` may write to.
const CONTEXTS: usize = 2048;
/// The most operations in flight: those of the largest window.
const IN_FLIGHT: u64 = LARGEST_WINDOW as u64;

/// A bare endpoint with a registered area. Fields are in the order of closing.
pub struct Fabric {
    region: Object<ffi::fid_mr>,
    endpoint: Endpoint,
    memory: Memory,
    contexts: Box<[ffi::fi_context2]>,
    me: u32,
    peer: ffi::fi_addr_t,
    remote_key: u64,
    remote_base: u64,
    descriptor: *mut c_void,
    posted: u64,
    done: u64,
    barriers: u64,
    words: usize,
    rail: String,
    timeout: Duration,
}

impl Fabric {
    /// Opens an endpoint and connects it to the other PE's. Collective.
    pub fn open(settings: &Settings, bootstrap: &mut dyn Bootstrap, bytes: usize, atomics: bool) -> Result<Fabric> {
        if bootstrap.n_pes() != 2 {
            return Err(Error::Arguments(format!("raw tests are for 2 PEs, and there are {}", bootstrap.n_pes())));
        }
        let site = Site::of_this_process(HostIdentity::of_this_process(settings.fake_host.as_deref())?, None);
        let sites = Site::decode_all(&bootstrap.allgather(&site.encode())?)?;
        let host = Site::pes_of_host(&sites, bootstrap.pe() as usize);
        let opened = Self::open_alone(settings, &host, bootstrap.pe(), bytes, atomics);
        // A PE that could not open sends nothing, so that the other does not wait for it.
        let mine = opened.as_ref().map_or_else(|_| Ok(Vec::new()), Fabric::connection_info)?;
        let connection_infos = bootstrap.allgather(&mine)?;
        let mut fabric = opened?;
        let theirs = &connection_infos[1 - fabric.me as usize];
        let Some((numbers, address)) = theirs.split_at_checked(16).filter(|(_, address)| !address.is_empty()) else {
            return Err(fabric.endpoint.failure("fi_endpoint at the other PE", -ffi::FI_EOTHER));
        };
        let number = |at: usize| numbers[at..at + 8].iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
        (fabric.remote_key, fabric.remote_base) = (number(0), number(8));
        fabric.peer = fabric.endpoint.connect(address)?;
        bootstrap.barrier()?;
        // The first operation connects: one direction, then the other, while both poll.
        fabric.barrier()?;
        fabric.barrier()?;
        Ok(fabric)
    }

    fn open_alone(settings: &Settings, host: &HostPes, me: u32, bytes: usize, atomics: bool) -> Result<Fabric> {
        let nic = nic(settings, host)?;
        let endpoint = Endpoint::open(settings, &nic, atomics)?;
        let memory = Memory::private(bytes)?;
        // SAFETY: the memory is unmapped after the region is closed (field order).
        let region = unsafe { endpoint.register(memory.base.as_ptr(), bytes) }?;
        // SAFETY: an open region.
        let descriptor = unsafe { ffi::fi_mr_desc(region.get()) };
        // SAFETY: a context is scratch space of the provider; zeros are valid.
        let contexts = (0..CONTEXTS).map(|_| unsafe { std::mem::zeroed() }).collect();
        Ok(Fabric {
            region,
            endpoint,
            memory,
            contexts,
            me,
            peer: ffi::FI_ADDR_UNSPEC,
            remote_key: 0,
            remote_base: 0,
            descriptor,
            posted: 0,
            done: 0,
            barriers: 0,
            words: 0,
            rail: nic.name,
            timeout: Duration::from_secs(settings.timeout_s),
        })
    }

    /// The information for the peer: key, base address, endpoint address.
    fn connection_info(&self) -> Result<Vec<u8>> {
        // SAFETY: an open region.
        let key = unsafe { ffi::fi_mr_key(self.region.get()) };
        let by_address = self.endpoint.mr_mode() & ffi::FI_MR_VIRT_ADDR != 0;
        let base = if by_address { self.memory.base.as_ptr() as u64 } else { 0 };
        let mut connection_info = [key.to_le_bytes(), base.to_le_bytes()].concat();
        connection_info.extend(self.endpoint.address()?);
        Ok(connection_info)
    }

    /// Provider, rail and progress model, for people.
    pub fn describe(&self) -> (String, String, String) {
        (self.endpoint.provider.clone(), self.rail.clone(), self.endpoint.progress().into())
    }

    #[inline]
    fn poll(&mut self) -> Result<()> {
        let mut entries = [const { MaybeUninit::<ffi::fi_cq_data_entry>::uninit() }; BATCH];
        let (to, sent, received) =
            (entries.as_mut_ptr().cast(), self.endpoint.sent.get(), self.endpoint.received.get());
        // SAFETY: an open queue, and space for that many entries of its format.
        let count = unsafe { ffi::fi_cq_read(sent, to, BATCH) };
        if count > 0 {
            self.done += count as u64;
        } else if count != -(ffi::FI_EAGAIN as isize) && count != 0 {
            return Err(self.queue_error(sent, count));
        }
        // SAFETY: as above. Nothing is received; reading lets the provider make progress.
        let count = unsafe { ffi::fi_cq_read(received, to, BATCH) };
        if count < 0 && count != -(ffi::FI_EAGAIN as isize) {
            return Err(self.queue_error(received, count));
        }
        Ok(())
    }

    #[cold]
    fn queue_error(&self, queue: *mut ffi::fid_cq, code: isize) -> Error {
        // SAFETY: all-zero is a valid entry that asks for the provider's own buffer.
        let mut entry: ffi::fi_cq_err_entry = unsafe { std::mem::zeroed() };
        // SAFETY: an open queue and our own entry.
        if unsafe { ffi::fi_cq_readerr(queue, &raw mut entry, 0) } > 0 {
            return self.endpoint.failure("an operation", entry.err);
        }
        self.endpoint.failure("fi_cq_read", code as i32)
    }

    /// Polls until `ready`.
    #[inline]
    fn poll_until(&mut self, what: &'static str, ready: impl Fn(&Self) -> bool) -> Result<()> {
        self.poll_for(self.timeout, what, ready)
    }

    #[inline]
    fn poll_for(&mut self, timeout: Duration, what: &'static str, ready: impl Fn(&Self) -> bool) -> Result<()> {
        let mut wait = Wait::new(self.me, what, timeout);
        while !ready(self) {
            self.poll()?;
            wait.step()?;
        }
        Ok(())
    }

    /// Waits until the operations in flight leave a context and a queue entry free.
    #[inline]
    fn make_room(&mut self) -> Result<()> {
        if self.posted - self.done >= IN_FLIGHT {
            let enough = self.posted - IN_FLIGHT + 1;
            self.poll_until("room in the queue", |fabric| fabric.done >= enough)?;
        }
        Ok(())
    }

    #[inline]
    fn context(&mut self) -> *mut c_void {
        (&raw mut self.contexts[self.posted as usize % CONTEXTS]).cast()
    }

    /// Posts until the provider accepts.
    #[inline]
    fn post(&mut self, call: &'static str, mut post: impl FnMut(&mut Self) -> isize) -> Result<()> {
        loop {
            let code = post(self);
            if code == 0 {
                self.posted += 1;
                return Ok(());
            }
            if code != -(ffi::FI_EAGAIN as isize) {
                return Err(self.endpoint.failure(call, code as i32));
            }
            self.poll()?;
        }
    }

    /// A write or a read.
    #[inline]
    fn rma(&mut self, here: usize, there: usize, len: usize, read: bool, flags: u64) -> Result<()> {
        let iov = libc::iovec { iov_base: self.at(here).cast(), iov_len: len };
        let target = ffi::fi_rma_iov { addr: self.remote_base + there as u64, len, key: self.remote_key };
        let mut descriptor = self.descriptor;
        let context = self.context();
        let message = ffi::fi_msg_rma {
            msg_iov: &raw const iov,
            desc: &raw mut descriptor,
            iov_count: 1,
            addr: self.peer,
            rma_iov: &raw const target,
            rma_iov_count: 1,
            context,
            data: 0,
        };
        let flags = flags | ffi::FI_COMPLETION;
        self.post(if read { "fi_readmsg" } else { "fi_writemsg" }, |fabric| {
            let endpoint = fabric.endpoint.endpoint.get();
            // SAFETY: an enabled endpoint; the call copies the lists, and the area stays until the completion.
            unsafe {
                if read {
                    ffi::fi_readmsg(endpoint, &raw const message, flags)
                } else {
                    ffi::fi_writemsg(endpoint, &raw const message, flags)
                }
            }
        })
    }

    /// An add, fetching or not.
    #[inline]
    fn add(&mut self, word: usize, value: u64, fetch: bool) -> Result<()> {
        let operand = self.own_word(value);
        let mut descriptor = self.descriptor;
        let mut result_descriptor = self.descriptor;
        let mut operands = ffi::fi_ioc { addr: self.at(operand).cast(), count: 1 };
        let mut results = ffi::fi_ioc { addr: self.at(area::RESULT).cast(), count: 1 };
        let target = ffi::fi_rma_ioc { addr: self.remote_base + word as u64, count: 1, key: self.remote_key };
        let context = self.context();
        let message = ffi::fi_msg_atomic {
            msg_iov: &raw mut operands,
            desc: &raw mut descriptor,
            iov_count: 1,
            addr: self.peer,
            rma_iov: &raw const target,
            rma_iov_count: 1,
            datatype: ffi::FI_UINT64,
            op: ffi::FI_SUM,
            context,
            data: 0,
        };
        self.post("fi_atomicmsg", |fabric| {
            let endpoint = fabric.endpoint.endpoint.get();
            // SAFETY: as for `rma`; the result's address is in the area.
            unsafe {
                if fetch {
                    let to = &raw mut results;
                    let described = &raw mut result_descriptor;
                    ffi::fi_fetch_atomicmsg(endpoint, &raw const message, to, described, 1, ffi::FI_COMPLETION)
                } else {
                    ffi::fi_atomicmsg(endpoint, &raw const message, ffi::FI_COMPLETION | ffi::FI_DELIVERY_COMPLETE)
                }
            }
        })
    }

    /// Stores a value in a source slot, where it stays for a while.
    #[inline]
    fn own_word(&mut self, value: u64) -> usize {
        self.words = (self.words + 1) % area::N_WORDS;
        let word = area::WORDS + 8 * self.words;
        self.set_word(word, value);
        word
    }
}

impl Backend for Fabric {
    fn pe(&self) -> u32 {
        self.me
    }

    fn n_pes(&self) -> u32 {
        2
    }

    #[inline]
    fn base(&self) -> *mut u8 {
        self.memory.base.as_ptr()
    }

    #[inline]
    fn start_put(&mut self, _pe: u32, dest: usize, source: usize, len: usize) -> Result<()> {
        self.make_room()?;
        self.rma(source, dest, len, false, ffi::FI_DELIVERY_COMPLETE)
    }

    #[inline]
    fn put_word(&mut self, _pe: u32, word: usize, value: u64) -> Result<()> {
        self.make_room()?;
        let source = self.own_word(value);
        self.rma(source, word, 8, false, 0)
    }

    #[inline]
    fn start_get(&mut self, _pe: u32, dest: usize, source: usize, len: usize) -> Result<()> {
        self.make_room()?;
        self.rma(dest, source, len, true, 0)
    }

    #[inline]
    fn get(&mut self, pe: u32, dest: usize, source: usize, len: usize) -> Result<()> {
        self.start_get(pe, dest, source, len)?;
        self.quiet()
    }

    #[inline]
    fn quiet(&mut self) -> Result<()> {
        let all = self.posted;
        self.poll_until("completions", |fabric| fabric.done >= all)
    }

    #[inline]
    fn fetch_add(&mut self, _pe: u32, word: usize, value: u64) -> Result<u64> {
        self.add(word, value, true)?;
        self.quiet()?;
        Ok(self.word(area::RESULT))
    }

    #[inline]
    fn start_add(&mut self, _pe: u32, word: usize, value: u64) -> Result<()> {
        self.make_room()?;
        self.add(word, value, false)
    }

    #[inline]
    fn wait(&mut self, word: usize, value: u64) -> Result<()> {
        self.poll_for(self.timeout * FOR_THE_OTHER, "a word", |fabric| fabric.word(word) >= value)
    }

    fn barrier(&mut self) -> Result<()> {
        self.quiet()?;
        self.barriers += 1;
        let (number, source) = (self.barriers, self.own_word(self.barriers));
        self.rma(source, area::BARRIER, 8, false, ffi::FI_DELIVERY_COMPLETE)?;
        self.quiet()?;
        self.wait(area::BARRIER, number)?;
        // The peer may still wait for its own word's delivery: it was delivered, or this wait would not have ended.
        Ok(())
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        // The peer may need progress here for its last wait, the delivery of its last word.
        let until = Instant::now() + Duration::from_millis(50);
        while Instant::now() < until && self.poll().is_ok() {}
        self.descriptor = ptr::null_mut();
    }
}
