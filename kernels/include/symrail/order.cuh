/* Fence, quiet, and the barriers of teams. */
#ifndef SYMRAIL_ORDER_CUH
#define SYMRAIL_ORDER_CUH

#include "amo.cuh"
#include "mail.cuh"

/* Orders the calling thread's earlier puts, AMOs and signals before its later ones, at each PE. */
SYMRAIL_DEVICE void symrail_fence() {
    symrail_fence_sys();
    if (symrail_state.n_channels == 0) return;
    const symrail_channel_view& c = symrail_my_channel();
    /* This is loaded first, since another thread's fence may come between a mixed request and its note. */
    symrail_u64 completed = symrail_ld_gpu(c.own + SYMRAIL_OWN_COMPLETED);
    if (symrail_ld_gpu(c.own + SYMRAIL_OWN_MIXED) > completed) {
        /* An AMO or a copy went through the proxy to memory that stores also reach directly: only delivery orders the
         * two. */
        symrail_drain(c);
        return;
    }
    symrail_u64 head = symrail_ld_gpu(c.own + SYMRAIL_OWN_HEAD);
    /* Nothing was pushed since the last fence, or all of it is known to be delivered. */
    if (head == symrail_ld_gpu(c.own + SYMRAIL_OWN_FENCED) || head <= completed) return;
    symrail_request r;
    r.mask = SYMRAIL_MASK_HEAD;
    r.w[0] = symrail_head(SYMRAIL_OP_FENCE, 0, 0, r.mask, 0);
    r.w[1] = 0;
    symrail_u64 position = symrail_push(c, r);
    symrail_max_gpu(c.own + SYMRAIL_OWN_FENCED, position + 1);
}

/* Waits until all operations of any thread of this device before the call are delivered. Returns `false` when time is
 * over. */
SYMRAIL_DEVICE bool symrail_all_delivered() {
    bool well = true;
    for (symrail_u32 i = 0; i < symrail_state.n_channels; i++) well &= symrail_drain(symrail_state.channels[i]);
    /* This orders stores to mapped peers. It is last, because an earlier fence would also wait for the stores of
     * requests. */
    symrail_fence_sys();
    return well;
}
SYMRAIL_DEVICE void symrail_quiet() { symrail_all_delivered(); }

/* Waits for one word of this PE where small deliveries arrive by the mailbox. The word and the mailbox are loaded at
 * the same time. */
template <class T, class F>
static __device__ __noinline__ T symrail_wait_with_mail(T* word, F holds) {
    symrail_waiter waiter;
    symrail_mail mail;
    symrail_mail_entries entries;
    T now;
    while (!holds(now = symrail_ld_acquire(word))) {
        if (mail.reading) {
            symrail_u64 bits = symrail_to_bits(now);
            mail.take(entries, (symrail_u64)word, bits);
            now = symrail_of_bits<T>(bits);
            if (holds(now)) break;
        } else {
            mail.come();
        }
        if (mail.reading) mail.look(entries);
        if (waiter.over()) {
            symrail_fail(SYMRAIL_ERROR_TIMEOUT, SYMRAIL_WHAT_WAIT, symrail_state.me, (symrail_u64)word);
            break;
        }
    }
    mail.leave();
    return now;
}

/* Waits for one word of this PE and returns it. Data that was delivered before the word changed is visible
 * afterwards. */
template <class T, class F>
SYMRAIL_DEVICE T symrail_wait_for(T* word, F holds) {
    if (symrail_state.mailbox != 0) return symrail_wait_with_mail(word, holds);
    symrail_waiter waiter;
    T now;
    while (!holds(now = symrail_ld_acquire(word))) {
        if (waiter.over()) {
            symrail_fail(SYMRAIL_ERROR_TIMEOUT, SYMRAIL_WHAT_WAIT, symrail_state.me, (symrail_u64)word);
            return now;
        }
    }
    return now;
}

