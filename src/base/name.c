/* SPDX-License-Identifier: MIT */
/* Edit distance of two names, in one row of the usual table. No memory is allocated. */
#include "base/name.h"

#include <string.h>

static size_t smallest(size_t a, size_t b, size_t c)
{
    size_t least = a < b ? a : b;
    return least < c ? least : c;
}

size_t name_distance(const char *a, const char *b)
{
    size_t a_chars = strnlen(a, NAME_MAX_CHARS);
    size_t b_chars = strnlen(b, NAME_MAX_CHARS);
    /* row[j]: the distance between the first i characters of a and the first j of b. */
    size_t row[NAME_MAX_CHARS + 1];
    for (size_t j = 0; j <= b_chars; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= a_chars; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_chars; j++) {
            size_t replaced = diagonal + (a[i - 1] != b[j - 1] ? 1 : 0);
            diagonal = row[j];
            row[j] = smallest(row[j] + 1, row[j - 1] + 1, replaced);
        }
    }
    return row[b_chars];
}
