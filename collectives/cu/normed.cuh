/* An all-reduce, a residual and an RMS norm in one launch: every rank sends all its rows to all others, in packets or
 * through slots, and each rank adds up whole rows, adds the residual, and normalises them:
 *
 *     sum = residual + the sum of the ranks' inputs, rounded to the type of elements
 *     output = sum / sqrt(mean(sum^2) + epsilon) * weight, of that type or as FP8 (e4m3)
 *
 * A row belongs to one block, which passes over it twice: each thread stores its elements of the sum, and reads them
 * again when the mean is known. Ranks add in the same order, so that all get the same bits. */
#ifndef SYMRAIL_NORMED_CUH
#define SYMRAIL_NORMED_CUH

#include "lanes.cuh"
#include "packets.cuh"
#include "pushed.cuh"

/* Elements with a scale in common. */
#define SYMRAIL_NORM_GROUP 128u
/* Chunks that a block pushes ahead; fewer than slots. */
#define SYMRAIL_NORM_AHEAD 3u

/* All threads of a block. */
struct symrail_whole_block : symrail_block_scope {
    static SYMRAIL_WAITER_FN bool any(bool yes) { return __syncthreads_or(yes ? 1 : 0) != 0; }
};

/* BYTES bytes of a row, 8 or 16, of which `left` exist. Where 16 bytes are not ALIGNED, they are loaded and stored by
 * halves: threads have the same elements on all ranks, whose memory may differ in that. */
template <int BYTES, bool ALIGNED>
struct symrail_norm_vector {
    SYMRAIL_SCOPE_FN void load(symrail_u64 from, symrail_u64 left, symrail_u64* raw) {
        if (BYTES == 16 && ALIGNED) {
            symrail_wide both = symrail_peer_source::load((const symrail_wide*)from);
            raw[0] = both.a, raw[BYTES / 8 - 1] = both.b;
        } else {
#pragma unroll
            for (int i = 0; i < BYTES / 8; i++)
                raw[i] = left > 8u * i ? symrail_load_some((const char*)from + 8 * i, left - 8 * i) : 0;
        }
    }
    SYMRAIL_SCOPE_FN void store(symrail_u64 to, symrail_u64 left, const symrail_u64* raw) {
        if (BYTES == 16 && ALIGNED) {
            symrail_wide both = {raw[0], raw[BYTES / 8 - 1]};
            symrail_store((symrail_wide*)to, both);
        } else {
#pragma unroll
            for (int i = 0; i < BYTES / 8; i++)
                if (left > 8u * i) symrail_store_some((char*)to + 8 * i, raw[i], left - 8 * i);
        }
    }
};

template <class N>
struct symrail_normed : symrail_pushed<N> {
    typedef symrail_whole_block all;
    const symrail_norm& norm;
    float* shared;
    symrail_u64 row_bytes;

    SYMRAIL_WAITER_FN symrail_normed(const symrail_norm& norm, symrail_u64* done, float* shared, symrail_u32 block)
        : symrail_pushed<N>(norm.straight, done, block), norm(norm), shared(shared) {
        row_bytes = norm.hidden * sizeof(typename N::stored);
    }

    /* Adds the residual to a vector's sum, stores it, and returns the sum of its elements' squares. */
    template <int BYTES, bool ALIGNED>
    SYMRAIL_WAITER_FN float keep(symrail_elements<N, BYTES>& sum, symrail_u64 at, symrail_u64 left,
                                 const symrail_u64* residual) const {
        const int count = BYTES / sizeof(typename N::stored);
        symrail_u64 raw[BYTES / 8];
        symrail_elements<N, BYTES> more;
        if (norm.residual != 0) {
            more.unpack(residual);
#pragma unroll
            for (int i = 0; i < count; i++) sum.v[i] += more.v[i];
        }
        sum.pack(raw);
        sum.unpack(raw);
        symrail_norm_vector<BYTES, ALIGNED>::store(norm.sum + at, left, raw);
        float squares = 0;
#pragma unroll
        for (int i = 0; i < count; i++)
            if (i * sizeof(typename N::stored) < left) squares += sum.v[i] * sum.v[i];
        return squares;
    }

