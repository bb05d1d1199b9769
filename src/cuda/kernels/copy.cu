/* SPDX-License-Identifier: MIT */
/* Kernels that copy, cast and fill over any strides. */
#include "cuda/kernels/any.h"
#include "cuda/kernels/copy.h"
#include "cuda/kernels/target.h"
#include "cuda/kernels/vector.h"

/* Where a unit of any strides lies, and its number in the last dimension. */
struct copy_at {
    uint64_t dst;
    uint64_t src;
    uint32_t column;
};

DEVICE_FUNCTION struct copy_at copy_find(const struct copy_arguments *a, uint32_t unit)
{
    struct copy_at at = {a->dst, a->src, 0};
    uint32_t last = a->n_dims - 1;
    NOT_UNROLLED
    for (uint32_t i = last; i < a->n_dims; i--) {
        uint32_t outer = vector_divide(unit, a->dims[i].magic, a->dims[i].shift);
        uint32_t index = unit - outer * a->dims[i].size;
        at.dst += (uint64_t)index * (uint64_t)a->dims[i].dst_stride;
        at.src += (uint64_t)index * (uint64_t)a->dims[i].src_stride;
        at.column = i == last ? index : at.column;
        unit = outer;
    }
    return at;
}

DEVICE_FUNCTION struct vector load_or_fill(const struct copy_arguments *a, struct copy_at at)
{
    return a->src ? vector_get(at.src, a->unit_bytes) : any_fill(a->fill, at.column * a->unit_bytes);
}

CUDA_KERNEL_BOUNDS(copy_bits, struct copy_arguments, COPY_THREADS, 8)
CUDA_KERNEL(copy_bits, struct copy_arguments, 1)
{
    (void)PHASE;
    uint32_t unit = self->block * COPY_BLOCK_UNITS + self->thread;
    if (unit + COPY_THREADS < a->n_units) {
        struct copy_at at = copy_find(a, unit);
        struct copy_at next = copy_find(a, unit + COPY_THREADS);
        struct vector value = load_or_fill(a, at);
        struct vector next_value = load_or_fill(a, next);
        vector_put(at.dst, value, a->unit_bytes);
        vector_put(next.dst, next_value, a->unit_bytes);
    } else if (unit < a->n_units) {
        struct copy_at at = copy_find(a, unit);
        vector_put(at.dst, load_or_fill(a, at), a->unit_bytes);
    }
}

CUDA_KERNEL_BOUNDS(copy_elements, struct copy_arguments, COPY_THREADS, 8)
CUDA_KERNEL(copy_elements, struct copy_arguments, 1)
{
    (void)PHASE;
    uint32_t index = self->block * COPY_BLOCK_UNITS + self->thread;
    uint32_t dst_bytes = any_bytes(a->dst_dtype);
    uint32_t src_bytes = any_bytes(a->src_dtype);
    NOT_UNROLLED
    for (uint32_t k = 0; k < 2 && index < a->n_units; k++, index += COPY_THREADS) {
        struct copy_at at = copy_find(a, index);
        any_store(at.dst,
                  convert_element((shoal_dtype)a->dst_dtype, (shoal_dtype)a->src_dtype,
                                  any_load(at.src, src_bytes)),
                  dst_bytes);
    }
}

/* Transposing ------------------------------------------------------------------------------------------- */

/* Units in shared memory. */
DEVICE_FUNCTION void put_shared(unsigned char *shared, uint32_t index, struct vector value, uint32_t bytes)
{
    uint32_t *words = (uint32_t *)(void *)shared;
    if (bytes == 1) {
        shared[index] = (unsigned char)value.x;
    } else if (bytes == 2) {
        ((uint16_t *)(void *)shared)[index] = (uint16_t)value.x;
    } else if (bytes == 4) {
        words[index] = value.x;
    } else if (bytes == 8) {
        words[2 * index] = value.x;
        words[2 * index + 1] = value.y;
    } else {
        words[4 * index] = value.x;
        words[4 * index + 1] = value.y;
        words[4 * index + 2] = value.z;
        words[4 * index + 3] = value.w;
    }
}

