/* SPDX-License-Identifier: MIT */
/*
 * Fully sharded data parallelism: what both ways in share. A program shards with its own kernels (shoal/fsdp.h) or with
 * modules (shoal/fully_shard.h); units, their parameters and the context around them are the same things then, and the
 * calls on them are these.
 *
 *     context     shoal_fsdp          shoal_fsdp_create             shoal_fully_shard_context(module, &fsdp)
 *     unit        shoal_fsdp_unit     shoal_fsdp_unit_of(f, 3)      shoal_fully_shard_unit(module, is_deep)
 *     parameter   shoal_fsdp_param    shoal_fsdp_param_of(f, id)    shoal_fully_shard_param(module, "layers.3.weight")
 *
 *     shoal_fsdp_set_sync(shoal_fsdp_unit_of(f, SHOAL_FSDP_ALL_UNITS), false);
 *     shoal_fsdp_gather(shoal_fully_shard_param(net, "layers.3.weight"), full, SHOAL_FSDP_ALL_RANKS);
 *
 * Ranks: all ranks make the same settings and the same collective calls in the same order; what differs is an error
 * that names the unit.
 * Ownership: handles of units and parameters belong to the library. Those of shoal/fsdp.h end with their context, those
 * of modules with their module; so does the context of a module. Using one that has ended is undefined, or, with
 * SHOAL_DEBUG_HANDLES, SHOAL_ERR_STATE. Calls that give a handle give NULL if there is no such thing, with the reason
 * in shoal_error_text; a call on NULL is SHOAL_ERR_INVALID, with that reason.
 * Threads: one at a time for each context.
 * Errors: status and text.
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

/* In place of a unit's number: all units that there are. */
#define SHOAL_FSDP_ALL_UNITS (-1)
/* In place of the rank that gets a result: every rank. */
#define SHOAL_FSDP_ALL_RANKS (-1)

/* A unit by its number, in the order in which units were added. SHOAL_FSDP_ALL_UNITS: a handle for settings, which
   stands for all units that there are when it is used. */
SHOAL_API shoal_fsdp_unit *shoal_fsdp_unit_of(shoal_fsdp *fsdp, int unit);

/*
 * What is cut among the ranks: `sharded` in shoal_fsdp_options and shoal_fully_shard_options. It is set when the unit
 * is made, and all ranks set it alike (SHOAL_ERR_MISMATCH at the first forward pass). With replicas it is about the
 * ranks of the second dimension. Whatever it is, parameters are cut by the same rule, an optimizer sees the same shards
 * and their gradients, and the bits are the same. It says what every rank keeps of the optimizer's state, of gradients
 * and of parameters:
 *
 *                                state       gradients   parameters                    gathers of a unit in a step
 *     SHOAL_SHARDED_PARAMETERS   of shards   of shards   whole while it computes                   2
 *     SHOAL_SHARDED_GRADIENTS    of shards   of shards   whole                                     1
 *     SHOAL_SHARDED_STATE        of shards   whole       whole                                     1
 *
 * Whole parameters that stay are in memory that the ranks of a host share, once per host. They are gathered again after
 * the optimizer's step, by the next forward pass (of training or evaluation), which finds that shards were written: no
 * call is needed for it, and the gather of a unit goes on while the one before computes. A forward pass for which
 * nothing was written gathers nothing, and a backward pass never does. What counts as written is said in
 * shoal/fully_shard.h (tensors) and shoal/fsdp.h (addresses). shoal_fsdp_reshard gives up what stays, and the next
 * forward pass gathers it.
 *
 * With SHOAL_SHARDED_STATE each unit also has memory of its own for its whole gradients, which its first backward pass
 * makes and which stays (`buffers` of shoal_fsdp_memory). A backward pass with shoal_fsdp_set_sync off adds to them,
 * one with it on reduces them into the gradients of the shards, after which they are empty. With the other two, units
 * take such memory in turns. (Of modules, gradients of parameters that are cut along another dimension than the first
 * are on tensors until they are reduced.)
 */
