/* SPDX-License-Identifier: MIT */
/* A matrix as libraries of matrix products take it: rows or columns are contiguous, and one stride says the rest. */
#ifndef NN_MATH_OPERAND_H
#define NN_MATH_OPERAND_H

#include <stdbool.h>
#include <stdint.h>

#include "math/loops.h"

struct nn_operand {
    bool is_transposed; /* columns are contiguous, not rows */
    int64_t stride;     /* between rows, of the matrix or of its transpose */
};

/* False when neither rows nor columns are contiguous. Strides of a dimension of one element, or of none, say nothing. */
static inline bool nn_operand_of(const struct nn_matrix *matrix, struct nn_operand *operand_out)
{
    int64_t width = matrix->cols > 0 ? matrix->cols : 1;
    int64_t height = matrix->rows > 0 ? matrix->rows : 1;
    int64_t row_stride = height == 1 ? width : matrix->row_stride;
    int64_t col_stride = width == 1 ? height : matrix->col_stride;
    if ((matrix->col_stride == 1 || width == 1) && row_stride >= width) {
        *operand_out = (struct nn_operand){.is_transposed = false, .stride = row_stride};
        return true;
    }
    if ((matrix->row_stride == 1 || height == 1) && col_stride >= height) {
        *operand_out = (struct nn_operand){.is_transposed = true, .stride = col_stride};
        return true;
    }
    return false;
}

#endif
