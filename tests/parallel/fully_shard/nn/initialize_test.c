/* SPDX-License-Identifier: MIT */
/*
 * Initial values: those of a parameter depend on seed and path, on nothing else. Shards of any number of ranks, along
 * dimension 0 and 1, with replicas, of parameters that never had memory, get their part of what one process gets.
 */
#include "tree.h"

#include "shoal/ddp.h"
#include "shoal_nn/random.h"

enum {
    ROOM = 2048,
    N_PATHS = 6
};

#define INTS(...) ((int64_t[]){__VA_ARGS__})

static const shoal_nn_distribution normal = SHOAL_NN_NORMAL(0.5, 2);
static const shoal_nn_distribution kaiming = SHOAL_NN_KAIMING_UNIFORM(1.5, SHOAL_NN_FAN_OUT);

static const struct {
    const char *path;
    int n_dims;
    int64_t shape[3];
} rows[N_PATHS] = {
    {"scale", 1, {7}},   {"a.weight", 2, {11, 60}}, /* cut along its columns where the test says so */
    {"a.bias", 1, {11}}, {"b.weight", 3, {13, 60, 2}}, {"b.few", 2, {2, 60}}, /* some shards are empty */
    {"b.bias", 1, {1}},
};

/* In the scope that is open. `is_turned`: parameters and children are added in another order. */
static struct tree make_tree(shoal_dtype dtype, shoal_device device, bool is_turned)
{
    struct tree tree = tree_begin();
    for (int i = 0; i < N_PATHS; i++) {
        int row = is_turned ? N_PATHS - 1 - i : i;
        tree_add(&tree, rows[row].path, shoal_empty_on(rows[row].shape, rows[row].n_dims, dtype, device));
    }
    tree_end(&tree, is_turned);
    return tree;
}

/* Matrices by their fans, the others by the normal distribution. */
static bool initialize(const struct tree *tree)
{
    return CHECK_OK(shoal_nn_initialize(tree->root, "*weight", &kaiming, 42)) &&
           CHECK_OK(shoal_nn_initialize(tree->root, "b.few", &kaiming, 42)) &&
           CHECK_OK(shoal_nn_initialize(tree->root, "?.bias", &normal, 42)) &&
           CHECK_OK(shoal_nn_initialize(tree->root, "scale", &normal, 42));
}

/* What the parameter of that row has to be, computed from the header's words. */
static void compute_whole(int row, shoal_dtype dtype, unsigned char *whole)
{
    const shoal_nn_draws draws = {.seed = 42, .stream = shoal_nn_stream(rows[row].path)};
    const shoal_nn_part all = {rows[row].shape, rows[row].n_dims, 0, 0, rows[row].shape[0]};
    CHECK_OK(shoal_nn_fill_part(&draws, rows[row].n_dims > 1 ? &kaiming : &normal, dtype, &all, whole));
}

static size_t bytes_of(int row, shoal_dtype dtype)
{
    size_t bytes = shoal_dtype_bytes(dtype);
    for (int i = 0; i < rows[row].n_dims; i++) {
        bytes *= (size_t)rows[row].shape[i];
    }
    return bytes;
}

/* Collective, if it is sharded. */
static void check_tree(const struct tree *tree, shoal_dtype dtype, bool is_sharded)
{
    static _Thread_local unsigned char want[8 * ROOM];
    static _Thread_local unsigned char got[8 * ROOM];
    for (int row = 0; row < N_PATHS; row++) {
        size_t bytes = bytes_of(row, dtype);
        REQUIRE(bytes <= sizeof want);
        compute_whole(row, dtype, want);
        if (is_sharded) {
            CHECK_OK(shoal_fsdp_gather(shoal_fully_shard_param(tree->root, rows[row].path), got,
                                       SHOAL_FSDP_ALL_RANKS));
        } else {
            memcpy(got, shoal_data(shoal_module_parameter(tree->root, rows[row].path)), bytes);
        }
        CHECK_BYTES(got, want, bytes);
    }
}

static int cut_columns(void *context, const char *path, const shoal_tensor *parameter)
{
    (void)context;
    (void)path;
    return shoal_tensor_n_dims(parameter) > 1 && shoal_tensor_shape(parameter)[0] != 1 ? 1 : 0;
}

static bool shard(const struct tree *tree, const shoal_fully_shard_options *options)
{
    return CHECK_OK(shoal_fully_shard(tree->a, options)) && CHECK_OK(shoal_fully_shard(tree->b, options)) &&
           CHECK_OK(shoal_fully_shard(tree->root, options));
}

