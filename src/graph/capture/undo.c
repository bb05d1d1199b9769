/* SPDX-License-Identifier: MIT */
/* Notes what a captured step changes outside the graph, before it changes, and restores it when the capture ends. */
#include "autograd/leaf.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "graph/capture/capture.h"
#include "tensor/scope.h"

bool capture_is_inside(const struct capture *capture, const shoal_tensor *tensor)
{
    for (const struct scope *scope = scope_current(); scope; scope = scope->parent) {
        if (tensor_is_owned_by(tensor, scope)) {
            return true;
        }
        if (scope == capture->scope) {
            return false;
        }
    }
    return false;
}

shoal_status capture_note_memory(struct capture *capture, struct storage *storage)
{
    TRY(mem_grow((void **)&capture->memories, &capture->memory_capacity, capture->n_memories + 1,
                 sizeof(capture->memories[0])));
    capture->memories[capture->n_memories++] =
        /* Relaxed: versions are compared by the thread that owns the tensor. */
        (struct capture_memory){.storage = storage_ref(storage),
                                .version = atomic_load_explicit(&storage->version, memory_order_relaxed),
                                .has_history = atomic_load(&storage->has_history)};
    return SHOAL_OK;
}

bool capture_has_written(const struct capture *capture, const struct storage *storage)
{
    for (size_t i = 0; i < capture->n_memories; i++) {
        const struct capture_memory *memory = &capture->memories[i];
        if (memory->storage == storage) {
            /* Relaxed: as above. */
            return atomic_load_explicit(&storage->version, memory_order_relaxed) != memory->version;
        }
    }
    return false;
}

/* If a tensor with memory is written while autograd records, it gets a history, which capture_undo takes away. Tensors
   that the step made need not be noted: they end with it. */
shoal_status capture_note_written(struct capture *capture, shoal_tensor *tensor)
{
    if (tensor->history || !tensor->storage->memory) {
        return SHOAL_OK;
    }
    TRY(mem_grow((void **)&capture->written, &capture->written_capacity, capture->n_written + 1,
                 sizeof(capture->written[0])));
    capture->written[capture->n_written++] = shoal_tensor_ref(tensor);
    return SHOAL_OK;
}

/* Leaves ----------------------------------------------------------------------------------------------- */

/* Leaves that the step makes itself, as recomputation does, end with it and need not be noted. */
shoal_status capture_note_leaf(struct capture *capture, shoal_tensor *leaf)
{
    size_t index;
    struct leaf *history = leaf_of(leaf);
    if (!history || capture_is_inside(capture, leaf) ||
        map_get(&capture->noted_leaves, map_key(leaf), &index)) {
        return SHOAL_OK;
    }
    TRY(mem_grow((void **)&capture->leaves, &capture->leaf_capacity, capture->n_leaves + 1,
                 sizeof(capture->leaves[0])));
    TRY(map_add(&capture->noted_leaves, map_key(leaf), capture->n_leaves));
    capture->leaves[capture->n_leaves++] = (struct capture_leaf){
        .leaf = shoal_tensor_ref(leaf),
        .before = history->gradient ? shoal_tensor_ref(history->gradient) : NULL,
        .was_averaged = history->gradient && history->gradient->is_averaged,
    };
    return SHOAL_OK;
}

shoal_status capture_at_end(struct capture *capture, void (*restore)(void *context), void *context)
{
    TRY(mem_grow((void **)&capture->ends, &capture->end_capacity, capture->n_ends + 1,
                 sizeof(capture->ends[0])));
    capture->ends[capture->n_ends++] = (struct capture_end){.restore = restore, .context = context};
    return SHOAL_OK;
}

/* The end ---------------------------------------------------------------------------------------------- */

static void undo_leaves(struct capture *capture)
{
    while (capture->n_leaves > 0) {
        struct capture_leaf *leaf = &capture->leaves[--capture->n_leaves];
        if (leaf->before) {
            leaf->before->is_averaged = leaf->was_averaged;
        }
        leaf_put_back_gradient(leaf->leaf, leaf->before);
        shoal_tensor_unref(leaf->leaf);
    }
    mem_free(capture->leaves);
    capture->leaves = NULL;
}

static void undo_written(struct capture *capture)
{
    while (capture->n_written > 0) {
        shoal_tensor *tensor = capture->written[--capture->n_written];
        struct tensor_history *history = tensor->history;
        tensor->history = NULL;
        if (history) {
            history->destroy(history);
        }
        shoal_tensor_unref(tensor);
    }
    mem_free(capture->written);
    capture->written = NULL;
}

static void undo_memories(struct capture *capture)
{
    while (capture->n_memories > 0) {
        struct capture_memory *memory = &capture->memories[--capture->n_memories];
        /* Relaxed: as above. */
        atomic_store_explicit(&memory->storage->version, memory->version, memory_order_relaxed);
        atomic_store(&memory->storage->has_history, memory->has_history);
        storage_unref(memory->storage);
    }
    mem_free(capture->memories);
    capture->memories = NULL;
}

void capture_undo(struct capture *capture)
{
    while (capture->n_ends > 0) {
        struct capture_end end = capture->ends[--capture->n_ends];
        end.restore(end.context);
    }
    mem_free(capture->ends);
    capture->ends = NULL;
    undo_leaves(capture);
    undo_written(capture);
    undo_memories(capture);
}
