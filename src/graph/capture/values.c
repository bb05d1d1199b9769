/* SPDX-License-Identifier: MIT */
/* Finds the node of a tensor. Invariant: the base of a storage is contiguous and covers it. */
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "device/device.h"
#include "graph/capture/capture.h"
#include "shoal/autograd.h"
#include "shoal/ops.h"
#include "tensor/scope.h"

void capture_free_values(struct capture *capture)
{
    map_free(&capture->storage_numbers);
    map_free(&capture->value_numbers);
    map_free(&capture->name_numbers);
    map_free(&capture->noted_leaves);
    map_free(&capture->noted_parts);
    map_free(&capture->noted_asked);
    mem_free(capture->storages);
    mem_free(capture->values);
    mem_free(capture->flights);
    mem_free((void *)capture->names);
}

/* Storages --------------------------------------------------------------------------------------------- */

static struct capture_storage *find_storage(struct capture *capture, uint64_t id)
{
    size_t index;
    return map_get(&capture->storage_numbers, id, &index) ? &capture->storages[index] : NULL;
}

struct capture_storage *capture_known_storage(struct capture *capture, struct storage *storage)
{
    return find_storage(capture, storage_trace_id(storage));
}

struct capture_storage *capture_storage_of(struct capture *capture, const struct capture_value *value)
{
    return find_storage(capture, value->id);
}

shoal_status capture_add_storage(struct capture *capture, struct storage *storage, enum capture_origin origin,
                                 struct shoal_node *node, struct capture_storage **storage_out)
{
    uint64_t id = storage_trace_id(storage);
    TRY(mem_grow((void **)&capture->storages, &capture->storage_capacity, capture->n_storages + 1,
                 sizeof(capture->storages[0])));
    TRY(map_add(&capture->storage_numbers, id, capture->n_storages));
    struct capture_storage *added = &capture->storages[capture->n_storages++];
    *added = (struct capture_storage){.id = id, .origin = origin, .node = node, .base.node = node};
    *storage_out = added;
    return SHOAL_OK;
}

/* Values ----------------------------------------------------------------------------------------------- */

static bool is_same_layout(const struct layout *a, const struct layout *b)
{
    size_t bytes = (size_t)a->n_dims * sizeof(a->shape[0]);
    return a->n_dims == b->n_dims && a->offset == b->offset && memcmp(a->shape, b->shape, bytes) == 0 &&
           memcmp(a->strides, b->strides, bytes) == 0;
}

static bool is_same_value(const void *context, const void *wanted, size_t index)
{
    const struct capture *capture = context;
    const struct capture_value *a = wanted;
    const struct capture_value *b = &capture->values[index];
    return a->id == b->id && a->epoch == b->epoch && a->dtype == b->dtype &&
           is_same_layout(&a->layout, &b->layout);
}

static uint64_t mix(uint64_t hash, uint64_t number)
{
    hash = (hash ^ number) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 29);
}

/* Hashes number by number, which is fast: every lookup does it. */
static uint64_t hash_value(const struct capture_value *value)
{
    const struct layout *layout = &value->layout;
    uint64_t hash = mix(mix(mix(value->id, value->epoch), (uint64_t)value->dtype), (uint64_t)layout->offset);
    for (int i = 0; i < layout->n_dims; i++) {
        hash = mix(mix(hash, (uint64_t)layout->shape[i]), (uint64_t)layout->strides[i]);
    }
    return hash;
}

struct capture_value capture_value_of(const struct capture_storage *storage, const shoal_tensor *tensor)
{
    return (struct capture_value){
        .id = storage->id, .epoch = storage->epoch, .dtype = tensor->dtype, .layout = tensor->layout};
}

static struct capture_given *find_value(struct capture *capture, const struct capture_value *value)
{
    size_t index;
    return map_find(&capture->value_numbers, hash_value(value), is_same_value, capture, value, &index)
               ? &capture->values[index].given
               : NULL;
}

/* Notes which node gives the value from now on. */
static shoal_status set_value(struct capture *capture, const struct capture_value *value,
                              struct capture_given given)
{
    struct capture_given *there = find_value(capture, value);
    if (there) {
        *there = given;
        return SHOAL_OK;
    }
    TRY(mem_grow((void **)&capture->values, &capture->value_capacity, capture->n_values + 1,
                 sizeof(capture->values[0])));
    TRY(map_add(&capture->value_numbers, hash_value(value), capture->n_values));
    capture->values[capture->n_values] = *value;
    capture->values[capture->n_values++].given = given;
    return SHOAL_OK;
}

