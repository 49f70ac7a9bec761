// Ranks that never arrive, in each kernel that waits for one.
#pragma once
#include "ranks.hpp"

// Rank 1 never arrives. Rank 0 reports it, sets no further words, and signals rank 2, whose wait then ends.
static void late() {
    auto ranks = ranks_of(3, 64, 63);
    ranks[0].timeout = SOON;
    on_all(ranks, [&](Rank& it) {
        if (it.me == 1) return;
        it.launch(1, 32, [&] { overlap_begin(it.plan(), nullptr, 0); });
        it.launch(1, 1, [&] { overlap_wait(it.plan(), 5, 0, 1); });
        expect(it.plan()->signalled == 0, "what copy engines would signal", it.me, 1);
        char from[16] = {}, to[16] = {};
        symrail_u64 word = 7;
        it.launch(BLOCKS, THREADS, [&] { overlap_send(it.plan(), to, from, 16, (symrail_u64)&word); });
        it.launch(1, 1, [&] { overlap_signal(it.plan(), 6, 1); });
        it.launch(1, 1, [&] { overlap_put_nbi(it.plan(), to, from, 16, 6, 1, 1); });
        it.launch(1, 1, [&] { overlap_quiet(); });
        expect(word == 7, "a word that was set", it.me, 1);
        if (it.me == 0) {
            expect(it.report[0] == SYMRAIL_GIVEN_UP_LATE && it.report[1] == 1, "who is late", it.me, 1);
        } else {
            expect(it.report[0] == SYMRAIL_GIVEN_UP_BY_PEER, "why a wait has ended", it.me, 1);
            expect(it.heap[63] == (1ull | 2ull << 32), "who has given up, and for whom", it.me, 1);
        }
    });
    expect(ranks[1].heap[63] == (1ull | 2ull << 32) && ranks[1].heap[6] == 0, "what the late rank learned", 1, 1);
}

// The same in rounds of one kernel, and in copies: after the failed wait the rank sets no words and sends no packets.
static void late_in_a_kernel() {
    enum { GATHER_PACKETS, RECEIVE, PACKETS_SENT, GATHER, REDUCE, PUT, OFFER, READY, KINDS };
    for (int kind = 0; kind < KINDS; kind++) {
        const size_t PACKETS_AT = 8 * 64, TURN = 8 * (OVERLAP_PACKET_HEADS * 2 + 64);
        auto ranks = ranks_of(2, 64 + 2 * TURN / 8 + OVERLAP_SLOTS * OVERLAP_SLOT_BYTES / 8, 63);
        Rank& it = ranks[0];
        it.timeout = SOON;
        alignas(16) char own[64] = {}, all[128] = {}, out[64] = {};
        overlap_pair pair = {};
        symrail_u64 base = it.base(), apart = it.apart[1], at = base + PACKETS_AT, places[2] = {0, 16};
        symrail_u64 number = (symrail_u64)own, keep = (symrail_u64)all;
        overlap_packed packed = {at + apart, 0, 64, 1, at, keep + 64, 64, 0};
        overlap_part part = {1, base + 8, base + 64, base + apart + 8, base + apart + 64, 0, at + apart, 64};
        auto go = [&] {
            unsigned blocks = kind == RECEIVE || kind == PACKETS_SENT || kind >= OFFER ? 1 : BLOCKS;
            it.launch(blocks, kind >= OFFER ? 1 : THREADS, [&] {
                auto plan = it.plan();
                char* there = (char*)at + apart;
                switch (kind) {
                    case GATHER_PACKETS: return overlap_gather_packets(plan, &packed, 1, number, keep, 64, TURN);
                    case RECEIVE: return overlap_receive(plan, &pair.received, 0, 0, 1, at, 1);
                    case PACKETS_SENT: return overlap_packets(plan, &pair.sent, 0, at + apart, own, 64, 0, 1);
                    case GATHER: return overlap_gather(plan, &part, 1, number, keep, 64);
                    case REDUCE:
                        return overlap_reduce_f32(plan, &part, 1, keep, places, 0, 16, 16, (symrail_u64)out, 1);
                    case PUT:
                        return overlap_copy(plan, &pair.sent, &pair.put, 0, there, own, 64, base + apart + 8, 1);
                    case OFFER: return overlap_offer(plan, &pair.offered, base + apart + 16, 2, 3, 1);
                    default: return overlap_ready(plan, &pair.fetched, &pair.counted_got, 2, 1);
                }
            });
            it.launch(1, 1, [&] { overlap_signal_count(it.plan(), &pair.counted_got, 3, 1); });
        };
        // A sender may be ahead by the number of slots.
        for (int i = 1; kind == PACKETS_SENT && i < OVERLAP_SLOTS; i++) go();
        expect(it.report[0] == 0, "a sender that waits without need", kind, 0);
        go();
        expect(it.report[0] == SYMRAIL_GIVEN_UP_LATE && it.report[1] == 1, "who is late", kind, 1);
        expect(ranks[1].heap[63] == (1ull | 2ull << 32), "what the late rank learned", kind, 1);
        expect(pair.counted_got == 0, "a copy that a copy engine would signal", kind, 1);
        std::vector<symrail_u64> before = ranks[1].heap;
        go();
        expect(ranks[1].heap == before, "what who has given up tells and sends", kind, 2);
    }
}
