/* SPDX-License-Identifier: MIT */
/*
 * A tensor is a shape and strides over a storage, which several tensors (views) may share. Operations in flight may
 * still read or write the storage's memory: a read waits for writes, a write waits for reads and writes, freeing does
 * not wait. Only operations on bytes of the tensor count, from its first to its last; separate parts of a storage are
 * independent.
 *
 * Ownership: results belong to the innermost scope (shoal/scope.h); shoal_tensor_ref keeps one for longer.
 * Threads: any thread may read, reference and release a tensor; changing one is for one thread at a time.
 * Errors: calls that return a tensor give NULL and leave the error in the scope; the others return a status
 * or, for shoal_data, NULL with the reason in shoal_error_text.
 *
 *     float values[6] = {1, 2, 3, 4, 5, 6};
 *     shoal_tensor *t = shoal_from_memory(values, (int64_t[]){2, 3}, 2, SHOAL_F32, NULL, NULL, NULL);
 *     shoal_tensor *row = shoal_select(t, 0, -1);
 *     const float *last = shoal_data(row);
 */
#ifndef SHOAL_TENSOR_H
#define SHOAL_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/api.h"
#include "shoal/dtype.h"
#include "shoal/scope.h"
#include "shoal/status.h"

SHOAL_BEGIN_DECLS

/* More dimensions than this are an error. */
#define SHOAL_MAX_DIMS 8

/* Where the elements are. Other devices come from modules, which get numbers from 16 on (shoal_device_find). */
typedef enum shoal_device {
    SHOAL_CPU = 0,
    SHOAL_META = 1 /* shapes without data: for planning and tracing */
} shoal_device;

/*
 * Finds a device by its name: "cpu", "meta", or one of a module, libshoal_<name>-1.so, which is loaded when it is
 * first asked for. SHOAL_ERR_INVALID: there is none; SHOAL_ERR_UNSUPPORTED: it cannot be used here, with the reason.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_device_find(const char *name, shoal_device *device_out);
/* The name of a device; "" for a number that is none. */
SHOAL_API const char *shoal_device_name(shoal_device device);

/*
 * Waits until the device has done all work that was asked of it, and calls the deleters that wait for that
 * (shoal_from_device_memory). Returns at once for the CPU. SHOAL_ERR_TIMEOUT: the work has not ended within
 * SHOAL_TIMEOUT. A device that has failed gives its reason.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_device_synchronize(shoal_device device);

/* Called once, when the last user of the memory is gone. May run on any thread; must not call the library. */
typedef void (*shoal_deleter)(void *context, void *data);

/* Making tensors --------------------------------------------------------------------------------------- */

/*
 * Makes a tensor over the caller's memory, without copying. The memory must outlive every use; `deleter`, if given, is
 * called when the last use is over. On failure the deleter is not called. `strides` are in elements; NULL means
 * contiguous (row-major). `data` may be NULL only when there are no elements.
 */
SHOAL_API shoal_tensor *shoal_from_memory(void *data, const int64_t *shape, int n_dims, shoal_dtype dtype,
                                          const int64_t *strides, shoal_deleter deleter,
                                          void *deleter_context);

/*
 * Makes a tensor over memory of a device, which `data` is an address of, as shoal_from_memory does over the host's.
 * The library works on it behind what it was asked to do on the device before: work of the program's own on that
 * memory must be done before this call, or be ordered before the library's (shoal_device_follow in shoal/dlpack.h).
 *
 * Dropping the tensor never waits. If the device still has work to do, `deleter` is called when that is done: by a
 * later call of the library for a device, on the thread that makes it, or on a thread of the library that frees
 * tensors; by shoal_device_synchronize; or at exit, which waits up to five seconds for the device, and leaves what it
 * still uses alone. A device that has failed works no more, and its deleters are called at once. In a process that was
 * forked later they are not called: the memory is the parent's. Without a deleter, call shoal_device_synchronize
 * before you use the memory otherwise.
 */
SHOAL_API shoal_tensor *shoal_from_device_memory(shoal_device device, void *data, const int64_t *shape,
                                                 int n_dims, shoal_dtype dtype, const int64_t *strides,
                                                 shoal_deleter deleter, void *deleter_context);

/* Data ------------------------------------------------------------------------------------------------- */

/* Waits for writes and returns the first element's address, never NULL on success. Only the tensor's own elements may
   be read through it: other bytes of the storage may be in flight. NULL, with the reason in shoal_error_text, also for
   a tensor of a device whose memory the host cannot access: use shoal_read. */
SHOAL_API const void *shoal_data(const shoal_tensor *tensor);

/* Waits for writes and reads in flight, counts as a change (shoal_tensor_version), and returns the first element's
   address. NULL, with the reason in shoal_error_text, for a tensor that is read-only: a parameter that is gathered from
   shards (shoal/fully_shard.h). In-place operations, collectives that write it, and exports refuse such a tensor,
   too. */
