/* SPDX-License-Identifier: MIT */
/*
 * A GPT of ready-made modules on several ranks: a model that was sharded without memory begins with the values of one
 * that never was; compiled steps give the bits of eager ones, under DDP and sharded, with dropout; DDP and shards give
 * each other's bits; files with Hugging Face's names are loaded into shards.
 */
#include "fixtures/rank_world.h"
#include "fixtures/shared_directory.h"
#include "shoal/shoal.h"
#include "shoal_nn/modules.h"
#include "shoal_nn/nn.h"
#include "shoal_nn/optim.h"

#define INTS(...) ((int64_t[]){__VA_ARGS__})

enum {
    N_LAYERS = 2,
    WIDTH = 8,
    VOCABULARY = 19,
    CONTEXT = 6,
    BATCH = 2,
    N_STEPS = 3
};

enum wrapping {
    WRAP_NOTHING,
    WRAP_DDP,
    WRAP_SHARDS,
    WRAP_HALVES, /* shards, computed with in bf16 */
    WRAP_ZERO    /* whole parameters, and shards of gradients and moments */
};

static shoal_nn_gpt_options tiny(void)
{
    shoal_nn_gpt_options options = SHOAL_NN_GPT_OPTIONS_INIT;
    options.n_layers = N_LAYERS;
    options.width = WIDTH;
    options.n_heads = 2;
    options.context = CONTEXT;
    options.vocabulary = VOCABULARY;
    options.dropout = 0.2;
    options.seed = 3;
    return options;
}

static void shard(shoal_module *gpt, shoal_world *world, enum wrapping wrapping)
{
    shoal_fully_shard_options how = SHOAL_FULLY_SHARD_OPTIONS_INIT;
    how.group = shoal_world_group(world);
    if (wrapping == WRAP_HALVES) {
        how.param_dtype = SHOAL_BF16;
        how.reduce_dtype = SHOAL_F32;
    } else if (wrapping == WRAP_ZERO) {
        how.sharded = SHOAL_SHARDED_GRADIENTS;
    }
    for (int64_t i = 0; i < N_LAYERS; i++) {
        CHECK_OK(shoal_fully_shard(shoal_nn_gpt_block(gpt, i), &how));
    }
    CHECK_OK(shoal_fully_shard(gpt, &how));
}

static shoal_module *make_gpt(shoal_world *world, enum wrapping wrapping, shoal_device device)
{
    shoal_nn_gpt_options options = tiny();
    shoal_ddp_options ddp = SHOAL_DDP_OPTIONS_INIT;
    shoal_module *gpt = NULL;
    options.device = device;
    CHECK_OK(shoal_nn_gpt_create(&options, &gpt));
    ddp.group = shoal_world_group(world);
    if (wrapping == WRAP_DDP) {
        CHECK_OK(shoal_ddp(gpt, &ddp));
    } else if (wrapping != WRAP_NOTHING) {
        shard(gpt, world, wrapping);
    }
    return gpt;
}

/* Operations stay registered, once in a process. Once in a test: blocks are counted while no rank has others. */
static shoal_world *begin(struct rank *self)
{
    size_t n_before = test_live_blocks();
    test_barrier(self);
    CHECK_OK(shoal_nn_init());
    CHECK_OK(shoal_nn_set_threads(1));
    test_barrier(self);
    if (self->rank == 0 || self->is_process) {
        test_keep_blocks(test_live_blocks() - n_before);
    }
    test_barrier(self);
    shoal_world *world = rank_world_open(self, 0);
    CHECK_OK(shoal_scope_begin());
    return world;
}

