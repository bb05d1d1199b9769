/* SPDX-License-Identifier: MIT */
/*
 * Products by libraries, in panels: each call of the library runs on one thread, and the threads of nn's pool compute
 * panels of a product. How a product is cut follows from its size alone, so its bits do not depend on the number of
 * threads, even if the library adds in another order for another number of rows or columns.
 */
#ifndef NN_MATH_PANELS_H
#define NN_MATH_PANELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "math/operand.h"
#include "math/products.h"

enum {
    NN_PANEL_UNIT = 64 /* rows or columns: whole tiles of every kernel */
};

/* A part of a product: n_rows of its rows, or n_cols of its columns, and all of the others. */
struct nn_panel {
    const struct nn_product *product;
    struct nn_operand a;
    struct nn_operand b;
    int64_t n_rows;
    int64_t n_cols;
    const void *a_data;
    const void *b_data;
    const void *bias; /* NULL if there is none */
    void *c;          /* its rows are product->b.cols apart */
};

typedef shoal_status nn_panel_function(const struct nn_panel *panel);

/* The longer side of a product's result, which is cut, so that as little as possible of the shorter side is read again:
   a library rearranges its operands in each call. */
int64_t nn_panels_side(const struct nn_product *product);
/* Multiplications of a product. */
double nn_panels_work(const struct nn_product *product);

/* Computes a product in `n_wanted` panels, 1 or more, or in as many as the longer side has units. Both operands are such
   as nn_operand_of takes. `is_alone`: as nn_product_row.multiply. */
shoal_status nn_panels_run(const struct nn_product *product, size_t n_wanted, bool is_alone,
                           nn_panel_function *multiply);

#endif
