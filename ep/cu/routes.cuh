// High throughput: what a rank knows of all ranks, and the routes of tokens.
//
// A host here is a group of ranks whose GPUs reach each other's memory by loads and stores. They read tokens in
// each other's memory. Tokens go directly to hosts of one rank. A token crosses to another host once, to one of its
// ranks: `through`. That rank forwards it.
#ifndef SYMRAIL_EP_ROUTES_CUH
#define SYMRAIL_EP_ROUTES_CUH

#include "rows.cuh"
#include "high_throughput_layout.cuh"

// Kernels keep both in shared memory: in registers they would displace the data in flight.
static __device__ void copy_words(void* to, const void* from, symrail_u64 bytes) {
    for (symrail_u64 i = threadIdx.x; i < bytes / 8; i += blockDim.x) ((symrail_u64*)to)[i] = ((const symrail_u64*)from)[i];
}
#define PARAMETERS_AND_ROUTES(p, r)         \
    __shared__ parameters p;                \
    __shared__ routes r;                    \
    copy_words(&p, given, sizeof(p));       \
    copy_words(&r, of, sizeof(r));          \
    __syncthreads()

// The most ranks of a host.
#define MOST_MEMBERS 64
// The rows that a warp handles at a time. All their side data is in flight together.
#define NEAR 4

static __device__ symrail_u64 chunks(symrail_u64 rows) { return (rows + CHUNK - 1) / CHUNK; }
static __device__ symrail_u32 tokens_of(const parameters& p, const routes& r, symrail_u64 from, symrail_u64 to) {
    return ((const symrail_u32*)r.matrix)[from * p.ranks + to];
}
// The number of a rank's tokens for another host of several ranks; 0 for other hosts.
static __device__ symrail_u32 crossings_of(const parameters& p, const routes& r, symrail_u64 from, symrail_u64 host) {
    return ((const symrail_u32*)r.crossings)[from * p.hosts + host];
}

// `homes` holds for each rank its host, then for each rank its position there; then the index of each host's first rank
// in the list of all hosts' ranks, and the end of that list; then the list.
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
// Whether ranks share a host. Such ranks load and store rows in each other's memory.
static __device__ bool is_near(const parameters& p, symrail_u64 a, symrail_u64 b) { return host_of(p, a) == host_of(p, b); }
static __device__ symrail_u64 near_chunks(symrail_u64 rows) { return (rows + NEAR - 1) / NEAR; }
// For each token of a rank of this host its position among that rank's rows here, or -1. Two tables alternate, as
// headers do: a rank may announce the next call while this one is still read.
static __device__ int* near_places(const parameters& p, symrail_u64 call, symrail_u64 rank) {
    return (int*)p.heap.near_places_at + (call % 2 * p.members + place_of(p, rank)) * p.most;
}
// The rank through which a source's tokens reach another host. The host's ranks serve sources in rotation, as in the
// host's form.
static __device__ symrail_u64 through(const parameters& p, symrail_u64 source, symrail_u64 host) {
    return member_of(p, host, place_of(p, source) % members_of(p, host));
}
// Whether a source's tokens go directly to a rank.
static __device__ bool is_direct(const parameters& p, symrail_u64 source, symrail_u64 rank) {
    symrail_u64 host = host_of(p, rank);
    return host_of(p, source) == host || members_of(p, host) == 1;
}
// Whether a source's tokens reach a host through this one of its ranks.
static __device__ bool comes_through(const parameters& p, symrail_u64 source, symrail_u64 rank) {
    return !is_direct(p, source, rank) && through(p, source, host_of(p, rank)) == rank;
}
// The number of rows that a source sends to a rank itself.
static __device__ symrail_u32 rows_sent(const parameters& p, const routes& r, symrail_u64 source, symrail_u64 rank) {
    if (is_direct(p, source, rank)) return tokens_of(p, r, source, rank);
    return comes_through(p, source, rank) ? crossings_of(p, r, source, host_of(p, rank)) : 0;
}
// The number of rows that a host gathers to form the sums for a source: one for each token and rank there.
static __device__ symrail_u32 rows_gathered(const parameters& p, const routes& r, symrail_u64 source, symrail_u64 host) {
    symrail_u32 rows = 0;
    for (symrail_u64 i = 0; i < members_of(p, host); i++) rows += tokens_of(p, r, source, member_of(p, host, i));
    return rows;
}
// The index of a source's first row at a rank, whose rows are ordered by source.
static __device__ symrail_u32 first_row(const parameters& p, const routes& r, symrail_u64 source, symrail_u64 rank) {
    symrail_u32 rows = 0;
    for (symrail_u64 i = 0; i < source; i++) rows += tokens_of(p, r, i, rank);
    return rows;
}

