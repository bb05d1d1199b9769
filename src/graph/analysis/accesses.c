/* SPDX-License-Identifier: MIT */
#include "graph/analysis/accesses.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"

/* Graphs in which memory demands no order ------------------------------------------------------------------- */

static bool is_single_wait(const struct shoal_node *node)
{
    return node->n_users == 1 && (node_flags(node->first_use->user) & SHOAL_OP_WAIT) != 0;
}

/* Whether a wait is the only user of the start, or of each getitem that takes an element of its list. */
static bool is_plain_start(const struct shoal_node *start)
{
    if (start->is_alias) {
        return false; /* an op of the program that gives an argument, and may write it */
    }
    if (is_single_wait(start)) {
        return true;
    }
    for (const struct edge *use = start->first_use; use; use = use->next) {
        if (!node_calls(use->user, OP_getitem) || !is_single_wait(use->user)) {
            return false;
        }
    }
    return true;
}

/* Whether the wait is for a start, or for an element of its list. */
static bool is_plain_wait(const struct shoal_node *wait)
{
    for (size_t i = 0; i < wait->n_inputs; i++) {
        const struct shoal_node *input = wait->inputs[i];
        input = node_calls(input, OP_getitem) && input->n_inputs > 0 ? input->inputs[0] : input;
        if ((node_flags(input) & SHOAL_OP_COLLECTIVE) == 0) {
            return false;
        }
    }
    return true;
}

bool accesses_is_plain(const struct shoal_node *node)
{
    uint32_t flags = node_flags(node);
    if ((flags & ACCESSES_FLAGS) == 0) {
        return true;
    }
    bool is_wait = (flags & SHOAL_OP_WAIT) != 0;
    if ((flags & SHOAL_OP_IN_PLACE) != 0 || ((flags & SHOAL_OP_SIDE_EFFECT) != 0 && !is_wait) ||
        op_waits_itself(node->op)) {
        return false;
    }
    return (!is_wait || is_plain_wait(node)) && ((flags & SHOAL_OP_COLLECTIVE) == 0 || is_plain_start(node));
}

/* Fills in positions. Returns whether all nodes are plain. */
static bool number_nodes(struct accesses *accesses, const struct shoal_graph *graph)
{
    uint32_t position = 0;
    bool is_all_plain = true;
    for (const struct shoal_node *node = graph->first; node; node = node->next) {
        accesses->positions[node->id] = ++position;
        is_all_plain = is_all_plain && ((node_flags(node) & ACCESSES_FLAGS) == 0 || accesses_is_plain(node));
    }
    return is_all_plain;
}

/* Others ---------------------------------------------------------------------------------------------------- */

/* Counts the entries of each storage in first[storage + 2], and adds them up, so that first[storage + 1] is where the
   next entry of the storage goes. When `fill` is done, that is where the next storage begins. */
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
        return error_set(SHOAL_ERR_UNSUPPORTED, "the graph has too many accesses to memory: %zu", n_entries);
    }
    for (size_t i = 1; i < n_storages; i++) {
        accesses->first[i + 1] += accesses->first[i];
    }
    accesses->entries = mem_alloc_zeroed(n_entries + 1, sizeof(accesses->entries[0]));
    return accesses->entries ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

static void fill(struct accesses *accesses, const struct shoal_graph *graph)
{
    for (struct shoal_node *node = graph->first; node; node = node->next) {
        const struct effects_access *found;
        size_t n_found;
        effects_accesses(accesses->effects, node, &found, &n_found);
        uint32_t position = accesses->positions[node->id];
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

static shoal_status list(struct accesses *accesses, const struct shoal_graph *graph)
{
    TRY(effects_build(graph, &accesses->effects));
    TRY(count(accesses, graph));
    fill(accesses, graph);
    return SHOAL_OK;
}

shoal_status accesses_find(const struct shoal_graph *graph, struct accesses *accesses_out)
{
    struct accesses accesses = {.n_ids = graph->n_ids};
    accesses.positions = mem_alloc_zeroed((size_t)graph->n_ids + 1, sizeof(accesses.positions[0]));
    if (!accesses.positions) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = number_nodes(&accesses, graph) ? SHOAL_OK : list(&accesses, graph);
    if (status != SHOAL_OK) {
        accesses_free(&accesses);
        return status;
    }
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
