/* SPDX-License-Identifier: MIT */
#include "graph/passes/bucket_late.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/try.h"

shoal_status late_begin(struct late *late, const struct buckets *buckets, uint32_t n_ids)
{
    const struct accesses *accesses = &buckets->accesses;
    *late = (struct late){.buckets = buckets};
    late->stamps = mem_alloc_zeroed((size_t)n_ids + 1, sizeof(late->stamps[0]));
    late->places = mem_alloc_zeroed((size_t)n_ids + 1, sizeof(late->places[0]));
    late->memory = mem_alloc_zeroed(effects_n_storages(accesses->effects) + 1, sizeof(late->memory[0]));
    late->bucket_of = mem_alloc_zeroed((size_t)n_ids + 1, sizeof(late->bucket_of[0]));
    late->bucket_stamps = mem_alloc_zeroed(buckets->n_members + 1, sizeof(late->bucket_stamps[0]));
    if (!late->stamps || !late->places || !late->memory || !late->bucket_of || !late->bucket_stamps) {
        late_end(late);
        return SHOAL_ERR_NO_MEMORY;
    }
    for (uint32_t id = 0; id < accesses->n_ids; id++) {
        late->places[id] = accesses->positions[id];
    }
    return SHOAL_OK;
}

void late_end(struct late *late)
{
    mem_free(late->stamps);
    mem_free(late->places);
    mem_free(late->memory);
    mem_free(late->bucket_of);
    mem_free(late->bucket_stamps);
    mem_free(late->nodes);
    *late = (struct late){.buckets = NULL};
}

void late_place_new(struct late *late, const struct shoal_graph *graph, uint32_t first,
                    const struct shoal_node *anchor, uint32_t bucket)
{
    for (uint32_t id = first; id < graph->n_ids; id++) {
        late->places[id] = late->places[anchor->id];
        late->bucket_of[id] = bucket + 1;
    }
}

/* Following ---------------------------------------------------------------------------------------------- */

static shoal_status visit(struct late *late, struct shoal_node *node)
{
    if (late->stamps[node->id] == late->stamp || node->order > late->barrier->order) {
        return SHOAL_OK;
    }
    TRY(mem_grow((void **)&late->nodes, &late->capacity, late->n_nodes + 1, sizeof(late->nodes[0])));
    late->stamps[node->id] = late->stamp;
    late->nodes[late->n_nodes++] = node;
    return SHOAL_OK;
}

/* Visits the entries from `begin` to `end`: all, or only those that write. */
static shoal_status visit_entries(struct late *late, uint32_t begin, uint32_t end, bool is_all)
{
    const struct access *entries = late->buckets->accesses.entries;
    for (uint32_t i = begin; i < end && entries[i].position <= late->bound; i++) {
        if (is_all || entries[i].is_write) {
            TRY(visit(late, entries[i].node));
        }
    }
    return SHOAL_OK;
}

/* Visits the nodes after `position` that must stay behind a node there: if it writes, all that use the storage;
   otherwise those that write it. */
static shoal_status follow(struct late *late, uint32_t storage, uint32_t position, bool is_write)
{
    const struct accesses *accesses = &late->buckets->accesses;
    struct late_memory *memory = &late->memory[storage];
    uint32_t end = accesses->first[storage + 1];
    if (memory->stamp != late->stamp) {
        *memory = (struct late_memory){.stamp = late->stamp, .all_from = end, .writes_from = end};
    }
    uint32_t begin = accesses_behind(accesses, storage, position);
    uint32_t until = memory->all_from;
    if (is_write) {
        memory->all_from = begin < until ? begin : until;
    } else {
        until = memory->writes_from < until ? memory->writes_from : until;
        memory->writes_from = begin < until ? begin : until;
    }
    return visit_entries(late, begin, until, is_write);
}

/* If the node is the reader of members that have been joined, visits the new readers. */
static shoal_status visit_new_readers(struct late *late, const struct shoal_node *node)
{
    const struct buckets *buckets = late->buckets;
    for (uint32_t i = buckets->readers[node->id]; i > 0; i = buckets->members[i - 1].same_reader) {
        if (buckets->members[i - 1].packed) {
            TRY(visit(late, buckets->members[i - 1].packed));
        }
    }
    return SHOAL_OK;
}

/* Follows the storages that the node reads and, if `is_all`, those that it writes. */
static shoal_status follow_accesses(struct late *late, const struct shoal_node *node, bool is_all)
{
    uint32_t position = accesses_position(&late->buckets->accesses, node);
    const struct effects_access *found;
    size_t n_found;
    effects_accesses(late->buckets->accesses.effects, node, &found, &n_found);
    for (size_t i = 0; i < n_found; i++) {
        bool is_write = accesses_is_write(&found[i]);
        if (is_all || !is_write) {
            TRY(follow(late, found[i].storage, position, is_write));
        }
    }
    return SHOAL_OK;
}

/* A bucket that is moved reads all its gradients later than the old readers did, so their reads are followed, too. */
static shoal_status follow_bucket(struct late *late, uint32_t first)
{
    if (late->bucket_stamps[first] == late->stamp) {
        return SHOAL_OK;
    }
    late->bucket_stamps[first] = late->stamp;
    const struct bucket_member *members = late->buckets->members;
    for (uint32_t next = first + 1; next > 0; next = members[next - 1].next) {
        TRY(follow_accesses(late, members[next - 1].reader, /*is_all=*/false));
    }
    return SHOAL_OK;
}

static shoal_status follow_node(struct late *late, struct shoal_node *node)
{
    for (const struct edge *edge = node->first_use; edge; edge = edge->next) {
        TRY(visit(late, edge->user));
    }
    if (late->bucket_of[node->id] > 0) {
        return follow_bucket(late, late->bucket_of[node->id] - 1);
    }
    TRY(visit_new_readers(late, node));
    return follow_accesses(late, node, /*is_all=*/true);
}

/* Moving ------------------------------------------------------------------------------------------------- */

static int compare_nodes(const void *a, const void *b)
{
    const struct shoal_node *left = *(struct shoal_node *const *)a;
    const struct shoal_node *right = *(struct shoal_node *const *)b;
    return left->order < right->order ? -1 : left->order > right->order;
}

shoal_status late_move(struct late *late, struct bucket_member *const *members, size_t n_members,
                       struct shoal_node *barrier)
{
    late->stamp++;
    late->n_nodes = 0;
    late->barrier = barrier;
    late->bound = late->places[barrier->id];
    for (size_t i = 0; i < n_members; i++) {
        if (members[i]->user->kind != SHOAL_NODE_OUTPUT) {
            TRY(visit(late, members[i]->user));
        }
    }
    for (size_t i = 0; i < late->n_nodes; i++) {
        TRY(follow_node(late, late->nodes[i]));
    }
    if (late->n_nodes == 0) {
        return SHOAL_OK;
    }
    qsort(late->nodes, late->n_nodes, sizeof(late->nodes[0]), compare_nodes);
    struct shoal_node *where = barrier->next;
    for (size_t i = 0; i < late->n_nodes; i++) {
        TRY(shoal_node_move_before(late->nodes[i], where));
        late->places[late->nodes[i]->id] = late->bound;
    }
    return SHOAL_OK;
}
