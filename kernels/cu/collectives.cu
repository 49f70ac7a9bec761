// Collectives of a team in the order of a stream, for kernels/src/cuda/collectives.rs: each PE puts its data to the
// others between two barriers of the team. Memory is symmetric on all PEs. All PEs count the same barriers, also those
// that are left out behind a failure.
#include "symrail_device.cuh"
#include "symrail/combine.cuh"
#include "on_stream.cuh"

// Threads of a block.
#define THREADS 512

// The job's number of a team's PE `i`.
static __device__ int pe_of(const symrail_device_team& team, int i) { return team.start + i * team.stride; }

// Puts bytes to `dest` of every PE, including itself. The source for each PE is `step` bytes behind that for the one
// before.
static __device__ void spread(const symrail_device_team& team, char* dest, const char* source, symrail_u64 step,
                              symrail_u64 bytes) {
    symrail_u64 at, part = part_of(bytes, at);
    if (part == 0) return;
    // Each PE starts with the PE after itself, so that they do not all put to the same one.
    for (int i = 1; i <= team.n_pes; i++) {
        int to = (team.me + i) % team.n_pes;
        symrailx_putmem_nbi_block(dest + at, source + to * step + at, part, pe_of(team, to));
    }
}

// One block, for collectives that are not worth three launches.
extern "C" __global__ void __launch_bounds__(THREADS)
    spread_on_stream(symrail_team_t which, char* dest, const char* source, symrail_u64 step, symrail_u64 bytes,
                     symrail_u64 era, symrail_u64 told) {
    if (meet(which, false, {era, told})) spread(symrail_team_of(which), dest, source, step, bytes);
    meet(which, true, {era, told});
}

// Sends this PE's number of bytes to all PEs; one block.
extern "C" __global__ void __launch_bounds__(THREADS)
    tell_length_on_stream(symrail_team_t which, symrail_u64* lengths, symrail_u64 bytes, symrail_u64 era,
                          symrail_u64 told) {
    symrail_device_team team = symrail_team_of(which);
    bool on = goes_on({era, told}, SYMRAIL_WHAT_COLLECT, symrail_state.me);
    for (int i = threadIdx.x; on && i < team.n_pes; i += blockDim.x)
        symrail_ulonglong_p(lengths + team.me, bytes, pe_of(team, i));
    meet(which, true, {era, told});
}
// Puts this PE's bytes behind those of the PEs before it. `room` is the size of `dest`.
extern "C" __global__ void __launch_bounds__(THREADS)
    collect_on_stream(symrail_team_t which, char* dest, symrail_u64 room, const char* source, symrail_u64 bytes,
                      const symrail_u64* lengths, symrail_u64 era, symrail_u64 told) {
    if (!goes_on({era, told}, SYMRAIL_WHAT_COLLECT, symrail_state.me)) return;
    symrail_device_team team = symrail_team_of(which);
    symrail_u64 before = 0, all = 0;
    for (int i = 0; i < team.n_pes; i++) {
        if (i == team.me) before = all;
        all += symrail_ld_acquire(lengths + i);
    }
    if (all <= room) spread(team, dest + before, source, 0, bytes);
    else if (blockIdx.x == 0 && threadIdx.x == 0)
        symrail_fail(SYMRAIL_ERROR_NO_ROOM, SYMRAIL_WHAT_COLLECT, symrail_state.me, all);
}

// Loads one piece of U bytes past the first-level cache, which is not coherent with writes of others. A piece of 16
// bytes that is not aligned has aligned halves.
template <unsigned U>
static __device__ symrail_wide piece_at(const char* from) {
    if (U == 16 && ((symrail_u64)from & 15) == 0) return symrail_peer_source::load((const symrail_wide*)from);
    switch (U) {
        case 1: return {*(const volatile unsigned char*)from, 0};
        case 2: return {*(const volatile unsigned short*)from, 0};
        case 4: return {*(const volatile symrail_u32*)from, 0};
        case 8: return {*(const volatile symrail_u64*)from, 0};
        default: return {*(const volatile symrail_u64*)from, *((const volatile symrail_u64*)from + 1)};
    }
}
template <unsigned U>
static __device__ void store_piece(char* to, symrail_wide piece) {
    if (U == 16 && ((symrail_u64)to & 15) == 0) return symrail_store((symrail_wide*)to, piece);
    switch (U) {
        case 1: return symrail_store_value((unsigned char*)to, (unsigned char)piece.a);
        case 2: return symrail_store_value((unsigned short*)to, (unsigned short)piece.a);
        case 4: return symrail_store_value((symrail_u32*)to, (symrail_u32)piece.a);
        case 16: symrail_store_value((symrail_u64*)to + 1, piece.b);
        default: return symrail_store_value((symrail_u64*)to, piece.a);
    }
}

