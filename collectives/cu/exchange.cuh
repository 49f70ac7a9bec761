/* Sends and receives of one PE. Bytes travel through slots in the
 * receiver's symmetric heap, so that the PEs' own buffers may be any memory: the sender fills a slot and signals,
 * the receiver empties it and signals back. Small transfers to memory that the sender can store to are packets, whose
 * receiver does not wait for the signal. The argument has everything that a block needs but the number of its lane's
 * next slot, which it loads together with its first data. All threads of a block call every function here together,
 * unless it says otherwise. */
#ifndef SYMRAIL_EXCHANGE_CUH
#define SYMRAIL_EXCHANGE_CUH

#include "proxied.cuh"
#include "layout.cuh"
#include "roles.cuh"
#include "wide.cuh"

/* What the first thread has found in a slot. */
#define SYMRAIL_FOUND_PACKETS 1ull
#define SYMRAIL_FOUND_BYTES 2ull
#define SYMRAIL_FOUND_NOTHING 3ull

/* Tells all PEs that this one has given up, unless another PE made it give up. Called by one thread. */
static __device__ __noinline__ void symrail_tell_all(const symrail_exchange_head& head) {
    for (symrail_u64 i = 0; i < head.n_ranks; i++) {
        const symrail_rank& to = head.ranks[i];
        symrail_tell_one(head.alarm.stop, to.mapped != 0, to.distance, to.pe);
    }
}

/* A block's lane of a row. */
struct symrail_exchange_lane {
    const symrail_exchange_head& head;
    const symrail_exchange_row& row;
    symrail_u64 lane;
    /* Two words that the block's threads share: what the first thread has found in the slots with even and odd numbers,
     * plus four times the slot's number and 4. It is at most one slot ahead of the others. */
    symrail_u64* found;
    /* The number of the lane's next slot. */
    symrail_u64 number;
    /* The signals that the first thread has seen. */
    symrail_u64 signals;

    SYMRAIL_WAITER_FN symrail_u64 arrived() const { return row.semaphore.arrived + 8 * lane; }
    SYMRAIL_WAITER_FN symrail_u64 expected() const { return row.semaphore.expected + 8 * lane; }
    SYMRAIL_WAITER_FN void signal(bool ordered) const {
        symrail_semaphore of_lane = row.semaphore;
        of_lane.there += 8 * lane;
        if (of_lane.mapped != 0) of_lane.mapped += 8 * lane;
        if (ordered) of_lane.signal();
        else of_lane.relaxed_signal();
    }

    /* The next slot, at an address of the row's slots: its head, its bytes and its packets. */
    SYMRAIL_WAITER_FN symrail_u64 slot(symrail_u64 slots) const {
        symrail_u64 stride = SYMRAIL_SLOT_HEAD + head.slot_bytes + head.packet_bytes;
        return slots + (lane * SYMRAIL_LANE_SLOTS + number % SYMRAIL_LANE_SLOTS) * stride;
    }
    SYMRAIL_WAITER_FN symrail_u64 data(symrail_u64 slots) const { return slot(slots) + SYMRAIL_SLOT_HEAD; }
    SYMRAIL_WAITER_FN symrail_u64 packets(symrail_u64 slots) const { return data(slots) + head.slot_bytes; }
    /* Flags are a signal's number, so there are none behind 2^32 - 1 signals of a lane. */
    SYMRAIL_WAITER_FN bool has_flag() const { return number < 0xffffffffull; }
    SYMRAIL_WAITER_FN symrail_u32 flag() const { return (symrail_u32)number + 1; }

    /* The slot is done. */
    SYMRAIL_WAITER_FN void advance() {
        number++;
        if (symrail_block_scope::rank() == 0) symrail_st_gpu(expected(), number);
    }

    /* The head says the size of the whole transfer, and whose slot it is. Called by one thread. */
    SYMRAIL_WAITER_FN void say(symrail_u64 slots, symrail_u64 size) const {
        symrail_st_sys(slot(slots), size);
        symrail_st_sys(slot(slots) + 8, ~number);
    }

    /* Waits for an empty slot. Called by one thread. */
    SYMRAIL_WAITER_FN bool room(symrail_u64 report) {
        symrail_u64 at = arrived(), before = number, seen = signals;
        auto came = [&]() {
            if (seen <= before) seen = symrail_ld_acquire((const symrail_u64*)at);
            return seen > before;
        };
        bool good = symrail_await(head.alarm, came, row.semaphore.pe, report);
        signals = seen;
        if (good) return true;
        symrail_tell_all(head);
        return false;
    }

