/* Sends and receives of one PE. Bytes travel through slots in the
 * receiver's symmetric heap, so that the PEs' own buffers may be any memory: the sender fills a slot and signals,
 * the receiver empties it and signals back. Small transfers to memory that the sender can store to are packets, whose
 * receiver does not wait for the signal. All threads of a block call every function here together, unless it says
 * otherwise. */
#ifndef SYMRAIL_EXCHANGE_CUH
#define SYMRAIL_EXCHANGE_CUH

#include "proxied.cuh"
#include "layout.cuh"

/* The number of lanes that share a transfer, equal at both ends. */
SYMRAIL_DEVICE symrail_u64 symrail_lanes_for(const symrail_exchange& exchange, symrail_u64 bytes) {
    symrail_u64 slots = (bytes + exchange.slot_bytes - 1) / exchange.slot_bytes, most = exchange.lanes_of_row;
    return slots < most ? (slots == 0 ? 1 : slots) : most;
}

/* Tells all PEs that this one has given up, unless another PE made it give up. Called by one thread. */
static __device__ __noinline__ void symrail_tell_all(const symrail_exchange& exchange) {
    for (symrail_u64 rank = 0; rank < exchange.ranks; rank++) {
        const symrail_semaphore& to = exchange.lanes[2 * rank * exchange.lanes_of_row].semaphore;
        symrail_tell_one(exchange.alarm.stop, to.mapped != 0, to.mapped - to.there, to.pe);
    }
}

/* A slot's place behind a lane's `slots`, its bytes and its packets, and the number of the signal that fills it. */
struct symrail_exchange_place {
    symrail_u64 head, data, packets, number;
};
SYMRAIL_DEVICE symrail_exchange_place symrail_exchange_slot_of(const symrail_exchange& exchange,
                                                               symrail_u64 number) {
    symrail_u64 stride = SYMRAIL_SLOT_HEAD + exchange.slot_bytes + exchange.packet_bytes;
    symrail_u64 head = number % SYMRAIL_LANE_SLOTS * stride, data = head + SYMRAIL_SLOT_HEAD;
    return {head, data, data + exchange.slot_bytes, number};
}

/* Whether a sender that stores in the receiver's memory sends a transfer as packets. Flags are a signal's number, so
 * there are none behind 2^32 - 1 signals of a lane. */
SYMRAIL_DEVICE bool symrail_exchange_in_packets(const symrail_exchange& exchange, const symrail_exchange_place& place,
                                                symrail_u64 size) {
    return size != 0 && 2 * size + 16 <= exchange.packet_bytes && place.number < 0xffffffffull;
}
SYMRAIL_DEVICE symrail_u32 symrail_exchange_flag(const symrail_exchange_place& place) {
    return (symrail_u32)place.number + 1;
}

/* What a receiver finds in a slot. */
struct symrail_exchange_found {
    bool packets;
    symrail_u64 size;
};
/* Waits for the head of a slot, by one thread. The signal of a slot with packets is not ordered behind them: without
 * the head of this number, the slot has packets. */
SYMRAIL_DEVICE bool symrail_exchange_find(const symrail_exchange& exchange, const symrail_lane& lane,
                                          const symrail_exchange_place& place, symrail_u64 report,
                                          symrail_exchange_found& found) {
    const symrail_semaphore& semaphore = lane.semaphore;
    symrail_add_gpu(semaphore.expected, 1);
    symrail_u32 flag = symrail_exchange_flag(place);
    auto came = [&]() {
        found.packets = place.number < 0xffffffffull &&
                        symrail_packet16_read(lane.slots + place.packets, flag, found.size);
        if (found.packets) return true;
        if (symrail_ld_acquire((const symrail_u64*)semaphore.arrived) <= place.number) return false;
        found.size = symrail_ld_sys(lane.slots + place.head);
        return symrail_ld_sys(lane.slots + place.head + 8) == ~place.number;
    };
    return symrail_await(exchange.alarm, came, semaphore.pe, report);
}

/* Waits for a slot, by one thread, and checks that a filled slot belongs to a transfer of `size` bytes. `false`: the
 * other PE did not do its part, and all PEs have been told. */
SYMRAIL_DEVICE bool symrail_exchange_await(const symrail_exchange& exchange, const symrail_lane& lane, bool receives,
                                           const symrail_exchange_place& place, symrail_u64 size,
                                           symrail_exchange_found& found) {
    /* The place in the host's report about this transfer. */
    symrail_u64 report = size << 1 | (receives ? 1 : 0);
    bool good = receives ? symrail_exchange_find(exchange, lane, place, report, found)
                         : lane.semaphore.wait(exchange.alarm, report);
    if (good && receives && found.size != size) {
        symrail_give_up(exchange.alarm, SYMRAIL_GIVEN_UP_SIZES | found.size << SYMRAIL_GIVEN_UP_SIZE_SHIFT,
                        lane.semaphore.pe, report);
        good = false;
    }
    if (!good) symrail_tell_all(exchange);
    return good;
}

