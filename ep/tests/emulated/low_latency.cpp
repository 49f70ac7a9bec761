// Runs cu/low_latency.cu on threads and compares the results with tokens and sums from serial code. Prints errors.
// Blocks run one after the other, so that the first one waits for no other block.
#include <algorithm>

#define COPYING_BLOCKS 1
#include "../../cu/low_latency.cu"

struct shape {
    symrail_u64 ranks, most, share, k, hidden, fp8 = 0;
    enum { ANY, ALL_FOR_ONE, FEW_EXPERTS } routing = ANY;
};

// The value of a non-negative e4m3 number. `nearest_e4m3` finds the nearest one to a value among all, ties to even.
static float of_e4m3(int bits) {
    int power = bits >> 3, part = bits & 7;
    return power == 0 ? std::ldexp((float)part, -9) : std::ldexp((float)(8 + part), power - 10);
}
static int nearest_e4m3(float value) {
    static const std::vector<float> all = [] {
        std::vector<float> made;
        for (int bits = 0; bits < 0x7f; bits++) made.push_back(of_e4m3(bits));
        return made;
    }();
    float size = std::fabs(value);
    // Numbers ascend with their bits.
    int above = std::min<int>(std::lower_bound(all.begin(), all.end(), size) - all.begin(), 0x7e), found = above;
    if (above > 0) {
        float down = size - all[above - 1], up = all[above] - size;
        if (down < up || (down == up && above % 2 == 1)) found = above - 1;
    }
    return found | (std::signbit(value) ? 0x80 : 0);
}

static std::vector<long long> slots_of(const shape& s, symrail_u64 rank, symrail_u64 round, symrail_u64& tokens) {
    tokens = mix({rank, round, 1}) % 4 == 0 ? 0 : mix({rank, round, 2}) % s.most + 1;
    std::vector<long long> slots(tokens * s.k);
    for (symrail_u64 i = 0; i < slots.size(); i++)
        slots[i] = (long long)(mix({rank, round, i, 3}) % (s.ranks * s.share + 1)) - 1;
    for (symrail_u64 i = 0; i < slots.size(); i++) {
        if (s.routing == shape::ALL_FOR_ONE) slots[i] = s.ranks * s.share - 1;
        if (s.routing == shape::FEW_EXPERTS) slots[i] %= 3;
    }
    return slots;
}
// A number that bfloat16 represents exactly: of a token, or of an expert's result.
static float number_of(symrail_u64 rank, symrail_u64 round, symrail_u64 slot, symrail_u64 i) {
    return (float)((int)(mix({rank, round, slot, i}) % 255) - 127) * 0.25f;
}

// An element of an expert's result for a slot. In each second element the results of different ranks cancel each other,
// but for small ones, which only the right order of the ranks keeps or drops.
// Sums of some groups are below 1, so that they can be encoded.
static float result_of(const shape& s, long long expert, symrail_u64 rank, symrail_u64 round, symrail_u64 slot, symrail_u64 i) {
    static const float large[3] = {0x1p25f, 1.0f, -0x1p25f};
    float scale = (slot / s.k / 2 + i / GROUP_ELEMENTS) % 2 == 0 ? 0x1p-60f : 1.0f;
    return scale * (i % 2 == 1 ? large[(symrail_u64)expert / s.share % 3] : number_of(expert + 100, round, rank * 1000 + slot, i));
}
// What becomes of a row of bfloat16 that is encoded where it can be.
static void there_and_back(std::vector<float>& row) {
    static const std::vector<float> logs = [] {
        std::vector<float> made;
        for (symrail_u32 i = 0; i < 128; i++) made.push_back(log2_of_mantissa(1.0f + i / 128.0f));
        return made;
    }();
    for (symrail_u64 first = 0; first < row.size(); first += GROUP_ELEMENTS) {
        symrail_u64 end = std::min<symrail_u64>(first + GROUP_ELEMENTS, row.size());
        symrail_u32 largest = 0, smallest = 0x7fff;
        for (symrail_u64 i = first; i < end; i++) {
            symrail_u32 size = to_bf16(std::fabs(row[i]));
            largest = std::max(largest, size), smallest = std::min(smallest, size);
        }
        log_scale scale;
        if (!scale_of(logs.data(), largest, smallest, scale)) continue;
        for (symrail_u64 i = first; i < end; i += 8) {
            symrail_u32 two[4], last;
            for (int j = 0; j < 4; j++) two[j] = to_bf16(row[i + 2 * j]) | to_bf16(row[i + 2 * j + 1]) << 16;
            symrail_u64 codes = codes_of(logs.data(), scale, two, last);
            for (int j = 0; j < 8; j++)
                row[i + j] = value_of(scale, j < 6 ? codes >> (10 * j) & 0x3ff : j == 6 ? codes >> 60 | (last & 0x3f) << 4 : last >> 6);
        }
    }
}

