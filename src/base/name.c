/* SPDX-License-Identifier: MIT */
/* Edit distance of two names, in three rows of the usual table. No memory is allocated. */
#include "base/name.h"

#include <ctype.h>
#include <string.h>

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

size_t name_distance(const char *a, const char *b)
{
    size_t a_chars = strnlen(a, NAME_MAX_CHARS);
    size_t b_chars = strnlen(b, NAME_MAX_CHARS);
    /* rows[i % 3][j]: the distance between the first i characters of a and the first j of b. */
    size_t rows[3][NAME_MAX_CHARS + 1];
    for (size_t j = 0; j <= b_chars; j++) {
        rows[0][j] = j;
    }
    for (size_t i = 1; i <= a_chars; i++) {
        size_t *row = rows[i % 3];
        const size_t *above = rows[(i - 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= b_chars; j++) {
            size_t replaced = above[j - 1] + (a[i - 1] != b[j - 1] ? 1 : 0);
            row[j] = smaller(replaced, smaller(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                row[j] = smaller(row[j], rows[(i - 2) % 3][j - 2] + 1);
            }
        }
    }
    return rows[a_chars % 3][b_chars];
}

bool name_begins(const char *name, const char *beginning)
{
    size_t n_letters = 0;
    size_t n_chars = 0;
    for (; beginning[n_chars] != '\0'; n_chars++) {
        n_letters += isalnum((unsigned char)beginning[n_chars]) ? 1 : 0;
    }
    return n_letters >= 2 && strncmp(name, beginning, n_chars) == 0;
}
