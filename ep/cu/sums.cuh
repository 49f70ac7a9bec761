// High throughput: sums of what comes back, added as the host's form does: those of each host's ranks in their order,
// and then the hosts' sums. Where a host has several ranks, one of them adds, and its sum comes in FP32.
#ifndef SYMRAIL_EP_SUMS_CUH
#define SYMRAIL_EP_SUMS_CUH

#include "transfers.cuh"

// Pieces of 16 bytes that a thread has under way.
#define PIECES 4
// Marks of terms, besides the number of a rank, or of a host: it is the first of its host; it is a host's sum.
#define FIRST_OF_HOST 0x80000000u
#define IS_SUM 0x40000000u

// `N` numbers are in a piece of 16 bytes.
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
// Elements of a row. A sum has as many of FP32, each piece of which is `WIDE` times as long.
struct of_f32 {
    static const int N = 4, WIDE = 1;
    static __device__ void load(const char* at, float* values) {
        float4 v = *(const float4*)at;
        values[0] = v.x, values[1] = v.y, values[2] = v.z, values[3] = v.w;
    }
    static __device__ void store(char* at, const float* v) { *(float4*)at = make_float4(v[0], v[1], v[2], v[3]); }
};
struct of_bf16 {
    static const int N = 8, WIDE = 2;
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
    static const int N = 1, WIDE = 1;
    static __device__ void load(const char* at, float* values) { *values = *(const float*)at; }
    static __device__ void store(char* at, const float* v) { *(float*)at = *v; }
};
template <class E>
static __device__ void load_sum(const char* at, float* values) {
    if constexpr (E::N == 1) one_f32::load(at, values);
    else for (int i = 0; i < E::WIDE; i++) of_f32::load(at + 16 * i, values + 4 * i);
}
template <class E>
static __device__ void store_sum(char* at, const float* values) {
    if constexpr (E::N == 1) one_f32::store(at, values);
    else for (int i = 0; i < E::WIDE; i++) of_f32::store(at + 16 * i, values + 4 * i);
}

// One of the rows that a sum is made of. Null: there is none.
struct term {
    const char* row;
    bool first_of_host, is_sum;
};
// What a sum of this PE's own token is made of. `bytes` are those of a row, and of a host's sum.
struct of_token {
    const parameters& p;
    const int *places, *host_places;
    const symrail_u32 *starts, *sum_starts;
    symrail_u64 rows, sums, bytes, sum_bytes;
    __device__ symrail_u64 count() const { return p.n_terms; }
    __device__ term at(symrail_u64 i) const {
        symrail_u32 next = ((const symrail_u32*)p.terms)[i], which = next & ~(FIRST_OF_HOST | IS_SUM);
        bool is_sum = (next & IS_SUM) != 0;
        int place = is_sum ? host_places[which] : places[which];
        symrail_u64 number = (is_sum ? sum_starts : starts)[which] + (symrail_u64)place;
        const char* row = (const char*)(is_sum ? sums + number * sum_bytes : rows + number * bytes);
        return term{place < 0 ? nullptr : row, (next & FIRST_OF_HOST) != 0, is_sum};
    }
};
// What this host's sum of another host's token is made of.
struct of_spread {
    symrail_u64 members;
    const symrail_u32 *places, *starts;
    symrail_u64 rows, bytes;
    __device__ symrail_u64 count() const { return members; }
    __device__ term at(symrail_u64 i) const {
        symrail_u64 number = (symrail_u64)starts[i] + places[i];
        return term{places[i] == ~0u ? nullptr : (const char*)rows + number * bytes, false, false};
    }
};

