/* SPDX-License-Identifier: MIT */
/* Rows that reduce: all_reduce, reduce and reduce_scatter in all their forms. */
#include "base/error.h"
#include "base/try.h"
#include "collective/arguments.h"
#include "collective/launch.h"
#include "collective/rows.h"
#include "kernel/table.h"
#include "op/operand.h"
#include "shoal/group.h"

/* Starting --------------------------------------------------------------------------------------------- */

static struct collective collective_of(enum collective_kind kind, const struct reduction *reduction,
                                       shoal_dtype dtype)
{
    return (struct collective){.kind = kind,
                               .dtype = dtype,
                               .reduce = reduction->reduce,
                               .factor = reduction->reduce == SHOAL_PREMUL_SUM ? reduction->factor : 0.0};
}

static shoal_status start_all_reduce(struct launch *launch, const struct reduction *reduction,
                                     const void *send, void *recv, const shoal_tensor *like)
{
    struct collective call = collective_of(COLLECTIVE_ALL_REDUCE, reduction, like->dtype);
    call.single = (struct collective_piece){.send = send, .recv = recv, .count = (size_t)like->count};
    launch_say_shape(launch, like);
    return launch_start(launch, LAUNCH_ALL_REDUCE, &call);
}

/* all_reduce ------------------------------------------------------------------------------------------- */

/* A row with a factor has one parameter more, the last. */
static const shoal_value *factor_of(const shoal_op_call_context *call, const shoal_value *arguments,
                                    size_t index)
{
    return index < call->op->n_params ? &arguments[index] : NULL;
}

shoal_status meta_all_reduce(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    struct reduction reduction;
    TRY(arguments_reduction_of(&arguments[1], factor_of(call, arguments, 3), self->dtype, &reduction));
    return op_declare_like(call, self, self->dtype);
}

shoal_status meta_all_reduce_(shoal_op_call_context *call, const shoal_value *arguments)
{
    shoal_tensor *self = arguments[0].as.tensor;
    struct reduction reduction;
    TRY(arguments_reduction_of(&arguments[1], factor_of(call, arguments, 3), self->dtype, &reduction));
    TRY(op_check_writable("self", self));
    return shoal_op_output_alias(call, self);
}

static shoal_status launch_all_reduce(struct launch *launch, const struct reduction *reduction,
                                      shoal_tensor *self, shoal_tensor *out)
{
    const void *send;
    void *recv;
    TRY(launch_input(launch, self, &send));
    TRY(launch_output(launch, out, &recv));
    return start_all_reduce(launch, reduction, send, recv, self);
}

shoal_status run_all_reduce(shoal_op_call_context *call, const shoal_value *arguments,
                            shoal_tensor *const *outputs, size_t n_outputs)
{
    struct reduction reduction;
    struct launch launch;
    TRY(arguments_reduction(&arguments[1], factor_of(call, arguments, 3), &reduction));
    launch_begin(&launch, arguments[2].as.group);
    return launch_end(&launch, launch_all_reduce(&launch, &reduction, arguments[0].as.tensor, outputs[0]));
}

static shoal_status launch_all_reduce_(struct launch *launch, const struct reduction *reduction,
                                       shoal_tensor *self)
{
    void *data;
    TRY(launch_in_place(launch, self, &data));
    return start_all_reduce(launch, reduction, data, data, self);
}

shoal_status run_all_reduce_(shoal_op_call_context *call, const shoal_value *arguments,
                             shoal_tensor *const *outputs, size_t n_outputs)
{
    struct reduction reduction;
    struct launch launch;
    TRY(arguments_reduction(&arguments[1], factor_of(call, arguments, 3), &reduction));
    launch_begin(&launch, arguments[2].as.group);
    return launch_end(&launch, launch_all_reduce_(&launch, &reduction, outputs[0]));
}

/* Lists ------------------------------------------------------------------------------------------------ */

static shoal_status check_coalesced(const shoal_value *arguments)
{
    struct reduction reduction;
    TRY(arguments_list(&arguments[0]));
    return arguments_reduction_of(&arguments[1], &arguments[3], arguments[0].as.tensors[0]->dtype,
                                  &reduction);
}

