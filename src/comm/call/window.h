/* SPDX-License-Identifier: MIT */
/* Gathers into windows for comm/call/prepared.c: a generation is numbered when the gather is issued. */
#ifndef COMM_CALL_WINDOW_H
#define COMM_CALL_WINDOW_H

#include "shoal/group.h"
#include "shoal/window.h"
#include "transport/collective.h"

struct lane_work;

/* `call` has window_pieces, label, purpose and timeout. Checked as by shoal_window_gather_start. */
shoal_status window_prepare(shoal_window *window, struct shoal_group *group, const struct collective *call,
                            struct lane_work **work_out);
/* Issues such a work again (lane_issue_again), as the next generation. */
shoal_status window_start_again(shoal_window *window, struct lane_work *work);

#endif
