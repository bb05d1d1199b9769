/* SPDX-License-Identifier: MIT */
/*
 * What a pass must leave as it is, apart from bits: what can be seen without running the graph. None of it asks effects
 * (graph/analysis/effects.h), on which the passes rely.
 */
#ifndef TESTS_UNIT_GRAPH_PASS_FUZZ_CHECKS_H
#define TESTS_UNIT_GRAPH_PASS_FUZZ_CHECKS_H

#include <stdarg.h>
#include <stdio.h>

#include "fixtures/random_graph.h"
#include "graph/analysis/constraints.h"
#include "graph/analysis/memory.h"
#include "op/op.h"

enum fuzz_finding {
    FUZZ_NOTHING,
    FUZZ_LINT,    /* shoal_graph_lint refuses it */
    FUZZ_OUTPUTS, /* another number of outputs, or others in dtype or shape */
    FUZZ_STARTS,  /* more starts than before, or more bytes for them */
    FUZZ_ORDER,   /* starts of a group in another order */
    FUZZ_WAITS,   /* a start without a wait, or with more waits than before */
    FUZZ_FLIGHT,  /* memory of a start is touched before its wait */
    FUZZ_MEMORY,  /* more memory than the pass may need */
    FUZZ_RANKS,   /* ranks got different graphs */
    FUZZ_RUN,     /* ranks could not run it */
    FUZZ_BITS     /* they computed something else */
};

struct fuzz_report {
    enum fuzz_finding finding;
    shoal_status status; /* of FUZZ_RUN */
    char text[768];
};

static inline __attribute__((format(printf, 3, 4))) bool fuzz_found(struct fuzz_report *report,
                                                                    enum fuzz_finding finding,
                                                                    const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    report->finding = finding;
    (void)vsnprintf(report->text, sizeof report->text, format, arguments);
    va_end(arguments);
    return false;
}

/* Sets of storages ------------------------------------------------------------------------------------- */

enum {
    FUZZ_MAX_STORAGES = 2048,
    FUZZ_MAX_STARTS = 256
};

struct fuzz_storages {
    const struct storage *each[FUZZ_MAX_STORAGES];
    size_t count;
    uint64_t bytes;
};

static inline bool fuzz_has(const struct fuzz_storages *set, const struct storage *storage)
{
    for (size_t i = 0; i < set->count; i++) {
        if (set->each[i] == storage) {
            return true;
        }
    }
    return false;
}

static inline void fuzz_add(struct fuzz_storages *set, const struct storage *storage)
{
    if (!fuzz_has(set, storage) && set->count < FUZZ_MAX_STORAGES) {
        set->each[set->count++] = storage;
        set->bytes += storage->bytes;
    }
}

static inline void fuzz_add_values(struct fuzz_storages *set, const shoal_node *node)
{
    for (size_t i = 0; i < node->n_values; i++) {
        fuzz_add(set, random_storage(node, i));
    }
}

static inline void fuzz_add_inputs(struct fuzz_storages *set, const shoal_node *node)
{
    for (size_t i = 0; i < node->n_inputs; i++) {
        fuzz_add_values(set, node->inputs[i]);
    }
}

/* Waits ------------------------------------------------------------------------------------------------ */

/* What a wait waits for: a start, and which of its tensors; all: -1. A wait for what has been waited for has no start. */
struct fuzz_awaited {
    const shoal_node *start;
    int64_t index;
};

static inline struct fuzz_awaited fuzz_find_start(const shoal_node *node)
{
    struct fuzz_awaited awaited = {.index = -1};
    if (node->op && node->op->index == OP_getitem && node_is_start(node->inputs[0])) {
        awaited = (struct fuzz_awaited){.start = node->inputs[0], .index = node->args[1].as.integer};
        awaited.index += awaited.index < 0 ? (int64_t)awaited.start->n_values : 0;
    } else if (node_is_start(node)) {
        awaited.start = node;
    }
    return awaited;
}

