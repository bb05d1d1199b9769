/* SPDX-License-Identifier: MIT */
/*
 * A tensor: dtype, shape and strides over a storage. It never caches an address, because the memory of a storage can
 * change. Autograd attaches a history to it, of which this layer knows nothing.
 */
#ifndef TENSOR_TENSOR_H
#define TENSOR_TENSOR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/tensor.h"
#include "tensor/dtype.h"
#include "tensor/layout.h"
#include "tensor/storage.h"

struct scope;
struct slab;    /* tensor/slab.h */
struct op_tape; /* op/tape.h */

/*
 * Why a tensor has, or requires, a gradient. It is the first member of a struct of the layer that records ops. The
 * dispatcher finds the tape through it, so that recording needs no global state.
 */
struct tensor_history {
    const struct op_tape *tape;
    void (*destroy)(struct tensor_history *history); /* called once, when the tensor dies or is detached */
};

struct shoal_tensor {
    _Atomic uint32_t references;
    shoal_dtype dtype;
    uint8_t device; /* the storage's, which never changes: saves a look at the storage */
    bool is_contiguous;
    bool is_view;     /* made by a view op: shares its storage with an older tensor */
    bool is_detached; /* not recorded, on purpose (shoal_detach, or made while gradients were off) */
    bool is_dead;     /* was freed, and is kept because of SHOAL_DEBUG_HANDLES (handle.h) */
    bool has_landed;  /* a shard (parallel/fsdp): no backward pass reaches it, its gradients land on it */
    bool is_cut;      /* such a shard, of a parameter that several ranks have parts of */
    bool is_replaced; /* a parameter that was sharded: another tensor has its place in the module */
    /* A gradient that a compiled step has put on its leaf, the same on all ranks (parallel/ddp). */
    bool is_averaged;
    int64_t count; /* elements */
    struct storage *storage;
    struct tensor_history *history; /* NULL if there is none */
    struct block *block;            /* NULL if it was allocated alone */

    /* The scope that owns a reference (NULL if none does), and the place in its list. Written by the scope's thread
       only; atomic because other threads may compare it with their own scope (tensor_is_owned_by). */
    _Atomic(struct scope *) owner;
    size_t owner_index;

    struct layout layout; /* last, because few of its dims are used */
};

/*
 * Gives the caller one reference. Takes over the caller's reference on the storage, also on failure. The layout must
 * have been checked against the storage (tensor_check_bounds) or be known to fit.
 */
shoal_status tensor_create(struct storage *storage, shoal_dtype dtype, const struct layout *layout,
                           shoal_tensor **tensor_out);

/* Makes a contiguous tensor with its own storage. Checks shape and size. */
shoal_status tensor_create_empty(shoal_device device, shoal_dtype dtype, int n_dims, const int64_t *shape,
                                 shoal_tensor **tensor_out);

/* Makes such a tensor without memory, as the result of an op while a step is captured (tensor/storage.h). */
shoal_status tensor_create_traced(shoal_device device, shoal_dtype dtype, int n_dims, const int64_t *shape,
                                  const char *traced_op, shoal_tensor **tensor_out);

/* tensor_create_shape makes a contiguous tensor with its own storage on the meta device, in memory of the slab.
   tensor_create_shape_view makes a view there; `count` is the number of its elements (layout_count). */
shoal_status tensor_create_shape(struct slab *slab, shoal_dtype dtype, int n_dims, const int64_t *shape,
                                 shoal_tensor **tensor_out);
shoal_status tensor_create_shape_view(struct slab *slab, shoal_tensor *base, const struct layout *layout,
                                      int64_t count, shoal_tensor **tensor_out);

/* Makes, also in memory of the slab, a view of all elements of `base`, which is contiguous and not empty, in another
   shape. It is detached, like views that are made while gradients are off. */
shoal_status tensor_create_shape_dense(struct slab *slab, shoal_tensor *base, int n_dims,
                                       const int64_t *shape, shoal_tensor **tensor_out);

/* shoal_from_device_memory; errors begin with the name of the call. */
shoal_tensor *tensor_from_memory(const char *call, shoal_device device, void *data, const int64_t *shape,
                                 int n_dims, shoal_dtype dtype, const int64_t *strides, shoal_deleter deleter,
                                 void *deleter_context);

