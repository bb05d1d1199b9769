/* SPDX-License-Identifier: MIT */
/*
 * Recording, and when a trace begins and ends.
 *
 * Memory order. A thread that records counts itself in (`inside`), looks at the state, writes into its own ring if
 * that is TRACE_ON, and counts itself out. Whoever wants to read the rings sets the state to TRACE_PAUSED or TRACE_OFF
 * and waits until nobody is inside. Counting in, both looks and the change of the state are sequentially consistent:
 * either the recorder sees the new state, or the reader sees it inside. Counting out releases what the recorder wrote,
 * and the reader's look acquires it. So rings and the session are plain memory, and can be freed. The count is split
 * among threads, or all of them would write the same cache line at every event.
 *
 * A trace that goes on while its file is written is paused only as long as its rings are copied, and recorders wait
 * for that: no event is lost. Recorders take neither mutex. `writing_mutex` is for those who write the file, and may
 * have to wait for other processes; `mutex`, inside it, is held for moments only, by all who start and stop.
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
#include "base/trace_signal.h"
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
#define PAUSE_NAP_NS 50000

_Atomic uint32_t trace_state = TRACE_UNKNOWN;

static struct {
    _Alignas(64) _Atomic uint32_t n;
} inside[N_STRIPES];
static _Atomic uint32_t n_threads; /* that were given a stripe */

/* The trace that runs. Recorders read number, capacity and begin, which change only while nobody is inside. */
static struct {
    uint64_t number; /* from 1; of the last one if none runs */
    size_t capacity;
    struct trace_instant begin;
    _Atomic(struct trace_ring *) rings;
    _Atomic uint32_t n_rings;
    _Atomic uint64_t n_lost;
    /* Under the mutex. */
    bool is_running;
    bool is_inherited;         /* of the process that this one was forked off: only its memory is left */
    uint32_t n_starts;         /* that were not stopped; 0 if somebody is about to end the session */
    int64_t begin_real_ns;     /* when it began, since 1970 */
    struct trace_instant last; /* when the file was last written, or the session began */
    char *path;                /* as it was given, with its % */
} session;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t writing_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t is_prepared = PTHREAD_ONCE_INIT;

/* Under the mutex. */
static struct {
    uint64_t run; /* what the ranks of the first world share; 0 if none was opened */
    int rank;     /* the lowest that was opened here */
    int n_ranks;
    uint32_t n_worlds; /* open now */
} process;

/* The calling thread's. */
static _Thread_local uint32_t my_stripe; /* its number + 1; 0 if there is none yet */
static _Thread_local int my_rank = TRACE_NO_RANK;
static _Thread_local uint64_t my_session;        /* whose ring this is */
static _Thread_local struct trace_ring *my_ring; /* NULL if there was no memory */
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

static void leave(uint32_t stripe)
{
    /* Release: pairs with the load in wait_for_quiet. */
    (void)atomic_fetch_sub_explicit(&inside[stripe].n, 1, memory_order_release);
}

/*
 * After enter has returned true, nobody reads the rings or ends the session until leave() is called with its stripe. If
 * it returns false, no trace is running, and nothing may be recorded.
 */
