//! Matrix products by cuBLASLt, which is loaded on demand.
//!
//! The functions are looked up one by one, as those of NVRTC. So the library may be in a toolkit's folder or a Python
//! wheel's, and a missing one is an error.
//!
//! cuBLASLt reads matrices by columns. The product `y = x · wᵀ + bias`, all by rows, is requested as the product of `w`
//! (transposed) and `x`, both by columns. The columns of the result are rows of `y`.

use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::Arc;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::driver::{DeviceBuffer, Gpu};
use crate::error::{CudaError, Result};
use crate::stream::Stream;

/// The type of a matrix's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Number {
    /// 32-bit floats. Their products are computed from these, not from shorter ones.
    F32,
    /// IEEE's 16-bit floats.
    F16,
    /// The upper half of 32-bit floats.
    Bf16,
    /// 8-bit floats with 4 bits of exponent.
    E4m3,
    /// 8-bit floats with 5 bits of exponent.
    E5m2,
}

impl Number {
    /// Size of a number in bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Number::F32 => 4,
            Number::F16 | Number::Bf16 => 2,
            Number::E4m3 | Number::E5m2 => 1,
        }
    }

    /// Whether it has 8 bits. Then products have scales, and another type.
    #[must_use]
    pub fn is_short(self) -> bool {
        self.bytes() == 1
    }

    /// `cudaDataType_t`.
    fn code(self) -> i32 {
        match self {
            Number::F32 => 0,
            Number::F16 => 2,
            Number::Bf16 => 14,
            Number::E4m3 => 28,
            Number::E5m2 => 29,
        }
    }
}

/// The shape of a product: `rows` of `inputs` numbers, times `outputs` rows of as many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Product {
    /// Rows of the first factor and of the product.
    pub rows: usize,
    /// Numbers in a row of both factors.
    pub inputs: usize,
    /// Numbers in a row of the product.
    pub outputs: usize,
    /// The types of the first factor's numbers, of the weight's, and of the product's. The bias has the product's type.
    pub numbers: [Number; 3],
    /// Whether the weight's outputs are contiguous for each input, instead of inputs for each output.
    pub by_inputs: bool,
    /// Whether a number for each output is added to each row.
    pub has_bias: bool,
    /// The alignment of the addresses of rows, weight and product, in bytes.
    pub aligned: [u32; 3],
    /// Whether several multiprocessors may sum parts of a number, which is faster for few rows. Then the result depends
    /// on the number of rows.
    pub split: bool,
}

/// `cublasLtMatmulDescAttributes_t`, and those of preferences.
mod attribute {
    pub const TRANSPOSE_A: i32 = 3;
    pub const TRANSPOSE_B: i32 = 4;
    pub const EPILOGUE: i32 = 7;
    pub const BIAS: i32 = 8;
    pub const SCALE_A: i32 = 17;
    pub const SCALE_B: i32 = 18;
    pub const BIAS_TYPE: i32 = 26;
    pub const WORKSPACE: i32 = 1;
    pub const REDUCTIONS: i32 = 3;
    pub const ALIGNED: [i32; 4] = [5, 6, 7, 8];
}
/// `CUBLAS_COMPUTE_32F`, which sums in 32-bit floats; `CUBLAS_OP_T`; `CUBLASLT_EPILOGUE_BIAS`.
const COMPUTE: c_int = 68;
const TURNED: u32 = 1;
const ADD_BIAS: u32 = 4;

/// A matrix by columns: type, rows, columns, distance of columns.
type Layout = (i32, u64, u64, i64);

/// The attributes of a product for cuBLASLt: a 4- or 8-byte value for each.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Attributes {
    product: Vec<(i32, Vec<u8>)>,
    /// The layouts of the weight, the rows, and the product.
    layouts: [Layout; 3],
    preference: Vec<(i32, Vec<u8>)>,
}

