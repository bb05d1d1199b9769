/* SPDX-License-Identifier: MIT */
#include "graph/compile/variants.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "graph/ir/captured.h"
#include "graph/ir/graph.h"
#include "shoal/autograd.h"
#include "shoal/scope.h"
#include "tensor/tensor.h"

/* One ------------------------------------------------------------------------------------------------------ */

void variant_free(struct variant *variant)
{
    if (!variant) {
        return;
    }
    shoal_plan_free(variant->plan);
    shoal_graph_free(variant->graph);
    mem_free(variant->captured);
    compile_bound_free(&variant->bound);
    mem_free(variant->shapes);
    mem_free(variant->inputs);
    mem_free(variant->needs_gradient);
    mem_free(variant->outputs);
    mem_free((void *)variant->groups);
    compile_gradients_free(&variant->gradients);
    mem_free(variant);
}

static bool is_like(const struct shape *shape, const shoal_tensor *tensor)
{
    return shape->dtype == tensor->dtype && shape->requires_grad == shoal_requires_grad(tensor) &&
           layout_is_same_shape(shape->layout.n_dims, shape->layout.shape, tensor->layout.n_dims,
                                tensor->layout.shape);
}

/* Returns the index of the first input that does not fit the variant; n_given: all fit. */
static size_t find_other_input(const struct variant *variant, shoal_tensor *const *inputs, size_t n_inputs)
{
    size_t i = 0;
    while (i < variant->n_given && i < n_inputs && is_like(&variant->shapes[i], inputs[i])) {
        i++;
    }
    return i;
}

bool variant_input_needs_gradient(const struct captured_input *bound)
{
    const shoal_tensor *tensor = bound->source ? bound->source : bound->tensor;
    return tensor && shoal_requires_grad(tensor); /* it is NULL if the placeholder is a gradient */
}

/* Returns the index of a bound tensor that was frozen or thawed since the capture; n_inputs: none. */
static size_t find_frozen(const struct variant *variant)
{
    const struct captured_input *bound = variant->graph->captured->inputs;
    size_t i = variant->n_given;
    while (i < variant->n_inputs && variant_input_needs_gradient(&bound[i]) == variant->needs_gradient[i]) {
        i++;
    }
    return i;
}

static bool fits(struct variant *variant, shoal_tensor *const *inputs, size_t n_inputs)
{
    return variant->n_given == n_inputs && variant->has_grad == shoal_scope_has_grad() &&
           find_other_input(variant, inputs, n_inputs) == n_inputs &&
           find_frozen(variant) == variant->n_inputs &&
           !compile_gradients_find_other(&variant->gradients, inputs) &&
           captured_is_current(variant->graph->captured);
}

void variant_describe_change(struct variant *last, shoal_tensor *const *inputs, size_t n_inputs, char *text,
                             size_t text_bytes)
{
    char now[TENSOR_TEXT_BYTES];
    char before[LAYOUT_TEXT_BYTES];
    size_t other = find_other_input(last, inputs, n_inputs);
    if (last->n_given != n_inputs) {
        (void)snprintf(text, text_bytes, "%zu inputs, not %zu as before", n_inputs, last->n_given);
    } else if (other < n_inputs) {
        const struct shape *shape = &last->shapes[other];
        (void)snprintf(
            text, text_bytes, "input %zu is %s%s, not %s %s%s as before", other,
            tensor_format(now, inputs[other]), shoal_requires_grad(inputs[other]) ? " with a gradient" : "",
            shoal_dtype_name(shape->dtype), layout_format(before, shape->layout.n_dims, shape->layout.shape),
            shape->requires_grad ? " with a gradient" : "");
    } else if (last->has_grad != shoal_scope_has_grad()) {
        (void)snprintf(text, text_bytes, "gradients are %s now", last->has_grad ? "off" : "on");
    } else if (find_frozen(last) < last->n_inputs) {
        const struct captured_input *bound = &last->graph->captured->inputs[find_frozen(last)];
        const char *name = shoal_tensor_name(bound->source ? bound->source : bound->tensor);
        (void)snprintf(text, text_bytes, "%s %s a gradient now", name[0] ? name : "a tensor",
                       variant_input_needs_gradient(bound) ? "requires" : "does not require");
    } else if (!compile_gradients_find_other(&last->gradients, inputs)) {
        captured_describe_change(last->graph->captured, text, text_bytes);
    } else {
        const struct gradient *gradient = compile_gradients_find_other(&last->gradients, inputs);
        const shoal_tensor *leaf = gradient_leaf(gradient, inputs);
        const char *name = shoal_tensor_name(leaf);
        const char *change =
            shoal_grad(leaf) ? (gradient->had_gradient ? "has another kind of" : "has") : "does not have";
        (void)snprintf(text, text_bytes, "%s %s a gradient now", name[0] ? name : "a leaf", change);
    }
}

/* All ------------------------------------------------------------------------------------------------------ */

struct variant *variants_find(const struct variants *variants, shoal_tensor *const *inputs, size_t n_inputs)
{
    for (size_t i = 0; i < variants->count; i++) {
        if (fits(variants->rows[i], inputs, n_inputs)) {
            return variants->rows[i];
        }
    }
    return NULL;
}

struct variant *variants_oldest(const struct variants *variants)
{
    struct variant *oldest = variants->count < variants->max ? NULL : variants->rows[0];
    for (size_t i = 1; i < variants->count && oldest; i++) {
        oldest = variants->rows[i]->used_in < oldest->used_in ? variants->rows[i] : oldest;
    }
    return oldest;
}

shoal_status variants_reserve(struct variants *variants)
{
    return mem_grow((void **)&variants->rows, &variants->capacity, variants->count + 1,
                    sizeof(struct variant *));
}

void variants_add(struct variants *variants, struct variant *variant)
{
    variants->rows[variants->count++] = variant;
}

void variants_drop(struct variants *variants, struct variant *variant)
{
    size_t at = 0;
    while (variants->rows[at] != variant) {
        at++;
    }
    variants->count--;
    memmove((void *)&variants->rows[at], (const void *)&variants->rows[at + 1],
            (variants->count - at) * sizeof(struct variant *));
    variant_free(variant);
}

void variants_free(struct variants *variants)
{
    for (size_t i = 0; i < variants->count; i++) {
        variant_free(variants->rows[i]);
    }
    mem_free((void *)variants->rows);
    *variants = (struct variants){.max = variants->max};
}

void variants_report(const struct variants *variants, shoal_compile_report *report)
{
    report->n_variants = variants->count;
    for (size_t i = 0; i < variants->count; i++) {
        shoal_plan_stats stats = SHOAL_PLAN_STATS_INIT;
        if (shoal_plan_get_stats(variants->rows[i]->plan, &stats) == SHOAL_OK) { /* always */
            report->variants_bytes += stats.pool_bytes + stats.output_bytes + stats.comm_bytes;
            report->variants_window_bytes += stats.window_bytes;
        }
    }
}
