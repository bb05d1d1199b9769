/* SPDX-License-Identifier: MIT */
/*
 * A collective between the call and its end, as lane and transport see it: the caller's arguments, already validated,
 * and what the channel notes between posting and finishing it. Pieces and counts belong to whoever made the collective,
 * and live until it has ended.
 */
#ifndef TRANSPORT_COLLECTIVE_H
#define TRANSPORT_COLLECTIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/dtype.h"
#include "shoal/status.h"
#include "shoal/tensor.h"
#include "shoal/window.h"
#include "transport/purpose.h"

enum collective_kind {
#define COLLECTIVE(name, text, has_root, reduces, has_send_blocks, has_recv_blocks, doc) COLLECTIVE_##name,
#include "transport/collectives.def"
#undef COLLECTIVE
    COLLECTIVE_COUNT
};

struct collective_row {
    const char *name;
    bool has_root;
    bool reduces;
    bool has_send_blocks;
    bool has_recv_blocks;
    const char *doc;
};
extern const struct collective_row collective_rows[COLLECTIVE_COUNT];

/*
 * `count` means what it means in the public call: for all_gather and gather, what one rank gives; for reduce_scatter,
 * all_to_all and scatter, one block; otherwise the whole. With counts per member (below) it is unused.
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
    uint32_t id; /* the same on all members */
    shoal_device device;
    char *writable; /* the window's bytes, mapped here; an address of the device */
    size_t bytes;
    /* A flag (sharedmem/flag.h) per member, WINDOW_RELEASED_STRIDE words apart: the generations that it has
       released. */
    _Atomic uint32_t *released;
    /* On a device this rank's flag is raised by the next gather: when this one, which is the rank's own, says that the
       program has released the generation, and when the event, which is behind its reads, is done. NULL: the gather has
       taken it. */
    _Atomic uint32_t given_up;
    _Atomic(void *) released_event;
};

/*
 * What a rank does after pieces of a window were written, before anybody reads them: `decode` is called for the rank
 * itself, and for each member on another host whose pieces it has written into the window of its host. It may write
 * anything that no other rank writes. If it fails, the call fails on all ranks, with its text.
 */
struct window_decoder {
    shoal_status (*decode)(void *context, int member, char *window);
    void *context;
};

struct collective {
    enum collective_kind kind;
    shoal_dtype dtype;
    shoal_reduce_op reduce;
    double factor;    /* premul_sum only, otherwise 0 */
    double timeout_s; /* from the call on; 0 means the group's timeout */
    int root;         /* in the group; 0 where there is none */
    size_t n_pieces;  /* 1, unless a list */
    const struct collective_piece *pieces;
    struct collective_piece single; /* what pieces points to when n_pieces is 1 and nothing was copied */
    /* Elements per member, n_ranks of them, in all_gather_v, reduce_scatter_v, gather_v, scatter_v (where both are the
       same) and all_to_all_v; NULL otherwise. Only with one piece. */
    const size_t *send_counts;
    const size_t *recv_counts;
    /* Where the blocks of a buffer that has one for every member lie, n_ranks of them; NULL if they lie one after the
       other in the piece's buffer. A matter of each member: not compared. Only with one piece. */
    const void *const *send_blocks;
    void *const *recv_blocks;
    /* window_gather only. */
    struct window_area *window;
    const shoal_window_piece *window_pieces;
    size_t n_window_pieces;
    struct window_decoder decoder; /* its function is NULL if there is nothing to do; not compared */
    uint32_t generation;           /* of the window that this begins: 1, 2, ... */
    uint64_t label;                /* the caller's, compared */
    /* What the call is for, compared too; NULL for a raw call. */
    const struct purpose *purpose;

    /* Where the buffers lie. Those of a device may be used by work behind the event (device/stream.h). The lane sets
       it. It is NULL for the CPU: whoever calls has waited. */
    shoal_device device;
    void *event;

    /* Set by the lane. */
    uint32_t sequence; /* the lane's, from 0; wraps */
    int64_t deadline_ns;

    /* The channel's. */
    int algorithm; /* the row of the transport's table that was picked, for the record; -1 if none was */
};

/* Bytes of the widest buffer of the call on one rank: what algorithm tables and benchmarks mean by size. */
size_t collective_bytes(const struct collective *collective, int n_ranks);

/* "all_reduce f32 sum count 1024 #812": for errors and records. Returns text. */
const char *collective_describe(const struct collective *collective, char *text, size_t text_bytes);

#endif
