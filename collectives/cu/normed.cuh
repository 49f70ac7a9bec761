/* An all-reduce, a residual and an RMS norm in one launch:
 *
 *     sum = residual + the sum of the ranks' inputs, rounded to the type of elements
 *     output = sum / sqrt(mean(sum^2) + epsilon) * weight, of that type or as FP8 (e4m3)
 *
 * Few rows travel in packets: every rank sends all its rows to all others, and adds up all of them itself. Of more rows
 * each rank owns an equal part, which the others push to it through slots: the owner adds up the ranks' rows and the
 * residual, and pushes the sums to all others; every rank then normalises all rows. So 2 (n - 1) / n times the rows'
 * bytes leave each of n ranks, for n - 1 times if every rank added all rows. If owners pushed normalised rows as well,
 * 3 (n - 1) / n times would leave (2.5 as FP8): two bytes take 5.6 ps of a link of 360 GB/s, and the 10 or so
 * instructions that normalise an element 1.5 ps of 64 multiprocessors.
 *
 * All ranks get the same bits: sums are made in the order of ranks, at their owner or everywhere in the same way, and
 * squares are added by the same threads in the same order on all ranks. */
#ifndef SYMRAIL_NORMED_CUH
#define SYMRAIL_NORMED_CUH

#include "convert.cuh"
#include "lanes.cuh"
#include "packets.cuh"
#include "pushed.cuh"
#include "rows.cuh"

/* Vectors that a thread has at a time: of rows that are pushed, and of rows in packets. */
#define SYMRAIL_NORM_MANY 4
#define SYMRAIL_NORM_FEW 2
/* Rows that a block sends ahead of the one that it adds up. */
#define SYMRAIL_NORM_AHEAD 2
/* Elements with a scale in common. */
#define SYMRAIL_NORM_GROUP 128u

/* All threads of a block. */
struct symrail_whole_block : symrail_block_scope {
    static SYMRAIL_WAITER_FN bool any(bool yes) { return __syncthreads_or(yes ? 1 : 0) != 0; }
};

template <class N>
struct symrail_normed : symrail_pushed<N> {
    typedef symrail_whole_block all;
    /* A row that goes through slots belongs to a quarter of a block, so that four rows are under way. */
    typedef symrail_quarter some;
    typedef symrail_own_source own;
    typedef symrail_peer_source peer;
    typedef symrail_row_lap<all, 16, SYMRAIL_NORM_FEW> few;
    static const symrail_u32 missing = 0xffffffffu;
    const symrail_norm& norm;
    float* shared;
    /* Bytes of a row, and of its place in slots, which is aligned. */
    symrail_u64 row_bytes;
    symrail_u64 stride;

    SYMRAIL_WAITER_FN symrail_normed(const symrail_norm& norm, symrail_u64* done, float* shared, symrail_u32 block)
        : symrail_pushed<N>(norm.straight, done, block), norm(norm), shared(shared) {
        row_bytes = norm.hidden * sizeof(typename N::stored);
        stride = (row_bytes + 15) / 16 * 16;
        /* A row that is longer than two slots has all four. */
        if (this->call.chunk > 2 * this->call.slot_bytes) this->slots = SYMRAIL_PUSHED_SLOTS;
    }

    SYMRAIL_WAITER_FN symrail_u64 sum_of(symrail_u64 row) const { return norm.sum + row * row_bytes; }

    /* Adds the squares of a thread's elements of the sum, one after the other: other ranks have other laps. */
    template <class S, int BYTES, int MANY>
    SYMRAIL_WAITER_FN void add_squares(float& squares, const symrail_row_lap<S, BYTES, MANY>& sums) const {
        const int count = BYTES / sizeof(typename N::stored);
#pragma unroll
        for (int k = 0; k < MANY; k++) {
            symrail_converted<N, BYTES> values;
            values.unpack(sums.raw[k]);
#pragma unroll
            for (int i = 0; i < count; i++) squares += values.v[i] * values.v[i];
        }
    }

