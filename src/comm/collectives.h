/* SPDX-License-Identifier: MIT */
/*
 * Collectives for the layers above: what the public calls do, with a purpose that ranks compare (transport/purpose.h).
 * Arguments are checked as in the public calls.
 */
#ifndef COMM_COLLECTIVES_H
#define COMM_COLLECTIVES_H

#include <stddef.h>

#include "shoal/group.h"
#include "shoal/work.h"
#include "transport/collective.h"

struct work_hooks; /* comm/work.h */

/*
 * `call` as for the public call of its kind: dtype, single (buffers and count; a broadcast has its buffer in both), and
 * reduce, factor (premul_sum), root and counts where the kind has them. The caller's purpose and counts are copied where
 * they are needed beyond the call.
 */
shoal_status collectives_run(shoal_group *group, struct collective *call);
shoal_status collectives_start(shoal_group *group, struct collective *call, shoal_work **work_out);
/* With a list of parts in place of `single`. */
shoal_status collectives_run_list(shoal_group *group, struct collective *call, const shoal_part *parts,
                                  size_t n_parts);
shoal_status collectives_start_list(shoal_group *group, struct collective *call, const shoal_part *parts,
                                    size_t n_parts, shoal_work **work_out);

/* Either, with functions that are called at the end; hooks: NULL for none. */
shoal_status collectives_start_with(shoal_group *group, struct collective *call, const shoal_part *parts,
                                    size_t n_parts, const struct work_hooks *hooks, shoal_work **work_out);

shoal_status collectives_barrier(shoal_group *group, const struct purpose *purpose);
shoal_status collectives_barrier_start(shoal_group *group, const struct purpose *purpose,
                                       shoal_work **work_out);

/* shoal_window_gather_start with a purpose in place of a label. */
shoal_status collectives_window_gather_start(shoal_window *window, const shoal_window_piece *pieces,
                                             size_t n_pieces, const struct purpose *purpose,
                                             shoal_work **work_out);

/*
 * Only the checks that a call with `pieces` in place goes through before it is issued. is_list: texts name the part. For
 * comm/prepared.c.
 */
shoal_status collectives_check(shoal_group *group, const struct collective *call, bool is_list);

/*
 * 1, 2, 3, ... on each group: which of the models, contexts or wrappers made on it this is. Ranks make them in the same
 * order; the number is the root of a purpose, so that those that do not are told. It is compared on lanes of this group
 * only: another group over some of the same ranks may have numbered others.
 */
uint32_t collectives_next_root(shoal_group *group);

#endif
