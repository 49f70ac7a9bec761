//! The layouts of plans and copies that host and kernels share: `cu/layout.cuh`.

use std::mem::offset_of;

use symrail::kernels::layout::{Alarm, Report};

symrail_core::layouts! {
    header "cu/layout.cuh" of "decomp/src/cuda/layout.rs" with "SYMRAIL_DECOMP_LAYOUT_CUH";
    constants {
        /// The threads of a block that copies.
        pub THREADS "DECOMP_THREADS": u32 = 256;
        /// The number of blocks that are resident on a multiprocessor: the registers suffice for so many.
        pub BLOCKS "DECOMP_AT_ONCE": u32 = 4;
        /// The loops of a copy.
        pub LOOPS "DECOMP_LOOPS": usize = 5;
        /// The leg of a copy that always runs.
        pub NO_LEG "DECOMP_NO_LEG": u64 = u64::MAX;
    }
    structs {
        /// The last refusal for the host.
        pub RefusalReport "decomp_refusal" {
            /// Its code, plus one.
            refusal: u64,
            pe: u64,
        }
        /// What kernels report, in pinned memory.
        pub PlanReport "decomp_report" {
            wait: Report,
            refusal: RefusalReport,
        }
        /// A plan, with addresses of its words.
        pub Plan "decomp_plan" {
            /// Words for each slot: where this PE's block may go, and the round; after all of these, by slot, the round
            /// whose block has arrived. Each round's number is DECOMP_NEXT more than the one before.
            words: u64,
            slots: u64,
            /// The round, in this device's memory.
            round: u64,
            alarm: Alarm,
            /// The `decomp_refusal` of the report.
            refusal: u64,
            /// The number of blocks of a launch of `decomp_round` that have done their copies.
            done: u64,
        }
        /// A plan with the words in this device's memory that its kernels change. The landings follow it.
        pub PlanMemory "decomp_plan_memory" {
            plan: Plan,
            round: u64,
            stop: u64,
            done: u64,
        }
        /// Another PE of a round.
        pub Leg "decomp_leg" {
            pe: u64,
            /// The slots here and there.
            here: u64,
            there: u64,
            /// The offer to the other end: where its block may go here.
            offer: u64,
            /// The source and the length of the proxy's put, if there is one.
            source: u64,
            bytes: u64,
        }
        /// What is known of a leg's other end.
        pub Landing "decomp_landing" {
            /// Where a block of this round may go, as an address of this GPU, and its kind.
            at: u64,
            kind: u64,
            /// Whether the other end's block has arrived.
            came: u64,
            /// The number of blocks of a launch that have copied theirs.
            copied: u64,
        }
        /// A block that a copy engine fetches.
        pub Fetched "decomp_fetched" {
            to: u64 as "void*",
            from: u64 as "const void*",
            bytes: u64,
        }
        /// A loop over one dimension; strides are of elements.
        pub StridedLoop "decomp_loop" {
            count: u64,
            from: u64,
            to: u64,
        }
        /// A copy. The first loop is the fastest of the destination. The second is that of the source, or else the next
        /// one.
        pub StridedCopy "decomp_copy" {
            from: u64,
            to: u64,
            /// The leg of the copy, or DECOMP_NO_LEG; whether `to` is an offset from that leg's landing.
            leg: u64,
            at_landing: u64,
            /// Whether the fastest dimensions differ.
            tiled: u64,
            /// Whether all strides and sizes, except the addresses, are multiples of 16 bytes.
            wide: u64,
            loops: [StridedLoop; LOOPS],
        }
    }
}

impl PlanMemory {
    /// The memory of a plan with `slots` slots, whose [`PlanMemory`] is at `own`, words at `words` and [`PlanReport`] at
    /// `report`.
    pub fn new(own: u64, words: u64, slots: usize, report: u64) -> PlanMemory {
        let at = |offset: usize| own + offset as u64;
        let alarm =
            Alarm { report: report + offset_of!(PlanReport, wait) as u64, stop: at(offset_of!(PlanMemory, stop)) };
        let plan = Plan {
            words,
            slots: slots as u64,
            round: at(offset_of!(PlanMemory, round)),
            alarm,
            refusal: report + offset_of!(PlanReport, refusal) as u64,
            done: at(offset_of!(PlanMemory, done)),
        };
        PlanMemory { plan, round: 0, stop: 0, done: 0 }
    }
}
