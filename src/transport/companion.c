/* SPDX-License-Identifier: MIT */
/*
 * A barrier stands for a call: it has the call's fingerprint and details as its details, and the call's text as its
 * words.
 */
#include "transport/companion.h"

#include <string.h>

#include "transport/fingerprint.h"

/* A set of numbers begins with a header and their count (transport/purpose.h). */
#define SET_HEADER 2
#define FINGERPRINT_NUMBERS (sizeof(struct fingerprint) / sizeof(int64_t))

_Static_assert(sizeof(struct fingerprint) % sizeof(int64_t) == 0, "a fingerprint is whole numbers");

/* What errors call it: what it is for, or the raw call. */
static void describe(const struct fingerprint *fingerprint, const int64_t *details, const char *words,
                     char *text, size_t text_bytes)
{
    purpose_describe(&fingerprint->purpose, details, words, /*is_root_told=*/false, text, text_bytes);
    if (text[0] == '\0') {
        fingerprint_describe(fingerprint, details, text, text_bytes);
    }
}

shoal_status companion_meet(struct channel *companion, const struct collective *collective)
{
    int64_t numbers[SET_HEADER + FINGERPRINT_NUMBERS + FINGERPRINT_DETAILS];
    int64_t *details = numbers + SET_HEADER + FINGERPRINT_NUMBERS;
    char words[PURPOSE_WORDS_BYTES];
    char text[PURPOSE_WORDS_BYTES];
    struct fingerprint fingerprint = fingerprint_take(collective, companion->peers->n_ranks, details);
    size_t n_numbers = FINGERPRINT_NUMBERS + fingerprint_n_details(&fingerprint);
    numbers[0] = DETAIL_SET;
    numbers[1] = (int64_t)n_numbers;
    memcpy(numbers + SET_HEADER, &fingerprint, sizeof fingerprint);
    fingerprint_take_words(collective, words);
    describe(&fingerprint, details, words, text, sizeof text);
    const struct purpose purpose = {
        .id = PURPOSE_COMPANION, .details = numbers, .n_details = SET_HEADER + n_numbers, .words = text};
    struct collective barrier = {.kind = COLLECTIVE_BARRIER,
                                 .n_pieces = 1,
                                 .purpose = &purpose,
                                 .sequence = collective->sequence,
                                 .deadline_ns = collective->deadline_ns};
    barrier.pieces = &barrier.single;
    return companion->transport->run(companion, &barrier);
}
