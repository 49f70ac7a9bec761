/* Memory channels: a buffer of a peer that is accessible by loads and stores, and a semaphore with that peer. The host
 * creates them (MemoryChannels::channel) and passes their addresses to kernels. Any length and any alignment is
 * allowed. */
#ifndef SYMRAIL_MEMORY_CHANNEL_CUH
#define SYMRAIL_MEMORY_CHANNEL_CUH

#include "packet.cuh"
#include "semaphore.cuh"
#include "memory_channel_layout.cuh"

struct symrail_memory_channel : symrail_memory_channel_fields {
    /* Copies from this PE's memory to the peer's buffer, by all threads of the group. */
    template <class S>
    SYMRAIL_WAITER_FN void put(symrail_u64 to, const void* from, symrail_u64 bytes) const {
        symrail_copy<S>((void*)(remote + to), from, bytes);
    }
    /* Copies from the peer's buffer to this PE's memory. */
    template <class S>
    SYMRAIL_WAITER_FN void get(void* to, symrail_u64 from, symrail_u64 bytes) const {
        symrail_copy<S, symrail_peer_source>(to, (const void*)(remote + from), bytes);
    }
    template <class T>
    SYMRAIL_WAITER_FN T read(symrail_u64 index) const {
        return symrail_peer_source::value((const T*)remote + index);
    }
    template <class T>
    SYMRAIL_WAITER_FN void write(symrail_u64 index, T value) const {
        symrail_store_value((T*)remote + index, value);
    }

    /* Signals the peer, behind all puts of the group. */
    template <class S>
    SYMRAIL_WAITER_FN void signal() const {
        S::sync();
        if (S::rank() == 0) semaphore.signal();
    }
    /* Signals the peer, in no order with puts. */
    SYMRAIL_WAITER_FN void relaxed_signal() const { semaphore.relaxed_signal(); }
    /* Makes the calling thread wait for the peer's next signal. `false`: it did not arrive, and the host gets a
     * report. */
    SYMRAIL_WAITER_FN bool wait() const { return semaphore.wait(alarm, 0); }
    /* Whether the peer's next signal has arrived. If so, it is consumed. */
    SYMRAIL_WAITER_FN bool poll() const { return semaphore.poll(); }

    /* Sends bytes as packets of 16 bytes to byte `to` of the peer's buffer, a multiple of 16. They need twice as many
     * bytes. */
    template <class S>
    SYMRAIL_WAITER_FN void put_packets(symrail_u64 to, const void* from, symrail_u64 bytes, symrail_u32 flag) const {
        const char* source = (const char*)from;
        for (symrail_u64 i = S::rank(); 8 * i < bytes; i += S::size())
            symrail_packet16_write(remote + to + 16 * i, symrail_load_some(source + 8 * i, bytes - 8 * i), flag);
    }
    /* Waits for packets of 16 bytes at byte `from` of this PE's buffer, and stores their data. */
    template <class S>
    SYMRAIL_WAITER_FN bool unpack_packets(void* to, symrail_u64 from, symrail_u64 bytes, symrail_u32 flag) const {
        bool all = true;
        for (symrail_u64 i = S::rank(); all && 8 * i < bytes; i += S::size()) {
            symrail_u64 data = 0, at = local + from + 16 * i;
            auto came = [at, flag, &data]() { return symrail_packet16_read(at, flag, data); };
            all = symrail_await(alarm, came, semaphore.pe, 0);
            if (all) symrail_store_some((char*)to + 8 * i, data, bytes - 8 * i);
        }
        return all;
    }
    /* Sends one packet of 8 bytes, with four bytes of data, to the peer's buffer; and waits for one in this PE's. */
    SYMRAIL_WAITER_FN void put_packet8(symrail_u64 to, symrail_u32 data, symrail_u32 flag) const {
        symrail_packet8_write(remote + to, data, flag);
    }
    SYMRAIL_WAITER_FN bool unpack_packet8(symrail_u64 from, symrail_u32& data, symrail_u32 flag) const {
        symrail_u64 at = local + from;
        auto came = [at, flag, &data]() { return symrail_packet8_read(at, flag, data); };
        return symrail_await(alarm, came, semaphore.pe, 0);
    }
};

#endif
