//! Inputs of device collectives, and their expected results.

use half::{bf16, f16};
use symrail_collectives::DataType::{self, *};
use symrail_collectives::ReduceOp;
use symrail_collectives::plan::Collective;
use symrail_core::fp8;

/// The collectives whose results this crate can compute.
pub const ALL: [Collective; 6] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllToAll,
    Collective::Broadcast,
    Collective::Reduce,
];

/// All operations.
pub const OPS: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max];

/// Types and numbers of elements of a part with which every collective is called.
pub const SIZES: [(DataType, usize); 5] = [(Uint8, 1), (Int8, 4095), (Bfloat16, 1), (Float16, 33_001), (Float32, 1024)];

/// Elements of a type that encode their source, and whose reductions are exact in any order.
#[derive(Debug, Clone, Copy)]
pub struct Data {
    /// The type.
    pub ty: DataType,
    /// The operation.
    pub op: ReduceOp,
    /// The number of PEs.
    pub n: usize,
    /// Varies between calls.
    pub round: usize,
}

impl Data {
    /// Element `i` of PE `rank`.
    #[must_use]
    pub fn value(&self, rank: usize, i: usize) -> f64 {
        let mixed = i * 7 + rank * 13 + self.round * 5;
        // One PE's elements differ where sums of many are not exact.
        let stands_out = (i + self.round) % self.n == rank;
        let signed = !self.ty.is_unsigned() && self.ty != Bool;
        let small = self.ty.is_float() && self.ty.size() == 1;
        match self.op {
            ReduceOp::Prod if stands_out => 1.5f64.max(if small || signed { 0.0 } else { 2.0 }).floor(),
            ReduceOp::Prod => 1.0,
            _ if small && !stands_out => 0.0,
            _ if small => [0.25, 1.0, -0.5, 1.75, -1.5][mixed % 5],
            _ if signed => (mixed % 11) as f64 - 5.0,
            _ => (mixed % 11) as f64,
        }
    }

    /// A PE's input.
    #[must_use]
    pub fn input(&self, rank: usize, count: usize) -> Vec<u8> {
        (0..count).flat_map(|i| self.bytes(self.value(rank, i))).collect()
    }

    /// Element `i` of the reduction of all PEs' inputs.
    fn reduced(&self, i: usize) -> f64 {
        let values = (0..self.n).map(|rank| self.value(rank, i));
        let reduced = match self.op {
            ReduceOp::Sum => values.reduce(|a, b| a + b),
            ReduceOp::Prod => values.reduce(|a, b| a * b),
            ReduceOp::Min => values.reduce(f64::min),
            ReduceOp::Max => values.reduce(f64::max),
            ReduceOp::And => values.reduce(|a, b| (a as i64 & b as i64) as f64),
            ReduceOp::Or => values.reduce(|a, b| (a as i64 | b as i64) as f64),
            ReduceOp::Xor => values.reduce(|a, b| (a as i64 ^ b as i64) as f64),
        };
        reduced.unwrap_or_default()
    }

    /// A PE's output, for parts of `count` elements.
    #[must_use]
    pub fn output(&self, collective: &Collective, rank: usize, part: usize) -> Vec<u8> {
        let n = self.n;
        let values: Vec<f64> = match collective {
            Collective::AllReduce | Collective::Reduce => (0..part).map(|i| self.reduced(i)).collect(),
            Collective::ReduceScatter => (0..part).map(|i| self.reduced(rank * part + i)).collect(),
            Collective::AllGather => (0..n * part).map(|i| self.value(i / part, i % part)).collect(),
            Collective::AllToAll => (0..n * part).map(|i| self.value(i / part, rank * part + i % part)).collect(),
            _ => (0..part).map(|i| self.value(0, i)).collect(),
        };
        values.into_iter().flat_map(|value| self.bytes(value)).collect()
    }

    fn bytes(&self, value: f64) -> Vec<u8> {
        match self.ty {
            Int8 => (value as i64 as i8).to_ne_bytes().to_vec(),
            Uint8 => (value as i64 as u8).to_ne_bytes().to_vec(),
            Int32 => (value as i32).to_ne_bytes().to_vec(),
            Uint32 => (value as u32).to_ne_bytes().to_vec(),
            Int64 => (value as i64).to_ne_bytes().to_vec(),
            Uint64 => (value as u64).to_ne_bytes().to_vec(),
            Float16 => f16::from_f64(value).to_ne_bytes().to_vec(),
            Bfloat16 => bf16::from_f64(value).to_ne_bytes().to_vec(),
            Float32 => (value as f32).to_ne_bytes().to_vec(),
            Float64 => value.to_ne_bytes().to_vec(),
            Float8E4m3 => vec![fp8::f32_to_e4m3(value as f32)],
            Float8E5m2 => vec![fp8::f32_to_e5m2(value as f32)],
            Float8E4m3b15 => vec![fp8::f32_to_e4m3b15(value as f32)],
            Bool => vec![u8::from(value != 0.0)],
            Int16 => (value as i16).to_ne_bytes().to_vec(),
            Uint16 => (value as u16).to_ne_bytes().to_vec(),
            Complex64 => [value as f32, 0.0].map(f32::to_ne_bytes).concat(),
            Complex128 => [value, 0.0].map(f64::to_ne_bytes).concat(),
        }
    }
}

/// Parts in a PE's input and in its output.
#[must_use]
pub fn parts(collective: &Collective, n: usize) -> (usize, usize) {
    match collective {
        Collective::AllGather => (1, n),
        Collective::ReduceScatter => (n, 1),
        Collective::AllToAll => (n, n),
        _ => (1, 1),
    }
}

/// The ranges of a call's input and output in an array of sources and one of destinations; in place, both are in the
/// latter. Offsets and lengths in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Places {
    /// The input.
    pub input: (usize, usize),
    /// The output.
    pub output: (usize, usize),
}

/// The ranges of PE `me` of `n` for parts of `part` bytes. In place, the smaller buffer is each PE's part of the
/// larger.
#[must_use]
pub fn places(collective: &Collective, (me, n): (usize, usize), part: usize, in_place: bool) -> Places {
    let (inputs, outputs) = parts(collective, n);
    let start = |smaller: bool| if in_place && smaller { me * part } else { 0 };
    Places { input: (start(inputs < outputs), inputs * part), output: (start(outputs < inputs), outputs * part) }
}

/// The first difference, for messages.
#[must_use]
pub fn difference(found: &[u8], expected: &[u8]) -> Option<String> {
    let at = found.iter().zip(expected).position(|(a, b)| a != b).or((found.len() != expected.len()).then_some(0))?;
    let (found, expected) = (&found[at..found.len().min(at + 16)], &expected[at..expected.len().min(at + 16)]);
    Some(format!("byte {at}: {found:x?}, not {expected:x?}"))
}
