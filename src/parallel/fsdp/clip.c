/* SPDX-License-Identifier: MIT */
/*
 * The norm of gradients that are cut among ranks. Squares are added in integer bins (kernel/squares.c), and the bins over
 * the ranks: no rounding until the end, so that the number does not depend on how many ranks there are. Replicas have
 * equal gradients and are not asked.
 */
#include "parallel/fsdp/clip.h"

#include <math.h>

#include "base/try.h"
#include "kernel/kernel.h"

/* Added to the norm before dividing by it: what PyTorch does. */
#define CLIP_EPSILON 1e-6

static shoal_status add_squares(const struct fsdp_context *context, struct kernel_squares *squares)
{
    for (size_t i = 0; i < context->n_units; i++) {
        const struct fsdp_unit *unit = context->units[i];
        for (size_t k = 0; k < unit->n_params; k++) {
            const struct fsdp_param *param = &unit->params[k];
            if (param->has_grad) {
                TRY(kernel_squares_add(squares, param->dtype, param->shard_grad, param->shard_count));
            }
        }
    }
    return SHOAL_OK;
}

static shoal_status scale(struct fsdp_context *context, double factor)
{
    for (size_t i = 0; i < context->n_units; i++) {
        struct fsdp_unit *unit = context->units[i];
        for (size_t k = 0; k < unit->n_params; k++) {
            struct fsdp_param *param = &unit->params[k];
            if (param->has_grad) {
                TRY(kernel_scale(param->dtype, param->shard_grad, param->shard_grad, param->shard_count,
                                 factor));
            }
        }
    }
    return SHOAL_OK;
}

shoal_status fsdp_clip_norm(struct fsdp_context *context, double max_norm, double *norm_out)
{
    struct kernel_squares squares;
    kernel_squares_init(&squares);
    TRY(add_squares(context, &squares));
    kernel_squares_normalise(&squares);
    if (context->mesh.reduce) {
        TRY(shoal_group_all_reduce(context->mesh.reduce, squares.bins, squares.bins, KERNEL_SQUARES_BINS,
                                   SHOAL_U64, SHOAL_SUM));
    }
    double norm = sqrt(kernel_squares_round(&squares));
    double factor = max_norm / (norm + CLIP_EPSILON);
    if (factor < 1.0 || isnan(norm)) { /* not a number: then no gradient is one, on any rank */
        TRY(scale(context, factor));
    }
    *norm_out = norm;
    return SHOAL_OK;
}
