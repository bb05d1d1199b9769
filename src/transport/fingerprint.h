/* SPDX-License-Identifier: MIT */
/*
 * What ranks compare of a collective before any result can be read, on all transports: taking it from a call,
 * comparing two, and describing how they differ.
 *
 * A call has a fingerprint of fixed size, perhaps details (numbers of a purpose that do not fit there), and words for
 * errors. Transports decide how these travel: shm has them in slots, a message transport sends them. Whatever a peer
 * wrote may be passed in here: it is described, never trusted.
 */
#ifndef TRANSPORT_FINGERPRINT_H
#define TRANSPORT_FINGERPRINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/module.h"
#include "device/device.h"
#include "shoal/status.h"
#include "transport/collective.h"
#include "transport/purpose.h"

struct transport_peers;

/* No padding, so that it can be compared as bytes. */
struct fingerprint {
    uint32_t sequence;
    uint8_t kind;
    uint8_t dtype;
    uint8_t reduce;
    /* The device << 1, and whether there are counts per rank. Devices of modules have numbers that are the process's
       own: they are DEVICE_FIRST_MODULE here, and their names are among the details. */
    uint8_t device_and_counts;
    uint64_t count;  /* elements over all pieces, or of all ranks; window_gather: the caller's label */
    uint64_t hash;   /* of what does not fit: counts of pieces and ranks; window_gather: id and generation */
    uint64_t factor; /* the bits of the double: only bytes are compared */
    int32_t root;
    uint32_t n_pieces;
    struct purpose_key purpose;
};
_Static_assert(sizeof(struct fingerprint) == 56, "compared as bytes, and as words: no padding");

/* The name of a device of a module, as numbers: filled up with 0, which no name has. They come behind the details of
   the purpose, and are compared as those are, one by one. */
#define FINGERPRINT_NAME_NUMBERS (MODULE_NAME_CHARACTERS / sizeof(int64_t))
_Static_assert(MODULE_NAME_CHARACTERS % sizeof(int64_t) == 0, "a name is whole numbers");
#define FINGERPRINT_DETAILS (PURPOSE_DETAILS + FINGERPRINT_NAME_NUMBERS)

/* Whether the details have the name of a device. */
static inline bool fingerprint_has_name(const struct fingerprint *fingerprint)
{
    return fingerprint->device_and_counts >> 1 >= DEVICE_FIRST_MODULE;
}

static inline bool fingerprint_has_counts(const struct fingerprint *fingerprint)
{
    return fingerprint->device_and_counts & 1;
}

/* A call of one rank: where its parts lie. */
struct fingerprint_call {
    const struct fingerprint *fingerprint;
    const int64_t *details; /* fingerprint_n_details of them */
    const char *words;      /* PURPOSE_WORDS_BYTES; needs no 0 at the end */
};

/* Of the counts of several pieces or ranks, or of the window and its generation. */
uint64_t fingerprint_hash(const struct collective *collective, int n_ranks);
/* The elements of several pieces, or of all ranks as far as they are the same on all. */
uint64_t fingerprint_count(const struct collective *collective, int n_ranks);

/* The details of the purpose; at most PURPOSE_DETAILS, whatever the fingerprint says. */
static inline size_t fingerprint_n_purpose(const struct fingerprint *fingerprint)
{
    size_t n_details = purpose_stored_details(&fingerprint->purpose);
    return n_details <= PURPOSE_DETAILS ? n_details : PURPOSE_DETAILS;
}

/* The details that belong to a fingerprint; at most FINGERPRINT_DETAILS, whatever the fingerprint says. */
static inline size_t fingerprint_n_details(const struct fingerprint *fingerprint)
{
    return fingerprint_n_purpose(fingerprint) +
           (fingerprint_has_name(fingerprint) ? FINGERPRINT_NAME_NUMBERS : 0);
}

/* For fingerprint_take: the device of a module, and its name. */
void fingerprint_take_name(const struct collective *collective, struct fingerprint *fingerprint,
                           int64_t *details);

/*
 * Takes the fingerprint of a call. Writes fingerprint_n_details numbers to `details`, which has room for
 * FINGERPRINT_DETAILS, or if the device is none of a module, for those of the purpose. It is inline because every
 * collective takes one, and most are raw calls of one piece, which need only this code.
 */
static inline struct fingerprint fingerprint_take(const struct collective *collective, int n_ranks,
                                                  int64_t *details)
{
    struct fingerprint fingerprint = {
        .sequence = collective->sequence,
        .kind = (uint8_t)collective->kind,
        .dtype = (uint8_t)collective->dtype,
        .reduce = (uint8_t)collective->reduce,
        .device_and_counts = (uint8_t)((unsigned)collective->device << 1 | (collective->send_counts != NULL)),
        .root = collective_rows[collective->kind].has_root ? collective->root : 0,
        .n_pieces = (uint32_t)collective->n_pieces,
    };
    memcpy(&fingerprint.factor, &collective->factor, sizeof fingerprint.factor);
    if (collective->kind == COLLECTIVE_WINDOW_GATHER) {
        fingerprint.count = collective->label;
        fingerprint.hash = fingerprint_hash(collective, n_ranks);
        fingerprint.root = (int32_t)collective->window->id; /* part of the hash too: here for errors */
    } else if (collective->send_counts || collective->n_pieces != 1) {
        fingerprint.count = fingerprint_count(collective, n_ranks);
        fingerprint.hash = fingerprint_hash(collective, n_ranks);
    } else {
        fingerprint.count = collective->pieces[0].count;
    }
    if (collective->purpose) {
        fingerprint.purpose = purpose_take(collective->purpose, details);
    }
    if ((int)collective->device >= DEVICE_FIRST_MODULE) {
        fingerprint_take_name(collective, &fingerprint, details);
    }
    return fingerprint;
}

/* The words of the call, for errors; "" if it has none. */
void fingerprint_take_words(const struct collective *collective, char words[PURPOSE_WORDS_BYTES]);

/* memcmp, as words: compilers call the library for as many bytes as these. */
static inline bool fingerprint_has_same_words(const struct fingerprint *a, const struct fingerprint *b)
{
    uint64_t ours[sizeof *a / sizeof(uint64_t)];
    uint64_t theirs[sizeof *a / sizeof(uint64_t)];
    memcpy(ours, a, sizeof ours);
    memcpy(theirs, b, sizeof theirs);
    uint64_t difference = 0;
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++) {
        difference |= ours[i] ^ theirs[i];
    }
    return difference == 0;
}

/* Whether two ranks called the same. Inline: every collective does it with every peer. */
static inline bool fingerprint_is_equal(const struct fingerprint_call *a, const struct fingerprint_call *b)
{
    if (!fingerprint_has_same_words(a->fingerprint, b->fingerprint)) {
        return false;
    }
    size_t n_details = fingerprint_n_details(a->fingerprint);
    return n_details == 0 || memcmp(a->details, b->details, n_details * sizeof *a->details) == 0;
}

/*
 * Returns SHOAL_ERR_MISMATCH, with a text that has both calls in full and that is the same on all ranks. `own` is this
 * rank's call, `theirs` that of group rank `peer`.
 */
shoal_status fingerprint_fail(const struct transport_peers *peers, const struct fingerprint_call *own,
                              int peer, const struct fingerprint_call *theirs);

/* "all_reduce f32 sum count 1024 #812": the raw call alone. */
void fingerprint_describe(const struct fingerprint *fingerprint, const int64_t *details, char *text,
                          size_t text_bytes);

#endif
