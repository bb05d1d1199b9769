/* SPDX-License-Identifier: MIT */
/*
 * Finds groups by name and by lists of ranks. A group is identified by its ranks and its tag, and making one is local.
 * So there is no registry that ranks would have to fill in the same order: the name contains all that is needed, and
 * asking twice, on any thread, returns the same group.
 */
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/lane/handles.h"
#include "shoal/group.h"

/* Comes first, because in a forked child other state may be half changed. */
static shoal_status check_world(const shoal_world *world)
{
    return world ? world_check(world) : error_set(SHOAL_ERR_INVALID, "world is NULL");
}

/* Names ------------------------------------------------------------------------------------------------ */

/* How a name is shown in error texts. */
#define NAME_SHOWN "\"%.80s\""

static shoal_status fail_name(const char *name, const char *at)
{
    return error_set(SHOAL_ERR_INVALID,
                     NAME_SHOWN
                     " is not the name of a group, from character %zu on: expected \"world\", or ranks "
                     "joined by ',', then, if there is a tag, '/' and the tag: \"0,2\", \"0,2/tag\"",
                     name, (size_t)(at - name));
}

static bool is_digit(char character)
{
    return character >= '0' && character <= '9';
}

/* Reads a rank, and moves *at behind it. */
static shoal_status read_rank(const char *name, const char **at, int *rank_out)
{
    const char *start = *at;
    int rank = 0;
    for (; is_digit(**at); (*at)++) {
        int digit = **at - '0';
        if (rank > (INT_MAX - digit) / 10) {
            return error_set(SHOAL_ERR_INVALID, "name " NAME_SHOWN ": the rank at character %zu is too large",
                             name, (size_t)(start - name));
        }
        rank = rank * 10 + digit;
    }
    if (*at == start || (**at != ',' && **at != '/' && **at != '\0')) {
        return fail_name(name, *at);
    }
    *rank_out = rank;
    return SHOAL_OK;
}

/* Reads ranks up to the tag or the end. Counts all of them, and stores as many as `room` allows. */
static shoal_status read_ranks(const char *name, int *ranks, size_t room, size_t *n_ranks_out)
{
    const char *at = name;
    for (size_t i = 0;; i++) {
        int rank = 0;
        TRY(read_rank(name, &at, &rank));
        if (i < room) {
            ranks[i] = rank;
        }
        if (*at != ',') {
            *n_ranks_out = i + 1;
            return SHOAL_OK;
        }
        at++;
    }
}

static shoal_status create_listed(shoal_world *world, const char *name, const char *tag,
                                  shoal_group **group_out)
{
    size_t n_ranks;
    TRY(read_ranks(name, NULL, 0, &n_ranks));
    if (n_ranks > (size_t)shoal_world_n_ranks(world)) {
        return error_set(SHOAL_ERR_INVALID,
                         "name " NAME_SHOWN ": the group has %zu ranks, but the world has %d", name, n_ranks,
                         shoal_world_n_ranks(world));
    }
    int *ranks = mem_alloc(n_ranks * sizeof *ranks);
    if (!ranks) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = read_ranks(name, ranks, n_ranks, &n_ranks);
    if (status == SHOAL_OK) {
        status = shoal_group_create(world, ranks, (int)n_ranks, tag, group_out);
    }
    mem_free(ranks);
    return status;
}

/* "5000 ranks 0123...": shoal_group_name of a group with more ranks than a name can hold. */
static bool has_hash(const char *name)
{
    size_t n_digits = strspn(name, "0123456789");
    return n_digits > 0 && strncmp(name + n_digits, GROUP_KEY_HASHED, strlen(GROUP_KEY_HASHED)) == 0;
}

/* Makes the group of a name that no group of this rank has yet. */
static shoal_status create_named(shoal_world *world, const char *name, shoal_group **group_out)
{
    size_t list_length = strcspn(name, "/");
    const char *tag = name[list_length] ? name + list_length + 1 : "";
    if (list_length == strlen(GROUP_KEY_WORLD) && memcmp(name, GROUP_KEY_WORLD, list_length) == 0) {
        return shoal_group_create_blocks(world, shoal_world_n_ranks(world), tag, group_out);
    }
    if (has_hash(name)) {
        return error_set(SHOAL_ERR_INVALID,
                         NAME_SHOWN " is not a group of this rank yet, and the name has only a hash of its "
                                    "ranks: create it first, with shoal_group_create",
                         name);
    }
    return create_listed(world, name, tag, group_out);
}