typedef enum shoal_sharded {
    SHOAL_SHARDED_PARAMETERS = 0, /* and gradients and state: FSDP, also called ZeRO-3 */
    SHOAL_SHARDED_GRADIENTS = 1,  /* and state: ZeRO-2 */
    SHOAL_SHARDED_STATE = 2       /* ZeRO-1 */
} shoal_sharded;

/* Settings of the unit, or of all units that the handle stands for ------------------------------------------ */

/* What becomes of a unit's full parameters between its forward and its backward. */
typedef enum shoal_reshard {
    SHOAL_RESHARD_DEFAULT = 0, /* they are given up, and gathered again; the root of modules keeps them */
    SHOAL_RESHARD_ALWAYS = 1,
    SHOAL_RESHARD_NEVER = 2, /* they stay until its backward is over */
    SHOAL_RESHARD_PARTLY = 3 /* shards over reshard_ranks neighbours stay, in the dtype of compute */
} shoal_reshard;

/* Between steps; with modules also between a forward and its backward, like the next two and the two about the divisor.
   SHOAL_RESHARD_PARTLY after the first forward only if it was that then. Where parameters are not sharded
   (shoal_sharded) they stay: only SHOAL_RESHARD_DEFAULT and _NEVER are allowed, which mean the same then. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_reshard(shoal_fsdp_unit *unit, shoal_reshard reshard);
/* False: parameters stay after its backward, for more backwards with the same values; the next forward does not gather
   them, unless a shard was written. Between steps. Default: true; false where parameters are not sharded
   (shoal_sharded), and to set true is an error there. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_reshard_after_backward(shoal_fsdp_unit *unit,
                                                                              bool is_on);
/* False: its backward does not need parameters, which are not gathered for it. Between steps. Default: true. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_unshard_in_backward(shoal_fsdp_unit *unit, bool is_on);
/*
 * False: backwards leave gradients of whole parameters where they are, for the next one to add to. The first backward
 * that reduces takes them along, also those of units that it does not use. Gradients of several backwards are summed:
 * to average k of them, divide the losses by k, or set the divide factor to k times the number of ranks. With another
 * reduce_dtype they are summed in that. A parameter cannot be frozen while they wait. Default: true.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_sync(shoal_fsdp_unit *unit, bool is_on);
/* False: replicas do not add up their gradients; each keeps its own for the next backward. Default: true. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_all_reduce(shoal_fsdp_unit *unit, bool is_on);
/* By what summed gradients are divided; 0: the number of ranks. Between steps. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_divide_factor(shoal_fsdp_unit *unit, double factor);
/* Sum, then divide: never an average or factor on the way. Between steps. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_force_sum(shoal_fsdp_unit *unit, bool is_on);
/*
 * True: parameters that need gradients but got none in a backward take part in the reduction with zeros, so that ranks
 * may differ in the parameters of a unit that they use. (With shoal/fsdp.h parameters of a unit that had a backward
 * always take part.) A unit that had no backward at all does so when the backward ends, from the last unit to the
 * first, so that ranks may differ in how far they walk back. Gathers are not made up for: all ranks make the forward
 * passes of all units, and units whose backward they differ in need SHOAL_RESHARD_NEVER. What has a gradient on no rank
 * has one of zeros then. Between steps. Default: false.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_reduce_unused(shoal_fsdp_unit *unit, bool is_on);

/* Settings of one unit --------------------------------------------------------------------------------------- */

/* A name for error texts; "unit 3" otherwise. Units of modules have the names of these. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_unit_name(shoal_fsdp_unit *unit, const char *name);
/* What to gather when this unit has its parameters, in forward or in backward, instead of what the orders of calls say:
   units of the same context. Copied; none of them: the orders again. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_forward_prefetch(shoal_fsdp_unit *unit,
                                                                        shoal_fsdp_unit *const *units,
                                                                        size_t n_units);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_backward_prefetch(shoal_fsdp_unit *unit,
                                                                         shoal_fsdp_unit *const *units,
                                                                         size_t n_units);

/* Functions of the program, for all units that the handle stands for (shoal/fsdp_comm.h); between steps ----------- */

