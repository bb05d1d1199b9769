/* SPDX-License-Identifier: MIT */
/*
 * Fully sharded data parallelism for modules (FSDP). Every rank keeps a shard of each parameter and computes with its
 * own part of the batch. After shoal_fully_shard the parameters of a module are shards: shoal_module_parameters lists
 * them, an optimizer updates them, and they have the gradients. Calling the module gathers the whole parameters and
 * gives them up again. The backward pass gathers them once more, and reduces the gradients to their mean over the
 * ranks. The next unit is gathered and the last one is reduced while others compute.
 *
 *     shoal_fully_shard_options options = SHOAL_FULLY_SHARD_OPTIONS_INIT;
 *     options.group = group;
 *     for (int i = 0; i < n_layers; i++) status = shoal_fully_shard(layers[i], &options);     inner modules first
 *     status = shoal_fully_shard(model, &options);                                            what is left: the root
 *     ... make the optimizer over shoal_module_parameters(model, &n) ...
 *     loss = ... shoal_module_call_one(model, x) ...;
 *     status = shoal_backward(loss, NULL);
 *
 * Each call makes one unit: all parameters of the module that are in no inner unit, gathered and reduced together.
 * Shard inner modules first, and make the optimizer afterwards, because the parameters are other tensors then. The
 * first module that is called is the root, and all units inside it work together in one context; so call the outermost
 * module first. A module that shoal_ddp has wrapped keeps its parameters, and nothing inside it can be sharded.
 *
 * Where parameters are whole: inside calls of the module, and from shoal_fsdp_wait until they are given up. They can
 * only be read then; writing one is SHOAL_ERR_STATE. Between calls the module holds shards, also of units that stay
 * gathered for their backward pass, and shards may be written.
 *
 * Written shards: if a shard was written since its unit was gathered, on any rank, the next call gathers the unit
 * again. Writes are noticed if they are made through tensors (shoal_mutable_data, operations, loading), not through an
 * address that was asked for earlier. As without sharding, changing a parameter between a forward pass and its
 * backward pass is an error of that backward pass if it needs the old values.
 *
 * Evaluation: when a call without gradients ends, whole parameters are freed, whatever `reshard` says, unless a forward
 * pass that was recorded before still needs them for its backward pass. With ZeRO-1 and ZeRO-2 (`sharded` of the
 * options, shoal_sharded) whole parameters stay after training and evaluation, until a shard is written. Calls and bits
 * are the same.
 *
 * Parameters on the meta device (SHOAL_META) have shapes and no memory: only their shards are ever allocated. These
 * must get values before the first call, by writing or loading them, by shoal_nn_initialize (shoal_nn/random.h) or by
 * shoal_fully_shard_broadcast_all. Until the first call, shoal_module_set_parameter and shoal_module_apply may also
 * put another tensor of the shard's shape, with memory of its own, in all places of a shard: of another dtype, say. It
 * becomes the shard. Later that is SHOAL_ERR_STATE, and so is, at the next call of the module, a parameter that
 * requires a gradient and was added after sharding (also in a new child), or a shard that was put in another place.
 * Shards may be frozen and thawed between steps.
 *
 * What is gathered: shards in param_dtype or as stored, unless a parameter has an extension
 * (shoal_fsdp_set_gather_extension, shoal/fsdp_unit.h), which encodes what is sent, as int8 with scales for example.
 *
 * Hooks: shoal_on_gradient is refused on shards, whose gradients come from reductions; shoal_on_accumulated is called
 * when a gradient has been added to a shard's.
 *
 * Captured steps (shoal/compile.h) have the bits of eager ones. Settings of units are ops in the graph, or refused:
 *
 *     setting                            in a captured step
 *     SHOAL_RESHARD_PARTLY               each rank copies its part of the whole parameter after the forward pass, and
 *                                        the backward pass gathers from the neighbours
 *     reshard_after_backward(false)      one gather for all passes of the step; nothing stays from run to run
 *     unshard_in_backward(false)         no gather in the backward pass; if that reads parameters: SHOAL_ERR_STATE
 *     all_reduce(false)                  no all-reduce; pending gradients are given back and taken again, by compiled
 *                                        and by eager steps
 *     reduce_unused(true)                zeros are reduced where a parameter has no gradient
 *     shoal_on_accumulated               of compiled steps only, and no op: hooks run after each run, in the order in
 *                                        which gradients land. SHOAL_ERR_UNSUPPORTED if the step goes on with the
 *                                        shard or its gradient after that. If one fails, so does the run of that rank;
 *                                        the others, whose run has ended well, are told by the next
 *     set_all_reduce_hook,               SHOAL_ERR_UNSUPPORTED, with the names of unit and setting: they are functions
 *     set_custom_all_gather,             on plain memory that start work of their own. A plan does not know that work,
 *     set_custom_reduce_scatter          so ranks could not compare it, and passes could move other collectives of the
 *                                        same group across it
 *     set_gather_extension               SHOAL_ERR_UNSUPPORTED when its unit is gathered: it encodes and decodes plain
 *                                        memory in the place of a gather
 *
 * A rank whose settings differ is SHOAL_ERR_MISMATCH on all ranks: in a run that compiles before plans are compared, in
 * a later run by the first collective.
 *
 * Ranks: all ranks shard the same modules with the same options in the same order, and make the same calls. Names,
 * shapes, dtypes and options are compared by the first call; a difference is SHOAL_ERR_MISMATCH. Values must be equal
 * on all ranks before sharding, or be broadcast. shoal_fully_shard_context and shoal_fsdp_unshard make a module the
 * root if none is called yet, and are collective then.
 *
 * Several meshes: units of one model may have different meshes: experts over ranks of their own, a part with replicas
 * beside others without, a replicated unit beside sharded ones. The gradients of a unit are averaged over the ranks of
 * its own mesh; shoal_fsdp_set_divide_factor sets another divisor. The ranks of the model are those of all its meshes
 * together (or all_ranks of the options). They call the same modules in the same order, whatever mesh these are on,
 * and compare at the first call which unit is on which mesh: a difference is SHOAL_ERR_MISMATCH on all of them. Once
 * there is a root, calls on its parameters are collective over all ranks of the model. shoal_fsdp_clip_grad_norm
 * counts each shard once: of replicas the first, and each expert, since different ranks train different ones.
 *
 * Ownership: units and contexts belong to the module, and end with it. What was recorded keeps what its backward pass
 * needs: if a module is freed between forward and backward pass, its shards still get their gradients if somebody
 * holds them; modules inside it that are still held cannot be called any more. When the world is closed, shards can
 * still be read, but the module cannot be called.
 * Threads: one at a time for all modules under one root.
 * Errors: status and text. The call of the module (shoal/module.h) returns errors of a forward pass, and
 * shoal_backward errors of a backward pass. If one fails on some ranks only, the others get SHOAL_ERR_MISMATCH with the
 * text as soon as they need such a rank. After a backward pass that failed, shoal_fsdp_reset on the context
 * starts anew.
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

/* Returns the dimension along which a parameter is cut; a negative one counts from the end. `path` is from the module
   that is sharded. Unless it is the first dimension, the number of shards must divide its size. */
