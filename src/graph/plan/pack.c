/* SPDX-License-Identifier: MIT */
/* Packs in three ways, which graph/plan/place.c describes, and takes the best result. */
#include "graph/plan/pack.h"

#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/try.h"

/* Holes by size ---------------------------------------------------------------------------------------- */

#define NO_BLOCK UINT32_MAX
#define SIZE_BITS ((int)(sizeof(size_t) * CHAR_BIT))
#define STEPS_BITS 3 /* each power of two has 1 << STEPS_BITS bins */
#define N_BINS (SIZE_BITS << STEPS_BITS)
#define MOST_LOOKED_AT 32 /* so many holes of a bin are looked at */

/* A part of the area, in use or a hole. Blocks are in a list by offset; holes are also in the list of their bin. */
struct block {
    size_t offset;
    size_t bytes;
    uint32_t before;
    uint32_t behind;
    uint32_t bin_before;
    uint32_t bin_behind;
    bool is_hole;
};

struct area {
    struct block *blocks; /* room for twice as many as there are items, and two: there are never more */
    uint32_t n_blocks;
    uint32_t unused; /* list of free structs, linked by `behind` */
    uint32_t last;
    size_t bytes;
    uint64_t has_holes[N_BINS / 64];
    uint32_t bins[N_BINS];
};

static int bin_of(size_t bytes)
{
    int log = SIZE_BITS - 1 - __builtin_clzll((unsigned long long)bytes);
    size_t step = log >= STEPS_BITS ? (bytes >> (log - STEPS_BITS)) & ((1u << STEPS_BITS) - 1) : 0;
    return (log << STEPS_BITS) + (int)step;
}

static void add_hole(struct area *area, uint32_t index)
{
    struct block *block = &area->blocks[index];
    int bin = bin_of(block->bytes);
    block->is_hole = true;
    block->bin_before = NO_BLOCK;
    block->bin_behind = area->bins[bin];
    if (area->bins[bin] != NO_BLOCK) {
        area->blocks[area->bins[bin]].bin_before = index;
    }
    area->bins[bin] = index;
    area->has_holes[bin / 64] |= UINT64_C(1) << (bin % 64);
}

static void remove_hole(struct area *area, uint32_t index)
{
    struct block *block = &area->blocks[index];
    int bin = bin_of(block->bytes);
    block->is_hole = false;
    if (block->bin_before != NO_BLOCK) {
        area->blocks[block->bin_before].bin_behind = block->bin_behind;
    } else {
        area->bins[bin] = block->bin_behind;
    }
    if (block->bin_behind != NO_BLOCK) {
        area->blocks[block->bin_behind].bin_before = block->bin_before;
    }
    if (area->bins[bin] == NO_BLOCK) {
        area->has_holes[bin / 64] &= ~(UINT64_C(1) << (bin % 64));
    }
}

/* Adds a block behind `before`. */
static uint32_t new_block(struct area *area, uint32_t before, size_t offset, size_t bytes)
{
    uint32_t index = area->unused;
    if (index != NO_BLOCK) {
        area->unused = area->blocks[index].behind;
    } else {
        index = area->n_blocks++;
    }
    uint32_t behind = before != NO_BLOCK ? area->blocks[before].behind : NO_BLOCK;
    area->blocks[index] =
        (struct block){.offset = offset, .bytes = bytes, .before = before, .behind = behind};
    if (before != NO_BLOCK) {
        area->blocks[before].behind = index;
    }
    if (behind != NO_BLOCK) {
        area->blocks[behind].before = index;
    } else {
        area->last = index;
    }
    return index;
}

/* Joins a block with the one behind it, which must not be in a bin. */
static void join(struct area *area, uint32_t index)
{
    struct block *block = &area->blocks[index];
    uint32_t behind = block->behind;
    block->bytes += area->blocks[behind].bytes;
    block->behind = area->blocks[behind].behind;
    if (block->behind != NO_BLOCK) {
        area->blocks[block->behind].before = index;
    } else {
        area->last = index;
    }
    area->blocks[behind].behind = area->unused;
    area->unused = behind;
}

static void give_back(struct area *area, uint32_t index)
{
    struct block *block = &area->blocks[index];
    uint32_t behind = block->behind;
    uint32_t before = block->before;
    if (behind != NO_BLOCK && area->blocks[behind].is_hole) {
        remove_hole(area, behind);
        join(area, index);
    }
    if (before != NO_BLOCK && area->blocks[before].is_hole) {
        remove_hole(area, before);
        join(area, before);
        index = before;
    }
    add_hole(area, index);
}