DEVICE_FUNCTION struct vector get_shared(const unsigned char *shared, uint32_t index, uint32_t bytes)
{
    const uint32_t *words = (const uint32_t *)(const void *)shared;
    struct vector value = {0, 0, 0, 0};
    if (bytes == 1) {
        value.x = shared[index];
    } else if (bytes == 2) {
        value.x = ((const uint16_t *)(const void *)shared)[index];
    } else if (bytes == 4) {
        value.x = words[index];
    } else if (bytes == 8) {
        value.x = words[2 * index];
        value.y = words[2 * index + 1];
    } else {
        value.x = words[4 * index];
        value.y = words[4 * index + 1];
        value.z = words[4 * index + 2];
        value.w = words[4 * index + 3];
    }
    return value;
}

/* A tile: where its matrix lies, and its first row and column there. */
struct tile {
    struct copy_at at;
    uint32_t row;
    uint32_t column;
};

DEVICE_FUNCTION struct tile find_tile(const struct transpose_arguments *a, uint32_t block)
{
    uint32_t above = vector_divide(block, a->column_tiles.magic, a->column_tiles.shift);
    uint32_t outer = vector_divide(above, a->row_tiles.magic, a->row_tiles.shift);
    struct tile tile = {copy_find(&a->outer, outer), (above - outer * a->row_tiles.size) * TRANSPOSE_SIDE,
                        (block - above * a->column_tiles.size) * TRANSPOSE_SIDE};
    return tile;
}

/* One of the tile's columns of src, or rows of dst: threads that follow each other go along it. */
DEVICE_FUNCTION void move_line(const struct transpose_arguments *a, const struct cuda_thread *self,
                               struct tile tile, uint32_t across, uint32_t bytes, bool is_reading)
{
    uint32_t along = self->thread % TRANSPOSE_SIDE;
    uint32_t row = tile.row + (is_reading ? along : across);
    uint32_t column = tile.column + (is_reading ? across : along);
    if (row >= a->n_rows || column >= a->n_columns) {
        return;
    }
    if (is_reading) {
        uint64_t from =
            tile.at.src + (uint64_t)row * bytes + (uint64_t)column * (uint64_t)a->src_column_stride;
        put_shared(self->shared, across * TRANSPOSE_ROW_UNITS + along, vector_get(from, bytes), bytes);
    } else {
        uint64_t to = tile.at.dst + (uint64_t)column * bytes + (uint64_t)row * (uint64_t)a->dst_row_stride;
        vector_put(to, get_shared(self->shared, along * TRANSPOSE_ROW_UNITS + across, bytes), bytes);
    }
}

DEVICE_FUNCTION void move_tile(const struct transpose_arguments *a, const struct cuda_thread *self,
                               struct tile tile, uint32_t bytes, bool is_reading)
{
    UNROLLED
    for (uint32_t k = 0; k < TRANSPOSE_SIDE; k += COPY_THREADS / TRANSPOSE_SIDE) {
        move_line(a, self, tile, k + self->thread / TRANSPOSE_SIDE, bytes, is_reading);
    }
}

CUDA_KERNEL_BOUNDS(copy_transposed, struct transpose_arguments, COPY_THREADS, 8)
CUDA_KERNEL(copy_transposed, struct transpose_arguments, 2)
{
    const struct tile tile = find_tile(a, self->block);
    switch (a->outer.unit_bytes) {
    case 1:
        move_tile(a, self, tile, 1, PHASE == 0);
        break;
    case 2:
        move_tile(a, self, tile, 2, PHASE == 0);
        break;
    case 4:
        move_tile(a, self, tile, 4, PHASE == 0);
        break;
    case 8:
        move_tile(a, self, tile, 8, PHASE == 0);
        break;
    default:
        move_tile(a, self, tile, 16, PHASE == 0);
        break;
    }
}
