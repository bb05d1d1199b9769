/* SPDX-License-Identifier: MIT */
/*
 * Groups that a member has abandoned (shoal_group_abandon), alone and without waiting for the others. It frees its part
 * and then tells the others, by a message to their servers. They mark the member as gone: what it did before counts,
 * and who waits for more gets SHOAL_ERR_PEER, as with a rank that has closed its world.
 *
 * The server of one member holds the names of the group's shared memory. They must stay while a member may still
 * connect to what others have connected to. So that member keeps the group until all have abandoned it, and drops the
 * names then, the next time that it makes or abandons a group: the message comes on a thread of the server, which
 * cannot ask itself.
 *
 * The rank cannot make the group again, because others may still know the old one. It keeps a hash of the name.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/try.h"
#include "bootstrap/server/client.h"
#include "comm/group/group.h"
#include "comm/group/groups.h"
#include "comm/group/world.h"

/* Keys of messages begin with this, then the rank, a space, and the name of the group. No group's key does. */
#define KEY_MARK "\x1d"
#define KEY_BYTES 512

/* Says by which rank of the world which group was abandoned. */
#define ABANDONED_TEXT "rank %d has abandoned group %s"

/* A message: a member has abandoned a group that this rank has not made. */
struct abandon_note {
    struct abandon_note *next;
    int rank;
    char key[];
};

/* The member that abandons ------------------------------------------------------------------------------- */

shoal_status groups_begin_abandon(struct groups *groups)
{
    (void)pthread_mutex_lock(&groups->mutex);
    void *names = groups->names;
    shoal_status status = mem_grow(&names, &groups->names_capacity, groups->n_names + groups->n_begun + 2,
                                   sizeof *groups->names);
    groups->names = names;
    groups->n_begun += status == SHOAL_OK ? 2 : 0;
    (void)pthread_mutex_unlock(&groups->mutex);
    return status;
}

void groups_cancel_abandon(struct groups *groups)
{
    (void)pthread_mutex_lock(&groups->mutex);
    groups->n_begun -= 2;
    (void)pthread_mutex_unlock(&groups->mutex);
}

static void hash_key(const char *key, uint64_t hashes[2])
{
    hashes[0] = hash_bytes(1, key, strlen(key));
    hashes[1] = hash_bytes(2, key, strlen(key));
}

static bool has_name(const struct groups *groups, const char *key)
{
    uint64_t hashes[2];
    hash_key(key, hashes);
    for (size_t i = 0; i < groups->n_names; i += 2) {
        if (groups->names[i] == hashes[0] && groups->names[i + 1] == hashes[1]) {
            return true;
        }
    }
    return false;
}

shoal_status groups_check_abandoned(const struct groups *groups, const struct shoal_group *group)
{
    if (!has_name(groups, group->key)) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_STATE,
                     "group %s: rank %d has abandoned it, and a group of these ranks and this tag cannot be "
                     "made again in this world: use another tag",
                     group->name, group->world->rank);
}

/* Whether this rank's server has names of the group. */
static bool has_names(const struct shoal_group *group)
{
    return group->peers.holder == group->world->rank || group->peers.rank == 0;
}

/* Under the mutex. */
static void note_ready(struct groups *groups, const struct shoal_group *group)
{
    /* Relaxed, here and below: only whether it is worth taking the mutex. */
    atomic_fetch_add_explicit(&groups->n_ready, group->n_missing == 0, memory_order_relaxed);
}

void groups_keep_abandoned(struct groups *groups, struct shoal_group *group, struct shoal_group *family)
{
    bool must_keep = false;
    hash_key(group->key, groups->names + groups->n_names);
    groups->n_names += 2;
    groups->n_begun -= 2;
    for (const struct shoal_group *member = family; member; member = member->next) {
        must_keep = must_keep || has_names(member);
    }
    if (!must_keep || !group->world->client) {
        return;
    }
    for (struct shoal_group *member = family; member; member = member->next) {
        closable_ref(&member->closable);
    }
    group->n_missing = group->peers.n_ranks - 1;
    for (int i = 0; i < group->peers.n_ranks; i++) {
        /* Relaxed: set under this mutex. */
        group->n_missing -= atomic_load_explicit(&group->has_abandoned[i], memory_order_relaxed);
    }
    group->family = family;
    group->next_abandoned = groups->abandoned;
    groups->abandoned = group;
    note_ready(groups, group);
}

