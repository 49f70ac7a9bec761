// Runs cu/high_throughput.cu on threads and compares the results with tokens and sums from serial code. Prints errors.
#include "../../cu/high_throughput.cu"

struct shape {
    symrail_u64 ranks, tokens, share, k, scales, bytes;
    bool f32;
    int ranks_of_host;
};

// A rank's input of a call.
static std::vector<long long> slots_of(const shape& s, symrail_u64 rank, symrail_u64 call, symrail_u64& tokens) {
    tokens = mix({rank, call, 1}) % 4 == 0 ? 0 : mix({rank, call, 2}) % s.tokens + 1;
    std::vector<long long> slots(tokens * s.k);
    for (symrail_u64 i = 0; i < slots.size(); i++) {
        symrail_u64 experts = s.ranks * s.share, some = mix({rank, call, i, 3});
        // In one call in four all tokens go to few experts.
        slots[i] = (long long)(call % 4 == 3 ? some % 3 % experts : some % (experts + 1)) - (call % 4 != 3);
    }
    return slots;
}
static bool gets(const shape& s, const std::vector<long long>& slots, symrail_u64 token, symrail_u64 rank) {
    for (symrail_u64 i = 0; i < s.k; i++) {
        long long expert = slots[token * s.k + i];
        if (expert >= 0 && (symrail_u64)expert / s.share == rank) return true;
    }
    return false;
}
static symrail_u32 word_of(symrail_u64 rank, symrail_u64 call, symrail_u64 token, symrail_u64 i) {
    return (symrail_u32)mix({rank, call, token, i, 4});
}
// Indices of a row's numbers from here on stand for weights.
#define WEIGHTS 1000000
// A row's number, before it is rounded to the row's type.
static float number_of(symrail_u64 by, symrail_u64 from, symrail_u64 call, symrail_u64 token, symrail_u64 i) {
    symrail_u64 some = mix({by, from, call, token, i, 5});
    // The magnitudes differ widely, so that the order of a sum affects its bits.
    return (float)((int)(some % 2001) - 1000) * (float)(1 << (some >> 20) % 24);
}
static void put_number(bool f32, char* row, symrail_u64 i, float v) {
    if (f32) ((float*)row)[i] = v;
    else ((unsigned short*)row)[i] = (unsigned short)to_bf16(v);
}
static float get_number(bool f32, const char* row, symrail_u64 i) {
    return f32 ? ((const float*)row)[i] : low(((const unsigned short*)row)[i]);
}

static void expect(bool well, const char* what) {
    if (!well) fail(what);
}

// The ranks of a job by host, and by the reach of GPUs. A host whose ranks are not mapped is no host for routes.
struct buffers {
    const shape& s;
    parameters p = {};
    routes r = {};
    progress now = {};
    // A record, followed by its words for each rank.
    std::vector<symrail_u64> told;
    std::vector<symrail_u32> homes, terms, matrix, crossings, lists, per_expert, come, spread;
    std::vector<int> places, host_places;
    symrail_u64 wrong_slot[2] = {~0ull, 0}, members, tickets = 0;
    static const unsigned THREADS = 64;

