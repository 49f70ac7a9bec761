/* Generated from ep/src/cuda/layout.rs, which explains every constant. Do not edit. */
#ifndef SYMRAIL_EP_HIGH_THROUGHPUT_LAYOUT_CUH
#define SYMRAIL_EP_HIGH_THROUGHPUT_LAYOUT_CUH
/* NVRTC has neither offsetof nor the built-in function of other compilers. */
#ifndef SYMRAIL_OFFSETOF
#ifdef __CUDACC_RTC__
#define SYMRAIL_OFFSETOF(TYPE, MEMBER) __INTADDR__(&((TYPE*)0)->MEMBER)
#else
#define SYMRAIL_OFFSETOF(TYPE, MEMBER) __builtin_offsetof(TYPE, MEMBER)
#endif
#endif

#define MOST_RANKS 256
/* Rows of a chunk. */
#define CHUNK 32
/* Rows of a combine that a warp returns at a time in a job of one host. */
#define RETURNED 2
/* The number of values that ranks compare: the kind of the call, bytes of a row, scales of a row, slots,
 * a checksum of the routes of an earlier call, and the types of rows and scales. */
#define COMPARED 6
/* The kind of a combine; dispatches have other ones. */
#define COMBINE 3ull
/* Marks the ticket of a call that does not go on. The counts are those of an earlier call then. */
#define TICKET_REFUSED 9223372036854775808ull
/* The kinds of errors; from DIFFERENT on, the compared values. */
#define NOTHING 0ull
#define NO_EXPERT 1ull
#define DIFFERENT 2ull
#define NO_ROOM 8ull
#define LATE 9ull
/* Flags of terms: the first of a host; a sum of another host. */
#define FIRST_OF_HOST 2147483648
#define IS_SUM 1073741824

/* Parts of the symmetric memory. */
struct heap_parts {
    /* Incoming headers, outgoing headers, and words of headers; words of chunks, and words of gathered
     * chunks. */
    symrail_u64 headers;
    symrail_u64 headers_out;
    symrail_u64 header_words;
    symrail_u64 words;
    symrail_u64 gathered_words;
    /* Rows and their side data that arrive from other hosts by dispatch, that a combine offers to the ranks
     * of this host, that return from other hosts (of a job of one host: from all ranks), that go to unmapped ranks, that are staged for others of
     * this host, and that arrive as sums of another host. */
    symrail_u64 rows;
    symrail_u64 sides;
    symrail_u64 offered_rows;
    symrail_u64 offered_sides;
    symrail_u64 back_rows;
    symrail_u64 back_sides;
    symrail_u64 out_rows;
    symrail_u64 out_sides;
    symrail_u64 staged_rows;
    symrail_u64 staged_sides;
    symrail_u64 sum_rows;
    symrail_u64 sum_sides;
    /* Words of the ranks of this host; tokens that a dispatch offers to these ranks, their side data, the
     * positions here of the tokens of these ranks, and words of the rows that return in a job of one host. */
    symrail_u64 near_words;
    symrail_u64 token_rows;
    symrail_u64 token_sides;
    symrail_u64 near_places_at;
    symrail_u64 returned_words;
};
static_assert(sizeof(heap_parts) == 176, "heap_parts");
static_assert(SYMRAIL_OFFSETOF(heap_parts, headers) == 0, "heap_parts.headers");
static_assert(SYMRAIL_OFFSETOF(heap_parts, headers_out) == 8, "heap_parts.headers_out");
static_assert(SYMRAIL_OFFSETOF(heap_parts, header_words) == 16, "heap_parts.header_words");
static_assert(SYMRAIL_OFFSETOF(heap_parts, words) == 24, "heap_parts.words");
static_assert(SYMRAIL_OFFSETOF(heap_parts, gathered_words) == 32, "heap_parts.gathered_words");
static_assert(SYMRAIL_OFFSETOF(heap_parts, rows) == 40, "heap_parts.rows");
static_assert(SYMRAIL_OFFSETOF(heap_parts, sides) == 48, "heap_parts.sides");
static_assert(SYMRAIL_OFFSETOF(heap_parts, offered_rows) == 56, "heap_parts.offered_rows");
static_assert(SYMRAIL_OFFSETOF(heap_parts, offered_sides) == 64, "heap_parts.offered_sides");
static_assert(SYMRAIL_OFFSETOF(heap_parts, back_rows) == 72, "heap_parts.back_rows");
static_assert(SYMRAIL_OFFSETOF(heap_parts, back_sides) == 80, "heap_parts.back_sides");
static_assert(SYMRAIL_OFFSETOF(heap_parts, out_rows) == 88, "heap_parts.out_rows");
static_assert(SYMRAIL_OFFSETOF(heap_parts, out_sides) == 96, "heap_parts.out_sides");
static_assert(SYMRAIL_OFFSETOF(heap_parts, staged_rows) == 104, "heap_parts.staged_rows");
static_assert(SYMRAIL_OFFSETOF(heap_parts, staged_sides) == 112, "heap_parts.staged_sides");
static_assert(SYMRAIL_OFFSETOF(heap_parts, sum_rows) == 120, "heap_parts.sum_rows");
static_assert(SYMRAIL_OFFSETOF(heap_parts, sum_sides) == 128, "heap_parts.sum_sides");
static_assert(SYMRAIL_OFFSETOF(heap_parts, near_words) == 136, "heap_parts.near_words");
static_assert(SYMRAIL_OFFSETOF(heap_parts, token_rows) == 144, "heap_parts.token_rows");
static_assert(SYMRAIL_OFFSETOF(heap_parts, token_sides) == 152, "heap_parts.token_sides");
static_assert(SYMRAIL_OFFSETOF(heap_parts, near_places_at) == 160, "heap_parts.near_places_at");
static_assert(SYMRAIL_OFFSETOF(heap_parts, returned_words) == 168, "heap_parts.returned_words");

