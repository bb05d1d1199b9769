/* SPDX-License-Identifier: MIT */
/*
 * The order of backward passes. Within one backward pass gradients and modules may come in any order; ranks that make
 * two backward passes in different order are told, before anything is added up that does not belong together.
 */
#include "fixtures/on_device.h"

#include "base/clock.h"
#include "comm/lane/handles.h"
#include "fixtures/ddp_net.h"
#include "parallel/ddp/ddp.h"
#include "parallel/ddp/order.h"

struct pair {
    struct setting setting;
    struct net other;
};

static bool pair_open(struct rank *self, struct pair *pair)
{
    if (!setting_open(self, &pair->setting, NULL)) {
        return false;
    }
    net_make(&pair->other, NULL, 900);
    return CHECK_OK(
               net_wrap(&pair->setting.net, pair->setting.world, (shoal_ddp_options){.bucket_bytes = 1})) &&
           CHECK_OK(net_wrap(&pair->other, pair->setting.world, (shoal_ddp_options){.bucket_bytes = 100}));
}

static shoal_tensor *net_input(int step, int rank)
{
    return net_random((int64_t[]){NET_BATCH, NET_WIDTH}, 2, SHOAL_F32,
                      (uint32_t)(step * 1000 + rank * 10 + 1));
}

/* Rank 1 calls the modules the other way round, so that its backward pass comes to them the other way round. */
static shoal_status backward_of_both(struct pair *pair, int step)
{
    int rank = pair->setting.self->rank;
    net_zero(&pair->setting.net);
    net_zero(&pair->other);
    net_alone_clear(pair->setting.alone);
    shoal_tensor *x = net_input(step, rank);
    shoal_tensor *losses[2];
    for (int k = 0; k < 2; k++) {
        int which = rank == 0 ? k : 1 - k;
        losses[which] = shoal_module_call_one(which == 0 ? pair->setting.net.module : pair->other.module, x);
    }
    return shoal_backward_roots(losses, NULL, 2, NULL);
}

static void step_of_both(struct pair *pair, int step)
{
    CHECK_OK(backward_of_both(pair, step));
    setting_add(&pair->setting, step, 0, NOBODY, 0.0);
    net_check(&pair->setting.net, pair->setting.alone, "one of two");
}

TEST_RANKS(modules_come_in_any_order_within_a_backward, 2)
{
    struct pair pair;
    REQUIRE(pair_open(self, &pair));
    for (int step = 0; step < 4; step++) {
        step_of_both(&pair, step);
    }
    net_free(&pair.other);
    setting_close(&pair.setting);
}

static shoal_status fail_once(void *context, shoal_tensor *leaf)
{
    bool *fails = context;
    shoal_status status = *fails ? SHOAL_ERR_INTERNAL : SHOAL_OK;
    (void)leaf;
    *fails = false;
    return status;
}

/* Both modules get other lanes and other memory, in the order in which each rank comes to them. */
TEST_RANKS(modules_come_in_any_order_after_a_failure, 2)
{
    struct pair pair;
    bool fails = false;
    REQUIRE(pair_open(self, &pair));
    /* The last parameter of the last module. */
    CHECK_OK(shoal_on_accumulated(self->rank == 0 ? pair.setting.net.params[4] : pair.other.params[4],
                                  fail_once, &fails, NULL));
    for (int round = 0; round < 3; round++) {
        if (round > 0) {
            step_of_both(&pair, 3 * round);
        }
        fails = true;
        CHECK_STATUS(backward_of_both(&pair, 1), SHOAL_ERR_INTERNAL);
        test_barrier(self);
        step_of_both(&pair, 3 * round + 2);
    }
    CHECK_INT(ddp_of(pair.setting.net.module)->lane.generation, 3);
    CHECK_INT(ddp_of(pair.other.module)->lane.generation, 3);
    net_free(&pair.other);
    setting_close(&pair.setting);
}

