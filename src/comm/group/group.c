/* SPDX-License-Identifier: MIT */
/*
 * Groups: a list of ranks and a tag, which identify the group. A world keeps every group until the group or the world
 * is closed, so that making the same group again returns the same one, with its counts of calls. How groups fail is in
 * group/failure.c.
 */
#include "comm/group/group.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "base/wait.h"
#include "bootstrap/server/client.h"
#include "comm/group/groups.h"
#include "base/hash.h"
#include "comm/lane/lane.h"
#include "bootstrap/alive/liveness.h"
#include "comm/p2p/p2p.h"
#include "comm/lane/recorder.h"
#include "comm/group/transports.h"
#include "bootstrap/server/numbers.h"
#include "bootstrap/server/segments.h"
#include "comm/group/world.h"
#include "sharedmem/regions.h"

#define TAG_CHARACTERS 64
/* Room for the word of a lane and the numbers that are added to it. */
#define WORD_CHARACTERS 64
/* A longer list of ranks becomes a hash in the key, because keys are parts of names that servers keep. */
#define LIST_CHARACTERS 160
/* Room for a list of ranks in error texts. */
#define TEXT_CHARACTERS 96
/* Between two checks whether other threads still walk over the groups. */
#define WALK_NAP_NS 1000000
/* How deep lanes over lanes may be nested. */
#define MAX_LANE_DEPTH 3
/* What the names of a group's segments end with, from their first space on: by its key. */
#define SEGMENT_SUFFIX " of group %s"
#define SEGMENT_CHARACTERS (LIST_CHARACTERS + TAG_CHARACTERS + MAX_LANE_DEPTH * WORD_CHARACTERS + 128)

/* Lists of ranks as text ------------------------------------------------------------------------------- */

/* Writes "0,1,2". Returns false if it did not fit; it then ends in "...". */
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

/* Whether these are all ranks of the world in order. Their name has no numbers, so it does not grow with the world. */
static bool is_all_in_order(const struct shoal_world *world, const int *ranks, int n_ranks)
{
    for (int i = 0; i < n_ranks; i++) {
        if (ranks[i] != i) {
            return false;
        }
    }
    return n_ranks == world->n_ranks;
}

/* "0,2", "0,2/tag"; no two groups of a world have the same. comm/world/group_find.c reads them. */
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

/* Makes the text [0,1] tag "x". A long list of ranks is cut. */
static char *create_name(const int *ranks, int n_ranks, const char *tag)
{
    char list[TEXT_CHARACTERS];
    (void)write_ranks(ranks, n_ranks, list, sizeof list);
    char name[TEXT_CHARACTERS + TAG_CHARACTERS + 16];
    (void)snprintf(name, sizeof name, tag[0] ? "[%s] tag \"%s\"" : "[%s]", list, tag);
    return mem_copy_string(name);
}

/* A new string: the three texts one after the other. */
static char *join(const char *first, const char *second, const char *third)
{
    size_t bytes = strlen(first) + strlen(second) + strlen(third) + 1;
    char *joined = mem_alloc(bytes);
    if (joined) {
        (void)snprintf(joined, bytes, "%s%s%s", first, second, third);
    }
    return joined;
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
        return error_set(SHOAL_ERR_INVALID, "group_create: a group needs ranks: ranks is %s, n_ranks is %d",
                         ranks ? "given" : "NULL", n_ranks);
    }
    if (n_ranks > world->n_ranks) {
        return error_set(SHOAL_ERR_INVALID, "group_create: n_ranks is %d, but the world has %d ranks",
                         n_ranks, world->n_ranks);
    }
    char text[TEXT_CHARACTERS];
    (void)write_ranks(ranks, n_ranks, text, sizeof text);
    for (int i = 0; i < n_ranks; i++) {
        if (ranks[i] < 0 || ranks[i] >= world->n_ranks) {
            return error_set(SHOAL_ERR_INVALID, "rank %d of group [%s] is outside of the world of %d ranks",
                             ranks[i], text, world->n_ranks);
        }
    }
    /* One mark for each rank of the world finds ranks that are listed twice. */
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
    TRY(group_check_abandoned(group, group_rank));
    shoal_status status = world_check_rank(group->world, group->ranks[group_rank]);
    /* A rank may have closed its world because another one died. If one has died, that is the reason to report. */
    for (int i = 0; status != SHOAL_OK && i < group->peers.n_ranks; i++) {
        if (members_state(group->world->members, group->ranks[i]) == MEMBER_DEAD) {
            return world_check_rank(group->world, group->ranks[i]);
        }
    }
    return status;
}

