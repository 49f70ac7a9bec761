// Rounds of a product on a GPU, for overlap/src/cuda: words that hold numbers of rounds, copies, and sums.
//
// The kernels count the rounds, so that a graph of a round can be replayed. Stream memory operations would instead wait
// for the same number in each replay, and without a time limit. One thread waits, at most for the device's time-out.
//
// overlap_begin counts the round, and waits for `n` words, each with its PE, that were set in the round before.
extern "C" __global__ void __launch_bounds__(32)
    overlap_begin(overlap_plan* plan, const overlap_first_wait* waits, symrail_u64 n) {
    symrail_u64 before = *(volatile symrail_u64*)plan->round;
    __syncthreads();
    if (threadIdx.x == 0) {
        *(volatile symrail_u64*)plan->round = before + 1;
        // The host may have enqueued this round before it learned of a failure in the one before.
        *(volatile symrail_u64*)&plan->signalled = symrail_ld_sys(plan->alarm.stop) == 0 ? before + 1 : 0;
    }
    __syncthreads();
    for (symrail_u64 i = threadIdx.x; i < n; i += blockDim.x) overlap_await(plan, waits[i].word, before, waits[i].pe);
}

// Waits until a PE has set this PE's word in the round that is `before` rounds before this one.
extern "C" __global__ void overlap_wait(const overlap_plan* plan, symrail_u64 word, symrail_u64 before,
                                        symrail_u64 pe) {
    overlap_await(plan, word, *(const symrail_u64*)plan->round - before, pe);
}

// Sets a PE's word, after all puts of this PE to it.
extern "C" __global__ void overlap_signal(const overlap_plan* plan, symrail_u64 word, symrail_u64 pe) {
    // A PE whose wait has failed sets no word: others must not read data that are missing.
    if (symrail_ld_sys(plan->alarm.stop) != 0) return;
    symrail_fence();
    symrailx_signal_op((symrail_u64*)plan->words + word, *(const symrail_u64*)plan->round, SYMRAIL_SIGNAL_SET, (int)pe);
}

// Starts a put of bytes of the heap to a PE and then of its word, and does not wait for it: see overlap_quiet. With
// `in_order` a fence orders the put after the earlier ones. Otherwise the first piece would arrive no sooner than the
// last.
extern "C" __global__ void overlap_put_nbi(const overlap_plan* plan, char* to, const char* from, symrail_u64 bytes,
                                           symrail_u64 word, symrail_u64 pe, symrail_u64 in_order) {
    if (symrail_ld_sys(plan->alarm.stop) != 0) return;
    if (in_order != 0) symrail_fence();
    symrail_putmem_signal_nbi(to, from, bytes, (symrail_u64*)plan->words + word, *(const symrail_u64*)plan->round,
                              SYMRAIL_SIGNAL_SET, (int)pe);
}
extern "C" __global__ void overlap_quiet() { symrail_quiet(); }

// Copies bytes to where this device reaches a PE's memory, and sets the PE's word there. Multiprocessors copy, since
// they begin sooner than a copy engine.
extern "C" __global__ void __launch_bounds__(512)
    overlap_send(overlap_plan* plan, char* to, const char* from, symrail_u64 bytes, symrail_u64 word) {
    bool well = overlap_in_steps(plan, bytes, [&](symrail_u64 at, symrail_u64 some) {
        symrail_copy<symrail_block_scope>(to + at, from + at, some);
    });
    __syncthreads();
    if (threadIdx.x != 0) return;
    // The last block sets the word after all blocks have copied.
    symrail_fence_sys();
    if (!overlap_is_last(&plan->copied, well)) return;
    symrail_u64 round = *(volatile symrail_u64*)&plan->signalled;
    if (well && round != 0) symrail_st_sys(word, round);
}

