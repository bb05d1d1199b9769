/* SPDX-License-Identifier: MIT */
/*
 * Numbers the changes of a program's model: tensors, children and hooks of modules, requires_grad of tensors, hooks on
 * leaves. Whoever was made from a model (a wrapper, a captured step) remembers the latest number when it last looked.
 * As long as that number is the latest, nothing has changed, and one comparison tells. Otherwise it looks closer:
 * numbers are given to all modules and tensors of the process, so the change may concern others.
 */
#ifndef BASE_CHANGES_H
#define BASE_CHANGES_H

#include <stdatomic.h>
#include <stdint.h>

/* The number of the latest change; 0 if there was none. */
extern _Atomic uint64_t changes_latest_number;

/*
 * Call after a change. Returns its number, which no other change has.
 *
 * Relaxed, here and below: a model is changed and used by one thread at a time. So the changes that matter to a caller
 * were made by its own thread, or by one that it has synchronized with.
 */
static inline uint64_t changes_note(void)
{
    return atomic_fetch_add_explicit(&changes_latest_number, 1, memory_order_relaxed) + 1;
}

static inline uint64_t changes_latest(void)
{
    return atomic_load_explicit(&changes_latest_number, memory_order_relaxed);
}

#endif