static shoal_status name_segment(const struct shoal_group *group, const char *name,
                                 char full_name[SEGMENT_CHARACTERS])
{
    int n_characters = snprintf(full_name, SEGMENT_CHARACTERS, "%s" SEGMENT_SUFFIX, name, group->key);
    if (n_characters < 0 || n_characters >= SEGMENT_CHARACTERS) {
        return error_set(SHOAL_ERR_INTERNAL, "the name of a shared-memory segment is too long: %s", name);
    }
    return SHOAL_OK;
}

/* Asked while this rank waits for the server that holds the segment. */
static shoal_status check_failure(void *context)
{
    return group_failure(context);
}

shoal_status group_open_segment(struct shoal_group *group, const char *name, size_t bytes, bool is_sparse,
                                int64_t deadline_ns, struct segment **segment_out)
{
    char full_name[SEGMENT_CHARACTERS];
    TRY(name_segment(group, name, full_name));
    const struct client_wait wait = {
        .deadline_ns = deadline_ns, .check = check_failure, .check_context = group};
    return (is_sparse ? segments_open_sparse : segments_open)(group->world->client, group->peers.holder,
                                                              full_name, bytes, &wait, segment_out);
}

static shoal_status open_segment(void *context, const char *name, size_t bytes, int64_t deadline_ns,
                                 struct segment **segment_out)
{
    return group_open_segment(context, name, bytes, /*is_sparse=*/false, deadline_ns, segment_out);
}

static shoal_status drop_segment(void *context, const char *name, int64_t deadline_ns)
{
    struct shoal_group *group = context;
    char full_name[SEGMENT_CHARACTERS];
    TRY(name_segment(group, name, full_name));
    return segments_drop(group->world->client, group->peers.holder, full_name, deadline_ns);
}

/*
 * Agrees with the other members on the group's generation. The first member's server keeps the first number that a
 * member proposes, until the group is closed. A member proposes a number that no other group of its own has.
 */
static shoal_status find_generation(void *context, int64_t deadline_ns, uint64_t *number_out)
{
    struct shoal_group *group = context;
    struct groups *groups = group->world->groups;
    const struct client_wait wait = {
        .deadline_ns = deadline_ns, .check = check_failure, .check_context = group};
    /* Relaxed, here and below: numbers that stand for themselves. */
    uint64_t number = atomic_load_explicit(&group->generation, memory_order_relaxed);
    if (number == 0) {
        uint64_t own[2] = {atomic_fetch_add_explicit(&groups->n_generations, 1, memory_order_relaxed) + 1,
                           (uint64_t)group->world->rank};
        uint64_t proposed = hash_bytes(3, own, sizeof own) | 1;
        TRY(numbers_agree(group->world->client, group->ranks[0], group->key, proposed, &wait, &number));
        atomic_store_explicit(&group->generation, number, memory_order_relaxed);
    }
    *number_out = number;
    return SHOAL_OK;
}

static shoal_status check_parent(void *context)
{
    const struct shoal_group *group = context;
    return group_failure(group->parent);
}

/* Called when the last reference to the group is gone. */
static void destroy_group(struct closable *closable)
{
    struct shoal_group *group = (struct shoal_group *)closable;
    mem_free(group->key);
    mem_free(group->tag);
    mem_free(group->ranks);
    mem_free((void *)group->has_abandoned);
    mem_free(group->name);
    mem_free(group);
}

/*
 * Frees everything but the texts and the ranks. These are freed with the last reference, which recordings, windows and
 * meshes may hold.
 */
static void free_group(struct shoal_group *group, const struct group_ending *ending)
{
    if (!group) {
        return;
    }
    /* Callbacks of what is cancelled below must not start anything on this group. */
    closable_shut(&group->closable);
    p2p_free(group_p2p(group), ending->what);
    /* Relaxed: nobody uses the group any more. */
    atomic_store_explicit(&group->p2p, NULL, memory_order_relaxed);
    lane_free(group->lane, ending->what, ending->told);
    recorder_free(group->recorder);
    (void)pthread_mutex_destroy(&group->p2p_connect);
    group->lane = NULL;
    group->recorder = NULL;
    closable_close(&group->closable);
}

static const struct group_ending with_world = {.what = "world was closed"};
static const struct group_ending not_made = {.what = "group was not made"};

