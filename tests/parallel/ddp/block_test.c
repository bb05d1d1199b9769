/* SPDX-License-Identifier: MIT */
/*
 * When the block of gradients is made: never by compiled steps, by each rank for itself when its first eager backward
 * pass begins, and shared by all at the end of the first synchronized one. A rank that cannot have it is an error on
 * all ranks, and the next backward pass works.
 */
#include "fixtures/on_device.h"

#include "comm/lane/handles.h"
#include "fixtures/ddp_net.h"
#include "parallel/ddp/agree.h"
#include "shoal/compile.h"
#include "shoal/window.h"

static struct ddp_buckets *buckets_of(const struct net *net)
{
    return &ddp_of(net->module)->buckets;
}

static void check_none(const struct net *net)
{
    const struct ddp *ddp = ddp_of(net->module);
    CHECK(!ddp->buckets.block && !ddp->buckets.is_shared);
    for (size_t i = 0; i < ddp->n_params; i++) {
        CHECK(!ddp->params[i].gradient);
    }
}

/* All gradients are in the block. */
static void check_all_in(const struct net *net)
{
    const char *block = shoal_symmetric_data(buckets_of(net)->block);
    REQUIRE(block != NULL);
    for (int i = 0; i < NET_PARAMS; i++) {
        const char *data = shoal_data(shoal_grad(net->params[i]));
        CHECK(data >= block && data < block + shoal_symmetric_bytes(buckets_of(net)->block));
    }
}

/* Compiled steps ----------------------------------------------------------------------------------------- */

static shoal_status step(void *context, shoal_tensor *const *inputs, size_t n_inputs, shoal_tensor **outputs,
                         size_t n_outputs)
{
    const struct net *net = context;
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = shoal_module_call_one(net->module, inputs[0]);
    return outputs[0] ? shoal_backward(outputs[0], NULL) : shoal_scope_error();
}

/* As net_backward. */
static shoal_status run_compiled(shoal_compiled *compiled, int number, int rank)
{
    shoal_tensor *loss = NULL;
    CHECK_OK(shoal_scope_begin());
    shoal_tensor *x = net_random((int64_t[]){NET_BATCH, NET_WIDTH}, 2, SHOAL_F32,
                                 (uint32_t)(number * 1000 + rank * 10 + 1));
    shoal_status status = shoal_compiled_run(compiled, &x, 1, &loss, 1);
    shoal_tensor_unref(loss);
    CHECK_OK(shoal_scope_end());
    return status;
}

static shoal_compiled *compile(struct setting *s)
{
    shoal_compiled *compiled = NULL;
    CHECK_OK(shoal_compile(s->world, step, &s->net, 1, NULL, &compiled));
    return compiled;
}

/* A step with the right bits; gradients that are there are added to. */
static void step_compiled(struct setting *s, shoal_compiled *compiled, int number)
{
    CHECK_OK(run_compiled(compiled, number, s->self->rank));
    setting_add(s, number, 0, NOBODY, 0.0);
    net_check(&s->net, s->alone, "compiled");
}

static void step_eager(struct setting *s, int number)
{
    CHECK_OK(net_backward(&s->net, number, s->self->rank, 0));
    setting_add(s, number, 0, NOBODY, 0.0);
    net_check(&s->net, s->alone, "eager");
}

static void zero(struct setting *s)
{
    net_zero(&s->net);
    net_alone_clear(s->alone);
}

TEST_RANKS(compiled_steps_have_none, 3)
{
    struct setting s;
    REQUIRE(setting_open_wrapped(self, &s, (shoal_ddp_options){.bucket_bytes = 1}));
    shoal_compiled *compiled = compile(&s);
    check_none(&s.net);
    for (int number = 0; number < 3; number++) {
        zero(&s);
        step_compiled(&s, compiled, number);
        check_none(&s.net);
    }
    CHECK_OK(shoal_ddp_clip_grad_norm(s.net.module, 1e9, 2, false, NULL));
    test_barrier(self); /* what is reset is aborted, also for who is late */
    CHECK_OK(shoal_ddp_reset(s.net.module));
    check_none(&s.net);
    shoal_compiled_free(compiled);
    setting_close(&s);
}

