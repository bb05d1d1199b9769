/* SPDX-License-Identifier: MIT */
/*
 * Who writes what: see split.h.
 *
 * Regions that the same ranks have form a class. Classes of few ranks come first, because they have the least choice.
 * The bytes of a class are put in a row, and each of its ranks gets a stretch of them, so long that all ranks get
 * equal numbers of bytes. If a stretch would end inside a region, it ends at the nearest place at which the region
 * may be cut. If one rank gets too much this way, the next gets less, so deviations do not add up.
 */
#include "checkpoint/ranks/split.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "tensor/dtype.h"

/* A region, and how it may be cut. */
struct share {
    const struct table_region *region;
    size_t tensor;
    int dim; /* along which it is cut; -1 if it has one element */
    int64_t n_rows;
    int64_t row_bytes;
    int64_t min_rows; /* of a piece */
};

/* A rank of a class. */
struct member {
    int64_t load; /* bytes that it writes besides those of the class */
    int rank;
};

struct split {
    struct share *shares;
    size_t n_shares;
    int64_t *loads;         /* of all ranks */
    struct member *members; /* of the class, by load */
    int64_t *targets;       /* bytes of the class, by rank */
    struct split_piece *pieces;
    size_t n_pieces;
    size_t capacity;
};

/* Regions --------------------------------------------------------------------------------------------------- */

static void describe(struct share *share, const struct table *table, size_t tensor, size_t region)
{
    const struct table_tensor *owner = &table->tensors[tensor];
    *share = (struct share){.region = &owner->regions[region], .tensor = tensor, .dim = -1, .n_rows = 1};
    int64_t bytes = region_count(&share->region->region, owner->n_dims) * (int64_t)dtype_bytes(owner->dtype);
    for (int i = 0; i < owner->n_dims && share->dim < 0; i++) {
        if (share->region->region.length[i] > 1) {
            share->dim = i;
            share->n_rows = share->region->region.length[i];
        }
    }
    share->row_bytes = bytes / share->n_rows;
    int64_t min_rows = SPLIT_MIN_BYTES / 2 / share->row_bytes;
    share->min_rows = bytes < SPLIT_MIN_BYTES ? share->n_rows : min_rows < 1 ? 1 : min_rows;
}

/* Where the region may be cut, as near as possible to so many bytes: a number of rows, possibly 0 or all. */
static int64_t round_rows(const struct share *share, int64_t bytes)
{
    int64_t row_bytes = share->row_bytes;
    if (bytes <= 0 || bytes >= share->n_rows * row_bytes) {
        return bytes <= 0 ? 0 : share->n_rows;
    }
    int64_t rows = bytes / row_bytes + (bytes % row_bytes >= row_bytes - row_bytes / 2);
    if (rows < share->min_rows) {
        rows = bytes >= share->min_rows * row_bytes / 2 ? share->min_rows : 0;
    }
    int64_t last = share->n_rows - share->min_rows; /* the last place before the end */
    if (rows > last) {
        bool is_nearer = last > 0 && bytes - last * row_bytes < share->min_rows * row_bytes / 2;
        rows = is_nearer ? last : share->n_rows;
    }
    return rows;
}

static int compare_shares(const void *a, const void *b)
{
    const struct share *first = a;
    const struct share *second = b;
    int n_ranks = first->region->n_ranks;
    if (n_ranks != second->region->n_ranks) {
        return n_ranks < second->region->n_ranks ? -1 : 1;
    }
    /* Regions with the same ranks often have the same list. */
    for (int i = 0; i < n_ranks && first->region->ranks != second->region->ranks; i++) {
        if (first->region->ranks[i] != second->region->ranks[i]) {
            return first->region->ranks[i] < second->region->ranks[i] ? -1 : 1;
        }
    }
    if (first->tensor != second->tensor) {
        return first->tensor < second->tensor ? -1 : 1;
    }
    return (first->region > second->region) - (first->region < second->region); /* of one array */
}

static bool is_same_class(const struct share *a, const struct share *b)
{
    return a->region->n_ranks == b->region->n_ranks &&
           (a->region->ranks == b->region->ranks ||
            memcmp(a->region->ranks, b->region->ranks, (size_t)a->region->n_ranks * sizeof(int)) == 0);
}

/* Classes --------------------------------------------------------------------------------------------------- */

static int compare_members(const void *a, const void *b)
{
    const struct member *first = a;
    const struct member *second = b;
    if (first->load != second->load) {
        return first->load < second->load ? -1 : 1;
    }
    return (first->rank > second->rank) - (first->rank < second->rank);
}

/* Gives the bytes of the class to the ranks with the least bytes, so that these reach the same level. */
static void set_targets(struct split *split, const struct table_region *class, int64_t bytes)
{
    struct member *members = split->members;
    for (int i = 0; i < class->n_ranks; i++) {
        members[i] = (struct member){.load = split->loads[class->ranks[i]], .rank = class->ranks[i]};
        split->targets[class->ranks[i]] = 0;
    }
    qsort(members, (size_t) class->n_ranks, sizeof(members[0]), compare_members);
    int n_filled = 0;
    int64_t total = bytes;
    while (n_filled < class->n_ranks && (n_filled == 0 || members[n_filled].load < total / n_filled)) {
        total += members[n_filled++].load;
    }
    for (int i = 0; i < n_filled; i++) {
        int64_t level = total / n_filled + (i < total % n_filled);
        split->targets[members[i].rank] = level > members[i].load ? level - members[i].load : 0;
    }
}

