/* SPDX-License-Identifier: MIT */
/* Worlds: what the public calls are given and give back. How ranks meet is in startup.c. */
#include "comm/world.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fail_point.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/options.h"
#include "base/struct_size.h"
#include "base/try.h"
#include "base/wait.h"
#include "comm/environment.h"
#include "comm/groups.h"
#include "comm/lane.h"
#include "comm/members.h"
#include "comm/p2p.h"
#include "comm/startup.h"
#include "comm/store.h"
#include "comm/work.h"
#include "transport/segment.h"
#include "transport/transport.h"

#define STARTUP_TIMEOUT_S 60.0
#define CLOSE_TIMEOUT_S 30.0
/* Between two looks at what another thread is about to finish. */
#define NAP_NS 200000

/* Forks ------------------------------------------------------------------------------------------------- */

_Atomic uint32_t world_n_forks;

static pthread_once_t watches_forks = PTHREAD_ONCE_INIT;
static int watch_error;

static void count_fork(void)
{
    /* Relaxed: the only thread of a new process. */
    atomic_fetch_add_explicit(&world_n_forks, 1, memory_order_relaxed);
}

static void watch_forks(void)
{
    watch_error = pthread_atfork(NULL, NULL, count_fork);
}

shoal_status world_fail_inherited(void)
{
    return error_set(SHOAL_ERR_STATE,
                     "process %d was forked off one that had opened the world, and is not its rank",
                     (int)getpid());
}

/* Opening ----------------------------------------------------------------------------------------------- */

static shoal_status check_seconds(const char *name, double given, double by_default, double *seconds_out)
{
    if (isnan(given) || given < 0) {
        return error_set(SHOAL_ERR_INVALID, "%s is %g, 0 (the default) or more expected", name, given);
    }
    *seconds_out = given == 0 ? by_default : given;
    return SHOAL_OK;
}

static shoal_status check_times(struct shoal_world *world, const shoal_world_options *options)
{
    TRY(check_seconds("startup_timeout_s", options->startup_timeout_s, STARTUP_TIMEOUT_S,
                      &world->startup_timeout_s));
    TRY(check_seconds("timeout_s", options->timeout_s, option_seconds(OPTION_TIMEOUT), &world->timeout_s));
    return check_seconds("close_timeout_s", options->close_timeout_s, CLOSE_TIMEOUT_S,
                         &world->close_timeout_s);
}

/* Rank and size by the caller's word. */
static shoal_status check_place(struct shoal_world *world, const shoal_world_options *options)
{
    int n_ranks_max = world->transport == &transport_fake ? INT_MAX : ENVIRONMENT_RANKS_MAX;
    if (options->n_ranks < 0 || options->n_ranks > n_ranks_max) {
        return error_set(SHOAL_ERR_INVALID, "n_ranks is %d, 0 (from the environment) to %d expected",
                         options->n_ranks, n_ranks_max);
    }
    if (options->rank < 0 || options->rank >= options->n_ranks) {
        return error_set(SHOAL_ERR_INVALID, "rank is %d, 0 to %d expected: n_ranks is %d", options->rank,
                         options->n_ranks - 1, options->n_ranks);
    }
    bool needs_key = world->transport != &transport_fake && options->n_ranks > 1 && !options->exchange;
    if (needs_key && (!options->key || !options->key[0])) {
        return error_set(SHOAL_ERR_INVALID, "n_ranks is %d, but there is neither a key nor an exchange",
                         options->n_ranks);
    }
    world->launcher = "options";
    world->n_ranks = options->n_ranks;
    world->rank = options->rank;
    return SHOAL_OK;
}