    /* Normalises a row, whose threads' squares have these sums. */
    template <int BYTES, bool ALIGNED>
    SYMRAIL_WAITER_FN void finish(symrail_u64 row, float squares) const {
        const int element = sizeof(typename N::stored), count = BYTES / element;
        float mean = symrail_block_sum(squares, shared) / (float)norm.hidden;
        float by = 1.0f / sqrtf(mean + symrail_float_of((symrail_u32)norm.epsilon)), scale = 1;
        if (norm.scaled == SYMRAIL_NORM_BY_TENSOR) scale = *(const float*)norm.scales;
        symrail_u64 vectors = (row_bytes + BYTES - 1) / BYTES, laps = (vectors + all::size() - 1) / all::size();
        for (symrail_u64 lap = 0; lap < laps; lap++) {
            symrail_u64 at = (lap * all::size() + all::rank()) * BYTES, left = at < row_bytes ? row_bytes - at : 0;
            symrail_u64 raw[BYTES / 8] = {}, weight[BYTES / 8] = {};
            symrail_elements<N, BYTES> values, factors;
            if (left != 0) {
                symrail_norm_vector<BYTES, ALIGNED>::load(norm.sum + row * row_bytes + at, left, raw);
                symrail_norm_vector<BYTES, ALIGNED>::load(norm.weight + at, left, weight);
            }
            values.unpack(raw), factors.unpack(weight);
            float most = 0;
#pragma unroll
            for (int i = 0; i < count; i++) {
                values.v[i] = values.v[i] * by * factors.v[i];
                float size = values.v[i] < 0 ? -values.v[i] : values.v[i];
                most = size > most ? size : most;
            }
            symrail_u64 first = row * norm.hidden + at / element;
            if (norm.scaled == SYMRAIL_NORM_PLAIN) {
                values.pack(raw);
                symrail_u64 to = this->call.output + first * element;
                if (left != 0) symrail_norm_vector<BYTES, ALIGNED>::store(to, left, raw);
                continue;
            }
            if (norm.scaled == SYMRAIL_NORM_BY_GROUPS) {
                most = symrail_lanes_max(most, SYMRAIL_NORM_GROUP / count, shared);
                scale = (most > 1e-10f ? most : 1e-10f) / 448.0f;
                if (left != 0 && at / element % SYMRAIL_NORM_GROUP == 0)
                    ((float*)norm.scales)[first / SYMRAIL_NORM_GROUP] = scale;
            }
            symrail_u64 codes = 0;
#pragma unroll
            for (int i = 0; i < count; i++)
                codes |= (symrail_u64)symrail_e4m3::store(values.v[i] / scale) << (8 * i % 64);
            if (left != 0) symrail_store_some((char*)(this->call.output + first), codes, (left < BYTES ? left : BYTES) / element);
        }
    }

    /* Rows in packets: all are sent before the first is awaited. */
    SYMRAIL_WAITER_FN void packets() {
        const symrail_straight& call = this->call;
        symrail_straight_launched();
        symrail_u64 number = symrail_ld_gpu(call.words), vectors = (row_bytes + 7) / 8, block = this->block;
        if (!symrail_straight_begin(call, number, block)) return;
        symrail_packets_advance(call, number);
        symrail_u32 flag = symrail_packets_flag(number);
        symrail_u64 half = call.packets + (number & 1) * (call.n - 1) * call.region;
        for (symrail_u64 row = block; row < norm.rows; row += call.blocks) {
            symrail_u64 from = call.input + row * row_bytes;
            for (symrail_u64 k = all::rank(); k < vectors; k += all::size()) {
                symrail_u64 data = symrail_load_some((const char*)from + 8 * k, row_bytes - 8 * k);
                for (symrail_u64 i = 1; i < call.n; i++) {
                    symrail_u64 to = this->other(i);
                    symrail_u64 there = half + call.ranks[to].distance + symrail_place_at(call.me, to) * call.region;
                    symrail_packet16_write(there + 16 * (row * vectors + k), data, flag);
                }
            }
        }
        bool good = true;
        for (symrail_u64 row = block; row < norm.rows; row += call.blocks) {
            float squares = 0;
            for (symrail_u64 k = all::rank(); good && k < vectors; k += SYMRAIL_PACKETS_MANY * all::size())
                good = take<SYMRAIL_PACKETS_MANY>(half, flag, row, k, squares);
            if (all::any(!good)) return;
            finish<8, false>(row, squares);
        }
        if (block == 0) symrail_packets_wipe(call, half, number, norm.rows * vectors);
    }

