
// Copies between two ranks, by a put or a get, behind a word of the other one that it is ready. Words are numbers of
// copies, which are counted here, so that graphs can be replayed.

// What a rank has counted of another one and a tag, in this device's memory.
struct overlap_pair {
    symrail_u64 sent, received, offered, fetched;
    // Blocks that have copied: of a put, of a get. What copy engines tell.
    symrail_u64 put, got, told_put, told_got;
};

// Few bytes are put as packets to slots of the receiver, which copies them to where they belong: by what time it is ready
// need not be known before. A slot is used again once the receiver has begun the copy behind the slot's last one. Its
// first packets say where the bytes go, from the receiver's words on, and how many there are.
#define OVERLAP_SLOTS 4
#define OVERLAP_SLOT_BYTES 8320
#define OVERLAP_SLOT_HEAD 32
SYMRAIL_DEVICE symrail_u64 overlap_slot(symrail_u64 slots, symrail_u64 number) {
    return slots + number % OVERLAP_SLOTS * OVERLAP_SLOT_BYTES;
}

// Tells a word at a PE: `there` is where this device reaches it, or 0.
SYMRAIL_DEVICE void overlap_notify(const overlap_plan* plan, symrail_u64 there, symrail_u64 word, symrail_u64 number,
                                   symrail_u64 pe) {
    if (symrail_ld_sys(plan->alarm.stop) != 0) return;
    if (there != 0) {
        symrail_st_release_sys(there, number);
        return;
    }
    symrail_fence();
    symrailx_signal_op((symrail_u64*)plan->words + word, number, SYMRAIL_SIGNAL_SET, (int)pe);
}

// Tells a word at a PE, and waits for one of it, in the copy that is counted.
extern "C" __global__ void overlap_meet(const overlap_plan* plan, symrail_u64* count, symrail_u64 there, symrail_u64 tell,
                                        symrail_u64 wait, symrail_u64 pe) {
    symrail_u64 number = *(volatile symrail_u64*)count + 1;
    *(volatile symrail_u64*)count = number;
    overlap_notify(plan, there, tell, number, pe);
    overlap_await(plan, wait, number, pe);
}

// The same for who gets what the other one puts: bytes that are there already, or packets, which this copies.
extern "C" __global__ void __launch_bounds__(512)
    overlap_receive(const overlap_plan* plan, symrail_u64* count, symrail_u64 there, symrail_u64 tell, symrail_u64 wait,
                    symrail_u64 slots, symrail_u64 pe) {
    symrail_u64 number = *(volatile symrail_u64*)count + 1, slot = overlap_slot(slots, number);
    // The others begin to look meanwhile.
    if (threadIdx.x == blockDim.x - 1) overlap_notify(plan, there, tell, number, pe);
    symrail_u32 flag = (symrail_u32)number;
    symrail_u64 done = plan->words + 8 * wait, offset = 0, bytes = 0;
    bool packets = false;
    auto come = [&]() {
        bool at = symrail_packet16_read(slot, flag, offset), many = symrail_packet16_read(slot + 16, flag, bytes);
        packets = at && many;
        return packets || symrail_ld_sys(done) >= number;
    };
    // One thread is enough to take the proxy's deliveries in.
    if (symrail_state.mailbox != 0) {
        if (threadIdx.x == 0) overlap_until(plan, come, wait, pe);
        __syncthreads();
    }
    bool well = overlap_until(plan, come, wait, pe);
    if (well && packets) {
        char* to = (char*)plan->words + offset;
        for (symrail_u64 i = 8 * (symrail_u64)threadIdx.x; i < bytes; i += 8 * (symrail_u64)blockDim.x) {
            symrail_u64 data = 0, at = slot + OVERLAP_SLOT_HEAD + 2 * i;
            auto read = [&]() { return symrail_packet16_read(at, flag, data); };
            if (!overlap_until(plan, read, wait, pe)) break;
            symrail_store_some(to + i, data, bytes - i);
        }
    }
    // What was put is visible behind the word that tells of it.
    if (!packets) symrail_fence_sys();
    __syncthreads();
    if (threadIdx.x == 0) *(volatile symrail_u64*)count = number;
}

