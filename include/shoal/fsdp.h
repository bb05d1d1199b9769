/* SPDX-License-Identifier: MIT */
/*
 * Fully sharded data parallelism for programs with their own kernels: no tensors, modules or scopes in sight.
 *
 * Parameters belong to units (a layer, usually). Every rank keeps a shard of each parameter, and what an optimizer needs
 * for it. A unit's full parameters exist while it computes, once per host, in memory that the ranks of the host share;
 * its gradients are summed over the ranks and end in the shards. Gathering the next unit and reducing the last one go
 * on while the program computes.
 *
 *     shoal_fsdp_create(group, NULL, &f);
 *     shoal_fsdp_add_param(f, 0, "w0", SHOAL_F32, 2, shape, initial, &w0);        and so on, unit by unit
 *
 *     each step, for every unit:     shoal_fsdp_pre_forward(f, unit);
 *                                    ... compute with shoal_fsdp_param(f, w0) ...
 *                                    shoal_fsdp_post_forward(f, unit);
 *     then, the other way round:     shoal_fsdp_pre_backward(f, unit);
 *                                    ... add to shoal_fsdp_grad(f, w0) ...
 *                                    shoal_fsdp_post_backward(f, unit);
 *     and at the end                 shoal_fsdp_end_backward(f);
 *                                    ... update what shoal_fsdp_get_shard(f, w0, &shard) gives ...
 *                                    shoal_fsdp_zero_grad(f);
 *
 * Bits: with f32, n ranks give what one process gives that adds the gradients of the n parts in rank order and divides
 * by n, whatever the buffers, prefetching and resharding. With replicas each replica does so, and then the replicas.
 *
 * Several backwards in a step add up: for their mean, divide_factor is the number of ranks times theirs, or the program
 * divides its loss.
 *
 * Ranks: all ranks make the same calls in the same order with the same units and shapes; what differs is an error that
 * names the unit.
 * Ownership: shoal_fsdp_free; once the world is closed nothing else can be done. Names and initial values are copied.
 * Threads: one at a time for each shoal_fsdp.
 * Errors: status and text. After a failure of the group every call fails with the first reason.
 */
#ifndef SHOAL_FSDP_H
#define SHOAL_FSDP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/api.h"
#include "shoal/dtype.h"
#include "shoal/fsdp_comm.h"
#include "shoal/group.h"
#include "shoal/mesh.h"
#include "shoal/status.h"

SHOAL_BEGIN_DECLS

typedef struct shoal_fsdp shoal_fsdp;

/* What becomes of a unit's full parameters between its forward and its backward. */
typedef enum shoal_reshard {
    SHOAL_RESHARD_DEFAULT = 0, /* they are given up, and gathered again */
    SHOAL_RESHARD_ALWAYS = 1,
    SHOAL_RESHARD_NEVER = 2, /* they stay until its backward is over */
    SHOAL_RESHARD_PARTLY = 3 /* shards over reshard_ranks neighbours stay, in the dtype of compute */
} shoal_reshard;

typedef struct shoal_fsdp_options {
    size_t struct_size;       /* sizeof(shoal_fsdp_options) */
    shoal_dtype param_dtype;  /* of full parameters; 0: as they are stored */
    shoal_dtype reduce_dtype; /* in which gradients are added up; 0: that of full parameters */
    shoal_reshard reshard;    /* of all units; shoal_fsdp_set_reshard changes one */
    int reshard_ranks;        /* with SHOAL_RESHARD_PARTLY: divides the number of shards */
    int forward_prefetch; /* units gathered ahead in forward, in the order of the last one; 0: 1; -1: none */
    double divide_factor; /* of summed gradients; 0: the number of ranks */
    bool forces_sum;      /* sum, then divide: never an average or factor on the way */
    int max_reduces;      /* gradients of so many units may be on their way at once; 0: 1 */
} shoal_fsdp_options;