/* Makes a view with another layout. Checks that it lies inside the storage. */
shoal_status tensor_create_view(shoal_tensor *base, const struct layout *layout, shoal_tensor **tensor_out);

/* Makes a view with the layout of `base`, which needs no check. */
shoal_status tensor_create_alias(shoal_tensor *base, shoal_tensor **tensor_out);

/* tensor_create_view with another dtype. The layout counts elements of `dtype`. */
shoal_status tensor_create_view_as(shoal_tensor *base, shoal_dtype dtype, const struct layout *layout,
                                   shoal_tensor **tensor_out);

/* SHOAL_ERR_INVALID if the layout does not fit a storage of so many bytes. */
shoal_status tensor_check_bounds(size_t storage_bytes, shoal_dtype dtype, const struct layout *layout);

/* The address of the first element. Does not wait. */
shoal_status tensor_address(const shoal_tensor *tensor, struct address *address_out);
/* The same, for the host: SHOAL_ERR_UNSUPPORTED if it cannot access the memory. */
shoal_status tensor_host_address(const shoal_tensor *tensor, void **address_out);

/* Whether a scope of this thread owns a reference. */
static inline bool tensor_is_owned_by(const shoal_tensor *tensor, const struct scope *scope)
{
    /* Relaxed: only this thread can have written this scope, so any other value read means "no". */
    return scope && atomic_load_explicit(&tensor->owner, memory_order_relaxed) == scope;
}

/* The bytes of the storage from the first to the last one that the tensor uses. */
struct span tensor_strided_span(const shoal_tensor *tensor);

static inline struct span tensor_span(const shoal_tensor *tensor)
{
    if (!tensor->is_contiguous || tensor->count == 0) {
        return tensor_strided_span(tensor);
    }
    size_t element_bytes = dtype_bytes(tensor->dtype);
    size_t first = (size_t)tensor->layout.offset * element_bytes;
    return span_of(first, first + (size_t)tensor->count * element_bytes, /*is_dense=*/true);
}

/* Wait for work in flight on these bytes (storage.h). Most tensors have none. */
static inline shoal_status tensor_wait_readable(const shoal_tensor *tensor)
{
    if (!storage_has_fences(tensor->storage)) {
        return SHOAL_OK;
    }
    return storage_wait_readable_in(tensor->storage, tensor_span(tensor));
}

/* `overwrites`: every element will be written, and none is read before. */
static inline shoal_status tensor_wait_writable(const shoal_tensor *tensor, bool overwrites)
{
    if (tensor->storage->read_only) {
        return storage_fail_read_only(tensor->storage);
    }
    if (!storage_has_fences(tensor->storage)) {
        return SHOAL_OK;
    }
    return storage_wait_writable_in(tensor->storage, tensor_span(tensor), overwrites);
}

/* The error of a write that has already failed, or SHOAL_OK. */
static inline shoal_status tensor_peek_failure(const shoal_tensor *tensor)
{
    if (!storage_has_fences(tensor->storage)) {
        return SHOAL_OK;
    }
    return storage_peek_failure(tensor->storage, tensor_span(tensor));
}

/* Call when every element was overwritten. */
static inline void tensor_forget_fences(const shoal_tensor *tensor)
{
    if (storage_has_fences(tensor->storage)) {
        storage_forget_fences_in(tensor->storage, tensor_span(tensor));
    }
}

/* Whether the spans of the two have a byte in common. */
bool tensor_may_overlap(const shoal_tensor *a, const shoal_tensor *b);

/* Whether the two have a byte in common; gaps in strided tensors, such as between columns, do not count. May be wrongly
   true only for unusual strides, which slicing does not make and for which the search would take too long. */
bool tensor_overlaps(const shoal_tensor *a, const shoal_tensor *b);

/* Whether both are the same elements in the same order. */
bool tensor_is_same_view(const shoal_tensor *a, const shoal_tensor *b);

static inline size_t tensor_bytes(const shoal_tensor *tensor)
{
    return (size_t)tensor->count * shoal_dtype_bytes(tensor->dtype);
}

/* "f32 [2, 3]" for error texts. */
#define TENSOR_TEXT_BYTES (LAYOUT_TEXT_BYTES + 16)
const char *tensor_format(char text[TENSOR_TEXT_BYTES], const shoal_tensor *tensor);

#endif
