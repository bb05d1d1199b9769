/* SPDX-License-Identifier: MIT */
/* The table of groups of a graph. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/lane/handles.h"
#include "graph/ir/graph.h"

static bool has_name(const void *context, const void *wanted, size_t value)
{
    const struct graph_group *group = map_pointer(value);
    (void)context;
    return strcmp(group->name, wanted) == 0;
}

static uint64_t hash_name(const char *name)
{
    return hash_bytes(0, name, strlen(name));
}

const struct graph_group *graph_find_group(const struct shoal_graph *graph, const char *name)
{
    size_t value;
    bool is_there = graph->n_groups > 0 &&
                    map_find(&graph->groups_by_name, hash_name(name), has_name, NULL, name, &value);
    return is_there ? map_pointer(value) : NULL;
}

static shoal_status check_name(const char *name)
{
    if (!name || !name[0]) {
        return error_set(SHOAL_ERR_INVALID, "name is %s", name ? "empty" : "NULL");
    }
    for (size_t i = 0; name[i]; i++) {
        char c = name[i];
        bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!is_letter && !(c >= '0' && c <= '9') && c != '_') {
            return error_set(SHOAL_ERR_INVALID,
                             "name \"%.64s\": character %zu is not a letter, a digit or '_'", name, i);
        }
    }
    return SHOAL_OK;
}

static int compare_ranks(const void *a, const void *b)
{
    int left = *(const int *)a;
    int right = *(const int *)b;
    return (left > right) - (left < right);
}

/* Checks the ranks. `sorted` has room for all of them. */
static shoal_status check_ranks(const int *ranks, size_t n_ranks, int *sorted)
{
    memcpy(sorted, ranks, n_ranks * sizeof(sorted[0]));
    qsort(sorted, n_ranks, sizeof(sorted[0]), compare_ranks);
    if (sorted[0] < 0) {
        return error_set(SHOAL_ERR_INVALID, "rank %d is negative", sorted[0]);
    }
    for (size_t i = 1; i < n_ranks; i++) {
        if (sorted[i] == sorted[i - 1]) {
            return error_set(SHOAL_ERR_INVALID, "rank %d is given twice", sorted[i]);
        }
    }
    return SHOAL_OK;
}

static shoal_status check_group(const char *name, const int *ranks, size_t n_lists, size_t size)
{
    size_t n_ranks;
    TRY(check_name(name));
    if (n_lists == 0 || size == 0 || !mem_multiply(n_lists, size, &n_ranks) || n_ranks > INT_MAX) {
        return error_set(SHOAL_ERR_INVALID, "%zu lists of %zu ranks: 1 to %d ranks expected", n_lists, size,
                         INT_MAX);
    }
    if (!ranks) {
        return error_set(SHOAL_ERR_INVALID, "ranks is NULL");
    }
    int *sorted = mem_alloc(n_ranks * sizeof(*sorted));
    if (!sorted) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = check_ranks(ranks, n_ranks, sorted);
    mem_free(sorted);
    return status;
}

static shoal_status append(struct shoal_graph *graph, const char *name, const int *ranks, size_t n_lists,
                           size_t size)
{
    struct graph_group *group = arena_alloc(&graph->arena, 1, sizeof(*group));
    int *copy = group ? arena_alloc(&graph->arena, n_lists * size, sizeof(*copy)) : NULL;
    const char *name_copy = copy ? arena_string(&graph->arena, name) : NULL;
    if (!name_copy) {
        return SHOAL_ERR_NO_MEMORY;
    }
    memcpy(copy, ranks, n_lists * size * sizeof(copy[0]));
    *group = (struct graph_group){
        .name = name_copy, .ranks = copy, .n_lists = n_lists, .size = size, .number = graph->n_groups};
    TRY(map_reserve(&graph->groups_by_name, 1));
    TRY(group_create_stand_in(name, (int)size, &group->stand_in));
    map_put(&graph->groups_by_name, hash_name(name), (size_t)map_key(group));
    *(graph->last_group ? &graph->last_group->next : &graph->groups) = group;
    graph->last_group = group;
    graph->n_groups++;
    return SHOAL_OK;
}

static shoal_status add_group(struct shoal_graph *graph, const char *name, const int *ranks, size_t n_lists,
                              size_t size)
{
    TRY(check_group(name, ranks, n_lists, size));
    const struct graph_group *there = graph_find_group(graph, name);
    if (!there) {
        return append(graph, name, ranks, n_lists, size);
    }
    if (there->n_lists != n_lists || there->size != size ||
        memcmp(there->ranks, ranks, n_lists * size * sizeof(ranks[0])) != 0) {
        return error_set(SHOAL_ERR_INVALID, "the graph has a group \"%.64s\" of other ranks already", name);
    }
    return SHOAL_OK;
}

shoal_status shoal_graph_add_group(shoal_graph *graph, const char *name, const int *ranks, size_t n_lists,
                                   size_t size)
{
    error_clear();
    shoal_status status =
        graph ? add_group(graph, name, ranks, n_lists, size) : error_set(SHOAL_ERR_INVALID, "graph is NULL");
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "graph_add_group");
}
