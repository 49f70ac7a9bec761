//! Arrays of other libraries, and the layout of their elements. None of these libraries is linked.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyType};

use crate::dlpack;
use crate::dtype::Type;
use crate::errors::{Kind, raise};
use crate::layout::Layout;

/// An array of another library.
pub struct Found {
    pub layout: Layout,
    /// The GPU whose memory it is in; `None` for host memory.
    pub gpu: Option<i32>,
    pub writable: bool,
}

/// The layout of an array's elements; `None` if the object is no known array. An error for tensors whose elements are
/// not what is in memory at their address.
pub fn layout(array: &Bound<'_, PyAny>, role: &str) -> PyResult<Option<Found>> {
    if is_tensor(array)? {
        let found = dlpack::layout(array)?.map_or_else(|| of_torch(array), Ok);
        // The class explains what is wrong, which takes longer than to see that something is.
        if !found.as_ref().is_ok_and(|(layout, _)| is_plain(array, layout)) {
            let module = array.py().import("symrail._tensors")?;
            module.getattr("must_be_plain")?.call1((array, role))?;
        }
        return found.map(|(layout, gpu)| Some(Found { layout, gpu, writable: true }));
    }
    match array.getattr_opt(intern!(array.py(), "__cuda_array_interface__"))? {
        Some(interface) => of_interface(array, &interface.cast_into()?, role).map(Some),
        None => Ok(None),
    }
}

/// Whether an object is a tensor of PyTorch.
pub fn is_tensor(array: &Bound<'_, PyAny>) -> PyResult<bool> {
    tensor_type(array.py())?.map_or(Ok(false), |tensor| array.is_instance(tensor))
}

/// Whether a tensor's elements are in memory as they are: not marked as conjugated or negated, and at an address.
fn is_plain(tensor: &Bound<'_, PyAny>, layout: &Layout) -> bool {
    let is = |mark: &Bound<'_, PyString>| {
        tensor.call_method0(mark).and_then(|found| found.extract::<bool>()).is_ok_and(|found| !found)
    };
    let py = tensor.py();
    (layout.address != 0 || layout.len() == 0)
        && is(intern!(py, "is_neg"))
        && (layout.ty.kind != b'c' || is(intern!(py, "is_conj")))
}

/// PyTorch's class of tensors, if the program has imported PyTorch.
pub fn tensor_type(py: Python<'_>) -> PyResult<Option<&Bound<'_, PyType>>> {
    static TENSOR: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    if let Some(tensor) = TENSOR.get(py) {
        return Ok(Some(tensor.bind(py)));
    }
    let modules = py.import("sys")?.getattr("modules")?.cast_into::<PyDict>()?;
    let Some(torch) = modules.get_item("torch")? else { return Ok(None) };
    // PyTorch may be in the middle of its import.
    let Some(tensor) = torch.getattr_opt("Tensor")? else { return Ok(None) };
    let tensor = tensor.cast_into::<PyType>()?.unbind();
    Ok(Some(TENSOR.get_or_init(py, || tensor).bind(py)))
}

fn of_torch(tensor: &Bound<'_, PyAny>) -> PyResult<(Layout, Option<i32>)> {
    let py = tensor.py();
    let address: usize = tensor.call_method0(intern!(py, "data_ptr"))?.extract()?;
    let shape: Vec<usize> = tensor.getattr(intern!(py, "shape"))?.extract()?;
    let ty = torch_type(&tensor.getattr(intern!(py, "dtype"))?)?;
    let gpu = match tensor.getattr(intern!(py, "is_cuda"))?.extract()? {
        true => Some(tensor.call_method0(intern!(py, "get_device"))?.extract()?),
        false if tensor.getattr(intern!(py, "is_cpu"))?.extract()? => None,
        false => {
            let device = tensor.getattr(intern!(py, "device"))?;
            return Err(raise(Kind::Argument, &format!("a tensor on {device}: use one of the CPU's or of a GPU's")));
        }
    };
    if tensor.call_method0(intern!(py, "is_contiguous"))?.extract()? {
        return Ok((Layout::contiguous(address, shape, ty), gpu));
    }
    let strides: Vec<isize> = tensor.call_method0(intern!(py, "stride"))?.extract()?;
    let strides = strides.into_iter().map(|stride| stride * ty.bytes as isize).collect();
    Ok((Layout { address, shape, strides, ty }, gpu))
}

/// The type for one of PyTorch's, which is looked up by its name once.
fn torch_type(dtype: &Bound<'_, PyAny>) -> PyResult<Type> {
    static KNOWN: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    let py = dtype.py();
    let known = KNOWN.get_or_init(py, || PyDict::new(py).unbind()).bind(py);
    if let Some(found) = known.get_item(dtype)? {
        let (kind, bytes) = found.extract()?;
        return Ok(Type { kind, bytes });
    }
    let text = dtype.to_string();
    let name = text.trim_start_matches("torch.");
    let ty =
        Type::of_name(name).ok_or_else(|| raise(Kind::Argument, &format!("no operations on elements of {text}")))?;
    known.set_item(dtype, (ty.kind, ty.bytes))?;
    Ok(ty)
}

fn of_interface(array: &Bound<'_, PyAny>, interface: &Bound<'_, PyDict>, role: &str) -> PyResult<Found> {
    let py = array.py();
    let item = |name: &str| Ok::<_, PyErr>(interface.get_item(name)?.filter(|item| !item.is_none()));
    let wanted = |name: &str| {
        item(name)?.ok_or_else(|| raise(Kind::Argument, &format!("__cuda_array_interface__ without {name}")))
    };
    if item("mask")?.is_some() {
        return Err(raise(Kind::Argument, &format!("{role} has a mask, which would be lost: pass its elements alone")));
    }
    let (address, read_only): (usize, bool) = wanted("data")?.extract()?;
    let shape: Vec<usize> = wanted("shape")?.extract()?;
    let typestr: String = wanted("typestr")?.extract()?;
    let ty = Type::of_typestr(&typestr)
        .ok_or_else(|| raise(Kind::Argument, &format!("no operations on elements of type {typestr}")))?;
    let device = array.getattr_opt(intern!(py, "device"))?;
    // CuPy's arrays name their GPU; for other arrays it is the GPU that operations use.
    let gpu = device.and_then(|device| device.getattr("id").ok()).and_then(|id| id.extract().ok());
    let layout = match item("strides")? {
        Some(strides) => Layout { address, shape, strides: strides.extract()?, ty },
        None => Layout::contiguous(address, shape, ty),
    };
    Ok(Found { layout, gpu: Some(gpu.unwrap_or(ANY_GPU)), writable: !read_only })
}

/// Memory of some GPU; the array's owner does not name it.
pub const ANY_GPU: i32 = -1;
