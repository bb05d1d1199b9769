/* SPDX-License-Identifier: MIT */
/*
 * Distributed data parallelism gives the bits of one process that adds the parts of the batch in rank order: whatever
 * the buckets, the number of ranks, the micro-batches, the dtypes, and however gradients are zeroed.
 */
#include "fixtures/on_device.h"

#include "fixtures/ddp_net.h"
#include "parallel/ddp/ddp.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof(array)[0]))

/* Bits --------------------------------------------------------------------------------------------------- */

struct bits_case {
    const shoal_dtype *dtypes;
    int n_micro;
    bool syncs_always; /* every micro-batch; otherwise the last */
    bool fills_zero;   /* otherwise gradients are removed */
    shoal_ddp_options options;
};

static void describe(const struct bits_case *c, int n_ranks, int step, char *text, size_t bytes)
{
    (void)snprintf(
        text, bytes,
        "%d ranks, %d micro-batches%s, buckets %zu and %zu, zeroed by %s, step %d, divided by %g%s", n_ranks,
        c->n_micro, c->syncs_always ? " synchronized" : "", c->options.first_bucket_bytes,
        c->options.bucket_bytes, c->fills_zero ? "filling" : "removing", step, c->options.divide_factor,
        c->options.reduce_unused ? ", reduce_unused" : "");
}

static void step_alone(struct net_alone *alone, const struct bits_case *c, int n_ranks, int step)
{
    net_alone_clear(alone);
    for (int first = 0; first < c->n_micro; first += c->syncs_always ? 1 : c->n_micro) {
        int end = c->syncs_always ? first + 1 : c->n_micro;
        for (int part = 0; part < n_ranks; part++) {
            for (int micro = first; micro < end; micro++) {
                CHECK_OK(net_backward(&alone->net, step, part, micro));
            }
            net_alone_take(alone, part);
        }
        net_alone_add_up(alone, n_ranks, c->options.divide_factor);
    }
}

static void step_together(struct net *net, const struct bits_case *c, int rank, int step)
{
    for (int micro = 0; micro < c->n_micro; micro++) {
        CHECK_OK(shoal_ddp_set_sync(net->module, c->syncs_always || micro + 1 == c->n_micro));
        CHECK_OK(net_backward(net, step, rank, micro));
    }
}

static void run_case(shoal_world *world, const struct bits_case *c, struct net_alone *alone, struct net *net)
{
    int n_ranks = shoal_world_n_ranks(world);
    int rank = shoal_world_rank(world);
    net_make(net, c->dtypes, 7);
    net_make(&alone->net, c->dtypes, 7);
    REQUIRE_OK(net_wrap(net, world, c->options));
    for (int step = 0; step < 4 && !test_has_failed(); step++) {
        char text[200];
        describe(c, n_ranks, step, text, sizeof text);
        step_alone(alone, c, n_ranks, step);
        step_together(net, c, rank, step);
        net_check(net, alone, text);
        net_give_total(alone);
        CHECK_OK(net_update(net));
        CHECK_OK(net_update(&alone->net));
        net_check_values(net, &alone->net);
        net_zero(&alone->net);
        if (c->fills_zero) {
            net_fill_zero(net);
        } else {
            net_zero(net);
        }
    }
}

static void check_case(shoal_world *world, struct bits_case c)
{
    struct net_alone *alone = calloc(1, sizeof *alone);
    struct net net = {.module = NULL};
    REQUIRE(alone != NULL);
    REQUIRE_OK(shoal_scope_begin());
    run_case(world, &c, alone, &net);
    net_free(&net);
    net_free(&alone->net);
    CHECK_OK(shoal_scope_end());
    free(alone);
}

/* From one parameter a bucket to one bucket for all. */
static const struct {
    size_t first;
    size_t others;
} sizes[] = {{0, 0}, {1, 1}, {1, 200}, {64, 1}, {300, 100}, {SIZE_MAX, SIZE_MAX}, {1, SIZE_MAX}};

static const shoal_dtype mixed[NET_BLOCKS] = {SHOAL_F32, SHOAL_BF16, SHOAL_F64, SHOAL_F16};
static const shoal_dtype halves[NET_BLOCKS] = {SHOAL_BF16, SHOAL_BF16, SHOAL_BF16, SHOAL_BF16};

/* The mean, the sum, products that round and do not, and the number of ranks in some cases. */
static const double factors[] = {1.0, 0.0, 3.0, 0.25, 2.0};