/* Each kind adds to what the other left; the block stays where it is. */
TEST_RANKS(eager_and_compiled_steps_take_turns, 2)
{
    struct setting s;
    REQUIRE(setting_open_wrapped(self, &s, (shoal_ddp_options){.bucket_bytes = 1}));
    shoal_compiled *compiled = compile(&s);
    step_compiled(&s, compiled, 0);
    check_none(&s.net);
    step_eager(&s, 1); /* the first */
    check_all_in(&s.net);
    const shoal_symmetric *block = buckets_of(&s.net)->block;
    CHECK(buckets_of(&s.net)->is_shared);
    step_compiled(&s, compiled, 2);
    zero(&s);
    step_compiled(&s, compiled, 3);
    zero(&s);
    step_eager(&s, 4);
    step_eager(&s, 5);
    check_all_in(&s.net);
    CHECK(buckets_of(&s.net)->block == block);
    shoal_compiled_free(compiled);
    setting_close(&s);
}

/* Without synchronization -------------------------------------------------------------------------------- */

/* Ranks make 0, 1 and 2 backward passes without synchronization first. Each has a block of its own then, where
   gradients stay. */
TEST_RANKS(local_backwards_before_the_first_synchronised_one, 3)
{
    struct setting s;
    REQUIRE(setting_open_wrapped(self, &s, (shoal_ddp_options){.bucket_bytes = SIZE_MAX}));
    CHECK_OK(shoal_ddp_set_sync(s.net.module, false));
    for (int micro = 0; micro < self->rank; micro++) {
        CHECK_OK(net_backward(&s.net, 0, self->rank, micro));
        check_all_in(&s.net);
        CHECK(ddp_of(s.net.module)->params[0].is_local);
    }
    CHECK((buckets_of(&s.net)->block != NULL) == (self->rank > 0));
    CHECK(!buckets_of(&s.net)->is_shared);
    const shoal_tensor *before = shoal_grad(s.net.params[0]);
    CHECK_OK(shoal_ddp_set_sync(s.net.module, true));
    CHECK_OK(net_backward(&s.net, 0, self->rank, self->rank));
    CHECK(buckets_of(&s.net)->is_shared);
    CHECK(self->rank == 0 || shoal_grad(s.net.params[0]) == before);
    check_all_in(&s.net);
    for (int part = 0; part < self->n_ranks; part++) {
        for (int micro = 0; micro <= part; micro++) {
            CHECK_OK(net_backward(&s.alone->net, 0, part, micro));
        }
        net_alone_take(s.alone, part);
    }
    net_alone_add_up(s.alone, self->n_ranks, 0.0);
    net_check(&s.net, s.alone, "local ones first");
    setting_step(&s, 1, "afterwards");
    setting_close(&s);
}

/* Nobody ever shares it. */
TEST_RANKS(a_block_that_is_never_shared, 2)
{
    for (int way = 0; way < 2; way++) {
        struct net net;
        shoal_world *world = rank_world_open(self, way);
        REQUIRE(world != NULL && CHECK_OK(shoal_scope_begin()));
        net_make(&net, NULL, 7);
        REQUIRE_OK(net_wrap(&net, world, (shoal_ddp_options){.bucket_bytes = 1}));
        CHECK_OK(shoal_ddp_set_sync(net.module, false));
        if (self->rank == 1) {
            union net_values values;
            CHECK_OK(net_backward(&net, 0, self->rank, 0));
            CHECK(net_copy_grad(&net, 0, &values));
            if (way == 1) {
                CHECK_OK(shoal_world_close(world));
            }
            CHECK_BYTES(shoal_data(shoal_grad(net.params[0])), &values, net_bytes(&net, 0));
        } else if (way == 1) {
            CHECK_OK(shoal_world_close(world));
        }
        net_free(&net);
        if (way == 0) {
            CHECK_OK(shoal_world_close(world));
        }
        CHECK_OK(shoal_scope_end());
    }
}

/* Failures ----------------------------------------------------------------------------------------------- */

