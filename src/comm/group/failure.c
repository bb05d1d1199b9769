/* SPDX-License-Identifier: MIT */
/*
 * How groups fail. The group's lane and its point to point keep a failure, in shared memory if they are connected.
 * Members that are not connected, and those that only use lanes over the group, cannot see it there. They are told by a
 * message to their servers, which needs neither a connection nor an answer. So the rank that fails never waits for
 * anybody, and a member that is stopped reads the message when it continues.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/try.h"
#include "base/wait.h"
#include "bootstrap/server/client.h"
#include "bootstrap/alive/liveness.h"
#include "comm/group/group.h"
#include "comm/group/groups.h"
#include "comm/lane/lane.h"
#include "comm/p2p/p2p.h"
#include "comm/group/world.h"

shoal_status group_failure(struct shoal_group *group)
{
    /* lane_failure includes failures of the parent. */
    TRY(lane_failure(group->lane));
    return p2p_failure(group_p2p(group));
}

/* Telling ---------------------------------------------------------------------------------------------- */

static void fail_here(struct shoal_group *group, shoal_status status, const char *text)
{
    lane_poison(group->lane, status, text);
    p2p_poison(group_p2p(group), status, text);
}

/* Returns the first reason that is known here, once, so that the members are told. SHOAL_OK: there is nothing to
   tell. */
static shoal_status take_to_tell(struct shoal_group *group, char text[ERROR_TEXT_BYTES])
{
    shoal_status status = group->world->client ? group_failure(group) : SHOAL_OK;
    (void)snprintf(text, ERROR_TEXT_BYTES, "%s", shoal_error_text());
    /* Relaxed: only decides who tells. */
    bool must_tell =
        status != SHOAL_OK && !atomic_exchange_explicit(&group->has_spread, true, memory_order_relaxed);
    return must_tell ? status : SHOAL_OK;
}

/* Only uses what stays when the group is closed. If a member could not be told, because this process has no descriptors
   left for instance, the next call that finds the group failed tells all again. */
static void tell_members(struct shoal_group *group, shoal_status status, const char *text)
{
    bool is_told = true;
    for (int i = 0; status != SHOAL_OK && i < group->peers.n_ranks; i++) {
        if (i != group->peers.rank) {
            is_told &= client_tell_failure(group->world->client, group->ranks[i], group->key, status, text);
        }
    }
    if (!is_told) {
        /* Relaxed, both: only decide who tells. */
        atomic_store_explicit(&group->must_spread, true, memory_order_relaxed);
        atomic_store_explicit(&group->has_spread, false, memory_order_relaxed);
    }
}

/* Tells the members of a failure, once. Keeps the thread's error text. */
static void spread(struct shoal_group *group)
{
    char before[ERROR_TEXT_BYTES];
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(before, sizeof before, "%s", shoal_error_text());
    shoal_status status = take_to_tell(group, text);
    tell_members(group, status, text);
    (void)error_set(SHOAL_OK, "%s", before);
}

void group_poison(struct shoal_group *group, shoal_status status, const char *text)
{
    char copy[ERROR_TEXT_BYTES]; /* the text may be the thread's own */
    if (fork_is_child(group->world->n_forks)) {
        return; /* a forked child is no rank: what it gives up does not concern the others */
    }
    (void)snprintf(copy, sizeof copy, "%s", text);
    fail_here(group, status, copy);
    spread(group);
}

/* With the thread's error text in `text`. */
static void tell_log(struct shoal_group *group, const char *text)
{
    shoal_status status = group_failure(group);
    if (status == SHOAL_OK) {
        LOG(SHOAL_LOG_ERROR, "rank %d group %s: %s", group->world->rank, group->name, text);
        return;
    }
    /* Relaxed: only decides who tells. */
    if (!atomic_exchange_explicit(&group->was_told, true, memory_order_relaxed)) {
        LOG(SHOAL_LOG_ERROR, "rank %d group %s has failed: %s: %s", group->world->rank, group->name,
            shoal_status_name(status), shoal_error_text());
    }
}

