/* SPDX-License-Identifier: MIT */
/* Windows of the validation data, and forward passes over them. */
#include "train/validate.h"
#include "train/same.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/try.h"
#include "shoal/group.h"
#include "shoal/ops.h"
#include "shoal/scope.h"
#include "shoal_nn/nn.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    MAX_WINDOWS = 128,
    MAX_ROWS = 4 /* windows of a forward pass */
};

struct train_validation {
    struct train_data file;        /* of --val FILE */
    const struct train_data *data; /* that, or the data of the training */
    size_t first;                  /* token from which on windows lie */
    int64_t n_rows;                /* of a forward pass */
    int64_t n_passes;              /* over all ranks */
    double *losses;                /* of each pass */
    shoal_tensor *tokens;
    shoal_tensor *targets;
    char text[384];
};

/* Preparing ---------------------------------------------------------------------------------------------- */

static shoal_status open_data(struct train_job *job, struct train_validation *validation)
{
    const struct train_options *options = job->options;
    if (options->val_fraction > 0.0) {
        validation->data = job->data;
        validation->first = job->data->n_train;
        return SHOAL_OK;
    }
    struct train_options other = *options;
    bool has_words = job->data->token_bytes > 1;
    other.tokens = has_words ? options->val : NULL;
    other.data = has_words ? NULL : options->val;
    other.vocabulary = job->gpt.vocabulary;
    validation->data = &validation->file;
    shoal_status status = train_data_open(&other, &validation->file);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "--val");
}

static shoal_status choose_windows(struct train_job *job, struct train_validation *validation)
{
    int64_t context = job->options->context;
    int64_t n_tokens = (int64_t)(validation->data->n_tokens - validation->first);
    int64_t n_windows = n_tokens > context ? (n_tokens - 1) / context : 0;
    n_windows = n_windows < MAX_WINDOWS ? n_windows : MAX_WINDOWS;
    if (n_windows == 0) {
        return error_set(
            SHOAL_ERR_INVALID,
            "--val: %s has %lld tokens to validate with; one window of --context %lld needs %lld",
            validation->data->name, (long long)n_tokens, (long long)context, (long long)context + 1);
    }
    validation->n_rows = n_windows < MAX_ROWS ? n_windows : MAX_ROWS;
    validation->n_passes = n_windows / validation->n_rows;
    n_windows = validation->n_passes * validation->n_rows;
    bool is_tail = validation->data == job->data;
    (void)snprintf(validation->text, sizeof validation->text, "%lld window%s of %lld tokens, %s %s",
                   (long long)n_windows, n_windows == 1 ? "" : "s", (long long)context,
                   is_tail ? "at the end of" : "of", validation->data->name);
    return SHOAL_OK;
}

static shoal_status make_room(const struct train_job *job, struct train_validation *validation)
{
    const int64_t shape[] = {validation->n_rows, job->options->context};
    validation->losses = calloc((size_t)validation->n_passes, sizeof validation->losses[0]);
    TRY(shoal_scope_begin());
    validation->tokens = shoal_tensor_ref(shoal_empty(shape, 2, SHOAL_I32));
    validation->targets = shoal_tensor_ref(shoal_empty(shape, 2, SHOAL_I32));
    shoal_status status = shoal_scope_error();
    shoal_status ended = shoal_scope_end();
    TRY(status);
    TRY(ended);
    return validation->losses ? SHOAL_OK : error_set(SHOAL_ERR_NO_MEMORY, "no memory for losses");
}

static shoal_status prepare(struct train_job *job)
{
    struct train_validation *validation = calloc(1, sizeof *validation);
    if (!validation) {
        return error_set(SHOAL_ERR_NO_MEMORY, "no memory for the validation");
    }
    validation->file.fd = -1;
    job->validation = validation;
    TRY(open_data(job, validation));
    TRY(choose_windows(job, validation));
    return make_room(job, validation);
}

/* A launcher may have given ranks different files. */
static shoal_status compare_data(struct train_job *job)
{
    const struct train_validation *validation = job->validation;
    double fraction = job->options->val_fraction;
    int64_t hash = (int64_t)(hash_bytes(validation->data->hash, &fraction, sizeof fraction) >> 1);
    int64_t least = hash;
    if (job->n_ranks == 1) {
        return SHOAL_OK;
    }
    TRY(shoal_group_all_reduce(job->group, &hash, &least, 1, SHOAL_I64, SHOAL_MIN));
    return train_same_status(job, hash == least
                                      ? SHOAL_OK
                                      : error_set(SHOAL_ERR_INVALID, "--val: %s is not the same on all ranks",
                                                  validation->data->name));
}

