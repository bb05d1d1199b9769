/* SPDX-License-Identifier: MIT */
/*
 * Fully sharded data parallelism: what both ways to shard have in common. A program shards its parameters with its own
 * kernels (shoal/fsdp.h) or with modules (shoal/fully_shard.h). Either way they belong to units, which are gathered,
 * given up and reduced together, and the units to a context. The calls here change and look at units, parameters and
 * contexts, and take these handles:
 *
 *                 type                own kernels                   modules
 *     context     shoal_fsdp          shoal_fsdp_create             shoal_fully_shard_context(module, &fsdp)
 *     unit        shoal_fsdp_unit     shoal_fsdp_unit_of(f, 3)      shoal_fully_shard_unit(module, is_deep)
 *     parameter   shoal_fsdp_param    shoal_fsdp_param_of(f, id)    shoal_fully_shard_param(module, "layers.3.weight")
 *
 *     status = shoal_fsdp_set_sync(shoal_fsdp_unit_of(f, SHOAL_FSDP_ALL_UNITS), false);
 *     status = shoal_fsdp_gather(shoal_fully_shard_param(net, "layers.3.weight"), full, SHOAL_FSDP_ALL_RANKS);
 *
 * A step is what lies between two updates: forward passes, backward passes, and the reductions that these start.
 * "Between steps" below means: no unit that the call is about computes, and none of its gathers and reductions is in
 * flight. Elsewhere such a call is SHOAL_ERR_STATE, and changes nothing.
 *
 * Ranks: all ranks make the same settings, and the same collective calls in the same order. Settings are compared at
 * the first forward pass, later ones by the next gather or reduction that they change. A difference is
 * SHOAL_ERR_MISMATCH, with a text that names the unit and both sides.
 * Ownership: handles belong to the library. A handle from shoal/fsdp.h is valid until its context is freed. A handle
 * from a module, and the module's context, are valid until the module is freed. Using a handle later is undefined, or,
 * with SHOAL_DEBUG_HANDLES, SHOAL_ERR_STATE. A call that finds no such unit or parameter returns NULL, with the reason
 * in shoal_error_text; a call on NULL is then SHOAL_ERR_INVALID with that reason. So a handle can be passed on
 * unchecked.
 * Threads: one at a time for each context.
 * Errors: status and text. Once the world is closed, calls are SHOAL_ERR_STATE, except where it says otherwise.
 */
#ifndef SHOAL_FSDP_UNIT_H
#define SHOAL_FSDP_UNIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/api.h"
#include "shoal/dtype.h"
#include "shoal/fsdp_comm.h"
#include "shoal/status.h"
#include "shoal/tensor.h"

SHOAL_BEGIN_DECLS

typedef struct shoal_fsdp shoal_fsdp;
typedef struct shoal_fsdp_unit shoal_fsdp_unit;
typedef struct shoal_fsdp_param shoal_fsdp_param;

/* Instead of a unit's number: all units of the context. */
#define SHOAL_FSDP_ALL_UNITS (-1)
/* Instead of the rank that gets a result: every rank. */
#define SHOAL_FSDP_ALL_RANKS (-1)

/* Returns the handle of a unit by its number, 0, 1, 2, ... in the order of adding; with modules the root is 0.
   SHOAL_FSDP_ALL_UNITS gives a handle for settings, which stands for all units that exist when it is used. */
SHOAL_API shoal_fsdp_unit *shoal_fsdp_unit_of(shoal_fsdp *fsdp, int unit);

