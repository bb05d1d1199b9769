/* SPDX-License-Identifier: MIT */
/*
 * Dropout: the mask is a function of seed, step, sample, element and stream. Micro-batches, recomputing, capturing
 * and compiling draw the same one; a captured step draws another one when its position changes.
 */
#include "fixtures/graph_text.h"
#include "shoal_nn/random.h"
#include "unit/nn/fixture.h"

static shoal_tensor *position_of(int64_t seed, int64_t step, int64_t sample)
{
    return make_indices(INTS(seed, step, sample), INTS(3), 1, SHOAL_I64);
}

static bool is_dropped(int64_t seed, uint64_t stream, int64_t step, uint64_t sample, uint64_t element,
                       double p)
{
    const shoal_nn_draws draws = {
        .seed = (uint64_t)seed, .stream = stream, .step = (uint64_t)step, .sample = sample};
    uint32_t word = 0;
    CHECK_OK(shoal_nn_words(&draws, element, 1, &word));
    return (double)word < p * 0x1p32;
}

/* Values ------------------------------------------------------------------------------------------------ */

static void check_masks(shoal_dtype dtype, bool is_strided, double p)
{
    enum {
        ROWS = 3,
        COLS = 700
    };
    struct test_random random = test_random_begin(4);
    shoal_tensor *x = make_random(&random, INTS(ROWS, COLS), 2, dtype);
    shoal_tensor *view = is_strided ? shoal_transpose(shoal_contiguous(shoal_transpose(x, 0, 1)), 0, 1) : x;
    shoal_tensor *y = shoal_nn_dropout(view, position_of(-5, 9, 1000), UINT64_MAX - 2, p);
    REQUIRE(y != NULL);
    CHECK_INT(shoal_tensor_dtype(y), dtype);
    const double *from = doubles_of(x);
    const double *to = doubles_of(y);
    double wide = 1 / (1 - p);
    double factor = dtype == SHOAL_F64 ? wide : (double)(float)wide;
    for (size_t i = 0; i < ROWS * COLS && !test_has_failed(); i++) {
        if (is_dropped(-5, UINT64_MAX - 2, 9, 1000 + i / COLS, i % COLS, p)) {
            CHECK_DOUBLE(to[i], 0);
        } else {
            double product = dtype == SHOAL_F64 ? from[i] * factor : (double)((float)from[i] * (float)factor);
            shoal_tensor *rounded = make_tensor(&product, INTS(1), 1, dtype);
            CHECK_DOUBLE(to[i], doubles_of(rounded)[0]);
        }
    }
}

NN_TEST(elements_are_dropped_or_scaled)
{
    const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_F64, SHOAL_BF16, SHOAL_F16};
    for (size_t i = 0; i < 4; i++) {
        check_masks(dtypes[i], false, 0.1);
        check_masks(dtypes[i], true, 0.5);
    }
}

NN_TEST(the_share_is_p)
{
    const double rows[] = {0.001, 0.1, 0.5, 0.9};
    shoal_tensor *x = shoal_full(INTS(100, 1000), 2, 1.0, SHOAL_F32);
    for (size_t i = 0; i < 4; i++) {
        const double *y = doubles_of(shoal_nn_dropout(x, position_of(1, 2, 3), 4, rows[i]));
        double n_dropped = 0;
        for (size_t k = 0; k < 100000; k++) {
            n_dropped += y[k] == 0;
        }
        CHECK(fabs(n_dropped - 1e5 * rows[i]) < 5 * sqrt(1e5 * rows[i] * (1 - rows[i])));
    }
}

