/* SPDX-License-Identifier: MIT */
/*
 * The structs of a graph. Nodes, names, arguments and edges lie in arenas that are freed with the graph. An erased node
 * keeps its memory until then, so that a walk that is at this node can see `is_erased` and go on.
 *
 * Nodes form a doubly linked list. `order` grows along it, so that "is a before b" takes one comparison. If there is no
 * number left between two neighbours, the nodes around them get new numbers (graph/ir/order.c).
 *
 * An edge connects a node with one of its inputs. The edges of a node are an array, in the order of its inputs. The
 * edges to an input are a list, in the order in which its users began to use it. Adding or removing an edge takes
 * constant time.
 */
#ifndef GRAPH_IR_GRAPH_H
#define GRAPH_IR_GRAPH_H

#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/map.h"
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

/* Where a node comes from: graph/ir/observer.h. */
struct origin;

/* The fields that most walks read come first, in one cache line, because a graph is larger than caches. */
struct shoal_node {
    alignas(MEM_DATA_ALIGNMENT) struct shoal_node *next;
    struct shoal_node *prev;
    uint64_t order;
    uint32_t id;  /* counts the nodes of the graph in the order in which they were made */
    uint8_t kind; /* shoal_node_kind */
    bool is_erased;
    bool is_list;
    bool is_alias;              /* a value shares its storage with a value of an input */
    const shoal_op *op;         /* NULL if it is not a call, or opaque */
    struct shoal_node **inputs; /* each once */
    size_t n_inputs;
    size_t n_users;

    struct edge *first_use; /* list of the edges from its users */
    struct edge *last_use;
    struct edge *edges; /* one for each input */
    const shoal_arg *args;
    size_t n_args;
    shoal_tensor **values; /* one reference each, on the meta device; of a constant: the tensor itself */
    size_t n_values;
    uint64_t stamp; /* graph->stamp of the last walk that was here; used by uses.c, edit.c and comm_block.c */

    struct shoal_graph *graph;
    const char *name;
    const char *taken_name;      /* this and the next two are used by graph/ir/names.c only */
    struct name_base *name_base; /* the base to which its number was appended; NULL if there is none */
    uint32_t name_key;           /* its number at that base; without a base, the hash of its name */
    uint32_t input_capacity;     /* of inputs and edges */
    const char *target;
    const struct origin *origins; /* newest first */
    const char *unit;             /* the FSDP unit that the call belongs to; NULL if it belongs to none */
};

struct graph_group {
    const char *name;
    const int *ranks; /* n_lists times size */
    size_t n_lists;
    size_t size;
    struct shoal_group *stand_in; /* for meta functions, which ask only for the number of ranks */
    /* The group that the captured step used, one reference; NULL if there is none. */
    struct shoal_group *bound;
    size_t number; /* counts the groups of the graph, from 0 */
    struct graph_group *next;
};

struct graph_names; /* graph/ir/names.h: finds nodes by name, and knows which names are taken */
struct name_base;   /* graph/ir/names.c */
/* In graph/ir/twins.h: storages of constants on the meta device; NULL if there are none yet. */
struct graph_twins;
struct observer; /* graph/ir/observer.h: is told about changes; NULL if there is none */
struct machine;  /* graph/analysis/machine.h: by which passes weigh time; NULL if none has asked yet */
struct captured; /* graph/ir/captured.h: what the graph keeps of its step; NULL if it was not captured */

struct shoal_graph {
    struct arena arena; /* for everything but nodes */
    struct arena nodes; /* nodes are neighbours in memory, so that processors can prefetch them */
    struct slab shapes; /* of values on the meta device */
    struct shoal_node *first;
    struct shoal_node *last;
    struct shoal_node *output;            /* NULL if there is none yet */
    const struct shoal_node *last_placed; /* the node that was inserted last; for graph/ir/order.c only */
    size_t n_nodes;
    uint32_t n_ids; /* nodes made so far, including erased ones: the size of a table by id */
    uint64_t stamp; /* counts walks (shoal_node.stamp) */
    shoal_insert_point point;
    struct graph_names *names;
    struct graph_group *groups; /* in order of adding */
    struct graph_group *last_group;
    struct map groups_by_name; /* from hashes of names to groups */
    size_t n_groups;
    struct graph_twins *twins;
    struct observer *observer;
    struct captured *captured;
    const struct machine *machine; /* in the arena */
    uint64_t drawn[2]; /* hashes of the last pictures before and after a pass; 0 if there are none */
    const char *unit;  /* new nodes get this unit */
};

/* Visits the nodes of the graph in order. The body may erase or move `node`, but not the node after it. */
#define GRAPH_EACH(graph, node)                                                                           \
    for (struct shoal_node *node = (graph)->first, *node##_next = node ? node->next : NULL; node != NULL; \
         node = node##_next, node##_next = node ? node->next : NULL)

/* Adds a node at the insertion point (the output: at the end). Arguments are checked and copied; those of an op must be
   complete. On success the node takes over the references to values; otherwise they stay the caller's. */
struct node_spec {
    shoal_node_kind kind;
    const char *name; /* the wanted name; NULL means that of the target */
    const char *target;
    const shoal_op *op;
    const shoal_arg *args;
    size_t n_args;
    shoal_tensor *const *values;
    size_t n_values;
    bool is_list;
    bool is_ready; /* arguments have been checked already, and `values` is an array in the arena */
};
shoal_status graph_add(struct shoal_graph *graph, const struct node_spec *spec, struct shoal_node **node_out);

/* shoal_graph_remove_dead without its check that the list is in order. */
shoal_status graph_remove_dead(struct shoal_graph *graph, size_t *n_erased_out);

/* shoal_graph_call for passes: it does not check that nodes and groups of the arguments belong to the graph. */
shoal_status graph_call(struct shoal_graph *graph, const shoal_op *op, const shoal_arg *args, size_t n_args,
                        struct shoal_node **node_out);
/* shoal_node_erase without checks: the node must be in the graph and have no users. */
void graph_erase(struct shoal_node *node);

/* Finds a group of the table; NULL if there is none of that name. */
const struct graph_group *graph_find_group(const struct shoal_graph *graph, const char *name);

/* Calls `visit` with every node in the argument, in order; a node that is named twice is visited twice. */
typedef void (*graph_visit)(void *context, struct shoal_node *node);
void graph_visit_arg(const shoal_arg *arg, graph_visit visit, void *context);

/* Infers the values of a call of `op` with complete arguments (graph/ir/infer.c): tensors on the meta device, a reference
   each, in an array in the arena. */
shoal_status graph_infer(struct shoal_graph *graph, const shoal_op *op, const shoal_arg *args, size_t n_args,
                         shoal_tensor ***values_out, size_t *n_values_out, bool *is_list_out);

/* Frees the twins of constants, which graph_infer has made (graph/ir/twins.h). Called when the graph is freed. */
void graph_free_twins(struct shoal_graph *graph);

/* Returns the flags of the node's op, such as SHOAL_OP_COLLECTIVE; 0 if it calls no op. */
static inline uint32_t node_flags(const struct shoal_node *node)
{
    return node->op ? node->op->flags : 0;
}

#endif
