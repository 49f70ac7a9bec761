//! `libsymrail_nccl.so`: collectives of GPUs with the interface of NCCL, loaded in its place (`libnccl.so.2`).
//!
//! | file | concept |
//! |---|---|
//! | `types` | the structures and numbers of `nccl.h` |
//! | `export` | NCCL's names, and forwarding to the other library |
//! | `library` | the other library, for communicators that this one cannot make |
//! | `guard` | converts errors to results, and stops panics |
//! | `texts` | the texts of result codes and of failures |
//! | `communicator` | a communicator: a separate job, whose PEs are the ranks |
//! | `together` | the ranks of a job in this process, which leave together |
//! | `held` | a value that calls use one after the other, until an abort or the end takes it |
//! | `registry` | handles, and their communicators |
//! | `group` | calls between `ncclGroupStart` and `ncclGroupEnd` |
//! | `joining` | creating communicators |
//! | `rank` | a rank that joins, at once or at the end of a group |
//! | `ids` | ids of further communicators, which ranks pass to one another |
//! | `threads` | work of which each part waits for the others |
//! | `per_thread` | the calling thread's own stream, in calls that begin on other threads |
//! | `ending` | finalizing, destroying, aborting, revoking and suspending communicators |
//! | `config` | configurations of communicators and of calls |
//! | `questions` | what the library and a communicator say of themselves |
//! | `loaded` | another NCCL in the same process |
//! | `grow` | communicators of a communicator's ranks and of further ones |
//! | `split` | communicators of some of a communicator's ranks |
//! | `collectives` | collectives, sends and receives |
//! | `operations` | sums of scaled inputs |
//! | `estimate` | how long a group would take |
//! | `memory` | memory, which needs no registration here |
//! | `allocated` | memory of `ncclMemAlloc` |
//! | `window` | a window: memory that ranks have mapped |
//! | `windows` | registering windows, and their addresses |
//! | `one_sided` | puts, signals and waits on streams |
//! | `signals` | the same as calls |
//! | `parameters` | settings, as NCCL's parameters |
//! | `others` | functions that only the other library implements |

mod allocated;
mod collectives;
mod communicator;
mod config;
mod ending;
mod estimate;
mod export;
mod group;
mod grow;
mod guard;
mod held;
mod ids;
mod joining;
mod library;
mod loaded;
mod memory;
mod one_sided;
mod operations;
mod others;
mod parameters;
mod per_thread;
mod questions;
mod rank;
mod registry;
mod signals;
mod split;
mod texts;
mod threads;
mod together;
mod types;
mod window;
mod windows;
