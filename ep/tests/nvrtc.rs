//! The kernels compile, for every architecture that is meant.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use symrail::kernels::cuda::compile::Nvrtc;
use symrail_ep::cuda::PROGRAM;

#[test]
fn kernels_compile() {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target"), PathBuf::from);
    // Where scripts/cuda-wheels.sh puts it.
    let nvrtc = match Nvrtc::load(&[target.join("cuda/nvidia/cu13/lib")]) {
        Ok(nvrtc) => nvrtc,
        Err(error) => return println!("SKIPPED: {error}"),
    };
    for arch in ["sm_80", "sm_90"] {
        let compiled = nvrtc.compile(&PROGRAM, arch).unwrap();
        assert_eq!(compiled.log, "", "{arch}");
        assert_eq!(&compiled.cubin[..4], b"\x7fELF", "{arch}");
    }
}
