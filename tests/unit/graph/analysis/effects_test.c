/* SPDX-License-Identifier: MIT */
/* Which order a graph demands beyond its inputs, and which nodes may go when nobody uses them. */
#include "graph/analysis/effects.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/test.h"
#include "shoal/ops.h"
#include "unit/graph/building.h"

/* Graphs ----------------------------------------------------------------------------------------------- */

static shoal_arg string_arg(const char *string)
{
    return (shoal_arg){.kind = SHOAL_ARG_STRING, .as.string = string};
}

static shoal_arg group_arg(const char *name)
{
    return (shoal_arg){.kind = SHOAL_ARG_GROUP, .as.string = name};
}

static shoal_graph *make_grouped(void)
{
    shoal_graph *graph = NULL;
    CHECK_OK(shoal_graph_create(&graph));
    CHECK_OK(shoal_graph_add_group(graph, "z", (int[]){0, 1}, 1, 2));
    CHECK_OK(shoal_graph_add_group(graph, "a", (int[]){0, 1}, 1, 2));
    return graph;
}

static shoal_node *input(shoal_graph *graph, const char *name)
{
    shoal_node *node = NULL;
    CHECK_OK(shoal_graph_placeholder(graph, name, (int64_t[]){8, 2}, 2, SHOAL_F32, &node));
    return node;
}

#define CALL(graph, name, op, ...) \
    call(graph, name, op, (shoal_arg[]){__VA_ARGS__}, sizeof((shoal_arg[]){__VA_ARGS__}) / sizeof(shoal_arg))

static shoal_node *call(shoal_graph *graph, const char *name, const char *op, const shoal_arg *args,
                        size_t n_args)
{
    const shoal_op *found = NULL;
    shoal_node *node = NULL;
    CHECK_OK(shoal_op_find(op, &found));
    CHECK_OK(shoal_graph_call(graph, found, args, n_args, name, &node));
    return node;
}

/* "a,b": the nodes that must come before, beyond inputs. */
static const char *before(const struct effects *effects, const shoal_node *node, bool is_strict)
{
    static char text[512];
    shoal_node *const *nodes;
    size_t count;
    size_t used = 0;
    text[0] = '\0';
    (is_strict ? effects_before_strict : effects_before)(effects, node, &nodes, &count);
    for (size_t i = 0; i < count && used < sizeof text; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i > 0 ? "," : "", nodes[i]->name);
    }
    return text;
}

#define CHECK_BEFORE(effects, node, names) CHECK_STRING(before(effects, node, false), names)
#define CHECK_STRICT(effects, node, names) CHECK_STRING(before(effects, node, true), names)

/* "rw c": what is done to each storage. */
static const char *accesses(const struct effects *effects, const shoal_node *node)
{
    static char text[256];
    const struct effects_access *all;
    size_t count;
    size_t used = 0;
    text[0] = '\0';
    effects_accesses(effects, node, &all, &count);
    for (size_t i = 0; i < count && used < sizeof text; i++) {
        used +=
            (size_t)snprintf(text + used, sizeof text - used, "%s%u%s%s%s", i > 0 ? " " : "", all[i].storage,
                             all[i].reads ? "r" : "", all[i].writes ? "w" : "", all[i].creates ? "c" : "");
    }
    return text;
}

static struct effects *build(const shoal_graph *graph)
{
    struct effects *effects = NULL;
    CHECK_OK(effects_build(graph, &effects));
    return effects;
}

/* Writes ----------------------------------------------------------------------------------------------- */

