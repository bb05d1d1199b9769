/* SPDX-License-Identifier: MIT */
/* Writes a graph of the file as text of ours: a table has a template for each target. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lowering.h"

void lowering_write(struct lowering_text *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    size_t left = sizeof text->bytes - text->length;
    int written = vsnprintf(text->bytes + text->length, left, format, arguments);
    va_end(arguments);
    text->length += written < 0 ? 0 : (size_t)written < left ? (size_t)written : left - 1;
}

bool lowering_is_full(const struct lowering_text *text)
{
    return text->length + 1 >= sizeof text->bytes;
}

/* $N is argument N, $Z a list of as many zeros as the list that is argument 0 has members. */
static const struct target {
    const char *name;
    const char *call;
    const char *with_number; /* where argument 1 is a number */
    const char *collective;  /* its name; NULL if it is none. Its last argument is the group */
    size_t n_args;
    size_t ranks_at; /* which argument is the number of the group's ranks; 0 if none is */
} targets[] = {
    {"_c10d_functional.all_reduce.default", "all_reduce($0, $1, @g)", NULL, "all_reduce", 3, 0},
    {"_c10d_functional.all_reduce_coalesced.default", "all_reduce_coalesced($0, $1, @g)", NULL,
     "all_reduce_coalesced", 3, 0},
    {"_c10d_functional.all_gather_into_tensor.default", "all_gather_into_tensor($0, @g)", NULL,
     "all_gather_into_tensor", 3, 1},
    {"_c10d_functional.all_gather_into_tensor_coalesced.default", "all_gather_into_tensor_coalesced($0, @g)",
     NULL, "all_gather_into_tensor_coalesced", 3, 1},
    {"_c10d_functional.reduce_scatter_tensor.default", "reduce_scatter_tensor($0, $1, 0, @g)", NULL,
     "reduce_scatter_tensor", 4, 2},
    {"_c10d_functional.reduce_scatter_tensor_coalesced.default",
     "reduce_scatter_tensor_coalesced($0, $1, $Z, @g)", NULL, "reduce_scatter_tensor_coalesced", 4, 2},
    {"_c10d_functional.all_to_all_single.default", "all_to_all_single($0, $1, $2, @g)", NULL,
     "all_to_all_single", 4, 0},
    {"_c10d_functional.broadcast.default", "broadcast($0, $1, @g)", NULL, "broadcast", 3, 0},
    {"_dtensor.shard_dim_alltoall.default", "shard_dim_alltoall($0, $1, $2, @g)", NULL, "shard_dim_alltoall",
     4, 0},
    {"_c10d_functional.wait_tensor.default", "wait_tensor($0)", NULL, NULL, 1, 0},
    {"<built-in function getitem>", "getitem($0, $1)", NULL, NULL, 2, 0},
    {"aten.add.Tensor", "add($0, $1)", "add_scalar($0, $1)", NULL, 2, 0},
    {"aten.mul.Tensor", "mul($0, $1)", "mul_scalar($0, $1)", NULL, 2, 0},
    {"aten.permute.default", "permute($0, $1)", NULL, NULL, 2, 0},
    {"aten.slice.Tensor", "slice($0, $1, $2, $3)", NULL, NULL, 4, 0},
    {"aten.mm.default", "nn.matmul($0, $1)", NULL, NULL, 2, 0},
    {"aten.clone.default", "clone($0)", NULL, NULL, 1, 0},
};

static const struct target *find_target(const char *name)
{
    for (size_t i = 0; name && i < sizeof targets / sizeof targets[0]; i++) {
        if (strcmp(targets[i].name, name) == 0) {
            return &targets[i];
        }
    }
    return NULL;
}

const char *lowering_collective_name(const char *target)
{
    const struct target *found = find_target(target);
    return found ? found->collective : NULL;
}

/* Returns false for a value that has no text here. */
static bool write_value(struct lowering_text *graph, const json_t *value)
{
    const char *node = json_string_value(json_object_get(value, "node"));
    if (node) {
        lowering_write(graph, "%%%s", node);
    } else if (json_is_string(value)) {
        lowering_write(graph, "\"%s\"", json_string_value(value));
    } else if (json_is_integer(value)) {
        lowering_write(graph, "%lld", (long long)json_integer_value(value));
    } else if (json_is_real(value)) {
        lowering_write(graph, "%.17g", json_real_value(value));
    } else if (json_is_array(value)) {
        lowering_write(graph, "[");
        for (size_t i = 0; i < json_array_size(value); i++) {
            lowering_write(graph, "%s", i > 0 ? ", " : "");
            if (json_is_array(json_array_get(value, i)) || !write_value(graph, json_array_get(value, i))) {
                return false;
            }
        }
        lowering_write(graph, "]");
    } else {
        return false;
    }
    return true;
}

