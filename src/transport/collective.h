/* SPDX-License-Identifier: MIT */
/*
 * One collective on its way through lane and transport: what the caller asked for, already validated, and what
 * the channel notes between posting and finishing it. Pieces and counts belong to whoever made it and live until
 * it has ended.
 */
#ifndef TRANSPORT_COLLECTIVE_H
#define TRANSPORT_COLLECTIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/dtype.h"
#include "shoal/status.h"
#include "shoal/window.h"

enum collective_kind {
#define COLLECTIVE(name, text, has_root, reduces, doc) COLLECTIVE_##name,
#include "transport/collectives.def"
#undef COLLECTIVE
    COLLECTIVE_COUNT
};

struct collective_row {
    const char *name;
    bool has_root;
    bool reduces;
    const char *doc;
};
extern const struct collective_row collective_rows[COLLECTIVE_COUNT];

/*
 * `count` as in the public call: all_gather, gather: what a rank gives; reduce_scatter, all_to_all, scatter: a
 * block; otherwise the whole. With counts (below) it is unused.
 */
struct collective_piece {
    const void *send;
    void *recv;
    size_t count;
};

/* Words between the `released` flags of two members: a cache line pair each. */
#define WINDOW_RELEASED_STRIDE 32

/* The shared memory of a window, as the transport sees it. */
struct window_area {
    uint32_t id;    /* the same on all members */
    char *writable; /* the window's bytes, mapped here */
    size_t bytes;
    _Atomic uint32_t
        *released; /* a flag (transport/flag.h) per member, WINDOW_RELEASED_STRIDE apart: generations
                                    it has released */
};

struct collective {
    enum collective_kind kind;
    shoal_dtype dtype;
    shoal_reduce reduce;
    double factor;   /* premul_sum only, otherwise 0 */
    int root;        /* in the group; 0 where there is none */
    size_t n_pieces; /* 1, unless a list */
    const struct collective_piece *pieces;
    struct collective_piece single; /* what pieces points to when n_pieces is 1 and nothing was copied */
    /* Elements per member, n_ranks of them, in all_gather_v, reduce_scatter_v (send_counts == recv_counts) and
       all_to_all_v; NULL otherwise. Only with one piece. */
    const size_t *send_counts;
    const size_t *recv_counts;
    /* window_gather only. */
    struct window_area *window;
    const shoal_window_piece *window_pieces;
    size_t n_window_pieces;
    uint32_t generation; /* of the window that this begins: 1, 2, ... */
    /* What must be equal besides: the number of a unit, say. Of kinds without a root 0 (none) or below 2^31. */
    uint64_t label;

    /* Set by the lane. */
    uint32_t sequence; /* the lane's, from 0; wraps */
    int64_t deadline_ns;

    /* The channel's. */
    int algorithm; /* enum algorithm_id; what was picked, for the record */
};

/* Bytes of the widest buffer of the call on one rank: what algorithm tables and benchmarks mean by size. */
size_t collective_bytes(const struct collective *collective, int n_ranks);

/* "all_reduce f32 sum count 1024 #812": for errors and records. Returns text. */
const char *collective_describe(const struct collective *collective, char *text, size_t text_bytes);

#endif
