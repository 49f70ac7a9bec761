// High throughput: what a rank knows of all, and where tokens go.
//
// A host here are ranks whose memory each other's GPUs reach by stores. Tokens go straight to the ranks of one's own
// host, and to hosts of one rank. To another host a token goes once, through one of its ranks: `through`. That rank
// spreads it.
#ifndef SYMRAIL_EP_ROUTES_CUH
#define SYMRAIL_EP_ROUTES_CUH

#include "rows.cuh"

struct parameters {
    symrail_u64 ranks, me, share, most, room;
    // How many hosts there are, ranks of the largest one, and rows that have room where they are staged.
    symrail_u64 hosts, members, staged;
    // Symmetric memory: headers that come and that go, and their words; words of chunks, and of those that are
    // gathered; rows and what is beside them, that come by dispatch, that come back by combine, that go to ranks that
    // are not mapped, that are staged for others of this host, and that come back as sums of another host; words of the
    // ranks of this host.
    symrail_u64 headers, headers_out, header_words, words, gathered_words, rows, sides, back_rows, back_sides, out_rows,
        out_sides, staged_rows, staged_sides, sum_rows, sum_sides, near_words;
    // Bytes of what is beside a row, at most.
    symrail_u64 side;
    // This PE's own: `progress`, and `record` in memory of the host; which ranks make a host; what is added to a sum,
    // and how many of those there are.
    symrail_u64 progress, record, homes, terms, n_terms;
};

// The routes of a dispatch, on this PE.
struct routes {
    // For each rank (first index) its tokens for each rank, and for each host. For each rank, and behind them for each
    // host, this PE's tokens for it; for each token its place among those for each rank, and for each host, or -1. This
    // PE's slots for each expert; slots of each of this PE's experts; the first slot whose expert is not there (all
    // bits set: none), and that expert. For each token that came through this PE its place at each rank of this host,
    // or -1.
    symrail_u64 matrix, crossings, lists, places, host_places, per_expert, come, wrong_slot, spread;
};

// Where kernels have both: in shared memory, since in registers they would take the room of what is under way.
static __device__ void copy_words(void* to, const void* from, symrail_u64 bytes) {
    for (symrail_u64 i = threadIdx.x; i < bytes / 8; i += blockDim.x) ((symrail_u64*)to)[i] = ((const symrail_u64*)from)[i];
}
#define PARAMETERS_AND_ROUTES(p, r)         \
    __shared__ parameters p;                \
    __shared__ routes r;                    \
    copy_words(&p, given, sizeof(p));       \
    copy_words(&r, of, sizeof(r));          \
    __syncthreads()

#define MOST_RANKS 256
// Ranks of a host, at most.
#define MOST_MEMBERS 64
#define CHUNK 32
// Rows that a warp stores to a rank of its own host, for which it sets a word.
#define NEAR 4

static __device__ symrail_u64 chunks(symrail_u64 rows) { return (rows + CHUNK - 1) / CHUNK; }
static __device__ symrail_u32 tokens_of(const parameters& p, const routes& r, symrail_u64 from, symrail_u64 to) {
    return ((const symrail_u32*)r.matrix)[from * p.ranks + to];
}
// A rank's tokens for another host of several ranks; 0 for others.
static __device__ symrail_u32 crossings_of(const parameters& p, const routes& r, symrail_u64 from, symrail_u64 host) {
    return ((const symrail_u32*)r.crossings)[from * p.hosts + host];
}