// Adds up terms, and then the biases, at some places in the rows, `step` bytes apart and below `end`. `AS_SUM`: into a
// row of FP32.
template <class E, int N, bool AS_SUM, class T>
static __device__ void add_up(const T& terms, const char* const* biases, char* to, symrail_u64 at, symrail_u64 step,
                              symrail_u64 end) {
    sum<E::N> found[N];
    float values[N][E::N];
    for (symrail_u64 i = 0; i < terms.count(); i++) {
        const term next = terms.at(i);
        if (next.first_of_host)
            for (int n = 0; n < N; n++) found[n].end_host();
        if (next.row == nullptr) continue;
#pragma unroll
        for (int n = 0; n < N; n++) {
            symrail_u64 here = at + n * step;
            if (here >= end) break;
            if (next.is_sum) load_sum<E>(next.row + here * E::WIDE, values[n]);
            else E::load(next.row + here, values[n]);
        }
#pragma unroll
        for (int n = 0; n < N; n++)
            if (at + n * step < end) found[n].add(values[n]);
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
        symrail_u64 here = at + n * step;
        if (here >= end) break;
        found[n].end_host();
        for (int i = 0; i < 2; i++) {
            if (biases[i] == nullptr) continue;
            E::load(biases[i] + here, values[n]);
            for (int v = 0; v < E::N; v++) found[n].all[v] = __fadd_rn(found[n].all[v], values[n][v]);
        }
        if (AS_SUM) store_sum<E>(to + here * E::WIDE, found[n].all);
        else E::store(to + here, found[n].all);
    }
}
// A row's sum, by a warp.
template <bool AS_SUM, class T>
static __device__ void add_row(const T& terms, bool f32, const char* const* biases, char* to, symrail_u64 bytes) {
    for (symrail_u64 at = threadIdx.x % 32 * 16; at < bytes; at += 512 * PIECES) {
        if (f32) add_up<of_f32, PIECES, AS_SUM>(terms, biases, to, at, 512, bytes);
        else add_up<of_bf16, PIECES, AS_SUM>(terms, biases, to, at, 512, bytes);
    }
}
// The sums of weights beside it, by a warp.
template <class T>
static __device__ void add_weights(const T& terms, char* to, symrail_u64 k) {
    const char* none[2] = {nullptr, nullptr};
    for (symrail_u64 i = threadIdx.x % 32; i < k; i += 32) add_up<one_f32, 1, true>(terms, none, to, 4 * i, 0, ~0ull);
}

// The first sum of a host for a source, which has those of other hosts one behind the other.
static __device__ symrail_u32 first_sum(const parameters& p, const routes& r, symrail_u64 source, symrail_u64 host) {
    symrail_u32 rows = 0;
    for (symrail_u64 i = 0; i < host; i++) rows += crossings_of(p, r, source, i);
    return rows;
}

// Any number of blocks: adds what the ranks of this host have gathered here for tokens of other hosts, and sends the
// sums.
extern "C" __global__ void __launch_bounds__(512)
    ep_add(const parameters* given, const routes* of, symrail_u64 bytes, symrail_u64 k, symrail_u64 f32) {
    __shared__ symrail_u32 starts[MOST_MEMBERS];
    const parameters p = *given;
    const routes r = *of;
    if (!goes(p)) return;
    symrail_u64 call = call_of(p), own = host_of(p, p.me), members = members_of(p, own), warps = blockDim.x / 32;
    symrail_u64 side = of_combine(k).bytes(), of_sum = f32 ? bytes : 2 * bytes;
    const char* none[2] = {nullptr, nullptr};
    for (int time = 0; time < 2; time++) {
        symrail_u64 unit = 0, start = 0, gathered = 0;
        for (symrail_u64 source = 0; source < p.ranks; source++) {
            if (!comes_through(p, source, p.me)) continue;
            symrail_u64 all = crossings_of(p, r, source, own), there = first_sum(p, r, source, own);
            for (symrail_u64 chunk = 0; chunk < chunks(all); chunk++, unit++) {
                if (unit % gridDim.x != blockIdx.x) continue;
                symrail_u64 first = chunk * CHUNK, count = all - first < CHUNK ? all - first : CHUNK;
                char* to = (char*)p.sum_rows + (there + first) * of_sum;
                char* side_to = (char*)p.sum_sides + (there + first) * side;
                char *out = (char*)symrail_ptr(to, (int)source), *side_out = (char*)symrail_ptr(side_to, (int)source);
                symrail_u64* words = chunk_words(p, p.me, chunk);
                bool mapped = out != nullptr;
                if (time == 1) {
                    if (mapped) set_words(words, call, source);
                    continue;
                }
                bool late = false;
                for (symrail_u64 i = threadIdx.x; i < members * chunks(p.most) * 2 && !late; i += blockDim.x) {
                    symrail_u64 place = i / 2 / chunks(p.most), part = i / 2 % chunks(p.most), rank = member_of(p, own, place);
                    if (part * CHUNK < tokens_of(p, r, source, rank))
                        late = !has_set(p, gathered_words(p, source, place, part) + i % 2, call, rank, rank);
                }
                for (symrail_u64 m = threadIdx.x; m < members; m += blockDim.x) {
                    starts[m] = gathered;
                    for (symrail_u64 i = 0; i < m; i++) starts[m] += tokens_of(p, r, source, member_of(p, own, i));
                }
                if (__syncthreads_or(late)) return;
                if (!mapped) {
                    out = (char*)p.out_rows + (start + first) * of_sum;
                    side_out = (char*)p.out_sides + (start + first) * side;
                }
                for (symrail_u64 i = threadIdx.x / 32; i < count; i += warps) {
                    const symrail_u32* places = (const symrail_u32*)r.spread + (start + first + i) * p.members;
                    add_row<true>(of_spread{members, places, starts, p.staged_rows, bytes}, f32, none, out + i * of_sum, bytes);
                    add_weights(of_spread{members, places, starts, p.staged_sides, side}, side_out + i * side, k);
                }
                // The starts of this source are used until here.
                __syncthreads();
                if (mapped) continue;
                deliver(to, out, count * of_sum, words, call, source, false);
                deliver(side_to, side_out, count * side, words + 1, call, source, false);
            }
            start += all;
            gathered += rows_gathered(p, r, source, own);
        }
        end_of_rows();
    }
}