    /* Normalises a row, whose threads' squares have these sums. `sums` has the thread's part of the row's last lap,
     * which begins at byte `last`; the others are loaded. */
    template <bool ALIGNED, class S, int BYTES, int MANY>
    SYMRAIL_WAITER_FN void finish(symrail_u64 row, float squares, symrail_row_lap<S, BYTES, MANY>& sums,
                                  symrail_u64 last) const {
        symrail_row_lap<S, BYTES, MANY> weights;
        weights.template load<own, ALIGNED>(norm.weight, last, row_bytes);
        float mean = symrail_sum_over<S>(squares, shared) / (float)norm.hidden;
        float by = 1.0f / sqrtf(mean + symrail_float_of((symrail_u32)norm.epsilon)), factor = 1;
        if (norm.scaled == SYMRAIL_NORM_BY_TENSOR) factor = 1.0f / *(const float*)norm.scales;
        for (symrail_u64 first = last;;) {
#pragma unroll
            for (int k = 0; k < MANY; k++)
                put<S, BYTES, ALIGNED>(row, sums.at(first, k), sums.raw[k], weights.raw[k], by, factor);
            if (first == 0) return;
            first -= sums.size();
            sums.template load<peer, ALIGNED>(sum_of(row), first, row_bytes);
            weights.template load<own, ALIGNED>(norm.weight, first, row_bytes);
        }
    }

    /* Normalises the vector at byte `at` of a row. All threads of the scope call it together. */
    template <class S, int BYTES, bool ALIGNED>
    SYMRAIL_WAITER_FN void put(symrail_u64 row, symrail_u64 at, symrail_u64* raw, const symrail_u64* weight, float by,
                               float factor) const {
        const int element = sizeof(typename N::stored), count = BYTES / element;
        symrail_u64 left = at < row_bytes ? row_bytes - at : 0, first = row * norm.hidden + at / element;
        symrail_converted<N, BYTES> values, factors;
        values.unpack(raw), factors.unpack(weight);
#pragma unroll
        for (int i = 0; i < count; i++) values.v[i] = values.v[i] * by * factors.v[i];
        if (norm.scaled == SYMRAIL_NORM_PLAIN) {
            values.pack(raw);
            if (left != 0) symrail_row_vector<BYTES, ALIGNED>::store(this->call.output + first * element, left, raw);
            return;
        }
        if (norm.scaled == SYMRAIL_NORM_BY_GROUPS) {
            float most = 0;
#pragma unroll
            for (int i = 0; i < count; i++) {
                float size = values.v[i] < 0 ? -values.v[i] : values.v[i];
                most = size > most ? size : most;
            }
            most = symrail_lanes_max<S>(most, SYMRAIL_NORM_GROUP / count, shared);
            float scale = (most > 1e-10f ? most : 1e-10f) / 448.0f;
            factor = 1.0f / scale;
            if (left != 0 && at / element % SYMRAIL_NORM_GROUP == 0)
                ((float*)norm.scales)[first / SYMRAIL_NORM_GROUP] = scale;
        }
#pragma unroll
        for (int i = 0; i < count; i++) values.v[i] *= factor;
        symrail_u64 codes = symrail_e4m3_codes<count>(values.v);
        symrail_u64 to = this->call.output + first;
        if (left == 0) return;
        if (ALIGNED && count == 8) *(symrail_u64*)to = codes;
        else if (ALIGNED) *(symrail_u32*)to = (symrail_u32)codes;
        else symrail_store_any(to, codes, (left < BYTES ? left : BYTES) / element);
    }

    /* Adds what another rank, or the residual, has for a vector. */
    template <int BYTES>
    SYMRAIL_WAITER_FN void add(symrail_converted<N, BYTES>& sum, const symrail_u64* raw) const {
        symrail_converted<N, BYTES> more;
        more.unpack(raw);
        sum.template all<SYMRAIL_REDUCE_SUM>(more);
    }

