/* SPDX-License-Identifier: MIT */
/* Arithmetic on gradients, whatever their dtype. */
#ifndef PARALLEL_FSDP_ENGINE_REDUCE_ELEMENTS_H
#define PARALLEL_FSDP_ENGINE_REDUCE_ELEMENTS_H

#include <stddef.h>

#include "shoal/dtype.h"

/* data /= divisor. Half precision is divided in f32. */
void fsdp_divide(shoal_dtype dtype, char *data, size_t count, double divisor);

/* dst += cast(src), a piece at a time. */
void fsdp_add_cast(shoal_dtype dtype, char *dst, shoal_dtype src_dtype, const char *src, size_t count);

#endif
