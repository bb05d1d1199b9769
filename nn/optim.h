/* SPDX-License-Identifier: MIT */
/* What the files of optimizers share: the optimizer itself, and its state. */
#ifndef NN_OPTIM_H
#define NN_OPTIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal_nn/optim.h"

#define NN_N_MOMENTS 2

enum nn_rule {
    NN_RULE_SGD,
    NN_RULE_ADAMW
};

struct nn_parameter {
    shoal_tensor *tensor; /* one reference; NULL: raw memory */
    size_t count;
    shoal_dtype dtype;
    int64_t n_updates;
    shoal_tensor *moments[NN_N_MOMENTS]; /* one reference each; NULL: none yet */

    /* Of the step that is running. */
    shoal_nn_shard now;     /* now.gradient NULL: passed over */
    void *gradient_scratch; /* a gradient whose strides had to be undone */
    void *moment_data[NN_N_MOMENTS];
};

struct shoal_nn_optimizer {
    enum nn_rule rule;
    bool is_raw;
    bool has_warned;                /* the last step found no gradient */
    shoal_nn_adamw_options options; /* SGD: lr only */
    size_t n_parameters;
    struct nn_parameter parameters[];
};

/* Checks ------------------------------------------------------------------------------------------------ */

shoal_status nn_check_parameter_dtype(const char *call, size_t index, shoal_dtype dtype);
/* That there is such a parameter. */
shoal_status nn_check_index(const char *call, const shoal_nn_optimizer *optimizer, size_t index);
/* That there is an optimizer, made over raw memory or over tensors. */
shoal_status nn_check_kind(const char *call, const shoal_nn_optimizer *optimizer, bool is_raw);

/* State ------------------------------------------------------------------------------------------------- */

/* Makes the moments that are missing, zeros. AdamW only. */
shoal_status nn_make_moments(struct nn_parameter *parameter);

#endif
