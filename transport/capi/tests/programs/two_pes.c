/* A runtime in a hundred lines: two PEs, a socket between them for the exchanges of the transport, and every operation,
 * verified at the other end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "symrail_transport.h"

enum { BIG = 3 << 20, WORDS = 64 };
typedef struct {
    unsigned char data[BIG];
    uint64_t word[WORDS];
} heap_t;

static int me, line;
static symrail_transport *t;

static void check(int ok, int at) {
    if (ok) return;
    fprintf(stderr, "PE %d, line %d: %s\n", me, at, symrail_transport_error());
    exit(1);
}
#define CHECK(condition) check((condition), __LINE__)
#define DO(call) check((call) == SYMRAIL_TRANSPORT_OK, __LINE__)

/* Exchanges a value: afterwards both PEs have all[pe]. */
static void exchange(const void *mine, void *all, size_t size) {
    char *of = all;
    memcpy(of + (size_t)me * size, mine, size);
    CHECK(write(line, mine, size) == (ssize_t)size);
    CHECK(recv(line, of + (size_t)(1 - me) * size, size, MSG_WAITALL) == (ssize_t)size);
}

/* The runtime's barrier, which serves the peer meanwhile. */
static void barrier(void) {
    char here = 1, there;
    CHECK(write(line, &here, 1) == 1);
    while (recv(line, &there, 1, MSG_DONTWAIT) != 1) DO(symrail_transport_progress(t));
}

/* Checks that a card has no address to which other hosts could connect. */
static void is_loopback(const unsigned char *card, size_t size) {
    const unsigned char loopback[] = {127, 0, 0, 1};
    int found = 0;
    for (size_t i = 0; i + sizeof loopback <= size; i++) found += memcmp(card + i, loopback, sizeof loopback) == 0;
    CHECK(found == 1);
}

