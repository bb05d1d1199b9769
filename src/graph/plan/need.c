/* SPDX-License-Identifier: MIT */
/* How much memory plans and runs take, and what to say when there is too little: see need.h. Places nothing: place.c does. */
#include "graph/plan/need.h"

#include <stdbool.h>
#include <string.h>

#include "base/error.h"
#include "base/free_memory.h"
#include "base/text.h"
#include "base/try.h"
#include "graph/ir/graph.h"
#include "graph/analysis/memory.h"
#include "graph/plan/plan.h"
#include "tensor/tensor.h"

/* Below these sizes nobody asks the kernel what is free, which takes some 50 us. A plan is made once; a graph may run
   often, but one with values of this size takes many times longer than the question. */
#define ASK_PLAN_BYTES ((uint64_t)1 << 20)
#define ASK_RUN_BYTES ((uint64_t)64 << 20)

void need_add_value(struct need *need, const char *name, uint64_t bytes)
{
    size_t at = NEED_N_LARGEST;
    while (at > 0 && need->largest[at - 1].bytes < bytes) {
        at--;
    }
    if (at < NEED_N_LARGEST) {
        memmove(&need->largest[at + 1], &need->largest[at],
                (NEED_N_LARGEST - 1 - at) * sizeof need->largest[0]);
        need->largest[at] = (struct need_value){.name = name, .bytes = bytes};
    }
}

/* Graphs ------------------------------------------------------------------------------------------------- */

/* Whether it is the node's own: neither a view of an input nor written in place. */
static bool is_new(const struct shoal_node *node, const struct storage *storage)
{
    for (size_t i = 0; i < node->n_inputs; i++) {
        for (size_t k = 0; k < node->inputs[i]->n_values; k++) {
            if (node->inputs[i]->values[k]->storage == storage) {
                return false;
            }
        }
    }
    return true;
}

static uint64_t add(uint64_t a, uint64_t b)
{
    return a < UINT64_MAX - b ? a + b : UINT64_MAX;
}

/* No less than what the graph makes: views count as if they were copies, and nothing ends before the last node. */
static uint64_t sum_values(const struct shoal_graph *graph)
{
    uint64_t sum = 0;
    GRAPH_EACH(graph, node)
    {
        for (size_t i = 0; node->kind == SHOAL_NODE_CALL && i < node->n_values; i++) {
            sum = add(sum, node->values[i]->storage->bytes);
        }
    }
    return sum;
}

shoal_status need_of_graph(const struct shoal_graph *graph, struct need *need_out)
{
    struct need need = {.bytes = 0};
    uint64_t given = 0;
    uint64_t peak;
    TRY(memory_peak(graph, &peak));
    GRAPH_EACH(graph, node)
    {
        for (size_t i = 0; i < node->n_values; i++) {
            const struct storage *storage = node->values[i]->storage;
            if (node->kind != SHOAL_NODE_CALL) {
                given = add(given, storage->bytes);
            } else if (is_new(node, storage)) {
                need_add_value(&need, node->name, storage->bytes);
            }
        }
    }
    need.bytes = peak > given ? peak - given : 0;
    *need_out = need;
    return SHOAL_OK;
}

/* Plans -------------------------------------------------------------------------------------------------- */

void need_of_plan(const struct shoal_plan *plan, struct need *need_out)
{
    struct need need = {.pool_bytes = plan->pool_bytes, .output_bytes = plan->output_bytes};
    for (size_t i = 0; i < plan->n_groups; i++) {
        need.comm_bytes += plan->groups[i].comm_bytes;
    }
    for (size_t i = 0; i < plan->n_windows; i++) {
        need.window_bytes += plan->windows[i].bytes;
    }
    for (size_t i = 0; i < plan->n_buffers; i++) {
        const struct plan_buffer *buffer = &plan->buffers[i];
        bool is_given = buffer->place == PLAN_INPUT || buffer->place == PLAN_CONSTANT;
        if (!is_given && buffer->place != PLAN_SLOT) {
            need_add_value(&need, buffer->name, buffer->bytes);
        }
    }
    for (size_t i = 0; i < plan->n_steps; i++) {
        need_add_value(&need, plan->steps[i].node, plan->steps[i].workspace_bytes);
    }
    need.bytes = need.pool_bytes + need.output_bytes + need.comm_bytes + need.window_bytes;
    *need_out = need;
}

/* Texts -------------------------------------------------------------------------------------------------- */

void need_add_largest(struct text *text, const struct need *need)
{
    for (size_t i = 0; i < NEED_N_LARGEST && need->largest[i].bytes > 0; i++) {
        text_add(text, "%s%%%.64s ", i == 0 ? "; largest: " : ", ", need->largest[i].name);
        text_add_bytes(text, need->largest[i].bytes);
    }
}

void need_add_parts(struct text *text, const struct need *need)
{
    const struct {
        const char *name;
        uint64_t bytes;
    } parts[] = {{"pool", need->pool_bytes},
                 {"outputs", need->output_bytes},
                 {"comm memory", need->comm_bytes},
                 {"windows", need->window_bytes}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        text_add(text, "%s%s ", i == 0 ? "" : ", ", parts[i].name);
        text_add_bytes(text, parts[i].bytes);
    }
}

/* Checks ------------------------------------------------------------------------------------------------- */

shoal_status need_check_plan(const struct need *need, uint64_t max_bytes)
{
    bool is_above = max_bytes > 0 && need->bytes > max_bytes;
    uint64_t free_bytes = need->bytes >= ASK_PLAN_BYTES ? free_memory_bytes() : UINT64_MAX;
    if (!is_above && need->bytes <= free_bytes) {
        return SHOAL_OK;
    }
    char words[ERROR_TEXT_BYTES];
    struct text text = text_begin(words, sizeof words);
    text_add(&text, "the plan takes ");
    text_add_bytes(&text, need->bytes);
    text_add(&text, " (");
    need_add_parts(&text, need);
    text_add(&text, is_above ? "), more than options.max_bytes, " : "), but only ");
    text_add_bytes(&text, is_above ? max_bytes : free_bytes);
    text_add(&text, is_above ? "" : " are free");
    need_add_largest(&text, need);
    return error_set(SHOAL_ERR_NO_MEMORY, "%s", words);
}

shoal_status need_check_run(const struct shoal_graph *graph)
{
    struct need need;
    uint64_t most = sum_values(graph);
    uint64_t free_bytes = most >= ASK_RUN_BYTES ? free_memory_bytes() : UINT64_MAX;
    if (most <= free_bytes) {
        return SHOAL_OK;
    }
    TRY(need_of_graph(graph, &need));
    if (need.bytes <= free_bytes) {
        return SHOAL_OK;
    }
    char words[ERROR_TEXT_BYTES];
    struct text text = text_begin(words, sizeof words);
    text_add(&text, "running the graph takes ");
    text_add_bytes(&text, need.bytes);
    text_add(&text, " beside its inputs, but only ");
    text_add_bytes(&text, free_bytes);
    text_add(&text, " are free");
    need_add_largest(&text, &need);
    return error_set(SHOAL_ERR_NO_MEMORY, "%s", words);
}
