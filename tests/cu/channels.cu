// Memory channels between two PEs, by one block each: the kernel checks received data, and counts wrong bytes.
#include "symrail_channels.cuh"

typedef symrail_block_scope all_threads;

static __device__ unsigned char byte_of(symrail_u64 i, symrail_u64 pe, symrail_u64 round) {
    return (unsigned char)(i * 7 + (i >> 8) * 13 + pe * 31 + round * 101);
}

// The buffer's parts: data to put, data to send, received packets' data, and packets.
extern "C" __global__ void __launch_bounds__(512)
    memory_channels(const symrail_memory_channel* channel, unsigned char* mine, symrail_u64 part, symrail_u64 me,
                    symrail_u64 rounds, symrail_u64* wrong) {
    unsigned char *put = mine, *sent = mine + part, *unpacked = mine + 2 * part;
    symrail_u64 peer = 1 - me, packets = 3 * part;
    for (symrail_u64 round = 1; round <= rounds; round++) {
        // Any length, from and to any byte.
        symrail_u64 bytes = (round * 977) % (part - 64), from = round % 19, to = round * 3 % 23, bad = 0;
        for (symrail_u64 i = threadIdx.x; i < bytes; i += blockDim.x) sent[from + i] = byte_of(i, me, round);
        __syncthreads();
        channel->put<all_threads>(to, sent + from, bytes);
        channel->signal<all_threads>();
        bool came = true;
        if (threadIdx.x == 0) {
            if (round % 3 == 0) {
                symrail_waiter waiter;
                while (!(came = channel->poll()) && !waiter.over()) {}
            } else {
                came = channel->wait();
            }
        }
        if (__syncthreads_or(came ? 0 : 1)) break;
        for (symrail_u64 i = threadIdx.x; i < bytes; i += blockDim.x) bad += put[to + i] != byte_of(i, peer, round);
        // The peer's source, read by this PE.
        if (threadIdx.x < bytes) {
            unsigned char there = *(const volatile unsigned char*)(channel->remote + part + from + threadIdx.x);
            bad += there != byte_of(threadIdx.x, peer, round);
        }
        symrail_u32 flag = (symrail_u32)round, single = 0;
        channel->put_packets<all_threads>(packets + (round % 2) * 2 * part, sent + from, bytes, flag);
        came = channel->unpack_packets<all_threads>(unpacked + to, packets + (round % 2) * 2 * part, bytes, flag);
        __syncthreads();
        for (symrail_u64 i = threadIdx.x; i < bytes; i += blockDim.x) bad += unpacked[to + i] != byte_of(i, peer, round);
        if (threadIdx.x == 0) {
            symrail_u64 at = 7 * part + (round % 2) * 8;
            channel->put_packet8(at, (symrail_u32)(round * 17 + me), flag);
            came = channel->unpack_packet8(at, single, flag) && came;
            bad += single != (symrail_u32)(round * 17 + peer);
        }
        if (bad != 0) atomicAdd(wrong, bad);
        // No source is read any more, nor is received data.
        channel->signal<all_threads>();
        if (threadIdx.x == 0) came = channel->wait() && came;
        if (__syncthreads_or(came ? 0 : 1)) break;
        if (threadIdx.x == 0 && round == rounds) atomicAdd(wrong + 1, rounds);
    }
}
