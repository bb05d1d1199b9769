/* SPDX-License-Identifier: MIT */
/*
 * shoal_group_close: the members meet, wait for the end of what they have started, have the server of the first member
 * forget the group's shared memory, meet again, and free their parts.
 *
 * The first meeting is a barrier with a purpose, so it mismatches anything else that a member calls on the group. It
 * also comes after everything that was started earlier on the group's lane. The second meeting comes after the names of
 * the group's segments were dropped, so that a group which is made again, however soon, gets new memory.
 *
 * Operations that were started have half of the group's timeout to end, counted from the first meeting. Those that need
 * a peer that does not come are then cancelled, which leaves the other half for the second meeting, where the others
 * wait.
 *
 * If the group has failed, there is nothing to agree on: each member frees its part alone.
 *
 * shoal_group_abandon is what a member does that cannot call close together with the others: it frees its part, and
 * tells them (comm/group/abandoned.c).
 */
#include <stdatomic.h>
#include <stdio.h>

#include "base/callback.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fail_point.h"
#include "base/try.h"
#include "base/wait.h"
#include "comm/call/collectives.h"
#include "comm/group/group.h"
#include "comm/group/groups.h"
#include "comm/lane/lane.h"
#include "comm/p2p/p2p.h"
#include "comm/group/world.h"

/* Between two checks whether other threads have finished. */
#define NAP_NS 200000

enum step {
    STEP_ARRIVE = 1,
    STEP_LEAVE = 2
};

static shoal_status meet(struct shoal_group *group, enum step step)
{
    const struct purpose purpose = {
        .id = PURPOSE_GROUP_CLOSE, .argument = (uint32_t)step, .words = group->name};
    return collectives_barrier(group, &purpose);
}

/*
 * Waits until what this rank has started on the group has ended, because peers may be in the middle of it, or until the
 * deadline. Sends that nobody has received by then are cancelled, before their own deadline fails the group.
 * Collectives are cancelled when their lane is freed.
 */
static shoal_status finish_started(struct shoal_group *group, int64_t deadline_ns)
{
    struct p2p *p2p = group_p2p(group);
    while ((!lane_drain(group->lane, deadline_ns) || p2p_is_sending(p2p)) && clock_now_ns() < deadline_ns &&
           group_failure(group) == SHOAL_OK) {
        wait_sleep(NAP_NS);
    }
    if (group_failure(group) == SHOAL_OK) {
        p2p_cancel_sends(p2p, "group was closed");
    }
    error_clear();
    return SHOAL_OK;
}

static shoal_status close_together(struct shoal_group *group)
{
    FAIL_POINT("group close");
    TRY(meet(group, STEP_ARRIVE));
    TRY(groups_each_of(group, finish_started, clock_deadline_after(part_timeout(&group->part) / 2)));
    FAIL_POINT("group close met");
    /* Otherwise the next group of this name would get the memory of this one. */
    TRY(groups_each_of(group, group_drop_names, group_deadline(group)));
    return meet(group, STEP_LEAVE);
}

/* The thread's error text is that of the failure, and is copied to `text`. Frees nothing of this rank. */
static void leave_failed(struct shoal_group *group, shoal_status failure, char text[ERROR_TEXT_BYTES])
{
    (void)snprintf(text, ERROR_TEXT_BYTES, "%s", shoal_error_text());
    /* Members that have not connected yet will not find the failure in shared memory any more: they are told. */
    group_poison(group, failure, text);
    /* A failure here does no harm: a member that makes the group again finds it failed. */
    (void)groups_each_of(group, group_drop_names, group_deadline(group));
    error_clear();
}

static void close_alone(struct shoal_group *group, shoal_status failure)
{
    char text[ERROR_TEXT_BYTES];
    leave_failed(group, failure, text);
    groups_keep_failure(group->world->groups, group, failure, text);
}