static shoal_status find_by_name(shoal_world *world, const char *name, shoal_group **group_out)
{
    TRY(check_world(world));
    if (!name) {
        return error_set(SHOAL_ERR_INVALID, "name is NULL");
    }
    *group_out = name[0] ? group_find(world, name) : shoal_world_group(world);
    return *group_out ? SHOAL_OK : create_named(world, name, group_out);
}

shoal_status shoal_group_find(shoal_world *world, const char *name, shoal_group **group_out)
{
    error_clear();
    if (!group_out) {
        return error_set(SHOAL_ERR_INVALID, "group_find: group_out is NULL");
    }
    shoal_group *group = NULL;
    shoal_status status = find_by_name(world, name, &group);
    if (status != SHOAL_OK) {
        return error_prefix(status, "group_find");
    }
    *group_out = group;
    return SHOAL_OK;
}

/* Lists of ranks --------------------------------------------------------------------------------------- */

static shoal_status check_lengths(const int *const *lists, const int *n_ranks, int n_lists)
{
    if (!lists || !n_ranks) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL", lists ? "n_ranks" : "lists");
    }
    if (n_lists < 1) {
        return error_set(SHOAL_ERR_INVALID, "n_lists is %d, at least 1 expected", n_lists);
    }
    for (int i = 0; i < n_lists; i++) {
        if (n_ranks[i] != n_ranks[0]) {
            return error_set(SHOAL_ERR_INVALID,
                             "group sizes must be identical: list 0 has length %d, list %d has length %d",
                             n_ranks[0], i, n_ranks[i]);
        }
        if (n_ranks[i] < 1) {
            return error_set(SHOAL_ERR_INVALID, "list %d has length %d: a group needs ranks", i, n_ranks[i]);
        }
        if (!lists[i]) {
            return error_set(SHOAL_ERR_INVALID, "lists[%d] is NULL", i);
        }
    }
    return SHOAL_OK;
}

/* `seen` has a place for every rank of the world: 1 + the list it is in, or 0. */
static shoal_status mark_ranks(const shoal_world *world, const int *ranks, int n_ranks, int list, int *seen)
{
    for (int i = 0; i < n_ranks; i++) {
        int rank = ranks[i];
        if (rank < 0 || rank >= shoal_world_n_ranks(world)) {
            return error_set(SHOAL_ERR_INVALID, "rank %d in list %d is outside of the world of %d ranks",
                             rank, list, shoal_world_n_ranks(world));
        }
        if (seen[rank] == list + 1) {
            return error_set(SHOAL_ERR_INVALID, "rank %d is twice in list %d", rank, list);
        }
        if (seen[rank]) {
            return error_set(SHOAL_ERR_INVALID,
                             "rank %d is in list %d and in list %d: a rank can be in one list only", rank,
                             seen[rank] - 1, list);
        }
        seen[rank] = list + 1;
    }
    return SHOAL_OK;
}

/* All lists are checked, not only the caller's, so that what is wrong is wrong on every rank. */
static shoal_status pick_list(const shoal_world *world, const int *const *lists, int n_ranks, int n_lists,
                              int *list_out)
{
    int *seen = mem_alloc_zeroed((size_t)shoal_world_n_ranks(world), sizeof *seen);
    if (!seen) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = SHOAL_OK;
    for (int i = 0; i < n_lists && status == SHOAL_OK; i++) {
        status = mark_ranks(world, lists[i], n_ranks, i, seen);
    }
    *list_out = seen[shoal_world_rank(world)] - 1;
    mem_free(seen);
    TRY(status);
    return *list_out >= 0 ? SHOAL_OK
                          : error_set(SHOAL_ERR_INVALID, "rank %d is in none of the %d lists",
                                      shoal_world_rank(world), n_lists);
}

static shoal_status find_by_rank_lists(shoal_world *world, const int *const *lists, const int *n_ranks,
                                       int n_lists, const char *tag, shoal_group **group_out)
{
    TRY(check_world(world));
    TRY(check_lengths(lists, n_ranks, n_lists));
    int list;
    TRY(pick_list(world, lists, n_ranks[0], n_lists, &list));
    return shoal_group_create(world, lists[list], n_ranks[0], tag, group_out);
}

shoal_status shoal_group_create_lists(shoal_world *world, const int *const *lists, const int *n_ranks,
                                      int n_lists, const char *tag, shoal_group **group_out)
{
    error_clear();
    if (!group_out) {
        return error_set(SHOAL_ERR_INVALID, "group_create_lists: group_out is NULL");
    }
    shoal_group *group = NULL;
    shoal_status status = find_by_rank_lists(world, lists, n_ranks, n_lists, tag, &group);
    if (status != SHOAL_OK) {
        return error_prefix(status, "group_create_lists");
    }
    *group_out = group;
    return SHOAL_OK;
}
