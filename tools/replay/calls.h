/* SPDX-License-Identifier: MIT */
/* The calls that can be replayed: from OP and VARIANT of a name to a function of shoal/collective.h. */
#ifndef REPLAY_CALLS_H
#define REPLAY_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/collective.h"

struct replay_call {
    const struct replay_row *row;
    int n_ranks;
    shoal_reduce_op reduce; /* of what reduces */
    int64_t dim;            /* that is gathered or scattered */
    int source;
    bool is_uneven;
};

#define REPLAY_MAX_VARIANTS 2

struct replay_row {
    const char *op;
    /* What the words of the variant mean, in order. They return false for a word they do not know. */
    bool (*words[REPLAY_MAX_VARIANTS])(const char *word, struct replay_call *call);
    bool is_list;    /* takes any number of tensors rather than one */
    bool is_reduce;  /* computes; the others only move data */
    bool is_scatter; /* leaves a rank with its block of the result */
    void (*run)(const struct replay_call *call, int rank, shoal_group *group, shoal_tensor *const *ins,
                size_t n_tensors, shoal_tensor **outs);
};

/* Returns NULL if there is no such op. */
const struct replay_row *replay_row_find(const char *op);

/* Rows that rank `from` sends to rank `to` where a variant is uneven. */
int64_t replay_uneven_rows(int from, int to);

#endif
