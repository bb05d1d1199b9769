/* SPDX-License-Identifier: MIT */
/*
 * Buffers of modules that are wrapped: the first rank's before every forward that a synchronized backward pass can
 * follow, and nobody's business otherwise. And backward passes that fail before a parameter heard of them, while
 * other ranks wait.
 */
#include "fixtures/on_device.h"

#include "fixtures/ddp_net.h"
#include "parallel/ddp/ddp.h"
#include "tensor/scope.h"

/* Two buffers: of numbers, and one that is not contiguous inside of another tensor. */
struct buffers {
    shoal_tensor *numbers; /* [3], i16 */
    shoal_tensor *wide;    /* [4, 3], f32: column 1 is the buffer */
};

static void add_buffers(struct net *net, struct buffers *buffers, int value)
{
    *buffers = (struct buffers){.numbers = shoal_full((int64_t[]){3}, 1, value, SHOAL_I16),
                                .wide = shoal_full((int64_t[]){4, 3}, 2, value, SHOAL_F32)};
    CHECK_OK(shoal_module_add_buffer(net->module, "numbers", buffers->numbers));
    CHECK_OK(shoal_module_add_buffer(net->module, "empty", shoal_zeros((int64_t[]){0}, 1, SHOAL_F32)));
    CHECK_OK(shoal_module_add_buffer(net->blocks[1], "narrow", shoal_narrow(buffers->wide, 1, 1, 1)));
}

static void write_buffers(struct buffers *buffers, int value)
{
    int16_t *numbers = shoal_mutable_data(buffers->numbers);
    float *rows = shoal_mutable_data(buffers->wide);
    for (int i = 0; i < 12; i++) {
        numbers[i % 3] = (int16_t)value;
        rows[i] = (float)value;
    }
}

/* What is not the buffer is still this rank's. */
static void check_buffers(struct buffers *buffers, int value, int outside)
{
    const int16_t *numbers = shoal_data(buffers->numbers);
    const float *rows = shoal_data(buffers->wide);
    for (int i = 0; i < 12; i++) {
        CHECK_INT(numbers[i % 3], value);
        CHECK_DOUBLE((double)rows[i], i % 3 == 1 ? value : outside);
    }
}

TEST_RANKS(buffers_are_those_of_the_first_rank, 3)
{
    for (int keeps = 0; keeps < 4; keeps++) {
        struct setting s;
        struct buffers buffers;
        bool keeps_parameters = keeps % 2 == 1;
        bool keeps_buffers = keeps / 2 == 1;
        REQUIRE(setting_open(self, &s, NULL));
        add_buffers(&s.net, &buffers, 10 + self->rank);
        REQUIRE_OK(net_wrap(
            &s.net, s.world,
            (shoal_ddp_options){.keeps_parameters = keeps_parameters, .keeps_buffers = keeps_buffers}));
        check_buffers(&buffers, keeps_parameters ? 10 + self->rank : 10, 10 + self->rank);
        for (int step = 0; step < 3; step++) {
            int mine = 100 * step + self->rank;
            write_buffers(&buffers, mine);
            setting_step(&s, step, "with buffers");
            check_buffers(&buffers, keeps_buffers ? mine : 100 * step, mine);
        }
        setting_close(&s);
    }
}

/* Without gradients, or without synchronization, ranks call as often as they like. */
TEST_RANKS(forwards_that_talk_to_nobody, 3)
{
    struct setting s;
    struct buffers buffers;
    REQUIRE(setting_open(self, &s, NULL));
    add_buffers(&s.net, &buffers, 0);
    REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.bucket_bytes = 1}));
    write_buffers(&buffers, self->rank);
    CHECK_OK(shoal_scope_begin());
    CHECK_OK(shoal_scope_set_grad(false));
    for (int i = 0; i < self->rank; i++) {
        CHECK(shoal_module_call_one(s.net.module,
                                    net_random((int64_t[]){NET_BATCH, NET_WIDTH}, 2, SHOAL_F32, 7)) != NULL);
    }
    CHECK_OK(shoal_scope_end());
    check_buffers(&buffers, self->rank, self->rank);
    CHECK_OK(shoal_ddp_set_sync(s.net.module, false));
    for (int i = 0; i < self->rank; i++) {
        CHECK_OK(net_backward(&s.net, i, self->rank, 0));
    }
    check_buffers(&buffers, self->rank, self->rank);
    CHECK_OK(shoal_ddp_set_sync(s.net.module, true));
    setting_step(&s, 1, "afterwards");
    check_buffers(&buffers, 0, self->rank);
    setting_close(&s);
}

