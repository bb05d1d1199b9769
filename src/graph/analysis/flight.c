/* SPDX-License-Identifier: MIT */
#include "graph/analysis/flight.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "graph/ir/twins.h"
#include "op/op.h"
#include "tensor/tensor.h"

#define MAX_USES (SPAN_TREE_NONE / 4) /* points, and nodes of trees, are counted in 32 bits */

static enum span_use kind_of(const struct flight_use *use)
{
    return use->is_write ? SPAN_WRITE : SPAN_READ;
}

static bool is_empty(struct span span)
{
    return span.first == span.end;
}

static const struct storage *storage_of(const struct flight *flight, const struct shoal_node *node,
                                        const shoal_tensor *tensor)
{
    return node->kind == SHOAL_NODE_CONSTANT ? twins_find(flight->graph, tensor->storage) : tensor->storage;
}

static struct span span_here(const struct flight *flight, const struct shoal_node *node, size_t value)
{
    return tensor_span(flight->here ? flight->here(flight->context, node, value) : node->values[value]);
}

/* Uses of starts --------------------------------------------------------------------------------------- */

static shoal_status add_use(struct flight *flight, const struct shoal_node *node, size_t value, bool is_write)
{
    struct flight_use use = {.start = flight->node,
                             .span = span_here(flight, node, value),
                             .is_write = is_write,
                             .is_anywhere = flight->states[node->id].is_anywhere};
    const struct storage *storage = storage_of(flight, node, node->values[value]);
    size_t number;
    if (!is_write && (!flight->has_reads || is_empty(use.span))) {
        return SHOAL_OK;
    }
    if (flight->n_uses == MAX_USES) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "the graph has too many nodes that start communication");
    }
    TRY(map_get_or_add(&flight->numbers, map_key(storage), flight->numbers.count, &number));
    use.storage = (uint32_t)number;
    TRY(mem_grow((void **)&flight->uses, &flight->capacity, flight->n_uses + 1, sizeof *flight->uses));
    flight->uses[flight->n_uses++] = use;
    return SHOAL_OK;
}

static shoal_status collect_touch(void *context, const struct touch *touch)
{
    struct flight *flight = context;
    return add_use(flight, touch->node, touch->value, touch->writes);
}

static bool depends_on_rank(const shoal_arg *args, size_t n_args)
{
    for (size_t i = 0; i < n_args; i++) {
        if (args[i].kind == SHOAL_ARG_RANK ||
            (args[i].kind == SHOAL_ARG_LIST &&
             depends_on_rank(args[i].as.list.items, args[i].as.list.count))) {
            return true;
        }
    }
    return false;
}

/* Whether the place of the node's value depends on the rank. */
static bool is_anywhere(const struct flight *flight, const struct shoal_node *node)
{
    /* Such ops give their first argument, or views of it. */
    bool is_of_first = (node_flags(node) & (SHOAL_OP_VIEW | SHOAL_OP_IN_PLACE)) != 0 && node->n_args > 0 &&
                       node->args[0].kind == SHOAL_ARG_NODE;
    size_t n_bases = is_of_first ? 1 : node->n_inputs;
    if (!node->is_alias) {
        return false;
    }
    bool is = (node_flags(node) & SHOAL_OP_IN_PLACE) == 0 && depends_on_rank(node->args, node->n_args);
    for (size_t i = 0; i < n_bases && !is; i++) {
        is = flight->states[node->inputs[i]->id].is_anywhere;
    }
    return is;
}

static shoal_status collect_uses(struct flight *flight)
{
    const struct shoal_node *node = flight->is_any_rank ? flight->graph->first : flight->first_start;
    for (; node; node = node->next) {
        flight->states[node->id].is_anywhere = flight->is_any_rank && is_anywhere(flight, node);
        if (!flight_is_start(node)) {
            continue;
        }
        flight->node = node;
        flight->states[node->id].first_use = (uint32_t)flight->n_uses;
        TRY(touches_visit(node, collect_touch, flight));
        for (size_t i = 0; i < node->n_values; i++) {
            TRY(add_use(flight, node, i, /*is_write=*/true));
        }
    }
    return SHOAL_OK;
}

/* Whether the use is kept in the tree of its storage. */
static bool is_placed(const struct flight_use *use)
{
    return !is_empty(use->span) && !(use->is_write && use->is_anywhere);
}

static int compare_points(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a;
    uint64_t right = *(const uint64_t *)b;
    return left < right ? -1 : left > right ? 1 : 0;
}

