/* SPDX-License-Identifier: MIT */
/* Types in graph text, and the data of constants. */
#ifndef GRAPH_CONSTANT_TEXT_H
#define GRAPH_CONSTANT_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "graph/lexer.h"
#include "graph/sharing.h"
#include "graph/writer.h"
#include "shoal/tensor.h"
#include "tensor/layout.h"

/* Up to so many elements are written as numbers, more as bytes in hexadecimal digits. */
#define CONSTANT_TEXT_MAX_NUMBERS 64

/* Between the elements of a tensor with strides there may be so many bytes that belong to none. */
#define CONSTANT_TEXT_MAX_GAP_BYTES ((size_t)1 << 26)

/* A type as it is written. The layout's offset is 0. */
struct text_type {
    struct token token;
    shoal_dtype dtype;
    struct layout layout;
    bool has_strides;
};

/* A tensor like that, contents undefined: one reference, the caller's. */
shoal_status text_type_make(const struct text_type *type, shoal_device device, shoal_tensor **tensor_out);

/* " [1.5, 2.0]", " hex \"...\"", " storage \"...\" + 4" or " of %w + 4" where others look at the storage too, or
   nothing for a constant without data. The writer gets what fails. */
void constant_text_print(struct writer *writer, const shoal_node *node, struct sharers sharers);

enum constant_data {
    CONSTANT_SHAPE, /* there is none */
    CONSTANT_NUMBERS,
    CONSTANT_HEX,
    CONSTANT_STORAGE,      /* all bytes of the storage */
    CONSTANT_STORAGE_SIZE, /* how many they would be */
    CONSTANT_OF            /* the storage of another constant */
};

/* What stands between "constant" and ":": the data, which can only be read once the type is known. */
struct constant_text {
    enum constant_data data;
    struct lexer start; /* on its first token, behind "[" or a word */
    size_t n_numbers;
    uint64_t n_storage_bytes;
    uint64_t offset; /* in the storage, in elements */
};

/* Goes behind the data. */
shoal_status constant_text_skip(struct lexer *lexer, struct constant_text *text_out);
/* The tensor: one reference, the caller's. `of` is the tensor of the other constant, where there is one. */
shoal_status constant_text_read(const struct constant_text *text, shoal_tensor *of,
                                const struct text_type *type, shoal_tensor **tensor_out);

#endif
