// Runs cu/low_latency.cu on threads, against tokens and sums that are made one after the other. Prints what is wrong.
#include "../../cu/low_latency.cu"

struct shape {
    symrail_u64 ranks, most, share, k, hidden;
};

static std::vector<long long> slots_of(const shape& s, symrail_u64 rank, symrail_u64 round, symrail_u64& tokens) {
    tokens = mix({rank, round, 1}) % 4 == 0 ? 0 : mix({rank, round, 2}) % s.most + 1;
    std::vector<long long> slots(tokens * s.k);
    for (symrail_u64 i = 0; i < slots.size(); i++)
        slots[i] = (long long)(mix({rank, round, i, 3}) % (s.ranks * s.share + 1)) - 1;
    return slots;
}
// A number that bfloat16 has: of a token, or of what an expert makes of it.
static float number_of(symrail_u64 rank, symrail_u64 round, symrail_u64 slot, symrail_u64 i) {
    return (float)((int)(mix({rank, round, slot, i}) % 255) - 127) * 0.25f;
}

static void expect(bool well, const char* what) {
    if (!well) fail(what);
}

static void rounds(const shape& s, char* heap) {
    const unsigned THREADS = 64;
    symrail_u64 me = job.me, room = s.ranks * s.most, slots = s.most * s.k, bytes = 2 * s.hidden;
    parameters p = {};
    p.ranks = s.ranks, p.me = me, p.share = s.share, p.k = s.k, p.most = s.most, p.hidden = s.hidden;
    p.parts = std::min<symrail_u64>(4, s.most), p.back_rows = 2 * slots;
    char* next = heap;
    auto take = [&](symrail_u64 size) {
        char* at = next;
        next += (size + 127) / 128 * 128;
        expect(next <= heap + job.heap_bytes, "the test's heap is too small");
        return (symrail_u64)at;
    };
    symrail_u64 parts = 2 * s.ranks * p.parts;
    p.in = take(parts * part_bytes(p)), p.out = take(parts * part_bytes(p)), p.words = take(8 * parts);
    p.back = take(2 * p.back_rows * bytes), p.back_words = take(8 * (2 * slots + s.ranks * p.parts));
    p.back_out = take(s.ranks * s.most * std::min(s.k, s.share) * bytes);
    symrail_u64 over = 0;
    std::vector<symrail_u32> masks(s.ranks), late(s.ranks), far(s.ranks), back_numbers(slots), ready(s.ranks * p.parts);
    std::vector<symrail_u64> numbers(s.share * room), places(s.share * room), sources(s.share * room);
    symrail_u64 n_far = 0;
    for (symrail_u64 rank = 0; rank < s.ranks; rank++) n_far += far[rank] = symrail_ptr(heap, rank) == nullptr;
    p.rounds = (symrail_u64)&over, p.masks = (symrail_u64)masks.data(), p.far = (symrail_u64)far.data();
    p.late = (symrail_u64)late.data();
    p.back_numbers = (symrail_u64)back_numbers.data(), p.numbers = (symrail_u64)numbers.data(), p.ready = (symrail_u64)ready.data();
    std::vector<uint4> rows(s.share * room * bytes / 16), made(rows.size());
    std::vector<int> counts(s.share);
    for (symrail_u64 round = 0; round < 4; round++) {
        symrail_u64 tokens;
        std::vector<long long> topk = slots_of(s, me, round, tokens);
        std::vector<unsigned short> x(s.most * s.hidden + 8);
        std::vector<uint4> aligned(x.size() / 8 + 1), out(s.most * bytes / 16);
        for (symrail_u64 i = 0; i < tokens * s.hidden; i++) x[i] = to_bf16(number_of(me, round, i / s.hidden, i % s.hidden));
        memcpy(aligned.data(), x.data(), x.size() * 2);
        std::vector<float> weights(tokens * s.k);
        for (symrail_u64 i = 0; i < weights.size(); i++) weights[i] = number_of(me, round, i, 4000);
        symrail_u64 puts = job.puts;
        launch(s.ranks * p.parts, THREADS, [&] { ep_send_dispatch(&p, (unsigned short*)aligned.data(), topk.data(), tokens); });
        expect(job.puts - puts == n_far * p.parts, "a dispatch has one request for each part");
        launch(s.share, THREADS, [&] {
            ep_receive_dispatch(&p, (char*)rows.data(), nullptr, counts.data(), sources.data(), places.data());
        });
        symrail_u64 far_rows = 0;
        for (symrail_u64 local = 0; local < s.share; local++) {
            symrail_u64 row = local * room;
            for (symrail_u64 rank = 0; rank < s.ranks; rank++) {
                symrail_u64 its_tokens;
                std::vector<long long> its = slots_of(s, rank, round, its_tokens);
                for (symrail_u64 token = 0; token < its_tokens; token++)
                    for (symrail_u64 slot = token * s.k; slot < (token + 1) * s.k; slot++) {
                        if (its[slot] != (long long)(me * s.share + local) || !is_first(its.data(), slot, s.k)) continue;
                        expect(sources[row] == (rank << 32 | slot), "a source");
                        const unsigned short* found = (const unsigned short*)rows.data() + row * s.hidden;
                        unsigned short* to = (unsigned short*)made.data() + row * s.hidden;
                        for (symrail_u64 i = 0; i < s.hidden; i++) {
                            expect(low(found[i]) == number_of(rank, round, token, i), "a row");
                            to[i] = to_bf16(number_of(its[slot] + 100, round, rank * 1000 + slot, i));
                        }
                        far_rows += far[rank];
                        row++;
                    }
            }
            expect(counts[local] == (int)(row - local * room), "a count");
        }
        puts = job.puts;
        launch(s.share * 2, THREADS, [&] { ep_send_combine(&p, (char*)made.data(), counts.data(), sources.data(), 2); });
        expect(job.puts - puts <= std::min(n_far * p.parts, far_rows), "a combine has one request for each part at most");
        if (tokens > 0) launch(tokens, THREADS, [&] { ep_receive_combine(&p, topk.data(), weights.data(), (char*)out.data()); });
        launch(1, 1, [&] { ep_end_round(&p); });
        for (symrail_u64 i = 0; i < tokens * s.hidden; i++) {
            float sum = 0;
            for (symrail_u64 slot = i / s.hidden * s.k; slot < (i / s.hidden + 1) * s.k; slot++) {
                symrail_u64 first = i / s.hidden * s.k;
                while (topk[first] != topk[slot]) first++;
                if (topk[slot] >= 0)
                    sum += low(to_bf16(number_of(topk[slot] + 100, round, me * 1000 + first, i % s.hidden))) * weights[slot];
            }
            expect(((unsigned short*)out.data())[i] == to_bf16(sum), "a sum");
        }
    }
}

int main() {
    int failures = 0;
    for (int mapped : {0, 1, 2})
        for (const shape& s : {shape{1, 3, 2, 2, 16}, {2, 1, 3, 1, 8}, {3, 10, 2, 5, 24}, {4, 6, 2, 9, 16}}) {
            auto is_mapped = [=](int a, int b) { return mapped == 0 || (mapped == 2 && a / 2 == b / 2); };
            if (on_all(s.ranks, 4 << 20, is_mapped, [&](char* heap) { rounds(s, heap); })) continue;
            printf("%llu ranks, %llu tokens, mapped %d\n", s.ranks, s.most, mapped);
            failures++;
        }
    printf(failures == 0 ? "well\n" : "%d failures\n", failures);
    return failures != 0;
}
