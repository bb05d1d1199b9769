/* SPDX-License-Identifier: MIT */
/*
 * shoal_graph_lint checks what must hold for every graph. It is for tests, for graphs from elsewhere, and runs after
 * each pass. It assumes only that pointers to nodes are valid (the nodes may be erased, or of another graph); later
 * checks rely on earlier ones. It reports the first error, with its node and argument. The order of checks is:
 *
 *   for each node: place in the list, name, arguments, inputs, edges, values
 *   for each node: users
 *   the output, waits, memory in flight
 *
 * A graph is larger than caches, so most of the time goes into reading it. Two walks are enough for all checks.
 */
#include "graph/analysis/lint.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "graph/analysis/accesses.h"
#include "graph/analysis/lint_flight.h"
#include "graph/ir/names.h"
#include "op/op.h"
#include "tensor/tensor.h"

struct entry {
    const struct shoal_node *node; /* the node of the list with this id */
    uint32_t seen_by;              /* the last node whose arguments name it: its place, counted from 1 */
    uint32_t n_uses;    /* edges to it that were found in edge arrays and are in its list of users */
    uint32_t n_users;   /* node->n_users */
    bool has_lone_edge; /* one of these edges is the only one in the list */
    bool has_list;      /* the node has a list of users */
};

struct lint {
    const struct shoal_graph *graph;
    struct entry *entries;                /* by id */
    const struct shoal_node **first_wait; /* by element of a start: see check_waits */
};

/* Returns a name for texts, also if names have not been checked yet. */
static const char *name_of(const struct shoal_node *node)
{
    return !node ? "none" : node->name ? node->name : "(without a name)";
}

/* Sets the error "node NAME: " and what is wrong with the node. */
static __attribute__((format(printf, 2, 3))) shoal_status refuse(const struct shoal_node *node,
                                                                 const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)error_set_v(SHOAL_ERR_STATE, format, arguments);
    va_end(arguments);
    return error_prefix(SHOAL_ERR_STATE, "node %.64s", name_of(node));
}

/* The list ---------------------------------------------------------------------------------------------- */

static shoal_status check_link(const struct shoal_graph *graph, const struct shoal_node *node,
                               const struct shoal_node *prev)
{
    if (node->graph != graph) {
        return refuse(node, "is in the list of another graph");
    }
    if (node->is_erased) {
        return refuse(node, "is erased, but still in the list");
    }
    if (node->prev != prev) {
        return refuse(node, "the node before it in the list is %.64s, but its prev is %.64s", name_of(prev),
                      name_of(node->prev));
    }
    if (prev && prev->order >= node->order) {
        return refuse(node, "its order %llu is not above that of node %.64s before it, %llu",
                      (unsigned long long)node->order, name_of(prev), (unsigned long long)prev->order);
    }
    return SHOAL_OK;
}

/* Checks the end of a walk along the list. */
static shoal_status check_end(const struct shoal_graph *graph, const struct shoal_node *last, size_t n_nodes)
{
    if (graph->last != last) {
        return error_set(SHOAL_ERR_STATE, "the list ends with node %.64s, but the graph's last node is %.64s",
                         name_of(last), name_of(graph->last));
    }
    if (n_nodes != graph->n_nodes) {
        return error_set(SHOAL_ERR_STATE, "the list has %zu nodes, but n_nodes is %zu", n_nodes,
                         graph->n_nodes);
    }
    return SHOAL_OK;
}

static shoal_status fill_entry(struct lint *lint, const struct shoal_node *node)
{
    if (node->id >= lint->graph->n_ids) {
        return refuse(node, "its id %u is not below %u", node->id, lint->graph->n_ids);
    }
    struct entry *entry = &lint->entries[node->id];
    if (entry->node) {
        return refuse(node, "has the id %u of node %.64s", node->id, name_of(entry->node));
    }
    entry->node = node;
    entry->has_list = node->first_use || node->last_use;
    entry->n_users = (uint32_t)node->n_users;
    return entry->n_users == node->n_users
               ? SHOAL_OK
               : refuse(node, "cannot have %zu users, there are %u nodes", node->n_users, lint->graph->n_ids);
}

static shoal_status check_point(const struct lint *lint)
{
    const struct shoal_node *point = lint->graph->point.node;
    if (point && (point->id >= lint->graph->n_ids || lint->entries[point->id].node != point)) {
        return error_set(SHOAL_ERR_STATE, "the insertion point is at node %.64s, which is not in the list",
                         name_of(point));
    }
    return SHOAL_OK;
}

