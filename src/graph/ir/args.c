/* SPDX-License-Identifier: MIT */
/* Arguments are trees of limited depth, so functions that walk over them may recurse. */
#include "graph/ir/args.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/nearest.h"
#include "base/try.h"
#include "tensor/dtype.h"

void graph_visit_arg(const shoal_arg *arg, graph_visit visit, void *context)
{
    if (arg->kind == SHOAL_ARG_NODE) {
        visit(context, arg->as.node);
    }
    for (size_t i = 0; arg->kind == SHOAL_ARG_LIST && i < arg->as.list.count; i++) {
        graph_visit_arg(&arg->as.list.items[i], visit, context);
    }
}

/* Checking --------------------------------------------------------------------------------------------- */

/* The node whose arguments are checked. */
struct check {
    const struct shoal_graph *graph;
    const struct shoal_node *user;
};

static shoal_status check_node(const struct check *check, const struct shoal_node *node)
{
    if (!node) {
        return error_set(SHOAL_ERR_INVALID, "node is NULL");
    }
    if (node->graph != check->graph) {
        return error_set(SHOAL_ERR_INVALID, "node %s belongs to another graph", node->name);
    }
    if (node->is_erased) {
        return error_set(SHOAL_ERR_INVALID, "node %s was erased", node->name);
    }
    if (node == check->user) {
        return error_set(SHOAL_ERR_INVALID, "node %s would use itself", node->name);
    }
    if (node->kind == SHOAL_NODE_OUTPUT) {
        return error_set(SHOAL_ERR_INVALID, "node %s is the output, which has no value", node->name);
    }
    return SHOAL_OK;
}

static shoal_status check_group(const struct shoal_graph *graph, const char *name)
{
    if (!name) {
        return error_set(SHOAL_ERR_INVALID, "group is NULL");
    }
    if (graph_find_group(graph, name)) {
        return SHOAL_OK;
    }
    struct nearest nearest;
    char words[NEAREST_BYTES];
    nearest_begin(&nearest, name);
    for (const struct graph_group *group = graph->groups; group; group = group->next) {
        nearest_add(&nearest, group->name);
    }
    nearest_describe(&nearest, "groups", words);
    return error_set(SHOAL_ERR_INVALID, "the graph has no group \"%.64s\"; %s", name, words);
}

static shoal_status check_arg(const struct check *check, const shoal_arg *arg, int depth);

static shoal_status check_list(const struct check *check, const shoal_arg *list, int depth)
{
    const shoal_arg *items = list->as.list.items;
    if (list->as.list.count > 0 && !items) {
        return error_set(SHOAL_ERR_INVALID, "items is NULL, but count is %zu", list->as.list.count);
    }
    if (depth == ARGS_MAX_DEPTH) {
        return error_set(SHOAL_ERR_INVALID, "lists are nested more than %d deep", ARGS_MAX_DEPTH);
    }
    for (size_t i = 0; i < list->as.list.count; i++) {
        shoal_status status = check_arg(check, &items[i], depth + 1);
        if (status != SHOAL_OK) {
            return error_prefix(status, "item %zu", i);
        }
    }
    return SHOAL_OK;
}

/* `depth` counts the lists around it. */
static shoal_status check_arg(const struct check *check, const shoal_arg *arg, int depth)
{
    switch (arg->kind) {
    case SHOAL_ARG_NONE:
    case SHOAL_ARG_INT:
    case SHOAL_ARG_FLOAT:
    case SHOAL_ARG_BOOL:
        return SHOAL_OK;
    case SHOAL_ARG_NODE:
        return check_node(check, arg->as.node);
    case SHOAL_ARG_RANK:
        return check_group(check->graph, arg->as.rank.group);
    case SHOAL_ARG_DTYPE:
        return dtype_check(arg->as.dtype, "dtype");
    case SHOAL_ARG_STRING:
        return arg->as.string ? SHOAL_OK : error_set(SHOAL_ERR_INVALID, "string is NULL");
    case SHOAL_ARG_GROUP:
        return check_group(check->graph, arg->as.string);
    case SHOAL_ARG_LIST:
        return check_list(check, arg, depth);
    }
    return error_set(SHOAL_ERR_INVALID, "%d is not a kind of argument", (int)arg->kind);
}

shoal_status args_check(const struct shoal_graph *graph, const struct shoal_node *user, const shoal_op *op,
                        const shoal_arg *args, size_t n_args)
{
    struct check check = {.graph = graph, .user = user};
    if (n_args > 0 && !args) {
        return error_set(SHOAL_ERR_INVALID, "args is NULL, but n_args is %zu", n_args);
    }
    for (size_t i = 0; i < n_args; i++) {
        shoal_status status = check_arg(&check, &args[i], 0);
        if (status != SHOAL_OK) {
            return op && i < op->n_params ? error_prefix(status, "%s", op->params[i].name)
                                          : error_prefix(status, "argument %zu", i);
        }
    }
    return SHOAL_OK;
}

