/* SPDX-License-Identifier: MIT */
/*
 * Shoal's GPT is transformers' GPT2LMHeadModel with gelu_new, an MLP of four times the width, scaled attention and a
 * head that is the embedding. A config.json that says anything else is refused, because the same weights would give
 * other logits.
 */
#include "model/config_json.h"
#include "common/read_file.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "checkpoint/io/file.h"

#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_BYTES = 1 << 20,
    MLP_FACTOR = 4,
    GPT2_TOKENS = 50257,
    GPT2_ROUNDED = 50304, /* the same, rounded up to a multiple of 64 */
    CONFIG_BYTES = 2048,
    NUMBER_BYTES = 32
};

/* Reading ---------------------------------------------------------------------------------------------- */

static shoal_status fail_value(const char *key, const json_t *value, const char *wanted)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    shoal_status status = error_set(SHOAL_ERR_UNSUPPORTED, "%s is %.64s; the GPT of Shoal has %s", key,
                                    text ? text : "wrong", wanted);
    free(text);
    return status;
}

/* A count that may be missing. */
static shoal_status read_count(const json_t *config, const char *key, int64_t *count_out)
{
    const json_t *value = json_object_get(config, key);
    if (!value || json_is_null(value)) {
        return SHOAL_OK;
    }
    if (!json_is_integer(value) || json_integer_value(value) < 1) {
        return fail_value(key, value, "a whole number there, of at least 1");
    }
    *count_out = json_integer_value(value);
    return SHOAL_OK;
}

static shoal_status check_word(const json_t *config, const char *key, const char *wanted, const char *other)
{
    const json_t *value = json_object_get(config, key);
    const char *word = json_string_value(value);
    bool is_right = !value || (word && (strcmp(word, wanted) == 0 || (other && strcmp(word, other) == 0)));
    return is_right ? SHOAL_OK : fail_value(key, value, wanted);
}

static shoal_status check_flag(const json_t *config, const char *key, bool wanted)
{
    const json_t *value = json_object_get(config, key);
    bool is_right = !value || (wanted ? json_is_true(value) : json_is_false(value));
    return is_right ? SHOAL_OK : fail_value(key, value, wanted ? "true" : "false");
}

static shoal_status check_kind(const json_t *config, const struct model_config *sizes)
{
    int64_t n_inner = 0;
    TRY(check_word(config, "model_type", "gpt2", NULL));
    TRY(check_word(config, "activation_function", "gelu_new", "gelu_pytorch_tanh"));
    TRY(check_flag(config, "scale_attn_weights", true));
    TRY(check_flag(config, "scale_attn_by_inverse_layer_idx", false));
    TRY(check_flag(config, "add_cross_attention", false));
    TRY(read_count(config, "n_inner", &n_inner));
    return n_inner == 0 || sizes->width == 0 || n_inner == MLP_FACTOR * sizes->width
               ? SHOAL_OK
               : fail_value("n_inner", json_object_get(config, "n_inner"), "four times n_embd");
}

static shoal_status read_eps(const json_t *config, double *eps_out)
{
    const json_t *value = json_object_get(config, "layer_norm_epsilon");
    double eps = json_number_value(value);
    if (value && !(eps > 0.0 && eps < 1.0)) {
        return fail_value("layer_norm_epsilon", value, "a number between 0 and 1 there");
    }
    *eps_out = eps;
    return SHOAL_OK;
}

static shoal_status read_sizes(const json_t *config, struct model_config *sizes)
{
    if (!json_is_object(config)) {
        return error_set(SHOAL_ERR_INVALID, "is not an object");
    }
    TRY(read_count(config, "n_layer", &sizes->n_layers));
    TRY(read_count(config, "n_head", &sizes->n_heads));
    TRY(read_count(config, "n_embd", &sizes->width));
    TRY(read_count(config, "n_positions", &sizes->context));
    TRY(read_count(config, "vocab_size", &sizes->vocabulary));
    TRY(read_eps(config, &sizes->eps));
    sizes->is_untied = json_is_false(json_object_get(config, "tie_word_embeddings"));
    return check_kind(config, sizes);
}

