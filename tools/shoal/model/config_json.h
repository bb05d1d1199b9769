/* SPDX-License-Identifier: MIT */
/* Hugging Face's config.json of a GPT-2, read and written. */
#ifndef MODEL_CONFIG_JSON_H
#define MODEL_CONFIG_JSON_H

#include "shoal/status.h"
#include "shoal_nn/modules.h"

#include <stdbool.h>
#include <stdint.h>

#define MODEL_CONFIG_NAME "config.json"

/* What it says of the shape; 0 where it says nothing. */
struct model_config {
    int64_t n_layers;
    int64_t n_heads;
    int64_t width;
    int64_t context;
    int64_t vocabulary;
    double eps;
    bool is_untied; /* the output head is not the embedding, unless its values are the same */
};

/*
 * Reads directory/config.json; zeros if there is none. SHOAL_ERR_UNSUPPORTED: it describes a model that is not Shoal's
 * GPT, with another activation function for example.
 */
shoal_status model_config_read(const char *directory, struct model_config *config_out);

/* Writes directory/config.json for a GPT2LMHeadModel of this shape. */
shoal_status model_config_write(const char *directory, const shoal_nn_gpt_options *gpt);

#endif