// Magnitudes of weights differ widely, so that the order of a sum affects its bits. Those of each second token are 1.
static float weight_of(const shape& s, symrail_u64 rank, symrail_u64 round, symrail_u64 slot) {
    if (slot / s.k % 2 == 1) return 1.0f;
    return number_of(rank, round, slot, 4000) * (float)(1 << mix({rank, round, slot, 4001}) % 24);
}

// Whether a slot is the token's first one with its expert: a token that names an expert twice has one row.
static bool is_first(const long long* topk, symrail_u64 slot, symrail_u64 k) {
    symrail_u64 before = slot / k * k;
    while (topk[before] != topk[slot]) before++;
    return before == slot;
}

static void expect(bool well, const char* what) {
    if (!well) fail(what);
}

static const unsigned THREADS = 64;
// With 2,048 experts each expert has one block, which has little work.
static unsigned threads_of(const shape& s) { return s.share > 500 ? 32 : THREADS; }

// A barrier of the ranks, independent of the kernels, for at most 2 minutes.
static std::atomic<int>* met;
static void meet(int many) {
    symrail_u64 end = symrail_now() + 120000000000ull;
    for (int now = (*met += 1); *met < (now + many - 1) / many * many; sched_yield())
        if (symrail_now() > end) fail("a rank does not come to where the others are");
}

// Whether a row is this token as FP8, with its scales.
static bool is_cast(const unsigned char* row, const std::vector<float>& scales, const std::vector<float>& token, bool power_of_two) {
    for (symrail_u64 first = 0; first < token.size(); first += 128) {
        symrail_u64 end = std::min<symrail_u64>(first + 128, token.size());
        float most = 1e-4f;
        for (symrail_u64 i = first; i < end; i++) most = std::max(most, std::fabs(token[i]));
        float factor = most / 448.0f, inverse = 448.0f / most;
        if (power_of_two) factor = std::exp2(std::ceil(std::log2(factor))), inverse = 1.0f / factor;
        if (scales[first / 128] != factor) return false;
        for (symrail_u64 i = first; i < end; i++)
            if (row[i] != nearest_e4m3(token[i] * inverse)) return false;
    }
    return true;
}

// The memory of a rank, and the kernels of a round.
struct buffers {
    const shape& s;
    parameters p = {};
    // The number of units of each expert and of each token. The number of blocks is a third of that of the units.
    symrail_u64 blocks = 2;
    static symrail_u64 in_turns(symrail_u64 units) { return (units + 2) / 3; }
    // Two groups of ranks. In one round each group has masked the other.
    static bool group(symrail_u64 rank) { return rank == 1 || (rank > 1 && mix({rank, 6}) % 2 == 1); }
    void set_apart(bool apart) {
        for (symrail_u64 rank = 0; rank < s.ranks; rank++) masks[rank] = apart && group(rank) != group(job.me);
    }
    std::vector<symrail_u32> masks, far, back_numbers, ready, lost;
    std::vector<symrail_u64> late, places, notes;
    std::vector<int> sources, all_counts;
    std::vector<long long> ranges;
    // The numbers of two dispatches.
    symrail_u64 numbers[2] = {};
    // Whether combines encode rows.
    bool encodes = false;
    std::vector<uint4> rows, made, out, own_in, own_back;
    std::vector<int> counts;
    std::vector<float> scales;

