//! The job that a process manager with PMIx started: `mpirun`, `prterun`, Slurm with `--mpi=pmix`.
//!
//! An allgather is a put under keys with the step's number (one key per MiB), a commit, a fence that collects, and a
//! get per PE and key. PMIx cannot delete keys, so the manager keeps every step in memory until the job ends: another
//! reason to exchange little.
//!
//! `ffi` holds the C interface and nearly all unsafe code; `apart` makes calls that may wait for the manager.

mod apart;
mod ffi;

use std::ffi::{CStr, CString, c_void};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use symrail_transport::Pe;
use symrail_transport::env::Settings;

use super::error::{Error, Result, Step};
use super::rendezvous::MAX_CONTRIBUTION;
use super::{Bootstrap, MAX_PES};
use crate::interrupt::{GoOn, InterruptPoll, POLL_INTERVAL};
use ffi::{Given, Info, Pmix, Proc, Status, Value};

const KIND: &str = "pmix";
const REMEDY: &str = "see what the process manager printed";

/// The largest single value, in bytes: PMIx keeps values in shared segments and crashes when one value fills a segment.
const PIECE: usize = 1 << 20;

fn key(number: u64, piece: usize) -> CString {
    CString::new(format!("symrail.{number}.{piece}")).unwrap_or_default()
}

/// Whether a process manager has set its variables.
fn present() -> bool {
    ["PMIX_RANK", "PMIX_NAMESPACE"].iter().all(|name| Settings::is_set(name))
}

/// A PE that joined through PMIx. Drop reports that the PE is done.
pub struct Member {
    pmix: Pmix,
    me: Proc,
    n_pes: u32,
    timeout: Duration,
    /// Collective steps started so far.
    steps: u64,
    /// The first fault, if any: every later step fails with it at once.
    broken: Option<Error>,
    /// The check that may end waits.
    go_on: Option<GoOn>,
}

/// Joins the process manager's job. `go_on` may end waits from the start, as for [`Bootstrap::set_interrupt`].
///
/// # Errors
/// The library is missing, variables are missing, or PMIx reports an error.
pub fn open(timeout: Duration, go_on: Option<GoOn>) -> Result<Member> {
    if !present() {
        // PMIx itself would make a process without a manager a job of one.
        return Err(Error::Missing {
            kind: KIND,
            what: "PMIX_RANK and PMIX_NAMESPACE are not set".into(),
            remedy: "start the program with mpirun, prterun or srun --mpi=pmix",
        });
    }
    let pmix = Pmix::load()?;
    let rank = std::env::var("PMIX_RANK").ok().and_then(|rank| rank.parse().ok()).unwrap_or_default();
    let (status, me) = apart::call(rank, Step::Join, go_on.as_ref(), timeout, move || {
        let mut me = Proc { namespace: [0; 256], rank: 0 };
        // SAFETY: `me` is written and no directives are passed.
        (unsafe { (pmix.init)(&raw mut me, std::ptr::null_mut(), 0) }, me)
    })?;
    if status != ffi::SUCCESS {
        let text = pmix.words(status);
        let who = "this process".into();
        return Err(Error::Pmix { who, step: Step::Join, call: "PMIx_Init", text, status, remedy: REMEDY });
    }
    let mut member = Member { pmix, me, n_pes: 0, timeout, steps: 0, broken: None, go_on };
    let job = Proc { rank: ffi::RANK_WILDCARD, ..me };
    let size = member.get(Step::Join, job, ffi::JOB_SIZE.into())?.uint32();
    match size {
        Some(n_pes) if me.rank < n_pes && n_pes <= MAX_PES => member.n_pes = n_pes,
        _ => {
            let text = format!("rank {} of a job of {size:?}", me.rank);
            return Err(member.refuse(Step::Join, "PMIx_Get", text, 0));
        }
    }
    Ok(member)
}

/// PMIx counts whole seconds, and 0 means no limit.
fn timeout_info(timeout: Duration) -> Info {
    let seconds = i32::try_from(timeout.as_secs()).unwrap_or(i32::MAX).max(1);
    Info::new(ffi::TIMEOUT, Value::int(seconds))
}