    buffers(const shape& s, char* heap, symrail_u64 room) : s(s), told(sizeof(record) / 8 + 2 * s.ranks + (s.ranks * s.ranks + s.share + 1) / 2) {
        p.ranks = s.ranks, p.me = job.me, p.share = s.share, p.most = s.tokens, p.room = room;
        symrail_u64 each = s.ranks_of_host, first = p.me / each * each;
        members = job.is_mapped(p.me, p.me == first ? first + 1 : first) ? each : 1;
        p.hosts = (s.ranks + members - 1) / members, p.members = members;
        for (symrail_u64 rank = 0; rank < s.ranks; rank++) homes.push_back(rank / members);
        for (symrail_u64 rank = 0; rank < s.ranks; rank++) homes.push_back(rank % members);
        for (symrail_u64 host = 0; host <= p.hosts; host++) homes.push_back(std::min(host * members, s.ranks));
        for (symrail_u64 rank = 0; rank < s.ranks; rank++) homes.push_back(rank);
        p.homes = (symrail_u64)homes.data();
        for (symrail_u64 rank = 0; rank < s.ranks; rank++) {
            symrail_u32 mark = rank % s.ranks_of_host == 0 ? FIRST_OF_HOST : 0;
            if (is_direct(p, p.me, rank)) terms.push_back(rank | mark);
            else if (mark) terms.push_back(host_of(p, rank) | IS_SUM | FIRST_OF_HOST);
        }
        p.terms = (symrail_u64)terms.data(), p.n_terms = terms.size();
        p.side = up16(4 * (s.scales + 2 * s.k + 1 + members));
        p.staged = room == s.ranks * s.tokens ? s.ranks * members * s.tokens : room;
        symrail_u64 back = s.tokens * s.ranks, out = std::max(2 * back, room), header = 2 * s.ranks * header_bytes(p);
        char* next = heap;
        auto take = [&](symrail_u64 bytes) {
            char* at = next;
            next += (bytes + 127) / 128 * 128;
            if (next > heap + job.heap_bytes) fail("the test's heap is too small");
            return (symrail_u64)at;
        };
        p.heap.headers = take(header), p.heap.headers_out = take(header), p.heap.header_words = take(8 * s.ranks);
        p.heap.words = take(16 * s.ranks * chunks(s.tokens)), p.heap.gathered_words = take(16 * s.ranks * members * chunks(s.tokens));
        p.heap.rows = take(room * s.bytes), p.heap.sides = take(room * p.side);
        p.heap.offered_rows = take(room * s.bytes), p.heap.offered_sides = take(room * p.side);
        p.heap.back_rows = take(back * s.bytes), p.heap.back_sides = take(back * p.side);
        p.heap.out_rows = take(out * s.bytes), p.heap.out_sides = take(out * p.side);
        p.heap.staged_rows = take(p.staged * s.bytes), p.heap.staged_sides = take(p.staged * p.side);
        p.heap.sum_rows = take(s.tokens * p.hosts * 2 * s.bytes), p.heap.sum_sides = take(s.tokens * p.hosts * p.side);
        p.heap.returned_words = take(8 * s.ranks * returned_chunks(s.tokens));
        p.heap.near_words = take(8 * s.ranks), p.heap.near_places_at = take(8 * members * s.tokens);
        p.heap.token_rows = take(s.tokens * s.bytes), p.heap.token_sides = take(s.tokens * p.side);
        matrix.resize(s.ranks * s.ranks), crossings.resize(s.ranks * p.hosts), lists.resize((s.ranks + p.hosts) * s.tokens);
        places.resize(s.ranks * s.tokens), host_places.resize(p.hosts * s.tokens), spread.resize(p.staged * members);
        per_expert.resize(s.ranks * s.share), come.resize(s.share);
        p.progress = (symrail_u64)&now, p.record = (symrail_u64)told.data();
        r = {(symrail_u64)matrix.data(),      (symrail_u64)crossings.data(),  (symrail_u64)lists.data(),
             (symrail_u64)places.data(),      (symrail_u64)host_places.data(), (symrail_u64)per_expert.data(),
             (symrail_u64)come.data(),        (symrail_u64)wrong_slot,         (symrail_u64)spread.data()};
    }
    record& heard() { return *(record*)told.data(); }
    // The layout from indices, and whether ep_count, and the layout from which ranks get each token, agree with it.
    void layout(const long long* slots, symrail_u64 tokens) {
        symrail_u64 experts = s.ranks * s.share;
        std::vector<unsigned char> in_rank(tokens * s.ranks);
        std::vector<int> of_ranks(s.ranks), of_experts(experts);
        launch((experts + COUNTED - 1) / COUNTED + s.ranks, THREADS, [&] {
            ep_count(nullptr, slots, tokens, s.k, experts, s.ranks, of_ranks.data(), of_experts.data(), in_rank.data());
        });
        launch(s.ranks + p.hosts, THREADS, [&] {
            ep_layout(&p, &r, nullptr, tokens, 0, in_rank.data(), (const symrail_u32*)of_experts.data());
        });
        auto tables = [&] { return std::tuple(matrix, crossings, lists, places, host_places, per_expert); };
        auto found = tables();
        launch(s.ranks + p.hosts, THREADS, [&] { ep_layout(&p, &r, slots, tokens, s.k, nullptr, nullptr); });
        if (found != tables()) fail("a layout from ranks that differs from that from indices");
        for (symrail_u64 rank = 0; rank < s.ranks; rank++)
            if (of_ranks[rank] != (int)matrix[job.me * s.ranks + rank]) fail("a count of a rank's tokens");
    }
    void begin(bool first, symrail_u64 kind, symrail_u64 bytes, symrail_u64 scales, symrail_u64 k, symrail_u64 tokens,
               symrail_u64 types = 8, symrail_u64 of_caller = ~0ull) {
        symrail_u64 ticket = kind != COMBINE ? ++tickets : 0;
        launch(s.ranks, THREADS, [&] { ep_begin(&p, &r, first, kind, bytes, scales, k, types, tokens, std::min(p.room, of_caller), ticket); });
        if ((heard().told & ~TICKET_REFUSED) != tickets) fail("a ticket of an earlier call");
        if (ticket != 0 && (heard().told == tickets) != (now.state == GOES)) fail("a ticket that is marked wrongly");
    }
    void reduce(unsigned blocks, const char* rows, symrail_u64 tokens, symrail_u64 k, const float* weights, const char* bias,
                const char* second, char* out, char* sums, const long long* slots = nullptr) {
        const symrail_u32* w = (const symrail_u32*)weights;
        if (p.hosts > 1) launch(2, THREADS, [&] { ep_offer(&p, &r, rows, s.bytes, w, k); });
        launch(blocks, THREADS, [&] {
            if (p.hosts > 1) ep_reduce_hosts(&p, &r, rows, tokens, s.bytes, k, w, bias, second, out, sums, s.f32);
            else if (s.f32) ep_reduce_f32(&p, &r, rows, tokens, s.bytes, k, w, bias, second, out, sums);
            else if (slots != nullptr) ep_reduce_slots(&p, &r, rows, tokens, s.bytes, k, w, bias, second, out, sums, slots, s.k);
            else ep_reduce_bf16(&p, &r, rows, tokens, s.bytes, k, w, bias, second, out, sums);
        });
        expect(now.tickets == 0 && now.returns == 0 && now.begun == 0 && now.blocks == 0, "numbers of a kernel that has ended");
    }
    void end() {
        launch(1, 1, [&] { ep_end_call(&p); });
    }
};

