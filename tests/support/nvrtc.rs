//! NVRTC for tests that compile kernels. A test includes this file, and has `Nvrtc` at its root.

use std::path::PathBuf;

use super::Nvrtc;

/// NVRTC, from the folder of `scripts/cuda-wheels.sh` or from the system. Prints SKIPPED if there is none.
pub fn nvrtc() -> Option<Nvrtc> {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target"), PathBuf::from);
    match Nvrtc::load(&[target.join("cuda/nvidia/cu13/lib")]) {
        Ok(nvrtc) => Some(nvrtc),
        Err(error) => {
            println!("SKIPPED: {error}");
            None
        }
    }
}
