/* SPDX-License-Identifier: MIT */
/* Rows that move data: all_gather, all_to_all and broadcast in all their forms, permutations, and waiting. */
#include <inttypes.h>

#include "base/error.h"
#include "base/try.h"
#include "collective/arguments.h"
#include "collective/launch.h"
#include "collective/rows.h"
#include "op/operand.h"
#include "shoal/group.h"

/* Waiting: the dispatcher does it ---------------------------------------------------------------------- */

shoal_status meta_wait_tensor(shoal_op_call_context *call, const shoal_value *arguments)
{
    return shoal_op_output_alias(call, arguments[0].as.tensor);
}

shoal_status meta_wait_tensors(shoal_op_call_context *call, const shoal_value *arguments)
{
    for (size_t i = 0; i < arguments[0].count; i++) {
        TRY(shoal_op_output_alias(call, arguments[0].as.tensors[i]));
    }
    return SHOAL_OK;
}

shoal_status run_wait(shoal_op_call_context *call, const shoal_value *arguments, shoal_tensor *const *outputs,
                      size_t n_outputs)
{
    return SHOAL_OK;
}

/* all_gather ------------------------------------------------------------------------------------------- */

static shoal_status declare_gathered(shoal_op_call_context *call, const shoal_tensor *self, int64_t dim,
                                     shoal_group *group)
{
    struct layout layout;
    int gather_dim;
    TRY(arguments_gathered(self, dim, group, &layout, &gather_dim));
    return shoal_op_output(call, layout.shape, layout.n_dims, self->dtype);
}

/* Forms with an output argument: (out, self, ...). */
static shoal_status declare_gathered_out(shoal_op_call_context *call, const shoal_value *arguments,
                                         int64_t dim, shoal_group *group)
{
    struct layout layout;
    int gather_dim;
    TRY(arguments_gathered(arguments[1].as.tensor, dim, group, &layout, &gather_dim));
    TRY(arguments_out("out", arguments[0].as.tensor, arguments[1].as.tensor, &layout));
    return shoal_op_output_alias(call, arguments[0].as.tensor);
}

shoal_status meta_all_gather_tensor(shoal_op_call_context *call, const shoal_value *arguments)
{
    return declare_gathered(call, arguments[0].as.tensor, arguments[1].as.integer, arguments[2].as.group);
}

shoal_status meta_all_gather_into_tensor(shoal_op_call_context *call, const shoal_value *arguments)
{
    return declare_gathered(call, arguments[0].as.tensor, 0, arguments[1].as.group);
}

shoal_status meta_all_gather_into_tensor_out(shoal_op_call_context *call, const shoal_value *arguments)
{
    return declare_gathered_out(call, arguments, 0, arguments[2].as.group);
}

shoal_status meta_all_gather_tensor_inplace(shoal_op_call_context *call, const shoal_value *arguments)
{
    return declare_gathered_out(call, arguments, arguments[2].as.integer, arguments[3].as.group);
}

shoal_status meta_all_gather_into_tensor_coalesced(shoal_op_call_context *call, const shoal_value *arguments)
{
    TRY(arguments_list(&arguments[0]));
    for (size_t i = 0; i < arguments[0].count; i++) {
        TRY(declare_gathered(call, arguments[0].as.tensors[i], 0, arguments[1].as.group));
    }
    return SHOAL_OK;
}

static shoal_status start_gather(struct launch *launch, const void *send, void *recv,
                                 const shoal_tensor *self, int dim)
{
    struct collective call = {.kind = COLLECTIVE_ALL_GATHER,
                              .dtype = self->dtype,
                              .single = {.send = send, .recv = recv, .count = (size_t)self->count}};
    launch_say_shape(launch, self);
    launch_say_number(launch, dim);
    return launch_start(launch, LAUNCH_ALL_GATHER, &call);
}

