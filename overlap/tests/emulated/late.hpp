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
        char from[16] = "moved bytes", to[16] = {};
        char* heap = (char*)it.base() + 8 * 8;
        symrail_u64 word = 7;
        auto moves = [&] {
            it.launch(BLOCKS, THREADS, [&] { overlap_send(it.plan(), to, from, 16, (symrail_u64)&word); });
            it.launch(BLOCKS, THREADS, [&] { overlap_put(it.plan(), heap, from, 16, 1); });
            it.launch(1, 1, [&] { overlap_put_proxied(it.plan(), heap, from, 16, 1); });
        };
        moves();
        it.launch(1, 1, [&] { overlap_signal(it.plan(), 6, 1); });
        it.launch(1, 1, [&] { overlap_put_nbi(it.plan(), to, from, 16, 6, 1, 1); });
        it.launch(1, 1, [&] { overlap_quiet(); });
        // The next round was enqueued before the host has learned of that.
        it.launch(1, 32, [&] { overlap_begin(it.plan(), nullptr, 0); });
        expect(it.plan()->signalled == 0, "what copy engines would signal in the next round", it.me, 2);
        moves();
        expect(word == 7 && to[0] == 0, "a word that was set, or bytes that were moved", it.me, 1);
        if (it.me == 0) {
            expect(it.report[0] == SYMRAIL_GIVEN_UP_LATE && it.report[1] == 1, "who is late", it.me, 1);
        } else {
            expect(it.report[0] == SYMRAIL_GIVEN_UP_BY_PEER, "why a wait has ended", it.me, 1);
            expect(it.heap[63] == (1ull | 2ull << 32), "who has given up, and for whom", it.me, 1);
        }
    });
    expect(ranks[1].heap[63] == (1ull | 2ull << 32) && ranks[1].heap[6] == 0, "what the late rank learned", 1, 1);
    expect(ranks[1].heap[8] == 0 && ranks[1].heap[9] == 0, "what the late rank got", 1, 1);
}

// A put that the proxy cannot perform: the rank gives up, and sets no word.
static void put_fails() {
    auto ranks = ranks_of(3, 64, 63);
    Rank& it = ranks[0];
    char from[16] = "moved bytes";
    for (bool fails : {false, true}) {
        it.asked->fails = fails;
        it.launch(1, 32, [&] { overlap_begin(it.plan(), nullptr, 0); });
        it.launch(1, 1, [&] { overlap_put_proxied(it.plan(), (char*)it.base() + 8 * 8, from, 16, 1); });
        it.launch(1, 1, [&] { overlap_signal(it.plan(), 6, 1); });
        expect(ranks[1].heap[6] == 1 && memcmp(&ranks[1].heap[8], from, 16) == 0, "a put and its word", 0, 1 + fails);
    }
    expect(it.report[0] == SYMRAIL_GIVEN_UP_LATE && it.report[1] == 1, "who lacks a put", 0, 2);
    for (int pe : {1, 2}) expect(ranks[pe].heap[63] == (1ull | 2ull << 32), "what others learn of a failed put", pe, 2);
}

// A failure that comes during a copy or a put: one block copies less, and others, the last one among them, all of
// theirs.
static void late_in_between(bool copies) {
    const size_t STEP = OVERLAP_STEP, BYTES = BLOCKS * STEP + 128 * BLOCKS;
    auto ranks = ranks_of(2, 64, 63);
    Rank& it = ranks[0];
    std::vector<char> from(BYTES, 1), to(BYTES + 16);
    overlap_pair pair = {};
    symrail_u64 word = 0;
    // The first block's bytes set the word by which ranks give up.
    it.plan()->alarm.stop = ((symrail_u64)to.data() + 15) & ~15ull;
    it.heap[0] = 1, it.plan()->signalled = 1;
    // One after the other.
    for (unsigned b : {1, 0, 2}) {
        if (b == 2) *(symrail_u64*)it.plan()->alarm.stop = 0;
        it.launch(1, THREADS, [&] {
            blockIdx.x = b, gridDim.x = BLOCKS;
            symrail_u64 set = (symrail_u64)&word;
            if (copies) overlap_copy(it.plan(), &pair.sent, &pair.put, 0, to.data(), from.data(), BYTES, set, 1);
            else overlap_send(it.plan(), to.data(), from.data(), BYTES, set);
        });
    }
    size_t moved = std::count(to.begin() + 16, to.end(), 1);
    expect(word == 0 && moved < BYTES - 16, "a word behind bytes that are missing", copies, moved);
    expect(moved > BYTES - STEP, "what was copied before the failure", copies, moved);
    expect(pair.put == 0 && it.plan()->copied == 0, "blocks that are still counted", copies, 1);
}

// The same in rounds of one kernel, and in copies: after the failed wait the rank sets no words and sends no packets.
static void late_in_a_kernel() {
    enum { GATHER_PACKETS, RECEIVE, PACKETS_SENT, GATHER, REDUCE, PUT, OFFER, READY, KINDS };
    for (int kind = 0; kind < KINDS; kind++) {
        const size_t PACKETS_AT = 8 * 64, TURN = 8 * (OVERLAP_PACKET_HEADS * 2 + 64);
        auto ranks = ranks_of(2, 64 + 2 * TURN / 8 + OVERLAP_SLOTS * OVERLAP_SLOT_BYTES / 8, 63);
        Rank& it = ranks[0];
        it.timeout = SOON;
        alignas(16) char own[64] = "bytes that no rank may get", all[128] = "others", out[64] = {};
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
        // A rank that is not ready may still read what would be overwritten.
        bool waits_first = kind == GATHER || kind == REDUCE || kind == PUT;
        for (size_t i = 0; waits_first && i < 8; i++)
            expect(ranks[1].heap[PACKETS_AT / 8 + i] == 0, "bytes that a rank gets that was not ready", kind, i);
        std::vector<symrail_u64> before = ranks[1].heap;
        go();
        expect(ranks[1].heap == before, "what who has given up tells and sends", kind, 2);
    }
}
