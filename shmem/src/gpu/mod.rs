//! A GPU as this PE's device, and the state of the PE for its kernels.
//!
//! | file | concept |
//! |---|---|
//! | `shared` | a heap in GPU memory, which the GPUs of this host map |
//! | `pinned` | a heap in host memory, which GPUs access over PCIe |
//! | `scratch` | memory for teams' collectives on streams |
//! | `reach` | which PEs' kernels access one another's heaps, as all PEs agree |
//! | [`heap_kind`] | the kind of memory that suits a heap for GPUs' data |
//!
//! The path of a kernel's operation depends on the kind of heap (`SYMRAIL_HEAP_KIND`):
//!
//! | heap | peers on this host | others |
//! |---|---|---|
//! | `host`, `pinned` | loads and stores over PCIe; atomics and signal additions through the proxy | the proxy |
//! | `device`, every PE maps every other | loads, stores and atomics over NVLink or PCIe | there are none |
//! | `device`, otherwise | loads and stores; atomics and signal additions through the proxy | the proxy, [staged](symrail_proxy::stage) |
//!
//! For large puts and gets to peers whose memory the GPU has mapped, the proxy may start a copy engine
//! (`SYMRAIL_DEVICE_COPY`): it takes more time to begin and is several times as fast as one block, and leaves
//! multiprocessors to other work. The proxy thread then polls the channels.
//!
//! All AMOs of a job take the same path; otherwise they would not be atomic with one another.

pub mod heap_kind;
pub(crate) mod pinned;
pub(crate) mod reach;
mod scratch;
pub(crate) mod shared;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub use scratch::Scratch;
use symrail_heap::cuda::{DevicePtr, Gpu};
use symrail_kernels::barrier_words::WORDS;
use symrail_kernels::cuda::compile::Nvrtc;
use symrail_kernels::cuda::{
    Compiled, DeviceParts, DeviceState, DeviceTeam, HeapView, Module, OnStream, Program, compiled,
};
use symrail_proxy::Watch;
use symrail_transport::Pe;
use symrail_transport::env::{DeviceCopy, Settings};

use pinned::Pinned;
use shared::Shared;
pub use shared::gpu_of;

use crate::barrier_plan::Plan;
use crate::error::{Error, Result};
use crate::runtime::Runtime;
use crate::staged::STAGED_OFFSET;
use crate::team::hosts::Hosts;
use crate::team::{MAX_TEAMS, Team};
use crate::wire::Wire;

/// Bytes of a team's barrier words. The team of all PEs has the first ones; other teams follow in the order of their
/// areas.
const BARRIER_BYTES: usize = WORDS as usize * 8;

/// A GPU as a PE's device, made by [`Runtime::gpu_device`]: a handle, whose clones are of the same device. While it
/// exists, the proxy thread polls the channels all the time, because a GPU cannot wake it.
#[derive(Clone)]
pub struct GpuDevice(Arc<Device>);

struct Device {
    gpu: Arc<Gpu>,
    state: DeviceState,
    /// The start of this PE's heap, for the host and for the GPU.
    base: (usize, DevicePtr),
    barrier: *mut u8,
    _watches: Vec<Watch>,
    // Dropped last: the state points into them.
    _registered: Option<Pinned>,
    runtime: Runtime,
}

// SAFETY: the address is that of symmetric memory, which any thread may use.
unsafe impl Send for Device {}
// SAFETY: as above; the state's record of errors is read and written word by word.
unsafe impl Sync for Device {}

