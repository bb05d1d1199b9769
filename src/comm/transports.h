/* SPDX-License-Identifier: MIT */
/*
 * Which transport carries a group. Asked for by name (shoal_world_options.transport, SHOAL_TRANSPORT) it is the same for all
 * groups; otherwise it follows from the hosts of the members: the first row of transports.def that can carry them.
 */
#ifndef COMM_TRANSPORTS_H
#define COMM_TRANSPORTS_H

#include <stdint.h>

#include "shoal/status.h"
#include "transport/transport.h"

struct card;
struct shoal_world;
struct transports;

/* What a world keeps for transports; its rank, size and transport are known. NULL: no memory. */
struct transports *transports_create(struct shoal_world *world);

/*
 * After the meeting: the cards say which ranks share a host. Transports that groups of this world may use, and that keep
 * something for a world, are opened.
 */
shoal_status transports_open(struct transports *transports, const struct card *cards, int64_t deadline_ns);

/*
 * Which module carries messages between the hosts of the world: the same on all ranks, which compare it while they meet.
 * "": none, or what was asked for does. *why_out: why those before it are not used; "" if there is no reason to tell.
 */
const char *transports_find_crossing(struct transports *transports, const char **why_out);

/* Nothing is connected any more. NULL is allowed. */
void transports_close(struct transports *transports);

struct transport_choice {
    const struct transport *transport;
    void *state; /* what its `open` made */
    const struct transport_world *world;
    int holder; /* the world rank of the first member on this host: its server holds the group's segments */
};

/*
 * The transport of a group of these world ranks; `name` is for texts. SHOAL_ERR_UNSUPPORTED names two ranks on different
 * hosts where none can carry it. Before transports_open all ranks count as on one host.
 */
shoal_status transports_choose(const struct shoal_world *world, const int *ranks, int n_ranks,
                               const char *name, struct transport_choice *choice_out);

/* Makes progress where no thread of Shoal's may: shoal_world_progress. NULL is allowed. */
shoal_status transports_progress(struct transports *transports);
/* The same while a thread waits: nothing is told. */
void transports_drive(struct transports *transports);

#endif
