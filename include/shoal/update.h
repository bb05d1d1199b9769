/* SPDX-License-Identifier: MIT */
/*
 * Work on the parameters of a step, all of them in one call: what optimizers, gradient scalers and clipping are made
 * of. shoal_nn/optim.h and shoal_nn/scaler.h are optimizers and scalers that are ready to use.
 *
 *     shoal_update updates[N_PARAMETERS];
 *     for (size_t i = 0; i < N_PARAMETERS; i++) {
 *         shoal_tensor *gradient = shoal_grad(parameters[i]);
 *         updates[i] = (shoal_update){.parameter = parameters[i], .gradient = gradient, .lr = 0.01};
 *     }
 *     status = shoal_clip_grad_norm(parameters, N_PARAMETERS, 1.0, 2.0, false, NULL);
 *     status = shoal_update_parameters(SHOAL_UPDATE_SGD, updates, N_PARAMETERS);
 *
 * Devices: the tensors of a call are on one device, any that has data; otherwise the call is SHOAL_ERR_INVALID and
 * names two of their devices. On a device other than the CPU the work is one launch for all tensors, and is put behind
 * earlier work there; only calls that give a number wait for it. Results have the bits of the CPU. On a device all
 * tensors of a list are changed at the same time: what a call writes is in the list once, and nothing else in it
 * overlaps it. So a tied parameter is listed once.
 * Ownership: tensors are borrowed. Changes are not recorded for a backward pass.
 * Threads: any. Needs no scope.
 * Errors: status and text. A call that fails because of an argument, a tensor or memory has changed nothing.
 */
#ifndef SHOAL_UPDATE_H
#define SHOAL_UPDATE_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/api.h"
#include "shoal/status.h"
#include "shoal/tensor.h"

SHOAL_BEGIN_DECLS

/*
 * How a parameter p with gradient g is updated. Each operation is rounded, in exactly this order.
 *     SHOAL_UPDATE_SGD    p = p - lr * g
 *     SHOAL_UPDATE_ADAMW  p = p - decay * p
 *                         m = beta1 * m + one_minus_beta1 * g
 *                         v = beta2 * v + one_minus_beta2 * (g * g)
 *                         p = p - step * m / (sqrt(v) / root + eps)
 */
typedef enum shoal_update_rule {
    SHOAL_UPDATE_SGD = 1,
    SHOAL_UPDATE_ADAMW = 2
} shoal_update_rule;

/*
 * A parameter and what it is updated with. f64 parameters are computed in f64, others (f32, f16, bf16) in f32; m and v
 * have that dtype, and gradient and numbers are rounded to it. An f16 or bf16 parameter is rounded once. All tensors
 * have as many elements; those that are written are contiguous.
 */
typedef struct shoal_update {
    shoal_tensor *parameter;
    shoal_tensor *gradient;      /* of any of the four dtypes */
    shoal_tensor *first_moment;  /* AdamW's m */
    shoal_tensor *second_moment; /* AdamW's v */
    double lr;                   /* of SGD; the others are AdamW's */
    double decay;
    double beta1;
    double one_minus_beta1;
    double beta2;
    double one_minus_beta2;
    double step;
    double root;
    double eps;
} shoal_update;

/* Updates all parameters, in place. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_update_parameters(shoal_update_rule rule,
                                                                const shoal_update *updates,
                                                                size_t n_updates);

/* Multiplies all elements by the factor, in place: computed in f64 for f64 and c128, otherwise in f32, to which the
   factor is rounded first. Floating-point and complex tensors. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_scale_tensors(shoal_tensor *const *tensors, size_t n_tensors,
                                                            double factor);

/* Gives the largest absolute value of all elements: 0 if there are none, NaN if one is NaN. So they are all finite if
   this number is. Floating-point tensors. Waits for the device. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_find_largest(shoal_tensor *const *tensors, size_t n_tensors,
                                                           double *largest_out);

/*
 * Clips the gradients of a list of leaves (shoal_grad) by their common norm, and gives the norm before clipping: if it
 * is above max_norm, all are multiplied by max_norm / (norm + 1e-6). Leaves without a gradient are passed over. `power`
 * is the p of the p-norm; INFINITY means the largest absolute value. The 2-norm and the 1-norm are rounded once.
 * norm_out may be NULL. Waits for the device. SHOAL_ERR_STATE, and nothing has changed: must_be_finite is set, and the
 * norm is infinite or NaN. For sharded and replicated modules use shoal_fsdp_clip_grad_norm and
 * shoal_ddp_clip_grad_norm.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_clip_grad_norm(shoal_tensor *const *leaves, size_t n_leaves,
                                                             double max_norm, double power,
                                                             bool must_be_finite, double *norm_out);

/* Limits every element of the gradients of a list of leaves to the range from -max_value to max_value. NaN stays. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_clip_grad_value(shoal_tensor *const *leaves, size_t n_leaves,
                                                              double max_value);

SHOAL_END_DECLS

#endif
