//! The layouts that host and kernels share: `cu/low_latency_layout.cuh` and `cu/high_throughput_layout.cuh`.

/// Applies a function to each member of a struct of 64-bit numbers.
macro_rules! each {
    ($name:ident: $($field:ident),*) => {
        impl $name {
            pub fn each(self, mut of: impl FnMut(u64) -> u64) -> $name {
                $name { $($field: of(self.$field)),* }
            }
        }
    };
}

/// The sum of parts in bytes, and their addresses from `base` on.
macro_rules! parts {
    ($name:ident) => {
        impl $name {
            pub fn bytes(self) -> usize {
                let mut sum = 0;
                self.each(|bytes| {
                    sum += bytes;
                    bytes
                });
                sum as usize
            }

            pub fn from(self, base: u64) -> $name {
                let mut next = base;
                self.each(|bytes| {
                    next += bytes;
                    next - bytes
                })
            }
        }
    };
}

pub mod low_latency {
    symrail_core::layouts! {
        header "cu/low_latency_layout.cuh" of "ep/src/cuda/layout.rs" with "SYMRAIL_EP_LOW_LATENCY_LAYOUT_CUH";
        constants {
            /// The state of a lost rank: it was late once; it was notified of that; it has left this one behind. After
            /// each of these neither rank works with the other any more.
            pub WAS_LATE "WAS_LATE": u32 = 1;
            pub IS_TOLD "IS_TOLD": u32 = 2;
            pub HAS_LEFT "HAS_LEFT": u32 = 3;
            /// The kinds of a dispatch's rows.
            pub BF16 "BF16": u64 = 0;
            pub FP8 "FP8": u64 = 1;
            pub FP8_POWER_OF_TWO "FP8_POWER_OF_TWO": u64 = 2;
            /// A combine of a dispatch whose memory has been reused.
            pub NOT_HELD "NOT_HELD": u64 = u64::MAX;
            /// A combine that is received in another form than it was sent.
            pub OTHER_FORM "OTHER_FORM": u64 = u64::MAX - 1;
            /// Marks the dispatch of a combine whose rows are encoded.
            pub IS_ENCODED "IS_ENCODED": u64 = 1 << 63;
            /// The number of a token's elements that one scale serves.
            pub FP8_GROUP "FP8_GROUP": usize = crate::fp8::GROUP;
        }
        structs {
            /// Parts of the symmetric memory.
            pub Heap "heap_parts" {
                /// Incoming parts, outgoing parts, and words of parts.
                incoming: u64,
                outgoing: u64,
                words: u64,
                /// Returned rows, their words (of rows, of far ranks' parts, and of far ranks' weights), and rows to be
                /// returned to far ranks.
                back: u64,
                back_words: u64,
                back_out: u64,
                /// Weights from each rank, and those for far ranks.
                weights: u64,
                weights_out: u64,
                /// For each rank the round in which it left this one behind.
                left: u64,
                /// For each rank the last combine for which it asked for encoded rows; for each returning row the combine
                /// that has encoded it, and which of its groups are.
                formats: u64,
            }
            /// The parameters of all kernels.
            pub Parameters "parameters" {
                ranks: u64,
                me: u64,
                share: u64,
                k: u64,
                most: u64,
                hidden: u64,
                /// The number of parts for each rank, and bytes of each.
                parts: u64,
                part: u64,
                /// There are ranks whose memory this GPU does not reach, or the reverse (far ranks).
                has_far: u64,
                /// The addresses of the symmetric memory.
                heap: Heap,
                /// This PE's own memory: which ranks are masked; in which round each was late since the last check;
                /// which are far.
                masks: u64,
                late: u64,
                far: u64,
                /// For each slot the number of the row that returns from its rank; for each slot of each rank's tokens
                /// the index of the expert's row, and the round in the upper half; for each part of each far rank the
                /// number of rows that are ready to return.
                back_numbers: u64,
                places: u64,
                ready: u64,
                /// The state of lost ranks; the parts and the rows that come from this PE itself.
                lost: u64,
                own_in: u64,
                own_back: u64,
                /// The last values of the words of far ranks' parts, and the number of rows that each part to a rank
                /// returns, both for two dispatches; the last values of the words of far ranks' returning parts and of
                /// their weights; a call that differs; and for each rank whether a dispatch takes its tokens.
                notes: u64,
                /// The last dispatch that was sent, and the last one that was received; the last combine that was sent,
                /// the last one that has ended, and the dispatch of the former, 0 if it was refused. They lie here so
                /// that a kernel loads them with the other parameters.
                sent: u64,
                received: u64,
                combining: u64,
                combined: u64,
                combining_of: u64,
                /// For each set of memory whether the rows of its dispatch are FP8.
                formats: [u64; 2],
                /// The number of tickets that the blocks of the running kernel have taken.
                tickets: u64,
                /// Whether the GPU masks late ranks.
                mask_late: u64,
                /// Set by each kernel in its copy: the number of its dispatch, whether the rows of that are FP8, the
                /// number of its combine, and which of the things that this PE sends to itself have words.
                round: u64,
                fp8: u64,
                combine: u64,
                own_words: u64,
            }
        }
    }
    each!(Heap: incoming, outgoing, words, back, back_words, back_out, weights, weights_out, left, formats);
    parts!(Heap);
}

