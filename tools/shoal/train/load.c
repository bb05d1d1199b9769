/* SPDX-License-Identifier: MIT */
/*
 * Loads weights from one file, or from several with an index (checkpoint/load/foreign.h). Names are those of Hugging
 * Face, with "transformer." in front or, as in some files, without. The shapes of the tensors give all sizes of the
 * model except the number of heads. That comes from config.json or an option; without either, heads have a size of 64,
 * as GPT-2's have.
 */
#include "train/load.h"

#include "base/error.h"
#include "base/try.h"
#include "checkpoint/load/foreign.h"
#include "shoal/dtype.h"
#include "shoal/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    HEAD_SIZE = 64,
    CHUNK_BYTES = 4096, /* of tensors that are compared */
    MAX_LAYERS = 10000,
    MAX_INDEX_BYTES = 1 << 30
};

static const char *const prefixes[] = {"transformer.", ""};

/* What the files of a directory have. */
struct weights {
    const char *directory;
    struct checkpoint_index index;
    const struct index_tensor **tensors; /* of the index, by name */
};

/* Files ------------------------------------------------------------------------------------------------ */

static int compare_names(const void *left, const void *right)
{
    const struct index_tensor *const *a = left;
    const struct index_tensor *const *b = right;
    return strcmp((*a)->name, (*b)->name);
}

/* Returns NULL if there is none. */
static const struct index_tensor *find_tensor(const struct weights *weights, const char *prefix,
                                              const char *name)
{
    char full[128];
    (void)snprintf(full, sizeof full, "%s%s", prefix, name);
    const struct index_tensor wanted = {.name = full};
    const struct index_tensor *key = &wanted;
    const struct index_tensor **found =
        bsearch(&key, weights->tensors, weights->index.n_tensors, sizeof(weights->tensors[0]), compare_names);
    return found ? *found : NULL;
}

static shoal_status fail_text(const char *path)
{
    return error_set(SHOAL_ERR_SYSTEM, "%s: %s", path, error_errno_text(errno));
}

static shoal_status read_open_text(const char *path, FILE *file, char **text_out, size_t *bytes_out)
{
    struct stat about;
    if (fstat(fileno(file), &about) != 0) {
        return fail_text(path);
    }
    if (!S_ISREG(about.st_mode) || about.st_size > MAX_INDEX_BYTES) {
        return error_set(SHOAL_ERR_INVALID, "%s is not a regular file of at most %d bytes", path,
                         MAX_INDEX_BYTES);
    }
    char *text = malloc((size_t)about.st_size + 1);
    if (!text) {
        return error_set(SHOAL_ERR_NO_MEMORY, "no memory for %s", path);
    }
    *bytes_out = fread(text, 1, (size_t)about.st_size, file);
    if (ferror(file)) {
        free(text);
        return fail_text(path);
    }
    *text_out = text;
    return SHOAL_OK;
}

/* NULL in *text_out: the directory has one file without an index. */
static shoal_status read_text(const char *directory, char **text_out, size_t *bytes_out)
{
    char path[PATH_MAX];
    if (access(directory, F_OK) != 0) {
        return fail_text(directory);
    }
    (void)snprintf(path, sizeof path, "%s/" FOREIGN_INDEX_NAME, directory);
    FILE *file = fopen(path, "rb");
    if (!file && errno != ENOENT && errno != ENOTDIR) {
        return fail_text(path);
    }
    if (file) {
        shoal_status status = read_open_text(path, file, text_out, bytes_out);
        (void)fclose(file);
        return status;
    }
    (void)snprintf(path, sizeof path, "%s/" FOREIGN_FILE_NAME, directory);
    return access(path, F_OK) == 0
               ? SHOAL_OK
               : error_set(SHOAL_ERR_STATE,
                           "%s has no " FOREIGN_FILE_NAME ", and no " FOREIGN_INDEX_NAME " of several files",
                           directory);
}

static void close_weights(struct weights *weights)
{
    free(weights->tensors);
    load_foreign_free(&weights->index);
    *weights = (struct weights){0};
}

static shoal_status open_weights(const char *directory, struct weights *weights)
{
    char *text = NULL;
    size_t n_bytes = 0;
    *weights = (struct weights){.directory = directory};
    TRY(read_text(directory, &text, &n_bytes));
    shoal_status status = load_foreign_read(directory, text, n_bytes, &weights->index);
    free(text);
    TRY(status);
    size_t n_tensors = weights->index.n_tensors;
    weights->tensors = calloc(n_tensors + 1, sizeof(weights->tensors[0]));
    if (!weights->tensors) {
        close_weights(weights);
        return error_set(SHOAL_ERR_NO_MEMORY, "no memory for the names of %zu tensors", n_tensors);
    }
    for (size_t i = 0; i < n_tensors; i++) {
        weights->tensors[i] = &weights->index.tensors[i];
    }
    qsort(weights->tensors, n_tensors, sizeof(weights->tensors[0]), compare_names);
    return SHOAL_OK;
}

/* The model -------------------------------------------------------------------------------------------- */

