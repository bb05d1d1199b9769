/* SPDX-License-Identifier: MIT */
/* How GPT-2 cuts text into pieces before tokens are made: no token reaches from one piece into the next. */
#ifndef TEXT_SPLIT_H
#define TEXT_SPLIT_H

#include <stddef.h>

/* Of a text that goes on behind what was read: a piece is certain if so many bytes follow it. */
enum {
    SPLIT_LOOK_AHEAD = 8
};

/* The length of the first piece of a text of n_bytes bytes; 0 only if n_bytes is 0. */
size_t split_next(const char *text, size_t n_bytes);

#endif