/* A start under way: bit i of `pending` is set until its i-th tensor has been waited for. */
struct fuzz_flight {
    const shoal_node *start;
    uint64_t pending;
    uint64_t asked; /* bit i is set once a wait named its i-th tensor itself, not only its memory */
    bool is_read;   /* until the first wait: one work carries all that a start gives */
};

struct fuzz_flights {
    struct fuzz_flight each[FUZZ_MAX_STARTS];
    size_t count;
    size_t n_repeats;    /* waits for what had been waited for */
    char collision[192]; /* the first node that touches what is in flight; empty: none */
};

/* A bit for each tensor that it gives. */
static inline uint64_t fuzz_all_of(const shoal_node *start)
{
    return start->n_values < 64 ? (UINT64_C(1) << start->n_values) - 1 : UINT64_MAX;
}

static inline void fuzz_begin_flight(struct fuzz_flights *flights, const shoal_node *start)
{
    if (flights->count < FUZZ_MAX_STARTS) {
        flights->each[flights->count++] =
            (struct fuzz_flight){.start = start, .pending = fuzz_all_of(start), .is_read = true};
    }
}

/* Whether the tensor is at the same place of its storage on each rank. The rank in the arguments of a view moves it; in
   those of a receive it names the peer. */
static inline bool fuzz_is_fixed(const shoal_node *node)
{
    for (;; node = node->inputs[0]) {
        bool is_view = (node_flags(node) & SHOAL_OP_VIEW) != 0;
        for (size_t i = 0; is_view && i < node->n_args; i++) {
            if (node->args[i].kind == SHOAL_ARG_RANK) {
                return false;
            }
        }
        if (!node->is_alias || node->n_inputs == 0) {
            return true;
        }
    }
}

/* Whether a wait for one value waits for the other one's memory, on all ranks. */
static inline bool fuzz_waits_for(const shoal_node *waited, size_t i, const shoal_node *start, size_t k)
{
    if (random_storage(waited, i) != random_storage(start, k) || start->values[k]->count == 0 ||
        waited->values[i]->count == 0) {
        return false;
    }
    bool is_fixed = fuzz_is_fixed(waited) && fuzz_is_fixed(start);
    return random_is_whole(waited, i) ||
           (is_fixed && tensor_may_overlap(waited->values[i], start->values[k]));
}

/* A wait for memory ends what was started there: whether anything was. */
static inline bool fuzz_wait_for_memory(struct fuzz_flights *flights, const shoal_node *waited)
{
    bool is_new = false;
    for (size_t i = 0; i < waited->n_values; i++) {
        for (size_t k = 0; k < flights->count; k++) {
            struct fuzz_flight *flight = &flights->each[k];
            for (size_t j = 0; j < flight->start->n_values; j++) {
                if (fuzz_waits_for(waited, i, flight->start, j)) {
                    is_new |= (flight->pending >> (j & 63) & 1) != 0;
                    flight->pending &= ~(UINT64_C(1) << (j & 63));
                    flight->is_read = false;
                }
            }
        }
    }
    return is_new;
}

static inline void fuzz_wait(struct fuzz_flights *flights, const shoal_node *wait)
{
    for (size_t i = 0; i < wait->n_inputs; i++) {
        struct fuzz_awaited awaited = fuzz_find_start(wait->inputs[i]);
        bool is_new = false;
        for (size_t k = 0; k < flights->count; k++) {
            struct fuzz_flight *flight = &flights->each[k];
            uint64_t bits = awaited.index < 0 ? UINT64_MAX : UINT64_C(1) << (awaited.index & 63);
            if (flight->start == awaited.start) {
                is_new |= (fuzz_all_of(flight->start) & bits & ~flight->asked) != 0;
                flight->pending &= ~bits;
                flight->asked |= bits;
                flight->is_read = false;
            }
        }
        is_new |= fuzz_wait_for_memory(flights, wait->inputs[i]);
        flights->n_repeats += is_new ? 0 : 1;
    }
}

