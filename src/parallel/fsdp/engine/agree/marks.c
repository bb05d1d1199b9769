/* SPDX-License-Identifier: MIT */
/* Marks: see marks.h. They can be dropped without waiting, because barriers use no memory of the caller. */
#include "parallel/fsdp/engine/agree/marks.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/try.h"
#include "comm/call/collectives.h"
#include "comm/lane/handles.h"
#include "parallel/fsdp/engine/agree/common.h"
#include "parallel/fsdp/engine/agree/compare.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/lanes.h"
#include "parallel/fsdp/engine/agree/purpose.h"
#include "parallel/fsdp/engine/state/unit.h"

/* Adds to the error text which unit was reduced last, because ranks have diverged after that. */
static shoal_status fail_mark(const struct fsdp_context *context, shoal_status status, const char *words)
{
    if (status == SHOAL_OK) {
        return SHOAL_OK;
    }
    status = error_prefix(fsdp_tell_all(context, status), "%s", words);
    return context->reductions.last
               ? error_prefix(status, "after reducing %s", context->reductions.last->name)
               : status;
}

/* Waits for a mark, if there is one. */
static shoal_status end_mark(const struct fsdp_context *context, shoal_work **mark, const char *words)
{
    if (!*mark) {
        return SHOAL_OK;
    }
    shoal_status status = fsdp_common_wait(context, *mark);
    shoal_work_free(*mark);
    *mark = NULL;
    return fail_mark(context, status, words);
}

shoal_status fsdp_mark_forwards(struct fsdp_context *context)
{
    const struct fsdp_mesh *mesh = &context->domains[0]->mesh;
    /* If every rank keeps everything, there is only the lane of replicas. */
    shoal_group *lane = mesh->gather ? mesh->gather : mesh->replicate;
    lane = context->common ? context->common : lane;
    if (context->marks.forwards || !lane) {
        return SHOAL_OK;
    }
    char words[PURPOSE_WORDS_BYTES];
    struct purpose purpose = fsdp_pass_purpose(context, PURPOSE_FSDP_FORWARDS, words);
    if (context->common) {
        purpose = fsdp_common_purpose(context, purpose);
    } else if (!mesh->gather) {
        purpose = fsdp_replica_purpose(mesh, purpose);
    }
    return fail_mark(context, collectives_barrier_start(lane, &purpose, &context->marks.forwards),
                     "the start of the backward pass");
}

shoal_status fsdp_end_mark(struct fsdp_context *context)
{
    return end_mark(context, &context->marks.forwards, "the start of the backward pass");
}

shoal_status fsdp_mark_backward(struct fsdp_context *context)
{
    const struct fsdp_mesh *mesh = &context->domains[0]->mesh;
    char words[PURPOSE_WORDS_BYTES];
    struct purpose purpose = fsdp_pass_purpose(context, PURPOSE_FSDP_BACKWARD, words);
    shoal_status status = SHOAL_OK;
    if (context->common) {
        return fail_mark(context, fsdp_common_meet(context, &purpose), "the end of the backward pass");
    }
    if (mesh->reduce) {
        status = collectives_barrier(mesh->reduce, &purpose);
        context->marks.n_backwards++;
    }
    if (status == SHOAL_OK && mesh->replicate) {
        status = fsdp_compare_replicas(mesh, &purpose);
        context->marks.n_replica_backwards++;
    }
    return fail_mark(context, status, "the end of the backward pass");
}

/* Issues a mark for which nobody waits. */
static shoal_status leave_mark(shoal_group *lane, const struct purpose *purpose)
{
    shoal_work *work = NULL;
    TRY(collectives_barrier_start(lane, purpose, &work));
    work_forget(work);
    shoal_work_free(work);
    return SHOAL_OK;
}

/* The domain of a context that has no common lane, and so one domain. */
static const struct fsdp_domain *only_domain(const struct fsdp_context *context)
{
    return context->domains[0];
}

/* Issues such a mark on each lane on which units are gathered. */
static shoal_status leave_marks(const struct fsdp_context *context, const struct purpose *purpose)
{
    const struct fsdp_domain *domain = only_domain(context);
    shoal_status status = leave_mark(domain->mesh.gather, purpose);
    for (size_t i = 0; i < domain->pools.n_kept && status == SHOAL_OK; i++) {
        status = leave_mark(domain->pools.kept[i]->windows.group, purpose);
    }
    return status == SHOAL_ERR_MISMATCH ? fsdp_tell_every_lane(context, status) : status;
}