shoal_status model_config_read(const char *directory, struct model_config *config_out)
{
    char path[PATH_MAX];
    json_error_t error;
    char *text = NULL;
    size_t n_bytes = 0;
    *config_out = (struct model_config){0};
    (void)snprintf(path, sizeof path, "%s/" MODEL_CONFIG_NAME, directory);
    shoal_status status = tool_read_file(path, MAX_BYTES, &text, &n_bytes);
    if (status != SHOAL_OK) {
        return status == SHOAL_ERR_STATE ? SHOAL_OK : status;
    }
    json_t *config = json_loadb(text, n_bytes, 0, &error);
    mem_free(text);
    if (!config) {
        return error_set(SHOAL_ERR_INVALID, "%s:%d: %s", path, error.line, error.text);
    }
    status = read_sizes(config, config_out);
    json_decref(config);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "%s", path);
}

/* Writing ---------------------------------------------------------------------------------------------- */

/* GPT-2's tokens have an end of text; of others nothing is known. */
static const char *find_end(const shoal_nn_gpt_options *gpt)
{
    bool is_gpt2 = gpt->vocabulary == GPT2_TOKENS || gpt->vocabulary == GPT2_ROUNDED;
    return is_gpt2 ? "50256" : "null";
}

/* A number that JSON readers take for a real one: 0.0, 1e-05. */
static void print_real(char text[NUMBER_BYTES], double value)
{
    (void)snprintf(text, NUMBER_BYTES, "%.15g", value);
    if (!strpbrk(text, ".e")) {
        (void)snprintf(text, NUMBER_BYTES, "%.1f", value);
    }
}

shoal_status model_config_write(const char *directory, const shoal_nn_gpt_options *gpt)
{
    char path[PATH_MAX];
    char text[CONFIG_BYTES];
    char eps[NUMBER_BYTES];
    char dropout[NUMBER_BYTES];
    if (snprintf(path, sizeof path, "%s/" MODEL_CONFIG_NAME, directory) >= (int)sizeof path) {
        return error_set(SHOAL_ERR_INVALID, "a path of %zu bytes is too long", strlen(directory));
    }
    print_real(eps, gpt->eps);
    print_real(dropout, gpt->dropout);
    int length = snprintf(text, sizeof text,
                          "{\n"
                          "  \"architectures\": [\"GPT2LMHeadModel\"],\n"
                          "  \"model_type\": \"gpt2\",\n"
                          "  \"n_layer\": %" PRId64 ",\n"
                          "  \"n_head\": %" PRId64 ",\n"
                          "  \"n_embd\": %" PRId64 ",\n"
                          "  \"n_inner\": null,\n"
                          "  \"n_positions\": %" PRId64 ",\n"
                          "  \"vocab_size\": %" PRId64 ",\n"
                          "  \"activation_function\": \"gelu_new\",\n"
                          "  \"layer_norm_epsilon\": %s,\n"
                          "  \"initializer_range\": 0.02,\n"
                          "  \"attn_pdrop\": %s,\n"
                          "  \"embd_pdrop\": %s,\n"
                          "  \"resid_pdrop\": %s,\n"
                          "  \"scale_attn_weights\": true,\n"
                          "  \"scale_attn_by_inverse_layer_idx\": false,\n"
                          "  \"reorder_and_upcast_attn\": false,\n"
                          "  \"tie_word_embeddings\": true,\n"
                          "  \"use_cache\": true,\n"
                          "  \"bos_token_id\": %s,\n"
                          "  \"eos_token_id\": %s,\n"
                          "  \"torch_dtype\": \"float32\"\n"
                          "}\n",
                          gpt->n_layers, gpt->n_heads, gpt->width, gpt->context, gpt->vocabulary, eps,
                          dropout, dropout, dropout, find_end(gpt), find_end(gpt));
    return file_save(path, text, (size_t)length);
}
