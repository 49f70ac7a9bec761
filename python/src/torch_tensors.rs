//! Tensors of PyTorch for kernels: the addresses of given ones, and new ones of PyTorch's allocator.
//!
//! A call of `torch.empty`, or a look at a tensor's shape, dtype or device, takes as long as a kernel launch, or half of
//! it. So tensors are read by the functions that their class offers to C ([`crate::dlpack`]), and made by functions that
//! PyTorch exports: those of its stable C interface (`torch/csrc/inductor/aoti_torch/c/shim.h`), and the one that wraps
//! a tensor for Python. Where a version lacks one of these, PyTorch's Python functions serve.

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

use libloading::os::unix::{Library, RTLD_NOW};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use symrail::DataType;

use crate::dtype::Type;
use crate::errors::{Kind, raise};
use crate::{dlpack, foreign};

/// The address of a given tensor, which must be plain and contiguous, of this shape and dtype, in this GPU's memory
/// (`None`: the host's), and aligned. Raises ArgumentError.
pub fn address(
    tensor: &Bound<'_, PyAny>,
    role: &str,
    gpu: Option<i32>,
    dtype: DataType,
    shape: &[usize],
    align: usize,
) -> PyResult<u64> {
    if let Some(at) = plain_address(tensor, gpu, dtype, shape)?
        && at.is_multiple_of(align)
    {
        return Ok(at as u64);
    }
    // This explains what is wrong, and knows other kinds of tensors.
    let explain = tensor.py().import("symrail.ep._on_gpu")?.getattr("address")?;
    explain.call1((tensor, role, gpu, dtype.name(), PyTuple::new(tensor.py(), shape)?, align))?.extract()
}

fn plain_address(
    tensor: &Bound<'_, PyAny>,
    gpu: Option<i32>,
    dtype: DataType,
    shape: &[usize],
) -> PyResult<Option<usize>> {
    let py = tensor.py();
    if !foreign::tensor_type(py)?.is_some_and(|plain| tensor.get_type().is(plain)) {
        return Ok(None);
    }
    let Some(seen) = dlpack::look(tensor)? else { return Ok(None) };
    let is_wanted = seen.gpu() == Some(gpu)
        && seen.code_and_bits().is_some_and(|found| Type::from(dtype).dlpack() == Some(found))
        && seen.shape().iter().map(|&n| n as usize).eq(shape.iter().copied())
        && seen.strides().is_none_or(|strides| is_contiguous(seen.shape(), strides))
        && !tensor.call_method0(intern!(py, "is_neg"))?.extract::<bool>()?;
    Ok(is_wanted.then(|| seen.address()))
}

fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    let mut next = 1;
    shape.contains(&0)
        || shape.iter().zip(strides).rev().all(|(&n, &stride)| {
            let fits = n == 1 || stride == next;
            next *= n;
            fits
        })
}

/// The lengths of a tensor of so many dimensions. Raises ArgumentError.
pub fn lengths<const N: usize>(tensor: &Bound<'_, PyAny>, role: &str) -> PyResult<[usize; N]> {
    if let Some(seen) = dlpack::look(tensor)?
        && let Ok(shape) = <[i64; N]>::try_from(seen.shape())
    {
        return Ok(shape.map(|n| n as usize));
    }
    let found = tensor.getattr(intern!(tensor.py(), "shape"))?;
    let shape: Vec<usize> = found.extract()?;
    let wrong = |_| raise(Kind::Argument, &format!("{role} has the shape {shape:?}; wanted are {N} dimensions"));
    shape.as_slice().try_into().map_err(wrong)
}

/// The address of a tensor's first element.
pub fn data(tensor: &Bound<'_, PyAny>) -> PyResult<u64> {
    match dlpack::look(tensor)? {
        Some(seen) => Ok(seen.address() as u64),
        None => tensor.call_method0(intern!(tensor.py(), "data_ptr"))?.extract(),
    }
}

