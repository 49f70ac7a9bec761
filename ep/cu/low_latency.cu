// Kernels of low-latency dispatch and combine, for ep/src/cuda/low_latency.rs. rounds.cuh describes the memory of a
// round.
//
// The time of a kernel is that of its chain of dependent waits. So a block handles all tokens of its part at a time,
// each thread has many loads in flight, and the thread or warp that has written data also sets its word.
#include "cast.cuh"
#include "logfmt.cuh"

// The most warps of a block.
#define MOST_WARPS 16
// The number of rows, for each thread of a block, that the block collects before it copies them.
#define LISTED 2
// The rows of a sum that a thread loads before it adds the first: rows of experts (at most top-k for a token), and
// returned rows (at most one for each rank). Then the 16-byte pieces of each.
#define ROWS_AHEAD 8
#define RETURNS_AHEAD 4
#define PIECES_AHEAD 2
// The weights that a thread sends at once.
#define WEIGHTS_AHEAD 4
// The sums that a block forms at a time.
#define TOGETHER 2

// Whether a slot names one of a rank's experts.
static __device__ bool is_of(const parameters& p, long long expert, symrail_u64 rank) {
    return (symrail_u64)(expert - (long long)(rank * p.share)) < p.share;
}
// A block counts the tokens for a rank that precede the part's.
static __device__ symrail_u32 rows_before(const parameters& p, const long long* topk, symrail_u64 first, symrail_u64 rank) {
    __shared__ symrail_u32 sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    symrail_u32 own = 0;
    for (symrail_u64 token = threadIdx.x; token < first; token += blockDim.x) {
        bool some = false;
#pragma unroll 8
        for (symrail_u32 slot = 0; slot < (symrail_u32)p.k; slot++) some |= is_of(p, topk[token * p.k + slot], rank);
        own += some;
    }
    if (own != 0) atomicAdd(&sum, own);
    __syncthreads();
    return sum;
}

// A block copies a batch of tokens to consecutive rows.
static __device__ void copy_rows(const parameters& p, const unsigned short* x, const symrail_u32* tokens, symrail_u32 many,
                                 char* to) {
    const symrail_u32 lap = 32 * 4;
    symrail_u32 pieces = (symrail_u32)(p.hidden / 8), laps = (pieces + lap - 1) / lap, warps = blockDim.x / 32;
    symrail_u64 bytes = row_bytes(p);
    for (symrail_u32 unit = threadIdx.x / 32; unit < many * laps; unit += warps) {
        symrail_u64 row = unit / laps, base = unit % laps * lap + threadIdx.x % 32;
        pieces_of_row<4>((const char*)(x + tokens[row] * p.hidden), base, pieces).store(to + row * bytes);
    }
}

// What a rank sends: rows of its tokens, 64-bit indices of their experts (-1 for none), and the kind of the rows.
struct tokens_to_send {
    const unsigned short* x;
    const long long* topk;
    symrail_u64 tokens, kind;
};
// A block sends a part of the tokens to a rank. A row's slots are the experts, counted from the rank's first one, all bits
// set for none of them; then follow the token and the number of the row that returns for it. `is_written` is called
// before the delivery.
template <class F>
static __device__ void send_part(const parameters& p, symrail_u64 unit, const tokens_to_send& given, const F& is_written) {
    // Whether each warp's token is for the rank. For each row of a batch, its token.
    __shared__ symrail_u32 goes_there[MOST_WARPS], token_of[MOST_WARPS];
    const unsigned short* x = given.x;
    const long long* topk = given.topk;
    symrail_u64 tokens = given.tokens, kind = given.kind;
    symrail_u64 rank = (symrail_u32)unit / (symrail_u32)p.parts, part = (symrail_u32)unit % (symrail_u32)p.parts, round = p.round;
    if (is_masked(p, rank)) {
        if (part == 0 && threadIdx.x == 0) leave_behind(p, rank, round);
        return;
    }
    char* there = (char*)p.heap.incoming + part_number(p, p.me, round, part) * p.part;
    symrail_u64* word = (symrail_u64*)p.heap.words + part_number(p, p.me, round, part);
    char* mapped = rank == p.me ? (char*)part_at(p, rank, round, part) : (char*)symrail_ptr(there, (int)rank);
    char* to = mapped != nullptr ? mapped : (char*)p.heap.outgoing + part_number(p, rank, round, part) * p.part;
    symrail_u64 each = ((symrail_u32)tokens + (symrail_u32)p.parts - 1) / (symrail_u32)p.parts, first = part * each, count = 0;
    symrail_u64 end = first + each < tokens ? first + each : tokens;
    symrail_u32 warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // The slots of the next batch are in flight.
    auto slot_of = [&](symrail_u64 token) { return token < end && lane < p.k ? topk[token * p.k + lane] : -1; };
    long long next = slot_of(first + warp);
    symrail_u32 start = rows_before(p, topk, first < tokens ? first : tokens, rank);
    // A warp handles a token of the batch, and each lane handles a slot.
    for (symrail_u64 base = first; base < end; base += warps) {
        symrail_u64 token = base + warp, slot = token * p.k + lane;
        long long expert = next;
        next = slot_of(token + warps);
        bool here = is_of(p, expert, rank), some = __ballot_sync(~0u, here) != 0;
        if (lane == 0) goes_there[warp] = some;
        __syncthreads();
        symrail_u32 row = 0, many = 0;
        for (symrail_u32 w = 0; w < warps; w++) {
            if (w < warp) row += goes_there[w];
            many += goes_there[w];
        }
        if (some) {
            symrail_u32* slots = (symrail_u32*)(to + 16 + (count + row) * row_bytes(p) + slots_at(p));
            symrail_u32 number = start + (symrail_u32)count + row;
            if (here) back_number_of_slot(p, slot) = number;
            if (lane < p.k) slots[lane] = here ? (symrail_u32)(expert - (long long)(rank * p.share)) : ~0u;
            if (lane == 0) slots[p.k] = (symrail_u32)token, slots[p.k + 1] = number, token_of[row] = (symrail_u32)token;
        }
        __syncthreads();
        if (p.fp8) cast_rows(p, x, token_of, many, to + 16 + count * row_bytes(p), kind == FP8_POWER_OF_TWO);
        else copy_rows(p, x, token_of, many, to + 16 + count * row_bytes(p));
        // All warps have read the tokens of the batch.
        __syncthreads();
        count += many;
    }
    // The number of rows; the number of the first row that returns, and how many rows return.
    if (threadIdx.x == 0) ((symrail_u64*)to)[0] = count, ((symrail_u64*)to)[1] = count << 32 | start;
    if (threadIdx.x == 0) rows_of_note(p, rank, part) = count;
    is_written();
    if (rank == p.me && p.own_words != OF_PARTS) return;
    deliver(there, to, 16 + count * row_bytes(p), word, round << COUNT_BITS | p.fp8 << FP8_BIT | count, rank, mapped != nullptr);
}

