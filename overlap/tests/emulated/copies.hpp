// Copies between two ranks: by a put and by a get, in each form of point_to_point.rs.
#pragma once
#include "ranks.hpp"

#include <list>

// Packets; one kernel; a copy engine, which copies data and word; the proxy, for a rank that the device does not reach.
enum Form { PACKETS, KERNEL, ENGINE, PROXY };

// Puts in each round and gets in some, with other bytes each time and to another place.
static void copies(size_t bytes, const std::vector<Form>& puts, const std::vector<Form>& gets) {
    const symrail_u64 ROUNDS = 40, OFTEN = 3;
    size_t words = 32, slots = 8 * words, pitch = (bytes / 8 + 2) * 8;
    symrail_u64 place = slots + OVERLAP_SLOTS * OVERLAP_SLOT_BYTES;
    auto ranks = ranks_of(2, (place + (2 * ROUNDS + 2) * pitch) / 8 + 1, 31);
    on_all(ranks, [&](Rank& it) {
        unsigned me = it.me, other = 1 - me;
        overlap_pair p = {};
        symrail_u64 base = it.base(), apart = it.apart[other];
        bool far = puts[0] == PROXY;
        std::vector<unsigned char> mine(bytes + 1);
        std::list<std::vector<unsigned char>> kept;
        auto one = [&](const std::function<void()>& kernel) { it.launch(1, 1, kernel); };
        for (symrail_u64 round = 1; round <= ROUNDS; round++) {
            // The sender may be ahead, so each round has a place of its own. Some places are unaligned.
            char* to = (char*)base + place + round * pitch + round % 5;
            const char* of = (const char*)base + place + (ROUNDS + round) * pitch;
            for (size_t i = 0; i < bytes; i++) ((unsigned char*)of)[i] = mine[i] = (unsigned char)mix(round, me, i);
            be_late(mix(round, me, 5));
            Form put = puts[mix(round, 7, 7) % puts.size()], get = gets[mix(round, 8, 8) % gets.size()];
            bool gets_now = round % OFTEN == 0;
            if (me == 0) {
                const char* from = (const char*)mine.data();
                if (put == PACKETS)
                    it.launch(1, THREADS, [&] {
                        overlap_packets(it.plan(), &p.sent, 0, base + apart + slots, from, bytes,
                                        (symrail_u64)to - base, 1);
                    });
                if (put == KERNEL)
                    it.launch(round % 2 == 0 ? BLOCKS : 1, THREADS, [&] {
                        overlap_copy(it.plan(), &p.sent, &p.put, 0, to + apart, from, bytes, base + apart + 8, 1);
                    });
                if (put == ENGINE || put == PROXY)
                    one([&] { overlap_ready(it.plan(), &p.sent, &p.counted_put, 0, 1); });
                if (put == ENGINE) {
                    memcpy(to + apart, from, bytes);
                    symrail_st_sys(base + apart + 8, p.counted_put);
                }
                if (put == PROXY) {
                    kept.push_back(mine);
                    one([&] { proxy->put({to + apart, kept.back().data(), bytes, 0, 0, 0}); });
                    one([&] { overlap_signal_count(it.plan(), &p.counted_put, 1, 1); });
                }
                std::fill(mine.begin(), mine.end(), 0);
                if (gets_now && get == KERNEL)
                    it.launch(BLOCKS, THREADS, [&] {
                        overlap_copy(it.plan(), &p.fetched, &p.got, 2, to, of + apart, bytes, base + apart + 24, 1);
                    });
                if (gets_now && get != KERNEL) {
                    one([&] { overlap_ready(it.plan(), &p.fetched, &p.counted_got, 2, 1); });
                    memcpy(to, of + apart, bytes);
                    if (get == ENGINE) symrail_st_sys(base + apart + 24, p.counted_got);
                    else one([&] { overlap_signal_count(it.plan(), &p.counted_got, 3, 1); });
                }
            } else {
                be_late(4 * mix(round, me, 6));
                it.launch(1, THREADS, [&] {
                    overlap_receive(it.plan(), &p.received, far ? 0 : base + apart, 0, 1, base + slots, 0);
                });
                // The offered bytes do not change before the other rank has fetched them.
                if (gets_now)
                    one([&] { overlap_offer(it.plan(), &p.offered, far ? 0 : base + apart + 16, 2, 3, 0); });
                if (gets_now) memset((char*)of, 0, bytes);
            }
            for (size_t i = 0; i < bytes && (me == 1 || gets_now); i++)
                expect((unsigned char)to[i] == (unsigned char)mix(round, other, i), "a byte that was copied", me,
                       round);
            expect(it.report[0] == 0 && p.put == 0 && p.got == 0, "a copy that is not counted", me, round);
        }
        one([&] { overlap_quiet(); });
        expect(p.sent + p.received == ROUNDS && p.fetched + p.offered == ROUNDS / OFTEN, "copies that are not counted",
               me, ROUNDS);
    });
}
