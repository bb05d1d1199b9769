/* SPDX-License-Identifier: MIT */
/*
 * Rounds of `shoal bench compiled`: one step of each kind, each with a network of its own; all networks begin with the
 * same weights. Outside the clock, losses and gradients are compared bit by bit, and all networks with communication
 * make the same small update.
 */
#include "bench/compiled.h"
#include "bench/ranks.h"
#include "common/count_heap.h"

#include "base/clock.h"
#include "base/hash.h"
#include "graph/run/bind.h"
#include "shoal/autograd.h"
#include "shoal/scope.h"

#include <string.h>
#include <sys/resource.h>

enum {
    N_WARMUPS = 3
};

struct rounds {
    const struct bench_compiled *bench;
    struct measure_page *page;
    int rank;
    struct bench_compiled_net nets[BENCH_COMPILED_N_KINDS];
    shoal_tensor *losses[BENCH_COMPILED_N_KINDS];
    shoal_tensor *inputs[2];
    uint64_t addresses; /* a hash of them; 0 if it is not yet known */
    uint64_t n_wrong;
};

static bool check(const struct rounds *rounds, shoal_status status, const char *what)
{
    return bench_ranks_check("compiled", rounds->rank, status, what);
}

/* Comparing ---------------------------------------------------------------------------------------------- */

static uint64_t count_different(const shoal_tensor *left, const shoal_tensor *right)
{
    int64_t count = left ? shoal_tensor_count(left) : 0;
    if (!left || !right || count != shoal_tensor_count(right)) {
        return 1;
    }
    const uint32_t *a = count > 0 ? shoal_data(left) : NULL;
    const uint32_t *b = count > 0 ? shoal_data(right) : NULL;
    if (count == 0 || (a && b && memcmp(a, b, (size_t)count * sizeof(float)) == 0)) {
        return 0;
    }
    uint64_t n_different = !a || !b;
    for (int64_t i = 0; a && b && i < count; i++) {
        n_different += a[i] != b[i];
    }
    return n_different;
}

/* In an open scope. */
static shoal_status compare_gradients(struct rounds *rounds, enum bench_compiled_kind kind)
{
    size_t n_wanted = 0;
    size_t n_found = 0;
    shoal_tensor *const *wanted = shoal_module_parameters(rounds->nets[BENCH_COMPILED_EAGER].root, &n_wanted);
    shoal_tensor *const *found = shoal_module_parameters(rounds->nets[kind].root, &n_found);
    if (!wanted || !found) {
        return shoal_scope_error();
    }
    rounds->n_wrong += n_wanted != n_found;
    for (size_t i = 0; i < n_wanted && i < n_found; i++) {
        /* A shard without elements need not have a gradient. */
        if (shoal_tensor_count(wanted[i]) > 0) {
            rounds->n_wrong += count_different(shoal_grad(wanted[i]), shoal_grad(found[i]));
        }
    }
    rounds->n_wrong += count_different(rounds->losses[BENCH_COMPILED_EAGER], rounds->losses[kind]);
    return SHOAL_OK;
}

static shoal_status compare_in_scope(struct rounds *rounds, enum bench_compiled_kind kind)
{
    shoal_status status = shoal_scope_begin();
    if (status == SHOAL_OK) {
        status = compare_gradients(rounds, kind);
        shoal_status ended = shoal_scope_end();
        status = status == SHOAL_OK ? ended : status;
    }
    return status;
}

/* Memory that ranks share: the plan's comm memory and windows. */
static uint64_t hash_addresses(const shoal_compiled *compiled)
{
    const shoal_plan *plan = shoal_compiled_plan(compiled);
    uint64_t hash = 1;
    for (size_t i = 0; plan && i < plan->n_buffers; i++) {
        const struct plan_buffer *buffer = &plan->buffers[i];
        if (buffer->place == PLAN_COMM || buffer->place == PLAN_WINDOW) {
            const char *address = plan_address(plan, buffer);
            hash = hash_bytes(hash, &address, sizeof(address));
        }
    }
    return hash | 1;
}

static void compare_addresses(struct rounds *rounds)
{
    uint64_t addresses = hash_addresses(rounds->nets[BENCH_COMPILED_PASSES].compiled);
    if (rounds->addresses != 0 && rounds->addresses != addresses) {
        rounds->bench->found->ranks[rounds->rank].n_moved++;
    }
    rounds->addresses = addresses;
}

