//! The layouts of plans and of pairs of ranks that host and kernels share: `cu/layout.cuh`.

use std::mem::offset_of;

use symrail::kernels::layout::Alarm;

symrail_core::layouts! {
    header "cu/layout.cuh" of "overlap/src/cuda/layout.rs" with "SYMRAIL_OVERLAP_LAYOUT_CUH";
    constants {
        /// The most blocks of a round that is not cut, each of which has a packet without data.
        pub MOST_BLOCKS "OVERLAP_PACKET_HEADS": usize = 96;
        /// The slots of a pair for puts of few bytes, and the bytes of a slot.
        pub SLOTS "OVERLAP_SLOTS": usize = 4;
        pub SLOT_BYTES "OVERLAP_SLOT_BYTES": usize = 8320;
    }
    structs {
        /// A plan. The numbers of its PEs follow it.
        pub Plan "overlap_plan" {
            /// The address of the plan's words, which kernels use for all PEs, and that of the round's number in this
            /// device's memory.
            words: u64,
            round: u64,
            /// The alarm stops waits at a word that other PEs set when they give up. So their failed waits end those of
            /// this PE, too.
            alarm: Alarm,
            /// The index of that word, and the number of PEs.
            gone: u64,
            pes: u64,
            /// The number of the round; its copy for copy engines to set at others, or 0 after a failed wait; the
            /// number of blocks that have copied.
            counted: u64,
            signalled: u64,
            copied: u64,
            unused: [u64; 7],
        }
        /// The data that move between two ranks in a round that is not cut, in one kernel.
        pub Part "overlap_part" {
            pe: u64,
            /// The first words of the blocks, one for each block. `ready`: the buffer of this rank is free. `arrived`:
            /// bytes have arrived. The last two are those of the other rank, at addresses that this device reaches.
            ready: u64,
            arrived: u64,
            ready_there: u64,
            arrived_there: u64,
            /// The bytes that go to the other rank: their offset from the kernel's `from`, and the address at which
            /// this device reaches their destination.
            from: u64,
            to: u64,
            bytes: u64,
        }
        /// The same for data that move as packets.
        pub Packed "overlap_packed" {
            /// The address at which this device reaches the other rank's packets; the offset and the length of their
            /// bytes in the kernel's `from`.
            to: u64,
            from: u64,
            bytes: u64,
            /// The PE whose packets arrive at `here`. For an all-gather also the destination of their bytes.
            sender: u64,
            here: u64,
            keep: u64,
            coming: u64,
            unused: u64,
        }
        /// A wait of a round's first kernel.
        pub FirstWait "overlap_first_wait" {
            word: u64,
            pe: u64,
        }
        /// The counts of this rank for another rank and a tag, in this device's memory.
        pub Pair "overlap_pair" {
            sent: u64,
            received: u64,
            offered: u64,
            fetched: u64,
            /// The blocks that have copied, for a put and for a get; the values that copy engines copy to words.
            put: u64,
            got: u64,
            counted_put: u64,
            counted_got: u64,
        }
    }
}

impl Plan {
    /// A plan at `own` of `pes` PEs with its words at `words` and its report at `report`; the word at index `gone` is
    /// set by PEs that give up.
    pub fn new(own: u64, words: u64, report: u64, gone: usize, pes: usize) -> Plan {
        Plan {
            words,
            round: own + offset_of!(Plan, counted) as u64,
            alarm: Alarm { report, stop: words + 8 * gone as u64 },
            gone: gone as u64,
            pes: pes as u64,
            counted: 0,
            signalled: 0,
            copied: 0,
            unused: [0; 7],
        }
    }
}
