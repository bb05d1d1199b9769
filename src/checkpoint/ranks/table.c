/* SPDX-License-Identifier: MIT */
/*
 * The table of a save: see table.h. Ranks compare their lists first (list.h). Then each rank sends where its parts lie:
 * for each item one byte that tells which dimensions are cut, and 16 bytes for each of these. From that all ranks make
 * the same table.
 */
#include "checkpoint/ranks/table.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/try.h"
#include "comm/agree/agree.h"
#include "checkpoint/ranks/list.h"
#include "checkpoint/safetensors/header.h"
#include "checkpoint/io/tiling.h"
#include "tensor/layout.h"

#define RANGE_BYTES (2 * sizeof(int64_t))

/* Regions as bytes ------------------------------------------------------------------------------------------ */

/* Returns how many bytes it has put there: at most 1 + SHOAL_MAX_DIMS * RANGE_BYTES. */
static size_t put_region(char *to, const struct region *region, int n_dims, const int64_t *shape)
{
    unsigned cut = 0;
    size_t n_bytes = 1;
    for (int i = 0; i < n_dims; i++) {
        if (region->length[i] != shape[i]) {
            memcpy(to + n_bytes, &region->begin[i], sizeof(int64_t));
            memcpy(to + n_bytes + sizeof(int64_t), &region->length[i], sizeof(int64_t));
            n_bytes += RANGE_BYTES;
            cut |= 1u << i;
        }
    }
    to[0] = (char)cut;
    return n_bytes;
}

static void take_region(const char **at, int n_dims, const int64_t *shape, struct region *region_out)
{
    unsigned cut = (unsigned char)*(*at)++;
    region_make(region_out, n_dims, shape, -1, 0, 0);
    for (int i = 0; i < n_dims; i++) {
        if (cut >> i & 1) {
            memcpy(&region_out->begin[i], *at, sizeof(int64_t));
            memcpy(&region_out->length[i], *at + sizeof(int64_t), sizeof(int64_t));
            *at += RANGE_BYTES;
        }
    }
}

struct bytes {
    char *data;
    size_t n_bytes;
    size_t capacity;
};

/* Describes the parts of all items of this rank. The caller frees the bytes, also after a failure. */
static shoal_status describe_parts(const shoal_items *items, struct bytes *out)
{
    for (size_t i = 0; i < shoal_items_count(items); i++) {
        struct item_info info;
        struct region region;
        items_info(items, i, &info);
        TRY(items_region(items, i, &region));
        size_t most = 1 + (size_t)info.n_dims * RANGE_BYTES;
        TRY(mem_grow((void **)&out->data, &out->capacity, out->n_bytes + most, 1));
        out->n_bytes += put_region(out->data + out->n_bytes, &region, info.n_dims, info.shape);
    }
    return SHOAL_OK;
}

/* One tensor ------------------------------------------------------------------------------------------------ */

/* The part of a rank. */
struct part {
    struct region region;
    int rank;
};

struct maker {
    struct arena *arena; /* of the table */
    struct table *table;
    const char **cursors; /* in the bytes of each rank */
    struct part *parts;   /* of the tensor, not empty, by region and rank */
    int n_parts;
    int *numbers;              /* 0, 1, 2, ...: lists of neighbours are a part of it */
    struct table_region *last; /* of the tensor before, which often has the same lists */
    size_t n_last;
};

static int compare_parts(const void *a, const void *b)
{
    const struct part *first = a;
    const struct part *second = b;
    int order = region_compare(&first->region, &second->region, SHOAL_MAX_DIMS);
    return order ? order : (first->rank > second->rank) - (first->rank < second->rank);
}

static shoal_status take_parts(struct maker *maker, const struct table_tensor *tensor)
{
    maker->n_parts = 0;
    for (int rank = 0; rank < maker->table->n_ranks; rank++) {
        struct part *part = &maker->parts[maker->n_parts];
        part->rank = rank;
        take_region(&maker->cursors[rank], tensor->n_dims, tensor->shape, &part->region);
        for (int i = 0; i < tensor->n_dims; i++) {
            int64_t begin = part->region.begin[i];
            int64_t length = part->region.length[i];
            if (length < 0 || begin < 0 || length > tensor->shape[i] || begin > tensor->shape[i] - length) {
                return error_set(SHOAL_ERR_INVALID,
                                 "rank %d has %" PRId64 " indices from %" PRId64
                                 " on, which are not within the %" PRId64 " of dimension %d",
                                 rank, length, begin, tensor->shape[i], i);
            }
        }
        maker->n_parts += region_count(&part->region, tensor->n_dims) > 0;
    }
    /* Often they are in order already: all ranks have the same part, or parts follow in rank order. */
    bool is_sorted = true;
    for (int i = 1; i < maker->n_parts && is_sorted; i++) {
        is_sorted = compare_parts(&maker->parts[i - 1], &maker->parts[i]) < 0;
    }
    if (!is_sorted) {
        qsort(maker->parts, (size_t)maker->n_parts, sizeof(maker->parts[0]), compare_parts);
    }
    return SHOAL_OK;
}

