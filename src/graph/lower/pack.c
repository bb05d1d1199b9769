/* SPDX-License-Identifier: MIT */
/*
 * Decides which lists are packed before they are reduced and scattered along their first dimension, as FSDP does with
 * the gradients of a unit. Transports read comm memory directly, so tensors that kernels compute there need no packing.
 * If a tensor of the list is converted or padded first, one kernel (chunk_cat) packs the list into one buffer with a
 * row for each rank, and the results are parts of one buffer. The kernel converts and pads on the way. So a
 * conversion, or a cat with zeros, that only the list reads needs no step, if its input is not written before the
 * start.
 */
#include "base/try.h"
#include "graph/lower/lower.h"
#include "op/op.h"

static uint32_t place_of(const struct shoal_lowering *lowering, const struct shoal_node *node)
{
    return lowering->nodes[node->id].place;
}

static struct lowered_storage *storage_of(const struct shoal_lowering *lowering,
                                          const struct shoal_node *node)
{
    return &lowering->storages[lower_number(lowering, node->values[0])];
}

static bool calls(const struct shoal_node *node, enum op_id id)
{
    return node->kind == SHOAL_NODE_CALL && node->op && node->op->index == (int)id;
}

/* Whether the node makes a storage that only the one at `place` reads. */
static bool is_only_for(const struct shoal_lowering *lowering, const struct shoal_node *node, uint32_t place)
{
    const struct lowered_storage *storage = storage_of(lowering, node);
    return storage->creator == node && storage->n_uses == 1 && storage->last_use == place &&
           storage->inside == PLAN_NONE && !lowering->nodes[node->id].is_absorbed;
}

/* Replaces cat([a, zeros]) along the first dimension by a, if the zeros only make its size a multiple of n_ranks. */
static void skip_padding(const struct shoal_lowering *lowering, const struct shoal_node *start,
                         int64_t n_ranks, struct pack_source *source)
{
    size_t value = 0;
    const struct shoal_node *cat = source->node;
    if (!calls(cat, OP_cat) || cat->args[0].kind != SHOAL_ARG_LIST || cat->args[0].as.list.count != 2 ||
        cat->args[1].kind != SHOAL_ARG_INT || cat->args[1].as.integer != 0 ||
        !is_only_for(lowering, cat, place_of(lowering, start))) {
        return;
    }
    const struct shoal_node *self = cat->args[0].as.list.items[0].as.node;
    const struct shoal_node *zeros =
        lower_strip_views(lowering, cat->args[0].as.list.items[1].as.node, &value);
    const struct layout *layout = &self->values[0]->layout;
    if (!calls(zeros, OP_zeros) || !is_only_for(lowering, zeros, place_of(lowering, cat)) ||
        self->values[0]->count == 0 || (layout->shape[0] + n_ranks - 1) / n_ranks * n_ranks != source->rows ||
        lower_is_written(lowering, lower_number(lowering, self->values[0]), place_of(lowering, cat),
                         place_of(lowering, start))) {
        return;
    }
    source->absorbed[0] = cat;
    source->absorbed[1] = zeros;
    source->node = self;
    source->rows = layout->shape[0];
}

static void skip_cast(const struct shoal_lowering *lowering, const struct shoal_node *start,
                      struct pack_source *source)
{
    size_t value = 0;
    const struct shoal_node *reader = source->absorbed[0] ? source->absorbed[0] : start;
    const struct shoal_node *cast = lower_strip_views(lowering, source->node, &value);
    if (!calls(cast, OP_to_dtype) || !is_only_for(lowering, cast, place_of(lowering, reader))) {
        return;
    }
    const struct shoal_node *from = cast->args[0].as.node;
    bool has_same_rows = cast == source->node || lower_here(lowering, from, 0)->is_contiguous;
    if (has_same_rows && !lower_is_written(lowering, lower_number(lowering, from->values[0]),
                                           place_of(lowering, cast), place_of(lowering, start))) {
        source->absorbed[2] = cast;
        source->node = from;
    }
}