/* Memory in flight ------------------------------------------------------------------------------------- */

/* Whether the node only looks at its inputs: no kernel runs then. */
static inline bool fuzz_is_view(const shoal_node *node)
{
    const uint32_t effects = SHOAL_OP_IN_PLACE | SHOAL_OP_COLLECTIVE | SHOAL_OP_WAIT | SHOAL_OP_SIDE_EFFECT;
    uint32_t flags = node_flags(node);
    if ((flags & SHOAL_OP_VIEW) != 0) {
        return true;
    }
    if (node->kind != SHOAL_NODE_CALL || (flags & effects) != 0) {
        return false;
    }
    struct fuzz_storages inputs = {.count = 0};
    bool is_view = true;
    fuzz_add_inputs(&inputs, node);
    for (size_t i = 0; i < node->n_values; i++) {
        is_view &= fuzz_has(&inputs, random_storage(node, i));
    }
    return is_view;
}

/* A tensor that is where it is on each rank, and in which the value lies: itself, or what it is a view of. NULL: none is known. */
static inline const shoal_tensor *fuzz_place(const shoal_node *node, size_t index)
{
    while (!fuzz_is_fixed(node)) {
        if (!node->is_alias || node->n_inputs == 0 || node->inputs[0]->n_values != 1) {
            return NULL;
        }
        node = node->inputs[0];
        index = 0;
    }
    return node->values[index];
}

/* Values of nodes that share memory. */
static inline bool fuzz_overlaps(const shoal_node *a, size_t i, const shoal_node *b, size_t k)
{
    if (random_storage(a, i) != random_storage(b, k) || a->values[i]->count == 0 ||
        b->values[k]->count == 0) {
        return false;
    }
    const shoal_tensor *left = fuzz_place(a, i);
    const shoal_tensor *right = fuzz_place(b, k);
    bool is_known = left && right && left->storage == right->storage;
    return !is_known || tensor_overlaps(left, right);
}

/* Any value of the node, and that one. */
static inline bool fuzz_any_overlaps(const shoal_node *node, const shoal_node *other, size_t index)
{
    for (size_t i = 0; i < node->n_values; i++) {
        if (fuzz_overlaps(node, i, other, index)) {
            return true;
        }
    }
    return false;
}

/* Whether the argument names a node with a value that shares memory with that one. */
static inline bool fuzz_arg_overlaps(const shoal_arg *arg, const shoal_node *other, size_t index)
{
    bool does = arg->kind == SHOAL_ARG_NODE && fuzz_any_overlaps(arg->as.node, other, index);
    for (size_t i = 0; arg->kind == SHOAL_ARG_LIST && i < arg->as.list.count; i++) {
        does |= fuzz_arg_overlaps(&arg->as.list.items[i], other, index);
    }
    return does;
}

static inline bool fuzz_uses(const shoal_node *node, const shoal_node *other, size_t index)
{
    for (size_t i = 0; i < node->n_inputs; i++) {
        if (fuzz_any_overlaps(node->inputs[i], other, index)) {
            return true;
        }
    }
    return false;
}

static inline bool fuzz_writes(const shoal_node *node, const shoal_node *other, size_t index)
{
    if (node->op && node->op->index == OP_batch_p2p_ops) { /* what is received is given back */
        return fuzz_any_overlaps(node, other, index);
    }
    return (node_flags(node) & SHOAL_OP_IN_PLACE) != 0 && fuzz_arg_overlaps(&node->args[0], other, index);
}

/* Whether the node touches what the start has under way. */
static inline bool fuzz_collides(const struct fuzz_flight *flight, const shoal_node *node)
{
    const shoal_node *start = flight->start;
    for (size_t i = 0; i < start->n_values; i++) {
        if ((flight->pending >> (i & 63) & 1) != 0 && fuzz_uses(node, start, i)) {
            return true;
        }
    }
    for (size_t i = 0; flight->is_read && i < start->n_inputs; i++) {
        for (size_t k = 0; k < start->inputs[i]->n_values; k++) {
            if (fuzz_writes(node, start->inputs[i], k)) {
                return true;
            }
        }
    }
    return false;
}

