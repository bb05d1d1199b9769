/* SPDX-License-Identifier: MIT */
/*
 * Fully sharded data parallelism for modules. After shoal_fully_shard a module's parameters are shards: what
 * shoal_module_parameters lists, what an optimizer updates, what has gradients after backward. Calling the module
 * gathers them and gives them up again; backward gathers once more and reduces the gradients to their mean over
 * the ranks. Gathering the next unit and reducing the last one go on while others compute.
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
 * is the root, and all units inside it work together; a module of another root must not be called before. What
 * shoal_ddp has wrapped keeps its parameters, and nothing inside of it can be sharded any more.
 *
 * Parameters may be on the meta device (SHOAL_META), with shapes and no memory: only shards are ever made then, and
 * must get values before the first call, by writing, loading, shoal_nn_initialize (shoal_nn/random.h) or
 * shoal_fully_shard_broadcast_all.
 *
 * Until the first call a tensor of a shard's shape, with memory of its own, may be put in its place: of another dtype
 * (shoal_module_apply), or made after sharding without values. It is the shard then.
 *
 * A forward without gradients (an evaluation) gives up everything at its end that no recorded forward needs for its
 * backward, whatever `reshard` says, but not where parameters are not sharded (shoal_sharded): places hold shards then,
 * and the next call sees what was written to them.
 *
 * Between calls the module tree holds shards, also of units that stay gathered for their backward: lists of parameters
 * show them, and they may be written. Inside calls it holds whole parameters, and so it does from shoal_fsdp_wait
 * until they are given up. Whole parameters can only be read: to write one is SHOAL_ERR_STATE.
 *
 * ZeRO-1 and ZeRO-2 (`sharded` of the options, shoal_sharded): the same calls and the same bits, but a unit stays
 * gathered after its backward and after an evaluation. The next call gathers it again if a shard was written since, as
 * an optimizer does in its step; nobody has to ask for that.
 *
 * If a shard was written since its unit was gathered, on any rank, the next call gathers it again; only changes through
 * tensors are noticed (shoal_mutable_data, operations, loading), not those through an address that was asked for
 * before. As with parameters that are not sharded, changing one between a forward and its backward is an error of that
 * backward if it needs the values that were there. Gradient hooks on shards are refused (shoal_on_gradient): their
 * gradients come from reductions. shoal_on_accumulated is called when one has arrived.
 *
 * Ranks: all ranks shard alike and call alike. Parameters must have the same values everywhere before (or be
 * broadcast). shoal_fully_shard_context and shoal_fsdp_unshard make a module the root that has not been called yet:
 * before the first call all ranks make them together.
 * Ownership: what is made here belongs to the module, and ends with it. What was recorded keeps what its backward
 * needs: a module may be freed between forward and backward, and the shards, if somebody has them, still get their
 * gradients. Modules inside that others hold cannot be called any more then. Once the world is closed the shards can
 * still be read, but the module cannot be called.
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
#include "shoal/fsdp_comm.h"
#include "shoal/fsdp_unit.h"
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
    shoal_sharded
        sharded; /* what is cut among the ranks; 0: parameters, gradients and state. Not if is_replicated */
} shoal_fully_shard_options;
#define SHOAL_FULLY_SHARD_OPTIONS_INIT SHOAL_SIZED(shoal_fully_shard_options)

/* Parameters keep names, order and dtype. Twice on one module is an error. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard(shoal_module *module,
                                                          const shoal_fully_shard_options *options);
/* Several modules as one unit: gathered when the first of them is called, given up when the last was. One that is
   inside another of them is part of that. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_list(shoal_module *const *modules, size_t n_modules,
                                                               const shoal_fully_shard_options *options);
SHOAL_API bool shoal_is_fully_sharded(const shoal_module *module);
/*
 * Whether a tensor is this rank's part of a parameter that is cut among two or more ranks, whatever `sharded` of the
 * options is: its gradient is a part, too, and other ranks have the rest. False where the group, or the second
 * dimension of the mesh, has one rank, and for a tensor that was put in a shard's place until the first forward pass.
 */
SHOAL_API bool shoal_is_shard(const shoal_tensor *tensor);

/*
 * What calls of shoal/fsdp_unit.h take. The unit of a module that is fully sharded; `is_deep`: a handle for settings,
 * which stands for that unit and for those of all modules inside that are fully sharded when it is used.
 */
SHOAL_API shoal_fsdp_unit *shoal_fully_shard_unit(shoal_module *module, bool is_deep);
/* A parameter by the path of its shard from the module, which may be the sharded one or one around it. */
SHOAL_API shoal_fsdp_param *shoal_fully_shard_param(shoal_module *module, const char *path);
/*
 * For walks over parameters that may be sharded or not. `entry` is a parameter that a walk from `module` has come to.
 * *param_out is NULL, without an error, where it is not sharded. A tensor that was put in a shard's place is that
 * shard, also before the first call, when shoal_fully_shard_param does not find it.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_find_param(shoal_module *module,
                                                                     const shoal_module_entry *entry,
                                                                     shoal_fsdp_param **param_out);
/*
 * The context that all units under one root share, of any of their modules. Before the first forward the module becomes
 * the root, which is collective. Were it then called as a part of another one, that is the root, and this context is
 * gone.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_context(shoal_module *module,
                                                                  shoal_fsdp **fsdp_out);

/*
 * Collective: all parameters, sharded or not, and all buffers, from a module on one rank that has whole ones under the
 * same paths; on others `whole` is not looked at. One parameter after the other: no rank but the root ever has a whole
 * one. What does not fit is an error on all ranks, before anything is changed.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_broadcast_all(shoal_module *module,
                                                                        const shoal_module *whole, int root);
SHOAL_END_DECLS

#endif
