/* SPDX-License-Identifier: MIT */
/*
 * Shared memory under a name, held by the server of a rank: made, zeroed, by whoever asks first. Asking blocks only for
 * that server, which answers whatever its rank is doing.
 */
#ifndef BOOTSTRAP_SEGMENTS_H
#define BOOTSTRAP_SEGMENTS_H

#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"

struct client;
struct client_wait; /* bootstrap/client.h */
struct segment;     /* sharedmem/segment.h */

/*
 * Maps the segment of this name at the server of rank `holder`. SHOAL_ERR_MISMATCH when it exists with another size. A
 * client of NULL means a world without peers: the memory is this rank's alone.
 */
shoal_status segments_open(struct client *client, int holder, const char *name, size_t bytes,
                           const struct client_wait *wait, struct segment **segment_out);

/*
 * The server forgets the segment; whoever has mapped it keeps it. The next to ask for the name gets a new one. With a
 * client of NULL there is nothing to forget.
 */
shoal_status segments_drop(struct client *client, int holder, const char *name, int64_t deadline_ns);
/* The same with all segments whose names end so, from their first space on. */
shoal_status segments_drop_all(struct client *client, int holder, const char *suffix, int64_t deadline_ns);

#endif
