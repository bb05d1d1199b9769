/* SPDX-License-Identifier: MIT */
/*
 * Recording, and when a trace begins and ends.
 *
 * Memory order. A thread that records counts itself in (`inside`), looks at the state, writes into its own ring if that is
 * TRACE_ON, and counts itself out. Whoever wants to read the rings sets the state to TRACE_OFF and waits until nobody is
 * inside. Counting in, both looks and the change of the state are sequentially consistent: either the recorder sees that
 * the trace is off, or the reader sees it inside. Counting out releases what the recorder wrote, and the reader's look
 * acquires it. So rings and the session are plain memory, and can be freed. The count is split among threads, or all of
 * them would write the same cache line at every event.
 *
 * Recorders never take the mutex: it is for those who start and stop.
 */
#include "base/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/label.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/options.h"
#include "base/struct_size.h"
#include "base/trace_file.h"
#include "base/trace_ring.h"
#include "base/try.h"
#include "base/wait.h"
#include "shoal/trace.h"

#define DEFAULT_EVENTS ((size_t)1 << 16)
#define MOST_EVENTS ((size_t)1 << 26)
/* So many threads get a ring; events of more are lost, and counted. */
#define MOST_RINGS 1024
#define N_STRIPES 64u
/* How long a recorder may be inside: it has been stopped, by a debugger perhaps. */
#define QUIET_SECONDS 1.0
#define QUIET_NAP_NS 20000

_Atomic uint32_t trace_state = TRACE_UNKNOWN;

static struct {
    _Alignas(64) _Atomic uint32_t n;
} inside[N_STRIPES];
static _Atomic uint32_t n_threads; /* that were given a stripe */

/* The trace that runs. Recorders read number, capacity and begin_ticks, which change only while nobody is inside. */
static struct {
    uint64_t number; /* from 1; of the last one if none runs */
    size_t capacity;
    uint64_t begin_ticks;
    int64_t begin_ns;
    _Atomic(struct trace_ring *) rings;
    _Atomic uint32_t n_rings;
    _Atomic uint64_t n_lost;
    /* Under the mutex. */
    bool is_running;
    bool is_inherited; /* of the process that this one was forked off: only its memory is left */
    uint32_t n_starts;
    char *path;
} session;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t is_prepared = PTHREAD_ONCE_INIT;

/* Under the mutex. */
static struct {
    uint64_t run; /* what the ranks of the first world share; 0: none was opened */
    int rank;     /* the lowest that was opened here */
    int n_ranks;
    uint32_t n_worlds; /* open now */
} process;

/* The calling thread's. */
static _Thread_local uint32_t my_stripe; /* + 1; 0: none yet */
static _Thread_local int my_rank = TRACE_NO_RANK;
static _Thread_local uint64_t my_session;        /* whose ring this is */
static _Thread_local struct trace_ring *my_ring; /* NULL: there was no memory */
static _Thread_local uint32_t n_ranges;          /* open ones, also of times when nothing is recorded */

/* Recording ---------------------------------------------------------------------------------------------- */

static uint32_t find_stripe(void)
{
    if (my_stripe == 0) {
        /* Relaxed: only spreads threads. */
        my_stripe = atomic_fetch_add_explicit(&n_threads, 1, memory_order_relaxed) % N_STRIPES + 1;
    }
    return my_stripe - 1;
}

/* Until leave() nobody writes the file or ends the session, if the state is TRACE_ON now. */
static uint32_t enter(void)
{
    uint32_t stripe = find_stripe();
    (void)atomic_fetch_add(&inside[stripe].n, 1);
    return stripe;
}

static void leave(uint32_t stripe)
{
    /* Release: pairs with the load in wait_for_quiet. */
    (void)atomic_fetch_sub_explicit(&inside[stripe].n, 1, memory_order_release);
}

