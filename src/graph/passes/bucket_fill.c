/* SPDX-License-Identifier: MIT */
/* Fills buckets by one walk in program order. graph/passes/bucket.h says how, and why that is right. */
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/try.h"
#include "graph/passes/bucket.h"

#define BYTES_PER_MB 1048576.0

/* A key and its open bucket. */
struct line {
    uint32_t example; /* a member with this key */
    struct bucket bucket;
    size_t index; /* of the bucket: so many of this key have been closed */
    double bytes;
    uint32_t limit; /* the smallest limit of its members */
};

struct filling {
    struct buckets *buckets;
    const struct bucket_rules *rules;
    const struct bucket_limit *limit;
    /* By id: the newest member that the node depends on, index + 1; 0 if there is none. */
    uint32_t *needs;
    uint32_t *group_needs; /* by group: the greatest need of its starts so far */
    struct line *lines;
    size_t n_lines;
    size_t line_capacity;
    size_t last_line; /* the line that was found last: most members have the same key as the one before */
    struct map lines_by_key;
};

static uint32_t greater(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Groups ------------------------------------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static shoal_status sort_groups(struct buckets *buckets)
{
    for (const struct graph_group *group = buckets->graph->groups; group; group = group->next) {
        buckets->n_groups++;
    }
    buckets->groups = mem_alloc_zeroed(buckets->n_groups + 1, sizeof(buckets->groups[0]));
    if (!buckets->groups) {
        return SHOAL_ERR_NO_MEMORY;
    }
    size_t n_groups = 0;
    for (const struct graph_group *group = buckets->graph->groups; group; group = group->next) {
        buckets->groups[n_groups++] = group->name;
    }
    qsort(buckets->groups, n_groups, sizeof(buckets->groups[0]), compare_names);
    return SHOAL_OK;
}

size_t buckets_group_of(const struct buckets *buckets, const struct shoal_node *start)
{
    for (size_t i = 0; i < start->n_args; i++) {
        if (start->args[i].kind == SHOAL_ARG_GROUP) {
            const char **found = bsearch(&start->args[i].as.string, buckets->groups, buckets->n_groups,
                                         sizeof(buckets->groups[0]), compare_names);
            return found ? (size_t)(found - buckets->groups) : buckets->n_groups;
        }
    }
    return buckets->n_groups;
}

/* Keys --------------------------------------------------------------------------------------------------- */

static shoal_status close_bucket(struct filling *filling, struct line *line)
{
    struct buckets *buckets = filling->buckets;
    if (line->bucket.n_members == 0) {
        return SHOAL_OK;
    }
    TRY(mem_grow((void **)&buckets->buckets, &buckets->bucket_capacity, buckets->n_buckets + 1,
                 sizeof(buckets->buckets[0])));
    buckets->buckets[buckets->n_buckets++] = line->bucket;
    buckets->n_joined += line->bucket.n_members > 1 ? 1 : 0;
    line->bucket.n_members = 0;
    line->index++;
    return SHOAL_OK;
}

static shoal_status close_all(struct filling *filling)
{
    for (size_t i = 0; i < filling->n_lines; i++) {
        TRY(close_bucket(filling, &filling->lines[i]));
    }
    return SHOAL_OK;
}

/* For map_find: whether the line has the key of the member. */
static bool has_key(const void *context, const void *member, size_t line)
{
    const struct filling *filling = context;
    const struct bucket_member *example = &filling->buckets->members[filling->lines[line].example];
    return bucket_key_is_same(&example->key, &((const struct bucket_member *)member)->key);
}

static shoal_status add_line(struct filling *filling, uint32_t index)
{
    TRY(mem_grow((void **)&filling->lines, &filling->line_capacity, filling->n_lines + 1,
                 sizeof(filling->lines[0])));
    filling->last_line = filling->n_lines;
    filling->lines[filling->n_lines++] = (struct line){.example = index};
    return SHOAL_OK;
}

/* Finds the line of a member whose key is not that of the last line, or makes it. */
static shoal_status change_line(struct filling *filling, uint32_t index)
{
    if (!filling->rules->has_open_keys) { /* there is one line */
        TRY(close_all(filling));
        filling->n_lines = 0;
        return add_line(filling, index);
    }
    uint64_t hash = bucket_key_hash(&filling->buckets->members[index].key);
    if (map_find(&filling->lines_by_key, hash, has_key, filling, &filling->buckets->members[index],
                 &filling->last_line)) {
        return SHOAL_OK;
    }
    TRY(map_reserve(&filling->lines_by_key, 1));
    TRY(add_line(filling, index));
    map_put(&filling->lines_by_key, hash, filling->last_line);
    return SHOAL_OK;
}

/* Members ------------------------------------------------------------------------------------------------ */

shoal_status buckets_add(struct buckets *buckets, const struct bucket_member *member)
{
    TRY(mem_grow((void **)&buckets->members, &buckets->member_capacity, buckets->n_members + 1,
                 sizeof(buckets->members[0])));
    buckets->members[buckets->n_members++] = *member;
    buckets->member_of[member->start->id] = (uint32_t)buckets->n_members;
    buckets->member_of[member->wait->id] = (uint32_t)buckets->n_members;
    return SHOAL_OK;
}

static double get_limit(const struct filling *filling, const struct line *line)
{
    return filling->limit->mb(filling->limit->context, line->index) * BYTES_PER_MB;
}

/* Whether the member cannot join the open bucket. If an input of the bucket is overwritten before the member's start,
   the walk has passed that writer already, so the bucket must not get further dependencies. */
static bool is_apart(const struct filling *filling, const struct line *line,
                     const struct bucket_member *member, uint32_t need)
{
    return need > line->bucket.first ||
           line->limit < accesses_position(&filling->buckets->accesses, member->start) ||
           (!filling->rules->is_overfilled && line->bytes + (double)member->bytes > get_limit(filling, line));
}

static void join(struct filling *filling, struct line *line, uint32_t index, uint32_t need)
{
    struct bucket_member *members = filling->buckets->members;
    struct bucket_member *member = &members[index];
    if (line->bucket.n_members == 0) {
        line->bucket.first = index;
        line->bytes = 0;
        line->limit = UINT32_MAX;
    } else {
        members[line->bucket.last].next = index + 1;
    }
    struct bucket_member *first = &members[line->bucket.first];
    first->bucket_need = greater(first->bucket_need, need);
    member->first = line->bucket.first;
    line->bucket.last = index;
    line->bucket.n_members++;
    line->bytes += (double)member->bytes;
    line->limit = member->limit < line->limit ? member->limit : line->limit;
}

static shoal_status take_member(struct filling *filling, uint32_t index, uint32_t need)
{
    const struct bucket_member *member = &filling->buckets->members[index];
    if (filling->n_lines == 0 || !has_key(filling, &filling->buckets->members[index], filling->last_line)) {
        TRY(change_line(filling, index));
    }
    struct line *line = &filling->lines[filling->last_line];
    if (line->bucket.n_members > 0 && is_apart(filling, line, member, need)) {
        TRY(close_bucket(filling, line));
    }
    join(filling, line, index, need);
    bool is_full = filling->rules->is_overfilled && line->bytes >= get_limit(filling, line);
    return is_full ? close_bucket(filling, line) : SHOAL_OK;
}

/* Needs -------------------------------------------------------------------------------------------------- */

/* Returns the newest member that the writer of an input depends on because of the bucket that reads the input. */
static uint32_t find_bucket_need(const struct buckets *buckets, const struct shoal_node *writer,
                                 uint32_t storage)
{
    const struct accesses *accesses = &buckets->accesses;
    uint32_t need = 0;
    uint32_t entry = accesses_behind(accesses, storage, accesses_position(accesses, writer) - 1);
    while (entry-- > accesses->first[storage] && !accesses->entries[entry].is_write) {
        uint32_t next = buckets->readers[accesses->entries[entry].node->id];
        for (; next > 0; next = buckets->members[next - 1].same_reader) {
            need = greater(need, buckets->members[buckets->members[next - 1].first].bucket_need);
        }
    }
    return need;
}

static uint32_t find_need(const struct filling *filling, const struct shoal_node *node)
{
    const struct buckets *buckets = filling->buckets;
    struct shoal_node *const *before;
    size_t n_before;
    uint32_t need = 0;
    for (size_t i = 0; i < node->n_inputs; i++) {
        need = greater(need, filling->needs[node->inputs[i]->id]);
    }
    effects_before_strict(buckets->accesses.effects, node, &before, &n_before);
    for (size_t i = 0; i < n_before; i++) {
        need = greater(need, filling->needs[before[i]->id]);
    }
    const struct effects_access *found = NULL;
    size_t n_found = 0;
    if (buckets->readers) {
        effects_accesses(buckets->accesses.effects, node, &found, &n_found);
    }
    for (size_t i = 0; i < n_found; i++) {
        if (accesses_is_write(&found[i])) {
            need = greater(need, find_bucket_need(buckets, node, found[i].storage));
        }
    }
    return need;
}

/* Returns what the need of a start becomes by the order of its group. That order gives nothing to a member: if it does
   not join the open bucket, its wait stands after the waits of that bucket anyway. */
static uint32_t follow_group(struct filling *filling, const struct shoal_node *start, uint32_t need)
{
    uint32_t *of_group = &filling->group_needs[buckets_group_of(filling->buckets, start)];
    need = filling->buckets->member_of[start->id] == 0 ? greater(need, *of_group) : need;
    *of_group = greater(*of_group, need);
    return need;
}

/* The walk ----------------------------------------------------------------------------------------------- */

/* Whether the op has side effects (point-to-point ops, for example), which must keep their order for reasons that
   arguments and memory do not show. */
static bool has_own_order(const struct shoal_node *node)
{
    return (node_flags(node) & (SHOAL_OP_SIDE_EFFECT | SHOAL_OP_WAIT)) == SHOAL_OP_SIDE_EFFECT;
}

static shoal_status fill_node(struct filling *filling, const struct shoal_node *node)
{
    const struct bucket_rules *rules = filling->rules;
    uint32_t number = filling->buckets->member_of[node->id];
    const struct bucket_member *member = number > 0 ? &filling->buckets->members[number - 1] : NULL;
    uint32_t *need = &filling->needs[node->id];
    *need = find_need(filling, node);
    if (rules->keeps_group_order && bucket_is_start(node)) {
        *need = follow_group(filling, node, *need);
    }
    if (rules->ends_at_effects && has_own_order(node)) {
        TRY(close_all(filling));
    }
    if (member && node == (rules->is_by_start ? member->start : member->wait)) {
        TRY(take_member(filling, number - 1,
                        rules->is_by_start ? filling->needs[member->reader->id] : *need));
    }
    if (member && node == member->wait) {
        *need = greater(*need, number);
    }
    return SHOAL_OK;
}

static int compare_buckets(const void *a, const void *b)
{
    uint32_t left = ((const struct bucket *)a)->last;
    uint32_t right = ((const struct bucket *)b)->last;
    return left < right ? -1 : left > right;
}

static shoal_status walk(struct filling *filling)
{
    struct buckets *buckets = filling->buckets;
    filling->needs = mem_alloc_zeroed((size_t)buckets->n_ids + 1, sizeof(filling->needs[0]));
    filling->group_needs = mem_alloc_zeroed(buckets->n_groups + 1, sizeof(filling->group_needs[0]));
    if (!filling->needs || !filling->group_needs) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (const struct shoal_node *node = buckets->graph->first; node; node = node->next) {
        TRY(fill_node(filling, node));
    }
    TRY(close_all(filling));
    qsort(buckets->buckets, buckets->n_buckets, sizeof(buckets->buckets[0]), compare_buckets);
    return SHOAL_OK;
}

static shoal_status fill(struct buckets *buckets, const struct bucket_limit *limit)
{
    struct filling filling = {.buckets = buckets, .rules = buckets->kind->rules, .limit = limit};
    shoal_status status = walk(&filling);
    mem_free(filling.needs);
    mem_free(filling.group_needs);
    mem_free(filling.lines);
    map_free(&filling.lines_by_key);
    return status;
}

/* All ---------------------------------------------------------------------------------------------------- */

static shoal_status find(struct buckets *buckets, const bool *is_accepted, const struct bucket_limit *limit)
{
    buckets->n_ids = buckets->graph->n_ids;
    buckets->member_of = mem_alloc_zeroed((size_t)buckets->n_ids + 1, sizeof(buckets->member_of[0]));
    if (!buckets->member_of) {
        return SHOAL_ERR_NO_MEMORY;
    }
    TRY(buckets->kind->rules->find(buckets, is_accepted));
    if (buckets->n_members < 2) {
        buckets->n_buckets = buckets->n_members; /* it is alone */
        return SHOAL_OK;
    }
    TRY(sort_groups(buckets));
    return fill(buckets, limit);
}

shoal_status buckets_find(struct shoal_graph *graph, const struct bucket_kind *kind, const bool *is_accepted,
                          const struct bucket_limit *limit, struct buckets *buckets_out)
{
    struct buckets buckets = {.graph = graph, .kind = kind};
    shoal_status status = find(&buckets, is_accepted, limit);
    if (status != SHOAL_OK) {
        buckets_free(&buckets);
        return status;
    }
    *buckets_out = buckets;
    return SHOAL_OK;
}

void buckets_free(struct buckets *buckets)
{
    accesses_free(&buckets->accesses);
    mem_free(buckets->members);
    mem_free(buckets->member_of);
    mem_free(buckets->readers);
    mem_free(buckets->buckets);
    mem_free((void *)buckets->groups);
    *buckets = (struct buckets){.graph = NULL};
}
