/* SPDX-License-Identifier: MIT */
/* Checks of the buffers that a collective is called with. */
#ifndef COMM_CALL_BUFFERS_H
#define COMM_CALL_BUFFERS_H

#include <stdbool.h>

#include "shoal/status.h"
#include "transport/collective.h"

struct transport_peers;

/* As many parts as fit on the stack; a list of more is copied to the heap. */
#define BUFFERS_FEW 32

/*
 * Returns SHOAL_OK, or SHOAL_ERR_INVALID with what is wrong: a NULL, a size that is too large, or an overlap. The
 * caller has checked dtype, root and the presence of counts, and has set `pieces`. With is_list, error texts name the
 * part.
 */
shoal_status buffers_check(const struct transport_peers *peers, const struct collective *call, bool is_list);

#endif
