/* SPDX-License-Identifier: MIT */
/* The typed functions of shoal/ops.h: box the arguments, call the row. */
#include "shoal/ops.h"

#include "base/error.h"
#include "op/box.h"
#include "op/op.h"
#include "device/device.h"
#include "tensor/scope.h"

shoal_tensor *box_call_one(enum op_id id, const shoal_value *arguments, size_t n_arguments)
{
    shoal_value result;
    return shoal_op_call(op_get(id), arguments, n_arguments, &result) == SHOAL_OK ? result.as.tensor : NULL;
}

shoal_tensor *const *box_call_many(enum op_id id, const shoal_value *arguments, size_t n_arguments,
                                   size_t *count_out)
{
    shoal_value result;
    if (count_out) {
        *count_out = 0;
    }
    if (shoal_op_call(op_get(id), arguments, n_arguments, &result) != SHOAL_OK) {
        return NULL;
    }
    if (count_out) {
        *count_out = result.count;
    }
    return result.as.tensors;
}

shoal_tensor *shoal_empty(const int64_t *shape, int n_dims, shoal_dtype dtype)
{
    return BOX_ONE(empty, box_dims(shape, n_dims), box_dtype(dtype));
}

shoal_tensor *shoal_empty_on(const int64_t *shape, int n_dims, shoal_dtype dtype, shoal_device device)
{
    if (scope_enter() != SHOAL_OK) {
        return NULL;
    }
    shoal_status status = device_check(device, "empty: device");
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
        return NULL;
    }
    return BOX_ONE(empty, box_dims(shape, n_dims), box_dtype(dtype), box_string(device_name(device)));
}

shoal_tensor *shoal_to_device(shoal_tensor *self, shoal_device device)
{
    if (scope_enter() != SHOAL_OK) {
        return NULL;
    }
    shoal_status status = device_check(device, "to_device: device");
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
        return NULL;
    }
    return BOX_ONE(to_device, box_tensor(self), box_string(device_name(device)));
}

shoal_tensor *shoal_zeros(const int64_t *shape, int n_dims, shoal_dtype dtype)
{
    return BOX_ONE(zeros, box_dims(shape, n_dims), box_dtype(dtype));
}

shoal_tensor *shoal_full(const int64_t *shape, int n_dims, double value, shoal_dtype dtype)
{
    return BOX_ONE(full, box_dims(shape, n_dims), box_float(value), box_dtype(dtype));
}

shoal_tensor *shoal_clone(shoal_tensor *self)
{
    return BOX_ONE(clone, box_tensor(self));
}

shoal_tensor *shoal_contiguous(shoal_tensor *self)
{
    return BOX_ONE(contiguous, box_tensor(self));
}

shoal_tensor *shoal_copy_(shoal_tensor *self, shoal_tensor *source)
{
    return BOX_ONE(copy_, box_tensor(self), box_tensor(source));
}

shoal_tensor *shoal_to_dtype(shoal_tensor *self, shoal_dtype dtype)
{
    return BOX_ONE(to_dtype, box_tensor(self), box_dtype(dtype));
}

shoal_tensor *shoal_view(shoal_tensor *self, const int64_t *shape, int n_dims)
{
    return BOX_ONE(view, box_tensor(self), box_dims(shape, n_dims));
}

shoal_tensor *shoal_view_dtype(shoal_tensor *self, shoal_dtype dtype)
{
    return BOX_ONE(view_dtype, box_tensor(self), box_dtype(dtype));
}

shoal_tensor *shoal_reshape(shoal_tensor *self, const int64_t *shape, int n_dims)
{
    return BOX_ONE(reshape, box_tensor(self), box_dims(shape, n_dims));
}

shoal_tensor *shoal_narrow(shoal_tensor *self, int64_t dim, int64_t start, int64_t length)
{
    return BOX_ONE(narrow, box_tensor(self), box_int(dim), box_int(start), box_int(length));
}

shoal_tensor *shoal_slice(shoal_tensor *self, int64_t dim, int64_t start, int64_t stop, int64_t step)
{
    return BOX_ONE(slice, box_tensor(self), box_int(dim), box_int(start), box_int(stop), box_int(step));
}

shoal_tensor *shoal_select(shoal_tensor *self, int64_t dim, int64_t index)
{
    return BOX_ONE(select, box_tensor(self), box_int(dim), box_int(index));
}

