/* SPDX-License-Identifier: MIT */
/*
 * Fully sharded data parallelism for modules. After shoal_fully_shard a module's parameters are shards: what
 * shoal_module_parameters lists, what an optimizer updates, what has gradients after backward. Calling the module
 * gathers them and gives them up again; backward gathers once more and reduces the gradients. Gathering the next unit and
 * reducing the last one go on while others compute.
 *
 *     for (int i = 0; i < n_layers; i++) shoal_fully_shard(layers[i], &options);      inner modules first
 *     shoal_fully_shard(model, &options);                                             what is left, and the root
 *     loss = ... shoal_module_call_one(model, x) ...;
 *     shoal_backward(loss, NULL);
 *     ... optimizer over shoal_module_parameters(model, &n) ...
 *
 * Inner modules come first, and the optimizer is made afterwards: parameters are other tensors then.
 *
 * Each call makes one unit: the parameters of the modules given that no inner unit has. The first module that is called
 * is the root, and all units inside it work together; a module of another root must not be called before. What shoal_ddp
 * has wrapped keeps its parameters, and nothing inside of it can be sharded any more.
 *
 * Parameters may be on the meta device (SHOAL_META), with shapes and no memory: only shards are ever made then, and must
 * get values before the first call, by writing, loading or shoal_fully_shard_broadcast_all.
 *
 * Until the first call a tensor of a shard's shape, with memory of its own, may be put in its place: of another dtype
 * (shoal_module_apply), or made after sharding without values. It is the shard then.
 *
 * A forward without gradients (an evaluation) gives up everything at its end that no recorded forward needs for its
 * backward, whatever `reshard` says: places hold shards then, and the next call sees what was written to them.
 *
 * Ranks: all ranks shard alike and call alike. Parameters must have the same values everywhere before (or be
 * broadcast). Clipping, zero_grad, synchronize, reset and set_is_last_backward make a module the root that has not been
 * called yet: before the first call all ranks make them together.
 * Ownership: what is made here belongs to the module, and ends with it. Modules must outlive what was recorded through
 * them. Once the world is closed the shards can still be read, but the module can not be called.
 * Threads: one at a time for all modules under one root.
 * Errors: status and text; in forward, the error of the call; in backward, that of shoal_backward.
 */
#ifndef SHOAL_FULLY_SHARD_H
#define SHOAL_FULLY_SHARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/api.h"
#include "shoal/dtype.h"
#include "shoal/fsdp.h"
#include "shoal/fsdp_comm.h"
#include "shoal/group.h"
#include "shoal/mesh.h"
#include "shoal/module.h"
#include "shoal/status.h"
#include "shoal/tensor.h"

SHOAL_BEGIN_DECLS

/* The dimension along which a parameter is cut; negative counts from the end. */
typedef int (*shoal_placement)(void *context, const char *path, const shoal_tensor *parameter);

typedef struct shoal_fully_shard_options {
    size_t struct_size; /* sizeof(shoal_fully_shard_options) */
    /* Who has the shards: one of the two. A mesh of two named dimensions: replicas, shards. */
    shoal_group *group;
    shoal_mesh *mesh;
    bool is_replicated;       /* with a group: every rank keeps all, and only gradients are averaged */
    shoal_reshard reshard;    /* default: always, but never for the root */
    int reshard_ranks;        /* with SHOAL_RESHARD_PARTLY */
    shoal_dtype param_dtype;  /* of full parameters, and of floating inputs; 0: as they are */
    shoal_dtype reduce_dtype; /* in which gradients are added up; 0: that of full parameters */
    shoal_dtype output_dtype; /* of floating outputs; 0: as they are */
    bool keeps_inputs;        /* inputs are not cast to param_dtype */
    int forward_prefetch;     /* of the root: units gathered ahead in forward; 0: 1; -1: none */
    int max_reduces; /* gradients of so many units on their way at once; 0: 1; the largest of all units counts */
    shoal_placement placement; /* NULL: dimension 0 */
    void *placement_context;
    shoal_tensor *const *ignored; /* parameters that stay as they are */
    size_t n_ignored;
} shoal_fully_shard_options;

/* Parameters keep names, order and dtype. Twice on one module is an error. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard(shoal_module *module,
                                                          const shoal_fully_shard_options *options);
/* Several modules as one unit: gathered when the first of them is called, given up when the last was. One that is inside
   another of them is part of that. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_list(shoal_module *const *modules, size_t n_modules,
                                                               const shoal_fully_shard_options *options);
SHOAL_API bool shoal_is_fully_sharded(const shoal_module *module);

/* Between steps, for a module that is fully sharded; `is_deep`: and for those inside ----------------------- */

