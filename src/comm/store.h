/* SPDX-License-Identifier: MIT */
/* Connections of a rank to the servers of its world, and what is asked over them. Threads: any. */
#ifndef COMM_STORE_H
#define COMM_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/card.h"
#include "shoal/status.h"
#include "shoal/store.h"

struct segment;
struct stores;

/* The cards are those of all ranks, and taken if this succeeds. */
shoal_status stores_create(struct shoal_world *world, struct card *cards, struct stores **stores_out);
/* No call is inside. NULL is allowed. */
void stores_free(struct stores *stores);

/* An open connection to a rank's server, for later use. Taken. */
void stores_keep(struct stores *stores, int holder, int fd);

/* Rank 0's, for applications. */
struct shoal_store *stores_public(struct stores *stores);
/* Of a world without servers: every call is SHOAL_ERR_UNSUPPORTED. */
struct shoal_store *stores_none(void);

/* The segment of this name at a rank's server: comm/world.h. */
shoal_status stores_open_segment(struct stores *stores, int holder, const char *name, size_t bytes,
                                 int64_t deadline_ns, struct segment **segment_out);
shoal_status stores_drop_segment(struct stores *stores, int holder, const char *name, int64_t deadline_ns);

#endif