/* Returns the smallest hole that is large enough, among the first holes of a bin; NO_BLOCK: none. */
static uint32_t look_into(const struct area *area, int bin, size_t bytes)
{
    uint32_t best = NO_BLOCK;
    int n = 0;
    for (uint32_t i = area->bins[bin]; i != NO_BLOCK && n < MOST_LOOKED_AT; i = area->blocks[i].bin_behind) {
        const struct block *hole = &area->blocks[i];
        bool is_better =
            best == NO_BLOCK || hole->bytes < area->blocks[best].bytes ||
            (hole->bytes == area->blocks[best].bytes && hole->offset < area->blocks[best].offset);
        if (hole->bytes >= bytes && is_better) {
            best = i;
        }
        n++;
    }
    return best;
}

static uint32_t find_hole(const struct area *area, size_t bytes)
{
    int bin = bin_of(bytes);
    uint32_t found = look_into(area, bin, bytes);
    for (bin++; found == NO_BLOCK && bin < N_BINS; bin++) {
        uint64_t holes = area->has_holes[bin / 64] >> (bin % 64);
        if (holes == 0) {
            bin |= 63;
            continue;
        }
        bin += __builtin_ctzll(holes);
        found = look_into(area, bin, bytes);
    }
    return found;
}

static uint32_t take(struct area *area, size_t bytes)
{
    uint32_t index = find_hole(area, bytes);
    if (index == NO_BLOCK && area->last != NO_BLOCK && area->blocks[area->last].is_hole) {
        index = area->last; /* it is made larger below */
    }
    if (index == NO_BLOCK) {
        index = new_block(area, area->last, area->bytes, bytes);
        area->bytes += bytes;
        return index;
    }
    remove_hole(area, index);
    struct block *block = &area->blocks[index];
    if (block->bytes < bytes) {
        area->bytes += bytes - block->bytes;
        block->bytes = bytes;
    } else if (block->bytes > bytes) {
        size_t rest = block->bytes - bytes;
        block->bytes = bytes;
        add_hole(area, new_block(area, index, area->blocks[index].offset + bytes, rest));
    }
    return index;
}

/* In the order of time --------------------------------------------------------------------------------- */

/* An item with its lifetime, which is reversed to pack backwards. */
struct timed {
    uint32_t first;
    uint32_t last;
    uint32_t item;
    uint32_t block;
};

static int compare_first(const void *a, const void *b)
{
    const struct timed *x = a;
    const struct timed *y = b;
    if (x->first != y->first) {
        return x->first < y->first ? -1 : 1;
    }
    return x->item < y->item ? -1 : x->item > y->item;
}

struct ending {
    uint32_t last;
    uint32_t index; /* in the order of beginnings */
};

static int compare_last(const void *a, const void *b)
{
    const struct ending *x = a;
    const struct ending *y = b;
    if (x->last != y->last) {
        return x->last < y->last ? -1 : 1;
    }
    return x->index < y->index ? -1 : x->index > y->index;
}

struct timeline {
    struct area area;
    struct timed *items;
    struct ending *endings;
};

static void walk(struct timeline *timeline, const struct pack_item *items, size_t n_items, size_t *offsets)
{
    size_t n_ended = 0;
    for (size_t i = 0; i < n_items; i++) {
        struct timed *item = &timeline->items[i];
        while (n_ended < n_items && timeline->endings[n_ended].last < item->first) {
            give_back(&timeline->area, timeline->items[timeline->endings[n_ended].index].block);
            n_ended++;
        }
        item->block = take(&timeline->area, items[item->item].bytes);
        offsets[item->item] = timeline->area.blocks[item->block].offset;
    }
}

static shoal_status pack_in_time(const struct pack_item *items, size_t n_items, bool is_backwards,
                                 size_t *offsets, size_t *bytes_out)
{
    struct timeline *timeline = mem_alloc_zeroed(1, sizeof *timeline);
    struct timed *timed = mem_alloc_zeroed(n_items, sizeof *timed);
    struct ending *endings = mem_alloc_zeroed(n_items, sizeof *endings);
    struct block *blocks = mem_alloc_zeroed(2 * n_items + 2, sizeof *blocks);
    shoal_status status = timeline && timed && endings && blocks ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
    if (status == SHOAL_OK) {
        timeline->area.blocks = blocks;
        timeline->area.unused = NO_BLOCK;
        timeline->area.last = NO_BLOCK;
        memset(timeline->area.bins, 0xff, sizeof timeline->area.bins);
        for (uint32_t i = 0; i < n_items; i++) {
            timed[i] = (struct timed){.first = is_backwards ? UINT32_MAX - items[i].last : items[i].first,
                                      .last = is_backwards ? UINT32_MAX - items[i].first : items[i].last,
                                      .item = i};
        }
        qsort(timed, n_items, sizeof *timed, compare_first);
        for (uint32_t i = 0; i < n_items; i++) {
            endings[i] = (struct ending){.last = timed[i].last, .index = i};
        }
        qsort(endings, n_items, sizeof *endings, compare_last);
        timeline->items = timed;
        timeline->endings = endings;
        walk(timeline, items, n_items, offsets);
        *bytes_out = timeline->area.bytes;
    }
    mem_free(timeline);
    mem_free(timed);
    mem_free(endings);
    mem_free(blocks);
    return status;
}

