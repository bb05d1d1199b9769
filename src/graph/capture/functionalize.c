/* SPDX-License-Identifier: MIT */
/*
 * Captures in-place calls as calls that give new tensors. If a call writes whole storages, and its op has a twin that
 * gives new tensors, the twin is captured (add for add_, a copy for copy_), and the storages begin a new epoch: later
 * uses see the new tensors. A call that writes through a view of a part of a storage is captured as its twin, followed
 * by as_strided_scatter, which gives the whole storage as a new tensor. At the end, the new values of inputs are copied
 * into them. Lowering writes in place again where the old contents are not needed (lower/slots.c).
 *
 * Some calls stay in place: ops without a twin (foreach_add_, ops of the program), receives, and collectives through
 * views, because their results do not exist before the wait. Effects (graph/analysis/effects.h) keep such calls in order. They
 * write a placeholder directly if it has not been written before.
 */
#include <string.h>

#include "base/error.h"
#include "base/try.h"
#include "graph/capture/capture.h"
#include "tensor/handle.h"

static size_t count_written(const shoal_value *written)
{
    return written->kind == SHOAL_VALUE_TENSORS ? written->count : 1;
}

static shoal_tensor *get_written(const shoal_value *written, size_t index)
{
    return written->kind == SHOAL_VALUE_TENSORS ? written->as.tensors[index] : written->as.tensor;
}

/* Twins ------------------------------------------------------------------------------------------------ */

/* Built-in ops that write in place, and their twins, which take the same arguments and give a new tensor. */
#define TWINS(TWIN)                                   \
    TWIN(add_, add)                                   \
    TWIN(sub_, sub)                                   \
    TWIN(mul_, mul)                                   \
    TWIN(div_, div)                                   \
    TWIN(neg_, neg)                                   \
    TWIN(add_scalar_, add_scalar)                     \
    TWIN(sub_scalar_, sub_scalar)                     \
    TWIN(mul_scalar_, mul_scalar)                     \
    TWIN(div_scalar_, div_scalar)                     \
    TWIN(all_reduce_, all_reduce)                     \
    TWIN(all_reduce_coalesced_, all_reduce_coalesced) \
    TWIN(broadcast_, broadcast)