impl Runtime {
    /// Makes a GPU this PE's device: the GPU that the heap is in or pinned for ([`Runtime::gpu`]), or, with a heap in
    /// host memory, any GPU; that one can access the part of the heap that is committed now. One at a time. Collective.
    ///
    /// # Errors
    /// The heap is in another GPU's memory or in memory that no GPU can access, the heap has no space for the barrier's
    /// words, or the driver reports an error.
    pub fn gpu_device(&self, gpu: &Arc<Gpu>) -> Result<GpuDevice> {
        let barrier = self.allocator().calloc(1 + MAX_TEAMS as usize, BARRIER_BYTES)?;
        self.allocator().keep(barrier)?;
        let mut registered = None;
        // False with a heap in host memory.
        let direct = self.devices().atomics;
        let (job, space) = (&self.comm().job, &self.comm().space);
        let (view, base) = match (&space.staged, &space.pinned) {
            (Some(staged), _) => {
                let Some(shared) = staged.shared() else { return Err(unreachable_heap("memory for tests")) };
                if shared.gpu().ordinal() != gpu.ordinal() {
                    return Err(unreachable_heap("another GPU's memory"));
                }
                let (base, bytes) = (shared.heap().base(), staged.len as u64);
                let (offset, peers) = (STAGED_OFFSET, shared.bases());
                let view = HeapView { base, bytes, offset, atomics: direct, in_gpus: true, peers };
                (view, staged.base)
            }
            (None, pinned) => {
                let committed = space.committed.load(Ordering::Relaxed);
                let pinned = match pinned {
                    Some(pinned) => pinned,
                    None => &*registered.insert(Pinned::new(gpu, &space.bases.to_vec(), committed)?),
                };
                let peers = pinned.addresses().to_vec();
                let base = peers.get(job.me as usize).copied().unwrap_or_default();
                let bytes = committed as u64;
                (HeapView { base, bytes, offset: 0, atomics: false, in_gpus: false, peers }, space.base)
            }
        };
        let base = (base, view.base);
        let everybody = job.everybody();
        let shared = space.staged.as_ref().and_then(|staged| staged.shared());
        let engine_from = engine_from(&job.settings, view.in_gpus);
        // If kernels do everything themselves, nothing arrives through channels.
        let watched = !direct || engine_from.is_some();
        let parts = DeviceParts {
            me: job.me,
            n_pes: job.n_pes,
            channels: if watched { self.producers().to_vec() } else { Vec::new() },
            barrier_words: device_address(base, barrier),
            steps: Plan::new(everybody, &Hosts::new(everybody, &self.devices().hosts)).steps().to_vec(),
            // If kernels access one another's heaps themselves, proxies deliver nothing.
            mailbox: shared.filter(|_| !direct).map(|shared| Arc::clone(shared.mailbox())),
            heaps: vec![view],
            timeout: Duration::from_secs(job.settings.timeout_s),
            engine_from,
        };
        // SAFETY: heaps and their mappings live as long as the runtime, registrations as long as the device, which
        // keeps it alive.
        let state = unsafe { DeviceState::new(gpu, parts) }
            .map_err(|error| Error::System { what: "making a GPU this PE's device", reason: error.to_string() })?;
        let drivers = self.comm().wire.as_ref().ok().filter(|_| watched).map_or(&[][..], Wire::drivers);
        let watches = drivers.iter().map(|driver| driver.watch()).collect();
        let gpu = Arc::clone(gpu);
        let runtime = self.clone();
        let device = Device { gpu, state, base, barrier, _watches: watches, _registered: registered, runtime };
        Ok(GpuDevice(Arc::new(device)))
    }

    /// The GPU for this PE: that of its heap ([`Runtime::gpu`]), or the one current on this thread, or the one with the
    /// PE's number.
    ///
    /// # Errors
    /// There is none, or the driver reports an error.
    pub fn own_gpu(&self) -> Result<Arc<Gpu>> {
        self.gpu().map_or_else(|| gpu_of(self.my_pe()), |gpu| Ok(Arc::clone(gpu)))
    }

    /// The number of PEs of this host whose heaps are in the memory of this PE's GPU, this one included.
    #[must_use]
    pub fn gpu_sharers(&self) -> u32 {
        self.comm().space.staged.as_ref().map_or(1, |staged| staged.sharers)
    }

    /// The GPU that the symmetric heap is in or pinned for, if there is one.
    #[must_use]
    pub fn gpu(&self) -> Option<&Arc<Gpu>> {
        let space = &self.comm().space;
        let shared = space.staged.as_ref().and_then(|staged| staged.shared());
        shared.map(Shared::gpu).or(space.pinned.as_ref().map(Pinned::gpu))
    }
}

/// The size in bytes from which a copy engine performs kernels' copies to and from peers whose heaps the GPU has
/// mapped; `None`: never.
fn engine_from(settings: &Settings, in_gpus: bool) -> Option<u64> {
    (settings.device_copy == DeviceCopy::Engine && in_gpus).then_some(settings.device_copy_threshold as u64)
}

fn unreachable_heap(by: &str) -> Error {
    let what = "a heap that this GPU's kernels cannot reach".into();
    let remedy = "set SYMRAIL_HEAP_KIND=device and make this GPU current before joining, or use a heap in host memory";
    symrail_transport::Error::Unsupported { what, by: by.into(), remedy: remedy.into() }.into()
}

fn device_address((host, device): (usize, DevicePtr), ptr: *const u8) -> DevicePtr {
    device + ptr.addr().wrapping_sub(host) as u64
}

