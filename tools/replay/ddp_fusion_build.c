/* SPDX-License-Identifier: MIT */
/*
 * Turns nodes of the file into nodes of a graph. A target of the table (ddp_fusion_targets.h) becomes a call of our op,
 * whose result must have the shape that the file says. Any other target becomes an opaque node with that shape.
 *
 * All groups have the file's eight ranks.
 */
#include "ddp_fusion_build.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ddp_fusion_targets.h"
#include "shoal/ops.h"
#include "shoal/scope.h"

enum {
    N_RANKS = 8
};

struct building {
    struct fusion_case *self;
    const struct fusion_nodes *nodes;
    enum fusion_verdict verdict_if_not;
    shoal_graph *graph;
    shoal_node **made; /* by number */
};

/* What the format does not allow. */
static enum fusion_verdict refuse(const struct building *building, const struct fusion_node *node,
                                  const char *reason)
{
    return fusion_say(building->self, FUSION_UNREADABLE, "%s, node %.100s: %s", building->nodes->what,
                      node->name, reason);
}

/* What the library does not allow. */
static enum fusion_verdict fail(const struct building *building, const struct fusion_node *node)
{
    return fusion_say(building->self, building->verdict_if_not, "%s, node %.100s: %.300s",
                      building->nodes->what, node->name, shoal_error_text());
}

/* Shapes ----------------------------------------------------------------------------------------------- */

/* What a node gives, as the file says: tensors of the innermost scope. */
struct values {
    shoal_tensor **tensors;
    size_t n_tensors;
    bool is_list;
    bool is_known; /* false if the file says nothing */
};

static bool read_dtype(const char *name, shoal_dtype *dtype_out)
{
    static const struct {
        const char *name;
        shoal_dtype dtype;
    } rows[] = {{"float64", SHOAL_F64},   {"float32", SHOAL_F32},   {"float16", SHOAL_F16},
                {"bfloat16", SHOAL_BF16}, {"int8", SHOAL_I8},       {"int16", SHOAL_I16},
                {"int32", SHOAL_I32},     {"int64", SHOAL_I64},     {"uint8", SHOAL_U8},
                {"uint16", SHOAL_U16},    {"uint32", SHOAL_U32},    {"uint64", SHOAL_U64},
                {"bool", SHOAL_BOOL},     {"complex64", SHOAL_C64}, {"complex128", SHOAL_C128}};
    const char *bare = strncmp(name, "torch.", 6) == 0 ? name + 6 : name;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(bare, rows[i].name) == 0) {
            *dtype_out = rows[i].dtype;
            return true;
        }
    }
    return false;
}

/* [[2, 3], "float32"] */
static enum fusion_verdict read_value(const struct building *building, const struct fusion_node *node,
                                      const json_t *json, shoal_tensor **tensor_out)
{
    const json_t *sizes = json_array_get(json, 0);
    const char *dtype_name = json_string_value(json_array_get(json, 1));
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    shoal_dtype dtype = SHOAL_F32;
    if (json_array_size(json) != 2 || !json_is_array(sizes) || !dtype_name) {
        return refuse(building, node, "\"meta\" is neither [shape, dtype] nor a list of them");
    }
    size_t n_dims = json_array_size(sizes);
    if (!read_dtype(dtype_name, &dtype) || n_dims > SHOAL_MAX_DIMS) {
        return refuse(building, node,
                      n_dims > SHOAL_MAX_DIMS ? "\"meta\" has too many dimensions"
                                              : "\"meta\" has an unknown dtype");
    }
    for (size_t i = 0; i < n_dims; i++) {
        const json_t *size = json_array_get(sizes, i);
        if (!json_is_integer(size) || json_integer_value(size) < 0) {
            return refuse(building, node, "\"meta\" has a shape with something that is not a size");
        }
        shape[i] = json_integer_value(size);
    }
    *tensor_out = shoal_empty_on(shape, (int)n_dims, dtype, SHOAL_META);
    return *tensor_out ? FUSION_RIGHT : refuse(building, node, shoal_error_text());
}

static enum fusion_verdict read_meta(const struct building *building, const struct fusion_node *node,
                                     struct values *values_out)
{
    enum fusion_verdict verdict = FUSION_RIGHT;
    const json_t *meta = node->meta;
    *values_out = (struct values){.is_known = !json_is_null(meta)};
    if (json_is_null(meta)) {
        return FUSION_RIGHT;
    }
    if (!json_is_array(meta)) {
        return refuse(building, node, "\"meta\" is neither [shape, dtype] nor a list of them");
    }
    values_out->is_list = !json_is_string(json_array_get(meta, 1));
    values_out->n_tensors = values_out->is_list ? json_array_size(meta) : 1;
    values_out->tensors = fusion_alloc(building->self, values_out->n_tensors, sizeof values_out->tensors[0]);
    if (!values_out->tensors) {
        return fusion_no_memory(building->self);
    }
    for (size_t i = 0; verdict == FUSION_RIGHT && i < values_out->n_tensors; i++) {
        const json_t *json = values_out->is_list ? json_array_get(meta, i) : meta;
        verdict = read_value(building, node, json, &values_out->tensors[i]);
    }
    return verdict;
}

