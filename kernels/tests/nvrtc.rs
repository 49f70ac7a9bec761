//! Every program compiles for every supported architecture, and so do programs that use the API's alternative names.

#![allow(clippy::unwrap_used)]

#[path = "../../tests/support/nvrtc.rs"]
mod support;

use symrail_kernels::cuda::Program;
use symrail_kernels::cuda::compile::Nvrtc;

use support::nvrtc;

const ARCHITECTURES: [&str; 2] = ["sm_80", "sm_90"];

/// The example of docs/gpu.md.
const EXAMPLE: Program<'static> = Program::new("device_ring.cu", include_str!("../../shmem/examples/device_ring.cu"));

/// The kernels of the Python package for PyTorch.
const TORCH: Program<'static> = Program::new("torch.cu", include_str!("../../python/src/torch.cu"));

#[test]
fn every_program_becomes_ptx_and_machine_code() {
    let Some(nvrtc) = nvrtc() else { return };
    for program in
        Program::OWN.into_iter().chain([Program::STREAM, Program::COLLECTIVES, Program::PERF, EXAMPLE, TORCH])
    {
        for arch in ARCHITECTURES {
            // How well code is optimised does not tell whether an architecture has what it needs.
            let compile = if arch == "sm_90" { Nvrtc::compile } else { Nvrtc::compile_quickly };
            let compiled = compile(&nvrtc, &program, arch).unwrap();
            assert_eq!(compiled.log(), "", "{} for {arch}", program.name());
            assert_eq!(&compiled.cubin()[..4], b"\x7fELF", "{} for {arch}", program.name());
            let ptx = String::from_utf8_lossy(compiled.ptx());
            assert!(ptx.contains(&format!(".target {arch}")), "{} for {arch}", program.name());
            assert!(ptx.contains("symrail_state"), "{} for {arch}", program.name());
        }
    }
}

/// Every kind of call, in the style of other symmetric-heap libraries.
const FAMILIAR: &str = r#"
#include "symrail_nvshmem.cuh"
extern "C" __global__ void familiar(float* data, unsigned long long* signal, int* counter, double* sum) {
    int peer = (nvshmem_my_pe() + 1) % nvshmem_n_pes();
    nvshmem_float_p(data, nvshmem_float_g(data + 1, peer), peer);
    nvshmem_float_put(data, data + 8, 4, peer);
    nvshmemx_float_put_nbi_block(data, data + 8, 4, peer);
    nvshmemx_float_get_warp(data, data + 8, 4, peer);
    nvshmem_putmem_signal_nbi(data, data + 8, 16, signal, 1, NVSHMEM_SIGNAL_ADD, peer);
    nvshmemx_double_put_signal_block(sum, sum + 8, 2, signal, 1, NVSHMEM_SIGNAL_SET, peer);
    nvshmemx_signal_op(signal, 1, NVSHMEM_SIGNAL_ADD, peer);
    nvshmem_signal_wait_until(signal, NVSHMEM_CMP_GE, 2);
    nvshmem_int_wait_until_all(counter, 3, nullptr, NVSHMEM_CMP_NE, 0);
    nvshmem_int_atomic_inc(counter, peer);
    *counter = nvshmem_int_atomic_compare_swap(counter, 1, 2, peer) + nvshmem_int_test(counter, NVSHMEM_CMP_EQ, 1);
    nvshmem_double_atomic_add(sum, 1.5, peer);
    nvshmem_fence();
    nvshmem_quiet();
    nvshmem_barrier_all();
    nvshmemx_sync_all_block();
    nvshmem_team_sync(NVSHMEM_TEAM_WORLD);
    nvshmemx_barrier_warp(NVSHMEM_TEAM_WORLD);
    *counter += nvshmem_team_my_pe(NVSHMEM_TEAM_WORLD);
    if (nvshmem_ptr(data, peer) == nullptr) *counter = 0;
}
static_assert(sizeof(symrail_device_state) == SYMRAIL_STATE_BYTES, "the state's size");
"#;

#[test]
fn familiar_programs_compile_by_another_include() {
    let Some(nvrtc) = nvrtc() else { return };
    nvrtc.compile(&Program::new("familiar.cu", FAMILIAR), "sm_90").unwrap();
}

#[test]
fn a_wrong_program_is_told_with_the_compilers_words() {
    let Some(nvrtc) = nvrtc() else { return };
    let error = nvrtc.compile(&Program::new("wrong.cu", "__global__ void k() { nothing_of_this_name(); }"), "sm_90");
    let text = error.unwrap_err().to_string();
    assert!(text.contains("wrong.cu") && text.contains("nothing_of_this_name"), "{text}");
}

/// A detour of a put value through local memory, for the sake of a rare call, costs more than half of the rate.
#[test]
fn single_values_stay_in_registers() {
    let Some(nvrtc) = nvrtc() else { return };
    let bench = Program::OWN.into_iter().find(|program| program.name() == "bench.cu").unwrap();
    let ptx = nvrtc.compile(&bench, "sm_90").unwrap().ptx().to_vec();
    let text = String::from_utf8_lossy(&ptx);
    let (_, kernel) = text.split_once(".entry p_rate(").unwrap();
    let (body, _) = kernel.split_once("\n}").unwrap();
    assert!(body.contains("st.global.u32"), "{body}");
    assert!(!body.contains(".local"), "{body}");
}