/* 0 is the identity; 1 gives zeros, also of what is no number. */
NN_TEST(the_ends_of_p)
{
    const double values[] = {1.5, -2, (double)INFINITY, (double)NAN, 0, -0.0};
    shoal_tensor *x = make_tensor(values, INTS(2, 3), 2, SHOAL_F32);
    shoal_tensor *same = shoal_nn_dropout(x, position_of(1, 2, 3), 4, 0);
    shoal_tensor *zeros = shoal_nn_dropout(x, position_of(1, 2, 3), 4, 1);
    CHECK_BYTES(shoal_data(same), shoal_data(x), 6 * sizeof(float));
    CHECK_BYTES(shoal_data(zeros), shoal_data(shoal_zeros(INTS(2, 3), 2, SHOAL_F32)), 6 * sizeof(float));
    CHECK_INT(shoal_tensor_count(
                  shoal_nn_dropout(shoal_zeros(INTS(2, 0), 2, SHOAL_F32), position_of(1, 2, 3), 4, 0.5)),
              0);
    CHECK_INT(shoal_tensor_count(
                  shoal_nn_dropout(shoal_zeros(INTS(0, 2), 2, SHOAL_F32), position_of(1, 2, 3), 4, 0.5)),
              0);
}

/* Every number of the position, and the stream, changes the mask. */
NN_TEST(masks_differ)
{
    shoal_tensor *x = shoal_full(INTS(2, 64), 2, 1.0, SHOAL_F32);
    shoal_tensor *const masks[] = {
        shoal_nn_dropout(x, position_of(1, 1, 1), 1, 0.5), shoal_nn_dropout(x, position_of(2, 1, 1), 1, 0.5),
        shoal_nn_dropout(x, position_of(1, 2, 1), 1, 0.5), shoal_nn_dropout(x, position_of(1, 1, 3), 1, 0.5),
        shoal_nn_dropout(x, position_of(1, 1, 1), 2, 0.5)};
    for (int i = 0; i < 5; i++) {
        for (int k = 0; k < i; k++) {
            CHECK(memcmp(shoal_data(masks[i]), shoal_data(masks[k]), 128 * sizeof(float)) != 0);
        }
    }
    /* The second sample from 1 on is the first from 2 on. */
    shoal_tensor *next = shoal_nn_dropout(x, position_of(1, 1, 2), 1, 0.5);
    CHECK_BYTES(shoal_data(next), (const float *)shoal_data(masks[0]) + 64, 64 * sizeof(float));
}

/* Micro-batches and shards of a batch ------------------------------------------------------------------- */

NN_TEST(micro_batches_draw_what_the_batch_draws)
{
    enum {
        BATCH = 12,
        SIZE = 37
    };
    struct test_random random = test_random_begin(5);
    shoal_tensor *x = make_random(&random, INTS(BATCH, SIZE), 2, SHOAL_F32);
    const float *whole = shoal_data(shoal_nn_dropout(x, position_of(8, 1, 96), 2, 0.4));
    for (int64_t part = 1; part <= BATCH; part++) {
        for (int64_t first = 0; first < BATCH; first += part) {
            int64_t n = part < BATCH - first ? part : BATCH - first;
            shoal_tensor *y =
                shoal_nn_dropout(shoal_narrow(x, 0, first, n), position_of(8, 1, 96 + first), 2, 0.4);
            CHECK_BYTES(shoal_data(y), whole + first * SIZE, (size_t)(n * SIZE) * sizeof(float));
        }
    }
}

/* Recomputing ------------------------------------------------------------------------------------------- */

static shoal_tensor *net(shoal_tensor *x, shoal_tensor *weight, shoal_tensor *position)
{
    shoal_tensor *h = shoal_nn_dropout(shoal_nn_tanh(shoal_mul(x, weight)), position, 1, 0.3);
    return shoal_nn_dropout(shoal_mul(h, h), position, 2, 0.6);
}

static shoal_status run_again(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                              shoal_tensor **outputs, size_t n_outputs)
{
    outputs[0] = net(inputs[0], context, inputs[1]);
    return SHOAL_OK;
}

