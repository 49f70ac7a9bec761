//! A number is no device memory: only buffers are, and pointers that unsafe code makes.
use symrail_cuda::{DevicePtr, Gpu};

fn anywhere(gpu: &Gpu, bytes: &mut [u8]) {
    let at = DevicePtr::new(0x7f00_0000_0000);
    let _ = gpu.fill(at, 0, 1 << 20);
    let _ = gpu.write(at, bytes);
    let _ = gpu.read(at, bytes);
}

fn main() {
    let _ = anywhere;
}
