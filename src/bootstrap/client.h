/* SPDX-License-Identifier: MIT */
/*
 * Connections of a rank to the servers of all ranks of its world, and what is asked over them (bootstrap/requests.def).
 * Knows who is in the job and who lives; what the requests are for is its callers' business. Threads: any.
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
 * Sends a request to a rank's server and waits for the answer. `what` is waited for, for texts. With SHOAL_OK the caller
 * has the frame, to be cleared (bootstrap/socket.h). A server answers whatever its rank is doing, also while it closes
 * its world; SHOAL_ERR_PEER if it has gone.
 */
shoal_status client_perform(struct client *client, int rank, struct request *request,
                            const struct client_wait *bounds, const char *what, struct frame *frame_out);

/*
 * Tells a rank that what is known there by `name` has failed, and why: whoever listens at its server hears it
 * (bootstrap/server.h). Waits for nobody: a rank that is stopped reads it when it goes on, and one that cannot be reached
 * never does.
 */
void client_tell_failure(struct client *client, int rank, const char *name, shoal_status failure,
                         const char *text);

#endif
