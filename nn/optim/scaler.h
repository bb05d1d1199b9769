/* SPDX-License-Identifier: MIT */
/* What the files of gradient scalers share: the scaler itself, and gradients that are unscaled. */
#ifndef NN_OPTIM_SCALER_H
#define NN_OPTIM_SCALER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "modules/random.h"
#include "shoal_nn/scaler.h"

/* An optimizer since the last update. */
struct nn_scaler_entry {
    const shoal_nn_optimizer *optimizer;
    bool is_clean;
    bool has_stepped;
};

struct shoal_nn_scaler {
    atomic_int n_references;         /* the caller's, and one for each list of items */
    shoal_nn_scaler_options options; /* scale: the present one */
    shoal_tensor *scale;             /* the same, one reference: what losses are multiplied with */
    int64_t n_clean;
    int64_t n_skipped;
    int64_t kept_clean; /* these two without what a load has written and nobody has accepted yet */
    int64_t kept_skipped;
    struct nn_scaler_entry *entries;
    size_t n_entries;
    size_t capacity;
};

/* Gradients of one unscale: found and checked first, then multiplied, which cannot fail on the CPU. An optimizer has
   those of the CPU or those of one other device. */
struct nn_gradients {
    struct nn_target *targets;
    size_t *counts;
    size_t n_targets;
    shoal_tensor **apart; /* on another device */
    size_t n_apart;
};

/* Of an optimizer's tensors, or of raw shards. nn_gradients_close also when it failed. */
shoal_status nn_gradients_open(const char *call, const shoal_nn_optimizer *optimizer,
                               const shoal_nn_shard *shards, struct nn_gradients *gradients);
/* Waits for another device. Cannot fail on the CPU. */
shoal_status nn_gradients_are_finite(const struct nn_gradients *gradients, bool *are_finite_out);
shoal_status nn_gradients_scale(const struct nn_gradients *gradients, double factor);
void nn_gradients_close(struct nn_gradients *gradients);

#endif
