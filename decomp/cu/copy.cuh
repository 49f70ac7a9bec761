// Copies between two arrangements of the same elements, for a grid of blocks: packing, permuting and unpacking.
//
// Where the fastest dimension is the same on both sides, neighbouring threads copy neighbouring elements, in pieces of
// 16 bytes where all is aligned for that. Otherwise tiles go through shared memory, so that both reads and writes
// access neighbouring elements.
#ifndef SYMRAIL_DECOMP_COPY_CUH
#define SYMRAIL_DECOMP_COPY_CUH

#include "layout.cuh"

#ifndef DECOMP_SHARED
#define DECOMP_SHARED(TYPE, NAME) __shared__ TYPE NAME
#endif
// The number of elements that a thread of `copy_rows` has in flight.
#define DECOMP_UNROLL 4

// The place of a tile: the first element of its two loops, and the offsets of the other loops.
struct decomp_place {
    symrail_u64 first, second, from, to;
};

SYMRAIL_DEVICE symrail_u64 decomp_parts(symrail_u64 count, symrail_u32 of) { return (count + of - 1) / of; }

SYMRAIL_DEVICE symrail_u64 decomp_tiles(const decomp_copy& copy, symrail_u32 width, symrail_u32 height) {
    symrail_u64 tiles = decomp_parts(copy.loops[0].count, width) * decomp_parts(copy.loops[1].count, height);
    for (int i = 2; i < DECOMP_LOOPS; i++) tiles *= copy.loops[i].count;
    return tiles;
}

// The tiles of a block, from `first` on: neighbours in memory. Blocks start in the order of their numbers, so those that
// run at a time read and write within few pages, and none has much left when the others have ended.
struct decomp_run {
    symrail_u64 first, end;
};

SYMRAIL_DEVICE decomp_run decomp_run_of(symrail_u64 tiles, symrail_u64 block, symrail_u64 blocks) {
    symrail_u64 each = (tiles + blocks - 1) / blocks, first = block * each;
    return decomp_run{first, first + each < tiles ? first + each : tiles};
}

// The number of tiles is below 2^32, for which divisions are short.
SYMRAIL_DEVICE decomp_place decomp_tile(const decomp_copy& copy, symrail_u32 tile, symrail_u32 width, symrail_u32 height) {
    symrail_u32 across = (symrail_u32)decomp_parts(copy.loops[0].count, width);
    symrail_u32 down = (symrail_u32)decomp_parts(copy.loops[1].count, height), line = tile / across;
    decomp_place place = {(symrail_u64)(tile - line * across) * width, 0, 0, 0};
    tile = line / down;
    place.second = (symrail_u64)(line - tile * down) * height;
#pragma unroll
    for (int i = 2; i < DECOMP_LOOPS; i++) {
        symrail_u32 count = (symrail_u32)copy.loops[i].count;
        if (count == 1) continue;
        symrail_u32 left = tile / count, at = tile - left * count;
        tile = left;
        place.from += at * copy.loops[i].from;
        place.to += at * copy.loops[i].to;
    }
    return place;
}

template <class T>
SYMRAIL_DEVICE void decomp_copy_rows(const decomp_copy& copy, const T* from, T* to, symrail_u64 block, symrail_u64 blocks) {
    const decomp_loop row = copy.loops[0], rows = copy.loops[1];
    symrail_u32 lanes = 1;
    while (lanes < row.count && lanes < DECOMP_THREADS) lanes *= 2;
    // A thread's elements are in one row if that is long, otherwise in several rows.
    bool one_row = lanes == DECOMP_THREADS;
    symrail_u32 height = DECOMP_THREADS / lanes, step = one_row ? lanes : height;
    symrail_u32 width = one_row ? lanes * DECOMP_UNROLL : lanes, tall = one_row ? 1 : height * DECOMP_UNROLL;
    symrail_u64 from_step = step * (one_row ? row.from : rows.from), to_step = step * (one_row ? row.to : rows.to);
    symrail_u64 tiles = decomp_tiles(copy, width, tall);
    const decomp_run run = decomp_run_of(tiles, block, blocks);
    for (symrail_u64 tile = run.first; tile < run.end; tile++) {
        decomp_place place = decomp_tile(copy, (symrail_u32)tile, width, tall);
        symrail_u64 i = place.first + threadIdx.x % lanes, j = place.second + threadIdx.x / lanes;
        if (i >= row.count || j >= rows.count) continue;
        const T* source = from + place.from + i * row.from + j * rows.from;
        T* dest = to + place.to + i * row.to + j * rows.to;
        symrail_u64 left = one_row ? row.count - i : rows.count - j;
        T values[DECOMP_UNROLL];
#pragma unroll
        for (symrail_u32 k = 0; k < DECOMP_UNROLL; k++)
            if (k * step < left) values[k] = source[k * from_step];
#pragma unroll
        for (symrail_u32 k = 0; k < DECOMP_UNROLL; k++)
            if (k * step < left) dest[k * to_step] = values[k];
    }
}

