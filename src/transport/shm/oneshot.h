/* SPDX-License-Identifier: MIT */
/* How much a small collective puts into a slot: what the choice of an algorithm depends on. */
#ifndef SHM_ONESHOT_H
#define SHM_ONESHOT_H

#include <stddef.h>

#include "transport/collective.h"

/* What one rank puts into its slot; SIZE_MAX if this may differ between ranks, or if the kind has no data in slots. */
size_t shm_oneshot_bytes(const struct collective *collective, int n_ranks);

#endif
