/* SPDX-License-Identifier: MIT */
/* State of optimizers, schedules and scalers as items of checkpoints: names, places, lifetimes, what a load refuses. */
#include "shoal/items.h"

#include <stdio.h>

#include "checkpoint/items/items.h"
#include "shoal_nn/optim.h"
#include "shoal_nn/scaler.h"
#include "shoal_nn/schedule.h"
#include "unit/nn/fixture.h"

static shoal_module *make_module(void)
{
    shoal_module *module = NULL;
    const shoal_module_definition definition = {.struct_size = sizeof(definition), .type = "net"};
    CHECK_OK(shoal_module_create(&definition, &module));
    return module;
}

/* weight [2, 3] f16, tied as "tied"; bias [3] f32; frozen [2] f32. Freed by shoal_module_unref. */
static shoal_module *make_net(void)
{
    shoal_module *net = make_module();
    shoal_tensor *weight = require_grad(shoal_full(INTS(2, 3), 2, 1, SHOAL_F16));
    CHECK_OK(shoal_module_add_parameter(net, "weight", weight));
    CHECK_OK(shoal_module_add_parameter(net, "bias", require_grad(shoal_zeros(INTS(3), 1, SHOAL_F32))));
    CHECK_OK(shoal_module_add_parameter(net, "frozen", shoal_zeros(INTS(2), 1, SHOAL_F32)));
    CHECK_OK(shoal_module_add_parameter(net, "tied", weight));
    return net;
}

static shoal_items *list_net(const char *prefix, shoal_module *net)
{
    shoal_items *items = NULL;
    CHECK_OK(shoal_items_create(&items));
    CHECK_OK(shoal_items_add_module(items, prefix, net));
    return items;
}

static shoal_item find_item(const shoal_items *items, const char *name)
{
    shoal_item item = SHOAL_ITEM_INIT;
    int64_t number = shoal_items_find(items, SHOAL_SECTION_OPTIMIZER, name);
    if (number < 0) {
        test_failed(__FILE__, __LINE__, "there is no item %s", name);
        return item;
    }
    CHECK_OK(shoal_items_get(items, (size_t)number, &item));
    return item;
}

static void set_gradients(shoal_module *net, double value)
{
    CHECK_OK(
        shoal_set_grad(shoal_module_parameter(net, "weight"), shoal_full(INTS(2, 3), 2, value, SHOAL_F32)));
    CHECK_OK(shoal_set_grad(shoal_module_parameter(net, "bias"), shoal_full(INTS(3), 1, value, SHOAL_F32)));
}

NN_TEST(adamw_has_moments_and_steps)
{
    shoal_module *net = make_net();
    shoal_items *items = list_net("net.", net);
    shoal_nn_optimizer *optimizer = NULL;
    REQUIRE_OK(shoal_nn_adamw_create_for(net, NULL, NULL, 0, &optimizer));
    size_t n_before = shoal_items_count(items);
    REQUIRE_OK(shoal_nn_optimizer_add_items(optimizer, items));
    CHECK_INT(shoal_items_count(items), n_before + 6);
    shoal_item item = find_item(items, "net.weight.exp_avg");
    CHECK_INT(item.dtype, SHOAL_F32);
    CHECK_INT(item.n_dims, 2);
    CHECK_INT(item.shape[1], 3);
    CHECK_INT(item.dim, -1);
    CHECK(!item.may_be_missing);
    /* Moments were made, and are the optimizer's own. */
    shoal_nn_optimizer_state state = SHOAL_NN_OPTIMIZER_STATE_INIT;
    CHECK_OK(shoal_nn_optimizer_get_state(optimizer, 0, &state));
    CHECK_INT(state.n_updates, 0);
    CHECK(state.first_moment && item.tensor == state.first_moment);
    CHECK(find_item(items, "net.weight.exp_avg_sq").tensor == state.second_moment);
    CHECK_DOUBLE(doubles_of(state.first_moment)[5], 0);
    item = find_item(items, "net.weight.step");
    CHECK_INT(item.dtype, SHOAL_I64);
    CHECK_INT(item.n_dims, 0);
    CHECK_INT(*(const int64_t *)item.data, 0);
    (void)find_item(items, "net.bias.exp_avg");
    CHECK_INT(shoal_items_find(items, SHOAL_SECTION_OPTIMIZER, "net.frozen.step"), -1);
    CHECK_INT(shoal_items_find(items, SHOAL_SECTION_OPTIMIZER, "net.tied.step"), -1);
    CHECK_OK(shoal_nn_optimizer_get_state(optimizer, 2, &state));
    CHECK(state.first_moment == NULL);
    /* Zeros are the same as none: the step of an optimizer without the list has the same bits. */
    shoal_module *other = make_net();
    shoal_nn_optimizer *plain = NULL;
    REQUIRE_OK(shoal_nn_adamw_create_for(other, NULL, NULL, 0, &plain));
    for (int step = 0; step < 2; step++) {
        set_gradients(net, 0.5 + step);
        set_gradients(other, 0.5 + step);
        CHECK_OK(shoal_nn_optimizer_step(optimizer));
        CHECK_OK(shoal_nn_optimizer_step(plain));
    }
    CHECK_BYTES(shoal_data(shoal_module_parameter(net, "weight")),
                shoal_data(shoal_module_parameter(other, "weight")), 6 * 2);
    CHECK_INT(*(const int64_t *)find_item(items, "net.bias.step").data, 2);
    shoal_nn_optimizer_free(plain);
    shoal_module_unref(other);
    shoal_items_free(items);
    shoal_nn_optimizer_free(optimizer);
    shoal_module_unref(net);
}

