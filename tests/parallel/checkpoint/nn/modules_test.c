/* SPDX-License-Identifier: MIT */
/*
 * Modules that are saved in one way of sharding on some ranks, and loaded in another on others: every element of every
 * parameter and of every moment of AdamW has the bits that were saved. Elements are told by path and place in the whole.
 *
 * `make test` tries seeded pairs, SHOAL_TEST_SWEEP=whole all of them.
 */
#include <string.h>

#include "base/hash.h"
#include "checkpoint/items/items.h"
#include "fixtures/checkpoint_stage.h"
#include "fixtures/module_bench.h"
#include "shoal/checkpoint.h"
#include "shoal/ddp.h"
#include "shoal/mesh.h"
#include "shoal_nn/optim.h"
#include "tensor/dtype.h"

enum {
    MAX_RANKS = STAGE_MAX_RANKS,
    N_PATHS = 7
};

/* How ranks share a model. */
enum way {
    WAY_FSDP,
    WAY_FSDP_COLUMNS,
    WAY_HSDP, /* of an even number of ranks; otherwise as WAY_FSDP */
    WAY_ZERO_1,
    WAY_ZERO_2,
    WAY_DDP,
    WAY_PLAIN,
    WAY_META, /* FSDP of a model that has no memory yet; saved as WAY_FSDP */
    N_WAYS
};
static const char *const way_names[N_WAYS] = {
    "fsdp", "fsdp along columns", "hsdp", "zero 1", "zero 2", "ddp", "plain", "meta"};

static const struct {
    const char *path;
    shoal_dtype dtype;
    int n_dims;
    int64_t shape[3];
} rows[N_PATHS] = {
    {"scale", SHOAL_F32, 1, {7}},     {"a.weight", SHOAL_F32, 2, {11, 60}},
    {"a.bias", SHOAL_F32, 1, {11}},   {"b.weight", SHOAL_F32, 3, {13, 60, 2}},
    {"b.few", SHOAL_F32, 2, {2, 60}}, /* some shards are empty */
    {"b.bias", SHOAL_F32, 1, {1}},    {"b.half", SHOAL_BF16, 2, {5, 60}},
};

/* Models ----------------------------------------------------------------------------------------------- */

struct model {
    shoal_module *root;
    shoal_module *a;
    shoal_module *b;
    shoal_mesh *mesh;
    shoal_nn_optimizer *optimizer;
    shoal_items *items;
};

static shoal_status no_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                               shoal_tensor **outputs, size_t n_outputs)
{
    (void)module;
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = inputs[0];
    return SHOAL_OK;
}

static void make_tree(struct model *model, shoal_device device)
{
    model->root = net_make_module("root", no_forward, NULL);
    model->a = net_make_module("a", no_forward, NULL);
    model->b = net_make_module("b", no_forward, NULL);
    for (int i = 0; i < N_PATHS; i++) {
        const char *path = rows[i].path;
        shoal_module *owner = path[0] == 'a' ? model->a : path[0] == 'b' ? model->b : model->root;
        shoal_tensor *parameter = shoal_empty_on(rows[i].shape, rows[i].n_dims, rows[i].dtype, device);
        if (device == SHOAL_CPU) {
            memset(shoal_mutable_data(parameter), 0,
                   (size_t)shoal_tensor_count(parameter) * dtype_bytes(rows[i].dtype));
        }
        CHECK_OK(shoal_set_requires_grad(parameter, true));
        CHECK_OK(shoal_module_add_parameter(owner, owner == model->root ? path : path + 2, parameter));
    }
    CHECK_OK(shoal_module_add_parameter(model->a, "tied", shoal_module_parameter(model->a, "weight")));
    CHECK_OK(shoal_module_add_child(model->root, "a", model->a));
    CHECK_OK(shoal_module_add_child(model->root, "b", model->b));
    shoal_module_unref(model->a);
    shoal_module_unref(model->b);
}

static int cut_columns(void *context, const char *path, const shoal_tensor *parameter)
{
    (void)context;
    (void)path;
    return shoal_tensor_n_dims(parameter) > 1 ? 1 : 0;
}

