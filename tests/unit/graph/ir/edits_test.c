/* SPDX-License-Identifier: MIT */
/*
 * Random edits of a graph beside a model of it that keeps nothing but a list of nodes, their arguments, and for each node a list
 * of users; after every edit both are the same.
 */
#include "unit/graph/building.h"

enum {
    MAX_NODES = 60,
    MAX_ARGS = 5
};

struct model_node {
    shoal_node *node;
    int args[MAX_ARGS]; /* indices */
    int n_args;
    int users[MAX_NODES]; /* in the order in which they began */
    int n_users;
    bool is_erased;
};

struct model {
    shoal_graph *graph;
    struct model_node nodes[MAX_NODES];
    int n_nodes;
    int order[MAX_NODES]; /* of those that are there */
    int n_order;
};

static void drop_user(struct model_node *input, int user)
{
    int n = 0;
    for (int i = 0; i < input->n_users; i++) {
        if (input->users[i] != user) {
            input->users[n++] = input->users[i];
        }
    }
    input->n_users = n;
}

static void model_set_args(struct model *model, int index, const int *args, int n_args)
{
    struct model_node *node = &model->nodes[index];
    for (int i = 0; i < node->n_args; i++) {
        drop_user(&model->nodes[node->args[i]], index);
    }
    for (int i = 0; i < n_args; i++) {
        node->args[i] = args[i];
    }
    node->n_args = n_args;
    for (int i = 0; i < n_args; i++) {
        struct model_node *input = &model->nodes[args[i]];
        bool is_there = false;
        for (int k = 0; k < input->n_users; k++) {
            is_there |= input->users[k] == index;
        }
        if (!is_there) {
            input->users[input->n_users++] = index;
        }
    }
}

static int place_of(const struct model *model, int index)
{
    int place = 0;
    while (model->order[place] != index) {
        place++;
    }
    return place;
}

static void model_insert(struct model *model, int index, int place)
{
    memmove(&model->order[place + 1], &model->order[place], (size_t)(model->n_order - place) * sizeof(int));
    model->order[place] = index;
    model->n_order++;
}

static void model_remove(struct model *model, int index)
{
    int place = place_of(model, index);
    model->n_order--;
    memmove(&model->order[place], &model->order[place + 1], (size_t)(model->n_order - place) * sizeof(int));
}

/* Comparing -------------------------------------------------------------------------------------------- */

static void check_node(const struct model *model, const struct model_node *expected)
{
    size_t n_inputs;
    shoal_node *const *inputs = shoal_node_inputs(expected->node, &n_inputs);
    size_t n_expected = 0;
    for (int i = 0; i < expected->n_args; i++) {
        bool is_first = true;
        for (int k = 0; k < i; k++) {
            is_first = is_first && expected->args[k] != expected->args[i];
        }
        if (is_first) {
            CHECK(n_expected < n_inputs && inputs[n_expected] == model->nodes[expected->args[i]].node);
            n_expected++;
        }
    }
    CHECK_INT(n_inputs, n_expected);
    CHECK_INT(shoal_node_n_users(expected->node), expected->n_users);
    const shoal_node *user = shoal_node_first_user(expected->node);
    for (int i = 0; i < expected->n_users; i++) {
        CHECK(user == model->nodes[expected->users[i]].node);
        user = shoal_node_next_user(expected->node, user);
    }
    CHECK(user == NULL);
}

static void check_model(const struct model *model)
{
    const shoal_node *node = shoal_graph_first(model->graph);
    CHECK_INT(shoal_graph_n_nodes(model->graph), model->n_order);
    for (int i = 0; i < model->n_order && !test_has_failed(); i++) {
        const struct model_node *expected = &model->nodes[model->order[i]];
        CHECK(node == expected->node);
        CHECK(i == 0 || shoal_node_is_before(model->nodes[model->order[i - 1]].node, node));
        check_node(model, expected);
        node = shoal_node_next(node);
    }
    CHECK(node == NULL);
}

/* Edits ------------------------------------------------------------------------------------------------ */

static int draw_args(const struct model *model, struct test_random *random, int other_than, int *args)
{
    int n_args = 0;
    int wanted = model->n_order > 1 ? (int)test_random_below(random, MAX_ARGS + 1) : 0;
    while (n_args < wanted) {
        int index = model->order[test_random_below(random, (uint64_t)model->n_order)];
        if (index != other_than) {
            args[n_args++] = index;
        }
    }
    return n_args;
}

