/* SPDX-License-Identifier: MIT */
/*
 * Optimizers, SGD and AdamW: over the parameters of a module, over a list of tensors, or over raw memory. Parameters
 * may be whole or shards, also empty ones. No call here communicates: the update of a shard has the bits of that part
 * of the update of the whole.
 *
 *     shoal_nn_adamw_options options = SHOAL_NN_ADAMW_OPTIONS_INIT;
 *     options.lr = 3e-4;
 *     shoal_nn_param_group vectors = SHOAL_NN_PARAM_GROUP_INIT;
 *     vectors.max_dims = 1;                      biases and norms
 *     vectors.weight_decay = 0;
 *     status = shoal_nn_adamw_create_for(model, &options, &vectors, 1, &optimizer);
 *     ... forward pass, shoal_backward ...
 *     status = shoal_nn_optimizer_step(optimizer);
 *     status = shoal_nn_optimizer_zero_grad(optimizer);
 *
 * Arithmetic: f64 parameters in f64, all others in f32. Each operation is rounded, in exactly this order. Numbers that
 * are the same for all elements are computed in f64 and rounded once.
 *     SGD    p = p - lr * g
 *     AdamW  p = p - (lr * weight_decay) * p
 *            m = beta1 * m + (1 - beta1) * g
 *            v = beta2 * v + (1 - beta2) * (g * g)
 *            p = p - (lr / (1 - beta1^t)) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
 * t counts the updates of that parameter, from 1. m and v start at 0 and have the dtype that is computed in (f64 or
 * f32). A bf16 or f16 parameter is rounded once per step. Groups of parameters may have their own weight_decay and a
 * factor of lr.
 *
 * Devices: the parameters of an optimizer are on one device, any that has data; otherwise it is not created
 * (SHOAL_ERR_INVALID, with the names of two). Parameters on the meta device, which have no memory yet, do not count.
 * Gradients and moments are on that device. On a device other than the CPU a step is one launch for all parameters
 * (shoal_update_parameters), which it does not wait for, and has the bits of the CPU. Raw memory is host memory.
 *
 * Ownership: shoal_nn_optimizer_free frees an optimizer. It references its tensors; raw memory stays the caller's.
 * Names and groups are copied.
 * Threads: one at a time per optimizer.
 * Errors: status and text. A step that fails because of an argument, a tensor or memory has changed nothing.
 */
#ifndef SHOAL_NN_OPTIM_H
#define SHOAL_NN_OPTIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/api.h"
#include "shoal/dtype.h"
#include "shoal/items.h"
#include "shoal/module.h"
#include "shoal/status.h"
#include "shoal/tensor.h"

SHOAL_BEGIN_DECLS

typedef struct shoal_nn_optimizer shoal_nn_optimizer;

typedef struct shoal_nn_sgd_options {
    size_t struct_size; /* sizeof(shoal_nn_sgd_options) */
    double lr;
} shoal_nn_sgd_options;

typedef struct shoal_nn_adamw_options {
    size_t struct_size; /* sizeof(shoal_nn_adamw_options) */
    double lr;
    double beta1;
    double beta2;
    double eps;
    double weight_decay;
    bool allows_zeros; /* beta1, beta2 and eps may be 0; otherwise a 0 counts as forgotten, an error */
} shoal_nn_adamw_options;

/* PyTorch's defaults, in the order of the fields. */
#define SHOAL_NN_SGD_OPTIONS_INIT          \
    {                                      \
        sizeof(shoal_nn_sgd_options), 1e-3 \
    }
#define SHOAL_NN_ADAMW_OPTIONS_INIT                                         \
    {                                                                       \
        sizeof(shoal_nn_adamw_options), 1e-3, 0.9, 0.999, 1e-8, 1e-2, false \
    }

/* A parameter, or a shard of one, in the caller's memory, which is the host's. */
typedef struct shoal_nn_shard {
    void *data;
    /* If it is NULL, the step leaves this parameter alone. If other ranks give gradients of the parameter, a rank whose
       shard is empty gives an address, too (any), so that all ranks count the same updates. */
    const void *gradient;
    size_t count;      /* elements of data and of gradient; may be 0 */
    shoal_dtype dtype; /* of data: f64, f32, f16 or bf16 */
    shoal_dtype gradient_dtype;
} shoal_nn_shard;

/* Groups ----------------------------------------------------------------------------------------------- */

/* The max_dims of a group that takes parameters with any number of dimensions. */
#define SHOAL_NN_ANY_DIMS 0
/* The weight_decay of a group that uses the weight_decay of the optimizer's options. */
#define SHOAL_NN_SAME_DECAY (-1.0)