TEST(reads_and_writes_of_one_storage)
{
    shoal_graph *graph = make_grouped();
    shoal_node *x = input(graph, "x");
    shoal_node *y = input(graph, "y");
    shoal_node *row = CALL(graph, "row", "select", node_arg(x), int_arg(0), int_arg(0));
    shoal_node *r1 = CALL(graph, "r1", "neg", node_arg(x));
    shoal_node *r2 = CALL(graph, "r2", "neg", node_arg(row));
    shoal_node *w1 = CALL(graph, "w1", "add_", node_arg(x), node_arg(y));
    shoal_node *r3 = CALL(graph, "r3", "neg", node_arg(row));
    shoal_node *w2 = CALL(graph, "w2", "copy_", node_arg(row), node_arg(row));
    shoal_node *w3 = CALL(graph, "w3", "neg_", node_arg(x));
    shoal_node *r4 = CALL(graph, "r4", "neg", node_arg(w3));
    shoal_node *r5 = CALL(graph, "r5", "neg", node_arg(y));
    struct effects *effects = build(graph);
    CHECK_STRING(accesses(effects, x), "0c");
    CHECK_STRING(accesses(effects, row), "");
    CHECK_BEFORE(effects, row, "");
    CHECK_STRING(accesses(effects, r1), "0r 2c");
    CHECK_BEFORE(effects, r1, "");
    CHECK_BEFORE(effects, r2, "");
    CHECK_STRING(accesses(effects, w1), "0rw 1r");
    CHECK_BEFORE(effects, w1, "r2,r1");
    CHECK_BEFORE(effects, r3, "w1");
    /* Reads and writes the same storage: its own last write is no edge, and the reader in between says it all. */
    CHECK_STRING(accesses(effects, w2), "0rw");
    CHECK_BEFORE(effects, w2, "r3");
    CHECK_BEFORE(effects, w3, "w2");
    CHECK_BEFORE(effects, r4, ""); /* by its input */
    CHECK_BEFORE(effects, r5, "");
    effects_free(effects);
    shoal_graph_free(graph);
}

/* What overwrites does not read, and is ordered all the same. */
TEST(overwriting_is_writing)
{
    shoal_graph *graph = make_grouped();
    shoal_node *x = input(graph, "x");
    shoal_node *y = input(graph, "y");
    shoal_node *w1 = CALL(graph, "w1", "copy_", node_arg(x), node_arg(y));
    shoal_node *w2 = CALL(graph, "w2", "copy_", node_arg(x), node_arg(y));
    struct effects *effects = build(graph);
    CHECK_STRING(accesses(effects, w1), "0w 1r");
    CHECK_BEFORE(effects, w2, "w1");
    effects_free(effects);
    shoal_graph_free(graph);
}

TEST(copies_read_and_views_do_not)
{
    shoal_graph *graph = make_grouped();
    shoal_node *x = input(graph, "x");
    shoal_arg sixteen = int_arg(16);
    shoal_node *turned = CALL(graph, "turned", "transpose", node_arg(x), int_arg(0), int_arg(1));
    shoal_node *view = CALL(graph, "view", "reshape", node_arg(x), list_arg(&sixteen, 1));
    shoal_node *copy = CALL(graph, "copy", "reshape", node_arg(turned), list_arg(&sixteen, 1));
    shoal_node *same = CALL(graph, "same", "contiguous", node_arg(x));
    shoal_node *w = CALL(graph, "w", "neg_", node_arg(x));
    struct effects *effects = build(graph);
    CHECK_STRING(accesses(effects, view), "");
    CHECK_STRING(accesses(effects, same), "");
    CHECK_STRING(accesses(effects, copy), "0r 1c");
    CHECK_BEFORE(effects, w, "copy");
    CHECK_INT(effects_n_storages(effects), 2);
    effects_free(effects);
    shoal_graph_free(graph);
}

TEST(lists_are_written_and_read_whole)
{
    shoal_graph *graph = make_grouped();
    shoal_node *x = input(graph, "x");
    shoal_node *y = input(graph, "y");
    shoal_node *z = input(graph, "z");
    shoal_node *pieces = CALL(graph, "pieces", "split", node_arg(x), int_arg(4));
    shoal_node *first = CALL(graph, "first", "getitem", node_arg(pieces), int_arg(0));
    (void)CALL(graph, "ry", "neg", node_arg(y));
    shoal_arg targets[] = {node_arg(y), node_arg(z)};
    shoal_arg sources[] = {node_arg(x), node_arg(x)};
    shoal_node *each = CALL(graph, "each", "foreach_add_", list_arg(targets, 2), list_arg(sources, 2));
    shoal_node *joined = CALL(graph, "joined", "cat", node_arg(pieces));
    shoal_node *rz = CALL(graph, "rz", "neg", node_arg(z));
    shoal_node *w = CALL(graph, "w", "neg_", node_arg(first));
    struct effects *effects = build(graph);
    CHECK_STRING(accesses(effects, each), "1rw 2rw 0r");
    CHECK_BEFORE(effects, each, "ry");
    CHECK_STRING(accesses(effects, joined), "0r 4c");
    CHECK_BEFORE(effects, rz, "each");
    CHECK_BEFORE(effects, w, "joined,each");
    effects_free(effects);
    shoal_graph_free(graph);
}