    buffers(const shape& s, char* heap) : s(s), masks(s.ranks), far(s.ranks), lost(s.ranks), late(s.ranks), counts(s.share) {
        symrail_u64 room = s.ranks * s.most, slots = s.most * s.k, bytes = 2 * s.hidden;
        if (s.share > 500) blocks = 1;
        p.ranks = s.ranks, p.me = job.me, p.share = s.share, p.k = s.k, p.most = s.most, p.hidden = s.hidden;
        p.parts = std::min<symrail_u64>(4, s.most);
        // Rows of bfloat16 are the longest.
        p.part = 16 + part_rows(p) * row_bytes(p);
        char* next = heap;
        auto take = [&](symrail_u64 size) {
            char* at = next;
            next += (size + 127) / 128 * 128;
            expect(next <= heap + job.heap_bytes, "the test's heap is too small");
            return (symrail_u64)at;
        };
        symrail_u64 parts = 2 * s.ranks * p.parts, back = s.ranks * back_rows(p);
        p.heap.incoming = take(parts * p.part), p.heap.outgoing = take(parts * p.part), p.heap.words = take(8 * parts);
        p.heap.back = take(2 * back * bytes), p.heap.back_words = take(8 * (2 * back + s.ranks * p.parts + s.ranks));
        p.heap.back_out = take(back * bytes), p.heap.weights = take(16 * s.ranks * slots), p.heap.weights_out = take(8 * slots);
        p.heap.left = take(8 * s.ranks);
        p.heap.formats = take(up16(8 * s.ranks) + 2 * back * up16(4 + 4 * group_words(p)));
        back_numbers.resize(2 * slots), ready.resize(s.ranks * p.parts);
        places.resize(2 * s.ranks * slots), sources.resize(s.share * room);
        scales.resize(s.share * room * ((s.hidden + FP8_GROUP - 1) / FP8_GROUP));
        ranges.resize(s.share * s.ranks), all_counts.resize(s.share);
        rows.resize(s.share * room * bytes / 16), made.resize(rows.size()), out.resize(s.most * bytes / 16);
        for (symrail_u64 rank = 0; rank < s.ranks; rank++) p.has_far |= far[rank] = symrail_ptr(heap, rank) == nullptr;
        p.masks = (symrail_u64)masks.data(), p.far = (symrail_u64)far.data();
        p.late = (symrail_u64)late.data(), p.lost = (symrail_u64)lost.data(), p.ready = (symrail_u64)ready.data();
        own_in.resize(2 * (1 + s.ranks) * p.parts * p.part / 16), own_back.resize(back_rows(p) * bytes / 16), notes.resize(s.ranks * (5 * p.parts + 2) + 1);
        p.own_in = (symrail_u64)own_in.data(), p.own_back = (symrail_u64)own_back.data(), p.notes = (symrail_u64)notes.data();
        p.back_numbers = (symrail_u64)back_numbers.data(), p.places = (symrail_u64)places.data();
    }
    void send_dispatch(const void* x, const long long* topk, symrail_u64 tokens, symrail_u64 kind) {
        launch(s.ranks * p.parts, THREADS, [&] { ep_send_dispatch(&p, (const unsigned short*)x, topk, tokens, kind); });
    }
    void receive_dispatch(bool packs = false, symrail_u64* waits = nullptr) {
        symrail_u64& number = numbers[(p.received + 1) % 2];
        launch(in_turns(s.share * blocks), threads_of(s), [&] {
            ep_receive_dispatch(&p, (char*)rows.data(), scales.data(), counts.data(), sources.data(), ranges.data(), &number,
                                packs, all_counts.data(), waits, blocks);
        });
    }
    void dispatch(const void* x, const long long* topk, symrail_u64 tokens, symrail_u64 kind, bool packs, symrail_u64* waits) {
        symrail_u64& number = numbers[(p.received + 1) % 2];
        launch(in_turns(s.share * blocks), threads_of(s), [&] {
            ep_dispatch(&p, (const unsigned short*)x, topk, tokens, kind, (char*)rows.data(), scales.data(), counts.data(),
                        sources.data(), ranges.data(), &number, packs, all_counts.data(), waits, blocks);
        });
        expect(p.tickets == 0, "tickets of a kernel that has ended");
    }
    void combine(const std::vector<uint4>& made, const float* weights, const long long* topk, symrail_u64 tokens, symrail_u64 of,
                 symrail_u64* waits) {
        launch(in_turns(s.ranks * s.most), THREADS, [&] {
            auto& kernel = encodes ? ep_combine_encoded : ep_combine;
            kernel(&p, (char*)made.data(), weights, tokens, &of, topk, (char*)out.data(), 2, waits);
        });
        expect(p.tickets == 0, "tickets of a kernel that has ended");
    }
    // `of`: the number of the dispatch.
    void send_combine(const std::vector<uint4>& made, const float* weights, symrail_u64 tokens, symrail_u64 of) {
        auto& kernel = encodes ? ep_send_combine_encoded : ep_send_combine;
        launch(3, THREADS, [&] { kernel(&p, (char*)made.data(), weights, tokens, &of); });
    }
    void receive_combine(const long long* topk, symrail_u64 tokens, bool ends, symrail_u64* waits = nullptr) {
        if (tokens > 0) {
            auto& kernel = encodes ? ep_receive_combine_encoded : ep_receive_combine;
            launch(in_turns(tokens * 2), THREADS, [&] { kernel(&p, topk, tokens, (char*)out.data(), 2, waits, ends); });
        } else if (ends) {
            end();
        }
    }
    void end() {
        launch(1, THREADS, [&] { ep_end_combine(&p); });
    }
};

