//! The class `Runtime`: one PE of a job.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use symrail::Pe;
use symrail_transport::env::HeapKind;

use crate::blocks::{Differs, Refused, Request};
use crate::deferred_free::is_capturing;
use crate::device_array::DeviceArray;
use crate::errors::{Kind, failed, is_of_arguments, json, raise, raise_of, raise_of_all};
use crate::gpu::{HeldGpu, Signal};
use crate::held::HeldTeam;
use crate::interrupt::waiting;
use crate::job::{Job, Joining};
use crate::memory::{Kept, Memory};
use crate::raw;
use crate::required::{Required, Unmet};
use crate::rma;
use crate::sides::Sides;
use crate::stream;
use crate::team::Team;
use crate::torch;
use crate::view::Span;
use crate::words::{self, Amo};

/// One PE of a job. `symrail.init` makes it.
///
/// Destinations of puts and sources of gets are symmetric arrays (`symrail.array`), or parts of them; the other side is
/// any array. Both have the same dtype and shape; a source may also be a number, or what NumPy broadcasts to the
/// destination. PEs are numbered from 0.
#[pyclass(frozen, module = "symrail")]
pub struct Runtime {
    job: Arc<Job>,
    world: Arc<HeldTeam>,
}

/// The stream that an argument names, if there is one.
fn stream_of(stream: Option<&Bound<'_, PyAny>>) -> PyResult<Option<usize>> {
    stream.map(stream::handle).transpose()
}

/// A copy between this PE's memory and another one's.
#[derive(Clone, Copy)]
enum Transfer {
    /// With or without a signal behind it.
    Put(Option<Signal>),
    StartPut,
    Get,
    StartGet,
}

impl Runtime {
    /// A word, and a chain: the word of this PE that says that it has ended, and the PE.
    fn chain(
        &self,
        words: &Bound<'_, PyAny>,
        offset: usize,
        ended: usize,
        remote_pe: i64,
    ) -> PyResult<(Span, (Span, Pe))> {
        self.job.running()?;
        let word = words::signal_word(&self.job, words, offset)?;
        Ok((word, (words::signal_word(&self.job, words, ended)?, self.job.pe(remote_pe)?)))
    }

    /// The PE's job.
    pub fn job(&self) -> &Arc<Job> {
        &self.job
    }

    /// Before all PEs make an object with memory on each: frees what all have dropped. An error on all of them if they
    /// make different objects, or if one captures a graph. Collective.
    pub fn free_deferred(&self, py: Python<'_>, timeout: Option<f64>, object: &str) -> PyResult<()> {
        self.agree(py, timeout, object, true)
    }

    fn agree(&self, py: Python<'_>, timeout: Option<f64>, text: &str, makes: bool) -> PyResult<()> {
        let rt = self.job.running()?;
        let request = Request { text: text.into(), makes, captures: is_capturing(py)? };
        let (world, objects) = (&**self.world, &self.job.objects);
        waiting(py, timeout, || self.job.blocks.agree(rt, world, objects, &request))?
            .map_err(|why| refused(if makes { "asks for" } else { "calls" }, why))
    }

    /// Performs a copy: on the stream, or by this thread.
    fn copy(&self, py: Python<'_>, transfer: Transfer, sides: &Sides<'_>, pe: Pe) -> PyResult<()> {
        let (rt, Sides { to, from, other, stream }) = (self.job.runtime(), sides);
        if let Some(order) = stream {
            return order.start(py, &self.job, |gpu, stream| match transfer {
                Transfer::Put(signal) => gpu.put(to, from, signal, pe, stream),
                Transfer::StartPut => gpu.put(to, from, None, pe, stream),
                Transfer::Get | Transfer::StartGet => gpu.get(to, from, pe, stream),
            });
        }
        let copy = || match transfer {
            Transfer::Put(None) => rma::put(rt, to, from, pe),
            Transfer::Put(Some(signal)) => rma::put_signal(rt, to, from, signal, pe),
            Transfer::StartPut => rma::put_nbi(rt, to, from, pe),
            Transfer::Get => rma::get(rt, to, from, pe),
            Transfer::StartGet => rma::get_nbi(rt, to, from, pe),
        };
        if rma::is_short(rt, to, from, pe) {
            return copy().map_err(failed);
        }
        kept(other, waiting(py, None, copy))
    }

