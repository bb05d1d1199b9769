/* SPDX-License-Identifier: MIT */
/* What random.c and initialize.c share: checking distributions, and filling a part of a whole. */
#ifndef NN_MODULES_RANDOM_H
#define NN_MODULES_RANDOM_H

#include "math/draws.h"
#include "shoal_nn/random.h"
#include "ops/values.h"

/* Which elements of the whole a fill consists of: `n_runs` runs of `run` elements; run k begins at first + k *
   stride. */
struct nn_runs {
    uint64_t first;
    uint64_t stride;
    size_t n_runs;
    size_t run;
};

/* Copies a distribution of the caller's (common/struct_size.h), and checks it. SHOAL_ERR_INVALID, with a text that names
   the wrong value. Here and below, texts begin with `name`. */
shoal_status nn_read_distribution(const char *name, const shoal_nn_distribution *given,
                                  shoal_nn_distribution *distribution_out);

/*
 * Computes the law of a distribution (which must have been checked) for a whole parameter of this shape.
 * SHOAL_ERR_INVALID if the distribution needs a fan and there are fewer than two dimensions.
 */
shoal_status nn_law_of(const char *name, const shoal_nn_distribution *distribution, const int64_t *shape,
                       int n_dims, struct nn_law *law_out);

shoal_status nn_runs_of(const char *name, const shoal_nn_part *part, struct nn_runs *runs_out);

/* Into contiguous memory of a floating dtype. Sets the floating-point mode itself. */
void nn_fill_runs(const struct nn_sequence *sequence, const struct nn_law *law, const struct nn_runs *runs,
                  shoal_dtype dtype, void *data);

/* A tensor that is about to be filled or changed. */
struct nn_target {
    shoal_tensor *tensor;
    void *data;        /* contiguous */
    shoal_dtype dtype; /* of data */
    struct nn_values values;
    size_t
        host_bytes; /* of a tensor on another device: how much host memory the caller gives for data; else 0 */
};

/*
 * Gives memory for the values of a tensor, which nn_target_store puts there: its own, or scratch memory if it is not
 * contiguous. For a tensor on another device than the CPU the caller sets `data` to host memory of `host_bytes`. With `reads` the scratch memory begins with the tensor's values, so that elements that are not written
 * keep them. SHOAL_ERR_UNSUPPORTED: not a floating dtype; SHOAL_ERR_STATE: the tensor is on the meta device.
 */
shoal_status nn_target_open(const char *name, shoal_tensor *tensor, bool reads, struct nn_target *target_out);
/* Copies scratch or host memory, if there is any, to the tensor. Cannot fail on the CPU. */
shoal_status nn_target_store(const struct nn_target *target);
void nn_target_close(struct nn_target *target);

#endif
