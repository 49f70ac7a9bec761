/* The device API under NVSHMEM's names. A device program that includes this in place of <nvshmem.h> and <nvshmemx.h>
 * compiles unchanged, as far as it uses only functions of api.cuh. */
#ifndef SYMRAIL_NVSHMEM_CUH
#define SYMRAIL_NVSHMEM_CUH

#include "symrail_device.cuh"

SYMRAIL_DEFINE_API(nvshmem)

SYMRAIL_DEVICE int nvshmem_my_pe() { return symrail_my_pe(); }
SYMRAIL_DEVICE int nvshmem_n_pes() { return symrail_n_pes(); }
SYMRAIL_DEVICE void* nvshmem_ptr(const void* ptr, int pe) { return symrail_ptr(ptr, pe); }
typedef symrail_team_t nvshmem_team_t;
#define NVSHMEM_TEAM_WORLD SYMRAIL_TEAM_WORLD
SYMRAIL_DEVICE int nvshmem_team_my_pe(nvshmem_team_t team) { return symrail_team_my_pe(team); }
SYMRAIL_DEVICE int nvshmem_team_n_pes(nvshmem_team_t team) { return symrail_team_n_pes(team); }
SYMRAIL_DEVICE int nvshmem_team_translate_pe(nvshmem_team_t from, int pe, nvshmem_team_t to) {
    return symrail_team_translate_pe(from, pe, to);
}
SYMRAIL_DEVICE void nvshmem_fence() { symrail_fence(); }
SYMRAIL_DEVICE void nvshmem_quiet() { symrail_quiet(); }

#define NVSHMEM_SIGNAL_SET SYMRAIL_SIGNAL_SET
#define NVSHMEM_SIGNAL_ADD SYMRAIL_SIGNAL_ADD
#define NVSHMEM_CMP_EQ SYMRAIL_CMP_EQ
#define NVSHMEM_CMP_NE SYMRAIL_CMP_NE
#define NVSHMEM_CMP_GT SYMRAIL_CMP_GT
#define NVSHMEM_CMP_LE SYMRAIL_CMP_LE
#define NVSHMEM_CMP_LT SYMRAIL_CMP_LT
#define NVSHMEM_CMP_GE SYMRAIL_CMP_GE

#endif
