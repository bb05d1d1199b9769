/* SPDX-License-Identifier: MIT */
/*
 * The application's floating-point mode and the library: whatever it is, operations, gradients, collectives, sharded
 * gradients and norms have the bits of the default mode; callbacks run in the application's mode, and calls return in it.
 */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "fixtures/descriptor_calls.h"
#include "fixtures/fp_modes.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "kernel/kernel.h"
#include "shoal/shoal.h"

enum {
    COUNT = 41, /* no number of ranks divides it */
    LARGE_COUNT = 300000
};

#define INTS(...) ((int64_t[]){__VA_ARGS__})

/* Drawn in the default mode, before a test begins: numbers that must be rounded, and subnormal ones. */
static float numbers[LARGE_COUNT];

static void draw(void)
{
    uint32_t seed = 11;
    for (size_t i = 0; i < LARGE_COUNT; i++) {
        seed = seed * 1664525u + 1013904223u;
        float value = (float)(seed >> 8) / 8388608.0f - 1.0f;
        numbers[i] = i % 3 == 0 ? value * 1e-20f * 1e-20f : value;
    }
}

/* Once for all ranks that are threads. */
static void draw_numbers(void)
{
    static pthread_once_t is_drawn = PTHREAD_ONCE_INIT;
    (void)pthread_once(&is_drawn, draw);
}

/* Which mode callbacks should see: a row, or -1 for the default one. */
static _Thread_local int expected_row = -1;
static _Thread_local int n_callbacks;

static void check_callback(void)
{
    n_callbacks++;
    uint64_t expected = expected_row < 0 ? FP_MODE_DEFAULT : fp_mode_rows[expected_row].word;
    CHECK(fp_modes_now() == expected);
}

typedef void compute_function(struct rank *self, int round, struct outcome *outcome);

/* Once in the default mode, and once in each other. */
static void check_modes(struct rank *self, compute_function *compute)
{
    static _Thread_local struct outcome expected;
    static _Thread_local struct outcome actual;
    expected.n_bytes = 0;
    expected_row = -1;
    n_callbacks = 0;
    compute(self, 0, &expected);
    int n_expected = n_callbacks;
    for (size_t row = 0; row < FP_MODE_ROWS; row++) {
        actual.n_bytes = 0;
        n_callbacks = 0;
        expected_row = (int)row;
        fp_modes_begin(row);
        compute(self, (int)row + 1, &actual);
        fp_modes_end(row);
        CHECK_INT(n_callbacks, n_expected);
        CHECK_INT(actual.n_bytes, expected.n_bytes);
        if (memcmp(actual.bytes, expected.bytes, expected.n_bytes) != 0) {
            test_failed(__FILE__, __LINE__, "mode %s gives other bits", fp_mode_rows[row].name);
        }
    }
    expected_row = -1;
}

/* Operations and gradients --------------------------------------------------------------------------------- */

static shoal_tensor *see_gradient(void *context, shoal_tensor *gradient)
{
    (void)context;
    check_callback();
    return shoal_div_scalar(gradient, 3.0);
}

static shoal_status see_leaf(void *context, shoal_tensor *leaf)
{
    (void)context;
    (void)leaf;
    check_callback();
    return SHOAL_OK;
}

static shoal_status see_recomputed(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                   shoal_tensor **outputs, size_t n_outputs)
{
    (void)context;
    (void)n_inputs;
    (void)n_outputs;
    check_callback();
    outputs[0] = shoal_mul(inputs[0], shoal_div_scalar(inputs[0], 7.0));
    return outputs[0] ? SHOAL_OK : SHOAL_ERR_STATE;
}

static shoal_status own_meta(shoal_op_call_context *call, const shoal_value *arguments)
{
    check_callback();
    const shoal_tensor *self = arguments[0].as.tensor;
    return shoal_op_output(call, shoal_tensor_shape(self), shoal_tensor_n_dims(self), SHOAL_F32);
}

