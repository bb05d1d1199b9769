/* SPDX-License-Identifier: MIT */
/*
 * Bits: whatever shards, replicas, buffers, prefetching and resharding there are, training ends with the bits of one
 * process that adds the parts of the batch in rank order; and norms are the same number for any number of ranks.
 */
#include "fixtures/fsdp_on_device.h"

#include "fixtures/fsdp_model.h"
#include "harness/harness.h"

static const struct {
    shoal_reshard reshard;
    int ranks; /* 0: the smallest number that divides the shards, other than 1 and all */
} reshards[] = {{SHOAL_RESHARD_DEFAULT, 0},
                {SHOAL_RESHARD_ALWAYS, 0},
                {SHOAL_RESHARD_NEVER, 0},
                {SHOAL_RESHARD_PARTLY, 0},
                {SHOAL_RESHARD_PARTLY, 1}};

static const struct {
    int n_micro;
    bool reduces_always;
} accumulations[] = {{1, true}, {3, false}, {3, true}};

static const int prefetches[] = {0, -1, 2};
static const double max_norms[] = {0.0, 0.5};

#define LENGTH(array) ((int)(sizeof(array) / sizeof(array)[0]))

static int divisor_of(int n_shards)
{
    for (int n = 2; n < n_shards; n++) {
        if (n_shards % n == 0) {
            return n;
        }
    }
    return n_shards;
}

static void describe(const struct model_case *c, char *text, size_t bytes)
{
    const shoal_fsdp_options *o = &c->options;
    (void)snprintf(
        text, bytes,
        "mode %d, %d ranks, %d micro-batches%s, max_norm %g, reshard %d over %d, prefetch %d, max_reduces %d",
        (int)c->mode, c->n_ranks, c->n_micro, c->reduces_always ? " reduced always" : "", c->max_norm,
        (int)o->reshard, o->reshard_ranks, o->forward_prefetch, o->max_reduces);
}

static void check_case(shoal_world *world, const struct model_case *c, const struct model_result *expected)
{
    char text[200];
    struct model_result actual;
    describe(c, text, sizeof text);
    memset(&actual, 0, sizeof actual);
    if (!CHECK_OK(model_train(world, c, &actual))) {
        test_failed(__FILE__, __LINE__, "%s", text);
        return;
    }
    model_check_equal(&actual, expected, text);
    for (int step = 0; c->max_norm > 0.0 && step < c->n_steps; step++) {
        CHECK_DOUBLE(actual.norms[step], expected->norms[step]);
    }
}

/* Everything that must not matter. */
static void check_ways(const struct rank *self, shoal_world *world, struct model_case c, int number)
{
    struct model_result expected;
    memset(&expected, 0, sizeof expected);
    model_train_alone(&c, &expected);
    int n_shards = c.mode == MODEL_DDP ? 1 : c.mode == MODEL_HSDP ? c.n_ranks / c.n_replicas : c.n_ranks;
    for (int r = 0; r < LENGTH(reshards); r++) {
        for (int p = 0; p < LENGTH(prefetches); p++) {
            for (int m = 1; m <= 2 && !test_has_failed(); m++) {
                bool is_left_out =
                    HARNESS_HAS_ASAN || HARNESS_HAS_TSAN
                        ? (r + p + m + c.n_micro) % 3 != 0 /* others for each number of micro-batches */
                        : !test_takes(self, r + p + m + number);
                if (is_left_out) {
                    continue;
                }
                c.options = (shoal_fsdp_options){
                    .reshard = reshards[r].reshard, .forward_prefetch = prefetches[p], .max_reduces = m};
                c.options.reshard_ranks = reshards[r].ranks ? reshards[r].ranks : divisor_of(n_shards);
                check_case(world, &c, &expected);
            }
        }
    }
}

static void check_mode(struct rank *self, enum model_mode mode, int n_replicas)
{
    shoal_world *world = rank_world_open(self, (int)mode);
    REQUIRE(world != NULL);
    for (int a = 0; a < LENGTH(accumulations); a++) {
        for (int k = 0; k < LENGTH(max_norms); k++) {
            check_ways(self, world,
                       (struct model_case){.mode = mode,
                                           .n_ranks = self->n_ranks,
                                           .n_replicas = n_replicas,
                                           .n_steps = 2,
                                           .n_micro = accumulations[a].n_micro,
                                           .reduces_always = accumulations[a].reduces_always,
                                           .max_norm = max_norms[k]},
                       a + k);
        }
    }
    CHECK_OK(shoal_world_close(world));
}

#define RANKS(n)                         \
    TEST_RANKS(fsdp_of_##n, n)           \
    {                                    \
        check_mode(self, MODEL_FSDP, 1); \
    }                                    \
    TEST_RANKS(replicas_of_##n, n)       \
    {                                    \
        check_mode(self, MODEL_DDP, 1);  \
    }

RANKS(1)
RANKS(2)
RANKS(3)
RANKS(4)
RANKS(5)

TEST_RANKS(two_replicas_of_two, 4)
{
    check_mode(self, MODEL_HSDP, 2);
}

TEST_RANKS(three_replicas_of_one, 3)
{
    check_mode(self, MODEL_HSDP, 3);
}

TEST_RANKS(one_replica_of_three, 3)
{
    check_mode(self, MODEL_HSDP, 1);
}
