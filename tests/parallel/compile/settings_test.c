/* SPDX-License-Identifier: MIT */
/* Compiled steps beside eager ones while settings, frozen parameters and gradients change between runs, and kinds
   of shards. */
#include "fixtures/compiled_pair.h"

/* Settings that change between runs */

static void set_sync(struct pair *pair, enum wrapping wrapping, bool is_on)
{
    struct net *nets[] = {&pair->eager, &pair->other};
    for (int i = 0; i < 2; i++) {
        (void)CHECK_OK(wrapping == WRAP_DDP
                           ? shoal_ddp_set_sync(nets[i]->root, is_on)
                           : shoal_fsdp_set_sync(shoal_fully_shard_unit(nets[i]->root, true), is_on));
    }
}

/* Gradients of some runs add up before those of the last one are reduced with them. */
static void microbatches(const struct rank *self, enum wrapping wrapping, int n_without)
{
    struct pair pair;
    if (pair_begin(&pair, self, wrapping, NULL)) {
        for (int i = 0; i < 3; i++) {
            for (int k = 0; k <= n_without; k++) {
                set_sync(&pair, wrapping, k == n_without);
                pair_run(&pair, 10 * i + k, NET_BATCH);
            }
            pair_update(&pair);
        }
        (void)CHECK_INT(pair_count_compiles(&pair), n_without + 1);
    }
    pair_end(&pair);
}

TEST_RANKS(one_without_synchronisation_ddp, 2)
{
    microbatches(self, WRAP_DDP, 1);
}

TEST_RANKS(two_without_synchronisation_ddp, 2)
{
    microbatches(self, WRAP_DDP, 2);
}

TEST_RANKS(one_without_synchronisation_shards, 2)
{
    microbatches(self, WRAP_SHARDS, 1);
}

TEST_RANKS(two_without_synchronisation_shards, 2)
{
    microbatches(self, WRAP_SHARDS, 2);
}

static void freeze(struct pair *pair, const char *path, bool is_on)
{
    (void)CHECK_OK(shoal_set_requires_grad(shoal_module_parameter(pair->eager.root, path), is_on));
    (void)CHECK_OK(shoal_set_requires_grad(shoal_module_parameter(pair->other.root, path), is_on));
}

TEST_RANKS(shards_are_frozen_and_thawed, 2)
{
    struct pair pair;
    if (pair_begin(&pair, self, WRAP_SHARDS, NULL)) {
        freeze(&pair, "1.weight", false);
        for (int i = 0; i < 5; i++) {
            pair_run(&pair, i, NET_BATCH);
            pair_update(&pair);
            freeze(&pair, "1.weight", i % 2 == 0);
        }
    }
    pair_end(&pair);
}

/* Gradients that the user sets: local ones, of the same kind as the averaged ones of a compiled step. */
static void set_local(struct net *net, int rank)
{
    size_t n;
    shoal_tensor *const *parameters = shoal_module_parameters(net->root, &n);
    for (size_t i = 0; i < n; i++) {
        shoal_tensor *local =
            net_numbers((uint32_t)(300 + 10 * (int)i + rank), shoal_tensor_shape(parameters[i]),
                        shoal_tensor_n_dims(parameters[i]));
        (void)CHECK_OK(shoal_set_grad(parameters[i], local));
    }
}

TEST_RANKS(local_gradients_after_averaged_ones, 2)
{
    struct pair pair;
    if (pair_begin(&pair, self, WRAP_DDP, NULL)) {
        pair_run(&pair, 0, NET_BATCH);
        pair_run(&pair, 1, NET_BATCH); /* adds to averaged ones */
        set_local(&pair.eager, self->rank);
        set_local(&pair.other, self->rank);
        pair_run(&pair, 2, NET_BATCH);
        pair_update(&pair);
        pair_run(&pair, 3, NET_BATCH);
        pair_run(&pair, 4, NET_BATCH);
        pair_update(&pair);
    }
    pair_end(&pair);
}

static void write_zeros(struct net *net)
{
    size_t n;
    shoal_tensor *const *parameters = shoal_module_parameters(net->root, &n);
    for (size_t i = 0; i < n; i++) {
        shoal_tensor *gradient = shoal_grad(parameters[i]);
        float *values = gradient ? shoal_mutable_data(gradient) : NULL;
        for (int64_t k = 0; values && k < shoal_tensor_count(gradient); k++) {
            values[k] = 0.0F;
        }
    }
}

/* A gradient that DDP owns was averaged, and a compiled step has added to it; then zeros are written there, and a
   backward pass without synchronization leaves a local one in the same place. */
TEST_RANKS(local_gradients_where_averaged_ones_were, 3)
{
    struct pair pair;
    if (pair_begin(&pair, self, WRAP_DDP, NULL)) {
        CHECK(net_pass(&pair.eager, 0, self->rank));
        CHECK(net_pass(&pair.other, 0, self->rank));
        pair_run(&pair, 1, NET_BATCH);
        write_zeros(&pair.eager);
        write_zeros(&pair.other);
        set_sync(&pair, WRAP_DDP, false);
        CHECK(net_pass(&pair.eager, 2, self->rank));
        CHECK(net_pass(&pair.other, 2, self->rank));
        set_sync(&pair, WRAP_DDP, true);
        pair_run(&pair, 3, NET_BATCH);
        pair_update(&pair);
    }
    pair_end(&pair);
}

