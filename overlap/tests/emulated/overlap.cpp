// Runs the kernels of cu/ on threads of this machine: a thread for each thread of each block of each rank. Ranks are
// late at random. Prints what is wrong.
#include "device.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

struct Dim {
    unsigned x;
};
static thread_local Dim threadIdx, blockIdx, blockDim, gridDim;
#define __global__
#define __launch_bounds__(...)
static symrail_u64 atomicAdd(symrail_u64* at, symrail_u64 n) { return symrail_add_gpu((symrail_u64)at, n); }
#define SYMRAIL_SIGNAL_SET 9
static void symrailx_signal_op(symrail_u64* word, symrail_u64 value, int, int pe) {
    symrail_st_sys((symrail_u64)word + apart_of[pe], value);
}
static void symrail_putmem_signal_nbi(void* to, const void* from, size_t bytes, symrail_u64* word, symrail_u64 value,
                                      int op, int pe) {
    symrail_rma_proxied(SYMRAIL_OP_PUT, (symrail_u64)to, from, bytes, pe, false, false);
    symrailx_signal_op(word, value, op, pe);
}

#include "plan.cuh"

#include "overlap.cu"
#include "point_to_point.cu"

thread_local State symrail_state;
thread_local Threads* block;
thread_local symrail_u32 thread_rank, block_size;
thread_local const symrail_u64* apart_of;

static const symrail_u64 LATE = 20000000000ull;

static void expect(bool well, const char* what, symrail_u64 rank, symrail_u64 round) {
    if (well) return;
    printf("%s: rank %llu, round %llu\n", what, rank, round);
    fflush(stdout);
    _Exit(1);
}
static symrail_u64 mix(symrail_u64 a, symrail_u64 b, symrail_u64 c) {
    symrail_u64 sum = (a * 0x9e3779b97f4a7c15ull ^ b) * 0xff51afd7ed558ccdull ^ c;
    sum = (sum ^ sum >> 33) * 0xc4ceb9fe1a85ec53ull;
    return sum ^ sum >> 29;
}

// A rank: its symmetric heap, with the words in front, and its plan.
struct Rank {
    symrail_u64 me;
    std::vector<symrail_u64> heap, image, report, apart;
    symrail_u64 timeout = LATE;
    overlap_plan* plan() { return (overlap_plan*)image.data(); }
    symrail_u64 base() { return (symrail_u64)heap.data(); }

    void launch(unsigned blocks, unsigned threads, const std::function<void()>& kernel) {
        std::vector<std::thread> all;
        std::vector<Threads> each(blocks);
        for (unsigned b = 0; b < blocks; b++) {
            pthread_barrier_init(&each[b].barrier, nullptr, threads);
            for (unsigned t = 0; t < threads; t++)
                all.emplace_back([&, b, t] {
                    symrail_state = State{(int)me, timeout, 0};
                    block = &each[b], thread_rank = t, block_size = threads, apart_of = apart.data();
                    threadIdx.x = t, blockIdx.x = b, blockDim.x = threads, gridDim.x = blocks;
                    kernel();
                });
        }
        for (std::thread& one : all) one.join();
        for (Threads& one : each) pthread_barrier_destroy(&one.barrier);
    }
};
static std::vector<Rank> ranks_of(unsigned n, size_t heap_words, size_t plan_words) {
    std::vector<Rank> ranks(n);
    for (unsigned me = 0; me < n; me++) {
        Rank& it = ranks[me];
        it.me = me, it.heap.resize(heap_words), it.image.resize(OVERLAP_PES / 8 + n + 64 * n), it.report.resize(8);
        overlap_plan& plan = *it.plan();
        plan.words = it.base(), plan.round = (symrail_u64)&plan.counted;
        plan.alarm = {(symrail_u64)it.report.data(), it.base() + 8 * plan_words};
        plan.gone = plan_words, plan.pes = n;
        for (unsigned pe = 0; pe < n; pe++) it.image[OVERLAP_PES / 8 + pe] = pe;
    }
    for (Rank& it : ranks)
        for (Rank& other : ranks) it.apart.push_back(other.base() - it.base());
    return ranks;
}
static void on_all(std::vector<Rank>& ranks, const std::function<void(Rank&)>& work) {
    std::vector<std::thread> all;
    for (Rank& it : ranks) all.emplace_back([&] { work(it); });
    for (std::thread& one : all) one.join();
}
static void be_late(symrail_u64 seed) {
    timespec some = {0, (long)(seed % 4 == 0 ? seed / 4 % 2000000 : 0)};
    nanosleep(&some, nullptr);
}