/* The first event of a thread in this session. The caller's error text stays. */
static __attribute__((noinline, cold)) struct trace_ring *create_ring(void)
{
    char text[ERROR_TEXT_BYTES];
    my_session = session.number;
    my_ring = NULL;
    /* Relaxed: only counts. */
    uint32_t number = atomic_fetch_add_explicit(&session.n_rings, 1, memory_order_relaxed) + 1;
    if (number > MOST_RINGS) {
        return NULL;
    }
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    struct trace_ring *ring = mem_alloc(sizeof *ring + session.capacity * sizeof ring->events[0]);
    if (!ring) {
        (void)error_set(SHOAL_OK, "%s", text);
        return NULL;
    }
    ring->number = number;
    ring->n_events = 0;
    ring->n_written = 0;
    memset(ring->ranges, 0, sizeof ring->ranges);
    ring->capacity = session.capacity;
    atomic_init(&ring->rank, my_rank);
    if (pthread_getname_np(pthread_self(), ring->thread_name, sizeof ring->thread_name) != 0) {
        ring->thread_name[0] = '\0';
    }
    ring->next = atomic_load_explicit(&session.rings, memory_order_relaxed);
    /* Relaxed: whoever walks the list has waited until this thread was outside. */
    while (!atomic_compare_exchange_weak_explicit(&session.rings, &ring->next, ring, memory_order_relaxed,
                                                  memory_order_relaxed)) {
    }
    my_ring = ring;
    return ring;
}

static struct trace_ring *find_ring(void)
{
    return my_session == session.number ? my_ring : create_ring();
}

static void add_event(const struct trace_event *event)
{
    if (event->begin_ticks < session.begin_ticks) {
        return;
    }
    struct trace_ring *ring = find_ring();
    if (!ring) {
        /* Relaxed: only counts. */
        atomic_fetch_add_explicit(&session.n_lost, 1, memory_order_relaxed);
        return;
    }
    trace_ring_add(ring, event);
}

void trace_write(const struct trace_event *event)
{
    uint32_t stripe = enter();
    if (atomic_load(&trace_state) == TRACE_ON) {
        add_event(event);
    }
    leave(stripe);
}

void trace_write_named(uint64_t begin_ticks, enum trace_kind kind, const char *name)
{
    const struct trace_event event = {
        .begin_ticks = begin_ticks, .end_ticks = clock_ticks(), .name = label_of(name), .kind = kind};
    trace_write(&event);
}

void trace_set_rank(int rank)
{
    my_rank = rank;
    uint32_t stripe = enter();
    if (atomic_load(&trace_state) == TRACE_ON && my_session == session.number && my_ring) {
        /* Relaxed: a number that stands for itself. */
        atomic_store_explicit(&my_ring->rank, rank, memory_order_relaxed);
    }
    leave(stripe);
}

/* Writing ------------------------------------------------------------------------------------------------ */

/* The state is TRACE_OFF. False: somebody is stuck inside. */
static bool wait_for_quiet(void)
{
    int64_t deadline_ns = clock_deadline_after(QUIET_SECONDS);
    for (uint32_t i = 0; i < N_STRIPES; i++) {
        while (atomic_load(&inside[i].n) != 0) {
            if (clock_now_ns() >= deadline_ns) {
                return false;
            }
            wait_sleep(QUIET_NAP_NS);
        }
    }
    return true;
}

void trace_read_clocks(uint64_t *ticks_out, int64_t *ns_out)
{
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 8; i++) {
        uint64_t before = clock_ticks();
        int64_t ns = clock_now_ns();
        uint64_t after = clock_ticks();
        if (after - before < least) {
            least = after - before;
            *ticks_out = before + (after - before) / 2;
            *ns_out = ns;
        }
    }
}

static void put_process(struct trace_sink *sink, void *context)
{
    trace_put_process(sink, context);
}

/* With the mutex, while nobody is inside. */
static shoal_status write_file(void)
{
    struct trace_process written = {
        .rings = atomic_load_explicit(&session.rings, memory_order_relaxed),
        .scale = {.begin_ticks = session.begin_ticks, .begin_ns = session.begin_ns},
        .rank = process.n_ranks > 0 ? process.rank : 0,
        .n_ranks = process.n_ranks,
        .n_lost = atomic_exchange_explicit(&session.n_lost, 0, memory_order_relaxed)};
    trace_read_clocks(&written.scale.now_ticks, &written.scale.now_ns);
    struct trace_file file = {.path = session.path, .run = process.run, .session = session.number};
    if (file.run == 0) {
        /* Nobody else's: this process at this time. */
        char own[64];
        int length = snprintf(own, sizeof own, "%ld %" PRId64, (long)getpid(), session.begin_ns);
        file.run = hash_bytes(0, own, (size_t)length);
    }
    return trace_file_add(&file, put_process, &written);
}

static void free_rings(void)
{
    struct trace_ring *ring = atomic_exchange_explicit(&session.rings, NULL, memory_order_relaxed);
    while (ring) {
        struct trace_ring *next = ring->next;
        mem_free(ring);
        ring = next;
    }
    atomic_store_explicit(&session.n_rings, 0, memory_order_relaxed);
    atomic_store_explicit(&session.n_lost, 0, memory_order_relaxed);
    mem_free(session.path);
    session.path = NULL;
}

