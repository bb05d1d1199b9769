/* SPDX-License-Identifier: MIT */
/*
 * bucket_fsdp_units: joins the gathers of an FSDP unit, its reduce-scatters, and its all-reduces over replicas, which
 * are captured one parameter at a time, into one call each, as in a step that is not compiled. The new calls are
 * coalesced: each result has a storage of its own, so nothing is packed or unpacked, and a gather can go into a window.
 * Members of a bucket belong to the same unit (shoal_node.unit). If a unit is gathered again for its backward pass,
 * these gathers become a bucket of their own, because they depend on results of the first.
 */
#include "base/try.h"
#include "graph/passes/bucket.h"
#include "graph/passes/passes.h"
#include "tensor/tensor.h"

enum {
    GATHER_SELF,
    GATHER_GROUP,
    SCATTER_SELF = 0,
    SCATTER_REDUCE,
    SCATTER_DIM,
    SCATTER_GROUP,
    SCATTER_FACTOR,
    REDUCE_SELF = 0,
    REDUCE_REDUCE,
    REDUCE_GROUP,
    REDUCE_FACTOR
};

/* Matching ----------------------------------------------------------------------------------------------- */

static bool match_unit(const struct shoal_node *start, const shoal_arg *group, struct bucket_key *key)
{
    key->unit = start->unit;
    key->group = group;
    return start->unit && group->kind == SHOAL_ARG_GROUP;
}

static bool match_reduce(const shoal_arg *reduce, const shoal_arg *factor, struct bucket_key *key)
{
    key->reduce = reduce;
    key->factor = factor;
    return reduce->kind == SHOAL_ARG_STRING && bucket_is_number(factor);
}

static bool match_gather(const struct shoal_node *start, struct bucket_key *key)
{
    return node_calls(start, OP_all_gather_into_tensor) && match_unit(start, &start->args[GATHER_GROUP], key);
}

static bool match_scatter(const struct shoal_node *start, struct bucket_key *key)
{
    const shoal_arg *args = start->args;
    return node_calls(start, OP_reduce_scatter_tensor) && args[SCATTER_DIM].kind == SHOAL_ARG_INT &&
           match_unit(start, &args[SCATTER_GROUP], key) &&
           match_reduce(&args[SCATTER_REDUCE], &args[SCATTER_FACTOR], key);
}

static bool match_all_reduce(const struct shoal_node *start, struct bucket_key *key)
{
    const shoal_arg *args = start->args;
    return node_calls(start, OP_all_reduce) && match_unit(start, &args[REDUCE_GROUP], key) &&
           match_reduce(&args[REDUCE_REDUCE], &args[REDUCE_FACTOR], key);
}

/* Making nodes ------------------------------------------------------------------------------------------- */

static shoal_arg list_inputs(struct bucket_join *join)
{
    for (size_t i = 0; i < join->n_members; i++) {
        join->args[i] = bucket_node_arg(join->members[i]->input);
    }
    return bucket_list_arg(join->args, join->n_members);
}

static shoal_status call_start(struct bucket_join *join, enum op_id id, const shoal_arg *args, size_t n_args,
                               struct shoal_node **start_out)
{
    struct shoal_node *start;
    TRY(bucket_call(join, id, args, n_args, &start));
    start->unit = join->members[0]->start->unit;
    for (size_t i = 0; i < join->n_members; i++) {
        join->members[i]->packed = start;
    }
    *start_out = start;
    return SHOAL_OK;
}

static shoal_status pack_gathers(struct bucket_join *join, struct shoal_node **start_out)
{
    shoal_arg args[] = {list_inputs(join), join->members[0]->start->args[GATHER_GROUP]};
    return call_start(join, OP_all_gather_into_tensor_coalesced, args, 2, start_out);
}

static shoal_status pack_scatters(struct bucket_join *join, struct shoal_node **start_out)
{
    const shoal_arg *first = join->members[0]->start->args;
    shoal_arg *dims = arena_alloc(&join->graph->arena, join->n_members, sizeof(dims[0]));
    if (!dims) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < join->n_members; i++) {
        dims[i] = join->members[i]->start->args[SCATTER_DIM];
    }
    shoal_arg args[] = {list_inputs(join), first[SCATTER_REDUCE], bucket_list_arg(dims, join->n_members),
                        first[SCATTER_GROUP], first[SCATTER_FACTOR]};
    return call_start(join, OP_reduce_scatter_tensor_coalesced, args, 5, start_out);
}

static shoal_status pack_all_reduces(struct bucket_join *join, struct shoal_node **start_out)
{
    const shoal_arg *first = join->members[0]->start->args;
    shoal_arg args[] = {list_inputs(join), first[REDUCE_REDUCE], first[REDUCE_GROUP], first[REDUCE_FACTOR]};
    return call_start(join, OP_all_reduce_coalesced, args, 4, start_out);
}

/* Makes an item and a wait for each result, so that each wait can be moved on its own. */
static shoal_status unpack(struct bucket_join *join, struct shoal_node *start)
{
    for (size_t i = 0; i < join->n_members; i++) {
        struct bucket_member *member = join->members[i];
        struct shoal_node *item;
        shoal_arg args[] = {bucket_node_arg(start), bucket_int_arg((int64_t)i)};
        TRY(bucket_call(join, OP_getitem, args, 2, &item));
        shoal_arg arg = bucket_node_arg(item);
        TRY(bucket_call(join, OP_wait_tensor, &arg, 1, &member->result));
        member->result->unit = start->unit;
    }
    return SHOAL_OK;
}

static const struct bucket_kind kinds[] = {
    {.rules = &bucket_starts,
     .match = match_gather,
     .pack = pack_gathers,
     .unpack = unpack,
     .is_coalesced = true},
    {.rules = &bucket_starts,
     .match = match_scatter,
     .pack = pack_scatters,
     .unpack = unpack,
     .is_coalesced = true},
    {.rules = &bucket_starts,
     .match = match_all_reduce,
     .pack = pack_all_reduces,
     .unpack = unpack,
     .is_coalesced = true},
};

shoal_status pass_bucket_fsdp_units(shoal_graph *graph, const shoal_pass_options *options,
                                    shoal_pass_report *report, void *context)
{
    size_t n_buckets = 0;
    (void)context;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        shoal_pass_report part = SHOAL_PASS_REPORT_INIT;
        TRY(bucket_pass(graph, &kinds[i], NULL, options, &part));
        n_buckets += part.n_buckets;
    }
    report->n_buckets = n_buckets > 0 ? n_buckets : report->n_buckets;
    return SHOAL_OK;
}
