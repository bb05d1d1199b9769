/* SPDX-License-Identifier: MIT */
/* One case on one rank: the call, its results and its gradients. */
#ifndef REPLAY_PLAY_H
#define REPLAY_PLAY_H

#include <pthread.h>
#include <stddef.h>

#include "cases.h"
#include "shoal/safetensors.h"
#include "shoal/world.h"

/* What the ranks of one world share. */
struct replay_run {
    const shoal_safetensors *file;
    struct replay_case *const *cases;
    size_t n_cases;
    size_t first;
    pthread_mutex_t lock; /* of what follows, and of what cases came to */
    size_t failed;        /* the first whose call failed; n_cases: none */
};

/* Runs case `at` on this rank, and notes what is wrong with it. Returns an error if the call failed. */
shoal_status replay_play_case(struct replay_run *run, size_t at, shoal_world *world);

#endif
