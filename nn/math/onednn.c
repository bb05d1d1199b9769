/* SPDX-License-Identifier: MIT */
/* Products by oneDNN, in panels; see onednn.h. */
#include "math/onednn.h"

#include <stdio.h>
#include <string.h>

#include "math/panels.h"
#include "math/processor.h"
#include "shoal/op.h"

#define MAX_PANELS ((size_t)64)

/* Multiplications of a panel. With fewer, rearranging the side that is not cut would cost too much. */
#define PANEL_WORK_BF16 ((double)(1 << 26))
#define PANEL_WORK_F32 ((double)(1 << 25))

static void set_strides(const struct nn_operand *operand, int64_t strides[2])
{
    strides[0] = operand->is_transposed ? 1 : operand->stride;
    strides[1] = operand->is_transposed ? operand->stride : 1;
}

static shoal_status multiply_panel(const struct nn_panel *panel)
{
    const struct nn_product *product = panel->product;
    struct onednn_key key = {.n_rows = panel->n_rows,
                             .n_cols = panel->n_cols,
                             .n_inner = product->a.cols,
                             .c_stride = product->b.cols,
                             .dtype = product->dtype == SHOAL_BF16 ? ONEDNN_BF16 : ONEDNN_F32,
                             .has_bias = product->bias != NULL,
                             .adds = product->adds};
    set_strides(&panel->a, key.a_strides);
    set_strides(&panel->b, key.b_strides);
    const struct onednn_data data = {
        .a = panel->a_data, .b = panel->b_data, .bias = panel->bias, .c = panel->c};
    return onednn_run(&key, &data);
}

static shoal_status multiply(const struct nn_product *product, bool is_alone)
{
    const double work = product->dtype == SHOAL_BF16 ? PANEL_WORK_BF16 : PANEL_WORK_F32;
    const double wanted = nn_panels_work(product) / work;
    const size_t n_panels = wanted < 2 ? 1 : wanted > (double)MAX_PANELS ? MAX_PANELS : (size_t)wanted;
    return nn_panels_run(product, n_panels, is_alone, multiply_panel);
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
