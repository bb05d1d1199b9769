/* SPDX-License-Identifier: MIT */
/* Optimizers of modules: walk order and paths, groups by pattern and dimensions, their rates, and what is refused. */
#include <stdio.h>

#include "shoal_nn/optim.h"
#include "fixtures/on_device.h"
#include "unit/nn/fixture.h"

enum {
    N_PARAMETERS = 6,
    COUNT = 6
};

/* In the order of a walk; the head is tied to the embedding. */
static const struct {
    const char *path;
    int n_dims;
    int64_t shape[2];
} rows[N_PARAMETERS] = {
    {"scale", 0, {0}},  {"embed", 2, {3, 2}},    {"0.weight", 2, {2, 3}},
    {"0.bias", 1, {6}}, {"1.weight", 2, {1, 6}}, {"1.bias", 1, {6}},
};

static shoal_module *make_module(const char *type)
{
    shoal_module *module = NULL;
    const shoal_module_definition definition = {.struct_size = sizeof(definition), .type = type};
    CHECK_OK(shoal_module_create(&definition, &module));
    return module;
}

static shoal_tensor *make_parameter(int row)
{
    return require_grad(shoal_full(rows[row].shape, rows[row].n_dims, 1 + 0.25 * row, SHOAL_F32));
}

/* Freed by shoal_module_unref. */
static shoal_module *make_net(void)
{
    shoal_module *root = make_module("net");
    CHECK_OK(shoal_module_add_parameter(root, "scale", make_parameter(0)));
    CHECK_OK(shoal_module_add_parameter(root, "embed", make_parameter(1)));
    CHECK_OK(shoal_module_add_parameter(root, "head", shoal_module_parameter(root, "embed")));
    for (int i = 0; i < 2; i++) {
        char name[] = {(char)('0' + i), '\0'};
        shoal_module *layer = make_module("layer");
        CHECK_OK(shoal_module_add_parameter(layer, "weight", make_parameter(2 + 2 * i)));
        CHECK_OK(shoal_module_add_parameter(layer, "bias", make_parameter(3 + 2 * i)));
        CHECK_OK(shoal_module_add_child(root, name, layer));
        shoal_module_unref(layer);
    }
    return root;
}

static shoal_nn_param_group make_row(const char *pattern, int max_dims, double lr_factor, double weight_decay)
{
    shoal_nn_param_group row = SHOAL_NN_PARAM_GROUP_INIT;
    row.pattern = pattern;
    row.max_dims = max_dims;
    row.lr_factor = lr_factor;
    row.weight_decay = weight_decay;
    return row;
}

NN_TEST(parameters_are_walked_and_found_by_their_first_paths)
{
    shoal_module *net = make_net();
    shoal_nn_optimizer *optimizer = NULL;
    REQUIRE_OK(shoal_nn_adamw_create_for(net, NULL, NULL, 0, &optimizer));
    CHECK_INT(shoal_nn_optimizer_count(optimizer), N_PARAMETERS);
    for (size_t i = 0; i < N_PARAMETERS; i++) {
        CHECK_STRING(shoal_nn_optimizer_path(optimizer, i), rows[i].path);
        CHECK_INT(shoal_nn_optimizer_find(optimizer, rows[i].path), (int64_t)i);
        CHECK_INT(shoal_nn_optimizer_group_of(optimizer, i), -1);
    }
    CHECK_INT(shoal_nn_optimizer_find(optimizer, "head"), -1);
    CHECK_INT(shoal_nn_optimizer_find(optimizer, ""), -1);
    CHECK_INT(shoal_nn_optimizer_find(optimizer, NULL), -1);
    CHECK_INT(shoal_nn_optimizer_find(NULL, "scale"), -1);
    CHECK(shoal_nn_optimizer_path(optimizer, N_PARAMETERS) == NULL);
    CHECK_ERROR_TEXT("nn_optimizer_path: index 6, but there are 6 parameters");
    CHECK_INT(shoal_nn_optimizer_group_of(optimizer, N_PARAMETERS), -1);
    CHECK_ERROR_TEXT("nn_optimizer_group_of: index 6");
    shoal_module_unref(net); /* the optimizer has its parameters */
    CHECK_OK(shoal_nn_optimizer_zero_grad(optimizer));
    shoal_nn_optimizer_free(optimizer);

    shoal_tensor *bare = require_grad(shoal_zeros(INTS(2), 1, SHOAL_F32));
    REQUIRE_OK(shoal_nn_sgd_create(&bare, 1, NULL, &optimizer));
    CHECK_STRING(shoal_nn_optimizer_path(optimizer, 0), "");
    CHECK_INT(shoal_nn_optimizer_find(optimizer, ""), -1);
    CHECK_INT(shoal_nn_optimizer_group_of(optimizer, 0), -1);
    shoal_nn_optimizer_free(optimizer);
    CHECK_INT(shoal_nn_optimizer_count(NULL), 0);
}