static shoal_status launch_gather(struct launch *launch, shoal_tensor *self, int64_t dim, shoal_tensor *out)
{
    const void *send;
    void *recv;
    int gather_dim;
    TRY(layout_normalise_dim("gather_dim", dim, out->layout.n_dims, &gather_dim));
    TRY(launch_input(launch, self, &send));
    TRY(launch_output_blocks(launch, out, gather_dim, &recv));
    shoal_status status = start_gather(launch, send, recv, self, gather_dim);
    return arguments_explain_overlap(status, self, out, "coincide with self at this rank's block of out");
}

static shoal_status run_gather(shoal_group *group, shoal_tensor *self, int64_t dim, shoal_tensor *out)
{
    struct launch launch;
    launch_begin(&launch, group);
    return launch_end(&launch, launch_gather(&launch, self, dim, out));
}

shoal_status run_all_gather_tensor(shoal_op_call_context *call, const shoal_value *arguments,
                                   shoal_tensor *const *outputs, size_t n_outputs)
{
    return run_gather(arguments[2].as.group, arguments[0].as.tensor, arguments[1].as.integer, outputs[0]);
}

shoal_status run_all_gather_into_tensor(shoal_op_call_context *call, const shoal_value *arguments,
                                        shoal_tensor *const *outputs, size_t n_outputs)
{
    return run_gather(arguments[1].as.group, arguments[0].as.tensor, 0, outputs[0]);
}

shoal_status run_all_gather_into_tensor_out(shoal_op_call_context *call, const shoal_value *arguments,
                                            shoal_tensor *const *outputs, size_t n_outputs)
{
    return run_gather(arguments[2].as.group, arguments[1].as.tensor, 0, outputs[0]);
}

shoal_status run_all_gather_tensor_inplace(shoal_op_call_context *call, const shoal_value *arguments,
                                           shoal_tensor *const *outputs, size_t n_outputs)
{
    return run_gather(arguments[3].as.group, arguments[1].as.tensor, arguments[2].as.integer, outputs[0]);
}

static shoal_status launch_gather_list(struct launch *launch, shoal_tensor *const *tensors,
                                       shoal_tensor *const *outputs, size_t n_tensors)
{
    shoal_part *parts = launch_alloc(launch, n_tensors, sizeof *parts);
    if (!parts) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n_tensors; i++) {
        parts[i].count = (size_t)tensors[i]->count;
        launch_say_shape(launch, tensors[i]);
        launch_say_number(launch, 0);
        TRY(launch_input(launch, tensors[i], &parts[i].send));
        TRY(launch_output(launch, outputs[i], &parts[i].recv));
    }
    struct collective call = {.kind = COLLECTIVE_ALL_GATHER, .dtype = tensors[0]->dtype};
    return launch_start_list(launch, LAUNCH_ALL_GATHER, &call, parts, n_tensors);
}

shoal_status run_all_gather_into_tensor_coalesced(shoal_op_call_context *call, const shoal_value *arguments,
                                                  shoal_tensor *const *outputs, size_t n_outputs)
{
    struct launch launch;
    launch_begin(&launch, arguments[1].as.group);
    return launch_end(&launch, launch_gather_list(&launch, arguments[0].as.tensors, outputs, n_outputs));
}

/* All outputs go through one buffer, so the raw call cannot see whether they overlap. */
static shoal_status check_apart(const shoal_value *outs, size_t index)
{
    for (size_t k = 0; k < index; k++) {
        if (tensor_overlaps(outs->as.tensors[k], outs->as.tensors[index])) {
            return error_set(SHOAL_ERR_INVALID, "outs[%zu] and [%zu] share memory", k, index);
        }
    }
    return SHOAL_OK;
}

shoal_status meta_all_gather_inplace(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_value *outs = &arguments[0];
    const shoal_tensor *self = arguments[1].as.tensor;
    int n_ranks = shoal_group_n_ranks(arguments[2].as.group);
    if (outs->count != (size_t)n_ranks) {
        return error_set(SHOAL_ERR_INVALID, "outs: %zu tensors are given, but the group has %d ranks",
                         outs->count, n_ranks);
    }
    for (size_t i = 0; i < outs->count; i++) {
        struct arguments_name name;
        TRY(arguments_out(arguments_of_list("outs", i, &name), outs->as.tensors[i], self, &self->layout));
        TRY(check_apart(outs, i));
        TRY(shoal_op_output_alias(call, outs->as.tensors[i]));
    }
    return SHOAL_OK;
}