NN_TEST(recomputing_draws_the_same_mask)
{
    struct test_random random = test_random_begin(6);
    shoal_tensor *x = require_grad(make_random(&random, INTS(4, 9), 2, SHOAL_F32));
    shoal_tensor *weight = require_grad(make_random(&random, INTS(9), 1, SHOAL_F32));
    shoal_tensor *position = position_of(1, 2, 3);
    shoal_tensor *plain = net(x, weight, position);
    REQUIRE_OK(shoal_backward(sum_all(plain), NULL));
    shoal_tensor *want_x = shoal_clone(shoal_grad(x));
    shoal_tensor *want_weight = shoal_clone(shoal_grad(weight));
    REQUIRE_OK(shoal_set_grad(x, NULL));
    REQUIRE_OK(shoal_set_grad(weight, NULL));
    shoal_tensor *inputs[] = {x, position};
    shoal_tensor *again = NULL;
    REQUIRE_OK(shoal_recompute(run_again, weight, NULL, inputs, 2, &again, 1));
    CHECK_BYTES(shoal_data(again), shoal_data(plain), 36 * sizeof(float));
    REQUIRE_OK(shoal_backward(sum_all(again), NULL));
    CHECK_BYTES(shoal_data(shoal_grad(x)), shoal_data(want_x), 36 * sizeof(float));
    CHECK_BYTES(shoal_data(shoal_grad(weight)), shoal_data(want_weight), 9 * sizeof(float));
}

/* The position is the caller's memory, which may be used for something else before the backward pass. */
NN_TEST(the_gradient_has_its_own_position)
{
    int64_t numbers[] = {7, 8, 9};
    shoal_tensor *x = require_grad(shoal_full(INTS(4, 9), 2, 1.0, SHOAL_F32));
    shoal_tensor *position = shoal_from_memory(numbers, INTS(3), 1, SHOAL_I64, NULL, NULL, NULL);
    shoal_tensor *y = shoal_nn_dropout(x, position, 1, 0.5);
    numbers[0] = 70;
    numbers[1] = 80;
    numbers[2] = 90;
    REQUIRE_OK(shoal_backward(sum_all(y), NULL));
    CHECK_BYTES(shoal_data(shoal_grad(x)), shoal_data(y), 36 * sizeof(float));
}

/* A gradient of a gradient: the op is its own gradient. */
NN_TEST(the_gradient_has_a_gradient)
{
    shoal_tensor *g = require_grad(shoal_full(INTS(2, 3), 2, 2.0, SHOAL_F32));
    shoal_tensor *y =
        shoal_nn_dropout(shoal_nn_dropout(g, position_of(1, 2, 3), 4, 0.5), position_of(1, 2, 3), 4, 0.5);
    REQUIRE_OK(shoal_backward(sum_all(y), NULL));
    const float *gradient = shoal_data(shoal_grad(g));
    const float *value = shoal_data(y);
    for (int i = 0; i < 6; i++) {
        CHECK_DOUBLE(2 * (double)gradient[i], (double)value[i]);
    }
}

/* Captured ---------------------------------------------------------------------------------------------- */

/* inputs: x and position. */
static shoal_status train_step(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                               shoal_tensor **outputs, size_t n_outputs)
{
    outputs[0] = sum_all(net(inputs[0], context, inputs[1]));
    return shoal_backward(outputs[0], NULL);
}

struct step_result {
    float loss;
    float gradient[9];
};

static struct step_result run_eager(shoal_tensor *weight, shoal_tensor *const *inputs)
{
    struct step_result result = {0};
    shoal_tensor *loss = NULL;
    CHECK_OK(train_step(weight, inputs, 2, &loss, 1));
    memcpy(&result.loss, shoal_data(loss), sizeof result.loss);
    memcpy(result.gradient, shoal_data(shoal_grad(weight)), sizeof result.gradient);
    CHECK_OK(shoal_set_grad(weight, NULL));
    return result;
}

