/* SPDX-License-Identifier: MIT */
/* Excerpts of long lines, for errors that say how two lines differ. */
#ifndef GRAPH_TEXT_EXCERPT_H
#define GRAPH_TEXT_EXCERPT_H

#include <stddef.h>

#define EXCERPT_BYTES 160 /* with the zero at the end; two of them, and some words, fit into an error */

/* Returns the first column in which two lines differ; if one is the beginning of the other, its length. */
size_t excerpt_find(const char *a, size_t a_bytes, const char *b, size_t b_bytes);

/* Writes the whole line if it fits. Otherwise writes its beginning and the part around a column, with "..." where text
   is left out. */
void excerpt_write(char text_out[EXCERPT_BYTES], const char *line, size_t bytes, size_t column);

#endif
