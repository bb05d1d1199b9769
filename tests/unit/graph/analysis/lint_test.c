/* SPDX-License-Identifier: MIT */
/* What shoal_graph_lint finds: graphs are broken on purpose, in their structs, one thing at a time. */
#include <string.h>

#include "fixtures/graph_build.h"
#include "graph/ir/graph.h"
#include "harness/test.h"
#include "shoal/graph.h"
#include "shoal/ops.h"

/* Puts something wrong in one place, expects these words, and puts back what was there. */
#define BREAK(graph, place, wrong, words)      \
    do {                                       \
        __typeof__(place) kept_ = (place);     \
        (place) = (wrong);                     \
        check_refused(__LINE__, graph, words); \
        (place) = kept_;                       \
        CHECK_OK(shoal_graph_lint(graph));     \
    } while (0)

static void check_refused(int line, const shoal_graph *graph, const char *words)
{
    if (test_check_status(__FILE__, line, "shoal_graph_lint", shoal_graph_lint(graph), SHOAL_ERR_STATE)) {
        (void)test_check_error_text(__FILE__, line, words);
    }
}

/* x, y, all_reduce(x), wait_tensor, add(wait_tensor, y), mul(add, add), output */
struct subject {
    shoal_graph *graph;
    shoal_node *x;
    shoal_node *y;
    shoal_node *start;
    shoal_node *wait;
    shoal_node *add;
    shoal_node *mul;
    shoal_node *output;
};

static bool subject_build(struct subject *s)
{
    *s = (struct subject){.graph = build_graph(2)};
    s->x = build_input(s->graph, "x", 4);
    s->y = build_input(s->graph, "y", 4);
    s->start = build_all_reduce(s->graph, s->x);
    s->wait = build_wait(s->graph, s->start);
    s->add = BUILD_CALL(s->graph, "add", arg_node(s->wait), arg_node(s->y));
    s->mul = BUILD_CALL(s->graph, "mul", arg_node(s->add), arg_node(s->add));
    s->output = build_output(s->graph, 1, s->mul);
    if (s->output && CHECK_OK(shoal_graph_lint(s->graph))) {
        return true;
    }
    shoal_graph_free(s->graph);
    return false;
}

TEST(a_good_graph_passes)
{
    struct subject s;
    REQUIRE(subject_build(&s));
    CHECK_NODES(s.graph, "x y all_reduce wait_tensor add mul output");
    shoal_graph_free(s.graph);
}

