/* SPDX-License-Identifier: MIT */
/*
 * Joins buckets one after the other. The new start is put behind the last reader of the bucket's inputs. The new wait
 * and the results follow it at once (is_placed_together), and users of the results that stand earlier are moved behind
 * them; or they are put before the first wait, if that comes later, and the graph is sorted when all nodes have been
 * made.
 *
 * Users get their new arguments in the end, each user once, however many of its arguments change. Only a copy_ of a
 * gradient gets its new argument at once, because moving users for later buckets follows the edge. Then the old starts
 * and waits are erased.
 */
#include <string.h>

#include "base/mem.h"
#include "base/try.h"
#include "collective/rows.h"
#include "graph/ir/replace_many.h"
#include "graph/passes/bucket.h"
#include "graph/passes/bucket_late.h"

/* One bucket --------------------------------------------------------------------------------------------- */

static struct shoal_node *find_last_reader(const struct bucket_join *join)
{
    struct shoal_node *last = join->members[0]->reader;
    for (size_t i = 1; i < join->n_members; i++) {
        last = join->members[i]->reader->order > last->order ? join->members[i]->reader : last;
    }
    return last;
}

/* Returns the FSDP unit that all members belong to; NULL if there is none. */
static const char *find_unit(const struct bucket_join *join)
{
    const char *unit = join->members[0]->start->unit;
    for (size_t i = 1; unit && i < join->n_members; i++) {
        const char *other = join->members[i]->start->unit;
        unit = other && strcmp(unit, other) == 0 ? unit : NULL;
    }
    return unit;
}

static shoal_status make_nodes(struct bucket_join *join, const struct bucket_kind *kind,
                               const struct shoal_node *last_reader)
{
    struct shoal_graph *graph = join->graph;
    struct shoal_node *first_wait = join->members[0]->wait;
    struct shoal_node *start;
    struct shoal_node *wait;
    TRY(shoal_graph_set_insert_point(graph, (shoal_insert_point){.node = last_reader->next}));
    TRY(kind->pack(join, &start));
    if (!kind->rules->is_placed_together && first_wait->order > start->order) {
        TRY(shoal_graph_set_insert_point(graph, (shoal_insert_point){.node = first_wait}));
    }
    if (kind->is_coalesced) {
        return kind->unpack(join, start);
    }
    shoal_arg arg = bucket_node_arg(start);
    TRY(bucket_call(join, OP_wait_tensor, &arg, 1, &wait));
    return kind->unpack(join, wait);
}

static shoal_status replace_in_copies(const struct bucket_join *join)
{
    for (size_t i = 0; i < join->n_members; i++) {
        const struct bucket_member *member = join->members[i];
        if (member->user->kind != SHOAL_NODE_OUTPUT) {
            TRY(shoal_node_replace(member->wait, member->result, NULL, NULL, NULL));
        }
    }
    return SHOAL_OK;
}

static shoal_status join_bucket(struct bucket_join *join, const struct bucket_kind *kind, struct late *late)
{
    struct shoal_graph *graph = join->graph;
    const struct shoal_node *last_reader = find_last_reader(join);
    uint32_t first_id = graph->n_ids;
    join->group_size = graph_find_group(graph, join->members[0]->key.group->as.string)->size;
    graph->unit = kind->rules->keeps_units ? find_unit(join) : NULL;
    shoal_status status = make_nodes(join, kind, last_reader);
    graph->unit = NULL;
    if (status != SHOAL_OK || !kind->rules->is_placed_together) {
        return status;
    }
    late_place_new(late, graph, first_id, last_reader, join->members[0]->first);
    TRY(late_move(late, join->members, join->n_members, join->members[join->n_members - 1]->result));
    return replace_in_copies(join);
}

/* All buckets -------------------------------------------------------------------------------------------- */

