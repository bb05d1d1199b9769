/* SPDX-License-Identifier: MIT */
/* What `shoal bench nn` measures: cases with a forward and mostly a backward pass, and what they are compared with. */
#ifndef BENCH_NN_H
#define BENCH_NN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/shoal.h"

enum {
    NN_MAX_INPUTS = 3
};

/* The data of a case. Tensors are referenced by it. */
struct nn_state {
    const struct nn_case *which;
    int64_t size; /* tokens of a layer, length of an attention, elements of a function */
    shoal_dtype dtype;
    shoal_tensor *inputs[NN_MAX_INPUTS]; /* those of floating dtypes get gradients */
    shoal_tensor *gradient;              /* of the output */
    float *buffers[3];                   /* of the reference */
};

struct nn_case {
    const char *kind;
    const char *name;
    int64_t in;  /* of layers; heads of attention; elements of a row */
    int64_t out; /* of layers */
    /* Makes inputs; returns false if that fails, with the error in the scope. */
    bool (*make)(struct nn_state *state);
    shoal_tensor *(*forward)(const struct nn_state *state);
    bool has_backward;
    double bar; /* the ratio that is promised; 0 if there is none */
};

extern const struct nn_case bench_nn_cases[];
extern const size_t bench_nn_n_cases;

bool bench_nn_state_init(struct nn_state *state, const struct nn_case *which, int64_t size,
                         shoal_dtype dtype);
void bench_nn_state_fini(struct nn_state *state);

/* What a pass is worth: operations of products, or bytes read and written. */
double bench_nn_work(const struct nn_state *state, bool is_backward);
/* Runs the reference once; *work_out is what it is worth. Returns false if it fails, with the error in the scope. */
bool bench_nn_reference(const struct nn_state *state, bool is_backward, double *work_out);

/* "1024x768x2304" */
void bench_nn_shape_text(const struct nn_state *state, char *text, size_t text_bytes);

#endif
