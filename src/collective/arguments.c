/* SPDX-License-Identifier: MIT */
/* Reading and checking the arguments of collectives. */
#include "collective/arguments.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <stdio.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "kernel/kernel.h"
#include "op/operand.h"
#include "shoal/group.h"

shoal_status arguments_reduction(const shoal_value *reduce, const shoal_value *factor,
                                 struct reduction *reduction_out)
{
    reduction_out->factor = factor ? factor->as.real : (double)NAN;
    if (shoal_reduce_op_find(reduce->as.string, &reduction_out->reduce) != SHOAL_OK) {
        return error_set(SHOAL_ERR_INVALID, "reduce: there is no reduce operator \"%.32s\"",
                         reduce->as.string);
    }
    bool has_factor = !isnan(reduction_out->factor);
    if (has_factor != (reduction_out->reduce == SHOAL_PREMUL_SUM)) {
        return has_factor
                   ? error_set(SHOAL_ERR_INVALID, "factor: %g is given, but reduce is %s",
                               reduction_out->factor, shoal_reduce_op_name(reduction_out->reduce))
                   : error_set(SHOAL_ERR_INVALID, "reduce: premul_sum needs a factor that is a number");
    }
    return SHOAL_OK;
}

shoal_status arguments_reduction_of(const shoal_value *reduce, const shoal_value *factor, shoal_dtype dtype,
                                    struct reduction *reduction_out)
{
    TRY(arguments_reduction(reduce, factor, reduction_out));
    return kernel_reduce_check(reduction_out->reduce, dtype);
}

shoal_status arguments_rank(const char *name, const shoal_value *value, shoal_group *group, int *rank_out)
{
    int n_ranks = shoal_group_n_ranks(group);
    if (value->as.integer < 0 || value->as.integer >= n_ranks) {
        return error_set(SHOAL_ERR_INVALID, "%s: invalid root rank %" PRId64 " in a group of %d ranks", name,
                         value->as.integer, n_ranks);
    }
    *rank_out = (int)value->as.integer;
    return SHOAL_OK;
}

shoal_status arguments_list(const shoal_value *tensors)
{
    if (tensors->count == 0) {
        return error_set(SHOAL_ERR_INVALID, "tensors: the list is empty");
    }
    shoal_dtype dtype = tensors->as.tensors[0]->dtype;
    for (size_t i = 1; i < tensors->count; i++) {
        if (tensors->as.tensors[i]->dtype != dtype) {
            return error_set(SHOAL_ERR_INVALID,
                             "tensors: all must have the same dtype, but %zu is %s and the first %s", i,
                             shoal_dtype_name(tensors->as.tensors[i]->dtype), shoal_dtype_name(dtype));
        }
    }
    return SHOAL_OK;
}

shoal_status arguments_multiply(struct layout *layout, int dim, shoal_group *group)
{
    int64_t size = layout->shape[dim];
    int64_t n_ranks = shoal_group_n_ranks(group);
    if (__builtin_mul_overflow(size, n_ranks, &layout->shape[dim])) {
        return error_set(SHOAL_ERR_INVALID,
                         "self: dimension %d of %" PRId64 " times %" PRId64
                         " ranks is more than can be counted",
                         dim, size, n_ranks);
    }
    return SHOAL_OK;
}

shoal_status arguments_gathered(const shoal_tensor *self, int64_t dim, shoal_group *group,
                                struct layout *layout_out, int *dim_out)
{
    int64_t n_ranks = shoal_group_n_ranks(group);
    *layout_out = self->layout;
    if (self->layout.n_dims == 0 && (dim == 0 || dim == -1)) {
        layout_out->n_dims = 1;
        layout_out->shape[0] = n_ranks;
        *dim_out = 0;
        return SHOAL_OK;
    }
    TRY(layout_normalise_dim("gather_dim", dim, self->layout.n_dims, dim_out));
    return arguments_multiply(layout_out, *dim_out, group);
}

shoal_status arguments_scattered(const char *name, const shoal_tensor *self, int64_t dim, shoal_group *group,
                                 struct layout *layout_out, int *dim_out)
{
    int64_t n_ranks = shoal_group_n_ranks(group);
    if (self->layout.n_dims == 0) {
        return error_set(SHOAL_ERR_INVALID, "self: a 0-d tensor has no dimension to scatter");
    }
    TRY(layout_normalise_dim(name, dim, self->layout.n_dims, dim_out));
    *layout_out = self->layout;
    if (layout_out->shape[*dim_out] % n_ranks != 0) {
        char text[LAYOUT_TEXT_BYTES];
        return error_set(SHOAL_ERR_INVALID,
                         "self: dimension %d of shape %s, which is %" PRId64
                         ", cannot be divided among %" PRId64 " ranks",
                         *dim_out, layout_format(text, self->layout.n_dims, self->layout.shape),
                         self->layout.shape[*dim_out], n_ranks);
    }
    layout_out->shape[*dim_out] /= n_ranks;
    return SHOAL_OK;
}

