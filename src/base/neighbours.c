/* SPDX-License-Identifier: MIT */
/* Ranks that share a processor: see neighbours.h. */
#include "base/neighbours.h"

#include "base/cores.h"
#include "base/os/os.h"

static _Atomic uint32_t *find_word(const struct neighbours *neighbours, int rank)
{
    return (_Atomic uint32_t *)(void *)((char *)neighbours->first + (size_t)rank * neighbours->stride);
}

static uint32_t read_word(const struct neighbours *neighbours, int rank)
{
    return atomic_load_explicit(find_word(neighbours, rank), memory_order_relaxed);
}

bool neighbours_meet(const struct neighbours *neighbours)
{
    uint32_t here = (uint32_t)(os_processor() + 1);
    /* Not written if it is there already: others read the line. */
    if (read_word(neighbours, neighbours->rank) != here) {
        atomic_store_explicit(find_word(neighbours, neighbours->rank), here, memory_order_relaxed);
    }
    return here != 0 && read_word(neighbours, neighbours->peer) == here;
}

bool neighbours_move_apart(const struct neighbours *neighbours)
{
    struct cores_set allowed;
    size_t n_words = sizeof allowed.words / sizeof allowed.words[0];
    if (os_get_processors(/*thread=*/0, allowed.words, n_words) != 0) {
        return false;
    }
    struct cores_set others = allowed;
    for (int rank = 0; rank < neighbours->n_ranks; rank++) {
        uint32_t taken = read_word(neighbours, rank);
        if (taken > 0 && taken <= CORES_MAX_PROCESSORS) {
            others.words[(taken - 1) / 64] &= ~((uint64_t)1 << ((taken - 1) % 64));
        }
    }
    if (cores_set_count(&others) == 0 || os_set_processors(/*thread=*/0, others.words, n_words) != 0) {
        return false;
    }
    /* It was allowed a moment ago. Where it is refused now, the system has taken processors away. */
    (void)os_set_processors(/*thread=*/0, allowed.words, n_words);
    (void)neighbours_meet(neighbours);
    return true;
}