static void end(shoal_world *world)
{
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

/* Collective: the whole parameter, in the scope. */
static shoal_tensor *whole(shoal_module *gpt, const char *path)
{
    shoal_tensor *own = shoal_module_parameter(gpt, path);
    shoal_shard_layout layout = SHOAL_SHARD_LAYOUT_INIT;
    if (!shoal_is_fully_sharded(gpt)) {
        return own;
    }
    shoal_fsdp_param *param = shoal_fully_shard_param(gpt, path);
    CHECK_OK(shoal_fsdp_get_layout(param, &layout));
    shoal_tensor *full = shoal_empty(layout.shape, layout.n_dims, SHOAL_F32);
    CHECK_OK(shoal_fsdp_gather(param, shoal_mutable_data(full), SHOAL_FSDP_ALL_RANKS));
    return full;
}

/* Every parameter of two models. Collective if one of them is sharded. */
struct comparison {
    shoal_module *got;
    shoal_module *want;
};

static shoal_status compare(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    const struct comparison *models = context;
    shoal_tensor *got = whole(models->got, entry->path);
    shoal_tensor *want = whole(models->want, entry->path);
    (void)next;
    CHECK_INT(shoal_tensor_count(got), shoal_tensor_count(want));
    CHECK_BYTES(shoal_data(got), shoal_data(want), (size_t)shoal_tensor_count(want) * sizeof(float));
    return test_has_failed() ? SHOAL_ERR_INTERNAL : SHOAL_OK;
}

static void compare_models(shoal_module *got, shoal_module *want)
{
    struct comparison models = {got, want};
    CHECK_OK(shoal_module_walk(want, SHOAL_WALK_PARAMETERS, compare, &models));
}

/* Training ----------------------------------------------------------------------------------------------- */

static shoal_status step(void *gpt, shoal_tensor *const *inputs, size_t n_inputs, shoal_tensor **outputs,
                         size_t n_outputs)
{
    shoal_tensor *logits = NULL;
    (void)n_inputs;
    (void)n_outputs;
    shoal_tensor *arguments[] = {inputs[0], inputs[2]};
    (void)shoal_module_call(gpt, arguments, 2, &logits, 1);
    outputs[0] = shoal_nn_cross_entropy(logits, inputs[1]);
    return shoal_backward(outputs[0], NULL);
}

struct batch {
    shoal_tensor *inputs[3]; /* tokens, targets, position */
};

static struct batch make_batch(int number, int rank)
{
    struct batch batch = {{shoal_empty(INTS(BATCH, CONTEXT), 2, SHOAL_I32),
                           shoal_empty(INTS(BATCH, CONTEXT), 2, SHOAL_I32),
                           shoal_empty(INTS(3), 1, SHOAL_I64)}};
    int32_t *tokens = shoal_mutable_data(batch.inputs[0]);
    int32_t *targets = shoal_mutable_data(batch.inputs[1]);
    int64_t *position = shoal_mutable_data(batch.inputs[2]);
    for (int i = 0; tokens && targets && i < BATCH * CONTEXT; i++) {
        tokens[i] = (i * 7 + number * 3 + rank * 5) % VOCABULARY;
        targets[i] = (tokens[i] * 2 + 1) % VOCABULARY;
    }
    if (position) {
        position[0] = 11;
        position[1] = number;
        position[2] = (int64_t)rank * BATCH;
    }
    return batch;
}

struct trained {
    shoal_module *gpt;
    shoal_nn_optimizer *optimizer;
    shoal_compiled *compiled; /* NULL: eager */
};

static struct trained make_trained(shoal_world *world, enum wrapping wrapping, bool is_compiled)
{
    struct trained trained = {.gpt = make_gpt(world, wrapping, SHOAL_CPU)};
    CHECK_OK(shoal_nn_adamw_create_for(trained.gpt, NULL, NULL, 0, &trained.optimizer));
    if (is_compiled) {
        CHECK_OK(shoal_compile(world, step, trained.gpt, 1, NULL, &trained.compiled));
    }
    return trained;
}

static void free_trained(struct trained *trained)
{
    shoal_compiled_free(trained->compiled);
    shoal_nn_optimizer_free(trained->optimizer);
    shoal_module_unref(trained->gpt);
}

/* Returns the loss of this rank. */
static float run_step(struct trained *trained, int number, int rank)
{
    shoal_tensor *loss = NULL;
    CHECK_OK(shoal_scope_begin());
    struct batch batch = make_batch(number, rank);
    if (trained->compiled) {
        CHECK_OK(shoal_compiled_run(trained->compiled, batch.inputs, 3, &loss, 1));
    } else {
        CHECK_OK(step(trained->gpt, batch.inputs, 3, &loss, 1));
    }
    const float *data = loss ? shoal_data(loss) : NULL;
    float value = data ? *data : -1.0F;
    if (trained->compiled) {
        shoal_tensor_unref(loss);
    }
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_nn_optimizer_step(trained->optimizer));
    CHECK_OK(shoal_nn_optimizer_zero_grad(trained->optimizer));
    return value;
}

