/* SPDX-License-Identifier: MIT */
#include "graph/compile/gradients.h"

#include <stdlib.h>

#include "autograd/leaf.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/lane/handles.h"
#include "op/operand.h"
#include "shoal/autograd.h"

/* Finding -------------------------------------------------------------------------------------------------- */

static void note_before(struct gradient *gradient, const shoal_tensor *before)
{
    gradient->had_gradient = true;
    gradient->dtype = before->dtype;
    gradient->layout = before->layout;
    gradient->bytes = before->storage->bytes;
}

static shoal_status map_inputs(const struct captured *captured, struct map *inputs)
{
    for (size_t i = 0; i < captured->n_inputs; i++) {
        size_t other;
        const shoal_tensor *tensor = captured->inputs[i].tensor;
        if (tensor) {
            TRY(map_get_or_add(inputs, map_key(tensor->storage), i, &other));
        }
    }
    return SHOAL_OK;
}

/* Finds the placeholder for the old gradient of a leaf, if there is one. */
static shoal_status find_placeholder(struct compile_gradients *gradients, const struct captured *captured,
                                     const struct map *inputs, size_t index)
{
    struct gradient *gradient = &gradients->rows[index];
    struct storage *storage = captured->leaves[index].gradient->storage;
    note_before(gradient, captured->leaves[index].gradient);
    if (!map_get(inputs, map_key(storage), &gradient->input)) {
        return SHOAL_OK;
    }
    const shoal_tensor *whole = captured->inputs[gradient->input].tensor;
    gradient->whole_dtype = whole->dtype;
    gradient->whole_layout = whole->layout;
    return map_get_or_add(&gradients->sharers, map_key(storage), index, &gradient->sharer);
}

static shoal_status find_all(struct compile_gradients *gradients, const struct captured *captured,
                             const struct map *inputs)
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

/* Apart ---------------------------------------------------------------------------------------------------- */

static int compare_spans(const void *a, const void *b)
{
    const struct gradient_span *x = a;
    const struct gradient_span *y = b;
    if (x->sharer != y->sharer) {
        return x->sharer < y->sharer ? -1 : 1;
    }
    return x->first < y->first ? -1 : x->first > y->first;
}

static bool is_without_overlap(const shoal_tensor *tensor)
{
    const struct layout *layout = &tensor->layout;
    return !layout_may_self_overlap(layout->n_dims, layout->shape, layout->strides);
}

/* Whether no two spans overlap. (Interleaved columns have overlapping spans.) */
static bool are_apart(struct gradient_span *spans, size_t count)
{
    qsort(spans, count, sizeof *spans, compare_spans);
    size_t i = 1;
    while (i < count && (spans[i].sharer != spans[i - 1].sharer || spans[i].first >= spans[i - 1].end)) {
        i++;
    }
    return i >= count;
}

static void add_span(struct compile_gradients *gradients, size_t *n_spans, const struct gradient *gradient,
                     const shoal_tensor *tensor)
{
    if (tensor->count > 0) {
        struct span span = tensor_span(tensor);
        gradients->spans[(*n_spans)++] =
            (struct gradient_span){.sharer = gradient->sharer, .first = span.first, .end = span.end};
    }
}

/* Must be called before `forget`, while `captured` still has the old gradients. */
static void note_apart(struct compile_gradients *gradients, const struct captured *captured)
{
    size_t n_spans = 0;
    gradients->are_apart = true;
    for (size_t i = 0; i < gradients->count; i++) {
        if (gradients->rows[i].input != SIZE_MAX) {
            const shoal_tensor *tensor = captured->leaves[i].gradient;
            gradients->are_apart = gradients->are_apart && is_without_overlap(tensor);
            add_span(gradients, &n_spans, &gradients->rows[i], tensor);
        }
    }
    gradients->are_apart = gradients->are_apart && are_apart(gradients->spans, n_spans);
}

/* Other tensors in the memory of gradients ----------------------------------------------------------------- */

/* Whether somebody else than the graph has a reference to the tensor, and it is not a gradient. */
static bool is_other(const struct map *known, const shoal_tensor *tensor)
{
    size_t index;
    return atomic_load(&tensor->references) > 1 && !map_get(known, map_key(tensor), &index);
}

static void bind_to(struct compile_gradients *gradients, const shoal_tensor *tensor)
{
    size_t first;
    if (map_get(&gradients->sharers, map_key(tensor->storage), &first)) {
        gradients->rows[first].place = tensor->storage;
    }
}