/* The parameters of all kernels. */
struct parameters {
    symrail_u64 ranks;
    symrail_u64 me;
    symrail_u64 share;
    symrail_u64 most;
    symrail_u64 room;
    /* The number of hosts, the number of ranks of the largest host, and the number of rows that staging
     * memory holds. */
    symrail_u64 hosts;
    symrail_u64 members;
    symrail_u64 staged;
    /* The addresses of the symmetric memory. */
    heap_parts heap;
    /* The most bytes of a row's side data. */
    symrail_u64 side;
    /* This PE's own memory: `progress`; `record`, which is in host memory; the ranks of each host; the
     * terms of a sum, and their number. */
    symrail_u64 progress;
    symrail_u64 record;
    symrail_u64 homes;
    symrail_u64 terms;
    symrail_u64 n_terms;
};
static_assert(sizeof(parameters) == 288, "parameters");
static_assert(SYMRAIL_OFFSETOF(parameters, ranks) == 0, "parameters.ranks");
static_assert(SYMRAIL_OFFSETOF(parameters, me) == 8, "parameters.me");
static_assert(SYMRAIL_OFFSETOF(parameters, share) == 16, "parameters.share");
static_assert(SYMRAIL_OFFSETOF(parameters, most) == 24, "parameters.most");
static_assert(SYMRAIL_OFFSETOF(parameters, room) == 32, "parameters.room");
static_assert(SYMRAIL_OFFSETOF(parameters, hosts) == 40, "parameters.hosts");
static_assert(SYMRAIL_OFFSETOF(parameters, members) == 48, "parameters.members");
static_assert(SYMRAIL_OFFSETOF(parameters, staged) == 56, "parameters.staged");
static_assert(SYMRAIL_OFFSETOF(parameters, heap) == 64, "parameters.heap");
static_assert(SYMRAIL_OFFSETOF(parameters, side) == 240, "parameters.side");
static_assert(SYMRAIL_OFFSETOF(parameters, progress) == 248, "parameters.progress");
static_assert(SYMRAIL_OFFSETOF(parameters, record) == 256, "parameters.record");
static_assert(SYMRAIL_OFFSETOF(parameters, homes) == 264, "parameters.homes");
static_assert(SYMRAIL_OFFSETOF(parameters, terms) == 272, "parameters.terms");
static_assert(SYMRAIL_OFFSETOF(parameters, n_terms) == 280, "parameters.n_terms");