static shoal_status join_all(struct buckets *buckets, struct bucket_join *join, struct late *late)
{
    if (buckets->kind->rules->is_placed_together) {
        size_t n_new =
            BUCKET_NODES_OF_MEMBER * buckets->n_members + BUCKET_NODES_OF_BUCKET * buckets->n_buckets;
        TRY(late_begin(late, buckets, join->graph->n_ids + (uint32_t)n_new));
    }
    for (size_t i = 0; i < buckets->n_buckets; i++) {
        const struct bucket *bucket = &buckets->buckets[i];
        if (bucket->n_members < 2) {
            continue;
        }
        join->n_members = 0;
        for (uint32_t next = bucket->first + 1; next > 0; next = buckets->members[next - 1].next) {
            join->members[join->n_members++] = &buckets->members[next - 1];
        }
        TRY(join_bucket(join, buckets->kind, late));
    }
    return SHOAL_OK;
}

static shoal_status make_all_nodes(struct buckets *buckets)
{
    struct bucket_join join = {.graph = buckets->graph};
    struct late late = {.buckets = NULL};
    shoal_insert_point point = buckets->graph->point;
    join.members = mem_alloc_zeroed(buckets->n_members, sizeof(join.members[0]));
    join.args = mem_alloc_zeroed(buckets->n_members, sizeof(join.args[0]));
    shoal_status status = join.members && join.args ? join_all(buckets, &join, &late) : SHOAL_ERR_NO_MEMORY;
    buckets->graph->point = point; /* no node has been erased since */
    late_end(&late);
    mem_free((void *)join.members);
    mem_free(join.args);
    return status;
}

static shoal_status replace_waits(const struct buckets *buckets)
{
    struct replace_pair *pairs = mem_alloc_zeroed(buckets->n_members, sizeof(pairs[0]));
    size_t n_pairs = 0;
    if (!pairs) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < buckets->n_members; i++) {
        const struct bucket_member *member = &buckets->members[i];
        if (member->result && member->wait->n_users > 0) {
            pairs[n_pairs++] = (struct replace_pair){.old = member->wait, .other = member->result};
        }
    }
    shoal_status status = n_pairs > 0 ? graph_replace_many(buckets->graph, pairs, n_pairs) : SHOAL_OK;
    mem_free(pairs);
    return status;
}

static shoal_status erase_joined(const struct buckets *buckets)
{
    for (size_t i = 0; i < buckets->n_members; i++) {
        if (buckets->members[i].result) {
            graph_erase(buckets->members[i].wait);
            graph_erase(buckets->members[i].start);
        }
    }
    return buckets->kind->rules->removes_dead ? graph_remove_dead(buckets->graph, NULL) : SHOAL_OK;
}

shoal_status buckets_join(struct buckets *buckets)
{
    TRY(make_all_nodes(buckets));
    if (!buckets->kind->rules->is_placed_together) {
        TRY(buckets_bring_into_order(buckets));
    }
    TRY(replace_waits(buckets));
    return erase_joined(buckets);
}

/* Passes ------------------------------------------------------------------------------------------------- */

shoal_status bucket_pass_limited(struct shoal_graph *graph, const struct bucket_kind *kind,
                                 const bool *is_accepted, const struct bucket_limit *limit,
                                 shoal_pass_report *report)
{
    struct buckets buckets;
    collective_hand_in();
    TRY(buckets_find(graph, kind, is_accepted, limit, &buckets));
    size_t n_buckets = kind->rules->counts_alone ? buckets.n_buckets : buckets.n_joined;
    report->n_buckets = n_buckets > 0 ? n_buckets : report->n_buckets;
    shoal_status status = buckets.n_joined > 0 ? buckets_join(&buckets) : SHOAL_OK;
    buckets_free(&buckets);
    return status;
}

static double get_same(void *context, size_t index)
{
    (void)index;
    return *(const double *)context;
}

shoal_status bucket_pass(struct shoal_graph *graph, const struct bucket_kind *kind, const bool *is_accepted,
                         const shoal_pass_options *options, shoal_pass_report *report)
{
    double mb = options->comm_bucket_mb > 0 ? options->comm_bucket_mb : BUCKET_DEFAULT_MB;
    struct bucket_limit limit = {.mb = get_same, .context = &mb};
    return bucket_pass_limited(graph, kind, is_accepted, &limit, report);
}
