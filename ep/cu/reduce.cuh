// High throughput: the sums of the rows that return for this PE's own tokens.
#ifndef SYMRAIL_EP_REDUCE_CUH
#define SYMRAIL_EP_REDUCE_CUH

#include "returns.cuh"
#include "sums.cuh"

// The pieces of a row at `N` positions, 512 bytes apart. All are in flight before the first is added. Not `WHOLE`: those
// from `end` on are left out.
template <class E, int N, bool WHOLE>
struct pieces_to_add {
    symrail_wide piece[N];
    __device__ void load(const char* row, symrail_u32 at, symrail_u32 end) {
#pragma unroll
        for (int n = 0; n < N; n++)
            if (WHOLE || at + n * 512 < end) piece[n] = load_once((const symrail_wide*)(row + at + n * 512));
    }
    __device__ void add(int n, float* sum) const {
        float values[E::N];
        E::take(piece[n], values);
        for (int i = 0; i < E::N; i++) sum[i] = __fadd_rn(sum[i], values[i]);
    }
};
// The biases of a sum, or null, and where it goes. `FIRST`: the biases are added before the rows, not behind them.
template <bool FIRST>
struct sum_of_row {
    const char *bias, *second_bias;
    char* to;
    template <class E>
    __device__ void add_biases(float* sum, symrail_u32 at) const {
        float values[E::N];
        if (bias != nullptr) {
            E::load(bias + at, values);
            for (int v = 0; v < E::N; v++) sum[v] = __fadd_rn(sum[v], values[v]);
        }
        if (second_bias != nullptr) {
            E::load(second_bias + at, values);
            for (int v = 0; v < E::N; v++) sum[v] = __fadd_rn(sum[v], values[v]);
        }
    }
    template <class E>
    __device__ void begin(float* sum, symrail_u32 at) const {
        if (FIRST) add_biases<E>(sum, at);
    }
    template <class E>
    __device__ void end(float* sum, symrail_u32 at) const {
        if (!FIRST) add_biases<E>(sum, at);
        E::store(to + at, sum);
    }
};
// Adds `ROWS` rows at some positions.
template <class E, int N, int ROWS, class Into>
static __device__ void add_few(const of_list& terms, const Into& into, symrail_u32 at) {
    pieces_to_add<E, N, true> rows[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) rows[i].load(terms.at(i).row, at, 0);
#pragma unroll
    for (int n = 0; n < N; n++) {
        float sum[E::N] = {};
        into.template begin<E>(sum, at + n * 512);
#pragma unroll
        for (int i = 0; i < ROWS; i++) rows[i].add(n, sum);
        into.template end<E>(sum, at + n * 512);
    }
}
// Adds any number of rows at some positions. Two of them are in flight at a time.
template <class E, int N, bool WHOLE, class Into>
static __device__ void add_many(const of_list& terms, const Into& into, symrail_u32 at, symrail_u32 end) {
    float sums[N][E::N] = {};
#pragma unroll
    for (int n = 0; n < N; n++)
        if (WHOLE || at + n * 512 < end) into.template begin<E>(sums[n], at + n * 512);
    pieces_to_add<E, N, WHOLE> first, second;
    for (symrail_u32 i = 0; i < terms.many; i += 2) {
        bool two = i + 1 < terms.many;
        first.load(terms.at(i).row, at, end);
        if (two) second.load(terms.at(i + 1).row, at, end);
#pragma unroll
        for (int n = 0; n < N; n++) first.add(n, sums[n]);
        if (!two) break;
#pragma unroll
        for (int n = 0; n < N; n++) second.add(n, sums[n]);
    }
#pragma unroll
    for (int n = 0; n < N; n++)
        if (WHOLE || at + n * 512 < end) into.template end<E>(sums[n], at + n * 512);
}
// For jobs of one host: a warp adds the rows of a token and then the biases. The result has the same bits as that of
// `add_up`, which also adds sums of other hosts. Rows of 14,336 bytes have whole laps of either length. Only the row's end needs conditions, which cost registers.
template <class E, class Into>
static __device__ void add_token_of_host(const of_list& terms, const Into& into, symrail_u32 bytes) {
    const int FEW = 7, MANY = 4;
    symrail_u32 at = threadIdx.x % 32 * 16, done = 0;
    if (terms.many == 1)
        for (; done + 512 * FEW <= bytes; done += 512 * FEW) add_few<E, FEW, 1>(terms, into, at + done);
    else if (terms.many == 2)
        for (; done + 512 * FEW <= bytes; done += 512 * FEW) add_few<E, FEW, 2>(terms, into, at + done);
    else if (terms.many == 3)
        for (; done + 512 * MANY <= bytes; done += 512 * MANY) add_few<E, MANY, 3>(terms, into, at + done);
    else if (terms.many == 4)
        for (; done + 512 * MANY <= bytes; done += 512 * MANY) add_few<E, MANY, 4>(terms, into, at + done);
    for (; done + 512 * MANY <= bytes; done += 512 * MANY) add_many<E, MANY, true>(terms, into, at + done, bytes);
    if (at + done < bytes) add_many<E, MANY, false>(terms, into, at + done, bytes);
}
// The ways to add a token's rows, each for a kernel of its own, so that none loses registers to another.
struct from_hosts {
    bool f32;
    __device__ void operator()(const of_list& terms, const sum_of_row<false>& into, symrail_u32 bytes) const {
        const char* biases[2] = {into.bias, into.second_bias};
        add_row<false>(terms, f32, biases, into.to, bytes);
    }
};
template <class E>
struct from_one_host {
    template <class Into>
    __device__ void operator()(const of_list& terms, const Into& into, symrail_u32 bytes) const {
        add_token_of_host<E>(terms, into, bytes);
    }
};
static __device__ __noinline__ void add_weights_of_token(const of_token& terms, char* to, symrail_u64 k) {
    add_weights(terms, to, k);
}

