/* SPDX-License-Identifier: MIT */
/* Finds out which ranks have the same values of an item: see copies.h. */
#include "checkpoint/ranks/copies.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/agree/agree.h"

/* An item that cannot be looked up has no owners here: whoever uses it reports the reason. */
static shoal_status list_owners(const shoal_items *items, uint64_t **owners_out)
{
    size_t n_items = shoal_items_count(items);
    uint64_t *owners = mem_alloc_zeroed(n_items + 1, sizeof *owners);
    if (!owners) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *owners_out = owners;
    for (size_t i = 0; i < n_items; i++) {
        if (items_owners(items, i, &owners[i]) != SHOAL_OK) {
            owners[i] = 0;
            error_clear();
        }
    }
    return SHOAL_OK;
}

/* What all ranks have sent: the owners of n_items items each. */
struct owners {
    const char *data;
    const uint64_t *offsets;
    int n_ranks;
    int rank; /* this one */
};

static bool is_same_length(const struct owners *owners, size_t bytes)
{
    bool is_same = true;
    for (int rank = 0; rank < owners->n_ranks; rank++) {
        is_same = is_same && owners->offsets[rank + 1] - owners->offsets[rank] == bytes;
    }
    return is_same;
}

static uint64_t owners_of(const struct owners *owners, int rank, size_t item)
{
    return ((const uint64_t *)(const void *)(owners->data + owners->offsets[rank]))[item];
}

/* Sets are counted in the order of their first ranks. A rank without owners has what all have. */
static struct item_copies count_copies(const struct owners *owners, size_t item)
{
    uint64_t mine = owners_of(owners, owners->rank, item);
    struct item_copies copies = {.n_copies = 0, .mine = 0};
    for (int rank = 0; rank < owners->n_ranks; rank++) {
        uint64_t number = owners_of(owners, rank, item);
        bool is_new = true;
        for (int before = 0; before < rank && is_new; before++) {
            is_new = owners_of(owners, before, item) != number;
        }
        if (number == 0) {
            return (struct item_copies){.n_copies = 1};
        }
        if (is_new && number == mine) {
            copies.mine = copies.n_copies;
        }
        copies.n_copies += is_new;
    }
    return copies;
}

static shoal_status spread(const shoal_items *items, const struct owners *owners, shoal_items **spread_out)
{
    size_t n_items = shoal_items_count(items);
    struct item_copies *copies = mem_alloc_zeroed(n_items + 1, sizeof *copies);
    shoal_status status = copies ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
    bool is_needed = false;
    for (size_t i = 0; copies && i < n_items; i++) {
        copies[i] = count_copies(owners, i);
        is_needed = is_needed || copies[i].n_copies > 1;
    }
    if (is_needed) {
        status = items_spread(items, copies, spread_out);
    }
    mem_free(copies);
    return status;
}

shoal_status copies_make(shoal_group *group, const shoal_items *items, shoal_items **spread_out)
{
    size_t bytes = shoal_items_count(items) * sizeof(uint64_t);
    uint64_t *mine = NULL;
    char *data = NULL;
    uint64_t *offsets = NULL;
    shoal_status status;
    *spread_out = NULL;
    TRY_GOTO(status, agree(group, "finding the owners of items", list_owners(items, &mine)), done);
    TRY_GOTO(status, agree_collect(group, mine, bytes, /*only_first=*/false, &data, &offsets), done);
    const struct owners owners = {.data = data,
                                  .offsets = offsets,
                                  .n_ranks = shoal_group_n_ranks(group),
                                  .rank = shoal_group_rank(group)};
    status = is_same_length(&owners, bytes) ? spread(items, &owners, spread_out) : SHOAL_OK;
    status = agree(group, "making a list of copies", status);
    if (status != SHOAL_OK) {
        shoal_items_free(*spread_out);
        *spread_out = NULL;
    }
done:
    mem_free(mine);
    mem_free(data);
    mem_free(offsets);
    return status;
}
