/* One block's steps of an execution plan, as collectives/src/run/block.rs performs them on the CPU. All threads of
 * the block call every function here together, unless it says otherwise, and synchronise after each step. */
#ifndef SYMRAIL_EXECUTOR_CUH
#define SYMRAIL_EXECUTOR_CUH

#include "plan.cuh"
#include "elements.cuh"
#include "proxied.cuh"

typedef symrail_block_scope symrail_all_threads;

/* In the place of a step, for messages: the ranks meet. */
#define SYMRAIL_NO_STEP 0xffffffffu
/* Loads of several sources that each thread has in flight at a time. */
#define SYMRAIL_PACKETS_AHEAD 4
#define SYMRAIL_WIDE_AHEAD 2
/* The same for positions of two sources. */
#define SYMRAIL_PAIRS_AHEAD 4

/* Tells all ranks that this one has given up, unless another rank made it give up. */
static __device__ __noinline__ void symrail_tell(const symrail_plan& plan) {
    for (symrail_u64 i = 0; i < plan.n_ranks; i++) {
        const symrail_rank& rank = plan.ranks[i];
        symrail_tell_one(plan.alarm.stop, rank.mapped != 0, rank.distance, rank.pe);
    }
}

/* The calling thread waits for `who`: a PE, or for packets, the number of a source. */
template <class F>
SYMRAIL_DEVICE bool symrail_await_of(const symrail_plan& plan, F holds, const symrail_u64& who, symrail_u64 place) {
    if (symrail_await(plan.alarm, holds, who, place)) return true;
    symrail_tell(plan);
    return false;
}
static __device__ __noinline__ bool symrail_await_signal(const symrail_plan& plan, symrail_u64 id, symrail_u64 place) {
    const symrail_semaphore& semaphore = plan.semaphores[id];
    symrail_u64 number = symrail_add_gpu(semaphore.expected, 1) + 1, at = semaphore.arrived;
    auto came = [at, number]() { return symrail_ld_acquire((const symrail_u64*)at) >= number; };
    return symrail_await_of(plan, came, semaphore.pe, place);
}
/* Waits for a counter of this PE's blocks. */
static __device__ __noinline__ bool symrail_await_count(const symrail_plan& plan, symrail_u64 word, symrail_u64 number,
                                                        symrail_u64 place) {
    auto came = [word, number]() { return symrail_ld_noted(word) >= number; };
    return symrail_await_of(plan, came, (symrail_u64)symrail_state.me, place);
}
static __device__ __noinline__ bool symrail_acquire(const symrail_plan& plan, symrail_u64* word, symrail_u64 place) {
    auto taken = [word]() {
        symrail_u64 seen = symrail_ld_noted((symrail_u64)word);
        return seen != 0 && atomicCAS(word, seen, seen - 1) == seen;
    };
    bool good = symrail_await_of(plan, taken, (symrail_u64)symrail_state.me, place);
    __threadfence();
    return good;
}

/* A barrier of all ranks, by one block each. */
static __device__ __noinline__ bool symrail_meet_ranks(const symrail_plan& plan, symrail_u64 place) {
    symrail_u32 thread = symrail_all_threads::rank(), threads = symrail_all_threads::size();
    bool good = true;
    symrail_all_threads::sync();
    for (symrail_u64 i = thread; i < plan.n_ranks; i += threads)
        if (i != plan.me) plan.semaphores[plan.barriers + i].signal();
    for (symrail_u64 i = thread; good && i < plan.n_ranks; i += threads)
        if (i != plan.me) good = symrail_await_signal(plan, plan.barriers + i, place);
    return __syncthreads_or(good ? 0 : 1) == 0;
}

static __device__ __noinline__ void symrail_quiet_here() { symrail_quiet(); }

