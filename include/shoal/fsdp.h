/* SPDX-License-Identifier: MIT */
/*
 * Fully sharded data parallelism for programs with their own kernels: it takes and gives addresses, and needs no
 * tensors, modules or scopes.
 *
 * Parameters belong to units; a unit is usually a layer. Every rank keeps a shard of each parameter, and the
 * optimizer's state for that shard. A unit's whole parameters exist only while it computes: once per host, in memory
 * that its ranks share (over a transport without shared memory, or with SHOAL_FSDP_GATHER=copy, once per rank). The
 * gradients of a unit are summed over the ranks, divided, and end in the shards. The next unit is gathered and the
 * last one is reduced while the program computes.
 *
 *     status = shoal_fsdp_create(group, NULL, &f);
 *     status = shoal_fsdp_add_param(f, 0, "w0", SHOAL_F32, 2, shape, initial, &w0);       and so on, unit by unit
 *
 *     each step, for every unit:     shoal_fsdp_pre_forward(f, unit);
 *                                    ... compute with shoal_fsdp_full_param(f, w0) ...
 *                                    shoal_fsdp_post_forward(f, unit);
 *     then, from the last unit on:   shoal_fsdp_pre_backward(f, unit);
 *                                    ... add to shoal_fsdp_grad(f, w0) ...
 *                                    shoal_fsdp_post_backward(f, unit);
 *     and at the end:                shoal_fsdp_end_backward(f);
 *                                    ... update what shoal_fsdp_update_shard(f, w0, &shard) gives ...
 *                                    shoal_fsdp_zero_grad(f);
 *
 * docs/trainers.md is a whole program with explanations, examples/11_gpt.c a larger one.
 *
 * Units may nest. A unit is open from pre_forward to post_forward, and from pre_backward to post_backward. Other units
 * may be opened and closed meanwhile, in any order; all open units have their whole parameters in memory.
 *
 *     shoal_fsdp_pre_forward(f, outer);
 *     for (...) { shoal_fsdp_pre_forward(f, block); ... shoal_fsdp_post_forward(f, block); }
 *     shoal_fsdp_post_forward(f, outer);
 *
 * Tied embeddings: a parameter that the first and the last layer use is added once, to a unit that is open around the
 * layers between, in both passes. Both layers add to the same gradient, which is reduced once. SHOAL_RESHARD_NEVER
 * keeps such a unit gathered from its forward to its backward pass.
 *
 *     shoal_fsdp_pre_backward(f, ends);         output_backward(..., shoal_fsdp_grad(f, wte));
 *                                               ... the blocks, from the last to the first ...
 *                                               embedding_backward(..., shoal_fsdp_grad(f, wte));
 *     shoal_fsdp_post_backward(f, ends);
 *
 * A unit may also be opened twice in a pass (pre, post, ..., pre, post). It is then gathered twice, and each
 * post_backward reduces what was added since the one before. The gradient is the mean of the first use plus the mean
 * of the second: the same number as the mean of the sums, except for rounding.
 *
 * Several backward passes in a step: their gradients are summed. To average k of them, set divide_factor to k times
 * the number of ranks, or divide the loss by k. By default each backward pass is reduced, and the results are added.
 * With shoal_fsdp_set_sync off for all but the last, kernels go on adding to the same buffers, which are reduced once.
 *
 * ZeRO-1 and ZeRO-2 (`sharded` of the options, shoal_sharded): the same calls and the same bits, but whole parameters
 * stay from step to step. Shards count as written after shoal_fsdp_update_shard, shoal_fsdp_zero_grad or a hook of
 * shoal_fsdp_set_accumulated_hook; the next forward pass then gathers its units again, one unit ahead. A program that
 * writes to shards through addresses it has kept must therefore call shoal_fsdp_update_shard or shoal_fsdp_zero_grad
 * after each update.
 *
 * Bits: with f32, n ranks give the bits of one process that computes the n parts of the batch one after the other, if
 *   - each part has a gradient buffer of its own, which starts with zeros. A process whose kernels add all parts to
 *     one buffer makes the same additions in another order;
 *   - these buffers are added in rank order, ((g0 + g1) + g2) + ..., and the sum is divided by n. A product with 1.0f
 *     / n is rounded differently unless n is a power of two;
 *   - both programs compile their kernels with the same options, and without -Ofast or -ffast-math, which let the
 *     compiler reorder sums and replace divisions;
 *   - divide_factor is 0, or n and there is one replica. Any other factor is applied to the gradients before they are
 *     summed, unless force_sum is set.
 * Prefetching and resharding change no bits. With replicas, each replica computes its mean over the shards in this
 * way; the means are added in the order of the replicas, and divided by their number.
 *
 * Ranks: all ranks make the same calls in the same order, with the same units, shapes and options. A difference is
 * SHOAL_ERR_MISMATCH on all ranks, with a text that names the unit and both calls.
 * Ownership: the caller frees a context with shoal_fsdp_free. Names and initial values are copied. Addresses that
 * calls give are the library's. Once the world is closed, a context can only be looked at (shoal_fsdp_memory,
 * shoal_fsdp_get_layout) and freed.
 * Threads: one at a time for each context.
 * Errors: status and text. Wrong arguments change nothing. After SHOAL_ERR_PEER, _MISMATCH or _TIMEOUT every further
 * call on the context fails with that first reason; after other failures inside a step, shoal_fsdp_reset starts anew.
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
    size_t struct_size; /* sizeof(shoal_fsdp_options) */
    /* All zeros, as SHOAL_FSDP_OPTIONS_INIT sets them, are the defaults. Ranks compare options at the first forward
       pass. */
    shoal_dtype param_dtype;  /* of whole parameters and their gradients; 0 means that of stored parameters */
    shoal_dtype reduce_dtype; /* in which gradients are summed; 0 means the dtype of whole parameters */
    shoal_reshard reshard;    /* of all units; shoal_fsdp_set_reshard changes it for some */
    int reshard_ranks;        /* with SHOAL_RESHARD_PARTLY: from 1 up; divides the number of shards */
    /* How many units are gathered ahead in the forward pass, in the order of the forward pass before. 0 means 1, and -1
       means none. */
    int forward_prefetch;
    /* By what summed gradients are divided (shoal_fsdp_set_divide_factor); 0 means the number of ranks. */
    double divide_factor;
    bool force_sum;  /* gradients are summed, then divided (shoal_fsdp_set_force_sum) */
    int max_reduces; /* gradients of how many units may be reduced at once; 0 means 1 */
    /* What is cut among the ranks, of all units; 0 means parameters, gradients and state. */
    shoal_sharded sharded;
    /*
     * Where shards, whole parameters and gradients are (shoal_device_find): what shoal_fsdp_full_param,
     * shoal_fsdp_grad, shoal_fsdp_update_shard and hooks give are addresses there. Arrays of whole values, and slices
     * of them, are host memory all the same; those of shards are on the device. 0 means the CPU.
     */
    shoal_device device;
} shoal_fsdp_options;
#define SHOAL_FSDP_OPTIONS_INIT SHOAL_SIZED(shoal_fsdp_options)

