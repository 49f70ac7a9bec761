//! The routines that the headers declare.
//!
//! In a typed routine `{T}` is the name of a type and `{C}` the type. `@` stands for two routines: one without a
//! context, and one with a context as its first argument (`ctx_` in the name, `shmem_ctx_t ctx` in the arguments).

/// Routines without types, for `shmem.h`.
pub const UNTYPED: &str = "
void shmem_init(void);
int shmem_init_thread(int requested, int *provided);
void shmem_query_thread(int *provided);
void shmem_finalize(void);
void shmem_global_exit(int status) __attribute__((noreturn));
void start_pes(int npes);
int shmem_my_pe(void);
int shmem_n_pes(void);
int _my_pe(void);
int _num_pes(void);
int shmem_pe_accessible(int pe);
int shmem_addr_accessible(const void *addr, int pe);
void *shmem_ptr(const void *dest, int pe);
void shmem_info_get_version(int *major, int *minor);
void shmem_info_get_name(char *name);
void shmem_pcontrol(int level, ...);

/* ---- Symmetric heap ---- */

void *shmem_malloc(size_t size);
void *shmem_calloc(size_t count, size_t size);
void *shmem_realloc(void *ptr, size_t size);
void *shmem_align(size_t alignment, size_t size);
void *shmem_malloc_with_hints(size_t size, long hints);
void shmem_free(void *ptr);
void *shmalloc(size_t size);
void *shrealloc(void *ptr, size_t size);
void *shmemalign(size_t alignment, size_t size);
void shfree(void *ptr);

/* ---- Contexts and teams ---- */

int shmem_ctx_create(long options, shmem_ctx_t *ctx);
int shmem_team_create_ctx(shmem_team_t team, long options, shmem_ctx_t *ctx);
void shmem_ctx_destroy(shmem_ctx_t ctx);
int shmem_ctx_get_team(shmem_ctx_t ctx, shmem_team_t *team);
int shmem_team_my_pe(shmem_team_t team);
int shmem_team_n_pes(shmem_team_t team);
int shmem_team_get_config(shmem_team_t team, long config_mask, shmem_team_config_t *config);
int shmem_team_translate_pe(shmem_team_t src_team, int src_pe, shmem_team_t dest_team);
int shmem_team_split_strided(shmem_team_t parent_team, int start, int stride, int size, const shmem_team_config_t *config, long config_mask, shmem_team_t *new_team);
int shmem_team_split_2d(shmem_team_t parent_team, int xrange, const shmem_team_config_t *xaxis_config, long xaxis_mask, shmem_team_t *xaxis_team, const shmem_team_config_t *yaxis_config, long yaxis_mask, shmem_team_t *yaxis_team);
void shmem_team_destroy(shmem_team_t team);
void *shmem_team_ptr(shmem_team_t team, const void *dest, int pe);

/* ---- Order, barriers, locks ---- */

void shmem_fence(void);
void shmem_ctx_fence(shmem_ctx_t ctx);
void shmem_quiet(void);
void shmem_ctx_quiet(shmem_ctx_t ctx);
void shmem_barrier_all(void);
void shmem_sync_all(void);
int shmem_team_sync(shmem_team_t team);
void shmem_barrier(int PE_start, int logPE_stride, int PE_size, long *pSync);
void shmem_sync(int PE_start, int logPE_stride, int PE_size, long *pSync);
void shmem_set_lock(long *lock);
void shmem_clear_lock(long *lock);
int shmem_test_lock(long *lock);

/* ---- Signals and waits ---- */

uint64_t shmem_signal_fetch(const uint64_t *sig_addr);
uint64_t shmem_signal_wait_until(uint64_t *sig_addr, int cmp, uint64_t cmp_value);
void shmem_wait(long *ivar, long cmp_value);
void shmem_wait_until(long *ivar, int cmp, long cmp_value);

/* ---- Collectives of bytes ---- */

