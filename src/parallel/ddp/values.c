/* SPDX-License-Identifier: MIT */
#include "parallel/ddp/values.h"

#include "base/mem.h"
#include "base/try.h"
#include "comm/call/collectives.h"
#include "op/operand.h"
#include "parallel/ddp/agree.h"
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
    return tensor_host_address(*copy_out ? *copy_out : tensor, &part->recv);
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

/* Sends the values as bytes, in one collective for all dtypes. */
static shoal_status send_values(shoal_group *lane, const struct ddp_tensors *list, shoal_part *parts,
                                shoal_tensor **copies)
{
    shoal_status mine = SHOAL_OK;
    size_t n_parts = 0;
    for (size_t i = 0; i < list->n_tensors && mine == SHOAL_OK; i++) {
        if (list->are_new[i]) {
            mine = find_values(list->tensors[i], &parts[n_parts++], &copies[i]);
        }
    }
    TRY(ddp_confirm(lane, mine));
    struct collective call = {.kind = COLLECTIVE_BROADCAST, .dtype = SHOAL_U8};
    if (n_parts > 0) {
        TRY(collectives_run_list(lane, &call, parts, n_parts));
    }
    return shoal_group_rank(lane) == 0 ? SHOAL_OK : put_values(list, copies);
}

shoal_status ddp_broadcast(shoal_group *lane, const struct ddp_tensors *list)
{
    shoal_part *parts = mem_alloc_zeroed(list->n_tensors, sizeof *parts);
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
