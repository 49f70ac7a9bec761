//! The programs: for each type of elements one that runs plans and one for each kernel without a plan, since the
//! compiler takes seconds for a program, on one core; and one for sends and receives.

use std::sync::Arc;

use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{Module, Program};

use super::straight::StraightKernel;
use crate::error::{Error, Result};
use crate::number::DataType;

/// A program.
#[derive(Debug, Clone, Copy)]
pub enum Which {
    /// Plans on elements of a type.
    Executor(DataType),
    /// A kernel without a plan, for elements of a type.
    Straight(StraightKernel, DataType),
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
    Ok(device.load(nvrtc, &which.program(&which.source()?))?)
}

/// Compiles programs at the same time. Errors are those of [`load`], which finds what is compiled, unless NVRTC reads
/// headers in a folder.
pub(super) fn compile(device: &GpuDevice, nvrtc: &Nvrtc, programs: &[Which]) {
    std::thread::scope(|scope| {
        for which in programs {
            let compile = || which.source().map(|source| device.compile(nvrtc, &which.program(&source)).map(drop));
            // Without a thread, `load` compiles it.
            let _ = std::thread::Builder::new().spawn_scoped(scope, move || drop(compile()));
        }
    });
}

impl Which {
    /// The source.
    ///
    /// # Errors
    /// The type is not one of [`TYPES_ON_GPUS`](crate::TYPES_ON_GPUS).
    pub fn source(self) -> Result<String> {
        let (ty, text, kernel) = match self {
            Which::Exchange => return Ok(include_str!("../../cu/exchange.cu").into()),
            Which::Executor(ty) => (ty, include_str!("../../cu/executor.cu"), ""),
            Which::Normed(ty) => (ty, include_str!("../../cu/normed.cu"), ""),
            Which::Straight(StraightKernel::Packets, ty) => (ty, include_str!("../../cu/packets.cu"), ""),
            Which::Straight(StraightKernel::AllReduce, ty) => (ty, PUSHED, "all_reduce"),
            Which::Straight(StraightKernel::OneWay, ty) => (ty, PUSHED, "one_way"),
            Which::Straight(StraightKernel::BothWays, ty) => (ty, PUSHED, "both_ways"),
        };
        Ok(format!("#define SYMRAIL_NUMBER symrail_{}\n#define SYMRAIL_PUSHED {kernel}\n{text}", number(ty)?))
    }

    /// The program of its source.
    #[must_use]
    pub fn program(self, source: &str) -> Program<'_> {
        let name = match self {
            Which::Executor(_) => "executor.cu",
            Which::Straight(StraightKernel::Packets, _) => "packets.cu",
            Which::Straight(..) => "pushed.cu",
            Which::Exchange => "exchange.cu",
            Which::Normed(_) => "normed.cu",
        };
        Program::new(name, source).with_headers(&HEADERS)
    }
}

const PUSHED: &str = include_str!("../../cu/pushed.cu");

/// The programs' headers besides the device API's.
const HEADERS: [(&std::ffi::CStr, &str); 15] = [
    (c"layout.cuh", include_str!("../../cu/layout.cuh")),
    (c"elements.cuh", include_str!("../../cu/elements.cuh")),
    (c"roles.cuh", include_str!("../../cu/roles.cuh")),
    (c"lanes.cuh", include_str!("../../cu/lanes.cuh")),
    (c"convert.cuh", include_str!("../../cu/convert.cuh")),
    (c"rows.cuh", include_str!("../../cu/rows.cuh")),
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
