/* SPDX-License-Identifier: MIT */
/* Changes nodes. Everything that can fail comes first; then all changes are made at once. */
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/try.h"
#include "graph/ir/args.h"
#include "graph/ir/captured.h"
#include "graph/ir/edit.h"
#include "graph/ir/observer.h"
#include "graph/ir/order.h"

/* Checks a node that was passed to a call. */
static shoal_status check_node(const char *argument, const struct shoal_node *node)
{
    if (!node) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL", argument);
    }
    return node->is_erased ? error_set(SHOAL_ERR_INVALID, "node %s was erased", node->name) : SHOAL_OK;
}

static shoal_status check_pair(const char *argument, const struct shoal_node *node,
                               const char *other_argument, const struct shoal_node *other)
{
    TRY(check_node(argument, node));
    TRY(check_node(other_argument, other));
    if (node->graph != other->graph) {
        return error_set(SHOAL_ERR_INVALID, "nodes %s and %s belong to different graphs", node->name,
                         other->name);
    }
    return SHOAL_OK;
}

static shoal_status finish(const char *call, shoal_status status)
{
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "%s", call);
}

/* Arguments -------------------------------------------------------------------------------------------- */

/* Checks the arguments for the kind of node. For an op, they are completed in `complete`. */
static shoal_status check_args(const struct shoal_node *node, const shoal_arg **args, size_t *n_args,
                               shoal_arg complete[OP_MAX_PARAMS])
{
    if (node->op) {
        TRY(args_complete(node->op, *args, *n_args, complete));
        *args = complete;
        *n_args = node->op->n_params;
    }
    TRY(args_check(node->graph, node, node->op, *args, *n_args));
    if (node->kind == SHOAL_NODE_OUTPUT) {
        return *n_args == 1
                   ? args_check_output(*args)
                   : error_set(SHOAL_ERR_INVALID, "%zu arguments are given, but an output has one", *n_args);
    }
    if (node->kind != SHOAL_NODE_CALL && *n_args > 0) {
        return error_set(SHOAL_ERR_INVALID, "%zu arguments are given, but the node is not a call", *n_args);
    }
    return SHOAL_OK;
}

static shoal_status set_args(struct shoal_node *node, const shoal_arg *args, size_t n_args)
{
    shoal_arg complete[OP_MAX_PARAMS];
    struct edit edit = {.node = node};
    TRY(check_args(node, &args, &n_args, complete));
    edit.n_args = n_args;
    TRY(args_copy(&node->graph->arena, args, n_args, &edit.args));
    struct arena scratch = {0};
    shoal_status status =
        uses_collect(node->graph, &scratch, node->input_capacity, edit.args, n_args, &edit.uses);
    if (status == SHOAL_OK) {
        status = edit_apply(node->graph, &edit, 1);
    }
    arena_free(&scratch);
    return status;
}

shoal_status shoal_node_set_args(shoal_node *node, const shoal_arg *args, size_t n_args)
{
    error_clear();
    shoal_status status = check_node("node", node);
    if (status != SHOAL_OK) {
        return finish("node_set_args", status);
    }
    status = set_args(node, args, n_args);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "node_set_args(%s)", node->name);
}

/* Replacing -------------------------------------------------------------------------------------------- */

/* A replacement. `old` is replaced by `other` in the arguments at once, and put back if something fails. */
struct replacement {
    struct shoal_node *old;
    struct shoal_node *other;
    struct edit *edits; /* one for each user */
    size_t n_edits;
    struct args_places places;
    struct arena scratch;
};

/* Finds the users that the filter accepts, and where they use `old`. `edits` has room for all users. */
static shoal_status find_users(struct replacement *replacement, shoal_node_filter filter, void *context)
{
    struct edit *edits = replacement->edits;
    size_t n_users = 0;
    for (const struct edge *edge = replacement->old->first_use; edge; edge = edge->next) {
        edits[n_users++].node = edge->user;
    }
    for (size_t i = 0; i < n_users; i++) {
        struct shoal_node *user = edits[i].node;
        if (filter && !filter(context, user)) {
            continue;
        }
        if (user == replacement->other) {
            return error_set(SHOAL_ERR_INVALID,
                             "node %s uses %s, and would use itself; a filter can leave it out", user->name,
                             replacement->old->name);
        }
        TRY(args_find(user->args, user->n_args, replacement->old, &replacement->places));
        edits[replacement->n_edits++] =
            (struct edit){.node = user, .args = user->args, .n_args = user->n_args};
    }
    return SHOAL_OK;
}

static void put_into_places(const struct args_places *places, struct shoal_node *node)
{
    for (size_t i = 0; i < places->n_places; i++) {
        places->places[i]->as.node = node;
    }
}

