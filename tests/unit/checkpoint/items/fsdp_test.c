/* SPDX-License-Identifier: MIT */
/*
 * Items of contexts of FSDP: parts lie where they say, reading changes nothing and may differ between ranks, and what
 * was written is gathered again.
 */
#include <stdio.h>
#include <string.h>

#include "checkpoint/items/items.h"
#include "fixtures/rank_world.h"
#include "fixtures/scoped.h"
#include "shoal/fsdp.h"
#include "shoal/fully_shard.h"
#include "shoal/items.h"
#include "shoal/ops.h"

static const struct row {
    const char *name;
    int unit;
    int dim;
    int n_dims;
    int64_t shape[2];
} rows[] = {
    {"first", 0, 0, 2, {5, 3}}, {"second", 0, 1, 2, {3, 12}}, {"third", 1, 0, 1, {2}}, {"one", 1, 0, 1, {1}}};
enum {
    N_ROWS = 4,
    MAX_ELEMENTS = 36
};

static int64_t count_of(int row)
{
    return rows[row].shape[0] * (rows[row].n_dims > 1 ? rows[row].shape[1] : 1);
}

static double value_of(int row, int64_t element, int round)
{
    return (double)(100 * row + element + 1000 * round);
}

static void add_params(shoal_fsdp *fsdp)
{
    for (int i = 0; i < N_ROWS; i++) {
        double whole[MAX_ELEMENTS];
        for (int64_t k = 0; k < count_of(i); k++) {
            whole[k] = value_of(i, k, 0);
        }
        CHECK_OK(shoal_fsdp_add_param_along(fsdp, rows[i].unit, rows[i].name, SHOAL_F64, rows[i].n_dims,
                                            rows[i].shape, rows[i].dim, whole, NULL));
    }
}

/* Reads or writes all elements of a part. */
static void walk_part(const struct item_part *part, int row, int round, bool is_written)
{
    int n_dims = rows[row].n_dims;
    int64_t width = n_dims > 1 ? part->region.length[1] : 1;
    int64_t row_elements = n_dims > 1 ? rows[row].shape[1] : 1;
    for (int64_t k = 0; k < region_count(&part->region, n_dims); k++) {
        int64_t element = (part->region.begin[0] + k / width) * row_elements +
                          (n_dims > 1 ? part->region.begin[1] + k % width : 0);
        double *at = (double *)part->data + k / width * part->strides[0] +
                     (n_dims > 1 ? k % width * part->strides[1] : 0);
        if (is_written) {
            *at = value_of(row, element, round);
        } else {
            CHECK_DOUBLE(*at, value_of(row, element, round));
        }
    }
}

static void read_parts(const shoal_items *items, int n_rows, int round)
{
    for (int i = 0; i < n_rows; i++) {
        struct item_part part;
        REQUIRE_OK(items_part(items, (size_t)i, 0.0, &part));
        walk_part(&part, i, round, false);
    }
}

static void write_parts(shoal_items *items, int round)
{
    for (int i = 0; i < N_ROWS; i++) {
        struct item_part part;
        REQUIRE_OK(items_mutable_part(items, (size_t)i, 0.0, &part));
        walk_part(&part, i, round, true);
    }
}

/* A forward of both units sees these values. */
static void check_forward(shoal_fsdp *fsdp, int round)
{
    for (int unit = 0; unit < 2; unit++) {
        REQUIRE_OK(shoal_fsdp_pre_forward(fsdp, unit));
        for (int i = 0; i < N_ROWS; i++) {
            const double *whole = rows[i].unit == unit ? shoal_fsdp_full_param(fsdp, i) : NULL;
            for (int64_t k = 0; whole && k < count_of(i); k++) {
                CHECK_DOUBLE(whole[k], value_of(i, k, round));
            }
        }
        REQUIRE_OK(shoal_fsdp_post_forward(fsdp, unit));
    }
}