static shoal_status launch_gather_apart(struct launch *launch, shoal_tensor *self,
                                        shoal_tensor *const *outputs)
{
    const void *send;
    void *recv;
    TRY(launch_input(launch, self, &send));
    TRY(launch_output_list(launch, outputs, &recv));
    return start_gather(launch, send, recv, self, 0);
}

shoal_status run_all_gather_inplace(shoal_op_call_context *call, const shoal_value *arguments,
                                    shoal_tensor *const *outputs, size_t n_outputs)
{
    struct launch launch;
    launch_begin(&launch, arguments[2].as.group);
    return launch_end(&launch, launch_gather_apart(&launch, arguments[1].as.tensor, outputs));
}

/* all_to_all ------------------------------------------------------------------------------------------- */

shoal_status meta_all_to_all_single(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    struct layout layout = self->layout;
    TRY(arguments_splits(self, &arguments[1], &arguments[2], arguments[3].as.group, &layout.shape[0]));
    return shoal_op_output(call, layout.shape, layout.n_dims, self->dtype);
}

shoal_status meta_all_to_all_inplace(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_tensor *self = arguments[1].as.tensor;
    struct layout layout = self->layout;
    TRY(arguments_splits(self, &arguments[2], &arguments[3], arguments[4].as.group, &layout.shape[0]));
    TRY(arguments_out("out", arguments[0].as.tensor, self, &layout));
    return shoal_op_output_alias(call, arguments[0].as.tensor);
}

/* Exchanges as many rows as the splits say. send_rows and recv_rows have n_ranks entries each. */
static shoal_status start_exchange(struct launch *launch, const void *send, const int64_t *send_rows,
                                   void *recv, const int64_t *recv_rows, const shoal_tensor *self)
{
    size_t n_ranks = (size_t)launch->n_ranks;
    size_t row_elements = (size_t)arguments_row_elements(self);
    size_t *counts = launch_alloc(launch, 2 * n_ranks, sizeof *counts);
    if (!counts) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t r = 0; r < n_ranks; r++) {
        counts[r] = (size_t)send_rows[r] * row_elements;
        counts[n_ranks + r] = (size_t)recv_rows[r] * row_elements;
    }
    struct collective call = {.kind = COLLECTIVE_ALL_TO_ALL,
                              .dtype = self->dtype,
                              .single = {.send = send, .recv = recv},
                              .send_counts = counts,
                              .recv_counts = counts + n_ranks};
    return launch_start(launch, LAUNCH_ALL_TO_ALL, &call);
}

/* Exchanges blocks of the same size with every rank. */
static shoal_status start_even_exchange(struct launch *launch, enum launch_family family, const void *send,
                                        void *recv, const shoal_tensor *self)
{
    struct collective call = {
        .kind = COLLECTIVE_ALL_TO_ALL,
        .dtype = self->dtype,
        .single = {.send = send, .recv = recv, .count = (size_t)self->count / (size_t)launch->n_ranks}};
    return launch_start(launch, family, &call);
}

static shoal_status launch_all_to_all(struct launch *launch, shoal_tensor *self,
                                      const shoal_value *output_splits, const shoal_value *input_splits,
                                      shoal_tensor *out)
{
    const void *send;
    void *recv;
    TRY(launch_input(launch, self, &send));
    TRY(launch_output(launch, out, &recv));
    /* The shape of a row must be the same on all ranks. The number of rows may differ, by the splits. */
    launch_say_numbers(launch, self->layout.shape + 1, (size_t)self->layout.n_dims - 1);
    shoal_status status =
        output_splits->count == 0
            ? start_even_exchange(launch, LAUNCH_ALL_TO_ALL, send, recv, self)
            : start_exchange(launch, send, input_splits->as.integers, recv, output_splits->as.integers, self);
    return arguments_explain_overlap(status, self, out, "coincide");
}

