/* Calls that are refused, on one rank or on all, and right ones between them: each error is that of its call, on all
 * ranks that need it, and the next right call works. Descriptors are made, used and destroyed in a random order. */
#include "common.h"

#define X_TO_Y(in, out, work, type, halo)                                                                              \
  cudecompTransposeXToY(handle, desc, in, out, work, type, halo, NULL, NULL, NULL, NULL)

static cudecompHandle_t handle;
static int32_t rank, size;
static unsigned seed = 7;

/* The same numbers on all ranks. */
static unsigned drawn(unsigned below) {
  seed = seed * 1103515245u + 12345u;
  return (seed >> 16) % below;
}

static cudecompGridDescConfig_t configuration(void) {
  cudecompGridDescConfig_t config;
  CHECK(cudecompGridDescConfigSetDefaults(&config));
  config.gdims[0] = NX, config.gdims[1] = NY, config.gdims[2] = NZ;
  config.pdims[0] = size % 2 ? 1 : 2, config.pdims[1] = size / config.pdims[0];
  return config;
}

/* The four transposes of a descriptor, in place or not, and an update of halos. */
static void use(cudecompGridDesc_t desc, void *work, bool in_place) {
  const int32_t halo[2][3] = {{1, 0, 1}, {0, 2, 1}}, padding[2][3] = {{2, 1, 0}, {0, 1, 3}};
  const bool periods[3] = {true, false, true};
  cudecompPencilInfo_t info[3];
  int64_t most = 0;
  for (int axis = 0; axis < 3; axis++) {
    CHECK(cudecompGetPencilInfo(handle, desc, &info[axis], axis, halo[axis % 2], padding[axis % 2]));
    if (info[axis].size > most) most = info[axis].size;
  }
  double *data = calloc(most, sizeof *data), *other = in_place ? data : calloc(most, sizeof *data);
  walk(&info[0], data, 1);
  cudecompResult_t (*all[4])(cudecompHandle_t, cudecompGridDesc_t, void *, void *, void *, cudecompDataType_t,
                             const int32_t[], const int32_t[], const int32_t[], const int32_t[], cudaStream_t) = {
      cudecompTransposeXToY, cudecompTransposeYToZ, cudecompTransposeZToY, cudecompTransposeYToX};
  const int along[5] = {0, 1, 2, 1, 0};
  for (int step = 0; step < 4; step++) {
    int from = along[step], to = along[step + 1];
    CHECK(all[step](handle, desc, data, other, work, CUDECOMP_DOUBLE, halo[from % 2], halo[to % 2], padding[from % 2],
                    padding[to % 2], NULL));
    walk(&info[to], other, 0);
    double *swapped = data;
    data = other, other = swapped;
  }
  for (int dim = 0; dim < 3; dim++)
    CHECK(cudecompUpdateHalosX(handle, desc, data, work, CUDECOMP_DOUBLE, halo[0], periods, dim, padding[0], NULL));
  walk(&info[0], data, 0);
  if (data != other) free(other);
  free(data);
}

static int64_t work_bytes(cudecompGridDesc_t desc) {
  int64_t elements, of_halos;
  const int32_t halo[3] = {1, 0, 1};
  CHECK(cudecompGetTransposeWorkspaceSize(handle, desc, &elements));
  CHECK(cudecompGetHaloWorkspaceSize(handle, desc, 0, halo, &of_halos));
  return 8 * (elements > of_halos ? elements : of_halos);
}

