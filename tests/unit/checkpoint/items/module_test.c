/* SPDX-License-Identifier: MIT */
/*
 * Items of modules: plain, wrapped by shoal_ddp, and sharded in every way. Each element of a parameter has a value that
 * tells which one it is, so that a part that lies elsewhere than its region says is found.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint/items/items.h"
#include "fixtures/rank_world.h"
#include "fixtures/scoped.h"
#include "shoal/autograd.h"
#include "shoal/ddp.h"
#include "shoal/fully_shard.h"
#include "shoal/items.h"
#include "shoal/mesh.h"
#include "shoal/ops.h"

enum {
    MAX_ITEMS = 16,
    MAX_ELEMENTS = 128
};

/* The module: a tied parameter, shards that are uneven and empty, a frozen one, buffers ---------------------- */

struct net {
    shoal_module *root;
    shoal_module *layers[2];
};

/* In the order of a walk. The second name is an alias. */
static const struct wanted {
    const char *name;
    const char *alias;
    int n_dims;
    int64_t shape[2];
    bool is_buffer;
} wanted[] = {{"scale", NULL, 1, {1}, false},
              {"embed.weight", "head.weight", 2, {7, 12}, false},
              {"layers.0.weight", NULL, 2, {5, 12}, false},
              {"layers.0.bias", NULL, 1, {12}, false},
              {"layers.0.mean", NULL, 1, {3}, true},
              {"layers.1.weight", NULL, 2, {5, 12}, false},
              {"layers.1.bias", NULL, 1, {12}, false},
              {"layers.1.mean", NULL, 1, {3}, true}};
#define N_WANTED (sizeof(wanted) / sizeof(wanted[0]))

static float value_of(size_t item, int64_t element, int round)
{
    return (float)(1000 * (int64_t)item + element + 100000 * round);
}

static shoal_status layer_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = shoal_add(inputs[0], shoal_module_parameter(module, "weight"));
    return SHOAL_OK;
}

/* The input plus the weights of both layers, and the embedding. */
static shoal_status net_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    shoal_tensor *x = shoal_module_call_one(shoal_module_child(module, "layers.0"), inputs[0]);
    outputs[0] = shoal_module_call_one(shoal_module_child(module, "layers.1"), x);
    outputs[1] = shoal_clone(shoal_module_parameter(module, "embed.weight"));
    return SHOAL_OK;
}

static shoal_module *make_module(const char *type, shoal_module_forward forward, size_t n_outputs)
{
    shoal_module *module = NULL;
    const shoal_module_definition definition = {
        .struct_size = sizeof(definition), .type = type, .forward = forward, .n_outputs = n_outputs};
    CHECK_OK(shoal_module_create(&definition, &module));
    return module;
}

static shoal_module *add_child(shoal_module *parent, const char *name, shoal_module_forward forward)
{
    shoal_module *child = make_module(name, forward, 1);
    CHECK_OK(shoal_module_add_child(parent, name, child));
    shoal_module_unref(child);
    return child;
}

static shoal_tensor *make_tensor(size_t item, bool is_meta)
{
    const struct wanted *row = &wanted[item];
    if (is_meta && !row->is_buffer) {
        return shoal_empty_on(row->shape, row->n_dims, SHOAL_F32, SHOAL_META);
    }
    shoal_tensor *tensor = shoal_empty(row->shape, row->n_dims, SHOAL_F32);
    float *data = shoal_mutable_data(tensor);
    for (int64_t i = 0; data && i < shoal_tensor_count(tensor); i++) {
        data[i] = value_of(item, i, 0);
    }
    return tensor;
}

static void add_tensor(shoal_module *module, const char *name, size_t item, bool is_meta)
{
    shoal_tensor *tensor = make_tensor(item, is_meta);
    if (wanted[item].is_buffer) {
        CHECK_OK(shoal_module_add_buffer(module, name, tensor));
        return;
    }
    CHECK_OK(shoal_set_requires_grad(tensor, item != 5)); /* the second weight is frozen */
    CHECK_OK(shoal_module_add_parameter(module, name, tensor));
}

