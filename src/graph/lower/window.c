/* SPDX-License-Identifier: MIT */
/*
 * A gather whose results are only read goes into a window, which all ranks of a host share. Each rank writes its own
 * row there. What it writes, its sources, need not be one tensor, and is converted to the window's dtype on the way. So
 * some nodes need no step:
 *
 *   - a conversion that only the gather reads, if nobody writes its input before the gather has ended;
 *   - a cat that only the gather reads, under the same condition;
 *   - copies of the cat's pieces out of the gathered rows, which the bucketing passes make. If all readers of the
 *     result are such copies, each source gets rows of its own in the window, one for each rank, and the copy is these
 *     rows.
 *
 * All of this follows from the graph, so all ranks decide alike.
 */
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "graph/lower/lower.h"
#include "op/op.h"

static size_t align_up(size_t bytes)
{
    return (bytes + MEM_DATA_ALIGNMENT - 1) / MEM_DATA_ALIGNMENT * MEM_DATA_ALIGNMENT;
}

static struct lowered_storage *storage_of(const struct shoal_lowering *lowering,
                                          const struct shoal_node *node, size_t value)
{
    return &lowering->storages[lower_number(lowering, node->values[value])];
}

/* Which gathers ---------------------------------------------------------------------------------------- */

static bool is_gather(const struct shoal_node *node)
{
    if (node->op->index == OP_all_gather_tensor) {
        int64_t dim = node->args[1].kind == SHOAL_ARG_INT ? node->args[1].as.integer : -1;
        int n_dims = node->values[0]->layout.n_dims;
        dim = dim < 0 ? dim + n_dims : dim;
        for (int64_t i = 0; i < dim; i++) {
            if (node->values[0]->layout.shape[i] != 1) {
                return false;
            }
        }
        return true;
    }
    return node->op->index == OP_all_gather_into_tensor ||
           node->op->index == OP_all_gather_into_tensor_coalesced;
}

bool lower_has_windows(const struct shoal_lowering *lowering, uint32_t group)
{
    const struct plan_target *target = lowering->target;
    return !target->has_windows || target->has_windows(target->context, lowering->groups[group]);
}

static bool can_gather(const struct shoal_lowering *lowering, const struct shoal_node *node)
{
    if (lowering->options->no_comm_buffers || !is_gather(node)) {
        return false;
    }
    for (size_t i = 0; i < node->n_values; i++) {
        const struct lowered_storage *result = storage_of(lowering, node, i);
        if (result->n_writes > 0 || result->is_output || result->bytes == 0) {
            return false;
        }
    }
    uint32_t group = lower_group(lowering, node);
    return lowering->plan->groups[group].size > 1 && lower_has_windows(lowering, group);
}

/* Returns the place of the first wait for a start; UINT32_MAX if none was found. */
static uint32_t first_wait(const struct shoal_lowering *lowering, const struct shoal_node *start)
{
    uint32_t first = UINT32_MAX;
    for (const struct edge *use = start->first_use; use; use = use->next) {
        const struct shoal_node *user = use->user;
        uint32_t place = UINT32_MAX;
        if ((node_flags(user) & SHOAL_OP_WAIT) != 0) {
            place = lowering->nodes[user->id].place;
        } else if (user->op && user->op->index == OP_getitem) {
            place = first_wait(lowering, user);
        }
        first = place < first ? place : first;
    }
    return first;
}

/* Sources ---------------------------------------------------------------------------------------------- */

/* Whether the node makes a storage that its value fills, and that only the node at `place` reads. */
static bool is_only_for(const struct shoal_lowering *lowering, const struct shoal_node *node, size_t value,
                        uint32_t place)
{
    const struct lowered_storage *storage = storage_of(lowering, node, value);
    return storage->creator == node && storage->n_uses == 1 && storage->last_use == place &&
           tensor_bytes(node->values[value]) == storage->bytes;
}

void lower_extend_use(struct lowered_storage *storage, uint32_t place)
{
    storage->last_use = place > storage->last_use ? place : storage->last_use;
    storage->last_user = place > storage->last_user ? place : storage->last_user;
    if (storage->last_copy > place) {
        storage->before_copy = place > storage->before_copy ? place : storage->before_copy;
    }
}

/* Whether the node is a conversion of a contiguous tensor that is not written before the gather has ended. */
static bool can_cast(const struct shoal_lowering *lowering, const struct shoal_node *node, uint32_t until)
{
    if (node->kind != SHOAL_NODE_CALL || node->op->index != OP_to_dtype || until == UINT32_MAX) {
        return false;
    }
    const struct shoal_node *from = node->args[0].as.node;
    uint32_t number = lower_number(lowering, from->values[0]);
    return lower_here(lowering, from, 0)->is_contiguous &&
           !lower_is_written(lowering, number, lowering->nodes[node->id].place, until);
}