// One block for each rank, and then one for each host, lists the tokens for it. `topk` are 64-bit indices, -1 for none.
// Without indices (k = 0) `in_rank` says for each token and rank whether the rank gets the token, and `slots` how many
// slots name each expert.
extern "C" __global__ void __launch_bounds__(512, 1)
    ep_layout(const parameters* given, const routes* of, const long long* topk, symrail_u64 tokens, symrail_u64 k,
              const unsigned char* in_rank, const symrail_u32* slots) {
    __shared__ symrail_u32 in_warp[16];
    __shared__ symrail_u64 wrong;
    const parameters p = *given;
    const routes r = *of;
    bool of_rank = blockIdx.x < p.ranks;
    symrail_u64 rank = blockIdx.x, host = of_rank ? 0 : rank - p.ranks;
    // Direct routes need no list for the host.
    bool wanted = of_rank || (host != host_of(p, p.me) && members_of(p, host) > 1);
    long long share = (long long)p.share, all_experts = share * (long long)p.ranks;
    symrail_u32 *per_expert = (symrail_u32*)r.per_expert, found = 0;
    int* list = (int*)r.lists + rank * p.most;
    int* places = of_rank ? (int*)r.places + rank : (int*)r.host_places + host;
    symrail_u64 stride = of_rank ? p.ranks : p.hosts;
    for (symrail_u64 i = threadIdx.x; of_rank && i < p.share; i += blockDim.x)
        per_expert[rank * p.share + i] = k == 0 ? slots[rank * p.share + i] : 0;
    if (threadIdx.x == 0) wrong = ~0ull;
    __syncthreads();
    for (symrail_u64 base = 0; wanted && base < tokens; base += blockDim.x) {
        symrail_u64 token = base + threadIdx.x;
        bool gets = false;
        for (symrail_u64 i = 0; k == 0 && token < tokens && i < (of_rank ? 1 : members_of(p, host)); i++)
            gets |= in_rank[token * p.ranks + (of_rank ? rank : member_of(p, host, i))] != 0;
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

// The experts whose slots a block of ep_count counts.
#define COUNTED 4
// One block for each COUNTED experts counts their slots; one for each rank says which tokens go to it, and counts these.
// Indices of no expert count nowhere. It needs no parameters: nothing is sent.
extern "C" __global__ void __launch_bounds__(512, 1)
    ep_count(const void*, const long long* topk, symrail_u64 tokens, symrail_u64 k, symrail_u64 experts, symrail_u64 ranks,
             int* per_rank, int* per_expert, unsigned char* in_rank) {
    __shared__ int sums[COUNTED];
    symrail_u64 of_experts = (experts + COUNTED - 1) / COUNTED, share = experts / ranks;
    if (threadIdx.x < COUNTED) sums[threadIdx.x] = 0;
    __syncthreads();
    int own[COUNTED] = {};
    if (blockIdx.x < of_experts) {
        long long first = (long long)blockIdx.x * COUNTED;
#pragma unroll 8
        for (symrail_u64 slot = threadIdx.x; slot < tokens * k; slot += blockDim.x) {
            long long expert = topk[slot] - first;
#pragma unroll
            for (int i = 0; i < COUNTED; i++) own[i] += expert == i;
        }
    } else {
        symrail_u64 rank = blockIdx.x - of_experts;
        for (symrail_u64 token = threadIdx.x; token < tokens; token += blockDim.x) {
            bool gets = false;
#pragma unroll 8
            for (symrail_u64 slot = 0; slot < k; slot++)
                gets |= (symrail_u64)(topk[token * k + slot] - (long long)(rank * share)) < share;
            in_rank[token * ranks + rank] = gets;
            own[0] += gets;
        }
    }
#pragma unroll
    for (int i = 0; i < COUNTED; i++)
        if (own[i] != 0) atomicAdd(sums + i, own[i]);
    __syncthreads();
    if (blockIdx.x >= of_experts) {
        if (threadIdx.x == 0) per_rank[blockIdx.x - of_experts] = sums[0];
    } else if (threadIdx.x < COUNTED && blockIdx.x * COUNTED + threadIdx.x < experts) {
        per_expert[blockIdx.x * COUNTED + threadIdx.x] = sums[threadIdx.x];
    }
}

#endif
