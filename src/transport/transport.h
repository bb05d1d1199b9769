/* SPDX-License-Identifier: MIT */
/*
 * What a transport is: docs/design/transport.md has the contract.
 *
 * A transport must have channels, one per group, which carry the group's collectives in order. Streams (point to
 * point), memory (symmetric memory, windows) and a table of algorithms are optional: where one is NULL, the layers
 * above use a general way, or refuse the call with a reason.
 *
 * The lane (comm/lane/lane.c) calls a channel like this, and no other way:
 *   post     under the lane's lock, in the order of sequences, while every earlier collective of the channel was
 *            posted too. Never blocks; false means "run it instead". A transport may post only what ends without its
 *            caller: peers that have posted the same must be able to finish although this rank never calls again.
 *   finish   by one thread at a time, in order, for collectives that were posted; `post` of later ones may
 *            happen meanwhile on other threads.
 *   run      by one thread at a time, in order, for collectives that were not posted; nothing else is called
 *            meanwhile, except poison, failure and is_ready.
 * If finish or run fails, the channel is poisoned: it does that itself, for every member that can see it.
 *
 * The calls of the ranks are compared before any result can be read (transport/fingerprint.h). A transport whose data
 * path cannot compare them first meets on a companion channel of another transport.
 */
#ifndef TRANSPORT_TRANSPORT_H
#define TRANSPORT_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"
#include "transport/collective.h"
#include "transport/streams.h"

struct algorithm_table;
struct mpi; /* transport/mpi_start.h */
struct segment;
struct regions;
struct transport;

/*
 * Number of the interface between the library and modules: all structs here and of transport/module.h. It changes with any of
 * them, and with the name of the library, which the comment behind it has (scripts/check_version.sh compares them): it is
 * part of the name of a module's file, and libraries of two versions can be installed side by side.
 */
#define TRANSPORT_INTERFACE 1 /* libshoal.so.0.1 */

/* So many transports a process may have: rows of transports.def, and modules that were loaded. */
#define TRANSPORTS_MOST 16

/* What a transport knows of a world. Belongs to the world and outlives what `open` made. Threads: any. */
struct transport_world {
    int rank;
    int n_ranks;
    /* By rank: equal numbers are one host, whose ranks can share memory. From 0, in the order of ranks. */
    const int *hosts;
    int n_hosts;
    /* An address (text, without a port) of this host at which ranks on other hosts can reach this rank; NULL if none
       is known, as where all ranks are on one host. */
    const char *address;
    /* By host: bytes of messages that this rank has sent there, counted by what carries them; NULL if nobody asks.
       Those to its own host are not counted. */
    _Atomic uint64_t *sent_to_hosts;
    /* What carries messages between hosts in this world, and what its `open` made; NULL if nothing does. For
       transports that are layered upon it. */
    const struct transport *crossing;
    void *crossing_state;
    /* Threads that wait may spin: there are processors enough for the ranks of this host. */
    bool may_spin;
    void *context;
    /* SHOAL_OK while the rank lives and has its world open; otherwise SHOAL_ERR_PEER with a text that names it. */
    shoal_status (*check_rank)(void *context, int rank);
    /* Whether the rank has died, not only left. It is NULL if that is not known. */
    bool (*is_dead)(void *context, int rank);
    /* While the world is closed: until when ranks that do not answer are waited for at most. It is 0 while the world is
       open. */
    _Atomic int64_t closing_ns;
    /* What start-up made of MPI; NULL if it did not use it. */
    struct mpi *mpi;
    /*
     * Control messages: keys and values that all ranks see, for instance addresses. Keys are the transport's own. `get`
     * waits until there is a value, until the deadline, or until rank 0 is gone.
     */
    shoal_status (*set)(void *context, const char *key, const void *value, size_t bytes);
    shoal_status (*get)(void *context, const char *key, void *value, size_t capacity, int64_t deadline_ns,
                        size_t *bytes_out);
};

/*
 * What a channel knows of its group. Belongs to the group and outlives the channel. The functions may be called
 * from any thread.
 */