void group_note_failure(struct shoal_group *group)
{
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    tell_log(group, text);
    struct shoal_world *world = group->world;
    if (world->groups->dump) {
        world->groups->dump(world);
    }
    (void)error_set(SHOAL_OK, "%s", text);
}

void group_report_failure(struct shoal_group *group)
{
    group_note_failure(group);
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    shoal_status status = group->parent ? group_failure(group->parent) : SHOAL_OK;
    if (status != SHOAL_OK) {
        /* Members that wait for this rank on the lane may not be able to see that the parent has failed. */
        group_poison(group, status, shoal_error_text());
    } else if (atomic_load_explicit(&group->has_lanes, memory_order_relaxed) ||
               atomic_load_explicit(&group->must_spread, memory_order_relaxed)) {
        /* Relaxed: see group_create_lane. Members that wait on a lane over this group may not be connected to it. */
        spread(group);
    }
    (void)error_set(SHOAL_OK, "%s", text);
}

/* Hearing ---------------------------------------------------------------------------------------------- */

struct news {
    struct news *next;
    shoal_status status;
    char *key;
    char text[]; /* then the key */
};

/* Under the mutex. Finds the group or lane with this key; NULL if none has it. */
static struct shoal_group *find_any(struct groups *groups, const char *key)
{
    struct shoal_group *group = groups->first;
    while (group && strcmp(group->key, key) != 0) {
        group = group->next;
    }
    return group;
}

static struct news *find_news(struct groups *groups, const char *key)
{
    struct news *news = groups->news;
    while (news && strcmp(news->key, key) != 0) {
        news = news->next;
    }
    return news;
}

/* Bounds the memory of a program that makes, fails and closes groups for ever. If a rank makes a forgotten group
   again and other members still know of the failure, its first call times out. */
static void drop_oldest_news(struct groups *groups)
{
    struct news **link = &groups->news;
    while ((*link)->next) {
        link = &(*link)->next;
    }
    mem_free(*link);
    *link = NULL;
    groups->n_news--;
}

static void keep_news(struct groups *groups, const char *key, shoal_status status, const char *text)
{
    if (find_news(groups, key)) {
        return;
    }
    size_t text_bytes = strlen(text) + 1;
    size_t key_bytes = strlen(key) + 1;
    struct news *news = mem_alloc(sizeof *news + text_bytes + key_bytes);
    if (!news) {
        LOG(SHOAL_LOG_ERROR, "no memory to keep that a group has failed: %s", text);
        return;
    }
    news->status = status;
    news->key = news->text + text_bytes;
    memcpy(news->text, text, text_bytes);
    memcpy(news->key, key, key_bytes);
    news->next = groups->news;
    groups->news = news;
    if (++groups->n_news > GROUPS_NEWS_KEPT) {
        drop_oldest_news(groups);
    }
}

void groups_keep_heard(struct groups *groups, struct shoal_group *group)
{
    shoal_status status = group->has_heard ? group_failure(group) : SHOAL_OK;
    if (status != SHOAL_OK) {
        keep_news(groups, group->key, status, shoal_error_text());
    }
}

void groups_keep_failure(struct groups *groups, const struct shoal_group *group, shoal_status status,
                         const char *text)
{
    (void)pthread_mutex_lock(&groups->mutex);
    keep_news(groups, group->key, status, text);
    (void)pthread_mutex_unlock(&groups->mutex);
}

/* Called on the server's thread. Poisoning does not block, so it may be done under the mutex. */
void groups_hear(void *context, const char *key, shoal_status status, const char *text)
{
    struct groups *groups = context;
    if (calls_hear(groups, key, status, text) || abandoned_hear(groups, key)) {
        return;
    }
    (void)pthread_mutex_lock(&groups->mutex);
    struct shoal_group *group = groups->is_closed ? NULL : find_any(groups, key);
    if (group) {
        group->has_heard = true;
        fail_here(group, status, text);
    } else if (!groups->is_closed && !groups_hear_abandoned_failed(groups, key)) {
        keep_news(groups, key, status, text);
    }
    (void)pthread_mutex_unlock(&groups->mutex);
    error_clear();
}