TEST(null_and_an_empty_graph)
{
    CHECK_STATUS(shoal_graph_lint(NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("graph_lint: graph is NULL");
    shoal_graph *graph = build_graph(0);
    check_refused(__LINE__, graph, "graph_lint: the graph has no output");
    shoal_graph_free(graph);
}

TEST(a_graph_under_construction_has_no_output)
{
    shoal_graph *graph = build_graph(2);
    CHECK(build_input(graph, "x", 4) != NULL);
    check_refused(__LINE__, graph, "has no output");
    shoal_graph_free(graph);
}

TEST(the_list)
{
    struct subject s;
    REQUIRE(subject_build(&s));
    BREAK(s.graph, s.add->prev, s.y,
          "node add: the node before it in the list is wait_tensor, but its prev is y");
    BREAK(s.graph, s.x->prev, s.y, "node x: the node before it in the list is none");
    BREAK(s.graph, s.add->prev, NULL, "but its prev is none");
    BREAK(s.graph, s.graph->last, s.mul, "the list ends with node output, but the graph's last node is mul");
    BREAK(s.graph, s.graph->last, NULL, "but the graph's last node is none");
    BREAK(s.graph, s.graph->first, s.y, "node y: the node before it");
    BREAK(s.graph, s.graph->n_nodes, 6, "the list has 7 nodes, but n_nodes is 6");
    BREAK(s.graph, s.graph->n_nodes, 8, "the list has 7 nodes, but n_nodes is 8");
    BREAK(s.graph, s.add->order, s.wait->order, "node add: its order");
    BREAK(s.graph, s.add->order, s.output->order + 1, "node mul: its order");
    BREAK(s.graph, s.mul->next, s.y, "node y: the node before it in the list is mul");
    BREAK(s.graph, s.mul->next, s.x, "node x: the node before it in the list is mul");
    BREAK(s.graph, s.mul->next, s.mul, "node mul: the node before it in the list is mul");
    BREAK(s.graph, s.mul->next, NULL, "the list ends with node mul");
    shoal_graph_free(s.graph);
}

TEST(graphs_erased_nodes_and_ids)
{
    struct subject s;
    REQUIRE(subject_build(&s));
    shoal_graph *other = build_graph(0);
    BREAK(s.graph, s.add->graph, other, "node add: is in the list of another graph");
    BREAK(s.graph, s.add->graph, NULL, "node add: is in the list of another graph");
    BREAK(s.graph, s.add->is_erased, true, "node add: is erased, but still in the list");
    BREAK(s.graph, s.add->id, s.graph->n_ids, "node add: its id");
    BREAK(s.graph, s.add->id, s.x->id, "of node x");
    BREAK(s.graph, s.graph->n_ids, 2, "is not below 2");
    shoal_graph_free(other);
    shoal_graph_free(s.graph);
}

TEST(the_insertion_point)
{
    struct subject s;
    REQUIRE(subject_build(&s));
    shoal_node *stray = build_opaque(s.graph, "stray", &s.x, 1);
    REQUIRE(stray);
    REQUIRE_OK(shoal_node_erase(stray));
    BREAK(s.graph, s.graph->point.node, stray,
          "the insertion point is at node stray, which is not in the list");
    shoal_graph_free(s.graph);
}

TEST(names)
{
    struct subject s;
    REQUIRE(subject_build(&s));
    BREAK(s.graph, s.add->name, NULL, "node (without a name): has no name");
    BREAK(s.graph, s.add->name, "", "has no name");
    BREAK(s.graph, s.add->name, "nobody", "node nobody: is not found by its name");
    BREAK(s.graph, s.add->name, "mul", "node mul: its name leads to another node");
    shoal_graph_free(s.graph);
}

/* Arguments are constant for everybody but the graph. */
static shoal_arg *args_of(shoal_node *node)
{
    return (shoal_arg *)(uintptr_t)node->args;
}

TEST(arguments_and_inputs)
{
    struct subject s;
    REQUIRE(subject_build(&s));
    BREAK(s.graph, args_of(s.add)[1].as.node, NULL, "node add: argument 1: is not a node");
    BREAK(s.graph, args_of(s.add)[1].as.node, s.x, "node add: argument 1: node x is not its input 1");
    BREAK(s.graph, args_of(s.add)[1].as.node, s.mul, "node add: argument 1: node mul is not before it");
    BREAK(s.graph, args_of(s.add)[1].as.node, s.add, "node add: argument 1: node add is not before it");
    BREAK(s.graph, args_of(s.add)[1], arg_none(), "node add: has 2 inputs, its arguments name 1");
    BREAK(s.graph, args_of(s.mul)[1].as.node, s.y, "node mul: argument 1: node y is not its input 1");
    BREAK(s.graph, args_of(s.mul)[0].kind, (shoal_arg_kind)77, "node mul: argument 0: unknown kind 77");
    BREAK(s.graph, s.add->inputs[0], s.y, "node add: argument 0: node wait_tensor is not its input 0");
    BREAK(s.graph, s.add->n_inputs, 1, "node add: argument 1: node y is not its input 1");
    BREAK(s.graph, s.add->inputs, NULL, "node add: has 2 inputs, but inputs or edges is NULL");
    BREAK(s.graph, s.add->edges, NULL, "node add: has 2 inputs, but inputs or edges is NULL");
    BREAK(s.graph, s.add->args, NULL, "node add: has 2 arguments, but args is NULL");
    BREAK(s.graph, args_of(s.start)[1].as.string, NULL, "node all_reduce: argument 1: no string");
    shoal_arg no_items = {.kind = SHOAL_ARG_LIST, .as.list = {NULL, 2}};
    BREAK(s.graph, args_of(s.add)[1], no_items, "node add: argument 1: a list without items");
    shoal_graph_free(s.graph);
}

TEST(groups_must_be_in_the_table)
{
    struct subject s;
    REQUIRE(subject_build(&s));
    BREAK(s.graph, args_of(s.start)[2].as.string, "elsewhere",
          "node all_reduce: argument 2: there is no group @elsewhere");
    BREAK(s.graph, args_of(s.start)[2].as.string, NULL, "argument 2: there is no group");
    BREAK(s.graph, args_of(s.start)[3], arg_rank("elsewhere", 1, 0),
          "argument 3: there is no group @elsewhere");
    shoal_arg nested[] = {arg_int(1), arg_rank("nested", 1, 0)};
    BREAK(s.graph, args_of(s.start)[3], arg_list(nested, 2), "argument 3: there is no group @nested");
    shoal_graph_free(s.graph);
}

TEST(an_input_behind_its_user)
{
    struct subject s;
    REQUIRE(subject_build(&s));
    REQUIRE_OK(shoal_node_move_before(s.mul, s.add));
    check_refused(__LINE__, s.graph, "graph_lint: node mul: argument 0: node add is not before it");
    REQUIRE_OK(shoal_node_move_after(s.mul, s.add));
    CHECK_OK(shoal_graph_lint(s.graph));
    shoal_graph_free(s.graph);
}

TEST(arguments_that_are_elsewhere)
{
    struct subject s;
    struct subject other;
    REQUIRE(subject_build(&s));
    REQUIRE(subject_build(&other));
    BREAK(s.graph, args_of(s.add)[1].as.node, other.y, "node add: argument 1: node y is of another graph");
    shoal_node *stray = build_opaque(s.graph, "stray", (shoal_node *[]){s.x}, 1);
    REQUIRE(stray);
    REQUIRE_OK(shoal_node_erase(stray));
    CHECK_OK(shoal_graph_lint(s.graph));
    BREAK(s.graph, args_of(s.add)[1].as.node, stray, "node add: argument 1: node stray is erased");
    bool was_erased = stray->is_erased;
    stray->is_erased = false;
    BREAK(s.graph, args_of(s.add)[1].as.node, stray, "node add: argument 1: node stray is not in the list");
    stray->is_erased = was_erased;
    shoal_graph_free(other.graph);
    shoal_graph_free(s.graph);
}

TEST(edges)
{
    struct subject s;
    REQUIRE(subject_build(&s));
    BREAK(s.graph, s.add->edges[1].input, s.x, "node add: its edge 1 does not lead to its input y");
    BREAK(s.graph, s.add->edges[1].user, s.mul, "node add: its edge 1 does not lead");
    BREAK(s.graph, s.y->first_use, NULL, "node add: is not in the list of users of its input y");
    BREAK(s.graph, s.y->last_use, NULL, "node add: is not in the list of users of its input y");
    BREAK(s.graph, s.y->n_users, 2, "node y: has 1 users in its list, but n_users is 2");
    BREAK(s.graph, s.y->n_users, 0, "node y: has 1 users in its list, but n_users is 0");
    BREAK(s.graph, s.output->n_users, 1, "node output: has 0 users in its list, but n_users is 1");
    BREAK(s.graph, s.output->last_use, &s.add->edges[0],
          "node output: last_use is not the last edge in its list of users");
    /* An edge that is its own neighbour, in no list: only numbers tell. */
    struct shoal_node y = *s.y;
    struct edge *edge = &s.add->edges[1];
    s.y->first_use = NULL;
    s.y->last_use = NULL;
    s.y->n_users = 0;
    edge->prev = edge;
    edge->next = edge;
    check_refused(__LINE__, s.graph, "node y: is an input of 1 nodes, and has 0 users");
    *s.y = y;
    edge->prev = NULL;
    edge->next = NULL;
    CHECK_OK(shoal_graph_lint(s.graph));
    /* A user that is none: an edge that is in no array, in the list of a node without users. */
    struct edge stray = {.user = s.mul, .input = s.output};
    s.output->first_use = &stray;
    s.output->last_use = &stray;
    s.output->n_users = 1;
    check_refused(__LINE__, s.graph, "node output: its user mul does not have it as an input");
    stray.user = NULL;
    check_refused(__LINE__, s.graph, "node output: user 0: is not a node");
    stray.input = s.mul;
    check_refused(__LINE__, s.graph, "node output: its list of users is broken at user 0");
    shoal_graph_free(s.graph);
}

TEST(kinds_and_values)
{
    struct subject s;
    REQUIRE(subject_build(&s));
    BREAK(s.graph, s.add->kind, (shoal_node_kind)9, "node add: has an op and is not a call");
    BREAK(s.graph, s.x->kind, (shoal_node_kind)9, "node x: unknown kind 9");
    BREAK(s.graph, s.x->op, s.add->op, "node x: has an op and is not a call");
    BREAK(s.graph, s.add->op, s.start->op, "node add: has 2 arguments, all_reduce has 4 parameters");
    BREAK(s.graph, s.add->target, NULL, "node add: calls nothing");
    BREAK(s.graph, s.add->is_list, true, "node add: gives a list, but op add gives none");
    BREAK(s.graph, s.add->n_values, 0, "node add: gives 0 values instead of one");
    BREAK(s.graph, s.add->n_values, 2, "node add: gives 2 values, but is_list is false");
    BREAK(s.graph, s.add->values, NULL, "node add: gives 1 values, but values is NULL");
    BREAK(s.graph, s.add->values[0], NULL, "node add: value 0 is NULL");
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *data = shoal_zeros((int64_t[]){4}, 1, SHOAL_F32);
    BREAK(s.graph, s.add->values[0], data, "node add: value 0 is not on the meta device");
    REQUIRE_OK(shoal_scope_end());
    BREAK(s.graph, s.x->n_values, 0, "node x: does not give one tensor");
    BREAK(s.graph, s.x->is_list, true, "node x: does not give one tensor");
    s.output->values = s.add->values;
    BREAK(s.graph, s.output->n_values, 1, "node output: is the output and gives values");
    s.output->values = NULL;
    shoal_graph_free(s.graph);
}

/* A call that says it is an input of the graph. */
TEST(a_placeholder_is_not_the_result_of_a_call)
{
    shoal_graph *graph = build_graph(0);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *call = build_opaque(graph, "call", &x, 1);
    REQUIRE(build_output(graph, 1, call));
    CHECK_OK(shoal_graph_lint(graph));
    BREAK(graph, call->kind, SHOAL_NODE_PLACEHOLDER, "node call: is a placeholder and has inputs, such as x");
    BREAK(graph, call->kind, SHOAL_NODE_CONSTANT, "node call: is a constant and has inputs, such as x");
    shoal_graph_free(graph);
}

TEST(the_output)
{
    struct subject s;
    REQUIRE(subject_build(&s));
    s.output->kind = SHOAL_NODE_CALL;
    check_refused(__LINE__, s.graph, "the graph has no output");
    s.output->kind = SHOAL_NODE_OUTPUT;
    BREAK(s.graph, s.graph->output, NULL, "node output: is the output, but the graph's output is none");
    BREAK(s.graph, s.graph->output, s.mul, "node output: is the output, but the graph's output is mul");
    CHECK_OK(shoal_graph_lint(s.graph));
    REQUIRE_OK(shoal_graph_set_insert_point(s.graph, (shoal_insert_point){s.output, true}));
    shoal_node *late = BUILD_CALL(s.graph, "neg", arg_node(s.mul));
    REQUIRE(late);
    check_refused(__LINE__, s.graph, "node output: is the output, but comes before node neg");
    args_of(late)[0].as.node = s.output;
    check_refused(__LINE__, s.graph, "node neg: argument 0: node output is the output");
    args_of(late)[0].as.node = s.mul;
    REQUIRE_OK(shoal_node_move_before(late, s.output));
    CHECK_OK(shoal_graph_lint(s.graph));
    shoal_graph_free(s.graph);
}

/* A node that is made an output beside the real one: what it gives and its users are taken from it before. */
TEST(a_second_output)
{
    shoal_graph *graph = build_graph(0);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *call = build_opaque(graph, "call", &x, 1);
    REQUIRE(build_output(graph, 1, x));
    CHECK_OK(shoal_graph_lint(graph));
    size_t n_values = call->n_values;
    call->n_values = 0;
    BREAK(graph, call->kind, SHOAL_NODE_OUTPUT, "node output: is a second output, besides call");
    call->n_values = n_values;
    shoal_graph_free(graph);
}

/* Waits ------------------------------------------------------------------------------------------------- */

TEST(a_start_that_nobody_waits_for)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *start = build_all_reduce(graph, x);
    shoal_node *output = build_output(graph, 1, x);
    REQUIRE(start && output);
    check_refused(__LINE__, graph, "node all_reduce: starts communication that nobody waits for");
    REQUIRE_OK(shoal_graph_set_insert_point(graph, (shoal_insert_point){output, false}));
    REQUIRE(BUILD_CALL(graph, "neg", arg_node(start)));
    check_refused(__LINE__, graph, "node all_reduce: starts communication that nobody waits for");
    shoal_graph_free(graph);
}

TEST(a_start_that_writes_in_place_is_waited_for_too)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *start =
        BUILD_CALL(graph, "all_reduce_", arg_node(x), arg_string("sum"), arg_group(BUILD_GROUP));
    shoal_node *output = build_output(graph, 1, x);
    REQUIRE(start && output);
    check_refused(__LINE__, graph, "starts communication that nobody waits for");
    REQUIRE_OK(shoal_graph_set_insert_point(graph, (shoal_insert_point){output, false}));
    REQUIRE(build_wait(graph, start));
    CHECK_OK(shoal_graph_lint(graph));
    shoal_graph_free(graph);
}

