//! The same products on GPUs, in the order of a stream.
//!
//! A plan carries out a program: each lane is a stream, and what a step needs of another lane is an event. cuBLASLt
//! multiplies; pieces move by a copy engine to PEs whose memory the GPU reaches, and by the proxy otherwise. The host
//! waits for nothing. Rounds are counted on the GPU, so that graphs can be replayed.
//!
//! | file | concept |
//! |---|---|
//! | `kernels` | the kernels, loaded (`cu/overlap.cu`) |
//! | `shape` | what is multiplied |
//! | `plan` | plans |
//! | `round` | a round of a plan, step by step |
//! | `at_once` | rounds that are not cut, in one kernel |
//! | `point_to_point` | copies between two ranks, in the order of streams |
//! | `products` | plans by shape, for callers who have tensors |

mod at_once;
mod kernels;
mod plan;
mod point_to_point;
mod products;
mod round;
mod shape;

pub use kernels::{GpuKernels, PROGRAM};
pub use plan::{GpuAllGatherMatmul, GpuMatmulReduce};
pub use point_to_point::GpuPointToPoint;
pub use products::{GpuPassed, GpuProducts, GpuRound};
pub use shape::{GpuShape, Operands};
pub use symrail::kernels::cuda::Stream;
pub use symrail_cuda::cublaslt::Number;