template <class T>
SYMRAIL_DEVICE void decomp_copy_tiles(const decomp_copy& copy, const T* from, T* to, symrail_u64 block, symrail_u64 blocks) {
    // Small elements need larger tiles, so that rows of tiles are whole pieces of memory.
    const symrail_u32 size = sizeof(T) <= 4 ? 64 : 32, lines = DECOMP_THREADS / 32;
    // The gap puts the columns of the tile in different banks.
    const symrail_u32 gap = sizeof(T) < 4 ? 4 / sizeof(T) : 1;
    // The tile has the same size for all types. Otherwise a multiprocessor would change the split of its memory between
    // kernels that wait, and drain for that.
    typedef symrail_wide decomp_tile_room[32 * 33];
    static_assert(sizeof(T[size][size + gap]) <= sizeof(decomp_tile_room), "tiles have room");
    DECOMP_SHARED(decomp_tile_room, tile_room);
    T(*tile_of)[size + gap] = (T(*)[size + gap])tile_room;
    const decomp_loop row = copy.loops[0], column = copy.loops[1];
    symrail_u64 tiles = decomp_tiles(copy, size, size);
    symrail_u32 x = threadIdx.x % 32, y = threadIdx.x / 32;
    const decomp_run run = decomp_run_of(tiles, block, blocks);
    for (symrail_u64 tile = run.first; tile < run.end; tile++) {
        decomp_place place = decomp_tile(copy, (symrail_u32)tile, size, size);
        const T* source = from + place.from + (place.first + y) * row.from + (place.second + x) * column.from;
        T* dest = to + place.to + (place.first + x) * row.to + (place.second + y) * column.to;
        symrail_u64 wide = row.count - place.first, high = column.count - place.second;
        symrail_u32 width = wide < size ? (symrail_u32)wide : size, height = high < size ? (symrail_u32)high : size;
#pragma unroll
        for (symrail_u32 j = 0; j < size; j += lines) {
#pragma unroll
            for (symrail_u32 i = 0; i < size; i += 32)
                if (j + y < width && i + x < height) tile_of[j + y][i + x] = source[i * column.from];
            source += lines * row.from;
        }
        __syncthreads();
#pragma unroll
        for (symrail_u32 j = 0; j < size; j += lines) {
#pragma unroll
            for (symrail_u32 i = 0; i < size; i += 32)
                if (i + x < width && j + y < height) dest[i * row.to] = tile_of[i + x][j + y];
            dest += lines * column.to;
        }
        __syncthreads();
    }
}

// Copies elements of T to `to`, as block `block` of `blocks`. The description of the copy is in the block's shared
// memory, not in its threads' registers.
template <class T>
SYMRAIL_DEVICE void decomp_copy_part(const decomp_copy& given, symrail_u64 to, symrail_u64 block, symrail_u64 blocks) {
    DECOMP_SHARED(decomp_copy, copy);
    const symrail_u64 in_piece = sizeof(symrail_wide) / sizeof(T);
    bool wide = given.wide && !given.tiled && ((given.from | to) & 15) == 0;
    if (threadIdx.x == 0) {
        copy = given;
        if (wide) {
            copy.loops[0].count /= in_piece;
            for (int i = 1; i < DECOMP_LOOPS; i++) copy.loops[i].from /= in_piece, copy.loops[i].to /= in_piece;
        }
    }
    __syncthreads();
    if (copy.tiled) decomp_copy_tiles(copy, (const T*)copy.from, (T*)to, block, blocks);
    else if (wide) decomp_copy_rows(copy, (const symrail_wide*)copy.from, (symrail_wide*)to, block, blocks);
    else decomp_copy_rows(copy, (const T*)copy.from, (T*)to, block, blocks);
}

#endif
