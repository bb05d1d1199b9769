/* SPDX-License-Identifier: MIT */
/* The loop over sizes and iterations, on one rank. */
#include "measure/measure.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define OP(name, reduces, has_root, send_is_share, recv_is_share, in_place, scale) \
    static double bus_scale_##name(double n)                                       \
    {                                                                              \
        (void)n;                                                                   \
        return scale;                                                              \
    }
#include "measure/ops.def"
#undef OP

const struct measure_op_row measure_ops[MEASURE_N_OPS] = {
#define OP(name_, reduces_, has_root_, send_is_share_, recv_is_share_, in_place_, scale) \
    [MEASURE_##name_] = {.name = #name_,                                                 \
                         .reduces = (reduces_),                                          \
                         .has_root = (has_root_),                                        \
                         .send_is_share = (send_is_share_),                              \
                         .recv_is_share = (recv_is_share_),                              \
                         .in_place = MEASURE_##in_place_,                                \
                         .bus_scale = bus_scale_##name_},
#include "measure/ops.def"
#undef OP
};

bool measure_op_find(const char *name, enum measure_op *op_out)
{
    for (int op = 0; op < MEASURE_N_OPS; op++) {
        if (strcmp(measure_ops[op].name, name) == 0) {
            *op_out = (enum measure_op)op;
            return true;
        }
    }
    return false;
}

/* Plans ------------------------------------------------------------------------------------------------ */

/* By size: enough for a median that stays, few enough for a run that ends. */
static const struct {
    size_t up_to_bytes;
    int n_iterations;
    int n_warmups;
} efforts[] = {
    {(size_t)64 << 10, 2000, 100}, {(size_t)1 << 20, 400, 20}, {(size_t)4 << 20, 100, 10},
    {(size_t)16 << 20, 40, 5},     {SIZE_MAX, 20, 5},
};

enum {
    POOL_ALIGNMENT = 64,
    GUARD_BYTES = 64, /* before and after each buffer */
    GUARD = 0xa5
};

static size_t align_up(size_t bytes)
{
    return (bytes + POOL_ALIGNMENT - 1) / POOL_ALIGNMENT * POOL_ALIGNMENT;
}

static size_t find_effort(size_t bytes)
{
    size_t i = 0;
    while (bytes > efforts[i].up_to_bytes) {
        i++;
    }
    return i;
}

static void plan_places(struct measure_plan *plan)
{
    plan->n_places = 1;
    plan->send_stride = plan->send_bytes > 0 ? align_up(plan->send_bytes) + 2 * GUARD_BYTES : 0;
    plan->recv_stride = plan->recv_bytes > 0 ? align_up(plan->recv_bytes) + 2 * GUARD_BYTES : 0;
    size_t place_bytes = plan->send_stride + plan->recv_stride;
    size_t rotate_bytes = plan->request->rotate_bytes;
    if (place_bytes > 0 && rotate_bytes / place_bytes >= 2) {
        /* More room than iterations: the places lie further apart. */
        plan->n_places = rotate_bytes / place_bytes;
        size_t room = plan->n_places / (size_t)plan->n_iterations;
        if (room > 0) {
            plan->n_places /= room;
            plan->send_stride *= room;
            plan->recv_stride *= room;
        }
    }
    plan->send_pool_bytes = plan->n_places * plan->send_stride;
    plan->recv_pool_bytes = plan->n_places * plan->recv_stride;
}

/* The first size also warms up what is started once: threads, connections, memory of the library. So it has at least as
   many iterations for that as without --warmup. */
static int find_warmups(const struct measure_request *request, size_t size_bytes, bool is_first)
{
    int standard = efforts[find_effort(size_bytes)].n_warmups;
    bool is_standard = request->warmups < 0 || (is_first && request->warmups < standard);
    return is_standard ? standard : request->warmups;
}

static struct measure_plan make_plan(const struct measure_request *request, size_t size_bytes, bool is_first)
{
    struct measure_plan plan = {.request = request, .size_bytes = size_bytes};
    const struct measure_op_row *op = &measure_ops[request->op];
    size_t effort = find_effort(size_bytes);
    plan.n_iterations = request->iterations > 0 ? request->iterations : efforts[effort].n_iterations;
    plan.n_warmups = find_warmups(request, size_bytes, is_first);
    if (request->op != MEASURE_barrier) {
        size_t n_ranks = (size_t)request->n_ranks;
        bool is_cut = request->op != MEASURE_all_reduce && request->op != MEASURE_broadcast;
        plan.count = size_bytes / request->dtype->bytes / (is_cut ? n_ranks : 1);
        plan.count = plan.count > 0 ? plan.count : 1;
        size_t count_bytes = plan.count * request->dtype->bytes;
        plan.bytes = count_bytes * (is_cut ? n_ranks : 1);
        plan.send_bytes = op->send_is_share ? count_bytes : op->has_root ? 0 : plan.bytes;
        plan.recv_bytes = op->recv_is_share ? count_bytes : plan.bytes;
    }
    plan_places(&plan);
    return plan;
}

/* Iterations ------------------------------------------------------------------------------------------- */

struct run {
    const struct measure_plan *plan;
    const struct measure_library *library;
    const struct measure_pattern *pattern;
    struct measure_page *page;
    int rank;
    bool is_in_place;
    uint32_t iteration;
    char *send; /* pools */
    char *recv;
    uint64_t n_wrong;
    bool has_told; /* of guard bytes that were written */
};

/* Of messages. */
static const char *prefix_of(const struct measure_library *library)
{
    return library->prefix ? library->prefix : "";
}

static struct measure_call make_call(const struct run *run, uint32_t iteration)
{
    const struct measure_plan *plan = run->plan;
    const struct measure_request *request = plan->request;
    size_t place = iteration % plan->n_places;
    size_t share_offset = (size_t)run->rank * plan->count * request->dtype->bytes;
    struct measure_call call = {
        .op = request->op,
        .redop = request->redop,
        .root = request->root,
        .dtype = request->dtype,
        .is_in_place = run->is_in_place,
        .send = plan->send_bytes > 0 ? run->send + place * plan->send_stride + GUARD_BYTES : NULL,
        .recv = plan->recv_bytes > 0 ? run->recv + place * plan->recv_stride + GUARD_BYTES : NULL,
        .count = plan->count,
        .recv_offset = place * plan->recv_stride + GUARD_BYTES,
    };
    switch (run->is_in_place ? measure_ops[call.op].in_place : MEASURE_NEVER) {
    case MEASURE_SAME:
        call.send = call.recv;
        break;
    case MEASURE_SHARE_OF_RECV:
        call.send = (char *)call.recv + share_offset;
        break;
    case MEASURE_SHARE_OF_SEND:
        call.recv = (char *)(void *)call.send + share_offset;
        break;
    case MEASURE_NEVER:
        break;
    }
    return call;
}

/* A broadcast has one buffer, in which all but the root begin with something else. */
static void write_input(const struct run *run, const struct measure_call *call, uint32_t iteration)
{
    const struct measure_plan *plan = run->plan;
    size_t element_bytes = plan->request->dtype->bytes;
    if (call->op == MEASURE_barrier) {
        return;
    }
    if (call->op == MEASURE_broadcast) {
        measure_pattern_write(run->pattern, call->recv, call->count, 0, run->rank, iteration);
    } else {
        measure_pattern_write(run->pattern, (void *)call->send, plan->send_bytes / element_bytes, 0,
                              run->rank, iteration);
    }
}

/* A block from every rank; the same elements of each where they gave the same to everybody. */
static size_t count_wrong_blocks(const struct run *run, const struct measure_call *call, size_t first,
                                 uint32_t iteration)
{
    const char *block = call->recv;
    size_t n_wrong = 0;
    for (int rank = 0; rank < run->plan->request->n_ranks; rank++) {
        n_wrong += measure_pattern_count_wrong(run->pattern, block, call->count, first, rank, iteration);
        block += call->count * run->plan->request->dtype->bytes;
    }
    return n_wrong;
}

static size_t count_wrong(const struct run *run, const struct measure_call *call, uint32_t iteration)
{
    size_t own_first = (size_t)run->rank * call->count;
    switch (call->op) {
    case MEASURE_all_reduce:
        return measure_pattern_count_unreduced(run->pattern, call->recv, call->count, 0, iteration);
    case MEASURE_reduce_scatter:
        return measure_pattern_count_unreduced(run->pattern, call->recv, call->count, own_first, iteration);
    case MEASURE_all_gather:
        return count_wrong_blocks(run, call, 0, iteration);
    case MEASURE_all_to_all:
        return count_wrong_blocks(run, call, own_first, iteration);
    case MEASURE_broadcast:
        return measure_pattern_count_wrong(run->pattern, call->recv, call->count, 0, call->root, iteration);
    case MEASURE_barrier:
        return measure_page_count_absent(run->page, run->rank);
    case MEASURE_N_OPS:
        break;
    }
    return 0;
}

/* Without a look at the clock where there is nothing to compute: each takes some tens of nanoseconds, for which ranks that
   have just met are apart again. */
static void compute_for(int64_t ns)
{
    int64_t until_ns = ns > 0 ? clock_now_ns() + ns : 0;
    while (ns > 0 && clock_now_ns() < until_ns) {
    }
}

/* A barrier is given nothing to check but who has come. One rank in turn comes late while warming up: otherwise
   all have, barrier or not. The clock is read in any case: its time is part of every barrier that was ever measured. */
static void enter_barrier(const struct run *run, uint32_t iteration, bool is_warmup)
{
    bool is_late = is_warmup && (int)(iteration % (uint32_t)run->plan->request->n_ranks) == run->rank;
    int64_t until_ns = clock_now_ns() + 20 * 1000;
    while (is_late && clock_now_ns() < until_ns) {
    }
    measure_page_enter(run->page, run->rank);
}

/* Guard bytes around the buffer of a pool. Memory that ranks cannot write has zeros there. */
static size_t count_touched(const char *pool, size_t offset, size_t bytes, unsigned char guard)
{
    const unsigned char *before = (const unsigned char *)pool + offset;
    const unsigned char *after = before + GUARD_BYTES + bytes;
    size_t n_touched = 0;
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        n_touched += (size_t)(before[i] != guard) + (size_t)(after[i] != guard);
    }
    return n_touched;
}

