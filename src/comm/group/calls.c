/* SPDX-License-Identifier: MIT */
#include "comm/group/calls.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "bootstrap/server/client.h"
#include "comm/group/group.h"
#include "comm/group/groups.h"
#include "comm/lane/lane.h"
#include "comm/p2p/p2p.h"
#include "comm/group/world.h"

/* Keys of messages begin with this. No group's key does. */
#define KEY_MARK "\x1e"
#define KEY_BYTES 64

/* How many messages are kept of calls that this rank is not in yet. */
#define NOTES_KEPT 64

/* A message: a rank has given up a call. */
struct call_note {
    struct call_note *next;
    uint32_t number;
    uint64_t round;
    int rank;
    uint32_t n_over; /* how many meetings of the call were over for that rank */
    shoal_status status;
    char text[ERROR_TEXT_BYTES];
};

static _Thread_local struct world_call *current; /* that this thread makes; NULL if it makes none */

uint32_t world_next_call(struct shoal_world *world)
{
    (void)pthread_mutex_lock(&world->groups->mutex);
    uint32_t number = ++world->groups->n_calls;
    (void)pthread_mutex_unlock(&world->groups->mutex);
    return number;
}

/* Failing ---------------------------------------------------------------------------------------------- */

/* Under the mutex, like the next two. False if the group is NULL, or was closed: then it may be freed already. */
static bool has_member(const struct groups *groups, const struct shoal_group *group, int rank)
{
    int i = 0;
    if (!group || !groups_has(groups, group)) {
        return false;
    }
    while (i < group->peers.n_ranks && group->ranks[i] != rank) {
        i++;
    }
    return i < group->peers.n_ranks;
}

static bool is_about(const struct groups *groups, const struct call_note *note, const struct world_call *call)
{
    bool is_same =
        note->number == call->number && note->round == call->round && note->n_over < call->n_meetings;
    bool is_member = false;
    for (size_t i = 0; i < call->n_groups && is_same && !is_member; i++) {
        is_member = has_member(groups, call->groups[i], note->rank);
    }
    return is_member;
}

static void take_reason(struct world_call *call, const struct call_note *note)
{
    call->was_given_up = true;
    call->status = note->status;
    (void)snprintf(call->text, sizeof call->text, "%s", note->text);
}

/* Fails the call and its groups that have the rank as a member. Poisoning does not block. */
static void fail(struct groups *groups, struct world_call *call, const struct call_note *note)
{
    take_reason(call, note);
    for (size_t i = 0; i < call->n_groups; i++) {
        struct shoal_group *group = call->groups[i];
        if (has_member(groups, group, note->rank)) {
            group->has_heard = true;
            lane_poison(group->lane, note->status, note->text);
            p2p_poison(group_p2p(group), note->status, note->text);
        }
    }
}

/* Making ----------------------------------------------------------------------------------------------- */

void world_call_begin(struct world_call *call)
{
    struct groups *groups = call->world->groups;
    call->outer = current;
    current = call;
    (void)pthread_mutex_lock(&groups->mutex);
    call->next = groups->calls;
    groups->calls = call;
    (void)pthread_mutex_unlock(&groups->mutex);
}

void world_call_end(struct world_call *call)
{
    struct groups *groups = call->world->groups;
    current = call->outer;
    (void)pthread_mutex_lock(&groups->mutex);
    struct world_call **link = &groups->calls;
    while (*link != call) {
        link = &(*link)->next;
    }
    *link = call->next;
    (void)pthread_mutex_unlock(&groups->mutex);
}

/* A message that came before is found here, and no group needs to fail. */
shoal_status world_call_meet(struct shoal_group *const *met, size_t n_met)
{
    struct world_call *call = current;
    if (!call) {
        return SHOAL_OK;
    }
    struct groups *groups = call->world->groups;
    (void)pthread_mutex_lock(&groups->mutex);
    call->groups = met;
    call->n_groups = n_met;
    call->n_over = call->n_meetings++;
    const struct call_note *note = groups->notes;
    while (note && !is_about(groups, note, call)) {
        note = note->next;
    }
    if (note) {
        take_reason(call, note);
        call->n_groups = 0;
    }
    (void)pthread_mutex_unlock(&groups->mutex);
    return note ? error_set(call->status, "%s", call->text) : SHOAL_OK;
}