/// Performs a call in which no mode of PyTorch sees how tensors are read (`torch.set_default_device` sets a mode, and
/// each look that it sees takes some 3 us).
pub fn unseen<T>(py: Python<'_>, call: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    static MODES: PyOnceLock<(Py<PyAny>, Py<PyAny>)> = PyOnceLock::new();
    let find = || {
        let torch = py.import("torch._C")?;
        let count = torch.getattr("_len_torch_function_stack")?.unbind();
        PyResult::Ok((count, torch.getattr("DisableTorchFunction")?.unbind()))
    };
    let Ok((count, none)) = MODES.get_or_try_init(py, find) else { return call() };
    if count.call0(py)?.extract::<usize>(py)? == 0 {
        return call();
    }
    let guard = none.bind(py).call0()?;
    guard.call_method0(intern!(py, "__enter__"))?;
    let made = call();
    guard.call_method1(intern!(py, "__exit__"), (py.None(), py.None(), py.None()))?;
    made
}

/// Whether an array is a tensor in a GPU's memory.
#[pyfunction]
pub fn is_on_gpu(array: &Bound<'_, PyAny>) -> PyResult<bool> {
    if let Some(seen) = dlpack::look(array)? {
        return Ok(matches!(seen.gpu(), Some(Some(_))));
    }
    let py = array.py();
    let Some(device) = array.getattr_opt(intern!(py, "device"))? else { return Ok(false) };
    let kind = device.getattr_opt(intern!(py, "type"))?;
    Ok(kind.is_some_and(|kind| kind.eq("cuda").unwrap_or(false)))
}

/// The lengths and strides of a new tensor, in elements.
pub struct Dims<const N: usize> {
    pub sizes: [i64; N],
    pub strides: [i64; N],
}

impl<const N: usize> Dims<N> {
    /// Contiguous elements.
    pub fn contiguous(sizes: [usize; N]) -> Dims<N> {
        let mut strides = [1; N];
        for n in (1..N).rev() {
            strides[n - 1] = strides[n] * sizes[n].max(1) as i64;
        }
        Dims { sizes: sizes.map(|n| n as i64), strides }
    }
}

/// The alignment of tensors of one memory, as of PyTorch's allocations on CPUs.
const ALIGN: usize = 64;

/// A tensor of [`empty_together`].
#[derive(Clone, Copy)]
pub struct Part<'a> {
    dtype: DataType,
    sizes: &'a [i64],
    strides: &'a [i64],
}

impl<'a> Part<'a> {
    pub fn new<const N: usize>(dtype: DataType, dims: &'a Dims<N>) -> Part<'a> {
        Part { dtype, sizes: &dims.sizes, strides: &dims.strides }
    }

    fn bytes(&self) -> usize {
        self.sizes.iter().product::<i64>() as usize * self.dtype.size()
    }
}

/// A tensor that was made, and its address.
pub type Made<'py> = (Bound<'py, PyAny>, u64);

/// A tensor of PyTorch's allocator with undefined elements, for work on PyTorch's current stream.
pub fn empty<'py, const N: usize>(
    py: Python<'py>,
    gpu: Option<i32>,
    dtype: DataType,
    dims: &Dims<N>,
) -> PyResult<Made<'py>> {
    if let Some(functions) = Functions::find(py)
        && let Some(tensor) = functions.empty(gpu, dtype, &dims.sizes, &dims.strides)
    {
        return Ok((tensor.wrap(py)?, tensor.data()));
    }
    slowly_empty(py, gpu, dtype, dims)
}