static shoal_status own_kernel(shoal_op_call_context *call, const shoal_value *arguments,
                               shoal_tensor *const *outputs, size_t n_outputs)
{
    (void)call;
    (void)n_outputs;
    check_callback();
    memcpy(shoal_mutable_data(outputs[0]), shoal_data(arguments[0].as.tensor), COUNT * sizeof(float));
    return SHOAL_OK;
}

static shoal_status own_gradient(shoal_op_call_context *call, const shoal_value *arguments,
                                 shoal_tensor *const *outputs, shoal_tensor *const *output_gradients,
                                 shoal_tensor **input_gradients)
{
    (void)call;
    (void)arguments;
    (void)outputs;
    check_callback();
    input_gradients[0] = shoal_div_scalar(output_gradients[0], 3.0);
    return SHOAL_OK;
}

static const shoal_op *own_op;

static shoal_status see_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                shoal_tensor **outputs, size_t n_outputs)
{
    (void)module;
    (void)n_inputs;
    (void)n_outputs;
    check_callback();
    outputs[0] = shoal_div_scalar(inputs[0], 7.0);
    return SHOAL_OK;
}

static shoal_status see_module_hook(void *context, const shoal_forward_call *call)
{
    (void)context;
    (void)call;
    check_callback();
    return SHOAL_OK;
}

static void compute_module(shoal_tensor *input, struct outcome *outcome)
{
    shoal_module_definition definition = SHOAL_MODULE_DEFINITION_INIT;
    shoal_module_hook_definition hooks = SHOAL_MODULE_HOOK_DEFINITION_INIT;
    shoal_module *module;
    definition.type = "seventh";
    definition.forward = see_forward;
    hooks.pre_forward = see_module_hook;
    hooks.post_forward = see_module_hook;
    REQUIRE_OK(shoal_module_create(&definition, &module));
    CHECK_OK(shoal_module_add_hook(module, &hooks, NULL));
    outcome_append_tensor(outcome, shoal_module_call_one(module, input));
    shoal_module_unref(module);
}

static shoal_tensor *call_own(shoal_tensor *self)
{
    shoal_value argument = {.kind = SHOAL_VALUE_TENSOR, .count = 1, .as = {.tensor = self}};
    shoal_value result;
    return shoal_op_call(own_op, &argument, 1, &result) == SHOAL_OK ? result.as.tensor : NULL;
}

static void compute_ops(struct rank *self, int round, struct outcome *outcome)
{
    (void)self;
    (void)round;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *a = shoal_from_memory(numbers, INTS(COUNT), 1, SHOAL_F32, NULL, NULL, NULL);
    shoal_tensor *b = shoal_from_memory(numbers + COUNT, INTS(COUNT), 1, SHOAL_F32, NULL, NULL, NULL);
    outcome_append_tensor(outcome, shoal_add(a, b));
    outcome_append_tensor(outcome, shoal_mul(a, b));
    outcome_append_tensor(outcome, shoal_div_scalar(a, 3.0));
    outcome_append_tensor(outcome, shoal_mean(a, NULL, 0, false));
    outcome_append_tensor(outcome, shoal_to_dtype(a, SHOAL_BF16));
    outcome_append_tensor(outcome, shoal_to_dtype(a, SHOAL_F16));
    outcome_append_tensor(outcome, shoal_full(INTS(3), 1, 1e-310, SHOAL_F64));
    outcome_append_tensor(outcome, shoal_full(INTS(3), 1, 0.1, SHOAL_F32));

    compute_module(a, outcome);
    shoal_tensor *leaf = shoal_clone(a);
    REQUIRE_OK(shoal_set_requires_grad(leaf, true));
    REQUIRE_OK(shoal_on_gradient(leaf, see_gradient, NULL, NULL));
    REQUIRE_OK(shoal_on_accumulated(leaf, see_leaf, NULL, NULL));
    shoal_tensor *product = NULL;
    shoal_tensor *copied = call_own(leaf);
    REQUIRE_OK(shoal_recompute(see_recomputed, NULL, NULL, &copied, 1, &product, 1));
    REQUIRE_OK(shoal_backward(shoal_mean(shoal_mul(product, b), NULL, 0, false), NULL));
    outcome_append_tensor(outcome, shoal_grad(leaf));
    REQUIRE_OK(shoal_scope_end());
}

