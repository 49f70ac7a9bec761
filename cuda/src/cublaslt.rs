//! Matrix products by cuBLASLt, which is loaded when needed.
//!
//! The functions are tried up by hand, as NVRTC's are: libraries of a toolkit's folder or a Python wheel's are found,
//! too, and a library that is missing is an error.
//!
//! cuBLASLt reads matrices by columns. `y = x · wᵀ + bias`, all by rows, is asked for as the product of `w` (turned)
//! and `x`, both by columns, whose columns are rows of `y`. `Told` is all that the library is told.

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
    /// 32-bit floats. Products of them are made of these alone, not of shorter ones.
    F32,
    /// IEEE's 16-bit floats.
    F16,
    /// The upper half of 32-bit floats.
    Bf16,
    /// 8-bit floats of 4 bits of exponent.
    E4m3,
    /// 8-bit floats of 5 bits of exponent.
    E5m2,
}

impl Number {
    /// Bytes of one.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Number::F32 => 4,
            Number::F16 | Number::Bf16 => 2,
            Number::E4m3 | Number::E5m2 => 1,
        }
    }

    /// Whether it has 8 bits: then products have scales, and are of another type.
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
    /// Numbers of a row of both factors.
    pub inputs: usize,
    /// Numbers of a row of the product.
    pub outputs: usize,
    /// The types of the first factor's numbers, of the weight's, and of the product's, which the bias has too.
    pub numbers: [Number; 3],
    /// Outputs lie together for each input, instead of inputs for each output.
    pub by_inputs: bool,
    /// A number for each output is added to each row.
    pub has_bias: bool,
    /// What the addresses of rows, weight and product are multiples of, in bytes.
    pub aligned: [u32; 3],
    /// A number may be the sum of sums that several multiprocessors make, which is faster for few rows: then it depends
    /// on how many rows there are.
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

/// A matrix by columns: the type, rows, columns, and the distance of columns.
type Layout = (i32, u64, u64, i64);

/// What cuBLASLt is told of a product: a 4- or 8-byte value for each attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Told {
    product: Vec<(i32, Vec<u8>)>,
    /// The weight, the rows, the product.
    layouts: [Layout; 3],
    preference: Vec<(i32, Vec<u8>)>,
}

impl Product {
    /// Where what a product needs lies.
    fn told(&self, places: &Places, workspace: usize) -> Told {
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
            // No sums of sums: how a number is summed does not depend on how many rows there are.
            preference.push((attribute::REDUCTIONS, 0u32.to_ne_bytes().to_vec()));
        }
        preference.extend(aligned.map(|(key, bytes)| (key, bytes.to_ne_bytes().to_vec())));
        Told { product: attributes, layouts, preference }
    }
}

/// Where the parts of a product are, by addresses of the GPU; those that it does not have are 0.
#[derive(Debug, Clone, Copy, Default)]
pub struct Places {
    /// The first factor.
    pub rows: u64,
    /// The second one.
    pub weight: u64,
    /// The product.
    pub product: u64,
    /// Numbers of its type, as many, to which it is added.
    pub onto: u64,
    /// The bias.
    pub bias: u64,
    /// For short numbers a 32-bit float each, by which rows and weight are multiplied, at multiples of 16 bytes.
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

/// Something of the library's, ended by its function.
struct Owned(Handle, Destroy);

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: made by the function that goes with this one, ended once.
        let _ = unsafe { (self.1)(self.0) };
    }
}

/// How a product's numbers are summed: of one [`Product`], and for as many rows as one likes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Chosen(Algorithm);

/// cuBLASLt, loaded, for one GPU.
pub struct CublasLt {
    gpu: Arc<Gpu>,
    functions: Functions,
    handle: Handle,
    workspace: DeviceBuffer,
}

// SAFETY: the library's handle may be used from any thread.
unsafe impl Send for CublasLt {}

/// Bytes of the workspace, as NVIDIA advises for Hopper.
const WORKSPACE: usize = 32 << 20;

