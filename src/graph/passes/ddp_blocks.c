/* SPDX-License-Identifier: MIT */
/*
 * Finds buckets by one walk in program order. For each node it finds the newest block that the node depends on, by
 * arguments or through memory. (A node that overwrites memory depends on the nodes that have used it.) Blocks are
 * numbered in the order of their starts. A block may join an open bucket unless it depends on the bucket's first block
 * or a newer one. So a bucket depends only on buckets that began before it, and there can be no cycle. A joined bucket
 * reads all its gradients at once, so a node that overwrites one of them depends on everything that the bucket depends
 * on.
 */
#include "graph/passes/ddp_blocks.h"

#include <stdlib.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/try.h"
#include "collective/gradient_buckets.h"
#include "graph/passes/ddp_block.h"
#include "tensor/tensor.h"

#define MEBIBYTE 1048576.0

/* A key and its open bucket. */
struct line {
    uint32_t example; /* a block with this key */
    struct ddp_bucket bucket;
    double size;
    double threshold;
    uint32_t limit; /* the smallest limit of its blocks */
};

/* The newest block that nodes using a storage depend on: index + 1; 0: none. */
struct memory_needs {
    uint32_t writers; /* of nodes that have written the storage */
    uint32_t all;     /* of all nodes that have used it */
};

struct finder {
    struct ddp_blocks *blocks;
    double cap;
    uint32_t *needs;             /* by id: the newest block that the node depends on, index + 1; 0: none */
    struct memory_needs *memory; /* by storage */
    struct line *lines;
    size_t n_lines;
    size_t line_capacity;
    size_t last_line; /* the line that was found last: most blocks have the same key as the one before */
    struct map lines_by_key; /* from hashes to indices of `lines` */
};

/* Dependencies ------------------------------------------------------------------------------------------- */

