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
        p2p_cancel_sends(p2p, "group");
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

/* The thread's error text is that of the failure. */
static void close_alone(struct shoal_group *group, shoal_status failure)
{
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    /* Members that have not connected yet will not find the failure in shared memory any more: they are told. */
    group_poison(group, failure, text);
    groups_keep_failure(group->world->groups, group, failure, text);
    /* A failure here does no harm: a member that makes the group again finds it failed. */
    (void)groups_each_of(group, group_drop_names, group_deadline(group));
    error_clear();
}

static shoal_status check_closable(struct shoal_group *group)
{
    TRY(group_check_open(group));
    TRY(world_check_process(group->world));
    TRY(callback_check("group_close"));
    if (group == group->world->group) {
        return error_set(SHOAL_ERR_INVALID, "group_close: the world's own group is closed with the world");
    }
    /* Relaxed: see group_hold. */
    uint32_t n_users = atomic_load_explicit(&group->n_users, memory_order_relaxed);
    if (n_users > 0) {
        return error_set(
            SHOAL_ERR_STATE,
            "group_close: group %s is used by %u sharded or replicated model%s or background save%s: "
            "free %s or wait for %s first",
            group->name, n_users, n_users == 1 ? "" : "s", n_users == 1 ? "" : "s",
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
    /* If a close is repeated after members have freed their parts, it must not wait for them. */
    if (!group->has_left) {
        TRY(leave_members(group));
    }
    return groups_remove(group->world->groups, group, group_deadline(group));
}

shoal_status shoal_group_close(shoal_group *group)
{
    error_clear();
    if (!group) {
        return SHOAL_OK;
    }
    TRY(check_closable(group));
    /* Acquire: pairs with the release below. A repeated close sees how far the last one came. */
    if (atomic_exchange_explicit(&group->is_closing, true, memory_order_acquire)) {
        return error_set(SHOAL_ERR_STATE, "group_close: another thread is closing group %s", group->name);
    }
    group_ref(group);
    shoal_status status = close_group(group);
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