impl CublasLt {
    /// Loads the library from one of the folders, else from where the system finds libraries: also that which another
    /// one, as PyTorch, has loaded.
    ///
    /// # Errors
    /// There is none, or it refuses the GPU.
    pub fn load(gpu: &Arc<Gpu>, folders: &[PathBuf]) -> Result<CublasLt> {
        let functions = Functions::load(folders)?;
        gpu.bind()?;
        let mut handle = null_mut();
        // SAFETY: the library is there, and writes one handle.
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
    /// It has none.
    pub fn choose(&self, product: &Product) -> Result<Chosen> {
        self.gpu.bind()?;
        // Any address: the choice depends on how it is aligned, which the preference says.
        let places = Places { bias: 256, scales: [256; 2], ..Places::default() };
        let told = product.told(&places, self.workspace.bytes());
        self.functions.choose(self.gpu.ordinal(), self.handle, product, &told)
    }

    /// Puts a product on a stream. What was chosen for more rows does not do for few ones always, as for a single one:
    /// the library chooses again for these then, and may sum in another order. Products of one library's handle are
    /// made one after the other, on streams that follow each other: they use one workspace.
    ///
    /// # Safety
    /// Rows, weight, product, what it is added to, bias and scales are where `places` says, as the GPU reaches them, and stay until the
    /// stream has come so far; nobody else writes to them, nor uses the product.
    ///
    /// # Errors
    /// What the library says: an algorithm of another product, as a rule.
    pub unsafe fn multiply(&self, stream: &Stream, product: &Product, chosen: &Chosen, places: &Places) -> Result<()> {
        self.gpu.bind()?;
        let told = product.told(places, self.workspace.bytes());
        let workspace = (self.workspace.at().get(), self.workspace.bytes());
        let to = (stream.raw().cast(), workspace);
        // SAFETY: the caller's promise.
        unsafe { self.functions.multiply(self.gpu.ordinal(), self.handle, (product, &told), chosen, places, to) }
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
        // SAFETY: the library is cuBLASLt by its name.
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

    /// The library's own form of what it is told: the product, and the three layouts.
    fn made(&self, gpu: i32, product: &Product, told: &Told) -> Result<(Owned, [Owned; 3])> {
        let (create, destroy, set) = self.product;
        let mut raw = null_mut();
        // SAFETY: the library writes one handle. Sums, and scales, are 32-bit floats.
        let made = unsafe { create(&raw mut raw, COMPUTE, Number::F32.code()) };
        said(gpu, "cublasLtMatmulDescCreate", made, Some(product))?;
        let description = Owned(raw, destroy);
        set_all(gpu, product, ("cublasLtMatmulDescSetAttribute", set), &description, &told.product)?;
        let (create, destroy) = self.layout;
        let layout = |(code, rows, columns, lead): Layout| {
            let mut raw = null_mut();
            // SAFETY: as above.
            let made = unsafe { create(&raw mut raw, code, rows, columns, lead) };
            said(gpu, "cublasLtMatrixLayoutCreate", made, Some(product)).map(|()| Owned(raw, destroy))
        };
        let [weight, rows, to] = told.layouts;
        Ok((description, [layout(weight)?, layout(rows)?, layout(to)?]))
    }

    fn choose(&self, gpu: i32, handle: Handle, product: &Product, told: &Told) -> Result<Chosen> {
        let (description, [weight, rows, to]) = self.made(gpu, product, told)?;
        let (create, destroy, set) = self.preference;
        let mut raw = null_mut();
        // SAFETY: the library writes one handle.
        said(gpu, "cublasLtMatmulPreferenceCreate", unsafe { create(&raw mut raw) }, Some(product))?;
        let preference = Owned(raw, destroy);
        let set = ("cublasLtMatmulPreferenceSetAttribute", set);
        set_all(gpu, product, set, &preference, &told.preference)?;
        let (mut found, mut count) = (Found::default(), 0);
        // SAFETY: handles of this library, and room for one answer and its number.
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
        (product, told): (&Product, &Told),
        chosen: &Chosen,
        places: &Places,
        (stream, workspace): (*mut c_void, (u64, usize)),
    ) -> Result<()> {
        let (description, [weight, rows, to]) = self.made(gpu, product, told)?;
        let onto = if places.onto == 0 { places.product } else { places.onto };
        let [from_weight, from_rows, onto, out, room] = [places.weight, places.rows, onto, places.product, workspace.0]
            .map(|at| std::ptr::with_exposed_provenance_mut::<c_void>(at as usize));
        let (one, of_onto) = (1f32, if places.onto == 0 { 0f32 } else { 1f32 });
        let (alpha, beta) = ((&raw const one).cast::<c_void>(), (&raw const of_onto).cast::<c_void>());
        // SAFETY: the caller's promise; numbers of the host are read during the call.
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
            answer = multiply(&self.choose(gpu, handle, product, told)?);
        }
        said(gpu, "cublasLtMatmul", answer, Some(product))
    }
}

/// Sets attributes of something.
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

/// Makes a result of the library's answer.
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