static inline void fuzz_touch(struct fuzz_flights *flights, const shoal_node *node)
{
    if (flights->collision[0] != '\0' || fuzz_is_view(node)) {
        return;
    }
    for (size_t i = 0; i < flights->count; i++) {
        const struct fuzz_flight *flight = &flights->each[i];
        if ((flight->pending != 0 || flight->is_read) && fuzz_collides(flight, node)) {
            (void)snprintf(flights->collision, sizeof flights->collision,
                           "%%%.64s touches what %%%.64s has under way", node->name, flight->start->name);
            return;
        }
    }
}

/* One walk: what is in flight, what is touched, and how often what is waited for. */
static inline bool fuzz_follow_flights(const shoal_graph *graph, struct fuzz_flights *flights,
                                       struct fuzz_report *report)
{
    *flights = (struct fuzz_flights){.count = 0};
    for (const shoal_node *node = graph->first; node; node = node->next) {
        if (node_is_wait(node)) {
            fuzz_wait(flights, node);
            continue;
        }
        fuzz_touch(flights, node);
        if (node_is_start(node)) {
            fuzz_begin_flight(flights, node);
        }
    }
    for (size_t i = 0; i < flights->count; i++) {
        if (flights->each[i].asked == 0) {
            return fuzz_found(report, FUZZ_WAITS, "nobody waits for %%%s", flights->each[i].start->name);
        }
    }
    return true;
}

/* What is known of a graph before a pass --------------------------------------------------------------- */

enum {
    FUZZ_MAX_IDS = 4096
};

struct fuzz_facts {
    uint32_t n_ids;
    uint32_t place[FUZZ_MAX_IDS];  /* by id: in the list, from 1 on */
    uint64_t moved[FUZZ_MAX_IDS];  /* by id of a start: bytes that it reads and gives */
    uint64_t moved_bytes;          /* of all of them */
    uint64_t given[FUZZ_MAX_IDS];  /* by id of a live call that is no start: bytes of new tensors */
    uint64_t inputs[FUZZ_MAX_IDS]; /* by id: a number made of the ids of its inputs */
    bool is_live[FUZZ_MAX_IDS];    /* by id: its results matter, so shoal_graph_remove_dead leaves it */
    size_t n_live;
    struct fuzz_flights flights;
    uint64_t peak;
    char outputs[16384]; /* dtypes and shapes */
};

static inline void fuzz_describe_outputs(const shoal_arg *arg, char *text, size_t bytes)
{
    if (arg->kind == SHOAL_ARG_NODE) {
        for (size_t i = 0; i < arg->as.node->n_values; i++) {
            char value[TENSOR_TEXT_BYTES];
            size_t length = strlen(text);
            (void)snprintf(text + length, bytes - length, "%s ",
                           tensor_format(value, arg->as.node->values[i]));
        }
    }
    for (size_t i = 0; arg->kind == SHOAL_ARG_LIST && i < arg->as.list.count; i++) {
        fuzz_describe_outputs(&arg->as.list.items[i], text, bytes);
    }
}

static inline uint64_t fuzz_bytes(const shoal_node *node)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < node->n_values; i++) {
        bytes += tensor_bytes(node->values[i]);
    }
    return bytes;
}

static inline uint64_t fuzz_hash_inputs(const shoal_node *node)
{
    uint64_t hash = 1;
    for (size_t i = 0; i < node->n_inputs; i++) {
        hash = hash * 0x9E3779B97F4A7C15u + node->inputs[i]->id;
    }
    return hash;
}

