/* SPDX-License-Identifier: MIT */
/*
 * A gradient scaler, for training with f16. Small gradients become 0 in f16. So the loss is multiplied by a scale s,
 * and the gradients are divided by it before they are used. If a gradient is then infinite or NaN, the step is skipped
 * and the scale is halved; after 2000 steps without a skip it is doubled. (bf16 and f32 need no scaler.)
 *
 *     shoal_nn_scaler *scaler;
 *     shoal_nn_scaler_options options = SHOAL_NN_SCALER_OPTIONS_INIT;
 *     options.group = shoal_world_group(world);                     all ranks that share the model
 *     DO(shoal_nn_scaler_create(&options, &scaler));
 *     for (...) {
 *         DO(shoal_scope_begin());
 *         shoal_tensor *loss = ...;                                 forward pass; the loss in f32
 *         DO(shoal_backward(shoal_nn_scaler_scale(scaler, loss), NULL));
 *         DO(shoal_nn_scaler_unscale(scaler, optimizer));           from here on gradients are the true ones
 *         DO(shoal_fsdp_clip_grad_norm(context, 1.0, 2.0, false, NULL));
 *         if (!shoal_nn_scaler_skips(scaler, optimizer)) {
 *             DO(shoal_nn_schedule_next(&schedule, optimizer));     the schedule counts updates
 *         }
 *         DO(shoal_nn_scaler_step(scaler, optimizer));              an update, unless it is skipped
 *         DO(shoal_nn_scaler_update(scaler));                       sets the scale of the next step
 *         DO(shoal_nn_optimizer_zero_grad(optimizer));              after a skipped step, too
 *         DO(shoal_scope_end());
 *     }
 *     shoal_nn_scaler_free(scaler);
 *
 * DO stands for the program's way to check a status. Without clipping and schedule, call shoal_nn_scaler_step alone: it
 * unscales, too. must_be_finite is false for clipping, because a step with infinite gradients is skipped anyway.
 *
 * Schedules: called as above, shoal_nn_schedule_next counts updates: a skipped step uses up no rate, and the training
 * is, bit for bit, the one without that batch. Called in every iteration, it counts batches, as PyTorch's schedulers
 * do; the rates of skipped steps are then never used. Do that for a cosine over a fixed number of batches.
 *
 * Order: before each update every optimizer has exactly one step, and at most one unscale before it. Several optimizers
 * may share a scaler; each is skipped or not by itself. Any other order is SHOAL_ERR_STATE.
 *
 * Bits: a gradient is multiplied by 1 / s, rounded to the type that is computed in (f64 for f64, otherwise f32), and
 * then to its own dtype. If the scale is a power of two, as by default, that changes only exponents; bits are lost only
 * if the quotient is too small for the gradient's dtype. With f16 gradients that happens, so keep gradients in f32:
 * store parameters in f32 and compute in f16 (param_dtype, shoal/fully_shard.h).
 *
 * Devices: the loss and the gradients may be on any device. To learn whether the gradients are finite, an unscale waits
 * for the device, once. Scaling on a device other than the CPU may need memory there: if that fails on one rank, the
 * others are not told.
 *
 * Ranks: shoal_nn_scaler_unscale, and shoal_nn_scaler_step without it, are collective over the group. Every rank gives
 * the optimizer of its own parameters or shards. If any rank finds an infinity or NaN, all ranks skip the step, and all
 * have the same scale. Ranks compare scale and counters: if they differ, or a rank makes another call, all get
 * SHOAL_ERR_MISMATCH. If a rank has wrong gradients or shards, or no memory, the call fails on all ranks. NULL, an
 * optimizer of the other kind, and a wrong order are errors of that rank alone. If a parameter is a shard
 * (shoal_is_shard), a scaler without a group or with a group of one rank is SHOAL_ERR_STATE; for raw memory this cannot
 * be checked.
 * Ownership: shoal_nn_scaler_free frees a scaler. The group must outlive its last step; an optimizer must live until
 * the update that follows its step.
 * Threads: one at a time per scaler.
 * Errors: status and text. A call that fails has changed no gradient and no parameter, with one exception: if the
 * optimizer's step fails, gradients have been unscaled. The step can then be repeated.
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
    double scale;       /* the first one; it is and stays within 2^-126 and 2^126 */
    double growth;      /* above 1: the factor of the scale after growth_interval clean updates in a row */
    double backoff;     /* between 0 and 1: the factor of the scale after an update that was not clean */
    int64_t growth_interval; /* at least 1 */
    /* All ranks that share the model, sharded or replicated. NULL means that no other rank has it; if another one has,
       ranks would skip different steps. */
    shoal_group *group;
} shoal_nn_scaler_options;
#define SHOAL_NN_SCALER_OPTIONS_INIT                                            \
    {                                                                           \
        sizeof(shoal_nn_scaler_options), 65536.0, 2.0, 0.5, (int64_t)2000, NULL \
    }