// Puts bytes to a PE where neither a copy engine nor overlap_send does. Its word follows by overlap_signal.
extern "C" __global__ void __launch_bounds__(512)
    overlap_put(const overlap_plan* plan, char* to, const char* from, symrail_u64 bytes, symrail_u64 pe) {
    overlap_in_steps(plan, bytes, [&](symrail_u64 at, symrail_u64 some) {
        symrailx_putmem_block(to + at, from + at, some, (int)pe);
    });
}
// The same by one request to the proxy, in one block.
extern "C" __global__ void overlap_put_proxied(const overlap_plan* plan, char* to, const char* from, symrail_u64 bytes,
                                               symrail_u64 pe) {
    if (!overlap_goes_on(plan)) return;
    symrail_u64 before = symrail_failed_requests();
    symrail_putmem(to, from, bytes, (int)pe);
    if (symrail_failed_requests() == before) return;
    // The PE lacks the bytes. It gets no word, and no PE waits for this one.
    symrail_give_up(plan->alarm, SYMRAIL_GIVEN_UP_LATE, pe, 0);
    overlap_gave_up(plan, pe);
}

// Does nothing for so long. Tests use it to delay steps.
extern "C" __global__ void overlap_delay(symrail_u64 nanoseconds) {
    symrail_u64 end = symrail_now() + nanoseconds;
    while (symrail_now() < end) {
    }
}

// The number of numbers that are loaded and stored together.
#define OVERLAP_TOGETHER 8
template <class T>
struct __align__(16) overlap_some {
    T of[OVERLAP_TOGETHER];
};

// Sums the numbers from `first` to `end`: summands in their order, as 32-bit floats, and the bias. `places` are `n`
// offsets from `base`, in numbers. `shared` is the address from which others get the sums, too, or 0. `together` means
// that all places and rows are aligned so that several numbers can be loaded together.
template <class N>
SYMRAIL_DEVICE void overlap_sum(symrail_u64 base, const symrail_u64* places, symrail_u64 n, symrail_u64 bias,
                                symrail_u64 width, symrail_u64 out, symrail_u64 shared, symrail_u64 together,
                                symrail_u64 first, symrail_u64 end, symrail_u64 thread, symrail_u64 threads) {
    typedef typename N::stored T;
    typedef overlap_some<T> Some;
    if (together != 0) {
        for (symrail_u64 i = first + thread * OVERLAP_TOGETHER; i < end; i += threads * OVERLAP_TOGETHER) {
            float sum[OVERLAP_TOGETHER];
            for (symrail_u64 s = 0; s < n; s++) {
                Some some = *(const Some*)((const T*)base + places[s] + i);
#pragma unroll
                for (int k = 0; k < OVERLAP_TOGETHER; k++)
                    sum[k] = s == 0 ? N::load(some.of[k]) : sum[k] + N::load(some.of[k]);
            }
            Some rounded, added = {};
            if (bias != 0) added = *(const Some*)((const T*)bias + i % width);
#pragma unroll
            for (int k = 0; k < OVERLAP_TOGETHER; k++)
                rounded.of[k] = N::store(bias != 0 ? sum[k] + N::load(added.of[k]) : sum[k]);
            *(Some*)((T*)out + i) = rounded;
            if (shared != 0) *(Some*)((T*)shared + i) = rounded;
        }
        return;
    }
    for (symrail_u64 i = first + thread; i < end; i += threads) {
        float sum = N::load(((const T*)base)[places[0] + i]);
        for (symrail_u64 s = 1; s < n; s++) sum += N::load(((const T*)base)[places[s] + i]);
        if (bias != 0) sum += N::load(((const T*)bias)[i % width]);
        T rounded = N::store(sum);
        ((T*)out)[i] = rounded;
        if (shared != 0) ((T*)shared)[i] = rounded;
    }
}

// The slice of a block, which is the same at the sender and at the receiver.
SYMRAIL_DEVICE symrail_u64 overlap_slice(symrail_u64 bytes, symrail_u64& at) {
    symrail_u64 slice = ((bytes + gridDim.x - 1) / gridDim.x + 127) & ~127ull;
    at = slice * blockIdx.x;
    return at >= bytes ? 0 : at + slice < bytes ? slice : bytes - at;
}

