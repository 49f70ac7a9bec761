/* setenv is of POSIX. */
#define _POSIX_C_SOURCE 200809L

/* Handles of several communicators at once, each a part of the job or in another order, by Fortran's number, too;
 * measurements with options of their own. */
#include "common.h"

static void transposes(cudecompHandle_t handle, MPI_Comm comm, cudecompGridDescAutotuneOptions_t *options) {
  cudecompGridDesc_t desc;
  cudecompGridDescConfig_t config, told;
  cudecompPencilInfo_t x, y;
  int rank, size;
  int32_t below;
  int64_t elements;
  void *work;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  CHECK(cudecompGridDescConfigSetDefaults(&config));
  config.gdims[0] = NX, config.gdims[1] = NY, config.gdims[2] = NZ;
  if (!options) config.pdims[0] = size, config.pdims[1] = 1;
  CHECK(cudecompGridDescCreate(handle, &desc, &config, options));
  EXPECT(config.pdims[0] * config.pdims[1] == size);
  CHECK(cudecompGetGridDescConfig(handle, desc, &told));
  EXPECT(memcmp(told.pdims, config.pdims, sizeof told.pdims) == 0);
  EXPECT(told.transpose_comm_backend == config.transpose_comm_backend);
  if (options) EXPECT(config.transpose_comm_backend == CUDECOMP_TRANSPOSE_COMM_NCCL && config.pdims[0] == 1);
  if (!options) {
    CHECK(cudecompGetShiftedRank(handle, desc, 0, 1, 1, true, &below));
    EXPECT(below == (rank + 1) % size);
  }
  CHECK(cudecompGetPencilInfo(handle, desc, &x, 0, NULL, NULL));
  CHECK(cudecompGetPencilInfo(handle, desc, &y, 1, NULL, NULL));
  CHECK(cudecompGetTransposeWorkspaceSize(handle, desc, &elements));
  CHECK(cudecompMalloc(handle, desc, &work, elements * 8));
  double *in = calloc(x.size, 8), *out = calloc(y.size, 8);
  walk(&x, in, 1);
  CHECK(cudecompTransposeXToY(handle, desc, in, out, work, CUDECOMP_DOUBLE, NULL, NULL, NULL, NULL, NULL));
  walk(&y, out, 0);
  CHECK(cudecompFree(handle, desc, work));
  CHECK(cudecompGridDescDestroy(handle, desc));
  free(in), free(out);
}

int main(int argc, char **argv) {
  int rank, size;
  cudecompHandle_t world, half, turned;
  MPI_Comm of_half, of_turned;
  cudecompGridDescAutotuneOptions_t options;
  EXPECT(cudecompInit(&world, MPI_COMM_WORLD) == CUDECOMP_RESULT_INVALID_USAGE); /* MPI_Init comes first */
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  REFUSED(cudecompInit(NULL, MPI_COMM_WORLD));
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &of_half);
  MPI_Comm_split(MPI_COMM_WORLD, 0, size - rank, &of_turned);
  CHECK(cudecompInit(&world, MPI_COMM_WORLD));
  CHECK(cudecompInit_F(&half, MPI_Comm_c2f(of_half)));
  CHECK(cudecompInit(&turned, of_turned));
  CHECK(cudecompGridDescAutotuneOptionsSetDefaults(&options));
  options.autotune_transpose_backend = true;
  options.disable_mpi_backends = options.disable_nvshmem_backends = true;
  options.n_warmup_trials = 0, options.n_trials = 1;
  options.transpose_op_weights[1] = 0, options.transpose_use_inplace_buffers[2] = true;
  options.transpose_input_halo_extents[0][1] = options.transpose_output_padding[3][2] = 2;
  setenv("CUDECOMP_AUTOTUNE_TRANSPOSE_BACKENDS", "^NCCL_PL", 1);
  setenv("CUDECOMP_AUTOTUNE_P_ROW_RANGE", "1,1", 1);
  for (int round = 0; round < 2; round++) {
    transposes(world, MPI_COMM_WORLD, round ? &options : NULL);
    transposes(half, of_half, NULL);
    transposes(turned, of_turned, round ? &options : NULL);
  }
  cudecompGridDesc_t desc;
  cudecompGridDescConfig_t config;
  CHECK(cudecompGridDescConfigSetDefaults(&config));
  config.gdims[0] = config.gdims[1] = config.gdims[2] = 8;
  setenv("CUDECOMP_AUTOTUNE_TRANSPOSE_BACKENDS", "NCCL,,MPI_A2A", 1);
  REFUSED(cudecompGridDescCreate(world, &desc, &config, &options));
  setenv("CUDECOMP_AUTOTUNE_TRANSPOSE_BACKENDS", "MPI_A2A", 1); /* which the options exclude */
  REFUSED(cudecompGridDescCreate(world, &desc, &config, &options));
  config.pdims[0] = size, config.pdims[1] = 1;
  options.autotune_transpose_backend = false; /* variables are for measurements only */
  CHECK(cudecompGridDescCreate(world, &desc, &config, &options));
  REFUSED(cudecompGridDescDestroy(turned, desc)); /* it is another handle's */
  CHECK(cudecompFinalize(world));
  CHECK(cudecompFinalize(half));
  CHECK(cudecompFinalize(turned));
  MPI_Comm_free(&of_half);
  MPI_Comm_free(&of_turned);
  MPI_Finalize();
  if (rank == 0) puts("verified on three communicators");
  return 0;
}
