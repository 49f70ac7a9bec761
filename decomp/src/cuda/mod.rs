//! Plans on GPUs: arrays in a GPU's memory, in stream order.
//!
//! Each PE has a GPU, which several PEs may share. A round is a few kernels on a stream:
//!
//! 1. A kernel packs the blocks that go over rails.
//! 2. The PE and its peers signal where blocks may go. The kernel requests the puts over rails from the proxy.
//! 3. A tiled copy packs, permutes and moves the blocks for mapped peers in one step.
//! 4. All PEs signal that blocks have arrived.
//! 5. A kernel unpacks the blocks in the workspace.
//!
//! Between mapped peers all steps except packing and unpacking are one launch, or two if the round is large. The host
//! waits for nothing. The GPU counts the rounds, so that graphs can be replayed.
//!
//! | file | concept |
//! |---|---|
//! | [`kernels`] | the kernels, loaded (`cu/pencils.cu`, `cu/copy.cuh`) |
//! | [`plan`] | a plan, and its rounds |
//! | `binding` | the work of a round with certain buffers, as the kernels read it |
//! | `engines` | copy engines in place of kernels between mapped peers |
//! | `images` | rounds in GPU memory, and their replacement |
//! | `layout` | what kernels and the host share, and its header `cu/layout.cuh` |
//! | `room` | the limit for blocks of kernels that wait at once |
//! | `table` | one copy, as the kernels read it |

mod binding;
#[cfg(test)]
mod emulated;
mod engines;
mod images;
pub mod kernels;
mod layout;
pub mod plan;
mod room;
mod table;

pub use kernels::GpuKernels;
pub use plan::{GpuMemory, GpuPlan};