static const unsigned BLOCKS = 3, THREADS = 4, MOST_BLOCKS = 5;
static symrail_u64 block_word(unsigned n, unsigned kind, unsigned rank) { return 1 + MOST_BLOCKS * (kind * n + rank); }

// Rows of numbers that move in one kernel, again and again.
template <class T>
static void gathers(const std::vector<unsigned>& rows, unsigned width) {
    unsigned n = rows.size(), all = 0;
    std::vector<unsigned> first;
    for (unsigned each : rows) first.push_back(all), all += each;
    size_t words = 64 + 1 + 2 * n * MOST_BLOCKS, pitch = width * sizeof(T);
    auto ranks = ranks_of(n, words + (all * pitch + 7) / 8 + 2, 0);
    on_all(ranks, [&](Rank& it) {
        unsigned me = it.me;
        std::vector<overlap_part> parts;
        for (unsigned d = 1; d < n; d++) {
            unsigned other = (me + d) % n;
            symrail_u64 there = it.base() + it.apart[other], at = 8 * words + first[me] * pitch;
            parts.push_back({other, it.base() + 8 * block_word(n, 0, other), it.base() + 8 * block_word(n, 1, other),
                             there + 8 * block_word(n, 0, me), there + 8 * block_word(n, 1, me), 0, there + at,
                             rows[me] * pitch});
        }
        std::vector<T> own(rows[me] * width + 1);
        for (symrail_u64 round = 1; round <= 20; round++) {
            for (size_t i = 0; i < rows[me] * width; i++) own[i] = (T)mix(round, first[me] * width + i, 1);
            be_late(mix(round, me, 2));
            it.launch(BLOCKS, THREADS, [&] {
                overlap_gather(it.plan(), parts.data(), n - 1, (symrail_u64)own.data(),
                               it.base() + 8 * words + first[me] * pitch, rows[me] * pitch);
            });
            expect(it.plan()->counted == round && it.report[0] == 0, "a round was not counted", me, round);
            const T* found = (const T*)(it.base() + 8 * words);
            for (size_t i = 0; i < all * width; i++)
                expect(found[i] == (T)mix(round, i, 1), "a number that was gathered", me, round);
        }
    });
}

// The same by packets.
static const size_t HEADS = 16 * OVERLAP_PACKET_HEADS;
template <class T>
static void gathers_packets(const std::vector<unsigned>& rows, unsigned width) {
    unsigned n = rows.size(), all = 0, largest = 0;
    std::vector<unsigned> first;
    for (unsigned each : rows) first.push_back(all), all += each, largest = each > largest ? each : largest;
    size_t pitch = width * sizeof(T), region = HEADS + (2 * largest * pitch + 31) / 16 * 16, turn = (n - 1) * region;
    size_t packets = 8 * 64, place = packets + 2 * turn;
    auto ranks = ranks_of(n, place / 8 + (all * pitch + 7) / 8 + 2, 0);
    on_all(ranks, [&](Rank& it) {
        unsigned me = it.me;
        std::vector<overlap_packed> parts;
        for (unsigned d = 1; d < n; d++) {
            unsigned to = (me + d) % n, sender = (me + n - d) % n;
            symrail_u64 at = it.base() + packets + (d - 1) * region;
            parts.push_back({at + it.apart[to], 0, rows[me] * pitch, sender, at,
                             it.base() + place + first[sender] * pitch, rows[sender] * pitch, 0});
        }
        std::vector<T> own(rows[me] * width + 1);
        for (symrail_u64 round = 1; round <= 40; round++) {
            for (size_t i = 0; i < rows[me] * width; i++) own[i] = (T)mix(round, first[me] * width + i, 1);
            be_late(mix(round, me, 2));
            it.launch(BLOCKS, THREADS, [&] {
                overlap_gather_packets(it.plan(), parts.data(), n - 1, (symrail_u64)own.data(),
                                       it.base() + place + first[me] * pitch, rows[me] * pitch, turn);
            });
            expect(it.plan()->counted == round && it.report[0] == 0, "a round was not counted", me, round);
            const T* found = (const T*)(it.base() + place);
            for (size_t i = 0; i < all * width; i++)
                expect(found[i] == (T)mix(round, i, 1), "a number that was gathered by packets", me, round);
        }
    });
}

