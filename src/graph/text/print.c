/* SPDX-License-Identifier: MIT */
/* Prints a graph as text (docs/graph.md). All arguments are written, also those with a default value. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/try.h"
#include "graph/text/constant_text.h"
#include "graph/text/float_text.h"
#include "graph/ir/graph.h"
#include "graph/text/parse.h"
#include "graph/text/sharing.h"
#include "graph/text/writer.h"

static void print_groups(struct writer *writer, const shoal_graph *graph)
{
    for (const struct graph_group *group = graph->groups; group; group = group->next) {
        writer_add_string(writer, "    group ");
        writer_add_name(writer, '@', group->name);
        writer_add_string(writer, " = [");
        for (size_t i = 0; i < group->n_lists; i++) {
            writer_add_string(writer, i > 0 ? ", [" : "[");
            for (size_t j = 0; j < group->size; j++) {
                writer_add_string(writer, j > 0 ? ", " : "");
                writer_add_int(writer, group->ranks[i * group->size + j]);
            }
            writer_add(writer, "]", 1);
        }
        writer_add_string(writer, "]\n");
    }
}

static void print_rank(struct writer *writer, const shoal_arg *arg)
{
    int64_t offset = arg->as.rank.offset;
    writer_add_string(writer, "rank(");
    writer_add_name(writer, '@', arg->as.rank.group);
    writer_add(writer, ")", 1);
    if (arg->as.rank.factor != 1) {
        writer_add_string(writer, " * ");
        writer_add_int(writer, arg->as.rank.factor);
    }
    if (offset != 0) {
        uint64_t magnitude = offset < 0 ? 0 - (uint64_t)offset : (uint64_t)offset;
        writer_add_format(writer, " %c %" PRIu64, offset < 0 ? '-' : '+', magnitude);
    }
}

static void print_real(struct writer *writer, double value)
{
    char text[FLOAT_TEXT_BYTES];
    uint64_t bits;
    if (isnan(value) && !float_text_is_plain_nan(SHOAL_F64, &value)) {
        memcpy(&bits, &value, sizeof bits);
        writer_add_format(writer, "nan(0x%016" PRIx64 ")", bits);
        return;
    }
    writer_add_string(writer, float_text_write(text, SHOAL_F64, value));
}

/* Recurses for lists, whose depth is limited (graph/ir/args.h). */
static void print_arg(struct writer *writer, const shoal_arg *arg)
{
    switch (arg->kind) {
    case SHOAL_ARG_NONE:
        writer_add_string(writer, "none");
        break;
    case SHOAL_ARG_NODE:
        writer_add_name(writer, '%', arg->as.node->name);
        break;
    case SHOAL_ARG_INT:
        writer_add_int(writer, arg->as.integer);
        break;
    case SHOAL_ARG_RANK:
        print_rank(writer, arg);
        break;
    case SHOAL_ARG_FLOAT:
        print_real(writer, arg->as.real);
        break;
    case SHOAL_ARG_BOOL:
        writer_add_string(writer, arg->as.boolean ? "true" : "false");
        break;
    case SHOAL_ARG_DTYPE:
        writer_add_string(writer, shoal_dtype_name(arg->as.dtype));
        break;
    case SHOAL_ARG_STRING:
        writer_add_quoted(writer, arg->as.string);
        break;
    case SHOAL_ARG_GROUP:
        writer_add_name(writer, '@', arg->as.string);
        break;
    case SHOAL_ARG_LIST:
        writer_add(writer, "[", 1);
        for (size_t i = 0; i < arg->as.list.count; i++) {
            writer_add_string(writer, i > 0 ? ", " : "");
            print_arg(writer, &arg->as.list.items[i]);
        }
        writer_add(writer, "]", 1);
        break;
    }
}

static void print_call(struct writer *writer, const shoal_node *node)
{
    if (node->op) {
        writer_add_string(writer, node->target);
    } else {
        writer_add_string(writer, "opaque ");
        writer_add_quoted(writer, node->target);
    }
    writer_add(writer, "(", 1);
    for (size_t i = 0; i < node->n_args; i++) {
        writer_add_string(writer, i > 0 ? ", " : "");
        print_arg(writer, &node->args[i]);
    }
    writer_add(writer, ")", 1);
    if (node->unit) {
        writer_add_string(writer, " unit ");
        writer_add_quoted(writer, node->unit);
    }
}

static void print_output(struct writer *writer, const shoal_node *node)
{
    if (strcmp(node->name, PARSE_OUTPUT_NAME) != 0) {
        writer_add_name(writer, '%', node->name);
        writer_add_string(writer, " = ");
    }
    writer_add_string(writer, "return ");
    print_arg(writer, &node->args[0]);
}

static void print_node(struct writer *writer, const struct sharing *sharing, const shoal_node *node)
{
    writer_add_string(writer, "    ");
    if (node->kind == SHOAL_NODE_OUTPUT) {
        print_output(writer, node);
        writer_add(writer, "\n", 1);
        return;
    }
    writer_add_name(writer, '%', node->name);
    writer_add_string(writer, " = ");
    if (node->kind == SHOAL_NODE_CALL) {
        print_call(writer, node);
    } else if (node->kind == SHOAL_NODE_CONSTANT) {
        writer_add_string(writer, "constant");
        constant_text_print(writer, node, sharing_of(sharing, node));
    } else {
        writer_add_string(writer, "placeholder");
    }
    writer_add_string(writer, " : ");
    /* What an op gives follows from its arguments, strides included. */
    writer_add_values(writer, node, /*has_strides=*/!node->op, SIZE_MAX);
    writer_add(writer, "\n", 1);
}

shoal_status shoal_graph_print(const shoal_graph *graph, shoal_graph_write write, void *context)
{
    struct writer writer;
    struct sharing sharing = {.n_sharers = 0};
    error_clear();
    TRY(writer_begin(&writer, "graph_print", graph, write, context));
    writer.status = sharing_find(&sharing, graph);
    writer_add_string(&writer, "graph {\n");
    print_groups(&writer, graph);
    for (const shoal_node *node = graph->first; node && writer.status == SHOAL_OK; node = node->next) {
        print_node(&writer, &sharing, node);
    }
    writer_add_string(&writer, "}\n");
    sharing_free(&sharing);
    return writer_end(&writer);
}