/* NULL: none. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_all_reduce_hook(shoal_fsdp_unit *unit,
                                                                       shoal_all_reduce_hook hook,
                                                                       void *context);
/* Instead of the library's gathers and reduce-scatters. NULL: those. */
SHOAL_API SHOAL_MUST_CHECK shoal_status
shoal_fsdp_set_custom_all_gather(shoal_fsdp_unit *unit, const shoal_custom_all_gather *custom);
SHOAL_API SHOAL_MUST_CHECK shoal_status
shoal_fsdp_set_custom_reduce_scatter(shoal_fsdp_unit *unit, const shoal_custom_reduce_scatter *custom);

typedef struct shoal_fsdp_shard {
    size_t struct_size; /* sizeof(shoal_fsdp_shard); in a hook: how much the library has filled in */
    void *data;         /* this rank's part, contiguous, in the dtype it is stored in */
    void *grad;         /* its gradient, likewise; NULL: none */
    size_t count;       /* elements; may be 0 */
    int64_t offset;     /* of the part along the dimension that is cut */
    int64_t length;     /* of the part along that dimension */
} shoal_fsdp_shard;
#define SHOAL_FSDP_SHARD_INIT SHOAL_SIZED(shoal_fsdp_shard)

/*
 * An optimizer inside the backward: called for each parameter of the unit when its gradient has been added to that of
 * the shard, in the order in which they were added to the unit, by whatever call finds the reduction ended: of a later
 * unit, end_backward or synchronize. Not for gradients that are only kept. It may write the values of the shard, which
 * the next gather sees, and the gradient. `shard` is what shoal_fsdp_get_shard says, and gone when the hook returns. If
 * that sets shard->grad to NULL the gradient has been used up: its memory is given back, and the next one begins anew.
 * So no rank needs memory for the gradients of all units. What shoal/fsdp_comm.h says of callbacks is true of this one.
 * Not for modules, whose parameters have hooks of their own (shoal_on_accumulated).
 */
typedef shoal_status (*shoal_fsdp_landed_hook)(void *context, int id, shoal_fsdp_shard *shard);
/* NULL: none. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_landed_hook(shoal_fsdp_unit *unit,
                                                                   shoal_fsdp_landed_hook hook,
                                                                   void *context);

/* A unit, gathered by hand ------------------------------------------------------------------------------------ */

/* Collective: starts to gather. Whoever needs the parameters waits, or shoal_fsdp_wait does. What is gathered already
   stays as it is, also if shards were written since: shoal_fsdp_reshard gives it up, a forward looks itself. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_unshard(shoal_fsdp_unit *unit);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_wait(shoal_fsdp_unit *unit);
/* Gives up what was gathered, whoever did it. Values that change afterwards are not seen before the next gather. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_reshard(shoal_fsdp_unit *unit);

/* Parameters -------------------------------------------------------------------------------------------------- */

/* Its name, or its path in the tree of modules; "" for NULL. */
SHOAL_API const char *shoal_fsdp_param_name(const shoal_fsdp_param *param);

/* How a parameter is cut, and which part of it this rank has. */
typedef struct shoal_shard_layout {
    size_t struct_size; /* sizeof(shoal_shard_layout), set by the caller */
    int unit;           /* the number of its unit; -1 for a module's parameter */
    shoal_dtype dtype;  /* in which the shard is stored */
    int n_dims;
    int dim;                             /* the dimension that is cut */
    int64_t shape[SHOAL_MAX_DIMS];       /* of the whole parameter; n_dims numbers */
    int64_t shard_shape[SHOAL_MAX_DIMS]; /* of this rank's part: the same but for `length` at `dim` */
    int64_t offset;                      /* first index of the part along `dim` */
    int64_t length;                      /* number of its indices; may be 0 */
    size_t count;                        /* elements of the whole parameter */
    size_t shard_count;                  /* elements of this rank's part */
    int n_shards;                        /* into how many parts it is cut */
    int shard;                           /* which of them this rank has */
    bool needs_values; /* it was on the meta device, and nobody has written this rank's part yet */
} shoal_shard_layout;
#define SHOAL_SHARD_LAYOUT_INIT SHOAL_SIZED(shoal_shard_layout)

