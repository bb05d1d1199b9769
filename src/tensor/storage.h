/* SPDX-License-Identifier: MIT */
/*
 * A storage is what tensors look at: a number of bytes on a device, the memory under them (which can be given
 * back and replaced while tensors stay), a version that counts changes, and two fences:
 *
 *   last write      reading waits for it; when it failed, every read says so until the storage is overwritten
 *   reads in flight writing waits for them and for the last write
 *
 * Freeing never waits. A fence keeps the memory (not the storage) alive until its completion has finished, so
 * work in flight never loses the bytes under it, whatever happens to storages and tensors meanwhile.
 *
 * Threads: counts and fences are safe from any thread; changing contents, memory or name is for one thread at
 * a time. The fast path of every access is one load: n_fences == 0 means that nothing is in flight.
 */
#ifndef TENSOR_STORAGE_H
#define TENSOR_STORAGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/completion.h"
#include "shoal/tensor.h"
#include "tensor/memory.h"

struct fence; /* storage.c */

struct storage {
    _Atomic uint32_t references;
    _Atomic uint32_t exports; /* live DLPack exports: they hold the address, so the memory must stay */
    struct block *block;      /* NULL: allocated alone */
    shoal_device device;
    size_t bytes;          /* what the views were checked against; never changes */
    struct memory *memory; /* NULL while released, and always on devices without data */
    _Atomic uint64_t version;
    /* An in-place op gave a tensor of this storage a gradient history: other views must not bypass it. Set by
       autograd. */
    _Atomic bool has_history;
    char *name;                    /* for error texts; NULL: none */
    _Atomic size_t alignment_mask; /* bits of the address that views as other dtypes want to be 0 */

    /* Changed under the lock that storage.c has for this storage. */
    _Atomic uint32_t n_fences; /* last_write and reads */
    struct fence *last_write;
    struct fence *reads;
};

/* In the caller's memory; takes over the reference on `memory`. */
void storage_init(struct storage *storage, struct block *block, shoal_device device, size_t bytes,
                  struct memory *memory);
/* One reference, the caller's. Fresh memory on devices that have any, contents undefined. */
shoal_status storage_create(shoal_device device, size_t bytes, struct storage **storage_out);
/* Over memory of somebody else's. On failure the deleter is not called. */
shoal_status storage_create_borrowed(size_t bytes, void *base, shoal_deleter deleter, void *deleter_context,
                                     struct storage **storage_out);
struct storage *storage_ref(struct storage *storage);
void storage_unref(struct storage *storage);

shoal_status storage_set_name(struct storage *storage, const char *name);

/* Memory ----------------------------------------------------------------------------------------------- */

/* The address of byte 0. SHOAL_ERR_STATE, naming the storage, when it has none. Does not wait. */
shoal_status storage_base(const struct storage *storage, void **base_out);

/* The memory, this one and what may replace it, has to be aligned so; SHOAL_ERR_INVALID when it is not. */
shoal_status storage_need_alignment(struct storage *storage, size_t alignment);

shoal_status storage_release(struct storage *storage);
shoal_status storage_rebind(struct storage *storage, void *base, shoal_deleter deleter,
                            void *deleter_context);

/* Fences ----------------------------------------------------------------------------------------------- */

/* Before reading: waits for the last write. */
shoal_status storage_wait_readable(struct storage *storage);

/*
 * Before writing: waits for the last write and all reads. A last write that failed is an error, unless
 * `forgives_failure`: who overwrites everything need not care, and calls storage_forget_fences once it has.
 */
shoal_status storage_wait_writable(struct storage *storage, bool forgives_failure);

/* The contents are new: what was in flight for the old ones, or failed, no longer matters here. */
void storage_forget_fences(struct storage *storage);

/*
 * Work in flight that writes, or reads, the storage; replaces the last write. The completion is referenced.
 *
 * Work that was started can not be taken back for want of memory, so a fence is made before: it keeps the storage's
 * memory (the one it has now) from then on, and is then either set, with the completion, or dropped.
 */
struct fence *storage_make_fence(struct storage *storage); /* NULL: no memory */
void storage_drop_fence(struct fence *fence);
void storage_set_write(struct storage *storage, struct fence *fence, struct completion *completion);
void storage_set_read(struct storage *storage, struct fence *fence, struct completion *completion);

/* Both steps at once. */
shoal_status storage_add_write(struct storage *storage, struct completion *completion);
shoal_status storage_add_read(struct storage *storage, struct completion *completion);

/* The error of a last write that has already failed, or SHOAL_OK. Never waits. */
shoal_status storage_peek_failure(struct storage *storage);

/* Counts a change of the contents. */
static inline void storage_bump_version(struct storage *storage)
{
    /* Relaxed: versions are compared by the thread that owns the tensor. */
    atomic_fetch_add_explicit(&storage->version, 1, memory_order_relaxed);
}

#endif
