/* SPDX-License-Identifier: MIT */
#include "parallel/ddp/ddp.h"

#include <stdio.h>

#include "base/error.h"
#include "base/mem.h"
#include "module/module.h"
#include "op/dependence.h"
#include "parallel/claim.h"
#include "parallel/ddp/block.h"

struct ddp *ddp_of(const shoal_module *module)
{
    return claim_value(module, CLAIMANT_DDP);
}

void ddp_free_lists(struct ddp *ddp)
{
    for (size_t i = 0; i < ddp->n_params; i++) {
        ddp_param_free(&ddp->params[i]);
    }
    for (size_t i = 0; i < ddp->n_frozen; i++) {
        shoal_tensor_unref(ddp->frozen[i].tensor);
        mem_free(ddp->frozen[i].path);
    }
    for (size_t i = 0; i < ddp->inner.n_modules; i++) {
        shoal_module_unref(ddp->inner.modules[i]);
    }
    ddp_plan_free(&ddp->buckets.plan);
    mem_free(ddp->inner.modules);
    mem_free(ddp->frozen);
    mem_free(ddp->params);
    mem_free(ddp->buckets.items);
    mem_free(ddp->backward.n_ready);
    mem_free(ddp->backward.works);
    mem_free(ddp->backward.fences);
    mem_free(ddp->backward.frozen_set);
}

struct ddp_param *ddp_find_param(const struct ddp *ddp, const shoal_tensor *tensor)
{
    for (size_t i = 0; i < ddp->n_params; i++) {
        if (ddp->params[i].tensor == tensor) {
            return &ddp->params[i];
        }
    }
    return NULL;
}

bool ddp_is_ignored(const shoal_ddp_options *options, const shoal_tensor *tensor)
{
    for (size_t i = 0; i < options->n_ignored; i++) {
        if (options->ignored[i] == tensor) {
            return true;
        }
    }
    return false;
}

/* The module was freed: recorded forward passes must not keep the modules inside it. */
static void leave_module(struct ddp *ddp)
{
    shoal_module_hook *hook = ddp->forward_hook;
    ddp->module = NULL;
    ddp->forward_hook = NULL;
    shoal_module_hook_remove(hook);
    module_guard_end(ddp->guard);
    ddp->guard = NULL;
    while (ddp->inner.n_modules > 0) {
        shoal_module *inner = ddp->inner.modules[--ddp->inner.n_modules];
        claim_uncover(inner, CLAIMANT_DDP);
        shoal_module_unref(inner);
    }
}

void ddp_free(struct ddp *ddp)
{
    op_dependence_leave(ddp->dependence, 0);
    ddp_leave_world(ddp);
    leave_module(ddp);
    ddp_free_lists(ddp);
    for (size_t i = 0; i < ddp->config.options.n_ignored; i++) {
        shoal_tensor_unref(ddp->config.options.ignored[i]);
    }
    mem_free((void *)ddp->config.options.ignored);
    mem_free(ddp->backward.words);
    mem_free(ddp->buffers.scratch);
    mem_free(ddp);
}

/* A recorded forward pass can still be walked back, and its gradients are averaged. */
void ddp_release_claim(void *value)
{
    struct ddp *ddp = value;
    if (ddp->n_records > 0) {
        leave_module(ddp);
    } else {
        ddp_free(ddp);
    }
}

void ddp_keep(void *context)
{
    struct ddp *ddp = context;
    ddp->n_records++;
}

/* For a hook. Keeps the error text of a failure that is being returned. */
void ddp_let_go(void *context)
{
    struct ddp *ddp = context;
    char text[ERROR_TEXT_BYTES];
    if (--ddp->n_records == 0 && !ddp->module) {
        (void)snprintf(text, sizeof text, "%s", shoal_error_text());
        ddp_free(ddp);
        (void)error_set(SHOAL_OK, "%s", text);
    }
}
