/* SPDX-License-Identifier: MIT */
/*
 * What the layers above can do with worlds, groups and works besides the public calls. They do not see the structs
 * behind these handles.
 */
#ifndef COMM_LANE_HANDLES_H
#define COMM_LANE_HANDLES_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/group.h"
#include "shoal/tensor.h"
#include "shoal/window.h"
#include "shoal/work.h"
#include "shoal/world.h"

struct completion; /* base/completion.h */
struct owned_list; /* comm/group/owned.h */

/* Worlds ----------------------------------------------------------------------------------------------- */

/* SHOAL_ERR_STATE in a process that was forked off the one that opened the world. */
shoal_status world_check(const shoal_world *world);

/* The list of objects whose threads use groups. Closing the world ends them first, while groups still work. */
struct owned_list *world_ending(shoal_world *world);
/* Reports a failure of such an object. Closing the world continues, and returns the first one unless it fails
   itself. */
void world_note_failure(shoal_world *world, shoal_status status, const char *text);

/* The list of objects that end with the world: after its groups, before their memory. */
struct owned_list *world_owned(shoal_world *world);

/* Groups ----------------------------------------------------------------------------------------------- */

/* In names of groups: the word for all ranks in order, and the word between a number of ranks and their hash. */
#define GROUP_KEY_WORLD "world"
#define GROUP_KEY_HASHED " ranks "

/* The group of the world that has this name, or NULL. Not a lane: programs cannot name these. */
shoal_group *group_find(shoal_world *world, const char *name);

/* The group for error texts: [0,1] tag "x". */
const char *group_text(const shoal_group *group);

/* How many members are on this rank's host, with this one. */
int group_n_local(const shoal_group *group);

/*
 * Takes a reference, for whoever keeps a group beyond a call and only needs to know whether it was closed:
 * closable_check (base/closable.h) says so, and every group begins with a struct closable. NULL is allowed, and is
 * returned.
 */
shoal_group *group_ref(shoal_group *group);
void group_unref(shoal_group *group);

/*
 * Makes a stand-in: a group of n_ranks ranks, of which the caller is rank 0, that belongs to no world. Meta functions
 * ask it for its size. Every call that would communicate on it returns SHOAL_ERR_STATE. `name` is given without the
 * "@". It is freed with the last reference.
 */
shoal_status group_create_stand_in(const char *name, int n_ranks, shoal_group **group_out);
/* NULL is allowed. */
void group_free_stand_in(shoal_group *group);

/* Holds the group: it cannot be closed until every holder has called group_let_go. */
void group_hold(shoal_group *group);
void group_let_go(shoal_group *group);

/*
 * Returns the lane over n_ranks consecutive ranks of the group, from place `first` on, that is identified by `word`;
 * makes it if there is none. The caller must be one of these ranks. The world owns the lane. On all members the same
 * word and ranks give the same lane.
 */
shoal_status group_create_lane(shoal_group *parent, int first, int n_ranks, const char *word,
                               shoal_group **lane_out);

/* SHOAL_OK, or the first reason for which the group or its parent has failed. Does not connect. */
shoal_status group_failure(shoal_group *group);
/* Every call on the group fails from now on, here and on the other members, which are told without waiting for them. */
void group_poison(shoal_group *group, shoal_status status, const char *text);

/* False in a world without peers, where memory is the caller's own and nothing is agreed on. */
bool group_has_peers(const shoal_group *group);
/* Whether windows of memory of the device can be made on the group. Without them use all_gather, and copy. */
bool group_has_windows(const shoal_group *group, shoal_device device);

/*
 * Collective. Makes symmetric memory of a device if the group's transport has it there, otherwise plain memory of each
 * member; the same calls free it and return its address. For callers that profit from symmetric memory and can do
 * without it.
 */
shoal_status symmetric_create_if_possible(shoal_group *group, size_t bytes, shoal_device device,
                                          shoal_symmetric **symmetric_out);
shoal_device symmetric_device(const shoal_symmetric *symmetric);

/*
 * Makes symmetric memory in steps, for a caller that needs the memory before it is known when the others will come:
 *   1. The members agree on a number that one of them got from symmetric_propose; no two ranks propose the same.
 *   2. Each opens the memory at any time, without waiting for others. It is zeroed and can be used, but collectives
 *      treat it as ordinary memory.
 *   3. All call symmetric_share; `mine` is the status of opening here. If opening failed on one member, sharing fails
 *      on all, and members that did open the memory still have it and must discard it.
 * Discarding memory that was not shared drops its name too. `group` is NULL if the group is gone.
 */
uint32_t symmetric_propose(const shoal_group *group);
shoal_status symmetric_open_if_possible(shoal_group *group, uint32_t number, size_t bytes,
                                        shoal_symmetric **symmetric_out);
/* Collective. `symmetric` is NULL if `mine` is a failure. */
shoal_status symmetric_share(shoal_group *group, uint32_t number, size_t bytes, shoal_symmetric *symmetric,
                             shoal_status mine);
void symmetric_discard(shoal_group *group, shoal_symmetric *symmetric);

/*
 * Whether [data, data + bytes) lies in a block of symmetric memory that every member of the group has. Always true in a
 * world without peers, in a group of one rank, and for 0 bytes.
 */
bool group_has_symmetric(const shoal_group *group, const void *data, size_t bytes);

/* Works ------------------------------------------------------------------------------------------------ */

/* Whether somebody is about to use these bytes in a way that a work forbids that is in flight there; is_written: the
   work writes them. Must not call the library: locks are held. */
typedef bool (*work_uses)(void *context, const void *data, size_t bytes, bool is_written);
/* Finds a work of the world that has not ended and of which `uses` returns true for a buffer. The caller frees its
   reference. NULL if there is none. Costs one load if nothing is in flight. */
shoal_work *world_find_work(shoal_world *world, work_uses uses, void *context);

/* The completion that finishes with the work. Fences of storages wait for it. */
struct completion *work_completion(shoal_work *work);
/* Nobody has to wait for the work: shoal_world_close does not warn about it. */
void work_forget(shoal_work *work);

#endif