/* What is there without dead code, to which passes owe nothing. */
static inline void fuzz_take_live(const shoal_graph *graph, struct fuzz_facts *facts)
{
    const uint32_t kept = SHOAL_OP_IN_PLACE | SHOAL_OP_WAIT | SHOAL_OP_SIDE_EFFECT;
    for (const shoal_node *node = graph->output; node; node = node->prev) {
        bool is_call = node->kind == SHOAL_NODE_CALL;
        bool is_root = node->kind == SHOAL_NODE_PLACEHOLDER || node == graph->output;
        facts->is_live[node->id] |= is_root || (node_flags(node) & kept) != 0;
        if (!facts->is_live[node->id]) {
            continue;
        }
        facts->n_live++;
        facts->inputs[node->id] = fuzz_hash_inputs(node);
        facts->given[node->id] = is_call && !node_is_start(node) && !node->is_alias ? fuzz_bytes(node) : 0;
        for (size_t i = 0; i < node->n_inputs; i++) {
            facts->is_live[node->inputs[i]->id] = true;
        }
    }
}

/* Whether the graph is in order, and what is to be known of it. */
static inline bool fuzz_take_facts(const shoal_graph *graph, struct fuzz_facts *facts,
                                   struct fuzz_report *report)
{
    uint32_t place = 0;
    *facts = (struct fuzz_facts){.n_ids = graph->n_ids};
    if (graph->n_ids > FUZZ_MAX_IDS) {
        return fuzz_found(report, FUZZ_LINT, "%u nodes are more than this program can take", graph->n_ids);
    }
    if (shoal_graph_lint(graph) != SHOAL_OK || memory_peak(graph, &facts->peak) != SHOAL_OK) {
        return fuzz_found(report, FUZZ_LINT, "%s", shoal_error_text());
    }
    for (const shoal_node *node = graph->first; node; node = node->next) {
        facts->place[node->id] = ++place;
        if (node_is_start(node)) {
            facts->moved[node->id] = fuzz_bytes(node);
            for (size_t i = 0; i < node->n_inputs; i++) {
                facts->moved[node->id] += fuzz_bytes(node->inputs[i]);
            }
            facts->moved_bytes += facts->moved[node->id];
        }
    }
    fuzz_take_live(graph, facts);
    fuzz_describe_outputs(&graph->output->args[0], facts->outputs, sizeof facts->outputs);
    return fuzz_follow_flights(graph, &facts->flights, report);
}

/* Memory ----------------------------------------------------------------------------------------------- */

/*
 * How much more memory a graph may need after a pass.
 *
 * FUZZ_NO_MORE: as the pass promises. simple_overlap gathers one unit of a sharded model ahead (its limit is raised by the
 * largest gather of a unit), so where there are units it may need that much more.
 *
 * FUZZ_MORE_COMM: nodes other than starts, waits, what looks at results, and what the pass made, stay in their order. So a
 * storage that none of those uses is there between the same nodes as before, and the others are at most all there at once:
 * no more than before plus the bytes of storages that those use or give.
 *
 * FUZZ_MORE_MOVED: the same, and storages of nodes that have changed places count as well.
 *
 * Buffers that a pass makes are for nodes that it replaces and erases. Each start has its tensor copied into a bucket, perhaps
 * made contiguous and divided there, reduced, and copied out of it: FUZZ_BUFFERS times what the replaced starts read and
 * give, at most. For other nodes it makes no more than those gave.
 */
enum fuzz_bound {
    FUZZ_NO_MORE,
    FUZZ_MORE_COMM,
    FUZZ_MORE_MOVED
};

#define FUZZ_BUFFERS 2

static inline enum fuzz_bound fuzz_bound_of(const char *pass)
{
    static const struct {
        const char *name;
        enum fuzz_bound bound;
    } rows[] = {{"dedupe_waits", FUZZ_NO_MORE},
                {"simple_overlap", FUZZ_NO_MORE},
                {"schedule_comm_wait", FUZZ_MORE_COMM}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].name, pass) == 0) {
            return rows[i].bound;
        }
    }
    return FUZZ_MORE_MOVED;
}

