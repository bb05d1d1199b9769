/* SPDX-License-Identifier: MIT */
/* Likeness of names, for "did you mean". */
#ifndef BASE_NAME_H
#define BASE_NAME_H

#include <stddef.h>

/* Longer names are compared by this many characters. */
#define NAME_MAX_CHARS 63

/* The fewest insertions, deletions and replacements of one character that turn one name into the other. */
size_t name_distance(const char *a, const char *b);

#endif