template <class N>
struct symrail_executor {
    const symrail_plan& plan;
    /* SYMRAIL_STEP_SPANS operands, which the block's threads share. */
    symrail_operand* operands;
    symrail_geometry geometry;
    symrail_u64 input;
    symrail_u64 output;
    symrail_u32 op;
    /* Whether elements are rounded to their type after every step of a reduction. */
    bool own;
    symrail_u32 block;
    symrail_u64 epoch;
    symrail_u32 flag;
    /* The step in the plan's list, for messages; SYMRAIL_NO_STEP at the begin and the end of a call. */
    symrail_u32 now;
    /* A part of the block's bytes, in a pipeline. */
    symrail_u64 window_start;
    symrail_u64 window_bytes;
    /* PEs, modulo 64, to which this block has put through the proxy since its last quiet. A fence delays all later
     * requests of all blocks to the proxy until the earlier ones have arrived, so only signals to these PEs use one. */
    symrail_u64 loose;

    SYMRAIL_WAITER_FN symrail_executor(const symrail_plan& plan, symrail_operand* operands, symrail_u64 input,
                                       symrail_u64 output, symrail_u64 part, symrail_u64 chunk, symrail_u32 op,
                                       bool own, symrail_u32 block)
        : plan(plan), operands(operands), geometry{part, plan.chunks, chunk, plan.alignment}, input(input),
          output(output), op(op), own(own), block(block), epoch(0), flag(0), now(SYMRAIL_NO_STEP), window_start(0),
          window_bytes(~0ull), loose(0) {}

    SYMRAIL_WAITER_FN symrail_u32 thread() const { return symrail_all_threads::rank(); }
    SYMRAIL_WAITER_FN symrail_u32 threads() const { return symrail_all_threads::size(); }
    SYMRAIL_WAITER_FN symrail_u64 place() const { return (symrail_u64)block << 32 | now; }
    /* A barrier of the threads; returns whether none has given up. */
    SYMRAIL_WAITER_FN bool together(bool good) const { return __syncthreads_or(good ? 0 : 1) == 0; }

    /* The whole call. `false`: it was given up. */
    SYMRAIL_WAITER_FN bool run() {
        epoch = plan.epochs[block];
        flag = (symrail_u32)(epoch % 0xffffffffull) + 1;
        bool good = together(symrail_ld_sys(plan.alarm.stop) == 0);
        if (thread() == 0) plan.epochs[block] = epoch + 1;
        if (!good) {
            /* A late arrival for an earlier call would be taken for one of this call. */
            if (thread() == 0)
                symrail_give_up(plan.alarm, SYMRAIL_GIVEN_UP_BY_PEER, symrail_ld_sys(plan.alarm.stop) - 1, place());
            return false;
        }
        bool wipes = flag == 1 && epoch > 0 && plan.halves > 0;
        if ((wipes || (plan.flags & SYMRAIL_PLAN_MEETS_BEFORE)) && !begin(wipes)) return false;
        now = (symrail_u32)plan.first_steps[block];
        symrail_u32 end = (symrail_u32)plan.first_steps[block + 1], first = 0, last = 0;
        symrail_u64 bytes = 0;
        while (now < end) {
            const symrail_plan_step& step = plan.steps[now];
            if (step.kind == SYMRAIL_STEP_PIPELINE) {
                /* The pipeline's steps follow, repeated while there is data. */
                first = now + 1;
                last = now + step.blocks;
                bytes = step.chunks * geometry.chunk;
                window_start = 0;
                window_bytes = step.unit;
                now = bytes == 0 ? last + 1 : first;
                continue;
            }
            if (!take(step)) return false;
            if (window_bytes != ~0ull && now == last) {
                window_start += window_bytes;
                if (window_start < bytes) {
                    now = first;
                    continue;
                }
                window_start = 0;
                window_bytes = ~0ull;
            }
            now++;
        }
        now = SYMRAIL_NO_STEP;
        /* The caller may change the input from now on. */
        if (!(plan.flags & SYMRAIL_PLAN_LEAVES_PUTS)) arrive();
        return end_call();
    }