uint64_t fsdp_count_gathers(const struct fsdp_context *context)
{
    const struct fsdp_domain *domain = only_domain(context);
    if (context->common) {
        return 0; /* nobody asks */
    }
    uint64_t n = shoal_group_sequence(domain->mesh.gather);
    for (size_t i = 0; i < domain->pools.n_kept; i++) {
        n += shoal_group_sequence(domain->pools.kept[i]->windows.group);
    }
    return n;
}

shoal_status fsdp_mark_gathers(struct fsdp_context *context)
{
    const struct fsdp_domain *domain = only_domain(context);
    shoal_group *lane = context->common ? context->common : domain->mesh.gather;
    if (!lane) {
        return SHOAL_OK;
    }
    /* The purpose says whether this pass is the last, because that may have changed since its start was marked. */
    char words[PURPOSE_WORDS_BYTES];
    struct purpose purpose = context->backward.is_not_last
                                 ? fsdp_pass_purpose(context, PURPOSE_FSDP_GATHERS, words)
                                 : fsdp_context_purpose(context, PURPOSE_FSDP_GATHERS);
    purpose = context->common ? fsdp_common_purpose(context, purpose) : purpose;
    shoal_work_free(context->marks.gathers);
    context->marks.gathers = NULL;
    shoal_status status = collectives_barrier_start(lane, &purpose, &context->marks.gathers);
    for (size_t i = 0; i < domain->pools.n_kept && status == SHOAL_OK && !context->common; i++) {
        status = leave_mark(domain->pools.kept[i]->windows.group, &purpose);
    }
    return fail_mark(context, status, "the end of the gathers");
}

shoal_status fsdp_end_gathers_mark(struct fsdp_context *context)
{
    return end_mark(context, &context->marks.gathers, "the end of the gathers");
}

shoal_status fsdp_mark_buffer(const struct fsdp_unit *unit, const struct purpose *purpose)
{
    if (unit->context->common) {
        const struct purpose mark = fsdp_reduction_mark(unit, PURPOSE_FSDP_BUFFER);
        return unit->domain->pools.buffers.group ? fsdp_common_meet(unit->context, &mark) : SHOAL_OK;
    }
    return unit->mesh->gather ? leave_marks(unit->context, purpose) : SHOAL_OK;
}

shoal_status fsdp_mark_wait(const struct fsdp_unit *unit, uint64_t n_gathers)
{
    const struct fsdp_context *context = unit->context;
    if (context->common || !unit->mesh->gather || fsdp_count_gathers(context) != n_gathers) {
        return SHOAL_OK;
    }
    struct purpose purpose = fsdp_unit_purpose(unit, PURPOSE_FSDP_WAIT);
    return leave_marks(context, &purpose);
}

shoal_status fsdp_mark_gather(const struct fsdp_unit *unit)
{
    bool is_kept = unit->state == FSDP_KEPT;
    struct purpose purpose = fsdp_unit_purpose(unit, is_kept ? PURPOSE_FSDP_NEIGHBOURS : PURPOSE_FSDP_GATHER);
    if (unit->context->common) {
        return unit->mesh->gather ? fsdp_common_mark(unit->context, &purpose) : SHOAL_OK;
    }
    return is_kept ? leave_mark(unit->mesh->gather, &purpose) : SHOAL_OK;
}

shoal_status fsdp_mark_reduction(const struct fsdp_unit *unit, enum purpose_id id)
{
    const struct purpose purpose = fsdp_reduction_mark(unit, id);
    return fsdp_common_mark(unit->context, &purpose);
}

shoal_status fsdp_mark_unshard(struct fsdp_unit *unit)
{
    const struct fsdp_context *context = unit->context;
    shoal_group *lane = context->common ? context->common : unit->mesh->gather;
    bool is_there = unit->gather.is_pending || unit->state == FSDP_UNSHARDED;
    char words[PURPOSE_WORDS_BYTES];
    if (!lane) {
        return SHOAL_OK;
    }
    fsdp_drop_unshard(unit);
    struct purpose purpose = fsdp_unit_purpose(unit, PURPOSE_FSDP_UNSHARD);
    (void)snprintf(words, sizeof words, "%.100s%s", unit->name,
                   is_there ? ", which is gathered already" : "");
    purpose.words = words;
    purpose.argument = is_there;
    purpose = context->common ? fsdp_common_purpose(context, purpose) : purpose;
    shoal_status status = collectives_barrier_start(lane, &purpose, &unit->gather.by_hand);
    return status == SHOAL_OK ? SHOAL_OK : fsdp_tell_all(context, status);
}

