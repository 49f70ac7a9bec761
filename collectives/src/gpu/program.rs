//! The kernels: one program for each type of elements, which runs plans, and one for sends and receives.

use std::collections::HashMap;
use std::sync::Mutex;

use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{Compiled, Program};
use symrail_core::lock;

use crate::error::Result;
use crate::number::DataType;

/// Programs compiled in this process: a compilation takes seconds, and every communicator loads its own module.
static COMPILED: Mutex<Option<HashMap<(Which, String), Compiled>>> = Mutex::new(None);

/// A program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Which {
    /// Plans on elements of a type.
    Executor(DataType),
    /// Sends and receives.
    Exchange,
}

/// A program for a GPU of this architecture.
///
/// # Errors
/// The compiler's error.
pub(super) fn compiled(nvrtc: &Nvrtc, which: Which, arch: &str) -> Result<Compiled> {
    let key = (which, arch.to_owned());
    if let Some(known) = lock(&COMPILED).as_ref().and_then(|all| all.get(&key)) {
        return Ok(known.clone());
    }
    let compiled = match which {
        Which::Executor(ty) => nvrtc.compile(&program(&source(ty)), arch)?,
        Which::Exchange => nvrtc.compile(&exchange(), arch)?,
    };
    lock(&COMPILED).get_or_insert_default().insert(key, compiled.clone());
    Ok(compiled)
}

/// The programs' headers besides the device API's.
const HEADERS: [(&std::ffi::CStr, &str); 9] = [
    (c"elements.cuh", include_str!("../../cu/elements.cuh")),
    (c"roles.cuh", include_str!("../../cu/roles.cuh")),
    (c"straight.cuh", include_str!("../../cu/straight.cuh")),
    (c"packets.cuh", include_str!("../../cu/packets.cuh")),
    (c"pushed.cuh", include_str!("../../cu/pushed.cuh")),
    (c"plan.cuh", include_str!("../../cu/plan.cuh")),
    (c"proxied.cuh", include_str!("../../cu/proxied.cuh")),
    (c"executor.cuh", include_str!("../../cu/executor.cuh")),
    (c"exchange.cuh", include_str!("../../cu/exchange.cuh")),
];

/// The source for elements of a type.
#[must_use]
pub fn source(ty: DataType) -> String {
    let number = match ty {
        DataType::I8 => "i8",
        DataType::U8 => "u8",
        DataType::I32 => "i32",
        DataType::U32 => "u32n",
        DataType::I64 => "i64",
        DataType::U64 => "u64n",
        DataType::F16 => "f16",
        DataType::BF16 => "bf16",
        DataType::F32 => "f32",
        DataType::F64 => "f64",
        DataType::E4M3 => "e4m3",
        DataType::E5M2 => "e5m2",
        DataType::E4M3B15 => "e4m3b15",
    };
    format!("#define SYMRAIL_NUMBER symrail_{number}\n{}", include_str!("../../cu/executor.cu"))
}

/// The program of a [`source`].
#[must_use]
pub fn program(source: &str) -> Program<'_> {
    Program::new("executor.cu", source).with_headers(&HEADERS)
}

/// The program of sends and receives.
#[must_use]
pub fn exchange() -> Program<'static> {
    Program::new("exchange.cu", include_str!("../../cu/exchange.cu")).with_headers(&HEADERS)
}
