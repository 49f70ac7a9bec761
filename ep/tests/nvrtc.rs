//! Compiles the kernels for every supported architecture.
#![allow(clippy::unwrap_used)]

#[path = "../../tests/support/nvrtc.rs"]
mod support;

use symrail::kernels::cuda::compile::Nvrtc;
use symrail_ep::cuda::PROGRAMS;

use support::nvrtc;

#[test]
fn kernels_compile() {
    let Some(nvrtc) = nvrtc() else { return };
    for (program, arch) in PROGRAMS.iter().flat_map(|program| ["sm_80", "sm_90"].map(|arch| (program, arch))) {
        // How well code is optimised does not tell whether an architecture has what it needs, and takes 25 s for the
        // other program.
        let optimised = arch == "sm_90" && program.name() == "low_latency.cu";
        let compile = if optimised { Nvrtc::compile } else { Nvrtc::compile_quickly };
        let compiled = compile(&nvrtc, program, arch).unwrap();
        assert_eq!(compiled.log(), "", "{} {arch}", program.name());
        assert_eq!(&compiled.cubin()[..4], b"\x7fELF", "{} {arch}", program.name());
    }
}
