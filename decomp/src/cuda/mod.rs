//! Plans on GPUs: arrays in a GPU's memory, in the order of a stream.
//!
//! Each PE has a GPU, which several may share. A round is a few kernels one behind the other: blocks that go over rails
//! are packed; the PE and its peers tell each other where blocks may go, and those over rails are asked for; a tiled
//! copy packs, permutes and moves what goes to mapped peers in one step; all tell each other that blocks have come; and
//! what came into the workspace is unpacked. Between mapped peers all but packing and unpacking is one launch, or two if
//! the round is large. The host waits for nothing. Rounds are counted on the GPU, so graphs can
//! be replayed.
//!
//! | file | concept |
//! |---|---|
//! | [`kernels`] | the kernels, loaded (`cu/pencils.cu`, `cu/copy.cuh`) |
//! | [`plan`] | a plan; posting a round |
//! | `binding` | what a round does with certain buffers, as the kernels read it |
//! | `engines` | copy engines in place of kernels between mapped peers |
//! | `images` | rounds written to the GPU, and which of them make room for others |
//! | `room` | how many blocks of kernels may wait at once |
//! | `table` | one copy, as they read it |

mod binding;
#[cfg(test)]
mod emulated;
mod engines;
mod images;
pub mod kernels;
pub mod plan;
mod room;
mod table;

pub use kernels::GpuKernels;
pub use plan::{GpuMemory, GpuPlan};