// Products of all ranks, of which each sums its rows.
template <class N>
static void reduces(const std::vector<unsigned>& rows, unsigned width, bool together, bool has_bias,
                    void (*kernel)(overlap_plan*, const overlap_part*, symrail_u64, symrail_u64, const symrail_u64*,
                                   symrail_u64, symrail_u64, symrail_u64, symrail_u64, symrail_u64)) {
    typedef typename N::stored T;
    unsigned n = rows.size(), all = 0, largest = 0;
    std::vector<unsigned> first;
    for (unsigned each : rows) first.push_back(all), all += each, largest = each > largest ? each : largest;
    // Numbers begin at a multiple of 16 bytes.
    size_t words = (64 + 1 + 2 * n * MOST_BLOCKS + 1) / 2 * 2, pitch = width * sizeof(T);
    auto place = [&](unsigned distance) { return (all + (distance - 1) * largest) * width; };
    auto ranks = ranks_of(n, words + ((all + (n - 1) * largest) * pitch + 7) / 8 + 2, 0);
    on_all(ranks, [&](Rank& it) {
        unsigned me = it.me;
        symrail_u64 numbers = it.base() + 8 * words;
        std::vector<overlap_part> parts;
        std::vector<symrail_u64> places;
        for (unsigned d = 1; d < n; d++) {
            unsigned other = (me + d) % n;
            symrail_u64 there = it.base() + it.apart[other];
            parts.push_back({other, it.base() + 8 * block_word(n, 0, other), it.base() + 8 * block_word(n, 1, other),
                             there + 8 * block_word(n, 0, me), there + 8 * block_word(n, 1, me), first[other] * pitch,
                             there + 8 * words + place(d) * sizeof(T), rows[other] * pitch});
            places.push_back(place(d));
        }
        places.push_back(first[me] * width);
        auto value = [](symrail_u64 round, unsigned rank, size_t i) { return (float)(mix(round, rank, i) % 17) - 8; };
        std::vector<overlap_some<T>> out((rows[me] * width) / OVERLAP_TOGETHER + 1), bias(width / OVERLAP_TOGETHER + 1);
        for (unsigned i = 0; i < width; i++) ((T*)bias.data())[i] = N::store((float)i);
        for (symrail_u64 round = 1; round <= 20; round++) {
            for (size_t i = 0; i < all * width; i++) ((T*)numbers)[i] = N::store(value(round, me, i));
            be_late(mix(round, me, 2));
            it.launch(BLOCKS, THREADS, [&] {
                kernel(it.plan(), parts.data(), n - 1, numbers, places.data(), has_bias ? (symrail_u64)bias.data() : 0,
                       rows[me] * width, width, (symrail_u64)out.data(), together);
            });
            expect(it.plan()->counted == round && it.report[0] == 0, "a round was not counted", me, round);
            for (size_t i = 0; i < rows[me] * width; i++) {
                float sum = has_bias ? (float)(i % width) : 0;
                for (unsigned rank = 0; rank < n; rank++) sum += value(round, rank, first[me] * width + i);
                expect(N::load(((T*)out.data())[i]) == sum, "a sum", me, round);
            }
        }
    });
}