/* The largest first ------------------------------------------------------------------------------------ */

#define FEW_ITEMS 1000

static int compare_sizes(const void *a, const void *b)
{
    const struct pack_item *x = *(const struct pack_item *const *)a;
    const struct pack_item *y = *(const struct pack_item *const *)b;
    if (x->bytes != y->bytes) {
        return x->bytes > y->bytes ? -1 : 1;
    }
    return x < y ? -1 : x > y; /* both are in one array: keeps their order */
}

static bool meets(const struct pack_item *a, const struct pack_item *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* Returns the offset of the smallest gap between placed items whose lifetimes overlap that of the item. `placed` is
   sorted by offset. */
static size_t find_gap(const struct pack_item *item, const struct pack_item *items, const uint32_t *placed,
                       size_t n_placed, const size_t *offsets)
{
    size_t end = 0;
    size_t best = SIZE_MAX;
    size_t best_bytes = SIZE_MAX;
    for (size_t i = 0; i < n_placed; i++) {
        const struct pack_item *other = &items[placed[i]];
        size_t offset = offsets[placed[i]];
        if (!meets(item, other)) {
            continue;
        }
        if (offset > end && offset - end >= item->bytes && offset - end < best_bytes) {
            best = end;
            best_bytes = offset - end;
        }
        end = offset + other->bytes > end ? offset + other->bytes : end;
    }
    return best != SIZE_MAX ? best : end;
}

static shoal_status pack_by_size(const struct pack_item *items, size_t n_items, size_t *offsets,
                                 size_t *bytes_out)
{
    const struct pack_item **order = mem_alloc_zeroed(n_items, sizeof(struct pack_item *));
    uint32_t *placed = mem_alloc_zeroed(n_items, sizeof *placed);
    if (!order || !placed) {
        mem_free((void *)order);
        mem_free(placed);
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n_items; i++) {
        order[i] = &items[i];
    }
    qsort((void *)order, n_items, sizeof(struct pack_item *), compare_sizes);
    *bytes_out = 0;
    for (size_t i = 0; i < n_items; i++) {
        uint32_t index = (uint32_t)(order[i] - items);
        size_t offset = find_gap(order[i], items, placed, i, offsets);
        size_t at = i;
        offsets[index] = offset;
        while (at > 0 && offsets[placed[at - 1]] > offset) {
            placed[at] = placed[at - 1];
            at--;
        }
        placed[at] = index;
        *bytes_out = offset + order[i]->bytes > *bytes_out ? offset + order[i]->bytes : *bytes_out;
    }
    mem_free((void *)order);
    mem_free(placed);
    return SHOAL_OK;
}

/* The best of them ------------------------------------------------------------------------------------- */

static void keep(struct pack_item *items, size_t n_items, const size_t *offsets, size_t bytes, size_t *best)
{
    if (bytes < *best) {
        *best = bytes;
        for (size_t i = 0; i < n_items; i++) {
            *items[i].offset = offsets[i];
        }
    }
}

static shoal_status pack_all_ways(struct pack_item *items, size_t n_items, size_t *offsets, size_t *bytes_out)
{
    size_t best = SIZE_MAX;
    size_t bytes = 0;
    TRY(pack_in_time(items, n_items, /*is_backwards=*/false, offsets, &bytes));
    keep(items, n_items, offsets, bytes, &best);
    TRY(pack_in_time(items, n_items, /*is_backwards=*/true, offsets, &bytes));
    keep(items, n_items, offsets, bytes, &best);
    if (n_items <= FEW_ITEMS) {
        TRY(pack_by_size(items, n_items, offsets, &bytes));
        keep(items, n_items, offsets, bytes, &best);
    }
    *bytes_out = best;
    return SHOAL_OK;
}

shoal_status pack(struct pack_item *items, size_t n_items, size_t *bytes_out)
{
    *bytes_out = 0;
    if (n_items == 0) {
        return SHOAL_OK;
    }
    size_t *offsets = mem_alloc_zeroed(n_items, sizeof *offsets);
    if (!offsets) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = pack_all_ways(items, n_items, offsets, bytes_out);
    mem_free(offsets);
    return status;
}
