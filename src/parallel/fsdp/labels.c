/* SPDX-License-Identifier: MIT */
/* Labels of calls on lanes, marks between them, and words for both. */
#include "parallel/fsdp/labels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/try.h"
#include "comm/collectives.h"
#include "comm/group.h"
#include "comm/hash.h"

/* A unit's number from 1 on in the lower bits; above them which of its parameters are left out. */
enum {
    UNIT_BITS = 16,
    UNIT_MASK = (1 << UNIT_BITS) - 1,
    LEFT_OUT_MASK = 0x7ffe, /* labels are positive, and none is that of a mark */
    LABEL_FORWARDS = 0x7fff0001,
    LABEL_BACKWARD = 0x7fff0002
};

uint32_t fsdp_label_of_gather(const struct fsdp_unit *unit)
{
    return (uint32_t)unit->number + 1;
}

/* Units of one shape must not be mixed up, nor must parameters, if ranks differ in those that have gradients. */
uint32_t fsdp_label_of_reduction(const struct fsdp_unit *unit)
{
    uint64_t left_out = 0;
    for (size_t i = 0; i < unit->n_params; i++) {
        left_out = unit->params[i].is_reduced ? left_out : hash_bytes(left_out, &i, sizeof i);
    }
    return ((uint32_t)unit->number + 1) ^ (uint32_t)((left_out >> 48 & LEFT_OUT_MASK) << UNIT_BITS);
}

/* Marks -------------------------------------------------------------------------------------------------- */

/* All ranks give the same answer: what they set is the same. */
static bool reduces(const struct fsdp_context *context, bool over_replicas)
{
    for (size_t i = 0; i < context->n_units; i++) {
        const struct fsdp_unit *unit = context->units[i];
        if (unit->reduces && (unit->all_reduces || !over_replicas)) {
            return true;
        }
    }
    return false;
}

/* Ranks may have gone different ways since the last unit that was reduced. */
static shoal_status fail_mark(const struct fsdp_context *context, shoal_status status, const char *words)
{
    if (status == SHOAL_OK) {
        return SHOAL_OK;
    }
    status = error_prefix(fsdp_tell(context, status), "%s", words);
    return context->last_reduced ? error_prefix(status, "after reducing %s", context->last_reduced->name)
                                 : status;
}

shoal_status fsdp_mark_forwards(struct fsdp_context *context)
{
    if (context->mark || !context->mesh.gather || !reduces(context, false)) {
        return SHOAL_OK;
    }
    return fail_mark(context, collectives_barrier_start(context->mesh.gather, LABEL_FORWARDS, &context->mark),
                     "the end of forwards");
}

shoal_status fsdp_end_mark(struct fsdp_context *context)
{
    if (!context->mark) {
        return SHOAL_OK;
    }
    shoal_status status = shoal_work_wait(context->mark, -1);
    fsdp_drop_mark(context);
    return fail_mark(context, status, "the end of forwards");
}

shoal_status fsdp_mark_backward(struct fsdp_context *context)
{
    const struct fsdp_mesh *mesh = &context->mesh;
    shoal_status status = SHOAL_OK;
    if (mesh->reduce && reduces(context, false)) {
        status = collectives_barrier(mesh->reduce, LABEL_BACKWARD);
        context->n_marks++;
    }
    if (status == SHOAL_OK && mesh->replicate && reduces(context, true)) {
        status = collectives_barrier(mesh->replicate, LABEL_BACKWARD);
        context->n_replica_marks++;
    }
    return fail_mark(context, status, "the end of the backward");
}

/* Nobody waits: there is no memory under it. */
void fsdp_drop_mark(struct fsdp_context *context)
{
    shoal_work_free(context->mark);
    context->mark = NULL;
}

/* Words -------------------------------------------------------------------------------------------------- */

static void describe_label(const struct fsdp_context *context, unsigned long label, char *words, size_t bytes)
{
    size_t number = label & UNIT_MASK;
    if (label == LABEL_FORWARDS || label == LABEL_BACKWARD) {
        (void)snprintf(words, bytes, "at the end of %s", label == LABEL_FORWARDS ? "forwards" : "a backward");
    } else if (number >= 1 && number <= context->n_units) {
        (void)snprintf(words, bytes, "of %s%s", context->units[number - 1]->name,
                       label >> UNIT_BITS != 0 ? " without some of its parameters" : "");
    } else {
        (void)snprintf(words, bytes, "label %lu", label);
    }
}

static void name_labels(const struct fsdp_context *context, const char *text, char *named, size_t bytes)
{
    static const char word[] = "label ";
    size_t at = 0;
    for (const char *next = strstr(text, word); next && at < bytes; next = strstr(text, word)) {
        char *end;
        char words[96];
        unsigned long label = strtoul(next + sizeof word - 1, &end, 10);
        describe_label(context, label, words, sizeof words);
        int n = snprintf(named + at, bytes - at, "%.*s%s", (int)(next - text), text, words);
        at += n > 0 ? (size_t)n : 0;
        text = end;
    }
    if (at < bytes) {
        (void)snprintf(named + at, bytes - at, "%s", text);
    }
}

/* The lane on which ranks were found to differ is poisoned already. */
static void tell_lane(shoal_group *lane, shoal_status status, const char *text)
{
    if (lane && group_failure(lane) == SHOAL_OK) {
        group_poison(lane, status, text);
    }
}

static bool has_failed(shoal_group *lane)
{
    return lane && group_failure(lane) != SHOAL_OK;
}

shoal_status fsdp_tell(const struct fsdp_context *context, shoal_status status)
{
    const struct fsdp_mesh *mesh = &context->mesh;
    char text[ERROR_TEXT_BYTES];
    char named[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    name_labels(context, text, named, sizeof named);
    if (status == SHOAL_ERR_MISMATCH &&
        (has_failed(mesh->gather) || has_failed(mesh->reduce) || has_failed(mesh->replicate))) {
        tell_lane(mesh->gather, status, named);
        tell_lane(mesh->reduce, status, named);
        tell_lane(mesh->replicate, status, named);
    }
    return error_set(status, "%s", named);
}