void group_describe_abandoned(const struct shoal_group *group, char *text, size_t bytes)
{
    (void)snprintf(text, bytes, ABANDONED_TEXT, group->world->rank, group->name);
}

shoal_status group_tell_abandoned(const struct shoal_group *group)
{
    const struct shoal_world *world = group->world;
    char key[KEY_BYTES];
    char text[ERROR_TEXT_BYTES];
    int n_untold = 0;
    int untold = -1;
    (void)snprintf(key, sizeof key, KEY_MARK "%d %s", world->rank, group->key);
    group_describe_abandoned(group, text, sizeof text);
    for (int i = 0; world->client && i < group->peers.n_ranks; i++) {
        if (i != group->peers.rank &&
            !client_tell_failure(world->client, group->ranks[i], key, SHOAL_ERR_PEER, text)) {
            n_untold++;
            untold = group->ranks[i];
        }
    }
    if (n_untold > 0) {
        (void)snprintf(text, sizeof text, "%s", shoal_error_text());
        return error_set(SHOAL_ERR_SYSTEM,
                         "group_abandon: group %s was freed, but rank %d could not be told (%s): it may wait "
                         "for this rank until its deadline",
                         group->name, untold, text);
    }
    return SHOAL_OK;
}

/* Takes a group off that all have abandoned. Returns NULL if there is none. */
static struct shoal_group *take_ready(struct groups *groups)
{
    (void)pthread_mutex_lock(&groups->mutex);
    struct shoal_group **link = &groups->abandoned;
    while (*link && (*link)->n_missing > 0) {
        link = &(*link)->next_abandoned;
    }
    struct shoal_group *group = *link;
    if (group) {
        *link = group->next_abandoned;
        atomic_fetch_sub_explicit(&groups->n_ready, 1, memory_order_relaxed);
    }
    (void)pthread_mutex_unlock(&groups->mutex);
    return group;
}

static void release_family(struct shoal_group *family)
{
    while (family) {
        struct shoal_group *group = family;
        family = group->next;
        closable_unref(&group->closable);
    }
}

void groups_sweep_abandoned(struct groups *groups,
                            shoal_status (*drop_names)(struct shoal_group *group, int64_t deadline_ns))
{
    while (atomic_load_explicit(&groups->n_ready, memory_order_relaxed) > 0) {
        struct shoal_group *group = take_ready(groups);
        if (!group) {
            return;
        }
        for (struct shoal_group *member = group->family; member; member = member->next) {
            /* If it fails, the memory stays until the world is closed. */
            if (drop_names(member, group_deadline(member)) != SHOAL_OK) {
                LOG(SHOAL_LOG_DEBUG, "group %s, which was abandoned: %s", member->name, shoal_error_text());
                error_clear();
            }
        }
        release_family(group->family);
    }
}

void groups_forget_abandoned(struct groups *groups)
{
    while (groups->abandoned) {
        struct shoal_group *group = groups->abandoned;
        groups->abandoned = group->next_abandoned;
        release_family(group->family);
    }
    while (groups->abandon_notes) {
        struct abandon_note *note = groups->abandon_notes;
        groups->abandon_notes = note->next;
        mem_free(note);
    }
    mem_free(groups->names);
}

/* The others --------------------------------------------------------------------------------------------- */

/* The rank in the group; -1 if it is no member. */
static int find_place(const struct shoal_group *group, int rank)
{
    int place = group->peers.n_ranks - 1;
    while (place >= 0 && group->ranks[place] != rank) {
        place--;
    }
    return place;
}

/* Under the mutex. */
static void mark(struct shoal_group *group, int rank)
{
    int place = find_place(group, rank);
    if (place >= 0) {
        /* Release: pairs with the acquire in group_check_abandoned. */
        atomic_store_explicit(&group->has_abandoned[place], true, memory_order_release);
    }
}

