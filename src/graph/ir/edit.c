/* SPDX-License-Identifier: MIT */
/*
 * New arguments and values are put into the nodes at once, because inference reads them there. The old ones are kept
 * until everything has succeeded, and are restored after a failure. Edges come last, and cannot fail.
 *
 * Values are inferred in program order, so once for each node. If the graph is out of order, some nodes are inferred
 * again, as long as something changes. With a cycle of nodes that might never end, so it is refused after a limit.
 */
#include "graph/ir/edit.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "tensor/tensor.h"

/* The old values of a node. */
struct undo {
    struct shoal_node *node;
    shoal_tensor **values;
    size_t n_values;
    bool is_list;
    bool is_alias;
};

/* How often nodes may be inferred again, on average. */
#define MAX_ROUNDS 64

struct work {
    struct shoal_graph *graph;
    uint64_t stamp;           /* of nodes in the heap; stamp + 1: of nodes that were there before */
    size_t n_first;           /* nodes that were put into the heap for the first time */
    size_t n_again;           /* how often a node was put there again */
    struct shoal_node **heap; /* nodes to be inferred; heap[0] is the first in program order */
    size_t n_heap;
    size_t heap_capacity;
    struct undo *undos;
    size_t n_undos;
    size_t undo_capacity;
};

/* The heap --------------------------------------------------------------------------------------------- */

