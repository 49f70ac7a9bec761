/* Each back end does what its name says: counters tell how the blocks of its transposes and halos moved. */
#include "common.h"

static cudecompHandle_t handle;
static int32_t rank, size;

/* The four transposes and a halo with these back ends, on arrays of cudecompMalloc; the counters of each. */
static void moved(cudecompTransposeCommBackend_t of_transposes, cudecompHaloCommBackend_t of_halos,
                  symrailDecompCounters_t counters[2]) {
  cudecompGridDescConfig_t config;
  cudecompGridDesc_t desc;
  cudecompPencilInfo_t info[3];
  const int32_t halo[3] = {1, 0, 1};
  const bool periods[3] = {true, true, true};
  int64_t most = 0, elements, for_halos;
  double *data[2];
  void *work;
  CHECK(cudecompGridDescConfigSetDefaults(&config));
  config.gdims[0] = NX, config.gdims[1] = NY, config.gdims[2] = NZ;
  config.pdims[0] = 1, config.pdims[1] = size;
  config.transpose_comm_backend = of_transposes, config.halo_comm_backend = of_halos;
  CHECK(cudecompGridDescCreate(handle, &desc, &config, NULL));
  for (int axis = 0; axis < 3; axis++) {
    CHECK(cudecompGetPencilInfo(handle, desc, &info[axis], axis, halo, NULL));
    if (info[axis].size > most) most = info[axis].size;
  }
  CHECK(cudecompGetTransposeWorkspaceSize(handle, desc, &elements));
  CHECK(cudecompGetHaloWorkspaceSize(handle, desc, 0, halo, &for_halos));
  CHECK(cudecompMalloc(handle, desc, &work, 8 * (elements > for_halos ? elements : for_halos)));
  for (int i = 0; i < 2; i++) CHECK(cudecompMalloc(handle, desc, (void **)&data[i], 8 * most));
  if (!getenv("SYMRAIL_TEST_DEVICE")) walk(&info[0], data[0], 1);
  cudecompResult_t (*all[4])(cudecompHandle_t, cudecompGridDesc_t, void *, void *, void *, cudecompDataType_t,
                             const int32_t[], const int32_t[], const int32_t[], const int32_t[], cudaStream_t) = {
      cudecompTransposeXToY, cudecompTransposeYToZ, cudecompTransposeZToY, cudecompTransposeYToX};
  for (int step = 0; step < 4; step++)
    CHECK(all[step](handle, desc, data[step % 2], data[1 - step % 2], work, CUDECOMP_DOUBLE, halo, halo, NULL, NULL,
                    NULL));
  CHECK(cudecompUpdateHalosX(handle, desc, data[0], work, CUDECOMP_DOUBLE, halo, periods, 2, NULL, NULL));
  if (!getenv("SYMRAIL_TEST_DEVICE")) walk(&info[0], data[0], 0);
  for (int i = 0; i < 2; i++) CHECK(symrailDecompGetCounters(handle, desc, i, &counters[i]));
  REFUSED(symrailDecompGetCounters(handle, desc, false, NULL));
  REFUSED(symrailDecompExplain(handle, desc, NULL, 9));
  char text[2048], cut[8];
  CHECK(symrailDecompExplain(handle, desc, text, sizeof text));
  CHECK(symrailDecompExplain(handle, desc, cut, sizeof cut));
  EXPECT(strstr(text, cudecompTransposeCommBackendToString(of_transposes)) == text + strlen("transposes: "));
  EXPECT(strstr(text, cudecompHaloCommBackendToString(of_halos)) && strlen(cut) == sizeof cut - 1);
  if (rank == 0) fputs(text, stdout);
  CHECK(cudecompFree(handle, desc, work));
  for (int i = 0; i < 2; i++) CHECK(cudecompFree(handle, desc, data[i]));
  CHECK(cudecompGridDescDestroy(handle, desc));
  REFUSED(symrailDecompGetCounters(handle, desc, false, &counters[0]));
}

/* Blocks of `rounds` rounds with `peers` others each. On GPUs blocks as small as these are not pipelined. */
static void expect(const symrailDecompCounters_t *is, uint64_t rounds, uint64_t blocks, bool staged, bool pipelined,
                   bool engines) {
  bool on_gpu = getenv("SYMRAIL_TEST_DEVICE") != NULL;
  EXPECT(is->rounds == rounds && is->direct + is->staged == blocks);
  EXPECT(is->copied + is->put + (on_gpu && engines ? is->fetched : 0) == blocks);
  EXPECT(is->fetched == (on_gpu && engines ? blocks : 0));
  if (staged) EXPECT(is->direct == 0);
  EXPECT(is->pipelined == (pipelined && !on_gpu ? is->staged : 0));
}

int main(void) {
  symrailDecompCounters_t counters[2];
  CHECK(symrailDecompInit(&handle));
  CHECK(symrailDecompRank(handle, &rank, &size));
  /* By number: staged, pipelined, by copy engines on GPUs. */
  const bool transposes[8][3] = {{1, 0, 0}, {1, 1, 0}, {1, 0, 0}, {0, 0, 0}, {0, 1, 0}, {0, 0, 1}, {0, 1, 1}, {0, 1, 0}};
  const bool halos[5][3] = {{1, 1, 0}, {1, 0, 0}, {0, 1, 0}, {0, 1, 1}, {0, 0, 1}};
  for (int i = 0; i < 8; i++) {
    int h = i % 5;
    moved(i + 1, h + 1, counters);
    /* Y is whole in X and Y pencils, and so is X; all others have a block when Y becomes Z, and back. */
    expect(&counters[0], 4, 2 * (size - 1), transposes[i][0], transposes[i][1], transposes[i][2]);
    /* A periodic halo has two neighbours, which of two ranks are one. */
    expect(&counters[1], 1, size == 1 ? 0 : 2, halos[h][0], halos[h][1], halos[h][2]);
  }
  CHECK(cudecompFinalize(handle));
  if (rank == 0) puts("verified on all back ends");
  return 0;
}