/* Returns the twin of an op; NULL if there is none. copy_ has none in the table; add_copy makes its nodes. */
static const shoal_op *find_twin(const shoal_op *op)
{
    switch (op->index) {
#define TWIN(in_place, fresh) \
    case OP_##in_place:       \
        return op_get(OP_##fresh);
        TWINS(TWIN)
#undef TWIN
    default:
        return NULL;
    }
}

/* Whether the call writes whole storages. (Ops refuse a list that names a storage twice.) */
static bool covers_storages(const shoal_value *written)
{
    size_t count = count_written(written);
    for (size_t i = 0; i < count; i++) {
        if (!capture_is_whole(get_written(written, i))) {
            return false;
        }
    }
    return true;
}

/* How a call is captured. */
enum form {
    FORM_IN_PLACE, /* as it is */
    FORM_FRESH,    /* as its twin, which gives whole storages */
    FORM_SCATTER /* as its twin, and as_strided_scatter, which puts the result into a new tensor for the storage */
};

/* If something is still in flight on the storage, it is in bytes that the call does not touch. The call then stays in
   place, because as_strided_scatter would read these bytes. */
static enum form choose_form(struct capture *capture, const shoal_op *op, const shoal_value *arguments)
{
    if (op->index != OP_copy_ && !find_twin(op)) {
        return FORM_IN_PLACE;
    }
    if (covers_storages(&arguments[0])) {
        return FORM_FRESH;
    }
    const shoal_tensor *tensor = arguments[0].as.tensor;
    if ((op->flags & SHOAL_OP_COLLECTIVE) != 0 || arguments[0].kind != SHOAL_VALUE_TENSOR ||
        tensor->storage->bytes % dtype_bytes(tensor->dtype) != 0) {
        return FORM_IN_PLACE;
    }
    const struct capture_storage *storage = capture_known_storage(capture, tensor->storage);
    return storage && storage->n_flights > 0 ? FORM_IN_PLACE : FORM_SCATTER;
}

/* Before the call -------------------------------------------------------------------------------------- */

/* Copies the base of a storage that shares it with another one, before it is written in place. */
static shoal_status unshare(struct capture *capture, shoal_tensor *tensor)
{
    struct shoal_node *base = NULL;
    struct shoal_node *copy = NULL;
    struct capture_storage *storage = capture_known_storage(capture, tensor->storage);
    TRY(capture_find_base(capture, storage, &base));
    const shoal_arg arg = {.kind = SHOAL_ARG_NODE, .as.node = base};
    TRY(shoal_graph_call(capture->graph, op_get(OP_clone), &arg, 1, NULL, &copy));
    capture_replace_base(storage, copy);
    return SHOAL_OK;
}

/* Refuses to write memory that the step made a tensor from, unless it was handed over with a deleter: then nobody else
   sees it. */
static shoal_status check_constant(const struct capture_storage *storage, const shoal_tensor *tensor)
{
    if (storage->origin != CAPTURE_CONSTANT || tensor->storage->is_handed_over) {
        return SHOAL_OK;
    }
    return error_set(
        SHOAL_ERR_UNSUPPORTED,
        "the step writes %s%smemory that it made a tensor from but does not own; make that tensor an "
        "input, or hand the memory over with a deleter",
        shoal_tensor_name(tensor), shoal_tensor_name(tensor)[0] ? ": " : "");
}

static shoal_status check_one(struct capture *capture, shoal_tensor *tensor, bool is_in_place)
{
    struct capture_storage *storage = NULL;
    TRY(capture_find_storage(capture, tensor, NULL, &storage));
    TRY(check_constant(storage, tensor));
    if (storage->is_shared && is_in_place) {
        TRY(unshare(capture, tensor));
    }
    return capture_note_written(capture, tensor);
}

shoal_status capture_check_written(struct capture *capture, const shoal_op *op, const shoal_value *arguments)
{
    bool is_in_place = choose_form(capture, op, arguments) == FORM_IN_PLACE;
    for (size_t i = 0; i < count_written(&arguments[0]); i++) {
        TRY(check_one(capture, get_written(&arguments[0], i), is_in_place));
    }
    return SHOAL_OK;
}

shoal_status capture_check_received(struct capture *capture, const shoal_op *op, const shoal_value *arguments)
{
    size_t count = op->index == OP_batch_p2p_ops ? arguments[0].count : 0;
    for (size_t i = 0; i < count; i++) {
        if (capture_is_received(arguments, i)) {
            TRY(check_one(capture, arguments[0].as.tensors[i], /*is_in_place=*/true));
        }
    }
    return SHOAL_OK;
}

/* The call --------------------------------------------------------------------------------------------- */

/* Gives what copy_ writes: the source in the target's shape and dtype. If is_new, it is always a new tensor. */
static shoal_status add_copy(struct capture *capture, const shoal_tensor *target, const shoal_arg *args,
                             bool is_new, struct shoal_node **node_out)
{
    struct shoal_node *source = args[1].as.node;
    const struct layout *layout = &source->values[0]->layout;
    shoal_arg items[SHOAL_MAX_DIMS];
    if (!layout_is_same_shape(layout->n_dims, layout->shape, target->layout.n_dims, target->layout.shape)) {
        for (int i = 0; i < target->layout.n_dims; i++) {
            items[i] = (shoal_arg){.kind = SHOAL_ARG_INT, .as.integer = target->layout.shape[i]};
        }
        const shoal_arg expand[] = {
            {.kind = SHOAL_ARG_NODE, .as.node = source},
            {.kind = SHOAL_ARG_LIST, .as.list = {.items = items, .count = (size_t)target->layout.n_dims}}};
        TRY(shoal_graph_call(capture->graph, op_get(OP_expand), expand, 2, NULL, &source));
    }
    const shoal_arg copied[] = {{.kind = SHOAL_ARG_NODE, .as.node = source},
                                {.kind = SHOAL_ARG_DTYPE, .as.dtype = target->dtype}};
    bool is_cast = source->values[0]->dtype != target->dtype;
    *node_out = source;
    return !is_cast && !is_new ? SHOAL_OK
                               : shoal_graph_call(capture->graph, op_get(is_cast ? OP_to_dtype : OP_clone),
                                                  copied, is_cast ? 2 : 1, NULL, node_out);
}

static shoal_status add_fresh(struct capture *capture, const shoal_op *op, const shoal_value *arguments,
                              const shoal_arg *args)
{
    struct shoal_node *node = NULL;
    if (op->index == OP_copy_) {
        TRY(add_copy(capture, arguments[0].as.tensor, args, /*is_new=*/true, &node));
    } else {
        TRY(shoal_graph_call(capture->graph, find_twin(op), args, op->n_params, NULL, &node));
    }
    for (size_t i = 0; i < count_written(&arguments[0]); i++) {
        TRY(capture_begin_epoch(capture, get_written(&arguments[0], i),
                                (struct capture_given){.node = node, .index = i}));
    }
    /* The results of an in-place call are the tensors that it writes. */
    return capture_note_start(capture, op, arguments, node, &arguments[0]);
}

static shoal_arg ints_arg(const int64_t *numbers, int count, shoal_arg items[SHOAL_MAX_DIMS])
{
    for (int i = 0; i < count; i++) {
        items[i] = (shoal_arg){.kind = SHOAL_ARG_INT, .as.integer = numbers[i]};
    }
    return (shoal_arg){.kind = SHOAL_ARG_LIST, .as.list = {.items = items, .count = (size_t)count}};
}

/* Later uses of the written view become views of the scatter's result. */
static shoal_status add_scatter(struct capture *capture, const shoal_op *op, const shoal_value *arguments,
                                const shoal_arg *args)
{
    const shoal_tensor *part = arguments[0].as.tensor;
    const struct layout *layout = &part->layout;
    struct shoal_node *value = NULL;
    struct shoal_node *base = NULL;
    struct shoal_node *node = NULL;
    shoal_arg shape[SHOAL_MAX_DIMS];
    shoal_arg strides[SHOAL_MAX_DIMS];
    if (part->count == 0) {
        return SHOAL_OK;
    }
    if (op->index == OP_copy_) {
        TRY(add_copy(capture, part, args, /*is_new=*/false, &value));
    } else {
        TRY(shoal_graph_call(capture->graph, find_twin(op), args, op->n_params, NULL, &value));
    }
    struct capture_storage *storage = capture_known_storage(capture, part->storage);
    TRY(capture_find_base_as(capture, storage, part->dtype, &base));
    const shoal_arg scatter[] = {{.kind = SHOAL_ARG_NODE, .as.node = base},
                                 {.kind = SHOAL_ARG_NODE, .as.node = value},
                                 ints_arg(layout->shape, layout->n_dims, shape),
                                 ints_arg(layout->strides, layout->n_dims, strides),
                                 {.kind = SHOAL_ARG_INT, .as.integer = layout->offset}};
    TRY(shoal_graph_call(capture->graph, op_get(OP_as_strided_scatter), scatter, 5, NULL, &node));
    capture_replace_base(storage, node);
    return SHOAL_OK;
}

shoal_status capture_add_write(struct capture *capture, const shoal_op *op, const shoal_value *arguments,
                               const shoal_arg *args, const shoal_value *result)
{
    struct shoal_node *node = NULL;
    enum form form = choose_form(capture, op, arguments);
    if (form != FORM_IN_PLACE) {
        return (form == FORM_FRESH ? add_fresh : add_scatter)(capture, op, arguments, args);
    }
    TRY(shoal_graph_call(capture->graph, op, args, op->n_params, NULL, &node));
    for (size_t i = 0; i < count_written(result); i++) {
        TRY(capture_add_result(capture, get_written(result, i),
                               (struct capture_given){.node = node, .index = i}));
    }
    return capture_note_start(capture, op, arguments, node, result);
}

/* The end ---------------------------------------------------------------------------------------------- */

/* Replaces *node, which has the bytes of the placeholder, by a view with the placeholder's shape and dtype. */
static shoal_status view_like(struct capture *capture, const struct shoal_node *placeholder,
                              struct shoal_node **node)
{
    const shoal_tensor *like = placeholder->values[0];
    shoal_arg items[SHOAL_MAX_DIMS];
    if ((*node)->values[0]->dtype != like->dtype) {
        const shoal_arg count = {.kind = SHOAL_ARG_INT, .as.integer = (*node)->values[0]->count};
        const shoal_arg flat[] = {{.kind = SHOAL_ARG_NODE, .as.node = *node},
                                  {.kind = SHOAL_ARG_LIST, .as.list = {.items = &count, .count = 1}}};
        TRY(shoal_graph_call(capture->graph, op_get(OP_view), flat, 2, NULL, node));
        const shoal_arg cast[] = {{.kind = SHOAL_ARG_NODE, .as.node = *node},
                                  {.kind = SHOAL_ARG_DTYPE, .as.dtype = like->dtype}};
        TRY(shoal_graph_call(capture->graph, op_get(OP_view_dtype), cast, 2, NULL, node));
    }
    const struct layout *layout = &(*node)->values[0]->layout;
    if (layout_is_same_shape(layout->n_dims, layout->shape, like->layout.n_dims, like->layout.shape)) {
        return SHOAL_OK;
    }
    for (int i = 0; i < like->layout.n_dims; i++) {
        items[i] = (shoal_arg){.kind = SHOAL_ARG_INT, .as.integer = like->layout.shape[i]};
    }
    const shoal_arg args[] = {
        {.kind = SHOAL_ARG_NODE, .as.node = *node},
        {.kind = SHOAL_ARG_LIST, .as.list = {.items = items, .count = (size_t)like->layout.n_dims}}};
    return shoal_graph_call(capture->graph, op_get(OP_view), args, 2, NULL, node);
}

shoal_status capture_copy_back(struct capture *capture)
{
    for (size_t i = 0; i < capture->n_storages; i++) {
        struct capture_storage *storage = &capture->storages[i];
        struct shoal_node *node = NULL;
        if (storage->origin != CAPTURE_INPUT) {
            continue;
        }
        TRY(capture_find_base(capture, storage, &node));
        if (node->values[0]->storage == storage->node->values[0]->storage) {
            continue; /* never written, or in place */
        }
        TRY(view_like(capture, storage->node, &node));
        const shoal_arg args[] = {{.kind = SHOAL_ARG_NODE, .as.node = storage->node},
                                  {.kind = SHOAL_ARG_NODE, .as.node = node}};
        TRY(shoal_graph_call(capture->graph, op_get(OP_copy_), args, 2, NULL, NULL));
    }
    return SHOAL_OK;
}
