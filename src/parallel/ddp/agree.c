/* SPDX-License-Identifier: MIT */
#include "parallel/ddp/agree.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "base/try.h"
#include "comm/agree/agree.h"
#include "comm/lane/handles.h"
#include "op/basis.h"
#include "parallel/ddp/block.h"

/* Of the names of parameters in an error, with the 0 at the end. */
#define NAMES_BYTES 160

/* What every rank sends to the others. */
enum card_field {
    CARD_STATUS,
    CARD_NUMBER,
    CARD_GENERATION,
    CARD_BLOCK,
    CARD_TENSORS,
    CARD_FIRST_BYTES,
    CARD_BUCKET_BYTES,
    CARD_DIVIDE_FACTOR,
    CARD_REDUCE_UNUSED,
    CARD_KEEPS_PARAMETERS,
    CARD_KEEPS_BUFFERS,
    CARD_HAS_BUFFERS,
    CARD_PLACES, /* this and the next are compared last: the hashes of tensors tell more */
    CARD_BUFFERS,
    CARD_FIELDS
};

static const char *const card_words[CARD_FIELDS] = {
    [CARD_TENSORS] = "the number of tensors", [CARD_FIRST_BYTES] = "first_bucket_bytes",
    [CARD_BUCKET_BYTES] = "bucket_bytes",     [CARD_DIVIDE_FACTOR] = "divide_factor",
    [CARD_REDUCE_UNUSED] = "reduce_unused",   [CARD_KEEPS_PARAMETERS] = "keeps_parameters",
    [CARD_KEEPS_BUFFERS] = "keeps_buffers",   [CARD_HAS_BUFFERS] = "whether there are buffers"};

static void write_card(const struct ddp_collector *collector, shoal_status mine, int64_t *card)
{
    const struct ddp *ddp = collector->ddp;
    const shoal_ddp_options *options = collector->options;
    int number = 0;
    int generation = 0;
    uint32_t block_number = 0;
    if (shoal_group_rank(ddp->group) == 0) {
        block_number = symmetric_propose(ddp->group);
    }
    if (collector->again) {
        number = ddp->lane.number;
        generation = ddp->lane.generation;
    } else if (shoal_group_rank(ddp->group) == 0) {
        ddp_propose_lane(ddp, &number, &generation);
    }
    card[CARD_STATUS] = mine;
    card[CARD_NUMBER] = number;
    card[CARD_GENERATION] = generation;
    card[CARD_BLOCK] = block_number;
    card[CARD_TENSORS] = (int64_t)collector->list.n_tensors;
    card[CARD_FIRST_BYTES] = (int64_t)ddp->config.first_bytes;
    card[CARD_BUCKET_BYTES] = (int64_t)ddp->config.bucket_bytes;
    memcpy(&card[CARD_DIVIDE_FACTOR], &options->divide_factor, sizeof card[CARD_DIVIDE_FACTOR]);
    card[CARD_REDUCE_UNUSED] = options->reduce_unused;
    card[CARD_KEEPS_PARAMETERS] = options->keeps_parameters;
    card[CARD_KEEPS_BUFFERS] = options->keeps_buffers;
    card[CARD_HAS_BUFFERS] = ddp->buffers.are_sent;
    memcpy(&card[CARD_PLACES], &ddp->places, sizeof card[CARD_PLACES]);
    memcpy(&card[CARD_BUFFERS], &ddp->buffers.places, sizeof card[CARD_BUFFERS]);
}

static void describe_field(enum card_field field, int64_t value, char *text, size_t bytes)
{
    if (field == CARD_DIVIDE_FACTOR) {
        double factor;
        memcpy(&factor, &value, sizeof factor);
        (void)snprintf(text, bytes, "%.17g", factor);
    } else {
        (void)snprintf(text, bytes, "%" PRId64, value);
    }
}

static shoal_status fail_field(enum card_field field, int64_t mine, int64_t theirs, int rank)
{
    char here[32];
    char there[32];
    describe_field(field, mine, here, sizeof here);
    describe_field(field, theirs, there, sizeof there);
    return error_set(SHOAL_ERR_MISMATCH, "ranks differ in %s: %s here, %s on rank %d", card_words[field],
                     here, there, rank);
}

static shoal_status compare_cards(const struct agree_records *cards, const int64_t *mine)
{
    for (int r = 0; r < cards->n_ranks; r++) {
        const int64_t *card = agree_record(cards, r);
        if (card[CARD_STATUS] != SHOAL_OK) {
            return error_set((shoal_status)card[CARD_STATUS], "rank %d failed: %s", r,
                             shoal_status_name((shoal_status)card[CARD_STATUS]));
        }
    }
    struct agree_difference other =
        agree_find_difference(cards, mine, AGREE_BY_RANK, CARD_TENSORS, CARD_PLACES);
    if (other.rank < 0) {
        return SHOAL_OK;
    }
    const int64_t *theirs = agree_record(cards, other.rank);
    return fail_field((enum card_field)other.number, mine[other.number], theirs[other.number], other.rank);
}