TEST(operations_and_gradients)
{
    const shoal_op_definition definition = {.struct_size = sizeof definition,
                                            .name = "fp_mode_test.own",
                                            .signature = "tensor self -> tensor",
                                            .meta = own_meta,
                                            .kernel = own_kernel,
                                            .gradient = own_gradient,
                                            .saves = "",
                                            .doc = "Looks at the mode."};
    size_t n_before = test_live_blocks();
    REQUIRE_OK(shoal_op_register(&definition, &own_op));
    test_keep_blocks(test_live_blocks() - n_before);
    draw_numbers();
    check_modes(NULL, compute_ops);
}

/* A number that is none in another mode is not taken for one. */
TEST(a_subnormal_number_is_no_integer)
{
    for (size_t row = 0; row < FP_MODE_ROWS; row++) {
        REQUIRE_OK(shoal_scope_begin());
        shoal_tensor *whole = shoal_full(INTS(3), 1, 7, SHOAL_I32);
        fp_modes_begin(row);
        CHECK(shoal_add_scalar(whole, 5e-324) == NULL);
        fp_modes_end(row);
        CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    }
}

/* Collectives ---------------------------------------------------------------------------------------------- */

/* Of a long result, every 101st element. */
static void append_some(struct outcome *outcome, const void *data, size_t count, size_t element_bytes)
{
    for (size_t i = 0; i<count; i += count> COUNT ? 101 : 1) {
        outcome_append(outcome, (const char *)data + i * element_bytes, element_bytes);
    }
}

static void compute_reduction(struct rank *self, shoal_group *group, size_t count, shoal_dtype dtype,
                              struct outcome *outcome)
{
    static float sent[4][LARGE_COUNT];
    static float received[4][LARGE_COUNT];
    float *to = received[self->rank];
    size_t rest = LARGE_COUNT - count;
    /* Each rank begins elsewhere. */
    kernel_cast(dtype, sent[self->rank], SHOAL_F32,
                numbers + (rest < (size_t)self->rank ? rest : (size_t)self->rank), count);
    REQUIRE_OK(shoal_group_all_reduce(group, sent[self->rank], to, count, dtype, SHOAL_AVG));
    append_some(outcome, to, count, shoal_dtype_bytes(dtype));
    REQUIRE_OK(group_all_reduce_premul(group, sent[self->rank], to, count, dtype, 0.3));
    append_some(outcome, to, count, shoal_dtype_bytes(dtype));
    /* Started: a lane's thread carries it, which was started in the application's mode. */
    shoal_work *work;
    REQUIRE_OK(shoal_group_all_reduce_start(group, sent[self->rank], to, count, dtype, SHOAL_SUM, &work));
    CHECK_OK(shoal_work_wait(work, -1));
    shoal_work_free(work);
    append_some(outcome, to, count, shoal_dtype_bytes(dtype));
}

