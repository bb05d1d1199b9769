/* SPDX-License-Identifier: MIT */
/*
 * Memory that communication uses between a start and its wait. What the start writes or gives is touched by nobody until a wait of
 * that memory; what it only reads is not written until the first wait of anything that it gives. Memory is a span of bytes of a
 * storage, as in tensor/storage.h: views are looked through, and parts of a storage that are apart do not matter to each other.
 * Where a view lies by the number of the rank, it is taken to lie where meta tensors have it.
 *
 * One walk collects what starts use, another one follows it along the list: n log n in the number of spans of a storage.
 */
#include "graph/lint_flight.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "graph/accesses.h"
#include "graph/span_tree.h"
#include "graph/storage_map.h"
#include "graph/touches.h"
#include "graph/twins.h"
#include "op/op.h"
#include "tensor/tensor.h"

#define MAX_USES (SPAN_TREE_NONE / 4) /* points, and nodes of trees, are counted in 32 bits */

/* What a start uses. */
struct use {
    const struct shoal_node *start;
    struct span span;
    uint32_t storage;
    bool is_write;
    bool is_open;
};

struct state {
    const struct shoal_node *start; /* whose result the node gives, itself or as a view */
    uint32_t first_use;             /* of a start; its uses follow each other */
    bool has_ended;                 /* of a start: something it gives has been waited for */
};

struct walk {
    const struct shoal_graph *graph;
    const struct shoal_node *first_start;
    struct storage_map numbers; /* of storages that starts use */
    struct use *uses;           /* in the order of starts */
    size_t n_uses;              /* at most MAX_USES */
    size_t capacity;
    struct span_tree *trees; /* by storage */
    uint64_t *points;
    struct span_node *nodes;
    struct state *states; /* by id */
    size_t n_open;
    size_t next_use;               /* of the start that comes next */
    const struct shoal_node *node; /* whose turn it is */
};

static uint32_t flags_of(const struct shoal_node *node)
{
    return node->op ? node->op->flags : 0;
}

static bool is_start(const struct shoal_node *node)
{
    return (flags_of(node) & SHOAL_OP_COLLECTIVE) != 0;
}

static enum span_use kind_of(const struct use *use)
{
    return use->is_write ? SPAN_WRITE : SPAN_READ;
}

static const struct storage *storage_of(const struct walk *walk, const struct shoal_node *node,
                                        const shoal_tensor *tensor)
{
    return node->kind == SHOAL_NODE_CONSTANT ? twins_find(walk->graph, tensor->storage) : tensor->storage;
}

/* What starts use -------------------------------------------------------------------------------------- */

static shoal_status add_use(struct walk *walk, const struct storage *storage, const shoal_tensor *tensor,
                            bool is_write)
{
    struct use use = {.start = walk->node, .span = tensor_span(tensor), .is_write = is_write};
    size_t number;
    if (use.span.first == use.span.end) {
        return SHOAL_OK;
    }
    if (walk->n_uses == MAX_USES) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "more communication than can be counted");
    }
    if (!storage_map_get(&walk->numbers, storage, &number)) {
        number = walk->numbers.count;
        TRY(storage_map_add(&walk->numbers, storage, number));
    }
    use.storage = (uint32_t)number;
    TRY(mem_grow((void **)&walk->uses, &walk->capacity, walk->n_uses + 1, sizeof *walk->uses));
    walk->uses[walk->n_uses++] = use;
    return SHOAL_OK;
}

static shoal_status collect_touch(void *context, const struct touch *touch)
{
    struct walk *walk = context;
    return add_use(walk, storage_of(walk, touch->node, touch->tensor), touch->tensor, touch->writes);
}

static shoal_status collect_uses(struct walk *walk)
{
    for (walk->node = walk->first_start; walk->node; walk->node = walk->node->next) {
        const struct shoal_node *node = walk->node;
        if (!is_start(node)) {
            continue;
        }
        walk->states[node->id].first_use = (uint32_t)walk->n_uses;
        TRY(touches_visit(node, collect_touch, walk));
        for (size_t i = 0; i < node->n_values; i++) {
            TRY(add_use(walk, node->values[i]->storage, node->values[i], /*is_write=*/true));
        }
    }
    return SHOAL_OK;
}

static int compare_points(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a;
    uint64_t right = *(const uint64_t *)b;
    return left < right ? -1 : left > right ? 1 : 0;
}

/* Sorted, and each once. */
static uint32_t tidy_points(uint64_t *points, uint32_t n_points)
{
    uint32_t n_kept = 1;
    if (n_points == 2) { /* those of one span, as most are */
        return n_points;
    }
    qsort(points, n_points, sizeof *points, compare_points);
    for (uint32_t i = 1; i < n_points; i++) {
        if (points[i] != points[n_kept - 1]) {
            points[n_kept++] = points[i];
        }
    }
    return n_kept;
}

