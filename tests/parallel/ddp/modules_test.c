/* SPDX-License-Identifier: MIT */
/*
 * Distributed data parallelism and the rest of the library: recomputing, freezing, values when a module is wrapped,
 * clipping, the other machine that keeps whole parameters, several modules, groups of some ranks, large buckets.
 */
#include <math.h>

#include "fixtures/on_device.h"

#include "fixtures/ddp_net.h"
#include "parallel/ddp/ddp.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof(array)[0]))

static const shoal_dtype mixed[NET_BLOCKS] = {SHOAL_F32, SHOAL_BF16, SHOAL_F64, SHOAL_F16};

/* Recomputing -------------------------------------------------------------------------------------------- */

/* A block that is used twice inside shoal_recompute gets its gradient in two pieces: it leaves after the second. */
TEST_RANKS(gradients_that_come_in_pieces, 2)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, NULL));
    REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.first_bucket_bytes = 1, .bucket_bytes = 1}));
    s.net.is_recomputed = true;
    s.alone->net.is_recomputed = true;
    s.net.is_forked[2] = true; /* used first of all, and last */
    s.alone->net.is_forked[2] = true;
    for (int step = 0; step < 3; step++) {
        setting_step(&s, step, "in pieces");
    }
    /* More pieces than ever before: its own has left by then. */
    s.net.is_forked[0] = true;
    CHECK_STATUS(net_backward(&s.net, 3, self->rank, 0), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("b0.");
    test_barrier(self); /* who begins again ends what the others are in */
    s.alone->net.is_forked[0] = true;
    for (int step = 4; step < 6; step++) {
        setting_step(&s, step, "in more pieces");
    }
    /* Fewer do no harm. */
    s.net.is_forked[0] = false;
    s.alone->net.is_forked[0] = false;
    setting_step(&s, 6, "in fewer pieces");
    setting_close(&s);
}

/* Frozen and ignored ------------------------------------------------------------------------------------- */

TEST_RANKS(frozen_parameters, 2)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, NULL));
    CHECK_OK(shoal_set_requires_grad(s.net.params[0], false));
    CHECK_OK(shoal_set_requires_grad(s.alone->net.params[0], false));
    REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.bucket_bytes = 1}));
    CHECK_OK(net_backward(&s.net, 0, self->rank, 0));
    CHECK_INT(ddp_of(s.net.module)->n_params, NET_PARAMS - 1);
    CHECK(!shoal_grad(s.net.params[0]) && shoal_grad(s.net.params[1]));
    /* Later, and thawed again. */
    CHECK_OK(shoal_set_requires_grad(s.net.params[5], false));
    CHECK_OK(net_backward(&s.net, 1, self->rank, 0));
    CHECK(!shoal_grad(s.net.params[5]));
    CHECK_OK(shoal_set_requires_grad(s.net.params[5], true));
    for (int i = 1; i < NET_PARAMS; i++) {
        CHECK_OK(shoal_set_grad(s.net.params[i], NULL));
    }
    CHECK_OK(net_backward(&s.net, 2, self->rank, 0));
    for (int part = 0; part < self->n_ranks; part++) {
        CHECK_OK(net_backward(&s.alone->net, 2, part, 0));
        s.alone->has_part[part][0] = false;
        for (int i = 1; i < NET_PARAMS; i++) {
            s.alone->has_part[part][i] = net_copy_grad(&s.alone->net, i, &s.alone->parts[part][i]);
            CHECK_OK(shoal_set_grad(s.alone->net.params[i], NULL));
        }
    }
    net_alone_add_up(s.alone, self->n_ranks, 0.0);
    net_check(&s.net, s.alone, "thawed");
    /* One that was frozen from the beginning is wrapped when it is thawed. */
    CHECK_OK(shoal_set_requires_grad(s.net.params[0], true));
    CHECK_OK(shoal_set_requires_grad(s.alone->net.params[0], true));
    setting_step(&s, 3, "thawed for the first time");
    CHECK_INT(ddp_of(s.net.module)->n_params, NET_PARAMS);
    setting_close(&s);
}

