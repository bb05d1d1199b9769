/* SPDX-License-Identifier: MIT */
/*
 * Connections of a rank to the servers of all ranks of its world, and the requests sent over them
 * (bootstrap/net/requests.def). A client knows who is in the job and who is alive, but not what the requests are for.
 * Threads: any.
 */
#ifndef BOOTSTRAP_SERVER_CLIENT_H
#define BOOTSTRAP_SERVER_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "shoal/status.h"

struct card;
struct client;
struct frame;
struct members;
struct request;
struct watch;

/* `cards` are those of all ranks. The client takes them if this succeeds. They may be filled in until the first
   request. */
shoal_status client_create(struct card *cards, int n_ranks, struct client **client_out);
/* Call before the first request. `members` says which ranks are alive, and outlives the client. */
void client_set_members(struct client *client, struct members *members);
/* Call before the first request. Ranks that the watch has are on other hosts, and are reached by TCP. The watch
   outlives the client. */
void client_set_watch(struct client *client, struct watch *watch);
/* No thread may be in a call. NULL is allowed. */
void client_free(struct client *client);

/* Gives the client an open connection to a rank's server, for later requests. The client takes it. */
void client_keep(struct client *client, int rank, int fd);

/* How long to wait for a server, and what else ends the wait. */
struct client_wait {
    int64_t deadline_ns;
    /* Called now and then. Anything but SHOAL_OK ends the wait with that status and text. May be NULL. */
    shoal_status (*check)(void *context);
    void *check_context;
};

/*
 * Sends a request to a rank's server and waits for the answer. `what` names what is waited for, in error texts. With
 * SHOAL_OK the frame is the caller's, who clears it (bootstrap/net/socket.h). A server answers whatever its rank is doing,
 * also while the rank closes its world. SHOAL_ERR_PEER if the server is gone.
 */
shoal_status client_perform(struct client *client, int rank, struct request *request,
                            const struct client_wait *bounds, const char *what, struct frame *frame_out);

/*
 * Tells a rank that what both know by `name` has failed, and why. The rank's server passes it on to its listener
 * (bootstrap/server/server.h). Does not wait: a rank that is stopped reads the message when it continues, and a rank
 * that cannot be reached never gets it. Returns false if this process could not send it, for want of descriptors for
 * instance, or because the rank is stopped and thousands of messages wait for it.
 */
bool client_tell_failure(struct client *client, int rank, const char *name, shoal_status failure,
                         const char *text);

#endif
