/* SPDX-License-Identifier: MIT */
/*
 * Tensors of 8-bit floats: each operation that computes is refused and names the dtype, before anything is written and
 * also where there are no values. Operations that move elements take them (ops_test.c). Gradients are refused.
 */
#include <string.h>

#include "harness/test.h"
#include "shoal/autograd.h"
#include "shoal/op.h"
#include "shoal/ops.h"
#include "shoal/scope.h"

static const shoal_dtype dtypes[] = {SHOAL_F8_E4M3FN, SHOAL_F8_E5M2};

enum {
    N_DTYPES = 2,
    COUNT = 3
};

/* Ops of two tensors, of a tensor and a number, of one tensor, of lists. */
static const char *const binaries[] = {"add", "sub", "mul", "div", "add_", "sub_", "mul_", "div_"};
static const char *const with_number[] = {"add_scalar",  "sub_scalar",  "mul_scalar",  "div_scalar",
                                          "add_scalar_", "sub_scalar_", "mul_scalar_", "div_scalar_"};
static const char *const unaries[] = {"neg", "neg_", "sum", "mean"};

static shoal_value box(shoal_tensor *tensor)
{
    return (shoal_value){.kind = SHOAL_VALUE_TENSOR, .count = 1, .as.tensor = tensor};
}

static shoal_value box_list(shoal_tensor **tensors)
{
    return (shoal_value){.kind = SHOAL_VALUE_TENSORS, .count = 2, .as.tensors = tensors};
}

static void check_refused(const char *name, shoal_tensor *self, shoal_value first, const shoal_value *second)
{
    const shoal_op *op = NULL;
    shoal_value result;
    const shoal_value arguments[] = {first, second ? *second : first};
    REQUIRE_OK(shoal_op_find(name, &op));
    REQUIRE_OK(shoal_scope_begin());
    shoal_status status = shoal_op_call(op, arguments, second ? 2 : 1, &result);
    CHECK_STATUS(status, SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT(name);
    CHECK_ERROR_TEXT(shoal_dtype_name(shoal_tensor_dtype(self)));
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_UNSUPPORTED);
    if (shoal_tensor_device(self) == SHOAL_CPU) {
        CHECK_BYTES(shoal_data(self), "\x3c\x3c\x3c", COUNT);
    }
}

static void check_all_refused(shoal_tensor *self)
{
    shoal_tensor *list[] = {self, self};
    const shoal_value number = {.kind = SHOAL_VALUE_FLOAT, .as.real = 2.0};
    const shoal_value other = box(self);
    const shoal_value others = box_list(list);
    for (size_t i = 0; i < sizeof binaries / sizeof binaries[0]; i++) {
        check_refused(binaries[i], self, box(self), &other);
        check_refused(with_number[i], self, box(self), &number);
    }
    for (size_t i = 0; i < sizeof unaries / sizeof unaries[0]; i++) {
        check_refused(unaries[i], self, box(self), NULL);
    }
    check_refused("foreach_div", self, box_list(list), &number);
    check_refused("foreach_add_", self, box_list(list), &others);
}

TEST(arithmetic_is_refused_by_name)
{
    const int64_t count = COUNT;
    for (int i = 0; i < N_DTYPES; i++) {
        unsigned char codes[COUNT] = {0x3c, 0x3c, 0x3c};
        REQUIRE_OK(shoal_scope_begin());
        check_all_refused(shoal_from_memory(codes, &count, 1, dtypes[i], NULL, NULL, NULL));
        check_all_refused(shoal_empty_on(&count, 1, dtypes[i], SHOAL_META));
        CHECK_OK(shoal_scope_end());
    }
}

TEST(gradients_are_refused)
{
    const int64_t count = COUNT;
    for (int i = 0; i < N_DTYPES; i++) {
        REQUIRE_OK(shoal_scope_begin());
        shoal_tensor *codes = shoal_zeros(&count, 1, dtypes[i]);
        CHECK_STATUS(shoal_set_requires_grad(codes, true), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT(shoal_dtype_name(dtypes[i]));
        CHECK(!shoal_dtype_is_floating(dtypes[i]));
        shoal_tensor *leaf = shoal_zeros(&count, 1, SHOAL_F32);
        CHECK_OK(shoal_set_requires_grad(leaf, true));
        shoal_tensor *detached = shoal_to_dtype(shoal_detach(leaf), dtypes[i]);
        CHECK(detached && !shoal_requires_grad(detached));
        CHECK(!shoal_to_dtype(leaf, dtypes[i]));
        CHECK_ERROR_TEXT("gradients of");
        CHECK_ERROR_TEXT(shoal_dtype_name(dtypes[i]));
        CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_UNSUPPORTED);
    }
}

/* Names, sizes, numbers in and out of tensors, and where the two formats meet. */
TEST(casts_of_tensors)
{
    const int64_t count = 6;
    float numbers[] = {448.0f, 1000.0f, -0.0f, 0x1p-9f, 1.0625f, 60000.0f};
    shoal_dtype found;
    CHECK_OK(shoal_dtype_find("f8_e4m3fn", &found));
    CHECK_INT(found, SHOAL_F8_E4M3FN);
    CHECK_OK(shoal_dtype_find("f8_e5m2", &found));
    CHECK_INT(found, SHOAL_F8_E5M2);
    CHECK_INT(shoal_dtype_bytes(SHOAL_F8_E4M3FN), 1);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *singles = shoal_from_memory(numbers, &count, 1, SHOAL_F32, NULL, NULL, NULL);
    shoal_tensor *narrow = shoal_to_dtype(singles, SHOAL_F8_E4M3FN);
    shoal_tensor *wide = shoal_to_dtype(singles, SHOAL_F8_E5M2);
    REQUIRE(narrow && wide);
    CHECK_BYTES(shoal_data(narrow), "\x7e\x7f\x80\x01\x38\x7f", 6);
    CHECK_BYTES(shoal_data(wide), "\x5f\x64\x80\x18\x3c\x7b", 6);
    /* e5m2 of 60000 is 57344, which e4m3fn does not have; its 1000 is 1024. */
    CHECK_BYTES(shoal_data(shoal_to_dtype(wide, SHOAL_F8_E4M3FN)), "\x7e\x7f\x80\x01\x38\x7f", 6);
    CHECK_BYTES(shoal_data(shoal_view_dtype(narrow, SHOAL_U8)), "\x7e\x7f\x80\x01\x38\x7f", 6);
    CHECK_OK(shoal_scope_end());
}
