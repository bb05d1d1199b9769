/* SPDX-License-Identifier: MIT */
/*
 * Optimizers over the parameters of a module, or over lists of parameters or shards of them: whole tensors, pieces,
 * empty ones. They know nothing of ranks: an update of a shard is that part of the update of the whole, bit for bit.
 *
 * Arithmetic: f64 parameters in f64, all others in f32, each operation rounded, in this order and no other. Numbers
 * that are the same for all elements are computed in f64 and rounded once.
 *     SGD    p = p - lr * g
 *     AdamW  p = p - (lr * weight_decay) * p
 *            m = beta1 * m + (1 - beta1) * g
 *            v = beta2 * v + (1 - beta2) * (g * g)
 *            p = p - (lr / (1 - beta1^t)) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
 * t counts the updates of that parameter, from 1. m and v start at 0 and have the type that is computed in; a bf16 or
 * f16 parameter is rounded once per step. Groups of parameters may have another weight_decay, and lr times a factor of
 * theirs.
 *
 * Ownership: an optimizer references its tensors until it is freed; raw memory stays the caller's. Names and rows are
 * copied.
 * Threads: one at a time per optimizer.
 * Errors: a step that fails because of an argument, a tensor or memory has changed nothing.
 *
 *     shoal_nn_adamw_options options = SHOAL_NN_ADAMW_OPTIONS_INIT;
 *     options.lr = 3e-4;
 *     shoal_nn_param_group vectors = SHOAL_NN_PARAM_GROUP_INIT;
 *     vectors.max_dims = 1;                      biases and norms
 *     vectors.weight_decay = 0;
 *     status = shoal_nn_adamw_create_for(model, &options, &vectors, 1, &optimizer);
 *     ... forward, shoal_backward ...
 *     status = shoal_nn_optimizer_step(optimizer);
 *     status = shoal_nn_optimizer_zero_grad(optimizer);
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
    bool allows_zeros; /* beta1, beta2 and eps may be 0, which is otherwise taken for forgotten and refused */
} shoal_nn_adamw_options;

/* Initializers with PyTorch's defaults. */
#define SHOAL_NN_SGD_OPTIONS_INIT          \
    {                                      \
        sizeof(shoal_nn_sgd_options), 1e-3 \
    }
#define SHOAL_NN_ADAMW_OPTIONS_INIT                                         \
    {                                                                       \
        sizeof(shoal_nn_adamw_options), 1e-3, 0.9, 0.999, 1e-8, 1e-2, false \
    }

/* A parameter, or a shard of one, in the caller's memory. */
typedef struct shoal_nn_shard {
    void *data;
    /* NULL: none in this step, the parameter is passed over. An empty shard has one, at any address, when the others
       of the parameter have: ranks count updates alike. */
    const void *gradient;
    size_t count;      /* elements of both; 0 is fine */
    shoal_dtype dtype; /* of data: f64, f32, f16 or bf16 */
    shoal_dtype gradient_dtype;
} shoal_nn_shard;

/* Groups ----------------------------------------------------------------------------------------------- */

/* max_dims of a group that takes parameters of any number of dimensions. */
#define SHOAL_NN_ANY_DIMS 0
/* weight_decay of a group that has the one of the optimizer's options. */
#define SHOAL_NN_SAME_DECAY (-1.0)

/* Which parameters of a module belong to a group, and what is different for them. */
typedef struct shoal_nn_param_group {
    size_t struct_size;  /* sizeof(shoal_nn_param_group) */
    const char *pattern; /* of the whole path: '*' stands for any characters, '?' for one; NULL: every path */
    int max_dims; /* only parameters that have, whole, at most so many dimensions; SHOAL_NN_ANY_DIMS: all */
    double lr_factor;    /* lr of the group = lr of the optimizer * lr_factor; schedules act on all groups */
    double weight_decay; /* SHOAL_NN_SAME_DECAY: that of the options. SGD has none: 0, or the same */
    bool may_be_empty;   /* no parameter needs to be in this group, which is otherwise an error */
    bool allows_zeros;   /* lr_factor may be 0, which is otherwise taken for forgotten and refused */
} shoal_nn_param_group;
#define SHOAL_NN_PARAM_GROUP_INIT                                                                     \
    {                                                                                                 \
        sizeof(shoal_nn_param_group), NULL, SHOAL_NN_ANY_DIMS, 1.0, SHOAL_NN_SAME_DECAY, false, false \
    }