/* The ranks of parts `begin` to `end`, for region number `index`. */
static shoal_status set_ranks(struct maker *maker, struct table_region *region, size_t index, int begin,
                              int end)
{
    int n_ranks = end - begin;
    const struct part *parts = &maker->parts[begin];
    region->n_ranks = n_ranks;
    if (parts[n_ranks - 1].rank - parts[0].rank == n_ranks - 1) {
        region->ranks = &maker->numbers[parts[0].rank];
        return SHOAL_OK;
    }
    const struct table_region *last = index < maker->n_last ? &maker->last[index] : NULL;
    int n_same = 0;
    while (last && last->n_ranks == n_ranks && n_same < n_ranks &&
           last->ranks[n_same] == parts[n_same].rank) {
        n_same++;
    }
    if (last && n_same == n_ranks) {
        region->ranks = last->ranks;
        return SHOAL_OK;
    }
    int *ranks = arena_take(maker->arena, (size_t)n_ranks, sizeof(ranks[0]));
    if (!ranks) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (int i = 0; i < n_ranks; i++) {
        ranks[i] = parts[i].rank;
    }
    region->ranks = ranks;
    return SHOAL_OK;
}

/* Equal parts become one region. */
static shoal_status join_parts(struct maker *maker, struct table_tensor *tensor)
{
    size_t n_regions = 0;
    for (int i = 0; i < maker->n_parts; i++) {
        n_regions +=
            i == 0 || !region_equals(&maker->parts[i - 1].region, &maker->parts[i].region, tensor->n_dims);
    }
    tensor->regions = arena_alloc(maker->arena, n_regions, sizeof(tensor->regions[0]));
    if (!tensor->regions) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (int begin = 0; begin < maker->n_parts;) {
        int end = begin + 1;
        while (end < maker->n_parts &&
               region_equals(&maker->parts[begin].region, &maker->parts[end].region, tensor->n_dims)) {
            end++;
        }
        struct table_region *region = &tensor->regions[tensor->n_regions];
        region->region = maker->parts[begin].region;
        TRY(set_ranks(maker, region, tensor->n_regions, begin, end));
        tensor->n_regions++;
        begin = end;
    }
    maker->last = tensor->regions;
    maker->n_last = tensor->n_regions;
    return SHOAL_OK;
}

/* Checks that each element is in exactly one region. */
static shoal_status check_regions(const struct table_tensor *tensor)
{
    int64_t count;
    char element[LAYOUT_TEXT_BYTES];
    struct tiling_fault fault;
    const size_t stride = sizeof(tensor->regions[0]);
    TRY(layout_count(tensor->n_dims, tensor->shape, &count));
    if (count == 0) {
        return SHOAL_OK;
    }
    TRY(tiling_check(tensor->n_dims, tensor->shape, &tensor->regions[0].region, stride, tensor->n_regions,
                     &fault));
    if (fault.n_regions == 1) {
        return SHOAL_OK;
    }
    (void)layout_format(element, tensor->n_dims, fault.element);
    if (fault.n_regions == 0) {
        char shape[LAYOUT_TEXT_BYTES];
        return error_set(SHOAL_ERR_INVALID, "no rank has element %s of %s", element,
                         layout_format(shape, tensor->n_dims, tensor->shape));
    }
    size_t first =
        tiling_find(tensor->n_dims, fault.element, &tensor->regions[0].region, stride, tensor->n_regions, 0);
    size_t second = tiling_find(tensor->n_dims, fault.element, &tensor->regions[0].region, stride,
                                tensor->n_regions, first + 1);
    return error_set(SHOAL_ERR_INVALID,
                     "ranks %d and %d have parts that are not the same and share element %s",
                     tensor->regions[first].ranks[0], tensor->regions[second].ranks[0], element);
}