/* False: backwards leave gradients of whole parameters where they are, for the next one to add to. The first backward that
   reduces takes them along, also those of modules that it does not use. A parameter can not be frozen while they wait.
   They add up: for the mean over k backwards, the program divides its losses by k, or set_divide_factor is k times the
   number of ranks. With another reduce_dtype they are added up in that. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_set_sync(shoal_module *module, bool is_on,
                                                                   bool is_deep);
/* False: replicas do not add up their gradients. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_set_all_reduce(shoal_module *module, bool is_on,
                                                                         bool is_deep);
/* Whether parameters are given up after forward, and gathered again for backward; or after backward. Where they stay, the
   next forward sees the values they had: for several backwards without an optimizer between them. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_set_reshard(shoal_module *module,
                                                                      bool after_forward, bool is_deep);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_set_reshard_after_backward(shoal_module *module,
                                                                                     bool is_on,
                                                                                     bool is_deep);
/* False: the parameters are not needed in backward. Of this module alone. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_set_unshard_in_backward(shoal_module *module,
                                                                                  bool is_on);
/* By what summed gradients are divided; 0: the number of ranks. Of this module alone. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_set_divide_factor(shoal_module *module,
                                                                            double factor);
/* Sum, then divide. Of this module alone. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_set_force_sum(shoal_module *module, bool is_on);
/* False: more backwards of this step will follow; nothing is waited for at the end of this one. Of the root. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_set_is_last_backward(shoal_module *module,
                                                                               bool is_last);
/* What to gather when this module has its parameters, instead of what the orders of calls say: modules under the same root.
   Copied. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_set_forward_prefetch(shoal_module *module,
                                                                               shoal_module *const *modules,
                                                                               size_t n_modules);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_set_backward_prefetch(shoal_module *module,
                                                                                shoal_module *const *modules,
                                                                                size_t n_modules);

/* Communication of the program's own (shoal/fsdp_comm.h). NULL: none. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_set_all_reduce_hook(shoal_module *module,
                                                                              shoal_all_reduce_hook hook,
                                                                              void *context, bool is_deep);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_set_custom_all_gather(
    shoal_module *module, const shoal_custom_all_gather *custom, bool is_deep);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_set_custom_reduce_scatter(
    shoal_module *module, const shoal_custom_reduce_scatter *custom, bool is_deep);
/*
 * True: parameters that need gradients but got none in a backward take part in the reduction with zeros, so that ranks
 * may differ in the parameters of a unit that they use. A unit that had no backward at all does so when the backward
 * ends, from the last of a walk to the root, so that ranks may differ in how far they walk back. Gathers are not made up
 * for: all ranks call the same modules, and units that they differ in keep their parameters (SHOAL_RESHARD_NEVER). What
 * has a gradient on no rank has one of zeros then. Default: false.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_set_reduce_unused(shoal_module *module, bool is_on,
                                                                            bool is_deep);

/* By hand -------------------------------------------------------------------------------------------------- */

/* Starts to gather; whoever needs the parameters waits, or shoal_fully_shard_wait does. Not for those inside. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_unshard(shoal_module *module);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_wait(shoal_module *module);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_reshard(shoal_module *module);

/* Collective: the 2-norm of the gradients of all shards under a root (not of parameters that were ignored, nor of what
   set_sync keeps), exact and the same for any number of ranks; scaled down to max_norm. norm_out may be NULL. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_clip_grad_norm(shoal_module *root, double max_norm,
                                                                         double *norm_out);
/* With another norm, and by value: as shoal_fsdp_clip_grad_p_norm and shoal_fsdp_clip_grad_value. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_clip_grad_p_norm(shoal_module *root, double power,
                                                                           double max_norm,
                                                                           bool must_be_finite,
                                                                           double *norm_out);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_clip_grad_value(shoal_module *root,
                                                                          double max_value);
/* Gradients that set_sync and set_all_reduce keep, by the path of the shard, and their reduction: as shoal_fsdp_get_pending
   and shoal_fsdp_synchronize. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_get_pending(shoal_module *root, const char *path,
                                                                      shoal_pending_gradient *pending_out);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_synchronize(shoal_module *root);
/*
 * No parameter under a root has a gradient any more, nor is there anything that backwards without reduction left.
 * Optimizers and shoal_set_grad see the gradients of shards only: what set_sync or set_all_reduce keeps is not cleared
 * by them, as in PyTorch, and goes into the next reduction.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_zero_grad(shoal_module *root);
/* After an error in the middle of a step: everything in flight and the step's gradients are given up, so that another
   step can begin. A group that has failed stays so, which is the error then. Of the root. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_reset(shoal_module *root);

/* Collective: a parameter as a whole, by the path of its shard, into the caller's memory. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_gather(shoal_module *root, const char *path,
                                                                 void *full);
/* Collective: the same on one rank of the group or mesh (row by row) alone; elsewhere `full` may be NULL. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_gather_to(shoal_module *root, const char *path,
                                                                    void *full, int rank);
/* From the whole, which every rank has. Between steps, like all that follow. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_load(shoal_module *root, const char *path,
                                                               const void *full);
/* From a slice: `length` indices from `offset` on along the dimension that is cut. This rank takes its part of them.
   Parameters that are gathered are given up, as by shoal_fully_shard_load: ranks whose part is empty call it too. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_load_slice(shoal_module *root, const char *path,
                                                                     int64_t offset, int64_t length,
                                                                     const void *slice);
/* Collective: from the whole on one rank of the group or mesh; on others `full` is not read. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_broadcast(shoal_module *root, const char *path,
                                                                    const void *full, int source);
/*
 * Collective: all parameters, sharded or not, and all buffers, from a module on one rank that has whole ones under the same
 * paths; on others `whole` is not looked at. One parameter after the other: no rank but the source ever has a whole one.
 * What does not fit is an error on all ranks, before anything is changed.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_broadcast_all(shoal_module *root,
                                                                        const shoal_module *whole,
                                                                        int source);
/* Where a shard lies in the whole: the dimension that is cut, first index and number of indices. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_place(shoal_module *root, const char *path,
                                                                int *dim_out, int64_t *offset_out,
                                                                int64_t *length_out);

SHOAL_END_DECLS

#endif
