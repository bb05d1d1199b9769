/* SPDX-License-Identifier: MIT */
/* The largest along a dimension, and where it is: the first of equal ones, or the first NaN. */
#include <string.h>

#include "ops/functions.h"
#include "math/pool.h"
#include "ops/rows.h"
#include "common/try.h"
#include "ops/values.h"

struct search {
    struct nn_rows self;
    const struct nn_loops *loops;
    struct nn_rows gradient; /* one element for each row of self; of max_backward */
    struct nn_rows result;   /* of max_backward: rows as those of self */
    char *to;                /* of max and argmax: an element for each row */
    bool finds_place;        /* argmax */
    char *scratch;           /* of each part a row; NULL when rows are used in place */
    size_t row_bytes;
    size_t n_parts;
};

static shoal_status check_search(const shoal_tensor *self, int64_t dim, int *dim_out)
{
    NN_TRY(nn_check_floating(self, "self"));
    NN_TRY(nn_check_dim(dim, self, "self", dim_out));
    if (shoal_tensor_n_dims(self) > 0 && shoal_tensor_shape(self)[*dim_out] == 0) {
        return shoal_fail(SHOAL_ERR_INVALID,
                          "self has shape %s: there is no largest element along dimension %d, which is empty",
                          nn_shape_text(self).text, *dim_out);
    }
    return SHOAL_OK;
}

/* Without the dimension, or with a size of 1 for it. */
static int reduced_shape(const shoal_tensor *self, int dim, bool keeps_dim, int64_t shape[SHOAL_MAX_DIMS])
{
    int n_dims = 0;
    for (int i = 0; i < shoal_tensor_n_dims(self); i++) {
        if (i != dim || keeps_dim) {
            shape[n_dims++] = i == dim ? 1 : shoal_tensor_shape(self)[i];
        }
    }
    return n_dims;
}

static shoal_status declare(shoal_op_call_context *call, const shoal_value *arguments, bool finds_place)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    int64_t shape[SHOAL_MAX_DIMS];
    int dim = 0;
    NN_TRY(check_search(self, arguments[1].as.integer, &dim));
    int n_dims = reduced_shape(self, dim, arguments[2].as.boolean, shape);
    return shoal_op_output(call, shape, n_dims, finds_place ? SHOAL_I64 : shoal_tensor_dtype(self));
}

META(max)
{
    return declare(call, arguments, /*finds_place=*/false);
}

META(argmax)
{
    return declare(call, arguments, /*finds_place=*/true);
}

static void describe(const shoal_tensor *self, int dim, struct search *search)
{
    search->self = nn_rows_of(self, NULL, dim);
    search->loops = nn_loops_of(nn_real(search->self.dtype));
    search->n_parts = nn_row_parts(&search->self);
    search->row_bytes =
        nn_scratch_bytes((size_t)search->self.size, shoal_dtype_bytes(nn_real(search->self.dtype)));
}

static size_t search_bytes(const shoal_tensor *self, int64_t dim)
{
    struct search search;
    describe(self, nn_dim(dim, self), &search);
    return search.self.is_in_place ? 0 : search.n_parts * search.row_bytes;
}

WORKSPACE(max)
{
    return search_bytes(arguments[0].as.tensor, arguments[1].as.integer);
}

WORKSPACE(argmax)
{
    return workspace_max(call, arguments, outputs, n_outputs);
}

/* The rows of a part; `gradient` and `result`, where they are, go along. */
static void search_part(void *context, size_t part)
{
    const struct search *search = context;
    size_t first = nn_part_first((size_t)search->self.count, search->n_parts, part);
    size_t end = nn_part_first((size_t)search->self.count, search->n_parts, part + 1);
    char *scratch = search->scratch ? search->scratch + part * search->row_bytes : NULL;
    int64_t bytes = (int64_t)shoal_dtype_bytes(search->self.dtype);
    struct nn_row row = nn_row_at(&search->self, (int64_t)first);
    struct nn_row from = nn_row_at(&search->gradient, (int64_t)first);
    struct nn_row to = nn_row_at(&search->result, (int64_t)first);
    for (size_t i = first; i < end; i++) {
        const void *x = nn_row_read(&search->self, &row, scratch);
        int64_t place = (int64_t)search->loops->argmax((size_t)search->self.size, x);
        if (search->result.data) {
            memcpy(search->result.data + (to.offset + place * search->result.stride) * bytes,
                   search->gradient.data + from.offset * bytes, (size_t)bytes);
            nn_row_next(&search->gradient, &from);
            nn_row_next(&search->result, &to);
        } else if (search->finds_place) {
            memcpy(search->to + i * sizeof(place), &place, sizeof(place));
        } else {
            memcpy(search->to + i * (size_t)bytes,
                   search->self.data + (row.offset + place * search->self.stride) * bytes, (size_t)bytes);
        }
        nn_row_next(&search->self, &row);
    }
}