/* Waits for any of n words and returns its index. Words whose status is not 0 are left out. Returns the largest number
 * if all are left out, or if time is over. */
template <class T, class F>
SYMRAIL_DEVICE size_t symrail_wait_for_any(T* words, size_t n, const int* status, F holds) {
    symrail_waiter waiter;
    symrail_mail mail;
    size_t found = (size_t)-1;
    for (bool some = true; some && found == (size_t)-1;) {
        some = false;
        for (size_t i = 0; i < n && found == (size_t)-1; i++) {
            if (status != nullptr && status[i] != 0) continue;
            some = true;
            if (holds(symrail_ld_acquire(words + i))) found = i;
        }
        if (symrail_state.mailbox != 0 && some && found == (size_t)-1) mail.once();
        if (found == (size_t)-1 && waiter.over()) {
            symrail_fail(SYMRAIL_ERROR_TIMEOUT, SYMRAIL_WHAT_WAIT, symrail_state.me, (symrail_u64)words);
            break;
        }
    }
    mail.leave();
    return found;
}

struct symrail_at_least {
    symrail_u64 value;
    __device__ bool operator()(symrail_u64 now) const { return now >= value; }
};

/* A team's PEs, numbered from 0; the world is all PEs. */
SYMRAIL_DEVICE symrail_device_team symrail_team_of(symrail_team_t team) {
    if (team != SYMRAIL_TEAM_WORLD) return *team;
    symrail_device_team world = {symrail_state.me, symrail_state.n_pes, 0, 1, symrail_state.barrier_words,
                                 symrail_state.barrier_plan};
    return world;
}
SYMRAIL_DEVICE int symrail_team_my_pe(symrail_team_t team) { return symrail_team_of(team).me; }
SYMRAIL_DEVICE int symrail_team_n_pes(symrail_team_t team) { return symrail_team_of(team).n_pes; }
/* The number in another team of a team's PE; -1 where it is not in that team. */
SYMRAIL_DEVICE int symrail_team_translate_pe(symrail_team_t from, int pe, symrail_team_t to) {
    symrail_device_team a = symrail_team_of(from), b = symrail_team_of(to);
    if (pe < 0 || pe >= a.n_pes) return -1;
    int apart = a.start + pe * a.stride - b.start, there = b.stride == 0 ? 0 : apart / b.stride;
    return there >= 0 && there < b.n_pes && there * b.stride == apart ? there : -1;
}

/* A barrier of the PEs of a team, each with one thread, by the steps of the host's plan
   (kernels/src/barrier_words.rs). A PE that does not come, whose data may be missing, signals nobody, and counts the
   barrier all the same: its next one is also that of the others. */
static __device__ __noinline__ void symrail_meet(symrail_team_t which, bool comes = true) {
    symrail_device_team team = symrail_team_of(which);
    if (team.plan == 0) return; /* a program without a state */
    const symrail_step* at = (const symrail_step*)(team.plan + SYMRAIL_PLAN_STEPS);
    /* The next step is loaded while this one is performed. */
    symrail_step step = *at;
    symrail_u64 number = symrail_add_gpu(team.plan, 1) + 1;
    if (!comes) return;
    symrail_u64* words = (symrail_u64*)team.words + number % 2 * SYMRAIL_PLAN_SET;
    while (step.flag >= 0) {
        symrail_step next = *++at;
        if (step.pe >= 0) {
            symrail_put_value(words + step.flag, number, step.pe);
        } else {
            symrail_at_least reached = {number};
            if (symrail_wait_for(words + step.flag, reached) < number) return;
        }
        step = next;
    }
}

template <class S>
SYMRAIL_DEVICE void symrail_barrier_of(symrail_team_t team, bool quiet) {
    S::sync();
    if (S::rank() == 0) {
        bool comes = !quiet || symrail_all_delivered();
        if (!quiet) symrail_fence_sys();
        symrail_meet(team, comes);
    }
    S::sync();
}

#endif