/* Until it is discarded, whoever opens the block now is told that there is one of another size. */
static shoal_symmetric *hide_block(const struct net *net)
{
    const struct ddp *ddp = ddp_of(net->module);
    shoal_symmetric *hidden = NULL;
    shoal_symmetric *other = NULL;
    const size_t page = 1 << 16;
    /* Opened and discarded: the name is free. */
    CHECK_OK(symmetric_open_if_possible(ddp->lane.group, ddp->buckets.block_number, ddp->buckets.plan.bytes,
                                        &hidden));
    symmetric_discard(ddp->lane.group, hidden);
    CHECK_OK(symmetric_open_if_possible(ddp->lane.group, ddp->buckets.block_number,
                                        ddp->buckets.plan.bytes + page, &other));
    return other;
}

/* Rank 0 has no block, and goes on with memory of its own until the end. */
TEST_RANKS(a_rank_that_can_not_have_the_block, 3)
{
    struct setting s;
    REQUIRE(setting_open_wrapped(self, &s, (shoal_ddp_options){.bucket_bytes = 1}));
    shoal_group *lane = ddp_of(s.net.module)->lane.group;
    shoal_symmetric *other = NULL;
    if (self->rank > 0) {
        CHECK_OK(shoal_ddp_set_sync(s.net.module, false));
        CHECK_OK(net_backward(&s.net, 8, self->rank, 0));
        CHECK_OK(shoal_ddp_set_sync(s.net.module, true));
    }
    test_barrier(self);
    if (self->rank == 0) {
        other = hide_block(&s.net);
    }
    test_barrier(self);
    CHECK_STATUS(net_backward(&s.net, 9, self->rank, 0), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("symmetric_share: rank 0: ");
    CHECK((buckets_of(&s.net)->block != NULL) == (self->rank > 0));
    CHECK_STATUS(net_backward(&s.net, 9, self->rank, 0), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("failed backward pass left");
    symmetric_discard(lane, other);
    setting_step(&s, 0, "after a failure");
    check_all_in(&s.net);
    CHECK(buckets_of(&s.net)->is_shared);
    CHECK_INT(ddp_of(s.net.module)->lane.generation, 1);
    setting_step(&s, 1, "after a failure");
    setting_close(&s);
}

/* Local backward passes need nobody: gradients have memory of their own, and move when there is a block. */
TEST_RANKS(a_local_backward_without_a_block, 2)
{
    struct setting s;
    shoal_symmetric *other = NULL;
    REQUIRE(setting_open_wrapped(self, &s, (shoal_ddp_options){.bucket_bytes = 1}));
    shoal_group *lane = ddp_of(s.net.module)->lane.group;
    if (self->rank == 0) {
        other = hide_block(&s.net);
    }
    test_barrier(self);
    CHECK_OK(shoal_ddp_set_sync(s.net.module, false));
    CHECK_OK(net_backward(&s.net, 0, self->rank, 0));
    CHECK(!buckets_of(&s.net)->block);
    const shoal_tensor *before = shoal_grad(s.net.params[3]);
    test_barrier(self);
    symmetric_discard(lane, other);
    test_barrier(self);
    CHECK_OK(shoal_ddp_set_sync(s.net.module, true));
    CHECK_OK(net_backward(&s.net, 0, self->rank, 1));
    CHECK(shoal_grad(s.net.params[3]) == before);
    check_all_in(&s.net);
    for (int part = 0; part < self->n_ranks; part++) {
        CHECK_OK(net_backward(&s.alone->net, 0, part, 0));
        CHECK_OK(net_backward(&s.alone->net, 0, part, 1));
        net_alone_take(s.alone, part);
    }
    net_alone_add_up(s.alone, self->n_ranks, 0.0);
    net_check(&s.net, s.alone, "moved");
    CHECK_INT(ddp_of(s.net.module)->lane.generation, 0);
    setting_close(&s);
}

/* The backward pass of a step, whose k-th allocation fails; 0: none. */
static shoal_status backward_failing(struct net *net, int number, int rank, size_t k)
{
    net_zero(net);
    CHECK_OK(shoal_scope_begin());
    shoal_tensor *x = net_random((int64_t[]){NET_BATCH, NET_WIDTH}, 2, SHOAL_F32,
                                 (uint32_t)(number * 1000 + rank * 10 + 1));
    shoal_tensor *loss = shoal_module_call_one(net->module, x);
    test_fail_allocation(k, /*is_lasting=*/false);
    shoal_status status = shoal_backward(loss, NULL);
    test_fail_allocation(0, false);
    CHECK_OK(shoal_scope_end());
    return status;
}

/* However far the failing rank came: the other one hears of it, at the latest when that one begins again, and a later
   backward pass works on both. */
static void recover(struct setting *s, size_t k)
{
    shoal_status status = backward_failing(&s->net, 0, s->self->rank, s->self->rank == 1 ? k : 0);
    for (int attempt = 0; attempt < 3 && status != SHOAL_OK; attempt++) {
        CHECK(status == SHOAL_ERR_NO_MEMORY || (s->self->rank == 0 && status == SHOAL_ERR_CANCELLED));
        status = backward_failing(&s->net, 0, s->self->rank, 0);
    }
    CHECK_OK(status);
}

TEST_PROCESSES(memory_that_runs_out_on_one_rank, 2)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, NULL));
    for (size_t k = 1; k <= 120 && !test_has_failed(); k += test_time_scale() > 1 ? 5 : 1) {
        net_free(&s.net);
        net_make(&s.net, NULL, 7);
        REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.bucket_bytes = 1}));
        recover(&s, k);
        setting_step(&s, 1, "after a shortage");
        setting_step(&s, 2, "after a shortage");
    }
    setting_close(&s);
}

