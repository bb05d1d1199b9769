/* SPDX-License-Identifier: MIT */
/* Calling ops as data: boxed arguments, defaults, errors, devices; what a call does to scope and error text. */
#include <string.h>

#include "harness/test.h"
#include "op/op.h"
#include "shoal_compat/torch.h"
#include "shoal/op.h"
#include "shoal/ops.h"
#include "tensor/tensor.h"

static shoal_value box(shoal_tensor *tensor)
{
    return (shoal_value){.kind = SHOAL_VALUE_TENSOR, .count = 1, .as.tensor = tensor};
}

static shoal_value box_int(int64_t integer)
{
    return (shoal_value){.kind = SHOAL_VALUE_INT, .as.integer = integer};
}

static const shoal_op *find(const char *name)
{
    const shoal_op *op = NULL;
    CHECK_OK(shoal_op_find(name, &op));
    return op;
}

/* Finding ---------------------------------------------------------------------------------------------------- */

TEST(a_mistyped_name_gets_the_nearest)
{
    const shoal_op *untouched = op_get(OP_cat);
    const shoal_op *op = untouched;
    CHECK_STATUS(shoal_op_find("narow", &op), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("\"narow\"");
    CHECK_ERROR_TEXT("\"narrow\"");
    CHECK_STATUS(shoal_op_find("transpos", &op), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("\"transpose\"");
    CHECK_STATUS(shoal_op_find("add_scalr_", &op), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("\"add_scalar_\"");
    CHECK_STATUS(shoal_op_find("", &op), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_op_find("ADD", &op), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_op_find(NULL, &op), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("name is NULL");
    CHECK_STATUS(shoal_op_find("add", NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("op_out is NULL");
    CHECK(op == untouched);
    char longer[2000];
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    CHECK_STATUS(shoal_op_find(longer, &op), SHOAL_ERR_INVALID);
}

TEST(a_null_op_has_no_properties)
{
    CHECK_STRING(shoal_op_name(NULL), "");
    shoal_op_info info = SHOAL_OP_INFO_INIT;
    CHECK_STATUS(shoal_op_describe(NULL, &info), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("op_describe: op is NULL");
    CHECK_STATUS(shoal_op_describe(find("add"), NULL), SHOAL_ERR_INVALID);
    CHECK_OK(shoal_op_describe(find("add"), &info));
    CHECK_STRING(info.name, "add");
    CHECK_STRING(info.signature, "tensor self, tensor other -> tensor");
    CHECK_OK(shoal_op_describe(find("copy_"), &info));
    CHECK_INT(info.flags, SHOAL_OP_IN_PLACE | SHOAL_OP_OVERWRITES);
    info.struct_size = 0;
    CHECK_STATUS(shoal_op_describe(find("add"), &info), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("struct_size is 0");
}

/* Calling ---------------------------------------------------------------------------------------------------- */

TEST(missing_arguments_take_their_defaults)
{
    shoal_value result;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *t = shoal_full((int64_t[]){2, 3}, 2, 2, SHOAL_F32);
    shoal_value arguments[3] = {box(t)};
    CHECK_OK(shoal_op_call(find("sum"), arguments, 1, &result));
    CHECK_INT(result.kind, SHOAL_VALUE_TENSOR);
    CHECK_INT(shoal_tensor_n_dims(result.as.tensor), 0);
    /* NONE means the default too, with later arguments given. */
    arguments[1] = (shoal_value){.kind = SHOAL_VALUE_NONE};
    arguments[2] = (shoal_value){.kind = SHOAL_VALUE_BOOL, .as.boolean = true};
    CHECK_OK(shoal_op_call(find("sum"), arguments, 3, &result));
    CHECK_INT(shoal_tensor_n_dims(result.as.tensor), 2);
    arguments[1] = box_int(2);
    CHECK_OK(shoal_op_call(find("split"), arguments, 2, &result));
    CHECK_INT(result.kind, SHOAL_VALUE_TENSORS);
    CHECK_INT(result.count, 1);
    CHECK_OK(shoal_scope_end());
}

TEST(a_scalar_takes_an_int_or_a_float)
{
    shoal_value result;
    REQUIRE_OK(shoal_scope_begin());
    shoal_value arguments[2] = {box(shoal_full((int64_t[]){1}, 1, 1, SHOAL_I64)), box_int(INT64_MAX - 1)};
    CHECK_OK(shoal_op_call(find("add_scalar"), arguments, 2, &result));
    const int64_t *sum = shoal_data(result.as.tensor);
    REQUIRE(sum);
    CHECK_INT(sum[0], INT64_MAX); /* a double would have lost it */
    arguments[1] = (shoal_value){.kind = SHOAL_VALUE_FLOAT, .as.real = 2.0};
    CHECK_OK(shoal_op_call(find("add_scalar"), arguments, 2, &result));
    sum = shoal_data(result.as.tensor);
    REQUIRE(sum);
    CHECK_INT(sum[0], 3);
    CHECK_OK(shoal_scope_end());
}

TEST(bad_calls_are_told_apart)
{
    shoal_value result = {.count = 5};
    shoal_value arguments[3];
    CHECK_STATUS(shoal_op_call(find("neg"), arguments, 0, &result), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("no scope");
    for (int k = 0; k < 5; k++) {
        REQUIRE_OK(shoal_scope_begin());
        shoal_tensor *t = shoal_zeros((int64_t[]){2}, 1, SHOAL_F32);
        arguments[0] = arguments[1] = arguments[2] = box(t);
        shoal_status status = k == 0   ? shoal_op_call(NULL, arguments, 1, &result)
                              : k == 1 ? shoal_op_call(find("neg"), arguments, 1, NULL)
                              : k == 2 ? shoal_op_call(find("neg"), arguments, 2, &result)
                              : k == 3 ? shoal_op_call(find("neg"), NULL, 1, &result)
                                       : shoal_op_call(find("add"), arguments, 1, &result);
        static const char *const words[] = {"op is NULL", "result_out is NULL",
                                            "neg: 2 arguments are given for 1", "neg: arguments is NULL",
                                            "add: other is missing"};
        CHECK_STATUS(status, SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT(words[k]);
        CHECK(!shoal_neg(t));
        CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT(words[k]);
    }
    CHECK_INT(result.count, 5);
}

/* A call that returns SHOAL_OK leaves no text of an older failure. */
TEST(success_clears_the_error_text)
{
    shoal_value result;
    const shoal_op *op;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *t = shoal_zeros((int64_t[]){2}, 1, SHOAL_F32);
    shoal_value argument = box(t);
    CHECK(!shoal_data(NULL));
    CHECK_ERROR_TEXT("NULL");
    CHECK_OK(shoal_op_call(op_get(OP_neg), &argument, 1, &result));
    CHECK_STRING(shoal_error_text(), "");
    CHECK(!shoal_data(NULL));
    CHECK_OK(shoal_op_find("neg", &op));
    CHECK_STRING(shoal_error_text(), "");
    CHECK(!shoal_data(NULL));
    CHECK_OK(shoal_wait(t));
    CHECK_STRING(shoal_error_text(), "");
    CHECK_OK(shoal_scope_end());
}

TEST(lists_belong_to_the_scope)
{
    size_t count = 0;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *t = shoal_zeros((int64_t[]){40}, 1, SHOAL_F32);
    REQUIRE_OK(shoal_scope_begin());
    /* More than fit in any array on a stack. */
    shoal_tensor *const *pieces = shoal_split(t, 1, 0, &count);
    REQUIRE(pieces);
    CHECK_INT(count, 40);
    for (size_t i = 0; i < count; i++) {
        CHECK_INT(shoal_tensor_offset(pieces[i]), (int64_t)i);
        CHECK(shoal_tensor_shares_storage(pieces[i], t));
    }
    shoal_tensor *kept = shoal_scope_keep(pieces[7]);
    CHECK_OK(shoal_scope_end());
    CHECK_INT(shoal_tensor_offset(kept), 7);
    CHECK_OK(shoal_scope_end());
}

TEST(a_list_call_may_ignore_the_count)
{
    size_t count = 55;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *t = shoal_zeros((int64_t[]){4}, 1, SHOAL_F32);
    CHECK(shoal_chunk(t, 2, 0, NULL));
    CHECK(!shoal_chunk(t, 0, 0, &count));
    CHECK_INT(count, 0); /* a loop over the result of a failed call does nothing */
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
}

/* Devices ------------------------------------------------------------------------------------------------------ */

TEST(devices_do_not_mix)
{
    const int64_t shape[] = {2};
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *cpu = shoal_zeros(shape, 1, SHOAL_F32);
    shoal_tensor *meta = shoal_empty_on(shape, 1, SHOAL_F32, SHOAL_META);
    shoal_tensor *mixed[] = {cpu, meta};
    for (int k = 0; k < 4; k++) {
        CHECK_OK(shoal_scope_begin());
        shoal_tensor *result = k == 0   ? shoal_add(cpu, meta)
                               : k == 1 ? shoal_copy_(meta, cpu)
                               : k == 2 ? shoal_cat(mixed, 2, 0)
                                        : shoal_getitem(mixed, 2, 0);
        CHECK(!result);
        CHECK_ERROR_TEXT("cpu");
        CHECK_ERROR_TEXT("meta");
        CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    }
    CHECK_INT(shoal_tensor_version(meta), 0);
    CHECK_OK(shoal_scope_end());
}

TEST(meta_calls_need_no_memory_for_data)
{
    const int64_t huge[] = {INT64_C(1) << 40, 4};
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *t = shoal_empty_on(huge, 2, SHOAL_F32, SHOAL_META);
    shoal_tensor *sum = shoal_sum(shoal_mul(t, shoal_neg(t)), (int64_t[]){0}, 1, false);
    REQUIRE(sum);
    CHECK_INT(shoal_tensor_device(sum), SHOAL_META);
    CHECK_INT(shoal_tensor_count(sum), 4);
    CHECK_INT(shoal_tensor_version(t), 0);
    CHECK(shoal_add_(t, t) == t);
    CHECK_INT(shoal_tensor_version(t), 1);
    CHECK_OK(shoal_scope_end());
}