// The same by packets: the sum of what the others have sent, from the one before on, and of what this one has.
template <class N>
static void reduces_packets(const std::vector<unsigned>& rows, unsigned width, bool has_bias,
                            void (*kernel)(overlap_plan*, const overlap_packed*, symrail_u64, symrail_u64, symrail_u64,
                                           symrail_u64, symrail_u64, symrail_u64, symrail_u64, symrail_u64)) {
    typedef typename N::stored T;
    unsigned n = rows.size(), all = 0, largest = 0;
    std::vector<unsigned> first;
    for (unsigned each : rows) first.push_back(all), all += each, largest = each > largest ? each : largest;
    size_t pitch = width * sizeof(T), region = HEADS + (2 * largest * pitch + 31) / 16 * 16, turn = (n - 1) * region;
    size_t packets = 8 * 64;
    auto ranks = ranks_of(n, (packets + 2 * turn) / 8 + 2, 0);
    on_all(ranks, [&](Rank& it) {
        unsigned me = it.me;
        std::vector<overlap_packed> parts;
        for (unsigned d = 1; d < n; d++) {
            unsigned to = (me + d) % n, sender = (me + n - d) % n;
            symrail_u64 at = it.base() + packets + (d - 1) * region;
            parts.push_back({at + it.apart[to], first[to] * pitch, rows[to] * pitch, sender, at, 0, rows[me] * pitch, 0});
        }
        // Sums depend on their order, which is part of what is compared.
        auto value = [](symrail_u64 round, unsigned rank, size_t i) { return (float)(mix(round, rank, i) % 1000) / 7; };
        std::vector<T> product(all * width + 1), out(rows[me] * width + 1), bias(width);
        for (unsigned i = 0; i < width; i++) bias[i] = N::store((float)i);
        for (symrail_u64 round = 1; round <= 40; round++) {
            for (size_t i = 0; i < all * width; i++) product[i] = N::store(value(round, me, i));
            out.back() = N::store(7);
            be_late(mix(round, me, 2));
            it.launch(BLOCKS, THREADS, [&] {
                kernel(it.plan(), parts.data(), n - 1, (symrail_u64)product.data(),
                       (symrail_u64)product.data() + first[me] * pitch, has_bias ? (symrail_u64)bias.data() : 0,
                       rows[me] * width, width, (symrail_u64)out.data(), turn);
            });
            expect(it.plan()->counted == round && it.report[0] == 0, "a round was not counted", me, round);
            for (size_t i = 0; i < rows[me] * width; i++) {
                float sum = 0;
                for (unsigned d = 1; d <= n; d++) {
                    float one = N::load(N::store(value(round, (me + n - d) % n, first[me] * width + i)));
                    sum = d == 1 ? one : sum + one;
                }
                if (has_bias) sum += N::load(bias[i % width]);
                expect(N::load(out[i]) == N::load(N::store(sum)), "a sum by packets", me, round);
            }
            expect(N::load(out.back()) == 7, "what is behind the sums", me, round);
        }
    });
}

// A round of steps: a word that others are told, copies with a word behind, and what each waits for.
static void steps(unsigned n) {
    size_t words = 64, bytes = 4000;
    auto ranks = ranks_of(n, words + n * bytes / 8, 63);
    on_all(ranks, [&](Rank& it) {
        unsigned me = it.me;
        std::vector<symrail_u64> waits;
        for (unsigned rank = 0; rank < n; rank++)
            if (rank != me) waits.push_back(rank), waits.push_back(rank);
        std::vector<unsigned char> own(bytes);
        for (symrail_u64 round = 1; round <= 50; round++) {
            for (size_t i = 0; i < bytes; i++) own[i] = (unsigned char)mix(round, me, i);
            be_late(mix(round, me, 3));
            it.launch(1, 32, [&] { overlap_begin(it.plan(), waits.data(), n - 1); });
            for (unsigned d = 1; d < n; d++) {
                unsigned to = (me + d) % n;
                char* at = (char*)it.base() + 8 * words + me * bytes;
                char* there = at + it.apart[to];
                symrail_u64 word = n + me;
                be_late(mix(round, me, 4 + d));
                if (d % 2 == 1)
                    it.launch(BLOCKS, THREADS, [&] {
                        overlap_send(it.plan(), there, (const char*)own.data(), bytes, it.base() + it.apart[to] + 8 * word);
                    });
                else
                    it.launch(1, 1, [&] { overlap_ask(it.plan(), at, (const char*)own.data(), bytes, word, to); });
            }
            it.launch(1, 1, [&] { overlap_settle(); });
            for (unsigned rank = 0; rank < n; rank++) {
                if (rank == me) continue;
                it.launch(1, 1, [&] { overlap_wait(it.plan(), n + rank, 0, rank); });
                const unsigned char* found = (const unsigned char*)it.base() + 8 * words + rank * bytes;
                for (size_t i = 0; i < bytes; i++)
                    expect(found[i] == (unsigned char)mix(round, rank, i), "a byte that was sent", me, round);
            }
            for (unsigned rank = 0; rank < n; rank++)
                if (rank != me) it.launch(1, 1, [&] { overlap_tell(it.plan(), me, rank); });
            expect(it.plan()->counted == round && it.report[0] == 0, "a round was not counted", me, round);
        }
    });
}

