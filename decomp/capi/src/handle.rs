//! Handles, and what all ranks of one do together.
//!
//! Before a call of all ranks moves or allocates anything, the ranks tell one another which call it is, with what, and
//! whether its arguments are right. So an error is that of the call which was wrong, on all ranks, and of no later one.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Mutex;

use symrail::{Team, with_timeout};
use symrail_core::lock;
use symrail_core::registry::Registry;
use symrail_decomp::workspace::Sharing;

use crate::grid::GridDesc;
use crate::guard::{Failure, guarded};
use crate::job::Job;
use crate::workspaces::Workspaces;

/// `cudecompHandle_t` and `cudecompGridDesc_t`: numbers in place of addresses.
pub type Opaque = *mut c_void;

static HANDLES: Registry<Mutex<Option<Handle>>> = Registry::new();

/// A handle's state.
pub struct Handle {
    pub descs: BTreeMap<usize, GridDesc>,
    pub workspaces: Workspaces,
    /// Lets all descriptors use the handle's workspaces.
    pub sharing: Sharing,
    team: Team,
    /// The number of descriptors that were made.
    made: u64,
    /// Why calls of all ranks are not possible any more: ranks lost their common order.
    lost: Option<Failure>,
    pub job: Job,
}

/// A call of all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Create,
    Destroy,
    Malloc,
    Free,
    Transpose,
    Halos,
}

impl Call {
    const ALL: [(Call, &'static str); 6] = [
        (Call::Create, "cudecompGridDescCreate"),
        (Call::Destroy, "cudecompGridDescDestroy"),
        (Call::Malloc, "cudecompMalloc"),
        (Call::Free, "cudecompFree"),
        (Call::Transpose, "a transpose"),
        (Call::Halos, "an update of halos"),
    ];

    fn name(number: u64) -> &'static str {
        Call::ALL.get(number as usize).map_or("another call", |(_, name)| name)
    }
}

/// A number for what must be the same on all ranks.
pub fn key_of(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

impl Handle {
    pub fn new(job: Job) -> Result<Handle, Failure> {
        let (descs, workspaces, sharing) = (BTreeMap::new(), Workspaces::default(), Sharing::default());
        let team = job.team()?;
        Ok(Handle { descs, workspaces, sharing, team, made: 0, lost: None, job })
    }

    /// Keeps the handle. Returns its number.
    pub fn keep(self) -> Opaque {
        std::ptr::without_provenance_mut(HANDLES.add(Mutex::new(Some(self))))
    }

    /// The descriptor with this number, as far as it is one of this handle.
    pub fn desc(&mut self, desc: Opaque) -> Result<&mut GridDesc, Failure> {
        self.descs.get_mut(&desc.addr()).ok_or_else(|| no_such("grid descriptor of this handle", desc))
    }

    /// The number of the next descriptor, the same on all ranks.
    pub fn next(&mut self) -> u64 {
        self.made += 1;
        self.made
    }

    /// Tells the other ranks which call this is: of descriptor number `desc`, with what `key` stands for, and whether
    /// this rank's arguments are right. Returns these arguments if all ranks' are. Collective.
    pub fn agree<T>(&mut self, call: Call, desc: u64, key: u64, arguments: Result<T, Failure>) -> Result<T, Failure> {
        if let Some(lost) = &self.lost {
            return arguments.and_then(|_| Err(lost.clone()));
        }
        let code = arguments.as_ref().map_or_else(|failure| failure.code, |_| 0);
        let mine = [call as u64, desc, key, code as u64];
        let all = match with_timeout(self.job.limit(1), || self.team.gather(&mine)) {
            Ok(all) => all,
            Err(error) => {
                let why = format!("{}: {error}; end this handle and make another one", Call::name(call as u64));
                self.lost = Some(Failure::runtime(why.clone()));
                return arguments.and(Err(Failure::runtime(why)));
            }
        };
        let arguments = arguments?;
        let all: Vec<&[u64]> = all.chunks(mine.len()).collect();
        let name = Call::name(call as u64);
        let other =
            |wrong: &dyn Fn(&[u64]) -> bool| all.iter().position(|one| wrong(one)).map(|rank| (rank, all[rank]));
        if let Some((rank, one)) = other(&|one| one[0] != mine[0]) {
            let why = format!("{name}: rank {rank} has called {}: all ranks make the same calls", Call::name(one[0]));
            return Err(Failure::usage(why));
        }
        if let Some((rank, one)) = other(&|one| one[3] != 0) {
            let why = format!("{name}: nothing was done, since rank {rank} was given something wrong: see its error");
            return Err(Failure::new(one[3] as c_int, why));
        }
        if let Some((rank, _)) = other(&|one| one[1] != desc) {
            return Err(Failure::usage(format!("{name}: rank {rank} has passed another grid descriptor")));
        }
        if let Some((rank, _)) = other(&|one| one[2] != key) {
            return Err(Failure::usage(format!("{name}: rank {rank} has passed other arguments than this one")));
        }
        Ok(arguments)
    }

    /// Whether calls of all ranks are not possible any more.
    pub fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Compares named parameters of all ranks. Collective.
    pub fn compare(&self, call: &'static str, parameters: &[(&'static str, u64)]) -> Result<(), Failure> {
        Ok(with_timeout(self.job.limit(1), || self.team.compare(call, parameters))?)
    }

    /// Leaves the job. Whatever is left is freed, whatever its state.
    fn end(self) -> Result<(), Failure> {
        let Handle { descs, workspaces, sharing, job, lost, team, .. } = self;
        job.settle();
        drop((descs, workspaces, sharing, team));
        // The others would not notice that this rank leaves.
        if lost.is_some() { Ok(()) } else { job.leave() }
    }
}

/// Calls `body` with a handle's state.
pub fn with_handle(handle: Opaque, body: impl FnOnce(&mut Handle) -> Result<(), Failure>) -> c_int {
    guarded(|| {
        let none = || no_such("handle", handle);
        let handle = HANDLES.find(handle.addr()).ok_or_else(none)?;
        body(lock(&handle).as_mut().ok_or_else(none)?)
    })
}

/// Calls `body` with a descriptor of the handle. Not collective.
pub fn with_desc(handle: Opaque, desc: Opaque, body: impl FnOnce(&mut GridDesc) -> Result<(), Failure>) -> c_int {
    with_handle(handle, |handle| body(handle.desc(desc)?))
}

fn no_such(what: &str, number: Opaque) -> Failure {
    Failure::usage(format!("{number:?} is no {what}, or none any more"))
}

#[unsafe(no_mangle)]
extern "C" fn cudecompFinalize(handle: Opaque) -> c_int {
    guarded(|| {
        let kept = HANDLES.take(handle.addr()).ok_or_else(|| no_such("handle", handle))?;
        // Not there any more if another thread has ended it meanwhile.
        let state = lock(&kept).take();
        state.map_or(Ok(()), Handle::end)
    })
}
