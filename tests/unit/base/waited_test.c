/* SPDX-License-Identifier: MIT */
/* Spans of communication: what is kept, what is taken, and what a ring that is too small loses. */
#include "base/waited.h"

#include "harness/test.h"

#include <pthread.h>

enum {
    N_THREADS = 4,
    N_EACH = 1500
};

static struct waited_span spans[WAITED_MAX_SPANS];

static void take_all(void)
{
    while (waited_take_spans(spans, WAITED_MAX_SPANS) > 0) {
    }
}

TEST(spans_of_waits_and_of_collectives)
{
    waited_keep_spans();
    take_all();
    uint64_t before = waited_ticks();
    waited_add(10, 25);
    waited_carried(12, 30);
    CHECK_INT(waited_ticks() - before, 15);
    CHECK_INT(waited_take_spans(spans, 1), 1);
    CHECK(spans[0].is_wait && spans[0].begin_ticks == 10 && spans[0].end_ticks == 25);
    CHECK_INT(waited_take_spans(spans, WAITED_MAX_SPANS), 1);
    CHECK(!spans[0].is_wait && spans[0].begin_ticks == 12 && spans[0].end_ticks == 30);
    CHECK_INT(waited_take_spans(spans, WAITED_MAX_SPANS), 0);
    CHECK(waited_begin() != 0);
}

TEST(a_full_ring_keeps_the_newest)
{
    waited_keep_spans();
    take_all();
    for (uint64_t i = 0; i < WAITED_MAX_SPANS + 10; i++) {
        waited_carried(i, i + 1);
    }
    CHECK_INT(waited_take_spans(spans, WAITED_MAX_SPANS), WAITED_MAX_SPANS);
    CHECK_INT(spans[0].begin_ticks, 10);
    CHECK_INT(spans[WAITED_MAX_SPANS - 1].begin_ticks, WAITED_MAX_SPANS + 9);
}

static void *carry(void *context)
{
    uint64_t number = *(const uint64_t *)context;
    waited_add(1, 2); /* of a thread that did not ask */
    for (uint64_t i = 0; i < N_EACH; i++) {
        waited_carried(number * N_EACH + i, number * N_EACH + i + 1);
    }
    return NULL;
}

/* Every span that is taken is whole, and each once. */
TEST(threads_write_while_one_takes)
{
    pthread_t threads[N_THREADS];
    uint64_t numbers[N_THREADS];
    static bool is_seen[N_THREADS * N_EACH];
    size_t n_seen = 0;
    waited_keep_spans();
    take_all();
    for (uint64_t i = 0; i < N_THREADS; i++) {
        numbers[i] = i;
        CHECK_INT(pthread_create(&threads[i], NULL, carry, &numbers[i]), 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
        size_t count = waited_take_spans(spans, WAITED_MAX_SPANS);
        CHECK_INT(pthread_join(threads[i], NULL), 0);
        size_t n_more = waited_take_spans(spans + count, WAITED_MAX_SPANS - count);
        for (size_t k = 0; k < count + n_more; k++) {
            CHECK(!spans[k].is_wait && spans[k].end_ticks == spans[k].begin_ticks + 1);
            CHECK(spans[k].begin_ticks < N_THREADS * N_EACH && !is_seen[spans[k].begin_ticks]);
            is_seen[spans[k].begin_ticks] = true;
        }
        n_seen += count + n_more;
    }
    CHECK_INT(n_seen, N_THREADS * N_EACH);
}
