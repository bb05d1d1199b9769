/* SPDX-License-Identifier: MIT */
/* Which members of a group are on which host, and in which order a fold visits hosts. */
#include <string.h>

#include "base/mem.h"
#include "transport/two_level/two_level.h"

static int *take_numbers(int **at, size_t count)
{
    int *numbers = *at;
    *at += count;
    return numbers;
}

/* `numbers` has an entry for each host of the world, all zero. Each becomes the number of that host in the layout
   plus 1. */
static void place_members(struct two_layout *layout, const struct transport_peers *peers, int *numbers)
{
    for (int rank = 0; rank < layout->n_ranks; rank++) {
        int *number = &numbers[peers->world->hosts[peers->world_ranks[rank]]];
        if (*number == 0) {
            *number = ++layout->n_hosts;
        }
        int host = *number - 1;
        layout->hosts[rank] = host;
        layout->locals[rank] = layout->n_locals[host]++;
    }
    for (int host = 0, begin = 0; host < layout->n_hosts; host++) {
        layout->begins[host] = begin;
        begin += layout->n_locals[host];
        layout->n_slices =
            layout->n_locals[host] > layout->n_slices ? layout->n_locals[host] : layout->n_slices;
    }
    for (int rank = 0; rank < layout->n_ranks; rank++) {
        layout->members[layout->begins[layout->hosts[rank]] + layout->locals[rank]] = rank;
    }
    for (int local = 0, at = 0; local < layout->n_slices; local++) {
        for (int host = 0; host < layout->n_hosts; host++) {
            if (local < layout->n_locals[host]) {
                layout->spread[at++] = two_member(layout, host, local);
            }
        }
    }
}

/* Divides a fold into stops. Its order is set already. */
static void cut_into_stops(const struct two_layout *layout, struct two_fold *fold)
{
    for (int i = 0; i < layout->n_ranks; i++) {
        int rank = fold->order[i];
        if (i == 0 || layout->hosts[rank] != layout->hosts[fold->order[i - 1]]) {
            fold->begins[fold->n_stops++] = i;
        }
        fold->stops[rank] = fold->n_stops - 1;
    }
    fold->begins[fold->n_stops] = layout->n_ranks;
}

shoal_status two_layout_create(const struct transport_peers *peers, struct two_layout *layout_out)
{
    size_t n = (size_t)peers->n_ranks;
    /* All arrays of the layout and of both folds; the first one is the address of the memory. */
    int *numbers = mem_alloc_zeroed(6 * n + 2 * (3 * n + 1), sizeof *numbers);
    int *world_hosts = mem_alloc_zeroed((size_t)peers->world->n_hosts, sizeof *world_hosts);
    if (!numbers || !world_hosts) {
        mem_free(numbers);
        mem_free(world_hosts);
        return SHOAL_ERR_NO_MEMORY;
    }
    struct two_layout layout = {.n_ranks = peers->n_ranks, .hosts = take_numbers(&numbers, n)};
    layout.locals = take_numbers(&numbers, n);
    layout.n_locals = take_numbers(&numbers, n);
    layout.begins = take_numbers(&numbers, n);
    layout.members = take_numbers(&numbers, n);
    layout.spread = take_numbers(&numbers, n);
    place_members(&layout, peers, world_hosts);
    mem_free(world_hosts);
    struct two_fold *folds[] = {&layout.by_rank, &layout.by_host};
    for (size_t i = 0; i < 2; i++) {
        folds[i]->order = take_numbers(&numbers, n);
        folds[i]->stops = take_numbers(&numbers, n);
        folds[i]->begins = take_numbers(&numbers, n + 1);
    }
    for (int rank = 0; rank < layout.n_ranks; rank++) {
        layout.by_rank.order[rank] = rank;
    }
    memcpy(layout.by_host.order, layout.members, n * sizeof(int));
    cut_into_stops(&layout, &layout.by_rank);
    cut_into_stops(&layout, &layout.by_host);
    *layout_out = layout;
    return SHOAL_OK;
}

void two_layout_free(struct two_layout *layout)
{
    mem_free(layout->hosts);
    layout->hosts = NULL;
}
