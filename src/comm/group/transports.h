/* SPDX-License-Identifier: MIT */
/*
 * Chooses the transport of a group. If one was asked for by name (shoal_world_options.transport, SHOAL_TRANSPORT), it
 * carries all groups. Otherwise the hosts of the members decide: the first row of transports.def that can carry them.
 */
#ifndef COMM_GROUP_TRANSPORTS_H
#define COMM_GROUP_TRANSPORTS_H

#include <stdint.h>

#include "shoal/status.h"
#include "transport/transport.h"

struct card;
struct shoal_world;
struct transports;

/* Makes what a world keeps for transports. The world has its rank, size and transport. Returns NULL if memory runs
   out. */
struct transports *transports_create(struct shoal_world *world);

/*
 * Call after the meeting; the cards say which ranks share a host. Opens the transports that groups of this world may
 * use, if they keep something for a world.
 */
shoal_status transports_open(struct transports *transports, const struct card *cards, int64_t deadline_ns);

/*
 * Returns the name of the module that carries messages between the hosts of the world. All ranks must find the same,
 * and compare it while they meet. Returns "" if there is none, or if the transport that was asked for does it. *why_out
 * says why preferred modules are not used; "" if there is nothing to say.
 */
const char *transports_find_crossing(struct transports *transports, const char **why_out);

/* The world is being closed: ranks that do not answer are waited for until then at most. NULL is allowed. */
void transports_hurry(struct transports *transports, int64_t until_ns);

/* Call when no group is connected any more. NULL is allowed. */
void transports_close(struct transports *transports);

struct transport_choice {
    const struct transport *transport;
    void *state; /* what its `open` made */
    const struct transport_world *world;
    int holder;  /* the world rank of the first member on this host: its server holds the group's segments */
    int n_local; /* members on this host */
};

/*
 * Chooses the transport of a group of these world ranks; `name` is for error texts. If none can carry the group,
 * SHOAL_ERR_UNSUPPORTED names two ranks on different hosts. Before transports_open all ranks count as on one host.
 */
shoal_status transports_choose(const struct shoal_world *world, const int *ranks, int n_ranks,
                               const char *name, struct transport_choice *choice_out);

/* Makes progress in worlds in which no thread of Shoal may: shoal_world_progress. NULL is allowed. */
shoal_status transports_progress(struct transports *transports);
/* Makes progress while a thread waits. Errors are ignored. */
void transports_drive(struct transports *transports);

#endif
