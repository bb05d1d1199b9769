/* SPDX-License-Identifier: MIT */
/*
 * Nodes of the record.
 *
 * Freeing a node drops its edges, which may free older nodes, and so on. Records are too deep for recursion, so nodes
 * to be freed wait in a list of the thread, which the outermost node_unref empties.
 */
#include "autograd/node.h"

#include <inttypes.h>
#include <stdalign.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/refcount.h"
#include "base/try.h"
#include "device/device.h"
#include "tensor/block.h"
#include "tensor/scope.h"

/* Histories -------------------------------------------------------------------------------------------- */

static uint64_t load_version(const struct storage *storage)
{
    /* Relaxed: versions are compared by the thread that owns the tensor. */
    return atomic_load_explicit(&storage->version, memory_order_relaxed);
}

static void end_result(struct tensor_history *history)
{
    node_unref(((struct node_output *)history)->node);
}

shoal_status history_check_current(const shoal_tensor *tensor)
{
    if (!tensor->history || !atomic_load(&tensor->storage->has_history)) {
        return SHOAL_OK;
    }
    const struct node_output *output = history_output(tensor);
    if (!output && !tensor->is_detached) {
        return error_set(SHOAL_ERR_STATE, "another tensor over the storage of this leaf was changed in place "
                                          "and has a gradient since; detach the leaf or use that tensor");
    }
    uint64_t version = load_version(tensor->storage);
    if (output && tensor->is_view && output->version != version) {
        return error_set(SHOAL_ERR_STATE,
                         "the view was recorded in version %" PRIu64
                         " of its storage, which was changed in place since: it is in version %" PRIu64
                         "; make the view again",
                         output->version, version);
    }
    return SHOAL_OK;
}

/* Nodes ------------------------------------------------------------------------------------------------ */

/* The place in the record of the next node. There is one counter for the process, because records may be joined. */
static _Atomic uint64_t next_number = 1;

static _Thread_local struct node *dying;
static _Thread_local bool is_emptying;

static size_t align_up(size_t bytes)
{
    return (bytes + alignof(max_align_t) - 1) & ~(alignof(max_align_t) - 1);
}

/* SIZE_MAX if that is more than can be addressed. */
static size_t count_bytes(size_t count, size_t element_bytes)
{
    size_t bytes;
    return mem_multiply(count, element_bytes, &bytes) && bytes < SIZE_MAX / 8 ? align_up(bytes)
                                                                              : SIZE_MAX / 8;
}

/* A node lies in a block behind its head: nodes are as short-lived as results. */
static size_t block_bytes(void)
{
    return align_up(sizeof(struct block));
}

struct node *node_create(const struct node_kind *kind, size_t node_bytes, size_t n_inputs, size_t n_outputs,
                         size_t extra_bytes, void **extra_out)
{
    size_t head_bytes = align_up(node_bytes);
    size_t input_bytes = count_bytes(n_inputs, sizeof(struct node_input));
    size_t output_bytes = count_bytes(n_outputs, sizeof(struct node_output));
    size_t bytes = head_bytes + input_bytes + output_bytes + count_bytes(extra_bytes, 1);
    struct block *in = block_create(block_bytes() + bytes);
    if (!in) {
        return NULL;
    }
    atomic_init(&in->objects, 1);
    char *block = (char *)in + block_bytes();
    memset(block, 0, bytes);
    struct node *node = (struct node *)block;
    node->kind = kind;
    atomic_init(&node->references, 1);
    node->n_inputs = n_inputs;
    node->n_outputs = n_outputs;
    node->inputs = (struct node_input *)(block + head_bytes);
    node->outputs = (struct node_output *)(block + head_bytes + input_bytes);
    for (size_t i = 0; i < n_outputs; i++) {
        node->outputs[i].history.base = (struct tensor_history){.tape = kind->tape, .destroy = end_result};
        node->outputs[i].node = node;
    }
    if (extra_out) {
        *extra_out = block + head_bytes + input_bytes + output_bytes;
    }
    return node;
}

struct node *node_ref(struct node *node)
{
    refcount_get(&node->references);
    return node;
}

void node_drop_edge(struct node *node, size_t index)
{
    struct node_input *input = &node->inputs[index];
    struct node *older = input->node;
    shoal_tensor *leaf = input->leaf;
    input->node = NULL;
    input->leaf = NULL;
    node_unref(older);
    shoal_tensor_unref(leaf);
}

void node_consume(struct node *node)
{
    if (node->is_consumed) {
        return;
    }
    node->is_consumed = true;
    if (node->kind->release) {
        node->kind->release(node);
    }
    for (size_t i = 0; i < node->n_outputs; i++) {
        saved_release(&node->outputs[i].saved);
        hook_list_clear(&node->outputs[i].hooks);
    }
    for (size_t i = 0; i < node->n_inputs; i++) {
        saved_release(&node->inputs[i].saved);
        node_drop_edge(node, i);
    }
}

static void destroy(struct node *node)
{
    node_consume(node);
    block_free((struct block *)((char *)node - block_bytes()), node);
}

void node_unref(struct node *node)
{
    if (!node || !refcount_put(&node->references)) {
        return;
    }
    node->next_dying = dying;
    dying = node;
    if (is_emptying) {
        return;
    }
    is_emptying = true;
    while (dying) {
        struct node *next = dying;
        dying = next->next_dying;
        destroy(next);
    }
    is_emptying = false;
}

void node_set_input(struct node *node, size_t index, shoal_tensor *tensor)
{
    struct node_input *input = &node->inputs[index];
    struct node_output *made_by = history_output(tensor);
    saved_note(&input->saved, tensor);
    input->is_present = true;
    if (made_by) {
        input->node = node_ref(made_by->node);
        input->output = (size_t)(made_by - made_by->node->outputs);
    } else if (history_is_leaf(tensor)) {
        input->leaf = shoal_tensor_ref(tensor);
    }
}

void node_set_output(struct node *node, size_t index, const shoal_tensor *tensor)
{
    saved_note(&node->outputs[index].saved, tensor);
}

void node_number(struct node *node)
{
    /* Relaxed: only the order among numbers matters, and a node's edges were numbered before it by the thread
       that owns the graph. */
    node->sequence = atomic_fetch_add_explicit(&next_number, 1, memory_order_relaxed);
}

uint64_t node_next_number(void)
{
    /* Relaxed: as in node_number. */
    return atomic_load_explicit(&next_number, memory_order_relaxed);
}

void node_attach(struct node *node, size_t index, shoal_tensor *tensor)
{
    struct node_output *output = &node->outputs[index];
    struct tensor_history *old = tensor->history;
    output->version = load_version(tensor->storage);
    tensor->history = &output->history.base;
    (void)node_ref(node);
    if (old) {
        old->destroy(old);
    }
}