TEST(the_output_reads_what_it_names)
{
    shoal_graph *graph = make_grouped();
    shoal_node *x = input(graph, "x");
    shoal_node *view = CALL(graph, "view", "select", node_arg(x), int_arg(0), int_arg(0));
    shoal_node *w = CALL(graph, "w", "neg_", node_arg(x));
    shoal_arg inner[] = {node_arg(view)};
    shoal_arg outer[] = {list_arg(inner, 1)};
    shoal_arg arg = list_arg(outer, 1);
    shoal_node *out = NULL;
    CHECK_OK(shoal_graph_output(graph, &arg, &out));
    struct effects *effects = build(graph);
    CHECK_STRING(accesses(effects, out), "0r");
    CHECK_BEFORE(effects, out, "w");
    CHECK(w != NULL);
    effects_free(effects);
    shoal_graph_free(graph);
}

/* Constants -------------------------------------------------------------------------------------------- */

TEST(constants_are_the_storages_that_their_views_have)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_graph *graph = make_grouped();
    shoal_tensor *tensor = shoal_full((int64_t[]){8, 2}, 2, 1.0, SHOAL_F32);
    shoal_node *c = NULL;
    shoal_node *d = NULL;
    CHECK_OK(shoal_graph_constant(graph, "c", tensor, &c));
    CHECK_OK(shoal_graph_constant(graph, "d", shoal_narrow(tensor, 0, 0, 4), &d));
    shoal_node *row = CALL(graph, "row", "select", node_arg(d), int_arg(0), int_arg(0));
    shoal_node *read = CALL(graph, "read", "neg", node_arg(c));
    shoal_node *w = CALL(graph, "w", "neg_", node_arg(row));
    shoal_node *late = CALL(graph, "late", "neg", node_arg(c));
    struct effects *effects = build(graph);
    CHECK_STRING(accesses(effects, c), "0c");
    CHECK_STRING(accesses(effects, d), "");
    CHECK_STRING(accesses(effects, read), "0r 1c");
    CHECK_STRING(accesses(effects, w), "0rw");
    CHECK_BEFORE(effects, w, "read");
    CHECK_BEFORE(effects, late, "w");
    effects_free(effects);
    shoal_graph_free(graph);
    CHECK_OK(shoal_scope_end());
}

/* Collectives ------------------------------------------------------------------------------------------ */

TEST(a_start_reads_until_it_is_waited_for)
{
    shoal_graph *graph = make_grouped();
    shoal_node *x = input(graph, "x");
    shoal_node *sum = CALL(graph, "sum", "all_reduce", node_arg(x), string_arg("sum"), group_arg("z"));
    shoal_node *view = CALL(graph, "view", "select", node_arg(sum), int_arg(0), int_arg(0));
    shoal_node *wait = CALL(graph, "wait", "wait_tensor", node_arg(sum));
    shoal_node *w = CALL(graph, "w", "neg_", node_arg(x));
    shoal_node *late = CALL(graph, "late", "neg", node_arg(view));
    shoal_node *use = CALL(graph, "use", "neg", node_arg(wait));
    struct effects *effects = build(graph);
    CHECK_STRING(accesses(effects, sum), "0r 1c");
    CHECK_STRING(accesses(effects, wait), "1rw 0r");
    CHECK_BEFORE(effects, wait, "");
    /* Not while the collective may still read it. */
    CHECK_BEFORE(effects, w, "wait,sum");
    /* The view was taken before the data arrived. */
    CHECK_BEFORE(effects, late, "wait");
    CHECK_BEFORE(effects, use, "");
    effects_free(effects);
    shoal_graph_free(graph);
}

/* The write waits for the start by itself: the wait need not come after it. */
TEST(a_write_between_start_and_wait)
{
    shoal_graph *graph = make_grouped();
    shoal_node *x = input(graph, "x");
    shoal_node *sum = CALL(graph, "sum", "all_reduce", node_arg(x), string_arg("sum"), group_arg("z"));
    shoal_node *w = CALL(graph, "w", "neg_", node_arg(x));
    shoal_node *wait = CALL(graph, "wait", "wait_tensor", node_arg(sum));
    struct effects *effects = build(graph);
    CHECK_BEFORE(effects, w, "sum");
    CHECK_BEFORE(effects, wait, "w"); /* it may have written another part */
    effects_free(effects);
    shoal_graph_free(graph);
}

