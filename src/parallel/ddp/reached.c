/* SPDX-License-Identifier: MIT */
#include "parallel/ddp/reached.h"

#include "autograd/backward.h"
#include "autograd/leaf.h"
#include "base/error.h"
#include "base/try.h"
#include "parallel/claim.h"
#include "parallel/ddp/collect.h"

static shoal_status check_param(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    const struct ddp *ddp = context;
    if (entry->kind == SHOAL_WALK_MODULES) {
        *next = claim_value(entry->module, CLAIMANT_FSDP) ? SHOAL_WALK_SKIP : SHOAL_WALK_ON;
        return SHOAL_OK;
    }
    const struct leaf *leaf = leaf_of(entry->tensor);
    if (!leaf || leaf->last_backward != backward_number() || ddp_find_param(ddp, entry->tensor) ||
        ddp_is_ignored(&ddp->config.options, entry->tensor)) {
        return SHOAL_OK;
    }
    return error_set(
        SHOAL_ERR_STATE,
        "parameter %s got a gradient, but the module had no such parameter when it was wrapped, and no "
        "forward pass of the module has been made since with gradients and synchronization on: its "
        "gradient would not be reduced",
        entry->path);
}

shoal_status ddp_check_reached(struct ddp *ddp)
{
    bool has_same = true;
    if (ddp->module) {
        TRY(ddp_has_same_params(ddp, &has_same));
    }
    return has_same
               ? SHOAL_OK
               : shoal_module_walk(ddp->module, SHOAL_WALK_MODULES | SHOAL_WALK_PARAMETERS, check_param, ddp);
}
