// High-throughput dispatch and combine by kernels, for ep/src/cuda/high_throughput.rs.
//
// Every rank announces each call to all ranks by a header: what it is, and how many tokens it has for whom. So all know
// where the rows of each rank come to lie at each other one: by source, and in the source's order. Rows go there in
// chunks; what belongs to a row (scales, slots, its number at the source) goes beside it. Chunks have a word each, which
// is set to the number of the call, and nothing is cleared. A rank announces a call when it has ended the one before:
// who has all headers may write anywhere. No block waits for another one of its kernel.
#include "rows.cuh"

struct parameters {
    symrail_u64 ranks, me, share, most, room;
    // Symmetric memory: headers that come and that go, and their words; words of chunks; rows and what is beside them,
    // that come by dispatch, that come back by combine, and that go to ranks that are not mapped.
    symrail_u64 headers, headers_out, header_words, words, rows, sides, back_rows, back_sides, out_rows, out_sides;
    // Bytes of what is beside a row, at most.
    symrail_u64 side;
    // This PE's own: `progress`, and all ranks in the order in which their rows are added.
    symrail_u64 progress, order;
};

// The routes of a dispatch, on this PE.
struct routes {
    // For each rank (first index) its tokens for each rank; for each rank this PE's tokens for it; for each token its
    // place among those, or -1; this PE's slots for each expert; slots of each of this PE's experts; the first slot whose
    // expert is not there (all bits set: none), and that expert.
    symrail_u64 matrix, lists, places, per_expert, come, wrong_slot;
};

struct progress {
    // Calls that are over; what becomes of the present one.
    symrail_u64 calls, state;
    // The first thing that went wrong: what, of which rank, what it is here, and what there.
    symrail_u64 wrong, other, here, there;
};
enum { NOT_MADE, REFUSED, GOES };
enum { NOTHING, NO_EXPERT, DIFFERENT, NO_ROOM = 8, LATE };

// What ranks compare: the kind of the call, bytes of a row, words of scales, slots, and the routes of an earlier call.
#define COMPARED 5
#define MOST_RANKS 256
#define CHUNK 32
// Words, or pieces of 16 bytes, that a thread has under way.
#define WORDS 4
#define PIECES 4
// An order's mark of the first rank of a host.
#define FIRST_OF_HOST 0x80000000u

struct header {
    symrail_u64 compared[COMPARED];
    // Tokens for each rank, and then slots of each of the reader's experts.
    __device__ symrail_u32* counts() const { return (symrail_u32*)(this + 1); }
};

static __device__ symrail_u64 header_bytes(const parameters& p) {
    return up16(sizeof(header) + 4 * (p.ranks + p.share));
}
static __device__ const header& header_of(const parameters& p, symrail_u64 call, symrail_u64 rank) {
    return *(const header*)(p.headers + (call % 2 * p.ranks + rank) * header_bytes(p));
}
static __device__ volatile progress& progress_of(const parameters& p) { return *(volatile progress*)p.progress; }
static __device__ symrail_u64 call_of(const parameters& p) { return progress_of(p).calls + 1; }
static __device__ bool goes(const parameters& p) { return progress_of(p).state == GOES; }
static __device__ symrail_u64 chunks(symrail_u64 rows) { return (rows + CHUNK - 1) / CHUNK; }
// The words of a chunk from a rank: of its rows, and of what is beside them.
static __device__ symrail_u64* chunk_words(const parameters& p, symrail_u64 rank, symrail_u64 chunk) {
    return (symrail_u64*)p.words + (rank * chunks(p.most) + chunk) * 2;
}
static __device__ symrail_u32 tokens_of(const parameters& p, const routes& r, symrail_u64 from, symrail_u64 to) {
    return ((const symrail_u32*)r.matrix)[from * p.ranks + to];
}

