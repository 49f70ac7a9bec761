/* What the programs in C have in common: checks, and arrays whose elements hold their indexes. */
#ifdef WITH_MPI
#include <mpi.h>
#endif
#include <cudecomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(call)                                                                                                    \
  do {                                                                                                                 \
    cudecompResult_t result = (call);                                                                                  \
    if (result) fail(__LINE__, #call, result);                                                                         \
  } while (0)
#define EXPECT(condition)                                                                                              \
  do {                                                                                                                 \
    if (!(condition)) fail(__LINE__, #condition, 0);                                                                   \
  } while (0)
/* The call is refused. */
#define REFUSED(call) EXPECT((call) == CUDECOMP_RESULT_INVALID_USAGE)

enum { NX = 12, NY = 9, NZ = 10 };

static void fail(int line, const char *what, int result) {
  fprintf(stderr, "line %d: %s: %d: %s\n", line, what, result, symrailDecompLastError());
  exit(1);
}

/* Walks over a pencil's own elements: sets them, or compares. */
static void walk(const cudecompPencilInfo_t *info, double *data, int fill) {
  int halo[3], at[3];
  for (int i = 0; i < 3; i++) halo[i] = info->halo_extents[info->order[i]];
  for (int k = 0; k <= info->hi[2] - info->lo[2]; k++)
    for (int j = 0; j <= info->hi[1] - info->lo[1]; j++)
      for (int i = 0; i <= info->hi[0] - info->lo[0]; i++) {
        at[info->order[0]] = info->lo[0] + i;
        at[info->order[1]] = info->lo[1] + j;
        at[info->order[2]] = info->lo[2] + k;
        size_t place = ((size_t)(k + halo[2]) * info->shape[1] + j + halo[1]) * info->shape[0] + i + halo[0];
        double number = 1.0 + at[0] + NX * (at[1] + NY * (double)at[2]);
        if (fill)
          data[place] = number;
        else
          EXPECT(data[place] == number);
      }
}

/* A number of repetitions, which a variable may raise. */
static inline int repetitions(const char *variable, int otherwise) {
  const char *text = getenv(variable);
  return text ? atoi(text) : otherwise;
}
