/* SPDX-License-Identifier: MIT */
/*
 * The algorithms of a transport, for those who ask about them: SHOAL_ALGO, `shoal info --explain`, the flight record. A
 * transport with several algorithms offers a table (struct transport.algorithms), and looks up there what the user
 * wishes. Which algorithm carries a call is decided by the transport.
 */
#ifndef TRANSPORT_ALGORITHM_H
#define TRANSPORT_ALGORITHM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "shoal/status.h"
#include "transport/collective.h"

struct algorithm_row {
    const char *name;
    int min_ranks;
    int max_ranks;          /* 0 means any number */
    const char *needs_text; /* what else it needs; "" for nothing */
    const char *doc;
};

/* A call, as somebody outside knows it. */
struct algorithm_question {
    enum collective_kind kind;
    int n_ranks;
    size_t bytes;      /* of the widest buffer on one rank */
    bool is_symmetric; /* the buffers lie in symmetric memory */
};

/* What SHOAL_ALGO, or a test, asks for. Zeroed memory is good; algorithm.c fills it at the first question. */
struct algorithm_wishes {
    _Atomic bool is_read;
    _Atomic int rows[COLLECTIVE_COUNT]; /* row + 1; 0 if nothing was picked */
};

struct algorithm_table {
    const struct algorithm_row *rows;
    int n_rows;
    struct algorithm_wishes *wishes;
    bool (*can)(int row, const struct algorithm_question *question);
    /* The row that would carry the call, and why; n_rows: none can. */
    int (*pick)(const struct algorithm_question *question, const char **why_out);
};

/*
 * Sets a row that is used, instead of SHOAL_ALGO's, for every call that it can carry; n_rows: none. Set it before ranks
 * use a group, and to the same row on all ranks.
 */
void algorithm_override_all(const struct algorithm_table *table, int row);

/* "all_reduce=staged,barrier=oneshot" or "staged". SHOAL_ERR_INVALID names what is unknown; nothing is changed. */
shoal_status algorithm_override_parse(const struct algorithm_table *table, const char *text);

/* Reads SHOAL_ALGO, once for a table. */
void algorithm_read_wishes(const struct algorithm_table *table);

/* The row that was asked for; n_rows: none. Every call asks. */
static inline int algorithm_asked(const struct algorithm_table *table, enum collective_kind kind)
{
    /* Acquire: pairs with the release in algorithm_read_wishes. */
    if (!atomic_load_explicit(&table->wishes->is_read, memory_order_acquire)) {
        algorithm_read_wishes(table);
    }
    /* Relaxed: set before ranks use a group. */
    int row = atomic_load_explicit(&table->wishes->rows[kind], memory_order_relaxed);
    return row > 0 ? row - 1 : table->n_rows;
}

#endif
