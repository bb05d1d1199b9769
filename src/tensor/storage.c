/* SPDX-License-Identifier: MIT */
/*
 * Storages, their memory and their fences.
 *
 * A fence is a node that is on up to two lists: its storage's (last_write or reads) and, as a listener, its
 * completion's. It carries one reference on the memory until the completion finishes, and is itself counted
 * by the two lists. The finishing thread only drops the memory and its count; the storage's list is tidied by
 * whoever next takes the lock, so the finishing thread never needs a storage's lock.
 */
#include "tensor/storage.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/options.h"
#include "base/refcount.h"
#include "base/try.h"
#include "tensor/device.h"

struct fence {
    struct block block; /* first: they come and go as small results do, and share their spare memory */
    struct completion_listener listener;
    _Atomic uint32_t references; /* the storage's list and the completion's */
    struct completion *completion;
    struct memory *memory; /* dropped by the finishing thread */
    struct fence *next;    /* in storage->reads */
};

/* Storages --------------------------------------------------------------------------------------------- */

void storage_init(struct storage *storage, struct block *block, shoal_device device, size_t bytes,
                  struct memory *memory)
{
    *storage = (struct storage){.block = block, .device = device, .bytes = bytes, .memory = memory};
    atomic_init(&storage->references, 1);
}

static shoal_status create_around(shoal_device device, size_t bytes, struct memory *memory,
                                  struct storage **storage_out)
{
    struct storage *storage = mem_alloc(sizeof(*storage));
    if (!storage) {
        return SHOAL_ERR_NO_MEMORY;
    }
    storage_init(storage, NULL, device, bytes, memory);
    *storage_out = storage;
    return SHOAL_OK;
}

shoal_status storage_create(shoal_device device, size_t bytes, struct storage **storage_out)
{
    struct memory *memory = NULL;
    if (device_rows[device].has_data) {
        memory = memory_create(bytes);
        if (!memory) {
            return SHOAL_ERR_NO_MEMORY;
        }
    }
    shoal_status status = create_around(device, bytes, memory, storage_out);
    if (status != SHOAL_OK) {
        memory_unref(memory);
    }
    return status;
}

shoal_status storage_create_borrowed(size_t bytes, void *base, shoal_deleter deleter, void *deleter_context,
                                     struct storage **storage_out)
{
    struct memory *memory = memory_create_borrowed(base, deleter, deleter_context);
    if (!memory) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = create_around(SHOAL_CPU, bytes, memory, storage_out);
    if (status != SHOAL_OK) {
        memory->deleter = NULL; /* the caller keeps what it lent */
        memory_unref(memory);
    }
    return status;
}

struct storage *storage_ref(struct storage *storage)
{
    refcount_get(&storage->references);
    return storage;
}

static void fence_unref(struct fence *fence)
{
    if (refcount_put(&fence->references)) {
        completion_unref(fence->completion);
        block_free(&fence->block, fence);
    }
}

/* A whole list of them. */
static void unref_fences(struct fence *fence)
{
    while (fence) {
        struct fence *next = fence->next;
        fence_unref(fence);
        fence = next;
    }
}

/* The same for whoever came to wait for them: that they had ended already makes no difference. */
static void unref_awaited(struct fence *fences)
{
    for (struct fence *fence = fences; fence; fence = fence->next) {
        (void)completion_test(fence->completion);
    }
    unref_fences(fences);
}

void storage_unref(struct storage *storage)
{
    if (!storage || !refcount_put(&storage->references)) {
        return;
    }
    if (storage->last_write) {
        fence_unref(storage->last_write);
    }
    unref_fences(storage->reads);
    memory_unref(storage->memory);
    mem_free(storage->name);
    block_free(storage->block, storage);
}

shoal_status storage_set_name(struct storage *storage, const char *name)
{
    char *copy = NULL;
    if (name && name[0] != '\0') {
        copy = mem_copy_string(name);
        if (!copy) {
            return SHOAL_ERR_NO_MEMORY;
        }
    }
    mem_free(storage->name);
    storage->name = copy;
    return SHOAL_OK;
}

static const char *storage_label(const struct storage *storage)
{
    return storage->name ? storage->name : "(unnamed)";
}

shoal_status storage_base(const struct storage *storage, void **base_out)
{
    if (storage->memory) {
        *base_out = storage->memory->base;
        return SHOAL_OK;
    }
    if (!device_rows[storage->device].has_data) {
        return error_set(SHOAL_ERR_STATE, "tensor %s is on device %s: it has a shape but no data",
                         storage_label(storage), device_rows[storage->device].name);
    }
    return error_set(SHOAL_ERR_STATE, "the data of tensor %s (%zu bytes) was released",
                     storage_label(storage), storage->bytes);
}

static shoal_status check_memory_may_change(const struct storage *storage, const char *change)
{
    if (!device_rows[storage->device].has_data) {
        return error_set(SHOAL_ERR_STATE, "tensor %s is on device %s: there is no data to %s",
                         storage_label(storage), device_rows[storage->device].name, change);
    }
    uint32_t exports = atomic_load(&storage->exports);
    if (exports > 0) {
        return error_set(SHOAL_ERR_STATE,
                         "tensor %s: can not %s data while %" PRIu32 " DLPack exports of it live",
                         storage_label(storage), change, exports);
    }
    return SHOAL_OK;
}

