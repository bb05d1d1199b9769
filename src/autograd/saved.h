/* SPDX-License-Identifier: MIT */
/* What the record keeps of tensors. */
#ifndef AUTOGRAD_SAVED_H
#define AUTOGRAD_SAVED_H

#include <stddef.h>
#include <stdint.h>

#include "tensor/tensor.h"

/* What is kept of a tensor: always how it looked; its storage only where the data is needed. */
struct saved_tensor {
    struct storage *storage; /* one reference; NULL: shape only, or already given back */
    uint64_t version;        /* of the storage, when it was saved */
    size_t storage_bytes;
    struct layout layout;
    shoal_device device;
    shoal_dtype dtype;
};

void saved_note(struct saved_tensor *saved, const shoal_tensor *tensor);

/* After saved_note: keeps the data too, in its current version. */
void saved_keep_data(struct saved_tensor *saved, struct storage *storage);

/* The data kept, if any, may have changed until now. */
void saved_update_version(struct saved_tensor *saved);
void saved_release(struct saved_tensor *saved);

/*
 * The tensor again, owned by the innermost scope: outside the record, over the same storage. Where no data was
 * kept it is a stand-in on the meta device: a shape whose data nobody can touch. SHOAL_ERR_STATE, with both
 * versions, when the data was changed since. Callers put the tensor's name in front of the error.
 */
shoal_status saved_restore(const struct saved_tensor *saved, shoal_tensor **tensor_out);

/* SHOAL_ERR_INVALID when `tensor` differs from the saved one in dtype, shape or device. Callers name it. */
shoal_status saved_check_like(const struct saved_tensor *saved, const shoal_tensor *tensor);

#endif