static void make_net(struct net *net, bool is_meta)
{
    REQUIRE_OK(shoal_scope_begin());
    net->root = make_module("net", net_forward, 2);
    add_tensor(net->root, "scale", 0, is_meta);
    shoal_module *embed = add_child(net->root, "embed", NULL);
    add_tensor(embed, "weight", 1, is_meta);
    shoal_module *layers = add_child(net->root, "layers", NULL);
    for (size_t i = 0; i < 2; i++) {
        net->layers[i] = add_child(layers, i == 0 ? "0" : "1", layer_forward);
        add_tensor(net->layers[i], "weight", 2 + 3 * i, is_meta);
        add_tensor(net->layers[i], "bias", 3 + 3 * i, is_meta);
        add_tensor(net->layers[i], "mean", 4 + 3 * i, is_meta);
    }
    shoal_module *head = add_child(net->root, "head", NULL);
    CHECK_OK(shoal_module_add_parameter(head, "weight", shoal_module_parameter(embed, "weight")));
    CHECK_OK(shoal_scope_end());
}

/* Settings ---------------------------------------------------------------------------------------------------- */

struct setting {
    const char *name;
    bool is_ddp;
    bool is_sharded;
    bool is_replicated; /* every rank keeps all */
    bool is_hsdp;       /* two rows of replicas; an even number of ranks */
    bool is_alone;      /* one unit for all */
    bool is_along_last; /* those of two dimensions are cut along dimension 1 */
    bool is_meta;
    bool is_added_first; /* to the list, before it is sharded */
    shoal_sharded sharded;
};

static const struct setting settings[] = {
    {.name = "plain"},
    {.name = "ddp", .is_ddp = true},
    {.name = "rows", .is_sharded = true},
    {.name = "alone", .is_sharded = true, .is_alone = true},
    {.name = "columns", .is_sharded = true, .is_along_last = true},
    {.name = "replicated", .is_sharded = true, .is_replicated = true},
    {.name = "hsdp", .is_sharded = true, .is_hsdp = true},
    {.name = "meta", .is_sharded = true, .is_meta = true},
    {.name = "meta columns", .is_sharded = true, .is_meta = true, .is_along_last = true},
    {.name = "added first", .is_sharded = true, .is_added_first = true},
    {.name = "zero 1", .is_sharded = true, .sharded = SHOAL_SHARDED_STATE},
    {.name = "zero 2", .is_sharded = true, .sharded = SHOAL_SHARDED_GRADIENTS},
    {.name = "zero 2, hsdp", .is_sharded = true, .is_hsdp = true, .sharded = SHOAL_SHARDED_GRADIENTS}};
#define N_SETTINGS (sizeof(settings) / sizeof(settings[0]))

static int cut_second(void *context, const char *path, const shoal_tensor *parameter)
{
    (void)context;
    (void)path;
    return shoal_tensor_n_dims(parameter) == 2 ? 1 : 0;
}

static void shard_net(const struct net *net, const struct setting *setting, shoal_world *world,
                      shoal_mesh *mesh)
{
    shoal_fully_shard_options options = SHOAL_FULLY_SHARD_OPTIONS_INIT;
    options.group = mesh ? NULL : shoal_world_group(world);
    options.mesh = mesh;
    options.is_replicated = setting->is_replicated;
    options.sharded = setting->sharded;
    options.placement = setting->is_along_last ? cut_second : NULL;
    for (int i = 0; i < 2 && !setting->is_alone; i++) {
        CHECK_OK(shoal_fully_shard(net->layers[i], &options));
    }
    CHECK_OK(shoal_fully_shard(net->root, &options));
}

static void wrap_net(const struct net *net, const struct setting *setting, const struct rank *self,
                     shoal_world *world, shoal_mesh **mesh_out)
{
    static const char *const names[] = {"replicas", "shards"};
    *mesh_out = NULL;
    if (setting->is_ddp) {
        shoal_ddp_options options = SHOAL_DDP_OPTIONS_INIT;
        options.group = shoal_world_group(world);
        CHECK_OK(shoal_ddp(net->root, &options));
    }
    if (setting->is_hsdp) {
        CHECK_OK(
            shoal_mesh_create(world, "cpu", NULL, (const int[]){2, self->n_ranks / 2}, 2, names, mesh_out));
    }
    if (setting->is_sharded) {
        shard_net(net, setting, world, *mesh_out);
    }
}

