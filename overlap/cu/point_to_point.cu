
// Copies between two ranks, by a put or a get, behind a word of the other one that it is ready. Words are numbers of
// copies, which are counted here, so that graphs can be replayed.

// What a rank has counted of another one and a tag, in this device's memory.
struct overlap_pair {
    symrail_u64 sent, received, offered, fetched;
    // Blocks that have copied: of a put, of a get. What copy engines tell.
    symrail_u64 put, got, told_put, told_got;
};

// Tells a word at a PE, and waits for one of it, in the copy that is counted.
extern "C" __global__ void overlap_meet(const overlap_plan* plan, symrail_u64* count, symrail_u64 tell, symrail_u64 wait,
                                        symrail_u64 pe) {
    symrail_u64 number = *(volatile symrail_u64*)count + 1;
    *(volatile symrail_u64*)count = number;
    if (symrail_ld_sys(plan->alarm.stop) == 0) {
        symrail_fence();
        symrailx_signal_op((symrail_u64*)plan->words + tell, number, SYMRAIL_SIGNAL_SET, (int)pe);
    }
    overlap_await(plan, wait, number, pe);
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
    symrail_fence_sys();
    if (atomicAdd(copied, 1ull) + 1 != gridDim.x) return;
    // The last block: all have read the count.
    *(volatile symrail_u64*)copied = 0;
    *(volatile symrail_u64*)count = number;
    symrail_fence_sys();
    if (well) symrail_st_release_sys(tell, number);
}