/*
 * What is sharded, that is, cut among the ranks: `sharded` in shoal_fsdp_options and shoal_fully_shard_options. It is
 * fixed when a unit is made, and the same on all ranks (SHOAL_ERR_MISMATCH at the first forward pass). With replicas,
 * the ranks are the ranks of the mesh's second dimension. An optimizer sees the same shards and gradients in all three
 * cases, and the bits are the same. They differ in what every rank keeps between passes, and in how often a unit is
 * gathered:
 *
 *                                state       gradients   parameters                    gathers of a unit in a step
 *     SHOAL_SHARDED_PARAMETERS   of shards   of shards   whole while it computes                   2
 *     SHOAL_SHARDED_GRADIENTS    of shards   of shards   whole                                     1
 *     SHOAL_SHARDED_STATE        of shards   whole       whole                                     1
 *
 * Whole parameters that stay are gathered again by the first forward pass, of training or evaluation, after shards
 * were written. It finds that out itself (shoal/fsdp.h and shoal/fully_shard.h say what counts as written), and
 * gathers one unit ahead. A forward pass for which nothing was written gathers nothing, and neither does a backward
 * pass. shoal_fsdp_reshard gives up what stays; the next forward pass gathers it.
 *
 * With SHOAL_SHARDED_STATE each unit has memory of its own for its whole gradients. Its first backward pass makes it,
 * and it stays (`buffers` of shoal_fsdp_memory). A backward pass with shoal_fsdp_set_sync off adds to these gradients;
 * one with it on reduces them into the gradients of the shards, and leaves them empty. Otherwise units take turns in
 * using such memory. (With modules, gradients of parameters that are cut along another dimension than the first are on
 * tensors until they are reduced.)
 */
typedef enum shoal_sharded {
    SHOAL_SHARDED_PARAMETERS = 0, /* and gradients and state: FSDP, or ZeRO-3 */
    SHOAL_SHARDED_GRADIENTS = 1,  /* and state: ZeRO-2 */
    SHOAL_SHARDED_STATE = 2       /* ZeRO-1 */
} shoal_sharded;

/* Settings of a unit, or of all units that the handle stands for -------------------------------------------- */

/* What happens to a unit's whole parameters between its forward pass and its backward pass. */
typedef enum shoal_reshard {
    /* As ALWAYS, but as NEVER for the root of modules, and where whole parameters stay (shoal_sharded). */
    SHOAL_RESHARD_DEFAULT = 0,
    SHOAL_RESHARD_ALWAYS = 1, /* they are given up, and gathered again for the backward pass */
    /* They stay until the backward pass is over: more memory, one gather less. */
    SHOAL_RESHARD_NEVER = 2,
    /* Every reshard_ranks neighbours keep one copy among them, in param_dtype; the backward pass gathers from it. */
    SHOAL_RESHARD_PARTLY = 3
} shoal_reshard;

/*
 * Sets what happens to whole parameters after the forward pass. Default: what the options said. Between steps; with
 * modules at any time. SHOAL_ERR_STATE: SHOAL_RESHARD_PARTLY is new after the first forward pass. SHOAL_ERR_INVALID:
 * SHOAL_RESHARD_PARTLY with a reshard_ranks that does not divide the number of shards; or _ALWAYS or _PARTLY where
 * whole parameters stay (shoal_sharded).
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_reshard(shoal_fsdp_unit *unit, shoal_reshard reshard);
/*
 * Sets whether whole parameters are given up after the backward pass. With false they stay, for further backward passes
 * with the same values, and the next forward pass gathers them only if a shard was written. Default: true, but false
 * where whole parameters stay (shoal_sharded); to set true is SHOAL_ERR_INVALID there. Between steps; with modules at
 * any time.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_reshard_after_backward(shoal_fsdp_unit *unit,
                                                                              bool is_on);
/* Sets whether parameters are gathered for the backward pass. Set false if the backward pass of the unit does not read
   them. Default: true. Between steps; with modules at any time. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_unshard_in_backward(shoal_fsdp_unit *unit, bool is_on);
/*
 * Sets whether backward passes reduce gradients. With false they leave the gradients of whole parameters pending on
 * each rank, and the next backward passes add to them. The first backward pass with true reduces them, even in units
 * that it does not reach. Use it to accumulate gradients over several backward passes. Gradients are summed: to
 * average k passes, divide the losses by k, or set the divide factor to k times the number of ranks. If reduce_dtype
 * differs from param_dtype, they are summed in reduce_dtype.
 *
 * Also sets shoal_fsdp_set_all_reduce to the same value. Default: true. At any time. With modules, freezing a
 * parameter while its gradient is pending is SHOAL_ERR_STATE in the next call of the module.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_sync(shoal_fsdp_unit *unit, bool is_on);
/* Sets whether gradients are reduced over the replicas of a mesh, after they were reduced over the shards. With false
   each replica keeps its own, pending, and adds the next ones; the first reduction with true takes them along. Call it
   after shoal_fsdp_set_sync, which sets it, too. Default: true. At any time. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_all_reduce(shoal_fsdp_unit *unit, bool is_on);
/*
 * Sets the number that the sum of the gradients is divided by: finite, 0 or more. 0, the default, stands for the number
 * of ranks. Call between steps. When the division happens depends on the dtype:
 *
 *     f32, bf16   after the sum if the factor is 0 or the number of shards, or if force_sum is set; otherwise every
 *                 rank multiplies its gradients by 1 / factor before they are summed
 *     f16, f64    partly before the sum, by a power of two, and by the rest after it
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_divide_factor(shoal_fsdp_unit *unit, double factor);
/* Sets whether gradients are summed first, and the sum is divided by the factor; f16 and f64 ignore it. Default: false.
   Between steps; with modules at any time. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_force_sum(shoal_fsdp_unit *unit, bool is_on);
/*
 * Allows ranks to differ in which parameters get gradients. With true a parameter that gets none in a backward pass
 * takes part in the reduction with zeros. (With shoal/fsdp.h all parameters of a unit that had a backward pass take
 * part anyway.) A unit that had no backward pass takes part at the end, from the last unit to the first, so ranks may
 * differ in how far they go back. A parameter that has a gradient on no rank then has a gradient of zeros.
 *
 * Every rank still runs the forward pass of every unit, and units whose backward passes only some ranks make need
 * SHOAL_RESHARD_NEVER, because these gathers are not made up for. Default: false. Between steps.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_reduce_unused(shoal_fsdp_unit *unit, bool is_on);

/* Settings of one unit --------------------------------------------------------------------------------------- */

