/* SPDX-License-Identifier: MIT */
/* Likeness of names, for "did you mean". */
#ifndef BASE_NAME_H
#define BASE_NAME_H

#include <stdbool.h>
#include <stddef.h>

/* Longer names are compared by this many characters. */
#define NAME_MAX_CHARS 63

/* The fewest insertions, deletions and replacements of one character, and exchanges of two neighbours, that turn one name
   into the other. No character is changed twice. */
size_t name_distance(const char *a, const char *b);

/* Whether the name begins so. A beginning with fewer than two letters or digits says nothing: false. */
bool name_begins(const char *name, const char *beginning);

#endif
