/* SPDX-License-Identifier: MIT */
/* From tensors and boxed values to what kernels take. */
#ifndef OP_OPERAND_H
#define OP_OPERAND_H

#include <stdbool.h>

#include "kernel/table.h"
#include "op/op.h"

/* The kernels of the tensor's device, which has data. */
static inline const struct kernel_table *op_kernels(const shoal_tensor *tensor)
{
    return kernel_of((shoal_device)tensor->device);
}

/* Gives the tensor's first element and strides; the tensor must outlive the operand. */
shoal_status op_operand(const shoal_tensor *tensor, struct kernel_operand *operand_out);

/* Gives the operand of a tensor that is broadcast to a shape. The new strides are written to `strides`, which must
   outlive the operand. */
shoal_status op_operand_over(const shoal_tensor *tensor, int n_dims, const int64_t *shape, int64_t *strides,
                             struct kernel_operand *operand_out);

/* Declares another output of a call, with the shape of `like`. */
shoal_status op_declare_like(shoal_op_call_context *call, const shoal_tensor *like, shoal_dtype dtype);

/* An int or float value. */
struct kernel_scalar op_scalar(const shoal_value *value);

/* The elements of a tensor one after the other: its own memory, or a copy in the kernel's workspace. */
shoal_status op_contiguous(shoal_op_call_context *call, const shoal_tensor *tensor, struct address *data_out);
/* How much workspace op_contiguous takes. */
size_t op_contiguous_bytes(const shoal_tensor *tensor);

/* The elements of a tensor one after the other, outside of a kernel: its own memory, or a copy there. The caller has
   waited for the tensor, and closes. */
struct op_flat {
    struct address data;
    struct memory *copy; /* NULL: it is the tensor's own memory */
};
shoal_status op_flat_open(const shoal_tensor *tensor, struct op_flat *flat_out);
/* Puts elements that were changed back into the tensor. */
shoal_status op_flat_store(const shoal_tensor *tensor, const struct op_flat *flat);
void op_flat_close(struct op_flat *flat);

/* Why a device other than the host has failed, or SHOAL_OK: after kernels that give no status. */
shoal_status op_check_device(shoal_device device);

/* Copies bytes of a device to host memory, behind the device's work so far, and waits until that is done: so many
   seconds at most, 0 for SHOAL_TIMEOUT. A call of a group gives the group's timeout, past which its other ranks do not
   wait. */
shoal_status op_read_bytes(shoal_device device, void *target, struct address source, size_t bytes,
                           double timeout_s);
/* shoal_read, with such a timeout. */
shoal_status op_read_tensor(const shoal_tensor *tensor, void *buffer, size_t bytes, double timeout_s);

/*
 * Gives a tensor with the values of `source` that can be read while `target` is written: `source` itself, or a copy if
 * the two may share memory without being the same view. The caller drops the reference `*copy_out` (NULL if there is no
 * copy).
 */
shoal_status op_separate(shoal_tensor *source, const shoal_tensor *target, shoal_tensor **safe_out,
                         shoal_tensor **copy_out);

/* dst = cast(src), broadcast. Both have data; they do not overlap, or are the same view. */
shoal_status op_copy_into(shoal_tensor *dst, shoal_tensor *src);

/* dst = cast(src), broadcast, for a source that may share memory with dst: all of it is read before dst is written. */
shoal_status op_copy_overlapping(shoal_tensor *dst, shoal_tensor *src);

/* Checks that `source` broadcasts to the shape of `self`, and that no two elements of `self` share memory. */
shoal_status op_check_in_place(const shoal_tensor *self, const shoal_tensor *source);

/* Checks that the sizes are not negative and add up to the dimension. */
shoal_status op_check_sizes(const shoal_tensor *self, const shoal_value *sizes, int dim);

/* SHOAL_ERR_INVALID when two elements of a target share memory; the error names the argument. */
shoal_status op_check_writable(const char *argument, const shoal_tensor *target);

#endif
