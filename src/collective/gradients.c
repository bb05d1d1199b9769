/* SPDX-License-Identifier: MIT */
/*
 * Gradients of collectives: each the adjoint over the whole group. They call collectives in turn, which every rank
 * must do alike: backward visits what was recorded in reverse order, and that is the same on all of them.
 */
#include "autograd/gradients.h"

#include <math.h>

#include "base/error.h"
#include "base/try.h"
#include "collective/arguments.h"
#include "op/box.h"
#include "shoal/collective.h"
#include "shoal/ops.h"
#include "tensor/scope.h"

static shoal_status fail_reduce(const char *name, shoal_reduce reduce, const char *offered)
{
    return error_set(SHOAL_ERR_UNSUPPORTED, "%s with reduce %s has no gradient; %s have", name,
                     shoal_reduce_name(reduce), offered);
}

/* What a gradient function finds in the arguments of a call, wherever the row has them. */
static shoal_status read_reduction(const shoal_op_call_context *call, const shoal_value *arguments,
                                   size_t reduce, size_t factor, struct reduction *reduction_out)
{
    return arguments_reduction(&arguments[reduce], factor < call->op->n_params ? &arguments[factor] : NULL,
                               reduction_out);
}

/* all_reduce ------------------------------------------------------------------------------------------- */

static shoal_tensor *all_reduce_alike(shoal_tensor *gradient, const struct reduction *reduction,
                                      shoal_group *group)
{
    return reduction->reduce == SHOAL_PREMUL_SUM ? shoal_all_reduce_premul(gradient, reduction->factor, group)
                                                 : shoal_all_reduce(gradient, reduction->reduce, group);
}

static bool is_linear(shoal_reduce reduce)
{
    return reduce == SHOAL_SUM || reduce == SHOAL_AVG || reduce == SHOAL_PREMUL_SUM;
}

static bool is_extreme(shoal_reduce reduce)
{
    return reduce == SHOAL_MIN || reduce == SHOAL_MAX;
}

static shoal_tensor *where_equal(shoal_tensor *self, shoal_tensor *a, shoal_tensor *b)
{
    return BOX_ONE(where_equal, box_tensor(self), box_tensor(a), box_tensor(b));
}

/* `self` is argument `at`, reduce and group come after it. */
static shoal_status spread_all_reduce(const shoal_op_call_context *call, const shoal_value *arguments,
                                      size_t at, shoal_tensor *const *outputs, shoal_tensor *gradient,
                                      shoal_tensor **input_gradient)
{
    struct reduction reduction;
    shoal_group *group = arguments[at + 2].as.group;
    TRY(read_reduction(call, arguments, at + 1, at + 3, &reduction));
    if (is_linear(reduction.reduce)) {
        *input_gradient = all_reduce_alike(gradient, &reduction, group);
    } else if (is_extreme(reduction.reduce)) {
        shoal_tensor *total = shoal_all_reduce(gradient, SHOAL_SUM, group);
        *input_gradient = where_equal(total, arguments[at].as.tensor, outputs[0]);
    } else {
        return fail_reduce(call->op->name, reduction.reduce, "sum, avg, premul_sum, min and max");
    }
    return SHOAL_OK;
}

GRADIENT(all_reduce)
{
    return spread_all_reduce(call, arguments, 0, outputs, output_gradients[0], &input_gradients[0]);
}

GRADIENT(symmetric_all_reduce_out)
{
    return spread_all_reduce(call, arguments, 1, outputs, output_gradients[0], &input_gradients[1]);
}

/* Every rank takes part with every tensor, whether or not something flowed back to it here. */
static shoal_tensor *const *fill_absent(shoal_tensor *const *outputs, shoal_tensor *const *gradients,
                                        size_t n)
{
    shoal_tensor *some = NULL;
    shoal_tensor **filled = scope_alloc(scope_current(), n * sizeof filled[0]);
    if (!filled) {
        (void)scope_fail(SHOAL_ERR_NO_MEMORY);
        return NULL;
    }
    for (size_t i = 0; i < n && !some; i++) {
        some = gradients[i];
    }
    for (size_t i = 0; i < n; i++) {
        filled[i] = gradients[i] ? gradients[i] : gradients_zeros(outputs[i], some);
        if (!filled[i]) {
            return NULL;
        }
    }
    return filled;
}

