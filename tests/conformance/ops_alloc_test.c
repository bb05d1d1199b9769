/* SPDX-License-Identifier: MIT */
/*
 * Every row with every one of its allocations failing: the error is SHOAL_ERR_NO_MEMORY, nothing is lost, and
 * the inputs are what they were. After warm-up, an op allocates what its results need and no more.
 */
#include "conformance/ops/cases.h"
#include "harness/test.h"
#include "shoal_compat/torch.h"
#include "shoal/op.h"
#include "shoal/ops.h"

enum {
    CASES_PER_ROW = 6
};

static struct op_case the_case;

static void check_untouched(const struct op_case *c, const struct case_call *call)
{
    for (int i = 0; i < c->n_inputs; i++) {
        void *base;
        if (c->inputs[i].owner == i && storage_host_base(call->tensors[i]->storage, &base) == SHOAL_OK) {
            CHECK_BYTES(base, c->inputs[i].bytes,
                        (size_t)c->inputs[i].storage_elems * dtype_bytes(c->inputs[i].dtype));
        }
    }
}

static shoal_status call_once(void *context)
{
    const struct op_case *c = context;
    struct case_call call;
    shoal_value result = {.kind = SHOAL_VALUE_NONE, .count = 77};
    shoal_status status = shoal_scope_begin();
    if (status != SHOAL_OK) {
        return status;
    }
    status = case_build(c, SHOAL_CPU, &call);
    if (status == SHOAL_OK) {
        status = shoal_op_call(c->op, call.values, (size_t)c->n_arguments, &result);
        if (status != SHOAL_OK) {
            CHECK_INT(result.kind, SHOAL_VALUE_NONE);
            CHECK_INT(result.count, 77);
            check_untouched(c, &call);
        }
    }
    case_release(&call);
    shoal_status end = shoal_scope_end();
    return end != SHOAL_OK ? end : status;
}

static void sweep_row(enum op_id id)
{
    for (int number = 0; number < CASES_PER_ROW && !test_has_failed(); number++) {
        struct test_random random = test_random_begin((uint64_t)id * 5003 + (uint64_t)number);
        case_describe(&the_case, id, &random);
        CHECK(test_sweep_allocations(call_once, &the_case) >= 1);
    }
}

#define OP(name, signature, flags, meta, kernel, gradient, saves, doc) \
    TEST(alloc_##name)                                                 \
    {                                                                  \
        sweep_row(OP_##name);                                          \
    }
#define OP_OF_RANKS(...)
#include "op/ops.def"
#undef OP

/* Allocations of one call in a scope that has room. */
static size_t count_allocations(shoal_tensor *(*op)(shoal_tensor *self), shoal_tensor *self)
{
    test_fail_allocation(0, false);
    CHECK(op(self));
    return test_count_allocations();
}

TEST(ops_allocate_only_their_results)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *t = shoal_zeros((int64_t[]){3, 1}, 2, SHOAL_F32);
    REQUIRE(t);
    /* at most: tensor; tensor, storage and memory; nothing */
    CHECK(count_allocations(shoal_squeeze_all, t) <= 1);
    CHECK(count_allocations(shoal_neg, t) <= 3);
    CHECK_INT(count_allocations(shoal_neg_, t), 0);
    CHECK_INT(count_allocations(shoal_contiguous, t), 0);
    CHECK_OK(shoal_scope_end());
}
