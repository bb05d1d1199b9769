/* SPDX-License-Identifier: MIT */
#include "parallel/fsdp/engine/state/steps.h"

#include "base/mem.h"

shoal_status fsdp_steps_create(const struct fsdp_context *context, const struct fsdp_backend *backend,
                               struct fsdp_steps *steps)
{
    *steps = (struct fsdp_steps){.backend = backend,
                                 .units = mem_alloc_zeroed(context->n_units, sizeof steps->units[0])};
    return steps->units ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

void fsdp_passes_free(struct fsdp_passes *passes)
{
    mem_free(passes->order.units);
    mem_free(passes->forwards.units);
    mem_free(passes->last_forwards.units);
}

void fsdp_steps_free(const struct fsdp_context *context, struct fsdp_steps *steps)
{
    for (size_t i = 0; steps->units && i < context->n_units; i++) {
        mem_free(steps->units[i].order);
    }
    mem_free(steps->units);
    fsdp_passes_free(&steps->passes);
}

void fsdp_steps_exchange(struct fsdp_context *context, struct fsdp_steps *steps)
{
    struct fsdp_steps theirs = {
        .backend = context->backend, .passes = context->passes, .units = steps->units};
    context->backend = steps->backend;
    context->passes = steps->passes;
    for (size_t i = 0; i < context->n_units; i++) {
        struct fsdp_unit_step mine = context->units[i]->step;
        context->units[i]->step = steps->units[i];
        steps->units[i] = mine;
    }
    *steps = theirs;
}
