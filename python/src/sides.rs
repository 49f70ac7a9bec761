//! Both sides of a copy: its arrays, and whether host threads or a stream perform it.

use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;

use crate::errors::{Kind, raise};
use crate::foreign::is_tensor;
use crate::gpu::{DEFAULT_STREAM, HeldGpu};
use crate::job::Job;
use crate::view::View;

/// Both sides of a copy, which have the same dtype and shape.
pub struct Sides<'py> {
    pub to: View,
    pub from: View,
    /// The side that need not be symmetric, as an array.
    pub other: Bound<'py, PyAny>,
    /// The stream that performs it; `None` if host threads do.
    pub stream: Option<Order>,
}

/// The stream of a copy.
#[derive(Clone, Copy)]
pub struct Order {
    /// The stream.
    pub handle: usize,
    /// The caller has not named the stream, and so waits for it.
    pub waits: bool,
}

impl Order {
    /// Starts work on the stream, and waits for it if the caller has not named the stream.
    pub fn start(
        self,
        py: Python<'_>,
        job: &Job,
        work: impl FnOnce(&HeldGpu, usize) -> PyResult<()> + Send,
    ) -> PyResult<()> {
        let gpu = job.streams()?;
        py.detach(|| work(gpu, self.handle))?;
        if self.waits { gpu.finish(py, self.handle) } else { Ok(()) }
    }
}

impl<'py> Sides<'py> {
    /// The sides of a put to `dest`; the source becomes an array of the same dtype and shape.
    pub fn of_put(
        job: &Job,
        dest: &Bound<'py, PyAny>,
        source: &Bound<'py, PyAny>,
        stream: Option<usize>,
    ) -> PyResult<Sides<'py>> {
        if stream.is_none() && are_alike(dest, source) {
            let to = job.view(dest, "dst")?;
            to.must_not_share("dst")?;
            return Ok(Sides::of_host(to, job.view(source, "src")?, source.clone()));
        }
        let to = job.any_view(dest, "dst")?;
        to.must_not_share("dst")?;
        let source = match job.any_view(source, "src") {
            Ok(from) if to.gpu.is_some() || from.gpu.is_some() || stream.is_some() => {
                agree((dest, &to), (source, &from))?;
                return Sides::on_gpu(job, (dest, to), (source, from), source.clone(), stream);
            }
            // A copy of a tensor could be gone before the stream reads it.
            Err(error) if is_freed(&error, dest.py()) || stream.is_some() && is_tensor(source)? => return Err(error),
            _ => dest.py().import("symrail._arrays")?.getattr("like")?.call1((dest, source))?,
        };
        let from = job.any_view(&source, "src")?;
        match to.gpu {
            Some(_) => Sides::on_gpu(job, (dest, to), (&source, from), source.clone(), stream),
            None => Ok(Sides::of_host(to, from, source)),
        }
    }

    /// The sides of a get to `dest`.
    pub fn of_get(
        job: &Job,
        dest: &Bound<'py, PyAny>,
        source: &Bound<'py, PyAny>,
        stream: Option<usize>,
    ) -> PyResult<Sides<'py>> {
        let of = if stream.is_none() && are_alike(dest, source) {
            Sides::of_host(job.view(dest, "dst")?, job.view(source, "src")?, dest.clone())
        } else {
            let (to, from) = (job.any_view(dest, "dst")?, job.any_view(source, "src")?);
            agree((dest, &to), (source, &from))?;
            Sides::on_gpu(job, (dest, to), (source, from), dest.clone(), stream)?
        };
        of.to.must_be_written("dst")?;
        Ok(of)
    }

    fn of_host(to: View, from: View, other: Bound<'py, PyAny>) -> Sides<'py> {
        Sides { to, from, other, stream: None }
    }

    /// The sides, if one of them may be in GPU memory: host threads copy between the heap and the host, the default
    /// stream between GPU memory, if the caller names none.
    fn on_gpu(
        job: &Job,
        (dest, to): (&Bound<'py, PyAny>, View),
        (source, from): (&Bound<'py, PyAny>, View),
        other: Bound<'py, PyAny>,
        stream: Option<usize>,
    ) -> PyResult<Sides<'py>> {
        let outside = |view: &View| view.gpu.is_some() && job.gpu_of(view.bounds().address()).is_none();
        let both = to.gpu.is_some() && from.gpu.is_some() && job.gpu().is_some();
        if stream.is_some() || both || outside(&to) || outside(&from) {
            let order = Order { handle: stream.unwrap_or(DEFAULT_STREAM), waits: stream.is_none() };
            return Ok(Sides { to, from, other, stream: Some(order) });
        }
        Ok(Sides::of_host(job.view(dest, "dst")?, job.view(source, "src")?, other))
    }
}

/// Whether both are NumPy arrays of the same dtype and shape.
fn are_alike(dest: &Bound<'_, PyAny>, source: &Bound<'_, PyAny>) -> bool {
    let (Ok(to), Ok(from)) = (dest.cast::<PyUntypedArray>(), source.cast::<PyUntypedArray>()) else { return false };
    to.shape() == from.shape() && {
        let (a, b) = (to.dtype(), from.dtype());
        a.is(&b) || a.is_equiv_to(&b)
    }
}

/// Refuses arrays that differ in type. Kind and size do not tell units of time and the fields of structures.
pub fn must_be_of_one_type(
    (dest, to): (&Bound<'_, PyAny>, &View),
    (source, from): (&Bound<'_, PyAny>, &View),
) -> PyResult<()> {
    let arrays = dest.cast::<PyUntypedArray>().ok().zip(source.cast::<PyUntypedArray>().ok());
    let described = arrays.filter(|_| matches!(to.ty.kind, b'M' | b'm' | b'V'));
    let differ =
        |to: String, from: String| Err(raise(Kind::Argument, &format!("dtypes differ: dst has {to}, src {from}")));
    if to.ty != from.ty {
        return differ(to.ty.name(), from.ty.name());
    }
    match described.map(|(dest, source)| (dest.dtype(), source.dtype())) {
        Some((to, from)) if !to.is_equiv_to(&from) => differ(to.to_string(), from.to_string()),
        _ => Ok(()),
    }
}

/// Refuses arrays that differ in type or shape.
fn agree((dest, to): (&Bound<'_, PyAny>, &View), (source, from): (&Bound<'_, PyAny>, &View)) -> PyResult<()> {
    must_be_of_one_type((dest, to), (source, from))?;
    if to.lengths().zip(from.lengths()).is_some_and(|(to, from)| to.eq(from)) {
        return Ok(());
    }
    let (to, from) = (shape(dest, to)?, shape(source, from)?);
    match to == from {
        true => Ok(()),
        false => Err(raise(Kind::Argument, &format!("shapes differ: dst has {to:?}, src {from:?}"))),
    }
}

fn shape(array: &Bound<'_, PyAny>, view: &View) -> PyResult<Vec<usize>> {
    view.lengths().map_or_else(|| array.getattr("shape")?.extract(), |lengths| Ok(lengths.collect()))
}

fn is_freed(error: &PyErr, py: Python<'_>) -> bool {
    error.get_type(py).name().is_ok_and(|name| name == "FreedError")
}