    /* Packets of rows have no flags: a word of 32 bits that has not arrived is `missing`, which a reader leaves behind in
     * its place. Of a row that has it, the bits of a NaN, another NaN is sent and added up. */
    static SYMRAIL_WAITER_FN symrail_u64 present(symrail_u64 raw) {
        symrail_u64 low = (symrail_u32)raw, high = raw >> 32;
        return (low == missing ? low >> 1 : low) | (high == missing ? high >> 1 : high) << 32;
    }
    static SYMRAIL_WAITER_FN bool is_present(symrail_u64 raw) { return (symrail_u32)raw != missing && raw >> 32 != missing; }

    /* A thread's part of a row of this rank, as it is sent and added up. */
    template <bool ALIGNED>
    SYMRAIL_WAITER_FN void load_mine(few& mine, symrail_u64 row, symrail_u64 first) const {
        mine.template load<own, ALIGNED>(this->call.input + row * row_bytes, first, row_bytes);
#pragma unroll
        for (int k = 0; k < SYMRAIL_NORM_FEW; k++)
            mine.raw[k][0] = present(mine.raw[k][0]), mine.raw[k][1] = present(mine.raw[k][1]);
    }

    template <bool ALIGNED>
    SYMRAIL_WAITER_FN void send(symrail_u64 half, symrail_u64 row) const {
        const symrail_straight& call = this->call;
        for (symrail_u64 first = 0; row < norm.rows && first < row_bytes; first += few::size()) {
            few mine;
            load_mine<ALIGNED>(mine, row, first);
            for (symrail_u64 i = 1; i < call.n; i++) {
                symrail_u64 to = this->other(i), place = symrail_place_at(call.me, to);
                symrail_u64 there = half + call.ranks[to].distance + place * norm.inbox_bytes + row * stride;
#pragma unroll
                for (int k = 0; k < SYMRAIL_NORM_FEW; k++) {
                    symrail_u64 at = few::at(first, k);
                    if (at < row_bytes) symrail_st_pair(there + at, mine.raw[k][0], mine.raw[k][1]);
                }
            }
        }
    }

    /* Rows in packets. Some of a block's rows are under way while it adds up those before them. */
    template <bool ALIGNED>
    SYMRAIL_WAITER_FN void packets() {
        const symrail_straight& call = this->call;
        symrail_straight_launched();
        symrail_u64 number = symrail_ld_gpu(call.words), block = this->block;
        if (!symrail_straight_begin(call, number, block)) return;
        symrail_packets_advance(call, number);
        symrail_u64 half = norm.inbox + (number & 1) * (call.n - 1) * norm.inbox_bytes;
        for (symrail_u64 i = 0; i < SYMRAIL_NORM_AHEAD; i++) send<ALIGNED>(half, block + i * call.blocks);
        bool good = true;
        for (symrail_u64 row = block; row < norm.rows; row += call.blocks) {
            float squares = 0;
            symrail_u64 last = 0;
            few sums = {};
            for (symrail_u64 first = 0; first < row_bytes; first += few::size()) {
                if (good) good = receive<ALIGNED>(half, row, first, sums);
                add_squares(squares, sums);
                last = first;
            }
            if (all::any(!good)) return;
            send<ALIGNED>(half, row + SYMRAIL_NORM_AHEAD * call.blocks);
            finish<ALIGNED>(row, squares, sums, last);
        }
    }

