/* SPDX-License-Identifier: MIT */
/*
 * Distributed data parallelism for modules: every rank keeps whole parameters and computes with its own part of the
 * batch; at the end of a backward the gradients are the average over the ranks, the same bits on all of them.
 *
 *     status = shoal_ddp(model, &(shoal_ddp_options){.struct_size = sizeof(shoal_ddp_options), .group = group});
 *     loss = ... shoal_module_call_one(model, x) ...;
 *     status = shoal_backward(loss, NULL);
 *     ... optimizer over shoal_module_parameters(model, &n), then gradients to NULL or zero ...
 *
 * Gradients travel in buckets while the backward is still computing others: in the order in which they became complete
 * in the first synchronised backward on the group's first rank. That first one sends everything at its end.
 *
 * A backward adds its average to the gradients that were there. What was averaged is not averaged again: it is set aside
 * meanwhile, and between a backward without synchronisation and the next one with it shoal_grad shows what is local.
 * Gradients live in memory that the ranks share and have the dtype of their parameters; the tensor that shoal_grad gives
 * stays the same until the gradient is removed. Inside a backward that runs they are not to be changed.
 *
 * Buffers of the module, running averages for example, are the first rank's whenever a forward begins that a synchronised
 * backward can follow; forwards without gradients or without synchronisation talk to nobody. Modules without buffers send
 * none.
 *
 * A backward that fails leaves gradients that mean nothing. Remove them (or write zeros) before the next one, on every
 * rank: it then works again, unless a rank is gone. Until then it is an error that names a parameter. Ranks that wait for
 * one whose backward failed, or did not even get to a parameter, fail when that one calls the module again.
 *
 * Ranks: all ranks wrap, synchronise and run backwards alike; numbers of backwards without synchronisation may differ.
 * Ownership: what is made here belongs to the module and ends with it.
 * Threads: one at a time.
 * Errors: status and text; in backward, that of shoal_backward.
 */
#ifndef SHOAL_DDP_H
#define SHOAL_DDP_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/api.h"
#include "shoal/group.h"
#include "shoal/module.h"
#include "shoal/status.h"
#include "shoal/tensor.h"

SHOAL_BEGIN_DECLS

typedef struct shoal_ddp_options {
    size_t struct_size; /* sizeof(shoal_ddp_options) */
    shoal_group *group;
    /* A bucket is closed when it holds so many bytes. The first one of each dtype is small, so that it can leave
       early. 0: 1 MiB, and 25 MiB for the others. */
    size_t first_bucket_bytes;
    size_t bucket_bytes;
    bool sums; /* gradients are added up, not averaged */
    /* A parameter without a gradient in a backward counts as zeros; without one on all ranks it is left alone.
       Otherwise the end of that backward is SHOAL_ERR_STATE on all ranks, naming it. */
    bool finds_unused;
    bool keeps_parameters; /* otherwise parameters and buffers become those of the group's first rank */
    shoal_tensor *const *ignored; /* parameters that are none of its business */
    size_t n_ignored;
    /* Otherwise buffers become those of the group's first rank before every forward that records gradients while
       synchronisation is on: all ranks make these together. */
    bool keeps_buffers;
} shoal_ddp_options;

/*
 * Collective. Takes the parameters that require a gradient now; the others are broadcast, and nothing else. Names,
 * dtypes, shapes and options must be the same on all ranks. Not for a module that is wrapped already, is inside of one,
 * or has one inside; shards of modules inside that are fully sharded must be ignored. Changes nothing when it fails, but
 * for values on their way.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_ddp(shoal_module *module, const shoal_ddp_options *options);
SHOAL_API bool shoal_ddp_is_wrapped(const shoal_module *module);

/* False: backwards that begin from now on leave gradients on their rank, where they add up until one with
   synchronisation sends the sum. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_ddp_set_sync(shoal_module *module, bool is_on);

/*
 * The 2-norm of the gradients of all parameters that were taken, exact up to one rounding; they are scaled down if it is
 * larger than max_norm. Talks to nobody: gradients are equal on all ranks, and it is SHOAL_ERR_STATE where they are not
 * averaged yet. norm_out may be NULL.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_ddp_clip_grad_norm(shoal_module *module, double max_norm,
                                                                 double *norm_out);
/* With another norm, and by value: as shoal_fsdp_clip_grad_p_norm and shoal_fsdp_clip_grad_value (shoal/fsdp.h). */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_ddp_clip_grad_p_norm(shoal_module *module, double power,
                                                                   double max_norm, bool must_be_finite,
                                                                   double *norm_out);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_ddp_clip_grad_value(shoal_module *module, double max_value);

/*
 * After a backward that failed: removes the gradients, and lets ranks that wait for this one know that it will not come:
 * their backward fails. Otherwise they hear of it when this rank begins another. Not inside a backward.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_ddp_reset(shoal_module *module);

SHOAL_END_DECLS

#endif
