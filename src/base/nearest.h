/* SPDX-License-Identifier: MIT */
/* The known names that are most like one that was not found, for error texts. */
#ifndef BASE_NEAREST_H
#define BASE_NEAREST_H

#include <stddef.h>

enum {
    NEAREST_NAMES = 3,
    NEAREST_NAME_BYTES = 65,
    NEAREST_BYTES = 256
};

struct nearest {
    const char *wanted;
    char names[NEAREST_NAMES][NEAREST_NAME_BYTES]; /* the nearest first; cut off where they are longer */
    size_t distances[NEAREST_NAMES];
    size_t n_names;
};

void nearest_begin(struct nearest *nearest, const char *wanted);
void nearest_add(struct nearest *nearest, const char *name);
/* `the nearest are "a", "b" and "c"`, or, without any name, `there are no WHAT`; NEAREST_BYTES. Behind the first one,
   those that differ in more than half of the wanted letters are left out. */
void nearest_describe(const struct nearest *nearest, const char *what, char *words);

#endif