/* Says once a size what was written outside of a buffer. */
static size_t check_guards(struct run *run, uint32_t iteration)
{
    const struct measure_plan *plan = run->plan;
    size_t place = iteration % plan->n_places;
    unsigned char recv_guard = run->library->is_recv_read_only ? 0 : GUARD;
    size_t n_send = plan->send_bytes > 0
                        ? count_touched(run->send, place * plan->send_stride, plan->send_bytes, GUARD)
                        : 0;
    size_t n_recv = plan->recv_bytes > 0
                        ? count_touched(run->recv, place * plan->recv_stride, plan->recv_bytes, recv_guard)
                        : 0;
    if (n_send + n_recv > 0 && !run->has_told) {
        fprintf(stderr,
                "%srank %d: %s of %zu bytes%s: %zu bytes were written just outside of the input, %zu just "
                "outside "
                "of the output\n",
                prefix_of(run->library), run->rank, measure_ops[plan->request->op].name, plan->bytes,
                run->is_in_place ? ", in place" : "", n_send, n_recv);
        run->has_told = true;
    }
    return n_send + n_recv;
}

/* The time is only written where `time_out` is given: not while warming up. */
static bool run_iteration(struct run *run, int64_t *time_out)
{
    const struct measure_plan *plan = run->plan;
    uint32_t iteration = run->iteration++;
    struct measure_call call = make_call(run, iteration);
    write_input(run, &call, iteration);
    if (run->library->prepare && !run->library->prepare(run->library->context, &call)) {
        return false;
    }
    if (!plan->request->is_back_to_back && !measure_page_meet(run->page, run->rank)) {
        return false;
    }
    compute_for(run->rank == 0 ? plan->request->late_us * 1000 : 0);
    if (call.op == MEASURE_barrier) {
        enter_barrier(run, iteration, !time_out);
    }
    int64_t begin_ns = clock_now_ns();
    bool was_run = run->library->run(run->library->context, &call);
    int64_t end_ns = clock_now_ns();
    if (!was_run) {
        return false;
    }
    if (time_out) {
        *time_out = end_ns - begin_ns;
    }
    run->n_wrong += count_wrong(run, &call, iteration) + check_guards(run, iteration);
    return !run->library->release || run->library->release(run->library->context);
}

