/* SPDX-License-Identifier: MIT */
/* Items of optimizers of modules that are fully sharded: moments are cut as their parameters are, also empty ones. */
#include "fixtures/on_device.h"

#include "fixtures/module_bench.h"
#include "shoal/items.h"
#include "shoal_nn/optim.h"

static void check_moment(const shoal_items *items, const shoal_item *parameter, const char *suffix)
{
    char name[64];
    shoal_item moment = SHOAL_ITEM_INIT;
    (void)snprintf(name, sizeof name, "%s%s", parameter->name, suffix);
    int64_t number = shoal_items_find(items, SHOAL_SECTION_OPTIMIZER, name);
    REQUIRE(number >= 0);
    CHECK_OK(shoal_items_get(items, (size_t)number, &moment));
    CHECK_INT(moment.n_dims, parameter->n_dims);
    CHECK_INT(moment.shape[0], parameter->shape[0]);
    CHECK_INT(moment.dim, parameter->dim);
    CHECK_INT(moment.offset, parameter->offset);
    CHECK_INT(moment.length, parameter->length);
    CHECK(moment.tensor && moment.tensor != parameter->tensor);
    CHECK_INT(shoal_tensor_count(moment.tensor), shoal_tensor_count(parameter->tensor));
}

static void check_items(struct rank *self, bool is_called_first)
{
    struct bench bench;
    shoal_items *items = NULL;
    shoal_nn_optimizer *optimizer = NULL;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    REQUIRE_OK(shoal_nn_adamw_create_for(bench.sharded.root, NULL, NULL, 0, &optimizer));
    if (is_called_first) {
        (void)net_pass(&bench.sharded, 0, self->rank);
        CHECK_OK(shoal_nn_optimizer_step(optimizer));
    }
    REQUIRE_OK(shoal_items_create(&items));
    REQUIRE_OK(shoal_items_add_module(items, "", bench.sharded.root));
    size_t n_parameters = shoal_items_count(items);
    REQUIRE_OK(shoal_nn_optimizer_add_items(optimizer, items));
    CHECK_INT(n_parameters, 5);
    CHECK_INT(shoal_items_count(items), 4 * n_parameters);
    int64_t n_empty = 0;
    for (size_t i = 0; i < n_parameters; i++) {
        shoal_item parameter = SHOAL_ITEM_INIT;
        CHECK_OK(shoal_items_get(items, i, &parameter));
        check_moment(items, &parameter, ".exp_avg");
        check_moment(items, &parameter, ".exp_avg_sq");
        n_empty += shoal_tensor_count(parameter.tensor) == 0;
    }
    CHECK(self->rank == 0 || n_empty >= 2);
    /* Items are the state of steps that come. */
    (void)net_pass(&bench.sharded, 1, self->rank);
    CHECK_OK(shoal_nn_optimizer_step(optimizer));
    for (size_t i = 0; i < shoal_nn_optimizer_count(optimizer); i++) {
        char name[64];
        shoal_item item = SHOAL_ITEM_INIT;
        shoal_nn_optimizer_state state = SHOAL_NN_OPTIMIZER_STATE_INIT;
        CHECK_OK(shoal_nn_optimizer_get_state(optimizer, i, &state));
        (void)snprintf(name, sizeof name, "%s.exp_avg_sq", shoal_nn_optimizer_path(optimizer, i));
        CHECK_OK(
            shoal_items_get(items, (size_t)shoal_items_find(items, SHOAL_SECTION_OPTIMIZER, name), &item));
        CHECK(item.tensor == state.second_moment);
        CHECK_INT(state.n_updates, 1 + is_called_first);
    }
    shoal_nn_optimizer_free(optimizer);
    shoal_items_free(items);
    bench_close(&bench);
}

TEST_RANKS(before_the_first_step, 3)
{
    check_items(self, false);
}

TEST_RANKS(after_a_step, 2)
{
    check_items(self, true);
}