TEST_RANKS(ignored_parameters_are_the_ranks_own, 2)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, NULL));
    shoal_tensor *ignored[] = {s.net.params[2], s.net.params[3]};
    float *own = shoal_mutable_data(s.net.params[2]);
    own[0] = (float)self->rank;
    REQUIRE_OK(net_wrap(&s.net, s.world,
                        (shoal_ddp_options){.bucket_bytes = 1, .ignored = ignored, .n_ignored = 2}));
    CHECK_DOUBLE((double)own[0], self->rank);
    CHECK_OK(net_backward(&s.net, 0, self->rank, 0));
    ((float *)shoal_mutable_data(s.alone->net.params[2]))[0] = (float)self->rank;
    CHECK_OK(net_backward(&s.alone->net, 0, self->rank, 0));
    for (int i = 2; i < 4; i++) {
        CHECK_BYTES(shoal_data(shoal_grad(s.net.params[i])), shoal_data(shoal_grad(s.alone->net.params[i])),
                    net_bytes(&s.net, i));
    }
    setting_close(&s);
}

/* Values at wrapping ------------------------------------------------------------------------------------- */

TEST_RANKS(parameters_and_buffers_become_those_of_the_first_rank, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL && CHECK_OK(shoal_scope_begin()));
    for (int keeps = 0; keeps < 2; keeps++) {
        struct net net;
        struct net expected;
        net_make(&net, mixed, 50U + (uint32_t)self->rank);
        net_make(&expected, mixed, keeps ? 50U + (uint32_t)self->rank : 50U);
        CHECK_OK(shoal_set_requires_grad(net.params[4], false));
        /* A buffer of integers, and one that is not contiguous. */
        shoal_tensor *numbers = shoal_full((int64_t[]){3}, 1, self->rank + 1, SHOAL_I16);
        shoal_tensor *wide = shoal_full((int64_t[]){4, 3}, 2, self->rank + 1, SHOAL_F32);
        CHECK_OK(shoal_module_add_buffer(net.module, "numbers", numbers));
        CHECK_OK(shoal_module_add_buffer(net.blocks[1], "narrow", shoal_narrow(wide, 1, 1, 1)));
        uint64_t version = shoal_tensor_version(net.params[0]);
        REQUIRE_OK(net_wrap(&net, world, (shoal_ddp_options){.keeps_parameters = keeps}));
        CHECK(shoal_ddp_is_wrapped(net.module) && !shoal_ddp_is_wrapped(net.blocks[0]));
        net_check_values(&net, &expected);
        int from = keeps ? self->rank : 0;
        CHECK_INT(((const int16_t *)shoal_data(numbers))[2], from + 1);
        const float *rows = shoal_data(wide);
        for (int i = 0; i < 12; i++) {
            CHECK_DOUBLE((double)rows[i], i % 3 == 1 ? from + 1 : self->rank + 1);
        }
        CHECK((shoal_tensor_version(net.params[0]) != version) == (!keeps && self->rank > 0));
        net_free(&net);
        net_free(&expected);
    }
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

/* Clipping ----------------------------------------------------------------------------------------------- */

