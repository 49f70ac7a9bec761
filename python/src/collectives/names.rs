//! Collectives, operations and types by the names that Python passes.

use pyo3::prelude::*;
use symrail_collectives::plan::Collective;
use symrail_collectives::{DataType, ReduceOp, Reduction};

use crate::errors::{Kind, raise};

pub fn collective_of(name: &str) -> PyResult<Collective> {
    match name {
        "all_reduce" => Ok(Collective::AllReduce),
        "all_gather" => Ok(Collective::AllGather),
        "reduce_scatter" => Ok(Collective::ReduceScatter),
        "all_to_all" => Ok(Collective::AllToAll),
        "broadcast" => Ok(Collective::Broadcast),
        "reduce" => Ok(Collective::Reduce),
        _ => Err(raise(Kind::Argument, &format!("there is no collective {name}"))),
    }
}

pub fn reduction_of(op: &str) -> PyResult<Reduction> {
    match op {
        "sum" => Ok(ReduceOp::Sum.into()),
        "prod" => Ok(ReduceOp::Prod.into()),
        "min" => Ok(ReduceOp::Min.into()),
        "max" => Ok(ReduceOp::Max.into()),
        "avg" => Ok(Reduction::Average),
        _ => Err(raise(Kind::Argument, &format!("op is {op:?}; there are sum, prod, min, max and avg"))),
    }
}

pub fn data_type(name: &str) -> PyResult<DataType> {
    Ok(match name {
        "int8" => DataType::I8,
        "uint8" => DataType::U8,
        "int32" => DataType::I32,
        "uint32" => DataType::U32,
        "int64" => DataType::I64,
        "uint64" => DataType::U64,
        "float16" => DataType::F16,
        "bfloat16" => DataType::BF16,
        "float32" => DataType::F32,
        "float64" => DataType::F64,
        "float8_e4m3fn" => DataType::E4M3,
        "float8_e5m2" => DataType::E5M2,
        "float8_e4m3b15" => DataType::E4M3B15,
        _ => return Err(raise(Kind::Argument, &format!("no reductions of elements of {name}"))),
    })
}
