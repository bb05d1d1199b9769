/* SPDX-License-Identifier: MIT */
/* Waiting for a flag, and waking those who do: docs/design/flags.md. */
#include "sharedmem/flag.h"

#include "base/clock.h"
#include "base/wait.h"

/*
 * The longest spin. It is longer than a wake-up takes: ranks that run the same program arrive close together, and both
 * a sleep and a wake-up cost the fast path of the next operation its warm caches.
 */
#define SPIN_MOST_NS 50000
#define SPIN_LEAST_NS 1000
/* A sleep shorter than this, after a spin in vain, means that the other side was waiting for this processor. */
#define SLEEP_SHORT_NS 20000
/* Every so many waits a thread that spins little tries again whether spinning helps. */
#define PROBE_WAITS 64

/*
 * How long this thread spins. Spinning takes a processor from a peer that may need it, and what else runs on the
 * machine is unknown. So the time is adapted to how earlier waits went.
 */
static _Thread_local int64_t spin_ns = SPIN_MOST_NS;
static _Thread_local unsigned n_waits;

static int64_t choose_spin(void)
{
    n_waits++;
    return n_waits % PROBE_WAITS == 0 ? SPIN_MOST_NS : spin_ns;
}

static void learn_from_spin(void)
{
    spin_ns = spin_ns * 2 < SPIN_MOST_NS ? spin_ns * 2 : SPIN_MOST_NS;
}

static void learn_from_sleep(int64_t slept_ns)
{
    if (slept_ns < SLEEP_SHORT_NS) {
        spin_ns = spin_ns / 4 > SPIN_LEAST_NS ? spin_ns / 4 : SPIN_LEAST_NS;
    }
}

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
    bool may_spin = options->may_spin && wait_should_spin();
    bool has_spun_in_vain = false;
    for (;;) {
        /* Acquire: pairs with the exchange in flag_set. */
        uint32_t word = atomic_load_explicit(flag, memory_order_acquire);
        if (flag_is_past(word >> 1, target)) {
            return SHOAL_OK;
        }
        if (may_spin) {
            /* A change that is not yet enough is a sign of life, worth spinning on. */
            may_spin = wait_spin_while_equal_for(flag, word, choose_spin());
            has_spun_in_vain = !may_spin;
            if (may_spin) {
                learn_from_spin();
            }
            continue;
        }
        if (!announce_sleeper(flag, word)) {
            continue;
        }
        int64_t start_ns = clock_now_ns();
        shoal_status status = wait_while_equal(flag, word | 1, &asleep);
        if (status != SHOAL_OK) {
            return status;
        }
        if (has_spun_in_vain) {
            learn_from_sleep(clock_now_ns() - start_ns);
            has_spun_in_vain = false;
        }
    }
}