/* Making ----------------------------------------------------------------------------------------------- */

/*
 * Over all parameters of a module and of the modules inside, in the order of a walk (shoal_module_walk), tied ones
 * once, under their first path. Parameters that require no gradient are among them: steps pass them over until they
 * have one. Of modules that are fully sharded the optimizer has the shards, so make it after shoal_fully_shard and
 * after tensors were put in the place of others. Each parameter belongs to the first of the groups whose pattern and
 * max_dims fit it, or to none, and then the options hold. A group that no parameter belongs to is SHOAL_ERR_INVALID,
 * unless its row allows that. The module is not referenced, only its parameters are. NULL options: the defaults above;
 * groups may be NULL when n_groups is 0.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_sgd_create_for(shoal_module *module,
                                                                const shoal_nn_sgd_options *options,
                                                                const shoal_nn_param_group *groups,
                                                                size_t n_groups,
                                                                shoal_nn_optimizer **optimizer_out);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_adamw_create_for(shoal_module *module,
                                                                  const shoal_nn_adamw_options *options,
                                                                  const shoal_nn_param_group *groups,
                                                                  size_t n_groups,
                                                                  shoal_nn_optimizer **optimizer_out);

/*
 * Over tensors: gradients are those of shoal_grad. NULL options: the defaults above. Every parameter is a leaf
 * (shoal_is_leaf), because results of operations keep no gradients; there is at least one.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_sgd_create(shoal_tensor *const *parameters,
                                                            size_t n_parameters,
                                                            const shoal_nn_sgd_options *options,
                                                            shoal_nn_optimizer **optimizer_out);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_adamw_create(shoal_tensor *const *parameters,
                                                              size_t n_parameters,
                                                              const shoal_nn_adamw_options *options,
                                                              shoal_nn_optimizer **optimizer_out);

/* Over raw memory, at least one shard. Only counts and dtypes are kept: every step is told where data and gradients
   are. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_sgd_create_raw(const shoal_nn_shard *shards, size_t n_shards,
                                                                const shoal_nn_sgd_options *options,
                                                                shoal_nn_optimizer **optimizer_out);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_adamw_create_raw(const shoal_nn_shard *shards,
                                                                  size_t n_shards,
                                                                  const shoal_nn_adamw_options *options,
                                                                  shoal_nn_optimizer **optimizer_out);

/* NULL is allowed. */
SHOAL_API void shoal_nn_optimizer_free(shoal_nn_optimizer *optimizer);

/* Stepping --------------------------------------------------------------------------------------------- */

/*
 * Updates, in place, every parameter that has a gradient. State is made when a parameter's first gradient comes. When
 * no parameter with elements has a gradient, nothing is updated, and the log (shoal/log.h) gets a warning, once until a
 * step finds gradients again.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_optimizer_step(shoal_nn_optimizer *optimizer);

/* Updates parameter `index`, counted from 0, alone: for a hook that runs when its gradient is complete. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_optimizer_step_one(shoal_nn_optimizer *optimizer,
                                                                    size_t index);

/* shoal_nn_optimizer_step over raw memory: as many shards as at creation, of the same counts and dtypes. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_optimizer_step_raw(shoal_nn_optimizer *optimizer,
                                                                    const shoal_nn_shard *shards,
                                                                    size_t n_shards);

/* Removes the gradients of all its tensors. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_optimizer_zero_grad(shoal_nn_optimizer *optimizer);

/* The rate of the options. Groups multiply it by their factors. */
SHOAL_API double shoal_nn_optimizer_lr(const shoal_nn_optimizer *optimizer);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_optimizer_set_lr(shoal_nn_optimizer *optimizer, double lr);

/* Parameters, by number and by path ------------------------------------------------------------------------ */

