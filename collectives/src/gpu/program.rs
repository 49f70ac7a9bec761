//! The kernels that run plans: one program for each type of elements.

use symrail::kernels::cuda::Program;

use crate::number::DataType;

/// The programs' headers besides the device API's.
const HEADERS: [(&std::ffi::CStr, &str); 2] =
    [(c"plan.cuh", include_str!("../../cu/plan.cuh")), (c"executor.cuh", include_str!("../../cu/executor.cuh"))];

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