shoal_status train_validate_prepare(struct train_job *job)
{
    if (!job->options->val) {
        return SHOAL_OK;
    }
    TRY(train_same_status(job, prepare(job)));
    return compare_data(job);
}

void train_validate_free(struct train_job *job)
{
    struct train_validation *validation = job->validation;
    if (!validation) {
        return;
    }
    train_data_close(&validation->file);
    free(validation->losses);
    shoal_tensor_unref(validation->tokens);
    shoal_tensor_unref(validation->targets);
    free(validation);
    job->validation = NULL;
}

const char *train_validate_text(const struct train_job *job)
{
    return job->validation ? job->validation->text : "";
}

bool train_validate_is_due(const struct train_job *job, int64_t step)
{
    return job->validation && (step == job->options->n_steps || step % job->options->val_every == 0);
}

/* The loss ----------------------------------------------------------------------------------------------- */

/* Windows are spread evenly over the data. */
static size_t find_window(const struct train_job *job, int64_t window)
{
    const struct train_validation *validation = job->validation;
    int64_t n_windows = validation->n_rows * validation->n_passes;
    int64_t n_places = (int64_t)(validation->data->n_tokens - validation->first) - job->options->context;
    return validation->first + (size_t)(n_windows > 1 ? window * (n_places - 1) / (n_windows - 1) : 0);
}

static shoal_status fill(struct train_job *job, int64_t pass)
{
    const struct train_validation *validation = job->validation;
    int64_t context = job->options->context;
    int32_t *tokens = shoal_mutable_data(validation->tokens);
    int32_t *targets = shoal_mutable_data(validation->targets);
    if (!tokens || !targets) {
        return error_set(SHOAL_ERR_STATE, "the windows cannot be written: %s", shoal_error_text());
    }
    for (int64_t row = 0; row < validation->n_rows; row++) {
        size_t at = find_window(job, pass * validation->n_rows + row);
        TRY(train_data_row(validation->data, at, context, tokens + row * context, targets + row * context));
    }
    return SHOAL_OK;
}

static shoal_status compute(struct train_job *job, double *loss_out)
{
    const struct train_validation *validation = job->validation;
    shoal_tensor *inputs[] = {validation->tokens, NULL};
    shoal_tensor *logits = NULL;
    TRY(shoal_scope_set_grad(false));
    TRY(shoal_module_call(job->module, inputs, 2, &logits, 1));
    shoal_tensor *loss = shoal_nn_cross_entropy(logits, validation->targets);
    const float *value = loss ? shoal_data(loss) : NULL;
    if (!value) {
        return error_set(SHOAL_ERR_STATE, "the validation loss has no value: %s", shoal_error_text());
    }
    *loss_out = (double)*value;
    return SHOAL_OK;
}

static shoal_status run_pass(struct train_job *job, int64_t pass, double *loss_out)
{
    TRY(fill(job, pass));
    TRY(shoal_scope_begin());
    shoal_status status = compute(job, loss_out);
    shoal_status ended = shoal_scope_end();
    return status == SHOAL_OK ? ended : status;
}

/* Ranks of a sharded model make each forward pass together: one that has no windows left repeats the first ones. */
shoal_status train_validate(struct train_job *job, double *loss_out)
{
    struct train_validation *validation = job->validation;
    int64_t n_ranks = train_job_is_local(job) ? 1 : job->n_ranks;
    int64_t rank = n_ranks > 1 ? job->rank : 0;
    double sum = 0.0;
    for (int64_t i = 0; i < validation->n_passes; i++) {
        validation->losses[i] = 0.0;
    }
    for (int64_t first = 0; first < validation->n_passes; first += n_ranks) {
        int64_t pass = first + rank;
        double loss = 0.0;
        TRY(run_pass(job, pass < validation->n_passes ? pass : 0, &loss));
        if (pass < validation->n_passes) {
            validation->losses[pass] = loss;
        }
    }
    if (n_ranks > 1) {
        TRY(shoal_group_all_reduce(job->group, validation->losses, validation->losses,
                                   (size_t)validation->n_passes, SHOAL_F64, SHOAL_SUM));
    }
    for (int64_t i = 0; i < validation->n_passes; i++) {
        sum += validation->losses[i];
    }
    *loss_out = sum / (double)validation->n_passes;
    return SHOAL_OK;
}
