/* SPDX-License-Identifier: MIT */
/*
 * How much of a step is exposed communication, and how much communication is hidden: the one definition that
 * `shoal train` and `shoal trace` share. Exposed is the time in which a rank's thread only waits for a collective, or
 * carries one itself. Collectives that are carried while that thread does not wait are hidden. A collective that was
 * posted and that no thread carries counts as neither, because its progress is not known.
 *
 * Times have any one unit.
 */
#ifndef COMMON_OVERLAP_H
#define COMMON_OVERLAP_H

#include <stdbool.h>
#include <stddef.h>

struct overlap_interval {
    double begin;
    double end;
};

struct overlap_intervals {
    struct overlap_interval *items;
    size_t n_items;
};

/* Sorts a list, and makes one of those that touch. overlap_sum_up wants such lists. */
void overlap_unite(struct overlap_intervals *list);

/* What became of a step: exposed and the rest, compute, add up to its length. */
struct overlap_sums {
    double exposed;
    double hidden;
};

/* Where overlap_sum_up is in its lists; zeros at first. Steps are asked for in their order. */
struct overlap_cursor {
    size_t at[4];
};

struct overlap_sums overlap_sum_up(const struct overlap_intervals *waits,
                                   const struct overlap_intervals *collectives, double begin, double end,
                                   struct overlap_cursor *cursor);

/* The hidden share of all communication, 0 to 1; less than 0 if there was none. */
double overlap_share(double exposed, double hidden);

/*
 * Which of some steps speak for all: the middle half by length, so that neither the first steps nor a disturbed one
 * shows. Sums over them add up, which medians of each part would not. Sets is_middle[i] for each length; `order` is room
 * for n_lengths numbers. Returns how many are set: all if there are fewer than three.
 */
size_t overlap_find_middle(const double *lengths, size_t n_lengths, size_t *order, bool *is_middle);

#endif
