/* SPDX-License-Identifier: MIT */
/*
 * Joins buckets one after the other. New nodes are put directly behind the last reader of the bucket's gradients. Each
 * result has one user. A copy_ gets its new argument at once, because joining later buckets follows the edge. The
 * output, which may have thousands of arguments, gets all its new arguments at the end. Then nodes without users are
 * erased.
 */
#include "graph/passes/ddp_fuse.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "collective/rows.h"
#include "graph/passes/late.h"
#include "graph/ir/replace_many.h"

/* The most new nodes that a builder makes for each block and, in addition, for each bucket. */
#define NODES_PER_BLOCK 4
#define NODES_PER_BUCKET 8

/* For builders ------------------------------------------------------------------------------------------- */

shoal_status ddp_call(struct ddp_join *join, enum op_id id, const shoal_arg *args, size_t n_args,
                      struct shoal_node **node_out)
{
    return graph_call(join->graph, op_get(id), args, n_args, node_out);
}

shoal_status ddp_call_start(struct ddp_join *join, enum op_id id, shoal_arg tensors,
                            struct shoal_node **node_out)
{
    const struct shoal_node *start = join->blocks[join->n_blocks - 1]->start;
    shoal_arg args[OP_MAX_PARAMS];
    memcpy(args, start->args, start->n_args * sizeof(args[0]));
    args[0] = tensors;
    return ddp_call(join, id, args, start->n_args, node_out);
}

/* One bucket --------------------------------------------------------------------------------------------- */

static struct shoal_node *find_anchor(const struct ddp_join *join)
{
    struct shoal_node *anchor = join->blocks[0]->reader;
    for (size_t i = 1; i < join->n_blocks; i++) {
        anchor = join->blocks[i]->reader->order > anchor->order ? join->blocks[i]->reader : anchor;
    }
    return anchor;
}

static shoal_status replace_in_copies(const struct ddp_join *join)
{
    for (size_t i = 0; i < join->n_blocks; i++) {
        const struct ddp_block *block = join->blocks[i];
        if (block->user->kind != SHOAL_NODE_OUTPUT) {
            TRY(shoal_node_replace(block->wait, block->result, NULL, NULL, NULL));
        }
    }
    return SHOAL_OK;
}

static shoal_status join_bucket(struct ddp_join *join, struct late *late, ddp_builder build)
{
    struct shoal_graph *graph = join->graph;
    struct shoal_node *anchor = find_anchor(join);
    uint32_t first_id = graph->n_ids;
    TRY(shoal_graph_set_insert_point(graph, (shoal_insert_point){.node = anchor->next, .is_after = false}));
    TRY(build(join));
    late_place_new(late, graph, first_id, anchor, join->blocks[0]->first);
    TRY(late_move(late, join->blocks, join->n_blocks, join->blocks[join->n_blocks - 1]->result));
    return replace_in_copies(join);
}

/* The output --------------------------------------------------------------------------------------------- */

static shoal_status replace_in_output(struct shoal_graph *graph, const struct ddp_blocks *blocks)
{
    struct replace_pair *pairs = mem_alloc_zeroed(blocks->n_blocks + 1, sizeof(pairs[0]));
    size_t n_pairs = 0;
    if (!pairs) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < blocks->n_blocks; i++) {
        const struct ddp_block *block = &blocks->blocks[i];
        if (block->result && block->user->kind == SHOAL_NODE_OUTPUT) {
            pairs[n_pairs++] = (struct replace_pair){.old = block->wait, .other = block->result};
        }
    }
    shoal_status status = n_pairs > 0 ? graph_replace_many(graph, pairs, n_pairs) : SHOAL_OK;
    mem_free(pairs);
    return status;
}

/* All ---------------------------------------------------------------------------------------------------- */

static shoal_status join_buckets(struct ddp_join *join, struct ddp_blocks *blocks, struct late *late,
                                 ddp_builder build)
{
    for (size_t i = 0; i < blocks->n_buckets; i++) {
        const struct ddp_bucket *bucket = &blocks->buckets[i];
        if (bucket->n_blocks < 2) {
            continue;
        }
        join->n_blocks = 0;
        for (uint32_t next = bucket->first + 1; next > 0; next = blocks->blocks[next - 1].next) {
            join->blocks[join->n_blocks++] = &blocks->blocks[next - 1];
        }
        TRY(join_bucket(join, late, build));
    }
    return SHOAL_OK;
}

static shoal_status erase_joined(struct shoal_graph *graph, const struct ddp_blocks *blocks)
{
    bool has_erased = false;
    for (size_t i = 0; i < blocks->n_blocks; i++) {
        if (blocks->blocks[i].result) {
            graph_erase(blocks->blocks[i].wait);
            graph_erase(blocks->blocks[i].start);
            has_erased = true;
        }
    }
    return has_erased ? graph_remove_dead(graph, NULL) : SHOAL_OK;
}

static shoal_status fuse(struct shoal_graph *graph, struct ddp_blocks *blocks, ddp_builder build)
{
    struct ddp_join join = {.graph = graph};
    struct late late = {.blocks = NULL};
    size_t n_new = NODES_PER_BLOCK * blocks->n_blocks + NODES_PER_BUCKET * blocks->n_buckets;
    shoal_insert_point point = graph->point;
    join.blocks = mem_alloc_zeroed(blocks->n_blocks, sizeof(join.blocks[0]));
    join.nodes = mem_alloc_zeroed(blocks->n_blocks, sizeof(join.nodes[0]));
    join.args = mem_alloc_zeroed(blocks->n_blocks, sizeof(join.args[0]));
    shoal_status status = SHOAL_ERR_NO_MEMORY;
    if (join.blocks && join.nodes && join.args) {
        status = late_begin(&late, blocks, graph->n_ids + (uint32_t)n_new);
    }
    if (status == SHOAL_OK) {
        status = join_buckets(&join, blocks, &late, build);
    }
    graph->point = point; /* no node has been erased since */
    if (status == SHOAL_OK) {
        status = replace_in_output(graph, blocks);
    }
    if (status == SHOAL_OK) {
        status = erase_joined(graph, blocks);
    }
    late_end(&late);
    mem_free(join.blocks);
    mem_free(join.nodes);
    mem_free(join.args);
    return status;
}

/* Checks that there are enough ids for new nodes: at most one block for two nodes, and one bucket for each block. */
static shoal_status check_ids(const struct shoal_graph *graph)
{
    size_t n_new = (NODES_PER_BLOCK + NODES_PER_BUCKET) * (graph->n_nodes / 2);
    if (n_new > UINT32_MAX - graph->n_ids) {
        return error_set(SHOAL_ERR_UNSUPPORTED,
                         "%zu new nodes may be needed, but a graph makes at most %u and this one has made %u",
                         n_new, UINT32_MAX, graph->n_ids);
    }
    return SHOAL_OK;
}

shoal_status ddp_fuse(struct shoal_graph *graph, const shoal_pass_options *options, shoal_pass_report *report,
                      ddp_builder build)
{
    struct ddp_blocks blocks;
    TRY(check_ids(graph));
    collective_hand_in();
    TRY(ddp_blocks_find(graph, options->bucket_size_mb, &blocks));
    if (blocks.n_blocks == 0) {
        ddp_blocks_free(&blocks);
        return SHOAL_OK;
    }
    report->n_buckets = blocks.n_buckets;
    shoal_status status = fuse(graph, &blocks, build);
    ddp_blocks_free(&blocks);
    return status;
}
