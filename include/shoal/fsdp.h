/* SPDX-License-Identifier: MIT */
/*
 * Fully sharded data parallelism for programs with their own kernels: no tensors, modules or scopes in sight.
 *
 * Parameters belong to units (a layer, usually). Every rank keeps a shard of each parameter, and what an optimizer
 * needs for it. A unit's full parameters exist while it computes, once per host, in memory that the ranks of the host
 * share; its gradients are summed over the ranks and end in the shards. Gathering the next unit and reducing the last
 * one go on while the program computes.
 *
 *     shoal_fsdp_create(group, NULL, &f);
 *     shoal_fsdp_add_param(f, 0, "w0", SHOAL_F32, 2, shape, initial, &w0);        and so on, unit by unit
 *
 *     each step, for every unit:     shoal_fsdp_pre_forward(f, unit);
 *                                    ... compute with shoal_fsdp_full_param(f, w0) ...
 *                                    shoal_fsdp_post_forward(f, unit);
 *     then, the other way round:     shoal_fsdp_pre_backward(f, unit);
 *                                    ... add to shoal_fsdp_grad(f, w0) ...
 *                                    shoal_fsdp_post_backward(f, unit);
 *     and at the end                 shoal_fsdp_end_backward(f);
 *                                    ... update what shoal_fsdp_get_shard(f, w0, &shard) gives ...
 *                                    shoal_fsdp_zero_grad(f);
 *
 * Units that nest: a unit is open from pre_forward to post_forward, and from pre_backward to post_backward. Other units
 * may be opened and closed meanwhile, in any order; every open unit has its full parameters in memory.
 *
 *     shoal_fsdp_pre_forward(f, outer);
 *     for (...) { shoal_fsdp_pre_forward(f, block); ... shoal_fsdp_post_forward(f, block); }
 *     shoal_fsdp_post_forward(f, outer);
 *
 * ZeRO-1 and ZeRO-2 (`sharded` of the options, shoal_sharded): the same calls and the same bits, but whole parameters
 * stay from step to step. The first pre_forward after shoal_fsdp_get_shard, shoal_fsdp_zero_grad or a landed hook takes
 * the shards for written, and the forward pass gathers its units again, one ahead of the other. So whoever writes
 * through an address that it has kept asks for it again after each step (shoal_fsdp_get_shard), or calls zero_grad.
 *
 * A tied embedding: a parameter that the first layer and the last one use is added once, to a unit that stays open
 * around the layers between, in forward and in backward. Both layers add to the same gradient, which is reduced once:
 *
 *     shoal_fsdp_pre_backward(f, ends);         output_backward(..., shoal_fsdp_grad(f, wte));
 *                                               ... the blocks, from the last to the first ...
 *                                               embedding_backward(..., shoal_fsdp_grad(f, wte));
 *     shoal_fsdp_post_backward(f, ends);
 *
 * With SHOAL_RESHARD_NEVER such a unit stays gathered from its forward to its backward. Examples: 11_gpt.c.
 *
 * A unit may also be opened twice in a pass (pre, post, ..., pre, post). Then it is gathered twice, and each
 * post_backward reduces what was added since the one before. The gradient is the mean of the first use plus the mean of
 * the second: the same number as the mean of the sums, but for rounding.
 *
 * Bits: with f32, n ranks give the bits of one process that computes the n parts of the batch one after the other, if
 *   - each part has a gradient buffer of its own, which begins with zeros. A process whose kernels go on adding to the
 *     sum of the parts before makes the same additions in another order;
 *   - these buffers are added in rank order, ((g0 + g1) + g2) + ..., and the sum is divided by n. A product with 1.0f /
 *     n is rounded differently unless n is a power of two;
 *   - both programs compile their kernels with the same options, and without -Ofast or -ffast-math: these let the
 *     compiler reorder sums and replace divisions, in each program as it likes;
 *   - divide_factor is 0 or n. Any other factor is applied to the gradients before they are added, as a product with
 *     1 / factor; with force_sum the sum is divided instead.
 * Buffers, prefetching and resharding change no bits. With replicas each replica makes its mean over the shards so;
 * these means are added in the order of the replicas, and divided by their number.
 *
 * Several backwards in a step add up. To average k of them, set divide_factor to k times the number of ranks, or divide
 * the loss by k. Usually each of them is reduced, and the results are added; with shoal_fsdp_set_sync off for all but
 * the last, kernels go on adding to the same buffer, which is reduced once.
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
#include "shoal/fsdp_unit.h"
#include "shoal/group.h"
#include "shoal/mesh.h"
#include "shoal/status.h"
#include "shoal/tensor.h"

SHOAL_BEGIN_DECLS

typedef struct shoal_fsdp_options {
    size_t struct_size;       /* sizeof(shoal_fsdp_options) */
    shoal_dtype param_dtype;  /* of full parameters; 0: as they are stored */
    shoal_dtype reduce_dtype; /* in which gradients are added up; 0: that of full parameters */
    shoal_reshard reshard;    /* of all units; shoal_fsdp_set_reshard changes one */
    int reshard_ranks;        /* with SHOAL_RESHARD_PARTLY: divides the number of shards */
    int forward_prefetch;  /* units gathered ahead in forward, in the order of the last one; 0: 1; -1: none */
    double divide_factor;  /* of summed gradients; 0: the number of ranks */
    bool force_sum;        /* sum, then divide: never an average or factor on the way */
    int max_reduces;       /* gradients of so many units may be on their way at once; 0: 1 */
    shoal_sharded sharded; /* what is cut among the ranks, of all units; 0: parameters, gradients and state */
} shoal_fsdp_options;
#define SHOAL_FSDP_OPTIONS_INIT SHOAL_SIZED(shoal_fsdp_options)

