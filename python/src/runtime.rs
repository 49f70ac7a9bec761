//! The class `Runtime`: one PE of a job.

use std::sync::Arc;

use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use symrail::Pe;

use crate::blocks::Request;
use crate::errors::{Kind, failed, is_of_arguments, json, raise, raise_of, raise_of_all};
use crate::interrupt::waiting;
use crate::job::{Job, Joining};
use crate::memory::Memory;
use crate::raw::{self, HeldTeam};
use crate::required::{Required, Unmet};
use crate::rma;
use crate::team::Team;
use crate::view::{Span, View};
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

/// The source of a copy to `dest`, as an array of the same dtype and shape.
fn source_for<'py>(dest: &Bound<'py, PyAny>, source: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    if let (Ok(to), Ok(from)) = (dest.cast::<PyUntypedArray>(), source.cast::<PyUntypedArray>())
        && to.shape() == from.shape()
    {
        let (a, b) = (to.dtype(), from.dtype());
        if a.is(&b) || a.is_equiv_to(&b) {
            return Ok(source.clone());
        }
    }
    dest.py().import("symrail._arrays")?.getattr("like")?.call1((dest, source))
}

impl Runtime {
    /// The job that it is a PE of.
    pub fn job(&self) -> &Arc<Job> {
        &self.job
    }

    /// Refuses memory of a block that was freed.
    fn unfreed(&self, span: Span, role: &str) -> PyResult<()> {
        if self.job.blocks.is_freed(span.address()) {
            return Err(raise(Kind::Freed, &format!("{role} was given to free(); allocate another array")));
        }
        Ok(())
    }

    /// Views of both sides of a copy whose destination is written.
    fn sides(&self, dest: &Bound<'_, PyAny>, source: &Bound<'_, PyAny>) -> PyResult<(View, View)> {
        let (to, from) = (View::of(dest, "dst")?, View::of(source, "src")?);
        self.unfreed(to.bounds(), "dst")?;
        self.unfreed(from.bounds(), "src")?;
        Ok((to, from))
    }

    /// The same where the destination is this PE's, and any array.
    fn sides_of_get(&self, dest: &Bound<'_, PyAny>, source: &Bound<'_, PyAny>) -> PyResult<(View, View)> {
        if !source_for(source, dest)?.is(dest) {
            return Err(raise(Kind::Argument, "dst and src differ in dtype or shape"));
        }
        let (to, from) = self.sides(dest, source)?;
        if to.writable {
            return Ok((to, from));
        }
        Err(raise(Kind::Argument, "dst cannot be written to (its flag `writeable` is false)"))
    }

    /// Keeps the array of an operation that was started, unless that is complete.
    fn keep_until_quiet(&self, array: &Bound<'_, PyAny>, pe: Pe) {
        if !self.job.runtime().is_mapped(pe) {
            self.job.under_way.keep(array);
        }
    }
}

