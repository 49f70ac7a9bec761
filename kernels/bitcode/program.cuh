/* Functions for languages in which a program is a whole block, as in Triton: all threads of the block call them with the
 * same arguments, they have the effect of one call, and all threads get its result. Addresses are integers, and every
 * function has a result, so that calls have the types of the definitions and are inlined. */
#ifndef SYMRAIL_PROGRAM_CUH
#define SYMRAIL_PROGRAM_CUH

#define SYMRAIL_PROGRAM extern "C" __device__

/* The first thread's value, for all threads, without shared memory: each barrier counts up to 31 votes of the first
 * warp, which are 5 bits. Not volatile: nothing is left of it where the result is not used. */
static __device__ __noinline__ symrail_u64 symrail_of_first(symrail_u64 value, symrail_u32 bits) {
    value = __shfl_sync(0xffffffffu, value, 0);
    if (symrail_block_scope::size() <= 32) return value;
    symrail_u32 rank = symrail_block_scope::rank();
    symrail_u64 all = 0;
    for (symrail_u32 at = 0; at < bits; at += 5) {
        symrail_u32 count, vote = rank < (value >> at & 31) ? 1 : 0;
        asm("{ .reg .pred p; setp.ne.u32 p, %1, 0; bar.red.popc.u32 %0, 0, p; }" : "=r"(count) : "r"(vote));
        all |= (symrail_u64)count << at;
    }
    return all;
}

/* One thread's call, between barriers of the block. */
template <class F>
static __device__ __forceinline__ int symrail_once(F call) {
    symrail_block_scope::sync();
    if (symrail_block_scope::rank() == 0) call();
    symrail_block_scope::sync();
    return 0;
}
template <class T, class F>
static __device__ __forceinline__ T symrail_result_of_one(F call) {
    T value = T();
    symrail_block_scope::sync();
    if (symrail_block_scope::rank() == 0) value = call();
    symrail_block_scope::sync();
    return symrail_of_bits<T>(symrail_of_first(symrail_to_bits(value), 8 * sizeof(T)));
}
/* The call of the threads that belong to a scope: the first thread, the first warp, or all. A call of all threads that
 * has barriers of its own, before its first access and after its last one, needs no others. */
template <class S>
struct symrail_call_of {
    template <class F>
    static __device__ __forceinline__ int make(bool, F call) {
        symrail_u32 size = S::one ? 1 : S::size();
        symrail_block_scope::sync();
        if (symrail_block_scope::rank() < size) call();
        symrail_block_scope::sync();
        return 0;
    }
};
template <>
struct symrail_call_of<symrail_block_scope> {
    template <class F>
    static __device__ __forceinline__ int make(bool has_barriers, F call) {
        if (!has_barriers) symrail_block_scope::sync();
        call();
        if (!has_barriers) symrail_block_scope::sync();
        return 0;
    }
};

SYMRAIL_PROGRAM int symrail_program_my_pe() { return symrail_my_pe(); }
SYMRAIL_PROGRAM int symrail_program_n_pes() { return symrail_n_pes(); }
/* The address of a PE's copy, or 0. */
SYMRAIL_PROGRAM symrail_u64 symrail_program_ptr(symrail_u64 at, int pe) {
    char* mapped;
    if (symrail_reach_value((const char*)at, pe, mapped)) return (symrail_u64)mapped;
    return (symrail_u64)symrail_ptr((const void*)at, pe);
}

#define SYMRAIL_PROGRAM_COPIES(AFTER, SCOPE)                                                                          \
    SYMRAIL_PROGRAM int symrail_program_put_##AFTER(symrail_u64 to, symrail_u64 from, symrail_u64 bytes, int pe, int wait) { \
        return symrail_call_of<SCOPE>::make(                                                                          \
            wait != 0, [=]() { symrail_put_bytes<SCOPE>((void*)to, (const void*)from, bytes, pe, wait != 0); });        \
    }                                                                                                                 \
    SYMRAIL_PROGRAM int symrail_program_get_##AFTER(symrail_u64 to, symrail_u64 from, symrail_u64 bytes, int pe, int wait) { \
        return symrail_call_of<SCOPE>::make(                                                                          \
            wait != 0, [=]() { symrail_get_bytes<SCOPE>((void*)to, (const void*)from, bytes, pe, wait != 0); });        \
    }                                                                                                                 \
    SYMRAIL_PROGRAM int symrail_program_put_signal_##AFTER(symrail_u64 to, symrail_u64 from, symrail_u64 bytes,        \
                                                           symrail_u64 signal, symrail_u64 value, int op, int pe,     \
                                                           int wait) {                                                \
        return symrail_call_of<SCOPE>::make(true, [=]() {                                                             \
            symrail_put_signal_bytes<SCOPE>((void*)to, (const void*)from, bytes, (symrail_u64*)signal, value, op, pe, \
                                            wait != 0);                                                               \
        });                                                                                                           \
    }