static void rounds(const shape& s, char* heap) {
    buffers b(s, heap);
    parameters& p = b.p;
    symrail_u64 me = job.me, room = s.ranks * s.most;
    auto &far = b.far, &masks = b.masks;
    auto &counts = b.counts;
    auto &sources = b.sources;
    auto &rows = b.rows, &made = b.made, &out = b.out;
    // In jobs without far ranks some calls are one launch, on some of the ranks.
    auto together = [&](symrail_u64 call) { return !p.has_far && mix({me, call, 7}) % 2 == 1; };
    // The number of rows that encoding has changed.
    symrail_u64 changed = 0;
    for (symrail_u64 round = 0; round < 4; round++) {
        // Ranks that were masked may still be in an earlier round when the others include them again.
        if (round == 3) meet(s.ranks);
        b.set_apart(round == 2);
        symrail_u64 n_far = 0;
        for (symrail_u64 rank = 0; rank < s.ranks; rank++) n_far += far[rank] && !masks[rank];
        symrail_u64 tokens;
        std::vector<long long> topk = slots_of(s, me, round, tokens);
        std::vector<unsigned short> x(s.most * s.hidden + 8);
        std::vector<uint4> aligned(x.size() / 8 + 1);
        for (symrail_u64 i = 0; i < tokens * s.hidden; i++) x[i] = to_bf16(number_of(me, round, i / s.hidden, i % s.hidden));
        memcpy(aligned.data(), x.data(), x.size() * 2);
        std::vector<float> weights(tokens * s.k);
        for (symrail_u64 i = 0; i < weights.size(); i++) weights[i] = weight_of(s, me, round, i);
        // Kinds of rows alternate in the same memory. A dispatch is made twice.
        symrail_u64 kind = !s.fp8 || round == 2 ? BF16 : round == 1 ? FP8_POWER_OF_TWO : FP8, first = 2 * round + 1;
        bool fp8 = kind != BF16, packs = kind == FP8_POWER_OF_TWO;
        std::vector<symrail_u64> waits(s.ranks);
        for (symrail_u64 dispatch : {first, first + 1}) {
            symrail_u64 puts = job.puts;
            b.all_counts.assign(s.share, 100);
            if (together(dispatch)) {
                b.dispatch(aligned.data(), topk.data(), tokens, kind, packs, waits.data());
            } else {
                b.send_dispatch(aligned.data(), topk.data(), tokens, kind);
                expect(job.puts - puts == n_far * p.parts, "a dispatch has one request for each part");
                b.receive_dispatch(packs, waits.data());
            }
            expect(p.received == dispatch && b.numbers[dispatch % 2] == dispatch, "the number of a dispatch");
        }
        symrail_u64 of_row = (s.hidden + FP8_GROUP - 1) / FP8_GROUP, words = packs ? (of_row + 3) / 4 : of_row;
        auto scales_of = [&](symrail_u64 local, symrail_u64 row) {
            std::vector<float> found(of_row);
            for (symrail_u64 i = 0; i < of_row; i++) {
                const float* at = b.scales.data() + (local * words + (packs ? i / 4 : i)) * room + row;
                found[i] = packs ? std::ldexp(1.0f, ((const unsigned char*)at)[i % 4] - 127) : *at;
            }
            return found;
        };
        symrail_u64 far_rows = 0;
        for (symrail_u64 local = 0; local < s.share; local++) {
            symrail_u64 row = local * room;
            for (symrail_u64 rank = 0; rank < s.ranks; rank++) {
                symrail_u64 its_tokens, begin = row;
                symrail_u64 range = (symrail_u64)b.ranges[local * s.ranks + rank];
                expect(range >> 32 == row - local * room, "the first row of a rank");
                if (masks[rank]) continue;
                std::vector<long long> its = slots_of(s, rank, round, its_tokens);
                for (symrail_u64 token = 0; token < its_tokens; token++)
                    for (symrail_u64 slot = token * s.k; slot < (token + 1) * s.k; slot++) {
                        if (its[slot] != (long long)(me * s.share + local) || !is_first(its.data(), slot, s.k)) continue;
                        expect(sources[row] == (int)token, "a source");
                        const unsigned short* found = (const unsigned short*)rows.data() + row * s.hidden;
                        const unsigned char* cast = (const unsigned char*)rows.data() + row * s.hidden;
                        unsigned short* to = (unsigned short*)made.data() + row * s.hidden;
                        std::vector<float> numbers(s.hidden);
                        for (symrail_u64 i = 0; i < s.hidden; i++) numbers[i] = number_of(rank, round, token, i);
                        if (fp8) expect(is_cast(cast, scales_of(local, row - local * room), numbers, packs), "a row of FP8");
                        for (symrail_u64 i = 0; i < s.hidden; i++) {
                            if (!fp8) expect(low(found[i]) == numbers[i], "a row");
                            to[i] = to_bf16(result_of(s, its[slot], rank, round, slot, i));
                        }
                        far_rows += far[rank];
                        row++;
                    }
                expect((symrail_u32)range == row - begin, "the number of a rank's rows");
            }
            expect(counts[local] == (int)(row - local * room), "a count");
            expect(b.all_counts[local] == 100 + counts[local], "a sum of counts");
        }
        // Two combines of the last dispatch, and one of the dispatch before.
        symrail_u64 combines = 3 * round;
        for (symrail_u64 of : {first + 1, first, first + 1}) {
        std::fill(out.begin(), out.end(), uint4{});
        symrail_u64 puts = job.puts;
        // Of three combines rows are encoded for no rank, for all, and for some.
        auto encodes = [call = combines](symrail_u64 rank) { return call % 3 == 1 || (call % 3 == 2 && mix({rank, call}) % 2 == 0); };
        b.encodes = encodes(me);
        if (together(combines)) {
            b.combine(made, weights.data(), topk.data(), tokens, of, waits.data());
        } else {
            b.send_combine(made, weights.data(), tokens, of);
            expect(job.puts - puts <= std::min(n_far * p.parts, far_rows) + n_far,
                   "a combine has one request for each part at most, and one for weights");
            b.receive_combine(topk.data(), tokens, true, waits.data());
        }
        expect(p.combined == ++combines, "a combine ends");
        for (symrail_u64 token = 0; token < tokens; token++) {
            std::vector<float> sums(s.hidden);
            for (symrail_u64 rank = 0; rank < s.ranks; rank++) {
                std::vector<float> of_rank(s.hidden);
                for (symrail_u64 slot = token * s.k; slot < (token + 1) * s.k; slot++) {
                    symrail_u64 first = token * s.k;
                    while (topk[first] != topk[slot]) first++;
                    if (topk[slot] < 0 || topk[slot] / s.share != rank || masks[rank]) continue;
                    for (symrail_u64 i = 0; i < s.hidden; i++)
                        of_rank[i] += low(to_bf16(result_of(s, topk[slot], me, round, first, i))) * weights[slot];
                }
                for (float& number : of_rank) number = low(to_bf16(number));
                std::vector<float> as_it_was = of_rank;
                if (rank != me && !far[rank] && encodes(me) && encodes(rank) && s.hidden <= 65536) there_and_back(of_rank);
                changed += of_rank != as_it_was;
                for (symrail_u64 i = 0; i < s.hidden; i++) sums[i] += of_rank[i];
            }
            for (symrail_u64 i = 0; i < s.hidden; i++)
                expect(((unsigned short*)out.data())[token * s.hidden + i] == to_bf16(sums[i]), "a sum");
        }
        }
        for (symrail_u64 rank = 0; rank < s.ranks; rank++)
            expect(waits[rank] > 0 || rank == me || masks[rank], "the time of waiting for a rank");
    }
    if (s.hidden > FP8_GROUP && s.hidden <= 8192 && s.routing == shape::ANY && s.ranks > 1 && !p.has_far) expect(changed > 0, "no row was encoded");
    // A combine of a dispatch whose memory was reused sends nothing, and the next one is not harmed.
    symrail_u64 failures = job.failures, sent = job.puts;
    if (together(100)) b.combine(made, nullptr, nullptr, 0, p.received - 2, nullptr);
    else b.send_combine(made, nullptr, 0, p.received - 2);
    expect(p.combining_of == 0 && job.puts == sent && *note_of_difference(p) == NOT_HELD, "an old handle is refused");
    if (!together(100)) b.receive_combine(nullptr, 0, true);
    job.failures = failures;
}

