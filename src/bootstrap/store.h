/* SPDX-License-Identifier: MIT */
/* The key-value store as applications see it (shoal/store.h): keys and values that the server of one rank keeps. */
#ifndef BOOTSTRAP_STORE_H
#define BOOTSTRAP_STORE_H

#include "shoal/store.h"

struct client;

/*
 * The store that the server of rank `holder` keeps, and the time that its calls have by default. The client outlives it;
 * NULL is a world without servers, whose store refuses every call with SHOAL_ERR_UNSUPPORTED.
 */
shoal_status store_create(struct client *client, int holder, double timeout_s,
                          struct shoal_store **store_out);
void store_free(struct shoal_store *store); /* NULL is allowed */

/*
 * The library's own keys, which programs cannot use: "shoal/" is put before them. As the public calls otherwise; `get`
 * waits until there is a value, or until the deadline.
 */
shoal_status store_set_own(struct shoal_store *store, const char *key, const void *value, size_t bytes);
shoal_status store_get_own(struct shoal_store *store, const char *key, void *value, size_t capacity,
                           int64_t deadline_ns, size_t *bytes_out);

#endif
