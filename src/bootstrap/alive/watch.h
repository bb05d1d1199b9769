/* SPDX-License-Identifier: MIT */
/*
 * What a rank knows of the ranks on other hosts. It has a connection with each of them, on which both sides send
 * heartbeats, and say that they leave, that a rank died, or that something has failed. A thread sends and receives
 * these whatever the rank is doing. docs/design/startup.md has the argument.
 *
 * Threads: any, except as said.
 */
#ifndef BOOTSTRAP_ALIVE_WATCH_H
#define BOOTSTRAP_ALIVE_WATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bootstrap/alive/liveness.h"
#include "shoal/status.h"

struct card;
struct socket_wait;
struct watch;

struct watch_options {
    int rank;
    int n_ranks;
    int64_t heartbeat_ns; /* a rank that is silent for so long is dead */
    /* Called on the watch's thread when another rank reports a failure, as server_set_hearer says. */
    void (*hear)(void *context, const char *name, shoal_status status, const char *text);
    void *hear_context;
};

/* Makes a watch that has no connections yet. */
shoal_status watch_create(const struct watch_options *options, struct watch **watch_out);
/* Says that this rank leaves, and ends the thread: failures are not reported any more. The states stay. NULL is
   allowed. */
void watch_stop(struct watch *watch);
/* Stops the watch if it was not stopped, and frees it. NULL is allowed. */
void watch_free(struct watch *watch);

/* Takes a connection that a later rank on another host has made to this rank's server. Returns false if it was not
   taken. */
bool watch_take(struct watch *watch, int rank, int fd);

/*
 * Connects to the ranks before this one that are on other hosts, and waits for those after it to connect. Call once,
 * after the meeting has sent all cards to all ranks. On failure the text names the rank that could not be reached.
 */
shoal_status watch_open(struct watch *watch, const struct card *cards, const struct socket_wait *wait);

/* Call when every rank has returned from watch_open. From then on a rank that is silent for too long is dead;
   before, only one whose connection has ended. */
void watch_judge(struct watch *watch);

/* Sets the function that is called when a state has changed. Called by one thread, before or after watch_open. */
void watch_set_change(struct watch *watch, void (*change)(void *context), void *context);

/* After watch_open: whether the rank is on another host, and so in this watch. A watch of NULL has none. */
bool watch_has(const struct watch *watch, int rank);
/* The state of a rank that the watch has. watch_explain writes how a dead one is known to be dead, to follow
   "rank 3 (process 17) " in a text. */
enum member_state watch_state(const struct watch *watch, int rank);
int watch_pid(const struct watch *watch, int rank);
void watch_explain(const struct watch *watch, int rank, char *text, size_t bytes);

/* Tells a rank that the watch has that what both know by `name` has failed, and why. Does not wait. */
void watch_tell_failure(struct watch *watch, int rank, const char *name, shoal_status failure,
                        const char *text);

/* Tells all ranks that this one needs nothing more from them. */
void watch_leave(struct watch *watch);

/*
 * Call on all ranks before watch_leave. Ranks that have left are then still watched until watch_stop, and watch_is_gone
 * says whether the process of one has ended since, or whether its host cannot be reached.
 */
void watch_keep(struct watch *watch);
bool watch_is_gone(const struct watch *watch, int rank);
/* After this, options.hear is not called any more, and no call of it is running. NULL is allowed. */
void watch_hush(struct watch *watch);

#endif
