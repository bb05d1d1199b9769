/* SPDX-License-Identifier: MIT */
/*
 * A table of keys and values that the ranks of a world share. It is what start-up is made of; applications may
 * use it for small things. Keys are strings without control characters, at most 255 bytes; values are bytes, at
 * most 1 MiB. Keys that begin with "shoal/" are the library's and refused.
 *
 * Ownership: the store belongs to its world. Values are copied out into the caller's memory.
 * Threads: any; calls from several threads of a rank are served one after the other, except that a call that
 * waits does not hold up others.
 * Errors: SHOAL_ERR_TIMEOUT names the key; SHOAL_ERR_PEER when the rank that holds the store has gone.
 * Timeouts are in seconds; negative: the operation timeout of the world.
 */
#ifndef SHOAL_STORE_H
#define SHOAL_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/api.h"
#include "shoal/status.h"
#include "shoal/world.h"

SHOAL_BEGIN_DECLS

/* Creates or replaces. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_store_set(shoal_store *store, const char *key,
                                                        const void *value, size_t bytes);

/*
 * Waits until the key exists. Copies at most `capacity` bytes and gives the value's true size; SHOAL_ERR_INVALID
 * with both sizes when it does not fit.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_store_get(shoal_store *store, const char *key, void *value,
                                                        size_t capacity, double timeout_s, size_t *bytes_out);

/* Adds to a number kept as decimal text; a missing one counts as 0. Gives the sum. A value that is no number is
   SHOAL_ERR_INVALID. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_store_add(shoal_store *store, const char *key, int64_t amount,
                                                        int64_t *sum_out);

/*
 * If the key's value is `expected` (a missing key counts as empty: expected_bytes 0), it becomes `desired`.
 * Gives in *was_set_out whether it did.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_store_compare_set(shoal_store *store, const char *key,
                                                                const void *expected, size_t expected_bytes,
                                                                const void *desired, size_t desired_bytes,
                                                                bool *was_set_out);

/* Waits until all of the keys exist. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_store_wait(shoal_store *store, const char *const *keys,
                                                         size_t n_keys, double timeout_s);

/* Whether all of the keys exist now. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_store_check(shoal_store *store, const char *const *keys,
                                                          size_t n_keys, bool *exist_out);

/* Gives in *existed_out (NULL is allowed) whether there was one. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_store_delete(shoal_store *store, const char *key,
                                                           bool *existed_out);

SHOAL_END_DECLS

#endif