/* Values that are the same already are not written: what was recorded with them can still be walked back. */
TEST_RANKS(buffers_that_are_the_same_stay_as_they_are, 2)
{
    TEST_NEEDS_HOST(); /* what a device has is not looked at */
    struct setting s;
    REQUIRE(setting_open(self, &s, NULL));
    shoal_tensor *mask = shoal_full((int64_t[]){NET_WIDTH}, 1, 2.0, SHOAL_F32);
    CHECK_OK(shoal_module_add_buffer(s.net.module, "mask", mask));
    REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.bucket_bytes = 1}));
    uint64_t version = shoal_tensor_version(mask);
    setting_step(&s, 0, "with a mask");
    setting_step(&s, 1, "with a mask");
    CHECK(shoal_tensor_version(mask) == version);
    /* Another tensor in its place, of another size. */
    shoal_tensor *other = shoal_full((int64_t[]){NET_WIDTH + 100}, 1, self->rank, SHOAL_F32);
    CHECK_OK(shoal_module_set_buffer(s.net.module, "mask", other));
    setting_step(&s, 2, "with another mask");
    CHECK_DOUBLE((double)((const float *)shoal_data(other))[NET_WIDTH + 99], 0.0);
    setting_close(&s);
}

/* What cannot be sent is an error on every rank, not a rank that waits. */
TEST_RANKS(buffers_that_can_not_be_sent, 2)
{
    struct setting s;
    struct buffers buffers;
    REQUIRE(setting_open(self, &s, NULL));
    add_buffers(&s.net, &buffers, 1);
    REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.bucket_bytes = 1}));
    setting_step(&s, 0, "before");
    if (self->rank == 0) {
        CHECK_OK(shoal_module_set_buffer(s.net.module, "numbers",
                                         shoal_empty_on((int64_t[]){3}, 1, SHOAL_I16, SHOAL_META)));
    }
    shoal_status status = net_backward(&s.net, 1, self->rank, 0);
    CHECK_INT(status, self->rank == 0 ? SHOAL_ERR_UNSUPPORTED : SHOAL_ERR_CANCELLED);
    CHECK_ERROR_TEXT(self->rank == 0 ? "buffer numbers is on device meta" : "its buffers cannot be sent");
    /* A module that is wrapped anew has another lane. */
    struct net again;
    net_make(&again, NULL, 7);
    net_free(&s.net);
    CHECK_OK(shoal_module_add_buffer(again.module, "numbers", shoal_full((int64_t[]){3}, 1, 1, SHOAL_I16)));
    REQUIRE_OK(net_wrap(&again, s.world, (shoal_ddp_options){.bucket_bytes = 1}));
    CHECK_OK(net_backward(&again, 1, self->rank, 0));
    s.net = again;
    s.net.module = again.module;
    setting_close(&s);
}

TEST_RANKS(ranks_that_differ_in_buffers_are_refused, 2)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, NULL));
    CHECK_STATUS(net_wrap(&s.net, s.world, (shoal_ddp_options){.keeps_buffers = self->rank == 1}),
                 SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("keeps_buffers");
    if (self->rank == 0) {
        CHECK_OK(shoal_module_add_buffer(s.net.module, "n", shoal_full((int64_t[]){3}, 1, 1, SHOAL_I16)));
    }
    CHECK_STATUS(net_wrap(&s.net, s.world, (shoal_ddp_options){.keeps_parameters = true}),
                 SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("whether there are buffers");
    setting_close(&s);
}

static shoal_status step_scarcely(void *context)
{
    struct setting *s = context;
    net_zero(&s->net);
    return net_backward(&s->net, 0, 0, 0);
}

/* Without memory a forward fails; the lane, of one rank, with it, but nothing is lost. */
TEST_RANKS(buffers_without_memory, 1)
{
    struct setting s;
    struct buffers buffers;
    REQUIRE(setting_open(self, &s, NULL));
    add_buffers(&s.net, &buffers, 1);
    for (size_t k = 1; k < 12; k++) {
        REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.bucket_bytes = 1}));
        test_fail_allocation(k, false);
        shoal_status status = step_scarcely(&s);
        test_fail_allocation(0, false);
        CHECK(status == SHOAL_OK || status == SHOAL_ERR_NO_MEMORY);
        net_free(&s.net);
        net_make(&s.net, NULL, 7);
        add_buffers(&s.net, &buffers, 1);
    }
    REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.bucket_bytes = 1}));
    setting_step(&s, 0, "with memory");
    setting_close(&s);
}