int shmem_broadcastmem(shmem_team_t team, void *dest, const void *source, size_t nelems, int PE_root);
int shmem_collectmem(shmem_team_t team, void *dest, const void *source, size_t nelems);
int shmem_fcollectmem(shmem_team_t team, void *dest, const void *source, size_t nelems);
int shmem_alltoallmem(shmem_team_t team, void *dest, const void *source, size_t nelems);
int shmem_alltoallsmem(shmem_team_t team, void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems);

/* ---- Caches: nothing to do ---- */

void shmem_clear_cache_inv(void);
void shmem_set_cache_inv(void);
void shmem_clear_cache_line_inv(void *dest);
void shmem_set_cache_line_inv(void *dest);
void shmem_udcflush(void);
void shmem_udcflush_line(void *dest);
";

/// Routines without types, for `shmemx.h`.
pub const UNTYPED_EXTENSIONS: &str = "
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
";

/// Name in routines, type in C.
pub type Row = (&'static str, &'static str);

macro_rules! names {
    ($($name:literal, $c:literal, $t:ty;)*) => { &[$(($name, $c)),*] };
}
macro_rules! size_names {
    ($($name:literal, $bytes:literal;)*) => { &[$(($name, "void")),*] };
}

/// Typed routines of one list of types.
pub struct Family {
    pub types: &'static [Row],
    pub routines: &'static [&'static str],
    /// Whether there is also one generic routine for all types.
    pub generic: bool,
}

/// Comparisons of words with one value, then with a value for each word.
const WAITS: &[&str] = &[
    "void shmem_{T}_wait_until({C} *ivar, int cmp, {C} cmp_value);",
    "int shmem_{T}_test({C} *ivar, int cmp, {C} cmp_value);",
    "void shmem_{T}_wait_until_all({C} *ivars, size_t nelems, const int *status, int cmp, {C} cmp_value);",
    "size_t shmem_{T}_wait_until_any({C} *ivars, size_t nelems, const int *status, int cmp, {C} cmp_value);",
    "size_t shmem_{T}_wait_until_some({C} *ivars, size_t nelems, size_t *indices, const int *status, int cmp, {C} cmp_value);",
    "int shmem_{T}_test_all({C} *ivars, size_t nelems, const int *status, int cmp, {C} cmp_value);",
    "size_t shmem_{T}_test_any({C} *ivars, size_t nelems, const int *status, int cmp, {C} cmp_value);",
    "size_t shmem_{T}_test_some({C} *ivars, size_t nelems, size_t *indices, const int *status, int cmp, {C} cmp_value);",
    "void shmem_{T}_wait_until_all_vector({C} *ivars, size_t nelems, const int *status, int cmp, {C} *cmp_values);",
    "size_t shmem_{T}_wait_until_any_vector({C} *ivars, size_t nelems, const int *status, int cmp, {C} *cmp_values);",
    "size_t shmem_{T}_wait_until_some_vector({C} *ivars, size_t nelems, size_t *indices, const int *status, int cmp, {C} *cmp_values);",
    "int shmem_{T}_test_all_vector({C} *ivars, size_t nelems, const int *status, int cmp, {C} *cmp_values);",
    "size_t shmem_{T}_test_any_vector({C} *ivars, size_t nelems, const int *status, int cmp, {C} *cmp_values);",
    "size_t shmem_{T}_test_some_vector({C} *ivars, size_t nelems, size_t *indices, const int *status, int cmp, {C} *cmp_values);",
];

