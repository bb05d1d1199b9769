/* SPDX-License-Identifier: MIT */
/*
 * Comparing texts of ranks that have one. The first rank that has one sends it to all, and each rank compares it with its
 * own. No memory is allocated, which could be missing on one rank only.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/try.h"
#include "comm/agree/agree.h"

enum {
    SHOWN_BYTES = 224 /* of a text in an error */
};

/* A rank's text, which all ranks have. */
struct known {
    char text[AGREE_KNOWN_BYTES];
    int32_t world_rank;
};

/* The first place in which two texts differ: of a long text, what stands around it is shown. */
static size_t find_place(const char *a, const char *b)
{
    size_t place = 0;
    while (a[place] && a[place] == b[place]) {
        place++;
    }
    return place;
}

static const char *show_from(const char *text, size_t place)
{
    return strlen(text) < SHOWN_BYTES || place < SHOWN_BYTES / 2 ? text : text + place - SHOWN_BYTES / 2;
}

/* Collective. Gives all ranks the text of one of them. */
static shoal_status send_known(const struct agreement *agreement, int rank, const char *mine,
                               struct known *known_out)
{
    uint64_t bytes = strlen(mine) + 1;
    (void)snprintf(known_out->text, sizeof known_out->text, "%s", mine);
    known_out->world_rank = agreement->world_rank;
    TRY(agree_send(agreement, &bytes, sizeof bytes, rank));
    if (bytes > sizeof known_out->text) { /* the same number on all ranks */
        return error_set(SHOAL_ERR_INTERNAL,
                         "rank %d: a text of %" PRIu64 " bytes to compare, at most %zu are possible", rank,
                         bytes, sizeof known_out->text);
    }
    TRY(agree_send(agreement, known_out->text, bytes, rank));
    TRY(agree_send(agreement, &known_out->world_rank, sizeof known_out->world_rank, rank));
    known_out->text[bytes - 1] = '\0';
    return SHOAL_OK;
}

static shoal_status fail_pair(const char *what, const struct known *first, const struct known *other)
{
    size_t place = find_place(first->text, other->text);
    return error_set(SHOAL_ERR_MISMATCH, "ranks differ in %s: rank %d has \"%.*s\", rank %d has \"%.*s\"",
                     what, first->world_rank, SHOWN_BYTES, show_from(first->text, place), other->world_rank,
                     SHOWN_BYTES, show_from(other->text, place));
}

shoal_status agree_on_known(const struct agreement *agreement, const char *what, const char *text)
{
    struct known known;
    struct known known_other;
    struct agree_first first;
    struct agree_first other;
    TRY(agree_find_first(agreement, text[0] ? 0 : AGREE_NO_KEY, &first));
    if (first.rank < 0) {
        return SHOAL_OK;
    }
    TRY(send_known(agreement, first.rank, text, &known));
    bool differs = text[0] && strcmp(text, known.text) != 0;
    TRY(agree_find_first(agreement, differs ? 0 : AGREE_NO_KEY, &other));
    if (other.rank < 0) {
        return SHOAL_OK;
    }
    TRY(send_known(agreement, other.rank, text, &known_other));
    return fail_pair(what, &known, &known_other);
}
