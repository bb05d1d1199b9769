/* SPDX-License-Identifier: MIT */
/*
 * Making sharded modules: which parameters a unit takes and what it calls them, over which ranks, along which dimension;
 * and tensors that are put in the places of shards before the first forward.
 */
#include "fixtures/on_device.h"

#include "fixtures/fsdp_handles.h"
#include "fixtures/module_bench.h"
#include "shoal/ddp.h"

/* Who has what ----------------------------------------------------------------------------------------------- */

/* The parameters of a unit, each with the number of its places: "0.weight*2 0.bias*1". */
static void check_unit(const shoal_module *module, const char *wanted)
{
    char text[512] = "";
    const struct fsdp_wrapper *wrapper = fsdp_wrapper_of(module);
    REQUIRE(wrapper != NULL);
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        size_t length = strlen(text);
        (void)snprintf(text + length, sizeof text - length, "%s%s*%zu", i > 0 ? " " : "",
                       wrapper->unit->params[i].name, wrapper->tensors[i].n_places);
    }
    (void)CHECK_STRING(text, wanted);
}

/* Units in the order of a walk, by their names. */
static void check_units(const struct net *net, const char *wanted)
{
    char text[512] = "";
    struct fsdp_wrapper *wrapper = fsdp_wrapper_of(net->root);
    REQUIRE_OK(fsdp_wrapper_prepare(wrapper));
    for (size_t i = 0; i < wrapper->root->context->n_units; i++) {
        size_t length = strlen(text);
        const struct fsdp_unit *unit = wrapper->root->context->units[i];
        (void)snprintf(text + length, sizeof text - length, "%s%s%s", i > 0 ? "; " : "", unit->name,
                       ((struct fsdp_wrapper *)unit->owner)->is_root ? " (root)" : "");
    }
    (void)CHECK_STRING(text, wanted);
}

static shoal_status block_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = net_call(module, "b", net_call(module, "a", inputs[0]));
    return SHOAL_OK;
}

static shoal_module *add_block(struct net *net, const char *name)
{
    shoal_module *block = net_make_module("block", block_forward, NULL);
    for (uint32_t i = 0; i < 2; i++) {
        shoal_module *layer = net_make_layer(500 + 10 * i);
        (void)CHECK_OK(shoal_module_add_child(block, i == 0 ? "a" : "b", layer));
        shoal_module_unref(layer);
    }
    (void)CHECK_OK(shoal_module_add_child(net->root, name, block));
    shoal_module_unref(block);
    return block;
}

/* One unit of everything; units inside, whose parameters are theirs; lists; a tied parameter; a module in two places. */
TEST_RANKS(what_units_take, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    CHECK_OK(shoal_fully_shard(bench.sharded.root, &bench.options));
    check_units(&bench.sharded, "net (root)");
    check_unit(bench.sharded.root, "scale*1 0.weight*1 0.bias*1 1.weight*1 1.bias*1");
    net_free(&bench.sharded);

    net_make(&bench.sharded, 4, NULL);
    shoal_module *block = add_block(&bench.sharded, "block");
    CHECK_OK(shoal_fully_shard(shoal_module_child(block, "b"), &bench.options));
    CHECK_OK(shoal_fully_shard(block, &bench.options));
    CHECK_OK(shoal_fully_shard_list(&bench.sharded.layers[1], 2, &bench.options));
    CHECK_OK(shoal_module_set_parameter(bench.sharded.root, "3.weight",
                                        shoal_module_parameter(bench.sharded.root, "0.weight")));
    CHECK_OK(shoal_module_add_child(bench.sharded.root, "same", bench.sharded.layers[3]));
    CHECK_OK(shoal_fully_shard(bench.sharded.root, &bench.options));
    check_units(&bench.sharded, "net (root); 1, 2; block; block.b");
    check_unit(bench.sharded.root, "scale*1 0.weight*2 0.bias*1 3.bias*1");
    check_unit(bench.sharded.layers[1], "1.weight*1 1.bias*1 2.weight*1 2.bias*1");
    check_unit(block, "block.a.weight*1 block.a.bias*1");
    check_unit(shoal_module_child(block, "b"), "block.b.weight*1 block.b.bias*1");
    CHECK(!fsdp_wrapper_of(block)->is_root && fsdp_wrapper_of(bench.sharded.root)->is_root);
    shoal_tensor *loss = net_loss(&bench.sharded, net_input(0, self->rank));
    for (int i = 0; i < 2; i++) { /* of no unit is anything left that should run */
        const struct fsdp_root *root = fsdp_wrapper_of(bench.sharded.root)->root;
        for (size_t k = 0; k < root->n_wrappers; k++) {
            CHECK_INT(root->wrappers[k]->n_run, 0);
        }
        CHECK(i == 1 || CHECK_OK(shoal_backward(loss, NULL)));
    }
    bench_close(&bench);
}