SYMRAIL_PROGRAM_COPIES(thread, symrail_thread_scope)
SYMRAIL_PROGRAM_COPIES(warp, symrail_warp_scope)
SYMRAIL_PROGRAM_COPIES(block, symrail_block_scope)

/* Single values, by their bits. */
#define SYMRAIL_PROGRAM_VALUE(N, T, BITS)                                                                             \
    SYMRAIL_PROGRAM int symrail_program_p_##N(symrail_u64 to, BITS value, int pe) {                                   \
        return symrail_once([=]() { symrail_put_value<T>((T*)to, (T)value, pe); });                                   \
    }                                                                                                                 \
    SYMRAIL_PROGRAM BITS symrail_program_g_##N(symrail_u64 from, int pe) {                                            \
        return symrail_result_of_one<T>([=]() { return symrail_get_value<T>((const T*)from, pe); });                  \
    }
SYMRAIL_PROGRAM_VALUE(8, unsigned char, symrail_u32)
SYMRAIL_PROGRAM_VALUE(16, unsigned short, symrail_u32)
SYMRAIL_PROGRAM_VALUE(32, symrail_u32, symrail_u32)
SYMRAIL_PROGRAM_VALUE(64, symrail_u64, symrail_u64)

/* Signals, and waits for words of this PE. */
SYMRAIL_PROGRAM int symrail_program_signal(symrail_u64 signal, symrail_u64 value, int op, int pe) {
    return symrail_once([=]() { symrail_signal((symrail_u64*)signal, value, op, pe); });
}
#define SYMRAIL_PROGRAM_WAIT(N, T)                                                                                    \
    SYMRAIL_PROGRAM T symrail_program_wait_##N(symrail_u64 word, int cmp, T value) {                                  \
        symrail_compare<T> holds = {cmp, value};                                                                      \
        return symrail_result_of_one<T>([=]() { return symrail_wait_for((T*)word, holds); });                         \
    }                                                                                                                 \
    SYMRAIL_PROGRAM int symrail_program_test_##N(symrail_u64 word, int cmp, T value) {                                \
        symrail_compare<T> holds = {cmp, value};                                                                      \
        return symrail_result_of_one<int>([=]() { return holds(symrail_ld_acquire((const T*)word)) ? 1 : 0; });       \
    }
SYMRAIL_PROGRAM_WAIT(i32, int)
SYMRAIL_PROGRAM_WAIT(u32, symrail_u32)
SYMRAIL_PROGRAM_WAIT(i64, long long)
SYMRAIL_PROGRAM_WAIT(u64, symrail_u64)

/* Atomics: without and with the former value. */
#define SYMRAIL_PROGRAM_AMO(NAME, OP, N, T)                                                                           \
    SYMRAIL_PROGRAM int symrail_program_atomic_##NAME##_##N(symrail_u64 at, T value, int pe) {                        \
        return symrail_once([=]() { symrail_amo<OP, T>((T*)at, value, T(), pe, false); });                            \
    }                                                                                                                 \
    SYMRAIL_PROGRAM T symrail_program_atomic_fetch_##NAME##_##N(symrail_u64 at, T value, int pe) {                    \
        return symrail_result_of_one<T>([=]() { return symrail_amo<OP, T>((T*)at, value, T(), pe, true); });          \
    }
#define SYMRAIL_PROGRAM_AMOS(N, T)                                                                                    \
    SYMRAIL_PROGRAM T symrail_program_atomic_fetch_##N(symrail_u64 at, int pe) {                                      \
        return symrail_result_of_one<T>([=]() { return symrail_amo<SYMRAIL_AMO_FETCH, T>((T*)at, T(), T(), pe, true); }); \
    }                                                                                                                 \
    SYMRAIL_PROGRAM_AMO(set, SYMRAIL_AMO_SET, N, T)                                                                   \
    SYMRAIL_PROGRAM_AMO(add, SYMRAIL_AMO_ADD, N, T)
