/* SPDX-License-Identifier: MIT */
/*
 * A checkpoint has the parameters, the state of the optimizer, the step, the first and the last loss, and the
 * configuration of the run (config/config.h).
 */
#include "train/save.h"
#include "config/merge.h"
#include "train/lock.h"
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

/*
 * Checks before the first step that checkpoints can be saved, instead of failing after the last one. A directory that
 * does not exist yet will be created in its nearest existing parent.
 */
static shoal_status check_folder(const char *directory)
{
    char path[PATH_MAX];
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
        cut_last(path);
    }
    return SHOAL_OK;
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

/* The first rank makes the directory, and keeps other runs out of it from here on. */
static shoal_status take_place(struct train_job *job)
{
    TRY(check_folder(job->options->checkpoint));
    if (job->rank == 0) {
        TRY(train_lock_take(job->options->checkpoint, &job->lock));
    }
    return check_fresh(job->options);
}

shoal_status train_save_check(struct train_job *job)
{
    return job->options->checkpoint ? train_same_status(job, take_place(job)) : SHOAL_OK;
}

/* Sizes are those of the model, which --load may have given. */
static shoal_status write_config(struct train_job *job)
{
    struct train_config config = {.n_layers = job->gpt.n_layers,
                                  .width = job->gpt.width,
                                  .n_heads = job->gpt.n_heads,
                                  .context = job->gpt.context,
                                  .vocabulary = job->gpt.vocabulary,
                                  .eps = job->gpt.eps,
                                  .n_ranks = job->n_ranks,
                                  .has_started_ranks = job->options->is_started,
                                  .n_replicas = job->n_replicas,
                                  .n_parts = job->n_parts,
                                  .n_micro = job->n_micro,
                                  .n_rows = train_job_samples(job),
                                  .options = *job->options};
    (void)snprintf(config.run, sizeof config.run, "%s", job->run);
    train_job_products(job, config.products);
    config.options.mode = (int64_t)job->mode;
    config.options.n_layers = job->gpt.n_layers;
    config.options.width = job->gpt.width;
    config.options.n_heads = job->gpt.n_heads;
    config.options.vocabulary = job->options->tokens ? job->data->vocabulary : 0;
    config.options.val_every = job->options->has_own_every ? 0 : job->options->val_every;
    train_config_take_data(job->options, job->data, &config);
    return train_config_write(&config, job->saved.config);
}

shoal_status train_save_prepare(struct train_job *job)
{
    if (!job->options->checkpoint) {
        return SHOAL_OK;
    }
    TRY(write_config(job));
    TRY(shoal_items_create(&job->items));
    TRY(shoal_items_add_module(job->items, "", job->module));
    TRY(shoal_nn_optimizer_add_items(job->optimizer, job->items));
    TRY(shoal_nn_schedule_add_items(&job->schedule, job->items, "schedule."));
    TRY(shoal_items_add_string(job->items, TRAIN_CONFIG_ITEM, job->saved.config, TRAIN_CONFIG_BYTES));
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

/* Says what is another one from here on. */
static void tell_changes(const struct train_job *job)
{
    char text[ERROR_TEXT_BYTES];
    char products[TRAIN_PRODUCTS_BYTES] = "";
    const struct train_options *options = job->options;
    if (job->rank != 0) {
        return;
    }
    train_job_products(job, products);
    if (options->from->products[0] && strcmp(options->from->products, products) != 0) {
        fprintf(stderr,
                "shoal train: the run in %s goes on with other bits than it would have had: products were "
                "computed by %s, and are now by %s\n",
                options->checkpoint, options->from->products, products);
    }
    if (options->changes->options[0]) {
        fprintf(stderr, "shoal train: the run in %s goes on with %s\n", options->checkpoint,
                options->changes->options);
    }
    if (!train_merge_has_same_data(options->from, options, job->data, text, sizeof text)) {
        fprintf(stderr, "shoal train: the run in %s %s\n", options->checkpoint, text);
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
        fprintf(stderr, "shoal train: no checkpoint in %s yet: begins with step 1\n",
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
    tell_changes(job);
    /* The next checkpoint has the options of this run, not those that were loaded. */
    return write_config(job);
}

shoal_status train_save(struct train_job *job)
{
    shoal_checkpoint_options how = SHOAL_CHECKPOINT_OPTIONS_INIT;
    how.step = job->schedule.step;
    how.replaces = true;
    how.keep = N_KEPT;
    how.progress = find_progress(job);
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