/* Sets the name of a unit in error texts and traces. Default: "unit 3". The name is copied. SHOAL_ERR_UNSUPPORTED for
   units of modules, which are named after their modules. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_unit_name(shoal_fsdp_unit *unit, const char *name);
/*
 * Set which units are gathered ahead when this unit has its parameters, in the forward or the backward pass. Without a
 * list, the order of the forward passes before decides. The list is copied; n_units 0 removes it. Takes effect at
 * once; all ranks set it at the same place. SHOAL_ERR_INVALID: a unit of another context (with modules, before the
 * root is known, an error of the first call).
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_forward_prefetch(shoal_fsdp_unit *unit,
                                                                        shoal_fsdp_unit *const *units,
                                                                        size_t n_units);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_backward_prefetch(shoal_fsdp_unit *unit,
                                                                         shoal_fsdp_unit *const *units,
                                                                         size_t n_units);

/* Callbacks, for all units that the handle stands for (shoal/fsdp_comm.h) ------------------------------------- */

/* Sets a function that sees reduced gradients before they are added to the gradients of the shards. NULL, the default,
   sets none. Between steps. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_all_reduce_hook(shoal_fsdp_unit *unit,
                                                                       shoal_all_reduce_hook hook,
                                                                       void *context);
/* Set an object that gathers parameters, or reduces gradients over the shards, instead of the library. The struct is
   copied. With NULL, the default, the library does it. Between steps. SHOAL_ERR_INVALID: `call` is NULL, or one of
   allocate and release. */
SHOAL_API SHOAL_MUST_CHECK shoal_status
shoal_fsdp_set_custom_all_gather(shoal_fsdp_unit *unit, const shoal_custom_all_gather *custom);
SHOAL_API SHOAL_MUST_CHECK shoal_status
shoal_fsdp_set_custom_reduce_scatter(shoal_fsdp_unit *unit, const shoal_custom_reduce_scatter *custom);

/* This rank's part of a parameter, for an optimizer. */
typedef struct shoal_fsdp_shard {
    size_t struct_size; /* sizeof(shoal_fsdp_shard); in a hook: how much the library has filled in */
    void *data;         /* contiguous, in the dtype of the parameter */
    void *grad;         /* its gradient, of the same dtype and count; NULL if it has none */
    size_t count;       /* elements; may be 0 */
    int64_t offset;     /* its first index along the dimension that is cut */
    int64_t length;     /* the number of its indices along that dimension */
} shoal_fsdp_shard;
#define SHOAL_FSDP_SHARD_INIT SHOAL_SIZED(shoal_fsdp_shard)