// A dispatch (or a second dispatch of other rows on the same routes), and the combine of its rows.
static void round(buffers& b, symrail_u64 call, bool first, bool weighted) {
    const shape& s = b.s;
    symrail_u64 me = job.me, tokens, k = weighted ? s.k : 0, routing = first ? call : call - 1;
    std::vector<long long> slots = slots_of(s, me, routing, tokens);
    std::vector<uint4> x(tokens * s.bytes / 16);
    std::vector<symrail_u32> scales(tokens * s.scales), weights(tokens * s.k);
    for (symrail_u64 i = 0; i < x.size() * 4; i++) ((symrail_u32*)x.data())[i] = word_of(me, call, i / (s.bytes / 4), i % (s.bytes / 4));
    for (symrail_u64 i = 0; i < scales.size(); i++) scales[i] = word_of(me, call, i, 1000);
    for (symrail_u64 i = 0; i < weights.size(); i++) weights[i] = word_of(me, call, i, 2000);
    if (first) b.layout(slots.data(), tokens);
    b.begin(first, first ? 1 : 2, s.bytes, s.scales, k, tokens);
    expect(b.now.state == GOES && b.heard().wrong == NOTHING, "a dispatch was refused");
    symrail_u64 put = job.put_bytes, own = host_of(b.p, me);
    launch(3, b.THREADS, [&] {
        ep_send(&b.p, &b.r, 0, (const char*)x.data(), s.bytes, scales.data(), s.scales, slots.data(), weights.data(), k);
    });
    launch(3, b.THREADS, [&] {
        ep_offer_tokens(&b.p, tokens, (const char*)x.data(), s.bytes, scales.data(), s.scales, slots.data(), weights.data(), k);
    });
    // A token crosses once to each host that has some of its experts.
    auto wanted_by = [&](const std::vector<long long>& its, symrail_u64 token, symrail_u64 host) {
        bool some = false;
        for (symrail_u64 i = 0; i < members_of(b.p, host); i++) some |= gets(s, its, token, member_of(b.p, host, i));
        return some;
    };
    auto wanted_of = [&](const std::vector<long long>& its, symrail_u64 host) {
        symrail_u64 rows = 0;
        for (symrail_u64 token = 0; token < its.size() / s.k; token++) rows += wanted_by(its, token, host);
        return rows;
    };
    symrail_u64 crossed = 0;
    auto is_far = [&](symrail_u64 rank) { return rank != me && !job.is_mapped(me, rank); };
    for (symrail_u64 host = 0; host < b.p.hosts; host++) {
        symrail_u64 members = members_of(b.p, host), side = of_dispatch(s.scales, k, members > 1 ? members : 0).bytes();
        if (host != own && is_far(member_of(b.p, host, 0))) crossed += wanted_of(slots, host) * (s.bytes + side);
    }
    expect(job.put_bytes - put == crossed, "a token crosses once to each other host");
    launch(2, b.THREADS, [&] { ep_spread(&b.p, &b.r, first, s.bytes, s.scales, k); });
    symrail_u64 all = 0;
    for (symrail_u64 rank = 0; rank < s.ranks; rank++) all += b.matrix[rank * s.ranks + me];
    std::vector<uint4> rows(all * s.bytes / 16);
    std::vector<symrail_u32> its_scales(all * s.scales), its_weights(all * k);
    std::vector<long long> its_slots(all * k);
    std::vector<int> sources(all);
    launch(2, b.THREADS, [&] {
        ep_receive(&b.p, &b.r, tokens, (const char*)x.data(), s.bytes, scales.data(), s.scales, slots.data(), weights.data(), k,
                   (char*)rows.data(), its_scales.data(), its_slots.data(), its_weights.data(), sources.data());
    });
    symrail_u64 row = 0;
    std::vector<symrail_u32> come(s.share);
    for (symrail_u64 rank = 0; rank < s.ranks; rank++) {
        symrail_u64 its_tokens;
        std::vector<long long> its = slots_of(s, rank, routing, its_tokens);
        for (long long expert : its)
            if (expert >= 0 && (symrail_u64)expert / s.share == me) come[expert % s.share]++;
        for (symrail_u64 to = 0; to < s.ranks; to++) {
            symrail_u32 wanted = 0;
            for (symrail_u64 token = 0; token < its_tokens; token++) wanted += gets(s, its, token, to);
            expect(b.heard().counts(s.ranks)[rank * s.ranks + to] == wanted, "the host's number of a rank's tokens");
        }
        for (symrail_u64 token = 0; token < its_tokens; token++) {
            if (!gets(s, its, token, me)) continue;
            expect(row < all, "fewer rows than tokens");
            bool well = sources[row] == (int)token;
            for (symrail_u64 i = 0; i < s.bytes / 4; i++)
                well &= ((symrail_u32*)rows.data())[row * s.bytes / 4 + i] == word_of(rank, call, token, i);
            for (symrail_u64 i = 0; i < s.scales; i++)
                well &= its_scales[row * s.scales + i] == word_of(rank, call, token * s.scales + i, 1000);
            for (symrail_u64 i = 0; i < k; i++) {
                long long expert = its[token * s.k + i];
                bool here = expert >= 0 && (symrail_u64)expert / s.share == me;
                well &= its_slots[row * k + i] == (here ? expert % (long long)s.share : -1);
                well &= its_weights[row * k + i] == (here ? word_of(rank, call, token * s.k + i, 2000) : 0);
            }
            expect(well, "a row that came is not the token");
            row++;
        }
    }
    expect(row == all, "more rows than tokens");
    for (symrail_u64 i = 0; i < s.share; i++)
        expect(come[i] == b.come[i] && come[i] == b.heard().counts(s.ranks)[s.ranks * s.ranks + i], "slots of experts");

    // Each rank returns rows that it has computed from the received ones, with its own weights.
    symrail_u64 numbers = s.bytes / (s.f32 ? 4 : 2);
    std::vector<uint4> copied(all * s.bytes / 16), biases(2 * tokens * s.bytes / 16), out(tokens * s.bytes / 16);
    // In one call in two the rows are where the other ranks read them.
    char* made = call % 2 == 0 ? (char*)copied.data() : (char*)b.p.heap.offered_rows;
    std::vector<float> parts(all * k), sums(tokens * k);
    row = 0;
    for (symrail_u64 rank = 0; rank < s.ranks; rank++)
        for (symrail_u64 i = 0; i < b.matrix[rank * s.ranks + me]; i++, row++) {
            for (symrail_u64 n = 0; n < numbers; n++)
                put_number(s.f32, made + row * s.bytes, n, number_of(me, rank, call, sources[row], n));
            for (symrail_u64 n = 0; n < k; n++) parts[row * k + n] = number_of(me, rank, call, sources[row], n + WEIGHTS);
        }
    for (symrail_u64 i = 0; i < 2 * tokens * numbers; i++) put_number(s.f32, (char*)biases.data(), i, number_of(me, 77, call, i, 1));
    const char *bias = call % 3 == 0 ? nullptr : (const char*)biases.data(), *second = call % 3 == 2 ? bias + tokens * s.bytes : nullptr;
    b.begin(false, COMBINE, s.bytes, 0, k, tokens);
    expect(b.now.state == GOES && b.heard().wrong == NOTHING, "a combine was refused");
    launch(3, b.THREADS, [&] {
        ep_send(&b.p, &b.r, 1, made, s.bytes, nullptr, 0, nullptr, (const symrail_u32*)parts.data(), k);
    });
    put = job.put_bytes;
    launch(3, b.THREADS, [&] { ep_add(&b.p, &b.r, s.bytes, k, s.f32); });
    crossed = 0;
    for (symrail_u64 rank = 0, none; rank < s.ranks; rank++)
        if (is_far(rank) && comes_through(b.p, rank, me)) crossed += wanted_of(slots_of(s, rank, routing, none), own);
    symrail_u64 of_sum = s.bytes * (s.f32 ? 1 : 2) + of_combine(k).bytes();
    expect(job.put_bytes - put == crossed * of_sum, "a sum crosses once from each other host");
    // Some sums of a host are formed behind the biases and in the order of slots.
    bool by_slots = b.p.hosts == 1 && !s.f32 && call % 2 == 1;
    const long long* order = by_slots ? slots.data() : nullptr;
    b.reduce(2 + call % 2, made, tokens, k, parts.data(), bias, second, (char*)out.data(), (char*)sums.data(), order);
    for (symrail_u64 token = 0; token < tokens; token++) {
        auto sum = [&](symrail_u64 n) {
            float total = 0;
            for (symrail_u64 first = 0; first < s.ranks; first += s.ranks_of_host) {
                float of_host = 0;
                bool some = false;
                for (symrail_u64 rank = first; rank < first + s.ranks_of_host && rank < s.ranks; rank++) {
                    if (!gets(s, slots, token, rank)) continue;
                    float v = number_of(rank, me, call, token, n);
                    of_host += n >= WEIGHTS || s.f32 ? v : low(to_bf16(v));
                    some = true;
                }
                if (some) total += of_host;
            }
            return total;
        };
        for (symrail_u64 n = 0; n < numbers; n++) {
            float wanted = by_slots ? 0.0f : sum(n);
            for (const char* one : {bias, second})
                if (one != nullptr) wanted += get_number(s.f32, one + token * s.bytes, n);
            for (symrail_u64 slot = 0; by_slots && slot < s.k; slot++) {
                long long expert = slots[token * s.k + slot];
                bool is_last = expert >= 0;
                for (symrail_u64 later = slot + 1; is_last && later < s.k; later++)
                    is_last = slots[token * s.k + later] < 0 || slots[token * s.k + later] / (long long)s.share != expert / (long long)s.share;
                if (is_last) wanted += low(to_bf16(number_of(expert / s.share, me, call, token, n)));
            }
            if (!s.f32) wanted = low(to_bf16(wanted));
            expect(get_number(s.f32, (char*)out.data() + token * s.bytes, n) == wanted, "a sum");
        }
        for (symrail_u64 n = 0; n < k; n++) expect(sums[token * k + n] == sum(n + WEIGHTS), "a sum of weights");
    }
}