/// Tensors of one memory of PyTorch's allocator, in which each begins at a multiple of [`ALIGN`] bytes, as [`empty`]
/// otherwise; `behind` bytes follow the last one. An allocation takes longer than a tensor of it.
pub fn empty_together<'py, const N: usize>(
    py: Python<'py>,
    gpu: Option<i32>,
    parts: [Part<'_>; N],
    behind: usize,
) -> PyResult<[Made<'py>; N]> {
    let mut bytes = 0;
    let places = parts.each_ref().map(|part| {
        let place = bytes;
        bytes = (place + part.bytes()).next_multiple_of(ALIGN);
        place
    });
    let end = places.last().zip(parts.last()).map_or(0, |(place, part)| place + part.bytes());
    let all = Dims::contiguous([end + behind]);
    let memory =
        Functions::find(py).and_then(|functions| functions.empty(gpu, DataType::Uint8, &all.sizes, &all.strides));
    let mut made = Vec::with_capacity(N);
    if let Some(memory) = &memory {
        for (part, &place) in parts.iter().zip(&places) {
            let Some(view) = memory.part(place, part) else { break };
            made.push((view.wrap(py)?, view.data()));
        }
    }
    if let Ok(made) = made.try_into() {
        return Ok(made);
    }
    let (memory, _) = slowly_empty(py, gpu, DataType::Uint8, &all)?;
    let mut made = Vec::with_capacity(N);
    for (part, &place) in parts.iter().zip(&places) {
        let piece = memory.call_method1(intern!(py, "narrow"), (0, place, part.bytes()))?;
        let typed =
            piece.call_method1(intern!(py, "view"), (py.import(intern!(py, "torch"))?.getattr(part.dtype.name())?,))?;
        let (sizes, strides) = (PyTuple::new(py, part.sizes)?, PyTuple::new(py, part.strides)?);
        // The strides of a view of a part are those of the whole memory: its offset stays.
        let offset = typed.call_method0(intern!(py, "storage_offset"))?;
        let view = typed.call_method1(intern!(py, "as_strided"), (sizes, strides, offset))?;
        let at = view.call_method0(intern!(py, "data_ptr"))?.extract()?;
        made.push((view, at));
    }
    made.try_into().map_err(|_| raise(Kind::State, "tensors without a place"))
}

/// Also raises PyTorch's own errors: of memory that is exhausted, say.
fn slowly_empty<'py, const N: usize>(
    py: Python<'py>,
    gpu: Option<i32>,
    dtype: DataType,
    dims: &Dims<N>,
) -> PyResult<Made<'py>> {
    let torch = py.import(intern!(py, "torch"))?;
    let named = PyDict::new(py);
    named.set_item("dtype", torch.getattr(dtype.name())?)?;
    named.set_item("device", gpu.map_or_else(|| "cpu".to_owned(), |gpu| format!("cuda:{gpu}")))?;
    let arguments = (PyTuple::new(py, dims.sizes)?, PyTuple::new(py, dims.strides)?);
    let made = torch.call_method("empty_strided", arguments, Some(&named))?;
    let at = made.call_method0(intern!(py, "data_ptr"))?.extract()?;
    Ok((made, at))
}

/// A tensor of PyTorch, which lives until its [`Tensor`] is dropped; no other code makes or keeps one.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct Handle(*mut c_void);

/// PyTorch's functions. Those that return a number return 0 if they succeed.
struct Functions {
    empty: unsafe extern "C" fn(i64, *const i64, *const i64, i32, i32, i32, *mut Handle) -> i32,
    part: unsafe extern "C" fn(Handle, i64, i32, i64, *const i64, *const i64, *mut Handle) -> i32,
    data: extern "C" fn(Handle, &mut *mut c_void) -> i32,
    delete: extern "C" fn(Handle) -> i32,
    wrap: unsafe extern "C" fn(Handle) -> *mut ffi::PyObject,
    dtypes: [i32; 7],
}

/// PyTorch's numbers of devices (`c10/core/DeviceType.h`).
const CPU: i32 = 0;
const CUDA: i32 = 1;

/// `PyObject* THPVariable_Wrap(const at::TensorBase&)`. A handle is an `at::Tensor*`, whose only base that is.
const WRAP: &CStr = c"_Z16THPVariable_WrapRKN2at10TensorBaseE";
/// The types of tensors that are made here, and the functions that return PyTorch's numbers of them.
const DTYPES: [(DataType, &CStr); 7] = [
    (DataType::Bfloat16, c"aoti_torch_dtype_bfloat16"),
    (DataType::Float32, c"aoti_torch_dtype_float32"),
    (DataType::Int32, c"aoti_torch_dtype_int32"),
    (DataType::Int64, c"aoti_torch_dtype_int64"),
    (DataType::Float8E4m3, c"aoti_torch_dtype_float8_e4m3fn"),
    (DataType::Bool, c"aoti_torch_dtype_bool"),
    (DataType::Uint8, c"aoti_torch_dtype_uint8"),
];

