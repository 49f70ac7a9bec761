//! DLPack: passes memory to another library as a tensor, without a copy, and reads the layout of other libraries'
//! tensors.
//!
//! The consumer that takes the tensor out of the capsule frees it, in any thread, with Python's lock or without; until
//! then the memory is kept.

use std::ffi::{CStr, c_int, c_void};
use std::marker::PhantomData;
use std::sync::Arc;

use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;

use crate::dtype::Type;
use crate::errors::{Kind, raise};
use crate::layout::Layout;

/// Kinds of devices, by DLPack's numbers.
const CPU: i32 = 1;
pub const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;
pub const OTHER: i32 = 12;

const EXCHANGE: &CStr = c"dlpack_exchange_api";
/// The version of the structs below; later versions with the same major number add fields at the end.
const VERSION: [u32; 2] = [1, 1];

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: [i32; 2],
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Plain {
    tensor: Tensor,
    context: Box<Context>,
    deleter: extern "C" fn(Box<Plain>),
}

#[repr(C)]
struct Versioned {
    version: [u32; 2],
    context: Box<Context>,
    deleter: extern "C" fn(Box<Versioned>),
    flags: u64,
    tensor: Tensor,
}

/// The used part of the table that a class of tensors offers to C: `__dlpack_c_exchange_api__`.
#[repr(C)]
struct Exchange {
    version: [u32; 2],
    older: *const Exchange,
    unused: [*const c_void; 3],
    look: Option<unsafe extern "C" fn(*mut ffi::PyObject, *mut Tensor) -> c_int>,
}

/// What a tensor's class tells C of it. Its lengths and strides are the tensor's own.
pub struct Seen<'a> {
    tensor: Tensor,
    _of: PhantomData<&'a PyAny>,
}

impl Seen<'_> {
    /// The GPU whose memory it is in; `Some(None)` for memory of the host.
    pub fn gpu(&self) -> Option<Option<i32>> {
        match self.tensor.device {
            [CPU | CUDA_HOST, _] => Some(None),
            [CUDA, number] => Some(Some(number)),
            _ => None,
        }
    }

    /// DLPack's code and number of bits of the elements.
    pub fn code_and_bits(&self) -> Option<(u8, u8)> {
        (self.tensor.lanes == 1).then_some((self.tensor.code, self.tensor.bits))
    }

    pub fn address(&self) -> usize {
        self.tensor.data.expose_provenance() + self.tensor.byte_offset as usize
    }

    pub fn shape(&self) -> &[i64] {
        self.numbers(self.tensor.shape)
    }

    /// In elements; `None` if they are contiguous.
    pub fn strides(&self) -> Option<&[i64]> {
        (!self.tensor.strides.is_null()).then(|| self.numbers(self.tensor.strides))
    }

    fn numbers(&self, at: *const i64) -> &[i64] {
        match usize::try_from(self.tensor.ndim).unwrap_or(0) {
            0 => &[],
            // SAFETY: the tensor has so many lengths and, unless they are omitted, strides, which stay valid while it
            // does.
            ndim => unsafe { std::slice::from_raw_parts(at, ndim) },
        }
    }
}

/// What the functions tell that a tensor's class offers to C: several times as fast as the tensor's own methods, and no
/// mode of PyTorch sees it. `None` if the class offers none, or they fail.
pub fn look<'a>(tensor: &'a Bound<'_, PyAny>) -> PyResult<Option<Seen<'a>>> {
    let py = tensor.py();
    let Some(offer) = tensor.get_type().getattr_opt(intern!(py, "__dlpack_c_exchange_api__"))? else { return Ok(None) };
    let null = std::ptr::null_mut();
    let mut found = Tensor {
        data: null,
        device: [0; 2],
        ndim: 0,
        code: 0,
        bits: 0,
        lanes: 0,
        shape: null.cast(),
        strides: null.cast(),
        byte_offset: 0,
    };
    // SAFETY: a capsule of this name holds such a table, which lives as long as its class; the function fills in one
    // tensor, of an object of that class. This thread holds Python's lock.
    unsafe {
        if ffi::PyCapsule_IsValid(offer.as_ptr(), EXCHANGE.as_ptr()) != 1 {
            return Ok(None);
        }
        let table: *const Exchange = ffi::PyCapsule_GetPointer(offer.as_ptr(), EXCHANGE.as_ptr()).cast();
        match (*table).look {
            Some(look) if (*table).version[0] == VERSION[0] => {
                if look(tensor.as_ptr(), &raw mut found) != 0 {
                    drop(PyErr::take(py));
                    return Ok(None);
                }
            }
            _ => return Ok(None),
        }
    }
    Ok(Some(Seen { tensor: found, _of: PhantomData }))
}