pub mod high_throughput {
    symrail_core::layouts! {
        header "cu/high_throughput_layout.cuh" of "ep/src/cuda/layout.rs" with "SYMRAIL_EP_HIGH_THROUGHPUT_LAYOUT_CUH";
        constants {
            pub MOST_RANKS "MOST_RANKS": usize = 256;
            /// Rows of a chunk.
            pub CHUNK "CHUNK": usize = 32;
            /// Rows of a combine that a warp returns at a time in a job of one host.
            pub RETURNED "RETURNED": usize = 2;
            /// The number of values that ranks compare: the kind of the call, bytes of a row, scales of a row, slots,
            /// a checksum of the routes of an earlier call, and the types of rows and scales.
            pub COMPARED "COMPARED": usize = 6;
            /// The kind of a combine; dispatches have other ones.
            pub COMBINE "COMBINE": u64 = 3;
            /// Marks the ticket of a call that does not go on. The counts are those of an earlier call then.
            pub TICKET_REFUSED "TICKET_REFUSED": u64 = 1 << 63;
            /// The kinds of errors; from DIFFERENT on, the compared values.
            pub NOTHING "NOTHING": u64 = 0;
            pub NO_EXPERT "NO_EXPERT": u64 = 1;
            pub DIFFERENT "DIFFERENT": u64 = 2;
            pub NO_ROOM "NO_ROOM": u64 = 8;
            pub LATE "LATE": u64 = 9;
            /// Flags of terms: the first of a host; a sum of another host.
            pub FIRST_OF_HOST "FIRST_OF_HOST": u32 = 1 << 31;
            pub IS_SUM "IS_SUM": u32 = 1 << 30;
        }
        structs {
            /// Parts of the symmetric memory.
            pub Heap "heap_parts" {
                /// Incoming headers, outgoing headers, and words of headers; words of chunks, and words of gathered
                /// chunks.
                headers: u64,
                headers_out: u64,
                header_words: u64,
                words: u64,
                gathered_words: u64,
                /// Rows and their side data that arrive from other hosts by dispatch, that a combine offers to the ranks
                /// of this host, that return from other hosts (of a job of one host: from all ranks), that go to unmapped ranks, that are staged for others of
                /// this host, and that arrive as sums of another host.
                rows: u64,
                sides: u64,
                offered_rows: u64,
                offered_sides: u64,
                back_rows: u64,
                back_sides: u64,
                out_rows: u64,
                out_sides: u64,
                staged_rows: u64,
                staged_sides: u64,
                sum_rows: u64,
                sum_sides: u64,
                /// Words of the ranks of this host; tokens that a dispatch offers to these ranks, their side data, the
                /// positions here of the tokens of these ranks, and words of the rows that return in a job of one host.
                near_words: u64,
                token_rows: u64,
                token_sides: u64,
                near_places_at: u64,
                returned_words: u64,
            }
            /// The parameters of all kernels.
            pub Parameters "parameters" {
                ranks: u64,
                me: u64,
                share: u64,
                most: u64,
                room: u64,
                /// The number of hosts, the number of ranks of the largest host, and the number of rows that staging
                /// memory holds.
                hosts: u64,
                members: u64,
                staged: u64,
                /// The addresses of the symmetric memory.
                heap: Heap,
                /// The most bytes of a row's side data.
                side: u64,
                /// This PE's own memory: `progress`; `record`, which is in host memory; the ranks of each host; the
                /// terms of a sum, and their number.
                progress: u64,
                record: u64,
                homes: u64,
                terms: u64,
                n_terms: u64,
            }
            /// The routes of a dispatch on this PE: the addresses of tables.
            pub Routes "routes" {
                /// For each rank (first index) the number of its tokens for each rank, and for each host.
                matrix: u64,
                crossings: u64,
                /// For each rank, and then for each host, this PE's tokens for it.
                lists: u64,
                /// For each token its position in the list of each rank, and of each host, or -1.
                places: u64,
                host_places: u64,
                /// This PE's slots for each expert; all slots of each of this PE's experts.
                per_expert: u64,
                come: u64,
                /// The first slot whose expert does not exist (all bits set: none), and that expert.
                wrong_slot: u64,
                /// For each token that arrived through this PE its position at each rank of this host, or -1.
                spread: u64,
            }
            /// State in this GPU's memory.
            pub Progress "progress" {
                /// The number of ended calls; the state of the current call; the call in which ranks were late, or 0.
                calls: u64,
                state: u64,
                alarm: u64,
                /// For the running kernel: the numbers of tickets that its warps have taken, and of those for rows that
                /// return; the numbers of blocks that have begun, and that have ended.
                tickets: u64,
                returns: u64,
                begun: u64,
                blocks: u64,
                /// For the start of a call: the complement of the first value that differs, by rank, or 0.
                differs: u64,
            }
            /// State in host memory, which the host may read at any time.
            pub Record "record_fields" {
                /// The first error: its kind, the other rank, the value here and the value there.
                wrong: u64,
                other: u64,
                here: u64,
                there: u64,
                /// The number of ended calls, and the ticket of the last call that has told the host its counts.
                calls: u64,
                told: u64,
            }
            /// The announcement of a call.
            pub Header "header_fields" {
                compared: [u64; COMPARED],
                /// The number of the rank's tokens, and of rows that the caller's memory holds.
                tokens: u64,
                room: u64,
            }
        }
    }
    each!(Heap: headers, headers_out, header_words, words, gathered_words, rows, sides, offered_rows, offered_sides,
        back_rows, back_sides, out_rows, out_sides, staged_rows, staged_sides, sum_rows, sum_sides, near_words, token_rows,
        token_sides, near_places_at, returned_words);
    parts!(Heap);
    each!(Routes: matrix, crossings, lists, places, host_places, per_expert, come, wrong_slot, spread);
    parts!(Routes);
}