/* Two ways to train, step by step: the same losses and the same parameters. */
static void check_same(struct rank *self, struct trained (*make)(shoal_world *world, bool is_second))
{
    shoal_world *world = begin(self);
    struct trained first = make(world, false);
    struct trained second = make(world, true);
    for (int i = 0; i < N_STEPS && !test_has_failed(); i++) {
        float losses[] = {run_step(&first, i, self->rank), run_step(&second, i, self->rank)};
        CHECK_BYTES(&losses[1], &losses[0], sizeof(losses[0]));
    }
    compare_models(second.gpt, first.gpt);
    free_trained(&first);
    free_trained(&second);
    end(world);
}

static struct trained make_ddp(shoal_world *world, bool is_second)
{
    return make_trained(world, WRAP_DDP, is_second);
}

static struct trained make_shards(shoal_world *world, bool is_second)
{
    return make_trained(world, WRAP_SHARDS, is_second);
}

static struct trained make_halves(shoal_world *world, bool is_second)
{
    return make_trained(world, WRAP_HALVES, is_second);
}

static struct trained make_zero(shoal_world *world, bool is_second)
{
    return make_trained(world, is_second ? WRAP_ZERO : WRAP_DDP, is_second);
}

static struct trained make_either(shoal_world *world, bool is_second)
{
    return make_trained(world, is_second ? WRAP_DDP : WRAP_SHARDS, false);
}

TEST_RANKS(compiled_ddp_has_the_bits_of_eager_ddp, 2)
{
    check_same(self, make_ddp);
}

TEST_RANKS(compiled_shards_have_the_bits_of_eager_shards, 2)
{
    check_same(self, make_shards);
}

TEST_RANKS(compiled_halves_have_the_bits_of_eager_halves, 2)
{
    check_same(self, make_halves);
}

TEST_RANKS(compiled_zero_has_the_bits_of_eager_ddp, 2)
{
    check_same(self, make_zero);
}

TEST_RANKS(shards_have_the_bits_of_ddp, 3)
{
    check_same(self, make_either);
}

/* Initial values ----------------------------------------------------------------------------------------- */

TEST_RANKS(shards_without_memory_begin_as_whole_models_do, 3)
{
    shoal_world *world = begin(self);
    shoal_module *plain = make_gpt(world, WRAP_NOTHING, SHOAL_CPU);
    shoal_module *cut_later = make_gpt(world, WRAP_SHARDS, SHOAL_META);
    CHECK_OK(shoal_nn_initialize_modules(cut_later, tiny().seed));
    shoal_fsdp *fsdp = NULL;
    CHECK_OK(shoal_fully_shard_context(cut_later, &fsdp));
    compare_models(cut_later, plain);
    shoal_module_unref(plain);
    shoal_module_unref(cut_later);
    end(world);
}

/* Files of Hugging Face ---------------------------------------------------------------------------------- */

struct file {
    char names[64][96];
    const char *pointers[64];
    shoal_tensor *tensors[64];
    size_t n;
    size_t n_skipped; /* characters of each name that are left out */
};

static void add_to_file(struct file *file, const char *name, shoal_tensor *tensor)
{
    (void)snprintf(file->names[file->n], sizeof(file->names[0]), "%s", name);
    file->pointers[file->n] = file->names[file->n];
    file->tensors[file->n++] = tensor;
}

static shoal_status collect(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct file *file = context;
    (void)next;
    add_to_file(file, entry->path + file->n_skipped, entry->tensor);
    return SHOAL_OK;
}

/* Rank 0 writes a model with other values, as transformers or the hub names them, and a mask. */
static void write_file(shoal_module *gpt, const char *path, bool has_prefix)
{
    struct file file = {.n_skipped = has_prefix ? 0 : strlen("transformer.")};
    const char *const metadata[] = {"format", "pt", NULL};
    CHECK_OK(shoal_nn_initialize_modules(gpt, 77));
    CHECK_OK(shoal_module_walk(gpt, SHOAL_WALK_PARAMETERS, collect, &file));
    add_to_file(&file, has_prefix ? "transformer.h.0.attn.bias" : "h.0.attn.bias",
                shoal_full(INTS(1, 1, CONTEXT, CONTEXT), 4, 1.0, SHOAL_F32));
    CHECK_OK(shoal_safetensors_save(path, file.pointers, file.tensors, file.n, metadata));
}