/* What identifies a group. */
struct identity {
    const int *ranks;
    int n_ranks;
    /* For groups of the program. */
    const char *tag;
    /* For lanes. */
    struct shoal_group *parent;
    const char *word;
};

static void create_texts(struct shoal_group *group, const struct identity *identity)
{
    const struct shoal_group *parent = identity->parent;
    if (!parent) {
        group->tag = mem_copy_string(identity->tag);
        group->key = create_key(group->world, identity->ranks, identity->n_ranks, identity->tag);
        group->name = create_name(identity->ranks, identity->n_ranks, identity->tag);
        return;
    }
    /* No other group has the parent's key, and no tag contains the mark. So the lane's key is unique too. */
    group->tag = join(parent->tag, GROUP_LANE_MARK, identity->word);
    group->key = join(parent->key, GROUP_LANE_MARK, identity->word);
    group->name = join(parent->name, ", lane ", identity->word);
}

static const struct part_calls part_calls = {.failure = group_failure,
                                             .report = group_report_failure,
                                             .note = group_note_failure,
                                             .poison = group_poison,
                                             .check_death = group_check_death};

static shoal_status create_parts(struct shoal_group *group, const struct identity *identity)
{
    size_t bytes = (size_t)identity->n_ranks * sizeof *identity->ranks;
    group->ranks = mem_alloc(bytes);
    group->has_abandoned = mem_alloc_zeroed((size_t)identity->n_ranks, sizeof *group->has_abandoned);
    create_texts(group, identity);
    group->recorder = recorder_create();
    group->part = (struct part){.closable = &group->closable,
                                .peers = &group->peers,
                                .recorder = group->recorder,
                                .works = group->world->works,
                                .n_forks = group->world->n_forks,
                                .is_world = group->key && strcmp(group->key, GROUP_KEY_WORLD) == 0,
                                .p2p = &group->p2p,
                                .calls = &part_calls,
                                .group = group};
    group->lane = lane_create(&group->part);
    if (!group->ranks || !group->has_abandoned || !group->tag || !group->key || !group->name ||
        !group->recorder || !group->lane) {
        return SHOAL_ERR_NO_MEMORY;
    }
    memcpy(group->ranks, identity->ranks, bytes);
    return SHOAL_OK;
}

shoal_status group_choose_transport(struct shoal_group *group)
{
    struct transport_choice choice;
    TRY(transports_choose(group->world, group->ranks, group->peers.n_ranks, group->name, &choice));
    group->peers.transport = choice.transport;
    group->peers.state = choice.state;
    group->peers.world = choice.world;
    group->peers.holder = choice.holder;
    group->n_local = choice.n_local;
    group->peers.may_spin = group->world->may_spin;
    return SHOAL_OK;
}

/* Makes a group. The arguments were checked, and there is no such group yet. */
static shoal_status create_group(struct shoal_world *world, const struct identity *identity,
                                 struct shoal_group **group_out)
{
    struct shoal_group *group = mem_alloc_zeroed(1, sizeof *group);
    if (!group) {
        return SHOAL_ERR_NO_MEMORY;
    }
    struct shoal_group *parent = identity->parent;
    closable_init(&group->closable, "group", "its world was closed", destroy_group);
    (void)pthread_mutex_init(&group->p2p_connect, NULL);
    group->world = world;
    group->parent = parent;
    atomic_init(&group->own_timeout_s, world->timeout_s);
    group->timeout_s = parent ? parent->timeout_s : &group->own_timeout_s;
    shoal_status status = create_parts(group, identity);
    if (status != SHOAL_OK) {
        free_group(group, &not_made);
        return status;
    }
    group->closable.name = group->name;
    group->peers = (struct transport_peers){.rank = find_rank(group->ranks, identity->n_ranks, world->rank),
                                            .n_ranks = identity->n_ranks,
                                            .world_ranks = group->ranks,
                                            .key = group->key,
                                            .name = group->name,
                                            .timeout_s = group->timeout_s,
                                            .may_spin = world->may_spin,
                                            .regions = world->regions,
                                            .context = group,
                                            .check_member = check_member,
                                            .check_abandoned = group_check_abandoned,
                                            .check_parent = parent ? check_parent : NULL,
                                            .open_segment = open_segment,
                                            .drop_segment = drop_segment,
                                            .generation = find_generation};
    status = group_choose_transport(group);
    if (status != SHOAL_OK) {
        free_group(group, &not_made);
        return status;
    }
    *group_out = group;
    return SHOAL_OK;
}