    /* The first block waits for the other ranks, and wipes packets before their flags repeat; the other blocks wait
     * for it. */
    SYMRAIL_WAITER_FN bool begin(bool wipes) {
        if (block == 0) {
            if (!symrail_meet_ranks(plan, place())) return false;
            if (wipes) {
                symrail_wide none = {0, 0};
                symrail_u64 n = plan.halves * plan.half_bytes / 16;
                for (symrail_u64 i = thread(); i < n; i += threads()) ((symrail_wide*)plan.packets)[i] = none;
                symrail_fence_sys();
                if (!together(true) || !symrail_meet_ranks(plan, place())) return false;
            }
            if (thread() == 0) {
                symrail_fence_sys();
                symrail_max_gpu((symrail_u64)plan.begun, epoch + 1);
            }
            return true;
        }
        return together(thread() != 0 || symrail_await_count(plan, (symrail_u64)plan.begun, epoch + 1, place()));
    }

    /* The last block waits for the other ranks. */
    SYMRAIL_WAITER_FN bool end_call() {
        if (!(plan.flags & SYMRAIL_PLAN_MEETS_AFTER)) return true;
        symrail_all_threads::sync();
        bool last = false;
        if (thread() == 0) {
            __threadfence();
            last = (symrail_add_gpu((symrail_u64)plan.ended, 1) + 1) % plan.n_blocks == 0;
            __threadfence();
        }
        if (__syncthreads_or(last ? 1 : 0) == 0) return true;
        return symrail_meet_ranks(plan, place());
    }

    /* Performs a step; the threads synchronise after it. */
    SYMRAIL_WAITER_FN bool take(const symrail_plan_step& step) {
        bool good = true;
        switch (step.kind) {
            case SYMRAIL_STEP_BARRIER:
                settle();
                if (thread() == 0) good = barrier(step);
                break;
            case SYMRAIL_STEP_ACQUIRE:
                for (symrail_u32 i = thread(); good && i < step.count; i += threads()) good = symrail_acquire(plan, plan.local_semaphores + plan.ids[step.ids + i], place());
                break;
            case SYMRAIL_STEP_RELEASE:
                settle();
                __threadfence();
                for (symrail_u32 i = thread(); i < step.count; i += threads())
                    symrail_add_gpu((symrail_u64)(plan.local_semaphores + plan.ids[step.ids + i]), 1);
                break;
            case SYMRAIL_STEP_SIGNAL:
                for (symrail_u32 i = thread(); i < step.count; i += threads()) {
                    const symrail_semaphore& semaphore = plan.semaphores[plan.ids[step.ids + i]];
                    if (step.flags & SYMRAIL_STEP_RELAXED) semaphore.relaxed_signal();
                    else signal(semaphore);
                }
                break;
            case SYMRAIL_STEP_WAIT:
                for (symrail_u32 i = thread(); good && i < step.count; i += threads())
                    good = symrail_await_signal(plan, plan.ids[step.ids + i], place());
                break;
            case SYMRAIL_STEP_FLUSH: arrive(); break;
            case SYMRAIL_STEP_COPY: copy(step); break;
            case SYMRAIL_STEP_REDUCE: reduce(step); break;
            case SYMRAIL_STEP_PACK: pack(step); break;
            case SYMRAIL_STEP_FORWARD:
            case SYMRAIL_STEP_UNPACK:
            case SYMRAIL_STEP_REDUCE_PACKETS: good = packets(step); break;
            default: break;
        }
        return together(good);
    }

    SYMRAIL_WAITER_FN bool barrier(const symrail_plan_step& step) const {
        symrail_u64 word = (symrail_u64)(plan.arrivals + step.barrier), n = step.blocks;
        __threadfence();
        symrail_u64 complete = symrail_add_gpu(word, 1) / n * n + n;
        return symrail_await_count(plan, word, complete, place());
    }