TEST(in_place_and_the_buffer_itself_is_waited_for)
{
    shoal_graph *graph = make_grouped();
    shoal_node *x = input(graph, "x");
    shoal_node *r = CALL(graph, "r", "neg", node_arg(x));
    shoal_node *sum = CALL(graph, "sum", "all_reduce_", node_arg(x), string_arg("sum"), group_arg("z"));
    shoal_node *wait = CALL(graph, "wait", "wait_tensor", node_arg(x));
    shoal_node *late = CALL(graph, "late", "neg", node_arg(x));
    struct effects *effects = build(graph);
    CHECK_BEFORE(effects, sum, "r");
    CHECK_BEFORE(effects, wait, "sum");
    CHECK_BEFORE(effects, late, "wait");
    CHECK(r != NULL);
    effects_free(effects);
    shoal_graph_free(graph);
}

TEST(one_wait_ends_the_reads_of_all)
{
    shoal_graph *graph = make_grouped();
    shoal_node *x = input(graph, "x");
    shoal_node *y = input(graph, "y");
    shoal_arg items[] = {node_arg(x), node_arg(y)};
    shoal_node *sums =
        CALL(graph, "sums", "all_reduce_coalesced", list_arg(items, 2), string_arg("sum"), group_arg("z"));
    shoal_node *g0 = CALL(graph, "g0", "getitem", node_arg(sums), int_arg(0));
    shoal_node *g1 = CALL(graph, "g1", "getitem", node_arg(sums), int_arg(1));
    shoal_node *w0 = CALL(graph, "w0", "wait_tensor", node_arg(g0));
    shoal_node *w1 = CALL(graph, "w1", "wait_tensor", node_arg(g1));
    shoal_node *w = CALL(graph, "w", "neg_", node_arg(y));
    struct effects *effects = build(graph);
    CHECK_STRING(accesses(effects, sums), "0r 1r 2c 3c");
    CHECK_STRING(accesses(effects, w0), "2rw 0r 1r");
    CHECK_STRING(accesses(effects, w1), "3rw");
    CHECK_BEFORE(effects, w0, "");
    CHECK_BEFORE(effects, w1, "");
    CHECK_BEFORE(effects, w, "w0,sums");
    effects_free(effects);
    shoal_graph_free(graph);
}

TEST(starts_of_a_group_keep_their_order)
{
    shoal_graph *graph = make_grouped();
    shoal_node *x = input(graph, "x");
    shoal_node *y = input(graph, "y");
    shoal_node *s1 = CALL(graph, "s1", "all_reduce", node_arg(x), string_arg("sum"), group_arg("z"));
    shoal_node *s2 = CALL(graph, "s2", "all_gather_into_tensor", node_arg(x), group_arg("a"));
    shoal_node *s3 = CALL(graph, "s3", "broadcast", node_arg(y), int_arg(0), group_arg("z"));
    shoal_node *w3 = CALL(graph, "w3", "wait_tensor", node_arg(s3));
    shoal_node *w1 = CALL(graph, "w1", "wait_tensor", node_arg(s1));
    shoal_node *s4 = CALL(graph, "s4", "all_reduce", node_arg(w1), string_arg("sum"), group_arg("a"));
    shoal_node *s5 = CALL(graph, "s5", "all_reduce_", node_arg(y), string_arg("sum"), group_arg("z"));
    shoal_node *s6 = CALL(graph, "s6", "all_reduce_", node_arg(y), string_arg("sum"), group_arg("z"));
    struct effects *effects = build(graph);
    CHECK_BEFORE(effects, s1, "");
    CHECK_BEFORE(effects, s2, "");
    CHECK_BEFORE(effects, s3, "s1");
    CHECK_BEFORE(effects, s4, "s2");
    CHECK_BEFORE(effects, s5, "w3,s3");
    CHECK_BEFORE(effects, s6, "s5");
    /* What has another reason than the group stays: s3 reads what s5 writes, and s5 writes what s6 writes. */
    CHECK_STRICT(effects, s3, "");
    CHECK_STRICT(effects, s4, "");
    CHECK_STRICT(effects, s5, "w3,s3");
    CHECK_STRICT(effects, s6, "s5");
    CHECK_STRICT(NULL, s6, "");
    /* Waits have no order of their own. */
    CHECK_BEFORE(effects, w3, "");
    CHECK_BEFORE(effects, w1, "");
    effects_free(effects);
    shoal_graph_free(graph);
}