static int64_t thread_cpu_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Every place is used once before the clock counts: no page is touched for the first time while it does. */
static bool run_iterations(struct run *run)
{
    const struct measure_plan *plan = run->plan;
    size_t n_warmups = (size_t)plan->n_warmups;
    n_warmups = n_warmups > plan->n_places ? n_warmups : plan->n_places;
    for (size_t i = 0; i < n_warmups; i++) {
        if (!run_iteration(run, NULL)) {
            return false;
        }
    }
    int64_t *times = measure_page_times(run->page, run->rank);
    int64_t begin_cpu_ns = thread_cpu_ns();
    for (int i = 0; i < plan->n_iterations; i++) {
        if (!run_iteration(run, &times[i])) {
            return false;
        }
    }
    *measure_page_cpu_ns(run->page, run->rank) = thread_cpu_ns() - begin_cpu_ns;
    *measure_page_wrong(run->page, run->rank) = run->n_wrong;
    return true;
}

/* Sizes ------------------------------------------------------------------------------------------------ */

static bool allocate_heap(const struct run *run, size_t bytes, void **pool_out)
{
    *pool_out = aligned_alloc(POOL_ALIGNMENT, bytes > 0 ? bytes : POOL_ALIGNMENT);
    if (!*pool_out) {
        fprintf(stderr, "%srank %d: no memory for a pool of %zu bytes\n", prefix_of(run->library), run->rank,
                bytes);
    }
    return *pool_out;
}