static bool is_same_shape(const shoal_tensor *a, const shoal_tensor *b)
{
    int n_dims = shoal_tensor_n_dims(a);
    return n_dims == shoal_tensor_n_dims(b) && shoal_tensor_dtype(a) == shoal_tensor_dtype(b) &&
           (n_dims == 0 ||
            memcmp(shoal_tensor_shape(a), shoal_tensor_shape(b), (size_t)n_dims * sizeof(int64_t)) == 0);
}

/* What our op gives is what the file says. */
static enum fusion_verdict check_values(const struct building *building, const struct fusion_node *node,
                                        const shoal_node *made, const struct values *values)
{
    bool is_same = !values->is_known || (shoal_node_n_values(made) == values->n_tensors &&
                                         shoal_node_is_list(made) == values->is_list);
    for (size_t i = 0; values->is_known && is_same && i < values->n_tensors; i++) {
        is_same = is_same_shape(shoal_node_value(made, i), values->tensors[i]);
    }
    return is_same ? FUSION_RIGHT
                   : fusion_say(building->self, building->verdict_if_not,
                                "%s, node %.100s: %s gives another shape than the file says",
                                building->nodes->what, node->name, shoal_node_target(made));
}

/* Arguments -------------------------------------------------------------------------------------------- */

static enum fusion_verdict read_arg(const struct building *building, const struct fusion_node *node,
                                    const json_t *json, shoal_arg *arg_out);

static enum fusion_verdict read_list(const struct building *building, const struct fusion_node *node,
                                     const json_t *json, shoal_arg *arg_out)
{
    size_t count = json_array_size(json);
    shoal_arg *items = fusion_alloc(building->self, count, sizeof items[0]);
    enum fusion_verdict verdict = FUSION_RIGHT;
    if (!items) {
        return fusion_no_memory(building->self);
    }
    for (size_t i = 0; verdict == FUSION_RIGHT && i < count; i++) {
        verdict = read_arg(building, node, json_array_get(json, i), &items[i]);
    }
    *arg_out = (shoal_arg){.kind = SHOAL_ARG_LIST, .as = {.list = {items, count}}};
    return verdict;
}

static enum fusion_verdict read_arg(const struct building *building, const struct fusion_node *node,
                                    const json_t *json, shoal_arg *arg_out)
{
    *arg_out = (shoal_arg){.kind = SHOAL_ARG_NONE};
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        arg_out->kind = SHOAL_ARG_NODE;
        arg_out->as.node = building->made[fusion_node_number(building->nodes, fusion_node_reference(json))];
        break;
    case JSON_ARRAY:
        return read_list(building, node, json, arg_out);
    case JSON_STRING:
        arg_out->kind = SHOAL_ARG_STRING;
        arg_out->as.string = json_string_value(json);
        break;
    case JSON_INTEGER:
        arg_out->kind = SHOAL_ARG_INT;
        arg_out->as.integer = json_integer_value(json);
        break;
    case JSON_REAL:
        arg_out->kind = SHOAL_ARG_FLOAT;
        arg_out->as.real = json_real_value(json);
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        arg_out->kind = SHOAL_ARG_BOOL;
        arg_out->as.boolean = json_is_true(json);
        break;
    case JSON_NULL:
        break;
    }
    return FUSION_RIGHT;
}

/* Keyword arguments of an opaque call: one more list, ["kwargs", key, value, ...], sorted by key. */

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum fusion_verdict read_kwargs(const struct building *building, const struct fusion_node *node,
                                       shoal_arg *arg_out)
{
    size_t n_keys = json_object_size(node->kwargs);
    size_t i = 0;
    const char *key;
    json_t *value;
    const char **keys = fusion_alloc(building->self, n_keys, sizeof keys[0]);
    shoal_arg *items = fusion_alloc(building->self, 1 + 2 * n_keys, sizeof items[0]);
    if (!keys || !items) {
        return fusion_no_memory(building->self);
    }
    json_object_foreach((json_t *)(uintptr_t)node->kwargs, key, value)
    {
        keys[i++] = key;
    }
    qsort(keys, n_keys, sizeof keys[0], compare_keys);
    items[0] = (shoal_arg){.kind = SHOAL_ARG_STRING, .as = {.string = "kwargs"}};
    enum fusion_verdict verdict = FUSION_RIGHT;
    for (i = 0; verdict == FUSION_RIGHT && i < n_keys; i++) {
        items[1 + 2 * i] = (shoal_arg){.kind = SHOAL_ARG_STRING, .as = {.string = keys[i]}};
        verdict = read_arg(building, node, json_object_get(node->kwargs, keys[i]), &items[2 + 2 * i]);
    }
    *arg_out = (shoal_arg){.kind = SHOAL_ARG_LIST, .as = {.list = {items, 1 + 2 * n_keys}}};
    return verdict;
}