static void check_infos(const shoal_items *items, const shoal_fsdp *fsdp)
{
    char name[32];
    CHECK_INT(shoal_items_count(items), N_ROWS);
    for (int i = 0; i < N_ROWS; i++) {
        struct item_info info;
        shoal_item item = SHOAL_ITEM_INIT;
        shoal_shard_layout layout = SHOAL_SHARD_LAYOUT_INIT;
        items_info(items, (size_t)i, &info);
        (void)snprintf(name, sizeof(name), "net.%s", rows[i].name);
        CHECK_STRING(info.name, name);
        CHECK_INT(info.dtype, SHOAL_F64);
        CHECK_INT(info.n_dims, rows[i].n_dims);
        CHECK_BYTES(info.shape, rows[i].shape, (size_t)info.n_dims * sizeof(int64_t));
        CHECK_OK(shoal_items_get(items, (size_t)i, &item));
        CHECK_OK(shoal_fsdp_get_layout(shoal_fsdp_param_of((shoal_fsdp *)fsdp, i), &layout));
        CHECK_INT(item.dim, layout.dim);
        CHECK_INT(item.offset, layout.offset);
        CHECK_INT(item.length, layout.length);
        CHECK(!item.tensor && !item.data);
    }
}

static void try_context(struct rank *self, shoal_fsdp *fsdp)
{
    shoal_items *items = NULL;
    add_params(fsdp);
    CHECK_OK(shoal_items_create(&items));
    CHECK_OK(shoal_items_add_fsdp(items, "net.", fsdp));
    check_infos(items, fsdp);
    read_parts(items, N_ROWS, 0);
    check_forward(fsdp, 0);
    /* Ranks may differ in what they read. */
    read_parts(items, self->rank == 0 ? N_ROWS : 0, 0);
    check_forward(fsdp, 0);
    write_parts(items, 1);
    check_forward(fsdp, 1);
    read_parts(items, N_ROWS, 1);
    CHECK_OK(shoal_fsdp_end_forward(fsdp));
    shoal_items_free(items);
}

/* Parameters stay gathered, so that what was written must be noticed. */
static void try_contexts(struct rank *self)
{
    static const char *const names[] = {"replicas", "shards"};
    shoal_world *world = rank_world_open(self, 0);
    shoal_fsdp_options options = SHOAL_FSDP_OPTIONS_INIT;
    shoal_mesh *mesh = NULL;
    shoal_fsdp *fsdp = NULL;
    options.reshard = SHOAL_RESHARD_NEVER;
    REQUIRE(world);
    for (int sharded = 0; sharded < 3; sharded++) {
        options.sharded = (shoal_sharded)sharded;
        REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), &options, &fsdp));
        try_context(self, fsdp);
        shoal_fsdp_free(fsdp);
    }
    options.sharded = SHOAL_SHARDED_PARAMETERS;
    REQUIRE_OK(shoal_fsdp_create_replicated(shoal_world_group(world), &options, &fsdp));
    try_context(self, fsdp);
    shoal_fsdp_free(fsdp);
    if (self->n_ranks == 4) {
        CHECK_OK(shoal_mesh_create(world, "cpu", NULL, (const int[]){2, 2}, 2, names, &mesh));
        REQUIRE_OK(shoal_fsdp_create_on_mesh(mesh, &options, &fsdp));
        try_context(self, fsdp);
        shoal_fsdp_free(fsdp);
        shoal_mesh_free(mesh);
    }
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(one_rank, 1)
{
    try_contexts(self);
}

TEST_RANKS(two_ranks, 2)
{
    try_contexts(self);
}

TEST_RANKS(three_ranks, 3)
{
    try_contexts(self);
}

TEST_RANKS(four_ranks, 4)
{
    try_contexts(self);
}

/* A load between a forward and its backward pass: the backward pass would see other values, and says so. After a
   whole step there is nothing to refuse, whatever stays gathered. */