static shoal_status check_closable(const char *call, struct shoal_group *group)
{
    TRY(group_check_open(group));
    TRY(world_check_process(group->world));
    TRY(callback_check(call));
    if (group == group->world->group) {
        return error_set(SHOAL_ERR_INVALID, "%s: the world's own group is closed with the world", call);
    }
    /* Relaxed: see group_hold. */
    uint32_t n_users = atomic_load_explicit(&group->n_users, memory_order_relaxed);
    if (n_users > 0) {
        return error_set(SHOAL_ERR_STATE,
                         "%s: group %s is used by %u sharded or replicated model%s or background save%s: "
                         "free %s or wait for %s first",
                         call, group->name, n_users, n_users == 1 ? "" : "s", n_users == 1 ? "" : "s",
                         n_users == 1 ? "it" : "them", n_users == 1 ? "it" : "them");
    }
    return SHOAL_OK;
}

/* Closes the group together with the members, or alone if it has failed. What is left to do afterwards needs no
   member. */
static shoal_status leave_members(struct shoal_group *group)
{
    shoal_status failure = group_failure(group);
    if (failure == SHOAL_OK) {
        TRY(close_together(group));
    } else {
        close_alone(group, failure);
    }
    group->has_left = true;
    return SHOAL_OK;
}

static shoal_status close_group(struct shoal_group *group)
{
    static const struct group_ending closed = {.what = "group was closed", .reason = "it was closed"};
    /* If a close is repeated after members have freed their parts, it must not wait for them. */
    if (!group->has_left) {
        TRY(leave_members(group));
    }
    return groups_remove(group->world->groups, group, &closed, group_deadline(group));
}

/* Abandoning --------------------------------------------------------------------------------------------- */

static shoal_status check_idle(struct shoal_group *group, int64_t deadline_ns)
{
    (void)deadline_ns;
    return lane_is_in_call(group->lane)
               ? error_set(SHOAL_ERR_STATE,
                           "group_abandon: another thread of this rank is in a blocking call on group %s",
                           group->name)
               : SHOAL_OK;
}

/*
 * Everything that this rank has sent must have come before the others hear that it has gone: freeing its part sees to
 * that. A member that does not answer is not waited for longer than its transport has patience.
 */
static shoal_status abandon_group(struct shoal_group *group)
{
    struct groups *groups = group->world->groups;
    char told[ERROR_TEXT_BYTES];
    char text[ERROR_TEXT_BYTES];
    TRY(groups_each_of(group, check_idle, 0));
    FAIL_POINT("group abandon");
    group_describe_abandoned(group, told, sizeof told);
    struct group_ending abandoned = {.what = "group was abandoned",
                                     .reason = "this rank has abandoned it",
                                     .told = told,
                                     .is_abandoned = true};
    TRY(groups_begin_abandon(groups));
    shoal_status failure = group_failure(group);
    if (failure != SHOAL_OK) {
        leave_failed(group, failure, text);
        abandoned.told = NULL; /* they know the reason */
    }
    shoal_status status = groups_remove(groups, group, &abandoned, group_deadline(group));
    if (status != SHOAL_OK) {
        groups_cancel_abandon(groups);
        return status;
    }
    groups_sweep_abandoned(groups, group_drop_names);
    return group_tell_abandoned(group);
}

/* Public calls ------------------------------------------------------------------------------------------- */

static shoal_status end_group(const char *call, struct shoal_group *group,
                              shoal_status (*end)(struct shoal_group *group))
{
    TRY(check_closable(call, group));
    /* Acquire: pairs with the release below. A repeated close sees how far the last one came. */
    if (atomic_exchange_explicit(&group->is_closing, true, memory_order_acquire)) {
        return error_set(SHOAL_ERR_STATE, "%s: another thread is closing group %s", call, group->name);
    }
    group_ref(group);
    shoal_status status = end(group);
    if (status != SHOAL_OK) {
        /* The close may be tried again. After a successful one the flag stays set, for threads that found the group
           open. */
        atomic_store_explicit(&group->is_closing, false, memory_order_release);
    }
    group_unref(group);
    if (status == SHOAL_OK) {
        error_clear(); /* operations that were cancelled have set this thread's text */
    }
    return status;
}

shoal_status shoal_group_close(shoal_group *group)
{
    error_clear();
    return group ? end_group("group_close", group, close_group) : SHOAL_OK;
}

shoal_status shoal_group_abandon(shoal_group *group)
{
    error_clear();
    return group ? end_group("group_abandon", group, abandon_group) : SHOAL_OK;
}