// `parts` blocks for each rank.
extern "C" __global__ void __launch_bounds__(512, 1)
    ep_send_dispatch(parameters* given, const unsigned short* x, const long long* topk, symrail_u64 tokens, symrail_u64 kind) {
    parameters p = *given;
    begin_dispatch(given, p, kind != BF16);
    send_part(p, blockIdx.x, tokens_to_send{x, topk, tokens, kind}, [] {});
}

// A block copies rows that have arrived to every `step`th row of an expert, from row `first` on. `from` holds the address
// of each. The scales of a group of elements lie one after the other, `room` for all rows of the expert; packed ones are
// the exponents of four groups in one word.
static __device__ void take_rows(const parameters& p, const symrail_u64* from, symrail_u32 many, char* rows, float* scales,
                                 symrail_u64 first, symrail_u64 step, bool packs) {
    const symrail_u32 lap = 32 * 8;
    symrail_u32 pieces = (symrail_u32)(token_bytes(p) / 16), laps = (pieces + lap - 1) / lap, warps = blockDim.x / 32;
    symrail_u32 of_row = (symrail_u32)groups(p), all = many * of_row, at = threadIdx.x;
    auto scale = [&](symrail_u32 i) { return ((const float*)(from[i / of_row] + scales_at(p)))[i % of_row]; };
    symrail_u64 room = p.ranks * p.most;
    auto place = [&](symrail_u32 i, float of) {
        symrail_u64 row = first + i / of_row * step, group = i % of_row;
        if (packs) ((unsigned char*)scales)[(group / 4 * room + row) * 4 + group % 4] = (unsigned char)(__float_as_uint(of) >> 23);
        else scales[group * room + row] = of;
    };
    // This scale is in flight while rows are copied.
    float ahead = at < all ? scale(at) : 0.0f;
    for (symrail_u32 unit = threadIdx.x / 32; unit < many * laps; unit += warps) {
        symrail_u64 row = unit / laps, base = unit % laps * lap + threadIdx.x % 32;
        pieces_of_row<8>((const char*)from[row], base, pieces).store(rows + (first + row * step) * token_bytes(p));
    }
    if (at < all) place(at, ahead);
    while ((at += blockDim.x) < all) place(at, scale(at));
}