TEST_RANKS(a_load_after_a_forward, 3)
{
    static const int64_t shape[] = {2, 2}; /* nothing of it on the last rank */
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    for (int sharded = 0; sharded < 3; sharded++) {
        shoal_fsdp_options options = SHOAL_FSDP_OPTIONS_INIT;
        shoal_fsdp *fsdp = NULL;
        shoal_items *items = NULL;
        struct item_part part;
        options.sharded = (shoal_sharded)sharded;
        REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), &options, &fsdp));
        REQUIRE_OK(shoal_fsdp_add_param(fsdp, 0, "p", SHOAL_F32, 2, shape, NULL, NULL));
        CHECK_OK(shoal_items_create(&items));
        CHECK_OK(shoal_items_add_fsdp(items, "", fsdp));
        CHECK_OK(shoal_fsdp_pre_forward(fsdp, 0));
        CHECK_OK(shoal_fsdp_post_forward(fsdp, 0));
        CHECK_OK(items_part(items, 0, 0.0, &part));
        CHECK_OK(items_mutable_part(items, 0, 0.0, &part));
        CHECK_STATUS(shoal_fsdp_pre_backward(fsdp, 0), SHOAL_ERR_STATE);
        CHECK_ERROR_TEXT("were loaded after its forward pass");
        CHECK_OK(shoal_fsdp_reset(fsdp));
        for (int step = 0; step < 2; step++) {
            CHECK_OK(shoal_fsdp_pre_forward(fsdp, 0));
            CHECK_OK(shoal_fsdp_post_forward(fsdp, 0));
            CHECK_OK(shoal_fsdp_pre_backward(fsdp, 0));
            CHECK(shoal_fsdp_grad(fsdp, 0));
            CHECK_OK(shoal_fsdp_post_backward(fsdp, 0));
            CHECK_OK(shoal_fsdp_end_backward(fsdp));
            CHECK_OK(items_mutable_part(items, 0, 0.0, &part));
        }
        shoal_items_free(items);
        shoal_fsdp_free(fsdp);
    }
    CHECK_OK(shoal_world_close(world));
}

/* What is refused ---------------------------------------------------------------------------------------------- */

static void check_refused(shoal_items *items, shoal_fsdp *fsdp, const char *prefix, shoal_status status,
                          const char *text)
{
    size_t count = shoal_items_count(items);
    CHECK_STATUS(shoal_items_add_fsdp(items, prefix, fsdp), status);
    CHECK_ERROR_TEXT(text);
    CHECK_INT(shoal_items_count(items), count);
}

static shoal_fsdp *make_context(shoal_world *world, const char *first, const char *second, shoal_dtype dtype)
{
    static const int64_t shape[] = {4};
    shoal_fsdp *fsdp = NULL;
    CHECK_OK(shoal_fsdp_create(shoal_world_group(world), NULL, &fsdp));
    CHECK_OK(shoal_fsdp_add_param(fsdp, 0, first, SHOAL_F32, 1, shape, NULL, NULL));
    CHECK_OK(shoal_fsdp_add_param(fsdp, 0, second, dtype, 1, shape, NULL, NULL));
    return fsdp;
}