static shoal_status check_name(const struct shoal_graph *graph, const struct shoal_node *node)
{
    if (!node->name || node->name[0] == '\0') {
        return refuse(node, "has no name");
    }
    if (names_has(graph->names, node)) {
        return SHOAL_OK;
    }
    const struct shoal_node *found = shoal_graph_find(graph, node->name);
    if (found == node) {
        return SHOAL_OK;
    }
    return found
               ? refuse(node, "its name leads to another node, with id %u instead of %u", found->id, node->id)
               : refuse(node, "is not found by its name");
}

/* Checks that a node that is referred to is in the list. `what` and `index` say where the reference is. */
static shoal_status check_reference(const struct lint *lint, const struct shoal_node *node,
                                    const struct shoal_node *other, const char *what, size_t index)
{
    if (!other) {
        return refuse(node, "%s %zu: is not a node", what, index);
    }
    if (other->is_erased) {
        return refuse(node, "%s %zu: node %.64s is erased", what, index, name_of(other));
    }
    if (other->graph != lint->graph) {
        return refuse(node, "%s %zu: node %.64s is of another graph", what, index, name_of(other));
    }
    if (other->id >= lint->graph->n_ids || lint->entries[other->id].node != other) {
        return refuse(node, "%s %zu: node %.64s is not in the list", what, index, name_of(other));
    }
    return SHOAL_OK;
}

/* Arguments, inputs, edges ------------------------------------------------------------------------------ */

/* A walk over the arguments of a node. */
struct walk {
    struct lint *lint;
    const struct shoal_node *node;
    size_t argument;
    uint32_t number; /* the place of the node, counted from 1 */
    size_t n_found;  /* inputs found so far */
};

/* Whether `other` comes later in the list than `node`. */
static bool is_behind(const struct shoal_node *node, const struct shoal_node *other)
{
    size_t n_left = node->graph->n_nodes; /* the rest of the list has not been checked */
    while (node && node != other && n_left > 0) {
        node = node->next;
        n_left--;
    }
    return node == other;
}

/* Sets the error for an argument that has no entry yet, or is the output. */
static __attribute__((noinline)) shoal_status refuse_input(const struct walk *walk,
                                                           const struct shoal_node *input)
{
    const struct shoal_node *node = walk->node;
    if (!input) {
        return check_reference(walk->lint, node, input, "argument", walk->argument);
    }
    if (!input->is_erased && input->graph == walk->lint->graph && input->order >= node->order &&
        is_behind(node, input)) {
        return refuse(node, "argument %zu: node %.64s is not before it", walk->argument, name_of(input));
    }
    TRY(check_reference(walk->lint, node, input, "argument", walk->argument));
    return refuse(node, "argument %zu: node %.64s is the output", walk->argument, input->name);
}

/* Checks a node among the arguments. Nodes that come earlier in the list have an entry already, so they are in the
   graph and not erased. */
static shoal_status check_input(struct walk *walk, const struct shoal_node *input)
{
    const struct shoal_node *node = walk->node;
    if (!input || input->id >= walk->lint->graph->n_ids || walk->lint->entries[input->id].node != input ||
        input == node || input->kind == SHOAL_NODE_OUTPUT) {
        return refuse_input(walk, input);
    }
    struct entry *entry = &walk->lint->entries[input->id];
    if (entry->seen_by == walk->number) {
        return SHOAL_OK;
    }
    entry->seen_by = walk->number;
    if (walk->n_found >= node->n_inputs || node->inputs[walk->n_found] != input) {
        return refuse(node, "argument %zu: node %.64s is not its input %zu", walk->argument, input->name,
                      walk->n_found);
    }
    walk->n_found++;
    return SHOAL_OK;
}

static shoal_status check_group(const struct walk *walk, const char *group)
{
    if (!group || !graph_find_group(walk->lint->graph, group)) {
        return refuse(walk->node, "argument %zu: there is no group @%.64s", walk->argument,
                      group ? group : "");
    }
    return SHOAL_OK;
}