/* The first two as they are, the rest in a list. */
static size_t make_args(const struct model *model, const int *args, int n_args, shoal_arg made[3],
                        shoal_arg items[MAX_ARGS])
{
    size_t n_made = 0;
    for (int i = 0; i < n_args; i++) {
        shoal_arg arg = node_arg(model->nodes[args[i]].node);
        if (i < 2) {
            made[n_made++] = arg;
        } else {
            items[i - 2] = arg;
        }
    }
    if (n_args > 2) {
        made[n_made++] = list_arg(items, (size_t)n_args - 2);
    }
    return n_made;
}

static void try_create(struct model *model, struct test_random *random)
{
    int args[MAX_ARGS];
    shoal_arg made[3];
    shoal_arg items[MAX_ARGS];
    if (model->n_nodes == MAX_NODES) {
        return;
    }
    int n_args = draw_args(model, random, -1, args);
    size_t n_made = make_args(model, args, n_args, made, items);
    int place = (int)test_random_below(random, (uint64_t)model->n_order + 1);
    shoal_insert_point point = {.node = NULL, .is_after = true};
    if (place < model->n_order) {
        point = (shoal_insert_point){.node = model->nodes[model->order[place]].node, .is_after = false};
    }
    if (place > 0 && test_random_below(random, 2)) {
        point = (shoal_insert_point){.node = model->nodes[model->order[place - 1]].node, .is_after = true};
    }
    CHECK_OK(shoal_graph_set_insert_point(model->graph, point));
    model->nodes[model->n_nodes] = (struct model_node){.node = make_opaque(model->graph, "n", made, n_made)};
    model_insert(model, model->n_nodes, place);
    model_set_args(model, model->n_nodes++, args, n_args);
}

static void try_set_args(struct model *model, struct test_random *random, int index)
{
    int args[MAX_ARGS];
    shoal_arg made[3];
    shoal_arg items[MAX_ARGS];
    int n_args = draw_args(model, random, index, args);
    size_t n_made = make_args(model, args, n_args, made, items);
    CHECK_OK(shoal_node_set_args(model->nodes[index].node, made, n_made));
    model_set_args(model, index, args, n_args);
}

static bool is_even(void *context, shoal_node *user)
{
    return user != context && user->id % 2 == 0;
}

static void try_replace(struct model *model, int old, int other)
{
    struct model_node before = model->nodes[old];
    size_t n_changed;
    size_t n_expected = 0;
    CHECK_OK(shoal_node_replace(before.node, model->nodes[other].node, is_even, model->nodes[other].node,
                                &n_changed));
    for (int i = 0; i < before.n_users && old != other; i++) {
        struct model_node *user = &model->nodes[before.users[i]];
        if (is_even(model->nodes[other].node, user->node)) {
            int args[MAX_ARGS];
            for (int k = 0; k < user->n_args; k++) {
                args[k] = user->args[k] == old ? other : user->args[k];
            }
            model_set_args(model, before.users[i], args, user->n_args);
            n_expected++;
        }
    }
    CHECK_INT(n_changed, n_expected);
}

static void try_erase(struct model *model, int index)
{
    struct model_node *node = &model->nodes[index];
    CHECK_STATUS(shoal_node_erase(node->node), node->n_users > 0 ? SHOAL_ERR_STATE : SHOAL_OK);
    if (node->n_users == 0) {
        model_set_args(model, index, NULL, 0);
        model_remove(model, index);
    }
}

static void try_move(struct model *model, int index, int where, bool is_after)
{
    shoal_node *node = model->nodes[index].node;
    shoal_node *target = model->nodes[where].node;
    CHECK_OK(is_after ? shoal_node_move_after(node, target) : shoal_node_move_before(node, target));
    if (index != where) {
        model_remove(model, index);
        model_insert(model, index, place_of(model, where) + is_after);
    }
}

TEST(random_edits)
{
    struct test_random random = test_random_begin(12);
    for (int round = 0; round < 60 && !test_has_failed(); round++) {
        struct model model = {.graph = make_graph()};
        for (int i = 0; i < 300 && !test_has_failed(); i++) {
            uint64_t kind = test_random_below(&random, 6);
            if (model.n_order < 2 || kind == 0) {
                try_create(&model, &random);
                check_model(&model);
                continue;
            }
            int a = model.order[test_random_below(&random, (uint64_t)model.n_order)];
            int b = model.order[test_random_below(&random, (uint64_t)model.n_order)];
            if (kind == 1) {
                try_erase(&model, a);
            } else if (kind == 2) {
                try_replace(&model, a, b);
            } else if (kind == 3) {
                try_move(&model, a, b, test_random_below(&random, 2) != 0);
            } else {
                try_set_args(&model, &random, a);
            }
            check_model(&model);
            if (model.n_nodes == MAX_NODES && model.n_order < 2) {
                break;
            }
        }
        shoal_graph_free(model.graph);
    }
}
