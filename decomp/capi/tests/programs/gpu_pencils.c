/* The four transposes and a halo on a GPU: every element comes back. It needs SYMRAIL_HEAP_KIND=device or pinned. */
#include <cudecomp.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(call)                                                                \
  do {                                                                             \
    cudecompResult_t result = (call);                                              \
    if (result != CUDECOMP_RESULT_SUCCESS) {                                       \
      fprintf(stderr, "%s: %d, %s\n", #call, result, symrailDecompLastError());    \
      exit(1);                                                                     \
    }                                                                              \
  } while (0)

typedef int (*to_device)(unsigned long long to, const void *from, size_t bytes);
typedef int (*from_device)(void *to, unsigned long long from, size_t bytes);

static double number(const cudecompPencilInfo_t *pencil, int64_t i) {
  int64_t at[3] = {0, 0, 0};
  for (int k = 0; k < 3; k++) {
    at[pencil->order[k]] = pencil->lo[k] + i % pencil->shape[k];
    i /= pencil->shape[k];
  }
  return (double)((at[2] * 100 + at[1]) * 100 + at[0]) + 1;
}

int main(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!driver) return puts("SKIPPED: no CUDA driver"), 0;
  to_device put = (to_device)dlsym(driver, "cuMemcpyHtoD_v2");
  from_device get = (from_device)dlsym(driver, "cuMemcpyDtoH_v2");
  int (*wait)(void) = (int (*)(void))dlsym(driver, "cuCtxSynchronize");
  cudecompHandle_t handle;
  cudecompGridDesc_t desc;
  cudecompGridDescConfig_t config;
  int32_t rank, size;
  CHECK(symrailDecompInit(&handle));
  CHECK(symrailDecompRank(handle, &rank, &size));
  CHECK(cudecompGridDescConfigSetDefaults(&config));
  config.gdims[0] = 24, config.gdims[1] = 20, config.gdims[2] = 17;
  config.pdims[0] = size, config.pdims[1] = 1;
  config.transpose_axis_contiguous[1] = config.transpose_axis_contiguous[2] = true;
  CHECK(cudecompGridDescCreate(handle, &desc, &config, NULL));
  cudecompPencilInfo_t pencils[3];
  int64_t most = 0, work_size;
  for (int axis = 0; axis < 3; axis++) {
    CHECK(cudecompGetPencilInfo(handle, desc, &pencils[axis], axis, NULL, NULL));
    if (pencils[axis].size > most) most = pencils[axis].size;
  }
  CHECK(cudecompGetTransposeWorkspaceSize(handle, desc, &work_size));
  void *arrays[2], *work;
  for (int i = 0; i < 2; i++) CHECK(cudecompMalloc(handle, desc, &arrays[i], most * sizeof(double)));
  CHECK(cudecompMalloc(handle, desc, &work, work_size * sizeof(double)));
  double *host = malloc(most * sizeof *host);
  for (int64_t i = 0; i < pencils[0].size; i++) host[i] = number(&pencils[0], i);
  if (put((unsigned long long)arrays[0], host, pencils[0].size * sizeof *host)) return fputs("no copy\n", stderr), 1;
  const int along[4] = {1, 2, 1, 0};
  for (int step = 0; step < 4; step++) {
    void *from = arrays[step % 2], *to = arrays[1 - step % 2];
    cudecompResult_t (*all[4])(cudecompHandle_t, cudecompGridDesc_t, void *, void *, void *, cudecompDataType_t,
                               const int32_t[], const int32_t[], const int32_t[], const int32_t[], cudaStream_t) = {
        cudecompTransposeXToY, cudecompTransposeYToZ, cudecompTransposeZToY, cudecompTransposeYToX};
    CHECK(all[step](handle, desc, from, to, work, CUDECOMP_DOUBLE, NULL, NULL, NULL, NULL, NULL));
    const cudecompPencilInfo_t *pencil = &pencils[along[step]];
    if (wait() || get(host, (unsigned long long)to, pencil->size * sizeof *host)) return fputs("no copy\n", stderr), 1;
    for (int64_t i = 0; i < pencil->size; i++) {
      if (host[i] != number(pencil, i)) return fprintf(stderr, "rank %d, step %d: element %ld\n", rank, step, (long)i), 1;
    }
  }
  /* There are plans of transposes, and none of halos: what is wrong on one rank is an error on all. */
  const int32_t halo[3] = {1, 0, 0};
  cudecompDataType_t type = rank == 0 ? (cudecompDataType_t)999 : CUDECOMP_DOUBLE;
  if (cudecompUpdateHalosX(handle, desc, arrays[0], work, type, halo, NULL, 0, NULL, NULL) !=
      CUDECOMP_RESULT_INVALID_USAGE) {
    return fprintf(stderr, "rank %d: a first halo of an unknown type was not refused\n", rank), 1;
  }
  CHECK(cudecompFree(handle, desc, work));
  for (int i = 0; i < 2; i++) CHECK(cudecompFree(handle, desc, arrays[i]));
  CHECK(cudecompGridDescDestroy(handle, desc));
  CHECK(cudecompFinalize(handle));
  if (rank == 0) puts("well");
  free(host);
  return 0;
}
