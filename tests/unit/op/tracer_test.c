/* SPDX-License-Identifier: MIT */
/* The tracer's place in a call: it sees complete arguments before anything ran, and decides what happens. */
#include <string.h>

#include "base/error.h"
#include "harness/test.h"
#include "op/dispatch.h"
#include "op/tracer.h"
#include "shoal/op.h"
#include "shoal/ops.h"
#include "tensor/scope.h"

/* Notes each call, and runs it, answers it with `answer`, or refuses it. */
struct recorder {
    struct op_tracer tracer; /* first: the tracer's address is the recorder's */
    int n_calls;
    const char *last_name;
    shoal_value last_arguments[OP_MAX_PARAMS];
    shoal_tensor *answer;
    bool refuses;
};

static shoal_status record(struct op_tracer *tracer, const shoal_op *op, const shoal_value *arguments,
                           shoal_value *result_out)
{
    struct recorder *recorder = (struct recorder *)tracer;
    recorder->n_calls++;
    recorder->last_name = shoal_op_name(op);
    memcpy(recorder->last_arguments, arguments, op->n_params * sizeof(arguments[0]));
    if (recorder->refuses) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "not in this picture");
    }
    if (recorder->answer) {
        *result_out = (shoal_value){.kind = SHOAL_VALUE_TENSOR, .count = 1, .as.tensor = recorder->answer};
        return SHOAL_OK;
    }
    return op_execute(op, arguments, result_out);
}

TEST(a_tracer_needs_a_scope)
{
    struct recorder recorder = {.tracer = {.call = record}};
    CHECK_STATUS(op_set_tracer(&recorder.tracer), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("no scope");
}

TEST(a_tracer_sees_complete_calls_and_can_run_them)
{
    struct recorder recorder = {.tracer = {.call = record}};
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *t = shoal_full((int64_t[]){2, 3}, 2, 2, SHOAL_F32);
    CHECK_OK(op_set_tracer(&recorder.tracer));
    shoal_tensor *sum = shoal_sum(t, NULL, 0, false);
    CHECK_INT(recorder.n_calls, 1);
    CHECK_STRING(recorder.last_name, "sum");
    CHECK(recorder.last_arguments[0].as.tensor == t);
    CHECK_INT(recorder.last_arguments[1].kind, SHOAL_VALUE_INTS);
    CHECK_INT(recorder.last_arguments[2].kind, SHOAL_VALUE_BOOL);
    /* A boxed call with a default missing is complete by then. */
    shoal_value argument = {.kind = SHOAL_VALUE_TENSOR, .count = 1, .as.tensor = t};
    shoal_value result;
    CHECK_OK(shoal_op_call(op_get(OP_flatten), &argument, 1, &result));
    CHECK_INT(recorder.last_arguments[2].as.integer, -1);
    const float *data = shoal_data(sum);
    CHECK(data && data[0] == 12.0f);
    CHECK_OK(op_set_tracer(NULL));
    CHECK(shoal_neg(t));
    CHECK_INT(recorder.n_calls, 2);
    CHECK_OK(shoal_scope_end());
}

TEST(a_tracer_can_answer_by_itself)
{
    struct recorder recorder = {.tracer = {.call = record}};
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *t = shoal_full((int64_t[]){2}, 1, 2, SHOAL_F32);
    recorder.answer = t;
    CHECK_OK(op_set_tracer(&recorder.tracer));
    CHECK(shoal_add_scalar_(t, 1) == t);
    CHECK(shoal_neg(t) == t);
    CHECK_OK(op_set_tracer(NULL));
    const float *data = shoal_data(t);
    CHECK(data && data[0] == 2.0f); /* nothing ran */
    CHECK_INT(shoal_tensor_version(t), 0);
    CHECK_OK(shoal_scope_end());
}

TEST(a_tracer_can_refuse)
{
    struct recorder recorder = {.tracer = {.call = record}, .refuses = true};
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *t = shoal_full((int64_t[]){2}, 1, 2, SHOAL_F32);
    CHECK_OK(op_set_tracer(&recorder.tracer));
    CHECK(!shoal_neg(t));
    CHECK_ERROR_TEXT("neg: not in this picture");
    CHECK(!shoal_neg(t));
    CHECK_INT(recorder.n_calls, 1); /* the scope has failed: it is not asked again */
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_UNSUPPORTED);
}

TEST(bad_arguments_never_reach_the_tracer)
{
    struct recorder recorder = {.tracer = {.call = record}};
    REQUIRE_OK(shoal_scope_begin());
    CHECK_OK(op_set_tracer(&recorder.tracer));
    CHECK(!shoal_neg(NULL));
    CHECK_INT(recorder.n_calls, 0);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
}

TEST(a_tracer_is_inherited_inwards_only)
{
    struct recorder outer = {.tracer = {.call = record}};
    struct recorder inner = {.tracer = {.call = record}};
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *t = shoal_full((int64_t[]){2}, 1, 2, SHOAL_F32);
    REQUIRE_OK(shoal_scope_begin());
    CHECK_OK(op_set_tracer(&outer.tracer));
    REQUIRE_OK(shoal_scope_begin());
    CHECK(shoal_neg(t));
    CHECK_INT(outer.n_calls, 1);
    CHECK_OK(op_set_tracer(&inner.tracer));
    CHECK(shoal_neg(t));
    CHECK_OK(shoal_scope_end());
    CHECK(shoal_neg(t));
    CHECK_INT(outer.n_calls, 2);
    CHECK_INT(inner.n_calls, 1);
    CHECK_OK(shoal_scope_end());
    CHECK(shoal_neg(t));
    CHECK_INT(outer.n_calls, 2);
    CHECK_OK(shoal_scope_end());
}
