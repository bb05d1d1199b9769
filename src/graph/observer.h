/* SPDX-License-Identifier: MIT */
/*
 * Who is told about changes of a graph, and where nodes come from. While an observer is on, each node that is made gets
 * an origin (pass, CREATE), and each that takes the place of another an origin (pass, REPLACE, name of the other); of a
 * node that the same pass has made, the two become one.
 */
#ifndef GRAPH_OBSERVER_H
#define GRAPH_OBSERVER_H

#include "graph/graph.h"

enum {
    ORIGIN_CREATE = 1u << 0,
    ORIGIN_REPLACE = 1u << 1
};

struct origin {
    const char *pass;
    unsigned kind;   /* ORIGIN_CREATE, ORIGIN_REPLACE or both */
    const char *old; /* the node that was replaced; NULL: none */
    const struct origin *next;
};

/* Functions may be NULL, and must not change the graph. Zeroed but for them. */
struct observer {
    void (*created)(struct observer *observer, struct shoal_node *node);
    /* It still has its place, arguments and inputs. */
    void (*erased)(struct observer *observer, struct shoal_node *node);
    /* `user` uses `other` now. */
    void (*replaced)(struct observer *observer, struct shoal_node *old, struct shoal_node *other,
                     struct shoal_node *user);

    /* Set by graph_observer_begin. */
    const char *pass;
    const struct origin *created_origin; /* of all nodes that are made; NULL: none was yet */
    uint32_t first_id;                   /* nodes from this id on were made since */
    struct observer *outer;              /* that was on before, and is told, too */
};

/* The name is copied. Observers end in the reverse order of their beginning. */
shoal_status graph_observer_begin(struct shoal_graph *graph, struct observer *observer, const char *pass);
void graph_observer_end(struct shoal_graph *graph, struct observer *observer);

/* For the calls that change graphs: the origin to give to a node, NULL when there is none to give; then, when nothing
   can fail any more, the change. */
shoal_status observer_make_created(struct shoal_graph *graph, const struct origin **origins_out);
shoal_status observer_make_replaced(const struct shoal_node *old, const struct shoal_node *other,
                                    const struct origin **origins_out);
void observer_tell_created(struct shoal_node *node);
void observer_tell_erased(struct shoal_node *node);
void observer_tell_replaced(struct shoal_node *old, struct shoal_node *other, struct shoal_node *user);

#endif
