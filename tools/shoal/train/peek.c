/* SPDX-License-Identifier: MIT */
/* Finding the newest checkpoint, and what to do if it cannot be loaded. */
#include "train/peek.h"

#include "base/error.h"
#include "base/try.h"
#include "checkpoint/index/directory.h"
#include "shoal/group.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Ranks have read the configuration before they met. A checkpoint that is there only now is of another run. */
static shoal_status check_step(const struct train_job *job, int64_t step)
{
    const struct train_options *options = job->options;
    int64_t before = options->from ? options->from->step : -1;
    return step == before ? SHOAL_OK
                          : error_set(SHOAL_ERR_STATE,
                                      "--resume: the newest checkpoint in %s was of step %" PRId64
                                      " when this run began, and is of step %" PRId64
                                      " now: does another run save there?",
                                      options->checkpoint, before, step);
}

/* Says which directories of later steps are not used: their index, which is written last, is not there. */
static void tell_incomplete(const char *directory, int64_t step)
{
    DIR *names = opendir(directory);
    for (struct dirent *entry; names && (entry = readdir(names));) {
        if (entry->d_name[0] != '.' && directory_step(entry->d_name) > step) {
            fprintf(stderr,
                    "shoal train: warning: %s/%s is not a whole checkpoint, and is not used: it has no "
                    "shoal.index.json\n",
                    directory, entry->d_name);
        }
    }
    if (names) {
        (void)closedir(names);
    }
}

shoal_status train_peek(struct train_job *job, int64_t *step_out)
{
    shoal_items *items = NULL;
    shoal_checkpoint_info info = SHOAL_CHECKPOINT_INFO_INIT;
    shoal_checkpoint_load_options how = SHOAL_CHECKPOINT_LOAD_OPTIONS_INIT;
    how.allows_missing = true;
    how.allows_unexpected = true;
    how.allows_none = true;
    TRY(shoal_items_create(&items));
    shoal_status status = shoal_checkpoint_load(job->group, job->options->checkpoint, items, &how, &info);
    shoal_items_free(items);
    if (status != SHOAL_OK) {
        return train_peek_fail(job, status);
    }
    *step_out = info.step;
    if (job->rank == 0) {
        tell_incomplete(job->options->checkpoint, info.step);
    }
    return train_job_agree(job, check_step(job, info.step));
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