static void calls(const shape& s, char* heap) {
    buffers b(s, heap, s.ranks * s.tokens);
    for (symrail_u64 call = 0; call < 6; call++) round(b, call, call % 2 == 0, call % 3 != 1);
    expect(b.now.calls == 12, "calls were not counted");
}

// All ranks find an error before anything is sent, and the next call succeeds.
static void refusals(const shape& s, char* heap) {
    buffers b(s, heap, 40);
    std::vector<long long> slots(30 * s.k, -1);
    auto layout = [&](symrail_u64 tokens) { b.layout(slots.data(), tokens); };
    auto look = [&](symrail_u64 state, symrail_u64 wrong, symrail_u64 other, symrail_u64 here, symrail_u64 there, const char* what) {
        expect(b.now.state == state && b.heard().wrong == wrong && b.heard().other == other && b.heard().here == here && b.heard().there == there, what);
        b.end();
        b.heard().wrong = NOTHING;
    };
    slots[5] = s.ranks * s.share, slots[7] = -2;
    layout(30);
    b.begin(true, 1, 64, 0, 0, 30);
    look(NOT_MADE, NO_EXPERT, job.me, 5, s.ranks * s.share, "an index without an expert");
    slots[5] = slots[7] = -1;
    layout(30);
    b.begin(true, 1, job.me == 1 ? 32 : 64, 0, 0, 30);
    look(REFUSED, DIFFERENT + 1, job.me == 1 ? 0 : 1, job.me == 1 ? 32 : 64, job.me == 1 ? 64 : 32, "rows of other sizes");
    for (symrail_u64 kind : {1ull, COMBINE}) {
        b.begin(true, kind, 64, 0, 0, 30, job.me == 1 ? 7 : 8);
        look(REFUSED, DIFFERENT + 5, job.me == 1 ? 0 : 1, job.me == 1 ? 7 : 8, job.me == 1 ? 8 : 7, "rows of other types");
    }
    for (symrail_u64 token = 0; token < 30; token++) slots[token * s.k] = 0;
    layout(30);
    b.begin(true, 1, 64, 0, 0, 30);
    look(REFUSED, NO_ROOM, 0, 40, 30 * s.ranks, "more rows than there is room");
    for (symrail_u64 kind : {2ull, COMBINE}) {
        b.begin(false, kind, 64, 0, 0, 30);
        look(REFUSED, NO_ROOM, 0, 40, 30 * s.ranks, "routes that had no room");
    }
    layout(30);
    // The last rank uses the routes of another dispatch.
    if (job.me == 2) b.matrix[3] = 7;
    b.begin(false, 2, 64, 0, 0, 30);
    expect(b.now.state == REFUSED && b.heard().wrong == DIFFERENT + 4 && b.heard().other == (job.me == 2 ? 0 : 2), "routes that differ");
    b.end();
    b.heard().wrong = NOTHING;
    layout(10);
    // The caller's memory on the first rank holds one row less than come there.
    b.begin(true, 1, 64, 0, 0, 30, 8, job.me == 0 ? 10 * s.ranks - 1 : 0);
    look(REFUSED, NO_ROOM, 0, 10 * s.ranks - 1, 10 * s.ranks, "a caller without room");
    b.begin(true, 1, 64, 0, 0, 30, 8, job.me == 0 ? 10 * s.ranks : 0);
    look(GOES, NOTHING, b.heard().other, b.heard().here, b.heard().there, "a call after those");
}

