/* SPDX-License-Identifier: MIT */
/* Edges. A stamp on each node tells whether it was named before, so that long lists take linear time. */
#include "graph/ir/uses.h"

#include <string.h>

#include "base/try.h"

enum {
    FEW_INPUTS = 16
};

/* Collects inputs: all of them into `inputs`, or, if that is NULL, the first FEW_INPUTS into `few`. */
struct collection {
    uint64_t stamp;
    struct shoal_node **inputs;
    size_t n_inputs;
    struct shoal_node *few[FEW_INPUTS];
};

static void collect(struct collection *collection, const shoal_arg *args, size_t n_args)
{
    for (size_t i = 0; i < n_args; i++) {
        const shoal_arg *arg = &args[i];
        if (arg->kind == SHOAL_ARG_LIST) {
            collect(collection, arg->as.list.items, arg->as.list.count);
        } else if (arg->kind == SHOAL_ARG_NODE && arg->as.node->stamp != collection->stamp) {
            arg->as.node->stamp = collection->stamp;
            if (collection->inputs) {
                collection->inputs[collection->n_inputs] = arg->as.node;
            } else if (collection->n_inputs < FEW_INPUTS) {
                collection->few[collection->n_inputs] = arg->as.node;
            }
            collection->n_inputs++;
        }
    }
}

/* Copies the inputs from `few`; if there are more, walks over the arguments again. */
static void fill(struct shoal_graph *graph, struct collection *collection, const shoal_arg *args,
                 size_t n_args, struct shoal_node **inputs)
{
    if (collection->n_inputs <= FEW_INPUTS) {
        for (size_t i = 0; i < collection->n_inputs; i++) {
            inputs[i] = collection->few[i];
        }
        return;
    }
    collection->stamp = ++graph->stamp;
    collection->inputs = inputs;
    collection->n_inputs = 0;
    collect(collection, args, n_args);
}

shoal_status uses_collect(struct shoal_graph *graph, struct arena *scratch, size_t capacity,
                          const shoal_arg *args, size_t n_args, struct uses *uses_out)
{
    struct collection collection;
    collection.stamp = ++graph->stamp;
    collection.inputs = NULL;
    collection.n_inputs = 0;
    collect(&collection, args, n_args);
    struct uses uses = {.n_inputs = collection.n_inputs};
    bool has_room = uses.n_inputs <= capacity;
    if (!has_room) { /* at least twice as many, so that abandoned arrays waste less memory than is used */
        uses.capacity =
            uses.n_inputs > 2 * capacity || capacity > UINT32_MAX / 2 ? uses.n_inputs : 2 * capacity;
        /* One allocation: edges, then inputs. */
        uses.edges = arena_take(&graph->arena, uses.capacity, sizeof(uses.edges[0]) + sizeof(uses.inputs[0]));
        uses.inputs = uses.edges ? (struct shoal_node **)(uses.edges + uses.capacity) : NULL;
    } else if (uses.n_inputs > 0) {
        uses.inputs = arena_take(scratch, uses.n_inputs, sizeof(uses.inputs[0]));
    }
    TRY(uses.inputs || uses.n_inputs == 0 ? SHOAL_OK : SHOAL_ERR_NO_MEMORY);
    fill(graph, &collection, args, n_args, uses.inputs);
    *uses_out = uses;
    return SHOAL_OK;
}

static void link_edge(struct edge *edge)
{
    struct shoal_node *input = edge->input;
    edge->prev = input->last_use;
    edge->next = NULL;
    *(edge->prev ? &edge->prev->next : &input->first_use) = edge;
    input->last_use = edge;
    input->n_users++;
}

static void unlink_edge(struct edge *edge)
{
    struct shoal_node *input = edge->input;
    *(edge->prev ? &edge->prev->next : &input->first_use) = edge->next;
    *(edge->next ? &edge->next->prev : &input->last_use) = edge->prev;
    input->n_users--;
}

void uses_drop(struct shoal_node *node)
{
    for (size_t i = 0; i < node->n_inputs; i++) {
        unlink_edge(&node->edges[i]);
    }
    node->n_inputs = 0;
}

void uses_set(struct shoal_node *node, const struct uses *uses)
{
    uses_drop(node);
    if (uses->edges) {
        node->inputs = uses->inputs;
        node->edges = uses->edges;
        node->input_capacity = (uint32_t)uses->capacity;
    } else if (uses->n_inputs > 0) {
        memcpy(node->inputs, uses->inputs, uses->n_inputs * sizeof(uses->inputs[0]));
    }
    node->n_inputs = uses->n_inputs;
    for (size_t i = 0; i < uses->n_inputs; i++) {
        node->edges[i].user = node;
        node->edges[i].input = node->inputs[i];
        link_edge(&node->edges[i]);
    }
}
