/* SPDX-License-Identifier: MIT */
/*
 * Groups: a list of ranks and a tag, known by both. A world keeps every group that was made in it until it is
 * closed, so that making the same one again finds the same counts of calls.
 */
#include "comm/group.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/groups.h"
#include "comm/hash.h"
#include "comm/lane.h"
#include "comm/members.h"
#include "comm/p2p.h"
#include "comm/recorder.h"
#include "comm/world.h"

#define TAG_CHARACTERS 64
/* Longer lists of ranks are named by a hash: keys are parts of names that servers keep. */
#define LIST_CHARACTERS 160
/* Of ranks in error texts. */
#define TEXT_CHARACTERS 96

/* Lists of ranks as text ------------------------------------------------------------------------------- */

/* "0,1,2". Returns whether all of it fitted; otherwise it ends in "...". */
static bool write_ranks(const int *ranks, int n_ranks, char *text, size_t text_bytes)
{
    size_t used = 0;
    for (int i = 0; i < n_ranks; i++) {
        /* Room is kept for a comma, any number and the end. */
        if (used + sizeof ",-2147483648..." > text_bytes) {
            (void)snprintf(text + used, text_bytes - used, ",...");
            return false;
        }
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%d", i > 0 ? "," : "", ranks[i]);
    }
    return true;
}

/* All ranks of the world in order, which have a name without numbers: it does not grow with the world. */
static bool is_all_in_order(const struct shoal_world *world, const int *ranks, int n_ranks)
{
    for (int i = 0; i < n_ranks; i++) {
        if (ranks[i] != i) {
            return false;
        }
    }
    return n_ranks == world->n_ranks;
}

/* "0,2", "0,2/tag"; no two groups of a world have the same. collective/group_argument.c reads them. */
static char *create_key(const struct shoal_world *world, const int *ranks, int n_ranks, const char *tag)
{
    char list[LIST_CHARACTERS];
    if (is_all_in_order(world, ranks, n_ranks)) {
        (void)snprintf(list, sizeof list, GROUP_KEY_WORLD);
    } else if (!write_ranks(ranks, n_ranks, list, sizeof list)) {
        size_t bytes = (size_t)n_ranks * sizeof *ranks;
        (void)snprintf(list, sizeof list, "%d" GROUP_KEY_HASHED "%016" PRIx64 "%016" PRIx64, n_ranks,
                       hash_bytes(1, ranks, bytes), hash_bytes(2, ranks, bytes));
    }
    char key[LIST_CHARACTERS + TAG_CHARACTERS + 2];
    (void)snprintf(key, sizeof key, "%s%s%s", list, tag[0] ? "/" : "", tag);
    return mem_copy_string(key);
}

/* [0,1] tag "x"; many ranks are cut. */
static char *create_name(const int *ranks, int n_ranks, const char *tag)
{
    char list[TEXT_CHARACTERS];
    (void)write_ranks(ranks, n_ranks, list, sizeof list);
    char name[TEXT_CHARACTERS + TAG_CHARACTERS + 16];
    (void)snprintf(name, sizeof name, tag[0] ? "[%s] tag \"%s\"" : "[%s]", list, tag);
    return mem_copy_string(name);
}

/* Checking --------------------------------------------------------------------------------------------- */

static int find_rank(const int *ranks, int n_ranks, int wanted)
{
    for (int i = 0; i < n_ranks; i++) {
        if (ranks[i] == wanted) {
            return i;
        }
    }
    return -1;
}

