/* SPDX-License-Identifier: MIT */
/* Finds wrappers, and answers questions about them. */
#include "parallel/fsdp/module/wrapper.h"

#include <string.h>

#include "base/error.h"
#include "parallel/claim.h"

const struct fsdp_seat *fsdp_seat_of(const shoal_module *module)
{
    return claim_value(module, CLAIMANT_FSDP);
}

struct fsdp_wrapper *fsdp_wrapper_of(const shoal_module *module)
{
    const struct fsdp_seat *seat = fsdp_seat_of(module);
    return seat ? seat->wrapper : NULL;
}

const char *fsdp_wrapper_name(const struct fsdp_wrapper *wrapper)
{
    return wrapper->unit ? wrapper->unit->name : "a unit whose root module was freed";
}

shoal_status fsdp_wrapper_check(const struct fsdp_wrapper *wrapper)
{
    return wrapper->is_closed ? error_set(SHOAL_ERR_STATE, "the world was closed") : SHOAL_OK;
}

struct fsdp_tensors *fsdp_find_tensors(const struct fsdp_wrapper *wrapper, const shoal_tensor *original)
{
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        if (wrapper->tensors[i].original == original) {
            return &wrapper->tensors[i];
        }
    }
    return NULL;
}

void fsdp_wrapper_clear_run(struct fsdp_wrapper *wrapper)
{
    memset(wrapper->has_run, 0, wrapper->n_modules * sizeof wrapper->has_run[0]);
    wrapper->n_run = 0;
}

void fsdp_keep_gathered(void *context, void *data)
{
    (void)context;
    (void)data;
}
