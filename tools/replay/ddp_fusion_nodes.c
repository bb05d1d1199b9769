/* SPDX-License-Identifier: MIT */
/* The form of a graph of the file: fields, names, references, order. */
#include "ddp_fusion_nodes.h"

#include <stdint.h>
#include <string.h>

#include "ddp_fusion_targets.h"

/* Fields ----------------------------------------------------------------------------------------------- */

static bool read_kind(const char *op, enum fusion_kind *kind_out)
{
    static const struct {
        const char *op;
        enum fusion_kind kind;
    } rows[] = {{"placeholder", FUSION_PLACEHOLDER}, {"call_function", FUSION_CALL},
                {"get_attr", FUSION_OTHER},          {"call_method", FUSION_OTHER},
                {"call_module", FUSION_OTHER},       {"output", FUSION_OUTPUT}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(op, rows[i].op) == 0) {
            *kind_out = rows[i].kind;
            return true;
        }
    }
    return false;
}

/* NULL, with the reason, when it is not there or not of that type. */
static const json_t *read_field(struct fusion_case *self, const struct fusion_nodes *nodes, size_t number,
                                const json_t *object, const char *key, json_type type, const char *type_name)
{
    const json_t *value = json_object_get(object, key);
    const char *name = json_string_value(json_object_get(object, "name"));
    if (value && json_typeof(value) == type) {
        return value;
    }
    (void)fusion_say(self, FUSION_UNREADABLE, "%s, node %zu (%.100s): \"%s\" is %s%s", nodes->what, number,
                     name ? name : "without a name", key, value ? "not " : "missing", value ? type_name : "");
    return NULL;
}

static enum fusion_verdict read_node(struct fusion_case *self, struct fusion_nodes *nodes, size_t number,
                                     const json_t *object)
{
    struct fusion_node *node = &nodes->nodes[number];
    if (!json_is_object(object)) {
        return fusion_say(self, FUSION_UNREADABLE, "%s, node %zu: is not an object", nodes->what, number);
    }
    const json_t *name = read_field(self, nodes, number, object, "name", JSON_STRING, "a string");
    const json_t *op = name ? read_field(self, nodes, number, object, "op", JSON_STRING, "a string") : NULL;
    const json_t *target =
        op ? read_field(self, nodes, number, object, "target", JSON_STRING, "a string") : NULL;
    const json_t *args =
        target ? read_field(self, nodes, number, object, "args", JSON_ARRAY, "a list") : NULL;
    const json_t *kwargs =
        args ? read_field(self, nodes, number, object, "kwargs", JSON_OBJECT, "an object") : NULL;
    if (!kwargs) {
        return FUSION_UNREADABLE;
    }
    *node = (struct fusion_node){.name = json_string_value(name),
                                 .op = json_string_value(op),
                                 .target = json_string_value(target),
                                 .args = args,
                                 .kwargs = kwargs,
                                 .meta = json_object_get(object, "meta")};
    if (!node->meta) {
        return fusion_say(self, FUSION_UNREADABLE, "%s, node %zu (%.100s): \"meta\" is missing", nodes->what,
                          number, node->name);
    }
    if (!read_kind(node->op, &node->kind)) {
        return fusion_say(self, FUSION_UNREADABLE, "%s, node %zu (%.100s): unknown op \"%.100s\"",
                          nodes->what, number, node->name, node->op);
    }
    if (node->name[0] == '\0' || json_object_get(nodes->numbers, node->name)) {
        return fusion_say(self, FUSION_UNREADABLE, "%s, node %zu (%.100s): %s", nodes->what, number,
                          node->name,
                          node->name[0] == '\0' ? "its name is empty" : "another one has its name");
    }
    return json_object_set_new(nodes->numbers, node->name, json_integer((json_int_t)number)) == 0
               ? FUSION_RIGHT
               : fusion_no_memory(self);
}

/* References ------------------------------------------------------------------------------------------- */

const char *fusion_node_reference(const json_t *value)
{
    return json_object_size(value) == 1 ? json_string_value(json_object_get(value, "node")) : NULL;
}

size_t fusion_node_number(const struct fusion_nodes *nodes, const char *name)
{
    return (size_t)json_integer_value(json_object_get(nodes->numbers, name));
}

