/* SPDX-License-Identifier: MIT */
/*
 * What a pass could do wrong, done by hand to the graph that the passes left: each must be found, by lint, by the checks of
 * checks.h, or by ranks that run it.
 */
#ifndef TESTS_UNIT_GRAPH_PASS_FUZZ_FAULTS_H
#define TESTS_UNIT_GRAPH_PASS_FUZZ_FAULTS_H

#include "graph/analysis/effects.h"
#include "passes.h"

/* Makes the graph wrong. False: it has no place for this fault; the graph may have changed all the same. */
typedef bool (*fuzz_plant)(shoal_graph *graph, struct test_random *random);

/* Looking for a place ---------------------------------------------------------------------------------- */

/* A node of the graph at random, and from there on all in turn: FUZZ_EACH(graph, random, node) { ... }. */
static inline shoal_node *fuzz_any_node(const shoal_graph *graph, struct test_random *random)
{
    shoal_node *node = graph->first;
    for (uint64_t i = test_random_below(random, graph->n_nodes); i > 0; i--) {
        node = node->next;
    }
    return node;
}
#define FUZZ_EACH(graph, random, node)                                                                \
    for (shoal_node *node = fuzz_any_node(graph, random), *node##_first = NULL; node != node##_first; \
         node##_first = node##_first ? node##_first : node, node = node->next ? node->next : (graph)->first)

static inline bool fuzz_calls(const shoal_node *node, const char *op)
{
    return node->op && strcmp(node->op->name, op) == 0;
}

/* The wait of a start that gives one tensor and has no other user; NULL: it is not like that. */
static inline shoal_node *fuzz_wait_of(const shoal_node *start)
{
    bool is_plain = node_is_start(start) && !start->is_list && start->n_users == 1;
    return is_plain && fuzz_calls(start->first_use->user, "wait_tensor") ? start->first_use->user : NULL;
}

static inline const shoal_node *fuzz_first_user(const shoal_node *node)
{
    const shoal_node *first = NULL;
    for (const struct edge *use = node->first_use; use; use = use->next) {
        first = !first || use->user->order < first->order ? use->user : first;
    }
    return first;
}

/* Whether all inputs stand before `where`. */
static inline bool fuzz_may_stand_before(const shoal_node *node, const shoal_node *where)
{
    for (size_t i = 0; i < node->n_inputs; i++) {
        if (node->inputs[i]->order >= where->order) {
            return false;
        }
    }
    return true;
}

/* Whether all users stand behind `where`. */
static inline bool fuzz_may_stand_behind(const shoal_node *node, const shoal_node *where)
{
    const shoal_node *user = fuzz_first_user(node);
    return !user || user->order > where->order;
}

static inline bool fuzz_insert_before(shoal_graph *graph, shoal_node *where)
{
    return shoal_graph_set_insert_point(graph, (shoal_insert_point){.node = where}) == SHOAL_OK;
}

/* Order ------------------------------------------------------------------------------------------------ */

/* A start goes behind the next one of its group. */
static inline bool fuzz_swap_starts(shoal_graph *graph, struct test_random *random)
{
    FUZZ_EACH(graph, random, start)
    {
        const shoal_node *wait = fuzz_wait_of(start);
        for (shoal_node *other = start->next; wait && other && other != wait; other = other->next) {
            uint32_t flags = node_flags(start) | node_flags(other); /* messages may be told from each other */
            if (node_is_start(other) && strcmp(fuzz_group_of(start), fuzz_group_of(other)) == 0 &&
                start->values[0]->count > 0 && other->values[0]->count > 0 &&
                (flags & SHOAL_OP_SIDE_EFFECT) == 0 &&
                graph_find_group(graph, fuzz_group_of(start))->size > 1) {
                return shoal_node_move_after(start, other) == SHOAL_OK;
            }
        }
    }
    return false;
}

/* Whether a value that the node reads, not through `writer`, is memory that the writer writes. */
static inline bool fuzz_reads_what(const shoal_node *node, const shoal_node *writer)
{
    for (size_t i = 0; i < node->n_inputs; i++) {
        const shoal_node *input = node->inputs[i];
        for (size_t k = 0; k < input->n_values; k++) {
            if (input != writer && fuzz_writes(writer, input, k)) {
                return true;
            }
        }
    }
    return false;
}

/* A copy_ goes in front of one who reads what it overwrites. */
static inline bool fuzz_move_copy(shoal_graph *graph, struct test_random *random)
{
    FUZZ_EACH(graph, random, copy)
    {
        for (shoal_node *reader = copy->prev; fuzz_calls(copy, "copy_") && reader; reader = reader->prev) {
            if (reader->kind != SHOAL_NODE_CALL || !fuzz_may_stand_before(copy, reader)) {
                break;
            }
            bool reads = node_flags(reader) == 0 && !fuzz_is_view(reader);
            if (reads && reader->n_users > 0 && fuzz_reads_what(reader, copy)) {
                return shoal_node_move_before(copy, reader) == SHOAL_OK;
            }
        }
    }
    return false;
}

/* A node goes in front of one that it must stay behind for the sake of memory. */
static inline bool fuzz_drop_edge(shoal_graph *graph, struct test_random *random)
{
    struct effects *effects = NULL;
    bool is_planted = false;
    if (effects_build(graph, &effects) != SHOAL_OK) {
        return false;
    }
    FUZZ_EACH(graph, random, node)
    {
        shoal_node *const *before;
        size_t n_before;
        effects_before(effects, node, &before, &n_before);
        for (size_t i = 0; i < n_before && !is_planted; i++) {
            bool is_needed = fuzz_reads_what(before[i], node) || fuzz_reads_what(node, before[i]);
            bool are_calls = node->kind == SHOAL_NODE_CALL && before[i]->kind == SHOAL_NODE_CALL;
            bool are_starts = node_is_start(node) || node_is_start(before[i]);
            if (is_needed && are_calls && !are_starts && fuzz_may_stand_before(node, before[i])) {
                is_planted = shoal_node_move_before(node, before[i]) == SHOAL_OK;
            }
        }
        if (is_planted) {
            break;
        }
    }
    effects_free(effects);
    return is_planted;
}

/* Starts and waits ------------------------------------------------------------------------------------- */

static inline bool fuzz_drop_wait(shoal_graph *graph, struct test_random *random)
{
    FUZZ_EACH(graph, random, start)
    {
        shoal_node *wait = fuzz_wait_of(start);
        bool is_last = wait != NULL; /* nobody waits for it once more */
        for (const struct edge *use = wait ? wait->first_use : NULL; use; use = use->next) {
            is_last &= !node_is_wait(use->user);
        }
        if (is_last) {
            return shoal_node_replace(wait, start, NULL, NULL, NULL) == SHOAL_OK &&
                   shoal_node_erase(wait) == SHOAL_OK;
        }
    }
    return false;
}

/* The start on that storage that stands last before the node. */
static inline const shoal_node *fuzz_start_before(const shoal_node *node, const struct storage *storage)
{
    const shoal_node *start = node->prev;
    while (start && !(node_is_start(start) && random_gives(start, storage))) {
        start = start->prev;
    }
    return start;
}

/* Of two waits for one node the second goes, although something was started there between them, and somebody reads before that
   is waited for. */
static inline bool fuzz_forget_start(shoal_graph *graph, struct test_random *random)
{
    FUZZ_EACH(graph, random, wait)
    {
        shoal_node *old = fuzz_calls(wait, "wait_tensor") ? wait->inputs[0] : NULL;
        if (!old || !node_is_wait(old) || old->is_list || wait->values[0]->count == 0) {
            continue;
        }
        const shoal_node *start = fuzz_start_before(wait, random_storage(wait, 0));
        const shoal_node *own = start && start->order > old->order ? fuzz_wait_of(start) : NULL;
        const shoal_node *reader = fuzz_first_user(wait);
        if (own && own->order > wait->order && reader && reader->order < own->order &&
            !fuzz_is_view(reader)) {
            return shoal_node_replace(wait, old, NULL, NULL, NULL) == SHOAL_OK &&
                   shoal_node_erase(wait) == SHOAL_OK;
        }
    }
    return false;
}

static inline bool fuzz_wait_twice(shoal_graph *graph, struct test_random *random)
{
    FUZZ_EACH(graph, random, start)
    {
        shoal_node *wait = fuzz_wait_of(start);
        if (wait) {
            return fuzz_insert_before(graph, graph->output) && build_wait(graph, start) != NULL;
        }
    }
    return false;
}

/* A copy of a start, with a wait of its own, which nobody uses. */
static inline bool fuzz_start_twice(shoal_graph *graph, struct test_random *random)
{
    FUZZ_EACH(graph, random, start)
    {
        if (fuzz_wait_of(start) && start->values[0]->count > 0 &&
            (node_flags(start) & (SHOAL_OP_IN_PLACE | SHOAL_OP_SIDE_EFFECT)) == 0) {
            return fuzz_insert_before(graph, start) &&
                   build_wait(graph, build_named(graph, NULL, start->op->name, start->args, start->n_args));
        }
    }
    return false;
}

static inline bool fuzz_is_reader(void *context, shoal_node *user)
{
    return user == context;
}

/* Who reads a result first reads it before the wait. */
static inline bool fuzz_read_early(shoal_graph *graph, struct test_random *random)
{
    FUZZ_EACH(graph, random, start)
    {
        shoal_node *wait = fuzz_wait_of(start);
        shoal_node *reader = wait ? (shoal_node *)fuzz_first_user(wait) : NULL;
        if (reader && reader->kind == SHOAL_NODE_CALL && !fuzz_is_view(reader) && !node_is_wait(reader) &&
            start->values[0]->count > 0) {
            return shoal_node_replace(wait, start, fuzz_is_reader, reader, NULL) == SHOAL_OK &&
                   shoal_node_move_after(wait, reader) == SHOAL_OK;
        }
    }
    return false;
}

/* Whether another wait has ended the start by the time of its own, through other names of its memory. */
static inline bool fuzz_is_ended_early(const shoal_node *start, const shoal_node *wait)
{
    bool is_ended = false;
    for (const shoal_node *node = start->next; node && node != wait; node = node->next) {
        is_ended |= node_is_wait(node) && random_gives(node, random_storage(start, 0));
    }
    return is_ended;
}

/* The same through a view of the result. */
static inline bool fuzz_read_view_early(shoal_graph *graph, struct test_random *random)
{
    FUZZ_EACH(graph, random, start)
    {
        shoal_node *wait = fuzz_wait_of(start);
        shoal_node *view = wait ? (shoal_node *)fuzz_first_user(wait) : NULL;
        shoal_node *reader = view ? (shoal_node *)fuzz_first_user(view) : NULL;
        /* control_deps is a view of its first argument alone. */
        if (reader && (node_flags(view) & SHOAL_OP_VIEW) != 0 && !view->is_list && view->inputs[0] == wait &&
            view->values[0]->count > 0 && reader->kind == SHOAL_NODE_CALL && !fuzz_is_view(reader) &&
            !node_is_wait(reader)) {
            bool is_last = !fuzz_is_ended_early(start, wait); /* of the wait's users before the reader */
            for (const struct edge *use = wait->first_use; use; use = use->next) {
                is_last &= use->user == view || use->user->order > reader->order;
            }
            if (is_last) {
                return shoal_node_replace(wait, start, fuzz_is_reader, view, NULL) == SHOAL_OK &&
                       shoal_node_move_after(wait, reader) == SHOAL_OK;
            }
        }
    }
    return false;
}

/* What a start reads is overwritten while it is under way. */
static inline bool fuzz_write_early(shoal_graph *graph, struct test_random *random)
{
    FUZZ_EACH(graph, random, start)
    {
        shoal_node *input = fuzz_wait_of(start) ? start->inputs[start->n_inputs - 1] : NULL;
        if (input && !input->is_list && input->values[0]->count > 0 &&
            (node_flags(start) & SHOAL_OP_IN_PLACE) == 0) {
            return fuzz_insert_before(graph, start->next) &&
                   BUILD_CALL(graph, "mul_scalar_", arg_node(input), arg_float(3)) != NULL;
        }
    }
    return false;
}

/* The memory of a result is given to somebody else before it has arrived. */
static inline bool fuzz_reuse_early(shoal_graph *graph, struct test_random *random)
{
    FUZZ_EACH(graph, random, start)
    {
        if (fuzz_wait_of(start) && start->values[0]->count > 0) {
            shoal_node *view = NULL;
            return fuzz_insert_before(graph, start->next) &&
                   (view = BUILD_CALL(graph, "flatten", arg_node(start))) != NULL &&
                   BUILD_CALL(graph, "mul_scalar_", arg_node(view), arg_float(0)) != NULL;
        }
    }
    return false;
}

/* Buckets ---------------------------------------------------------------------------------------------- */

/* Where one result of a wrong bucket ends up. */
static inline bool fuzz_unpack(shoal_graph *graph, shoal_node *whole, int64_t first, shoal_node *start)
{
    shoal_node *wait = fuzz_wait_of(start);
    const shoal_tensor *value = start->values[0];
    shoal_arg shape[SHOAL_MAX_DIMS];
    for (int i = 0; i < value->layout.n_dims; i++) {
        shape[i] = arg_int(value->layout.shape[i]);
    }
    shoal_node *part =
        BUILD_CALL(graph, "narrow", arg_node(whole), arg_int(0), arg_int(first), arg_int(value->count));
    part = BUILD_CALL(graph, "to_dtype", arg_node(part), arg_dtype(value->dtype));
    part = BUILD_CALL(graph, "reshape", arg_node(part), arg_list(shape, (size_t)value->layout.n_dims));
    return part && shoal_node_replace(wait, part, NULL, NULL, NULL) == SHOAL_OK &&
           shoal_node_erase(wait) == SHOAL_OK && shoal_node_erase(start) == SHOAL_OK;
}

/* Two all_reduces become one, with the key of the first. */
static inline bool fuzz_join(shoal_graph *graph, shoal_node *first, shoal_node *second)
{
    shoal_arg dtype = arg_dtype(first->values[0]->dtype);
    int64_t count = first->values[0]->count;
    if (!fuzz_insert_before(graph, second)) {
        return false;
    }
    shoal_node *a = BUILD_CALL(graph, "flatten", first->args[0]);
    shoal_node *b = BUILD_CALL(graph, "flatten", second->args[0]);
    b = BUILD_CALL(graph, "to_dtype", arg_node(b), dtype);
    shoal_node *whole = BUILD_CALL(graph, "cat", ARG_LIST(arg_node(a), arg_node(b)));
    whole = BUILD_CALL(graph, "all_reduce", arg_node(whole), first->args[1], first->args[2]);
    whole = build_wait(graph, whole);
    return whole && fuzz_unpack(graph, whole, 0, first) && fuzz_unpack(graph, whole, count, second);
}

enum fuzz_key {
    FUZZ_KEY_DTYPE,
    FUZZ_KEY_GROUP,
    FUZZ_KEY_REDUCE
};

/* Whether two starts differ in this and in nothing else, so that joining them gives other bits. */
static inline bool fuzz_differ(const shoal_node *a, const shoal_node *b, enum fuzz_key key)
{
    const shoal_graph *graph = a->graph;
    bool is_same[] = {
        a->values[0]->dtype == b->values[0]->dtype,
        strcmp(a->args[2].as.string, b->args[2].as.string) == 0,
        strcmp(a->args[1].as.string, b->args[1].as.string) == 0,
    };
    size_t sizes[] = {graph_find_group(graph, a->args[2].as.string)->size,
                      graph_find_group(graph, b->args[2].as.string)->size};
    for (int i = 0; i < 3; i++) {
        if (is_same[i] == (i == (int)key)) {
            return false;
        }
    }
    if (key == FUZZ_KEY_DTYPE) {
        return shoal_dtype_bytes(a->values[0]->dtype) < shoal_dtype_bytes(b->values[0]->dtype);
    }
    return key == FUZZ_KEY_GROUP ? sizes[0] != sizes[1] : sizes[0] > 1;
}

/* Such a reduction has a factor besides, which fuzz_join does not pass on. */
static inline bool fuzz_has_factor(const shoal_node *start)
{
    return strncmp(start->args[1].as.string, "premul_sum", strlen("premul_sum")) == 0;
}

static inline bool fuzz_ignore_key(shoal_graph *graph, struct test_random *random, enum fuzz_key key)
{
    FUZZ_EACH(graph, random, first)
    {
        bool may_join = fuzz_calls(first, "all_reduce") && !fuzz_has_factor(first);
        const shoal_node *wait = may_join ? fuzz_wait_of(first) : NULL;
        for (shoal_node *second = first->next; wait && second && second != wait; second = second->next) {
            if (fuzz_calls(second, "all_reduce") && !fuzz_has_factor(second) && fuzz_wait_of(second) &&
                second->values[0]->count > 0 && fuzz_differ(first, second, key)) {
                return fuzz_join(graph, first, second);
            }
        }
    }
    return false;
}

static inline bool fuzz_ignore_dtype(shoal_graph *graph, struct test_random *random)
{
    return fuzz_ignore_key(graph, random, FUZZ_KEY_DTYPE);
}

static inline bool fuzz_ignore_group(shoal_graph *graph, struct test_random *random)
{
    return fuzz_ignore_key(graph, random, FUZZ_KEY_GROUP);
}

static inline bool fuzz_ignore_reduce(shoal_graph *graph, struct test_random *random)
{
    return fuzz_ignore_key(graph, random, FUZZ_KEY_REDUCE);
}

static inline bool fuzz_same_shape(const shoal_node *a, const shoal_node *b)
{
    return graph_text_same_value(a->values[0], b->values[0]);
}

/* Two pieces of a list change places. */
static inline bool fuzz_wrong_slice(shoal_graph *graph, struct test_random *random)
{
    FUZZ_EACH(graph, random, list)
    {
        for (const struct edge *use = list->is_list ? list->first_use : NULL; use; use = use->next) {
            for (const struct edge *other = use->next; other; other = other->next) {
                shoal_node *a = use->user;
                shoal_node *b = other->user;
                if (fuzz_calls(a, "getitem") && fuzz_calls(b, "getitem") && fuzz_same_shape(a, b) &&
                    a->values[0]->count > 0 && a->n_users > 0 && b->n_users > 0 &&
                    a->args[1].as.integer != b->args[1].as.integer) {
                    shoal_arg from_a[] = {a->args[0], a->args[1]};
                    shoal_arg from_b[] = {b->args[0], b->args[1]};
                    return shoal_node_set_args(a, from_b, 2) == SHOAL_OK &&
                           shoal_node_set_args(b, from_a, 2) == SHOAL_OK;
                }
            }
        }
    }
    return false;
}

/* Outputs and memory ----------------------------------------------------------------------------------- */

static inline bool fuzz_lose_output(shoal_graph *graph, struct test_random *random)
{
    const shoal_arg *list = &graph->output->args[0];
    (void)random;
    if (list->kind != SHOAL_ARG_LIST || list->as.list.count < 2) {
        return false;
    }
    shoal_arg less = arg_list(list->as.list.items, list->as.list.count - 1);
    return shoal_node_set_args(graph->output, &less, 1) == SHOAL_OK;
}

static inline bool fuzz_swap_outputs(shoal_graph *graph, struct test_random *random)
{
    const shoal_arg *list = &graph->output->args[0];
    shoal_arg items[RANDOM_MAX_POOL];
    (void)random;
    for (size_t i = 0; i < list->as.list.count; i++) {
        items[i] = list->as.list.items[i];
    }
    for (size_t i = 0; i < list->as.list.count; i++) {
        for (size_t k = i + 1; k < list->as.list.count; k++) {
            const shoal_node *a = items[i].as.node;
            const shoal_node *b = items[k].as.node;
            if (fuzz_same_shape(a, b) && a->values[0]->count > 1 &&
                random_storage(a, 0) != random_storage(b, 0)) {
                shoal_arg exchanged = arg_list(items, list->as.list.count);
                items[i] = arg_node((shoal_node *)b);
                items[k] = arg_node((shoal_node *)a);
                return shoal_node_set_args(graph->output, &exchanged, 1) == SHOAL_OK;
            }
        }
    }
    return false;
}

/* A copy of a tensor is made early and kept to the end. */
static inline bool fuzz_keep_buffer(shoal_graph *graph, struct test_random *random)
{
    FUZZ_EACH(graph, random, node)
    {
        if (node->kind == SHOAL_NODE_PLACEHOLDER && node->values[0]->count > 0) {
            shoal_node *copy = NULL;
            bool is_made =
                fuzz_insert_before(graph, graph->output->prev) &&
                (copy = BUILD_CALL(graph, "cat",
                                   ARG_LIST(arg_node(BUILD_CALL(graph, "flatten", arg_node(node))),
                                            arg_node(BUILD_CALL(graph, "flatten", arg_node(node)))))) &&
                fuzz_insert_before(graph, graph->output);
            return is_made && BUILD_CALL(graph, "flatten", arg_node(copy)) != NULL;
        }
    }
    return false;
}

/* Starts and waits move without a look at memory, where the pass promised to look. */
static inline bool fuzz_ignore_memory(shoal_graph *graph, struct test_random *random)
{
    const char *const passes[] = {"raise_comms", "sink_waits"};
    uint64_t before = 0;
    uint64_t after = 0;
    (void)random;
    return memory_peak(graph, &before) == SHOAL_OK &&
           shoal_graph_run_passes(graph, passes, 2, NULL, NULL) == SHOAL_OK &&
           memory_peak(graph, &after) == SHOAL_OK && after > before;
}

/* All of them ------------------------------------------------------------------------------------------ */

struct fuzz_fault {
    const char *name;
    fuzz_plant plant;
    const char *last_pass; /* runs after the random ones; NULL: none */
    bool is_on_one_rank;
    bool is_certain; /* found wherever it is planted; others may change no bit */
};

static const struct fuzz_fault fuzz_faults[] = {
    {"two starts swapped on one rank", fuzz_swap_starts, NULL, true, false},
    {"a copy_ moved in front of a reader", fuzz_move_copy, NULL, false, false},
    {"an edge of the effects dropped", fuzz_drop_edge, NULL, false, false},
    {"a wait dropped", fuzz_drop_wait, NULL, false, true},
    {"a wait dropped that a later start needs", fuzz_forget_start, NULL, false, true},
    {"a start waited for twice", fuzz_wait_twice, NULL, false, true},
    {"a start made twice", fuzz_start_twice, NULL, false, true},
    {"a result read before its wait", fuzz_read_early, NULL, false, true},
    {"a view of a result read before its wait", fuzz_read_view_early, NULL, false, true},
    {"the input of a start overwritten in flight", fuzz_write_early, NULL, false, true},
    {"the buffer of a result reused in flight", fuzz_reuse_early, NULL, false, true},
    {"a bucket that ignores the dtype", fuzz_ignore_dtype, NULL, false, false},
    {"a bucket that ignores the group", fuzz_ignore_group, NULL, false, false},
    {"a bucket that ignores the reduction", fuzz_ignore_reduce, NULL, false, false},
    {"a wrong slice of a bucket", fuzz_wrong_slice, NULL, false, false},
    {"an output lost", fuzz_lose_output, NULL, false, true},
    {"two outputs exchanged", fuzz_swap_outputs, NULL, false, false},
    {"a buffer kept", fuzz_keep_buffer, "simple_overlap", false, true},
    {"memory ignored", fuzz_ignore_memory, "simple_overlap", false, false},
};

/* Looks at a spoiled graph as at any other; whether something was found. */
static inline bool fuzz_is_found(struct fuzz_ranks *ranks, struct fuzz_case *test,
                                 const struct fuzz_fault *fault, struct fuzz_report *report)
{
    struct fuzz_result results[RANDOM_MAX_RANKS] = {{.status = SHOAL_OK}};
    const char *last = fault->last_pass ? fault->last_pass : test->choice.names[test->choice.count - 1];
    /* A graph that differs on one rank may be right by itself: the ranks have to find out. */
    if (!fault->is_on_one_rank && !fuzz_check_pass(test->graph, &test->before_last, last, report)) {
        return true;
    }
    char *texts[RANDOM_MAX_RANKS];
    char *spoiled = graph_text_print(test->graph);
    CHECK(fuzz_case_expect(ranks, test, report));
    for (int i = 0; i < ranks->n_ranks; i++) {
        texts[i] = fault->is_on_one_rank && i != 1 ? test->text_after : spoiled;
    }
    bool could_run = spoiled && fuzz_ranks_run(ranks, texts, results);
    bool is_same = spoiled && fuzz_same_results(test->expected, results, ranks->n_ranks, report);
    if (!could_run) { /* ranks that differed are not to be used again */
        int n_ranks = ranks->n_ranks;
        fuzz_ranks_end(ranks);
        fuzz_ranks_begin(ranks, n_ranks, 10);
    }
    fuzz_free_results(results);
    free(spoiled);
    return !is_same;
}

/* Plants a fault in one graph. -1: it has no place for it; 0: not found; else what was found. */
static inline int fuzz_plant_one(struct fuzz_ranks *ranks, const struct fuzz_fault *fault, uint64_t number)
{
    static struct fuzz_case test;
    struct fuzz_counts counts = {.n_graphs = 0};
    struct fuzz_report report = {.finding = FUZZ_NOTHING};
    struct test_random random = {.state = number};
    int found = -1;
    bool is_ok = fuzz_case_begin(number, ranks->n_ranks, &test, &counts, &report);
    if (is_ok && fault->last_pass) {
        is_ok = fuzz_take_facts(test.graph, &test.before_last, &report) &&
                CHECK_OK(shoal_graph_run_passes(test.graph, &fault->last_pass, 1, NULL, NULL));
    }
    CHECK(is_ok);
    if (is_ok && fault->plant(test.graph, &random)) {
        found = fuzz_is_found(ranks, &test, fault, &report) ? (int)report.finding : 0;
        if (fault->is_on_one_rank && report.finding == FUZZ_RUN) {
            CHECK_STATUS(report.status, SHOAL_ERR_MISMATCH);
        }
    }
    fuzz_case_end(&test);
    return found;
}

#endif
