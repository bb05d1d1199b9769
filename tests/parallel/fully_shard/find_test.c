/* SPDX-License-Identifier: MIT */
/* Parameters by what a walk has come to: sharded ones, tied ones, replaced ones, and those that are not sharded. */
#include "fixtures/on_device.h"

#include "fixtures/module_bench.h"

struct search {
    shoal_module *root;
    const char *path;
    shoal_fsdp_param *param;
    bool is_found;
};

static shoal_status visit(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct search *search = context;
    (void)next;
    if (strcmp(entry->path, search->path) != 0) {
        return SHOAL_OK;
    }
    search->is_found = true;
    return shoal_fully_shard_find_param(search->root, entry, &search->param);
}

static shoal_fsdp_param *find(shoal_module *root, const char *path)
{
    struct search search = {.root = root, .path = path};
    CHECK_OK(shoal_module_walk(root, SHOAL_WALK_PARAMETERS | SHOAL_WALK_DUPLICATES, visit, &search));
    CHECK(search.is_found);
    return search.param;
}

TEST_RANKS(parameters_of_a_walk, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    shoal_module *root = bench.sharded.root;
    shoal_module *layer = bench.sharded.layers[1];
    shoal_tensor *ignored[] = {shoal_module_parameter(layer, "bias")};
    CHECK_OK(shoal_module_add_parameter(layer, "tied", shoal_module_parameter(layer, "weight")));
    CHECK(find(root, "0.weight") == NULL);
    CHECK_STRING(shoal_error_text(), "");
    bench.options.ignored = ignored;
    bench.options.n_ignored = 1;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK(find(root, "1.bias") == NULL);
    CHECK(find(root, "0.bias") == shoal_fully_shard_param(root, "0.bias"));
    CHECK(find(root, "scale") == shoal_fully_shard_param(root, "scale"));
    CHECK(find(root, "1.tied") == shoal_fully_shard_param(root, "1.weight"));
    CHECK(find(layer, "weight") == shoal_fully_shard_param(root, "1.weight"));
    CHECK(find(bench.alone.root, "0.weight") == NULL);
    /* The same while gathered parameters are in the tree. */
    CHECK_OK(shoal_fsdp_unshard(shoal_fully_shard_unit(layer, false)));
    CHECK_OK(shoal_fsdp_wait(shoal_fully_shard_unit(layer, false)));
    CHECK(find(root, "1.weight") == shoal_fully_shard_param(root, "1.weight"));
    CHECK(find(root, "1.weight") != NULL);
    CHECK_OK(shoal_fsdp_reshard(shoal_fully_shard_unit(layer, false)));
    bench_close(&bench);
}

static shoal_status to_f64(void *context, const shoal_module_entry *entry, shoal_tensor **tensor)
{
    (void)context;
    *tensor = shoal_to_dtype(entry->tensor, SHOAL_F64);
    return *tensor ? SHOAL_OK : shoal_scope_error();
}

/* By its place, which shoal_fully_shard_param does not look at. */
TEST_RANKS(a_tensor_in_the_place_of_a_shard, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    shoal_fsdp_param *before = shoal_fully_shard_param(bench.sharded.root, "0.weight");
    CHECK_OK(shoal_module_apply(bench.sharded.root, SHOAL_WALK_PARAMETERS, to_f64, NULL));
    CHECK(shoal_fully_shard_param(bench.sharded.root, "0.weight") == NULL);
    CHECK(before && find(bench.sharded.root, "0.weight") == before);
    bench_close(&bench);
}

TEST_RANKS(arguments_that_are_wrong, 1)
{
    struct bench bench;
    shoal_fsdp_param *param = NULL;
    shoal_module_entry entry = SHOAL_MODULE_ENTRY_INIT;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    shoal_module *root = bench.sharded.root;
    CHECK_STATUS(shoal_fully_shard_find_param(NULL, &entry, &param), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("fully_shard_find_param: module is NULL");
    CHECK_STATUS(shoal_fully_shard_find_param(root, NULL, &param), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("entry is NULL");
    CHECK_STATUS(shoal_fully_shard_find_param(root, &entry, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("param_out is NULL");
    CHECK_STATUS(shoal_fully_shard_find_param(root, &entry, &param), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("kind is 0, a parameter expected");
    bench_close(&bench);
}