shoal_status args_check_output(const shoal_arg *arg)
{
    if (arg->kind != SHOAL_ARG_NODE && arg->kind != SHOAL_ARG_NONE && arg->kind != SHOAL_ARG_LIST) {
        return error_set(SHOAL_ERR_INVALID,
                         "an output is a node, none or a list of them, not an argument of kind %d",
                         (int)arg->kind);
    }
    for (size_t i = 0; arg->kind == SHOAL_ARG_LIST && i < arg->as.list.count; i++) {
        TRY(args_check_output(&arg->as.list.items[i]));
    }
    return SHOAL_OK;
}

/* Completing ------------------------------------------------------------------------------------------- */

static shoal_arg make_default(const struct op_param *param)
{
    const shoal_value *value = &param->default_value;
    shoal_arg arg = {.kind = SHOAL_ARG_NONE};
    switch (value->kind) {
    case SHOAL_VALUE_INT:
        arg.kind = SHOAL_ARG_INT;
        arg.as.integer = value->as.integer;
        break;
    case SHOAL_VALUE_FLOAT:
        arg.kind = SHOAL_ARG_FLOAT;
        arg.as.real = value->as.real;
        break;
    case SHOAL_VALUE_BOOL:
        arg.kind = SHOAL_ARG_BOOL;
        arg.as.boolean = value->as.boolean;
        break;
    case SHOAL_VALUE_DTYPE:
        arg.kind = SHOAL_ARG_DTYPE;
        arg.as.dtype = value->as.dtype;
        break;
    case SHOAL_VALUE_STRING:
        arg.kind = SHOAL_ARG_STRING;
        arg.as.string = value->as.string;
        break;
    case SHOAL_VALUE_INTS:
    case SHOAL_VALUE_TENSORS:
        arg.kind = SHOAL_ARG_LIST; /* parameters of these types have no default but an empty list */
        arg.as.list.items = NULL;
        arg.as.list.count = 0;
        break;
    case SHOAL_VALUE_NONE:
    case SHOAL_VALUE_TENSOR:
    case SHOAL_VALUE_GROUP:
        break;
    }
    return arg;
}

shoal_status args_complete(const shoal_op *op, const shoal_arg *args, size_t n_args,
                           shoal_arg complete[OP_MAX_PARAMS])
{
    if (n_args > op->n_params) {
        return error_set(SHOAL_ERR_INVALID, "%zu arguments are given for %zu parameters (%s)", n_args,
                         op->n_params, op->signature);
    }
    if (n_args > 0 && !args) {
        return error_set(SHOAL_ERR_INVALID, "args is NULL, but n_args is %zu", n_args);
    }
    for (size_t i = 0; i < op->n_params; i++) {
        const struct op_param *param = &op->params[i];
        bool is_given = i < n_args && (args[i].kind != SHOAL_ARG_NONE || !param->has_default);
        if (!is_given && !param->has_default) {
            return error_set(SHOAL_ERR_INVALID, "%s is missing (%s)", param->name, op->signature);
        }
        complete[i] = is_given ? args[i] : make_default(param);
    }
    return SHOAL_OK;
}

/* Copying ---------------------------------------------------------------------------------------------- */

static shoal_status copy_string(struct arena *arena, const char **string)
{
    *string = arena_string(arena, *string);
    return *string ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

shoal_status args_copy(struct arena *arena, const shoal_arg *args, size_t n_args, const shoal_arg **copy_out)
{
    shoal_arg *copy = arena_take(arena, n_args, sizeof(*copy));
    if (!copy) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n_args; i++) {
        copy[i] = args[i];
        if (args[i].kind == SHOAL_ARG_STRING || args[i].kind == SHOAL_ARG_GROUP) {
            TRY(copy_string(arena, &copy[i].as.string));
        } else if (args[i].kind == SHOAL_ARG_RANK) {
            TRY(copy_string(arena, &copy[i].as.rank.group));
        } else if (args[i].kind == SHOAL_ARG_LIST) {
            TRY(args_copy(arena, args[i].as.list.items, args[i].as.list.count, &copy[i].as.list.items));
        }
    }
    *copy_out = copy;
    return SHOAL_OK;
}

shoal_status args_find(const shoal_arg *args, size_t n_args, const struct shoal_node *node,
                       struct args_places *places)
{
    for (size_t i = 0; i < n_args; i++) {
        if (args[i].kind == SHOAL_ARG_NODE && args[i].as.node == node) {
            TRY(mem_grow((void **)&places->places, &places->capacity, places->n_places + 1,
                         sizeof(places->places[0])));
            /* Arguments are const for those who read them; this one lies in the arena. */
            places->places[places->n_places++] = (shoal_arg *)&args[i];
        } else if (args[i].kind == SHOAL_ARG_LIST) {
            TRY(args_find(args[i].as.list.items, args[i].as.list.count, node, places));
        }
    }
    return SHOAL_OK;
}