TEST(point_to_point)
{
    shoal_graph *graph = make_grouped();
    shoal_node *x = input(graph, "x");
    shoal_node *y = input(graph, "y");
    shoal_node *send = CALL(graph, "send", "isend", node_arg(x), int_arg(1), int_arg(0), group_arg("z"));
    shoal_node *recv = CALL(graph, "recv", "irecv", node_arg(y), int_arg(1), int_arg(0), group_arg("a"));
    shoal_node *sent = CALL(graph, "sent", "wait_tensor", node_arg(send));
    shoal_node *w = CALL(graph, "w", "neg_", node_arg(x));
    shoal_arg items[] = {node_arg(x), node_arg(y)};
    shoal_arg peers[] = {int_arg(1), int_arg(1)};
    shoal_node *batch = CALL(graph, "batch", "batch_p2p_ops", list_arg(items, 2), string_arg("isend irecv"),
                             list_arg(peers, 2), list_arg(peers, 2), group_arg("z"));
    shoal_node *item = CALL(graph, "item", "getitem", node_arg(batch), int_arg(0));
    shoal_node *got = CALL(graph, "got", "wait_tensor", node_arg(item));
    struct effects *effects = build(graph);
    CHECK_BEFORE(effects, recv, "send");
    CHECK_STRING(accesses(effects, sent), "2rw 0r");
    CHECK_BEFORE(effects, w, "sent,send");
    CHECK_STRING(accesses(effects, batch), "0r 1w 3c");
    CHECK_BEFORE(effects, batch, "w,recv,send");
    CHECK_STRICT(effects, batch, "w,recv"); /* recv stays behind send, whose side effect comes first */
    CHECK_STRING(accesses(effects, got), "3rw 0r");
    effects_free(effects);
    shoal_graph_free(graph);
}

/* A constant is received into: that is a write, although the result looks at the constant's twin. */
TEST(point_to_point_into_a_constant)
{
    shoal_graph *graph = make_grouped();
    shoal_node *c = NULL;
    CHECK_OK(shoal_scope_begin());
    CHECK_OK(shoal_graph_constant(graph, "c", shoal_full((int64_t[]){4, 4}, 2, 1, SHOAL_F32), &c));
    CHECK_OK(shoal_scope_end());
    shoal_node *x = input(graph, "x");
    shoal_node *read = CALL(graph, "read", "neg", node_arg(c));
    shoal_arg items[] = {node_arg(x), node_arg(c)};
    shoal_arg peers[] = {int_arg(1), int_arg(1)};
    shoal_node *batch = CALL(graph, "batch", "batch_p2p_ops", list_arg(items, 2), string_arg("isend irecv"),
                             list_arg(peers, 2), list_arg(peers, 2), group_arg("z"));
    struct effects *effects = build(graph);
    CHECK_STRING(accesses(effects, read), "0r 2c");
    CHECK_STRING(accesses(effects, batch), "1r 0w 3c");
    CHECK_BEFORE(effects, batch, "read");
    effects_free(effects);
    shoal_graph_free(graph);
}

TEST(copies_into_symmetric_memory_write_it)
{
    shoal_graph *graph = make_grouped();
    shoal_node *x = input(graph, "x");
    shoal_node *y = input(graph, "y");
    shoal_node *z = input(graph, "z");
    shoal_node *copy = CALL(graph, "copy", "one_shot_all_reduce_copy", node_arg(x), node_arg(y),
                            string_arg("sum"), group_arg("z"));
    shoal_node *out = CALL(graph, "out", "one_shot_all_reduce_copy_out", node_arg(z), node_arg(x),
                           node_arg(y), string_arg("sum"), group_arg("z"));
    struct effects *effects = build(graph);
    CHECK_STRING(accesses(effects, copy), "0rw 1r 3c");
    CHECK_STRING(accesses(effects, out), "2w 0rw 1r");
    CHECK_BEFORE(effects, out, "copy");
    effects_free(effects);
    shoal_graph_free(graph);
}

