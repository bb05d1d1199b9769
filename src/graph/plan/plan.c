/* SPDX-License-Identifier: MIT */
/* Makes an empty plan, and frees a plan. */
#include "graph/plan/plan.h"

#include "base/mem.h"

shoal_status plan_make(struct shoal_plan **plan_out)
{
    struct shoal_plan *plan = mem_alloc_zeroed(1, sizeof *plan);
    if (!plan) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *plan_out = plan;
    return SHOAL_OK;
}

void plan_destroy(struct shoal_plan *plan)
{
    if (!plan) {
        return;
    }
    for (size_t i = plan->n_tensors; i > 0; i--) {
        shoal_tensor_unref(plan->tensors[i - 1]);
    }
    for (size_t i = plan->n_buffers; i > 0; i--) {
        storage_unref(plan->buffers[i - 1].storage);
    }
    mem_free(plan->tensors);
    mem_free(plan->buffers);
    mem_free(plan->steps);
    mem_free(plan->collectives);
    mem_free(plan->windows);
    arena_free(&plan->arena);
    mem_free(plan);
}
