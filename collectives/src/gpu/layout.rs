//! The layouts of plans, of sends and receives, and of calls without a plan that host and kernels share:
//! `cu/layout.cuh`.

use symrail::kernels::layout::{Alarm, Semaphore};

symrail_core::layouts! {
    header "cu/layout.cuh" of "collectives/src/gpu/layout.rs" with "SYMRAIL_COLLECTIVES_LAYOUT_CUH";
    constants {
        /// The kinds of steps.
        pub NOP "SYMRAIL_STEP_NOP": u32 = 0;
        pub BARRIER "SYMRAIL_STEP_BARRIER": u32 = 1;
        pub ACQUIRE "SYMRAIL_STEP_ACQUIRE": u32 = 2;
        pub RELEASE "SYMRAIL_STEP_RELEASE": u32 = 3;
        pub SIGNAL "SYMRAIL_STEP_SIGNAL": u32 = 4;
        pub WAIT "SYMRAIL_STEP_WAIT": u32 = 5;
        pub FLUSH "SYMRAIL_STEP_FLUSH": u32 = 6;
        pub COPY "SYMRAIL_STEP_COPY": u32 = 7;
        pub REDUCE "SYMRAIL_STEP_REDUCE": u32 = 8;
        pub PACK "SYMRAIL_STEP_PACK": u32 = 9;
        pub FORWARD "SYMRAIL_STEP_FORWARD": u32 = 10;
        pub UNPACK "SYMRAIL_STEP_UNPACK": u32 = 11;
        pub REDUCE_PACKETS "SYMRAIL_STEP_REDUCE_PACKETS": u32 = 12;
        pub PIPELINE "SYMRAIL_STEP_PIPELINE": u32 = 13;
        /// Flags of a step: an unordered signal; a flush at the end; the plan fixes the reduction.
        pub RELAXED "SYMRAIL_STEP_RELAXED": u32 = 1;
        pub FLUSHES "SYMRAIL_STEP_FLUSHES": u32 = 2;
        pub OWN_OP "SYMRAIL_STEP_OWN_OP": u32 = 4;
        /// Flags of a plan: the ranks have a barrier before a call, and after it; only the proxy reaches some ranks;
        /// packets and plain chunks of other ranks order one another; puts may be under way when a call ends.
        pub BARRIER_BEFORE "SYMRAIL_PLAN_MEETS_BEFORE": u64 = 1;
        pub BARRIER_AFTER "SYMRAIL_PLAN_MEETS_AFTER": u64 = 2;
        pub WIRED "SYMRAIL_PLAN_WIRED": u64 = 4;
        pub MIXED "SYMRAIL_PLAN_MIXED": u64 = 8;
        pub LEAVES_PUTS "SYMRAIL_PLAN_LEAVES_PUTS": u64 = 16;
        /// Buffers of a span.
        pub INPUT "SYMRAIL_BUFFER_INPUT": u32 = 0;
        pub OUTPUT "SYMRAIL_BUFFER_OUTPUT": u32 = 1;
        pub SCRATCH "SYMRAIL_BUFFER_SCRATCH": u32 = 2;
        /// The most spans of one step.
        pub MOST_SPANS "SYMRAIL_STEP_SPANS": usize = 160;

        /// Slots of a lane of sends and receives.
        pub LANE_SLOTS "SYMRAIL_LANE_SLOTS": u64 = 4;
        /// Two words precede the bytes of a slot: the size of the whole transfer, which the receiver compares with its
        /// own, and the complement of the number of the slot's signal.
        pub SLOT_HEAD "SYMRAIL_SLOT_HEAD": u64 = 16;
        /// A reason for giving up, besides those of semaphore.cuh: the send's size differs. The bits above these hold
        /// that size.
        pub SIZES "SYMRAIL_GIVEN_UP_SIZES": u64 = 4;
        pub SIZE_SHIFT "SYMRAIL_GIVEN_UP_SIZE_SHIFT": u32 = 8;
        /// Limits of one launch of sends and receives; of one with a smaller argument, which an all-to-all among 8 ranks
        /// needs; and of a small one.
        pub EXCHANGE_BLOCKS "SYMRAIL_MOST_BLOCKS": usize = 192;
        pub EXCHANGE_ROWS "SYMRAIL_MOST_ROWS": usize = 31;
        pub EXCHANGE_TRANSFERS "SYMRAIL_MOST_TRANSFERS": usize = 72;
        pub SOME_ROWS "SYMRAIL_SOME_ROWS": usize = 15;
        pub SOME_TRANSFERS "SYMRAIL_SOME_TRANSFERS": usize = 16;
        pub FEW_ROWS "SYMRAIL_FEW_ROWS": usize = 4;
        pub FEW_TRANSFERS "SYMRAIL_FEW_TRANSFERS": usize = 6;
        /// The kernels for these arguments, the largest first.
        pub EXCHANGE_ANY "SYMRAIL_EXCHANGE_ANY": u64 = 0;
        pub EXCHANGE_SOME "SYMRAIL_EXCHANGE_SOME": u64 = 1;
        pub EXCHANGE_FEW "SYMRAIL_EXCHANGE_FEW": u64 = 2;
        /// Bits of a row's work: it receives; it is a copy of the PE's own, from the first transfer to the next.
        pub ROW_RECEIVES "SYMRAIL_ROW_RECEIVES": u64 = 1 << 62;
        pub ROW_OWN "SYMRAIL_ROW_OWN": u64 = 1 << 63;
        /// A bit of a transfer's division: it is packets, if its sender can store to its receiver's memory.
        pub IN_PACKETS "SYMRAIL_TRANSFER_PACKETS": u64 = 1 << 63;

        /// Limits of calls without a plan, and the slots of one of their rings.
        pub STRAIGHT_RANKS "SYMRAIL_STRAIGHT_RANKS": usize = 16;
        /// See above.
        pub STRAIGHT_BLOCKS "SYMRAIL_STRAIGHT_BLOCKS": u64 = 64;
        pub STRAIGHT_SLOTS "SYMRAIL_PUSHED_SLOTS": u64 = 4;
        /// Their collectives.
        pub ALL_REDUCE "SYMRAIL_ALL_REDUCE": u64 = 0;
        pub ALL_GATHER "SYMRAIL_ALL_GATHER": u64 = 1;
        pub REDUCE_SCATTER "SYMRAIL_REDUCE_SCATTER": u64 = 2;
        pub ALL_TO_ALL "SYMRAIL_ALL_TO_ALL": u64 = 3;
        pub BROADCAST "SYMRAIL_BROADCAST": u64 = 4;
        pub REDUCE_TO "SYMRAIL_REDUCE_TO": u64 = 5;
        pub GATHER "SYMRAIL_GATHER": u64 = 6;
        pub SCATTER "SYMRAIL_SCATTER": u64 = 7;
        /// Their kernels.
        pub STRAIGHT_PACKETS "SYMRAIL_STRAIGHT_PACKETS": u64 = 0;
        pub STRAIGHT_ALL_REDUCE "SYMRAIL_STRAIGHT_ALL_REDUCE": u64 = 1;
        pub STRAIGHT_ONE_WAY "SYMRAIL_STRAIGHT_ONE_WAY": u64 = 2;
        pub STRAIGHT_BOTH_WAYS "SYMRAIL_STRAIGHT_BOTH_WAYS": u64 = 3;
        /// Flags beside a reduction: elements are rounded after every step of it; the result is an average.
        pub ROUNDED "SYMRAIL_STRAIGHT_ROUNDED": u64 = 0x100;
        pub AVERAGE "SYMRAIL_STRAIGHT_AVERAGE": u64 = 0x200;
        /// The output of an RMS norm: its elements; or FP8 with a scale that is given, or with one for each group.
        pub NORM_PLAIN "SYMRAIL_NORM_PLAIN": u64 = 0;
        pub NORM_BY_TENSOR "SYMRAIL_NORM_BY_TENSOR": u64 = 1;
        pub NORM_BY_GROUPS "SYMRAIL_NORM_BY_GROUPS": u64 = 2;
        /// Kernels of RMS norms.
        pub NORM_PACKETS "SYMRAIL_NORM_PACKETS": u64 = 0;
        pub NORM_PACKETS_ANYWHERE "SYMRAIL_NORM_PACKETS_ANYWHERE": u64 = 1;
        pub NORM_PUSHED "SYMRAIL_NORM_PUSHED": u64 = 2;
        pub NORM_PUSHED_ANYWHERE "SYMRAIL_NORM_PUSHED_ANYWHERE": u64 = 3;
    }
    structs {
        /// Chunks of a buffer of a rank.
        pub Span "symrail_span" {
            rank: u32,
            buffer: u32,
            index: u32,
            size: u32,
        }
        /// A step of a plan.
        pub Step "symrail_plan_step" {
            /// For a pipeline: bytes of an iteration, and chunks in all; its steps follow.
            unit: u64,
            chunks: u64,
            kind: u32,
            flags: u32,
            /// This block's share of the data.
            share: u32,
            shares: u32,
            op: u32,
            /// Its spans in the plan's list: sources, then destinations.
            spans: u32,
            sources: u32,
            dests: u32,
            /// Its indexes in the plan's list: semaphores of channels, or between blocks.
            ids: u32,
            count: u32,
            /// A barrier, and the number of its blocks; for a pipeline, its steps.
            barrier: u32,
            blocks: u32,
        }
        /// A rank in this device's view: its PE, the distance of its memory from this PE's, and whether stores reach it.
        pub Rank "symrail_rank" {
            pe: u64,
            distance: u64,
            mapped: u64,
        }
        /// A resolved plan of one rank.
        pub Plan "symrail_plan" {
            alarm: Alarm,
            me: u64,
            n_ranks: u64,
            n_blocks: u64,
            flags: u64,
            /// Chunks of a part; and the buffer that is each rank's part of the other one: 0 none, 1 the input, 2 the
            /// output.
            chunks: u64,
            inner: u64,
            alignment: u64,
            /// Plain scratch chunks, in `scratch_halves` halves; and packets, in `halves` halves (or none) of
            /// `half_bytes` bytes, which is twice as many as a half of plain chunks has.
            scratch: u64,
            scratch_halves: u64,
            packets: u64,
            halves: u64,
            half_bytes: u64,
            /// Lists.
            ranks: u64 as "const symrail_rank*",
            /// The first step of each block, and the end.
            first_steps: u64 as "const symrail_u64*",
            steps: u64 as "const symrail_plan_step*",
            spans: u64 as "const symrail_span*",
            ids: u64 as "const symrail_u32*",
            /// The rank's semaphores with others: those of channels, then those of barriers, one with each rank.
            semaphores: u64 as "const symrail_semaphore*",
            barriers: u64,
            /// The number of each block's next call.
            epochs: u64 as "symrail_u64*",
            /// Semaphores between this rank's blocks, which a call leaves as it found them; and the arrivals at each
            /// barrier.
            local_semaphores: u64 as "symrail_u64*",
            arrivals: u64 as "symrail_u64*",
            /// The number of calls that blocks may begin; and the number of blocks that have ended, over all calls.
            begun: u64 as "symrail_u64*",
            ended: u64 as "symrail_u64*",
        }
        /// One direction between two PEs, and the part of a launch in it. Several lanes share a large transfer: each
        /// has a block, and words and slots behind those of the lane before.
        pub ExchangeRow "symrail_exchange_row" {
            /// A sender waits for empty slots, a receiver for full ones; each signals the other.
            semaphore: Semaphore as "symrail_semaphore",
            /// The receiver's slots: the symmetric address, and the address for this device, or 0 if it cannot access
            /// them.
            slots: u64,
            mapped: u64,
            /// A sender's own symmetric copy of the slots, from which the proxy puts.
            outgoing: u64,
            /// The first block, the number of blocks, the first transfer: 16 bits each; the number of transfers, 12
            /// bits; and bits.
            work: u64,
        }
        /// What all rows of a launch share.
        pub ExchangeHead "symrail_exchange_head" {
            alarm: Alarm,
            ranks: u64 as "const symrail_rank*",
            n_ranks: u64,
            slot_bytes: u64,
            /// Bytes behind each slot for a small transfer as packets, the first of which has its size.
            packet_bytes: u64,
            rows: u64,
        }
        /// A send or a receive.
        pub Transfer "symrail_transfer" {
            at: u64,
            bytes: u64,
            /// The bytes of a slot that it uses, 32 bits; its lanes, 16 bits; and a bit.
            division: u64,
        }
        /// A launch of sends and receives. Each block performs the transfers of one row, one after the other, on one
        /// lane.
        pub ExchangeCall "symrail_exchange_call" {
            head: ExchangeHead,
            rows: [ExchangeRow; EXCHANGE_ROWS],
            transfers: [Transfer; EXCHANGE_TRANSFERS],
        }
        /// One with fewer rows.
        pub ExchangeSome "symrail_exchange_some" {
            head: ExchangeHead,
            rows: [ExchangeRow; SOME_ROWS],
            transfers: [Transfer; SOME_TRANSFERS],
        }
        /// A small one.
        pub ExchangeFew "symrail_exchange_few" {
            head: ExchangeHead,
            rows: [ExchangeRow; FEW_ROWS],
            transfers: [Transfer; FEW_TRANSFERS],
        }
        /// A rank: the distance of its memory from this PE's, and its PE.
        pub StraightRank "symrail_straight_rank" {
            distance: u64,
            pe: u64,
        }
        /// A call without a plan, and the addresses of its memory. Symmetric memory has the same offset in all heaps.
        pub Straight "symrail_straight" {
            alarm: Alarm,
            me: u64,
            n: u64,
            blocks: u64,
            collective: u64,
            /// The rank that a broadcast or a reduction to one rank has.
            root: u64,
            /// The reduction, and flags.
            how: u64,
            input: u64,
            output: u64,
            /// Bytes of a part: of the whole in an all-reduce, a broadcast and a reduction to one rank, otherwise of
            /// each rank's share.
            part: u64,
            /// Symmetric: packets in two halves, with `region` bytes for each other rank.
            packets: u64,
            region: u64,
            /// Symmetric: two rings of slots for each block, of `slot_bytes` bytes, and words that count the filled
            /// slots.
            rings: u64,
            slot_bytes: u64,
            filled: u64,
            /// The bytes of this call's chunks, at most those of two slots, of an RMS norm those of four.
            chunk: u64,
            /// This device's words: the number of the next call by packets; the number of that call's blocks that have
            /// read it; and the number of each block's next slot.
            words: u64,
            ranks: [StraightRank; STRAIGHT_RANKS],
        }
        /// An all-reduce of rows with a residual, whose output is their RMS norm.
        pub Norm "symrail_norm" {
            straight: Straight,
            /// The residual or 0, its sum with the rows, and the weight of each element of a row.
            residual: u64,
            sum: u64,
            weight: u64,
            rows: u64,
            hidden: u64,
            /// The bits of a float.
            epsilon: u64,
            /// How the output is scaled, and the scale or the scales' place.
            scaled: u64,
            scales: u64,
            /// In packets: their place, and the bytes of another rank's.
            inbox: u64,
            inbox_bytes: u64,
            /// Pushed: the rows that a rank adds up, those of them that a block has, and those of a chunk; the parts of
            /// a row, each of which is a chunk, or 1; and a block's chunks.
            rows_of_rank: u64,
            rows_of_block: u64,
            rows_of_chunk: u64,
            parts: u64,
            chunks: u64,
        }
    }
}
