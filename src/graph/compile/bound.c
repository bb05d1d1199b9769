/* SPDX-License-Identifier: MIT */
#include "graph/compile/bound.h"

#include "base/error.h"
#include "base/mem.h"
#include "tensor/tensor.h"

static bool is_gradient(const struct captured *captured, const shoal_tensor *tensor)
{
    for (size_t i = 0; i < captured->n_leaves; i++) {
        const shoal_tensor *gradient = captured->leaves[i].gradient;
        if (gradient && gradient->storage == tensor->storage) {
            return true;
        }
    }
    return false;
}

shoal_status compile_bound_take(const struct captured *captured, struct compile_bound *bound)
{
    bound->tensors = mem_alloc_zeroed(captured->n_inputs + 1, sizeof bound->tensors[0]);
    if (!bound->tensors) {
        return SHOAL_ERR_NO_MEMORY;
    }
    bound->count = captured->n_inputs;
    for (size_t i = 0; i < captured->n_inputs; i++) {
        const struct captured_input *input = &captured->inputs[i];
        shoal_tensor *tensor = input->source ? input->source : input->tensor;
        if (tensor && !is_gradient(captured, tensor)) {
            bound->tensors[i] = shoal_tensor_ref(tensor);
        }
    }
    return SHOAL_OK;
}

void compile_bound_free(struct compile_bound *bound)
{
    for (size_t i = 0; i < bound->count; i++) {
        shoal_tensor_unref(bound->tensors[i]);
    }
    mem_free(bound->tensors);
    *bound = (struct compile_bound){.count = 0};
}

/* A capture may make a tensor of its own over the memory of the program's, so storages are compared. */
shoal_status compile_bound_compare(const struct compile_bound *was, const struct compile_bound *now)
{
    for (size_t i = 0; i < was->count && i < now->count; i++) {
        const shoal_tensor *old = was->tensors[i];
        const shoal_tensor *tensor = now->tensors[i];
        if (old && tensor && old->storage != tensor->storage) {
            const char *name = shoal_tensor_name(old);
            return error_set(
                SHOAL_ERR_STATE,
                "SHOAL_COMPILE_CHECK: the step has changed since it was compiled: it uses another tensor "
                "in the place of %s (placeholder %zu)",
                name[0] ? name : "a tensor without a name", i);
        }
    }
    return SHOAL_OK;
}
