//! Heap memory of tests besides the area, and the shapes that determine its size.

use symrail_decomp::Grid;
use symrail_ep::cuda::{DeviceShape, HighThroughputShape};
use symrail_ep::low_latency::Shape;
use symrail_ep::plan::sizes;
use symrail_overlap::{AllGatherMatmul, MatmulReduce, Reduced, Schedule, Shards};

use super::catalog::{Phase, Product};

/// Experts of a token.
pub const K: usize = 8;
/// Tokens of a call for high throughput, and of one for low latency.
pub const MANY: usize = 4096;
pub const FEW: usize = 128;
/// Rows of a block.
pub const ROWS: usize = 128;

/// The number of experts: as near to 256 as all ranks can share equally.
pub fn experts(n_pes: u32) -> usize {
    (256 / n_pes as usize).max(1) * n_pes as usize
}

/// The shape of a call for low latency.
pub fn shape(token: usize, n_pes: u32) -> Shape {
    Shape { most_tokens: FEW, token, scales: 0, experts: experts(n_pes), k: K }
}

/// Bytes of each PE's heap for a test of expert parallelism.
pub fn of_experts(phase: Phase, token: usize, n_pes: u32) -> usize {
    match phase {
        Phase::LowLatency => shape(token, n_pes).bytes(n_pes as usize),
        _ => sizes::high_throughput(n_pes as usize, ROWS, sizes::largest_row(token)),
    }
}

/// The shape of a high-throughput call on GPUs: rows of `token` bytes, all of which may arrive at one rank.
pub fn many_on_gpu(token: usize, n_pes: u32) -> HighThroughputShape {
    let room = MANY * n_pes as usize;
    HighThroughputShape { most_tokens: MANY, room, row: token, scales: 0, experts: experts(n_pes), k: K }
}

/// See [`many_on_gpu`].
pub fn few_on_gpu(token: usize, n_pes: u32) -> DeviceShape {
    DeviceShape { most_tokens: FEW, hidden: token / 2, experts: experts(n_pes), k: K }
}

/// Bytes of each PE's heap for a test of expert parallelism on GPUs. Invalid shapes are reported later.
pub fn of_experts_on_gpu(phase: Phase, token: usize, n_pes: u32) -> usize {
    match phase {
        Phase::LowLatency => few_on_gpu(token, n_pes).bytes(n_pes as usize),
        _ => many_on_gpu(token, n_pes).most_bytes(n_pes as usize).unwrap_or(0),
    }
}

/// Bytes of a complex number of two doubles.
pub const COMPLEX: usize = 16;

/// Bytes of a cube of complex numbers.
pub fn of_cube(edge: usize) -> usize {
    COMPLEX.saturating_mul(edge.saturating_pow(3))
}

/// Elements along the edge of the largest cube of complex numbers in `bytes` bytes, at least 1.
pub fn edge(bytes: usize) -> usize {
    let near = ((bytes / COMPLEX) as f64).cbrt() as usize;
    (near..near + 2).rfind(|edge| of_cube(*edge) <= bytes).unwrap_or(near).max(1)
}

/// The process grid whose sides differ least.
pub fn processes(n_pes: u32) -> [usize; 2] {
    let factors = Grid::factors(n_pes as usize).filter(|[rows, columns]| rows <= columns);
    factors.last().unwrap_or([1, n_pes as usize])
}

/// Elements in memory of the largest pencil, with a halo of one element.
pub fn largest_pencil(grid: Grid) -> usize {
    let ([rows, columns], [edge, ..]) = (grid.processes, grid.extents);
    (edge / rows + 3).saturating_mul(edge / columns + 3).saturating_mul(edge + 2)
}

/// Bytes of a workspace for transposes and halos, and of the plans' memory: each of the four transposes has space for
/// four blocks of up to 64 KiB with each PE of a row or a column.
pub fn of_workspace(grid: Grid) -> usize {
    let [rows, columns] = grid.processes;
    let rooms = rows.saturating_add(columns).saturating_mul(8 << 16);
    largest_pencil(grid).saturating_mul(2 * COMPLEX).saturating_add(rooms).saturating_add(1 << 20)
}

/// Bytes of each PE's heap for an exchange of an array of `size` bytes.
pub fn of_pencils(size: usize, n_pes: u32) -> usize {
    let grid = Grid::new([edge(size); 3], processes(n_pes));
    of_workspace(grid).saturating_add(largest_pencil(grid).saturating_mul(2 * COMPLEX))
}

/// Bytes of each PE's heap for a collective: input, output and the plans' memory.
pub fn of_collective(size: usize, n_pes: u32) -> usize {
    size.saturating_mul(8).saturating_add((n_pes as usize + 4) << 19)
}

/// Numbers in a row that is multiplied, and in a row of the product: 32-bit floats on the host, 16-bit ones on a GPU.
pub const WIDTH: usize = 512;

/// Rows of `size` bytes, spread over ranks, and the schedule of their product.
pub fn rows(size: usize, ranks: usize) -> (Shards, Schedule) {
    let shards = Shards::split((size / (WIDTH * size_of::<f32>())).max(1), ranks);
    let schedule = Schedule::choose(&shards, WIDTH, WIDTH);
    (shards, schedule)
}

/// Bytes of each PE's heap for a product: the plan of all PEs, and that of a PE alone.
pub fn of_product(what: Product, size: usize, n_pes: u32) -> usize {
    let of = |ranks: usize| {
        let (shards, schedule) = rows(size, ranks);
        bytes(what, &shards, WIDTH, schedule)
    };
    of(n_pes as usize).saturating_add(of(1))
}

/// As [`WIDTH`], on a GPU.
pub const WIDTH_ON_GPU: usize = 4096;
/// Bytes of a number that a GPU multiplies.
const SHORT: usize = 2;

/// As [`rows`], on a GPU; `by_proxy`: see [`Schedule::choose_by_proxy`].
pub fn rows_on_gpu(what: Product, size: usize, ranks: usize, by_proxy: bool) -> (Shards, Schedule) {
    let pitch = WIDTH_ON_GPU * SHORT;
    let shards = Shards::split((size / pitch).max(1), ranks);
    let reduced = match what {
        Product::AllGather => None,
        Product::ReduceScatter => Some(Reduced::ToShards),
        Product::AllReduce => Some(Reduced::Everywhere),
    };
    let schedule = match by_proxy {
        true => Schedule::choose_by_proxy(&shards, pitch, WIDTH_ON_GPU),
        false => Schedule::choose_on_gpu(&shards, pitch, reduced),
    };
    (shards, schedule)
}

/// As [`of_product`], on a GPU: twice the plan of all PEs, and that of a PE alone. The host's plans take more, since
/// their numbers are twice as long.
pub fn of_product_on_gpu(what: Product, size: usize, n_pes: u32) -> usize {
    let of = |ranks: usize| {
        let (shards, schedule) = rows_on_gpu(what, size, ranks, true);
        bytes(what, &shards, WIDTH_ON_GPU, schedule)
    };
    of(n_pes as usize).saturating_mul(2).saturating_add(of(1))
}

fn bytes(what: Product, shards: &Shards, width: usize, schedule: Schedule) -> usize {
    match what {
        Product::AllGather => AllGatherMatmul::bytes(shards, width, schedule),
        Product::ReduceScatter => MatmulReduce::bytes(shards, width, schedule, Reduced::ToShards),
        Product::AllReduce => MatmulReduce::bytes(shards, width, schedule, Reduced::Everywhere),
    }
}
