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
        // How well code is optimised does not tell whether an architecture has what it needs.
        let compile = if arch == "sm_90" { Nvrtc::compile } else { Nvrtc::compile_quickly };
        let compiled = compile(&nvrtc, &PROGRAM, arch).unwrap();
        assert_eq!(compiled.log(), "", "{arch}");
        assert_eq!(&compiled.cubin()[..4], b"\x7fELF", "{arch}");
    }
}