/* By id: whether the node is not one of a longest sequence of nodes that are in their old order. */
static inline void fuzz_find_moved(const shoal_graph *graph, const struct fuzz_facts *facts, bool *is_moved)
{
    static uint32_t ids[FUZZ_MAX_IDS];
    static uint32_t length[FUZZ_MAX_IDS];
    size_t n = 0;
    uint32_t longest = 0;
    for (const shoal_node *node = graph->first; node; node = node->next) {
        if (node->id >= facts->n_ids) {
            continue;
        }
        uint32_t best = 0;
        for (size_t i = 0; i < n; i++) {
            if (facts->place[ids[i]] < facts->place[node->id] && length[i] > best) {
                best = length[i];
            }
        }
        ids[n] = node->id;
        length[n++] = best + 1;
        longest = best + 1 > longest ? best + 1 : longest;
    }
    uint32_t next_place = UINT32_MAX;
    for (size_t i = n; i-- > 0;) {
        is_moved[ids[i]] = length[i] != longest || facts->place[ids[i]] >= next_place;
        if (!is_moved[ids[i]]) {
            next_place = facts->place[ids[i]];
            longest--;
        }
    }
}

/* Bytes of storages that were not there before. */
static inline uint64_t fuzz_created(const shoal_graph *graph, const struct fuzz_facts *facts)
{
    struct fuzz_storages old = {.count = 0};
    struct fuzz_storages created = {.count = 0};
    for (const shoal_node *node = graph->first; node; node = node->next) {
        for (size_t i = 0; i < node->n_values; i++) {
            const struct storage *storage = random_storage(node, i);
            bool is_old = node->id < facts->n_ids && !fuzz_has(&created, storage);
            if (is_old || fuzz_has(&old, storage)) {
                fuzz_add(&old, storage);
            } else {
                fuzz_add(&created, storage);
            }
        }
    }
    return created.bytes;
}

/* What may be made for the nodes that are gone. */
static inline uint64_t fuzz_replaced(const shoal_graph *graph, const struct fuzz_facts *facts)
{
    uint64_t bytes = 0;
    for (uint32_t id = 0; id < facts->n_ids; id++) {
        bytes += FUZZ_BUFFERS * facts->moved[id] + facts->given[id];
    }
    for (const shoal_node *node = graph->first; node; node = node->next) {
        bool is_old = node->id < facts->n_ids;
        bytes -= is_old ? FUZZ_BUFFERS * facts->moved[node->id] + facts->given[node->id] : 0;
    }
    return bytes;
}

/* The bytes of the largest gather of a unit. */
static inline uint64_t fuzz_ahead(const shoal_graph *graph, const char *pass)
{
    uint64_t ahead = 0;
    for (const shoal_node *node = graph->first; node && strcmp(pass, "simple_overlap") == 0;
         node = node->next) {
        if (node->unit && node->op && strncmp(node->op->name, "all_gather", strlen("all_gather")) == 0) {
            ahead = fuzz_bytes(node) > ahead ? fuzz_bytes(node) : ahead;
        }
    }
    return ahead;
}

