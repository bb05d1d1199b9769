/* SPDX-License-Identifier: MIT */
/* The observers of a graph are a stack; origins name the pass of the innermost. */
#include "graph/ir/observer.h"

#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "base/try.h"

shoal_status graph_observer_begin(struct shoal_graph *graph, struct observer *observer, const char *pass)
{
    const char *copy = arena_string(&graph->arena, pass);
    if (!copy) {
        return SHOAL_ERR_NO_MEMORY;
    }
    observer->pass = copy;
    observer->created_origin = NULL;
    observer->first_id = graph->n_ids;
    observer->outer = graph->observer;
    graph->observer = observer;
    return SHOAL_OK;
}

void graph_observer_end(struct shoal_graph *graph, struct observer *observer)
{
    assert(graph->observer == observer);
    graph->observer = observer->outer;
}

static shoal_status make_origin(struct shoal_graph *graph, const struct origin *model,
                                const struct origin **origins_out)
{
    struct origin *origin = arena_alloc(&graph->arena, 1, sizeof(*origin));
    if (!origin) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *origin = *model;
    *origins_out = origin;
    return SHOAL_OK;
}

shoal_status observer_make_created(struct shoal_graph *graph, const struct origin **origins_out)
{
    struct observer *observer = graph->observer;
    *origins_out = NULL;
    if (!observer) {
        return SHOAL_OK;
    }
    if (!observer->created_origin) {
        TRY(make_origin(graph, &(struct origin){.pass = observer->pass, .kind = ORIGIN_CREATE},
                        &observer->created_origin));
    }
    *origins_out = observer->created_origin;
    return SHOAL_OK;
}

shoal_status observer_make_replaced(const struct shoal_node *old, const struct shoal_node *other,
                                    const struct origin **origins_out)
{
    const struct observer *observer = other->graph->observer;
    const struct origin *newest = other->origins;
    *origins_out = newest;
    if (!observer) {
        return SHOAL_OK;
    }
    bool is_of_pass = newest && newest->pass == observer->pass;
    if (is_of_pass && newest->old && strcmp(newest->old, old->name) == 0) {
        return SHOAL_OK;
    }
    struct origin origin = {
        .pass = observer->pass,
        .kind = ORIGIN_REPLACE | (other->id >= observer->first_id ? ORIGIN_CREATE : 0u),
        .old = old->name,
        .next = is_of_pass && newest->kind == ORIGIN_CREATE ? newest->next : newest,
    };
    return make_origin(other->graph, &origin, origins_out);
}

void observer_tell_created(struct shoal_node *node)
{
    for (struct observer *observer = node->graph->observer; observer; observer = observer->outer) {
        if (observer->created) {
            observer->created(observer, node);
        }
    }
}

void observer_tell_erased(struct shoal_node *node)
{
    for (struct observer *observer = node->graph->observer; observer; observer = observer->outer) {
        if (observer->erased) {
            observer->erased(observer, node);
        }
    }
}

void observer_tell_replaced(struct shoal_node *old, struct shoal_node *other, struct shoal_node *user)
{
    for (struct observer *observer = old->graph->observer; observer; observer = observer->outer) {
        if (observer->replaced) {
            observer->replaced(observer, old, other, user);
        }
    }
}