NN_TEST(the_first_row_that_fits_wins)
{
    shoal_module *net = make_net();
    const shoal_nn_param_group groups[] = {
        make_row("1.*", SHOAL_NN_ANY_DIMS, 0.5, SHOAL_NN_SAME_DECAY),
        make_row(NULL, 1, 1, 0),
        make_row("?mbed", 2, 2, 0.5),
    };
    static const int64_t expected[N_PARAMETERS] = {1, 2, -1, 1, 0, 0};
    shoal_nn_optimizer *optimizer = NULL;
    REQUIRE_OK(shoal_nn_adamw_create_for(net, NULL, groups, 3, &optimizer));
    for (size_t i = 0; i < N_PARAMETERS; i++) {
        CHECK_INT(shoal_nn_optimizer_group_of(optimizer, i), expected[i]);
    }
    shoal_nn_param_group row = SHOAL_NN_PARAM_GROUP_INIT;
    CHECK_OK(shoal_nn_optimizer_get_group(optimizer, 2, &row));
    CHECK_STRING(row.pattern, "?mbed");
    CHECK(row.pattern != groups[2].pattern);
    CHECK_INT(row.max_dims, 2);
    CHECK_DOUBLE(row.lr_factor, 2);
    CHECK_DOUBLE(row.weight_decay, 0.5);
    CHECK_OK(shoal_nn_optimizer_get_group(optimizer, 1, &row));
    CHECK(row.pattern == NULL);
    shoal_nn_optimizer_free(optimizer);
    shoal_module_unref(net);
}

static void set_gradients(shoal_module *net, struct test_random *random)
{
    for (int i = 0; i < N_PARAMETERS; i++) {
        shoal_tensor *gradient = make_random(random, rows[i].shape, rows[i].n_dims, SHOAL_F32);
        CHECK_OK(shoal_set_grad(shoal_module_parameter(net, rows[i].path), gradient));
    }
}

/* Each parameter of `net` against one optimizer of its own, with the rates that its group says. */
static void check_rates(double lr, const double *factors, const double *decays, shoal_nn_optimizer *optimizer,
                        shoal_module *net, bool is_sgd)
{
    struct test_random random = test_random_begin(20);
    shoal_module *other = make_net();
    shoal_nn_optimizer *alone[N_PARAMETERS];
    for (int i = 0; i < N_PARAMETERS; i++) {
        shoal_tensor *parameter = shoal_module_parameter(other, rows[i].path);
        shoal_nn_adamw_options options = SHOAL_NN_ADAMW_OPTIONS_INIT;
        shoal_nn_sgd_options plain = SHOAL_NN_SGD_OPTIONS_INIT;
        options.lr = plain.lr = lr * factors[i];
        options.weight_decay = decays[i];
        REQUIRE_OK(is_sgd ? shoal_nn_sgd_create(&parameter, 1, &plain, &alone[i])
                          : shoal_nn_adamw_create(&parameter, 1, &options, &alone[i]));
    }
    for (int step = 0; step < 3; step++) {
        set_gradients(net, &random);
        CHECK_OK(shoal_nn_optimizer_step(optimizer));
        for (int i = 0; i < N_PARAMETERS; i++) {
            shoal_tensor *mine = shoal_module_parameter(net, rows[i].path);
            shoal_tensor *parameter = shoal_module_parameter(other, rows[i].path);
            CHECK_OK(shoal_set_grad(parameter, shoal_grad(mine)));
            CHECK_OK(shoal_nn_optimizer_step(alone[i]));
            CHECK_BYTES(shoal_data(mine), shoal_data(parameter),
                        (size_t)shoal_tensor_count(mine) * sizeof(float));
        }
    }
    for (int i = 0; i < N_PARAMETERS; i++) {
        shoal_nn_optimizer_free(alone[i]);
    }
    shoal_module_unref(other);
}