struct groups *groups_create(void (*dump)(struct shoal_world *world))
{
    struct groups *groups = mem_alloc_zeroed(1, sizeof *groups);
    if (groups) {
        groups->dump = dump;
        (void)pthread_mutex_init(&groups->mutex, NULL);
    }
    return groups;
}

/* Keeps a closed group, so that calls with its handle get an error, until GROUPS_CLOSED_KEPT others were closed. If
   `group` is NULL, the oldest is only forgotten. */
static void keep_closed(struct groups *groups, struct shoal_group *group)
{
    struct shoal_group **place = &groups->closed[groups->n_closed++ % GROUPS_CLOSED_KEPT];
    struct shoal_group *oldest = *place;
    *place = group;
    if (oldest) {
        closable_unref(&oldest->closable);
    }
}

void groups_close(struct groups *groups)
{
    if (!groups) {
        return;
    }
    (void)pthread_mutex_lock(&groups->mutex);
    struct shoal_group *first = groups->first;
    groups->first = NULL;
    groups->is_closed = true;
    (void)pthread_mutex_unlock(&groups->mutex);
    /* Callbacks of what one group cancels may use the handle of another that was closed before. So all handles stay
       valid meanwhile. */
    for (struct shoal_group *group = first; group; group = group->next) {
        closable_ref(&group->closable);
    }
    /* Newest first: lanes before their parents. */
    for (struct shoal_group *group = first; group; group = group->next) {
        free_group(group, &with_world);
    }
    while (first) {
        struct shoal_group *group = first;
        first = group->next;
        closable_unref(&group->closable);
    }
    for (size_t i = 0; i < GROUPS_CLOSED_KEPT; i++) {
        keep_closed(groups, NULL);
    }
}

void groups_free(struct groups *groups)
{
    if (!groups) {
        return;
    }
    groups_close(groups);
    groups_forget_news(groups);
    groups_forget_abandoned(groups);
    calls_forget(groups);
    (void)pthread_mutex_destroy(&groups->mutex);
    mem_free(groups);
}

struct shoal_group *groups_walk(struct groups *groups)
{
    (void)pthread_mutex_lock(&groups->mutex);
    groups->n_walkers++;
    struct shoal_group *first = groups->first;
    (void)pthread_mutex_unlock(&groups->mutex);
    return first;
}

void groups_end_walk(struct groups *groups)
{
    (void)pthread_mutex_lock(&groups->mutex);
    groups->n_walkers--;
    (void)pthread_mutex_unlock(&groups->mutex);
}

shoal_group *group_find(shoal_world *world, const char *name)
{
    struct groups *groups = world->groups;
    (void)pthread_mutex_lock(&groups->mutex);
    struct shoal_group *group = groups->first;
    while (group && (group->parent || strcmp(group->key, name) != 0)) {
        group = group->next;
    }
    (void)pthread_mutex_unlock(&groups->mutex);
    return group;
}

static bool is_or_is_under(const struct shoal_group *group, const struct shoal_group *ancestor)
{
    while (group && group != ancestor) {
        group = group->parent;
    }
    return group != NULL;
}

/* Under the mutex: takes the group and the lanes over it off the list. Returns them, newest first. */
static struct shoal_group *unlink_family(struct groups *groups, const struct shoal_group *ancestor)
{
    struct shoal_group *family = NULL;
    struct shoal_group **last = &family;
    for (struct shoal_group **link = &groups->first; *link;) {
        struct shoal_group *group = *link;
        if (is_or_is_under(group, ancestor)) {
            *link = group->next;
            group->next = NULL;
            *last = group;
            last = &group->next;
        } else {
            link = &group->next;
        }
    }
    return family;
}

