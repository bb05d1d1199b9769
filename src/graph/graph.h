/* SPDX-License-Identifier: MIT */
/*
 * What a graph is made of. Nodes, names, arguments and edges lie in arenas that are freed with the graph: an erased
 * node keeps its memory until then, so that a walk that holds it can see `is_erased` and go on.
 *
 * Nodes form a list with two ends. `order` grows along it, so that "does a stand before b" is one comparison; where a
 * node does not fit between its neighbours' numbers those around it are numbered anew (graph/order.c).
 *
 * An edge belongs to a node and one of its inputs. The edges of a node are an array, in the order of its inputs; the
 * edges to an input are a list, in the order in which its users began to use it. Adding and removing one takes constant
 * time.
 */
#ifndef GRAPH_GRAPH_H
#define GRAPH_GRAPH_H

#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/mem.h"
#include "op/op.h"
#include "shoal/graph.h"
#include "tensor/slab.h"

struct edge {
    struct shoal_node *user;
    struct shoal_node *input;
    struct edge *prev; /* among the edges to `input` */
    struct edge *next;
};

/* Where a node comes from: graph/observer.h. */
struct origin;

/* What most walks read comes first, in one cache line: a graph is larger than caches are. */
struct shoal_node {
    alignas(MEM_DATA_ALIGNMENT) struct shoal_node *next;
    struct shoal_node *prev;
    uint64_t order;
    uint32_t id;  /* counts nodes of the graph in the order of their making; an index for tables of passes */
    uint8_t kind; /* shoal_node_kind */
    bool is_erased;
    bool is_list;
    bool is_alias; /* a value shares its storage with one of an input: it changes when the input's does */
    const shoal_op *op;         /* NULL: not a call, or opaque */
    struct shoal_node **inputs; /* each once */
    size_t n_inputs;
    size_t n_users;

    struct edge *first_use; /* as an input of others */
    struct edge *last_use;
    struct edge *edges; /* one for each input */
    const shoal_arg *args;
    size_t n_args;
    shoal_tensor **values; /* one reference each, on the meta device; of a constant: the tensor itself */
    size_t n_values;
    uint64_t
        stamp; /* graph->stamp of the walk that came here last; of graph/uses.c, edit.c and comm_block.c */

    struct shoal_graph *graph;
    const char *name;
    const char *taken_name;      /* this and the next two are of graph/names.c */
    struct name_base *name_base; /* what its name was counted on; NULL: it was not */
    uint32_t name_key;           /* its number there, or the hash of its name */
    uint32_t input_capacity;     /* of inputs and edges */
    const char *target;
    const struct origin *origins; /* newest first */
    const char *unit;             /* of a sharded model, to which the call belongs; NULL: none */
};

struct graph_group {
    const char *name;
    const int *ranks; /* n_lists times size */
    size_t n_lists;
    size_t size;
    struct shoal_group *stand_in; /* for meta functions, which ask for the number of ranks */
    struct shoal_group *bound;    /* one reference: the group that a captured step used; NULL: none */
    uint64_t hash;                /* of the name */
    size_t number;                /* in order of adding, from 0 on */
    struct graph_group *next;
};

struct graph_names; /* graph/names.h: node names to nodes, and the numbers that are taken */
struct name_base;   /* likewise */
struct graph_twins; /* graph/twins.h: storages of constants on the meta device; NULL: none yet */
struct observer;    /* graph/observer.h: who is told about changes; NULL: nobody */
struct captured;    /* graph/captured.h: what the graph was captured from; NULL: nothing */

struct shoal_graph {
    struct arena arena; /* of all but nodes */
    struct arena nodes; /* side by side: walks read a little of each, and processors guess the next address */
    struct slab shapes; /* of values on the meta device */
    struct shoal_node *first;
    struct shoal_node *last;
    struct shoal_node *output;            /* NULL: none yet */
    const struct shoal_node *last_placed; /* who was put into the list last; for graph/order.c only */
    size_t n_nodes;
    uint32_t n_ids; /* made so far, erased ones included: the size of a table by id */
    uint64_t stamp; /* counts walks, see above */
    shoal_insert_point point;
    struct graph_names *names;
    struct graph_group *groups; /* in order of adding */
    struct graph_group *last_group;
    struct graph_group **group_slots; /* a table by name; a power of two, at most half in use */
    size_t n_group_slots;
    size_t n_groups;
    struct graph_twins *twins;
    struct observer *observer;
    struct captured *captured;
    const char *unit; /* of nodes that are made now */
};

/* Nodes of the graph in order; `node` may be erased or moved meanwhile, `next` may not. */
#define GRAPH_EACH(graph, node)                                                                           \
    for (struct shoal_node *node = (graph)->first, *node##_next = node ? node->next : NULL; node != NULL; \
         node = node##_next, node##_next = node ? node->next : NULL)

/*
 * A node with these, at the insertion point (the output: at the end), with values that the caller has made. Arguments
 * are checked and copied; those of an op must be complete. References of values are taken on success, and stay the
 * caller's otherwise.
 */
struct node_spec {
    shoal_node_kind kind;
    const char *name; /* wished for; NULL: from target */
    const char *target;
    const shoal_op *op;
    const shoal_arg *args;
    size_t n_args;
    shoal_tensor *const *values;
    size_t n_values;
    bool is_list;
    bool is_ready; /* arguments have been checked, and values are an array of the arena */
};
shoal_status graph_add(struct shoal_graph *graph, const struct node_spec *spec, struct shoal_node **node_out);

/* shoal_graph_remove_dead of a graph whose list is in order, which is not checked. */
shoal_status graph_remove_dead(struct shoal_graph *graph, size_t *n_erased_out);

/* shoal_graph_call for passes: nodes and groups of the arguments are known to be of the graph and there. */
shoal_status graph_call(struct shoal_graph *graph, const shoal_op *op, const shoal_arg *args, size_t n_args,
                        struct shoal_node **node_out);
/* shoal_node_erase of a node that is there, and that nobody uses. */
void graph_erase(struct shoal_node *node);

/* NULL when there is no such group. */
const struct graph_group *graph_find_group(const struct shoal_graph *graph, const char *name);

/* Calls `visit` with every node that the argument names, in order, and repeatedly where it is named repeatedly. */
typedef void (*graph_visit)(void *context, struct shoal_node *node);
void graph_visit_arg(const shoal_arg *arg, graph_visit visit, void *context);

/* What a call of `op` with complete arguments gives (graph/infer.c): tensors of the meta device, a reference each, in
   an array of the arena. */
shoal_status graph_infer(struct shoal_graph *graph, const shoal_op *op, const shoal_arg *args, size_t n_args,
                         shoal_tensor ***values_out, size_t *n_values_out, bool *is_list_out);

/* For whoever frees the graph: what graph_infer has kept. */
void graph_free_twins(struct shoal_graph *graph);

/* SHOAL_OP_COLLECTIVE and so on; 0 for what is not a call of an op. */
static inline uint32_t node_flags(const struct shoal_node *node)
{
    return node->op ? node->op->flags : 0;
}

#endif