/* The routes of a dispatch on this PE: the addresses of tables. */
struct routes {
    /* For each rank (first index) the number of its tokens for each rank, and for each host. */
    symrail_u64 matrix;
    symrail_u64 crossings;
    /* For each rank, and then for each host, this PE's tokens for it. */
    symrail_u64 lists;
    /* For each token its position in the list of each rank, and of each host, or -1. */
    symrail_u64 places;
    symrail_u64 host_places;
    /* This PE's slots for each expert; all slots of each of this PE's experts. */
    symrail_u64 per_expert;
    symrail_u64 come;
    /* The first slot whose expert does not exist (all bits set: none), and that expert. */
    symrail_u64 wrong_slot;
    /* For each token that arrived through this PE its position at each rank of this host, or -1. */
    symrail_u64 spread;
};
static_assert(sizeof(routes) == 72, "routes");
static_assert(SYMRAIL_OFFSETOF(routes, matrix) == 0, "routes.matrix");
static_assert(SYMRAIL_OFFSETOF(routes, crossings) == 8, "routes.crossings");
static_assert(SYMRAIL_OFFSETOF(routes, lists) == 16, "routes.lists");
static_assert(SYMRAIL_OFFSETOF(routes, places) == 24, "routes.places");
static_assert(SYMRAIL_OFFSETOF(routes, host_places) == 32, "routes.host_places");
static_assert(SYMRAIL_OFFSETOF(routes, per_expert) == 40, "routes.per_expert");
static_assert(SYMRAIL_OFFSETOF(routes, come) == 48, "routes.come");
static_assert(SYMRAIL_OFFSETOF(routes, wrong_slot) == 56, "routes.wrong_slot");
static_assert(SYMRAIL_OFFSETOF(routes, spread) == 64, "routes.spread");

/* State in this GPU's memory. */
struct progress {
    /* The number of ended calls; the state of the current call; the call in which ranks were late, or 0. */
    symrail_u64 calls;
    symrail_u64 state;
    symrail_u64 alarm;
    /* For the running kernel: the numbers of tickets that its warps have taken, and of those for rows that
     * return; the numbers of blocks that have begun, and that have ended. */
    symrail_u64 tickets;
    symrail_u64 returns;
    symrail_u64 begun;
    symrail_u64 blocks;
    /* For the start of a call: the complement of the first value that differs, by rank, or 0. */
    symrail_u64 differs;
};
static_assert(sizeof(progress) == 64, "progress");
static_assert(SYMRAIL_OFFSETOF(progress, calls) == 0, "progress.calls");
static_assert(SYMRAIL_OFFSETOF(progress, state) == 8, "progress.state");
static_assert(SYMRAIL_OFFSETOF(progress, alarm) == 16, "progress.alarm");
static_assert(SYMRAIL_OFFSETOF(progress, tickets) == 24, "progress.tickets");
static_assert(SYMRAIL_OFFSETOF(progress, returns) == 32, "progress.returns");
static_assert(SYMRAIL_OFFSETOF(progress, begun) == 40, "progress.begun");
static_assert(SYMRAIL_OFFSETOF(progress, blocks) == 48, "progress.blocks");
static_assert(SYMRAIL_OFFSETOF(progress, differs) == 56, "progress.differs");

/* State in host memory, which the host may read at any time. */
struct record_fields {
    /* The first error: its kind, the other rank, the value here and the value there. */
    symrail_u64 wrong;
    symrail_u64 other;
    symrail_u64 here;
    symrail_u64 there;
    /* The number of ended calls, and the ticket of the last call that has told the host its counts. */
    symrail_u64 calls;
    symrail_u64 told;
};
static_assert(sizeof(record_fields) == 48, "record_fields");
static_assert(SYMRAIL_OFFSETOF(record_fields, wrong) == 0, "record_fields.wrong");
static_assert(SYMRAIL_OFFSETOF(record_fields, other) == 8, "record_fields.other");
static_assert(SYMRAIL_OFFSETOF(record_fields, here) == 16, "record_fields.here");
static_assert(SYMRAIL_OFFSETOF(record_fields, there) == 24, "record_fields.there");
static_assert(SYMRAIL_OFFSETOF(record_fields, calls) == 32, "record_fields.calls");
static_assert(SYMRAIL_OFFSETOF(record_fields, told) == 40, "record_fields.told");

/* The announcement of a call. */
struct header_fields {
    symrail_u64 compared[6];
    /* The number of the rank's tokens, and of rows that the caller's memory holds. */
    symrail_u64 tokens;
    symrail_u64 room;
};
static_assert(sizeof(header_fields) == 64, "header_fields");
static_assert(SYMRAIL_OFFSETOF(header_fields, compared) == 0, "header_fields.compared");
static_assert(SYMRAIL_OFFSETOF(header_fields, tokens) == 48, "header_fields.tokens");
static_assert(SYMRAIL_OFFSETOF(header_fields, room) == 56, "header_fields.room");

#endif