/* Structures of other versions, wrong values, pointers that are NULL: on all ranks. */
static void on_all_ranks(void) {
  cudecompGridDescConfig_t config = configuration(), wrong;
  cudecompGridDescAutotuneOptions_t options;
  cudecompPencilInfo_t info;
  cudecompGridDesc_t desc = NULL;
  int64_t number;
  int32_t shifted, halo[3] = {1, 1, 1}, below[3] = {-1, 0, 0}, huge[3] = {INT32_MAX, 0, 0};
  void *work = NULL;
  CHECK(cudecompGridDescAutotuneOptionsSetDefaults(&options));
  REFUSED(cudecompGridDescConfigSetDefaults(NULL));
  REFUSED(cudecompGridDescConfigSetDefaultsVersioned(&wrong, sizeof wrong, 2));
  REFUSED(cudecompGridDescConfigSetDefaultsVersioned(&wrong, sizeof wrong - 1, 1));
  REFUSED(cudecompGridDescAutotuneOptionsSetDefaultsVersioned(&options, sizeof options + 8, 1));
  REFUSED(cudecompGridDescCreate(handle, NULL, &config, NULL));
  REFUSED(cudecompGridDescCreate(handle, &desc, NULL, NULL));
  REFUSED(cudecompGridDescCreate(NULL, &desc, &config, NULL));
  wrong = config, wrong.magic = 0;
  REFUSED(cudecompGridDescCreate(handle, &desc, &wrong, NULL));
  wrong = config, wrong.version = 2;
  REFUSED(cudecompGridDescCreate(handle, &desc, &wrong, NULL));
  wrong = config, wrong.struct_size--;
  REFUSED(cudecompGridDescCreate(handle, &desc, &wrong, NULL));
  wrong = config, wrong.halo_comm_backend = (cudecompHaloCommBackend_t)999;
  REFUSED(cudecompGridDescCreate(handle, &desc, &wrong, NULL));
  wrong = config, wrong.transpose_mem_order[0][0] = 0;
  REFUSED(cudecompGridDescCreate(handle, &desc, &wrong, NULL));
  options.grid_mode = (cudecompAutotuneGridMode_t)999;
  REFUSED(cudecompGridDescCreate(handle, &desc, &config, &options));
  EXPECT(desc == NULL);

  CHECK(cudecompGridDescCreate(handle, &desc, &config, NULL));
  EXPECT(config.rank_order == CUDECOMP_RANK_ORDER_ROW_MAJOR && config.gdims_dist[0] == 0);
  EXPECT(config.transpose_comm_backend == CUDECOMP_TRANSPOSE_COMM_MPI_P2P && config.transpose_mem_order[2][1] == -1);
  REFUSED(cudecompGetPencilInfo(handle, desc, NULL, 0, NULL, NULL));
  REFUSED(cudecompGetPencilInfo(handle, desc, &info, -1, NULL, NULL));
  REFUSED(cudecompGetPencilInfo(handle, desc, &info, 0, below, NULL));
  REFUSED(cudecompGetPencilInfo(handle, desc, &info, 0, huge, NULL));
  REFUSED(cudecompGetPencilInfo(handle, desc, &info, 0, NULL, huge));
  REFUSED(cudecompGetPencilInfoVersioned(handle, desc, &info, sizeof info, 2, 0, NULL, NULL));
  REFUSED(cudecompGetGridDescConfigVersioned(handle, desc, &wrong, sizeof wrong - 1, 1));
  REFUSED(cudecompGetTransposeWorkspaceSize(handle, NULL, &number));
  REFUSED(cudecompGetTransposeWorkspaceSize(handle, desc, NULL));
  REFUSED(cudecompGetHaloWorkspaceSize(handle, desc, 0, NULL, &number));
  REFUSED(cudecompGetHaloWorkspaceSize(handle, desc, 3, halo, &number));
  REFUSED(cudecompGetDataTypeSize((cudecompDataType_t)999, &number));
  REFUSED(cudecompGetShiftedRank(handle, desc, 0, 3, 1, false, &shifted));
  REFUSED(cudecompMalloc(handle, desc, NULL, 16));
  REFUSED(cudecompMalloc(handle, desc, &work, 0));
  REFUSED(cudecompFree(handle, desc, &number));
  CHECK(cudecompFree(handle, desc, NULL));
  REFUSED(X_TO_Y(&work, &work, NULL, CUDECOMP_FLOAT, NULL));
  REFUSED(X_TO_Y(NULL, &work, &work, CUDECOMP_FLOAT, NULL));
  REFUSED(X_TO_Y(&work, &work, &work, (cudecompDataType_t)999, NULL));
  REFUSED(cudecompUpdateHalosX(handle, desc, &work, &work, CUDECOMP_FLOAT, NULL, NULL, 0, NULL, NULL));
  REFUSED(cudecompUpdateHalosX(handle, desc, &work, &work, CUDECOMP_FLOAT, halo, NULL, 3, NULL, NULL));

  /* A handle and a descriptor are not each other, and none any more after their end. */
  REFUSED(cudecompFinalize((cudecompHandle_t)(void *)desc));
  REFUSED(cudecompGridDescDestroy(handle, (cudecompGridDesc_t)(void *)handle));
  CHECK(cudecompGridDescDestroy(handle, desc));
  REFUSED(cudecompGridDescDestroy(handle, desc));
  REFUSED(X_TO_Y(&work, &work, &work, CUDECOMP_FLOAT, NULL));
  REFUSED(cudecompGetPencilInfo(handle, desc, &info, 0, NULL, NULL));

  config = configuration();
  config.gdims[0] = config.gdims[1] = config.gdims[2] = INT32_MAX;
  CHECK(cudecompGridDescCreate(handle, &desc, &config, NULL));
  REFUSED(cudecompGetPencilInfo(handle, desc, &info, 0, NULL, NULL));
  REFUSED(cudecompGetTransposeWorkspaceSize(handle, desc, &number));
  CHECK(cudecompGridDescDestroy(handle, desc));
  if (size < 2) return;
  config = configuration();
  config.gdims_dist[0] = NX, config.gdims_dist[1] = 1, config.gdims_dist[2] = NZ;
  CHECK(cudecompGridDescCreate(handle, &desc, &config, NULL));
  CHECK(cudecompGetPencilInfo(handle, desc, &info, 0, NULL, NULL));
  EXPECT(X_TO_Y(&work, &work, &work, CUDECOMP_FLOAT, NULL) ==
         CUDECOMP_RESULT_NOT_SUPPORTED);
  CHECK(cudecompGridDescDestroy(handle, desc));
}