TEST(a_result_that_is_read_before_its_wait)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *start = build_all_reduce(graph, x);
    shoal_node *early = BUILD_CALL(graph, "neg", arg_node(start));
    shoal_node *wait = build_wait(graph, start);
    shoal_node *second = build_wait(graph, start);
    REQUIRE(build_output(graph, 3, early, wait, second));
    check_refused(__LINE__, graph,
                  "node all_reduce: node neg uses node all_reduce before node wait_tensor waits for it");
    REQUIRE_OK(shoal_node_move_after(early, wait));
    CHECK_OK(shoal_graph_lint(graph));
    /* Looking at it is not reading. */
    REQUIRE_OK(shoal_graph_set_insert_point(graph, (shoal_insert_point){start, true}));
    REQUIRE(BUILD_CALL(graph, "view", arg_node(start), ARG_LIST(arg_int(2), arg_int(2))));
    CHECK_OK(shoal_graph_lint(graph));
    shoal_graph_free(graph);
}

struct coalesced {
    shoal_graph *graph;
    shoal_node *x[3];
    shoal_node *start;
};

static bool coalesced_build(struct coalesced *c)
{
    *c = (struct coalesced){.graph = build_graph(2)};
    for (int i = 0; i < 3; i++) {
        c->x[i] = build_input(c->graph, "x", 4 + i);
    }
    c->start = build_all_reduce_coalesced(c->graph, c->x, 3);
    return c->start != NULL;
}