/* A lane is abandoned with the group that it was made over. */
shoal_status group_check_abandoned(void *context, int group_rank)
{
    const struct shoal_group *group = context;
    int rank = group->ranks[group_rank];
    for (; group; group = group->parent) {
        int place = find_place(group, rank);
        /* Acquire: pairs with the release in mark. What the member has done before is seen. */
        if (place >= 0 && atomic_load_explicit(&group->has_abandoned[place], memory_order_acquire)) {
            return error_set(SHOAL_ERR_PEER, ABANDONED_TEXT, rank, group->name);
        }
    }
    return SHOAL_OK;
}

static void drop_oldest_note(struct groups *groups)
{
    struct abandon_note **link = &groups->abandon_notes;
    while ((*link)->next) {
        link = &(*link)->next;
    }
    mem_free(*link);
    *link = NULL;
    groups->n_abandon_notes--;
}

/* As with failures of groups that this rank has not made, the last GROUPS_NEWS_KEPT are remembered. */
static void keep_note(struct groups *groups, const char *key, int rank)
{
    size_t bytes = strlen(key) + 1;
    struct abandon_note *note = mem_alloc(sizeof *note + bytes);
    if (!note) {
        LOG(SHOAL_LOG_ERROR, "no memory to keep that rank %d has abandoned a group", rank);
        error_clear();
        return;
    }
    note->rank = rank;
    memcpy(note->key, key, bytes);
    note->next = groups->abandon_notes;
    groups->abandon_notes = note;
    if (++groups->n_abandon_notes > GROUPS_NEWS_KEPT) {
        drop_oldest_note(groups);
    }
}

/* A member that closed the group with this rank may have made it again, and abandoned that one, while this rank was
   still closing the first. So what was heard is about a group that this rank has not made yet. */
void groups_keep_marks(struct groups *groups, const struct shoal_group *group)
{
    for (int i = 0; i < group->peers.n_ranks; i++) {
        /* Relaxed: set under this mutex. */
        if (atomic_load_explicit(&group->has_abandoned[i], memory_order_relaxed)) {
            keep_note(groups, group->key, group->ranks[i]);
        }
    }
}

static struct shoal_group *find_abandoned(struct groups *groups, const char *key)
{
    struct shoal_group *group = groups->abandoned;
    while (group && strcmp(group->key, key) != 0) {
        group = group->next_abandoned;
    }
    return group;
}

static void hear(struct groups *groups, const char *key, int rank)
{
    struct shoal_group *group = groups->first;
    while (group && (group->parent || strcmp(group->key, key) != 0)) {
        group = group->next;
    }
    if (group) {
        mark(group, rank);
        return;
    }
    struct shoal_group *abandoned = find_abandoned(groups, key);
    if (abandoned && abandoned->n_missing > 0) {
        abandoned->n_missing--;
        note_ready(groups, abandoned);
    } else if (!has_name(groups, key)) {
        keep_note(groups, key, rank);
    }
}

bool groups_hear_abandoned_failed(struct groups *groups, const char *key)
{
    struct shoal_group *group = find_abandoned(groups, key);
    /* Nobody will use what others have connected to, and members that have not connected are told as well. */
    if (group && group->n_missing > 0) {
        group->n_missing = 0;
        note_ready(groups, group);
    }
    return has_name(groups, key);
}

bool abandoned_hear(struct groups *groups, const char *key)
{
    int rank = -1;
    int used = 0;
    if (sscanf(key, KEY_MARK "%d %n", &rank, &used) != 1 || used == 0) {
        return false;
    }
    (void)pthread_mutex_lock(&groups->mutex);
    if (!groups->is_closed) {
        hear(groups, key + used, rank);
    }
    (void)pthread_mutex_unlock(&groups->mutex);
    return true;
}

void groups_tell_abandoned(struct groups *groups, struct shoal_group *group)
{
    struct abandon_note **link = &groups->abandon_notes;
    while (*link) {
        struct abandon_note *note = *link;
        if (group->parent || strcmp(note->key, group->key) != 0) {
            link = &note->next;
            continue;
        }
        mark(group, note->rank);
        *link = note->next;
        mem_free(note);
        groups->n_abandon_notes--;
    }
}