/* Also when the world is closed. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_get_layout(const shoal_fsdp_param *param,
                                                              shoal_shard_layout *layout_out);

/*
 * New values for this rank's part, from the whole parameter. Talks to nobody: every rank calls it, or keeps its old
 * part. To load on one rank alone, use shoal_fsdp_broadcast. Between steps, like the next two; what is gathered of the
 * unit is given up. After a forward it is as if an evaluation had ended: a backward of that forward would see other
 * values, and is SHOAL_ERR_STATE.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_load(shoal_fsdp_param *param, const void *full);
/*
 * From a slice: `length` indices from `offset` on along the dimension that is cut, contiguous. This rank takes what is
 * its part and leaves the rest, so that a slice may be exactly its part (shoal_fsdp_get_layout says which), any other,
 * or the next piece of a file that is read once. Ranks whose part is empty call it too.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_load_slice(shoal_fsdp_param *param, int64_t offset,
                                                              int64_t length, const void *slice);
/* Collective: from the whole parameter of one rank of the group or mesh (row by row); `full` is not read on others. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_broadcast(shoal_fsdp_param *param, const void *full,
                                                             int root);
/*
 * Collective: the whole parameter into the caller's memory, in the dtype it is stored in: on every rank
 * (SHOAL_FSDP_ALL_RANKS), or on one rank of the group or mesh alone. Elsewhere `full` is not written, and may be NULL.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_gather(shoal_fsdp_param *param, void *full, int root);

/*
 * Arrays shaped like a shard: the moments of an optimizer, a master copy, or the gradient of the shard. `shard` is this
 * rank's part in the program's own memory (of a tensor: shoal_data, shoal_mutable_data), contiguous, of any dtype, with
 * as many elements as the shard (shoal_shard_layout.shard_count) in its order; it may be NULL where that is 0. `full`
 * is an array of the whole parameter's shape. The two must not overlap.
 *
 *     shoal_fsdp_gather_array(param, SHOAL_F32, moments, whole, 0);        rank 0 writes `whole` to a file
 *     shoal_fsdp_broadcast_array(param, SHOAL_F32, whole, moments, 0);     rank 0 has read `whole` from one
 *
 * With replicas each replica gathers its own parts; broadcasts reach all ranks. These calls may be made at any time,
 * also in the middle of a step; the collective ones at the same place on all ranks.
 */
/* Collective: the whole array on every rank, or on one, as shoal_fsdp_gather. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_gather_array(shoal_fsdp_param *param, shoal_dtype dtype,
                                                                const void *shard, void *full, int root);
/* This rank's part of a whole array that it has. Local. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_load_array(shoal_fsdp_param *param, shoal_dtype dtype,
                                                              const void *full, void *shard);
/* Collective: each rank's part of the whole array that one rank of the group or mesh has; `full` is not read on
   others. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_broadcast_array(shoal_fsdp_param *param, shoal_dtype dtype,
                                                                   const void *full, void *shard, int root);

/* Gradients that backwards left because set_sync or set_all_reduce said so, of one parameter on this rank. */
typedef struct shoal_pending_gradient {
    size_t struct_size; /* sizeof(shoal_pending_gradient) */
    void *full;         /* of the whole parameter, not added up over ranks; NULL: none */
    shoal_dtype full_dtype;
    size_t full_count; /* elements */
    /* 1: as the parameter lies. Otherwise its parts along the dimension that is cut, one after the other */
    int n_blocks;
    void *partial; /* of this rank's shard, added up over the shards but not over the replicas; NULL: none */
    shoal_dtype partial_dtype;
    size_t partial_count;
} shoal_pending_gradient;
#define SHOAL_PENDING_GRADIENT_INIT SHOAL_SIZED(shoal_pending_gradient)

/* Between backwards. What it points to may be changed, and is reduced with the changes; it stays until the next
   backward, synchronize, zero_grad or reset. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_get_pending(shoal_fsdp_param *param,
                                                               shoal_pending_gradient *pending_out);

/* The context ------------------------------------------------------------------------------------------------- */

