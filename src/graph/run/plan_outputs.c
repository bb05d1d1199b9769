/* SPDX-License-Identifier: MIT */
/*
 * The tensors that the caller gets from a run. They lie in the plan's memory. They are made once and given out again in
 * each run, if the caller has released them in between. Reference counts tell whether it has: those of the tensors, and
 * that of their storage, which views refer to as well.
 */
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/try.h"
#include "graph/run/bind.h"

/* Finding out -------------------------------------------------------------------------------------------- */

static uint32_t find_input(const struct shoal_plan *plan, uint32_t buffer)
{
    return plan->buffers[buffer].index;
}

static bool is_whole(const struct bound_input *input, const shoal_tensor *tensor)
{
    return tensor->dtype == input->dtype && tensor->is_contiguous && tensor->layout.offset == 0 &&
           layout_is_same_shape(tensor->layout.n_dims, tensor->layout.shape, input->layout.n_dims,
                                input->layout.shape);
}

/* set_of has, by storage of the graph, the index of its set + 1; 0 if it has none yet. */
static struct bound_set *find_set(struct shoal_plan *plan, uint32_t *set_of, const struct plan_output *output)
{
    struct plan_binding *binding = plan->binding;
    if (set_of[output->storage] == 0) {
        binding->sets[binding->n_sets++] = (struct bound_set){
            .buffer = output->buffer, .offset = output->offset, .bytes = output->bytes, .first = PLAN_NONE};
        set_of[output->storage] = (uint32_t)binding->n_sets;
    }
    return &binding->sets[set_of[output->storage] - 1];
}

/* An output that is a part of a buffer gets a storage of its own, so that a write to a gradient, for example, does not
   count as a write to the other gradients of its bucket. */
static void place_in_set(struct shoal_plan *plan, uint32_t *set_of, size_t index)
{
    const struct plan_output *output = &plan->outputs[index];
    struct bound_output *bound = &plan->binding->outputs[index];
    struct bound_set *set = find_set(plan, set_of, output);
    bound->kind = OUTPUT_SET;
    bound->index = (uint32_t)(set - plan->binding->sets);
    bound->next = set->first;
    set->first = (uint32_t)index;
    bound->layout = output->tensor->layout;
    bound->layout.offset -= (int64_t)(output->offset / dtype_bytes(output->tensor->dtype));
}

static void find_output(struct shoal_plan *plan, uint32_t *set_of, size_t index)
{
    const struct plan_output *output = &plan->outputs[index];
    struct bound_output *bound = &plan->binding->outputs[index];
    if (!output->tensor) {
        return;
    }
    /* A slot in an input is a view of the input. */
    uint32_t root = output->buffer;
    while (plan->buffers[root].place == PLAN_SLOT) {
        root = plan->buffers[root].index;
    }
    if (plan->buffers[root].place == PLAN_INPUT) {
        bound->index = find_input(plan, root);
        bound->layout = output->tensor->layout;
        bound->kind =
            is_whole(&plan->binding->inputs[bound->index], output->tensor) ? OUTPUT_INPUT : OUTPUT_INPUT_VIEW;
    } else if (plan->buffers[root].place == PLAN_CONSTANT) {
        bound->kind = OUTPUT_CONSTANT;
    } else {
        place_in_set(plan, set_of, index);
    }
}

