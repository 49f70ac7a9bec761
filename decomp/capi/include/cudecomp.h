/* Pencil transposes and halos, by the interface of cuDecomp 0.7. Link with -lcudecomp.
 *
 * Arrays are in a GPU's memory, and operations run in stream order, if all ranks have a GPU (for a job of
 * symrailDecompInit also SYMRAIL_HEAP_KIND=device). Otherwise arrays are in host memory, and the stream is NULL.
 * cudecompInit takes an MPI communicator if <mpi.h> is there; nothing of MPI is linked. Without MPI, symrailDecompInit
 * joins the job that `symrail run` or a launcher with PMIx has started.
 *
 * All functions are collective over all ranks of the handle, except queries of the geometry. If a rank passes something
 * wrong, the call returns an error on all ranks, and nothing is done; on GPUs an operation that has run before with the
 * same parameters returns it on that rank only, and the others' standard error has it. Handles and descriptors are
 * numbers behind the pointer types: one that does not exist any more is CUDECOMP_RESULT_INVALID_USAGE.
 * symrailDecompLastError() returns the message of the last error. */
#ifndef CUDECOMP_H
#define CUDECOMP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cudecomp_version.h"

#ifdef __has_include
#if __has_include(<cuda_runtime.h>)
#include <cuda_runtime.h>
#define CUDECOMP_HAS_CUDA
#endif
#if __has_include(<mpi.h>)
#include <mpi.h>
#endif
#endif

#define CUDECOMP_GRID_DESC_CONFIG_MAGIC INT32_C(0x434f4e46)
#define CUDECOMP_GRID_DESC_AUTOTUNE_OPTIONS_MAGIC INT32_C(0x4155544f)
#define CUDECOMP_PENCIL_INFO_MAGIC INT32_C(0x50494e46)