/* Sharded, then initialized; with and without memory before; initialized, then sharded. */
static void check_sharding(const shoal_fully_shard_options *options, shoal_dtype dtype)
{
    struct tree late = make_tree(dtype, SHOAL_CPU, false);
    struct tree meta = make_tree(dtype, SHOAL_META, true);
    struct tree early = make_tree(dtype, SHOAL_CPU, true);
    if (shard(&late, options) && initialize(&late)) {
        check_tree(&late, dtype, true);
    }
    if (shard(&meta, options) && initialize(&meta)) {
        check_tree(&meta, dtype, true);
    }
    if (initialize(&early) && shard(&early, options)) {
        check_tree(&early, dtype, true);
    }
    shoal_module_unref(late.root);
    shoal_module_unref(meta.root);
    shoal_module_unref(early.root);
}

static int count_changed(const struct tree *tree)
{
    int n_changed = 0;
    for (int row = 0; row < N_PATHS; row++) {
        shoal_tensor *parameter = shoal_module_parameter(tree->root, rows[row].path);
        const float *data = shoal_data(parameter);
        bool is_changed = false;
        for (int64_t i = 0; i < shoal_tensor_count(parameter); i++) {
            is_changed = is_changed || data[i] != 0;
        }
        n_changed += is_changed;
    }
    return n_changed;
}

static void clear(const struct tree *tree)
{
    const shoal_nn_distribution zeros = SHOAL_NN_UNIFORM(0, 0);
    CHECK_OK(shoal_nn_initialize(tree->root, "*", &zeros, 1));
    CHECK_INT(count_changed(tree), 0);
}

static void check_ranks(struct rank *self)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_scope_begin());
    shoal_fully_shard_options options = net_options(world);
    check_sharding(&options, SHOAL_F32);
    check_sharding(&options, SHOAL_BF16);
    options.placement = cut_columns;
    check_sharding(&options, SHOAL_F32);
    check_sharding(&options, SHOAL_F64);
    options.placement = NULL;
    options.is_replicated = true;
    check_sharding(&options, SHOAL_F32);
    struct tree tree = make_tree(SHOAL_F32, SHOAL_CPU, false);
    const shoal_ddp_options ddp = {.struct_size = sizeof ddp, .group = shoal_world_group(world)};
    clear(&tree); /* ranks compare what they begin with */
    if (CHECK_OK(shoal_ddp(tree.root, &ddp)) && initialize(&tree)) {
        check_tree(&tree, SHOAL_F32, false);
    }
    shoal_module_unref(tree.root);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(one_rank, 1)
{
    check_ranks(self);
}

TEST_RANKS(two_ranks, 2)
{
    check_ranks(self);
}

TEST_RANKS(three_ranks, 3)
{
    check_ranks(self);
}

TEST_RANKS(four_ranks, 4)
{
    check_ranks(self);
}

TEST_RANKS(five_ranks, 5)
{
    check_ranks(self);
}

TEST_RANKS(replicas_of_shards, 4)
{
    static const char *const names[] = {"replicas", "shards"};
    shoal_mesh *mesh = NULL;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_scope_begin());
    REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, (const int[]){2, 2}, 2, names, &mesh));
    shoal_fully_shard_options options = SHOAL_FULLY_SHARD_OPTIONS_INIT;
    options.mesh = mesh;
    check_sharding(&options, SHOAL_F32);
    shoal_mesh_free(mesh);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

/* Modules that are not sharded -------------------------------------------------------------------------- */

TEST(plain_modules)
{
    const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_F64, SHOAL_BF16, SHOAL_F16};
    REQUIRE_OK(shoal_scope_begin());
    for (size_t i = 0; i < 8; i++) {
        struct tree tree = make_tree(dtypes[i / 2], SHOAL_CPU, i % 2 == 1);
        CHECK(initialize(&tree));
        check_tree(&tree, dtypes[i / 2], false);
        shoal_module_unref(tree.root);
    }
    CHECK_OK(shoal_scope_end());
}

/* A parameter without dimensions, and one with strides. */
TEST(shapes_that_are_rare)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_module *module = net_make_module("rare", tree_pass_on, NULL);
    shoal_tensor *number = shoal_zeros(NULL, 0, SHOAL_F32);
    shoal_tensor *turned = shoal_transpose(shoal_zeros(INTS(5, 3), 2, SHOAL_BF16), 0, 1);
    shoal_tensor *plain = shoal_zeros(INTS(3, 5), 2, SHOAL_BF16);
    float first = 0;
    const shoal_nn_draws at_number = {.seed = 1, .stream = shoal_nn_stream("number")};
    const shoal_nn_draws at_turned = {.seed = 1, .stream = shoal_nn_stream("turned")};
    CHECK_OK(shoal_module_add_parameter(module, "number", number));
    CHECK_OK(shoal_module_add_parameter(module, "turned", turned));
    CHECK_OK(shoal_nn_initialize(module, "*", &normal, 1));
    CHECK_OK(
        shoal_nn_fill_part(&at_number, &normal, SHOAL_F32, &(shoal_nn_part){INTS(1), 1, 0, 0, 1}, &first));
    CHECK_OK(shoal_nn_fill(&at_turned, &normal, plain));
    CHECK_BYTES(shoal_data(number), &first, sizeof first);
    CHECK_BYTES(shoal_data(shoal_contiguous(turned)), shoal_data(plain), 30);
    shoal_module_unref(module);
    CHECK_OK(shoal_scope_end());
}