    /* Adds up the thread's packets of a lap of a row. */
    template <bool ALIGNED>
    SYMRAIL_WAITER_FN bool receive(symrail_u64 half, symrail_u64 row, symrail_u64 first, few& sums) const {
        const symrail_straight& call = this->call;
        few mine, came_in = {}, residual;
        symrail_converted<N, 16> sum[SYMRAIL_NORM_FEW];
        load_mine<ALIGNED>(mine, row, first);
        if (norm.residual != 0) residual.template load<own, ALIGNED>(norm.residual + row * row_bytes, first, row_bytes);
        for (symrail_u64 rank = 0; rank < call.n; rank++) {
            symrail_u64 here = half + symrail_place_at(rank, call.me) * norm.inbox_bytes + row * stride;
            auto came = [&]() {
                bool all_came = true;
#pragma unroll
                for (int k = 0; k < SYMRAIL_NORM_FEW; k++) {
                    symrail_u64 at = few::at(first, k), *raw = came_in.raw[k];
                    if (at >= row_bytes) continue;
                    symrail_ld_pair(here + at, raw[0], raw[1]);
                    all_came &= is_present(raw[0]) && is_present(raw[1]);
                }
                return all_came;
            };
            if (rank != call.me && !symrail_straight_await(call, came, rank, this->block)) return false;
#pragma unroll
            for (int k = 0; k < SYMRAIL_NORM_FEW; k++) {
                symrail_u64 at = few::at(first, k);
                const symrail_u64* raw = rank == call.me ? mine.raw[k] : came_in.raw[k];
                if (rank == 0) sum[k].unpack(raw);
                else add(sum[k], raw);
                if (rank != call.me && at < row_bytes) symrail_st_pair(here + at, ~0ull, ~0ull);
            }
        }
#pragma unroll
        for (int k = 0; k < SYMRAIL_NORM_FEW; k++) {
            if (norm.residual != 0) add(sum[k], residual.raw[k]);
            sum[k].pack(sums.raw[k]);
        }
        sums.template store<ALIGNED>(sum_of(row), first, row_bytes);
        return true;
    }

    /* This block's rows of an owner in chunk `i`: the first one, and their number. */
    SYMRAIL_WAITER_FN symrail_u64 rows_of(symrail_u64 owner, symrail_u64 i, symrail_u64& count) const {
        symrail_u64 most = (this->block + 1) * norm.rows_of_block, behind = owner * norm.rows_of_rank;
        if (most > norm.rows_of_rank) most = norm.rows_of_rank;
        symrail_u64 end = behind + most < norm.rows ? behind + most : norm.rows;
        symrail_u64 before = (symrail_u32)i / (symrail_u32)norm.parts * norm.rows_of_chunk;
        symrail_u64 first = behind + this->block * norm.rows_of_block + before;
        count = first >= end ? 0 : end - first < norm.rows_of_chunk ? end - first : norm.rows_of_chunk;
        return first;
    }
    /* The first byte in a row of chunk `i`, and the bytes of it; whether the chunk ends rows. */
    SYMRAIL_WAITER_FN symrail_u64 part_of(symrail_u64 i, symrail_u64& bytes) const {
        bytes = row_bytes;
        if (norm.parts == 1) return 0;
        symrail_u64 within = (symrail_u32)i % (symrail_u32)norm.parts * this->call.chunk;
        bytes = row_bytes - within < this->call.chunk ? row_bytes - within : this->call.chunk;
        return within;
    }
    SYMRAIL_WAITER_FN bool is_last(symrail_u64 i) const { return ((symrail_u32)i + 1) % (symrail_u32)norm.parts == 0; }

    template <bool ALIGNED>
    using row_lap = symrail_row_lap<some, 16, ALIGNED ? SYMRAIL_NORM_MANY : 1>;

    /* Quarters take turns with the rows of a chunk, and go on with those of the next chunk, which may be under way
     * already. The turn of a chunk's first row; and whether it is the thread's quarter's turn. */
    SYMRAIL_WAITER_FN symrail_u32 first_turn(symrail_u64 i) const { return (symrail_u32)(i * norm.rows_of_chunk); }
    static SYMRAIL_WAITER_FN bool takes(symrail_u32& turn) { return turn++ % 4 == some::number(); }

