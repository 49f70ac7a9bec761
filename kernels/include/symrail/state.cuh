/* A device's data about its PE. The host fills it in before the first kernel (kernels/src/cuda/state.rs mirrors it). It
 * is a plain struct of numbers: NVRTC, nvcc and Rust read the same bytes. */
#ifndef SYMRAIL_STATE_CUH
#define SYMRAIL_STATE_CUH

#include "../symrail_layout.h"

typedef unsigned long long symrail_u64;
typedef unsigned int symrail_u32;

#define SYMRAIL_STATE_VERSION 3u
#define SYMRAIL_STATE_BYTES 1192u
/* Heaps: host memory that the device can access over PCIe, and device memory. */
#define SYMRAIL_MAX_HEAPS 2
#define SYMRAIL_MAX_CHANNELS 16
/* The number of PEs whose addresses are in constant memory. Those of others are in a table in device memory. */
#define SYMRAIL_FIRST_PES 32

/* Heap flag: this device's atomics on the heap are atomic with those of all others. Not so for host memory over
 * PCIe. */
#define SYMRAIL_HEAP_ATOMICS 1u

/* One symmetric heap. `offset` is the symmetric offset of its first byte, as in the proxy. */
struct symrail_heap_view {
    symrail_u64 base;
    symrail_u64 bytes;
    symrail_u64 offset;
    symrail_u64 flags;
    /* The address of each PE's copy in this device's address space; 0 where only a channel reaches it. */
    symrail_u64 peers;
    symrail_u64 first_peers[SYMRAIL_FIRST_PES];
};

/* One channel: the ring in pinned memory, and the producers' words in device memory. */
struct symrail_channel_view {
    symrail_u64 ring;
    symrail_u64 own;
    symrail_u64 slots;
    symrail_u64 replies;
};

/* The producers' words in device memory, each on a line of its own; reply entries' words (4 bytes each) follow. The
 * tail and the completed position are the last observed values, and shared_poll.cuh has a word behind each. */
#define SYMRAIL_OWN_HEAD 0u
#define SYMRAIL_OWN_TAIL 128u
#define SYMRAIL_OWN_COMPLETED 256u
#define SYMRAIL_OWN_FENCED 384u
#define SYMRAIL_OWN_MIXED 448u
#define SYMRAIL_OWN_REPLIES 512u

/* A PE's step in a barrier: it sets a flag of a PE, or, if the PE is -1, waits for its own flag. A step whose flag is
 * -1 ends the plan. */
struct __align__(8) symrail_step {
    int pe;
    int flag;
};
/* A barrier plan's memory on the device: the number of barriers so far, and the steps from here on. */
#define SYMRAIL_PLAN_STEPS 128u
/* Flags are words of a symmetric heap, in two sets of this size (8 bytes each), which are used in turn. */
#define SYMRAIL_PLAN_SET 32u

/* A team of PEs start, start + stride, …; the host creates it (GpuDevice::team) and passes its address to kernels. */
struct symrail_device_team {
    int me;
    int n_pes;
    int start;
    int stride;
    /* As the state's barrier_words and barrier_plan. */
    symrail_u64 words;
    symrail_u64 plan;
};
typedef const struct symrail_device_team* symrail_team_t;
#define SYMRAIL_TEAM_WORLD ((symrail_team_t)0)

struct symrail_device_state {
    symrail_u32 version;
    int me;
    int n_pes;
    symrail_u32 n_heaps;
    symrail_u32 n_channels;
    symrail_u32 reserved;
    /* The limit of all waits, in nanoseconds. */
    symrail_u64 timeout_ns;
    /* An error record in pinned memory: {code, what, PE, place, era}. */
    symrail_u64 error;
    /* Barrier: the plan of all PEs, and the words of both sets. */
    symrail_u64 barrier_plan;
    symrail_u64 barrier_words;
    /* The mailbox of small deliveries for waiting threads in pinned memory, and the readers' word in device memory; 0
     * where there are none. */
    symrail_u64 mailbox;
    symrail_u64 mail_word;
    /* The size per block from which on a copy engine copies between PEs' memory of the first heap; all bits set:
     * never. */
    symrail_u64 engine_from;
    /* A word of device memory: the last era in which an operation has failed (failure.cuh). */
    symrail_u64 stopped;
    struct symrail_heap_view heaps[SYMRAIL_MAX_HEAPS];
    struct symrail_channel_view channels[SYMRAIL_MAX_CHANNELS];
};

#if defined(__CUDACC_RTC__) || defined(SYMRAIL_NAMED_STATE)
/* One translation unit, whose state the host finds by its name. */
extern "C" __constant__ symrail_device_state symrail_state;
extern "C" __constant__ symrail_device_state symrail_state = {};
#else
/* Each translation unit that includes this has its own state, and the host fills in each. */
static __constant__ symrail_device_state symrail_state;
#endif

#define SYMRAIL_DEVICE static __device__ __forceinline__

#endif
