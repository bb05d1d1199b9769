/* SPDX-License-Identifier: MIT */
/* References on tensors, and a ring of the structs of the tensors that were freed last (handle.h). */
#include "tensor/handle.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/options.h"
#include "base/refcount.h"
#include "tensor/block.h"
#include "tensor/scope_stack.h"

/* What is known of a dead tensor. Its place in the ring is the tensor's owner_index. */
struct dead {
    shoal_tensor *tensor; /* NULL if there is none */
    enum handle_end end;
    char name[48]; /* of the storage, cut */
};

/* Whether dead handles are kept; true until the option was read. */
static _Atomic bool may_keep = true;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_ready; /* all under the lock */
static struct dead *ring;
static size_t n_places; /* of the ring; 0 if nothing is kept */
static size_t n_ended;  /* so far */

/* The lock is held. */
static void set_places(size_t wanted)
{
    is_ready = true;
    n_ended = 0;
    n_places = 0;
    ring = NULL;
    size_t bytes = 0;
    if (wanted > 0 && mem_multiply(wanted, sizeof(*ring), &bytes)) {
        ring = mem_alloc(bytes);
    }
    if (ring) {
        for (size_t i = 0; i < wanted; i++) {
            ring[i].tensor = NULL;
        }
        n_places = wanted;
    } else if (wanted > 0) {
        LOG(SHOAL_LOG_WARN, "SHOAL_DEBUG_HANDLES: no memory to keep %zu dead tensors: none is kept", wanted);
    }
    /* Relaxed: a hint; the ring itself is under the lock. */
    atomic_store_explicit(&may_keep, n_places > 0, memory_order_relaxed);
}

/* Puts a tensor into the ring. Returns what has to be freed: the tensor whose place it took, NULL, or itself. */
static shoal_tensor *remember(shoal_tensor *tensor, enum handle_end end)
{
    (void)pthread_mutex_lock(&lock);
    if (!is_ready) {
        set_places((size_t)option_int(OPTION_DEBUG_HANDLES));
    }
    shoal_tensor *free_now = tensor;
    if (n_places > 0) {
        size_t place = n_ended++ % n_places;
        free_now = ring[place].tensor;
        ring[place].tensor = tensor;
        ring[place].end = end;
        const char *name = tensor->storage->name;
        (void)snprintf(ring[place].name, sizeof(ring[place].name), "%s", name ? name : "");
        tensor->history = NULL;
        tensor->storage = NULL;
        tensor->owner_index = place;
        tensor->is_dead = true;
    }
    (void)pthread_mutex_unlock(&lock);
    return free_now;
}

static void bury(shoal_tensor *tensor, enum handle_end end)
{
    struct storage *storage = tensor->storage;
    /* Relaxed: see set_places. */
    shoal_tensor *free_now =
        atomic_load_explicit(&may_keep, memory_order_relaxed) ? remember(tensor, end) : tensor;
    storage_unref(storage);
    if (free_now) {
        block_free(free_now->block, free_now);
    }
}

shoal_status handle_fail(const shoal_tensor *tensor)
{
    static const char *const ends[] = {
        [HANDLE_SCOPE_ENDED] = "after its scope ended; keep it with shoal_scope_keep or shoal_tensor_ref",
        [HANDLE_UNREFERENCED] = "after its last reference was given up; keep it with shoal_tensor_ref",
        [HANDLE_TAKEN] = "after one shoal_tensor_unref too many, of a reference that its scope owned",
    };
    char shape[LAYOUT_TEXT_BYTES];
    struct dead dead = {.tensor = NULL};
    (void)pthread_mutex_lock(&lock);
    if (tensor->owner_index < n_places && ring[tensor->owner_index].tensor == tensor) {
        dead = ring[tensor->owner_index];
    }
    (void)pthread_mutex_unlock(&lock);
    if (!dead.tensor) {
        return error_set(SHOAL_ERR_STATE, "a tensor was used after it was freed");
    }
    return error_set(SHOAL_ERR_STATE, "tensor%s%s, %s %s, was used %s", dead.name[0] ? " " : "", dead.name,
                     shoal_dtype_name(tensor->dtype),
                     layout_format(shape, tensor->layout.n_dims, tensor->layout.shape), ends[dead.end]);
}

bool handle_report(const shoal_tensor *tensor)
{
    (void)scope_fail(handle_fail(tensor));
    return false;
}

/* References ------------------------------------------------------------------------------------------- */

shoal_tensor *shoal_tensor_ref(shoal_tensor *tensor)
{
    if (!handle_is_alive(tensor)) {
        return NULL;
    }
    refcount_get(&tensor->references);
    return tensor;
}

void handle_unref(shoal_tensor *tensor, enum handle_end end)
{
    if (!handle_is_alive(tensor) || !refcount_put(&tensor->references)) {
        return;
    }
    if (tensor->history) {
        tensor->history->destroy(tensor->history);
    }
    bury(tensor, end);
}

void shoal_tensor_unref(shoal_tensor *tensor)
{
    /* Relaxed: for the text of an error. */
    bool is_owned = tensor && atomic_load_explicit(&tensor->owner, memory_order_relaxed);
    handle_unref(tensor, is_owned ? HANDLE_TAKEN : HANDLE_UNREFERENCED);
}

/* For tests -------------------------------------------------------------------------------------------- */

void handle_keep(size_t n_handles)
{
    (void)pthread_mutex_lock(&lock);
    struct dead *old = ring;
    size_t n_old = n_places;
    set_places(n_handles);
    (void)pthread_mutex_unlock(&lock);
    for (size_t i = 0; i < n_old; i++) {
        if (old[i].tensor) {
            block_free(old[i].tensor->block, old[i].tensor);
        }
    }
    mem_free(old);
}