static void run(unsigned flags, int local) {
    symrail_transport_options options = {sizeof options, (uint32_t)me, 2, (uint32_t)(local ? me : 0), local ? 2 : 0, flags};
    unsigned char card[4096] = {0}, cards[2 * sizeof card];
    size_t size;
    DO(symrail_transport_open(SYMRAIL_TRANSPORT_ABI, &options, &t));
    DO(symrail_transport_card(t, card, sizeof card, &size));
    if (local) is_loopback(card, size);
    exchange(card, cards, sizeof card);
    DO(symrail_transport_connect(t, cards, sizeof card));

    heap_t *heap = calloc(1, sizeof *heap);
    unsigned char *mine = malloc(BIG), *back = malloc(BIG);
    symrail_transport_memory memory[2], own;
    DO(symrail_transport_register(t, heap, sizeof *heap, &own));
    exchange(&own, memory, sizeof own);
    const symrail_transport_memory *peer = &memory[1 - me];
    const uint64_t words = offsetof(heap_t, word);
    for (size_t i = 0; i < BIG; i++) mine[i] = (unsigned char)(i * 31 + i / 251 + 7u * (unsigned)me);

    /* Data of every size, and a word that signals its arrival. */
    DO(symrail_transport_register_local(t, mine, BIG));
    for (size_t n = 1, at = 0; at + n <= BIG; at += n, n = n * 3 + 1)
        DO(symrail_transport_put(t, 0, peer, at, mine + at, n));
    DO(symrail_transport_fence(t));
    DO(symrail_transport_put_signal(t, 0, peer, 0, mine, 4000, peer, words, SYMRAIL_TRANSPORT_SET, 1));
    /* The peer may have added to it already. */
    while (*(volatile uint64_t *)&heap->word[0] < 1) DO(symrail_transport_progress(t));
    size_t until = 0;
    for (size_t n = 1; until + n <= BIG; until += n, n = n * 3 + 1) {}
    for (size_t i = 0; i < until; i++) CHECK(heap->data[i] == (unsigned char)(i * 31 + i / 251 + 7u * (unsigned)(1 - me)));
    DO(symrail_transport_quiet(t, 0));

    DO(symrail_transport_put_signal(t, 1, peer, 0, mine, BIG, peer, words, SYMRAIL_TRANSPORT_ADD, 5));
    while (*(volatile uint64_t *)&heap->word[0] != 6) DO(symrail_transport_progress(t));
    DO(symrail_transport_quiet(t, 1));
    DO(symrail_transport_get(t, 2, peer, 0, back, BIG));
    DO(symrail_transport_quiet(t, 2));
    CHECK(memcmp(back, mine, BIG) == 0);
    DO(symrail_transport_deregister_local(t, mine));

    /* Words: a copied put, and AMOs of both PEs on PE 0's. */
    for (uint64_t i = 0; i < 1000; i++) {
        uint64_t value = i % 32;
        DO(symrail_transport_put_copied(t, 0, peer, words + 8 * (4 + value), &value, sizeof value));
        DO(symrail_transport_amo(t, 0, &memory[0], words + 16, SYMRAIL_TRANSPORT_ADD, SYMRAIL_TRANSPORT_U64, 1, 0, NULL));
    }
    uint64_t old = 0, rest = 0;
    DO(symrail_transport_amo(t, 0, peer, words + 24, SYMRAIL_TRANSPORT_CAS, SYMRAIL_TRANSPORT_U64, 9, 0, &old));
    DO(symrail_transport_quiet(t, 0));
    DO(symrail_transport_amo(t, 0, peer, words + 24, SYMRAIL_TRANSPORT_CAS, SYMRAIL_TRANSPORT_U64, 1, 0, &rest));
    DO(symrail_transport_quiet(t, 0));
    CHECK(old == 0 && rest == 9);
    barrier();
    for (uint64_t i = 0; i < 32; i++) CHECK(heap->word[4 + i] == i);
    CHECK(heap->word[3] == 9 && heap->word[2] == (me == 0 ? 2000 : 0));

    /* No bytes may be anywhere, also at the end of memory, and a signal comes with them. */
    for (uint64_t at = sizeof *heap - 1; at <= sizeof *heap + 1; at++) {
        DO(symrail_transport_put(t, 0, peer, at, mine, 0));
        DO(symrail_transport_put_copied(t, 0, peer, at, mine, 0));
        DO(symrail_transport_get(t, 0, peer, at, back, 0));
        DO(symrail_transport_put_signal(t, 0, peer, at, mine, 0, peer, words, SYMRAIL_TRANSPORT_ADD, 1));
    }
    while (*(volatile uint64_t *)&heap->word[0] != 9) DO(symrail_transport_progress(t));
    DO(symrail_transport_quiet(t, 0));

    /* Every refusal has a sentence. */
    CHECK(symrail_transport_put(t, 0, peer, sizeof *heap, mine, 1) == SYMRAIL_TRANSPORT_EINVAL);
    CHECK(symrail_transport_amo(t, 0, peer, words + 4, 2, 3, 1, 0, NULL) == SYMRAIL_TRANSPORT_EINVAL);
    CHECK(strstr(symrail_transport_error(), "alignment") != NULL);
    CHECK(symrail_transport_open(99, &options, NULL) == SYMRAIL_TRANSPORT_EINVAL);
    barrier();
    DO(symrail_transport_deregister(t, &own));
    DO(symrail_transport_close(t));
    free(heap), free(mine), free(back);
}

int main(int argc, char **argv) {
    int lines[2], status = 0;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, lines) != 0) return 1;
    pid_t child = fork();
    me = child == 0;
    line = lines[me];
    close(lines[1 - me]);
    alarm(90);
    const char *how = argc > 1 ? argv[1] : "";
    run(strcmp(how, "thread") == 0 ? SYMRAIL_TRANSPORT_THREAD : 0, strcmp(how, "local") == 0);
    if (child == 0) return 0;
    if (waitpid(child, &status, 0) != child || status != 0) return 1;
    printf("2 PEs verified every operation\n");
    return 0;
}
