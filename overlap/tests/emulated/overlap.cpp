// Products and copies between ranks, with the kernels of cu/ on threads of this machine. Prints the errors that it
// finds.
#include "ranks.hpp"

#include "copies.hpp"
#include "late.hpp"

// Gathers rows of numbers with one kernel, in many rounds.
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

// Gathers rows with packets.
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

// Reduces the products of all ranks. Each rank sums its rows.
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

// Reduces with packets: each rank sums what the others have sent, starting with the rank before it, and its own
// product.
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
            symrail_u64 from = first[to] * pitch;
            parts.push_back({at + it.apart[to], from, rows[to] * pitch, sender, at, 0, rows[me] * pitch, 0});
        }
        // Sums depend on their order, and the test compares them exactly.
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

// A round of steps: a word that a rank sets at the others, copies followed by a word, and the waits for them.
static void steps(unsigned n) {
    size_t words = 64, bytes = 4000;
    auto ranks = ranks_of(n, words + n * bytes / 8, 63);
    on_all(ranks, [&](Rank& it) {
        unsigned me = it.me;
        std::vector<overlap_first_wait> waits;
        for (unsigned rank = 0; rank < n; rank++)
            if (rank != me) waits.push_back({rank, rank});
        std::vector<unsigned char> own(bytes);
        for (symrail_u64 round = 1; round <= 50; round++) {
            for (size_t i = 0; i < bytes; i++) own[i] = (unsigned char)mix(round, me, i);
            be_late(mix(round, me, 3));
            it.launch(1, 32, [&] { overlap_begin(it.plan(), waits.data(), n - 1); });
            for (unsigned d = 1; d < n; d++) {
                unsigned to = (me + d) % n;
                char* at = (char*)it.base() + 8 * words + me * bytes;
                char* there = at + it.apart[to];
                const char* from = (const char*)own.data();
                symrail_u64 word = n + me, word_there = it.base() + it.apart[to] + 8 * word;
                be_late(mix(round, me, 4 + d));
                if (d % 2 == 1)
                    it.launch(BLOCKS, THREADS, [&] { overlap_send(it.plan(), there, from, bytes, word_there); });
                else
                    it.launch(1, 1, [&] { overlap_put_nbi(it.plan(), at, from, bytes, word, to, round % 2); });
            }
            it.launch(1, 1, [&] { overlap_quiet(); });
            for (unsigned rank = 0; rank < n; rank++) {
                if (rank == me) continue;
                it.launch(1, 1, [&] { overlap_wait(it.plan(), n + rank, 0, rank); });
                const unsigned char* found = (const unsigned char*)it.base() + 8 * words + rank * bytes;
                for (size_t i = 0; i < bytes; i++)
                    expect(found[i] == (unsigned char)mix(round, rank, i), "a byte that was sent", me, round);
            }
            for (unsigned rank = 0; rank < n; rank++)
                if (rank != me) it.launch(1, 1, [&] { overlap_signal(it.plan(), me, rank); });
            expect(it.plan()->counted == round && it.report[0] == 0, "a round was not counted", me, round);
        }
    });
}

// With a fence between them, pieces arrive in the order of their requests, whatever order the proxy would choose.
static void pieces_in_order() {
    const unsigned PIECES = 4, BYTES = 64;
    for (symrail_u64 in_order = 0; in_order < 2; in_order++) {
        auto ranks = ranks_of(2, 64 + PIECES * BYTES / 8, 63);
        Rank& it = ranks[0];
        it.asked->lazy = true;
        std::vector<char> own(PIECES * BYTES, 7);
        it.launch(1, 32, [&] { overlap_begin(it.plan(), nullptr, 0); });
        for (unsigned i = 0; i < PIECES; i++)
            it.launch(1, 1, [&] {
                char* to = (char*)it.base() + 8 * 64 + i * BYTES;
                overlap_put_nbi(it.plan(), to, own.data() + i * BYTES, BYTES, i, 1, in_order);
            });
        for (unsigned i = 0; i < PIECES; i++) {
            it.asked->put_one();
            symrail_u64 next = in_order == 1 ? i : PIECES - 1 - i;
            bool has_come = ranks[1].heap[next] == 1 && ranks[1].heap[64 + next * BYTES / 8] != 0;
            expect(has_come, "the piece that comes", in_order, i);
        }
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
    pieces_in_order();
    for (size_t bytes : {8, 3, 0, 4091}) copies(bytes, {PACKETS, PACKETS, PACKETS, KERNEL}, {KERNEL});
    for (size_t bytes : {8, 10001}) copies(bytes, {KERNEL, ENGINE}, {KERNEL, ENGINE});
    copies(8, {PACKETS, KERNEL, ENGINE}, {ENGINE});
    for (size_t bytes : {8, 0, 10001}) copies(bytes, {PROXY}, {PROXY});
    late();
    late_in_a_kernel();
    put_fails();
    late_in_between(true);
    late_in_between(false);
    printf("well\n");
}