static bool allocate_pools(struct run *run, void **send_out, void **recv_out)
{
    const struct measure_plan *plan = run->plan;
    const struct measure_library *library = run->library;
    if (library->allocate) {
        if (!library->allocate(library->context, plan, send_out, recv_out)) {
            return false;
        }
    } else if (!allocate_heap(run, plan->send_pool_bytes, send_out)) {
        return false;
    } else if (!allocate_heap(run, plan->recv_pool_bytes, recv_out)) {
        free(*send_out);
        return false;
    }
    if (plan->send_pool_bytes > 0) {
        memset(*send_out, GUARD, plan->send_pool_bytes);
    }
    if (plan->recv_pool_bytes > 0 && !library->is_recv_read_only) {
        memset(*recv_out, GUARD, plan->recv_pool_bytes);
    }
    return true;
}

static void free_pools(const struct measure_library *library, void *send, void *recv)
{
    if (library->free) {
        library->free(library->context, send, recv);
        return;
    }
    free(send);
    free(recv);
}

/* Rank 0 sums up between two meetings: the page is complete, and nobody writes the next times into it. */
static bool sum_up(struct run *run, struct measure_summary *summary_out)
{
    if (!measure_page_meet(run->page, run->rank) ||
        !measure_page_collect(run->page, run->rank, (size_t)run->plan->n_iterations)) {
        return false;
    }
    if (run->rank == 0) {
        measure_summarise(run->plan, run->page, summary_out);
    }
    return measure_page_meet(run->page, run->rank);
}

static bool has_in_place(const struct run *run)
{
    const struct measure_request *request = run->plan->request;
    return request->has_in_place && run->library->is_in_place_possible &&
           measure_ops[request->op].in_place != MEASURE_NEVER;
}

/* What was wrong in place is told apart from what was wrong before. */
static bool run_in_place(struct run *run, struct measure_summary *summary_out)
{
    uint64_t n_wrong = run->n_wrong;
    run->is_in_place = true;
    run->has_told = false;
    run->n_wrong = 0;
    bool is_good = run_iterations(run) && sum_up(run, summary_out);
    run->n_wrong += n_wrong;
    return is_good;
}