static shoal_status check_ranks(const struct shoal_world *world, const int *ranks, int n_ranks)
{
    if (!ranks || n_ranks < 1) {
        return error_set(SHOAL_ERR_INVALID, "a group needs ranks: ranks is %s, n_ranks is %d",
                         ranks ? "given" : "NULL", n_ranks);
    }
    if (n_ranks > world->n_ranks) {
        return error_set(SHOAL_ERR_INVALID, "a group of %d ranks in a world of %d", n_ranks, world->n_ranks);
    }
    char text[TEXT_CHARACTERS];
    (void)write_ranks(ranks, n_ranks, text, sizeof text);
    for (int i = 0; i < n_ranks; i++) {
        if (ranks[i] < 0 || ranks[i] >= world->n_ranks) {
            return error_set(SHOAL_ERR_INVALID, "rank %d of group [%s] is outside of the world of %d ranks",
                             ranks[i], text, world->n_ranks);
        }
    }
    /* Ranks lie in a range, so that one mark for each finds those that come twice. */
    char *is_seen = mem_alloc_zeroed((size_t)world->n_ranks, 1);
    if (!is_seen) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = SHOAL_OK;
    for (int i = 0; i < n_ranks && status == SHOAL_OK; i++) {
        if (is_seen[ranks[i]]++) {
            status = error_set(SHOAL_ERR_INVALID, "rank %d is twice in group [%s]", ranks[i], text);
        }
    }
    mem_free(is_seen);
    TRY(status);
    if (find_rank(ranks, n_ranks, world->rank) < 0) {
        return error_set(SHOAL_ERR_INVALID, "rank %d is not in group [%s]: only members can make it",
                         world->rank, text);
    }
    return SHOAL_OK;
}

static shoal_status check_tag(const char *tag)
{
    size_t n_characters = strnlen(tag, TAG_CHARACTERS + 1);
    if (n_characters > TAG_CHARACTERS) {
        return error_set(SHOAL_ERR_INVALID, "tag \"%.16s...\" has more than %d characters", tag,
                         TAG_CHARACTERS);
    }
    for (size_t i = 0; i < n_characters; i++) {
        if (tag[i] < ' ' || tag[i] > '~') {
            return error_set(SHOAL_ERR_INVALID, "tag: character %zu (0x%02x) is not printable ASCII", i,
                             (unsigned)(unsigned char)tag[i]);
        }
    }
    return SHOAL_OK;
}

/* Making and freeing ----------------------------------------------------------------------------------- */

static shoal_status check_member(void *context, int group_rank)
{
    struct shoal_group *group = context;
    shoal_status status = world_check_rank(group->world, group->ranks[group_rank]);
    /* Who has closed its world may have done so because another died: that one is the reason. */
    for (int i = 0; status != SHOAL_OK && i < group->peers.n_ranks; i++) {
        if (members_state(group->world->members, group->ranks[i]) == MEMBER_DEAD) {
            return world_check_rank(group->world, group->ranks[i]);
        }
    }
    return status;
}

static shoal_status open_segment(void *context, const char *name, size_t bytes, int64_t deadline_ns,
                                 struct segment **segment_out)
{
    struct shoal_group *group = context;
    char full_name[LIST_CHARACTERS + TAG_CHARACTERS + 128];
    /* A tag may hold any '/': no name of a segment is the end of another one, which keeps them apart. */
    int n_characters = snprintf(full_name, sizeof full_name, "group/%s/%s", group->key, name);
    if (n_characters < 0 || (size_t)n_characters >= sizeof full_name) {
        return error_set(SHOAL_ERR_INTERNAL, "name of a segment too long: %s", name);
    }
    return world_open_segment(group->world, group->ranks[0], full_name, bytes, deadline_ns, segment_out);
}

static void free_group(struct shoal_group *group)
{
    if (!group) {
        return;
    }
    /* Acquire: pairs with the release by which point to point was made. */
    p2p_free(atomic_load_explicit(&group->p2p, memory_order_acquire));
    lane_free(group->lane);
    recorder_free(group->recorder);
    mem_free(group->name);
    mem_free(group->key);
    mem_free(group->tag);
    mem_free(group->ranks);
    mem_free(group);
}

static shoal_status create_parts(struct shoal_group *group, const int *ranks, int n_ranks, const char *tag)
{
    group->ranks = mem_alloc((size_t)n_ranks * sizeof *ranks);
    group->tag = mem_copy_string(tag);
    group->key = create_key(group->world, ranks, n_ranks, tag);
    group->name = create_name(ranks, n_ranks, tag);
    group->recorder = recorder_create();
    group->lane = lane_create(group);
    if (!group->ranks || !group->tag || !group->key || !group->name || !group->recorder || !group->lane) {
        return SHOAL_ERR_NO_MEMORY;
    }
    memcpy(group->ranks, ranks, (size_t)n_ranks * sizeof *ranks);
    return SHOAL_OK;
}

