/* SPDX-License-Identifier: MIT */
/* Doorbells: see doorbell.h. */
#include "transport/doorbell.h"

#include "base/error.h"
#include "base/wait.h"

#define ARMED 1u

/* Longer than a wake-up takes: who waits for a message has nothing better to do, and the peer is often close. */
#define SPIN_NS 20000

static uint32_t count_ring(struct doorbell *bell)
{
    /* Relaxed: only a first guess. The exchange releases what was done before the ring, for doorbell_look, and
       acquires nothing that anybody needs; acq_rel keeps the rings of several ranks one chain of releases. */
    uint32_t old = atomic_load_explicit(&bell->word, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&bell->word, &old, (old & ~ARMED) + 2, memory_order_acq_rel,
                                                  memory_order_relaxed)) {
    }
    return old;
}

void doorbell_ring(struct doorbell *bell)
{
    if (count_ring(bell) & ARMED) {
        wait_wake_all(&bell->word, true);
    }
}

void doorbell_alarm(struct doorbell *bell)
{
    (void)count_ring(bell);
    wait_wake_all(&bell->word, true);
}

bool doorbell_arm(struct doorbell *bell, uint32_t *seen)
{
    uint32_t armed = *seen | ARMED;
    /* Relaxed: arming hands nothing over; a ring is ordered against it because both change one word. */
    uint32_t word = atomic_load_explicit(&bell->word, memory_order_relaxed);
    do {
        if ((word | ARMED) != armed) {
            return false;
        }
    } while (word != armed && !atomic_compare_exchange_weak_explicit(
                                  &bell->word, &word, armed, memory_order_relaxed, memory_order_relaxed));
    *seen = armed;
    return true;
}

void doorbell_disarm(struct doorbell *bell, uint32_t *seen)
{
    uint32_t word = *seen;
    /* Relaxed, as in doorbell_arm. */
    if ((word & ARMED) &&
        atomic_compare_exchange_strong_explicit(&bell->word, &word, word & ~ARMED, memory_order_relaxed,
                                                memory_order_relaxed)) {
        *seen &= ~ARMED;
    }
}

void doorbell_sleep(struct doorbell *bell, uint32_t seen, int64_t until_ns)
{
    struct wait_options options = {.deadline_ns = until_ns, .is_shared = true, .what = "a doorbell"};
    if (wait_while_equal(&bell->word, seen, &options) != SHOAL_OK) {
        error_clear(); /* the caller looks at everything again, and at the clock */
    }
}

bool doorbell_spin(struct doorbell *bell, uint32_t seen)
{
    return wait_spin_while_equal_for(&bell->word, seen, SPIN_NS);
}