static uint32_t greater(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Returns the newest block that the writer of a gradient depends on because of the bucket that reads the gradient. */
static uint32_t find_bucket_need(const struct finder *finder, const struct shoal_node *writer,
                                 uint32_t storage)
{
    const struct ddp_blocks *blocks = finder->blocks;
    const struct accesses *accesses = &blocks->accesses;
    uint32_t need = 0;
    uint32_t entry = accesses_behind(accesses, storage, accesses_position(accesses, writer) - 1);
    while (entry-- > accesses->first[storage] && !accesses->entries[entry].is_write) {
        uint32_t next = blocks->readers[accesses->entries[entry].node->id];
        for (; next > 0; next = blocks->blocks[next - 1].same_reader) {
            need = greater(need, blocks->blocks[blocks->blocks[next - 1].first].bucket_need);
        }
    }
    return need;
}

static void follow_needs(struct finder *finder, const struct shoal_node *node)
{
    const struct effects_access *found;
    size_t n_found;
    uint32_t need = finder->needs[node->id]; /* add_block has set that of a wait */
    for (size_t i = 0; i < node->n_inputs; i++) {
        need = greater(need, finder->needs[node->inputs[i]->id]);
    }
    effects_accesses(finder->blocks->accesses.effects, node, &found, &n_found);
    for (size_t i = 0; i < n_found; i++) {
        const struct memory_needs *memory = &finder->memory[found[i].storage];
        need = greater(need, accesses_is_write(&found[i]) ? memory->all : memory->writers);
        if (accesses_is_write(&found[i]) && finder->blocks->n_blocks > 0) {
            need = greater(need, find_bucket_need(finder, node, found[i].storage));
        }
    }
    for (size_t i = 0; i < n_found && need > 0; i++) {
        struct memory_needs *memory = &finder->memory[found[i].storage];
        memory->all = greater(memory->all, need);
        memory->writers = accesses_is_write(&found[i]) ? greater(memory->writers, need) : memory->writers;
    }
    finder->needs[node->id] = need;
}

/* Keys --------------------------------------------------------------------------------------------------- */

static bool has_key_of(const void *context, const void *wanted, size_t index)
{
    const struct finder *finder = context;
    return ddp_block_has_key_of(&finder->blocks->blocks[finder->lines[index].example], wanted);
}

static shoal_status find_line(struct finder *finder, uint32_t index, struct line **line_out)
{
    const struct ddp_block *block = &finder->blocks->blocks[index];
    if (finder->last_line >= finder->n_lines || !has_key_of(finder, block, finder->last_line)) {
        uint64_t hash = ddp_block_hash(block);
        if (!map_find(&finder->lines_by_key, hash, has_key_of, finder, block, &finder->last_line)) {
            TRY(mem_grow((void **)&finder->lines, &finder->line_capacity, finder->n_lines + 1,
                         sizeof(finder->lines[0])));
            TRY(map_add(&finder->lines_by_key, hash, finder->n_lines));
            finder->lines[finder->n_lines] =
                (struct line){.example = index, .threshold = GRADIENT_BUCKETS_FIRST_MB * MEBIBYTE};
            finder->last_line = finder->n_lines++;
        }
    }
    *line_out = &finder->lines[finder->last_line];
    return SHOAL_OK;
}

/* Buckets ------------------------------------------------------------------------------------------------ */

static shoal_status close_bucket(struct finder *finder, struct line *line)
{
    struct ddp_blocks *blocks = finder->blocks;
    TRY(mem_grow((void **)&blocks->buckets, &blocks->bucket_capacity, blocks->n_buckets + 1,
                 sizeof(blocks->buckets[0])));
    blocks->buckets[blocks->n_buckets++] = line->bucket;
    line->bucket.n_blocks = 0;
    line->threshold = finder->cap;
    return SHOAL_OK;
}

/* Whether the block cannot join the bucket: it depends on a block of it, or on a newer one; or a gradient of the bucket
   is overwritten before the block's start. The walk has passed that writer already, so the bucket must not get further
   dependencies. */
static bool is_apart(const struct finder *finder, const struct line *line, const struct ddp_block *block)
{
    return finder->needs[block->reader->id] > line->bucket.first ||
           line->limit < accesses_position(&finder->blocks->accesses, block->start);
}

static void join(struct finder *finder, struct line *line, uint32_t index)
{
    struct ddp_block *block = &finder->blocks->blocks[index];
    if (line->bucket.n_blocks == 0) {
        line->bucket.first = index;
        line->size = 0;
        line->limit = block->limit;
    } else {
        finder->blocks->blocks[line->bucket.last].next = index + 1;
        line->limit = block->limit < line->limit ? block->limit : line->limit;
    }
    struct ddp_block *first = &finder->blocks->blocks[line->bucket.first];
    first->bucket_need = greater(first->bucket_need, finder->needs[block->reader->id]);
    block->first = line->bucket.first;
    line->bucket.last = index;
    line->bucket.n_blocks++;
    line->size += (double)block->bytes;
}

static shoal_status add_block(struct finder *finder, const struct ddp_block *found)
{
    struct ddp_blocks *blocks = finder->blocks;
    struct line *line;
    TRY(mem_grow((void **)&blocks->blocks, &blocks->block_capacity, blocks->n_blocks + 1,
                 sizeof(blocks->blocks[0])));
    uint32_t index = (uint32_t)blocks->n_blocks++;
    blocks->blocks[index] = *found;
    blocks->blocks[index].same_reader = blocks->readers[found->reader->id];
    blocks->readers[found->reader->id] = index + 1;
    finder->needs[found->wait->id] = index + 1;
    TRY(find_line(finder, index, &line));
    if (line->bucket.n_blocks > 0 && is_apart(finder, line, found)) {
        TRY(close_bucket(finder, line));
    }
    join(finder, line, index);
    return line->size >= line->threshold ? close_bucket(finder, line) : SHOAL_OK;
}

static int compare_buckets(const void *a, const void *b)
{
    uint32_t left = ((const struct ddp_bucket *)a)->last;
    uint32_t right = ((const struct ddp_bucket *)b)->last;
    return left < right ? -1 : left > right;
}

/* The walk ----------------------------------------------------------------------------------------------- */

static shoal_status close_all(struct finder *finder)
{
    for (size_t i = 0; i < finder->n_lines; i++) {
        if (finder->lines[i].bucket.n_blocks > 0) {
            TRY(close_bucket(finder, &finder->lines[i]));
        }
    }
    return SHOAL_OK;
}

/* Whether the op has side effects (point-to-point ops, for example), which must keep their order for reasons that
   arguments and memory do not show. No bucket reaches over such an op, so none is ever moved. */
static bool has_own_order(const struct shoal_node *node)
{
    return (node_flags(node) & (SHOAL_OP_SIDE_EFFECT | SHOAL_OP_WAIT)) == SHOAL_OP_SIDE_EFFECT;
}

static shoal_status walk(struct finder *finder, const struct shoal_graph *graph)
{
    struct ddp_blocks *blocks = finder->blocks;
    finder->needs = mem_alloc_zeroed((size_t)graph->n_ids + 1, sizeof(finder->needs[0]));
    blocks->readers = mem_alloc_zeroed((size_t)graph->n_ids + 1, sizeof(blocks->readers[0]));
    finder->memory =
        mem_alloc_zeroed(effects_n_storages(blocks->accesses.effects) + 1, sizeof(finder->memory[0]));
    if (!finder->needs || !blocks->readers || !finder->memory) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (struct shoal_node *node = graph->first; node; node = node->next) {
        struct ddp_block block;
        follow_needs(finder, node);
        if (has_own_order(node)) {
            TRY(close_all(finder));
        }
        if (ddp_block_match(&blocks->accesses, node, &block)) {
            TRY(add_block(finder, &block));
        }
    }
    TRY(close_all(finder));
    if (blocks->n_buckets > 0) {
        qsort(blocks->buckets, blocks->n_buckets, sizeof(blocks->buckets[0]), compare_buckets);
    }
    return SHOAL_OK;
}

static bool has_start(const struct shoal_graph *graph)
{
    for (const struct shoal_node *node = graph->first; node; node = node->next) {
        if (node_calls(node, OP_all_reduce) || node_calls(node, OP_all_reduce_)) {
            return true;
        }
    }
    return false;
}

shoal_status ddp_blocks_find(const struct shoal_graph *graph, double bucket_size_mb,
                             struct ddp_blocks *blocks_out)
{
    struct ddp_blocks blocks = {.n_blocks = 0};
    double size_mb = bucket_size_mb < 0 ? 0 : bucket_size_mb > 0 ? bucket_size_mb : GRADIENT_BUCKETS_MB;
    struct finder finder = {.blocks = &blocks, .cap = size_mb * MEBIBYTE};
    if (!has_start(graph)) {
        *blocks_out = blocks;
        return SHOAL_OK;
    }
    shoal_status status = accesses_find(graph, &blocks.accesses);
    if (status == SHOAL_OK) {
        status = walk(&finder, graph);
    }
    mem_free(finder.needs);
    mem_free(finder.memory);
    mem_free(finder.lines);
    map_free(&finder.lines_by_key);
    if (status != SHOAL_OK) {
        ddp_blocks_free(&blocks);
        return status;
    }
    *blocks_out = blocks;
    return SHOAL_OK;
}

void ddp_blocks_free(struct ddp_blocks *blocks)
{
    accesses_free(&blocks->accesses);
    mem_free(blocks->blocks);
    mem_free(blocks->buckets);
    mem_free(blocks->readers);
    *blocks = (struct ddp_blocks){.n_blocks = 0};
}
