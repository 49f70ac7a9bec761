// High throughput: sums of returned rows, in the order of the host's form: first the rows of each host in the order of
// its ranks, then the hosts' sums. Where a host has several ranks, one of them adds, and its sum arrives in FP32.
#ifndef SYMRAIL_EP_SUMS_CUH
#define SYMRAIL_EP_SUMS_CUH

#include "near.cuh"

// The 16-byte pieces of each row that a thread has in flight, and the number of such rows.
#define PIECES 4
#define TERMS_AHEAD 2
// Flags of a term beside the number of its rank or host: it is the first of its host; it is a host's sum.
#define FIRST_OF_HOST 0x80000000u
#define IS_SUM 0x40000000u

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
    const parameters& p;
    const int *places, *host_places;
    const symrail_u64 *rows, *sums;
    symrail_u64 bytes, sum_bytes;
    __device__ symrail_u64 count() const { return p.n_terms; }
    __device__ term at(symrail_u64 i) const {
        symrail_u32 next = ((const symrail_u32*)p.terms)[i], which = next & ~(FIRST_OF_HOST | IS_SUM);
        bool is_sum = (next & IS_SUM) != 0;
        int place = is_sum ? host_places[which] : places[which];
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

// Adds terms of one host, none of which is a sum, and then the biases, with the result of `add_up`. Many pieces are in
// flight.
template <class E>
static __device__ void add_up_host(const of_list& terms, const char* first_bias, const char* second_bias, char* to,
                                   symrail_u64 at, symrail_u64 end) {
    float found[PIECES][E::N] = {};
    for (symrail_u64 base = 0; base < terms.many; base += TERMS_AHEAD) {
        symrail_wide piece[TERMS_AHEAD][PIECES];
        const char* row[TERMS_AHEAD];
#pragma unroll
        for (int t = 0; t < TERMS_AHEAD; t++) {
            row[t] = base + t < terms.many ? terms.at(base + t).row : nullptr;
#pragma unroll
            for (int n = 0; n < PIECES; n++)
                if (row[t] != nullptr && at + n * 512 < end)
                    piece[t][n] = load_once((const symrail_wide*)(row[t] + at + n * 512));
        }
#pragma unroll
        for (int t = 0; t < TERMS_AHEAD; t++) {
            if (row[t] == nullptr) continue;
#pragma unroll
            for (int n = 0; n < PIECES; n++) {
                float values[E::N];
                E::take(piece[t][n], values);
                for (int i = 0; i < E::N; i++) found[n][i] = __fadd_rn(found[n][i], values[i]);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < PIECES; n++) {
        symrail_u64 here = at + n * 512;
        if (here >= end) break;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const char* bias = i == 0 ? first_bias : second_bias;
            float values[E::N];
            if (bias == nullptr) continue;
            E::load(bias + here, values);
            for (int v = 0; v < E::N; v++) found[n][v] = __fadd_rn(found[n][v], values[v]);
        }
        E::store(to + here, found[n]);
    }
}
// A warp forms a token's sum. Each form is a function of its own, so that none loses registers to another.
template <class E>
static __device__ __noinline__ void add_token_of_host(const of_list terms, const char* bias, const char* second_bias,
                                                      char* to, symrail_u64 bytes) {
    for (symrail_u64 at = threadIdx.x % 32 * 16; at < bytes; at += 512 * PIECES)
        add_up_host<E>(terms, bias, second_bias, to, at, bytes);
}
static __device__ __noinline__ void add_token_of_hosts(const of_list terms, bool f32, const char* bias,
                                                       const char* second_bias, char* to, symrail_u64 bytes) {
    const char* biases[2] = {bias, second_bias};
    add_row<false>(terms, f32, biases, to, bytes);
}
static __device__ __noinline__ void add_weights_of_token(const of_token& terms, char* to, symrail_u64 k) {
    add_weights(terms, to, k);
}

// Waits for a row, or a sum, from another host. The rows of this host's ranks have been waited for.
static __device__ bool has_term(const parameters& p, symrail_u64 i, const of_token& rows, symrail_u64 call) {
    symrail_u32 next = ((const symrail_u32*)p.terms)[i], which = next & ~(FIRST_OF_HOST | IS_SUM);
    bool is_sum = (next & IS_SUM) != 0;
    int place = is_sum ? rows.host_places[which] : rows.places[which];
    if (place < 0 || (!is_sum && is_near(p, which, p.me))) return true;
    symrail_u64 rank = is_sum ? through(p, p.me, which) : which;
    symrail_u64* words = chunk_words(p, rank, place / CHUNK);
    return has_set(p, words, call, rank, rank) && has_set(p, words + 1, call, rank, rank);
}
// A warp lists the terms of a token when they have arrived. Within one host it leaves out ranks without a row. Returns
// the number of terms, or all bits set if one is late.
static __device__ symrail_u64 list_terms(const parameters& p, const of_token& rows, symrail_u64 call, symrail_u64* list) {
    symrail_u64 lane = threadIdx.x % 32, many = 0;
    for (symrail_u64 base = 0; base < p.n_terms; base += 32) {
        symrail_u64 i = base + lane;
        bool is_term = i < p.n_terms, late = is_term && p.hosts > 1 && !has_term(p, i, rows, call);
        if (__ballot_sync(~0u, late) != 0) return ~0ull;
        term next = is_term ? rows.at(i) : term{nullptr, false, false};
        symrail_u32 listed = __ballot_sync(~0u, is_term && (p.hosts > 1 || next.row != nullptr));
        if (listed >> lane & 1) list[many + __popc(listed & ((1u << lane) - 1))] = of_list::listing(next);
        many += __popc(listed);
    }
    __syncwarp();
    return many;
}

// A rank's first row for this PE's tokens: where that rank of this host offers it, or where it has arrived here.
static __device__ char* first_to_add(const parameters& p, const routes& r, symrail_u64 rank, symrail_u64 offered,
                                     symrail_u64 arrived, symrail_u64 bytes) {
    if (is_near(p, rank, p.me)) return (char*)symrail_ptr((char*)offered + first_row(p, r, p.me, rank) * bytes, (int)rank);
    return (char*)arrived + first_back(p, r, p.me, rank) * bytes;
}

// Any number of blocks add the rows that return from all ranks to this PE's tokens, and end the call. `f32`: rows are
// FP32, else bfloat16. Warps take the tokens in turn.
extern "C" __global__ void __launch_bounds__(512, 1)
    ep_reduce(const parameters* given, const routes* of, const char* given_rows, symrail_u64 tokens, symrail_u64 bytes,
              symrail_u64 k, symrail_u64 f32, const char* bias, const char* second_bias, char* out, char* sums_of_weights) {
    // For each rank its first row and the side data of that; for each host the same of its sums; the terms of each warp.
    __shared__ symrail_u64 rows[MOST_RANKS], sides[MOST_RANKS], sums[MOST_RANKS], sum_sides[MOST_RANKS];
    __shared__ symrail_u64 listed[512 / 32][MOST_RANKS];
    PARAMETERS_AND_ROUTES(p, r);
    symrail_u64 call = call_of(p), side = of_combine(k).bytes(), own = host_of(p, p.me), of_sum = f32 ? bytes : 2 * bytes;
    bool made = goes(p), late = false;
    for (symrail_u64 m = threadIdx.x; made && m < members_of(p, own); m += blockDim.x) {
        symrail_u64 rank = member_of(p, own, m);
        late |= !has_set(p, near_word(p, rank), call, rank, rank);
    }
    if (!__syncthreads_or(late || !made)) {
        for (symrail_u64 rank = threadIdx.x; rank < p.ranks; rank += blockDim.x) {
            if (!is_direct(p, p.me, rank)) continue;
            rows[rank] = (symrail_u64)first_to_add(p, r, rank, p.offered_rows, p.back_rows, bytes);
            sides[rank] = (symrail_u64)first_to_add(p, r, rank, p.offered_sides, p.back_sides, side);
            if (rank == p.me) rows[rank] = (symrail_u64)given_rows + first_row(p, r, p.me, p.me) * bytes;
        }
        for (symrail_u64 host = threadIdx.x; host < p.hosts; host += blockDim.x) {
            sums[host] = p.sum_rows + first_sum(p, r, p.me, host) * of_sum;
            sum_sides[host] = p.sum_sides + first_sum(p, r, p.me, host) * side;
        }
        __syncthreads();
        symrail_u64* list = listed[threadIdx.x / 32];
        tickets all(p);
        for (symrail_u64 token = all.take(); token < tokens; token = all.take()) {
            const int *places = (const int*)r.places + token * p.ranks, *host_places = (const int*)r.host_places + token * p.hosts;
            symrail_u64 many = list_terms(p, of_token{p, places, host_places, rows, sums, bytes, of_sum}, call, list);
            if (many == ~0ull) break;
            symrail_u64 here = token * bytes;
            const char *first = bias == nullptr ? bias : bias + here, *second = second_bias == nullptr ? second_bias : second_bias + here;
            const of_list terms = {many, list};
            if (p.hosts > 1) add_token_of_hosts(terms, f32, first, second, out + here, bytes);
            else if (f32) add_token_of_host<of_f32>(terms, first, second, out + here, bytes);
            else add_token_of_host<of_bf16>(terms, first, second, out + here, bytes);
            if (k > 0) add_weights_of_token(of_token{p, places, host_places, sides, sum_sides, side, side}, sums_of_weights + 4 * token * k, k);
            // All lanes have read the list.
            __syncwarp();
        }
    }
    if (is_last_block(p) && threadIdx.x == 0) end_call(p);
}

#endif