shoal_status storage_release(struct storage *storage)
{
    TRY(check_memory_may_change(storage, "release"));
    struct memory *memory = storage->memory;
    storage->memory = NULL;
    memory_unref(memory);
    return SHOAL_OK;
}

shoal_status storage_need_alignment(struct storage *storage, size_t alignment)
{
    const void *base = storage->memory ? storage->memory->base : NULL;
    if ((uintptr_t)base % alignment != 0) {
        return error_set(SHOAL_ERR_INVALID, "address %p of the storage is no multiple of %zu", base,
                         alignment);
    }
    /* Relaxed, here and in re-binding: memory is changed by one thread at a time, which has seen the views. */
    atomic_fetch_or_explicit(&storage->alignment_mask, alignment - 1, memory_order_relaxed);
    return SHOAL_OK;
}

shoal_status storage_rebind(struct storage *storage, void *base, shoal_deleter deleter, void *deleter_context)
{
    TRY(check_memory_may_change(storage, "re-bind"));
    size_t mask = atomic_load_explicit(&storage->alignment_mask, memory_order_relaxed);
    if (((uintptr_t)base & mask) != 0) {
        return error_set(
            SHOAL_ERR_INVALID,
            "rebind_data: data: address %p is no multiple of %zu, which a view as another dtype needs", base,
            mask + 1);
    }
    struct memory *memory =
        base ? memory_create_borrowed(base, deleter, deleter_context) : memory_create(storage->bytes);
    if (!memory) {
        return SHOAL_ERR_NO_MEMORY;
    }
    struct memory *old = storage->memory;
    storage->memory = memory;
    storage_forget_fences(
        storage); /* they were about the old memory, which they keep as long as they need it */
    memory_unref(old);
    return SHOAL_OK;
}

/* Fences ----------------------------------------------------------------------------------------------- */

/* Storages share a few locks: most never have a fence, and a mutex of its own would be a third of a storage.
   No code holds two of them. */
#define LOCK_COUNT 16
static pthread_mutex_t locks[LOCK_COUNT] = {[0 ... LOCK_COUNT - 1] = PTHREAD_MUTEX_INITIALIZER};

static pthread_mutex_t *lock_of(const struct storage *storage)
{
    return &locks[((uintptr_t)storage / sizeof(struct storage)) % LOCK_COUNT];
}

static void lock(const struct storage *storage)
{
    (void)pthread_mutex_lock(lock_of(storage));
}

static void unlock(const struct storage *storage)
{
    (void)pthread_mutex_unlock(lock_of(storage));
}

static void on_finish(struct completion_listener *listener, struct completion *completion)
{
    struct fence *fence = (struct fence *)((char *)listener - offsetof(struct fence, listener));
    struct memory *memory = fence->memory;
    fence_unref(fence);
    memory_unref(memory);
}

struct fence *storage_make_fence(struct storage *storage)
{
    struct fence *fence = (struct fence *)block_create(sizeof(*fence));
    if (fence) {
        atomic_init(&fence->block.objects, 1);
        fence->listener = (struct completion_listener){.notify = on_finish};
        atomic_init(&fence->references, 2);
        fence->completion = NULL;
        fence->memory = memory_ref(storage->memory);
        fence->next = NULL;
    }
    return fence;
}

void storage_drop_fence(struct fence *fence)
{
    if (fence) {
        memory_unref(fence->memory);
        block_free(&fence->block, fence);
    }
}

/* The lock is held. */
static void count_fences(struct storage *storage, int change)
{
    /* Release: pairs with the acquire load in has_fences, so that who sees the count sees the fence too. */
    atomic_fetch_add_explicit(&storage->n_fences, (uint32_t)change, memory_order_release);
}

static bool has_fences(struct storage *storage)
{
    /* Acquire: pairs with the release in count_fences. Zero after a fence was dropped means that its completion
       was seen finished by the thread that dropped it, which then released. */
    return atomic_load_explicit(&storage->n_fences, memory_order_acquire) > 0;
}

/* The lock is held. Takes reads that are over off the list; how they ended does not matter to anybody here. They are
   put on *dropped, to be let go when the lock is not held: that may end work, which may take locks. */
static void take_finished_reads(struct storage *storage, struct fence **dropped)
{
    struct fence **link = &storage->reads;
    while (*link) {
        struct fence *fence = *link;
        if (completion_is_finished(fence->completion)) {
            *link = fence->next;
            count_fences(storage, -1);
            fence->next = *dropped;
            *dropped = fence;
        } else {
            link = &fence->next;
        }
    }
}

/* No lock is held while waiting. */
static shoal_status wait_for(struct completion *completion)
{
    int64_t deadline_ns = completion_has_deadline(completion)
                              ? DEADLINE_NEVER
                              : clock_deadline_after(option_seconds(OPTION_TIMEOUT));
    return completion_wait(completion, deadline_ns);
}