/* A gather into a buffer whose row is the input: the buffer is one storage, read and written until the wait. */
TEST(a_gather_from_a_row_of_its_own_buffer)
{
    shoal_graph *graph = make_grouped();
    shoal_node *x = input(graph, "x");
    shoal_arg shape = int_arg(32);
    shoal_node *buffer = CALL(graph, "buffer", "empty", list_arg(&shape, 1),
                              (shoal_arg){.kind = SHOAL_ARG_DTYPE, .as.dtype = SHOAL_F32});
    shoal_arg item = node_arg(x);
    shoal_arg rank = {.kind = SHOAL_ARG_RANK, .as.rank = {.group = "z", .factor = 1}};
    shoal_node *in =
        CALL(graph, "in", "all_gather_copy_in", node_arg(buffer), list_arg(&item, 1), int_arg(2), rank);
    shoal_node *row = CALL(graph, "row", "getitem", node_arg(in), int_arg(0));
    shoal_node *whole = CALL(graph, "whole", "getitem", node_arg(in), int_arg(1));
    shoal_node *gather =
        CALL(graph, "gather", "all_gather_into_tensor_out", node_arg(whole), node_arg(row), group_arg("z"));
    shoal_node *wait = CALL(graph, "wait", "wait_tensor", node_arg(gather));
    shoal_node *use = CALL(graph, "use", "neg", node_arg(buffer));
    shoal_node *w = CALL(graph, "w", "neg_", node_arg(x));
    struct effects *effects = build(graph);
    CHECK_INT(effects_n_storages(effects), 3);
    CHECK_STRING(accesses(effects, in), "1rw 0r");
    CHECK_STRING(accesses(effects, gather), "1rw");
    CHECK_BEFORE(effects, gather, "in");
    CHECK_STRING(accesses(effects, wait), "1rw");
    CHECK_BEFORE(effects, use, "wait");
    CHECK_BEFORE(effects, w, "in");
    effects_free(effects);
    shoal_graph_free(graph);
}

/* Two works on parts of one buffer: each wait ends its own. */
TEST(waits_find_their_start_through_views)
{
    shoal_graph *graph = make_grouped();
    shoal_node *buffer = input(graph, "buffer");
    shoal_node *x = input(graph, "x");
    shoal_node *y = input(graph, "y");
    shoal_node *pieces = CALL(graph, "pieces", "split", node_arg(buffer), int_arg(4));
    shoal_node *p0 = CALL(graph, "p0", "getitem", node_arg(pieces), int_arg(0));
    shoal_node *p1 = CALL(graph, "p1", "getitem", node_arg(pieces), int_arg(1));
    shoal_node *s0 = CALL(graph, "s0", "reduce_scatter_tensor_out", node_arg(p0), node_arg(x),
                          string_arg("sum"), group_arg("z"));
    shoal_node *s1 = CALL(graph, "s1", "reduce_scatter_tensor_out", node_arg(p1), node_arg(y),
                          string_arg("sum"), group_arg("a"));
    shoal_node *turned = CALL(graph, "turned", "transpose", node_arg(s0), int_arg(0), int_arg(1));
    shoal_node *w0 = CALL(graph, "w0", "wait_tensor", node_arg(turned));
    shoal_node *wx = CALL(graph, "wx", "neg_", node_arg(x));
    shoal_node *wy = CALL(graph, "wy", "neg_", node_arg(y));
    shoal_arg all[] = {node_arg(s1), node_arg(w0)};
    shoal_node *w1 = CALL(graph, "w1", "wait_tensors", list_arg(all, 2));
    struct effects *effects = build(graph);
    CHECK_BEFORE(effects, s1, "s0");
    CHECK_STRING(accesses(effects, w0), "0rw 1r");
    CHECK_BEFORE(effects, w0, "s1"); /* and s0 by its input */
    CHECK_BEFORE(effects, wx, "w0,s0");
    /* Its collective still runs here: the write waits for it by itself. */
    CHECK_BEFORE(effects, wy, "s1");
    CHECK_STRING(accesses(effects, w1), "0rw 2r");
    effects_free(effects);
    shoal_graph_free(graph);
}

/* Other nodes ------------------------------------------------------------------------------------------ */

static shoal_status run_nothing(shoal_op_call_context *context, const shoal_value *arguments,
                                shoal_tensor *const *outputs, size_t n_outputs)
{
    return SHOAL_OK;
}

static shoal_status meta_like(shoal_op_call_context *context, const shoal_value *arguments)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    return shoal_op_output(context, shoal_tensor_shape(self), shoal_tensor_n_dims(self),
                           shoal_tensor_dtype(self));
}

TEST(registered_side_effects_keep_their_order)
{
    shoal_op_definition definition = SHOAL_OP_DEFINITION_INIT;
    definition.name = "effects.tell";
    definition.signature = "tensor self -> tensor";
    definition.flags = SHOAL_OP_SIDE_EFFECT;
    definition.meta = meta_like;
    definition.kernel = run_nothing;
    size_t n_blocks = test_live_blocks();
    REQUIRE_OK(shoal_op_register(&definition, NULL));
    test_keep_blocks(test_live_blocks() - n_blocks);
    shoal_graph *graph = make_grouped();
    shoal_node *x = input(graph, "x");
    shoal_node *y = input(graph, "y");
    shoal_node *t1 = CALL(graph, "t1", "effects.tell", node_arg(x));
    shoal_node *n = CALL(graph, "n", "neg", node_arg(x));
    shoal_node *t2 = CALL(graph, "t2", "effects.tell", node_arg(y));
    struct effects *effects = build(graph);
    CHECK_BEFORE(effects, t2, "t1");
    CHECK(!effects_is_pure(t1));
    CHECK(effects_is_pure(n));
    effects_free(effects);
    shoal_graph_free(graph);
}

