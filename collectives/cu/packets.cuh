/* One phase: every rank sends each rank its part as packets of 16 bytes, with 8 bytes of data, and stores packets as
 * they arrive. Ranks wait for the data only. Where no data goes from a rank to another one (broadcasts, reductions to
 * one rank), it sends one packet without data, so that no rank begins a call before all have ended the last but one. */
#ifndef SYMRAIL_PACKETS_CUH
#define SYMRAIL_PACKETS_CUH

#include "straight.cuh"

/* Packets that each thread has in flight at a time, if there are more packets than threads. */
#define SYMRAIL_PACKETS_MANY 4
/* Packets that each call wipes. */
#define SYMRAIL_PACKETS_WIPED 32u

/* Flags are never 0, which is the content of fresh memory: the number after 2^32 - 2 is skipped, and one more, so
 * that halves still alternate. */
SYMRAIL_DEVICE symrail_u32 symrail_packets_flag(symrail_u64 number) { return (symrail_u32)number + 1; }
SYMRAIL_DEVICE symrail_u64 symrail_packets_next(symrail_u64 number) {
    return symrail_packets_flag(number + 1) == 0 ? number + 3 : number + 1;
}

/* Advances the call's number when all blocks have read it. */
SYMRAIL_DEVICE void symrail_packets_advance(const symrail_straight& call, symrail_u64 number) {
    if (symrail_all::rank() != 0) return;
    if (call.blocks > 1 && symrail_add_gpu(call.words + 8, 1) + 1 != call.blocks) return;
    if (call.blocks > 1) symrail_st_gpu(call.words + 8, 0);
    symrail_st_gpu(call.words, symrail_packets_next(number));
}

/* Flags repeat after 2^32 calls. Until then a later call has written or wiped every packet: each call wipes a few
 * that it does not use itself. No rank writes to its half again before it has ended. */
SYMRAIL_DEVICE void symrail_packets_wipe(const symrail_straight& call, symrail_u64 half, symrail_u64 number,
                                         symrail_u64 used) {
    symrail_u32 of_rank = (symrail_u32)(call.region / 16), all = of_rank * (symrail_u32)(call.n - 1);
    for (symrail_u32 k = symrail_all::rank(); k < SYMRAIL_PACKETS_WIPED; k += symrail_all::size()) {
        symrail_u32 at = ((symrail_u32)(number >> 1) * SYMRAIL_PACKETS_WIPED + k) % all;
        symrail_u64 from = at / of_rank < call.me ? at / of_rank : at / of_rank + 1;
        if (at % of_rank >= (symrail_flows(call, from, call.me) ? used : 1)) symrail_st_pair(half + 16ull * at, 0, 0);
    }
}

/* `early`: the thread's data, if it has at most one packet. A thread sends the same bytes of all parts before it stores
 * those that have come, so an all-to-all works in place, too. */
