/* SPDX-License-Identifier: MIT */
/* Tensors over symmetric memory, and the rows that require it. */
#include <stdint.h>

#include "base/error.h"
#include "base/try.h"
#include "collective/arguments.h"
#include "collective/launch.h"
#include "collective/rows.h"
#include "comm/lane/handles.h"
#include "op/operand.h"
#include "shoal/collective.h"
#include "shoal/window.h"
#include "tensor/dtype.h"
#include "tensor/scope.h"

/* Tensors ---------------------------------------------------------------------------------------------- */

static shoal_status check_place(shoal_symmetric *symmetric, size_t offset, const int64_t *shape, int n_dims,
                                shoal_dtype dtype)
{
    int64_t count;
    size_t bytes;
    if (!symmetric) {
        return error_set(SHOAL_ERR_INVALID, "symmetric is NULL");
    }
    TRY(dtype_check(dtype, "dtype"));
    if (n_dims > 0 && !shape) {
        return error_set(SHOAL_ERR_INVALID, "shape is NULL with %d dimensions", n_dims);
    }
    TRY(layout_count(n_dims, shape, &count));
    size_t element_bytes = dtype_bytes(dtype);
    size_t total = shoal_symmetric_bytes(symmetric);
    if (offset % element_bytes != 0) {
        return error_set(SHOAL_ERR_INVALID, "offset %zu is not a multiple of the %zu bytes of %s", offset,
                         element_bytes, shoal_dtype_name(dtype));
    }
    if (__builtin_mul_overflow((size_t)count, element_bytes, &bytes) || bytes > total ||
        offset > total - bytes) {
        char text[LAYOUT_TEXT_BYTES];
        return error_set(SHOAL_ERR_INVALID, "shape %s of %s at offset %zu does not fit %zu bytes",
                         layout_format(text, n_dims, shape), shoal_dtype_name(dtype), offset, total);
    }
    return SHOAL_OK;
}

shoal_tensor *shoal_symmetric_tensor(shoal_symmetric *symmetric, size_t offset, const int64_t *shape,
                                     int n_dims, shoal_dtype dtype)
{
    if (scope_enter() != SHOAL_OK) {
        return NULL;
    }
    error_clear();
    shoal_status status = check_place(symmetric, offset, shape, n_dims, dtype);
    if (status != SHOAL_OK) {
        (void)scope_fail(error_prefix(status, "symmetric_tensor"));
        return NULL;
    }
    char *data = shoal_symmetric_data(symmetric);
    return tensor_from_memory("symmetric_tensor", symmetric_device(symmetric), data + offset, shape, n_dims,
                              dtype, NULL, NULL, NULL);
}

/* Rows ------------------------------------------------------------------------------------------------- */

/* Fails if `self` is not in symmetric memory. In a world without peers, and for 0 elements, any memory will do. */
static shoal_status check_symmetric(shoal_tensor *self, shoal_group *group)
{
    struct address data;
    TRY(tensor_address(self, &data));
    if (!self->is_contiguous) {
        return error_set(SHOAL_ERR_INVALID, "self is not contiguous");
    }
    if (!group_has_symmetric(group, address_pointer(data), tensor_bytes(self))) {
        return error_set(SHOAL_ERR_INVALID,
                         "self is not in symmetric memory of group %s (shoal_symmetric_create, "
                         "shoal_symmetric_tensor)",
                         group_text(group));
    }
    return SHOAL_OK;
}

shoal_status run_symmetric_all_reduce(shoal_op_call_context *call, const shoal_value *arguments,
                                      shoal_tensor *const *outputs, size_t n_outputs)
{
    TRY(check_symmetric(arguments[0].as.tensor, arguments[2].as.group));
    return run_all_reduce(call, arguments, outputs, n_outputs);
}

shoal_status run_symmetric_all_reduce_(shoal_op_call_context *call, const shoal_value *arguments,
                                       shoal_tensor *const *outputs, size_t n_outputs)
{
    TRY(check_symmetric(arguments[0].as.tensor, arguments[2].as.group));
    return run_all_reduce_(call, arguments, outputs, n_outputs);
}

/* The arguments are (out, self, reduce, group): those of all_reduce after `out`. */
shoal_status meta_symmetric_all_reduce_out(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_tensor *self = arguments[1].as.tensor;
    struct reduction reduction;
    TRY(arguments_reduction_of(&arguments[2], NULL, self->dtype, &reduction));
    TRY(arguments_out("out", arguments[0].as.tensor, self, &self->layout));
    return shoal_op_output_alias(call, arguments[0].as.tensor);
}