shoal_status capture_take_out(struct capture *capture, struct capture_given *given)
{
    if (!given->node->is_list) {
        return SHOAL_OK;
    }
    struct shoal_node *node = NULL;
    const shoal_arg args[] = {{.kind = SHOAL_ARG_NODE, .as.node = given->node},
                              {.kind = SHOAL_ARG_INT, .as.integer = (int64_t)given->index}};
    TRY(shoal_graph_call(capture->graph, op_get(OP_getitem), args, 2, NULL, &node));
    *given = (struct capture_given){.node = node};
    return SHOAL_OK;
}

shoal_status capture_find_base(struct capture *capture, struct capture_storage *storage,
                               struct shoal_node **node_out)
{
    TRY(capture_take_out(capture, &storage->base));
    *node_out = storage->base.node;
    return SHOAL_OK;
}

bool capture_is_whole(const shoal_tensor *tensor)
{
    return tensor->is_contiguous && tensor->layout.offset == 0 &&
           tensor_bytes(tensor) == tensor->storage->bytes;
}

/* Views ------------------------------------------------------------------------------------------------ */

static shoal_arg ints_arg(const int64_t *numbers, size_t count, shoal_arg items[SHOAL_MAX_DIMS])
{
    for (size_t i = 0; i < count; i++) {
        items[i] = (shoal_arg){.kind = SHOAL_ARG_INT, .as.integer = numbers[i]};
    }
    return (shoal_arg){.kind = SHOAL_ARG_LIST, .as.list = {.items = items, .count = count}};
}

/* Makes a one-dimensional view of the base in another dtype. Bytes at the end that are no whole element are left
   out. */
static shoal_status view_as(struct capture *capture, struct shoal_node *base, shoal_dtype dtype,
                            struct shoal_node **node_out)
{
    shoal_arg items[SHOAL_MAX_DIMS];
    const shoal_tensor *value = base->values[0];
    size_t bytes = tensor_bytes(value) - tensor_bytes(value) % dtype_bytes(dtype);
    int64_t count = (int64_t)(bytes / dtype_bytes(value->dtype));
    const shoal_arg flat[] = {{.kind = SHOAL_ARG_NODE, .as.node = base}, ints_arg(&value->count, 1, items)};
    TRY(shoal_graph_call(capture->graph, op_get(OP_view), flat, 2, NULL, &base));
    if (count < base->values[0]->count) {
        const shoal_arg part[] = {{.kind = SHOAL_ARG_NODE, .as.node = base},
                                  {.kind = SHOAL_ARG_INT, .as.integer = 0},
                                  {.kind = SHOAL_ARG_INT, .as.integer = 0},
                                  {.kind = SHOAL_ARG_INT, .as.integer = count}};
        TRY(shoal_graph_call(capture->graph, op_get(OP_narrow), part, 4, NULL, &base));
    }
    const shoal_arg cast[] = {{.kind = SHOAL_ARG_NODE, .as.node = base},
                              {.kind = SHOAL_ARG_DTYPE, .as.dtype = dtype}};
    return shoal_graph_call(capture->graph, op_get(OP_view_dtype), cast, 2, NULL, node_out);
}

/* Makes a view of the base with the layout and dtype of the tensor. */
static shoal_status make_view(struct capture *capture, struct shoal_node *base, const shoal_tensor *tensor,
                              struct shoal_node **node_out)
{
    shoal_arg shape[SHOAL_MAX_DIMS];
    shoal_arg strides[SHOAL_MAX_DIMS];
    if (base->values[0]->dtype != tensor->dtype) {
        TRY(view_as(capture, base, tensor->dtype, &base));
    }
    struct layout layout = tensor->layout;
    layout.offset += base->values[0]->layout.offset;
    if (is_same_layout(&layout, &base->values[0]->layout)) {
        *node_out = base;
        return SHOAL_OK;
    }
    size_t n_dims = (size_t)layout.n_dims;
    const shoal_arg args[] = {{.kind = SHOAL_ARG_NODE, .as.node = base},
                              ints_arg(layout.shape, n_dims, shape),
                              ints_arg(layout.strides, n_dims, strides),
                              {.kind = SHOAL_ARG_INT, .as.integer = layout.offset}};
    return shoal_graph_call(capture->graph, op_get(OP_as_strided), args, 4, NULL, node_out);
}

