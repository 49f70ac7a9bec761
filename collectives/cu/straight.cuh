/* All-reduces, all-gathers, reduce-scatters, all-to-alls, broadcasts, reductions to one rank, gathers and scatters among
 * PEs that access one another, without a plan: an interpreter needs more time to read steps than small messages take.
 * This file has the common parts of both algorithms; packets.cuh and pushed.cuh have the algorithms. Inputs and outputs
 * may be any memory of this device, and the same memory.
 *
 * Reductions combine the ranks in the same order everywhere, so that all ranks get the same bits. */
#ifndef SYMRAIL_STRAIGHT_CUH
#define SYMRAIL_STRAIGHT_CUH

#include "elements.cuh"
#include "proxied.cuh"
#include "layout.cuh"

typedef symrail_block_scope symrail_all;

/* If this launch begins before the previous kernel has ended: waits for that kernel, and lets the next launch begin.
 * No thread reads or writes before. */
SYMRAIL_DEVICE void symrail_straight_launched() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Tells all other ranks that this one has given up, unless another rank made it give up. Called by one thread. */
static __device__ __noinline__ void symrail_straight_tell(const symrail_straight& call) {
    for (symrail_u64 i = 0; i < call.n; i++)
        symrail_tell_one(call.alarm.stop, true, call.ranks[i].distance, call.ranks[i].pe);
}

/* The calling thread waits for rank `who`. */
template <class F>
SYMRAIL_DEVICE bool symrail_straight_await(const symrail_straight& call, F& holds, symrail_u64 who, symrail_u64 block) {
    if (symrail_await(call.alarm, holds, call.ranks[who].pe, block << 32)) return true;
    symrail_straight_tell(call);
    return false;
}

/* Returns whether no rank has given up so far. All threads of the block call it together. */
SYMRAIL_DEVICE bool symrail_straight_begin(const symrail_straight& call, symrail_u64 number, symrail_u64 block) {
    /* The number takes part, so that all threads have read it when the first one continues. */
    bool stopped = symrail_ld_sys(call.alarm.stop) != 0 || number == ~0ull;
    if (__syncthreads_or(stopped ? 1 : 0) == 0) return true;
    if (symrail_all::rank() == 0)
        symrail_give_up(call.alarm, SYMRAIL_GIVEN_UP_BY_PEER, symrail_ld_sys(call.alarm.stop) - 1, block << 32);
    return false;
}

/* Whether the input of each rank that gives something has a part for each rank; whether nothing is reduced. */
SYMRAIL_DEVICE bool symrail_spreads(const symrail_straight& call) {
    return call.collective == SYMRAIL_REDUCE_SCATTER || call.collective == SYMRAIL_ALL_TO_ALL ||
           call.collective == SYMRAIL_SCATTER;
}
SYMRAIL_DEVICE bool symrail_moves(const symrail_straight& call) {
    return call.collective == SYMRAIL_ALL_GATHER || call.collective == SYMRAIL_ALL_TO_ALL ||
           call.collective == SYMRAIL_BROADCAST || call.collective >= SYMRAIL_GATHER;
}
/* Whether there is a root; whether a rank has data for others, and whether it has a result. */
SYMRAIL_DEVICE bool symrail_is_rooted(const symrail_straight& call) { return call.collective >= SYMRAIL_BROADCAST; }
SYMRAIL_DEVICE bool symrail_gives(const symrail_straight& call, symrail_u64 rank) {
    if (call.collective == SYMRAIL_BROADCAST || call.collective == SYMRAIL_SCATTER) return rank == call.root;
    return call.collective != SYMRAIL_REDUCE_TO || rank != call.root;
}
SYMRAIL_DEVICE bool symrail_gets(const symrail_straight& call, symrail_u64 rank) {
    return (call.collective != SYMRAIL_REDUCE_TO && call.collective != SYMRAIL_GATHER) || rank == call.root;
}
/* Whether data goes from a rank to another one. */
SYMRAIL_DEVICE bool symrail_flows(const symrail_straight& call, symrail_u64 from, symrail_u64 to) {
    return symrail_gives(call, from) && symrail_gets(call, to);
}
/* The place of a rank's part in the input or output of collectives that have one part for each rank. */
SYMRAIL_DEVICE symrail_u64 symrail_part_of(const symrail_straight& call, symrail_u64 rank, symrail_u64 bytes) {
    return symrail_is_rooted(call) && call.collective != SYMRAIL_GATHER ? 0 : rank * bytes;
}
/* This rank's part of its input, if the input has parts for several ranks. */
SYMRAIL_DEVICE symrail_u64 symrail_straight_source(const symrail_straight& call) {
    return call.input + (symrail_spreads(call) && symrail_gives(call, call.me) ? call.me * call.part : 0);
}

/* The average of `n` numbers: integer sums wrap before, floats are rounded to their type behind the division, so that a
 * sum beyond the largest number of a narrow type has a right average. */
template <class N, class W>
SYMRAIL_DEVICE W symrail_average_of(W sum, symrail_u32 n) { return symrail_quotient_of(N::load(N::store(sum)), n); }
template <class N>
SYMRAIL_DEVICE float symrail_average_of(float sum, symrail_u32 n) { return symrail_quotient_of(sum, n); }

/* One step of the call's reduction, and the final division. */
template <class E>
SYMRAIL_DEVICE void symrail_straight_take(const symrail_straight& call, E& sum, const E& others) {
    sum.take((symrail_u32)(call.how & 0xff), others, (call.how & SYMRAIL_STRAIGHT_ROUNDED) != 0);
}
template <class N, class E>
SYMRAIL_DEVICE void symrail_straight_finish(const symrail_straight& call, E& sum) {
    if ((call.how & SYMRAIL_STRAIGHT_AVERAGE) == 0) return;
#pragma unroll
    for (int i = 0; i < E::count; i++)
        sum.v[i] = symrail_average_of<N>(sum.v[i], (symrail_u32)call.n);
}

/* The index of a rank among the other ranks of another one. */
SYMRAIL_DEVICE symrail_u64 symrail_place_at(symrail_u64 rank, symrail_u64 other) {
    return rank < other ? rank : rank - 1;
}

#endif