    /* Waits until all puts of this PE have arrived. */
    SYMRAIL_WAITER_FN void arrive() {
        symrail_all_threads::sync();
        if ((plan.flags & SYMRAIL_PLAN_WIRED) && thread() == 0) symrail_quiet_here();
        loose = 0;
        symrail_all_threads::sync();
    }

    /* Waits until the puts of this block have arrived: another block may signal for them. */
    SYMRAIL_WAITER_FN void settle() {
        if (loose != 0) arrive();
        else symrail_all_threads::sync();
    }

    SYMRAIL_WAITER_FN bool is_loose(symrail_u64 pe) const { return (loose >> (pe % 64) & 1) != 0; }
    /* One thread signals, behind all earlier work of this block. */
    SYMRAIL_WAITER_FN void signal(const symrail_semaphore& semaphore) const {
        if (semaphore.mapped != 0 || is_loose(semaphore.pe)) return semaphore.signal();
        symrail_fence_sys();
        semaphore.relaxed_signal();
    }

    /* This block's bytes of the step's first or `i`th span, limited to the window. */
    SYMRAIL_WAITER_FN void range(const symrail_plan_step& step, symrail_u32 i, symrail_u64& start,
                                 symrail_u64& end) const {
        symrail_u64 size = plan.spans[step.spans + i].size;
        start = geometry.share_start(size, step.share, step.shares);
        end = geometry.share_start(size, step.share + 1, step.shares);
        symrail_u64 left = end - start, skipped = window_start < left ? window_start : left;
        start += skipped;
        if (end - start > window_bytes) end = start + window_bytes;
    }

    /* The address of a piece of a span in the memory of its rank, in this PE's terms. */
    SYMRAIL_WAITER_FN symrail_u64 symmetric(const symrail_span& span, symrail_u64 start, symrail_u64& bytes) const {
        symrail_u64 at = geometry.locate(span, start, bytes);
        if (span.buffer == SYMRAIL_BUFFER_SCRATCH)
            return plan.scratch + epoch % plan.scratch_halves * (plan.half_bytes / 2) + at;
        /* In place, the smaller buffer is each rank's part of the larger one. */
        if (span.buffer == SYMRAIL_BUFFER_INPUT)
            return plan.inner == 1 ? output + span.rank * geometry.part + at : input + at;
        return plan.inner == 2 ? input + span.rank * geometry.part + at : output + at;
    }
    SYMRAIL_WAITER_FN symrail_operand operand(const symrail_span& span, symrail_u64 start, symrail_u64 bytes) const {
        symrail_u64 at = symmetric(span, start, bytes) + plan.ranks[span.rank].distance;
        return symrail_operand{at, bytes, span.rank == plan.me};
    }
    /* The packets of a piece of scratch chunks. */
    SYMRAIL_WAITER_FN symrail_u64 packets_of(const symrail_span& span, symrail_u64 start) const {
        symrail_u64 half = plan.halves == 0 ? 0 : epoch % plan.halves * plan.half_bytes;
        return plan.packets + half + 2 * (span.index * geometry.chunk + start) + plan.ranks[span.rank].distance;
    }

    SYMRAIL_WAITER_FN void copy(const symrail_plan_step& step) {
        symrail_u64 start, end;
        for (symrail_u32 i = 0; i < step.sources; i++) {
            const symrail_span& source = plan.spans[step.spans + i];
            const symrail_span& dest = plan.spans[step.spans + step.sources + i];
            /* Pairs may differ in size. */
            range(step, i, start, end);
            const symrail_semaphore* then = step.count == 0 ? nullptr : plan.semaphores + plan.ids[step.ids + i];
            for (symrail_u64 at = start, next; at < end; at = next) {
                next = geometry.piece_end(at, end);
                symrail_u64 read = next - at, written = next - at;
                symrail_u64 from = symmetric(source, at, read), to = symmetric(dest, at, written);
                if (copy_piece(source.rank, dest.rank, from, to, read < written ? read : written, next == end ? then : nullptr)) then = nullptr;
            }
            if (then == nullptr) continue;
            /* A signal follows the data. */
            symrail_all_threads::sync();
            if (thread() == 0) signal(*then);
        }
        if (step.flags & SYMRAIL_STEP_FLUSHES) arrive();
    }