NN_TEST(sgd_has_steps_only)
{
    shoal_module *net = make_net();
    shoal_items *items = list_net("", net);
    shoal_nn_optimizer *optimizer = NULL;
    REQUIRE_OK(shoal_nn_sgd_create_for(net, NULL, NULL, 0, &optimizer));
    size_t n_before = shoal_items_count(items);
    REQUIRE_OK(shoal_nn_optimizer_add_items(optimizer, items));
    CHECK_INT(shoal_items_count(items), n_before + 2);
    (void)find_item(items, "weight.step");
    (void)find_item(items, "bias.step");
    shoal_items_free(items);
    shoal_nn_optimizer_free(optimizer);
    shoal_module_unref(net);
}

/* A frozen parameter that has state keeps it; one made from a list is found by its tensor, too. */
NN_TEST(frozen_parameters_with_state_are_saved)
{
    shoal_module *net = make_net();
    shoal_items *items = list_net("", net);
    shoal_tensor *tensors[] = {shoal_module_parameter(net, "frozen"), shoal_module_parameter(net, "bias")};
    shoal_nn_optimizer *optimizer = NULL;
    shoal_nn_optimizer_state state = SHOAL_NN_OPTIMIZER_STATE_INIT;
    REQUIRE_OK(shoal_nn_adamw_create(tensors, 2, NULL, &optimizer));
    state.n_updates = 3;
    CHECK_OK(shoal_nn_optimizer_set_state(optimizer, 0, &state));
    REQUIRE_OK(shoal_nn_optimizer_add_items(optimizer, items));
    CHECK_INT(*(const int64_t *)find_item(items, "frozen.step").data, 3);
    (void)find_item(items, "frozen.exp_avg");
    (void)find_item(items, "bias.exp_avg_sq");
    shoal_items_free(items);
    shoal_nn_optimizer_free(optimizer);
    shoal_module_unref(net);
}

/* What a load does, by the calls that it makes. */
static void write_item(shoal_items *items, const char *name, const void *bytes, size_t n_bytes)
{
    struct item_part part;
    int64_t number = shoal_items_find(items, SHOAL_SECTION_OPTIMIZER, name);
    REQUIRE(number >= 0);
    REQUIRE_OK(items_mutable_part(items, (size_t)number, 0.0, &part));
    memcpy(part.data, bytes, n_bytes);
}