/* False: the end of a backward leaves reductions on their way, because more backwards of this step will follow. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_is_last_backward(shoal_fsdp *fsdp, bool is_last);

/* Collective: reduces all pending gradients into the gradients of the shards, without a backward and whatever set_sync
   and set_all_reduce say. Nothing where there are none. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_synchronize(shoal_fsdp *fsdp);

/*
 * The gradients of the shards are gone, and with them what backwards without reduction left (set_sync, set_all_reduce).
 * Optimizers and shoal_set_grad see the gradients of shards only: what set_sync or set_all_reduce keeps is not cleared
 * by them, and goes into the next reduction. All ranks clear them at the same place in the order of their calls. With
 * shoal/fsdp.h: the next reduction of ranks that differ is SHOAL_ERR_MISMATCH; inside a backward, and of reductions
 * that are on their way, only those of the shards are cleared. With modules: ranks do not compare what each has
 * cleared, because a program may also replace or remove gradients itself; an error inside a backward, or after one that
 * failed.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_zero_grad(shoal_fsdp *fsdp);

/*
 * Collective: a norm of the gradients of all shards (not of parameters that were ignored, nor of what set_sync keeps):
 * the power-th root of the sum of |g|^power, or the largest |g| for infinity. The same number for any number of ranks;
 * exact up to one rounding for 1, 2 and infinity, while for others each power is rounded to f64 first. If max_norm /
 * (norm + 1e-6) is below 1, gradients are multiplied by it, as in PyTorch. `must_be_finite`: a norm that is not is
 * SHOAL_ERR_STATE on all ranks, and gradients are left alone. norm_out may be NULL.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_clip_grad_norm(shoal_fsdp *fsdp, double max_norm,
                                                                  double power, bool must_be_finite,
                                                                  double *norm_out);
/* Collective: every gradient between -max_value and max_value; NaN stays. Ranks compare max_value. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_clip_grad_value(shoal_fsdp *fsdp, double max_value);

/* After an error in the middle of a step: gives up what is in flight and the step's gradients, so that another step can
   begin. A group that has failed stays so, which is the error then. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_reset(shoal_fsdp *fsdp);

/* Memory ------------------------------------------------------------------------------------------------------- */

/* In bytes. What the system adds (whole pages, a page of flags for each window) is not counted. */
typedef struct shoal_fsdp_memory_amounts {
    /* This rank's part of every parameter, with padding. */
    size_t shards;
    /* Gradients of shards, gradients that kernels cannot write where they are reduced, and what waits for replicas. */
    size_t gradients;
    /* Full parameters, in memory that ranks share: of each window this rank's part, its bytes / the ranks that share
       it. */
    size_t windows;
    /* Where gradients are reduced. With shoal_fsdp_create_replicated the gradients of the parameters lie there, too;
       with SHOAL_SHARDED_STATE the whole gradients of all units. */
    size_t buffers;
    /* Slices that SHOAL_RESHARD_PARTLY keeps, full parameters that are not in windows, memory for hooks and custom
       collectives. */
    size_t other;
    /* Of all. As a peak: the most that was held at one time, which may be less than the sum of the peaks. */
    size_t total;
} shoal_fsdp_memory_amounts;

typedef struct shoal_fsdp_memory_report {
    size_t struct_size; /* sizeof(shoal_fsdp_memory_report): set by the caller */
    int n_ranks;        /* that share the parameters: shards times replicas. All are on this host. */
    shoal_fsdp_memory_amounts rank;      /* what this rank holds now */
    shoal_fsdp_memory_amounts rank_peak; /* the most of each kind since the context was made */
    shoal_fsdp_memory_amounts host;      /* what n_ranks ranks hold of which each holds as much as this one */
    shoal_fsdp_memory_amounts host_peak;
} shoal_fsdp_memory_report;

#define SHOAL_FSDP_MEMORY_REPORT_INIT SHOAL_SIZED(shoal_fsdp_memory_report)

/*
 * What the context holds. Not collective, and allowed at any time, also after the world was closed. The program's own
 * memory (activations, moments of an optimizer) is not in it.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_memory(const shoal_fsdp *fsdp,
                                                          shoal_fsdp_memory_report *report_out);
/* The report as a table in 10^6 bytes, cut to fit and ended; returns the number of characters of the whole text. `text`
   may be NULL if bytes is 0. Nothing for NULL. */
SHOAL_API size_t shoal_fsdp_memory_text(const shoal_fsdp_memory_report *report, char *text, size_t bytes);

SHOAL_END_DECLS

#endif
