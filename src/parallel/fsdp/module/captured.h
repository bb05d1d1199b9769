/* SPDX-License-Identifier: MIT */
/*
 * A unit in a capture, and the backend of steps (engine/step/step.h) that emits ops: gathers and reductions become
 * functional collectives, on the lanes that the engine would use.
 *
 *     gather   shard (padded where ranks differ) [control_deps] [to_dtype] all_gather, wait [narrow]: whole parameter
 *     reduce   gradient [to_dtype] [cat with zeros] [division] reduce_scatter, wait [all_reduce, wait] [division]
 *              [to_dtype] [narrow]
 *
 * The record keeps one tensor for the whole parameter, for as long as it lives. Each gather tells the capture what
 * that tensor holds from then on (rebind).
 *
 * Parameters that are given up after the forward pass are gathered again in the backward pass. By control_deps this
 * second gather comes after the gradient with which the unit before began its backward pass (for the first unit:
 * after its own gradient). So no pass merges it with the first gather, and a pass that looks for overlap can gather
 * one unit ahead, as the engine does. The gather for a recomputed module comes after the module's inputs, which come
 * after the gradient.
 */
#ifndef PARALLEL_FSDP_MODULE_CAPTURED_H
#define PARALLEL_FSDP_MODULE_CAPTURED_H

#include "op/tracer.h"
#include "parallel/fsdp/engine/state/steps.h"
#include "parallel/fsdp/engine/step/step.h"
#include "parallel/fsdp/module/wrapper.h"

/* A parameter. */
struct fsdp_captured_param {
    shoal_tensor *padded; /* over the shard and its padding, one reference; NULL if the shard is gathered */
    shoal_tensor *aside;  /* gradients of earlier backward passes, while more arrive; one reference */
    shoal_tensor
        *kept; /* what this rank keeps between passes (SHOAL_RESHARD_PARTLY); one reference, or NULL */
    struct fsdp_landed
        *landed;       /* hooks on the shard, once its gradient has landed (landed.h); NULL if none are run */
    uint64_t version;  /* the version of the shard when it was gathered last */
    bool was_gathered; /* in this capture */
};

struct fsdp_captured {
    struct fsdp_capture *capture;
    struct fsdp_wrapper *wrapper;
    struct op_tracer *tracer;
    bool is_gathered; /* the whole parameters hold something */
    bool is_kept;     /* they do not, but neighbours keep a copy among them */
    /* The wrapper's fields of the same name before the capture: */
    bool shows_full;
    bool *has_run;
    size_t n_run;
    bool was_owed;       /* the same for grads.is_owed of the unit, */
    struct owing *owing; /* and what that is after each run; NULL if it stays as it is. The graph owns this */
    shoal_tensor *const *after; /* the next gather comes after these */
    size_t n_after;
    shoal_tensor *gradient; /* with which its backward pass began; borrowed while the hook runs */
    struct fsdp_captured_param *params;
};

/* A capture of modules under a root. Hooks in the record may outlive it, and keep this. */
struct fsdp_capture {
    struct op_tracer *tracer;
    struct fsdp_root *root;
    size_t n_references; /* one for the capture, and one for each hook in the record */
    bool is_over;        /* the root may be gone */
    /* The context's and the root's before the capture: */
    struct fsdp_steps steps;
    struct fsdp_calls calls;
    shoal_tensor *begun; /* the gradient that began the last unit's backward pass; one reference, or NULL */
    struct fsdp_captured *units;
    size_t n_units;
};

extern const struct fsdp_backend fsdp_capture_backend;

/* SHOAL_ERR_UNSUPPORTED or SHOAL_ERR_STATE, with the name of a setting, if that has no meaning in a graph. */
shoal_status fsdp_captured_check(const struct fsdp_captured *unit);
/* A hash of the settings and gradients of the unit on which a captured step depends. */
uint64_t fsdp_captured_state(const struct fsdp_wrapper *wrapper);

/* Whether a shard was written since it was gathered. */
bool fsdp_captured_has_changed(const struct fsdp_captured *unit);
/* Gives up whole parameters. */
void fsdp_captured_give_up(struct fsdp_captured *unit);

#endif
