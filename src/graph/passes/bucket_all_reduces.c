/* SPDX-License-Identifier: MIT */
/* bucket_all_reduces: the inputs are flattened and reduced as one tensor. The results are views of it. */
#include "base/try.h"
#include "graph/passes/bucket.h"
#include "graph/passes/passes.h"

enum { /* arguments of all_reduce */
    ARG_SELF,
    ARG_REDUCE,
    ARG_GROUP,
    ARG_FACTOR
};

static bool match(const struct shoal_node *start, struct bucket_key *key)
{
    const shoal_arg *args = start->args;
    if (!node_calls(start, OP_all_reduce) || args[ARG_REDUCE].kind != SHOAL_ARG_STRING ||
        args[ARG_GROUP].kind != SHOAL_ARG_GROUP) {
        return false;
    }
    key->reduce = &args[ARG_REDUCE];
    key->group = &args[ARG_GROUP];
    key->factor = &args[ARG_FACTOR];
    return bucket_is_number(key->factor);
}

static shoal_status pack(struct bucket_join *join, struct shoal_node **start_out)
{
    struct shoal_node *flat;
    TRY(bucket_call_flat(join, &flat));
    return bucket_call_start(join, join->members[0]->start, OP_all_reduce, bucket_node_arg(flat), start_out);
}

const struct bucket_kind bucket_of_all_reduces = {
    .rules = &bucket_starts, .match = match, .pack = pack, .unpack = bucket_unpack_flat};

shoal_status pass_bucket_all_reduces(shoal_graph *graph, const shoal_pass_options *options,
                                     shoal_pass_report *report, void *context)
{
    (void)context;
    return bucket_pass(graph, &bucket_of_all_reduces, NULL, options, report);
}
