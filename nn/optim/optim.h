/* SPDX-License-Identifier: MIT */
/* What the files of optimizers share: the optimizer itself, and its state. */
#ifndef NN_OPTIM_OPTIM_H
#define NN_OPTIM_OPTIM_H

#include <stdatomic.h>
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
    shoal_tensor *tensor; /* one reference; NULL for raw memory */
    size_t count;
    shoal_dtype dtype;
    char *path;    /* of a module's parameter, owned; NULL if the optimizer was made from a list */
    int64_t group; /* -1 if it belongs to none */
    int64_t n_updates;
    shoal_tensor *moments[NN_N_MOMENTS]; /* one reference each; NULL if there is none yet. Never replaced */

    /* Of the step that is running. */
    shoal_nn_shard now;     /* if now.gradient is NULL, the step passes it over */
    void *gradient_scratch; /* a gradient whose strides had to be undone */
    void *moment_data[NN_N_MOMENTS];
    shoal_tensor *gradient; /* of a tensor on another device than the CPU, in place of `now` */
};

/* A row of the list of paths, which is sorted by them. */
struct nn_path {
    const char *path; /* of the parameter */
    size_t index;
};

struct shoal_nn_optimizer {
    atomic_int n_references; /* the caller's, and one for each list of items */
    enum nn_rule rule;
    bool is_raw;
    bool has_warned;                /* the last step found no gradient */
    shoal_nn_adamw_options options; /* SGD: lr only */
    shoal_nn_param_group *groups;   /* patterns are owned */
    size_t n_groups;
    struct nn_path *paths; /* NULL if it was made from a list */
    size_t n_parameters;
    struct nn_parameter parameters[];
};

/* Checks ------------------------------------------------------------------------------------------------ */

/* Of a parameter: a tensor that an optimizer can have. `which` is how a text names it: "3", or its path. */
shoal_status nn_check_tensor(const char *call, const char *which, const shoal_tensor *tensor);
shoal_status nn_check_parameter_dtype(const char *call, const char *which, shoal_dtype dtype);
/* Copies options of the caller's (common/struct_size.h), and checks them. NULL means the defaults. */
shoal_status nn_read_adamw_options(const char *call, const shoal_nn_adamw_options *given,
                                   shoal_nn_adamw_options *options);
/* That a tensor is on the device of those before it, which is SHOAL_META before the first. Tensors on the meta device,
   which get their memory later, do not count. */
shoal_status nn_check_device(const char *call, const char *which, const shoal_tensor *tensor,
                             shoal_device *device);
/* That there is such a parameter. */
shoal_status nn_check_index(const char *call, const shoal_nn_optimizer *optimizer, size_t index);
/* That there is an optimizer, made over raw memory or over tensors. */
shoal_status nn_check_kind(const char *call, const shoal_nn_optimizer *optimizer, bool is_raw);
/* That a step could take the shard in the place of that parameter. */
shoal_status nn_check_shard(const char *call, const shoal_nn_optimizer *optimizer, size_t index,
                            const shoal_nn_shard *shard);

/* Making ------------------------------------------------------------------------------------------------ */

/* SGD's options, or the defaults for NULL, as those of AdamW, of which it uses the rate. */
shoal_status nn_widen_sgd_options(const char *call, const shoal_nn_sgd_options *options,
                                  shoal_nn_adamw_options *wide_out);
/* Without parameters yet, each of them in no group. Freed by shoal_nn_optimizer_free. */
shoal_status nn_optimizer_allocate(const char *call, enum nn_rule rule, const shoal_nn_adamw_options *options,
                                   size_t n_parameters, shoal_nn_optimizer **optimizer_out);
/* One more owner; each of them calls shoal_nn_optimizer_free. */
void nn_optimizer_ref(shoal_nn_optimizer *optimizer);
/* Puts a tensor that was checked into the place of a parameter. */
void nn_parameter_set(struct nn_parameter *parameter, shoal_tensor *tensor);

/* State ------------------------------------------------------------------------------------------------- */

/* Makes the moments that are missing, zeros. AdamW only. */
shoal_status nn_make_moments(struct nn_parameter *parameter);

#endif
