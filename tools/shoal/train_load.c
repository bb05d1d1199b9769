/* SPDX-License-Identifier: MIT */
/*
 * Weights under the names of Hugging Face, with "transformer." in front or, as some files have it, without. The shapes of
 * the tensors tell what the model looks like, all but the number of heads: that is in config.json, or given, or else heads
 * have a size of 64, as GPT-2's have.
 */
#include "train_load.h"

#include "base/error.h"
#include "base/try.h"
#include "shoal/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    HEAD_SIZE = 64,
    CHUNK_BYTES = 4096, /* of tensors that are compared */
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
    return job->gpt.n_layers > 0;
}

/* What config.json says, beside the weights; 0: nothing. */
static shoal_status read_config(const char *directory, int64_t *n_heads_out)
{
    char path[PATH_MAX];
    json_error_t error;
    (void)snprintf(path, sizeof path, "%s/config.json", directory);
    *n_heads_out = 0;
    if (access(path, F_OK) != 0) {
        return SHOAL_OK;
    }
    json_t *config = json_load_file(path, 0, &error);
    if (!config) {
        return error_set(SHOAL_ERR_INVALID, "--load: %s:%d: %s", path, error.line, error.text);
    }
    *n_heads_out = json_integer_value(json_object_get(config, "n_head"));
    json_decref(config);
    return SHOAL_OK;
}

static shoal_status find_heads(struct train_job *job)
{
    const struct train_options *options = job->options;
    int64_t told = 0;
    TRY(read_config(options->load, &told));
    if (told != 0 && options->has_heads && told != options->n_heads) {
        return error_set(SHOAL_ERR_INVALID, "--heads is %" PRId64 ", but the model in %s has %" PRId64,
                         options->n_heads, options->load, told);
    }
    if (told == 0 && !options->has_heads && job->gpt.width % HEAD_SIZE == 0) {
        told = job->gpt.width / HEAD_SIZE;
    }
    job->gpt.n_heads = told != 0 ? told : options->n_heads;
    if (job->gpt.n_heads < 1 || job->gpt.width % job->gpt.n_heads != 0) {
        return error_set(SHOAL_ERR_INVALID,
                         "%" PRId64 " heads do not divide the width %" PRId64 " of the model in %s",
                         job->gpt.n_heads, job->gpt.width, options->load);
    }
    return SHOAL_OK;
}

static shoal_status compare_tensors(const shoal_safetensors *file, int64_t left, int64_t right,
                                    bool *is_same_out)
{
    char bytes[2][CHUNK_BYTES];
    shoal_safetensors_info infos[2] = {SHOAL_SAFETENSORS_INFO_INIT, SHOAL_SAFETENSORS_INFO_INIT};
    TRY(shoal_safetensors_get(file, left, &infos[0]));
    TRY(shoal_safetensors_get(file, right, &infos[1]));
    size_t n_bytes = infos[0].bytes;
    *is_same_out = n_bytes == infos[1].bytes && infos[0].dtype == infos[1].dtype;
    for (size_t at = 0; *is_same_out && at < n_bytes; at += CHUNK_BYTES) {
        size_t n = n_bytes - at < CHUNK_BYTES ? n_bytes - at : CHUNK_BYTES;
        TRY(shoal_safetensors_read_range(file, left, at, bytes[0], n));
        TRY(shoal_safetensors_read_range(file, right, at, bytes[1], n));
        *is_same_out = memcmp(bytes[0], bytes[1], n) == 0;
    }
    return SHOAL_OK;
}

/* The output head is the embedding; a file that has one of its own is of another model. */
static shoal_status check_head(const char *directory, const shoal_safetensors *file, const char *prefix)
{
    char name[64];
    bool is_same = true;
    (void)snprintf(name, sizeof name, "%swte.weight", prefix);
    int64_t head = shoal_safetensors_find(file, "lm_head.weight");
    if (head >= 0) {
        TRY(compare_tensors(file, head, shoal_safetensors_find(file, name), &is_same));
    }
    return is_same ? SHOAL_OK
                   : error_set(SHOAL_ERR_INVALID,
                               "--load: lm_head.weight in %s is not the embedding %s, as GPT-2's is",
                               directory, name);
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
    return access(directory, F_OK) == 0
               ? error_set(SHOAL_ERR_STATE, "--load: %s has no model.safetensors", directory)
               : error_set(SHOAL_ERR_SYSTEM, "--load: %s: %s", directory, error_errno_text(errno));
}

shoal_status train_load_shape(struct train_job *job)
{
    shoal_safetensors *file = NULL;
    TRY(open_first(job->options->load, &file));
    bool has_prefix = read_shape(job, file, prefixes[0]);
    bool is_found = has_prefix || read_shape(job, file, prefixes[1]);
    shoal_status status =
        is_found ? check_head(job->options->load, file, prefixes[has_prefix ? 0 : 1]) : SHOAL_OK;
    shoal_safetensors_close(file);
    TRY(status);
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
    return find_heads(job);
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
