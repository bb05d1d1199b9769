/* SPDX-License-Identifier: MIT */
/* Tensors that are cut like the parameters of sharded modules: moments of an optimizer, whole and in parts. */
#include "fixtures/on_device.h"

#include "fixtures/module_bench.h"
#include "shoal/fully_shard.h"

#define CHECK_REFUSED(call, status, text) \
    do {                                  \
        CHECK_STATUS(call, status);       \
        CHECK_ERROR_TEXT(text);           \
    } while (0)

enum {
    ROOM = 512
};

static void count_up(double *values, size_t n, double first)
{
    for (size_t i = 0; i < n; i++) {
        values[i] = first + (double)i;
    }
}

/* A tensor like the shard, of f64, whatever the parameter is. */
static shoal_tensor *make_moment(const shoal_shard_layout *layout)
{
    return shoal_full(layout->shard_shape, layout->n_dims, -1.0, SHOAL_F64);
}

static void check_path(struct bench *bench, struct rank *self, const char *path)
{
    double full[ROOM];
    double got[ROOM];
    shoal_module *root = bench->sharded.root;
    shoal_shard_layout layout = {.struct_size = sizeof layout};
    REQUIRE_OK(shoal_fsdp_get_layout(shoal_fully_shard_param(root, path), &layout));
    CHECK_INT(layout.unit, -1);
    const shoal_tensor *whole = shoal_module_parameter(bench->alone.root, path);
    const shoal_tensor *shard = shoal_module_parameter(root, path);
    REQUIRE(whole && shard && layout.n_dims == shoal_tensor_n_dims(whole) && layout.count < ROOM);
    for (int i = 0; i < layout.n_dims; i++) {
        CHECK_INT(layout.shape[i], shoal_tensor_shape(whole)[i]);
        CHECK_INT(layout.shard_shape[i], shoal_tensor_shape(shard)[i]);
    }
    shoal_tensor *moment = make_moment(&layout);
    REQUIRE(moment != NULL);
    count_up(full, layout.count, 5.0);
    CHECK_OK(shoal_fsdp_load_array(shoal_fully_shard_param(root, path), shoal_tensor_dtype(moment), full,
                                   test_address(moment)));
    memset(got, 0, sizeof got);
    CHECK_OK(shoal_fsdp_gather_array(shoal_fully_shard_param(root, path), shoal_tensor_dtype(moment),
                                     test_address(moment), got, SHOAL_FSDP_ALL_RANKS));
    CHECK_BYTES(got, full, layout.count * sizeof full[0]);
    for (int rank = 0; rank < self->n_ranks; rank++) {
        bool is_here = self->rank == rank;
        count_up(full, layout.count, is_here ? 10.0 * rank : -99.0);
        CHECK_OK(shoal_fsdp_broadcast_array(shoal_fully_shard_param(root, path), shoal_tensor_dtype(moment),
                                            is_here ? full : NULL, test_address(moment), rank));
        count_up(full, layout.count, 10.0 * rank);
        memset(got, 0, sizeof got);
        CHECK_OK(shoal_fsdp_gather_array(shoal_fully_shard_param(root, path), shoal_tensor_dtype(moment),
                                         test_address(moment), is_here ? got : NULL, rank));
        CHECK(!is_here || CHECK_BYTES(got, full, layout.count * sizeof full[0]));
    }
}

static void check_net(struct rank *self, int n_replicas)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(n_replicas == 1 || bench_replicate(&bench, n_replicas));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    check_path(&bench, self, "0.weight");
    check_path(&bench, self, "1.bias");
    (void)net_pass(&bench.sharded, 0, self->rank);
    check_path(&bench, self, "0.bias");
    check_path(&bench, self, "1.weight");
    bench_close(&bench);
}

TEST_RANKS(moments_alone, 1)
{
    check_net(self, 1);
}

TEST_RANKS(moments_of_shards, 4)
{
    check_net(self, 1);
}

TEST_RANKS(moments_of_replicas_of_shards, 4)
{
    check_net(self, 2);
}

TEST_RANKS(arrays_that_are_refused, 2)
{
    struct bench bench;
    double full[ROOM] = {0.0};
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    shoal_module *root = bench.sharded.root;
    shoal_shard_layout layout = {.struct_size = sizeof layout};
    REQUIRE_OK(shoal_fsdp_get_layout(shoal_fully_shard_param(root, "1.weight"), &layout));
    shoal_tensor *moment = make_moment(&layout);
    shoal_fsdp_param *param = shoal_fully_shard_param(root, "1.weight");
    const void *data = test_address(moment);
    CHECK_REFUSED(shoal_fsdp_gather_array(shoal_fully_shard_param(root, "1.wieght"), SHOAL_F64, data, full,
                                          SHOAL_FSDP_ALL_RANKS),
                  SHOAL_ERR_INVALID,
                  "gather_array: there is no parameter \"1.wieght\" that is sharded; the nearest are "
                  "\"1.weight\"");
    CHECK_REFUSED(shoal_fsdp_gather_array(param, SHOAL_F64, NULL, full, SHOAL_FSDP_ALL_RANKS),
                  SHOAL_ERR_INVALID, "gather_array: parameter weight: shard is NULL");
    CHECK_REFUSED(shoal_fsdp_gather_array(param, (shoal_dtype)0, data, full, SHOAL_FSDP_ALL_RANKS),
                  SHOAL_ERR_INVALID, "gather_array: parameter weight: dtype: 0 is not a dtype");
    CHECK_REFUSED(shoal_fsdp_gather_array(param, SHOAL_F64, data, NULL, SHOAL_FSDP_ALL_RANKS),
                  SHOAL_ERR_INVALID, "gather_array: parameter weight: full is NULL");
    CHECK_REFUSED(shoal_fsdp_gather_array(param, SHOAL_F64, data, full, 2), SHOAL_ERR_INVALID,
                  "gather_array: parameter weight: root 2 is outside of the 2 ranks");
    CHECK_REFUSED(shoal_fsdp_broadcast_array(param, SHOAL_F64, full, test_address(moment), -1),
                  SHOAL_ERR_INVALID, "broadcast_array: parameter weight: root -1 is outside of the 2 ranks");
    shoal_tensor *values = shoal_module_parameter(root, "1.weight");
    CHECK_REFUSED(shoal_fsdp_load_array(param, shoal_tensor_dtype(values), full, test_address(values)),
                  SHOAL_ERR_INVALID,
                  "shard holds the values of parameter weight itself: those are loaded by");
    CHECK_REFUSED(shoal_fsdp_get_layout(param, NULL), SHOAL_ERR_INVALID,
                  "get_layout: parameter weight: layout_out is NULL");
    CHECK_REFUSED(shoal_fsdp_get_layout(shoal_fully_shard_param(root, "weight"), &layout), SHOAL_ERR_INVALID,
                  "get_layout: there is no parameter \"weight\" that is sharded; the nearest are");
    bench_close(&bench);
}