static void check_all(struct rank *self)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    /* With sanitizers each number of ranks has a part of the sizes, and all together have all of them. */
    int step = test_time_scale() > 1 ? 3 : 1;
    for (int k = self->n_ranks % step; k < LENGTH(sizes) && !test_has_failed(); k += step) {
        shoal_ddp_options options = {.first_bucket_bytes = sizes[k].first, .bucket_bytes = sizes[k].others};
        check_case(world, (struct bits_case){.n_micro = 1, .options = options});
        check_case(world, (struct bits_case){.n_micro = 1, .dtypes = mixed, .options = options});
        options.divide_factor = factors[k % LENGTH(factors)];
        options.reduce_unused = k % 3 == 0;
        check_case(world, (struct bits_case){.n_micro = 3, .fills_zero = k % 2 == 1, .options = options});
        check_case(world, (struct bits_case){.n_micro = 3,
                                             .syncs_always = true,
                                             .fills_zero = k % 2 == 0,
                                             .dtypes = k % 2 == 0 ? halves : NULL,
                                             .options = options});
    }
    CHECK_OK(shoal_world_close(world));
}

#define RANKS(n)                \
    TEST_RANKS(ranks_of_##n, n) \
    {                           \
        check_all(self);        \
    }

RANKS(1)
RANKS(2)
RANKS(3)
RANKS(4)
RANKS(5)

/* The mean as a loop in C, without any of the library's kernels. */
TEST_RANKS(f32_by_hand, 3)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, NULL));
    REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.bucket_bytes = 100}));
    for (int step = 0; step < 2; step++) {
        net_zero(&s.net);
        CHECK_OK(net_backward(&s.net, step, self->rank, 0));
        setting_add(&s, step, 0, NOBODY, 0.0);
        for (int i = 0; i < NET_PARAMS; i++) {
            const float *grad = shoal_data(shoal_grad(s.net.params[i]));
            for (size_t k = 0; k < net_count(&s.net, i); k++) {
                float mean = net_alone_mean(s.alone, i, k, self->n_ranks);
                CHECK_BYTES(&grad[k], &mean, sizeof mean);
            }
        }
    }
    setting_close(&s);
}

/* The order ---------------------------------------------------------------------------------------------- */

/* Parameters in the order in which the plan sends them. */
static void check_order(const struct net *net, const int *expected)
{
    const struct ddp *ddp = ddp_of(net->module);
    for (size_t i = 0; i < NET_PARAMS; i++) {
        CHECK_INT(ddp->buckets.plan.members[i], expected[i]);
    }
}

TEST_RANKS(buckets_follow_the_first_backward, 3)
{
    struct setting s;
    static const int before[] = {7, 6, 5, 4, 3, 2, 1, 0};
    /* Blocks are used in the order 2 0 3 1; a bias is nearer to the end than its weight. */
    static const int after[] = {3, 2, 7, 6, 1, 0, 5, 4};
    REQUIRE(setting_open(self, &s, NULL));
    REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.first_bucket_bytes = 1, .bucket_bytes = 1}));
    check_order(&s.net, before);
    CHECK_OK(shoal_ddp_set_sync(s.net.module, false));
    CHECK_OK(net_backward(&s.net, 9, self->rank, 0));
    check_order(&s.net, before); /* only one that synchronizes tells */
    CHECK_OK(shoal_ddp_set_sync(s.net.module, true));
    setting_step(&s, 0, "while learning");
    check_order(&s.net, after);
    for (int step = 1; step < 3; step++) {
        setting_step(&s, step, "learned");
        check_order(&s.net, after);
    }
    setting_close(&s);
}

/* Ranks see other orders, and take that of the first. */
TEST_RANKS(the_first_rank_gives_the_order, 2)
{
    struct setting s;
    static const int after[] = {3, 2, 7, 6, 1, 0, 5, 4};
    REQUIRE(setting_open(self, &s, NULL));
    REQUIRE_OK(
        net_wrap(&s.net, s.world,
                 (shoal_ddp_options){.first_bucket_bytes = 1, .bucket_bytes = 1, .reduce_unused = true}));
    s.net.skips[1] = self->rank == 1;
    CHECK_OK(net_backward(&s.net, 0, self->rank, 0));
    setting_add(&s, 0, 1, 1, 0.0);
    net_check(&s.net, s.alone, "another order");
    check_order(&s.net, after);
    setting_close(&s);
}

/* Overlap ------------------------------------------------------------------------------------------------ */

struct overlap {
    struct ddp *ddp;
    uint64_t sequence; /* of the lane, when the last gradient came */
};

static shoal_status note_sequence(void *context, shoal_tensor *leaf)
{
    struct overlap *overlap = context;
    (void)leaf;
    overlap->sequence = shoal_group_sequence(overlap->ddp->lane.group);
    return SHOAL_OK;
}

