/* SPDX-License-Identifier: MIT */
/* Reading the numbers of a checkpoint, without its tensors, and comparing them with the options. */
#include "train/peek.h"

#include "base/error.h"
#include "base/try.h"
#include "shoal/group.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* What must be the same for a run to go on: an item of checkpoints, and the option that sets it. */
struct number {
    const char *item;
    const char *option;
    int64_t present;
    int64_t saved;
};

enum {
    N_NUMBERS = 6
};

static void list_numbers(const struct train_job *job, struct number numbers[N_NUMBERS])
{
    const struct number all[N_NUMBERS] = {
        {"train.layers", "--layers", job->gpt.n_layers, 0},
        {"train.width", "--width", job->gpt.width, 0},
        {"train.heads", "--heads", job->gpt.n_heads, 0},
        {"train.context", "--context", job->gpt.context, 0},
        {"train.vocabulary", "--vocabulary", job->gpt.vocabulary, 0},
        {"train.seed", "--seed", job->options->seed, 0},
    };
    memcpy(numbers, all, sizeof all);
    for (size_t i = 0; i < N_NUMBERS; i++) {
        numbers[i].saved = numbers[i].present;
    }
}

static shoal_status load_numbers(const struct train_job *job, shoal_items *items,
                                 struct number numbers[N_NUMBERS], shoal_checkpoint_info *info_out)
{
    shoal_checkpoint_load_options how = SHOAL_CHECKPOINT_LOAD_OPTIONS_INIT;
    how.allows_missing = true;
    how.allows_unexpected = true;
    how.allows_none = true;
    for (size_t i = 0; i < N_NUMBERS; i++) {
        TRY(shoal_items_add_integer(items, numbers[i].item, &numbers[i].saved));
    }
    return shoal_checkpoint_load(job->group, job->options->checkpoint, items, &how, info_out);
}

/* A step has batch x passes samples: another batch may be all that is needed. */
static shoal_status compare_samples(const struct train_job *job, const shoal_checkpoint_progress *progress)
{
    char way[96];
    int64_t present = train_job_samples(job);
    int64_t saved = progress->n_ranks * progress->batch * progress->n_accumulate;
    int64_t n_passes = present / job->options->batch;
    if (saved == 0 || saved == present) {
        return SHOAL_OK;
    }
    if (saved % n_passes == 0) {
        (void)snprintf(way, sizeof way, "use --batch %" PRId64, saved / n_passes);
    } else {
        (void)snprintf(way, sizeof way, "--ranks x --batch x --accumulate must be %" PRId64, saved);
    }
    return error_set(SHOAL_ERR_INVALID,
                     "--resume: the run in %s has %" PRId64 " samples in a step, not %" PRId64 ": %s",
                     job->options->checkpoint, saved, present, way);
}

static shoal_status compare(const struct train_job *job, const struct number numbers[N_NUMBERS],
                            const shoal_checkpoint_info *info)
{
    const struct train_options *options = job->options;
    for (size_t i = 0; i < N_NUMBERS; i++) {
        if (numbers[i].saved != numbers[i].present) {
            return error_set(SHOAL_ERR_INVALID, "--resume: the run in %s has %s %" PRId64 ", not %" PRId64,
                             options->checkpoint, numbers[i].option, numbers[i].saved, numbers[i].present);
        }
    }
    if (info->step > options->n_steps) {
        return error_set(SHOAL_ERR_INVALID,
                         "--resume: the run in %s has done %" PRId64 " steps, more than --steps %" PRId64,
                         options->checkpoint, info->step, options->n_steps);
    }
    return compare_samples(job, &info->progress);
}

shoal_status train_peek(struct train_job *job, int64_t *step_out)
{
    struct number numbers[N_NUMBERS];
    shoal_items *items = NULL;
    shoal_checkpoint_info info = SHOAL_CHECKPOINT_INFO_INIT;
    list_numbers(job, numbers);
    TRY(shoal_items_create(&items));
    shoal_status status = load_numbers(job, items, numbers, &info);
    shoal_items_free(items);
    if (status != SHOAL_OK) {
        return train_peek_fail(job, status);
    }
    *step_out = info.step;
    return info.step < 0 ? SHOAL_OK : train_job_agree(job, compare(job, numbers, &info));
}

/*
 * Writes advice on which checkpoints to remove, "" if that would not help. Removing checkpoints helps only if files of
 * the newest ones are damaged and an earlier one can be loaded. So a load that skips damaged checkpoints is tried; what
 * it loads is not used. Collective.
 */
static void find_way_out(const struct train_job *job, char *text, size_t bytes)
{
    const char *directory = job->options->checkpoint;
    shoal_checkpoint_load_options how = SHOAL_CHECKPOINT_LOAD_OPTIONS_INIT;
    shoal_checkpoint_info info = SHOAL_CHECKPOINT_INFO_INIT;
    int64_t newest = 0;
    size_t count = 0;
    text[0] = '\0';
    how.skips_damaged = true;
    if (shoal_checkpoint_load(job->group, directory, job->items, &how, &info) != SHOAL_OK ||
        info.n_damaged == 0 || shoal_checkpoint_list(directory, &newest, 1, &count) != SHOAL_OK) {
        return;
    }
    if (info.n_damaged == 1) {
        (void)snprintf(text, bytes, "; remove step-%09" PRId64 " to go on from step %" PRId64, newest,
                       info.step);
    } else {
        (void)snprintf(text, bytes, "; remove the %zu newest checkpoints to go on from step %" PRId64,
                       info.n_damaged, info.step);
    }
}

/* Ranks may have failed with different errors: what the others wait for must not be tried by one of them alone. */
static bool may_be_damaged(const struct train_job *job, shoal_status status)
{
    int64_t is_file = status == SHOAL_ERR_INVALID || status == SHOAL_ERR_SYSTEM;
    return shoal_group_all_reduce(job->group, &is_file, &is_file, 1, SHOAL_I64, SHOAL_MIN) == SHOAL_OK &&
           is_file != 0;
}

shoal_status train_peek_fail(struct train_job *job, shoal_status status)
{
    static const char call[] = "checkpoint_load: ";
    char text[ERROR_TEXT_BYTES];
    char way[96] = "";
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    if (may_be_damaged(job, status)) {
        find_way_out(job, way, sizeof way);
    }
    const char *reason = strncmp(text, call, strlen(call)) == 0 ? text + strlen(call) : text;
    int room = (int)(ERROR_TEXT_BYTES - sizeof way - 16);
    return train_job_agree(job, error_set(status, "--resume: %.*s%s", room, reason, way));
}