shoal_status meta_all_reduce_coalesced(shoal_op_call_context *call, const shoal_value *arguments)
{
    TRY(check_coalesced(arguments));
    for (size_t i = 0; i < arguments[0].count; i++) {
        const shoal_tensor *tensor = arguments[0].as.tensors[i];
        TRY(op_declare_like(call, tensor, tensor->dtype));
    }
    return SHOAL_OK;
}

shoal_status meta_all_reduce_coalesced_(shoal_op_call_context *call, const shoal_value *arguments)
{
    TRY(check_coalesced(arguments));
    for (size_t i = 0; i < arguments[0].count; i++) {
        struct arguments_name name;
        TRY(op_check_writable(arguments_of_list("tensors", i, &name), arguments[0].as.tensors[i]));
        TRY(shoal_op_output_alias(call, arguments[0].as.tensors[i]));
    }
    return arguments_targets_apart("tensors", &arguments[0]);
}

static shoal_status start_all_reduce_list(struct launch *launch, const struct reduction *reduction,
                                          const shoal_part *parts, size_t n_parts, shoal_dtype dtype)
{
    struct collective call = collective_of(COLLECTIVE_ALL_REDUCE, reduction, dtype);
    return launch_start_list(launch, LAUNCH_ALL_REDUCE, &call, parts, n_parts);
}

/* In place if inputs == outputs. */
static shoal_status launch_all_reduce_list(struct launch *launch, const struct reduction *reduction,
                                           shoal_tensor *const *inputs, shoal_tensor *const *outputs,
                                           size_t n_tensors, bool is_in_place)
{
    shoal_part *parts = launch_alloc(launch, n_tensors, sizeof *parts);
    if (!parts) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n_tensors; i++) {
        parts[i].count = (size_t)outputs[i]->count;
        launch_say_shape(launch, outputs[i]);
        if (is_in_place) {
            TRY(launch_in_place(launch, outputs[i], &parts[i].recv));
            parts[i].send = parts[i].recv;
        } else {
            TRY(launch_input(launch, inputs[i], &parts[i].send));
            TRY(launch_output(launch, outputs[i], &parts[i].recv));
        }
    }
    shoal_status status = start_all_reduce_list(launch, reduction, parts, n_tensors, outputs[0]->dtype);
    return arguments_explain_list(status, outputs, n_tensors);
}

static shoal_status run_list(const shoal_value *arguments, shoal_tensor *const *outputs, size_t n_outputs,
                             bool is_in_place)
{
    struct reduction reduction;
    struct launch launch;
    TRY(arguments_reduction(&arguments[1], &arguments[3], &reduction));
    launch_begin(&launch, arguments[2].as.group);
    return launch_end(&launch, launch_all_reduce_list(&launch, &reduction, arguments[0].as.tensors, outputs,
                                                      n_outputs, is_in_place));
}

shoal_status run_all_reduce_coalesced(shoal_op_call_context *call, const shoal_value *arguments,
                                      shoal_tensor *const *outputs, size_t n_outputs)
{
    return run_list(arguments, outputs, n_outputs, /*is_in_place=*/false);
}

shoal_status run_all_reduce_coalesced_(shoal_op_call_context *call, const shoal_value *arguments,
                                       shoal_tensor *const *outputs, size_t n_outputs)
{
    return run_list(arguments, outputs, n_outputs, /*is_in_place=*/true);
}

/* reduce ----------------------------------------------------------------------------------------------- */

shoal_status meta_reduce(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    struct reduction reduction;
    int root;
    TRY(arguments_reduction_of(&arguments[1], &arguments[4], self->dtype, &reduction));
    TRY(arguments_rank("root", &arguments[2], arguments[3].as.group, &root));
    return op_declare_like(call, self, self->dtype);
}

