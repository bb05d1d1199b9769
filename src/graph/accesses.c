/* SPDX-License-Identifier: MIT */
#include "graph/accesses.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"

/* first[storage + 2] counts, then first[storage + 1] is where the next entry goes, and in the end where the next storage begins. */
static shoal_status count(struct accesses *accesses, const struct shoal_graph *graph)
{
    size_t n_storages = effects_n_storages(accesses->effects);
    size_t n_entries = 0;
    accesses->first = mem_alloc_zeroed(n_storages + 2, sizeof(accesses->first[0]));
    if (!accesses->first) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (const struct shoal_node *node = graph->first; node; node = node->next) {
        const struct effects_access *found;
        size_t n_found;
        effects_accesses(accesses->effects, node, &found, &n_found);
        n_entries += n_found;
        for (size_t i = 0; i < n_found; i++) {
            accesses->first[found[i].storage + 2]++;
        }
    }
    if (n_entries >= ACCESSES_NONE) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "the graph has %zu accesses to memory", n_entries);
    }
    for (size_t i = 1; i < n_storages; i++) {
        accesses->first[i + 1] += accesses->first[i];
    }
    accesses->entries = mem_alloc_zeroed(n_entries + 1, sizeof(accesses->entries[0]));
    return accesses->entries ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

static void fill(struct accesses *accesses, const struct shoal_graph *graph)
{
    uint32_t position = 0;
    for (struct shoal_node *node = graph->first; node; node = node->next) {
        const struct effects_access *found;
        size_t n_found;
        effects_accesses(accesses->effects, node, &found, &n_found);
        accesses->positions[node->id] = ++position;
        for (size_t i = 0; i < n_found; i++) {
            accesses->entries[accesses->first[found[i].storage + 1]++] =
                (struct access){.node = node, .position = position, .is_write = accesses_is_write(&found[i])};
        }
    }
    for (size_t storage = 0; storage < effects_n_storages(accesses->effects); storage++) {
        uint32_t write = ACCESSES_NONE;
        for (uint32_t i = accesses->first[storage + 1]; i-- > accesses->first[storage];) {
            accesses->entries[i].next_write = write;
            write = accesses->entries[i].is_write ? i : write;
        }
    }
}

shoal_status accesses_find(const struct shoal_graph *graph, struct accesses *accesses_out)
{
    struct accesses accesses = {.n_ids = graph->n_ids};
    shoal_status status = effects_build(graph, &accesses.effects);
    if (status == SHOAL_OK) {
        accesses.positions = mem_alloc_zeroed((size_t)graph->n_ids + 1, sizeof(accesses.positions[0]));
        status = accesses.positions ? count(&accesses, graph) : SHOAL_ERR_NO_MEMORY;
    }
    if (status != SHOAL_OK) {
        accesses_free(&accesses);
        return status;
    }
    fill(&accesses, graph);
    *accesses_out = accesses;
    return SHOAL_OK;
}

void accesses_free(struct accesses *accesses)
{
    effects_free(accesses->effects);
    mem_free(accesses->positions);
    mem_free(accesses->entries);
    mem_free(accesses->first);
    *accesses = (struct accesses){.effects = NULL};
}

uint32_t accesses_behind(const struct accesses *accesses, uint32_t storage, uint32_t position)
{
    uint32_t low = accesses->first[storage];
    uint32_t high = accesses->first[storage + 1];
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (accesses->entries[middle].position > position) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}