TEST(patterns_choose)
{
    static const struct {
        const char *pattern;
        int n_changed; /* 0: an error */
    } patterns[] = {{"*", 6},      {"**", 6},     {"scale", 1}, {"scal", 0},   {"scale?", 0}, {"scal?", 1},
                    {"*.bias", 2}, {"*bias*", 2}, {"b.*", 3},   {"?.?ias", 2}, {"*e*e", 0},   {"*e*h*", 2},
                    {"a.tied", 0}, {"", 0},       {"*.*.*", 0}, {"a*t", 1},    {"*a*s*", 2},  {"b.f*w", 1}};
    REQUIRE_OK(shoal_scope_begin());
    struct tree tree = make_tree(SHOAL_F32, SHOAL_CPU, false);
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
        clear(&tree);
        shoal_status status = shoal_nn_initialize(tree.root, patterns[i].pattern, &normal, 1);
        CHECK_STATUS(status, patterns[i].n_changed > 0 ? SHOAL_OK : SHOAL_ERR_INVALID);
        if (count_changed(&tree) != patterns[i].n_changed) {
            test_failed(__FILE__, __LINE__, "\"%s\": %d", patterns[i].pattern, count_changed(&tree));
        }
    }
    CHECK_STATUS(shoal_nn_initialize(tree.root, "a.wait", &normal, 1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_initialize: no parameter has a path like \"a.wait\"");
    shoal_module_unref(tree.root);
    CHECK_OK(shoal_scope_end());
}

