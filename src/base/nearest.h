/* SPDX-License-Identifier: MIT */
/* The known names that are most like one that was not found, for error texts. */
#ifndef BASE_NEAREST_H
#define BASE_NEAREST_H

#include <stdbool.h>
#include <stddef.h>

enum {
    NEAREST_NAMES = 3,
    NEAREST_NAME_BYTES = 65,
    NEAREST_BYTES = 256
};

struct nearest {
    const char *wanted;
    char names[NEAREST_NAMES][NEAREST_NAME_BYTES]; /* the nearest first; cut off where they are longer */
    size_t distances[NEAREST_NAMES];               /* 0 for names that begin with the wanted one */
    size_t n_names;
};

void nearest_begin(struct nearest *nearest, const char *wanted);
void nearest_add(struct nearest *nearest, const char *name);
/* How many of the names are worth telling: those that begin with the wanted one or, if none does, the first one and
   those that differ in at most half of the wanted letters. 0 if there are no names. */
size_t nearest_count(const struct nearest *nearest);
/* Whether the first one is so much like the wanted one that it was probably meant. */
bool nearest_is_likely(const struct nearest *nearest);
/* `the nearest are "a", "b" and "c"`, or, without any name, `there are no WHAT`; NEAREST_BYTES. */
void nearest_describe(const struct nearest *nearest, const char *what, char *words);

#endif