TEST_RANKS(clipping, 3)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, NULL));
    REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.bucket_bytes = 1}));
    double norm = -1;
    CHECK_OK(shoal_ddp_clip_grad_norm(s.net.module, 1, 2, false, &norm)); /* no gradients */
    CHECK_DOUBLE(norm, 0);
    setting_step(&s, 0, "before clipping");
    long double sum = 0;
    for (int i = 0; i < NET_PARAMS; i++) {
        for (size_t k = 0; k < net_count(&s.net, i); k++) {
            sum += (long double)s.alone->total[i].f32[k] * (long double)s.alone->total[i].f32[k];
        }
    }
    CHECK_OK(shoal_ddp_clip_grad_norm(s.net.module, 1e9, 2, false, &norm));
    CHECK_DOUBLE(norm, sqrt((double)sum));
    net_check(&s.net, s.alone, "a norm that is small enough");
    CHECK_OK(shoal_ddp_clip_grad_norm(s.net.module, norm / 4, 2, false, NULL));
    float factor = (float)(norm / 4 / (norm + 1e-6));
    for (int i = 0; i < NET_PARAMS; i++) {
        for (size_t k = 0; k < net_count(&s.net, i); k++) {
            s.alone->total[i].f32[k] *= factor;
        }
    }
    net_check(&s.net, s.alone, "clipped");
    /* What was clipped is added to, not forgotten. */
    CHECK_OK(net_backward(&s.net, 1, self->rank, 0));
    setting_add(&s, 1, 0, NOBODY, 0.0);
    net_check(&s.net, s.alone, "added to what was clipped");
    CHECK_OK(shoal_ddp_set_sync(s.net.module, false));
    CHECK_OK(net_backward(&s.net, 2, self->rank, 0));
    CHECK_STATUS(shoal_ddp_clip_grad_norm(s.net.module, 1, 2, false, NULL), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("b0.weight");
    CHECK_STATUS(shoal_ddp_clip_grad_norm(s.net.module, -1, 2, false, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_ddp_clip_grad_norm(s.net.module, (double)NAN, 2, false, NULL), SHOAL_ERR_INVALID);
    setting_close(&s);
}

TEST_RANKS(clipping_by_other_norms_and_by_value, 3)
{
    struct setting s;
    double norm = -1;
    float largest = 0;
    long double sum = 0;
    REQUIRE(setting_open(self, &s, NULL));
    REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.bucket_bytes = 1}));
    CHECK_OK(shoal_ddp_clip_grad_norm(s.net.module, 1, 1, true, &norm)); /* no gradients */
    CHECK_DOUBLE(norm, 0);
    CHECK_OK(shoal_ddp_clip_grad_value(s.net.module, 1));
    setting_step(&s, 0, "before clipping");
    for (int i = 0; i < NET_PARAMS; i++) {
        for (size_t k = 0; k < net_count(&s.net, i); k++) {
            sum += fabsl((long double)s.alone->total[i].f32[k]);
            largest = fmaxf(largest, fabsf(s.alone->total[i].f32[k]));
        }
    }
    CHECK_OK(shoal_ddp_clip_grad_norm(s.net.module, 1e9, 1, true, &norm));
    CHECK_DOUBLE(norm, (double)sum);
    CHECK_OK(shoal_ddp_clip_grad_norm(s.net.module, 1e9, (double)INFINITY, true, &norm));
    CHECK_DOUBLE(norm, (double)largest);
    net_check(&s.net, s.alone, "norms that are small enough");
    CHECK_OK(shoal_ddp_clip_grad_norm(s.net.module, norm / 4, 1, false, NULL));
    float factor = (float)(norm / 4 / ((double)sum + 1e-6));
    float limit = largest * factor / 2;
    CHECK_OK(shoal_ddp_clip_grad_value(s.net.module, (double)limit));
    for (int i = 0; i < NET_PARAMS; i++) {
        for (size_t k = 0; k < net_count(&s.net, i); k++) {
            float scaled = s.alone->total[i].f32[k] * factor;
            s.alone->total[i].f32[k] = fminf(fmaxf(scaled, -limit), limit);
        }
    }
    net_check(&s.net, s.alone, "clipped");
    shoal_tensor *gradient = shoal_grad(s.net.params[1]);
    *(float *)shoal_mutable_data(gradient) = NAN;
    CHECK_STATUS(shoal_ddp_clip_grad_norm(s.net.module, 1, 2, true, NULL), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("ddp_clip_grad_norm: the norm of the gradients is");
    CHECK_STATUS(shoal_ddp_clip_grad_norm(s.net.module, 1, -1, true, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_ddp_clip_grad_value(s.net.module, -1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("ddp_clip_grad_value: max_value is -1");
    CHECK_OK(shoal_ddp_set_sync(s.net.module, false));
    CHECK_OK(net_backward(&s.net, 2, self->rank, 0));
    CHECK_STATUS(shoal_ddp_clip_grad_value(s.net.module, 1), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("b0.weight");
    setting_close(&s);
}

/* The other machine that keeps whole parameters: same gradients, same bits. */
static void reduce_by_fsdp(struct setting *s, shoal_fsdp *fsdp, int step)
{
    CHECK_OK(net_backward(&s->alone->net, step, s->self->rank, 0));
    CHECK_OK(shoal_fsdp_pre_forward(fsdp, 0));
    CHECK_OK(shoal_fsdp_post_forward(fsdp, 0));
    CHECK_OK(shoal_fsdp_pre_backward(fsdp, 0));
    for (int i = 0; i < NET_PARAMS; i++) {
        memcpy(shoal_fsdp_grad(fsdp, i), shoal_data(shoal_grad(s->alone->net.params[i])),
               net_bytes(&s->net, i));
    }
    CHECK_OK(shoal_fsdp_post_backward(fsdp, 0));
    CHECK_OK(shoal_fsdp_end_backward(fsdp));
    net_zero(&s->alone->net);
}

TEST_RANKS(replicas_of_the_sharding_machine_agree, 3)
{
    struct setting s;
    shoal_fsdp *fsdp = NULL;
    REQUIRE(setting_open(self, &s, NULL));
    REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.bucket_bytes = 100}));
    REQUIRE_OK(shoal_fsdp_create_replicated(shoal_world_group(s.world), NULL, &fsdp));
    for (int i = 0; i < NET_PARAMS; i++) {
        const shoal_tensor *param = s.net.params[i];
        CHECK_OK(shoal_fsdp_add_param(fsdp, 0, "w", SHOAL_F32, shoal_tensor_n_dims(param),
                                      shoal_tensor_shape(param), shoal_data(param), NULL));
    }
    for (int step = 0; step < 3; step++) { /* without zeroing: sums of averages */
        CHECK_OK(net_backward(&s.net, step, self->rank, 0));
        reduce_by_fsdp(&s, fsdp, step);
        for (int i = 0; i < NET_PARAMS; i++) {
            shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
            CHECK_OK(shoal_fsdp_update_shard(fsdp, i, &shard));
            CHECK_BYTES(shoal_data(shoal_grad(s.net.params[i])), shard.grad, net_bytes(&s.net, i));
        }
    }
    double norms[2];
    CHECK_OK(shoal_ddp_clip_grad_norm(s.net.module, 0.01, 2, false, &norms[0]));
    CHECK_OK(shoal_fsdp_clip_grad_norm(fsdp, 0.01, 2.0, false, &norms[1]));
    CHECK_DOUBLE(norms[0], norms[1]);
    shoal_fsdp_free(fsdp);
    setting_close(&s);
}

/* Several ------------------------------------------------------------------------------------------------- */

/* Two modules on one group, in one backward pass and in their own. */
TEST_RANKS(two_modules, 2)
{
    struct setting s;
    struct net other;
    REQUIRE(setting_open(self, &s, NULL));
    net_make(&other, NULL, 900);
    REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.bucket_bytes = 1}));
    REQUIRE_OK(net_wrap(&other, s.world, (shoal_ddp_options){.bucket_bytes = 100}));
    CHECK(ddp_of(s.net.module)->lane.group != ddp_of(other.module)->lane.group);
    for (int step = 0; step < 3; step++) {
        net_zero(&s.net);
        net_zero(&other);
        net_alone_clear(s.alone);
        shoal_tensor *x = net_random((int64_t[]){NET_BATCH, NET_WIDTH}, 2, SHOAL_F32,
                                     (uint32_t)(step * 1000 + self->rank * 10 + 1));
        shoal_tensor *losses[] = {shoal_module_call_one(s.net.module, x),
                                  shoal_module_call_one(other.module, x)};
        CHECK_OK(shoal_backward_roots(losses, NULL, 2, NULL));
        setting_add(&s, step, 0, NOBODY, 0.0);
        net_check(&s.net, s.alone, "one of two");
    }
    net_free(&other);
    /* The number of a lane is used again. */
    net_make(&other, NULL, 900);
    const shoal_group *lane = ddp_of(s.net.module)->lane.group;
    net_free(&s.net);
    net_make(&s.net, NULL, 7);
    REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.bucket_bytes = 1}));
    CHECK(ddp_of(s.net.module)->lane.group == lane);
    setting_step(&s, 3, "wrapped again");
    net_free(&other);
    setting_close(&s);
}

