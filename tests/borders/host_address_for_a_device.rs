//! A host address is no device address, not even in unsafe code.
use symrail_cuda::Gpu;

fn to_the_host(gpu: &Gpu, bytes: &mut [u8]) {
    let at = bytes.as_mut_ptr().addr() as u64;
    // SAFETY: none: the compiler must refuse it.
    let _ = unsafe { gpu.write(at, bytes) };
}

fn main() {
    let _ = to_the_host;
}
