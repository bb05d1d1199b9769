/* SPDX-License-Identifier: MIT */
/* Objects of the program for gathers and reduce-scatters: reads them, allocates their memory, cleans up after them. */
#include "parallel/fsdp/engine/state/custom.h"

#include <stdio.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "base/try.h"
#include "device/device.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/memory.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/state/unit.h"

/* Reading ------------------------------------------------------------------------------------------------ */

static shoal_status check_functions(const char *call, bool has_call, bool has_allocate, bool has_release)
{
    if (!has_call) {
        return error_set(SHOAL_ERR_INVALID, "%s: call is NULL", call);
    }
    return has_allocate == has_release
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "%s: %s is given, but %s is not", call,
                           has_allocate ? "allocate" : "release", has_allocate ? "release" : "allocate");
}

shoal_status fsdp_custom_read_gather(const char *call, const shoal_custom_all_gather *given,
                                     shoal_custom_all_gather *custom_out)
{
    *custom_out = (shoal_custom_all_gather){.call = NULL};
    if (!given) {
        return SHOAL_OK;
    }
    TRY(struct_size_read("shoal_custom_all_gather", given, sizeof(size_t), custom_out, sizeof *custom_out));
    return check_functions(call, custom_out->call, custom_out->allocate, custom_out->release);
}

shoal_status fsdp_custom_read_scatter(const char *call, const shoal_custom_reduce_scatter *given,
                                      shoal_custom_reduce_scatter *custom_out)
{
    *custom_out = (shoal_custom_reduce_scatter){.call = NULL};
    if (!given) {
        return SHOAL_OK;
    }
    TRY(struct_size_read("shoal_custom_reduce_scatter", given, sizeof(size_t), custom_out,
                         sizeof *custom_out));
    return check_functions(call, custom_out->call, custom_out->allocate, custom_out->release);
}

/* Memory ------------------------------------------------------------------------------------------------- */

shoal_status fsdp_custom_allocate(const struct fsdp_unit *unit, shoal_custom_allocate function, void *context,
                                  size_t bytes, struct address *memory_out)
{
    error_clear();
    *memory_out = ADDRESS_NONE;
    if (function) {
        *memory_out = address_of(function(context, bytes));
    } else {
        TRY(device_memory_allocate(unit->device, bytes, memory_out));
    }
    if (address_is_none(*memory_out)) {
        return error_set(SHOAL_ERR_NO_MEMORY, "allocate returned NULL for %zu bytes", bytes);
    }
    fsdp_memory_add(&unit->context->memory, FSDP_MEMORY_OTHER, bytes);
    return SHOAL_OK;
}

void fsdp_custom_release(const struct fsdp_unit *unit, shoal_custom_release function, void *context,
                         struct address *memory, size_t bytes)
{
    if (address_is_none(*memory)) {
        return;
    }
    fsdp_memory_remove(&unit->context->memory, FSDP_MEMORY_OTHER, bytes);
    if (function) {
        function(context, address_pointer(*memory), bytes);
    } else {
        device_memory_free(unit->device, *memory);
    }
    *memory = ADDRESS_NONE;
}

size_t fsdp_custom_bytes(size_t bytes)
{
    return bytes > 0 ? bytes : 1;
}

void fsdp_custom_drop_work(shoal_work **work)
{
    char text[ERROR_TEXT_BYTES];
    if (!*work) {
        return;
    }
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    shoal_status status = shoal_work_wait(*work, -1);
    (void)error_set(status, "%s", text);
    shoal_work_free(*work);
    *work = NULL;
}

shoal_status fsdp_custom_end_comparison(shoal_work **compared)
{
    shoal_status status = *compared ? shoal_work_wait(*compared, -1) : SHOAL_OK;
    shoal_work_free(*compared);
    *compared = NULL;
    return status;
}
