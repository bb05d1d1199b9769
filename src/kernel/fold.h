/* SPDX-License-Identifier: MIT */
/*
 * How reductions of floats take the next source: fold_f32, fold_f64.
 *
 * min and max: the next value is taken when it is better or NaN. A NaN that is there is never replaced by a number,
 * because comparing with it is false; equal values keep the earlier one.
 *
 * GPUs compile this file as well (cuda/kernels/target.h), so it is written in what C and C++ have in common.
 */
#ifndef KERNEL_FOLD_H
#define KERNEL_FOLD_H

#include "kernel/simd.h"

#define FOLD_FUNCTION static inline __attribute__((always_inline))

#define DEFINE_FOLD(name, ctype)                                                   \
    FOLD_FUNCTION ctype fold_##name(enum simd_fold fold, ctype folded, ctype next) \
    {                                                                              \
        if (fold == SIMD_MIN) {                                                    \
            return next < folded || next != next ? next : folded;                  \
        }                                                                          \
        if (fold == SIMD_MAX) {                                                    \
            return next > folded || next != next ? next : folded;                  \
        }                                                                          \
        return folded + next;                                                      \
    }
DEFINE_FOLD(f32, float)
DEFINE_FOLD(f64, double)
#undef DEFINE_FOLD
#undef FOLD_FUNCTION

#endif
