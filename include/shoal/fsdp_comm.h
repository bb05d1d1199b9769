/* SPDX-License-Identifier: MIT */
/*
 * What programs may put into the communication of fully sharded data parallelism, for both ways in: shoal/fsdp_unit.h
 * has the calls that take these.
 *
 * Ranks: all ranks set the same, and callbacks are called in the same order on all of them.
 * Ownership: a callback and its context must stay until they are replaced, or what they were given to is freed.
 * Threads: callbacks run on the thread whose call they are part of. They may use groups of the program's own, and must
 * not call what they are part of: steps, gathers by hand, reset and the like are SHOAL_ERR_STATE there.
 * Errors: a status that is not SHOAL_OK becomes that of the call, or of shoal_backward; the step can be reset then.
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

/* The gradients of one unit, this rank's shards of them one after the other, each at a multiple of 64 bytes, with zeros
   between and behind. */
typedef struct shoal_reduced_gradients {
    size_t struct_size; /* how much of it the library has filled in: the size it has there */
    void *data;         /* to be changed in place */
    size_t count;
    shoal_dtype dtype;     /* in which gradients are reduced */
    shoal_group *shards;   /* over which shards they have been added; NULL: there is one shard */
    shoal_group *replicas; /* over which replicas; NULL: there is one replica */
    const char *unit;      /* its name */
} shoal_reduced_gradients;
#define SHOAL_REDUCED_GRADIENTS_INIT SHOAL_SIZED(shoal_reduced_gradients)

/*
 * Called when the gradients of a unit have been added up over the shards and, if there are any, the replicas; not for
 * those that are only kept (no synchronization, no all-reduce). What it leaves in `data` is divided if that is still to
 * be done (factors that do not go with the reduction), cast and added to the gradients of the shards. Typical: an
 * all-reduce over replicas of the program's own.
 *
 * *work_out is NULL. A hook that starts something instead of waiting for it puts the work there: it is waited for
 * before `data` is read, and freed, while the step goes on. `reduced` is gone when the hook returns, `data` stays until
 * then.
 *
 * If it fails on some ranks only, the step fails on all: the others are told with its error text as soon as they need
 * the rank, unless they wait for it on a group of the program's own. The same holds for the objects below.
 */
typedef shoal_status (*shoal_all_reduce_hook)(void *context, const shoal_reduced_gradients *reduced,
                                              shoal_work **work_out);

/*
 * Objects that gather parameters and reduce gradients instead of the library. What is sent and received lies in their
 * memory, in one piece, rank after rank; nothing is shared inside a host then, so that every rank has full parameters
 * of its own. Not called where there is one shard.
 *
 * Each call may wait, or leave a work in *work_out, which is NULL before: that is waited for when the result is needed,
 * and freed. Memory is that of `allocate`, aligned as malloc does it, given back by `release` once the result has been
 * copied, or the call has failed. Both NULL: memory of the library.
 */
typedef void *(*shoal_custom_allocate)(void *context, size_t bytes); /* NULL: there is none */
typedef void (*shoal_custom_release)(void *context, void *memory, size_t bytes);

typedef struct shoal_custom_all_gather {
    size_t struct_size; /* sizeof(shoal_custom_all_gather) */
    shoal_custom_allocate allocate;
    shoal_custom_release release;
    /*
     * In place: `in`, count elements, is out + rank * count. Every rank sends its shard of each parameter of the unit,
     * with zeros behind it where it is short, in the dtype of compute, one after the other; if dtypes differ, bytes
     * (SHOAL_U8), each shard at a multiple of 16. The group has the ranks with the shards, or the neighbours over which
     * parameters stay after forward.
     */
    shoal_status (*call)(void *context, void *out, const void *in, size_t count, shoal_dtype dtype,
                         shoal_group *group, shoal_work **work_out);
    void *context; /* of all three */
} shoal_custom_all_gather;
#define SHOAL_CUSTOM_ALL_GATHER_INIT SHOAL_SIZED(shoal_custom_all_gather)

typedef struct shoal_custom_reduce_scatter {
    size_t struct_size; /* sizeof(shoal_custom_reduce_scatter) */
    shoal_custom_allocate allocate;
    shoal_custom_release release;
    /*
     * From `in`, n_ranks * count elements, to `out`, count of them: block w of `in` is for rank w, the padded rows of
     * each parameter that has a gradient one after the other. SHOAL_SUM, SHOAL_AVG, or SHOAL_PREMUL_SUM, which goes
     * with `factor`.
     */
    shoal_status (*call)(void *context, void *out, const void *in, size_t count, shoal_dtype dtype,
                         shoal_reduce_op reduce, double factor, shoal_group *group, shoal_work **work_out);
    void *context; /* of all three */
} shoal_custom_reduce_scatter;
#define SHOAL_CUSTOM_REDUCE_SCATTER_INIT SHOAL_SIZED(shoal_custom_reduce_scatter)

SHOAL_END_DECLS

#endif
