//! The CUDA driver's devices; no device gets a context for this.

use symrail_cuda::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED;
use symrail_cuda::{CudaError, Device, Gpu};

use super::report::{self, Cuda, Missing};

/// The version that the driver supports, such as `12.4`, if it reports one.
pub fn version() -> Result<Option<String>, Missing> {
    if !Gpu::has_driver() {
        return Err(Missing {
            reason: "no CUDA driver (libcuda.so.1)".into(),
            remedy: "for GPUs install NVIDIA's driver; everything else works without".into(),
        });
    }
    let version = Gpu::driver_version();
    Ok((version > 0).then(|| format!("{}.{}", version / 1000, version % 1000 / 10)))
}

/// Queries the driver.
pub fn find_out() -> Cuda {
    let driver = match version() {
        Ok(version) => version,
        Err(missing) => return Cuda { missing: Some(missing), ..Cuda::default() },
    };
    match Device::all() {
        Ok(devices) => {
            Cuda { driver, missing: None, devices: (0..devices.len()).map(|number| gpu(&devices, number)).collect() }
        }
        Err(error) => Cuda { missing: Some(silent(&error)), ..Cuda::default() },
    }
}

fn silent(error: &CudaError) -> Missing {
    Missing {
        reason: format!("the CUDA driver does not start ({error})"),
        remedy: "check that a GPU is there and that nvidia-smi works".into(),
    }
}

fn gpu(devices: &[Device], number: usize) -> report::Gpu {
    let device = &devices[number];
    let others = (0..).zip(devices).filter(|(other, _)| *other != number);
    let (major, minor) = device.compute_capability();
    report::Gpu {
        number,
        name: device.name(),
        pci: device.pci().map(|pci| pci.to_string()),
        memory_bytes: device.memory() as u64,
        compute_capability: format!("{major}.{minor}"),
        dmabuf: device.attribute(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) != 0,
        cannot_map: others.filter(|(_, other)| !device.maps(other)).map(|(other, _)| other).collect(),
    }
}