static bool enter(uint32_t *stripe)
{
    *stripe = find_stripe();
    for (;;) {
        (void)atomic_fetch_add(&inside[*stripe].n, 1);
        uint32_t state = atomic_load(&trace_state);
        if (state == TRACE_ON) {
            return true;
        }
        leave(*stripe);
        if (state != TRACE_PAUSED) {
            return false;
        }
        wait_sleep(PAUSE_NAP_NS);
    }
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
    ring->n_dropped = 0;
    ring->source = NULL;
    memset(ring->ranges, 0, sizeof ring->ranges);
    ring->capacity = session.capacity;
    atomic_init(&ring->rank, my_rank);
    if (pthread_getname_np(pthread_self(), ring->thread_name, sizeof ring->thread_name) != 0) {
        ring->thread_name[0] = '\0';
    }
    ring->next = atomic_load_explicit(&session.rings, memory_order_relaxed);
    /* Release: pairs with the acquire in make_copies. Others have waited until this thread was outside. */
    while (!atomic_compare_exchange_weak_explicit(&session.rings, &ring->next, ring, memory_order_release,
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
    if (event->begin_ticks < session.begin.ticks) {
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
    uint32_t stripe;
    if (enter(&stripe)) {
        add_event(event);
        leave(stripe);
    }
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
    uint32_t stripe;
    if (!enter(&stripe)) {
        return;
    }
    if (my_session == session.number && my_ring) {
        /* Relaxed: a number that stands for itself. */
        atomic_store_explicit(&my_ring->rank, rank, memory_order_relaxed);
    }
    leave(stripe);
}

/* Writing ------------------------------------------------------------------------------------------------ */

/* The state is TRACE_OFF or TRACE_PAUSED. Returns false if somebody is stuck inside. */
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

struct trace_instant trace_read_clocks(void)
{
    uint64_t least = UINT64_MAX;
    struct trace_instant instant = {0};
    for (int i = 0; i < 8; i++) {
        uint64_t before = clock_ticks();
        int64_t ns = clock_now_ns();
        uint64_t after = clock_ticks();
        if (after - before < least) {
            least = after - before;
            instant = (struct trace_instant){.ticks = before + (after - before) / 2, .ns = ns};
        }
    }
    return instant;
}

/* With the mutex. */
static uint64_t find_run(void)
{
    if (process.run != 0) {
        return process.run;
    }
    /* Nobody else's: this process at this time. */
    char own[64];
    int length = snprintf(own, sizeof own, "%ld %" PRId64, (long)getpid(), session.begin.ns);
    return hash_bytes(0, own, (size_t)length);
}

uint64_t trace_run(void)
{
    (void)pthread_mutex_lock(&mutex);
    uint64_t run = find_run();
    (void)pthread_mutex_unlock(&mutex);
    return run;
}

/* What is written of a session, which may be over then. */
struct writing {
    struct trace_process process;
    struct trace_file file;
    char path[TRACE_PATH_BYTES];
};

/* With the mutex, while nobody is inside: all but the rings. */
static shoal_status begin_writing(struct writing *writing)
{
    int rank = process.n_ranks > 0 ? process.rank : 0;
    struct trace_scale scale = {.begin = session.begin, .last = session.last, .now = trace_read_clocks()};
    session.last = scale.now;
    writing->process =
        (struct trace_process){.scale = scale,
                               .rank = rank,
                               .n_ranks = process.n_ranks,
                               .n_lost = atomic_exchange_explicit(&session.n_lost, 0, memory_order_relaxed)};
    writing->file = (struct trace_file){.path = writing->path,
                                        .run = find_run(),
                                        .session = session.number,
                                        .begin_ns = session.begin_real_ns};
    return trace_file_expand(session.path, rank, writing->path);
}

static void put_process(struct trace_sink *sink, void *context)
{
    trace_put_process(sink, context);
}

/* With the writing mutex only. */
static shoal_status write_file(struct writing *writing)
{
    return trace_file_add(&writing->file, put_process, &writing->process);
}

static void free_rings(struct trace_ring *ring)
{
    while (ring) {
        struct trace_ring *next = ring->next;
        mem_free(ring);
        ring = next;
    }
}

/* With the mutex. Gives back the rings, whose memory stays. */
static struct trace_ring *take_rings(void)
{
    struct trace_ring *rings = atomic_exchange_explicit(&session.rings, NULL, memory_order_relaxed);
    atomic_store_explicit(&session.n_rings, 0, memory_order_relaxed);
    atomic_store_explicit(&session.n_lost, 0, memory_order_relaxed);
    mem_free(session.path);
    session.path = NULL;
    return rings;
}

/* With both mutexes; leaves the inner one, and takes it again. */
static shoal_status end_session(void)
{
    struct writing writing;
    session.is_running = false;
    session.n_starts = 0;
    atomic_store(&trace_state, TRACE_OFF);
    bool is_quiet = wait_for_quiet();
    shoal_status status = begin_writing(&writing);
    struct trace_ring *rings = take_rings();
    (void)pthread_mutex_unlock(&mutex);
    if (!is_quiet) {
        /* Who is inside may write yet: the memory stays. */
        status =
            error_set(SHOAL_ERR_TIMEOUT,
                      "trace %s: not written, because a thread is still recording an event", writing.path);
    } else if (status == SHOAL_OK) {
        writing.process.rings = rings;
        status = write_file(&writing);
    }
    free_rings(is_quiet ? rings : NULL);
    (void)pthread_mutex_lock(&mutex);
    return status;
}

/*
 * Allocates a copy of each existing ring, with what identifies the ring. Rings for which there is no memory are left
 * out.
 */
static struct trace_ring *make_copies(void)
{
    struct trace_ring *copies = NULL;
    /* Acquire: pairs with the release in create_ring. */
    struct trace_ring *ring = atomic_load_explicit(&session.rings, memory_order_acquire);
    for (; ring; ring = ring->next) {
        struct trace_ring *copy = mem_alloc(sizeof *copy + session.capacity * sizeof copy->events[0]);
        if (!copy) {
            error_clear();
            continue;
        }
        copy->source = ring;
        copy->next = copies;
        copies = copy;
    }
    return copies;
}

/* While nobody is inside. The ring's events count as written. */
static void copy_ring(struct trace_ring *copy)
{
    struct trace_ring *ring = copy->source;
    uint64_t first = trace_ring_first(ring);
    copy->n_dropped = first - ring->n_written;
    copy->n_written = 0;
    copy->n_events = ring->n_events - first;
    copy->capacity = session.capacity;
    /* Relaxed: a number that stands for itself. */
    atomic_init(&copy->rank, atomic_load_explicit(&ring->rank, memory_order_relaxed));
    copy->number = ring->number;
    memcpy(copy->thread_name, ring->thread_name, sizeof copy->thread_name);
    uint64_t at = first % ring->capacity;
    uint64_t n_first = copy->n_events < ring->capacity - at ? copy->n_events : ring->capacity - at;
    memcpy(copy->events, ring->events + at, n_first * sizeof copy->events[0]);
    memcpy(copy->events + n_first, ring->events, (copy->n_events - n_first) * sizeof copy->events[0]);
    ring->n_written = ring->n_events;
}

static uint64_t count_events(const struct trace_ring *ring)
{
    uint64_t n_events = 0;
    for (; ring; ring = ring->next) {
        n_events += ring->n_events;
    }
    return n_events;
}

/*
 * Writes everything recorded so far to the file, and lets the trace go on. The caller has both mutexes; the inner one
 * is released while the file is written, and taken again.
 */
static void write_so_far(void)
{
    struct writing writing;
    uint64_t number = session.number;
    struct trace_ring *copies = make_copies();
    atomic_store(&trace_state, TRACE_PAUSED);
    bool is_quiet = wait_for_quiet();
    for (struct trace_ring *copy = is_quiet ? copies : NULL; copy; copy = copy->next) {
        copy_ring(copy);
    }
    atomic_store(&trace_state, TRACE_ON);
    shoal_status status = is_quiet ? begin_writing(&writing) : SHOAL_OK;
    if (is_quiet && status == SHOAL_OK) {
        (void)pthread_mutex_unlock(&mutex);
        writing.process.rings = copies;
        status = write_file(&writing);
        (void)pthread_mutex_lock(&mutex);
    }
    if (status != SHOAL_OK) {
        log_answer(SHOAL_LOG_ERROR, "%s", shoal_error_text());
        error_clear();
        if (session.is_running && session.number == number) {
            /* Relaxed: only counts. */
            atomic_fetch_add_explicit(&session.n_lost, count_events(copies), memory_order_relaxed);
        }
    }
    free_rings(copies);
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
    trace_signal_forget();
    /* A thread that is not in this process may have held it. */
    (void)pthread_mutex_init(&writing_mutex, NULL);
    (void)pthread_mutex_unlock(&mutex);
}

static void lock_to_write(void)
{
    (void)pthread_mutex_lock(&writing_mutex);
    (void)pthread_mutex_lock(&mutex);
}

static void unlock_after_writing(void)
{
    (void)pthread_mutex_unlock(&mutex);
    (void)pthread_mutex_unlock(&writing_mutex);
}

static void end_and_tell(void)
{
    if (session.is_running && end_session() != SHOAL_OK) {
        log_answer(SHOAL_LOG_ERROR, "%s", shoal_error_text());
    }
}

static void write_at_exit(void)
{
    lock_to_write();
    end_and_tell();
    trace_signal_release();
    unlock_after_writing();
}

/* The process ends right after: signals that come meanwhile find the handler yet. */
static void write_at_signal(void)
{
    lock_to_write();
    end_and_tell();
    unlock_after_writing();
}

static int prepare_error;

static void prepare(void)
{
    prepare_error = pthread_atfork(lock_before_fork, unlock_after_fork, leave_to_parent);
    if (prepare_error == 0 && atexit(write_at_exit) != 0) {
        prepare_error = ENOMEM;
    }
}

/* Whether the file can be written. With %r it is another one for each rank, which need not be known yet. */
static shoal_status check_path(const char *pattern)
{
    char path[TRACE_PATH_BYTES];
    TRY(trace_file_expand(pattern, 0, path));
    return strstr(pattern, "%r") ? SHOAL_OK : trace_file_check(path);
}

/* With the mutex, while none runs. */
static shoal_status begin_session(const char *path, size_t n_events)
{
    (void)pthread_once(&is_prepared, prepare);
    if (prepare_error != 0) {
        return error_set(SHOAL_ERR_NO_MEMORY, "trace %s: %s", path, strerror(prepare_error));
    }
    if (session.is_inherited) {
        free_rings(take_rings());
        session.is_inherited = false;
    }
    TRY(check_path(path));
    session.path = mem_copy_string(path);
    if (!session.path) {
        return SHOAL_ERR_NO_MEMORY;
    }
    int code = trace_signal_take(write_at_signal);
    if (code != 0) {
        /* The trace is only lost if a signal ends the process. */
        log_answer(SHOAL_LOG_WARN,
                   "trace %s: it will be lost if a signal ends the process, because a thread could not be "
                   "created: %s",
                   path, error_errno_text(code));
    }
    session.begin_real_ns = trace_file_clock_ns();
    session.capacity = n_events;
    session.number++;
    session.is_running = true;
    session.n_starts = 1;
    session.begin = trace_read_clocks();
    session.last = session.begin;
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
        log_answer(SHOAL_LOG_ERROR, "SHOAL_TRACE: %s; there will be no trace", shoal_error_text());
        error_clear();
    }
}

bool trace_resolve(void)
{
    uint32_t state = atomic_load(&trace_state);
    if (state != TRACE_UNKNOWN) {
        return state != TRACE_OFF;
    }
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
    bool is_last = process.n_worlds == 1;
    process.n_worlds -= process.n_worlds > 0;
    bool must_write = is_last && session.is_running;
    (void)pthread_mutex_unlock(&mutex);
    if (!must_write) {
        return;
    }
    lock_to_write();
    if (session.is_running) {
        write_so_far();
    }
    unlock_after_writing();
}

/* Public calls ------------------------------------------------------------------------------------------- */

static shoal_status start(const char *path, size_t n_events)
{
    if (!session.is_running) {
        return begin_session(path, n_events);
    }
    if (strcmp(path, session.path) != 0) {
        return error_set(SHOAL_ERR_STATE, "trace_start: path is \"%s\", but a trace to \"%s\" is running",
                         path, session.path);
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

/* With the mutex. *is_last: the trace is to be ended. */
static shoal_status stop(bool *is_last)
{
    *is_last = false;
    if (!session.is_running || session.n_starts == 0) {
        return error_set(SHOAL_ERR_STATE, "trace_stop: no trace is running");
    }
    *is_last = --session.n_starts == 0;
    return SHOAL_OK;
}

shoal_status shoal_trace_stop(void)
{
    bool is_last;
    error_clear();
    (void)pthread_mutex_lock(&mutex);
    shoal_status status = stop(&is_last);
    (void)pthread_mutex_unlock(&mutex);
    if (!is_last) {
        return status;
    }
    lock_to_write();
    /* Unless somebody has started it again meanwhile, or it was ended otherwise. */
    if (session.is_running && session.n_starts == 0) {
        status = end_session();
        if (!session.is_running) {
            trace_signal_release();
        }
    }
    unlock_after_writing();
    return status;
}

void shoal_trace_begin(const char *name)
{
    /* Counted also while nothing is recorded, so that each end finds its begin. */
    uint32_t depth = n_ranges++;
    if (depth < TRACE_MOST_RANGES && trace_is_on()) {
        const struct trace_range range = {.begin_ticks = clock_ticks(), .name = label_of(name)};
        uint32_t stripe;
        if (!enter(&stripe)) {
            return;
        }
        struct trace_ring *ring = find_ring();
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
        uint32_t stripe;
        if (!enter(&stripe)) {
            return;
        }
        struct trace_ring *ring = find_ring();
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

static void mark(enum trace_kind kind, const char *name, uint64_t number)
{
    if (trace_is_on()) {
        uint64_t now_ticks = clock_ticks();
        const struct trace_event event = {.begin_ticks = now_ticks,
                                          .end_ticks = now_ticks,
                                          .bytes = number,
                                          .name = label_of(name),
                                          .kind = kind};
        trace_write(&event);
    }
}

void shoal_trace_step(int64_t step)
{
    mark(TRACE_STEP, "step", (uint64_t)step);
}

void trace_step_end(void)
{
    mark(TRACE_STEP_END, "step end", 0);
}
