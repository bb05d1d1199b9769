/* SPDX-License-Identifier: MIT */
/* The table of names. label.h has the argument for its memory order. */
#include "base/label.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "base/hash.h"

#define N_SLOTS 8192u /* a power of two */
#define TEXT_BYTES (256u * 1024u)
/* The label of names that found no room. */
#define FULL 1u
#define FULL_TEXT "(more names)"

/* Place 0 holds "", and FULL has none. All zero at first, so that the library's file does not contain it. */
static char texts[TEXT_BYTES];
static _Atomic uint32_t used_bytes = FULL + 1;
static _Atomic uint32_t slots[N_SLOTS];
static _Atomic uint32_t n_names;

static bool is_text(uint32_t label, const char *name, size_t length)
{
    return memcmp(texts + label, name, length) == 0 && texts[label + length] == '\0';
}

/* So many names are taken, that a search always ends soon at an empty slot. */
#define MOST_NAMES (N_SLOTS / 4 * 3)

/* Returns a place with a copy of the name, which nobody else knows yet; 0 if there is no room. */
static uint32_t write_text(const char *name, size_t length)
{
    uint32_t bytes = (uint32_t)length + 1;
    /* Relaxed, all five: only hands out places; the slot publishes what is written there. */
    if (atomic_fetch_add_explicit(&n_names, 1, memory_order_relaxed) >= MOST_NAMES) {
        atomic_fetch_sub_explicit(&n_names, 1, memory_order_relaxed);
        return 0;
    }
    uint32_t place = atomic_load_explicit(&used_bytes, memory_order_relaxed);
    do {
        if (place + bytes > TEXT_BYTES - LABEL_MAX_CHARS) {
            return 0;
        }
    } while (!atomic_compare_exchange_weak_explicit(&used_bytes, &place, place + bytes, memory_order_relaxed,
                                                    memory_order_relaxed));
    memcpy(texts + place, name, length);
    return place;
}

uint32_t label_of(const char *name)
{
    if (!name || !name[0]) {
        return 0;
    }
    size_t length = strnlen(name, LABEL_MAX_CHARS);
    uint32_t first = (uint32_t)hash_bytes(0, name, length);
    uint32_t mine = 0;
    for (uint32_t i = 0; i < N_SLOTS; i++) {
        _Atomic uint32_t *slot = &slots[(first + i) & (N_SLOTS - 1)];
        /* Acquire: pairs with the release exchange below. */
        uint32_t label = atomic_load_explicit(slot, memory_order_acquire);
        if (label == 0) {
            mine = mine ? mine : write_text(name, length);
            if (mine == 0) {
                return FULL;
            }
            /* Release: pairs with the acquire loads, here and above, of who finds the name. */
            if (atomic_compare_exchange_strong_explicit(slot, &label, mine, memory_order_acq_rel,
                                                        memory_order_acquire)) {
                return mine;
            }
        }
        /* A name that another thread put here meanwhile may be this one: what was written of it is left unused. */
        if (is_text(label, name, length)) {
            return label;
        }
    }
    return FULL;
}

const char *label_text(uint32_t label)
{
    if (label == FULL) {
        return FULL_TEXT;
    }
    return label < TEXT_BYTES ? texts + label : "";
}
