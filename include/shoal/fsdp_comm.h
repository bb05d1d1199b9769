/* SPDX-License-Identifier: MIT */
/*
 * Callbacks of the program in the communication of fully sharded data parallelism: a hook that sees reduced gradients,
 * objects that gather parameters and reduce gradients instead of the library, and extensions, by which a parameter says
 * what is gathered of it. shoal/fsdp_unit.h has the calls that set them: shoal_fsdp_set_all_reduce_hook,
 * shoal_fsdp_set_custom_all_gather, shoal_fsdp_set_custom_reduce_scatter and shoal_fsdp_set_gather_extension.
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
 * Devices: where the unit is on a device, so is all memory that callbacks get and allocate. They read and write it by
 * collectives with that device (shoal_collective.device) or behind the device's compute stream, and `release` gives
 * memory back behind that stream, too: what reads it may not have run yet. Extensions need host memory.
 * Errors: if a callback returns another status than SHOAL_OK, the call that it is part of, or shoal_backward, fails
 * with that status; shoal_fsdp_reset ends the step. If it fails on some ranks only, the step fails on all: the other
 * ranks get its error text as soon as they need that rank, unless they are waiting for it on a group of the program's
 * own.
 */
#ifndef SHOAL_FSDP_COMM_H
#define SHOAL_FSDP_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/api.h"
#include "shoal/dtype.h"
#include "shoal/group.h"
#include "shoal/status.h"
#include "shoal/tensor.h"
#include "shoal/work.h"

SHOAL_BEGIN_DECLS

/* The reduced gradients of one unit: this rank's shards of them one after the other, each at a multiple of 64 bytes,
   with zeros in the gaps and at the end. A hook that treats all elements alike, as an all-reduce does, need not know
   where the shards are; others walk them with shoal_reduced_gradients_part. */
typedef struct shoal_reduced_gradients {
    size_t struct_size;    /* how much of it the library has filled in: the size it has there */
    void *data;            /* the hook may change it in place */
    size_t count;          /* elements, gaps included */
    shoal_dtype dtype;     /* the dtype in which gradients are reduced */
    shoal_group *shards;   /* over which they were reduced; NULL if there is one shard */
    shoal_group *replicas; /* over which they were reduced, too; NULL if there is one replica */
    const char *unit;      /* the name of the unit */
    size_t n_parts;        /* how many parameters of the unit have a gradient */
    const void *layout;    /* for shoal_reduced_gradients_part */
    shoal_device device;   /* whose memory data is */
} shoal_reduced_gradients;
#define SHOAL_REDUCED_GRADIENTS_INIT SHOAL_SIZED(shoal_reduced_gradients)

/* This rank's shard of one reduced gradient. */
typedef struct shoal_reduced_part {
    size_t struct_size; /* sizeof(shoal_reduced_part), set by the caller */
    const char *name;   /* of the parameter, as shoal_fsdp_param_name gives it */
    void *data;         /* inside the data of the unit */
    size_t count;       /* elements, without those that pad it; 0 if this rank's part is empty */
} shoal_reduced_part;
#define SHOAL_REDUCED_PART_INIT SHOAL_SIZED(shoal_reduced_part)

/*
 * Tells where the shard of one gradient is, in a hook: number `index` from 0 to n_parts - 1, in the order in which the
 * parameters were added. What it gives is valid as long as `reduced`. SHOAL_ERR_INVALID: there is no such part.
 *
 *     for (size_t i = 0; i < reduced->n_parts; i++) {
 *         shoal_reduced_part part = SHOAL_REDUCED_PART_INIT;
 *         status = shoal_reduced_gradients_part(reduced, i, &part);
 *         ... part.data[0 .. part.count) are the gradients of part.name ...
 *     }
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_reduced_gradients_part(const shoal_reduced_gradients *reduced,
                                                                     size_t index,
                                                                     shoal_reduced_part *part_out);

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

/*
 * Extensions of gathers. A parameter says which buffers are gathered in place of its elements, and how they become the
 * whole parameter: int8 with a scale for each row is a quarter of f32 (examples/17_int8_gather.c). Shards, gradients,
 * optimizers and checkpoints do not change. What PyTorch calls fsdp_pre_all_gather and fsdp_post_all_gather.
 *
 * A row is an index of the first dimension, which must be the one that is cut. With is_by_rows each row is encoded and
 * decoded without the others. Then whole parameters exist once per host, as without an extension: each rank encodes
 * its rows and decodes them where all ranks of its host read them; to other hosts go the encoded bytes, and one rank
 * there decodes them. Otherwise `decode` gets the buffers of all ranks, and every rank has whole parameters of its own,
 * for all parameters of the unit.
 */

/* How many buffers an extension may have. */
#define SHOAL_GATHER_MAX_BUFFERS 8

typedef struct shoal_gather_buffer {
    shoal_dtype dtype; /* SHOAL_U8 for packed bytes */
    size_t
        count; /* elements for each row, with is_by_rows; otherwise elements of each rank, the same on all */
} shoal_gather_buffer;

/* The rows of a parameter that are encoded or decoded. Valid during the call. */
typedef struct shoal_gather_rows {
    size_t struct_size; /* how much of it the library has filled in: the size it has there */
    const char *name;   /* of the parameter */
    int64_t first;      /* the number of the first row */
    int64_t count;      /* how many rows; 0 if this rank has none */
    size_t row_count;   /* elements of a row */
    shoal_dtype dtype;  /* of the shard, in which rows are encoded */
    shoal_dtype
        compute; /* of the whole parameter, to which rows are decoded: param_dtype, or the one of the shard */
    const void *metadata; /* as declared */
    size_t metadata_bytes;
    shoal_group
        *group;   /* encode: the ranks among which the parameter is cut; NULL if there is one; decode: NULL */
    int n_shards; /* into how many parts it is cut */
} shoal_gather_rows;
#define SHOAL_GATHER_ROWS_INIT SHOAL_SIZED(shoal_gather_rows)

typedef struct shoal_gather_extension {
    size_t struct_size; /* sizeof(shoal_gather_extension) */
    const char *name;   /* says which functions these are: ranks compare it */
    bool is_by_rows;
    size_t n_buffers; /* 1 ... SHOAL_GATHER_MAX_BUFFERS */
    const shoal_gather_buffer *buffers;
    const void *metadata; /* bytes that both functions get; ranks compare them. NULL if there are none */
    size_t metadata_bytes;
    /* Encodes this rank's rows, rows->count * rows->row_count elements at `shard`, into the buffers, which are zeroed,
       aligned to 16 bytes, and have room for rows->count rows. Called on each rank for each gather, on the thread that
       starts it, also if there are no rows; it may run collectives on rows->group, on all ranks alike. */
    shoal_status (*encode)(void *context, const shoal_gather_rows *rows, const void *shard,
                           void *const *buffers);
    /* Decodes rows from the buffers to `out`, in the dtype rows->compute. It must not call functions that wait for
       ranks. With is_by_rows: rows->count rows of one rank; it may then run on a thread of the library, while other
       calls of encode and decode run. Otherwise: all rows; each buffer has the elements of all ranks, rank after rank,
       as encode wrote them, and the call is made on the thread that waits for the gather. */
    shoal_status (*decode)(void *context, const shoal_gather_rows *rows, const void *const *buffers,
                           void *out);
    void *context; /* given to both functions */
} shoal_gather_extension;
#define SHOAL_GATHER_EXTENSION_INIT SHOAL_SIZED(shoal_gather_extension)

SHOAL_END_DECLS

#endif
