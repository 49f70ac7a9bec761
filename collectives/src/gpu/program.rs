//! The kernels: one program for each type of elements, which runs plans, and one for sends and receives.

use std::sync::Arc;

use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{Module, Program};

use crate::error::{Error, Result};
use crate::number::DataType;

/// A program.
#[derive(Debug, Clone, Copy)]
pub(super) enum Which {
    /// Plans on elements of a type.
    Executor(DataType),
    /// Sends and receives.
    Exchange,
    /// All-reduces with an RMS norm, of elements of a type.
    Normed(DataType),
}

/// Loads a program for a GPU.
///
/// # Errors
/// The compiler's error, or the driver's.
pub(super) fn load(device: &GpuDevice, nvrtc: &Nvrtc, which: Which) -> Result<Arc<Module>> {
    Ok(match which {
        Which::Executor(ty) => device.load(nvrtc, &program(&source(ty)?))?,
        Which::Normed(ty) => device.load(nvrtc, &normed(&normed_source(ty)?))?,
        Which::Exchange => device.load(nvrtc, &exchange())?,
    })
}

/// The programs' headers besides the device API's.
const HEADERS: [(&std::ffi::CStr, &str); 13] = [
    (c"layout.cuh", include_str!("../../cu/layout.cuh")),
    (c"elements.cuh", include_str!("../../cu/elements.cuh")),
    (c"roles.cuh", include_str!("../../cu/roles.cuh")),
    (c"lanes.cuh", include_str!("../../cu/lanes.cuh")),
    (c"normed.cuh", include_str!("../../cu/normed.cuh")),
    (c"wide.cuh", include_str!("../../cu/wide.cuh")),
    (c"straight.cuh", include_str!("../../cu/straight.cuh")),
    (c"packets.cuh", include_str!("../../cu/packets.cuh")),
    (c"pushed.cuh", include_str!("../../cu/pushed.cuh")),
    (c"plan.cuh", include_str!("../../cu/plan.cuh")),
    (c"proxied.cuh", include_str!("../../cu/proxied.cuh")),
    (c"executor.cuh", include_str!("../../cu/executor.cuh")),
    (c"exchange.cuh", include_str!("../../cu/exchange.cuh")),
];

/// The source for elements of a type of [`TYPES_ON_GPUS`](crate::TYPES_ON_GPUS).
///
/// # Errors
/// The type is another one.
pub fn source(ty: DataType) -> Result<String> {
    Ok(format!("#define SYMRAIL_NUMBER symrail_{}\n{}", number(ty)?, include_str!("../../cu/executor.cu")))
}

/// The source of all-reduces with an RMS norm.
///
/// # Errors
/// As for [`source`].
pub fn normed_source(ty: DataType) -> Result<String> {
    Ok(format!("#define SYMRAIL_NUMBER symrail_{}\n{}", number(ty)?, include_str!("../../cu/normed.cu")))
}

/// A type's name in kernels.
fn number(ty: DataType) -> Result<&'static str> {
    Ok(match ty {
        DataType::Int8 => "i8",
        DataType::Uint8 => "u8",
        DataType::Int32 => "i32",
        DataType::Uint32 => "u32n",
        DataType::Int64 => "i64",
        DataType::Uint64 => "u64n",
        DataType::Float16 => "f16",
        DataType::Bfloat16 => "bf16",
        DataType::Float32 => "f32",
        DataType::Float64 => "f64",
        DataType::Float8E4m3 => "e4m3",
        DataType::Float8E5m2 => "e5m2",
        DataType::Float8E4m3b15 => "e4m3b15",
        DataType::Bool | DataType::Int16 | DataType::Uint16 | DataType::Complex64 | DataType::Complex128 => {
            return Err(Error::Call(format!("there are no kernels for elements of {ty}")));
        }
    })
}

/// The program of a [`source`].
#[must_use]
pub fn program(source: &str) -> Program<'_> {
    Program::new("executor.cu", source).with_headers(&HEADERS)
}

/// The program of a [`normed_source`].
#[must_use]
pub fn normed(source: &str) -> Program<'_> {
    Program::new("normed.cu", source).with_headers(&HEADERS)
}

/// The program of sends and receives.
#[must_use]
pub fn exchange() -> Program<'static> {
    Program::new("exchange.cu", include_str!("../../cu/exchange.cu")).with_headers(&HEADERS)
}