static shoal_status push(struct work *work, struct shoal_node *node)
{
    *(node->stamp == work->stamp + 1 ? &work->n_again : &work->n_first) += 1;
    if (work->n_again / MAX_ROUNDS > work->n_first) {
        return error_set(SHOAL_ERR_INVALID, "node %s is in a cycle of nodes whose shapes grow without end",
                         node->name);
    }
    TRY(mem_grow((void **)&work->heap, &work->heap_capacity, work->n_heap + 1, sizeof(work->heap[0])));
    size_t at = work->n_heap++;
    while (at > 0 && work->heap[(at - 1) / 2]->order > node->order) {
        work->heap[at] = work->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    work->heap[at] = node;
    node->stamp = work->stamp;
    return SHOAL_OK;
}

static struct shoal_node *pop(struct work *work)
{
    struct shoal_node *first = work->heap[0];
    struct shoal_node *last = work->heap[--work->n_heap];
    size_t at = 0;
    for (size_t child = 1; child < work->n_heap; child = 2 * at + 1) {
        if (child + 1 < work->n_heap && work->heap[child + 1]->order < work->heap[child]->order) {
            child++;
        }
        if (work->heap[child]->order >= last->order) {
            break;
        }
        work->heap[at] = work->heap[child];
        at = child;
    }
    work->heap[at] = last;
    first->stamp = work->stamp + 1;
    return first;
}

/* Values ----------------------------------------------------------------------------------------------- */

static void unref_values(shoal_tensor *const *values, size_t n_values)
{
    for (size_t i = 0; i < n_values; i++) {
        shoal_tensor_unref(values[i]);
    }
}

bool edit_is_alias(shoal_tensor *const *values, size_t n_values)
{
    for (size_t i = 0; i < n_values; i++) {
        if (values[i]->is_view || atomic_load(&values[i]->references) > 1 ||
            atomic_load(&values[i]->storage->references) > 1) {
            return true;
        }
    }
    return false;
}

static bool is_same_description(const shoal_tensor *a, const shoal_tensor *b)
{
    size_t bytes = (size_t)a->layout.n_dims * sizeof(a->layout.shape[0]);
    return a->dtype == b->dtype && a->layout.n_dims == b->layout.n_dims &&
           a->layout.offset == b->layout.offset && memcmp(a->layout.shape, b->layout.shape, bytes) == 0 &&
           memcmp(a->layout.strides, b->layout.strides, bytes) == 0;
}

/* How the new values of a node differ from its old ones. */
enum difference {
    DIFFERENCE_NONE,
    DIFFERENCE_STORAGE,
    DIFFERENCE_SHAPE
};

/* If the node is no alias, a new storage is no difference, because no other node refers to it. */
static enum difference compare(const struct shoal_node *node, shoal_tensor *const *values, size_t n_values,
                               bool is_list, bool is_alias)
{
    enum difference difference = DIFFERENCE_NONE;
    if (n_values != node->n_values || is_list != node->is_list) {
        return DIFFERENCE_SHAPE;
    }
    for (size_t i = 0; i < n_values; i++) {
        if (!is_same_description(values[i], node->values[i])) {
            return DIFFERENCE_SHAPE;
        }
        if ((is_alias || node->is_alias) && values[i]->storage != node->values[i]->storage) {
            difference = DIFFERENCE_STORAGE;
        }
    }
    return is_alias == node->is_alias ? difference : DIFFERENCE_STORAGE;
}

static shoal_status push_users(struct work *work, const struct shoal_node *node, enum difference difference)
{
    for (const struct edge *edge = node->first_use; edge; edge = edge->next) {
        struct shoal_node *user = edge->user;
        bool is_affected = user->is_alias || difference == DIFFERENCE_SHAPE;
        if (is_affected && user->stamp != work->stamp) {
            TRY(push(work, user));
        }
    }
    return SHOAL_OK;
}

static shoal_status infer(struct work *work, struct shoal_node *node)
{
    shoal_tensor **values;
    size_t n_values;
    bool is_list;
    if (!node->op) {
        return SHOAL_OK;
    }
    TRY(mem_grow((void **)&work->undos, &work->undo_capacity, work->n_undos + 1, sizeof(work->undos[0])));
    shoal_status status =
        graph_infer(work->graph, node->op, node->args, node->n_args, &values, &n_values, &is_list);
    if (status != SHOAL_OK) {
        return error_prefix(status, "node %s", node->name);
    }
    bool is_alias = edit_is_alias(values, n_values);
    enum difference difference = compare(node, values, n_values, is_list, is_alias);
    if (difference == DIFFERENCE_NONE) {
        unref_values(values, n_values);
        return SHOAL_OK;
    }
    work->undos[work->n_undos++] = (struct undo){.node = node,
                                                 .values = node->values,
                                                 .n_values = node->n_values,
                                                 .is_list = node->is_list,
                                                 .is_alias = node->is_alias};
    node->values = values;
    node->n_values = n_values;
    node->is_list = is_list;
    node->is_alias = is_alias;
    return push_users(work, node, difference);
}

static shoal_status infer_all(struct work *work, const struct edit *edits, size_t n_edits)
{
    for (size_t i = 0; i < n_edits; i++) {
        TRY(push(work, edits[i].node));
    }
    while (work->n_heap > 0) {
        TRY(infer(work, pop(work)));
    }
    return SHOAL_OK;
}

/* Restores old values, the newest change first, because a node may have changed twice. */
static void put_back(struct work *work)
{
    while (work->n_undos > 0) {
        const struct undo *undo = &work->undos[--work->n_undos];
        struct shoal_node *node = undo->node;
        unref_values(node->values, node->n_values);
        node->values = undo->values;
        node->n_values = undo->n_values;
        node->is_list = undo->is_list;
        node->is_alias = undo->is_alias;
    }
}

/* Arguments ---------------------------------------------------------------------------------------------- */

static void swap_args(struct edit *edits, size_t n_edits)
{
    for (size_t i = 0; i < n_edits; i++) {
        struct shoal_node *node = edits[i].node;
        const shoal_arg *args = node->args;
        size_t n_args = node->n_args;
        node->args = edits[i].args;
        node->n_args = edits[i].n_args;
        edits[i].args = args;
        edits[i].n_args = n_args;
    }
}

shoal_status edit_apply(struct shoal_graph *graph, struct edit *edits, size_t n_edits)
{
    struct work work = {.graph = graph, .stamp = graph->stamp + 1};
    graph->stamp += 2;
    swap_args(edits, n_edits);
    shoal_status status = infer_all(&work, edits, n_edits);
    if (status != SHOAL_OK) {
        put_back(&work);
        swap_args(edits, n_edits);
    }
    for (size_t i = 0; status == SHOAL_OK && i < n_edits; i++) {
        uses_set(edits[i].node, &edits[i].uses);
    }
    for (size_t i = 0; i < work.n_undos; i++) {
        unref_values(work.undos[i].values, work.undos[i].n_values);
    }
    mem_free(work.heap);
    mem_free(work.undos);
    return status;
}
