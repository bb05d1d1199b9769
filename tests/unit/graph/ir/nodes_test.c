/* SPDX-License-Identifier: MIT */
/* Nodes: making them, inputs and users, arguments, erasing. Replacing is in replace_test.c. */
#include "shoal/ops.h"
#include "unit/graph/building.h"

TEST(what_a_placeholder_is)
{
    shoal_graph *graph = make_graph();
    shoal_node *x = make_input(graph, "x");
    size_t count = 7;
    CHECK_INT(shoal_node_get_kind(x), SHOAL_NODE_PLACEHOLDER);
    CHECK_STRING(shoal_node_target(x), "x");
    CHECK(shoal_node_op(x) == NULL);
    (void)shoal_node_args(x, &count);
    CHECK_INT(count, 0);
    CHECK_INT(shoal_node_n_values(x), 1);
    CHECK(!shoal_node_is_list(x));
    const shoal_tensor *value = shoal_node_value(x, 0);
    CHECK_INT(shoal_tensor_device(value), SHOAL_META);
    CHECK_INT(shoal_tensor_dtype(value), SHOAL_F32);
    CHECK_INT(shoal_tensor_n_dims(value), 2);
    CHECK(shoal_node_value(x, 1) == NULL);
    shoal_graph_free(graph);
}

