//! The kernels compile for every supported architecture.
#![allow(clippy::unwrap_used)]

#[path = "../../tests/support/nvrtc.rs"]
mod support;

use symrail::kernels::cuda::Program;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail_decomp::cuda::kernels::PROGRAM;

use support::nvrtc;

/// The kernels that fill and check the arrays of `scripts/gpu.sh transposes`.
const NUMBERS: Program<'static> = Program::new("numbers.cu", include_str!("../bench/numbers.cu"));

#[test]
fn kernels_compile() {
    let Some(nvrtc) = nvrtc() else { return };
    for (program, arch) in [(&PROGRAM, "sm_80"), (&PROGRAM, "sm_90"), (&NUMBERS, "sm_90")] {
        // How well code is optimised does not tell whether an architecture has what it needs.
        let compile = if arch == "sm_90" { Nvrtc::compile } else { Nvrtc::compile_quickly };
        let compiled = compile(&nvrtc, program, arch).unwrap();
        assert_eq!(compiled.log(), "", "{} {arch}", program.name());
        assert_eq!(&compiled.cubin()[..4], b"\x7fELF", "{} {arch}", program.name());
    }
}
