/* Symrail's agents: processes that know one another by name, read and write one another's registered memory, join at
 * any time and leave at any time.
 *
 *     symrail_agent_open          opens an agent over the rails that the SYMRAIL_ variables allow
 *     symrail_agent_register      registers memory; symrail_agent_register_region also that of GPUs
 *     symrail_agent_metadata      exports how to connect, and the memory; the program carries it to other agents
 *     symrail_agent_load          loads the metadata of another agent
 *     symrail_agent_prepare       prepares a transfer between lists of descriptors
 *     symrail_agent_post          starts it, any number of times
 *     symrail_agent_test          tells whether it has ended
 *     symrail_agent_notification  returns the next notification from another agent
 *     symrail_agent_close         ends the agent
 *
 * A transfer has ended when all its bytes are visible, at the other agent or here, and its notification is there. A
 * notification becomes visible behind the data of its transfer. No order holds between transfers.
 *
 * Any thread may call any function at any time. Agents, memory and transfers are numbers: one that names nothing, or
 * nothing any more, is an error. Every function but symrail_agent_abi and symrail_agent_error returns 0 or one of the
 * negative codes. Only functions with a time limit, symrail_agent_close and symrail_agent_deregister wait, the latter
 * two for operations under way, for at most twice SYMRAIL_TIMEOUT_S and two seconds.
 *
 * License: MIT or Apache-2.0, at your choice.
 */
#ifndef SYMRAIL_AGENT_H
#define SYMRAIL_AGENT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header. A library accepts the versions that it knows, and refuses others. */
#define SYMRAIL_AGENT_ABI 1

/* Results. symrail_agent_error() returns the sentence for the last one. */
enum {
    SYMRAIL_AGENT_OK = 0,
    SYMRAIL_AGENT_EINVAL = -1,    /* an argument: null, a number that names nothing, a value that is not accepted */
    SYMRAIL_AGENT_EFABRIC = -2,   /* no library, no rail, or an error of the fabric */
    SYMRAIL_AGENT_EUNKNOWN = -3,  /* an agent whose metadata was not loaded, or memory that is not known here */
    SYMRAIL_AGENT_EMETADATA = -4, /* metadata that is malformed, was changed, or is another agent's of the same name */
    SYMRAIL_AGENT_EBUSY = -5,     /* the transfer, or the memory, is in use by a transfer under way */
    SYMRAIL_AGENT_ELOST = -6,     /* the other agent has left, has died, or does not answer */
    SYMRAIL_AGENT_EFAILED = -7,   /* an operation failed in the fabric or at the other agent */
    SYMRAIL_AGENT_EINTERNAL = -8  /* a defect of the library; please report it */
};

typedef uint64_t symrail_agent;          /* an agent of this process; 0 is none */
typedef uint64_t symrail_agent_memory;   /* a registration of one agent */
typedef uint64_t symrail_agent_transfer; /* a prepared transfer; 0 is none */

typedef struct {
    size_t size;      /* sizeof(symrail_agent_options) */
    const char *name; /* 1 to 1024 bytes */
} symrail_agent_options;

/* Bytes in the address space of an agent's process. */
typedef struct {
    uint64_t address;
    uint64_t len;
} symrail_agent_descriptor;

/* Kinds of memory. */
enum {
    SYMRAIL_AGENT_HOST = 0,
    SYMRAIL_AGENT_CUDA = 1 /* a GPU's */
};

/* Memory of this process. */
typedef struct {
    size_t size; /* sizeof(symrail_agent_region) */
    uint64_t address;
    uint64_t len;
    int32_t kind;
    int32_t device; /* the GPU's number, as CUDA counts in this process; not used for host memory */
} symrail_agent_region;

enum {
    SYMRAIL_AGENT_READ = 0, /* from the other agent to this one */
    SYMRAIL_AGENT_WRITE = 1
};

enum {
    SYMRAIL_AGENT_CONNECTION = 1, /* how to connect is in the metadata */
    SYMRAIL_AGENT_ALL = 2         /* all registrations are in it; memory and count are not used */
};

/* The newest version that the library knows. */
uint32_t symrail_agent_abi(void);

/* The last failure in the calling thread: a sentence that names the agent, the sizes and the remedy. It is valid until
 * the next call. */
const char *symrail_agent_error(void);

