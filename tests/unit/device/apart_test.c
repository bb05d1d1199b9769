/* SPDX-License-Identifier: MIT */
/* A device that is not the host: `apart`, whose memory the host cannot touch, and which works later. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "fixtures/apart.h"
#include "fixtures/scoped.h"
#include "harness/test.h"
#include "shoal/shoal.h"
#include "shoal_compat/torch.h"

TEST(it_is_found_by_its_name)
{
    shoal_device device = SHOAL_META;
    CHECK_OK(shoal_device_find("apart", &device));
    CHECK(device == apart() && (int)device >= 16);
    CHECK_STRING(shoal_device_name(device), "apart");
    CHECK_STRING(shoal_device_name(SHOAL_CPU), "cpu");
    CHECK_STRING(shoal_device_name((shoal_device)(DEVICE_FIRST_MODULE + DEVICE_MODULES_MOST)), "");
    CHECK_STRING(shoal_device_name((shoal_device)-1), "");
    CHECK_STATUS(shoal_device_find("nosuch", &device), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("device_find: there is no device \"nosuch\": built in are: cpu meta, and "
                     "libshoal_nosuch-1.so is neither in");
    CHECK_STATUS(shoal_device_find("no/such", &device), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("device_find: \"no/such\" cannot be the name of a device");
    CHECK_STATUS(shoal_device_find("transport_socket", &device), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("cannot be the name of a device");
    CHECK_STATUS(shoal_device_find(NULL, &device), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_device_find("apart", NULL), SHOAL_ERR_INVALID);
    CHECK(device == apart());
}

SCOPED_TEST(a_tensor_goes_there_and_back)
{
    shoal_tensor *here = count_up(DIMS(2, 3), 1);
    shoal_tensor *there = shoal_to_device(here, apart());
    REQUIRE(there);
    CHECK(shoal_tensor_device(there) == apart());
    CHECK(shoal_to_device(there, apart()) == there);
    CHECK(shoal_to_device(here, SHOAL_CPU) == here);
    check_values(there, (const float[]){1, 2, 3, 4, 5, 6}, 6);
    shoal_tensor *turned = shoal_transpose(there, 0, 1);
    check_values(turned, (const float[]){1, 4, 2, 5, 3, 6}, 6);
    shoal_tensor *back = shoal_to_device(turned, SHOAL_CPU);
    REQUIRE(back && shoal_tensor_is_contiguous(back));
    CHECK_BYTES(shoal_data(back), ((const float[]){1, 4, 2, 5, 3, 6}), 6 * sizeof(float));
    check_values(shoal_to_device(shoal_transpose(here, 0, 1), apart()), (const float[]){1, 4, 2, 5, 3, 6}, 6);
    shoal_tensor *none = shoal_to_device(shoal_empty(DIMS(0, 3), SHOAL_F64), apart());
    CHECK(none && shoal_to_device(none, SHOAL_CPU));
    CHECK_OK(shoal_read(none, NULL, 0));
}

/* The buffer has exactly the size. */
SCOPED_TEST(read_is_checked)
{
    float values[6];
    shoal_tensor *there = shoal_to_device(count_up(DIMS(2, 3), 1), apart());
    CHECK_STATUS(shoal_read(there, values, 20), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("read: the tensor f32 [2, 3] has 24 bytes, the buffer 20");
    CHECK_STATUS(shoal_read(there, NULL, 24), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_read(NULL, values, 24), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_read(shoal_empty_on(DIMS(2), SHOAL_F32, SHOAL_META), values, 8), SHOAL_ERR_STATE);
    CHECK_OK(shoal_read(shoal_transpose(count_up(DIMS(3, 2), 0), 0, 1), values, 24));
    CHECK_BYTES(values, ((const float[]){0, 2, 4, 1, 3, 5}), sizeof values);
}

SCOPED_TEST(the_host_cannot_touch_it)
{
    float values[2];
    shoal_tensor *there = shoal_to_device(count_up(DIMS(2), 1), apart());
    CHECK_OK(shoal_tensor_set_name(there, "x"));
    CHECK(!shoal_data(there));
    CHECK_ERROR_TEXT("tensor x is on device apart, whose memory the host cannot access");
    CHECK(!shoal_mutable_data(there));
    CHECK_STATUS(shoal_tensor_rebind_data(there, values, NULL, NULL), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("apart");
    CHECK_STATUS(shoal_safetensors_save("/nowhere/x", (const char *const[]){"x"}, &there, 1, NULL),
                 SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("safetensors_save: tensors[0]: is on device apart, not in memory of the host");
    check_values(there, (const float[]){1, 2}, 2);
}

TEST(one_call_is_on_one_device)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *here = count_up(DIMS(2), 1);
    CHECK(!shoal_add(here, shoal_to_device(here, apart())));
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("one call has tensors on devices cpu and apart");
    REQUIRE_OK(shoal_scope_begin());
    CHECK(!shoal_to_device(shoal_empty_on(DIMS(2), SHOAL_F32, SHOAL_META), apart()));
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("to_device: self: it is on device meta, where there is no data to copy");
    REQUIRE_OK(shoal_scope_begin());
    CHECK(!shoal_to_device(count_up(DIMS(2), 1), (shoal_device)9));
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("to_device: device: 9 is not a device");
}

/* What a step does with its input, which is on the CPU. */
static shoal_status copy_there(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                               shoal_tensor **outputs, size_t n_outputs)
{
    outputs[0] = shoal_to_device(shoal_mul_scalar(inputs[0], 2), apart());
    return SHOAL_OK;
}

static shoal_status make_there(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                               shoal_tensor **outputs, size_t n_outputs)
{
    outputs[0] = shoal_mul_scalar(shoal_empty_on(DIMS(3), SHOAL_F32, apart()), 0);
    return SHOAL_OK;
}

static shoal_status double_input(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                 shoal_tensor **outputs, size_t n_outputs)
{
    outputs[0] = shoal_mul_scalar(inputs[0], 2);
    return SHOAL_OK;
}

static shoal_status add_captured(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                 shoal_tensor **outputs, size_t n_outputs)
{
    outputs[0] = shoal_add(inputs[0], context);
    return SHOAL_OK;
}

static void check_refused(shoal_step_function step, void *context, shoal_tensor *input, const char *words)
{
    shoal_compiled *compiled = NULL;
    shoal_tensor *output = NULL;
    REQUIRE_OK(shoal_compile(NULL, step, context, 1, NULL, &compiled));
    CHECK_STATUS(shoal_compiled_run(compiled, &input, 1, &output, 1), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT(words);
    CHECK(!output);
    shoal_compiled_free(compiled);
}

SCOPED_TEST(compiled_steps_are_on_the_host)
{
    shoal_tensor *here = count_up(DIMS(3), 1);
    shoal_tensor *there = shoal_to_device(here, apart());
    check_refused(copy_there, NULL, here,
                  "%to_device: device apart: plans and compiled steps are on the cpu");
    check_refused(make_there, NULL, here, "%empty: device apart: plans and compiled steps are on the cpu");
    check_refused(double_input, NULL, there, "is on device apart, whose memory the host cannot access");
    check_refused(add_captured, shoal_clone(there), there,
                  "is on device apart, whose memory the host cannot access");
}

/* They are run op by op. */
SCOPED_TEST(graphs_run_where_their_inputs_are)
{
    shoal_graph *graph = NULL;
    shoal_tensor *output = NULL;
    shoal_tensor *here = count_up(DIMS(3), 1);
    shoal_tensor *there = shoal_to_device(here, apart());
    REQUIRE_OK(shoal_capture(copy_there, NULL, &here, 1, 1, &graph));
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(shoal_graph_run(graph, NULL, i == 0 ? &here : &there, 1, &output, 1));
        CHECK(shoal_tensor_device(output) == apart());
        check_values(output, (const float[]){2, 4, 6}, 3);
        shoal_tensor_unref(output);
    }
    shoal_graph_free(graph);
}

SCOPED_TEST(gradients_come_back)
{
    shoal_tensor *leaf = count_up(DIMS(3), 1);
    CHECK_OK(shoal_set_requires_grad(leaf, true));
    shoal_tensor *there = shoal_to_device(leaf, apart());
    shoal_tensor *loss = shoal_sum(shoal_mul(there, there), NULL, 0, false);
    CHECK(shoal_tensor_device(loss) == apart());
    CHECK_OK(shoal_backward(shoal_to_device(loss, SHOAL_CPU), NULL));
    CHECK(shoal_tensor_device(shoal_grad(leaf)) == SHOAL_CPU);
    CHECK_BYTES(shoal_data(shoal_grad(leaf)), ((const float[]){2, 4, 6}), 3 * sizeof(float));
    /* And from a leaf there. */
    shoal_tensor *far = shoal_to_device(count_up(DIMS(3), 1), apart());
    CHECK_OK(shoal_set_requires_grad(far, true));
    CHECK_OK(shoal_backward(shoal_sum(shoal_mul(far, far), NULL, 0, false), NULL));
    CHECK_OK(shoal_backward(shoal_sum(shoal_to_device(far, SHOAL_CPU), NULL, 0, false), NULL));
    check_values(shoal_grad(far), (const float[]){3, 5, 7}, 3);
}

/* Ops of programs ---------------------------------------------------------------------------------------- */

static shoal_status declare_like(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    return shoal_op_output(call, shoal_tensor_shape(self), shoal_tensor_n_dims(self),
                           shoal_tensor_dtype(self));
}

static shoal_status refuse(shoal_op_call_context *call, const shoal_value *arguments,
                           shoal_tensor *const *outputs, size_t n_outputs)
{
    return shoal_fail(SHOAL_ERR_STATE, "the kernel of the CPU");
}

static shoal_status double_there(shoal_op_call_context *call, const shoal_value *arguments,
                                 shoal_tensor *const *outputs, size_t n_outputs)
{
    shoal_tensor *self = arguments[0].as.tensor;
    return shoal_copy_(outputs[0], shoal_add(self, self)) ? SHOAL_OK : SHOAL_ERR_STATE;
}

TEST(a_registered_op_needs_a_kernel_for_the_device)
{
    shoal_op_definition definition = SHOAL_OP_DEFINITION_INIT;
    definition.name = "test.double";
    definition.signature = "tensor self -> tensor";
    definition.meta = declare_like;
    definition.kernel = refuse;
    const shoal_op *op = NULL;
    const shoal_op *add = NULL;
    size_t n_before = test_live_blocks();
    REQUIRE_OK(shoal_op_register(&definition, &op));
    test_keep_blocks(test_live_blocks() - n_before +
                     1); /* what a registered op keeps, and its second kernel */
    REQUIRE_OK(shoal_op_find("add", &add));
    REQUIRE_OK(shoal_scope_begin());
    shoal_value argument = {.kind = SHOAL_VALUE_TENSOR, .count = 1};
    argument.as.tensor = shoal_to_device(count_up(DIMS(3), 1), apart());
    shoal_value result;
    CHECK_STATUS(shoal_op_call(op, &argument, 1, &result), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("test.double: there is no kernel for device apart (shoal_op_add_kernel)");
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_UNSUPPORTED);
    CHECK_STATUS(shoal_op_add_kernel(op, SHOAL_CPU, double_there), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("op_add_kernel: test.double: device cpu has the kernel of the definition");
    CHECK_STATUS(shoal_op_add_kernel(op, SHOAL_META, double_there), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_op_add_kernel(op, (shoal_device)9, double_there), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_op_add_kernel(add, apart(), double_there), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("op_add_kernel: add: it is an op of the library, which has its kernels");
    CHECK_STATUS(shoal_op_add_kernel(op, apart(), NULL), SHOAL_ERR_INVALID);
    CHECK_OK(shoal_op_add_kernel(op, apart(), double_there));
    CHECK_STATUS(shoal_op_add_kernel(op, apart(), double_there), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("it has a kernel for device apart already");
    REQUIRE_OK(shoal_scope_begin());
    argument.as.tensor = shoal_to_device(count_up(DIMS(3), 1), apart());
    CHECK_OK(shoal_op_call(op, &argument, 1, &result));
    check_values(result.as.tensor, (const float[]){2, 4, 6}, 3);
    argument.as.tensor = count_up(DIMS(3), 1);
    CHECK_STATUS(shoal_op_call(op, &argument, 1, &result), SHOAL_ERR_STATE);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_STATE);
}

/* Order -------------------------------------------------------------------------------------------------- */

SCOPED_TEST(new_memory_is_not_zero)
{
    float values[4];
    CHECK_OK(shoal_read(shoal_empty_on(DIMS(4), SHOAL_F32, apart()), values, sizeof values));
    CHECK(isnan(values[0]) && isnan(values[3]));
}

struct worker {
    shoal_tensor *input;
    shoal_tensor *result;
};

static void *double_it(void *context)
{
    struct worker *worker = context;
    CHECK_OK(shoal_scope_begin());
    shoal_tensor *sum = shoal_add(worker->input, worker->input);
    worker->result = sum ? shoal_tensor_ref(sum) : NULL;
    CHECK_OK(shoal_scope_end());
    return NULL;
}

SCOPED_TEST(one_thread_makes_and_another_uses)
{
    atomic_store(&test_apart()->seed, 7);
    for (int i = 0; i < 50; i++) {
        pthread_t thread;
        struct worker worker = {.input = shoal_to_device(count_up(DIMS(3), (float)i), apart())};
        REQUIRE(pthread_create(&thread, NULL, double_it, &worker) == 0);
        REQUIRE(pthread_join(thread, NULL) == 0);
        check_values(worker.result, (const float[]){2 * (float)i, 2 * (float)i + 2, 2 * (float)i + 4}, 3);
        shoal_tensor_unref(worker.result);
    }
    atomic_store(&test_apart()->seed, 0);
}

/* Memory is given out again while the work that reads it still waits. */
SCOPED_TEST(memory_is_freed_behind_the_work)
{
    atomic_store(&test_apart()->seed, 11);
    uint64_t n_bytes = atomic_load(&test_apart()->n_bytes);
    shoal_tensor *sum = shoal_to_device(shoal_zeros(DIMS(64), SHOAL_F32), apart());
    for (int i = 0; i < 100; i++) {
        REQUIRE_OK(shoal_scope_begin());
        shoal_tensor *ones = shoal_to_device(shoal_full(DIMS(64), 1, SHOAL_F32), apart());
        CHECK(shoal_add_(sum, shoal_mul_scalar(ones, 2)));
        REQUIRE_OK(shoal_scope_end());
    }
    float values[64];
    CHECK_OK(shoal_read(sum, values, sizeof values));
    CHECK(values[0] == 200.0F && values[63] == 200.0F);
    CHECK_INT(atomic_load(&test_apart()->n_bytes), n_bytes + 256);
    atomic_store(&test_apart()->seed, 0);
}

/* Failures ----------------------------------------------------------------------------------------------- */

static shoal_status compute(float *values)
{
    shoal_status status = shoal_scope_begin();
    if (status != SHOAL_OK) {
        return status;
    }
    shoal_tensor *x = shoal_to_device(count_up(DIMS(2, 2), 1), apart());
    shoal_tensor *y = shoal_add(shoal_transpose(x, 0, 1), shoal_mul_scalar(x, 2));
    shoal_tensor *z = shoal_where_equal(shoal_transpose(y, 0, 1), y, y);
    shoal_tensor *parts = shoal_cat((shoal_tensor *[]){y, z}, 2, 0);
    shoal_tensor *sum = shoal_sum(parts, (const int64_t[]){0}, 1, false);
    status = sum ? shoal_read(sum, values, 2 * sizeof values[0]) : SHOAL_OK;
    shoal_status ended = shoal_scope_end();
    return status == SHOAL_OK ? ended : status;
}

TEST(each_call_of_the_device_can_fail)
{
    float values[2] = {0};
    struct apart_settings *settings = (apart(), test_apart());
    REQUIRE_OK(compute(values));
    int64_t n_calls = (int64_t)atomic_load(&settings->n_calls);
    REQUIRE_OK(compute(values));
    n_calls = (int64_t)atomic_load(&settings->n_calls) - n_calls;
    const float wanted[] = {values[0], values[1]};
    REQUIRE(n_calls > 10);
    size_t blocks = test_live_blocks();
    for (int64_t i = 1; i <= n_calls; i++) {
        uint64_t n_bytes = atomic_load(&settings->n_bytes);
        atomic_store(&settings->fail_at, i);
        CHECK_STATUS(compute(values), SHOAL_ERR_SYSTEM);
        CHECK_ERROR_TEXT("device apart has failed: call ");
        CHECK_STATUS(compute(values), SHOAL_ERR_SYSTEM); /* again and again, for the first reason */
        CHECK_ERROR_TEXT("failed, as asked for");
        test_forget_failure();
        CHECK_INT(atomic_load(&settings->n_bytes), n_bytes);
        CHECK_OK(compute(values));
        CHECK_INT(test_live_blocks(), blocks);
        CHECK_BYTES(values, wanted, sizeof values);
    }
}

SCOPED_TEST(work_that_does_not_end_is_given_up)
{
    float values[2] = {5, 5};
    shoal_tensor *there = shoal_to_device(count_up(DIMS(2), 1), apart());
    atomic_store(&test_apart()->is_held, 1);
    CHECK_STATUS(shoal_read(there, values, sizeof values), SHOAL_ERR_TIMEOUT);
    CHECK_ERROR_TEXT("read: device apart: waited 0.5 s for a copy from a device");
    atomic_store(&test_apart()->is_held, 0);
    test_finish(apart());
    CHECK(values[0] == 5.0F); /* the copy that came late was not made to the caller's memory */
    check_values(there, (const float[]){1, 2}, 2);
}
