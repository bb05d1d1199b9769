/* SPDX-License-Identifier: MIT */
/*
 * Storages, their memory and their fences.
 *
 * A fence is on up to two lists: that of its storage (writes or reads) and, as a listener, that of its completion.
 * Each list holds a reference on the fence. The fence holds a reference on the memory until the completion finishes.
 * The thread that finishes only drops these two references, so it never needs a storage's lock. Other threads remove
 * finished fences from the storage's lists: a wait removes those of its span that succeeded; adding a fence goes
 * through all of them each time that their number has doubled. So a storage has at most about twice as many fences as
 * are in flight or have failed. Spans are compared one by one: there are hundreds of slices, not many thousands.
 *
 * Writes in flight have no bytes in common, unless threads race, because each write has waited for those before it.
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
#include "device/device.h"
#include "tensor/block.h"

struct fence {
    struct block block; /* first: fences are as short-lived as small results, and use the same spare blocks */
    struct fence *next; /* in the storage's list */
    struct span span;
    struct completion *completion;
    _Atomic uint32_t references; /* the storage's list and the completion's */
    struct memory *memory;       /* dropped by the finishing thread */
    struct completion_listener listener;
};

/* Storages --------------------------------------------------------------------------------------------- */

void storage_init(struct storage *storage, struct block *block, shoal_device device, size_t bytes,
                  struct memory *memory)
{
    *storage = (struct storage){
        .block = block, .device = device, .stands_for = device, .bytes = bytes, .memory = memory};
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
    if (device_has_data(device)) {
        TRY(memory_create(device, bytes, &memory));
    }
    shoal_status status = create_around(device, bytes, memory, storage_out);
    if (status != SHOAL_OK) {
        memory_unref(memory);
    }
    return status;
}

void storage_free_memory(void *context, void *data)
{
    device_memory_free((shoal_device)(uintptr_t)context, address_of(data));
}