/* Opens an agent. abi is SYMRAIL_AGENT_ABI. */
int symrail_agent_open(uint32_t abi, const symrail_agent_options *options, symrail_agent *out);

/* Ends an agent: cancels its transfers, waits for what is under way, sends the notifications that wait for at most two
 * seconds, and deregisters all memory. Its transfers have to be released all the same. */
int symrail_agent_close(symrail_agent agent);

/* Registers memory. It must stay mapped until it is deregistered or the agent is closed. */
int symrail_agent_register(symrail_agent agent, void *base, size_t len, symrail_agent_memory *out);

/* Registers memory of any kind. The program's streams have to be done with a GPU's memory when a transfer that uses it is
 * posted. EINVAL without a CUDA driver, and for memory that is not the GPU's. */
int symrail_agent_register_region(symrail_agent agent, const symrail_agent_region *region, symrail_agent_memory *out);

/* The kinds of memory that can be registered in this process: the bit 1 << kind for each. SYMRAIL_AGENT_CUDA is among them
 * if there is a CUDA driver. */
uint32_t symrail_agent_memory_kinds(void);

/* Deregisters memory. EBUSY, and it stays registered, if a transfer that uses it does not end in time, or within so many
 * milliseconds. Agents on this host that have mapped a GPU's memory unmap it first. */
int symrail_agent_deregister(symrail_agent agent, symrail_agent_memory memory);
int symrail_agent_deregister_within(symrail_agent agent, symrail_agent_memory memory, uint32_t milliseconds);

/* Writes metadata of count registrations if capacity suffices. *size is set to its size. Whoever reads metadata with
 * SYMRAIL_AGENT_CONNECTION can connect and access the memory. Without it, only agents that have it already accept the
 * metadata. */
int symrail_agent_metadata(symrail_agent agent, const symrail_agent_memory *memory, size_t count, uint32_t flags,
                           void *out, size_t capacity, size_t *size);

/* Loads the metadata of another agent. Metadata with SYMRAIL_AGENT_ALL takes the place of what was known of its memory,
 * other metadata is added. The agent's name is written to name, which may be null. */
int symrail_agent_load(symrail_agent agent, const void *metadata, size_t size, char *name, size_t capacity);

/* Forgets the memory that metadata names, or everything about an agent. */
int symrail_agent_unload(symrail_agent agent, const void *metadata, size_t size);
int symrail_agent_forget(symrail_agent agent, const char *name);

/* Connects to an agent, and sets *connected to whether the connection is there. The first transfer or notification
 * connects otherwise. connected may be null. */
int symrail_agent_connect(symrail_agent agent, const char *name, int *connected);

/* Prepares a transfer: count descriptors of memory of this agent, and as many, of the same lengths, of memory of the
 * agent with this name, which may be this one. */
int symrail_agent_prepare(symrail_agent agent, int direction, const symrail_agent_descriptor *local,
                          const symrail_agent_descriptor *remote, size_t count, const char *name,
                          symrail_agent_transfer *out);

/* Starts a transfer, with a notification unless that is null. EBUSY while it is under way. */
int symrail_agent_post(symrail_agent_transfer transfer, const void *notification, size_t len);

/* Sets *done to whether a transfer has ended, at once or after at most so many milliseconds. It returns the failure of a
 * transfer that has failed, each time. */
int symrail_agent_test(symrail_agent_transfer transfer, int *done);
int symrail_agent_wait(symrail_agent_transfer transfer, uint32_t milliseconds, int *done);

/* Cancels a transfer, which may be posted again, or releases it. Neither waits: what is under way ends by itself. */
int symrail_agent_cancel(symrail_agent_transfer transfer);
int symrail_agent_release(symrail_agent_transfer transfer);

/* Sends a notification by itself. */
int symrail_agent_notify(symrail_agent agent, const char *name, const void *message, size_t len);

/* Takes the next notification, at once or after at most so many milliseconds. *found tells whether there is one, *size
 * its bytes. The sender's name is written to name with a zero byte. Where it or the message does not fit, the result is
 * EINVAL, and the notification remains the next. */
int symrail_agent_notification(symrail_agent agent, uint32_t milliseconds, char *name, size_t name_capacity,
                               void *message, size_t capacity, size_t *size, int *found);

#ifdef __cplusplus
}
#endif
#endif
