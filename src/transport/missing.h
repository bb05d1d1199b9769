/* SPDX-License-Identifier: MIT */
/* Members that did not make a call before its deadline: who they are, and the error that names them. */
#ifndef TRANSPORT_MISSING_H
#define TRANSPORT_MISSING_H

#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"
#include "transport/transport.h"

/* Begins as {.peers = ...}. */
struct missing_members {
    const struct transport_peers *peers;
    int n_missing;
    int first;       /* group rank */
    int n_named;     /* of them in the text */
    char names[160]; /* world ranks: " 1, 3" */
    size_t at;       /* the length of the names */
};

/* Members are added in the order of their group ranks. */
void missing_add(struct missing_members *missing, int group_rank);

/*
 * Returns SHOAL_ERR_TIMEOUT, with a text that names the call, the members that are missing, and how far the first of
 * them has come. This shows when a rank made the call on another group, or on one of the same ranks in another order.
 * n_calls is how many collectives that member has called on this group. Only the number is reported, because the member
 * may be making its next call while this rank looks.
 */
shoal_status missing_fail(struct missing_members *missing, const struct collective *collective,
                          uint32_t n_calls);

#endif
