/* SPDX-License-Identifier: MIT */
/*
 * Collectives for the layers above: what the public calls do, with a purpose that ranks compare (transport/purpose.h).
 * Arguments are checked as in the public calls.
 */
#ifndef COMM_CALL_COLLECTIVES_H
#define COMM_CALL_COLLECTIVES_H

#include <stddef.h>

#include "shoal/group.h"
#include "shoal/work.h"
#include "transport/collective.h"

struct work_hooks; /* comm/lane/work.h */

/*
 * `call` is filled in as the public call of its kind needs it: dtype; `single`, the buffers and the count (of a
 * broadcast, both buffers are the same); reduce, factor (premul_sum), root and counts where the kind has them. The
 * caller's purpose and counts are copied if they are needed beyond the call.
 */
shoal_status collectives_run(shoal_group *group, struct collective *call);
shoal_status collectives_start(shoal_group *group, struct collective *call, shoal_work **work_out);
/* Run and start collectives with a list of parts in place of `single`. Their device is that of `call`: fields `device`
   of parts are not looked at. */
shoal_status collectives_run_list(shoal_group *group, struct collective *call, const shoal_part *parts,
                                  size_t n_parts);
shoal_status collectives_start_list(shoal_group *group, struct collective *call, const shoal_part *parts,
                                    size_t n_parts, shoal_work **work_out);

/* Starts a call with a list, or without if n_parts is 0, and with functions that are called at its end. hooks may be
   NULL. */
shoal_status collectives_start_with(shoal_group *group, struct collective *call, const shoal_part *parts,
                                    size_t n_parts, const struct work_hooks *hooks, shoal_work **work_out);

shoal_status collectives_barrier(shoal_group *group, const struct purpose *purpose);
shoal_status collectives_barrier_start(shoal_group *group, const struct purpose *purpose,
                                       shoal_work **work_out);

/* shoal_window_gather_start with a purpose in place of a label, and a decoder, which may be NULL. */
shoal_status collectives_window_gather_start(shoal_window *window, const shoal_window_piece *pieces,
                                             size_t n_pieces, const struct purpose *purpose,
                                             const struct window_decoder *decoder, shoal_work **work_out);

/*
 * Makes only the checks that precede issuing a call whose `pieces` are set. With is_list, error texts name the part.
 * For comm/call/prepared.c.
 */
shoal_status collectives_check(shoal_group *group, const struct collective *call, bool is_list);

/*
 * Numbers the models, contexts and wrappers made on a group: 1, 2, 3, ... Ranks make them in the same order. The number
 * is the root of a purpose, so ranks that use a different order get a mismatch. It is compared only on lanes of this
 * group, because another group over some of the same ranks may have different numbers.
 */
uint32_t collectives_next_root(shoal_group *group);

#endif