    /* Adds up MANY of the thread's packets of a row. */
    template <int MANY>
    SYMRAIL_WAITER_FN bool take(symrail_u64 half, symrail_u32 flag, symrail_u64 row, symrail_u64 first, float& squares) const {
        const symrail_straight& call = this->call;
        symrail_u64 vectors = (row_bytes + 7) / 8, threads = all::size(), at = row * row_bytes;
        symrail_u64 mine[MANY], raw[MANY], residual[MANY] = {};
        symrail_elements<N, 8> sum[MANY], more;
#pragma unroll
        for (int k = 0; k < MANY; k++) {
            symrail_u64 vector = first + k * threads, left = row_bytes - 8 * vector;
            mine[k] = vector < vectors ? symrail_load_some((const char*)call.input + at + 8 * vector, left) : 0;
            if (norm.residual != 0 && vector < vectors)
                residual[k] = symrail_load_some((const char*)norm.residual + at + 8 * vector, left);
        }
        for (symrail_u64 rank = 0; rank < call.n; rank++) {
            symrail_u64 here = half + symrail_place_at(rank, call.me) * call.region + 16 * row * vectors;
            auto came = [&]() {
                bool all_came = true;
#pragma unroll
                for (int k = 0; k < MANY; k++)
                    if (first + k * threads < vectors)
                        all_came &= symrail_packet16_read(here + 16 * (first + k * threads), flag, raw[k]);
                return all_came;
            };
#pragma unroll
            for (int k = 0; k < MANY; k++) raw[k] = mine[k];
            if (rank != call.me && !symrail_straight_await(call, came, rank, this->block)) return false;
#pragma unroll
            for (int k = 0; k < MANY; k++) {
                if (rank == 0) sum[k].unpack(&raw[k]);
                else {
                    more.unpack(&raw[k]);
                    sum[k].take(SYMRAIL_REDUCE_SUM, more, false);
                }
            }
        }
#pragma unroll
        for (int k = 0; k < MANY; k++) {
            symrail_u64 vector = first + k * threads;
            symrail_u64 left = row_bytes - 8 * vector;
            if (vector < vectors) squares += keep<8, false>(sum[k], at + 8 * vector, left, &residual[k]);
        }
        return true;
    }

    /* The block's rows; the bytes of a chunk, and the chunks of a row or the rows of a chunk, of which one is 1. */
    SYMRAIL_WAITER_FN symrail_u64 first_row() const { return this->block * norm.rows / this->call.blocks; }
    SYMRAIL_WAITER_FN symrail_u64 end_row() const { return (this->block + 1) * norm.rows / this->call.blocks; }

    /* Chunk `i`: its first byte in all rows, and its bytes. */
    SYMRAIL_WAITER_FN symrail_u64 span(symrail_u64 i, symrail_u64& bytes) const {
        symrail_u64 chunk = this->call.chunk, row, within = 0;
        if (norm.rows_of_chunk > 0) {
            row = first_row() + i * norm.rows_of_chunk;
            symrail_u64 rows = end_row() - row < norm.rows_of_chunk ? end_row() - row : norm.rows_of_chunk;
            bytes = rows * row_bytes;
        } else {
            symrail_u64 of_row = (row_bytes + chunk - 1) / chunk;
            row = first_row() + i / of_row, within = i % of_row * chunk;
            bytes = row_bytes - within < chunk ? row_bytes - within : chunk;
        }
        return row * row_bytes + within;
    }