/* Arguments are good, and there is no such group yet. */
static shoal_status create_group(struct shoal_world *world, const int *ranks, int n_ranks, const char *tag,
                                 struct shoal_group **group_out)
{
    struct shoal_group *group = mem_alloc_zeroed(1, sizeof *group);
    if (!group) {
        return SHOAL_ERR_NO_MEMORY;
    }
    group->world = world;
    atomic_init(&group->timeout_s, world->timeout_s);
    shoal_status status = create_parts(group, ranks, n_ranks, tag);
    if (status != SHOAL_OK) {
        free_group(group);
        return status;
    }
    group->peers = (struct transport_peers){.rank = find_rank(ranks, n_ranks, world->rank),
                                            .n_ranks = n_ranks,
                                            .world_ranks = group->ranks,
                                            .key = group->key,
                                            .name = group->name,
                                            .timeout_s = &group->timeout_s,
                                            .may_spin = world->may_spin,
                                            .regions = world->regions,
                                            .context = group,
                                            .check_member = check_member,
                                            .open_segment = open_segment};
    *group_out = group;
    return SHOAL_OK;
}

struct groups *groups_create(void)
{
    struct groups *groups = mem_alloc_zeroed(1, sizeof *groups);
    if (groups) {
        (void)pthread_mutex_init(&groups->mutex, NULL);
    }
    return groups;
}

void groups_free(struct groups *groups)
{
    if (!groups) {
        return;
    }
    while (groups->first) {
        struct shoal_group *group = groups->first;
        groups->first = group->next;
        free_group(group);
    }
    (void)pthread_mutex_destroy(&groups->mutex);
    mem_free(groups);
}

struct shoal_group *groups_first(struct groups *groups)
{
    (void)pthread_mutex_lock(&groups->mutex);
    struct shoal_group *first = groups->first;
    (void)pthread_mutex_unlock(&groups->mutex);
    return first;
}

struct shoal_group *groups_find(struct groups *groups, const char *key)
{
    struct shoal_group *group = groups_first(groups);
    while (group && strcmp(group->key, key) != 0) {
        group = group->next;
    }
    return group;
}

/* Under the mutex. */
static shoal_status find_or_create(struct shoal_world *world, const int *ranks, int n_ranks, const char *tag,
                                   struct shoal_group **group_out)
{
    struct groups *groups = world->groups;
    for (struct shoal_group *group = groups->first; group; group = group->next) {
        if (group->peers.n_ranks == n_ranks && strcmp(group->tag, tag) == 0 &&
            memcmp(group->ranks, ranks, (size_t)n_ranks * sizeof *ranks) == 0) {
            *group_out = group;
            return SHOAL_OK;
        }
    }
    TRY(create_group(world, ranks, n_ranks, tag, group_out));
    (*group_out)->next = groups->first;
    groups->first = *group_out;
    return SHOAL_OK;
}

shoal_status shoal_group_create(shoal_world *world, const int *ranks, int n_ranks, const char *tag,
                                shoal_group **group_out)
{
    error_clear();
    if (!world || !group_out) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL", world ? "group_out" : "world");
    }
    TRY(world_check_process(world));
    const char *known_tag = tag ? tag : "";
    TRY(check_tag(known_tag));
    TRY(check_ranks(world, ranks, n_ranks));
    struct shoal_group *group = NULL;
    (void)pthread_mutex_lock(&world->groups->mutex);
    shoal_status status = find_or_create(world, ranks, n_ranks, known_tag, &group);
    (void)pthread_mutex_unlock(&world->groups->mutex);
    TRY(status);
    *group_out = shoal_group_ref(group);
    return SHOAL_OK;
}

