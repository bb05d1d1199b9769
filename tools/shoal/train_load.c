/* SPDX-License-Identifier: MIT */
/*
 * Weights under the names of Hugging Face, with "transformer." in front or, as some files have it, without. The shapes of
 * the tensors tell what the model looks like, all but the number of heads: GPT-2's have a size of 64.
 */
#include "train_load.h"

#include "base/error.h"
#include "base/try.h"
#include "shoal/safetensors.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    HEAD_SIZE = 64,
    MAX_LAYERS = 10000
};

static const char *const prefixes[] = {"transformer.", ""};

/* Shape of a tensor of two dimensions; false: there is none. */
static bool find_shape(const shoal_safetensors *file, const char *prefix, const char *name,
                       int64_t *shape_out)
{
    char full[128];
    shoal_safetensors_info info = SHOAL_SAFETENSORS_INFO_INIT;
    (void)snprintf(full, sizeof full, "%s%s", prefix, name);
    int64_t index = shoal_safetensors_find(file, full);
    if (index < 0 || shoal_safetensors_get(file, index, &info) != SHOAL_OK || info.n_dims != 2) {
        return false;
    }
    shape_out[0] = info.shape[0];
    shape_out[1] = info.shape[1];
    return true;
}

static int64_t count_layers(const shoal_safetensors *file, const char *prefix)
{
    char name[64];
    int64_t shape[2];
    int64_t n_layers = 0;
    do {
        (void)snprintf(name, sizeof name, "h.%lld.attn.c_attn.weight", (long long)n_layers);
    } while (find_shape(file, prefix, name, shape) && n_layers++ < MAX_LAYERS);
    return n_layers;
}

static bool read_shape(struct train_job *job, const shoal_safetensors *file, const char *prefix)
{
    int64_t tokens[2];
    int64_t positions[2];
    if (!find_shape(file, prefix, "wte.weight", tokens) ||
        !find_shape(file, prefix, "wpe.weight", positions)) {
        return false;
    }
    job->gpt.vocabulary = tokens[0];
    job->gpt.width = tokens[1];
    job->gpt.context = positions[0];
    job->gpt.n_layers = count_layers(file, prefix);
    job->gpt.n_heads = tokens[1] % HEAD_SIZE == 0 ? tokens[1] / HEAD_SIZE : job->options->n_heads;
    return job->gpt.n_layers > 0;
}

/* Files of other tools are one, or several of which the first has the embeddings. */
static shoal_status open_first(const char *directory, shoal_safetensors **file_out)
{
    static const char *const names[] = {"model.safetensors", "model-00001-of-00002.safetensors"};
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        if (access(path, R_OK) == 0) {
            return shoal_safetensors_open(path, file_out);
        }
    }
    return error_set(SHOAL_ERR_STATE, "--load: %s has no model.safetensors", directory);
}

shoal_status train_load_shape(struct train_job *job)
{
    shoal_safetensors *file = NULL;
    TRY(open_first(job->options->load, &file));
    bool is_found = read_shape(job, file, prefixes[0]) || read_shape(job, file, prefixes[1]);
    shoal_safetensors_close(file);
    if (!is_found) {
        return error_set(SHOAL_ERR_INVALID,
                         "--load: %s has no weights of a GPT-2 (transformer.wte.weight, ...)",
                         job->options->load);
    }
    if (job->data->vocabulary > job->gpt.vocabulary) {
        return error_set(SHOAL_ERR_INVALID, "--load: the model has %lld tokens, the data %lld",
                         (long long)job->gpt.vocabulary, (long long)job->data->vocabulary);
    }
    if (job->options->context > job->gpt.context) {
        return error_set(SHOAL_ERR_INVALID,
                         "--context %lld is more than the %lld positions of the model in %s",
                         (long long)job->options->context, (long long)job->gpt.context, job->options->load);
    }
    if (job->gpt.width % job->gpt.n_heads != 0) {
        return error_set(SHOAL_ERR_INVALID, "--heads %lld does not divide the width %lld of the model in %s",
                         (long long)job->gpt.n_heads, (long long)job->gpt.width, job->options->load);
    }
    return SHOAL_OK;
}

static shoal_status load_items(struct train_job *job, shoal_items *items)
{
    shoal_checkpoint_load_options how = SHOAL_CHECKPOINT_LOAD_OPTIONS_INIT;
    how.section = SHOAL_SECTION_MODEL;
    how.allows_unexpected = true; /* masks, and the output head, which is the embedding */
    how.casts = true;
    TRY(shoal_nn_gpt_add_items(job->module, items));
    return shoal_checkpoint_load(job->group, job->options->load, items, &how, NULL);
}

shoal_status train_load(struct train_job *job)
{
    shoal_items *items = NULL;
    TRY(shoal_items_create(&items));
    shoal_status status = load_items(job, items);
    shoal_items_free(items);
    return status == SHOAL_OK ? SHOAL_OK : train_job_agree(job, error_prefix(status, "--load"));
}
