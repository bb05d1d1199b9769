/* SPDX-License-Identifier: MIT */
/* Clips the gradients of a list of leaves, on any device. */
#include "shoal/update.h"

#include "base/error.h"
#include "base/try.h"
#include "op/lists.h"
#include "parallel/clip.h"
#include "shoal/autograd.h"

/* op_list_free also when it failed. */
static shoal_status list_gradients(shoal_tensor *const *leaves, size_t n_leaves, struct op_list *list)
{
    TRY(op_list_allocate(n_leaves, list));
    for (size_t i = 0; i < n_leaves; i++) {
        if (!leaves[i]) {
            return error_set(SHOAL_ERR_INVALID, "leaf %zu is NULL", i);
        }
        shoal_status status = handle_check(leaves[i]);
        shoal_tensor *gradient = status == SHOAL_OK ? shoal_grad(leaves[i]) : NULL;
        if (gradient) {
            status = op_list_add(list, gradient, /*is_written=*/true);
        }
        if (status != SHOAL_OK) {
            return error_prefix(status, "the gradient of leaf %zu", i);
        }
    }
    return SHOAL_OK;
}

static struct clip_source source_of(const struct op_list *list)
{
    return (struct clip_source){.device = list->device, .pieces = list->pieces, .n_pieces = list->n};
}

/* Arguments that were checked. */
static shoal_status clip(shoal_tensor *const *leaves, size_t n_leaves, const struct clip_norm *norm,
                         double max_value, double *norm_out)
{
    struct op_list list = {.device = OP_NO_DEVICE};
    shoal_status status = leaves || n_leaves == 0 ? SHOAL_OK : error_set(SHOAL_ERR_INVALID, "leaves is NULL");
    status = status == SHOAL_OK ? list_gradients(leaves, n_leaves, &list) : status;
    if (status == SHOAL_OK) {
        const struct clip_source source = source_of(&list);
        status = norm ? clip_by_norm(&source, NULL, norm, norm_out) : clip_by_value(&source, max_value);
    }
    status = status == SHOAL_OK ? op_list_store(&list) : status;
    op_list_free(&list);
    return status;
}

shoal_status shoal_clip_grad_norm(shoal_tensor *const *leaves, size_t n_leaves, double max_norm, double power,
                                  bool must_be_finite, double *norm_out)
{
    static const char call[] = "clip_grad_norm";
    const struct clip_norm norm = {.max_norm = max_norm, .power = power, .must_be_finite = must_be_finite};
    double found = 0.0;
    error_clear();
    TRY(clip_check_norm(call, &norm));
    shoal_status status = clip(leaves, n_leaves, &norm, 0.0, &found);
    if (status != SHOAL_OK) {
        return error_prefix(status, "%s", call);
    }
    if (norm_out) {
        *norm_out = found;
    }
    return SHOAL_OK;
}

shoal_status shoal_clip_grad_value(shoal_tensor *const *leaves, size_t n_leaves, double max_value)
{
    static const char call[] = "clip_grad_value";
    error_clear();
    TRY(clip_check_value(call, max_value));
    shoal_status status = clip(leaves, n_leaves, NULL, max_value, NULL);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "%s", call);
}
