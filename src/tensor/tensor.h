/* SPDX-License-Identifier: MIT */
/*
 * A tensor: dtype, shape and strides over a storage. Never a cached pointer, because the memory under a
 * storage can change. The layers above hang a gradient history on it without this layer knowing what it is.
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
 * Why a tensor has, or wants, a gradient. Belongs to whoever records operations; first member of its struct.
 * The dispatcher finds the recorder through it, so that recording needs no global state.
 */
struct tensor_history {
    const struct op_tape *tape;
    void (*destroy)(struct tensor_history *history); /* called once, when the tensor dies or is detached */
};

struct shoal_tensor {
    _Atomic uint32_t references;
    shoal_dtype dtype;
    uint8_t device; /* the storage's, which never changes: a look at it needs no look at the storage */
    bool is_contiguous;
    bool is_view;     /* made by a view op: shares its storage with an older tensor */
    bool is_detached; /* outside the record on purpose (shoal_detach, or made while gradients were off) */
    bool is_dead;     /* has ended; only what SHOAL_DEBUG_HANDLES keeps can be seen like this (handle.h) */
    bool has_landed;  /* no backward comes to it: its gradients are put on it (a shard, parallel/fsdp) */
    bool is_cut;      /* such a shard, of a parameter that several ranks have parts of */
    bool
        is_averaged; /* a gradient that a compiled step has put on its leaf, the same on all ranks (parallel/ddp) */
    int64_t count; /* elements */
    struct storage *storage;
    struct tensor_history *history; /* NULL: none */
    struct block *block;            /* NULL: allocated alone */

    /* The scope that owns a reference, and where in its list; NULL when none does. Written by the scope's thread
       only; atomic because others may ask whether it is theirs (tensor_is_owned_by). */
    _Atomic(struct scope *) owner;
    size_t owner_index;

    struct layout layout; /* last, because few of its dims are used */
};

/*
 * One reference, the caller's. Takes over the caller's reference on the storage, on failure too. The layout must have
 * been checked against the storage (tensor_check_bounds) or be known to fit.
 */
shoal_status tensor_create(struct storage *storage, shoal_dtype dtype, const struct layout *layout,
                           shoal_tensor **tensor_out);

/* A new contiguous tensor with its own storage; checks shape and size. */
shoal_status tensor_create_empty(shoal_device device, shoal_dtype dtype, int n_dims, const int64_t *shape,
                                 shoal_tensor **tensor_out);

/* The same without memory, as the result of an op while a step is captured (tensor/storage.h). */
shoal_status tensor_create_traced(shoal_device device, shoal_dtype dtype, int n_dims, const int64_t *shape,
                                  const char *traced_op, shoal_tensor **tensor_out);

/* On the meta device, in memory of the slab: a new contiguous tensor with its own storage, and a view of so many
   elements, which layout_count has found. */
shoal_status tensor_create_shape(struct slab *slab, shoal_dtype dtype, int n_dims, const int64_t *shape,
                                 shoal_tensor **tensor_out);
shoal_status tensor_create_shape_view(struct slab *slab, shoal_tensor *base, const struct layout *layout,
                                      int64_t count, shoal_tensor **tensor_out);

/* Likewise all elements of `base`, which is contiguous and has some, in another shape of as many; detached, as views
   are that are taken while gradients are off. */
shoal_status tensor_create_shape_dense(struct slab *slab, shoal_tensor *base, int n_dims,
                                       const int64_t *shape, shoal_tensor **tensor_out);

/* shoal_from_memory; errors begin with the name of the call. */
shoal_tensor *tensor_from_memory(const char *call, void *data, const int64_t *shape, int n_dims,
                                 shoal_dtype dtype, const int64_t *strides, shoal_deleter deleter,
                                 void *deleter_context);

/* Same storage, another layout, which is checked to stay inside the storage. */
shoal_status tensor_create_view(shoal_tensor *base, const struct layout *layout, shoal_tensor **tensor_out);

/* The same storage as another dtype; the layout counts in elements of that. */
shoal_status tensor_create_view_as(shoal_tensor *base, shoal_dtype dtype, const struct layout *layout,
                                   shoal_tensor **tensor_out);

/* SHOAL_ERR_INVALID when the layout leaves a storage of that many bytes. */
shoal_status tensor_check_bounds(size_t storage_bytes, shoal_dtype dtype, const struct layout *layout);

/* Without waiting: the address of the first element. */
shoal_status tensor_address(const shoal_tensor *tensor, void **address_out);

/* True when that scope, which must be of this thread, owns a reference. */
static inline bool tensor_is_owned_by(const shoal_tensor *tensor, const struct scope *scope)
{
    /* Relaxed: only this thread can have written this scope, so any other value read means "no". */
    return scope && atomic_load_explicit(&tensor->owner, memory_order_relaxed) == scope;
}

/* The bytes of its storage that it touches; of a strided one, all from the first to the last. */
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

/* Waiting for what is in flight in those bytes, as storage.h says; most tensors have nothing in flight. */
static inline shoal_status tensor_wait_readable(const shoal_tensor *tensor)
{
    if (!storage_has_fences(tensor->storage)) {
        return SHOAL_OK;
    }
    return storage_wait_readable_in(tensor->storage, tensor_span(tensor));
}

/* `overwrites`: every element will be written, without having been read. */
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

/* The error of a write that has already failed. */
static inline shoal_status tensor_peek_failure(const shoal_tensor *tensor)
{
    if (!storage_has_fences(tensor->storage)) {
        return SHOAL_OK;
    }
    return storage_peek_failure(tensor->storage, tensor_span(tensor));
}

/* Every element has been overwritten. */
static inline void tensor_forget_fences(const shoal_tensor *tensor)
{
    if (storage_has_fences(tensor->storage)) {
        storage_forget_fences_in(tensor->storage, tensor_span(tensor));
    }
}

/* True when the two may touch a common byte: their spans do. */
bool tensor_may_overlap(const shoal_tensor *a, const shoal_tensor *b);

/* The same without counting gaps, such as those that columns leave for each other. Only layouts that nobody makes by
   slicing, where it takes too long to find out, may be taken to overlap although they do not. */
bool tensor_overlaps(const shoal_tensor *a, const shoal_tensor *b);

/* True when both are the same elements in the same order. */
bool tensor_is_same_view(const shoal_tensor *a, const shoal_tensor *b);

static inline size_t tensor_bytes(const shoal_tensor *tensor)
{
    return (size_t)tensor->count * shoal_dtype_bytes(tensor->dtype);
}

/* "f32 [2, 3]" for error texts. */
#define TENSOR_TEXT_BYTES (LAYOUT_TEXT_BYTES + 16)
const char *tensor_format(char text[TENSOR_TEXT_BYTES], const shoal_tensor *tensor);

#endif