/* The last write, referenced, or NULL. */
static struct completion *take_last_write(struct storage *storage)
{
    lock(storage);
    struct completion *completion =
        storage->last_write ? completion_ref(storage->last_write->completion) : NULL;
    unlock(storage);
    return completion;
}

/* Drops the last write if it is still the one that was waited for and ended as expected; and reads that are over. */
static void drop_last_write(struct storage *storage, const struct completion *completion)
{
    struct fence *dropped = NULL;
    lock(storage);
    struct fence *fence = storage->last_write;
    if (fence && fence->completion == completion) {
        storage->last_write = NULL;
        count_fences(storage, -1);
        dropped = fence;
        dropped->next = NULL;
    }
    take_finished_reads(storage, &dropped);
    unlock(storage);
    unref_fences(dropped);
}

shoal_status storage_wait_readable(struct storage *storage)
{
    if (!has_fences(storage)) {
        return SHOAL_OK;
    }
    struct completion *completion = take_last_write(storage);
    if (!completion) {
        drop_last_write(storage, NULL); /* reads that are over: the next access need not look at them */
        return SHOAL_OK;
    }
    shoal_status status = wait_for(completion);
    if (status == SHOAL_OK) {
        drop_last_write(storage, completion);
    }
    completion_unref(completion);
    return status;
}

static shoal_status wait_for_last_write(struct storage *storage, bool forgives_failure)
{
    struct completion *completion = take_last_write(storage);
    if (!completion) {
        return SHOAL_OK;
    }
    shoal_status status = wait_for(completion);
    if (status == SHOAL_OK) {
        drop_last_write(storage, completion);
    } else if (forgives_failure && completion_is_finished(completion)) {
        error_clear();
        status = SHOAL_OK; /* the failure stays until storage_forget_fences */
    }
    completion_unref(completion);
    return status;
}

shoal_status storage_wait_writable(struct storage *storage, bool forgives_failure)
{
    if (!has_fences(storage)) {
        return SHOAL_OK;
    }
    TRY(wait_for_last_write(storage, forgives_failure));
    for (;;) {
        struct fence *dropped = NULL;
        lock(storage);
        take_finished_reads(storage, &dropped);
        struct completion *read = storage->reads ? completion_ref(storage->reads->completion) : NULL;
        unlock(storage);
        unref_awaited(dropped);
        if (!read) {
            return SHOAL_OK;
        }
        shoal_status status = wait_for(read);
        bool is_over = completion_is_finished(read);
        completion_unref(read);
        if (!is_over) {
            return status; /* the deadline passed */
        }
        error_clear(); /* how the read ended is not the writer's business */
    }
}

void storage_forget_fences(struct storage *storage)
{
    if (!has_fences(storage)) {
        return;
    }
    lock(storage);
    struct fence *fences = storage->reads;
    if (storage->last_write) {
        storage->last_write->next = fences;
        fences = storage->last_write;
    }
    storage->last_write = NULL;
    storage->reads = NULL;
    /* Release: as in count_fences. */
    atomic_store_explicit(&storage->n_fences, 0, memory_order_release);
    unlock(storage);
    unref_fences(fences);
}

void storage_set_write(struct storage *storage, struct fence *fence, struct completion *completion)
{
    fence->completion = completion_ref(completion);
    lock(storage);
    struct fence *dropped = storage->last_write;
    storage->last_write = fence;
    count_fences(storage, dropped ? 0 : 1);
    take_finished_reads(storage, &dropped);
    unlock(storage);
    unref_fences(dropped);
    completion_listen(completion, &fence->listener);
}

void storage_set_read(struct storage *storage, struct fence *fence, struct completion *completion)
{
    struct fence *dropped = NULL;
    fence->completion = completion_ref(completion);
    lock(storage);
    take_finished_reads(storage, &dropped);
    fence->next = storage->reads;
    storage->reads = fence;
    count_fences(storage, 1);
    unlock(storage);
    unref_fences(dropped);
    completion_listen(completion, &fence->listener);
}

shoal_status storage_add_write(struct storage *storage, struct completion *completion)
{
    struct fence *fence = storage_make_fence(storage);
    if (!fence) {
        return SHOAL_ERR_NO_MEMORY;
    }
    storage_set_write(storage, fence, completion);
    return SHOAL_OK;
}

shoal_status storage_add_read(struct storage *storage, struct completion *completion)
{
    struct fence *fence = storage_make_fence(storage);
    if (!fence) {
        return SHOAL_ERR_NO_MEMORY;
    }
    storage_set_read(storage, fence, completion);
    return SHOAL_OK;
}

shoal_status storage_peek_failure(struct storage *storage)
{
    if (!has_fences(storage)) {
        return SHOAL_OK;
    }
    struct completion *completion = take_last_write(storage);
    shoal_status status = SHOAL_OK;
    if (completion) {
        status = completion_is_finished(completion) ? completion_result(completion) : SHOAL_OK;
        completion_unref(completion);
    }
    return status;
}
