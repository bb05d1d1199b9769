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
#include "tensor/layout.h"
#include "tensor/storage.h"

struct scope;
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
    bool is_contiguous;
    bool is_view;     /* made by a view op: shares its storage with an older tensor */
    bool is_detached; /* outside the record on purpose (shoal_detach, or made while gradients were off) */
    struct layout layout;
    int64_t count; /* elements */
    struct storage *storage;
    struct tensor_history *history; /* NULL: none */
    struct block *block;            /* NULL: allocated alone */

    /* The scope that owns a reference, and where in its list; NULL when none does. Written by the scope's thread
       only; atomic because others may ask whether it is theirs (tensor_is_owned_by). */
    _Atomic(struct scope *) owner;
    size_t owner_index;
};

/*
 * One reference, the caller's. Takes over the caller's reference on the storage, on failure too. The layout must have been checked against the
 * storage (tensor_check_bounds) or be known to fit.
 */
shoal_status tensor_create(struct storage *storage, shoal_dtype dtype, const struct layout *layout,
                           shoal_tensor **tensor_out);

/* A new contiguous tensor with its own storage; checks shape and size. */
shoal_status tensor_create_empty(shoal_device device, shoal_dtype dtype, int n_dims, const int64_t *shape,
                                 shoal_tensor **tensor_out);

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

/* True when the two may touch a common byte. */
bool tensor_may_overlap(const shoal_tensor *a, const shoal_tensor *b);

/* True when both are the same elements in the same order. */
bool tensor_is_same_view(const shoal_tensor *a, const shoal_tensor *b);

/* True when the tensor covers every byte of its storage. */
bool tensor_covers_storage(const shoal_tensor *tensor);

static inline size_t tensor_bytes(const shoal_tensor *tensor)
{
    return (size_t)tensor->count * shoal_dtype_bytes(tensor->dtype);
}

/* "f32 [2, 3]" for error texts. */
#define TENSOR_TEXT_BYTES (LAYOUT_TEXT_BYTES + 16)
const char *tensor_format(char text[TENSOR_TEXT_BYTES], const shoal_tensor *tensor);

#endif