static shoal_status check_arg(struct walk *walk, const shoal_arg *arg)
{
    switch (arg->kind) {
    case SHOAL_ARG_NODE:
        return check_input(walk, arg->as.node);
    case SHOAL_ARG_GROUP:
        return check_group(walk, arg->as.string);
    case SHOAL_ARG_RANK:
        return check_group(walk, arg->as.rank.group);
    case SHOAL_ARG_STRING:
        return arg->as.string ? SHOAL_OK : refuse(walk->node, "argument %zu: no string", walk->argument);
    case SHOAL_ARG_LIST:
        if (arg->as.list.count > 0 && !arg->as.list.items) {
            return refuse(walk->node, "argument %zu: a list without items", walk->argument);
        }
        for (size_t i = 0; i < arg->as.list.count; i++) {
            TRY(check_arg(walk, &arg->as.list.items[i]));
        }
        return SHOAL_OK;
    case SHOAL_ARG_NONE:
    case SHOAL_ARG_INT:
    case SHOAL_ARG_FLOAT:
    case SHOAL_ARG_BOOL:
    case SHOAL_ARG_DTYPE:
        return SHOAL_OK;
    }
    return refuse(walk->node, "argument %zu: unknown kind %d", walk->argument, (int)arg->kind);
}

static shoal_status check_args(struct lint *lint, const struct shoal_node *node, uint32_t number)
{
    struct walk walk = {.lint = lint, .node = node, .number = number};
    if (node->n_args > 0 && !node->args) {
        return refuse(node, "has %zu arguments, but args is NULL", node->n_args);
    }
    if (node->n_inputs > 0 && (!node->inputs || !node->edges)) {
        return refuse(node, "has %zu inputs, but inputs or edges is NULL", node->n_inputs);
    }
    for (; walk.argument < node->n_args; walk.argument++) {
        const shoal_arg *arg = &node->args[walk.argument];
        TRY(arg->kind == SHOAL_ARG_NODE ? check_input(&walk, arg->as.node) : check_arg(&walk, arg));
    }
    if (walk.n_found != node->n_inputs) {
        return refuse(node, "has %zu inputs, its arguments name %zu", node->n_inputs, walk.n_found);
    }
    for (size_t i = 0; i < node->n_inputs; i++) {
        const struct edge *edge = &node->edges[i];
        const struct shoal_node *input = node->inputs[i];
        if (edge->user != node || edge->input != input) {
            return refuse(node, "its edge %zu does not lead to its input %.64s", i, input->name);
        }
        if ((edge->prev ? edge->prev->next : input->first_use) != edge ||
            (edge->next ? edge->next->prev : input->last_use) != edge) {
            return refuse(node, "is not in the list of users of its input %.64s", input->name);
        }
        struct entry *entry = &lint->entries[input->id];
        entry->n_uses++;
        entry->has_lone_edge = entry->has_lone_edge || (!edge->prev && !edge->next);
    }
    return SHOAL_OK;
}

/* Whether an edge is in the node's array, in constant time. */
static bool has_edge(const struct shoal_node *node, const struct edge *edge)
{
    uintptr_t offset = (uintptr_t)edge - (uintptr_t)node->edges;
    return (uintptr_t)edge >= (uintptr_t)node->edges && offset % sizeof *edge == 0 &&
           offset / sizeof *edge < node->n_inputs;
}

/*
 * Checks the list of users of a node: each entry must be an edge in the array of a user. An edge cannot be in two
 * lists, nor twice in one, because it names its input and its predecessor. So if the list has as many edges as arrays
 * have (n_uses), they are the same edges.
 */
static shoal_status check_users(const struct lint *lint, const struct shoal_node *node)
{
    const struct edge *prev = NULL;
    size_t n_users = 0;
    for (const struct edge *edge = node->first_use; edge; edge = edge->next) {
        if (edge->prev != prev || edge->input != node) {
            return refuse(node, "its list of users is broken at user %zu", n_users);
        }
        TRY(check_reference(lint, node, edge->user, "user", n_users));
        if (!has_edge(edge->user, edge)) {
            return refuse(node, "its user %.64s does not have it as an input", edge->user->name);
        }
        prev = edge;
        n_users++;
    }
    if (node->last_use != prev) {
        return refuse(node, "last_use is not the last edge in its list of users");
    }
    if (n_users != node->n_users) {
        return refuse(node, "has %zu users in its list, but n_users is %zu", n_users, node->n_users);
    }
    return SHOAL_OK;
}

/* A list with one edge, which was seen from its array, need not be walked over. */
static shoal_status check_uses_of(const struct lint *lint, const struct entry *entry)
{
    bool is_single = entry->n_uses == 1 && entry->n_users == 1 && entry->has_lone_edge;
    if (!is_single && (entry->n_uses > 0 || entry->n_users > 0 || entry->has_list)) {
        TRY(check_users(lint, entry->node));
    }
    if (entry->n_uses != entry->n_users) {
        return refuse(entry->node, "is an input of %u nodes, and has %u users", entry->n_uses,
                      entry->n_users);
    }
    return SHOAL_OK;
}