impl Member {
    fn refuse(&self, step: Step, call: &'static str, text: String, status: Status) -> Error {
        Error::Pmix { who: format!("PE {}", self.me.rank), step, call, text, status, remedy: REMEDY }
    }

    fn check(&self, step: Step, call: &'static str, status: Status) -> Result<()> {
        if status == ffi::SUCCESS { Ok(()) } else { Err(self.refuse(step, call, self.pmix.words(status), status)) }
    }

    /// Managers may ignore the time-out, so this process also counts the time.
    fn get(&self, step: Step, process: Proc, key: CString) -> Result<Given> {
        let (pmix, timeout) = (self.pmix, self.timeout);
        let (status, given) = apart::call(self.me.rank, step, self.go_on.as_ref(), timeout, move || {
            let (mut value, info) = (std::ptr::null_mut(), timeout_info(timeout));
            // SAFETY: all pointers are valid for the call; PMIx writes `value` only.
            let status = unsafe { (pmix.get)(&raw const process, key.as_ptr(), &raw const info, 1, &raw mut value) };
            // SAFETY: null or given just now.
            (status, unsafe { Given::new(value) })
        })?;
        self.check(step, "PMIx_Get", status)?;
        given.ok_or_else(|| self.refuse(step, "PMIx_Get", "no value".into(), status))
    }

    /// Waits for all PEs; `collect` also brings their data here.
    fn fence(&self, step: Step, collect: bool) -> Result<()> {
        // The nonblocking fence, since managers may ignore the time-out: a missing PE would block this PE for ever.
        let infos = [Info::new(ffi::COLLECT_DATA, Value::flag(collect)), timeout_info(self.timeout)];
        let done = Arc::new(Done { infos, status: Mutex::new(None), changed: Condvar::new() });
        let context = Arc::into_raw(Arc::clone(&done));
        let infos = done.infos.as_ptr();
        // SAFETY: no processes means all of the job; the infos and the context live in `done`. The callback owns a
        // reference to it until it runs, even if this call has given up by then.
        let status =
            unsafe { (self.pmix.fence_nb)(std::ptr::null(), 0, infos, 2, fence_done, context.cast_mut().cast()) };
        if status != ffi::SUCCESS {
            // SAFETY: PMIx calls back only for a request that it accepted, so this call still owns the reference.
            drop(unsafe { Arc::from_raw(context) });
            return self.check(step, "PMIx_Fence_nb", status);
        }
        let (begun, mut interrupt_poll) = (Instant::now(), InterruptPoll::new(self.go_on.as_ref()));
        let mut status = done.status.lock().unwrap_or_else(PoisonError::into_inner);
        while status.is_none() && begun.elapsed() < self.timeout {
            let left = self.timeout.saturating_sub(begun.elapsed());
            let pause = if interrupt_poll.may_end() { left.min(POLL_INTERVAL) } else { left };
            let waited = done.changed.wait_timeout_while(status, pause, |status| status.is_none());
            status = waited.unwrap_or_else(PoisonError::into_inner).0;
            if status.is_none()
                && let Some(waited) = interrupt_poll.ended()
            {
                return Err(Error::Interrupted { pe: self.me.rank, step, waited });
            }
        }
        match *status {
            Some(status) => self.check(step, "PMIx_Fence_nb", status),
            None => Err(Error::Timeout {
                pe: self.me.rank,
                step,
                seconds: self.timeout.as_secs(),
                missing: "PMIx does not say which PEs did not arrive".into(),
            }),
        }
    }

    fn put(&self, step: Step, key: &CStr, bytes: &[u8]) -> Result<()> {
        let mut value = Value::bytes(bytes);
        // SAFETY: PMIx copies the value, and does not write it.
        let status = unsafe { (self.pmix.put)(ffi::SCOPE_GLOBAL, key.as_ptr(), &raw mut value) };
        self.check(step, "PMIx_Put", status)
    }

