// The interface between NVSHMEM's host library and a remote transport, declared a second time, only from sizes and
// offsets and for a C++ compiler. If the plugin and this file agree, neither has a mistake of its own.
#pragma once
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

struct handle_t { char bytes[512]; };
struct pe_info_t { int pcie[3]; int pe; uint64_t host_hash; unsigned char uuid[16]; };
struct rma_verb_t { int op, is_nbi, is_stream; void *stream; };
struct rma_memdesc_t { void *ptr; uint64_t offset; handle_t *handle; };
struct rma_bytesdesc_t { size_t elements; int element_bytes; ptrdiff_t source_stride, dest_stride; };
struct amo_memdesc_t {
    rma_memdesc_t remote;
    uint64_t retflag;
    void *retptr, *valptr, *cmpptr;
    uint64_t val, cmp;
    handle_t *ret_handle;
};
struct amo_bytesdesc_t { int name_type, element_bytes; };
struct amo_verb16_t { int op, is_fetch, is_val, is_cmp; };
struct amo_verb20_t { int op, is_fetch, is_val, is_cmp, is_float; };
struct bootstrap_t {
    int version, rank, size, local_pe, local_pes;
    int (*allgather)(const void *, void *, int, bootstrap_t *);
    int (*alltoall)(const void *, void *, int, bootstrap_t *);
    int (*barrier)(bootstrap_t *);
    void (*global_exit)(int);
    int (*finalize)(bootstrap_t *);
    int (*show_info)(bootstrap_t *, int);
    void *pre_init_ops, *comm_state;
};
static_assert(sizeof(pe_info_t) == 40 && sizeof(rma_verb_t) == 24 && sizeof(rma_bytesdesc_t) == 32);
static_assert(sizeof(amo_memdesc_t) == 80 && sizeof(amo_verb20_t) == 20 && offsetof(bootstrap_t, allgather) == 0x18);

enum { OP_PUT = 1, OP_P = 2, OP_GET = 4, OP_G = 5 };
enum { AMO_ACK = 1, AMO_INC, AMO_SET, AMO_ADD, AMO_AND, AMO_OR, AMO_XOR, AMO_SIGNAL, AMO_SIGNAL_SET, AMO_SIGNAL_ADD };
enum { AMO_FETCH = 12, AMO_FETCH_INC, AMO_FETCH_ADD, AMO_FETCH_AND, AMO_FETCH_OR, AMO_FETCH_XOR, AMO_SWAP, AMO_CSWAP };
enum { QP_HOST = 0, QP_DEFAULT = 1, QP_ALL = INT32_MAX };

// The versions of the interface: 3 is NVSHMEM 3.4, … 7 is 3.8.
template <int V> struct transport;

template <int V> struct verb { using type = amo_verb16_t; };
template <> struct verb<6> { using type = amo_verb20_t; };
template <> struct verb<7> { using type = amo_verb20_t; };

template <int V> struct ops_first {
    using T = transport<V>;
    int (*can_reach_peer)(int *, pe_info_t *, T *);
    int (*connect_endpoints)(T *, int *, int, int *, int);
    int (*get_mem_handle)(handle_t *, void *, size_t, T *, bool);
    int (*release_mem_handle)(handle_t *, T *);
    int (*finalize)(T *);
    int (*show_info)(T *, int);
    int (*progress)(T *);
    int (*rma)(T *, int, rma_verb_t, rma_memdesc_t *, rma_memdesc_t *, rma_bytesdesc_t, int);
    int (*amo)(T *, int, void *, typename verb<V>::type, amo_memdesc_t *, amo_bytesdesc_t, int);
    int (*fence)(T *, int, int, int);
    int (*quiet)(T *, int, int);
};
template <int V> struct put_signal {
    int (*put_signal)(transport<V> *, int, rma_verb_t, std::vector<rma_memdesc_t> &, std::vector<rma_memdesc_t> &,
                      std::vector<rma_bytesdesc_t> &, typename verb<V>::type, amo_memdesc_t *, amo_bytesdesc_t, int);
};
struct ops_last {
    void *enforce_cst, *enforce_cst_at_target, *add_device_remote_mem_handles;
};
struct head_t { int api_version, type; int *cap; };
struct fields_t {
    bootstrap_t *boot_handle;
    void *state, *type_specific_shared_state, *cache_handle;
    char **device_pci_paths;
    int attr, n_devices;
    bool atomics_complete_on_quiet, is_successfully_initialized, no_proxy;
    void *heap_base;
    size_t log2_cumem_granularity;
    uint64_t max_op_len;
    uint32_t atomic_host_endian_min_size;
    int index, my_pe, n_pes;
    std::unordered_map<void *, void *> *alias_va_map;
    std::unordered_map<void *, size_t> *egm_map;
};
template <> struct transport<3> : head_t { ops_first<3> ops; ops_last last; fields_t f; };
template <> struct transport<4> : head_t { fields_t f; ops_first<4> ops; put_signal<4> ps; ops_last last; };
template <> struct transport<5> : head_t { fields_t f; ops_first<5> ops; put_signal<5> ps; ops_last last; };
template <> struct transport<6> : head_t { fields_t f; ops_first<6> ops; put_signal<6> ps; ops_last last; void *hints; };
template <> struct transport<7> : head_t {
    fields_t f; ops_first<7> ops; put_signal<7> ps; ops_last last; void *hints, *region_flush; int assignment;
};
static_assert(sizeof(transport<3>) == 0xf0 && sizeof(transport<4>) == 0xf8 && sizeof(transport<5>) == 0xf8);
static_assert(sizeof(transport<6>) == 0x100 && sizeof(transport<7>) == 0x110);