static shoal_status add_piece(struct split *split, const struct share *share, int rank, int64_t begin,
                              int64_t end)
{
    TRY(mem_grow((void **)&split->pieces, &split->capacity, split->n_pieces + 1, sizeof(split->pieces[0])));
    struct split_piece *piece = &split->pieces[split->n_pieces++];
    *piece = (struct split_piece){.tensor = share->tensor, .rank = rank, .region = share->region->region};
    if (share->dim >= 0) {
        piece->region.begin[share->dim] += begin;
        piece->region.length[share->dim] = end - begin;
    }
    split->loads[rank] += (end - begin) * share->row_bytes;
    return SHOAL_OK;
}

/* The stretch that is being filled. */
struct stretch {
    int member;    /* whose stretch it is, in the class */
    int64_t end;   /* in the bytes of the class */
    int64_t begin; /* of the region that is being cut */
};

static shoal_status cut_region(struct split *split, const struct share *share, struct stretch *stretch)
{
    const struct table_region *class = share->region;
    int64_t begin = 0;
    while (begin < share->n_rows) {
        bool is_last = stretch->member == class->n_ranks - 1;
        int64_t end = is_last ? share->n_rows : round_rows(share, stretch->end - stretch->begin);
        if (end == share->n_rows || end - begin >= share->min_rows) {
            TRY(add_piece(split, share, class->ranks[stretch->member], begin, end));
            begin = end;
        }
        if (begin < share->n_rows) {
            stretch->member++;
            stretch->end += split->targets[class->ranks[stretch->member]];
        }
    }
    stretch->begin += share->n_rows * share->row_bytes;
    return SHOAL_OK;
}

static shoal_status split_class(struct split *split, const struct share *shares, size_t n_shares)
{
    int64_t bytes = 0;
    for (size_t i = 0; i < n_shares; i++) {
        bytes += shares[i].n_rows * shares[i].row_bytes;
    }
    set_targets(split, shares[0].region, bytes);
    struct stretch stretch = {.end = split->targets[shares[0].region->ranks[0]]};
    for (size_t i = 0; i < n_shares; i++) {
        TRY(cut_region(split, &shares[i], &stretch));
    }
    return SHOAL_OK;
}

/* All ------------------------------------------------------------------------------------------------------- */

static shoal_status prepare(struct split *split, const struct table *table)
{
    size_t n_shares = 0;
    size_t n_ranks = (size_t)table->n_ranks;
    for (size_t i = 0; i < table->n_tensors; i++) {
        n_shares += table->tensors[i].n_regions;
    }
    split->shares = mem_alloc_zeroed(n_shares + 1, sizeof(split->shares[0]));
    split->loads = split->shares ? mem_alloc_zeroed(n_ranks, sizeof(split->loads[0])) : NULL;
    split->members = split->loads ? mem_alloc_zeroed(n_ranks, sizeof(split->members[0])) : NULL;
    split->targets = split->members ? mem_alloc_zeroed(n_ranks, sizeof(split->targets[0])) : NULL;
    if (!split->targets) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < table->n_tensors; i++) {
        for (size_t k = 0; k < table->tensors[i].n_regions; k++) {
            describe(&split->shares[split->n_shares++], table, i, k);
        }
    }
    qsort(split->shares, split->n_shares, sizeof(split->shares[0]), compare_shares);
    /* Room for at least one, so that there is always an array to free. */
    return mem_grow((void **)&split->pieces, &split->capacity, split->n_shares + 1, sizeof(split->pieces[0]));
}

static shoal_status split_all(struct split *split, const struct table *table)
{
    TRY(prepare(split, table));
    for (size_t begin = 0; begin < split->n_shares;) {
        size_t end = begin + 1;
        while (end < split->n_shares && is_same_class(&split->shares[begin], &split->shares[end])) {
            end++;
        }
        TRY(split_class(split, &split->shares[begin], end - begin));
        begin = end;
    }
    return SHOAL_OK;
}

/* Compares all indices: those beyond the last dimension are 0 in tables. */
static int compare_pieces(const void *a, const void *b)
{
    const struct split_piece *first = a;
    const struct split_piece *second = b;
    if (first->tensor != second->tensor) {
        return first->tensor < second->tensor ? -1 : 1;
    }
    return region_compare(&first->region, &second->region, SHOAL_MAX_DIMS);
}

shoal_status split_make(const struct table *table, struct split_piece **pieces_out, size_t *n_pieces_out)
{
    struct split split = {0};
    shoal_status status = split_all(&split, table);
    mem_free(split.shares);
    mem_free(split.loads);
    mem_free(split.members);
    mem_free(split.targets);
    if (status != SHOAL_OK) {
        mem_free(split.pieces);
        return status;
    }
    qsort(split.pieces, split.n_pieces, sizeof(split.pieces[0]), compare_pieces);
    *pieces_out = split.pieces;
    *n_pieces_out = split.n_pieces;
    return SHOAL_OK;
}