/*
 * Called for each parameter of the unit when its reduced gradient has been added to the gradient of the shard, so an
 * optimizer can run during the backward pass. Parameters come in the order in which they were added. It is called by
 * whatever call finds the reduction ended: of a later unit, end_backward or synchronize; not for gradients that stay
 * pending.
 *
 * `shard` is what shoal_fsdp_update_shard gives, and is valid during the call. The hook may write the values of the
 * shard, which the next gather sees, and the gradient. If it sets shard->grad to NULL, the gradient has been used: its
 * memory is freed, and the next gradient starts from nothing. So no rank needs memory for the gradients of all units.
 * What shoal/fsdp_comm.h says about callbacks holds here, too.
 */
typedef shoal_status (*shoal_fsdp_accumulated_hook)(void *context, int id, shoal_fsdp_shard *shard);
/* Sets such a hook. NULL, the default, sets none. Between steps. SHOAL_ERR_UNSUPPORTED for modules: use
   shoal_on_accumulated, which works in compiled steps, too. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_accumulated_hook(shoal_fsdp_unit *unit,
                                                                        shoal_fsdp_accumulated_hook hook,
                                                                        void *context);

/* A unit, gathered by hand ------------------------------------------------------------------------------------ */

/* Starts to gather a unit by hand. Collective. Whoever needs the parameters then waits for them: a forward pass, or
   shoal_fsdp_wait. Nothing happens if the unit is gathered already, even if shards were written since; give it up
   first (shoal_fsdp_reshard). */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_fsdp_unshard(shoal_fsdp_unit *unit);
/* Waits until a unit is gathered. Its whole parameters can then be read (shoal_fsdp_full_param, or the parameters of
   the module), until they are given up. SHOAL_ERR_STATE: the unit is not gathered, and no gather is in flight. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_wait(shoal_fsdp_unit *unit);
/* Gives up the whole parameters of a unit, whoever gathered them; waits for a gather in flight. All ranks call it at
   the same place. SHOAL_ERR_STATE if there is something to give up and a step is being captured. */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_fsdp_reshard(shoal_fsdp_unit *unit);

/* Parameters -------------------------------------------------------------------------------------------------- */

/* Returns the name of a parameter, or its path in the tree of modules. "" for NULL. Also when the world is closed. */
SHOAL_API const char *shoal_fsdp_param_name(const shoal_fsdp_param *param);

/* How a parameter is cut, and which part of it this rank has. Along `dim` each of the n_shards parts has
   ceil(shape[dim] / n_shards) indices, except the last ones, which may be shorter or empty. */
typedef struct shoal_shard_layout {
    size_t struct_size; /* sizeof(shoal_shard_layout), set by the caller */
    int unit;           /* the number of its unit; -1 for a parameter of a module */
    shoal_dtype dtype;  /* of the shard */
    int n_dims;
    int dim;                             /* the dimension that is cut */
    int64_t shape[SHOAL_MAX_DIMS];       /* of the whole parameter; n_dims numbers */
    int64_t shard_shape[SHOAL_MAX_DIMS]; /* of this rank's part: the same, except `length` at `dim` */
    int64_t offset;                      /* first index of the part along `dim` */
    int64_t length;                      /* number of its indices along `dim`; may be 0 */
    size_t count;                        /* elements of the whole parameter */
    size_t shard_count;                  /* elements of this rank's part */
    int n_shards;                        /* into how many parts it is cut */
    int shard;                           /* which of them this rank has */
    bool needs_values; /* it was on the meta device, and this rank's part was not written yet */
    /* In which it is gathered, and which whole parameters have: param_dtype of the unit, or the dtype of the shard.
       With an extension, which sends buffers of other dtypes, that of the whole parameter alone. */
    shoal_dtype gathered_dtype;
    /* A number for the ranks of the unit's mesh, the same on each of them. Ranks with another number have a parameter
       of their own: of another expert, say. */
    uint64_t owners;
    shoal_device device; /* where the shard is */
} shoal_shard_layout;
#define SHOAL_SHARD_LAYOUT_INIT SHOAL_SIZED(shoal_shard_layout)