/*
 * Shards over the ranks of a group. Options may be NULL. Talks to nobody, but contexts are numbered on their group in
 * the order in which a rank makes them: all ranks make the same contexts in the same order, also those that they do not
 * use. If one rank has made one more, the numbers of the contexts that come after it differ, and the first pre_forward
 * of such a context is SHOAL_ERR_MISMATCH ("model 1 of this group" here, "model 2 of this group" there).
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_create(shoal_group *group,
                                                          const shoal_fsdp_options *options,
                                                          shoal_fsdp **fsdp_out);
/* One dimension: shards. Two, with names: replicas of shards over the second (HSDP). */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_create_on_mesh(shoal_mesh *mesh,
                                                                  const shoal_fsdp_options *options,
                                                                  shoal_fsdp **fsdp_out);
/*
 * Every rank keeps everything, and only gradients are averaged (DDP). All ranks start with the same values, which they
 * compare at the first forward pass, as the replicas of a mesh do. Gradients are averaged where they are written, so
 * that a rank holds each gradient once: what shoal_fsdp_get_shard gives points into memory that the ranks share, until
 * zero_grad, or until the world is closed. (With a reduce_dtype that differs from the parameters' there is a copy.)
 * Nothing is sharded: `sharded` of the options must be 0.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_create_replicated(shoal_group *group,
                                                                     const shoal_fsdp_options *options,
                                                                     shoal_fsdp **fsdp_out);
/* NULL is allowed. Work in flight is waited for. */
SHOAL_API void shoal_fsdp_free(shoal_fsdp *fsdp);

/* Parameters ------------------------------------------------------------------------------------------- */