static void write_zeros(struct lowering_text *graph, size_t count)
{
    lowering_write(graph, "[");
    for (size_t i = 0; i < count; i++) {
        lowering_write(graph, "%s0", i > 0 ? ", " : "");
    }
    lowering_write(graph, "]");
}

/* The graph while it is written. */
struct writing {
    struct lowering_text *graph;
    int n_ranks;
    const char *group; /* that all collectives are on; NULL before the first */
};

/* A copy that is contiguous is what ours makes. */
static bool has_plain_kwargs(const struct target *target, const json_t *kwargs)
{
    const char *format = json_string_value(json_object_get(kwargs, "memory_format"));
    bool is_contiguous = format && strcmp(format, "torch.contiguous_format") == 0;
    size_t n_plain = strcmp(target->name, "aten.clone.default") == 0 && is_contiguous ? 1 : 0;
    return json_is_object(kwargs) && json_object_size(kwargs) == n_plain;
}

/* All ranks of the world are in the only group. */
static bool check_group(struct writing *self, const struct target *target, const json_t *args)
{
    const char *group = json_string_value(json_array_get(args, target->n_args - 1));
    const json_t *ranks = json_array_get(args, target->ranks_at);
    if (!group || (self->group && strcmp(group, self->group) != 0)) {
        return false;
    }
    self->group = group;
    return target->ranks_at == 0 || (json_is_integer(ranks) && json_integer_value(ranks) == self->n_ranks);
}

static bool write_call(struct lowering_text *graph, const struct target *target, const json_t *args)
{
    bool is_number = json_is_number(json_array_get(args, 1));
    const char *at = is_number && target->with_number ? target->with_number : target->call;
    for (; *at != '\0'; at++) {
        if (*at != '$') {
            lowering_write(graph, "%c", *at);
        } else if (*++at == 'Z') {
            write_zeros(graph, json_array_size(json_array_get(args, 0)));
        } else if (!write_value(graph, json_array_get(args, (size_t)(*at - '0')))) {
            return false;
        }
    }
    return true;
}

static bool write_placeholder(struct lowering_text *graph, const json_t *meta)
{
    const char *dtype = json_string_value(json_array_get(meta, 1));
    if (!dtype || strcmp(dtype, "float32") != 0) {
        return false;
    }
    lowering_write(graph, "placeholder : f32");
    return write_value(graph, json_array_get(meta, 0));
}

/* Returns false if the call has other arguments than the table knows. */
static bool check_call(struct writing *self, const struct target *target, const json_t *node)
{
    const json_t *args = json_object_get(node, "args");
    return json_array_size(args) == target->n_args &&
           has_plain_kwargs(target, json_object_get(node, "kwargs")) &&
           (!target->collective || check_group(self, target, args));
}

static bool write_node(struct writing *self, const json_t *node, struct lowering_text *reason)
{
    struct lowering_text *graph = self->graph;
    const char *name = json_string_value(json_object_get(node, "name"));
    const char *op = json_string_value(json_object_get(node, "op"));
    const char *target = json_string_value(json_object_get(node, "target"));
    const json_t *args = json_object_get(node, "args");
    if (!name || !op || !target || !json_is_array(args)) {
        lowering_write(reason, "a node without a name, op, target or args");
        return false;
    }
    bool is_right = true;
    lowering_write(graph, "    ");
    if (strcmp(op, "output") == 0) {
        lowering_write(graph, "return ");
        is_right = write_value(graph, json_array_get(args, 0));
    } else if (strcmp(op, "placeholder") == 0) {
        lowering_write(graph, "%%%s = ", name);
        is_right = write_placeholder(graph, json_object_get(node, "meta"));
    } else {
        const struct target *found = strcmp(op, "call_function") == 0 ? find_target(target) : NULL;
        lowering_write(graph, "%%%s = ", name);
        if (found && !check_call(self, found, node)) {
            lowering_write(reason, "node %.60s (%.60s): its arguments or its group are not known here", name,
                           target);
            return false;
        }
        is_right = found && write_call(graph, found, args);
    }
    lowering_write(graph, "\n");
    if (!is_right) {
        lowering_write(reason, "node %.60s (%.60s %.60s) has no text here", name, op, target);
    }
    return is_right;
}

bool lowering_read_graph(const json_t *before, int n_ranks, struct lowering_text *graph,
                         struct lowering_text *reason)
{
    struct writing self = {.graph = graph, .n_ranks = n_ranks};
    lowering_write(graph, "graph {\n    group @g = [[");
    for (int i = 0; i < n_ranks; i++) {
        lowering_write(graph, "%s%d", i > 0 ? ", " : "", i);
    }
    lowering_write(graph, "]]\n");
    for (size_t i = 0; i < json_array_size(before); i++) {
        if (!write_node(&self, json_array_get(before, i), reason)) {
            return false;
        }
    }
    lowering_write(graph, "}\n");
    if (lowering_is_full(graph)) {
        lowering_write(reason, "the graph is too long");
        return false;
    }
    return true;
}