    /* Copies a piece. Returns whether the signal `then`, if there is one, was sent with the data. */
    SYMRAIL_WAITER_FN bool copy_piece(symrail_u32 source, symrail_u32 dest, symrail_u64 from, symrail_u64 to,
                                      symrail_u64 bytes, const symrail_semaphore* then) {
        const symrail_rank &there = plan.ranks[dest], &other = plan.ranks[source];
        if (there.mapped != 0 && other.mapped != 0) {
            from += other.distance;
            to += there.distance;
            if (from != to)
                symrail_copy<symrail_all_threads, symrail_peer_source>((void*)to, (const void*)from, bytes);
            return false;
        }
        bool gets = other.mapped == 0, first = thread() == 0;
        bool tells = !gets && then != nullptr && then->mapped == 0 && then->pe == there.pe && bytes != 0 && !is_loose(there.pe);
        symrail_all_threads::sync();
        if (first && gets) symrail_copy_elsewhere(SYMRAIL_OP_GET, from, to, bytes, other.pe);
        else if (first && tells) symrail_put_signal_elsewhere(to, from, bytes, then->there, there.pe);
        else if (first) symrail_copy_elsewhere(SYMRAIL_OP_PUT, to, from, bytes, there.pe);
        if (!gets) loose |= 1ull << (there.pe % 64);
        symrail_all_threads::sync();
        return tells;
    }

    SYMRAIL_WAITER_FN void reduce(const symrail_plan_step& step) {
        symrail_u64 start, end;
        range(step, 0, start, end);
        symrail_u32 op = step.flags & SYMRAIL_STEP_OWN_OP ? step.op : this->op, all = step.sources + step.dests;
        for (symrail_u64 at = start, next; at < end; at = next) {
            next = geometry.piece_end(at, end);
            symrail_all_threads::sync();
            for (symrail_u32 i = thread(); i < all; i += threads())
                operands[i] = operand(plan.spans[step.spans + i], at, next - at);
            symrail_all_threads::sync();
            reduce_piece(op, step.sources, all);
        }
    }

    /* Reduces the operands, in wide accesses if all begin at the same distance from a multiple of 16. */
    SYMRAIL_WAITER_FN void reduce_piece(symrail_u32 op, symrail_u32 sources, symrail_u32 all) {
        const symrail_u64 element = sizeof(typename N::stored);
        symrail_u64 distance = 0, least = operands[0].bytes, most = 0;
        for (symrail_u32 i = 0; i < all; i++) {
            distance |= operands[i].at ^ operands[0].at;
            if (operands[i].bytes < least) least = operands[i].bytes;
            if (i >= sources && operands[i].bytes > most) most = operands[i].bytes;
        }
        symrail_u64 head = (16 - (operands[0].at & 15)) & 15;
        bool wide = (distance & 15) == 0 && head % element == 0 && head < least;
        symrail_u64 middle = wide ? (least - head) / 16 : 0, done = wide ? head + 16 * middle : 0;
        if (!wide) head = 0;
        symrail_u64 i = thread();
        for (; sources == 2 && i + (SYMRAIL_PAIRS_AHEAD - 1) * threads() < middle; i += SYMRAIL_PAIRS_AHEAD * threads())
            reduce_pairs(op, all, head + 16 * i);
        for (; i < middle; i += threads()) reduce_wide(op, sources, all, head + 16 * i);
        symrail_u64 before = head / element, after = (most - done) / element;
        for (i = thread(); i < before + after; i += threads())
            reduce_element(op, sources, all, i < before ? i * element : done + (i - before) * element);
    }

