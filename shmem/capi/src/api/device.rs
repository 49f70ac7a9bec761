//! Kernels as devices of PEs (`shmemx.h`): passes the PE's state to programs that nvcc compiled.

use std::ffi::{c_int, c_void};

use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::DevicePtr;

use crate::job::job;

/// Runs a call with the PE's GPU; the first call makes it the PE's device.
fn with_device(function: &str, work: impl FnOnce(&GpuDevice) -> Result<(), Box<dyn std::error::Error>>) -> c_int {
    let job = job(function);
    let mut device = job.device.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let made = match device.take() {
        Some(made) => Ok(made),
        None => job.runtime.own_gpu().and_then(|gpu| job.runtime.gpu_device(&gpu)),
    };
    let worked = made.map_err(Into::into).and_then(|made| work(device.insert(made)));
    match worked {
        Ok(()) => 0,
        Err(error) => {
            tracing::error!("{function}: {error}");
            1
        }
    }
}

export! {
    ["shmemx_device_attach"] fn(state: *mut c_void, bytes: usize) -> c_int {
        with_device(NAME, |device| {
            // SAFETY: what C promises: the address of a program's symrail_state.
            unsafe { device.state().attach_at(DevicePtr::new(state.addr() as u64), bytes) }.map_err(Into::into)
        })
    }
    ["shmemx_device_ptr"] fn(dest: *const c_void) -> *mut c_void {
        let mut address = 0;
        let symmetric = job(NAME).runtime.is_symmetric(dest.cast(), 1);
        if symmetric {
            with_device(NAME, |device| {
                address = device.address(dest.cast());
                Ok(())
            });
        }
        std::ptr::with_exposed_provenance_mut(address as usize)
    }
    ["shmemx_device_check"] fn() -> c_int {
        with_device(NAME, |device| device.state().check().map_err(Into::into))
    }
}
