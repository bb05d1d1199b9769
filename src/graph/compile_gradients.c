/* SPDX-License-Identifier: MIT */
#include "graph/compile_gradients.h"

#include "autograd/leaf.h"
#include "base/mem.h"
#include "base/try.h"
#include "shoal/autograd.h"

/* Finding -------------------------------------------------------------------------------------------------- */

static void note_before(struct gradient *gradient, const shoal_tensor *before)
{
    gradient->had_gradient = true;
    gradient->dtype = before->dtype;
    gradient->layout = before->layout;
    gradient->bytes = before->storage->bytes;
}

static shoal_status map_inputs(const struct captured *captured, struct storage_map *inputs)
{
    for (size_t i = 0; i < captured->n_inputs; i++) {
        size_t other;
        const shoal_tensor *tensor = captured->inputs[i].tensor;
        if (tensor && !storage_map_get(inputs, tensor->storage, &other)) {
            TRY(storage_map_add(inputs, tensor->storage, i));
        }
    }
    return SHOAL_OK;
}

/* Which placeholder the gradient is that the leaf had. */
static shoal_status find_placeholder(struct compile_gradients *gradients, const struct captured *captured,
                                     const struct storage_map *inputs, size_t index)
{
    struct gradient *gradient = &gradients->rows[index];
    struct storage *storage = captured->leaves[index].gradient->storage;
    note_before(gradient, captured->leaves[index].gradient);
    if (!storage_map_get(inputs, storage, &gradient->input)) {
        return SHOAL_OK;
    }
    const shoal_tensor *whole = captured->inputs[gradient->input].tensor;
    gradient->whole_dtype = whole->dtype;
    gradient->whole_layout = whole->layout;
    return storage_map_get(&gradients->sharers, storage, &gradient->sharer)
               ? SHOAL_OK
               : storage_map_add(&gradients->sharers, storage, index);
}

static shoal_status find_all(struct compile_gradients *gradients, const struct captured *captured,
                             const struct storage_map *inputs)
{
    for (size_t i = 0; i < captured->n_leaves; i++) {
        const struct captured_leaf *leaf = &captured->leaves[i];
        struct gradient *gradient = &gradients->rows[gradients->count++];
        *gradient = (struct gradient){.leaf = leaf->given == CAPTURED_NONE ? leaf->leaf : NULL,
                                      .given = leaf->given,
                                      .input = SIZE_MAX,
                                      .sharer = i,
                                      .output = leaf->output,
                                      .is_added_to = leaf->is_added_to,
                                      .is_averaged = leaf->is_averaged};
        if (leaf->gradient) {
            TRY(find_placeholder(gradients, captured, inputs, i));
        }
        gradient->is_kept = leaf->is_added_to && gradient->input == SIZE_MAX;
    }
    return SHOAL_OK;
}

/* What else lies there ------------------------------------------------------------------------------------- */

/* Tensors by their address, in the same kind of table. */
static const struct storage *key_of(const shoal_tensor *tensor)
{
    return (const struct storage *)(const void *)tensor;
}

/* Whether somebody besides the graph has it, and not as a gradient. */
static bool is_other(const struct storage_map *known, const shoal_tensor *tensor)
{
    size_t index;
    return atomic_load(&tensor->references) > 1 && !storage_map_get(known, key_of(tensor), &index);
}

static void bind_to(struct compile_gradients *gradients, const shoal_tensor *tensor)
{
    size_t first;
    if (storage_map_get(&gradients->sharers, tensor->storage, &first)) {
        gradients->rows[first].place = tensor->storage;
    }
}