static shoal_status launch_into(struct launch *launch, shoal_reduce_op reduce, shoal_tensor *self,
                                shoal_tensor *out)
{
    const void *send;
    void *recv;
    TRY(launch_input(launch, self, &send));
    TRY(launch_output(launch, out, &recv));
    struct collective call = {.kind = COLLECTIVE_ALL_REDUCE,
                              .dtype = self->dtype,
                              .reduce = reduce,
                              .single = {.send = send, .recv = recv, .count = (size_t)self->count}};
    launch_say_shape(launch, self);
    shoal_status status = launch_start(launch, LAUNCH_ALL_REDUCE, &call);
    return arguments_explain_overlap(status, self, out, "coincide");
}

static shoal_status run_into(const shoal_value *reduce, shoal_group *group, shoal_tensor *self,
                             shoal_tensor *out)
{
    struct reduction reduction;
    struct launch launch;
    TRY(arguments_reduction(reduce, NULL, &reduction));
    launch_begin(&launch, group);
    return launch_end(&launch, launch_into(&launch, reduction.reduce, self, out));
}

shoal_status run_symmetric_all_reduce_out(shoal_op_call_context *call, const shoal_value *arguments,
                                          shoal_tensor *const *outputs, size_t n_outputs)
{
    TRY(check_symmetric(arguments[1].as.tensor, arguments[3].as.group));
    return run_into(&arguments[2], arguments[3].as.group, arguments[1].as.tensor, outputs[0]);
}

/* Copies first ----------------------------------------------------------------------------------------- */

static shoal_status check_source(const shoal_tensor *self, const shoal_tensor *source)
{
    if (self->dtype != source->dtype || !layout_is_same_shape(self->layout.n_dims, self->layout.shape,
                                                              source->layout.n_dims, source->layout.shape)) {
        char a[TENSOR_TEXT_BYTES];
        char b[TENSOR_TEXT_BYTES];
        return error_set(SHOAL_ERR_INVALID, "source: %s, but self is %s", tensor_format(a, source),
                         tensor_format(b, self));
    }
    return op_check_writable("self", self);
}

/* The op writes self although it returns another tensor. The dispatcher does not know that, so the waits are made
   here. */
static shoal_status copy_source(shoal_tensor *self, shoal_tensor *source, shoal_group *group)
{
    TRY(check_symmetric(self, group));
    TRY(arguments_wait_readable("source", source));
    TRY(arguments_wait_writable("self", self));
    TRY(op_copy_overlapping(self, source));
    tensor_forget_fences(self);
    storage_bump_version(self->storage);
    return SHOAL_OK;
}

shoal_status meta_symmetric_all_reduce_copy(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    struct reduction reduction;
    TRY(arguments_reduction_of(&arguments[2], NULL, self->dtype, &reduction));
    TRY(check_source(self, arguments[1].as.tensor));
    return op_declare_like(call, self, self->dtype);
}

shoal_status run_symmetric_all_reduce_copy(shoal_op_call_context *call, const shoal_value *arguments,
                                           shoal_tensor *const *outputs, size_t n_outputs)
{
    shoal_tensor *self = arguments[0].as.tensor;
    TRY(copy_source(self, arguments[1].as.tensor, arguments[3].as.group));
    return run_into(&arguments[2], arguments[3].as.group, self, outputs[0]);
}

shoal_status meta_symmetric_all_reduce_copy_out(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_tensor *self = arguments[1].as.tensor;
    struct reduction reduction;
    TRY(arguments_reduction_of(&arguments[3], NULL, self->dtype, &reduction));
    TRY(check_source(self, arguments[2].as.tensor));
    TRY(arguments_out("out", arguments[0].as.tensor, self, &self->layout));
    return shoal_op_output_alias(call, arguments[0].as.tensor);
}

shoal_status run_symmetric_all_reduce_copy_out(shoal_op_call_context *call, const shoal_value *arguments,
                                               shoal_tensor *const *outputs, size_t n_outputs)
{
    shoal_tensor *self = arguments[1].as.tensor;
    TRY(arguments_wait_writable("out", outputs[0]));
    TRY(copy_source(self, arguments[2].as.tensor, arguments[4].as.group));
    return run_into(&arguments[3], arguments[4].as.group, self, outputs[0]);
}
