//! One PE of a job for Python: the runtime, the symmetric blocks, and whether the PE has left.
//!
//! Arrays refer to the job, so that its memory stays mapped until the last of them is gone: this process can still read
//! and write an array that outlives `finalize`, but peers cannot access it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pyo3::prelude::*;
use symrail::bootstrap::{self, uid};
use symrail::kernels::cuda::Gpu;
use symrail::{Pe, Runtime, Settings};
use symrail_core::lock;
use symrail_transport::env::HeapKind;

use crate::blocks::Blocks;
use crate::device_array::DeviceArray;
use crate::errors::{Kind, failed, raise, raise_of};
use crate::gpu::{DeviceTeam, HeldGpu};
use crate::interrupt;
use crate::objects::{Free, Objects};
use crate::stream;
use crate::under_way::UnderWay;
use crate::view::View;

/// A PE of a job.
pub struct Job {
    // Dropped first: what PEs have dropped goes before the GPU.
    pub objects: Objects,
    gpu: Option<HeldGpu>,
    runtime: Runtime,
    left: AtomicBool,
    pub blocks: Blocks,
    pub under_way: UnderWay,
}

/// The jobs that this process is in, in the order of joining, for the handler at the process's end.
static JOINED: Mutex<Vec<Arc<Job>>> = Mutex::new(Vec::new());

/// How a PE joins.
pub struct Joining {
    /// The id, this PE, the number of PEs; by default from the environment.
    pub uid: Option<(Vec<u8>, Pe, u32)>,
    /// Bytes of each PE's heap; by default from the environment.
    pub heap_bytes: Option<usize>,
    /// The kind of the heap's memory; by default from the environment.
    pub heap: Option<HeapKind>,
    /// The GPU for a heap in GPU memory or pinned for a GPU; by default the current one.
    pub device: Option<i32>,
    /// The number of this PE among those of its host, which chooses the GPU if none is current.
    pub local_rank: Option<i32>,
    /// Folders in which NVRTC may be.
    pub nvrtc: Vec<PathBuf>,
}

impl Job {
    /// Joins. Collective.
    pub fn join(joining: Joining) -> symrail::Result<Arc<Job>> {
        Job::join_with(Settings::from_env()?, joining)
    }

    fn join_with(mut settings: Settings, joining: Joining) -> symrail::Result<Arc<Job>> {
        let mut bootstrap = match joining.uid {
            Some((id, pe, n_pes)) => {
                let id = uid::UniqueId::from_bytes(&id)?;
                Box::new(uid::open_within(id, pe, n_pes, Duration::from_secs(settings.timeout_s))?)
            }
            None => bootstrap::open_until(&settings, Some(Arc::new(interrupt::go_on)))?,
        };
        // The runtime's own memory is added to the requested size.
        settings.heap_kind = joining.heap.unwrap_or(settings.heap_kind);
        let for_gpu = matches!(settings.heap_kind, HeapKind::Device | HeapKind::Pinned);
        let n_pes = bootstrap.n_pes();
        let scratch = if for_gpu { Runtime::gpu_scratch_bytes(n_pes) } else { 0 };
        let own = (Runtime::own_bytes(n_pes) + scratch).next_multiple_of(2 << 20);
        settings.heap_size = joining.heap_bytes.unwrap_or(settings.heap_size);
        settings.add_to_heap(own);
        bootstrap.set_interrupt(Arc::new(interrupt::go_on));
        let nearby = joining.local_rank.filter(|_| for_gpu && Gpu::current().is_none());
        let device = joining.device.or(nearby.map(|rank| rank % Gpu::count().max(1)));
        // It is current from now on, and the runtime uses the current GPU.
        let _current = device.map(Gpu::open).transpose()?;
        let runtime = Runtime::join(settings, bootstrap)?;
        runtime.set_interrupt(interrupt::go_on);
        let gpu = runtime.gpu().map(|gpu| HeldGpu::new(&runtime, gpu, &joining.nvrtc)).transpose()?;
        let job = Arc::new(Job {
            objects: Objects::default(),
            gpu,
            runtime,
            left: AtomicBool::new(false),
            blocks: Blocks::default(),
            under_way: UnderWay::default(),
        });
        lock(&JOINED).push(Arc::clone(&job));
        Ok(job)
    }

    /// Joins a job of some processes beside their jobs, or of processes without one, on the GPU of `beside`. Collective
    /// over these processes.
    pub fn join_group(joining: Joining, beside: Option<&Job>) -> symrail::Result<Arc<Job>> {
        let mut settings = Settings::from_env()?;
        // Several jobs of a process would write the same file.
        settings.trace = None;
        Job::join_with(settings, Joining { device: beside.and_then(|job| job.gpu()).map(HeldGpu::ordinal), ..joining })
    }

    /// The bytes and the kind of the heap that this process wants for a job of a group: those of `beside`, or of the
    /// environment, and at least so many bytes. Local.
    pub fn heap_of_group(bytes: usize, beside: Option<&Job>) -> symrail::Result<(usize, HeapKind)> {
        let settings = match beside {
            Some(job) => job.runtime.settings(),
            None => &Settings::from_env()?,
        };
        Ok((bytes.max(settings.heap_size), settings.heap_kind))
    }

    /// The runtime, whether the PE has left or not.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// The runtime, for operations.
    #[inline]
    pub fn running(&self) -> PyResult<&Runtime> {
        if self.left.load(Ordering::Relaxed) { Err(self.has_left()) } else { Ok(&self.runtime) }
    }