TEST_RANKS(wrong_contexts, 1)
{
    static const struct {
        const char *names[2];
        const char *prefix;
        const char *text;
    } wrong[] = {{{"a", ""}, "", "items_add_fsdp: parameter 1 has no name"},
                 {{"a", "a"}, "", "items_add_fsdp: parameter 1: name: there is an item model 'a' already"},
                 {{"a", "\xff"}, "", "items_add_fsdp: parameter 1: name"},
                 {{"a", "b"}, "\xff", "items_add_fsdp: parameter 0: name"},
                 {{"a", "metadata__"}, "__", "is reserved for the metadata"},
                 {{"a", "taken"}, "", "items_add_fsdp: name: there is an item model 'taken' already"}};
    shoal_world *world = rank_world_open(self, 0);
    shoal_items *items = NULL;
    shoal_fsdp *fsdp = NULL;
    float data = 0;
    const shoal_item item = {
        .struct_size = sizeof(item), .name = "taken", .dtype = SHOAL_F32, .dim = -1, .data = &data};
    REQUIRE(world);
    CHECK_OK(shoal_items_create(&items));
    CHECK_OK(shoal_items_add(items, &item));
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        fsdp = make_context(world, wrong[i].names[0], wrong[i].names[1], SHOAL_F32);
        check_refused(items, fsdp, wrong[i].prefix, SHOAL_ERR_INVALID, wrong[i].text);
        shoal_fsdp_free(fsdp);
    }
    fsdp = make_context(world, "a", "b", SHOAL_C128);
    check_refused(items, fsdp, "", SHOAL_ERR_UNSUPPORTED,
                  "items_add_fsdp: parameter 1: checkpoints do not support c128");
    shoal_fsdp_free(fsdp);
    fsdp = make_context(world, "a", "b", SHOAL_F32);
    check_refused(items, fsdp, NULL, SHOAL_ERR_INVALID, "items_add_fsdp: prefix is NULL");
    check_refused(items, NULL, "", SHOAL_ERR_INVALID, "items_add_fsdp: fsdp is NULL");
    check_refused(NULL, fsdp, "", SHOAL_ERR_INVALID, "items_add_fsdp: items is NULL");
    CHECK_OK(shoal_items_add_fsdp(items, "", fsdp));
    CHECK_INT(shoal_items_find(items, NULL, "b"), 2);

    /* In the middle of a backward pass values may change at any time. */
    struct item_part part;
    CHECK_OK(shoal_fsdp_pre_forward(fsdp, 0));
    CHECK_OK(items_part(items, 2, 0.0, &part));
    CHECK_OK(shoal_fsdp_post_forward(fsdp, 0));
    CHECK_OK(shoal_fsdp_pre_backward(fsdp, 0));
    CHECK_STATUS(items_part(items, 2, 0.0, &part), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("item model 'b': read_shard: ");
    CHECK_STATUS(items_mutable_part(items, 2, 0.0, &part), SHOAL_ERR_STATE);
    CHECK_OK(shoal_fsdp_post_backward(fsdp, 0));
    CHECK_OK(shoal_fsdp_end_backward(fsdp));
    CHECK_OK(items_part(items, 2, 0.0, &part));
    shoal_items_free(items);
    shoal_fsdp_free(fsdp);
    CHECK_OK(shoal_world_close(world));
}

static shoal_status return_input(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                 shoal_tensor **outputs, size_t n_outputs)
{
    (void)module;
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = inputs[0];
    return SHOAL_OK;
}

/* The context of a module has no parameters of its own. */
TEST_RANKS(contexts_of_modules, 1)
{
    const shoal_module_definition definition = {
        .struct_size = sizeof(definition), .type = "same", .forward = return_input};
    shoal_world *world = rank_world_open(self, 0);
    shoal_fully_shard_options options = SHOAL_FULLY_SHARD_OPTIONS_INIT;
    shoal_module *module = NULL;
    shoal_items *items = NULL;
    shoal_fsdp *fsdp = NULL;
    REQUIRE(world);
    REQUIRE_OK(shoal_scope_begin());
    CHECK_OK(shoal_module_create(&definition, &module));
    CHECK_OK(shoal_module_add_parameter(module, "w", shoal_zeros((const int64_t[]){3}, 1, SHOAL_F32)));
    options.group = shoal_world_group(world);
    CHECK_OK(shoal_fully_shard(module, &options));
    CHECK_OK(shoal_fully_shard_context(module, &fsdp));
    CHECK_OK(shoal_items_create(&items));
    check_refused(items, fsdp, "", SHOAL_ERR_INVALID, "items_add_fsdp: fsdp: the context has no parameters");
    shoal_items_free(items);
    shoal_module_unref(module);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

static shoal_status add_context(void *context)
{
    shoal_items *items = NULL;
    shoal_status status = shoal_items_create(&items);
    for (int i = 0; status == SHOAL_OK && i < 8; i++) {
        char prefix[8];
        size_t count = shoal_items_count(items);
        (void)snprintf(prefix, sizeof(prefix), "%d.", i);
        status = shoal_items_add_fsdp(items, prefix, context);
        CHECK_INT(shoal_items_count(items), count + (status == SHOAL_OK ? 2 : 0));
    }
    shoal_items_free(items);
    return status;
}

TEST_RANKS(survives_failing_allocations, 1)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_fsdp *fsdp = make_context(world, "a", "b", SHOAL_F32);
    if (!self->is_process) {
        CHECK(test_sweep_allocations(add_context, fsdp) >= 20);
    }
    shoal_fsdp_free(fsdp);
    CHECK_OK(shoal_world_close(world));
}