shoal_status storage_create_borrowed(shoal_device device, size_t bytes, struct address base,
                                     shoal_deleter deleter, void *deleter_context,
                                     struct storage **storage_out)
{
    struct memory *memory = memory_create_borrowed(device, base, deleter, deleter_context);
    if (!memory) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = create_around(device, bytes, memory, storage_out);
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

static void unref_fences(struct fence *fence)
{
    while (fence) {
        struct fence *next = fence->next;
        fence_unref(fence);
        fence = next;
    }
}

void storage_unref(struct storage *storage)
{
    if (!storage || !refcount_put(&storage->references)) {
        return;
    }
    unref_fences(storage->writes);
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

shoal_status storage_fail_read_only(const struct storage *storage)
{
    return error_set(SHOAL_ERR_STATE, "tensor %s is read-only: %s", storage_label(storage),
                     storage->read_only);
}

const char STORAGE_OF_STEP[] = "step";

static _Atomic uint64_t n_trace_ids; /* given so far */

uint64_t storage_trace_id(struct storage *storage)
{
    /* Relaxed, here and below: the number says nothing about other memory. */
    uint64_t id = atomic_load_explicit(&storage->trace_id, memory_order_relaxed);
    if (id == 0) {
        uint64_t fresh = atomic_fetch_add_explicit(&n_trace_ids, 1, memory_order_relaxed) + 1;
        bool is_first = atomic_compare_exchange_strong_explicit(&storage->trace_id, &id, fresh,
                                                                memory_order_relaxed, memory_order_relaxed);
        id = is_first ? fresh : id;
    }
    return id;
}

static shoal_status fail_traced(const struct storage *storage)
{
    if (storage->traced_op == STORAGE_OF_STEP) {
        return error_set(SHOAL_ERR_STATE, "the data of an input of a step was accessed while the step is "
                                          "captured, in which only ops can use it");
    }
    return error_set(
        SHOAL_ERR_STATE,
        "the data of a result of %s was accessed while a step is captured, in which only ops can use it",
        storage->traced_op);
}

shoal_status storage_base(const struct storage *storage, struct address *base_out)
{
    if (storage->memory) {
        *base_out = storage->memory->base;
        return SHOAL_OK;
    }
    if (storage->traced_op) {
        return fail_traced(storage);
    }
    if (!device_has_data(storage->device)) {
        return error_set(SHOAL_ERR_STATE, "tensor %s is on device %s: it has a shape but no data",
                         storage_label(storage), device_name(storage->device));
    }
    return error_set(SHOAL_ERR_STATE, "the data of tensor %s (%zu bytes) was released",
                     storage_label(storage), storage->bytes);
}

shoal_status storage_host_base(const struct storage *storage, void **base_out)
{
    struct address base;
    TRY(storage_base(storage, &base));
    if (!device_is_host(storage->device)) {
        return error_set(SHOAL_ERR_UNSUPPORTED,
                         "tensor %s is on device %s, whose memory the host cannot access",
                         storage_label(storage), device_name(storage->device));
    }
    *base_out = address_pointer(base);
    return SHOAL_OK;
}

static shoal_status check_memory_may_change(const struct storage *storage, const char *change)
{
    if (!device_has_data(storage->device)) {
        return error_set(SHOAL_ERR_STATE, "tensor %s is on device %s: there is no data to %s",
                         storage_label(storage), device_name(storage->device), change);
    }
    if (storage->traced_op) {
        return fail_traced(storage);
    }
    uint32_t exports = atomic_load(&storage->exports);
    if (exports > 0) {
        return error_set(SHOAL_ERR_STATE,
                         "tensor %s: cannot %s data while %" PRIu32 " DLPack exports of it live",
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
    struct address base = storage->memory ? storage->memory->base : ADDRESS_NONE;
    if (address_number(base) % alignment != 0) {
        return error_set(SHOAL_ERR_INVALID, "address %#" PRIxPTR " of the storage is not a multiple of %zu",
                         address_number(base), alignment);
    }
    /* Relaxed, here and in re-binding: memory is changed by one thread at a time, which has seen the views. */
    atomic_fetch_or_explicit(&storage->alignment_mask, alignment - 1, memory_order_relaxed);
    return SHOAL_OK;
}

shoal_status storage_rebind(struct storage *storage, struct address base, shoal_deleter deleter,
                            void *deleter_context)
{
    TRY(check_memory_may_change(storage, "re-bind"));
    size_t mask = atomic_load_explicit(&storage->alignment_mask, memory_order_relaxed);
    if ((address_number(base) & mask) != 0) {
        return error_set(SHOAL_ERR_INVALID,
                         "rebind_data: data: address %#" PRIxPTR
                         " is not a multiple of %zu, which a view as another dtype needs",
                         address_number(base), mask + 1);
    }
    struct memory *memory = NULL;
    if (address_is_none(base)) {
        TRY(memory_create(storage->device, storage->bytes, &memory));
    } else if (!(memory = memory_create_borrowed(storage->device, base, deleter, deleter_context))) {
        return SHOAL_ERR_NO_MEMORY;
    }
    struct memory *old = storage->memory;
    storage->memory = memory;
    storage->is_lent = false;
    /* The fences belong to the old memory, and keep it as long as they need it. */
    storage_forget_fences(storage);
    memory_unref(old);
    return SHOAL_OK;
}

shoal_status storage_own_memory(struct storage *storage)
{
    if (!storage->is_lent || !storage->memory) {
        return SHOAL_OK;
    }
    if (storage_has_fences(storage)) {
        TRY(storage_wait_writable(storage, /*overwrites=*/true));
    }
    struct memory *lent = memory_ref(storage->memory);
    shoal_status status = storage_rebind(storage, ADDRESS_NONE, NULL, NULL);
    if (status == SHOAL_OK && storage->bytes > 0) {
        memcpy(address_pointer(storage->memory->base), address_pointer(lent->base), storage->bytes);
    }
    memory_unref(lent);
    return status;
}

/* Fences ----------------------------------------------------------------------------------------------- */

/* Storages share a few locks: most never have a fence, and a mutex for each would be a third of its size. No code holds
   two of these locks. */
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

struct fence *storage_make_fence(struct storage *storage, struct span span)
{
    struct fence *fence = (struct fence *)block_create(sizeof(*fence));
    if (fence) {
        atomic_init(&fence->block.objects, 1);
        fence->next = NULL;
        fence->span = span;
        fence->completion = NULL;
        atomic_init(&fence->references, 2);
        fence->listener = (struct completion_listener){.notify = on_finish};
        fence->memory = memory_ref(storage->memory);
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

/* Lists: the lock is held ------------------------------------------------------------------------------ */

static void count_fences(struct storage *storage, int change)
{
    /* Release: pairs with the acquire load in storage_has_fences: a thread that sees the count also sees the fence. */
    atomic_fetch_add_explicit(&storage->n_fences, (uint32_t)change, memory_order_release);
}

static uint32_t number_of_fences(const struct storage *storage)
{
    /* Relaxed: it is changed under the lock only. */
    return atomic_load_explicit(&storage->n_fences, memory_order_relaxed);
}

/* Moves a fence from its list to *dropped. Its reference is dropped after the lock was released, because that may free
   other things, which may take locks. */
static void take(struct storage *storage, struct fence **link, struct fence **dropped)
{
    struct fence *fence = *link;
    *link = fence->next;
    count_fences(storage, -1);
    fence->next = *dropped;
    *dropped = fence;
}

/* Two empty spans overlap (struct span). */
static bool spans_meet(struct span a, struct span b)
{
    return (a.first < b.end && b.first < a.end) || (a.end == 0 && b.end == 0);
}

static bool span_covers(struct span outer, struct span inner)
{
    return outer.is_dense && outer.first <= inner.first && inner.end <= outer.end;
}

/* The state of a fence, as an access sees it. */
enum ending {
    IS_ELSEWHERE, /* other bytes */
    IS_PENDING,
    HAS_SUCCEEDED,
    HAS_FAILED
};

static enum ending ending_of(const struct fence *fence)
{
    if (!completion_is_finished(fence->completion)) {
        return IS_PENDING;
    }
    return fence->completion->status == SHOAL_OK ? HAS_SUCCEEDED : HAS_FAILED;
}

/* Marks a completion as waited for. Takes no locks, because it has finished. */
static void note_awaited(const struct fence *fence)
{
    (void)completion_test(fence->completion);
}

/* With fewer fences than this, finished reads are removed each time: the number of fences might never double. */
#define FEW_FENCES 8

static void take_finished_reads(struct storage *storage, struct fence **dropped)
{
    struct fence **link = &storage->reads;
    while (*link) {
        if (ending_of(*link) != IS_PENDING) { /* it does not matter whether a read failed */
            take(storage, link, dropped);
        } else {
            link = &(*link)->next;
        }
    }
}

/* Removes writes that succeeded before anybody waited. They count as waited for, so that they are not reported
   later. */
static void take_finished_writes(struct storage *storage, struct fence **dropped)
{
    struct fence **link = &storage->writes;
    while (*link) {
        if (ending_of(*link) == HAS_SUCCEEDED) {
            note_awaited(*link);
            take(storage, link, dropped);
        } else {
            link = &(*link)->next;
        }
    }
}

static void tidy(struct storage *storage, struct fence **dropped)
{
    uint32_t n = number_of_fences(storage);
    if (n < FEW_FENCES) {
        take_finished_reads(storage, dropped);
    } else if (n >= storage->tidy_at) {
        take_finished_reads(storage, dropped);
        take_finished_writes(storage, dropped);
        n = 2 * number_of_fences(storage);
        storage->tidy_at = n > FEW_FENCES ? n : FEW_FENCES;
    }
}

static void take_covered_writes(struct storage *storage, struct span span, bool takes_pending,
                                struct fence **dropped)
{
    struct fence **link = &storage->writes;
    while (*link) {
        if (span_covers(span, (*link)->span) && (takes_pending || ending_of(*link) != IS_PENDING)) {
            take(storage, link, dropped);
        } else {
            link = &(*link)->next;
        }
    }
}

/* Waiting ---------------------------------------------------------------------------------------------- */

struct access {
    struct span span;
    bool is_write;
    bool overwrites;                  /* failed writes that it covers do not matter */
    const struct completion *awaited; /* the one that was waited for last; NULL if there is none yet */
};

/* Removes a fence that has finished. It counts as waited for, as if the access had come earlier and waited. */
static void take_awaited(struct storage *storage, struct fence **link, const struct access *access,
                         struct fence **dropped)
{
    if ((*link)->completion != access->awaited) {
        note_awaited(*link);
    }
    take(storage, link, dropped);
}

/* The first write that blocks the access, or NULL. Removes those that have succeeded. The lock is held. */
static struct fence *find_write(struct storage *storage, const struct access *access, struct fence **dropped,
                                bool *has_failed_out)
{
    struct fence **link = &storage->writes;
    while (*link) {
        struct fence *fence = *link;
        enum ending ending = spans_meet(fence->span, access->span) ? ending_of(fence) : IS_ELSEWHERE;
        bool is_forgiven =
            access->overwrites && ending == HAS_FAILED && span_covers(access->span, fence->span);
        if (ending == HAS_SUCCEEDED) {
            take_awaited(storage, link, access, dropped);
        } else if (ending == IS_ELSEWHERE || is_forgiven) {
            link = &fence->next;
        } else {
            *has_failed_out = ending == HAS_FAILED;
            return fence;
        }
    }
    return NULL;
}

/* The first read in flight that blocks the access, or NULL. Removes those that have finished. The lock is held. */
static struct fence *find_read(struct storage *storage, const struct access *access, struct fence **dropped)
{
    struct fence **link = &storage->reads;
    while (*link) {
        struct fence *fence = *link;
        enum ending ending = spans_meet(fence->span, access->span) ? ending_of(fence) : IS_ELSEWHERE;
        if (ending == IS_PENDING && access->is_write) {
            return fence;
        }
        if (ending == IS_PENDING || ending == IS_ELSEWHERE) {
            link = &fence->next;
        } else if (access->is_write) {
            take_awaited(storage, link, access, dropped);
        } else {
            take(storage, link, dropped);
        }
    }
    return NULL;
}

/* Finds what the access has to wait for next, with a reference; NULL if there is nothing. *has_failed_out: it has
   failed, and its error is the error of the access. */
static struct completion *find_obstacle(struct storage *storage, const struct access *access,
                                        bool *has_failed_out)
{
    struct fence *dropped = NULL;
    *has_failed_out = false;
    lock(storage);
    struct fence *fence = find_write(storage, access, &dropped, has_failed_out);
    if (!fence) {
        fence = find_read(storage, access, &dropped);
    }
    struct completion *completion = fence ? completion_ref(fence->completion) : NULL;
    unlock(storage);
    unref_fences(dropped);
    return completion;
}

/* No lock is held while waiting. */
static shoal_status wait_for(struct completion *completion)
{
    int64_t deadline_ns = completion_has_deadline(completion)
                              ? DEADLINE_NEVER
                              : clock_deadline_after(option_seconds(OPTION_TIMEOUT));
    return completion_wait(completion, deadline_ns);
}

static shoal_status wait_until_clear(struct storage *storage, struct access access)
{
    struct completion *awaited = NULL;
    for (;;) {
        bool has_failed;
        struct completion *completion = find_obstacle(storage, &access, &has_failed);
        completion_unref(awaited);
        if (!completion) {
            return SHOAL_OK;
        }
        shoal_status status = wait_for(completion);
        if (has_failed || !completion_is_finished(completion)) {
            completion_unref(completion);
            return status; /* or the deadline passed */
        }
        if (status != SHOAL_OK) {
            error_clear(); /* a failed read does not matter to a writer; a failed write is found again */
        }
        access.awaited = awaited = completion;
    }
}

shoal_status storage_wait_readable_in(struct storage *storage, struct span span)
{
    return wait_until_clear(storage, (struct access){.span = span});
}

shoal_status storage_wait_writable_in(struct storage *storage, struct span span, bool overwrites)
{
    return wait_until_clear(storage,
                            (struct access){.span = span, .is_write = true, .overwrites = overwrites});
}

shoal_status storage_wait_writable(struct storage *storage, bool overwrites)
{
    TRY(storage_check_writable(storage));
    return storage_has_fences(storage) ? storage_wait_writable_in(storage, storage_span(storage), overwrites)
                                       : SHOAL_OK;
}

bool storage_test_readable_in(struct storage *storage, struct span span)
{
    const struct access access = {.span = span};
    for (;;) {
        bool has_failed;
        struct completion *completion = find_obstacle(storage, &access, &has_failed);
        bool is_last = !completion || has_failed;
        bool has_ended = is_last || completion_test(completion);
        completion_unref(completion);
        if (is_last || !has_ended) {
            return has_ended;
        }
    }
}

shoal_status storage_peek_failure(struct storage *storage, struct span span)
{
    struct completion *completion = NULL;
    lock(storage);
    for (struct fence *fence = storage->writes; fence && !completion; fence = fence->next) {
        if (spans_meet(fence->span, span) && ending_of(fence) == HAS_FAILED) {
            completion = completion_ref(fence->completion);
        }
    }
    unlock(storage);
    shoal_status status = completion ? completion_result(completion) : SHOAL_OK;
    completion_unref(completion);
    return status;
}

/* Changing --------------------------------------------------------------------------------------------- */

void storage_forget_fences_in(struct storage *storage, struct span span)
{
    struct fence *dropped = NULL;
    lock(storage);
    take_covered_writes(storage, span, /*takes_pending=*/false, &dropped);
    tidy(storage, &dropped);
    unlock(storage);
    unref_fences(dropped);
}

void storage_forget_fences(struct storage *storage)
{
    if (!storage_has_fences(storage)) {
        return;
    }
    lock(storage);
    struct fence *writes = storage->writes;
    struct fence *reads = storage->reads;
    storage->writes = NULL;
    storage->reads = NULL;
    /* Release: as in count_fences. */
    atomic_store_explicit(&storage->n_fences, 0, memory_order_release);
    unlock(storage);
    unref_fences(writes);
    unref_fences(reads);
}

/* Pushes it on a list. The lock is held. */
static void add(struct storage *storage, struct fence **list, struct fence *fence)
{
    fence->next = *list;
    *list = fence;
    count_fences(storage, 1);
}

void storage_set_write(struct storage *storage, struct fence *fence, struct completion *completion)
{
    struct fence *dropped = NULL;
    fence->completion = completion_ref(completion);
    lock(storage);
    take_covered_writes(storage, fence->span, /*takes_pending=*/true, &dropped);
    tidy(storage, &dropped);
    add(storage, &storage->writes, fence);
    unlock(storage);
    unref_fences(dropped);
    completion_listen(completion, &fence->listener);
}

void storage_set_read(struct storage *storage, struct fence *fence, struct completion *completion)
{
    struct fence *dropped = NULL;
    fence->completion = completion_ref(completion);
    lock(storage);
    tidy(storage, &dropped);
    add(storage, &storage->reads, fence);
    unlock(storage);
    unref_fences(dropped);
    completion_listen(completion, &fence->listener);
}

shoal_status storage_add_write(struct storage *storage, struct completion *completion)
{
    struct fence *fence = storage_make_fence(storage, storage_span(storage));
    if (!fence) {
        return SHOAL_ERR_NO_MEMORY;
    }
    storage_set_write(storage, fence, completion);
    return SHOAL_OK;
}

shoal_status storage_add_read(struct storage *storage, struct completion *completion)
{
    struct fence *fence = storage_make_fence(storage, storage_span(storage));
    if (!fence) {
        return SHOAL_ERR_NO_MEMORY;
    }
    storage_set_read(storage, fence, completion);
    return SHOAL_OK;
}
