/* SPDX-License-Identifier: MIT */
/*
 * Which algorithm carries a collective: rows of algorithms.def (what there is and what it needs) and of
 * preferences.def (what is taken when). A pure function of the call, so that all ranks choose alike.
 */
#ifndef TRANSPORT_ALGORITHM_H
#define TRANSPORT_ALGORITHM_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/status.h"
#include "transport/collective.h"

enum algorithm_id {
#define ALGORITHM(name, text, min_ranks, max_ranks, needs, needs_text, doc) ALGORITHM_##name,
#include "transport/algorithms.def"
#undef ALGORITHM
    ALGORITHM_COUNT
};

/* What a rank may put into one slot. */
#define ALGORITHM_SLOT_BYTES ((size_t)16 * 1024)

struct algorithm_query {
    enum collective_kind kind;
    int n_ranks;
    size_t slot_bytes; /* what one rank would put into its slot; SIZE_MAX: ranks can not know each other's */
    bool is_symmetric; /* the buffers that peers must reach lie in symmetric memory */
};

struct algorithm_row {
    const char *name;
    int min_ranks;
    int max_ranks;          /* 0: any */
    const char *needs_text; /* what else it needs; "" for nothing */
    const char *doc;
};
extern const struct algorithm_row algorithm_rows[ALGORITHM_COUNT];

bool algorithm_can(enum algorithm_id algorithm, const struct algorithm_query *query);

/* `why_out` may be NULL. */
enum algorithm_id algorithm_pick(const struct algorithm_query *query, const char **why_out);

/*
 * SHOAL_ALGO, or what a test set: an algorithm that is taken where it can carry the call. ALGORITHM_COUNT: none.
 * Set before ranks use a group, and the same on all of them.
 */
void algorithm_override(enum collective_kind kind, enum algorithm_id algorithm);
void algorithm_override_all(enum algorithm_id algorithm);

/* What SHOAL_ALGO, or a test, asks for; ALGORITHM_COUNT: nothing. */
enum algorithm_id algorithm_asked(enum collective_kind kind);

/* "all_reduce=staged,barrier=oneshot" or "staged". SHOAL_ERR_INVALID names what is unknown; nothing is changed. */
shoal_status algorithm_override_parse(const char *text);

#endif
