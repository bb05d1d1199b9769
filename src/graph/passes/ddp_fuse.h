/* SPDX-License-Identifier: MIT */
/* The common part of the passes that join gradients. They differ only in the nodes that they make for a bucket. */
#ifndef GRAPH_PASSES_DDP_FUSE_H
#define GRAPH_PASSES_DDP_FUSE_H

#include "graph/passes/ddp_blocks.h"
#include "shoal/compile.h"

/* A bucket that is being joined. */
struct ddp_join {
    struct shoal_graph *graph;
    struct ddp_block **blocks; /* at least two */
    size_t n_blocks;
    struct shoal_node **nodes; /* scratch memory of the builder: one for each block */
    shoal_arg *args;           /* scratch memory of the builder: one for each block */
};

/* Makes the nodes of a bucket at the insertion point, and fills in result and new_reader of each block. The result of
   the last block must be the last new node. */
typedef shoal_status (*ddp_builder)(struct ddp_join *join);

shoal_status ddp_fuse(struct shoal_graph *graph, const shoal_pass_options *options, shoal_pass_report *report,
                      ddp_builder build);

/* Makes a call at the insertion point. */
shoal_status ddp_call(struct ddp_join *join, enum op_id id, const shoal_arg *args, size_t n_args,
                      struct shoal_node **node_out);
/* Makes a start with the arguments of the last block's start, but with other tensors. */
shoal_status ddp_call_start(struct ddp_join *join, enum op_id id, shoal_arg tensors,
                            struct shoal_node **node_out);

static inline shoal_arg ddp_node_arg(struct shoal_node *node)
{
    return (shoal_arg){.kind = SHOAL_ARG_NODE, .as = {.node = node}};
}

static inline shoal_arg ddp_list_arg(const shoal_arg *items, size_t count)
{
    return (shoal_arg){.kind = SHOAL_ARG_LIST, .as = {.list = {items, count}}};
}

static inline shoal_arg ddp_int_arg(int64_t integer)
{
    return (shoal_arg){.kind = SHOAL_ARG_INT, .as = {.integer = integer}};
}

#endif