/* Fills in the source for a value of a node that the node at `place` reads. A conversion is left out if possible. */
static void find_source(struct shoal_lowering *lowering, const struct shoal_node *node, size_t value,
                        uint32_t place, uint32_t until, struct window_source *source)
{
    size_t base_value = value;
    const struct shoal_node *base = lower_strip_views(lowering, node, &base_value);
    source->row_bytes = tensor_bytes(node->values[value]);
    source->node = node;
    source->value = value;
    if (base->kind == SHOAL_NODE_CALL && base->op && !lower_is_view(lowering, base) &&
        is_only_for(lowering, base, base_value, place) && can_cast(lowering, base, until)) {
        lowering->nodes[base->id].is_absorbed = true;
        source->node = base->args[0].as.node;
        source->value = 0;
        lower_extend_use(storage_of(lowering, source->node, 0), until);
    }
}

/* Returns the one-dimensional cat that makes the gather's input, if only the gather reads it; otherwise NULL. */
static const struct shoal_node *find_cat(const struct shoal_lowering *lowering,
                                         const struct shoal_node *gather)
{
    size_t value = 0;
    const shoal_arg *arg = &gather->args[0];
    if (arg->kind != SHOAL_ARG_NODE || arg->as.node->is_list) {
        return NULL;
    }
    const struct shoal_node *cat = lower_strip_views(lowering, arg->as.node, &value);
    if (cat->kind != SHOAL_NODE_CALL || !cat->op || cat->op->index != OP_cat ||
        cat->values[0]->layout.n_dims != 1 || cat->args[0].kind != SHOAL_ARG_LIST ||
        cat->args[0].as.list.count == 0 ||
        !is_only_for(lowering, cat, 0, lowering->nodes[gather->id].place)) {
        return NULL;
    }
    /* Between the cat and the end of the gather nobody may write what it puts together. */
    uint32_t until = first_wait(lowering, gather);
    for (size_t i = 0; i < cat->args[0].as.list.count; i++) {
        const struct shoal_node *item = cat->args[0].as.list.items[i].as.node;
        if (until == UINT32_MAX || item->values[0]->dtype != cat->values[0]->dtype ||
            lower_is_written(lowering, lower_number(lowering, item->values[0]),
                             lowering->nodes[cat->id].place, until)) {
            return NULL;
        }
    }
    return cat;
}

static shoal_status find_cat_sources(struct shoal_lowering *lowering, struct window_gather *gather,
                                     const struct shoal_node *cat)
{
    uint32_t until = first_wait(lowering, gather->node);
    size_t count = cat->args[0].as.list.count;
    size_t at = 0;
    gather->sources = arena_alloc(&lowering->scratch, count, sizeof *gather->sources);
    if (!gather->sources) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        struct window_source *source = &gather->sources[i];
        const struct shoal_node *item = cat->args[0].as.list.items[i].as.node;
        find_source(lowering, item, 0, lowering->nodes[cat->id].place, until, source);
        lower_extend_use(storage_of(lowering, source->node, source->value), until);
        source->at = at;
        at += source->row_bytes;
    }
    gather->n_sources = count;
    lowering->nodes[cat->id].is_absorbed = true;
    return SHOAL_OK;
}

static shoal_status find_plain_sources(struct shoal_lowering *lowering, struct window_gather *gather)
{
    const struct shoal_node *node = gather->node;
    uint32_t until = first_wait(lowering, node);
    gather->sources = arena_alloc(&lowering->scratch, node->n_values, sizeof *gather->sources);
    if (!gather->sources) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < node->n_values; i++) {
        size_t value = 0;
        const struct shoal_node *item =
            node->op->returns_list ? lower_item(&node->args[0], i, &value) : node->args[0].as.node;
        find_source(lowering, item, value, lowering->nodes[node->id].place, until, &gather->sources[i]);
        gather->sources[i].result = i;
    }
    gather->n_sources = node->n_values;
    return SHOAL_OK;
}

/* Copies out of rows ----------------------------------------------------------------------------------- */

/* A walk over all readers of a gather's result. It is made twice: `places` is NULL while it finds out whether all of
   them are copies of sources; then it leaves these copies out. */
struct unpacking {
    struct shoal_lowering *lowering;
    struct window_gather *gather;
    size_t total;         /* bytes of a row */
    size_t n_uses;        /* copies that were seen */
    const size_t *places; /* offsets of sources in the window; NULL during the first walk */
    bool can;             /* all readers so far are such copies */
};

