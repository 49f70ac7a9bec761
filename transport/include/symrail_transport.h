/* Symrail's transport by itself, for runtimes that have a symmetric heap of their own.
 *
 * A runtime starts its PEs and lets them exchange a few bytes; the transport moves data between their registered memory
 * over any number of NICs ("rails"), by libfabric or ibverbs. The order of things, on every PE:
 *
 *     symrail_transport_open       opens the rails that the SYMRAIL_ variables allow
 *     symrail_transport_card       what all PEs have to be told (exchanged by the runtime)
 *     symrail_transport_connect    with the cards of all PEs
 *     symrail_transport_register   memory; its handle goes to the peers that shall use it (by the runtime)
 *     symrail_transport_put, …     operations, all of which return at once
 *     symrail_transport_quiet      waits until they are complete
 *     symrail_transport_close      after everybody's last quiet, and a barrier by the runtime
 *
 * Complete means visible: a put in its target's memory, a get or an old value in this PE's. Operations are counted by
 * contexts, which are numbers of the caller's choice from 0 to 4095; a quiet waits for those of its context. Fences order the
 * operations of all contexts.
 *
 * AMOs, signals and small puts are applied by the target's CPU unless SYMRAIL_AMO_PATH or SYMRAIL_IB_MODE say otherwise. So a PE
 * has to make progress for others: by SYMRAIL_TRANSPORT_THREAD, by calling symrail_transport_progress again and
 * again, or by waiting in a quiet.
 *
 * Any thread may call at any time, but for open and close. Every function returns 0 or one of the negative codes; none of
 * them ends the process, and none waits for longer than about twice SYMRAIL_TIMEOUT_S.
 *
 * License: MIT or Apache-2.0, at your choice.
 */
#ifndef SYMRAIL_TRANSPORT_H
#define SYMRAIL_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What this header describes. A library accepts the versions that it knows, and refuses others. */
#define SYMRAIL_TRANSPORT_ABI 1

/* Results. symrail_transport_error() has the sentence. */
enum {
    SYMRAIL_TRANSPORT_OK = 0,
    SYMRAIL_TRANSPORT_EINVAL = -1,   /* an argument: null, outside of memory, an unknown PE, a value that is not accepted */
    SYMRAIL_TRANSPORT_EFABRIC = -2,  /* no library, no rail, or what the fabric says */
    SYMRAIL_TRANSPORT_EPEER = -3,    /* PEs that do not agree, or a card or handle that cannot be read */
    SYMRAIL_TRANSPORT_EFAILED = -4,  /* an operation failed on its way or at its target */
    SYMRAIL_TRANSPORT_ETIMEDOUT = -5,/* nothing came back in time */
    SYMRAIL_TRANSPORT_EINTERNAL = -6 /* a defect of the library; please report it */
};

enum {
    SYMRAIL_TRANSPORT_THREAD = 1     /* the transport drives itself by a thread of its own */
};

typedef struct symrail_transport symrail_transport; /* one PE's transport */

typedef struct {
    size_t size;        /* sizeof(symrail_transport_options) */
    uint32_t pe, n_pes; /* this PE, and how many there are */
    uint32_t local_pe, local_pes; /* the same among the PEs of this host, over which NICs are spread; 0, 0 if not known.
                                     If all are here (local_pes == n_pes), in one network namespace, they use its
                                     loopback interface alone, unless SYMRAIL_NIC_LIST names NICs */
    uint32_t flags;     /* SYMRAIL_TRANSPORT_THREAD, or 0 */
} symrail_transport_options;

/* The handle of registered memory: plain bytes, good on every PE of the job. */
typedef struct {
    unsigned char bytes[512];
} symrail_transport_memory;

