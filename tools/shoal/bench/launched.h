/* SPDX-License-Identifier: MIT */
/*
 * Benchmarks on ranks that a launcher started. Each process is one rank. Beside the worlds that are measured there is
 * one more, for control, over the same transport: ranks meet in it before a call, exchange start-up information, and
 * bring their times together. Nothing of that is measured.
 */
#ifndef BENCH_LAUNCHED_H
#define BENCH_LAUNCHED_H

#include "common/place.h"
#include "measure/measure.h"

#include "shoal/world.h"

/* Finds out where this process stands; false, after a message, if the launcher's variables are wrong. */
bool bench_launched_begin(void);
/* Closes the control world, if there is one; false, after a message, if that failed. */
bool bench_launched_end(void);

const struct tool_place *bench_place(void);
/* Whether this process prints results: always, except on further ranks of a launcher. */
bool bench_prints(void);

/* What the command asks for: options stand once for all its benchmarks, and are checked for each before any is measured. */

/* One of the command's benchmarks, or "all". The text must stay. */
void bench_ask(const char *name);
/* Whether that benchmark is one of them. */
bool bench_is_asked(const char *name);

/* Whether a benchmark that has found its options right returns TOOL_DONE instead of running. */
void bench_set_checking(bool is_checking);
bool bench_is_checking(void);

/* Under a launcher, these return false after a message on failure. All ranks call them ------------------------- */

/* Opens the control world, once. `transport` is what the benchmark was asked for; NULL means the library's default. */
bool bench_launched_open(const char *transport);
/* The page of the ranks of this host; NULL on failure. */
struct measure_page *bench_launched_map(const struct measure_request *request);
/* Rank 0's bytes on all ranks; the blocks of all ranks, of which each has written its own. */
bool bench_launched_share(void *bytes, size_t n_bytes);
bool bench_launched_gather(void *blocks, size_t block_bytes);

/* Whether a rank is on the host of this one. */
bool bench_launched_is_here(int rank);

/* For shoal_world_options. */
int bench_launched_exchange(void *context, const void *in, void *out_all, size_t bytes);

#endif