shoal_status shoal_group_create_blocks(shoal_world *world, int block_ranks, const char *tag,
                                       shoal_group **group_out)
{
    error_clear();
    if (!world || !group_out) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL", world ? "group_out" : "world");
    }
    if (block_ranks < 1 || block_ranks > world->n_ranks || world->n_ranks % block_ranks != 0) {
        return error_set(SHOAL_ERR_INVALID, "blocks of %d ranks do not divide a world of %d", block_ranks,
                         world->n_ranks);
    }
    int *ranks = mem_alloc((size_t)block_ranks * sizeof *ranks);
    if (!ranks) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (int i = 0; i < block_ranks; i++) {
        ranks[i] = world->rank - world->rank % block_ranks + i;
    }
    shoal_status status = shoal_group_create(world, ranks, block_ranks, tag, group_out);
    mem_free(ranks);
    return status;
}

/*
 * Handles are not counted: a group whose last one was given up stays, idle, until the world is closed, because the
 * members' counts of calls must not part.
 */
shoal_group *shoal_group_ref(shoal_group *group)
{
    return group;
}

void shoal_group_free(shoal_group *group)
{
}

/* Asking ----------------------------------------------------------------------------------------------- */

int shoal_group_rank(const shoal_group *group)
{
    return group ? group->peers.rank : -1;
}

int shoal_group_n_ranks(const shoal_group *group)
{
    return group ? group->peers.n_ranks : 0;
}

const char *shoal_group_name(const shoal_group *group)
{
    return group ? group->key : "";
}

const char *shoal_group_tag(const shoal_group *group)
{
    return group ? group->tag : "";
}

shoal_world *shoal_group_world(const shoal_group *group)
{
    return group ? group->world : NULL;
}

int shoal_group_world_rank(const shoal_group *group, int group_rank)
{
    return group && group_rank >= 0 && group_rank < group->peers.n_ranks ? group->ranks[group_rank] : -1;
}

int shoal_group_rank_of(const shoal_group *group, int world_rank)
{
    return group ? find_rank(group->ranks, group->peers.n_ranks, world_rank) : -1;
}

uint64_t shoal_group_sequence(const shoal_group *group)
{
    return group ? lane_sequence(group->lane) : 0;
}

double shoal_group_timeout(const shoal_group *group)
{
    /* Relaxed, here and below: the number stands for itself. */
    return group ? atomic_load_explicit(&group->timeout_s, memory_order_relaxed) : 0.0;
}

shoal_status shoal_group_set_timeout(shoal_group *group, double seconds)
{
    error_clear();
    if (!group) {
        return error_set(SHOAL_ERR_INVALID, "group is NULL");
    }
    if (!(seconds > 0.0)) {
        return error_set(SHOAL_ERR_INVALID, "timeout of %g s: it must be more than 0", seconds);
    }
    atomic_store_explicit(&group->timeout_s, seconds, memory_order_relaxed);
    return SHOAL_OK;
}

int64_t group_deadline(const struct shoal_group *group)
{
    return clock_deadline_after(shoal_group_timeout(group));
}

/* Failing ---------------------------------------------------------------------------------------------- */

shoal_status group_failure(struct shoal_group *group)
{
    TRY(lane_failure(group->lane));
    return p2p_failure(group);
}

void group_poison(struct shoal_group *group, shoal_status status, const char *text)
{
    lane_poison(group->lane, status, text);
    p2p_poison(group, status, text);
}

shoal_status shoal_group_abort(shoal_group *group, const char *reason)
{
    error_clear();
    if (!group) {
        return error_set(SHOAL_ERR_INVALID, "group is NULL");
    }
    TRY(world_check_process(group->world));
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "aborted by rank %d%s%s", group->world->rank, reason ? ": " : "",
                   reason ? reason : "");
    group_poison(group, SHOAL_ERR_CANCELLED, text);
    error_clear();
    return SHOAL_OK;
}

shoal_status shoal_group_error(shoal_group *group)
{
    error_clear();
    if (!group) {
        return error_set(SHOAL_ERR_INVALID, "group is NULL");
    }
    TRY(world_check_process(group->world));
    return group_failure(group);
}