TEST(elements_that_are_used_are_waited_for)
{
    struct coalesced c;
    REQUIRE(coalesced_build(&c));
    shoal_node *first = build_getitem(c.graph, c.start, 0);
    shoal_node *unused = build_getitem(c.graph, c.start, 1);
    shoal_node *last = build_getitem(c.graph, c.start, 2);
    shoal_node *neg = BUILD_CALL(c.graph, "neg", arg_node(last));
    REQUIRE(unused && build_output(c.graph, 2, first, neg));
    check_refused(__LINE__, c.graph, "node all_reduce_coalesced: starts communication that nobody waits for");
    REQUIRE_OK(shoal_graph_set_insert_point(c.graph, (shoal_insert_point){neg, false}));
    REQUIRE(build_wait(c.graph, first));
    check_refused(__LINE__, c.graph,
                  "node all_reduce_coalesced: node neg uses node getitem_2, and nobody waits for that");
    /* Another getitem of the same element, counted from the end, is waited for: that settles it. */
    shoal_node *again = build_getitem(c.graph, c.start, -1);
    REQUIRE(again && build_wait(c.graph, again));
    CHECK_OK(shoal_graph_lint(c.graph));
    REQUIRE_OK(shoal_node_move_before(neg, again));
    check_refused(__LINE__, c.graph, "node neg uses node getitem_2 before node wait_tensor_1 waits for it");
    shoal_graph_free(c.graph);
}

