/* SPDX-License-Identifier: MIT */
/* Finding overlaps among many buffers in one pass over them, sorted. */
#include "comm/apart.h"

#include <stdlib.h>

#include "base/error.h"

static int compare_intervals(const void *a, const void *b)
{
    uintptr_t left = ((const struct apart_interval *)a)->begin;
    uintptr_t right = ((const struct apart_interval *)b)->begin;
    return (left > right) - (left < right);
}

/* How far the buffers reach that were seen so far: the farthest, and the farthest of another part than that. */
struct reach {
    struct apart_interval first;
    struct apart_interval second;
};

static void extend(struct reach *reach, const struct apart_interval *interval)
{
    if (interval->end > reach->first.end) {
        if (reach->first.number != interval->number) {
            reach->second = reach->first;
        }
        reach->first = *interval;
    } else if (interval->number != reach->first.number && interval->end > reach->second.end) {
        reach->second = *interval;
    }
}

/* One of another part that reaches into the interval; NULL: none. */
static const struct apart_interval *find_overlap(const struct reach *reach,
                                                 const struct apart_interval *interval)
{
    const struct apart_interval *other =
        reach->first.number != interval->number ? &reach->first : &reach->second;
    return other->end > interval->begin ? other : NULL;
}

/* What one part writes, no other may write or read: parts have no order. Sorted, so that a pass finds it. */
shoal_status apart_check(const char *what, struct apart_interval *intervals, size_t n)
{
    struct reach all = {.first = {.number = SIZE_MAX}, .second = {.number = SIZE_MAX}};
    struct reach written = all;
    qsort(intervals, n, sizeof *intervals, compare_intervals);
    for (size_t i = 0; i < n; i++) {
        const struct apart_interval *interval = &intervals[i];
        const struct apart_interval *other = find_overlap(interval->is_written ? &all : &written, interval);
        if (other) {
            size_t low = other->number < interval->number ? other->number : interval->number;
            size_t high = other->number < interval->number ? interval->number : other->number;
            return error_set(SHOAL_ERR_INVALID, "%s %zu and %zu overlap, and one is written", what, low,
                             high);
        }
        extend(&all, interval);
        if (interval->is_written) {
            extend(&written, interval);
        }
    }
    return SHOAL_OK;
}