shoal_status fsdp_end_unshard(struct fsdp_unit *unit)
{
    if (!unit->gather.by_hand) {
        return SHOAL_OK;
    }
    shoal_status status = fsdp_common_wait(unit->context, unit->gather.by_hand);
    fsdp_drop_unshard(unit);
    return status == SHOAL_OK ? SHOAL_OK : fsdp_tell_all(unit->context, status);
}

void fsdp_drop_unshard(struct fsdp_unit *unit)
{
    shoal_work_free(unit->gather.by_hand);
    unit->gather.by_hand = NULL;
}

void fsdp_drop_mark(struct fsdp_context *context)
{
    shoal_work_free(context->marks.forwards);
    shoal_work_free(context->marks.gathers);
    context->marks.forwards = NULL;
    context->marks.gathers = NULL;
    fsdp_common_drop(context);
}

static void mark_failure(shoal_group *lane, const struct purpose *purpose)
{
    shoal_work *work = NULL;
    if (lane && collectives_barrier_start(lane, purpose, &work) == SHOAL_OK) {
        work_forget(work);
        shoal_work_free(work);
    }
}

static void mark_failed_mesh(const struct fsdp_mesh *mesh, struct purpose purpose)
{
    mark_failure(mesh->gather, &purpose);
    mark_failure(mesh->reduce, &purpose);
    purpose = fsdp_replica_purpose(mesh, purpose);
    mark_failure(mesh->replicate, &purpose);
}

static void mark_failed_domain(const struct fsdp_domain *domain, struct purpose purpose)
{
    purpose.root = domain->root;
    for (size_t i = 0; i < domain->pools.n_kept; i++) {
        mark_failure(domain->pools.kept[i]->windows.group, &purpose);
    }
    mark_failed_mesh(&domain->mesh, purpose);
}

void fsdp_mark_failed_mesh(const struct fsdp_mesh *mesh, uint32_t root, const char *words)
{
    const struct purpose purpose = {.id = PURPOSE_FSDP_UNMADE, .root = root, .words = words};
    mark_failed_mesh(mesh, purpose);
    mark_failure(mesh->calls, &purpose);
}

shoal_status fsdp_mark_unmade(const struct fsdp_context *context, shoal_status status)
{
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    for (size_t i = 0; i < context->n_domains; i++) {
        fsdp_mark_failed_mesh(&context->domains[i]->mesh, context->domains[i]->root, text);
    }
    const struct purpose purpose = {.id = PURPOSE_FSDP_UNMADE, .root = context->common_root, .words = text};
    mark_failure(context->common, &purpose);
    return error_set(status, "%s", text);
}

shoal_status fsdp_mark_failure(const struct fsdp_unit *unit, shoal_status status)
{
    const struct fsdp_context *context = unit->context;
    char text[ERROR_TEXT_BYTES];
    char words[PURPOSE_WORDS_BYTES];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    bool is_named = strncmp(text, unit->name, strlen(unit->name)) == 0;
    (void)snprintf(words, sizeof words, "%.60s%s%.120s", is_named ? "" : unit->name, is_named ? "" : ": ",
                   text);
    struct purpose purpose = fsdp_unit_purpose(unit, PURPOSE_FSDP_FAILED);
    purpose.words = words;
    for (size_t i = 0; i < context->n_domains; i++) {
        mark_failed_domain(context->domains[i], purpose);
    }
    purpose = fsdp_common_purpose(context, purpose);
    mark_failure(context->common, &purpose);
    return error_set(status, "%s", text);
}

shoal_status fsdp_mark_own_failure(const struct fsdp_context *context, shoal_status status)
{
    bool is_own = status == SHOAL_ERR_NO_MEMORY || status == SHOAL_ERR_SYSTEM;
    return is_own && context->n_units > 0 && !context->is_closed
               ? fsdp_mark_failure(context->units[0], status)
               : status;
}
