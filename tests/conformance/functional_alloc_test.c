/* SPDX-License-Identifier: MIT */
/*
 * Every row of functional collectives with every one of its allocations failing: the error is SHOAL_ERR_NO_MEMORY,
 * nothing is lost, the group has not counted the call, and the same call then works. Without peers, where a group of
 * any size connects at once, and in a world of one rank, where the data really moves.
 */
#include <stdio.h>

#include <string.h>

#include "conformance/functional/row_cases.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/autograd.h"
#include "shoal/op.h"
#include "shoal/ops.h"

enum {
    CASES_PER_ROW = 6
};

struct sweep {
    enum op_id id;
    uint64_t number;
    struct row_wanted wanted;
};

static bool counts_calls(const shoal_op *op)
{
    bool is_copy = strncmp(op->name, "one_shot_all_reduce_copy", strlen("one_shot_all_reduce_copy")) == 0;
    return (op->flags & SHOAL_OP_COLLECTIVE) != 0 && ((op->flags & SHOAL_OP_SIDE_EFFECT) == 0 || is_copy);
}

/* One call in a scope of its own, and the use of what it gave. */
static shoal_status call_once(void *context)
{
    static struct row_case c; /* large; ranks are alone here */
    const struct sweep *sweep = context;
    shoal_value untouched = {.kind = SHOAL_VALUE_NONE, .count = 77};
    shoal_value result = untouched;
    uint64_t sequence = shoal_group_sequence(sweep->wanted.group);
    shoal_status status = shoal_scope_begin();
    if (status != SHOAL_OK) {
        return status;
    }
    row_build(&c, sweep->id, &sweep->wanted, sweep->number);
    status = shoal_scope_error();
    if (status == SHOAL_OK) {
        status = shoal_op_call(c.op, c.values, c.n_values, &result);
    }
    if (status != SHOAL_OK) {
        CHECK_INT(result.kind, untouched.kind);
        CHECK_INT(result.count, untouched.count);
        CHECK_INT(shoal_group_sequence(sweep->wanted.group), sequence);
    } else {
        row_check_outputs(&c, &result);
        for (size_t i = 0; i < c.n_outputs; i++) {
            CHECK_OK(shoal_wait(row_output_of(&result, i)));
        }
        CHECK_INT(shoal_group_sequence(sweep->wanted.group), sequence + (counts_calls(c.op) ? 1 : 0));
    }
    shoal_status end = shoal_scope_end();
    return end != SHOAL_OK ? end : status;
}

static void sweep_row(enum op_id id, const struct row_wanted *wanted)
{
    for (uint64_t number = 0; number < CASES_PER_ROW && !test_has_failed(); number++) {
        struct sweep sweep = {.id = id, .number = number, .wanted = *wanted};
        /* The first call connects the group, which keeps what that takes. */
        if (CHECK_OK(call_once(&sweep))) {
            CHECK(test_sweep_allocations(call_once, &sweep) >= 1);
            CHECK_OK(call_once(&sweep));
        }
    }
    CHECK_OK(shoal_group_error(wanted->group));
}

/* Without peers ---------------------------------------------------------------------------------------- */

static void sweep_without_peers(enum op_id id)
{
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = 5, .rank = 2, .key = "alloc", .transport = "fake"};
    shoal_world *world = NULL;
    shoal_symmetric *symmetric = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    REQUIRE_OK(shoal_symmetric_create(shoal_world_group(world), ROW_SYMMETRIC_BYTES, &symmetric));
    sweep_row(id, &(struct row_wanted){
                      .group = shoal_world_group(world), .device = SHOAL_CPU, .symmetric = symmetric});
    CHECK_OK(shoal_world_close(world));
}

#define OP(...)
#define OP_OF_RANKS(name, signature, flags, meta, kernel, gradient, saves, doc) \
    TEST(alloc_##name)                                                          \
    {                                                                           \
        sweep_without_peers(OP_##name);                                         \
    }
#include "op/ops.def"
#undef OP

/* The first call of a world's group, which connects it, fails like any other. */
static shoal_status open_and_call(void *context)
{
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = 3, .rank = 1, .key = "alloc", .transport = "fake"};
    shoal_world *world = NULL;
    shoal_status status = shoal_world_open(&options, &world);
    if (status != SHOAL_OK) {
        return status;
    }
    status = shoal_scope_begin();
    if (status == SHOAL_OK) {
        (void)shoal_all_reduce(shoal_zeros((int64_t[]){4}, 1, SHOAL_F32), SHOAL_SUM,
                               shoal_world_group(world));
        status = shoal_scope_end();
    }
    CHECK_OK(shoal_world_close(world));
    return status;
}

TEST(alloc_of_a_first_call)
{
    CHECK(test_sweep_allocations(open_and_call, NULL) >= 3);
}

/* Alone in a world ------------------------------------------------------------------------------------- */

/* A send that nobody receives, and a receive that nobody answers, would stay: the batch has both. */
static bool needs_partner(enum op_id id)
{
    return id == OP_isend || id == OP_irecv;
}

/* The world's own threads allocate too: a failure may hit them, so only the end tells what was lost. */
TEST_RANKS(alloc_alone_in_a_world, 1)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    const struct row_wanted wanted = {
        .group = shoal_world_group(world), .device = SHOAL_CPU, .is_alone = true};
    for (int id = 0; id < OP_COUNT && !test_has_failed(); id++) {
        const shoal_op *op = shoal_op_at((enum op_id)id);
        if ((op->flags & SHOAL_OP_COLLECTIVE) != 0 && !needs_partner((enum op_id)id)) {
            sweep_row((enum op_id)id, &wanted);
        }
    }
    CHECK_OK(shoal_world_close(world));
}

/* With gradients --------------------------------------------------------------------------------------- */

/* Recording a call and going backward allocate as well: the tape, and collectives of its own. */
static shoal_status go_backward(void *context)
{
    shoal_group *group = context;
    shoal_status status = shoal_scope_begin();
    if (status != SHOAL_OK) {
        return status;
    }
    shoal_tensor *x = shoal_full((int64_t[]){10, 2}, 2, 3, SHOAL_F64);
    status = x ? shoal_set_requires_grad(x, true) : shoal_scope_error();
    if (status == SHOAL_OK) {
        shoal_tensor *y = shoal_all_gather_tensor(shoal_all_reduce(x, SHOAL_MAX, group), 1, group);
        y = shoal_reduce_scatter_tensor(shoal_all_to_all_single(y, NULL, NULL, 0, group), SHOAL_AVG, -2,
                                        group);
        shoal_tensor *const *list = shoal_all_reduce_coalesced(&y, 1, SHOAL_SUM, group);
        shoal_tensor *loss = list ? shoal_sum(list[0], NULL, 0, false) : NULL;
        status = loss ? shoal_backward(loss, NULL) : shoal_scope_error();
    }
    shoal_status end = shoal_scope_end();
    /* What was started before the failure holds its memory until somebody has pushed the lane along. */
    CHECK_OK(shoal_group_barrier(group));
    return status != SHOAL_OK ? status : end;
}

TEST(alloc_in_backward)
{
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = 5, .rank = 2, .key = "alloc", .transport = "fake"};
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    REQUIRE_OK(go_backward(shoal_world_group(world)));
    CHECK(test_sweep_allocations(go_backward, shoal_world_group(world)) >= 10);
    CHECK_OK(shoal_world_close(world));
}
