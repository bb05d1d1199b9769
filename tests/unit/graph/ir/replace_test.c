/* SPDX-License-Identifier: MIT */
/* Replacing one node by another, all or nothing, and what observers see of changes. */
#include "graph/ir/observer.h"
#include "unit/graph/building.h"

TEST(every_occurrence_in_every_user)
{
    shoal_graph *graph = make_graph();
    shoal_node *x = make_input(graph, "x");
    shoal_node *y = make_input(graph, "y");
    shoal_node *z = make_input(graph, "z");
    shoal_arg inner[] = {node_arg(x), node_arg(z), node_arg(x)};
    shoal_arg other[] = {node_arg(z)};
    shoal_arg args[] = {node_arg(x), list_arg(inner, 3), list_arg(other, 1)};
    shoal_node *a = make_opaque(graph, "a", args, 3);
    shoal_node *b = make_opaque(graph, "b", args, 1);
    make_opaque(graph, "c", args + 2, 1);
    size_t n_changed = 77;
    CHECK_OK(shoal_node_replace(x, y, NULL, NULL, &n_changed));
    CHECK_INT(n_changed, 2);
    CHECK_USERS(x, "");
    CHECK_USERS(y, "a b");
    CHECK_USERS(z, "c a"); /* a is its newest user now */
    CHECK_INPUTS(a, "y z");
    CHECK_INPUTS(b, "y");
    const shoal_arg *after = shoal_node_args(a, NULL);
    CHECK(after[0].as.node == y);
    CHECK(after[1].as.list.items[0].as.node == y && after[1].as.list.items[2].as.node == y);
    CHECK(after[1].as.list.items[1].as.node == z);
    shoal_graph_free(graph);
}

static bool is_not(void *context, shoal_node *user)
{
    return user != context;
}

