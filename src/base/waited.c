/* SPDX-License-Identifier: MIT */
/*
 * The counter is thread-local. Spans go into one ring: whoever writes takes the next number, clears the number of that
 * slot, writes, and sets it. Every store releases and every load acquires, so a reader that has seen a word of a later
 * span sees at its second look that the number is not the one that it looked for.
 */
#include "base/waited.h"

static _Thread_local uint64_t n_ticks;
static _Thread_local bool has_own_spans;

_Atomic bool waited_has_spans;

static struct slot {
    _Atomic uint64_t number; /* of the span, from 1; 0 while it changes */
    _Atomic uint64_t begin_ticks;
    _Atomic uint64_t end_ticks;
    _Atomic bool is_wait;
} ring[WAITED_MAX_SPANS];
static _Atomic uint64_t n_spans;
static uint64_t n_taken; /* of the thread that takes */

uint64_t waited_ticks(void)
{
    return n_ticks;
}

static void keep(uint64_t begin_ticks, uint64_t end_ticks, bool is_wait)
{
    /* Relaxed: the number orders nothing but itself. */
    uint64_t number = atomic_fetch_add_explicit(&n_spans, 1, memory_order_relaxed) + 1;
    struct slot *slot = &ring[number % WAITED_MAX_SPANS];
    atomic_store_explicit(&slot->number, 0, memory_order_release);
    atomic_store_explicit(&slot->begin_ticks, begin_ticks, memory_order_release);
    atomic_store_explicit(&slot->end_ticks, end_ticks, memory_order_release);
    atomic_store_explicit(&slot->is_wait, is_wait, memory_order_release);
    atomic_store_explicit(&slot->number, number, memory_order_release);
}

void waited_add(uint64_t begin_ticks, uint64_t end_ticks)
{
    n_ticks += end_ticks - begin_ticks;
    if (has_own_spans) {
        keep(begin_ticks, end_ticks, true);
    }
}

void waited_keep_spans(void)
{
    has_own_spans = true;
    atomic_store_explicit(&waited_has_spans, true, memory_order_relaxed);
}

void waited_keep_carried(uint64_t begin_ticks, uint64_t end_ticks)
{
    keep(begin_ticks, end_ticks, false);
}

/* False if another span has taken the slot since. */
static bool take(uint64_t number, struct waited_span *span)
{
    const struct slot *slot = &ring[number % WAITED_MAX_SPANS];
    if (atomic_load_explicit(&slot->number, memory_order_acquire) != number) {
        return false;
    }
    span->begin_ticks = atomic_load_explicit(&slot->begin_ticks, memory_order_acquire);
    span->end_ticks = atomic_load_explicit(&slot->end_ticks, memory_order_acquire);
    span->is_wait = atomic_load_explicit(&slot->is_wait, memory_order_acquire);
    return atomic_load_explicit(&slot->number, memory_order_acquire) == number;
}

/* A span has its number, but the thread that writes it is not done. */
static bool is_unwritten(uint64_t number)
{
    return atomic_load_explicit(&ring[number % WAITED_MAX_SPANS].number, memory_order_acquire) < number;
}

size_t waited_take_spans(struct waited_span *spans, size_t most)
{
    size_t count = 0;
    uint64_t end = atomic_load_explicit(&n_spans, memory_order_acquire);
    if (end - n_taken > WAITED_MAX_SPANS) {
        n_taken = end - WAITED_MAX_SPANS;
    }
    while (n_taken < end && count < most && !is_unwritten(n_taken + 1)) {
        n_taken++;
        count += take(n_taken, &spans[count]);
    }
    return count;
}
