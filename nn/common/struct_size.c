/* SPDX-License-Identifier: MIT */
/* Reading and writing extensible structs of callers; the rule is in struct_size.h. */
#include "common/struct_size.h"

#include <string.h>

#include "common/try.h"
#include "shoal/op.h"

/* The size, and a field. */
#define LEAST_BYTES (2 * sizeof(size_t))

static size_t size_of(const void *given)
{
    size_t bytes;
    memcpy(&bytes, given, sizeof(bytes));
    return bytes;
}

shoal_status nn_struct_check(const char *call, const char *name, const void *given)
{
    if (!given) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: %s is NULL", call, name);
    }
    return size_of(given) >= LEAST_BYTES
               ? SHOAL_OK
               : shoal_fail(SHOAL_ERR_INVALID,
                            "%s: %s: struct_size %zu is not at least %zu: it is the sizeof of the struct, "
                            "which the macro that ends in _INIT sets",
                            call, name, size_of(given), LEAST_BYTES);
}

shoal_status nn_struct_read(const char *call, const char *name, const void *given, void *ours,
                            size_t our_bytes)
{
    NN_TRY(nn_struct_check(call, name, given));
    size_t given_bytes = size_of(given);
    const unsigned char *bytes = given;
    for (size_t i = our_bytes; i < given_bytes; i++) {
        if (bytes[i] != 0) {
            return shoal_fail(SHOAL_ERR_UNSUPPORTED,
                              "%s: %s: struct_size is %zu and byte %zu is set, but this library knows %zu "
                              "bytes: the struct is newer than the library, or its size is wrong",
                              call, name, given_bytes, i, our_bytes);
        }
    }
    size_t n_known = given_bytes < our_bytes ? given_bytes : our_bytes;
    memcpy((char *)ours + sizeof(size_t), bytes + sizeof(size_t), n_known - sizeof(size_t));
    return SHOAL_OK;
}

shoal_status nn_struct_write(const char *call, const char *name, void *given, const void *ours,
                             size_t our_bytes)
{
    NN_TRY(nn_struct_check(call, name, given));
    size_t given_bytes = size_of(given);
    size_t n_known = given_bytes < our_bytes ? given_bytes : our_bytes;
    memcpy((char *)given + sizeof(size_t), (const char *)ours + sizeof(size_t), n_known - sizeof(size_t));
    memset((char *)given + n_known, 0, given_bytes - n_known);
    return SHOAL_OK;
}
