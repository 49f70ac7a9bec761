//! Every operation has its name in every interface that offers such operations.

use symrail_core::{AmoOp, Cmp, SignalOp, VariantArray};

fn must_have(interfaces: &[(&str, &str, String)]) {
    for (file, text, wanted) in interfaces {
        assert!(text.contains(wanted), "{file} has no {wanted}");
    }
}

#[test]
fn amos_are_in_all_interfaces() {
    for &op in AmoOp::VARIANTS {
        let name: &str = op.into();
        let macro_name = format!("SYMRAIL_AMO_{}", name.to_uppercase());
        let of_session = if op == AmoOp::CompareSwap { "CAS".into() } else { name.to_uppercase() };
        must_have(&[
            ("OpenSHMEM", include_str!("../../shmem/include/shmem.h"), format!("_atomic_{name}(")),
            ("Rust", include_str!("../../shmem/src/symmetric/atomics.rs"), format!("atomic_{name}")),
            ("amo.cuh", include_str!("../../kernels/include/symrail/amo.cuh"), macro_name.clone()),
            ("api.cuh", include_str!("../../kernels/include/symrail/api.cuh"), macro_name),
            ("the CPU device", include_str!("../../kernels/src/cpu/atomics.rs"), format!("atomic_{name}")),
            (
                "symrail_transport.h",
                include_str!("../../transport/include/symrail_transport.h"),
                format!("SYMRAIL_TRANSPORT_{of_session} = {}", op as u8),
            ),
            ("Python", include_str!("../../python/symrail/_atomics.py"), format!("def atomic_{name}(")),
            ("Python's package", include_str!("../../python/symrail/__init__.py"), format!("\"atomic_{name}\",")),
        ]);
    }
}

#[test]
fn comparisons_and_updates_of_signals_are_in_all_interfaces() {
    let comparisons = Cmp::VARIANTS.iter().map(|cmp| format!("CMP_{cmp:?}").to_uppercase());
    for name in comparisons.chain(SignalOp::VARIANTS.iter().map(|op| format!("SIGNAL_{op:?}").to_uppercase())) {
        must_have(&[
            (
                "symrail_nvshmem.cuh",
                include_str!("../../kernels/include/symrail_nvshmem.cuh"),
                format!("#define NVSHMEM_{name} SYMRAIL_{name}\n"),
            ),
            ("Python", include_str!("../../python/symrail/_signals.py"), format!("    {name} = \"")),
        ]);
    }
}
