/* SPDX-License-Identifier: MIT */
/*
 * A gradient scaler, for training with f16. Small gradients of f16 are 0, so the loss is multiplied by a scale s, the
 * gradients are divided by it before they are used, and a step whose gradients are not finite is left out. The scale is
 * halved then, and doubled after enough steps without one.
 *
 *     shoal_nn_scaler *scaler;
 *     shoal_nn_scaler_options options = SHOAL_NN_SCALER_OPTIONS_INIT;
 *     options.group = shoal_world_group(world);                     all ranks that share the model
 *     DO(shoal_nn_scaler_create(&options, &scaler));
 *     for (...) {
 *         DO(shoal_scope_begin());
 *         shoal_tensor *loss = ...;                                 forward pass; the loss in f32
 *         DO(shoal_backward(shoal_nn_scaler_scale(scaler, loss), NULL));
 *         DO(shoal_nn_scaler_unscale(scaler, optimizer));           gradients are true ones from here on
 *         DO(shoal_fsdp_clip_grad_norm(context, 1.0, 2.0, false, NULL));
 *         if (!shoal_nn_scaler_skips(scaler, optimizer)) {
 *             DO(shoal_nn_schedule_next(&schedule, optimizer));     rates are counted by updates
 *         }
 *         DO(shoal_nn_scaler_step(scaler, optimizer));              an update, unless it is skipped
 *         DO(shoal_nn_scaler_update(scaler));                       the scale of the next step
 *         DO(shoal_nn_optimizer_zero_grad(optimizer));              also of a step that was skipped
 *         DO(shoal_scope_end());
 *     }
 *     shoal_nn_scaler_free(scaler);
 *
 * DO stands for the program's way to check a status. Without clipping and schedule the step alone is enough, which
 * unscales, too. Clipping does not demand finite gradients here (must_be_finite is false): a step that has infinite
 * ones is skipped.
 *
 * Schedules: shoal_nn_schedule_next knows nothing of scalers and counts each call. Called as above, it counts updates:
 * a step that is skipped uses no rate up, and the training is, bit for bit, the one without that batch. Called in every
 * step, it counts batches, and the rates of skipped steps are never used; PyTorch's schedulers do that when a program
 * calls them in every iteration. A cosine over a fixed number of batches wants the second.
 *
 * Order: each optimizer has at most one unscale and exactly one step before the update. Several optimizers may share a
 * scaler; each is skipped by itself. All else is SHOAL_ERR_STATE.
 *
 * Bits: a gradient is multiplied by 1 / s, rounded once to the type that is computed in (f64 for f64, else f32), and
 * then to its own. While the scale is a power of two, as with the defaults, only exponents change: bits are lost where
 * the quotient is too small for the gradient's dtype alone. Gradients of f16 lose small ones there, so keep gradients
 * in f32: parameters that are stored in f32 and computed with in f16 (param_dtype of shoal/fully_shard.h) have those.
 *
 * Ranks: shoal_nn_scaler_unscale, and a step without one before it, are collective over the group; every rank gives the
 * optimizer of its shards. Any rank's infinity or NaN counts on all ranks, which therefore skip the same steps and have
 * the same scale. Ranks compare scale and counters; a difference, or another call in the place of this one, is
 * SHOAL_ERR_MISMATCH. A rank whose gradients or shards are wrong, or that has no memory, takes part in the exchange,
 * and the call fails on all ranks. NULL, an optimizer of the other kind and a wrong order are errors without an
 * exchange. Where a parameter is a shard (shoal_is_shard), a scaler without a group, or with a group of one rank, is
 * SHOAL_ERR_STATE; of raw memory nobody can tell.
 * Ownership: shoal_nn_scaler_free. The group must outlive the scaler's last step; optimizers must live until the update
 * that follows their step.
 * Threads: one at a time per scaler.
 * Errors: status and text. A call that fails has changed no gradient and no parameter, except that gradients are
 * unscaled when the optimizer's step fails after that; the step can then be repeated.
 */
#ifndef SHOAL_NN_SCALER_H
#define SHOAL_NN_SCALER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/api.h"
#include "shoal/group.h"
#include "shoal/items.h"
#include "shoal/status.h"
#include "shoal/tensor.h"
#include "shoal_nn/optim.h"

SHOAL_BEGIN_DECLS

typedef struct shoal_nn_scaler shoal_nn_scaler;