/* The error is in the scope, where the engine finds it. */
static void hand_on(const shoal_op_call_context *call, shoal_tensor *const *gradients, size_t n,
                    shoal_tensor **input_gradients)
{
    for (size_t i = 0; gradients && i < n; i++) {
        if (shoal_op_needs_gradient(call, i)) {
            input_gradients[i] = gradients[i];
        }
    }
}

/* No typed function has a factor for lists, so this one does what they do under a tracer: wait for each. */
static shoal_tensor *const *all_reduce_list_premul(shoal_tensor *const *tensors, size_t n, double factor,
                                                   shoal_group *group)
{
    shoal_tensor *const *totals = BOX_MANY(all_reduce_coalesced, NULL, box_tensors(tensors, n),
                                           box_string("premul_sum"), box_group(group), box_float(factor));
    if (!totals || !scope_current()->tracer) {
        return totals;
    }
    shoal_tensor **waited = scope_alloc(scope_current(), n * sizeof waited[0]);
    if (!waited) {
        (void)scope_fail(SHOAL_ERR_NO_MEMORY);
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        waited[i] = shoal_wait_tensor(totals[i]);
        if (!waited[i]) {
            return NULL;
        }
    }
    return waited;
}

static shoal_tensor *const *all_reduce_list(shoal_tensor *const *tensors, size_t n,
                                            const struct reduction *reduction, shoal_group *group)
{
    if (!tensors) {
        return NULL;
    }
    return reduction->reduce == SHOAL_PREMUL_SUM
               ? all_reduce_list_premul(tensors, n, reduction->factor, group)
               : shoal_all_reduce_coalesced(tensors, n, reduction->reduce, group);
}

GRADIENT(all_reduce_coalesced)
{
    struct reduction reduction;
    size_t n = arguments[0].count;
    shoal_group *group = arguments[2].as.group;
    TRY(read_reduction(call, arguments, 1, 3, &reduction));
    bool has_extremes = is_extreme(reduction.reduce);
    if (!is_linear(reduction.reduce) && !has_extremes) {
        return fail_reduce(call->op->name, reduction.reduce, "sum, avg, premul_sum, min and max");
    }
    if (has_extremes) {
        reduction = (struct reduction){.reduce = SHOAL_SUM};
    }
    shoal_tensor *const *totals =
        all_reduce_list(fill_absent(outputs, output_gradients, n), n, &reduction, group);
    if (!has_extremes) {
        hand_on(call, totals, n, input_gradients);
    }
    for (size_t i = 0; has_extremes && totals && i < n; i++) {
        if (shoal_op_needs_gradient(call, i)) {
            input_gradients[i] = where_equal(totals[i], arguments[0].as.tensors[i], outputs[i]);
        }
    }
    return SHOAL_OK;
}

/* reduce and reduce_scatter ---------------------------------------------------------------------------- */

/* What a sum's adjoint gives, as avg or premul_sum has it. */
static shoal_tensor *scale_alike(shoal_tensor *gradient, const struct reduction *reduction,
                                 shoal_group *group)
{
    if (reduction->reduce == SHOAL_AVG) {
        return shoal_div_scalar(gradient, shoal_group_n_ranks(group));
    }
    return reduction->reduce == SHOAL_PREMUL_SUM ? shoal_mul_scalar(gradient, reduction->factor) : gradient;
}

static shoal_status check_linear(const shoal_op_call_context *call, const struct reduction *reduction)
{
    return is_linear(reduction->reduce)
               ? SHOAL_OK
               : fail_reduce(call->op->name, reduction->reduce, "sum, avg and premul_sum");
}

GRADIENT(reduce_tensor)
{
    struct reduction reduction;
    shoal_group *group = arguments[3].as.group;
    TRY(read_reduction(call, arguments, 1, 4, &reduction));
    TRY(check_linear(call, &reduction));
    /* Before the collective, so that other ranks do not wait for what a later op takes. */
    shoal_tensor *scaled = scale_alike(output_gradients[0], &reduction, group);
    input_gradients[0] = shoal_broadcast(scaled, (int)arguments[2].as.integer, group);
    return SHOAL_OK;
}