// A rank whose rows are of the other kind contributes none, and is named.
static void of_other_kind(const shape& s, char* heap) {
    buffers b(s, heap);
    std::vector<uint4> x(s.most * s.hidden / 8);
    std::vector<long long> topk(s.most * s.k, 1 - job.me);
    b.send_dispatch(x.data(), topk.data(), s.most, job.me == 0 ? BF16 : FP8);
    b.receive_dispatch();
    expect(b.counts[0] == 0 && *note_of_difference(b.p) == 2 - (symrail_u64)job.me, "rows of the other kind");
    expect(job.failures > 0, "a difference is reported");
    job.failures = 0;
}

// Two dispatches are sent before a combine of an earlier one is received: it would add other rows than those that return.
static void overtaken(const shape& s, char* heap, bool encodes) {
    buffers b(s, heap);
    b.encodes = encodes;
    std::vector<uint4> x(s.most * s.hidden / 8), untouched(b.out.size(), uint4{7, 7, 7, 7});
    std::vector<long long> topk(s.most * s.k, 1 - job.me);
    std::vector<float> weights(s.most * s.k, 1.0f);
    b.send_dispatch(x.data(), topk.data(), s.most, BF16), b.receive_dispatch();
    b.send_combine(b.made, weights.data(), s.most, b.p.received);
    for (int more = 0; more < 2; more++) b.send_dispatch(x.data(), topk.data(), s.most, BF16), b.receive_dispatch();
    b.out = untouched;
    b.receive_combine(topk.data(), s.most, true);
    expect(memcmp(b.out.data(), untouched.data(), untouched.size() * 16) == 0, "sums by the rows of another dispatch");
    expect(*note_of_difference(b.p) == NOT_HELD && job.failures > 0 && b.p.combined == 1, "a combine that was overtaken is reported");
    // The next combine is right.
    b.send_combine(b.made, weights.data(), s.most, b.p.received), b.receive_combine(topk.data(), s.most, true);
    expect(memcmp(b.out.data(), untouched.data(), untouched.size() * 16) != 0 && b.p.combined == 2, "the combine behind it");
    // A combine is received in the form in which it was sent.
    b.send_combine(b.made, weights.data(), s.most, b.p.received);
    b.out = untouched, b.encodes = !encodes;
    b.receive_combine(topk.data(), s.most, true);
    expect(memcmp(b.out.data(), untouched.data(), untouched.size() * 16) == 0, "sums of rows of another form");
    expect(*note_of_difference(b.p) == OTHER_FORM && b.p.combined == 3, "a combine in another form is reported");
    job.failures = 0;
}

