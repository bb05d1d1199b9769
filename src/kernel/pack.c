/* SPDX-License-Identifier: MIT */
/*
 * Packing tensors into one row per rank (chunk-cat) and unpacking rows into tensors (split-copy), both in one
 * pass: every piece is contiguous on both sides, and is copied or cast straight to its place.
 *
 * Whether to bypass the cache depends on the size of the whole, not of the piece.
 */
#include "kernel/kernel.h"

#include "base/fp_mode.h"
#include "kernel/simd.h"
#include "tensor/dtype.h"

#include <string.h>

/* How pieces are moved: `copy` bytes past the cache, or else memcpy them where `is_copy`, or else with `cast`
   of the vector table, or else with kernel_cast. */
struct mover {
    shoal_dtype dst_dtype;
    shoal_dtype src_dtype;
    size_t dst_element_bytes;
    size_t src_element_bytes;
    bool is_copy;
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
    bool is_stream = simd_is_streaming((size_t)dst_elems * mover.dst_element_bytes);
    /* Casting bool to bool makes bytes 0 or 1, so it is no copy. */
    mover.is_copy = dst_dtype == src_dtype && dst_dtype != SHOAL_BOOL;
    if (!mover.is_copy) {
        mover.cast = find_cast(dst_dtype, src_dtype, is_stream);
    } else if (is_stream) {
        mover.copy = simd_table()->copy_stream;
    }
    return mover;
}

static void move_piece(const struct mover *mover, void *dst, const void *src, size_t count)
{
    if (mover->copy) {
        mover->copy(dst, src, count * mover->dst_element_bytes);
    } else if (mover->is_copy) {
        memcpy(dst, src, count * mover->dst_element_bytes);
    } else if (mover->cast) {
        uint64_t mode = fp_mode_enter();
        mover->cast(dst, src, count);
        fp_mode_leave(mode);
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

/* Chunk `rank` of an item, then zeros. All zero bits are zero in every dtype. */
static void pack_chunk(const struct mover *mover, char *dst, const struct kernel_pack_item *item,
                       int64_t chunk_rows, int64_t rank)
{
    int64_t filled_rows = 0;
    int64_t first_row;
    /* For ranks that get nothing the product is beyond the tensor, and may be beyond int64_t. */
    if (!__builtin_mul_overflow(rank, chunk_rows, &first_row) && first_row < item->rows) {
        int64_t left_rows = item->rows - first_row;
        filled_rows = left_rows < chunk_rows ? left_rows : chunk_rows;
    }
    size_t row_elems = (size_t)item->row_elems;
    size_t filled = (size_t)filled_rows * row_elems;
    size_t padding = (size_t)(chunk_rows - filled_rows) * row_elems;
    if (filled > 0) {
        const char *from = (const char *)address_pointer(item->data) +
                           (size_t)first_row * row_elems * mover->src_element_bytes;
        move_piece(mover, dst, from, filled);
    }
    if (padding > 0) {
        memset(dst + filled * mover->dst_element_bytes, 0, padding * mover->dst_element_bytes);
    }
}

/* Item by item: each is read from front to back, and its chunk needs one division. */
void kernel_pack(shoal_dtype dst_dtype, struct address dst, shoal_dtype src_dtype,
                 const struct kernel_pack_item *items, size_t n_items, int64_t n_ranks, int64_t first_rank,
                 int64_t n_rows)
{
    int64_t row_elems = kernel_pack_row_elems(items, n_items, n_ranks);
    struct mover mover = make_mover(dst_dtype, src_dtype, n_rows * row_elems);
    size_t row_bytes = (size_t)row_elems * mover.dst_element_bytes;
    char *column = address_pointer(dst);
    for (size_t i = 0; i < n_items; i++) {
        int64_t chunk_rows = find_chunk_rows(items[i].rows, n_ranks);
        for (int64_t row = 0; row < n_rows; row++) {
            pack_chunk(&mover, column + (size_t)row * row_bytes, &items[i], chunk_rows, first_rank + row);
        }
        column += (size_t)chunk_rows * (size_t)items[i].row_elems * mover.dst_element_bytes;
    }
}

/* Unpacking --------------------------------------------------------------------------------------------- */

void kernel_unpack(shoal_dtype dst_dtype, const struct kernel_unpack_item *items, size_t n_items,
                   shoal_dtype src_dtype, struct address src, int64_t n_rows)
{
    int64_t row_elems = 0;
    for (size_t i = 0; i < n_items; i++) {
        row_elems += items[i].elems;
    }
    struct mover mover = make_mover(dst_dtype, src_dtype, n_rows * row_elems);
    const char *from = address_pointer(src);
    for (int64_t row = 0; row < n_rows; row++) {
        for (size_t i = 0; i < n_items; i++) {
            size_t elems = (size_t)items[i].elems;
            if (elems > 0) {
                char *to =
                    (char *)address_pointer(items[i].data) + (size_t)row * elems * mover.dst_element_bytes;
                move_piece(&mover, to, from, elems);
                from += elems * mover.src_element_bytes;
            }
        }
    }
}