// Exchanges a block's slice of all parts with the same block of the others. The kernel is the only one of the round
// that counts and waits. All earlier kernels in this rank's stream, which used the memory before, have ended. Each
// block first signals that.
static __device__ void overlap_exchange(overlap_plan* plan, const overlap_part* parts, symrail_u64 n,
                                        symrail_u64 from) {
    symrail_u64 round = *(volatile symrail_u64*)plan->round + 1, block = 8 * (symrail_u64)blockIdx.x;
    bool given_up = symrail_ld_sys(plan->alarm.stop) != 0;
    if (threadIdx.x < n) {
        const overlap_part& part = parts[threadIdx.x];
        if (!given_up)
            symrail_st_release_sys(part.ready_there + block, round);
        overlap_await(plan, (part.ready + block - plan->words) / 8, round, part.pe);
    }
    // A part that is not ready may still be read.
    __syncthreads();
    bool well = overlap_goes_on(plan);
    for (symrail_u64 i = 0; well && i < n; i++) {
        symrail_u64 at, bytes = overlap_slice(parts[i].bytes, at);
        if (bytes != 0)
            symrail_copy<symrail_block_scope>((char*)parts[i].to + at, (const char*)from + parts[i].from + at, bytes);
    }
    __syncthreads();
    if (threadIdx.x < n) {
        const overlap_part& part = parts[threadIdx.x];
        symrail_fence_sys();
        if (well && symrail_ld_sys(plan->alarm.stop) == 0)
            symrail_st_release_sys(part.arrived_there + block, round);
    }
}
static __device__ void overlap_arrive(overlap_plan* plan, const overlap_part* parts, symrail_u64 n) {
    symrail_u64 round = *(volatile symrail_u64*)plan->round + 1, block = 8 * (symrail_u64)blockIdx.x;
    if (threadIdx.x < n) {
        const overlap_part& part = parts[threadIdx.x];
        overlap_await(plan, (part.arrived + block - plan->words) / 8, round, part.pe);
    }
    __syncthreads();
}
// Counts the round in the last block.
static __device__ void overlap_count(overlap_plan* plan) {
    __syncthreads();
    if (threadIdx.x != 0) return;
    __threadfence();
    if (atomicAdd(&plan->copied, 1ull) + 1 != gridDim.x) return;
    plan->copied = 0;
    volatile symrail_u64* round = (volatile symrail_u64*)plan->round;
    *round = *round + 1;
}

// The same exchange for few bytes, which move as packets: no rank waits for a free buffer, nor for a word after the
// bytes. A rank's packets have two places, which rounds use in turn. A rank in a round has got packets of all others in
// the round before. So the others have read the packets of the round before that one. Each block also sends one packet
// without data, which the receiver waits for where the block has no bytes.
// Sends a block's packets, and returns the flag of those that arrive. `turn` is the distance between the two places.
static __device__ symrail_u32 overlap_pack(overlap_plan* plan, const overlap_packed* parts, symrail_u64 n,
                                           symrail_u64 from, symrail_u64 turn, symrail_u64 round) {
    symrail_u32 flag = (symrail_u32)round;
    if (symrail_ld_sys(plan->alarm.stop) != 0) return flag;
    for (symrail_u64 p = 0; p < n; p++) {
        symrail_u64 at, bytes = overlap_slice(parts[p].bytes, at), to = parts[p].to + round % 2 * turn;
        const char* source = (const char*)from + parts[p].from + at;
        if (threadIdx.x == 0) symrail_packet16_write(to + 16 * (symrail_u64)blockIdx.x, 0, flag);
        to += 16 * OVERLAP_PACKET_HEADS + 2 * at;
        symrail_u64 step = 8 * (symrail_u64)blockDim.x;
        // Each thread has two loads in flight.
        for (symrail_u64 i = 8 * (symrail_u64)threadIdx.x; i < bytes; i += 2 * step) {
            symrail_u64 k = i + step, first = symrail_load_some(source + i, bytes - i), second = 0;
            if (k < bytes) second = symrail_load_some(source + k, bytes - k);
            symrail_packet16_write(to + 2 * i, first, flag);
            if (k < bytes) symrail_packet16_write(to + 2 * k, second, flag);
        }
    }
    return flag;
}
// Waits for a packet of a rank.
static __device__ symrail_u64 overlap_packet(const overlap_plan* plan, symrail_u64 at, symrail_u32 flag,
                                             symrail_u64 sender) {
    symrail_u64 data = 0;
    auto read = [&]() { return symrail_packet16_read(at, flag, data); };
    overlap_until(plan, read, 0, sender);
    return data;
}
// Waits for the packets without data.
static __device__ void overlap_heads(const overlap_plan* plan, const overlap_packed* parts, symrail_u64 n,
                                     symrail_u64 turn, symrail_u32 flag) {
    if (threadIdx.x >= n) return;
    const overlap_packed& part = parts[threadIdx.x];
    overlap_packet(plan, part.here + flag % 2 * turn + 16 * (symrail_u64)blockIdx.x, flag, part.sender);
}

