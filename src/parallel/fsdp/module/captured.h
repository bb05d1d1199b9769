/* SPDX-License-Identifier: MIT */
/*
 * A unit in a capture: its gathers and reductions as functional collectives, on the lanes that the engine would use.
 * The engine itself does not change.
 *
 *     gather   shard (padded where ranks differ) [control_deps] [to_dtype] all_gather, wait [narrow]: whole parameter
 *     reduce   gradient [to_dtype] [cat with zeros] [division] reduce_scatter, wait [all_reduce, wait] [division]
 *              [to_dtype] [narrow]
 *
 * The record keeps one tensor for the whole parameter, for as long as it lives. Each gather tells the capture what
 * that tensor holds from then on (rebind).
 */
#ifndef PARALLEL_FSDP_MODULE_CAPTURED_H
#define PARALLEL_FSDP_MODULE_CAPTURED_H

#include "op/tracer.h"
#include "parallel/fsdp/module/wrapper.h"

struct fsdp_capture; /* capture.c: of all units under a root */

/* A parameter. */
struct fsdp_captured_param {
    shoal_tensor *padded; /* over the shard and its padding, one reference; NULL: the shard is gathered */
    shoal_tensor *aside;  /* gradients of earlier backward passes, while more arrive; one reference */
    uint64_t version;     /* the version of the shard when it was gathered last */
    bool was_gathered;    /* in this capture */
};

struct fsdp_captured {
    struct fsdp_capture *capture;
    struct fsdp_wrapper *wrapper;
    struct op_tracer *tracer;
    enum fsdp_phase phase;
    bool is_gathered;  /* the whole parameters hold something */
    bool shows_full;   /* the wrapper's shows_full before the capture, restored at its end */
    size_t n_forwards; /* recorded forward passes whose backward pass is to come */
    size_t n_run;      /* as in the wrapper */
    bool *has_run;
    struct fsdp_captured_param *params;
};

/* SHOAL_ERR_UNSUPPORTED or SHOAL_ERR_STATE, with the name of a setting, if that has no meaning in a graph. */
shoal_status fsdp_captured_check(const struct fsdp_captured *unit);
/* A hash of the settings and gradients of the unit on which a captured step depends. */
uint64_t fsdp_captured_state(const struct fsdp_unit *unit);

/* Gathers the unit, unless it is gathered. The gather comes after the tensors in `after`. */
shoal_status fsdp_captured_gather(struct fsdp_captured *unit, shoal_tensor *const *after, size_t n_after);
/* Whether a shard was written since it was gathered. */
bool fsdp_captured_has_changed(const struct fsdp_captured *unit);

/*
 * Call when its backward pass begins. Gradients that earlier passes left in the dtype of the reduction are set
 * aside, and added when all gradients of this pass have arrived. The engine adds in the same order, so rounding is
 * the same.
 */
shoal_status fsdp_captured_set_aside(const struct fsdp_captured *unit);
/* Whether whole parameters have gradients. */
bool fsdp_captured_has_gradients(const struct fsdp_captured *unit);
/* Call when its backward pass ends. Reduces the gradients of whole parameters to the shards; without
   synchronization, leaves them where they are. */
shoal_status fsdp_captured_reduce(struct fsdp_captured *unit);

#endif