/*
 * Makes a context whose parameters are sharded over the ranks of a group. options may be NULL. Local, but contexts are
 * numbered on their group in the order in which a rank makes them: all ranks make the same contexts in the same order,
 * even contexts that they do not use. If one rank has made one more, the first pre_forward of any context that comes
 * after it is SHOAL_ERR_MISMATCH ("sharded as number 1 on this group" here, "number 2" there). SHOAL_ERR_INVALID: an
 * option has a value that is not allowed.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_create(shoal_group *group,
                                                          const shoal_fsdp_options *options,
                                                          SHOAL_GIVES shoal_fsdp **fsdp_out);
/* Makes a context on a mesh. One dimension: shards over it. Two, with names: shards over the second, and replicas of
   these over the first (HSDP). SHOAL_ERR_INVALID: another number of dimensions, no names, or this rank is not in the
   mesh. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_create_on_mesh(shoal_mesh *mesh,
                                                                  const shoal_fsdp_options *options,
                                                                  SHOAL_GIVES shoal_fsdp **fsdp_out);
/*
 * Makes a context in which every rank keeps everything, and only gradients are averaged (DDP). All ranks start with
 * the same values, which they compare at the first forward pass, as the replicas of a mesh do. `sharded` of the
 * options must be 0.
 *
 * Gradients are averaged where they are written, so a rank holds each gradient once: shard.grad of
 * shoal_fsdp_update_shard points into memory that the ranks share, until zero_grad, or until the world is closed. (If
 * reduce_dtype differs from the parameters' dtype, there is a copy.)
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_create_replicated(shoal_group *group,
                                                                     const shoal_fsdp_options *options,
                                                                     SHOAL_GIVES shoal_fsdp **fsdp_out);
/* Frees a context, after waiting for what is in flight. Local. NULL is allowed; the context of a module is left
   alone. */