shoal_status plan_find_outputs(struct shoal_plan *plan)
{
    struct plan_binding *binding = plan->binding;
    binding->outputs = mem_alloc_zeroed(plan->n_outputs + 1, sizeof *binding->outputs);
    binding->sets = mem_alloc_zeroed(plan->n_outputs + 1, sizeof *binding->sets);
    uint32_t n_storages = 0;
    for (size_t i = 0; i < plan->n_outputs; i++) {
        n_storages = plan->outputs[i].storage >= n_storages ? plan->outputs[i].storage + 1 : n_storages;
    }
    uint32_t *set_of = mem_alloc_zeroed((size_t)n_storages + 1, sizeof *set_of);
    bool has_memory = binding->outputs && binding->sets && set_of;
    for (size_t i = 0; i < plan->n_outputs && has_memory; i++) {
        find_output(plan, set_of, i);
    }
    mem_free(set_of);
    return has_memory ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

/* Tensors for the caller --------------------------------------------------------------------------------- */

static void drop_tensors(struct plan_binding *binding, struct bound_set *set)
{
    for (uint32_t i = set->first; i != PLAN_NONE; i = binding->outputs[i].next) {
        shoal_tensor_unref(binding->outputs[i].tensor);
        binding->outputs[i].tensor = NULL;
    }
    storage_unref(set->storage);
    set->storage = NULL;
    set->n_tensors = 0;
}

static shoal_status make_tensor(struct shoal_plan *plan, size_t index)
{
    struct bound_output *output = &plan->binding->outputs[index];
    struct bound_set *set = &plan->binding->sets[output->index];
    if (output->kind != OUTPUT_SET || output->tensor) {
        return SHOAL_OK;
    }
    if (!set->storage) {
        TRY(storage_create_borrowed(SHOAL_CPU, set->bytes, address_of(set->data), NULL, NULL, &set->storage));
        set->storage->is_lent = set->bytes > 0;
    }
    shoal_tensor *tensor;
    TRY(tensor_create(storage_ref(set->storage), plan->outputs[index].tensor->dtype, &output->layout,
                      &tensor));
    tensor->is_detached = true; /* as what shoal_graph_run makes without gradients */
    output->tensor = tensor;
    set->n_tensors++;
    return SHOAL_OK;
}

/* Whether the caller still has a tensor of the set, or a view of one. */
static bool is_kept(const struct plan_binding *binding, const struct bound_set *set)
{
    for (uint32_t i = set->first; i != PLAN_NONE; i = binding->outputs[i].next) {
        const shoal_tensor *tensor = binding->outputs[i].tensor;
        /* Acquire, here and below: pairs with the puts of those who had it. */
        if (tensor && atomic_load_explicit(&tensor->references, memory_order_acquire) != 1) {
            return true;
        }
    }
    return atomic_load_explicit(&set->storage->references, memory_order_acquire) != set->n_tensors + 1;
}

/* Whether the tensors and the storage are as they were made, so that they can be given out again. */
static bool is_clean(const struct plan_binding *binding, const struct bound_set *set)
{
    const struct storage *storage = set->storage;
    for (uint32_t i = set->first; i != PLAN_NONE; i = binding->outputs[i].next) {
        const shoal_tensor *tensor = binding->outputs[i].tensor;
        if (tensor && tensor->history) {
            return false;
        }
    }
    return !atomic_load(&storage->has_history) && !storage->name && !storage->read_only && storage->memory &&
           address_pointer(storage->memory->base) == set->data && !storage_has_fences(storage);
}

/* Frees the plan's memory of what the last run gave, before the next run or before the memory is freed. If the caller
   still has a tensor of the set, the set's storage gets memory of its own. */
static shoal_status let_go(struct shoal_plan *plan, struct bound_set *set)
{
    if (!set->storage) {
        return SHOAL_OK;
    }
    /* The memory is about to change: waits for work that the caller has started on it. */
    if (storage_has_fences(set->storage)) {
        TRY(storage_wait_writable(set->storage, /*overwrites=*/true));
    }
    bool has_caller = is_kept(plan->binding, set);
    if (!has_caller && is_clean(plan->binding, set)) {
        return SHOAL_OK;
    }
    if (has_caller) {
        TRY(storage_own_memory(
            set->storage)); /* does nothing if it has its own already, as after an export */
        plan->n_copied_out += set->n_tensors;
    }
    drop_tensors(plan->binding, set);
    return SHOAL_OK;
}

bool plan_has_given_out(const struct shoal_plan *plan, const void *data, size_t bytes)
{
    const struct plan_binding *binding = plan->binding;
    for (size_t i = 0; i < binding->n_sets; i++) {
        const struct bound_set *set = &binding->sets[i];
        if (set->storage && (uintptr_t)data < (uintptr_t)set->data + set->bytes &&
            (uintptr_t)set->data < (uintptr_t)data + bytes) {
            return true;
        }
    }
    return false;
}

shoal_status plan_renew_outputs(struct shoal_plan *plan)
{
    for (size_t i = 0; i < plan->binding->n_sets; i++) {
        TRY(let_go(plan, &plan->binding->sets[i]));
    }
    for (size_t i = 0; i < plan->n_outputs; i++) {
        TRY(make_tensor(plan, i));
    }
    return SHOAL_OK;
}

void plan_give_outputs(struct shoal_plan *plan, shoal_tensor *const *inputs, shoal_tensor **outputs)
{
    for (size_t i = 0; i < plan->n_outputs; i++) {
        struct bound_output *output = &plan->binding->outputs[i];
        switch (output->kind) {
        case OUTPUT_NONE:
            outputs[i] = NULL;
            break;
        case OUTPUT_INPUT:
            outputs[i] = shoal_tensor_ref(inputs[output->index]);
            break;
        case OUTPUT_INPUT_VIEW:
            outputs[i] = output->tensor;
            output->tensor = NULL;
            break;
        case OUTPUT_CONSTANT:
            outputs[i] = shoal_tensor_ref(plan->outputs[i].tensor);
            break;
        case OUTPUT_SET:
            outputs[i] = shoal_tensor_ref(output->tensor);
            break;
        }
    }
}

/* For an output that could not get memory of its own. If it lies in memory that ranks share, which ends with the world,
   its data is taken away. Returns false if something still refers to the plan's memory, or is in flight there. */
static bool take_away(struct shoal_plan *plan, struct bound_set *set)
{
    const struct plan_buffer *root = &plan->buffers[set->buffer];
    LOG(SHOAL_LOG_ERROR, "plan_free: an output that is still used cannot get memory of its own: %s",
        shoal_error_text());
    while (root->place == PLAN_SLOT) {
        root = &plan->buffers[root->index];
    }
    bool is_shared = root->place == PLAN_COMM || root->place == PLAN_WINDOW;
    bool is_taken = is_shared && storage_release(set->storage) == SHOAL_OK;
    error_clear();
    return is_taken && !storage_has_fences(set->storage);
}

bool plan_end_outputs(struct shoal_plan *plan)
{
    struct plan_binding *binding = plan->binding;
    bool has_ended = true;
    for (size_t i = 0; i < binding->n_sets; i++) {
        struct bound_set *set = &binding->sets[i];
        size_t n_copied = plan->n_copied_out;
        if (let_go(plan, set) != SHOAL_OK) {
            has_ended = take_away(plan, set) && has_ended;
        }
        plan->n_copied_out = n_copied;
        if (set->storage) {
            drop_tensors(binding, set);
        }
    }
    return has_ended;
}
