/* SPDX-License-Identifier: MIT */
/* Finds the collectives that are joined. graph/passes/bucket.h says how, and why that is right. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/try.h"
#include "graph/passes/bucket.h"
#include "tensor/tensor.h"

#define BYTES_PER_MB 1048576.0

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

/* Members ------------------------------------------------------------------------------------------------ */

static bool match_member(const struct bucket_kind *kind, struct shoal_node *wait,
                         struct bucket_member *member)
{
    if (!node_calls(wait, OP_wait_tensor) || wait->args[0].kind != SHOAL_ARG_NODE) {
        return false;
    }
    struct shoal_node *start = wait->args[0].as.node;
    *member = (struct bucket_member){.start = start, .wait = wait, .key = {.factor = (double)NAN}};
    if (!bucket_is_start(start) || start->n_users != 1 || start->n_values != 1 ||
        !kind->match(start, &member->key)) {
        return false;
    }
    const shoal_arg *input = &start->args[0];
    if (input->kind != SHOAL_ARG_NODE || input->as.node->n_values != 1 || !start->values[0]->is_contiguous) {
        return false;
    }
    const shoal_tensor *from = input->as.node->values[0];
    const shoal_tensor *to = start->values[0];
    size_t from_bytes = tensor_bytes(from);
    member->key.dtype = to->dtype;
    member->key.device = to->storage->device;
    member->bytes = tensor_bytes(to) > from_bytes ? tensor_bytes(to) : from_bytes;
    return from->dtype == to->dtype;
}

/* Finds storages that are viewed by offset (as_strided) or in another dtype. Such a result must not become a part of
   another storage. */
static shoal_status find_looked_into(const struct shoal_graph *graph, struct map *looked_into)
{
    for (const struct shoal_node *node = graph->first; node; node = node->next) {
        size_t number;
        if (node_calls(node, OP_as_strided) || node_calls(node, OP_view_dtype)) {
            TRY(map_get_or_add(looked_into, map_key(node->values[0]->storage), 0, &number));
        }
    }
    return SHOAL_OK;
}

static shoal_status add_members(struct buckets *buckets, const struct bucket_kind *kind,
                                const bool *is_accepted, const struct map *looked_into)
{
    size_t capacity = 0;
    size_t number;
    struct bucket_member member;
    for (struct shoal_node *node = buckets->graph->first; node; node = node->next) {
        if ((is_accepted && !is_accepted[node->id]) || !match_member(kind, node, &member) ||
            map_get(looked_into, map_key(member.start->values[0]->storage), &number)) {
            continue;
        }
        TRY(mem_grow((void **)&buckets->members, &capacity, buckets->n_members + 1,
                     sizeof(buckets->members[0])));
        buckets->members[buckets->n_members++] = member;
        buckets->member_of[member.start->id] = (uint32_t)buckets->n_members;
    }
    return SHOAL_OK;
}

static shoal_status find_members(struct buckets *buckets, const struct bucket_kind *kind,
                                 const bool *is_accepted)
{
    struct map looked_into = {.count = 0};
    shoal_status status = kind->is_coalesced ? SHOAL_OK : find_looked_into(buckets->graph, &looked_into);
    if (status == SHOAL_OK) {
        status = add_members(buckets, kind, is_accepted, &looked_into);
    }
    map_free(&looked_into);
    return status;
}

/* Drops starts whose input is overwritten before their wait: a joined start might read it too late. */
static void drop_overwritten(struct buckets *buckets)
{
    for (const struct shoal_node *node = buckets->graph->first; node; node = node->next) {
        struct shoal_node *const *before;
        size_t n_before;
        effects_before_strict(buckets->effects, node, &before, &n_before);
        for (size_t i = 0; i < n_before; i++) {
            uint32_t index = buckets->member_of[before[i]->id];
            if (index > 0 && node->order < buckets->members[index - 1].wait->order) {
                buckets->member_of[before[i]->id] = 0;
            }
        }
    }
    size_t n_members = 0;
    for (size_t i = 0; i < buckets->n_members; i++) {
        struct bucket_member member = buckets->members[i];
        if (buckets->member_of[member.start->id] > 0) {
            buckets->members[n_members++] = member;
            buckets->member_of[member.start->id] = (uint32_t)n_members;
            buckets->member_of[member.wait->id] = (uint32_t)n_members;
        }
    }
    buckets->n_members = n_members;
}