shoal_status arguments_out(const char *argument, const shoal_tensor *out, const shoal_tensor *self,
                           const struct layout *layout)
{
    if (out->dtype != self->dtype) {
        return error_set(SHOAL_ERR_INVALID, "%s: dtype %s, but self has %s", argument,
                         shoal_dtype_name(out->dtype), shoal_dtype_name(self->dtype));
    }
    if (!layout_is_same_shape(out->layout.n_dims, out->layout.shape, layout->n_dims, layout->shape)) {
        char is[LAYOUT_TEXT_BYTES];
        char should[LAYOUT_TEXT_BYTES];
        return error_set(SHOAL_ERR_INVALID, "%s: shape %s, but the result has %s", argument,
                         layout_format(is, out->layout.n_dims, out->layout.shape),
                         layout_format(should, layout->n_dims, layout->shape));
    }
    return op_check_writable(argument, out);
}

shoal_status arguments_explain_overlap(shoal_status status, const shoal_tensor *self, const shoal_tensor *out,
                                       const char *may_only)
{
    bool is_overlap = status == SHOAL_ERR_INVALID && tensor_may_overlap(self, out);
    return is_overlap ? error_set(status, "out: it overlaps self; they may only %s", may_only) : status;
}

shoal_status arguments_explain_list(shoal_status status, shoal_tensor *const *tensors, size_t n_tensors)
{
    for (size_t i = 1; status == SHOAL_ERR_INVALID && i < n_tensors; i++) {
        for (size_t k = 0; k < i; k++) {
            if (tensor_may_overlap(tensors[k], tensors[i])) {
                return error_set(status, "tensors: %zu and %zu overlap, and both are written", k, i);
            }
        }
    }
    return status;
}

const char *arguments_of_list(const char *list, size_t index, struct arguments_name *name)
{
    (void)snprintf(name->text, sizeof name->text, "%s[%zu]", list, index);
    return name->text;
}

/* The text is that of the call that should have filled the tensor, so it names this argument too. */
static shoal_status name_late(const char *argument, shoal_status status)
{
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "%s did not arrive", argument);
}

shoal_status arguments_wait_readable(const char *argument, shoal_tensor *tensor)
{
    return name_late(argument, tensor_wait_readable(tensor));
}

shoal_status arguments_wait_writable(const char *argument, shoal_tensor *tensor)
{
    shoal_status status = storage_check_writable(tensor->storage);
    if (status != SHOAL_OK) {
        return error_prefix(status, "%s", argument);
    }
    return name_late(argument, tensor_wait_writable(tensor, /*overwrites=*/true));
}

/* Lists that are written ------------------------------------------------------------------------------- */

/* Finds the addresses that a tensor covers. A storage without memory gets addresses of its own. */
static void find_place(struct tensor_use *use)
{
    const struct storage *storage = use->tensor->storage;
    struct span span = tensor_span(use->tensor);
    uintptr_t base = storage->memory ? address_number(storage->memory->base) : (uintptr_t)storage;
    use->first = base + span.first;
    use->end = base + span.end;
}

static int compare_places(const void *a, const void *b)
{
    uintptr_t left = ((const struct tensor_use *)a)->first;
    uintptr_t right = ((const struct tensor_use *)b)->first;
    return (left > right) - (left < right);
}

static bool is_conflict(const struct tensor_use *a, const struct tensor_use *b)
{
    return (a->is_written || b->is_written) && tensor_overlaps(a->tensor, b->tensor);
}

shoal_status arguments_apart(const char *name, struct tensor_use *uses, size_t n_uses)
{
    for (size_t i = 0; i < n_uses; i++) {
        find_place(&uses[i]);
    }
    qsort(uses, n_uses, sizeof *uses, compare_places);
    for (size_t i = 0; i < n_uses; i++) {
        for (size_t k = i + 1; k < n_uses && uses[k].first < uses[i].end; k++) {
            if (is_conflict(&uses[i], &uses[k])) {
                size_t low = uses[i].index < uses[k].index ? uses[i].index : uses[k].index;
                size_t high = uses[i].index < uses[k].index ? uses[k].index : uses[i].index;
                return error_set(SHOAL_ERR_INVALID, "%s[%zu] and [%zu] share memory", name, low, high);
            }
        }
    }
    return SHOAL_OK;
}

bool arguments_have_gaps(const shoal_value *tensors)
{
    for (size_t i = 0; i < tensors->count; i++) {
        if (!tensors->as.tensors[i]->is_contiguous) {
            return true;
        }
    }
    return false;
}