    SYMRAIL_WAITER_FN bool push(symrail_u64 i) const {
        const symrail_straight& call = this->call;
        if (!this->template room<all>(i, nullptr)) return false;
        symrail_u64 bytes, at = span(i, bytes);
        auto to = [this, i](symrail_u64 k) { return this->slot(0, i, this->call.me, this->other(k + 1)); };
        symrail_copy_to_each<all, symrail_own_source>(to, call.n - 1, call.input + at, bytes);
        this->template tell<all>(0, i, nullptr);
        return true;
    }

    /* Adds up bytes `at` to `at` + `bytes` of a row, which chunk `i` has from `within` on. */
    template <int BYTES, bool ALIGNED>
    SYMRAIL_WAITER_FN float add_up(symrail_u64 i, symrail_u64 within, symrail_u64 at, symrail_u64 bytes) const {
        const symrail_straight& call = this->call;
        float squares = 0;
        for (symrail_u64 k = all::rank() * BYTES; k < bytes; k += all::size() * BYTES) {
            symrail_u64 raw[BYTES / 8], residual[BYTES / 8] = {}, left = bytes - k;
            symrail_elements<N, BYTES> sum, more;
            if (norm.residual != 0) symrail_norm_vector<BYTES, ALIGNED>::load(norm.residual + at + k, left, residual);
            for (symrail_u64 rank = 0; rank < call.n; rank++) {
                symrail_u64 from = rank == call.me ? call.input + at + k : this->slot(0, i, rank, call.me) + within + k;
                symrail_norm_vector<BYTES, ALIGNED>::load(from, left, raw);
                if (rank == 0) sum.unpack(raw);
                else {
                    more.unpack(raw);
                    sum.take(SYMRAIL_REDUCE_SUM, more, false);
                }
            }
            squares += keep<BYTES, ALIGNED>(sum, at + k, left, residual);
        }
        return squares;
    }

    /* Rows through slots, in vectors of 16 bytes. */
    template <bool ALIGNED>
    SYMRAIL_WAITER_FN void pushes() {
        const symrail_straight& call = this->call;
        symrail_straight_launched();
        symrail_u64 word = call.words + 16 + 8 * this->block, rows = end_row() - first_row();
        this->begin_at(symrail_ld_gpu(word));
        symrail_u64 of_row = norm.rows_of_chunk > 0 ? 1 : (row_bytes + call.chunk - 1) / call.chunk;
        symrail_u64 per = norm.rows_of_chunk > 0 ? norm.rows_of_chunk : 1, chunks = (rows + per - 1) / per * of_row;
        if (!symrail_straight_begin(call, this->first, this->block)) return;
        if (all::rank() == 0) symrail_st_gpu(word, this->first + chunks * this->slots);
        for (symrail_u64 i = 0; i < chunks && i < SYMRAIL_NORM_AHEAD; i++)
            if (!push(i)) return;
        float squares = 0;
        for (symrail_u64 i = 0; i < chunks; i++) {
            if (i + SYMRAIL_NORM_AHEAD < chunks && !push(i + SYMRAIL_NORM_AHEAD)) return;
            if (!this->template await<all>(0, this->end(i), nullptr, 0)) return;
            symrail_u64 bytes, at = span(i, bytes);
            if (of_row > 1) {
                squares += add_up<16, ALIGNED>(i, 0, at, bytes);
            } else {
                for (symrail_u64 within = 0; within < bytes; within += row_bytes) {
                    squares = add_up<16, ALIGNED>(i, within, at + within, row_bytes);
                    finish<16, ALIGNED>((at + within) / row_bytes, squares);
                }
            }
            this->template tell<all>(1, i, nullptr);
            if (of_row > 1 && i % of_row == of_row - 1) {
                finish<16, ALIGNED>(at / row_bytes, squares);
                squares = 0;
            }
        }
    }
};

#endif
