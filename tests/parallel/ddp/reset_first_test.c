/* SPDX-License-Identifier: MIT */
/* Modules that all ranks reset before they were ever called, eagerly or in a compiled step, go on as others do. */
#include "fixtures/compiled_pair.h"

/* Which rank is late, whether both modules of the world are reset, how often, and when the first is called. */
struct order {
    int late_rank;
    bool are_both_reset;
    int n_resets;
    bool is_called_between;
    bool is_compiled_first;
};

static struct order draw_order(int round)
{
    return (struct order){.late_rank = round % 2,
                          .are_both_reset = round / 2 % 2 == 0,
                          .n_resets = 1 + round / 4 % 2,
                          .is_called_between = round / 8 % 2 == 0,
                          .is_compiled_first = round / 16 % 2 == 0};
}

static void train(struct net *net, shoal_compiled *compiled, int rank)
{
    shoal_tensor *loss = NULL;
    (void)CHECK_OK(shoal_scope_begin());
    shoal_tensor *x = net_input(1, rank);
    if (compiled) {
        (void)CHECK_OK(shoal_compiled_run(compiled, &x, 1, &loss, 1));
        shoal_tensor_unref(loss);
    } else {
        (void)CHECK_OK(shoal_backward(net_loss(net, x), NULL));
    }
    (void)CHECK_OK(shoal_scope_end());
}

static void run_order(const struct rank *self, struct order order, int round)
{
    struct net nets[2];
    shoal_compiled *compiled[2] = {NULL};
    shoal_world *world = rank_world_open(self, round);
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_scope_begin());
    for (int i = 0; i < 2; i++) {
        net_make(&nets[i], 2, NULL);
        CHECK(pair_wrap(&nets[i], world, WRAP_DDP, NULL));
        REQUIRE_OK(shoal_compile(world, pair_step, &nets[i], 1, NULL, &compiled[i]));
        if (self->rank == order.late_rank) {
            test_pause(0.005); /* it hears of the other's reset before its own */
        }
        for (int k = 0; k < order.n_resets && (order.are_both_reset || i == 1); k++) {
            CHECK_OK(shoal_ddp_reset(nets[i].root));
        }
        if (order.is_called_between) {
            train(&nets[i], order.is_compiled_first ? compiled[i] : NULL, self->rank);
        }
    }
    for (int k = 0; k < 4; k++) {
        train(&nets[k % 2], order.is_compiled_first == (k < 2) ? compiled[k % 2] : NULL, self->rank);
    }
    for (int i = 0; i < 2; i++) {
        shoal_compiled_free(compiled[i]);
        net_free(&nets[i]);
    }
    REQUIRE_OK(shoal_scope_end());
    REQUIRE_OK(shoal_world_close(world));
}

TEST_RANKS(modules_are_reset_before_they_are_called, 2)
{
    for (int round = 0; round < 32 && !test_has_failed(); round++) {
        run_order(self, draw_order(round), round);
    }
}
