/* SPDX-License-Identifier: MIT */
/* Draws a graph for Graphviz: a box for each node, with its name, what it calls and the type of its value; and a legend
   of the colours. */
#include "graph/text/dot.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/try.h"
#include "graph/ir/graph.h"
#include "graph/text/writer.h"

/* A box shows at most so many types of a list. */
#define MAX_SHOWN_TYPES 4

/* Adds text inside quotes. Graphviz takes a backslash for the beginning of an escape. */
static void add_label(struct writer *writer, const char *text)
{
    for (const char *c = text; *c; c++) {
        if (*c == '"' || *c == '\\') {
            writer_add(writer, "\\", 1);
            writer_add(writer, c, 1);
        } else {
            writer_add(writer, (unsigned char)*c < 0x20 || *c == 0x7F ? "?" : c, 1);
        }
    }
}

static const char *colour_of(const shoal_node *node, bool is_marked)
{
    uint32_t flags = node_flags(node);
    if (is_marked) {
        return "yellow";
    }
    if (node->kind != SHOAL_NODE_CALL) {
        return "lightgrey";
    }
    if (flags & SHOAL_OP_COLLECTIVE) {
        return "lightsalmon"; /* a start */
    }
    if (flags & SHOAL_OP_WAIT) {
        return "lightblue";
    }
    return flags & SHOAL_OP_COMPUTE ? "palegreen" : "white";
}

static const char *describe_kind(const shoal_node *node)
{
    switch ((shoal_node_kind)node->kind) {
    case SHOAL_NODE_PLACEHOLDER:
        return "placeholder";
    case SHOAL_NODE_CONSTANT:
        return "constant";
    case SHOAL_NODE_OUTPUT:
        return "output";
    case SHOAL_NODE_CALL:
        break;
    }
    return node->target;
}

static void add_node(struct writer *writer, const shoal_node *node, bool is_marked)
{
    writer_add_format(writer, "    n%" PRIu32 " [label=\"%%", node->id);
    add_label(writer, node->name);
    writer_add_string(writer, "\\n");
    add_label(writer, describe_kind(node));
    if (node->kind != SHOAL_NODE_OUTPUT) {
        writer_add_string(writer, "\\n");
        writer_add_values(writer, node, /*has_strides=*/true, MAX_SHOWN_TYPES);
    }
    writer_add_format(writer, "\", fillcolor=%s];\n", colour_of(node, is_marked));
    for (size_t i = 0; i < node->n_inputs; i++) {
        writer_add_format(writer, "    n%" PRIu32 " -> n%" PRIu32 ";\n", node->inputs[i]->id, node->id);
    }
}

/* A box for each colour, apart from the graph. */
static void add_legend(struct writer *writer, const char *marked)
{
    static const struct {
        const char *colour;
        const char *what;
    } rows[] = {{"lightgrey", "input, constant or output"},
                {"lightsalmon", "starts communication"},
                {"lightblue", "waits for communication"},
                {"palegreen", "compute that can hide communication"},
                {"white", "other calls"}};
    writer_add_string(writer, "    subgraph cluster_legend {\n        label=\"legend\";\n");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        writer_add_format(writer, "        legend%zu [label=\"%s\", fillcolor=%s];\n", i, rows[i].what,
                          rows[i].colour);
    }
    if (marked) {
        writer_add_format(writer, "        legend_marked [label=\"%s\", fillcolor=yellow];\n", marked);
    }
    writer_add_string(writer, "    }\n");
}

shoal_status graph_print_dot_marked(const shoal_graph *graph, const struct dot_marks *marks,
                                    shoal_graph_write write, void *context)
{
    struct writer writer;
    TRY(writer_begin(&writer, "graph_print_dot", graph, write, context));
    writer_add_string(&writer, "digraph {\n    node [shape=box, style=filled, fontname=monospace];\n");
    for (const shoal_node *node = graph->first; node && writer.status == SHOAL_OK; node = node->next) {
        add_node(&writer, node, node->id < marks->n_marks && marks->is_marked[node->id]);
    }
    add_legend(&writer, marks->what);
    writer_add_string(&writer, "}\n");
    return writer_end(&writer);
}

shoal_status shoal_graph_print_dot(const shoal_graph *graph, shoal_graph_write write, void *context)
{
    error_clear();
    return graph_print_dot_marked(graph, &(struct dot_marks){.n_marks = 0}, write, context);
}