// Checks the state after a call in which a rank was late. Only the first block waited for the rank, by at most
// `threads` threads, and no later call waits for it.
static void expect_late(buffers& b, symrail_u64 who, symrail_u64 threads, const char* what) {
    volatile symrail_u64* late = b.heard().announced() + b.s.ranks;
    for (symrail_u64 rank = 0; rank < b.s.ranks; rank++) expect(late[rank] == (rank == who), what);
    expect(b.heard().wrong == LATE && b.heard().other == who, what);
    symrail_u64 waits = job.time_outs;
    expect(waits > 0 && waits <= threads, "one time-out is for all blocks");
    b.end();
    b.heard().wrong = NOTHING;
    b.begin(false, 2, 64, 0, 0, 30);
    expect(b.now.state == NOT_MADE && b.heard().wrong == LATE && job.time_outs == waits, "a call after a late rank");
    symrail_u64 other = job.me;
    launch(1, b.THREADS, [&] { has_set(b.p, (symrail_u64*)b.p.heap.header_words + other, ~0ull, other, other); });
    expect(job.time_outs == waits, "an alarm ends waits that have begun");
    expect(late[other] == 0, "a rank for which a wait has just begun is not late");
}
// A rank does not arrive.
static void late(const shape& s, char* heap) {
    buffers b(s, heap, s.ranks * s.tokens);
    round(b, 0, true, true);
    if (job.me == 1) return;
    job.timeout_ns = 1500000000;
    b.begin(false, 2, 64, 0, 0, 30);
    expect(b.now.state == NOT_MADE && b.heard().announced()[1] == b.heard().calls, "a rank that has not announced a call");
    expect_late(b, 1, 1, "a rank that does not come");
}
// A rank announces a dispatch, or a combine, and sends nothing.
template <bool OF_COMBINE>
static void lost(const shape& s, char* heap) {
    buffers b(s, heap, s.ranks * s.tokens);
    std::vector<long long> slots(s.tokens * s.k);
    for (symrail_u64 i = 0; i < slots.size(); i++) slots[i] = i % (s.ranks * s.share);
    std::vector<uint4> given(s.tokens * s.bytes / 16), rows(s.ranks * s.tokens * s.bytes / 16);
    std::vector<int> sources(s.ranks * s.tokens);
    std::vector<float> sums(s.tokens * s.k);
    auto send = [&](symrail_u64 back) {
        const char* from = (const char*)(back ? rows : given).data();
        launch(3, b.THREADS, [&] { ep_send(&b.p, &b.r, back, from, s.bytes, 0, 0, slots.data(), 0, 0); });
        if (!back) launch(3, b.THREADS, [&] { ep_offer_tokens(&b.p, s.tokens, from, s.bytes, 0, 0, slots.data(), 0, 0); });
    };
    auto receive = [&] {
        launch(2, b.THREADS, [&] { ep_spread(&b.p, &b.r, 1, s.bytes, 0, 0); });
        launch(4, b.THREADS, [&] { ep_receive(&b.p, &b.r, s.tokens, (const char*)given.data(), s.bytes, 0, 0, slots.data(), 0, 0, (char*)rows.data(), 0, 0, 0, sources.data()); });
    };
    b.layout(slots.data(), s.tokens);
    b.begin(true, 1, s.bytes, 0, 0, s.tokens);
    if (OF_COMBINE) {
        send(0);
        receive();
        b.begin(false, COMBINE, s.bytes, 0, 0, s.tokens);
    }
    if (job.me == 1) return;
    job.timeout_ns = 1500000000;
    send(OF_COMBINE);
    if (!OF_COMBINE) return receive(), expect_late(b, 1, 2 * b.THREADS / 32, "a rank that announces a dispatch and sends nothing");
    launch(4, b.THREADS, [&] { ep_add(&b.p, &b.r, s.bytes, 0, s.f32); });
    b.reduce(4, (char*)rows.data(), s.tokens, 0, nullptr, nullptr, nullptr, (char*)given.data(), (char*)sums.data());
    expect_late(b, 1, 2 * chunks(s.tokens), "a rank that announces a combine and sends nothing");
}