void groups_tell_news(struct groups *groups, struct shoal_group *group)
{
    const struct news *news = find_news(groups, group->key);
    if (news) {
        fail_here(group, news->status, news->text);
    }
}

void groups_forget_news(struct groups *groups)
{
    while (groups->news) {
        struct news *news = groups->news;
        groups->news = news->next;
        mem_free(news);
    }
    groups->n_news = 0;
}

/* Public calls ----------------------------------------------------------------------------------------- */

/*
 * A thread may call these to watch a group while another thread closes it. So they look at the parts of the group under
 * the mutex, and only if the group is still listed.
 */

static shoal_status fail_closed(const struct shoal_group *group)
{
    return error_set(SHOAL_ERR_STATE, "group %s: it was closed", group->name);
}

/* The members are told without the mutex, because a server that answers may wait for it. */
static shoal_status fail_listed(struct shoal_group *group, shoal_status reason, const char *reason_text)
{
    struct groups *groups = group->world->groups;
    char text[ERROR_TEXT_BYTES] = "";
    shoal_status status = SHOAL_OK;
    (void)pthread_mutex_lock(&groups->mutex);
    bool is_open = groups_has(groups, group);
    if (is_open) {
        closable_ref(&group->closable);
        group->has_heard = true;
        fail_here(group, reason, reason_text);
        status = take_to_tell(group, text);
    }
    (void)pthread_mutex_unlock(&groups->mutex);
    if (!is_open) {
        return fail_closed(group);
    }
    tell_members(group, status, text);
    closable_unref(&group->closable);
    error_clear();
    return SHOAL_OK;
}

shoal_status shoal_group_abort(shoal_group *group, const char *reason)
{
    error_clear();
    if (!group) {
        return error_set(SHOAL_ERR_INVALID, "group is NULL");
    }
    TRY(group_check_open(group));
    TRY(world_check_process(group->world));
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "aborted by rank %d%s%s", group->world->rank, reason ? ": " : "",
                   reason ? reason : "");
    return fail_listed(group, SHOAL_ERR_CANCELLED, text);
}

shoal_status group_check_death(struct shoal_group *group, int group_rank)
{
    int rank = group->ranks[group_rank];
    bool is_dead = group->world->members && members_state(group->world->members, rank) == MEMBER_DEAD;
    return is_dead ? world_check_rank(group->world, rank) : SHOAL_OK;
}

/*
 * Under the mutex, of a group that has not failed. Somebody who started a small operation and waits for something else
 * may ask shoal_group_error alone: nobody in the library waits, and looks for deaths, then. Members that have left are
 * no failure: their parts may all be done.
 */
static shoal_status look_for_deaths(struct shoal_group *group)
{
    int64_t now_ns = clock_now_ns();
    /* Relaxed, both: an instant that stands for itself. */
    if (now_ns < atomic_load_explicit(&group->look_ns, memory_order_relaxed)) {
        return SHOAL_OK;
    }
    atomic_store_explicit(&group->look_ns, now_ns + WAIT_LIVENESS_NS, memory_order_relaxed);
    for (int i = 0; i < group->peers.n_ranks; i++) {
        if (i != group->peers.rank) {
            TRY(group_check_death(group, i));
        }
    }
    return SHOAL_OK;
}

shoal_status shoal_group_error(shoal_group *group)
{
    error_clear();
    if (!group) {
        return error_set(SHOAL_ERR_INVALID, "group is NULL");
    }
    TRY(group_check_open(group));
    TRY(world_check_process(group->world));
    struct groups *groups = group->world->groups;
    (void)pthread_mutex_lock(&groups->mutex);
    bool is_open = groups_has(groups, group);
    shoal_status status = is_open ? group_failure(group) : SHOAL_OK;
    shoal_status death = is_open && status == SHOAL_OK ? look_for_deaths(group) : SHOAL_OK;
    (void)pthread_mutex_unlock(&groups->mutex);
    if (death != SHOAL_OK) {
        char text[ERROR_TEXT_BYTES];
        (void)snprintf(text, sizeof text, "%s", shoal_error_text());
        TRY(fail_listed(group, death, text));
        return error_set(death, "%s", text);
    }
    return is_open ? status : fail_closed(group);
}
