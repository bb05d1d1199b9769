/* SPDX-License-Identifier: MIT */
/* Divides and adds gradients of any floating-point dtype. */
#include "parallel/fsdp/engine/reduce/elements.h"

#include <stdint.h>

#include "kernel/kernel.h"
#include "tensor/dtype.h"

/* How many elements are converted at a time. */
#define PIECE 512

/* dst = dst op src. With a stride of 0, src is one number. */
static void combine(enum kernel_binary op, shoal_dtype dtype, char *dst, const void *src, int64_t stride,
                    size_t count)
{
    const int64_t shape[] = {(int64_t)count};
    const int64_t one[] = {1};
    const int64_t other[] = {stride};
    struct kernel_operand to = {.data = address_of(dst), .strides = one};
    struct kernel_operand from = {.data = address_of(src), .strides = other};
    (void)kernel_binary_nd(op, dtype, to, to, from, 1, shape); /* never fails for floating-point dtypes */
}

static void divide_in_place(shoal_dtype dtype, char *data, size_t count, double divisor)
{
    char number[16];
    kernel_scalar_store(dtype, number, (struct kernel_scalar){.real = divisor});
    combine(KERNEL_DIV, dtype, data, number, 0, count);
}

/* Divides in f32, a piece at a time, because the dtype may not be able to represent the divisor. */
static void divide_halves(shoal_dtype dtype, char *data, size_t count, double divisor)
{
    float piece[PIECE];
    for (size_t done = 0; done < count; done += PIECE) {
        size_t n = count - done < PIECE ? count - done : PIECE;
        char *at = data + done * dtype_bytes(dtype);
        kernel_cast(SHOAL_F32, piece, dtype, at, n);
        divide_in_place(SHOAL_F32, (char *)piece, n, divisor);
        kernel_cast(dtype, at, SHOAL_F32, piece, n);
    }
}

void fsdp_divide(shoal_dtype dtype, char *data, size_t count, double divisor)
{
    if (divisor == 1.0 || count == 0) {
        return;
    }
    if (dtype == SHOAL_F16 || dtype == SHOAL_BF16) {
        divide_halves(dtype, data, count, divisor);
    } else {
        divide_in_place(dtype, data, count, divisor);
    }
}

void fsdp_add_cast(shoal_dtype dtype, char *dst, shoal_dtype src_dtype, const char *src, size_t count)
{
    char piece[PIECE * 16];
    if (dtype == src_dtype) {
        combine(KERNEL_ADD, dtype, dst, src, 1, count);
        return;
    }
    for (size_t done = 0; done < count; done += PIECE) {
        size_t n = count - done < PIECE ? count - done : PIECE;
        kernel_cast(dtype, piece, src_dtype, src + done * dtype_bytes(src_dtype), n);
        combine(KERNEL_ADD, dtype, dst + done * dtype_bytes(dtype), piece, 1, n);
    }
}
