/* SPDX-License-Identifier: MIT */
/*
 * A collective that is started often: everything it needs is allocated once, and starting it allocates nothing. It
 * takes its place in the order of the group's collectives when it is started, and is compared there like any other.
 */
#ifndef COMM_CALL_PREPARED_H
#define COMM_CALL_PREPARED_H

#include <stdint.h>

#include "shoal/group.h"
#include "transport/collective.h"

struct prepared;

/*
 * Prepares `call`, which is filled in and checked as for collectives_start (comm/call/collectives.h). If n_pieces is above
 * 1, `pieces` are used in place of `single`. For COLLECTIVE_WINDOW_GATHER `window` is the window, otherwise NULL.
 * Arrays and the purpose are copied. Does not communicate.
 */
shoal_status prepared_create(shoal_group *group, const struct collective *call, shoal_window *window,
                             struct prepared **prepared_out);
/* Waits for its end if it was started, because peers may wait for this rank. NULL is allowed. */
void prepared_free(struct prepared *prepared);

/* Sets the buffers of a piece for later starts. Their sizes stay. Not while it runs. */
void prepared_set_buffers(struct prepared *prepared, size_t piece, const void *send, void *recv);
void prepared_set_window_data(struct prepared *prepared, size_t piece, const void *data);

/* SHOAL_ERR_STATE while it runs. */
shoal_status prepared_start(struct prepared *prepared);
/* Waits for the end of the last start, at most until the group's deadline, and returns its result. If it does not
   run, returns the result of the last start at once. */
shoal_status prepared_wait(struct prepared *prepared);
/* Starts and waits in one call, which is cheaper on an idle lane. Not for window gathers. SHOAL_ERR_STATE while it
   runs. */
shoal_status prepared_run(struct prepared *prepared);
bool prepared_is_running(const struct prepared *prepared);

#endif