/// The layout of a tensor, and the GPU whose memory it is in. `None` as for [`look`], and for elements or devices that
/// have no name here.
pub fn layout(tensor: &Bound<'_, PyAny>) -> PyResult<Option<(Layout, Option<i32>)>> {
    let Some(found) = look(tensor)? else { return Ok(None) };
    let ty = found.code_and_bits().and_then(|(code, bits)| Type::of_dlpack(code, bits));
    let (Some(ty), Some(gpu)) = (ty, found.gpu()) else { return Ok(None) };
    let (address, shape) = (found.address(), found.shape().iter().map(|&n| n as usize).collect());
    let Some(strides) = found.strides() else { return Ok(Some((Layout::contiguous(address, shape, ty), gpu))) };
    let strides = strides.iter().map(|&stride| stride as isize * ty.bytes as isize).collect();
    Ok(Some((Layout { address, shape, strides, ty }, gpu)))
}

/// The arrays that a managed tensor points to, and the memory that it keeps.
struct Context {
    shape: Vec<i64>,
    strides: Vec<i64>,
    _kept: Arc<dyn Send + Sync>,
}

/// A struct that capsules of this name hold.
trait Managed: Sized {
    const NAME: &CStr;
}

impl Managed for Plain {
    const NAME: &CStr = c"dltensor";
}

impl Managed for Versioned {
    const NAME: &CStr = c"dltensor_versioned";
}

/// A consumer calls it once.
extern "C" fn delete<T>(managed: Box<T>) {
    drop(managed);
}

/// Frees a tensor that no consumer has taken out of its capsule; a consumer renames the capsule.
unsafe extern "C" fn end_of_capsule<T: Managed>(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls it once, with its lock and a capsule of `keep`; the name belongs to the pointer that was
    // stored under it.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, T::NAME.as_ptr()) == 1 {
            drop(Box::from_raw(ffi::PyCapsule_GetPointer(capsule, T::NAME.as_ptr()).cast::<T>()));
        }
    }
}

fn keep<T: Managed>(py: Python<'_>, managed: T) -> PyResult<Bound<'_, PyAny>> {
    let managed = Box::into_raw(Box::new(managed));
    // SAFETY: the name is static, and the destructor frees the tensor; a new reference, or null with an exception.
    let made = unsafe {
        let made = ffi::PyCapsule_New(managed.cast(), T::NAME.as_ptr(), Some(end_of_capsule::<T>));
        Bound::from_owned_ptr_or_err(py, made)
    };
    // SAFETY: no capsule has it.
    made.inspect_err(|_| drop(unsafe { Box::from_raw(managed) }))
}

/// A capsule of these elements, with DLPack's versioned struct or the older one. `kept` keeps their memory.
pub fn capsule<'py>(
    py: Python<'py>,
    kept: Arc<dyn Send + Sync>,
    layout: &Layout,
    device: [i32; 2],
    versioned: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let (code, bits) = (layout.ty.dlpack())
        .ok_or_else(|| raise(Kind::Argument, &format!("DLPack has no elements of type {}", layout.ty.name())))?;
    let mut context = Box::new(Context {
        shape: layout.shape.iter().map(|&n| n as i64).collect(),
        strides: layout.strides.iter().map(|&stride| stride as i64 / layout.ty.bytes as i64).collect(),
        _kept: kept,
    });
    let tensor = Tensor {
        data: std::ptr::with_exposed_provenance_mut(layout.address),
        device,
        ndim: layout.shape.len() as i32,
        code,
        bits,
        lanes: 1,
        shape: context.shape.as_mut_ptr(),
        strides: context.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    if versioned {
        keep(py, Versioned { version: VERSION, context, deleter: delete, flags: 0, tensor })
    } else {
        keep(py, Plain { tensor, context, deleter: delete })
    }
}