/* Sends a transfer as packets to `to`, or stores those that arrive there. */
SYMRAIL_DEVICE void symrail_exchange_send_packets(symrail_u64 to, symrail_u64 from, symrail_u64 bytes,
                                                  symrail_u32 flag) {
    if (symrail_block_scope::rank() == 0) symrail_packet16_write(to, bytes, flag);
    for (symrail_u64 at = 8 * symrail_block_scope::rank(); at < bytes; at += 8 * symrail_block_scope::size())
        symrail_packet16_write(to + 16 + 2 * at, symrail_load_some((const char*)from + at, bytes - at), flag);
}
SYMRAIL_DEVICE bool symrail_exchange_take_packets(const symrail_exchange& exchange, const symrail_lane& lane,
                                                  symrail_u64 from, symrail_u64 to, symrail_u64 bytes,
                                                  symrail_u32 flag) {
    for (symrail_u64 at = 8 * symrail_block_scope::rank(); at < bytes; at += 8 * symrail_block_scope::size()) {
        symrail_u64 data = 0, packet = from + 16 + 2 * at;
        auto came = [&]() { return symrail_packet16_read(packet, flag, data); };
        if (!symrail_await(exchange.alarm, came, lane.semaphore.pe, bytes << 1 | 1)) return false;
        symrail_store_some((char*)to + at, data, bytes - at);
    }
    return true;
}

/* Sends or receives one slot's bytes of a transfer of `size` bytes. `false`: the other PE did not do its part. */
SYMRAIL_DEVICE bool symrail_exchange_slot(const symrail_exchange& exchange, const symrail_lane& lane, bool receives,
                                          symrail_u64 at, symrail_u64 bytes, symrail_u64 size) {
    const symrail_semaphore& semaphore = lane.semaphore;
    symrail_exchange_place place = symrail_exchange_slot_of(exchange, symrail_ld_gpu(semaphore.expected));
    symrail_exchange_found found = {false, 0};
    bool first = symrail_block_scope::rank() == 0, good = true;
    symrail_block_scope::sync();
    if (first) good = symrail_exchange_await(exchange, lane, receives, place, size, found);
    if (__syncthreads_or(good ? 0 : 1) != 0) return false;
    if (receives) {
        if (__syncthreads_or(found.packets ? 1 : 0) != 0)
            good = symrail_exchange_take_packets(exchange, lane, lane.slots + place.packets, at, bytes,
                                                 symrail_exchange_flag(place));
        else
            symrail_copy<symrail_block_scope, symrail_peer_source>((void*)at, (const void*)(lane.slots + place.data), bytes);
    } else if (lane.mapped != 0 && symrail_exchange_in_packets(exchange, place, size)) {
        symrail_exchange_send_packets(lane.mapped + place.packets, at, bytes, symrail_exchange_flag(place));
        if (first) semaphore.relaxed_signal();
        return true;
    } else if (lane.mapped != 0) {
        if (first) symrail_st_sys(lane.mapped + place.head, size), symrail_st_sys(lane.mapped + place.head + 8, ~place.number);
        symrail_copy<symrail_block_scope>((void*)(lane.mapped + place.data), (const void*)at, bytes);
    } else {
        if (first) symrail_st_sys(lane.outgoing + place.head, size), symrail_st_sys(lane.outgoing + place.head + 8, ~place.number);
        symrail_copy<symrail_block_scope>((void*)(lane.outgoing + place.data), (const void*)at, bytes);
        symrail_fence_sys();
        symrail_block_scope::sync();
        if (first)
            symrail_copy_elsewhere(SYMRAIL_OP_PUT, lane.slots + place.head, lane.outgoing + place.head,
                                   bytes + SYMRAIL_SLOT_HEAD, semaphore.pe);
    }
    if (__syncthreads_or(good ? 0 : 1) != 0) {
        if (first) symrail_tell_all(exchange);
        return false;
    }
    if (first) semaphore.signal();
    return true;
}

/* Copies share `share` of `shares` of a transfer of the PE to itself. */
SYMRAIL_DEVICE void symrail_exchange_own(const symrail_transfer& from, const symrail_transfer& to, symrail_u64 share,
                                         symrail_u64 shares) {
    symrail_u64 each = (from.bytes + 16 * shares - 1) / (16 * shares) * 16, start = share * each;
    if (start >= from.bytes || from.at == to.at) return;
    symrail_u64 left = from.bytes - start;
    symrail_copy<symrail_block_scope>((void*)(to.at + start), (const void*)(from.at + start), left < each ? left : each);
}

/* All work of a block. */
SYMRAIL_DEVICE void symrail_exchange_block(const symrail_exchange_call& call, symrail_u32 block) {
    const symrail_exchange& exchange = *call.exchange;
    symrail_u64 work = call.blocks[block], first = work & 0xffff, end = first + (work >> 16 & 0xffff), lane = work >> 32 & 0xffff;
    if (__syncthreads_or(symrail_ld_sys(exchange.alarm.stop) != 0 ? 1 : 0) != 0) {
        /* Reports to the host which PE has given up, if nothing has been reported yet. */
        if (symrail_block_scope::rank() == 0)
            symrail_give_up(exchange.alarm, SYMRAIL_GIVEN_UP_BY_PEER, symrail_ld_sys(exchange.alarm.stop) - 1, first);
        return;
    }
    if (work >> 63 != 0) {
        symrail_exchange_own(call.transfers[first], call.transfers[first + 1], lane, work >> 48 & 0x7fff);
        return;
    }
    for (symrail_u64 i = first; i < end; i++) {
        const symrail_transfer& transfer = call.transfers[i];
        symrail_u64 lanes = symrail_lanes_for(exchange, transfer.bytes), most = exchange.slot_bytes;
        const symrail_lane& taken = exchange.lanes[transfer.row * exchange.lanes_of_row + lane];
        for (symrail_u64 at = lane * most; lane < lanes && at < transfer.bytes; at += lanes * most) {
            symrail_u64 left = transfer.bytes - at, bytes = left < most ? left : most;
            if (!symrail_exchange_slot(exchange, taken, (transfer.row & 1) != 0, transfer.at + at, bytes, transfer.bytes))
                return;
        }
    }
}

#endif
