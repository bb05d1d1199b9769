/* SPDX-License-Identifier: MIT */
/*
 * bucket_all_gathers: the inputs are flattened and put into one tensor, which is gathered. The result has a row for
 * each rank; a column block of it is what one gather would have given. Only gathers along dimension 0 are joined. A
 * conversion before a gather stays: members of a bucket have one dtype, and cat does not convert.
 */
#include "base/mem.h"
#include "base/try.h"
#include "graph/passes/bucket.h"
#include "graph/passes/passes.h"
#include "tensor/tensor.h"

/* all_gather_into_tensor(self, group), or all_gather_tensor(self, dim, group) along the first. */
static bool match(const struct shoal_node *start, struct bucket_key *key)
{
    const shoal_arg *args = start->args;
    const shoal_arg *group = &args[1];
    if (node_calls(start, OP_all_gather_tensor)) {
        if (args[1].kind != SHOAL_ARG_INT ||
            (args[1].as.integer != 0 && args[1].as.integer != -start->values[0]->layout.n_dims)) {
            return false;
        }
        group = &args[2];
    } else if (!node_calls(start, OP_all_gather_into_tensor)) {
        return false;
    }
    if (group->kind != SHOAL_ARG_GROUP) {
        return false;
    }
    key->group = group;
    return true;
}

static shoal_status pack(struct bucket_join *join, struct shoal_node **start_out)
{
    struct shoal_node *flat;
    TRY(bucket_call_flat(join, &flat));
    shoal_arg args[] = {bucket_node_arg(flat), *join->members[0]->key.group};
    return bucket_call(join, OP_all_gather_into_tensor, args, 2, start_out);
}

static shoal_status unpack(struct bucket_join *join, struct shoal_node *wait)
{
    struct shoal_node *rows;
    int64_t total = 0;
    for (size_t i = 0; i < join->n_members; i++) {
        int64_t count = join->members[i]->input->values[0]->count;
        join->args[i] = bucket_int_arg(count);
        total += count;
    }
    shoal_arg sizes[] = {bucket_int_arg((int64_t)join->group_size), bucket_int_arg(total)};
    shoal_arg args[] = {bucket_node_arg(wait), bucket_list_arg(sizes, 2)};
    TRY(bucket_call(join, OP_reshape, args, 2, &rows));
    return bucket_call_results(join, rows, 1);
}

const struct bucket_kind bucket_of_all_gathers = {
    .rules = &bucket_starts, .match = match, .pack = pack, .unpack = unpack};

shoal_status pass_bucket_all_gathers(shoal_graph *graph, const shoal_pass_options *options,
                                     shoal_pass_report *report, void *context)
{
    (void)context;
    return bucket_pass(graph, &bucket_of_all_gathers, NULL, options, report);
}

shoal_status pass_bucket_fsdp_all_gathers(shoal_graph *graph, const shoal_pass_options *options,
                                          shoal_pass_report *report, void *context)
{
    bool *is_accepted;
    (void)context;
    TRY(bucket_fsdp_gathers(graph, &is_accepted));
    shoal_status status = bucket_pass(graph, &bucket_of_all_gathers, is_accepted, options, report);
    mem_free(is_accepted);
    return status;
}