static shoal_status make_regions(struct maker *maker, struct table_tensor *tensor)
{
    shoal_status status = take_parts(maker, tensor);
    if (status == SHOAL_OK) {
        status = join_parts(maker, tensor);
    }
    if (status == SHOAL_OK) {
        status = check_regions(tensor);
    }
    if (status != SHOAL_OK) {
        char name[SAFETENSORS_NAME_BYTES];
        return error_prefix(status, "item %s of section '%s'", safetensors_format_name(name, tensor->name),
                            tensor->section);
    }
    return SHOAL_OK;
}

/* All ------------------------------------------------------------------------------------------------------- */

static shoal_status copy_info(struct arena *arena, const struct item_info *info, struct table_tensor *tensor)
{
    const char **aliases = arena_alloc(arena, info->n_aliases, sizeof(aliases[0]));
    *tensor = (struct table_tensor){.section = arena_string(arena, info->section),
                                    .name = arena_string(arena, info->name),
                                    .dtype = info->dtype,
                                    .n_dims = info->n_dims,
                                    .aliases = aliases,
                                    .n_aliases = info->n_aliases};
    if (!aliases || !tensor->section || !tensor->name) {
        return SHOAL_ERR_NO_MEMORY;
    }
    memcpy(tensor->shape, info->shape, sizeof tensor->shape);
    for (size_t i = 0; i < info->n_aliases; i++) {
        aliases[i] = arena_string(arena, info->aliases[i]);
        if (!aliases[i]) {
            return SHOAL_ERR_NO_MEMORY;
        }
    }
    return SHOAL_OK;
}

static shoal_status fill_table(struct maker *maker, const shoal_items *items)
{
    size_t n_tensors = shoal_items_count(items);
    struct table *table = maker->table;
    table->tensors = arena_alloc(maker->arena, n_tensors, sizeof(table->tensors[0]));
    maker->numbers = arena_alloc(maker->arena, (size_t)table->n_ranks, sizeof(maker->numbers[0]));
    if (!table->tensors || !maker->numbers) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (int i = 0; i < table->n_ranks; i++) {
        maker->numbers[i] = i;
    }
    for (size_t i = 0; i < n_tensors; i++) {
        struct item_info info;
        items_info(items, i, &info);
        TRY(copy_info(maker->arena, &info, &table->tensors[i]));
        TRY(make_regions(maker, &table->tensors[i]));
        table->n_tensors++;
    }
    return SHOAL_OK;
}

/* Makes the table from what all ranks have sent. It is the same on all ranks, unless one has no memory. */
static shoal_status build(const shoal_items *items, int n_ranks, const char *data, const uint64_t *offsets,
                          struct table *table_out)
{
    struct table table = {.n_ranks = n_ranks, .memory = mem_alloc_zeroed(1, sizeof(struct arena))};
    struct maker maker = {.arena = table.memory, .table = &table};
    shoal_status status = SHOAL_ERR_NO_MEMORY;
    maker.cursors = table.memory ? mem_alloc_zeroed((size_t)n_ranks, sizeof(maker.cursors[0])) : NULL;
    maker.parts = maker.cursors ? mem_alloc_zeroed((size_t)n_ranks, sizeof(maker.parts[0])) : NULL;
    if (maker.parts) {
        for (int rank = 0; rank < n_ranks; rank++) {
            maker.cursors[rank] = data + offsets[rank];
        }
        status = fill_table(&maker, items);
    }
    mem_free(maker.cursors);
    mem_free(maker.parts);
    if (status != SHOAL_OK) {
        table_free(&table);
        return status;
    }
    *table_out = table;
    return SHOAL_OK;
}

shoal_status table_make(shoal_group *group, const shoal_items *items, struct table *table_out)
{
    struct bytes own = {0};
    struct table table = {0};
    char *data = NULL;
    uint64_t *offsets = NULL;
    shoal_status status;
    TRY(list_agree(group, items));
    TRY_GOTO(status, agree(group, "finding the parts of items", describe_parts(items, &own)), done);
    TRY_GOTO(status, agree_collect(group, own.data, own.n_bytes, /*only_first=*/false, &data, &offsets),
             done);
    status = build(items, shoal_group_n_ranks(group), data, offsets, &table);
    TRY_GOTO(status, agree(group, "making the table of parts", status), done);
    *table_out = table;
    table = (struct table){0};
done:
    table_free(&table);
    mem_free(own.data);
    mem_free(data);
    mem_free(offsets);
    return status;
}

void table_free(struct table *table)
{
    struct arena *arena = table->memory;
    if (arena) {
        arena_free(arena);
        mem_free(arena);
    }
    *table = (struct table){0};
}
