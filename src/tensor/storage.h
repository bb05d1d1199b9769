/* SPDX-License-Identifier: MIT */
/*
 * A storage is what tensors are views of: a number of bytes on a device, their memory (which can be released and
 * replaced while tensors stay), a version that counts changes, and fences:
 *
 *   writes in flight  reading waits for them; one that failed is every reader's error until it is overwritten
 *   reads in flight   writing waits for them and for the writes
 *
 * A fence covers a span of bytes, and only accesses to bytes of that span wait for it: work on separate parts of a
 * storage never waits for each other. The span of a strided view is everything from its first byte to its last.
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

/* Bytes [first, end) of a storage; small enough for registers. The empty span is {0, 0}. Empty spans overlap each
   other: a tensor without elements waits for work on tensors without elements, such as the result of a send. */
struct span {
    size_t first;
    uint64_t end : 63;
    uint64_t is_dense : 1; /* every byte is accessed; otherwise there are gaps, or may be */
};

static inline struct span span_of(size_t first, size_t end, bool is_dense)
{
    return (struct span){.first = first, .end = end & (UINT64_MAX >> 1), .is_dense = is_dense};
}

struct storage {
    _Atomic uint32_t references;
    _Atomic uint32_t exports; /* live DLPack exports: they hold the address, so the memory must stay */
    struct block *block;      /* NULL if it was allocated alone */
    shoal_device device;
    shoal_device stands_for; /* where the tensor is whose shape this is, if it is of the meta device */
    size_t bytes;            /* what the views were checked against; never changes */
    struct memory *memory;   /* NULL while released, and always on devices without data */
    _Atomic uint64_t version;
    /* Set by autograd when an in-place op gave a tensor of this storage a history: other views must not bypass it. */
    _Atomic bool has_history;
    bool is_of_traced; /* made over memory while calls were traced: a captured step has it as a constant */
    bool is_lent; /* the lender will overwrite the memory (graph/run/plan_outputs.c): storage_own_memory */
    bool is_handed_over; /* by shoal_from_memory with a deleter: nobody else uses the memory */
    char *name;          /* for error texts; NULL if there is none */
    /* Why it must not be written, for error texts; NULL if it may be written. */
    const char *read_only;
    _Atomic size_t alignment_mask; /* bits of the address that must be 0 for views of other dtypes */

    /* While a step is captured (op/tracer.h). */
    /* Without memory: the op that made it, or STORAGE_OF_STEP; NULL if it was not captured. */
    const char *traced_op;
    /* By which captures know it; never used for another storage. 0 if there is none yet. */
    _Atomic uint64_t trace_id;

    /* Changed under the lock that storage.c has for this storage. */
    _Atomic uint32_t n_fences; /* writes and reads */
    uint32_t tidy_at;          /* with so many fences, finished ones are removed */
    struct fence *writes;      /* newest first */
    struct fence *reads;
};

/* Makes a storage in the caller's memory. Takes over the reference on `memory`. */
void storage_init(struct storage *storage, struct block *block, shoal_device device, size_t bytes,
                  struct memory *memory);
/* Gives the caller one reference. Allocates memory on devices that have any; its contents are undefined. */
shoal_status storage_create(shoal_device device, size_t bytes, struct storage **storage_out);
/* A deleter for memory of device_memory_allocate. Its context is the device, as (void *)(uintptr_t)device. */
void storage_free_memory(void *context, void *data);
/* Makes a storage over memory of another owner. On failure the deleter is not called. */
shoal_status storage_create_borrowed(shoal_device device, size_t bytes, struct address base,
                                     shoal_deleter deleter, void *deleter_context,
                                     struct storage **storage_out);
struct storage *storage_ref(struct storage *storage);
void storage_unref(struct storage *storage);

/* The value of traced_op for tensors that are inputs of a captured step. */
extern const char STORAGE_OF_STEP[];

/* The number by which captures know the storage; given when it is first asked for. */
uint64_t storage_trace_id(struct storage *storage);

shoal_status storage_set_name(struct storage *storage, const char *name);

