/* SPDX-License-Identifier: MIT */
/*
 * Runs a graph on real tensors, as all ranks of a group, node by node side by side. Each rank has inputs of its own.
 * As in evaluate.h, a collective reads its input when its wait comes, and until then its result is NaN; it is waited
 * for early as tensors are, by who overwrites what it reads and by who reads what it overwrites. A group of another
 * size than the number of ranks is one of one rank.
 */
#ifndef TESTS_UNIT_GRAPH_EVALUATE_RANKS_H
#define TESTS_UNIT_GRAPH_EVALUATE_RANKS_H

#include "evaluate.h"

#define RANKS_MAX 8

struct ranks {
    struct evaluation each[RANKS_MAX];
    int n_ranks;
};

static inline const char *ranks_string(const shoal_node *start, shoal_arg_kind kind)
{
    for (size_t i = 0; i < start->n_args; i++) {
        if (start->args[i].kind == kind) {
            return start->args[i].as.string;
        }
    }
    return "";
}

static inline void ranks_start(struct ranks *ranks, shoal_node *node)
{
    bool is_in_place = (node->op->flags & SHOAL_OP_IN_PLACE) != 0;
    const shoal_tensor *like = node->values[0];
    for (int r = 0; r < ranks->n_ranks; r++) {
        struct evaluation *e = &ranks->each[r];
        shoal_tensor *input = e->values[node->args[0].as.node->id][0];
        e->kept[node->id] = calloc(2, sizeof(shoal_tensor *));
        e->kept[node->id][0] = is_in_place ? shoal_clone(input) : input;
        e->values[node->id][0] =
            is_in_place ? input
                        : shoal_full(like->layout.shape, like->layout.n_dims, (double)NAN, like->dtype);
        evaluate_fill(e->values[node->id][0], (double)NAN);
        e->started_by[node->id] = node;
    }
}

static inline shoal_tensor *ranks_result(struct ranks *ranks, const shoal_node *start, int rank)
{
    const char *name = ranks_string(start, SHOAL_ARG_GROUP);
    int size = (int)graph_find_group(ranks->each[0].graph, name)->size;
    shoal_tensor *pieces[RANKS_MAX];
    int first = size == 1 ? rank : 0;
    for (int r = 0; r < size; r++) {
        pieces[r] = ranks->each[first + r].kept[start->id][0];
    }
    if (strncmp(start->target, "all_gather", strlen("all_gather")) == 0) {
        return shoal_cat(pieces, (size_t)size, 0);
    }
    shoal_tensor *sum = shoal_clone(pieces[0]);
    for (int r = 1; r < size; r++) {
        sum = shoal_add(sum, pieces[r]);
    }
    if (strcmp(ranks_string(start, SHOAL_ARG_STRING), "avg") == 0) {
        sum = shoal_mul_scalar(sum, 1.0 / size);
    }
    if (strcmp(start->target, "reduce_scatter_tensor") == 0) {
        int64_t rows = shoal_tensor_shape(sum)[0] / size;
        sum = shoal_narrow(sum, 0, rows * (rank - first), rows);
    }
    return sum;
}

static inline void ranks_finish(struct ranks *ranks, const shoal_node *start)
{
    shoal_tensor *results[RANKS_MAX];
    for (int r = 0; r < ranks->n_ranks; r++) {
        results[r] = ranks_result(ranks, start, r);
    }
    for (int r = 0; r < ranks->n_ranks; r++) {
        (void)shoal_copy_(ranks->each[r].values[start->id][0], results[r]);
        ranks->each[r].is_over[start->id] = true;
    }
}

static inline void ranks_wait(struct ranks *ranks, const shoal_node *node)
{
    const shoal_node *input = node->inputs[0];
    const shoal_node *start = ranks->each[0].started_by[input->id];
    if (start && !ranks->each[0].is_over[start->id]) {
        ranks_finish(ranks, start);
    }
    for (int r = 0; r < ranks->n_ranks; r++) {
        ranks->each[r].values[node->id][0] = ranks->each[r].values[input->id][0];
    }
}

/* Who overwrites what is being read waits for that, and so does who reads what is being written in place. */
static inline void ranks_touch(struct ranks *ranks, const shoal_node *node, const struct storage *storage,
                               bool is_written)
{
    const struct evaluation *e = &ranks->each[0];
    for (const shoal_node *start = e->graph->first; start != node; start = start->next) {
        if (!e->kept[start->id] || e->is_over[start->id]) {
            continue;
        }
        bool is_in_place = (start->op->flags & SHOAL_OP_IN_PLACE) != 0;
        if ((is_written && e->kept[start->id][0]->storage == storage) ||
            (is_in_place && e->values[start->id][0]->storage == storage)) {
            ranks_finish(ranks, start);
        }
    }
}

