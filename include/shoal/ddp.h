/* SPDX-License-Identifier: MIT */
/*
 * Distributed data parallelism for modules: every rank keeps whole parameters and computes with its own part of the
 * batch; at the end of a backward the gradients are the average over the ranks, the same bits on all of them.
 *
 *     shoal_ddp_options options = SHOAL_DDP_OPTIONS_INIT;
 *     options.group = group;
 *     status = shoal_ddp(model, &options);
 *     loss = ... shoal_module_call_one(model, x) ...;
 *     status = shoal_backward(loss, NULL);
 *     ... optimizer over shoal_module_parameters(model, &n), then gradients to NULL or zero ...
 *
 * Gradients travel in buckets while the backward is still computing others: in the order in which they became complete
 * in the first synchronized backward on the group's first rank. That first one sends everything at its end.
 *
 * A backward adds its average to the gradients that were there. What was averaged is not averaged again: it is set
 * aside meanwhile, and between a backward without synchronization and the next one with it shoal_grad shows what is
 * local. Gradients live in memory that the ranks share and have the dtype of their parameters; the tensor that
 * shoal_grad gives stays the same until the gradient is removed. Inside a backward that runs they are not to be
 * changed. That memory is made by the first backward outside of compiled steps (shoal/compile.h), and stays; wrapping
 * makes none. If one rank cannot have it, the first synchronized backward fails on all ranks with that rank's reason,
 * and the next one tries again.
 *
 * Buffers of the module, running averages for example, are the first rank's whenever a forward begins that a
 * synchronized backward can follow; forwards without gradients or without synchronization talk to nobody. Modules
 * without buffers send none.
 *
 * A backward that fails leaves gradients that mean nothing. Remove them (or write zeros) before the next one, on every
 * rank: it then works again, unless a rank is gone. Until then it is an error that names a parameter. Ranks that wait
 * for one whose backward failed, or did not even get to a parameter, fail when that one calls the module again.
 *
 * Ranks: all ranks wrap, synchronize and run backwards alike; numbers of backwards without synchronization may differ.
 * Within one backward modules and gradients may come in any order. Synchronized backwards that ranks make in different
 * order, through two modules or for two forwards of one, are SHOAL_ERR_MISMATCH on all ranks. A forward that is newer
 * than those a backward walks back, and still recorded, exists on all ranks or on none.
 * Ownership: what is made here belongs to the module and ends with it. What was recorded keeps what its backward needs:
 * a module may be freed between forward and backward, and gradients of its parameters are averaged all the same.
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
    /* By what summed gradients are divided; 0: the number of ranks. 1 gives sums. A factor that is neither 0, 1 nor the
       number of ranks is applied before gradients are added, as a product with 1 / factor. */
    double divide_factor;
    /* A parameter without a gradient in a backward counts as zeros; without one on all ranks it is left alone.
       Otherwise the end of that backward is SHOAL_ERR_STATE on all ranks, naming it. */
    bool reduce_unused;
    bool keeps_parameters; /* otherwise parameters and buffers become those of the group's first rank */
    shoal_tensor *const *ignored; /* parameters that are none of its business */
    size_t n_ignored;
    /* Otherwise buffers become those of the group's first rank before every forward that records gradients while
       synchronization is on: all ranks make these together. */
    bool keeps_buffers;
} shoal_ddp_options;
#define SHOAL_DDP_OPTIONS_INIT SHOAL_SIZED(shoal_ddp_options)

/*
 * Collective. Takes the parameters that require a gradient now; the others are broadcast, and nothing else. Names,
 * dtypes, shapes and options must be the same on all ranks: a difference is SHOAL_ERR_MISMATCH on all of them, and the
 * group can still be used. Not for a module that is wrapped already, is inside of one, or has one inside; shards of
 * modules inside that are fully sharded must be ignored. Changes nothing when it fails, but for values on their way.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_ddp(shoal_module *module, const shoal_ddp_options *options);
SHOAL_API bool shoal_ddp_is_wrapped(const shoal_module *module);

/*
 * False: backward passes that begin from now on leave gradients on their rank, where they add up until one with
 * synchronization sends the sum. Ranks may differ in how many of them they make.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_ddp_set_sync(shoal_module *module, bool is_on);

/*
 * Collective: the norm of the gradients of all parameters that were taken. If max_norm / (norm + 1e-6) is below 1, they
 * are multiplied by it, as in PyTorch. The norm is the power-th root of the sum of |g|^power, or the largest |g| if
 * power is INFINITY; it is exact up to one rounding for 1, 2 and INFINITY, while for others each power is rounded to
 * f64 first. norm_out may be NULL.
 *
 * Gradients are equal on all ranks, so only the arguments are compared. Gradients that are not averaged yet are
 * SHOAL_ERR_STATE; so is, with must_be_finite, a norm that is infinite or NaN. Gradients are then left alone.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_ddp_clip_grad_norm(shoal_module *module, double max_norm,
                                                                 double power, bool must_be_finite,
                                                                 double *norm_out);
/* Collective: every gradient between -max_value and max_value; NaN stays. Ranks compare max_value. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_ddp_clip_grad_value(shoal_module *module, double max_value);

/*
 * After a backward that failed: removes the gradients, and lets ranks that wait for this one know that it will not
 * come: their backward fails. Otherwise they hear of it when this rank begins another. Not inside a backward.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_ddp_reset(shoal_module *module);

SHOAL_END_DECLS

#endif