static bool find_source(const struct shoal_lowering *lowering, const struct shoal_node *start, size_t index,
                        bool skips_casts, struct pack_source *source)
{
    size_t value;
    const struct shoal_node *item = lower_item(&start->args[0], index, &value);
    const shoal_tensor *tensor = item->values[value];
    const shoal_arg *dims = &start->args[2];
    int64_t n_ranks = (int64_t)lowering->plan->groups[lower_group(lowering, start)].size;
    bool has_dim = dims->kind == SHOAL_ARG_LIST && dims->as.list.count > index;
    if (tensor->layout.n_dims == 0 || tensor->count == 0 ||
        (has_dim &&
         (dims->as.list.items[index].kind != SHOAL_ARG_INT || dims->as.list.items[index].as.integer != 0))) {
        return false;
    }
    *source = (struct pack_source){.node = item, .value = value, .rows = tensor->layout.shape[0]};
    source->row_elems = tensor->count / source->rows;
    source->result_elems = tensor->count / n_ranks;
    if (!item->is_list) {
        skip_padding(lowering, start, n_ranks, source);
        if (skips_casts) {
            skip_cast(lowering, start, source);
        }
    }
    return true;
}

static bool find_sources(const struct shoal_lowering *lowering, const struct shoal_node *start,
                         bool skips_casts, struct pack_source *sources)
{
    for (size_t i = 0; i < start->n_values; i++) {
        if (!find_source(lowering, start, i, skips_casts, &sources[i])) {
            return false;
        }
    }
    return true;
}

/* Whether all sources have one dtype, as chunk_cat demands. */
static bool have_one_dtype(const struct pack_source *sources, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        if (sources[i].node->values[sources[i].value]->dtype !=
            sources[0].node->values[sources[0].value]->dtype) {
            return false;
        }
    }
    return true;
}

/* Packing pays only if it saves a conversion or padding. Otherwise the tensors can be computed in comm memory. */
static bool is_worthwhile(const struct pack_source *sources, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (sources[i].absorbed[0] || sources[i].absorbed[2]) {
            return true;
        }
    }
    return false;
}

/* Whether results can lie one after the other: each offset is a whole number of elements of every dtype in it. */
static bool have_places(const struct shoal_lowering *lowering, const struct shoal_node *start)
{
    size_t at = 0;
    for (size_t i = 0; i < start->n_values; i++) {
        const struct lowered_storage *result = &lowering->storages[lower_number(lowering, start->values[i])];
        if (at % result->element_bytes != 0) {
            return false;
        }
        at += result->bytes;
    }
    return true;
}

static shoal_status find_pack(struct shoal_lowering *lowering, const struct shoal_node *start)
{
    struct pack_source *sources = arena_alloc(&lowering->scratch, start->n_values, sizeof *sources);
    if (!sources) {
        return SHOAL_ERR_NO_MEMORY;
    }
    if (!have_places(lowering, start) || !find_sources(lowering, start, /*skips_casts=*/true, sources)) {
        return SHOAL_OK;
    }
    if (!have_one_dtype(sources, start->n_values)) {
        (void)find_sources(lowering, start, /*skips_casts=*/false, sources);
    }
    if (!is_worthwhile(sources, start->n_values)) {
        return SHOAL_OK;
    }
    for (size_t i = 0; i < start->n_values; i++) {
        struct lowered_storage *storage =
            &lowering->storages[lower_number(lowering, sources[i].node->values[sources[i].value])];
        for (size_t k = 0; k < 3; k++) {
            if (sources[i].absorbed[k]) {
                lowering->nodes[sources[i].absorbed[k]->id].is_absorbed = true;
            }
        }
        lower_extend_use(storage, place_of(lowering, start));
    }
    lowering->nodes[start->id].pack = sources;
    return SHOAL_OK;
}

shoal_status lower_find_packs(struct shoal_lowering *lowering)
{
    GRAPH_EACH(lowering->graph, node)
    {
        if (!calls(node, OP_reduce_scatter_tensor_coalesced) || lowering->options->no_comm_buffers) {
            continue;
        }
        uint32_t group = lower_group(lowering, node);
        if (lowering->plan->groups[group].size > 1 && lower_has_windows(lowering, group)) {
            TRY(find_pack(lowering, node));
        }
    }
    return SHOAL_OK;
}