    fn exchange(&self, step: Step, number: u64, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        // The length in front gives the number of keys. It also keeps the first value from being empty, because some
        // managers do not distinguish an empty object from none.
        let blob = [&(mine.len() as u64).to_le_bytes(), mine].concat();
        for (index, piece) in blob.chunks(PIECE).enumerate() {
            self.put(step, &key(number, index), piece)?;
        }
        // SAFETY: after init, as here, it may be called at any time.
        let status = unsafe { (self.pmix.commit)() };
        self.check(step, "PMIx_Commit", status)?;
        self.fence(step, true)?;
        let part = |rank| if rank == self.me.rank { Ok(mine.to_vec()) } else { self.part(step, number, rank) };
        (0..self.n_pes).map(part).collect()
    }

    /// Another PE's blob of this step.
    fn part(&self, step: Step, number: u64, rank: Pe) -> Result<Vec<u8>> {
        let process = Proc { rank, ..self.me };
        let piece = |index| Ok(self.get(step, process, key(number, index))?.bytes().unwrap_or_default());
        let malformed = |why: &str| self.refuse(step, "PMIx_Get", format!("PE {rank} put {why}"), 0);
        let first = piece(0)?;
        let (length, data) = first.split_first_chunk::<8>().ok_or_else(|| malformed("something without a length"))?;
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        if length > MAX_CONTRIBUTION {
            return Err(malformed("more than the limit"));
        }
        let mut data = data.to_vec();
        for index in 1..(length + 8).div_ceil(PIECE) {
            data.extend_from_slice(&piece(index)?);
        }
        if data.len() == length { Ok(data) } else { Err(malformed("another length than it announced")) }
    }

    fn run(&mut self, step: impl Fn(u64) -> Step, mine: Option<&[u8]>) -> Result<Vec<Vec<u8>>> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let number = self.steps + 1;
        let (step, bytes) = (step(number), mine.map_or(0, <[u8]>::len));
        if bytes > MAX_CONTRIBUTION {
            return Err(Error::TooLarge { pe: self.me.rank, step, bytes, limit: MAX_CONTRIBUTION });
        }
        self.steps = number;
        let result = match mine {
            Some(mine) => self.exchange(step, number, mine),
            None => self.fence(step, false).map(|()| Vec::new()),
        };
        self.broken = result.as_ref().err().cloned();
        result
    }
}

/// State that a waiting fence shares with the callback that ends it.
struct Done {
    infos: [Info; 2],
    status: Mutex<Option<Status>>,
    changed: Condvar,
}

// SAFETY: the raw pointers in the infos are unset: they hold a flag and a number.
unsafe impl Send for Done {}
// SAFETY: as above; nothing writes the infos.
unsafe impl Sync for Done {}

/// Runs on PMIx's thread.
unsafe extern "C" fn fence_done(status: Status, context: *mut c_void) {
    // SAFETY: the context is the reference that `fence` handed over, and PMIx calls back once.
    let done = unsafe { Arc::from_raw(context.cast::<Done>().cast_const()) };
    *done.status.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
    done.changed.notify_all();
}

impl Bootstrap for Member {
    fn pe(&self) -> Pe {
        self.me.rank
    }

    fn n_pes(&self) -> u32 {
        self.n_pes
    }

    fn allgather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.run(Step::Allgather, Some(mine))
    }

    fn barrier(&mut self) -> Result<()> {
        self.run(Step::Barrier, None).map(drop)
    }

    fn set_interrupt(&mut self, go_on: GoOn) {
        self.go_on = Some(go_on);
    }

    fn abort(&mut self, code: i32, why: &str) {
        let text = CString::new(why.replace('\0', " ")).unwrap_or_default();
        // SAFETY: a terminated string; no processes means all of the job.
        unsafe { (self.pmix.abort)(code, text.as_ptr(), std::ptr::null_mut(), 0) };
        let pe = self.me.rank;
        self.broken = Some(Error::Aborted { pe, peer: pe, code, why: why.to_owned() });
    }

    fn describe(&self) -> String {
        let namespace: Vec<u8> = self.me.namespace.iter().map(|byte| byte.cast_unsigned()).collect();
        let namespace = String::from_utf8_lossy(&namespace);
        let namespace = namespace.trim_end_matches('\0');
        format!("pmix: PE {} of {} in {namespace}, {}", self.me.rank, self.n_pes, self.pmix.version())
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // SAFETY: balances the init of `open`; PMIx counts them, so an MPI in this process keeps its own.
        unsafe { (self.pmix.finalize)(std::ptr::null(), 0) };
    }
}
