/* SPDX-License-Identifier: MIT */
/*
 * Arrays of the program that are cut like parameters of FSDP, as items: they are saved as the whole, and loaded on other
 * numbers of ranks, replicas, and along other dimensions. Some parts are short or empty.
 */
#include <stdlib.h>
#include <string.h>

#include "fixtures/checkpoint_stage.h"
#include "fixtures/scoped.h"
#include "parallel/fsdp/engine/state/handle.h"
#include "shoal/checkpoint.h"
#include "shoal/fsdp.h"
#include "shoal/fully_shard.h"
#include "shoal/items.h"
#include "shoal/mesh.h"
#include "shoal/ops.h"

static const struct {
    const char *name;
    int n_dims;
    int64_t shape[2];
    shoal_dtype dtype; /* of the parameter */
} params[] = {{"weight", 2, {7, 30}, SHOAL_F32},
              {"bias", 1, {4}, SHOAL_BF16},
              {"one", 1, {1}, SHOAL_F64},
              {"none", 2, {0, 30}, SHOAL_F32}};
static const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_BF16, SHOAL_I64};

enum {
    N_PARAMS = 4,
    N_DTYPES = 3,
    N_ARRAYS = N_PARAMS * N_DTYPES,
    ROOM = 7 * 30 * 8 + 1, /* bytes of the largest array, and one */
    N_RANKS = STAGE_MAX_RANKS
};

/* How ranks share the model. */
static const struct way {
    int n_ranks;
    bool has_replicas; /* two of them, each on half of the ranks */
    bool has_columns;  /* matrices are cut along the second dimension */
} ways[] = {{1, false, false}, {2, false, false}, {3, false, true},     {5, false, false},
            {6, false, false}, {6, true, false},  {N_RANKS, true, true}};
#define N_WAYS (sizeof ways / sizeof ways[0])

struct arrays {
    shoal_fsdp *fsdp;
    shoal_items *items;
    size_t bytes[N_ARRAYS];
    unsigned char *data[N_ARRAYS]; /* of exactly so many bytes; NULL: none */
};

static int param_of(int array)
{
    return array / N_DTYPES;
}

static shoal_dtype dtype_of(int array)
{
    return dtypes[array % N_DTYPES];
}

static void fill(unsigned char full[ROOM], int array)
{
    for (int i = 0; i < ROOM; i++) {
        full[i] = (unsigned char)(i * 31 + i / 251 + array * 57);
    }
}

static shoal_fsdp_param *handle_of(const struct arrays *arrays, int array)
{
    return shoal_fsdp_param_of(arrays->fsdp, param_of(array));
}

static bool add_params(shoal_fsdp *fsdp, bool has_columns)
{
    for (int i = 0; i < N_PARAMS; i++) {
        int dim = has_columns && params[i].n_dims > 1 ? 1 : 0;
        if (!CHECK_OK(shoal_fsdp_add_param_along(fsdp, 0, params[i].name, params[i].dtype, params[i].n_dims,
                                                 params[i].shape, dim, NULL, NULL))) {
            return false;
        }
    }
    return true;
}

/* Adds an array as an item, with memory for this rank's part. */
static bool add_array(struct arrays *arrays, int array)
{
    char name[64];
    shoal_shard_layout layout = SHOAL_SHARD_LAYOUT_INIT;
    shoal_fsdp_param *param = handle_of(arrays, array);
    if (!CHECK_OK(shoal_fsdp_get_layout(param, &layout))) {
        return false;
    }
    arrays->bytes[array] = layout.shard_count * shoal_dtype_bytes(dtype_of(array));
    arrays->data[array] = arrays->bytes[array] > 0 ? malloc(arrays->bytes[array]) : NULL;
    if (arrays->data[array]) {
        memset(arrays->data[array], 0xC3, arrays->bytes[array]);
    }
    (void)snprintf(name, sizeof name, "%s.%s", params[param_of(array)].name,
                   shoal_dtype_name(dtype_of(array)));
    return CHECK_OK(shoal_items_add_fsdp_array(arrays->items, SHOAL_SECTION_OPTIMIZER, name, param,
                                               dtype_of(array), arrays->data[array]));
}

static bool open_arrays(struct arrays *arrays, const struct stage *stage, shoal_mesh *mesh,
                        const struct way *way)
{
    *arrays = (struct arrays){0};
    shoal_status status = way->has_replicas
                              ? shoal_fsdp_create_on_mesh(mesh, NULL, &arrays->fsdp)
                              : shoal_fsdp_create(stage->groups[way->n_ranks], NULL, &arrays->fsdp);
    if (!CHECK_OK(status) || !add_params(arrays->fsdp, way->has_columns) ||
        !CHECK_OK(shoal_items_create(&arrays->items))) {
        return false;
    }
    for (int i = 0; i < N_ARRAYS; i++) {
        if (!add_array(arrays, i)) {
            return false;
        }
    }
    return true;
}