// Where the results of a dispatch go. `number` receives that of the dispatch, for its combines. `packs`: scales are packed.
// `all_counts` and `waits` are added to, if given: each expert's rows, and the time for which each rank was waited for.
struct received_tokens {
    char* rows;
    float* scales;
    int *counts, *sources;
    long long* ranges;
    symrail_u64 *number, packs;
    int* all_counts;
    symrail_u64* waits;
};
// A block handles one unit of an expert's rows.
static __device__ void take_unit(const parameters& p, symrail_u64 unit, const received_tokens& to, symrail_u64 blocks) {
    __shared__ symrail_u32 in_warp[MOST_WARPS];
    __shared__ symrail_u64 from[LISTED * 32 * MOST_WARPS];
    char* rows = to.rows;
    float* scales = to.scales;
    int *counts = to.counts, *sources = to.sources, *all_counts = to.all_counts;
    long long* ranges = to.ranges;
    symrail_u64 packs = to.packs;
    symrail_u64 round = p.round, expert = unit % p.share, which = unit / p.share, room = p.ranks * p.most;
    sources += expert * room, rows += expert * room * token_bytes(p);
    scales += expert * room * (packs ? (groups(p) + 3) / 4 : groups(p));
    symrail_u32* of_ranks = (symrail_u32*)(ranges + expert * p.ranks);
    symrail_u32 each = (symrail_u32)part_rows(p), all_parts = (symrail_u32)(p.ranks * p.parts);
    // The number of rows found so far, of those that are this block's, and of those that it has copied.
    symrail_u64 found = 0, own = 0, taken = 0;
    for (symrail_u64 base = 0; base < (symrail_u64)all_parts * each; base += blockDim.x) {
        symrail_u32 i = (symrail_u32)base + threadIdx.x, of_job = i / each, row = i % each, slot = (symrail_u32)p.k;
        symrail_u64 rank = of_job / p.parts, part = of_job % p.parts;
        symrail_u64 at = part_at(p, rank, round, part) + 16 + row * row_bytes(p);
        const symrail_u32* slots = (const symrail_u32*)(at + slots_at(p));
        if (of_job < all_parts && takes(p, rank) && row < rows_of_part(p, rank, round, part)) {
#pragma unroll 2
            for (symrail_u32 first = 0; first < p.k; first += 4) {
                uint4 four = *(const uint4*)(slots + first);
                symrail_u32 of_four[4] = {four.x, four.y, four.z, four.w};
                for (int n = 3; n >= 0; n--)
                    if (first + n < p.k && first + n < slot && of_four[n] == expert) slot = first + n;
            }
        }
        bool is_it = slot < p.k;
        symrail_u32 all, place = count_before(is_it, in_warp, all);
        symrail_u64 number = found + place;
        // The first row of each rank; their numbers follow from these.
        if (which == 0 && of_job < all_parts && part == 0 && row == 0) of_ranks[2 * rank + 1] = (symrail_u32)number;
        if (is_it && number % blocks == which) {
            from[number / blocks - taken] = at;
            symrail_u64 token = slots[p.k];
            sources[number] = (int)token;
            place_of_slot(p, rank, token, slot) = round << 32 | (expert * room + number);
        }
        found += all;
        own = (found + blocks - 1 - which) / blocks;
        __syncthreads();
        bool is_last = base + blockDim.x >= (symrail_u64)all_parts * each;
        if (!is_last && own - taken <= (LISTED - 1) * blockDim.x) continue;
        take_rows(p, from, (symrail_u32)(own - taken), rows, scales, which + taken * blocks, blocks, packs != 0);
        taken = own;
        __syncthreads();
    }
    if (which != 0) return;
    for (symrail_u64 rank = threadIdx.x; rank < p.ranks; rank += blockDim.x)
        of_ranks[2 * rank] = (rank + 1 < p.ranks ? of_ranks[2 * rank + 3] : (symrail_u32)found) - of_ranks[2 * rank + 1];
    if (threadIdx.x != 0) return;
    counts[expert] = (int)found;
    if (all_counts != nullptr) all_counts[expert] += (int)found;
}

// There are `blocks` units for each of this rank's experts. Any number of blocks share them: kernels that wait for
// other ranks leave multiprocessors free for the kernels that those ranks wait for. An expert's rows are ordered by
// source and then by token; `sources` holds the token of each row, and `ranges` for each expert and rank the first of its
// rows (upper half) and their number. Every unit of an expert counts all of its rows, and copies one in `blocks` of them.
static __device__ void take_units(const parameters& p, const received_tokens& to, symrail_u64 since, symrail_u64 blocks) {
    if (blockIdx.x == 0 && to.waits != nullptr)
        add_waits(p, to.waits, since, [&](symrail_u64 rank) {
            for (symrail_u64 part = threadIdx.x % 32; part < p.parts; part += 32) rows_of_part(p, rank, p.round, part);
        });
    if (p.mask_late) decide_on_ranks(p);
    for (symrail_u64 unit = blockIdx.x; unit < p.share * blocks; unit += gridDim.x) take_unit(p, unit, to, blocks);
}
#define RECEIVED_ARGUMENTS                                                                                        \
    char *rows, float *scales, int *counts, int *sources, long long *ranges, symrail_u64 *number, symrail_u64 packs, \
        int *all_counts, symrail_u64 *waits, symrail_u64 blocks
#define RECEIVED received_tokens{rows, scales, counts, sources, ranges, number, packs, all_counts, waits}
extern "C" __global__ void __launch_bounds__(512, 1) ep_receive_dispatch(parameters* given, RECEIVED_ARGUMENTS) {
    __shared__ parameters p;
    symrail_u64 since = waits != nullptr ? symrail_now() : 0;
    share_parameters(p, given);
    if (threadIdx.x == 0) p.round = p.sent, p.fp8 = p.formats[p.sent % 2];
    __syncthreads();
    // A part that arrived late for some of the blocks of an earlier round has left a count.
    for (symrail_u64 i = threadIdx.x; p.has_far && blockIdx.x == 0 && i < p.ranks * p.parts; i += blockDim.x)
        ((symrail_u32*)p.ready)[i] = 0;
    copy_far_parts(p, p.round);
    take_units(p, RECEIVED, since, blocks);
    if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0) *number = p.round, end_dispatch(given, p);
}

// Both in one launch, for jobs without far ranks. Any number of blocks.
extern "C" __global__ void __launch_bounds__(512, 1)
    ep_dispatch(parameters* given, const unsigned short* x, const long long* topk, symrail_u64 tokens, symrail_u64 kind,
                RECEIVED_ARGUMENTS) {
    __shared__ parameters p;
    symrail_u64 since = waits != nullptr ? symrail_now() : 0;
    // Read before the ticket is taken: the block with the last one writes the next call's parameters.
    share_parameters(p, given);
    block_tickets all(given);
    if (threadIdx.x == 0) p.round = p.received + 1, p.fp8 = kind != BF16, p.own_words = OF_PARTS;
    __syncthreads();
    symrail_u64 parts = p.ranks * p.parts, unit;
    const tokens_to_send its = {x, topk, tokens, kind};
    while ((unit = all.take()) < parts) send_part(p, unit, its, [&] { all.ask(); });
    take_units(p, RECEIVED, since, blocks);
    if (unit != parts + gridDim.x - 1 || threadIdx.x != 0) return;
    *number = given->sent = given->received = p.round;
    given->formats[p.round % 2] = p.fp8;
    given->tickets = 0;
}