static shoal_status launch_reduce(struct launch *launch, const struct reduction *reduction, int root,
                                  shoal_tensor *self, shoal_tensor *out)
{
    const void *send;
    void *recv;
    TRY(launch_input(launch, self, &send));
    if (shoal_group_rank(launch->group) == root) {
        TRY(launch_output(launch, out, &recv));
    } else {
        /* Other ranks get zeros. They count as ready when the reduction has ended, so that a failure shows on this
           rank too. */
        TRY(launch_mark(launch, out));
        struct kernel_move zeros = {.count = (size_t)out->count, .dst_dtype = out->dtype};
        TRY(tensor_address(out, &zeros.dst));
        kernel_of((shoal_device)out->device)->move(&zeros, 1);
        recv = NULL;
    }
    struct collective call = collective_of(COLLECTIVE_REDUCE, reduction, self->dtype);
    call.root = root;
    call.single = (struct collective_piece){.send = send, .recv = recv, .count = (size_t)self->count};
    launch_say_shape(launch, self);
    return launch_start(launch, LAUNCH_REDUCE, &call);
}

shoal_status run_reduce(shoal_op_call_context *call, const shoal_value *arguments,
                        shoal_tensor *const *outputs, size_t n_outputs)
{
    struct reduction reduction;
    struct launch launch;
    TRY(arguments_reduction(&arguments[1], &arguments[4], &reduction));
    launch_begin(&launch, arguments[3].as.group);
    return launch_end(&launch, launch_reduce(&launch, &reduction, (int)arguments[2].as.integer,
                                             arguments[0].as.tensor, outputs[0]));
}

/* reduce_scatter --------------------------------------------------------------------------------------- */

/* Checks the arguments, and finds the layout of the block that a rank gets. */
static shoal_status check_scatter(const shoal_tensor *self, const shoal_value *reduce,
                                  const shoal_value *factor, int64_t dim, shoal_group *group,
                                  struct layout *layout_out)
{
    struct reduction reduction;
    int scatter_dim;
    TRY(arguments_reduction_of(reduce, factor, self->dtype, &reduction));
    return arguments_scattered("scatter_dim", self, dim, group, layout_out, &scatter_dim);
}

shoal_status meta_reduce_scatter_tensor(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    struct layout layout;
    TRY(check_scatter(self, &arguments[1], &arguments[4], arguments[2].as.integer, arguments[3].as.group,
                      &layout));
    return shoal_op_output(call, layout.shape, layout.n_dims, self->dtype);
}

/* Forms with an output argument: (out, self, reduce, [dim,] group, factor). */
static shoal_status declare_scatter_out(shoal_op_call_context *call, const shoal_value *arguments,
                                        int64_t dim, shoal_group *group, const shoal_value *factor)
{
    struct layout layout;
    TRY(check_scatter(arguments[1].as.tensor, &arguments[2], factor, dim, group, &layout));
    TRY(arguments_out("out", arguments[0].as.tensor, arguments[1].as.tensor, &layout));
    return shoal_op_output_alias(call, arguments[0].as.tensor);
}

shoal_status meta_reduce_scatter_tensor_out(shoal_op_call_context *call, const shoal_value *arguments)
{
    return declare_scatter_out(call, arguments, 0, arguments[3].as.group, &arguments[4]);
}

shoal_status meta_reduce_scatter_tensor_inplace(shoal_op_call_context *call, const shoal_value *arguments)
{
    return declare_scatter_out(call, arguments, arguments[3].as.integer, arguments[4].as.group,
                               &arguments[5]);
}

static shoal_status launch_reduce_scatter(struct launch *launch, const struct reduction *reduction,
                                          int64_t dim, shoal_tensor *self, shoal_tensor *out)
{
    const void *send;
    void *recv;
    int scatter_dim;
    TRY(layout_normalise_dim("scatter_dim", dim, self->layout.n_dims, &scatter_dim));
    TRY(launch_input_blocks(launch, self, scatter_dim, &send));
    TRY(launch_output(launch, out, &recv));
    struct collective call = collective_of(COLLECTIVE_REDUCE_SCATTER, reduction, out->dtype);
    call.single = (struct collective_piece){.send = send, .recv = recv, .count = (size_t)out->count};
    launch_say_shape(launch, self);
    launch_say_number(launch, scatter_dim);
    shoal_status status = launch_start(launch, LAUNCH_REDUCE_SCATTER, &call);
    return arguments_explain_overlap(status, self, out, "coincide with out at this rank's block of self");
}