TEST_RANKS(two_modules_in_different_order, 2)
{
    struct pair pair;
    REQUIRE(pair_open(self, &pair));
    shoal_tensor *x = net_input(0, self->rank);
    shoal_tensor *losses[] = {shoal_module_call_one(pair.setting.net.module, x),
                              shoal_module_call_one(pair.other.module, x)};
    CHECK_STATUS(shoal_backward(losses[self->rank], NULL), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("rank 0 called the end of a backward pass through net (module 1), ");
    CHECK_ERROR_TEXT("rank 1 called the end of a backward pass through net (module 2)");
    CHECK(!strstr(shoal_error_text(), "(["));
    CHECK_ERROR_TEXT("in the same order");
    test_barrier(self);
    net_free(&pair.other);
    setting_close(&pair.setting);
}

/* Buckets that left before the difference was known end with it, instead of at the deadline. */
TEST_RANKS(gradients_of_modules_in_different_order, 2)
{
    struct pair pair;
    REQUIRE(pair_open(self, &pair));
    const struct net *nets[] = {&pair.setting.net, &pair.other};
    for (int step = 0; step < 2; step++) { /* the first one sends everything at its end */
        shoal_tensor *x = net_input(step, self->rank);
        shoal_tensor *losses[] = {shoal_module_call_one(nets[0]->module, x),
                                  shoal_module_call_one(nets[1]->module, x)};
        int first = step == 0 ? 0 : self->rank;
        CHECK_STATUS(shoal_backward(losses[first], NULL), step == 0 ? SHOAL_OK : SHOAL_ERR_MISMATCH);
        if (step == 0) {
            CHECK_OK(shoal_backward(losses[1], NULL));
            net_zero(&pair.setting.net);
            net_zero(&pair.other);
        }
    }
    for (int i = 0; i < NET_PARAMS; i++) {
        const shoal_tensor *grad = shoal_grad(nets[self->rank]->params[i]);
        shoal_status status = grad ? shoal_wait(grad) : SHOAL_OK;
        CHECK(status == SHOAL_OK || status == SHOAL_ERR_MISMATCH);
    }
    test_barrier(self);
    net_free(&pair.other);
    setting_close(&pair.setting);
}

/* One that comes to both modules is not one that comes to the first. */
TEST_RANKS(another_number_of_modules, 2)
{
    struct pair pair;
    REQUIRE(pair_open(self, &pair));
    shoal_tensor *x = net_input(0, self->rank);
    shoal_tensor *losses[] = {shoal_module_call_one(pair.setting.net.module, x),
                              shoal_module_call_one(pair.other.module, x)};
    CHECK_STATUS(shoal_backward_roots(losses, NULL, self->rank == 0 ? 2 : 1, NULL), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("through net (module 1), net (module 2)");
    test_barrier(self);
    net_free(&pair.other);
    setting_close(&pair.setting);
}

/* Each module has a lane of its own: what is done with one is compared with what others do with another. */
TEST_RANKS(another_module_is_clipped, 3)
{
    struct pair pair;
    REQUIRE(pair_open(self, &pair));
    shoal_module *const modules[] = {pair.setting.net.module, pair.other.module};
    CHECK_STATUS(shoal_ddp_clip_grad_value(modules[self->rank == 1], 1.0), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("rank 1 called clip_grad_value of net (max_value 1) (model 2 of this group)");
    CHECK_ERROR_TEXT("called clip_grad_value of net (max_value 1) (model 1 of this group)");
    test_barrier(self);
    net_free(&pair.other);
    setting_close(&pair.setting);
}

/* A forward that sends buffers, where others walk back. */
TEST_RANKS(a_forward_instead_of_a_backward, 2)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, NULL));
    CHECK_OK(shoal_module_add_buffer(s.net.module, "seen", shoal_full((int64_t[]){3}, 1, 1, SHOAL_F32)));
    REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.bucket_bytes = 1}));
    shoal_tensor *x = net_input(0, self->rank);
    shoal_tensor *loss = shoal_module_call_one(s.net.module, x);
    if (self->rank == 0) {
        CHECK_STATUS(shoal_backward(loss, NULL), SHOAL_ERR_MISMATCH);
    } else {
        shoal_status status = shoal_scope_begin();
        CHECK_OK(status);
        CHECK(shoal_module_call_one(s.net.module, x) == NULL);
        CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_MISMATCH);
    }
    CHECK_ERROR_TEXT("rank 0 called the end of a backward pass through net (module 1)");
    CHECK_ERROR_TEXT("rank 1 called buffers of net");
    test_barrier(self);
    setting_close(&s);
}

