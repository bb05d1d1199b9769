/* SPDX-License-Identifier: MIT */
/*
 * Distributed data parallelism for modules: every rank keeps whole parameters and computes with its own part of the
 * batch; at the end of a backward pass the gradients are the average over the ranks, the same bits on all of them.
 *
 *     shoal_ddp_options options = SHOAL_DDP_OPTIONS_INIT;
 *     options.group = group;
 *     status = shoal_ddp(model, &options);
 *     loss = ... shoal_module_call_one(model, x) ...;
 *     status = shoal_backward(loss, NULL);
 *     ... optimizer over shoal_module_parameters(model, &n), then gradients to NULL or zero ...
 *
 * Gradients are reduced in buckets while the backward pass is still computing others. The first synchronized backward
 * pass sends everything at its end; later ones send buckets in the order in which gradients became complete in the
 * first one, on the group's first rank.
 *
 * A backward pass adds its average to the gradients that were there. Gradients that have been averaged are not averaged
 * again: they are set aside meanwhile. So between a backward pass without synchronization and the next one with it,
 * shoal_grad shows local gradients only. Do not change gradients while a backward pass runs.
 *
 * Gradients live in memory that the ranks share, and have the dtype of their parameters. The tensor that shoal_grad
 * gives stays the same until the gradient is removed. The first backward pass outside of compiled steps
 * (shoal/compile.h) allocates that memory, not shoal_ddp; it then stays. If one rank cannot allocate it, the first
 * synchronized backward pass fails on all ranks with that rank's reason, and the next one tries again.
 *
 * Buffers of the module, running averages for example, are copied from the group's first rank whenever a forward pass
 * begins that a synchronized backward pass can follow; of a call through shoal_recompute that is the first run. Forward
 * passes without gradients or without synchronization do not communicate, nor do modules without buffers. In a function
 * that shoal_recompute runs, gradients are off anyway, so shoal_scope_set_grad(false) makes no difference: to evaluate
 * a wrapped module there without communication, turn synchronization off (shoal_ddp_set_sync).
 *
 * The model may change between steps, on all ranks alike: parameters may be added (also in new children), replaced,
 * frozen, thawed and tied. The next forward pass that records gradients while synchronization is on wraps the module
 * again, and is collective then: parameters that stayed keep their gradients, and new ones get the values of the
 * group's first rank (unless keeps_parameters is set). If only some ranks have changed theirs, all get
 * SHOAL_ERR_MISMATCH. A parameter that was replaced takes its gradient along, with an average that was set aside; if it
 * comes back, that counts as a gradient of this rank. docs/concepts.md has a table of changes.
 *
 * Calls of modules inside the wrapped one follow changes, too, also of children that were added since. A parameter that
 * came later and gets a gradient without such a forward pass (because synchronization was off until the backward pass)
 * is SHOAL_ERR_STATE in that backward pass. Optimizers have to be told of new parameters by the program.
 *
 * A backward pass that fails leaves undefined gradients. Remove them, or write zeros, on every rank before the next
 * one: it then works again, unless a rank is gone. Until that is done, a backward pass is an error that names a
 * parameter. If a rank's backward pass fails, or does not reach a parameter, ranks that wait for it fail when it calls
 * the module again.
 *
 * Ranks: all ranks wrap modules, synchronize and run backward passes alike. Only the number of backward passes without
 * synchronization may differ. Within one backward pass modules and gradients may become ready in any order; in compiled
 * steps they must come in the same order on all ranks, or all get SHOAL_ERR_MISMATCH. If ranks
 * make synchronized backward passes in different orders, through two modules or for two forward passes of one, all
 * ranks get SHOAL_ERR_MISMATCH. If a recorded forward pass is newer than the forward passes that a backward pass
 * goes through, it must exist on all ranks or on none.
 * Ownership: what is made here belongs to the module and ends with it. A module may be freed between forward and
 * backward pass: what was recorded keeps what it needs, and gradients of the parameters are still averaged.
 * Threads: one at a time.
 * Errors: status and text; in a backward pass, the status that shoal_backward returns.
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
    /* A bucket is closed when it holds so many bytes. The first one of each dtype is small, so that it can leave early.
       0 means 1 MiB for the first, and 25 MiB for the others. */
    size_t first_bucket_bytes;
    size_t bucket_bytes;
    /* By what summed gradients are divided; 0 means the number of ranks. 1 gives sums. A factor that is neither 0, 1
       nor the number of ranks is applied before gradients are added, as a product with 1 / factor. */
    double divide_factor;
    /* If true, a parameter that gets no gradient in a backward pass counts as zeros; one that gets none on any rank is
       left alone. If false, the end of such a backward pass is SHOAL_ERR_STATE on all ranks, and names the
       parameter. */
    bool reduce_unused;
    bool keeps_parameters; /* if false, shoal_ddp copies parameters and buffers from the group's first rank */
    shoal_tensor *const *ignored; /* parameters that are neither copied nor reduced */
    size_t n_ignored;
    /* If false, before every forward pass that records gradients while synchronization is on, buffers are copied from
       the group's first rank. All ranks make these forward passes together. */
    bool keeps_buffers;
} shoal_ddp_options;
#define SHOAL_DDP_OPTIONS_INIT SHOAL_SIZED(shoal_ddp_options)

