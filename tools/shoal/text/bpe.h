/* SPDX-License-Identifier: MIT */
/* Byte-pair encoding of one piece of text: which pairs of tokens are joined, and in which order. */
#ifndef TEXT_BPE_H
#define TEXT_BPE_H

#include "base/map.h"
#include "shoal/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bpe_merge {
    uint32_t rank; /* lower ones come first */
    int32_t token; /* that the pair becomes */
};

/* A token of the piece in its present state. */
struct bpe_symbol {
    int32_t token; /* -1 if it was joined to the one before it */
    int32_t before;
    int32_t behind; /* -1 if there is none */
};

/* A pair that can be joined, unless one of its tokens has changed since. */
struct bpe_candidate {
    uint32_t rank;
    int32_t at; /* the symbol on the left */
    int32_t left;
    int32_t right;
    int32_t token;
};

/* Zeros are an empty one. */
struct bpe {
    struct map pairs; /* to indices of `merges` */
    struct bpe_merge *merges;
    size_t n_merges;
    size_t merge_capacity;
    /* Memory of bpe_join: */
    struct bpe_candidate *heap;
    size_t n_heap;
    size_t heap_capacity;
    struct bpe_symbol *symbols;
    size_t symbol_capacity;
};

/* Adds a pair. *is_new_out is false, and nothing changes, if it is there already. */
shoal_status bpe_add(struct bpe *bpe, int32_t left, int32_t right, struct bpe_merge merge, bool *is_new_out);

/* Joins the tokens of a piece, in place; *count is how many there are, before and afterwards. */
shoal_status bpe_join(struct bpe *bpe, int32_t *tokens, size_t *count);

void bpe_free(struct bpe *bpe);

#endif