NN_TEST(groups_have_their_rates)
{
    for (int is_sgd = 0; is_sgd <= 1; is_sgd++) {
        shoal_module *net = make_net();
        const shoal_nn_param_group groups[] = {
            make_row("1.*", SHOAL_NN_ANY_DIMS, 0.1, is_sgd ? 0 : 0.25),
            make_row("*", 1, 3, 0),
        };
        const double factors[] = {3, 1, 1, 3, 0.1, 0.1};
        const double decays[] = {0, 0.01, 0.01, 0, 0.25, 0.25};
        shoal_nn_optimizer *optimizer = NULL;
        REQUIRE_OK(is_sgd ? shoal_nn_sgd_create_for(net, NULL, groups, 2, &optimizer)
                          : shoal_nn_adamw_create_for(net, NULL, groups, 2, &optimizer));
        CHECK_OK(shoal_nn_optimizer_set_lr(optimizer, 0.02)); /* of all groups */
        CHECK_DOUBLE(shoal_nn_optimizer_lr(optimizer), 0.02);
        check_rates(0.02, factors, decays, optimizer, net, is_sgd != 0);
        shoal_nn_optimizer_free(optimizer);
        shoal_module_unref(net);
    }
}

NN_TEST(rates_of_a_group_can_be_changed)
{
    shoal_module *net = make_net();
    const shoal_nn_param_group group = make_row("*.bias", 1, 0.5, 0);
    const double factors[] = {1, 1, 1, 0, 1, 0};
    const double decays[] = {0.01, 0.01, 0.01, 0.5, 0.01, 0.5};
    shoal_nn_optimizer *optimizer = NULL;
    shoal_nn_param_group row = SHOAL_NN_PARAM_GROUP_INIT;
    REQUIRE_OK(shoal_nn_adamw_create_for(net, NULL, &group, 1, &optimizer));
    REQUIRE_OK(shoal_nn_optimizer_get_group(optimizer, 0, &row));
    row.lr_factor = 0;
    row.weight_decay = 0.5;
    CHECK_STATUS(shoal_nn_optimizer_set_group(optimizer, 0, &row), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_optimizer_set_group: group 0 (*.bias): lr_factor is 0, perhaps forgotten");
    row.allows_zeros = true;
    row.max_dims = 2;
    CHECK_STATUS(shoal_nn_optimizer_set_group(optimizer, 0, &row), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("group 0 (*.bias): pattern, max_dims and may_be_empty cannot be changed");
    row.max_dims = 1;
    row.pattern = NULL;
    CHECK_STATUS(shoal_nn_optimizer_set_group(optimizer, 0, &row), SHOAL_ERR_INVALID);
    row.pattern = "*.weight";
    CHECK_STATUS(shoal_nn_optimizer_set_group(optimizer, 0, &row), SHOAL_ERR_INVALID);
    row.pattern = "*.bias"; /* the same words elsewhere */
    CHECK_STATUS(shoal_nn_optimizer_set_group(optimizer, 1, &row), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_optimizer_set_group: group 1, but there are 1 groups");
    CHECK_STATUS(shoal_nn_optimizer_set_group(optimizer, 0, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("row is NULL");
    CHECK_STATUS(shoal_nn_optimizer_set_group(NULL, 0, &row), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("optimizer is NULL");
    CHECK_STATUS(shoal_nn_optimizer_get_group(optimizer, 0, NULL), SHOAL_ERR_INVALID);
    CHECK_OK(shoal_nn_optimizer_set_group(optimizer, 0, &row));
    check_rates(1e-3, factors, decays, optimizer, net, false);
    shoal_nn_optimizer_free(optimizer);
    shoal_module_unref(net);
}

/* Frozen parameters are among them, are passed over, and are updated once they have a gradient. */
NN_TEST(frozen_parameters_are_passed_over)
{
    shoal_module *net = make_net();
    shoal_tensor *bias = shoal_module_parameter(net, "0.bias");
    CHECK_OK(shoal_set_requires_grad(bias, false));
    shoal_nn_optimizer *optimizer = NULL;
    REQUIRE_OK(shoal_nn_sgd_create_for(net, NULL, NULL, 0, &optimizer));
    CHECK_INT(shoal_nn_optimizer_count(optimizer), N_PARAMETERS);
    struct test_random random = test_random_begin(21);
    shoal_tensor *weight = shoal_module_parameter(net, "0.weight");
    CHECK_OK(shoal_set_grad(weight, make_random(&random, INTS(2, 3), 2, SHOAL_F32)));
    CHECK_OK(shoal_nn_optimizer_step(optimizer));
    CHECK_DOUBLE(doubles_of(bias)[0], 1.75);
    CHECK_OK(shoal_set_requires_grad(bias, true));
    CHECK_OK(shoal_set_grad(bias, shoal_full(INTS(6), 1, 1, SHOAL_F32)));
    CHECK_OK(shoal_nn_optimizer_step(optimizer));
    CHECK(doubles_of(bias)[0] < 1.75);
    shoal_nn_optimizer_state state = SHOAL_NN_OPTIMIZER_STATE_INIT;
    CHECK_OK(shoal_nn_optimizer_get_state(optimizer, 3, &state));
    CHECK_INT(state.n_updates, 1);
    CHECK_OK(shoal_nn_optimizer_get_state(optimizer, 2, &state));
    CHECK_INT(state.n_updates, 2);
    shoal_nn_optimizer_free(optimizer);
    shoal_module_unref(net);
}

static const struct {
    shoal_nn_param_group row;
    bool is_sgd;
    const char *words;
} refused[] = {
    {{sizeof(shoal_nn_param_group), "*.bais", 0, 1, 0, false, false},
     false,
     "group 1 (*.bais) has no parameter: none has such a path"},
    {{sizeof(shoal_nn_param_group), "*.weight", 1, 1, 0, false, false},
     false,
     "group 1 (*.weight) has no parameter: none has such a path and number of dimensions"},
    {{sizeof(shoal_nn_param_group), "0.bias", 0, 1, 0, false, false},
     false,
     "group 1 (0.bias) has no parameter: those that it matches are in earlier groups"},
    {{sizeof(shoal_nn_param_group), "", 0, 1, 0, false, false}, false, "group 1 () has no parameter"},
    {{sizeof(shoal_nn_param_group), "head", 0, 1, 0, false, false}, false, "group 1 (head) has no parameter"},
    {{8, "*", 0, 1, 0, false, false}, false, "group 1: struct_size 8 is not"},
    {{sizeof(shoal_nn_param_group), "*", -1, 1, 0, false, false},
     false,
     "group 1 (*): max_dims: -1 is not within 0..8"},
    {{sizeof(shoal_nn_param_group), "*", 9, 1, 0, false, false}, false, "max_dims: 9 is not within 0..8"},
    {{sizeof(shoal_nn_param_group), NULL, 0, 0, 0, false, false},
     false,
     "group 1 (*): lr_factor is 0, perhaps forgotten; begin with SHOAL_NN_PARAM_GROUP_INIT"},
    {{sizeof(shoal_nn_param_group), "*", 0, -1, 0, false, false},
     false,
     "group 1 (*): lr_factor: -1 is not at least 0"},
    {{sizeof(shoal_nn_param_group), "*", 0, (double)NAN, 0, false, false}, false, "lr_factor: nan is not"},
    {{sizeof(shoal_nn_param_group), "*", 0, (double)INFINITY, 0, false, false},
     false,
     "lr_factor: inf is not"},
    {{sizeof(shoal_nn_param_group), "*", 0, 1, -0.5, false, false},
     false,
     "group 1 (*): weight_decay: -0.5 is not at least 0"},
    {{sizeof(shoal_nn_param_group), "*", 0, 1, (double)NAN, false, false}, false, "weight_decay: nan is not"},
    {{sizeof(shoal_nn_param_group), "*", 0, 1, 0.1, false, false},
     true,
     "group 1 (*): weight_decay 0.1, but SGD has none"},
};

NN_TEST(rows_are_checked)
{
    shoal_module *net = make_net();
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        shoal_nn_param_group groups[2] = {make_row("*.bias", 1, 1, 0), refused[i].row};
        shoal_nn_optimizer *optimizer = NULL;
        CHECK_STATUS(refused[i].is_sgd ? shoal_nn_sgd_create_for(net, NULL, groups, 2, &optimizer)
                                       : shoal_nn_adamw_create_for(net, NULL, groups, 2, &optimizer),
                     SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT(refused[i].words);
        CHECK_ERROR_TEXT(refused[i].is_sgd ? "nn_sgd_create_for: " : "nn_adamw_create_for: ");
        CHECK(optimizer == NULL);
    }
    /* Rows that may be empty. */
    shoal_nn_param_group groups[2] = {make_row("nothing", 0, 1, 0), make_row("*", 0, 0, 0)};
    shoal_nn_optimizer *optimizer = NULL;
    groups[0].may_be_empty = true;
    groups[1].allows_zeros = true;
    REQUIRE_OK(shoal_nn_adamw_create_for(net, NULL, groups, 2, &optimizer));
    shoal_nn_optimizer_free(optimizer);
    /* A product that is no number any more. */
    groups[1].lr_factor = 1e300;
    REQUIRE_OK(shoal_nn_adamw_create_for(net, NULL, groups, 2, &optimizer));
    CHECK_STATUS(shoal_nn_optimizer_set_lr(optimizer, 1e200), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_optimizer_set_lr: lr * lr_factor: inf is not");
    CHECK_DOUBLE(shoal_nn_optimizer_lr(optimizer), 1e-3);
    shoal_nn_optimizer_free(optimizer);
    shoal_module_unref(net);
}

NN_TEST(modules_and_arguments_are_checked)
{
    shoal_module *net = make_net();
    shoal_module *empty = make_module("empty");
    shoal_nn_optimizer *optimizer = NULL;
    shoal_nn_adamw_options options = SHOAL_NN_ADAMW_OPTIONS_INIT;
    options.beta1 = 1;
    CHECK_STATUS(shoal_nn_adamw_create_for(NULL, NULL, NULL, 0, &optimizer), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_adamw_create_for: module is NULL");
    CHECK_STATUS(shoal_nn_sgd_create_for(net, NULL, NULL, 0, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_sgd_create_for: optimizer_out is NULL");
    CHECK_STATUS(shoal_nn_adamw_create_for(net, NULL, NULL, 1, &optimizer), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_adamw_create_for: groups is NULL");
    REQUIRE_OK(shoal_scope_begin());
    CHECK_STATUS(shoal_nn_adamw_create_for(shoal_module_child(net, "heda"), NULL, NULL, 0, &optimizer),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("net has no child \"heda\"");
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_nn_adamw_create_for(net, &options, NULL, 0, &optimizer), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("beta1");
    CHECK_STATUS(shoal_nn_adamw_create_for(empty, NULL, NULL, 0, &optimizer), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_adamw_create_for: the module has no parameters");
    CHECK_OK(shoal_module_add_parameter(empty, "table", shoal_zeros(INTS(2), 1, SHOAL_I64)));
    CHECK_STATUS(shoal_nn_adamw_create_for(empty, NULL, NULL, 0, &optimizer), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("nn_adamw_create_for: parameter table: i64 is not one of");
    CHECK(optimizer == NULL);
    shoal_module_unref(empty);
    shoal_module_unref(net);
}

/* What a failing allocation leaves behind: nothing. */
static shoal_status make_and_step(void *context)
{
    shoal_module *net = context;
    const shoal_nn_param_group group = make_row("*", 1, 1, 0);
    shoal_nn_optimizer *optimizer = NULL;
    shoal_status status = shoal_nn_adamw_create_for(net, NULL, &group, 1, &optimizer);
    if (status == SHOAL_OK) {
        status = shoal_nn_optimizer_step(optimizer);
        shoal_nn_optimizer_free(optimizer);
    }
    return status;
}

TEST(failing_allocations_are_errors)
{
    struct test_random random = test_random_begin(22);
    begin_nn();
    REQUIRE_OK(shoal_scope_begin());
    shoal_module *net = make_net();
    set_gradients(net, &random);
    CHECK_OK(shoal_scope_end()); /* a scope that is open keeps spare memory */
    CHECK(test_sweep_allocations(make_and_step, net) >= 12);
    shoal_module_unref(net);
}

/* State ------------------------------------------------------------------------------------------------ */

NN_TEST(moments_keep_their_tensors)
{
    struct test_random random = test_random_begin(23);
    shoal_module *net = make_net();
    shoal_nn_optimizer *optimizer = NULL;
    shoal_nn_optimizer_state first = SHOAL_NN_OPTIMIZER_STATE_INIT;
    shoal_nn_optimizer_state second = SHOAL_NN_OPTIMIZER_STATE_INIT;
    shoal_nn_optimizer_state given = SHOAL_NN_OPTIMIZER_STATE_INIT;
    REQUIRE_OK(shoal_nn_adamw_create_for(net, NULL, NULL, 0, &optimizer));
    size_t index = (size_t)shoal_nn_optimizer_find(optimizer, "0.weight");
    given.n_updates = 4;
    given.first_moment = shoal_transpose(make_random(&random, INTS(3, 2), 2, SHOAL_F32), 0, 1);
    CHECK_OK(shoal_nn_optimizer_set_state(optimizer, index, &given)); /* the other one: zeros, later */
    CHECK_OK(shoal_nn_optimizer_get_state(optimizer, index, &first));
    CHECK_INT(first.n_updates, 4);
    CHECK(first.first_moment != NULL && first.second_moment == NULL);
    CHECK_BYTES(doubles_of(first.first_moment), doubles_of(given.first_moment), COUNT * sizeof(double));
    set_gradients(net, &random);
    CHECK_OK(shoal_nn_optimizer_step(optimizer));
    CHECK_OK(shoal_nn_optimizer_get_state(optimizer, index, &first));
    CHECK_INT(first.n_updates, 5);
    CHECK_INT(shoal_tensor_n_dims(first.second_moment), 2);
    given.second_moment = shoal_full(INTS(2, 3), 2, 9, SHOAL_F32);
    CHECK_OK(shoal_nn_optimizer_set_state(optimizer, index, &given));
    CHECK_OK(shoal_nn_optimizer_get_state(optimizer, index, &second));
    CHECK(second.first_moment == first.first_moment && second.second_moment == first.second_moment);
    CHECK_BYTES(doubles_of(second.first_moment), doubles_of(given.first_moment), COUNT * sizeof(double));
    CHECK_DOUBLE(doubles_of(second.second_moment)[5], 9);
    /* A state given to itself, then none. */
    CHECK_OK(shoal_nn_optimizer_set_state(optimizer, index, &second));
    CHECK_DOUBLE(doubles_of(first.second_moment)[5], 9);
    given.first_moment = given.second_moment = NULL;
    given.n_updates = 0;
    CHECK_OK(shoal_nn_optimizer_set_state(optimizer, index, &given));
    CHECK_DOUBLE(doubles_of(first.first_moment)[0], 0);
    CHECK_DOUBLE(doubles_of(first.second_moment)[5], 0);
    shoal_nn_optimizer_free(optimizer);
    shoal_module_unref(net);
}

NN_TEST(states_are_checked)
{
    shoal_module *net = make_net();
    shoal_nn_optimizer *optimizer = NULL;
    shoal_nn_optimizer_state state = SHOAL_NN_OPTIMIZER_STATE_INIT;
    REQUIRE_OK(shoal_nn_adamw_create_for(net, NULL, NULL, 0, &optimizer));
    size_t index = (size_t)shoal_nn_optimizer_find(optimizer, "0.weight");
    state.n_updates = -1;
    CHECK_STATUS(shoal_nn_optimizer_set_state(optimizer, index, &state), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_optimizer_set_state: n_updates: -1 is negative");
    state.n_updates = 1;
    state.second_moment = shoal_zeros(INTS(3, 2), 2, SHOAL_F32);
    CHECK_STATUS(shoal_nn_optimizer_set_state(optimizer, index, &state), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("second_moment is f32 of shape [3, 2], but the state is f32 of shape [2, 3]");
    state.second_moment = shoal_zeros(INTS(6), 1, SHOAL_F32);
    CHECK_STATUS(shoal_nn_optimizer_set_state(optimizer, index, &state), SHOAL_ERR_INVALID);
    state.second_moment = shoal_zeros(INTS(2, 3), 2, SHOAL_F64);
    CHECK_STATUS(shoal_nn_optimizer_set_state(optimizer, index, &state), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("second_moment is f64");
    state.second_moment = shoal_empty_on(INTS(2, 3), 2, SHOAL_F32, SHOAL_META);
    CHECK(shoal_nn_optimizer_set_state(optimizer, index, &state) != SHOAL_OK);
    CHECK_STATUS(shoal_nn_optimizer_set_state(optimizer, index, NULL), SHOAL_ERR_INVALID);
    state.struct_size = 1;
    CHECK_STATUS(shoal_nn_optimizer_set_state(optimizer, index, &state), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_nn_optimizer_get_state(optimizer, index, &state), SHOAL_ERR_INVALID);
    state = (shoal_nn_optimizer_state)SHOAL_NN_OPTIMIZER_STATE_INIT;
    CHECK_OK(shoal_nn_optimizer_get_state(optimizer, index, &state));
    CHECK_INT(state.n_updates, 0);
    CHECK(state.second_moment == NULL);
    shoal_nn_optimizer_free(optimizer);

    REQUIRE_OK(shoal_nn_sgd_create_for(net, NULL, NULL, 0, &optimizer));
    state.first_moment = shoal_zeros(INTS(2, 3), 2, SHOAL_F32);
    CHECK_STATUS(shoal_nn_optimizer_set_state(optimizer, index, &state), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("first_moment is not NULL, but SGD has no moments");
    state.first_moment = NULL;
    state.n_updates = 7;
    CHECK_OK(shoal_nn_optimizer_set_state(optimizer, index, &state));
    CHECK_OK(shoal_nn_optimizer_get_state(optimizer, index, &state));
    CHECK_INT(state.n_updates, 7);
    shoal_nn_optimizer_free(optimizer);
    shoal_module_unref(net);
}

/* Empty shards, of tensors and raw, have state that can be read and set. */
NN_TEST(empty_shards_have_state)
{
    shoal_tensor *empty = require_grad(shoal_zeros(INTS(0, 3), 2, SHOAL_F16));
    CHECK_OK(shoal_set_grad(empty, shoal_zeros(INTS(0, 3), 2, SHOAL_F16)));
    const float none = 0;
    const shoal_nn_shard shard = {.gradient = &none, .dtype = SHOAL_F64, .gradient_dtype = SHOAL_F64};
    for (int is_raw = 0; is_raw <= 1; is_raw++) {
        shoal_nn_optimizer *optimizer = NULL;
        shoal_nn_optimizer_state state = SHOAL_NN_OPTIMIZER_STATE_INIT;
        REQUIRE_OK(is_raw ? shoal_nn_adamw_create_raw(&shard, 1, NULL, &optimizer)
                          : shoal_nn_adamw_create(&empty, 1, NULL, &optimizer));
        for (int step = 1; step <= 2; step++) {
            CHECK_OK(is_raw ? shoal_nn_optimizer_step_raw(optimizer, &shard, 1)
                            : shoal_nn_optimizer_step(optimizer));
            CHECK_OK(shoal_nn_optimizer_get_state(optimizer, 0, &state));
            CHECK_INT(state.n_updates, step);
            CHECK_INT(shoal_tensor_count(state.second_moment), 0);
            CHECK_OK(shoal_nn_optimizer_set_state(optimizer, 0, &state));
        }
        shoal_nn_optimizer_free(optimizer);
    }
}

struct setting {
    shoal_nn_optimizer *optimizer;
    shoal_nn_optimizer_state state;
};

static shoal_status set_once(void *context)
{
    struct setting *setting = context;
    shoal_nn_optimizer_state before = SHOAL_NN_OPTIMIZER_STATE_INIT;
    shoal_nn_optimizer_state now = SHOAL_NN_OPTIMIZER_STATE_INIT;
    CHECK_OK(shoal_nn_optimizer_get_state(setting->optimizer, 0, &before));
    float first = *(const float *)shoal_data(before.first_moment);
    float second = *(const float *)shoal_data(before.second_moment);
    shoal_status status = shoal_nn_optimizer_set_state(setting->optimizer, 0, &setting->state);
    if (status != SHOAL_OK) {
        CHECK_OK(shoal_nn_optimizer_get_state(setting->optimizer, 0, &now));
        CHECK_INT(now.n_updates, before.n_updates);
        CHECK(*(const float *)shoal_data(now.first_moment) == first);
        CHECK(*(const float *)shoal_data(now.second_moment) == second);
    }
    return status;
}

TEST(a_state_that_cannot_be_copied_changes_nothing)
{
    float values[2] = {1, 2};
    const shoal_nn_shard shard = {
        .data = values, .gradient = values, .count = 2, .dtype = SHOAL_F32, .gradient_dtype = SHOAL_F32};
    struct setting setting = {.state = SHOAL_NN_OPTIMIZER_STATE_INIT};
    begin_nn();
    REQUIRE_OK(shoal_nn_adamw_create_raw(&shard, 1, NULL, &setting.optimizer));
    CHECK_OK(shoal_nn_optimizer_step_raw(setting.optimizer, &shard, 1));
    setting.state.n_updates = 9;
    REQUIRE_OK(shoal_scope_begin());
    setting.state.first_moment = shoal_tensor_ref(shoal_full(INTS(2, 1), 2, 5, SHOAL_F32));
    setting.state.second_moment = shoal_tensor_ref(shoal_full(INTS(1, 2), 2, 5, SHOAL_F32));
    CHECK_OK(shoal_scope_end());
    CHECK(test_sweep_allocations(set_once, &setting) >= 2);
    shoal_tensor_unref(setting.state.first_moment);
    shoal_tensor_unref(setting.state.second_moment);
    shoal_nn_optimizer_free(setting.optimizer);
}
