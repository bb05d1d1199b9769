/* SPDX-License-Identifier: MIT */
/* How much a small collective puts into a slot: what the choice of an algorithm depends on. */
#ifndef SHM_ONESHOT_H
#define SHM_ONESHOT_H

#include <stddef.h>

#include "transport/collective.h"

/* What one rank puts into its slot; SIZE_MAX where ranks cannot know each other's. */
size_t shm_oneshot_bytes(const struct collective *collective, int n_ranks);

#endif