/* Counts what the value names, and notes it where there is an array for that. */
static enum fusion_verdict collect(struct fusion_case *self, const struct fusion_nodes *nodes,
                                   struct fusion_node *node, const json_t *value)
{
    if (json_is_array(value)) {
        enum fusion_verdict verdict = FUSION_RIGHT;
        for (size_t i = 0; verdict == FUSION_RIGHT && i < json_array_size(value); i++) {
            verdict = collect(self, nodes, node, json_array_get(value, i));
        }
        return verdict;
    }
    if (!json_is_object(value)) {
        return FUSION_RIGHT;
    }
    const char *name = fusion_node_reference(value);
    if (!name) {
        return fusion_say(self, FUSION_UNREADABLE,
                          "%s, node %.100s: an argument is an object, but not a node", nodes->what,
                          node->name);
    }
    const json_t *number = json_object_get(nodes->numbers, name);
    if (!number) {
        return fusion_say(self, FUSION_UNREADABLE, "%s, node %.100s: there is no node \"%.100s\"",
                          nodes->what, node->name, name);
    }
    if (node->inputs) {
        node->inputs[node->n_inputs] = (size_t)json_integer_value(number);
    }
    node->n_inputs++;
    return FUSION_RIGHT;
}

static enum fusion_verdict collect_all(struct fusion_case *self, const struct fusion_nodes *nodes,
                                       struct fusion_node *node)
{
    const char *key;
    json_t *value;
    node->n_inputs = 0;
    enum fusion_verdict verdict = collect(self, nodes, node, node->args);
    json_object_foreach((json_t *)(uintptr_t)node->kwargs, key, value)
    {
        if (verdict == FUSION_RIGHT) {
            verdict = collect(self, nodes, node, value);
        }
    }
    return verdict;
}

static enum fusion_verdict read_inputs(struct fusion_case *self, const struct fusion_nodes *nodes,
                                       struct fusion_node *node)
{
    enum fusion_verdict verdict = collect_all(self, nodes, node);
    if (verdict != FUSION_RIGHT) {
        return verdict;
    }
    node->inputs = fusion_alloc(self, node->n_inputs, sizeof node->inputs[0]);
    return node->inputs ? collect_all(self, nodes, node) : fusion_no_memory(self);
}

enum fusion_verdict fusion_nodes_read(struct fusion_case *self, const char *what, const json_t *list,
                                      struct fusion_nodes *nodes_out)
{
    enum fusion_verdict verdict = FUSION_RIGHT;
    size_t n_nodes = json_array_size(list);
    *nodes_out = (struct fusion_nodes){.what = what, .n_nodes = n_nodes};
    if (!json_is_array(list)) {
        return fusion_say(self, FUSION_UNREADABLE, "\"%s\" is %s", what, list ? "not a list" : "missing");
    }
    nodes_out->nodes = fusion_alloc(self, n_nodes, sizeof nodes_out->nodes[0]);
    nodes_out->numbers = json_object();
    if (!nodes_out->nodes || !nodes_out->numbers) {
        return fusion_no_memory(self);
    }
    for (size_t i = 0; verdict == FUSION_RIGHT && i < n_nodes; i++) {
        verdict = read_node(self, nodes_out, i, json_array_get(list, i));
    }
    for (size_t i = 0; verdict == FUSION_RIGHT && i < n_nodes; i++) {
        struct fusion_node *node = &nodes_out->nodes[i];
        verdict = read_inputs(self, nodes_out, node);
        if (verdict == FUSION_RIGHT && (node->kind == FUSION_OUTPUT) != (i + 1 == n_nodes)) {
            verdict = fusion_say(self, FUSION_UNREADABLE, "%s, node %.100s: %s", what, node->name,
                                 node->kind == FUSION_OUTPUT ? "an output that is not the last node"
                                                             : "the last node is not the output");
        }
    }
    if (verdict == FUSION_RIGHT && n_nodes == 0) {
        verdict = fusion_say(self, FUSION_UNREADABLE, "\"%s\" has no nodes", what);
    }
    return verdict;
}

void fusion_nodes_free(struct fusion_nodes *nodes)
{
    json_decref(nodes->numbers);
    nodes->numbers = NULL;
}

/* Order ------------------------------------------------------------------------------------------------ */

/* What PyTorch's block move may have brought before its input. */
static bool may_be_reversed(const struct fusion_node *node, const struct fusion_node *input)
{
    return node->kind == FUSION_CALL && fusion_target_is_look(node->target) && input->kind == FUSION_CALL &&
           (fusion_target_is_look(input->target) || fusion_target_is_wait(input->target));
}

/* The state of a sort: spec graph.md 1.7. Lists of parked nodes are chains of numbers + 1, 0 ends one. */
struct sorting {
    struct fusion_nodes *nodes;
    struct fusion_node *sorted;
    size_t n_sorted;
    bool *is_ready;
    size_t *first_parked; /* by what they wait for */
    size_t *last_parked;
    size_t *next_parked;
    size_t *stack;
    size_t n_stack;
    size_t *place; /* where a node is now, by its old number */
};