shoal_status arguments_targets_apart(const char *name, const shoal_value *tensors)
{
    if (!arguments_have_gaps(tensors)) {
        return SHOAL_OK;
    }
    struct tensor_use *uses = mem_alloc_zeroed(tensors->count, sizeof *uses);
    if (!uses) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < tensors->count; i++) {
        uses[i] = (struct tensor_use){.tensor = tensors->as.tensors[i], .index = i, .is_written = true};
    }
    shoal_status status = arguments_apart(name, uses, tensors->count);
    mem_free(uses);
    return status;
}

/* Splits ----------------------------------------------------------------------------------------------- */

/* Checks one list of splits: one for each rank, which add up to n_rows (-1 if any sum will do). */
static shoal_status check_splits(const char *name, const shoal_value *splits, int64_t n_ranks, int64_t n_rows,
                                 int64_t *sum_out)
{
    int64_t sum = 0;
    if (splits->count != (size_t)n_ranks) {
        return error_set(SHOAL_ERR_INVALID, "%s: %zu numbers are given, but the group has %" PRId64 " ranks",
                         name, splits->count, n_ranks);
    }
    for (size_t i = 0; i < splits->count; i++) {
        int64_t rows = splits->as.integers[i];
        if (rows < 0 || __builtin_add_overflow(sum, rows, &sum)) {
            return error_set(SHOAL_ERR_INVALID,
                             "%s[%zu] is %" PRId64
                             ", which is negative, or too large together with the others",
                             name, i, rows);
        }
    }
    if (n_rows >= 0 && sum != n_rows) {
        return error_set(SHOAL_ERR_INVALID, "%s: the sum is %" PRId64 ", but dimension 0 is %" PRId64, name,
                         sum, n_rows);
    }
    *sum_out = sum;
    return SHOAL_OK;
}

shoal_status arguments_splits(const shoal_tensor *self, const shoal_value *output_splits,
                              const shoal_value *input_splits, shoal_group *group, int64_t *n_rows_out)
{
    int64_t n_ranks = shoal_group_n_ranks(group);
    int64_t sum;
    if (self->layout.n_dims == 0) {
        return error_set(SHOAL_ERR_INVALID, "self: a 0-d tensor has no rows to exchange");
    }
    int64_t n_rows = self->layout.shape[0];
    if (output_splits->count == 0 && input_splits->count == 0) {
        *n_rows_out = n_rows;
        return n_rows % n_ranks == 0
                   ? SHOAL_OK
                   : error_set(SHOAL_ERR_INVALID,
                               "self: dimension 0, which is %" PRId64 ", cannot be divided among %" PRId64
                               " ranks, and no splits are given",
                               n_rows, n_ranks);
    }
    if (output_splits->count == 0 || input_splits->count == 0) {
        return error_set(SHOAL_ERR_INVALID, "only %s are given: both lists of splits, or neither",
                         output_splits->count > 0 ? "output_splits" : "input_splits");
    }
    TRY(check_splits("input_splits", input_splits, n_ranks, n_rows, &sum));
    return check_splits("output_splits", output_splits, n_ranks, -1, n_rows_out);
}

shoal_status arguments_permutation(const shoal_value *destinations, shoal_group *group, int *source_out,
                                   int *destination_out)
{
    int n_ranks = shoal_group_n_ranks(group);
    int rank = shoal_group_rank(group);
    const int64_t *numbers = destinations->as.integers;
    *source_out = -1;
    if (destinations->count > (size_t)n_ranks) {
        return error_set(SHOAL_ERR_INVALID, "destinations: %zu numbers are given, but the group has %d ranks",
                         destinations->count, n_ranks);
    }
    for (size_t i = 0; i < destinations->count; i++) {
        if (numbers[i] < 0 || numbers[i] >= n_ranks) {
            return error_set(SHOAL_ERR_INVALID,
                             "destinations[%zu] is %" PRId64 ", outside of the group of %d ranks", i,
                             numbers[i], n_ranks);
        }
        for (size_t k = 0; k < i; k++) {
            if (numbers[k] == numbers[i]) {
                return error_set(SHOAL_ERR_INVALID, "destinations[%zu] and [%zu] are both %" PRId64, k, i,
                                 numbers[i]);
            }
        }
        if (numbers[i] == rank) {
            *source_out = (int)i;
        }
    }
    *destination_out = (size_t)rank < destinations->count ? (int)numbers[rank] : -1;
    return SHOAL_OK;
}

int64_t arguments_dim_at(const shoal_value *dims, size_t index)
{
    return dims->count > 0 ? dims->as.integers[index] : 0;
}

int64_t arguments_row_elements(const shoal_tensor *self)
{
    int64_t elements = 1;
    for (int i = 1; i < self->layout.n_dims; i++) {
        elements *= self->layout.shape[i];
    }
    return elements;
}