/* Names ------------------------------------------------------------------------------------------------ */

const char *capture_name_of(const struct capture *capture, const shoal_tensor *tensor)
{
    const char *own = shoal_tensor_name(tensor);
    size_t index;
    if (own[0] || !capture_is_whole(tensor) ||
        !map_get(&capture->name_numbers, storage_trace_id(tensor->storage), &index)) {
        return own;
    }
    return capture->names[index];
}

shoal_status capture_note_name(struct capture *capture, const shoal_tensor *tensor, const char *name)
{
    uint64_t id = storage_trace_id(tensor->storage);
    size_t index;
    if (!capture_is_whole(tensor) || map_get(&capture->name_numbers, id, &index)) {
        return SHOAL_OK;
    }
    TRY(mem_grow((void **)&capture->names, &capture->name_capacity, capture->n_names + 1,
                 sizeof(capture->names[0])));
    const char *copy = arena_string(&capture->graph->arena, name);
    if (!copy) {
        return SHOAL_ERR_NO_MEMORY;
    }
    TRY(map_add(&capture->name_numbers, id, capture->n_names));
    capture->names[capture->n_names++] = copy;
    return SHOAL_OK;
}

/* Tensors with memory ---------------------------------------------------------------------------------- */

shoal_status capture_add_placeholder(struct capture *capture, const char *name, const shoal_tensor *like,
                                     shoal_tensor *tensor, shoal_tensor *source, struct shoal_node **node_out)
{
    struct shoal_graph *graph = capture->graph;
    struct captured *captured = graph->captured;
    shoal_insert_point end = graph->point;
    TRY(mem_grow((void **)&captured->inputs, &captured->input_capacity, captured->n_inputs + 1,
                 sizeof(captured->inputs[0])));
    graph->point = (shoal_insert_point){.node = capture->last_placeholder,
                                        .is_after = capture->last_placeholder != NULL};
    shoal_status status = shoal_graph_placeholder(graph, name, like->layout.shape, like->layout.n_dims,
                                                  like->dtype, &capture->last_placeholder);
    graph->point = end;
    TRY(status);
    captured->inputs[captured->n_inputs++] =
        (struct captured_input){.tensor = tensor ? shoal_tensor_ref(tensor) : NULL,
                                .source = source ? shoal_tensor_ref(source) : NULL};
    *node_out = capture->last_placeholder;
    return SHOAL_OK;
}

/* Gives the whole storage as a contiguous tensor: `tensor` itself if it is that, or a flat view. The caller gets a
   reference. */
static shoal_status make_flat(shoal_tensor *tensor, shoal_tensor **flat_out)
{
    if (capture_is_whole(tensor)) {
        *flat_out = shoal_tensor_ref(tensor);
        return SHOAL_OK;
    }
    size_t element_bytes = dtype_bytes(tensor->dtype);
    bool is_even = tensor->storage->bytes % element_bytes == 0;
    struct layout layout = {.n_dims = 1, .strides = {1}};
    layout.shape[0] = (int64_t)(tensor->storage->bytes / (is_even ? element_bytes : 1));
    TRY(tensor_create(storage_ref(tensor->storage), is_even ? tensor->dtype : SHOAL_U8, &layout, flat_out));
    (*flat_out)->is_view = true;
    (*flat_out)->is_detached = true;
    return SHOAL_OK;
}

/* Copies the data outside the graph. The caller gets a reference. */
static shoal_status copy_data(shoal_tensor *flat, shoal_tensor **copy_out)
{
    TRY(shoal_scope_begin());
    scope_current()->tracer = NULL;
    scope_current()->has_grad = false;
    shoal_tensor *copy = shoal_clone(flat);
    if (copy) {
        (void)shoal_tensor_ref(copy);
    }
    shoal_status status = shoal_scope_end();
    if (status != SHOAL_OK) {
        shoal_tensor_unref(copy);
        return status;
    }
    *copy_out = copy;
    return SHOAL_OK;
}