/* Looking ----------------------------------------------------------------------------------------------------- */

static void check_names(const shoal_items *items, const char *prefix)
{
    char name[64];
    CHECK_INT(shoal_items_count(items), N_WANTED);
    for (size_t i = 0; i < N_WANTED && i < shoal_items_count(items); i++) {
        struct item_info info;
        items_info(items, i, &info);
        (void)snprintf(name, sizeof(name), "%s%s", prefix, wanted[i].name);
        CHECK_STRING(info.name, name);
        CHECK_STRING(info.section, SHOAL_SECTION_MODEL);
        CHECK_INT(info.dtype, SHOAL_F32);
        CHECK_INT(info.n_dims, wanted[i].n_dims);
        CHECK_BYTES(info.shape, wanted[i].shape, (size_t)wanted[i].n_dims * sizeof(int64_t));
        CHECK(!info.may_be_missing);
        CHECK_INT(shoal_items_find(items, NULL, name), i);
        CHECK_INT(info.n_aliases, wanted[i].alias ? 1 : 0);
        if (wanted[i].alias && info.n_aliases == 1) {
            (void)snprintf(name, sizeof(name), "%s%s", prefix, wanted[i].alias);
            CHECK_STRING(info.aliases[0], name);
            CHECK_INT(shoal_items_find(items, NULL, name), i);
        }
    }
}

/* Elements that ranks have, counted in memory that they share. */
struct covered {
    _Atomic int counts[MAX_ITEMS][MAX_ELEMENTS];
};

/* Visits each element of the part: where it is, and which element of the whole it is. */
static void walk_part(const struct item_part *part, size_t item, int round, bool is_written,
                      struct covered *covered)
{
    int n_dims = wanted[item].n_dims;
    int64_t width = n_dims > 1 ? part->region.length[1] : 1;
    int64_t row_elements = n_dims > 1 ? wanted[item].shape[1] : 1;
    for (int64_t k = 0; k < region_count(&part->region, n_dims); k++) {
        int64_t row = k / width;
        int64_t column = k % width;
        int64_t element =
            (part->region.begin[0] + row) * row_elements + (n_dims > 1 ? part->region.begin[1] + column : 0);
        float *at =
            (float *)part->data + row * part->strides[0] + (n_dims > 1 ? column * part->strides[1] : 0);
        if (is_written) {
            *at = value_of(item, element, round);
        } else {
            CHECK_DOUBLE((double)*at, (double)value_of(item, element, round));
        }
        if (covered) {
            (void)atomic_fetch_add(&covered->counts[item][element], 1);
        }
    }
}

static void check_parts(const shoal_items *items, int round, struct covered *covered)
{
    for (size_t i = 0; i < N_WANTED && !test_has_failed(); i++) {
        struct item_part part;
        struct region region;
        REQUIRE_OK(items_region(items, i, &region));
        REQUIRE_OK(items_part(items, i, 0.0, &part));
        CHECK(region_equals(&region, &part.region, wanted[i].n_dims));
        CHECK((part.data == NULL) == (region_count(&region, wanted[i].n_dims) == 0));
        walk_part(&part, i, round, false, covered);
    }
}

static void write_parts(shoal_items *items, int round)
{
    for (size_t i = 0; i < N_WANTED && !test_has_failed(); i++) {
        struct item_part part;
        REQUIRE_OK(items_mutable_part(items, i, 0.0, &part));
        walk_part(&part, i, round, true, NULL);
    }
}