/* The points of each storage, in a part of one array. */
static shoal_status collect_points(struct walk *walk)
{
    size_t n_storages = walk->numbers.count;
    walk->trees = mem_alloc_zeroed(n_storages + 1, sizeof *walk->trees);
    walk->points = mem_alloc_zeroed(2 * walk->n_uses + 1, sizeof *walk->points);
    if (!walk->trees || !walk->points) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < walk->n_uses; i++) {
        walk->trees[walk->uses[i].storage].n_points += 2;
    }
    uint64_t *points = walk->points;
    for (size_t i = 0; i < n_storages; i++) {
        walk->trees[i].points = points;
        points += walk->trees[i].n_points;
        walk->trees[i].n_points = 0;
    }
    for (size_t i = 0; i < walk->n_uses; i++) {
        struct span_tree *tree = &walk->trees[walk->uses[i].storage];
        tree->points[tree->n_points++] = walk->uses[i].span.first;
        tree->points[tree->n_points++] = walk->uses[i].span.end;
    }
    return SHOAL_OK;
}

/* A tree for each storage. */
static shoal_status plant_trees(struct walk *walk)
{
    size_t n_nodes = 0;
    TRY(collect_points(walk));
    for (size_t i = 0; i < walk->numbers.count; i++) {
        walk->trees[i].n_points = tidy_points(walk->trees[i].points, walk->trees[i].n_points);
        n_nodes += span_tree_n_nodes(walk->trees[i].n_points);
    }
    walk->nodes = mem_alloc_zeroed(n_nodes + 1, sizeof *walk->nodes);
    struct span_node *nodes = walk->nodes;
    for (size_t i = 0; i < walk->numbers.count && nodes; i++) {
        walk->trees[i].nodes = nodes;
        nodes += span_tree_n_nodes(walk->trees[i].n_points);
    }
    return nodes ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

/* NULL: no start uses the storage. */
static struct span_tree *find_tree(const struct walk *walk, const struct storage *storage)
{
    size_t number;
    return storage_map_get(&walk->numbers, storage, &number) ? &walk->trees[number] : NULL;
}

static void open_use(struct walk *walk, size_t index)
{
    struct use *use = &walk->uses[index];
    span_tree_open(&walk->trees[use->storage], use->span, kind_of(use), (uint32_t)index);
    use->is_open = true;
    walk->n_open++;
}

static void close_use(struct walk *walk, size_t index)
{
    struct use *use = &walk->uses[index];
    if (use->is_open) {
        span_tree_close(&walk->trees[use->storage], use->span, kind_of(use), (uint32_t)index);
        use->is_open = false;
        walk->n_open--;
    }
}

/* What is refused -------------------------------------------------------------------------------------- */

static bool overlap(struct span a, struct span b)
{
    return a.first < b.end && b.first < a.end;
}

/* Some start reads bytes of the tensor: gives the use. */
static const struct use *find_read(const struct walk *walk, size_t storage, const shoal_tensor *tensor)
{
    for (size_t i = 0; i < walk->n_uses; i++) {
        const struct use *use = &walk->uses[i];
        if (use->is_open && !use->is_write && use->storage == storage &&
            overlap(use->span, tensor_span(tensor))) {
            return use;
        }
    }
    return NULL;
}

/* Whether a wait ends the use. */
static bool ends_use(const struct walk *walk, const struct shoal_node *wait, const struct use *use)
{
    for (size_t i = 0; i < wait->n_inputs; i++) {
        const struct shoal_node *from = wait->inputs[i];
        for (size_t k = 0; k < from->n_values; k++) {
            size_t storage;
            bool is_same =
                storage_map_get(&walk->numbers, storage_of(walk, from, from->values[k]), &storage) &&
                storage == use->storage && overlap(tensor_span(from->values[k]), use->span);
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

/* Whether all it gives are views of its inputs, or these themselves: then no kernel runs, as in the dispatcher. */
static shoal_status find_views(const struct shoal_node *node, bool *is_view_out)
{
    const uint32_t effects = SHOAL_OP_IN_PLACE | SHOAL_OP_COLLECTIVE | SHOAL_OP_SIDE_EFFECT;
    struct storage_map inputs = {.slots = NULL};
    shoal_status status = SHOAL_OK;
    size_t ignored;
    *is_view_out = node->op && node->is_alias && (flags_of(node) & effects) == 0;
    for (size_t i = 0; i < node->n_inputs && *is_view_out; i++) {
        const struct shoal_node *input = node->inputs[i];
        for (size_t k = 0; k < input->n_values && status == SHOAL_OK; k++) {
            const struct storage *storage = twins_find(node->graph, input->values[k]->storage);
            bool is_there = storage_map_get(&inputs, storage, &ignored);
            status = is_there ? SHOAL_OK : storage_map_add(&inputs, storage, 0);
        }
    }
    for (size_t i = 0; i < node->n_values && *is_view_out; i++) {
        *is_view_out = storage_map_get(&inputs, node->values[i]->storage, &ignored);
    }
    storage_map_free(&inputs);
    return status;
}

static shoal_status refuse(const struct walk *walk, const struct touch *touch, const struct use *use)
{
    const char *verb = touch->writes ? "writes" : "reads";
    const char *state = use->is_write ? "written" : "read";
    const struct shoal_node *wait = walk->node;
    do {
        if ((flags_of(wait) & SHOAL_OP_WAIT) != 0 && ends_use(walk, wait, use)) {
            break;
        }
        wait = wait->next;
    } while (wait);
    if (wait) {
        (void)error_set(SHOAL_ERR_STATE, "node %.64s %s node %.64s, memory that is %s until node %.64s waits",
                        walk->node->name, verb, touch->node->name, state, wait->name);
    } else {
        (void)error_set(SHOAL_ERR_STATE,
                        "node %.64s %s node %.64s, memory that is %s, and nobody waits for that",
                        walk->node->name, verb, touch->node->name, state);
    }
    return error_prefix(SHOAL_ERR_STATE, "node %.64s", use->start->name);
}

static shoal_status check_touch(void *context, const struct touch *touch)
{
    const struct walk *walk = context;
    const struct span_tree *tree = find_tree(walk, storage_of(walk, touch->node, touch->tensor));
    struct span span = tensor_span(touch->tensor);
    if (!tree || span.first == span.end) {
        return SHOAL_OK;
    }
    uint32_t owner = span_tree_find(tree, span, SPAN_WRITE);
    bool is_read =
        owner == SPAN_TREE_NONE && touch->writes && span_tree_find(tree, span, SPAN_READ) != SPAN_TREE_NONE;
    if (owner == SPAN_TREE_NONE && !is_read) {
        return SHOAL_OK;
    }
    bool is_view;
    TRY(find_views(walk->node, &is_view));
    const struct use *use =
        is_read ? find_read(walk, (size_t)(tree - walk->trees), touch->tensor) : &walk->uses[owner];
    return is_view || !use ? SHOAL_OK : refuse(walk, touch, use);
}

/* Starts and waits ------------------------------------------------------------------------------------- */

static void open_start(struct walk *walk)
{
    walk->states[walk->node->id].start = walk->node;
    for (; walk->next_use < walk->n_uses && walk->uses[walk->next_use].start == walk->node;
         walk->next_use++) {
        open_use(walk, walk->next_use);
    }
}

/* One work carries all that a start gives: once anything has been waited for, what it reads is free. What it writes is not:
   passes know of each storage by its own wait that it has its contents. */
static void end_start(struct walk *walk, const struct shoal_node *start)
{
    struct state *state = &walk->states[start->id];
    for (size_t i = state->first_use; !state->has_ended && i < walk->n_uses && walk->uses[i].start == start;
         i++) {
        if (!walk->uses[i].is_write) {
            close_use(walk, i);
        }
    }
    state->has_ended = true;
}

static void close_waited(struct walk *walk)
{
    for (size_t i = 0; i < walk->node->n_inputs; i++) {
        const struct shoal_node *input = walk->node->inputs[i];
        const struct shoal_node *start = walk->states[input->id].start;
        if (start) {
            end_start(walk, start);
        }
        for (size_t k = 0; k < input->n_values; k++) {
            const struct span_tree *tree = find_tree(walk, storage_of(walk, input, input->values[k]));
            struct span span = tensor_span(input->values[k]);
            uint32_t owner = SPAN_TREE_NONE;
            while (tree && span.first < span.end &&
                   (owner = span_tree_find(tree, span, SPAN_WRITE)) != SPAN_TREE_NONE) {
                close_use(walk, owner);
                end_start(walk, walk->uses[owner].start);
            }
        }
    }
}

static shoal_status visit(struct walk *walk)
{
    const struct shoal_node *node = walk->node;
    uint32_t flags = flags_of(node);
    if ((flags & SHOAL_OP_VIEW) != 0) {
        walk->states[node->id].start = node->n_inputs > 0 ? walk->states[node->inputs[0]->id].start : NULL;
        return SHOAL_OK;
    }
    if (walk->n_open > 0 && (flags & SHOAL_OP_WAIT) != 0) {
        close_waited(walk);
    } else if (walk->n_open > 0) {
        TRY(touches_visit(node, check_touch, walk));
    }
    if ((flags & SHOAL_OP_COLLECTIVE) != 0) {
        open_start(walk);
    }
    return SHOAL_OK;
}

static shoal_status walk_along(struct walk *walk)
{
    walk->states = mem_alloc_zeroed((size_t)walk->graph->n_ids + 1, sizeof *walk->states);
    if (!walk->states) {
        return SHOAL_ERR_NO_MEMORY;
    }
    TRY(collect_uses(walk));
    TRY(plant_trees(walk));
    for (walk->node = walk->first_start; walk->node; walk->node = walk->node->next) {
        TRY(visit(walk));
    }
    return SHOAL_OK;
}

shoal_status lint_flight(const struct shoal_graph *graph)
{
    struct walk walk = {.graph = graph, .first_start = graph->first};
    while (walk.first_start && !is_start(walk.first_start)) {
        walk.first_start = walk.first_start->next;
    }
    if (!walk.first_start || accesses_are_plain(graph)) {
        return SHOAL_OK;
    }
    shoal_status status = walk_along(&walk);
    storage_map_free(&walk.numbers);
    mem_free(walk.uses);
    mem_free(walk.trees);
    mem_free(walk.points);
    mem_free(walk.nodes);
    mem_free(walk.states);
    return status;
}