struct transport_peers {
    int rank; /* in the group */
    int n_ranks;
    const int *world_ranks; /* n_ranks of them */
    /* Text that is the same on all members and differs between groups: part of the names of segments. */
    const char *key;
    /* The group's name for people: [0,1] tag "x". It is NULL if the key will do. */
    const char *name;
    /* How long an operation that starts now may take; NULL if it is not known. For texts: each call has its own
       deadline. */
    const _Atomic double *timeout_s;
    /* Threads that wait may spin: there are processors enough for the ranks of this host. */
    bool may_spin;
    /* What carries the group, and what its `open` made for the world; NULL if it has no `open`. */
    const struct transport *transport;
    void *state;
    const struct transport_world *world;
    /* The world rank of the first member on this host: its server holds the segments. */
    int holder;
    /* Symmetric memory of the world. */
    struct regions *regions;
    void *context;
    /* SHOAL_OK while the member can still do its part; otherwise SHOAL_ERR_PEER with a text that names it. */
    shoal_status (*check_member)(void *context, int group_rank);
    /*
     * SHOAL_OK, or SHOAL_ERR_PEER: the member has abandoned the group, and what it sent before has come. check_member
     * says so too. It is NULL if no member can abandon the group.
     */
    shoal_status (*check_abandoned)(void *context, int group_rank);
    /*
     * It is NULL if the group has no parent. Returns SHOAL_OK, or why the parent has failed, which is then also this
     * group's failure. It is cheap: a few loads while there is no failure.
     */
    shoal_status (*check_parent)(void *context);
    /*
     * Opens shared memory of the members on this host, under a name. Whoever asks first makes it, zeroed, whatever the
     * other members are doing; the server of the first of them holds it. All must ask for the same size. Returns one
     * reference (sharedmem/segment.h).
     */
    shoal_status (*open_segment)(void *context, const char *name, size_t bytes, int64_t deadline_ns,
                                 struct segment **segment_out);
    /* The name is free again; who has mapped the memory keeps it. */
    shoal_status (*drop_segment)(void *context, const char *name, int64_t deadline_ns);
    /*
     * Returns a number, the same on all members, that distinguishes the group from closed groups with the same key. It
     * is for transports whose messages could be taken for those of such a group. Segments do not need it: their names
     * are dropped when a group is closed. It waits at most for the server of the first member. If it is NULL, the
     * number is 0.
     */
    shoal_status (*generation)(void *context, int64_t deadline_ns, uint64_t *number_out);
};

/* A transport's channel begins with this. */
struct channel {
    const struct transport *transport;
    const struct transport_peers *peers;
};

/* Memory that members map together. */
struct transport_memory {
    /* Every member reaches every member's symmetric memory by loads and stores. */
    bool has_symmetric;
    /* run carries window_gather. */
    bool has_windows;
    /* Both may be memory of a device. */
    bool is_on_devices;
    /*
     * Opens memory under a name, zeroed, mapped by all members with which the caller can share memory. It waits at most
     * for the processes of members, not for their calls.
     */
    shoal_status (*open)(const struct transport_peers *peers, const char *name, size_t bytes,
                         int64_t deadline_ns, struct segment **segment_out);
    /* Nobody asks for the name any more; who has mapped the memory keeps it. */
    shoal_status (*drop)(const struct transport_peers *peers, const char *name, int64_t deadline_ns);
};

struct transport {
    size_t struct_size; /* these three come first in every version */
    uint32_t interface; /* TRANSPORT_INTERFACE */
    uint32_t layout;    /* TRANSPORT_LAYOUT */
    const char *name;
    const char *doc;

    /* It is false if a world of this transport has one process, and no call moves anything. */
    bool has_peers;
    /* It carries groups only whose members are all on one host. */
    bool is_one_host;
    /* It needs the world's `crossing`, and is taken instead of that for groups over several hosts. */
    bool is_layered;
    int max_ranks; /* of a group; 0 means any number */

    /*
     * Optional: makes what the transport keeps for a world. Called once on every rank, at the end of start-up, if
     * groups of the world may use the transport. It may exchange values by set and get, and waits until the deadline at
     * most.
     */
    shoal_status (*open)(const struct transport *transport, const struct transport_world *world,
                         int64_t deadline_ns, void **state_out);
    /* No channel and no streams are left. */
    void (*close)(void *state);
    /* Optional: moves what can be moved now, by a thread of the application. SHOAL_ERR_STATE: this thread may not. */
    shoal_status (*progress)(void *state);