/* Parameters are counted from 0, in the order in which they were given or walked. 0 for NULL. */
SHOAL_API size_t shoal_nn_optimizer_count(const shoal_nn_optimizer *optimizer);
/* The first path of a parameter in its module; "" for an optimizer that was made from a list. It lives as long as the
   optimizer. NULL, with the reason in shoal_error_text, for a number that is too large. */
SHOAL_API const char *shoal_nn_optimizer_path(const shoal_nn_optimizer *optimizer, size_t index);
/* The parameter of that first path; -1: none. */
SHOAL_API int64_t shoal_nn_optimizer_find(const shoal_nn_optimizer *optimizer, const char *path);

/* The number of the group that a parameter belongs to; -1: to none. -1, with the reason in shoal_error_text, for a
   number that is too large. */
SHOAL_API int64_t shoal_nn_optimizer_group_of(const shoal_nn_optimizer *optimizer, size_t index);
/* The row of a group. Its pattern lives as long as the optimizer. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_optimizer_get_group(const shoal_nn_optimizer *optimizer,
                                                                     size_t group,
                                                                     shoal_nn_param_group *row_out);
/* Another lr_factor and weight_decay for a group, from the next step on. Who belongs to it stays: pattern, max_dims and
   may_be_empty must be those that shoal_nn_optimizer_get_group gives. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_optimizer_set_group(shoal_nn_optimizer *optimizer,
                                                                     size_t group,
                                                                     const shoal_nn_param_group *row);

/* State ------------------------------------------------------------------------------------------------ */

/* What a checkpoint needs of one parameter. */
typedef struct shoal_nn_optimizer_state {
    size_t struct_size;          /* sizeof(shoal_nn_optimizer_state), set by the caller */
    int64_t n_updates;           /* t */
    shoal_tensor *first_moment;  /* m, borrowed, like the parameter; NULL: none yet, or SGD */
    shoal_tensor *second_moment; /* v */
} shoal_nn_optimizer_state;
#define SHOAL_NN_OPTIMIZER_STATE_INIT SHOAL_SIZED(shoal_nn_optimizer_state)

/* Moments of raw shards have one dimension. The tensors of a parameter stay the same as long as the optimizer lives:
   steps and set_state write into them. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_optimizer_get_state(const shoal_nn_optimizer *optimizer,
                                                                     size_t index,
                                                                     shoal_nn_optimizer_state *state_out);
/*
 * Copies the moments, which have the shape of the parameter (of raw shards: any shape with as many elements) and the
 * type that is computed in. NULL stands for zeros. Of SGD both are NULL.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_optimizer_set_state(shoal_nn_optimizer *optimizer,
                                                                     size_t index,
                                                                     const shoal_nn_optimizer_state *state);

/* Items of checkpoints (shoal/items.h) ---------------------------------------------------------------------------- */

/*
 * Adds the state of an optimizer over tensors to a list that has its parameters already (shoal_items_add_module). For a
 * parameter whose item is called NAME there are, in the section "optimizer":
 *     NAME.exp_avg, NAME.exp_avg_sq    m and v, cut like the parameter; not of SGD
 *     NAME.step                        t, an i64 without dimensions
 * They are the optimizer's own memory: what a load writes is in place. Moments that do not exist yet are made, with
 * zeros, which is the same as none. A parameter that requires no gradient and has no state is left out. One that
 * has no item in the list is SHOAL_ERR_INVALID. Rates, betas and groups are not saved: the program gives them
 * again. The list keeps the optimizer's memory alive; list and optimizer may be freed in any order.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_optimizer_add_items(shoal_nn_optimizer *optimizer,
                                                                     shoal_items *items);
/* Adds the state of an optimizer over raw memory. numbers[i] is the number of the item (shoal_items_find)
   of shard i, with as many elements and of the same dtype; -1: its state is left out. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_optimizer_add_items_raw(shoal_nn_optimizer *optimizer,
                                                                         shoal_items *items,
                                                                         const int64_t *numbers,
                                                                         size_t n_numbers);

SHOAL_END_DECLS

#endif