TEST(opaque_calls_read)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_graph *graph = make_grouped();
    shoal_node *x = input(graph, "x");
    shoal_node *opaque = NULL;
    shoal_tensor *like = shoal_empty_on((int64_t[]){3}, 1, SHOAL_F32, SHOAL_META);
    shoal_arg arg = node_arg(x);
    CHECK_OK(shoal_graph_opaque(graph, "aten.mystery", &arg, 1, &like, 1, false, "m", &opaque));
    shoal_node *w = CALL(graph, "w", "neg_", node_arg(x));
    struct effects *effects = build(graph);
    CHECK_STRING(accesses(effects, opaque), "0r 1c");
    CHECK_BEFORE(effects, w, "m");
    CHECK(effects_is_pure(opaque));
    effects_free(effects);
    shoal_graph_free(graph);
    CHECK_OK(shoal_scope_end());
}

TEST(what_may_go)
{
    shoal_graph *graph = make_grouped();
    shoal_node *x = input(graph, "x");
    CHECK(!effects_is_pure(x));
    CHECK(effects_is_pure(CALL(graph, NULL, "neg", node_arg(x))));
    CHECK(effects_is_pure(CALL(graph, NULL, "split", node_arg(x), int_arg(2))));
    CHECK(effects_is_pure(CALL(graph, NULL, "all_reduce", node_arg(x), string_arg("sum"), group_arg("z"))));
    CHECK(!effects_is_pure(CALL(graph, NULL, "all_reduce_", node_arg(x), string_arg("sum"), group_arg("z"))));
    CHECK(!effects_is_pure(CALL(graph, NULL, "wait_tensor", node_arg(x))));
    CHECK(!effects_is_pure(CALL(graph, NULL, "copy_", node_arg(x), node_arg(x))));
    CHECK(!effects_is_pure(CALL(graph, NULL, "isend", node_arg(x), int_arg(1), int_arg(0), group_arg("z"))));
    CHECK(!effects_is_pure(CALL(graph, NULL, "irecv", node_arg(x), int_arg(1), int_arg(0), group_arg("z"))));
    shoal_arg arg = node_arg(x);
    shoal_node *out = NULL;
    CHECK_OK(shoal_graph_output(graph, &arg, &out));
    CHECK(!effects_is_pure(out));
    shoal_graph_free(graph);
}

/* Nodes that came after, and those that are gone. */
TEST(a_graph_that_has_changed)
{
    shoal_graph *graph = make_grouped();
    shoal_node *x = input(graph, "x");
    shoal_node *gone = CALL(graph, "gone", "neg_", node_arg(x));
    shoal_node *w = CALL(graph, "w", "neg_", node_arg(x));
    struct effects *effects = build(graph);
    CHECK_BEFORE(effects, w, "gone");
    shoal_node *newer = CALL(graph, "newer", "neg_", node_arg(x));
    CHECK_BEFORE(effects, newer, "");
    CHECK_STRING(accesses(effects, newer), "");
    effects_free(effects);
    CHECK_OK(shoal_node_erase(gone));
    effects = build(graph);
    CHECK_BEFORE(effects, w, "");
    CHECK_BEFORE(effects, newer, "w");
    effects_free(effects);
    effects_free(NULL);
    shoal_graph_free(graph);
}

static shoal_status build_and_free(void *context)
{
    struct effects *effects = NULL;
    shoal_status status = effects_build(context, &effects);
    effects_free(effects);
    return status;
}

TEST(memory_may_be_missing)
{
    shoal_graph *graph = make_grouped();
    shoal_node *x = input(graph, "x");
    for (int i = 0; i < 20; i++) {
        shoal_node *sum = CALL(graph, "sum", "all_reduce", node_arg(x), string_arg("sum"), group_arg("z"));
        CALL(graph, "wait", "wait_tensor", node_arg(sum));
        CALL(graph, "w", "neg_", node_arg(x));
    }
    CHECK(test_sweep_allocations(build_and_free, graph) > 8);
    shoal_graph_free(graph);
}

