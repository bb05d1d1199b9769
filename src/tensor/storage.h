/* SPDX-License-Identifier: MIT */
/*
 * A storage is what tensors look at: a number of bytes on a device, the memory under them (which can be given
 * back and replaced while tensors stay), a version that counts changes, and fences:
 *
 *   writes in flight  reading waits for them; one that failed is every reader's error until it is overwritten
 *   reads in flight   writing waits for them and for the writes
 *
 * A fence is about a span of bytes, and matters only to who touches bytes of that span: work on parts of a storage that
 * are apart never waits for each other. Of a strided view the span is all from its first byte to its last.
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

/* Bytes [first, end) of a storage; small enough for registers. Nothing at all is {0, 0}: a tensor without elements
   waits for work on tensors without elements, such as what stands for a send. */
struct span {
    size_t first;
    uint64_t end : 63;
    uint64_t is_dense : 1; /* each of the bytes is meant; otherwise there are holes, or nobody knows */
};

static inline struct span span_of(size_t first, size_t end, bool is_dense)
{
    return (struct span){.first = first, .end = end & (UINT64_MAX >> 1), .is_dense = is_dense};
}

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
    bool
        is_of_traced; /* its memory was taken over while calls were traced: what a step makes of memory is a constant */
    bool
        is_lent; /* the memory is its lender's, who will overwrite it (graph/plan_outputs.c): storage_own_memory */
    bool is_handed_over;           /* with a deleter, by shoal_from_memory: its memory is nobody else's */
    char *name;                    /* for error texts; NULL: none */
    const char *read_only;         /* why nobody may write it, for error texts; NULL: it may be written */
    _Atomic size_t alignment_mask; /* bits of the address that views as other dtypes want to be 0 */

    /* While a step is captured (op/tracer.h). */
    const char
        *traced_op; /* it has no memory: the op whose result it is, or STORAGE_OF_STEP; NULL: not captured */
    _Atomic uint64_t
        trace_id; /* what captures know the storage by; never used again for another one. 0: none yet */

    /* Changed under the lock that storage.c has for this storage. */
    _Atomic uint32_t n_fences; /* writes and reads */
    uint32_t tidy_at;          /* how many fences there must be before all of them are looked at again */
    struct fence *writes;      /* newest first */
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

/* What traced_op is for tensors that a captured step was given. */
extern const char STORAGE_OF_STEP[];

/* The number by which captures know the storage; given when it is first asked for. */
uint64_t storage_trace_id(struct storage *storage);

shoal_status storage_set_name(struct storage *storage, const char *name);

/*
 * Whether the contents may be written at all. Whoever is about to write asks this: the dispatcher of its first
 * argument, the functions below that wait until a storage can be written, and collectives of what they write.
 * SHOAL_ERR_STATE, with the name of the storage and the reason.
 */
static inline void storage_set_read_only(struct storage *storage, const char *reason)
{
    storage->read_only = reason;
}
shoal_status storage_fail_read_only(const struct storage *storage);
static inline shoal_status storage_check_writable(const struct storage *storage)
{
    return storage->read_only ? storage_fail_read_only(storage) : SHOAL_OK;
}

/* Memory ----------------------------------------------------------------------------------------------- */

/* The address of byte 0. SHOAL_ERR_STATE, naming the storage, when it has none. Does not wait. */
shoal_status storage_base(const struct storage *storage, void **base_out);

/* The memory, this one and what may replace it, has to be aligned so; SHOAL_ERR_INVALID when it is not. */
shoal_status storage_need_alignment(struct storage *storage, size_t alignment);

shoal_status storage_release(struct storage *storage);
shoal_status storage_rebind(struct storage *storage, void *base, shoal_deleter deleter,
                            void *deleter_context);

/* Lent memory is replaced by a copy that is the storage's own, once what is in flight there has ended. Nothing for
   other memory. Before an address is given to somebody who keeps it. */
shoal_status storage_own_memory(struct storage *storage);

/* Fences ----------------------------------------------------------------------------------------------- */

static inline struct span storage_span(const struct storage *storage)
{
    return span_of(0, storage->bytes, /*is_dense=*/true);
}

/* Whether anything is in flight, or has failed: one load. Who has a span asks this first, which is the fast path. */
static inline bool storage_has_fences(const struct storage *storage)
{
    /* Acquire: pairs with the release in count_fences. Zero after a fence was dropped means that its completion
       was seen finished by the thread that dropped it, which then released. */
    return atomic_load_explicit(&storage->n_fences, memory_order_acquire) > 0;
}

/* Before reading: waits for the writes in the span; a failed one is an error. tensor/tensor.h has the same for a
   tensor. */
shoal_status storage_wait_readable_in(struct storage *storage, struct span span);

/*
 * Before writing: waits for writes and reads in the span. A write that failed is an error, unless the caller overwrites
 * the whole span, which is dense and covers all that the failed one was to write: then it need not care, and calls
 * storage_forget_fences_in once it has.
 */
shoal_status storage_wait_writable_in(struct storage *storage, struct span span, bool overwrites);

/* Contents of the span are new: what has ended there, well or badly, no longer matters. Nothing, when there are
   holes. */
void storage_forget_fences_in(struct storage *storage, struct span span);

/* The error of a write in the span that has already failed, or SHOAL_OK. Never waits. */
shoal_status storage_peek_failure(struct storage *storage, struct span span);

/* The same for all of the storage. */
shoal_status storage_wait_writable(struct storage *storage, bool overwrites);
/* Work in flight is forgotten too. */
void storage_forget_fences(struct storage *storage);

/*
 * Work in flight that writes, or reads, a span of the storage. A write takes the place of those whose bytes it writes
 * all. The completion is referenced.
 *
 * Work that was started cannot be taken back for want of memory, so a fence is made before: it keeps the storage's
 * memory (the one it has now) from then on, and is then either set, with the completion, or dropped.
 */
struct fence *storage_make_fence(struct storage *storage, struct span span); /* NULL: no memory */
void storage_drop_fence(struct fence *fence);
void storage_set_write(struct storage *storage, struct fence *fence, struct completion *completion);
void storage_set_read(struct storage *storage, struct fence *fence, struct completion *completion);

/* Both steps at once, for all of the storage. */
shoal_status storage_add_write(struct storage *storage, struct completion *completion);
shoal_status storage_add_read(struct storage *storage, struct completion *completion);

/* Counts a change of the contents. */
static inline void storage_bump_version(struct storage *storage)
{
    /* Relaxed: versions are compared by the thread that owns the tensor. */
    atomic_fetch_add_explicit(&storage->version, 1, memory_order_relaxed);
}

#endif
