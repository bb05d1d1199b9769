/* SPDX-License-Identifier: MIT */
/* Reading extensible structs of callers; the rule is in struct_size.h. */
#include "base/struct_size.h"

#include <string.h>

#include "base/error.h"

shoal_status struct_size_read(const char *what, const void *given, size_t least_bytes, void *ours,
                              size_t our_bytes)
{
    size_t given_bytes;
    if (!given) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL", what);
    }
    memcpy(&given_bytes, given, sizeof(given_bytes));
    if (given_bytes < least_bytes) {
        return error_set(SHOAL_ERR_INVALID,
                         "%s: struct_size is %zu, at least %zu expected: it is the sizeof of the struct",
                         what, given_bytes, least_bytes);
    }
    const unsigned char *bytes = given;
    for (size_t i = our_bytes; i < given_bytes; i++) {
        if (bytes[i] != 0) {
            return error_set(SHOAL_ERR_UNSUPPORTED,
                             "%s: byte %zu is set, but this library knows only %zu bytes", what, i,
                             our_bytes);
        }
    }
    memset(ours, 0, our_bytes);
    memcpy(ours, given, given_bytes < our_bytes ? given_bytes : our_bytes);
    return SHOAL_OK;
}