/* Gathered by hand, before it is known what is around it: a parameter of two units is found all the same. */
TEST_RANKS(tied_and_gathered_by_hand, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    CHECK_OK(shoal_module_set_parameter(bench.sharded.root, "1.weight",
                                        shoal_module_parameter(bench.sharded.root, "0.weight")));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(shoal_fsdp_unshard(shoal_fully_shard_unit(bench.sharded.layers[i], false)));
        CHECK_OK(shoal_fsdp_wait(shoal_fully_shard_unit(bench.sharded.layers[i], false)));
    }
    CHECK_OK(shoal_scope_begin());
    CHECK(shoal_module_call_one(bench.sharded.root, net_input(0, 0)) == NULL);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("is in two units, 0 and 1");
    bench_close(&bench);
}

/* A list of a module, one inside of it, and one inside of that: the outermost is the unit. */
TEST_RANKS(lists_with_modules_inside_others, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    shoal_module *block = add_block(&bench.sharded, "block");
    (void)add_block(&bench.alone, "block");
    shoal_module *const list[] = {shoal_module_child(block, "b"), block, bench.sharded.layers[0],
                                  shoal_module_child(block, "a")};
    bench.options.reshard = SHOAL_RESHARD_ALWAYS;
    CHECK_OK(shoal_fully_shard_list(list, 4, &bench.options));
    CHECK(shoal_is_fully_sharded(block) && shoal_is_fully_sharded(bench.sharded.layers[0]));
    CHECK(!shoal_is_fully_sharded(list[0]) && !shoal_is_fully_sharded(list[3]));
    CHECK_OK(shoal_fully_shard(bench.sharded.root, &bench.options));
    check_units(&bench.sharded, "net (root); 0, block");
    check_unit(block, "block.a.weight*1 block.a.bias*1 block.b.weight*1 block.b.bias*1 0.weight*1 0.bias*1");
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 2);
    net_free(&bench.sharded);

    net_make(&bench.sharded, 1, NULL); /* and one that is left can be a root */
    shoal_module *const nested[] = {bench.sharded.layers[0], bench.sharded.root};
    CHECK_OK(shoal_fully_shard_list(nested, 2, &bench.options));
    check_units(&bench.sharded, "net (root)");
    bench_close(&bench);
}

/* What shoal_ddp has wrapped keeps its parameters, and averages their gradients itself. */
TEST_RANKS(a_part_that_is_replicated, 3)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 3, NULL));
    const shoal_ddp_options options = {.struct_size = sizeof options, .group = bench.options.group};
    CHECK_OK(shoal_ddp(bench.sharded.layers[1], &options));
    CHECK_STATUS(shoal_fully_shard(bench.sharded.layers[1], &bench.options), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("shoal_ddp");
    CHECK_OK(shoal_fully_shard(bench.sharded.layers[0], &bench.options));
    CHECK_OK(shoal_fully_shard(bench.sharded.root, &bench.options));
    check_units(&bench.sharded, "net (root); 0");
    check_unit(bench.sharded.root, "scale*1 2.weight*1 2.bias*1");
    for (int step = 0; step < 3; step++) {
        float full[NET_WIDTH];
        const shoal_tensor *whole = shoal_module_parameter(bench.sharded.layers[1], "weight");
        (void)net_pass(&bench.sharded, step, self->rank);
        net_pass_alone(&bench.alone, net_pass, step, self->n_ranks);
        net_update(&bench.sharded, 0.1F);
        net_update(&bench.alone, 0.1F);
        CHECK_BYTES(shoal_data(whole), shoal_data(shoal_module_parameter(bench.alone.layers[1], "weight")),
                    sizeof full);
        CHECK_OK(shoal_fsdp_gather(shoal_fully_shard_param(bench.sharded.root, "2.weight"), full,
                                   SHOAL_FSDP_ALL_RANKS));
        CHECK_BYTES(full, shoal_data(shoal_module_parameter(bench.alone.layers[2], "weight")), sizeof full);
    }
    bench_close(&bench);
}

