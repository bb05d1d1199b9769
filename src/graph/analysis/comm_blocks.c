/* SPDX-License-Identifier: MIT */
/* Lists all communication blocks of a graph, in program order of their starts. */
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "graph/analysis/comm_block.h"
#include "op/op.h"

struct search {
    const struct shoal_graph *graph;
    const shoal_op *const *ops; /* NULL means every op that starts communication */
    size_t n_ops;
    shoal_comm_block_filter filter;
    void *context;
    shoal_comm_block **blocks;
    size_t n_blocks;
    size_t capacity;
};

static bool is_wanted(const struct search *search, const struct shoal_node *node)
{
    if ((node_flags(node) & SHOAL_OP_COLLECTIVE) == 0 || !search->ops) {
        return (node_flags(node) & SHOAL_OP_COLLECTIVE) != 0;
    }
    for (size_t i = 0; i < search->n_ops; i++) {
        if (search->ops[i] == node->op) {
            return true;
        }
    }
    return false;
}

/* Appends a copy of the block to the list. After a failure the block still belongs to the caller. */
static shoal_status append(struct search *search, const shoal_comm_block *block)
{
    TRY(mem_grow((void **)&search->blocks, &search->capacity, search->n_blocks + 1,
                 sizeof(search->blocks[0])));
    shoal_comm_block *copy = mem_alloc_zeroed(1, sizeof(*copy));
    if (!copy) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *copy = *block;
    search->blocks[search->n_blocks++] = copy;
    return SHOAL_OK;
}

static shoal_status visit(struct search *search, struct shoal_node *node)
{
    shoal_comm_block block;
    bool is_block;
    TRY(comm_block_find(node, &block, &is_block));
    if (!is_block) {
        return SHOAL_OK;
    }
    shoal_status status = SHOAL_OK;
    bool is_kept = !search->filter || search->filter(search->context, &block);
    if (is_kept) {
        status = append(search, &block);
    }
    if (!is_kept || status != SHOAL_OK) {
        mem_free(block.memory);
    }
    return status;
}

static shoal_status find_all(struct search *search)
{
    for (struct shoal_node *node = search->graph->first; node; node = node->next) {
        if (is_wanted(search, node)) {
            TRY(visit(search, node));
        }
    }
    return SHOAL_OK;
}

static shoal_status check(const struct search *search, const void *blocks_out, const size_t *n_blocks_out)
{
    if (!search->graph || !blocks_out || !n_blocks_out) {
        return error_set(SHOAL_ERR_INVALID, "comm_blocks_get: %s is NULL",
                         !search->graph ? "graph"
                         : !blocks_out  ? "blocks_out"
                                        : "n_blocks_out");
    }
    if (search->n_ops > 0 && !search->ops) {
        return error_set(SHOAL_ERR_INVALID, "comm_blocks_get: ops is NULL, but n_ops is %zu", search->n_ops);
    }
    for (size_t i = 0; i < search->n_ops; i++) {
        if (!search->ops[i]) {
            return error_set(SHOAL_ERR_INVALID, "comm_blocks_get: ops[%zu] is NULL", i);
        }
        if ((search->ops[i]->flags & SHOAL_OP_COLLECTIVE) == 0) {
            return error_set(SHOAL_ERR_INVALID,
                             "comm_blocks_get: ops[%zu], %.64s, does not start communication", i,
                             search->ops[i]->name);
        }
    }
    return SHOAL_OK;
}

shoal_status shoal_comm_blocks_get(const shoal_graph *graph, const shoal_op *const *ops, size_t n_ops,
                                   shoal_comm_block_filter filter, void *context,
                                   shoal_comm_block ***blocks_out, size_t *n_blocks_out)
{
    struct search search = {.graph = graph, .ops = ops, .n_ops = n_ops, .filter = filter, .context = context};
    error_clear();
    TRY(check(&search, blocks_out, n_blocks_out));
    shoal_status status = find_all(&search);
    if (status != SHOAL_OK) {
        shoal_comm_blocks_free(search.blocks, search.n_blocks);
        return status;
    }
    *blocks_out = search.blocks;
    *n_blocks_out = search.n_blocks;
    return SHOAL_OK;
}

void shoal_comm_blocks_free(shoal_comm_block **blocks, size_t n_blocks)
{
    for (size_t i = 0; blocks && i < n_blocks; i++) {
        mem_free(blocks[i]->memory);
        mem_free(blocks[i]);
    }
    mem_free(blocks);
}
