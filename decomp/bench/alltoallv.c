/* The four transposes of decomp/examples/transposes.rs with MPI_Alltoallv: pack, exchange, unpack.
 *
 * mpicc -O3 -march=native alltoallv.c -o alltoallv && mpirun -n 4 ./alltoallv ROWS COLUMNS EDGE... */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ELEMENT = 16 };
static const double BUDGET = 0.4;

/* A pencil, X fastest: the first element of each dimension, and the end behind its last one. */
typedef struct {
  int from[3], to[3];
} box;

static int start(int all, int part, int parts) {
  int each = all / parts, more = all % parts;
  return part * each + (part < more ? part : more);
}

static box pencil(int edge, int axis, const int grid[2], const int place[2]) {
  box it;
  for (int dim = 0, split = 0; dim < 3; dim++) {
    it.from[dim] = 0, it.to[dim] = edge;
    if (dim == axis) continue;
    it.from[dim] = start(edge, place[split], grid[split]);
    it.to[dim] = start(edge, place[split] + 1, grid[split]);
    split++;
  }
  return it;
}

static box common(const box *a, const box *b) {
  box it;
  for (int dim = 0; dim < 3; dim++) {
    it.from[dim] = a->from[dim] > b->from[dim] ? a->from[dim] : b->from[dim];
    it.to[dim] = a->to[dim] < b->to[dim] ? a->to[dim] : b->to[dim];
  }
  return it;
}

/* Copies a part of a pencil to or from contiguous memory. Returns its bytes. */
static size_t move(char *data, const box *whole, const box *part, char *packed, int pack) {
  size_t nx = whole->to[0] - whole->from[0], ny = whole->to[1] - whole->from[1], bytes = 0;
  size_t row = (size_t)(part->to[0] - part->from[0]) * ELEMENT;
  for (int z = part->from[2]; z < part->to[2]; z++)
    for (int y = part->from[1]; y < part->to[1]; y++) {
      size_t place = ((z - whole->from[2]) * ny + y - whole->from[1]) * nx + part->from[0] - whole->from[0];
      if (pack)
        memcpy(packed + bytes, data + place * ELEMENT, row);
      else
        memcpy(data + place * ELEMENT, packed + bytes, row);
      bytes += row;
    }
  return bytes;
}

typedef struct {
  box from, to, sends[64], receives[64];
  int n, counts[2][64], starts[2][64];
  MPI_Comm comm;
} plan;

static void make(plan *it, int edge, int from, int to, const int grid[2], const int place[2], MPI_Comm comm, int split) {
  it->from = pencil(edge, from, grid, place), it->to = pencil(edge, to, grid, place);
  it->n = grid[split], it->comm = comm;
  int at[2] = {0, 0};
  for (int part = 0; part < it->n; part++) {
    int there[2] = {place[0], place[1]};
    there[split] = part;
    box their_from = pencil(edge, from, grid, there), their_to = pencil(edge, to, grid, there);
    it->sends[part] = common(&it->from, &their_to), it->receives[part] = common(&it->to, &their_from);
    const box *both[2] = {&it->sends[part], &it->receives[part]};
    for (int way = 0; way < 2; way++) {
      int bytes = ELEMENT;
      for (int dim = 0; dim < 3; dim++) bytes *= both[way]->to[dim] - both[way]->from[dim];
      it->counts[way][part] = bytes, it->starts[way][part] = at[way];
      at[way] += bytes;
    }
  }
}

static void run(plan *it, char *input, char *output, char *out, char *in) {
  for (int part = 0; part < it->n; part++) move(input, &it->from, &it->sends[part], out + it->starts[0][part], 1);
  MPI_Alltoallv(out, it->counts[0], it->starts[0], MPI_BYTE, in, it->counts[1], it->starts[1], MPI_BYTE, it->comm);
  for (int part = 0; part < it->n; part++) move(output, &it->to, &it->receives[part], in + it->starts[1][part], 0);
}

int main(int argc, char **argv) {
  int rank, size;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (argc < 4 || atoi(argv[1]) * atoi(argv[2]) != size || size > 64) return 2;
  int grid[2] = {atoi(argv[1]), atoi(argv[2])}, place[2] = {rank / grid[1], rank % grid[1]};
  MPI_Comm rows, columns;
  MPI_Comm_split(MPI_COMM_WORLD, place[1], place[0], &rows);
  MPI_Comm_split(MPI_COMM_WORLD, place[0], place[1], &columns);
  for (int i = 3; i < argc; i++) {
    int edge = atoi(argv[i]);
    size_t bytes = (size_t)(edge + 2) * (edge / grid[0] + 1) * (edge / grid[1] + 1) * ELEMENT * 2;
    char *data[4];
    for (int j = 0; j < 4; j++) data[j] = calloc(1, bytes);
    plan plans[4];
    make(&plans[0], edge, 0, 1, grid, place, rows, 0), make(&plans[1], edge, 1, 2, grid, place, columns, 1);
    make(&plans[2], edge, 2, 1, grid, place, columns, 1), make(&plans[3], edge, 1, 0, grid, place, rows, 0);
    double once = 0, mean = 0;
    for (long pass = 0, rounds = 3; pass < 3; pass++) {
      MPI_Barrier(MPI_COMM_WORLD);
      double began = MPI_Wtime();
      for (long round = 0; round < rounds; round++)
        for (int j = 0; j < 4; j++) run(&plans[j], data[0], data[1], data[2], data[3]);
      once = (MPI_Wtime() - began) / rounds;
      MPI_Allreduce(&once, &mean, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
      if (pass == 1) rounds = BUDGET / mean < 3 ? 3 : BUDGET / mean > 2000 ? 2000 : (long)(BUDGET / mean);
    }
    if (rank == 0) printf("edge %d: alltoallv %.1f\n", edge, mean * 1e6);
    for (int j = 0; j < 4; j++) free(data[j]);
  }
  MPI_Finalize();
  return 0;
}
