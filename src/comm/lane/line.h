/* SPDX-License-Identifier: MIT */
/*
 * The inside of a lane: the unfinished collectives in line, and the threads that carry them. docs/design/lanes.md has
 * the argument.
 *
 *   gate     one word: how many collectives were issued, and two bits. ALONE: a blocking call found the lane empty
 *            and runs without an entry. LINE: there are entries or a driver, and the mutex decides.
 *   entries  what is unfinished, in order; posted entries come before queued ones.
 *   driver   the one thread that carries entries, from the head: a waiter, a blocking call, or the lane's thread.
 *            A driver that stops, while entries are left that somebody needs, wakes another one (line_settle).
 *
 * comm/lane/lane.c issues and frees, comm/lane/line.c carries and waits. The functions here are called with the mutex.
 */
#ifndef COMM_LANE_LINE_H
#define COMM_LANE_LINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "comm/lane/lane.h"
#include "comm/lane/part.h"
#include "comm/lane/recorder.h"
#include "comm/lane/work.h"
#include "transport/transport.h"

#define GATE_ALONE ((uint64_t)1)
#define GATE_LINE ((uint64_t)2)
#define GATE_ONE ((uint64_t)4) /* one collective more */
#define GATE_SHIFT 2

enum entry_state {
    ENTRY_QUEUED, /* to be run */
    ENTRY_POSTED, /* to be finished */
    ENTRY_ENDED   /* no longer in line */
};

struct entry {
    struct collective *collective;
    struct lane_work *work; /* NULL for the entry of a blocking call, which is on its stack */
    struct entry *next;
    bool is_watched;        /* the lane's thread carries it, posted or not: callbacks wait for its end */
    enum entry_state state; /* under the mutex, except that the driver may read what only it changes */
    struct record_handle record;
    /* For the trace and for waited_carried, used by the thread that carries it: when it was issued, and how long it was carried. */
    uint64_t issue_ticks;
    uint64_t carried_ticks;
    /* The result of a blocking call. */
    shoal_status status;
    char *text; /* ERROR_TEXT_BYTES */
};

/* A thread that sleeps until its entry has ended or it is its turn to drive; on its stack. */
struct waiter {
    _Atomic uint32_t is_woken;
    bool is_listed; /* under the mutex; the thread that takes it off the list sets the word afterwards */
    struct entry *target;
    int64_t until_ns;
    struct waiter *next;
};

/* The threads to wake after the mutex was released. */
struct wakes {
    struct waiter *waiters;
    bool has_thread;
};

/* When the clock was last read. */
struct lane_clock {
    uint64_t read_ticks;
    int64_t read_ns;
};

struct lane {
    /* First what a blocking call on an idle lane touches. */
    _Atomic uint64_t gate;
    struct channel *_Atomic channel; /* NULL until connected */
    struct part part;
    /*
     * For the trace; only the thread that carries a call uses them: the label of the lane's track (0 before its first
     * event), and when its last call ended.
     */
    uint32_t track;
    uint64_t end_ticks;
    struct lane_clock alone_clock; /* for calls that run alone, one at a time */
    _Atomic uint32_t references;   /* the group's, and one per work */
    _Atomic uint32_t n_unfinished; /* entries */

    pthread_mutex_t mutex; /* over everything below */
    struct entry *head;
    struct entry *tail;
    struct lane_clock line_clock;
    uint32_t n_queued;  /* entries that are queued */
    uint32_t n_watched; /* entries that are posted, and watched */
    bool is_driven;
    struct waiter *waiters; /* in order of arrival */
    /* The lane's thread, made when a work is queued. It sleeps on the bell. */
    bool has_thread;
    bool is_thread_asleep;
    bool must_stop;
    pthread_t thread;
    _Atomic uint32_t bell;

    pthread_mutex_t connect_mutex;
    /* The lane was poisoned before it was connected. Changed under the mutex. */
    _Atomic bool has_local_failure;
    shoal_status local_status;
    char local_text[ERROR_TEXT_BYTES];
    /* What operations of this rank end with in lane_free, if the others are told another reason. */
    _Atomic bool is_cancelled;
    char cancelled_text[80];
};

struct lane_work {
    struct shoal_work base;
    struct lane *lane;
    struct entry entry;
    struct work_listener listener; /* if it was started with hooks */
    struct collective collective;  /* what it points to follows in the same block of memory */
};

/* How far a driver goes. */
struct goal {
    enum {
        GOAL_ENTRY,  /* until `target` has ended */
        GOAL_NEEDED, /* until nothing is queued or watched: the lane's thread */
        GOAL_ALL
    } kind;
    struct entry *target;
    int64_t until_ns; /* 0 means only what is ready */
};

/* Whether no thread carries anything on this lane. */
bool line_is_free(struct lane *lane);
/* Makes the lane's thread carry the entry to its end, although nobody waits for it. */
shoal_status line_watch(struct lane *lane, struct entry *entry, struct wakes *wakes);
/* Adds the entry at the end of the line. Its state says whether it was posted. */
void line_append(struct lane *lane, struct entry *entry);
/* Makes the lane's thread if need be. */
shoal_status line_need_thread(struct lane *lane);
/* Wakes the lane's thread. */
void line_ring(struct lane *lane, struct wakes *wakes);
/* Carries entries, on a lane that is free. Releases the mutex meanwhile. */
void line_drive(struct lane *lane, const struct goal *goal, struct wakes *wakes);
/* Waits until the goal's entry has ended or the time is up, and drives if nobody else does. Releases the mutex
   meanwhile. */
void line_await(struct lane *lane, const struct goal *goal, struct wakes *wakes);
/* Called after driving, or after running alone: opens the gate, or makes sure that another thread continues. */
void line_settle(struct lane *lane, struct wakes *wakes);
/* Releases the mutex, then wakes. */
void line_unlock(struct lane *lane, struct wakes *wakes);

#endif
