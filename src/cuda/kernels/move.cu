/* SPDX-License-Identifier: MIT */
/*
 * Kernels that move contiguous elements, and rows that are packed and unpacked. A block has one tile, so that the GPU
 * distributes the work; a thread loads its units before it stores the first.
 */
#include "cuda/kernels/any.h"
#include "cuda/kernels/floats.h"
#include "cuda/kernels/items.h"
#include "cuda/kernels/move.h"
#include "cuda/kernels/target.h"
#include "cuda/kernels/vector.h"

/* Bytes ------------------------------------------------------------------------------------------------- */

/* A unit that may be, or have, padding, or be cut off. */
DEVICE_FUNCTION void move_last_bytes(const struct move_table *a, const struct move_item *item, uint32_t unit,
                                     uint32_t unit_bytes)
{
    uint32_t first = unit * unit_bytes;
    if (first >= item->n_elems) {
        return;
    }
    struct move_at at = items_at(a, item, unit, unit_bytes, unit_bytes);
    if (first + unit_bytes <= item->n_filled) {
        vector_put(at.dst, vector_get(at.src, unit_bytes), unit_bytes);
        return;
    }
    if (first >= item->n_filled && first + unit_bytes <= item->n_elems) {
        vector_put(at.dst, any_fill(a->fill, first), unit_bytes);
        return;
    }
    NOT_UNROLLED
    for (uint32_t i = 0; i < unit_bytes && first + i < item->n_elems; i++) {
        struct vector byte =
            first + i < item->n_filled ? vector_get(at.src + i, 1) : any_fill(a->fill, first + i);
        vector_put(at.dst + i, byte, 1);
    }
}

DEVICE_FUNCTION void move_bytes_tile(const struct move_table *a, const struct move_item *item,
                                     const struct cuda_thread *self, uint32_t tile, uint32_t unit_bytes)
{
    uint32_t unit = tile * MOVE_TILE_UNITS + self->thread;
    if ((tile + 1) * (MOVE_TILE_UNITS * unit_bytes) <= item->n_filled) {
        struct move_at at = items_at(a, item, unit, unit_bytes, unit_bytes);
        struct move_at next = items_at(a, item, unit + MOVE_THREADS, unit_bytes, unit_bytes);
        struct vector value = vector_get(at.src, unit_bytes);
        struct vector next_value = vector_get(next.src, unit_bytes);
        vector_put(at.dst, value, unit_bytes);
        vector_put(next.dst, next_value, unit_bytes);
        return;
    }
    NOT_UNROLLED
    for (uint32_t k = 0; k < MOVE_UNITS; k++) {
        move_last_bytes(a, item, unit + k * MOVE_THREADS, unit_bytes);
    }
}

CUDA_KERNEL_BOUNDS(move_bytes, struct move_table, MOVE_THREADS, 8)
CUDA_KERNEL(move_bytes, struct move_table, 1)
{
    (void)PHASE;
    const struct move_item *item = items_find(a, self->block);
    uint32_t tile = self->block - item->first_tile;
    switch (item->unit_log2) {
    case 0:
        move_bytes_tile(a, item, self, tile, 1);
        break;
    case 1:
        move_bytes_tile(a, item, self, tile, 2);
        break;
    case 2:
        move_bytes_tile(a, item, self, tile, 4);
        break;
    case 3:
        move_bytes_tile(a, item, self, tile, 8);
        break;
    default:
        move_bytes_tile(a, item, self, tile, 16);
        break;
    }
}

/* f32, f16 and bf16 ------------------------------------------------------------------------------------- */

/* How the floats of an item are moved. */
struct floats_move {
    uint32_t dst_dtype;
    uint32_t src_dtype;
    bool is_added;
};

DEVICE_FUNCTION struct floats_move floats_move_of(const struct move_table *a, const struct move_item *item)
{
    struct floats_move move = {item->dst_dtype, item->src_dtype, a->is_added != 0};
    return move;
}

