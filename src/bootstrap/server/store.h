/* SPDX-License-Identifier: MIT */
/* The key-value store as applications see it (shoal/store.h): keys and values that the server of one rank keeps. */
#ifndef BOOTSTRAP_SERVER_STORE_H
#define BOOTSTRAP_SERVER_STORE_H

#include "shoal/store.h"

struct client;

/*
 * Opens the store that the server of rank `holder` keeps. timeout_s is the default timeout of its calls. The client
 * outlives the store; NULL means a world without servers, whose store refuses every call with SHOAL_ERR_UNSUPPORTED.
 */
shoal_status store_create(struct client *client, int holder, double timeout_s,
                          struct shoal_store **store_out);
void store_free(struct shoal_store *store); /* NULL is allowed */

/*
 * Access to the library's own keys, which programs cannot use: "shoal/" is put before them. Otherwise as the public
 * calls; `get` waits until there is a value, or until the deadline.
 */
shoal_status store_set_own(struct shoal_store *store, const char *key, const void *value, size_t bytes);
shoal_status store_get_own(struct shoal_store *store, const char *key, void *value, size_t capacity,
                           int64_t deadline_ns, size_t *bytes_out);

#endif
