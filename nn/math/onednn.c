/* SPDX-License-Identifier: MIT */
/* Products by oneDNN, in panels; see onednn.h. */
#include "math/onednn.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "common/try.h"
#include "math/operand.h"
#include "math/pool.h"
#include "math/processor.h"
#include "shoal/op.h"

enum {
    MAX_PANELS = 64,
    PANEL_UNIT = 64 /* rows or columns: whole tiles of every kernel */
};

/* Multiplications of a panel. With fewer, rearranging the side that is not cut would cost too much. */
#define PANEL_WORK_BF16 ((double)(1 << 26))
#define PANEL_WORK_F32 ((double)(1 << 25))

/* Panels ----------------------------------------------------------------------------------------------- */

/*
 * The longer side of the result is cut, so that as little as possible of the shorter side is read again: a library
 * rearranges its operands in each call. Panels follow from the size of the product alone.
 */
struct panels {
    const struct nn_product *product;
    struct nn_operand a;
    struct nn_operand b;
    bool are_columns;
    int64_t size; /* of the side that is cut */
    size_t n_units;
    size_t n_panels;
    _Atomic int status; /* of the first panel that failed */
    char error[256];    /* written by that panel */
};

static void cut(struct panels *panels)
{
    const struct nn_product *product = panels->product;
    const double work = (double)product->a.rows * (double)product->b.cols * (double)product->a.cols;
    const double wanted = work / (product->dtype == SHOAL_BF16 ? PANEL_WORK_BF16 : PANEL_WORK_F32);
    panels->are_columns = product->b.cols >= product->a.rows;
    panels->size = panels->are_columns ? product->b.cols : product->a.rows;
    panels->n_units = ((size_t)panels->size + PANEL_UNIT - 1) / PANEL_UNIT;
    size_t most = panels->n_units < MAX_PANELS ? panels->n_units : MAX_PANELS;
    panels->n_panels = wanted < 2 ? 1 : wanted > (double)most ? most : (size_t)wanted;
}

static int64_t panel_first(const struct panels *panels, size_t panel)
{
    int64_t first = (int64_t)nn_part_first(panels->n_units, panels->n_panels, panel) * PANEL_UNIT;
    return first < panels->size ? first : panels->size;
}

static void set_strides(const struct nn_operand *operand, int64_t strides[2])
{
    strides[0] = operand->is_transposed ? 1 : operand->stride;
    strides[1] = operand->is_transposed ? operand->stride : 1;
}

static struct onednn_key describe_panel(const struct panels *panels, int64_t size)
{
    const struct nn_product *product = panels->product;
    struct onednn_key key = {.n_rows = panels->are_columns ? product->a.rows : size,
                             .n_cols = panels->are_columns ? size : product->b.cols,
                             .n_inner = product->a.cols,
                             .c_stride = product->b.cols,
                             .dtype = product->dtype == SHOAL_BF16 ? ONEDNN_BF16 : ONEDNN_F32,
                             .has_bias = product->bias != NULL,
                             .adds = product->adds};
    set_strides(&panels->a, key.a_strides);
    set_strides(&panels->b, key.b_strides);
    return key;
}

static void keep_failure(struct panels *panels, shoal_status status)
{
    int none = SHOAL_OK;
    if (atomic_compare_exchange_strong(&panels->status, &none, (int)status)) {
        (void)snprintf(panels->error, sizeof(panels->error), "%s", shoal_error_text());
    }
}

static void multiply_panel(void *context, size_t panel)
{
    struct panels *panels = context;
    const struct nn_product *product = panels->product;
    const int64_t first = panel_first(panels, panel);
    const int64_t size = panel_first(panels, panel + 1) - first;
    const int64_t bytes = (int64_t)shoal_dtype_bytes(product->dtype);
    const struct onednn_key key = describe_panel(panels, size);
    const int64_t row = panels->are_columns ? 0 : first;
    const int64_t col = panels->are_columns ? first : 0;
    const struct onednn_data data = {.a = (const char *)product->a.data + row * key.a_strides[0] * bytes,
                                     .b = (const char *)product->b.data + col * key.b_strides[1] * bytes,
                                     .bias = product->bias ? (const char *)product->bias + col * bytes : NULL,
                                     .c = (char *)product->c + (row * key.c_stride + col) * bytes};
    shoal_status status = onednn_run(&key, &data);
    if (status != SHOAL_OK) {
        keep_failure(panels, status);
    }
}

static shoal_status multiply(const struct nn_product *product, bool is_alone)
{
    struct panels panels = {.product = product};
    (void)nn_operand_of(&product->a, &panels.a); /* both are taken: nn_product_run has looked */
    (void)nn_operand_of(&product->b, &panels.b);
    cut(&panels);
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

/* The row ---------------------------------------------------------------------------------------------- */

/* A product of middling size, to ask about. */
static struct onednn_key typical(shoal_dtype dtype)
{
    return (struct onednn_key){.n_rows = 256,
                               .n_cols = 512,
                               .n_inner = 512,
                               .a_strides = {512, 1},
                               .b_strides = {512, 1},
                               .c_stride = 512,
                               .dtype = dtype == SHOAL_BF16 ? ONEDNN_BF16 : ONEDNN_F32};
}

static bool takes(shoal_dtype dtype)
{
    char kernel[64];
    const struct onednn_key key = typical(dtype);
    return dtype == SHOAL_F32 || (dtype == SHOAL_BF16 && onednn_find_kernel(&key, kernel, sizeof(kernel)));
}

static bool is_fast(shoal_dtype dtype)
{
    return dtype == SHOAL_BF16 ? nn_processor_has_avx512_bf16() : nn_processor_has_avx512();
}

static void describe(shoal_dtype dtype, char text[NN_PRODUCT_TEXT_BYTES])
{
    char kernel[64] = "none";
    const struct onednn_key key = typical(dtype);
    (void)onednn_find_kernel(&key, kernel, sizeof(kernel));
    (void)snprintf(text, NN_PRODUCT_TEXT_BYTES, "%s %s %s", onednn.version_text, onednn.instructions, kernel);
}

static const char *library(void)
{
    return onednn.library;
}

const char *nn_onednn_hint(const char *description)
{
    if (!nn_processor_has_amx() || strstr(description, "amx")) {
        return "";
    }
    return strstr(description, product_onednn.name)
               ? "the processor has AMX, which oneDNN does not use: ONEDNN_MAX_CPU_ISA forbids it, or a "
                 "signal "
                 "stack (sigaltstack) that was set before is smaller than AT_MINSIGSTKSZ"
               : "the processor has AMX, which bf16 would use with oneDNN (libdnnl2 2.6)";
}

const struct nn_product_row product_onednn = {.name = "onednn",
                                              .load = onednn_load,
                                              .is_promising = nn_processor_has_avx512,
                                              .takes = takes,
                                              .is_fast = is_fast,
                                              .multiply = multiply,
                                              .describe = describe,
                                              .library = library};