    /* Sends one slot's bytes of a transfer of `size` bytes. `early`: the thread's first bytes, if they are packets.
     * `false`: the other PE did not do its part. */
    SYMRAIL_WAITER_FN bool send(symrail_u64 from, symrail_u64 bytes, symrail_u64 size, bool in_packets, bool has_early,
                                symrail_u64 early) {
        bool first = symrail_block_scope::rank() == 0, good = !first || room(size << 1);
        if (__syncthreads_or(good ? 0 : 1) != 0) return false;
        if (in_packets && row.mapped != 0 && has_flag()) {
            symrail_u64 to = packets(row.mapped), at = 8 * symrail_block_scope::rank();
            if (first) symrail_packet16_write(to, size, flag());
            for (bool is_early = has_early; at < bytes; at += 8 * symrail_block_scope::size(), is_early = false) {
                symrail_u64 some = is_early ? early : symrail_load_some((const char*)from + at, bytes - at);
                symrail_packet16_write(to + 16 + 2 * at, some, flag());
            }
            if (first) signal(false);
        } else if (row.mapped != 0) {
            if (first) say(row.mapped, size);
            symrail_copy_many<symrail_block_scope, symrail_own_source>(data(row.mapped), from, bytes);
            symrail_block_scope::sync();
            if (first) signal(true);
        } else {
            if (first) say(row.outgoing, size);
            symrail_copy<symrail_block_scope>((void*)data(row.outgoing), (const void*)from, bytes);
            symrail_fence_sys();
            symrail_block_scope::sync();
            if (first) {
                symrail_copy_elsewhere(SYMRAIL_OP_PUT, slot(row.slots), slot(row.outgoing), bytes + SYMRAIL_SLOT_HEAD,
                                       row.semaphore.pe);
                signal(true);
            }
        }
        advance();
        return true;
    }

    /* Waits for a slot, and checks that it belongs to a transfer of `size` bytes, unless it is `known`: an earlier slot
     * of the transfer had bytes. The signal of a slot with packets is not ordered behind them: without the head of this
     * number, the slot has packets. Called by one thread. */
    SYMRAIL_WAITER_FN symrail_u64 find(symrail_u64 size, bool expects_packets, bool known) {
        symrail_u64 at = arrived(), said = slot(row.slots), packet = packets(row.slots), before = number;
        symrail_u64 report = size << 1 | 1, sent = size, of = 0, seen = signals;
        symrail_u32 wanted = flag();
        bool in_packets = false, flagged = has_flag();
        auto came = [&]() {
            in_packets = expects_packets && flagged && symrail_packet16_read(packet, wanted, sent);
            if (in_packets) return true;
            if (seen <= before) seen = symrail_ld_acquire((const symrail_u64*)at);
            if (seen <= before) return false;
            if (known) return true;
            symrail_ld_pair(said, sent, of);
            if (of == ~before) return true;
            in_packets = flagged && symrail_packet16_read(packet, wanted, sent);
            return in_packets;
        };
        bool good = symrail_await(head.alarm, came, row.semaphore.pe, report);
        signals = seen;
        if (good && sent != size) {
            symrail_give_up(head.alarm, SYMRAIL_GIVEN_UP_SIZES | sent << SYMRAIL_GIVEN_UP_SIZE_SHIFT, row.semaphore.pe,
                            report);
            good = false;
        }
        if (good) return in_packets ? SYMRAIL_FOUND_PACKETS : SYMRAIL_FOUND_BYTES;
        symrail_tell_all(head);
        return SYMRAIL_FOUND_NOTHING;
    }

    /* Receives one slot's bytes of a transfer of `size` bytes; all threads wait for packets if they are expected.
     * `false`: the other PE did not do its part. */
    SYMRAIL_WAITER_FN bool receive(symrail_u64 to, symrail_u64 bytes, symrail_u64 size, bool in_packets, bool known) {
        bool first = symrail_block_scope::rank() == 0, good = true, other = false;
        symrail_u64 mark = 4 * (number + 1), some = 0;
        symrail_u64* seen = found + (number & 1);
        if (first) symrail_st_shared(seen, mark + find(size, in_packets, known));
        for (symrail_u64 at = 8 * symrail_block_scope::rank(); in_packets && good && !other && at < bytes;
             at += 8 * symrail_block_scope::size()) {
            symrail_u64 packet = packets(row.slots) + 16 + 2 * at;
            symrail_u32 wanted = flag();
            auto came = [&]() {
                if (symrail_packet16_read(packet, wanted, some)) return true;
                symrail_u64 word = *(const volatile symrail_u64*)seen;
                other = word > mark && word != mark + SYMRAIL_FOUND_PACKETS;
                return other;
            };
            good = symrail_await(head.alarm, came, row.semaphore.pe, size << 1 | 1);
            if (good && !other) symrail_store_some((char*)to + at, some, bytes - at);
        }
        if (__syncthreads_or(good ? 0 : 1) != 0) {
            if (first) symrail_tell_all(head);
            return false;
        }
        symrail_u64 what = symrail_ld_shared(seen) - mark;
        if (what == SYMRAIL_FOUND_NOTHING) return false;
        if (what == SYMRAIL_FOUND_BYTES) {
            symrail_copy_many<symrail_block_scope, symrail_peer_source>(to, data(row.slots), bytes);
            symrail_block_scope::sync();
        }
        /* The packets' loads have ended, since their flags were compared. */
        if (first) signal(what == SYMRAIL_FOUND_BYTES);
        advance();
        return true;
    }
};