/* The whole parameters that a call sees are those of the round. */
static void check_call(const struct net *net, int round)
{
    REQUIRE_OK(shoal_scope_begin());
    CHECK_OK(shoal_scope_set_grad(false));
    shoal_tensor *x = shoal_zeros(wanted[2].shape, 2, SHOAL_F32);
    shoal_tensor *outputs[2] = {NULL, NULL};
    if (CHECK_OK(shoal_module_call(net->root, &x, 1, outputs, 2))) {
        const float *sum = shoal_data(outputs[0]);
        const float *embed = shoal_data(outputs[1]);
        for (int64_t i = 0; sum && i < 60; i++) {
            CHECK_DOUBLE((double)sum[i], (double)(value_of(2, i, round) + value_of(5, i, round)));
        }
        for (int64_t i = 0; embed && i < 84; i++) {
            CHECK_DOUBLE((double)embed[i], (double)value_of(1, i, round));
        }
    }
    CHECK_OK(shoal_scope_end());
}

static void check_covered(const struct covered *covered, const struct setting *setting, int n_ranks)
{
    for (size_t i = 0; i < N_WANTED; i++) {
        bool is_cut = setting->is_sharded && !setting->is_replicated && !wanted[i].is_buffer;
        int expected = !is_cut ? n_ranks : setting->is_hsdp ? 2 : 1;
        int64_t count = wanted[i].shape[0] * (wanted[i].n_dims > 1 ? wanted[i].shape[1] : 1);
        for (int64_t k = 0; k < count; k++) {
            CHECK_INT(atomic_load(&covered->counts[i][k]), expected);
        }
    }
}

/* Shards of parameters without values cannot be read before they were written. */
static void check_unwritten(const shoal_items *items, const struct net *net)
{
    for (size_t i = 0; i < N_WANTED; i++) {
        struct item_part part;
        shoal_shard_layout layout = SHOAL_SHARD_LAYOUT_INIT;
        if (wanted[i].is_buffer) {
            CHECK_OK(items_part(items, i, 0.0, &part));
            continue;
        }
        CHECK_OK(shoal_fsdp_get_layout(shoal_fully_shard_param(net->root, wanted[i].name), &layout));
        CHECK(layout.needs_values == (layout.shard_count > 0));
        if (layout.needs_values) {
            CHECK_STATUS(items_part(items, i, 0.0, &part), SHOAL_ERR_STATE);
            CHECK_ERROR_TEXT(wanted[i].name);
            CHECK_ERROR_TEXT("it was on the meta device, and its shard has not been written yet");
        } else {
            CHECK_OK(items_part(items, i, 0.0, &part));
        }
    }
}

static void try_setting(struct rank *self, const struct setting *setting, shoal_world *world)
{
    struct net net;
    shoal_items *items = NULL;
    shoal_mesh *mesh;
    struct covered *covered = self->shared;
    make_net(&net, setting->is_meta);
    CHECK_OK(shoal_items_create(&items));
    if (setting->is_added_first) {
        CHECK_OK(shoal_items_add_module(items, "my.", net.root));
    }
    wrap_net(&net, setting, self, world, &mesh);
    if (!setting->is_added_first) {
        CHECK_OK(shoal_items_add_module(items, "my.", net.root));
    }
    check_names(items, "my.");
    if (setting->is_meta) {
        check_unwritten(items, &net);
        write_parts(items, 0);
    }
    test_barrier(self);
    if (self->rank == 0) {
        memset(covered, 0, sizeof(*covered));
    }
    test_barrier(self);
    check_parts(items, 0, covered);
    test_barrier(self);
    check_covered(covered, setting, self->n_ranks);
    check_call(&net, 0);
    /* What was gathered is gathered again. */
    write_parts(items, 1);
    check_call(&net, 1);
    check_parts(items, 1, NULL);
    shoal_module_unref(net.root); /* the list keeps it */
    check_parts(items, 1, NULL);
    shoal_items_free(items);
    shoal_mesh_free(mesh);
}

