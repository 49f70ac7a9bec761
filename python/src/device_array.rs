//! The class `DeviceArray`: a symmetric array in memory that the CPU cannot access.

use std::sync::Arc;

use pyo3::exceptions::{PyAttributeError, PyBufferError, PyIndexError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyEllipsis, PySlice, PyTuple};

use crate::dlpack;
use crate::dtype::Type;
use crate::errors::{Kind, raise};
use crate::layout::{Index, Layout};
use crate::memory::{Kept, Memory};

/// An array in a GPU's memory, this PE's or a mapped peer's. PyTorch, CuPy and others access it without a copy
/// (`tensor()`, DLPack, `__cuda_array_interface__`), and keep its memory as long as they need it. Slices, `reshape`,
/// `view` and `transpose` are views. `numpy()` copies it to the host, and `a[…] = values` from there; both wait.
#[pyclass(frozen, module = "symrail")]
pub struct DeviceArray {
    kept: Arc<Kept>,
    layout: Layout,
    /// The GPU; negative for memory that only tests use.
    gpu: i32,
}

impl DeviceArray {
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    pub fn gpu(&self) -> i32 {
        self.gpu
    }

    fn part(&self, layout: Layout) -> DeviceArray {
        DeviceArray { kept: Arc::clone(&self.kept), layout, gpu: self.gpu }
    }

    fn place(&self) -> [i32; 2] {
        if self.gpu < 0 { [dlpack::OTHER, 0] } else { [dlpack::CUDA, self.gpu] }
    }

    /// The indices between the brackets of `a[…]`.
    fn indices(&self, key: &Bound<'_, PyAny>) -> PyResult<Vec<Index>> {
        let keys = match key.cast::<PyTuple>() {
            Ok(keys) => keys.iter().collect(),
            Err(_) => vec![key.clone()],
        };
        let ndim = self.layout.shape.len();
        let named = keys.iter().filter(|key| !key.is_instance_of::<PyEllipsis>()).count();
        if named > ndim || keys.len() > named + 1 {
            return Err(PyIndexError::new_err(format!("{} indices for {ndim} dimensions", keys.len())));
        }
        let mut indices = Vec::with_capacity(ndim);
        for key in &keys {
            if key.is_instance_of::<PyEllipsis>() {
                let all = |&len: &usize| Index::Slice { start: 0, step: 1, len };
                let skipped = indices.len()..indices.len() + ndim - named;
                indices.extend(self.layout.shape[skipped].iter().map(all));
                continue;
            }
            let len = self.layout.shape[indices.len()] as isize;
            indices.push(match key.cast::<PySlice>() {
                Ok(slice) => {
                    let found = slice.indices(len)?;
                    Index::Slice { start: found.start, step: found.step, len: found.slicelength }
                }
                Err(_) => {
                    let at: isize = key.extract().map_err(|_| {
                        PyTypeError::new_err("indices are whole numbers, slices and ...; others need a copy")
                    })?;
                    if at < -len || at >= len {
                        return Err(PyIndexError::new_err(format!("index {at} for a length of {len}")));
                    }
                    Index::At(if at < 0 { at + len } else { at })
                }
            });
        }
        Ok(indices)
    }
}

/// A function of the package's Python part.
fn in_python<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("symrail._arrays")?.getattr(name)
}

/// The type of this name.
fn named(dtype: &str) -> PyResult<Type> {
    Type::of_name(dtype).ok_or_else(|| raise(Kind::Argument, &format!("no arrays of {dtype} in a GPU's memory")))
}

#[pymethods]
impl DeviceArray {
    /// The first bytes of a block, as an array.
    #[new]
    fn new(memory: &Bound<'_, Memory>, shape: Vec<usize>, dtype: &str) -> PyResult<DeviceArray> {
        let memory = memory.get();
        let layout = Layout::contiguous(memory.address(), shape, named(dtype)?);
        match memory.gpu() {
            Some(gpu) if layout.bytes() <= memory.nbytes() => {
                Ok(DeviceArray { kept: Arc::clone(memory.kept()), layout, gpu })
            }
            _ => Err(raise(Kind::Argument, "the array is not within a GPU's memory")),
        }
    }

    /// Bytes of an element of the type of this name.
    #[staticmethod]
    fn bytes_of(dtype: &str) -> PyResult<usize> {
        Ok(named(dtype)?.bytes)
    }

