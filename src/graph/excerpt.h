/* SPDX-License-Identifier: MIT */
/* A part of a long line, for errors that say how two lines differ. */
#ifndef GRAPH_EXCERPT_H
#define GRAPH_EXCERPT_H

#include <stddef.h>

#define EXCERPT_BYTES 160 /* with the end; two of them, and some words, fit into an error */

/* The column from which on the two differ; the shorter length when that is all there is of one. */
size_t excerpt_find(const char *a, size_t a_bytes, const char *b, size_t b_bytes);

/* The whole line if it fits. Otherwise its beginning, and, behind "...", what is around a column; both ends of a cut
   line have it. */
void excerpt_write(char text_out[EXCERPT_BYTES], const char *line, size_t bytes, size_t column);

#endif