#[pymethods]
impl Runtime {
    /// Joins a job: by a unique id as a PE of so many, or as the environment says. `require` are names of what all PEs'
    /// paths must be. Collective.
    #[staticmethod]
    fn join(
        py: Python<'_>,
        uid: Option<Vec<u8>>,
        pe: Pe,
        n_pes: u32,
        heap_bytes: Option<usize>,
        require: Vec<String>,
    ) -> PyResult<Runtime> {
        let joining = Joining { uid: uid.map(|uid| (uid, pe, n_pes)), heap_bytes };
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

    /// What this PE has and how it reaches the others, as JSON. `symrail.info` shows it. Local.
    fn description(&self) -> PyResult<String> {
        json(&self.job.running()?.description())
    }

    /// Leaves the job: completes what this PE has started and waits for all PEs. Arrays can still be read and written
    /// by this process. Later calls do nothing, nor do those of a forked child. Collective.
    fn finalize(&self, py: Python<'_>) -> PyResult<()> {
        waiting(py, None, || self.job.leave())
    }

    /// Ends the job: its starter ends all PEs with this exit code. This process goes on. Local.
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

    /// Takes zeroed bytes from every PE's heap; `text` says what they are for, and must be the same on all PEs.
    /// Collective.
    fn allocate(&self, py: Python<'_>, bytes: usize, text: String) -> PyResult<Memory> {
        let rt = self.job.running()?;
        let request = Request { bytes, text };
        match waiting(py, None, || self.job.blocks.allocate(rt, &self.world, &request))? {
            Ok((number, address)) => Ok(Memory::of_block(Arc::clone(&self.job), number, address, bytes)),
            Err(differs) => {
                let message =
                    format!("PE 0 asks for {} where PE {} asks for {}", differs.here, differs.other, differs.there);
                Err(raise_of(Kind::Differ, &message, differs.other))
            }
        }
    }

    /// Gives back the memory of arrays that all PEs have dropped. `array` does so, too. Collective.
    fn reclaim(&self, py: Python<'_>) -> PyResult<()> {
        let rt = self.job.running()?;
        let differs = waiting(py, None, || self.job.blocks.reclaim(rt, &self.world))?;
        match differs {
            None => Ok(()),
            Some(differs) => {
                let message =
                    format!("PE 0 calls {} where PE {} asks for {}", differs.here, differs.other, differs.there);
                Err(raise_of(Kind::Differ, &message, differs.other))
            }
        }
    }

    /// Says that this PE uses an array no more: operations refuse it from now on. Its memory goes back when its last
    /// view is gone on all PEs, at the next `array` or `reclaim`. Local.
    fn free(&self, array: &Bound<'_, PyAny>) -> PyResult<()> {
        let view = View::of(array, "array")?;
        match self.job.blocks.free(view.bounds().address()) {
            true => Ok(()),
            false => Err(raise(Kind::Argument, "the array is not symmetric memory of this job")),
        }
    }

    /// Symmetric arrays that exist, and bytes in them. Local.
    fn blocks(&self) -> (usize, usize) {
        self.job.blocks.count()
    }

    /// A peer's copy of a symmetric array's memory, if this process has it mapped: bytes between the array's first and
    /// last. Local.
    fn peer_memory(&self, array: &Bound<'_, PyAny>, pe: i64) -> PyResult<Option<Memory>> {
        let rt = self.job.running()?;
        let (pe, view) = (self.job.pe(pe)?, View::of(array, "array")?);
        self.unfreed(view.bounds(), "array")?;
        let span = view.bounds();
        let here = std::ptr::with_exposed_provenance(span.address());
        if !rt.is_symmetric(here, span.bytes()) {
            return Err(raise(Kind::Argument, "the array is not symmetric memory of this job"));
        }
        let there = rt.peer_ptr(here, pe).expose_provenance();
        let keeps = array.clone().unbind();
        Ok((there != 0).then(|| Memory::of_peer(Arc::clone(&self.job), there, span.bytes(), keeps)))
    }

    /// Whether this PE reaches another one's heap by loads and stores. Local.
    fn is_mapped(&self, pe: i64) -> PyResult<bool> {
        Ok(self.job.runtime().is_mapped(self.job.pe(pe)?))
    }

    /// Copies `src` to the symmetric array `dst` of PE `remote_pe`. `src` may be changed when this returns; the data is
    /// delivered after `quiet` or a barrier. Slices of any strides are allowed. Local.
    ///
    /// Raises ArgumentError (dtype, shape, or `dst` is not symmetric), NoSuchPeError, FreedError, OperationError,
    /// PeerLostError, TimeoutError.
    fn put<'py>(
        &self,
        py: Python<'py>,
        dst: &Bound<'py, PyAny>,
        src: &Bound<'py, PyAny>,
        remote_pe: i64,
    ) -> PyResult<()> {
        let rt = self.job.running()?;
        let pe = self.job.pe(remote_pe)?;
        let src = source_for(dst, src)?;
        let (to, from) = self.sides(dst, &src)?;
        if rma::is_short(rt, &to, pe) {
            return rma::put(rt, &to, &from, pe).map_err(failed);
        }
        kept(&src, waiting(py, None, || rma::put(rt, &to, &from, pe)))
    }