void world_call_part(bool was_good)
{
    struct world_call *call = current;
    if (call) {
        (void)pthread_mutex_lock(&call->world->groups->mutex);
        call->groups = NULL;
        call->n_groups = 0;
        call->n_over = was_good ? call->n_meetings : call->n_over;
        (void)pthread_mutex_unlock(&call->world->groups->mutex);
    }
}

void world_call_give_up(const struct world_call *call, shoal_status status, const char *text)
{
    const struct shoal_world *world = call->world;
    char key[KEY_BYTES];
    char copy[ERROR_TEXT_BYTES]; /* the text may be the thread's own */
    char before[ERROR_TEXT_BYTES];
    if (!world->client || fork_is_child(world->n_forks)) {
        return;
    }
    (void)snprintf(copy, sizeof copy, "%s", text);
    (void)snprintf(before, sizeof before, "%s", shoal_error_text());
    (void)snprintf(key, sizeof key, KEY_MARK "%" PRIu32 " %" PRIu64 " %d %" PRIu32, call->number, call->round,
                   world->rank, call->n_over);
    /* Ranks that differ all say so. Whatever else happened to this one, for the others it is a peer that is missing. */
    shoal_status told = status == SHOAL_ERR_MISMATCH ? status : SHOAL_ERR_PEER;
    for (int rank = 0; rank < world->n_ranks; rank++) {
        if (rank != world->rank) {
            (void)client_tell_failure(world->client, rank, key, told, copy);
        }
    }
    (void)error_set(SHOAL_OK, "%s", before);
}

/* Hearing ---------------------------------------------------------------------------------------------- */

/* Under the mutex. Finds the note of that call and rank, or the oldest note if there are NOTES_KEPT: it is replaced.
   Returns NULL if there is room for a new one. */
static struct call_note **find_place(struct groups *groups, uint32_t number, int rank)
{
    struct call_note **link = &groups->notes;
    size_t count = 0;
    while (*link && ((*link)->number != number || (*link)->rank != rank)) {
        count++;
        if (count >= NOTES_KEPT && !(*link)->next) {
            return link;
        }
        link = &(*link)->next;
    }
    return *link ? link : NULL;
}

/* Puts a note at the head of the list. If a rank gives up a call again and again, only the last note is kept. Returns
   NULL if memory runs out. */
static struct call_note *keep_note(struct groups *groups, const struct call_note *told, const char *text)
{
    struct call_note **place = find_place(groups, told->number, told->rank);
    struct call_note *note = place ? *place : mem_alloc(sizeof *note);
    if (!note) {
        LOG(SHOAL_LOG_ERROR, "no memory to keep what another rank says: %s", text);
        return NULL;
    }
    if (place) {
        *place = note->next;
    }
    *note = *told;
    (void)snprintf(note->text, sizeof note->text, "%s", text);
    note->next = groups->notes;
    groups->notes = note;
    return note;
}

bool calls_hear(struct groups *groups, const char *key, shoal_status status, const char *text)
{
    struct call_note told = {.status = status};
    if (sscanf(key, KEY_MARK "%" SCNu32 " %" SCNu64 " %d %" SCNu32, &told.number, &told.round, &told.rank,
               &told.n_over) != 4) {
        return false;
    }
    (void)pthread_mutex_lock(&groups->mutex);
    struct call_note *note = groups->is_closed ? NULL : keep_note(groups, &told, text);
    for (struct world_call *call = groups->calls; call && note; call = call->next) {
        if (is_about(groups, note, call)) {
            fail(groups, call, note);
        }
    }
    (void)pthread_mutex_unlock(&groups->mutex);
    error_clear();
    return true;
}

void calls_forget(struct groups *groups)
{
    while (groups->notes) {
        struct call_note *note = groups->notes;
        groups->notes = note->next;
        mem_free(note);
    }
}
