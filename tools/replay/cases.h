/* SPDX-License-Identifier: MIT */
/*
 * The cases of a file with recorded collectives. A tensor is called wN.[grad.]OP[.VARIANT].DTYPE.rankR.inI, .outI, .goutI
 * or .ginI: number I of the list of inputs, of outputs, of gradients that come from above or of gradients of inputs of
 * rank R, of N ranks. Tensors whose names are equal up to .rankR are one case. Complex tensors may be stored as real ones
 * with a last dimension [re, im]. The metadata key "errors" is JSON {case: message}: calls that PyTorch refused, which
 * have no tensors. A case that cannot be run keeps the reason: its name is not understood, or ranks or tensors are missing
 * or do not fit together.
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
    size_t n_tensors[REPLAY_N_KINDS]; /* on each rank */
    int64_t *tensors[REPLAY_N_KINDS]; /* numbers in the file: [rank * n_tensors[kind] + i] */
    double worst;                     /* the largest error, as a part of its bound */
    int wrong_rank;                   /* whose reason it is */
    bool is_handed_on; /* its gradient was recorded as the output's, and not compared with that */
    bool is_failed;    /* a call failed, rather than gave a wrong result */
    char reason[REPLAY_REASON_BYTES]; /* why it is wrong; "" if it is not */
};

struct replay_cases {
    struct replay_case *cases; /* by name; refusals with something wrong about them come last */
    size_t n_cases;
    size_t n_refused; /* calls that PyTorch refused; not among the cases */
};

/* Returns false if memory runs out. */
bool replay_cases_collect(const shoal_safetensors *file, struct replay_cases *cases_out);
void replay_cases_free(struct replay_cases *cases);

/* Tensor `number` of the file as one of the case's dtype, in the scope. */
shoal_tensor *replay_case_load(const struct replay_case *self, const shoal_safetensors *file, int64_t number);

void replay_case_set_reason(struct replay_case *self, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
