/* SPDX-License-Identifier: MIT */
/*
 * What the files of `shoal bench fsdp` share. The benchmark has three parts, each with its own ranks: steps of a
 * network with and without communication (bench/fsdp_step.c), and the cost of a unit on the host, in a world of one
 * rank and between two threads (bench/fsdp_host.c).
 */
#ifndef BENCH_FSDP_H
#define BENCH_FSDP_H

#include "measure/measure.h"

#include "shoal/fsdp_unit.h"
#include "shoal/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    BENCH_FSDP_MATRICES = 4, /* of a unit: [3w, w], [w, 3w], and the same again; 12 w^2 parameters */
    BENCH_FSDP_WIDENING = 3,
    BENCH_FSDP_MAX_SIZE = 65536, /* of each number that describes the network */
    BENCH_FSDP_MAX_SEGMENTS = 64
};

struct bench_ranks;

/* The network, and what is done with it. */
struct bench_fsdp_work {
    int n_units;
    int width;
    int n_last; /* rows of a matrix in a unit of its own at the end; 0 if there is none */
    int n_tokens;
    int n_blas_threads;
    shoal_sharded sharded;
};

/* Shared memory that this process has mapped or open. */
struct bench_fsdp_segment {
    ino_t inode;
    size_t bytes;
};

/* What ranks find out beyond times; on memory that they share. */
struct bench_fsdp_found {
    char library[256];
    char core[64];
    struct {
        struct bench_fsdp_segment windows[BENCH_FSDP_MAX_SEGMENTS];
        size_t n_windows;
        /* Of all steps with communication, warm-up left out; of all ranks, where they are threads. */
        int64_t lanes_ns;
    } ranks[MEASURE_MAX_RANKS];
};

struct bench_fsdp {
    struct measure_request request;
    struct bench_fsdp_work work;
    struct bench_fsdp_found *found;
    int n_rounds;
    int n_host_rounds;
    const struct bench_ranks *ranks;
};

size_t bench_fsdp_count_params(const struct bench_fsdp_work *work);

/* One rank of a part; for bench_ranks_run. Times: those of the rounds with communication, then those without; for the
   host: fully sharded, then plain. */
bool bench_fsdp_run_steps(const void *bench, struct measure_page *page, int rank);
bool bench_fsdp_run_host(const void *bench, struct measure_page *page, int rank);
/* Units of the latter. */
enum {
    BENCH_FSDP_HOST_UNITS = 16
};

/* Shared memory of the library whose name begins so ("window/"; "" means all) that this process has, each once, from
   /proc/self; how many, at most `capacity`. */
size_t bench_fsdp_find_segments(const char *name, struct bench_fsdp_segment *segments_out, size_t capacity);

/* Processor time of the lanes' threads of this process so far; 0 where the kernel does not count it. */
int64_t bench_fsdp_lanes_ns(void);

#endif