    /* Sends chunk `i` of the others' rows to them. */
    template <bool ALIGNED>
    SYMRAIL_WAITER_FN void push(symrail_u64 i) const {
        typedef row_lap<ALIGNED> lap;
        symrail_u32 turn = first_turn(i);
        for (symrail_u64 k = 1; k < this->call.n; k++) {
            symrail_u64 owner = this->other(k), to = this->slot(0, i, this->call.me, owner);
            symrail_u64 rows, bytes, row = rows_of(owner, i, rows), within = part_of(i, bytes);
            for (symrail_u64 j = 0; j < rows; j++) {
                if (!takes(turn)) continue;
                symrail_u64 from = this->call.input + (row + j) * row_bytes + within;
                lap mine, next;
                mine.template load<own, ALIGNED>(from, 0, bytes);
                for (symrail_u64 first = 0; first < bytes; first += lap::size()) {
                    /* Loads overlap with stores, which wait for the link. */
                    next.template load<own, ALIGNED>(from, first + lap::size(), bytes);
                    mine.template store<true>(to + j * stride, first, bytes);
                    mine = next;
                }
            }
        }
        this->template tell<all>(0, i, nullptr);
    }

    /* Adds up chunk `i` of this rank's rows, and sends the sums to all others. */
    template <bool ALIGNED>
    SYMRAIL_WAITER_FN bool add_up(symrail_u64 i) const {
        if (!this->template await<all>(0, this->end(i), nullptr, 0)) return false;
        symrail_u64 rows, bytes, row = rows_of(this->call.me, i, rows), within = part_of(i, bytes);
        symrail_u32 turn = first_turn(i);
        for (symrail_u64 j = 0; j < rows; j++)
            if (takes(turn)) add_row<ALIGNED>(i, j * stride, (row + j) * row_bytes + within, bytes);
        this->template tell<all>(1, i, nullptr);
        return true;
    }

    /* What a rank has for a part of a row, which is at byte `in_slot` of its slot, and at byte `at` of all rows. */
    template <bool ALIGNED>
    SYMRAIL_WAITER_FN void load_of(row_lap<ALIGNED>& to, symrail_u64 rank, symrail_u64 i, symrail_u64 in_slot,
                                   symrail_u64 at, symrail_u64 first, symrail_u64 bytes) const {
        if (rank == this->call.me) to.template load<own, ALIGNED>(this->call.input + at, first, bytes);
        else to.template load<peer, true>(this->slot(0, i, rank, this->call.me) + in_slot, first, bytes);
    }

    template <bool ALIGNED>
    SYMRAIL_WAITER_FN void add_row(symrail_u64 i, symrail_u64 in_slot, symrail_u64 at, symrail_u64 bytes) const {
        typedef row_lap<ALIGNED> lap;
        const symrail_straight& call = this->call;
        const int many = sizeof(lap) / 16;
        for (symrail_u64 first = 0; first < bytes; first += lap::size()) {
            lap some_of, next, residual;
            symrail_converted<N, 16> sum[many];
            load_of<ALIGNED>(some_of, 0, i, in_slot, at, first, bytes);
            load_of<ALIGNED>(next, 1, i, in_slot, at, first, bytes);
            if (norm.residual != 0) residual.template load<own, ALIGNED>(norm.residual + at, first, bytes);
#pragma unroll
            for (int k = 0; k < many; k++) sum[k].unpack(some_of.raw[k]);
            for (symrail_u64 rank = 1; rank < call.n; rank++) {
                some_of = next;
                /* The loads of the next rank's elements overlap. */
                if (rank + 1 < call.n) load_of<ALIGNED>(next, rank + 1, i, in_slot, at, first, bytes);
#pragma unroll
                for (int k = 0; k < many; k++) add(sum[k], some_of.raw[k]);
            }
#pragma unroll
            for (int k = 0; k < many; k++) {
                if (norm.residual != 0) add(sum[k], residual.raw[k]);
                sum[k].pack(some_of.raw[k]);
            }
            for (symrail_u64 k = 1; k < call.n; k++)
                some_of.template store<true>(this->slot(1, i, call.me, this->other(k)) + in_slot, first, bytes);
            some_of.template store<ALIGNED>(norm.sum + at, first, bytes);
        }
    }

