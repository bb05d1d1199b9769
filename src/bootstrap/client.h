/* SPDX-License-Identifier: MIT */
/*
 * Connections of a rank to the servers of all ranks of its world, and the requests sent over them
 * (bootstrap/requests.def). A client knows who is in the job and who is alive, but not what the requests are for.
 * Threads: any.
 */
#ifndef BOOTSTRAP_CLIENT_H
#define BOOTSTRAP_CLIENT_H

#include <stdint.h>

#include "shoal/status.h"

struct card;
struct client;
struct frame;
struct members;
struct request;
struct watch;

/* The cards are those of all ranks, and taken if this succeeds. They may be filled in later, before the first request. */
shoal_status client_create(struct card *cards, int n_ranks, struct client **client_out);
/* Before the first request: who says whether the ranks live. Outlives the client. */
void client_set_members(struct client *client, struct members *members);
/* Before the first request: ranks that it has are on other hosts, and are reached by TCP. Outlives the client. */
void client_set_watch(struct client *client, struct watch *watch);
/* No call is inside. NULL is allowed. */
void client_free(struct client *client);

/* An open connection to a rank's server, for later use. Taken. */
void client_keep(struct client *client, int rank, int fd);

/* How long a server is waited for, and what else ends that. */
struct client_wait {
    int64_t deadline_ns;
    /* NULL: nothing. Asked now and then; anything but SHOAL_OK ends the wait, with its text. */
    shoal_status (*check)(void *context);
    void *check_context;
};

/*
 * Sends a request to a rank's server and waits for the answer. `what` names what is waited for, in error texts. With
 * SHOAL_OK the frame is the caller's, who clears it (bootstrap/socket.h). A server answers whatever its rank is doing,
 * also while the rank closes its world. SHOAL_ERR_PEER if the server is gone.
 */
shoal_status client_perform(struct client *client, int rank, struct request *request,
                            const struct client_wait *bounds, const char *what, struct frame *frame_out);

/*
 * Tells a rank that what both know by `name` has failed, and why. The rank's server passes it on to its listener
 * (bootstrap/server.h). Does not wait: a rank that is stopped reads the message when it continues, and a rank that
 * cannot be reached never gets it.
 */
void client_tell_failure(struct client *client, int rank, const char *name, shoal_status failure,
                         const char *text);

#endif
