// High throughput: sums of returned rows, in the order of the host's form: first the rows of each host in the order of
// its ranks, then the hosts' sums. Where a host has several ranks, one of them adds, and its sum arrives in FP32.
#ifndef SYMRAIL_EP_SUMS_CUH
#define SYMRAIL_EP_SUMS_CUH

#include "near.cuh"

// The 16-byte pieces of each row that a thread adds at a time.
#define PIECES 4
// Flags of a term beside the number of its rank or host: it is the first of its host; it is a host's sum.

// A sum of `N` numbers, as many as 16 bytes of a row hold.
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
// The elements of a row. A sum has as many FP32 elements; its pieces are `WIDE` times as long.
struct of_f32 {
    static const int N = 4, WIDE = 1;
    static __device__ void load(const char* at, float* values) {
        float4 v = *(const float4*)at;
        values[0] = v.x, values[1] = v.y, values[2] = v.z, values[3] = v.w;
    }
    static __device__ void take(symrail_wide v, float* values) {
        values[0] = __uint_as_float((symrail_u32)v.a), values[1] = __uint_as_float((symrail_u32)(v.a >> 32));
        values[2] = __uint_as_float((symrail_u32)v.b), values[3] = __uint_as_float((symrail_u32)(v.b >> 32));
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
    static __device__ void take(symrail_wide v, float* values) {
        symrail_u64 halves[2] = {v.a, v.b};
        for (int i = 0; i < 4; i++) {
            symrail_u32 two = (symrail_u32)(halves[i / 2] >> (i % 2 * 32));
            values[2 * i] = low(two), values[2 * i + 1] = high(two);
        }
    }
    static __device__ void store(char* at, const float* v) {
        symrail_u32 two[4];
        bool any_nan = false;
        for (int i = 0; i < 8; i++) any_nan |= !(v[i] == v[i]);
        if (any_nan)
            for (int i = 0; i < 4; i++) two[i] = to_bf16(v[2 * i]) | to_bf16(v[2 * i + 1]) << 16;
        else
            for (int i = 0; i < 4; i++) two[i] = two_to_bf16(v[2 * i], v[2 * i + 1]);
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

// One of the rows of a sum. A null row means that there is none.
struct term {
    const char* row;
    bool first_of_host, is_sum;
};
// The terms of a sum for this PE's own token. `rows` holds for each rank the address of its first row for this PE, and
// `sums` for each host that of its first sum. `bytes` is the size of a row, and `sum_bytes` that of a host's sum.
struct of_token {
    const symrail_u32* terms;
    symrail_u64 many;
    const int *places, *host_places;
    const symrail_u64 *rows, *sums;
    symrail_u64 bytes, sum_bytes;
    __device__ symrail_u64 count() const { return many; }
    // The place of the row, or of the sum; negative if there is none.
    __device__ int place(symrail_u64 i) const {
        symrail_u32 next = terms[i], which = next & ~(FIRST_OF_HOST | IS_SUM);
        return (next & IS_SUM) != 0 ? host_places[which] : places[which];
    }
    __device__ term at(symrail_u64 i) const { return at(i, place(i)); }
    __device__ term at(symrail_u64 i, int place) const {
        symrail_u32 next = terms[i], which = next & ~(FIRST_OF_HOST | IS_SUM);
        bool is_sum = (next & IS_SUM) != 0;
        symrail_u64 row = is_sum ? sums[which] + (symrail_u64)place * sum_bytes : rows[which] + (symrail_u64)place * bytes;
        return term{place < 0 ? nullptr : (const char*)row, (next & FIRST_OF_HOST) != 0, is_sum};
    }
};
// A list of the terms of a sum. The lowest bits of a row's address hold the flags.
struct of_list {
    symrail_u64 many;
    const symrail_u64* listed;
    __device__ symrail_u64 count() const { return many; }
    __device__ term at(symrail_u64 i) const {
        symrail_u64 next = listed[i];
        return term{(const char*)(next & ~15ull), (next & 1) != 0, (next & 2) != 0};
    }
    static __device__ symrail_u64 listing(const term& next) {
        return (symrail_u64)next.row | (symrail_u64)next.first_of_host | (symrail_u64)next.is_sum << 1;
    }
};
// The terms of this host's sum for another host's token.
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

// Adds the terms, and then the biases, at up to `N` positions in the rows, `step` bytes apart and below `end`.
// `AS_SUM`: the result is FP32.
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
// A warp forms the sum of a row.
template <bool AS_SUM, class T>
static __device__ void add_row(const T& terms, bool f32, const char* const* biases, char* to, symrail_u64 bytes) {
    for (symrail_u64 at = threadIdx.x % 32 * 16; at < bytes; at += 512 * PIECES) {
        if (f32) add_up<of_f32, PIECES, AS_SUM>(terms, biases, to, at, 512, bytes);
        else add_up<of_bf16, PIECES, AS_SUM>(terms, biases, to, at, 512, bytes);
    }
}
// A warp forms the sums of the row's weights.
template <class T>
static __device__ void add_weights(const T& terms, char* to, symrail_u64 k) {
    const char* none[2] = {nullptr, nullptr};
    for (symrail_u64 i = threadIdx.x % 32; i < k; i += 32) add_up<one_f32, 1, true>(terms, none, to, 4 * i, 0, ~0ull);
}

// The index of a host's first sum at a source, which keeps the sums of other hosts one after the other.
static __device__ symrail_u32 first_sum(const parameters& p, const routes& r, symrail_u64 source, symrail_u64 host) {
    symrail_u32 rows = 0;
    for (symrail_u64 i = 0; i < host; i++) rows += crossings_of(p, r, source, i);
    return rows;
}

// Any number of blocks add the rows that the ranks of this host have gathered here for tokens of other hosts, and send
// the sums.
extern "C" __global__ void __launch_bounds__(512, 1)
    ep_add(const parameters* given, const routes* of, symrail_u64 bytes, symrail_u64 k, symrail_u64 f32) {
    __shared__ symrail_u32 starts[MOST_MEMBERS];
    PARAMETERS_AND_ROUTES(p, r);
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
                char* to = (char*)p.heap.sum_rows + (there + first) * of_sum;
                char* side_to = (char*)p.heap.sum_sides + (there + first) * side;
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
                    out = (char*)p.heap.out_rows + (start + first) * of_sum;
                    side_out = (char*)p.heap.out_sides + (start + first) * side;
                }
                for (symrail_u64 i = threadIdx.x / 32; i < count; i += warps) {
                    const symrail_u32* places = (const symrail_u32*)r.spread + (start + first + i) * p.members;
                    add_row<true>(of_spread{members, places, starts, p.heap.staged_rows, bytes}, f32, none, out + i * of_sum, bytes);
                    add_weights(of_spread{members, places, starts, p.heap.staged_sides, side}, side_out + i * side, k);
                }
                // All warps have read this source's starts.
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

#endif