// The first block sends the weights of this rank's slots to all ranks, before it waits for theirs. It needs no other
// block for that, whatever else occupies the GPU.
static __device__ void send_weights(const parameters& p, const float* weights, symrail_u64 tokens) {
    symrail_u64 round = p.combine, many = tokens * p.k, above = round << 32, *own = weights_from(p, p.me, round), *out = (symrail_u64*)p.heap.weights_out;
    // Most rounds have no more weights than these, which are in flight while the thread finds out where they go.
    float ahead[WEIGHTS_AHEAD];
#pragma unroll
    for (int n = 0; n < WEIGHTS_AHEAD; n++) {
        symrail_u64 i = threadIdx.x + n * blockDim.x;
        ahead[n] = i < many ? weights[i] : 0.0f;
    }
    bool any_far = false;
    for (symrail_u64 rank = 0; rank < p.ranks; rank++) {
        if (rank == p.me || is_masked(p, rank)) continue;
        bool far = is_far(p, rank), again = far && any_far;
        volatile symrail_u64* to = far ? out : (symrail_u64*)symrail_ptr(own, (int)rank);
        any_far |= far;
        // All far ranks get the same words.
        if (again) continue;
#pragma unroll
        for (int n = 0; n < WEIGHTS_AHEAD; n++) {
            symrail_u64 i = threadIdx.x + n * blockDim.x;
            if (i < many) to[i] = above | __float_as_uint(ahead[n]);
        }
        for (symrail_u64 i = threadIdx.x + WEIGHTS_AHEAD * blockDim.x; i < many; i += blockDim.x)
            to[i] = above | __float_as_uint(weights[i]);
    }
    if (!any_far) return;
    __syncthreads();
    for (symrail_u64 rank = 0; rank < p.ranks; rank++) {
        if (!is_far(p, rank) || is_masked(p, rank)) continue;
        if (many > 0)
            symrailx_putmem_signal_nbi_block(own, out, 8 * many, weights_word(p, p.me), round, SYMRAIL_SIGNAL_SET, (int)rank);
        else if (threadIdx.x == 0) symrailx_signal_op(weights_word(p, p.me), round, SYMRAIL_SIGNAL_SET, (int)rank);
    }
}

// A warp ends a row for a far rank. The warp that ends the last row of a part puts all of them by one request.
static __device__ void send_far(const parameters& p, symrail_u64 rank, symrail_u64 part) {
    symrail_u64 of_part = ((const symrail_u64*)part_at(p, rank, p.round, part))[1];
    symrail_u64 first = (symrail_u32)of_part, rows = of_part >> 32, bytes = 2 * p.hidden;
    symrail_u32* ready = (symrail_u32*)p.ready + rank * p.parts + part;
    symrail_fence_sys();
    bool last = threadIdx.x % 32 == 0 && atomicAdd(ready, 1u) + 1 == rows;
    if (__ballot_sync(~0u, last) == 0) return;
    // The next combine of these tokens counts anew.
    if (last) *(volatile symrail_u32*)ready = 0;
    symrail_fence_sys();
    symrailx_putmem_signal_nbi_warp((char*)back_at(p, p.combine, p.me, first),
                                    (char*)p.heap.back_out + (rank * back_rows(p) + first) * bytes, rows * bytes,
                                    part_word(p, p.me, part), p.combine, SYMRAIL_SIGNAL_SET, (int)rank);
}