/* Tells how a parameter is cut. Local, and also when the world is closed. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_get_layout(const shoal_fsdp_param *param,
                                                              shoal_shard_layout *layout_out);

/*
 * Sets what is gathered of a parameter, and how it becomes the whole parameter: shoal/fsdp_comm.h. The struct and what
 * it points to are copied. NULL removes the extension. Local; all ranks set the same one before the first forward pass,
 * when they compare what they declare: its name, is_by_rows, buffers and metadata. It is not possible in a captured
 * step, and not used where the unit was kept partly (SHOAL_RESHARD_PARTLY): neighbours gather decoded elements.
 *
 *     const shoal_gather_buffer buffers[] = {{SHOAL_I8, width}, {SHOAL_F32, 1}};
 *     shoal_gather_extension int8 = {sizeof int8, .name = "int8 rows", .is_by_rows = true, .n_buffers = 2,
 *                                    .buffers = buffers, .encode = encode, .decode = decode};
 *     status = shoal_fsdp_set_gather_extension(shoal_fully_shard_param(module, "weight"), &int8);
 *
 * If encode or decode fails on one rank, the step fails on all of them, with its text. If that is a decode of a gather
 * by windows, the context has failed for good; otherwise shoal_fsdp_reset ends the step.
 *
 * SHOAL_ERR_INVALID: a function, the name or a buffer is missing, or has no size. SHOAL_ERR_UNSUPPORTED: the parameter
 * is cut along another dimension than the first. SHOAL_ERR_STATE: the unit had its first forward pass.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status
shoal_fsdp_set_gather_extension(shoal_fsdp_param *param, const shoal_gather_extension *extension);

/*
 * Sets this rank's part of a parameter from the whole one. Local: every rank calls it with the same values; a rank
 * that does not keeps its old part. To load from one rank alone, use shoal_fsdp_broadcast. `full` is contiguous, in
 * the dtype of the parameter. Whole parameters of the unit that are gathered are given up.
 *
 * Call this, and the next two functions, between steps. With modules that is not checked. With shoal/fsdp.h the call
 * is SHOAL_ERR_STATE while gradients of the unit are pending. If a forward pass was made before the call and its
 * backward pass comes after it, that backward pass is SHOAL_ERR_STATE, because the values have changed (with modules:
 * only if it needs these values).
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_load(shoal_fsdp_param *param, const void *full);
/*
 * Sets this rank's part from a slice of the whole parameter: `length` indices from `offset` on along the dimension
 * that is cut, contiguous. The rank takes what belongs to its part, so the slice may be exactly that part
 * (shoal_fsdp_get_layout), or the next piece of a file that is read once. Local. Ranks whose part is empty call it,
 * too. SHOAL_ERR_INVALID: the slice is not within the parameter.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_load_slice(shoal_fsdp_param *param, int64_t offset,
                                                              int64_t length, const void *slice);
/* Sets the parts of all ranks from the whole parameter of one rank. Collective: the parameter and `root` are compared.
   root is a rank of the group, or of the mesh, counted row by row. `full` is read on the root only, and may be NULL on
   other ranks. */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_fsdp_broadcast(shoal_fsdp_param *param,
                                                                              const void *full, int root);
/* Gives the whole parameter, in the dtype of the shards, to every rank (SHOAL_FSDP_ALL_RANKS), or to one rank of the
   group or mesh. Collective: the parameter and `root` are compared. `full` is the caller's memory; on ranks that get
   nothing it may be NULL. */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_fsdp_gather(shoal_fsdp_param *param,
                                                                           void *full, int root);