impl Product {
    /// The attributes, for parts at these places.
    fn attributes(&self, places: &Places, workspace: usize) -> Attributes {
        let [rows, weight, product] = self.numbers.map(Number::code);
        let [m, n, k] = [self.outputs, self.rows, self.inputs].map(|size| size as u64);
        let mut attributes = vec![
            (attribute::TRANSPOSE_A, (if self.by_inputs { 0 } else { TURNED }).to_ne_bytes().to_vec()),
            (attribute::TRANSPOSE_B, 0u32.to_ne_bytes().to_vec()),
        ];
        if self.has_bias {
            attributes.push((attribute::EPILOGUE, ADD_BIAS.to_ne_bytes().to_vec()));
            attributes.push((attribute::BIAS, places.bias.to_ne_bytes().to_vec()));
            attributes.push((attribute::BIAS_TYPE, product.to_ne_bytes().to_vec()));
        }
        if self.numbers[1].is_short() {
            attributes.push((attribute::SCALE_A, places.scales[1].to_ne_bytes().to_vec()));
            attributes.push((attribute::SCALE_B, places.scales[0].to_ne_bytes().to_vec()));
        }
        let (weight_rows, weight_columns) = if self.by_inputs { (m, k) } else { (k, m) };
        let lead = weight_rows.cast_signed();
        let layouts = [
            (weight, weight_rows, weight_columns, lead),
            (rows, k, n, k.cast_signed()),
            (product, m, n, m.cast_signed()),
        ];
        let [of_rows, of_weight, of_product] = self.aligned;
        let aligned = attribute::ALIGNED.into_iter().zip([of_weight, of_rows, of_product, of_product]);
        let mut preference = vec![(attribute::WORKSPACE, (workspace as u64).to_ne_bytes().to_vec())];
        if !self.split {
            // Partial sums are excluded, so that a number's rounding does not depend on the number of rows.
            preference.push((attribute::REDUCTIONS, 0u32.to_ne_bytes().to_vec()));
        }
        preference.extend(aligned.map(|(key, bytes)| (key, bytes.to_ne_bytes().to_vec())));
        Attributes { product: attributes, layouts, preference }
    }
}

/// The addresses of a product's parts on the GPU; 0 for parts that it does not have.
#[derive(Debug, Clone, Copy, Default)]
pub struct Places {
    /// The first factor.
    pub rows: u64,
    /// The second factor.
    pub weight: u64,
    /// The product.
    pub product: u64,
    /// A matrix like the product, to which the product is added.
    pub onto: u64,
    /// The bias.
    pub bias: u64,
    /// The scales of rows and weight, for short numbers: 32-bit floats at multiples of 16 bytes.
    pub scales: [u64; 2],
}

type Handle = *mut c_void;
type Status = c_int;
type Algorithm = [u64; 8];

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Found {
    algorithm: Algorithm,
    workspace: usize,
    state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

type Create = unsafe extern "C" fn(*mut Handle) -> Status;
type Destroy = unsafe extern "C" fn(Handle) -> Status;
type Set = unsafe extern "C" fn(Handle, c_int, *const c_void, usize) -> Status;
type CreateLayout = unsafe extern "C" fn(*mut Handle, c_int, u64, u64, i64) -> Status;
type CreateProduct = unsafe extern "C" fn(*mut Handle, c_int, c_int) -> Status;
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
struct Functions {
    create: Create,
    destroy: Destroy,
    layout: (CreateLayout, Destroy),
    product: (CreateProduct, Destroy, Set),
    preference: (Create, Destroy, Set),
    choose: Choose,
    multiply: Multiply,
    _library: Option<Library>,
}

/// An object of the library, with the function that destroys it.
struct Owned(Handle, Destroy);

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: made by the function that belongs to this one, destroyed once.
        let _ = unsafe { (self.1)(self.0) };
    }
}

/// The algorithm of a [`Product`], for any number of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Chosen(Algorithm);