/* Calls ------------------------------------------------------------------------------------------------ */

static enum fusion_verdict make_opaque(const struct building *building, const struct fusion_node *node,
                                       const struct values *values, shoal_node **made_out)
{
    size_t n_args = json_array_size(node->args);
    const char *target = node->target;
    shoal_arg *args = fusion_alloc(building->self, n_args + 1, sizeof args[0]);
    enum fusion_verdict verdict = FUSION_RIGHT;
    if (!args) {
        return fusion_no_memory(building->self);
    }
    for (size_t i = 0; verdict == FUSION_RIGHT && i < n_args; i++) {
        verdict = read_arg(building, node, json_array_get(node->args, i), &args[i]);
    }
    if (verdict == FUSION_RIGHT && json_object_size(node->kwargs) > 0) {
        verdict = read_kwargs(building, node, &args[n_args++]);
    }
    if (verdict == FUSION_RIGHT && node->kind == FUSION_OTHER) {
        size_t bytes = strlen(node->op) + 1 + strlen(node->target) + 1;
        char *whole = fusion_alloc(building->self, bytes, 1);
        if (!whole) {
            return fusion_no_memory(building->self);
        }
        (void)snprintf(whole, bytes, "%s.%s", node->op, node->target);
        target = whole;
    }
    if (verdict != FUSION_RIGHT) {
        return verdict;
    }
    if (!values->is_known) {
        return refuse(building, node, "\"meta\" says nothing, and so its shape is not known");
    }
    return shoal_graph_opaque(building->graph, target, args, n_args, values->tensors, values->n_tensors,
                              values->is_list, node->name, made_out) == SHOAL_OK
               ? FUSION_RIGHT
               : fail(building, node);
}

/* The arguments of a target of the table. */
static enum fusion_verdict read_call(const struct building *building, const struct fusion_node *node,
                                     struct fusion_call *call)
{
    size_t n_positional = json_array_size(node->args);
    size_t n_found = n_positional;
    enum fusion_verdict verdict = FUSION_RIGHT;
    call->n_args = n_positional;
    for (size_t i = 0; i < FUSION_MAX_PARAMS && call->target->params[i] && verdict == FUSION_RIGHT; i++) {
        const json_t *word = json_object_get(node->kwargs, call->target->params[i]);
        if (word && i >= n_positional) {
            n_found++;
            call->n_args = i + 1;
        }
        const json_t *json = i < n_positional ? json_array_get(node->args, i) : word;
        if (json) {
            verdict = read_arg(building, node, json, &call->args[i]);
        }
    }
    if (verdict == FUSION_RIGHT && (n_positional > FUSION_MAX_PARAMS || call->n_args > n_found ||
                                    n_found != n_positional + json_object_size(node->kwargs) ||
                                    (n_positional > 0 && !call->target->params[n_positional - 1]))) {
        return refuse(building, node, "its arguments do not fit its target");
    }
    return verdict;
}

/*
 * Writes the name of a group in the graph's table: "group_" and the file's name, in which only letters and digits are
 * kept. '_' is doubled, and any other byte becomes '_' and two hexadecimal digits: different names stay different.
 */
static char *write_group(struct fusion_case *self, const char *group)
{
    size_t bytes = strlen("group_") + 3 * strlen(group) + 1;
    char *name = fusion_alloc(self, bytes, 1);
    size_t n = name ? (size_t)snprintf(name, bytes, "group_") : 0;
    for (size_t i = 0; name && group[i]; i++) {
        char c = group[i];
        bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (is_plain || c == '_') {
            n += (size_t)snprintf(name + n, bytes - n, is_plain ? "%c" : "_%c", c);
        } else {
            n += (size_t)snprintf(name + n, bytes - n, "_%02x", (unsigned char)c);
        }
    }
    return name;
}

static enum fusion_verdict add_group(const struct building *building, const struct fusion_node *node,
                                     struct fusion_call *call)
{
    static const int ranks[N_RANKS] = {0, 1, 2, 3, 4, 5, 6, 7};
    char *name = write_group(building->self, call->group);
    if (!name) {
        return fusion_no_memory(building->self);
    }
    call->args[2].as.string = name;
    return shoal_graph_add_group(building->graph, name, ranks, 1, N_RANKS) == SHOAL_OK ? FUSION_RIGHT
                                                                                       : fail(building, node);
}

