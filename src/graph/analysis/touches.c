/* SPDX-License-Identifier: MIT */
#include "graph/analysis/touches.h"

#include "base/try.h"
#include "graph/ir/twins.h"
#include "op/op.h"

struct walk {
    touches_function visit;
    void *context;
    shoal_status status;
    bool reads;
    bool writes;
    size_t n_tensors;             /* how many tensors were visited so far */
    shoal_tensor *const *results; /* of batch_p2p_ops: a tensor that is its own result is received */
    size_t n_results;
};

static void visit_node(void *context, struct shoal_node *node)
{
    struct walk *walk = context;
    for (size_t i = 0; i < node->n_values && walk->status == SHOAL_OK; i++) {
        size_t index = walk->n_tensors++;
        bool is_result = index < walk->n_results &&
                         walk->results[index]->storage == twins_find(node->graph, node->values[i]->storage);
        struct touch touch = {.node = node,
                              .value = i,
                              .tensor = node->values[i],
                              .reads = walk->reads && !is_result,
                              .writes = walk->writes || is_result};
        walk->status = walk->visit(walk->context, &touch);
    }
}

static shoal_status visit_argument(struct walk *walk, const shoal_arg *arg, bool reads, bool writes)
{
    walk->reads = reads;
    walk->writes = writes;
    graph_visit_arg(arg, visit_node, walk);
    return walk->status;
}

/* Visits the arguments that are written, which come first. Gives how many they are. */
static shoal_status visit_written(struct walk *walk, const struct shoal_node *node, size_t *n_written_out)
{
    uint32_t flags = node_flags(node);
    int index = node->op ? node->op->index : -1;
    *n_written_out = 0;
    if (node->n_args == 0) {
        return SHOAL_OK;
    }
    /* These copy into symmetric memory before they reduce it. */
    if (index == OP_one_shot_all_reduce_copy) {
        *n_written_out = 1;
        return visit_argument(walk, &node->args[0], /*reads=*/true, /*writes=*/true);
    }
    if ((flags & SHOAL_OP_IN_PLACE) != 0) {
        *n_written_out = 1;
        TRY(visit_argument(walk, &node->args[0], (flags & SHOAL_OP_OVERWRITES) == 0, /*writes=*/true));
    }
    if (index == OP_one_shot_all_reduce_copy_out) {
        *n_written_out = 2;
        return visit_argument(walk, &node->args[1], /*reads=*/true, /*writes=*/true);
    }
    return SHOAL_OK;
}

shoal_status touches_visit(const struct shoal_node *node, touches_function visit, void *context)
{
    struct walk walk = {.visit = visit, .context = context};
    /* batch_p2p_ops writes the tensors that it receives, and gives them as results. */
    if (node->op && node->op->index == OP_batch_p2p_ops) {
        walk.results = node->values;
        walk.n_results = node->n_values;
    }
    size_t n_written;
    TRY(visit_written(&walk, node, &n_written));
    for (size_t i = n_written; i < node->n_args; i++) {
        TRY(visit_argument(&walk, &node->args[i], /*reads=*/true, /*writes=*/false));
    }
    return SHOAL_OK;
}
