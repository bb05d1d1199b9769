/* SPDX-License-Identifier: MIT */
/* Collectives for the layers above, beyond what the public calls offer. */
#ifndef COMM_COLLECTIVES_H
#define COMM_COLLECTIVES_H

#include <stddef.h>
#include <stdint.h>

#include "shoal/group.h"
#include "transport/collective.h"

/*
 * shoal_group_all_reduce_list_start and shoal_group_reduce_scatter_list_start, with a label that must be the same on all
 * ranks, 1 ... 2^31 - 1: lists of the same counts that stand for different things are not mixed up. `factor` for
 * premul_sum only.
 */
shoal_status collectives_start_list(shoal_group *group, enum collective_kind kind, const shoal_part *parts,
                                    size_t n_parts, shoal_dtype dtype, shoal_reduce reduce, double factor,
                                    uint32_t label, shoal_work **work_out);

/* shoal_group_barrier and shoal_group_barrier_start with such a label. */
shoal_status collectives_barrier(shoal_group *group, uint32_t label);
shoal_status collectives_barrier_start(shoal_group *group, uint32_t label, shoal_work **work_out);

#endif
