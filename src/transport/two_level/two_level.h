/* SPDX-License-Identifier: MIT */
/*
 * A group over several hosts: shared memory within a host, messages between hosts. docs/design/two_level.md.
 *
 *   layout    which members are on which host; who passes on what
 *   cells     shared memory of the members of this host: what they give to each other, and results
 *   chain     reductions, broadcasts and all-gathers: from host to host, in chunks
 *   memory    windows, one per host
 *   streams   point to point: of shm within the host, of messages across
 *   channel   what a lane calls
 */
#ifndef TWO_LEVEL_TWO_LEVEL_H
#define TWO_LEVEL_TWO_LEVEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/message/channel.h"
#include "transport/transport.h"

/* What `open` makes for a world. */
struct two_world {
    const struct transport *outer; /* carries messages between hosts */
    struct router *router;
    bool is_fast; /* SHOAL_REDUCE=fast: sums are folded host by host, whatever the order of ranks */
};

/* layout.c ------------------------------------------------------------------------------------------------ */

/*
 * The order of a fold: group ranks, divided into stops. The ranks of a stop are consecutive and on one host; the next
 * stop is on another host.
 */
struct two_fold {
    int n_stops;
    int *order;  /* n_ranks */
    int *begins; /* n_stops + 1: where in `order` a stop begins */
    int *stops;  /* n_ranks: the stop of a rank */
};

/* Hosts are numbered in the order of their first members, and local ranks in the order of group ranks. */
struct two_layout {
    int n_ranks;
    int n_hosts;
    int n_slices; /* as many as the largest host has members: what the members of a host divide between them */
    int *hosts;   /* n_ranks: the host of a rank */
    int *locals;  /* n_ranks: its number on that host */
    int *n_locals; /* n_hosts */
    int *begins;   /* n_hosts: where in `members` those of a host begin */
    int *members;  /* n_ranks: group ranks, host by host */
    int *spread;   /* n_ranks: the first member of every host, then the second of every host, ... */
    struct two_fold by_rank;
    struct two_fold by_host;
};

shoal_status two_layout_create(const struct transport_peers *peers, struct two_layout *layout_out);
void two_layout_free(struct two_layout *layout);

static inline int two_member(const struct two_layout *layout, int host, int local)
{
    return layout->members[layout->begins[host] + local];
}

/* The member of a host that passes on a slice. */
static inline int two_owner(const struct two_layout *layout, int host, int slice)
{
    return two_member(layout, host, slice % layout->n_locals[host]);
}

/* The host at which a fold makes a stop. */
static inline int two_stop_host(const struct two_layout *layout, const struct two_fold *fold, int stop)
{
    return layout->hosts[fold->order[fold->begins[stop]]];
}

/* ---------------------------------------------------------------------------------------------------------- */

struct two_cells;

struct two_channel {
    struct channel base; /* first */
    const struct two_world *world;
    struct two_layout layout;
    int host;  /* of this rank, in the layout */
    int local; /* its number there */
    /* A channel of messages between all members: calls, small collectives, failures. */
    struct transport_peers outer_peers;
    struct message_channel *outer;
    struct two_cells *cells; /* NULL until needed */
    struct port **ports;     /* two_n_hops * n_slices: see chain.c; NULL if it is not attached yet */
    struct port *windows;    /* pieces of windows; NULL if it is not attached yet */
    uint64_t generation;     /* of the group: part of the names of ports */
    const void **sources;    /* n_ranks: the sources of a fold */
    char *scratch; /* TWO_SCRATCH_BYTES: partials and elements that do not lie one after the other */
};

#define TWO_SCRATCH_BYTES (2 * FRAME_DATA_BYTES)

static inline int two_world_rank(const struct two_channel *channel, int rank)
{
    return channel->base.peers->world_ranks[rank];
}

/* cells.c: shared memory of this host ---------------------------------------------------------------------- */

/*
 * Rings of cells. For each member and slice there is a ring that the member fills and the slice's owner empties. For
 * each slice there is also a ring of results, which the owner fills and all other members read. Both sides count the
 * same cells, because both know which chunks go through a ring. The counters continue from one collective to the next.
 */
#define TWO_FILL_CELLS 2

/* Bytes of a cell: the longest chunk. */
size_t two_cell_bytes(const struct two_layout *layout);

shoal_status two_cells_open(struct two_channel *channel, int64_t deadline_ns);
void two_cells_close(struct two_cells *cells);

/* begin: the next cell of this rank's ring for a slice, to be written. end: shows it to the slice's owner. */
shoal_status two_fill_begin(struct two_channel *channel, const struct collective *collective, int slice,
                            char **cell_out);
void two_fill_end(struct two_channel *channel, int slice);
/* begin: the next cell that a member of this host (a group rank) has filled for a slice that this rank owns. end:
   gives the cell back. */
shoal_status two_empty_begin(struct two_channel *channel, const struct collective *collective, int member,
                             int slice, const char **cell_out);
void two_empty_end(struct two_channel *channel, int member, int slice);

/* For the owner of a slice. begin: the cell for its next result. end: shows it to the other members of this host. */
shoal_status two_result_begin(struct two_channel *channel, const struct collective *collective, int slice,
                              char **cell_out);
void two_result_end(struct two_channel *channel, int slice);
/* For the readers of results. begin: the next result of a slice. end: says that it was read. A member that does not
   need the result only calls end. */
shoal_status two_read_begin(struct two_channel *channel, const struct collective *collective, int slice,
                            const char **cell_out);
void two_read_end(struct two_channel *channel, int slice);

/* Waits until all members of this host have called this in this collective. */
shoal_status two_local_barrier(struct two_channel *channel, const struct collective *collective);

/* Waits until a flag of a member of this host has reached the target, with the collective's deadline. `missing` says
   in an error text what the member has not done. */
shoal_status two_wait_flag(struct two_channel *channel, const struct collective *collective, int member,
                           _Atomic uint32_t *flag, uint32_t target, const char *missing);

/* chain.c ---------------------------------------------------------------------------------------------------- */

/*
 * Whether chains carry the collective; the same on all members. Other collectives go from rank to rank: what a rank
 * gives to a peer is for that peer alone, or fewer bytes cross between hosts like that.
 */
bool two_is_chained(const struct two_channel *channel, const struct collective *collective);
/* Called after the calls were compared. */
shoal_status two_chain_run(struct two_channel *channel, const struct collective *collective);

/* How many hops have ports: those of partial results, by stop, and those of results, by host. */
int two_n_hops(const struct two_layout *layout);

/* Waits until a frame may be sent to a member, or until one of a member has arrived, on a port of the channel. */
shoal_status two_await_credit(struct two_channel *channel, const struct collective *collective,
                              struct port *port, int member);
shoal_status two_await_frame(struct two_channel *channel, const struct collective *collective,
                             struct port *port, int member, const struct frame **frame_out);

/* memory.c --------------------------------------------------------------------------------------------------- */

extern const struct transport_memory two_level_memory;
/* Called after the calls were compared. */
shoal_status two_window_run(struct two_channel *channel, const struct collective *collective);

/* streams.c -------------------------------------------------------------------------------------------------- */

extern const struct transport_streams two_level_streams;

#endif