// A block for each rank: which tokens it gets. `topk` are 64-bit indices, -1 for none.
extern "C" __global__ void __launch_bounds__(1024)
    ep_layout(const parameters* given, const routes* of, const long long* topk, symrail_u64 tokens, symrail_u64 k) {
    __shared__ symrail_u32 in_warp[32];
    __shared__ symrail_u64 wrong;
    const parameters p = *given;
    const routes r = *of;
    long long rank = blockIdx.x, share = (long long)p.share;
    symrail_u32 *per_expert = (symrail_u32*)r.per_expert, found = 0;
    int *list = (int*)r.lists + rank * p.most, *places = (int*)r.places;
    for (symrail_u64 i = threadIdx.x; i < p.share; i += blockDim.x) per_expert[rank * share + i] = 0;
    if (threadIdx.x == 0) wrong = ~0ull;
    __syncthreads();
    for (symrail_u64 base = 0; base < tokens; base += blockDim.x) {
        symrail_u64 token = base + threadIdx.x;
        bool gets = false;
        for (symrail_u64 slot = token * k; token < tokens && slot < (token + 1) * k; slot++) {
            long long expert = topk[slot];
            if (expert >= rank * share && expert < (rank + 1) * share) {
                gets = true;
                atomicAdd(per_expert + expert, 1u);
            } else if (expert < -1 || expert >= share * (long long)p.ranks) {
                atomicMin(&wrong, slot);
            }
        }
        symrail_u32 all, place = found + count_before(gets, in_warp, all);
        if (token < tokens) places[token * p.ranks + rank] = gets ? (int)place : -1;
        if (gets) list[place] = (int)token;
        found += all;
    }
    if (threadIdx.x != 0) return;
    ((symrail_u32*)r.matrix)[p.me * p.ranks + rank] = found;
    if (rank != 0) return;
    ((symrail_u64*)r.wrong_slot)[0] = wrong;
    ((long long*)r.wrong_slot)[1] = wrong == ~0ull ? 0 : topk[wrong];
}

// A block for each rank: says what is called. `first`: on new routes.
extern "C" __global__ void __launch_bounds__(512)
    ep_announce(const parameters* given, const routes* of, symrail_u64 first, symrail_u64 kind, symrail_u64 bytes,
                symrail_u64 scales, symrail_u64 k) {
    __shared__ symrail_u64 common;
    const parameters p = *given;
    const routes r = *of;
    symrail_u64 rank = blockIdx.x, call = call_of(p);
    if (first && *(const symrail_u64*)r.wrong_slot != ~0ull) return;
    char* there = (char*)&header_of(p, call, p.me);
    char* mapped = (char*)symrail_ptr(there, (int)rank);
    char* to = mapped != nullptr ? mapped : (char*)p.headers_out + (call % 2 * p.ranks + rank) * header_bytes(p);
    header& made = *(header*)to;
    // A number that the routes of all ranks have in common.
    if (threadIdx.x == 0) common = 0;
    __syncthreads();
    for (symrail_u64 i = threadIdx.x; !first && i < p.ranks * p.ranks; i += blockDim.x)
        atomicAdd(&common, ((i + 1) * 0x9e3779b97f4a7c15ull) * (tokens_of(p, r, i / p.ranks, i % p.ranks) + 1));
    __syncthreads();
    symrail_u64 compared[COMPARED] = {kind, bytes, scales, k, common};
    if (threadIdx.x < COMPARED) made.compared[threadIdx.x] = compared[threadIdx.x];
    const symrail_u32* slots = (const symrail_u32*)r.per_expert + rank * p.share;
    for (symrail_u64 i = threadIdx.x; i < p.ranks; i += blockDim.x) made.counts()[i] = tokens_of(p, r, p.me, i);
    for (symrail_u64 i = threadIdx.x; i < p.share; i += blockDim.x) made.counts()[p.ranks + i] = slots[i];
    deliver(there, to, header_bytes(p), (symrail_u64*)p.header_words + p.me, call, rank, mapped != nullptr);
}

static __device__ void refuse(const parameters& p, symrail_u64 state, symrail_u64 wrong, symrail_u64 other,
                              symrail_u64 here, symrail_u64 there) {
    volatile progress& now = progress_of(p);
    now.state = state;
    if (now.wrong != NOTHING) return;
    now.wrong = wrong;
    now.other = other;
    now.here = here;
    now.there = there;
}