// The terms of a sum: addresses of rows, and their weights. Absent terms have no address.
struct listed_terms {
    symrail_u64 rows[32];
    float weights[32];
    symrail_u32 many;
};
// The sums of some pieces of a row of bfloat16, formed in FP32 and in the order of the terms, without fused operations,
// so that hosts get the same bits.
template <int AHEAD>
struct pieces_of_sum {
    float sums[PIECES_AHEAD][8];
    symrail_wide piece[AHEAD][PIECES_AHEAD];
    __device__ pieces_of_sum() { clear(); }
    __device__ void clear() {
#pragma unroll
        for (int i = 0; i < PIECES_AHEAD * 8; i++) sums[i / 8][i % 8] = 0.0f;
    }
    // Loads the pieces at `at` of the terms from `base` on; the next ones are `step` apart.
    __device__ void load(const listed_terms& terms, symrail_u32 base, symrail_u32 at, symrail_u32 step, symrail_u32 end) {
#pragma unroll
        for (int n = 0; n < AHEAD; n++)
#pragma unroll
            for (int i = 0; i < PIECES_AHEAD; i++)
                if (base + n < terms.many && terms.rows[base + n] != 0 && at + i * step < end)
                    piece[n][i] = symrail_own_source::load((const symrail_wide*)terms.rows[base + n] + at + i * step);
    }
    template <bool WEIGHTED>
    __device__ void add(const listed_terms& terms, symrail_u32 base, symrail_u32 at, symrail_u32 step, symrail_u32 end) {
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            if (base + n >= terms.many || terms.rows[base + n] == 0) continue;
            float factor = WEIGHTED ? terms.weights[base + n] : 1.0f;
#pragma unroll
            for (int i = 0; i < PIECES_AHEAD; i++) {
                if (at + i * step >= end) break;
                symrail_u32 parts[4] = {(symrail_u32)piece[n][i].a, (symrail_u32)(piece[n][i].a >> 32), (symrail_u32)piece[n][i].b,
                                        (symrail_u32)(piece[n][i].b >> 32)};
                for (int j = 0; j < 4; j++) {
                    float a = low(parts[j]), b = high(parts[j]);
                    sums[i][2 * j] = __fadd_rn(sums[i][2 * j], WEIGHTED ? __fmul_rn(a, factor) : a);
                    sums[i][2 * j + 1] = __fadd_rn(sums[i][2 * j + 1], WEIGHTED ? __fmul_rn(b, factor) : b);
                }
            }
        }
    }
    __device__ void store(char* to, symrail_u32 at, symrail_u32 step, symrail_u32 end) {
#pragma unroll
        for (int i = 0; i < PIECES_AHEAD; i++) {
            if (at + i * step >= end) break;
            symrail_u64 two[4];
            for (int j = 0; j < 4; j++) two[j] = two_to_bf16(sums[i][2 * j], sums[i][2 * j + 1]);
            symrail_store((symrail_wide*)to + at + i * step, {two[0] | two[1] << 32, two[2] | two[3] << 32});
        }
    }
    // The same for groups that are encoded where they can be. All lanes of a warp call this.
    __device__ void store_encoded(const float* logs, char* to, symrail_u32 at, symrail_u32 step, symrail_u32 end,
                                  symrail_u32* encoded) {
#pragma unroll
        for (int i = 0; i < PIECES_AHEAD; i++) {
            symrail_u32 piece = at + i * step, two[4];
            if (piece - threadIdx.x % 32 >= end) break;
            for (int j = 0; j < 4; j++) two[j] = two_to_bf16(sums[i][2 * j], sums[i][2 * j + 1]);
            store_group(logs, to, piece, end, two, encoded);
        }
    }
    // Adds rows that have returned, whose groups may be encoded.
    __device__ void add_returned(const float* logs, const listed_terms& terms, const row_format* formats, symrail_u32 base,
                                 symrail_u32 at, symrail_u32 step, symrail_u32 end) {
        auto is_there = [&](int n, int i) { return base + n < terms.many && terms.rows[base + n] != 0 && at + i * step < end; };
        bool encoded[AHEAD][PIECES_AHEAD];
#pragma unroll
        for (int n = 0; n < AHEAD; n++)
#pragma unroll
            for (int i = 0; i < PIECES_AHEAD; i++) {
                if (!is_there(n, i)) continue;
                encoded[n][i] = formats[base + n].has_encoded((at + i * step) / GROUP_PIECES);
                piece[n][i] = load_piece((const char*)terms.rows[base + n], at + i * step, encoded[n][i]);
            }
#pragma unroll
        for (int n = 0; n < AHEAD; n++)
#pragma unroll
            for (int i = 0; i < PIECES_AHEAD; i++) {
                if (!is_there(n, i)) continue;
                symrail_wide found = piece[n][i];
                symrail_u32 two[4] = {(symrail_u32)found.a, (symrail_u32)(found.a >> 32), (symrail_u32)found.b, (symrail_u32)(found.b >> 32)};
                float values[8];
                for (int j = 0; j < 8; j++) values[j] = j % 2 == 0 ? low(two[j / 2]) : high(two[j / 2]);
                if (encoded[n][i]) decode_piece(logs, found, at + i * step, values);
                for (int j = 0; j < 8; j++) sums[i][j] = __fadd_rn(sums[i][j], values[j]);
            }
    }
};

// The forms in which rows return, each for kernels of its own.
struct plain_rows {
    static constexpr bool ENCODES = false;
    const float* logs;
    static __device__ plain_rows make() { return {nullptr}; }
};
struct encoded_rows {
    static constexpr bool ENCODES = true;
    const float* logs;
    static __device__ encoded_rows make() { return {share_logs()}; }
};
// Whether a row's rank has asked for it to be encoded, and which of its groups are.
struct encoded_row {
    bool asked;
    symrail_u32 groups[MOST_GROUP_WORDS];
};

// A row that a block sends back: its destination and word. The first warp of the threads that add it fills this.
struct row_back {
    symrail_u64 rank, part;
    char* to;
    symrail_u64* word;
};
// A warp finds a received row, the rows that experts have made of it, and where the sum goes. Returns false if there is
// no such row. Each of the first `k` lanes handles a slot; `weight` receives the address of a lane's weight.
static __device__ bool find_row(const parameters& p, symrail_u64 number, const char* rows, listed_terms& terms, row_back& back,
                                const symrail_u64*& weight, symrail_u32& term) {
    symrail_u64 round = p.round;
    // Consecutive numbers are of different ranks, so that all blocks send equally much. This rank comes last.
    symrail_u32 ranks = (symrail_u32)p.ranks, rank = ((symrail_u32)p.me + 1 + (symrail_u32)number % ranks) % ranks;
    symrail_u32 each = (symrail_u32)part_rows(p), of_rank = (symrail_u32)number / ranks, lane = threadIdx.x % 32;
    symrail_u32 part = of_rank / each, row = of_rank % each;
    weight = nullptr;
    if (part >= p.parts || is_masked(p, rank)) return false;
    symrail_u64 come = lane == 0 ? rows_of_part(p, rank, round, part) : 0;
    if (row >= __shfl_sync(~0u, come, 0)) return false;
    const symrail_u32* slots = (const symrail_u32*)(part_at(p, rank, round, part) + 16 + row * row_bytes(p) + slots_at(p));
    symrail_u32 expert = lane < p.k ? slots[lane] : ~0u, token = slots[p.k], back_number = slots[p.k + 1];
    bool here = expert != ~0u;
    // A row of an expert that the token names twice lies at the place of the first of these slots.
    symrail_u32 same = __match_any_sync(~0u, here ? (long long)expert : -1ll - lane);
    symrail_u64 place = here ? place_of_slot(p, rank, token, __popc((same & (0u - same)) - 1)) : 0;
    // A receiving block for which the part was late has not copied this row.
    if (__ballot_sync(~0u, here && place >> 32 != (symrail_u32)round) != 0) return false;
    symrail_u32 all = __ballot_sync(~0u, here);
    term = __popc(all & ((1u << lane) - 1));
    if (here) {
        terms.rows[term] = (symrail_u64)rows + (symrail_u32)place * 2 * p.hidden;
        weight = weights_from(p, rank, p.combine) + token * p.k + lane;
    }
    symrail_u64 bytes = 2 * p.hidden;
    if (lane == 0) {
        terms.many = __popc(all);
        bool far = is_far(p, rank);
        char* to = far            ? (char*)p.heap.back_out + (rank * back_rows(p) + back_number) * bytes
                   : rank == p.me ? (char*)p.own_back + back_number * bytes
                                  : (char*)symrail_ptr((char*)back_at(p, p.combine, p.me, back_number), (int)rank);
        back = row_back{rank, part, to, row_word(p, p.combine, p.me, back_number)};
    }
    return true;
}

