//! Matrix products by cuBLASLt, which is loaded on demand.

mod functions;
mod product;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::Arc;

use functions::{Algorithm, Functions, Handle, said};
pub use product::{Places, Product, multiplies};

use crate::driver::{DeviceBuffer, Gpu};
use crate::error::Result;
use crate::stream::Stream;

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
// SAFETY: its calls with one handle may be concurrent; `multiply` says which calls may share the workspace.
unsafe impl Sync for CublasLt {}

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
    /// Types of numbers that products do not have; the library has no algorithm.
    pub fn choose(&self, product: &Product) -> Result<Chosen> {
        self.gpu.bind()?;
        // Any address will do: the choice depends only on the alignment, which the preference has.
        let places = Places { bias: 256, scales: [256; 2], ..Places::default() };
        let attributes = product.attributes(&places, self.workspace.bytes())?;
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
        let attributes = product.attributes(places, self.workspace.bytes())?;
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