/* Ranks -------------------------------------------------------------------------------------------------------- */

/* Meshes that are made of groups are those that are made of shapes, and train alike. */
TEST_RANKS(meshes_of_groups, 4)
{
    static const char *const names[] = {"replicas", "shards"};
    static const int ranks[] = {0, 1, 2, 3};
    static const int shape[] = {2, 2};
    for (int n_dims = 1; n_dims <= 2; n_dims++) {
        struct bench bench;
        shoal_mesh *made;
        shoal_mesh *wanted;
        REQUIRE(bench_open(&bench, self, 2, NULL));
        if (n_dims == 1) {
            CHECK_OK(shoal_mesh_create(bench.world, "cpu", NULL, (const int[]){4}, 1, names, &wanted));
            CHECK_OK(shoal_mesh_from_groups(&bench.options.group, 1, "cpu", NULL, NULL, 1, names, &made));
        } else {
            shoal_group *groups[2];
            const int replicas[] = {self->rank % 2, self->rank % 2 + 2};
            const int shards[] = {self->rank / 2 * 2, self->rank / 2 * 2 + 1};
            CHECK_OK(shoal_mesh_create(bench.world, "cpu", NULL, shape, 2, names, &wanted));
            CHECK_OK(shoal_group_create(bench.world, replicas, 2, "replicas", &groups[0]));
            CHECK_OK(shoal_group_create(bench.world, shards, 2, "shards", &groups[1]));
            CHECK_OK(shoal_mesh_from_groups(groups, 2, "cpu", ranks, shape, 2, names, &made));
            bench.sharded.is_near = true;
        }
        int coordinates[2][2] = {{0}};
        CHECK(shoal_mesh_equal(made, wanted));
        CHECK(shoal_mesh_coordinate(made, coordinates[0]) && shoal_mesh_coordinate(wanted, coordinates[1]));
        CHECK_BYTES(coordinates[0], coordinates[1], sizeof coordinates[0]);
        bench.options.group = NULL;
        bench.options.mesh = made;
        if (net_shard(&bench.sharded, &bench.options)) {
            net_train_both(&bench.sharded, &bench.alone, net_pass, self, 3);
        }
        shoal_mesh_free(made);
        shoal_mesh_free(wanted);
        bench_close(&bench);
    }
}

/* Dimensions --------------------------------------------------------------------------------------------------- */

enum {
    ROWS = 4,
    COLUMNS = 8
};

static int along_the_largest(void *context, const char *path, const shoal_tensor *parameter)
{
    int largest = 0;
    (void)context;
    (void)path;
    for (int i = 1; i < shoal_tensor_n_dims(parameter); i++) {
        largest = shoal_tensor_shape(parameter)[i] > shoal_tensor_shape(parameter)[largest] ? i : largest;
    }
    return largest;
}

static shoal_module *make_matrices(void)
{
    static const int64_t shape[] = {ROWS, COLUMNS};
    shoal_module *root = net_make_module("net", net_forward, NULL);
    for (uint32_t i = 0; i < 2; i++) {
        shoal_module *layer = net_make_module("layer", net_layer_forward, NULL);
        shoal_tensor *weight = net_numbers(20 + i, shape, 2);
        (void)CHECK_OK(shoal_set_requires_grad(weight, true));
        (void)CHECK_OK(shoal_module_add_parameter(layer, "weight", weight));
        (void)CHECK_OK(shoal_module_add_parameter(layer, "bias", net_parameter(30 + i, COLUMNS)));
        (void)CHECK_OK(shoal_module_add_child(root, i == 0 ? "0" : "1", layer));
        shoal_module_unref(layer);
    }
    return root;
}

