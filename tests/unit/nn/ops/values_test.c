/* SPDX-License-Identifier: MIT */
/* Reading and writing tensors as plain arrays: every 16-bit number, roundings, strides. */
#include "nn/math/halves.h"
#include "nn/ops/values.h"
#include "unit/nn/fixture.h"

#define N_HALVES 65536

/* Our reading of all 65536 bit patterns is Shoal's own. */
NN_TEST(all_halves_are_read_as_shoal_does)
{
    const shoal_dtype dtypes[] = {SHOAL_F16, SHOAL_BF16};
    for (int d = 0; d < 2; d++) {
        shoal_tensor *halves = shoal_empty(INTS(N_HALVES), 1, dtypes[d]);
        uint16_t *bits = shoal_mutable_data(halves);
        for (int i = 0; i < N_HALVES; i++) {
            bits[i] = (uint16_t)i;
        }
        const uint32_t *expected = shoal_data(shoal_to_dtype(halves, SHOAL_F32));
        struct nn_values values;
        REQUIRE_OK(nn_load(NULL, halves, &values));
        const uint32_t *actual = values.data;
        for (int i = 0; i < N_HALVES && !test_has_failed(); i++) {
            if (actual[i] != expected[i]) {
                test_failed(__FILE__, __LINE__, "%s %04x: %08x, expected %08x", shoal_dtype_name(dtypes[d]),
                            i, actual[i], expected[i]);
            }
        }
        nn_values_free(&values);
    }
}

/* Floats at and beside the middle between two halves, and random ones. */
NN_TEST(floats_are_rounded_as_shoal_does)
{
    const shoal_dtype dtypes[] = {SHOAL_F16, SHOAL_BF16};
    struct test_random random = test_random_begin(2);
    shoal_tensor *floats = shoal_empty(INTS(8 * N_HALVES), 1, SHOAL_F32);
    uint32_t *bits = shoal_mutable_data(floats);
    for (uint32_t i = 0; i < N_HALVES; i++) {
        uint32_t of_f16 = nn_bits_of(nn_from_f16((uint16_t)i));
        for (uint32_t k = 0; k < 3; k++) {
            bits[8 * i + k] = (i << 16) + 0x7fff + k;
            bits[8 * i + 3 + k] = of_f16 + 0xfff + k;
        }
        bits[8 * i + 6] = (uint32_t)test_random_u64(&random);
        /* Where f16 has subnormals. */
        bits[8 * i + 7] = 0x33000000 + (uint32_t)test_random_below(&random, 0x06000000);
    }
    for (int d = 0; d < 2; d++) {
        const uint16_t *expected = shoal_data(shoal_to_dtype(floats, dtypes[d]));
        for (int i = 0; i < 8 * N_HALVES && !test_has_failed(); i++) {
            float value = nn_float_of(bits[i]);
            uint16_t actual = dtypes[d] == SHOAL_F16 ? nn_to_f16(value) : nn_to_bf16(value);
            if (actual != expected[i] && !isnan(value)) {
                test_failed(__FILE__, __LINE__, "%s of %a (%08x): %04x, expected %04x",
                            shoal_dtype_name(dtypes[d]), (double)value, bits[i], actual, expected[i]);
            }
            CHECK(!isnan(value) || isnan(d == 0 ? nn_from_f16(actual) : nn_from_bf16(actual)));
        }
    }
}

/* A strided tensor is read in row-major order, and written where it lies, nothing beside it. */
NN_TEST(strides_are_followed)
{
    const shoal_dtype dtypes[] = {SHOAL_F64, SHOAL_F32, SHOAL_F16, SHOAL_BF16};
    double numbers[48];
    for (int i = 0; i < 48; i++) {
        numbers[i] = i - 20;
    }
    for (int d = 0; d < 4; d++) {
        shoal_tensor *base = make_tensor(numbers, INTS(4, 3, 4), 3, dtypes[d]);
        shoal_tensor *view = shoal_permute(shoal_slice(base, 0, 1, 4, 2), INTS(2, 0, 1), 3);
        const double *expected = doubles_of(view);
        struct nn_values values;
        REQUIRE_OK(nn_open(NULL, view, /*keeps_values=*/true, &values));
        CHECK_INT(values.count, 24);
        for (size_t i = 0; i < values.count; i++) {
            double actual =
                dtypes[d] == SHOAL_F64 ? ((double *)values.data)[i] : (double)((float *)values.data)[i];
            CHECK_DOUBLE(actual, expected[i]);
            if (dtypes[d] == SHOAL_F64) {
                ((double *)values.data)[i] = 2 * actual;
            } else {
                ((float *)values.data)[i] = 2 * (float)actual;
            }
        }
        nn_store(view, &values);
        nn_values_free(&values);
        const double *after = doubles_of(base);
        for (int i = 0; i < 48; i++) {
            CHECK_DOUBLE(after[i], (i / 12) % 2 == 1 ? 2 * numbers[i] : numbers[i]);
        }
    }
}

NN_TEST(scalars_and_nothing_are_read)
{
    struct nn_values values;
    shoal_tensor *scalar = make_tensor((double[]){1.5}, NULL, 0, SHOAL_BF16);
    REQUIRE_OK(nn_load(NULL, scalar, &values));
    CHECK_INT(values.count, 1);
    CHECK_DOUBLE((double)*(float *)values.data, 1.5);
    nn_values_free(&values);
    shoal_tensor *nothing = shoal_transpose(shoal_zeros(INTS(2, 0, 3), 3, SHOAL_F16), 0, 2);
    REQUIRE_OK(nn_load(NULL, nothing, &values));
    CHECK_INT(values.count, 0);
    nn_values_free(&values);
}

/* Memory that was given back is an error with the storage's name. */
NN_TEST(released_memory_is_an_error)
{
    shoal_tensor *x = shoal_zeros(INTS(3), 1, SHOAL_F32);
    CHECK_OK(shoal_tensor_set_name(x, "layers.0.bias"));
    CHECK_OK(shoal_tensor_release_data(x));
    CHECK_SCOPE_ERROR(shoal_nn_tanh(x), SHOAL_ERR_STATE, "layers.0.bias");
}
