/* SPDX-License-Identifier: MIT */
/*
 * `shoal opt --run`: how much memory the ranks will take. A few bytes of text can declare an input of any size, so this
 * is computed from shapes and compared with a limit before any rank begins.
 */
#include "opt/opt.h"

#include "base/error.h"
#include "base/free_memory.h"
#include "base/text.h"
#include "base/try.h"
#include "graph/ir/graph.h"
#include "graph/plan/need.h"
#include "shoal/dtype.h"

#include <string.h>

static uint64_t add(uint64_t a, uint64_t b)
{
    return a < UINT64_MAX - b ? a + b : UINT64_MAX;
}

static uint64_t multiply(uint64_t a, uint64_t b)
{
    return b == 0 || a <= UINT64_MAX / b ? a * b : UINT64_MAX;
}

/* The graph before and after passes has mostly the same nodes: each is named once. */
static void add_value(struct need *need, const char *name, uint64_t bytes)
{
    for (size_t i = 0; i < NEED_N_LARGEST && need->largest[i].bytes > 0; i++) {
        if (strcmp(need->largest[i].name, name) == 0) {
            return;
        }
    }
    need_add_value(need, name, bytes);
}

static void add_largest(struct need *need, const struct need *of)
{
    for (size_t i = 0; i < NEED_N_LARGEST && of->largest[i].bytes > 0; i++) {
        add_value(need, of->largest[i].name, of->largest[i].bytes);
    }
}

/* Gives the sum of all inputs. Numbers are drawn as floats: *drawn_out is what the largest takes beside itself. */
static uint64_t add_inputs(const shoal_graph *graph, struct need *need, uint64_t *drawn_out)
{
    uint64_t inputs = 0;
    *drawn_out = 0;
    for (const shoal_node *node = shoal_graph_first(graph); node; node = shoal_node_next(node)) {
        if (shoal_node_get_kind(node) != SHOAL_NODE_PLACEHOLDER) {
            continue;
        }
        const shoal_tensor *like = shoal_node_value(node, 0);
        uint64_t count = (uint64_t)shoal_tensor_count(like);
        uint64_t bytes = multiply(count, shoal_dtype_bytes(shoal_tensor_dtype(like)));
        uint64_t drawn = shoal_tensor_dtype(like) == SHOAL_F32 ? 0 : multiply(count, sizeof(float));
        inputs = add(inputs, bytes);
        *drawn_out = drawn > *drawn_out ? drawn : *drawn_out;
        add_value(need, shoal_node_name(node), bytes);
    }
    return inputs;
}

/* What copying one of the outputs in `arg` takes at most: outputs that are not contiguous are copied to be compared. A
   view may have many more elements than the memory behind it. */
static uint64_t find_largest_copy(const shoal_arg *arg, struct need *need)
{
    uint64_t largest = 0;
    for (size_t i = 0; arg->kind == SHOAL_ARG_LIST && i < arg->as.list.count; i++) {
        uint64_t bytes = find_largest_copy(&arg->as.list.items[i], need);
        largest = bytes > largest ? bytes : largest;
    }
    for (size_t i = 0; arg->kind == SHOAL_ARG_NODE && i < shoal_node_n_values(arg->as.node); i++) {
        const shoal_tensor *value = shoal_node_value(arg->as.node, i);
        uint64_t count = shoal_tensor_is_contiguous(value) ? 0 : (uint64_t)shoal_tensor_count(value);
        uint64_t bytes = multiply(count, shoal_dtype_bytes(shoal_tensor_dtype(value)));
        largest = bytes > largest ? bytes : largest;
        add_value(need, shoal_node_name(arg->as.node), bytes);
    }
    return largest;
}

/* Outputs are compared one after the other. */
static uint64_t add_copies(const shoal_graph *graph, struct need *need)
{
    const shoal_node *last = shoal_graph_last(graph);
    size_t n_args = 0;
    bool is_output = last && shoal_node_get_kind(last) == SHOAL_NODE_OUTPUT;
    const shoal_arg *args = is_output ? shoal_node_args(last, &n_args) : NULL;
    return n_args > 0 ? find_largest_copy(&args[0], need) : 0;
}

static shoal_status refuse(const struct opt_memory *memory, const struct need *need, uint64_t inputs,
                           uint64_t limit)
{
    char words[ERROR_TEXT_BYTES];
    struct text text = text_begin(words, sizeof words);
    text_add(&text, "--run takes ");
    text_add_bytes(&text, need->bytes);
    text_add(&text, " on %d rank%s, with two sets of inputs of ", memory->n_ranks,
             memory->n_ranks == 1 ? "" : "s");
    text_add_bytes(&text, inputs);
    text_add(&text, " on each, more than ");
    text_add_bytes(&text, limit);
    text_add(&text, ", %s",
             memory->limit > 0 ? "the limit of --memory"
                               : "half of what is free; --memory=BYTES sets another limit");
    need_add_largest(&text, need);
    return error_set(SHOAL_ERR_NO_MEMORY, "%s", words);
}

/* Both graphs have inputs of their own, and the results of the first are kept while the second runs, and are then
   compared. */
shoal_status opt_memory_check(const struct opt_memory *memory)
{
    struct need need = {.bytes = 0};
    struct need before;
    struct need after;
    uint64_t drawn;
    uint64_t free_bytes = free_memory_bytes();
    uint64_t limit = memory->limit > 0          ? memory->limit
                     : free_bytes == UINT64_MAX ? free_bytes
                                                : free_bytes / 2;
    uint64_t inputs = add_inputs(memory->before, &need, &drawn);
    TRY(need_of_graph(memory->before, &before));
    if (memory->plan) {
        need_of_plan(memory->plan, &after);
    } else {
        TRY(need_of_graph(memory->after, &after));
    }
    add_largest(&need, &before);
    add_largest(&need, &after);
    uint64_t copies = add(add_copies(memory->before, &need), add_copies(memory->after, &need));
    need.bytes = add(add(add(inputs, inputs), drawn), copies);
    need.bytes = add(need.bytes, add(before.bytes, after.bytes - after.window_bytes));
    need.bytes = add(multiply(need.bytes, (uint64_t)memory->n_ranks), after.window_bytes);
    return need.bytes <= limit ? SHOAL_OK : refuse(memory, &need, inputs, limit);
}
