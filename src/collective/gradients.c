/* SPDX-License-Identifier: MIT */
/*
 * Gradients of collectives: each is the adjoint over the whole group. They call collectives themselves, in the same
 * order on every rank: a backward pass visits what was recorded in reverse order, and all ranks have recorded the same.
 *
 * They call rows of the op table directly, and not typed functions. Typed functions first make sure that the rows were
 * registered, and the rows name the functions here; a gradient function runs only after that.
 */
#include "base/error.h"
#include "base/try.h"
#include "collective/arguments.h"
#include "collective/rows.h"
#include "collective/traced.h"
#include "op/box.h"
#include "shoal/collective.h"
#include "shoal/ops.h"
#include "tensor/scope.h"

static shoal_status fail_reduce(const char *name, shoal_reduce_op reduce, const char *offered)
{
    return error_set(SHOAL_ERR_UNSUPPORTED, "%s with reduce %s has no gradient; %s have", name,
                     shoal_reduce_op_name(reduce), offered);
}

/* Reads the operator and the factor of a call. `reduce` and `factor` are their places among the row's parameters;
   the row may have no factor. */
static shoal_status read_reduction(const shoal_op_call_context *call, const shoal_value *arguments,
                                   size_t reduce, size_t factor, struct reduction *reduction_out)
{
    return arguments_reduction(&arguments[reduce], factor < call->op->n_params ? &arguments[factor] : NULL,
                               reduction_out);
}

/* Calls ------------------------------------------------------------------------------------------------ */

#define COLLECT_ONE(name, ...) traced_wait(BOX_ONE(name, __VA_ARGS__))
#define COLLECT_MANY(name, n_tensors, ...) traced_wait_list(BOX_MANY(name, NULL, __VA_ARGS__), n_tensors)

static const struct reduction sum = {.reduce = SHOAL_SUM};

static shoal_value box_reduce(const struct reduction *reduction)
{
    return box_string(shoal_reduce_op_name(reduction->reduce));
}

/* Only premul_sum has a factor. */
static shoal_value box_factor(const struct reduction *reduction)
{
    return reduction->reduce == SHOAL_PREMUL_SUM ? box_float(reduction->factor)
                                                 : (shoal_value){.kind = SHOAL_VALUE_NONE};
}

static shoal_tensor *all_reduce(shoal_tensor *self, const struct reduction *reduction, shoal_group *group)
{
    return COLLECT_ONE(all_reduce, box_tensor(self), box_reduce(reduction), box_group(group),
                       box_factor(reduction));
}

static shoal_tensor *const *all_reduce_list(shoal_tensor *const *tensors, size_t n,
                                            const struct reduction *reduction, shoal_group *group)
{
    return COLLECT_MANY(all_reduce_coalesced, n, box_tensors(tensors, n), box_reduce(reduction),
                        box_group(group), box_factor(reduction));
}

static shoal_tensor *reduce_scatter(shoal_tensor *self, int64_t dim, shoal_group *group)
{
    return COLLECT_ONE(reduce_scatter_tensor, box_tensor(self), box_reduce(&sum), box_int(dim),
                       box_group(group));
}

/* Reduces and scatters each tensor along its first dimension. */
static shoal_tensor *const *reduce_scatter_list(shoal_tensor *const *tensors, size_t n, shoal_group *group)
{
    return COLLECT_MANY(reduce_scatter_tensor_coalesced, n, box_tensors(tensors, n), box_reduce(&sum),
                        box_ints(NULL, 0), box_group(group));
}

static shoal_tensor *all_to_all(shoal_tensor *self, const shoal_value *output_splits,
                                const shoal_value *input_splits, shoal_group *group)
{
    return COLLECT_ONE(all_to_all_single, box_tensor(self), *output_splits, *input_splits, box_group(group));
}

/* all_reduce ------------------------------------------------------------------------------------------- */

static bool is_linear(shoal_reduce_op reduce)
{
    return reduce == SHOAL_SUM || reduce == SHOAL_AVG || reduce == SHOAL_PREMUL_SUM;
}

