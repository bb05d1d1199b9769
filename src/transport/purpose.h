/* SPDX-License-Identifier: MIT */
/*
 * What a collective is for. Raw calls have no purpose: kind, dtype, counts, operator and root say everything. The
 * layers above issue collectives that look alike but have different meanings: the gathers of two units, the gradients
 * of two models, all_gather along dimension 0 or 1. Such a collective has a purpose, and ranks compare purposes
 * exactly, like the rest of the call, before any result can be read.
 *
 * Four numbers identify most calls. Whatever does not fit there are details: a list of items, each with a header and
 * its numbers, which errors can print. Ranks compare up to PURPOSE_DETAILS numbers one by one; a longer list is
 * compared by a 128-bit hash and its length.
 */
#ifndef TRANSPORT_PURPOSE_H
#define TRANSPORT_PURPOSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum purpose_id {
    PURPOSE_NONE, /* a raw call */
#define PURPOSE(name, text, arguments, hint) PURPOSE_##name,
#include "transport/purposes.def"
#undef PURPOSE
    PURPOSE_COUNT
};

/* Numbers that are compared one by one. */
#define PURPOSE_DETAILS 128
/* Of the words of a call, with the 0 at the end; longer ones are cut. */
#define PURPOSE_WORDS_BYTES 192

/* Belongs to whoever issues the call; lanes copy what they need beyond it. */
struct purpose {
    enum purpose_id id;
    /* Which model, context or wrapper, counted on the group from 1; 0 if there is none. */
    uint32_t root;
    uint32_t unit;          /* which part of it, from 1; 0 if there is none */
    uint32_t argument;      /* what else identifies the call */
    const int64_t *details; /* n_details of them; NULL if there is none */
    size_t n_details;
    const char *words;      /* for errors, not compared; NULL if there is none */
    bool has_lasting_words; /* a literal, which nobody needs to copy */
    /* For the flight record and the trace, not compared. */
    uint32_t label; /* the unit or bucket that the call belongs to (base/label.h); 0 if it belongs to none */
    uint64_t bytes; /* that a window_gather fills of its window; 0 means all */
};

/* Headers of details: a number of 0 or more begins a list of so many. */
enum {
    DETAIL_NUMBER = -1, /* one integer follows */
    DETAIL_REAL = -2,   /* the bits of one double follow */
    DETAIL_SET = -3     /* a count n, and n words of bits: compared, not printed */
};

/* What ranks compare of a purpose besides its details. No padding: it is compared as bytes. */
struct purpose_key {
    uint16_t id;
    uint16_t n_details; /* PURPOSE_HASHED: the details are a hash of two numbers, and their count */
    uint32_t root;
    uint32_t unit;
    uint32_t argument;
};
#define PURPOSE_HASHED 0xffffu

/* The numbers that are stored for a key. */
static inline size_t purpose_stored_details(const struct purpose_key *key)
{
    return key->n_details == PURPOSE_HASHED ? 3 : key->n_details;
}

/* Takes the key of a purpose; it is all zeros if that is NULL. Writes at most PURPOSE_DETAILS numbers. */
struct purpose_key purpose_take(const struct purpose *purpose, int64_t *details);

/*
 * Writes a description to `text`: "gather of layers.3", "broadcast of the whole parameter w(root 0)",
 * "all_gather_tensor([4,8], 1)"; "" for raw calls. Key and details may hold anything, because a peer may have written
 * them. With is_root_told, the number of the root is included, because it differs.
 */
void purpose_describe(const struct purpose_key *key, const int64_t *details, const char *words,
                      bool is_root_told, char *text, size_t text_bytes);

/* The 128-bit hash of bytes that stand for details beyond PURPOSE_DETAILS. */
void purpose_hash(const void *data, size_t bytes, int64_t hash_out[2]);

/* "gather of": what calls of this purpose are for; "" for none. */
const char *purpose_text(unsigned id);

/* What may help ranks that differ in a call of this purpose; "" for none. */
const char *purpose_hint(unsigned id);

#endif