/* With the mutex. */
static shoal_status end_session(void)
{
    shoal_status status;
    session.is_running = false;
    session.n_starts = 0;
    atomic_store(&trace_state, TRACE_OFF);
    if (!wait_for_quiet()) {
        /* It may write yet: the memory stays. */
        atomic_store_explicit(&session.rings, NULL, memory_order_relaxed);
        status = error_set(SHOAL_ERR_TIMEOUT, "trace %s: a thread does not leave it", session.path);
    } else {
        status = write_file();
    }
    free_rings();
    return status;
}

/* With the mutex: what there is goes into the file, and the trace goes on. */
static void write_so_far(void)
{
    atomic_store(&trace_state, TRACE_OFF);
    if (wait_for_quiet() && write_file() != SHOAL_OK) {
        LOG(SHOAL_LOG_ERROR, "%s", shoal_error_text());
    }
    error_clear();
    atomic_store(&trace_state, TRACE_ON);
}

/* Beginning and end -------------------------------------------------------------------------------------- */

static void lock_before_fork(void)
{
    (void)pthread_mutex_lock(&mutex);
}

static void unlock_after_fork(void)
{
    (void)pthread_mutex_unlock(&mutex);
}

/* The trace is the parent's. Threads that were inside are not in this process. */
static void leave_to_parent(void)
{
    for (uint32_t i = 0; i < N_STRIPES; i++) {
        atomic_store(&inside[i].n, 0);
    }
    if (session.is_running) {
        session.is_running = false;
        session.is_inherited = true;
        session.n_starts = 0;
        atomic_store(&trace_state, TRACE_OFF);
    }
    process.run = 0;
    process.n_ranks = 0;
    process.n_worlds = 0;
    my_rank = TRACE_NO_RANK;
    (void)pthread_mutex_unlock(&mutex);
}

static void write_at_exit(void)
{
    (void)pthread_mutex_lock(&mutex);
    if (session.is_running && end_session() != SHOAL_OK) {
        LOG(SHOAL_LOG_ERROR, "%s", shoal_error_text());
    }
    (void)pthread_mutex_unlock(&mutex);
}

static int prepare_error;

static void prepare(void)
{
    prepare_error = pthread_atfork(lock_before_fork, unlock_after_fork, leave_to_parent);
    if (prepare_error == 0 && atexit(write_at_exit) != 0) {
        prepare_error = ENOMEM;
    }
}

/* With the mutex, while none runs. */
static shoal_status begin_session(const char *path, size_t n_events)
{
    (void)pthread_once(&is_prepared, prepare);
    if (prepare_error != 0) {
        return error_set(SHOAL_ERR_NO_MEMORY, "trace %s: %s", path, strerror(prepare_error));
    }
    if (session.is_inherited) {
        free_rings();
        session.is_inherited = false;
    }
    TRY(trace_file_check(path));
    session.path = mem_copy_string(path);
    if (!session.path) {
        return SHOAL_ERR_NO_MEMORY;
    }
    session.capacity = n_events;
    session.number++;
    session.is_running = true;
    session.n_starts = 1;
    trace_read_clocks(&session.begin_ticks, &session.begin_ns);
    atomic_store(&trace_state, TRACE_ON);
    return SHOAL_OK;
}

/* With the mutex. The start that the environment made is never stopped, except by the end of the process. */
static void begin_from_environment(void)
{
    const char *path = option_text(OPTION_TRACE);
    if (path[0] == '\0') {
        return;
    }
    if (begin_session(path, DEFAULT_EVENTS) != SHOAL_OK) {
        LOG(SHOAL_LOG_ERROR, "SHOAL_TRACE: %s", shoal_error_text());
        error_clear();
    }
}

bool trace_resolve(void)
{
    (void)pthread_mutex_lock(&mutex);
    if (atomic_load(&trace_state) == TRACE_UNKNOWN) {
        begin_from_environment();
        if (!session.is_running) {
            atomic_store(&trace_state, TRACE_OFF);
        }
    }
    (void)pthread_mutex_unlock(&mutex);
    return atomic_load(&trace_state) == TRACE_ON;
}