static shoal_status compare_places(const struct agree_records *cards, const int64_t *mine)
{
    struct agree_difference other =
        agree_find_difference(cards, mine, AGREE_BY_RANK, CARD_PLACES, CARD_FIELDS);
    return other.rank < 0
               ? SHOAL_OK
               : error_set(SHOAL_ERR_MISMATCH, "this rank and rank %d differ in %s", other.rank,
                           other.number == CARD_PLACES ? "which parameters are tied" : "their buffers");
}

/* Gathers `count` numbers of each rank. If a rank has no memory for them, all ranks fail. */
static shoal_status gather(shoal_group *lane, const void *mine, size_t count, struct agree_records *all_out)
{
    const struct agreement agreement = agreement_on(lane);
    return agree_gather(&agreement, mine, count * sizeof(uint64_t), (struct agree_room){.data = NULL},
                        all_out);
}

/* The tensors are alike, but not all that are new on one rank are new on the other: "w" here, "layer.w" there. */
static shoal_status name_replaced(const struct ddp_tensors *list, const uint64_t *theirs, int rank)
{
    char names[2][NAMES_BYTES];
    struct text texts[2] = {text_begin(names[0], NAMES_BYTES), text_begin(names[1], NAMES_BYTES)};
    for (size_t i = 0; i < list->n_tensors; i++) {
        struct text *text = &texts[list->are_new[i] ? 0 : 1];
        if (theirs[i] != list->hashes[i]) {
            text_add_name(text, text->length > 0 ? ", " : "", list->paths[i]);
        }
    }
    return error_set(SHOAL_ERR_MISMATCH, "ranks have replaced different parameters: %s here, %s on rank %d",
                     names[0][0] ? names[0] : "none", names[1][0] ? names[1] : "none", rank);
}

static shoal_status compare_with(const struct ddp_tensors *list, const uint64_t *theirs, int rank)
{
    bool is_same = true;
    for (size_t i = 0; i < list->n_tensors; i++) {
        if ((theirs[i] ^ list->hashes[i]) >> 1 != 0) {
            return error_set(SHOAL_ERR_MISMATCH,
                             "%s differs on rank %d: names, order, dtypes, shapes and requires_grad must be "
                             "the same on all ranks",
                             list->paths[i], rank);
        }
        is_same = is_same && theirs[i] == list->hashes[i];
    }
    return is_same ? SHOAL_OK : name_replaced(list, theirs, rank);
}

static shoal_status compare_hashes(shoal_group *lane, const struct ddp_tensors *list)
{
    struct agree_records all;
    shoal_status status = gather(lane, list->hashes, list->n_tensors, &all);
    for (int r = 0; r < all.n_ranks && status == SHOAL_OK; r++) {
        status = compare_with(list, agree_record(&all, r), r);
    }
    agree_free_records(&all);
    return status;
}

static shoal_status compare_basis(shoal_group *lane)
{
    char basis[OP_BASIS_BYTES];
    const struct agreement agreement = agreement_on(lane);
    op_basis_write(basis);
    return agree_on_known(&agreement, OP_BASIS_WORDS, basis);
}

/* Called when all cards are there. */
static shoal_status compare(struct ddp_collector *collector, shoal_group *lane, const int64_t *card,
                            const struct agree_records *cards)
{
    struct ddp *ddp = collector->ddp;
    bool has_peers = group_has_peers(lane);
    const int64_t *first = has_peers ? agree_record(cards, 0) : card;
    ddp->lane.number = (int)first[CARD_NUMBER];
    ddp->lane.generation = (int)first[CARD_GENERATION];
    ddp->buckets.block_number = (uint32_t)first[CARD_BLOCK];
    if (!has_peers) {
        return SHOAL_OK;
    }
    TRY(compare_cards(cards, card));
    TRY(compare_hashes(lane, &collector->list));
    TRY(compare_places(cards, card));
    return compare_basis(lane);
}

/* A rank on which collecting failed takes part, too, so that the others are told. */
shoal_status ddp_agree(struct ddp_collector *collector, shoal_group *lane, shoal_status mine)
{
    char text[ERROR_TEXT_BYTES];
    int64_t card[CARD_FIELDS];
    struct agree_records cards;
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    write_card(collector, mine, card);
    shoal_status status = gather(lane, card, CARD_FIELDS, &cards);
    if (mine == SHOAL_OK && status == SHOAL_OK) {
        status = compare(collector, lane, card, &cards);
    }
    agree_free_records(&cards);
    return mine == SHOAL_OK ? status : error_set(mine, "%s", text);
}
