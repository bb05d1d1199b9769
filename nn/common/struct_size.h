/* SPDX-License-Identifier: MIT */
/*
 * Structs that callers fill in and later versions may extend. The first member is struct_size, and new fields are added
 * at the end. A field that the caller's struct does not have yet gets its default; one that this library does not know
 * must be zero, which is the default of every field that is added later.
 */
#ifndef NN_COMMON_STRUCT_SIZE_H
#define NN_COMMON_STRUCT_SIZE_H

#include <stddef.h>

#include "shoal/status.h"

/*
 * Copies the fields that `given` has into `ours`, which has the defaults, as the macro of the struct sets them.
 * ours->struct_size stays. SHOAL_ERR_INVALID: `given` is NULL, or has no field besides struct_size (the size of a
 * pointer is no struct_size). SHOAL_ERR_UNSUPPORTED: a field that this library does not know is not zero. `call` is the
 * name of the call, `name` that of the argument.
 */
shoal_status nn_struct_read(const char *call, const char *name, const void *given, void *ours,
                            size_t our_bytes);

/* Only checks the size, for structs that are written later. */
shoal_status nn_struct_check(const char *call, const char *name, const void *given);

/*
 * Fills in a struct of the caller's from `ours`. Its struct_size stays. If it is shorter, the rest of ours is left out;
 * if it is longer, its rest becomes zero.
 */
shoal_status nn_struct_write(const char *call, const char *name, void *given, const void *ours,
                             size_t our_bytes);

#endif
