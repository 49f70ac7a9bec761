/* Pencil transposes and halos, with cuDecomp's names. Link with -lsymrail_decomp_c.
 *
 * If the symmetric heap is in a GPU's memory (SYMRAIL_HEAP_KIND=device) or pinned for one, arrays are the GPU's, and
 * rounds run in stream order. A later call then returns the errors that other ranks made in a round. Otherwise arrays
 * are in host memory, and the stream is NULL. Without MPI, `symrailDecompInit` joins the job that `symrail run` or a
 * launcher with PMIx has started. If <mpi.h> is included before this header, `cudecompInit` accepts a communicator.
 *
 * All functions are collective over all ranks, except queries of the geometry. If one rank passes an invalid argument,
 * all ranks that exchange blocks with it get an error. symrailDecompLastError() returns the message. */
#ifndef CUDECOMP_H
#define CUDECOMP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Back ends of transposes. Each name stands for one of four modes of this library, which
 * cudecompTransposeCommBackendToString returns. "Direct" data goes straight to the output where it can. */
typedef enum {
  CUDECOMP_TRANSPOSE_COMM_MPI_P2P = 1,    /* staged */
  CUDECOMP_TRANSPOSE_COMM_MPI_P2P_PL = 2, /* staged, pipelined */
  CUDECOMP_TRANSPOSE_COMM_MPI_A2A = 3,    /* staged */
  CUDECOMP_TRANSPOSE_COMM_NCCL = 4,       /* direct */
  CUDECOMP_TRANSPOSE_COMM_NCCL_PL = 5,    /* direct, pipelined */
  CUDECOMP_TRANSPOSE_COMM_NVSHMEM = 6,    /* direct */
  CUDECOMP_TRANSPOSE_COMM_NVSHMEM_PL = 7, /* direct, pipelined */
  CUDECOMP_TRANSPOSE_COMM_NVSHMEM_SM = 8  /* direct, pipelined */
} cudecompTransposeCommBackend_t;

