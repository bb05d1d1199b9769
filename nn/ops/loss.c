/* SPDX-License-Identifier: MIT */
/* Losses: one number from many. They are f64 for f64 and f32 for all else. */
#include <inttypes.h>

#include "ops/functions.h"
#include "math/pool.h"
#include "ops/rows.h"
#include "common/try.h"
#include "ops/values.h"

static shoal_status declare_loss(shoal_op_call_context *call, const shoal_tensor *input)
{
    return shoal_op_output(call, NULL, 0, nn_real(shoal_tensor_dtype(input)));
}

static shoal_status check_loss_gradient(const shoal_tensor *gradient, const shoal_tensor *input,
                                        const char *input_name)
{
    NN_TRY(nn_check_floating(input, input_name));
    NN_TRY(nn_check_dtype(gradient, "gradient", nn_real(shoal_tensor_dtype(input)), "the loss"));
    if (shoal_tensor_count(gradient) != 1) {
        return shoal_fail(SHOAL_ERR_INVALID, "gradient has shape %s, not one element",
                          nn_shape_text(gradient).text);
    }
    return SHOAL_OK;
}

/* The one number of a gradient. */
static shoal_status load_number(shoal_op_call_context *call, const shoal_tensor *tensor, double *number_out)
{
    struct nn_values values;
    NN_TRY(nn_load(call, tensor, &values));
    *number_out = nn_loops_of(nn_real(shoal_tensor_dtype(tensor)))->first(values.data);
    return SHOAL_OK;
}

/* mse -------------------------------------------------------------------------------------------------- */

/* One dtype, or a 16-bit one and f32. */
static shoal_status check_pair(const shoal_tensor *a, const char *a_name, const shoal_tensor *b,
                               const char *b_name)
{
    shoal_dtype a_dtype = shoal_tensor_dtype(a);
    shoal_dtype b_dtype = shoal_tensor_dtype(b);
    NN_TRY(nn_check_floating(a, a_name));
    NN_TRY(nn_check_floating(b, b_name));
    bool is_mixed = nn_real(a_dtype) == SHOAL_F32 && nn_real(b_dtype) == SHOAL_F32 &&
                    (a_dtype == SHOAL_F32 || b_dtype == SHOAL_F32);
    if (!is_mixed) {
        NN_TRY(nn_check_dtype(b, b_name, a_dtype, a_name));
    }
    return nn_check_same_shape(b, b_name, a, a_name);
}

META(mse)
{
    NN_TRY(check_pair(arguments[0].as.tensor, "input", arguments[1].as.tensor, "target"));
    return declare_loss(call, arguments[0].as.tensor);
}

RUN(mse)
{
    const struct nn_loops *loops = nn_loops_of(nn_real(shoal_tensor_dtype(outputs[0])));
    struct nn_values input = {.data = NULL};
    struct nn_values target = {.data = NULL};
    struct nn_values loss = {.data = NULL};
    NN_TRY(nn_load(call, arguments[0].as.tensor, &input));
    NN_TRY(nn_load(call, arguments[1].as.tensor, &target));
    NN_TRY(nn_open(call, outputs[0], /*keeps_values=*/false, &loss));
    double sum = loops->sum_of_squares(input.count, input.data, target.data);
    loops->fill(1, sum / (double)input.count, loss.data);
    return SHOAL_OK;
}

GRADIENT(mse)
{
    for (size_t i = 0; i < 2; i++) {
        if (shoal_op_needs_gradient(call, i)) {
            const shoal_value values[] = {nn_tensor(output_gradients[0]), arguments[i], arguments[1 - i]};
            input_gradients[i] = nn_call(NN_OP_mse_backward, values, 3);
        }
    }
    return shoal_scope_error();
}

META(mse_backward)
{
    const shoal_tensor *self = arguments[1].as.tensor;
    NN_TRY(check_loss_gradient(arguments[0].as.tensor, self, "self"));
    NN_TRY(check_pair(self, "self", arguments[2].as.tensor, "other"));
    return shoal_op_output(call, shoal_tensor_shape(self), shoal_tensor_n_dims(self),
                           shoal_tensor_dtype(self));
}

RUN(mse_backward)
{
    const struct nn_loops *loops = nn_loops_of(nn_real(shoal_tensor_dtype(outputs[0])));
    struct nn_values self = {.data = NULL};
    struct nn_values other = {.data = NULL};
    struct nn_values result = {.data = NULL};
    double gradient;
    NN_TRY(load_number(call, arguments[0].as.tensor, &gradient));
    NN_TRY(nn_load(call, arguments[1].as.tensor, &self));
    NN_TRY(nn_load(call, arguments[2].as.tensor, &other));
    NN_TRY(nn_open(call, outputs[0], /*keeps_values=*/false, &result));
    loops->mse_backward(result.count, gradient, self.data, other.data, result.data);
    nn_store(outputs[0], &result);
    return SHOAL_OK;
}

/* cross_entropy ---------------------------------------------------------------------------------------- */

