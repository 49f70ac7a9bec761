//! The same products on GPUs, in stream order.
//!
//! A plan carries out a program: each lane is a stream, and a dependency on a step of another lane is an event.
//! cuBLASLt multiplies. A copy engine moves pieces to PEs whose memory the GPU reaches; the proxy moves all others. The
//! host waits for nothing. The GPU counts the rounds, so that graphs can be replayed.
//!
//! | file | concept |
//! |---|---|
//! | `kernels` | the kernels, loaded (`cu/overlap.cu`) |
//! | `layout` | what kernels and the host share, and its header `cu/layout.cuh` |
//! | `shape` | the shapes of products, and operands |
//! | `plan` | plans |
//! | `round` | a round of a plan, step by step |
//! | `at_once` | rounds that are not cut, in one kernel |
//! | `point_to_point` | copies between two ranks, in the order of streams |
//! | `products` | plans by shape, for callers that have tensors |

mod at_once;
mod kernels;
mod layout;
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
pub use symrail_core::DataType;
pub use symrail_cuda::cublaslt::multiplies;
