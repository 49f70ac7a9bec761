/* Generated from proxy/src/channel/layout.rs, which explains every constant. Do not edit. */
#ifndef SYMRAIL_LAYOUT_H
#define SYMRAIL_LAYOUT_H

/* sizes in bytes, counts */
#define SYMRAIL_LAYOUT_VERSION 1ull
#define SYMRAIL_SLOT_BYTES 64ull
#define SYMRAIL_CHUNK_BYTES 16ull
#define SYMRAIL_CHUNKS 4ull
#define SYMRAIL_REPLY_BYTES 16ull

/* byte offsets in a channel's memory; slots follow the header, replies follow the slots */
#define SYMRAIL_HEAD 0ull
#define SYMRAIL_CACHED_TAIL 128ull
#define SYMRAIL_TAIL 256ull
#define SYMRAIL_COMPLETED 384ull
#define SYMRAIL_ERRORS 392ull
#define SYMRAIL_SLEEPING 512ull
#define SYMRAIL_CONSTANTS 640ull
#define SYMRAIL_HEADER_BYTES 1024ull

/* bit fields */
#define SYMRAIL_PARITY_SHIFT 63ull
#define SYMRAIL_OPCODE_SHIFT 0ull
#define SYMRAIL_AMO_OP_SHIFT 8ull
#define SYMRAIL_TYPE_SHIFT 16ull
#define SYMRAIL_MASK_SHIFT 24ull
#define SYMRAIL_PE_SHIFT 32ull
#define SYMRAIL_PE_BITS 31ull
#define SYMRAIL_OFFSET_BITS 63ull
#define SYMRAIL_GENERATION_SHIFT 32ull
#define SYMRAIL_GENERATION_BITS 31ull
#define SYMRAIL_REPLY_FAILED_SHIFT 63ull
#define SYMRAIL_LOCAL_ADDRESS 0ull
#define SYMRAIL_LOCAL_SYMMETRIC 1ull
#define SYMRAIL_LOCAL_VALUE 2ull
#define SYMRAIL_MASK_HEAD 1ull
#define SYMRAIL_MASK_LOCAL 2ull
#define SYMRAIL_MASK_VALUE 4ull
#define SYMRAIL_MASK_REPLY 8ull

/* opcodes */
#define SYMRAIL_OP_NOP 1ull
#define SYMRAIL_OP_PUT 2ull
#define SYMRAIL_OP_P 3ull
#define SYMRAIL_OP_GET 4ull
#define SYMRAIL_OP_G 5ull
#define SYMRAIL_OP_PUT_SIGNAL 6ull
#define SYMRAIL_OP_AMO 7ull
#define SYMRAIL_OP_FETCH_AMO 8ull
#define SYMRAIL_OP_FENCE 9ull

/* types of atomics */
#define SYMRAIL_TYPE_I32 0ull
#define SYMRAIL_TYPE_U32 1ull
#define SYMRAIL_TYPE_I64 2ull
#define SYMRAIL_TYPE_U64 3ull
#define SYMRAIL_TYPE_F32 4ull
#define SYMRAIL_TYPE_F64 5ull

/* atomic operations */
#define SYMRAIL_AMO_FETCH 0ull
#define SYMRAIL_AMO_SET 1ull
#define SYMRAIL_AMO_ADD 2ull
#define SYMRAIL_AMO_AND 3ull
#define SYMRAIL_AMO_OR 4ull
#define SYMRAIL_AMO_XOR 5ull
#define SYMRAIL_AMO_COMPARE_SWAP 6ull

#endif
