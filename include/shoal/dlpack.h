/* SPDX-License-Identifier: MIT */
/*
 * Tensors to and from other libraries (NumPy, PyTorch, JAX) through DLPack, without copying. The struct is
 * DLManagedTensor of <dlpack/dlpack.h>; include that header beside this one to look inside it.
 *
 * Ownership: an imported struct belongs to the tensor: its deleter is called when the last use of the memory is over;
 * on a device, when the device has done its work so far, as shoal_from_device_memory says. If the import fails, the
 * struct stays the caller's. An exported struct belongs to the caller, or to the consumer that it is given to, and is
 * ended by its deleter. It keeps the memory alive; until then shoal_tensor_release_data and shoal_tensor_rebind_data
 * refuse the tensor.
 *
 * Order on a device: the library works on one stream of the device. The struct itself says nothing of streams, so
 * these calls do, with the numbers that Python's __dlpack__(stream=...) has for them. (For CUDA a stream is its
 * cudaStream_t, 1 the legacy and 2 the per-thread default stream.)
 *
 *   export  shoal_to_dlpack waits until the elements are written. With shoal_to_dlpack_on the consumer's stream waits.
 *   import  what the producer has asked of the device must come first: give it shoal_device_stream as its `stream`, or
 *           call shoal_device_follow with its stream, or wait on the host.
 *   end     before the consumer calls the deleter of an export, its work on the memory is done, or shoal_device_follow
 *           was called with its stream: the library may give the memory out again at once.
 *
 * Threads: any. The deleter of an export may be called on any thread.
 * Errors: shoal_from_dlpack returns NULL and leaves the error in the scope; shoal_to_dlpack returns a status.
 */
#ifndef SHOAL_DLPACK_H
#define SHOAL_DLPACK_H

#include <stdint.h>

#include "shoal/api.h"
#include "shoal/status.h"
#include "shoal/tensor.h"

SHOAL_BEGIN_DECLS

struct DLManagedTensor;

/*
 * Makes a tensor over the memory of `managed`, with any strides: host memory (kDLCPU or kDLCUDAHost), or memory of a
 * device that this process has found (shoal_device_find). Needs an open scope, which owns the tensor.
 * SHOAL_ERR_UNSUPPORTED: memory of another device, a dtype that Shoal does not have, or more than one lane.
 * SHOAL_ERR_INVALID: `managed` is NULL, or no tensor can have its shape and strides.
 */
SHOAL_API shoal_tensor *shoal_from_dlpack(SHOAL_TAKES struct DLManagedTensor *managed);

/*
 * Gives a struct that describes the tensor's memory to *managed_out. Waits first for operations that write the tensor,
 * and for the work of its device; writes through the struct are not counted (shoal_tensor_version). An output of a
 * compiled step (shoal/compile.h) gets memory of its own first. SHOAL_ERR_STATE: the tensor has no memory (it is on
 * the meta device, or its data was released), or it is read-only (shoal_mutable_data), which this form of DLPack
 * cannot tell the consumer. SHOAL_ERR_UNSUPPORTED: DLPack has no number for its device. SHOAL_ERR_TIMEOUT: the device
 * works for longer than SHOAL_TIMEOUT.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_to_dlpack(shoal_tensor *tensor,
                                                        SHOAL_GIVES struct DLManagedTensor **managed_out);

/*
 * Does what shoal_to_dlpack does, but does not wait for the device: later work of `stream`, a stream of the consumer,
 * begins after the work that the device was asked for so far. -1: the consumer orders its work itself.
 * SHOAL_ERR_INVALID: 0 and other negative numbers. SHOAL_ERR_UNSUPPORTED: the device has no streams, as the CPU, and
 * `stream` is not -1.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_to_dlpack_on(shoal_tensor *tensor, int64_t stream,
                                                           SHOAL_GIVES struct DLManagedTensor **managed_out);

/* Gives the stream that the library's work on a device goes to: what a producer takes as `stream`, so that what it has
   asked of the device comes before. SHOAL_ERR_UNSUPPORTED: the device has no streams. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_device_stream(shoal_device device, int64_t *stream_out);

/* The library's later work on a device begins after what `stream`, a stream of the program, was asked for so far. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_device_follow(shoal_device device, int64_t stream);

/*
 * From now on the library's work goes to `stream`, one of the program's, behind what both were asked for so far; 0:
 * to the library's own stream again. So kernels that the program puts on that stream between two calls of the library
 * need no waits. It holds for all threads, of which no other may use the device meanwhile. The stream must exist
 * until another one is used. SHOAL_ERR_INVALID: a negative number. SHOAL_ERR_UNSUPPORTED: the device has no streams.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_device_use_stream(shoal_device device, int64_t stream);

SHOAL_END_DECLS

#endif