// A block sends some sums back. The rows are in flight while it waits for the weights. `is_added` is called before the
// delivery.
template <class R, class F>
static __device__ void send_sums(const parameters& p, symrail_u64 base, const char* rows, const float* weights, const R& form,
                                 const F& is_added) {
    __shared__ listed_terms listed[TOGETHER];
    __shared__ row_back backs[TOGETHER];
    __shared__ encoded_row encoded[TOGETHER];
    symrail_u32 pieces = (symrail_u32)(p.hidden / 8), lane = threadIdx.x % 32;
    symrail_u32 step = blockDim.x / TOGETHER, mine = threadIdx.x / step, at = threadIdx.x % step;
    listed_terms& terms = listed[mine];
    const symrail_u64* weight = nullptr;
    symrail_u32 term = 0;
    bool finds = at < 32, found = finds && find_row(p, base + mine, rows, terms, backs[mine], weight, term);
    if (finds && !found && lane == 0) terms.many = 0;
    if (R::ENCODES && finds && lane < MOST_GROUP_WORDS) encoded[mine].groups[lane] = 0;
    __syncthreads();
    symrail_u32 many = terms.many;
    const row_back& back = backs[mine];
    pieces_of_sum<ROWS_AHEAD> now;
    now.load(terms, 0, at, step, pieces);
    if (found && weight != nullptr) {
        // A rank's own weights have not travelled. A rank whose weights are late gets no row.
        float its = 0.0f;
        bool come = true;
        if (back.rank == p.me) its = weights[weight - weights_from(p, p.me, p.combine)];
        else if (is_far(p, back.rank)) come = word_from(p, note_of_weights(p, back.rank), p.combine, p.round, back.rank) != 0;
        if (come && back.rank != p.me) come = weight_from(p, (symrail_u64*)weight, back.rank, its);
        terms.weights[term] = its;
        if (!come) terms.many = 0;
    }
    if (R::ENCODES && finds) {
        // The rank asked before it sent its weights.
        __syncwarp();
        if (lane == 0) encoded[mine].asked = found && asks(p, back.rank);
    }
    __syncthreads();
    bool sends = many > 0 && terms.many == many, encodes = R::ENCODES && encoded[mine].asked;
    for (symrail_u32 piece = at; sends && (R::ENCODES ? piece - lane : piece) < pieces;) {
        for (symrail_u32 slot = 0; slot < many; slot += ROWS_AHEAD) {
            if (slot != 0) now.load(terms, slot, piece, step, pieces);
            now.add<true>(terms, slot, piece, step, pieces);
        }
        if (encodes) now.store_encoded(form.logs, back.to, piece, step, pieces, encoded[mine].groups);
        else now.store(back.to, piece, step, pieces);
        piece += PIECES_AHEAD * step;
        now.clear();
        now.load(terms, 0, piece, step, pieces);
    }
    is_added();
    // The barrier lets one thread's fence cover the writes of all threads.
    __syncthreads();
    if (!sends || !finds || (back.rank == p.me && p.own_words != OF_ROWS)) return;
    if (is_far(p, back.rank)) {
        send_far(p, back.rank, back.part);
        return;
    }
    if (encodes) {
        store_format(p, back.rank, back.word - row_word(p, p.combine, p.me, 0), encoded[mine].groups);
        // Lets one lane's fence cover the writes of the whole warp.
        __syncwarp();
    }
    if (lane == 0) {
        symrail_fence_sys();
        symrailx_signal_op(back.word, p.combine, SYMRAIL_SIGNAL_SET, (int)back.rank);
    }
}
// A block begins a combine of the dispatch with this number: the last one that was received, or the one before. Returns
// whether memory holds its tokens.
static __device__ bool begin_combine(parameters& p, symrail_u64 of) {
    bool is_held = of != 0 && (of == p.received || of + 1 == p.received) && p.sent < of + 2;
    if (threadIdx.x == 0) p.round = of, p.fp8 = p.formats[of % 2], p.combine = next_combine(p);
    __syncthreads();
    return is_held;
}
template <class R>
static __device__ void note_combine(parameters* given, const parameters& p, bool is_held) {
    given->combining = p.combine, given->combining_of = is_held ? p.round | (R::ENCODES ? IS_ENCODED : 0) : 0;
    if (!is_held) differ(p, NOT_HELD);
}

