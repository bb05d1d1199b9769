/* SPDX-License-Identifier: MIT */
/* Prints text that a model has written: UTF-8 as it is, control characters and other bytes as \x1b. */
#ifndef TEXT_SHOW_H
#define TEXT_SHOW_H

#include <stddef.h>
#include <stdio.h>

/* Zeros, with a file. */
struct show {
    FILE *out;
    char pending[4]; /* the beginning of a character, of which more may come */
    size_t n_pending;
    int last; /* the last byte that was printed */
};

void show_bytes(struct show *show, const char *bytes, size_t n_bytes);
/* Prints what is pending, and ends the line. */
void show_end(struct show *show);

#endif
