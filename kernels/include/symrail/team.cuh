/* Collectives of a team in kernels: each PE of the team calls them with one thread, warp or block at a time. Destinations
 * are symmetric, and ready on all PEs before one calls. When a call returns, this PE's destination holds its data, and
 * the source may be changed. */
#ifndef SYMRAIL_TEAM_CUH
#define SYMRAIL_TEAM_CUH

#include "amo.cuh"
#include "order.cuh"

/* Copies to the team's PEs, from the next one on, and meets them. `bytes` at `source + i * step` go to PE i. */
template <class S>
SYMRAIL_DEVICE void symrail_copy_to_team(symrail_team_t team, void* dest, const void* source, size_t step, size_t bytes) {
    int n = symrail_team_n_pes(team), me = symrail_team_my_pe(team);
    for (int i = 1; i <= n; i++) {
        int to = (me + i) % n;
        symrail_put_bytes<S>(dest, (const char*)source + to * step, bytes,
                             symrail_team_translate_pe(team, to, SYMRAIL_TEAM_WORLD), false);
    }
}

/* The root's bytes, on all PEs of the team, also on the root. Returns 0; 1 and an error of the device for a root that is
 * not in the team. */
template <class S>
SYMRAIL_DEVICE int symrail_broadcast_bytes(symrail_team_t team, void* dest, const void* source, size_t bytes, int root) {
    if (root < 0 || root >= symrail_team_n_pes(team)) {
        if (S::rank() == 0) symrail_fail(SYMRAIL_ERROR_NO_SUCH_PE, SYMRAIL_WHAT_RMA, root, (symrail_u64)dest);
        return 1;
    }
    S::sync();
    if (symrail_team_my_pe(team) == root) symrail_copy_to_team<S>(team, dest, source, 0, bytes);
    symrail_barrier_of<S>(team, true);
    return 0;
}

/* The bytes of all PEs of the team in their order, on each of them. */
template <class S>
SYMRAIL_DEVICE int symrail_fcollect_bytes(symrail_team_t team, void* dest, const void* source, size_t bytes) {
    S::sync();
    symrail_copy_to_team<S>(team, (char*)dest + symrail_team_my_pe(team) * bytes, source, 0, bytes);
    symrail_barrier_of<S>(team, true);
    return 0;
}

/* Block i of each PE's source goes to PE i of the team, which has the PEs' blocks in their order. */
template <class S>
SYMRAIL_DEVICE int symrail_alltoall_bytes(symrail_team_t team, void* dest, const void* source, size_t bytes) {
    S::sync();
    symrail_copy_to_team<S>(team, (char*)dest + symrail_team_my_pe(team) * bytes, source, bytes, bytes);
    symrail_barrier_of<S>(team, true);
    return 0;
}

#endif
