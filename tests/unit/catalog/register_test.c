/* SPDX-License-Identifier: MIT */
/*
 * Ops of the user's own. Registered ops stay for the life of the process, so each registration that succeeds
 * tells the harness how many blocks it kept.
 */
#include <stdio.h>
#include <string.h>

#include "harness/test.h"
#include "op/op.h"
#include "shoal/op.h"
#include "shoal/ops.h"
#include "tensor/tensor.h"

/* Functions of the ops under test ------------------------------------------------------------------------------- */

static int n_kernel_calls;

static shoal_status meta_like(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    return shoal_op_output(call, shoal_tensor_shape(self), shoal_tensor_n_dims(self),
                           shoal_tensor_dtype(self));
}

/* out = self * factor + the number in the op's context, for contiguous f32. */
static shoal_status run_scaled(shoal_op_call_context *call, const shoal_value *arguments,
                               shoal_tensor *const *outputs, size_t n_outputs)
{
    const float *context = shoal_op_context(call);
    const float *from = shoal_data(arguments[0].as.tensor);
    float *to = shoal_mutable_data(outputs[0]);
    n_kernel_calls++;
    if (n_outputs != 1 || !from || !to) {
        return shoal_fail(SHOAL_ERR_INVALID, "no data or %zu outputs", n_outputs);
    }
    for (int64_t i = 0; i < shoal_tensor_count(outputs[0]); i++) {
        to[i] = from[i] * (float)arguments[1].as.real + (context ? *context : 0.0f);
    }
    return SHOAL_OK;
}

static shoal_status run_failing(shoal_op_call_context *call, const shoal_value *arguments,
                                shoal_tensor *const *outputs, size_t n_outputs)
{
    return shoal_fail(SHOAL_ERR_UNSUPPORTED, "the moon is in the %s quarter", "wrong");
}

static shoal_status run_increment(shoal_op_call_context *call, const shoal_value *arguments,
                                  shoal_tensor *const *outputs, size_t n_outputs)
{
    n_kernel_calls++;
    if (outputs[0] != arguments[0].as.tensor) {
        return shoal_fail(SHOAL_ERR_INVALID, "the output is not self");
    }
    float *data = shoal_mutable_data(outputs[0]);
    for (int64_t i = 0; data && i < shoal_tensor_count(outputs[0]); i++) {
        data[i] += 1;
    }
    return data ? SHOAL_OK : SHOAL_ERR_STATE;
}

/* The diagonal of a matrix, as a view. */
static shoal_status meta_diagonal(shoal_op_call_context *call, const shoal_value *arguments)
{
    shoal_tensor *self = arguments[0].as.tensor;
    if (shoal_tensor_n_dims(self) != 2) {
        return shoal_fail(SHOAL_ERR_INVALID, "self has %d dimensions, not 2", shoal_tensor_n_dims(self));
    }
    const int64_t *shape = shoal_tensor_shape(self);
    const int64_t *strides = shoal_tensor_strides(self);
    int64_t count = shape[0] < shape[1] ? shape[0] : shape[1];
    int64_t stride = strides[0] + strides[1];
    return shoal_op_output_view(call, self, &count, &stride, 1, shoal_tensor_offset(self));
}

static shoal_status meta_outside(shoal_op_call_context *call, const shoal_value *arguments)
{
    int64_t count = 1000;
    int64_t stride = 1;
    return shoal_op_output_view(call, arguments[0].as.tensor, &count, &stride, 1, 0);
}

static shoal_status meta_nothing(shoal_op_call_context *call, const shoal_value *arguments)
{
    return SHOAL_OK;
}

static shoal_status meta_pair(shoal_op_call_context *call, const shoal_value *arguments)
{
    shoal_status status = meta_like(call, arguments);
    return status == SHOAL_OK ? meta_like(call, arguments) : status;
}

/* A kernel made of ops: its temporaries go into the caller's scope. */
static shoal_status run_composed(shoal_op_call_context *call, const shoal_value *arguments,
                                 shoal_tensor *const *outputs, size_t n_outputs)
{
    shoal_tensor *sum = arguments[0].as.tensor;
    /* With the argument they fill the first eight places of the scope to the last. */
    for (int i = 0; i < 7; i++) {
        sum = shoal_add_scalar(sum, 1);
    }
    return shoal_copy_(outputs[0], sum) ? SHOAL_OK : shoal_scope_error();
}

