/* SPDX-License-Identifier: MIT */
/* Memory is the one thing that a rank may lack on its own here: ranks agree that all have it before they send. */
#include <string.h>

#include "base/mem.h"
#include "base/try.h"
#include "comm/agree/agree.h"

/* One rank to all ----------------------------------------------------------------------------------------- */

shoal_status agree_receive(shoal_group *group, const void *data, size_t bytes, void **data_out,
                           size_t *bytes_out)
{
    bool is_first = shoal_group_rank(group) == 0;
    uint64_t count = is_first ? bytes : 0;
    TRY(shoal_group_broadcast(group, &count, 1, SHOAL_U64, 0));
    char *received = mem_alloc(count > 0 ? (size_t)count : 1);
    shoal_status status =
        agree(group, "memory for what the first rank sends", received ? SHOAL_OK : SHOAL_ERR_NO_MEMORY);
    if (status == SHOAL_OK && received && count > 0) {
        if (is_first) {
            memcpy(received, data, bytes);
        }
        status = shoal_group_broadcast(group, received, (size_t)count, SHOAL_U8, 0);
    }
    if (status != SHOAL_OK) {
        mem_free(received);
        return status;
    }
    *data_out = received;
    *bytes_out = (size_t)count;
    return SHOAL_OK;
}

/* All ranks ----------------------------------------------------------------------------------------------- */

struct collection {
    uint64_t *offsets; /* n_ranks + 1; before they are summed: sizes from the second on */
    size_t *counts;
    char *data; /* NULL if this rank gets nothing */
};

static shoal_status exchange_sizes(shoal_group *group, size_t bytes, struct collection *collection)
{
    size_t n_ranks = (size_t)shoal_group_n_ranks(group);
    uint64_t size = bytes;
    collection->offsets = mem_alloc_zeroed(n_ranks + 1, sizeof(collection->offsets[0]));
    collection->counts = mem_alloc_zeroed(n_ranks, sizeof(collection->counts[0]));
    bool has_memory = collection->offsets && collection->counts;
    TRY(agree(group, "memory for sizes of all ranks", has_memory ? SHOAL_OK : SHOAL_ERR_NO_MEMORY));
    if (!has_memory) {
        return SHOAL_ERR_NO_MEMORY; /* the agreement has failed then */
    }
    uint64_t *offsets = collection->offsets;
    TRY(shoal_group_all_gather(group, &size, offsets + 1, 1, SHOAL_U64));
    for (size_t rank = 0; rank < n_ranks; rank++) {
        collection->counts[rank] = (size_t)offsets[rank + 1];
        offsets[rank + 1] += offsets[rank];
    }
    return SHOAL_OK;
}

static shoal_status collect(shoal_group *group, const void *data, size_t bytes, bool only_first,
                            struct collection *collection)
{
    TRY(exchange_sizes(group, bytes, collection));
    size_t total = (size_t)collection->offsets[shoal_group_n_ranks(group)];
    bool is_receiver = !only_first || shoal_group_rank(group) == 0;
    if (is_receiver) {
        collection->data = mem_alloc(total > 0 ? total : 1);
    }
    bool has_memory = !is_receiver || collection->data;
    TRY(agree(group, "memory for what all ranks send", has_memory ? SHOAL_OK : SHOAL_ERR_NO_MEMORY));
    if (total == 0) {
        return SHOAL_OK;
    }
    return only_first ? shoal_group_gather_v(group, data, collection->data, collection->counts, SHOAL_U8, 0)
                      : shoal_group_all_gather_v(group, data, collection->data, collection->counts, SHOAL_U8);
}

shoal_status agree_collect(shoal_group *group, const void *data, size_t bytes, bool only_first,
                           char **data_out, uint64_t **offsets_out)
{
    struct collection collection = {0};
    shoal_status status = collect(group, data, bytes, only_first, &collection);
    mem_free(collection.counts);
    if (status != SHOAL_OK) {
        mem_free(collection.data);
        mem_free(collection.offsets);
        return status;
    }
    *data_out = collection.data;
    *offsets_out = collection.offsets;
    if (!collection.data) {
        mem_free(collection.offsets);
        *offsets_out = NULL;
    }
    return SHOAL_OK;
}
