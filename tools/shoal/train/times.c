/* SPDX-License-Identifier: MIT */
/* Times of steps, from the clock and from the spans that the library keeps (base/waited.h). */
#include "train/times.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/try.h"
#include "base/waited.h"

#include <stdlib.h>

static shoal_status fail_memory(int64_t n_steps)
{
    return error_set(SHOAL_ERR_NO_MEMORY, "no memory for the times of %lld steps", (long long)n_steps);
}

shoal_status train_times_make(struct train_times *times, int64_t n_steps)
{
    *times = (struct train_times){.begin_ticks = clock_ticks(), .begin_ns = clock_now_ns()};
    times->steps = calloc((size_t)n_steps + 1, sizeof times->steps[0]);
    times->spans = calloc(WAITED_MAX_SPANS, sizeof times->spans[0]);
    times->waits.items = calloc(WAITED_MAX_SPANS, sizeof times->waits.items[0]);
    times->collectives.items = calloc(WAITED_MAX_SPANS, sizeof times->collectives.items[0]);
    if (!times->steps || !times->spans || !times->waits.items || !times->collectives.items) {
        train_times_free(times);
        return fail_memory(n_steps);
    }
    waited_keep_spans();
    return SHOAL_OK;
}

void train_times_free(struct train_times *times)
{
    free(times->steps);
    free(times->spans);
    free(times->waits.items);
    free(times->collectives.items);
    *times = (struct train_times){0};
}

void train_times_begin(struct train_times *times)
{
    times->step_ns = clock_now_ns();
    times->step_ticks = clock_ticks();
}

/* Milliseconds of a tick, by all that has passed so far. */
static double find_scale(const struct train_times *times, uint64_t end_ticks, int64_t end_ns)
{
    double ticks = (double)(end_ticks - times->begin_ticks);
    return ticks > 0.0 ? (double)(end_ns - times->begin_ns) * 1e-6 / ticks : 0.0;
}

static void sort_spans(struct train_times *times)
{
    size_t n_spans = waited_take_spans(times->spans, WAITED_MAX_SPANS);
    times->waits.n_items = 0;
    times->collectives.n_items = 0;
    for (size_t i = 0; i < n_spans; i++) {
        const struct waited_span *span = &times->spans[i];
        struct overlap_intervals *list = span->is_wait ? &times->waits : &times->collectives;
        list->items[list->n_items++] =
            (struct overlap_interval){.begin = (double)(int64_t)(span->begin_ticks - times->step_ticks),
                                      .end = (double)(int64_t)(span->end_ticks - times->step_ticks)};
    }
    overlap_unite(&times->waits);
    overlap_unite(&times->collectives);
}

void train_times_end(struct train_times *times, int64_t index)
{
    uint64_t end_ticks = clock_ticks();
    int64_t end_ns = clock_now_ns();
    double scale = find_scale(times, end_ticks, end_ns);
    struct overlap_cursor cursor = {{0}};
    sort_spans(times);
    struct overlap_sums sums = overlap_sum_up(&times->waits, &times->collectives, 0.0,
                                              (double)(end_ticks - times->step_ticks), &cursor);
    double step = (double)(end_ns - times->step_ns) * 1e-6;
    double exposed = sums.exposed * scale;
    times->steps[index] = (struct train_step_time){
        .step = step, .exposed = exposed < step ? exposed : step, .hidden = sums.hidden * scale};
}

double train_times_share(const struct train_times *times, int64_t first, int64_t end)
{
    double exposed = 0.0;
    double hidden = 0.0;
    for (int64_t i = first; i < end; i++) {
        exposed += times->steps[i].exposed;
        hidden += times->steps[i].hidden;
    }
    return overlap_share(exposed, hidden);
}

static void add_middle(const struct train_times *times, const bool *is_middle, int64_t n_steps,
                       struct train_step_time *sum)
{
    for (int64_t i = 0; i < n_steps; i++) {
        if (is_middle[i]) {
            sum->step += times->steps[i].step;
            sum->exposed += times->steps[i].exposed;
            sum->hidden += times->steps[i].hidden;
        }
    }
}

shoal_status train_times_mean(const struct train_times *times, int64_t n_steps,
                              struct train_step_time *mean_out)
{
    size_t count = (size_t)n_steps;
    struct train_step_time sum = {0};
    double *lengths = calloc(count + 1, sizeof *lengths);
    size_t *order = calloc(count + 1, sizeof *order);
    bool *is_middle = calloc(count + 1, sizeof *is_middle);
    bool has_room = lengths && order && is_middle;
    for (size_t i = 0; has_room && i < count; i++) {
        lengths[i] = times->steps[i].step;
    }
    size_t n_middle = has_room ? overlap_find_middle(lengths, count, order, is_middle) : 0;
    if (n_middle > 0) {
        add_middle(times, is_middle, n_steps, &sum);
        sum.step /= (double)n_middle;
        sum.exposed /= (double)n_middle;
        sum.hidden /= (double)n_middle;
    }
    free(lengths);
    free(order);
    free(is_middle);
    *mean_out = sum;
    return has_room ? SHOAL_OK : fail_memory(n_steps);
}
