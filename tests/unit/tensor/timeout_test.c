/* SPDX-License-Identifier: MIT */
/*
 * What SHOAL_TIMEOUT does to tensors in flight. Options are read once per process, so this is a program of its
 * own whose environment is set before main.
 */
#include <stdlib.h>

#include "base/completion.h"
#include "harness/test.h"
#include "shoal/ops.h"
#include "shoal/tensor.h"
#include "tensor/storage.h"
#include "tensor/tensor.h"

__attribute__((constructor)) static void set_timeout(void)
{
    (void)setenv("SHOAL_TIMEOUT", "0.02", 1);
}

TEST(reading_gives_up_at_the_deadline_and_can_try_again)
{
    struct completion *write = completion_create();
    REQUIRE(write);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensor = shoal_zeros((int64_t[]){2}, 1, SHOAL_F32);
    REQUIRE(tensor);
    CHECK_OK(storage_add_write(tensor->storage, write));
    CHECK(!shoal_data(tensor));
    CHECK_ERROR_TEXT("waited 0.0 s");
    CHECK_STATUS(shoal_wait(tensor), SHOAL_ERR_TIMEOUT);
    CHECK(!shoal_mutable_data(tensor));
    CHECK_INT(shoal_tensor_version(tensor), 0);
    /* Overwriting waits too: the work in flight would write over what we put there. */
    CHECK_STATUS(storage_wait_writable(tensor->storage, /*overwrites=*/true), SHOAL_ERR_TIMEOUT);
    /* The write is not failed, only late. */
    completion_finish(write, SHOAL_OK);
    CHECK(shoal_data(tensor));
    completion_unref(write);
    CHECK_OK(shoal_scope_end());
}

TEST(writing_gives_up_on_a_read_that_does_not_end)
{
    struct completion *read = completion_create();
    REQUIRE(read);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensor = shoal_zeros((int64_t[]){2}, 1, SHOAL_F32);
    REQUIRE(tensor);
    CHECK_OK(storage_add_read(tensor->storage, read));
    CHECK(shoal_data(tensor));
    CHECK(!shoal_mutable_data(tensor));
    CHECK_ERROR_TEXT("waited");
    completion_finish(read, SHOAL_OK);
    CHECK(shoal_mutable_data(tensor));
    completion_unref(read);
    CHECK_OK(shoal_scope_end());
}

TEST(an_op_that_times_out_puts_the_error_into_the_scope)
{
    struct completion *write = completion_create();
    REQUIRE(write);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensor = shoal_zeros((int64_t[]){2}, 1, SHOAL_F32);
    REQUIRE(tensor);
    CHECK_OK(storage_add_write(tensor->storage, write));
    CHECK(!shoal_neg(tensor));
    CHECK_STATUS(shoal_scope_error(), SHOAL_ERR_TIMEOUT);
    CHECK_ERROR_TEXT("neg");
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_TIMEOUT);
    completion_finish(write, SHOAL_OK);
    completion_unref(write);
}
