/* SPDX-License-Identifier: MIT */
#include "graph/text/excerpt.h"

#include <stdbool.h>
#include <string.h>

#define DOTS "..."
#define N_DOTS (sizeof DOTS - 1)
#define HEAD_BYTES 48   /* of the beginning of a line */
#define BEFORE_BYTES 24 /* in front of the column */

size_t excerpt_find(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    size_t column = 0;
    while (column < a_bytes && column < b_bytes && a[column] == b[column]) {
        column++;
    }
    return column;
}

static void append(char **to, const char *from, size_t bytes)
{
    memcpy(*to, from, bytes);
    *to += bytes;
}

void excerpt_write(char text_out[EXCERPT_BYTES], const char *line, size_t bytes, size_t column)
{
    char *to = text_out;
    size_t room = EXCERPT_BYTES - 1;
    size_t first = 0;
    column = column < bytes ? column : bytes;
    if (bytes > room && column > room - N_DOTS - BEFORE_BYTES) {
        append(&to, line, HEAD_BYTES);
        append(&to, DOTS, N_DOTS);
        room -= HEAD_BYTES + N_DOTS;
        first = column - BEFORE_BYTES;
        first = bytes - first < room ? bytes - room : first; /* at the end of the line: as much as fits */
    }
    bool is_cut = bytes - first > room;
    append(&to, line + first, is_cut ? room - N_DOTS : bytes - first);
    if (is_cut) {
        append(&to, DOTS, N_DOTS);
    }
    *to = '\0';
}
