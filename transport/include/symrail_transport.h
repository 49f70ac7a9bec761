/* Symrail's transport by itself, for runtimes that have a symmetric heap of their own.
 *
 * A runtime starts its PEs and lets them exchange a few bytes. The transport moves data between their registered memory
 * over any number of NICs ("rails"), by libfabric or ibverbs. Every PE calls, in this order:
 *
 *     symrail_transport_open       opens the rails that the SYMRAIL_ variables allow
 *     symrail_transport_card       returns the connection info for all PEs (the runtime exchanges it)
 *     symrail_transport_connect    connects to all PEs by their cards
 *     symrail_transport_register   registers memory; the runtime sends its handle to the peers that use it
 *     symrail_transport_put, …     start operations, and return at once
 *     symrail_transport_quiet      waits until the operations are complete
 *     symrail_transport_close      ends it, after all PEs' last quiet and a barrier by the runtime
 *
 * A complete operation is visible: a put in its target's memory, a get or an old value in this PE's. Each operation
 * belongs to a context, a number from 0 to 4095 that the caller chooses. A quiet waits for the operations of its
 * context. Fences order the operations of all contexts.
 *
 * The target's CPU applies AMOs, signals and small puts, unless SYMRAIL_AMO_PATH or SYMRAIL_IB_MODE choose otherwise.
 * So a PE has to make progress for its peers: by SYMRAIL_TRANSPORT_THREAD, by repeated calls of
 * symrail_transport_progress, or by waiting in a quiet.
 *
 * Any thread may call any function but open and close at any time. Every function returns 0 or one of the negative
 * codes. No function ends the process, and none waits for longer than about twice SYMRAIL_TIMEOUT_S.
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

/* The version of this header. A library accepts the versions that it knows, and refuses others. */
#define SYMRAIL_TRANSPORT_ABI 1

/* Results. symrail_transport_error() returns the sentence for the last one. */
enum {
    SYMRAIL_TRANSPORT_OK = 0,
    SYMRAIL_TRANSPORT_EINVAL = -1,   /* an argument: null, outside of memory, an unknown PE, a value that is not accepted */
    SYMRAIL_TRANSPORT_EFABRIC = -2,  /* no library, no rail, or an error of the fabric */
    SYMRAIL_TRANSPORT_EPEER = -3,    /* PEs that do not agree, or a malformed card or handle */
    SYMRAIL_TRANSPORT_EFAILED = -4,  /* an operation failed in the fabric or at its target */
    SYMRAIL_TRANSPORT_ETIMEDOUT = -5,/* an operation did not complete in time */
    SYMRAIL_TRANSPORT_EINTERNAL = -6 /* a defect of the library; please report it */
};

enum {
    SYMRAIL_TRANSPORT_THREAD = 1     /* the transport makes progress by a thread of its own */
};

typedef struct symrail_transport symrail_transport; /* one PE's transport */

typedef struct {
    size_t size;        /* sizeof(symrail_transport_options) */
    uint32_t pe, n_pes; /* this PE, and the number of PEs */
    uint32_t local_pe, local_pes; /* the same among the PEs of this host, which share its NICs; 0, 0 if not known.
                                     If all PEs are on this host (local_pes == n_pes), in one network namespace, they
                                     use only its loopback interface, unless SYMRAIL_NIC_LIST names NICs */
    uint32_t flags;     /* SYMRAIL_TRANSPORT_THREAD, or 0 */
} symrail_transport_options;

/* The handle of registered memory: plain bytes, valid on every PE of the job. */
typedef struct {
    unsigned char bytes[512];
} symrail_transport_memory;

/* Operations and types of AMOs. CAS and the bitwise operations are for integers only. */
enum {
    SYMRAIL_TRANSPORT_FETCH = 0,
    SYMRAIL_TRANSPORT_SET = 1, /* a swap, if old is not null */
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

/* The last failure in the calling thread: a sentence that names PE, rail, sizes and the remedy. It is valid until the
 * next call. */
const char *symrail_transport_error(void);

/* Opens the rails of a PE. abi is SYMRAIL_TRANSPORT_ABI. */
int symrail_transport_open(uint32_t abi, const symrail_transport_options *options, symrail_transport **out);

/* Closes a transport: deregisters all memory and frees everything. A null pointer is ignored. */
int symrail_transport_close(symrail_transport *t);

/* Writes this PE's connection info for all PEs, some hundred bytes, if capacity suffices. *size is set to its size. */
int symrail_transport_card(symrail_transport *t, void *card, size_t capacity, size_t *size);

/* Connects to all PEs: cards[pe], of stride bytes each, including this PE's own. Bytes behind a card are ignored. */
int symrail_transport_connect(symrail_transport *t, const void *cards, size_t stride);

/* Registers memory for operations of all PEs, and as a local buffer. It must stay mapped until it is deregistered. */
int symrail_transport_register(symrail_transport *t, void *base, size_t len, symrail_transport_memory *out);

/* Deregisters memory, or forgets a peer's handle. No operation on it may be under way. */
int symrail_transport_deregister(symrail_transport *t, const symrail_transport_memory *memory);

/* Registers a local buffer, which saves copies on fabrics that need registration, and deregisters it. */
int symrail_transport_register_local(symrail_transport *t, void *base, size_t len);
int symrail_transport_deregister_local(symrail_transport *t, void *base);

/* Writes len bytes to byte at of memory; no bytes may be anywhere. source must stay unchanged until a quiet. */
int symrail_transport_put(symrail_transport *t, uint16_t context, const symrail_transport_memory *memory, uint64_t at,
                          const void *source, size_t len);

/* As symrail_transport_put, but source may change at once, and len is at most symrail_transport_copy_limit. */
int symrail_transport_put_copied(symrail_transport *t, uint16_t context, const symrail_transport_memory *memory,
                                 uint64_t at, const void *source, size_t len);
size_t symrail_transport_copy_limit(const symrail_transport *t);

/* Reads len bytes from byte at of memory. */
int symrail_transport_get(symrail_transport *t, uint16_t context, const symrail_transport_memory *memory, uint64_t at,
                          void *dest, size_t len);

/* Changes an aligned word of memory. If old is not null, the old value is stored there until the next quiet returns.
 * operand and compare hold the value's bits in their low bytes. */
int symrail_transport_amo(symrail_transport *t, uint16_t context, const symrail_transport_memory *memory, uint64_t at,
                          int op, int type, uint64_t operand, uint64_t compare, void *old);

/* Writes, then sets (or adds to) a 64-bit word of the same PE. A reader that observes the signal also observes the
 * data. op is SYMRAIL_TRANSPORT_SET or _ADD. source must stay unchanged until a quiet. */
int symrail_transport_put_signal(symrail_transport *t, uint16_t context, const symrail_transport_memory *memory,
                                 uint64_t at, const void *source, size_t len, const symrail_transport_memory *signal,
                                 uint64_t signal_at, int op, uint64_t value);

/* Orders later operations behind earlier ones, to each PE. Returns at once. Gets are not ordered. */
int symrail_transport_fence(symrail_transport *t);

/* Waits until all operations of the context are complete, or until one of them fails, and returns the failure. The next
 * quiet returns later failures. */
int symrail_transport_quiet(symrail_transport *t, uint16_t context);

/* Handles arrivals and posts waiting operations. Does not block. */
int symrail_transport_progress(symrail_transport *t);

#ifdef __cplusplus
}
#endif
#endif