/* Gives the shape of a tensor of two dimensions. Returns false if there is none. */
static bool find_shape(const struct weights *weights, const char *prefix, const char *name,
                       int64_t *shape_out)
{
    const struct index_tensor *tensor = find_tensor(weights, prefix, name);
    if (!tensor || tensor->n_dims != 2) {
        return false;
    }
    shape_out[0] = tensor->shape[0];
    shape_out[1] = tensor->shape[1];
    return true;
}

static int64_t count_layers(const struct weights *weights, const char *prefix)
{
    char name[64];
    int64_t shape[2];
    int64_t n_layers = 0;
    do {
        (void)snprintf(name, sizeof name, "h.%lld.attn.c_attn.weight", (long long)n_layers);
    } while (find_shape(weights, prefix, name, shape) && n_layers++ < MAX_LAYERS);
    return n_layers;
}

static bool read_shape(struct train_job *job, const struct weights *weights, const char *prefix)
{
    int64_t tokens[2];
    int64_t positions[2];
    if (!find_shape(weights, prefix, "wte.weight", tokens) ||
        !find_shape(weights, prefix, "wpe.weight", positions)) {
        return false;
    }
    job->gpt.vocabulary = tokens[0];
    job->gpt.width = tokens[1];
    job->gpt.context = positions[0];
    job->gpt.n_layers = count_layers(weights, prefix);
    return job->gpt.n_layers > 0;
}

/* Gives what config.json, beside the weights, says; 0 if it says nothing. */
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

/* A tensor in its file, which is open. */
struct place {
    shoal_safetensors *file;
    int64_t number;
};

static shoal_status open_place(const struct weights *weights, const struct index_tensor *tensor,
                               struct place *place)
{
    char path[PATH_MAX];
    const char *name = weights->index.files[tensor->pieces[0].file].name;
    (void)snprintf(path, sizeof path, "%s/%s", weights->directory, name);
    TRY(shoal_safetensors_open(path, &place->file));
    place->number = shoal_safetensors_find(place->file, tensor->name);
    return SHOAL_OK;
}

/* Both have so many bytes. */
static shoal_status compare_places(const struct place places[2], size_t n_bytes, bool *is_same_out)
{
    char bytes[2][CHUNK_BYTES];
    *is_same_out = true;
    for (size_t at = 0; *is_same_out && at < n_bytes; at += CHUNK_BYTES) {
        size_t n = n_bytes - at < CHUNK_BYTES ? n_bytes - at : CHUNK_BYTES;
        for (int i = 0; i < 2; i++) {
            TRY(shoal_safetensors_read_range(places[i].file, places[i].number, at, bytes[i], n));
        }
        *is_same_out = memcmp(bytes[0], bytes[1], n) == 0;
    }
    return SHOAL_OK;
}

static shoal_status compare_tensors(const struct weights *weights, const struct index_tensor *left,
                                    const struct index_tensor *right, bool *is_same_out)
{
    struct place places[2] = {{0}};
    size_t n_bytes = shoal_dtype_bytes(left->dtype) * (size_t)left->shape[0] * (size_t)left->shape[1];
    *is_same_out = left->dtype == right->dtype && left->n_dims == right->n_dims &&
                   left->shape[0] == right->shape[0] && left->shape[1] == right->shape[1];
    if (!*is_same_out || left->n_pieces == 0) {
        return SHOAL_OK;
    }
    shoal_status status = open_place(weights, left, &places[0]);
    if (status == SHOAL_OK) {
        status = open_place(weights, right, &places[1]);
    }
    if (status == SHOAL_OK) {
        status = compare_places(places, n_bytes, is_same_out);
    }
    shoal_safetensors_close(places[0].file);
    shoal_safetensors_close(places[1].file);
    return status;
}

/* The output head is the embedding; a file that has one of its own is of another model. */
static shoal_status check_head(const struct weights *weights, const char *prefix)
{
    bool is_same = true;
    const struct index_tensor *head = find_tensor(weights, "", "lm_head.weight");
    const struct index_tensor *embedding = find_tensor(weights, prefix, "wte.weight");
    if (head) {
        TRY(compare_tensors(weights, embedding, head, &is_same));
    }
    return is_same
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "lm_head.weight in %s is not the embedding %s, as GPT-2's is",
                           weights->directory, embedding->name);
}

static shoal_status read_model(struct train_job *job, const struct weights *weights)
{
    bool has_prefix = read_shape(job, weights, prefixes[0]);
    if (!has_prefix && !read_shape(job, weights, prefixes[1])) {
        return error_set(SHOAL_ERR_INVALID, "%s has no weights of a GPT-2 (transformer.wte.weight, ...)",
                         weights->directory);
    }
    return check_head(weights, prefixes[has_prefix ? 0 : 1]);
}

static shoal_status open_and_read_model(struct train_job *job)
{
    struct weights weights;
    TRY(open_weights(job->options->load, &weights));
    shoal_status status = read_model(job, &weights);
    close_weights(&weights);
    return status;
}

shoal_status train_load_shape(struct train_job *job)
{
    shoal_status status = open_and_read_model(job);
    if (status != SHOAL_OK) {
        return error_prefix(status, "--load");
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