/* One rank is wrong: all get the error of that call, and the next call is right. */
static void on_one_rank(void) {
  cudecompGridDescConfig_t config = configuration();
  cudecompGridDesc_t desc, other;
  void *work, *small, *wrong;
  CHECK(cudecompGridDescCreate(handle, &desc, &config, NULL));
  CHECK(cudecompMalloc(handle, desc, &work, work_bytes(desc)));
  CHECK(cudecompMalloc(handle, desc, &small, 256));
  cudecompPencilInfo_t x, y;
  CHECK(cudecompGetPencilInfo(handle, desc, &x, 0, NULL, NULL));
  CHECK(cudecompGetPencilInfo(handle, desc, &y, 1, NULL, NULL));
  double *in = calloc(x.size, 8), *out = calloc(y.size, 8);
  const int32_t below[3] = {-1, 0, 0};
  walk(&x, in, 1);
  for (int i = 0, times = repetitions("SYMRAIL_TEST_REFUSALS", 30); i < times; i++) {
    bool it = rank == (int)drawn(size);
    switch (drawn(10)) {
    case 0: REFUSED(X_TO_Y(in, out, it ? in : work, CUDECOMP_DOUBLE, 0)); break;
    case 1: REFUSED(X_TO_Y(in, out, it ? small : work, CUDECOMP_DOUBLE, 0)); break;
    case 2: REFUSED(X_TO_Y(it ? NULL : in, out, work, CUDECOMP_DOUBLE, 0)); break;
    case 3: REFUSED(X_TO_Y(in, out, work, CUDECOMP_DOUBLE, it ? below : 0)); break;
    case 4:
      if (size == 1) break;
      REFUSED(X_TO_Y(in, out, work, it ? CUDECOMP_FLOAT : CUDECOMP_DOUBLE, 0));
      break;
    case 5:
      if (size == 1) break;
      config = configuration();
      config.gdims[2] += it, other = NULL;
      REFUSED(cudecompGridDescCreate(handle, &other, &config, NULL));
      EXPECT(other == NULL);
      break;
    case 6:
      if (size == 1) break;
      config = configuration();
      config.transpose_comm_backend = it ? CUDECOMP_TRANSPOSE_COMM_NCCL : CUDECOMP_TRANSPOSE_COMM_MPI_A2A;
      REFUSED(cudecompGridDescCreate(handle, &other, &config, NULL));
      break;
    case 7: REFUSED(cudecompMalloc(handle, desc, it ? NULL : &wrong, 64)); break;
    case 8:
      if (size == 1) break;
      REFUSED(it ? cudecompFree(handle, desc, small) : cudecompGridDescDestroy(handle, desc)); /* not the same call */
      break;
    case 9: /* a first call of this operation, behind others */
      REFUSED(cudecompUpdateHalosX(handle, desc, in, work, it ? (cudecompDataType_t)999 : CUDECOMP_DOUBLE,
                                   (int32_t[]){1, 0, 0}, NULL, 0, NULL, NULL));
      break;
    }
    memset(out, 0, y.size * 8);
    CHECK(X_TO_Y(in, out, work, CUDECOMP_DOUBLE, NULL));
    walk(&y, out, 0);
  }
  /* Memory is the handle's: another descriptor uses it when the one that it was made with is gone, from any place. */
  config = configuration();
  CHECK(cudecompGridDescCreate(handle, &other, &config, NULL));
  CHECK(cudecompMalloc(handle, desc, &wrong, work_bytes(desc) + 256));
  CHECK(cudecompGridDescDestroy(handle, desc));
  use(other, work, false);
  use(other, (char *)wrong + 256, true);
  CHECK(cudecompFree(handle, other, work));
  CHECK(cudecompFree(handle, other, small));
  REFUSED(cudecompFree(handle, other, small));
  CHECK(cudecompGridDescDestroy(handle, other)); /* `wrong` is left to cudecompFinalize */
  free(in), free(out);
}

