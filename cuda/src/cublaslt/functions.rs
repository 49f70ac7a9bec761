//! cuBLASLt's functions.
//!
//! They are looked up one by one, as those of NVRTC. So the library may be in a toolkit's folder or a Python wheel's,
//! and a missing one is an error.

use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::ptr::null_mut;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::product::{Attributes, COMPUTE, Layout, SCALES};
use super::{Chosen, Places, Product};
use crate::error::{CudaError, Result};

pub(super) type Handle = *mut c_void;
pub(super) type Status = c_int;
pub(super) type Algorithm = [u64; 8];

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Found {
    pub algorithm: Algorithm,
    pub workspace: usize,
    pub state: Status,
    pub waves: f32,
    pub reserved: [c_int; 4],
}

pub(super) type Create = unsafe extern "C" fn(*mut Handle) -> Status;
pub(super) type Destroy = unsafe extern "C" fn(Handle) -> Status;
pub(super) type Set = unsafe extern "C" fn(Handle, c_int, *const c_void, usize) -> Status;
pub(super) type CreateLayout = unsafe extern "C" fn(*mut Handle, c_int, u64, u64, i64) -> Status;
pub(super) type CreateProduct = unsafe extern "C" fn(*mut Handle, c_int, c_int) -> Status;
type Choose = unsafe extern "C" fn(
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    c_int,
    *mut Found,
    *mut c_int,
) -> Status;
type Multiply = unsafe extern "C" fn(
    Handle,
    Handle,
    *const c_void,
    *const c_void,
    Handle,
    *const c_void,
    Handle,
    *const c_void,
    *const c_void,
    Handle,
    *mut c_void,
    Handle,
    *const Algorithm,
    *mut c_void,
    usize,
    *mut c_void,
) -> Status;

/// The library's functions.
pub(super) struct Functions {
    pub create: Create,
    pub destroy: Destroy,
    pub layout: (CreateLayout, Destroy),
    pub product: (CreateProduct, Destroy, Set),
    pub preference: (Create, Destroy, Set),
    pub choose: Choose,
    pub multiply: Multiply,
    pub _library: Option<Library>,
}

/// An object of the library, with the function that destroys it.
struct Owned(Handle, Destroy);

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: made by the function that belongs to this one, destroyed once.
        let _ = unsafe { (self.1)(self.0) };
    }
}

impl Functions {
    pub(super) fn load(folders: &[PathBuf]) -> Result<Functions> {
        let versions = ["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"];
        let (library, _) = crate::library::open(folders, &versions, RTLD_NOW | RTLD_LOCAL, |_| None::<()>)
            .map_err(|tried| CudaError::NoCublasLt { tried })?;
        // SAFETY: the library is cuBLASLt, by its name.
        unsafe { Functions::of(library) }
    }

    /// # Safety
    /// The library is cuBLASLt.
    unsafe fn of(library: Library) -> Result<Functions> {
        macro_rules! function {
            ($name:literal) => {{
                // SAFETY: the caller's promise; the types are those of cuBLASLt's header.
                let symbol = unsafe { library.get($name) };
                *symbol.map_err(|error| CudaError::NoCublasLt { tried: error.to_string() })?
            }};
        }
        Ok(Functions {
            create: function!(b"cublasLtCreate"),
            destroy: function!(b"cublasLtDestroy"),
            layout: (function!(b"cublasLtMatrixLayoutCreate"), function!(b"cublasLtMatrixLayoutDestroy")),
            product: (
                function!(b"cublasLtMatmulDescCreate"),
                function!(b"cublasLtMatmulDescDestroy"),
                function!(b"cublasLtMatmulDescSetAttribute"),
            ),
            preference: (
                function!(b"cublasLtMatmulPreferenceCreate"),
                function!(b"cublasLtMatmulPreferenceDestroy"),
                function!(b"cublasLtMatmulPreferenceSetAttribute"),
            ),
            choose: function!(b"cublasLtMatmulAlgoGetHeuristic"),
            multiply: function!(b"cublasLtMatmul"),
            _library: Some(library),
        })
    }

    /// The library's objects for the attributes: the product, and the three layouts.
    fn made(&self, gpu: i32, product: &Product, attributes: &Attributes) -> Result<(Owned, [Owned; 3])> {
        let (create, destroy, set) = self.product;
        let mut raw = null_mut();
        // SAFETY: the library writes one handle. Sums and scales are 32-bit floats.
        let made = unsafe { create(&raw mut raw, COMPUTE, SCALES) };
        said(gpu, "cublasLtMatmulDescCreate", made, Some(product))?;
        let description = Owned(raw, destroy);
        set_all(gpu, product, ("cublasLtMatmulDescSetAttribute", set), &description, &attributes.product)?;
        let (create, destroy) = self.layout;
        let layout = |(code, rows, columns, lead): Layout| {
            let mut raw = null_mut();
            // SAFETY: as above.
            let made = unsafe { create(&raw mut raw, code, rows, columns, lead) };
            said(gpu, "cublasLtMatrixLayoutCreate", made, Some(product)).map(|()| Owned(raw, destroy))
        };
        let [weight, rows, to] = attributes.layouts;
        Ok((description, [layout(weight)?, layout(rows)?, layout(to)?]))
    }