static bool begin_sorting(struct fusion_case *self, struct fusion_nodes *nodes, struct sorting *sorting)
{
    size_t n = nodes->n_nodes;
    *sorting = (struct sorting){.nodes = nodes,
                                .sorted = fusion_alloc(self, n, sizeof sorting->sorted[0]),
                                .is_ready = fusion_alloc(self, n, sizeof sorting->is_ready[0]),
                                .first_parked = fusion_alloc(self, n, sizeof sorting->first_parked[0]),
                                .last_parked = fusion_alloc(self, n, sizeof sorting->last_parked[0]),
                                .next_parked = fusion_alloc(self, n, sizeof sorting->next_parked[0]),
                                .stack = fusion_alloc(self, n, sizeof sorting->stack[0]),
                                .place = fusion_alloc(self, n, sizeof sorting->place[0])};
    return sorting->sorted && sorting->is_ready && sorting->first_parked && sorting->last_parked &&
           sorting->next_parked && sorting->stack && sorting->place;
}

static void park(struct sorting *sorting, size_t number, size_t input)
{
    if (sorting->first_parked[input] == 0) {
        sorting->first_parked[input] = number + 1;
    } else {
        sorting->next_parked[sorting->last_parked[input]] = number + 1;
    }
    sorting->last_parked[input] = number;
}

/* Those that wait for `number` come next, the one parked first on top. */
static void push_parked(struct sorting *sorting, size_t number)
{
    size_t begin = sorting->n_stack;
    for (size_t next = sorting->first_parked[number]; next > 0; next = sorting->next_parked[next - 1]) {
        sorting->stack[sorting->n_stack++] = next - 1;
    }
    for (size_t low = begin, high = sorting->n_stack; low + 1 < high; low++, high--) {
        size_t other = sorting->stack[low];
        sorting->stack[low] = sorting->stack[high - 1];
        sorting->stack[high - 1] = other;
    }
}

static void place(struct sorting *sorting, size_t number)
{
    const struct fusion_node *node = &sorting->nodes->nodes[number];
    for (size_t i = node->n_inputs; i > 0; i--) {
        if (!sorting->is_ready[node->inputs[i - 1]]) {
            park(sorting, number, node->inputs[i - 1]);
            return;
        }
    }
    sorting->is_ready[number] = true;
    sorting->place[number] = sorting->n_sorted;
    sorting->sorted[sorting->n_sorted++] = *node;
    push_parked(sorting, number);
}

static enum fusion_verdict sort(struct fusion_case *self, struct fusion_nodes *nodes)
{
    struct sorting sorting;
    if (!begin_sorting(self, nodes, &sorting)) {
        return fusion_no_memory(self);
    }
    for (size_t i = 0; i < nodes->n_nodes; i++) {
        sorting.stack[sorting.n_stack++] = i;
        while (sorting.n_stack > 0) {
            place(&sorting, sorting.stack[--sorting.n_stack]);
        }
    }
    if (sorting.n_sorted < nodes->n_nodes) {
        return fusion_say(self, FUSION_WRONG, "%s: nodes depend on each other in a circle", nodes->what);
    }
    for (size_t i = 0; i < nodes->n_nodes; i++) {
        struct fusion_node *node = &sorting.sorted[i];
        for (size_t j = 0; j < node->n_inputs; j++) {
            node->inputs[j] = sorting.place[node->inputs[j]];
        }
        if (json_object_set_new(nodes->numbers, node->name, json_integer((json_int_t)i)) != 0) {
            return fusion_no_memory(self);
        }
    }
    nodes->nodes = sorting.sorted;
    return FUSION_RIGHT;
}

enum fusion_verdict fusion_nodes_order(struct fusion_case *self, struct fusion_nodes *nodes,
                                       bool may_reverse_blocks, enum fusion_verdict verdict_if_not)
{
    bool is_sorted = true;
    for (size_t i = 0; i < nodes->n_nodes; i++) {
        const struct fusion_node *node = &nodes->nodes[i];
        for (size_t j = 0; j < node->n_inputs; j++) {
            const struct fusion_node *input = &nodes->nodes[node->inputs[j]];
            if (node->inputs[j] < i) {
                continue;
            }
            if (!may_reverse_blocks || !may_be_reversed(node, input)) {
                return fusion_say(self, verdict_if_not,
                                  "%s, node %.100s: uses %.100s, which stands behind it", nodes->what,
                                  node->name, input->name);
            }
            is_sorted = false;
        }
    }
    return is_sorted ? FUSION_RIGHT : sort(self, nodes);
}