#ifdef __cplusplus
extern "C" {
#endif

/* Back ends of transposes. Each name stands for a mode of this library: staged data passes through the workspace,
 * direct data goes straight to the output where it can, pipelined blocks are unpacked as they arrive. */
typedef enum {
  CUDECOMP_TRANSPOSE_COMM_MPI_P2P = 1,    /* staged */
  CUDECOMP_TRANSPOSE_COMM_MPI_P2P_PL = 2, /* staged, pipelined */
  CUDECOMP_TRANSPOSE_COMM_MPI_A2A = 3,    /* staged */
  CUDECOMP_TRANSPOSE_COMM_NCCL = 4,       /* direct */
  CUDECOMP_TRANSPOSE_COMM_NCCL_PL = 5,    /* direct, pipelined */
  CUDECOMP_TRANSPOSE_COMM_NVSHMEM = 6,    /* direct, by copy engines */
  CUDECOMP_TRANSPOSE_COMM_NVSHMEM_PL = 7, /* direct, by copy engines, pipelined */
  CUDECOMP_TRANSPOSE_COMM_NVSHMEM_SM = 8  /* direct, by multiprocessors, pipelined */
} cudecompTransposeCommBackend_t;

typedef enum {
  CUDECOMP_HALO_COMM_MPI = 1,             /* staged, pipelined */
  CUDECOMP_HALO_COMM_MPI_BLOCKING = 2,    /* staged */
  CUDECOMP_HALO_COMM_NCCL = 3,            /* direct, pipelined */
  CUDECOMP_HALO_COMM_NVSHMEM = 4,         /* direct, by copy engines, pipelined */
  CUDECOMP_HALO_COMM_NVSHMEM_BLOCKING = 5 /* direct, by copy engines */
} cudecompHaloCommBackend_t;

typedef enum {
  CUDECOMP_FLOAT = -1,
  CUDECOMP_DOUBLE = -2,
  CUDECOMP_FLOAT_COMPLEX = -3,
  CUDECOMP_DOUBLE_COMPLEX = -4
} cudecompDataType_t;

typedef enum {
  CUDECOMP_AUTOTUNE_GRID_TRANSPOSE = 0,
  CUDECOMP_AUTOTUNE_GRID_HALO = 1
} cudecompAutotuneGridMode_t;

typedef enum {
  CUDECOMP_RANK_ORDER_DEFAULT = 0, /* row-major */
  CUDECOMP_RANK_ORDER_ROW_MAJOR = 1,
  CUDECOMP_RANK_ORDER_COL_MAJOR = 2
} cudecompRankOrder_t;

typedef enum {
  CUDECOMP_RESULT_SUCCESS = 0,
  CUDECOMP_RESULT_INVALID_USAGE = 1,
  CUDECOMP_RESULT_NOT_SUPPORTED = 2,
  CUDECOMP_RESULT_INTERNAL_ERROR = 3,
  CUDECOMP_RESULT_CUDA_ERROR = 4,
  CUDECOMP_RESULT_CUTENSOR_ERROR = 5,
  CUDECOMP_RESULT_MPI_ERROR = 6,
  CUDECOMP_RESULT_NCCL_ERROR = 7,
  CUDECOMP_RESULT_NVSHMEM_ERROR = 8, /* an error of the runtime: a peer is lost, memory is exhausted, ... */
  CUDECOMP_RESULT_NVML_ERROR = 9
} cudecompResult_t;

typedef struct cudecompHandle *cudecompHandle_t;
typedef struct cudecompGridDesc *cudecompGridDesc_t;
#ifndef CUDECOMP_HAS_CUDA
typedef struct CUstream_st *cudaStream_t;
#endif

/* cudecompGridDescConfigSetDefaults sets the defaults first, and the head of the structure. */
typedef struct {
  int64_t struct_size;
  int32_t magic;
  int32_t version;
  int32_t gdims[3];                                      /* elements along X, Y and Z */
  int32_t gdims_dist[3];                                 /* extents by which shares are made; 0: gdims */
  int32_t pdims[2];                                      /* process grid; 0 0: by autotuning */
  cudecompRankOrder_t rank_order;
  cudecompTransposeCommBackend_t transpose_comm_backend; /* default CUDECOMP_TRANSPOSE_COMM_MPI_P2P */
  bool transpose_axis_contiguous[3];                     /* pencils of each axis contiguous along it */
  int32_t transpose_mem_order[3][3];                     /* axes by memory order, fastest first, for pencils of each
                                                            axis; where set (not -1), in place of the flag */
  cudecompHaloCommBackend_t halo_comm_backend;           /* default CUDECOMP_HALO_COMM_MPI */
} cudecompGridDescConfig_t;

/* cudecompGridDescAutotuneOptionsSetDefaults sets the defaults first, and the head of the structure. Arrays of four are
 * of the transposes from X to Y, Y to Z, Z to Y and Y to X; arrays of three are along X, Y and Z. */
typedef struct {
  int64_t struct_size;
  int32_t magic;
  int32_t version;
  int32_t n_warmup_trials;              /* 3 */
  int32_t n_trials;                     /* 5 */
  cudecompAutotuneGridMode_t grid_mode; /* the operation that chooses the process grid, if pdims are 0 */
  cudecompDataType_t dtype;             /* CUDECOMP_DOUBLE */
  bool allow_uneven_decompositions;     /* true */
  bool disable_mpi_backends;
  bool disable_nccl_backends;
  bool disable_nvshmem_backends;
  double skip_threshold; /* a candidate ends after one trial if this share of its time is more than the best one's */
  bool autotune_transpose_backend;
  bool transpose_use_inplace_buffers[4];
  double transpose_op_weights[4]; /* factors of the transposes' times; one with 0 does not run */
  int32_t transpose_input_halo_extents[4][3];
  int32_t transpose_output_halo_extents[4][3];
  int32_t transpose_input_padding[4][3];
  int32_t transpose_output_padding[4][3];
  bool autotune_halo_backend;
  int32_t halo_extents[3];
  bool halo_periods[3];
  int32_t halo_axis; /* the pencils whose halos are measured: X, Y or Z */
  int32_t halo_padding[3];
} cudecompGridDescAutotuneOptions_t;

typedef struct {
  int64_t struct_size;
  int32_t magic;
  int32_t version;
  int32_t shape[3];        /* elements in memory order, with halo and padding */
  int32_t lo[3];           /* first own element, in memory order */
  int32_t hi[3];           /* last own element, in memory order */
  int32_t order[3];        /* axes in memory order, fastest first */
  int32_t halo_extents[3]; /* along X, Y and Z */
  int32_t padding[3];      /* along X, Y and Z */
  int64_t size;            /* elements in memory */
} cudecompPencilInfo_t;

/* Joins the job that a launcher has started. Without one, the process is the only rank. */
cudecompResult_t symrailDecompInit(cudecompHandle_t *handle);
/* Makes an id of 64 bytes on one rank. All ranks pass it to symrailDecompJoin with their own rank. */
cudecompResult_t symrailDecompUniqueId(unsigned char id[64]);
cudecompResult_t symrailDecompJoin(cudecompHandle_t *handle, const unsigned char id[64], int32_t rank, int32_t size);
/* This rank, and the number of ranks. */
cudecompResult_t symrailDecompRank(cudecompHandle_t handle, int32_t *rank, int32_t *size);
/* What a descriptor's transposes, or its updates of halos, have done. Blocks are those with other ranks. */
typedef struct {
  uint64_t rounds;    /* on GPUs those that were enqueued or captured */
  uint64_t copied;    /* blocks that the CPU, or multiprocessors, copied to a mapped peer */
  uint64_t fetched;   /* blocks that copy engines fetched from a mapped peer */
  uint64_t put;       /* blocks that were put over rails */
  uint64_t direct;    /* blocks that arrived in the output */
  uint64_t staged;    /* blocks that arrived in the workspace, and were unpacked from there */
  uint64_t pipelined; /* those of the staged blocks that did not wait for others */
} symrailDecompCounters_t;
/* Returns the counters of this rank, of transposes or of halos. Not collective. */
cudecompResult_t symrailDecompGetCounters(cudecompHandle_t handle, cudecompGridDesc_t grid_desc, bool halos,
                                          symrailDecompCounters_t *counters);
/* Writes what the back ends of a descriptor do, and their counters, as text of at most `bytes` bytes with its end. Not
 * collective. */
cudecompResult_t symrailDecompExplain(cudecompHandle_t handle, cudecompGridDesc_t grid_desc, char *text, size_t bytes);
/* The message of the last failure in this thread. */
const char *symrailDecompLastError(void);
cudecompResult_t cudecompFinalize(cudecompHandle_t handle);

#ifdef MPI_VERSION
cudecompResult_t cudecompInit(cudecompHandle_t *handle, MPI_Comm mpi_comm);
cudecompResult_t cudecompInit_F(cudecompHandle_t *handle, MPI_Fint mpi_comm_f);
#endif

/* Functions named ...Versioned take the size and the version of the structures with which a program was compiled. */
cudecompResult_t cudecompGridDescConfigSetDefaultsVersioned(cudecompGridDescConfig_t *config, int64_t struct_size,
                                                            int32_t version);
cudecompResult_t cudecompGridDescAutotuneOptionsSetDefaultsVersioned(cudecompGridDescAutotuneOptions_t *options,
                                                                     int64_t struct_size, int32_t version);
cudecompResult_t cudecompGridDescCreateVersioned(cudecompHandle_t handle, cudecompGridDesc_t *grid_desc,
                                                 cudecompGridDescConfig_t *config, int64_t config_struct_size,
                                                 int32_t config_version,
                                                 const cudecompGridDescAutotuneOptions_t *options,
                                                 int64_t options_struct_size, int32_t options_version);
cudecompResult_t cudecompGetGridDescConfigVersioned(cudecompHandle_t handle, cudecompGridDesc_t grid_desc,
                                                    cudecompGridDescConfig_t *config, int64_t struct_size,
                                                    int32_t version);
cudecompResult_t cudecompGetPencilInfoVersioned(cudecompHandle_t handle, cudecompGridDesc_t grid_desc,
                                                cudecompPencilInfo_t *pencil_info, int64_t pencil_info_struct_size,
                                                int32_t pencil_info_version, int32_t axis,
                                                const int32_t halo_extents[], const int32_t padding[]);

static inline cudecompResult_t cudecompGridDescConfigSetDefaults(cudecompGridDescConfig_t *config) {
  return cudecompGridDescConfigSetDefaultsVersioned(config, (int64_t)sizeof *config, CUDECOMP_GRID_DESC_CONFIG_VERSION);
}

static inline cudecompResult_t cudecompGridDescAutotuneOptionsSetDefaults(cudecompGridDescAutotuneOptions_t *options) {
  return cudecompGridDescAutotuneOptionsSetDefaultsVersioned(options, (int64_t)sizeof *options,
                                                             CUDECOMP_GRID_DESC_AUTOTUNE_OPTIONS_VERSION);
}

/* `options` may be NULL. Afterwards the configuration holds the choices. */
static inline cudecompResult_t cudecompGridDescCreate(cudecompHandle_t handle, cudecompGridDesc_t *grid_desc,
                                                      cudecompGridDescConfig_t *config,
                                                      const cudecompGridDescAutotuneOptions_t *options) {
  int64_t options_size = options ? (int64_t)sizeof *options : 0;
  int32_t options_version = options ? CUDECOMP_GRID_DESC_AUTOTUNE_OPTIONS_VERSION : 0;
  return cudecompGridDescCreateVersioned(handle, grid_desc, config, (int64_t)sizeof *config,
                                         CUDECOMP_GRID_DESC_CONFIG_VERSION, options, options_size, options_version);
}

cudecompResult_t cudecompGridDescDestroy(cudecompHandle_t handle, cudecompGridDesc_t grid_desc);

static inline cudecompResult_t cudecompGetGridDescConfig(cudecompHandle_t handle, cudecompGridDesc_t grid_desc,
                                                         cudecompGridDescConfig_t *config) {
  return cudecompGetGridDescConfigVersioned(handle, grid_desc, config, (int64_t)sizeof *config,
                                            CUDECOMP_GRID_DESC_CONFIG_VERSION);
}

/* Halo extents and padding, along X, Y and Z, may be NULL where nothing else is said: there are none then. */
static inline cudecompResult_t cudecompGetPencilInfo(cudecompHandle_t handle, cudecompGridDesc_t grid_desc,
                                                     cudecompPencilInfo_t *pencil_info, int32_t axis,
                                                     const int32_t halo_extents[], const int32_t padding[]) {
  return cudecompGetPencilInfoVersioned(handle, grid_desc, pencil_info, (int64_t)sizeof *pencil_info,
                                        CUDECOMP_PENCIL_INFO_VERSION, axis, halo_extents, padding);
}

/* Elements of a workspace with which all ranks can run all transposes of the descriptor, of every type, with every halo
 * and padding, in place or not. It is the same number on all ranks. */
cudecompResult_t cudecompGetTransposeWorkspaceSize(cudecompHandle_t handle, cudecompGridDesc_t grid_desc,
                                                   int64_t *workspace_size);
/* The same for updates of halos; halo_extents are not NULL. */
cudecompResult_t cudecompGetHaloWorkspaceSize(cudecompHandle_t handle, cudecompGridDesc_t grid_desc, int32_t axis,
                                              const int32_t halo_extents[], int64_t *workspace_size);
cudecompResult_t cudecompGetDataTypeSize(cudecompDataType_t dtype, int64_t *dtype_size);
/* Memory for workspaces belongs to the handle: every descriptor of it may use and free it, at any time. */
cudecompResult_t cudecompMalloc(cudecompHandle_t handle, cudecompGridDesc_t grid_desc, void **buffer,
                                size_t buffer_size_bytes);
cudecompResult_t cudecompFree(cudecompHandle_t handle, cudecompGridDesc_t grid_desc, void *buffer);
/* cuDecomp's names of the back ends; "ERROR" for a number that is none. */
const char *cudecompTransposeCommBackendToString(cudecompTransposeCommBackend_t comm_backend);
const char *cudecompHaloCommBackendToString(cudecompHaloCommBackend_t comm_backend);
cudecompResult_t cudecompGetShiftedRank(cudecompHandle_t handle, cudecompGridDesc_t grid_desc, int32_t axis,
                                        int32_t dim, int32_t displacement, bool periodic, int32_t *shifted_rank);

/* cudecompMalloc allocates `work`. Input and output may be one buffer. If a rank has no elements in some pencil,
 * operations return CUDECOMP_RESULT_NOT_SUPPORTED, as cuDecomp's do. */
#define CUDECOMP_TRANSPOSE(name)                                                                                       \
  cudecompResult_t cudecompTranspose##name(                                                                            \
      cudecompHandle_t handle, cudecompGridDesc_t grid_desc, void *input, void *output, void *work,                    \
      cudecompDataType_t dtype, const int32_t input_halo_extents[], const int32_t output_halo_extents[],               \
      const int32_t input_padding[], const int32_t output_padding[], cudaStream_t stream)
CUDECOMP_TRANSPOSE(XToY);
CUDECOMP_TRANSPOSE(YToZ);
CUDECOMP_TRANSPOSE(ZToY);
CUDECOMP_TRANSPOSE(YToX);
#undef CUDECOMP_TRANSPOSE

#define CUDECOMP_UPDATE_HALOS(axis)                                                                                    \
  cudecompResult_t cudecompUpdateHalos##axis(cudecompHandle_t handle, cudecompGridDesc_t grid_desc, void *input,       \
                                             void *work, cudecompDataType_t dtype, const int32_t halo_extents[],       \
                                             const bool halo_periods[], int32_t dim, const int32_t padding[],          \
                                             cudaStream_t stream)
CUDECOMP_UPDATE_HALOS(X);
CUDECOMP_UPDATE_HALOS(Y);
CUDECOMP_UPDATE_HALOS(Z);
#undef CUDECOMP_UPDATE_HALOS

#ifdef __cplusplus
}
#endif

#endif