    /// Its lengths.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.layout.shape)
    }

    /// Distances of elements in bytes, one for each dimension.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.layout.strides)
    }

    /// The type of its elements: NumPy's, or its name if NumPy knows it only with the package ml_dtypes, which is not
    /// installed.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        in_python(py, "known_dtype")?.call1((self.layout.ty.name(),))
    }

    #[getter]
    fn ndim(&self) -> usize {
        self.layout.shape.len()
    }

    /// The number of elements.
    #[getter]
    fn size(&self) -> usize {
        self.layout.len()
    }

    #[getter]
    fn itemsize(&self) -> usize {
        self.layout.ty.bytes
    }

    /// Bytes of its elements.
    #[getter]
    fn nbytes(&self) -> usize {
        self.layout.bytes()
    }

    /// The address of its first element, for kernels.
    #[getter]
    fn data_ptr(&self) -> usize {
        self.layout.address
    }

    /// The GPU whose memory it is, by CUDA's number.
    #[getter]
    fn device(&self) -> i32 {
        self.gpu
    }

    /// Whether its elements are contiguous, in the order of the indices.
    #[getter]
    fn contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    /// The dimensions in the opposite order.
    #[getter(T)]
    fn transposed(&self) -> DeviceArray {
        let order: Vec<usize> = (0..self.layout.shape.len()).rev().collect();
        self.part(self.layout.permute(&order))
    }

    fn __len__(&self) -> PyResult<usize> {
        self.layout
            .shape
            .first()
            .copied()
            .ok_or_else(|| PyTypeError::new_err("an array without dimensions has no length"))
    }

    /// A view. An index, unlike NumPy's, gives an array without that dimension, never a number.
    fn __getitem__(&self, key: &Bound<'_, PyAny>) -> PyResult<DeviceArray> {
        Ok(self.part(self.layout.part(&self.indices(key)?)))
    }

    /// Copies from the host, or from another array: as `put` on this PE.
    fn __setitem__(slf: &Bound<'_, Self>, key: &Bound<'_, PyAny>, values: &Bound<'_, PyAny>) -> PyResult<()> {
        let part = Bound::new(slf.py(), slf.get().__getitem__(key)?)?;
        in_python(slf.py(), "assign")?.call1((part, values)).map(drop)
    }

    /// The same elements in another shape, one length of which may be -1. The array is contiguous.
    #[pyo3(signature = (*shape))]
    fn reshape(&self, shape: &Bound<'_, PyTuple>) -> PyResult<DeviceArray> {
        let lengths: Vec<isize> = match shape.len() {
            1 if !shape.get_item(0)?.is_instance_of::<pyo3::types::PyInt>() => shape.get_item(0)?.extract()?,
            _ => shape.extract()?,
        };
        let layout = self.layout.reshape(&lengths).ok_or_else(|| {
            let of = &self.layout.shape;
            raise(Kind::Argument, &format!("an array of shape {of:?} cannot be seen as one of shape {lengths:?}"))
        })?;
        Ok(self.part(layout))
    }

    /// The same bytes as elements of another type.
    fn view(&self, dtype: &Bound<'_, PyAny>) -> PyResult<DeviceArray> {
        let name: String = in_python(dtype.py(), "type_name")?.call1((dtype,))?.extract()?;
        let layout = Type::of_name(&name).and_then(|ty| self.layout.with_type(ty)).ok_or_else(|| {
            let (of, ty) = (&self.layout.shape, self.layout.ty.name());
            raise(Kind::Argument, &format!("an array of {ty} of shape {of:?} cannot be seen as one of {name}"))
        })?;
        Ok(self.part(layout))
    }

    /// The dimensions in another order.
    #[pyo3(signature = (*axes))]
    fn transpose(&self, axes: &Bound<'_, PyTuple>) -> PyResult<DeviceArray> {
        let axes: Vec<usize> = axes.extract()?;
        if axes.is_empty() {
            return Ok(self.transposed());
        }
        let mut sorted = axes.clone();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..self.layout.shape.len()) {
            return Err(raise(Kind::Argument, &format!("{axes:?} are not all dimensions once")));
        }
        Ok(self.part(self.layout.permute(&axes)))
    }

    /// A NumPy array with a copy of the elements. Waits.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        in_python(slf.py(), "to_numpy")?.call1((slf,))
    }

    /// A PyTorch tensor of the same memory.
    fn tensor<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        in_python(slf.py(), "tensor")?.call1((slf,))
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        let [kind, number] = self.place();
        (kind, number)
    }

    /// For `from_dlpack` of other libraries. Does not wait: the program orders work on streams that uses the array.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = stream;
        let place = self.place();
        if dl_device.is_some_and(|(kind, number)| [kind, number] != place) || copy == Some(true) {
            return Err(PyBufferError::new_err(
                "the array is handed on as it is: neither copied nor to another device",
            ));
        }
        dlpack::capsule(
            py,
            Arc::<Kept>::clone(&self.kept),
            &self.layout,
            place,
            max_version.is_some_and(|(major, _)| major >= 1),
        )
    }

    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let typestr = self.layout.ty.typestr().filter(|_| self.gpu >= 0).ok_or_else(|| {
            let name = self.layout.ty.name();
            PyAttributeError::new_err(format!("__cuda_array_interface__ has no elements of type {name}; use DLPack"))
        })?;
        let interface = PyDict::new(py);
        interface.set_item("shape", self.shape(py)?)?;
        interface.set_item("typestr", typestr)?;
        interface.set_item("data", (self.layout.address, false))?;
        interface.set_item("strides", if self.contiguous() { None } else { Some(self.strides(py)?) })?;
        interface.set_item("version", 3)?;
        interface.set_item("stream", py.None())?;
        Ok(interface)
    }

    fn __repr__(&self) -> String {
        let Layout { address, shape, ty, .. } = &self.layout;
        format!("<symrail.DeviceArray {shape:?} of {} at {address:#x} of GPU {}>", ty.name(), self.gpu)
    }
}

impl DeviceArray {
    /// The part of a peer's memory that corresponds to an array of this PE; `there` is the address of its first
    /// element.
    pub fn of_peer(array: &Bound<'_, DeviceArray>, there: usize) -> DeviceArray {
        let own = array.get();
        let kept = Kept::of(Arc::clone(own.kept.job()), array.clone().into_any().unbind());
        DeviceArray { kept, layout: Layout { address: there, ..own.layout.clone() }, gpu: own.gpu }
    }
}
