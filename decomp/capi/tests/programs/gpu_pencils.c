/* The four transposes and a halo on GPUs: every element comes back; what one rank does wrong ends no other rank's plan.
 * The heap is a GPU's, or of pinned memory if SYMRAIL_HEAP_KIND tells that. */
#define _POSIX_C_SOURCE 200809L
#include "common.h"

#include <dlfcn.h>

typedef int (*to_device)(unsigned long long to, const void *from, size_t bytes);
typedef int (*from_device)(void *to, unsigned long long from, size_t bytes);

int main(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  EXPECT(driver);
  to_device put = (to_device)dlsym(driver, "cuMemcpyHtoD_v2");
  from_device get = (from_device)dlsym(driver, "cuMemcpyDtoH_v2");
  int (*wait)(void) = (int (*)(void))dlsym(driver, "cuCtxSynchronize");
  /* As cudaSetDevice does it: a pinned heap makes no context current. */
  int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
  int (*count)(int *) = (int (*)(int *))dlsym(driver, "cuDeviceGetCount");
  int (*retain)(void **, int) = (int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain");
  int (*use)(void *) = (int (*)(void *))dlsym(driver, "cuCtxSetCurrent");
  const char *me = getenv("SYMRAIL_LAUNCHER_PE");
  void *context;
  int gpus;
  EXPECT(!init(0) && !count(&gpus) && gpus > 0 && !retain(&context, (me ? atoi(me) : 0) % gpus) && !use(context));
  setenv("SYMRAIL_HEAP_KIND", "device", 0);
  cudecompHandle_t handle;
  cudecompGridDesc_t desc, ended;
  cudecompGridDescConfig_t config;
  int32_t rank, size;
  CHECK(symrailDecompInit(&handle));
  CHECK(symrailDecompRank(handle, &rank, &size));
  CHECK(cudecompGridDescConfigSetDefaults(&config));
  config.gdims[0] = NX, config.gdims[1] = NY, config.gdims[2] = NZ;
  config.pdims[0] = size, config.pdims[1] = 1;
  config.transpose_axis_contiguous[1] = config.transpose_axis_contiguous[2] = true;
  CHECK(cudecompGridDescCreate(handle, &ended, &config, NULL));
  CHECK(cudecompGridDescDestroy(handle, ended));
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
  double *host = calloc(most, sizeof *host);
  walk(&pencils[0], host, 1);
  EXPECT(!put((unsigned long long)arrays[0], host, pencils[0].size * sizeof *host));
  const int along[4] = {1, 2, 1, 0};
  for (int step = 0; step < 4; step++) {
    void *from = arrays[step % 2], *to = arrays[1 - step % 2];
    cudecompResult_t (*all[4])(cudecompHandle_t, cudecompGridDesc_t, void *, void *, void *, cudecompDataType_t,
                               const int32_t[], const int32_t[], const int32_t[], const int32_t[], cudaStream_t) = {
        cudecompTransposeXToY, cudecompTransposeYToZ, cudecompTransposeZToY, cudecompTransposeYToX};
    CHECK(all[step](handle, desc, from, to, work, CUDECOMP_DOUBLE, NULL, NULL, NULL, NULL, NULL));
    const cudecompPencilInfo_t *pencil = &pencils[along[step]];
    EXPECT(!wait() && !get(host, (unsigned long long)to, pencil->size * sizeof *host));
    walk(pencil, host, 0);
  }
  /* There are plans of transposes, and none of halos: what is wrong on one rank is an error on all. */
  const int32_t halo[3] = {1, 0, 0}, below[3] = {-1, 0, 0};
  cudecompDataType_t unknown = (cudecompDataType_t)999, type = rank == 0 ? unknown : CUDECOMP_DOUBLE;
  REFUSED(cudecompUpdateHalosX(handle, desc, arrays[0], work, type, halo, NULL, 0, NULL, NULL));
  /* A plan of this transpose exists: only the wrong rank has an error, and the plan can be used again. */
  for (int what = 0; what < 4; what++) {
    bool wrong = rank == 0;
    cudecompResult_t result = cudecompTransposeXToY(
        handle, wrong && what == 0 ? ended : desc, arrays[0], arrays[1], wrong && what == 1 ? host : work,
        wrong && what == 2 ? unknown : CUDECOMP_DOUBLE, wrong && what == 3 ? below : NULL, NULL, NULL, NULL, NULL);
    EXPECT(result == (wrong ? CUDECOMP_RESULT_INVALID_USAGE : CUDECOMP_RESULT_SUCCESS));
    CHECK(cudecompTransposeXToY(handle, desc, arrays[0], arrays[1], work, CUDECOMP_DOUBLE, NULL, NULL, NULL, NULL, NULL));
    memset(host, 0, most * sizeof *host);
    EXPECT(!wait() && !get(host, (unsigned long long)arrays[1], pencils[1].size * sizeof *host));
    walk(&pencils[1], host, 0);
  }
  CHECK(cudecompFree(handle, desc, work));
  for (int i = 0; i < 2; i++) CHECK(cudecompFree(handle, desc, arrays[i]));
  CHECK(cudecompGridDescDestroy(handle, desc));
  CHECK(cudecompFinalize(handle));
  if (rank == 0) puts("verified on all ranks");
  free(host);
  return 0;
}