typedef enum {
  CUDECOMP_HALO_COMM_MPI = 1,             /* staged, pipelined */
  CUDECOMP_HALO_COMM_MPI_BLOCKING = 2,    /* staged */
  CUDECOMP_HALO_COMM_NCCL = 3,            /* direct, pipelined */
  CUDECOMP_HALO_COMM_NVSHMEM = 4,         /* direct, pipelined */
  CUDECOMP_HALO_COMM_NVSHMEM_BLOCKING = 5 /* direct */
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
/* The same type as CUDA's; NULL here. */
typedef struct CUstream_st *cudaStream_t;

/* cudecompGridDescConfigSetDefaults sets the defaults first. */
typedef struct {
  int64_t struct_size;                                   /* set with the defaults */
  int32_t gdims[3];                                      /* elements along X, Y and Z */
  int32_t gdims_dist[3];                                 /* extents by which shares are made; 0: gdims */
  int32_t pdims[2];                                      /* process grid; 0 0: by autotuning */
  cudecompRankOrder_t rank_order;
  cudecompTransposeCommBackend_t transpose_comm_backend; /* default CUDECOMP_TRANSPOSE_COMM_NVSHMEM_SM */
  bool transpose_axis_contiguous[3];                     /* pencils of each axis contiguous along it */
  int32_t transpose_mem_order[3][3];                     /* axes by memory order, fastest first, for pencils of each
                                                            axis; where set (not -1), in place of the flag */
  cudecompHaloCommBackend_t halo_comm_backend;           /* default CUDECOMP_HALO_COMM_NCCL */
} cudecompGridDescConfig_t;

/* cudecompGridDescAutotuneOptionsSetDefaults sets the defaults first. */
typedef struct {
  int64_t struct_size; /* set with the defaults */
  int32_t n_warmup_trials;
  int32_t n_trials;
  cudecompAutotuneGridMode_t grid_mode; /* the operation that chooses the process grid, if pdims are 0 */
  cudecompDataType_t dtype;
  bool allow_uneven_decompositions;
  double skip_threshold;
  bool autotune_transpose_backend;
  bool autotune_halo_backend;
  int32_t halo_axis;       /* the pencils whose halos are measured: X, Y or Z */
  int32_t halo_extents[3]; /* along X, Y and Z, like the following arrays */
  bool halo_periods[3];
  int32_t halo_padding[3];
} cudecompGridDescAutotuneOptions_t;

typedef struct {
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
/* The message of the last failure in this thread. */
const char *symrailDecompLastError(void);
cudecompResult_t cudecompFinalize(cudecompHandle_t handle);

#ifdef MPI_VERSION
static inline cudecompResult_t cudecompInit(cudecompHandle_t *handle, MPI_Comm comm) {
  unsigned char id[64] = {0};
  int rank, size, made = 0;
  if (MPI_Comm_rank(comm, &rank) || MPI_Comm_size(comm, &size)) return CUDECOMP_RESULT_MPI_ERROR;
  if (rank == 0) made = symrailDecompUniqueId(id);
  if (MPI_Bcast(&made, 1, MPI_INT, 0, comm) || MPI_Bcast(id, 64, MPI_UNSIGNED_CHAR, 0, comm))
    return CUDECOMP_RESULT_MPI_ERROR;
  return made ? (cudecompResult_t)made : symrailDecompJoin(handle, id, rank, size);
}
#endif

cudecompResult_t cudecompGridDescConfigSetDefaults(cudecompGridDescConfig_t *config);
cudecompResult_t cudecompGridDescAutotuneOptionsSetDefaults(cudecompGridDescAutotuneOptions_t *options);
/* `options` may be NULL. Afterwards the configuration holds the choices. */
cudecompResult_t cudecompGridDescCreate(cudecompHandle_t handle, cudecompGridDesc_t *grid_desc,
                                        cudecompGridDescConfig_t *config,
                                        const cudecompGridDescAutotuneOptions_t *options);
cudecompResult_t cudecompGridDescDestroy(cudecompHandle_t handle, cudecompGridDesc_t grid_desc);
cudecompResult_t cudecompGetGridDescConfig(cudecompHandle_t handle, cudecompGridDesc_t grid_desc,
                                           cudecompGridDescConfig_t *config);

/* Halo extents and padding, along X, Y and Z, may be NULL in all functions: there are none then. */
cudecompResult_t cudecompGetPencilInfo(cudecompHandle_t handle, cudecompGridDesc_t grid_desc,
                                       cudecompPencilInfo_t *pencil_info, int32_t axis, const int32_t halo_extents[],
                                       const int32_t padding[]);
/* The size is in elements, for every type. */
cudecompResult_t cudecompGetTransposeWorkspaceSize(cudecompHandle_t handle, cudecompGridDesc_t grid_desc,
                                                   int64_t *workspace_size);
cudecompResult_t cudecompGetHaloWorkspaceSize(cudecompHandle_t handle, cudecompGridDesc_t grid_desc, int32_t axis,
                                              const int32_t halo_extents[], int64_t *workspace_size);
cudecompResult_t cudecompGetDataTypeSize(cudecompDataType_t dtype, int64_t *dtype_size);
cudecompResult_t cudecompMalloc(cudecompHandle_t handle, cudecompGridDesc_t grid_desc, void **buffer,
                                size_t buffer_size_bytes);
cudecompResult_t cudecompFree(cudecompHandle_t handle, cudecompGridDesc_t grid_desc, void *buffer);
const char *cudecompTransposeCommBackendToString(cudecompTransposeCommBackend_t comm_backend);
const char *cudecompHaloCommBackendToString(cudecompHaloCommBackend_t comm_backend);
cudecompResult_t cudecompGetShiftedRank(cudecompHandle_t handle, cudecompGridDesc_t grid_desc, int32_t axis,
                                        int32_t dim, int32_t displacement, bool periodic, int32_t *shifted_rank);

/* cudecompMalloc allocates `work`, with the same descriptor. Input and output may be one buffer. */
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