static void shard(struct model *model, shoal_group *group, enum way way)
{
    static const char *const names[] = {"replicas", "shards"};
    shoal_fully_shard_options options = SHOAL_FULLY_SHARD_OPTIONS_INIT;
    int n_ranks = shoal_group_n_ranks(group);
    const int shape[] = {2, n_ranks / 2};
    options.group = group;
    options.placement = way == WAY_FSDP_COLUMNS ? cut_columns : NULL;
    options.sharded = way == WAY_ZERO_1   ? SHOAL_SHARDED_STATE
                      : way == WAY_ZERO_2 ? SHOAL_SHARDED_GRADIENTS
                                          : SHOAL_SHARDED_PARAMETERS;
    if (way == WAY_HSDP && n_ranks % 2 == 0) {
        REQUIRE_OK(shoal_mesh_create(shoal_group_world(group), "cpu", NULL, shape, 2, names, &model->mesh));
        options.group = NULL;
        options.mesh = model->mesh;
    }
    CHECK_OK(shoal_fully_shard(model->a, &options));
    CHECK_OK(shoal_fully_shard(model->b, &options));
    CHECK_OK(shoal_fully_shard(model->root, &options));
}

static void make_model(struct model *model, shoal_group *group, enum way way, bool is_saved)
{
    memset(model, 0, sizeof *model);
    make_tree(model, way == WAY_META && !is_saved ? SHOAL_META : SHOAL_CPU);
    if (way == WAY_DDP) {
        const shoal_ddp_options options = {.struct_size = sizeof options, .group = group};
        CHECK_OK(shoal_ddp(model->root, &options));
    } else if (way != WAY_PLAIN) {
        shard(model, group, way);
    }
    REQUIRE_OK(shoal_items_create(&model->items));
    CHECK_OK(shoal_items_add_module(model->items, "net.", model->root));
    CHECK_OK(shoal_nn_adamw_create_for(model->root, NULL, NULL, 0, &model->optimizer));
    CHECK_OK(shoal_nn_optimizer_add_items(model->optimizer, model->items));
}

static void free_model(struct model *model)
{
    shoal_items_free(model->items);
    shoal_nn_optimizer_free(model->optimizer);
    shoal_module_unref(model->root);
    shoal_mesh_free(model->mesh);
}

/* Elements --------------------------------------------------------------------------------------------- */

/* Writes what each element of the part is to be, or compares. */
static void walk_item(shoal_items *items, size_t number, bool compares)
{
    struct item_info info;
    struct item_part part;
    int64_t indices[SHOAL_MAX_DIMS] = {0};
    items_info(items, number, &info);
    REQUIRE_OK(compares ? items_part(items, number, 0.0, &part)
                        : items_mutable_part(items, number, 0.0, &part));
    size_t size = dtype_bytes(info.dtype);
    for (int64_t left = region_count(&part.region, info.n_dims); left > 0 && !test_has_failed(); left--) {
        int64_t place = 0;
        int64_t offset = 0;
        for (int i = 0; i < info.n_dims; i++) {
            place = place * info.shape[i] + part.region.begin[i] + indices[i];
            offset += indices[i] * part.strides[i];
        }
        uint64_t bits = hash_bytes(hash_bytes(0, info.name, strlen(info.name)), &place, sizeof place);
        bits >>= info.dtype == SHOAL_I64 ? 40 : 0; /* a number of steps */
        char *element = (char *)part.data + offset * (int64_t)size;
        if (compares) {
            CHECK_BYTES(element, &bits, size);
        } else {
            memcpy(element, &bits, size);
        }
        for (int i = info.n_dims - 1; i >= 0 && ++indices[i] == part.region.length[i]; i--) {
            indices[i] = 0;
        }
    }
}

static void walk_items(shoal_items *items, bool compares)
{
    CHECK_INT(shoal_items_count(items), 4 * N_PATHS);
    for (size_t i = 0; i < shoal_items_count(items) && !test_has_failed(); i++) {
        walk_item(items, i, compares);
    }
}

/* Saving and loading ----------------------------------------------------------------------------------- */