/* A group: which parameters of a module belong to it, and which settings they have. */
typedef struct shoal_nn_param_group {
    size_t struct_size; /* sizeof(shoal_nn_param_group) */
    /* Matches whole paths: '*' any characters, '?' one character; NULL matches every path. */
    const char *pattern;
    /* Takes parameters whose whole has at most so many dimensions; SHOAL_NN_ANY_DIMS takes any. */
    int max_dims;
    double lr_factor;    /* the group's rate is the optimizer's rate, which schedules set, times this */
    double weight_decay; /* SHOAL_NN_SAME_DECAY means that of the options. For SGD 0 or SHOAL_NN_SAME_DECAY */
    bool may_be_empty;   /* if false, it is an error that no parameter belongs to the group */
    bool allows_zeros;   /* lr_factor may be 0, which otherwise counts as forgotten and is an error */
} shoal_nn_param_group;
#define SHOAL_NN_PARAM_GROUP_INIT                                                                     \
    {                                                                                                 \
        sizeof(shoal_nn_param_group), NULL, SHOAL_NN_ANY_DIMS, 1.0, SHOAL_NN_SAME_DECAY, false, false \
    }

/* Making ----------------------------------------------------------------------------------------------- */

/*
 * Make an optimizer over all parameters of a module and of the modules inside it, in the order of shoal_module_walk; a
 * tied parameter counts once, under its first path. Parameters that require no gradient are included: steps leave them
 * alone until they have one. For fully sharded modules it has the shards: make it after shoal_fully_shard, and after
 * tensors of the module were replaced. Only the parameters are referenced, not the module.
 *
 * Each parameter belongs to the first group whose pattern and max_dims fit it; if none does, the options hold for it.
 * SHOAL_ERR_INVALID: a group has no parameters and may_be_empty is false. If options is NULL, the defaults above hold.
 * groups may be NULL if n_groups is 0.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_sgd_create_for(
    shoal_module *module, const shoal_nn_sgd_options *options, const shoal_nn_param_group *groups,
    size_t n_groups, SHOAL_GIVES shoal_nn_optimizer **optimizer_out);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_adamw_create_for(
    shoal_module *module, const shoal_nn_adamw_options *options, const shoal_nn_param_group *groups,
    size_t n_groups, SHOAL_GIVES shoal_nn_optimizer **optimizer_out);

/*
 * Make an optimizer over a list of tensors, at least one. Steps use their gradients (shoal_grad); so each must be a
 * leaf (shoal_is_leaf), because results of operations keep no gradients. If options is NULL, the defaults above hold.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_sgd_create(shoal_tensor *const *parameters,
                                                            size_t n_parameters,
                                                            const shoal_nn_sgd_options *options,
                                                            SHOAL_GIVES shoal_nn_optimizer **optimizer_out);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_adamw_create(shoal_tensor *const *parameters,
                                                              size_t n_parameters,
                                                              const shoal_nn_adamw_options *options,
                                                              SHOAL_GIVES shoal_nn_optimizer **optimizer_out);

/* Make an optimizer over raw memory, at least one shard. Only counts and dtypes are kept: every step is given the
   addresses of data and gradients. If options is NULL, the defaults above hold. */
SHOAL_API SHOAL_MUST_CHECK shoal_status
shoal_nn_sgd_create_raw(const shoal_nn_shard *shards, size_t n_shards, const shoal_nn_sgd_options *options,
                        SHOAL_GIVES shoal_nn_optimizer **optimizer_out);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_adamw_create_raw(
    const shoal_nn_shard *shards, size_t n_shards, const shoal_nn_adamw_options *options,
    SHOAL_GIVES shoal_nn_optimizer **optimizer_out);

/* Frees an optimizer and its moments. NULL is allowed. */
SHOAL_API void shoal_nn_optimizer_free(SHOAL_TAKES shoal_nn_optimizer *optimizer);

/* Stepping --------------------------------------------------------------------------------------------- */

/*
 * Updates every parameter that has a gradient, in place. The moments of a parameter are allocated at its first update.
 * If no parameter with elements has a gradient, nothing is updated, and the log (shoal/log.h) has a warning; the next
 * one comes only after a step that found gradients. SHOAL_ERR_STATE: none has a gradient, and none can get one from its
 * module, because shoal_fully_shard has replaced them all (shoal_is_replaced); create the optimizer after sharding.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_optimizer_step(shoal_nn_optimizer *optimizer);

/* Updates parameter `index`, counted from 0, alone: for a hook that is called when the parameter's gradient is
   complete. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_optimizer_step_one(shoal_nn_optimizer *optimizer,
                                                                    size_t index);

/* shoal_nn_optimizer_step for an optimizer over raw memory. There are as many shards as at creation, with the same
   counts and dtypes. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_optimizer_step_raw(shoal_nn_optimizer *optimizer,
                                                                    const shoal_nn_shard *shards,
                                                                    size_t n_shards);

/* Removes the gradients of all its tensors. Call it after each step. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_optimizer_zero_grad(shoal_nn_optimizer *optimizer);

/* The rate, and another one from the next step on. Groups multiply it by their factors. */
SHOAL_API double shoal_nn_optimizer_lr(const shoal_nn_optimizer *optimizer);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_optimizer_set_lr(shoal_nn_optimizer *optimizer, double lr);

