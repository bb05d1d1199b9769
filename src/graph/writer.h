/* SPDX-License-Identifier: MIT */
/* Text on its way to a caller's function, collected into larger pieces. The first failure ends all further writing. */
#ifndef GRAPH_WRITER_H
#define GRAPH_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/graph.h"

struct writer {
    shoal_graph_write write;
    void *context;
    shoal_status status;
    size_t n_bytes;
    char bytes[4096];
};

/* SHOAL_ERR_INVALID for a graph or function that is NULL; `call` is for the text. */
shoal_status writer_begin(struct writer *writer, const char *call, const shoal_graph *graph,
                          shoal_graph_write write, void *context);
/* Hands on what is left; the first failure of all. */
shoal_status writer_end(struct writer *writer);

void writer_add(struct writer *writer, const char *text, size_t bytes);
void writer_add_string(struct writer *writer, const char *string);
void writer_add_format(struct writer *writer, const char *format, ...) __attribute__((format(printf, 2, 3)));
void writer_add_int(struct writer *writer, int64_t number);
/* In quotes, with escapes. */
void writer_add_quoted(struct writer *writer, const char *string);
/* %name or @name. */
void writer_add_name(struct writer *writer, char sign, const char *name);
/* "f32[2, 3]", and with strides, where they are not those of a contiguous tensor, "f32[2, 3]{1, 2}". */
void writer_add_type(struct writer *writer, const shoal_tensor *tensor, bool has_strides);
/* What a node gives: "f32[2]", "[f32[2], f32[3]]", or "none". Lists end in "..." behind `most` types. */
void writer_add_values(struct writer *writer, const shoal_node *node, bool has_strides, size_t most);

#endif
