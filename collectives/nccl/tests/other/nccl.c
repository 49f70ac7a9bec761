/* A library with some of NCCL's interface, which records its calls. */
#include <stddef.h>
#include <string.h>

typedef struct {
    char bytes[128];
} Id;
struct comm {
    int size, rank;
};
static struct comm made = {0, 0};
static char last[64];
/* The calls, one letter for each. */
static char calls[64];
static int note(char what) {
    size_t at = strlen(calls);
    if (at + 1 < sizeof calls) calls[at] = what;
    return 0;
}

const char* other_calls(void) { return calls; }
int ncclGetVersion(int* version) { *version = 1; return note('v'); }
int ncclGetUniqueId(Id* id) { memset(id->bytes, 'x', sizeof id->bytes); return note('u'); }
int ncclCommInitRank(struct comm** comm, int size, Id id, int rank) {
    if (id.bytes[0] != 'x' || id.bytes[127] != 'x') return 4;
    made = (struct comm){size, rank};
    *comm = &made;
    return note('i');
}
int ncclCommInitAll(struct comm** comms, int count, const int* devices) {
    for (int i = 0; i < count; i++) comms[i] = &made;
    return note(devices == NULL ? 'a' : 'A');
}
int ncclCommCount(const struct comm* comm, int* count) { *count = comm->size; return note('n'); }
int ncclAllReduce(const void* from, void* to, size_t count, int type, int op, struct comm* comm, void* stream) {
    int good = (size_t)from == 64 && (size_t)to == 128 && count == 10 && type == 7 && op == 2 && comm == &made && (size_t)stream == 3;
    if (good) return note('r');
    strcpy(last, "it was not what the caller said");
    return 5;
}
int ncclCommWindowRegister(struct comm* comm, void* at, size_t bytes, void** window, int flags) {
    *window = at;
    return comm == &made && bytes == 32 && flags == 1 ? note('w') : 5;
}
int ncclGroupStart(void) { return note('('); }
int ncclGroupEnd(void) { return note(')'); }
const char* ncclGetLastError(const struct comm* comm) { return comm == &made ? last : NULL; }
int ncclCommDestroy(struct comm* comm) { return comm == &made ? note('d') : 4; }