    /* Normalises a row. Its sum is in its place, or in a slot, from which it is copied there. */
    template <bool ALIGNED>
    SYMRAIL_WAITER_FN void normalise(symrail_u64 row, symrail_u64 slot) const {
        row_lap<ALIGNED> sums;
        float squares = 0;
        symrail_u64 last = 0;
        for (symrail_u64 first = 0; first < row_bytes; first += sums.size()) {
            if (slot != 0) {
                sums.template load<peer, true>(slot, first, row_bytes);
                sums.template store<ALIGNED>(sum_of(row), first, row_bytes);
            } else {
                sums.template load<peer, ALIGNED>(sum_of(row), first, row_bytes);
            }
            add_squares(squares, sums);
            last = first;
        }
        finish<ALIGNED>(row, squares, sums, last);
    }

    /* Takes the sums of chunk `i`, and normalises the rows that it ends: first this rank's, while the others' sums are
     * on their way. Each quarter waits on its own. The first one, which has signalled, has work last. */
    template <bool ALIGNED>
    SYMRAIL_WAITER_FN bool take(symrail_u64 i) const {
        symrail_u32 turn = first_turn(i) + 1;
        for (symrail_u64 k = 0; k < this->call.n; k++) {
            if (k == 1 && !this->template await<some>(1, this->end(i), nullptr, 0)) return false;
            symrail_u64 owner = this->other(k), from = k == 0 ? 0 : this->slot(1, i, owner, this->call.me);
            symrail_u64 rows, row = rows_of(owner, i, rows);
            for (symrail_u64 j = 0; j < rows; j++) {
                if (!takes(turn)) continue;
                if (norm.parts > 1 && from != 0) take_part<ALIGNED>(i, row, from);
                if (!is_last(i)) continue;
                /* One call: its code is long. */
                normalise<ALIGNED>(row + j, norm.parts > 1 || from == 0 ? 0 : from + j * stride);
            }
        }
        return true;
    }

    /* Copies a part of a sum to its place. */
    template <bool ALIGNED>
    SYMRAIL_WAITER_FN void take_part(symrail_u64 i, symrail_u64 row, symrail_u64 from) const {
        typedef row_lap<ALIGNED> lap;
        symrail_u64 bytes, within = part_of(i, bytes);
        for (symrail_u64 first = 0; first < bytes; first += lap::size()) {
            lap sums;
            sums.template load<peer, true>(from, first, bytes);
            sums.template store<ALIGNED>(sum_of(row) + within, first, bytes);
        }
        some::sync();
    }

    /* Rows through slots. Chunk `i` is pushed when chunk i - `most` has been taken. Then its slots are free: all others
     * have added up what was in the first ring; and in the second one they have taken my sums before they push, without
     * which I add nothing up. */
    template <bool ALIGNED>
    SYMRAIL_WAITER_FN void pushes() {
        const symrail_straight& call = this->call;
        symrail_straight_launched();
        symrail_u64 word = call.words + 16 + 8 * this->block, number = symrail_ld_gpu(word), from = all::rank();
        /* The loads of the number and of the others' words overlap. */
        symrail_u64 freed = ~0ull;
        if (from < call.n && from != call.me) freed = symrail_ld_acquire((const symrail_u64*)this->filled(1, from));
        this->begin_at(number);
        if (!symrail_straight_begin(call, number, this->block)) return;
        if (all::rank() == 0) symrail_st_gpu(word, this->first + norm.chunks * this->slots);
        /* Earlier calls' chunks have left the slots. */
        if (all::any(freed < number) && !this->template await<all>(1, number, nullptr, 0)) return;
        /* The sums of a chunk travel while the next one is added up, if there is room for two. */
        symrail_u64 most = SYMRAIL_PUSHED_SLOTS / this->slots, behind = most > 1 ? 1 : 0, pushed = 0;
        for (symrail_u64 i = 0; i < norm.chunks + behind; i++) {
            symrail_u64 taken = i > behind ? i - behind : 0;
            for (; pushed < norm.chunks && pushed < taken + most; pushed++) push<ALIGNED>(pushed);
            if (i < norm.chunks && !add_up<ALIGNED>(i)) return;
            bool good = i < behind || take<ALIGNED>(i - behind);
            if (i + 1 < norm.chunks + behind && all::any(!good)) return;
        }
    }
};

#endif
