/* SPDX-License-Identifier: MIT */
/*
 * Packing tensors into one row per rank (chunk-cat) and unpacking rows into tensors (split-copy), both in one
 * pass: every piece is contiguous on both sides, and is copied or cast straight to its place.
 *
 * The destination is written from front to back when packing, the source read so when unpacking. Whether to
 * bypass the cache depends on the size of the whole, not of the piece.
 */
#include "kernel/kernel.h"

#include "kernel/simd.h"
#include "tensor/dtype.h"

#include <string.h>

/* How pieces are moved: with a function of the vector table where it has one, otherwise with kernel_cast. */
struct mover {
    shoal_dtype dst_dtype;
    shoal_dtype src_dtype;
    size_t dst_element_bytes;
    size_t src_element_bytes;
    simd_copy_function *copy;
    simd_cast_function *cast;
};

struct cast_row {
    shoal_dtype dst_dtype;
    shoal_dtype src_dtype;
    simd_cast_function *cast;
    simd_cast_function *cast_stream;
};

static simd_cast_function *find_cast(shoal_dtype dst_dtype, shoal_dtype src_dtype, bool is_stream)
{
    const struct simd_table *table = simd_table();
    const struct cast_row rows[] = {
        {SHOAL_BF16, SHOAL_F32, table->cast_f32_bf16, table->cast_f32_bf16_stream},
        {SHOAL_F16, SHOAL_F32, table->cast_f32_f16, table->cast_f32_f16_stream},
        {SHOAL_F32, SHOAL_BF16, table->cast_bf16_f32, table->cast_bf16_f32_stream},
        {SHOAL_F32, SHOAL_F16, table->cast_f16_f32, table->cast_f16_f32_stream},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].dst_dtype == dst_dtype && rows[i].src_dtype == src_dtype) {
            return is_stream ? rows[i].cast_stream : rows[i].cast;
        }
    }
    return NULL;
}

static struct mover make_mover(shoal_dtype dst_dtype, shoal_dtype src_dtype, int64_t dst_elems)
{
    struct mover mover = {.dst_dtype = dst_dtype,
                          .src_dtype = src_dtype,
                          .dst_element_bytes = dtype_bytes(dst_dtype),
                          .src_element_bytes = dtype_bytes(src_dtype)};
    const struct simd_table *table = simd_table();
    bool is_stream = simd_is_streaming((size_t)dst_elems * mover.dst_element_bytes);
    /* Casting bool to bool makes bytes 0 or 1, so it is no copy. */
    if (dst_dtype == src_dtype && dst_dtype != SHOAL_BOOL) {
        mover.copy = is_stream ? table->copy_stream : table->copy;
    } else {
        mover.cast = find_cast(dst_dtype, src_dtype, is_stream);
    }
    return mover;
}

static void move_piece(const struct mover *mover, void *dst, const void *src, size_t count)
{
    if (mover->copy) {
        mover->copy(dst, src, count * mover->dst_element_bytes);
    } else if (mover->cast) {
        mover->cast(dst, src, count);
    } else {
        kernel_cast(mover->dst_dtype, dst, mover->src_dtype, src, count);
    }
}

/* Packing ----------------------------------------------------------------------------------------------- */

/* Rows of a chunk: ceil(rows / n_ranks), without the overflow of rows + n_ranks - 1. */
static int64_t find_chunk_rows(int64_t rows, int64_t n_ranks)
{
    return rows / n_ranks + (rows % n_ranks != 0);
}

int64_t kernel_pack_row_elems(const struct kernel_pack_item *items, size_t n_items, int64_t n_ranks)
{
    int64_t elems = 0;
    for (size_t i = 0; i < n_items; i++) {
        elems += find_chunk_rows(items[i].rows, n_ranks) * items[i].row_elems;
    }
    return elems;
}

/* Chunk `rank` of an item, then zeros; returns where the next item's begins. All zero bits are zero in every
   dtype. */
static char *pack_chunk(const struct mover *mover, char *dst, const struct kernel_pack_item *item,
                        int64_t n_ranks, int64_t rank)
{
    int64_t chunk_rows = find_chunk_rows(item->rows, n_ranks);
    int64_t left_rows = 0;
    /* rank * chunk_rows is beyond the tensor, and may be beyond int64_t, for ranks that get nothing. */
    if (chunk_rows > 0 && rank <= item->rows / chunk_rows) {
        left_rows = item->rows - rank * chunk_rows;
    }
    int64_t filled_rows = left_rows < chunk_rows ? left_rows : chunk_rows;
    size_t filled = (size_t)filled_rows * (size_t)item->row_elems;
    size_t padding = (size_t)(chunk_rows - filled_rows) * (size_t)item->row_elems;
    if (filled > 0) {
        size_t first = (size_t)rank * (size_t)chunk_rows * (size_t)item->row_elems;
        move_piece(mover, dst, (const char *)item->data + first * mover->src_element_bytes, filled);
        dst += filled * mover->dst_element_bytes;
    }
    if (padding > 0) {
        memset(dst, 0, padding * mover->dst_element_bytes);
        dst += padding * mover->dst_element_bytes;
    }
    return dst;
}

void kernel_pack(shoal_dtype dst_dtype, void *dst, shoal_dtype src_dtype,
                 const struct kernel_pack_item *items, size_t n_items, int64_t n_ranks, int64_t first_rank,
                 int64_t n_rows)
{
    int64_t dst_elems = n_rows * kernel_pack_row_elems(items, n_items, n_ranks);
    struct mover mover = make_mover(dst_dtype, src_dtype, dst_elems);
    char *to = dst;
    for (int64_t row = 0; row < n_rows; row++) {
        for (size_t i = 0; i < n_items; i++) {
            to = pack_chunk(&mover, to, &items[i], n_ranks, first_rank + row);
        }
    }
}

/* Unpacking --------------------------------------------------------------------------------------------- */

void kernel_unpack(shoal_dtype dst_dtype, const struct kernel_unpack_item *items, size_t n_items,
                   shoal_dtype src_dtype, const void *src, int64_t n_rows)
{
    int64_t row_elems = 0;
    for (size_t i = 0; i < n_items; i++) {
        row_elems += items[i].elems;
    }
    struct mover mover = make_mover(dst_dtype, src_dtype, n_rows * row_elems);
    const char *from = src;
    for (int64_t row = 0; row < n_rows; row++) {
        for (size_t i = 0; i < n_items; i++) {
            size_t elems = (size_t)items[i].elems;
            if (elems > 0) {
                char *to = (char *)items[i].data + (size_t)row * elems * mover.dst_element_bytes;
                move_piece(&mover, to, from, elems);
                from += elems * mover.src_element_bytes;
            }
        }
    }
}