#define SYMRAIL_PROGRAM_INTEGER_AMOS(N, T)                                                                            \
    SYMRAIL_PROGRAM_AMOS(N, T)                                                                                        \
    SYMRAIL_PROGRAM_AMO(and, SYMRAIL_AMO_AND, N, T)                                                                   \
    SYMRAIL_PROGRAM_AMO(or, SYMRAIL_AMO_OR, N, T)                                                                     \
    SYMRAIL_PROGRAM_AMO(xor, SYMRAIL_AMO_XOR, N, T)                                                                   \
    SYMRAIL_PROGRAM T symrail_program_atomic_compare_swap_##N(symrail_u64 at, T compare, T value, int pe) {           \
        return symrail_result_of_one<T>(                                                                              \
            [=]() { return symrail_amo<SYMRAIL_AMO_COMPARE_SWAP, T>((T*)at, value, compare, pe, true); });            \
    }
SYMRAIL_PROGRAM_INTEGER_AMOS(i32, symrail_u32)
SYMRAIL_PROGRAM_INTEGER_AMOS(i64, symrail_u64)
SYMRAIL_PROGRAM_AMOS(f32, float)
SYMRAIL_PROGRAM_AMOS(f64, double)

/* Order. A fence and a quiet cover what all threads of the block did before. */
SYMRAIL_PROGRAM int symrail_program_fence() { return symrail_once([]() { symrail_fence(); }); }
SYMRAIL_PROGRAM int symrail_program_quiet() { return symrail_once([]() { symrail_quiet(); }); }
SYMRAIL_PROGRAM int symrail_program_barrier(symrail_u64 team) {
    symrail_barrier_of<symrail_block_scope>((symrail_team_t)team, true);
    return 0;
}
SYMRAIL_PROGRAM int symrail_program_sync(symrail_u64 team) {
    symrail_barrier_of<symrail_block_scope>((symrail_team_t)team, false);
    return 0;
}

#define SYMRAIL_PROGRAM_COLLECTIVES(AFTER, SCOPE)                                                                    \
    SYMRAIL_PROGRAM int symrail_program_broadcast_##AFTER(symrail_u64 team, symrail_u64 to, symrail_u64 from,         \
                                                          symrail_u64 bytes, int root) {                             \
        return symrail_call_of<SCOPE>::make(true, [=]() {                                                            \
            symrail_broadcast_bytes<SCOPE>((symrail_team_t)team, (void*)to, (const void*)from, bytes, root);         \
        });                                                                                                          \
    }                                                                                                                \
    SYMRAIL_PROGRAM int symrail_program_fcollect_##AFTER(symrail_u64 team, symrail_u64 to, symrail_u64 from,         \
                                                         symrail_u64 bytes) {                                        \
        return symrail_call_of<SCOPE>::make(true, [=]() {                                                            \
            symrail_fcollect_bytes<SCOPE>((symrail_team_t)team, (void*)to, (const void*)from, bytes);                \
        });                                                                                                          \
    }                                                                                                                \
    SYMRAIL_PROGRAM int symrail_program_alltoall_##AFTER(symrail_u64 team, symrail_u64 to, symrail_u64 from,         \
                                                         symrail_u64 bytes) {                                        \
        return symrail_call_of<SCOPE>::make(true, [=]() {                                                            \
            symrail_alltoall_bytes<SCOPE>((symrail_team_t)team, (void*)to, (const void*)from, bytes);                \
        });                                                                                                          \
    }
SYMRAIL_PROGRAM_COLLECTIVES(thread, symrail_thread_scope)
SYMRAIL_PROGRAM_COLLECTIVES(warp, symrail_warp_scope)
SYMRAIL_PROGRAM_COLLECTIVES(block, symrail_block_scope)

/* Teams, by their addresses; 0 is the world. */
SYMRAIL_PROGRAM int symrail_program_team_my_pe(symrail_u64 team) { return symrail_team_my_pe((symrail_team_t)team); }
SYMRAIL_PROGRAM int symrail_program_team_n_pes(symrail_u64 team) { return symrail_team_n_pes((symrail_team_t)team); }
SYMRAIL_PROGRAM int symrail_program_team_translate_pe(symrail_u64 from, int pe, symrail_u64 to) {
    return symrail_team_translate_pe((symrail_team_t)from, pe, (symrail_team_t)to);
}

#endif