/* From the environment; its key becomes the plan's. */
static shoal_status find_place(struct shoal_world *world, const shoal_world_options *options,
                               struct environment *environment)
{
    /* Alike on every rank, rank 0 too: the others would wait for it in the exchange. */
    if (options->exchange) {
        return error_set(SHOAL_ERR_INVALID,
                         "exchange is given, but n_ranks is 0: give n_ranks and rank with it");
    }
    if (options->rank != 0 || options->key) {
        return error_set(
            SHOAL_ERR_INVALID,
            "%s is given, but n_ranks is 0, which takes all from the environment: give n_ranks too",
            options->key ? "key" : "rank");
    }
    TRY(environment_read(environment));
    world->launcher = environment->launcher;
    world->n_ranks = environment->n_ranks;
    world->rank = environment->rank;
    return SHOAL_OK;
}

/* Ranks of this host and processors that they may use. */
static bool has_processors_for(int n_ranks)
{
    cpu_set_t allowed;
    /* It fails where there are more processors than the set has room for. */
    return sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) >= n_ranks;
}

static shoal_status open_world(struct shoal_world *world, const shoal_world_options *options)
{
    struct environment environment;
    struct startup_plan plan = {.exchange = options->exchange, .exchange_context = options->exchange_context};
    TRY(check_times(world, options));
    TRY(transport_find(options->transport ? options->transport : transport_at(0)->name, &world->transport));
    char own_key[ENVIRONMENT_KEY_BYTES];
    if (options->n_ranks == 0) {
        TRY(find_place(world, options, &environment));
        plan.key = environment.key;
    } else {
        TRY(check_place(world, options));
        const char *key = options->key ? options->key : "";
        int length = snprintf(own_key, sizeof own_key, "options\n%s", key);
        if (length < 0 || (size_t)length >= sizeof own_key) {
            return error_set(SHOAL_ERR_INVALID, "key has %zu characters, at most %zu expected", strlen(key),
                             sizeof own_key - sizeof "options\n");
        }
        plan.key = own_key;
    }
    world->may_spin = has_processors_for(world->n_ranks);
    if (world->transport == &transport_fake) {
        return startup_without_peers(world);
    }
    return startup_with_peers(world, &plan);
}

static void free_world(struct shoal_world *world)
{
    work_count_unref(world->works);
    mem_free(world);
}

shoal_status shoal_world_open(const shoal_world_options *options, shoal_world **world_out)
{
    error_clear();
    shoal_world_options known = {.struct_size = sizeof known};
    if (!world_out) {
        return error_set(SHOAL_ERR_INVALID, "world_out is NULL");
    }
    if (options) {
        TRY(struct_size_read("shoal_world_options", options, sizeof(size_t), &known, sizeof known));
    }
    (void)pthread_once(&watches_forks, watch_forks);
    if (watch_error != 0) {
        return error_set(SHOAL_ERR_NO_MEMORY, "forks can not be watched: %s", strerror(watch_error));
    }
    struct shoal_world *world = mem_alloc_zeroed(1, sizeof(*world));
    if (!world) {
        return SHOAL_ERR_NO_MEMORY;
    }
    /* Relaxed: as in world_is_inherited. */
    world->n_forks = atomic_load_explicit(&world_n_forks, memory_order_relaxed);
    owned_list_init(&world->owned);
    world->works = work_count_create(world->n_forks);
    shoal_status status = world->works ? open_world(world, &known) : SHOAL_ERR_NO_MEMORY;
    if (status != SHOAL_OK) {
        startup_undo(world);
        free_world(world);
        return status;
    }
    *world_out = world;
    return SHOAL_OK;
}

/* Closing ----------------------------------------------------------------------------------------------- */

static void warn_of_unawaited(struct shoal_world *world)
{
    /* Relaxed: a number that stands for itself. */
    uint64_t n_unawaited = atomic_load_explicit(&world->works->n_unawaited, memory_order_relaxed);
    if (n_unawaited > 0) {
        LOG(SHOAL_LOG_WARN,
            "rank %d closes its world: nobody waited for %" PRIu64 " operations that were started",
            world->rank, n_unawaited);
    }
}