void trace_world_opened(int rank, int n_ranks, uint64_t run)
{
    (void)trace_is_on(); /* resolves it */
    (void)pthread_mutex_lock(&mutex);
    /* A process that was forked off a traced one, and is a rank of its own. */
    if (session.is_inherited) {
        begin_from_environment();
    }
    process.rank = process.n_ranks == 0 || rank < process.rank ? rank : process.rank;
    process.n_ranks = n_ranks > process.n_ranks ? n_ranks : process.n_ranks;
    process.run = process.run != 0 ? process.run : run;
    process.n_worlds++;
    (void)pthread_mutex_unlock(&mutex);
    trace_set_rank(rank);
}

void trace_world_closed(void)
{
    (void)pthread_mutex_lock(&mutex);
    if (process.n_worlds > 0) {
        process.n_worlds--;
        if (process.n_worlds == 0 && session.is_running) {
            write_so_far();
        }
    }
    (void)pthread_mutex_unlock(&mutex);
}

/* Public calls ------------------------------------------------------------------------------------------- */

static shoal_status start(const char *path, size_t n_events)
{
    if (!session.is_running) {
        return begin_session(path, n_events);
    }
    if (strcmp(path, session.path) != 0) {
        return error_set(SHOAL_ERR_STATE, "trace_start: path is \"%s\", but a trace to \"%s\" runs", path,
                         session.path);
    }
    session.n_starts++;
    return SHOAL_OK;
}

shoal_status shoal_trace_start(const shoal_trace_options *options)
{
    error_clear();
    shoal_trace_options known = {.struct_size = sizeof known};
    TRY(struct_size_read("shoal_trace_options", options, sizeof(size_t), &known, sizeof known));
    if (!known.path || !known.path[0]) {
        return error_set(SHOAL_ERR_INVALID, "trace_start: path is %s", known.path ? "empty" : "NULL");
    }
    if (known.n_events > MOST_EVENTS) {
        return error_set(SHOAL_ERR_INVALID, "trace_start: n_events is %zu, at most %zu expected",
                         known.n_events, MOST_EVENTS);
    }
    (void)trace_is_on(); /* SHOAL_TRACE comes first */
    (void)pthread_mutex_lock(&mutex);
    shoal_status status = start(known.path, known.n_events > 0 ? known.n_events : DEFAULT_EVENTS);
    (void)pthread_mutex_unlock(&mutex);
    return status;
}

shoal_status shoal_trace_stop(void)
{
    shoal_status status = SHOAL_OK;
    error_clear();
    (void)pthread_mutex_lock(&mutex);
    if (!session.is_running) {
        status = error_set(SHOAL_ERR_STATE, "trace_stop: no trace runs");
    } else if (--session.n_starts == 0) {
        status = end_session();
    }
    (void)pthread_mutex_unlock(&mutex);
    return status;
}

bool shoal_trace_is_on(void)
{
    return trace_is_on();
}

void shoal_trace_begin(const char *name)
{
    /* Counted also while nothing is recorded, so that each end finds its begin. */
    uint32_t depth = n_ranges++;
    if (depth < TRACE_MOST_RANGES && trace_is_on()) {
        const struct trace_range range = {.begin_ticks = clock_ticks(), .name = label_of(name)};
        uint32_t stripe = enter();
        struct trace_ring *ring = atomic_load(&trace_state) == TRACE_ON ? find_ring() : NULL;
        if (ring) {
            ring->ranges[depth] = range;
        }
        leave(stripe);
    }
}

void shoal_trace_end(void)
{
    if (n_ranges == 0) {
        return;
    }
    uint32_t depth = --n_ranges;
    if (depth < TRACE_MOST_RANGES && trace_is_on()) {
        uint32_t stripe = enter();
        struct trace_ring *ring = atomic_load(&trace_state) == TRACE_ON ? find_ring() : NULL;
        if (ring && ring->ranges[depth].begin_ticks != 0) {
            const struct trace_event event = {.begin_ticks = ring->ranges[depth].begin_ticks,
                                              .end_ticks = clock_ticks(),
                                              .name = ring->ranges[depth].name,
                                              .kind = TRACE_RANGE};
            ring->ranges[depth].begin_ticks = 0;
            add_event(&event);
        }
        leave(stripe);
    }
}

void shoal_trace_step(int64_t step)
{
    if (trace_is_on()) {
        uint64_t now_ticks = clock_ticks();
        const struct trace_event event = {.begin_ticks = now_ticks,
                                          .end_ticks = now_ticks,
                                          .bytes = (uint64_t)step,
                                          .name = label_of("step"),
                                          .kind = TRACE_STEP};
        trace_write(&event);
    }
}