SHOAL_API void *shoal_mutable_data(shoal_tensor *tensor);

/*
 * Give the address of the first element on the tensor's device, for kernels of the program: on the CPU what
 * shoal_data and shoal_mutable_data give. They wait on the host for collectives in flight, not for the device. What
 * the program's kernels do there goes to the stream of the library's work (shoal_device_stream in shoal/dlpack.h), or
 * is put in order with it.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_device_data(const shoal_tensor *tensor, const void **data_out);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_device_mutable_data(shoal_tensor *tensor, void **data_out);

/*
 * Copies the elements, row after row, to host memory of exactly so many bytes. Waits for work in flight, also that of
 * another device. Needs no scope.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_read(const shoal_tensor *tensor, void *buffer, size_t bytes);
/* Copies host memory of exactly so many bytes to the elements, row after row. Waits for reads and writes in flight, and
   counts as a change. The buffer may change when the call has returned, also if the tensor is on another device. Needs
   no scope. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_write(shoal_tensor *tensor, const void *buffer, size_t bytes);

/* Waits for writes in flight. If one failed, returns its error, every time, until one call overwrites all bytes that
   the failed one was to write. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_wait(const shoal_tensor *tensor);

/* What it is. For a NULL tensor: 0, NULL or false ------------------------------------------------------ */

/* The type of its elements, and where they are. */
SHOAL_API shoal_dtype shoal_tensor_dtype(const shoal_tensor *tensor);
SHOAL_API shoal_device shoal_tensor_device(const shoal_tensor *tensor);
/* The number of dimensions, and the size of each. */
SHOAL_API int shoal_tensor_n_dims(const shoal_tensor *tensor);
SHOAL_API const int64_t *shoal_tensor_shape(const shoal_tensor *tensor);
/* The distance between neighbours along each dimension, in elements. */
SHOAL_API const int64_t *shoal_tensor_strides(const shoal_tensor *tensor);
/* Where the first element is, in elements from the start of the storage. */
SHOAL_API int64_t shoal_tensor_offset(const shoal_tensor *tensor);
/* The number of elements. */
SHOAL_API int64_t shoal_tensor_count(const shoal_tensor *tensor);
/* Whether its elements lie one after the other, in row-major order. */
SHOAL_API bool shoal_tensor_is_contiguous(const shoal_tensor *tensor);

/* Tells whether the contents have arrived: no operation that the library has started is still writing them. Never
   waits, and makes operations progress like shoal_work_test. True also if such an operation has failed; reading then
   returns its error. False for NULL, and for a tensor without data in a step that is captured (shoal_is_capturing).
   Works that were started on raw memory (shoal/group.h) are not the tensor's: ask those (shoal_work_test). */
SHOAL_API bool shoal_tensor_is_complete(const shoal_tensor *tensor);

/* How often the storage has been changed through the library. Writing through an address that was kept from before, and
   shoal_tensor_rebind_data, do not count. */
SHOAL_API uint64_t shoal_tensor_version(const shoal_tensor *tensor);

/* True when both look at the same storage. */
SHOAL_API bool shoal_tensor_shares_storage(const shoal_tensor *a, const shoal_tensor *b);

/* Sets a name for error texts about the storage, which all its views share; copied. NULL or "" removes it. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_tensor_set_name(shoal_tensor *tensor, const char *name);
/* The name of the storage; "" without one. */
SHOAL_API const char *shoal_tensor_name(const shoal_tensor *tensor);

/* Lifetime --------------------------------------------------------------------------------------------- */

/* Adds a reference, and returns its argument. */
SHOAL_API SHOAL_GIVES shoal_tensor *shoal_tensor_ref(shoal_tensor *tensor);
/* Releases a reference; the last one frees the tensor. NULL is allowed in both calls. */
SHOAL_API void shoal_tensor_unref(SHOAL_TAKES shoal_tensor *tensor);

/*
 * Frees the memory of a tensor's storage, while the tensor and all views stay: using their data is then an error that
 * names the storage. Memory in use by work in flight is freed when that work is done. The version does not change.
 * This call and the next are refused for a tensor that is read-only: a gathered parameter.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_tensor_release_data(shoal_tensor *tensor);

/*
 * Gives a storage other memory, whether or not its own was released; all views see it at once. If `data` is NULL, the
 * library allocates memory of the storage's size, with undefined contents. Otherwise `data` has at least that many
 * bytes, aligned for the dtype, and `deleter` may be NULL. Does not change the version.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_tensor_rebind_data(shoal_tensor *tensor, void *data,
                                                                 shoal_deleter deleter,
                                                                 void *deleter_context);

SHOAL_END_DECLS

#endif
