/* SPDX-License-Identifier: MIT */
/*
 * A checkpoint has the parameters, the state of the optimizer, the step, and what must stay the same for the run to
 * continue as if it had never stopped (train/peek.c): the seed and the sizes of the model. The data, the learning rate,
 * the number of steps and similar settings may change; a change is reported.
 */
#include "train/save.h"
#include "train/peek.h"
#include "train/same.h"

#include "base/error.h"
#include "base/try.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    N_KEPT = 2 /* checkpoints of a directory */
};

/* Cuts a path to the folder that it is in. */
static void cut_last(char *path)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') {
        length--;
    }
    while (length > 0 && path[length - 1] != '/') {
        length--;
    }
    (void)snprintf(path + length, 2, "%s", length == 0 ? "." : "");
}

/* Only making a folder shows whether one can be made: it is, and is removed again. */
static shoal_status try_folder(const char *directory, const char *missing)
{
    if (mkdir(missing, 0777) == 0) {
        (void)rmdir(missing);
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_SYSTEM, "--checkpoint: %s cannot be created: %s: %s", directory, missing,
                     error_errno_text(errno));
}

/*
 * Checks before the first step that checkpoints can be saved, instead of failing after the last one. A directory that
 * does not exist yet will be created in its nearest existing parent; the first rank tries that.
 */
static shoal_status check_folder(const char *directory, bool is_first)
{
    char path[PATH_MAX];
    char missing[PATH_MAX] = "";
    struct stat about;
    if (snprintf(path, sizeof path, "%s", directory) >= (int)sizeof path) {
        return error_set(SHOAL_ERR_INVALID, "--checkpoint: a path of %zu bytes is too long",
                         strlen(directory));
    }
    if (stat(path, &about) == 0 && !S_ISDIR(about.st_mode)) {
        return error_set(SHOAL_ERR_INVALID, "--checkpoint: %s is not a directory", directory);
    }
    while (access(path, W_OK | X_OK) != 0) {
        if (errno != ENOENT || strcmp(path, ".") == 0 || strcmp(path, "/") == 0) {
            const char *reason = error_errno_text(errno);
            return strcmp(path, directory) == 0
                       ? error_set(SHOAL_ERR_SYSTEM, "--checkpoint: %s: %s", directory, reason)
                       : error_set(SHOAL_ERR_SYSTEM, "--checkpoint: %s cannot be created in %s: %s",
                                   directory, path, reason);
        }
        memcpy(missing, path, sizeof missing);
        cut_last(path);
    }
    return is_first && missing[0] ? try_folder(directory, missing) : SHOAL_OK;
}

/*
 * Refuses a directory that has checkpoints of another run when a new run begins. The two runs would mix: checkpoints of
 * later steps would be kept, --resume would load them, and those of the new run would be removed.
 */
static shoal_status check_fresh(const struct train_options *options)
{
    int64_t newest = -1;
    size_t count = 0;
    if (!options->resumes) {
        TRY(shoal_checkpoint_list(options->checkpoint, &newest, 1, &count));
    }
    return count == 0
               ? SHOAL_OK
               : error_set(SHOAL_ERR_STATE,
                           "--checkpoint: %s has a run up to step %lld: --resume goes on with it, or name "
                           "another directory",
                           options->checkpoint, (long long)newest);
}

static shoal_status check_place(const struct train_options *options, bool is_first)
{
    TRY(check_folder(options->checkpoint, is_first));
    return check_fresh(options);
}

shoal_status train_save_check(struct train_job *job)
{
    return job->options->checkpoint ? train_same_status(job, check_place(job->options, job->rank == 0))
                                    : SHOAL_OK;
}

/* What may be another after a --resume. */
struct setting {
    const char *name; /* of the option, and of the item behind "--" */
    int64_t *whole;   /* one of both */
    double *real;
};

enum {
    N_SETTINGS = 6
};

static void list_settings(struct train_saved *saved, struct setting settings[N_SETTINGS])
{
    const struct setting all[N_SETTINGS] = {
        {"--steps", &saved->n_steps, NULL},   {"--lr", NULL, &saved->lr},
        {"--warmup", &saved->n_warmup, NULL}, {"--clip", NULL, &saved->clip},
        {"--dropout", NULL, &saved->dropout}, {"--dtype", &saved->dtype, NULL},
    };
    memcpy(settings, all, sizeof all);
}

static struct train_saved find_present(const struct train_job *job)
{
    const struct train_options *options = job->options;
    return (struct train_saved){.seed = options->seed,
                                .n_layers = job->gpt.n_layers,
                                .width = job->gpt.width,
                                .n_heads = job->gpt.n_heads,
                                .context = job->gpt.context,
                                .vocabulary = job->gpt.vocabulary,
                                .data_hash = (int64_t)(job->data->hash >> 1),
                                .lr = options->lr,
                                .clip = options->clip,
                                .dropout = options->dropout,
                                .n_steps = options->n_steps,
                                .n_warmup = options->n_warmup,
                                .dtype = options->dtype};
}

