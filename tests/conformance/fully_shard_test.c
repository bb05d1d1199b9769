/* SPDX-License-Identifier: MIT */
/*
 * shoal_fully_shard: modules that are sharded train like one process, bit for bit, whatever is frozen, tied, nested,
 * used twice or not at all; and show in their places what the settings say.
 */
#include "fixtures/module_net.h"

/* What every test has. */
struct bench {
    shoal_world *world;
    shoal_fully_shard_options options;
    struct net sharded;
    struct net alone;
};

/* Two nets of the same values; the first is not sharded yet. */
static bool bench_open(struct bench *bench, struct rank *self, int n_layers, net_function function)
{
    *bench = (struct bench){.world = rank_world_open(self, 0)};
    if (!bench->world || !CHECK_OK(shoal_scope_begin())) {
        return false;
    }
    bench->options = net_options(bench->world);
    net_make(&bench->sharded, n_layers, function);
    net_make(&bench->alone, n_layers, function);
    return !test_has_failed();
}

static void bench_close(struct bench *bench)
{
    net_free(&bench->sharded);
    net_free(&bench->alone);
    (void)CHECK_OK(shoal_scope_end());
    (void)CHECK_OK(shoal_world_close(bench->world));
}

/* Bits --------------------------------------------------------------------------------------------------- */

static void train(struct rank *self, shoal_reshard reshard, int forward_prefetch, bool is_replicated)
{
    struct bench bench;
    if (bench_open(&bench, self, 3, NULL)) {
        bench.options.reshard = reshard;
        bench.options.reshard_ranks = 2;
        bench.options.forward_prefetch = forward_prefetch;
        bench.options.is_replicated = is_replicated;
        if (net_shard(&bench.sharded, &bench.options)) {
            net_train_both(&bench.sharded, &bench.alone, self, 3);
        }
    }
    bench_close(&bench);
}

static void train_all(struct rank *self)
{
    train(self, SHOAL_RESHARD_DEFAULT, 0, false);
    train(self, SHOAL_RESHARD_ALWAYS, -1, false);
    train(self, SHOAL_RESHARD_NEVER, 2, false);
    train(self, SHOAL_RESHARD_DEFAULT, 0, true);
    if (self->n_ranks % 2 == 0) {
        train(self, SHOAL_RESHARD_PARTLY, 0, false);
    }
}

TEST_RANKS(bits_of_one, 1)
{
    train_all(self);
}

TEST_RANKS(bits_of_two, 2)
{
    train_all(self);
}

TEST_RANKS(bits_of_three, 3)
{
    train_all(self);
}

TEST_RANKS(bits_of_four, 4)
{
    train_all(self);
}
