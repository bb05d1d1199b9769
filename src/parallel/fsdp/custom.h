/* SPDX-License-Identifier: MIT */
/*
 * Gathers and reduce-scatters by objects of the program (shoal/fsdp_comm.h). Nothing is shared then: what is sent is packed
 * into memory that the object gave, rank after rank, and unpacked from it.
 *
 *   gathered    [ranks, S]: rank w's row is its shard of every parameter, padded, in the dtype of compute; one dtype: the
 *               shards one after the other; several: bytes, each shard at a multiple of 16
 *   reduced     [ranks, S] in the dtype of the reduction: row w is what rank w gets, block after block, padded
 */
#ifndef PARALLEL_FSDP_CUSTOM_H
#define PARALLEL_FSDP_CUSTOM_H

#include "parallel/fsdp/unit.h"

/* What a caller gave, checked; NULL is all zeros, which means none. */
shoal_status fsdp_custom_read_gather(const char *call, const shoal_custom_all_gather *given,
                                     shoal_custom_all_gather *custom_out);
shoal_status fsdp_custom_read_scatter(const char *call, const shoal_custom_reduce_scatter *given,
                                      shoal_custom_reduce_scatter *custom_out);

/* What a callback that failed has left behind; the text of its error stays. */
void fsdp_custom_drop_work(shoal_work **work);

/* The gather of a unit that has an object for it: into unit->staged, with unit->gather if something was left to wait for;
   then, once that is over, into unit->full. The memory of the object is given back whatever happens. */
shoal_status fsdp_custom_start_gather(struct fsdp_unit *unit);
shoal_status fsdp_custom_end_gather(struct fsdp_unit *unit);
void fsdp_custom_drop_gather(struct fsdp_unit *unit);

/* Likewise: from the buffer to reduction->staged, with reduction->work, and from there to the output. */
shoal_status fsdp_custom_start_scatter(struct fsdp_reduction *reduction);
void fsdp_custom_end_scatter(struct fsdp_reduction *reduction);
void fsdp_custom_drop_scatter(struct fsdp_reduction *reduction);

#endif