static inline bool fuzz_check_memory(const shoal_graph *graph, const struct fuzz_facts *before,
                                     const char *pass, struct fuzz_report *report)
{
    enum fuzz_bound bound = fuzz_bound_of(pass);
    bool is_moved[FUZZ_MAX_IDS] = {false};
    uint64_t peak = UINT64_MAX;
    struct fuzz_storages more = {.count = 0};
    if (memory_peak(graph, &peak) != SHOAL_OK) {
        return fuzz_found(report, FUZZ_LINT, "%s", shoal_error_text());
    }
    fuzz_find_moved(graph, before, is_moved);
    for (const shoal_node *node = graph->first; bound != FUZZ_NO_MORE && node; node = node->next) {
        if (node->id >= before->n_ids || node_is_start(node) || node_is_wait(node) ||
            (bound == FUZZ_MORE_MOVED && is_moved[node->id])) {
            fuzz_add_values(&more, node);
            fuzz_add_inputs(&more, node);
        }
    }
    more.bytes += fuzz_ahead(graph, pass);
    if (peak > before->peak + more.bytes) {
        return fuzz_found(
            report, FUZZ_MEMORY, "%llu bytes at its peak, %llu before %s, which may need %llu more",
            (unsigned long long)peak, (unsigned long long)before->peak, pass, (unsigned long long)more.bytes);
    }
    uint64_t created = fuzz_created(graph, before);
    uint64_t replaced = fuzz_replaced(graph, before);
    return created <= replaced
               ? true
               : fuzz_found(report, FUZZ_MEMORY,
                            "%s made buffers of %llu bytes; the nodes that it erased allow %llu", pass,
                            (unsigned long long)created, (unsigned long long)replaced);
}

/* All of it -------------------------------------------------------------------------------------------- */

static inline const char *fuzz_group_of(const shoal_node *start)
{
    for (size_t i = 0; i < start->n_args; i++) {
        if (start->args[i].kind == SHOAL_ARG_GROUP) {
            return start->args[i].as.string;
        }
    }
    return "";
}

/* Starts that a pass has left keep the order that they have in their group; fusion of gradients does not promise that. */
static inline bool fuzz_check_order(const shoal_graph *graph, const struct fuzz_facts *before,
                                    const char *pass, struct fuzz_report *report)
{
    bool is_kept = strncmp(pass, "fuse_ddp_", strlen("fuse_ddp_")) != 0;
    for (const struct graph_group *group = is_kept ? graph->groups : NULL; group; group = group->next) {
        const shoal_node *last = NULL;
        for (const shoal_node *node = graph->first; node; node = node->next) {
            if (!node_is_start(node) || node->id >= before->n_ids ||
                strcmp(fuzz_group_of(node), group->name) != 0) {
                continue;
            }
            if (last && before->place[last->id] > before->place[node->id]) {
                return fuzz_found(report, FUZZ_ORDER, "%%%s starts before %%%s now", last->name, node->name);
            }
            last = node;
        }
    }
    return true;
}

/* The graph after a pass, beside what was known of it before. */
static inline bool fuzz_check_pass(const shoal_graph *graph, const struct fuzz_facts *before,
                                   const char *pass, struct fuzz_report *report)
{
    static struct fuzz_facts after;
    if (!fuzz_take_facts(graph, &after, report)) {
        return false;
    }
    if (strcmp(after.outputs, before->outputs) != 0) {
        return fuzz_found(report, FUZZ_OUTPUTS, "it gives %.300s instead of %.300s", after.outputs,
                          before->outputs);
    }
    const struct fuzz_flights *now = &after.flights;
    const struct fuzz_flights *then = &before->flights;
    if (now->count > then->count) {
        return fuzz_found(report, FUZZ_STARTS, "%zu starts instead of %zu", now->count, then->count);
    }
    if (after.moved_bytes > before->moved_bytes) {
        return fuzz_found(report, FUZZ_STARTS, "starts read and give %llu bytes instead of %llu",
                          (unsigned long long)after.moved_bytes, (unsigned long long)before->moved_bytes);
    }
    size_t max_repeats = strcmp(pass, "dedupe_waits") == 0 ? 0 : then->n_repeats;
    if (now->n_repeats > max_repeats) {
        return fuzz_found(report, FUZZ_WAITS, "%zu waits for what has been waited for, %zu before %s",
                          now->n_repeats, then->n_repeats, pass);
    }
    if (now->collision[0] != '\0') {
        return fuzz_found(report, FUZZ_FLIGHT, "%s", now->collision);
    }
    return fuzz_check_order(graph, before, pass, report) && fuzz_check_memory(graph, before, pass, report);
}

#endif
