/* SPDX-License-Identifier: MIT */
/* All built-in ops are there from the first call on, even when that is made before main. */
#include "harness/test.h"
#include "op/op.h"
#include "shoal/op.h"

static shoal_status status = SHOAL_ERR_INTERNAL;
static const shoal_op *first;
static size_t n_named;

__attribute__((constructor)) static void ask(void)
{
    const shoal_op *op;
    status = shoal_op_find("all_reduce", &first);
    for (size_t i = 0; (op = shoal_op_at(i)) != NULL; i++) {
        n_named += op->name && op->meta && op->kernel ? 1 : 0;
    }
}

TEST(ops_are_there_before_main)
{
    CHECK_OK(status);
    CHECK(first == shoal_op_at(OP_all_reduce));
    CHECK_INT(n_named, OP_COUNT);
}