/* Shards over the ranks of a group. Options may be NULL. Local. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_create(shoal_group *group,
                                                          const shoal_fsdp_options *options,
                                                          shoal_fsdp **fsdp_out);
/* One dimension: shards. Two, with names: replicas of shards over the second (HSDP). */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_create_on_mesh(shoal_mesh *mesh,
                                                                  const shoal_fsdp_options *options,
                                                                  shoal_fsdp **fsdp_out);
/* Every rank keeps everything, and only gradients are averaged (DDP). */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_create_replicated(shoal_group *group,
                                                                     const shoal_fsdp_options *options,
                                                                     shoal_fsdp **fsdp_out);
/* NULL is allowed. Work in flight is waited for. */
SHOAL_API void shoal_fsdp_free(shoal_fsdp *fsdp);

/* Parameters ------------------------------------------------------------------------------------------- */

/*
 * One more parameter of a unit: 0, 1, 2, ... without gaps. `full` is the whole parameter, contiguous, of which this
 * rank keeps its part; NULL: zeros. At least one dimension. Names are for error texts. What is not floating gets no
 * gradient. Before the first forward. Parameters are numbered as they come, from 0; id_out may be NULL.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_add_param(shoal_fsdp *fsdp, int unit, const char *name,
                                                             shoal_dtype dtype, int n_dims,
                                                             const int64_t *shape, const void *full,
                                                             int *id_out);
/* The same, cut along another dimension, which the number of shards must divide. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_add_param_along(shoal_fsdp *fsdp, int unit,
                                                                   const char *name, shoal_dtype dtype,
                                                                   int n_dims, const int64_t *shape, int dim,
                                                                   const void *full, int *id_out);
/* Whether it gets gradients; at any time between steps. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_requires_grad(shoal_fsdp *fsdp, int id,
                                                                     bool is_required);
/* What becomes of its parameters after forward. At any time between steps, the same on all ranks; SHOAL_RESHARD_PARTLY
   after the first forward only if it was that then. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_reshard(shoal_fsdp *fsdp, int unit,
                                                               shoal_reshard reshard);
/* A name for error texts; "unit 3" otherwise. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_unit_name(shoal_fsdp *fsdp, int unit,
                                                                 const char *name);

/* New values, from the whole parameter. Between steps. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_load(shoal_fsdp *fsdp, int id, const void *full);
/*
 * From a slice: `length` indices from `offset` on along the dimension that is cut, contiguous. This rank takes what is its
 * part and leaves the rest, so that a slice may be exactly its part (shoal_fsdp_get_shard says which), any other, or the
 * next piece of a file that is read once.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_load_slice(shoal_fsdp *fsdp, int id, int64_t offset,
                                                              int64_t length, const void *slice);
/* Collective: from the whole parameter of one rank of the group or mesh (row by row); `full` is not read on others. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_broadcast(shoal_fsdp *fsdp, int id, const void *full,
                                                             int root);
/* Collective: the whole parameter into the caller's memory, in the dtype it is stored in. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_gather(shoal_fsdp *fsdp, int id, void *full);
/* Collective: the same on one rank of the group or mesh alone; `full` is not written on others, and may be NULL. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_gather_to(shoal_fsdp *fsdp, int id, void *full, int root);

typedef struct shoal_fsdp_shard {
    void *data;     /* this rank's part, contiguous, in the dtype it is stored in */
    void *grad;     /* its gradient, likewise; NULL: none */
    size_t count;   /* elements; may be 0 */
    int64_t offset; /* of the part along the dimension that is cut */
    int64_t length; /* likewise */
} shoal_fsdp_shard;

/* What an optimizer works on, once the backward has ended (or before: shoal_fsdp_set_landed_hook). The addresses stay until
   the next step. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_get_shard(shoal_fsdp *fsdp, int id,
                                                             shoal_fsdp_shard *shard_out);
SHOAL_API int shoal_fsdp_n_params(const shoal_fsdp *fsdp);
SHOAL_API const char *shoal_fsdp_param_name(const shoal_fsdp *fsdp, int id);

/* A step ----------------------------------------------------------------------------------------------- */

SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_pre_forward(shoal_fsdp *fsdp, int unit);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_post_forward(shoal_fsdp *fsdp, int unit);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_pre_backward(shoal_fsdp *fsdp, int unit);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_post_backward(shoal_fsdp *fsdp, int unit);
/* Gradients of all units are in the shards afterwards. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_end_backward(shoal_fsdp *fsdp);

/*
 * Instead of end_backward, where no backward follows the forwards: in evaluation. Parameters that were kept for it are
 * given up, gathers that nobody came for are ended, and the order of these forwards is what the next ones prefetch by.
 * Without it a loop of forwards remembers all of them, and parameters that are kept (SHOAL_RESHARD_NEVER) do not see
 * new values.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_end_forward(shoal_fsdp *fsdp);

/*
 * The whole parameter, in param_dtype, in memory that can only be read: from pre_forward to post_forward of its unit, from
 * pre_backward to post_backward, and, by hand, from shoal_fsdp_wait to shoal_fsdp_reshard or whatever gives it up.
 * Elsewhere NULL, with the reason in shoal_error_text.
 */
SHOAL_API const void *shoal_fsdp_param(shoal_fsdp *fsdp, int id);
/*
 * The whole gradient, in param_dtype, to add to: from pre_backward to post_backward. Zeros at first; if the last
 * backward did not reduce (set_sync), what it left, or zeros where reduce_dtype differs: there it is added up in that.
 */
SHOAL_API void *shoal_fsdp_grad(shoal_fsdp *fsdp, int id);

/* Whether backwards from now on reduce gradients, or leave them where they are for the next one to add to. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_sync(shoal_fsdp *fsdp, bool is_on);
/* With replicas: whether they add up their gradients, or each replica keeps its own for the next backward. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_all_reduce(shoal_fsdp *fsdp, bool is_on);

/* Settings of one unit, or with -1 of all that there are. Between steps; the same on all ranks. ----------- */

/* False: parameters stay after its backward, for more backwards with the same values. Default: true. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_reshard_after_backward(shoal_fsdp *fsdp, int unit,
                                                                              bool is_on);
/* False: its backward does not need parameters, which are not gathered for it. Default: true. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_unshard_in_backward(shoal_fsdp *fsdp, int unit,
                                                                           bool is_on);
/* By what summed gradients are divided; 0: the number of ranks. Default: that of the options. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_divide_factor(shoal_fsdp *fsdp, int unit,
                                                                     double factor);
/* Sum, then divide. Default: that of the options. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_force_sum(shoal_fsdp *fsdp, int unit, bool is_on);
/*
 * What to gather when this unit has its parameters, in forward or in backward, instead of what the orders of calls say. Of
 * one unit. Copied; none of them: the orders again.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_forward_prefetch(shoal_fsdp *fsdp, int unit,
                                                                        const int *units, size_t n_units);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_backward_prefetch(shoal_fsdp *fsdp, int unit,
                                                                         const int *units, size_t n_units);
/* False: end_backward leaves reductions on their way, because more backwards of this step will follow. Of all units. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_is_last_backward(shoal_fsdp *fsdp, bool is_last);

/* By hand: starts to gather a unit; pre_forward and pre_backward wait for it, or shoal_fsdp_wait does. Collective. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_unshard(shoal_fsdp *fsdp, int unit);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_wait(shoal_fsdp *fsdp, int unit);
/* Gives up what was gathered, whoever did it. Values that change afterwards are not seen before the next gather. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_reshard(shoal_fsdp *fsdp, int unit);

/* Communication of the program's own (shoal/fsdp_comm.h); of one unit, or with -1 of all that there are. Between steps. */

