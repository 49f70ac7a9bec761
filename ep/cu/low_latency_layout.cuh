/* Generated from ep/src/cuda/layout.rs, which explains every constant. Do not edit. */
#ifndef SYMRAIL_EP_LOW_LATENCY_LAYOUT_CUH
#define SYMRAIL_EP_LOW_LATENCY_LAYOUT_CUH
/* NVRTC has neither offsetof nor the built-in function of other compilers. */
#ifndef SYMRAIL_OFFSETOF
#ifdef __CUDACC_RTC__
#define SYMRAIL_OFFSETOF(TYPE, MEMBER) __INTADDR__(&((TYPE*)0)->MEMBER)
#else
#define SYMRAIL_OFFSETOF(TYPE, MEMBER) __builtin_offsetof(TYPE, MEMBER)
#endif
#endif

/* The state of a lost rank: it was late once; it was notified of that; it has left this one behind. After
 * each of these neither rank works with the other any more. */
#define WAS_LATE 1
#define IS_TOLD 2
#define HAS_LEFT 3
/* The kinds of a dispatch's rows. */
#define BF16 0ull
#define FP8 1ull
#define FP8_POWER_OF_TWO 2ull
/* A combine of a dispatch whose memory has been reused. */
#define NOT_HELD 18446744073709551615ull
/* A combine that is received in another form than it was sent. */
#define OTHER_FORM 18446744073709551614ull
/* Marks the dispatch of a combine whose rows are encoded. */
#define IS_ENCODED 9223372036854775808ull
/* The number of a token's elements that one scale serves. */
#define FP8_GROUP 128

/* Parts of the symmetric memory. */
struct heap_parts {
    /* Incoming parts, outgoing parts, and words of parts. */
    symrail_u64 incoming;
    symrail_u64 outgoing;
    symrail_u64 words;
    /* Returned rows, their words (of rows, of far ranks' parts, and of far ranks' weights), and rows to be
     * returned to far ranks. */
    symrail_u64 back;
    symrail_u64 back_words;
    symrail_u64 back_out;
    /* Weights from each rank, and those for far ranks. */
    symrail_u64 weights;
    symrail_u64 weights_out;
    /* For each rank the round in which it left this one behind. */
    symrail_u64 left;
    /* For each rank the last combine for which it asked for encoded rows; for each returning row the combine
     * that has encoded it, and which of its groups are. */
    symrail_u64 formats;
};
static_assert(sizeof(heap_parts) == 80, "heap_parts");
static_assert(SYMRAIL_OFFSETOF(heap_parts, incoming) == 0, "heap_parts.incoming");
static_assert(SYMRAIL_OFFSETOF(heap_parts, outgoing) == 8, "heap_parts.outgoing");
static_assert(SYMRAIL_OFFSETOF(heap_parts, words) == 16, "heap_parts.words");
static_assert(SYMRAIL_OFFSETOF(heap_parts, back) == 24, "heap_parts.back");
static_assert(SYMRAIL_OFFSETOF(heap_parts, back_words) == 32, "heap_parts.back_words");
static_assert(SYMRAIL_OFFSETOF(heap_parts, back_out) == 40, "heap_parts.back_out");
static_assert(SYMRAIL_OFFSETOF(heap_parts, weights) == 48, "heap_parts.weights");
static_assert(SYMRAIL_OFFSETOF(heap_parts, weights_out) == 56, "heap_parts.weights_out");
static_assert(SYMRAIL_OFFSETOF(heap_parts, left) == 64, "heap_parts.left");
static_assert(SYMRAIL_OFFSETOF(heap_parts, formats) == 72, "heap_parts.formats");

