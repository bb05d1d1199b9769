/* SPDX-License-Identifier: MIT */
/*
 * Handles: elements of arrays that are never freed, so that a wrong handle and an old one can be looked at. Nothing
 * here orders threads, except that whoever takes an element comes after whoever gave it back.
 */
#include "fakecuda/fake.h"

enum {
    SLOT_FREE,
    SLOT_CLOSED, /* taken, and no handle: it is being made, or is ending */
    SLOT_OPEN
};

static _Atomic uint32_t *state_of(const void *slot)
{
    return (_Atomic uint32_t *)(uintptr_t)slot;
}

void *fake_slot_take(struct fake_slots *slots)
{
    for (size_t i = 0; i < slots->n_slots; i++) {
        size_t index = atomic_fetch_add_explicit(&slots->next, 1, memory_order_relaxed) % slots->n_slots;
        void *slot = (char *)slots->first + index * slots->slot_bytes;
        uint32_t is_free = SLOT_FREE;
        /* Acquire: pairs with the release in fake_slot_give. */
        if (atomic_compare_exchange_strong_explicit(state_of(slot), &is_free, SLOT_CLOSED,
                                                    memory_order_acquire, memory_order_relaxed)) {
            return slot;
        }
    }
    return NULL;
}

/* Relaxed, here and below: who has a handle has got it from whoever made it, and in its order. */
void fake_slot_open(void *slot)
{
    atomic_store_explicit(state_of(slot), SLOT_OPEN, memory_order_relaxed);
}

static bool is_slot(const struct fake_slots *slots, const void *handle)
{
    uintptr_t at = (uintptr_t)handle - (uintptr_t)slots->first;
    return at < slots->n_slots * slots->slot_bytes && at % slots->slot_bytes == 0;
}

bool fake_slot_is_open(const struct fake_slots *slots, const void *handle)
{
    return is_slot(slots, handle) &&
           atomic_load_explicit(state_of(handle), memory_order_relaxed) == SLOT_OPEN;
}

bool fake_slot_close(const struct fake_slots *slots, void *handle)
{
    uint32_t is_open = SLOT_OPEN;
    return is_slot(slots, handle) &&
           atomic_compare_exchange_strong_explicit(state_of(handle), &is_open, SLOT_CLOSED,
                                                   memory_order_relaxed, memory_order_relaxed);
}

void fake_slot_give(void *slot)
{
    /* Release: pairs with the acquire in fake_slot_take. */
    atomic_store_explicit(state_of(slot), SLOT_FREE, memory_order_release);
}
