/* SPDX-License-Identifier: MIT */
/*
 * Checks memory that communication uses between a start and its wait. What the start writes or gives must not be
 * touched before a wait for that memory. What it only reads must not be written before the first wait for any of its
 * results. Memory is a span of bytes of a storage, as in tensor/storage.h: views count as the bytes that they show, and
 * spans of a storage that do not overlap are independent. If the place of a view depends on the rank, that of the meta
 * tensor is taken.
 */
#include "graph/analysis/lint_flight.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/try.h"
#include "graph/analysis/accesses.h"
#include "graph/analysis/flight.h"
#include "graph/analysis/span_tree.h"
#include "graph/analysis/touches.h"
#include "graph/ir/twins.h"
#include "op/op.h"
#include "tensor/tensor.h"

struct walk {
    struct flight flight;
    const struct shoal_node *node; /* the current node */
};

static uint32_t flags_of(const struct shoal_node *node)
{
    return node->op ? node->op->flags : 0;
}

/* Checks ----------------------------------------------------------------------------------------------- */

static bool overlap(struct span a, struct span b)
{
    return a.first < b.end && b.first < a.end;
}

/* Returns an open read of a start that overlaps the tensor; NULL if there is none. */
static const struct flight_use *find_read(const struct flight *flight, size_t storage,
                                          const shoal_tensor *tensor)
{
    for (size_t i = 0; i < flight->n_uses; i++) {
        const struct flight_use *use = &flight->uses[i];
        if (use->is_open && !use->is_write && use->storage == storage &&
            overlap(use->span, tensor_span(tensor))) {
            return use;
        }
    }
    return NULL;
}

/* Whether a wait ends the use. */
static bool ends_use(const struct flight *flight, const struct shoal_node *wait, const struct flight_use *use)
{
    for (size_t i = 0; i < wait->n_inputs; i++) {
        const struct shoal_node *from = wait->inputs[i];
        for (size_t k = 0; k < from->n_values; k++) {
            bool is_same =
                flight_storage_of(flight, from, from->values[k]) == &flight->storages[use->storage] &&
                overlap(tensor_span(from->values[k]), use->span);
            if (is_same && use->is_write) {
                return true;
            }
        }
        while (from != use->start && (flags_of(from) & SHOAL_OP_VIEW) != 0 && from->n_inputs > 0) {
            from = from->inputs[0];
        }
        if (from == use->start && !use->is_write) {
            return true;
        }
    }
    return false;
}

/* Whether all values of the node are views of its inputs, or the inputs themselves, so that the dispatcher runs no
   kernel. */
static shoal_status find_views(const struct shoal_node *node, bool *is_view_out)
{
    const uint32_t effects = SHOAL_OP_IN_PLACE | SHOAL_OP_COLLECTIVE | SHOAL_OP_SIDE_EFFECT;
    struct map inputs = {.slots = NULL};
    shoal_status status = SHOAL_OK;
    size_t ignored;
    *is_view_out = node->op && node->is_alias && (flags_of(node) & effects) == 0;
    for (size_t i = 0; i < node->n_inputs && *is_view_out; i++) {
        const struct shoal_node *input = node->inputs[i];
        for (size_t k = 0; k < input->n_values && status == SHOAL_OK; k++) {
            const struct storage *storage = twins_find(node->graph, input->values[k]->storage);
            status = map_get_or_add(&inputs, map_key(storage), 0, &ignored);
        }
    }
    for (size_t i = 0; i < node->n_values && *is_view_out; i++) {
        *is_view_out = map_get(&inputs, map_key(node->values[i]->storage), &ignored);
    }
    map_free(&inputs);
    return status;
}

static shoal_status refuse(const struct walk *walk, const struct touch *touch, const struct flight_use *use)
{
    const char *verb = touch->writes ? "writes" : "reads";
    const char *state = use->is_write ? "written" : "read";
    const struct shoal_node *wait = walk->node;
    do {
        if ((flags_of(wait) & SHOAL_OP_WAIT) != 0 && ends_use(&walk->flight, wait, use)) {
            break;
        }
        wait = wait->next;
    } while (wait);
    if (wait) {
        (void)error_set(SHOAL_ERR_STATE,
                        "node %.64s %s node %.64s, whose memory is %s until node %.64s waits",
                        walk->node->name, verb, touch->node->name, state, wait->name);
    } else {
        (void)error_set(SHOAL_ERR_STATE,
                        "node %.64s %s node %.64s, whose memory is %s, and nobody waits for that",
                        walk->node->name, verb, touch->node->name, state);
    }
    return error_prefix(SHOAL_ERR_STATE, "node %.64s", use->start->name);
}

static shoal_status check_touch(void *context, const struct touch *touch)
{
    const struct walk *walk = context;
    const struct flight *flight = &walk->flight;
    const struct flight_storage *storage = flight_storage_of(flight, touch->node, touch->tensor);
    struct span span = tensor_span(touch->tensor);
    if (!storage || storage->tree.n_points == 0 || span.first == span.end) {
        return SHOAL_OK;
    }
    uint32_t owner = span_tree_find(&storage->tree, span, SPAN_WRITE);
    bool is_read = owner == SPAN_TREE_NONE && touch->writes &&
                   span_tree_find(&storage->tree, span, SPAN_READ) != SPAN_TREE_NONE;
    if (owner == SPAN_TREE_NONE && !is_read) {
        return SHOAL_OK;
    }
    bool is_view;
    TRY(find_views(walk->node, &is_view));
    const struct flight_use *use =
        is_read ? find_read(flight, (size_t)(storage - flight->storages), touch->tensor)
                : &flight->uses[owner];
    return is_view || !use ? SHOAL_OK : refuse(walk, touch, use);
}

/* The walk --------------------------------------------------------------------------------------------- */

static shoal_status visit(struct walk *walk)
{
    const struct shoal_node *node = walk->node;
    uint32_t flags = flags_of(node);
    if ((flags & SHOAL_OP_VIEW) != 0) {
        return SHOAL_OK;
    }
    if ((flags & SHOAL_OP_WAIT) != 0) {
        return flight_wait(&walk->flight, node, NULL, NULL);
    }
    if (walk->flight.n_open > 0) {
        TRY(touches_visit(node, check_touch, walk));
    }
    if (flight_is_start(node)) {
        flight_start(&walk->flight, node);
    }
    return SHOAL_OK;
}

shoal_status lint_flight(const struct shoal_graph *graph)
{
    struct walk walk = {.flight = {.graph = graph, .has_reads = true}};
    shoal_status status = flight_begin(&walk.flight);
    for (walk.node = walk.flight.first_start; walk.node && status == SHOAL_OK; walk.node = walk.node->next) {
        status = visit(&walk);
    }
    flight_free(&walk.flight);
    return status;
}