TEST(a_constant_keeps_its_tensor)
{
    shoal_graph *graph = make_graph();
    shoal_node *c;
    float data[2] = {1, 2};
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensor = shoal_from_memory(data, (const int64_t[]){2}, 1, SHOAL_F32, NULL, NULL, NULL);
    CHECK_OK(shoal_graph_constant(graph, "c", tensor, &c));
    REQUIRE_OK(shoal_scope_end());
    CHECK(shoal_node_value(c, 0) == tensor);
    CHECK(shoal_data(shoal_node_value(c, 0)) == data);
    CHECK_STATUS(shoal_graph_constant(graph, "c", NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("tensor is NULL");
    shoal_graph_free(graph);
}

TEST(a_call_is_complete)
{
    shoal_graph *graph = make_graph();
    shoal_node *x = make_input(graph, "x");
    shoal_node *sum = make_call(graph, "add", x, x);
    size_t count;
    const shoal_arg *args = shoal_node_args(sum, &count);
    CHECK_INT(count, sum->op->n_params);
    CHECK(args[0].as.node == x && args[1].as.node == x);
    CHECK_STRING(shoal_node_name(sum), "add");
    CHECK_STRING(shoal_node_target(sum), "add");
    CHECK_INT(shoal_node_get_kind(sum), SHOAL_NODE_CALL);
    CHECK_INT(shoal_node_n_values(sum), 1);
    CHECK_INPUTS(sum, "x");
    CHECK_USERS(x, "add");
    CHECK_INT(shoal_node_n_users(x), 1);
    shoal_graph_free(graph);
}

TEST(defaults_are_filled_in)
{
    shoal_graph *graph = make_graph();
    shoal_node *x = make_input(graph, "x");
    for (const shoal_op *op = shoal_op_at(0); op; op = shoal_op_at((size_t)op->index + 1)) {
        if (op->n_params < 2 || op->params[0].type != OP_PARAM_TENSOR || !op->params[1].has_default) {
            continue;
        }
        shoal_node *node;
        shoal_arg args[] = {node_arg(x), {.kind = SHOAL_ARG_NONE}};
        if (shoal_graph_call(graph, op, args, 1, NULL, &node) == SHOAL_OK) {
            size_t count;
            (void)shoal_node_args(node, &count);
            CHECK_INT(count, op->n_params);
            shoal_node *same;
            CHECK_OK(shoal_graph_call(graph, op, args, 2, NULL, &same));
            CHECK_INT(same->args[1].kind, node->args[1].kind);
        }
    }
    CHECK(shoal_graph_n_nodes(graph) > 1);
    shoal_graph_free(graph);
}

TEST(inputs_are_named_once_in_order)
{
    shoal_graph *graph = make_graph();
    shoal_node *a = make_input(graph, "a");
    shoal_node *b = make_input(graph, "b");
    shoal_node *c = make_input(graph, "c");
    shoal_arg inner[] = {node_arg(c), node_arg(a)};
    shoal_arg outer[] = {int_arg(1), list_arg(inner, 2), node_arg(c)};
    shoal_arg args[] = {node_arg(b), list_arg(outer, 3), node_arg(b)};
    shoal_node *node = make_opaque(graph, "n", args, 3);
    CHECK_INPUTS(node, "b c a");
    CHECK_USERS(a, "n");
    CHECK_USERS(b, "n");
    inner[0] = node_arg(b); /* arguments were copied */
    CHECK(shoal_node_args(node, NULL)[1].as.list.items[1].as.list.items[0].as.node == c);
    shoal_graph_free(graph);
}

TEST(strings_are_copied)
{
    shoal_graph *graph = make_graph();
    char word[8] = "sum";
    char group[8] = "all";
    CHECK_OK(shoal_graph_add_group(graph, group, (const int[]){0, 1}, 1, 2));
    shoal_arg args[] = {{.kind = SHOAL_ARG_STRING, .as.string = word},
                        {.kind = SHOAL_ARG_GROUP, .as.string = group},
                        {.kind = SHOAL_ARG_RANK, .as.rank = {group, 2, 1}}};
    shoal_node *node = make_opaque(graph, "n", args, 3);
    memset(word, 'x', 3);
    memset(group, 'x', 3);
    const shoal_arg *copy = shoal_node_args(node, NULL);
    CHECK_STRING(copy[0].as.string, "sum");
    CHECK_STRING(copy[1].as.string, "all");
    CHECK_STRING(copy[2].as.rank.group, "all");
    CHECK_INT(copy[2].as.rank.factor, 2);
    CHECK_INT(copy[2].as.rank.offset, 1);
    shoal_graph_free(graph);
}

TEST(other_arguments_make_the_newest_user)
{
    shoal_graph *graph = make_graph();
    shoal_node *x = make_input(graph, "x");
    shoal_node *y = make_input(graph, "y");
    shoal_arg args[] = {node_arg(x), node_arg(y)};
    shoal_node *a = make_opaque(graph, "a", args, 2);
    shoal_node *b = make_opaque(graph, "b", args, 2);
    make_opaque(graph, "c", args, 2);
    CHECK_USERS(x, "a b c");
    CHECK_OK(shoal_node_set_args(a, args, 2)); /* the same ones, even */
    CHECK_USERS(x, "b c a");
    CHECK_USERS(y, "b c a");
    CHECK_OK(shoal_node_set_args(b, args, 1));
    CHECK_USERS(x, "c a b");
    CHECK_USERS(y, "c a");
    CHECK_OK(shoal_node_set_args(b, NULL, 0));
    CHECK_USERS(x, "c a");
    CHECK_INPUTS(b, "");
    CHECK_INT(shoal_node_n_users(x), 2);
    CHECK(shoal_node_next_user(x, b) == NULL);
    CHECK(shoal_node_next_user(x, x) == NULL);
    shoal_graph_free(graph);
}

TEST(what_a_call_gives_follows_its_arguments)
{
    shoal_graph *graph = make_graph();
    shoal_node *x = make_input(graph, "x");
    shoal_node *row;
    REQUIRE_OK(shoal_graph_placeholder(graph, "row", (const int64_t[]){4}, 1, SHOAL_F32, &row));
    shoal_node *sum = make_call(graph, "add", row, row);
    shoal_node *twice = make_call(graph, "add", sum, sum);
    CHECK_INT(shoal_tensor_n_dims(shoal_node_value(twice, 0)), 1);
    shoal_arg args[] = {node_arg(row), node_arg(x)};
    CHECK_OK(shoal_node_set_args(sum, args, 2));
    CHECK_INT(shoal_tensor_n_dims(shoal_node_value(sum, 0)), 2);
    CHECK_INT(shoal_tensor_n_dims(shoal_node_value(twice, 0)), 2); /* and so do its users */
    shoal_graph_free(graph);
}

TEST(views_follow_their_storage)
{
    shoal_graph *graph = make_graph();
    shoal_node *x = make_input(graph, "x");
    shoal_node *y = make_input(graph, "y");
    shoal_node *view;
    shoal_arg args[] = {node_arg(x), int_arg(0), int_arg(1), int_arg(2)};
    REQUIRE_OK(shoal_graph_call(graph, find_op("narrow"), args, 4, NULL, &view));
    args[0] = node_arg(view);
    args[3] = int_arg(1);
    shoal_node *deeper;
    REQUIRE_OK(shoal_graph_call(graph, find_op("narrow"), args, 4, NULL, &deeper));
    shoal_node *sum = make_call(graph, "add", deeper, deeper);
    const shoal_tensor *kept = shoal_node_value(sum, 0);
    CHECK(shoal_tensor_shares_storage(shoal_node_value(deeper, 0), shoal_node_value(x, 0)));
    args[0] = node_arg(y);
    args[3] = int_arg(2);
    CHECK_OK(shoal_node_set_args(view, args, 4));
    CHECK(shoal_tensor_shares_storage(shoal_node_value(view, 0), shoal_node_value(y, 0)));
    CHECK(shoal_tensor_shares_storage(shoal_node_value(deeper, 0), shoal_node_value(y, 0)));
    CHECK(shoal_node_value(sum, 0) == kept); /* a tensor of its own, as before */
    shoal_graph_free(graph);
}

/* A view of a constant is one of the constant's storage, which inference sees through a twin. */
TEST(aliases_of_constants_follow)
{
    shoal_graph *graph = make_graph();
    shoal_node *c[2];
    float data[2] = {1, 2};
    REQUIRE_OK(shoal_scope_begin());
    for (int i = 0; i < 2; i++) {
        shoal_tensor *tensor =
            shoal_from_memory(&data[i], (const int64_t[]){1}, 1, SHOAL_F32, NULL, NULL, NULL);
        CHECK_OK(shoal_graph_constant(graph, "c", tensor, &c[i]));
    }
    REQUIRE_OK(shoal_scope_end());
    shoal_node *a = make_call(graph, "wait_tensor", c[0], NULL);
    shoal_node *b = make_call(graph, "wait_tensor", c[1], NULL);
    CHECK(!shoal_tensor_shares_storage(shoal_node_value(a, 0), shoal_node_value(b, 0)));
    shoal_arg arg = node_arg(c[1]);
    CHECK_OK(shoal_node_set_args(a, &arg, 1));
    CHECK(shoal_tensor_shares_storage(shoal_node_value(a, 0), shoal_node_value(b, 0)));
    shoal_graph_free(graph);
}

TEST(a_change_that_breaks_a_user_is_refused)
{
    shoal_graph *graph = make_graph();
    shoal_node *x = make_input(graph, "x");
    shoal_node *row;
    REQUIRE_OK(shoal_graph_placeholder(graph, "row", (const int64_t[]){3}, 1, SHOAL_F32, &row));
    shoal_node *a = make_call(graph, "add", x, x);
    shoal_node *b = make_call(graph, "add", a, x);
    const shoal_tensor *before = shoal_node_value(a, 0);
    shoal_arg args[] = {node_arg(row), node_arg(row)};
    CHECK_STATUS(shoal_node_set_args(a, args, 2), SHOAL_ERR_INVALID); /* [3] and [4, 4] do not go together */
    CHECK_ERROR_TEXT("node add_1");
    CHECK(shoal_node_value(a, 0) == before);
    CHECK_INPUTS(a, "x");
    CHECK_USERS(x, "add add_1");
    CHECK_USERS(row, "");
    CHECK_INT(shoal_tensor_n_dims(shoal_node_value(b, 0)), 2);
    shoal_graph_free(graph);
}

TEST(arguments_that_are_refused)
{
    shoal_graph *graph = make_graph();
    shoal_graph *other = make_graph();
    shoal_node *x = make_input(graph, "x");
    shoal_node *foreign = make_input(other, "foreign");
    shoal_node *gone = make_input(graph, "gone");
    CHECK_OK(shoal_node_erase(gone));
    const struct {
        shoal_arg arg;
        const char *words;
    } cases[] = {
        {{.kind = SHOAL_ARG_NODE}, "node is NULL"},
        {node_arg(foreign), "node foreign belongs to another graph"},
        {node_arg(gone), "node gone was erased"},
        {{.kind = SHOAL_ARG_STRING}, "string is NULL"},
        {{.kind = SHOAL_ARG_GROUP}, "group is NULL"},
        {{.kind = SHOAL_ARG_GROUP, .as.string = "all"}, "no group \"all\""},
        {{.kind = SHOAL_ARG_RANK, .as.rank = {"all", 1, 0}}, "no group \"all\""},
        {{.kind = SHOAL_ARG_DTYPE, .as.dtype = (shoal_dtype)77}, "dtype"},
        {{.kind = SHOAL_ARG_LIST, .as.list = {NULL, 3}}, "items is NULL, but count is 3"},
        {{.kind = (shoal_arg_kind)77}, "77 is not a kind of argument"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        shoal_arg args[] = {node_arg(x), list_arg(&cases[i].arg, 1)};
        shoal_node *node = x;
        CHECK_STATUS(shoal_graph_opaque(graph, "t", &cases[i].arg, 1, NULL, 0, false, NULL, &node),
                     SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT(cases[i].words);
        CHECK_ERROR_TEXT("argument 0: ");
        CHECK_STATUS(shoal_graph_opaque(graph, "t", args, 2, NULL, 0, false, NULL, &node), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT(cases[i].words);
        CHECK_ERROR_TEXT("argument 1: item 0: ");
        CHECK(node == x);
        CHECK_STATUS(shoal_graph_call(graph, find_op("add"), args, 2, NULL, &node), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT("graph_call(add): other: ");
    }
    CHECK_STATUS(shoal_graph_opaque(graph, "t", NULL, 2, NULL, 0, false, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_graph_call(graph, find_op("add"), NULL, 0, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("self is missing");
    CHECK_STATUS(shoal_graph_call(graph, find_op("add"), NULL, 9, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("9 arguments are given for 2 parameters");
    CHECK_INT(shoal_graph_n_nodes(graph), 1);
    CHECK_INT(shoal_node_n_users(x), 0);
    shoal_graph_free(other);
    shoal_graph_free(graph);
}

TEST(lists_are_not_too_deep)
{
    shoal_graph *graph = make_graph();
    shoal_node *x = make_input(graph, "x");
    shoal_arg lists[70];
    lists[0] = node_arg(x);
    for (int i = 1; i < 70; i++) {
        lists[i] = list_arg(&lists[i - 1], 1);
    }
    CHECK_OK(shoal_graph_opaque(graph, "t", &lists[64], 1, NULL, 0, false, "deep", NULL));
    CHECK_USERS(x, "deep");
    CHECK_STATUS(shoal_graph_opaque(graph, "t", &lists[65], 1, NULL, 0, false, NULL, NULL),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("item 0");
    shoal_arg circle;
    circle = list_arg(&circle, 1);
    CHECK_STATUS(shoal_graph_output(graph, &circle, NULL), SHOAL_ERR_INVALID);
    shoal_graph_free(graph);
}

TEST(nobody_uses_itself_or_the_output)
{
    shoal_graph *graph = make_graph();
    shoal_node *x = make_input(graph, "x");
    shoal_arg arg = node_arg(x);
    shoal_node *n = make_opaque(graph, "n", &arg, 1);
    make_output(graph, n);
    arg = node_arg(n);
    CHECK_STATUS(shoal_node_set_args(n, &arg, 1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("node n would use itself");
    arg = node_arg(shoal_graph_last(graph));
    CHECK_STATUS(shoal_node_set_args(n, &arg, 1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("node output is the output");
    CHECK_STATUS(shoal_node_replace(x, arg.as.node, NULL, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_INPUTS(n, "x");
    shoal_graph_free(graph);
}

TEST(the_output_is_one_and_the_last)
{
    shoal_graph *graph = make_graph();
    shoal_node *x = make_input(graph, "x");
    shoal_node *output;
    shoal_arg arg = int_arg(3);
    CHECK_STATUS(shoal_graph_output(graph, &arg, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_graph_output(graph, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_OK(shoal_graph_set_insert_point(graph, (shoal_insert_point){x, false}));
    shoal_arg nodes[] = {node_arg(x), node_arg(x)};
    arg = list_arg(nodes, 2);
    CHECK_OK(shoal_graph_output(graph, &arg, &output));
    CHECK_ORDER(graph, "x output");
    CHECK_INT(shoal_node_n_values(output), 0);
    CHECK_STATUS(shoal_graph_output(graph, &arg, NULL), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("has an output already, node output");
    CHECK_STATUS(shoal_node_set_args(output, nodes, 2), SHOAL_ERR_INVALID);
    CHECK_OK(shoal_node_set_args(output, nodes, 1));
    CHECK_OK(shoal_node_erase(output));
    CHECK_OK(shoal_graph_output(graph, &arg, &output));
    CHECK_STRING(shoal_node_name(output), "output_1");
    shoal_graph_free(graph);
}

TEST(absent_outputs)
{
    shoal_graph *graph = make_graph();
    shoal_node *x = make_input(graph, "x");
    shoal_node *output;
    shoal_arg none = {.kind = SHOAL_ARG_NONE};
    shoal_arg inner = list_arg(&none, 1);
    shoal_arg items[] = {none, node_arg(x), inner};
    shoal_arg arg = list_arg(items, 3);
    CHECK_OK(shoal_graph_output(graph, &arg, &output));
    CHECK_INPUTS(output, "x");
    CHECK_OK(shoal_graph_lint(graph));
    shoal_node *y = make_input(graph, "y");
    CHECK_OK(shoal_node_move_before(y, output));
    CHECK_OK(shoal_node_replace(x, y, NULL, NULL, NULL));
    CHECK_INPUTS(output, "y");
    size_t n_args;
    const shoal_arg *list = shoal_node_args(output, &n_args);
    CHECK(list->as.list.items[0].kind == SHOAL_ARG_NONE);
    CHECK(list->as.list.items[2].as.list.items[0].kind == SHOAL_ARG_NONE);
    CHECK_OK(shoal_node_set_args(output, &none, 1));
    CHECK_INPUTS(output, "");
    CHECK_OK(shoal_graph_remove_dead(graph, NULL));
    CHECK_OK(shoal_graph_lint(graph));
    items[1] = int_arg(1);
    CHECK_STATUS(shoal_node_set_args(output, &arg, 1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("an output is a node, none or a list of them, not an argument of kind 2");
    shoal_graph_free(graph);
}

TEST(inputs_take_no_arguments)
{
    shoal_graph *graph = make_graph();
    shoal_node *x = make_input(graph, "x");
    shoal_node *y = make_input(graph, "y");
    shoal_arg arg = node_arg(y);
    CHECK_STATUS(shoal_node_set_args(x, &arg, 1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("node_set_args(x)");
    CHECK_OK(shoal_node_set_args(x, NULL, 0));
    CHECK_STATUS(shoal_node_set_args(NULL, NULL, 0), SHOAL_ERR_INVALID);
    shoal_graph_free(graph);
}

TEST(erasing)
{
    shoal_graph *graph = make_graph();
    shoal_node *x = make_input(graph, "x");
    shoal_arg arg = node_arg(x);
    shoal_node *a = make_opaque(graph, "a", &arg, 1);
    shoal_node *b = make_opaque(graph, "b", &arg, 1);
    CHECK_STATUS(shoal_node_erase(x), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("node x has 2 users: a, b");
    CHECK_OK(shoal_node_erase(a));
    CHECK_USERS(x, "b");
    CHECK_STATUS(shoal_node_erase(a), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("node a was erased");
    CHECK_STATUS(shoal_node_erase(x), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("node x has 1 user: b");
    CHECK_OK(shoal_node_erase(b));
    CHECK_OK(shoal_node_erase(x));
    CHECK_STATUS(shoal_node_erase(NULL), SHOAL_ERR_INVALID);
    CHECK_INT(shoal_graph_n_nodes(graph), 0);
    for (int i = 0; i < 100; i++) {
        x = i == 0 ? make_input(graph, "x") : x;
        arg = node_arg(x);
        make_opaque(graph, "a_long_name", &arg, 1);
    }
    CHECK_STATUS(shoal_node_erase(x), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("has 100 users: a_long_name, a_long_name_1, ");
    CHECK_ERROR_TEXT(", ...");
    shoal_graph_free(graph);
}

TEST(what_an_opaque_call_gives)
{
    shoal_graph *graph = make_graph();
    shoal_node *x = make_input(graph, "x");
    shoal_node *node;
    shoal_tensor *const model = x->values[0];
    shoal_tensor *const models[] = {model, model, NULL};
    CHECK_OK(shoal_graph_opaque(graph, "aten.split", NULL, 0, models, 2, true, NULL, &node));
    CHECK_STRING(shoal_node_target(node), "aten.split");
    CHECK_STRING(shoal_node_name(node), "aten_split");
    CHECK(shoal_node_is_list(node));
    CHECK_INT(shoal_node_n_values(node), 2);
    CHECK_INT(shoal_tensor_count(shoal_node_value(node, 1)), 16);
    CHECK(!shoal_tensor_shares_storage(shoal_node_value(node, 0), model));
    CHECK(!shoal_tensor_shares_storage(shoal_node_value(node, 0), shoal_node_value(node, 1)));
    CHECK_STATUS(shoal_graph_opaque(graph, "t", NULL, 0, models, 2, false, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_graph_opaque(graph, "t", NULL, 0, models, 3, true, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("value 2 is NULL");
    CHECK_STATUS(shoal_graph_opaque(graph, "", NULL, 0, NULL, 0, false, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_graph_opaque(graph, NULL, NULL, 0, NULL, 0, false, NULL, NULL), SHOAL_ERR_INVALID);
    shoal_graph_free(graph);
}

TEST(strides_of_an_opaque_call)
{
    shoal_graph *graph = make_graph();
    shoal_node *node;
    float data[6] = {0};
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *model =
        shoal_from_memory(data, (const int64_t[]){3, 2}, 2, SHOAL_F32, (const int64_t[]){1, 3}, NULL, NULL);
    CHECK_OK(shoal_graph_opaque(graph, "t", NULL, 0, &model, 1, false, NULL, &node));
    REQUIRE_OK(shoal_scope_end());
    const int64_t *strides = shoal_tensor_strides(shoal_node_value(node, 0));
    CHECK_INT(strides[0], 1);
    CHECK_INT(strides[1], 3);
    CHECK_INT(shoal_tensor_offset(shoal_node_value(node, 0)), 0);
    CHECK_INT(shoal_tensor_device(shoal_node_value(node, 0)), SHOAL_META);
    shoal_graph_free(graph);
}

TEST(groups)
{
    shoal_graph *graph = make_graph();
    const int ranks[] = {0, 1, 2, 3, 2};
    CHECK_OK(shoal_graph_add_group(graph, "shard", ranks, 2, 2));
    CHECK_OK(shoal_graph_add_group(graph, "shard", ranks, 2, 2)); /* the same */
    CHECK_OK(shoal_graph_add_group(graph, "0", ranks, 1, 4));
    CHECK_STATUS(shoal_graph_add_group(graph, "shard", ranks, 1, 4), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("a group \"shard\" of other ranks");
    CHECK_STATUS(shoal_graph_add_group(graph, "twice", ranks, 1, 5), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("rank 2 is given twice");
    CHECK_STATUS(shoal_graph_add_group(graph, "x", (const int[]){0, -1}, 1, 2), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_graph_add_group(graph, "x", NULL, 1, 2), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_graph_add_group(graph, "x", ranks, 0, 2), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_graph_add_group(graph, "x", ranks, 2, 0), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_graph_add_group(graph, "x", ranks, SIZE_MAX, 2), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_graph_add_group(graph, "a b", ranks, 1, 2), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_graph_add_group(graph, "", ranks, 1, 2), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_graph_add_group(graph, NULL, ranks, 1, 2), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_graph_add_group(NULL, "x", ranks, 1, 2), SHOAL_ERR_INVALID);
    CHECK_INT(graph_find_group(graph, "shard")->size, 2);
    CHECK(graph_find_group(graph, "x") == NULL);
    shoal_graph_free(graph);
}

TEST(nothing_of_nothing)
{
    size_t count = 3;
    shoal_graph_free(NULL);
    CHECK_STATUS(shoal_graph_create(NULL), SHOAL_ERR_INVALID);
    shoal_graph *graph = make_graph();
    CHECK_STATUS(shoal_graph_placeholder(graph, "x", NULL, 2, SHOAL_F32, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_graph_placeholder(graph, "x", NULL, 99, SHOAL_F32, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_graph_placeholder(graph, "x", NULL, 0, (shoal_dtype)99, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("graph_placeholder: ");
    CHECK_INT(shoal_graph_n_nodes(graph), 0);
    shoal_graph_free(graph);
    CHECK_STATUS(shoal_graph_placeholder(NULL, "x", NULL, 0, SHOAL_F32, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_graph_call(NULL, NULL, NULL, 0, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_INT(shoal_graph_n_nodes(NULL), 0);
    CHECK(shoal_graph_first(NULL) == NULL && shoal_graph_last(NULL) == NULL);
    CHECK(shoal_node_next(NULL) == NULL && shoal_node_prev(NULL) == NULL);
    CHECK_STRING(shoal_node_name(NULL), "");
    CHECK(shoal_node_args(NULL, &count) == NULL);
    CHECK_INT(count, 0);
    CHECK(shoal_node_inputs(NULL, NULL) == NULL);
    CHECK(shoal_node_first_user(NULL) == NULL && shoal_node_next_user(NULL, NULL) == NULL);
    CHECK(shoal_node_value(NULL, 0) == NULL);
}
