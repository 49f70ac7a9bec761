/* Sends and receives of one PE. Bytes travel through slots in the
 * receiver's symmetric heap, so that the PEs' own buffers may be any memory: the sender fills a slot and signals,
 * the receiver empties it and signals back. All threads of a block call every function here together, unless it says
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

/* Waits for a slot, by one thread, and checks that a filled slot belongs to a transfer of `size` bytes. `false`: the
 * other PE did not do its part, and all PEs have been told. */
SYMRAIL_DEVICE bool symrail_exchange_await(const symrail_exchange& exchange, const symrail_lane& lane, bool receives,
                                           symrail_u64 slot, symrail_u64 size) {
    /* The place in the host's report about this transfer. */
    symrail_u64 place = size << 1 | (receives ? 1 : 0);
    bool good = lane.semaphore.wait(exchange.alarm, place);
    if (good && receives) {
        symrail_u64 sent = symrail_ld_sys(lane.slots + slot);
        good = sent == size;
        if (!good)
            symrail_give_up(exchange.alarm, SYMRAIL_GIVEN_UP_SIZES | sent << SYMRAIL_GIVEN_UP_SIZE_SHIFT,
                            lane.semaphore.pe, place);
    }
    if (!good) symrail_tell_all(exchange);
    return good;
}

/* Sends or receives one slot's bytes of a transfer of `size` bytes. `false`: the other PE did not do its part. */
SYMRAIL_DEVICE bool symrail_exchange_slot(const symrail_exchange& exchange, const symrail_lane& lane, bool receives,
                                          symrail_u64 at, symrail_u64 bytes, symrail_u64 size) {
    const symrail_semaphore& semaphore = lane.semaphore;
    symrail_u64 stride = exchange.slot_bytes + SYMRAIL_SLOT_HEAD;
    symrail_u64 slot = symrail_ld_gpu(semaphore.expected) % SYMRAIL_LANE_SLOTS * stride, data = slot + SYMRAIL_SLOT_HEAD;
    bool first = symrail_block_scope::rank() == 0, good = true;
    symrail_block_scope::sync();
    if (first) good = symrail_exchange_await(exchange, lane, receives, slot, size);
    if (__syncthreads_or(good ? 0 : 1) != 0) return false;
    if (receives) {
        symrail_copy<symrail_block_scope, symrail_peer_source>((void*)at, (const void*)(lane.slots + data), bytes);
    } else if (lane.mapped != 0) {
        if (first) symrail_st_sys(lane.mapped + slot, size);
        symrail_copy<symrail_block_scope>((void*)(lane.mapped + data), (const void*)at, bytes);
    } else {
        if (first) symrail_st_sys(lane.outgoing + slot, size);
        symrail_copy<symrail_block_scope>((void*)(lane.outgoing + data), (const void*)at, bytes);
        symrail_fence_sys();
        symrail_block_scope::sync();
        if (first)
            symrail_copy_elsewhere(SYMRAIL_OP_PUT, lane.slots + slot, lane.outgoing + slot, bytes + SYMRAIL_SLOT_HEAD,
                                   semaphore.pe);
    }
    symrail_block_scope::sync();
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
