//! The layouts of waits that end, of semaphores and of memory channels: `include/symrail/semaphore.cuh` and
//! `memory_channel.cuh` have their functions.

pub use semaphore::*;

mod semaphore {
    symrail_core::layouts! {
        header "include/symrail/semaphore_layout.cuh" of "kernels/src/layout.rs" with "SYMRAIL_SEMAPHORE_LAYOUT_CUH";
        constants {
            /// The reasons why a wait failed: the time-out, a PE that has given up, or the host.
            pub LATE "SYMRAIL_GIVEN_UP_LATE": u64 = 1;
            /// See above.
            pub BY_PEER "SYMRAIL_GIVEN_UP_BY_PEER": u64 = 2;
            /// See above.
            pub BY_HOST "SYMRAIL_GIVEN_UP_HOST": u64 = 3;
        }
        structs {
            /// A report of threads that give up, in pinned memory.
            pub Report "symrail_report" {
                /// The reason, or 0.
                reason: u64,
                /// The PE, or a number of the waiter.
                pe: u64,
                /// A number of the waiter.
                place: u64,
                /// The host's word, which ends all waits unless it is 0.
                end: u64,
            }
            /// Where threads that give up report it, and learn of others.
            pub Alarm "symrail_alarm" {
                /// The address of the `symrail_report` for the host.
                report: u64,
                /// The address of a symmetric word: 0, or the number of a PE that has given up, plus one.
                stop: u64,
            }
            /// One end of a semaphore that two PEs share: `symrail_semaphore`.
            pub Semaphore "symrail_semaphore_fields" {
                /// The address of the word for arriving signals here, in a symmetric heap.
                arrived: u64,
                /// The address of the number of awaited signals, in this device's memory.
                expected: u64,
                /// The symmetric address of the word for signals at the peer.
                there: u64,
                /// The address of that word for this device's atomics, or 0.
                mapped: u64,
                /// The peer.
                pe: u64,
            }
        }
    }
}

/// Memory channels.
pub mod memory_channel {
    use super::{Alarm, Semaphore};

    symrail_core::layouts! {
        header "include/symrail/memory_channel_layout.cuh" of "kernels/src/layout.rs"
            with "SYMRAIL_MEMORY_CHANNEL_LAYOUT_CUH";
        constants {}
        structs {
            /// A buffer of a peer, and a semaphore with that peer: `symrail_memory_channel`.
            pub MemoryChannel "symrail_memory_channel_fields" {
                /// The semaphore.
                semaphore: Semaphore as "symrail_semaphore",
                /// Where failed waits report.
                alarm: Alarm,
                /// The address of the peer's copy of the buffer on this device.
                remote: u64,
                /// The address of this PE's copy.
                local: u64,
            }
        }
    }
}
