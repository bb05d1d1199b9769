/* SPDX-License-Identifier: MIT */
/*
 * What a rank knows of the ranks on other hosts. It has a connection with each of them, on which both sides send
 * heartbeats, and say that they leave, that a rank died, or that something has failed. A thread sends and receives
 * these whatever the rank is doing. docs/design/startup.md has the argument.
 *
 * Threads: any, except as said.
 */
#ifndef BOOTSTRAP_WATCH_H
#define BOOTSTRAP_WATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bootstrap/liveness.h"
#include "shoal/status.h"

struct card;
struct socket_wait;
struct watch;

struct watch_options {
    int rank;
    int n_ranks;
    int64_t heartbeat_ns; /* who says nothing for so long is dead */
    /* Told, on the watch's thread, that something has failed on another rank: as server_set_hearer. */
    void (*hear)(void *context, const char *name, shoal_status status, const char *text);
    void *hear_context;
};

/* It watches nobody yet. */
shoal_status watch_create(const struct watch_options *options, struct watch **watch_out);
/* Says that this rank leaves, and ends the thread: nobody is told of failures any more. The states stay. */
void watch_stop(struct watch *watch);
/* Stops it, too. NULL is allowed, here and above. */
void watch_free(struct watch *watch);

/* A connection that a later rank on another host has made to this one's server. False: it is not wanted. */
bool watch_take(struct watch *watch, int rank, int fd);

/*
 * Connects to the ranks before this one that are on other hosts, and waits for those after it to connect. Call once,
 * after the meeting has sent all cards to all ranks. On failure the text names the rank that could not be reached.
 */
shoal_status watch_open(struct watch *watch, const struct card *cards, const struct socket_wait *wait);

/* From now on silence counts: every rank has come back from watch_open. Until then only ends of connections do. */
void watch_judge(struct watch *watch);

/* Before or after watch_open, by one thread: who is told that states have changed. */
void watch_set_change(struct watch *watch, void (*change)(void *context), void *context);

/* After watch_open: whether the rank is on another host, and so in this watch. A watch of NULL has none. */
bool watch_has(const struct watch *watch, int rank);
/* Of ranks that it has. Of the dead, how that is known, for texts after "rank 3 (process 17) ". */
enum member_state watch_state(const struct watch *watch, int rank);
int watch_pid(const struct watch *watch, int rank);
void watch_explain(const struct watch *watch, int rank, char *text, size_t bytes);

/* Tells a rank that it has that what is known there by `name` has failed, and why. Waits for nobody. */
void watch_tell_failure(struct watch *watch, int rank, const char *name, shoal_status failure,
                        const char *text);

/* Says to all that this rank needs nothing more from them. */
void watch_leave(struct watch *watch);

/*
 * Before watch_leave, on all ranks: those that have left are watched on, until watch_stop. watch_is_gone says whether
 * the process of one that has left has ended since, or its host cannot be reached.
 */
void watch_keep(struct watch *watch);
bool watch_is_gone(const struct watch *watch, int rank);
/* Nobody is told of failures any more, nor is being told when it returns. NULL is allowed. */
void watch_hush(struct watch *watch);

#endif
