/* SPDX-License-Identifier: MIT */
/* Products by the loops of this library. Every processor computes the same bits, with one thread. */
#include "math/products.h"

#include <string.h>

bool nn_product_begin_rows(const struct nn_product *product)
{
    size_t row_bytes = (size_t)product->b.cols * shoal_dtype_bytes(product->dtype);
    for (int64_t i = 0; product->bias && row_bytes > 0 && i < product->a.rows; i++) {
        memcpy((char *)product->c + (size_t)i * row_bytes, product->bias, row_bytes);
    }
    return product->adds || product->bias;
}

static shoal_status load(void)
{
    return SHOAL_OK;
}

static bool takes(shoal_dtype dtype)
{
    return dtype == SHOAL_F32 || dtype == SHOAL_F64;
}

static shoal_status multiply(const struct nn_product *product, bool is_alone)
{
    (void)is_alone; /* it always is */
    bool adds = nn_product_begin_rows(product);
    nn_loops_of(product->dtype)->matmul(&product->a, &product->b, adds, product->c);
    return SHOAL_OK;
}

static void describe(shoal_dtype dtype, char text[NN_PRODUCT_TEXT_BYTES])
{
    (void)dtype;
    text[0] = '\0';
}

static const char *library(void)
{
    return NULL;
}

const struct nn_product_row product_plain = {.name = "plain",
                                             .load = load,
                                             .takes = takes,
                                             .multiply = multiply,
                                             .describe = describe,
                                             .library = library};
