/* SPDX-License-Identifier: MIT */
/*
 * Compares each recorded result of one name and step with the pieces that all ranks have of it. The error is max|got -
 * want| / max|want|, both maxima over all pieces. A result that is wrong without a number (missing, of another shape,
 * unknown) is an entry too, with the reason.
 */
#ifndef REPLAY_FSDP_CHECKS_H
#define REPLAY_FSDP_CHECKS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/tensor.h"

#define FSDP_REASON_BYTES 512

struct fsdp_check {
    char *name;
    double bound;
    int n_pieces; /* that were compared */
    double largest_error;
    double largest_want;
    bool is_no_number; /* one is not a number where the other is, or another one */
    int rank;          /* where the largest error is */
    int64_t element;
    float got;
    float want;
    char reason[FSDP_REASON_BYTES]; /* why it is wrong; "" if its error alone says so */
};

struct fsdp_checks {
    struct fsdp_check *checks;
    size_t n_checks;
    size_t capacity;
    bool has_no_memory; /* something could not be noted */
    pthread_mutex_t lock;
};

struct fsdp_totals {
    size_t n_checked;
    size_t n_wrong;
    double worst;
};

void fsdp_checks_init(struct fsdp_checks *self);
void fsdp_checks_free(struct fsdp_checks *self);

/* One more; its number. */
size_t fsdp_checks_add(struct fsdp_checks *self, const char *name, double bound);
/* One more that is wrong. */
void fsdp_checks_add_wrong(struct fsdp_checks *self, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* It is wrong; the first reason counts. Any thread. */
void fsdp_checks_set_reason(struct fsdp_checks *self, size_t number, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool fsdp_checks_has_reason(struct fsdp_checks *self, size_t number);

/* A rank's piece: both f32 and contiguous. Any thread. An error of reading them is the scope's. */
void fsdp_checks_compare(struct fsdp_checks *self, size_t number, int rank, const shoal_tensor *got,
                         const shoal_tensor *want);

/* The run has ended without a failure: what was not compared on all ranks is wrong. */
void fsdp_checks_end(struct fsdp_checks *self, int n_ranks);

/* One line for each that is wrong, behind `file`. Checks of which no piece, or not all of them, were compared do not
   count when the run has failed. */
void fsdp_checks_report(const struct fsdp_checks *self, const char *file, int n_ranks,
                        struct fsdp_totals *totals);

#endif
