/* Two agents in one process: what a program in C does with the interface, and what it must not do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "symrail_agent.h"

#define BLOCKS 500
#define BLOCK 256

static void must(int code, const char *what) {
    if (code == SYMRAIL_AGENT_OK) return;
    fprintf(stderr, "%s: %d: %s\n", what, code, symrail_agent_error());
    exit(1);
}

static void refused(int code, int expected, const char *what) {
    if (code == expected && symrail_agent_error()[0] != 0) return;
    fprintf(stderr, "%s: %d instead of %d: %s\n", what, code, expected, symrail_agent_error());
    exit(1);
}

static symrail_agent open_agent(const char *name) {
    symrail_agent_options options = {sizeof options, name};
    symrail_agent agent = 0;
    must(symrail_agent_open(SYMRAIL_AGENT_ABI, &options, &agent), "open");
    return agent;
}

static void load(symrail_agent from, symrail_agent into, uint32_t flags, const symrail_agent_memory *memory, size_t n) {
    size_t size = 0;
    char bytes[4096], name[64];
    refused(symrail_agent_metadata(from, memory, n, flags, bytes, 1, &size), SYMRAIL_AGENT_EINVAL, "no room");
    must(symrail_agent_metadata(from, memory, n, flags, bytes, sizeof bytes, &size), "metadata");
    must(symrail_agent_load(into, bytes, size, name, sizeof name), "load");
    if (strcmp(name, "right") != 0) exit(2);
    bytes[size / 2] ^= 1;
    refused(symrail_agent_load(into, bytes, size, NULL, 0), SYMRAIL_AGENT_EMETADATA, "changed metadata");
}

int main(void) {
    static unsigned char source[BLOCKS * BLOCK], target[BLOCKS * BLOCK];
    static symrail_agent_descriptor here[BLOCKS], there[BLOCKS];
    symrail_agent left = open_agent("left"), right = open_agent("right");
    symrail_agent_memory mine, theirs;
    symrail_agent_transfer transfer;
    symrail_agent_options old = {8, "old"};
    char name[64], message[8];
    size_t size = 0;
    int done = 0, found = 0;

    must(symrail_agent_register(left, source, sizeof source, &mine), "register");
    must(symrail_agent_register(right, target, sizeof target, &theirs), "register");
    load(right, left, SYMRAIL_AGENT_CONNECTION, NULL, 0);
    for (int i = 0; i < BLOCKS; i++) {
        here[i] = (symrail_agent_descriptor){(uintptr_t)(source + i * BLOCK), BLOCK};
        there[i] = (symrail_agent_descriptor){(uintptr_t)(target + (BLOCKS - 1 - i) * BLOCK), BLOCK};
        memset(source + i * BLOCK, i + 1, BLOCK);
    }
    refused(symrail_agent_prepare(left, SYMRAIL_AGENT_WRITE, here, there, BLOCKS, "right", &transfer),
            SYMRAIL_AGENT_EUNKNOWN, "memory that is not known");
    load(right, left, 0, &theirs, 1);
    must(symrail_agent_prepare(left, SYMRAIL_AGENT_WRITE, here, there, BLOCKS, "right", &transfer), "prepare");
    refused(symrail_agent_test(transfer, &done), SYMRAIL_AGENT_EINVAL, "not posted");
    for (int round = 0; round < 3; round++) {
        memset(target, 0, sizeof target);
        must(symrail_agent_post(transfer, "a long one", 10), "post");
        refused(symrail_agent_notification(right, 60000, name, sizeof name, message, sizeof message, &size, &found),
                SYMRAIL_AGENT_EINVAL, "no room for the notification");
        for (int i = 0; i < BLOCKS * BLOCK; i++)
            if (target[i] != (unsigned char)(BLOCKS - i / BLOCK)) return 3;
        char room[64];
        must(symrail_agent_notification(right, 0, name, sizeof name, room, sizeof room, &size, &found), "notification");
        if (!found || size != 10 || memcmp(room, "a long one", 10) != 0 || strcmp(name, "left") != 0) return 4;
        must(symrail_agent_wait(transfer, 60000, &done), "wait");
        if (!done) return 5;
    }
    symrail_agent_region region = {sizeof region, (uintptr_t)source, sizeof source, SYMRAIL_AGENT_HOST, 0};
    symrail_agent_memory again;
    must(symrail_agent_register_region(left, &region, &again), "register a region");
    must(symrail_agent_deregister_within(left, again, 0), "deregister at once");
    if ((symrail_agent_memory_kinds() & 1 << SYMRAIL_AGENT_HOST) == 0) return 7;
    /* Host memory is no GPU's, whether there is a GPU or not. */
    region.kind = SYMRAIL_AGENT_CUDA;
    refused(symrail_agent_register_region(left, &region, &again), SYMRAIL_AGENT_EINVAL, "memory of no GPU");
    region.kind = 2;
    refused(symrail_agent_register_region(left, &region, &again), SYMRAIL_AGENT_EINVAL, "another kind");
    region.size = 8;
    refused(symrail_agent_register_region(left, &region, &again), SYMRAIL_AGENT_EINVAL, "a region of another size");
    refused(symrail_agent_notify(left, "nobody", "", 0), SYMRAIL_AGENT_EUNKNOWN, "an unknown agent");
    refused(symrail_agent_open(SYMRAIL_AGENT_ABI + 1, &old, &left), SYMRAIL_AGENT_EINVAL, "another version");
    refused(symrail_agent_open(SYMRAIL_AGENT_ABI, &old, &left), SYMRAIL_AGENT_EINVAL, "options of another size");
    refused(symrail_agent_post(transfer + 1, NULL, 0), SYMRAIL_AGENT_EINVAL, "a number that names nothing");
    refused(symrail_agent_close(transfer), SYMRAIL_AGENT_EINVAL, "a transfer as an agent");
    must(symrail_agent_close(right), "close");
    for (int tries = 0, code = 0; code != SYMRAIL_AGENT_ELOST; tries++) {
        code = symrail_agent_post(transfer, NULL, 0);
        if (code == SYMRAIL_AGENT_OK) code = symrail_agent_wait(transfer, 60000, &done);
        if (tries == 100000) return 6;
    }
    must(symrail_agent_release(transfer), "release");
    refused(symrail_agent_release(transfer), SYMRAIL_AGENT_EINVAL, "released twice");
    must(symrail_agent_deregister(left, mine), "deregister");
    refused(symrail_agent_deregister(left, mine), SYMRAIL_AGENT_EINVAL, "deregistered twice");
    must(symrail_agent_close(left), "close");
    refused(symrail_agent_notify(left, "right", "", 0), SYMRAIL_AGENT_EINVAL, "a closed agent");
    puts("verified every function");
    return 0;
}