static struct step_result run_graph(const shoal_graph *graph, shoal_tensor *weight,
                                    shoal_tensor *const *inputs)
{
    struct step_result result = {0};
    shoal_tensor *const all[] = {inputs[0], inputs[1], weight};
    shoal_tensor *outputs[2] = {NULL};
    CHECK(shoal_graph_bound_input(graph, 2) == weight);
    CHECK(shoal_graph_bound_leaf(graph, 1) == weight);
    if (CHECK_OK(shoal_graph_run(graph, NULL, all, 3, outputs, 2))) {
        memcpy(&result.loss, shoal_data(outputs[0]), sizeof result.loss);
        memcpy(result.gradient, shoal_data(outputs[1]), sizeof result.gradient);
    }
    shoal_tensor_unref(outputs[0]);
    shoal_tensor_unref(outputs[1]);
    return result;
}

static struct step_result run_compiled(shoal_compiled *compiled, shoal_tensor *weight,
                                       shoal_tensor *const *inputs)
{
    struct step_result result = {0};
    shoal_tensor *loss = NULL;
    if (CHECK_OK(shoal_compiled_run(compiled, inputs, 2, &loss, 1))) {
        memcpy(&result.loss, shoal_data(loss), sizeof result.loss);
        memcpy(result.gradient, shoal_data(shoal_grad(weight)), sizeof result.gradient);
    }
    shoal_tensor_unref(loss);
    CHECK_OK(shoal_set_grad(weight, NULL));
    return result;
}

NN_TEST(a_captured_step_draws_by_its_position)
{
    struct test_random random = test_random_begin(7);
    shoal_tensor *x = make_random(&random, INTS(4, 9), 2, SHOAL_F32);
    shoal_tensor *weight = require_grad(make_random(&random, INTS(9), 1, SHOAL_F32));
    shoal_tensor *inputs[] = {x, position_of(1, 0, 3)};
    shoal_graph *graph = NULL;
    shoal_compiled *compiled = NULL;
    float last = 0;
    REQUIRE_OK(shoal_capture(train_step, weight, inputs, 2, 1, &graph));
    REQUIRE_OK(shoal_compile(NULL, train_step, weight, 1, NULL, &compiled));
    for (int64_t step = 0; step < 5; step++) {
        inputs[1] = position_of(1, step, 3 + 4 * step);
        struct step_result eager = run_eager(weight, inputs);
        struct step_result graphed = run_graph(graph, weight, inputs);
        struct step_result planned = run_compiled(compiled, weight, inputs);
        CHECK_BYTES(&graphed, &eager, sizeof eager);
        CHECK_BYTES(&planned, &eager, sizeof eager);
        CHECK(step == 0 || memcmp(&eager.loss, &last, sizeof last) != 0);
        last = eager.loss;
    }
    shoal_compile_report report = SHOAL_COMPILE_REPORT_INIT;
    CHECK_OK(shoal_compiled_get_report(compiled, &report));
    CHECK_INT(report.n_compiles, 1);
    shoal_compiled_free(compiled);
    shoal_graph_free(graph);
}

static shoal_status drop_by_name(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                 shoal_tensor **outputs, size_t n_outputs)
{
    outputs[0] = shoal_nn_dropout(inputs[0], inputs[1], shoal_nn_stream("a"), 0.1);
    return SHOAL_OK;
}

/* All 64 bits of a stream and all of p are in the text of a graph. */
NN_TEST(the_text_of_a_graph_has_the_whole_stream)
{
    shoal_tensor *inputs[] = {shoal_full(INTS(3, 40), 2, 1.0, SHOAL_F32), position_of(1, 2, 3)};
    shoal_tensor *eager = NULL;
    shoal_tensor *read = NULL;
    shoal_graph *graph = NULL;
    shoal_graph *copy = NULL;
    CHECK(shoal_nn_stream("a") >> 63 == 1);
    REQUIRE_OK(drop_by_name(NULL, inputs, 2, &eager, 1));
    REQUIRE_OK(shoal_capture(drop_by_name, NULL, inputs, 2, 1, &graph));
    char *text = graph_text_print(graph);
    if (text && CHECK_OK(shoal_graph_parse(text, strlen(text), &copy)) &&
        CHECK_OK(shoal_graph_run(copy, NULL, inputs, 2, &read, 1))) {
        CHECK_BYTES(shoal_data(read), shoal_data(eager), 120 * sizeof(float));
    }
    shoal_tensor_unref(read);
    shoal_graph_free(copy);
    shoal_graph_free(graph);
    free(text);
}