// One block: waits for all ranks' headers, and sees whether they go together.
extern "C" __global__ void __launch_bounds__(512) ep_collect(const parameters* given, const routes* of, symrail_u64 first) {
    __shared__ symrail_u64 sums[MOST_RANKS];
    __shared__ symrail_u32 late;
    const parameters p = *given;
    const routes r = *of;
    symrail_u64 call = call_of(p);
    if (first && *(const symrail_u64*)r.wrong_slot != ~0ull) {
        const symrail_u64* wrong = (const symrail_u64*)r.wrong_slot;
        if (threadIdx.x == 0) refuse(p, NOT_MADE, NO_EXPERT, p.me, wrong[0], wrong[1]);
        return;
    }
    if (threadIdx.x == 0) late = 0;
    __syncthreads();
    for (symrail_u64 rank = threadIdx.x; rank < p.ranks; rank += blockDim.x) {
        symrail_u64* word = (symrail_u64*)p.header_words + rank;
        if (symrail_signal_wait_until(word, SYMRAIL_CMP_GE, call) < call) atomicAdd(&late, 1u);
    }
    __syncthreads();
    if (late != 0) {
        if (threadIdx.x == 0) refuse(p, NOT_MADE, LATE, 0, 0, 0);
        return;
    }
    symrail_u32* matrix = (symrail_u32*)r.matrix;
    if (first)
        for (symrail_u64 i = threadIdx.x; i < p.ranks * p.ranks; i += blockDim.x)
            matrix[i] = header_of(p, call, i / p.ranks).counts()[i % p.ranks];
    for (symrail_u64 i = threadIdx.x; first && i < p.share; i += blockDim.x) {
        symrail_u32 slots = 0;
        for (symrail_u64 rank = 0; rank < p.ranks; rank++) slots += header_of(p, call, rank).counts()[p.ranks + i];
        ((symrail_u32*)r.come)[i] = slots;
    }
    __syncthreads();
    for (symrail_u64 to = threadIdx.x; to < p.ranks; to += blockDim.x) {
        sums[to] = 0;
        for (symrail_u64 rank = 0; rank < p.ranks; rank++) sums[to] += tokens_of(p, r, rank, to);
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    progress_of(p).state = GOES;
    const header& own = header_of(p, call, p.me);
    for (symrail_u64 rank = 0; rank < p.ranks; rank++) {
        const header& its = header_of(p, call, rank);
        for (symrail_u64 i = 0; i < COMPARED; i++)
            if (its.compared[i] != own.compared[i])
                return refuse(p, REFUSED, DIFFERENT + i, rank, own.compared[i], its.compared[i]);
    }
    for (symrail_u64 rank = 0; rank < p.ranks; rank++)
        if (sums[rank] > p.room) return refuse(p, REFUSED, NO_ROOM, rank, p.room, sums[rank]);
}

// What this PE sends to a rank: how many rows, which is the first one here, where that comes to lie there, and where it
// waits for the proxy here.
struct way {
    symrail_u32 rows, from, there, out;
};
static __device__ way way_to(const parameters& p, const routes& r, symrail_u64 rank, bool back) {
    way w = {back ? tokens_of(p, r, rank, p.me) : tokens_of(p, r, p.me, rank), 0, 0, 0};
    for (symrail_u64 i = 0; i < p.me; i++) w.there += back ? tokens_of(p, r, rank, i) : tokens_of(p, r, i, rank);
    for (symrail_u64 i = 0; i < rank; i++) w.out += back ? tokens_of(p, r, i, p.me) : tokens_of(p, r, p.me, i);
    if (back) w.from = w.out;
    return w;
}

// What goes beside a row, in words: scales, slots' indices and weights, the number at the source. Absent parts have none.
struct beside {
    symrail_u64 scales, indices, weights, number;
    __device__ symrail_u64 words() const { return scales + indices + weights + number; }
    __device__ symrail_u64 bytes() const { return up16(4 * words()); }
};
static __device__ beside of_dispatch(symrail_u64 scales, symrail_u64 k) { return beside{scales, k, k, 1}; }
static __device__ beside of_combine(symrail_u64 k) { return beside{0, 0, k, 0}; }

// One word of what goes beside a row to a rank; indices are counted from the rank's first expert.
static __device__ symrail_u32 word_beside(const beside& b, symrail_u64 i, symrail_u64 row, symrail_u64 share,
                                          symrail_u64 rank, const symrail_u32* scales, const long long* topk,
                                          const symrail_u32* weights) {
    if (i < b.scales) return scales[row * b.scales + i];
    i -= b.scales;
    if (i < b.indices) {
        long long local = topk[row * b.indices + i] - (long long)(rank * share);
        return local >= 0 && local < (long long)share ? (symrail_u32)local : ~0u;
    }
    i -= b.indices;
    return i < b.weights ? weights[row * b.weights + i] : (symrail_u32)row;
}

// Any number of blocks. `back`: the rows of all sources, in their order, go back there; else this PE's tokens go to the
// ranks that get them.
extern "C" __global__ void __launch_bounds__(512)
    ep_send(const parameters* given, const routes* of, symrail_u64 back, const char* rows, symrail_u64 bytes,
            const symrail_u32* scales, symrail_u64 of_scales, const long long* topk, const symrail_u32* weights,
            symrail_u64 k) {
    __shared__ way ways[MOST_RANKS];
    const parameters p = *given;
    const routes r = *of;
    if (!goes(p)) return;
    for (symrail_u64 rank = threadIdx.x; rank < p.ranks; rank += blockDim.x) ways[rank] = way_to(p, r, rank, back != 0);
    __syncthreads();
    const beside b = back ? of_combine(k) : of_dispatch(of_scales, k);
    symrail_u64 call = call_of(p), side = b.bytes(), units = p.ranks * chunks(p.most), warps = blockDim.x / 32;
    char *rows_there = (char*)(back ? p.back_rows : p.rows), *sides_there = (char*)(back ? p.back_sides : p.sides);
    // The second time words are set of what was written to mapped memory: one fence is for all of it.
    for (int time = 0; time < 2; time++) {
        for (symrail_u64 unit = blockIdx.x; unit < units; unit += gridDim.x) {
            symrail_u64 rank = (p.me + unit) % p.ranks, chunk = unit / p.ranks, first = chunk * CHUNK;
            const way w = ways[rank];
            if (first >= w.rows) continue;
            symrail_u64 count = w.rows - first < CHUNK ? w.rows - first : CHUNK;
            char *there = rows_there + (w.there + first) * bytes, *side_there = sides_there + (w.there + first) * side;
            char *to = (char*)symrail_ptr(there, (int)rank), *side_to = (char*)symrail_ptr(side_there, (int)rank);
            symrail_u64* words = chunk_words(p, p.me, chunk);
            bool mapped = to != nullptr;
            if (time == 1) {
                if (mapped && threadIdx.x < 2) symrailx_signal_op(words + threadIdx.x, call, SYMRAIL_SIGNAL_SET, (int)rank);
                continue;
            }
            if (!mapped) to = (char*)p.out_rows + (w.out + first) * bytes, side_to = (char*)p.out_sides + (w.out + first) * side;
            for (symrail_u64 i = threadIdx.x / 32; i < count; i += warps) {
                symrail_u64 at = first + i, row = back ? w.from + at : ((const symrail_u32*)r.lists)[rank * p.most + at];
                copy_row(to + i * bytes, rows + row * bytes, bytes);
                symrail_u32* of_row = (symrail_u32*)(side_to + i * side);
                for (symrail_u64 base = threadIdx.x % 32; base < b.words(); base += 32 * WORDS) {
                    symrail_u32 words[WORDS];
#pragma unroll
                    for (int n = 0; n < WORDS; n++)
                        if (base + 32 * n < b.words())
                            words[n] = word_beside(b, base + 32 * n, row, p.share, rank, scales, topk, weights);
#pragma unroll
                    for (int n = 0; n < WORDS; n++)
                        if (base + 32 * n < b.words()) of_row[base + 32 * n] = words[n];
                }
            }
            if (mapped) continue;
            deliver(there, to, count * bytes, words, call, rank, false);
            deliver(side_there, side_to, count * side, words + 1, call, rank, false);
        }
        symrail_fence_sys();
        __syncthreads();
        if (threadIdx.x < 2) symrail_fence_sys();
    }
}

// Waits for a chunk from a rank, by the block.
static __device__ bool has_come(const parameters& p, symrail_u64 rank, symrail_u64 chunk, symrail_u64 call) {
    symrail_u64* words = chunk_words(p, rank, chunk);
    bool late = threadIdx.x < 2 && symrail_signal_wait_until(words + threadIdx.x, SYMRAIL_CMP_GE, call) < call;
    return !__syncthreads_or(late);
}

// Any number of blocks: takes what came by a dispatch. Rows are copied only where `rows` is not null: they are where they
// have come to.
extern "C" __global__ void __launch_bounds__(512)
    ep_receive(const parameters* given, const routes* of, symrail_u64 bytes, symrail_u64 of_scales, symrail_u64 k,
               char* rows, symrail_u32* scales, long long* topk, symrail_u32* weights, int* sources) {
    const parameters p = *given;
    const routes r = *of;
    if (!goes(p)) return;
    const beside b = of_dispatch(of_scales, k);
    symrail_u64 call = call_of(p), start = 0, warps = blockDim.x / 32, unit = 0;
    for (symrail_u64 rank = 0; rank < p.ranks; start += tokens_of(p, r, rank, p.me), rank++) {
        symrail_u64 all = tokens_of(p, r, rank, p.me);
        for (symrail_u64 chunk = 0; chunk < chunks(all); chunk++, unit++) {
            if (unit % gridDim.x != blockIdx.x) continue;
            // The time-out is waited for once, whatever else does not come.
            if (!has_come(p, rank, chunk, call)) return;
            symrail_u64 end = (chunk + 1) * CHUNK < all ? (chunk + 1) * CHUNK : all;
            for (symrail_u64 i = start + chunk * CHUNK + threadIdx.x / 32; i < start + end; i += warps) {
                if (rows != nullptr) copy_row(rows + i * bytes, (const char*)p.rows + i * bytes, bytes);
                const symrail_u32* of_row = (const symrail_u32*)(p.sides + i * b.bytes());
                for (symrail_u64 word = threadIdx.x % 32; word < b.words(); word += 32) {
                    symrail_u32 value = of_row[word];
                    if (word < b.scales) scales[i * b.scales + word] = value;
                    else if (word < b.scales + k) topk[i * k + word - b.scales] = (int)value;
                    else if (word < b.scales + 2 * k) weights[i * k + word - b.scales - k] = value;
                    else sources[i] = (int)value;
                }
            }
        }
    }
}

// Numbers of rows are added as the host does: those of each host's ranks, and then the hosts' sums. `N` are in a piece of
// 16 bytes.
template <int N>
struct sum {
    float of_host[N], all[N];
    bool some;
    __device__ sum() : of_host(), all(), some(false) {}
    __device__ void end_host() {
        for (int i = 0; i < N && some; i++) all[i] = __fadd_rn(all[i], of_host[i]), of_host[i] = 0.0f;
        some = false;
    }
    __device__ void add(const float* values) {
        for (int i = 0; i < N; i++) of_host[i] = __fadd_rn(of_host[i], values[i]);
        some = true;
    }
};
struct of_f32 {
    static const int N = 4;
    static __device__ void load(const char* at, float* values) {
        float4 v = *(const float4*)at;
        values[0] = v.x, values[1] = v.y, values[2] = v.z, values[3] = v.w;
    }
    static __device__ void store(char* at, const float* v) { *(float4*)at = make_float4(v[0], v[1], v[2], v[3]); }
};
struct of_bf16 {
    static const int N = 8;
    static __device__ void load(const char* at, float* values) {
        uint4 v = *(const uint4*)at;
        symrail_u32 parts[4] = {v.x, v.y, v.z, v.w};
        for (int i = 0; i < 4; i++) values[2 * i] = low(parts[i]), values[2 * i + 1] = high(parts[i]);
    }
    static __device__ void store(char* at, const float* v) {
        symrail_u32 two[4];
        for (int i = 0; i < 4; i++) two[i] = to_bf16(v[2 * i]) | to_bf16(v[2 * i + 1]) << 16;
        *(uint4*)at = make_uint4(two[0], two[1], two[2], two[3]);
    }
};
struct one_f32 {
    static const int N = 1;
    static __device__ void load(const char* at, float* values) { *values = *(const float*)at; }
    static __device__ void store(char* at, const float* v) { *(float*)at = *v; }
};

// The sums of a token's rows at some places in them, `step` bytes apart and below `end`, and of the biases; `starts` are
// the first rows of each rank.
template <class E, int N>
static __device__ void add_up(const parameters& p, const int* places, const symrail_u32* starts, symrail_u64 rows,
                              symrail_u64 bytes, const char* const* biases, char* to, symrail_u64 at, symrail_u64 step,
                              symrail_u64 end) {
    sum<E::N> found[N];
    float values[N][E::N];
    for (symrail_u64 i = 0; i < p.ranks; i++) {
        symrail_u32 next = ((const symrail_u32*)p.order)[i], rank = next & ~FIRST_OF_HOST;
        if (next & FIRST_OF_HOST)
            for (int n = 0; n < N; n++) found[n].end_host();
        if (places[rank] < 0) continue;
        const char* row = (const char*)rows + (starts[rank] + (symrail_u64)places[rank]) * bytes;
#pragma unroll
        for (int n = 0; n < N; n++)
            if (at + n * step < end) E::load(row + at + n * step, values[n]);
#pragma unroll
        for (int n = 0; n < N; n++)
            if (at + n * step < end) found[n].add(values[n]);
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
        if (at + n * step >= end) break;
        found[n].end_host();
        for (int i = 0; i < 2; i++) {
            if (biases[i] == nullptr) continue;
            E::load(biases[i] + at + n * step, values[n]);
            for (int v = 0; v < E::N; v++) found[n].all[v] = __fadd_rn(found[n].all[v], values[n][v]);
        }
        E::store(to + at + n * step, found[n].all);
    }
}

// Any number of blocks: adds what came back by a combine. `f32`: rows are of that, else of bfloat16. Absent biases are
// null; without weights `k` is 0.
extern "C" __global__ void __launch_bounds__(512)
    ep_reduce(const parameters* given, const routes* of, symrail_u64 tokens, symrail_u64 bytes, symrail_u64 k,
              symrail_u64 f32, const char* bias, const char* second_bias, char* out, char* weights) {
    __shared__ symrail_u32 starts[MOST_RANKS];
    const parameters p = *given;
    const routes r = *of;
    if (!goes(p)) return;
    symrail_u64 call = call_of(p), side = of_combine(k).bytes(), most = chunks(p.most);
    bool late = false;
    for (symrail_u64 i = threadIdx.x; i < p.ranks * most * 2 && !late; i += blockDim.x) {
        symrail_u64 rank = i / 2 / most, chunk = i / 2 % most;
        if (chunk * CHUNK < tokens_of(p, r, p.me, rank))
            late = symrail_signal_wait_until(chunk_words(p, rank, chunk) + i % 2, SYMRAIL_CMP_GE, call) < call;
    }
    for (symrail_u64 rank = threadIdx.x; rank < p.ranks; rank += blockDim.x) starts[rank] = way_to(p, r, rank, false).out;
    if (__syncthreads_or(late)) return;
    // A warp adds up a token.
    symrail_u64 warps = blockDim.x / 32, lane = threadIdx.x % 32;
    for (symrail_u64 token = blockIdx.x * warps + threadIdx.x / 32; token < tokens; token += gridDim.x * warps) {
        const int* places = (const int*)r.places + token * p.ranks;
        symrail_u64 here = token * bytes;
        const char* biases[2] = {bias == nullptr ? bias : bias + here,
                                 second_bias == nullptr ? second_bias : second_bias + here};
        for (symrail_u64 at = lane * 16; at < bytes; at += 512 * PIECES) {
            if (f32) add_up<of_f32, PIECES>(p, places, starts, p.back_rows, bytes, biases, out + here, at, 512, bytes);
            else add_up<of_bf16, PIECES>(p, places, starts, p.back_rows, bytes, biases, out + here, at, 512, bytes);
        }
        const char* none[2] = {nullptr, nullptr};
        for (symrail_u64 i = lane; i < k; i += 32)
            add_up<one_f32, 1>(p, places, starts, p.back_sides, side, none, weights + 4 * token * k, 4 * i, 0, ~0ull);
    }
}

// One thread: the call is over. What this PE has put by requests is delivered, so that its memory may be written again.
extern "C" __global__ void ep_end_call(const parameters* given) {
    symrail_quiet();
    volatile progress& now = progress_of(*given);
    if (now.state != NOT_MADE) now.calls = now.calls + 1;
}
