/* SPDX-License-Identifier: MIT */
/* What is done to gradients and values of modules that are sharded from outside: clipping, loading, broadcasting. */
#include "fixtures/on_device.h"

#include "fixtures/fsdp_handles.h"
#include "fixtures/module_bench.h"
#include "harness/harness.h"

/* Clipping ----------------------------------------------------------------------------------------------- */

/* Of the gradients of a net that is not sharded. */
static double norm_alone(struct net *net, double power)
{
    size_t n_parameters;
    double sum = 0.0;
    shoal_tensor *const *parameters = shoal_module_parameters(net->root, &n_parameters);
    for (size_t i = 0; i < n_parameters; i++) {
        const float *values = shoal_data(shoal_grad(parameters[i]));
        for (int64_t k = 0; k < shoal_tensor_count(parameters[i]); k++) {
            double size = fabs((double)values[k]);
            sum = isinf(power) ? fmax(sum, size) : sum + pow(size, power);
        }
    }
    return isinf(power) ? sum : pow(sum, 1.0 / power);
}

/* Multiplied, and cut off. */
static void change_alone(struct net *net, float factor, float limit)
{
    size_t n_parameters;
    shoal_tensor *const *parameters = shoal_module_parameters(net->root, &n_parameters);
    for (size_t i = 0; i < n_parameters; i++) {
        float *values = shoal_mutable_data(shoal_grad(parameters[i]));
        for (int64_t k = 0; k < shoal_tensor_count(parameters[i]); k++) {
            values[k] = fminf(fmaxf(values[k] * factor, -limit), limit);
        }
    }
}

static void check_norms(struct rank *self, int n_replicas)
{
    static const double powers[] = {1.0, 2.0, 3.0, (double)INFINITY};
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(n_replicas == 1 || bench_replicate(&bench, n_replicas));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int step = 0; step < 4; step++) {
        double norm = -1.0;
        (void)net_pass(&bench.sharded, step, self->rank);
        net_pass_alone(&bench.alone, net_pass, step, self->n_ranks);
        double wanted = norm_alone(&bench.alone, test_power(powers[step]));
        double max_norm = wanted / 3;
        CHECK_OK(shoal_fsdp_clip_grad_norm(fsdp_of_module(bench.sharded.root), max_norm,
                                           test_power(powers[step]), true, &norm));
        CHECK(fabs(norm - wanted) <= 1e-6 * wanted);
        change_alone(&bench.alone, (float)(max_norm / (norm + 1e-6)), INFINITY);
        net_check_same(&bench.sharded, &bench.alone);
        net_update(&bench.sharded, 0.1F);
        net_update(&bench.alone, 0.1F);
    }
    bench_close(&bench);
}

TEST_RANKS(norms_of_shards, 3)
{
    check_norms(self, 1);
}

TEST_RANKS(norms_of_replicas_of_shards, 4)
{
    check_norms(self, 2);
}

TEST_RANKS(gradients_by_value, 3)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK_OK(shoal_fsdp_clip_grad_value(fsdp_of_module(bench.sharded.root), 1.0)); /* there are none */
    (void)net_pass(&bench.sharded, 0, self->rank);
    net_pass_alone(&bench.alone, net_pass, 0, self->n_ranks);
    float limit = (float)norm_alone(&bench.alone, (double)INFINITY) / 2;
    CHECK_OK(shoal_fsdp_clip_grad_value(fsdp_of_module(bench.sharded.root), (double)limit));
    change_alone(&bench.alone, 1.0F, limit);
    net_check_same(&bench.sharded, &bench.alone);
    bench_close(&bench);
}

/* Whatever tensor is the gradient is clipped. */
TEST_RANKS(a_gradient_of_somebody_else, 2)
{
    struct bench bench;
    double norm;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    (void)net_pass(&bench.sharded, 0, self->rank);
    shoal_tensor *weight = shoal_module_parameter(bench.sharded.root, "0.weight");
    shoal_tensor *mine = shoal_full(shoal_tensor_shape(weight), 1, 100.0, SHOAL_F32);
    CHECK_OK(shoal_set_grad(weight, mine));
    CHECK_OK(
        shoal_fsdp_clip_grad_norm(fsdp_of_module(bench.sharded.root), 1.0, (double)INFINITY, true, &norm));
    CHECK_DOUBLE(norm, 100.0);
    CHECK_DOUBLE((double)*(const float *)shoal_data(mine), (double)(100.0F * (float)(1.0 / (100.0 + 1e-6))));
    CHECK_OK(shoal_fsdp_clip_grad_value(fsdp_of_module(bench.sharded.root), 0.25));
    CHECK_DOUBLE((double)*(const float *)shoal_data(mine), 0.25);
    bench_close(&bench);
}

