/* SPDX-License-Identifier: MIT */
/*
 * A counter in shared memory that one rank moves forward and others wait for: docs/design/flags.md.
 *
 * The word is value * 2 + 1 if somebody may be asleep on it. One rank writes the value, by exchange (release), and
 * wakes when the old word had a sleeper. A waiter that gives up spinning sets the bit by compare-and-exchange and
 * sleeps only while the word is exactly that; both are changes to one word, so no wake-up is lost and nobody
 * makes a system call for nobody. Values are compared modulo 2^31.
 */
#ifndef SHAREDMEM_FLAG_H
#define SHAREDMEM_FLAG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "shoal/status.h"

struct wait_options;

#define FLAG_MASK 0x7fffffffu

/* True when `value` is at or past `target`. */
static inline bool flag_is_past(uint32_t value, uint32_t target)
{
    return ((value - target) & FLAG_MASK) < 0x40000000u;
}

/* Acquire: pairs with flag_set. */
static inline uint32_t flag_get(_Atomic uint32_t *flag)
{
    return atomic_load_explicit(flag, memory_order_acquire) >> 1;
}

static inline bool flag_has_reached(_Atomic uint32_t *flag, uint32_t target)
{
    return flag_is_past(flag_get(flag), target);
}

void flag_wake(_Atomic uint32_t *flag);

/* Only its owner calls this. Release: what the owner wrote before is seen by whoever sees the value. */
static inline void flag_set(_Atomic uint32_t *flag, uint32_t value)
{
    uint32_t old = atomic_exchange_explicit(flag, (value & FLAG_MASK) << 1, memory_order_acq_rel);
    if (old & 1) {
        flag_wake(flag);
    }
}

/*
 * Returns once the flag has reached the target. Deadline, liveness and spinning as in base/wait.h; the flag is in
 * memory shared between processes.
 */
shoal_status flag_wait(_Atomic uint32_t *flag, uint32_t target, const struct wait_options *options);

#endif
