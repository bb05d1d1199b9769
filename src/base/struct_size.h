/* SPDX-License-Identifier: MIT */
/*
 * Structs that callers fill in and later versions may extend. The first member is struct_size, zero is every
 * field's default, and new fields are added at the end; so an older caller's struct is the newer one with
 * zeros at the end, and a newer caller's can be read as long as its unknown tail is zero.
 */
#ifndef BASE_STRUCT_SIZE_H
#define BASE_STRUCT_SIZE_H

#include <stddef.h>

#include "shoal/status.h"

/*
 * Copies `given` into `ours` (our_bytes of it, zero where the caller's is shorter). SHOAL_ERR_INVALID for NULL or a
 * struct_size below least_bytes, SHOAL_ERR_UNSUPPORTED for an unknown tail that is not zero. `what` names it.
 */
shoal_status struct_size_read(const char *what, const void *given, size_t least_bytes, void *ours,
                              size_t our_bytes);

/*
 * Fills in a struct of the caller's from `ours`. struct_size, which the caller has set, stays. If the caller's struct
 * is shorter, the rest of ours is left out; if it is longer, its rest becomes zero.
 */
shoal_status struct_size_write(const char *what, void *given, size_t least_bytes, const void *ours,
                               size_t our_bytes);

#endif
