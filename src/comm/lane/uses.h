/* SPDX-License-Identifier: MIT */
/* Which memory operations use: for finding the works in flight on memory that somebody is about to use. */
#ifndef COMM_LANE_USES_H
#define COMM_LANE_USES_H

#include "comm/lane/handles.h"
#include "transport/collective.h"
#include "transport/transport.h"

/* What is looked for. */
struct work_search {
    work_uses uses; /* comm/lane/handles.h */
    void *context;
};

/* Whether the search is for one of the buffers that this rank has in the call. */
bool collective_is_wanted(const struct collective *call, const struct transport_peers *peers,
                          const struct work_search *search);

#endif
