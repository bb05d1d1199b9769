/* SPDX-License-Identifier: MIT */
/*
 * Reference counts. The count is one word; this is the argument for its memory orders:
 *
 *   get   relaxed: the caller already holds a reference, so the object cannot go away meanwhile.
 *   put   release: what this owner did comes before the object's end. The last put acquires what all others
 *         released. A count of one, seen with acquire, means that the caller is the only owner: nobody else can
 *         get or put any more, so the atomic subtraction (most of the price of a short-lived object) is left out.
 */
#ifndef BASE_REFCOUNT_H
#define BASE_REFCOUNT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

static inline void refcount_get(_Atomic uint32_t *count)
{
    atomic_fetch_add_explicit(count, 1, memory_order_relaxed);
}

/* True for the last owner, who must now end the object. */
static inline bool refcount_put(_Atomic uint32_t *count)
{
    /* Acquire: pairs with the release of every earlier put. */
    if (atomic_load_explicit(count, memory_order_acquire) == 1) {
        return true;
    }
    /* Acquire and release: as the last one it pairs with the release of every other put, as another one it is
       such a release. (One operation, not a release and a fence: the thread sanitizer does not know fences.) */
    return atomic_fetch_sub_explicit(count, 1, memory_order_acq_rel) == 1;
}

#endif