static shoal_status add_settings(struct train_job *job)
{
    struct setting settings[N_SETTINGS];
    char name[32];
    const struct {
        const char *name;
        int64_t *value;
    } same[] = {{"train.seed", &job->saved.seed},       {"train.layers", &job->saved.n_layers},
                {"train.width", &job->saved.width},     {"train.heads", &job->saved.n_heads},
                {"train.context", &job->saved.context}, {"train.vocabulary", &job->saved.vocabulary},
                {"train.data", &job->saved.data_hash}};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        TRY(shoal_items_add_integer(job->items, same[i].name, same[i].value));
    }
    list_settings(&job->saved, settings);
    for (size_t i = 0; i < N_SETTINGS; i++) {
        (void)snprintf(name, sizeof name, "train.%s", settings[i].name + 2);
        TRY(settings[i].real ? shoal_items_add_real(job->items, name, settings[i].real)
                             : shoal_items_add_integer(job->items, name, settings[i].whole));
    }
    return SHOAL_OK;
}

/* Says what is another one from here on, and takes it for the next checkpoint. */
static void change_settings(struct train_job *job)
{
    struct train_saved present = find_present(job);
    struct setting before[N_SETTINGS];
    struct setting now[N_SETTINGS];
    list_settings(&job->saved, before);
    list_settings(&present, now);
    for (size_t i = 0; i < N_SETTINGS; i++) {
        double old_value = before[i].real ? *before[i].real : (double)*before[i].whole;
        double value = now[i].real ? *now[i].real : (double)*now[i].whole;
        if (old_value != value && job->rank == 0) {
            fprintf(stderr, "shoal train: the run in %s had another %s so far\n", job->options->checkpoint,
                    now[i].name);
        }
    }
    present.loss_first = job->saved.loss_first;
    present.loss_last = job->saved.loss_last;
    job->saved = present;
}

shoal_status train_save_prepare(struct train_job *job)
{
    if (!job->options->checkpoint) {
        return SHOAL_OK;
    }
    job->saved = find_present(job);
    TRY(shoal_items_create(&job->items));
    TRY(shoal_items_add_module(job->items, "", job->module));
    TRY(shoal_nn_optimizer_add_items(job->optimizer, job->items));
    TRY(shoal_nn_schedule_add_items(&job->schedule, job->items, "schedule."));
    TRY(add_settings(job));
    TRY(shoal_items_add_real(job->items, "train.loss_first", &job->saved.loss_first));
    return shoal_items_add_real(job->items, "train.loss_last", &job->saved.loss_last);
}

static shoal_checkpoint_progress find_progress(const struct train_job *job)
{
    return (shoal_checkpoint_progress){.n_ranks = job->n_replicas * job->n_parts,
                                       .batch = job->options->batch,
                                       .n_accumulate = job->n_micro,
                                       .sample = job->schedule.step * train_job_samples(job)};
}

static void compare_data(const struct train_job *job)
{
    if (job->saved.data_hash != (int64_t)(job->data->hash >> 1) && job->rank == 0) {
        fprintf(stderr, "shoal train: the run in %s began with other data\n", job->options->checkpoint);
    }
}

shoal_status train_resume(struct train_job *job)
{
    int64_t step = -1;
    shoal_checkpoint_load_options how = SHOAL_CHECKPOINT_LOAD_OPTIONS_INIT;
    if (!job->options->resumes) {
        return SHOAL_OK;
    }
    TRY(train_peek(job, &step));
    if (step < 0 && job->rank == 0) {
        fprintf(stderr, "shoal train: no checkpoint in %s yet: begins with step 0\n",
                job->options->checkpoint);
    }
    if (step < 0) {
        return SHOAL_OK;
    }
    how.progress = find_progress(job);
    how.has_step = true;
    how.step = step;
    shoal_status status = shoal_checkpoint_load(job->group, job->options->checkpoint, job->items, &how, NULL);
    if (status != SHOAL_OK) {
        return train_peek_fail(job, status);
    }
    compare_data(job);
    change_settings(job);
    return SHOAL_OK;
}

shoal_status train_save(struct train_job *job)
{
    shoal_checkpoint_options how = SHOAL_CHECKPOINT_OPTIONS_INIT;
    how.step = job->schedule.step;
    how.replaces = true;
    how.keep = N_KEPT;
    how.progress = find_progress(job);
    job->saved.data_hash = (int64_t)(job->data->hash >> 1);
    TRY(train_save_finish(job));
    shoal_status status =
        shoal_checkpoint_save_start(job->group, job->options->checkpoint, job->items, &how, &job->saving);
    return status == SHOAL_OK ? SHOAL_OK : train_job_agree(job, error_prefix(status, "--checkpoint"));
}

shoal_status train_save_finish(struct train_job *job)
{
    shoal_checkpoint_saving *saving = job->saving;
    job->saving = NULL;
    shoal_status status = shoal_checkpoint_save_wait(saving);
    return status == SHOAL_OK ? SHOAL_OK : train_job_agree(job, error_prefix(status, "--checkpoint"));
}