TEST(what_fails_changes_nothing)
{
    const shoal_nn_distribution wrong = SHOAL_NN_NORMAL(0, -1);
    REQUIRE_OK(shoal_scope_begin());
    struct tree tree = make_tree(SHOAL_F32, SHOAL_CPU, false);
    clear(&tree);
    CHECK_STATUS(shoal_nn_initialize(NULL, "*", &normal, 1), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_nn_initialize(tree.root, NULL, &normal, 1), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_nn_initialize(tree.root, "*", NULL, 1), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_nn_initialize(tree.root, "*", &wrong, 1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_initialize: std: -1");
    CHECK_STATUS(shoal_nn_initialize(tree.root, "a.*", &kaiming, 1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_initialize: parameter a.bias: 1 dimensions");
    CHECK_OK(shoal_module_add_parameter(tree.b, "integers", shoal_zeros(INTS(2), 1, SHOAL_I32)));
    CHECK_STATUS(shoal_nn_initialize(tree.root, "*", &normal, 1), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("parameter b.integers: i32");
    CHECK_OK(shoal_module_add_parameter(tree.a, "empty", shoal_empty_on(INTS(2), 1, SHOAL_F32, SHOAL_META)));
    CHECK_STATUS(shoal_nn_initialize(tree.root, "a.*", &normal, 1), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("parameter a.empty: a tensor on the meta device");
    CHECK_INT(count_changed(&tree), 0);
    shoal_module_unref(tree.root);
    CHECK_OK(shoal_scope_end());
}

static shoal_status initialize_once(void *context)
{
    shoal_status status = shoal_nn_initialize(context, "*", &normal, 1);
    return status;
}

TEST(failing_allocations_are_errors)
{
    REQUIRE_OK(shoal_scope_begin());
    struct tree tree = make_tree(SHOAL_F32, SHOAL_CPU, false);
    CHECK(test_sweep_allocations(initialize_once, tree.root) > 0);
    clear(&tree);
    test_fail_allocation(1, /*is_lasting=*/true);
    CHECK_STATUS(shoal_nn_initialize(tree.root, "*", &normal, 1), SHOAL_ERR_NO_MEMORY);
    test_fail_allocation(0, false);
    CHECK_INT(count_changed(&tree), 0);
    shoal_module_unref(tree.root);
    CHECK_OK(shoal_scope_end());
}

/* Shards that are not as they were ---------------------------------------------------------------------- */

/* What was ignored stays whole. */
TEST_RANKS(ignored_parameters, 2)
{
    unsigned char want[ROOM];
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_scope_begin());
    struct tree tree = make_tree(SHOAL_F32, SHOAL_CPU, false);
    shoal_tensor *ignored[] = {shoal_module_parameter(tree.b, "few")};
    shoal_fully_shard_options options = net_options(world);
    options.ignored = ignored;
    options.n_ignored = 1;
    CHECK(shard(&tree, &options) && initialize(&tree));
    REQUIRE(bytes_of(4, SHOAL_F32) <= sizeof want);
    compute_whole(4, SHOAL_F32, want);
    CHECK_BYTES(shoal_data(ignored[0]), want, bytes_of(4, SHOAL_F32));
    shoal_module_unref(tree.root);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

static shoal_status to_f64(void *context, const shoal_module_entry *entry, shoal_tensor **tensor)
{
    (void)context;
    *tensor = shoal_to_dtype(entry->tensor, SHOAL_F64);
    return *tensor ? SHOAL_OK : shoal_scope_error();
}

/* Shards of another dtype, put in place before the first call: they are found as what they will be. */
TEST_RANKS(shards_that_were_replaced, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_scope_begin());
    struct tree tree = make_tree(SHOAL_F32, SHOAL_CPU, false);
    shoal_fully_shard_options options = net_options(world);
    clear(&tree);
    CHECK(shard(&tree, &options));
    CHECK_OK(shoal_module_apply(tree.root, SHOAL_WALK_PARAMETERS, to_f64, NULL));
    CHECK(initialize(&tree));
    CHECK(shoal_module_call_one(tree.root, shoal_zeros(INTS(2), 1, SHOAL_F64)) != NULL);
    check_tree(&tree, SHOAL_F64, true);
    shoal_module_unref(tree.root);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

/* Where gathered parameters are in the tree they can only be read. */
TEST_RANKS(gathered_parameters_are_not_written, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_scope_begin());
    struct tree tree = make_tree(SHOAL_F32, SHOAL_CPU, false);
    shoal_fully_shard_options options = net_options(world);
    CHECK(shard(&tree, &options) && initialize(&tree));
    CHECK_OK(shoal_fsdp_unshard(shoal_fully_shard_unit(tree.a, false)));
    CHECK_OK(shoal_fsdp_wait(shoal_fully_shard_unit(tree.a, false)));
    CHECK_STATUS(shoal_nn_initialize(tree.root, "*", &normal, 1), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("parameter a.weight");
    CHECK_OK(shoal_fsdp_reshard(shoal_fully_shard_unit(tree.a, false)));
    check_tree(&tree, SHOAL_F32, true);
    shoal_module_unref(tree.root);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

/* With the program's own memory (shoal/fsdp.h), as the header says. */
TEST_RANKS(explicit_shards, 3)
{
    static _Thread_local float want[ROOM];
    static _Thread_local float got[ROOM];
    shoal_world *world = rank_world_open(self, 0);
    shoal_fsdp *fsdp = NULL;
    const shoal_nn_draws draws = {.seed = 3, .stream = shoal_nn_stream("w")};
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), NULL, &fsdp));
    for (int dim = 0; dim < 2; dim++) {
        int id = 0;
        shoal_shard_layout layout = SHOAL_SHARD_LAYOUT_INIT;
        shoal_fsdp_shard part_of_rank = SHOAL_FSDP_SHARD_INIT;
        REQUIRE_OK(shoal_fsdp_add_param_along(fsdp, dim, dim == 0 ? "w" : "v", SHOAL_F32, 2,
                                              INTS(dim == 0 ? 7 : 8, 30), dim, NULL, &id));
        REQUIRE_OK(shoal_fsdp_get_layout(shoal_fsdp_param_of(fsdp, id), &layout));
        REQUIRE_OK(shoal_fsdp_update_shard(fsdp, id, &part_of_rank));
        const shoal_nn_part part = {layout.shape, layout.n_dims, layout.dim, layout.offset, layout.length};
        const shoal_nn_part all = {layout.shape, layout.n_dims, 0, 0, layout.shape[0]};
        CHECK_OK(shoal_nn_fill_part(&draws, &kaiming, layout.dtype, &part, part_of_rank.data));
        CHECK_OK(shoal_nn_fill_part(&draws, &kaiming, layout.dtype, &all, want));
        CHECK_OK(shoal_fsdp_gather(shoal_fsdp_param_of(fsdp, id), got, SHOAL_FSDP_ALL_RANKS));
        CHECK_BYTES(got, want, layout.count * sizeof(float));
    }
    shoal_fsdp_free(fsdp);
    CHECK_OK(shoal_world_close(world));
}