static shoal_status lift_constant(struct capture *capture, shoal_tensor *flat, struct shoal_node **node_out)
{
    shoal_tensor *copy = NULL;
    TRY(copy_data(flat, &copy));
    const char *name = shoal_tensor_name(flat);
    shoal_status status = shoal_graph_constant(capture->graph, name[0] ? name : "constant", copy, node_out);
    shoal_tensor_unref(copy);
    return status;
}

static shoal_status check_liftable(const shoal_tensor *tensor)
{
    void *base;
    TRY(storage_host_base(tensor->storage, &base));
    if (tensor->history && !shoal_is_leaf(tensor)) {
        const char *name = shoal_tensor_name(tensor);
        return error_set(
            SHOAL_ERR_STATE,
            "tensor %s is a result of operations that were recorded before the capture; detach it",
            name[0] ? name : "(unnamed)");
    }
    return SHOAL_OK;
}

static shoal_status lift(struct capture *capture, shoal_tensor *tensor, const char *name,
                         struct capture_storage **storage_out)
{
    shoal_tensor *flat = NULL;
    struct shoal_node *node = NULL;
    bool is_constant =
        tensor->storage->is_of_traced || (capture_is_inside(capture, tensor) && !tensor->is_view);
    const char *own_name = capture_name_of(capture, tensor);
    TRY(check_liftable(tensor));
    TRY(capture_note_memory(capture, tensor->storage));
    TRY(make_flat(tensor, &flat));
    if (!name) {
        name = own_name[0] ? own_name : "tensor";
    }
    shoal_status status = is_constant ? lift_constant(capture, flat, &node)
                                      : capture_add_placeholder(capture, name, flat, flat, NULL, &node);
    shoal_tensor_unref(flat);
    TRY(status);
    TRY(capture_add_storage(capture, tensor->storage, is_constant ? CAPTURE_CONSTANT : CAPTURE_INPUT, node,
                            storage_out));
    (*storage_out)->input = capture->graph->captured->n_inputs - 1;
    (*storage_out)->is_shared = is_constant; /* the next run needs it again, so it is not written in place */
    return SHOAL_OK;
}

/* Notes a tensor from outside the step that shares the storage of a placeholder's tensor, such as a parameter in a flat
   buffer. The graph depends on whether it requires a gradient. */
static shoal_status note_part(struct capture *capture, const struct capture_storage *storage,
                              shoal_tensor *tensor)
{
    struct captured *captured = capture->graph->captured;
    size_t index;
    if (storage->origin != CAPTURE_INPUT || !tensor->storage->memory ||
        captured->inputs[storage->input].tensor == tensor || capture_is_inside(capture, tensor) ||
        map_get(&capture->noted_parts, map_key(tensor), &index)) {
        return SHOAL_OK;
    }
    TRY(mem_grow((void **)&captured->parts, &captured->part_capacity, captured->n_parts + 1,
                 sizeof(captured->parts[0])));
    TRY(map_add(&capture->noted_parts, map_key(tensor), captured->n_parts));
    captured->parts[captured->n_parts++] =
        (struct captured_part){.tensor = shoal_tensor_ref(tensor), .needs_gradient = tensor->history != NULL};
    return SHOAL_OK;
}

shoal_status capture_note_asked(struct capture *capture, shoal_tensor *tensor)
{
    struct captured *captured = capture->graph->captured;
    const struct capture_storage *storage = capture_known_storage(capture, tensor->storage);
    size_t index;
    if ((storage && storage->origin == CAPTURE_GIVEN) || !tensor->storage->memory ||
        capture_is_inside(capture, tensor) || map_get(&capture->noted_asked, map_key(tensor), &index)) {
        return SHOAL_OK;
    }
    TRY(mem_grow((void **)&captured->asked, &captured->asked_capacity, captured->n_asked + 1,
                 sizeof(captured->asked[0])));
    TRY(map_add(&capture->noted_asked, map_key(tensor), captured->n_asked));
    captured->asked[captured->n_asked++] =
        (struct captured_part){.tensor = shoal_tensor_ref(tensor), .needs_gradient = tensor->history != NULL};
    return SHOAL_OK;
}

