/* SPDX-License-Identifier: MIT */
/* The common lane: see common.h. */
#include "parallel/fsdp/engine/agree/common.h"

#include <stdio.h>

#include "base/error.h"
#include "base/try.h"
#include "comm/call/collectives.h"
#include "comm/lane/handles.h"
#include "parallel/fsdp/engine/agree/compare.h"
#include "parallel/fsdp/engine/state/unit.h"

/* How long a rank waits for a collective before it looks at the other lanes, and how long it looks. */
#define WAIT_SECONDS 0.05
#define LOOK_SECONDS 0.001

struct purpose fsdp_common_purpose(const struct fsdp_context *context, struct purpose purpose)
{
    purpose.root = context->common_root;
    return purpose;
}

void fsdp_common_drop(struct fsdp_context *context)
{
    if (context->marks.common) {
        work_forget(context->marks.common); /* a barrier, which uses no memory of ours */
        shoal_work_free(context->marks.common);
        context->marks.common = NULL;
    }
}

shoal_status fsdp_common_mark(struct fsdp_context *context, const struct purpose *purpose)
{
    shoal_work *mark = NULL;
    if (!context->common) {
        return SHOAL_OK;
    }
    const struct purpose common = fsdp_common_purpose(context, *purpose);
    shoal_status status = collectives_barrier_start(context->common, &common, &mark);
    if (status != SHOAL_OK) {
        return fsdp_tell_all(context, status);
    }
    fsdp_common_drop(context);
    context->marks.common = mark;
    return SHOAL_OK;
}

bool fsdp_common_has_ended(shoal_work *work, double seconds, shoal_status *status_out)
{
    *status_out = shoal_work_wait(work, seconds);
    if (*status_out != SHOAL_ERR_TIMEOUT) {
        return true;
    }
    /* The wait was too short, or the operation itself has timed out, or it has ended since. */
    if (!shoal_work_test(work)) {
        return false;
    }
    *status_out = shoal_work_wait(work, -1);
    return true;
}

/* Carries the common lane on. Its last mark ends after all others, so its status tells of all. */
static shoal_status look_at_common(const struct fsdp_context *context)
{
    shoal_work *mark = context->marks.common;
    shoal_status status = SHOAL_OK;
    bool has_failed = mark && fsdp_common_has_ended(mark, LOOK_SECONDS, &status) && status != SHOAL_OK;
    return has_failed ? status : SHOAL_OK;
}

static shoal_status look_around(const struct fsdp_context *context)
{
    TRY(look_at_common(context));
    return fsdp_check_lanes(context);
}

/* Something else has failed, so nobody may come to this collective any more. All lanes fail with the reason. Then the
   collective ends, which it must before its memory is freed. */
static shoal_status give_up(const struct fsdp_context *context, shoal_work *work, shoal_status status)
{
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    (void)fsdp_tell_every_lane(context, status);
    (void)!shoal_work_wait(work, -1);
    return error_set(status, "%s", text);
}

shoal_status fsdp_common_wait(const struct fsdp_context *context, shoal_work *work)
{
    if (!context->common) {
        return shoal_work_wait(work, -1);
    }
    shoal_status status;
    while (!fsdp_common_has_ended(work, WAIT_SECONDS, &status)) {
        status = look_around(context);
        if (status != SHOAL_OK) {
            return give_up(context, work, status);
        }
    }
    return status;
}

shoal_status fsdp_common_meet(struct fsdp_context *context, const struct purpose *purpose)
{
    if (!context->common) {
        return SHOAL_OK;
    }
    TRY(fsdp_common_mark(context, purpose));
    shoal_status status = fsdp_common_wait(context, context->marks.common);
    fsdp_common_drop(context);
    return status == SHOAL_OK ? SHOAL_OK : fsdp_tell_all(context, status);
}

shoal_status fsdp_compare_all(struct fsdp_context *context, const struct purpose *purpose)
{
    return context->common ? fsdp_common_meet(context, purpose)
                           : fsdp_compare(&context->domains[0]->mesh, purpose);
}

shoal_status fsdp_compare_of(const struct fsdp_unit *unit, const struct purpose *purpose)
{
    return unit->context && unit->context->common ? fsdp_common_meet(unit->context, purpose)
                                                  : fsdp_compare(unit->mesh, purpose);
}