/* Makes a scaler. If options is NULL, the defaults above hold. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_scaler_create(const shoal_nn_scaler_options *options,
                                                               SHOAL_GIVES shoal_nn_scaler **scaler_out);
/* Frees a scaler. NULL is allowed. */
SHOAL_API void shoal_nn_scaler_free(SHOAL_TAKES shoal_nn_scaler *scaler);

/*
 * Multiplies the loss by the scale, in the loss's dtype. Call shoal_backward with the result. The loss should be f32,
 * because the largest f16 is 65504. It can be called inside a captured step (shoal/compile.h), which uses the scale of
 * each run; the other calls cannot. NULL, with the error in the scope, on failure.
 */
SHOAL_API shoal_tensor *shoal_nn_scaler_scale(shoal_nn_scaler *scaler, shoal_tensor *loss);

/* Divides all gradients of the optimizer's parameters by the scale, in place, and finds out whether they are finite on
   all ranks. Collective. Call it before gradients are clipped or looked at. */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status
shoal_nn_scaler_unscale(shoal_nn_scaler *scaler, shoal_nn_optimizer *optimizer);
/* Makes the optimizer's step if all gradients are finite, otherwise nothing. Unscales first if that was not done; it is
   collective then. */
SHOAL_API SHOAL_SOMETIMES_COLLECTIVE SHOAL_MUST_CHECK shoal_status
shoal_nn_scaler_step(shoal_nn_scaler *scaler, shoal_nn_optimizer *optimizer);

/* Unscale and step, for an optimizer over raw memory. Gradients are written, although they are `const` in
   shoal_nn_shard. Give both calls the same shards. */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_nn_scaler_unscale_raw(
    shoal_nn_scaler *scaler, shoal_nn_optimizer *optimizer, const shoal_nn_shard *shards, size_t n_shards);
SHOAL_API SHOAL_SOMETIMES_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_nn_scaler_step_raw(
    shoal_nn_scaler *scaler, shoal_nn_optimizer *optimizer, const shoal_nn_shard *shards, size_t n_shards);

/* Whether this step of the optimizer is skipped: it was unscaled since the last update, and a gradient was not finite
   on any of the ranks. The same on all ranks. False for NULL. */
SHOAL_API bool shoal_nn_scaler_skips(const shoal_nn_scaler *scaler, const shoal_nn_optimizer *optimizer);

/* Computes the scale of the next step. Call it once, after the steps of all optimizers. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_scaler_update(shoal_nn_scaler *scaler);

/* The state of a scaler: for checkpoints and logs. */
typedef struct shoal_nn_scaler_state {
    size_t struct_size; /* sizeof(shoal_nn_scaler_state), set by the caller */
    double scale;
    int64_t n_clean;   /* clean updates since the last one that was not, or since the scale grew */
    int64_t n_skipped; /* updates so far that were not clean */
    bool is_clean;     /* all gradients unscaled since the last update are finite; set_state ignores it */
} shoal_nn_scaler_state;
#define SHOAL_NN_SCALER_STATE_INIT SHOAL_SIZED(shoal_nn_scaler_state)

/* Gives the state of a scaler. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_scaler_get_state(const shoal_nn_scaler *scaler,
                                                                  shoal_nn_scaler_state *state_out);
/* Sets scale, n_clean and n_skipped, to the same on all ranks. SHOAL_ERR_STATE: called between an unscale or step and
   the update. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_scaler_set_state(shoal_nn_scaler *scaler,
                                                                  const shoal_nn_scaler_state *state);

/*
 * Adds scale, n_clean and n_skipped to a list of items (shoal/items.h), as numbers whose names are `prefix` and these
 * words, for example "scaler.scale". A load fails where shoal_nn_scaler_set_state would, and the scaler then keeps its
 * numbers. List and scaler may be freed in any order.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_scaler_add_items(shoal_nn_scaler *scaler, shoal_items *items,
                                                                  const char *prefix);

SHOAL_END_DECLS

#endif
