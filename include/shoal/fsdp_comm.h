/* SPDX-License-Identifier: MIT */
/*
 * Callbacks of the program in the communication of fully sharded data parallelism: a hook that sees reduced gradients,
 * and objects that gather parameters and reduce gradients instead of the library. shoal/fsdp_unit.h has the calls that
 * set them: shoal_fsdp_set_all_reduce_hook, shoal_fsdp_set_custom_all_gather and shoal_fsdp_set_custom_reduce_scatter.
 * They work for both ways to shard, shoal/fsdp.h and shoal/fully_shard.h.
 *
 *     static shoal_status over_hosts(void *context, const shoal_reduced_gradients *reduced, shoal_work **work_out)
 *     {
 *         return shoal_group_all_reduce_start(context, reduced->data, reduced->data, reduced->count, reduced->dtype,
 *                                             SHOAL_AVG, work_out);
 *     }
 *
 *     status = shoal_fsdp_set_all_reduce_hook(shoal_fsdp_unit_of(f, SHOAL_FSDP_ALL_UNITS), over_hosts, other_group);
 *
 * Ranks: all ranks set the same callbacks, which are then called in the same order on all of them.
 * Ownership: a callback and its context must live until they are replaced, or until the units that they were set for
 * are freed.
 * Threads: a callback runs on the thread that made the call of which it is a part. It may use the group that it is
 * given, and groups of the program's own. It must not call back into the context that it is part of: steps, gathers by
 * hand, reset and the like are SHOAL_ERR_STATE there.
 * Errors: if a callback returns another status than SHOAL_OK, the call that it is part of, or shoal_backward, fails
 * with that status; shoal_fsdp_reset ends the step. If it fails on some ranks only, the step fails on all: the other
 * ranks get its error text as soon as they need that rank, unless they are waiting for it on a group of the program's
 * own.
 */
#ifndef SHOAL_FSDP_COMM_H
#define SHOAL_FSDP_COMM_H

#include <stddef.h>

#include "shoal/api.h"
#include "shoal/dtype.h"
#include "shoal/group.h"
#include "shoal/status.h"
#include "shoal/work.h"

SHOAL_BEGIN_DECLS

/* The reduced gradients of one unit: this rank's shards of them one after the other, each at a multiple of 64 bytes,
   with zeros in the gaps and at the end. */
typedef struct shoal_reduced_gradients {
    size_t struct_size;    /* how much of it the library has filled in: the size it has there */
    void *data;            /* the hook may change it in place */
    size_t count;          /* elements, gaps included */
    shoal_dtype dtype;     /* the dtype in which gradients are reduced */
    shoal_group *shards;   /* over which they were reduced; NULL if there is one shard */
    shoal_group *replicas; /* over which they were reduced, too; NULL if there is one replica */
    const char *unit;      /* the name of the unit */
} shoal_reduced_gradients;
#define SHOAL_REDUCED_GRADIENTS_INIT SHOAL_SIZED(shoal_reduced_gradients)

/*
 * Called when the gradients of a unit have been reduced over the shards and, if there are any, over the replicas. It
 * is not called for gradients that stay pending (shoal_fsdp_set_sync, shoal_fsdp_set_all_reduce). Afterwards `data` is
 * divided, if the reduction has not done that already, cast to the dtype of the shards, and added to their gradients.
 * Typical use: an all-reduce over further replicas.
 *
 * *work_out is NULL before. A hook that starts an operation instead of waiting for it puts its work there; the library
 * waits for the work before it reads `data`, and frees it, while the step goes on. `reduced` is valid during the call
 * only; `data` stays until the work has ended.
 */
typedef shoal_status (*shoal_all_reduce_hook)(void *context, const shoal_reduced_gradients *reduced,
                                              shoal_work **work_out);

/*
 * Objects that gather parameters and reduce gradients instead of the library. What is sent and received lies in one
 * piece of memory, rank after rank. Ranks share no memory then: every rank has whole parameters of its own. They are
 * not called if there is only one shard.
 *
 * `call` may wait for its result, or start an operation and put its work in *work_out, which is NULL before; the
 * library then waits for the work when it needs the result, and frees it. Memory comes from `allocate`, aligned as
 * malloc does it (if it returns NULL, the call is SHOAL_ERR_NO_MEMORY), and goes back to `release` when the result has
 * been copied or the call has failed. Set both or neither (SHOAL_ERR_INVALID otherwise); if both are NULL, the library
 * allocates.
 */
typedef void *(*shoal_custom_allocate)(void *context, size_t bytes);
typedef void (*shoal_custom_release)(void *context, void *memory, size_t bytes);

typedef struct shoal_custom_all_gather {
    size_t struct_size; /* sizeof(shoal_custom_all_gather) */
    shoal_custom_allocate allocate;
    shoal_custom_release release;
    /* Gathers `count` elements of each rank into `out`, rank after rank. In place: `in` is out + rank * count. Each
       rank sends its shard of every parameter of the unit, one after the other, in param_dtype or, if that is 0, as
       stored, padded with zeros to the length of the longest shard. If parameters differ in dtype, `dtype` is
       SHOAL_U8, and each shard begins at a multiple of 16 bytes. `group` has the ranks of the shards or,
       with SHOAL_RESHARD_PARTLY in the backward pass, the neighbours. */
    shoal_status (*call)(void *context, void *out, const void *in, size_t count, shoal_dtype dtype,
                         shoal_group *group, shoal_work **work_out);
    void *context; /* given to all three functions */
} shoal_custom_all_gather;
#define SHOAL_CUSTOM_ALL_GATHER_INIT SHOAL_SIZED(shoal_custom_all_gather)

typedef struct shoal_custom_reduce_scatter {
    size_t struct_size; /* sizeof(shoal_custom_reduce_scatter) */
    shoal_custom_allocate allocate;
    shoal_custom_release release;
    /* Reduces `in`, n_ranks * count elements, to `out`, count elements: block r of `in` is for rank r, and holds the
       padded shards of all parameters that have gradients, one after the other. `reduce` is SHOAL_SUM, SHOAL_AVG, or
       SHOAL_PREMUL_SUM, which multiplies by `factor` first. */
    shoal_status (*call)(void *context, void *out, const void *in, size_t count, shoal_dtype dtype,
                         shoal_reduce_op reduce, double factor, shoal_group *group, shoal_work **work_out);
    void *context; /* given to all three functions */
} shoal_custom_reduce_scatter;
#define SHOAL_CUSTOM_REDUCE_SCATTER_INIT SHOAL_SIZED(shoal_custom_reduce_scatter)

SHOAL_END_DECLS

#endif
