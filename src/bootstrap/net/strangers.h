/* SPDX-License-Identifier: MIT */
/*
 * A server's side of the network: its TCP listeners, and connections that have not shown the token yet. These have a
 * fixed number of places, and each has a few seconds to send its 48 bytes. So a port scanner, or a client that sends a
 * byte a minute, takes a place for a while and costs nothing else. Only the server's thread uses this, except as said.
 */
#ifndef BOOTSTRAP_NET_STRANGERS_H
#define BOOTSTRAP_NET_STRANGERS_H

#include <stddef.h>
#include <stdint.h>

#include "bootstrap/net/address.h"
#include "bootstrap/net/proof.h"
#include "shoal/status.h"

struct pollfd;
struct strangers;

/* The listeners. */
enum door {
    DOOR_OWN,     /* the server's own port, for as long as there are ranks on other hosts */
    DOOR_MEETING, /* SHOAL_ADDRESS, during start-up */
    N_DOORS
};

#define STRANGERS_MOST 64
#define STRANGERS_POLLED (N_DOORS + STRANGERS_MOST)

/* Returns NULL if memory runs out. */
struct strangers *strangers_create(void);
/* NULL is allowed, here and in the functions below. */
void strangers_free(struct strangers *strangers);

/* Call before the server's thread was started, or on it. Takes the listener. */
void strangers_open_door(struct strangers *strangers, enum door door, int listener,
                         const struct proof_key *key);
/* Closes the listener, and the connections over it that have not shown the token yet. */
void strangers_close_door(struct strangers *strangers, enum door door);
/* Closes a door from another thread: the server's thread closes the listener when it notices. */
void strangers_shut_door(struct strangers *strangers, enum door door);

/* Connections that said a complete hello and were rejected, since the beginning. */
struct strangers_rejected {
    size_t count;
    struct address from; /* of the last; its port says nothing */
    const char *why;     /* of the last: "it does not have the token of this job" */
};
/* All zeros: nobody was. */
struct strangers_rejected strangers_get_rejected(const struct strangers *strangers);

/* Fills `polled`, which has room for STRANGERS_POLLED. Returns how many entries it has. */
size_t strangers_list(struct strangers *strangers, struct pollfd *polled);
/* Turns away strangers whose time is over. Returns when the next one's is. */
int64_t strangers_expire(struct strangers *strangers);
/* Call after poll, with the list. `admit` takes the connections that have shown the token. */
void strangers_serve(struct strangers *strangers, const struct pollfd *polled,
                     void (*admit)(void *context, int fd), void *context);

#endif