// Any number of blocks: adds what came back by a combine. `f32`: rows are of that, else of bfloat16. Absent biases are
// null; without weights `k` is 0.
extern "C" __global__ void __launch_bounds__(512)
    ep_reduce(const parameters* given, const routes* of, symrail_u64 tokens, symrail_u64 bytes, symrail_u64 k,
              symrail_u64 f32, const char* bias, const char* second_bias, char* out, char* weights) {
    // The first row of each rank, and the first sum of each host.
    __shared__ symrail_u32 starts[MOST_RANKS], sum_starts[MOST_RANKS];
    const parameters p = *given;
    const routes r = *of;
    if (!goes(p)) return;
    symrail_u64 call = call_of(p), side = of_combine(k).bytes(), most = chunks(p.most);
    bool late = false;
    for (symrail_u64 i = threadIdx.x; i < p.ranks * most * 2 && !late; i += blockDim.x) {
        symrail_u64 rank = i / 2 / most, chunk = i / 2 % most;
        if (chunk * CHUNK < rows_sent(p, r, p.me, rank))
            late = !has_set(p, chunk_words(p, rank, chunk) + i % 2, call, rank, rank);
    }
    for (symrail_u64 rank = threadIdx.x; rank < p.ranks; rank += blockDim.x) {
        starts[rank] = 0;
        for (symrail_u64 i = 0; i < rank; i++)
            if (is_direct(p, p.me, i)) starts[rank] += tokens_of(p, r, p.me, i);
    }
    for (symrail_u64 host = threadIdx.x; host < p.hosts; host += blockDim.x) sum_starts[host] = first_sum(p, r, p.me, host);
    if (__syncthreads_or(late)) return;
    // A warp adds up a token.
    symrail_u64 warps = blockDim.x / 32;
    for (symrail_u64 token = blockIdx.x * warps + threadIdx.x / 32; token < tokens; token += gridDim.x * warps) {
        symrail_u64 here = token * bytes, of_sum = f32 ? bytes : 2 * bytes;
        const int *places = (const int*)r.places + token * p.ranks, *host_places = (const int*)r.host_places + token * p.hosts;
        const char* biases[2] = {bias == nullptr ? bias : bias + here,
                                 second_bias == nullptr ? second_bias : second_bias + here};
        const of_token rows = {p, places, host_places, starts, sum_starts, p.back_rows, p.sum_rows, bytes, of_sum};
        const of_token sides = {p, places, host_places, starts, sum_starts, p.back_sides, p.sum_sides, side, side};
        add_row<false>(rows, f32, biases, out + here, bytes);
        add_weights(sides, weights + 4 * token * k, k);
    }
}

#endif