// Puts one way and gets the other way, with other bytes each time: puts of few bytes by packets, some of more between.
static void copies(size_t bytes, bool packets) {
    size_t words = 32, slots = 8 * words, apart_rows = (bytes / 8 + 2) * 8;
    auto ranks = ranks_of(2, words + OVERLAP_SLOTS * OVERLAP_SLOT_BYTES / 8 + 2 + 80 * apart_rows / 8, 31);
    on_all(ranks, [&](Rank& it) {
        unsigned me = it.me, other = 1 - me;
        overlap_pair pair = {};
        auto& p = pair;
        symrail_u64 base = it.base(), apart = it.apart[other];
        symrail_u64 place = slots + OVERLAP_SLOTS * OVERLAP_SLOT_BYTES;
        std::vector<unsigned char> mine(bytes + 1);
        for (symrail_u64 round = 1; round <= 30; round++) {
            // The sender may be ahead: each round has a place of its own. Some begin anywhere.
            symrail_u64 to = base + place + round * apart_rows + round % 5;
            unsigned char* of = (unsigned char*)base + place + (40 + round) * apart_rows;
            for (size_t i = 0; i < bytes; i++) mine[i] = of[i] = (unsigned char)mix(round, me, i);
            be_late(mix(round, me, 5));
            // Rank 0 puts, then gets.
            if (me == 0) {
                if (packets && round % 13 != 0)
                    it.launch(1, THREADS, [&] {
                        overlap_packets(it.plan(), &p.sent, 0, base + apart + slots, (const char*)mine.data(), bytes,
                                        to - base, 1);
                    });
                else
                    it.launch(round % 2 == 0 ? BLOCKS : 1, THREADS, [&] {
                        overlap_copy(it.plan(), &p.sent, &p.put, 0, (char*)(to + apart), (const char*)mine.data(), bytes,
                                     base + apart + 8, 1);
                    });
                std::fill(mine.begin(), mine.end(), 0);
                if (round % 11 == 0)
                    it.launch(BLOCKS, THREADS, [&] {
                        overlap_copy(it.plan(), &p.fetched, &p.got, 2, (char*)to, (const char*)of + apart, bytes,
                                     base + apart + 24, 1);
                    });
            } else {
                be_late(4 * mix(round, me, 6));
                it.launch(1, THREADS, [&] {
                    overlap_receive(it.plan(), &p.received, round % 2 == 0 ? base + apart : 0, 0, 1, base + slots, 0);
                });
                if (round % 11 == 0)
                    it.launch(1, 1, [&] {
                        overlap_meet(it.plan(), &p.offered, round % 2 == 0 ? base + apart + 16 : 0, 2, 3, 0);
                    });
            }
            for (size_t i = 0; (me == 1 || round % 11 == 0) && i < bytes; i++)
                expect(((unsigned char*)to)[i] == (unsigned char)mix(round, other, i), "a byte that was copied", me, round);
            expect(it.report[0] == 0 && p.put == 0 && p.got == 0, "a copy that is not counted", me, round);
        }
        expect(p.sent + p.received == 30 && p.fetched + p.offered == 2, "copies that are not counted", me, 30);
    });
}