static void save(struct stage *stage, int n_ranks, enum way way, int format)
{
    shoal_checkpoint_options options = SHOAL_CHECKPOINT_OPTIONS_INIT;
    options.format = (shoal_checkpoint_format)format;
    options.replaces = true;
    test_barrier(stage->self);
    if (stage->self->rank < n_ranks && CHECK_OK(shoal_scope_begin())) {
        struct model model;
        make_model(&model, stage->groups[n_ranks], way, /*is_saved=*/true);
        walk_items(model.items, /*compares=*/false);
        CHECK_OK(shoal_checkpoint_save(stage->groups[n_ranks], stage->directory, model.items, &options));
        free_model(&model);
        CHECK_OK(shoal_scope_end());
    }
    test_barrier(stage->self);
}

static void load(struct stage *stage, int n_ranks, enum way way, const char *saved)
{
    bool had_failed = test_has_failed();
    if (stage->self->rank < n_ranks && CHECK_OK(shoal_scope_begin())) {
        struct model model;
        make_model(&model, stage->groups[n_ranks], way, /*is_saved=*/false);
        CHECK_OK(shoal_checkpoint_load(stage->groups[n_ranks], stage->directory, model.items, NULL, NULL));
        walk_items(model.items, /*compares=*/true);
        free_model(&model);
        CHECK_OK(shoal_scope_end());
    }
    if (test_has_failed() && !had_failed) {
        test_failed(__FILE__, __LINE__, "saved by %s, loaded by %s on %d", saved, way_names[way], n_ranks);
    }
}

/* Returns how many loads that were. */
static int load_everywhere(struct stage *stage, const char *saved, struct test_random *random)
{
    int n_loads = 0;
    for (int n_ranks = 1; n_ranks <= MAX_RANKS; n_ranks++) {
        for (int way = 0; way < N_WAYS; way++) {
            /* One in three of them, unless it is the sweep; FSDP always. */
            if (!random || way == WAY_FSDP || test_random_below(random, 3) == 0) {
                load(stage, n_ranks, (enum way)way, saved);
                n_loads++;
            }
        }
    }
    return n_loads;
}

TEST_RANKS(pairs_of_ways_and_ranks, MAX_RANKS)
{
    struct stage stage;
    struct test_random random = test_random_begin(1); /* the same on all ranks */
    bool is_sweep = test_is_whole();
    int n_pairs = 0;
    open_stage_with_groups(&stage, self);
    test_deadline(is_sweep ? 3000 : 120);
    for (int n_ranks = 1; n_ranks <= MAX_RANKS && !test_has_failed(); n_ranks++) {
        for (int kind = 0; kind < 2 * N_WAYS && !test_has_failed(); kind++) {
            enum way way = (enum way)(kind / 2);
            char saved[80];
            (void)snprintf(saved, sizeof saved, "%s on %d", way_names[way], n_ranks);
            /* FSDP in both formats always, so that there are enough whatever the seed is. */
            if (is_sweep || kind < 2 || test_random_below(&random, 24) == 0) {
                save(&stage, n_ranks, way, kind % 2);
                n_pairs += load_everywhere(&stage, saved, is_sweep ? NULL : &random);
            }
        }
    }
    CHECK(test_has_failed() || n_pairs >= 100);
    close_stage(&stage);
}

/* A mesh of some of the ranks: the group of all of them is that of the flattened mesh. */
TEST_RANKS(the_group_of_a_mesh, MAX_RANKS)
{
    enum {
        N_IN_MESH = 4
    };
    struct stage stage;
    open_stage_with_groups(&stage, self);
    if (self->rank < N_IN_MESH && CHECK_OK(shoal_scope_begin())) {
        struct model model;
        shoal_mesh *flat = NULL;
        make_model(&model, stage.groups[N_IN_MESH], WAY_HSDP, /*is_saved=*/true);
        REQUIRE_OK(shoal_mesh_flatten(model.mesh, "all", &flat));
        shoal_group *group = shoal_mesh_group(flat, 0);
        shoal_mesh_free(flat);
        CHECK_INT(shoal_group_n_ranks(group), N_IN_MESH);
        walk_items(model.items, /*compares=*/false);
        CHECK_OK(shoal_checkpoint_save(group, stage.directory, model.items, NULL));
        free_model(&model);
        make_model(&model, stage.groups[N_IN_MESH], WAY_HSDP, /*is_saved=*/false);
        CHECK_OK(shoal_checkpoint_load(group, stage.directory, model.items, NULL, NULL));
        walk_items(model.items, /*compares=*/true);
        free_model(&model);
        CHECK_OK(shoal_scope_end());
    }
    close_stage(&stage);
}
