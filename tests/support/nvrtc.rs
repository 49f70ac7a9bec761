//! NVRTC for tests that compile kernels. A test includes this file, and has `Nvrtc` at its root.

use std::path::PathBuf;

use super::Nvrtc;

/// NVRTC, from where `scripts/cuda-wheels.sh` puts it or from the system. Says SKIPPED where there is none.
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