/* A placeholder that the step reads as something else too is that memory in each run. */
static shoal_status find_places(struct compile_gradients *gradients, const struct captured *captured,
                                struct storage_map *known)
{
    size_t other;
    for (size_t i = 0; i < captured->n_leaves; i++) {
        const shoal_tensor *tensor = captured->leaves[i].gradient;
        if (tensor && !storage_map_get(known, key_of(tensor), &other)) {
            TRY(storage_map_add(known, key_of(tensor), i));
        }
    }
    for (size_t i = 0; i < captured->n_parts; i++) {
        if (is_other(known, captured->parts[i].tensor)) {
            bind_to(gradients, captured->parts[i].tensor);
        }
    }
    for (size_t i = 0; i < captured->n_inputs; i++) {
        const shoal_tensor *tensor = captured->inputs[i].tensor;
        if (tensor && is_other(known, tensor)) {
            bind_to(gradients, tensor);
        }
    }
    for (size_t i = 0; i < gradients->count; i++) {
        struct gradient *gradient = &gradients->rows[i];
        gradient->place = gradient->input == SIZE_MAX ? NULL : gradients->rows[gradient->sharer].place;
    }
    return SHOAL_OK;
}

/* Forgetting ----------------------------------------------------------------------------------------------- */

static bool is_forgotten(const struct compile_gradients *gradients, const struct storage *storage)
{
    size_t first;
    return storage_map_get(&gradients->sharers, storage, &first) && !gradients->rows[first].place;
}

static void forget_parts(const struct compile_gradients *gradients, struct captured *captured)
{
    size_t n_parts = 0;
    for (size_t i = 0; i < captured->n_parts; i++) {
        if (is_forgotten(gradients, captured->parts[i].tensor->storage)) {
            shoal_tensor_unref(captured->parts[i].tensor);
        } else {
            captured->parts[n_parts++] = captured->parts[i];
        }
    }
    captured->n_parts = n_parts;
}

static void forget(const struct compile_gradients *gradients, struct captured *captured)
{
    forget_parts(gradients, captured);
    for (size_t i = 0; i < gradients->count; i++) {
        const struct gradient *gradient = &gradients->rows[i];
        struct captured_leaf *leaf = &captured->leaves[i];
        if (gradient->input != SIZE_MAX && gradient->sharer == i && !gradient->place) {
            shoal_tensor_unref(captured->inputs[gradient->input].tensor);
            captured->inputs[gradient->input].tensor = NULL;
        }
        shoal_tensor_unref(leaf->gradient);
        leaf->gradient = NULL;
        if (leaf->given != CAPTURED_NONE) {
            if (leaf->output != CAPTURED_NONE) {
                captured->output_leaves[leaf->output - captured->n_step_outputs] = NULL;
            }
            shoal_tensor_unref(leaf->leaf);
            leaf->leaf = NULL;
        }
    }
}

shoal_status compile_gradients_find(struct compile_gradients *gradients, struct captured *captured)
{
    struct storage_map inputs = {.count = 0};
    struct storage_map known = {.count = 0};
    gradients->rows = mem_alloc_zeroed(captured->n_leaves + 1, sizeof gradients->rows[0]);
    shoal_status status = gradients->rows ? map_inputs(captured, &inputs) : SHOAL_ERR_NO_MEMORY;
    if (status == SHOAL_OK) {
        status = find_all(gradients, captured, &inputs);
    }
    if (status == SHOAL_OK) {
        status = find_places(gradients, captured, &known);
    }
    if (status == SHOAL_OK) {
        forget(gradients, captured);
    }
    storage_map_free(&inputs);
    storage_map_free(&known);
    return status;
}

void compile_gradients_free(struct compile_gradients *gradients)
{
    mem_free(gradients->rows);
    storage_map_free(&gradients->sharers);
    *gradients = (struct compile_gradients){.count = 0};
}

/* Comparing ------------------------------------------------------------------------------------------------ */

/* Whether the leaf has a gradient like that. */
static bool has_like(const struct gradient *gradient, shoal_tensor *const *inputs)
{
    const shoal_tensor *now = shoal_grad(gradient_leaf(gradient, inputs));
    if (!now || !gradient->had_gradient) {
        return !now && !gradient->had_gradient;
    }
    return now->dtype == gradient->dtype && now->storage->bytes == gradient->bytes &&
           (!gradient->place || now->storage == gradient->place) &&
           now->layout.n_dims == gradient->layout.n_dims && now->layout.offset == gradient->layout.offset &&
           layout_is_same_shape(now->layout.n_dims, now->layout.strides, gradient->layout.n_dims,
                                gradient->layout.strides);
}