static shoal_status run_search(shoal_op_call_context *call, const shoal_tensor *self, struct search *search)
{
    void *scratch = NULL;
    search->self.data = (char *)(uintptr_t)shoal_data(self);
    NN_TRY(search->self.data ? SHOAL_OK : SHOAL_ERR_STATE); /* the text is there already */
    if (!search->self.is_in_place && search->n_parts > 0) {
        NN_TRY(nn_scratch(call, search->n_parts, search->row_bytes, &scratch));
    }
    search->scratch = scratch;
    nn_parallel(search->n_parts, search_part, search);
    return SHOAL_OK;
}

static shoal_status find(shoal_op_call_context *call, const shoal_value *arguments, bool finds_place,
                         shoal_tensor *output)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    struct search search = {.finds_place = finds_place, .to = shoal_mutable_data(output)};
    NN_TRY(search.to ? SHOAL_OK : SHOAL_ERR_STATE);
    describe(self, nn_dim(arguments[1].as.integer, self), &search);
    return run_search(call, self, &search);
}

RUN(max)
{
    return find(call, arguments, /*finds_place=*/false, outputs[0]);
}

RUN(argmax)
{
    return find(call, arguments, /*finds_place=*/true, outputs[0]);
}

GRADIENT(max)
{
    const shoal_value values[] = {nn_tensor(output_gradients[0]), arguments[0], arguments[1], arguments[2]};
    input_gradients[0] = nn_call(NN_OP_max_backward, values, 4);
    return shoal_scope_error();
}

META(max_backward)
{
    const shoal_tensor *gradient = arguments[0].as.tensor;
    const shoal_tensor *self = arguments[1].as.tensor;
    int64_t shape[SHOAL_MAX_DIMS];
    int dim = 0;
    NN_TRY(check_search(self, arguments[2].as.integer, &dim));
    NN_TRY(nn_check_dtype(gradient, "gradient", shoal_tensor_dtype(self), "self"));
    int n_dims = reduced_shape(self, dim, arguments[3].as.boolean, shape);
    bool does_fit = n_dims == shoal_tensor_n_dims(gradient);
    for (int i = 0; does_fit && i < n_dims; i++) {
        does_fit = shape[i] == shoal_tensor_shape(gradient)[i];
    }
    if (!does_fit) {
        return shoal_fail(SHOAL_ERR_INVALID, "gradient has shape %s, which does not fit self, %s, and dim %d",
                          nn_shape_text(gradient).text, nn_shape_text(self).text, dim);
    }
    return shoal_op_output(call, shoal_tensor_shape(self), shoal_tensor_n_dims(self),
                           shoal_tensor_dtype(self));
}

WORKSPACE(max_backward)
{
    return search_bytes(arguments[1].as.tensor, arguments[2].as.integer);
}

RUN(max_backward)
{
    const shoal_tensor *gradient = arguments[0].as.tensor;
    const shoal_tensor *self = arguments[1].as.tensor;
    int dim = nn_dim(arguments[2].as.integer, self);
    struct search search = {.to = NULL};
    const char *from = shoal_data(gradient);
    char *to = shoal_mutable_data(outputs[0]);
    NN_TRY(from && to ? SHOAL_OK : SHOAL_ERR_STATE);
    describe(self, dim, &search);
    search.result = nn_rows_of(outputs[0], to, dim);
    /* A dimension that was dropped is no dimension of the gradient: all of its dimensions are outer ones. */
    bool keeps_dim = arguments[3].as.boolean && shoal_tensor_n_dims(self) > 0;
    search.gradient =
        keeps_dim ? nn_rows_of(gradient, from, dim)
                  : (struct nn_rows){.data = (char *)(uintptr_t)from, .outer = nn_layout_of(gradient)};
    memset(to, 0, (size_t)shoal_tensor_count(outputs[0]) * shoal_dtype_bytes(search.self.dtype));
    return run_search(call, self, &search);
}