// The numbers of calls do not fit in 32 bits, and one of two ranks comes when the other one waits.
static void beyond_32_bits(const shape& s, char* heap, bool encodes) {
    buffers b(s, heap);
    b.encodes = encodes;
    b.p.sent = b.p.received = b.p.combined = 0xffffffff;
    std::vector<uint4> x(s.most * s.hidden / 8);
    std::vector<long long> topk(s.most * s.k, 1 - job.me);
    std::vector<float> weights(s.most * s.k, 1.0f);
    for (symrail_u64 i = 0; i < b.made.size() * 8; i++) ((unsigned short*)b.made.data())[i] = to_bf16(1.0f);
    auto meet_and_come = [&](int who) {
        meet(2);
        for (symrail_u64 since = symrail_now(); (int)job.me == who && symrail_now() - since < 30000000;) sched_yield();
    };
    for (int who = 0; who < 2; who++) {
        meet_and_come(who);
        b.send_dispatch(x.data(), topk.data(), s.most, BF16), b.receive_dispatch();
        expect(job.time_outs == 0 && b.lost[1 - job.me] == 0 && b.counts[0] == (int)s.most, "a dispatch behind 2^32 others");
        meet_and_come(who);
        b.send_combine(b.made, weights.data(), s.most, b.p.received), b.receive_combine(topk.data(), s.most, true);
        bool well = true;
        for (symrail_u64 i = 0; i < s.most * s.hidden; i++) well &= low(((unsigned short*)b.out.data())[i]) == (float)s.k;
        expect(well && b.lost[1 - job.me] == 0, "sums behind 2^32 others");
        if (who == 0) b.p.sent = b.p.received = 0x1ffffffff, b.p.combined = 0x1ffffffff;
    }
}