/*
 * The next three calls are for arrays that are cut like a parameter: the moments of an optimizer, a master copy, or
 * the gradient of the shard. `shard` is this rank's part in the program's own memory (of a tensor: shoal_data,
 * shoal_mutable_data), contiguous, of any dtype, with as many elements as the parameter's shard (shard_count of
 * shoal_shard_layout), in its order; it may be NULL if that is 0. `full` is an array of the whole parameter's shape.
 * The two must not overlap.
 *
 *     status = shoal_fsdp_gather_array(param, SHOAL_F32, moments, whole, 0);        rank 0 writes `whole` to a file
 *     status = shoal_fsdp_broadcast_array(param, SHOAL_F32, whole, moments, 0);     rank 0 has read `whole` from one
 *
 * They may be called at any time, also inside a step; ranks make the collective ones at the same place, and compare
 * parameter, dtype and root. With replicas, each replica gathers its own parts; broadcasts reach all ranks.
 */
/* Gives the whole array to every rank, or to one, as shoal_fsdp_gather does. Collective. */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_fsdp_gather_array(shoal_fsdp_param *param,
                                                                                 shoal_dtype dtype,
                                                                                 const void *shard,
                                                                                 void *full, int root);
/* Sets this rank's part from a whole array that it has. Local. SHOAL_ERR_INVALID: `shard` holds the values of the
   parameter itself, for which there is shoal_fsdp_load. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_load_array(shoal_fsdp_param *param, shoal_dtype dtype,
                                                              const void *full, void *shard);
/* Sets the parts of all ranks from the whole array of one rank; `full` is read there only. Collective.
   SHOAL_ERR_INVALID: `shard` holds the values of the parameter itself, for which there is shoal_fsdp_broadcast. */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_fsdp_broadcast_array(shoal_fsdp_param *param,
                                                                                    shoal_dtype dtype,
                                                                                    const void *full,
                                                                                    void *shard, int root);

/* Pending gradients of one parameter on this rank: backward passes did not reduce them, because of shoal_fsdp_set_sync
   or shoal_fsdp_set_all_reduce. They are on the shard's device. */
typedef struct shoal_pending_gradient {
    size_t struct_size; /* sizeof(shoal_pending_gradient) */
    void *full;         /* of the whole parameter, not reduced at all; NULL if there is none */
    shoal_dtype full_dtype;
    size_t full_count; /* elements */
    /* If it is 1, `full` lies as the parameter does. Otherwise it is cut into n_blocks parts along the dimension that
       is cut, which lie one after the other. */
    int n_blocks;
    /* Of this rank's shard, reduced over the shards but not over the replicas; NULL if there is none. */
    void *partial;
    shoal_dtype partial_dtype;
    size_t partial_count;
} shoal_pending_gradient;
#define SHOAL_PENDING_GRADIENT_INIT SHOAL_SIZED(shoal_pending_gradient)

/* Tells where the pending gradients of a parameter are. Between backward passes. The memory belongs to the library. It
   may be changed, and is reduced with the changes; it is valid until the next backward pass, synchronize, zero_grad or
   reset. Local. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_get_pending(shoal_fsdp_param *param,
                                                               shoal_pending_gradient *pending_out);

/* The context ------------------------------------------------------------------------------------------------- */

/* Says whether the next backward passes are the last of this step. With false their end does not wait for reductions,
   which stay in flight while further backward passes follow. Set true before the last one; only then gradients can be
   read. Default: true. Ranks compare it in the backward pass. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_is_last_backward(shoal_fsdp *fsdp, bool is_last);

/* Reduces all pending gradients into the gradients of the shards, whatever set_sync and set_all_reduce say.
   Collective. Does nothing where none are pending. SHOAL_ERR_STATE: inside a step. */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_fsdp_synchronize(shoal_fsdp *fsdp);

