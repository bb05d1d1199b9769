/* SPDX-License-Identifier: MIT */
/*
 * Views as another dtype, beyond the table: which bits are seen, memory that is not aligned for them, changes through
 * them, and gradients, which end there with an error and never in silence.
 */
#include <string.h>

#include "fixtures/scoped.h"
#include "harness/test.h"
#include "op/dispatch.h"
#include "op/tracer.h"
#include "shoal/autograd.h"
#include "shoal_compat/torch.h"
#include "shoal/op.h"
#include "shoal/ops.h"
#include "shoal/scope.h"

#define DIMS(...) ((const int64_t[]){__VA_ARGS__}), (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

SCOPED_TEST(the_bits_are_the_same)
{
    shoal_tensor *ones = shoal_full(DIMS(2, 3), 1, SHOAL_F32);
    const uint32_t *words = shoal_data(shoal_view_dtype(ones, SHOAL_U32));
    for (int i = 0; words && i < 6; i++) {
        CHECK_INT(words[i], 0x3f800000);
    }
    shoal_tensor *halves = shoal_view_dtype(ones, SHOAL_BF16);
    CHECK_INT(shoal_tensor_shape(halves)[1], 6);
    const uint16_t *half = shoal_data(halves);
    CHECK(half && half[0] == 0 && half[1] == 0x3f80); /* little-endian: the upper half comes second */
    shoal_tensor *pairs = shoal_view_dtype(shoal_full(DIMS(2, 4), 3, SHOAL_F32), SHOAL_C64);
    CHECK_INT(shoal_tensor_shape(pairs)[1], 2);
    const float *parts = shoal_data(pairs);
    CHECK(parts && parts[0] == 3 && parts[7] == 3);
    /* There and back, through the smallest and the largest. */
    shoal_tensor *back =
        shoal_view_dtype(shoal_view_dtype(shoal_view_dtype(pairs, SHOAL_U8), SHOAL_C128), SHOAL_F32);
    CHECK_INT(shoal_tensor_shape(back)[1], 4);
    CHECK(shoal_data(back) == shoal_data(pairs));
    CHECK(shoal_view_dtype(back, SHOAL_F32) == back);
}

SCOPED_TEST(changes_are_seen_and_counted)
{
    shoal_tensor *words = shoal_zeros(DIMS(4), SHOAL_I32);
    shoal_tensor *reals = shoal_view_dtype(words, SHOAL_F32);
    uint64_t version = shoal_tensor_version(words);
    CHECK(shoal_tensor_shares_storage(words, reals));
    CHECK(shoal_add_scalar_(reals, 1) == reals);
    CHECK(shoal_tensor_version(words) > version);
    const int32_t *data = shoal_data(words);
    CHECK(data && data[3] == 0x3f800000);
    /* Numbers in the place of the bits they are read from: the source is read before it is written. */
    CHECK(shoal_copy_(reals, words) == reals);
    const float *numbers = shoal_data(reals);
    CHECK(numbers && numbers[0] == (float)0x3f800000 && numbers[3] == (float)0x3f800000);
    shoal_tensor *longs = shoal_view_dtype(words, SHOAL_I64);
    CHECK(shoal_copy_(words, shoal_full(DIMS(4), 7, SHOAL_I32)));
    CHECK(shoal_copy_(longs, shoal_narrow(words, 0, 1, 2)) == longs);
    const int64_t *large = shoal_data(longs);
    CHECK(large && large[0] == 7 && large[1] == 7);
}

SCOPED_TEST(a_view_keeps_the_memory)
{
    shoal_tensor *view = NULL;
    REQUIRE_OK(shoal_scope_begin());
    view = shoal_tensor_ref(shoal_view_dtype(shoal_full(DIMS(4096), 1, SHOAL_F32), SHOAL_I32));
    CHECK_OK(shoal_scope_end());
    const int32_t *data = shoal_data(view);
    CHECK(data && data[4095] == 0x3f800000);
    shoal_tensor_unref(view);
}

