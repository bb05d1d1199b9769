/* SPDX-License-Identifier: MIT */
/*
 * How ranks tell each other whether they have failed: see agree.h.
 *
 * One small all_reduce (minimum) finds the first rank that failed, and compares the names of the phases character by
 * character. Texts are sent only if something is wrong.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/try.h"
#include "comm/agree/agree.h"
#include "comm/agree/collectives.h"
#include "transport/purpose.h"

#define PHASE_BYTES 64
#define PHASE_NUMBERS (PHASE_BYTES / sizeof(int64_t))

struct agreement agreement_on(shoal_group *group)
{
    int rank = shoal_group_rank(group);
    return (struct agreement){.group = group,
                              .rank = rank,
                              .n_ranks = shoal_group_n_ranks(group),
                              .world_rank = shoal_group_world_rank(group, rank)};
}

/* The first rank ------------------------------------------------------------------------------------------ */

/* A key and a rank in one number, of which ranks find the smallest: key * MOST_RANKS + rank. */
#define MOST_RANKS ((int64_t)1 << 32)
#define NO_CODE INT64_MAX

static int64_t code_of(const struct agreement *agreement, int64_t key)
{
    return key == AGREE_NO_KEY ? NO_CODE : key * MOST_RANKS + agreement->rank;
}

static struct agree_first first_of(int64_t code)
{
    if (code == NO_CODE) {
        return (struct agree_first){.key = AGREE_NO_KEY, .rank = -1};
    }
    int64_t rank = (code % MOST_RANKS + MOST_RANKS) % MOST_RANKS; /* keys may be negative */
    return (struct agree_first){.key = (code - rank) / MOST_RANKS, .rank = (int)rank};
}

shoal_status agree_find_first(const struct agreement *agreement, int64_t key, struct agree_first *first_out)
{
    int64_t code = code_of(agreement, key);
    TRY(agree_find_least(agreement, &code, 1));
    *first_out = first_of(code);
    return SHOAL_OK;
}

/* Phases -------------------------------------------------------------------------------------------------- */

/* Reverses the order of numbers: the minimum of these gives the maximum. */
static int64_t turned(int64_t number)
{
    return ~number;
}

/* agree_find_first that compares the phase, too, if there is one. */
static shoal_status meet(const struct agreement *agreement, int64_t key, struct agree_first *first_out,
                         bool *is_same_out)
{
    int64_t name[PHASE_NUMBERS] = {0}; /* its characters */
    int64_t numbers[1 + 2 * PHASE_NUMBERS];
    *is_same_out = true;
    if (!agreement->phase) {
        return agree_find_first(agreement, key, first_out);
    }
    (void)snprintf((char *)name, sizeof name, "%s", agreement->phase);
    numbers[0] = code_of(agreement, key);
    for (size_t i = 0; i < PHASE_NUMBERS; i++) {
        numbers[1 + i] = name[i];
        numbers[1 + PHASE_NUMBERS + i] = turned(name[i]);
    }
    shoal_status status = agree_find_least(agreement, numbers, sizeof numbers / sizeof numbers[0]);
    if (status != SHOAL_OK) {
        return error_prefix(status, "%s", agreement->phase);
    }
    *first_out = first_of(numbers[0]);
    for (size_t i = 0; i < PHASE_NUMBERS; i++) {
        *is_same_out = *is_same_out && numbers[1 + i] == turned(numbers[1 + PHASE_NUMBERS + i]);
    }
    return SHOAL_OK;
}

/* Ranks are in different phases: the error names the first rank that differs from rank 0, and both phases. */
static shoal_status name_difference(const struct agreement *agreement)
{
    char first[PHASE_BYTES] = "";
    char other[PHASE_BYTES] = "";
    struct agree_first differs;
    (void)snprintf(first, sizeof first, "%s", agreement->phase);
    TRY(agree_send(agreement, first, sizeof first, 0));
    (void)snprintf(other, sizeof other, "%s", agreement->phase);
    TRY(agree_find_first(agreement, strcmp(first, other) != 0 ? 0 : AGREE_NO_KEY, &differs));
    if (differs.rank < 0) {
        return error_set(SHOAL_ERR_INTERNAL, "ranks differ, but all of them do \"%s\"", first);
    }
    TRY(agree_send(agreement, other, sizeof other, differs.rank));
    return error_set(SHOAL_ERR_MISMATCH,
                     "ranks made different calls: rank 0 does \"%s\", but rank %d does \"%s\"", first,
                     differs.rank, other);
}

/* Outcomes ------------------------------------------------------------------------------------------------ */

/* What the rank sends whose failure is reported. */
struct reason {
    int32_t status;
    int32_t world_rank;
    char text[ERROR_TEXT_BYTES];
};

static shoal_status find_failure(const struct agreement *agreement, enum agree_report report,
                                 struct reason *reason, struct agree_failure *failure_out)
{
    struct agree_first first = {.rank = -1};
    bool is_same = false;
    int64_t key = report == AGREE_FIRST_RANK ? 0 : reason->status;
    *failure_out = (struct agree_failure){.status = SHOAL_OK, .rank = -1, .world_rank = -1};
    TRY(meet(agreement, reason->status == SHOAL_OK ? AGREE_NO_KEY : key, &first, &is_same));
    if (first.rank < 0) {
        return is_same ? SHOAL_OK : name_difference(agreement);
    }
    failure_out->rank = first.rank;
    if (report == AGREE_STATUS_ONLY) {
        failure_out->status = (shoal_status)first.key;
        return SHOAL_OK;
    }
    TRY(agree_send(agreement, reason, sizeof *reason, first.rank));
    failure_out->status = (shoal_status)reason->status;
    failure_out->world_rank = reason->world_rank;
    (void)snprintf(failure_out->text, sizeof failure_out->text, "%.*s", ERROR_TEXT_BYTES - 1, reason->text);
    return SHOAL_OK;
}

shoal_status agree_outcome(const struct agreement *agreement, enum agree_report report, shoal_status mine,
                           struct agree_failure *failure_out)
{
    char text[ERROR_TEXT_BYTES] = "";
    struct reason reason = {.status = (int32_t)mine, .world_rank = agreement->world_rank};
    if (mine != SHOAL_OK) {
        (void)snprintf(text, sizeof text, "%s", shoal_error_text());
        memcpy(reason.text, text, sizeof text);
    }
    shoal_status status = find_failure(agreement, report, &reason, failure_out);
    return mine == SHOAL_OK ? status : error_set(mine, "%s", text);
}

shoal_status agree(shoal_group *group, const char *phase, shoal_status status)
{
    /* No other call can meet it, and errors name the phase. Ranks in different phases meet: words are not compared. */
    const struct purpose purpose = {.id = PURPOSE_AGREE, .words = phase};
    struct agreement agreement = agreement_on(group);
    struct agree_failure failure;
    agreement.purpose = &purpose;
    agreement.phase = phase;
    if (status != SHOAL_OK && shoal_error_text()[0] == '\0') {
        (void)error_set(status, "%s failed with %s", phase, shoal_status_name(status));
    }
    TRY(agree_outcome(&agreement, AGREE_FIRST_RANK, status, &failure));
    return failure.status == SHOAL_OK ? SHOAL_OK
                                      : error_set(failure.status, "rank %d: %s", failure.rank, failure.text);
}