/* Buckets that are large enough to be reduced where they lie. */
TEST_RANKS(large_buckets, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL && CHECK_OK(shoal_scope_begin()));
    shoal_module *module = large_make(world);
    for (int step = 0; step < 4; step++) {
        large_step(self, module, step);
    }
    shoal_module_unref(module);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

/* Between two parts that are wrapped lies one that is fully sharded, and ignored. */
TEST_RANKS(around_a_fully_sharded_part, 3)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, NULL));
    CHECK_OK(shoal_fully_shard(s.net.blocks[3],
                               &(shoal_fully_shard_options){.struct_size = sizeof(shoal_fully_shard_options),
                                                            .group = shoal_world_group(s.world)}));
    s.net.params[6] = shoal_module_parameter(s.net.blocks[3], "weight");
    s.net.params[7] = shoal_module_parameter(s.net.blocks[3], "bias");
    CHECK_STATUS(net_wrap(&s.net, s.world, (shoal_ddp_options){.ignored = &s.net.params[6], .n_ignored = 1}),
                 SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("bias");
    REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.ignored = &s.net.params[6], .n_ignored = 2}));
    CHECK_INT(ddp_of(s.net.module)->n_params, NET_PARAMS - 2);
    for (int step = 0; step < 3; step++) {
        union net_values whole;
        net_zero(&s.net);
        net_alone_clear(s.alone);
        CHECK_OK(net_backward(&s.net, step, self->rank, 0));
        setting_add(&s, step, 0, NOBODY, 0.0);
        for (int i = 0; i < NET_PARAMS - 2; i++) {
            CHECK_BYTES(shoal_data(shoal_grad(s.net.params[i])), &s.alone->total[i], net_bytes(&s.net, i));
        }
        net_give_total(s.alone);
        CHECK_OK(net_update(&s.net));
        CHECK_OK(net_update(&s.alone->net));
        net_zero(&s.alone->net);
        for (int i = 6; i < 8; i++) {
            CHECK_OK(shoal_fsdp_gather(shoal_fully_shard_param(s.net.blocks[3], i == 6 ? "weight" : "bias"),
                                       &whole, SHOAL_FSDP_ALL_RANKS));
            CHECK_BYTES(&whole, shoal_data(s.alone->net.params[i]), net_bytes(&s.alone->net, i));
        }
    }
    setting_close(&s);
}