/*
 * Peers may be in the middle of what this rank has started: it stays until that has ended, or the time is up. What
 * is still unfinished then is cancelled when its group is freed.
 */
static void finish_started(struct shoal_world *world, int64_t deadline_ns)
{
    for (struct shoal_group *group = groups_first(world->groups); group; group = group->next) {
        /* Acquire: pairs with the exchange by which point to point was made. */
        struct p2p *p2p = atomic_load_explicit(&group->p2p, memory_order_acquire);
        while ((!lane_drain(group->lane, deadline_ns) || p2p_is_sending(p2p)) &&
               clock_now_ns() < deadline_ns) {
            wait_sleep(NAP_NS);
        }
    }
    error_clear();
}

static void free_parts(struct shoal_world *world)
{
    groups_free(world->groups);
    world->groups = NULL;
    owned_list_end(&world->owned);
    owned_list_init(&world->owned);
}

shoal_status shoal_world_close(shoal_world *world)
{
    error_clear();
    if (!world) {
        return SHOAL_OK;
    }
    TRY(world_check_process(world));
    int64_t deadline_ns = clock_deadline_after(world->close_timeout_s);
    LOG(SHOAL_LOG_DEBUG, "rank %d closes its world", world->rank);
    warn_of_unawaited(world);
    finish_started(world, deadline_ns);
    /* Before this rank leaves: what is dropped here may lie on the servers of others. */
    free_parts(world);
    error_clear();
    shoal_status status = SHOAL_OK;
    if (world->members) {
        members_leave(world->members);
        status = members_wait_for_end(world->members, deadline_ns);
    }
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    LOG(SHOAL_LOG_DEBUG, "rank %d has closed its world: %s", world->rank, shoal_status_name(status));
    startup_undo(world);
    free_world(world);
    return status == SHOAL_OK ? SHOAL_OK : error_set(status, "%s", text);
}

/* Asking ------------------------------------------------------------------------------------------------ */

int shoal_world_rank(const shoal_world *world)
{
    return world ? world->rank : -1;
}

int shoal_world_n_ranks(const shoal_world *world)
{
    return world ? world->n_ranks : 0;
}

const char *shoal_world_launcher(const shoal_world *world)
{
    return world ? world->launcher : "";
}

shoal_group *shoal_world_group(shoal_world *world)
{
    return world ? world->group : NULL;
}

shoal_store *shoal_world_store(shoal_world *world)
{
    return world ? world->store : NULL;
}

shoal_status world_check_rank(struct shoal_world *world, int rank)
{
    return world->members ? members_check(world->members, rank) : SHOAL_OK;
}

/* A world without peers has nobody to share with. */
static shoal_status open_own_segment(const char *name, size_t bytes, struct segment **segment_out)
{
    int fd;
    TRY(segment_create_fd(name, bytes, &fd));
    shoal_status status = segment_map(fd, bytes, segment_out);
    (void)close(fd);
    return status;
}

shoal_status world_open_segment(struct shoal_world *world, int holder, const char *name, size_t bytes,
                                int64_t deadline_ns, struct segment **segment_out)
{
    if (!world->members) {
        return open_own_segment(name, bytes, segment_out);
    }
    return stores_open_segment(world->stores, holder, name, bytes, deadline_ns, segment_out);
}

shoal_status world_drop_segment(struct shoal_world *world, int holder, const char *name, int64_t deadline_ns)
{
    return world->members ? stores_drop_segment(world->stores, holder, name, deadline_ns) : SHOAL_OK;
}

/* Ranks as threads -------------------------------------------------------------------------------------- */

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
    _Atomic int first_failed; /* rank + 1 of who failed before all others; 0: nobody */
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
            return error_set(SHOAL_ERR_SYSTEM, "no thread for rank %d of %d: %s", i, n_ranks,
                             strerror(error));
        }
        ranks[i].is_running = true;
    }
    return SHOAL_OK;
}

/* The first failure in time: those that come later are often its consequences. */
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
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) {
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