static void check_loaded(struct rank *self, bool has_prefix)
{
    shoal_world *world = begin(self);
    const char *directory = share_directory(self);
    shoal_module *written = make_gpt(world, WRAP_NOTHING, SHOAL_CPU);
    shoal_module *loaded = make_gpt(world, WRAP_SHARDS, SHOAL_META);
    shoal_checkpoint_load_options how = SHOAL_CHECKPOINT_LOAD_OPTIONS_INIT;
    shoal_items *items = NULL;
    if (self->rank == 0) {
        write_file(written, inside(directory, "model.safetensors"), has_prefix);
    }
    CHECK_OK(shoal_nn_initialize_modules(written, 77));
    test_barrier(self);
    CHECK_OK(shoal_items_create(&items));
    CHECK_OK(shoal_nn_gpt_add_items(loaded, items));
    CHECK_STATUS(shoal_checkpoint_load(shoal_world_group(world), directory, items, &how, NULL),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("h.0.attn.bias");
    how.allows_unexpected = true;
    CHECK_OK(shoal_checkpoint_load(shoal_world_group(world), directory, items, &how, NULL));
    shoal_items_free(items);
    shoal_fsdp *fsdp = NULL;
    CHECK_OK(shoal_fully_shard_context(loaded, &fsdp));
    compare_models(loaded, written);
    shoal_module_unref(written);
    shoal_module_unref(loaded);
    remove_directory(self, directory);
    end(world);
}

TEST_RANKS(files_of_transformers_are_loaded, 2)
{
    check_loaded(self, true);
}

TEST_RANKS(files_of_the_hub_are_loaded, 2)
{
    check_loaded(self, false);
}

/* What such a list saves, lists without aliases load, and the other way round. */
static void check_round_trip(struct rank *self, shoal_checkpoint_format format)
{
    shoal_world *world = begin(self);
    shoal_group *group = shoal_world_group(world);
    const char *directory = share_directory(self);
    shoal_checkpoint_options options = SHOAL_CHECKPOINT_OPTIONS_INIT;
    shoal_module *models[] = {make_gpt(world, WRAP_SHARDS, SHOAL_CPU),
                              make_gpt(world, WRAP_NOTHING, SHOAL_CPU)};
    shoal_items *lists[2] = {NULL};
    CHECK_OK(shoal_items_create(&lists[0]));
    CHECK_OK(shoal_items_create(&lists[1]));
    CHECK_OK(shoal_nn_gpt_add_items(models[0], lists[0]));
    CHECK_OK(shoal_items_add_module(lists[1], "", models[1]));
    options.format = format;
    for (int i = 0; i < 2; i++) {
        CHECK_OK(shoal_nn_initialize_modules(models[i], 50 + (uint64_t)i));
        options.step = i;
        CHECK_OK(shoal_checkpoint_save(group, directory, lists[i], &options));
        CHECK_OK(shoal_checkpoint_load(group, directory, lists[1 - i], NULL, NULL));
        compare_models(models[0], models[1]);
    }
    for (int i = 0; i < 2; i++) {
        shoal_items_free(lists[i]);
        shoal_module_unref(models[i]);
    }
    remove_directory(self, directory);
    end(world);
}

TEST_RANKS(lists_with_aliases_save_and_load_wholes, 2)
{
    check_round_trip(self, SHOAL_CHECKPOINT_WHOLE);
}

TEST_RANKS(lists_with_aliases_save_and_load_pieces, 2)
{
    check_round_trip(self, SHOAL_CHECKPOINT_PIECES);
}

TEST_RANKS(a_list_needs_a_gpt, 1)
{
    shoal_world *world = begin(self);
    shoal_module *gpt = make_gpt(world, WRAP_NOTHING, SHOAL_CPU);
    shoal_items *items = NULL;
    CHECK_OK(shoal_items_create(&items));
    CHECK_STATUS(shoal_nn_gpt_add_items(shoal_nn_gpt_block(gpt, 0), items), SHOAL_ERR_INVALID);
    CHECK_STRING(shoal_error_text(),
                 "nn_gpt_add_items: gpt: a module \"block\", which shoal_nn_gpt_create did not make");
    CHECK_STATUS(shoal_nn_gpt_add_items(NULL, items), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_nn_gpt_add_items(gpt, NULL), SHOAL_ERR_INVALID);
    CHECK_INT(shoal_items_count(items), 0);
    shoal_items_free(items);
    shoal_module_unref(gpt);
    end(world);
}
