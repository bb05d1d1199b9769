/* SPDX-License-Identifier: MIT */
/* Cutting a product into panels; see panels.h. */
#include "math/panels.h"

#include <stdatomic.h>
#include <stdio.h>

#include "common/try.h"
#include "math/pool.h"
#include "shoal/op.h"

struct panels {
    const struct nn_product *product;
    nn_panel_function *multiply;
    struct nn_operand a;
    struct nn_operand b;
    bool are_columns;
    size_t n_units;
    size_t n_panels;
    _Atomic int status; /* of the first panel that failed */
    char error[256];    /* written by that panel */
};

static bool cuts_columns(const struct nn_product *product)
{
    return product->b.cols >= product->a.rows;
}

int64_t nn_panels_side(const struct nn_product *product)
{
    return cuts_columns(product) ? product->b.cols : product->a.rows;
}

double nn_panels_work(const struct nn_product *product)
{
    return (double)product->a.rows * (double)product->b.cols * (double)product->a.cols;
}

static int64_t panel_first(const struct panels *panels, size_t panel)
{
    int64_t size = nn_panels_side(panels->product);
    int64_t first = (int64_t)nn_part_first(panels->n_units, panels->n_panels, panel) * NN_PANEL_UNIT;
    return first < size ? first : size;
}

static void keep_failure(struct panels *panels, shoal_status status)
{
    int none = SHOAL_OK;
    if (atomic_compare_exchange_strong(&panels->status, &none, (int)status)) {
        (void)snprintf(panels->error, sizeof(panels->error), "%s", shoal_error_text());
    }
}

static void multiply_panel(void *context, size_t index)
{
    struct panels *panels = context;
    const struct nn_product *product = panels->product;
    const int64_t first = panel_first(panels, index);
    const int64_t size = panel_first(panels, index + 1) - first;
    const int64_t bytes = (int64_t)shoal_dtype_bytes(product->dtype);
    const int64_t row = panels->are_columns ? 0 : first;
    const int64_t col = panels->are_columns ? first : 0;
    const int64_t a_step = panels->a.is_transposed ? 1 : panels->a.stride;
    const int64_t b_step = panels->b.is_transposed ? panels->b.stride : 1;
    const struct nn_panel panel = {.product = product,
                                   .a = panels->a,
                                   .b = panels->b,
                                   .n_rows = panels->are_columns ? product->a.rows : size,
                                   .n_cols = panels->are_columns ? size : product->b.cols,
                                   .a_data = (const char *)product->a.data + row * a_step * bytes,
                                   .b_data = (const char *)product->b.data + col * b_step * bytes,
                                   .bias = product->bias ? (const char *)product->bias + col * bytes : NULL,
                                   .c = (char *)product->c + (row * product->b.cols + col) * bytes};
    shoal_status status = panels->multiply(&panel);
    if (status != SHOAL_OK) {
        keep_failure(panels, status);
    }
}

shoal_status nn_panels_run(const struct nn_product *product, size_t n_wanted, bool is_alone,
                           nn_panel_function *multiply)
{
    struct panels panels = {.product = product, .multiply = multiply, .are_columns = cuts_columns(product)};
    (void)nn_operand_of(&product->a, &panels.a);
    (void)nn_operand_of(&product->b, &panels.b);
    panels.n_units = ((size_t)nn_panels_side(product) + NN_PANEL_UNIT - 1) / NN_PANEL_UNIT;
    panels.n_panels = n_wanted < panels.n_units ? n_wanted : panels.n_units;
    if (is_alone) {
        for (size_t i = 0; i < panels.n_panels; i++) {
            multiply_panel(&panels, i);
        }
    } else {
        nn_parallel(panels.n_panels, multiply_panel, &panels);
    }
    int status = atomic_load(&panels.status);
    return status == SHOAL_OK ? SHOAL_OK : shoal_fail((shoal_status)status, "%s", panels.error);
}