/* Failures that no parameter heard of -------------------------------------------------------------------- */

static shoal_tensor *fail_at_once(void *context, shoal_tensor *gradient)
{
    (void)context;
    (void)gradient;
    (void)scope_fail(error_set(SHOAL_ERR_INTERNAL, "the loss has no gradient"));
    return NULL;
}

/* The loss is walked back first, so that nothing of the module is reached. */
static shoal_status fail_early(struct net *net, int step, int rank)
{
    CHECK_OK(shoal_scope_begin());
    shoal_tensor *x =
        net_random((int64_t[]){NET_BATCH, NET_WIDTH}, 2, SHOAL_F32, (uint32_t)(step * 1000 + rank * 10 + 1));
    shoal_tensor *loss = shoal_mul_scalar(shoal_module_call_one(net->module, x), 2.0);
    CHECK_OK(shoal_on_gradient(loss, fail_at_once, NULL, NULL));
    shoal_status status = shoal_backward(loss, NULL);
    (void)!shoal_scope_end();
    return status;
}

enum recovery {
    BEGIN_AGAIN,
    RESET_FIRST
};

static void check_early(struct rank *self, enum recovery recovery, bool has_buffers, int n_failing)
{
    struct setting s;
    struct buffers buffers;
    REQUIRE(setting_open(self, &s, NULL));
    if (has_buffers) {
        add_buffers(&s.net, &buffers, 1);
    }
    REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.first_bucket_bytes = 1, .bucket_bytes = 1}));
    for (int round = 0; round < 2; round++) {
        setting_step(&s, 0, "before a failure");
        setting_step(&s, 1, "before a failure");
        net_zero(&s.net);
        if (self->rank < n_failing) {
            CHECK_STATUS(fail_early(&s.net, 2, self->rank), SHOAL_ERR_INTERNAL);
            if (recovery == RESET_FIRST) {
                CHECK_OK(shoal_ddp_reset(s.net.module));
            }
        } else {
            CHECK_STATUS(net_backward(&s.net, 2, self->rank, 0), SHOAL_ERR_CANCELLED);
            CHECK_ERROR_TEXT("abandoned a backward pass");
        }
        setting_step(&s, 3, "after a failure");
        CHECK_INT(ddp_of(s.net.module)->lane.generation, round + 1);
    }
    setting_close(&s);
}

TEST_RANKS(a_backward_that_fails_before_the_first_gradient, 3)
{
    check_early(self, BEGIN_AGAIN, false, 1);
    check_early(self, BEGIN_AGAIN, false, 2);
}

TEST_RANKS(a_backward_that_fails_before_the_first_gradient_is_reset, 2)
{
    check_early(self, RESET_FIRST, false, 1);
}

/* The next forward would wait for ranks that wait for this one. */
TEST_RANKS(a_backward_that_fails_before_the_first_gradient_with_buffers, 3)
{
    check_early(self, BEGIN_AGAIN, true, 1);
}

TEST_RANKS(all_backwards_fail_before_the_first_gradient, 2)
{
    check_early(self, BEGIN_AGAIN, true, 2);
}

/* Without synchronization it is nobody's business. */
TEST_RANKS(a_failure_without_synchronisation_is_local, 2)
{
    struct setting s;
    REQUIRE(setting_open_wrapped(self, &s, (shoal_ddp_options){.bucket_bytes = 1}));
    setting_step(&s, 0, "before");
    if (self->rank == 1) {
        net_zero(&s.net);
        CHECK_OK(shoal_ddp_set_sync(s.net.module, false));
        CHECK_STATUS(fail_early(&s.net, 1, 1), SHOAL_ERR_INTERNAL);
        CHECK_OK(shoal_ddp_set_sync(s.net.module, true));
    }
    setting_step(&s, 2, "after");
    CHECK_INT(ddp_of(s.net.module)->lane.generation, 0);
    setting_close(&s);
}