template <class N, int MANY>
SYMRAIL_DEVICE bool symrail_packets_move(const symrail_straight& call, symrail_u32 block, symrail_u64 half,
                                         symrail_u32 flag, symrail_u64 early) {
    const symrail_u64 count = (call.part + 7) / 8, threads = call.blocks * symrail_all::size(), me = call.me;
    const bool spreads = symrail_spreads(call);
    for (symrail_u64 first = (symrail_u64)block * symrail_all::size() + symrail_all::rank(); first < count;
         first += MANY * threads) {
        symrail_u64 mine[MANY];
        const char* from = (const char*)symrail_straight_source(call);
#pragma unroll
        for (int k = 0; k < MANY; k++) {
            symrail_u64 at = 8 * (first + k * threads);
            if (MANY == 1) mine[k] = early;
            else mine[k] = at < call.part ? symrail_load_some(from + at, call.part - at) : 0;
        }
        for (symrail_u64 i = 1; i < call.n; i++) {
            symrail_u64 to = me + i < call.n ? me + i : me + i - call.n;
            if (!symrail_flows(call, me, to)) continue;
            symrail_u64 there = half + call.ranks[to].distance + symrail_place_at(me, to) * call.region;
            const char* theirs = (const char*)call.input + to * call.part;
#pragma unroll
            for (int k = 0; k < MANY; k++) {
                symrail_u64 packet = first + k * threads, at = 8 * packet;
                if (packet >= count) continue;
                symrail_u64 data = spreads ? symrail_load_some(theirs + at, call.part - at) : mine[k];
                symrail_packet16_write(there + 16 * packet, data, flag);
            }
        }
        /* Reads the packet of a rank, this one included; `false`: it does not arrive. */
        auto read = [&](symrail_u64 rank, symrail_u64* raw) {
#pragma unroll
            for (int k = 0; k < MANY; k++) raw[k] = mine[k];
            if (rank == me) return true;
            symrail_u64 here = half + symrail_place_at(rank, me) * call.region;
            auto came = [&]() {
                bool all = true;
#pragma unroll
                for (int k = 0; k < MANY; k++) {
                    symrail_u64 packet = first + k * threads;
                    if (packet < count) all &= symrail_packet16_read(here + 16 * packet, flag, raw[k]);
                }
                return all;
            };
            return symrail_straight_await(call, came, rank, block);
        };
        auto store = [&](symrail_u64 to, const symrail_u64* raw) {
#pragma unroll
            for (int k = 0; k < MANY; k++) {
                symrail_u64 at = 8 * (first + k * threads);
                if (at < call.part) symrail_store_some((char*)to + at, raw[k], call.part - at);
            }
        };
        symrail_u64 raw[MANY];
        if (!symrail_gets(call, me)) continue;
        if (symrail_moves(call)) {
            for (symrail_u64 rank = 0; rank < call.n; rank++) {
                if (!symrail_gives(call, rank)) continue;
                symrail_u64 to = call.output + symrail_part_of(call, rank, call.part);
                if (!read(rank, raw)) return false;
                /* In place, this rank's part is in the output already. */
                if (rank != me || to != (symrail_u64)from) store(to, raw);
            }
            continue;
        }
        symrail_elements<N, 8> sum[MANY], more;
        if (!read(0, raw)) return false;
#pragma unroll
        for (int k = 0; k < MANY; k++) sum[k].unpack(&raw[k]);
        for (symrail_u64 rank = 1; rank < call.n; rank++) {
            if (!read(rank, raw)) return false;
#pragma unroll
            for (int k = 0; k < MANY; k++) {
                more.unpack(&raw[k]);
                symrail_straight_take(call, sum[k], more);
            }
        }
#pragma unroll
        for (int k = 0; k < MANY; k++) {
            symrail_straight_finish<N>(call, sum[k]);
            sum[k].pack(&raw[k]);
        }
        store(call.output, raw);
    }
    return true;
}

/* Sends packets without data to, or awaits them from, the ranks to or from which no data goes. Called by one thread. */
SYMRAIL_DEVICE void symrail_packets_greet(const symrail_straight& call, symrail_u64 half, symrail_u32 flag) {
    for (symrail_u64 to = 0; to < call.n; to++)
        if (to != call.me && !symrail_flows(call, call.me, to))
            symrail_packet16_write(half + call.ranks[to].distance + symrail_place_at(call.me, to) * call.region, 0, flag);
}
SYMRAIL_DEVICE bool symrail_packets_greeted(const symrail_straight& call, symrail_u64 half, symrail_u32 flag) {
    for (symrail_u64 from = 0; from < call.n; from++) {
        if (from == call.me || symrail_flows(call, from, call.me)) continue;
        symrail_u64 here = half + symrail_place_at(from, call.me) * call.region, none;
        auto came = [&]() { return symrail_packet16_read(here, flag, none); };
        if (!symrail_straight_await(call, came, from, 0)) return false;
    }
    return true;
}

template <class N>
SYMRAIL_DEVICE void symrail_packets(const symrail_straight& call, symrail_u32 block) {
    symrail_straight_launched();
    symrail_u64 number = symrail_ld_gpu(call.words), count = (call.part + 7) / 8, early = 0;
    /* The loads of the data and of the number overlap. */
    symrail_u64 at = 8 * ((symrail_u64)block * symrail_all::size() + symrail_all::rank());
    if (at < call.part) early = symrail_load_some((const char*)symrail_straight_source(call) + at, call.part - at);
    if (!symrail_straight_begin(call, number, block)) return;
    symrail_packets_advance(call, number);
    symrail_u32 flag = symrail_packets_flag(number);
    symrail_u64 half = call.packets + (number & 1) * (call.n - 1) * call.region;
    bool greets = symrail_is_rooted(call) && block == 0 && symrail_all::rank() == 0;
    if (greets) symrail_packets_greet(call, half, flag);
    bool good = count <= call.blocks * symrail_all::size()
                    ? symrail_packets_move<N, 1>(call, block, half, flag, early)
                    : symrail_packets_move<N, SYMRAIL_PACKETS_MANY>(call, block, half, flag, 0);
    if (good && greets) good = symrail_packets_greeted(call, half, flag);
    if (good && block == 0) symrail_packets_wipe(call, half, number, count);
}

#endif
