/* SPDX-License-Identifier: MIT */
/*
 * The largest magnitude of numbers, and clamping them to a range. Works in f64, which holds all values, a piece at a
 * time.
 */
#include <math.h>

#include "base/error.h"
#include "base/fp_mode.h"
#include "base/try.h"
#include "kernel/element.h"
#include "kernel/kernel.h"

/* Elements that are converted at a time. */
#define PIECE 512

static shoal_status check(shoal_dtype dtype, const char *what)
{
    return dtype_kind(dtype) == DTYPE_KIND_FLOAT
               ? SHOAL_OK
               : error_set(SHOAL_ERR_UNSUPPORTED, "%s is not supported for %s", what,
                           shoal_dtype_name(dtype));
}

static size_t piece_after(size_t done, size_t count)
{
    return count - done < PIECE ? count - done : PIECE;
}

static FP_MODE_APART void find_largest(shoal_dtype dtype, const void *src, size_t count, double *largest_out)
{
    double piece[PIECE];
    double largest = 0.0;
    for (size_t done = 0; done < count; done += PIECE) {
        size_t n = piece_after(done, count);
        kernel_cast(SHOAL_F64, piece, dtype, (const char *)src + done * dtype_bytes(dtype), n);
        for (size_t i = 0; i < n; i++) {
            double size = fabs(piece[i]);
            largest = size > largest || isnan(size) ? size : largest; /* nothing is larger than NaN */
        }
    }
    *largest_out = largest;
}

shoal_status kernel_largest(shoal_dtype dtype, const void *src, size_t count, double *largest_out)
{
    TRY(check(dtype, "the largest number"));
    uint64_t mode = fp_mode_enter();
    find_largest(dtype, src, count, largest_out);
    fp_mode_leave(mode);
    return SHOAL_OK;
}

static double round_to(shoal_dtype dtype, double value)
{
    char element[sizeof(double)];
    kernel_cast(dtype, element, SHOAL_F64, &value, 1);
    kernel_cast(SHOAL_F64, &value, dtype, element, 1);
    return value;
}

static void clamp_f32(element_F32 *data, size_t count, float limit)
{
    for (size_t i = 0; i < count; i++) {
        float value = data[i] > limit ? limit : data[i];
        data[i] = value < -limit ? -limit : value;
    }
}

static FP_MODE_APART void clamp(shoal_dtype dtype, void *data, size_t count, double limit)
{
    double piece[PIECE];
    double bound = round_to(dtype, limit);
    if (dtype == SHOAL_F32) {
        clamp_f32(data, count, (float)bound);
        return;
    }
    for (size_t done = 0; done < count; done += PIECE) {
        size_t n = piece_after(done, count);
        char *at = (char *)data + done * dtype_bytes(dtype);
        kernel_cast(SHOAL_F64, piece, dtype, at, n);
        for (size_t i = 0; i < n; i++) {
            double value = piece[i] > bound ? bound : piece[i];
            piece[i] = value < -bound ? -bound : value;
        }
        kernel_cast(dtype, at, SHOAL_F64, piece, n);
    }
}

shoal_status kernel_clamp(shoal_dtype dtype, void *data, size_t count, double limit)
{
    TRY(check(dtype, "clamping"));
    uint64_t mode = fp_mode_enter();
    clamp(dtype, data, count, limit);
    fp_mode_leave(mode);
    return SHOAL_OK;
}