/// Typed routines of `shmem.h`.
pub const TYPED: &[Family] = &[
    Family {
        types: rma_types!(names),
        generic: true,
        routines: &[
            "void shmem_@{T}_put(@{C} *dest, const {C} *source, size_t nelems, int pe);",
            "void shmem_@{T}_get(@{C} *dest, const {C} *source, size_t nelems, int pe);",
            "void shmem_@{T}_put_nbi(@{C} *dest, const {C} *source, size_t nelems, int pe);",
            "void shmem_@{T}_get_nbi(@{C} *dest, const {C} *source, size_t nelems, int pe);",
            "void shmem_@{T}_iput(@{C} *dest, const {C} *source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems, int pe);",
            "void shmem_@{T}_iget(@{C} *dest, const {C} *source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems, int pe);",
            "void shmem_@{T}_put_signal(@{C} *dest, const {C} *source, size_t nelems, uint64_t *sig_addr, uint64_t signal, int sig_op, int pe);",
            "void shmem_@{T}_put_signal_nbi(@{C} *dest, const {C} *source, size_t nelems, uint64_t *sig_addr, uint64_t signal, int sig_op, int pe);",
            "int shmem_{T}_broadcast(shmem_team_t team, {C} *dest, const {C} *source, size_t nelems, int PE_root);",
            "int shmem_{T}_collect(shmem_team_t team, {C} *dest, const {C} *source, size_t nelems);",
            "int shmem_{T}_fcollect(shmem_team_t team, {C} *dest, const {C} *source, size_t nelems);",
            "int shmem_{T}_alltoall(shmem_team_t team, {C} *dest, const {C} *source, size_t nelems);",
            "int shmem_{T}_alltoalls(shmem_team_t team, {C} *dest, const {C} *source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems);",
        ],
    },
    Family {
        types: value_types!(names),
        generic: true,
        routines: &[
            "void shmem_@{T}_p(@{C} *dest, {C} value, int pe);",
            "{C} shmem_@{T}_g(@const {C} *source, int pe);",
        ],
    },
    Family {
        types: sizes!(size_names),
        generic: false,
        routines: &[
            "void shmem_@put{T}(@void *dest, const void *source, size_t nelems, int pe);",
            "void shmem_@get{T}(@void *dest, const void *source, size_t nelems, int pe);",
            "void shmem_@put{T}_nbi(@void *dest, const void *source, size_t nelems, int pe);",
            "void shmem_@get{T}_nbi(@void *dest, const void *source, size_t nelems, int pe);",
            "void shmem_@put{T}_signal(@void *dest, const void *source, size_t nelems, uint64_t *sig_addr, uint64_t signal, int sig_op, int pe);",
            "void shmem_@put{T}_signal_nbi(@void *dest, const void *source, size_t nelems, uint64_t *sig_addr, uint64_t signal, int sig_op, int pe);",
            "void shmem_@iput{T}(@void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems, int pe);",
            "void shmem_@iget{T}(@void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems, int pe);",
        ],
    },
    Family {
        types: &[("mem", "void")],
        generic: false,
        routines: &[
            "void shmem_@put{T}(@void *dest, const void *source, size_t nelems, int pe);",
            "void shmem_@get{T}(@void *dest, const void *source, size_t nelems, int pe);",
            "void shmem_@put{T}_nbi(@void *dest, const void *source, size_t nelems, int pe);",
            "void shmem_@get{T}_nbi(@void *dest, const void *source, size_t nelems, int pe);",
            "void shmem_@put{T}_signal(@void *dest, const void *source, size_t nelems, uint64_t *sig_addr, uint64_t signal, int sig_op, int pe);",
            "void shmem_@put{T}_signal_nbi(@void *dest, const void *source, size_t nelems, uint64_t *sig_addr, uint64_t signal, int sig_op, int pe);",
        ],
    },
    Family {
        types: amo_types!(names),
        generic: true,
        routines: &[
            "{C} shmem_@{T}_atomic_compare_swap(@{C} *dest, {C} cond, {C} value, int pe);",
            "{C} shmem_@{T}_atomic_fetch_inc(@{C} *dest, int pe);",
            "void shmem_@{T}_atomic_inc(@{C} *dest, int pe);",
            "{C} shmem_@{T}_atomic_fetch_add(@{C} *dest, {C} value, int pe);",
            "void shmem_@{T}_atomic_add(@{C} *dest, {C} value, int pe);",
            "void shmem_@{T}_atomic_compare_swap_nbi(@{C} *fetch, {C} *dest, {C} cond, {C} value, int pe);",
            "void shmem_@{T}_atomic_fetch_inc_nbi(@{C} *fetch, {C} *dest, int pe);",
            "void shmem_@{T}_atomic_fetch_add_nbi(@{C} *fetch, {C} *dest, {C} value, int pe);",
        ],
    },
    Family {
        types: extended_amo_types!(names),
        generic: true,
        routines: &[
            "{C} shmem_@{T}_atomic_fetch(@const {C} *source, int pe);",
            "void shmem_@{T}_atomic_set(@{C} *dest, {C} value, int pe);",
            "{C} shmem_@{T}_atomic_swap(@{C} *dest, {C} value, int pe);",
            "void shmem_@{T}_atomic_fetch_nbi(@{C} *fetch, const {C} *source, int pe);",
            "void shmem_@{T}_atomic_swap_nbi(@{C} *fetch, {C} *dest, {C} value, int pe);",
        ],
    },
    Family {
        types: bitwise_amo_types!(names),
        generic: true,
        routines: &[
            "{C} shmem_@{T}_atomic_fetch_and(@{C} *dest, {C} value, int pe);",
            "void shmem_@{T}_atomic_and(@{C} *dest, {C} value, int pe);",
            "void shmem_@{T}_atomic_fetch_and_nbi(@{C} *fetch, {C} *dest, {C} value, int pe);",
            "{C} shmem_@{T}_atomic_fetch_or(@{C} *dest, {C} value, int pe);",
            "void shmem_@{T}_atomic_or(@{C} *dest, {C} value, int pe);",
            "void shmem_@{T}_atomic_fetch_or_nbi(@{C} *fetch, {C} *dest, {C} value, int pe);",
            "{C} shmem_@{T}_atomic_fetch_xor(@{C} *dest, {C} value, int pe);",
            "void shmem_@{T}_atomic_xor(@{C} *dest, {C} value, int pe);",
            "void shmem_@{T}_atomic_fetch_xor_nbi(@{C} *fetch, {C} *dest, {C} value, int pe);",
        ],
    },
    Family {
        types: amo_types!(names),
        generic: true,
        routines: &[
            "{C} shmem_{T}_cswap({C} *dest, {C} cond, {C} value, int pe);",
            "{C} shmem_{T}_finc({C} *dest, int pe);",
            "void shmem_{T}_inc({C} *dest, int pe);",
            "{C} shmem_{T}_fadd({C} *dest, {C} value, int pe);",
            "void shmem_{T}_add({C} *dest, {C} value, int pe);",
        ],
    },
    Family {
        types: extended_amo_types!(names),
        generic: true,
        routines: &[
            "{C} shmem_{T}_fetch(const {C} *source, int pe);",
            "void shmem_{T}_set({C} *dest, {C} value, int pe);",
            "{C} shmem_{T}_swap({C} *dest, {C} value, int pe);",
        ],
    },
    Family { types: wait_types!(names), generic: true, routines: WAITS },
    Family {
        types: old_wait_types!(names),
        generic: false,
        routines: &["void shmem_{T}_wait({C} *ivar, {C} cmp_value);"],
    },
    Family {
        types: bitwise_reduce_types!(names),
        generic: true,
        routines: &[
            "int shmem_{T}_and_reduce(shmem_team_t team, {C} *dest, const {C} *source, size_t nreduce);",
            "int shmem_{T}_or_reduce(shmem_team_t team, {C} *dest, const {C} *source, size_t nreduce);",
            "int shmem_{T}_xor_reduce(shmem_team_t team, {C} *dest, const {C} *source, size_t nreduce);",
        ],
    },
    Family {
        types: ordered_reduce_types!(names),
        generic: true,
        routines: &[
            "int shmem_{T}_min_reduce(shmem_team_t team, {C} *dest, const {C} *source, size_t nreduce);",
            "int shmem_{T}_max_reduce(shmem_team_t team, {C} *dest, const {C} *source, size_t nreduce);",
        ],
    },
    Family {
        types: arithmetic_reduce_types!(names),
        generic: true,
        routines: &[
            "int shmem_{T}_sum_reduce(shmem_team_t team, {C} *dest, const {C} *source, size_t nreduce);",
            "int shmem_{T}_prod_reduce(shmem_team_t team, {C} *dest, const {C} *source, size_t nreduce);",
        ],
    },
    Family {
        types: &[("32", "void"), ("64", "void")],
        generic: false,
        routines: &[
            "void shmem_broadcast{T}(void *dest, const void *source, size_t nelems, int PE_root, int PE_start, int logPE_stride, int PE_size, long *pSync);",
            "void shmem_collect{T}(void *dest, const void *source, size_t nelems, int PE_start, int logPE_stride, int PE_size, long *pSync);",
            "void shmem_fcollect{T}(void *dest, const void *source, size_t nelems, int PE_start, int logPE_stride, int PE_size, long *pSync);",
            "void shmem_alltoall{T}(void *dest, const void *source, size_t nelems, int PE_start, int logPE_stride, int PE_size, long *pSync);",
            "void shmem_alltoalls{T}(void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems, int PE_start, int logPE_stride, int PE_size, long *pSync);",
        ],
    },
    Family {
        types: old_bitwise_reduce_types!(names),
        generic: false,
        routines: &[
            "void shmem_{T}_and_to_all({C} *dest, const {C} *source, int nreduce, int PE_start, int logPE_stride, int PE_size, {C} *pWrk, long *pSync);",
            "void shmem_{T}_or_to_all({C} *dest, const {C} *source, int nreduce, int PE_start, int logPE_stride, int PE_size, {C} *pWrk, long *pSync);",
            "void shmem_{T}_xor_to_all({C} *dest, const {C} *source, int nreduce, int PE_start, int logPE_stride, int PE_size, {C} *pWrk, long *pSync);",
        ],
    },
    Family {
        types: old_ordered_reduce_types!(names),
        generic: false,
        routines: &[
            "void shmem_{T}_min_to_all({C} *dest, const {C} *source, int nreduce, int PE_start, int logPE_stride, int PE_size, {C} *pWrk, long *pSync);",
            "void shmem_{T}_max_to_all({C} *dest, const {C} *source, int nreduce, int PE_start, int logPE_stride, int PE_size, {C} *pWrk, long *pSync);",
        ],
    },
    Family {
        types: old_arithmetic_reduce_types!(names),
        generic: false,
        routines: &[
            "void shmem_{T}_sum_to_all({C} *dest, const {C} *source, int nreduce, int PE_start, int logPE_stride, int PE_size, {C} *pWrk, long *pSync);",
            "void shmem_{T}_prod_to_all({C} *dest, const {C} *source, int nreduce, int PE_start, int logPE_stride, int PE_size, {C} *pWrk, long *pSync);",
        ],
    },
];

/// Typed routines of `shmemx.h`.
pub const TYPED_EXTENSIONS: &[Family] = &[
    Family {
        types: rma_types!(names),
        generic: true,
        routines: &[
            "void shmemx_@{T}_ibput(@{C} *dest, const {C} *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);",
            "void shmemx_@{T}_ibget(@{C} *dest, const {C} *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);",
        ],
    },
    Family {
        types: sizes!(size_names),
        generic: false,
        routines: &[
            "void shmemx_@ibput{T}(@void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);",
            "void shmemx_@ibget{T}(@void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);",
        ],
    },
    Family {
        types: arithmetic_reduce_types!(names),
        generic: true,
        routines: &[
            "int shmemx_{T}_sum_inscan(shmem_team_t team, {C} *dest, const {C} *source, size_t nreduce);",
            "int shmemx_{T}_sum_exscan(shmem_team_t team, {C} *dest, const {C} *source, size_t nreduce);",
        ],
    },
];