// A rank stops during a round, and the others mask it. It runs again while they wait for rows of a later round in the
// same memory.
static void resumed(const shape& s, char* heap, bool encodes) {
    buffers b(s, heap);
    b.encodes = encodes;
    std::vector<uint4> x(s.most * s.hidden / 8), made = b.made;
    std::vector<float> weights(s.most * s.k, 1.0f);
    symrail_u64 lost = 2;
    bool is_lost = (symrail_u64)job.me == lost;
    // In the first round tokens go to the lost rank and to one other; later twice to the others.
    auto slots = [&](symrail_u64 round) {
        std::vector<long long> found(s.most * s.k);
        for (symrail_u64 i = 0; i < found.size(); i++) found[i] = round == 0 ? (i % 2 ? 0 : lost) : (i + round) % 2;
        return found;
    };
    // An expert returns rows of one value.
    auto fill = [&](symrail_u64 value) {
        for (symrail_u64 i = 0; i < made.size() * 8; i++) ((unsigned short*)made.data())[i] = to_bf16((float)value);
    };
    auto expect_sums = [&](float wanted, const char* what) {
        for (symrail_u64 i = 0; i < s.most * s.hidden; i++) expect(low(((unsigned short*)b.out.data())[i]) == wanted, what);
    };
    job.timeout_ns = 3000000000;
    std::vector<long long> first = slots(0);
    b.send_dispatch(x.data(), first.data(), s.most, BF16);
    b.receive_dispatch();
    fill(is_lost ? 64 : job.me + 1);
    job.timeout_ns = 3000000000;
    if (!is_lost) {
        b.send_combine(made, weights.data(), s.most, b.p.received);
        b.receive_combine(first.data(), s.most, false);
        symrail_u64 waits = job.time_outs;
        expect(waits > 0 && waits <= s.k + b.p.parts && b.late[lost] == 1 && b.masks[lost] == 0, "one time-out is for all blocks");
        b.p.mask_late = 1, b.late[lost] = 0, waits += s.k + b.p.parts;
        b.receive_combine(first.data(), s.most, false);
        expect(job.time_outs <= waits && b.masks[lost] == 1, "a rank that stops is masked");
        waits = job.time_outs;
        expect_sums(1, "sums without it");
        b.end();
        job.timeout_ns = 20000000000;
        for (symrail_u64 round = 1; round < 4; round++) {
            std::vector<long long> next = slots(round);
            b.send_dispatch(x.data(), next.data(), s.most, BF16);
            b.receive_dispatch();
            fill(job.me + 1);
            b.send_combine(made, weights.data(), s.most, b.p.received);
            if (round == 2) meet(3), meet(3);
            b.receive_combine(next.data(), s.most, true);
            expect_sums(3, "sums while it runs again");
        }
        expect(job.time_outs == waits && b.lost[lost] == IS_TOLD, "a masked rank is told, and not waited for");
        return;
    }
    meet(3);
    b.send_combine(made, weights.data(), s.most, b.p.received);
    b.end();
    expect(b.masks[0] == 1 && b.masks[1] == 1 && b.lost[0] == HAS_LEFT && job.failures == 1 + 1, "who was left behind learns by whom");
    b.send_dispatch(x.data(), first.data(), s.most, BF16);
    meet(3);
}

// Only the first part of a rank's tokens arrives in time, or only the first of its returning rows. The others go on
// without the rank: no row of theirs is lost, and no sum is with the rank in one half and without it in the other.
static void arrives_in_part(const shape& s, char* heap, bool in_combine, bool encodes) {
    buffers b(s, heap);
    b.encodes = encodes;
    symrail_u64 lost = 0, me = job.me;
    bool is_lost = me == lost;
    // Each token goes to the lost rank and to one of the other two.
    auto expert = [&](symrail_u64 token) { return (1 + token % 2) * s.share + token / 2 % s.share; };
    std::vector<long long> slots;
    std::vector<unsigned short> x(s.most * s.hidden);
    for (symrail_u64 token = 0; token < s.most; token++) {
        slots.insert(slots.end(), {(long long)(lost * s.share + token % s.share), (long long)expert(token)});
        for (symrail_u64 i = 0; i < s.hidden; i++) x[token * s.hidden + i] = to_bf16((float)(10 * me + token));
    }
    std::vector<uint4> aligned(x.size() / 8);
    memcpy(aligned.data(), x.data(), x.size() * 2);
    std::vector<float> weights(s.most * s.k, 1.0f);
    b.p.mask_late = 1;
    b.send_dispatch(aligned.data(), slots.data(), s.most, BF16);
    meet(3);
    if (!in_combine && !is_lost) {
        job.timeout_ns = 500000000;
        for (symrail_u64 part = 1; part < b.p.parts; part++)
            ((symrail_u64*)b.p.heap.words)[part_number(b.p, lost, 1, part)] = 0;
    }
    b.receive_dispatch();
    if (!in_combine) {
        if (is_lost) return;
        expect(b.masks[lost] == 1, "a rank of which only a part has come is masked");
        symrail_u64 room = s.ranks * s.most;
        for (symrail_u64 local = 0; local < s.share; local++) {
            symrail_u64 row = local * room;
            for (symrail_u64 rank = 1; rank < s.ranks; rank++)
                for (symrail_u64 token = 0; token < s.most; token++) {
                    if (expert(token) != me * s.share + local) continue;
                    expect(b.sources[row] == (int)token, "the number of a token beside a rank that was late");
                    expect(low(((unsigned short*)b.rows.data())[row * s.hidden]) == 10 * rank + token, "a row beside a rank that was late");
                    row++;
                }
            expect(b.counts[local] == (int)(row - local * room) && (int)b.ranges[local * s.ranks + lost] == 0, "a count without a late rank");
        }
        return;
    }
    for (symrail_u64 i = 0; i < b.made.size() * 8; i++) ((unsigned short*)b.made.data())[i] = to_bf16((float)(me + 1));
    b.send_combine(b.made, weights.data(), s.most, b.p.received);
    meet(3);
    if (is_lost) return b.end();
    job.timeout_ns = 500000000;
    for (symrail_u64 row = 1; row < s.most; row++) *row_word(b.p, 1, lost, row) = 0;
    b.receive_combine(slots.data(), s.most, true);
    for (symrail_u64 i = 0; i < s.most * s.hidden; i++) {
        symrail_u64 token = i / s.hidden, of_other = expert(token) / s.share + 1;
        float sum = low(((unsigned short*)b.out.data())[i]);
        // The first row of the lost rank has come.
        expect(sum == of_other + (token == 0 ? 1 + lost : 0), "a sum beside a rank that was late");
    }
}

