/* SPDX-License-Identifier: MIT */
/* Checks and selects the modules that become one unit. */
#include "parallel/fsdp/module/select.h"

#include <stdio.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "parallel/claim.h"

shoal_status fsdp_check_given(shoal_module *const *modules, size_t n_modules)
{
    if (!modules || n_modules == 0) {
        return error_set(SHOAL_ERR_INVALID, "no modules: modules is %s, n_modules is %zu",
                         modules ? "given" : "NULL", n_modules);
    }
    for (size_t i = 0; i < n_modules; i++) {
        if (!modules[i]) {
            char what[40];
            (void)snprintf(what, sizeof what, "modules[%zu]", i);
            return error_null(what);
        }
    }
    return SHOAL_OK;
}

shoal_status fsdp_check_modules(shoal_module *const *modules, size_t n_modules)
{
    for (size_t i = 0; i < n_modules; i++) {
        if (!shoal_module_get_definition(modules[i])->forward) {
            return error_set(SHOAL_ERR_INVALID, "module %s has no forward function: shard what is in it",
                             shoal_module_type(modules[i]));
        }
        TRY(claim_check(modules[i], "", CLAIMANT_FSDP));
        TRY(claim_check(modules[i], "", CLAIMANT_DDP));
        for (size_t k = 0; k < i; k++) {
            if (modules[k] == modules[i]) {
                return error_set(SHOAL_ERR_INVALID, "modules[%zu] and [%zu] are the same", k, i);
            }
        }
    }
    return SHOAL_OK;
}

/* A walk through `outer` that looks for the other modules. */
struct inside_search {
    shoal_module *const *modules;
    size_t n_modules;
    const shoal_module *outer;
    bool *is_inside;
};

static shoal_status mark_inside(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    const struct inside_search *search = context;
    (void)next;
    for (size_t i = 0; i < search->n_modules; i++) {
        if (search->modules[i] == entry->module && entry->module != search->outer) {
            search->is_inside[i] = true;
        }
    }
    return SHOAL_OK;
}

shoal_status fsdp_keep_outermost(shoal_module *const *modules, size_t n_modules, shoal_module **kept_out,
                                 size_t *n_kept_out)
{
    struct inside_search search = {.modules = modules, .n_modules = n_modules};
    shoal_status status = SHOAL_OK;
    search.is_inside = mem_alloc_zeroed(n_modules, sizeof search.is_inside[0]);
    if (!search.is_inside) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n_modules && n_modules > 1 && status == SHOAL_OK; i++) {
        search.outer = modules[i];
        status = shoal_module_walk(modules[i], SHOAL_WALK_MODULES, mark_inside, &search);
    }
    *n_kept_out = 0;
    for (size_t i = 0; i < n_modules && status == SHOAL_OK; i++) {
        if (!search.is_inside[i]) {
            kept_out[(*n_kept_out)++] = modules[i];
        }
    }
    mem_free(search.is_inside);
    return status;
}
