/* SPDX-License-Identifier: MIT */
/* Types in graph text, and the data of constants. */
#ifndef GRAPH_TEXT_CONSTANT_TEXT_H
#define GRAPH_TEXT_CONSTANT_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "graph/text/lexer.h"
#include "graph/text/sharing.h"
#include "graph/text/writer.h"
#include "shoal/tensor.h"
#include "tensor/layout.h"

/* Up to so many elements are written as numbers; more are written as bytes in hexadecimal digits. */
#define CONSTANT_TEXT_MAX_NUMBERS 64

/* The storage of a tensor with strides may have at most so many bytes that belong to no element. */
#define CONSTANT_TEXT_MAX_GAP_BYTES ((size_t)1 << 26)

/* A type as it is written. The layout's offset is 0. */
struct text_type {
    struct token token;
    shoal_dtype dtype;
    struct layout layout;
    bool has_strides;
};

/* Makes a tensor of that type, with undefined contents. The caller gets a reference. */
shoal_status text_type_make(const struct text_type *type, shoal_device device, shoal_tensor **tensor_out);

/* Prints the data of a constant: " [1.5, 2.0]" or " hex \"...\""; " storage \"...\" + 4" or " of %w + 4" if other
   constants have the same storage; nothing if it has no data. A failure is kept in the writer. */
void constant_text_print(struct writer *writer, const shoal_node *node, struct sharers sharers);

enum constant_data {
    CONSTANT_SHAPE, /* no data */
    CONSTANT_NUMBERS,
    CONSTANT_HEX,
    CONSTANT_STORAGE,      /* all bytes of the storage */
    CONSTANT_STORAGE_SIZE, /* the size of a storage without data */
    CONSTANT_OF            /* the storage of another constant */
};

/* The text between "constant" and ":", which can only be read when the type is known. */
struct constant_text {
    enum constant_data data;
    struct lexer start; /* at the first token of the data, after "[" or a word */
    size_t n_numbers;
    uint64_t n_storage_bytes;
    uint64_t offset; /* in the storage, in elements */
};

/* Skips the data, and notes where it begins. */
shoal_status constant_text_skip(struct lexer *lexer, struct constant_text *text_out);
/* Makes the tensor; the caller gets a reference. `of` is the tensor of the other constant, for CONSTANT_OF. */
shoal_status constant_text_read(const struct constant_text *text, shoal_tensor *of,
                                const struct text_type *type, shoal_tensor **tensor_out);

#endif