// Like overlap_gather.
extern "C" __global__ void __launch_bounds__(512)
    overlap_gather_packets(overlap_plan* plan, const overlap_packed* parts, symrail_u64 n, symrail_u64 from,
                           symrail_u64 keep, symrail_u64 bytes, symrail_u64 turn) {
    symrail_u64 round = *(volatile symrail_u64*)plan->round + 1;
    symrail_u32 flag = overlap_pack(plan, parts, n, from, turn, round);
    // All threads have read the round. The kernel counts it while packets are in flight.
    overlap_count(plan);
    symrail_u64 at, own = overlap_slice(bytes, at);
    if (own != 0) symrail_copy<symrail_block_scope>((char*)keep + at, (const char*)from + at, own);
    for (symrail_u64 p = 0; p < n; p++) {
        symrail_u64 coming = overlap_slice(parts[p].coming, at);
        symrail_u64 packets = parts[p].here + flag % 2 * turn + 16 * OVERLAP_PACKET_HEADS + 2 * at;
        char* to = (char*)parts[p].keep + at;
        for (symrail_u64 i = 8 * (symrail_u64)threadIdx.x; i < coming; i += 8 * (symrail_u64)blockDim.x)
            symrail_store_some(to + i, overlap_packet(plan, packets + 2 * i, flag, parts[p].sender), coming - i);
    }
    overlap_heads(plan, parts, n, turn, flag);
}

// Like overlap_reduce, with sums in the same order. `own` is the address of this rank's summand.
template <class N>
static __device__ void overlap_reduce_packets(overlap_plan* plan, const overlap_packed* parts, symrail_u64 n,
                                              symrail_u64 from, symrail_u64 own, symrail_u64 bias, symrail_u64 count,
                                              symrail_u64 width, symrail_u64 out, symrail_u64 turn) {
    typedef typename N::stored T;
    const int numbers = 8 / sizeof(T);
    symrail_u64 round = *(volatile symrail_u64*)plan->round + 1;
    symrail_u32 flag = overlap_pack(plan, parts, n, from, turn, round);
    overlap_count(plan);
    symrail_u64 at, bytes = overlap_slice(count * sizeof(T), at);
    for (symrail_u64 i = 8 * (symrail_u64)threadIdx.x; i < bytes; i += 8 * (symrail_u64)blockDim.x) {
        symrail_u64 last = symrail_load_some((const char*)own + at + i, bytes - i);
        float sum[numbers];
        for (symrail_u64 p = 0; p <= n; p++) {
            symrail_u64 packets = p == n ? 0 : parts[p].here + flag % 2 * turn + 16 * OVERLAP_PACKET_HEADS;
            symrail_u64 data = p == n ? last : overlap_packet(plan, packets + 2 * (at + i), flag, parts[p].sender);
            T some[numbers];
            memcpy(some, &data, 8);
#pragma unroll
            for (int k = 0; k < numbers; k++) sum[k] = p == 0 ? N::load(some[k]) : sum[k] + N::load(some[k]);
        }
        T rounded[numbers];
        symrail_u64 first = (at + i) / sizeof(T), data;
#pragma unroll
        for (int k = 0; k < numbers; k++) {
            if (bias != 0 && first + k < count) sum[k] += N::load(((const T*)bias)[(first + k) % width]);
            rounded[k] = N::store(sum[k]);
        }
        memcpy(&data, rounded, 8);
        symrail_store_some((char*)out + at + i, data, bytes - i);
    }
    overlap_heads(plan, parts, n, turn, flag);
}

