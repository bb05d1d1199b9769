/* SPDX-License-Identifier: MIT */
/* A text in memory of a fixed size, appended to until it is full. It is a terminated string at any time. */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include <stddef.h>
#include <stdint.h>

struct text {
    char *string;
    size_t bytes; /* of the memory, with the 0 at the end; at least 1 */
    size_t length;
};

/* An empty text in that memory. */
struct text text_begin(char *string, size_t bytes);

/* What does not fit is cut off. */
void text_add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A number of bytes for people: "96 bytes", "1.50 MiB". */
void text_add_bytes(struct text *text, uint64_t bytes);

/*
 * Appends `between` and then the name, for lists: "net without weight, bias". The name is added whole or not at all: if
 * "..." would not fit behind it, "..." is added in its place, and the text is full.
 */
void text_add_name(struct text *text, const char *between, const char *name);

#endif