// Rank 1 does not come: rank 0 names it, tells nothing, and tells rank 2, whose wait ends then.
static void late() {
    auto ranks = ranks_of(3, 64, 63);
    ranks[0].timeout = 50000000;
    on_all(ranks, [&](Rank& it) {
        if (it.me == 1) return;
        it.launch(1, 32, [&] { overlap_begin(it.plan(), nullptr, 0); });
        it.launch(1, 1, [&] { overlap_wait(it.plan(), 5, 0, 1); });
        expect(it.plan()->telling == 0, "what copy engines would tell", it.me, 1);
        char from[16] = {}, to[16] = {};
        symrail_u64 word = 7;
        it.launch(BLOCKS, THREADS, [&] { overlap_send(it.plan(), to, from, 16, (symrail_u64)&word); });
        it.launch(1, 1, [&] { overlap_tell(it.plan(), 6, 1); });
        expect(word == 7, "a word that was told", it.me, 1);
        if (it.me == 0) {
            expect(it.report[0] == SYMRAIL_GIVEN_UP_LATE && it.report[1] == 1, "who is late", it.me, 1);
        } else {
            expect(it.report[0] == SYMRAIL_GIVEN_UP_TOLD, "why a wait has ended", it.me, 1);
            expect(it.heap[63] == (1ull | 2ull << 32), "who has given up, and for whom", it.me, 1);
        }
    });
    expect(ranks[1].heap[63] == (1ull | 2ull << 32) && ranks[1].heap[6] == 0, "what the late rank was told", 1, 1);
}

// Rank 1 does not come: packets of it are waited for so long, and none are sent after that.
static void late_packets() {
    for (int kind = 0; kind < 3; kind++) {
        auto ranks = ranks_of(2, 64 + 2 * (OVERLAP_PACKET_HEADS * 2 + 64) + OVERLAP_SLOTS * OVERLAP_SLOT_BYTES / 8, 63);
        Rank& it = ranks[0];
        it.timeout = 50000000;
        char own[64] = {}, all[128] = {};
        overlap_pair pair = {};
        symrail_u64 at = it.base() + 8 * 64, turn = 8 * (OVERLAP_PACKET_HEADS * 2 + 64);
        overlap_packed part = {at + it.apart[1], 0, 64, 1, at, (symrail_u64)all + 64, 64, 0};
        auto go = [&] {
            if (kind == 0)
                it.launch(BLOCKS, THREADS, [&] {
                    overlap_gather_packets(it.plan(), &part, 1, (symrail_u64)own, (symrail_u64)all, 64, turn);
                });
            else if (kind == 1)
                it.launch(1, THREADS, [&] {
                    overlap_receive(it.plan(), &pair.received, 0, 0, 1, at, 1);
                });
            else
                it.launch(1, THREADS, [&] {
                    overlap_packets(it.plan(), &pair.sent, 0, at + it.apart[1], own, 64, 0, 1);
                });
        };
        // A sender is ahead as far as there are slots.
        for (int i = 1; kind == 2 && i < OVERLAP_SLOTS; i++) go();
        expect(it.report[0] == 0, "a sender that waits without need", kind, 0);
        go();
        expect(it.report[0] == SYMRAIL_GIVEN_UP_LATE && it.report[1] == 1, "who is late with packets", kind, 1);
        expect(ranks[1].heap[63] == (1ull | 2ull << 32), "what the late rank was told of packets", kind, 1);
        std::vector<symrail_u64> before = ranks[1].heap;
        go();
        expect(ranks[1].heap == before, "packets of who has given up", kind, 2);
    }
}

int main() {
    gathers<unsigned char>({5, 7}, 33);
    gathers<unsigned>({40, 0, 13}, 8);
    gathers<unsigned short>({1, 1, 1, 0}, 1);
    reduces<symrail_bf16>({6, 5}, 16, true, true, overlap_reduce_bf16);
    reduces<symrail_f16>({3, 0, 9}, 7, false, true, overlap_reduce_f16);
    reduces<symrail_plain<float>>({20, 31}, 24, true, false, overlap_reduce_f32);
    gathers_packets<unsigned char>({5, 7}, 33);
    gathers_packets<unsigned>({40, 0, 13}, 8);
    gathers_packets<unsigned short>({1, 1, 1, 0}, 1);
    reduces_packets<symrail_bf16>({6, 5}, 16, true, overlap_reduce_packets_bf16);
    reduces_packets<symrail_f16>({3, 0, 9}, 7, true, overlap_reduce_packets_f16);
    reduces_packets<symrail_plain<float>>({20, 31, 5}, 23, false, overlap_reduce_packets_f32);
    steps(2);
    steps(3);
    copies(8, true);
    copies(3, true);
    copies(0, true);
    copies(4091, true);
    copies(8, false);
    copies(10001, false);
    late();
    late_packets();
    printf("well\n");
}
