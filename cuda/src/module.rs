//! Loaded programs and their kernels.

use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUfunction, CUmodule, CUresult};

use crate::driver::Gpu;
use crate::error::{CudaError, Result, check, cuda};
use crate::nvrtc::Compiled;
use crate::pointer::DevicePtr;

/// A loaded program.
#[derive(Debug)]
pub struct Module {
    gpu: Arc<Gpu>,
    raw: CUmodule,
}

// SAFETY: modules belong to a context, and any thread may use it.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads a compiled program: its machine code, or its PTX where that does not fit the GPU.
    ///
    /// # Errors
    /// The driver's error.
    pub fn load(gpu: &Arc<Gpu>, program: &Compiled) -> Result<Arc<Self>> {
        gpu.bind()?;
        let mut raw = null_mut();
        // SAFETY: a whole cubin or a terminated PTX text, from NVRTC.
        let load = |image: &[u8], raw: &mut CUmodule| unsafe { sys::cuModuleLoadData(raw, image.as_ptr().cast()) };
        let mut answer = load(program.cubin(), &mut raw);
        if answer == CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU {
            answer = load(program.ptx(), &mut raw);
        }
        check(gpu.ordinal(), "cuModuleLoadData", answer)?;
        Ok(Arc::new(Self { gpu: Arc::clone(gpu), raw }))
    }

    /// A kernel of the program, which is loaded into the GPU now: a kernel that is loaded at its first launch can
    /// deadlock with one that waits for it.
    ///
    /// # Errors
    /// There is no kernel with this name.
    pub fn kernel(self: &Arc<Self>, name: &str) -> Result<Kernel> {
        self.gpu.bind()?;
        let missing = || CudaError::NoKernel { name: name.into() };
        let text = CString::new(name).map_err(|_| missing())?;
        let (mut raw, mut registers) = (null_mut(), 0);
        // SAFETY: a loaded module, a terminated string, and places for the results. Querying an attribute loads the
        // kernel.
        unsafe {
            if sys::cuModuleGetFunction(&raw mut raw, self.raw, text.as_ptr()) != CUresult::CUDA_SUCCESS {
                return Err(missing());
            }
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS;
            check(
                self.gpu.ordinal(),
                "cuFuncGetAttribute",
                sys::cuFuncGetAttribute(&raw mut registers, attribute, raw),
            )?;
        }
        Ok(Kernel { module: Arc::clone(self), raw, registers })
    }

    /// The address and the size of a global variable or constant; `None` if there is none with this name.
    ///
    /// # Errors
    /// The driver's error.
    pub fn global(&self, name: &str) -> Result<Option<(DevicePtr, usize)>> {
        // SAFETY: a loaded module.
        unsafe { global(&self.gpu, self.raw, name) }
    }

    /// The GPU that it is loaded into.
    #[must_use]
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }
}

/// As [`Module::global`], for a module that other code has loaded.
///
/// # Safety
/// `module` is the `CUmodule` of a loaded module of the GPU.
///
/// # Errors
/// The driver's error.
pub unsafe fn global_of_others(gpu: &Gpu, module: *mut c_void, name: &str) -> Result<Option<(DevicePtr, usize)>> {
    // SAFETY: the caller's promise.
    unsafe { global(gpu, module.cast(), name) }
}

/// # Safety
/// `module` is a loaded module of the GPU.
unsafe fn global(gpu: &Gpu, module: CUmodule, name: &str) -> Result<Option<(DevicePtr, usize)>> {
    gpu.bind()?;
    let (mut at, mut bytes) = (0, 0);
    let Ok(name) = CString::new(name) else { return Ok(None) };
    // SAFETY: a loaded module, a terminated string, and places for the results.
    let answer = unsafe { sys::cuModuleGetGlobal_v2(&raw mut at, &raw mut bytes, module, name.as_ptr()) };
    Ok((answer == CUresult::CUDA_SUCCESS).then_some((DevicePtr::new(at), bytes)))
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: loaded by `load`; kernels keep the module alive.
            let _ = unsafe { sys::cuModuleUnload(self.raw) };
        }
    }
}

/// A kernel of a module.
#[derive(Debug, Clone)]
pub struct Kernel {
    // The module stays loaded as long as one of its kernels exists.
    module: Arc<Module>,
    pub(crate) raw: CUfunction,
    registers: i32,
}

// SAFETY: as for `Module`.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// Registers per thread.
    #[must_use]
    pub fn registers(&self) -> i32 {
        self.registers
    }

    /// How many blocks of so many threads the GPU runs at once, if it runs nothing else.
    ///
    /// # Errors
    /// The driver's error.
    pub fn blocks_at_once(&self, threads: u32) -> Result<usize> {
        let gpu = &self.module.gpu;
        gpu.bind()?;
        let mut of_each = 0;
        // SAFETY: a kernel of a loaded module without dynamic shared memory, and a place for the result.
        unsafe {
            cuda!(
                gpu.ordinal(),
                cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut of_each, self.raw, threads as i32, 0)
            )
        }?;
        Ok(of_each.unsigned_abs() as usize * gpu.multiprocessors() as usize)
    }
}