/* Whether a gradient that is a placeholder shares its memory with those before it as it did; it was found to be alike. */
static bool shares_alike(struct compile_gradients *gradients, size_t index, shoal_tensor *const *inputs)
{
    const struct gradient *gradient = &gradients->rows[index];
    size_t sharer = index;
    if (gradient->input == SIZE_MAX) {
        return true;
    }
    const struct storage *storage = shoal_grad(gradient_leaf(gradient, inputs))->storage;
    if (storage_map_get(&gradients->sharers, storage, &sharer) || sharer != gradient->sharer) {
        return sharer == gradient->sharer;
    }
    return storage_map_add(&gradients->sharers, storage, index) == SHOAL_OK; /* it has room */
}

const struct gradient *compile_gradients_find_other(struct compile_gradients *gradients,
                                                    shoal_tensor *const *inputs)
{
    storage_map_clear(&gradients->sharers);
    for (size_t i = 0; i < gradients->count; i++) {
        if (!has_like(&gradients->rows[i], inputs) || !shares_alike(gradients, i, inputs)) {
            return &gradients->rows[i];
        }
    }
    return NULL;
}

/* Running -------------------------------------------------------------------------------------------------- */

shoal_status compile_gradients_take(struct compile_gradients *gradients, shoal_tensor *const *given,
                                    shoal_tensor **inputs)
{
    for (size_t i = 0; i < gradients->count; i++) {
        struct gradient *gradient = &gradients->rows[i];
        if (gradient->input != SIZE_MAX && !gradient->place) {
            TRY(tensor_create_view_as(shoal_grad(gradient_leaf(gradient, given)), gradient->whole_dtype,
                                      &gradient->whole_layout, &gradient->whole));
            inputs[gradient->input] = gradient->whole;
        }
    }
    return SHOAL_OK;
}

void compile_gradients_let_go(struct compile_gradients *gradients)
{
    for (size_t i = 0; i < gradients->count; i++) {
        shoal_tensor_unref(gradients->rows[i].whole);
        gradients->rows[i].whole = NULL;
    }
}

shoal_status compile_gradients_detach(const struct compile_gradients *gradients, shoal_tensor **outputs)
{
    for (size_t i = 0; i < gradients->count; i++) {
        const struct gradient *gradient = &gradients->rows[i];
        shoal_tensor *tensor = gradient->output != SIZE_MAX ? outputs[gradient->output] : NULL;
        if (tensor && !tensor->storage->is_lent && tensor->storage->bytes > 0) {
            TRY(leaf_detach(tensor, &outputs[gradient->output]));
            shoal_tensor_unref(tensor);
        }
    }
    return SHOAL_OK;
}

/* A leaf shares the plan's tensor: a step that has run once allocates nothing. */
static void set(const struct gradient *gradient, shoal_tensor *leaf, shoal_tensor *const *outputs)
{
    if (gradient->output != SIZE_MAX) {
        leaf_put_back_gradient(leaf, shoal_tensor_ref(outputs[gradient->output]));
    } else if (!gradient->is_added_to) {
        leaf_put_back_gradient(leaf, NULL); /* the step removes it */
    }
    if (shoal_grad(leaf) && !gradient->is_kept) {
        shoal_grad(leaf)->is_averaged = gradient->is_averaged;
    }
}

void compile_gradients_set(const struct compile_gradients *gradients, shoal_tensor *const *given,
                           shoal_tensor *const *outputs)
{
    for (size_t i = 0; i < gradients->count; i++) {
        const struct gradient *gradient = &gradients->rows[i];
        set(gradient, gradient_leaf(gradient, given), outputs);
    }
}
