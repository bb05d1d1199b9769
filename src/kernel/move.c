/* SPDX-License-Identifier: MIT */
/* Lists of moves, and what is done to contiguous elements in place. */
#include "kernel/kernel.h"

#include <string.h>

#include "tensor/dtype.h"

/* How many elements are converted at a time. */
#define PIECE 512

/* dst = dst op src. With a stride of 0, src is one number. */
static void combine(enum kernel_binary op, shoal_dtype dtype, void *dst, const void *src, int64_t stride,
                    size_t count)
{
    const int64_t shape[] = {(int64_t)count};
    const int64_t one[] = {1};
    const int64_t other[] = {stride};
    struct kernel_operand to = {.data = address_of(dst), .strides = one};
    struct kernel_operand from = {.data = address_of(src), .strides = other};
    (void)kernel_binary_nd(op, dtype, to, to, from, 1, shape); /* never fails for floating-point dtypes */
}

/* Casts a piece at a time, so that it is added out of a cache. */
static void add_cast(shoal_dtype dtype, char *dst, shoal_dtype src_dtype, const char *src, size_t count)
{
    char piece[PIECE * 16];
    for (size_t done = 0; done < count; done += PIECE) {
        size_t n = count - done < PIECE ? count - done : PIECE;
        kernel_cast(dtype, piece, src_dtype, src + done * dtype_bytes(src_dtype), n);
        combine(KERNEL_ADD, dtype, dst + done * dtype_bytes(dtype), piece, 1, n);
    }
}

static void move_one(const struct kernel_move *move)
{
    void *dst = address_pointer(move->dst);
    const void *src = address_pointer(move->src);
    size_t bytes = move->count * dtype_bytes(move->dst_dtype);
    if (bytes == 0) {
        return;
    }
    if (!src) {
        memset(dst, 0, bytes); /* all zero bits are zero in every dtype */
    } else if (move->is_added && move->dst_dtype != move->src_dtype) {
        add_cast(move->dst_dtype, dst, move->src_dtype, src, move->count);
    } else if (move->is_added) {
        combine(KERNEL_ADD, move->dst_dtype, dst, src, 1, move->count);
    } else if (move->dst_dtype != move->src_dtype) {
        kernel_cast(move->dst_dtype, dst, move->src_dtype, src, move->count);
    } else {
        kernel_copy(dst, src, bytes);
    }
}

void kernel_move(const struct kernel_move *moves, size_t n_moves)
{
    for (size_t i = 0; i < n_moves; i++) {
        move_one(&moves[i]);
    }
}

/* Dividing --------------------------------------------------------------------------------------------- */

static void divide_in_place(shoal_dtype dtype, void *data, size_t count, double divisor)
{
    char number[16];
    kernel_scalar_store(dtype, number, (struct kernel_scalar){.real = divisor});
    combine(KERNEL_DIV, dtype, data, number, 0, count);
}

static void divide_halves(shoal_dtype dtype, char *data, size_t count, double divisor)
{
    float piece[PIECE];
    for (size_t done = 0; done < count; done += PIECE) {
        size_t n = count - done < PIECE ? count - done : PIECE;
        char *at = data + done * dtype_bytes(dtype);
        kernel_cast(SHOAL_F32, piece, dtype, at, n);
        divide_in_place(SHOAL_F32, piece, n, divisor);
        kernel_cast(dtype, at, SHOAL_F32, piece, n);
    }
}

void kernel_divide(shoal_dtype dtype, struct address data, size_t count, double divisor)
{
    if (divisor == 1.0 || count == 0) {
        return;
    }
    if (dtype == SHOAL_F16 || dtype == SHOAL_BF16) {
        divide_halves(dtype, address_pointer(data), count, divisor);
    } else {
        divide_in_place(dtype, address_pointer(data), count, divisor);
    }
}
