/* SPDX-License-Identifier: MIT */
/* bucket_all_reduces: the inputs are flattened and reduced as one tensor. The results are views of it. */
#include <string.h>

#include "base/try.h"
#include "graph/passes/bucket.h"
#include "graph/passes/passes.h"
#include "tensor/tensor.h"

enum { /* arguments of all_reduce */
    ARG_SELF,
    ARG_REDUCE,
    ARG_GROUP,
    ARG_FACTOR,
    N_ARGS
};

static bool match(const struct shoal_node *start, struct bucket_key *key)
{
    const shoal_arg *args = start->args;
    if (!node_calls(start, OP_all_reduce) || args[ARG_REDUCE].kind != SHOAL_ARG_STRING ||
        args[ARG_GROUP].kind != SHOAL_ARG_GROUP) {
        return false;
    }
    key->reduce = args[ARG_REDUCE].as.string;
    key->group = args[ARG_GROUP].as.string;
    return bucket_factor(&args[ARG_FACTOR], &key->factor);
}

static shoal_status pack(struct bucket_join *join, struct shoal_node **start_out)
{
    const struct shoal_node *first = join->members[0].start;
    struct shoal_node *flat;
    shoal_arg args[N_ARGS];
    memcpy(args, first->args, sizeof(args));
    TRY(bucket_call_flat(join, &flat));
    args[ARG_SELF] = bucket_node_arg(flat);
    return bucket_call(join, OP_all_reduce, args, N_ARGS, start_out);
}

static shoal_status unpack(struct bucket_join *join, struct shoal_node *wait)
{
    for (size_t i = 0; i < join->n_members; i++) {
        join->args[i] = bucket_int_arg(join->members[i].start->values[0]->count);
    }
    return bucket_call_results(join, wait, 0);
}

const struct bucket_kind bucket_of_all_reduces = {.match = match, .pack = pack, .unpack = unpack};

shoal_status pass_bucket_all_reduces(shoal_graph *graph, const shoal_pass_options *options,
                                     shoal_pass_report *report, void *context)
{
    (void)context;
    return bucket_pass(graph, &bucket_of_all_reduces, NULL, options, report);
}
