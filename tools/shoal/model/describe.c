/* SPDX-License-Identifier: MIT */
/* Names are those of Hugging Face, with "transformer." in front or, as in some files, without. */
#include "model/describe.h"
#include "model/config_json.h"
#include "model/tensors.h"
#include "config/config.h"

#include "base/error.h"
#include "base/text.h"
#include "base/try.h"

#include <inttypes.h>
#include <stdio.h>

enum {
    MAX_LAYERS = 10000,
    LIST_BYTES = 256
};

static const char *const prefixes[] = {"transformer.", ""};

/* Gives the shape of a tensor of two dimensions. Returns false if there is none. */
static bool find_shape(const struct model_tensors *tensors, const char *prefix, const char *name,
                       int64_t *shape_out)
{
    const struct index_tensor *tensor = model_tensors_find(tensors, prefix, name);
    if (!tensor || tensor->n_dims != 2) {
        return false;
    }
    shape_out[0] = tensor->shape[0];
    shape_out[1] = tensor->shape[1];
    return true;
}

static int64_t count_layers(const struct model_tensors *tensors, const char *prefix)
{
    char name[64];
    int64_t shape[2];
    int64_t n_layers = 0;
    do {
        (void)snprintf(name, sizeof name, "h.%" PRId64 ".attn.c_attn.weight", n_layers);
    } while (find_shape(tensors, prefix, name, shape) && n_layers++ < MAX_LAYERS);
    return n_layers;
}

static bool read_shape(const struct model_tensors *tensors, const char *prefix, shoal_nn_gpt_options *gpt)
{
    int64_t tokens[2];
    int64_t positions[2];
    if (!find_shape(tensors, prefix, "wte.weight", tokens) ||
        !find_shape(tensors, prefix, "wpe.weight", positions)) {
        return false;
    }
    gpt->vocabulary = tokens[0];
    gpt->width = tokens[1];
    gpt->context = positions[0];
    gpt->n_layers = count_layers(tensors, prefix);
    return gpt->n_layers > 0;
}

/* The output head is the embedding; a file that has one of its own is of another model. */
static shoal_status check_head(const struct model_tensors *tensors, const char *prefix)
{
    bool is_same = true;
    const struct index_tensor *head = model_tensors_find(tensors, "", "lm_head.weight");
    const struct index_tensor *embedding = model_tensors_find(tensors, prefix, "wte.weight");
    if (head && tensors->is_foreign) {
        TRY(model_tensors_compare(tensors, embedding, head, &is_same));
    }
    is_same = is_same && (!head || tensors->is_foreign);
    return is_same ? SHOAL_OK
                   : error_set(SHOAL_ERR_UNSUPPORTED,
                               "lm_head.weight in %s is not the embedding %s, as GPT-2's is", tensors->path,
                               embedding->name);
}

/* What config.json says of the sizes must be what the tensors have. */
static shoal_status compare_config(const struct model_tensors *tensors, const struct model_config *config,
                                   const shoal_nn_gpt_options *gpt)
{
    const struct {
        const char *key;
        int64_t told;
        int64_t found;
    } sizes[] = {{"n_layer", config->n_layers, gpt->n_layers},
                 {"n_embd", config->width, gpt->width},
                 {"n_positions", config->context, gpt->context},
                 {"vocab_size", config->vocabulary, gpt->vocabulary}};
    char string[LIST_BYTES];
    struct text list = text_begin(string, sizeof string);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (sizes[i].told != 0 && sizes[i].told != sizes[i].found) {
            text_add(&list, "%s%s %" PRId64 " (the weights have %" PRId64 ")", list.length > 0 ? ", " : "",
                     sizes[i].key, sizes[i].told, sizes[i].found);
        }
    }
    return list.length == 0
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "%s/" MODEL_CONFIG_NAME " says %s", tensors->path, string);
}

static shoal_status describe_foreign(const struct model_tensors *tensors, shoal_nn_gpt_options *gpt)
{
    struct model_config config;
    TRY(model_config_read(tensors->path, &config));
    TRY(compare_config(tensors, &config, gpt));
    if (config.is_untied && !model_tensors_find(tensors, "", "lm_head.weight")) {
        return error_set(SHOAL_ERR_INVALID,
                         "%s/" MODEL_CONFIG_NAME
                         " says tie_word_embeddings false, and there is no lm_head.weight",
                         tensors->path);
    }
    gpt->n_heads = config.n_heads;
    gpt->eps = config.eps > 0.0 ? config.eps : gpt->eps;
    return SHOAL_OK;
}

/* A checkpoint of shoal train knows what the tensors do not say. */
static shoal_status describe_run(const struct model_tensors *tensors, struct model_description *description)
{
    struct train_config config;
    bool is_found = false;
    TRY(train_config_read(tensors->path, &config, &is_found));
    description->is_bytes = config.data_kind != TRAIN_DATA_TOKENS;
    description->gpt.n_heads = config.n_heads;
    description->gpt.eps = config.eps;
    description->gpt.dropout = config.options.dropout;
    return SHOAL_OK;
}

static shoal_status describe(const struct model_tensors *tensors, struct model_description *description)
{
    shoal_nn_gpt_options *gpt = &description->gpt;
    bool has_prefix = read_shape(tensors, prefixes[0], gpt);
    if (!has_prefix && !read_shape(tensors, prefixes[1], gpt)) {
        return error_set(SHOAL_ERR_INVALID, "%s has no weights of a GPT-2 (transformer.wte.weight, ...)",
                         tensors->path);
    }
    TRY(check_head(tensors, prefixes[has_prefix ? 0 : 1]));
    description->is_bytes = gpt->vocabulary == MODEL_BYTE_VOCABULARY;
    if (tensors->is_foreign) {
        return describe_foreign(tensors, gpt);
    }
    return model_tensors_has_string(tensors, TRAIN_CONFIG_ITEM) ? describe_run(tensors, description)
                                                                : SHOAL_OK;
}

shoal_status model_describe(const char *directory, struct model_description *description_out)
{
    struct model_tensors tensors;
    TRY(model_tensors_open(directory, &tensors));
    *description_out = (struct model_description){
        .is_foreign = tensors.is_foreign, .step = tensors.step, .gpt = SHOAL_NN_GPT_OPTIONS_INIT};
    description_out->gpt.n_heads = 0;
    shoal_status status = describe(&tensors, description_out);
    model_tensors_close(&tensors);
    return status;
}

shoal_status model_settle_heads(struct model_description *description, const char *directory, int64_t given)
{
    shoal_nn_gpt_options *gpt = &description->gpt;
    if (gpt->n_heads != 0 && given != 0 && gpt->n_heads != given) {
        return error_set(SHOAL_ERR_INVALID, "--heads is %" PRId64 ", but the model in %s has %" PRId64, given,
                         directory, gpt->n_heads);
    }
    gpt->n_heads = gpt->n_heads != 0 ? gpt->n_heads : given;
    if (gpt->n_heads == 0) {
        return error_set(SHOAL_ERR_INVALID,
                         "%s does not say how many heads the model has: %s; give --heads N", directory,
                         description->is_foreign ? "there is no n_head in a " MODEL_CONFIG_NAME
                                                 : "the checkpoint is not one of shoal train");
    }
    return gpt->width % gpt->n_heads == 0
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID,
                           "%" PRId64 " heads do not divide the width %" PRId64 " of the model in %s",
                           gpt->n_heads, gpt->width, directory);
}
