/* SPDX-License-Identifier: MIT */
/*
 * Finds the starts of a kind that can be joined: the only user of the start is a wait_tensor, and nobody overwrites its
 * input between the two. They are taken in the order of their waits, and one bucket is open at a time. A member with
 * another key closes the bucket and begins a new run of buckets.
 */
#include "base/map.h"
#include "base/mem.h"
#include "base/try.h"
#include "graph/passes/bucket.h"
#include "tensor/tensor.h"

static bool match_member(const struct bucket_kind *kind, struct shoal_node *wait,
                         struct bucket_member *member)
{
    if (!node_calls(wait, OP_wait_tensor) || wait->args[0].kind != SHOAL_ARG_NODE) {
        return false;
    }
    struct shoal_node *start = wait->args[0].as.node;
    *member = (struct bucket_member){.start = start, .wait = wait, .reader = start, .limit = UINT32_MAX};
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
    member->input = input->as.node;
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

static shoal_status add_members(struct buckets *buckets, const bool *is_accepted,
                                const struct map *looked_into)
{
    size_t number;
    struct bucket_member member;
    for (struct shoal_node *node = buckets->graph->first; node; node = node->next) {
        if ((!is_accepted || is_accepted[node->id]) && match_member(buckets->kind, node, &member) &&
            !map_get(looked_into, map_key(member.start->values[0]->storage), &number)) {
            TRY(buckets_add(buckets, &member));
        }
    }
    return SHOAL_OK;
}

static shoal_status find_members(struct buckets *buckets, const bool *is_accepted)
{
    struct map looked_into = {.count = 0};
    shoal_status status =
        buckets->kind->is_coalesced ? SHOAL_OK : find_looked_into(buckets->graph, &looked_into);
    if (status == SHOAL_OK) {
        status = add_members(buckets, is_accepted, &looked_into);
    }
    map_free(&looked_into);
    return status;
}

/* Finds members whose input is overwritten before their wait: a joined start might read it too late. They get no
   wait. */
static void find_overwritten(struct buckets *buckets)
{
    for (const struct shoal_node *node = buckets->graph->first; node; node = node->next) {
        struct shoal_node *const *before;
        size_t n_before;
        effects_before_strict(buckets->accesses.effects, node, &before, &n_before);
        for (size_t i = 0; i < n_before; i++) {
            uint32_t index = buckets->member_of[before[i]->id];
            struct bucket_member *member = index > 0 ? &buckets->members[index - 1] : NULL;
            if (member && member->start == before[i] && node->order < member->wait->order) {
                buckets->member_of[member->wait->id] = 0;
                buckets->member_of[member->start->id] = 0;
                member->wait = NULL;
            }
        }
    }
}

static void drop_overwritten(struct buckets *buckets)
{
    size_t n_members = buckets->n_members;
    buckets->n_members = 0;
    for (size_t i = 0; i < n_members; i++) {
        if (buckets->members[i].wait) {
            buckets->members[buckets->n_members++] = buckets->members[i];
            buckets->member_of[buckets->members[i].start->id] = (uint32_t)buckets->n_members;
            buckets->member_of[buckets->members[i].wait->id] = (uint32_t)buckets->n_members;
        }
    }
}

static shoal_status find_starts(struct buckets *buckets, const bool *is_accepted)
{
    TRY(find_members(buckets, is_accepted));
    if (buckets->n_members < 2) {
        return SHOAL_OK;
    }
    TRY(effects_build(buckets->graph, &buckets->accesses.effects));
    find_overwritten(buckets);
    drop_overwritten(buckets);
    return SHOAL_OK;
}

const struct bucket_rules bucket_starts = {
    .find = find_starts, .keeps_group_order = true, .keeps_units = true};
