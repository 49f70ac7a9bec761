//! `libsymrail_nccl.so`: collectives of GPUs by the names of NCCL 2.28, in whose place it is loaded (`libnccl.so.2`).
//!
//! | file | concept |
//! |---|---|
//! | `types` | the structures and numbers of `nccl.h` |
//! | `export` | NCCL's names, and the way to the other library |
//! | `library` | the other library, with the communicators that this one cannot make |
//! | `guard` | where errors become results, and panics end |
//! | `communicator` | a communicator: a job of its own, whose PEs are the ranks |
//! | `heap_kind` | which memory a communicator's heap is made of |
//! | `held` | what calls have in turn, and an abort takes away |
//! | `registry` | handles, and the communicators that they stand for |
//! | `group` | calls between `ncclGroupStart` and `ncclGroupEnd` |
//! | `joining` | making communicators, and ending them |
//! | `split` | communicators of some of a communicator's ranks |
//! | `collectives` | collectives, sends and receives |
//! | `operations` | sums of scaled inputs |
//! | `memory` | memory, which needs no registration here |
//! | `others` | what only the other library has |

mod collectives;
mod communicator;
mod export;
mod group;
mod guard;
mod heap_kind;
mod held;
mod joining;
mod library;
mod memory;
mod operations;
mod others;
mod registry;
mod split;
mod types;
