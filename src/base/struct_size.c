/* SPDX-License-Identifier: MIT */
/* Reading and writing extensible structs of callers; the rule is in struct_size.h. */
#include "base/struct_size.h"

#include <string.h>

#include "base/error.h"
#include "base/try.h"

static shoal_status check_size(const char *what, const void *given, size_t least_bytes,
                               size_t *given_bytes_out)
{
    if (!given) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL", what);
    }
    memcpy(given_bytes_out, given, sizeof(*given_bytes_out));
    return *given_bytes_out >= least_bytes
               ? SHOAL_OK
               : error_set(
                     SHOAL_ERR_INVALID,
                     "%s: struct_size is %zu, at least %zu expected: it is the sizeof of the struct, which "
                     "the macro that ends in _INIT sets",
                     what, *given_bytes_out, least_bytes);
}

shoal_status struct_size_read(const char *what, const void *given, size_t least_bytes, void *ours,
                              size_t our_bytes)
{
    size_t given_bytes = 0;
    TRY(check_size(what, given, least_bytes, &given_bytes));
    const unsigned char *bytes = given;
    for (size_t i = our_bytes; i < given_bytes; i++) {
        if (bytes[i] != 0) {
            return error_set(
                SHOAL_ERR_UNSUPPORTED,
                "%s: struct_size is %zu and byte %zu is set, but this library knows %zu bytes: the "
                "struct is newer than the library, or was not zeroed (the macro that ends in "
                "_INIT does it)",
                what, given_bytes, i, our_bytes);
        }
    }
    memset(ours, 0, our_bytes);
    memcpy(ours, given, given_bytes < our_bytes ? given_bytes : our_bytes);
    return SHOAL_OK;
}

shoal_status struct_size_write(const char *what, void *given, size_t least_bytes, const void *ours,
                               size_t our_bytes)
{
    size_t given_bytes = 0;
    TRY(check_size(what, given, least_bytes, &given_bytes));
    size_t n_known = given_bytes < our_bytes ? given_bytes : our_bytes;
    memcpy((char *)given + sizeof(size_t), (const char *)ours + sizeof(size_t), n_known - sizeof(size_t));
    memset((char *)given + n_known, 0, given_bytes - n_known);
    return SHOAL_OK;
}