static void in_random_order(void) {
  enum { AT_ONCE = 8 };
  cudecompGridDesc_t descs[AT_ONCE] = {NULL};
  cudecompGridDescConfig_t config = configuration();
  cudecompGridDesc_t first;
  void *work;
  CHECK(cudecompGridDescCreate(handle, &first, &config, NULL));
  CHECK(cudecompMalloc(handle, first, &work, work_bytes(first)));
  CHECK(cudecompGridDescDestroy(handle, first));
  for (int made = 0, times = repetitions("SYMRAIL_TEST_DESCRIPTORS", 24); made < times;) {
    cudecompGridDesc_t *desc = &descs[drawn(AT_ONCE)];
    if (!*desc) {
      config = configuration();
      config.transpose_comm_backend = 1 + drawn(8), config.halo_comm_backend = 1 + drawn(5);
      for (int axis = 0; axis < 3; axis++) config.transpose_axis_contiguous[axis] = drawn(2);
      config.rank_order = drawn(3);
      CHECK(cudecompGridDescCreate(handle, desc, &config, NULL));
      made++;
    } else if (drawn(3)) {
      bool in_place = drawn(2);
      use(*desc, work, in_place);
      if (!drawn(2)) REFUSED(cudecompFree(handle, *desc, &made));
    } else {
      if (!drawn(2))
        REFUSED(cudecompUpdateHalosY(handle, *desc, &made, &made, CUDECOMP_FLOAT, (int32_t[]){1, 0, 0}, NULL, 0, 0, 0));
      CHECK(cudecompGridDescDestroy(handle, *desc));
      REFUSED(cudecompGridDescDestroy(handle, *desc));
      *desc = NULL;
    }
  }
  /* Half of what is left is destroyed, the other half is left to cudecompFinalize. */
  for (int i = 0; i < AT_ONCE; i += 2)
    if (descs[i]) CHECK(cudecompGridDescDestroy(handle, descs[i]));
}

int main(void) {
  CHECK(symrailDecompInit(&handle));
  CHECK(symrailDecompRank(handle, &rank, &size));
  on_all_ranks();
  on_one_rank();
  in_random_order();
  cudecompHandle_t ended = handle;
  CHECK(cudecompFinalize(handle));
  REFUSED(cudecompFinalize(ended));
  REFUSED(symrailDecompRank(ended, &rank, &size));
  if (rank == 0) puts("verified on all ranks");
  return 0;
}