    /// As above, for a copy that a quiet completes; its array is kept until then.
    fn start(&self, py: Python<'_>, transfer: Transfer, sides: &Sides<'_>, pe: Pe) -> PyResult<()> {
        self.copy(py, transfer, sides, pe)?;
        if sides.stream.is_none() && !self.job.runtime().is_mapped(pe) {
            self.job.under_way.keep(&sides.other);
        }
        Ok(())
    }
}

#[pymethods]
impl Runtime {
    /// Joins a job: by a unique id as one PE of several, or by the environment. `require` names requirements on all
    /// PEs' paths. Collective.
    #[staticmethod]
    #[allow(clippy::too_many_arguments)] // those of `init`
    fn join(
        py: Python<'_>,
        uid: Option<Vec<u8>>,
        pe: Pe,
        n_pes: u32,
        heap_bytes: Option<usize>,
        require: Vec<String>,
        heap: Option<&Bound<'_, PyAny>>,
        device: Option<i32>,
        local_rank: Option<i32>,
        nvrtc: Vec<PathBuf>,
    ) -> PyResult<Runtime> {
        let heap = heap.map(words::heap_kind).transpose()?;
        let uid = uid.map(|uid| (uid, pe, n_pes));
        let joining = Joining { uid, heap_bytes, heap, device, local_rank, nvrtc };
        let required = Required::parse(require)?;
        let (job, world, unmet) = waiting(py, None, || {
            let job = Job::join(joining)?;
            let world = HeldTeam::world(Arc::clone(&job))?;
            let unmet = required.unmet(job.runtime(), &world)?;
            if unmet.is_some() {
                job.leave()?;
            }
            Ok((job, world, unmet))
        })?;
        match unmet {
            None => Ok(Runtime { job, world: Arc::new(world) }),
            Some(Unmet { pes, why }) => Err(raise_of_all(Kind::Requirement, &why, pes)),
        }
    }