static shoal_status run_scatter(const shoal_value *reduce, const shoal_value *factor, int64_t dim,
                                shoal_group *group, shoal_tensor *self, shoal_tensor *out)
{
    struct reduction reduction;
    struct launch launch;
    TRY(arguments_reduction(reduce, factor, &reduction));
    launch_begin(&launch, group);
    return launch_end(&launch, launch_reduce_scatter(&launch, &reduction, dim, self, out));
}

shoal_status run_reduce_scatter_tensor(shoal_op_call_context *call, const shoal_value *arguments,
                                       shoal_tensor *const *outputs, size_t n_outputs)
{
    return run_scatter(&arguments[1], &arguments[4], arguments[2].as.integer, arguments[3].as.group,
                       arguments[0].as.tensor, outputs[0]);
}

shoal_status run_reduce_scatter_tensor_out(shoal_op_call_context *call, const shoal_value *arguments,
                                           shoal_tensor *const *outputs, size_t n_outputs)
{
    return run_scatter(&arguments[2], &arguments[4], 0, arguments[3].as.group, arguments[1].as.tensor,
                       outputs[0]);
}

shoal_status run_reduce_scatter_tensor_inplace(shoal_op_call_context *call, const shoal_value *arguments,
                                               shoal_tensor *const *outputs, size_t n_outputs)
{
    return run_scatter(&arguments[2], &arguments[5], arguments[3].as.integer, arguments[4].as.group,
                       arguments[1].as.tensor, outputs[0]);
}

shoal_status meta_reduce_scatter_tensor_coalesced(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_value *tensors = &arguments[0];
    TRY(arguments_list(tensors));
    if (arguments[2].count != 0 && arguments[2].count != tensors->count) {
        return error_set(SHOAL_ERR_INVALID, "scatter_dims: %zu numbers are given for %zu tensors",
                         arguments[2].count, tensors->count);
    }
    for (size_t i = 0; i < tensors->count; i++) {
        struct layout layout;
        const shoal_tensor *tensor = tensors->as.tensors[i];
        shoal_status status =
            check_scatter(tensor, &arguments[1], &arguments[4], arguments_dim_at(&arguments[2], i),
                          arguments[3].as.group, &layout);
        if (status != SHOAL_OK) {
            return error_prefix(status, "tensors[%zu]", i);
        }
        TRY(shoal_op_output(call, layout.shape, layout.n_dims, tensor->dtype));
    }
    return SHOAL_OK;
}

static shoal_status launch_scatter_list(struct launch *launch, const struct reduction *reduction,
                                        const shoal_value *arguments, shoal_tensor *const *outputs,
                                        size_t n_outputs)
{
    shoal_part *parts = launch_alloc(launch, n_outputs, sizeof *parts);
    if (!parts) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n_outputs; i++) {
        shoal_tensor *tensor = arguments[0].as.tensors[i];
        int dim;
        TRY(layout_normalise_dim("scatter_dims", arguments_dim_at(&arguments[2], i), tensor->layout.n_dims,
                                 &dim));
        launch_say_shape(launch, tensor);
        launch_say_number(launch, dim);
        TRY(launch_input_blocks(launch, tensor, dim, &parts[i].send));
        TRY(launch_output(launch, outputs[i], &parts[i].recv));
        parts[i].count = (size_t)outputs[i]->count;
    }
    struct collective call = collective_of(COLLECTIVE_REDUCE_SCATTER, reduction, outputs[0]->dtype);
    return launch_start_list(launch, LAUNCH_REDUCE_SCATTER, &call, parts, n_outputs);
}

shoal_status run_reduce_scatter_tensor_coalesced(shoal_op_call_context *call, const shoal_value *arguments,
                                                 shoal_tensor *const *outputs, size_t n_outputs)
{
    struct reduction reduction;
    struct launch launch;
    TRY(arguments_reduction(&arguments[1], &arguments[4], &reduction));
    launch_begin(&launch, arguments[3].as.group);
    return launch_end(&launch, launch_scatter_list(&launch, &reduction, arguments, outputs, n_outputs));
}