/* A module is wrapped, where others walk back one that is. */
TEST_RANKS(a_wrapping_instead_of_a_backward, 2)
{
    struct setting s;
    struct net other;
    REQUIRE(setting_open(self, &s, NULL));
    REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.bucket_bytes = 1}));
    net_make(&other, NULL, 7);
    CHECK_STATUS(self->rank == 0 ? net_backward(&s.net, 0, self->rank, 0)
                                 : net_wrap(&other, s.world, (shoal_ddp_options){.bucket_bytes = 1}),
                 SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("rank 0 called the end of a backward pass through net (module 1)");
    CHECK_ERROR_TEXT("rank 1 called shoal_ddp of net");
    test_barrier(self);
    net_free(&other);
    setting_close(&s);
}

/* Forwards of one module --------------------------------------------------------------------------------- */

/* Two losses of one module, the older one or the newer one first. */
static void walk_back_two(struct setting *s, int step, int first, shoal_status expected)
{
    shoal_tensor *losses[2];
    net_zero(&s->net);
    for (int i = 0; i < 2; i++) {
        losses[i] = shoal_module_call_one(s->net.module, net_input(step + i, s->self->rank));
    }
    CHECK_STATUS(shoal_backward(losses[first], NULL), expected);
    if (expected == SHOAL_OK) {
        CHECK_OK(shoal_backward(losses[1 - first], NULL));
    }
}

TEST_RANKS(two_losses_of_one_module_in_different_order, 2)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, NULL));
    REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.bucket_bytes = 1}));
    for (int step = 0; step < 2; step++) {
        walk_back_two(&s, 10 * step, 0, SHOAL_OK);
        walk_back_two(&s, 10 * step, 1, SHOAL_OK);
    }
    walk_back_two(&s, 20, self->rank, SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("rank 0 called gradient bucket of net for an older forward pass (1 newer left)");
    CHECK_ERROR_TEXT("rank 1 called gradient bucket of net,");
    test_barrier(self);
    setting_close(&s);
}

/* Rank 0 makes more forwards than the others: some that nobody walks back, and more of one loss. */
TEST_RANKS(forwards_that_only_one_rank_makes, 2)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, NULL));
    REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.bucket_bytes = 1}));
    for (int step = 0; step < 3; step++) {
        shoal_tensor *losses[2];
        size_t n = self->rank == 0 ? 2 : 1;
        if (self->rank == 0) {
            (void)shoal_module_call_one(s.net.module, net_input(step, 0)); /* stays recorded */
        }
        for (size_t i = 0; i < n; i++) {
            losses[i] = shoal_module_call_one(s.net.module, net_input(step + (int)i, self->rank));
        }
        if (self->rank == 0) { /* its record goes at once */
            CHECK_OK(shoal_scope_begin());
            (void)shoal_module_call_one(s.net.module, net_input(step, 0));
            CHECK_OK(shoal_scope_end());
        }
        CHECK_OK(shoal_backward_roots(losses, NULL, n, NULL));
    }
    test_barrier(self);
    setting_close(&s);
}

/* The other ranks do not arrive. The shortest of some times counts: the machine may be busy. */
TEST_RANKS(a_lane_that_failed_before_ends_the_wait_at_once, 2)
{
    struct pair pair;
    double shortest_s = 1e9;
    REQUIRE(pair_open(self, &pair));
    for (int i = 0; i < 5 && self->rank == 0; i++) {
        const struct ddp *ddp = ddp_of(pair.other.module);
        struct purpose purpose = {.id = PURPOSE_DDP_PASS, .words = "a test"};
        shoal_group *lane = ddp->lane.group;
        group_poison(lane, SHOAL_ERR_CANCELLED, "a reason");
        int64_t start_ns = clock_now_ns();
        CHECK_STATUS(ddp_order_compare(ddp->order.shared, &purpose, &lane, 1), SHOAL_ERR_CANCELLED);
        CHECK_ERROR_TEXT("a reason");
        double took_s = (double)(clock_now_ns() - start_ns) * 1e-9;
        shortest_s = took_s < shortest_s ? took_s : shortest_s;
    }
    CHECK(self->rank != 0 || shortest_s < 0.04);
    test_barrier(self);
    net_free(&pair.other);
    setting_close(&pair.setting);
}
