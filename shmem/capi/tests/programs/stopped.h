/* For programs of which one PE stops itself. */
#ifndef STOPPED_H
#define STOPPED_H

#include "check.h"

/* Whether a process is stopped, by its state letter in /proc. */
static int is_stopped(long pid)
{
    char path[64], name[64], state = 0;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    CHECK(fscanf(file, "%*d %63s %c", name, &state) == 2);
    fclose(file);
    return state == 'T';
}

#endif
