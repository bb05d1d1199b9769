/* SPDX-License-Identifier: MIT */
/* The loop over sizes and iterations, on one rank. */
#include "measure/measure.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define OP(name, reduces, has_root, send_is_share, recv_is_share, scale) \
    static double bus_scale_##name(double n)                             \
    {                                                                    \
        (void)n;                                                         \
        return scale;                                                    \
    }
#include "measure/ops.def"
#undef OP

const struct measure_op_row measure_ops[MEASURE_N_OPS] = {
#define OP(name_, reduces_, has_root_, send_is_share_, recv_is_share_, scale) \
    [MEASURE_##name_] = {.name = #name_,                                      \
                         .reduces = (reduces_),                               \
                         .has_root = (has_root_),                             \
                         .send_is_share = (send_is_share_),                   \
                         .recv_is_share = (recv_is_share_),                   \
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
    POOL_ALIGNMENT = 64
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
    plan->send_stride = align_up(plan->send_bytes);
    plan->recv_stride = align_up(plan->recv_bytes);
    size_t place_bytes = plan->send_stride + plan->recv_stride;
    size_t rotate_bytes = plan->request->rotate_bytes;
    if (place_bytes == 0 || rotate_bytes / place_bytes < 2) {
        return;
    }
    /* More room than iterations: the places lie further apart. */
    size_t n_places = rotate_bytes / place_bytes;
    size_t room = n_places / (size_t)plan->n_iterations;
    if (room > 0) {
        n_places /= room;
        plan->send_stride *= room;
        plan->recv_stride *= room;
    }
    plan->n_places = n_places;
}

static struct measure_plan make_plan(const struct measure_request *request, size_t size_bytes)
{
    struct measure_plan plan = {.request = request, .size_bytes = size_bytes};
    const struct measure_op_row *op = &measure_ops[request->op];
    plan.n_iterations =
        request->iterations > 0 ? request->iterations : efforts[find_effort(size_bytes)].n_iterations;
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
    char *send;
    char *recv;
    uint64_t n_wrong;
};

/* A broadcast's root has rank 0; the others begin with something else in their buffer. */
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
        return measure_pattern_count_wrong_sum(run->pattern, call->recv, call->count, 0, iteration);
    case MEASURE_reduce_scatter:
        return measure_pattern_count_wrong_sum(run->pattern, call->recv, call->count, own_first, iteration);
    case MEASURE_all_gather:
        return count_wrong_blocks(run, call, 0, iteration);
    case MEASURE_all_to_all:
        return count_wrong_blocks(run, call, own_first, iteration);
    case MEASURE_broadcast:
        return measure_pattern_count_wrong(run->pattern, call->recv, call->count, 0, 0, iteration);
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

/* The time is only written where `time_out` is given: not while warming up. */
static bool run_iteration(struct run *run, uint32_t iteration, int64_t *time_out)
{
    const struct measure_plan *plan = run->plan;
    size_t place = iteration % plan->n_places;
    struct measure_call call = {
        .op = plan->request->op,
        .send = run->send + place * plan->send_stride,
        .recv = run->recv + place * plan->recv_stride,
        .count = plan->count,
        .recv_offset = place * plan->recv_stride,
    };
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
    run->n_wrong += count_wrong(run, &call, iteration);
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
    size_t n_warmups = (size_t)efforts[find_effort(plan->size_bytes)].n_warmups;
    uint32_t iteration = 0;
    n_warmups = n_warmups > plan->n_places ? n_warmups : plan->n_places;
    while (iteration < n_warmups) {
        if (!run_iteration(run, iteration++, NULL)) {
            return false;
        }
    }
    int64_t *times = measure_page_times(run->page, run->rank);
    int64_t begin_cpu_ns = thread_cpu_ns();
    for (int i = 0; i < plan->n_iterations; i++) {
        if (!run_iteration(run, iteration++, &times[i])) {
            return false;
        }
    }
    *measure_page_cpu_ns(run->page, run->rank) = thread_cpu_ns() - begin_cpu_ns;
    *measure_page_wrong(run->page, run->rank) = run->n_wrong;
    return true;
}

/* Sizes ------------------------------------------------------------------------------------------------ */

static bool allocate_heap(size_t bytes, void **pool_out)
{
    *pool_out = aligned_alloc(POOL_ALIGNMENT, bytes > 0 ? bytes : POOL_ALIGNMENT);
    if (!*pool_out) {
        fprintf(stderr, "no memory for a pool of %zu bytes\n", bytes);
    }
    return *pool_out;
}

static bool allocate_pools(struct run *run, void **send_out, void **recv_out)
{
    const struct measure_plan *plan = run->plan;
    const struct measure_library *library = run->library;
    size_t send_bytes = plan->n_places * plan->send_stride;
    size_t recv_bytes = plan->n_places * plan->recv_stride;
    if (library->allocate) {
        if (!library->allocate(library->context, plan, send_out, recv_out)) {
            return false;
        }
    } else if (!allocate_heap(send_bytes, send_out)) {
        return false;
    } else if (!allocate_heap(recv_bytes, recv_out)) {
        free(*send_out);
        return false;
    }
    if (send_bytes > 0) {
        memset(*send_out, 0, send_bytes);
    }
    if (recv_bytes > 0 && !library->is_recv_read_only) {
        memset(*recv_out, 0, recv_bytes);
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

/* Rank 0 prints between two meetings: the page is complete, and nobody writes the next size into it. */
static bool report(struct run *run)
{
    if (!measure_page_meet(run->page, run->rank)) {
        return false;
    }
    if (run->rank == 0) {
        (void)measure_print_row(run->plan, run->page, run->library);
    }
    return measure_page_meet(run->page, run->rank);
}

static bool run_size(struct run *run)
{
    void *send = NULL;
    void *recv = NULL;
    if (!allocate_pools(run, &send, &recv)) {
        return false;
    }
    run->send = send;
    run->recv = recv;
    bool is_good = run_iterations(run) && report(run);
    free_pools(run->library, send, recv);
    return is_good && run->n_wrong == 0;
}

bool measure_run(const struct measure_request *request, struct measure_page *page, int rank,
                 const struct measure_library *library)
{
    struct measure_pattern pattern;
    if (!measure_pattern_init(&pattern, request->dtype, request->n_ranks)) {
        fprintf(stderr, "no memory for the values\n");
        measure_page_fail(page);
        return false;
    }
    bool is_barrier = request->op == MEASURE_barrier;
    bool is_good = true;
    for (size_t size = is_barrier ? request->to_bytes : request->from_bytes; size <= request->to_bytes;
         size *= request->factor) {
        struct measure_plan plan = make_plan(request, is_barrier ? 1 : size);
        struct run run = {.plan = &plan, .library = library, .pattern = &pattern, .page = page, .rank = rank};
        bool was_run = run_size(&run);
        is_good = is_good && was_run;
        if (!was_run && run.n_wrong == 0) {
            measure_page_fail(page);
            break;
        }
    }
    measure_pattern_fini(&pattern);
    return is_good;
}