/// The loaded cuBLASLt, for one GPU.
pub struct CublasLt {
    gpu: Arc<Gpu>,
    functions: Functions,
    handle: Handle,
    workspace: DeviceBuffer,
}

// SAFETY: the library's handle may be used from any thread.
unsafe impl Send for CublasLt {}

/// Bytes of the workspace, NVIDIA's advice for Hopper.
const WORKSPACE: usize = 32 << 20;

impl CublasLt {
    /// Loads the library from one of the folders, or else from the system's paths. A library that another one, such as
    /// PyTorch, has loaded is found, too.
    ///
    /// # Errors
    /// The library is missing, or it refuses the GPU.
    pub fn load(gpu: &Arc<Gpu>, folders: &[PathBuf]) -> Result<CublasLt> {
        let functions = Functions::load(folders)?;
        gpu.bind()?;
        let mut handle = null_mut();
        // SAFETY: the library is loaded, and writes one handle.
        said(gpu.ordinal(), "cublasLtCreate", unsafe { (functions.create)(&raw mut handle) }, None)?;
        let made = gpu.alloc(WORKSPACE);
        let workspace = match made {
            Ok(workspace) => workspace,
            Err(error) => {
                // SAFETY: made above.
                let _ = unsafe { (functions.destroy)(handle) };
                return Err(error);
            }
        };
        Ok(CublasLt { gpu: Arc::clone(gpu), functions, handle, workspace })
    }

    /// The library's first choice for a product.
    ///
    /// # Errors
    /// The library has no algorithm.
    pub fn choose(&self, product: &Product) -> Result<Chosen> {
        self.gpu.bind()?;
        // Any address will do: the choice depends only on the alignment, which the preference has.
        let places = Places { bias: 256, scales: [256; 2], ..Places::default() };
        let attributes = product.attributes(&places, self.workspace.bytes());
        self.functions.choose(self.gpu.ordinal(), self.handle, product, &attributes)
    }

    /// Puts a product on a stream. An algorithm that was chosen for more rows does not always work for few, such as a
    /// single one. Then the library chooses again, and may sum in another order. All products of one library handle
    /// share one workspace, so they run one after the other, on streams that wait for each other.
    ///
    /// # Safety
    /// Rows, weight, product, the matrix to add, bias and scales are where `places` says, at addresses that the GPU can
    /// access, and stay until the stream has reached this point. No one else writes to them, or uses the product.
    ///
    /// # Errors
    /// The error of the library; as a rule, an algorithm of another product.
    pub unsafe fn multiply(&self, stream: &Stream, product: &Product, chosen: &Chosen, places: &Places) -> Result<()> {
        self.gpu.bind()?;
        let attributes = product.attributes(places, self.workspace.bytes());
        let workspace = (self.workspace.at().get(), self.workspace.bytes());
        let to = (stream.raw().cast(), workspace);
        // SAFETY: the caller's promise.
        unsafe { self.functions.multiply(self.gpu.ordinal(), self.handle, (product, &attributes), chosen, places, to) }
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // SAFETY: made by `load`, ended once.
        let _ = unsafe { (self.functions.destroy)(self.handle) };
    }
}

impl Functions {
    fn load(folders: &[PathBuf]) -> Result<Functions> {
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
        let made = unsafe { create(&raw mut raw, COMPUTE, Number::F32.code()) };
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

    fn choose(&self, gpu: i32, handle: Handle, product: &Product, attributes: &Attributes) -> Result<Chosen> {
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
    /// As for [`CublasLt::multiply`].
    unsafe fn multiply(
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
const NOT_SUPPORTED: Status = 15;

/// Converts the library's status to a result.
fn said(gpu: i32, call: &'static str, answer: Status, product: Option<&Product>) -> Result<()> {
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
        let ask = if it.numbers[1].is_short() {
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

#[cfg(test)]
#[path = "cublaslt_tests.rs"]
mod tests;