/* Registering ---------------------------------------------------------------------------------------------------- */

static shoal_op_definition make_definition(const char *name, const char *signature)
{
    return (shoal_op_definition){.struct_size = sizeof(shoal_op_definition),
                                 .name = name,
                                 .signature = signature,
                                 .meta = meta_like,
                                 .kernel = run_scaled,
                                 .doc = "A test."};
}

/* Registers, and tells the harness what stays. */
static const shoal_op *register_op(const shoal_op_definition *definition)
{
    const shoal_op *op = NULL;
    size_t blocks = test_live_blocks();
    CHECK_OK(shoal_op_register(definition, &op));
    test_keep_blocks(test_live_blocks() - blocks);
    return op;
}

static void check_not_registered(const shoal_op_definition *definition, const char *words)
{
    const shoal_op *untouched = op_get(OP_cat);
    const shoal_op *op = untouched;
    const shoal_op *found;
    size_t blocks = test_live_blocks();
    CHECK_STATUS(shoal_op_register(definition, &op), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("op_register");
    CHECK_ERROR_TEXT(words);
    CHECK(op == untouched);
    CHECK_INT(test_live_blocks(), blocks);
    CHECK_STATUS(shoal_op_find("test.bad", &found), SHOAL_ERR_INVALID);
}

static shoal_value box(shoal_tensor *tensor)
{
    return (shoal_value){.kind = SHOAL_VALUE_TENSOR, .count = 1, .as.tensor = tensor};
}

TEST(a_registered_op_is_an_op)
{
    static float context = 0.5f;
    char name[] = "test.scaled";
    char signature[] = "tensor self, float factor = 3 -> tensor";
    char doc[] = "Scales.";
    shoal_op_definition definition = make_definition(name, signature);
    definition.doc = doc;
    definition.context = &context;
    const shoal_op *op = register_op(&definition);
    REQUIRE(op);
    /* Everything was copied. */
    memset(name, 'x', sizeof(name) - 1);
    memset(signature, 'x', sizeof(signature) - 1);
    memset(doc, 'x', sizeof(doc) - 1);
    const shoal_op *found = NULL;
    CHECK_OK(shoal_op_find("test.scaled", &found));
    CHECK(found == op);
    shoal_op_info info = SHOAL_OP_INFO_INIT;
    CHECK_OK(shoal_op_describe(op, &info));
    CHECK_STRING(info.signature, "tensor self, float factor = 3 -> tensor");
    CHECK_STRING(info.doc, "Scales.");
    CHECK(shoal_op_at((size_t)op->index) == op);
    CHECK(op->index >= OP_COUNT);
    CHECK_STATUS(shoal_op_find("test.scald", &found), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("test.scaled");

    shoal_value result;
    REQUIRE_OK(shoal_scope_begin());
    shoal_value arguments[2] = {box(shoal_full((int64_t[]){2, 2}, 2, 2, SHOAL_F32)),
                                {.kind = SHOAL_VALUE_FLOAT, .as.real = 10}};
    CHECK_OK(shoal_op_call(op, arguments, 1, &result));
    const float *data = shoal_data(result.as.tensor);
    CHECK(data && data[3] == 6.5f);
    CHECK_OK(shoal_op_call(op, arguments, 2, &result));
    data = shoal_data(result.as.tensor);
    CHECK(data && data[0] == 20.5f);
    /* On the meta device the kernel is not called. */
    int calls = n_kernel_calls;
    arguments[0] = box(shoal_empty_on((int64_t[]){5}, 1, SHOAL_F32, SHOAL_META));
    CHECK_OK(shoal_op_call(op, arguments, 2, &result));
    CHECK_INT(n_kernel_calls, calls);
    CHECK_INT(shoal_tensor_device(result.as.tensor), SHOAL_META);
    CHECK_INT(shoal_tensor_count(result.as.tensor), 5);
    /* float is not scalar: an int does not fit. */
    arguments[1] = (shoal_value){.kind = SHOAL_VALUE_INT, .as.integer = 1};
    CHECK_STATUS(shoal_op_call(op, arguments, 2, &result), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("test.scaled");
    CHECK_ERROR_TEXT("factor");
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
}

TEST(a_failing_kernel_tells_its_own_words)
{
    shoal_op_definition definition = make_definition("test.failing", "tensor self -> tensor");
    definition.kernel = run_failing;
    const shoal_op *op = register_op(&definition);
    shoal_value result = {.count = 9};
    REQUIRE_OK(shoal_scope_begin());
    shoal_value argument = box(shoal_zeros((int64_t[]){2}, 1, SHOAL_F32));
    CHECK_STATUS(shoal_op_call(op, &argument, 1, &result), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("test.failing: the moon is in the wrong quarter");
    CHECK_INT(result.count, 9);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_UNSUPPORTED);
    /* Failing with SHOAL_OK is a bug of the caller, and not a success. */
    CHECK(shoal_fail(SHOAL_OK, "nothing wrong") != SHOAL_OK);
}

TEST(an_in_place_op_needs_no_meta)
{
    shoal_op_definition definition = make_definition("test.increment_", "tensor self -> tensor");
    definition.flags = SHOAL_OP_IN_PLACE;
    definition.meta = NULL;
    definition.kernel = run_increment;
    const shoal_op *op = register_op(&definition);
    shoal_value result;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *t = shoal_zeros((int64_t[]){2}, 1, SHOAL_F32);
    shoal_value argument = box(t);
    CHECK_OK(shoal_op_call(op, &argument, 1, &result));
    CHECK(result.as.tensor == t);
    const float *data = shoal_data(t);
    CHECK(data && data[1] == 1.0f);
    CHECK(shoal_tensor_version(t) > 0);
    int calls = n_kernel_calls;
    shoal_tensor *meta = shoal_empty_on((int64_t[]){2}, 1, SHOAL_F32, SHOAL_META);
    argument = box(meta);
    CHECK_OK(shoal_op_call(op, &argument, 1, &result));
    CHECK(result.as.tensor == meta);
    CHECK_INT(n_kernel_calls, calls);
    CHECK(shoal_tensor_version(meta) > 0);
    CHECK_OK(shoal_scope_end());
}

TEST(a_view_op_looks_at_its_argument)
{
    shoal_op_definition definition = make_definition("test.diagonal", "tensor self -> tensor");
    definition.flags = SHOAL_OP_VIEW;
    definition.meta = meta_diagonal;
    definition.kernel = NULL;
    const shoal_op *op = register_op(&definition);
    shoal_value result;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *t = shoal_zeros((int64_t[]){3, 4}, 2, SHOAL_F32);
    shoal_value argument = box(t);
    CHECK_OK(shoal_op_call(op, &argument, 1, &result));
    CHECK(shoal_tensor_shares_storage(result.as.tensor, t));
    CHECK(shoal_add_scalar_(result.as.tensor, 1));
    const float *data = shoal_data(t);
    CHECK(data && data[0] == 1.0f && data[5] == 1.0f && data[10] == 1.0f && data[1] == 0.0f);
    argument = box(result.as.tensor);
    CHECK_STATUS(shoal_op_call(op, &argument, 1, &result), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("test.diagonal: self has 1 dimensions");
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
}

/* A meta function that breaks its promise is caught before anything runs. */
TEST(wrong_declarations_are_caught)
{
    shoal_op_definition outside = make_definition("test.outside", "tensor self -> tensor");
    outside.flags = SHOAL_OP_VIEW;
    outside.meta = meta_outside;
    outside.kernel = NULL;
    shoal_op_definition none = make_definition("test.none", "tensor self -> tensor");
    none.meta = meta_nothing;
    shoal_op_definition two = make_definition("test.two", "tensor self -> tensor");
    two.meta = meta_pair;
    shoal_op_definition fresh = make_definition("test.fresh_view", "tensor self -> tensor");
    fresh.flags = SHOAL_OP_VIEW;
    fresh.kernel = NULL;
    const shoal_op_definition *definitions[] = {&outside, &none, &two, &fresh};
    static const shoal_status expected[] = {SHOAL_ERR_INVALID, SHOAL_ERR_INVALID, SHOAL_ERR_INVALID,
                                            SHOAL_ERR_INVALID};
    for (int i = 0; i < 4; i++) {
        const shoal_op *op = register_op(definitions[i]);
        shoal_value result;
        int calls = n_kernel_calls;
        REQUIRE_OK(shoal_scope_begin());
        shoal_value argument = box(shoal_zeros((int64_t[]){3}, 1, SHOAL_F32));
        CHECK_STATUS(shoal_op_call(op, &argument, 1, &result), expected[i]);
        CHECK_ERROR_TEXT(definitions[i]->name);
        CHECK_STATUS(shoal_scope_end(), expected[i]);
        CHECK_INT(n_kernel_calls, calls);
    }
}

TEST(outputs_are_checked)
{
    CHECK_INT(shoal_op_needs_gradient(NULL, 0), false);
    CHECK(!shoal_op_context(NULL));
    shoal_op_definition list = make_definition("test.pair", "tensor self -> tensors");
    list.meta = meta_pair;
    list.kernel = run_failing;
    const shoal_op *op = register_op(&list);
    shoal_value result;
    REQUIRE_OK(shoal_scope_begin());
    shoal_value argument = box(shoal_empty_on((int64_t[]){3}, 1, SHOAL_F32, SHOAL_META));
    CHECK_OK(shoal_op_call(op, &argument, 1, &result));
    CHECK_INT(result.kind, SHOAL_VALUE_TENSORS);
    CHECK_INT(result.count, 2);
    CHECK(result.as.tensors[0] != result.as.tensors[1]);
    CHECK_OK(shoal_scope_end());
}

/* Bad definitions -------------------------------------------------------------------------------------------------- */

TEST(bad_definitions_are_refused)
{
    const char *signature = "tensor self -> tensor";
    check_not_registered(NULL, "definition is NULL");
    shoal_op_definition d = make_definition("test.bad", signature);
    d.struct_size = 0;
    check_not_registered(&d, "struct_size is 0");
    d = make_definition("add", signature);
    check_not_registered(&d, "already");
    static const char *const bad_names[] = {"", "9lives", "with space", "semi;colon", "_private", "tab\t"};
    for (size_t i = 0; i < sizeof(bad_names) / sizeof(bad_names[0]); i++) {
        d = make_definition(bad_names[i], signature);
        check_not_registered(&d, "name");
    }
    d = make_definition(NULL, signature);
    check_not_registered(&d, "name");
    d = make_definition("test.bad", NULL);
    check_not_registered(&d, "no signature");
    d = make_definition("test.bad", signature);
    d.meta = NULL;
    check_not_registered(&d, "no meta");
    d = make_definition("test.bad", signature);
    d.kernel = NULL;
    check_not_registered(&d, "no kernel");
    d.kernel = run_scaled;
    d.flags = SHOAL_OP_VIEW;
    check_not_registered(&d, "kernel");
    d.flags = SHOAL_OP_VIEW | SHOAL_OP_IN_PLACE;
    check_not_registered(&d, "view");
    d = make_definition("test.bad", "int n, tensor self -> tensor");
    d.flags = SHOAL_OP_IN_PLACE;
    check_not_registered(&d, "first parameter");
    d = make_definition("test.bad", signature);
    d.saves = "other";
    check_not_registered(&d, "other");
    d = make_definition("test.bad", "tensor self, int n -> tensor");
    d.saves = "self n";
    check_not_registered(&d, "\"n\"");
}

TEST(bad_signatures_are_refused)
{
    static const char *const signatures[] = {
        "",
        "tensor self",
        "->",
        "-> int",
        "-> tensor tensor",
        "tensor self -> tensor, tensor",
        "tensor -> tensor",
        "tensor self, -> tensor",
        ", tensor self -> tensor",
        "tensor self tensor other -> tensor",
        "tensor self, tensor self -> tensor",
        "matrix self -> tensor",
        "tensor 2nd -> tensor",
        "tensor self = none -> tensor",
        "tensor self, int n = -> tensor",
        "tensor self, int n = two -> tensor",
        "tensor self, int n = 1.5 -> tensor",
        "tensor self, int n = 99999999999999999999 -> tensor",
        "tensor self, float x = 1e999 -> tensor",
        "tensor self, bool b = maybe -> tensor",
        "tensor self, dtype d = f31 -> tensor",
        "tensor self, ints i = [1] -> tensor",
        "tensor self, int n = 0, int m -> tensor",
        "tensor self, string s = a_default_that_is_much_too_long -> tensor",
        "tensor a_name_that_is_much_longer_than_there_is_room_for -> tensor",
        "int a, int b, int c, int d, int e, int f, int g, int h, int i, int j, int k, int l, int m -> tensor",
    };
    for (size_t i = 0; i < sizeof(signatures) / sizeof(signatures[0]); i++) {
        shoal_op_definition d = make_definition("test.bad", signatures[i]);
        check_not_registered(&d, "test.bad");
    }
}

TEST(optional_and_other_parameters_parse)
{
    shoal_op_definition d =
        make_definition("test.rich", "tensor self, tensor? bias, dtype d = bf16, string s = abc, "
                                     "scalar x = -1.5, ints dims = [] -> tensors");
    d.saves = "self result";
    const shoal_op *op = register_op(&d);
    REQUIRE(op);
    CHECK_INT(op->n_params, 6);
    CHECK(op->params[1].has_default);
    CHECK_INT(op->params[1].default_value.kind, SHOAL_VALUE_NONE);
    CHECK_INT(op->params[2].default_value.as.dtype, SHOAL_BF16);
    CHECK_STRING(op->params[3].default_value.as.string, "abc");
    CHECK_DOUBLE(op->params[4].default_value.as.real, -1.5);
    CHECK(op->returns_list);
    CHECK(op->result_saving.is_saved);
    CHECK(op->params[0].saving.is_saved);
    CHECK(!op->params[1].saving.is_saved);
}

/* Callers that were compiled against another version of the header. */
TEST(definitions_of_other_sizes)
{
    struct {
        shoal_op_definition definition;
        char more[16];
    } newer = {.definition = make_definition("test.newer", "tensor self, float factor = 3 -> tensor")};
    newer.definition.struct_size = sizeof(newer);
    CHECK(register_op(&newer.definition));
    newer.definition.name = "test.newest";
    newer.more[9] = 1;
    CHECK_STATUS(shoal_op_register(&newer.definition, NULL), SHOAL_ERR_UNSUPPORTED);
    /* An older caller that knows nothing of context: what lies behind its struct is not read. */
    shoal_op_definition older = make_definition("test.older", "tensor self, float factor = 3 -> tensor");
    older.struct_size = offsetof(shoal_op_definition, context);
    older.context = (void *)&older;
    const shoal_op *op = register_op(&older);
    REQUIRE(op);
    CHECK(!op->context);
}

TEST(the_op_may_be_found_later)
{
    shoal_op_definition d = make_definition("test.later", "tensor self, float factor = 3 -> tensor");
    size_t blocks = test_live_blocks();
    const shoal_op *op = NULL;
    CHECK_OK(shoal_op_register(&d, NULL));
    test_keep_blocks(test_live_blocks() - blocks);
    CHECK_OK(shoal_op_find("test.later", &op));
    CHECK(op);
    check_not_registered(&d, "already");
}

/* Memory that runs out --------------------------------------------------------------------------------------------- */

TEST(registering_survives_failing_allocations)
{
    shoal_op_definition d = make_definition("test.bad", "tensor self, float factor = 3 -> tensor");
    size_t blocks = test_live_blocks();
    shoal_status status = SHOAL_ERR_NO_MEMORY;
    size_t number = 1;
    for (; status == SHOAL_ERR_NO_MEMORY && number < 100; number++) {
        const shoal_op *op = NULL;
        test_fail_allocation(number, false);
        status = shoal_op_register(&d, &op);
        test_fail_allocation(0, false);
        if (status != SHOAL_OK) {
            CHECK_STATUS(status, SHOAL_ERR_NO_MEMORY);
            CHECK_INT(test_live_blocks(), blocks);
            CHECK_STATUS(shoal_op_find("test.bad", &op), SHOAL_ERR_INVALID);
        }
    }
    CHECK_OK(status);
    CHECK(number > 2);
    test_keep_blocks(test_live_blocks() - blocks);
}

static const shoal_op *composed_op;

static shoal_status call_composed(void *context)
{
    shoal_value result = {.kind = SHOAL_VALUE_NONE};
    shoal_status status = shoal_scope_begin();
    if (status != SHOAL_OK) {
        return status;
    }
    shoal_value argument = box(shoal_zeros((int64_t[]){2}, 1, SHOAL_F32));
    status = shoal_op_call(composed_op, &argument, 1, &result);
    if (status == SHOAL_OK) {
        const float *data = shoal_data(result.as.tensor);
        CHECK(data && data[0] == 7.0f);
    }
    shoal_status end = shoal_scope_end();
    return end != SHOAL_OK ? end : status;
}

/* The kernel's own results take places in the scope that were kept for the op's. */
TEST(a_kernel_made_of_ops_survives_failing_allocations)
{
    shoal_op_definition d = make_definition("test.composed", "tensor self -> tensor");
    d.kernel = run_composed;
    composed_op = register_op(&d);
    REQUIRE(composed_op);
    CHECK(test_sweep_allocations(call_composed, NULL) > 10);
}