TEST_RANKS(gradients_are_clipped, 2)
{
    struct pair pair;
    if (pair_begin(&pair, self, WRAP_DDP, NULL)) {
        for (int i = 0; i < 4; i++) {
            double a = 0;
            double b = 0;
            pair_run(&pair, i, NET_BATCH);
            (void)CHECK_OK(shoal_ddp_clip_grad_norm(pair.eager.root, 0.1, 2, true, &a));
            (void)CHECK_OK(shoal_ddp_clip_grad_norm(pair.other.root, 0.1, 2, true, &b));
            CHECK(a == b);
            pair_check(&pair);
            if (i % 2) {
                pair_update(&pair);
            }
        }
    }
    pair_end(&pair);
}

TEST_RANKS(empty_batches, 2)
{
    struct pair pair;
    if (pair_begin(&pair, self, WRAP_DDP, NULL)) {
        pair_run(&pair, 0, 0);
        set_local(&pair.eager, self->rank);
        set_local(&pair.other, self->rank);
        pair_run(&pair, 1, NET_BATCH);
    }
    pair_end(&pair);
    if (pair_begin(&pair, self, WRAP_SHARDS, NULL)) {
        pair_run(&pair, 0, 0);
    }
    pair_end(&pair);
}

/* Other shards */

static shoal_tensor *twice(shoal_module *root, shoal_tensor *x)
{
    x = net_call(root, "1", net_call(root, "0", x));
    return net_call(root, "2", net_call(root, "0", net_call(root, "1", x)));
}

static shoal_tensor *again(shoal_module *root, shoal_tensor *x)
{
    x = net_recompute(shoal_module_child(root, "0"), x);
    x = net_recompute(shoal_module_child(root, "1"), x);
    return net_recompute(shoal_module_child(root, "0"), net_call(root, "2", x));
}

static const shoal_fully_shard_options kinds[] = {
    {.reshard = SHOAL_RESHARD_NEVER}, {.reshard = SHOAL_RESHARD_ALWAYS},
    {.param_dtype = SHOAL_BF16},      {.param_dtype = SHOAL_BF16, .reduce_dtype = SHOAL_F32},
    {.is_replicated = true},          {.reduce_dtype = SHOAL_F64},
};

static void train_kinds(const struct rank *self, net_function function)
{
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        struct pair pair;
        if (pair_begin_net(&pair, self, WRAP_SHARDS, &kinds[k], function, NULL)) {
            for (int i = 0; i < 4; i++) {
                pair_run(&pair, i, NET_BATCH);
                if (i % 2) {
                    pair_update(&pair);
                }
            }
        }
        pair_end(&pair);
        if (test_has_failed()) {
            test_failed(__FILE__, __LINE__, "kind %zu", k);
            return;
        }
    }
}

TEST_RANKS(kinds_of_shards, 3)
{
    train_kinds(self, NULL);
}

TEST_RANKS(kinds_of_shards_twice, 3)
{
    train_kinds(self, twice);
}

TEST_RANKS(kinds_of_shards_again, 4)
{
    train_kinds(self, again);
}

/* Two steps on one model, and a world that closes first. */

TEST_RANKS(two_steps_on_one_model, 2)
{
    for (int w = WRAP_DDP; w <= WRAP_SHARDS; w++) {
        struct pair pair;
        if (pair_begin(&pair, self, (enum wrapping)w, NULL)) {
            shoal_compiled *second = NULL;
            (void)CHECK_OK(shoal_compile(pair.world, pair_step, &pair.other, 1, NULL, &second));
            for (int i = 0; i < 6; i++) {
                pair_run(&pair, i, NET_BATCH);
                shoal_compiled *first = pair.compiled;
                pair.compiled = second;
                second = first;
                if (i % 3 == 2) {
                    pair_update(&pair);
                }
            }
            shoal_compiled_free(second);
            pair_check(&pair);
        }
        pair_end(&pair);
    }
}

TEST_RANKS(the_world_closes_first, 2)
{
    for (int w = WRAP_DDP; w <= WRAP_SHARDS; w++) {
        struct pair pair;
        if (pair_begin(&pair, self, (enum wrapping)w, NULL)) {
            shoal_tensor *x = net_input(7, self->rank);
            shoal_tensor *out = NULL;
            pair_run(&pair, 0, NET_BATCH);
            (void)CHECK_OK(shoal_world_close(pair.world));
            CHECK(shoal_compiled_run(pair.compiled, &x, 1, &out, 1) != SHOAL_OK);
            CHECK(out == NULL);
            net_update(&pair.other, 0.1F);
            CHECK(shoal_compiled_run(pair.compiled, &x, 1, &out, 1) != SHOAL_OK);
            net_free(&pair.eager);
            net_free(&pair.other);
            shoal_compiled_free(pair.compiled);
            (void)CHECK_OK(shoal_scope_end());
        }
    }
}

TEST_RANKS(local_gradients_after_eager_ones, 2)
{
    struct pair pair;
    if (pair_begin(&pair, self, WRAP_DDP, NULL)) {
        (void)net_pass(&pair.eager, 0, self->rank);
        (void)net_pass(&pair.other, 0, self->rank);
        pair_check(&pair);
        pair_run(&pair, 1, NET_BATCH); /* adds to averaged ones */
        set_local(&pair.eager, self->rank);
        set_local(&pair.other, self->rank);
        pair_run(&pair, 2, NET_BATCH);
        pair_update(&pair);
    }
    pair_end(&pair);
}