static void close_arrays(struct arrays *arrays)
{
    shoal_items_free(arrays->items);
    shoal_fsdp_free(arrays->fsdp);
    for (int i = 0; i < N_ARRAYS; i++) {
        free(arrays->data[i]);
    }
}

static void save(const struct stage *stage, shoal_mesh *mesh, const struct way *way, int format)
{
    struct arrays arrays;
    shoal_checkpoint_options options = SHOAL_CHECKPOINT_OPTIONS_INIT;
    options.format = (shoal_checkpoint_format)format;
    options.replaces = true;
    REQUIRE(open_arrays(&arrays, stage, mesh, way));
    for (int i = 0; i < N_ARRAYS; i++) {
        unsigned char full[ROOM];
        fill(full, i);
        CHECK_OK(shoal_fsdp_load_array(handle_of(&arrays, i), dtype_of(i), full, arrays.data[i]));
    }
    /* The list does not need the context. */
    shoal_fsdp_free(arrays.fsdp);
    arrays.fsdp = NULL;
    CHECK_OK(shoal_checkpoint_save(stage->groups[way->n_ranks], stage->directory, arrays.items, &options));
    close_arrays(&arrays);
}

static void load(const struct stage *stage, shoal_mesh *mesh, const struct way *way)
{
    struct arrays arrays;
    REQUIRE(open_arrays(&arrays, stage, mesh, way));
    REQUIRE_OK(
        shoal_checkpoint_load(stage->groups[way->n_ranks], stage->directory, arrays.items, NULL, NULL));
    for (int i = 0; i < N_ARRAYS; i++) {
        unsigned char full[ROOM];
        unsigned char wanted[ROOM];
        fill(full, i);
        CHECK_OK(shoal_fsdp_load_array(handle_of(&arrays, i), dtype_of(i), full, wanted));
        CHECK(arrays.bytes[i] == 0 || CHECK_BYTES(arrays.data[i], wanted, arrays.bytes[i]));
    }
    close_arrays(&arrays);
}

static void try_ways(struct rank *self, int format)
{
    struct stage stage;
    shoal_mesh *mesh = NULL;
    open_stage_with_groups(&stage, self);
    REQUIRE_OK(shoal_mesh_create(stage.world, "cpu", NULL, (const int[]){2, N_RANKS / 2}, 2,
                                 (const char *const[]){"replicas", "shards"}, &mesh));
    for (size_t saved = 0; saved < N_WAYS && !test_has_failed(); saved++) {
        test_barrier(self);
        if (self->rank < ways[saved].n_ranks) {
            save(&stage, mesh, &ways[saved], format);
        }
        test_barrier(self);
        for (size_t loaded = 0; loaded < N_WAYS && !test_has_failed(); loaded++) {
            if (self->rank < ways[loaded].n_ranks) {
                load(&stage, mesh, &ways[loaded]);
            }
        }
    }
    shoal_mesh_free(mesh);
    close_stage(&stage);
}

TEST_RANKS(pieces_between_all_ways, N_RANKS)
{
    try_ways(self, SHOAL_CHECKPOINT_PIECES);
}

TEST_RANKS(whole_files_between_all_ways, N_RANKS)
{
    try_ways(self, SHOAL_CHECKPOINT_WHOLE);
}

/* What one rank adds differently ------------------------------------------------------------------------------- */

TEST_RANKS(one_rank_deviates, 3)
{
    static const struct {
        const char *name;
        shoal_dtype dtype;
        int param;
        const char *words;
    } rows[] = {
        {"n", SHOAL_F32, 0, "the list has no item 'm' of section 'optimizer', which is number 0 on rank 0"},
        {"m", SHOAL_I32, 0, "item 'm' of section 'optimizer' is i32, and f32 on rank 0"},
        {"m", SHOAL_F32, 1, "item 'm' of section 'optimizer' has the shape [4], and [7, 30] on rank 0"}};
    struct stage stage;
    struct arrays arrays = {0};
    double data[7 * 30] = {0};
    open_stage(&stage, self);
    REQUIRE_OK(shoal_fsdp_create(stage.group, NULL, &arrays.fsdp));
    REQUIRE(add_params(arrays.fsdp, false));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bool deviates = self->rank == 1;
        REQUIRE_OK(shoal_items_create(&arrays.items));
        CHECK_OK(shoal_items_add_fsdp_array(arrays.items, SHOAL_SECTION_OPTIMIZER,
                                            deviates ? rows[i].name : "m",
                                            shoal_fsdp_param_of(arrays.fsdp, deviates ? rows[i].param : 0),
                                            deviates ? rows[i].dtype : SHOAL_F32, data));
        CHECK_STATUS(shoal_checkpoint_save(stage.group, stage.directory, arrays.items, NULL),
                     SHOAL_ERR_MISMATCH);
        CHECK_ERROR_TEXT(rows[i].words);
        shoal_items_free(arrays.items);
    }
    shoal_fsdp_free(arrays.fsdp);
    close_stage(&stage);
}