/*
 * Adds a parameter to `unit`. Units are numbered 0, 1, 2, ... without gaps. Call it before the first forward pass.
 * `full` is the whole parameter, contiguous, of which this rank keeps its part; NULL: zeros. It has at least one
 * dimension. Names are for error texts. A parameter that is not floating gets no gradient. Parameters are numbered in
 * the order in which they are added, from 0; id_out may be NULL.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_add_param(shoal_fsdp *fsdp, int unit, const char *name,
                                                             shoal_dtype dtype, int n_dims,
                                                             const int64_t *shape, const void *full,
                                                             int *id_out);
/* shoal_fsdp_add_param for a parameter that is cut along `dim`, whose size the number of shards must divide. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_add_param_along(shoal_fsdp *fsdp, int unit,
                                                                   const char *name, shoal_dtype dtype,
                                                                   int n_dims, const int64_t *shape, int dim,
                                                                   const void *full, int *id_out);
/* Whether it gets gradients; at any time between steps. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_requires_grad(shoal_fsdp *fsdp, int id,
                                                                     bool is_required);
/* What an optimizer works on, once the backward has ended (or before: shoal_fsdp_set_landed_hook). The addresses stay
   until the next step. Whoever asks may write: what is still gathered is gathered again by the next pre_forward of its
   unit. All ranks ask alike: those that differ get SHOAL_ERR_MISMATCH there. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_get_shard(shoal_fsdp *fsdp, int id,
                                                             shoal_fsdp_shard *shard_out);
/* shoal_fsdp_get_shard for callers that only read, as a save does. Nothing is gathered again because of this call, and
   ranks need not all make it. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_read_shard(const shoal_fsdp *fsdp, int id,
                                                              shoal_fsdp_shard *shard_out);
SHOAL_API int shoal_fsdp_n_params(const shoal_fsdp *fsdp);
/* What calls on whole parameters take (shoal/fsdp_unit.h). */
SHOAL_API shoal_fsdp_param *shoal_fsdp_param_of(shoal_fsdp *fsdp, int id);
/* The number of the parameter with this name. If there is none, the error text has the nearest names; a name that two
   parameters have is an error, too. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_find_param(const shoal_fsdp *fsdp, const char *name,
                                                              int *id_out);

/* A step ----------------------------------------------------------------------------------------------- */

/*
 * Around the computation of a unit. The pre_ calls gather its parameters if it needs them, and wait for them; the post_
 * calls give them up, as the unit's settings say. post_backward starts to reduce its gradients.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_pre_forward(shoal_fsdp *fsdp, int unit);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_post_forward(shoal_fsdp *fsdp, int unit);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_pre_backward(shoal_fsdp *fsdp, int unit);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_post_backward(shoal_fsdp *fsdp, int unit);
/* Gradients of all units are in the shards afterwards. A unit whose post_ call was left out is ended too, as by that
   call. SHOAL_ERR_STATE after a post_backward that failed: reset the step. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_end_backward(shoal_fsdp *fsdp);

/*
 * Instead of end_backward, where no backward follows the forwards: in evaluation. Parameters that were kept for it are
 * given up, gathers that nobody came for are ended, and the order of these forwards is what the next ones prefetch by.
 * Without it a loop of forwards remembers all of them, and parameters that are kept (SHOAL_RESHARD_NEVER and _PARTLY)
 * see new values only if they were loaded, or written through an address that shoal_fsdp_get_shard gave since the last
 * pre_forward of their unit.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_end_forward(shoal_fsdp *fsdp);

/*
 * The whole parameter, in param_dtype, in memory that can only be read: from pre_forward to post_forward of its unit,
 * from pre_backward to post_backward, and, by hand, from shoal_fsdp_wait to shoal_fsdp_reshard or whatever gives it up.
 * Elsewhere NULL, with the reason in shoal_error_text.
 */
SHOAL_API const void *shoal_fsdp_full_param(shoal_fsdp *fsdp, int id);
/*
 * The whole gradient, in param_dtype, to add to: from pre_backward to post_backward. Zeros at first; if the last
 * backward did not reduce (set_sync), what it left, or zeros where reduce_dtype differs: there it is added up in that.
 */
SHOAL_API void *shoal_fsdp_grad(shoal_fsdp *fsdp, int id);
/*
 * The memory of shoal_fsdp_grad, for kernels that can store as well as add (a matrix product with beta 0 or 1). It is
 * not cleared, which saves a pass over it. If *has_values_out is false, the memory holds anything, and the caller must
 * store every element before post_backward. If it is true, there are values to add to: of an earlier backward that did
 * not reduce, or of an earlier call in this one. NULL, with the reason in shoal_error_text, as shoal_fsdp_grad.
 */
SHOAL_API void *shoal_fsdp_grad_to_store(shoal_fsdp *fsdp, int id, bool *has_values_out);

SHOAL_END_DECLS

#endif