static bool finish_round(struct rounds *rounds)
{
    bool is_good = check(rounds, compare_in_scope(rounds, BENCH_COMPILED_PASSES), "comparing") &&
                   check(rounds, compare_in_scope(rounds, BENCH_COMPILED_PLAIN), "comparing");
    compare_addresses(rounds);
    for (int kind = 0; kind < BENCH_COMPILED_N_KINDS; kind++) {
        shoal_tensor_unref(rounds->losses[kind]);
        rounds->losses[kind] = NULL;
        is_good = is_good && check(rounds, bench_compiled_update(&rounds->nets[kind]), "updating weights");
    }
    return is_good;
}

/* Rounds ------------------------------------------------------------------------------------------------- */

static struct bench_compiled_usage find_usage(void)
{
    struct rusage usage = {.ru_nvcsw = 0};
    (void)getrusage(RUSAGE_SELF, &usage);
    int64_t seconds = (int64_t)usage.ru_utime.tv_sec + (int64_t)usage.ru_stime.tv_sec;
    int64_t microseconds = (int64_t)usage.ru_utime.tv_usec + (int64_t)usage.ru_stime.tv_usec;
    return (struct bench_compiled_usage){.cpu_ns = seconds * 1000000000 + microseconds * 1000,
                                         .n_switches = usage.ru_nvcsw + usage.ru_nivcsw};
}

static void add_usage(struct rounds *rounds, enum bench_compiled_kind kind,
                      const struct bench_compiled_usage *before)
{
    struct bench_compiled_usage *sum = &rounds->bench->found->ranks[rounds->rank].usage[kind];
    struct bench_compiled_usage now = find_usage();
    sum->cpu_ns += now.cpu_ns - before->cpu_ns;
    sum->n_switches += now.n_switches - before->n_switches;
}

static bool measure(struct rounds *rounds, enum bench_compiled_kind kind, int round)
{
    struct bench_compiled_usage before = find_usage();
    if (!measure_page_meet(rounds->page, rounds->rank)) {
        return false;
    }
    uint64_t n_calls_before = count_heap_calls();
    int64_t begin_ns = clock_now_ns();
    shoal_status status = bench_compiled_step(&rounds->nets[kind], rounds->inputs, &rounds->losses[kind]);
    int64_t time_ns = clock_now_ns() - begin_ns;
    uint64_t n_calls = count_heap_calls() - n_calls_before;
    if (round >= 0) {
        size_t at = (size_t)kind * (size_t)rounds->bench->n_rounds + (size_t)round;
        measure_page_times(rounds->page, rounds->rank)[at] = time_ns;
        add_usage(rounds, kind, &before);
    }
    if (round >= 0 && kind == BENCH_COMPILED_PASSES) {
        rounds->bench->found->ranks[rounds->rank].n_allocations += n_calls;
    }
    return check(rounds, status, "a step");
}

/* Kinds take turns in coming first, and every other time the order is reversed: each kind runs after each other one. */
static enum bench_compiled_kind kind_at(int round, int place)
{
    int turn = round % (2 * BENCH_COMPILED_N_KINDS);
    int from = turn % BENCH_COMPILED_N_KINDS;
    int step = turn < BENCH_COMPILED_N_KINDS ? place : BENCH_COMPILED_N_KINDS - place;
    return (enum bench_compiled_kind)((from + step) % BENCH_COMPILED_N_KINDS);
}

static bool run_round(struct rounds *rounds, int round)
{
    bool is_good = true;
    bench_compiled_write_inputs(rounds->inputs, rounds->rank, round + N_WARMUPS);
    for (int i = 0; i < BENCH_COMPILED_N_KINDS && is_good; i++) {
        is_good = measure(rounds, kind_at(round + N_WARMUPS, i), round);
    }
    return is_good && finish_round(rounds);
}

static bool run_rounds(void *context, shoal_world *world)
{
    struct rounds *rounds = context;
    bool is_good = check(rounds, bench_compiled_make_inputs(rounds->bench, rounds->inputs), "inputs");
    for (int kind = 0; kind < BENCH_COMPILED_N_KINDS && is_good; kind++) {
        is_good = check(
            rounds,
            bench_compiled_make(rounds->bench, (enum bench_compiled_kind)kind, world, &rounds->nets[kind]),
            "making a network");
    }
    for (int round = -N_WARMUPS; is_good && round < rounds->bench->n_rounds; round++) {
        is_good = run_round(rounds, round);
    }
    *measure_page_wrong(rounds->page, rounds->rank) = rounds->n_wrong;
    for (int kind = 0; kind < BENCH_COMPILED_N_KINDS; kind++) {
        shoal_tensor_unref(rounds->losses[kind]);
        bench_compiled_free(&rounds->nets[kind]);
    }
    return is_good;
}

bool bench_compiled_run_steps(const void *context, struct measure_page *page, int rank)
{
    struct rounds rounds = {.bench = context, .page = page, .rank = rank};
    return bench_compiled_run_rank(context, rank, run_rounds, &rounds);
}
