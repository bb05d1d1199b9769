/* SPDX-License-Identifier: MIT */
/* Checks handles, and keeps the last ones that were freed. */
#include "parallel/fsdp/engine/state/handle.h"

#include <pthread.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/options.h"
#include "base/try.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/unit.h"

/* Freeing ------------------------------------------------------------------------------------------------ */

enum {
    KEPT_AT_MOST = 1024
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *kept[KEPT_AT_MOST]; /* all under the lock */
static size_t n_ended;
static size_t n_places;
static bool is_ready;

/* The caller holds the lock. */
static void set_places(size_t wanted)
{
    for (size_t i = 0; i < KEPT_AT_MOST; i++) {
        mem_free(kept[i]);
        kept[i] = NULL;
    }
    n_places = wanted < KEPT_AT_MOST ? wanted : KEPT_AT_MOST;
    is_ready = true;
}

void fsdp_handles_keep(size_t n_handles)
{
    (void)pthread_mutex_lock(&lock);
    set_places(n_handles);
    (void)pthread_mutex_unlock(&lock);
}

/* Frees the memory of a handle or, with SHOAL_DEBUG_HANDLES, keeps it until n_places more handles were freed. */
static void bury(void *memory)
{
    (void)pthread_mutex_lock(&lock);
    if (!is_ready) {
        set_places((size_t)option_int(OPTION_DEBUG_HANDLES));
    }
    if (n_places > 0) {
        size_t place = n_ended++ % n_places;
        void *oldest = kept[place];
        kept[place] = memory;
        memory = oldest;
    }
    (void)pthread_mutex_unlock(&lock);
    mem_free(memory);
}

void fsdp_unit_handle_free(struct shoal_fsdp_unit *handle)
{
    if (handle) {
        *handle = (struct shoal_fsdp_unit){.is_gone = true};
        bury(handle);
    }
}

void fsdp_param_handle_free(struct shoal_fsdp_param *handle)
{
    if (handle) {
        *handle = (struct shoal_fsdp_param){.is_gone = true};
        bury(handle);
    }
}

void fsdp_handle_free(struct shoal_fsdp *handle)
{
    if (handle) {
        mem_free(handle->params);
        *handle = (struct shoal_fsdp){.is_gone = true, .all.is_gone = true};
        bury(handle);
    }
}

/* Checking ----------------------------------------------------------------------------------------------- */

void fsdp_handle_not_found(const char *finder)
{
    error_mark_reason();
    (void)error_prefix(SHOAL_ERR_INVALID, "%s", finder);
}

/* Does not put the name of a call before the error text. */
static shoal_status check_alive(const char *what, bool is_given, bool is_gone, const char *end)
{
    if (is_given) {
        error_clear();
        return is_gone ? error_set(SHOAL_ERR_STATE, "%s is gone: %s", what, end) : SHOAL_OK;
    }
    return error_null(what);
}

static shoal_status name_call(shoal_status status, const char *call)
{
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "%s", call);
}

static const char unit_end[] = "its context was freed, or its module";

shoal_status fsdp_unit_check_open(const char *call, const struct fsdp_unit *unit)
{
    bool is_closed = unit->watch ? unit->watch->is_closed(unit) : unit->context->is_closed;
    return is_closed ? error_set(SHOAL_ERR_STATE, "%s: the world was closed", call) : SHOAL_OK;
}

shoal_status fsdp_handle_there(const struct shoal_fsdp *handle)
{
    return check_alive("fsdp", handle != NULL, handle && handle->is_gone, "it was freed, or its module was");
}

shoal_status fsdp_handle_alive(const char *call, const struct shoal_fsdp *handle)
{
    return name_call(fsdp_handle_there(handle), call);
}

shoal_status fsdp_check_outside(const char *call, const struct fsdp_context *context)
{
    return context && context->n_callbacks > 0
               ? error_set(SHOAL_ERR_STATE,
                           "%s: cannot be called inside a hook or custom collective of the same context",
                           call)
               : SHOAL_OK;
}

shoal_status fsdp_handle_check(const char *call, const struct shoal_fsdp *handle)
{
    TRY(fsdp_handle_alive(call, handle));
    return handle->context->is_closed ? error_set(SHOAL_ERR_STATE, "%s: the world was closed", call)
                                      : fsdp_check_outside(call, handle->context);
}

shoal_status fsdp_handle_one(const char *call, const struct shoal_fsdp_unit *handle,
                             struct fsdp_unit **unit_out)
{
    TRY(name_call(check_alive("unit", handle != NULL, handle && handle->is_gone, unit_end), call));
    if (!handle->unit) {
        return error_set(SHOAL_ERR_INVALID, "%s: unit stands for several units, but one is needed", call);
    }
    *unit_out = handle->unit;
    TRY(fsdp_unit_check_open(call, handle->unit));
    return fsdp_check_outside(call, handle->unit->context);
}

struct open_visit {
    const char *call;
    fsdp_unit_visitor visit;
    void *context;
};

static shoal_status visit_open(struct fsdp_unit *unit, void *context)
{
    const struct open_visit *visit = context;
    TRY(fsdp_unit_check_open(visit->call, unit));
    return visit->visit(unit, visit->context);
}

shoal_status fsdp_handle_each(const char *call, const struct shoal_fsdp_unit *handle, fsdp_unit_visitor visit,
                              void *context)
{
    struct open_visit open = {.call = call, .visit = visit, .context = context};
    TRY(name_call(check_alive("unit", handle != NULL, handle && handle->is_gone, unit_end), call));
    return handle->unit ? visit_open(handle->unit, &open) : handle->each(handle->owner, visit_open, &open);
}

shoal_status fsdp_handle_param(const char *call, const struct shoal_fsdp_param *handle,
                               struct fsdp_unit **unit_out, size_t *index_out)
{
    TRY(name_call(check_alive("param", handle != NULL, handle && handle->is_gone, unit_end), call));
    *unit_out = handle->unit;
    *index_out = handle->index;
    return SHOAL_OK;
}
