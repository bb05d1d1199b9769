/* SPDX-License-Identifier: MIT */
/*
 * Which ranks of a world are alive: a page of shared memory with a word per rank, and a lock per rank that the kernel
 * releases when its process ends, however it ends. Each host has a page; ranks on other hosts are watched over the
 * network (bootstrap/alive/watch.h). docs/design/startup.md has the argument.
 *
 * Threads: any, except that one thread makes and frees a rank's members.
 */
#ifndef BOOTSTRAP_ALIVE_LIVENESS_H
#define BOOTSTRAP_ALIVE_LIVENESS_H

#include <stdbool.h>
#include <stdint.h>

#include "shoal/status.h"

/* A rank's part of the page. */
struct members;
struct watch; /* bootstrap/alive/watch.h */

enum member_state {
    MEMBER_ABSENT = 0, /* has not joined yet: start-up has not ended */
    MEMBER_ALIVE = 1,
    MEMBER_LEFT = 2, /* has closed its world, or is about to */
    MEMBER_DEAD = 3
};

/*
 * Makes the page of a world, without becoming one of its ranks. The descriptor belongs to the members, and stays open
 * as long as they exist.
 */
shoal_status members_create(int n_ranks, struct members **members_out);
int members_fd(const struct members *members);

/*
 * Allocates memory for members_join, before the descriptor comes into this process. A descriptor that could not be kept
 * would have to be closed, which would drop the locks of all thread ranks of the process. Returns NULL if there is no
 * memory.
 */
struct members *members_allocate(void);
/* Frees memory of members_allocate that was not given to members_join. NULL is allowed. */
void members_discard(struct members *members);

/*
 * Becomes rank `rank` on an existing page: takes the rank's lock, then sets its state to alive. Takes the memory and
 * the descriptor, also when it fails. SHOAL_ERR_INVALID when the descriptor is not such a page, SHOAL_ERR_STATE when
 * the rank is already there.
 */
shoal_status members_join(struct members *members, int fd, int n_ranks, int rank,
                          struct members **members_out);

/* Leaves if the rank has not left, and frees the members. NULL is allowed. */
void members_free(struct members *members);

/* Ranks that the watch has are on other hosts: their states are its. Outlives the members. By the thread that
   joined, before others ask. */
void members_set_watch(struct members *members, struct watch *watch);

enum member_state members_state(struct members *members, int rank);

/* SHOAL_OK if the rank is alive, or has not joined yet. SHOAL_ERR_PEER, with a text that names it, if it has left or
   died. */
shoal_status members_check(struct members *members, int rank);

/* Says that this rank needs nothing more from the others. */
void members_leave(struct members *members);

/*
 * Call on all ranks before members_leave. Until members_free, members_check_processes can then say whether the
 * processes of all ranks are alive, also of ranks that have left. SHOAL_ERR_PEER names those whose process has ended.
 */
void members_keep(struct members *members);
shoal_status members_check_processes(struct members *members);

/* Waits until every rank has left or died. SHOAL_ERR_TIMEOUT names those that have not left. */
shoal_status members_wait_for_end(struct members *members, int64_t deadline_ns);

#endif