/* Errors ------------------------------------------------------------------------------------------------ */

static void refuse(shoal_tensor *x, shoal_tensor *position, double p, shoal_status status, const char *words)
{
    REQUIRE_OK(shoal_scope_begin());
    CHECK(shoal_nn_dropout(x, position, 1, p) == NULL);
    CHECK_STATUS(shoal_scope_error(), status);
    CHECK_ERROR_TEXT("nn.dropout");
    CHECK_ERROR_TEXT(words);
    CHECK_STATUS(shoal_scope_end(), status);
}

NN_TEST(arguments_that_are_wrong)
{
    shoal_tensor *x = shoal_full(INTS(2, 3), 2, 1.0, SHOAL_F32);
    shoal_tensor *position = position_of(1, 2, 3);
    refuse(x, position, -0.1, SHOAL_ERR_INVALID, "p: -0.1 is not a probability");
    refuse(x, position, 1.5, SHOAL_ERR_INVALID, "p: 1.5");
    refuse(x, position, (double)NAN, SHOAL_ERR_INVALID, "p: nan");
    refuse(shoal_empty(NULL, 0, SHOAL_F32), position, 0.5, SHOAL_ERR_INVALID, "no dimensions");
    refuse(position, position, 0.5, SHOAL_ERR_UNSUPPORTED, "self: i64");
    refuse(x, shoal_to_dtype(position, SHOAL_I32), 0.5, SHOAL_ERR_INVALID, "position is i32, not i64");
    refuse(x, shoal_zeros(INTS(4), 1, SHOAL_I64), 0.5, SHOAL_ERR_INVALID, "position has shape [4], not [3]");
    refuse(x, shoal_zeros(INTS(3, 1), 2, SHOAL_I64), 0.5, SHOAL_ERR_INVALID, "position has shape [3, 1]");
    refuse(NULL, position, 0.5, SHOAL_ERR_INVALID, "self");
    refuse(x, NULL, 0.5, SHOAL_ERR_INVALID, "position");
}

NN_TEST(shapes_without_data)
{
    shoal_tensor *x = shoal_empty_on(INTS(2, 3), 2, SHOAL_BF16, SHOAL_META);
    shoal_tensor *position = shoal_empty_on(INTS(3), 1, SHOAL_I64, SHOAL_META);
    shoal_tensor *y = shoal_nn_dropout(x, position, 1, 0.5);
    CHECK_INT(shoal_tensor_device(y), SHOAL_META);
    CHECK_INT(shoal_tensor_dtype(y), SHOAL_BF16);
    CHECK_INT(shoal_tensor_n_dims(y), 2);
    CHECK_INT(shoal_tensor_shape(y)[1], 3);
}

static shoal_status train_once(void *context)
{
    shoal_status status = shoal_scope_begin();
    if (status != SHOAL_OK) {
        return status;
    }
    shoal_tensor *x = shoal_full(INTS(3, 2), 2, 0.5, SHOAL_BF16);
    shoal_tensor *position = shoal_zeros(INTS(3), 1, SHOAL_I64);
    if (position) {
        status = shoal_set_requires_grad(x, true);
    }
    shoal_tensor *y = position && status == SHOAL_OK ? shoal_nn_dropout(x, position, 1, 0.5) : NULL;
    shoal_tensor *loss = y ? shoal_sum(y, NULL, 0, false) : NULL;
    if (loss) {
        status = shoal_backward(loss, NULL);
    }
    shoal_status ended = shoal_scope_end();
    return status == SHOAL_OK ? ended : status;
}

TEST(failing_allocations_are_errors)
{
    begin_nn();
    CHECK(test_sweep_allocations(train_once, NULL) > 5);
}
