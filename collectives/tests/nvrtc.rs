//! The kernels that run plans compile, for every type and every supported architecture.

#![allow(clippy::unwrap_used)]

#[path = "../../tests/support/nvrtc.rs"]
mod support;

use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{Compiled, Program, Result};
use symrail_collectives::gpu::program::Which;
use symrail_collectives::gpu::straight::StraightKernel;
use symrail_collectives::{DataType, TYPES_ON_GPUS};

use support::nvrtc;

/// One program as users compile it; types and architectures are tried without optimisation, which takes most of the
/// time.
type Compile = fn(&Nvrtc, &Program<'_>, &str) -> Result<Compiled>;

/// One type of each kind: the compiler takes seconds for each, and another test compiles all of them with a C++
/// compiler (`tests/tests/gpu_executor.rs`).
#[test]
fn the_executor_becomes_ptx_and_machine_code() {
    let Some(nvrtc) = nvrtc() else { return };
    for (ty, arch, compile) in [
        (DataType::Uint8, "sm_90", Nvrtc::compile as Compile),
        (DataType::Float64, "sm_90", Nvrtc::compile_quickly),
        (DataType::Float8E4m3, "sm_90", Nvrtc::compile_quickly),
        (DataType::Bfloat16, "sm_80", Nvrtc::compile_quickly),
    ] {
        let straight = StraightKernel::ALL.map(|kernel| (Which::Straight(kernel, ty), kernel.name()));
        for (which, kernel) in std::iter::once((Which::Executor(ty), "execute_plan")).chain(straight) {
            let source = which.source().unwrap();
            let compiled = compile(&nvrtc, &which.program(&source), arch).unwrap();
            assert_eq!(compiled.log(), "", "{which:?} for {arch}");
            let ptx = String::from_utf8_lossy(compiled.ptx());
            assert!(ptx.contains(&format!(".entry {kernel}(")), "{which:?} for {arch}");
        }
    }
}

#[test]
fn types_of_the_host_alone_have_no_kernels() {
    for &ty in DataType::ALL {
        assert_eq!(Which::Executor(ty).source().is_ok(), TYPES_ON_GPUS.contains(&ty), "{ty}");
    }
}

#[test]
fn kernels_of_users_have_memory_channels() {
    let Some(nvrtc) = nvrtc() else { return };
    let program = Program::new("channels.cu", include_str!("../../tests/cu/channels.cu"));
    assert_eq!(nvrtc.compile(&program, "sm_90").unwrap().log(), "");
}

#[test]
fn sends_and_receives_become_machine_code() {
    let Some(nvrtc) = nvrtc() else { return };
    let source = Which::Exchange.source().unwrap();
    let compiled = nvrtc.compile(&Which::Exchange.program(&source), "sm_90").unwrap();
    assert_eq!(compiled.log(), "");
    let ptx = String::from_utf8_lossy(compiled.ptx());
    assert!([".entry exchange(", ".entry exchange_some(", ".entry exchange_few("].iter().all(|one| ptx.contains(one)));
}

#[test]
fn norms_become_machine_code() {
    let Some(nvrtc) = nvrtc() else { return };
    for (ty, arch, compile) in
        [(DataType::Bfloat16, "sm_90", Nvrtc::compile as Compile), (DataType::Float32, "sm_80", Nvrtc::compile_quickly)]
    {
        let which = Which::Normed(ty);
        let source = which.source().unwrap();
        let compiled = compile(&nvrtc, &which.program(&source), arch).unwrap();
        assert_eq!(compiled.log(), "", "{ty:?} for {arch}");
        let ptx = String::from_utf8_lossy(compiled.ptx());
        let kernels = ["normed_packets", "normed_packets_anywhere", "normed_pushed", "normed_pushed_anywhere"];
        assert!(kernels.iter().all(|one| ptx.contains(&format!(".entry {one}("))), "{ty:?}");
    }
}
