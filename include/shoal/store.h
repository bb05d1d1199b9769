/* SPDX-License-Identifier: MIT */
/*
 * The store: a table of keys and values that all ranks of a world see. Rank 0 holds it; every call asks that rank. Use
 * it for small things that ranks tell each other outside of collectives: an address, a file name, a counter. No call
 * here is collective: one rank sets a key, and others get it whenever they like.
 *
 *     shoal_store *store = shoal_world_store(world);
 *     char name[64];
 *     size_t bytes;
 *     if (rank == 0) status = shoal_store_set(store, "run", "lemon", 6);
 *     status = shoal_store_get(store, "run", name, sizeof name, -1, &bytes);        waits for rank 0
 *
 * Keys are strings of 1 to 255 bytes without control characters; those that begin with "shoal/" belong to the library.
 * Values are bytes, at most 1 MiB. Times are in seconds: 0 does not wait, a negative time is the timeout of the world
 * (shoal_world_options.timeout_s).
 *
 * Ownership: the store belongs to its world. Values are copied in and out.
 * Threads: any. A call that waits does not hold up calls of other threads.
 * Errors: SHOAL_ERR_INVALID: a key or value breaks the rules above. SHOAL_ERR_TIMEOUT: a key did not exist in time; the
 * text names it, and nothing else is lost. SHOAL_ERR_PEER: rank 0 has died or left. SHOAL_ERR_UNSUPPORTED: the world
 * has no peers (transport "fake"). SHOAL_ERR_STATE: the call is made while a step is captured (shoal/compile.h).
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

/* Sets the value of a key, which is created or replaced. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_store_set(shoal_store *store, const char *key,
                                                        const void *value, size_t bytes);

/*
 * Waits until the key exists, and copies its value to `value`, which has room for `capacity` bytes. *bytes_out becomes
 * the size of the whole value. If that is more than `capacity`, the call copies as much as fits and returns
 * SHOAL_ERR_INVALID with both sizes in the text; *bytes_out is written then, too.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_store_get(shoal_store *store, const char *key, void *value,
                                                        size_t capacity, double timeout_s, size_t *bytes_out);

/*
 * Adds `amount` to a number, atomically, and gives the sum. The number is stored as decimal text; a missing key counts
 * as 0. SHOAL_ERR_INVALID: the value is no number, or the sum does not fit into 64 bits.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_store_add(shoal_store *store, const char *key, int64_t amount,
                                                        int64_t *sum_out);

/*
 * Sets the value of a key to `desired` if it is `expected`, atomically; otherwise nothing is changed. A missing key
 * counts as an empty value, expected_bytes 0. *was_set_out becomes whether the value was set.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_store_compare_set(shoal_store *store, const char *key,
                                                                const void *expected, size_t expected_bytes,
                                                                const void *desired, size_t desired_bytes,
                                                                bool *was_set_out);

/* Waits until all keys of the list exist. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_store_wait(shoal_store *store, const char *const *keys,
                                                         size_t n_keys, double timeout_s);

/* Sets *exist_out to whether all keys of the list exist now. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_store_check(shoal_store *store, const char *const *keys,
                                                          size_t n_keys, bool *exist_out);

/* Removes a key. *existed_out becomes whether it existed; existed_out may be NULL. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_store_delete(shoal_store *store, const char *key,
                                                           bool *existed_out);

SHOAL_END_DECLS

#endif