// Any number of blocks send sums of the experts' rows (bfloat16, in the order of the dispatch) back to the ranks of the
// tokens. A block forms some sums at a time. `number` is that of the dispatch whose tokens return. Nothing is sent of one
// whose memory was reused.
template <class R>
static __device__ void send_combine(parameters* given, const char* rows, const float* weights, symrail_u64 tokens,
                                    const symrail_u64* number) {
    __shared__ parameters p;
    share_parameters(p, given);
    bool is_held = begin_combine(p, *number);
    if (blockIdx.x == 0 && threadIdx.x == 0) note_combine<R>(given, p, is_held);
    if (!is_held) return;
    symrail_u64 all = p.ranks * p.parts * part_rows(p);
    if (R::ENCODES && blockIdx.x == 0) ask_for_encoded_rows(p);
    if (blockIdx.x == 0) send_weights(p, weights, tokens), note_far_weights(p);
    const R form = R::make();
    for (symrail_u64 base = blockIdx.x * TOGETHER; base < all; base += gridDim.x * TOGETHER)
        send_sums(p, base, rows, weights, form, [] {});
}
#define SENT_ARGUMENTS parameters *given, const char *rows, const float *weights, symrail_u64 tokens, const symrail_u64 *number
extern "C" __global__ void __launch_bounds__(512, 1) ep_send_combine(SENT_ARGUMENTS) {
    send_combine<plain_rows>(given, rows, weights, tokens, number);
}
// With rows that are encoded for ranks that ask for it, as this one does.
extern "C" __global__ void __launch_bounds__(512, 1) ep_send_combine_encoded(SENT_ARGUMENTS) {
    send_combine<encoded_rows>(given, rows, weights, tokens, number);
}

// A warp lists the rows that return for a token, in the order of their ranks.
template <class R>
static __device__ void find_sums(const parameters& p, symrail_u64 token, const long long* topk, symrail_u64 tokens,
                                 listed_terms& terms, row_format* formats) {
    symrail_u64 slot = token * p.k, bytes = 2 * p.hidden;
    symrail_u32 lane = threadIdx.x, each = ((symrail_u32)tokens + (symrail_u32)p.parts - 1) / (symrail_u32)p.parts;
    long long expert = lane < p.k ? topk[slot + lane] : -1;
    symrail_u64 number = lane < p.k ? back_number_of_slot(p, slot + lane) : 0, row = 0;
    symrail_u32 rank = expert < 0 || expert >= (long long)(p.share * p.ranks) ? ~0u : (symrail_u32)expert / (symrail_u32)p.share;
    if (rank != ~0u && is_masked(p, rank)) rank = ~0u;
    symrail_u32 same = __match_any_sync(~0u, rank == ~0u ? -1ll - lane : (long long)rank);
    bool is_one = rank != ~0u && (same & ((1u << lane) - 1)) == 0;
    symrail_u32 ones = __ballot_sync(~0u, is_one), before = 0;
    for (symrail_u32 other = 0; other < (symrail_u32)p.k; other++)
        if ((symrail_u32)__shfl_sync(~0u, rank, other) < rank && (ones >> other & 1)) before++;
    if (lane == 0) terms.many = __popc(ones);
    if (!is_one) return;
    symrail_u64* word = is_far(p, rank) ? note_of(p, true, rank, (symrail_u32)token / each) : row_word(p, p.combine, rank, number);
    bool come = (rank == p.me && p.own_words != OF_ROWS) || word_from(p, word, p.combine, p.round, rank) != 0;
    if (come) row = rank == p.me ? p.own_back + number * bytes : back_at(p, p.combine, rank, number);
    terms.rows[before] = row;
    if (R::ENCODES) formats[before].find(p, rank, number, come);
}
// A block adds one of the parts of a token's rows.
template <class R>
static __device__ void add_unit(const parameters& p, symrail_u64 unit, const long long* topk, symrail_u64 tokens, char* out,
                                symrail_u64 blocks, const R& form) {
    __shared__ listed_terms terms;
    __shared__ row_format formats[32];
    symrail_u64 token = unit % tokens, pieces = p.hidden / 8, step = blockDim.x;
    // All threads have read the rows of the previous unit.
    __syncthreads();
    if (threadIdx.x < 32) find_sums<R>(p, token, topk, tokens, terms, formats);
    __syncthreads();
    symrail_u64 part = (pieces + blocks - 1) / blocks, first = unit / tokens * part;
    symrail_u64 end = first + part < pieces ? first + part : pieces;
    for (symrail_u64 at = first + threadIdx.x; at < end; at += PIECES_AHEAD * step) {
        pieces_of_sum<RETURNS_AHEAD> found;
        for (symrail_u32 slot = 0; slot < terms.many; slot += RETURNS_AHEAD) {
            if (R::ENCODES) {
                found.add_returned(form.logs, terms, formats, slot, at, step, end);
                continue;
            }
            found.load(terms, slot, at, step, end);
            found.template add<false>(terms, slot, at, step, end);
        }
        found.store(out + token * 2 * p.hidden, at, step, end);
    }
}

