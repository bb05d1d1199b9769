/* SPDX-License-Identifier: MIT */
/*
 * Observers are told about changes of a graph. Origins say where nodes come from: while an observer is on, each new
 * node gets an origin (pass, CREATE), and each node that replaces another one an origin (pass, REPLACE, name of the
 * other). If the same pass has made the node, the two origins become one.
 */
#ifndef GRAPH_IR_OBSERVER_H
#define GRAPH_IR_OBSERVER_H

#include "graph/ir/graph.h"

enum {
    ORIGIN_CREATE = 1u << 0,
    ORIGIN_REPLACE = 1u << 1
};

struct origin {
    const char *pass;
    unsigned kind;   /* ORIGIN_CREATE, ORIGIN_REPLACE or both */
    const char *old; /* the node that was replaced; NULL if there is none */
    const struct origin *next;
};

/* The functions may be NULL, and must not change the graph. The caller zeroes all other fields. */
struct observer {
    void (*created)(struct observer *observer, struct shoal_node *node);
    /* Called before the node is erased: it still has its place, arguments and inputs. */
    void (*erased)(struct observer *observer, struct shoal_node *node);
    /* `user` uses `other` instead of `old`. */
    void (*replaced)(struct observer *observer, struct shoal_node *old, struct shoal_node *other,
                     struct shoal_node *user);

    /* Set by graph_observer_begin. */
    const char *pass;
    const struct origin *created_origin; /* shared by all new nodes; NULL if no node was made yet */
    uint32_t first_id;                   /* nodes with this id or a larger one were made since */
    struct observer *outer;              /* the observer that was on before; it is told, too */
};

/* Begins to observe; `pass` is copied. Observers end in the reverse order of their beginning. */
shoal_status graph_observer_begin(struct shoal_graph *graph, struct observer *observer, const char *pass);
void graph_observer_end(struct shoal_graph *graph, struct observer *observer);

/* For functions that change graphs. observer_make_* give the origins that the node must get (NULL if it gets none), and
   may fail. observer_tell_* tell the observers, and are called when nothing can fail any more. */
shoal_status observer_make_created(struct shoal_graph *graph, const struct origin **origins_out);
shoal_status observer_make_replaced(const struct shoal_node *old, const struct shoal_node *other,
                                    const struct origin **origins_out);
void observer_tell_created(struct shoal_node *node);
void observer_tell_erased(struct shoal_node *node);
void observer_tell_replaced(struct shoal_node *old, struct shoal_node *other, struct shoal_node *user);

#endif
