/* SPDX-License-Identifier: MIT */
/* Kernels over lists of pieces. All pieces are checked, by a call without elements, before the first is changed. */
#include "kernel/kernel.h"

#include <math.h>

#include "base/fp_mode.h"
#include "base/try.h"

shoal_status kernel_scale_list(const struct kernel_piece *pieces, size_t n_pieces, double factor)
{
    for (size_t i = 0; i < n_pieces; i++) {
        TRY(kernel_scale(pieces[i].dtype, NULL, NULL, 0, factor));
    }
    for (size_t i = 0; i < n_pieces; i++) {
        void *data = address_pointer(pieces[i].data);
        TRY(kernel_scale(pieces[i].dtype, data, data, pieces[i].count, factor));
    }
    return SHOAL_OK;
}

shoal_status kernel_clamp_list(const struct kernel_piece *pieces, size_t n_pieces, double limit)
{
    for (size_t i = 0; i < n_pieces; i++) {
        TRY(kernel_clamp(pieces[i].dtype, NULL, 0, limit));
    }
    for (size_t i = 0; i < n_pieces; i++) {
        TRY(kernel_clamp(pieces[i].dtype, address_pointer(pieces[i].data), pieces[i].count, limit));
    }
    return SHOAL_OK;
}

static FP_MODE_APART void take_larger(double *largest, double value)
{
    *largest = value > *largest || isnan(value) ? value : *largest; /* nothing is larger than NaN */
}

shoal_status kernel_largest_list(const struct kernel_piece *pieces, size_t n_pieces, struct address largest)
{
    double found;
    for (size_t i = 0; i < n_pieces; i++) {
        TRY(kernel_largest(pieces[i].dtype, NULL, 0, &found));
    }
    for (size_t i = 0; i < n_pieces; i++) {
        TRY(kernel_largest(pieces[i].dtype, address_pointer(pieces[i].data), pieces[i].count, &found));
        uint64_t mode = fp_mode_enter();
        take_larger(address_pointer(largest), found);
        fp_mode_leave(mode);
    }
    return SHOAL_OK;
}

static shoal_status add_powers(struct kernel_squares *sums, shoal_dtype dtype, const void *data, size_t count,
                               double power)
{
    return power == 2.0 ? kernel_squares_add(sums, dtype, data, count)
                        : kernel_powers_add(sums, dtype, data, count, power);
}

shoal_status kernel_powers_list(const struct kernel_piece *pieces, size_t n_pieces, double power,
                                struct address bins)
{
    struct kernel_squares *sums = address_pointer(bins);
    for (size_t i = 0; i < n_pieces; i++) {
        TRY(add_powers(sums, pieces[i].dtype, NULL, 0, power));
    }
    for (size_t i = 0; i < n_pieces; i++) {
        TRY(add_powers(sums, pieces[i].dtype, address_pointer(pieces[i].data), pieces[i].count, power));
    }
    return SHOAL_OK;
}