/* The parameters of all kernels. */
struct parameters {
    symrail_u64 ranks;
    symrail_u64 me;
    symrail_u64 share;
    symrail_u64 k;
    symrail_u64 most;
    symrail_u64 hidden;
    /* The number of parts for each rank, and bytes of each. */
    symrail_u64 parts;
    symrail_u64 part;
    /* There are ranks whose memory this GPU does not reach, or the reverse (far ranks). */
    symrail_u64 has_far;
    /* The addresses of the symmetric memory. */
    heap_parts heap;
    /* This PE's own memory: which ranks are masked; in which round each was late since the last check;
     * which are far. */
    symrail_u64 masks;
    symrail_u64 late;
    symrail_u64 far;
    /* For each slot the number of the row that returns from its rank; for each slot of each rank's tokens
     * the index of the expert's row, and the round in the upper half; for each part of each far rank the
     * number of rows that are ready to return. */
    symrail_u64 back_numbers;
    symrail_u64 places;
    symrail_u64 ready;
    /* The state of lost ranks; the parts and the rows that come from this PE itself. */
    symrail_u64 lost;
    symrail_u64 own_in;
    symrail_u64 own_back;
    /* The last values of the words of far ranks' parts, and the number of rows that each part to a rank
     * returns, both for two dispatches; the last values of the words of far ranks' returning parts and of
     * their weights; a call that differs; and for each rank whether a dispatch takes its tokens. */
    symrail_u64 notes;
    /* The last dispatch that was sent, and the last one that was received; the last combine that was sent,
     * the last one that has ended, and the dispatch of the former, 0 if it was refused. They lie here so
     * that a kernel loads them with the other parameters. */
    symrail_u64 sent;
    symrail_u64 received;
    symrail_u64 combining;
    symrail_u64 combined;
    symrail_u64 combining_of;
    /* For each set of memory whether the rows of its dispatch are FP8. */
    symrail_u64 formats[2];
    /* The number of tickets that the blocks of the running kernel have taken. */
    symrail_u64 tickets;
    /* Whether the GPU masks late ranks. */
    symrail_u64 mask_late;
    /* Set by each kernel in its copy: the number of its dispatch, whether the rows of that are FP8, the
     * number of its combine, and which of the things that this PE sends to itself have words. */
    symrail_u64 round;
    symrail_u64 fp8;
    symrail_u64 combine;
    symrail_u64 own_words;
};
static_assert(sizeof(parameters) == 336, "parameters");
static_assert(SYMRAIL_OFFSETOF(parameters, ranks) == 0, "parameters.ranks");
static_assert(SYMRAIL_OFFSETOF(parameters, me) == 8, "parameters.me");
static_assert(SYMRAIL_OFFSETOF(parameters, share) == 16, "parameters.share");
static_assert(SYMRAIL_OFFSETOF(parameters, k) == 24, "parameters.k");
static_assert(SYMRAIL_OFFSETOF(parameters, most) == 32, "parameters.most");
static_assert(SYMRAIL_OFFSETOF(parameters, hidden) == 40, "parameters.hidden");
static_assert(SYMRAIL_OFFSETOF(parameters, parts) == 48, "parameters.parts");
static_assert(SYMRAIL_OFFSETOF(parameters, part) == 56, "parameters.part");
static_assert(SYMRAIL_OFFSETOF(parameters, has_far) == 64, "parameters.has_far");
static_assert(SYMRAIL_OFFSETOF(parameters, heap) == 72, "parameters.heap");
static_assert(SYMRAIL_OFFSETOF(parameters, masks) == 152, "parameters.masks");
static_assert(SYMRAIL_OFFSETOF(parameters, late) == 160, "parameters.late");
static_assert(SYMRAIL_OFFSETOF(parameters, far) == 168, "parameters.far");
static_assert(SYMRAIL_OFFSETOF(parameters, back_numbers) == 176, "parameters.back_numbers");
static_assert(SYMRAIL_OFFSETOF(parameters, places) == 184, "parameters.places");
static_assert(SYMRAIL_OFFSETOF(parameters, ready) == 192, "parameters.ready");
static_assert(SYMRAIL_OFFSETOF(parameters, lost) == 200, "parameters.lost");
static_assert(SYMRAIL_OFFSETOF(parameters, own_in) == 208, "parameters.own_in");
static_assert(SYMRAIL_OFFSETOF(parameters, own_back) == 216, "parameters.own_back");
static_assert(SYMRAIL_OFFSETOF(parameters, notes) == 224, "parameters.notes");
static_assert(SYMRAIL_OFFSETOF(parameters, sent) == 232, "parameters.sent");
static_assert(SYMRAIL_OFFSETOF(parameters, received) == 240, "parameters.received");
static_assert(SYMRAIL_OFFSETOF(parameters, combining) == 248, "parameters.combining");
static_assert(SYMRAIL_OFFSETOF(parameters, combined) == 256, "parameters.combined");
static_assert(SYMRAIL_OFFSETOF(parameters, combining_of) == 264, "parameters.combining_of");
static_assert(SYMRAIL_OFFSETOF(parameters, formats) == 272, "parameters.formats");
static_assert(SYMRAIL_OFFSETOF(parameters, tickets) == 288, "parameters.tickets");
static_assert(SYMRAIL_OFFSETOF(parameters, mask_late) == 296, "parameters.mask_late");
static_assert(SYMRAIL_OFFSETOF(parameters, round) == 304, "parameters.round");
static_assert(SYMRAIL_OFFSETOF(parameters, fp8) == 312, "parameters.fp8");
static_assert(SYMRAIL_OFFSETOF(parameters, combine) == 320, "parameters.combine");
static_assert(SYMRAIL_OFFSETOF(parameters, own_words) == 328, "parameters.own_words");

#endif
