/* SPDX-License-Identifier: MIT */
/*
 * Tensors to and from other libraries through DLPack, without copying. Include <dlpack/dlpack.h> beside
 * this header to look inside the struct.
 *
 * Ownership: import takes the struct over and calls its deleter when the last use is gone; on failure it
 * stays the caller's. Export gives a struct the caller (or the consumer) must end through its deleter; it
 * keeps the storage alive. While an export lives the storage cannot be released or re-bound.
 * Threads: any.
 * Errors: SHOAL_ERR_UNSUPPORTED for a device, dtype, or lane count that Shoal does not have.
 */
#ifndef SHOAL_DLPACK_H
#define SHOAL_DLPACK_H

#include "shoal/api.h"
#include "shoal/status.h"
#include "shoal/tensor.h"

SHOAL_BEGIN_DECLS

struct DLManagedTensor;

SHOAL_API shoal_tensor *shoal_from_dlpack(struct DLManagedTensor *managed);

/* Waits for writes to the tensor's bytes first. A tensor that is read-only (shoal_mutable_data) is SHOAL_ERR_STATE:
   this form of DLPack cannot tell the consumer so. An output of a plan (shoal/compile.h) gets memory of its own
   first. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_to_dlpack(shoal_tensor *tensor,
                                                        struct DLManagedTensor **managed_out);

SHOAL_END_DECLS

#endif