/* What an AMO does, and on what type. CAS and the bitwise ones are for integers only. */
enum {
    SYMRAIL_TRANSPORT_FETCH = 0,
    SYMRAIL_TRANSPORT_SET = 1, /* a swap, where the old value is wanted */
    SYMRAIL_TRANSPORT_ADD = 2,
    SYMRAIL_TRANSPORT_AND = 3,
    SYMRAIL_TRANSPORT_OR = 4,
    SYMRAIL_TRANSPORT_XOR = 5,
    SYMRAIL_TRANSPORT_CAS = 6
};
enum {
    SYMRAIL_TRANSPORT_I32 = 0,
    SYMRAIL_TRANSPORT_U32 = 1,
    SYMRAIL_TRANSPORT_I64 = 2,
    SYMRAIL_TRANSPORT_U64 = 3,
    SYMRAIL_TRANSPORT_F32 = 4,
    SYMRAIL_TRANSPORT_F64 = 5
};

/* The newest version that the library knows. */
uint32_t symrail_transport_abi(void);

/* The last failure in the calling thread: a sentence that names PE, rail, sizes and what to do; valid until the next
 * call. */
const char *symrail_transport_error(void);

/* Opens the rails of a PE. abi is SYMRAIL_TRANSPORT_ABI. */
int symrail_transport_open(uint32_t abi, const symrail_transport_options *options, symrail_transport **out);

/* Ends it: frees everything, deregisters all memory. A null pointer is ignored. */
int symrail_transport_close(symrail_transport *t);

/* Writes what all PEs have to be told, some hundred bytes, if capacity suffices; *size is set to what it takes. */
int symrail_transport_card(symrail_transport *t, void *card, size_t capacity, size_t *size);

/* Connects to all PEs: cards[pe], of stride bytes each, this PE's own included. What follows a card is ignored. */
int symrail_transport_connect(symrail_transport *t, const void *cards, size_t stride);

/* Registers memory for operations of all PEs, and as a buffer of this one's. It stays mapped until deregistered. */
int symrail_transport_register(symrail_transport *t, void *base, size_t len, symrail_transport_memory *out);

/* Undoes that; given a peer's handle, forgets it. No operation on it may be under way. */
int symrail_transport_deregister(symrail_transport *t, const symrail_transport_memory *memory);

/* Registers a buffer of this PE's own, which saves copies on fabrics that need registration; and undoes it. */
int symrail_transport_register_local(symrail_transport *t, void *base, size_t len);
int symrail_transport_deregister_local(symrail_transport *t, void *base);

/* Writes len bytes to byte at of memory. source stays as it is until a quiet. */
int symrail_transport_put(symrail_transport *t, uint16_t context, const symrail_transport_memory *memory, uint64_t at,
                          const void *source, size_t len);

/* The same, but source may change as soon as the call returns. At most symrail_transport_copy_limit bytes. */
int symrail_transport_put_copied(symrail_transport *t, uint16_t context, const symrail_transport_memory *memory,
                                 uint64_t at, const void *source, size_t len);
size_t symrail_transport_copy_limit(const symrail_transport *t);

/* Reads len bytes from byte at of memory. */
int symrail_transport_get(symrail_transport *t, uint16_t context, const symrail_transport_memory *memory, uint64_t at,
                          void *dest, size_t len);

/* Changes an aligned word of memory. If old is not null, the old value is stored there, complete after a quiet.
 * operand and compare hold the value's bits in their low bytes. */
int symrail_transport_amo(symrail_transport *t, uint16_t context, const symrail_transport_memory *memory, uint64_t at,
                          int op, int type, uint64_t operand, uint64_t compare, void *old);

/* Writes, then sets (or adds to) a 64-bit word of the same PE: whoever sees the signal sees the data.
 * op is SYMRAIL_TRANSPORT_SET or _ADD. source stays as it is until a quiet. */
int symrail_transport_put_signal(symrail_transport *t, uint16_t context, const symrail_transport_memory *memory,
                                 uint64_t at, const void *source, size_t len, const symrail_transport_memory *signal,
                                 uint64_t signal_at, int op, uint64_t value);

/* Orders later operations behind earlier ones, to each PE; returns at once. Gets are not ordered. */
int symrail_transport_fence(symrail_transport *t);

/* Waits until everything started in the context is complete; or until something of it fails, which is reported: what
 * fails later is the next one's to report. */
int symrail_transport_quiet(symrail_transport *t, uint16_t context);

/* Takes in what has arrived and sends what waits. Does not block. */
int symrail_transport_progress(symrail_transport *t);

#ifdef __cplusplus
}
#endif
#endif