/*
 * Removes the gradients of the shards, and pending ones. Optimizers and shoal_set_grad only remove gradients of
 * shards: pending ones would go into the next reduction. Local, but all ranks call it at the same place.
 *
 * With shoal/fsdp.h: if only some ranks have called it, the next reduction is SHOAL_ERR_MISMATCH. During a backward
 * pass it removes the gradients of shards only, and reductions in flight still add theirs. Also when the world is
 * closed. With modules: ranks do not compare it, because a program may also remove or replace gradients itself.
 * Reductions in flight are waited for. During a backward pass, and after one that failed, it is SHOAL_ERR_STATE.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_zero_grad(shoal_fsdp *fsdp);

/*
 * Clips the gradients of all shards by their common norm, and gives the norm before clipping. Collective: the
 * arguments are compared. If max_norm / (norm + 1e-6) is below 1, gradients are multiplied by it, as in PyTorch.
 * Gradients of ignored parameters, and pending ones, do not count. norm_out may be NULL.
 *
 * The norm is the power-th root of the sum of |g|^power, or the largest |g| if power is INFINITY. It is the same
 * number for any number of ranks: exact up to one rounding for 1, 2 and INFINITY; for others each power is rounded to
 * f64 first.
 *
 * SHOAL_ERR_INVALID: max_norm is negative, or power is not above 0. SHOAL_ERR_STATE: inside a backward pass, while
 * reductions are in flight, or, with must_be_finite, on all ranks if the norm is infinite or NaN. Gradients are then
 * left alone.
 */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_fsdp_clip_grad_norm(
    shoal_fsdp *fsdp, double max_norm, double power, bool must_be_finite, double *norm_out);
/* Clips every gradient of the shards to the range from -max_value to max_value, which is 0 or more; NaN stays.
   Collective: max_value is compared. */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_fsdp_clip_grad_value(shoal_fsdp *fsdp,
                                                                                    double max_value);

/* Ends a step that has failed: gives up gathers and reductions in flight, whole parameters, and pending gradients, so
   that another step can begin. Gradients that were in the shards stay (shoal_fsdp_zero_grad removes them). Call it on
   all ranks. If a group has failed it stays failed, and that is the error that this call returns. SHOAL_ERR_STATE in a
   captured step that has called the modules: its end does the same. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_reset(shoal_fsdp *fsdp);

/* Memory ------------------------------------------------------------------------------------------------------- */

/* Amounts of memory, in bytes. What the system adds (whole pages, a page of flags for each window) is not counted. */
typedef struct shoal_fsdp_memory_amounts {
    /* This rank's part of every parameter, with padding. */
    size_t shards;
    /* Gradients of shards, gradients that cannot be written where they are reduced, and gradients that wait to be
       reduced over the replicas. */
    size_t gradients;
    /* Whole parameters in windows, which exist once per host: of each window its bytes divided by the number of ranks
       on this host that share it. */
    size_t windows;
    /* Memory in which gradients are reduced; with shoal_fsdp_create_replicated also the gradients themselves, with
       SHOAL_SHARDED_STATE also the whole gradients of all units. */
    size_t buffers;
    /* What SHOAL_RESHARD_PARTLY keeps, whole parameters that are not in windows, memory for hooks and custom
       collectives. */
    size_t other;
    /* All of it. In a peak: the most at one time, which may be less than the sum of the other peaks. */
    size_t total;
} shoal_fsdp_memory_amounts;

typedef struct shoal_fsdp_memory_report {
    size_t struct_size;                  /* sizeof(shoal_fsdp_memory_report), set by the caller */
    int n_ranks;                         /* of the context: shards times replicas */
    shoal_fsdp_memory_amounts rank;      /* what this rank holds now */
    shoal_fsdp_memory_amounts rank_peak; /* the most of each since the context was made */
    /* `rank` and `rank_peak` times the number of the context's ranks that are on this host. With several replicas each
       must have as many ranks on this host as this rank's, otherwise the amounts are estimates. */
    shoal_fsdp_memory_amounts host;
    shoal_fsdp_memory_amounts host_peak;
} shoal_fsdp_memory_report;

#define SHOAL_FSDP_MEMORY_REPORT_INIT SHOAL_SIZED(shoal_fsdp_memory_report)

/* Tells how much memory the context holds. The program's own memory (activations, the state of an optimizer) is not in
   it. Local, at any time, also when the world is closed. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_memory(const shoal_fsdp *fsdp,
                                                          shoal_fsdp_memory_report *report_out);
/* Writes the report as a table in units of 10^6 bytes, cut to fit into `bytes` with a zero at the end. Returns the
   number of characters of the whole table, without that zero; 0 if report is NULL. `text` may be NULL if bytes is 0. */
SHOAL_API size_t shoal_fsdp_memory_text(const shoal_fsdp_memory_report *report, char *text, size_t bytes);

SHOAL_END_DECLS

#endif