SHOAL_API void shoal_fsdp_free(SHOAL_TAKES shoal_fsdp *fsdp);

/* Parameters ------------------------------------------------------------------------------------------- */

typedef struct shoal_fsdp_unit_options {
    size_t struct_size; /* sizeof(shoal_fsdp_unit_options) */
    /* The ranks among which the parameters of the unit are cut: set one of the two, as for
       shoal_fully_shard_options. */
    shoal_group *group;
    shoal_mesh *mesh;
    bool is_replicated; /* with a group: every rank keeps everything, only gradients are averaged */
} shoal_fsdp_unit_options;
#define SHOAL_FSDP_UNIT_OPTIONS_INIT SHOAL_SIZED(shoal_fsdp_unit_options)

/*
 * Adds a unit whose parameters are cut among other ranks than the context's: an expert over its own ranks, a part with
 * replicas beside others without. Its number is that of the next new unit, *unit_out; unit_out may be NULL. Other
 * options are the context's. Parameters are then added to this number. Units over the context's own ranks need no such
 * call. "Several meshes" in shoal/fully_shard.h says what all ranks have in common.
 *
 * SHOAL_ERR_STATE: after the first forward pass. SHOAL_ERR_INVALID: options are wrong.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_add_unit(shoal_fsdp *fsdp,
                                                            const shoal_fsdp_unit_options *options,
                                                            int *unit_out);
/*
 * Adds a parameter to `unit`. Units are numbered 0, 1, 2, ... without gaps. Call it before the first forward pass, on
 * all ranks alike. `full` is the whole parameter, contiguous, of which this rank copies its part; NULL means zeros.
 * There must be at least one dimension; the first is cut, and need not be a multiple of the number of shards. `name` is
 * copied; it is used in error texts, by shoal_fsdp_find_param and in checkpoints. *id_out is the number of the
 * parameter: 0, 1, 2, ... in the order of adding; id_out may be NULL. A parameter of a dtype that is not floating gets
 * no gradient.
 *
 * SHOAL_ERR_STATE: after the first forward pass. SHOAL_ERR_UNSUPPORTED, at the first forward pass: parameters of one
 * unit that get gradients differ in dtype.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_add_param(shoal_fsdp *fsdp, int unit, const char *name,
                                                             shoal_dtype dtype, int n_dims,
                                                             const int64_t *shape, const void *full,
                                                             int *id_out);
/* shoal_fsdp_add_param for a parameter that is cut along dimension `dim` (negative: counted from the end). Unless that
   is the first, the number of shards must divide its size (SHOAL_ERR_UNSUPPORTED). */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_add_param_along(shoal_fsdp *fsdp, int unit,
                                                                   const char *name, shoal_dtype dtype,
                                                                   int n_dims, const int64_t *shape, int dim,
                                                                   const void *full, int *id_out);
/* Sets whether a parameter gets gradients. Default: true if its dtype is floating. Between steps, on all ranks alike.
   SHOAL_ERR_STATE: inside a step of its unit, or while gradients of the unit are pending. SHOAL_ERR_INVALID: its dtype
   is not floating. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_set_requires_grad(shoal_fsdp *fsdp, int id,
                                                                     bool is_required);
/*
 * Gives this rank's part of a parameter and of its gradient, for an optimizer to update. Call it after end_backward;
 * to update during the backward pass use shoal_fsdp_set_accumulated_hook. The address of the values stays the same
 * until the context is freed; that of the gradient is valid until the next step. The caller may write the values: if
 * the unit is still gathered, its next pre_forward gathers it again. All ranks must therefore ask alike; ranks that
 * differ get SHOAL_ERR_MISMATCH there. SHOAL_ERR_STATE: in a backward pass, or while reductions are in flight.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_update_shard(shoal_fsdp *fsdp, int id,
                                                                shoal_fsdp_shard *shard_out);
/* shoal_fsdp_update_shard for callers that only read, as a save does. Nothing is gathered again because of it, and it
   need not be called on all ranks. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_read_shard(const shoal_fsdp *fsdp, int id,
                                                              shoal_fsdp_shard *shard_out);
/* How many parameters were added. 0 for NULL. */
SHOAL_API int shoal_fsdp_n_params(const shoal_fsdp *fsdp);
/* Returns the handle of a parameter, for the calls of shoal/fsdp_unit.h. NULL, with the reason in shoal_error_text, if
   there is no such number. */