TEST(a_list_is_waited_for_as_a_whole)
{
    struct coalesced c;
    REQUIRE(coalesced_build(&c));
    shoal_node *early = build_getitem(c.graph, c.start, 1);
    shoal_node *waited = BUILD_CALL(c.graph, "wait_tensors", arg_node(c.start));
    shoal_node *late = build_getitem(c.graph, waited, 0);
    shoal_node *neg = BUILD_CALL(c.graph, "neg", arg_node(early));
    REQUIRE(build_output(c.graph, 2, late, neg));
    CHECK_OK(shoal_graph_lint(c.graph));
    shoal_graph_free(c.graph);
}

TEST(elements_are_waited_for_together)
{
    struct coalesced c;
    REQUIRE(coalesced_build(&c));
    shoal_node *elements[2] = {build_getitem(c.graph, c.start, 0), build_getitem(c.graph, c.start, 2)};
    shoal_node *waited = build_of_list(c.graph, "wait_tensors", elements, 2, NULL, 0);
    shoal_node *result = build_getitem(c.graph, waited, 1);
    REQUIRE(build_output(c.graph, 1, result));
    CHECK_OK(shoal_graph_lint(c.graph));
    shoal_graph_free(c.graph);
}

/* foreach_div reads all of the list: all of it must have been waited for. */
TEST(a_list_that_is_used_as_a_whole)
{
    struct coalesced c;
    REQUIRE(coalesced_build(&c));
    shoal_node *waits[3] = {NULL};
    for (int i = 0; i < 2; i++) {
        waits[i] = build_wait(c.graph, build_getitem(c.graph, c.start, i));
    }
    shoal_node *whole = BUILD_CALL(c.graph, "foreach_div", arg_node(c.start), arg_float(2));
    REQUIRE(waits[0] && waits[1] && build_output(c.graph, 1, whole));
    check_refused(__LINE__, c.graph, "node foreach_div uses node all_reduce_coalesced, and nobody waits");
    REQUIRE_OK(shoal_graph_set_insert_point(c.graph, (shoal_insert_point){shoal_graph_last(c.graph), false}));
    waits[2] = build_wait(c.graph, build_getitem(c.graph, c.start, 2));
    REQUIRE(waits[2]);
    check_refused(__LINE__, c.graph,
                  "node foreach_div uses node all_reduce_coalesced before node wait_tensor_2 waits for it");
    REQUIRE_OK(shoal_node_move_after(whole, waits[2]));
    CHECK_OK(shoal_graph_lint(c.graph));
    shoal_graph_free(c.graph);
}

