/* SPDX-License-Identifier: MIT */
#include "parallel/fsdp/module/tree.h"

#include <string.h>

#include "base/changes.h"
#include "base/error.h"
#include "base/try.h"
#include "parallel/claim.h"
#include "parallel/fsdp/engine/agree/marks.h"
#include "parallel/fsdp/module/tensors.h"
#include "shoal/autograd.h"

/* Finds the parameter of the wrapper that was in that place; NULL if the place is new, or was left out. */
static const struct fsdp_tensors *find_by_place(const struct fsdp_wrapper *wrapper,
                                                const shoal_module_entry *entry)
{
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        const struct fsdp_tensors *tensors = &wrapper->tensors[i];
        for (size_t k = 0; k < tensors->n_places; k++) {
            if (tensors->places[k].module == entry->module &&
                strcmp(tensors->places[k].name, entry->name) == 0) {
                return tensors;
            }
        }
    }
    return NULL;
}

static bool is_ignored(const struct fsdp_wrapper *wrapper, const shoal_tensor *tensor)
{
    for (size_t i = 0; i < wrapper->n_ignored; i++) {
        if (wrapper->ignored[i] == tensor) {
            return true;
        }
    }
    return false;
}

static shoal_status check_place(const struct fsdp_tensors *tensors, const shoal_module_entry *entry)
{
    if (entry->tensor == tensors->sharded || entry->tensor == tensors->full) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_STATE,
                     "parameter %s was replaced after its module was sharded: write its values, or load them",
                     entry->path);
}

static shoal_status check_new(const struct fsdp_wrapper *wrapper, const shoal_module_entry *entry)
{
    if (is_ignored(wrapper, entry->tensor)) {
        return SHOAL_OK;
    }
    if (fsdp_is_of_unit(entry->tensor)) {
        return error_set(
            SHOAL_ERR_STATE,
            "parameter %s is the shard of another parameter and was put in this place after its module "
            "was sharded: tie parameters before that",
            entry->path);
    }
    if (!shoal_requires_grad(entry->tensor)) {
        return SHOAL_OK; /* nothing of it is reduced */
    }
    return error_set(
        SHOAL_ERR_STATE,
        "parameter %s requires a gradient and was added after its module was sharded, so its gradient "
        "would not be reduced: add it before shoal_fully_shard, or freeze it",
        entry->path);
}

static shoal_status visit(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    const struct fsdp_wrapper *wrapper = context;
    if (entry->kind == SHOAL_WALK_MODULES) {
        /* The parameters of inner units, and of modules that DDP has wrapped, are theirs. */
        bool is_own = fsdp_wrapper_of(entry->module) == wrapper;
        *next = !is_own && claim_is_taken(entry->module) ? SHOAL_WALK_SKIP : SHOAL_WALK_ON;
        return SHOAL_OK;
    }
    const struct fsdp_tensors *tensors = find_by_place(wrapper, entry);
    return tensors ? check_place(tensors, entry) : check_new(wrapper, entry);
}

shoal_status fsdp_check_tree(struct fsdp_wrapper *wrapper)
{
    uint64_t latest = changes_latest();
    shoal_status status = SHOAL_OK;
    if (wrapper->looked == latest) {
        return SHOAL_OK;
    }
    for (size_t i = 0; i < wrapper->n_modules && status == SHOAL_OK; i++) {
        status = shoal_module_walk(wrapper->modules[i],
                                   SHOAL_WALK_PARAMETERS | SHOAL_WALK_MODULES | SHOAL_WALK_DUPLICATES, visit,
                                   wrapper);
    }
    if (status == SHOAL_OK) {
        wrapper->looked = latest;
        return SHOAL_OK;
    }
    return fsdp_mark_failure(wrapper->unit, status);
}
