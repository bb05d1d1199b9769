/* SPDX-License-Identifier: MIT */
/* Arguments of the kernel of update.cu. */
#ifndef CUDA_KERNELS_UPDATE_H
#define CUDA_KERNELS_UPDATE_H

#include "cuda/kernels/target.h"

enum {
    UPDATE_THREADS = 256,
    UPDATE_EACH = 4, /* elements of a thread, which are next to each other */
    UPDATE_TILE = UPDATE_THREADS * UPDATE_EACH
};

/* A parameter. Threads load their elements together where all addresses are multiples of what is loaded. */
struct update_item {
    uint64_t data;
    uint64_t gradient;
    uint64_t moments[2];
    uint64_t count;
    uint32_t first_tile;
    uint16_t rates; /* which of the table's */
    uint8_t dtype;
    uint8_t gradient_dtype;
    uint32_t is_in_vectors;
    uint32_t is_aligned; /* all addresses are multiples of the size of an element */
};

/* Already rounded to the type that is computed in. */
struct update_rates {
    double lr;
    double decay;
    double beta1;
    double one_minus_beta1;
    double beta2;
    double one_minus_beta2;
    double step;
    double root;
    double eps;
};

/* The table has the items, and behind them their rates. */
#define UPDATE_TABLE_BYTES (CUDA_ARGUMENT_BYTES - 32)

struct update_arguments {
    uint64_t staged; /* where the table lies, if it is longer than `table`; or 0 */
    uint32_t rule;
    uint32_t n_items;
    uint32_t rates_at; /* bytes */
    uint32_t unused;
    uint64_t table[UPDATE_TABLE_BYTES / 8];
};

#endif
