/* SPDX-License-Identifier: MIT */
/* What the files of this layer know of a group; comm/lane/handles.h has what others may call. */
#ifndef COMM_GROUP_GROUP_H
#define COMM_GROUP_GROUP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/closable.h"
#include "comm/lane/handles.h"
#include "comm/lane/part.h"
#include "transport/transport.h"

struct lane;
struct p2p; /* comm/call/p2p.c: the group's streams */
struct recorder;
struct segment;
struct shoal_world;

/*
 * Separates the name of a group from the word of a lane over its ranks. Tags of the program are printable, so they
 * cannot contain it, and no group of the program can be taken for a lane.
 */
#define GROUP_LANE_MARK "\x1f"

struct shoal_group {
    struct closable closable; /* first: holders of a group that outlive its world only use this */
    struct shoal_world *world;
    /*
     * Set for a lane: the group over which FSDP, DDP or a checkpoint has made it. A lane has the timeout of its parent
     * and fails when its parent has failed, but the parent does not fail with the lane.
     */
    struct shoal_group *parent;
    int *ranks; /* world ranks */
    char *tag;
    char *key;                    /* shoal_group_name: ranks and tag, the same on all members */
    char *name;                   /* for people: [0,1] tag "x" */
    struct transport_peers peers; /* rank and n_ranks of the group are here */
    int n_local;                  /* members on this rank's host, with this one */
    struct part part;             /* what its lane and its point to point know of it */
    struct lane *lane;
    struct recorder *recorder;
    struct p2p *_Atomic p2p;     /* made at first use */
    pthread_mutex_t p2p_connect; /* held by the thread that makes it */
    _Atomic bool *has_abandoned; /* by rank of the group: that member has abandoned it; group/abandoned.c */
    _Atomic bool was_told;       /* the log has the failure of the group */
    _Atomic bool has_lanes;      /* it is the parent of lanes */
    _Atomic bool has_spread;     /* the other members were told that it has failed */
    _Atomic bool must_spread;    /* not all could be told */
    _Atomic int64_t look_ns;     /* when shoal_group_error looks for members that have died again */
    _Atomic double own_timeout_s;
    const _Atomic double *timeout_s; /* its own, or that of the outermost parent */
    _Atomic uint32_t n_roots;        /* collectives_next_root */
    _Atomic uint32_t n_users;        /* group_hold */
    _Atomic bool is_closing;         /* the thread that has set it may close the group */
    bool has_left;                   /* the members will not meet again; used by the thread that closes */
    bool has_heard; /* aborted, or said to have failed by another member; under the groups' mutex */
    _Atomic uint64_t generation; /* find_generation; 0 if it is not known yet */
    struct shoal_group *next;    /* in the world's list, or in its family */
    /* Of a group that this rank has abandoned: */
    struct shoal_group *family; /* itself and the lanes over it */
    struct shoal_group *next_abandoned;
    int n_missing; /* members that have not abandoned it */
};

/* SHOAL_OK, or SHOAL_ERR_STATE: the group was closed. Cheap: one load. */
static inline shoal_status group_check_open(const struct shoal_group *group)
{
    return closable_check(&group->closable);
}

/*
 * Makes the list of all groups of a world. `dump` is called when something has failed, and writes the flight record if
 * the user wants it; it is NULL if nobody does. It may change the error text.
 */
struct groups *groups_create(void (*dump)(struct shoal_world *world));
/* Frees all groups, which are idle or poisoned; lanes are joined. What servers hear afterwards is forgotten. */
void groups_close(struct groups *groups);
/* Closes the groups and frees the list. No server may call groups_hear any more. */
void groups_free(struct groups *groups);

/*
 * Chooses the transport of the group by the hosts of its members (comm/group/transports.h). Call it before anything is
 * connected. For the group of all ranks, which is made before the ranks have met, call it again when their hosts are
 * known.
 */
shoal_status group_choose_transport(struct shoal_group *group);

/* Makes this rank's server forget the names of the group's segments and its generation, if it holds them. Mapped
   segments stay valid. */
shoal_status group_drop_names(struct shoal_group *group, int64_t deadline_ns);

/* The deadline of an operation that starts now. */
int64_t group_deadline(const struct shoal_group *group);
/* Maps a segment of the group, whole or sparse (sharedmem/segment.h). The transport's memory->drop drops its name. */
shoal_status group_open_segment(struct shoal_group *group, const char *name, size_t bytes, bool is_sparse,
                                int64_t deadline_ns, struct segment **segment_out);

/* The group's point to point; NULL if it was never used. */
static inline struct p2p *group_p2p(struct shoal_group *group)
{
    /* Acquire: pairs with the exchange by which comm/call/p2p.c shows a finished object. */
    return atomic_load_explicit(&group->p2p, memory_order_acquire);
}

/* group/abandoned.c ------------------------------------------------------------------------------------ */

/* SHOAL_OK, or SHOAL_ERR_PEER: the member has abandoned the group, or the group that this is a lane over. `group` is a
   struct shoal_group. */
shoal_status group_check_abandoned(void *group, int group_rank);
/* What members are told of this rank when it abandons the group. */
void group_describe_abandoned(const struct shoal_group *group, char *text, size_t bytes);

/* group/failure.c ------------------------------------------------------------------------------------- */

/* SHOAL_OK, or SHOAL_ERR_PEER with a text that names it: the member has died, not only left. */
shoal_status group_check_death(struct shoal_group *group, int group_rank);

/*
 * Call when one operation has failed, with the thread's error text, which is kept. Writes it to the log, only once if
 * the group has failed, and writes the flight record if the user wants it.
 */
void group_note_failure(struct shoal_group *group);
/*
 * Call when a call has failed, or has found the group failed, with the thread's error text, which is kept. Writes it to
 * the log, writes the flight record if the user wants it, and tells the members if any that is not connected must know.
 */
void group_report_failure(struct shoal_group *group);

#endif