/* Sorts the points and removes duplicates. Returns how many are left. */
static uint32_t tidy_points(uint64_t *points, uint32_t n_points)
{
    uint32_t n_kept = 1;
    if (n_points <= 2) { /* most storages have one span */
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

/* Collects the points of each storage; those of all storages are in one array. */
static shoal_status collect_points(struct flight *flight)
{
    size_t n_storages = flight->numbers.count;
    flight->storages = mem_alloc_zeroed(n_storages + 1, sizeof *flight->storages);
    flight->points = mem_alloc_zeroed(2 * flight->n_uses + 1, sizeof *flight->points);
    if (!flight->storages || !flight->points) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < flight->n_uses; i++) {
        const struct flight_use *use = &flight->uses[i];
        flight->storages[use->storage].tree.n_points += is_placed(use) ? 2 : 0;
    }
    uint64_t *points = flight->points;
    for (size_t i = 0; i < n_storages; i++) {
        flight->storages[i].tree.points = points;
        points += flight->storages[i].tree.n_points;
        flight->storages[i].tree.n_points = 0;
    }
    for (size_t i = 0; i < flight->n_uses; i++) {
        struct span_tree *tree = &flight->storages[flight->uses[i].storage].tree;
        if (is_placed(&flight->uses[i])) {
            tree->points[tree->n_points++] = flight->uses[i].span.first;
            tree->points[tree->n_points++] = flight->uses[i].span.end;
        }
    }
    return SHOAL_OK;
}

static uint32_t count_nodes(const struct span_tree *tree)
{
    return tree->n_points > 0 ? span_tree_n_nodes(tree->n_points) : 0;
}

/* Makes a tree for each storage. */
static shoal_status plant_trees(struct flight *flight)
{
    size_t n_nodes = 0;
    TRY(collect_points(flight));
    for (size_t i = 0; i < flight->numbers.count; i++) {
        struct span_tree *tree = &flight->storages[i].tree;
        tree->n_points = tidy_points(tree->points, tree->n_points);
        n_nodes += count_nodes(tree);
    }
    flight->nodes = mem_alloc_zeroed(n_nodes + 1, sizeof *flight->nodes);
    struct span_node *nodes = flight->nodes;
    for (size_t i = 0; i < flight->numbers.count && nodes; i++) {
        flight->storages[i].tree.nodes = nodes;
        nodes += count_nodes(&flight->storages[i].tree);
    }
    return nodes ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

shoal_status flight_begin(struct flight *flight)
{
    const struct shoal_node *node = flight->graph->first;
    while (node && !flight_is_start(node)) {
        node = node->next;
    }
    flight->first_start = node;
    if (!node) {
        return SHOAL_OK;
    }
    flight->states = mem_alloc_zeroed((size_t)flight->graph->n_ids + 1, sizeof *flight->states);
    if (!flight->states) {
        return SHOAL_ERR_NO_MEMORY;
    }
    TRY(collect_uses(flight));
    return plant_trees(flight);
}

void flight_free(struct flight *flight)
{
    map_free(&flight->numbers);
    mem_free(flight->uses);
    mem_free(flight->storages);
    mem_free(flight->points);
    mem_free(flight->nodes);
    mem_free(flight->states);
}

const struct flight_storage *flight_storage_of(const struct flight *flight, const struct shoal_node *node,
                                               const shoal_tensor *tensor)
{
    size_t number;
    bool is_there = map_get(&flight->numbers, map_key(storage_of(flight, node, tensor)), &number);
    return is_there ? &flight->storages[number] : NULL;
}

/* Opening and closing ---------------------------------------------------------------------------------- */

static uint32_t *list_of(struct flight *flight, const struct flight_use *use)
{
    struct flight_storage *storage = &flight->storages[use->storage];
    return is_placed(use) ? &storage->placed : &storage->loose;
}

static void open_use(struct flight *flight, size_t index)
{
    struct flight_use *use = &flight->uses[index];
    if (is_placed(use)) {
        span_tree_open(&flight->storages[use->storage].tree, use->span, kind_of(use), (uint32_t)index);
    }
    if (use->is_write) {
        uint32_t *first = list_of(flight, use);
        use->prev = 0;
        use->next = *first;
        *first = (uint32_t)index + 1;
        if (use->next > 0) {
            flight->uses[use->next - 1].prev = (uint32_t)index + 1;
        }
    }
    use->is_open = true;
    flight->n_open++;
}

static void close_use(struct flight *flight, size_t index)
{
    struct flight_use *use = &flight->uses[index];
    if (!use->is_open) {
        return;
    }
    if (is_placed(use)) {
        span_tree_close(&flight->storages[use->storage].tree, use->span, kind_of(use), (uint32_t)index);
    }
    if (use->is_write) {
        *(use->prev > 0 ? &flight->uses[use->prev - 1].next : list_of(flight, use)) = use->next;
        if (use->next > 0) {
            flight->uses[use->next - 1].prev = use->prev;
        }
    }
    use->is_open = false;
    flight->n_open--;
}

/* The walk --------------------------------------------------------------------------------------------- */

void flight_start(struct flight *flight, const struct shoal_node *start)
{
    struct flight_state *state = &flight->states[start->id];
    state->giver = start;
    for (size_t i = state->first_use; i < flight->n_uses && flight->uses[i].start == start; i++) {
        open_use(flight, i);
    }
}

void flight_pass(struct flight *flight, const struct shoal_node *node)
{
    if (flight->states && node->is_alias && node->n_inputs == 1) {
        flight->states[node->id].giver = flight->states[node->inputs[0]->id].giver;
    }
}

/* The wait that is being processed. */
struct waiting {
    struct flight *flight;
    flight_end end;
    void *context;
    const struct shoal_node *node; /* the node whose value it waits for */
    struct span span;
    size_t bytes; /* of the storage */
};

static shoal_status end_start(const struct waiting *waiting, const struct shoal_node *start, bool is_certain)
{
    struct flight *flight = waiting->flight;
    struct flight_state *state = &flight->states[start->id];
    if (state->has_ended) {
        return SHOAL_OK;
    }
    state->has_ended = is_certain;
    for (size_t i = state->first_use; is_certain && i < flight->n_uses && flight->uses[i].start == start;
         i++) {
        if (!flight->uses[i].is_write) {
            close_use(flight, i);
        }
    }
    return waiting->end ? waiting->end(waiting->context, start, is_certain) : SHOAL_OK;
}

static shoal_status end_use(const struct waiting *waiting, size_t index, bool is_certain)
{
    const struct shoal_node *start = waiting->flight->uses[index].start;
    if (is_certain) {
        close_use(waiting->flight, index);
    }
    return end_start(waiting, start, is_certain);
}

/* Ends the writes that are in the tree. */
static shoal_status end_placed(const struct waiting *waiting, const struct flight_storage *storage)
{
    struct flight *flight = waiting->flight;
    if (flight->states[waiting->node->id].is_anywhere) {
        for (uint32_t at = storage->placed; at > 0;) {
            size_t index = at - 1;
            at = flight->uses[index].next;
            bool is_certain = flight->states[waiting->node->id].giver == flight->uses[index].start;
            TRY(end_use(waiting, index, is_certain));
        }
        return SHOAL_OK;
    }
    uint32_t owner;
    while (storage->tree.n_points > 0 &&
           (owner = span_tree_find(&storage->tree, waiting->span, SPAN_WRITE)) != SPAN_TREE_NONE) {
        TRY(end_use(waiting, owner, /*is_certain=*/true));
    }
    return SHOAL_OK;
}

static shoal_status end_loose(const struct waiting *waiting, const struct flight_storage *storage)
{
    struct flight *flight = waiting->flight;
    const struct flight_state *waited = &flight->states[waiting->node->id];
    bool is_nothing = is_empty(waiting->span);
    bool is_all = !waited->is_anywhere && waiting->span.first == 0 && waiting->span.end == waiting->bytes;
    for (uint32_t at = storage->loose; at > 0;) {
        size_t index = at - 1;
        const struct flight_use *use = &flight->uses[index];
        at = use->next;
        if (is_nothing == is_empty(use->span)) {
            bool is_certain = is_nothing || is_all || waited->giver == use->start;
            TRY(end_use(waiting, index, is_certain));
        }
    }
    return SHOAL_OK;
}

shoal_status flight_wait(struct flight *flight, const struct shoal_node *wait, flight_end end, void *context)
{
    if (flight->n_open == 0) {
        return SHOAL_OK;
    }
    for (size_t i = 0; i < wait->n_inputs; i++) {
        const struct shoal_node *node = wait->inputs[i];
        for (size_t k = 0; k < node->n_values; k++) {
            const struct flight_storage *storage = flight_storage_of(flight, node, node->values[k]);
            struct waiting waiting = {.flight = flight,
                                      .end = end,
                                      .context = context,
                                      .node = node,
                                      .span = span_here(flight, node, k),
                                      .bytes = node->values[k]->storage->bytes};
            if (storage && !is_empty(waiting.span)) {
                TRY(end_placed(&waiting, storage));
            }
            if (storage && storage->loose > 0) {
                TRY(end_loose(&waiting, storage));
            }
        }
    }
    return SHOAL_OK;
}
