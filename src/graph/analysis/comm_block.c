/* SPDX-License-Identifier: MIT */
/*
 * Finds the nodes that belong to a start, by their ops and never by name. All users are checked. A start gives one
 * tensor, which one wait takes, or a list. A list is taken by one wait, or its elements are taken by getitem, and each
 * of these by one wait.
 */
#include "graph/analysis/comm_block.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/struct_size.h"
#include "base/try.h"
#include "graph/analysis/accesses.h"
#include "op/op.h"

bool comm_block_looks(const struct shoal_node *node)
{
    bool is_view = (node_flags(node) & SHOAL_OP_VIEW) != 0 && !node_calls(node, OP_control_deps);
    return is_view || node_calls(node, OP_reshape) || node_calls(node, OP_flatten);
}

static bool is_wait(const struct shoal_node *node)
{
    return (node_flags(node) & SHOAL_OP_WAIT) != 0;
}

/* Members ------------------------------------------------------------------------------------------------ */

struct builder {
    struct shoal_node *start;
    uint64_t stamp;            /* which all members have */
    struct shoal_node **nodes; /* members, each once: the start, getitems, waits, views of results */
    size_t n_nodes;
    size_t capacity;
    size_t first_wait;
    size_t n_waits;
    char reason[256]; /* why the start begins no block; "" if it does */
};

static bool is_member(const struct builder *builder, const struct shoal_node *node)
{
    return node->stamp == builder->stamp;
}

/* Adds a node, unless it is a member already. */
static shoal_status add(struct builder *builder, struct shoal_node *node)
{
    if (is_member(builder, node)) {
        return SHOAL_OK;
    }
    TRY(mem_grow((void **)&builder->nodes, &builder->capacity, builder->n_nodes + 1,
                 sizeof(builder->nodes[0])));
    builder->nodes[builder->n_nodes++] = node;
    node->stamp = builder->stamp;
    return SHOAL_OK;
}

/* The form ----------------------------------------------------------------------------------------------- */

static __attribute__((format(printf, 2, 3))) shoal_status refuse(struct builder *builder, const char *format,
                                                                 ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(builder->reason, sizeof(builder->reason), format, arguments);
    va_end(arguments);
    return SHOAL_OK;
}

static bool is_refused(const struct builder *builder)
{
    return builder->reason[0] != '\0';
}

/* Returns the wait that is the only user of a node. Otherwise refuses, and returns NULL. */
static struct shoal_node *find_wait(struct builder *builder, const struct shoal_node *node)
{
    if (node->n_users == 0) {
        (void)refuse(builder, "%.64s has no users", node->name);
        return NULL;
    }
    struct shoal_node *user = node->first_use->user;
    if (node->n_users > 1 || !is_wait(user)) {
        (void)refuse(builder, "%.64s has %zu users, the first of which is %.64s, instead of one wait",
                     node->name, node->n_users, user->name);
        return NULL;
    }
    return user;
}

/* Adds the getitems of a list, and the wait of each. */
static shoal_status add_elements(struct builder *builder)
{
    for (const struct edge *edge = builder->start->first_use; edge; edge = edge->next) {
        if (!node_calls(edge->user, OP_getitem)) {
            return refuse(builder, "%.64s uses %.64s, and is not a getitem", edge->user->name,
                          builder->start->name);
        }
        TRY(add(builder, edge->user));
    }
    builder->first_wait = builder->n_nodes;
    for (size_t i = 1; i < builder->first_wait; i++) {
        struct shoal_node *wait = find_wait(builder, builder->nodes[i]);
        if (!wait) {
            return SHOAL_OK;
        }
        TRY(add(builder, wait));
    }
    builder->n_waits = builder->n_nodes - builder->first_wait;
    return SHOAL_OK;
}

static shoal_status add_waits(struct builder *builder)
{
    struct shoal_node *start = builder->start;
    if ((node_flags(start) & SHOAL_OP_COLLECTIVE) == 0) {
        return refuse(builder, "%.64s does not start communication", start->name);
    }
    TRY(add(builder, start));
    if (start->is_list && start->n_users > 0 && !is_wait(start->first_use->user)) {
        return add_elements(builder);
    }
    struct shoal_node *wait = find_wait(builder, start);
    if (wait) {
        builder->first_wait = builder->n_nodes;
        builder->n_waits = 1;
        TRY(add(builder, wait));
    }
    return SHOAL_OK;
}

/* Adds views of the results, and views of these. */
static shoal_status add_lookers(struct builder *builder)
{
    for (size_t i = builder->first_wait; i < builder->n_nodes; i++) {
        for (const struct edge *edge = builder->nodes[i]->first_use; edge; edge = edge->next) {
            if (comm_block_looks(edge->user)) {
                TRY(add(builder, edge->user));
            }
        }
    }
    return SHOAL_OK;
}

/* The block ---------------------------------------------------------------------------------------------- */

static int compare_nodes(const void *a, const void *b)
{
    const struct shoal_node *left = *(struct shoal_node *const *)a;
    const struct shoal_node *right = *(struct shoal_node *const *)b;
    return left->order < right->order ? -1 : left->order > right->order;
}