/* Logits have one dimension more than targets: the classes. */
static shoal_status check_classes(const shoal_tensor *logits, const shoal_tensor *targets)
{
    NN_TRY(nn_check_floating(logits, "logits"));
    NN_TRY(nn_check_integer(targets, "targets"));
    int n_dims = shoal_tensor_n_dims(targets);
    bool does_fit = shoal_tensor_n_dims(logits) == n_dims + 1;
    for (int i = 0; does_fit && i < n_dims; i++) {
        does_fit = shoal_tensor_shape(logits)[i] == shoal_tensor_shape(targets)[i];
    }
    if (!does_fit) {
        return shoal_fail(SHOAL_ERR_INVALID,
                          "targets has shape %s, which is not that of logits, %s, without the last dimension",
                          nn_shape_text(targets).text, nn_shape_text(logits).text);
    }
    return SHOAL_OK;
}

static shoal_status check_options(const shoal_value *smoothing)
{
    double value = smoothing->as.real;
    if (!(value >= 0 && value <= 1)) {
        return shoal_fail(SHOAL_ERR_INVALID, "label_smoothing: %g is not within 0..1", value);
    }
    return SHOAL_OK;
}

/* Every target is a class, or ignored; the number of those that are not ignored is written. */
static shoal_status check_targets(const struct nn_values *targets, int64_t n_classes, int64_t ignore_index,
                                  size_t *n_counted_out)
{
    const int64_t *target = targets->data;
    size_t n_counted = 0;
    for (size_t i = 0; i < targets->count; i++) {
        if (target[i] == ignore_index) {
            continue;
        }
        if (target[i] < 0 || target[i] >= n_classes) {
            return shoal_fail(SHOAL_ERR_INVALID,
                              "targets: element %zu is %" PRId64 ", not one of %" PRId64 " classes", i,
                              target[i], n_classes);
        }
        n_counted++;
    }
    *n_counted_out = n_counted;
    return SHOAL_OK;
}

META(cross_entropy)
{
    NN_TRY(check_classes(arguments[0].as.tensor, arguments[1].as.tensor));
    NN_TRY(check_options(&arguments[3]));
    return declare_loss(call, arguments[0].as.tensor);
}

/* Rows of logits, in parts. */
struct entropy {
    struct nn_rows logits;
    struct nn_rows result; /* of the gradient */
    const struct nn_loops *loops;
    const int64_t *targets;
    int64_t ignore_index;
    double smoothing;
    double factor;  /* of the gradient */
    double *losses; /* one for each row */
    /* Of each part a row of the logits and one of the result; NULL when they are used in place. */
    char *scratch;
    size_t row_bytes;
    size_t n_parts;
};

static void describe_entropy(const shoal_tensor *logits, struct entropy *entropy)
{
    entropy->logits = nn_rows_of(logits, NULL, shoal_tensor_n_dims(logits) - 1);
    shoal_dtype real = nn_real(entropy->logits.dtype);
    size_t size = (size_t)entropy->logits.size;
    entropy->loops = nn_loops_of(real);
    entropy->row_bytes = nn_scratch_bytes(size, shoal_dtype_bytes(real));
    /* An exponential costs some eight simple operations. */
    size_t cost = size < SIZE_MAX / 8 ? 8 * size : SIZE_MAX;
    entropy->n_parts = shoal_tensor_count(logits) > 0 ? nn_parts((size_t)entropy->logits.count, cost) : 0;
}

/* A result is contiguous: it goes through scratch memory for its dtype's sake alone. */
static size_t entropy_bytes(const struct entropy *entropy)
{
    return entropy->logits.is_in_place ? 0 : entropy->n_parts * 2 * entropy->row_bytes;
}

static shoal_status open_entropy(shoal_op_call_context *call, const shoal_tensor *logits,
                                 const shoal_tensor *targets, struct entropy *entropy, size_t *n_counted_out)
{
    struct nn_values loaded = {.data = NULL};
    void *scratch = NULL;
    describe_entropy(logits, entropy);
    entropy->logits.data = (char *)(uintptr_t)shoal_data(logits);
    NN_TRY(entropy->logits.data ? SHOAL_OK : SHOAL_ERR_STATE); /* the text is there already */
    NN_TRY(nn_load_integers(call, targets, &loaded));
    NN_TRY(check_targets(&loaded, entropy->logits.size, entropy->ignore_index, n_counted_out));
    if (entropy_bytes(entropy) > 0) {
        NN_TRY(nn_scratch(call, entropy_bytes(entropy), 1, &scratch));
    }
    entropy->targets = loaded.data;
    entropy->scratch = scratch;
    return SHOAL_OK;
}

static void loss_part(void *context, size_t part)
{
    const struct entropy *entropy = context;
    size_t first = nn_part_first((size_t)entropy->logits.count, entropy->n_parts, part);
    size_t end = nn_part_first((size_t)entropy->logits.count, entropy->n_parts, part + 1);
    char *scratch = entropy->scratch ? entropy->scratch + part * 2 * entropy->row_bytes : NULL;
    struct nn_row row = nn_row_at(&entropy->logits, (int64_t)first);
    for (size_t i = first; i < end; i++) {
        int64_t target = entropy->targets[i];
        entropy->losses[i] = 0;
        if (target != entropy->ignore_index) {
            entropy->losses[i] = entropy->loops->cross_entropy((size_t)entropy->logits.size,
                                                               nn_row_read(&entropy->logits, &row, scratch),
                                                               (size_t)target, entropy->smoothing);
        }
        nn_row_next(&entropy->logits, &row);
    }
}