shoal_tensor *shoal_permute(shoal_tensor *self, const int64_t *dims, int n_dims)
{
    return BOX_ONE(permute, box_tensor(self), box_dims(dims, n_dims));
}

shoal_tensor *shoal_transpose(shoal_tensor *self, int64_t dim_a, int64_t dim_b)
{
    return BOX_ONE(transpose, box_tensor(self), box_int(dim_a), box_int(dim_b));
}

shoal_tensor *shoal_expand(shoal_tensor *self, const int64_t *shape, int n_dims)
{
    return BOX_ONE(expand, box_tensor(self), box_dims(shape, n_dims));
}

shoal_tensor *shoal_as_strided(shoal_tensor *self, const int64_t *shape, const int64_t *strides, int n_dims,
                               int64_t offset)
{
    return BOX_ONE(as_strided, box_tensor(self), box_dims(shape, n_dims), box_dims(strides, n_dims),
                   box_int(offset));
}

shoal_tensor *const *shoal_split_with_sizes(shoal_tensor *self, const int64_t *sizes, size_t n_sizes,
                                            int64_t dim, size_t *count_out)
{
    return BOX_MANY(split_with_sizes, count_out, box_tensor(self), box_ints(sizes, n_sizes), box_int(dim));
}

shoal_tensor *shoal_cat(shoal_tensor *const *tensors, size_t n_tensors, int64_t dim)
{
    return BOX_ONE(cat, box_tensors(tensors, n_tensors), box_int(dim));
}

shoal_tensor *shoal_add(shoal_tensor *self, shoal_tensor *other)
{
    return BOX_ONE(add, box_tensor(self), box_tensor(other));
}

shoal_tensor *shoal_sub(shoal_tensor *self, shoal_tensor *other)
{
    return BOX_ONE(sub, box_tensor(self), box_tensor(other));
}

shoal_tensor *shoal_mul(shoal_tensor *self, shoal_tensor *other)
{
    return BOX_ONE(mul, box_tensor(self), box_tensor(other));
}

shoal_tensor *shoal_div(shoal_tensor *self, shoal_tensor *other)
{
    return BOX_ONE(div, box_tensor(self), box_tensor(other));
}

shoal_tensor *shoal_add_(shoal_tensor *self, shoal_tensor *other)
{
    return BOX_ONE(add_, box_tensor(self), box_tensor(other));
}

shoal_tensor *shoal_sub_(shoal_tensor *self, shoal_tensor *other)
{
    return BOX_ONE(sub_, box_tensor(self), box_tensor(other));
}

shoal_tensor *shoal_mul_(shoal_tensor *self, shoal_tensor *other)
{
    return BOX_ONE(mul_, box_tensor(self), box_tensor(other));
}

shoal_tensor *shoal_neg(shoal_tensor *self)
{
    return BOX_ONE(neg, box_tensor(self));
}

shoal_tensor *shoal_add_scalar(shoal_tensor *self, double other)
{
    return BOX_ONE(add_scalar, box_tensor(self), box_float(other));
}

shoal_tensor *shoal_add_scalar_(shoal_tensor *self, double other)
{
    return BOX_ONE(add_scalar_, box_tensor(self), box_float(other));
}

shoal_tensor *shoal_mul_scalar(shoal_tensor *self, double other)
{
    return BOX_ONE(mul_scalar, box_tensor(self), box_float(other));
}

shoal_tensor *shoal_mul_scalar_(shoal_tensor *self, double other)
{
    return BOX_ONE(mul_scalar_, box_tensor(self), box_float(other));
}

shoal_tensor *shoal_div_scalar(shoal_tensor *self, double other)
{
    return BOX_ONE(div_scalar, box_tensor(self), box_float(other));
}

shoal_tensor *shoal_sum(shoal_tensor *self, const int64_t *dims, int n_dims, bool keeps_dims)
{
    return BOX_ONE(sum, box_tensor(self), box_dims(dims, n_dims), box_bool(keeps_dims));
}

shoal_tensor *shoal_mean(shoal_tensor *self, const int64_t *dims, int n_dims, bool keeps_dims)
{
    return BOX_ONE(mean, box_tensor(self), box_dims(dims, n_dims), box_bool(keeps_dims));
}