int main() {
    int failures = 0;
    // The mapped ranks are all, none, or those of a host.
    auto check = [&](const shape& s, int mapped, auto work, const char* what) {
        // With one or two ranks the third choice equals one of the first two.
        if (s.ranks < 3 && mapped >= (int)s.ranks && s.ranks_of_host == 1) return;
        int each = s.ranks_of_host > 1 ? s.ranks_of_host : 2;
        auto is_mapped = [=](int a, int b) { return mapped == 0 || (mapped == 2 && a / each == b / each); };
        if (on_all(s.ranks, 8 << 20, is_mapped, [&](char* heap) { work(s, heap); })) return;
        printf("%s: %llu ranks, %llu tokens, %llu experts each, top-%llu, rows of %llu bytes, mapped %d\n", what, s.ranks, s.tokens,
               s.share, s.k, s.bytes, mapped);
        failures++;
    };
    for (int mapped : {0, 1, 2}) {
        check({1, 9, 3, 2, 1, 32, false, 1}, mapped, calls, "calls");
        check({3, 100, 2, 16, 0, 16, true, 1}, mapped, calls, "calls");
        check({4, 40, 8, 4, 3, 48, true, 2}, mapped, calls, "calls");
        // Large models: 2,048 experts; rows of 8,192 elements with scales.
        check({2, 20, 1024, 16, 0, 16, true, 1}, mapped, calls, "calls");
        check({3, 3, 2, 8, 64, 16384, false, 1}, mapped, calls, "calls");
        check({3, 30, 2, 4, 0, 64, false, 1}, mapped, refusals, "refusals");
    }
    // One host, whose tokens have up to two, four and five rows; two hosts of three ranks; four hosts; a host with fewer
    // ranks than the others.
    check({2, 70, 4, 3, 2, 64, false, 2}, 2, calls, "calls");
    check({4, 14, 2, 7, 3, 4128, false, 4}, 0, calls, "calls");
    check({5, 20, 2, 9, 0, 2064, true, 5}, 0, calls, "calls");
    check({6, 60, 2, 8, 1, 64, true, 3}, 2, calls, "calls");
    check({8, 20, 2, 3, 0, 16, false, 2}, 2, calls, "calls");
    check({5, 40, 3, 4, 2, 32, true, 2}, 2, calls, "calls");
    // Tokens of two sources on a host of three pass through one rank of a host of two.
    check({5, 40, 3, 4, 2, 32, false, 3}, 2, calls, "calls");
    check({2, 20, 2, 2, 1, 64, false, 1}, 0, late, "late");
    for (bool all : {true, false}) {
        check({2, 200, 2, 2, 0, 64, false, all ? 2 : 1}, all ? 0 : 1, lost<false>, "lost before a dispatch's rows");
        check({2, 200, 2, 2, 0, 64, false, all ? 2 : 1}, all ? 0 : 1, lost<true>, "lost before a combine's rows");
    }
    printf(failures == 0 ? "well\n" : "%d failures\n", failures);
    return failures != 0;
}