shoal_status run_all_to_all_single(shoal_op_call_context *call, const shoal_value *arguments,
                                   shoal_tensor *const *outputs, size_t n_outputs)
{
    struct launch launch;
    launch_begin(&launch, arguments[3].as.group);
    return launch_end(&launch, launch_all_to_all(&launch, arguments[0].as.tensor, &arguments[1],
                                                 &arguments[2], outputs[0]));
}

shoal_status run_all_to_all_inplace(shoal_op_call_context *call, const shoal_value *arguments,
                                    shoal_tensor *const *outputs, size_t n_outputs)
{
    struct launch launch;
    launch_begin(&launch, arguments[4].as.group);
    return launch_end(&launch, launch_all_to_all(&launch, arguments[1].as.tensor, &arguments[2],
                                                 &arguments[3], outputs[0]));
}

/* From shards of one dimension to shards of another ---------------------------------------------------- */

shoal_status meta_shard_dim_alltoall(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    shoal_group *group = arguments[3].as.group;
    struct layout layout;
    int gather_dim;
    int shard_dim;
    TRY(arguments_scattered("shard_dim", self, arguments[2].as.integer, group, &layout, &shard_dim));
    TRY(layout_normalise_dim("gather_dim", arguments[1].as.integer, layout.n_dims, &gather_dim));
    TRY(arguments_multiply(&layout, gather_dim, group)); /* a tensor without elements may have any sizes */
    return shoal_op_output(call, layout.shape, layout.n_dims, self->dtype);
}

static shoal_status launch_shard_dim(struct launch *launch, shoal_tensor *self, int64_t gather, int64_t shard,
                                     shoal_tensor *out)
{
    const void *send;
    void *recv;
    int gather_dim;
    int shard_dim;
    TRY(layout_normalise_dim("gather_dim", gather, self->layout.n_dims, &gather_dim));
    TRY(layout_normalise_dim("shard_dim", shard, self->layout.n_dims, &shard_dim));
    TRY(launch_input_blocks(launch, self, shard_dim, &send));
    TRY(launch_output_blocks(launch, out, gather_dim, &recv));
    launch_say_shape(launch, self);
    launch_say_number(launch, gather_dim);
    launch_say_number(launch, shard_dim);
    return start_even_exchange(launch, LAUNCH_SHARD_DIM, send, recv, self);
}

shoal_status run_shard_dim_alltoall(shoal_op_call_context *call, const shoal_value *arguments,
                                    shoal_tensor *const *outputs, size_t n_outputs)
{
    struct launch launch;
    launch_begin(&launch, arguments[3].as.group);
    return launch_end(&launch, launch_shard_dim(&launch, arguments[0].as.tensor, arguments[1].as.integer,
                                                arguments[2].as.integer, outputs[0]));
}

/* Permutations ----------------------------------------------------------------------------------------- */

shoal_status meta_permute_tensor(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    struct layout layout = self->layout;
    int source;
    int destination;
    if (layout.n_dims == 0) {
        return error_set(SHOAL_ERR_INVALID, "self: a 0-d tensor has no rows to send");
    }
    TRY(arguments_permutation(&arguments[1], arguments[2].as.group, &source, &destination));
    if (source < 0) {
        layout.shape[0] = 0;
    }
    return shoal_op_output(call, layout.shape, layout.n_dims, self->dtype);
}

static shoal_status launch_permute(struct launch *launch, shoal_tensor *self, const shoal_value *destinations,
                                   shoal_tensor *out)
{
    const void *send;
    void *recv;
    int source;
    int destination;
    size_t n_ranks = (size_t)launch->n_ranks;
    size_t *counts = launch_alloc(launch, 2 * n_ranks, sizeof *counts);
    if (!counts) {
        return SHOAL_ERR_NO_MEMORY;
    }
    TRY(arguments_permutation(destinations, launch->group, &source, &destination));
    TRY(launch_input(launch, self, &send));
    TRY(launch_output(launch, out, &recv));
    if (destination >= 0) {
        counts[destination] = (size_t)self->count;
    }
    if (source >= 0) {
        counts[n_ranks + (size_t)source] = (size_t)out->count;
    }
    struct collective call = {.kind = COLLECTIVE_ALL_TO_ALL,
                              .dtype = self->dtype,
                              .single = {.send = send, .recv = recv},
                              .send_counts = counts,
                              .recv_counts = counts + n_ranks};
    launch_say_shape(launch, self);
    launch_say_numbers(launch, destinations->as.integers, destinations->count);
    return launch_start(launch, LAUNCH_PERMUTE, &call);
}

