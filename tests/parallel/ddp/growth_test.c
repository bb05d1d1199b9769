/* SPDX-License-Identifier: MIT */
/*
 * Modules that are wrapped and freed, and backward passes that fail, again and again: descriptors, threads and memory
 * of a process stay what they were.
 */
#include "fixtures/on_device.h"

#include "fixtures/ddp_net.h"
#include "fixtures/reading.h"
#include "parallel/ddp/ddp.h"

enum {
    N_RANKS = 2,
    N_ROUNDS = 200,
    N_WARM_UP = 20
};

/*
 * With a buffer, so that it has all lanes that a module can have. Few enough buckets for the slots of a lane: whether
 * one more is posted, or left to a thread, depends on how far the other rank is.
 */
static void make_wrapped(struct net *net, shoal_world *world)
{
    shoal_module_unref(net->module);
    net_make(net, NULL, 7);
    CHECK_OK(shoal_module_add_buffer(net->module, "n", shoal_full((int64_t[]){3}, 1, 1, SHOAL_F32)));
    CHECK_OK(net_wrap(net, world, (shoal_ddp_options){.first_bucket_bytes = 1, .bucket_bytes = 300}));
    CHECK(ddp_of(net->module)->buckets.plan.n_buckets <= 4);
}

static void check_growth(struct rank *self, int round, struct reading *first, const struct growth *allowed)
{
    test_barrier(self);
    if (round == N_WARM_UP) {
        *first = reading_take();
    } else if (round == N_ROUNDS - 1) {
        struct reading now = reading_take();
        reading_compare(first, &now, allowed);
    }
    test_barrier(self);
}

TEST_PROCESSES(wrapped_and_freed, N_RANKS)
{
    struct net net = {.module = NULL};
    struct reading first = {0};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    for (int round = 0; round < N_ROUNDS && !test_has_failed(); round++) {
        CHECK_OK(shoal_scope_begin());
        make_wrapped(&net, world);
        CHECK_OK(net_backward(&net, round, self->rank, 0));
        net_free(&net);
        net.module = NULL;
        CHECK_OK(shoal_scope_end());
        check_growth(self, round, &first, &(struct growth){.resident_kib = 2048});
    }
    CHECK_OK(shoal_world_close(world));
}

/* Ranks have other numbers of backward passes, none of which is synchronized: blocks are opened and never shared. */
TEST_PROCESSES(opened_and_freed, N_RANKS)
{
    struct net net = {.module = NULL};
    struct reading first = {0};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    for (int round = 0; round < N_ROUNDS && !test_has_failed(); round++) {
        CHECK_OK(shoal_scope_begin());
        make_wrapped(&net, world);
        CHECK_OK(shoal_ddp_set_sync(net.module, false));
        for (int i = 0; i < (round + self->rank) % 3; i++) {
            CHECK_OK(net_backward(&net, round, self->rank, 0));
        }
        net_free(&net);
        net.module = NULL;
        CHECK_OK(shoal_scope_end());
        check_growth(self, round, &first, &(struct growth){.resident_kib = 2048});
    }
    CHECK_OK(shoal_world_close(world));
}

static shoal_status fail_once(void *context, shoal_tensor *leaf)
{
    bool *fails = context;
    (void)leaf;
    if (!*fails) {
        return SHOAL_OK;
    }
    *fails = false;
    return SHOAL_ERR_INTERNAL;
}

/* The rank fails at a parameter, and the others hear of it when it begins again. */
static void fail_and_begin_again(struct rank *self, struct net *net, bool *fails, int round)
{
    net_zero(net);
    *fails = self->rank == round % N_RANKS;
    CHECK(net_backward(net, round, self->rank, 0) != SHOAL_OK);
    CHECK_OK(shoal_ddp_reset(net->module));
    CHECK_OK(net_backward(net, round, self->rank, 0));
}

/* A closed lane that failed stays known by its name and the reason, in two blocks. Each failure loses the module's two
   lanes and that of the order. Descriptors are closed when their servers hear of it. */
static const struct growth kept = {
    .n_blocks = 6 * (N_ROUNDS - N_WARM_UP), .n_descriptors = 16, .resident_kib = 8192};

TEST_PROCESSES(failed_backward_passes, N_RANKS)
{
    struct net net = {.module = NULL};
    struct reading first = {0};
    bool fails = false;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    CHECK_OK(shoal_scope_begin());
    make_wrapped(&net, world);
    CHECK_OK(shoal_on_accumulated(net.params[0], fail_once, &fails, NULL));
    for (int round = 0; round < N_ROUNDS && !test_has_failed(); round++) {
        fail_and_begin_again(self, &net, &fails, round);
        check_growth(self, round, &first, &kept);
    }
    net_free(&net);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

/* The module is freed after the failure: the next one gets a lane that has not failed. */
TEST_PROCESSES(failed_and_freed, N_RANKS)
{
    struct net net = {.module = NULL};
    struct reading first = {0};
    bool fails = false;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    for (int round = 0; round < N_ROUNDS && !test_has_failed(); round++) {
        CHECK_OK(shoal_scope_begin());
        make_wrapped(&net, world);
        CHECK_OK(shoal_on_accumulated(net.params[0], fail_once, &fails, NULL));
        fails = self->rank == round % N_RANKS;
        CHECK(net_backward(&net, round, self->rank, 0) != SHOAL_OK);
        net_free(&net);
        net.module = NULL;
        CHECK_OK(shoal_scope_end());
        check_growth(self, round, &first, &kept);
    }
    CHECK_OK(shoal_world_close(world));
}