typedef int (*shoal_placement)(void *context, const char *path, const shoal_tensor *parameter);

typedef struct shoal_fully_shard_options {
    size_t struct_size; /* sizeof(shoal_fully_shard_options) */
    /* The ranks among which parameters are cut: set one of the two. A mesh has one dimension, or two with names:
       replicas, shards. */
    shoal_group *group;
    shoal_mesh *mesh;
    bool is_replicated;    /* with a group: every rank keeps everything, only gradients are averaged */
    shoal_reshard reshard; /* default: SHOAL_RESHARD_ALWAYS, for the root SHOAL_RESHARD_NEVER */
    int reshard_ranks;     /* with SHOAL_RESHARD_PARTLY: from 1 up; divides the number of shards */
    /* The dtype of whole parameters, to which floating inputs are cast, too; 0 leaves both as they are. */
    shoal_dtype param_dtype;
    shoal_dtype reduce_dtype; /* in which gradients are summed; 0 means the dtype of whole parameters */
    shoal_dtype output_dtype; /* floating outputs are cast to it; 0 leaves them as they are */
    bool keeps_inputs;        /* inputs are not cast to param_dtype */
    /* Of the root: how many units are gathered ahead in the forward pass; 0 means 1, and -1 means none. */
    int forward_prefetch;
    /* How many units may have their gradients reduced at the same time; 0 means 1. If units differ, the largest number
       holds for all. */
    int max_reduces;
    shoal_placement placement; /* NULL cuts every parameter along dimension 0 */
    void *placement_context;
    shoal_tensor *const *ignored; /* parameters that stay as they are: neither cut nor reduced */
    size_t n_ignored;
    /* What is cut among the ranks; 0 means parameters, gradients and state. Must be 0 if is_replicated is set. */
    shoal_sharded sharded;
    /* Of the root, if its units have several meshes: a group of all ranks of the model. NULL means the ranks of all
       meshes that this rank has. Set it if these are not all: if some units are on rows of ranks and the others on
       columns, say. */
    shoal_group *all_ranks;
    /* Where shards of parameters on the meta device are made; 0 is the CPU. Other parameters stay on their device; all
       of a root module are on one. */
    shoal_device device;
} shoal_fully_shard_options;
#define SHOAL_FULLY_SHARD_OPTIONS_INIT SHOAL_SIZED(shoal_fully_shard_options)