static shoal_status gather_back(const shoal_op_call_context *call, const shoal_value *arguments,
                                size_t reduce, size_t factor, int64_t dim, shoal_group *group,
                                shoal_tensor *gradient, shoal_tensor **input_gradient)
{
    struct reduction reduction;
    TRY(read_reduction(call, arguments, reduce, factor, &reduction));
    TRY(check_linear(call, &reduction));
    *input_gradient = shoal_all_gather_tensor(scale_alike(gradient, &reduction, group), dim, group);
    return SHOAL_OK;
}

GRADIENT(reduce_scatter_tensor)
{
    return gather_back(call, arguments, 1, 4, arguments[2].as.integer, arguments[3].as.group,
                       output_gradients[0], &input_gradients[0]);
}

GRADIENT(reduce_scatter_tensor_out)
{
    return gather_back(call, arguments, 2, 4, 0, arguments[3].as.group, output_gradients[0],
                       &input_gradients[1]);
}

GRADIENT(reduce_scatter_tensor_inplace)
{
    return gather_back(call, arguments, 2, 5, arguments[3].as.integer, arguments[4].as.group,
                       output_gradients[0], &input_gradients[1]);
}

/* [G * s0, ...] in blocks of ranks becomes G blocks along `dim`. */
static shoal_tensor *regroup(shoal_tensor *gathered, int64_t dim, int n_ranks)
{
    if (!gathered || dim == 0) {
        return gathered;
    }
    shoal_tensor *const *blocks = shoal_chunk_with_empty(gathered, n_ranks, 0, NULL);
    return blocks ? shoal_cat(blocks, (size_t)n_ranks, dim) : NULL;
}

GRADIENT(reduce_scatter_tensor_coalesced)
{
    struct reduction reduction;
    size_t n = arguments[0].count;
    shoal_group *group = arguments[3].as.group;
    TRY(read_reduction(call, arguments, 1, 4, &reduction));
    TRY(check_linear(call, &reduction));
    shoal_tensor *const *filled = fill_absent(outputs, output_gradients, n);
    shoal_tensor **scaled = scope_alloc(scope_current(), n * sizeof scaled[0]);
    if (!filled || !scaled) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n; i++) {
        scaled[i] = scale_alike(filled[i], &reduction, group);
        if (!scaled[i]) {
            return SHOAL_OK;
        }
    }
    shoal_tensor *const *gathered = shoal_all_gather_into_tensor_coalesced(scaled, n, group);
    for (size_t i = 0; gathered && i < n; i++) {
        int dim;
        TRY(layout_normalise_dim("scatter_dims", arguments[2].as.integers[i], outputs[i]->layout.n_dims,
                                 &dim));
        if (shoal_op_needs_gradient(call, i)) {
            input_gradients[i] = regroup(gathered[i], dim, shoal_group_n_ranks(group));
        }
    }
    return SHOAL_OK;
}

/* all_gather ------------------------------------------------------------------------------------------- */

/* A 0-d tensor was gathered to [G]. */
static shoal_tensor *as_shaped(shoal_tensor *gradient, const shoal_tensor *self)
{
    return self->layout.n_dims == 0 ? shoal_reshape(gradient, NULL, 0) : gradient;
}

static shoal_tensor *scatter_back(shoal_tensor *gradient, int64_t dim, shoal_group *group,
                                  const shoal_tensor *self)
{
    return as_shaped(shoal_reduce_scatter_tensor(gradient, SHOAL_SUM, dim, group), self);
}

GRADIENT(all_gather_tensor)
{
    input_gradients[0] = scatter_back(output_gradients[0], arguments[1].as.integer, arguments[2].as.group,
                                      arguments[0].as.tensor);
    return SHOAL_OK;
}

GRADIENT(all_gather_into_tensor)
{
    input_gradients[0] = scatter_back(output_gradients[0], 0, arguments[1].as.group, arguments[0].as.tensor);
    return SHOAL_OK;
}

GRADIENT(all_gather_into_tensor_out)
{
    input_gradients[1] = scatter_back(output_gradients[0], 0, arguments[2].as.group, arguments[1].as.tensor);
    return SHOAL_OK;
}

