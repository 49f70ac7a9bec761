/* Extensions to OpenSHMEM that other libraries have too.
 *
 * Made from the library's own table of types:
 *     cargo run -p symrail-c --example emit_header -- shmem/include
 */
#ifndef SYMRAIL_SHMEMX_H
#define SYMRAIL_SHMEMX_H

#include <shmem.h>

/* The PEs of this host, as far as they share memory. */
#define SHMEMX_TEAM_NODE SHMEM_TEAM_SHARED

/* Allocations are collective all the same. */
#define SHMEMX_MALLOC_NO_BARRIER (1L << 2)

/* For programs that bring a function of their own where there is none. */
#define HAVE_SHMEMX_WTIME 1

#ifdef __cplusplus
extern "C" {
#endif

double shmemx_wtime(void);
void shmemx_signal_add(uint64_t *sig_addr, uint64_t signal, int pe);
void shmemx_ctx_signal_add(shmem_ctx_t ctx, uint64_t *sig_addr, uint64_t signal, int pe);
void shmemx_signal_set(uint64_t *sig_addr, uint64_t signal, int pe);
void shmemx_ctx_signal_set(shmem_ctx_t ctx, uint64_t *sig_addr, uint64_t signal, int pe);
void shmemx_register_gettid(uint64_t (*gettid)(void));

/* Connects to all PEs, or to a team's, and waits until each has answered; else a PE is connected when it is first
 * addressed, which takes some time then. Not collective. */
void shmemx_connect_all(void);
void shmemx_team_connect(shmem_team_t team);

/* ---- Kernels: see symrail_device.cuh. 0 is success; else a message says what failed ---- */

/* Tells the kernels of a program about the PE: state is the device address of its symrail_state, of so many bytes. The first call makes
 * the GPU of the heap, else the current one, the PE's device. Collective. */
int shmemx_device_attach(void *state, size_t bytes);
/* The address by which kernels name the symmetric object at dest; NULL if it is not symmetric. */
void *shmemx_device_ptr(const void *dest);
/* What kernels and their proxy have failed to do since the last call. Call it when kernels have ended. */
int shmemx_device_check(void);

void shmemx_float_ibput(float *dest, const float *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_float_ibput(shmem_ctx_t ctx, float *dest, const float *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_double_ibput(double *dest, const double *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_double_ibput(shmem_ctx_t ctx, double *dest, const double *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_longdouble_ibput(long double *dest, const long double *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_longdouble_ibput(shmem_ctx_t ctx, long double *dest, const long double *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_char_ibput(char *dest, const char *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_char_ibput(shmem_ctx_t ctx, char *dest, const char *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_schar_ibput(signed char *dest, const signed char *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_schar_ibput(shmem_ctx_t ctx, signed char *dest, const signed char *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_short_ibput(short *dest, const short *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_short_ibput(shmem_ctx_t ctx, short *dest, const short *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_int_ibput(int *dest, const int *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_int_ibput(shmem_ctx_t ctx, int *dest, const int *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_long_ibput(long *dest, const long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_long_ibput(shmem_ctx_t ctx, long *dest, const long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_longlong_ibput(long long *dest, const long long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_longlong_ibput(shmem_ctx_t ctx, long long *dest, const long long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_uchar_ibput(unsigned char *dest, const unsigned char *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_uchar_ibput(shmem_ctx_t ctx, unsigned char *dest, const unsigned char *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ushort_ibput(unsigned short *dest, const unsigned short *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_ushort_ibput(shmem_ctx_t ctx, unsigned short *dest, const unsigned short *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_uint_ibput(unsigned int *dest, const unsigned int *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_uint_ibput(shmem_ctx_t ctx, unsigned int *dest, const unsigned int *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ulong_ibput(unsigned long *dest, const unsigned long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_ulong_ibput(shmem_ctx_t ctx, unsigned long *dest, const unsigned long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ulonglong_ibput(unsigned long long *dest, const unsigned long long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_ulonglong_ibput(shmem_ctx_t ctx, unsigned long long *dest, const unsigned long long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_int8_ibput(int8_t *dest, const int8_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_int8_ibput(shmem_ctx_t ctx, int8_t *dest, const int8_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_int16_ibput(int16_t *dest, const int16_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_int16_ibput(shmem_ctx_t ctx, int16_t *dest, const int16_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_int32_ibput(int32_t *dest, const int32_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_int32_ibput(shmem_ctx_t ctx, int32_t *dest, const int32_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_int64_ibput(int64_t *dest, const int64_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_int64_ibput(shmem_ctx_t ctx, int64_t *dest, const int64_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_uint8_ibput(uint8_t *dest, const uint8_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_uint8_ibput(shmem_ctx_t ctx, uint8_t *dest, const uint8_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_uint16_ibput(uint16_t *dest, const uint16_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_uint16_ibput(shmem_ctx_t ctx, uint16_t *dest, const uint16_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_uint32_ibput(uint32_t *dest, const uint32_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_uint32_ibput(shmem_ctx_t ctx, uint32_t *dest, const uint32_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_uint64_ibput(uint64_t *dest, const uint64_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_uint64_ibput(shmem_ctx_t ctx, uint64_t *dest, const uint64_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_size_ibput(size_t *dest, const size_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_size_ibput(shmem_ctx_t ctx, size_t *dest, const size_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ptrdiff_ibput(ptrdiff_t *dest, const ptrdiff_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_ptrdiff_ibput(shmem_ctx_t ctx, ptrdiff_t *dest, const ptrdiff_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_float_ibget(float *dest, const float *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_float_ibget(shmem_ctx_t ctx, float *dest, const float *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_double_ibget(double *dest, const double *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_double_ibget(shmem_ctx_t ctx, double *dest, const double *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_longdouble_ibget(long double *dest, const long double *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_longdouble_ibget(shmem_ctx_t ctx, long double *dest, const long double *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_char_ibget(char *dest, const char *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_char_ibget(shmem_ctx_t ctx, char *dest, const char *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_schar_ibget(signed char *dest, const signed char *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_schar_ibget(shmem_ctx_t ctx, signed char *dest, const signed char *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_short_ibget(short *dest, const short *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_short_ibget(shmem_ctx_t ctx, short *dest, const short *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_int_ibget(int *dest, const int *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_int_ibget(shmem_ctx_t ctx, int *dest, const int *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_long_ibget(long *dest, const long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_long_ibget(shmem_ctx_t ctx, long *dest, const long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_longlong_ibget(long long *dest, const long long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_longlong_ibget(shmem_ctx_t ctx, long long *dest, const long long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_uchar_ibget(unsigned char *dest, const unsigned char *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_uchar_ibget(shmem_ctx_t ctx, unsigned char *dest, const unsigned char *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ushort_ibget(unsigned short *dest, const unsigned short *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_ushort_ibget(shmem_ctx_t ctx, unsigned short *dest, const unsigned short *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_uint_ibget(unsigned int *dest, const unsigned int *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_uint_ibget(shmem_ctx_t ctx, unsigned int *dest, const unsigned int *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ulong_ibget(unsigned long *dest, const unsigned long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_ulong_ibget(shmem_ctx_t ctx, unsigned long *dest, const unsigned long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ulonglong_ibget(unsigned long long *dest, const unsigned long long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_ulonglong_ibget(shmem_ctx_t ctx, unsigned long long *dest, const unsigned long long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_int8_ibget(int8_t *dest, const int8_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_int8_ibget(shmem_ctx_t ctx, int8_t *dest, const int8_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_int16_ibget(int16_t *dest, const int16_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_int16_ibget(shmem_ctx_t ctx, int16_t *dest, const int16_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_int32_ibget(int32_t *dest, const int32_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_int32_ibget(shmem_ctx_t ctx, int32_t *dest, const int32_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_int64_ibget(int64_t *dest, const int64_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_int64_ibget(shmem_ctx_t ctx, int64_t *dest, const int64_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_uint8_ibget(uint8_t *dest, const uint8_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_uint8_ibget(shmem_ctx_t ctx, uint8_t *dest, const uint8_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_uint16_ibget(uint16_t *dest, const uint16_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_uint16_ibget(shmem_ctx_t ctx, uint16_t *dest, const uint16_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_uint32_ibget(uint32_t *dest, const uint32_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_uint32_ibget(shmem_ctx_t ctx, uint32_t *dest, const uint32_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_uint64_ibget(uint64_t *dest, const uint64_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_uint64_ibget(shmem_ctx_t ctx, uint64_t *dest, const uint64_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_size_ibget(size_t *dest, const size_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_size_ibget(shmem_ctx_t ctx, size_t *dest, const size_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ptrdiff_ibget(ptrdiff_t *dest, const ptrdiff_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_ptrdiff_ibget(shmem_ctx_t ctx, ptrdiff_t *dest, const ptrdiff_t *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);

void shmemx_ibput8(void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_ibput8(shmem_ctx_t ctx, void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ibput16(void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_ibput16(shmem_ctx_t ctx, void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ibput32(void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_ibput32(shmem_ctx_t ctx, void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ibput64(void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_ibput64(shmem_ctx_t ctx, void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ibput128(void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_ibput128(shmem_ctx_t ctx, void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ibget8(void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_ibget8(shmem_ctx_t ctx, void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ibget16(void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_ibget16(shmem_ctx_t ctx, void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ibget32(void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_ibget32(shmem_ctx_t ctx, void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ibget64(void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_ibget64(shmem_ctx_t ctx, void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ibget128(void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
void shmemx_ctx_ibget128(shmem_ctx_t ctx, void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);

int shmemx_float_sum_inscan(shmem_team_t team, float *dest, const float *source, size_t nreduce);
int shmemx_double_sum_inscan(shmem_team_t team, double *dest, const double *source, size_t nreduce);
int shmemx_longdouble_sum_inscan(shmem_team_t team, long double *dest, const long double *source, size_t nreduce);
int shmemx_complexf_sum_inscan(shmem_team_t team, symrail_complexf *dest, const symrail_complexf *source, size_t nreduce);
int shmemx_complexd_sum_inscan(shmem_team_t team, symrail_complexd *dest, const symrail_complexd *source, size_t nreduce);
int shmemx_char_sum_inscan(shmem_team_t team, char *dest, const char *source, size_t nreduce);
int shmemx_schar_sum_inscan(shmem_team_t team, signed char *dest, const signed char *source, size_t nreduce);
int shmemx_short_sum_inscan(shmem_team_t team, short *dest, const short *source, size_t nreduce);
int shmemx_int_sum_inscan(shmem_team_t team, int *dest, const int *source, size_t nreduce);
int shmemx_long_sum_inscan(shmem_team_t team, long *dest, const long *source, size_t nreduce);
int shmemx_longlong_sum_inscan(shmem_team_t team, long long *dest, const long long *source, size_t nreduce);
int shmemx_ptrdiff_sum_inscan(shmem_team_t team, ptrdiff_t *dest, const ptrdiff_t *source, size_t nreduce);
int shmemx_uchar_sum_inscan(shmem_team_t team, unsigned char *dest, const unsigned char *source, size_t nreduce);
int shmemx_ushort_sum_inscan(shmem_team_t team, unsigned short *dest, const unsigned short *source, size_t nreduce);
int shmemx_uint_sum_inscan(shmem_team_t team, unsigned int *dest, const unsigned int *source, size_t nreduce);
int shmemx_ulong_sum_inscan(shmem_team_t team, unsigned long *dest, const unsigned long *source, size_t nreduce);
int shmemx_ulonglong_sum_inscan(shmem_team_t team, unsigned long long *dest, const unsigned long long *source, size_t nreduce);
int shmemx_int8_sum_inscan(shmem_team_t team, int8_t *dest, const int8_t *source, size_t nreduce);
int shmemx_int16_sum_inscan(shmem_team_t team, int16_t *dest, const int16_t *source, size_t nreduce);
int shmemx_int32_sum_inscan(shmem_team_t team, int32_t *dest, const int32_t *source, size_t nreduce);
int shmemx_int64_sum_inscan(shmem_team_t team, int64_t *dest, const int64_t *source, size_t nreduce);
int shmemx_uint8_sum_inscan(shmem_team_t team, uint8_t *dest, const uint8_t *source, size_t nreduce);
int shmemx_uint16_sum_inscan(shmem_team_t team, uint16_t *dest, const uint16_t *source, size_t nreduce);
int shmemx_uint32_sum_inscan(shmem_team_t team, uint32_t *dest, const uint32_t *source, size_t nreduce);
int shmemx_uint64_sum_inscan(shmem_team_t team, uint64_t *dest, const uint64_t *source, size_t nreduce);
int shmemx_size_sum_inscan(shmem_team_t team, size_t *dest, const size_t *source, size_t nreduce);
int shmemx_float_sum_exscan(shmem_team_t team, float *dest, const float *source, size_t nreduce);
int shmemx_double_sum_exscan(shmem_team_t team, double *dest, const double *source, size_t nreduce);
int shmemx_longdouble_sum_exscan(shmem_team_t team, long double *dest, const long double *source, size_t nreduce);
int shmemx_complexf_sum_exscan(shmem_team_t team, symrail_complexf *dest, const symrail_complexf *source, size_t nreduce);
int shmemx_complexd_sum_exscan(shmem_team_t team, symrail_complexd *dest, const symrail_complexd *source, size_t nreduce);
int shmemx_char_sum_exscan(shmem_team_t team, char *dest, const char *source, size_t nreduce);
int shmemx_schar_sum_exscan(shmem_team_t team, signed char *dest, const signed char *source, size_t nreduce);
int shmemx_short_sum_exscan(shmem_team_t team, short *dest, const short *source, size_t nreduce);
int shmemx_int_sum_exscan(shmem_team_t team, int *dest, const int *source, size_t nreduce);
int shmemx_long_sum_exscan(shmem_team_t team, long *dest, const long *source, size_t nreduce);
int shmemx_longlong_sum_exscan(shmem_team_t team, long long *dest, const long long *source, size_t nreduce);
int shmemx_ptrdiff_sum_exscan(shmem_team_t team, ptrdiff_t *dest, const ptrdiff_t *source, size_t nreduce);
int shmemx_uchar_sum_exscan(shmem_team_t team, unsigned char *dest, const unsigned char *source, size_t nreduce);
int shmemx_ushort_sum_exscan(shmem_team_t team, unsigned short *dest, const unsigned short *source, size_t nreduce);
int shmemx_uint_sum_exscan(shmem_team_t team, unsigned int *dest, const unsigned int *source, size_t nreduce);
int shmemx_ulong_sum_exscan(shmem_team_t team, unsigned long *dest, const unsigned long *source, size_t nreduce);
int shmemx_ulonglong_sum_exscan(shmem_team_t team, unsigned long long *dest, const unsigned long long *source, size_t nreduce);
int shmemx_int8_sum_exscan(shmem_team_t team, int8_t *dest, const int8_t *source, size_t nreduce);
int shmemx_int16_sum_exscan(shmem_team_t team, int16_t *dest, const int16_t *source, size_t nreduce);
int shmemx_int32_sum_exscan(shmem_team_t team, int32_t *dest, const int32_t *source, size_t nreduce);
int shmemx_int64_sum_exscan(shmem_team_t team, int64_t *dest, const int64_t *source, size_t nreduce);
int shmemx_uint8_sum_exscan(shmem_team_t team, uint8_t *dest, const uint8_t *source, size_t nreduce);
int shmemx_uint16_sum_exscan(shmem_team_t team, uint16_t *dest, const uint16_t *source, size_t nreduce);
int shmemx_uint32_sum_exscan(shmem_team_t team, uint32_t *dest, const uint32_t *source, size_t nreduce);
int shmemx_uint64_sum_exscan(shmem_team_t team, uint64_t *dest, const uint64_t *source, size_t nreduce);
int shmemx_size_sum_exscan(shmem_team_t team, size_t *dest, const size_t *source, size_t nreduce);


#ifdef __cplusplus
}
#endif

#if defined(__cplusplus)

static inline void shmemx_ibput(float *dest, const float *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_float_ibput(dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibput(shmem_ctx_t ctx, float *dest, const float *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ctx_float_ibput(ctx, dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibput(double *dest, const double *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_double_ibput(dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibput(shmem_ctx_t ctx, double *dest, const double *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ctx_double_ibput(ctx, dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibput(long double *dest, const long double *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_longdouble_ibput(dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibput(shmem_ctx_t ctx, long double *dest, const long double *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ctx_longdouble_ibput(ctx, dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibput(char *dest, const char *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_char_ibput(dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibput(shmem_ctx_t ctx, char *dest, const char *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ctx_char_ibput(ctx, dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibput(signed char *dest, const signed char *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_schar_ibput(dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibput(shmem_ctx_t ctx, signed char *dest, const signed char *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ctx_schar_ibput(ctx, dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibput(short *dest, const short *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_short_ibput(dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibput(shmem_ctx_t ctx, short *dest, const short *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ctx_short_ibput(ctx, dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibput(int *dest, const int *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_int_ibput(dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibput(shmem_ctx_t ctx, int *dest, const int *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ctx_int_ibput(ctx, dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibput(long *dest, const long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_long_ibput(dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibput(shmem_ctx_t ctx, long *dest, const long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ctx_long_ibput(ctx, dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibput(long long *dest, const long long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_longlong_ibput(dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibput(shmem_ctx_t ctx, long long *dest, const long long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ctx_longlong_ibput(ctx, dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibput(unsigned char *dest, const unsigned char *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_uchar_ibput(dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibput(shmem_ctx_t ctx, unsigned char *dest, const unsigned char *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ctx_uchar_ibput(ctx, dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibput(unsigned short *dest, const unsigned short *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ushort_ibput(dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibput(shmem_ctx_t ctx, unsigned short *dest, const unsigned short *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ctx_ushort_ibput(ctx, dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibput(unsigned int *dest, const unsigned int *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_uint_ibput(dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibput(shmem_ctx_t ctx, unsigned int *dest, const unsigned int *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ctx_uint_ibput(ctx, dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibput(unsigned long *dest, const unsigned long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ulong_ibput(dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibput(shmem_ctx_t ctx, unsigned long *dest, const unsigned long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ctx_ulong_ibput(ctx, dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibput(unsigned long long *dest, const unsigned long long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ulonglong_ibput(dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibput(shmem_ctx_t ctx, unsigned long long *dest, const unsigned long long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ctx_ulonglong_ibput(ctx, dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibget(float *dest, const float *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_float_ibget(dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibget(shmem_ctx_t ctx, float *dest, const float *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ctx_float_ibget(ctx, dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibget(double *dest, const double *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_double_ibget(dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibget(shmem_ctx_t ctx, double *dest, const double *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ctx_double_ibget(ctx, dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibget(long double *dest, const long double *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_longdouble_ibget(dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibget(shmem_ctx_t ctx, long double *dest, const long double *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ctx_longdouble_ibget(ctx, dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibget(char *dest, const char *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_char_ibget(dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibget(shmem_ctx_t ctx, char *dest, const char *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ctx_char_ibget(ctx, dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibget(signed char *dest, const signed char *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_schar_ibget(dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibget(shmem_ctx_t ctx, signed char *dest, const signed char *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ctx_schar_ibget(ctx, dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibget(short *dest, const short *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_short_ibget(dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibget(shmem_ctx_t ctx, short *dest, const short *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ctx_short_ibget(ctx, dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibget(int *dest, const int *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_int_ibget(dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibget(shmem_ctx_t ctx, int *dest, const int *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ctx_int_ibget(ctx, dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibget(long *dest, const long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_long_ibget(dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibget(shmem_ctx_t ctx, long *dest, const long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ctx_long_ibget(ctx, dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibget(long long *dest, const long long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_longlong_ibget(dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibget(shmem_ctx_t ctx, long long *dest, const long long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ctx_longlong_ibget(ctx, dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibget(unsigned char *dest, const unsigned char *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_uchar_ibget(dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibget(shmem_ctx_t ctx, unsigned char *dest, const unsigned char *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ctx_uchar_ibget(ctx, dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibget(unsigned short *dest, const unsigned short *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ushort_ibget(dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibget(shmem_ctx_t ctx, unsigned short *dest, const unsigned short *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ctx_ushort_ibget(ctx, dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibget(unsigned int *dest, const unsigned int *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_uint_ibget(dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibget(shmem_ctx_t ctx, unsigned int *dest, const unsigned int *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ctx_uint_ibget(ctx, dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibget(unsigned long *dest, const unsigned long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ulong_ibget(dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibget(shmem_ctx_t ctx, unsigned long *dest, const unsigned long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ctx_ulong_ibget(ctx, dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibget(unsigned long long *dest, const unsigned long long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ulonglong_ibget(dest, source, dst, sst, bsize, nblocks, pe); }
static inline void shmemx_ibget(shmem_ctx_t ctx, unsigned long long *dest, const unsigned long long *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) { return shmemx_ctx_ulonglong_ibget(ctx, dest, source, dst, sst, bsize, nblocks, pe); }
static inline int shmemx_sum_inscan(shmem_team_t team, float *dest, const float *source, size_t nreduce) { return shmemx_float_sum_inscan(team, dest, source, nreduce); }
static inline int shmemx_sum_inscan(shmem_team_t team, double *dest, const double *source, size_t nreduce) { return shmemx_double_sum_inscan(team, dest, source, nreduce); }
static inline int shmemx_sum_inscan(shmem_team_t team, long double *dest, const long double *source, size_t nreduce) { return shmemx_longdouble_sum_inscan(team, dest, source, nreduce); }
static inline int shmemx_sum_inscan(shmem_team_t team, symrail_complexf *dest, const symrail_complexf *source, size_t nreduce) { return shmemx_complexf_sum_inscan(team, dest, source, nreduce); }
static inline int shmemx_sum_inscan(shmem_team_t team, symrail_complexd *dest, const symrail_complexd *source, size_t nreduce) { return shmemx_complexd_sum_inscan(team, dest, source, nreduce); }
static inline int shmemx_sum_inscan(shmem_team_t team, char *dest, const char *source, size_t nreduce) { return shmemx_char_sum_inscan(team, dest, source, nreduce); }
static inline int shmemx_sum_inscan(shmem_team_t team, signed char *dest, const signed char *source, size_t nreduce) { return shmemx_schar_sum_inscan(team, dest, source, nreduce); }
static inline int shmemx_sum_inscan(shmem_team_t team, short *dest, const short *source, size_t nreduce) { return shmemx_short_sum_inscan(team, dest, source, nreduce); }
static inline int shmemx_sum_inscan(shmem_team_t team, int *dest, const int *source, size_t nreduce) { return shmemx_int_sum_inscan(team, dest, source, nreduce); }
static inline int shmemx_sum_inscan(shmem_team_t team, long *dest, const long *source, size_t nreduce) { return shmemx_long_sum_inscan(team, dest, source, nreduce); }
static inline int shmemx_sum_inscan(shmem_team_t team, long long *dest, const long long *source, size_t nreduce) { return shmemx_longlong_sum_inscan(team, dest, source, nreduce); }
static inline int shmemx_sum_inscan(shmem_team_t team, unsigned char *dest, const unsigned char *source, size_t nreduce) { return shmemx_uchar_sum_inscan(team, dest, source, nreduce); }
static inline int shmemx_sum_inscan(shmem_team_t team, unsigned short *dest, const unsigned short *source, size_t nreduce) { return shmemx_ushort_sum_inscan(team, dest, source, nreduce); }
static inline int shmemx_sum_inscan(shmem_team_t team, unsigned int *dest, const unsigned int *source, size_t nreduce) { return shmemx_uint_sum_inscan(team, dest, source, nreduce); }
static inline int shmemx_sum_inscan(shmem_team_t team, unsigned long *dest, const unsigned long *source, size_t nreduce) { return shmemx_ulong_sum_inscan(team, dest, source, nreduce); }
static inline int shmemx_sum_inscan(shmem_team_t team, unsigned long long *dest, const unsigned long long *source, size_t nreduce) { return shmemx_ulonglong_sum_inscan(team, dest, source, nreduce); }
static inline int shmemx_sum_exscan(shmem_team_t team, float *dest, const float *source, size_t nreduce) { return shmemx_float_sum_exscan(team, dest, source, nreduce); }
static inline int shmemx_sum_exscan(shmem_team_t team, double *dest, const double *source, size_t nreduce) { return shmemx_double_sum_exscan(team, dest, source, nreduce); }
static inline int shmemx_sum_exscan(shmem_team_t team, long double *dest, const long double *source, size_t nreduce) { return shmemx_longdouble_sum_exscan(team, dest, source, nreduce); }
static inline int shmemx_sum_exscan(shmem_team_t team, symrail_complexf *dest, const symrail_complexf *source, size_t nreduce) { return shmemx_complexf_sum_exscan(team, dest, source, nreduce); }
static inline int shmemx_sum_exscan(shmem_team_t team, symrail_complexd *dest, const symrail_complexd *source, size_t nreduce) { return shmemx_complexd_sum_exscan(team, dest, source, nreduce); }
static inline int shmemx_sum_exscan(shmem_team_t team, char *dest, const char *source, size_t nreduce) { return shmemx_char_sum_exscan(team, dest, source, nreduce); }
static inline int shmemx_sum_exscan(shmem_team_t team, signed char *dest, const signed char *source, size_t nreduce) { return shmemx_schar_sum_exscan(team, dest, source, nreduce); }
static inline int shmemx_sum_exscan(shmem_team_t team, short *dest, const short *source, size_t nreduce) { return shmemx_short_sum_exscan(team, dest, source, nreduce); }
static inline int shmemx_sum_exscan(shmem_team_t team, int *dest, const int *source, size_t nreduce) { return shmemx_int_sum_exscan(team, dest, source, nreduce); }
static inline int shmemx_sum_exscan(shmem_team_t team, long *dest, const long *source, size_t nreduce) { return shmemx_long_sum_exscan(team, dest, source, nreduce); }
static inline int shmemx_sum_exscan(shmem_team_t team, long long *dest, const long long *source, size_t nreduce) { return shmemx_longlong_sum_exscan(team, dest, source, nreduce); }
static inline int shmemx_sum_exscan(shmem_team_t team, unsigned char *dest, const unsigned char *source, size_t nreduce) { return shmemx_uchar_sum_exscan(team, dest, source, nreduce); }
static inline int shmemx_sum_exscan(shmem_team_t team, unsigned short *dest, const unsigned short *source, size_t nreduce) { return shmemx_ushort_sum_exscan(team, dest, source, nreduce); }
static inline int shmemx_sum_exscan(shmem_team_t team, unsigned int *dest, const unsigned int *source, size_t nreduce) { return shmemx_uint_sum_exscan(team, dest, source, nreduce); }
static inline int shmemx_sum_exscan(shmem_team_t team, unsigned long *dest, const unsigned long *source, size_t nreduce) { return shmemx_ulong_sum_exscan(team, dest, source, nreduce); }
static inline int shmemx_sum_exscan(shmem_team_t team, unsigned long long *dest, const unsigned long long *source, size_t nreduce) { return shmemx_ulonglong_sum_exscan(team, dest, source, nreduce); }
static inline void shmemx_signal_add(shmem_ctx_t ctx, uint64_t *sig_addr, uint64_t signal, int pe) { shmemx_ctx_signal_add(ctx, sig_addr, signal, pe); }
static inline void shmemx_signal_set(shmem_ctx_t ctx, uint64_t *sig_addr, uint64_t signal, int pe) { shmemx_ctx_signal_set(ctx, sig_addr, signal, pe); }

#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L

#define SYMRAILX_CHOOSE_0(before, after, x) _Generic((x), \
    float *: before##float##after, \
    const float *: before##float##after, \
    volatile float *: before##float##after, \
    double *: before##double##after, \
    const double *: before##double##after, \
    volatile double *: before##double##after, \
    long double *: before##longdouble##after, \
    const long double *: before##longdouble##after, \
    volatile long double *: before##longdouble##after, \
    char *: before##char##after, \
    const char *: before##char##after, \
    volatile char *: before##char##after, \
    signed char *: before##schar##after, \
    const signed char *: before##schar##after, \
    volatile signed char *: before##schar##after, \
    short *: before##short##after, \
    const short *: before##short##after, \
    volatile short *: before##short##after, \
    int *: before##int##after, \
    const int *: before##int##after, \
    volatile int *: before##int##after, \
    long *: before##long##after, \
    const long *: before##long##after, \
    volatile long *: before##long##after, \
    long long *: before##longlong##after, \
    const long long *: before##longlong##after, \
    volatile long long *: before##longlong##after, \
    unsigned char *: before##uchar##after, \
    const unsigned char *: before##uchar##after, \
    volatile unsigned char *: before##uchar##after, \
    unsigned short *: before##ushort##after, \
    const unsigned short *: before##ushort##after, \
    volatile unsigned short *: before##ushort##after, \
    unsigned int *: before##uint##after, \
    const unsigned int *: before##uint##after, \
    volatile unsigned int *: before##uint##after, \
    unsigned long *: before##ulong##after, \
    const unsigned long *: before##ulong##after, \
    volatile unsigned long *: before##ulong##after, \
    unsigned long long *: before##ulonglong##after, \
    const unsigned long long *: before##ulonglong##after, \
    volatile unsigned long long *: before##ulonglong##after, \
    default: symrail_no_routine_for_this_type)
#define SYMRAILX_CHOOSE_1(before, after, x) _Generic((x), \
    float *: before##float##after, \
    const float *: before##float##after, \
    volatile float *: before##float##after, \
    double *: before##double##after, \
    const double *: before##double##after, \
    volatile double *: before##double##after, \
    long double *: before##longdouble##after, \
    const long double *: before##longdouble##after, \
    volatile long double *: before##longdouble##after, \
    float _Complex *: before##complexf##after, \
    const float _Complex *: before##complexf##after, \
    volatile float _Complex *: before##complexf##after, \
    double _Complex *: before##complexd##after, \
    const double _Complex *: before##complexd##after, \
    volatile double _Complex *: before##complexd##after, \
    char *: before##char##after, \
    const char *: before##char##after, \
    volatile char *: before##char##after, \
    signed char *: before##schar##after, \
    const signed char *: before##schar##after, \
    volatile signed char *: before##schar##after, \
    short *: before##short##after, \
    const short *: before##short##after, \
    volatile short *: before##short##after, \
    int *: before##int##after, \
    const int *: before##int##after, \
    volatile int *: before##int##after, \
    long *: before##long##after, \
    const long *: before##long##after, \
    volatile long *: before##long##after, \
    long long *: before##longlong##after, \
    const long long *: before##longlong##after, \
    volatile long long *: before##longlong##after, \
    unsigned char *: before##uchar##after, \
    const unsigned char *: before##uchar##after, \
    volatile unsigned char *: before##uchar##after, \
    unsigned short *: before##ushort##after, \
    const unsigned short *: before##ushort##after, \
    volatile unsigned short *: before##ushort##after, \
    unsigned int *: before##uint##after, \
    const unsigned int *: before##uint##after, \
    volatile unsigned int *: before##uint##after, \
    unsigned long *: before##ulong##after, \
    const unsigned long *: before##ulong##after, \
    volatile unsigned long *: before##ulong##after, \
    unsigned long long *: before##ulonglong##after, \
    const unsigned long long *: before##ulonglong##after, \
    volatile unsigned long long *: before##ulonglong##after, \
    default: symrail_no_routine_for_this_type)
#define shmemx_ibput(...) \
    _Generic((SYMRAIL_ARG1(__VA_ARGS__)), shmem_ctx_t: SYMRAILX_CHOOSE_0(shmemx_ctx_, _ibput, SYMRAIL_ARG2(__VA_ARGS__)), default: SYMRAILX_CHOOSE_0(shmemx_, _ibput, SYMRAIL_ARG1(__VA_ARGS__)))(__VA_ARGS__)
#define shmemx_ibget(...) \
    _Generic((SYMRAIL_ARG1(__VA_ARGS__)), shmem_ctx_t: SYMRAILX_CHOOSE_0(shmemx_ctx_, _ibget, SYMRAIL_ARG2(__VA_ARGS__)), default: SYMRAILX_CHOOSE_0(shmemx_, _ibget, SYMRAIL_ARG1(__VA_ARGS__)))(__VA_ARGS__)
#define shmemx_sum_inscan(...) \
    SYMRAILX_CHOOSE_1(shmemx_, _sum_inscan, SYMRAIL_ARG2(__VA_ARGS__))(__VA_ARGS__)
#define shmemx_sum_exscan(...) \
    SYMRAILX_CHOOSE_1(shmemx_, _sum_exscan, SYMRAIL_ARG2(__VA_ARGS__))(__VA_ARGS__)
#define shmemx_signal_add(...) \
    _Generic((SYMRAIL_ARG1(__VA_ARGS__)), shmem_ctx_t: shmemx_ctx_signal_add, default: shmemx_signal_add)(__VA_ARGS__)
#define shmemx_signal_set(...) \
    _Generic((SYMRAIL_ARG1(__VA_ARGS__)), shmem_ctx_t: shmemx_ctx_signal_set, default: shmemx_signal_set)(__VA_ARGS__)

#endif

#endif