static bool run_pools(struct run *run)
{
    const struct measure_library *library = run->library;
    struct measure_summary summary;
    struct measure_summary in_place;
    const char *algorithm = "default";
    if (!run_iterations(run)) {
        return false;
    }
    /* Asked before the ranks meet again: that may be calls of the same library. */
    if (run->rank == 0 && library->algorithm) {
        algorithm = library->algorithm(library->context, run->plan);
    }
    if (!sum_up(run, &summary) || (has_in_place(run) && !run_in_place(run, &in_place))) {
        return false;
    }
    if (run->rank == 0) {
        measure_print_row(run->plan, library, algorithm, &summary, has_in_place(run) ? &in_place : NULL);
    }
    return true;
}

/* Ends the waits of all others for this rank, which cannot go on. */
static void tell_failure(struct run *run)
{
    measure_page_fail(run->page);
    (void)measure_page_agree(run->page, false);
}

static void begin(struct run *run)
{
    if (run->rank == 0 && !measure_page_has_begun(run->page)) {
        if (run->library->begin) {
            run->library->begin(run->library->context);
        }
        measure_page_begin(run->page);
    }
}

/* False if it was not measured; what was wrong is counted. */
static bool run_size(struct run *run)
{
    void *send = NULL;
    void *recv = NULL;
    if (!allocate_pools(run, &send, &recv)) {
        tell_failure(run);
        return false;
    }
    run->send = send;
    run->recv = recv;
    /* Also where ranks do not meet before calls: one that has no buffers makes none. */
    bool is_good = measure_page_meet(run->page, run->rank);
    if (is_good) {
        begin(run);
        is_good = run_pools(run);
    }
    if (!is_good) {
        tell_failure(run); /* freeing may wait for the others */
    }
    free_pools(run->library, send, recv);
    return is_good;
}

/* How far a rank is. */
struct progress {
    bool has_begun;
    bool is_stuck; /* the ranks cannot go on together */
};

/* All sizes, of one dtype. */
static bool run_sizes(const struct measure_request *request, struct measure_page *page, int rank,
                      const struct measure_library *library, struct progress *progress)
{
    struct measure_pattern pattern;
    progress->is_stuck = !measure_pattern_init(&pattern, request->dtype, request->redop, request->n_ranks);
    if (progress->is_stuck) {
        fprintf(stderr, "%srank %d: no memory for the values\n", prefix_of(library), rank);
        return false;
    }
    bool is_barrier = request->op == MEASURE_barrier;
    bool is_good = true;
    for (size_t size = is_barrier ? request->to_bytes : request->from_bytes;
         !progress->is_stuck && size <= request->to_bytes; size *= request->factor) {
        struct measure_plan plan = make_plan(request, is_barrier ? 1 : size, !progress->has_begun);
        struct run run = {.plan = &plan, .library = library, .pattern = &pattern, .page = page, .rank = rank};
        bool was_run = run_size(&run);
        is_good = is_good && was_run && run.n_wrong == 0;
        progress->has_begun = true;
        progress->is_stuck = !was_run;
    }
    measure_pattern_fini(&pattern);
    return is_good;
}

bool measure_run(const struct measure_request *request, struct measure_page *page, int rank,
                 const struct measure_library *library)
{
    bool is_good = true;
    struct progress progress = {.has_begun = false};
    bool reduces = measure_ops[request->op].reduces;
    for (size_t i = 0; !progress.is_stuck && measure_dtype_at(i); i++) {
        struct measure_request one = *request;
        one.dtype = request->dtype ? request->dtype : measure_dtype_at(i);
        if (reduces && measure_redops[one.redop].is_bitwise && !one.dtype->is_integer) {
            continue; /* of --dtype all: floats have no bitwise reductions */
        }
        is_good = run_sizes(&one, page, rank, library, &progress) && is_good;
        if (request->dtype || request->op == MEASURE_barrier) {
            break;
        }
    }
    if (progress.is_stuck) {
        measure_page_fail(page);
    }
    return is_good;
}
