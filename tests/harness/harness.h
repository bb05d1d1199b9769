/* SPDX-License-Identifier: MIT */
/*
 * What the files of the harness share. Tests include only test.h.
 *
 *   main.c chooses tests -> running.c holds the test that runs -> threads.c | processes.c launch its ranks
 *
 * A test that is over has one outcome, in running.c. What several processes must see lies in a struct
 * control in shared memory (ranks.c).
 */
#ifndef HARNESS_H
#define HARNESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "harness/test.h"

#define HARNESS_MAX_RANKS 64
#define HARNESS_REASON_BYTES 256
#define HARNESS_DEFAULT_SECONDS 60.0

#if defined(__has_feature)
#define HARNESS_HAS_FEATURE(feature) __has_feature(feature)
#else
#define HARNESS_HAS_FEATURE(feature) 0
#endif
#if defined(__SANITIZE_THREAD__) || HARNESS_HAS_FEATURE(thread_sanitizer)
#define HARNESS_HAS_TSAN 1
#else
#define HARNESS_HAS_TSAN 0
#endif
#if defined(__SANITIZE_ADDRESS__) || HARNESS_HAS_FEATURE(address_sanitizer)
#define HARNESS_HAS_ASAN 1
#else
#define HARNESS_HAS_ASAN 0
#endif

/* The running test, as far as all of its ranks see it. Zeroed at the beginning of each test. */
struct control {
    _Atomic int64_t deadline_ns;
    _Atomic uint32_t is_skipped;
    char skip_reason[HARNESS_REASON_BYTES]; /* written by the rank that set is_skipped */
    /* The barrier: `arrived` counts up to the number of ranks, then `generation` moves on. */
    _Atomic uint32_t generation;
    _Atomic uint32_t arrived;
    /* Ranks that will not come to a barrier any more. */
    _Atomic uint32_t n_left;
    _Atomic int first_left;                          /* rank + 1; 0 while there is none */
    _Atomic uint8_t has_returned[HARNESS_MAX_RANKS]; /* the body came to its end */
    _Atomic int processes[HARNESS_MAX_RANKS];        /* 0 for threads */
    /* Ranks that are expected to die, and how: a signal, or 0. */
    _Atomic uint32_t n_doomed;
    _Atomic int doomed_by[HARNESS_MAX_RANKS];
};

/* time.c */
int64_t harness_now_ns(void);
double harness_time_scale(void);

/* progress.c: one case more will run; one begins */
void harness_progress_count(void);
void harness_progress_begin(const char *name);

/* running.c: one test runs at a time */
enum outcome {
    OUTCOME_PASSED,
    OUTCOME_FAILED,
    OUTCOME_SKIPPED
};

void harness_begin(const char *name, const struct test_case *test);
enum outcome harness_end(void);
const char *harness_name(void);
struct control *harness_control(void);
void harness_mark_failed(void);
/* The rank whose failures this thread reports; -1 outside of thread ranks. */
void harness_set_thread_rank(int rank);
int harness_thread_rank(void);
/* Prints at once and whole, whatever other threads print. */
void harness_print(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Writes " 0 2" for the ranks that have not returned. */
void harness_list_unfinished(char *text, size_t text_bytes);

/* memory.c */
void harness_memory_install(void);
void harness_memory_begin(void);
void harness_memory_end(void); /* fails the test if blocks were lost since harness_memory_begin */

/* descriptors.c */
void harness_descriptors_begin(void);
void harness_descriptors_end(void); /* fails the test if there are others than at harness_descriptors_begin */

/* random.c: false when SHOAL_TEST_SEED is no number */
bool harness_seed_read(void);
uint64_t harness_seed(void);

/* watchdog.c: a thread that ends the program when the running test is past its deadline */
void harness_watchdog_begin(void);
void harness_watchdog_end(void);
void harness_watchdog_poke(void);
void harness_catch_crashes(void);

/* launched.c: 0: this process starts the ranks itself; otherwise it is one of so many, and this is its number. */
int harness_launched_size(void);
int harness_launched_rank(void);
/* A descriptor of a file that the ranks share, zeroed when the first comes. */
int harness_launched_file(const char *name, size_t bytes);
/* Once, before the first test. */
void harness_launched_begin(void);
void harness_run_launched(const struct test_case *test);

/* ranks.c */
void harness_control_begin(void);
void harness_control_end(void);
void *harness_shared(void);
void harness_rank_leave(int rank, bool has_returned);
/* The signal that will end this rank; 0 for those that shall live. */
int harness_doom(int rank);

/* threads.c, processes.c */
void harness_run_threads(const struct test_case *test);
void harness_run_processes(const struct test_case *test);

/* child.c: in the child; never returns */
/* Remembers by which name the program was started: a link has the tests of one file. */
void harness_set_program(const char *name);
void harness_child_exit(void) __attribute__((noreturn));

#endif
