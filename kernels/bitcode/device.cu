/* The device API as functions that other compilers link: scripts/bitcode.sh compiles this file to LLVM bitcode for
 * Triton and others. It has Symrail's and NVSHMEM's functions under their names in C, and the constant `symrail_state`,
 * which the host fills in once the program is loaded. With SYMRAIL_PROGRAM_ONLY it has only the functions of program.cuh,
 * so that compilers that parse the whole file for each kernel are done sooner. */
#include "clang.cuh"

/* No static shared memory: it would shift the dynamic one, whose alignment Triton's kernels rely on. */
#define SYMRAIL_BULK_BYTES 0
/* One translation unit, whose state the host finds by its name. */
#define SYMRAIL_NAMED_STATE
#include "../include/symrail/batch.cuh"
/* The functions of all types share one copy of the code for each scope. */
#define SYMRAIL_SHARED(RESULT, NAME, TYPES, ARGS)                                \
    template <class S>                                                           \
    static __device__ RESULT NAME##_shared TYPES {                               \
        return NAME<S> ARGS;                                                     \
    }
SYMRAIL_SHARED(void, symrail_put_bytes, (void* to, const void* from, size_t bytes, int pe, bool wait), (to, from, bytes, pe, wait))
SYMRAIL_SHARED(void, symrail_get_bytes, (void* to, const void* from, size_t bytes, int pe, bool wait), (to, from, bytes, pe, wait))
SYMRAIL_SHARED(void, symrail_put_signal_bytes,
               (void* to, const void* from, size_t bytes, symrail_u64* signal, symrail_u64 value, int op, int pe, bool wait),
               (to, from, bytes, signal, value, op, pe, wait))
#define symrail_put_bytes symrail_put_bytes_shared
#define symrail_get_bytes symrail_get_bytes_shared
#define symrail_put_signal_bytes symrail_put_signal_bytes_shared
#include "../include/symrail/team.cuh"
SYMRAIL_SHARED(__noinline__ int, symrail_broadcast_bytes, (symrail_team_t team, void* to, const void* from, size_t bytes, int root), (team, to, from, bytes, root))
SYMRAIL_SHARED(__noinline__ int, symrail_fcollect_bytes, (symrail_team_t team, void* to, const void* from, size_t bytes), (team, to, from, bytes))
SYMRAIL_SHARED(__noinline__ int, symrail_alltoall_bytes, (symrail_team_t team, void* to, const void* from, size_t bytes), (team, to, from, bytes))
#define symrail_broadcast_bytes symrail_broadcast_bytes_shared
#define symrail_fcollect_bytes symrail_fcollect_bytes_shared
#define symrail_alltoall_bytes symrail_alltoall_bytes_shared

#ifdef SYMRAIL_PROGRAM_ONLY
#include "../include/symrail/api.cuh"
#else
/* From here on the headers define the functions to call. */
#undef SYMRAIL_DEVICE
#define SYMRAIL_DEVICE extern "C" __device__
#include "../include/symrail_nvshmem.cuh"

/* Functions that the headers also use themselves. */
#define SYMRAIL_ALSO(RESULT, NAME, TYPES, ARGS)                                      \
    extern "C" __device__ RESULT symrail_exported_##NAME TYPES __asm__("symrail_" #NAME); \
    extern "C" __device__ RESULT symrail_exported_##NAME TYPES { return symrail_##NAME ARGS; }
SYMRAIL_ALSO(int, my_pe, (), ())
SYMRAIL_ALSO(int, n_pes, (), ())
SYMRAIL_ALSO(void*, ptr, (const void* ptr, int pe), (ptr, pe))
SYMRAIL_ALSO(void, fence, (), ())
SYMRAIL_ALSO(void, quiet, (), ())
SYMRAIL_ALSO(int, team_my_pe, (symrail_team_t team), (team))
SYMRAIL_ALSO(int, team_n_pes, (symrail_team_t team), (team))
SYMRAIL_ALSO(int, team_translate_pe, (symrail_team_t from, int pe, symrail_team_t to), (from, pe, to))
#endif

#undef symrail_put_bytes
#undef symrail_get_bytes
#undef symrail_put_signal_bytes
#undef symrail_broadcast_bytes
#undef symrail_fcollect_bytes
#undef symrail_alltoall_bytes
#include "program.cuh"