    SYMRAIL_WAITER_FN symrail_wide load_wide(const symrail_operand& from, symrail_u64 at) const {
        const symrail_wide* p = (const symrail_wide*)(from.at + at);
        return from.own ? symrail_own_source::load(p) : symrail_peer_source::load(p);
    }

    /* Reduces two operands. The loads of host memory take long, so each thread has several under way. */
    SYMRAIL_WAITER_FN void reduce_pairs(symrail_u32 op, symrail_u32 all, symrail_u64 at) const {
        symrail_wide first[SYMRAIL_PAIRS_AHEAD], second[SYMRAIL_PAIRS_AHEAD];
#pragma unroll
        for (int k = 0; k < SYMRAIL_PAIRS_AHEAD; k++) {
            first[k] = load_wide(operands[0], at + 16 * k * threads());
            second[k] = load_wide(operands[1], at + 16 * k * threads());
        }
#pragma unroll
        for (int k = 0; k < SYMRAIL_PAIRS_AHEAD; k++) {
            symrail_elements<N, 16> sum, more;
            sum.unpack(&first[k]);
            more.unpack(&second[k]);
            sum.take(op, more, own);
            sum.pack(&first[k]);
            for (symrail_u32 i = 2; i < all; i++) symrail_store((symrail_wide*)(operands[i].at + at + 16 * k * threads()), first[k]);
        }
    }

    SYMRAIL_WAITER_FN void reduce_wide(symrail_u32 op, symrail_u32 sources, symrail_u32 all, symrail_u64 at) const {
        symrail_elements<N, 16> sum, more;
        symrail_wide raw[SYMRAIL_WIDE_AHEAD];
        raw[0] = load_wide(operands[0], at);
        sum.unpack(&raw[0]);
        for (symrail_u32 first = 1; first < sources; first += SYMRAIL_WIDE_AHEAD) {
#pragma unroll
            for (symrail_u32 k = 0; k < SYMRAIL_WIDE_AHEAD; k++)
                if (first + k < sources) raw[k] = load_wide(operands[first + k], at);
#pragma unroll
            for (symrail_u32 k = 0; k < SYMRAIL_WIDE_AHEAD; k++) {
                if (first + k >= sources) continue;
                more.unpack(&raw[k]);
                sum.take(op, more, own);
            }
        }
        sum.pack(&raw[0]);
        for (symrail_u32 i = sources; i < all; i++) symrail_store((symrail_wide*)(operands[i].at + at), raw[0]);
    }

    /* Reduces one element, at any address. Sources that end before it are left out. */
    SYMRAIL_WAITER_FN void reduce_element(symrail_u32 op, symrail_u32 sources, symrail_u32 all, symrail_u64 at) const {
        const symrail_u64 element = sizeof(typename N::stored);
        symrail_elements<N, sizeof(typename N::stored)> sum, more;
        bool some = false;
        for (symrail_u32 i = 0; i < sources; i++) {
            if (at + element > operands[i].bytes) continue;
            typename N::stored code;
            symrail_load_element<N>(operands[i].at + at, code);
            more.unpack(&code);
            if (some) sum.take(op, more, own);
            else sum = more;
            some = true;
        }
        if (!some) return;
        typename N::stored code;
        sum.pack(&code);
        for (symrail_u32 i = sources; i < all; i++)
            if (at + element <= operands[i].bytes) symrail_store_element<N>(operands[i].at + at, code);
    }
    SYMRAIL_WAITER_FN void pack(const symrail_plan_step& step) {
        symrail_u64 start, end;
        if (plan.flags & SYMRAIL_PLAN_MIXED) symrail_fence_sys();
        for (symrail_u32 i = 0; i < step.sources; i++) {
            const symrail_span& dest = plan.spans[step.spans + step.sources + i];
            range(step, i, start, end);
            for (symrail_u64 at = start, next; at < end; at = next) {
                next = geometry.piece_end(at, end);
                symrail_operand from = operand(plan.spans[step.spans + i], at, next - at);
                symrail_u64 to = packets_of(dest, at);
                for (symrail_u64 k = 8 * thread(); k < next - at; k += 8 * threads()) {
                    symrail_u64 left = k < from.bytes ? from.bytes - k : 0;
                    symrail_packet16_write(to + 2 * k, symrail_load_some((const char*)from.at + k, left), flag);
                }
            }
        }
    }

