/* SPDX-License-Identifier: MIT */
/* Adds starts, and counts which storages they have in flight. */
#include "base/mem.h"
#include "graph/lower/lower.h"

void lower_count_in_flight(struct shoal_lowering *lowering, const struct lowered_start *start, int change)
{
    for (size_t i = 0; i < start->n_inputs; i++) {
        for (size_t k = 0; k < start->inputs[i]->n_values; k++) {
            lowering->storages[lower_number(lowering, start->inputs[i]->values[k])].n_in_flight +=
                (uint32_t)change;
        }
    }
}

struct lowered_start *lower_add_start(struct shoal_lowering *lowering, uint32_t collective)
{
    const struct shoal_node *node = lowering->node;
    if (mem_grow((void **)&lowering->starts, &lowering->starts_capacity, lowering->n_starts + 1,
                 sizeof *lowering->starts) != SHOAL_OK) {
        return NULL;
    }
    struct lowered_start *start = &lowering->starts[lowering->n_starts++];
    *start =
        (struct lowered_start){.collective = collective, .inputs = node->inputs, .n_inputs = node->n_inputs};
    lower_count_in_flight(lowering, start, 1);
    lowering->nodes[node->id].start = (uint32_t)lowering->n_starts;
    return start;
}