shoal_status capture_find_storage(struct capture *capture, shoal_tensor *tensor, const char *name,
                                  struct capture_storage **storage_out)
{
    struct capture_storage *known = capture_known_storage(capture, tensor->storage);
    if (!known) {
        TRY(lift(capture, tensor, name, storage_out));
        return note_part(capture, *storage_out, tensor);
    }
    if (known->origin == CAPTURE_GIVEN) {
        return error_set(SHOAL_ERR_STATE,
                         "a tensor in the memory of input %zu of the step is used; use the tensor that the "
                         "step gets as that input",
                         known->input);
    }
    if (known->origin == CAPTURE_RELEASED) {
        return error_set(SHOAL_ERR_STATE, "the data of tensor %s (%zu bytes) was released",
                         shoal_tensor_name(tensor), tensor->storage->bytes);
    }
    *storage_out = known;
    return note_part(capture, known, tensor);
}

void capture_drop_unused(struct capture *capture)
{
    struct captured *captured = capture->graph->captured;
    size_t index = 0;
    size_t n_kept = 0;
    capture->graph->captured = NULL; /* so that shoal_node_erase leaves it alone; it is updated below */
    GRAPH_EACH(capture->graph, node)
    {
        if (node->kind != SHOAL_NODE_PLACEHOLDER) {
            break;
        }
        struct captured_input input = captured->inputs[index++];
        if (input.tensor && node->n_users == 0 && shoal_node_erase(node) == SHOAL_OK) {
            shoal_tensor_unref(input.tensor);
            shoal_tensor_unref(input.source);
        } else {
            captured->inputs[n_kept++] = input;
        }
    }
    captured->n_inputs = n_kept;
    capture->graph->captured = captured;
}

/* Finding and setting ---------------------------------------------------------------------------------- */

shoal_status capture_find_node(struct capture *capture, shoal_tensor *tensor, struct shoal_node **node_out)
{
    struct capture_storage *storage = NULL;
    struct shoal_node *base = NULL;
    TRY(capture_find_storage(capture, tensor, NULL, &storage));
    struct capture_value value = capture_value_of(storage, tensor);
    struct capture_given *given = find_value(capture, &value);
    if (given) {
        bool is_base = given->node == storage->base.node && given->index == storage->base.index;
        TRY(capture_take_out(capture, given));
        if (is_base) {
            storage->base = *given;
        }
        *node_out = given->node;
        return SHOAL_OK;
    }
    TRY(capture_find_base(capture, storage, &base));
    TRY(make_view(capture, base, tensor, node_out));
    return set_value(capture, &value, (struct capture_given){.node = *node_out});
}

shoal_status capture_find_base_as(struct capture *capture, struct capture_storage *storage, shoal_dtype dtype,
                                  struct shoal_node **node_out)
{
    TRY(capture_find_base(capture, storage, node_out));
    return (*node_out)->values[0]->dtype == dtype ? SHOAL_OK : view_as(capture, *node_out, dtype, node_out);
}

void capture_replace_base(struct capture_storage *storage, struct shoal_node *node)
{
    storage->epoch++;
    storage->base = (struct capture_given){.node = node};
    storage->is_shared = false;
}

shoal_status capture_begin_epoch(struct capture *capture, shoal_tensor *tensor, struct capture_given given)
{
    struct capture_storage *storage = capture_known_storage(capture, tensor->storage);
    storage->epoch++;
    storage->base = given;
    storage->is_shared = false;
    struct capture_value value = capture_value_of(storage, tensor);
    return set_value(capture, &value, given);
}

shoal_status capture_set_result(struct capture *capture, struct capture_storage *storage,
                                const struct capture_value *value, struct capture_given given)
{
    const struct capture_given *before = find_value(capture, value);
    if (before && before->node == storage->base.node && before->index == storage->base.index) {
        storage->base = given; /* the same tensor at a later time, for example after a wait */
    }
    return set_value(capture, value, given);
}

shoal_status capture_add_result(struct capture *capture, shoal_tensor *tensor, struct capture_given given)
{
    struct capture_storage *storage = capture_known_storage(capture, tensor->storage);
    if (!storage) {
        TRY(capture_add_storage(capture, tensor->storage, CAPTURE_MADE, NULL, &storage));
        storage->base = given;
    }
    struct capture_value value = capture_value_of(storage, tensor);
    return capture_set_result(capture, storage, &value, given);
}