// `homes` has for each rank its host, and its place there; for each host, and behind the last, where its ranks begin
// among those of all hosts; and those.
static __device__ symrail_u64 host_of(const parameters& p, symrail_u64 rank) { return ((const symrail_u32*)p.homes)[rank]; }
static __device__ symrail_u64 place_of(const parameters& p, symrail_u64 rank) {
    return ((const symrail_u32*)p.homes)[p.ranks + rank];
}
static __device__ const symrail_u32* starts_of_hosts(const parameters& p) { return (const symrail_u32*)p.homes + 2 * p.ranks; }
static __device__ symrail_u64 members_of(const parameters& p, symrail_u64 host) {
    return starts_of_hosts(p)[host + 1] - starts_of_hosts(p)[host];
}
static __device__ symrail_u64 member_of(const parameters& p, symrail_u64 host, symrail_u64 place) {
    return starts_of_hosts(p)[p.hosts + 1 + starts_of_hosts(p)[host] + place];
}
// Whether ranks are of one host: rows between them go by stores of warps, chunk by chunk of few.
static __device__ bool is_near(const parameters& p, symrail_u64 a, symrail_u64 b) { return host_of(p, a) == host_of(p, b); }
static __device__ symrail_u64 near_chunks(symrail_u64 rows) { return (rows + NEAR - 1) / NEAR; }
// The rank through which a source's tokens come to another host: its ranks in turn, as the host's form has it.
static __device__ symrail_u64 through(const parameters& p, symrail_u64 source, symrail_u64 host) {
    return member_of(p, host, place_of(p, source) % members_of(p, host));
}
// Whether a source's tokens go straight to a rank.
static __device__ bool is_direct(const parameters& p, symrail_u64 source, symrail_u64 rank) {
    symrail_u64 host = host_of(p, rank);
    return host_of(p, source) == host || members_of(p, host) == 1;
}
// Whether a source's tokens come to a host through one of its ranks.
static __device__ bool comes_through(const parameters& p, symrail_u64 source, symrail_u64 rank) {
    return !is_direct(p, source, rank) && through(p, source, host_of(p, rank)) == rank;
}
// Rows that a source sends to a rank itself.
static __device__ symrail_u32 rows_sent(const parameters& p, const routes& r, symrail_u64 source, symrail_u64 rank) {
    if (is_direct(p, source, rank)) return tokens_of(p, r, source, rank);
    return comes_through(p, source, rank) ? crossings_of(p, r, source, host_of(p, rank)) : 0;
}
// Rows of a source that are gathered for a sum on a host: one for each token and rank there.
static __device__ symrail_u32 rows_gathered(const parameters& p, const routes& r, symrail_u64 source, symrail_u64 host) {
    symrail_u32 rows = 0;
    for (symrail_u64 i = 0; i < members_of(p, host); i++) rows += tokens_of(p, r, source, member_of(p, host, i));
    return rows;
}
// The first row of a source at a rank, which has them by source.
static __device__ symrail_u32 first_row(const parameters& p, const routes& r, symrail_u64 source, symrail_u64 rank) {
    symrail_u32 rows = 0;
    for (symrail_u64 i = 0; i < source; i++) rows += tokens_of(p, r, i, rank);
    return rows;
}

// A block for each rank, and behind them one for each host: which tokens it gets. `topk` are 64-bit indices, -1 for
// none.
extern "C" __global__ void __launch_bounds__(512, 1)
    ep_layout(const parameters* given, const routes* of, const long long* topk, symrail_u64 tokens, symrail_u64 k) {
    __shared__ symrail_u32 in_warp[16];
    __shared__ symrail_u64 wrong;
    const parameters p = *given;
    const routes r = *of;
    bool of_rank = blockIdx.x < p.ranks;
    symrail_u64 rank = blockIdx.x, host = of_rank ? 0 : rank - p.ranks;
    // Straight ways need no list for the host.
    bool wanted = of_rank || (host != host_of(p, p.me) && members_of(p, host) > 1);
    long long share = (long long)p.share, all_experts = share * (long long)p.ranks;
    symrail_u32 *per_expert = (symrail_u32*)r.per_expert, found = 0;
    int* list = (int*)r.lists + rank * p.most;
    int* places = of_rank ? (int*)r.places + rank : (int*)r.host_places + host;
    symrail_u64 stride = of_rank ? p.ranks : p.hosts;
    for (symrail_u64 i = threadIdx.x; of_rank && i < p.share; i += blockDim.x) per_expert[rank * p.share + i] = 0;
    if (threadIdx.x == 0) wrong = ~0ull;
    __syncthreads();
    for (symrail_u64 base = 0; wanted && base < tokens; base += blockDim.x) {
        symrail_u64 token = base + threadIdx.x;
        bool gets = false;
        for (symrail_u64 slot = token * k; token < tokens && slot < (token + 1) * k; slot++) {
            long long expert = topk[slot];
            if (expert < 0 || expert >= all_experts) {
                if (expert != -1) atomicMin(&wrong, slot);
            } else if (!of_rank) {
                gets |= host_of(p, expert / share) == host;
            } else if (expert / share == (long long)rank) {
                gets = true;
                atomicAdd(per_expert + expert, 1u);
            }
        }
        symrail_u32 all, place = found + count_before(gets, in_warp, all);
        if (token < tokens) places[token * stride] = gets ? (int)place : -1;
        if (gets) list[place] = (int)token;
        found += all;
    }
    if (threadIdx.x != 0) return;
    if (of_rank) ((symrail_u32*)r.matrix)[p.me * p.ranks + rank] = found;
    else ((symrail_u32*)r.crossings)[p.me * p.hosts + host] = found;
    if (rank != 0) return;
    ((symrail_u64*)r.wrong_slot)[0] = wrong;
    ((long long*)r.wrong_slot)[1] = wrong == ~0ull ? 0 : topk[wrong];
}

#endif
