/* SPDX-License-Identifier: MIT */
/*
 * Extensions of gathers in a model on several meshes (mesh_stage.h): int8 by rows on units that are everywhere, on pairs
 * of ranks, on rows of replicas and on one that is not cut, and bf16 of all ranks at once on another pair. Gradients are
 * added up over micro-batches. It has the bits of one process that encodes and decodes; a capture is refused between
 * two micro-batches and changes nothing; checkpoints have the shards before they are encoded, and training goes on from
 * them.
 */
#include "fixtures/int8_rows.h"
#include "fixtures/mesh_stage.h"
#include "fixtures/shared_directory.h"
#include "harness/harness.h"
#include "shoal/checkpoint.h"
#include "shoal/compile.h"
#include "shoal/items.h"

enum {
    WHOLE_LAYER = 4 /* its extension is not by rows */
};

static const shoal_fully_shard_options plain = {.struct_size = sizeof plain};
static const shoal_fully_shard_options mixed = {.struct_size = sizeof mixed,
                                                .param_dtype = SHOAL_BF16,
                                                .reduce_dtype = SHOAL_F32,
                                                .reshard = SHOAL_RESHARD_ALWAYS};

static shoal_gather_extension extension_of(int layer, int n_shards, shoal_gather_buffer buffers[2])
{
    static _Thread_local struct int8_rows context;
    size_t chunk = (size_t)((NET_BATCH + n_shards - 1) / n_shards);
    bool is_whole = layer == WHOLE_LAYER;
    buffers[0] = is_whole ? (shoal_gather_buffer){SHOAL_BF16, chunk * NET_WIDTH}
                          : (shoal_gather_buffer){SHOAL_I8, NET_WIDTH};
    buffers[1] = (shoal_gather_buffer){SHOAL_F32, 1};
    return (shoal_gather_extension){.struct_size = sizeof(shoal_gather_extension),
                                    .name = is_whole ? "bf16" : "int8",
                                    .is_by_rows = !is_whole,
                                    .n_buffers = is_whole ? 1 : 2,
                                    .buffers = buffers,
                                    .encode = is_whole ? bf16_encode : int8_encode,
                                    .decode = is_whole ? bf16_decode : int8_decode,
                                    .context = &context};
}

/* All layers have one; the last has the weight of the first. */
static bool extend(struct stage *stage, struct net *net, const int *n_shards)
{
    bool is_right = true;
    (void)stage;
    for (int i = 0; i < STAGE_LAYERS - 1; i++) {
        shoal_gather_buffer buffers[2];
        char path[16];
        (void)snprintf(path, sizeof path, "%d.weight", i);
        shoal_gather_extension extension = extension_of(i, n_shards[i], buffers);
        is_right =
            CHECK_OK(shoal_fsdp_set_gather_extension(shoal_fully_shard_param(net->root, path), &extension)) &&
            is_right;
    }
    return is_right;
}

static bool open_stage(struct stage *stage, struct rank *self, int round,
                       const shoal_fully_shard_options *base)
{
    if (!stage_begin(stage, self, round)) {
        return false;
    }
    stage->is_wide = true;
    stage->extend = extend;
    stage_make_net(stage, &stage->sharded);
    return stage_shard(stage, &stage->sharded, stage_kinds, base);
}

static void close_stage(struct stage *stage)
{
    stage_close(stage);
    (void)CHECK_OK(shoal_world_close(stage->world));
}

/* What is computed with is not what the shards have: otherwise nothing below would say anything. */
static void check_rounded(struct stage *stage)
{
    shoal_fsdp_unit *unit = shoal_fully_shard_unit(stage->sharded.layers[1], false);
    float exact[NET_BATCH * NET_WIDTH];
    (void)CHECK_OK(shoal_scope_begin());
    (void)CHECK_OK(shoal_fsdp_gather(shoal_fully_shard_param(stage->sharded.root, "1.weight"), exact,
                                     SHOAL_FSDP_ALL_RANKS));
    (void)CHECK_OK(shoal_fsdp_unshard(unit));
    (void)CHECK_OK(shoal_fsdp_wait(unit));
    shoal_tensor *whole =
        shoal_to_dtype(shoal_module_parameter(stage->sharded.layers[1], "weight"), SHOAL_F32);
    const float *seen = shoal_data(whole);
    (void)CHECK_INT(shoal_tensor_count(whole), NET_BATCH * NET_WIDTH);
    int n_rounded = 0;
    for (int i = 0; seen && i < NET_BATCH * NET_WIDTH; i++) {
        n_rounded += seen[i] != exact[i];
    }
    CHECK(n_rounded > 0);
    (void)CHECK_OK(shoal_fsdp_reshard(unit));
    (void)CHECK_OK(shoal_scope_end());
}

/* Bits --------------------------------------------------------------------------------------------------------- */