static enum fusion_verdict make_call(const struct building *building, const struct fusion_node *node,
                                     const struct values *values, shoal_node **made_out)
{
    const shoal_op *op;
    struct fusion_call call = {.target = fusion_target_find(node->target)};
    if (node->kind == FUSION_OTHER || !call.target) {
        return make_opaque(building, node, values, made_out);
    }
    enum fusion_verdict verdict = read_call(building, node, &call);
    if (verdict != FUSION_RIGHT) {
        return verdict;
    }
    if (!fusion_target_adapt(&call)) {
        return make_opaque(building, node, values, made_out);
    }
    verdict = call.group ? add_group(building, node, &call) : FUSION_RIGHT;
    if (verdict != FUSION_RIGHT) {
        return verdict;
    }
    if (shoal_op_find(call.op, &op) != SHOAL_OK ||
        shoal_graph_call(building->graph, op, call.args, call.n_args, node->name, made_out) != SHOAL_OK) {
        return fail(building, node);
    }
    return check_values(building, node, *made_out, values);
}

/* Nodes ------------------------------------------------------------------------------------------------ */

static enum fusion_verdict make_placeholder(const struct building *building, const struct fusion_node *node,
                                            const struct values *values, shoal_node **made_out)
{
    if (!values->tensors || values->is_list) {
        return refuse(building, node, "\"meta\" of a placeholder is not [shape, dtype]");
    }
    if (json_array_size(node->args) > 0 || json_object_size(node->kwargs) > 0) {
        return refuse(building, node, "a placeholder with arguments");
    }
    const shoal_tensor *tensor = values->tensors[0];
    return shoal_graph_placeholder(building->graph, node->name, shoal_tensor_shape(tensor),
                                   shoal_tensor_n_dims(tensor), shoal_tensor_dtype(tensor),
                                   made_out) == SHOAL_OK
               ? FUSION_RIGHT
               : fail(building, node);
}

static enum fusion_verdict make_output(const struct building *building, const struct fusion_node *node,
                                       shoal_node **made_out)
{
    shoal_arg arg;
    if (json_array_size(node->args) != 1 || json_object_size(node->kwargs) > 0) {
        return refuse(building, node, "an output has one argument");
    }
    enum fusion_verdict verdict = read_arg(building, node, json_array_get(node->args, 0), &arg);
    if (verdict != FUSION_RIGHT) {
        return verdict;
    }
    return shoal_graph_output(building->graph, &arg, made_out) == SHOAL_OK ? FUSION_RIGHT
                                                                           : fail(building, node);
}

static enum fusion_verdict make_node(const struct building *building, size_t number)
{
    const struct fusion_node *node = &building->nodes->nodes[number];
    shoal_node **made_out = &building->made[number];
    struct values values;
    enum fusion_verdict verdict = read_meta(building, node, &values);
    if (verdict != FUSION_RIGHT) {
        return verdict;
    }
    switch (node->kind) {
    case FUSION_PLACEHOLDER:
        return make_placeholder(building, node, &values, made_out);
    case FUSION_OUTPUT:
        return make_output(building, node, made_out);
    case FUSION_CALL:
    case FUSION_OTHER:
        break;
    }
    return make_call(building, node, &values, made_out);
}

enum fusion_verdict fusion_build(struct fusion_case *self, const struct fusion_nodes *nodes,
                                 enum fusion_verdict verdict_if_not, shoal_graph **graph_out)
{
    struct building building = {.self = self, .nodes = nodes, .verdict_if_not = verdict_if_not};
    enum fusion_verdict verdict = FUSION_RIGHT;
    building.made = fusion_alloc(self, nodes->n_nodes, sizeof building.made[0]);
    if (!building.made || shoal_graph_create(&building.graph) != SHOAL_OK) {
        return fusion_no_memory(self);
    }
    for (size_t i = 0; verdict == FUSION_RIGHT && i < nodes->n_nodes; i++) {
        if (shoal_scope_begin() != SHOAL_OK) {
            verdict = fusion_no_memory(self);
            break;
        }
        verdict = make_node(&building, i);
        if (shoal_scope_end() != SHOAL_OK && verdict == FUSION_RIGHT) {
            verdict = fail(&building, &nodes->nodes[i]);
        }
    }
    if (verdict != FUSION_RIGHT) {
        shoal_graph_free(building.graph);
        return verdict;
    }
    *graph_out = building.graph;
    return FUSION_RIGHT;
}
