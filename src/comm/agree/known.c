/* SPDX-License-Identifier: MIT */
/*
 * Comparing texts of ranks that have one. A hash of every rank's text is gathered first, which is all if none differs.
 * All ranks see the same hashes, so all of them exchange the texts, or none does.
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/try.h"
#include "comm/agree/agree.h"

enum {
    FEW_RANKS = 64,   /* have room on the stack */
    SHOWN_BYTES = 224 /* of a text in an error */
};

/* The first rank that has a text, and the first that has another one; -1 if there is none. */
struct pair {
    int first;
    int other;
};

static struct pair find_pair(const struct agree_records *hashes)
{
    struct pair pair = {.first = -1, .other = -1};
    uint64_t first = 0;
    for (int rank = 0; rank < hashes->n_ranks && pair.other < 0; rank++) {
        uint64_t hash;
        memcpy(&hash, agree_record(hashes, rank), sizeof hash);
        if (pair.first < 0 && hash != 0) {
            pair.first = rank;
            first = hash;
        } else if (hash != 0 && hash != first) {
            pair.other = rank;
        }
    }
    return pair;
}

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

static shoal_status fail_pair(const struct agreement *agreement, const char *what, const char *mine,
                              const struct pair *pair)
{
    char texts[2][AGREE_KNOWN_BYTES];
    int world_ranks[2] = {pair->first, pair->other};
    for (int i = 0; i < 2; i++) {
        int rank = i == 0 ? pair->first : pair->other;
        (void)snprintf(texts[i], sizeof texts[i], "%s", mine);
        int32_t world_rank = agreement->world_rank;
        TRY(agree_send(agreement, texts[i], sizeof texts[i], rank));
        TRY(agree_send(agreement, &world_rank, sizeof world_rank, rank));
        texts[i][sizeof texts[i] - 1] = '\0';
        world_ranks[i] = world_rank;
    }
    size_t place = find_place(texts[0], texts[1]);
    return error_set(SHOAL_ERR_MISMATCH, "ranks differ in %s: rank %d has \"%.*s\", rank %d has \"%.*s\"",
                     what, world_ranks[0], SHOWN_BYTES, show_from(texts[0], place), world_ranks[1],
                     SHOWN_BYTES, show_from(texts[1], place));
}

shoal_status agree_on_known(const struct agreement *agreement, const char *what, const char *text)
{
    uint64_t room[FEW_RANKS];
    struct agree_records hashes;
    uint64_t mine = text[0] ? hash_bytes(1, text, strlen(text)) | 1 : 0;
    shoal_status status = agree_gather(agreement, &mine, sizeof mine,
                                       (struct agree_room){.data = room, .bytes = sizeof room}, &hashes);
    struct pair pair = {.other = -1};
    if (status == SHOAL_OK) {
        pair = find_pair(&hashes);
    }
    agree_free_records(&hashes);
    TRY(status);
    return pair.other < 0 ? SHOAL_OK : fail_pair(agreement, what, text, &pair);
}
