/* Channels between PEs with mutually accessible memory: semaphores, packets and memory channels, which the host creates
 * (symrail_collectives::gpu::MemoryChannels). Requests to the proxy have channels of their own (symrail/channel.cuh),
 * which puts, gets and signals of symrail_device.cuh use where they need one. */
#ifndef SYMRAIL_CHANNELS_CUH
#define SYMRAIL_CHANNELS_CUH

#include "symrail_device.cuh"
#include "symrail/memory_channel.cuh"

#endif
