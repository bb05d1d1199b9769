/* SPDX-License-Identifier: MIT */
/* shoal_world_run_threads: ranks that are threads of one process, each with a world of its own. */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/wait.h"
#include "bootstrap/meet/environment.h"
#include "shoal/world.h"

enum gate {
    GATE_CLOSED = 0,
    GATE_OPEN = 1,
    GATE_CANCELLED = 2 /* not all threads could be made */
};

struct thread_ranks {
    int n_ranks;
    shoal_rank_function function;
    void *context;
    char key[64];
    _Atomic uint32_t gate;
    _Atomic int first_failed; /* the rank that failed first, plus 1; 0 if none has */
};

struct thread_rank {
    struct thread_ranks *all;
    int rank;
    pthread_t thread;
    bool is_running;
    shoal_status status;
    char text[ERROR_TEXT_BYTES];
};

static void keep_first(struct thread_rank *self, shoal_status status)
{
    if (self->status == SHOAL_OK && status != SHOAL_OK) {
        const char *text = shoal_error_text();
        self->status = status;
        (void)snprintf(self->text, sizeof self->text, "%s", text[0] ? text : shoal_status_message(status));
        int nobody = 0;
        /* Relaxed: only decides who was first; status and text are read after the threads were joined. */
        (void)atomic_compare_exchange_strong_explicit(&self->all->first_failed, &nobody, self->rank + 1,
                                                      memory_order_relaxed, memory_order_relaxed);
    }
}

static void run_rank(struct thread_rank *self)
{
    struct thread_ranks *all = self->all;
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = all->n_ranks, .rank = self->rank, .key = all->key};
    shoal_world *world;
    shoal_status status = shoal_world_open(&options, &world);
    keep_first(self, status);
    if (status != SHOAL_OK) {
        return;
    }
    keep_first(self, all->function(world, all->context));
    keep_first(self, shoal_world_close(world));
}

static void *wait_and_run_rank(void *argument)
{
    struct thread_rank *self = argument;
    struct wait_options options = {.deadline_ns = DEADLINE_NEVER, .what = "the other threads"};
    keep_first(self, wait_while_equal(&self->all->gate, GATE_CLOSED, &options));
    /* Relaxed: the wait has acquired it, and it changes once. */
    if (self->status == SHOAL_OK &&
        atomic_load_explicit(&self->all->gate, memory_order_relaxed) == GATE_OPEN) {
        run_rank(self);
    }
    return NULL;
}

static shoal_status start_threads(struct thread_rank *ranks, int n_ranks)
{
    for (int i = 0; i < n_ranks; i++) {
        int error = pthread_create(&ranks[i].thread, NULL, wait_and_run_rank, &ranks[i]);
        if (error != 0) {
            return error_set(SHOAL_ERR_SYSTEM, "the thread of rank %d of %d could not be created: %s", i,
                             n_ranks, error_thread_text(error));
        }
        ranks[i].is_running = true;
    }
    return SHOAL_OK;
}

/* Joins the threads and returns the failure that came first: later ones are often its consequences. */
static shoal_status join_threads(const struct thread_ranks *all, struct thread_rank *ranks)
{
    for (int i = 0; i < all->n_ranks; i++) {
        if (ranks[i].is_running) {
            (void)pthread_join(ranks[i].thread, NULL);
        }
    }
    /* Relaxed: the threads were joined. */
    int first_failed = atomic_load_explicit(&all->first_failed, memory_order_relaxed) - 1;
    if (first_failed < 0) {
        return SHOAL_OK;
    }
    return error_set(ranks[first_failed].status, "rank %d: %s", first_failed, ranks[first_failed].text);
}

static shoal_status run_threads(struct thread_ranks *all, struct thread_rank *ranks)
{
    for (int i = 0; i < all->n_ranks; i++) {
        ranks[i] = (struct thread_rank){.all = all, .rank = i};
    }
    shoal_status started = start_threads(ranks, all->n_ranks);
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    /* Release: pairs with the acquire in base/wait.c. */
    atomic_store_explicit(&all->gate, started == SHOAL_OK ? GATE_OPEN : GATE_CANCELLED, memory_order_release);
    wait_wake_all(&all->gate, /*is_shared=*/false);
    shoal_status ended = join_threads(all, ranks);
    return started == SHOAL_OK ? ended : error_set(started, "%s", text);
}

shoal_status shoal_world_run_threads(int n_ranks, shoal_rank_function function, void *context)
{
    error_clear();
    if (n_ranks < 1 || n_ranks > ENVIRONMENT_RANKS_MAX) {
        return error_set(SHOAL_ERR_INVALID, "n_ranks is %d, 1 to %d expected", n_ranks,
                         ENVIRONMENT_RANKS_MAX);
    }
    if (!function) {
        return error_set(SHOAL_ERR_INVALID, "function is NULL");
    }
    struct thread_ranks all = {.n_ranks = n_ranks, .function = function, .context = context};
    uint64_t number = 0;
    if (!os_random(&number, sizeof number)) {
        number = (uint64_t)clock_now_ns();
    }
    (void)snprintf(all.key, sizeof all.key, "threads of process %d, %016" PRIx64, (int)getpid(), number);
    struct thread_rank *ranks = mem_alloc((size_t)n_ranks * sizeof *ranks);
    if (!ranks) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = run_threads(&all, ranks);
    mem_free(ranks);
    return status;
}
