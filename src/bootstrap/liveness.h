/* SPDX-License-Identifier: MIT */
/*
 * Who of a world lives: a page of shared memory with a word per rank, and a lock per rank that the kernel drops
 * when its process ends, however it ends. Each host has a page; ranks on others are watched. docs/design/startup.md
 * argues all that.
 *
 * Threads: any, except that a rank's members are made and given up by one thread.
 */
#ifndef BOOTSTRAP_LIVENESS_H
#define BOOTSTRAP_LIVENESS_H

#include <stdbool.h>
#include <stdint.h>

#include "shoal/status.h"

/* A rank's part of the page. */
struct members;
struct watch; /* bootstrap/watch.h */

enum member_state {
    MEMBER_ABSENT = 0, /* not here yet: start-up has not ended */
    MEMBER_ALIVE = 1,
    MEMBER_LEFT = 2, /* has closed its world, or is about to */
    MEMBER_DEAD = 3
};

/*
 * Makes the page of a world, without being one of its ranks. The descriptor is the members' and stays as long as
 * they do.
 */
shoal_status members_create(int n_ranks, struct members **members_out);
int members_fd(const struct members *members);

/*
 * Memory for members_join, had before the descriptor comes into this process: a descriptor that could not be kept
 * would have to be closed, which drops the locks of all thread ranks of the process. NULL: no memory.
 */
struct members *members_allocate(void);
/* Of what was not given to members_join. NULL is allowed. */
void members_discard(struct members *members);

/*
 * Becomes rank `rank` on a page that somebody made: takes the lock, then is alive. Memory and descriptor are taken,
 * also in failure. SHOAL_ERR_INVALID when it is no such page, SHOAL_ERR_STATE when the rank is there already.
 */
shoal_status members_join(struct members *members, int fd, int n_ranks, int rank,
                          struct members **members_out);

/* Gives up the rank if it has not left, and what the members hold. NULL is allowed. */
void members_free(struct members *members);

/* Ranks that the watch has are on other hosts: their states are its. Outlives the members. By the thread that joined, before
   others ask. */
void members_set_watch(struct members *members, struct watch *watch);

enum member_state members_state(struct members *members, int rank);

/* SHOAL_OK for a rank that lives and has not left, or is not here yet; SHOAL_ERR_PEER naming it otherwise. */
shoal_status members_check(struct members *members, int rank);

/* Says that this rank needs nothing more from the others. */
void members_leave(struct members *members);

/*
 * Before members_leave, on all ranks: whether the processes of ranks live can be asked until members_free, also of
 * those that have left. members_check_processes: SHOAL_ERR_PEER names those whose process has ended.
 */
void members_keep(struct members *members);
shoal_status members_check_processes(struct members *members);

/* Waits until nobody lives who has not left. SHOAL_ERR_TIMEOUT names those who have not. */
shoal_status members_wait_for_end(struct members *members, int64_t deadline_ns);

#endif
