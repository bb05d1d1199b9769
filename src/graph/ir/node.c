/* SPDX-License-Identifier: MIT */
/* Reading nodes. */
#include "graph/ir/graph.h"

/* The nodes after an erased node may be erased, too: returns the next one that is still in the graph. */
shoal_node *shoal_node_next(const shoal_node *node)
{
    struct shoal_node *next = node ? node->next : NULL;
    while (next && next->is_erased) {
        next = next->next;
    }
    return next;
}

shoal_node *shoal_node_prev(const shoal_node *node)
{
    struct shoal_node *prev = node ? node->prev : NULL;
    while (prev && prev->is_erased) {
        prev = prev->prev;
    }
    return prev;
}

bool shoal_node_is_before(const shoal_node *a, const shoal_node *b)
{
    return a && b && a->graph == b->graph && a->order < b->order;
}

shoal_node_kind shoal_node_get_kind(const shoal_node *node)
{
    return node ? node->kind : SHOAL_NODE_PLACEHOLDER;
}

const char *shoal_node_name(const shoal_node *node)
{
    return node ? node->name : "";
}

const shoal_op *shoal_node_op(const shoal_node *node)
{
    return node ? node->op : NULL;
}

const char *shoal_node_target(const shoal_node *node)
{
    return node ? node->target : "";
}

const shoal_arg *shoal_node_args(const shoal_node *node, size_t *count_out)
{
    if (count_out) {
        *count_out = node ? node->n_args : 0;
    }
    return node ? node->args : NULL;
}

shoal_node *const *shoal_node_inputs(const shoal_node *node, size_t *count_out)
{
    if (count_out) {
        *count_out = node ? node->n_inputs : 0;
    }
    return node ? node->inputs : NULL;
}

size_t shoal_node_n_users(const shoal_node *node)
{
    return node ? node->n_users : 0;
}

shoal_node *shoal_node_first_user(const shoal_node *node)
{
    return node && node->first_use ? node->first_use->user : NULL;
}

/* Finds the edge from `user` to `node`. Searches the inputs of `user` and the users of `node` at the same time, because
   one of the two may be long. */
static const struct edge *find_edge(const struct shoal_node *node, const struct shoal_node *user)
{
    const struct edge *use = node->first_use;
    for (size_t i = 0; i < user->n_inputs && use; i++) {
        if (user->edges[i].input == node) {
            return &user->edges[i];
        }
        if (use->user == user) {
            return use;
        }
        use = use->next;
    }
    return NULL;
}

shoal_node *shoal_node_next_user(const shoal_node *node, const shoal_node *user)
{
    if (!node || !user || !node->last_use || node->last_use->user == user) {
        return NULL;
    }
    const struct edge *edge = find_edge(node, user);
    return edge && edge->next ? edge->next->user : NULL;
}

size_t shoal_node_n_values(const shoal_node *node)
{
    return node ? node->n_values : 0;
}

bool shoal_node_is_list(const shoal_node *node)
{
    return node && node->is_list;
}

const shoal_tensor *shoal_node_value(const shoal_node *node, size_t index)
{
    return node && index < node->n_values ? node->values[index] : NULL;
}
