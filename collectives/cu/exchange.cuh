/* Sends and receives of one PE, as collectives/src/gpu/exchange.rs lays them out. Bytes travel through slots in the
 * receiver's symmetric heap, so that the PEs' own buffers may be any memory: the sender fills a slot and signals, the
 * receiver empties it and signals back. All threads of a block call everything here together. */
#ifndef SYMRAIL_EXCHANGE_CUH
#define SYMRAIL_EXCHANGE_CUH

#include "proxied.cuh"

/* Slots of a lane. */
#define SYMRAIL_LANE_SLOTS 4ull
/* What one launch can do. */
#define SYMRAIL_MOST_BLOCKS 128
#define SYMRAIL_MOST_TRANSFERS 120

/* One direction between two PEs; several work side by side on a large transfer. */
struct symrail_lane {
    /* A sender waits for empty slots, a receiver for full ones, and signals the other. */
    symrail_semaphore semaphore;
    /* The receiver's slots: the symmetric address, and where this device reaches it, or 0. */
    symrail_u64 slots;
    symrail_u64 mapped;
    /* A sender's own symmetric copy of them, from where the proxy fetches. */
    symrail_u64 outgoing;
};

struct symrail_exchange {
    symrail_alarm alarm;
    /* Two rows of them for each PE: to send, and to receive. */
    const symrail_lane* lanes;
    symrail_u64 lanes_of_row;
    symrail_u64 slot_bytes;
    symrail_u64 ranks;
};

struct symrail_transfer {
    symrail_u64 at;
    symrail_u64 bytes;
    /* Twice the PE, and one more to receive from it. */
    symrail_u64 row;
};

/* Each block takes some transfers of one row, one after the other, on one lane. */
struct symrail_exchange_call {
    const symrail_exchange* exchange;
    /* The first transfer, how many, and the lane: 16 bits each. */
    symrail_u64 blocks[SYMRAIL_MOST_BLOCKS];
    symrail_transfer transfers[SYMRAIL_MOST_TRANSFERS];
};

/* How many lanes share a transfer, which both ends know. */
SYMRAIL_DEVICE symrail_u64 symrail_lanes_for(const symrail_exchange& exchange, symrail_u64 bytes) {
    symrail_u64 slots = (bytes + exchange.slot_bytes - 1) / exchange.slot_bytes, most = exchange.lanes_of_row;
    return slots < most ? (slots == 0 ? 1 : slots) : most;
}

/* Tells all PEs that this one has given up, unless it was told so itself. By one thread. */
static __device__ __noinline__ void symrail_tell_all(const symrail_exchange& exchange) {
    for (symrail_u64 rank = 0; rank < exchange.ranks; rank++) {
        const symrail_semaphore& to = exchange.lanes[2 * rank * exchange.lanes_of_row].semaphore;
        symrail_tell_one(exchange.alarm.stop, to.mapped != 0, to.mapped - to.there, to.pe);
    }
}

/* Sends or receives what fits into a slot. `false`: the other PE did not do its part. */
SYMRAIL_DEVICE bool symrail_exchange_slot(const symrail_exchange& exchange, const symrail_lane& lane, bool receives,
                                          symrail_u64 at, symrail_u64 bytes, symrail_u64 place) {
    const symrail_semaphore& semaphore = lane.semaphore;
    symrail_u64 slot = symrail_ld_gpu(semaphore.expected) % SYMRAIL_LANE_SLOTS * exchange.slot_bytes;
    symrail_block_scope::sync();
    bool good = true;
    if (symrail_block_scope::rank() == 0) {
        good = semaphore.wait(exchange.alarm, place);
        if (!good) symrail_tell_all(exchange);
    }
    if (__syncthreads_or(good ? 0 : 1) != 0) return false;
    if (receives) {
        symrail_copy<symrail_block_scope, symrail_peer_source>((void*)at, (const void*)(lane.slots + slot), bytes);
    } else if (lane.mapped != 0) {
        symrail_copy<symrail_block_scope>((void*)(lane.mapped + slot), (const void*)at, bytes);
    } else {
        symrail_copy<symrail_block_scope>((void*)(lane.outgoing + slot), (const void*)at, bytes);
        symrail_fence_sys();
        symrail_block_scope::sync();
        if (symrail_block_scope::rank() == 0)
            symrail_copy_elsewhere(SYMRAIL_OP_PUT, lane.slots + slot, lane.outgoing + slot, bytes, semaphore.pe);
    }
    symrail_block_scope::sync();
    if (symrail_block_scope::rank() == 0) semaphore.signal();
    return true;
}

/* All of a block's work. */
SYMRAIL_DEVICE void symrail_exchange_block(const symrail_exchange_call& call, symrail_u32 block) {
    const symrail_exchange& exchange = *call.exchange;
    symrail_u64 work = call.blocks[block], first = work & 0xffff, end = first + (work >> 16 & 0xffff), lane = work >> 32;
    if (__syncthreads_or(symrail_ld_sys(exchange.alarm.stop) != 0 ? 1 : 0) != 0) {
        /* The host learns who has given up, if it does not know. */
        if (symrail_block_scope::rank() == 0)
            symrail_give_up(exchange.alarm, SYMRAIL_GIVEN_UP_TOLD, symrail_ld_sys(exchange.alarm.stop) - 1, first);
        return;
    }
    for (symrail_u64 i = first; i < end; i++) {
        const symrail_transfer& transfer = call.transfers[i];
        symrail_u64 lanes = symrail_lanes_for(exchange, transfer.bytes), most = exchange.slot_bytes;
        const symrail_lane& taken = exchange.lanes[transfer.row * exchange.lanes_of_row + lane];
        for (symrail_u64 at = lane * most; lane < lanes && at < transfer.bytes; at += lanes * most) {
            symrail_u64 left = transfer.bytes - at, bytes = left < most ? left : most;
            if (!symrail_exchange_slot(exchange, taken, (transfer.row & 1) != 0, transfer.at + at, bytes, i)) return;
        }
    }
}

#endif
