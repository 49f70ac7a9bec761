//! The same products on GPUs, in the order of a stream.
//!
//! A plan carries out the programs of the host's plans: each lane is a stream, and what a step needs of another lane is
//! an event. cuBLASLt multiplies; pieces move by a copy engine to and from PEs whose memory the GPU reaches, and by the
//! proxy otherwise; an owner's kernel sums a piece while the next ones are multiplied. The host waits for nothing.
//! Rounds are counted on the GPU, so that graphs can be replayed.
//!
//! | file | concept |
//! |---|---|
//! | `kernels` | the kernels, loaded (`cu/overlap.cu`) |
//! | `shape` | what is multiplied |
//! | `plan` | plans |
//! | `round` | a round of a plan, step by step |
//! | `products` | plans by shape, for callers who have tensors |

mod kernels;
mod plan;
mod products;
mod round;
mod shape;

pub use kernels::{GpuKernels, PROGRAM};
pub use plan::{GpuAllGatherMatmul, GpuMatmulReduce};
pub use products::{GpuPassed, GpuProducts, GpuRound};
pub use shape::{GpuShape, Operands};
pub use symrail::kernels::cuda::Stream;
pub use symrail_cuda::cublaslt::Number;
