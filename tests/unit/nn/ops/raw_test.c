/* SPDX-License-Identifier: MIT */
/* The matrix product on plain memory: every transposition against a naive one, empty sides, bad arguments. */
#include <stdint.h>

#include "unit/nn/fixture.h"

enum {
    LARGEST = 37
};

/* Whole numbers: every order of adding gives the same. */
static void fill(float *values, size_t n_values, int first)
{
    for (size_t i = 0; i < n_values; i++) {
        values[i] = (float)((first + (int)i * 7) % 11 - 5);
    }
}

static void check_product(bool transposes_a, bool transposes_b, size_t m, size_t n, size_t k, bool adds)
{
    float a[LARGEST * LARGEST];
    float b[LARGEST * LARGEST];
    float c[LARGEST * LARGEST + 1];
    fill(a, m * k, 1);
    fill(b, k * n, 2);
    fill(c, m * n + 1, 3);
    CHECK_OK(shoal_nn_sgemm(transposes_a, transposes_b, m, n, k, a, b, adds, c));
    for (size_t i = 0; i < m * n && !test_has_failed(); i++) {
        float before = (float)((3 + (int)i * 7) % 11 - 5);
        float sum = adds ? before : 0.0f;
        for (size_t l = 0; l < k; l++) {
            sum += a[transposes_a ? l * m + i / n : i / n * k + l] *
                   b[transposes_b ? i % n * k + l : l * n + i % n];
        }
        CHECK_DOUBLE((double)c[i], (double)sum);
    }
    CHECK_DOUBLE((double)c[m * n], (double)((3 + (int)(m * n) * 7) % 11 - 5));
}

TEST(products_of_every_form)
{
    const size_t sizes[][3] = {{1, 1, 1},    {2, 3, 5},   {1, 7, 4}, {7, 1, 4}, {4, 5, 1},
                               {37, 37, 37}, {16, 32, 8}, {0, 3, 4}, {3, 0, 4}, {3, 4, 0}};
    begin_nn();
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (int form = 0; form < 8; form++) {
            check_product((form & 1) != 0, (form & 2) != 0, sizes[i][0], sizes[i][1], sizes[i][2],
                          (form & 4) != 0);
        }
    }
}

TEST(bad_arguments_are_named)
{
    float values[4] = {0};
    begin_nn();
    CHECK_STATUS(shoal_nn_sgemm(false, false, 2, 2, 2, NULL, values, false, values), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_sgemm: a is NULL, a matrix of 2 by 2");
    CHECK_STATUS(shoal_nn_sgemm(false, false, 1, 2, 2, values, NULL, false, values), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_sgemm: b is NULL");
    CHECK_STATUS(shoal_nn_sgemm(false, false, 1, 2, 2, values, values, false, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_sgemm: c is NULL");
    CHECK_STATUS(shoal_nn_sgemm(false, false, SIZE_MAX, 2, 2, values, values, false, values),
                 SHOAL_ERR_INVALID);
    CHECK_STATUS(
        shoal_nn_sgemm(false, false, (size_t)1 << 40, (size_t)1 << 40, 1, values, values, false, values),
        SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("more than memory");
    CHECK_OK(shoal_nn_sgemm(false, false, 0, 2, 2, NULL, values, false, NULL));
}