    /// Copies the symmetric array `src` of PE `remote_pe` to `dst`, any array of the same dtype and shape. Complete
    /// when it returns. Slices of any strides are allowed. Local.
    ///
    /// Raises as `put` does.
    fn get<'py>(
        &self,
        py: Python<'py>,
        dst: &Bound<'py, PyAny>,
        src: &Bound<'py, PyAny>,
        remote_pe: i64,
    ) -> PyResult<()> {
        let rt = self.job.running()?;
        let pe = self.job.pe(remote_pe)?;
        let (to, from) = self.sides_of_get(dst, src)?;
        if rma::is_short(rt, &to, pe) && from.contiguous {
            return rma::get(rt, &to, &from, pe).map_err(failed);
        }
        kept(dst, waiting(py, None, || rma::get(rt, &to, &from, pe)))
    }

    /// Starts to copy `src` to the symmetric array `dst` of PE `remote_pe`. `src` may be changed, and the data is delivered,
    /// after `quiet` or `barrier_all`; until then `src` is kept. Otherwise as `put`. Local.
    ///
    /// Raises as `put` does; what fails later, `quiet` raises.
    fn put_nbi<'py>(
        &self,
        py: Python<'py>,
        dst: &Bound<'py, PyAny>,
        src: &Bound<'py, PyAny>,
        remote_pe: i64,
    ) -> PyResult<()> {
        let rt = self.job.running()?;
        let pe = self.job.pe(remote_pe)?;
        let src = source_for(dst, src)?;
        let (to, from) = self.sides(dst, &src)?;
        kept(&src, waiting(py, None, || rma::put_nbi(rt, &to, &from, pe)))?;
        self.keep_until_quiet(&src, pe);
        Ok(())
    }

    /// Starts to copy the symmetric array `src` of PE `remote_pe` to `dst`, which is complete after `quiet` or
    /// `barrier_all`, and kept until then. Otherwise as `get`. Local.
    ///
    /// Raises as `put` does; what fails later, `quiet` raises.
    fn get_nbi<'py>(
        &self,
        py: Python<'py>,
        dst: &Bound<'py, PyAny>,
        src: &Bound<'py, PyAny>,
        remote_pe: i64,
    ) -> PyResult<()> {
        let rt = self.job.running()?;
        let pe = self.job.pe(remote_pe)?;
        let (to, from) = self.sides_of_get(dst, src)?;
        kept(dst, waiting(py, None, || rma::get_nbi(rt, &to, &from, pe)))?;
        self.keep_until_quiet(dst, pe);
        Ok(())
    }

    /// As `put`, and then updates the signal word `signal_var` of that PE, an element of a symmetric uint64 array: whoever
    /// sees the signal sees the data. `signal_op`: "set" or "add". Both arrays are contiguous. Local.
    #[pyo3(signature = (dst, src, signal_var, signal_val, signal_op, remote_pe, *, offset=0))]
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
    ) -> PyResult<()> {
        let rt = self.job.running()?;
        let pe = self.job.pe(remote_pe)?;
        let signal = (words::signal_word(signal_var, offset)?, signal_val, words::signal_update(signal_op)?);
        let src = source_for(dst, src)?;
        let (to, from) = self.sides(dst, &src)?;
        let put = || {
            let mut pieces = to.pieces(&from);
            match (pieces.number(), pieces.next()) {
                (1, Some((to, from))) => raw::put_signal(rt, to, from, signal, pe),
                // A fence keeps the signal behind all the pieces.
                _ => {
                    rma::put(rt, &to, &from, pe).and_then(|()| rt.fence()).and_then(|()| raw::signal_op(rt, signal, pe))
                }
            }
        };
        if rma::is_short(rt, &to, pe) && from.contiguous {
            return put().map_err(failed);
        }
        kept(&src, waiting(py, None, put))
    }

    /// Updates a signal word of PE `remote_pe`: element `offset` of a symmetric uint64 array. `signal_op`: "set" or "add".
    /// Delivered after `quiet`. Local.
    #[pyo3(signature = (signal_var, signal_val, signal_op, remote_pe, *, offset=0))]
    fn signal_op<'py>(
        &self,
        py: Python<'py>,
        signal_var: &Bound<'py, PyAny>,
        signal_val: u64,
        signal_op: &Bound<'py, PyAny>,
        remote_pe: i64,
        offset: usize,
    ) -> PyResult<()> {
        let rt = self.job.running()?;
        let pe = self.job.pe(remote_pe)?;
        let signal = (words::signal_word(signal_var, offset)?, signal_val, words::signal_update(signal_op)?);
        waiting(py, None, || raw::signal_op(rt, signal, pe))
    }

    /// Waits until element `offset` of an integer array of this PE compares to `value` as asked ("==", "!=", ">", ">=",
    /// "<", "<="), and returns it. What a peer had put before it signalled is visible then. Local.
    ///
    /// `timeout` is in seconds; without one, PEs that live are waited for without limit. Raises TimeoutError,
    /// PeerLostError, and what a signal's handler raises (KeyboardInterrupt).
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
        words::wait(rt, words::element(array, offset, "array")?, words::comparison(comparison)?, value, timeout)
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
        words::test(rt, words::element(array, offset, "array")?, words::comparison(comparison)?, value)
    }

    /// Orders what this PE puts, signals and does atomically on each PE before it, before what comes after. Local.
    fn fence(&self, py: Python<'_>) -> PyResult<()> {
        let rt = self.job.running()?;
        waiting(py, None, || rt.fence())
    }

    /// Waits until all that this PE has started is delivered. Local.
    ///
    /// Raises what has failed since the last quiet: OperationError, TimeoutError, PeerLostError.
    fn quiet(&self, py: Python<'_>) -> PyResult<()> {
        let rt = self.job.running()?;
        let awaited = self.job.under_way.awaited();
        awaited.end(waiting(py, None, || rt.quiet()))
    }

    /// Completes what this PE has started, and waits for all PEs to have done so. Collective.
    ///
    /// `timeout` is in seconds. After an exception the job cannot meet again: leave it.
    #[pyo3(signature = (*, timeout=None))]
    fn barrier_all(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let rt = self.job.running()?;
        let awaited = self.job.under_way.awaited();
        awaited.end(waiting(py, timeout, || rt.barrier_all()))
    }

    /// Waits for all PEs. Collective. `timeout` is as for `barrier_all`.
    #[pyo3(signature = (*, timeout=None))]
    fn sync_all(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let rt = self.job.running()?;
        waiting(py, timeout, || rt.sync_all())
    }

    /// An atomic operation on element `offset` of a symmetric array of PE `remote_pe`; the old value if it `fetches`.
    /// `symrail.atomics` has them by their names. Local.
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
        let word = words::element(target, offset, "target")?;
        self.unfreed(word.0, "target")?;
        let amo = Amo { op: words::amo_op(op)?, operand: value, compare: cond, fetches };
        amo.perform(rt, word, pe, target.py())
    }
}

/// An operation that failed, other than for its arguments, may still be under way: the array that it reads or writes
/// then stays for ever.
fn kept(array: &Bound<'_, PyAny>, result: PyResult<()>) -> PyResult<()> {
    if let Err(error) = &result
        && !is_of_arguments(error, array.py())
    {
        std::mem::forget(array.clone().unbind());
    }
    result
}