/* Loaded state is in place: the next step goes on from it. */
NN_TEST(what_is_loaded_is_in_place)
{
    shoal_module *nets[2] = {make_net(), make_net()};
    shoal_nn_optimizer *optimizers[2];
    shoal_items *items = list_net("", nets[1]);
    for (int k = 0; k < 2; k++) {
        REQUIRE_OK(shoal_nn_adamw_create_for(nets[k], NULL, NULL, 0, &optimizers[k]));
    }
    REQUIRE_OK(shoal_nn_optimizer_add_items(optimizers[1], items));
    for (int step = 0; step < 3; step++) {
        set_gradients(nets[0], 1 + step);
        CHECK_OK(shoal_nn_optimizer_step(optimizers[0]));
    }
    static const char *const paths[] = {"weight", "bias"};
    for (int i = 0; i < 2; i++) {
        char name[64];
        shoal_nn_optimizer_state state = SHOAL_NN_OPTIMIZER_STATE_INIT;
        CHECK_OK(shoal_nn_optimizer_get_state(optimizers[0], (size_t)i, &state));
        size_t n_bytes = (size_t)shoal_tensor_count(state.first_moment) * sizeof(float);
        (void)snprintf(name, sizeof(name), "%s.exp_avg", paths[i]);
        write_item(items, name, shoal_data(state.first_moment), n_bytes);
        (void)snprintf(name, sizeof(name), "%s.exp_avg_sq", paths[i]);
        write_item(items, name, shoal_data(state.second_moment), n_bytes);
        (void)snprintf(name, sizeof(name), "%s.step", paths[i]);
        write_item(items, name, &state.n_updates, sizeof(state.n_updates));
        shoal_tensor *from = shoal_module_parameter(nets[0], paths[i]);
        memcpy(shoal_mutable_data(shoal_module_parameter(nets[1], paths[i])), shoal_data(from),
               (size_t)shoal_tensor_count(from) * shoal_dtype_bytes(shoal_tensor_dtype(from)));
    }
    CHECK_OK(items_loaded(items));
    for (int k = 0; k < 2; k++) {
        set_gradients(nets[k], 7);
        CHECK_OK(shoal_nn_optimizer_step(optimizers[k]));
    }
    CHECK_BYTES(shoal_data(shoal_module_parameter(nets[1], "weight")),
                shoal_data(shoal_module_parameter(nets[0], "weight")), 6 * 2);
    CHECK_BYTES(shoal_data(shoal_module_parameter(nets[1], "bias")),
                shoal_data(shoal_module_parameter(nets[0], "bias")), 3 * 4);
    /* A count that no training has. */
    const int64_t negative = -4;
    write_item(items, "bias.step", &negative, sizeof(negative));
    CHECK_STATUS(items_loaded(items), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT(
        "nn_optimizer_add_items: what was loaded: parameter bias: step: -4 is negative; it is 0 now");
    shoal_nn_optimizer_state kept = SHOAL_NN_OPTIMIZER_STATE_INIT;
    CHECK_OK(shoal_nn_optimizer_get_state(optimizers[1], 1, &kept));
    CHECK_INT(kept.n_updates, 0);
    shoal_items_free(items);
    for (int k = 0; k < 2; k++) {
        shoal_nn_optimizer_free(optimizers[k]);
        shoal_module_unref(nets[k]);
    }
}

/* The list keeps what it points to. */
NN_TEST(lists_and_optimizers_end_in_any_order)
{
    for (int is_list_first = 0; is_list_first <= 1; is_list_first++) {
        shoal_module *net = make_net();
        shoal_items *items[2] = {list_net("", net), list_net("again.", net)};
        shoal_nn_optimizer *optimizer = NULL;
        shoal_nn_scaler *scaler = NULL;
        REQUIRE_OK(shoal_nn_adamw_create_for(net, NULL, NULL, 0, &optimizer));
        REQUIRE_OK(shoal_nn_scaler_create(NULL, &scaler));
        for (int i = 0; i < 2; i++) {
            REQUIRE_OK(shoal_nn_optimizer_add_items(optimizer, items[i]));
            REQUIRE_OK(shoal_nn_scaler_add_items(scaler, items[i], ""));
        }
        shoal_module_unref(net);
        shoal_items_free(items[0]);
        if (is_list_first) {
            shoal_items_free(items[1]);
            shoal_nn_optimizer_state state = SHOAL_NN_OPTIMIZER_STATE_INIT;
            CHECK_OK(shoal_nn_optimizer_get_state(optimizer, 0, &state));
            CHECK_DOUBLE(doubles_of(state.first_moment)[0], 0);
        }
        shoal_nn_optimizer_free(optimizer);
        shoal_nn_scaler_free(scaler);
        if (!is_list_first) {
            const int64_t step = 12;
            write_item(items[1], "again.bias.step", &step, sizeof(step));
            CHECK_OK(items_loaded(items[1]));
            CHECK_DOUBLE(doubles_of(find_item(items[1], "again.weight.exp_avg").tensor)[0], 0);
            shoal_items_free(items[1]);
        }
    }
}

NN_TEST(parameters_without_items_are_named)
{
    shoal_module *net = make_net();
    shoal_module *part = make_module();
    CHECK_OK(shoal_module_add_parameter(part, "w", shoal_module_parameter(net, "weight")));
    shoal_items *items = list_net("", part);
    shoal_nn_optimizer *optimizer = NULL;
    REQUIRE_OK(shoal_nn_adamw_create_for(net, NULL, NULL, 0, &optimizer));
    CHECK_STATUS(shoal_nn_optimizer_add_items(optimizer, items), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_optimizer_add_items: parameter bias has no item in the list; add its module first");
    CHECK_INT(shoal_items_count(items), 1);
    CHECK_STATUS(shoal_nn_optimizer_add_items(optimizer, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_optimizer_add_items: items is NULL");
    CHECK_STATUS(shoal_nn_optimizer_add_items(NULL, items), SHOAL_ERR_INVALID);
    shoal_items_free(items);
    /* Twice: names that are there already. */
    items = list_net("", net);
    CHECK_OK(shoal_nn_optimizer_add_items(optimizer, items));
    size_t count = shoal_items_count(items);
    CHECK_STATUS(shoal_nn_optimizer_add_items(optimizer, items), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("weight.exp_avg");
    CHECK_INT(shoal_items_count(items), count);
    shoal_items_free(items);
    shoal_nn_optimizer_free(optimizer);
    shoal_module_unref(part);
    shoal_module_unref(net);
}

/* Rows 1 and 2 of a whole of 4, and an empty part; an optimizer of these two, with a shard between them. */
struct raw {
    double values[6];
    float other[2];
    shoal_items *items;
    shoal_nn_optimizer *optimizer;
};

static bool open_raw(struct raw *raw)
{
    *raw = (struct raw){.values = {1, 2, 3, 4, 5, 6}, .other = {7, 8}};
    const shoal_nn_shard shards[] = {{raw->values, raw->values, 6, SHOAL_F64, SHOAL_F64},
                                     {raw->other, raw->other, 2, SHOAL_F32, SHOAL_F32},
                                     {NULL, NULL, 0, SHOAL_BF16, SHOAL_BF16}};
    const shoal_item cut = {.struct_size = sizeof(cut),
                            .name = "cut",
                            .dtype = SHOAL_F64,
                            .n_dims = 2,
                            .shape = INTS(4, 3),
                            .dim = 0,
                            .offset = 1,
                            .length = 2,
                            .data = raw->values};
    const shoal_item empty = {.struct_size = sizeof(empty),
                              .name = "empty",
                              .dtype = SHOAL_BF16,
                              .n_dims = 1,
                              .shape = INTS(5),
                              .dim = 0,
                              .offset = 5,
                              .length = 0};
    return CHECK_OK(shoal_items_create(&raw->items)) && CHECK_OK(shoal_items_add(raw->items, &empty)) &&
           CHECK_OK(shoal_items_add(raw->items, &cut)) &&
           CHECK_OK(shoal_nn_adamw_create_raw(shards, 3, NULL, &raw->optimizer));
}

static void close_raw(struct raw *raw)
{
    shoal_nn_optimizer_free(raw->optimizer);
    shoal_items_free(raw->items);
}

NN_TEST(raw_optimizers_take_numbers)
{
    struct raw raw;
    const int64_t numbers[3] = {1, -1, 0};
    REQUIRE(open_raw(&raw));
    REQUIRE_OK(shoal_nn_optimizer_add_items_raw(raw.optimizer, raw.items, numbers, 3));
    CHECK_INT(shoal_items_count(raw.items), 8);
    shoal_item item = find_item(raw.items, "cut.exp_avg_sq");
    CHECK_INT(item.dtype, SHOAL_F64);
    CHECK_INT(item.shape[0], 4);
    CHECK_INT(item.dim, 0);
    CHECK_INT(item.offset, 1);
    CHECK_INT(item.length, 2);
    item = find_item(raw.items, "empty.exp_avg");
    CHECK_INT(item.dtype, SHOAL_F32);
    CHECK_INT(item.length, 0);
    const double loaded[6] = {1, 1, 2, 3, 5, 8};
    const int64_t step = 5;
    write_item(raw.items, "cut.exp_avg", loaded, sizeof(loaded));
    write_item(raw.items, "cut.step", &step, sizeof(step));
    shoal_nn_optimizer_state state = SHOAL_NN_OPTIMIZER_STATE_INIT;
    CHECK_OK(shoal_nn_optimizer_get_state(raw.optimizer, 0, &state));
    CHECK_INT(state.n_updates, 5);
    CHECK_BYTES(shoal_data(state.first_moment), loaded, sizeof(loaded));
    close_raw(&raw);
}

NN_TEST(numbers_of_raw_shards_are_checked)
{
    struct raw raw;
    int64_t numbers[3] = {1, 2, 0};
    REQUIRE(open_raw(&raw));
    CHECK_STATUS(shoal_nn_optimizer_add_items(raw.optimizer, raw.items), SHOAL_ERR_STATE);
    CHECK_STATUS(shoal_nn_optimizer_add_items_raw(raw.optimizer, raw.items, numbers, 2), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_optimizer_add_items_raw: 2 numbers, but it was made with 3 shards");
    CHECK_STATUS(shoal_nn_optimizer_add_items_raw(raw.optimizer, raw.items, NULL, 3), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_nn_optimizer_add_items_raw(raw.optimizer, raw.items, numbers, 3), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_optimizer_add_items_raw: shard 1 has no item in the list of that number");
    numbers[1] = -2;
    CHECK_STATUS(shoal_nn_optimizer_add_items_raw(raw.optimizer, raw.items, numbers, 3), SHOAL_ERR_INVALID);
    numbers[1] = 0;
    CHECK_STATUS(shoal_nn_optimizer_add_items_raw(raw.optimizer, raw.items, numbers, 3), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("shard 1 has 2 elements of f32, but the item empty has 0 of bf16");
    CHECK_INT(shoal_items_count(raw.items), 2);
    close_raw(&raw);
}

/* Numbers ---------------------------------------------------------------------------------------------- */

static void *find_value(const shoal_items *items, const char *name)
{
    for (size_t i = 0; i < items_n_values(items); i++) {
        if (strcmp(items_value(items, i)->name, name) == 0) {
            return items_value(items, i)->value;
        }
    }
    test_failed(__FILE__, __LINE__, "there is no number %s", name);
    return NULL;
}

NN_TEST(schedules_have_their_step)
{
    shoal_items *items = NULL;
    shoal_nn_schedule schedule = SHOAL_NN_SCHEDULE_INIT;
    schedule.lr = 1;
    REQUIRE_OK(shoal_items_create(&items));
    CHECK_STATUS(shoal_nn_schedule_add_items(&schedule, items, "s."), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_schedule_add_items: kind: 0");
    schedule.kind = SHOAL_NN_SCHEDULE_CONSTANT;
    CHECK_STATUS(shoal_nn_schedule_add_items(NULL, items, "s."), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_nn_schedule_add_items(&schedule, NULL, "s."), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_nn_schedule_add_items(&schedule, items, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_schedule_add_items: prefix is NULL");
    REQUIRE_OK(shoal_nn_schedule_add_items(&schedule, items, "s."));
    CHECK_STATUS(shoal_nn_schedule_add_items(&schedule, items, "s."), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("s.step");
    int64_t *step = find_value(items, "s.step");
    REQUIRE(step != NULL);
    *step = 17;
    CHECK_OK(items_loaded(items));
    CHECK_INT(schedule.step, 17);
    *step = -1;
    CHECK_STATUS(items_loaded(items), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_schedule_add_items: what was loaded: step: -1 is negative");
    shoal_items_free(items);
}

NN_TEST(scalers_have_scale_and_counters)
{
    shoal_items *items = NULL;
    shoal_nn_scaler *scaler = NULL;
    REQUIRE_OK(shoal_items_create(&items));
    REQUIRE_OK(shoal_nn_scaler_create(NULL, &scaler));
    CHECK_STATUS(shoal_nn_scaler_add_items(NULL, items, ""), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_nn_scaler_add_items(scaler, NULL, ""), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_nn_scaler_add_items(scaler, items, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_scaler_add_items: prefix is NULL");
    REQUIRE_OK(shoal_nn_scaler_add_items(scaler, items, "scaler."));
    CHECK_STATUS(shoal_nn_scaler_add_items(scaler, items, "scaler."), SHOAL_ERR_INVALID);
    CHECK_INT(items_n_values(items), 3);
    double *scale = find_value(items, "scaler.scale");
    int64_t *n_clean = find_value(items, "scaler.n_clean");
    REQUIRE(scale && n_clean);
    CHECK_DOUBLE(*scale, 65536);
    *scale = 8;
    *n_clean = 5;
    CHECK_OK(items_loaded(items));
    shoal_tensor *scaled = shoal_nn_scaler_scale(scaler, shoal_full(NULL, 0, 3, SHOAL_F32));
    CHECK_DOUBLE(doubles_of(scaled)[0], 24);
    shoal_nn_scaler_state state = SHOAL_NN_SCALER_STATE_INIT;
    CHECK_OK(shoal_nn_scaler_get_state(scaler, &state));
    CHECK_INT(state.n_clean, 5);
    /* What is refused does not stay. */
    *scale = (double)NAN;
    *n_clean = 7;
    CHECK_STATUS(items_loaded(items), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_scaler_add_items: what was loaded: nn_scaler_set_state: scale: nan is not");
    CHECK_OK(shoal_nn_scaler_get_state(scaler, &state));
    CHECK_DOUBLE(state.scale, 8);
    CHECK_INT(state.n_clean, 5);
    *scale = 16;
    *n_clean = -7;
    CHECK_STATUS(items_loaded(items), SHOAL_ERR_INVALID);
    CHECK_OK(shoal_nn_scaler_get_state(scaler, &state));
    CHECK_DOUBLE(state.scale, 8);
    CHECK_INT(state.n_clean, 5);
    shoal_nn_scaler_free(scaler);
    shoal_items_free(items);
}

/* Failing allocations ---------------------------------------------------------------------------------- */

struct subject {
    shoal_module *net;
    shoal_nn_schedule schedule;
};

static shoal_status add_everything(void *context)
{
    struct subject *subject = context;
    shoal_items *items = NULL;
    shoal_nn_optimizer *optimizer = NULL;
    shoal_nn_scaler *scaler = NULL;
    shoal_status status = shoal_items_create(&items);
    status = status == SHOAL_OK ? shoal_items_add_module(items, "", subject->net) : status;
    status = status == SHOAL_OK ? shoal_nn_adamw_create_for(subject->net, NULL, NULL, 0, &optimizer) : status;
    status = status == SHOAL_OK ? shoal_nn_scaler_create(NULL, &scaler) : status;
    size_t count = shoal_items_count(items);
    if (status == SHOAL_OK) {
        status = shoal_nn_optimizer_add_items(optimizer, items);
        CHECK_INT(shoal_items_count(items), count + (status == SHOAL_OK ? 6 : 0));
    }
    status = status == SHOAL_OK ? shoal_nn_scaler_add_items(scaler, items, "") : status;
    status = status == SHOAL_OK ? shoal_nn_schedule_add_items(&subject->schedule, items, "") : status;
    CHECK(status == SHOAL_OK ? items_n_values(items) == 4 : !items || items_n_values(items) % 3 == 0);
    shoal_nn_optimizer_free(optimizer);
    shoal_items_free(items);
    shoal_nn_scaler_free(scaler);
    return status;
}

TEST(failing_allocations_are_errors)
{
    struct subject subject = {.schedule = SHOAL_NN_SCHEDULE_INIT};
    begin_nn();
    subject.schedule.kind = SHOAL_NN_SCHEDULE_CONSTANT;
    REQUIRE_OK(shoal_scope_begin());
    subject.net = make_net();
    CHECK_OK(shoal_scope_end());
    CHECK(test_sweep_allocations(add_everything, &subject) >= 20);
    shoal_module_unref(subject.net);
}