static void compute_collectives(struct rank *self, int round, struct outcome *outcome)
{
    shoal_world *world = rank_world_open(self, round);
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    compute_reduction(self, group, COUNT, SHOAL_F32, outcome);
    compute_reduction(self, group, COUNT, SHOAL_F16, outcome);
    compute_reduction(self, group, LARGE_COUNT - 2, SHOAL_F32, outcome);
    compute_reduction(self, group, LARGE_COUNT - 2, SHOAL_BF16, outcome);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *a = shoal_from_memory(numbers + self->rank, INTS(COUNT), 1, SHOAL_F32, NULL, NULL, NULL);
    outcome_append_tensor(outcome, shoal_all_reduce(a, SHOAL_AVG, group));
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(collectives, 3)
{
    draw_numbers();
    check_modes(self, compute_collectives);
}

/* Sharded training ----------------------------------------------------------------------------------------- */

static shoal_status see_landed(void *context, int id, shoal_fsdp_shard *shard)
{
    (void)context;
    (void)id;
    (void)shard;
    check_callback();
    return SHOAL_OK;
}

/* Forward and backward of one unit, with a gradient that is only copied. */
static void do_step(shoal_fsdp *fsdp, struct rank *self, struct outcome *outcome)
{
    REQUIRE_OK(shoal_fsdp_pre_forward(fsdp, 0));
    outcome_append(outcome, shoal_fsdp_full_param(fsdp, 0), COUNT * sizeof(uint16_t));
    REQUIRE_OK(shoal_fsdp_post_forward(fsdp, 0));
    REQUIRE_OK(shoal_fsdp_pre_backward(fsdp, 0));
    void *gradient = shoal_fsdp_grad(fsdp, 0);
    REQUIRE(gradient);
    kernel_cast(SHOAL_BF16, gradient, SHOAL_F32, numbers + self->rank + 7, COUNT);
    REQUIRE_OK(shoal_fsdp_post_backward(fsdp, 0));
    REQUIRE_OK(shoal_fsdp_end_backward(fsdp));
}

static void append_gradient(shoal_fsdp *fsdp, struct outcome *outcome)
{
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    REQUIRE_OK(shoal_fsdp_update_shard(fsdp, 0, &shard));
    outcome_append(outcome, shard.grad, shard.count * sizeof(float));
}

static void compute_sharded(struct rank *self, int round, struct outcome *outcome, shoal_dtype reduce_dtype)
{
    shoal_world *world = rank_world_open(self, round);
    REQUIRE(world);
    shoal_fsdp *fsdp;
    const shoal_fsdp_options options = {.struct_size = sizeof options,
                                        .param_dtype = SHOAL_BF16,
                                        .reduce_dtype = reduce_dtype,
                                        .divide_factor = 3.3};
    double norm;
    REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), &options, &fsdp));
    REQUIRE_OK(shoal_fsdp_add_param(fsdp, 0, "w", SHOAL_F32, 1, INTS(COUNT), numbers, NULL));
    REQUIRE_OK(shoal_fsdp_set_accumulated_hook(shoal_fsdp_unit_of(fsdp, 0), see_landed, NULL));
    do_step(fsdp, self, outcome);
    append_gradient(fsdp, outcome);
    do_step(fsdp, self, outcome); /* adds to the gradient */
    append_gradient(fsdp, outcome);
    static const double powers[] = {2.0, 3.0, (double)INFINITY};
    for (int i = 0; i < 3; i++) {
        REQUIRE_OK(shoal_fsdp_clip_grad_norm(fsdp, 0.7, powers[i], false, &norm));
        outcome_append(outcome, &norm, sizeof norm);
        append_gradient(fsdp, outcome);
    }
    REQUIRE_OK(shoal_fsdp_clip_grad_value(fsdp, 1e-40));
    append_gradient(fsdp, outcome);
    shoal_fsdp_free(fsdp);
    CHECK_OK(shoal_world_close(world));
}

static void compute_sharded_f32(struct rank *self, int round, struct outcome *outcome)
{
    compute_sharded(self, round, outcome, SHOAL_F32);
}

static void compute_sharded_f16(struct rank *self, int round, struct outcome *outcome)
{
    compute_sharded(self, round, outcome, SHOAL_F16);
}

TEST_RANKS(sharded_gradients_in_f32, 2)
{
    draw_numbers();
    check_modes(self, compute_sharded_f32);
}

TEST_RANKS(sharded_gradients_in_f16, 2)
{
    draw_numbers();
    check_modes(self, compute_sharded_f16);
}

TEST(kernels_of_an_application_can_ask_for_the_default_mode)
{
    fp_modes_begin(0);
    uint64_t mode = shoal_fp_mode_enter();
    CHECK(fp_mode_is_default(fp_mode_read()));
    shoal_fp_mode_leave(mode);
    fp_modes_end(0);
}