/* An empty graph, and one with many readers between writes: as many edges as there are reads. */
TEST(many_nodes)
{
    enum {
        N = 50000
    };
    shoal_graph *graph = make_grouped();
    struct effects *effects = build(graph);
    CHECK_INT(effects_n_storages(effects), 0);
    effects_free(effects);
    shoal_node *x = input(graph, "x");
    const shoal_op *neg = NULL;
    const shoal_op *neg_ = NULL;
    CHECK_OK(shoal_op_find("neg", &neg));
    CHECK_OK(shoal_op_find("neg_", &neg_));
    shoal_arg arg = node_arg(x);
    shoal_node *w = NULL;
    for (int i = 0; i < N && !test_has_failed(); i++) {
        CHECK_OK(shoal_graph_call(graph, i % 100 == 99 ? neg_ : neg, &arg, 1, "n", &w));
    }
    effects = build(graph);
    shoal_node *const *nodes;
    size_t count;
    size_t n_edges = 0;
    for (shoal_node *node = shoal_graph_first(graph); node; node = shoal_node_next(node)) {
        effects_before(effects, node, &nodes, &count);
        n_edges += count;
    }
    CHECK_INT(n_edges, N / 100 * 99 + (N / 100 - 1) * 99);
    effects_free(effects);
    shoal_graph_free(graph);
}

/* Random programs: every pair that conflicts is ordered, directly or by others. ------------------------- */

enum {
    N_STEPS = 40,
    N_BUFFERS = 4
};

struct step {
    shoal_node *node;
    int written; /* buffer, or -1 */
    int read[2]; /* or -1 */
};

static bool conflicts(const struct step *a, const struct step *b)
{
    for (int i = 0; i < 2; i++) {
        if ((a->written >= 0 && a->written == b->read[i]) || (b->written >= 0 && b->written == a->read[i])) {
            return true;
        }
    }
    return a->written >= 0 && a->written == b->written;
}

/* Marks in `is_before` all that come before node i, by inputs and edges. */
static void mark_before(const struct effects *effects, const struct step *steps, int i,
                        bool is_before[][N_STEPS])
{
    shoal_node *const *nodes;
    size_t count;
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 0) {
            nodes = shoal_node_inputs(steps[i].node, &count);
        } else {
            effects_before(effects, steps[i].node, &nodes, &count);
        }
        for (size_t k = 0; k < count; k++) {
            for (int j = 0; j < i; j++) {
                if (steps[j].node == nodes[k]) {
                    is_before[i][j] = true;
                    for (int m = 0; m < j; m++) {
                        is_before[i][m] |= is_before[j][m];
                    }
                }
            }
        }
    }
}

TEST(random_programs_have_all_conflicts_ordered)
{
    struct test_random random = test_random_begin(12);
    for (int round = 0; round < 50 && !test_has_failed(); round++) {
        static bool is_before[N_STEPS][N_STEPS];
        struct step steps[N_STEPS];
        shoal_graph *graph = make_grouped();
        shoal_node *buffers[N_BUFFERS];
        memset(is_before, 0, sizeof is_before);
        for (int i = 0; i < N_BUFFERS; i++) {
            buffers[i] = input(graph, "x");
        }
        for (int i = 0; i < N_STEPS; i++) {
            int a = (int)test_random_below(&random, N_BUFFERS);
            int b = (int)test_random_below(&random, N_BUFFERS);
            switch (test_random_below(&random, 3)) {
            case 0:
                steps[i] = (struct step){
                    CALL(graph, "n", "add", node_arg(buffers[a]), node_arg(buffers[b])), -1, {a, b}};
                break;
            case 1:
                steps[i] = (struct step){
                    CALL(graph, "n", "add_", node_arg(buffers[a]), node_arg(buffers[b])), a, {a, b}};
                break;
            default:
                steps[i] = (struct step){
                    CALL(graph, "n", "copy_", node_arg(buffers[a]), node_arg(buffers[b])), a, {b, -1}};
            }
        }
        struct effects *effects = build(graph);
        for (int i = 0; i < N_STEPS; i++) {
            mark_before(effects, steps, i, is_before);
            for (int j = 0; j < i; j++) {
                if (conflicts(&steps[i], &steps[j]) && !is_before[i][j]) {
                    test_failed(__FILE__, __LINE__, "step %d may come before %d", i, j);
                }
            }
        }
        effects_free(effects);
        shoal_graph_free(graph);
    }
}