/* Wrapping ----------------------------------------------------------------------------------------------- */

/* Ranks compare one tensor; the k-th allocation of rank 1 fails (0: none does). */
static shoal_status agree_failing(struct rank *self, shoal_group *group, size_t k)
{
    uint64_t hash = 2;
    char name[] = "w";
    char *path = name;
    bool is_new = false;
    const shoal_ddp_options options = {.struct_size = sizeof options};
    struct ddp ddp = {.group = group};
    struct ddp_collector collector = {
        .ddp = &ddp,
        .options = &options,
        .again = &ddp,
        .list = {.hashes = &hash, .paths = &path, .are_new = &is_new, .n_tensors = 1}};
    test_fail_allocation(self->rank == 1 ? k : 0, /*is_lasting=*/false);
    return ddp_agree(&collector, group, SHOAL_OK);
}

/* A rank that has no memory for what the others say is no reason to wait for it. */
TEST_PROCESSES(ranks_agree_that_one_has_no_memory, 2)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, NULL));
    shoal_group *group = shoal_world_group(s.world);
    CHECK_OK(agree_failing(self, group, 0));
    CHECK_OK(agree_failing(self, group, 0));
    size_t n = test_count_allocations();
    test_fail_allocation(0, false);
    for (size_t k = 1; k <= (n == 2 ? 2 : 1); k++) { /* more: collectives also allocate */
        CHECK_STATUS(agree_failing(self, group, k), SHOAL_ERR_NO_MEMORY);
        test_fail_allocation(0, false);
        CHECK_ERROR_TEXT("rank 1: no memory for");
    }
    CHECK_OK(agree_failing(self, group, 0));
    setting_close(&s);
}

/* Ranks that differ -------------------------------------------------------------------------------------- */

TEST_RANKS(one_rank_is_compiled_and_one_is_not, 2)
{
    struct setting s;
    REQUIRE(setting_open_wrapped(self, &s, (shoal_ddp_options){.bucket_bytes = 1}));
    shoal_compiled *compiled = compile(&s);
    shoal_status status =
        self->rank == 0 ? net_backward(&s.net, 0, self->rank, 0) : run_compiled(compiled, 0, self->rank);
    CHECK_STATUS(status, SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("rank 0 called end of the backward pass of net");
    CHECK_ERROR_TEXT("rank 1 called comparison of plans");
    test_barrier(self);
    shoal_compiled_free(compiled);
    setting_close(&s);
}
