// Fills pencils with numbers that encode an element's place in the whole array, and counts wrong elements. All programs
// that `scripts/gpu.sh transposes` compares use it.
#ifdef __CUDACC_RTC__
#include "symrail_device.cuh"
#endif

// A pencil; dimensions are X, Y and Z.
struct numbers {
    // The pencil's memory, and the counter of wrong elements.
    symrail_u64 at, wrong;
    symrail_u64 edge, first[3], own[3], stride[3];
    // The width of the halo on all sides, the number of fields, and the elements of each field in memory.
    symrail_u64 halo, fields, field;
    // The halos that have neighbours' elements: those of Z, if the array is periodic, or where it continues.
    symrail_u64 filled, periodic;
};

SYMRAIL_DEVICE void number_of(symrail_u64 number, symrail_u64* value) { *value = number * 0x9E3779B97F4A7C15ull + 1; }
SYMRAIL_DEVICE void number_of(symrail_u64 number, symrail_wide* value) {
    number_of(number, &value->a);
    value->b = ~number;
}
SYMRAIL_DEVICE bool is_same(symrail_u64 one, symrail_u64 other) { return one == other; }
SYMRAIL_DEVICE bool is_same(symrail_wide one, symrail_wide other) { return one.a == other.a && one.b == other.b; }

template <class T, class F>
SYMRAIL_DEVICE void for_each(const numbers& it, const F& what) {
    symrail_u64 shape[3];
    for (int dim = 0; dim < 3; dim++) shape[dim] = it.own[dim] + 2 * it.halo;
    symrail_u64 each = shape[0] * shape[1] * shape[2], step = (symrail_u64)gridDim.x * blockDim.x;
    for (symrail_u64 i = (symrail_u64)blockIdx.x * blockDim.x + threadIdx.x; i < each * it.fields; i += step) {
        symrail_u64 left = i % each, place = i / each * it.field, global[3];
        bool own = true, there = true;
        for (int dim = 0; dim < 3; dim++) {
            symrail_u64 at = left % shape[dim], in_array = it.first[dim] + at;
            left /= shape[dim];
            place += at * it.stride[dim];
            bool inside = at >= it.halo && at < it.halo + it.own[dim];
            own = own && inside;
            // The array has this element, in the halo along Z.
            bool goes_on = it.periodic || (in_array >= it.halo && in_array < it.halo + it.edge);
            there = there && (inside || (it.filled && dim == 2 && goes_on));
            global[dim] = (in_array + it.edge - it.halo) % it.edge;
        }
        T value;
        number_of(((i / each * it.edge + global[2]) * it.edge + global[1]) * it.edge + global[0], &value);
        what((T*)it.at + place, value, own, there);
    }
}

template <class T>
SYMRAIL_DEVICE void fill(const numbers& it) {
    for_each<T>(it, [](T* at, T value, bool own, bool) {
        if (own) *at = value;
    });
}
template <class T>
SYMRAIL_DEVICE void check(const numbers& it) {
    symrail_u64* wrong = (symrail_u64*)it.wrong;
    for_each<T>(it, [wrong](T* at, T value, bool, bool there) {
        if (there && !is_same(*at, value)) atomicAdd(wrong, 1ull);
    });
}

extern "C" __global__ void __launch_bounds__(256) numbers_fill_8(const numbers it) { fill<symrail_u64>(it); }
extern "C" __global__ void __launch_bounds__(256) numbers_fill_16(const numbers it) { fill<symrail_wide>(it); }
extern "C" __global__ void __launch_bounds__(256) numbers_check_8(const numbers it) { check<symrail_u64>(it); }
extern "C" __global__ void __launch_bounds__(256) numbers_check_16(const numbers it) { check<symrail_wide>(it); }