GRADIENT(all_gather_tensor_inplace)
{
    input_gradients[1] = scatter_back(output_gradients[0], arguments[2].as.integer, arguments[3].as.group,
                                      arguments[1].as.tensor);
    return SHOAL_OK;
}

GRADIENT(all_gather_into_tensor_coalesced)
{
    size_t n = arguments[0].count;
    shoal_tensor *const *filled = fill_absent(outputs, output_gradients, n);
    shoal_tensor *const *totals =
        filled ? shoal_reduce_scatter_tensor_coalesced(filled, n, SHOAL_SUM, NULL, arguments[1].as.group)
               : NULL;
    for (size_t i = 0; totals && i < n; i++) {
        if (shoal_op_needs_gradient(call, i)) {
            input_gradients[i] = as_shaped(totals[i], arguments[0].as.tensors[i]);
        }
    }
    return SHOAL_OK;
}

GRADIENT(all_gather_inplace)
{
    size_t n = arguments[0].count;
    const shoal_tensor *self = arguments[1].as.tensor;
    shoal_tensor *const *filled = fill_absent(outputs, output_gradients, n);
    if (!filled) {
        return SHOAL_OK;
    }
    shoal_tensor *blocks = shoal_stack(filled, n, 0);
    shoal_tensor *total = shoal_reduce_scatter_tensor(blocks, SHOAL_SUM, 0, arguments[2].as.group);
    input_gradients[n] = total ? shoal_reshape(total, self->layout.shape, self->layout.n_dims) : NULL;
    return SHOAL_OK;
}

/* all_to_all, broadcast, permutations ------------------------------------------------------------------ */

/* The record keeps an address for absent splits too. */
static const int64_t *splits_or_null(const shoal_value *splits)
{
    return splits->count > 0 ? splits->as.integers : NULL;
}

static shoal_tensor *exchange_back(shoal_tensor *gradient, const shoal_value *output_splits,
                                   const shoal_value *input_splits, shoal_group *group)
{
    return shoal_all_to_all_single(gradient, splits_or_null(input_splits), splits_or_null(output_splits),
                                   input_splits->count, group);
}

GRADIENT(all_to_all_single)
{
    input_gradients[0] =
        exchange_back(output_gradients[0], &arguments[1], &arguments[2], arguments[3].as.group);
    return SHOAL_OK;
}

GRADIENT(all_to_all_inplace)
{
    input_gradients[1] =
        exchange_back(output_gradients[0], &arguments[2], &arguments[3], arguments[4].as.group);
    return SHOAL_OK;
}

GRADIENT(broadcast)
{
    input_gradients[0] = shoal_reduce_tensor(output_gradients[0], SHOAL_SUM, (int)arguments[1].as.integer,
                                             arguments[2].as.group);
    return SHOAL_OK;
}

GRADIENT(shard_dim_alltoall)
{
    input_gradients[0] = shoal_shard_dim_alltoall(output_gradients[0], arguments[2].as.integer,
                                                  arguments[1].as.integer, arguments[3].as.group);
    return SHOAL_OK;
}

/* With splits, because ranks to which nobody sent have a gradient without rows but may get one with. */
GRADIENT(permute_tensor)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    shoal_group *group = arguments[2].as.group;
    size_t n_ranks = (size_t)shoal_group_n_ranks(group);
    int source;
    int destination;
    TRY(arguments_permutation(&arguments[1], group, &source, &destination));
    int64_t *splits = scope_alloc(scope_current(), 2 * n_ranks * sizeof *splits);
    if (!splits) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t r = 0; r < 2 * n_ranks; r++) {
        splits[r] = 0;
    }
    if (destination >= 0) {
        splits[destination] = self->layout.shape[0];
    }
    if (source >= 0) {
        splits[n_ranks + (size_t)source] = outputs[0]->layout.shape[0];
    }
    shoal_tensor *back =
        shoal_all_to_all_single(output_gradients[0], splits, splits + n_ranks, n_ranks, group);
    input_gradients[0] = destination >= 0 || !back ? back : gradients_zeros(self, back);
    return SHOAL_OK;
}