/* What is refused ---------------------------------------------------------------------------------------------- */

#define CHECK_REFUSED(status, text, ...)                               \
    do {                                                               \
        CHECK_STATUS(shoal_items_add_fsdp_array(__VA_ARGS__), status); \
        CHECK_ERROR_TEXT(text);                                        \
    } while (0)

TEST_RANKS(wrong_arguments, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    shoal_fsdp *fsdp = NULL;
    shoal_items *items = NULL;
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    double data[7 * 30] = {0};
    REQUIRE(world && CHECK_OK(shoal_fsdp_create(shoal_world_group(world), NULL, &fsdp)));
    REQUIRE(add_params(fsdp, false) && CHECK_OK(shoal_items_create(&items)));
    shoal_fsdp_param *param = shoal_fsdp_param_of(fsdp, 0);
    CHECK_REFUSED(SHOAL_ERR_INVALID, "items_add_fsdp_array: items is NULL", NULL, NULL, "m", param, SHOAL_F32,
                  data);
    CHECK_REFUSED(SHOAL_ERR_INVALID, "items_add_fsdp_array: name is NULL", items, NULL, NULL, param,
                  SHOAL_F32, data);
    CHECK_REFUSED(SHOAL_ERR_INVALID, "items_add_fsdp_array: param is NULL", items, NULL, "m", NULL, SHOAL_F32,
                  data);
    CHECK_REFUSED(SHOAL_ERR_INVALID, "items_add_fsdp_array: there is no parameter 9", items, NULL, "m",
                  shoal_fsdp_param_of(fsdp, 9), SHOAL_F32, data);
    CHECK_REFUSED(SHOAL_ERR_INVALID, "items_add_fsdp_array: item model 'm': dtype: 0 is not a dtype", items,
                  NULL, "m", param, (shoal_dtype)0, data);
    CHECK_REFUSED(SHOAL_ERR_UNSUPPORTED, "item model 'm': dtype: checkpoints do not support c128", items,
                  NULL, "m", param, SHOAL_C128, data);
    CHECK_REFUSED(SHOAL_ERR_INVALID, "items_add_fsdp_array: section", items, "a/b", "m", param, SHOAL_F32,
                  data);
    CHECK_REFUSED(SHOAL_ERR_INVALID, "items_add_fsdp_array: name", items, NULL, "\xff", param, SHOAL_F32,
                  data);
    CHECK_REFUSED(SHOAL_ERR_INVALID, "is not aligned to 4 bytes, as f32 is", items, NULL, "m", param,
                  SHOAL_F32, (char *)data + 2);
    CHECK_REFUSED(SHOAL_ERR_INVALID, "data is NULL, but this rank's part of parameter weight has", items,
                  NULL, "m", param, SHOAL_F32, NULL);
    CHECK_OK(shoal_fsdp_read_shard(fsdp, 0, &shard));
    CHECK_REFUSED(SHOAL_ERR_INVALID, "data holds the values of parameter weight itself", items, NULL, "m",
                  param, SHOAL_F32, shard.data);
    CHECK_INT(shoal_items_count(items), 0);

    CHECK_OK(shoal_items_add_fsdp_array(items, NULL, "m", param, SHOAL_F32, data));
    CHECK_REFUSED(SHOAL_ERR_INVALID, "items_add_fsdp_array: name: there is an item model 'm' already", items,
                  NULL, "m", param, SHOAL_F32, data);
    /* A part without elements needs no memory: "one" is on rank 0 alone. */
    CHECK_STATUS(shoal_items_add_fsdp_array(items, NULL, "n", shoal_fsdp_param_of(fsdp, 2), SHOAL_F32, NULL),
                 self->rank == 0 ? SHOAL_ERR_INVALID : SHOAL_OK);
    shoal_items_free(items);
    shoal_fsdp_free(fsdp);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(param_of_a_context_that_was_freed, 1)
{
    shoal_fsdp *fsdp = NULL;
    shoal_items *items = NULL;
    float data[7 * 30] = {0};
    fsdp_handles_keep(100);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world && CHECK_OK(shoal_fsdp_create(shoal_world_group(world), NULL, &fsdp)));
    REQUIRE(add_params(fsdp, false) && CHECK_OK(shoal_items_create(&items)));
    shoal_fsdp_param *param = shoal_fsdp_param_of(fsdp, 0);
    shoal_fsdp_free(fsdp);
    CHECK_REFUSED(SHOAL_ERR_STATE, "items_add_fsdp_array: param is gone", items, NULL, "m", param, SHOAL_F32,
                  data);
    CHECK_INT(shoal_items_count(items), 0);
    shoal_items_free(items);
    CHECK_OK(shoal_world_close(world));
    fsdp_handles_keep(0);
}