// Puts bytes as packets to slots, where this device reaches them.
extern "C" __global__ void __launch_bounds__(512)
    overlap_packets(const overlap_plan* plan, symrail_u64* count, symrail_u64 wait, symrail_u64 slots, const char* from,
                    symrail_u64 bytes, symrail_u64 offset, symrail_u64 pe) {
    symrail_u64 number = *(volatile symrail_u64*)count + 1, slot = overlap_slot(slots, number);
    if (threadIdx.x == 0 && number >= OVERLAP_SLOTS) overlap_await(plan, wait, number - (OVERLAP_SLOTS - 1), pe);
    __syncthreads();
    if (threadIdx.x == 0) *(volatile symrail_u64*)count = number;
    if (symrail_ld_sys(plan->alarm.stop) != 0) return;
    symrail_u32 flag = (symrail_u32)number;
    if (threadIdx.x < 2) symrail_packet16_write(slot + 16 * threadIdx.x, threadIdx.x == 0 ? offset : bytes, flag);
    for (symrail_u64 i = 8 * (symrail_u64)threadIdx.x; i < bytes; i += 8 * (symrail_u64)blockDim.x)
        symrail_packet16_write(slot + OVERLAP_SLOT_HEAD + 2 * i, symrail_load_some(from + i, bytes - i), flag);
}

// Waits for a word of a PE, in the copy that is counted; `told` is its number then.
extern "C" __global__ void overlap_ready(const overlap_plan* plan, symrail_u64* count, symrail_u64* told,
                                         symrail_u64 wait, symrail_u64 pe) {
    symrail_u64 number = *(volatile symrail_u64*)count + 1;
    *(volatile symrail_u64*)count = number;
    overlap_await(plan, wait, number, pe);
    if (symrail_ld_sys(plan->alarm.stop) == 0) *(volatile symrail_u64*)told = number;
}

// Tells a word at a PE behind what this PE has put there.
extern "C" __global__ void overlap_say(const overlap_plan* plan, const symrail_u64* told, symrail_u64 word,
                                       symrail_u64 pe) {
    if (symrail_ld_sys(plan->alarm.stop) != 0) return;
    symrail_fence();
    symrailx_signal_op((symrail_u64*)plan->words + word, *(volatile const symrail_u64*)told, SYMRAIL_SIGNAL_SET, (int)pe);
}

// All in one: waits for a word of a PE, copies to or from where this device reaches it, and tells a word there.
extern "C" __global__ void __launch_bounds__(512)
    overlap_copy(const overlap_plan* plan, symrail_u64* count, symrail_u64* copied, symrail_u64 wait, char* to,
                 const char* from, symrail_u64 bytes, symrail_u64 tell, symrail_u64 pe) {
    symrail_u64 number = *(volatile symrail_u64*)count + 1;
    if (threadIdx.x == 0) overlap_await(plan, wait, number, pe);
    __syncthreads();
    bool well = symrail_ld_sys(plan->alarm.stop) == 0;
    symrail_u64 part = ((bytes + gridDim.x - 1) / gridDim.x + 127) & ~127ull, at = part * blockIdx.x;
    if (well && at < bytes)
        symrail_copy<symrail_block_scope, symrail_peer_source>(to + at, from + at, at + part < bytes ? part : bytes - at);
    __syncthreads();
    if (threadIdx.x != 0) return;
    // What all threads of all blocks have copied is told: by the last block, when all have read the count.
    symrail_fence_sys();
    if (gridDim.x > 1) {
        if (atomicAdd(copied, 1ull) + 1 != gridDim.x) return;
        symrail_fence_sys();
        *(volatile symrail_u64*)copied = 0;
    }
    if (well) symrail_st_sys(tell, number);
    *(volatile symrail_u64*)count = number;
}
