/* SPDX-License-Identifier: MIT */
/*
 * The cases of a file with recorded collectives. A tensor is called wN.OP[.VARIANT].DTYPE.rankR.inI or .outI: number I
 * of the list of inputs or outputs of rank R, of N ranks. Tensors whose names are equal up to .rankR are one case. A
 * case that cannot be run keeps the reason: its name is not understood, or ranks or tensors are missing or do not fit
 * together.
 */
#ifndef REPLAY_CASES_H
#define REPLAY_CASES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "calls.h"
#include "shoal/safetensors.h"

#define REPLAY_REASON_BYTES 512

struct replay_case {
    char *name;
    int n_ranks;
    shoal_dtype dtype;
    struct replay_call call;
    size_t n_tensors;                 /* of the list, on each rank, in and out */
    int64_t *ins;                     /* numbers in the file: [rank * n_tensors + i] */
    int64_t *outs;                    /* numbers in the file: [rank * n_tensors + i] */
    double worst;                     /* the largest error, as a part of its bound */
    int wrong_rank;                   /* whose reason it is */
    bool is_failed;                   /* a call failed, rather than gave a wrong result */
    char reason[REPLAY_REASON_BYTES]; /* why it is wrong; "" if it is not */
};

struct replay_cases {
    struct replay_case *cases; /* by name */
    size_t n_cases;
};

/* Returns false if memory runs out. */
bool replay_cases_collect(const shoal_safetensors *file, struct replay_cases *cases_out);
void replay_cases_free(struct replay_cases *cases);

void replay_case_set_reason(struct replay_case *self, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
