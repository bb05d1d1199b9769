/* SPDX-License-Identifier: MIT */
/*
 * What the layers above do with worlds, groups and works beyond the public calls. They do not see the structs behind
 * these handles.
 */
#ifndef COMM_HANDLES_H
#define COMM_HANDLES_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/group.h"
#include "shoal/window.h"
#include "shoal/work.h"
#include "shoal/world.h"

struct completion; /* base/completion.h */
struct owned_list; /* comm/owned.h */

/* Worlds ----------------------------------------------------------------------------------------------- */

/* SHOAL_ERR_STATE in a process that was forked off the one that opened the world. */
shoal_status world_check(const shoal_world *world);

/* What has threads that use groups: closing the world ends it first, while groups still work. */
struct owned_list *world_ending(shoal_world *world);
/* For these: closing the world goes on, and returns the first such failure, unless it fails itself. */
void world_note_failure(shoal_world *world, shoal_status status, const char *text);

/* What ends with the world: after its groups, before their memory. */
struct owned_list *world_owned(shoal_world *world);

/* Groups ----------------------------------------------------------------------------------------------- */

/* In a group's name: what stands for all ranks in order, and what lies between the number of many ranks and their hash. */
#define GROUP_KEY_WORLD "world"
#define GROUP_KEY_HASHED " ranks "

/* The group of the world that has this name, or NULL. Not a lane: programs cannot name these. */
shoal_group *group_find(shoal_world *world, const char *name);

/* For people: [0,1] tag "x". */
const char *group_text(const shoal_group *group);

/*
 * Whoever keeps a group beyond a call, and only wants to be told when it was closed, has a reference: closable_check
 * (base/closable.h) tells, and every group begins with a struct closable. NULL is allowed, and returned.
 */
shoal_group *group_ref(shoal_group *group);
void group_unref(shoal_group *group);

/*
 * A group of that many ranks, the caller's being 0, that belongs to no world: for meta functions, which ask for its size. A call
 * that would communicate on it is SHOAL_ERR_STATE. `name` is without the "@". Freed with the last reference.
 */
shoal_status group_create_stand_in(const char *name, int n_ranks, shoal_group **group_out);
/* NULL is allowed. */
void group_free_stand_in(shoal_group *group);

/* Whoever cannot go on without the group holds it: it cannot be closed until as many have let it go. */
void group_hold(shoal_group *group);
void group_let_go(shoal_group *group);

/*
 * The lane over n_ranks ranks of the group from place `first` on, the caller among them, that is known by a word; made
 * if there is none. The world keeps it. Same word and ranks, same lane, on all members.
 */
shoal_status group_create_lane(shoal_group *parent, int first, int n_ranks, const char *word,
                               shoal_group **lane_out);

/* SHOAL_OK, or the first reason, its own or its parent's, without connecting. */
shoal_status group_failure(shoal_group *group);
/* Every call on the group fails from now on, here and on the other members, which are told without waiting for them. */
void group_poison(shoal_group *group, shoal_status status, const char *text);

/* False in a world without peers, where memory is the caller's own and nothing is agreed on. */
bool group_has_peers(const shoal_group *group);
/* Whether windows can be made on the group. Without them: all_gather, and copy. */
bool group_has_windows(const shoal_group *group);

/*
 * Collective. Symmetric memory where the group's transport has it, otherwise plain memory of each member, which the
 * same calls free and give the address of. For those who want peers to reach it quickly and can do without.
 */
shoal_status symmetric_create_if_possible(shoal_group *group, size_t bytes, shoal_symmetric **symmetric_out);

/*
 * The same in two steps, for who needs the memory before it is known when the others will come. Members agree on a number,
 * which one of them proposes; no two ranks propose the same. Each opens the memory when it likes and waits for nobody: it is
 * zeroed and can be used, but to collectives it is ordinary memory. Then all share it: `mine` is how opening ended here. One
 * failure is a failure on all members, and memory that was opened is still there, to be discarded. Whoever discards memory
 * that was not shared ends its name too; `group` is NULL once it is gone.
 */
uint32_t symmetric_propose(const shoal_group *group);
shoal_status symmetric_open_if_possible(shoal_group *group, uint32_t number, size_t bytes,
                                        shoal_symmetric **symmetric_out);
/* Collective. `symmetric` is NULL if `mine` is a failure. */
shoal_status symmetric_share(shoal_group *group, uint32_t number, size_t bytes, shoal_symmetric *symmetric,
                             shoal_status mine);
void symmetric_discard(shoal_group *group, shoal_symmetric *symmetric);

/*
 * Whether [data, data + bytes) lies in a block of symmetric memory that every member of the group has. Any memory will do
 * in a world without peers, in a group of one rank, and for no bytes.
 */
bool group_has_symmetric(const shoal_group *group, const void *data, size_t bytes);

/* Works ------------------------------------------------------------------------------------------------ */

/* What finishes with the work; whoever waits for a storage waits for this. */
struct completion *work_completion(shoal_work *work);
/* Nobody needs to await it any more: shoal_world_close does not warn of it. */
void work_forget(shoal_work *work);

#endif