/* Bytes of somebody else's may begin anywhere. */
SCOPED_TEST(addresses_that_do_not_fit)
{
    static _Alignas(16) unsigned char bytes[64];
    for (size_t at = 0; at < 16; at++) {
        shoal_tensor *odd = shoal_from_memory(bytes + at, DIMS(32), SHOAL_U8, NULL, NULL, NULL);
        if (at % 4 != 0) {
            CHECK_SCOPE_ERROR(shoal_view_dtype(odd, SHOAL_F32), SHOAL_ERR_INVALID, "is not a multiple of 4");
            CHECK_ERROR_TEXT("view_dtype: dtype: f32");
        } else {
            CHECK(shoal_view_dtype(odd, SHOAL_F32));
        }
        CHECK(shoal_view_dtype(odd, SHOAL_I8) && shoal_view_dtype(odd, SHOAL_BOOL));
    }
}

SCOPED_TEST(memory_that_comes_later_must_fit)
{
    static _Alignas(16) unsigned char bytes[64];
    shoal_tensor *tensor = shoal_empty(DIMS(16), SHOAL_U8);
    CHECK_OK(shoal_tensor_release_data(tensor));
    CHECK_OK(shoal_tensor_rebind_data(tensor, bytes + 1, NULL, NULL));
    CHECK_OK(shoal_tensor_release_data(tensor));
    /* While there is no memory there is nothing to be wrong about it. */
    shoal_tensor *view = shoal_view_dtype(tensor, SHOAL_I64);
    CHECK(view);
    CHECK_STATUS(shoal_tensor_rebind_data(tensor, bytes + 4, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("is not a multiple of 8");
    CHECK_OK(shoal_tensor_rebind_data(tensor, bytes + 8, NULL, NULL));
    CHECK(shoal_data(view) == bytes + 8);
}

/* Shapes alone, where numbers are as large as they get. */
SCOPED_TEST(huge_shapes)
{
    const int64_t far = INT64_C(1) << 62;
    shoal_tensor *bytes = shoal_empty_on(DIMS(far), SHOAL_U8, SHOAL_META);
    CHECK_INT(shoal_tensor_shape(shoal_view_dtype(bytes, SHOAL_C128))[0], far / 16);
    shoal_tensor *wide = shoal_empty_on(DIMS(far / 16), SHOAL_C128, SHOAL_META);
    CHECK_INT(shoal_tensor_shape(shoal_view_dtype(wide, SHOAL_U8))[0], far);
    shoal_tensor *none = shoal_empty_on(DIMS(0, far), SHOAL_C128, SHOAL_META);
    CHECK_SCOPE_ERROR(shoal_view_dtype(none, SHOAL_U8), SHOAL_ERR_INVALID, "larger than 63 bits");
    CHECK_SCOPE_ERROR(shoal_view_dtype(none, SHOAL_C64), SHOAL_ERR_INVALID, "larger than 63 bits");
    CHECK(shoal_view_dtype(shoal_empty_on(DIMS(far, 0), SHOAL_C128, SHOAL_META), SHOAL_U8));
    /* Nothing lies nowhere: the offset of an empty tensor need not be whole. */
    shoal_tensor *empty = shoal_narrow(shoal_zeros(DIMS(4), SHOAL_F32), 0, 1, 0);
    CHECK_INT(shoal_tensor_shape(shoal_view_dtype(empty, SHOAL_F64))[0], 0);
}

/* Gradients ---------------------------------------------------------------------------------------------- */

SCOPED_TEST(gradients_end_with_an_error)
{
    static const shoal_dtype others[] = {SHOAL_I32, SHOAL_U8, SHOAL_F64, SHOAL_BF16, SHOAL_C64, SHOAL_BOOL};
    shoal_tensor *leaf = shoal_full(DIMS(4), 2, SHOAL_F32);
    REQUIRE_OK(shoal_set_requires_grad(leaf, true));
    shoal_tensor *later = shoal_mul_scalar(leaf, 3);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        CHECK_SCOPE_ERROR(shoal_view_dtype(leaf, others[i]), SHOAL_ERR_UNSUPPORTED, "requires a gradient");
        CHECK_SCOPE_ERROR(shoal_view_dtype(later, others[i]), SHOAL_ERR_UNSUPPORTED, "view_dtype");
        /* On purpose it may. */
        CHECK(shoal_view_dtype(shoal_detach(leaf), others[i]));
        CHECK_OK(shoal_scope_begin());
        CHECK_OK(shoal_scope_set_grad(false));
        CHECK(shoal_view_dtype(later, others[i]));
        CHECK_OK(shoal_scope_end());
    }
    /* As what it is, it is itself, and its gradient flows. */
    CHECK(shoal_view_dtype(leaf, SHOAL_F32) == leaf);
    CHECK(shoal_view_dtype(later, SHOAL_F32) == later);
    CHECK_OK(shoal_backward(shoal_sum(shoal_view_dtype(later, SHOAL_F32), NULL, 0, false), NULL));
    const float *gradient = shoal_data(shoal_grad(leaf));
    CHECK(gradient && gradient[0] == 3 && gradient[3] == 3);
}

/* What backward will read must not have been changed, in whatever dtype. */
SCOPED_TEST(changes_of_saved_data_are_noticed)
{
    shoal_tensor *factor = shoal_full(DIMS(4), 2, SHOAL_F32);
    shoal_tensor *leaf = shoal_full(DIMS(4), 5, SHOAL_F32);
    REQUIRE_OK(shoal_set_requires_grad(leaf, true));
    shoal_tensor *product = shoal_sum(shoal_mul(leaf, factor), NULL, 0, false);
    CHECK(shoal_neg_(shoal_view_dtype(factor, SHOAL_I32)));
    CHECK_STATUS(shoal_backward(product, NULL), SHOAL_ERR_STATE);
}

/* A view of bits that a gradient is recorded into afterwards was taken before that. */
SCOPED_TEST(views_from_before_a_gradient)
{
    shoal_tensor *target = shoal_zeros(DIMS(4), SHOAL_F32);
    shoal_tensor *bits = shoal_view_dtype(target, SHOAL_I32);
    shoal_tensor *leaf = shoal_full(DIMS(4), 5, SHOAL_F32);
    REQUIRE_OK(shoal_set_requires_grad(leaf, true));
    CHECK(shoal_add_(target, leaf) == target);
    CHECK_SCOPE_ERROR(shoal_neg(bits), SHOAL_ERR_STATE, "is a view that was made before");
    /* And no gradient is written into a view, of whatever dtype. */
    shoal_tensor *words = shoal_zeros(DIMS(4), SHOAL_I32);
    CHECK_SCOPE_ERROR(shoal_add_(shoal_view_dtype(words, SHOAL_F32), leaf), SHOAL_ERR_STATE, "view");
}

/* Tracing ------------------------------------------------------------------------------------------------ */

struct recorder {
    struct op_tracer tracer; /* first: the tracer's address is the recorder's */
    int n_calls;
    const char *name;
    shoal_dtype dtype;
};

static shoal_status record(struct op_tracer *tracer, const shoal_op *op, const shoal_value *arguments,
                           shoal_value *result_out)
{
    struct recorder *recorder = (struct recorder *)tracer;
    recorder->n_calls++;
    recorder->name = shoal_op_name(op);
    recorder->dtype = arguments[1].as.dtype;
    return op_execute(op, arguments, result_out);
}

SCOPED_TEST(a_tracer_sees_it)
{
    struct recorder recorder = {.tracer = {.call = record}};
    shoal_tensor *tensor = shoal_zeros(DIMS(4), SHOAL_F32);
    REQUIRE_OK(op_set_tracer(&recorder.tracer));
    CHECK(shoal_view_dtype(tensor, SHOAL_U16));
    CHECK_OK(op_set_tracer(NULL));
    CHECK_INT(recorder.n_calls, 1);
    CHECK_STRING(recorder.name, "view_dtype");
    CHECK_INT(recorder.dtype, SHOAL_U16);
}