WORKSPACE(cross_entropy)
{
    const shoal_tensor *targets = arguments[1].as.tensor;
    struct entropy entropy;
    describe_entropy(arguments[0].as.tensor, &entropy);
    return nn_values_bytes(targets) + entropy_bytes(&entropy) +
           nn_scratch_bytes((size_t)shoal_tensor_count(targets), sizeof(double));
}

/* The losses of rows are added in their order, however they were cut. */
RUN(cross_entropy)
{
    struct entropy entropy = {.ignore_index = arguments[2].as.integer, .smoothing = arguments[3].as.real};
    struct nn_values loss = {.data = NULL};
    void *losses = NULL;
    size_t n_counted = 0;
    NN_TRY(open_entropy(call, arguments[0].as.tensor, arguments[1].as.tensor, &entropy, &n_counted));
    NN_TRY(nn_open(call, outputs[0], /*keeps_values=*/false, &loss));
    size_t n_rows = entropy.n_parts > 0 ? (size_t)entropy.logits.count : 0;
    if (n_rows > 0) {
        NN_TRY(nn_scratch(call, n_rows, sizeof(double), &losses));
    }
    entropy.losses = losses;
    nn_parallel(entropy.n_parts, loss_part, &entropy);
    double sum = 0;
    for (size_t i = 0; i < n_rows; i++) {
        sum += entropy.losses[i];
    }
    entropy.loops->fill(1, sum / (double)n_counted, loss.data);
    return SHOAL_OK;
}

GRADIENT(cross_entropy)
{
    const shoal_value values[] = {nn_tensor(output_gradients[0]), arguments[0], arguments[1], arguments[2],
                                  arguments[3]};
    input_gradients[0] = nn_call(NN_OP_cross_entropy_backward, values, 5);
    return shoal_scope_error();
}

META(cross_entropy_backward)
{
    const shoal_tensor *logits = arguments[1].as.tensor;
    NN_TRY(check_classes(logits, arguments[2].as.tensor));
    NN_TRY(check_loss_gradient(arguments[0].as.tensor, logits, "logits"));
    NN_TRY(check_options(&arguments[4]));
    return shoal_op_output(call, shoal_tensor_shape(logits), shoal_tensor_n_dims(logits),
                           shoal_tensor_dtype(logits));
}

static void gradient_part(void *context, size_t part)
{
    const struct entropy *entropy = context;
    size_t n_classes = (size_t)entropy->logits.size;
    size_t first = nn_part_first((size_t)entropy->logits.count, entropy->n_parts, part);
    size_t end = nn_part_first((size_t)entropy->logits.count, entropy->n_parts, part + 1);
    char *scratch = entropy->scratch ? entropy->scratch + part * 2 * entropy->row_bytes : NULL;
    char *result_scratch = scratch ? scratch + entropy->row_bytes : NULL;
    struct nn_row row = nn_row_at(&entropy->logits, (int64_t)first);
    struct nn_row to = nn_row_at(&entropy->result, (int64_t)first);
    for (size_t i = first; i < end; i++) {
        int64_t target = entropy->targets[i];
        void *result = nn_row_open(&entropy->result, &to, result_scratch);
        if (target == entropy->ignore_index) {
            entropy->loops->fill(n_classes, 0, result);
        } else {
            entropy->loops->cross_entropy_backward(n_classes, nn_row_read(&entropy->logits, &row, scratch),
                                                   (size_t)target, entropy->smoothing, entropy->factor,
                                                   result);
        }
        nn_row_store(&entropy->result, &to, result);
        nn_row_next(&entropy->logits, &row);
        nn_row_next(&entropy->result, &to);
    }
}

WORKSPACE(cross_entropy_backward)
{
    struct entropy entropy;
    describe_entropy(arguments[1].as.tensor, &entropy);
    return nn_values_bytes(arguments[0].as.tensor) + nn_values_bytes(arguments[2].as.tensor) +
           entropy_bytes(&entropy);
}

RUN(cross_entropy_backward)
{
    struct entropy entropy = {.ignore_index = arguments[3].as.integer, .smoothing = arguments[4].as.real};
    size_t n_counted = 0;
    double gradient;
    NN_TRY(load_number(call, arguments[0].as.tensor, &gradient));
    NN_TRY(open_entropy(call, arguments[1].as.tensor, arguments[2].as.tensor, &entropy, &n_counted));
    void *to = shoal_mutable_data(outputs[0]);
    NN_TRY(to ? SHOAL_OK : SHOAL_ERR_STATE); /* the text is there already */
    entropy.result = nn_rows_of(outputs[0], to, shoal_tensor_n_dims(outputs[0]) - 1);
    entropy.factor = gradient / (double)n_counted;
    nn_parallel(entropy.n_parts, gradient_part, &entropy);
    return SHOAL_OK;
}