/* Peers come late: what has left does not wait for them, and the backward pass goes on. */
TEST_RANKS(buckets_leave_before_the_backward_ends, 2)
{
    struct setting s;
    struct overlap overlap = {.ddp = NULL};
    REQUIRE(setting_open(self, &s, NULL));
    REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.first_bucket_bytes = 1, .bucket_bytes = 1}));
    overlap.ddp = ddp_of(s.net.module);
    CHECK_OK(shoal_on_accumulated(s.net.params[4], note_sequence, &overlap, NULL));
    setting_step(&s, 0, "while learning");
    for (int step = 1; step < 3; step++) {
        uint64_t before = shoal_group_sequence(overlap.ddp->lane.group);
        test_barrier(self);
        if (self->rank == 1) {
            test_pause(0.05);
        }
        setting_step(&s, step, "overlapped");
        CHECK_INT(overlap.sequence - before, NET_PARAMS); /* that of the last one has just left, too */
    }
    setting_close(&s);
}

/* A hook that looks at a gradient on its way waits for it. */
static shoal_status look_at_grad(void *context, shoal_tensor *leaf)
{
    *(float *)context = *(const float *)shoal_data(shoal_grad(leaf));
    return SHOAL_OK;
}

TEST_RANKS(who_looks_waits, 3)
{
    struct setting s;
    float seen = 0;
    REQUIRE(setting_open(self, &s, NULL));
    REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.first_bucket_bytes = 1, .bucket_bytes = 1}));
    CHECK_OK(shoal_on_accumulated(s.net.params[3], look_at_grad, &seen, NULL));
    for (int step = 0; step < 3; step++) {
        setting_step(&s, step, "looked at");
        if (step > 0) {
            CHECK_DOUBLE((double)seen, (double)*(const float *)shoal_data(shoal_grad(s.net.params[3])));
        }
    }
    setting_close(&s);
}

/* Gradients ---------------------------------------------------------------------------------------------- */

/* A gradient's tensor and memory stay while backward passes add to it. */
TEST_RANKS(gradients_stay_where_they_are, 2)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, NULL));
    REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.bucket_bytes = 1}));
    CHECK_OK(net_backward(&s.net, 0, self->rank, 0));
    shoal_tensor *grad = shoal_grad(s.net.params[0]);
    const void *data = shoal_data(grad);
    for (int step = 1; step < 3; step++) {
        CHECK_OK(net_backward(&s.net, step, self->rank, 0));
        CHECK(shoal_grad(s.net.params[0]) == grad && shoal_data(grad) == data);
        net_fill_zero(&s.net);
    }
    net_zero(&s.net);
    CHECK_OK(net_backward(&s.net, 0, self->rank, 0));
    CHECK(shoal_data(shoal_grad(s.net.params[0])) == data);
    setting_close(&s);
}

/* Gradients that users made count as theirs: added to, and sent. */
TEST_RANKS(a_gradient_made_by_hand, 2)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, NULL));
    REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.bucket_bytes = 1}));
    for (int step = 0; step < 2; step++) {
        net_zero(&s.net);
        net_alone_clear(s.alone);
        shoal_tensor *mine = net_random((int64_t[]){NET_WIDTH}, 1, SHOAL_F64, 77U + (uint32_t)self->rank);
        CHECK_OK(shoal_set_grad(s.net.params[1], mine));
        CHECK_OK(net_backward(&s.net, step, self->rank, 0));
        for (int part = 0; part < self->n_ranks; part++) {
            shoal_tensor *theirs = net_random((int64_t[]){NET_WIDTH}, 1, SHOAL_F64, 77U + (uint32_t)part);
            CHECK_OK(shoal_set_grad(s.alone->net.params[1], theirs));
            CHECK_OK(net_backward(&s.alone->net, step, part, 0));
            shoal_tensor *sum = shoal_to_dtype(shoal_grad(s.alone->net.params[1]), SHOAL_F32);
            CHECK_OK(shoal_set_grad(s.alone->net.params[1], sum));
            net_alone_take(s.alone, part);
        }
        net_alone_add_up(s.alone, self->n_ranks, 0.0);
        net_check(&s.net, s.alone, "by hand");
    }
    setting_close(&s);
}

