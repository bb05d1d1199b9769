/* SPDX-License-Identifier: MIT */
/* The calls that can be replayed: from OP and VARIANT of a name to a call of the library. */
#ifndef REPLAY_CALLS_H
#define REPLAY_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/collective.h"

#define REPLAY_MAX_VARIANTS 3
#define REPLAY_MAX_LIST 64
#define REPLAY_PREMUL_FACTOR 0.5

/* What a rank's tensors of a case are: inputs and results, and the gradients of results and inputs. */
enum replay_kind {
    REPLAY_IN,
    REPLAY_OUT,
    REPLAY_GOUT,
    REPLAY_GIN
};
#define REPLAY_N_KINDS 4

enum replay_count {
    REPLAY_ONE,
    REPLAY_LIST,  /* any number, as many results as inputs */
    REPLAY_RANKS, /* one for every rank */
};

/* Rows that rank `from` sends to rank `to` in an exchange. */
enum replay_splits {
    REPLAY_EVEN,
    REPLAY_UNEVEN, /* (from + to) mod 3 + 1 */
    REPLAY_ZEROS   /* (from + 2 to) mod 3 */
};

/* What a name says of the input's shape. */
enum replay_layout {
    REPLAY_ANY,
    REPLAY_ZERO_D,
    REPLAY_EMPTY,
    REPLAY_TRANSPOSED, /* the input is a transposed view; the file has its logical shape */
    REPLAY_ROWS        /* two dimensions */
};

/* What the gradient of an input is made of. */
enum replay_gradient {
    REPLAY_NO_GRADIENT,
    REPLAY_MOVED,        /* elements of one rank's gradient */
    REPLAY_SUMMED,       /* the sum of all ranks' gradients */
    REPLAY_SUMMED_BLOCK, /* the rank's block of that sum, along the call's dimension */
    REPLAY_SUMMED_OWN,   /* the sum of gradient number `rank` of all ranks */
    REPLAY_SUMMED_ROOT,  /* the sum on the source, zeros elsewhere */
    REPLAY_CHAINED       /* of several calls */
};

struct replay_call {
    const struct replay_row *row;
    int n_ranks;
    bool has_gradient;             /* the name asks for it */
    shoal_reduce_op reduce;        /* of what reduces */
    int64_t dims[REPLAY_MAX_LIST]; /* that is gathered or scattered, of each tensor of a list */
    size_t n_dims;                 /* how many the name says; the others are 0 */
    int64_t shard_dim;
    int source;
    bool is_reversed; /* of a permutation: to N - 1 - rank rather than to rank + 1 */
    enum replay_splits splits;
    enum replay_layout layout;
};

/* What one rank has for a call. The functions of rows fill `outs`. What goes wrong is an error of the open scope, or is
   in `status`; `wrong` is what a result that could be had does not keep. */
struct replay_turn {
    const struct replay_call *call;
    int rank;
    shoal_group *group;
    shoal_tensor *const *ins;
    size_t n_ins;
    shoal_tensor **outs;
    size_t n_outs;
    shoal_tensor *const *shapes; /* tensors of the shapes of outs */
    shoal_status status;
    const char *wrong;
};

struct replay_row {
    const char *op;
    /* What the words of the variant mean, in order. They return false for a word they do not know. A word about the
       layout may follow. */
    bool (*words[REPLAY_MAX_VARIANTS])(const char *word, struct replay_call *call);
    size_t n_optional; /* of these words, at the end */
    enum replay_count ins;
    enum replay_count outs;
    enum replay_gradient gradient;
    bool is_reduce;    /* computes; the others only move data */
    bool is_scatter;   /* leaves a rank with its block of the result */
    bool is_handed_on; /* PyTorch may have recorded the output's gradient as that of the input */
    void (*run)(struct replay_turn *turn);
};

/* Returns NULL if there is no such op. */
const struct replay_row *replay_row_find(const char *op);

/* A word behind those of the row: how the input lies. */
bool replay_read_layout(const char *word, struct replay_call *call);

/* Rows that rank `from` sends to rank `to` where splits are not even. */
int64_t replay_split_rows(const struct replay_call *call, int from, int to);

#endif
