//! The CUDA driver's devices, asked of `libcuda.so.1` by hand so that neither a toolkit nor a driver is needed.

use std::ffi::{c_char, c_int, c_uint};

use libloading::Library;

use super::report::{Cuda, Gpu, Missing};

/// `CUdevice_attribute` numbers.
const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
const COMPUTE_CAPABILITY_MINOR: c_int = 76;
const DMA_BUF_SUPPORTED: c_int = 124;

/// `CUresult` 0.
const SUCCESS: c_int = 0;

/// The functions used, with the signatures of `cuda.h` (`CUresult` and `CUdevice` are C ints).
struct Driver {
    init: unsafe extern "C" fn(c_uint) -> c_int,
    version: unsafe extern "C" fn(*mut c_int) -> c_int,
    count: unsafe extern "C" fn(*mut c_int) -> c_int,
    get: unsafe extern "C" fn(*mut c_int, c_int) -> c_int,
    name: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int,
    pci: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int,
    memory: unsafe extern "C" fn(*mut usize, c_int) -> c_int,
    attribute: unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int,
    /// Keeps the functions mapped.
    _library: Library,
}

impl Driver {
    fn load() -> Result<Self, libloading::Error> {
        // SAFETY: the driver's initialisers only set up its own state; each symbol has the type of cuda.h, and the
        // library lives as long as the function pointers taken from it.
        unsafe {
            let library = Library::new("libcuda.so.1")?;
            Ok(Driver {
                init: *library.get(b"cuInit\0")?,
                version: *library.get(b"cuDriverGetVersion\0")?,
                count: *library.get(b"cuDeviceGetCount\0")?,
                get: *library.get(b"cuDeviceGet\0")?,
                name: *library.get(b"cuDeviceGetName\0")?,
                pci: *library.get(b"cuDeviceGetPCIBusId\0")?,
                memory: *library.get(b"cuDeviceTotalMem_v2\0")?,
                attribute: *library.get(b"cuDeviceGetAttribute\0")?,
                _library: library,
            })
        }
    }

    fn gpu(&self, number: usize) -> Option<Gpu> {
        let ordinal = c_int::try_from(number).ok()?;
        let mut device = 0;
        // SAFETY: `device` is written; the driver was initialised before.
        (unsafe { (self.get)(&raw mut device, ordinal) } == SUCCESS).then_some(())?;
        let text = |ask: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int| {
            let mut bytes = [0u8; 256];
            // SAFETY: the driver writes at most as many bytes as it is told are there.
            let code = unsafe { ask(bytes.as_mut_ptr().cast(), bytes.len() as c_int, device) };
            let text = std::ffi::CStr::from_bytes_until_nul(&bytes).ok()?.to_string_lossy().into_owned();
            (code == SUCCESS).then_some(text)
        };
        let attribute = |which| {
            let mut value = 0;
            // SAFETY: `value` is written; a driver that does not know the attribute says so in its result.
            if unsafe { (self.attribute)(&raw mut value, which, device) } == SUCCESS { value } else { 0 }
        };
        let mut memory = 0;
        // SAFETY: `memory` is written.
        let memory = if unsafe { (self.memory)(&raw mut memory, device) } == SUCCESS { memory as u64 } else { 0 };
        Some(Gpu {
            number,
            name: text(self.name).unwrap_or_default(),
            pci: text(self.pci).map(|pci| pci.to_ascii_lowercase()),
            memory_bytes: memory,
            compute_capability: format!(
                "{}.{}",
                attribute(COMPUTE_CAPABILITY_MAJOR),
                attribute(COMPUTE_CAPABILITY_MINOR)
            ),
            dmabuf: attribute(DMA_BUF_SUPPORTED) != 0,
        })
    }
}

fn missing_driver() -> Missing {
    Missing {
        reason: "no CUDA driver (libcuda.so.1)".into(),
        remedy: "for GPUs install NVIDIA's driver; everything else works without".into(),
    }
}

/// The driver, not started, and the version that it supports.
pub fn version() -> Result<(impl Sized, Option<String>), Missing> {
    let driver = Driver::load().map_err(|_| missing_driver())?;
    let mut version = 0;
    // SAFETY: the integer is written.
    let known = unsafe { (driver.version)(&raw mut version) } == SUCCESS;
    Ok((driver, known.then(|| dotted(version))))
}

fn dotted(version: c_int) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Asks the driver.
pub fn find_out() -> Cuda {
    let missing = |reason: String, remedy: &str| Cuda {
        missing: Some(Missing { reason, remedy: remedy.into() }),
        ..Cuda::default()
    };
    let driver = match Driver::load() {
        Ok(driver) => driver,
        Err(_) => return Cuda { missing: Some(missing_driver()), ..Cuda::default() },
    };
    // SAFETY: the function takes flags, which must be 0.
    let code = unsafe { (driver.init)(0) };
    if code != SUCCESS {
        let remedy = "check that a GPU is there and that nvidia-smi works";
        return missing(format!("the CUDA driver does not start (cuInit: error {code})"), remedy);
    }
    let (mut version, mut count) = (0, 0);
    // SAFETY: both integers are written.
    let known = unsafe { (driver.version)(&raw mut version) == SUCCESS && (driver.count)(&raw mut count) == SUCCESS };
    let count = if known { usize::try_from(count).unwrap_or(0) } else { 0 };
    Cuda {
        driver: known.then(|| dotted(version)),
        missing: None,
        devices: (0..count).filter_map(|number| driver.gpu(number)).collect(),
    }
}