/* Synchronized, then not, then again: what was averaged is there once, whatever is zeroed in between. */
TEST_RANKS(reduced_then_local_then_reduced, 3)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, NULL));
    REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.bucket_bytes = 1, .divide_factor = 1.0}));
    for (int zeroing = 0; zeroing < 3; zeroing++) {
        net_zero(&s.net);
        net_alone_clear(s.alone);
        CHECK_OK(net_backward(&s.net, 0, self->rank, 0));
        setting_add(&s, 0, 0, NOBODY, 1.0);
        CHECK_OK(shoal_ddp_set_sync(s.net.module, false));
        CHECK_OK(net_backward(&s.net, 1, self->rank, 0));
        if (zeroing > 0) {
            if (zeroing == 1) {
                net_zero(&s.net);
            } else {
                net_fill_zero(&s.net);
            }
            net_alone_clear(s.alone);
        }
        CHECK_OK(shoal_ddp_set_sync(s.net.module, true));
        CHECK_OK(net_backward(&s.net, 2, self->rank, 0));
        for (int part = 0; part < self->n_ranks; part++) {
            if (zeroing == 0) {
                CHECK_OK(net_backward(&s.alone->net, 1, part, 0));
            }
            CHECK_OK(net_backward(&s.alone->net, 2, part, 0));
            net_alone_take(s.alone, part);
        }
        net_alone_add_up(s.alone, self->n_ranks, 1.0);
        net_check(&s.net, s.alone, "reduced, local, reduced");
    }
    setting_close(&s);
}

/* Ranks may have other numbers of micro-batches. */
TEST_RANKS(uneven_micro_batches, 3)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, NULL));
    REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.bucket_bytes = 1}));
    for (int step = 0; step < 3; step++) {
        net_zero(&s.net);
        net_alone_clear(s.alone);
        for (int micro = 0; micro <= self->rank; micro++) {
            CHECK_OK(shoal_ddp_set_sync(s.net.module, micro == self->rank));
            CHECK_OK(net_backward(&s.net, step, self->rank, micro));
        }
        for (int part = 0; part < self->n_ranks; part++) {
            for (int micro = 0; micro <= part; micro++) {
                CHECK_OK(net_backward(&s.alone->net, step, part, micro));
            }
            net_alone_take(s.alone, part);
        }
        net_alone_add_up(s.alone, self->n_ranks, 0.0);
        net_check(&s.net, s.alone, "uneven");
    }
    setting_close(&s);
}

/* Unused parameters -------------------------------------------------------------------------------------- */

TEST_RANKS(unused_on_one_rank_counts_as_zeros, 3)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, NULL));
    REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.bucket_bytes = 1, .reduce_unused = true}));
    for (int step = 0; step < 6; step++) {
        int skipped = step % NET_BLOCKS;
        int skipper = step % self->n_ranks;
        if (step != 3) { /* once without zeroing */
            net_zero(&s.net);
            net_alone_clear(s.alone);
        }
        s.net.skips[skipped] = self->rank == skipper;
        CHECK_OK(net_backward(&s.net, step, self->rank, 0));
        s.net.skips[skipped] = false;
        setting_add(&s, step, skipped, skipper, 0.0);
        net_check(&s.net, s.alone, "unused on one rank");
    }
    setting_close(&s);
}

/* Nobody used it: the gradient is what it was, or is not. */
TEST_RANKS(unused_everywhere_is_left_alone, 2)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, NULL));
    REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.bucket_bytes = 200, .reduce_unused = true}));
    s.net.skips[3] = true;
    CHECK_OK(net_backward(&s.net, 0, self->rank, 0));
    setting_add(&s, 0, 3, EVERYBODY, 0.0);
    net_check(&s.net, s.alone, "never used");
    CHECK(!shoal_grad(s.net.params[6]));
    s.net.skips[3] = false;
    setting_step(&s, 1, "used");
    s.net.skips[3] = true;
    CHECK_OK(net_backward(&s.net, 2, self->rank, 0)); /* added to what is there */
    setting_add(&s, 2, 3, EVERYBODY, 0.0);
    net_check(&s.net, s.alone, "used before");
    setting_close(&s);
}

/* What backward passes without synchronization left is sent by the next one that does, which need not come to it. */
TEST_RANKS(local_gradients_are_sent_by_another_backward, 2)
{
    for (int finds = 0; finds < 2; finds++) {
        struct setting s;
        REQUIRE(setting_open(self, &s, NULL));
        REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.bucket_bytes = 1, .reduce_unused = finds}));
        CHECK_OK(shoal_ddp_set_sync(s.net.module, false));
        CHECK_OK(net_backward(&s.net, 0, self->rank, 0));
        CHECK_OK(shoal_ddp_set_sync(s.net.module, true));
        s.net.skips[0] = true;
        CHECK_OK(net_backward(&s.net, 1, self->rank, 0));
        for (int part = 0; part < self->n_ranks; part++) {
            s.alone->net.skips[0] = false;
            CHECK_OK(net_backward(&s.alone->net, 0, part, 0));
            s.alone->net.skips[0] = true;
            CHECK_OK(net_backward(&s.alone->net, 1, part, 0));
            net_alone_take(s.alone, part);
        }
        net_alone_add_up(s.alone, self->n_ranks, 0.0);
        net_check(&s.net, s.alone, "sent by another");
        setting_close(&s);
    }
}