/*
 * A storage may be read-only. storage_check_writable returns SHOAL_ERR_STATE then, with the name of the storage and the
 * reason. Everything that writes calls it first: the dispatcher for the first argument of in-place ops, tensors and
 * storages when they wait until they can be written, and collectives for their outputs.
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

/* The address of byte 0. SHOAL_ERR_STATE, with the storage's name, if there is no memory. Does not wait. */
shoal_status storage_base(const struct storage *storage, struct address *base_out);
/* The same, for the host: SHOAL_ERR_UNSUPPORTED if it cannot access the memory. */
shoal_status storage_host_base(const struct storage *storage, void **base_out);

/* Requires an alignment of the present memory and of what replaces it. SHOAL_ERR_INVALID if the present one lacks
   it. */
shoal_status storage_need_alignment(struct storage *storage, size_t alignment);

shoal_status storage_release(struct storage *storage);
/* Memory of the storage's device. ADDRESS_NONE: new memory of our own. */
shoal_status storage_rebind(struct storage *storage, struct address base, shoal_deleter deleter,
                            void *deleter_context);

/* Call before an address is given to somebody who keeps it. If the memory is lent, waits for work in flight and
   replaces it by a copy that the storage owns. Does nothing otherwise. */
shoal_status storage_own_memory(struct storage *storage);

/* Fences ----------------------------------------------------------------------------------------------- */

static inline struct span storage_span(const struct storage *storage)
{
    return span_of(0, storage->bytes, /*is_dense=*/true);
}

/* Whether anything is in flight or has failed. This is one load: call it before the slower calls with a span. */
static inline bool storage_has_fences(const struct storage *storage)
{
    /* Acquire: pairs with the release in count_fences. Zero after a fence was dropped means that its completion
       was seen finished by the thread that dropped it, which then released. */
    return atomic_load_explicit(&storage->n_fences, memory_order_acquire) > 0;
}

/* Call before reading: waits for writes in the span. A failed write is an error. tensor_wait_readable does this for a
   tensor. */
shoal_status storage_wait_readable_in(struct storage *storage, struct span span);

/* Whether storage_wait_readable_in would not wait. Never waits, and pushes the writes that it finds. */
bool storage_test_readable_in(struct storage *storage, struct span span);

/*
 * Call before writing: waits for writes and reads in the span. A failed write is an error, unless `overwrites` is set
 * and the span is dense and covers all bytes of the failed write. The caller then overwrites the whole span, and calls
 * storage_forget_fences_in afterwards.
 */
shoal_status storage_wait_writable_in(struct storage *storage, struct span span, bool overwrites);

/* Call when the whole span was overwritten: drops finished writes inside it, also failed ones. Does that only for
   a dense span. */
void storage_forget_fences_in(struct storage *storage, struct span span);

/* The error of a write in the span that has already failed, or SHOAL_OK. Never waits. */
shoal_status storage_peek_failure(struct storage *storage, struct span span);

/* Does what storage_wait_writable_in does, for all of the storage. */
shoal_status storage_wait_writable(struct storage *storage, bool overwrites);
/* Drops all fences of the storage, including those of work in flight. */
void storage_forget_fences(struct storage *storage);

/*
 * Fences for work in flight that writes or reads a span of the storage. Work that was started cannot be undone if
 * there is no memory for a fence, so the fence is made first. From then on it keeps the storage's present memory.
 * Afterwards it is either set, with the completion of the work, or dropped. A write replaces earlier writes whose
 * bytes it covers. A fence holds a reference on the completion.
 */
struct fence *storage_make_fence(struct storage *storage, struct span span); /* NULL if memory runs out */
void storage_drop_fence(struct fence *fence);
void storage_set_write(struct storage *storage, struct fence *fence, struct completion *completion);
void storage_set_read(struct storage *storage, struct fence *fence, struct completion *completion);

/* Make a fence for all of the storage, and set it, at once. */
shoal_status storage_add_write(struct storage *storage, struct completion *completion);
shoal_status storage_add_read(struct storage *storage, struct completion *completion);

/* Call when the contents have changed. */
static inline void storage_bump_version(struct storage *storage)
{
    /* Relaxed: versions are compared by the thread that owns the tensor. */
    atomic_fetch_add_explicit(&storage->version, 1, memory_order_relaxed);
}

#endif
