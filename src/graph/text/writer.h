/* SPDX-License-Identifier: MIT */
/* Collects text into larger pieces, and hands these to a function of the caller. After a failure nothing more is
   written. */
#ifndef GRAPH_TEXT_WRITER_H
#define GRAPH_TEXT_WRITER_H

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

/* Begins. SHOAL_ERR_INVALID: the graph or the function is NULL; `call` is for the error text. */
shoal_status writer_begin(struct writer *writer, const char *call, const shoal_graph *graph,
                          shoal_graph_write write, void *context);
/* Hands over the rest. Returns the first failure since writer_begin. */
shoal_status writer_end(struct writer *writer);

void writer_add(struct writer *writer, const char *text, size_t bytes);
void writer_add_string(struct writer *writer, const char *string);
void writer_add_format(struct writer *writer, const char *format, ...) __attribute__((format(printf, 2, 3)));
void writer_add_int(struct writer *writer, int64_t number);
/* Adds a string in quotes, with escapes. */
void writer_add_quoted(struct writer *writer, const char *string);
/* Adds %name or @name. */
void writer_add_name(struct writer *writer, char sign, const char *name);
/* Adds "f32[2, 3]"; if has_strides, and the tensor is not contiguous, "f32[2, 3]{1, 2}". */
void writer_add_type(struct writer *writer, const shoal_tensor *tensor, bool has_strides);
/* Adds the type of a node's value: "f32[2]", "[f32[2], f32[3]]", or "none". After `most` types a list ends in "...". */
void writer_add_values(struct writer *writer, const shoal_node *node, bool has_strides, size_t most);

#endif
