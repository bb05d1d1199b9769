/* SPDX-License-Identifier: MIT */
/*
 * Numbers on which ranks agree under a name. The server of one rank keeps the first number that is proposed. A call
 * waits only for that server, which answers whatever its rank is doing.
 */
#ifndef BOOTSTRAP_NUMBERS_H
#define BOOTSTRAP_NUMBERS_H

#include <stdint.h>

#include "shoal/status.h"

struct client;
struct client_wait; /* bootstrap/client.h */

/* `proposed`, if nobody has proposed a number under this name before. A client of NULL: it is. */
shoal_status numbers_agree(struct client *client, int holder, const char *name, uint64_t proposed,
                           const struct client_wait *wait, uint64_t *number_out);

/* The next to propose a number under this name is the first. */
shoal_status numbers_forget(struct client *client, int holder, const char *name, int64_t deadline_ns);

#endif