/* As on the CPU: the source is rounded to the dtype of the destination, and the sum once more. */
DEVICE_FUNCTION struct floats add_floats(struct floats values, struct vector old_value, uint32_t dtype)
{
    struct floats rounded = floats_read(floats_write(values, dtype), dtype);
    struct floats old = floats_read(old_value, dtype);
    struct floats sum = {old.x + rounded.x, old.y + rounded.y, old.z + rounded.z, old.w + rounded.w};
    return sum;
}

/* A unit of n floats that has been loaded. */
struct loaded {
    struct vector value;
    struct vector old; /* what the destination holds, if that is added to */
};

DEVICE_FUNCTION struct loaded load_unit(struct floats_move move, struct move_at at, uint32_t n)
{
    struct loaded unit = {floats_load(at.src, n, move.src_dtype), {0, 0, 0, 0}};
    if (move.is_added) {
        unit.old = floats_load(at.dst, n, move.dst_dtype);
    }
    return unit;
}

DEVICE_FUNCTION void store_unit(struct floats_move move, struct move_at at, struct loaded unit, uint32_t n)
{
    struct floats values = floats_read(unit.value, move.src_dtype);
    if (move.is_added) {
        values = add_floats(values, unit.old, move.dst_dtype);
    }
    floats_store(at.dst, values, n, move.dst_dtype);
}

DEVICE_FUNCTION void move_unit(struct floats_move move, struct move_at at, uint32_t n)
{
    store_unit(move, at, load_unit(move, at, n), n);
}

/* A unit that may be, or have, padding, or be cut off. */
DEVICE_FUNCTION void move_last_floats(const struct move_table *a, const struct move_item *item, uint32_t unit,
                                      uint32_t n)
{
    uint32_t first = unit * n;
    uint32_t dst_bytes = floats_bytes(item->dst_dtype);
    uint32_t src_bytes = floats_bytes(item->src_dtype);
    if (first >= item->n_elems) {
        return;
    }
    struct move_at at = items_at(a, item, unit, n * dst_bytes, n * src_bytes);
    if (first + n <= item->n_filled) {
        move_unit(floats_move_of(a, item), at, n);
        return;
    }
    NOT_UNROLLED
    for (uint32_t i = 0; i < n && first + i < item->n_elems; i++) {
        if (first + i < item->n_filled) {
            move_unit(floats_move_of(a, item), at, 1);
        } else {
            struct vector zero = {0, 0, 0, 0};
            vector_put(at.dst, zero, dst_bytes);
        }
        at.dst += dst_bytes;
        at.src += src_bytes;
    }
}

/* Two units of four. */
DEVICE_FUNCTION void move_pair(const struct move_table *a, const struct move_item *item, uint32_t unit,
                               struct floats_move move)
{
    uint32_t dst_bytes = 4 * floats_bytes(move.dst_dtype);
    uint32_t src_bytes = 4 * floats_bytes(move.src_dtype);
    struct move_at first = items_at(a, item, unit, dst_bytes, src_bytes);
    struct move_at second = items_at(a, item, unit + MOVE_THREADS, dst_bytes, src_bytes);
    struct loaded first_unit = load_unit(move, first, 4);
    struct loaded second_unit = load_unit(move, second, 4);
    store_unit(move, first, first_unit, 4);
    store_unit(move, second, second_unit, 4);
}

/* `move` is a constant: without branches over dtypes the memory is what a tile waits for. */
DEVICE_FUNCTION bool move_pair_if(const struct move_table *a, const struct move_item *item, uint32_t unit,
                                  struct floats_move wanted, struct floats_move move)
{
    if (wanted.dst_dtype != move.dst_dtype || wanted.src_dtype != move.src_dtype ||
        wanted.is_added != move.is_added) {
        return false;
    }
    move_pair(a, item, unit, move);
    return true;
}