static shoal_tensor *loss_of_matrices(shoal_module *root, int step, int part)
{
    shoal_tensor *x = net_numbers((uint32_t)(1000 + 100 * step + part), (const int64_t[]){ROWS, COLUMNS}, 2);
    return net_loss_of(shoal_module_call_one(root, x));
}

/* Shards, whole parameters and gradients are contiguous at all times. */
static shoal_status check_contiguous(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    int dim;
    int64_t length;
    (void)next;
    CHECK(shoal_tensor_is_contiguous(entry->tensor));
    CHECK(!shoal_grad(entry->tensor) || shoal_tensor_is_contiguous(shoal_grad(entry->tensor)));
    (void)CHECK_OK(shard_place(context, entry->path, &dim, NULL, &length));
    (void)CHECK_INT(dim, shoal_tensor_n_dims(entry->tensor) - 1);
    (void)CHECK_INT(length, COLUMNS / 4);
    return SHOAL_OK;
}

static shoal_status see_contiguous(void *context, const shoal_forward_call *call)
{
    (void)context;
    const shoal_tensor *weight = shoal_module_parameter(call->module, "weight");
    CHECK(shoal_tensor_is_contiguous(weight));
    (void)CHECK_INT(shoal_tensor_count(weight), ROWS * COLUMNS);
    return SHOAL_OK;
}

static shoal_status compare_whole(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    float full[ROWS * COLUMNS];
    (void)next;
    (void)CHECK_OK(
        shoal_fsdp_gather(shoal_fully_shard_param(context, entry->path), full, SHOAL_FSDP_ALL_RANKS));
    const float *want = shoal_data(entry->tensor);
    for (int64_t i = 0; i < shoal_tensor_count(entry->tensor); i++) {
        CHECK(fabsf(full[i] - want[i]) <= 1e-5F);
    }
    return SHOAL_OK;
}

