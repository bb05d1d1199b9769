/* SPDX-License-Identifier: MIT */
/* Copies elements where two other operands are equal. */
#include "base/fp_mode.h"
#include "kernel/arithmetic.h"
#include "kernel/kernel.h"

/* What is chosen: any true byte is stored as 1. */
#define CHOSEN_FLOAT(element) (element)
#define CHOSEN_FLOAT8(element) (element)
#define CHOSEN_SIGNED(element) (element)
#define CHOSEN_UNSIGNED(element) (element)
#define CHOSEN_BOOLEAN(element) ((element) != 0)
#define CHOSEN_COMPLEX(element) (element)

#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits)                                     \
    static void where_equal_##NAME(void *dst, const void *src, const void *a, const void *b, size_t count) \
    {                                                                                                      \
        const value_##NAME zero = {0};                                                                     \
        for (size_t i = 0; i < count; i++) {                                                               \
            compute_##NAME x = element_load_##NAME(((const element_##NAME *)a)[i]);                        \
            compute_##NAME y = element_load_##NAME(((const element_##NAME *)b)[i]);                        \
            ((element_##NAME *)dst)[i] =                                                                   \
                equal_value_##NAME(x, y) ? CHOSEN_##kind(((const element_##NAME *)src)[i]) : zero;         \
        }                                                                                                  \
    }
#include "tensor/dtypes.def"
#undef DTYPE

static void (*const functions[DTYPE_COUNT])(void *dst, const void *src, const void *a, const void *b,
                                            size_t count) = {
#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits) [SHOAL_##NAME] = where_equal_##NAME,
#include "tensor/dtypes.def"
#undef DTYPE
};

void kernel_where_equal(shoal_dtype dtype, struct address dst, struct address src, struct address a,
                        struct address b, size_t count)
{
    uint64_t mode = fp_mode_enter();
    functions[dtype](address_pointer(dst), address_pointer(src), address_pointer(a), address_pointer(b),
                     count);
    fp_mode_leave(mode);
}
