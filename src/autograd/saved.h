/* SPDX-License-Identifier: MIT */
/* What the record keeps of tensors. */
#ifndef AUTOGRAD_SAVED_H
#define AUTOGRAD_SAVED_H

#include <stddef.h>
#include <stdint.h>

#include "tensor/tensor.h"

/* What is kept of a tensor: always dtype and layout; the storage only if the data is needed. */
struct saved_tensor {
    struct storage *storage; /* one reference; NULL if only the shape is kept, or it was already released */
    uint64_t version;        /* of the storage, when it was saved */
    size_t storage_bytes;
    struct layout layout;
    shoal_device device;
    shoal_dtype dtype;
};

void saved_note(struct saved_tensor *saved, const shoal_tensor *tensor);

/* Call after saved_note: also keeps the data, in its present version. */
void saved_keep_data(struct saved_tensor *saved, struct storage *storage);

/* From now on the data, if it is kept, must not change: notes its present version. */
void saved_update_version(struct saved_tensor *saved);
void saved_release(struct saved_tensor *saved);

/*
 * Makes a tensor over the saved storage, which is not recorded and belongs to the innermost scope. If no data was kept,
 * makes a tensor on the meta device instead: a shape without data. SHOAL_ERR_STATE, with both versions, if the data was
 * changed since. The caller adds the name of the tensor to the text.
 */
shoal_status saved_restore(const struct saved_tensor *saved, shoal_tensor **tensor_out);

/* SHOAL_ERR_INVALID if `tensor` differs from the saved one in dtype, shape or device. The caller adds its name. */
shoal_status saved_check_like(const struct saved_tensor *saved, const shoal_tensor *tensor);

#endif
