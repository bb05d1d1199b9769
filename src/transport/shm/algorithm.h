/* SPDX-License-Identifier: MIT */
/*
 * Which algorithm carries a collective: rows of algorithms.def (which exist, and what they need) and of preferences.def
 * (which is used when). The choice is a pure function of the call, so that all ranks choose alike.
 */
#ifndef SHM_ALGORITHM_H
#define SHM_ALGORITHM_H

#include <stdbool.h>
#include <stddef.h>

#include "transport/algorithm.h"

enum shm_algorithm {
#define ALGORITHM(name, text, min_ranks, max_ranks, needs, needs_text, doc) SHM_ALGORITHM_##name,
#include "transport/shm/algorithms.def"
#undef ALGORITHM
    SHM_ALGORITHM_COUNT
};

/* How much data fits into one slot. */
#define SHM_SLOT_BYTES ((size_t)16 * 1024)

/* The most ranks of `single`: the addresses of a rank's blocks, and the counts of an all_to_all_v, fit its slot. */
#define SHM_SINGLE_RANKS 1024

struct shm_algorithm_query {
    enum collective_kind kind;
    int n_ranks;
    size_t slot_bytes; /* what one rank would put into its slot; SIZE_MAX if this may differ between ranks */
    size_t bytes;      /* of the widest buffer; in an all_to_all_v this may differ between ranks */
    bool is_symmetric; /* the buffers that peers must reach lie in symmetric memory */
    bool is_readable; /* peers may read the buffers in this rank's memory; only asked where staged would do */
};

extern const struct algorithm_row shm_algorithm_rows[SHM_ALGORITHM_COUNT];
/* These rows for SHOAL_ALGO, `shoal info --explain` and benchmarks. */
extern const struct algorithm_table shm_algorithms;

/* Whether this process may read the memory of its peers, and they its own (SHOAL_SINGLE_COPY). */
bool shm_single_is_wanted(void);
/* Whether SHOAL_ALGO names `single` for any kind. Nothing else takes it. */
bool shm_single_is_asked_for(void);

bool shm_algorithm_can(enum shm_algorithm algorithm, const struct shm_algorithm_query *query);

/* `why_out` may be NULL. */
enum shm_algorithm shm_algorithm_pick(const struct shm_algorithm_query *query, const char **why_out);

#endif