    #[cold]
    fn has_left(&self) -> PyErr {
        raise_of(Kind::State, "this PE has left the job (finalize); init() joins again", self.runtime.my_pe())
    }

    /// The GPU that the heap is in or pinned for.
    pub fn gpu(&self) -> Option<&HeldGpu> {
        self.gpu.as_ref()
    }

    /// As above, for operations on streams.
    pub fn streams(&self) -> PyResult<&HeldGpu> {
        self.gpu().ok_or_else(|| {
            let remedy = "init(heap=\"device\") or init(heap=\"pinned\"), or SYMRAIL_HEAP_KIND";
            raise(Kind::Unsupported, &format!("operations on streams need a heap that a GPU reaches: {remedy}"))
        })
    }

    /// A barrier of a team's PEs, or of all, with or without a quiet before it; a stream waits in it, or without a
    /// stream the host does.
    pub fn barrier(
        &self,
        py: Python<'_>,
        team: Option<&DeviceTeam>,
        quiet: bool,
        stream: Option<&Bound<'_, PyAny>>,
        on_host: impl FnOnce() -> PyResult<()>,
    ) -> PyResult<()> {
        match stream.map(stream::handle).transpose()? {
            Some(stream) => py.detach(|| self.streams()?.barrier(team, quiet, stream)),
            None => on_host(),
        }
    }

    /// Returns the failures of streams and kernels since the last call.
    pub fn check(&self) -> PyResult<()> {
        self.gpu().map_or(Ok(()), HeldGpu::check)
    }

    /// The GPU whose memory an address of the heap is in; negative for memory that only tests use, `None` for host
    /// memory.
    pub fn gpu_of(&self, address: usize) -> Option<i32> {
        let is_staged = self.runtime.is_staged(std::ptr::with_exposed_provenance(address));
        is_staged.then(|| self.gpu().map_or(-1, HeldGpu::ordinal))
    }

    /// The memory of an array, on the host or a GPU.
    pub fn any_view(&self, array: &Bound<'_, PyAny>, role: &str) -> PyResult<View> {
        let view = match array.cast::<DeviceArray>() {
            Ok(array) => View::of_layout(array.get().layout(), Some(array.get().gpu())),
            Err(_) => View::of(array, role)?,
        };
        if self.blocks.is_freed(view.bounds().address()) {
            return Err(raise(Kind::Freed, &format!("{role} was given to free(); allocate another array")));
        }
        Ok(view)
    }

    /// The memory of an array that host threads can access, or the engine for them.
    pub fn view(&self, array: &Bound<'_, PyAny>, role: &str) -> PyResult<View> {
        let view = self.any_view(array, role)?;
        self.on_host(&view, role)?;
        Ok(view)
    }

    /// Refuses memory of a GPU that neither host threads nor the engine can access.
    pub fn on_host(&self, view: &View, role: &str) -> PyResult<()> {
        if view.gpu.is_none() || self.gpu_of(view.bounds().address()).is_some() {
            return Ok(());
        }
        let remedy = "copy it to the host, or to an array of symrail.array";
        Err(raise(Kind::Argument, &format!("{role} is a GPU's memory outside of the heap: {remedy}")))
    }

    /// Checks a PE's number.
    #[inline]
    pub fn pe(&self, pe: i64) -> PyResult<Pe> {
        let n_pes = self.runtime.n_pes();
        match u32::try_from(pe).ok().filter(|&pe| pe < n_pes) {
            Some(pe) => Ok(pe),
            None => Err(failed(symrail_core::Error::NoSuchPe { pe, last: n_pes - 1 })),
        }
    }

    /// Whether the PE has left.
    pub fn is_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }

    /// Leaves: waits for operations in flight and for all other PEs. Later calls do nothing, and neither do those of a
    /// forked child. Collective.
    pub fn leave(&self) -> symrail::Result<()> {
        if self.runtime.is_forked() || self.left.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        lock(&JOINED).retain(|job| !std::ptr::eq(&raw const **job, self));
        self.objects.forget();
        self.runtime.leave()
    }

    /// This PE drops an object: `free` frees its memory when all PEs have. After the job its memory ends anyway. Local.
    pub fn drop_object(&self, number: u64, free: Free) {
        if !self.is_left() {
            self.objects.drop_later(number, free);
        }
    }

    /// Removes this PE from the job without the others.
    pub fn abort(&self, code: i32, why: &str) {
        self.runtime.abort(code, why);
    }
}

unsafe extern "C" {
    /// A module of Python stays loaded, as the function's code must.
    safe fn on_exit(function: extern "C" fn(i32, *mut std::ffi::c_void), arg: *mut std::ffi::c_void) -> i32;
}

/// Finalises a program that exits with success without `finalize`. A program that exits with an error must not wait for
/// the others: they learn that it has left.
extern "C" fn at_exit(status: i32, _: *mut std::ffi::c_void) {
    if status != 0 {
        return;
    }
    // Processes leave jobs that they share in the order in which they have joined them, so that none waits for another
    // one that waits for it.
    let jobs = lock(&JOINED).clone();
    for job in jobs {
        if let Err(error) = job.leave() {
            eprintln!("symrail: at the end of the program: {error}");
        }
    }
}

/// Registers [`at_exit`]. Called once.
pub fn watch_exit() -> PyResult<()> {
    match on_exit(at_exit, std::ptr::null_mut()) {
        0 => Ok(()),
        _ => Err(raise(Kind::Other, "the system has no room to note what is to be done at exit")),
    }
}
