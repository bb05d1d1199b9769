/* SPDX-License-Identifier: MIT */
/* Several forwards of one module, and the order in which ranks walk them back. */
#include "fixtures/on_device.h"

#include "fixtures/fsdp_handles.h"
#include "fixtures/module_bench.h"

/* Two forwards, of which the older (0) or the newer one (1) is walked back first. */
static void walk_back_two(struct bench *bench, int step, int first, shoal_status expected)
{
    shoal_tensor *outputs[2];
    REQUIRE_OK(shoal_scope_begin());
    for (int i = 0; i < 2; i++) {
        outputs[i] =
            shoal_sum(shoal_module_call_one(bench->sharded.root, net_input(step + i, 0)), NULL, 0, false);
    }
    CHECK_STATUS(shoal_backward(outputs[first], NULL), expected);
    if (expected == SHOAL_OK) {
        CHECK_OK(shoal_backward(outputs[1 - first], NULL));
        CHECK_OK(shoal_fsdp_zero_grad(fsdp_of_module(bench->sharded.root)));
    }
    CHECK_OK(shoal_scope_end());
}

static void check_different_order(struct rank *self, bool is_replicated, bool syncs)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 0, NULL));
    bench.options.is_replicated = is_replicated;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK_OK(shoal_fsdp_set_sync(shoal_fully_shard_unit(bench.sharded.root, true), syncs));
    for (int step = 0; step < 2 && !test_has_failed(); step++) {
        walk_back_two(&bench, 10 * step, 0, SHOAL_OK);
        walk_back_two(&bench, 10 * step, 1, SHOAL_OK);
    }
    walk_back_two(&bench, 20, self->rank == 0 ? 0 : 1, SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("for an older forward pass (1 newer left)");
    test_barrier(self);
    bench_close(&bench);
}

TEST_RANKS(two_forwards_walked_back_in_different_order, 2)
{
    check_different_order(self, false, true);
}

TEST_RANKS(two_forwards_walked_back_in_different_order_by_replicas, 3)
{
    check_different_order(self, true, true);
}

TEST_RANKS(two_forwards_walked_back_in_different_order_without_reduction, 2)
{
    check_different_order(self, false, false);
}

static shoal_tensor *call_loss(struct bench *bench, int step)
{
    return shoal_sum(shoal_module_call_one(bench->sharded.root, net_input(step, 0)), NULL, 0, false);
}

/* What only one rank records does not count once it is gone, nor if it is older. */
TEST_RANKS(forwards_of_replicas_that_only_one_rank_makes, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 0, NULL));
    bench.options.is_replicated = true;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int step = 0; step < 3 && !test_has_failed(); step++) {
        REQUIRE_OK(shoal_scope_begin());
        if (self->rank == 0 && step > 0) {
            (void)call_loss(&bench, step); /* stays recorded */
        }
        shoal_tensor *loss = call_loss(&bench, step);
        if (self->rank == 0) {
            REQUIRE_OK(shoal_scope_begin());
            (void)call_loss(&bench, step); /* its record goes at once */
            REQUIRE_OK(shoal_scope_end());
        }
        CHECK_OK(shoal_backward(loss, NULL));
        CHECK_OK(shoal_fsdp_zero_grad(fsdp_of_module(bench.sharded.root)));
        REQUIRE_OK(shoal_scope_end());
    }
    test_barrier(self);
    bench_close(&bench);
}