static void try_settings(struct rank *self)
{
    shoal_world *world = rank_world_open(self, 0);
    _Static_assert(sizeof(struct covered) <= TEST_SHARED_BYTES, "it lies in the shared memory");
    REQUIRE(world);
    for (size_t i = 0; i < N_SETTINGS; i++) {
        if (settings[i].is_hsdp && self->n_ranks % 2 != 0) {
            continue;
        }
        try_setting(self, &settings[i], world);
        if (test_has_failed()) {
            test_failed(__FILE__, __LINE__, "with the setting \"%s\"", settings[i].name);
            break;
        }
    }
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(one_rank, 1)
{
    try_settings(self);
}

TEST_RANKS(two_ranks, 2)
{
    try_settings(self);
}

TEST_RANKS(three_ranks, 3)
{
    try_settings(self);
}

TEST_RANKS(four_ranks, 4)
{
    try_settings(self);
}

/* Shards are found by tensor, also after other tensors were put in their places ------------------------------- */

TEST_RANKS(replaced_shards, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    struct net net;
    shoal_items *items = NULL;
    struct item_part part;
    shoal_item item = SHOAL_ITEM_INIT;
    REQUIRE(world);
    make_net(&net, false);
    CHECK_OK(shoal_items_create(&items));
    CHECK_OK(shoal_items_add_module(items, "", net.root));
    CHECK_INT(shoal_items_find_tensor(items, shoal_module_parameter(net.root, "layers.1.weight")), 5);
    shard_net(&net, &(struct setting){0}, world, NULL);
    for (size_t i = 0; i < N_WANTED; i++) {
        shoal_tensor *tensor = wanted[i].is_buffer ? shoal_module_buffer(net.root, wanted[i].name)
                                                   : shoal_module_parameter(net.root, wanted[i].name);
        CHECK_INT(shoal_items_find_tensor(items, tensor), i);
    }
    CHECK_INT(shoal_items_find_tensor(items, shoal_module_parameter(net.root, "head.weight")), 1);

    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *old = shoal_tensor_ref(shoal_module_parameter(net.root, "layers.0.weight"));
    shoal_tensor *now = shoal_clone(shoal_detach(old));
    CHECK_OK(shoal_set_requires_grad(now, true));
    CHECK_OK(shoal_module_set_parameter(net.root, "layers.0.weight", now));
    CHECK_OK(items_part(items, 2, 0.0, &part));
    CHECK(part.data == shoal_data(now));
    CHECK_OK(shoal_items_get(items, 2, &item));
    CHECK(item.tensor == now);
    CHECK_INT(item.dim, 0);
    CHECK_INT(item.offset, self->rank * 3);
    CHECK_INT(item.length, 3 - self->rank);
    CHECK_INT(shoal_items_find_tensor(items, old), -1);
    CHECK_INT(shoal_items_find_tensor(items, now), 2);
    write_parts(items, 3);
    check_call(&net, 3);

    /* Of another dtype, or shape: the list does not describe it. */
    shoal_tensor_unref(old);
    CHECK_OK(
        shoal_module_set_buffer(net.root, "layers.0.mean", shoal_zeros((const int64_t[]){3}, 1, SHOAL_F64)));
    CHECK_STATUS(items_part(items, 4, 0.0, &part), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("item model 'layers.0.mean': its tensor is f64, but was f32 when it was added");
    CHECK_OK(
        shoal_module_set_buffer(net.root, "layers.0.mean", shoal_zeros((const int64_t[]){4}, 1, SHOAL_F32)));
    CHECK_STATUS(shoal_items_get(items, 4, &item), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("items_get: item model 'layers.0.mean': its tensor has the shape [4] instead of [3]");
    shoal_tensor *elsewhere = shoal_zeros((const int64_t[]){4}, 1, SHOAL_F32);
    CHECK_OK(shoal_set_requires_grad(elsewhere, false)); /* no text from before */
    CHECK_INT(shoal_items_find_tensor(items, elsewhere), -1);
    CHECK_STRING(shoal_error_text(), "");
    CHECK_OK(shoal_scope_end());
    shoal_items_free(items);
    shoal_module_unref(net.root);
    CHECK_OK(shoal_world_close(world));
}

/* A module with two parents: its first path does not lead through the module that was sharded. */
TEST_RANKS(shared_modules, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    shoal_items *items = NULL;
    shoal_fully_shard_options options = SHOAL_FULLY_SHARD_OPTIONS_INIT;
    struct item_info info;
    struct region region;
    REQUIRE(world);
    REQUIRE_OK(shoal_scope_begin());
    shoal_module *root = make_module("root", NULL, 1);
    shoal_module *first = add_child(root, "first", NULL);
    shoal_module *second = add_child(root, "second", layer_forward);
    shoal_module *shared = add_child(first, "shared", layer_forward);
    CHECK_OK(shoal_module_add_child(second, "shared", shared));
    add_tensor(shared, "weight", 1, false);
    options.group = shoal_world_group(world);
    CHECK_OK(shoal_fully_shard(second, &options));
    CHECK_OK(shoal_items_create(&items));
    CHECK_OK(shoal_items_add_module(items, "", root));
    CHECK_INT(shoal_items_count(items), 1);
    items_info(items, 0, &info);
    CHECK_STRING(info.name, "first.shared.weight");
    CHECK_INT(info.shape[0], 7);
    REQUIRE(info.n_aliases == 1);
    CHECK_STRING(info.aliases[0], "second.shared.weight");
    CHECK_OK(items_region(items, 0, &region));
    CHECK_INT(region.begin[0], 4 * self->rank);
    CHECK_INT(region.length[0], 4 - self->rank);
    shoal_items_free(items);
    shoal_module_unref(root);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

/* What is refused --------------------------------------------------------------------------------------------- */

TEST_RANKS(a_part_of_a_unit, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    struct net net;
    shoal_items *items = NULL;
    REQUIRE(world);
    make_net(&net, false);
    shard_net(&net, &(struct setting){.is_alone = true}, world, NULL);
    CHECK_OK(shoal_items_create(&items));
    CHECK_STATUS(shoal_items_add_module(items, "", net.layers[0]), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("items_add_module: parameter weight: it is a shard of a unit of an outer module");
    CHECK_INT(shoal_items_count(items), 0);
    shoal_items_free(items);
    shoal_module_unref(net.root);
    CHECK_OK(shoal_world_close(world));
}

/* A call that failed has added nothing, and holds nothing. */
TEST(wrong_modules)
{
    shoal_items *items = NULL;
    struct net net;
    struct item_part part;
    int64_t number = 0;
    make_net(&net, false);
    CHECK_OK(shoal_items_create(&items));
    CHECK_OK(shoal_items_add_integer(items, "scale", &number));
    CHECK_OK(shoal_items_add_module(items, "", net.root));
    CHECK_OK(shoal_items_add_module(items, "again.", net.root));
    CHECK_INT(shoal_items_count(items), 2 * N_WANTED);
    CHECK_STATUS(shoal_items_add_module(items, "", net.root), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("items_add_module: name: there is an item model 'scale' already");
    CHECK_OK(shoal_items_add_alias(items, NULL, "scale", "x.layers.1.mean"));
    CHECK_STATUS(shoal_items_add_module(items, "x.", net.root), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("there is an item model 'x.layers.1.mean' already");
    CHECK_INT(shoal_items_find(items, NULL, "x.scale"), -1);
    CHECK_INT(shoal_items_count(items), 2 * N_WANTED);
    CHECK_STATUS(shoal_items_add_module(items, NULL, net.root), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("items_add_module: prefix is NULL");
    CHECK_STATUS(shoal_items_add_module(items, "", NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_items_add_module(NULL, "", net.root), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_items_add_module(items, "\xff", net.root), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("items_add_module: prefix: ");
    shoal_module_unref(net.root);

    /* Values that are not there, and that no file can have. */
    make_net(&net, true);
    CHECK_OK(shoal_items_add_module(items, "meta.", net.root));
    int64_t meta = shoal_items_find(items, NULL, "meta.head.weight");
    REQUIRE(meta >= 0);
    CHECK_STATUS(items_part(items, (size_t)meta, 0.0, &part), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("item model 'meta.embed.weight': it is on the meta device");
    CHECK_STATUS(items_mutable_part(items, (size_t)meta, 0.0, &part), SHOAL_ERR_STATE);
    CHECK_OK(shoal_scope_begin());
    CHECK_OK(shoal_module_add_buffer(net.root, "table", shoal_zeros(wanted[0].shape, 1, SHOAL_C128)));
    CHECK_OK(shoal_module_add_buffer(net.root, "__metadata__", shoal_zeros(wanted[0].shape, 1, SHOAL_F32)));
    CHECK_OK(shoal_scope_end());
    CHECK_STATUS(shoal_items_add_module(items, "c.", net.root), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("items_add_module: buffer table: checkpoints do not support c128");
    CHECK_OK(shoal_scope_begin());
    CHECK_OK(shoal_module_set_buffer(net.root, "table", shoal_zeros(wanted[0].shape, 1, SHOAL_C64)));
    CHECK_OK(shoal_scope_end());
    CHECK_STATUS(shoal_items_add_module(items, "", net.root), SHOAL_ERR_INVALID);
    CHECK_OK(shoal_items_add_module(items, "c.", net.root));
    shoal_module_unref(net.root);
    shoal_items_free(items);
}

/* Memory ------------------------------------------------------------------------------------------------------ */

static shoal_status add_net(void *context)
{
    struct net *net = context;
    shoal_items *items = NULL;
    shoal_status status = shoal_items_create(&items);
    for (int i = 0; status == SHOAL_OK && i < 3; i++) {
        size_t count = shoal_items_count(items);
        status = shoal_items_add_module(items, i == 0 ? "" : i == 1 ? "a." : "b.", net->root);
        CHECK_INT(shoal_items_count(items), count + (status == SHOAL_OK ? N_WANTED : 0));
    }
    if (status == SHOAL_OK) {
        shoal_tensor *tensor = shoal_module_find_parameter(net->root, "layers.1.weight");
        CHECK_INT(shoal_items_find_tensor(items, tensor), 5);
        CHECK_INT(shoal_items_find_tensor(items, tensor), 5);
        check_parts(items, 0, NULL);
    }
    shoal_items_free(items);
    return status;
}

TEST(survives_failing_allocations)
{
    struct net net;
    make_net(&net, false);
    CHECK(test_sweep_allocations(add_net, &net) >= 60);
    shoal_module_unref(net.root);
}

/* What came after the module was added, or is tied otherwise, is not left out silently. */
static void use_changed(int what)
{
    shoal_items *items = NULL;
    shoal_module *module = NULL;
    struct item_part part;
    const shoal_module_definition definition = {.struct_size = sizeof definition, .type = "net"};
    const int64_t shape[] = {3};
    REQUIRE_OK(shoal_scope_begin());
    REQUIRE_OK(shoal_module_create(&definition, &module));
    shoal_tensor *a = shoal_zeros(shape, 1, SHOAL_F32);
    shoal_tensor *b = shoal_zeros(shape, 1, SHOAL_F32);
    CHECK_OK(shoal_module_add_parameter(module, "a", a));
    CHECK_OK(shoal_module_add_parameter(module, "b", what == 2 ? a : b));
    REQUIRE_OK(shoal_items_create(&items));
    CHECK_OK(shoal_items_add_module(items, "", module));
    CHECK_OK(items_part(items, 0, 0.0, &part));
    CHECK_OK(what == 0   ? shoal_module_add_parameter(module, "c", shoal_zeros(shape, 1, SHOAL_F32))
             : what == 1 ? shoal_module_set_parameter(module, "b", a)
             : what == 2 ? shoal_module_set_parameter(module, "b", b)
             : what == 3 ? shoal_module_add_buffer(module, "c", shoal_zeros(shape, 1, SHOAL_F32))
                         : shoal_module_set_parameter(module, "b", shoal_zeros(shape, 1, SHOAL_F32)));
    if (what == 4) { /* another tensor in the same place, and nothing else */
        CHECK_OK(items_part(items, 0, 0.0, &part));
    } else {
        CHECK_STATUS(items_part(items, 0, 0.0, &part), SHOAL_ERR_STATE);
        CHECK_ERROR_TEXT(what == 0 || what == 3 ? "(c)" : "(b)");
    }
    shoal_items_free(items);
    shoal_module_unref(module);
    REQUIRE_OK(shoal_scope_end());
}

TEST(modules_that_have_changed)
{
    for (int what = 0; what < 5; what++) {
        use_changed(what);
    }
}
