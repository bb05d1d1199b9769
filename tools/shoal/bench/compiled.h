/* SPDX-License-Identifier: MIT */
/*
 * What the files of `shoal bench compiled` share. For each wrapping of a network (FSDP, DDP) some ranks measure steps
 * (bench/compiled_steps.c), and other ranks train it in one way only, to see how much memory that takes
 * (bench/compiled_memory.c). bench/compiled_numbers.c summarizes the times.
 */
#ifndef BENCH_COMPILED_H
#define BENCH_COMPILED_H

#include "bench/fsdp.h"

#include "shoal/compile.h"
#include "shoal/module.h"
#include "shoal/world.h"

enum bench_compiled_wrapping {
    BENCH_COMPILED_SHARDS, /* shoal_fully_shard of each unit and of the whole */
    BENCH_COMPILED_DDP,
    BENCH_COMPILED_N_WRAPPINGS
};

/* Ways to make a step. */
enum bench_compiled_kind {
    BENCH_COMPILED_EAGER,
    BENCH_COMPILED_PASSES, /* compiled, with the default passes */
    BENCH_COMPILED_PLAIN,  /* compiled without any */
    BENCH_COMPILED_NONE,   /* compiled, of a network that is not wrapped: no communication */
    BENCH_COMPILED_N_KINDS
};

enum {
    BENCH_COMPILED_MAX_SEGMENTS = 1024
};

/* Of all threads of a rank, in all steps of a kind, warm-up left out. */
struct bench_compiled_usage {
    int64_t cpu_ns;
    int64_t n_switches; /* from this rank's threads to others */
};

/* What ranks find out beyond times; on memory that they share. */
struct bench_compiled_found {
    char library[256];
    char core[64];
    struct {
        uint64_t n_allocations; /* by compiled steps with passes, warm-up left out */
        uint64_t n_moved;       /* steps after which memory that ranks share was elsewhere */
        size_t peak_bytes;      /* of the heap */
        struct bench_compiled_usage usage[BENCH_COMPILED_N_KINDS];
        struct bench_fsdp_segment segments[BENCH_COMPILED_MAX_SEGMENTS];
        size_t n_segments;
        struct bench_fsdp_segment windows[BENCH_FSDP_MAX_SEGMENTS]; /* of these */
        size_t n_windows;
    } ranks[MEASURE_MAX_RANKS];
};

struct bench_compiled {
    struct measure_request request;
    struct bench_fsdp_work work;
    struct bench_compiled_found *found;
    int n_rounds;
    enum bench_compiled_wrapping wrapping;
    enum bench_compiled_kind kind; /* whose memory is asked for */
    const struct bench_ranks *ranks;
};

/* A network, and how its steps are made (bench/compiled_net.c). */
struct bench_compiled_net {
    shoal_module *root;
    shoal_compiled *compiled; /* NULL for eager steps */
};

/* In an open scope. Weights depend on the work alone. What was made has to be freed also on failure. */
shoal_status bench_compiled_make(const struct bench_compiled *bench, enum bench_compiled_kind kind,
                                 shoal_world *world, struct bench_compiled_net *net);
void bench_compiled_free(struct bench_compiled_net *net);
/* Forward pass, loss and backward pass. `inputs` are the network's input and the wanted output. The caller owns a
   reference to the loss. */
shoal_status bench_compiled_step(const struct bench_compiled_net *net, shoal_tensor *const *inputs,
                                 shoal_tensor **loss_out);
/* A small step of all weights along their gradients, which are removed. */
shoal_status bench_compiled_update(const struct bench_compiled_net *net);
/* The two inputs of a step, in the innermost scope, to be written by the other one: different for ranks and rounds. */
shoal_status bench_compiled_make_inputs(const struct bench_compiled *bench, shoal_tensor **inputs_out);
void bench_compiled_write_inputs(shoal_tensor *const *inputs, int rank, int round);

size_t bench_compiled_count_params(const struct bench_fsdp_work *work);

/* Times of all rounds, summed up. */
struct bench_compiled_times {
    double step_us[BENCH_COMPILED_N_KINDS];
    double ratio;            /* compiled to eager, of a round */
    double exposed_us;       /* compiled less without communication, of a round */
    double exposed_us_plain; /* the same without passes */
    double exposed_ratio;
    double exposed_low; /* 95% of drawings are between these */
    double exposed_high;
};

/* Returns false if memory runs out, after a message. */
bool bench_compiled_sum_up(const struct bench_compiled *bench, struct measure_page *page,
                           struct bench_compiled_times *times);

/* One rank of a part; for bench_ranks_run. Times: those of the rounds, kind by kind. */
bool bench_compiled_run_steps(const void *bench, struct measure_page *page, int rank);
bool bench_compiled_run_memory(const void *bench, struct measure_page *page, int rank);

/* Opens the world, loads the BLAS and opens a scope, in which `run` runs. Returns false if it failed; all ranks know
   that. */
bool bench_compiled_run_rank(const struct bench_compiled *bench, int rank,
                             bool (*run)(void *context, shoal_world *world), void *context);

#endif
