/* All transposes and halos of an array whose elements hold their indexes; a grid chosen by measuring; misuse. */
#include "common.h"

int main(int argc, char **argv) {
  cudecompHandle_t handle;
  cudecompGridDesc_t desc;
  cudecompGridDescConfig_t config;
  cudecompGridDescAutotuneOptions_t options;
  int32_t rank, size;
#ifdef WITH_MPI
  MPI_Init(&argc, &argv);
  CHECK(cudecompInit(&handle, MPI_COMM_WORLD));
#else
  (void)argc, (void)argv;
  CHECK(symrailDecompInit(&handle));
#endif
  CHECK(symrailDecompRank(handle, &rank, &size));

  memset(&config, 0xff, sizeof config);
  EXPECT(cudecompGridDescCreate(handle, &desc, &config, NULL) == CUDECOMP_RESULT_INVALID_USAGE);
  CHECK(cudecompGridDescConfigSetDefaults(&config));
  CHECK(cudecompGridDescAutotuneOptionsSetDefaults(&options));
  config.gdims[0] = NX, config.gdims[1] = NY, config.gdims[2] = NZ;
  for (int axis = 0; axis < 3; axis++) config.transpose_axis_contiguous[axis] = true;
  EXPECT(cudecompGridDescCreate(handle, &desc, &config, NULL) == CUDECOMP_RESULT_INVALID_USAGE); /* no grid */
  options.autotune_transpose_backend = true;
  options.n_trials = 2;
  CHECK(cudecompGridDescCreate(handle, &desc, &config, &options));
  EXPECT(config.pdims[0] * config.pdims[1] == size);

  int32_t halo[3] = {1, 0, 1}, padding[3] = {2, 1, 0};
  bool periods[3] = {true, true, true};
  cudecompPencilInfo_t x, y, z;
  CHECK(cudecompGetPencilInfo(handle, desc, &x, 0, NULL, NULL));
  CHECK(cudecompGetPencilInfo(handle, desc, &y, 1, halo, padding));
  CHECK(cudecompGetPencilInfo(handle, desc, &z, 2, NULL, padding));
  EXPECT(y.order[0] == 1 && y.shape[0] == NY + padding[1]);
  int64_t elements, of_halo, bytes;
  CHECK(cudecompGetTransposeWorkspaceSize(handle, desc, &elements));
  CHECK(cudecompGetHaloWorkspaceSize(handle, desc, 1, halo, &of_halo));
  CHECK(cudecompGetDataTypeSize(CUDECOMP_DOUBLE, &bytes));
  EXPECT(bytes == 8);
  void *work, *other;
  CHECK(cudecompMalloc(handle, desc, &work, (elements > of_halo ? elements : of_halo) * bytes));
  double *in_x = calloc(x.size, bytes), *in_y = calloc(y.size, bytes), *in_z = calloc(z.size, bytes);

  for (int round = 0; round < 3; round++) {
    walk(&x, in_x, 1);
    CHECK(cudecompTransposeXToY(handle, desc, in_x, in_y, work, CUDECOMP_DOUBLE, NULL, halo, NULL, padding, NULL));
    walk(&y, in_y, 0);
    for (int dim = 0; dim < 3; dim++)
      CHECK(cudecompUpdateHalosY(handle, desc, in_y, work, CUDECOMP_DOUBLE, halo, periods, dim, padding, NULL));
    /* The own elements stayed, and the first halo layer along X is the layer before them. */
    walk(&y, in_y, 0);
    int x_place = y.order[0] == 0 ? 0 : y.order[1] == 0 ? 1 : 2;
    EXPECT(x_place == 2 && y.order[1] == 2);
    size_t first = (size_t)halo[2] * y.shape[0]; /* in the layer at X 0 of memory, the first own Y and Z */
    int before = (y.lo[2] + NX - 1) % NX;
    EXPECT(in_y[first] == 1.0 + before + NX * (y.lo[0] + NY * (double)y.lo[1]));
    CHECK(cudecompTransposeYToZ(handle, desc, in_y, in_z, work, CUDECOMP_DOUBLE, halo, NULL, padding, padding, NULL));
    walk(&z, in_z, 0);
    memset(in_y, 0, y.size * bytes);
    CHECK(cudecompTransposeZToY(handle, desc, in_z, in_y, work, CUDECOMP_DOUBLE, NULL, halo, padding, padding, NULL));
    walk(&y, in_y, 0);
    memset(in_x, 0, x.size * bytes);
    CHECK(cudecompTransposeYToX(handle, desc, in_y, in_x, work, CUDECOMP_DOUBLE, halo, NULL, padding, NULL, NULL));
    walk(&x, in_x, 0);
  }

  /* If a rank passes a buffer that is no workspace, all ranks get an error, once. */
  if (size > 1) {
    other = rank == 0 ? (void *)in_x : work;
    cudecompResult_t result =
        cudecompTransposeXToY(handle, desc, in_x, in_y, other, CUDECOMP_DOUBLE, NULL, halo, NULL, padding, NULL);
    EXPECT(result == CUDECOMP_RESULT_INVALID_USAGE);
    EXPECT(strstr(symrailDecompLastError(), rank == 0 ? "cudecompMalloc" : "rank 0"));
    CHECK(cudecompTransposeXToY(handle, desc, in_x, in_y, work, CUDECOMP_DOUBLE, NULL, halo, NULL, padding, NULL));
    walk(&y, in_y, 0);
  }
  EXPECT(cudecompTransposeXToY(handle, desc, in_x, in_y, work, CUDECOMP_DOUBLE, NULL, NULL, NULL, NULL,
                               (cudaStream_t)(void *)in_x) == CUDECOMP_RESULT_NOT_SUPPORTED);
  EXPECT(cudecompFree(handle, desc, in_x) == CUDECOMP_RESULT_INVALID_USAGE);

  int32_t shifted;
  CHECK(cudecompGetShiftedRank(handle, desc, 0, 1, -1, false, &shifted));
  EXPECT(shifted >= -1 && shifted < size);
  CHECK(cudecompGetShiftedRank(handle, desc, 0, 0, 1, false, &shifted));
  EXPECT(shifted == -1);
  CHECK(cudecompFree(handle, desc, work));
  CHECK(cudecompGridDescDestroy(handle, desc));
  if (rank == 0)
    printf("verified on %d x %d: %s\n", config.pdims[0], config.pdims[1],
           cudecompTransposeCommBackendToString(config.transpose_comm_backend));

  /* Measurements of halos choose a process grid and a back end. */
  config.pdims[0] = config.pdims[1] = 0;
  config.transpose_comm_backend = CUDECOMP_TRANSPOSE_COMM_MPI_A2A;
  options.autotune_transpose_backend = false, options.autotune_halo_backend = true;
  options.grid_mode = CUDECOMP_AUTOTUNE_GRID_HALO;
  options.halo_axis = 1;
  for (int dim = 0; dim < 3; dim++) options.halo_extents[dim] = 2 * (dim != 1), options.halo_periods[dim] = true;
  CHECK(cudecompGridDescCreate(handle, &desc, &config, &options));
  EXPECT(config.pdims[0] * config.pdims[1] == size);
  EXPECT(NX / config.pdims[0] >= 2 && NZ / config.pdims[1] >= 2);
  EXPECT(config.transpose_comm_backend == CUDECOMP_TRANSPOSE_COMM_MPI_A2A);
  EXPECT(strcmp(cudecompHaloCommBackendToString(config.halo_comm_backend), "ERROR") != 0);
  CHECK(cudecompGridDescDestroy(handle, desc));
  options.halo_extents[0] = NX + 1, options.halo_extents[2] = NZ + 1;
  config.pdims[0] = config.pdims[1] = 0;
  if (size > 1) EXPECT(cudecompGridDescCreate(handle, &desc, &config, &options) == CUDECOMP_RESULT_NOT_SUPPORTED);
  CHECK(cudecompFinalize(handle));
#ifdef WITH_MPI
  MPI_Finalize();
#endif
  free(in_x), free(in_y), free(in_z);
  return 0;
}
