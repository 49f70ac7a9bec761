//! Properties of GPUs that the driver reports without a context.

use std::ffi::{c_char, c_int};

use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute, CUresult};
use symrail_core::PciAddress;

use super::error::{CudaError, Result, cuda};

/// A GPU of the driver.
#[derive(Debug, Clone, Copy)]
pub struct Device(pub(crate) CUdevice);

impl Device {
    /// All GPUs, by their numbers.
    ///
    /// # Errors
    /// No driver, or the error of the driver.
    pub fn all() -> Result<Vec<Device>> {
        // SAFETY: the call only tries to load the library.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoDriver);
        }
        let mut count = 0;
        // SAFETY: the library is loaded, and writes one number.
        unsafe {
            cuda!(0, cuInit(0))?;
            cuda!(0, cuDeviceGetCount(&raw mut count))?;
        }
        let get = |ordinal| {
            let mut device = 0;
            // SAFETY: the driver writes one handle.
            unsafe { cuda!(ordinal, cuDeviceGet(&raw mut device, ordinal)) }.map(|()| Device(device))
        };
        (0..count).map(get).collect()
    }

    /// The driver's handle.
    #[must_use]
    pub fn device(&self) -> CUdevice {
        self.0
    }

    /// An attribute of the GPU; 0 if the driver does not know it.
    #[must_use]
    pub fn attribute(&self, attribute: CUdevice_attribute) -> i32 {
        let mut value = 0;
        // SAFETY: the driver writes one number.
        let _ = unsafe { sys::cuDeviceGetAttribute(&raw mut value, attribute, self.0) };
        value
    }

    /// Whether kernels on this GPU reach the memory of another one by loads and stores.
    #[must_use]
    pub fn maps(&self, other: &Device) -> bool {
        let mut possible = 0;
        // SAFETY: the driver writes one number.
        let asked = unsafe { cuda!(self.0, cuDeviceCanAccessPeer(&raw mut possible, self.0, other.0)) };
        asked.is_ok() && possible != 0
    }

    /// The number of multiprocessors.
    #[must_use]
    pub fn multiprocessors(&self) -> u32 {
        self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT).unsigned_abs()
    }

    /// Compute capability: major and minor.
    #[must_use]
    pub fn compute_capability(&self) -> (i32, i32) {
        use CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        };
        (self.attribute(MAJOR), self.attribute(MINOR))
    }

    /// The architecture for which programs are compiled, such as `sm_90`.
    #[must_use]
    pub fn arch(&self) -> String {
        let (major, minor) = self.compute_capability();
        format!("sm_{major}{minor}")
    }

    /// Size of its memory in bytes; 0 if the driver does not know it.
    #[must_use]
    pub fn memory(&self) -> usize {
        let mut bytes = 0;
        // SAFETY: the driver writes one number.
        let _ = unsafe { sys::cuDeviceTotalMem_v2(&raw mut bytes, self.0) };
        bytes
    }

    /// Its name, for messages.
    #[must_use]
    pub fn name(&self) -> String {
        self.text(sys::cuDeviceGetName)
    }

    /// Its PCI address, where the driver reports it.
    #[must_use]
    pub fn pci(&self) -> Option<PciAddress> {
        self.text(sys::cuDeviceGetPCIBusId).parse().ok()
    }

    /// A text from the driver; empty if the driver does not know it.
    fn text(&self, ask: unsafe fn(*mut c_char, c_int, CUdevice) -> CUresult) -> String {
        let mut text = [0u8; 96];
        // SAFETY: the driver writes a terminated string of at most the given length.
        let _ = unsafe { ask(text.as_mut_ptr().cast(), text.len() as c_int, self.0) };
        let end = text.iter().position(|&b| b == 0).unwrap_or(text.len());
        String::from_utf8_lossy(&text[..end]).into_owned()
    }
}
