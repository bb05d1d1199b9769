/* SPDX-License-Identifier: MIT */
/* Waiting for a flag, and waking those who do: docs/design/flags.md. */
#include "sharedmem/flag.h"

#include "base/wait.h"

void flag_wake(_Atomic uint32_t *flag)
{
    wait_wake_all(flag, /*is_shared=*/true);
}

/* Marks the word as slept on. False when it changed meanwhile. */
static bool announce_sleeper(_Atomic uint32_t *flag, uint32_t word)
{
    /* Relaxed is enough: the kernel compares the word again before it sleeps, and flag_set's exchange, which is
       ordered with this change because both are to one word, sees the bit. */
    return (word & 1) != 0 || atomic_compare_exchange_strong_explicit(
                                  flag, &word, word | 1, memory_order_relaxed, memory_order_relaxed);
}

shoal_status flag_wait(_Atomic uint32_t *flag, uint32_t target, const struct wait_options *options)
{
    struct wait_options asleep = *options;
    asleep.is_shared = true;
    asleep.may_spin = false;
    struct wait_awake awake = wait_awake_begin(options);
    shoal_status status = SHOAL_OK;
    while (status == SHOAL_OK) {
        /* Acquire: pairs with the exchange in flag_set. */
        uint32_t word = atomic_load_explicit(flag, memory_order_acquire);
        if (flag_is_past(word >> 1, target)) {
            break;
        }
        /* A change that is not yet enough is a sign of life, worth staying awake for. */
        if (!wait_stay_awake(&awake, flag, word) && announce_sleeper(flag, word)) {
            status = wait_while_equal(flag, word | 1, &asleep);
        }
    }
    wait_awake_end(&awake);
    return status;
}