/* Part of the ranks, and a tag that is as long as tags can be. */
TEST_RANKS(a_group_of_some_ranks, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    shoal_group *group;
    struct net net;
    REQUIRE(world != NULL && CHECK_OK(shoal_scope_begin()));
    if (self->rank != 1) {
        char tag[65];
        memset(tag, 'x', sizeof tag);
        tag[64] = '\0';
        REQUIRE_OK(shoal_group_create(world, (int[]){2, 0}, 2, tag, &group));
        net_make(&net, NULL, (uint32_t)self->rank);
        REQUIRE_OK(shoal_ddp(net.module,
                             &(shoal_ddp_options){.struct_size = sizeof(shoal_ddp_options), .group = group}));
        for (int step = 0; step < 3; step++) {
            struct net_alone *alone = calloc(1, sizeof *alone);
            net_zero(&net);
            CHECK_OK(net_backward(&net, step, self->rank, 0));
            net_make(&alone->net, NULL, 2); /* of the group's first rank */
            for (int part = 0; part < 2; part++) {
                CHECK_OK(net_backward(&alone->net, step, part == 0 ? 2 : 0, 0));
                net_alone_take(alone, part);
            }
            net_alone_add_up(alone, 2, 0.0);
            net_check(&net, alone, "a group of two");
            net_free(&alone->net);
            free(alone);
        }
        net_free(&net);
    }
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}