// A warp waits for all rows that return from a rank.
static __device__ void wait_for_rows(const parameters& p, symrail_u64 rank) {
    symrail_u64 rows = 0, lane = threadIdx.x % 32;
    for (symrail_u64 part = 0; part < p.parts; part++) {
        symrail_u64 of_part = rows_of_note(p, rank, part);
        if (is_far(p, rank) && of_part != 0 && lane == 0) word_from(p, note_of(p, true, rank, part), p.combine, p.round, rank);
        rows += of_part;
    }
    for (symrail_u64 number = lane; !is_far(p, rank) && number < rows; number += 32)
        word_from(p, row_word(p, p.combine, rank, number), p.combine, p.round, rank);
}
// There are `blocks` units for each token. Any number of blocks share them. `waits`, if given, is added to as by a dispatch.
template <class R>
static __device__ void add_units(const parameters& p, const long long* topk, symrail_u64 tokens, char* out, symrail_u64 blocks,
                                 symrail_u64* waits, symrail_u64 since, const R& form) {
    // One block adds a whole token, with the row of a rank or without it, where the call goes on without late ranks.
    if (p.mask_late) blocks = 1;
    if (blockIdx.x == 0 && waits != nullptr) add_waits(p, waits, since, [&](symrail_u64 rank) { wait_for_rows(p, rank); });
    for (symrail_u64 unit = blockIdx.x; unit < tokens * blocks; unit += gridDim.x) add_unit(p, unit, topk, tokens, out, blocks, form);
}
// `ends`: the last block ends the combine.
template <class R>
static __device__ void receive_combine(parameters* given, const long long* topk, symrail_u64 tokens, char* out, symrail_u64 blocks,
                                       symrail_u64* waits, symrail_u64 ends) {
    __shared__ parameters p;
    symrail_u64 since = waits != nullptr ? symrail_now() : 0;
    share_parameters(p, given);
    if (threadIdx.x == 0) p.round = p.combining_of & ~IS_ENCODED, p.combine = p.combining;
    __syncthreads();
    // Dispatches that were sent meanwhile have overwritten which rows return.
    bool is_held = p.sent < p.round + 2, is_alike = R::ENCODES == ((p.combining_of & IS_ENCODED) != 0);
    bool goes = p.round != 0 && is_held && is_alike;
    if (!goes && p.round != 0 && blockIdx.x == 0 && threadIdx.x == 0) differ(p, is_held ? OTHER_FORM : NOT_HELD);
    if (goes && blockIdx.x == 0) note_far_words(p);
    if (goes) add_units(p, topk, tokens, out, blocks, waits, since, R::make());
    // One block suffices, and it need not be the last one that accesses memory of the combine.
    if (!ends || blockIdx.x != gridDim.x - 1) return;
    note_departed(p);
    __syncthreads();
    if (threadIdx.x == 0) end_combine(given, p);
}
#define SUMS_ARGUMENTS \
    parameters *given, const long long *topk, symrail_u64 tokens, char *out, symrail_u64 blocks, symrail_u64 *waits, symrail_u64 ends
extern "C" __global__ void __launch_bounds__(512, 1) ep_receive_combine(SUMS_ARGUMENTS) {
    receive_combine<plain_rows>(given, topk, tokens, out, blocks, waits, ends);
}
extern "C" __global__ void __launch_bounds__(512, 1) ep_receive_combine_encoded(SUMS_ARGUMENTS) {
    receive_combine<encoded_rows>(given, topk, tokens, out, blocks, waits, ends);
}

// Both in one launch, for jobs without far ranks. Any number of blocks.
template <class R>
static __device__ void combine(parameters* given, const char* rows, const float* weights, symrail_u64 tokens,
                               const symrail_u64* number, const long long* topk, char* out, symrail_u64 blocks, symrail_u64* waits) {
    __shared__ parameters p;
    symrail_u64 since = waits != nullptr ? symrail_now() : 0;
    // Read before the ticket is taken: the block with the last one writes the next call's parameters.
    share_parameters(p, given);
    block_tickets all(given);
    if (threadIdx.x == 0) p.own_words = OF_ROWS;
    bool is_held = begin_combine(p, *number);
    symrail_u64 units = is_held ? (p.ranks * p.parts * part_rows(p) + TOGETHER - 1) / TOGETHER : 0, unit;
    const R form = R::make();
    while ((unit = all.take()) < units) {
        if (R::ENCODES && unit == 0) ask_for_encoded_rows(p);
        if (unit == 0) send_weights(p, weights, tokens);
        send_sums(p, unit * TOGETHER, rows, weights, form, [&] { all.ask(); });
    }
    if (is_held) add_units(p, topk, tokens, out, blocks, waits, since, form);
    if (unit != units + gridDim.x - 1) return;
    note_departed(p);
    __syncthreads();
    if (threadIdx.x != 0) return;
    note_combine<R>(given, p, is_held);
    given->combined = p.combine;
    given->tickets = 0;
}
#define COMBINE_ARGUMENTS SENT_ARGUMENTS, const long long *topk, char *out, symrail_u64 blocks, symrail_u64 *waits
extern "C" __global__ void __launch_bounds__(512, 1) ep_combine(COMBINE_ARGUMENTS) {
    combine<plain_rows>(given, rows, weights, tokens, number, topk, out, blocks, waits);
}
extern "C" __global__ void __launch_bounds__(512, 1) ep_combine_encoded(COMBINE_ARGUMENTS) {
    combine<encoded_rows>(given, rows, weights, tokens, number, topk, out, blocks, waits);
}

// One block ends a combine without tokens here.
extern "C" __global__ void __launch_bounds__(32) ep_end_combine(parameters* given) {
    const parameters p = *given;
    note_departed(p);
    __syncthreads();
    if (threadIdx.x == 0) end_combine(given, p);
}