shoal_status groups_remove(struct groups *groups, struct shoal_group *ancestor,
                           const struct group_ending *ending, int64_t deadline_ns)
{
    (void)pthread_mutex_lock(&groups->mutex);
    while (groups->n_walkers > 0) {
        (void)pthread_mutex_unlock(&groups->mutex);
        if (clock_now_ns() >= deadline_ns) {
            return error_set(SHOAL_ERR_TIMEOUT, "a call of shoal_world_dump still reads group %s",
                             ancestor->name);
        }
        wait_sleep(WALK_NAP_NS);
        (void)pthread_mutex_lock(&groups->mutex);
    }
    groups_keep_heard(groups, ancestor);
    struct shoal_group *family = unlink_family(groups, ancestor);
    if (ending->is_abandoned) {
        groups_keep_abandoned(groups, ancestor, family);
    } else if (group_failure(ancestor) == SHOAL_OK) {
        groups_keep_marks(groups, ancestor); /* the next of a name that has failed has failed, too */
    }
    (void)pthread_mutex_unlock(&groups->mutex);
    while (family) {
        struct shoal_group *group = family;
        family = group->next;
        group->closable.reason = ending->reason;
        closable_ref(&group->closable);
        free_group(group, ending);
        (void)pthread_mutex_lock(&groups->mutex);
        keep_closed(groups, group);
        (void)pthread_mutex_unlock(&groups->mutex);
    }
    return SHOAL_OK;
}

/* Returns the next among the group and the lanes over it, after `before`; the first if that is NULL. Returns NULL if
   there is none. */
static struct shoal_group *next_of(struct groups *groups, const struct shoal_group *ancestor,
                                   const struct shoal_group *before)
{
    (void)pthread_mutex_lock(&groups->mutex);
    struct shoal_group *group = before ? before->next : groups->first;
    while (group && !is_or_is_under(group, ancestor)) {
        group = group->next;
    }
    (void)pthread_mutex_unlock(&groups->mutex);
    return group;
}

shoal_status groups_each_of(struct shoal_group *ancestor,
                            shoal_status (*visit)(struct shoal_group *group, int64_t deadline_ns),
                            int64_t deadline_ns)
{
    struct groups *groups = ancestor->world->groups;
    for (struct shoal_group *group = next_of(groups, ancestor, NULL); group;
         group = next_of(groups, ancestor, group)) {
        TRY(visit(group, deadline_ns));
    }
    return SHOAL_OK;
}

shoal_status group_drop_names(struct shoal_group *group, int64_t deadline_ns)
{
    char suffix[SEGMENT_CHARACTERS];
    if (group->peers.holder == group->world->rank) {
        (void)snprintf(suffix, sizeof suffix, SEGMENT_SUFFIX, group->key);
        TRY(segments_drop_all(group->world->client, group->peers.holder, suffix, deadline_ns));
    }
    /* Relaxed: this rank has connected before it closes. */
    if (group->peers.rank == 0 && atomic_load_explicit(&group->generation, memory_order_relaxed) != 0) {
        TRY(numbers_forget(group->world->client, group->ranks[0], group->key, deadline_ns));
    }
    return SHOAL_OK;
}

static bool is_known_by(const struct shoal_group *group, const struct identity *identity)
{
    if (identity->parent) {
        return group->parent == identity->parent &&
               strcmp(group->key + strlen(group->parent->key) + strlen(GROUP_LANE_MARK), identity->word) == 0;
    }
    return !group->parent && group->peers.n_ranks == identity->n_ranks &&
           strcmp(group->tag, identity->tag) == 0 &&
           memcmp(group->ranks, identity->ranks, (size_t)identity->n_ranks * sizeof *identity->ranks) == 0;
}

/* Under the mutex. */
static shoal_status find_or_create(struct shoal_world *world, const struct identity *identity,
                                   struct shoal_group **group_out)
{
    struct groups *groups = world->groups;
    if (groups->is_closed) { /* called by a callback of what the world cancels */
        return error_set(SHOAL_ERR_STATE, "the world is being closed");
    }
    for (struct shoal_group *group = groups->first; group; group = group->next) {
        if (is_known_by(group, identity)) {
            *group_out = group;
            return SHOAL_OK;
        }
    }
    TRY(create_group(world, identity, group_out));
    shoal_status status = groups_check_abandoned(groups, *group_out);
    if (status != SHOAL_OK) {
        free_group(*group_out, &not_made);
        *group_out = NULL;
        return status;
    }
    groups_tell_news(groups, *group_out);
    groups_tell_abandoned(groups, *group_out);
    (*group_out)->next = groups->first;
    groups->first = *group_out;
    return SHOAL_OK;
}

static shoal_status obtain_group(struct shoal_world *world, const struct identity *identity,
                                 struct shoal_group **group_out)
{
    (void)pthread_mutex_lock(&world->groups->mutex);
    shoal_status status = find_or_create(world, identity, group_out);
    (void)pthread_mutex_unlock(&world->groups->mutex);
    return status;
}