/* Applies the edits. The arguments have been replaced already. */
static shoal_status apply_edits(struct replacement *replacement)
{
    struct shoal_node *old = replacement->old;
    struct shoal_node *other = replacement->other;
    const struct origin *origins;
    for (size_t i = 0; i < replacement->n_edits; i++) {
        struct edit *edit = &replacement->edits[i];
        TRY(uses_collect(old->graph, &replacement->scratch, edit->node->input_capacity, edit->args,
                         edit->n_args, &edit->uses));
    }
    TRY(observer_make_replaced(old, other, &origins));
    TRY(edit_apply(old->graph, replacement->edits, replacement->n_edits));
    other->origins = origins;
    for (size_t i = 0; i < replacement->n_edits; i++) {
        observer_tell_replaced(old, other, replacement->edits[i].node);
    }
    return SHOAL_OK;
}

static shoal_status replace(struct replacement *replacement, shoal_node_filter filter, void *context)
{
    const struct shoal_node *old = replacement->old;
    const struct shoal_node *other = replacement->other;
    TRY(check_pair("old", old, "other", other));
    if (other->kind == SHOAL_NODE_OUTPUT) {
        return error_set(SHOAL_ERR_INVALID, "node %s is the output, which has no value", other->name);
    }
    if (old == other || old->n_users == 0) {
        return SHOAL_OK;
    }
    replacement->edits = mem_alloc_zeroed(old->n_users, sizeof(replacement->edits[0]));
    if (!replacement->edits) {
        return SHOAL_ERR_NO_MEMORY;
    }
    TRY(find_users(replacement, filter, context));
    if (replacement->n_edits == 0) {
        return SHOAL_OK;
    }
    put_into_places(&replacement->places, replacement->other);
    shoal_status status = apply_edits(replacement);
    if (status != SHOAL_OK) {
        put_into_places(&replacement->places, replacement->old);
    }
    return status;
}

shoal_status shoal_node_replace(shoal_node *old, shoal_node *other, shoal_node_filter filter, void *context,
                                size_t *n_changed_out)
{
    struct replacement replacement = {.old = old, .other = other};
    error_clear();
    shoal_status status = replace(&replacement, filter, context);
    if (n_changed_out) {
        *n_changed_out = status == SHOAL_OK ? replacement.n_edits : 0;
    }
    mem_free(replacement.edits);
    mem_free(replacement.places.places);
    arena_free(&replacement.scratch);
    return finish("node_replace", status);
}

/* Moving and erasing ----------------------------------------------------------------------------------- */

static shoal_status move(struct shoal_node *node, struct shoal_node *where, bool is_after)
{
    TRY(check_pair("node", node, "where", where));
    if (node != where) {
        order_remove(node);
        order_insert_after(node->graph, node, is_after ? where : where->prev);
    }
    return SHOAL_OK;
}

shoal_status shoal_node_move_before(shoal_node *node, shoal_node *where)
{
    error_clear();
    return finish("node_move_before", move(node, where, /*is_after=*/false));
}

shoal_status shoal_node_move_after(shoal_node *node, shoal_node *where)
{
    error_clear();
    return finish("node_move_after", move(node, where, /*is_after=*/true));
}

static shoal_status fail_used(const struct shoal_node *node)
{
    char names[160];
    struct text text = text_begin(names, sizeof(names));
    for (const struct edge *edge = node->first_use; edge && text.length + 1 < text.bytes; edge = edge->next) {
        text_add_name(&text, text.length > 0 ? ", " : "", edge->user->name);
    }
    return error_set(SHOAL_ERR_STATE, "node %s has %zu user%s: %s", node->name, node->n_users,
                     node->n_users == 1 ? "" : "s", names);
}

/* Moves the insertion point away from a node that is erased, to between the same neighbours. */
static void move_point_from(const struct shoal_node *node)
{
    shoal_insert_point *point = &node->graph->point;
    if (point->node == node) {
        point->node = point->is_after ? node->prev : node->next;
        point->is_after = point->is_after == (point->node != NULL);
    }
}

void graph_erase(struct shoal_node *node)
{
    observer_tell_erased(node);
    captured_forget_input(node);
    move_point_from(node);
    uses_drop(node);
    order_remove(node);
    for (size_t i = 0; i < node->n_values; i++) {
        shoal_tensor_unref(node->values[i]);
    }
    node->n_values = 0;
    node->n_args = 0;
    node->is_erased = true;
    if (node->graph->output == node) {
        node->graph->output = NULL;
    }
}

static shoal_status erase(struct shoal_node *node)
{
    TRY(check_node("node", node));
    if (node->n_users > 0) {
        return fail_used(node);
    }
    graph_erase(node);
    return SHOAL_OK;
}

shoal_status shoal_node_erase(shoal_node *node)
{
    error_clear();
    return finish("node_erase", erase(node));
}