static void check_bits(struct rank *self)
{
    static const shoal_fully_shard_options others[] = {
        {.struct_size = sizeof others[0], .reshard = SHOAL_RESHARD_NEVER, .max_reduces = 2},
        {.struct_size = sizeof others[0], .reshard = SHOAL_RESHARD_PARTLY, .reshard_ranks = 2},
        {.struct_size = sizeof others[0], .sharded = SHOAL_SHARDED_STATE},
        {.struct_size = sizeof others[0], .sharded = SHOAL_SHARDED_GRADIENTS, .forward_prefetch = 2}};
    const shoal_fully_shard_options *const settings[] = {&plain,     &mixed,     &others[0],
                                                         &others[1], &others[2], &others[3]};
    for (size_t i = 0; i < sizeof settings / sizeof settings[0] && !test_has_failed(); i++) {
        struct stage stage;
        REQUIRE(open_stage(&stage, self, 0, settings[i]) && stage_make_pairs(&stage, settings[i]));
        stage_train(&stage, 3);
        check_rounded(&stage);
        close_stage(&stage);
    }
}

TEST_RANKS(bits_of_four, 4)
{
    check_bits(self);
}

TEST_RANKS(bits_of_six, 6)
{
    check_bits(self);
}

/* Captures ----------------------------------------------------------------------------------------------------- */

static shoal_status step_to_compile(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                    shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = net_loss(context, inputs[0]);
    return shoal_backward(outputs[0], NULL);
}

/* Either for the extension, or, first of all, for gradients that wait to be reduced. */
static void check_refused(shoal_compiled *compiled, bool has_pending)
{
    shoal_tensor *loss = NULL;
    (void)CHECK_OK(shoal_scope_begin());
    shoal_tensor *x = net_input(0, 0);
    (void)CHECK_STATUS(shoal_compiled_run(compiled, &x, 1, &loss, 1),
                       has_pending ? SHOAL_ERR_STATE : SHOAL_ERR_UNSUPPORTED);
    (void)CHECK_ERROR_TEXT(has_pending ? "gradients of earlier backward passes wait to be reduced"
                                       : "shoal_fsdp_set_gather_extension cannot be captured");
    CHECK(!loss);
    (void)CHECK_OK(shoal_scope_end());
}

TEST_RANKS(a_capture_is_refused_between_micro_batches, 4)
{
    struct stage stage;
    shoal_compiled *compiled = NULL;
    REQUIRE(open_stage(&stage, self, 0, &mixed) && stage_make_pairs(&stage, &mixed));
    REQUIRE_OK(shoal_compile(stage.world, step_to_compile, &stage.sharded, 1, NULL, &compiled));
    check_refused(compiled, false);
    for (int step = 0; step < 2 && !test_has_failed(); step++) {
        shoal_fsdp_unit *all = shoal_fully_shard_unit(stage.sharded.root, true);
        for (int micro = 0; micro < STAGE_MICRO; micro++) {
            (void)CHECK_OK(shoal_fsdp_set_sync(all, micro == STAGE_MICRO - 1));
            (void)net_pass(&stage.sharded, 10 * step + micro, self->rank);
            check_refused(compiled, micro < STAGE_MICRO - 1);
        }
        stage_pass_alone(&stage, step);
        net_check_same(&stage.sharded, &stage.pairs[self->rank / 2]);
        net_update(&stage.sharded, 0.1F);
        for (int i = 0; i < self->n_ranks / 2; i++) {
            net_update(&stage.pairs[i], 0.1F);
        }
    }
    shoal_compiled_free(compiled);
    close_stage(&stage);
}

/* Checkpoints -------------------------------------------------------------------------------------------------- */

static shoal_items *make_items(struct stage *stage)
{
    shoal_items *items = NULL;
    (void)(CHECK_OK(shoal_items_create(&items)) &&
           CHECK_OK(shoal_items_add_module(items, "", stage->sharded.root)));
    return items;
}

/* On so many of the ranks: the values are those of one process, and training goes on from them. */
static void load(struct rank *self, int n_ranks, const struct stage *saved, const char *directory)
{
    struct rank part = *self;
    struct stage stage;
    shoal_checkpoint_load_options options = SHOAL_CHECKPOINT_LOAD_OPTIONS_INIT;
    part.n_ranks = n_ranks;
    REQUIRE(open_stage(&stage, &part, n_ranks, &mixed));
    shoal_items *items = make_items(&stage);
    options.allows_unexpected = n_ranks < self->n_ranks; /* the last expert */
    (void)CHECK_OK(shoal_checkpoint_load(shoal_world_group(stage.world), directory, items, &options, NULL));
    shoal_items_free(items);
    net_check_same(&stage.sharded, (struct net *)&saved->pairs[self->rank / 2]);
    memcpy(stage.pairs, saved->pairs, sizeof stage.pairs);
    stage_train(&stage, n_ranks == self->n_ranks ? 2 : 0);
    memset(stage.pairs, 0, sizeof stage.pairs);
    (void)stage_pass_micro(&stage.sharded, 7, self->rank);
    check_rounded(&stage);
    close_stage(&stage);
}

TEST_RANKS(saved_on_six_and_loaded_on_four_and_six, 6)
{
    struct stage stage;
    const char *directory = share_directory(self);
    REQUIRE(open_stage(&stage, self, 0, &mixed) && stage_make_pairs(&stage, &mixed));
    stage_train(&stage, 2);
    shoal_items *items = make_items(&stage);
    (void)CHECK_OK(shoal_checkpoint_save(shoal_world_group(stage.world), directory, items, NULL));
    shoal_items_free(items);
    test_barrier(self);
    if (self->rank < 4) {
        load(self, 4, &stage, directory);
    }
    test_barrier(self);
    load(self, 6, &stage, directory);
    close_stage(&stage);
    test_barrier(self);
    remove_directory(self, directory);
}