shoal_status shoal_group_create(shoal_world *world, const int *ranks, int n_ranks, const char *tag,
                                shoal_group **group_out)
{
    error_clear();
    if (!world || !group_out) {
        return error_set(SHOAL_ERR_INVALID, "group_create: %s is NULL", world ? "group_out" : "world");
    }
    TRY(world_check_process(world));
    const char *known_tag = tag ? tag : "";
    TRY(check_tag(known_tag));
    TRY(check_ranks(world, ranks, n_ranks));
    const struct identity identity = {.ranks = ranks, .n_ranks = n_ranks, .tag = known_tag};
    struct shoal_group *group = NULL;
    groups_sweep_abandoned(world->groups, group_drop_names);
    TRY(obtain_group(world, &identity, &group));
    *group_out = group;
    return SHOAL_OK;
}

static int lane_depth(const struct shoal_group *group)
{
    int depth = 0;
    for (; group->parent; group = group->parent) {
        depth++;
    }
    return depth;
}

shoal_status group_create_lane(struct shoal_group *parent, int first, int n_ranks, const char *word,
                               struct shoal_group **lane_out)
{
    TRY(group_check_open(parent));
    char full_word[WORD_CHARACTERS];
    bool has_all = first == 0 && n_ranks == parent->peers.n_ranks;
    /* Lanes over different parts of a parent get different words: they have the part's place and length. */
    int length = has_all ? snprintf(full_word, sizeof full_word, "%s", word)
                         : snprintf(full_word, sizeof full_word, "%s %d+%d", word, first, n_ranks);
    if (length < 0 || (size_t)length >= sizeof full_word || lane_depth(parent) >= MAX_LANE_DEPTH) {
        return error_set(
            SHOAL_ERR_INTERNAL,
            "lane \"%s\" of group %s: the name is too long, or there are too many lanes in each other", word,
            parent->name);
    }
    const struct identity identity = {
        .ranks = parent->ranks + first, .n_ranks = n_ranks, .parent = parent, .word = full_word};
    TRY(obtain_group(parent->world, &identity, lane_out));
    /* Relaxed: a failure of the parent on this thread, later, sees it. One on another thread at this moment might as
       well have come before. */
    atomic_store_explicit(&parent->has_lanes, true, memory_order_relaxed);
    return SHOAL_OK;
}

shoal_status shoal_group_create_blocks(shoal_world *world, int block_ranks, const char *tag,
                                       shoal_group **group_out)
{
    error_clear();
    if (!world || !group_out) {
        return error_set(SHOAL_ERR_INVALID, "group_create_blocks: %s is NULL", world ? "group_out" : "world");
    }
    if (block_ranks < 1 || block_ranks > world->n_ranks || world->n_ranks % block_ranks != 0) {
        return error_set(SHOAL_ERR_INVALID,
                         "group_create_blocks: blocks of %d ranks do not divide a world of %d", block_ranks,
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

/* For the layers above --------------------------------------------------------------------------------- */

shoal_group *group_ref(shoal_group *group)
{
    if (group) {
        closable_ref(&group->closable);
    }
    return group;
}

void group_unref(shoal_group *group)
{
    if (group) {
        closable_unref(&group->closable);
    }
}

void group_hold(shoal_group *group)
{
    /* Relaxed, here and below: the number is only used to refuse a close, which comes after all uses. */
    atomic_fetch_add_explicit(&group->n_users, 1, memory_order_relaxed);
}

void group_let_go(shoal_group *group)
{
    atomic_fetch_sub_explicit(&group->n_users, 1, memory_order_relaxed);
}

const char *group_text(const shoal_group *group)
{
    return group->name;
}

int group_n_local(const shoal_group *group)
{
    return group->n_local;
}

bool group_has_peers(const shoal_group *group)
{
    return group->peers.transport->has_peers;
}

bool group_has_symmetric(const shoal_group *group, const void *data, size_t bytes)
{
    const struct transport_peers *peers = &group->peers;
    if (!group->world) {
        return true; /* a stand-in: the next call on it fails and says so */
    }
    struct regions *regions = group->world->regions;
    if (!regions || !group_has_peers(group) || peers->n_ranks == 1 || bytes == 0) {
        return true;
    }
    struct region_place place = regions_find(regions, data, bytes);
    return place.id != 0 && regions_cover(regions, place.id, group->ranks, peers->n_ranks);
}

int shoal_group_rank_of(const shoal_group *group, int world_rank)
{
    return group ? find_rank(group->ranks, group->peers.n_ranks, world_rank) : -1;
}
