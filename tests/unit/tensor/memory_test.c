/* SPDX-License-Identifier: MIT */
/*
 * The bytes under small and large results: how long they live, that bytes in flight are not used again, and that
 * the parts of a result that share a block may die in any order.
 */
#include <string.h>

#include "base/completion.h"
#include "harness/test.h"
#include "shoal/ops.h"
#include "shoal/tensor.h"
#include "tensor/storage.h"
#include "tensor/tensor.h"

/* A tensor over `n` zeroed numbers, with a write in flight. */
static shoal_tensor *tensor_in_flight(int64_t n, struct completion **completion_out)
{
    shoal_tensor *tensor = shoal_zeros(&n, 1, SHOAL_I32);
    *completion_out = completion_create();
    if (!tensor || !*completion_out) {
        test_failed(__FILE__, __LINE__, "no tensor or completion: %s", shoal_error_text());
        return NULL;
    }
    CHECK_OK(storage_add_write(tensor->storage, *completion_out));
    return tensor;
}

/* Small data lies in one block with its tensor, larger data apart: both must outlive the tensor in flight. */
static const int64_t sizes_in_flight[] = {0, 1, 15, 16, 60, 250, 256, 257, 1000};

TEST(data_in_flight_outlives_its_tensor_and_leaves_no_block)
{
    for (size_t i = 0; i < sizeof(sizes_in_flight) / sizeof(sizes_in_flight[0]); i++) {
        int64_t n = sizes_in_flight[i];
        struct completion *write;
        void *base = NULL;
        size_t blocks = test_live_blocks();
        REQUIRE_OK(shoal_scope_begin());
        shoal_tensor *tensor = tensor_in_flight(n, &write);
        REQUIRE(tensor);
        CHECK_OK(storage_host_base(tensor->storage, &base));
        CHECK_OK(shoal_scope_end());
        memset(base, 1, (size_t)n * sizeof(int32_t));
        completion_finish(write, SHOAL_OK);
        completion_unref(write);
        CHECK_INT(test_live_blocks(), blocks);
    }
}

TEST(data_in_flight_is_not_used_again)
{
    for (size_t i = 0; i < sizeof(sizes_in_flight) / sizeof(sizes_in_flight[0]); i++) {
        int64_t n = sizes_in_flight[i];
        struct completion *write;
        shoal_tensor *others[8];
        void *base = NULL;
        REQUIRE_OK(shoal_scope_begin());
        REQUIRE_OK(shoal_scope_begin());
        shoal_tensor *tensor = tensor_in_flight(n, &write);
        REQUIRE(tensor);
        CHECK_OK(storage_host_base(tensor->storage, &base));
        CHECK_OK(i % 2 == 0 ? shoal_tensor_release_data(tensor) : SHOAL_OK);
        CHECK_OK(shoal_scope_end());
        for (int k = 0; k < 8; k++) {
            others[k] = shoal_zeros(&n, 1, SHOAL_I32);
            REQUIRE(others[k]);
        }
        memset(base, 1, (size_t)n * sizeof(int32_t));
        completion_finish(write, SHOAL_OK);
        for (int k = 0; k < 8; k++) {
            const int32_t *data = shoal_data(others[k]);
            for (int64_t at = 0; data && at < n; at++) {
                CHECK_INT(data[at], 0);
            }
        }
        completion_unref(write);
        CHECK_OK(shoal_scope_end());
    }
}

/* The parts of a result that were made together may die in any order, also under another thread's hands. */
TEST(parts_of_a_result_die_in_any_order)
{
    for (size_t i = 0; i < sizeof(sizes_in_flight) / sizeof(sizes_in_flight[0]); i++) {
        int64_t n = sizes_in_flight[i];
        REQUIRE_OK(shoal_scope_begin());
        shoal_tensor *tensor = shoal_zeros(&n, 1, SHOAL_I32);
        shoal_tensor *view = shoal_tensor_ref(shoal_narrow(tensor, 0, 0, n / 2));
        shoal_tensor *released = shoal_tensor_ref(shoal_zeros(&n, 1, SHOAL_I32));
        REQUIRE(view && released);
        CHECK_OK(shoal_tensor_release_data(released)); /* data before tensor */
        CHECK_OK(shoal_scope_end());                   /* tensor before storage and data */
        REQUIRE_OK(shoal_scope_begin());
        shoal_tensor *fresh = shoal_zeros(&n, 1, SHOAL_I32);
        CHECK(shoal_data(view) && shoal_data(view) != shoal_data(fresh));
        CHECK_OK(shoal_tensor_rebind_data(released, NULL, NULL, NULL));
        int32_t *data = shoal_mutable_data(released);
        REQUIRE(data);
        memset(data, 1, (size_t)n * sizeof(int32_t));
        const int32_t *zeros = shoal_data(fresh);
        CHECK(zeros && (n == 0 || zeros[n - 1] == 0));
        shoal_tensor_unref(view);
        shoal_tensor_unref(released);
        CHECK_OK(shoal_scope_end());
    }
}
