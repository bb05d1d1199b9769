/* SPDX-License-Identifier: MIT */
/*
 * Numbers on which ranks agree under a name. The server of one rank keeps the first number that is proposed. A call
 * waits only for that server, which answers whatever its rank is doing.
 */
#ifndef BOOTSTRAP_SERVER_NUMBERS_H
#define BOOTSTRAP_SERVER_NUMBERS_H

#include <stdint.h>

#include "shoal/status.h"

struct client;
struct client_wait; /* bootstrap/server/client.h */

/* *number_out becomes the first number that was proposed under this name, perhaps `proposed`. If `client` is NULL,
   the world has no peers, and it is `proposed`. */
shoal_status numbers_agree(struct client *client, int holder, const char *name, uint64_t proposed,
                           const struct client_wait *wait, uint64_t *number_out);

/* Makes the server forget the number: the next proposal under this name counts as the first. */
shoal_status numbers_forget(struct client *client, int holder, const char *name, int64_t deadline_ns);

#endif