// Waits for the row, or the sum, of a term at a place. In a job of several hosts the rows of this host's ranks have been
// waited for.
static __device__ bool has_term(const parameters& p, symrail_u32 term, int place, symrail_u64 call) {
    symrail_u32 which = term & ~(FIRST_OF_HOST | IS_SUM);
    bool is_sum = (term & IS_SUM) != 0;
    if (place < 0) return true;
    if (p.hosts == 1) return which == p.me || has_set(p, returned_word(p, which, place / RETURNED), call, which, which);
    if (!is_sum && is_near(p, which, p.me)) return true;
    symrail_u64 rank = is_sum ? through(p, p.me, which) : which;
    symrail_u64* words = chunk_words(p, rank, place / CHUNK);
    return has_set(p, words, call, rank, rank) && has_set(p, words + 1, call, rank, rank);
}
// The last of a token's slots that names an expert of a rank.
static __device__ symrail_u32 last_slot(const parameters& p, const long long* slots, symrail_u64 k, symrail_u64 rank) {
    symrail_u32 last = 0;
    for (symrail_u64 i = 0; i < k; i++)
        if (local_of(p, slots[i], rank) != ~0u) last = (symrail_u32)i;
    return last;
}
// A warp lists the terms of a token when they have arrived. Within one host it leaves out ranks without a row. Each lane
// has the place of its first term. With `slots` the terms, 32 at most, are in the order of the last of the token's `k`
// slots that names one of a rank's experts. Returns the number of terms, or all bits set if one is late.
static __device__ symrail_u64 list_terms(const parameters& p, const of_token& rows, int first_place, symrail_u64 call,
                                         symrail_u64* list, const long long* slots, symrail_u64 k) {
    symrail_u64 lane = threadIdx.x % 32, many = 0;
    for (symrail_u64 base = 0; base < rows.count(); base += 32) {
        symrail_u64 i = base + lane;
        bool is_term = i < rows.count();
        int place = !is_term ? -1 : base == 0 ? first_place : rows.place(i);
        bool late = is_term && !has_term(p, rows.terms[i], place, call);
        if (__ballot_sync(~0u, late) != 0) return ~0ull;
        term next = is_term ? rows.at(i, place) : term{nullptr, false, false};
        symrail_u32 listed = __ballot_sync(~0u, is_term && (p.hosts > 1 || next.row != nullptr));
        symrail_u64 before = __popc(listed & ((1u << lane) - 1));
        if (slots != nullptr) {
            symrail_u32 last = is_term ? last_slot(p, slots, k, rows.terms[i] & ~(FIRST_OF_HOST | IS_SUM)) : 0;
            before = 0;
            for (symrail_u32 other = 0; other < 32; other++) {
                symrail_u32 its = __shfl_sync(~0u, last, other);
                // Of equal slots, which indices that changed since the dispatch have, each place is taken once.
                bool precedes = its < last || (its == last && other < lane);
                before += precedes && (listed >> other & 1);
            }
        }
        if (listed >> lane & 1) list[many + before] = of_list::listing(next);
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
// In a job of several hosts any number of blocks offer the rows of a combine, and their weights, to the ranks of this
// host. Rows that are in the offered memory already stay there. This PE's own rows are not copied: it reads them from the caller's memory.
extern "C" __global__ void __launch_bounds__(512, 1)
    ep_offer(const parameters* given, const routes* of, const char* rows, symrail_u64 bytes, const symrail_u32* weights,
             symrail_u64 k) {
    PARAMETERS_AND_ROUTES(p, r);
    bool made = goes(p);
    symrail_u64 warps = (symrail_u64)gridDim.x * (blockDim.x / 32), warp = threadIdx.x / 32 * (symrail_u64)gridDim.x + blockIdx.x;
    symrail_u64 side = of_combine(k).bytes();
    for (symrail_u64 source = 0, first = 0; made && source < p.ranks; first += tokens_of(p, r, source, p.me), source++) {
        if (!is_near(p, source, p.me)) continue;
        bool copied = source != p.me && rows != (const char*)p.heap.offered_rows;
        for (symrail_u64 row = first + warp; row < first + tokens_of(p, r, source, p.me); row += warps) {
            if (copied) copy_row((char*)p.heap.offered_rows + row * bytes, rows + row * bytes, bytes);
            for (symrail_u64 i = threadIdx.x % 32; i < k; i += 32)
                ((symrail_u32*)(p.heap.offered_sides + row * side))[i] = weights[row * k + i];
        }
    }
    end_of_offer(p, made);
}

// What a combine adds for this PE's tokens, and where the sums go.
struct reduction {
    const char* rows;
    symrail_u64 tokens, bytes, k;
    const symrail_u32* weights;
    const char *bias, *second_bias;
    char *out, *sums_of_weights;
    // If the rows are added in the order of the tokens' slots: these.
    const long long* slots;
    symrail_u64 of_token;
};
// Any number of blocks add the rows that return from all ranks to this PE's tokens, and end the call. Warps take the
// tokens in turn. `ONE_HOST`: before that, they return the rows of the other ranks' tokens. `BY_SLOTS`: sums begin with the
// biases, and the rows follow in the order of slots. `of_sum`: bytes of a host's sum.
template <bool ONE_HOST, bool BY_SLOTS, class Add>
static __device__ void reduce(const parameters* given, const routes* of, const reduction& c, symrail_u64 of_sum, const Add& add) {
    // For each rank its first row and the side data of that; for each host the same of its sums; the terms of each warp.
    __shared__ symrail_u64 rows[MOST_RANKS], sides[MOST_RANKS], sums[MOST_RANKS], sum_sides[MOST_RANKS];
    __shared__ symrail_u64 listed[512 / 32][MOST_RANKS];
    __shared__ symrail_u32 terms[MOST_RANKS];
    PARAMETERS_AND_ROUTES(p, r);
    bool made = goes(p);
    if (ONE_HOST && made) return_rows(p, r, returning{c.rows, c.bytes, c.weights, c.k});
    if (made && (ONE_HOST || near_have_offered(p, call_of(p)))) {
        symrail_u64 call = call_of(p), side = ONE_HOST ? 4 * c.k : of_combine(c.k).bytes();
        for (symrail_u64 rank = threadIdx.x; rank < p.ranks; rank += blockDim.x) {
            if (!is_direct(p, p.me, rank)) continue;
            symrail_u64 back = ONE_HOST ? first_returned(p, r, p.me, rank) : 0;
            rows[rank] = ONE_HOST ? p.heap.back_rows + back * c.bytes
                                  : (symrail_u64)first_to_add(p, r, rank, p.heap.offered_rows, p.heap.back_rows, c.bytes);
            sides[rank] = ONE_HOST ? p.heap.back_sides + back * side
                                   : (symrail_u64)first_to_add(p, r, rank, p.heap.offered_sides, p.heap.back_sides, side);
            if (rank != p.me) continue;
            rows[rank] = (symrail_u64)c.rows + first_row(p, r, p.me, p.me) * c.bytes;
            if (ONE_HOST) sides[rank] = (symrail_u64)c.weights + first_row(p, r, p.me, p.me) * side;
        }
        for (symrail_u64 host = threadIdx.x; host < p.hosts; host += blockDim.x) {
            sums[host] = p.heap.sum_rows + first_sum(p, r, p.me, host) * of_sum;
            sum_sides[host] = p.heap.sum_sides + first_sum(p, r, p.me, host) * side;
        }
        for (symrail_u64 i = threadIdx.x; i < p.n_terms; i += blockDim.x) terms[i] = ((const symrail_u32*)p.terms)[i];
        __syncthreads();
        symrail_u64* list = listed[threadIdx.x / 32];
        auto terms_of = [&](symrail_u64 token) {
            const int *places = (const int*)r.places + token * p.ranks, *host_places = (const int*)r.host_places + token * p.hosts;
            return of_token{terms, p.n_terms, places, host_places, rows, sums, c.bytes, of_sum};
        };
        // The place of the lane's first term, which is loaded while the token before it is added.
        auto place_of_first = [&](symrail_u64 token) {
            return token < c.tokens && threadIdx.x % 32 < p.n_terms ? terms_of(token).place(threadIdx.x % 32) : -1;
        };
        tickets all(p);
        symrail_u64 next = all.take();
        for (int next_place = place_of_first(next); next < c.tokens;) {
            symrail_u64 token = next;
            int place = next_place;
            next = all.take(), next_place = place_of_first(next);
            const of_token its = terms_of(token);
            const long long* slots = BY_SLOTS ? c.slots + token * c.of_token : nullptr;
            symrail_u64 many = list_terms(p, its, place, call, list, slots, c.of_token);
            if (many == ~0ull) break;
            symrail_u64 here = token * c.bytes;
            const char* second = c.second_bias == nullptr ? nullptr : c.second_bias + here;
            add(of_list{many, list}, sum_of_row<BY_SLOTS>{c.bias == nullptr ? nullptr : c.bias + here, second, c.out + here}, (symrail_u32)c.bytes);
            if (c.k > 0)
                add_weights_of_token(of_token{terms, p.n_terms, its.places, its.host_places, sides, sum_sides, side, side},
                                     c.sums_of_weights + 4 * token * c.k, c.k);
            // All lanes have read the list.
            __syncwarp();
        }
    }
    if (is_last_block(p) && threadIdx.x == 0) end_call(p);
}
#define REDUCE_ARGUMENTS                                                                                                    \
    const parameters *given, const routes *of, const char *rows, symrail_u64 tokens, symrail_u64 bytes, symrail_u64 k,     \
        const symrail_u32 *weights, const char *bias, const char *second_bias, char *out, char *sums_of_weights
#define REDUCTION {rows, tokens, bytes, k, weights, bias, second_bias, out, sums_of_weights, nullptr, 0}
// A job of one host, whose rows are of FP32, or of bfloat16, also in the order of slots; a job of several hosts.
extern "C" __global__ void __launch_bounds__(512, 1) ep_reduce_f32(REDUCE_ARGUMENTS) {
    reduce<true, false>(given, of, REDUCTION, bytes, from_one_host<of_f32>{});
}
extern "C" __global__ void __launch_bounds__(512, 1) ep_reduce_bf16(REDUCE_ARGUMENTS) {
    reduce<true, false>(given, of, REDUCTION, 2 * bytes, from_one_host<of_bf16>{});
}
extern "C" __global__ void __launch_bounds__(512, 1)
    ep_reduce_slots(REDUCE_ARGUMENTS, const long long* slots, symrail_u64 of_token) {
    const reduction c = {rows, tokens, bytes, k, weights, bias, second_bias, out, sums_of_weights, slots, of_token};
    reduce<true, true>(given, of, c, 2 * bytes, from_one_host<of_bf16>{});
}
extern "C" __global__ void __launch_bounds__(512, 1) ep_reduce_hosts(REDUCE_ARGUMENTS, symrail_u64 f32) {
    reduce<false, false>(given, of, REDUCTION, f32 ? bytes : 2 * bytes, from_hosts{f32 != 0});
}

#endif