impl GpuDevice {
    /// The GPU.
    #[must_use]
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.0.gpu
    }

    /// The runtime that it belongs to.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.0.runtime
    }

    /// The kernels' state: to be attached to programs, and queried for errors.
    #[must_use]
    pub fn state(&self) -> &DeviceState {
        &self.0.state
    }

    /// Passes the PE's state to a program's kernels.
    ///
    /// # Errors
    /// The program does not include the device API, or another version of it.
    pub fn attach(&self, module: &Module) -> symrail_kernels::cuda::Result<()> {
        self.state().attach(module)
    }

    /// Compiles a program for the GPU, unless this process has done so before, or the folder `SYMRAIL_CACHE_DIR` has
    /// its code.
    ///
    /// # Errors
    /// The compiler's messages.
    pub fn compile(&self, nvrtc: &Nvrtc, program: &Program<'_>) -> symrail_kernels::cuda::Result<Arc<Compiled>> {
        compiled(nvrtc, program, &self.gpu().arch(), self.runtime().settings().cache_dir.as_deref())
    }

    /// [Compiles](GpuDevice::compile) a program for the GPU, loads it, and passes the PE's state to its kernels.
    ///
    /// # Errors
    /// The compiler's or the driver's; those of [`GpuDevice::attach`].
    pub fn load(&self, nvrtc: &Nvrtc, program: &Program<'_>) -> symrail_kernels::cuda::Result<Arc<Module>> {
        let module = Module::load(self.gpu(), &*self.compile(nvrtc, program)?)?;
        self.attach(&module)?;
        Ok(module)
    }

    /// Compiles and loads the kernels for operations in the order of a stream.
    ///
    /// # Errors
    /// The compiler's or the driver's error.
    pub fn on_stream(&self, nvrtc: &Nvrtc) -> symrail_kernels::cuda::Result<OnStream> {
        OnStream::new(self.gpu(), &*self.compile(nvrtc, &Program::STREAM)?, self.state())
    }

    /// The kernels' address of the symmetric object at `ptr`: the number that they take as an argument.
    #[must_use]
    pub fn address(&self, ptr: *const u8) -> u64 {
        device_address(self.0.base, ptr).get()
    }

    /// A team for kernels, which take its [handle](DeviceTeam::handle) as `symrail_team_t`. Drop it before the team.
    /// Collective over the team.
    ///
    /// # Errors
    /// A peer that does not answer, or an error of the driver.
    pub fn team(&self, team: &Team) -> Result<DeviceTeam> {
        let words =
            device_address(self.0.base, self.0.barrier) + (BARRIER_BYTES * (1 + team.area().slot() as usize)) as u64;
        // An earlier team may have left numbers there; no PE writes before all have returned from the call below.
        // SAFETY: the team's words of the block that this device has for barriers.
        unsafe { self.gpu().fill(words, 0, BARRIER_BYTES) }?;
        let group = team.group();
        let stride = i64::from(group.pe(1.min(group.size() - 1))) - i64::from(group.pe(0));
        let start = group.pe(0);
        let plan = Plan::new(group, &Hosts::new(group, &self.runtime().devices().hosts));
        let made = DeviceTeam::new(self.gpu(), group.me(), group.size(), start, stride as i32, words, plan.steps());
        team.sync()?;
        made.map_err(|error| Error::System { what: "making a team for kernels", reason: error.to_string() })
    }

    /// Whether kernels access `pe`'s heap by loads and stores.
    #[must_use]
    pub fn is_mapped(&self, pe: Pe) -> bool {
        self.state().reach().has(pe)
    }

    /// Whether kernels access all heaps themselves, with AMOs too: they need no proxy, except for copies by copy
    /// engines, which it starts.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.runtime().devices().atomics
    }

    /// Frees the barrier's words. Kernels have ended, on all PEs. Collective.
    ///
    /// # Errors
    /// [`Error::InUse`] on all PEs if another handle of the device exists on any of them, such as that of kernels or of
    /// a plan: then the words stay. As for [`Runtime::free`].
    pub fn close(self) -> Result<()> {
        let (runtime, barrier, handles) = (self.runtime().clone(), self.0.barrier, Arc::strong_count(&self.0) - 1);
        if runtime.everybody().any("the end of a device", handles > 0)? {
            return Err(Error::InUse { pe: runtime.my_pe(), what: "a GPU as the PE's device", handles });
        }
        drop(self);
        runtime.allocator().free_kept(barrier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_engines_are_taken_where_somebody_asks_and_the_heap_is_in_gpus() {
        let mut settings = Settings::default();
        settings.device_copy_threshold = 4096;
        for (choice, in_gpus, expected) in [
            (DeviceCopy::Engine, true, Some(4096)),
            (DeviceCopy::Engine, false, None),
            (DeviceCopy::Kernel, true, None),
        ] {
            settings.device_copy = choice;
            assert_eq!(engine_from(&settings, in_gpus), expected, "{choice} {in_gpus}");
        }
    }
}