static inline void ranks_touch_inputs(struct ranks *ranks, const shoal_node *node)
{
    for (size_t i = 0; i < node->n_inputs; i++) {
        const shoal_node *input = node->inputs[i];
        bool is_written = i == 0 && (node->op->flags & SHOAL_OP_IN_PLACE) != 0;
        for (size_t k = 0; k < input->n_values; k++) {
            ranks_touch(ranks, node, ranks->each[0].values[input->id][k]->storage, is_written);
        }
    }
}

static inline bool ranks_node(struct ranks *ranks, shoal_node *node)
{
    uint32_t flags = node_flags(node);
    bool is_ok = true;
    if ((flags & SHOAL_OP_WAIT) == 0) {
        ranks_touch_inputs(ranks, node);
    }
    if ((flags & SHOAL_OP_COLLECTIVE) != 0) {
        ranks_start(ranks, node);
    } else if ((flags & SHOAL_OP_WAIT) != 0) {
        ranks_wait(ranks, node);
    } else {
        for (int r = 0; r < ranks->n_ranks && is_ok; r++) {
            ranks->each[r].n_integers = 0;
            is_ok = evaluate_call(&ranks->each[r], node);
        }
    }
    return is_ok;
}

static inline void ranks_begin(struct evaluation *e, const shoal_graph *graph)
{
    *e = (struct evaluation){.graph = graph};
    e->values = calloc(graph->n_ids + 1, sizeof *e->values);
    e->kept = calloc(graph->n_ids + 1, sizeof *e->kept);
    e->started_by = calloc(graph->n_ids + 1, sizeof *e->started_by);
    e->is_over = calloc(graph->n_ids + 1, sizeof *e->is_over);
    e->integers = calloc(EVALUATE_MAX_INTS, sizeof *e->integers);
    for (const shoal_node *node = graph->first; node; node = node->next) {
        e->values[node->id] = calloc(node->n_values + 1, sizeof(shoal_tensor *));
    }
}

static inline void ranks_end(struct evaluation *e)
{
    for (uint32_t id = 0; id < e->graph->n_ids; id++) {
        free(e->values[id]);
        free(e->kept[id]);
    }
    free(e->values);
    free(e->kept);
    free(e->started_by);
    free(e->is_over);
    free(e->integers);
}

static inline size_t ranks_append(struct evaluation *e, char *bytes, size_t n_bytes, size_t capacity)
{
    for (const shoal_node *node = e->graph->first; node; node = node->next) {
        if (node->kind == SHOAL_NODE_OUTPUT) {
            n_bytes = evaluate_append_arg(e, &node->args[0], bytes, n_bytes, capacity);
        } else if (node->kind == SHOAL_NODE_PLACEHOLDER) {
            n_bytes = evaluate_append(bytes, n_bytes, capacity, e->values[node->id][0]);
        }
    }
    return n_bytes;
}

/* What the graph gives on all ranks, and what its inputs are afterwards. Returns the number of bytes. */
static inline size_t evaluate_ranks(const shoal_graph *graph, int n_ranks, char *bytes, size_t capacity)
{
    struct ranks ranks = {.n_ranks = n_ranks};
    size_t n_bytes = 0;
    bool is_ok = true;
    (void)CHECK_OK(shoal_scope_begin());
    for (int r = 0; r < n_ranks; r++) {
        int n_inputs = 11 * r;
        ranks_begin(&ranks.each[r], graph);
        for (const shoal_node *node = graph->first; node; node = node->next) {
            if (node->kind == SHOAL_NODE_PLACEHOLDER) {
                ranks.each[r].values[node->id][0] = evaluate_input(node, &n_inputs);
            }
        }
    }
    for (shoal_node *node = graph->first; node && is_ok; node = node->next) {
        is_ok = node->kind != SHOAL_NODE_CALL || ranks_node(&ranks, node);
    }
    for (int r = 0; r < n_ranks; r++) {
        n_bytes = is_ok ? ranks_append(&ranks.each[r], bytes, n_bytes, capacity) : 0;
        ranks_end(&ranks.each[r]);
    }
    (void)CHECK_OK(shoal_scope_end());
    return n_bytes;
}

#endif