typedef struct shoal_nn_scaler_options {
    size_t struct_size; /* sizeof(shoal_nn_scaler_options) */
    double scale;       /* to begin with; from 2^-126 to 2^126, within which it stays */
    double growth;      /* above 1: what it is multiplied by after growth_interval clean updates in a row */
    double backoff;     /* between 0 and 1: what it is multiplied by after one that was not */
    int64_t growth_interval; /* at least 1 */
    /* All ranks that share the model, sharded or replicated; NULL: this process has it alone. Without the group ranks
       would skip different steps: an error at the first unscale or step if a parameter is a shard, but nothing tells
       when optimizers over raw memory have shards. */
    shoal_group *group;
} shoal_nn_scaler_options;
#define SHOAL_NN_SCALER_OPTIONS_INIT                                            \
    {                                                                           \
        sizeof(shoal_nn_scaler_options), 65536.0, 2.0, 0.5, (int64_t)2000, NULL \
    }

/* NULL options: the defaults above. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_scaler_create(const shoal_nn_scaler_options *options,
                                                               shoal_nn_scaler **scaler_out);
/* NULL is allowed. */
SHOAL_API void shoal_nn_scaler_free(shoal_nn_scaler *scaler);

/*
 * The loss times the scale, in the loss's dtype; differentiable. NULL, with the error in the scope, on failure. The
 * loss should be f32: the largest number of f16 is 65504. Inside a captured step (shoal/compile.h) the scale is the one
 * of each run; the other calls stay outside.
 */
SHOAL_API shoal_tensor *shoal_nn_scaler_scale(shoal_nn_scaler *scaler, shoal_tensor *loss);

/* Collective. Multiplies, in place, all gradients that the optimizer's parameters have by 1 / scale, and finds out
   whether all of them are finite, on all ranks. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_scaler_unscale(shoal_nn_scaler *scaler,
                                                                shoal_nn_optimizer *optimizer);
/* Unscales, if that was not done (collective then), and makes the optimizer's step if all gradients were finite. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_scaler_step(shoal_nn_scaler *scaler,
                                                             shoal_nn_optimizer *optimizer);

/* Unscale and step for an optimizer over raw memory. The gradients are written, although they are `const` in
   shoal_nn_shard. Give the step the shards that were unscaled. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_scaler_unscale_raw(shoal_nn_scaler *scaler,
                                                                    shoal_nn_optimizer *optimizer,
                                                                    const shoal_nn_shard *shards,
                                                                    size_t n_shards);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_scaler_step_raw(shoal_nn_scaler *scaler,
                                                                 shoal_nn_optimizer *optimizer,
                                                                 const shoal_nn_shard *shards,
                                                                 size_t n_shards);

/* Whether the optimizer has been unscaled since the last update and a gradient was not finite, on any rank: its step
   updates nothing, or did not. The same on all ranks. False for NULL. */
SHOAL_API bool shoal_nn_scaler_skips(const shoal_nn_scaler *scaler, const shoal_nn_optimizer *optimizer);

/* After the steps of all optimizers: the scale of the next ones. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_scaler_update(shoal_nn_scaler *scaler);

/* What a checkpoint needs, and what a log may say. */
typedef struct shoal_nn_scaler_state {
    size_t struct_size; /* sizeof(shoal_nn_scaler_state), set by the caller */
    double scale;
    int64_t n_clean;   /* updates since the last one that was not clean, or since the scale grew */
    int64_t n_skipped; /* updates so far that were not clean */
    bool is_clean; /* no gradient that was unscaled since the last update was infinite or NaN; read only */
} shoal_nn_scaler_state;
#define SHOAL_NN_SCALER_STATE_INIT SHOAL_SIZED(shoal_nn_scaler_state)

SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_scaler_get_state(const shoal_nn_scaler *scaler,
                                                                  shoal_nn_scaler_state *state_out);
/* Sets scale, n_clean and n_skipped. Between an update and the next unscale or step; SHOAL_ERR_STATE otherwise. All
   ranks set the same. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_scaler_set_state(shoal_nn_scaler *scaler,
                                                                  const shoal_nn_scaler_state *state);

/*
 * Adds scale, n_clean and n_skipped to a list of a checkpoint's items, as numbers with these names behind `prefix`:
 * with the prefix "scaler.", "scaler.scale". A load needs a scaler whose gradients do not wait for an update, and
 * refuses numbers that shoal_nn_scaler_set_state refuses: the scaler then keeps those it had. The list keeps the
 * scaler's memory alive; list and scaler may be freed in any order.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_scaler_add_items(shoal_nn_scaler *scaler, shoal_items *items,
                                                                  const char *prefix);

SHOAL_END_DECLS

#endif