/* Modules ------------------------------------------------------------------------------------------------------ */

static shoal_status return_input(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                 shoal_tensor **outputs, size_t n_outputs)
{
    (void)module;
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = inputs[0];
    return SHOAL_OK;
}

TEST_RANKS(parameters_of_modules, 2)
{
    const shoal_module_definition definition = {
        .struct_size = sizeof(definition), .type = "same", .forward = return_input};
    shoal_world *world = rank_world_open(self, 0);
    shoal_fully_shard_options options = SHOAL_FULLY_SHARD_OPTIONS_INIT;
    shoal_module *module = NULL;
    shoal_items *items = NULL;
    shoal_item item = SHOAL_ITEM_INIT;
    double data[2 * 5] = {0};
    REQUIRE(world);
    REQUIRE_OK(shoal_scope_begin());
    CHECK_OK(shoal_module_create(&definition, &module));
    CHECK_OK(shoal_module_add_parameter(module, "w", shoal_zeros((const int64_t[]){3, 5}, 2, SHOAL_F32)));
    options.group = shoal_world_group(world);
    CHECK_OK(shoal_fully_shard(module, &options));
    CHECK_OK(shoal_items_create(&items));
    CHECK_REFUSED(SHOAL_ERR_INVALID, "items_add_fsdp_array: there is no parameter \"v\"", items, NULL, "m",
                  shoal_fully_shard_param(module, "v"), SHOAL_F64, data);
    CHECK_REFUSED(SHOAL_ERR_INVALID, "data holds the values of parameter w itself", items, NULL, "m",
                  shoal_fully_shard_param(module, "w"), SHOAL_F32,
                  shoal_mutable_data(shoal_module_parameter(module, "w")));
    CHECK_OK(shoal_items_add_fsdp_array(items, SHOAL_SECTION_OPTIMIZER, "w.m",
                                        shoal_fully_shard_param(module, "w"), SHOAL_F64, data));
    shoal_module_unref(module);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_items_get(items, 0, &item));
    CHECK_STRING(item.section, SHOAL_SECTION_OPTIMIZER);
    CHECK_STRING(item.name, "w.m");
    CHECK_INT(item.dtype, SHOAL_F64);
    CHECK(item.n_dims == 2 && item.shape[0] == 3 && item.shape[1] == 5);
    CHECK_INT(item.dim, 0);
    CHECK_INT(item.offset, self->rank == 0 ? 0 : 2);
    CHECK_INT(item.length, self->rank == 0 ? 2 : 1);
    CHECK(item.data == data && !item.tensor);
    shoal_items_free(items);
    CHECK_OK(shoal_world_close(world));
}

static shoal_status add_arrays(void *context)
{
    static float data[7 * 30];
    shoal_items *items = NULL;
    shoal_status status = shoal_items_create(&items);
    for (int i = 0; status == SHOAL_OK && i < 8; i++) {
        char name[8];
        (void)snprintf(name, sizeof name, "%d", i);
        status =
            shoal_items_add_fsdp_array(items, NULL, name, shoal_fsdp_param_of(context, 0), SHOAL_F32, data);
        CHECK_INT(shoal_items_count(items), (status == SHOAL_OK ? 1 : 0) + i);
    }
    shoal_items_free(items);
    return status;
}

TEST_RANKS(survives_failing_allocations, 1)
{
    shoal_world *world = rank_world_open(self, 0);
    shoal_fsdp *fsdp = NULL;
    REQUIRE(world && CHECK_OK(shoal_fsdp_create(shoal_world_group(world), NULL, &fsdp)));
    REQUIRE(add_params(fsdp, false));
    if (!self->is_process) {
        CHECK(test_sweep_allocations(add_arrays, fsdp) >= 8);
    }
    shoal_fsdp_free(fsdp);
    CHECK_OK(shoal_world_close(world));
}