/* Returns the index of the source whose rows a view shows, all of them and in order; n_sources: none. */
static size_t find_rows(const struct unpacking *unpacking, const shoal_tensor *view)
{
    const struct window_gather *gather = unpacking->gather;
    int64_t n_ranks = (int64_t)unpacking->lowering->plan->groups[gather->group].size;
    size_t element = shoal_dtype_bytes(view->dtype);
    int64_t strides[2];
    if (view->count == 0 || view->count % n_ranks != 0) {
        return gather->n_sources;
    }
    int64_t shape[2] = {n_ranks, view->count / n_ranks};
    if (!layout_view_strides(&view->layout, 2, shape, strides) ||
        (size_t)strides[0] * element != unpacking->total || (shape[1] > 1 && strides[1] != 1)) {
        return gather->n_sources;
    }
    size_t at = (size_t)view->layout.offset * element;
    size_t low = 0; /* sources lie in order: the first that ends behind `at` */
    size_t high = gather->n_sources;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct window_source *source = &gather->sources[middle];
        if (source->at + source->row_bytes <= at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    bool is_all = low < gather->n_sources && gather->sources[low].at == at &&
                  gather->sources[low].row_bytes == (size_t)shape[1] * element;
    return is_all ? low : gather->n_sources;
}

static bool is_copy(const struct shoal_node *node)
{
    static const enum op_id copies[] = {OP_reshape, OP_flatten, OP_contiguous, OP_clone};
    for (size_t i = 0; i < sizeof copies / sizeof copies[0]; i++) {
        if (node->op && node->op->index == (int)copies[i]) {
            return true;
        }
    }
    return false;
}

static void see_copy(struct unpacking *unpacking, struct shoal_node *copy, const struct shoal_node *view)
{
    struct shoal_lowering *lowering = unpacking->lowering;
    /* If the position of the view depended on the rank, ranks would decide differently. */
    bool is_fixed = !lowering->nodes[view->id].here;
    size_t index = is_copy(copy) && is_fixed ? find_rows(unpacking, view->values[0]) : SIZE_MAX;
    struct lowered_storage *result = is_copy(copy) ? storage_of(lowering, copy, 0) : NULL;
    if (!result || index >= unpacking->gather->n_sources || result->n_writes > 0 || result->is_output ||
        result->inside != PLAN_NONE) {
        unpacking->can = false;
        return;
    }
    unpacking->n_uses++;
    if (unpacking->places) {
        lowering->nodes[copy->id].is_absorbed = true;
        result->inside = lower_number(lowering, unpacking->gather->node->values[0]);
        result->inside_at = unpacking->places[index];
    }
}

/* Visits all readers of `node`, whose value is the gathered rows or a view of them. */
static void see_users(struct unpacking *unpacking, const struct shoal_node *node)
{
    for (const struct edge *use = node->first_use; use && unpacking->can; use = use->next) {
        struct shoal_node *user = use->user;
        if (user->kind == SHOAL_NODE_OUTPUT) {
            unpacking->can = false;
        } else if ((node_flags(user) & SHOAL_OP_WAIT) != 0 || lower_is_view(unpacking->lowering, user)) {
            see_users(unpacking, user);
        } else if (node->is_list) {
            unpacking->can = false;
        } else {
            see_copy(unpacking, user, node);
        }
    }
}

/* Gives each source rows of its own, if all readers of the result are copies of sources. */
static void unpack(struct shoal_lowering *lowering, struct window_gather *gather)
{
    struct lowered_storage *result = storage_of(lowering, gather->node, 0);
    size_t n_ranks = lowering->plan->groups[gather->group].size;
    struct unpacking unpacking = {
        .lowering = lowering, .gather = gather, .total = result->bytes / n_ranks, .can = true};
    see_users(&unpacking, gather->node);
    if (!unpacking.can || unpacking.n_uses != result->n_uses) {
        return;
    }
    size_t *places = arena_alloc(&lowering->scratch, gather->n_sources, sizeof *places);
    if (!places) {
        return;
    }
    size_t at = 0;
    for (size_t i = 0; i < gather->n_sources; i++) {
        places[i] = at;
        at = align_up(at + gather->sources[i].row_bytes * n_ranks);
    }
    unpacking.places = places;
    see_users(&unpacking, gather->node);
    for (size_t i = 0; i < gather->n_sources; i++) {
        gather->sources[i].at = places[i];
    }
    gather->is_unpacked = true;
    gather->bytes = at;
}

/* Finding them ----------------------------------------------------------------------------------------- */

static shoal_status find_gather(struct shoal_lowering *lowering, struct shoal_node *node)
{
    struct window_gather *gather = arena_alloc(&lowering->scratch, 1, sizeof *gather);
    if (!gather) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *gather =
        (struct window_gather){.node = node, .group = lower_group(lowering, node), .collective = PLAN_NONE};
    const struct shoal_node *cat = find_cat(lowering, node);
    if (cat) {
        TRY(find_cat_sources(lowering, gather, cat));
        unpack(lowering, gather);
    } else {
        TRY(find_plain_sources(lowering, gather));
    }
    lowering->nodes[node->id].gather = gather;
    if (lowering->last_gather) {
        lowering->last_gather->next = gather;
    } else {
        lowering->gathers = gather;
    }
    lowering->last_gather = gather;
    return SHOAL_OK;
}

shoal_status lower_find_windows(struct shoal_lowering *lowering)
{
    GRAPH_EACH(lowering->graph, node)
    {
        if (node->kind == SHOAL_NODE_CALL && node->op && can_gather(lowering, node)) {
            TRY(find_gather(lowering, node));
        }
    }
    return SHOAL_OK;
}

/* The start -------------------------------------------------------------------------------------------- */

/* Makes buffers for the results, and writes to `begins` where each begins in the window. */
static shoal_status make_results(struct shoal_lowering *lowering, struct window_gather *gather,
                                 uint32_t number, size_t *begins)
{
    size_t at = 0;
    for (size_t i = 0; i < gather->node->n_values; i++) {
        struct lowered_storage *result = storage_of(lowering, gather->node, i);
        size_t bytes = gather->is_unpacked ? gather->bytes : result->bytes;
        TRY(lower_add_buffer(lowering, PLAN_WINDOW, bytes, gather->node->name, &result->buffer));
        struct plan_buffer *buffer = &lowering->plan->buffers[result->buffer];
        buffer->gather = number;
        buffer->offset = at;
        begins[i] = at;
        at = align_up(at + bytes);
    }
    gather->bytes = at;
    return SHOAL_OK;
}

static shoal_status say_pieces(struct shoal_lowering *lowering, const struct window_gather *gather)
{
    for (size_t i = 0; i < gather->node->n_values; i++) {
        TRY(lower_say_shape(lowering, gather->node->values[i]));
    }
    /* Every member must put the rows of each source at the same offset. */
    for (size_t i = 0; i < gather->n_sources && gather->is_unpacked; i++) {
        TRY(lower_say_number(lowering, (int64_t)gather->sources[i].row_bytes));
    }
    return SHOAL_OK;
}

shoal_status lower_window_gather(struct shoal_lowering *lowering, struct window_gather *gather)
{
    struct shoal_plan *plan = lowering->plan;
    struct plan_collective *collective;
    size_t rank = (size_t)plan->groups[gather->group].rank;
    size_t n_ranks = plan->groups[gather->group].size;
    shoal_window_piece *pieces = arena_alloc(&plan->arena, gather->n_sources, sizeof *pieces);
    shoal_tensor **sends = arena_alloc(&lowering->scratch, gather->n_sources, sizeof(shoal_tensor *));
    size_t *begins = arena_alloc(&lowering->scratch, gather->node->n_values, sizeof *begins);
    if (!pieces || !sends || !begins) {
        return SHOAL_ERR_NO_MEMORY;
    }
    TRY(make_results(lowering, gather, lowering->n_gathers++, begins));
    for (size_t i = 0; i < gather->n_sources; i++) {
        const struct window_source *source = &gather->sources[i];
        shoal_tensor *tensor;
        TRY(lower_tensor(lowering, source->node, source->value, &tensor));
        TRY(lower_input(lowering, tensor, &sends[i]));
        size_t row = gather->is_unpacked
                         ? source->row_bytes
                         : storage_of(lowering, gather->node, source->result)->bytes / n_ranks;
        pieces[i] = (shoal_window_piece){.count = (size_t)tensor->count,
                                         .data_dtype = tensor->dtype,
                                         .window_dtype = gather->node->values[source->result]->dtype,
                                         .offset = begins[source->result] + source->at + rank * row};
    }
    gather->collective = (uint32_t)plan->n_collectives;
    gather->first = (uint32_t)plan->n_steps;
    TRY(lower_begin_collective(lowering, gather->group, gather->n_sources, &collective));
    collective->call.kind = COLLECTIVE_WINDOW_GATHER;
    collective->call.dtype = gather->node->values[0]->dtype;
    collective->call.n_pieces = 0;
    collective->call.pieces = NULL;
    collective->call.window_pieces = pieces;
    collective->call.n_window_pieces = gather->n_sources;
    collective->window = 0; /* set when windows are assigned (windows.c) */
    for (size_t i = 0; i < gather->n_sources; i++) {
        collective->sends[i] = sends[i];
    }
    for (size_t i = 0; i < gather->node->n_values; i++) {
        TRY(lower_tensor(lowering, gather->node, i, &collective->receives[i]));
    }
    TRY(say_pieces(lowering, gather));
    return lower_end_collective(lowering, /*is_blocking=*/false);
}