static void sort_nodes(struct shoal_node **nodes, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        if (nodes[i - 1]->order > nodes[i]->order) {
            qsort(nodes, count, sizeof(nodes[0]), compare_nodes);
            return;
        }
    }
}

/* Lists all members but the start, in program order. They are mostly close together, so a short walk along the graph's
   list finds them; otherwise they are sorted. */
static void list_members(const struct builder *builder, struct shoal_node **nodes)
{
    size_t count = builder->n_nodes - 1;
    size_t n_steps = 2 * count;
    size_t n_listed = 0;
    struct shoal_node *node = builder->nodes[builder->first_wait];
    for (size_t i = 1; i <= count; i++) {
        nodes[i - 1] = builder->nodes[i];
        node = builder->nodes[i]->order < node->order ? builder->nodes[i] : node;
    }
    for (; node && n_listed < count && n_steps > 0; node = node->next, n_steps--) {
        if (node != builder->start && is_member(builder, node)) {
            nodes[n_listed++] = node;
        }
    }
    if (n_listed < count) {
        memcpy(nodes, builder->nodes + 1, count * sizeof(nodes[0]));
        sort_nodes(nodes, count);
    }
}

static bool is_used_by_others(const struct builder *builder, const struct shoal_node *node)
{
    for (const struct edge *edge = node->first_use; edge; edge = edge->next) {
        if (!is_member(builder, edge->user)) {
            return true;
        }
    }
    return false;
}

/* Fills in the block. One allocation holds inputs, waits, nodes and outputs. */
static shoal_status finish(struct builder *builder, shoal_comm_block *block)
{
    size_t n_inputs = builder->start->n_inputs;
    size_t n_nodes = builder->n_nodes;
    struct shoal_node **memory =
        mem_alloc_zeroed(n_inputs + builder->n_waits + 2 * n_nodes, sizeof(memory[0]));
    if (!memory) {
        return SHOAL_ERR_NO_MEMORY;
    }
    struct shoal_node **waits = memory + n_inputs;
    struct shoal_node **nodes = waits + builder->n_waits;
    struct shoal_node **outputs = nodes + n_nodes;
    size_t n_outputs = 0;
    if (n_inputs > 0) {
        memcpy(memory, builder->start->inputs, n_inputs * sizeof(memory[0]));
    }
    for (size_t i = 0; i < builder->n_waits; i++) {
        waits[i] = builder->nodes[builder->first_wait + i];
    }
    nodes[0] = builder->start;
    list_members(builder, nodes + 1);
    sort_nodes(waits, builder->n_waits);
    for (size_t i = 1; i < n_nodes; i++) {
        if (is_used_by_others(builder, nodes[i])) {
            outputs[n_outputs++] = nodes[i];
        }
    }
    *block = (shoal_comm_block){.struct_size = sizeof(*block),
                                .start = builder->start,
                                .inputs = memory,
                                .n_inputs = n_inputs,
                                .waits = waits,
                                .n_waits = builder->n_waits,
                                .nodes = nodes,
                                .n_nodes = n_nodes,
                                .outputs = outputs,
                                .n_outputs = n_outputs,
                                .memory = memory};
    return SHOAL_OK;
}

static shoal_status build(struct builder *builder, shoal_comm_block *block)
{
    builder->stamp = ++builder->start->graph->stamp;
    TRY(add_waits(builder));
    if (is_refused(builder)) {
        return SHOAL_OK;
    }
    TRY(add_lookers(builder));
    return finish(builder, block);
}

static void builder_free(struct builder *builder)
{
    mem_free(builder->nodes);
}

shoal_status comm_block_find(struct shoal_node *start, shoal_comm_block *block_out, bool *is_block_out)
{
    struct builder builder = {.start = start};
    shoal_status status = build(&builder, block_out);
    *is_block_out = !is_refused(&builder);
    builder_free(&builder);
    return status;
}

shoal_status shoal_comm_block_get(shoal_node *start, shoal_comm_block *block_out)
{
    struct builder builder = {.start = start};
    shoal_comm_block block;
    error_clear();
    if (!start || !block_out) {
        return error_set(SHOAL_ERR_INVALID, "comm_block_get: %s is NULL", start ? "block_out" : "start");
    }
    if (start->is_erased) {
        return error_set(SHOAL_ERR_INVALID, "comm_block_get: start %.64s is erased", start->name);
    }
    if (block_out->struct_size < sizeof(block)) {
        return error_set(SHOAL_ERR_INVALID, "comm_block_get: struct_size %zu of block_out is below %zu",
                         block_out->struct_size, sizeof(block));
    }
    shoal_status status = build(&builder, &block);
    if (status == SHOAL_OK && is_refused(&builder)) {
        status = error_set(SHOAL_ERR_INVALID, "comm_block_get: %s", builder.reason);
    } else if (status == SHOAL_OK) {
        status =
            struct_size_write("comm_block_get: block_out", block_out, sizeof(block), &block, sizeof(block));
        if (status != SHOAL_OK) {
            mem_free(block.memory);
        }
    }
    builder_free(&builder);
    return status;
}

void shoal_comm_block_free(shoal_comm_block *block)
{
    if (block && block->struct_size >= sizeof(*block)) {
        mem_free(block->memory);
        *block = (shoal_comm_block){.struct_size = block->struct_size};
    }
}