/* Kinds and values -------------------------------------------------------------------------------------- */

static shoal_status check_values(const struct shoal_node *node)
{
    if (!node->is_list && node->n_values > 1) {
        return refuse(node, "gives %zu values, but is_list is false", node->n_values);
    }
    if (node->n_values > 0 && !node->values) {
        return refuse(node, "gives %zu values, but values is NULL", node->n_values);
    }
    for (size_t i = 0; i < node->n_values; i++) {
        if (!node->values[i]) {
            return refuse(node, "value %zu is NULL", i);
        }
        if (node->kind != SHOAL_NODE_CONSTANT && node->values[i]->device != SHOAL_META) {
            return refuse(node, "value %zu is not on the meta device", i);
        }
    }
    return SHOAL_OK;
}

static shoal_status check_call(const struct shoal_node *node)
{
    if (!node->target || node->target[0] == '\0') {
        return refuse(node, "calls nothing: it has no target");
    }
    if (!node->op) {
        return SHOAL_OK;
    }
    if (node->n_args != node->op->n_params) {
        return refuse(node, "has %zu arguments, %s has %zu parameters", node->n_args, node->op->name,
                      node->op->n_params);
    }
    if (node->is_list != node->op->returns_list) {
        return refuse(node, "gives %s, but op %s gives %s", node->is_list ? "a list" : "no list",
                      node->op->name, node->op->returns_list ? "one" : "none");
    }
    if (!node->is_list && node->n_values != 1) {
        return refuse(node, "gives %zu values instead of one", node->n_values);
    }
    return SHOAL_OK;
}

static shoal_status check_kind(const struct shoal_node *node)
{
    TRY(check_values(node));
    if (node->op && node->kind != SHOAL_NODE_CALL) {
        return refuse(node, "has an op and is not a call");
    }
    switch ((shoal_node_kind)node->kind) {
    case SHOAL_NODE_PLACEHOLDER:
    case SHOAL_NODE_CONSTANT:
        if (node->n_inputs > 0) {
            return refuse(node, "is %s and has inputs, such as %.64s",
                          node->kind == SHOAL_NODE_CONSTANT ? "a constant" : "a placeholder",
                          node->inputs[0]->name);
        }
        return node->is_list || node->n_values != 1 ? refuse(node, "does not give one tensor") : SHOAL_OK;
    case SHOAL_NODE_CALL:
        return check_call(node);
    case SHOAL_NODE_OUTPUT:
        return node->n_values > 0 ? refuse(node, "is the output and gives values") : SHOAL_OK;
    }
    return refuse(node, "unknown kind %d", (int)node->kind);
}

/* `output` is the last node of that kind that was found. */
static shoal_status check_output(const struct shoal_graph *graph, const struct shoal_node *output)
{
    if (!output) {
        return error_set(SHOAL_ERR_STATE, "the graph has no output");
    }
    if (graph->output != output) {
        return refuse(output, "is the output, but the graph's output is %.64s", name_of(graph->output));
    }
    if (output->next) {
        return refuse(output, "is the output, but comes before node %.64s", output->next->name);
    }
    return SHOAL_OK;
}

/* Waits ------------------------------------------------------------------------------------------------- */

static bool is_wait(const struct shoal_node *node)
{
    return (node_flags(node) & SHOAL_OP_WAIT) != 0;
}

static bool is_getitem(const struct shoal_node *node)
{
    return node->op && node->op->index == OP_getitem;
}

/* Returns the entry of lint->first_wait for the element that a getitem gives; NULL if its index is not a fixed
   number. */
static const struct shoal_node **find_element(const struct lint *lint, const struct shoal_node *list,
                                              const struct shoal_node *getitem)
{
    const shoal_arg *arg = &getitem->args[1];
    if (arg->kind != SHOAL_ARG_INT) {
        return NULL;
    }
    int64_t count = (int64_t)list->n_values;
    int64_t index = arg->as.integer < 0 ? arg->as.integer + count : arg->as.integer;
    return index >= 0 && index < count ? &lint->first_wait[index] : NULL;
}

static const struct shoal_node *earlier(const struct shoal_node *a, const struct shoal_node *b)
{
    return !a || (b && b->order < a->order) ? b : a;
}

