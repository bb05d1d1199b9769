/* SPDX-License-Identifier: MIT */
/* The state of the steps of a context: a capture exchanges it for its own, and so leaves the engine's as it was. */
#ifndef PARALLEL_FSDP_ENGINE_STATE_STEPS_H
#define PARALLEL_FSDP_ENGINE_STATE_STEPS_H

#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/unit.h"

/* A backend, with the state of the steps that it runs. */
struct fsdp_steps {
    const struct fsdp_backend *backend;
    struct fsdp_passes passes;
    struct fsdp_unit_step *units; /* of each unit of the context */
};

/* Makes steps for another backend than the context's, and frees them. */
shoal_status fsdp_steps_create(const struct fsdp_context *context, const struct fsdp_backend *backend,
                               struct fsdp_steps *steps);
void fsdp_steps_free(const struct fsdp_context *context, struct fsdp_steps *steps);
void fsdp_passes_free(struct fsdp_passes *passes);
/* Exchanges them for the context's own: call once more to return to those. */
void fsdp_steps_exchange(struct fsdp_context *context, struct fsdp_steps *steps);

#endif
