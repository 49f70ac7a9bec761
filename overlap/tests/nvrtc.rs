//! The kernels compile for every supported architecture.
#![allow(clippy::unwrap_used)]

#[path = "../../tests/support/nvrtc.rs"]
mod support;

use symrail::kernels::cuda::compile::Nvrtc;
use symrail_overlap::cuda::PROGRAM;

use support::nvrtc;

#[test]
fn kernels_compile() {
    let Some(nvrtc) = nvrtc() else { return };
    for arch in ["sm_80", "sm_90"] {
        let compiled = nvrtc.compile(&PROGRAM, arch).unwrap();
        assert_eq!(compiled.log(), "", "{arch}");
        assert_eq!(&compiled.cubin()[..4], b"\x7fELF", "{arch}");
    }
}