/* Returns the first wait among the users of the node; NULL if there is none. */
static const struct shoal_node *find_wait(const struct shoal_node *node)
{
    const struct shoal_node *first = NULL;
    for (const struct edge *use = node->first_use; use; use = use->next) {
        if (is_wait(use->user)) {
            first = earlier(first, use->user);
        }
    }
    return first;
}

/* Checks that all users of `node`, a start or an element of its list, come after the wait, or are only views. */
static shoal_status check_uses(const struct shoal_node *start, const struct shoal_node *node,
                               const struct shoal_node *wait)
{
    for (const struct edge *use = node->first_use; use; use = use->next) {
        const struct shoal_node *user = use->user;
        bool reads = !is_wait(user) && (node_flags(user) & SHOAL_OP_VIEW) == 0;
        if (!wait && (reads || node != start)) {
            return refuse(start, "node %.64s uses node %.64s, and nobody waits for that", user->name,
                          node->name);
        }
        if (reads && user->order < wait->order) {
            return refuse(start, "node %.64s uses node %.64s before node %.64s waits for it", user->name,
                          node->name, wait->name);
        }
    }
    return SHOAL_OK;
}

/*
 * A start that gives a list is waited for as a whole (wait_tensors), or element by element; only elements that are used
 * need a wait. Fills lint->first_wait. *settled_out is the wait after which all elements have been waited for; NULL if
 * there is none.
 */
static shoal_status find_waits(const struct lint *lint, const struct shoal_node *start,
                               const struct shoal_node *whole, const struct shoal_node **settled_out)
{
    bool is_waited = whole != NULL;
    for (size_t i = 0; i < start->n_values; i++) {
        lint->first_wait[i] = whole;
    }
    for (const struct edge *use = start->first_use; use; use = use->next) {
        const struct shoal_node *wait = is_getitem(use->user) ? find_wait(use->user) : NULL;
        const struct shoal_node **element = wait ? find_element(lint, start, use->user) : NULL;
        is_waited = is_waited || wait;
        if (element) {
            *element = earlier(*element, wait);
        }
    }
    const struct shoal_node *settled = start->n_values > 0 ? lint->first_wait[0] : whole;
    for (size_t i = 1; i < start->n_values && settled; i++) {
        const struct shoal_node *wait = lint->first_wait[i];
        settled = !wait || wait->order > settled->order ? wait : settled;
    }
    *settled_out = settled;
    return is_waited ? SHOAL_OK : refuse(start, "starts communication that nobody waits for");
}

static shoal_status check_start(const struct lint *lint, const struct shoal_node *start)
{
    const struct shoal_node *whole = find_wait(start);
    if (!start->is_list) {
        return whole ? check_uses(start, start, whole)
                     : refuse(start, "starts communication that nobody waits for");
    }
    const struct shoal_node *settled;
    TRY(find_waits(lint, start, whole, &settled));
    TRY(check_uses(start, start, settled));
    for (const struct edge *use = start->first_use; use; use = use->next) {
        if (is_getitem(use->user)) {
            const struct shoal_node **element = find_element(lint, start, use->user);
            TRY(check_uses(start, use->user, element ? *element : earlier(whole, find_wait(use->user))));
        }
    }
    return SHOAL_OK;
}

/* All of it --------------------------------------------------------------------------------------------- */

/* What the first walk collects for later checks. */
struct findings {
    const struct shoal_node *output;      /* NULL if there is none */
    size_t n_values;                      /* the most that a node gives */
    const struct shoal_node *first_start; /* NULL if there is none */
    /* Starts, waits, and others whose memory may demand an order. */
    const struct shoal_node **ordered;
    size_t n_ordered;
    size_t capacity;
};

/* Prefetches, a few nodes ahead, what check_node will read: a node, then its arrays, then its first value. */
static void fetch_ahead(const struct shoal_node *node)
{
    const struct shoal_node *second = node ? node->next : NULL;
    if (!second || !second->next) {
        return;
    }
    if (node->n_values > 0 && node->values) {
        __builtin_prefetch(node->values[0]);
    }
    __builtin_prefetch(second->args);
    __builtin_prefetch(second->edges);
    __builtin_prefetch(second->values);
    __builtin_prefetch(second->next);
    __builtin_prefetch((const char *)second->next + 64);
    __builtin_prefetch((const char *)second->next + 128);
}

