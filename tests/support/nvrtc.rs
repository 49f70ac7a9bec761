//! NVRTC for tests that compile kernels. A test includes this file, and has `Nvrtc` at its root.

use std::path::PathBuf;

use super::Nvrtc;

/// NVRTC, from the folder of `scripts/cuda-wheels.sh` or from the system. Prints SKIPPED if there is none.
pub fn nvrtc() -> Option<Nvrtc> {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let beside = || here.ancestors().map(|folder| folder.join("target")).find(|target| target.exists());
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from).or_else(beside).unwrap_or_default();
    match Nvrtc::load(&[target.join("cuda/nvidia/cu13/lib")]) {
        Ok(nvrtc) => Some(nvrtc),
        Err(error) => {
            println!("SKIPPED: {error}");
            None
        }
    }
}