/* Binds a placeholder to its memory, if the step uses this memory also by tensors that are not gradients. */
static shoal_status find_places(struct compile_gradients *gradients, const struct captured *captured,
                                struct map *known)
{
    size_t other;
    for (size_t i = 0; i < captured->n_leaves; i++) {
        const shoal_tensor *tensor = captured->leaves[i].gradient;
        if (tensor) {
            TRY(map_get_or_add(known, map_key(tensor), i, &other));
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
    return map_get(&gradients->sharers, map_key(storage), &first) && !gradients->rows[first].place;
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
    struct map inputs = {.count = 0};
    struct map known = {.count = 0};
    gradients->rows = mem_alloc_zeroed(captured->n_leaves + 1, sizeof gradients->rows[0]);
    gradients->spans = mem_alloc_zeroed(captured->n_leaves + 1, sizeof gradients->spans[0]);
    bool has_memory = gradients->rows && gradients->spans;
    shoal_status status = has_memory ? map_inputs(captured, &inputs) : SHOAL_ERR_NO_MEMORY;
    if (status == SHOAL_OK) {
        status = find_all(gradients, captured, &inputs);
    }
    if (status == SHOAL_OK) {
        status = find_places(gradients, captured, &known);
    }
    if (status == SHOAL_OK) {
        note_apart(gradients, captured);
        forget(gradients, captured);
    }
    map_free(&inputs);
    map_free(&known);
    return status;
}

void compile_gradients_free(struct compile_gradients *gradients)
{
    mem_free(gradients->rows);
    mem_free(gradients->spans);
    map_free(&gradients->sharers);
    *gradients = (struct compile_gradients){.count = 0};
}

/* Comparing ------------------------------------------------------------------------------------------------ */

/* Whether the gradient lies in its storage as it did at the capture. */
static bool lies_alike(const struct gradient *gradient, const shoal_tensor *now)
{
    return now->storage->bytes == gradient->bytes && now->layout.offset == gradient->layout.offset &&
           layout_is_same_shape(now->layout.n_dims, now->layout.strides, gradient->layout.n_dims,
                                gradient->layout.strides);
}

/* Whether the leaf has such a gradient as it had at the capture. A gradient that is bound to its memory must still be
   there. */
static bool has_like(const struct gradient *gradient, shoal_tensor *const *inputs)
{
    const shoal_tensor *now = shoal_grad(gradient_leaf(gradient, inputs));
    if (!now || !gradient->had_gradient) {
        return !now && !gradient->had_gradient;
    }
    return now->dtype == gradient->dtype &&
           (!gradient->place || (now->storage == gradient->place && lies_alike(gradient, now)));
}

/* Whether a gradient that is a placeholder shares its storage with the same rows before it as at the capture. has_like
   must be true for it. */
static bool shares_alike(struct compile_gradients *gradients, size_t index, shoal_tensor *const *inputs)
{
    const struct gradient *gradient = &gradients->rows[index];
    size_t sharer = index;
    if (gradient->input == SIZE_MAX) {
        return true;
    }
    const struct storage *storage = shoal_grad(gradient_leaf(gradient, inputs))->storage;
    if (map_get(&gradients->sharers, map_key(storage), &sharer) || sharer != gradient->sharer) {
        return sharer == gradient->sharer;
    }
    return map_add(&gradients->sharers, map_key(storage), index) == SHOAL_OK; /* it has room */
}

/* Sets is_moved of sharers. Returns the first gradient that has moved; NULL if there is none. */
static const struct gradient *note_moved(struct compile_gradients *gradients, shoal_tensor *const *inputs)
{
    const struct gradient *first = NULL;
    for (size_t i = 0; i < gradients->count; i++) {
        gradients->rows[i].is_moved = false;
    }
    for (size_t i = 0; i < gradients->count; i++) {
        const struct gradient *gradient = &gradients->rows[i];
        if (gradient->input != SIZE_MAX &&
            !lies_alike(gradient, shoal_grad(gradient_leaf(gradient, inputs)))) {
            gradients->rows[gradient->sharer].is_moved = true;
            first = first ? first : gradient;
        }
    }
    return first;
}

/* Whether gradients can be copied one by one: they do not overlap, neither now nor at the capture. */
static bool can_move(struct compile_gradients *gradients, shoal_tensor *const *inputs)
{
    size_t n_spans = 0;
    for (size_t i = 0; i < gradients->count && gradients->are_apart; i++) {
        const struct gradient *gradient = &gradients->rows[i];
        if (gradient->input != SIZE_MAX) {
            const shoal_tensor *now = shoal_grad(gradient_leaf(gradient, inputs));
            if (!is_without_overlap(now)) {
                return false;
            }
            add_span(gradients, &n_spans, gradient, now);
        }
    }
    return gradients->are_apart && are_apart(gradients->spans, n_spans);
}

const struct gradient *compile_gradients_find_other(struct compile_gradients *gradients,
                                                    shoal_tensor *const *inputs)
{
    map_clear(&gradients->sharers);
    for (size_t i = 0; i < gradients->count; i++) {
        if (!has_like(&gradients->rows[i], inputs) || !shares_alike(gradients, i, inputs)) {
            return &gradients->rows[i];
        }
    }
    const struct gradient *moved = note_moved(gradients, inputs);
    return !moved || can_move(gradients, inputs) ? NULL : moved;
}

/* Running -------------------------------------------------------------------------------------------------- */

/* Makes memory for the placeholder of a storage in which a gradient has moved. */
static shoal_status make_stand_in(struct gradient *sharer, const shoal_tensor *now)
{
    const int64_t bytes = (int64_t)sharer->bytes;
    shoal_tensor *memory = NULL;
    TRY(tensor_create_empty(now->storage->device, SHOAL_U8, 1, &bytes, &memory));
    shoal_status status =
        tensor_create_view_as(memory, sharer->whole_dtype, &sharer->whole_layout, &sharer->whole);
    if (status == SHOAL_OK) {
        sharer->stand_in = storage_ref(memory->storage);
        /* Relaxed: nobody else has it. */
        sharer->version = atomic_load_explicit(&memory->storage->version, memory_order_relaxed);
    }
    shoal_tensor_unref(memory);
    return status;
}

static shoal_status copy_there(struct gradient *gradient, shoal_tensor *memory, shoal_tensor *now)
{
    TRY(tensor_create_view_as(memory, gradient->dtype, &gradient->layout, &gradient->copy));
    TRY(tensor_wait_readable(now));
    return now->count > 0 ? op_copy_into(gradient->copy, now) : SHOAL_OK;
}

struct flight {
    const struct compile_gradients *gradients;
    shoal_tensor *const *given;
};

/* Whether these bytes overlap a gradient that is a placeholder. */
static bool is_of_gradient(void *context, const void *data, size_t bytes, bool is_written)
{
    const struct flight *flight = context;
    (void)is_written; /* gradients are copied and written back */
    for (size_t i = 0; i < flight->gradients->count; i++) {
        const struct gradient *gradient = &flight->gradients->rows[i];
        const shoal_tensor *now = shoal_grad(gradient_leaf(gradient, flight->given));
        if (gradient->input != SIZE_MAX && now->storage->memory) {
            struct span span = tensor_span(now);
            uintptr_t base = address_number(now->storage->memory->base);
            if ((uintptr_t)data < base + span.end && base + span.first < (uintptr_t)data + bytes) {
                return true;
            }
        }
    }
    return false;
}

shoal_status compile_gradients_wait(struct compile_gradients *gradients, shoal_tensor *const *given,
                                    shoal_world *world)
{
    struct flight flight = {.gradients = gradients, .given = given};
    shoal_status status = SHOAL_OK;
    shoal_work *work = NULL;
    while (status == SHOAL_OK && world && (work = world_find_work(world, is_of_gradient, &flight)) != NULL) {
        status = shoal_work_wait(work, -1);
        shoal_work_free(work);
    }
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "a work in flight on a gradient");
}

shoal_status compile_gradients_take(struct compile_gradients *gradients, shoal_tensor *const *given,
                                    shoal_tensor **inputs)
{
    for (size_t i = 0; i < gradients->count; i++) {
        struct gradient *gradient = &gradients->rows[i];
        struct gradient *sharer = &gradients->rows[gradient->sharer];
        shoal_tensor *now = shoal_grad(gradient_leaf(gradient, given));
        if (gradient->input == SIZE_MAX || gradient->place) {
            continue;
        }
        if (!sharer->is_moved) {
            TRY(tensor_create_view_as(now, gradient->whole_dtype, &gradient->whole_layout, &gradient->whole));
        } else if (gradient == sharer) {
            TRY(make_stand_in(sharer, now));
        }
        if (sharer->is_moved) {
            TRY(copy_there(gradient, sharer->whole, now));
        }
        inputs[gradient->input] = sharer->is_moved ? sharer->whole : gradient->whole;
    }
    return SHOAL_OK;
}

void compile_gradients_let_go(struct compile_gradients *gradients)
{
    for (size_t i = 0; i < gradients->count; i++) {
        struct gradient *gradient = &gradients->rows[i];
        shoal_tensor_unref(gradient->copy);
        shoal_tensor_unref(gradient->whole);
        storage_unref(gradient->stand_in);
        gradient->copy = NULL;
        gradient->whole = NULL;
        gradient->stand_in = NULL;
    }
}

static shoal_status copy_back(const struct gradient *gradient, shoal_tensor *now)
{
    if (now->count > 0) {
        TRY(tensor_wait_writable(now, /*overwrites=*/true));
        TRY(op_copy_into(now, gradient->copy));
        tensor_forget_fences(now);
    }
    storage_bump_version(now->storage);
    return SHOAL_OK;
}

/* Replaces an output that lies in the copy of a gradient by a view of the same part of the gradient. If it lies in no
   single copy, or copy or gradient are not contiguous, it stays as the plan gave it. */
static shoal_status move_output(const struct compile_gradients *gradients, shoal_tensor *const *given,
                                shoal_tensor **output)
{
    struct span span = tensor_span(*output);
    for (size_t i = 0; i < gradients->count; i++) {
        const struct gradient *gradient = &gradients->rows[i];
        const shoal_tensor *copy = gradient->copy;
        shoal_tensor *now = shoal_grad(gradient_leaf(gradient, given));
        if (copy && copy->storage == (*output)->storage && copy->dtype == (*output)->dtype &&
            copy->is_contiguous && now->is_contiguous && tensor_span(copy).first <= span.first &&
            span.end <= tensor_span(copy).end) {
            shoal_tensor *moved = NULL;
            struct layout layout = (*output)->layout;
            layout.offset += now->layout.offset - copy->layout.offset;
            TRY(tensor_create_view_as(now, now->dtype, &layout, &moved));
            moved->is_detached = true;
            shoal_tensor_unref(*output);
            *output = moved;
            return SHOAL_OK;
        }
    }
    return SHOAL_OK;
}

bool compile_gradients_have_moved(const struct compile_gradients *gradients)
{
    size_t i = 0;
    while (i < gradients->count && !gradients->rows[i].is_moved) {
        i++;
    }
    return i < gradients->count;
}

static shoal_status move_outputs(struct compile_gradients *gradients, shoal_tensor *const *given,
                                 shoal_tensor **outputs, size_t n_outputs)
{
    map_clear(&gradients->sharers);
    for (size_t i = 0; i < gradients->count; i++) {
        if (gradients->rows[i].stand_in) {
            TRY(map_add(&gradients->sharers, map_key(gradients->rows[i].stand_in), i)); /* it has room */
        }
    }
    for (size_t i = 0; i < n_outputs; i++) {
        size_t sharer;
        if (outputs[i] && map_get(&gradients->sharers, map_key(outputs[i]->storage), &sharer)) {
            TRY(move_output(gradients, given, &outputs[i]));
        }
    }
    return SHOAL_OK;
}

shoal_status compile_gradients_give_back(struct compile_gradients *gradients, shoal_tensor *const *given,
                                         shoal_tensor **outputs, size_t n_outputs)
{
    if (!compile_gradients_have_moved(gradients)) {
        return SHOAL_OK;
    }
    for (size_t i = 0; i < gradients->count; i++) {
        const struct gradient *gradient = &gradients->rows[i];
        const struct gradient *sharer = &gradients->rows[gradient->sharer];
        /* Relaxed: versions are compared by the thread that owns the tensor. */
        if (gradient->copy &&
            atomic_load_explicit(&sharer->stand_in->version, memory_order_relaxed) != sharer->version) {
            TRY(copy_back(gradient, shoal_grad(gradient_leaf(gradient, given))));
        }
    }
    return move_outputs(gradients, given, outputs, n_outputs);
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

/* Sets the gradient of a leaf. The leaf shares the plan's tensor, so nothing is allocated. */
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
