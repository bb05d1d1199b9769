/* SPDX-License-Identifier: MIT */
/* Permanent failures of a context. */
#include "parallel/fsdp/engine/state/failure.h"

#include <stdio.h>

#include "base/error.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/unit.h"

shoal_status fsdp_check_failure(const struct fsdp_context *context)
{
    return context->failure.status == SHOAL_OK
               ? SHOAL_OK
               : error_set(context->failure.status, "%s", context->failure.text);
}

static bool is_lasting(shoal_status status)
{
    return status == SHOAL_ERR_PEER || status == SHOAL_ERR_MISMATCH || status == SHOAL_ERR_TIMEOUT;
}

shoal_status fsdp_end_call(struct fsdp_context *context, const char *call, shoal_status status)
{
    if (status == SHOAL_OK) {
        return SHOAL_OK;
    }
    status = error_prefix(status, "%s", call);
    if (is_lasting(status) && context->failure.status == SHOAL_OK) {
        context->failure.status = status;
        (void)snprintf(context->failure.text, sizeof context->failure.text, "%s", shoal_error_text());
    }
    return status;
}

shoal_status fsdp_unit_check_failure(const struct fsdp_unit *unit)
{
    return unit->watch ? SHOAL_OK : fsdp_check_failure(unit->context);
}

shoal_status fsdp_unit_end_call(struct fsdp_unit *unit, const char *call, shoal_status status)
{
    if (status == SHOAL_OK) {
        return SHOAL_OK;
    }
    return unit->watch ? error_prefix(status, "%s", call) : fsdp_end_call(unit->context, call, status);
}
