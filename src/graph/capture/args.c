/* SPDX-License-Identifier: MIT */
/* Turns arguments of calls into arguments of nodes. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/lane/handles.h"
#include "graph/capture/capture.h"
#include "tensor/scope.h"

/* Groups ----------------------------------------------------------------------------------------------- */

enum {
    NAME_BYTES = 128
};

/* Takes the group's name, replaces characters other than letters and digits by '_', and adds a number if it is
   taken. */
static void choose_name(const struct shoal_graph *graph, const shoal_group *group, char name[NAME_BYTES])
{
    char legal[NAME_BYTES / 2];
    size_t length = 0;
    for (const char *from = shoal_group_name(group); *from && length + 1 < sizeof legal; from++) {
        bool is_letter = (*from >= 'a' && *from <= 'z') || (*from >= 'A' && *from <= 'Z');
        legal[length++] = is_letter || (*from >= '0' && *from <= '9') ? *from : '_';
    }
    legal[length] = '\0';
    (void)snprintf(name, NAME_BYTES, "%s", length > 0 ? legal : "group");
    for (size_t number = 2; graph_find_group(graph, name); number++) {
        (void)snprintf(name, NAME_BYTES, "%s_%zu", length > 0 ? legal : "group", number);
    }
}

static shoal_status add_group(struct shoal_graph *graph, shoal_group *group)
{
    char name[NAME_BYTES];
    int n_ranks = shoal_group_n_ranks(group);
    int *ranks = mem_alloc((size_t)n_ranks * sizeof(*ranks));
    if (!ranks) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (int i = 0; i < n_ranks; i++) {
        ranks[i] = shoal_group_world_rank(group, i);
    }
    choose_name(graph, group, name);
    shoal_status status = shoal_graph_add_group(graph, name, ranks, 1, (size_t)n_ranks);
    mem_free(ranks);
    return status;
}

/* Finds the row of a group, or adds one. A linear search is enough: a step uses few groups. */
static shoal_status find_row(struct shoal_graph *graph, shoal_group *group, const char **name_out)
{
    struct graph_group *row = graph->groups;
    while (row && row->bound != group) {
        row = row->next;
    }
    if (!row) {
        TRY(add_group(graph, group));
        for (row = graph->groups; row->next;) {
            row = row->next;
        }
        row->bound = group_ref(group);
    }
    *name_out = row->name;
    return SHOAL_OK;
}

/* Lists ------------------------------------------------------------------------------------------------ */

static shoal_arg *alloc_items(size_t count)
{
    return scope_alloc(scope_current(), count * sizeof(shoal_arg));
}

static shoal_status make_tensors(struct capture *capture, const shoal_value *value, shoal_arg *arg)
{
    shoal_arg *items = alloc_items(value->count);
    if (!items) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < value->count; i++) {
        items[i].kind = SHOAL_ARG_NODE;
        TRY(capture_find_node(capture, value->as.tensors[i], &items[i].as.node));
    }
    *arg = (shoal_arg){.kind = SHOAL_ARG_LIST, .as.list = {.items = items, .count = value->count}};
    return SHOAL_OK;
}

static shoal_status make_ints(const shoal_value *value, shoal_arg *arg)
{
    shoal_arg *items = alloc_items(value->count);
    if (!items) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < value->count; i++) {
        items[i] = (shoal_arg){.kind = SHOAL_ARG_INT, .as.integer = value->as.integers[i]};
    }
    *arg = (shoal_arg){.kind = SHOAL_ARG_LIST, .as.list = {.items = items, .count = value->count}};
    return SHOAL_OK;
}

/* Arguments -------------------------------------------------------------------------------------------- */

static shoal_status make_arg(struct capture *capture, const shoal_value *value, shoal_arg *arg)
{
    *arg = (shoal_arg){.kind = SHOAL_ARG_NONE};
    switch (value->kind) {
    case SHOAL_VALUE_NONE:
        return SHOAL_OK;
    case SHOAL_VALUE_TENSOR:
        if (!value->as.tensor) {
            return SHOAL_OK; /* an absent one */
        }
        arg->kind = SHOAL_ARG_NODE;
        return capture_find_node(capture, value->as.tensor, &arg->as.node);
    case SHOAL_VALUE_TENSORS:
        return make_tensors(capture, value, arg);
    case SHOAL_VALUE_INT:
        *arg = (shoal_arg){.kind = SHOAL_ARG_INT, .as.integer = value->as.integer};
        return SHOAL_OK;
    case SHOAL_VALUE_INTS:
        return make_ints(value, arg);
    case SHOAL_VALUE_FLOAT:
        *arg = (shoal_arg){.kind = SHOAL_ARG_FLOAT, .as.real = value->as.real};
        return SHOAL_OK;
    case SHOAL_VALUE_BOOL:
        *arg = (shoal_arg){.kind = SHOAL_ARG_BOOL, .as.boolean = value->as.boolean};
        return SHOAL_OK;
    case SHOAL_VALUE_DTYPE:
        *arg = (shoal_arg){.kind = SHOAL_ARG_DTYPE, .as.dtype = value->as.dtype};
        return SHOAL_OK;
    case SHOAL_VALUE_STRING:
        *arg = (shoal_arg){.kind = SHOAL_ARG_STRING, .as.string = value->as.string};
        return SHOAL_OK;
    case SHOAL_VALUE_GROUP:
        arg->kind = SHOAL_ARG_GROUP;
        return find_row(capture->graph, value->as.group, &arg->as.string);
    }
    return error_set(SHOAL_ERR_INTERNAL, "%d is not a kind of value", (int)value->kind);
}

shoal_status capture_make_args(struct capture *capture, const shoal_op *op, const shoal_value *arguments,
                               shoal_arg args[OP_MAX_PARAMS])
{
    for (size_t i = 0; i < op->n_params; i++) {
        shoal_status status = make_arg(capture, &arguments[i], &args[i]);
        if (status != SHOAL_OK) {
            return error_prefix(status, "%s", op->params[i].name);
        }
    }
    return SHOAL_OK;
}
