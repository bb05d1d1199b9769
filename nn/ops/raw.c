/* SPDX-License-Identifier: MIT */
/* The matrix product on plain memory, for programs without tensors. */
#include <stdint.h>

#include "math/products.h"
#include "shoal/fp_mode.h"
#include "shoal/op.h"
#include "shoal_nn/nn.h"
#include "common/try.h"

static shoal_status check_operand(const void *data, const char *name, size_t rows, size_t cols)
{
    bool is_empty = rows == 0 || cols == 0;
    return data || is_empty ? SHOAL_OK
                            : shoal_fail(SHOAL_ERR_INVALID, "nn_sgemm: %s is NULL, a matrix of %zu by %zu",
                                         name, rows, cols);
}

/* [rows, cols] as the product sees it; it lies as [cols, rows] when it is transposed. */
static struct nn_matrix describe(const float *data, size_t rows, size_t cols, bool is_transposed)
{
    return (struct nn_matrix){.data = data,
                              .rows = (int64_t)rows,
                              .cols = (int64_t)cols,
                              .row_stride = is_transposed ? 1 : (int64_t)cols,
                              .col_stride = is_transposed ? (int64_t)rows : 1};
}

shoal_status shoal_nn_sgemm(bool transposes_a, bool transposes_b, size_t m, size_t n, size_t k,
                            const float *a, const float *b, bool adds, float *c)
{
    const size_t largest = SIZE_MAX / 4 / sizeof(float);
    size_t inner = n > k ? n : k;
    size_t outer = m > k ? m : k;
    if (m > largest || n > largest || k > largest || (outer > 0 && inner > largest / outer)) {
        return shoal_fail(SHOAL_ERR_INVALID,
                          "nn_sgemm: m %zu, n %zu, k %zu: the matrices are more than memory can hold", m, n,
                          k);
    }
    NN_TRY(check_operand(a, "a", m, k));
    NN_TRY(check_operand(b, "b", k, n));
    NN_TRY(check_operand(c, "c", m, n));
    const struct nn_product product = {.dtype = SHOAL_F32,
                                       .a = describe(a, m, k, transposes_a),
                                       .b = describe(b, k, n, transposes_b),
                                       .adds = adds,
                                       .c = c};
    uint64_t mode = shoal_fp_mode_enter();
    shoal_status status = nn_product_run(&product);
    shoal_fp_mode_leave(mode);
    return status;
}
