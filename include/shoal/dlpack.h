/* SPDX-License-Identifier: MIT */
/*
 * Tensors to and from other libraries (NumPy, PyTorch, JAX) through DLPack, without copying. The struct is
 * DLManagedTensor of <dlpack/dlpack.h>; include that header beside this one to look inside it.
 *
 * Ownership: an imported struct belongs to the tensor: its deleter is called when the last use of the memory is over.
 * If the import fails, it stays the caller's. An exported struct belongs to the caller, or to the consumer that it is
 * given to, and is ended by its deleter. It keeps the memory alive; until then shoal_tensor_release_data and
 * shoal_tensor_rebind_data refuse the tensor.
 * Threads: any. The deleter of an export may be called on any thread.
 * Errors: shoal_from_dlpack returns NULL and leaves the error in the scope; shoal_to_dlpack returns a status.
 */
#ifndef SHOAL_DLPACK_H
#define SHOAL_DLPACK_H

#include "shoal/api.h"
#include "shoal/status.h"
#include "shoal/tensor.h"

SHOAL_BEGIN_DECLS

struct DLManagedTensor;

/*
 * Makes a tensor over the memory of `managed`: host memory (kDLCPU or kDLCUDAHost), with any strides. Needs an open
 * scope, which owns the tensor. SHOAL_ERR_UNSUPPORTED: memory of another device, a dtype that Shoal does not have, or
 * more than one lane. SHOAL_ERR_INVALID: `managed` is NULL, or no tensor can have its shape and strides.
 */
SHOAL_API shoal_tensor *shoal_from_dlpack(SHOAL_TAKES struct DLManagedTensor *managed);

/*
 * Gives a struct that describes the tensor's memory to *managed_out. Waits first for operations that write the tensor;
 * writes through the struct are not counted (shoal_tensor_version). An output of a compiled step (shoal/compile.h) gets
 * memory of its own first. SHOAL_ERR_STATE: the tensor has no memory (it is on the meta device, or its data was
 * released), or it is read-only (shoal_mutable_data), which this form of DLPack cannot tell the consumer.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_to_dlpack(shoal_tensor *tensor,
                                                        SHOAL_GIVES struct DLManagedTensor **managed_out);

SHOAL_END_DECLS

#endif