shoal_status run_permute_tensor(shoal_op_call_context *call, const shoal_value *arguments,
                                shoal_tensor *const *outputs, size_t n_outputs)
{
    struct launch launch;
    launch_begin(&launch, arguments[2].as.group);
    return launch_end(&launch, launch_permute(&launch, arguments[0].as.tensor, &arguments[1], outputs[0]));
}

/* broadcast -------------------------------------------------------------------------------------------- */

shoal_status meta_broadcast(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    int root;
    TRY(arguments_rank("root", &arguments[1], arguments[2].as.group, &root));
    return op_declare_like(call, self, self->dtype);
}

shoal_status meta_broadcast_(shoal_op_call_context *call, const shoal_value *arguments)
{
    int root;
    TRY(arguments_rank("root", &arguments[1], arguments[2].as.group, &root));
    TRY(op_check_writable("self", arguments[0].as.tensor));
    return shoal_op_output_alias(call, arguments[0].as.tensor);
}

static shoal_status start_broadcast(struct launch *launch, void *data, const shoal_tensor *like, int root)
{
    struct collective call = {.kind = COLLECTIVE_BROADCAST,
                              .dtype = like->dtype,
                              .root = root,
                              .single = {.send = data, .recv = data, .count = (size_t)like->count}};
    launch_say_shape(launch, like);
    return launch_start(launch, LAUNCH_BROADCAST, &call);
}

/* Up to this size the root copies its input at once: that is faster than a copy later, and a small broadcast copies
   the input at the call in any case. */
#define COPY_AT_ONCE_BYTES 8192

/* The root sends from its input, and its own output is copied when the work has ended. The call does not wait for
   that. */
static shoal_status launch_from_root(struct launch *launch, shoal_tensor *self, int root, shoal_tensor *out)
{
    const void *send;
    TRY(launch_input(launch, self, &send));
    TRY(launch_output_copy(launch, out, send));
    return start_broadcast(launch, (void *)(uintptr_t)send, out, root); /* on the root it is only read */
}

/* Only the root's input is used, and it is copied only into the root's own output. */
static shoal_status launch_broadcast(struct launch *launch, shoal_tensor *self, int root, shoal_tensor *out)
{
    void *data;
    if (shoal_group_rank(launch->group) == root) {
        if (self->is_contiguous && tensor_bytes(self) > COPY_AT_ONCE_BYTES) {
            return launch_from_root(launch, self, root, out);
        }
        TRY(op_copy_into(
            out, self)); /* a tensor with gaps has to be copied in any case: the output is that copy */
    }
    TRY(launch_output(launch, out, &data));
    return start_broadcast(launch, data, out, root);
}

shoal_status run_broadcast(shoal_op_call_context *call, const shoal_value *arguments,
                           shoal_tensor *const *outputs, size_t n_outputs)
{
    struct launch launch;
    launch_begin(&launch, arguments[2].as.group);
    return launch_end(
        &launch, launch_broadcast(&launch, arguments[0].as.tensor, (int)arguments[1].as.integer, outputs[0]));
}

static shoal_status launch_broadcast_(struct launch *launch, shoal_tensor *self, int root)
{
    void *data;
    TRY(launch_in_place(launch, self, &data));
    return start_broadcast(launch, data, self, root);
}

shoal_status run_broadcast_(shoal_op_call_context *call, const shoal_value *arguments,
                            shoal_tensor *const *outputs, size_t n_outputs)
{
    struct launch launch;
    launch_begin(&launch, arguments[2].as.group);
    return launch_end(&launch, launch_broadcast_(&launch, outputs[0], (int)arguments[1].as.integer));
}
