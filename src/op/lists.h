/* SPDX-License-Identifier: MIT */
/*
 * Lists of tensors on one device, for kernels that take all of them in one call (kernel/kernel.h):
 * op_list_allocate, op_list_add of each, kernel_of(list.device) with list.pieces, op_list_store if they were written,
 * op_list_free.
 */
#ifndef OP_LISTS_H
#define OP_LISTS_H

#include <stdbool.h>
#include <stddef.h>

#include "op/operand.h"
#include "tensor/handle.h"
#include "tensor/memory.h"

/* The device of a list without tensors. */
#define OP_NO_DEVICE ((shoal_device)-1)

struct op_list_entry {
    shoal_tensor *tensor;
    struct op_flat flat;
};

struct op_list {
    shoal_device device; /* of the tensors so far */
    struct kernel_piece *pieces;
    struct op_list_entry *entries;
    size_t n;
};

/* op_list_free also when it failed. */
shoal_status op_list_allocate(size_t capacity, struct op_list *list_out);
/* Waits for the tensor. Elements that share memory are read before any is written, so they stay equal. SHOAL_ERR_INVALID, with both devices, if it is on another one than those before it. */
shoal_status op_list_add(struct op_list *list, shoal_tensor *tensor, bool is_written);
/* Call after a kernel that has changed the pieces. The device's failure, if it has failed. */
shoal_status op_list_store(const struct op_list *list);
void op_list_free(struct op_list *list);

/* shoal_find_largest of the list. */
shoal_status op_list_largest(const struct op_list *list, double *largest_out);

/* That a tensor of a list is alive, with data, and on the device of those before it, which is OP_NO_DEVICE
   before the first. */
shoal_status op_check_listed(const shoal_tensor *tensor, shoal_device *device);

#endif