SHOAL_API shoal_fsdp_param *shoal_fsdp_param_of(shoal_fsdp *fsdp, int id);
/* Finds the number of the parameter with this name. SHOAL_ERR_INVALID: there is none, and the text has the nearest
   names; or two parameters have the name. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fsdp_find_param(const shoal_fsdp *fsdp, const char *name,
                                                              int *id_out);

/* A step ----------------------------------------------------------------------------------------------- */

/*
 * Stand around the computation of a unit. The pre_ calls gather its parameters, unless they are whole already, wait
 * for them, and start to gather the next unit. The post_ calls give them up, as the unit's settings say. post_backward
 * starts to reduce the unit's gradients. The first pre_forward of a context also compares units, parameters and
 * options of all ranks, and the values of replicas.
 *
 * SHOAL_ERR_STATE: a post_ call without its pre_ call, a pre_backward without a forward pass in this step, a
 * pre_forward while a backward pass has not been ended, or values were loaded between forward and backward pass.
 * Inside its own backward pass a unit may be opened for a forward pass again, to recompute activations.
 */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_fsdp_pre_forward(shoal_fsdp *fsdp, int unit);
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_fsdp_post_forward(shoal_fsdp *fsdp, int unit);
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_fsdp_pre_backward(shoal_fsdp *fsdp, int unit);
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_fsdp_post_backward(shoal_fsdp *fsdp, int unit);
/* Ends the backward pass: waits for all reductions, after which the gradients of all units are in the shards (unless
   shoal_fsdp_set_is_last_backward says that more backward passes follow). A unit whose post_backward was left out is
   ended as by that call. SHOAL_ERR_STATE after a post_backward that failed: call shoal_fsdp_reset. */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_fsdp_end_backward(shoal_fsdp *fsdp);

/*
 * Ends forward passes that no backward pass follows, as in an evaluation. Whole parameters that were kept for the
 * backward pass are given up, gathers that nothing has used are ended, and the order of these forward passes is what
 * the next ones prefetch by. Without this call a loop of forward passes remembers all of them, and parameters that are
 * kept (SHOAL_RESHARD_NEVER and _PARTLY) see new values only if these were loaded, or if shoal_fsdp_update_shard was
 * called since they were gathered. SHOAL_ERR_STATE: a unit is still open, or a backward pass has not been ended.
 */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_fsdp_end_forward(shoal_fsdp *fsdp);

/* Returns the whole parameter, in param_dtype. Valid from pre_forward to post_forward of its unit, from pre_backward
   to post_backward, and from shoal_fsdp_wait until it is given up; otherwise NULL, with the reason in
   shoal_error_text. It can only be read: with several shards a write may be a segmentation fault. */
SHOAL_API const void *shoal_fsdp_full_param(shoal_fsdp *fsdp, int id);
/*
 * Returns the whole gradient of a parameter, in param_dtype, for kernels to add to. Valid from pre_backward to
 * post_backward; otherwise, and for a parameter that gets no gradient, NULL, with the reason in shoal_error_text. It
 * starts with zeros, or with the gradients that are pending because the last backward pass did not reduce
 * (shoal_fsdp_set_sync). If reduce_dtype differs from param_dtype it always starts with zeros, and is added to the
 * pending ones in reduce_dtype.
 */
SHOAL_API void *shoal_fsdp_grad(shoal_fsdp *fsdp, int id);
/*
 * Returns the memory of shoal_fsdp_grad without clearing it, for kernels that can store as well as add (a matrix
 * product with beta 0 or 1). That saves a pass over the memory. If *has_values_out is false, the memory holds
 * anything, and the caller must store every element before post_backward. If it is true, the caller must add: to
 * pending gradients of an earlier backward pass, or to what was added in this one. NULL as shoal_fsdp_grad.
 */
SHOAL_API void *shoal_fsdp_grad_to_store(shoal_fsdp *fsdp, int id, bool *has_values_out);

SHOAL_END_DECLS

#endif