static shoal_status check_node(struct lint *lint, const struct shoal_node *node, uint32_t number,
                               struct findings *findings)
{
    TRY(fill_entry(lint, node));
    TRY(check_name(lint->graph, node));
    TRY(check_args(lint, node, number));
    TRY(check_kind(node));
    if (node->kind == SHOAL_NODE_OUTPUT && findings->output) {
        return refuse(node, "is a second output, besides %.64s", findings->output->name);
    }
    findings->output = node->kind == SHOAL_NODE_OUTPUT ? node : findings->output;
    findings->n_values = node->n_values > findings->n_values ? node->n_values : findings->n_values;
    if ((node_flags(node) & ACCESSES_FLAGS) != 0) {
        TRY(mem_grow((void **)&findings->ordered, &findings->capacity, findings->n_ordered + 1,
                     sizeof findings->ordered[0]));
        findings->ordered[findings->n_ordered++] = node;
        bool is_first = !findings->first_start && (node_flags(node) & SHOAL_OP_COLLECTIVE) != 0;
        findings->first_start = is_first ? node : findings->first_start;
    }
    return SHOAL_OK;
}

static shoal_status check_nodes(struct lint *lint, struct findings *findings)
{
    const struct shoal_node *prev = NULL;
    uint32_t number = 0;
    for (const struct shoal_node *node = lint->graph->first; node; node = node->next) {
        fetch_ahead(node->next);
        /* Must come first: it ends the walk if the list is a circle, because some node then has another predecessor. */
        TRY(check_link(lint->graph, node, prev));
        TRY(check_node(lint, node, ++number, findings));
        prev = node;
    }
    TRY(check_end(lint->graph, prev, number));
    TRY(check_point(lint));
    for (uint32_t id = 0; id < lint->graph->n_ids; id++) {
        if (lint->entries[id].node) {
            TRY(check_uses_of(lint, &lint->entries[id]));
        }
    }
    return check_output(lint->graph, findings->output);
}

static shoal_status check_waits(struct lint *lint, const struct findings *findings)
{
    lint->first_wait = mem_alloc_zeroed(findings->n_values + 1, sizeof *lint->first_wait);
    shoal_status status = lint->first_wait ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
    for (size_t i = 0; i < findings->n_ordered && status == SHOAL_OK; i++) {
        if ((node_flags(findings->ordered[i]) & SHOAL_OP_COLLECTIVE) != 0) {
            status = check_start(lint, findings->ordered[i]);
        }
    }
    mem_free(lint->first_wait);
    return status;
}

static shoal_status check_memory(const struct lint *lint, const struct findings *findings)
{
    for (size_t i = 0; i < findings->n_ordered; i++) {
        if (!accesses_is_plain(findings->ordered[i])) {
            return lint_flight(lint->graph);
        }
    }
    return SHOAL_OK;
}

static shoal_status lint_whole(const struct shoal_graph *graph)
{
    struct lint lint = {.graph = graph};
    struct findings findings = {.output = NULL};
    lint.entries = mem_alloc_zeroed((size_t)graph->n_ids + 1, sizeof *lint.entries);
    if (!lint.entries) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = check_nodes(&lint, &findings);
    if (status == SHOAL_OK && findings.first_start) {
        status = check_waits(&lint, &findings);
    }
    if (status == SHOAL_OK && findings.first_start) {
        status = check_memory(&lint, &findings);
    }
    mem_free(findings.ordered);
    mem_free(lint.entries);
    return status;
}

shoal_status graph_lint_order(const struct shoal_graph *graph)
{
    const struct shoal_node *prev = NULL;
    size_t n_nodes = 0;
    for (const struct shoal_node *node = graph->first; node; node = node->next) {
        TRY(check_link(graph, node, prev));
        prev = node;
        n_nodes++;
        for (size_t i = 0; i < node->n_inputs; i++) {
            const struct shoal_node *input = node->inputs[i];
            if (input->is_erased || input->graph != graph) {
                return refuse(node, "input %zu: node %.64s is not in the graph", i, name_of(input));
            }
            if (input->order >= node->order) {
                return refuse(node, "input %zu: node %.64s is not before it", i, name_of(input));
            }
        }
    }
    return check_end(graph, prev, n_nodes);
}

shoal_status shoal_graph_lint(const shoal_graph *graph)
{
    error_clear();
    if (!graph) {
        return error_set(SHOAL_ERR_INVALID, "graph_lint: graph is NULL");
    }
    shoal_status status = lint_whole(graph);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "graph_lint");
}