/*
 * Makes one unit of a module. Local, but all ranks make the same calls in the same order; errors count them ("sharded
 * as number 4 on this group"). Parameters keep their names, order and dtype. A call that fails changes nothing.
 *
 * SHOAL_ERR_INVALID: the options are wrong, the module has no forward function, or a parameter has no dimension.
 * SHOAL_ERR_STATE: the module is sharded already, is inside one that shoal_ddp has wrapped, or an outer module was
 * sharded before it. SHOAL_ERR_UNSUPPORTED: a parameter is not contiguous, or cannot be cut along its dimension.
 * Later, the first call of the root fails if a parameter is in two units (shard the modules that share it with
 * shoal_fully_shard_list).
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard(shoal_module *module,
                                                          const shoal_fully_shard_options *options);
/* Makes one unit of several modules. It is gathered when the first of them is called, and given up when the last one
   was. A module that is inside another of the list counts as part of that. Such a unit cannot be the root. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_list(shoal_module *const *modules, size_t n_modules,
                                                               const shoal_fully_shard_options *options);
/* Whether shoal_fully_shard was called for this very module. False for NULL. */
SHOAL_API bool shoal_is_fully_sharded(const shoal_module *module);
/* Whether a tensor is this rank's shard of a parameter: the parameter is cut among two or more ranks, so the tensor's
   gradient is a part, too, and other ranks have the rest. This does not depend on `sharded` of the options. False if
   the group, or the second dimension of the mesh, has one rank. A tensor that the program has put in the place of a
   shard counts as a shard from the first call of the module on. */
SHOAL_API bool shoal_is_shard(const shoal_tensor *tensor);
/* Whether a tensor was a parameter of a module, and shoal_fully_shard has put another one in its place: backward passes
   through the module give it no gradient any more. False for NULL. */
SHOAL_API bool shoal_is_replaced(const shoal_tensor *tensor);

/* Returns the unit of a module, for the calls of shoal/fsdp_unit.h. With is_deep it is a handle for settings, which
   stands for that unit and the units of all modules inside, as they are when it is used. NULL, with the reason in
   shoal_error_text, if the module is not fully sharded. */
SHOAL_API shoal_fsdp_unit *shoal_fully_shard_unit(shoal_module *module, bool is_deep);
/* Returns a parameter by its path from `module`, which is the sharded module or one around it. NULL, with the nearest
   names in shoal_error_text, if there is none that is sharded. */
SHOAL_API shoal_fsdp_param *shoal_fully_shard_param(shoal_module *module, const char *path);
/*
 * Finds the sharded parameter of an entry of a walk from `module` (shoal_module_walk), for walks over parameters some
 * of which are sharded. *param_out is NULL, without an error, if the parameter is not sharded. A tensor that was put
 * in a shard's place counts as that shard already before the first call, when shoal_fully_shard_param does not find
 * it.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fully_shard_find_param(shoal_module *module,
                                                                     const shoal_module_entry *entry,
                                                                     shoal_fsdp_param **param_out);
/* Gives the context of the root under which the module is, for the calls of shoal/fsdp_unit.h. If no module was called
   yet, it makes this module the root, and is collective. If the module is later called as a part of another one, that
   one becomes the root, and this context is gone. */
SHOAL_API SHOAL_SOMETIMES_COLLECTIVE SHOAL_MUST_CHECK shoal_status
shoal_fully_shard_context(shoal_module *module, shoal_fsdp **fsdp_out);

/*
 * Sets all parameters, sharded or not, and all buffers of a module from `whole`, a module on rank `root` of the group
 * or mesh that has whole ones under the same paths. Collective: `root` is compared. On other ranks `whole` is not
 * read, and may be NULL. Parameters are sent one after the other, so no other rank ever holds a whole one that is
 * sharded. A parameter or buffer that is missing or differs in shape or dtype is an error on all ranks, before
 * anything is changed. The two modules may be on different devices.
 */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status
shoal_fully_shard_broadcast_all(shoal_module *module, const shoal_module *whole, int root);
SHOAL_END_DECLS

#endif