    /* Blocks for the members' processes at most, not for their callers. */
    shoal_status (*connect)(const struct transport_peers *peers, int64_t deadline_ns,
                            struct channel **channel_out);
    /* No collective is unfinished, or the channel is poisoned and no thread is inside. */
    void (*disconnect)(struct channel *channel);
    bool (*post)(struct channel *channel, struct collective *collective);
    /* Whether finish would return without waiting. */
    bool (*is_ready)(struct channel *channel, const struct collective *collective);
    /*
     * Waits for the peers, at most until `until_ns`. If that passes before the collective's own deadline, returns
     * SHOAL_ERR_TIMEOUT with *is_pending_out true: nothing has changed, and finish can be called again.
     */
    shoal_status (*finish)(struct channel *channel, struct collective *collective, int64_t until_ns,
                           bool *is_pending_out);
    shoal_status (*run)(struct channel *channel, struct collective *collective);
    /* From now on every call of every member fails with this status and text; the first reason stays. Never blocks. */
    void (*poison)(struct channel *channel, shoal_status status, const char *text);
    /* SHOAL_OK, or the first reason, its own or the parent's, with its text set. Cheap: one load while all is well. */
    shoal_status (*failure)(struct channel *channel);

    /* Optional. */
    const struct transport_streams *streams; /* transport/streams.h; if NULL, point to point is refused */
    const struct transport_memory *memory;   /* if NULL, symmetric memory and windows are refused */
    /* In transport/algorithm.h; if NULL, SHOAL_ALGO has no choice here. */
    const struct algorithm_table *algorithms;
};

/*
 * A number that depends on the sizes of what both sides see. It reveals a module and a library that were not built
 * together even if nobody has changed the number of the interface.
 */
#define TRANSPORT_LAYOUT                                                              \
    ((uint32_t)(sizeof(struct transport_world) + 3 * sizeof(struct transport_peers) + \
                5 * sizeof(struct transport_memory) + 7 * sizeof(struct collective) + \
                11 * sizeof(struct purpose) + 13 * sizeof(struct channel) +           \
                17 * sizeof(struct window_area) + 19 * sizeof(struct transport_streams)))

#define TRANSPORT(name, variable) extern const struct transport variable;
#define CROSSING(name)
#include "transport/transports.def"
#undef CROSSING
#undef TRANSPORT

static inline shoal_status transport_check_abandoned(const struct transport_peers *peers, int group_rank)
{
    return peers->check_abandoned ? peers->check_abandoned(peers->context, group_rank) : SHOAL_OK;
}

/* SHOAL_OK, or why the group's parent has failed. Part of what `failure` says. */
static inline shoal_status transport_check_parent(const struct transport_peers *peers)
{
    return peers->check_parent ? peers->check_parent(peers->context) : SHOAL_OK;
}

static inline shoal_status transport_generation(const struct transport_peers *peers, int64_t deadline_ns,
                                                uint64_t *number_out)
{
    *number_out = 0;
    return peers->generation ? peers->generation(peers->context, deadline_ns, number_out) : SHOAL_OK;
}

/*
 * Checks what a function of the transport has returned, for paths that are not hot: SHOAL_ERR_INTERNAL for a number
 * that is not a status. A failure without an error text gets one.
 */
shoal_status transport_check_status(const struct transport *transport, const char *function,
                                    shoal_status status);

/* Memory and the system are a rank's own affair: the text of such a failure gets the rank in front, for the others to
   read. */
shoal_status transport_name_rank(const struct transport_peers *peers, shoal_status status);

/* The group's name, for texts. */
static inline const char *transport_group_name(const struct transport_peers *peers)
{
    return peers->name ? peers->name : peers->key;
}

/*
 * Writes the beginning of a timeout's error text: "all_reduce f32 sum count 8 #3 on group [0,1]: 30 s passed
 * (SHOAL_TIMEOUT, shoal_group_set_timeout)". Returns text.
 */
const char *transport_describe_timeout(const struct transport_peers *peers,
                                       const struct collective *collective, char *text, size_t text_bytes);

#endif