/* Units of four are the usual ones, and these moves: parameters that are cast for a step, and their gradients. */
DEVICE_FUNCTION bool move_whole_tile(const struct move_table *a, const struct move_item *item, uint32_t tile,
                                     uint32_t unit)
{
    const struct floats_move to_bf16 = {SHOAL_BF16, SHOAL_F32, false};
    const struct floats_move from_bf16 = {SHOAL_F32, SHOAL_BF16, false};
    const struct floats_move bf16_added = {SHOAL_F32, SHOAL_BF16, true};
    const struct floats_move f32_added = {SHOAL_F32, SHOAL_F32, true};
    const struct floats_move wanted = floats_move_of(a, item);
    if (item->unit_log2 != 2 || (tile + 1) * (MOVE_TILE_UNITS * 4) > item->n_filled) {
        return false;
    }
    if (!move_pair_if(a, item, unit, wanted, to_bf16) && !move_pair_if(a, item, unit, wanted, from_bf16) &&
        !move_pair_if(a, item, unit, wanted, bf16_added) && !move_pair_if(a, item, unit, wanted, f32_added)) {
        move_pair(a, item, unit, wanted);
    }
    return true;
}

CUDA_KERNEL_BOUNDS(move_floats, struct move_table, MOVE_THREADS, 8)
CUDA_KERNEL(move_floats, struct move_table, 1)
{
    (void)PHASE;
    const struct move_item *item = items_find(a, self->block);
    uint32_t tile = self->block - item->first_tile;
    uint32_t unit = tile * MOVE_TILE_UNITS + self->thread;
    if (move_whole_tile(a, item, tile, unit)) {
        return;
    }
    NOT_UNROLLED
    for (uint32_t k = 0; k < MOVE_UNITS; k++, unit += MOVE_THREADS) {
        if (item->unit_log2 == 2) {
            move_last_floats(a, item, unit, 4);
        } else if (item->unit_log2 == 1) {
            move_last_floats(a, item, unit, 2);
        } else {
            move_last_floats(a, item, unit, 1);
        }
    }
}

/* Any dtype --------------------------------------------------------------------------------------------- */

#define SUM_FLOAT(NAME) sum = element_store_##NAME(element_load_##NAME(x) + element_load_##NAME(y))
#define SUM_COMPLEX(NAME) sum.re = x.re + y.re, sum.im = x.im + y.im
#define SUM_FLOAT8(NAME) sum = x /* has no arithmetic: none of these is added */
#define SUM_SIGNED SUM_FLOAT8
#define SUM_UNSIGNED SUM_FLOAT8
#define SUM_BOOLEAN SUM_FLOAT8

DEVICE_FUNCTION struct convert_element add_elements(uint32_t dtype, struct convert_element a,
                                                    struct convert_element b)
{
    switch ((shoal_dtype)dtype) {
#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits) \
    case SHOAL_##NAME: {                                               \
        value_##NAME x, y, sum;                                        \
        memcpy(&x, &a, sizeof(x));                                     \
        memcpy(&y, &b, sizeof(y));                                     \
        SUM_##kind(NAME);                                              \
        memcpy(&a, &sum, sizeof(sum));                                 \
        break;                                                         \
    }
#include "tensor/dtypes.def"
#undef DTYPE
    }
    return a;
}

CUDA_KERNEL_BOUNDS(move_elements, struct move_table, MOVE_THREADS, 8)
CUDA_KERNEL(move_elements, struct move_table, 1)
{
    (void)PHASE;
    const struct move_item *item = items_find(a, self->block);
    uint32_t index = (self->block - item->first_tile) * MOVE_TILE_UNITS + self->thread;
    uint32_t dst_bytes = any_bytes(item->dst_dtype);
    uint32_t src_bytes = any_bytes(item->src_dtype);
    NOT_UNROLLED
    for (uint32_t k = 0; k < MOVE_UNITS && index < item->n_elems; k++, index += MOVE_THREADS) {
        struct move_at at = items_at(a, item, index, dst_bytes, src_bytes);
        struct convert_element element = {{0, 0}};
        if (index < item->n_filled) {
            element = convert_element((shoal_dtype)item->dst_dtype, (shoal_dtype)item->src_dtype,
                                      any_load(at.src, src_bytes));
        }
        if (a->is_added) {
            element = add_elements(item->dst_dtype, any_load(at.dst, dst_bytes), element);
        }
        any_store(at.dst, element, dst_bytes);
    }
}