    /// Joins a job of a group's processes, by a unique id, this process's rank and their number, with a heap of these
    /// bytes and this kind, on the GPU of this process's job `beside`, if there is one. Collective over the group.
    /// `timeout` is in seconds.
    #[staticmethod]
    #[pyo3(signature = (place, heap, local_rank, nvrtc, beside, *, timeout=None))]
    fn join_group(
        py: Python<'_>,
        place: (Vec<u8>, Pe, u32),
        heap: (usize, Bound<'_, PyAny>),
        local_rank: Option<i32>,
        nvrtc: Vec<PathBuf>,
        beside: Option<&Bound<'_, Runtime>>,
        timeout: Option<f64>,
    ) -> PyResult<Runtime> {
        let (bytes, kind) = heap;
        let (heap_bytes, heap) = (Some(bytes), Some(words::heap_kind(&kind)?));
        let joining = Joining { uid: Some(place), heap_bytes, heap, device: None, local_rank, nvrtc };
        let beside = beside.map(|runtime| Arc::clone(&runtime.get().job));
        let (job, world) = waiting(py, timeout, || {
            let job = Job::join_group(joining, beside.as_deref())?;
            let world = HeldTeam::world(Arc::clone(&job))?;
            Ok::<_, symrail::Error>((job, world))
        })?;
        Ok(Runtime { job, world: Arc::new(world) })
    }

    /// The bytes and the kind of the heap that this process wants for a group's job: those of its job `beside`, or of the
    /// environment, and at least so many bytes. Local.
    #[staticmethod]
    fn heap_of_group(bytes: usize, beside: Option<&Bound<'_, Runtime>>) -> PyResult<(usize, &'static str)> {
        let (bytes, kind) = Job::heap_of_group(bytes, beside.map(|runtime| &*runtime.get().job)).map_err(failed)?;
        Ok((bytes, kind.into()))
    }

    /// This PE's resources, and its paths to the others, as JSON. `symrail.info` shows it. Local.
    fn description(&self) -> PyResult<String> {
        json(&self.job.running()?.description())
    }

    /// Leaves the job: completes the operations that this PE has started and waits for all PEs. This process can still
    /// read and write its arrays. Work on streams must have ended before. Later calls do nothing, and neither do those
    /// of a forked child. Collective. `timeout` is in seconds; this PE has left in any case.
    #[pyo3(signature = (*, timeout=None))]
    fn finalize(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        waiting(py, timeout, || self.job.leave())?;
        self.job.check()
    }

    /// Ends the job: its launcher ends all PEs with this exit code. This process continues. Local.
    #[pyo3(signature = (code=1, why="symrail.abort"))]
    fn abort(&self, code: i32, why: &str) {
        self.job.abort(code, why);
    }

    /// Whether this PE has left.
    #[getter]
    fn finalized(&self) -> bool {
        self.job.is_left()
    }

    /// The number of this PE: 0 to `n_pes() - 1`. Local.
    fn my_pe(&self) -> Pe {
        self.job.runtime().my_pe()
    }

    /// The number of PEs of the job. Local.
    fn n_pes(&self) -> u32 {
        self.job.runtime().n_pes()
    }

    /// The team of all PEs. Local.
    #[getter]
    fn world(&self) -> Team {
        Team::of(Arc::clone(&self.world))
    }

    /// Allocates zeroed bytes on every PE's heap; `text` describes their use, and must be the same on all PEs.
    /// Collective. `timeout` is in seconds; after an exception for it the job has no more collectives.
    #[pyo3(signature = (bytes, text, *, timeout=None))]
    fn allocate(&self, py: Python<'_>, bytes: usize, text: String, timeout: Option<f64>) -> PyResult<Memory> {
        let rt = self.job.running()?;
        let request = Request { text, makes: true, captures: is_capturing(py)? };
        let (world, objects) = (&**self.world, &self.job.objects);
        let (number, address) = waiting(py, timeout, || self.job.blocks.allocate(rt, world, objects, &request, bytes))?
            .map_err(|why| refused("asks for", why))?;
        Ok(Memory::new(Kept::block(Arc::clone(&self.job), number), address, bytes))
    }

    /// Frees the memory of arrays, buffers and other objects that all PEs have dropped, as `array` also does. While a
    /// PE captures a CUDA graph, the memory is freed later. Collective. `timeout` is as for `allocate`.
    #[pyo3(signature = (*, timeout=None))]
    fn reclaim(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.agree(py, timeout, "reclaim", false)
    }

    /// Declares that this PE uses an array no more: operations refuse it from now on. Its memory is freed when its last
    /// view is gone on all PEs, at the next `array` or `reclaim`. Local.
    fn free(&self, array: &Bound<'_, PyAny>) -> PyResult<()> {
        let view = self.job.any_view(array, "array")?;
        match self.job.blocks.free(view.bounds().address()) {
            true => Ok(()),
            false => Err(raise(Kind::Argument, "the array is not symmetric memory of this job")),
        }
    }

    /// The number of symmetric arrays, and of bytes in them. Local.
    fn blocks(&self) -> (usize, usize) {
        self.job.blocks.count()
    }

    /// A peer's copy of a symmetric array's memory, if this process has mapped it: the bytes from the array's first to
    /// its last. Local.
    fn peer_memory(&self, array: &Bound<'_, PyAny>, pe: i64) -> PyResult<Option<Memory>> {
        let rt = self.job.running()?;
        let (pe, view) = (self.job.pe(pe)?, self.job.any_view(array, "array")?);
        let span = view.bounds();
        let here = std::ptr::with_exposed_provenance(span.address());
        if !rt.is_symmetric(here, span.bytes()) {
            return Err(raise(Kind::Argument, "the array is not symmetric memory of this job"));
        }
        let there = rt.peer_ptr(here, pe).expose_provenance();
        let keeps = array.clone().unbind();
        Ok((there != 0).then(|| Memory::new(Kept::of(Arc::clone(&self.job), keeps), there, span.bytes())))
    }

    /// A peer's copy of an array in GPU memory, if this PE's GPU has mapped it. Local.
    fn peer_array(&self, array: &Bound<'_, DeviceArray>, pe: i64) -> PyResult<Option<DeviceArray>> {
        self.job.running()?;
        let (pe, view) = (self.job.pe(pe)?, self.job.view(array, "array")?);
        let first = array.get().layout().address - view.bounds().address();
        let there = self.job.gpu().and_then(|gpu| gpu.of_peer(view.bounds(), pe));
        Ok(there.map(|there| DeviceArray::of_peer(array, there + first)))
    }

    /// Whether this PE accesses another PE's heap by loads and stores: those of its GPU, if the heap is in GPUs. Local.
    fn is_mapped(&self, pe: i64) -> PyResult<bool> {
        let (rt, pe) = (self.job.runtime(), self.job.pe(pe)?);
        Ok(rt.is_mapped(pe) || self.job.gpu().is_some_and(|gpu| gpu.is_mapped(pe)))
    }

    /// The GPU that the heap is in or pinned for, by CUDA's number; None without one. Local.
    #[getter]
    fn device(&self) -> Option<i32> {
        self.job.gpu().map(HeldGpu::ordinal)
    }

    /// Passes the job's state to the kernels of a module that other code has loaded on the PE's GPU, by its handle
    /// (CUmodule); returns whether the module has device functions, of `libsymrail_device.bc` or symrail_device.cuh.
    /// Local.
    ///
    /// Raises StateError, UnsupportedError (no heap that a GPU reaches), OperationError (the state of another version).
    fn attach_module(&self, module: usize) -> PyResult<bool> {
        self.job.running()?;
        self.job.streams()?.attach(module)
    }

    /// Whether `array` makes arrays that the CPU cannot access. Local.
    #[getter]
    fn in_gpus(&self) -> bool {
        matches!(self.job.runtime().settings().heap_kind, HeapKind::Device | HeapKind::Guarded)
    }

    /// The address of the functions that `symrail.torch` passes to its extension, over memory of `allocate` that
    /// belongs to PyTorch from now on. Local.
    fn table_for_torch(&self, memory: &Bound<'_, Memory>) -> PyResult<usize> {
        self.job.running()?;
        torch::table(memory.get().kept(), memory.get().address(), memory.get().nbytes())
    }

    /// Copies `src` to the symmetric array `dst` of PE `remote_pe`. `src` may be changed when this returns; the data is
    /// delivered after `quiet` or a barrier. Slices of any strides are allowed. Local.
    ///
    /// With `stream`, the copy is in the order of that stream and this returns at once; `src` is memory that the GPU
    /// can access, and later work of the stream may change it. Each contiguous piece is a launch. Behind a failure on a
    /// stream, such as a wait whose time is over, nothing is copied or signalled that was enqueued before `quiet` raised
    /// it. Without `stream`, arrays of GPUs are copied in the order of the default stream, and this waits for it.
    ///
    /// Raises ArgumentError (dtype, shape, or `dst` is not symmetric), NoSuchPeError, FreedError, OperationError,
    /// PeerLostError, TimeoutError, UnsupportedError (no heap for streams).
    #[pyo3(signature = (dst, src, remote_pe, *, stream=None))]
    fn put<'py>(
        &self,
        py: Python<'py>,
        dst: &Bound<'py, PyAny>,
        src: &Bound<'py, PyAny>,
        remote_pe: i64,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        self.job.running()?;
        let pe = self.job.pe(remote_pe)?;
        self.copy(py, Transfer::Put(None), &Sides::of_put(&self.job, dst, src, stream_of(stream)?)?, pe)
    }