/*
 * Wraps a module, so that its backward passes average gradients over the group. Collective. Parameters that require a
 * gradient are reduced; the others are only broadcast.
 *
 * Names, dtypes, shapes, ties, buffers and options must be the same on all ranks. If they differ, all ranks get
 * SHOAL_ERR_MISMATCH, and the group can still be used. A module cannot be wrapped if it is wrapped already, or is
 * inside a wrapped module, or has one inside. If modules inside are fully sharded, their shards must be among
 * `ignored`. A call that fails changes nothing, except values that were already being broadcast.
 */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_ddp(shoal_module *module,
                                                                   const shoal_ddp_options *options);
/* Whether shoal_ddp has wrapped this very module. */
SHOAL_API bool shoal_ddp_is_wrapped(const shoal_module *module);

/*
 * Turns synchronization on or off, for backward passes that begin from now on. Without it gradients stay on their rank,
 * where they are summed; the next backward pass with synchronization averages the sums. Use it to accumulate gradients
 * over several backward passes. Ranks may differ in how many they make without synchronization.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_ddp_set_sync(shoal_module *module, bool is_on);

/*
 * Clips the gradients of all parameters that are reduced, by their norm. Collective. If max_norm / (norm + 1e-6) is
 * below 1, gradients are multiplied by it, as in PyTorch. The norm is the power-th root of the sum of |g|^power, or the
 * largest |g| if power is INFINITY; it is exact up to one rounding for 1, 2 and INFINITY, while for others each power
 * is rounded to f64 first. norm_out may be NULL.
 *
 * Gradients are equal on all ranks, so only the arguments are compared. A gradient that is not averaged yet, on one
 * rank or on several, is SHOAL_ERR_STATE on all ranks, also if its parameter is new and was in no synchronized forward
 * pass yet. So is, with must_be_finite, a norm that is infinite or NaN. Gradients are then left alone.
 */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_ddp_clip_grad_norm(
    shoal_module *module, double max_norm, double power, bool must_be_finite, double *norm_out);
/* Clips every gradient to the range from -max_value to max_value; NaN stays. Collective; ranks compare max_value. A
   gradient that is not averaged yet is SHOAL_ERR_STATE, as above. */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_ddp_clip_grad_value(shoal_module *module,
                                                                                   double max_value);

/*
 * Removes the gradients after a backward pass that failed, and tells ranks that wait for this one that it will not
 * arrive: their backward passes fail. Without this call they learn of it when this rank begins its next one. Not inside
 * a backward pass.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_ddp_reset(shoal_module *module);

SHOAL_END_DECLS

#endif
