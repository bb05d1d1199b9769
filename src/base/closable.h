/* SPDX-License-Identifier: MIT */
/*
 * An object that may be closed while others still point to it. A group, for instance, ends with its world, while
 * recorded ops may have it as an argument. Whoever keeps such a pointer takes a reference, and checks before each use
 * whether the object has been closed. Of a closed object only this struct and what `destroy` frees are left.
 */
#ifndef BASE_CLOSABLE_H
#define BASE_CLOSABLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/refcount.h"

/* First member of a struct, so that layers that know nothing else of it find this. */
struct closable {
    _Atomic uint32_t references; /* the maker's until it is closed, and those of others */
    _Atomic bool is_closed;
    const char *kind;                           /* for errors: "group" */
    const char *name;                           /* "[0,1]"; lives as long as this */
    const char *reason;                         /* why it cannot be used once it is closed */
    void (*destroy)(struct closable *closable); /* frees the name and the struct */
};

/* The name is set by the maker. */
static inline void closable_init(struct closable *closable, const char *kind, const char *reason,
                                 void (*destroy)(struct closable *closable))
{
    atomic_init(&closable->references, 1);
    atomic_init(&closable->is_closed, false);
    closable->kind = kind;
    closable->name = "";
    closable->reason = reason;
    closable->destroy = destroy;
}

static inline void closable_ref(struct closable *closable)
{
    refcount_get(&closable->references);
}

static inline void closable_unref(struct closable *closable)
{
    if (refcount_put(&closable->references)) {
        closable->destroy(closable);
    }
}

/* By the maker: from now on it cannot be used. Its parts may still be there. */
static inline void closable_shut(struct closable *closable)
{
    /* Release: pairs with the acquire in closable_check. */
    atomic_store_explicit(&closable->is_closed, true, memory_order_release);
}

/* By the maker, whose reference goes: all but this struct is gone. */
static inline void closable_close(struct closable *closable)
{
    closable_shut(closable);
    closable_unref(closable);
}

/* For whoever has a reference: SHOAL_ERR_STATE once it has been closed. */
static inline shoal_status closable_check(const struct closable *closable)
{
    return atomic_load_explicit(&closable->is_closed, memory_order_acquire)
               ? error_set(SHOAL_ERR_STATE, "%s %s: %s", closable->kind, closable->name, closable->reason)
               : SHOAL_OK;
}

#endif