/* Copies share `share` of `shares` of a transfer of the PE to itself. */
SYMRAIL_DEVICE void symrail_exchange_own(const symrail_transfer& from, const symrail_transfer& to, symrail_u64 share,
                                         symrail_u64 shares) {
    symrail_u64 each = (from.bytes + 16 * shares - 1) / (16 * shares) * 16, start = share * each;
    if (start >= from.bytes || from.at == to.at) return;
    symrail_u64 left = from.bytes - start;
    symrail_copy_many<symrail_block_scope, symrail_own_source>(to.at + start, from.at + start, left < each ? left : each);
}

/* All work of a block. CALL is symrail_exchange_call, _some or _few. */
template <class CALL>
SYMRAIL_DEVICE void symrail_exchange_block(const CALL& call, symrail_u64* found, symrail_u32 block) {
    symrail_u64 place = 0;
    while (place + 1 < call.head.rows && (call.rows[place + 1].work & 0xffff) <= block) place++;
    const symrail_exchange_row& row = call.rows[place];
    symrail_u64 work = row.work, number = 0, early = 0;
    symrail_u64 lane = block - (work & 0xffff), first = work >> 32 & 0xffff, end = first + (work >> 48 & 0xfff);
    bool own = (work & SYMRAIL_ROW_OWN) != 0, receives = (work & SYMRAIL_ROW_RECEIVES) != 0, has_early = false;
    if (!own) {
        number = symrail_ld_gpu(row.semaphore.expected + 8 * lane);
        /* The loads of the first data and of the number overlap. */
        const symrail_transfer& one = call.transfers[first];
        symrail_u64 at = lane * (one.division & 0xffffffff) + 8 * symrail_block_scope::rank();
        has_early = !receives && (one.division & SYMRAIL_TRANSFER_PACKETS) != 0;
        if (has_early && at < one.bytes) early = symrail_load_some((const char*)one.at + at, one.bytes - at);
    }
    if (symrail_block_scope::rank() < 2) symrail_st_shared(found + symrail_block_scope::rank(), 0);
    /* The number takes part, so that all threads have read it when the first one continues. */
    bool stopped = symrail_ld_sys(call.head.alarm.stop) != 0 || number == ~0ull;
    if (__syncthreads_or(stopped ? 1 : 0) != 0) {
        /* Reports to the host which PE has given up, if nothing has been reported yet. */
        if (symrail_block_scope::rank() == 0)
            symrail_give_up(call.head.alarm, SYMRAIL_GIVEN_UP_BY_PEER, symrail_ld_sys(call.head.alarm.stop) - 1, first);
        return;
    }
    if (own) return symrail_exchange_own(call.transfers[first], call.transfers[first + 1], lane, work >> 16 & 0xffff);
    symrail_exchange_lane of_lane = {call.head, row, lane, found, number, 0};
    for (symrail_u64 i = first; i < end; i++) {
        const symrail_transfer& transfer = call.transfers[i];
        symrail_u64 chunk = transfer.division & 0xffffffff, lanes = transfer.division >> 32 & 0xffff;
        bool in_packets = (transfer.division & SYMRAIL_TRANSFER_PACKETS) != 0;
        for (symrail_u64 at = lane * chunk; lane < lanes && at < transfer.bytes; at += lanes * chunk) {
            symrail_u64 left = transfer.bytes - at, bytes = left < chunk ? left : chunk, here = transfer.at + at;
            bool good = receives ? of_lane.receive(here, bytes, transfer.bytes, in_packets, at != lane * chunk)
                                 : of_lane.send(here, bytes, transfer.bytes, in_packets, has_early && i == first, early);
            if (!good) return;
        }
    }
}

#endif