/* Memory and size --------------------------------------------------------------------------------------- */

static shoal_status lint_once(void *context)
{
    return shoal_graph_lint(context);
}

TEST(lint_survives_failing_allocations)
{
    struct subject s;
    REQUIRE(subject_build(&s));
    CHECK(test_sweep_allocations(lint_once, s.graph) >= 1);
    CHECK_OK(shoal_graph_lint(s.graph));
    shoal_graph_free(s.graph);
}

/* A node that 100,000 use, and one that uses them all: neither may make lint quadratic. */
TEST(a_large_graph)
{
    enum {
        N_NODES = 100000
    };
    shoal_graph *graph = build_graph(0);
    shoal_node **nodes = calloc(N_NODES, sizeof(shoal_node *));
    REQUIRE(nodes);
    nodes[0] = build_input(graph, "x", 1);
    for (size_t i = 1; i < N_NODES && !test_has_failed(); i++) {
        nodes[i] = build_opaque(graph, "node", (shoal_node *[]){nodes[0], nodes[i - 1]}, 2);
    }
    shoal_node *all = build_opaque(graph, "all", nodes, N_NODES);
    CHECK(build_output(graph, 1, all) != NULL);
    CHECK_OK(shoal_graph_lint(graph));
    free(nodes);
    shoal_graph_free(graph);
}
