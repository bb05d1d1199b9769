/* SPDX-License-Identifier: MIT */
#include "parallel/ddp/values.h"

#include "base/mem.h"
#include "base/try.h"
#include "comm/call/collectives.h"
#include "op/operand.h"
#include "parallel/ddp/confirm.h"
#include "tensor/tensor.h"

/* Finds contiguous memory with the values of a tensor: the tensor's own, or a copy. */
static shoal_status find_values(shoal_tensor *tensor, shoal_part *part, shoal_tensor **copy_out)
{
    TRY(tensor_wait_writable(tensor, /*overwrites=*/false));
    *copy_out = NULL;
    if (!tensor->is_contiguous) {
        TRY(tensor_create_empty(tensor->storage->device, tensor->dtype, tensor->layout.n_dims,
                                tensor->layout.shape, copy_out));
        TRY(op_copy_into(*copy_out, tensor));
    }
    *part = (shoal_part){.count = tensor_bytes(tensor)};
    struct address data;
    TRY(tensor_address(*copy_out ? *copy_out : tensor, &data));
    part->recv = address_pointer(data);
    return SHOAL_OK;
}

/* Writes the values that came. `copies` has one entry for each tensor. */
static shoal_status put_values(const struct ddp_tensors *list, shoal_tensor *const *copies)
{
    for (size_t i = 0; i < list->n_tensors; i++) {
        if (copies[i]) {
            TRY(op_copy_into(list->tensors[i], copies[i]));
        }
        if (list->are_new[i]) {
            storage_bump_version(list->tensors[i]->storage);
        }
    }
    return SHOAL_OK;
}

/* Sends the tensors of one device. `first` is the number of the first of them. */
static shoal_status send_device(shoal_group *lane, const struct ddp_tensors *list, const shoal_part *parts,
                                shoal_part *chosen, size_t first)
{
    shoal_device device = list->tensors[first]->storage->device;
    size_t n_chosen = 0;
    for (size_t i = first; i < list->n_tensors; i++) {
        if (list->are_new[i] && list->tensors[i]->storage->device == device) {
            chosen[n_chosen++] = parts[i];
        }
    }
    struct collective call = {.kind = COLLECTIVE_BROADCAST, .dtype = SHOAL_U8, .device = device};
    return collectives_run_list(lane, &call, chosen, n_chosen);
}

static bool is_first_of_device(const struct ddp_tensors *list, size_t index)
{
    bool is_first = list->are_new[index];
    for (size_t i = 0; i < index && is_first; i++) {
        is_first =
            !list->are_new[i] || list->tensors[i]->storage->device != list->tensors[index]->storage->device;
    }
    return is_first;
}

/* Sends the values as bytes, in one collective for all dtypes of a device. `parts` has two entries for each tensor. */
static shoal_status send_values(shoal_group *lane, const struct ddp_tensors *list, shoal_part *parts,
                                shoal_tensor **copies)
{
    shoal_status mine = SHOAL_OK;
    for (size_t i = 0; i < list->n_tensors && mine == SHOAL_OK; i++) {
        if (list->are_new[i]) {
            mine = find_values(list->tensors[i], &parts[i], &copies[i]);
        }
    }
    TRY(ddp_confirm(lane, mine));
    for (size_t i = 0; i < list->n_tensors; i++) {
        if (is_first_of_device(list, i)) {
            TRY(send_device(lane, list, parts, parts + list->n_tensors, i));
        }
    }
    return shoal_group_rank(lane) == 0 ? SHOAL_OK : put_values(list, copies);
}

shoal_status ddp_broadcast(shoal_group *lane, const struct ddp_tensors *list)
{
    shoal_part *parts = mem_alloc_zeroed(2 * list->n_tensors, sizeof *parts);
    shoal_tensor **copies = mem_alloc_zeroed(list->n_tensors, sizeof(shoal_tensor *));
    shoal_status status =
        parts && copies ? send_values(lane, list, parts, copies) : ddp_confirm(lane, SHOAL_ERR_NO_MEMORY);
    for (size_t i = 0; copies && i < list->n_tensors; i++) {
        shoal_tensor_unref(copies[i]);
    }
    mem_free(copies);
    mem_free(parts);
    return status;
}
