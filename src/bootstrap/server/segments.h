/* SPDX-License-Identifier: MIT */
/*
 * Shared memory under a name, held by the server of one rank. Whoever asks first makes it, zeroed. A call waits only
 * for that server, which answers whatever its rank is doing.
 */
#ifndef BOOTSTRAP_SERVER_SEGMENTS_H
#define BOOTSTRAP_SERVER_SEGMENTS_H

#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"

struct client;
struct client_wait; /* bootstrap/server/client.h */
struct segment;     /* sharedmem/segment.h */

/*
 * Maps the segment of this name at the server of rank `holder`. SHOAL_ERR_MISMATCH when it exists with another size. If
 * `client` is NULL, the world has no peers, and the memory is this rank's alone.
 */
shoal_status segments_open(struct client *client, int holder, const char *name, size_t bytes,
                           const struct client_wait *wait, struct segment **segment_out);

/* Maps a sparse segment, whose pages have no memory yet, in the same way. */
shoal_status segments_open_sparse(struct client *client, int holder, const char *name, size_t bytes,
                                  const struct client_wait *wait, struct segment **segment_out);

/*
 * Makes the server forget the segment. Mappings of it stay valid. The next call with this name makes a new segment.
 * With a client of NULL it does nothing.
 */
shoal_status segments_drop(struct client *client, int holder, const char *name, int64_t deadline_ns);
/* Drops all segments whose names are, from their first space on, this suffix. */
shoal_status segments_drop_all(struct client *client, int holder, const char *suffix, int64_t deadline_ns);

#endif