    pub(super) fn choose(
        &self,
        gpu: i32,
        handle: Handle,
        product: &Product,
        attributes: &Attributes,
    ) -> Result<Chosen> {
        let (description, [weight, rows, to]) = self.made(gpu, product, attributes)?;
        let (create, destroy, set) = self.preference;
        let mut raw = null_mut();
        // SAFETY: the library writes one handle.
        said(gpu, "cublasLtMatmulPreferenceCreate", unsafe { create(&raw mut raw) }, Some(product))?;
        let preference = Owned(raw, destroy);
        let set = ("cublasLtMatmulPreferenceSetAttribute", set);
        set_all(gpu, product, set, &preference, &attributes.preference)?;
        let (mut found, mut count) = (Found::default(), 0);
        // SAFETY: handles of this library, and room for one result and the number of results.
        let answer = unsafe {
            let (count, found) = (&raw mut count, &raw mut found);
            (self.choose)(handle, description.0, weight.0, rows.0, to.0, to.0, preference.0, 1, found, count)
        };
        said(gpu, "cublasLtMatmulAlgoGetHeuristic", answer, Some(product))?;
        match (count, found.state) {
            (1, 0) => Ok(Chosen(found.algorithm)),
            _ => Err(refused(gpu, "cublasLtMatmulAlgoGetHeuristic", NOT_SUPPORTED, Some(product))),
        }
    }

    /// # Safety
    /// As for [`CublasLt::multiply`](super::CublasLt::multiply).
    pub(super) unsafe fn multiply(
        &self,
        gpu: i32,
        handle: Handle,
        (product, attributes): (&Product, &Attributes),
        chosen: &Chosen,
        places: &Places,
        (stream, workspace): (*mut c_void, (u64, usize)),
    ) -> Result<()> {
        let (description, [weight, rows, to]) = self.made(gpu, product, attributes)?;
        let onto = if places.onto == 0 { places.product } else { places.onto };
        let [from_weight, from_rows, onto, out, room] = [places.weight, places.rows, onto, places.product, workspace.0]
            .map(|at| std::ptr::with_exposed_provenance_mut::<c_void>(at as usize));
        let (one, of_onto) = (1f32, if places.onto == 0 { 0f32 } else { 1f32 });
        let (alpha, beta) = ((&raw const one).cast::<c_void>(), (&raw const of_onto).cast::<c_void>());
        // SAFETY: the caller's promise; the host's numbers are read during the call.
        let multiply = |Chosen(algorithm): &Chosen| unsafe {
            (self.multiply)(
                handle,
                description.0,
                alpha,
                from_weight,
                weight.0,
                from_rows,
                rows.0,
                beta,
                onto,
                to.0,
                out,
                to.0,
                &raw const *algorithm,
                room,
                workspace.1,
                stream,
            )
        };
        let mut answer = multiply(chosen);
        if answer == NOT_SUPPORTED {
            answer = multiply(&self.choose(gpu, handle, product, attributes)?);
        }
        said(gpu, "cublasLtMatmul", answer, Some(product))
    }
}

/// Sets attributes of an object.
fn set_all(
    gpu: i32,
    product: &Product,
    (call, set): (&'static str, Set),
    of: &Owned,
    attributes: &[(i32, Vec<u8>)],
) -> Result<()> {
    for (key, value) in attributes {
        // SAFETY: a handle of the library; it copies the value during the call.
        said(gpu, call, unsafe { set(of.0, *key, value.as_ptr().cast(), value.len()) }, Some(product))?;
    }
    Ok(())
}

/// `CUBLAS_STATUS_NOT_SUPPORTED`.
pub(super) const NOT_SUPPORTED: Status = 15;

/// Converts the library's status to a result.
pub(super) fn said(gpu: i32, call: &'static str, answer: Status, product: Option<&Product>) -> Result<()> {
    if answer == 0 { Ok(()) } else { Err(refused(gpu, call, answer, product)) }
}

#[cold]
fn refused(gpu: i32, call: &'static str, answer: Status, product: Option<&Product>) -> CudaError {
    let name = match answer {
        1 => "CUBLAS_STATUS_NOT_INITIALIZED",
        3 => "CUBLAS_STATUS_ALLOC_FAILED",
        7 => "CUBLAS_STATUS_INVALID_VALUE",
        8 => "CUBLAS_STATUS_ARCH_MISMATCH",
        13 => "CUBLAS_STATUS_EXECUTION_FAILED",
        NOT_SUPPORTED => "CUBLAS_STATUS_NOT_SUPPORTED",
        _ => "another error of cuBLASLt",
    };
    let detail = product.map_or(String::new(), |it| {
        let ask = if it.has_scales() {
            "; inputs and outputs of 8-bit numbers are multiples of 16, weights are by outputs, not both are E5m2, scales \
             lie at multiples of 16 bytes, and a product with a bias has 16-bit numbers"
        } else {
            ""
        };
        let bias = if it.has_bias { ", and a bias" } else { "" };
        format!(": {} rows of {} x {} ({:?}){bias}{ask}", it.rows, it.inputs, it.outputs, it.numbers)
    });
    CudaError::Call { call, gpu, name: name.into(), text: format!("status {answer}"), detail }
}
