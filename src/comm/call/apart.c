/* SPDX-License-Identifier: MIT */
/* Finds overlaps among many buffers: sorts them by address, then makes one pass. */
#include "comm/call/apart.h"

#include <stdlib.h>

#include "base/error.h"

static int compare_intervals(const void *a, const void *b)
{
    uintptr_t left = ((const struct apart_interval *)a)->begin;
    uintptr_t right = ((const struct apart_interval *)b)->begin;
    return (left > right) - (left < right);
}

/* Of the buffers seen so far: the one that ends last, and the one that ends last among those with another number. */
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

/* A buffer with another number that overlaps the interval; NULL if there is none. */
static const struct apart_interval *find_overlap(const struct reach *reach,
                                                 const struct apart_interval *interval)
{
    const struct apart_interval *other =
        reach->first.number != interval->number ? &reach->first : &reach->second;
    return other->end > interval->begin ? other : NULL;
}

/* Parts are read and written in no order, so what one part writes, no other part may read or write. */
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
