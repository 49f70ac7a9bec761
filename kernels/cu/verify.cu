// Verifies the device API between all PEs: every PE launches `verify` with one block, at the same time.
// `area` is symmetric memory at the same offset everywhere, zeroed, of AREA_BYTES; `report` counts failures per check.
#include "symrail_device.cuh"

typedef unsigned char byte;

#define BIG (96 * 1024)
struct area {
    symrail_u64 words[64];
    symrail_u64 signals[16];
    symrail_u64 flags[16];
    int ints[256];
    float floats[16];
    byte small[256];
    byte big_from[BIG + 64];
    byte big_to[BIG + 64];
    byte big_back[BIG + 64];
    symrail_u64 ordered[1024];
    symrail_u64 stress[64 * 1024];
};

extern "C" __global__ void area_bytes(symrail_u64* out) { *out = sizeof(area); }

__device__ byte pattern(int pe, size_t i, int salt) { return (byte)(pe * 31 + i * 7 + (i >> 8) * 13 + salt * 101 + 1); }

#define CHECK(n, holds)                                             \
    do {                                                            \
        if (!(holds)) atomicAdd_system(&report[n], 1ull);           \
    } while (0)

__device__ void fill(byte* p, size_t n, int pe, int salt) {
    for (size_t i = threadIdx.x; i < n; i += blockDim.x) ((volatile byte*)p)[i] = pattern(pe, i, salt);
    __syncthreads();
}
__device__ void expect(byte* p, size_t n, int pe, int salt, symrail_u64* report, int check) {
    for (size_t i = threadIdx.x; i < n; i += blockDim.x) CHECK(check, ((volatile byte*)p)[i] == pattern(pe, i, salt));
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(128) verify(area* a, symrail_u64* report, symrail_u64 rounds) {
    int me = symrail_my_pe(), n = symrail_n_pes(), right = (me + 1) % n, left = (me + n - 1) % n;
    bool one = threadIdx.x == 0;

    // 0, 1: values.
    if (one) {
        symrail_uint64_p((unsigned long*)&a->words[0], 1000 + me, right);
        symrail_int_p(&a->ints[0], -5 - me, right);
        symrail_uchar_p(&a->small[3], (byte)(7 + me), right);
        symrail_float_p(&a->floats[0], 1.5f + me, right);
    }
    symrailx_barrier_all_block();
    if (one) {
        CHECK(0, *(volatile symrail_u64*)&a->words[0] == 1000ull + left);
        CHECK(0, *(volatile int*)&a->ints[0] == -5 - left);
        CHECK(0, *(volatile byte*)&a->small[3] == (byte)(7 + left));
        CHECK(0, *(volatile float*)&a->floats[0] == 1.5f + left);
        CHECK(1, symrail_uint64_g((unsigned long*)&a->words[0], right) == 1000ull + me);
        CHECK(1, symrail_int_g(&a->ints[0], right) == -5 - me);
        CHECK(1, symrail_float_g(&a->floats[0], right) == 1.5f + me);
        CHECK(1, symrail_uchar_g(&a->small[3], right) == (byte)(7 + me));
    }
    symrailx_barrier_all_block();

    // 2 puts of odd sizes by a thread, 3 by a block, 4 by a warp, 5 gets.
    fill(a->big_from, BIG + 64, me, 2);
    const size_t sizes[] = {1, 3, 8, 13, 64, 257, 4096, 20001};
    for (int k = 0; k < 8; k++) {
        size_t off = k % 5;
        if (one) {
            symrail_putmem(a->big_to + off, a->big_from, sizes[k], right);
            symrail_quiet();
        }
        symrailx_barrier_all_block();
        expect(a->big_to + off, sizes[k], left, 2, report, 2);
        symrailx_barrier_all_block();
    }
    // Four threads copy at a time, one of which has the block's shared memory for its copy.
    const size_t quarter = 20496;
    size_t part = threadIdx.x / 32 * quarter;
    fill(a->big_from, BIG, me, 5);
    if (threadIdx.x % 32 == 0) {
        symrail_putmem(a->big_to + part, a->big_from + part, quarter, right);
        symrail_quiet();
    }
    symrailx_barrier_all_block();
    expect(a->big_to, blockDim.x / 32 * quarter, left, 5, report, 2);
    if (threadIdx.x % 32 == 0) symrail_getmem(a->big_back + part, a->big_from + part, quarter, right);
    __syncthreads();
    expect(a->big_back, blockDim.x / 32 * quarter, right, 5, report, 5);
    symrailx_barrier_all_block();
    fill(a->big_from, BIG + 64, me, 3);
    symrailx_putmem_block(a->big_to + 5, a->big_from, BIG + 3, right);
    symrailx_barrier_all_block();
    expect(a->big_to + 5, BIG + 3, left, 3, report, 3);
    symrailx_barrier_all_block();
    fill(a->big_from, BIG + 64, me, 4);
    if (threadIdx.x < 32) symrailx_putmem_nbi_warp(a->big_to, a->big_from, BIG, right);
    symrailx_barrier_all_block();
    expect(a->big_to, BIG, left, 4, report, 4);
    symrailx_getmem_block(a->big_back, a->big_from, BIG, right);
    expect(a->big_back, BIG, right, 4, report, 5);
    fill(a->big_back, BIG, me, 99);
    if (one) {
        symrail_getmem_nbi(a->big_back + 1, a->big_from, 9999, right);
        symrail_quiet();
    }
    __syncthreads();
    expect(a->big_back + 1, 9999, right, 4, report, 5);
    symrailx_barrier_all_block();

    // 6: put with signal, set and add; the receiver waits.
    for (symrail_u64 r = 1; r <= rounds; r++) {
        fill(a->big_from, 1024, me, (int)(r & 7));
        symrailx_putmem_signal_block(a->big_to, a->big_from, 1024, &a->signals[0], r, SYMRAIL_SIGNAL_SET, right);
        if (one) {
            symrail_putmem_signal(a->small, a->big_from, 24, &a->signals[1], 2, SYMRAIL_SIGNAL_ADD, right);
            symrail_signal_wait_until(&a->signals[0], SYMRAIL_CMP_GE, r);
        }
        __syncthreads();
        expect(a->big_to, 1024, left, (int)(r & 7), report, 6);
        if (one) CHECK(6, symrail_signal_wait_until(&a->signals[1], SYMRAIL_CMP_EQ, 2 * r) == 2 * r);
        __syncthreads();
        expect(a->small, 24, left, (int)(r & 7), report, 6);
        if (one) {
            symrailx_signal_op(&a->signals[2], 1, SYMRAIL_SIGNAL_ADD, left);
            symrail_signal_wait_until(&a->signals[2], SYMRAIL_CMP_GE, r);
        }
        __syncthreads();
    }
    symrailx_barrier_all_block();

    // 7: atomics of all threads of all PEs on one PE's words.
    {
        symrail_u64 *count = &a->words[8], *sum = &a->words[9], *seen = &a->words[10];
        symrail_u64 total = (symrail_u64)n * blockDim.x;
        unsigned long old = symrail_uint64_atomic_fetch_add((unsigned long*)count, 1, 0);
        CHECK(7, old < total);
        symrail_uint64_atomic_add((unsigned long*)sum, old, 0);
        symrail_int_atomic_inc(&a->ints[8], 0);
        symrail_double_atomic_add((double*)&a->words[11], 0.5, 0);
        if (old < 64) symrail_uint64_atomic_xor((unsigned long*)seen, 1ull << old, 0);
        if (old == 3) symrail_uint64_atomic_or((unsigned long*)&a->words[12], 0xf0, 0);
        symrailx_barrier_all_block();
        if (me == 0 && one) {
            CHECK(8, *(volatile symrail_u64*)count == total);
            CHECK(8, *(volatile symrail_u64*)sum == total * (total - 1) / 2);
            CHECK(8, *(volatile symrail_u64*)seen == ~0ull);
            CHECK(8, *(volatile symrail_u64*)&a->words[12] == 0xf0);
            CHECK(8, *(volatile int*)&a->ints[8] == (int)total);
            CHECK(8, *(volatile double*)&a->words[11] == 0.5 * (double)total);
        }
        if (one) {
            unsigned long* mine = (unsigned long*)&a->words[16];
            CHECK(9, symrail_uint64_atomic_swap(mine, 77, right) == 0);
            CHECK(9, symrail_uint64_atomic_compare_swap(mine, 76, 1, right) == 77);
            CHECK(9, symrail_uint64_atomic_compare_swap(mine, 77, 0xff, right) == 77);
            CHECK(9, symrail_uint64_atomic_fetch_and(mine, 0x0f, right) == 0xff);
            CHECK(9, symrail_uint64_atomic_fetch(mine, right) == 0x0f);
            symrail_uint64_atomic_set(mine, 123, right);
            symrail_quiet();
            CHECK(9, symrail_uint64_atomic_fetch(mine, right) == 123);
        }
        symrailx_barrier_all_block();
    }

    // 10: a fence keeps data before a flag, without a quiet.
    if (one) {
        for (symrail_u64 r = 1; r <= rounds; r++) {
            for (int i = 0; i < 16; i++) {
                ((volatile symrail_u64*)a->ordered)[512 + i] = r * 100 + i;
            }
            symrail_putmem_nbi(a->ordered, a->ordered + 512, 128, right);
            symrail_fence();
            symrail_uint64_p((unsigned long*)&a->flags[0], r, right);
            symrail_uint64_wait_until((unsigned long*)&a->flags[0], SYMRAIL_CMP_GE, r);
            for (int i = 0; i < 16; i++) CHECK(10, ((volatile symrail_u64*)a->ordered)[i] == r * 100 + i);
            // A PE must not overwrite a word that its peer still reads.
            symrail_uint64_p((unsigned long*)&a->flags[1], r, left);
            symrail_uint64_wait_until((unsigned long*)&a->flags[1], SYMRAIL_CMP_GE, r);
            symrail_quiet();
        }
    }
    symrailx_barrier_all_block();
    // 11: addresses.
    if (one) {
        void* there = symrail_ptr(&a->words[0], me);
        CHECK(11, there == (void*)&a->words[0]);
    }
}

// 16: copies of all sizes, by either unit: put, get, put with signal, and a flag that a store sets behind a fence. A
// thread, a warp or the block copies in turn. `big` has room for three times BIGGEST.
#define BIGGEST (16ull << 20)
SYMRAIL_DEVICE bool asks(int scope) { return scope == 0 ? threadIdx.x == 0 : scope == 1 ? threadIdx.x < 32 : true; }
SYMRAIL_DEVICE void put_nbi_by(int scope, void* to, const void* from, size_t n, int pe) {
    if (scope == 0) return symrail_putmem_nbi(to, from, n, pe);
    if (scope == 1) return symrailx_putmem_nbi_warp(to, from, n, pe);
    symrailx_putmem_nbi_block(to, from, n, pe);
}
SYMRAIL_DEVICE void get_by(int scope, void* to, const void* from, size_t n, int pe) {
    if (scope == 0) return symrail_getmem(to, from, n, pe);
    if (scope == 1) return symrailx_getmem_warp(to, from, n, pe);
    symrailx_getmem_block(to, from, n, pe);
}
SYMRAIL_DEVICE void put_signal_by(int scope, void* to, const void* from, size_t n, symrail_u64* signal, symrail_u64 value,
                                  int op, int pe) {
    if (scope == 0) return symrail_putmem_signal(to, from, n, signal, value, op, pe);
    if (scope == 1) return symrailx_putmem_signal_warp(to, from, n, signal, value, op, pe);
    symrailx_putmem_signal_block(to, from, n, signal, value, op, pe);
}
// It has 512 threads.
extern "C" __global__ void __launch_bounds__(512) copies(area* a, byte* big, symrail_u64* report, symrail_u64 sizes) {
    int me = symrail_my_pe(), n = symrail_n_pes(), right = (me + 1) % n, left = (me + n - 1) % n;
    bool one = threadIdx.x == 0;
    byte *from = big, *to = big + BIGGEST, *back = big + 2 * BIGGEST;
    symrail_u64 *set = &a->signals[8], *sum = &a->signals[9], *flag = &a->flags[8];
    const size_t bytes[] = {1, 8, 4096, 70001, 1 << 20, (1 << 20) + 13, 9 << 20};
    for (symrail_u64 k = 1; k <= sizes; k++) {
        int scope = (int)(k + 1) % 3, salt = (int)k * 3;
        // A single thread would need seconds where the ends have different alignments.
        size_t size = bytes[k - 1], off = scope == 0 ? 0 : k % 3;
        fill(from, size, me, salt);
        if (asks(scope)) put_nbi_by(scope, to + off, from, size, right);
        symrailx_barrier_all_block();
        expect(to + off, size, left, salt, report, 16);
        if (asks(scope)) get_by(scope, back + off, from, size, right);
        __syncthreads();
        expect(back + off, size, right, salt, report, 16);
        symrailx_barrier_all_block();

        fill(from, size, me, salt + 1);
        if (asks(scope)) put_signal_by(scope, to, from, size, set, k, SYMRAIL_SIGNAL_SET, right);
        if (one) symrail_signal_wait_until(set, SYMRAIL_CMP_GE, k);
        __syncthreads();
        expect(to, size, left, salt + 1, report, 16);
        symrailx_barrier_all_block();
        fill(from, size, me, salt + 2);
        if (asks(scope)) put_signal_by(scope, to + off, from, size, sum, 3, SYMRAIL_SIGNAL_ADD, right);
        if (one) CHECK(16, symrail_signal_wait_until(sum, SYMRAIL_CMP_GE, 3 * k) == 3 * k);
        __syncthreads();
        expect(to + off, size, left, salt + 2, report, 16);
        symrailx_barrier_all_block();

        fill(from, size, me, salt + 4);
        if (asks(scope)) put_nbi_by(scope, to, from, size, right);
        symrail_fence();
        __syncthreads();
        if (one) {
            symrail_uint64_p((unsigned long*)flag, k, right);
            symrail_uint64_wait_until((unsigned long*)flag, SYMRAIL_CMP_GE, k);
        }
        __syncthreads();
        expect(to, size, left, salt + 4, report, 16);
        symrailx_barrier_all_block();
    }
}
// Occupies multiprocessors until `stop` is set, or for so long. One thread of a block reads the clock at intervals,
// because more reads would keep PCIe busy.
extern "C" __global__ void spin(const symrail_u64* stop, symrail_u64 nanoseconds) {
    symrail_u64 begun = symrail_now(), looked = begun;
    for (bool over = false; !__syncthreads_or(over);) {
        symrail_u64 now = symrail_now();
        if (threadIdx.x != 0 || now - looked < 20000) continue;
        looked = now;
        over = symrail_ld_acquire(stop) != 0 || now - begun >= nanoseconds;
    }
}

// 15: teams: each round's values are there after the team's barrier, and kernels number PEs as the host does.
extern "C" __global__ void teams(area* a, symrail_u64* report, symrail_team_t team, symrail_u64 first, symrail_u64 rounds) {
    int me = symrail_team_my_pe(team), n = symrail_team_n_pes(team), world = symrail_my_pe();
    CHECK(15, symrail_team_translate_pe(team, me, SYMRAIL_TEAM_WORLD) == world);
    CHECK(15, symrail_team_translate_pe(SYMRAIL_TEAM_WORLD, world, team) == me);
    CHECK(15, symrail_team_translate_pe(team, n, SYMRAIL_TEAM_WORLD) == -1);
    int right = symrail_team_translate_pe(team, (me + 1) % n, SYMRAIL_TEAM_WORLD), left = (me + n - 1) % n;
    for (symrail_u64 r = first; r < first + rounds; r++) {
        if (threadIdx.x == 0) symrail_uint64_p((unsigned long*)&a->words[20], r * 100 + me, right);
        symrailx_barrier_block(team);
        if (threadIdx.x == 0) CHECK(15, *(volatile symrail_u64*)&a->words[20] == r * 100 + left);
        symrailx_team_sync_block(team);
    }
}

// Many blocks push values, so that the rings wrap many times.
extern "C" __global__ void stress(area* a, symrail_u64 laps) {
    int right = (symrail_my_pe() + 1) % symrail_n_pes();
    symrail_u64 thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
    for (symrail_u64 lap = 0; lap < laps; lap++)
        for (symrail_u64 i = thread; i < 64 * 1024; i += threads)
            symrail_uint64_p((unsigned long*)&a->stress[i], lap * 65536 + i + symrail_my_pe(), right);
    symrail_quiet();
}
extern "C" __global__ void stress_check(area* a, symrail_u64* report, symrail_u64 laps) {
    int left = (symrail_my_pe() + symrail_n_pes() - 1) % symrail_n_pes();
    symrail_u64 thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
    for (symrail_u64 i = thread; i < 64 * 1024; i += threads)
        CHECK(12, ((volatile symrail_u64*)a->stress)[i] == (laps - 1) * 65536 + i + left);
}
// 13: an address outside of the heaps and a PE that does not exist are reported, and no memory is accessed.
extern "C" __global__ void wrong_address(symrail_u64* outside) { symrail_uint64_p((unsigned long*)outside, 1, 0); }
extern "C" __global__ void wrong_pe(area* a) { symrail_int_p(&a->ints[0], 1, symrail_n_pes()); }
// 14: a wait ends in time.
extern "C" __global__ void wait_for_ever(area* a) { symrail_signal_wait_until(&a->signals[15], SYMRAIL_CMP_EQ, 12345); }
