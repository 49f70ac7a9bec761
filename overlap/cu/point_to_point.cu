
// Copies between two ranks, by a put or a get, after a word of the other rank that it is ready. Words hold numbers of
// copies. The kernels count them, so that graphs can be replayed.

// Few bytes go as packets to slots of the receiver, which copies them to their destination. So the sender need not know
// when the receiver is ready. The sender reuses a slot once the receiver has begun the copy after the slot's last one.
// The first packets of a slot hold the offset of the destination from the receiver's words, and the number of bytes.
#define OVERLAP_SLOT_HEAD 32
SYMRAIL_DEVICE symrail_u64 overlap_slot(symrail_u64 slots, symrail_u64 number) {
    return slots + number % OVERLAP_SLOTS * OVERLAP_SLOT_BYTES;
}

// Sets a word at a PE. `there` is the address at which this device reaches it, or 0.
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

// Counts a copy, sets a PE's word to its number, and waits until the PE has set this PE's word to it.
extern "C" __global__ void overlap_offer(const overlap_plan* plan, symrail_u64* count, symrail_u64 there,
                                         symrail_u64 set, symrail_u64 wait, symrail_u64 pe) {
    symrail_u64 number = *(volatile symrail_u64*)count + 1;
    *(volatile symrail_u64*)count = number;
    overlap_notify(plan, there, set, number, pe);
    overlap_await(plan, wait, number, pe);
}

// The same for a receiver of a put: the bytes are in place already, or they are packets, which this kernel copies.
extern "C" __global__ void __launch_bounds__(512)
    overlap_receive(const overlap_plan* plan, symrail_u64* count, symrail_u64 there, symrail_u64 set, symrail_u64 wait,
                    symrail_u64 slots, symrail_u64 pe) {
    symrail_u64 number = *(volatile symrail_u64*)count + 1, slot = overlap_slot(slots, number);
    // The other threads begin to poll meanwhile.
    if (threadIdx.x == blockDim.x - 1) overlap_notify(plan, there, set, number, pe);
    symrail_u32 flag = (symrail_u32)number;
    symrail_u64 done = plan->words + 8 * wait, offset = 0, bytes = 0;
    bool packets = false;
    auto come = [&]() {
        bool at = symrail_packet16_read(slot, flag, offset), many = symrail_packet16_read(slot + 16, flag, bytes);
        packets = at && many;
        return packets || symrail_ld_sys(done) >= number;
    };
    // One thread is enough to process the proxy's deliveries.
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
    // The fence makes the bytes of the put visible, after the word that the sender set.
    if (!packets) symrail_fence_sys();
    __syncthreads();
    if (threadIdx.x == 0) *(volatile symrail_u64*)count = number;
}

// Puts bytes as packets to slots that this device reaches.
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

// Counts a copy, waits until a PE has set this PE's word to its number, and stores the number in `counted`.
extern "C" __global__ void overlap_ready(const overlap_plan* plan, symrail_u64* count, symrail_u64* counted,
                                         symrail_u64 wait, symrail_u64 pe) {
    symrail_u64 number = *(volatile symrail_u64*)count + 1;
    *(volatile symrail_u64*)count = number;
    overlap_await(plan, wait, number, pe);
    if (symrail_ld_sys(plan->alarm.stop) == 0) *(volatile symrail_u64*)counted = number;
}

// Sets a word at a PE, after all puts of this PE to it.
extern "C" __global__ void overlap_signal_count(const overlap_plan* plan, const symrail_u64* counted,
                                                symrail_u64 word, symrail_u64 pe) {
    if (symrail_ld_sys(plan->alarm.stop) != 0) return;
    symrail_fence();
    symrail_u64 number = *(volatile const symrail_u64*)counted;
    symrailx_signal_op((symrail_u64*)plan->words + word, number, SYMRAIL_SIGNAL_SET, (int)pe);
}

// Waits for a word of a PE, copies to or from memory that this device reaches there, and sets a word there.
extern "C" __global__ void __launch_bounds__(512)
    overlap_copy(const overlap_plan* plan, symrail_u64* count, symrail_u64* copied, symrail_u64 wait, char* to,
                 const char* from, symrail_u64 bytes, symrail_u64 set, symrail_u64 pe) {
    symrail_u64 number = *(volatile symrail_u64*)count + 1;
    if (threadIdx.x == 0) overlap_await(plan, wait, number, pe);
    __syncthreads();
    bool well = overlap_in_steps(plan, bytes, [&](symrail_u64 at, symrail_u64 some) {
        symrail_copy<symrail_block_scope, symrail_peer_source>(to + at, from + at, some);
    });
    __syncthreads();
    if (threadIdx.x != 0) return;
    // The last block sets the word after all threads of all blocks have copied and read the count.
    symrail_fence_sys();
    if (!overlap_is_last(copied, well)) return;
    if (well) symrail_st_sys(set, number);
    *(volatile symrail_u64*)count = number;
}