TEST_RANKS(along_the_largest_dimension, 4)
{
    shoal_world *world = rank_world_open(self, 0);
    const shoal_module_hook_definition hook = {.struct_size = sizeof hook, .pre_forward = see_contiguous};
    REQUIRE(world && CHECK_OK(shoal_scope_begin()));
    shoal_module *sharded = make_matrices();
    shoal_module *alone = make_matrices();
    shoal_fully_shard_options options = net_options(world);
    options.placement = along_the_largest;
    for (size_t i = 0; i < 2; i++) {
        CHECK_OK(shoal_fully_shard(shoal_module_child_at(sharded, i, NULL), &options));
        CHECK_OK(shoal_module_add_hook(shoal_module_child_at(sharded, i, NULL), &hook, NULL));
    }
    CHECK_OK(shoal_fully_shard(sharded, &options));
    CHECK_OK(shoal_module_walk(alone, SHOAL_WALK_PARAMETERS, compare_whole, sharded));
    for (int step = 0; step < 5; step++) {
        struct net nets[] = {{.root = sharded}, {.root = alone}};
        CHECK_OK(shoal_module_walk(sharded, SHOAL_WALK_PARAMETERS, check_contiguous, sharded));
        CHECK_OK(shoal_backward(loss_of_matrices(sharded, step, self->rank), NULL));
        CHECK_OK(shoal_module_walk(sharded, SHOAL_WALK_PARAMETERS, check_contiguous, sharded));
        for (int part = 0; part < self->n_ranks; part++) { /* gradients add up; the update divides */
            CHECK_OK(shoal_backward(loss_of_matrices(alone, step, part), NULL));
        }
        net_update(&nets[0], 0.1F);
        net_update(&nets[1], 0.1F / (float)self->n_ranks);
        CHECK_OK(shoal_module_walk(alone, SHOAL_WALK_PARAMETERS, compare_whole, sharded));
    }
    shoal_module_unref(sharded);
    shoal_module_unref(alone);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

/* Replaced before the first forward ------------------------------------------------------------------------- */

static shoal_status to_dtype(void *context, const shoal_module_entry *entry, shoal_tensor **tensor)
{
    *tensor = shoal_to_dtype(entry->tensor, *(const shoal_dtype *)context);
    return SHOAL_OK;
}

static void convert(shoal_module *root, shoal_dtype dtype)
{
    (void)CHECK_OK(shoal_module_apply(root, SHOAL_WALK_PARAMETERS, to_dtype, &dtype));
}

/* Parameters, shards, gradients and what is computed with are f64. */
static shoal_status check_f64(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    double full[NET_WIDTH];
    shoal_module *sharded = context;
    (void)next;
    shoal_tensor *got = shoal_module_parameter(sharded, entry->path);
    int64_t offset;
    int64_t length;
    (void)CHECK_INT(shoal_tensor_dtype(got), SHOAL_F64);
    (void)CHECK_OK(
        shoal_fsdp_gather(shoal_fully_shard_param(sharded, entry->path), full, SHOAL_FSDP_ALL_RANKS));
    const double *want = shoal_data(entry->tensor);
    for (int64_t i = 0; i < shoal_tensor_count(entry->tensor); i++) {
        CHECK(fabs(full[i] - want[i]) <= 1e-12);
    }
    (void)CHECK_OK(shard_place(sharded, entry->path, NULL, &offset, &length));
    (void)CHECK_INT(shoal_grad(got) != NULL, shoal_grad(entry->tensor) != NULL);
    if (shoal_grad(got) && shoal_grad(entry->tensor)) {
        (void)CHECK_INT(shoal_tensor_dtype(shoal_grad(got)), SHOAL_F64);
        const double *gradient = shoal_data(shoal_grad(got));
        const double *sum = shoal_data(shoal_grad(entry->tensor));
        int n_ranks = shoal_group_n_ranks(fsdp_wrapper_of(sharded)->mesh.gather);
        for (int64_t i = 0; i < length; i++) {
            CHECK(fabs(gradient[i] - sum[offset + i] / n_ranks) <= 1e-12);
        }
    }
    return SHOAL_OK;
}

static void update_f64(shoal_tensor *const *parameters, size_t n_parameters, double lr)
{
    for (size_t i = 0; i < n_parameters; i++) {
        double *data = shoal_mutable_data(parameters[i]);
        const double *gradient = shoal_data(shoal_grad(parameters[i]));
        for (int64_t k = 0; data && gradient && k < shoal_tensor_count(parameters[i]); k++) {
            data[k] -= lr * gradient[k];
        }
        (void)CHECK_OK(shoal_set_grad(parameters[i], NULL));
    }
}

/* The optimizer has the tensors that were there after the conversion; they stay those of the module. */
TEST_RANKS(converted_to_f64, 3)
{
    struct bench bench;
    size_t n_parameters;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    convert(bench.sharded.root, SHOAL_F64);
    convert(bench.alone.root, SHOAL_F64);
    shoal_tensor *const *shards = shoal_module_parameters(bench.sharded.root, &n_parameters);
    shoal_tensor *const *wholes = shoal_module_parameters(bench.alone.root, &n_parameters);
    for (int step = 0; step < 10 && !test_has_failed(); step++) {
        shoal_tensor *x = shoal_to_dtype(net_input(step, self->rank), SHOAL_F64);
        CHECK_OK(shoal_backward(net_loss(&bench.sharded, x), NULL));
        for (int part = 0; part < self->n_ranks; part++) {
            x = shoal_to_dtype(net_input(step, part), SHOAL_F64);
            CHECK_OK(shoal_backward(net_loss(&bench.alone, x), NULL));
        }
        CHECK_OK(shoal_module_walk(bench.alone.root, SHOAL_WALK_PARAMETERS, check_f64, bench.sharded.root));
        CHECK(shards[0] == shoal_module_parameter(bench.sharded.root, "scale"));
        update_f64(shards, n_parameters, 0.1);
        update_f64(wholes, n_parameters, 0.1 / self->n_ranks);
        CHECK_OK(shoal_module_walk(bench.alone.root, SHOAL_WALK_PARAMETERS, check_f64, bench.sharded.root));
    }
    bench_close(&bench);
}

/* Cut unevenly, so that memory of the shard has padding which the tensor that replaces it has not. */
TEST_RANKS(replaced_by_a_copy, 4)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK_OK(shoal_module_apply(bench.sharded.root, SHOAL_WALK_PARAMETERS, to_dtype,
                                &(shoal_dtype){SHOAL_F64})); /* there and back: tensors of their own */
    convert(bench.sharded.root, SHOAL_F32);
    shoal_tensor *weight = shoal_module_parameter(bench.sharded.layers[0], "weight");
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 3);
    CHECK(shoal_module_parameter(bench.sharded.layers[0], "weight") == weight);
    bench_close(&bench);
}

