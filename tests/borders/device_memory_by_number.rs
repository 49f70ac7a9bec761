//! A number is no device memory: buffers are, and unsafe code may say otherwise.
use symrail_cuda::Gpu;

fn anywhere(gpu: &Gpu, bytes: &mut [u8]) {
    let _ = gpu.fill(0x7f00_0000_0000, 0, 1 << 20);
    let _ = gpu.write(0x7f00_0000_0000, bytes);
    let _ = gpu.read(0x7f00_0000_0000, bytes);
}

fn main() {
    let _ = anywhere;
}