    /* Waits for packets, and forwards them, stores their data, or reduces it and stores and sends the result. */
    SYMRAIL_WAITER_FN bool packets(const symrail_plan_step& step) {
        bool good = true, reduces = step.kind == SYMRAIL_STEP_REDUCE_PACKETS;
        symrail_u32 op = step.flags & SYMRAIL_STEP_OWN_OP ? step.op : this->op;
        const symrail_span *sources = plan.spans + step.spans, *dests = sources + step.sources;
        bool stores = step.kind != SYMRAIL_STEP_FORWARD;
        symrail_u64 start, end;
        range(step, 0, start, end);
        if (plan.flags & SYMRAIL_PLAN_MIXED) symrail_fence_sys();
        for (symrail_u64 at = start, next; good && at < end; at = next) {
            next = geometry.piece_end(at, end);
            symrail_operand plain = {0, 0, true}, to = {0, 0, true};
            if (reduces) plain = operand(sources[0], at, next - at);
            if (stores) to = operand(dests[0], at, next - at);
            for (symrail_u64 k = 8 * thread(); good && k < next - at; k += 8 * threads()) {
                symrail_u64 data = 0;
                if (reduces) data = symrail_load_some((const char*)plain.at + k, k < plain.bytes ? plain.bytes - k : 0);
                good = read_packets(op, sources, reduces, step.sources, at + k, data);
                if (!good) break;
                if (stores) symrail_store_some((char*)to.at + k, data, k < to.bytes ? to.bytes - k : 0);
                for (symrail_u32 i = stores ? 1 : 0; i < step.dests; i++)
                    symrail_packet16_write(packets_of(dests[i], at + k), data, flag);
            }
        }
        if (plan.flags & SYMRAIL_PLAN_MIXED) symrail_fence_sys();
        return good;
    }

    /* The calling thread reads eight bytes of packets' data; with `reduces`, the data in place is the first source,
     * and the others are reduced into it. */
    SYMRAIL_WAITER_FN bool read_packets(symrail_u32 op, const symrail_span* sources, bool reduces, symrail_u32 count,
                                        symrail_u64 at, symrail_u64& data) {
        symrail_elements<N, 8> sum, more;
        symrail_u64 raw[SYMRAIL_PACKETS_AHEAD], missing = 0;
        sum.unpack(&data);
        for (symrail_u32 first = reduces ? 1 : 0; first < count; first += SYMRAIL_PACKETS_AHEAD) {
            auto all_here = [&]() {
                bool here = true;
#pragma unroll
                for (symrail_u32 k = 0; k < SYMRAIL_PACKETS_AHEAD; k++) {
                    if (first + k >= count) continue;
                    if (symrail_packet16_read(packets_of(sources[first + k], at), flag, raw[k])) continue;
                    missing = first + k;
                    here = false;
                }
                return here;
            };
            if (!symrail_await_of(plan, all_here, missing, place())) return false;
            /* Data that is not reduced is copied unchanged: not every bit pattern survives a conversion to a number. */
            if (!reduces) data = raw[0];
#pragma unroll
            for (symrail_u32 k = 0; k < SYMRAIL_PACKETS_AHEAD; k++) {
                if (!reduces || first + k >= count) continue;
                more.unpack(&raw[k]);
                sum.take(op, more, own);
            }
        }
        if (reduces) sum.pack(&data);
        return true;
    }
};

#endif