/* Stored in bf16 at first, then in f32: gradients are reduced in the dtype that was asked for, bf16. */
TEST_RANKS(the_reduction_keeps_its_dtype, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    convert(bench.sharded.root, SHOAL_BF16);
    bench.options.param_dtype = bench.options.reduce_dtype = SHOAL_BF16;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    convert(bench.sharded.root, SHOAL_F32);
    (void)net_pass(&bench.sharded, 0, self->rank);
    const struct fsdp_unit *unit = bench_unit(bench.sharded.layers[0]);
    CHECK_INT(unit->grads.dtype, SHOAL_BF16);
    CHECK_INT(unit->params[0].compute, SHOAL_BF16);
    shoal_tensor *weight = shoal_module_parameter(bench.sharded.layers[0], "weight");
    CHECK_INT(shoal_tensor_dtype(weight), SHOAL_F32);
    CHECK_INT(shoal_tensor_dtype(shoal_grad(weight)), SHOAL_F32);
    bench_close(&bench);
}

/* On the meta device ---------------------------------------------------------------------------------------- */

static shoal_status make_meta(void *context, const shoal_module_entry *entry, shoal_tensor **tensor)
{
    (void)context;
    *tensor = shoal_empty_on(shoal_tensor_shape(entry->tensor), shoal_tensor_n_dims(entry->tensor),
                             shoal_tensor_dtype(entry->tensor), SHOAL_META);
    return SHOAL_OK;
}

/* Memory for a shard, with the values of this rank's part. */
static shoal_status make_real(void *context, const shoal_module_entry *entry, shoal_tensor **tensor)
{
    const struct bench *bench = context;
    int64_t offset;
    shoal_status status = shard_place(bench->sharded.root, entry->path, NULL, &offset, NULL);
    *tensor = shoal_empty(shoal_tensor_shape(entry->tensor), shoal_tensor_n_dims(entry->tensor), SHOAL_F32);
    const float *whole = shoal_data(shoal_module_parameter(bench->alone.root, entry->path));
    if (shoal_tensor_count(*tensor) > 0) {
        memcpy(shoal_mutable_data(*tensor), whole + offset,
               (size_t)shoal_tensor_count(*tensor) * sizeof(float));
    }
    return status;
}

static void check_meta(struct rank *self, int n_replicas, shoal_dtype param_dtype)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    CHECK(n_replicas == 1 || bench_replicate(&bench, n_replicas));
    bench.options.param_dtype = param_dtype;
    CHECK_OK(shoal_module_apply(bench.sharded.root, SHOAL_WALK_PARAMETERS, make_meta, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK_OK(shoal_scope_begin());
    CHECK(shoal_module_call_one(bench.sharded.root, net_input(0, 0)) == NULL);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("meta");
    CHECK_OK(shoal_module_apply(bench.sharded.root, SHOAL_WALK_PARAMETERS, make_real, &bench));
    if (param_dtype == 0) {
        net_train_both(&bench.sharded, &bench.alone, net_pass, self, 3);
    } else {
        size_t n_parameters;
        (void)net_pass(&bench.sharded, 0, self->rank);
        shoal_tensor *const *parameters = shoal_module_parameters(bench.sharded.root, &n_parameters);
        for (size_t i = 0; i < n_parameters; i++) {
            CHECK(shoal_grad(parameters[i]) != NULL);
        }
        net_update(&bench.sharded, 0.1F);
    }
    bench_close(&bench);
}

/* Five numbers and one: shards are shorter, of full length, and empty. */
TEST_RANKS(made_after_sharding, 4)
{
    check_meta(self, 1, 0);
    check_meta(self, 2, 0);
    check_meta(self, 1, SHOAL_BF16);
    check_meta(self, 2, SHOAL_BF16);
}