TEST_RANKS(clipping_that_is_refused, 2)
{
    struct bench bench;
    double norm = -1.0;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    shoal_module *root = bench.sharded.root;
    CHECK_OK(shoal_fsdp_clip_grad_norm(fsdp_of_module(root), 1.0, 1.0, true, &norm));
    CHECK_DOUBLE(norm, 0.0);
    CHECK_STATUS(shoal_fsdp_clip_grad_norm(fsdp_of_module(root), 1.0, 0.0, false, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("clip_grad_norm: power is 0");
    CHECK_STATUS(shoal_fsdp_clip_grad_norm(fsdp_of_module(root), -1.0, 1.0, false, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("max_norm is -1");
    CHECK_STATUS(shoal_fsdp_clip_grad_value(fsdp_of_module(root), -1.0), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("clip_grad_value: max_value is -1");
    shoal_fsdp *fsdp = NULL;
    CHECK_OK(shoal_fully_shard_context(bench.sharded.layers[0], &fsdp)); /* any module under the root */
    CHECK(fsdp == fsdp_of_module(root));
    CHECK_STATUS(shoal_fully_shard_context(bench.alone.root, &fsdp), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("fully_shard_context: module net is not fully sharded");
    CHECK_STATUS(shoal_fully_shard_context(NULL, &fsdp), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("module is NULL");
    CHECK_STATUS(shoal_fully_shard_context(root, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("fsdp_out is NULL");
    bench_close(&bench);
}

/* Gradients that are given up ---------------------------------------------------------------------------- */

/* Kept on whole parameters, in another dtype, or for the replicas: one backward pass with 1 follows, and nothing
   else. */
static void check_zeroed(struct rank *self, int n_replicas, shoal_dtype reduce_dtype)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(n_replicas == 1 || bench_replicate(&bench, n_replicas));
    bench.options.reduce_dtype = reduce_dtype;
    bench.options.param_dtype = reduce_dtype == 0 ? 0 : SHOAL_F32;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    shoal_module *root = bench.sharded.root;
    CHECK_OK(shoal_fsdp_zero_grad(fsdp_of_module(root)));
    CHECK_OK(shoal_fsdp_set_sync(shoal_fully_shard_unit(root, true), false));
    (void)net_pass(&bench.sharded, 7, self->rank);
    CHECK_OK(shoal_fsdp_zero_grad(fsdp_of_module(root)));
    CHECK_OK(shoal_fsdp_set_sync(shoal_fully_shard_unit(root, true), true));
    CHECK_OK(shoal_fsdp_set_all_reduce(shoal_fully_shard_unit(root, true), false));
    (void)net_pass(&bench.sharded, 8, self->rank);
    CHECK_OK(shoal_fsdp_zero_grad(fsdp_of_module(root)));
    CHECK(shoal_grad(shoal_module_parameter(root, "0.weight")) == NULL);
    CHECK_OK(shoal_fsdp_set_all_reduce(shoal_fully_shard_unit(root, true), true));
    if (reduce_dtype == 0) {
        net_train_both(&bench.sharded, &bench.alone, net_pass, self, 2);
    } else {
        (void)net_pass(&bench.sharded, 0, self->rank);
        net_pass_alone(&bench.alone, net_pass, 0, self->n_ranks);
        double norm;
        CHECK_OK(shoal_fsdp_clip_grad_norm(fsdp_of_module(root), 1e9, 1.0, true, &norm));
        CHECK(fabs(norm - norm_alone(&bench.alone, 1.0)) <= 0.05 * norm);
    }
    CHECK_STATUS(shoal_fsdp_zero_grad(fsdp_of_module(bench.alone.root)), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_fsdp_zero_grad(fsdp_of_module(NULL)), SHOAL_ERR_INVALID);
    bench_close(&bench);
}

TEST_RANKS(zeroed_gradients_are_all_gone, 4)
{
    check_zeroed(self, 1, (shoal_dtype)0);
    check_zeroed(self, 1, SHOAL_BF16);
    check_zeroed(self, 2, (shoal_dtype)0);
}

/* Values ------------------------------------------------------------------------------------------------- */

static shoal_status make_meta(void *context, const shoal_module_entry *entry, shoal_tensor **tensor)
{
    (void)context;
    *tensor = shoal_empty_on(shoal_tensor_shape(entry->tensor), shoal_tensor_n_dims(entry->tensor), SHOAL_F32,
                             SHOAL_META);
    return SHOAL_OK;
}

/* A net without memory; what is made of it has shards alone. */
static bool shard_meta(struct bench *bench)
{
    bench->options.device = test_device();
    return CHECK_OK(shoal_module_apply(bench->sharded.root, SHOAL_WALK_PARAMETERS, make_meta, NULL)) &&
           net_shard(&bench->sharded, &bench->options);
}

static void check_no_values(struct bench *bench)
{
    (void)CHECK_OK(shoal_scope_begin());
    CHECK(shoal_module_call_one(bench->sharded.root, net_input(0, 0)) == NULL);
    (void)CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_STATE);
}

/* How values get from a whole net to one that is sharded; one entry at a time. */
typedef shoal_status (*loader)(struct net *net, const char *path, const float *full, int64_t count);

struct loading {
    struct net *net;
    loader load;
    const char *but; /* a path that is left out */
};

static shoal_status load_entry(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    const struct loading *loading = context;
    (void)next;
    if (loading->but && strcmp(loading->but, entry->path) == 0) {
        return SHOAL_OK;
    }
    return loading->load(loading->net, entry->path, shoal_data(entry->tensor),
                         shoal_tensor_count(entry->tensor));
}

static void load_all(struct bench *bench, loader load, const char *but)
{
    struct loading loading = {.net = &bench->sharded, .load = load, .but = but};
    (void)CHECK_OK(shoal_module_walk(bench->alone.root, SHOAL_WALK_PARAMETERS, load_entry, &loading));
}

/* Nobody but the source has values; garbage elsewhere, or nothing. */
static shoal_status broadcast_from_last(struct net *net, const char *path, const float *full, int64_t count)
{
    const struct fsdp_mesh *mesh = &fsdp_wrapper_of(net->root)->mesh;
    int source = fsdp_mesh_n_ranks(mesh) - 1;
    int rank = shoal_world_rank(mesh->world);
    float garbage[64];
    for (int64_t i = 0; i < count; i++) {
        garbage[i] = NAN;
    }
    return shoal_fsdp_broadcast(shoal_fully_shard_param(net->root, path),
                                rank == source ? full
                                : rank == 0    ? garbage
                                               : NULL,
                                source);
}

/* This rank's part, and nothing else. */
static shoal_status load_own_slice(struct net *net, const char *path, const float *full, int64_t count)
{
    int64_t offset = -1;
    int64_t length = -1;
    (void)count;
    (void)CHECK_OK(shard_place(net->root, path, NULL, &offset, &length));
    return shoal_fsdp_load_slice(shoal_fully_shard_param(net->root, path), offset, length,
                                 length > 0 ? full + offset : NULL);
}

/* As if a file were read, two numbers at a time. */
static shoal_status load_pieces(struct net *net, const char *path, const float *full, int64_t count)
{
    for (int64_t at = 0; at < count; at += 2) {
        int64_t length = count - at < 2 ? count - at : 2;
        shoal_status status =
            shoal_fsdp_load_slice(shoal_fully_shard_param(net->root, path), at, length, full + at);
        if (status != SHOAL_OK) {
            return status;
        }
    }
    return SHOAL_OK;
}

/* Straight into the shards, where there is anything. */
static shoal_status write_shard(struct net *net, const char *path, const float *full, int64_t count)
{
    int64_t offset;
    (void)count;
    (void)CHECK_OK(shoal_fsdp_reshard(shoal_fully_shard_unit(net->root, false)));
    shoal_tensor *shard = shoal_module_parameter(net->root, path);
    (void)CHECK_OK(shard_place(net->root, path, NULL, &offset, NULL));
    if (shoal_tensor_count(shard) > 0) {
        memcpy(shoal_mutable_data(shard), full + offset, (size_t)shoal_tensor_count(shard) * sizeof(float));
    }
    return SHOAL_OK;
}

static void check_loader(struct rank *self, loader load, int n_replicas)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(n_replicas == 1 || bench_replicate(&bench, n_replicas));
    REQUIRE(shard_meta(&bench));
    check_no_values(&bench);
    load_all(&bench, load, "1.weight");
    check_no_values(&bench);
    load_all(&bench, load, NULL);
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 2);
    (void)net_loss(&bench.sharded, net_input(9, self->rank)); /* the root keeps what it has gathered */
    load_all(&bench, load, NULL);
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 2);
    bench_close(&bench);
}

TEST_RANKS(values_of_one_rank, 4)
{
    check_loader(self, broadcast_from_last, 1);
    check_loader(self, broadcast_from_last, 2);
}

TEST_RANKS(values_of_the_only_rank, 1)
{
    check_loader(self, broadcast_from_last, 1);
}

TEST_RANKS(values_by_slices, 4)
{
    check_loader(self, load_own_slice, 1);
    check_loader(self, load_own_slice, 2);
}

TEST_RANKS(values_piece_by_piece, 3)
{
    check_loader(self, load_pieces, 1);
}

/* Shards that are empty need no values. */
TEST_RANKS(values_written_by_hand, 4)
{
    check_loader(self, write_shard, 1);
}

/* Another dimension: [2, 6], cut along the second. */
static int second_dim(void *context, const char *path, const shoal_tensor *parameter)
{
    (void)context;
    (void)path;
    (void)parameter;
    return 1;
}

TEST_RANKS(slices_of_another_dimension, 3)
{
    float full[12];
    float got[12];
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world && CHECK_OK(shoal_scope_begin()));
    shoal_fully_shard_options options = net_options(world);
    options.placement = second_dim;
    shoal_module *module = net_make_module("wide", net_layer_forward, NULL);
    shoal_tensor *weight = shoal_zeros((int64_t[]){2, 6}, 2, SHOAL_F32);
    CHECK_OK(shoal_module_add_parameter(module, "weight", weight));
    CHECK_OK(shoal_fully_shard(module, &options));
    for (int i = 0; i < 12; i++) {
        full[i] = (float)i;
    }
    for (int64_t at = 0; at < 6; at += 3) { /* columns at ... at + 3 */
        const float slice[] = {full[at],     full[at + 1], full[at + 2],
                               full[at + 6], full[at + 7], full[at + 8]};
        CHECK_OK(shoal_fsdp_load_slice(shoal_fully_shard_param(module, "weight"), at, 3, slice));
    }
    CHECK_OK(shoal_fsdp_gather(shoal_fully_shard_param(module, "weight"), got, SHOAL_FSDP_ALL_RANKS));
    CHECK_BYTES(got, full, sizeof full);
    for (int i = 0; i < 12; i++) {
        full[i] = (float)(100 + i);
    }
    CHECK_OK(
        shoal_fsdp_broadcast(shoal_fully_shard_param(module, "weight"), self->rank == 1 ? full : NULL, 1));
    memset(got, 0, sizeof got);
    CHECK_OK(shoal_fsdp_gather(shoal_fully_shard_param(module, "weight"), self->rank == 2 ? got : NULL, 2));
    CHECK(self->rank == 2 ? CHECK_BYTES(got, full, sizeof full) : got[0] == 0.0F);
    shoal_module_unref(module);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

static void check_gathered(struct rank *self, int n_replicas)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(n_replicas == 1 || bench_replicate(&bench, n_replicas));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int root = 0; root < self->n_ranks; root++) {
        float full[NET_WIDTH] = {-7.0F};
        bool is_here = self->rank == root;
        CHECK_OK(shoal_fsdp_gather(shoal_fully_shard_param(bench.sharded.root, "1.weight"),
                                   is_here ? full : NULL, root));
        CHECK(is_here ? CHECK_BYTES(full, shoal_data(shoal_module_parameter(bench.alone.root, "1.weight")),
                                    sizeof full)
                      : full[0] == -7.0F);
    }
    bench_close(&bench);
}

TEST_RANKS(whole_on_one_rank_alone, 4)
{
    check_gathered(self, 1);
    check_gathered(self, 2);
}

TEST_RANKS(values_that_are_refused, 2)
{
    struct bench bench;
    float full[NET_WIDTH] = {0.0F};
    REQUIRE(bench_open(&bench, self, 1, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    shoal_module *root = bench.sharded.root;
    const char *path = "0.weight";
    static const int64_t slices[][2] = {{-1, 1}, {0, 6},         {6, 0},        {5, 1},
                                        {1, -1}, {INT64_MAX, 1}, {1, INT64_MAX}};
    for (size_t i = 0; i < sizeof slices / sizeof slices[0]; i++) {
        CHECK_STATUS(
            shoal_fsdp_load_slice(shoal_fully_shard_param(root, path), slices[i][0], slices[i][1], full),
            SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT("parameter weight has 5 indices along dimension 0");
    }
    CHECK_OK(shoal_fsdp_load_slice(shoal_fully_shard_param(root, path), 5, 0, NULL));
    CHECK_STATUS(shoal_fsdp_load_slice(shoal_fully_shard_param(root, path), 0, 1, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("slice is NULL");
    CHECK_STATUS(shoal_fsdp_load_slice(shoal_fully_shard_param(root, "0.wight"), 0, 1, full),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("0.wight");
    CHECK_STATUS(shoal_fsdp_broadcast(shoal_fully_shard_param(root, path), full, 2), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("root 2 is outside of the 2 ranks");
    CHECK_STATUS(shoal_fsdp_broadcast(shoal_fully_shard_param(root, path), full, -1), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_fsdp_broadcast(shoal_fully_shard_param(root, path), NULL, self->rank),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("full is NULL on the root");
    CHECK_STATUS(shoal_fsdp_broadcast(shoal_fully_shard_param(root, NULL), full, 0), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_fsdp_gather(shoal_fully_shard_param(root, path), full, 2), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_fsdp_gather(shoal_fully_shard_param(root, path), NULL, self->rank), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("full is NULL on the root, rank");
    CHECK_STATUS(shoal_fully_shard_broadcast_all(NULL, NULL, 0), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_fully_shard_broadcast_all(root, bench.alone.root, 7), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("root 7 is outside of the 2 ranks");
    CHECK_STATUS(shoal_fully_shard_broadcast_all(bench.alone.root, bench.alone.root, 0), SHOAL_ERR_INVALID);
    bench_close(&bench);
}

/* Whole modules ------------------------------------------------------------------------------------------ */

static void add_count(struct net *net, float value)
{
    (void)CHECK_OK(
        shoal_module_add_buffer(net->root, "count", shoal_full((int64_t[]){3}, 1, (double)value, SHOAL_F32)));
}

static void check_all(struct rank *self, int n_replicas, int source)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    add_count(&bench.sharded, (float)self->rank);
    add_count(&bench.alone, 40.0F);
    REQUIRE(n_replicas == 1 || bench_replicate(&bench, n_replicas));
    shoal_tensor *ignored = shoal_module_parameter(bench.sharded.root, "0.bias"); /* stays whole */
    bench.options.ignored = &ignored;
    bench.options.n_ignored = 1;
    bench.options.device = test_device();
    CHECK_OK(shoal_fully_shard(bench.sharded.layers[0], &bench.options));
    CHECK_OK(shoal_module_apply(bench.sharded.layers[1], SHOAL_WALK_PARAMETERS, make_meta, NULL));
    CHECK_OK(shoal_fully_shard(bench.sharded.layers[1], &bench.options));
    CHECK_OK(shoal_fully_shard(bench.sharded.root, &bench.options));
    *(float *)shoal_mutable_data(ignored) = (float)(1000 + self->rank);
    bool is_source = self->rank == source;
    CHECK_OK(
        shoal_fully_shard_broadcast_all(bench.sharded.root, is_source ? bench.alone.root : NULL, source));
    static const char *const paths[] = {"scale", "0.weight", "1.weight", "1.bias"};
    for (int i = 0; i < 4; i++) {
        float full[NET_WIDTH];
        const shoal_tensor *want = shoal_module_parameter(bench.alone.root, paths[i]);
        CHECK_OK(shoal_fsdp_gather(shoal_fully_shard_param(bench.sharded.root, paths[i]), full,
                                   SHOAL_FSDP_ALL_RANKS));
        CHECK_BYTES(full, shoal_data(want), (size_t)shoal_tensor_count(want) * sizeof(float));
    }
    CHECK_BYTES(shoal_data(ignored), shoal_data(shoal_module_parameter(bench.alone.root, "0.bias")),
                sizeof(float));
    CHECK_DOUBLE((double)*(const float *)shoal_data(shoal_module_buffer(bench.sharded.root, "count")), 40.0);
    (void)net_pass(&bench.sharded, 0, self->rank); /* all have values */
    bench_close(&bench);
}

TEST_RANKS(everything_from_one_rank, 4)
{
    check_all(self, 1, 0);
    check_all(self, 1, 2);
    check_all(self, 2, 3);
}

TEST_RANKS(everything_from_the_only_rank, 1)
{
    check_all(self, 1, 0);
}

/* Whatever does not fit on the source: all ranks hear of it, and can go on. */
TEST_RANKS(everything_that_does_not_fit, 3)
{
    struct bench bench;
    struct net small;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    net_make(&small, 1, NULL);
    shoal_module *wholes[] = {NULL, small.root, bench.alone.root};
    add_count(&bench.alone, 1.0F);
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(shoal_fully_shard_broadcast_all(bench.sharded.root, wholes[i], 1), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT(self->rank != 1 ? "rank 1: fully_shard_broadcast_all: " : "broadcast_all: ");
        CHECK_ERROR_TEXT(i == 0 ? "whole is NULL" : "has no 1.weight");
    }
    CHECK_OK(shoal_module_set_parameter(small.root, "0.weight", net_parameter(3, NET_WIDTH + 1)));
    CHECK_STATUS(shoal_fully_shard_broadcast_all(bench.sharded.root, small.root, 1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT(self->rank != 1 ? "rank 1: " : "");
    CHECK_ERROR_TEXT("0.weight is f32 [");
    CHECK_ERROR_TEXT("] in the whole module");
    CHECK_OK(shoal_fully_shard_broadcast_all(bench.sharded.root, bench.alone.root, 1));
    net_free(&small);
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 1);
    bench_close(&bench);
}

/* The root has its parameters, in another dtype than its shards. */
TEST_RANKS(everything_where_parameters_are_gathered, 2)
{
    struct bench bench;
    float full[NET_WIDTH];
    REQUIRE(bench_open(&bench, self, 1, NULL));
    bench.options.param_dtype = SHOAL_BF16;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK_OK(shoal_fsdp_unshard(shoal_fully_shard_unit(bench.sharded.root, false)));
    CHECK_OK(shoal_fsdp_wait(shoal_fully_shard_unit(bench.sharded.root, false)));
    CHECK(shoal_tensor_dtype(shoal_module_parameter(bench.sharded.root, "scale")) == SHOAL_BF16);
    shoal_tensor *scale = shoal_module_parameter(bench.alone.root, "scale");
    ((float *)shoal_mutable_data(scale))[3] = 0.1234567F;
    CHECK_OK(shoal_fully_shard_broadcast_all(bench.sharded.root, bench.alone.root, 1));
    CHECK_OK(
        shoal_fsdp_gather(shoal_fully_shard_param(bench.sharded.root, "scale"), full, SHOAL_FSDP_ALL_RANKS));
    CHECK_BYTES(full, shoal_data(scale), sizeof full);
    bench_close(&bench);
}

static void fail_while_values_are_sent(struct rank *self, int failing, int number)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    test_finish(test_device());
    test_barrier(self);
    atomic_store(&test_apart()->fail_at, self->rank == failing ? number : 0);
    shoal_status status = shoal_fully_shard_broadcast_all(bench.sharded.root, bench.alone.root, 0);
    bool has_failed = atomic_exchange(&test_apart()->fail_at, 0) == 0;
    if (self->rank == failing && has_failed) {
        CHECK_STATUS(status, SHOAL_ERR_SYSTEM);
        CHECK_ERROR_TEXT(test_words_apart("apart"));
    } else if (status == SHOAL_ERR_TIMEOUT) {
        test_failed(__FILE__, __LINE__, "call %d of the device failed on rank %d, and here it is %s", number,
                    failing, shoal_error_text());
    }
    test_barrier(self);
    test_forget_failure();
    bench_close(&bench);
}

/* Each call of the device fails on one rank, the root or another one: nobody waits for it until the deadline. */
TEST_PROCESSES(a_device_that_fails_while_values_are_sent, 2)
{
    if (HARNESS_HAS_TSAN || test_device() == SHOAL_CPU) {
        test_skip("it needs device apart, and nothing orders the work of a device that has failed");
        return;
    }
    TEST_NEEDS_CONTROLS();
    for (int number = 1; number <= 24 && !test_has_failed(); number++) {
        fail_while_values_are_sent(self, number % 2, (number + 1) / 2);
    }
}

/* Without memory nothing changes and nothing is lost. */
static shoal_status load_scarcely(void *context)
{
    struct bench *bench = context;
    shoal_module *root = bench->sharded.root;
    float full[NET_WIDTH] = {1.0F, 2.0F};
    shoal_fsdp_param *weight = shoal_fully_shard_param(root, "0.weight");
    if (!weight) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = shoal_fsdp_broadcast(weight, full, 0);
    status = status == SHOAL_OK ? shoal_fsdp_load_slice(weight, 1, 2, full) : status;
    status = status == SHOAL_OK ? shoal_fully_shard_broadcast_all(root, bench->alone.root, 0) : status;
    return status == SHOAL_OK ? shoal_fsdp_gather(weight, full, 0) : status;
}

TEST_RANKS(values_without_memory, 1)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK(test_sweep_allocations(load_scarcely, &bench) >= 1);
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 1);
    bench_close(&bench);
}

/* Other functions ---------------------------------------------------------------------------------------- */

/* A layer that adds its bias twice. */
static shoal_status encode_layer(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                 shoal_tensor **outputs, size_t n_outputs)
{
    shoal_tensor *bias = shoal_module_parameter(module, "bias");
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = shoal_add(shoal_add(inputs[0], bias), bias);
    return SHOAL_OK;
}

/* The layers of a net by that function, and no scale. */
static shoal_status encode(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                           shoal_tensor **outputs, size_t n_outputs)
{
    shoal_tensor *x = inputs[0];
    (void)n_inputs;
    (void)n_outputs;
    for (size_t i = 0; shoal_module_child_at(module, i, NULL) != NULL; i++) {
        (void)!shoal_module_call_function(shoal_module_child_at(module, i, NULL), encode_layer, &x, 1, &x, 1);
    }
    outputs[0] = shoal_mul(x, shoal_module_parameter(module, "scale"));
    return SHOAL_OK;
}

static bool pass_encoded(struct net *net, int step, int part)
{
    bool is_right = CHECK_OK(shoal_scope_begin());
    shoal_tensor *x = net_input(step, part);
    is_right = CHECK_OK(shoal_module_call_function(net->root, encode, &x, 1, &x, 1)) && is_right;
    is_right = is_right && CHECK_OK(shoal_backward(net_loss_of(x), NULL));
    return CHECK_OK(shoal_scope_end()) && is_right;
}

/* Gathered, given up and reduced as around the forward function; weights are not used and have no gradients. */
TEST_RANKS(another_function_than_forward, 3)
{
    static const shoal_reshard reshards[] = {SHOAL_RESHARD_DEFAULT, SHOAL_RESHARD_NEVER};
    for (int i = 0; i < 2; i++) {
        struct bench bench;
        REQUIRE(bench_open(&bench, self, 2, NULL));
        bench.options.reshard = reshards[i];
        REQUIRE(net_shard(&bench.sharded, &bench.options));
        net_train_both(&bench.sharded, &bench.alone, pass_encoded, self, 2);
        net_train_both(&bench.sharded, &bench.alone, net_pass, self, 1);
        if (reshards[i] == SHOAL_RESHARD_DEFAULT) {
            net_listen(&bench.sharded, "urp");
            (void)pass_encoded(&bench.sharded, 5, self->rank);
            CHECK_EVENTS(&bench.sharded, "uR u0 u1 r0 r1 u1 u0 p1 r1 pR rR p0 r0");
        }
        bench_close(&bench);
    }
}