// The part that a block combines: bytes of `source` on all PEs, into `dest` here. Bytes of PEs whose memory is not
// mapped were copied to `scratch`, `apart` for each PE.
struct part {
    symrail_device_team team;
    char* dest;
    const char* source;
    const char* scratch;
    symrail_u64 apart;
    symrail_u32 how;

    __device__ const char* of_pe(int i) const {
        const char* mapped = (const char*)symrail_ptr(source, pe_of(team, i));
        return mapped != nullptr ? mapped : scratch + i * apart;
    }
    // Combines the bytes from `begin` to `end` in pieces of U, in the order of the PEs. Each thread has several pieces
    // under way at a time.
    template <unsigned U, int AHEAD>
    __device__ void combine(symrail_u64 begin, symrail_u64 end) const {
        symrail_u64 lap = (symrail_u64)blockDim.x * U;
        for (symrail_u64 at = begin + threadIdx.x * U; at < end; at += AHEAD * lap) {
            symrail_wide all[AHEAD], next[AHEAD];
            for (int i = 0; i < team.n_pes; i++) {
                const char* from = of_pe(i);
#pragma unroll
                for (int k = 0; k < AHEAD; k++)
                    if (at + k * lap < end) next[k] = piece_at<U>(from + at + k * lap);
#pragma unroll
                for (int k = 0; k < AHEAD; k++)
                    if (at + k * lap < end) all[k] = i == 0 ? next[k] : symrail_combine(all[k], next[k], how);
            }
#pragma unroll
            for (int k = 0; k < AHEAD; k++)
                if (at + k * lap < end) store_piece<U>(dest + at + k * lap, all[k]);
        }
    }
    // Combines all bytes, in pieces as wide as the addresses allow, and the rest in elements. Elements of 16 bytes are
    // pieces.
    __device__ void combine_all(symrail_u64 bytes, symrail_u64 element) const {
        bool wide = element == 16 || (((symrail_u64)dest | (symrail_u64)source) & 15) == 0;
        symrail_u64 end = wide ? bytes & ~15ull : 0;
        combine<16, 4>(0, end);
        switch (element) {
            case 1: return combine<1, 1>(end, bytes);
            case 2: return combine<2, 1>(end, bytes);
            case 4: return combine<4, 1>(end, bytes);
            default: return combine<8, 1>(end, bytes);
        }
    }
};

// Combines bytes of `source` on all PEs into `dest` here, and with `share` puts the result to `dest` of the others.
// Each PE combines a different part of the whole, so a source may be the destination. Where a PE is not mapped, one
// block works in parts that fit the scratch memory. With `waits`, one block does the work of three launches.
extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_on_stream(symrail_team_t which, char* dest, const char* source, symrail_u64 bytes, symrail_u64 how,
                     symrail_u64 element, symrail_u64 share, char* scratch, symrail_u64 scratch_bytes,
                     symrail_u64 waits, symrail_u64 era, symrail_u64 told) {
    enqueued since = {era, told};
    bool on = waits != 0 ? meet(which, false, since) : goes_on(since, SYMRAIL_WHAT_COLLECT, symrail_state.me);
    symrail_device_team team = symrail_team_of(which);
    symrail_u64 at, left = part_of(bytes, at), apart = scratch == nullptr ? 0 : scratch_bytes / team.n_pes & ~15ull;
    while (on && left > 0) {
        symrail_u64 now = scratch == nullptr || left < apart ? left : apart;
        part here = {team, dest + at, source + at, scratch, apart, (symrail_u32)how};
        if (scratch != nullptr) {
            for (int i = 0; i < team.n_pes; i++)
                if (symrail_ptr(source + at, pe_of(team, i)) == nullptr)
                    symrailx_getmem_nbi_block(scratch + i * apart, source + at, now, pe_of(team, i));
            __syncthreads();
            // Without the bytes of all PEs there is no sum.
            if (__syncthreads_or(threadIdx.x == 0 && !(symrail_all_delivered() && since.is_well()))) break;
        }
        here.combine_all(now, element);
        __syncthreads();
        for (int i = 1; share != 0 && i < team.n_pes; i++)
            symrailx_putmem_nbi_block(dest + at, dest + at, now, pe_of(team, (team.me + i) % team.n_pes));
        at += now;
        left -= now;
    }
    if (waits != 0) meet(which, true, since);
}
