/* SPDX-License-Identifier: MIT */
/*
 * bucket_reduce_scatters: each input is seen as one row for each rank. The rows of all inputs, side by side, are one
 * tensor, which is reduced and scattered: each rank's part of it has the rank's parts of all inputs, one after the
 * other. Only reduce-scatters along dimension 0 are joined.
 */
#include "base/mem.h"
#include "base/try.h"
#include "graph/passes/bucket.h"
#include "graph/passes/passes.h"
#include "tensor/tensor.h"

enum { /* arguments of reduce_scatter_tensor */
    ARG_SELF,
    ARG_REDUCE,
    ARG_DIM,
    ARG_GROUP,
    ARG_FACTOR,
    N_ARGS
};

static bool match(const struct shoal_node *start, struct bucket_key *key)
{
    const shoal_arg *args = start->args;
    if (!node_calls(start, OP_reduce_scatter_tensor) || args[ARG_REDUCE].kind != SHOAL_ARG_STRING ||
        args[ARG_DIM].kind != SHOAL_ARG_INT || args[ARG_GROUP].kind != SHOAL_ARG_GROUP) {
        return false;
    }
    key->reduce = &args[ARG_REDUCE];
    key->group = &args[ARG_GROUP];
    key->factor = &args[ARG_FACTOR];
    int64_t dim = args[ARG_DIM].as.integer;
    return (dim == 0 || dim == -start->values[0]->layout.n_dims) && bucket_is_number(key->factor);
}

static shoal_status call_rows(struct bucket_join *join, struct shoal_node **rows_out)
{
    for (size_t i = 0; i < join->n_members; i++) {
        struct bucket_member *member = join->members[i];
        shoal_arg sizes[] = {bucket_int_arg((int64_t)join->group_size),
                             bucket_int_arg(member->start->values[0]->count)};
        shoal_arg args[] = {bucket_node_arg(member->input), bucket_list_arg(sizes, 2)};
        TRY(bucket_call(join, OP_reshape, args, 2, &member->packed));
        join->args[i] = bucket_node_arg(member->packed);
    }
    shoal_arg args[] = {bucket_list_arg(join->args, join->n_members), bucket_int_arg(1)};
    return bucket_call(join, OP_cat, args, 2, rows_out);
}

static shoal_status pack(struct bucket_join *join, struct shoal_node **start_out)
{
    const struct shoal_node *first = join->members[0]->start;
    struct shoal_node *rows;
    struct shoal_node *flat;
    TRY(call_rows(join, &rows));
    TRY(bucket_call(join, OP_flatten, (shoal_arg[]){bucket_node_arg(rows)}, 1, &flat));
    shoal_arg args[N_ARGS] = {[ARG_SELF] = bucket_node_arg(flat),
                              [ARG_REDUCE] = first->args[ARG_REDUCE],
                              [ARG_DIM] = bucket_int_arg(0),
                              [ARG_GROUP] = first->args[ARG_GROUP],
                              [ARG_FACTOR] = first->args[ARG_FACTOR]};
    return bucket_call(join, OP_reduce_scatter_tensor, args, N_ARGS, start_out);
}

const struct bucket_kind bucket_of_reduce_scatters = {
    .rules = &bucket_starts, .match = match, .pack = pack, .unpack = bucket_unpack_flat};

shoal_status pass_bucket_reduce_scatters(shoal_graph *graph, const shoal_pass_options *options,
                                         shoal_pass_report *report, void *context)
{
    (void)context;
    return bucket_pass(graph, &bucket_of_reduce_scatters, NULL, options, report);
}

shoal_status pass_bucket_fsdp_reduce_scatters(shoal_graph *graph, const shoal_pass_options *options,
                                              shoal_pass_report *report, void *context)
{
    bool *is_accepted;
    (void)context;
    TRY(bucket_fsdp_scatters(graph, &is_accepted));
    shoal_status status = bucket_pass(graph, &bucket_of_reduce_scatters, is_accepted, options, report);
    mem_free(is_accepted);
    return status;
}
