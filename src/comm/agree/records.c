/* SPDX-License-Identifier: MIT */
/* Records of all ranks, in which each rank looks for differences by itself: see agree.h. */
#include "base/mem.h"
#include "base/try.h"
#include "comm/agree/agree.h"
#include "comm/agree/collectives.h"

/* Tells all ranks whether this one has memory, because one that stayed away would leave the others waiting. */
static shoal_status confirm_memory(const struct agreement *agreement, bool has_memory, size_t bytes)
{
    struct agree_first without;
    TRY(agree_find_first(agreement, has_memory ? AGREE_NO_KEY : 0, &without));
    return without.rank < 0
               ? SHOAL_OK
               : error_set(SHOAL_ERR_NO_MEMORY, "rank %d: no memory for %zu bytes to compare",
                           agreement->group ? shoal_group_world_rank(agreement->group, without.rank)
                                            : without.rank,
                           (size_t)agreement->n_ranks * bytes);
}

shoal_status agree_gather(const struct agreement *agreement, const void *mine, size_t bytes,
                          struct agree_room room, struct agree_records *records_out)
{
    size_t n_ranks = (size_t)agreement->n_ranks;
    *records_out = (struct agree_records){.all = room.data, .n_ranks = agreement->n_ranks, .bytes = bytes};
    if (!room.data || bytes > room.bytes / n_ranks) {
        records_out->allocated = mem_alloc_zeroed(n_ranks, bytes);
        records_out->all = records_out->allocated;
        bool has_memory = records_out->all && (mine || bytes == 0);
        TRY(confirm_memory(agreement, has_memory, bytes));
    }
    return agree_gather_into(agreement, mine, bytes, records_out->all);
}

void agree_free_records(struct agree_records *records)
{
    mem_free(records->allocated);
    *records = (struct agree_records){.all = NULL};
}

const void *agree_record(const struct agree_records *records, int rank)
{
    return (const char *)records->all + (size_t)rank * records->bytes;
}

struct agree_difference agree_find_difference(const struct agree_records *records, const void *mine,
                                              enum agree_search search, size_t begin, size_t end)
{
    const uint64_t *own = mine;
    size_t n_ranks = (size_t)records->n_ranks;
    size_t n = end - begin;
    for (size_t i = 0; i < n_ranks * n; i++) {
        size_t rank = search == AGREE_BY_RANK ? i / n : i % n_ranks;
        size_t number = begin + (search == AGREE_BY_RANK ? i % n : i / n_ranks);
        const uint64_t *theirs = agree_record(records, (int)rank);
        if (theirs[number] != own[number]) {
            return (struct agree_difference){.rank = (int)rank, .number = number};
        }
    }
    return (struct agree_difference){.rank = -1};
}