// Sends this rank's rows to the others, keeps them among all rows, and waits for those of the others.
extern "C" __global__ void __launch_bounds__(512)
    overlap_gather(overlap_plan* plan, const overlap_part* parts, symrail_u64 n, symrail_u64 from, symrail_u64 keep,
                   symrail_u64 bytes) {
    overlap_exchange(plan, parts, n, from);
    symrail_u64 at, own = overlap_slice(bytes, at);
    if (own != 0) symrail_copy<symrail_block_scope>((char*)keep + at, (const char*)from + at, own);
    overlap_arrive(plan, parts, n);
    overlap_count(plan);
}

// Sends the others' rows of this rank's product, and sums those of its own: see overlap_sum.
#define OVERLAP_REDUCE(NAME, NUMBER)                                                                                 \
    extern "C" __global__ void __launch_bounds__(512)                                                                \
        overlap_reduce_##NAME(overlap_plan* plan, const overlap_part* parts, symrail_u64 n, symrail_u64 from,        \
                              const symrail_u64* places, symrail_u64 bias, symrail_u64 count, symrail_u64 width,     \
                              symrail_u64 out, symrail_u64 together) {                                               \
        overlap_exchange(plan, parts, n, from);                                                                      \
        overlap_arrive(plan, parts, n);                                                                              \
        const symrail_u64 size = sizeof(NUMBER::stored);                                                             \
        symrail_u64 at, own = overlap_slice(count * size, at), first = at / size;                                    \
        overlap_sum<NUMBER>(from, places, n + 1, bias, width, out, 0, together, first, first + own / size,           \
                            threadIdx.x, blockDim.x);                                                                \
        overlap_count(plan);                                                                                         \
    }
#define OVERLAP_SUM(NAME, NUMBER)                                                                                    \
    extern "C" __global__ void __launch_bounds__(256)                                                                \
        overlap_sum_##NAME(symrail_u64 base, const symrail_u64* places, symrail_u64 n, symrail_u64 bias,             \
                           symrail_u64 rows, symrail_u64 width, symrail_u64 out, symrail_u64 shared,                 \
                           symrail_u64 together) {                                                                   \
        overlap_sum<NUMBER>(base, places, n, bias, width, out, shared, together, 0, rows * width,                    \
                            (symrail_u64)blockIdx.x * blockDim.x + threadIdx.x,                                      \
                            (symrail_u64)gridDim.x * blockDim.x);                                                    \
    }
#define OVERLAP_REDUCE_PACKETS(NAME, NUMBER)                                                                         \
    extern "C" __global__ void __launch_bounds__(512)                                                                \
        overlap_reduce_packets_##NAME(overlap_plan* plan, const overlap_packed* parts, symrail_u64 n,                \
                                      symrail_u64 from, symrail_u64 own, symrail_u64 bias, symrail_u64 count,        \
                                      symrail_u64 width, symrail_u64 out, symrail_u64 turn) {                        \
        overlap_reduce_packets<NUMBER>(plan, parts, n, from, own, bias, count, width, out, turn);                    \
    }
#define OVERLAP_NUMBER(NAME, NUMBER)                                                                                 \
    OVERLAP_SUM(NAME, NUMBER) OVERLAP_REDUCE(NAME, NUMBER) OVERLAP_REDUCE_PACKETS(NAME, NUMBER)
OVERLAP_NUMBER(f32, symrail_plain<float>)
OVERLAP_NUMBER(f16, symrail_f16)
OVERLAP_NUMBER(bf16, symrail_bf16)