impl Functions {
    /// The functions of the PyTorch that this process has imported.
    fn find(py: Python<'_>) -> Option<&Functions> {
        static FOUND: PyOnceLock<Functions> = PyOnceLock::new();
        if let Some(found) = FOUND.get(py) {
            return Some(found);
        }
        let found = Functions::load()?;
        Some(FOUND.get_or_init(py, || found))
    }

    fn load() -> Option<Functions> {
        let (torch, python) = (loaded("libtorch_cpu.so")?, loaded("libtorch_python.so")?);
        let mut dtypes = [0; 7];
        for (number, (_, name)) in dtypes.iter_mut().zip(DTYPES) {
            // SAFETY: the type of these functions, which only return a number.
            *number = unsafe { symbol::<extern "C" fn() -> i32>(&torch, name)?() };
        }
        // SAFETY: the types that the headers of these functions declare.
        unsafe {
            Some(Functions {
                empty: symbol(&torch, c"aoti_torch_empty_strided")?,
                part: symbol(&torch, c"aoti_torch__alloc_from_pool")?,
                data: symbol(&torch, c"aoti_torch_get_data_ptr")?,
                delete: symbol(&torch, c"aoti_torch_delete_tensor_object")?,
                wrap: symbol(&python, WRAP)?,
                dtypes,
            })
        }
    }

    /// PyTorch's number of a type.
    fn number(&self, dtype: DataType) -> Option<i32> {
        DTYPES.iter().position(|(known, _)| *known == dtype).map(|index| self.dtypes[index])
    }

    fn empty(&self, gpu: Option<i32>, dtype: DataType, sizes: &[i64], strides: &[i64]) -> Option<Tensor<'_>> {
        let (device, number) = gpu.map_or((CPU, 0), |gpu| (CUDA, gpu));
        let (ndim, dtype, mut handle) = (sizes.len() as i64, self.number(dtype)?, Handle(null_mut()));
        // SAFETY: both arrays have `ndim` numbers; the function stores a handle of which this is the owner.
        let failed =
            unsafe { (self.empty)(ndim, sizes.as_ptr(), strides.as_ptr(), dtype, device, number, &raw mut handle) };
        (failed == 0).then_some(Tensor { handle, functions: self })
    }
}

/// A tensor that C owns.
struct Tensor<'a> {
    handle: Handle,
    functions: &'a Functions,
}

impl Tensor<'_> {
    /// A tensor of this memory, from so many bytes on.
    fn part(&self, place: usize, part: &Part<'_>) -> Option<Tensor<'_>> {
        let (functions, mut handle) = (self.functions, Handle(null_mut()));
        let (ndim, dtype) = (part.sizes.len() as i64, functions.number(part.dtype)?);
        let (sizes, strides) = (part.sizes.as_ptr(), part.strides.as_ptr());
        // SAFETY: the handle is valid, and both arrays have `ndim` numbers.
        let failed =
            unsafe { (functions.part)(self.handle, place as i64, dtype, ndim, sizes, strides, &raw mut handle) };
        (failed == 0).then_some(Tensor { handle, functions })
    }

    fn data(&self) -> u64 {
        let mut at = null_mut();
        (self.functions.data)(self.handle, &mut at);
        at.expose_provenance() as u64
    }

    /// An object of Python that shares the tensor.
    fn wrap<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: the handle is valid, and this thread holds Python's lock; a new reference, or null with an exception.
        unsafe { Bound::from_owned_ptr_or_err(py, (self.functions.wrap)(self.handle)) }
    }
}

impl Drop for Tensor<'_> {
    fn drop(&mut self) {
        (self.functions.delete)(self.handle);
    }
}

/// A library that this process has loaded. It stays, as Python unloads no extension.
fn loaded(name: &str) -> Option<Library> {
    // SAFETY: it loads nothing.
    unsafe { Library::open(Some(name), libc::RTLD_NOLOAD | RTLD_NOW) }.ok()
}

/// # Safety
/// `F` is the type of the function of this name.
unsafe fn symbol<F: Copy>(library: &Library, name: &CStr) -> Option<F> {
    // SAFETY: the caller's promise.
    unsafe { library.get::<F>(name.to_bytes_with_nul()) }.ok().map(|found| *found)
}