static bool is_extreme(shoal_reduce_op reduce)
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
        *input_gradient = all_reduce(gradient, &reduction, group);
    } else if (is_extreme(reduction.reduce)) {
        shoal_tensor *total = all_reduce(gradient, &sum, group);
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

/* Puts zeros where a gradient is absent: every rank takes part with every tensor. */
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

/* Passes on the gradients that are needed. If there are none, the scope has the error, where the engine finds it. */
static void hand_on(const shoal_op_call_context *call, shoal_tensor *const *gradients, size_t n,
                    shoal_tensor **input_gradients)
{
    for (size_t i = 0; gradients && i < n; i++) {
        if (shoal_op_needs_gradient(call, i)) {
            input_gradients[i] = gradients[i];
        }
    }
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
        reduction = sum;
    }
    shoal_tensor *const *filled = fill_absent(outputs, output_gradients, n);
    shoal_tensor *const *totals = filled ? all_reduce_list(filled, n, &reduction, group) : NULL;
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

/* Scales the gradient of a sum to that of avg or premul_sum. */
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

GRADIENT(reduce)
{
    struct reduction reduction;
    shoal_group *group = arguments[3].as.group;
    TRY(read_reduction(call, arguments, 1, 4, &reduction));
    TRY(check_linear(call, &reduction));
    /* Before the collective, so that other ranks do not wait for what a later op takes. */
    shoal_tensor *scaled = scale_alike(output_gradients[0], &reduction, group);
    input_gradients[0] = COLLECT_ONE(broadcast, box_tensor(scaled), arguments[2], box_group(group));
    return SHOAL_OK;
}

static shoal_status gather_back(const shoal_op_call_context *call, const shoal_value *arguments,
                                size_t reduce, size_t factor, int64_t dim, shoal_group *group,
                                shoal_tensor *gradient, shoal_tensor **input_gradient)
{
    struct reduction reduction;
    TRY(read_reduction(call, arguments, reduce, factor, &reduction));
    TRY(check_linear(call, &reduction));
    shoal_tensor *scaled = scale_alike(gradient, &reduction, group);
    *input_gradient = COLLECT_ONE(all_gather_tensor, box_tensor(scaled), box_int(dim), box_group(group));
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

/* Turns a tensor [G * s0, ...], which has a block per rank along dimension 0, into one with the G blocks along
   `dim`. */
static shoal_tensor *regroup(shoal_tensor *gathered, int64_t dim, int n_ranks)
{
    if (!gathered || dim == 0) {
        return gathered;
    }
    shoal_tensor *const *blocks =
        BOX_MANY(chunk_with_empty, NULL, box_tensor(gathered), box_int(n_ranks), box_int(0));
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
    shoal_tensor *const *gathered =
        COLLECT_MANY(all_gather_into_tensor_coalesced, n, box_tensors(scaled, n), box_group(group));
    for (size_t i = 0; gathered && i < n; i++) {
        int dim;
        TRY(layout_normalise_dim("scatter_dims", arguments_dim_at(&arguments[2], i),
                                 outputs[i]->layout.n_dims, &dim));
        if (shoal_op_needs_gradient(call, i)) {
            input_gradients[i] = regroup(gathered[i], dim, shoal_group_n_ranks(group));
        }
    }
    return SHOAL_OK;
}

/* all_gather ------------------------------------------------------------------------------------------- */

/* Gives the gradient the shape of `self`: a 0-d tensor was gathered to [G]. */
static shoal_tensor *as_shaped(shoal_tensor *gradient, const shoal_tensor *self)
{
    return self->layout.n_dims == 0 ? shoal_reshape(gradient, NULL, 0) : gradient;
}

static shoal_tensor *scatter_back(shoal_tensor *gradient, int64_t dim, shoal_group *group,
                                  const shoal_tensor *self)
{
    return as_shaped(reduce_scatter(gradient, dim, group), self);
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
    shoal_tensor *const *totals = filled ? reduce_scatter_list(filled, n, arguments[1].as.group) : NULL;
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
    shoal_tensor *blocks = BOX_ONE(stack, box_tensors(filled, n), box_int(0));
    shoal_tensor *total = reduce_scatter(blocks, 0, arguments[2].as.group);
    input_gradients[n] = total ? shoal_reshape(total, self->layout.shape, self->layout.n_dims) : NULL;
    return SHOAL_OK;
}

/* all_to_all, broadcast, permutations ------------------------------------------------------------------ */

GRADIENT(all_to_all_single)
{
    input_gradients[0] = all_to_all(output_gradients[0], &arguments[2], &arguments[1], arguments[3].as.group);
    return SHOAL_OK;
}

GRADIENT(all_to_all_inplace)
{
    input_gradients[1] = all_to_all(output_gradients[0], &arguments[3], &arguments[2], arguments[4].as.group);
    return SHOAL_OK;
}

GRADIENT(broadcast)
{
    input_gradients[0] =
        COLLECT_ONE(reduce, box_tensor(output_gradients[0]), box_reduce(&sum), arguments[1], arguments[2]);
    return SHOAL_OK;
}

GRADIENT(shard_dim_alltoall)
{
    input_gradients[0] = COLLECT_ONE(shard_dim_alltoall, box_tensor(output_gradients[0]), arguments[2],
                                     arguments[1], arguments[3]);
    return SHOAL_OK;
}

/* Uses splits: a rank to which nobody sent has a gradient without rows, but may get one that has rows. */
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
    const shoal_value output_splits = box_ints(splits, n_ranks);
    const shoal_value input_splits = box_ints(splits + n_ranks, n_ranks);
    shoal_tensor *back = all_to_all(output_gradients[0], &output_splits, &input_splits, group);
    input_gradients[0] = destination >= 0 || !back ? back : gradients_zeros(self, back);
    return SHOAL_OK;
}