/* Parameters, by number and by path ------------------------------------------------------------------------ */

/* The number of parameters. They are numbered from 0, in the order in which they were given or walked. 0 for NULL. */
SHOAL_API size_t shoal_nn_optimizer_count(const shoal_nn_optimizer *optimizer);
/* Returns the first path of a parameter in its module; "" if the optimizer was made from a list. It lives as long as
   the optimizer. If there is no such parameter, it returns NULL, with the reason in shoal_error_text. */
SHOAL_API const char *shoal_nn_optimizer_path(const shoal_nn_optimizer *optimizer, size_t index);
/* Returns the number of the parameter with that first path, or -1 if there is none. */
SHOAL_API int64_t shoal_nn_optimizer_find(const shoal_nn_optimizer *optimizer, const char *path);

/* Returns the number of the group that a parameter belongs to, or -1 if it belongs to none. If there is no such
   parameter, it returns -1, with the reason in shoal_error_text. */
SHOAL_API int64_t shoal_nn_optimizer_group_of(const shoal_nn_optimizer *optimizer, size_t index);
/* Gives the settings of a group. The pattern lives as long as the optimizer. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_optimizer_get_group(const shoal_nn_optimizer *optimizer,
                                                                     size_t group,
                                                                     shoal_nn_param_group *row_out);
/* Sets lr_factor and weight_decay of a group, from the next step on. Its parameters stay the same: pattern, max_dims
   and may_be_empty must be as shoal_nn_optimizer_get_group gives them. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_optimizer_set_group(shoal_nn_optimizer *optimizer,
                                                                     size_t group,
                                                                     const shoal_nn_param_group *row);

/* State ------------------------------------------------------------------------------------------------ */

/* The state of one parameter, for checkpoints that a program writes itself. */
typedef struct shoal_nn_optimizer_state {
    size_t struct_size; /* sizeof(shoal_nn_optimizer_state), set by the caller */
    int64_t n_updates;  /* t */
    /* The first moment m, of the parameter's shape, borrowed; NULL before it exists, and for SGD. */
    shoal_tensor *first_moment;
    shoal_tensor *second_moment; /* the second moment v, in the same way */
} shoal_nn_optimizer_state;
#define SHOAL_NN_OPTIMIZER_STATE_INIT SHOAL_SIZED(shoal_nn_optimizer_state)

/* Gives the state of a parameter. Moments of raw shards have one dimension. The tensors stay the same as long as the
   optimizer lives: steps and set_state write into them. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_optimizer_get_state(const shoal_nn_optimizer *optimizer,
                                                                     size_t index,
                                                                     shoal_nn_optimizer_state *state_out);
/*
 * Sets the state of a parameter. The moments are copied, also from another device. They have the shape of the
 * parameter (for raw shards: any shape with as many elements) and the dtype that is computed in. NULL stands for zeros;
 * for SGD both are NULL.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_optimizer_set_state(shoal_nn_optimizer *optimizer,
                                                                     size_t index,
                                                                     const shoal_nn_optimizer_state *state);

/* Items of checkpoints (shoal/items.h) ---------------------------------------------------------------------------- */

/*
 * Adds the state of an optimizer over tensors to a list that has its parameters already (shoal_items_add_module). For a
 * parameter whose item is called NAME there are, in the section "optimizer":
 *     NAME.exp_avg, NAME.exp_avg_sq    m and v, sharded like the parameter; not for SGD
 *     NAME.step                        t, an i64 without dimensions
 * They are the optimizer's own memory, so that a load restores the state. Moments that do not exist yet are allocated,
 * with zeros. A parameter that requires no gradient and has no state is left out. Rates, betas and groups are not
 * saved: the program sets them again. List and optimizer may be freed in any order. SHOAL_ERR_INVALID: a parameter has
 * no item in the list.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_optimizer_add_items(shoal_nn_optimizer *optimizer,
                                                                     shoal_items *items);
/* Adds the state of an optimizer over raw memory, as above. numbers[i] is the number (shoal_items_find) of the item of
   shard i, which has as many elements and the same dtype; if it is -1, the state of the shard is left out. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_optimizer_add_items_raw(shoal_nn_optimizer *optimizer,
                                                                         shoal_items *items,
                                                                         const int64_t *numbers,
                                                                         size_t n_numbers);

SHOAL_END_DECLS

#endif