/* NULL: none. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_all_reduce_hook(shoal_fsdp *fsdp, int unit,
                                                                       shoal_all_reduce_hook hook,
                                                                       void *context);
/* Instead of the library's windows and reduce-scatters. NULL: those. */
SHOAL_API SHOAL_MUST_CHECK shoal_status
shoal_fsdp_set_custom_all_gather(shoal_fsdp *fsdp, int unit, const shoal_custom_all_gather *custom);
SHOAL_API SHOAL_MUST_CHECK shoal_status
shoal_fsdp_set_custom_reduce_scatter(shoal_fsdp *fsdp, int unit, const shoal_custom_reduce_scatter *custom);
/*
 * An optimizer inside the backward: called for each parameter of the unit when its gradient has been added to that of the
 * shard, in the order in which they were added to the unit, by whatever call finds the reduction ended: of a later unit,
 * end_backward or synchronize. Not for gradients that are only kept. It may write the values of the shard, which the next
 * gather sees, and the gradient. `shard` is what shoal_fsdp_get_shard says, and gone when the hook returns. If that sets
 * shard->grad to NULL the gradient has been used up: its memory is given back, and the next one begins anew. So no rank
 * needs memory for the gradients of all units. What shoal/fsdp_comm.h says of callbacks is true of this one.
 */
typedef shoal_status (*shoal_fsdp_landed_hook)(void *context, int id, shoal_fsdp_shard *shard);
/* NULL: none. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_landed_hook(shoal_fsdp *fsdp, int unit,
                                                                   shoal_fsdp_landed_hook hook,
                                                                   void *context);
/*
 * Units that had no backward on this rank take part with zeros when the backward ends, from the last unit to the first, so
 * that ranks may differ in how far they walk back. (Parameters of a unit that had one always take part.) Gathers are not
 * made up for: units that ranks differ in keep their parameters (SHOAL_RESHARD_NEVER). What has a gradient on no rank has
 * one of zeros then. Default: off.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_reduce_unused(shoal_fsdp *fsdp, int unit, bool is_on);

/* Gradients that backwards left because set_sync or set_all_reduce said so, of one parameter on this rank. */
typedef struct shoal_pending_gradient {
    void *full; /* of the whole parameter, not added up over ranks; NULL: none */
    shoal_dtype full_dtype;
    size_t full_count; /* elements */
    int n_blocks; /* 1: as the parameter lies. Otherwise its parts along the dimension that is cut, one after the other */
    void *partial; /* of this rank's shard, added up over the shards but not over the replicas; NULL: none */
    shoal_dtype partial_dtype;
    size_t partial_count;
} shoal_pending_gradient;

/* Between backwards. What it points to may be changed, and is reduced with the changes; it stays until the next backward,
   synchronize, zero_grad or reset. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_get_pending(shoal_fsdp *fsdp, int id,
                                                               shoal_pending_gradient *pending_out);
/* Collective: reduces all of them into the gradients of the shards, without a backward and whatever set_sync and
   set_all_reduce say. Nothing where there are none. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_synchronize(shoal_fsdp *fsdp);

/*
 * The gradients of the shards are gone, and with them what backwards without reduction left (set_sync, set_all_reduce).
 * Inside a backward, and of reductions that are on their way, only those of the shards.
 */
SHOAL_API void shoal_fsdp_zero_grad(shoal_fsdp *fsdp);

/*
 * Collective: the 2-norm of all gradients, exact up to one rounding and the same for any number of ranks. If max_norm /
 * (norm + 1e-6) is below 1, gradients are multiplied by it, as in PyTorch. norm_out may be NULL.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_clip_grad_norm(shoal_fsdp *fsdp, double max_norm,
                                                                  double *norm_out);
/*
 * The same with another norm: the power-th root of the sum of |g|^power, or the largest |g| for infinity. The same number
 * for any number of ranks; exact up to one rounding for 1, 2 and infinity, while for others each power is rounded to f64
 * first. `must_be_finite`: a norm that is not is SHOAL_ERR_STATE on all ranks, and gradients are left alone.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_clip_grad_p_norm(shoal_fsdp *fsdp, double power,
                                                                    double max_norm, bool must_be_finite,
                                                                    double *norm_out);
/* Every gradient between -max_value and max_value; NaN stays. Talks to nobody. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_clip_grad_value(shoal_fsdp *fsdp, double max_value);

/* After an error in the middle of a step: gives up what is in flight and the step's gradients, so that another step can
   begin. Does not help a group that has failed. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_reset(shoal_fsdp *fsdp);

SHOAL_END_DECLS

#endif
