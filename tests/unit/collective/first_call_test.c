/* SPDX-License-Identifier: MIT */
/* The first call of a program may be a typed function of a row that needs a group. Nothing before it has asked for an op. */
#include "harness/test.h"
#include "shoal/collective.h"

TEST(a_typed_call_comes_first)
{
    float one = 1.0f;
    CHECK_OK(shoal_scope_begin());
    shoal_tensor *tensor = shoal_from_memory(&one, NULL, 0, SHOAL_F32, NULL, NULL, NULL);
    CHECK(!shoal_all_reduce(tensor, SHOAL_SUM, NULL));
    CHECK_STATUS(shoal_scope_error(), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("all_reduce: group");
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
}
