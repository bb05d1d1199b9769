/* SPDX-License-Identifier: MIT */
/*
 * Rotary position embedding. Element i of the first half of a row and element i of the second half are rotated by an
 * angle that grows with the position. The gradient is the inverse rotation, so nothing is saved. Angles, sines and
 * cosines are computed in f64, once per position.
 */
#include <inttypes.h>
#include <math.h>

#include "ops/functions.h"
#include "math/pool.h"
#include "ops/rows.h"
#include "common/try.h"
#include "ops/values.h"

struct rotary {
    struct nn_rows input;
    struct nn_rows output;
    const struct nn_loops *loops;
    int64_t first_position;
    double base;
    bool is_inverse;
    int64_t n_positions;
    char *turns;   /* [n_positions, size]: the cosines of a position, then its sines */
    char *scratch; /* of each part two rows */
    size_t row_bytes;
    size_t n_parts;
    size_t n_table_parts;
};

META(rotary)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    double base = arguments[2].as.real;
    NN_TRY(nn_check_floating(self, "self"));
    if (shoal_tensor_n_dims(self) < 3) {
        return shoal_fail(SHOAL_ERR_INVALID, "self has shape %s, not [..., positions, heads, size]",
                          nn_shape_text(self).text);
    }
    if (nn_last_size(self) % 2 != 0) {
        return shoal_fail(SHOAL_ERR_INVALID, "self has shape %s: a size of %" PRId64 " cannot be halved",
                          nn_shape_text(self).text, nn_last_size(self));
    }
    if (!(base > 0) || isinf(base)) {
        return shoal_fail(SHOAL_ERR_INVALID, "base: %g is not a positive number", base);
    }
    return shoal_op_output(call, shoal_tensor_shape(self), shoal_tensor_n_dims(self),
                           shoal_tensor_dtype(self));
}

static void describe(const shoal_value *arguments, const shoal_tensor *output, struct rotary *rotary)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    int n_dims = shoal_tensor_n_dims(self);
    rotary->input = nn_rows_of(self, NULL, n_dims - 1);
    rotary->output = nn_rows_of(output, NULL, n_dims - 1);
    rotary->loops = nn_loops_of(nn_real(rotary->output.dtype));
    rotary->n_positions = shoal_tensor_shape(self)[n_dims - 3];
    rotary->row_bytes =
        nn_scratch_bytes((size_t)rotary->output.size, shoal_dtype_bytes(nn_real(rotary->output.dtype)));
    rotary->n_parts = nn_row_parts(&rotary->output);
}

WORKSPACE(rotary)
{
    struct rotary rotary;
    describe(arguments, outputs[0], &rotary);
    return rotary.n_parts == 0 ? 0 : ((size_t)rotary.n_positions + 2 * rotary.n_parts) * rotary.row_bytes;
}

static void table_part(void *context, size_t part)
{
    const struct rotary *rotary = context;
    size_t first = nn_part_first((size_t)rotary->n_positions, rotary->n_table_parts, part);
    size_t end = nn_part_first((size_t)rotary->n_positions, rotary->n_table_parts, part + 1);
    for (size_t i = first; i < end; i++) {
        rotary->loops->turns((size_t)rotary->output.size, (double)rotary->first_position + (double)i,
                             rotary->base, rotary->turns + i * rotary->row_bytes);
    }
}

static void turn_part(void *context, size_t part)
{
    const struct rotary *rotary = context;
    size_t count = (size_t)rotary->output.count;
    size_t first = nn_part_first(count, rotary->n_parts, part);
    size_t end = nn_part_first(count, rotary->n_parts, part + 1);
    char *scratch = rotary->scratch + part * 2 * rotary->row_bytes;
    struct nn_row from = nn_row_at(&rotary->input, (int64_t)first);
    struct nn_row to = nn_row_at(&rotary->output, (int64_t)first);
    int position_dim = rotary->output.outer.n_dims - 2;
    for (size_t i = first; i < end; i++) {
        const void *turns = rotary->turns + (size_t)to.index[position_dim] * rotary->row_bytes;
        const void *x = nn_row_read(&rotary->input, &from, scratch);
        void *y = nn_row_open(&rotary->output, &to, scratch + rotary->row_bytes);
        rotary->loops->turn((size_t)rotary->output.size, rotary->is_inverse, turns, x, y);
        nn_row_store(&rotary->output, &to, y);
        nn_row_next(&rotary->input, &from);
        nn_row_next(&rotary->output, &to);
    }
}

RUN(rotary)
{
    struct rotary rotary = {.first_position = arguments[1].as.integer,
                            .base = arguments[2].as.real,
                            .is_inverse = arguments[3].as.boolean};
    void *turns = NULL;
    void *scratch = NULL;
    describe(arguments, outputs[0], &rotary);
    rotary.input.data = (char *)(uintptr_t)shoal_data(arguments[0].as.tensor);
    rotary.output.data = shoal_mutable_data(outputs[0]);
    NN_TRY(rotary.input.data && rotary.output.data ? SHOAL_OK : SHOAL_ERR_STATE);
    if (rotary.n_parts == 0) {
        return SHOAL_OK;
    }
    NN_TRY(nn_scratch(call, (size_t)rotary.n_positions, rotary.row_bytes, &turns));
    NN_TRY(nn_scratch(call, 2 * rotary.n_parts, rotary.row_bytes, &scratch));
    rotary.turns = turns;
    rotary.scratch = scratch;
    /* A sine costs some fifty simple operations. */
    rotary.n_table_parts = nn_parts((size_t)rotary.n_positions, (size_t)rotary.output.size * 50);
    nn_parallel(rotary.n_table_parts, table_part, &rotary);
    nn_parallel(rotary.n_parts, turn_part, &rotary);
    return SHOAL_OK;
}

GRADIENT(rotary)
{
    const shoal_value values[] = {nn_tensor(output_gradients[0]), arguments[1], arguments[2],
                                  nn_bool(!arguments[3].as.boolean)};
    input_gradients[0] = nn_call(NN_OP_rotary, values, 4);
    return shoal_scope_error();
}