    /// Copies the symmetric array `src` of PE `remote_pe` to `dst`, any array of the same dtype and shape. The data is
    /// complete when this returns, or with `stream`, as for `put`, for later work of the stream. Slices of any strides
    /// are allowed. Local.
    ///
    /// Raises as `put` does.
    #[pyo3(signature = (dst, src, remote_pe, *, stream=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        dst: &Bound<'py, PyAny>,
        src: &Bound<'py, PyAny>,
        remote_pe: i64,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        self.job.running()?;
        let pe = self.job.pe(remote_pe)?;
        self.copy(py, Transfer::Get, &Sides::of_get(&self.job, dst, src, stream_of(stream)?)?, pe)
    }

    /// Starts to copy `src` to the symmetric array `dst` of PE `remote_pe`. After `quiet` or `barrier_all` the data is
    /// delivered and `src` may be changed; until then `src` is kept. Otherwise as `put`, which performs copies between
    /// GPU memory. Local.
    ///
    /// Raises as `put` does; `quiet` raises later failures.
    fn put_nbi<'py>(
        &self,
        py: Python<'py>,
        dst: &Bound<'py, PyAny>,
        src: &Bound<'py, PyAny>,
        remote_pe: i64,
    ) -> PyResult<()> {
        self.job.running()?;
        let pe = self.job.pe(remote_pe)?;
        self.start(py, Transfer::StartPut, &Sides::of_put(&self.job, dst, src, None)?, pe)
    }

    /// Starts to copy the symmetric array `src` of PE `remote_pe` to `dst`, which is complete after `quiet` or
    /// `barrier_all`, and kept until then. Otherwise as `get`. Local.
    ///
    /// Raises as `put` does; `quiet` raises later failures.
    fn get_nbi<'py>(
        &self,
        py: Python<'py>,
        dst: &Bound<'py, PyAny>,
        src: &Bound<'py, PyAny>,
        remote_pe: i64,
    ) -> PyResult<()> {
        self.job.running()?;
        let pe = self.job.pe(remote_pe)?;
        self.start(py, Transfer::StartGet, &Sides::of_get(&self.job, dst, src, None)?, pe)
    }

    /// As `put`, and then updates the signal word `signal_var` of that PE, an element of a symmetric uint64 array: a PE
    /// that observes the signal observes the data. `signal_op`: "set" or "add". Local. With `stream` as for `put`.
    #[pyo3(signature = (dst, src, signal_var, signal_val, signal_op, remote_pe, *, offset=0, stream=None))]
    #[allow(clippy::too_many_arguments)] // NVSHMEM's
    fn put_signal<'py>(
        &self,
        py: Python<'py>,
        dst: &Bound<'py, PyAny>,
        src: &Bound<'py, PyAny>,
        signal_var: &Bound<'py, PyAny>,
        signal_val: u64,
        signal_op: &Bound<'py, PyAny>,
        remote_pe: i64,
        offset: usize,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        self.job.running()?;
        let pe = self.job.pe(remote_pe)?;
        let word = words::signal_word(&self.job, signal_var, offset)?;
        let signal = Signal { word, value: signal_val, op: words::signal_op(signal_op)? };
        self.copy(py, Transfer::Put(Some(signal)), &Sides::of_put(&self.job, dst, src, stream_of(stream)?)?, pe)
    }

    /// Updates a signal word of PE `remote_pe`: element `offset` of a symmetric uint64 array. `signal_op`: "set" or
    /// "add". Delivered after `quiet`. Local. With `stream`, in its order: behind all earlier puts to that PE on
    /// streams.
    #[pyo3(signature = (signal_var, signal_val, signal_op, remote_pe, *, offset=0, stream=None))]
    #[allow(clippy::too_many_arguments)] // NVSHMEM's
    fn signal_op<'py>(
        &self,
        py: Python<'py>,
        signal_var: &Bound<'py, PyAny>,
        signal_val: u64,
        signal_op: &Bound<'py, PyAny>,
        remote_pe: i64,
        offset: usize,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let rt = self.job.running()?;
        let pe = self.job.pe(remote_pe)?;
        let word = words::signal_word(&self.job, signal_var, offset)?;
        let signal = Signal { word, value: signal_val, op: words::signal_op(signal_op)? };
        match stream_of(stream)? {
            Some(stream) => py.detach(|| self.job.streams()?.signal(signal, pe, stream)),
            None => waiting(py, None, || raw::signal_op(rt, signal, pe)),
        }
    }

    /// Makes a stream wait until a signal word of this PE compares to `value` as asked: for "==" and ">=" without
    /// limit, otherwise for SYMRAIL_TIMEOUT_S seconds. Local.
    fn wait_on_stream(
        &self,
        signal_var: &Bound<'_, PyAny>,
        comparison: &Bound<'_, PyAny>,
        value: u64,
        offset: usize,
        stream: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.job.running()?;
        let word = words::signal_word(&self.job, signal_var, offset)?;
        let (cmp, stream) = (words::comparison(comparison)?, stream::handle(stream)?);
        signal_var.py().detach(|| self.job.streams()?.wait(word, cmp, value, stream))
    }

    /// Makes a stream wait, for SYMRAIL_TIMEOUT_S seconds, until element `offset` of a symmetric uint64 array, which
    /// `remote_pe` sets, is from `least` to `most`. Otherwise element `ended` is not 0 from then on, and waits and puts
    /// that name it only fail. Local.
    #[allow(clippy::too_many_arguments)] // words, and where they are
    fn wait_in_chain(
        &self,
        words: &Bound<'_, PyAny>,
        offset: usize,
        least: u64,
        most: u64,
        ended: usize,
        remote_pe: i64,
        stream: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (word, chain) = self.chain(words, offset, ended, remote_pe)?;
        let stream = stream::handle(stream)?;
        words.py().detach(|| self.job.streams()?.wait_in_chain(word, least..=most, chain, stream))
    }

    /// Copies to an array of `remote_pe` (`both`: that, and the source), and then sets element `offset` of `words`
    /// there, in the order of a stream, unless element `ended` here says that a wait has timed out. Local.
    #[allow(clippy::too_many_arguments)] // as above
    fn put_in_chain(
        &self,
        both: Option<(Bound<'_, PyAny>, Bound<'_, PyAny>)>,
        words: &Bound<'_, PyAny>,
        offset: usize,
        value: u64,
        ended: usize,
        remote_pe: i64,
        stream: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (word, chain) = self.chain(words, offset, ended, remote_pe)?;
        let stream = stream::handle(stream)?;
        let view = |array: &Bound<'_, PyAny>, role: &str| self.job.any_view(array, role);
        let both = both.map(|(to, from)| Ok::<_, PyErr>((view(&to, "dst")?, view(&from, "src")?))).transpose()?;
        let arrays = both.as_ref().map(|(to, from)| (to, from));
        words.py().detach(|| self.job.streams()?.put_in_chain(arrays, (word, value), chain, stream))
    }

    /// Waits until element `offset` of an integer array of this PE compares to `value` as asked ("==", "!=", ">", ">=",
    /// "<", "<="), and returns it. Data that a peer put before it signalled is then visible. Local.
    ///
    /// `timeout` is in seconds; without one, the wait for PEs that are alive is unlimited. Raises TimeoutError,
    /// PeerLostError, and the exception of a signal's handler (KeyboardInterrupt).
    #[pyo3(signature = (array, comparison, value, *, offset=0, timeout=None))]
    fn wait_until<'py>(
        &self,
        array: &Bound<'py, PyAny>,
        comparison: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        offset: usize,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let rt = self.job.running()?;
        words::wait(
            rt,
            words::element(&self.job, array, offset, "array")?,
            words::comparison(comparison)?,
            value,
            timeout,
        )
    }

    /// Whether element `offset` of an integer array of this PE compares to `value` as asked now. Local.
    #[pyo3(signature = (array, comparison, value, *, offset=0))]
    fn test(
        &self,
        array: &Bound<'_, PyAny>,
        comparison: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        offset: usize,
    ) -> PyResult<bool> {
        let rt = self.job.running()?;
        words::test(rt, words::element(&self.job, array, offset, "array")?, words::comparison(comparison)?, value)
    }

    /// Orders this PE's earlier puts, signals and atomics to each PE before later ones. With `stream`, those on
    /// streams. Local.
    #[pyo3(signature = (*, stream=None))]
    fn fence(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let rt = self.job.running()?;
        match stream_of(stream)? {
            Some(stream) => py.detach(|| self.job.streams()?.fence(stream)),
            None => waiting(py, None, || rt.fence()),
        }
    }

    /// Waits until all operations that this PE has started are delivered; with `stream`, the stream waits for earlier
    /// operations on streams. Local.
    ///
    /// Raises the failures since the last quiet, including those on streams: OperationError, TimeoutError,
    /// PeerLostError.
    #[pyo3(signature = (*, stream=None))]
    fn quiet(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let rt = self.job.running()?;
        match stream_of(stream)? {
            Some(stream) => py.detach(|| self.job.streams()?.quiet(stream)),
            None => {
                let awaited = self.job.under_way.awaited();
                awaited.end(waiting(py, None, || rt.quiet())).and_then(|()| self.job.check())
            }
        }
    }

    /// Raises the failures of operations on streams that are over. Does not wait. Local.
    fn check(&self) -> PyResult<()> {
        self.job.running()?;
        self.job.check()
    }

    /// Connects to all PEs that need the wire, and waits until each has answered. Without this call a PE is connected
    /// at its first operation, which then takes longer. Local.
    ///
    /// Raises TimeoutError or PeerLostError.
    fn connect_all(&self, py: Python<'_>) -> PyResult<()> {
        let rt = self.job.running()?;
        waiting(py, None, || rt.connect_all())
    }

    /// Completes the operations that this PE has started, and waits for all PEs to do so; with `stream`, its operations
    /// on streams, and the stream waits. Collective.
    ///
    /// `timeout` is in seconds, and not for streams. After an exception the job has no more collectives: leave it.
    #[pyo3(signature = (*, timeout=None, stream=None))]
    fn barrier_all(&self, py: Python<'_>, timeout: Option<f64>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let rt = self.job.running()?;
        self.job.barrier(py, None, true, stream, || {
            let awaited = self.job.under_way.awaited();
            awaited.end(waiting(py, timeout, || rt.barrier_all())).and_then(|()| self.job.check())
        })
    }

    /// Waits for all PEs. Collective. `timeout` is as for `barrier_all`, and so is `stream`.
    #[pyo3(signature = (*, timeout=None, stream=None))]
    fn sync_all(&self, py: Python<'_>, timeout: Option<f64>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let rt = self.job.running()?;
        self.job.barrier(py, None, false, stream, || waiting(py, timeout, || rt.sync_all()))
    }

    /// An atomic operation on element `offset` of a symmetric array of PE `remote_pe`; returns the old value if it
    /// `fetches`. `symrail.atomics` has them by their names. Local.
    #[pyo3(signature = (op, target, value, remote_pe, offset, fetches, cond=None))]
    #[allow(clippy::too_many_arguments)] // an atomic operation has these parts
    fn atomic<'py>(
        &self,
        op: &Bound<'py, PyAny>,
        target: &Bound<'py, PyAny>,
        value: Option<&Bound<'py, PyAny>>,
        remote_pe: i64,
        offset: usize,
        fetches: bool,
        cond: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let rt = self.job.running()?;
        let pe = self.job.pe(remote_pe)?;
        let word = words::element(&self.job, target, offset, "target")?;
        let amo = Amo { op: words::amo_op(op)?, operand: value, compare: cond, fetches };
        amo.perform(rt, word, pe, target.py())
    }
}

/// PEs do not make the same call for memory.
fn refused(verb: &str, why: Refused) -> PyErr {
    match why {
        Refused::Differs(Differs { here, other, there }) => {
            raise_of(Kind::Differ, &format!("PE 0 {verb} {here} where PE {other} asks for {there}"), other)
        }
        Refused::Captures(pe) => {
            let why = "captures a CUDA graph, in which no symmetric memory can be made: make it before the capture";
            raise_of(Kind::State, &format!("PE {pe} {why}"), pe)
        }
        Refused::Object(error) => error,
    }
}

/// A failed operation may still be in flight, unless only its arguments were wrong: the array that it reads or writes
/// then stays for ever.
fn kept(array: &Bound<'_, PyAny>, result: PyResult<()>) -> PyResult<()> {
    if let Err(error) = &result
        && !is_of_arguments(error, array.py())
    {
        std::mem::forget(array.clone().unbind());
    }
    result
}