int main() {
    for (float value : {(float)NAN, -(float)NAN})
        expect((to_e4m3(value) & 0x7f) == 0x7f && to_e4m3(1e9f) == 0x7e, "a NaN stays one, and a large number does not become one");
    int failures = 0;
    for (int mapped : {0, 1, 2})
        for (const shape& s : {shape{1, 3, 2, 2, 16}, {2, 1, 3, 1, 8}, {3, 10, 2, 5, 24}, {4, 6, 2, 9, 16},
                               {2, 9, 4, 16, 144, 1}, {8, 3, 1, 8, 16, 0, shape::FEW_EXPERTS},
                               {2, 40, 2, 2, 272, 1, shape::ALL_FOR_ONE}, {1, 20, 9, 32, 16, 0, shape::FEW_EXPERTS},
                               // Large models: rows of 8,192 and 7,168 elements; 2,048 experts.
                               {3, 2, 2, 16, 8192, 1}, {2, 3, 4, 8, 7168, 0, shape::ALL_FOR_ONE}, {2, 2, 1024, 16, 16, 1},
                               // Rows whose groups a block does not keep in mind, and rows with too many to be encoded.
                               {2, 2, 2, 2, 16384}, {2, 1, 2, 2, 65664}}) {
            // With one or two ranks the third choice equals one of the first two.
            if (s.ranks < 3 && mapped >= (int)s.ranks) continue;
            // The way of the data does not depend on the number of experts, and many or long rows take it as others do.
            if (mapped > 0 && (s.share > 500 || s.hidden > 8192 || (mapped == 2 && s.hidden > 4096) || (mapped == 1 && s.ranks > 4))) continue;
            met = (std::atomic<int>*)shared_memory(64);
            auto is_mapped = [=](int a, int b) { return mapped == 0 || (mapped == 2 && a / 2 == b / 2); };
            if (on_all(s.ranks, 4 << 20, is_mapped, [&](char* heap) { rounds(s, heap); })) continue;
            printf("%llu ranks, %llu tokens, %llu experts each, top-%llu, %llu elements, FP8 %llu, routing %d, mapped %d\n", s.ranks,
                   s.most, s.share, s.k, s.hidden, s.fp8, s.routing, mapped);
            failures++;
        }
    if (!on_all(2, 4 << 20, [](int, int) { return true; }, [&](char* heap) { of_other_kind({2, 4, 1, 2, 16}, heap); }))
        printf("rows of the other kind\n"), failures++;
    // Mapped, and through the proxy.
    struct way { bool mapped, encodes; };
    for (way of : {way{true, false}, {true, true}, {false, false}}) {
        auto is_mapped = [=](int, int) { return of.mapped; };
        if (!on_all(2, 4 << 20, is_mapped, [&](char* heap) { overtaken({2, 4, 1, 2, 16}, heap, of.encodes); }))
            printf("a combine that was overtaken, mapped %d, encoded %d\n", of.mapped, of.encodes), failures++;
        met = (std::atomic<int>*)shared_memory(64);
        if (!on_all(2, 4 << 20, is_mapped, [&](char* heap) { beyond_32_bits({2, 4, 1, 2, 16}, heap, of.encodes); }))
            printf("calls behind 2^32 others, mapped %d, encoded %d\n", of.mapped, of.encodes), failures++;
        met = (std::atomic<int>*)shared_memory(64);
        if (!on_all(3, 4 << 20, is_mapped, [&](char* heap) { resumed({3, 4, 1, 2, 16}, heap, of.encodes); }))
            printf("a rank that runs again, mapped %d, encoded %d\n", of.mapped, of.encodes), failures++;
        for (bool in_combine : {false, true}) {
            // To a far rank the rows of a part are one request. A dispatch has no encoded rows.
            if (in_combine ? !of.mapped : of.encodes) continue;
            met = (std::atomic<int>*)shared_memory(64);
            auto work = [&](char* heap) { arrives_in_part({3, 8, 2, 2, 16}, heap, in_combine, of.encodes); };
            if (on_all(3, 4 << 20, is_mapped, work)) continue;
            printf("a rank of which only a part arrives, mapped %d, encoded %d, in a combine %d\n", of.mapped, of.encodes, in_combine);
            failures++;
        }
    }
    printf(failures == 0 ? "well\n" : "%d failures\n", failures);
    return failures != 0;
}