TEST(users_that_the_filter_refuses_stay)
{
    shoal_graph *graph = make_graph();
    shoal_node *x = make_input(graph, "x");
    shoal_arg arg = node_arg(x);
    shoal_node *a = make_opaque(graph, "a", &arg, 1);
    make_opaque(graph, "b", &arg, 1);
    make_opaque(graph, "c", &arg, 1);
    size_t n_changed;
    CHECK_STATUS(shoal_node_replace(x, a, NULL, NULL, &n_changed), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("node a uses x, and would use itself");
    CHECK_INT(n_changed, 0);
    CHECK_USERS(x, "a b c");
    CHECK_OK(shoal_node_replace(x, a, is_not, a, &n_changed));
    CHECK_INT(n_changed, 2);
    CHECK_USERS(x, "a");
    CHECK_USERS(a, "b c");
    shoal_graph_free(graph);
}

TEST(replacing_by_itself_or_without_users)
{
    shoal_graph *graph = make_graph();
    shoal_node *x = make_input(graph, "x");
    shoal_node *y = make_input(graph, "y");
    shoal_arg arg = node_arg(x);
    make_opaque(graph, "a", &arg, 1);
    size_t n_changed = 7;
    CHECK_OK(shoal_node_replace(x, x, NULL, NULL, &n_changed));
    CHECK_INT(n_changed, 0);
    CHECK_OK(shoal_node_replace(y, x, NULL, NULL, NULL));
    CHECK_USERS(x, "a");
    shoal_graph_free(graph);
}

TEST(replacements_that_are_refused)
{
    shoal_graph *graph = make_graph();
    shoal_graph *other = make_graph();
    shoal_node *x = make_input(graph, "x");
    shoal_node *gone = make_input(graph, "gone");
    shoal_node *foreign = make_input(other, "foreign");
    CHECK_OK(shoal_node_erase(gone));
    CHECK_STATUS(shoal_node_replace(x, foreign, NULL, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nodes x and foreign belong to different graphs");
    CHECK_STATUS(shoal_node_replace(x, gone, NULL, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("node gone was erased");
    CHECK_STATUS(shoal_node_replace(NULL, x, NULL, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("old is NULL");
    CHECK_STATUS(shoal_node_replace(x, NULL, NULL, NULL, NULL), SHOAL_ERR_INVALID);
    shoal_graph_free(other);
    shoal_graph_free(graph);
}

/* The first user takes the other one, the second cannot: neither does. */
TEST(all_users_or_none)
{
    shoal_graph *graph = make_graph();
    shoal_node *x = make_input(graph, "x");
    shoal_node *square = make_input(graph, "square");
    shoal_node *row;
    REQUIRE_OK(shoal_graph_placeholder(graph, "row", (const int64_t[]){3}, 1, SHOAL_F32, &row));
    shoal_node *a = make_call(graph, "add", x, x);
    shoal_node *b = make_call(graph, "add", square, x);
    const shoal_tensor *value = shoal_node_value(a, 0);
    struct observer observer = {0};
    REQUIRE_OK(graph_observer_begin(graph, &observer, "pass"));
    CHECK_STATUS(shoal_node_replace(x, row, NULL, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("node add_1");
    graph_observer_end(graph, &observer);
    CHECK(row->origins == NULL);
    CHECK_USERS(x, "add add_1");
    CHECK_USERS(row, "");
    CHECK_INPUTS(a, "x");
    CHECK_INPUTS(b, "square x");
    CHECK(shoal_node_value(a, 0) == value);
    CHECK(shoal_node_args(a, NULL)[0].as.node == x);
    shoal_graph_free(graph);
}

/* A user that also uses another user, whose shape changes with it. */
TEST(users_of_users)
{
    shoal_graph *graph = make_graph();
    shoal_node *small;
    shoal_node *large;
    REQUIRE_OK(shoal_graph_placeholder(graph, "small", (const int64_t[]){3}, 1, SHOAL_F32, &small));
    REQUIRE_OK(shoal_graph_placeholder(graph, "large", (const int64_t[]){5}, 1, SHOAL_F32, &large));
    shoal_node *a = make_call(graph, "add", small, small);
    shoal_node *b = make_call(graph, "add", a, small);
    shoal_node *c = make_call(graph, "add", b, a);
    CHECK_OK(shoal_node_replace(small, large, NULL, NULL, NULL));
    CHECK_INT(shoal_tensor_count(shoal_node_value(a, 0)), 5);
    CHECK_INT(shoal_tensor_count(shoal_node_value(b, 0)), 5);
    CHECK_INT(shoal_tensor_count(shoal_node_value(c, 0)), 5);
    shoal_graph_free(graph);
}

/* A user that stands before another one which it uses, and is inferred before that has changed. */
TEST(users_that_are_out_of_order)
{
    shoal_graph *graph = make_graph();
    shoal_node *x = make_input(graph, "x");
    shoal_node *y = make_input(graph, "y");
    shoal_node *a = make_call(graph, "wait_tensor", x, NULL);
    shoal_node *both;
    shoal_arg items[] = {node_arg(x), node_arg(a)};
    shoal_arg list = list_arg(items, 2);
    REQUIRE_OK(shoal_graph_call(graph, find_op("wait_tensors"), &list, 1, NULL, &both));
    CHECK_OK(shoal_node_move_before(both, a));
    CHECK_OK(shoal_node_replace(x, y, NULL, NULL, NULL));
    CHECK(shoal_node_value(both, 0) == shoal_node_value(y, 0));
    CHECK(shoal_node_value(both, 1) == shoal_node_value(y, 0));
    shoal_graph_free(graph);
}

/* A circle is for the sort to refuse; but what would go around in it for ever is refused here, and it can be broken up. */
TEST(a_circle_that_grows)
{
    shoal_graph *graph = make_graph();
    shoal_node *x = make_input(graph, "x");
    shoal_node *a = make_call(graph, "wait_tensor", x, NULL);
    shoal_node *c;
    shoal_arg items[] = {node_arg(a), node_arg(x), node_arg(x)};
    shoal_arg list = list_arg(items, 2);
    REQUIRE_OK(shoal_graph_call(graph, find_op("cat"), &list, 1, NULL, &c));
    shoal_arg arg = node_arg(c);
    CHECK_OK(shoal_node_set_args(a, &arg, 1));
    int64_t count = shoal_tensor_count(shoal_node_value(c, 0));
    list = list_arg(items, 3);
    CHECK_STATUS(shoal_node_set_args(c, &list, 1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("in a cycle of nodes whose shapes grow");
    CHECK_INT(shoal_tensor_count(shoal_node_value(c, 0)), count);
    arg = node_arg(x);
    CHECK_OK(shoal_node_set_args(a, &arg, 1));
    CHECK_OK(shoal_node_set_args(c, &list, 1));
    CHECK_INT(shoal_tensor_count(shoal_node_value(a, 0)), 16);
    CHECK_INT(shoal_tensor_count(shoal_node_value(c, 0)), 48);
    shoal_graph_free(graph);
}

/* What goes in circles otherwise comes to an end as well. */
TEST(circles_end)
{
    shoal_graph *graph = make_graph();
    shoal_node *x = make_input(graph, "x");
    shoal_node *y = make_input(graph, "y");
    shoal_node *a = make_call(graph, "wait_tensor", x, NULL);
    shoal_node *b = make_call(graph, "wait_tensor", a, NULL);
    shoal_node *c = make_call(graph, "wait_tensor", b, NULL);
    CHECK_OK(shoal_node_replace(x, c, NULL, NULL, NULL)); /* a circle without an end */
    CHECK_INPUTS(a, "wait_tensor_2");
    CHECK_OK(shoal_node_replace(c, y, NULL, NULL, NULL));
    CHECK(shoal_node_value(a, 0) == shoal_node_value(y, 0));
    CHECK(shoal_node_value(c, 0) == shoal_node_value(y, 0));
    CHECK_OK(shoal_node_move_before(c, a));
    CHECK_OK(shoal_node_move_before(b, a));
    CHECK_OK(shoal_node_replace(y, x, NULL, NULL, NULL));
    CHECK(shoal_node_value(a, 0) == shoal_node_value(x, 0));
    CHECK(shoal_node_value(b, 0) == shoal_node_value(x, 0));
    CHECK(shoal_node_value(c, 0) == shoal_node_value(x, 0));
    shoal_graph_free(graph);
}

/* Observers -------------------------------------------------------------------------------------------- */

struct journal {
    struct observer observer;
    char text[256];
};

static void note(struct observer *observer, const char *what, const struct shoal_node *node)
{
    struct journal *journal = (struct journal *)observer;
    size_t length = strlen(journal->text);
    (void)snprintf(journal->text + length, sizeof(journal->text) - length, "%s%s ", what, node->name);
}

static void note_created(struct observer *observer, struct shoal_node *node)
{
    note(observer, "+", node);
    CHECK(node->prev || node->next); /* it has its place */
}

static void note_erased(struct observer *observer, struct shoal_node *node)
{
    note(observer, "-", node);
    CHECK(!node->is_erased);
}

static void note_replaced(struct observer *observer, struct shoal_node *old, struct shoal_node *other,
                          struct shoal_node *user)
{
    note(observer, "", old);
    note(observer, ">", other);
    note(observer, "@", user);
}

static struct journal make_journal(void)
{
    return (struct journal){
        .observer = {.created = note_created, .erased = note_erased, .replaced = note_replaced}};
}

TEST(observers_hear_of_changes)
{
    shoal_graph *graph = make_graph();
    shoal_node *x = make_input(graph, "x");
    shoal_arg arg = node_arg(x);
    make_opaque(graph, "a", &arg, 1);
    make_opaque(graph, "b", &arg, 1);
    struct journal outer = make_journal();
    struct journal inner = make_journal();
    REQUIRE_OK(graph_observer_begin(graph, &outer.observer, "outer"));
    shoal_node *y = make_input(graph, "y");
    REQUIRE_OK(graph_observer_begin(graph, &inner.observer, "inner"));
    CHECK_OK(shoal_node_replace(x, y, NULL, NULL, NULL));
    graph_observer_end(graph, &inner.observer);
    CHECK_STATUS(shoal_node_erase(y), SHOAL_ERR_STATE);
    CHECK_OK(shoal_node_erase(x));
    graph_observer_end(graph, &outer.observer);
    make_input(graph, "z");
    CHECK_STRING(inner.text, "x >y @a x >y @b ");
    CHECK_STRING(outer.text, "+y x >y @a x >y @b -x ");
    CHECK(graph->observer == NULL);
    shoal_graph_free(graph);
}

static void check_origin(const struct origin *origin, const char *pass, unsigned kind, const char *old)
{
    REQUIRE(origin != NULL);
    CHECK_STRING(origin->pass, pass);
    CHECK_INT(origin->kind, kind);
    CHECK_STRING(origin->old ? origin->old : "", old);
}

TEST(origins_of_nodes)
{
    shoal_graph *graph = make_graph();
    shoal_node *x = make_input(graph, "x");
    shoal_node *w = make_input(graph, "w");
    shoal_arg arg = node_arg(x);
    shoal_node *a = make_opaque(graph, "a", &arg, 1);
    arg = node_arg(w);
    make_opaque(graph, "b", &arg, 1);
    struct observer observer = {0};
    char pass[] = "fuse";
    REQUIRE_OK(graph_observer_begin(graph, &observer, pass));
    shoal_node *y = make_input(graph, "y");
    shoal_node *z = make_input(graph, "z");
    CHECK_OK(shoal_node_replace(x, y, NULL, NULL, NULL));
    CHECK_OK(shoal_node_replace(x, y, NULL, NULL, NULL)); /* nobody is left: nothing is noted */
    CHECK_OK(shoal_node_replace(w, y, NULL, NULL, NULL));
    CHECK_OK(shoal_node_replace(y, w, NULL, NULL, NULL)); /* an old one replaces a new one */
    graph_observer_end(graph, &observer);
    memset(pass, 'x', 4);
    CHECK(a->origins == NULL);
    check_origin(z->origins, "fuse", ORIGIN_CREATE, "");
    check_origin(y->origins, "fuse", ORIGIN_CREATE | ORIGIN_REPLACE, "w");
    check_origin(y->origins->next, "fuse", ORIGIN_CREATE | ORIGIN_REPLACE, "x");
    CHECK(y->origins->next->next == NULL);
    check_origin(w->origins, "fuse", ORIGIN_REPLACE, "y");
    CHECK(w->origins->next == NULL);
    shoal_graph_free(graph);
}
