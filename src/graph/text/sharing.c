/* SPDX-License-Identifier: MIT */
/* Counts the constants of each storage. */
#include "graph/text/sharing.h"

#include "base/mem.h"
#include "base/try.h"
#include "graph/ir/graph.h"
#include "tensor/tensor.h"

static shoal_status add(struct sharing *sharing, const shoal_node *node)
{
    const struct storage *storage = node->values[0]->storage;
    size_t index;
    if (map_get(&sharing->storages, map_key(storage), &index)) {
        sharing->sharers[index].count++;
        return SHOAL_OK;
    }
    TRY(mem_grow((void **)&sharing->sharers, &sharing->capacity, sharing->n_sharers + 1,
                 sizeof(*sharing->sharers)));
    TRY(map_add(&sharing->storages, map_key(storage), sharing->n_sharers));
    sharing->sharers[sharing->n_sharers++] = (struct sharers){.first = node, .count = 1};
    return SHOAL_OK;
}

shoal_status sharing_find(struct sharing *sharing, const shoal_graph *graph)
{
    for (const shoal_node *node = graph->first; node; node = node->next) {
        if (node->kind == SHOAL_NODE_CONSTANT) {
            TRY(add(sharing, node));
        }
    }
    return SHOAL_OK;
}

struct sharers sharing_of(const struct sharing *sharing, const shoal_node *node)
{
    size_t index;
    return map_get(&sharing->storages, map_key(node->values[0]->storage), &index)
               ? sharing->sharers[index]
               : (struct sharers){.first = node, .count = 1};
}

void sharing_free(struct sharing *sharing)
{
    map_free(&sharing->storages);
    mem_free(sharing->sharers);
}