/* NULL equals only NULL. */
static bool is_same_word(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

static bool has_same_key(const struct bucket_key *a, const struct bucket_key *b)
{
    bool has_same_factor =
        (isnan(a->factor) && isnan(b->factor)) ||
        (a->factor == b->factor && signbit(a->factor) == signbit(b->factor)); /* 0 and -0 give other bits */
    return has_same_factor && a->dtype == b->dtype && a->device == b->device &&
           strcmp(a->group, b->group) == 0 && is_same_word(a->reduce, b->reduce) &&
           is_same_word(a->unit, b->unit);
}

/* Filling buckets ---------------------------------------------------------------------------------------- */

struct filling {
    struct buckets *buckets;
    const struct bucket_limit *limit;
    uint32_t *labels;       /* by id: the label of the bucket that the node depends on */
    uint32_t *group_labels; /* by group: the label of the bucket that a start of the group depends on */
    uint32_t label;         /* of the open bucket */
    size_t first;           /* the first member of the open bucket */
    size_t n_members;
    size_t index; /* of the open bucket in its run */
    double bytes;
    size_t capacity;
};

static shoal_status close_bucket(struct filling *filling)
{
    struct buckets *buckets = filling->buckets;
    if (filling->n_members < 2) {
        return SHOAL_OK;
    }
    TRY(mem_grow((void **)&buckets->buckets, &filling->capacity, buckets->n_buckets + 1,
                 sizeof(buckets->buckets[0])));
    buckets->buckets[buckets->n_buckets++] =
        (struct bucket){.first = filling->first, .n_members = filling->n_members};
    for (size_t i = 0; i < filling->n_members; i++) {
        buckets->members[filling->first + i].bucket = (uint32_t)buckets->n_buckets;
    }
    return SHOAL_OK;
}

static shoal_status add_member(struct filling *filling, size_t index, bool is_dependent)
{
    const struct bucket_member *member = &filling->buckets->members[index];
    const struct bucket_member *first = &filling->buckets->members[filling->first];
    const struct bucket_limit *limit = filling->limit;
    bool is_open = filling->n_members > 0;
    bool is_same_run = is_open && has_same_key(&first->key, &member->key);
    double cap = limit->mb(limit->context, filling->index) * BYTES_PER_MB;
    if (!is_same_run || is_dependent || filling->bytes + (double)member->bytes > cap) {
        TRY(close_bucket(filling));
        filling->label++;
        filling->first = index;
        filling->n_members = 0;
        filling->bytes = 0;
        filling->index = is_same_run ? filling->index + 1 : 0;
    }
    filling->n_members++;
    filling->bytes += (double)member->bytes;
    return SHOAL_OK;
}

/* Whether the node must stay behind one that depends on the open bucket. */
static bool finds_label(const struct filling *filling, const struct shoal_node *node)
{
    struct shoal_node *const *before;
    size_t n_before;
    for (size_t i = 0; i < node->n_inputs; i++) {
        if (filling->labels[node->inputs[i]->id] == filling->label) {
            return true;
        }
    }
    effects_before_strict(filling->buckets->effects, node, &before, &n_before);
    for (size_t i = 0; i < n_before; i++) {
        if (filling->labels[before[i]->id] == filling->label) {
            return true;
        }
    }
    return false;
}

static shoal_status fill_node(struct filling *filling, const struct shoal_node *node)
{
    uint32_t member = filling->buckets->member_of[node->id];
    bool has_label = finds_label(filling, node);
    if (bucket_is_start(node)) {
        /* The order of the group gives no label to a member: if it does not join the open bucket, its wait stands after
           the waits of that bucket anyway. */
        uint32_t *of_group = &filling->group_labels[buckets_group_of(filling->buckets, node)];
        has_label |= member == 0 && *of_group == filling->label;
        *of_group = has_label ? filling->label : *of_group;
    } else if (member > 0) {
        TRY(add_member(filling, member - 1, has_label));
        has_label = true;
    }
    filling->labels[node->id] = has_label ? filling->label : 0;
    return SHOAL_OK;
}

static shoal_status fill(struct buckets *buckets, const struct bucket_limit *limit)
{
    struct filling filling = {.buckets = buckets, .limit = limit, .label = 1};
    filling.labels = mem_alloc_zeroed((size_t)buckets->n_ids + 1, sizeof(filling.labels[0]));
    filling.group_labels = mem_alloc_zeroed(buckets->n_groups + 1, sizeof(filling.group_labels[0]));
    shoal_status status = filling.labels && filling.group_labels ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
    for (const struct shoal_node *node = buckets->graph->first; node && status == SHOAL_OK;
         node = node->next) {
        status = fill_node(&filling, node);
    }
    if (status == SHOAL_OK) {
        status = close_bucket(&filling);
    }
    mem_free(filling.labels);
    mem_free(filling.group_labels);
    return status;
}

/* All ---------------------------------------------------------------------------------------------------- */

static shoal_status find(struct buckets *buckets, const struct bucket_kind *kind, const bool *is_accepted,
                         const struct bucket_limit *limit)
{
    buckets->n_ids = buckets->graph->n_ids;
    buckets->member_of = mem_alloc_zeroed((size_t)buckets->n_ids + 1, sizeof(buckets->member_of[0]));
    if (!buckets->member_of) {
        return SHOAL_ERR_NO_MEMORY;
    }
    TRY(find_members(buckets, kind, is_accepted));
    if (buckets->n_members < 2) {
        return SHOAL_OK;
    }
    TRY(sort_groups(buckets));
    TRY(effects_build(buckets->graph, &buckets->effects));
    drop_overwritten(buckets);
    return fill(buckets, limit);
}

shoal_status buckets_find(struct shoal_graph *graph, const struct bucket_kind *kind, const bool *is_accepted,
                          const struct bucket_limit *limit, struct buckets *buckets_out)
{
    struct buckets buckets = {.graph = graph};
    shoal_status status = find(&buckets, kind, is_accepted, limit);
    if (status != SHOAL_OK) {
        buckets_free(&buckets);
        return status;
    }
    *buckets_out = buckets;
    return SHOAL_OK;
}

void buckets_free(struct buckets *buckets)
{
    effects_free(buckets->effects);
    mem_free(buckets->members);
    mem_free(buckets->member_of);
    mem_free(buckets->buckets);
    mem_free((void *)buckets->groups);
    *buckets = (struct buckets){.graph = NULL};
}
