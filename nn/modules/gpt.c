/* SPDX-License-Identifier: MIT */
/*
 * A GPT: token and position embeddings, blocks, a last norm, and an output head. The tree has the names of Hugging
 * Face's GPT2LMHeadModel. In a sharded model the embeddings, the last norm and the head belong to one unit, because the
 * head multiplies by the token embedding.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/check.h"
#include "modules/module.h"
#include "shoal/op.h"
#include "shoal/ops.h"
#include "shoal/scope.h"
#include "shoal_nn/nn.h"
#include "common/try.h"

#define TYPE "gpt"
#define STD 0.02
#define EMBEDDING_STREAM 0

/* Forward ----------------------------------------------------------------------------------------------- */

static shoal_status check_tokens(const shoal_tensor *tokens, int64_t context)
{
    if (shoal_tensor_n_dims(tokens) != 2) {
        return shoal_fail(SHOAL_ERR_INVALID, "tokens have %d dimensions, not 2: batch, positions",
                          shoal_tensor_n_dims(tokens));
    }
    int64_t length = shoal_tensor_shape(tokens)[1];
    if (length > context) {
        return shoal_fail(SHOAL_ERR_INVALID,
                          "tokens have %" PRId64 " positions, more than the context of %" PRId64, length,
                          context);
    }
    return SHOAL_OK;
}

static shoal_status forward_transformer(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                        shoal_tensor **outputs, size_t n_outputs)
{
    const struct nn_settings *settings = nn_module_settings(module);
    struct nn_inputs in;
    (void)n_outputs;
    NN_TRY(nn_take_inputs(module, inputs, n_inputs, &in));
    NN_TRY(check_tokens(in.first, settings->context));
    shoal_tensor *positions =
        shoal_narrow(shoal_module_parameter(module, "wpe.weight"), 0, 0, shoal_tensor_shape(in.first)[1]);
    shoal_tensor *x = shoal_add(nn_call_child(module, "wte", in.first), positions);
    x = nn_drop(x, in.position, settings->streams[EMBEDDING_STREAM], settings->dropout);
    shoal_module *blocks = shoal_module_child(module, "h");
    shoal_module *block = NULL;
    for (size_t i = 0; x && (block = shoal_module_child_at(blocks, i, NULL)) != NULL; i++) {
        shoal_tensor *arguments[] = {x, in.position};
        NN_TRY(shoal_module_call(block, arguments, 2, &x, 1));
    }
    outputs[0] = nn_call_child(module, "ln_f", x);
    return SHOAL_OK;
}

static shoal_status forward_gpt(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                shoal_tensor **outputs, size_t n_outputs)
{
    struct nn_inputs in;
    (void)n_outputs;
    NN_TRY(nn_take_inputs(module, inputs, n_inputs, &in));
    shoal_tensor *hidden = nn_call_child_at(module, "transformer", in.first, in.position);
    outputs[0] =
        nn_module_settings(module)->is_untied
            ? nn_call_child(module, "lm_head", hidden)
            : shoal_nn_linear(hidden, shoal_module_parameter(module, "transformer.wte.weight"), NULL);
    return SHOAL_OK;
}

/* Making ------------------------------------------------------------------------------------------------ */

static shoal_status add_embedding(shoal_module *module, const char *name, int64_t n_rows,
                                  const shoal_nn_gpt_options *options)
{
    shoal_nn_embedding_options embedding = SHOAL_NN_EMBEDDING_OPTIONS_INIT;
    shoal_module *child = NULL;
    embedding.n_rows = n_rows;
    embedding.width = options->width;
    embedding.std = STD;
    embedding.dtype = options->dtype;
    embedding.device = options->device;
    NN_TRY(nn_make_embedding(&embedding, &child));
    return nn_module_adopt(module, name, child);
}

static shoal_status add_norm(shoal_module *module, const shoal_nn_gpt_options *options)
{
    shoal_nn_norm_options norm = SHOAL_NN_NORM_OPTIONS_INIT;
    shoal_module *child = NULL;
    norm.width = options->width;
    norm.eps = options->eps;
    norm.dtype = options->dtype;
    norm.device = options->device;
    NN_TRY(nn_make_layer_norm(&norm, &child));
    return nn_module_adopt(module, "ln_f", child);
}

static shoal_status add_head(shoal_module *module, const shoal_nn_gpt_options *options)
{
    shoal_nn_linear_options linear = SHOAL_NN_LINEAR_OPTIONS_INIT;
    shoal_module *child = NULL;
    linear.n_in = options->width;
    linear.n_out = options->vocabulary;
    linear.has_no_bias = true;
    linear.std = STD;
    linear.dtype = options->dtype;
    linear.device = options->device;
    NN_TRY(nn_make_linear(&linear, &child));
    return nn_module_adopt(module, "lm_head", child);
}

static shoal_nn_block_options block_options(const shoal_nn_gpt_options *options)
{
    shoal_nn_block_options block = SHOAL_NN_BLOCK_OPTIONS_INIT;
    block.width = options->width;
    block.n_heads = options->n_heads;
    block.dropout = options->dropout;
    block.eps = options->eps;
    block.std = STD;
    block.residual_std = STD / sqrt(2 * (double)options->n_layers);
    block.dtype = options->dtype;
    block.device = options->device;
    return block;
}

static shoal_status add_block(shoal_module *blocks, int64_t index, const shoal_nn_gpt_options *options)
{
    shoal_nn_block_options block = block_options(options);
    char name[32];
    char path[64];
    shoal_module *child = NULL;
    (void)snprintf(name, sizeof(name), "%" PRId64, index);
    (void)snprintf(path, sizeof(path), "transformer.h.%s", name);
    block.path = path;
    NN_TRY(nn_make_block(&block, &child));
    return nn_module_adopt(blocks, name, child);
}

/* The container of the blocks, which the transformer has already when they are added. */
static shoal_status add_blocks(shoal_module *transformer, const shoal_nn_gpt_options *options)
{
    const struct nn_settings settings = {0};
    shoal_module *blocks = NULL;
    NN_TRY(nn_module_make("blocks", NULL, &settings, &blocks));
    NN_TRY(nn_module_adopt(transformer, "h", blocks));
    for (int64_t i = 0; i < options->n_layers; i++) {
        NN_TRY(add_block(blocks, i, options));
    }
    return SHOAL_OK;
}

static shoal_status add_transformer(shoal_module *gpt, const shoal_nn_gpt_options *options)
{
    const struct nn_settings settings = {
        .context = options->context,
        .dropout = options->dropout,
        .streams = {[EMBEDDING_STREAM] = shoal_nn_stream("transformer.drop")}};
    shoal_module *transformer = NULL;
    NN_TRY(nn_module_make("transformer", forward_transformer, &settings, &transformer));
    NN_TRY(nn_module_adopt(gpt, "transformer", transformer));
    NN_TRY(add_embedding(transformer, "wte", options->vocabulary, options));
    NN_TRY(add_embedding(transformer, "wpe", options->context, options));
    NN_TRY(add_blocks(transformer, options));
    return add_norm(transformer, options);
}

static shoal_status make_gpt(const shoal_nn_gpt_options *options, shoal_module **module_out)
{
    const struct nn_settings settings = {.is_untied = options->is_untied};
    shoal_module *module = NULL;
    NN_TRY(nn_module_make(TYPE, forward_gpt, &settings, &module));
    shoal_status status = add_transformer(module, options);
    if (status == SHOAL_OK && options->is_untied) {
        status = add_head(module, options);
    }
    if (status != SHOAL_OK) {
        shoal_module_unref(module);
        return status;
    }
    *module_out = module;
    return SHOAL_OK;
}

static shoal_status check_gpt(const char *call, const shoal_nn_gpt_options *options)
{
    NN_TRY(nn_check_place(call, "SHOAL_NN_GPT_OPTIONS_INIT",
                          (struct nn_place){options->dtype, options->device}));
    NN_TRY(nn_check_count(call, "n_layers", options->n_layers));
    NN_TRY(nn_check_count(call, "width", options->width));
    NN_TRY(nn_check_count(call, "context", options->context));
    NN_TRY(nn_check_count(call, "vocabulary", options->vocabulary));
    NN_TRY(nn_check_number(call, "dropout", options->dropout, 1));
    const shoal_nn_block_options block = block_options(options);
    return nn_check_block(call, &block);
}

shoal_status shoal_nn_gpt_create(const shoal_nn_gpt_options *given, shoal_module **module_out)
{
    static const char call[] = "nn_gpt_create";
    const shoal_nn_gpt_options defaults = SHOAL_NN_GPT_OPTIONS_INIT;
    shoal_nn_gpt_options options = defaults;
    shoal_module *module = NULL;
    NN_TRY(nn_read_options(call, given ? given : &defaults, &options, sizeof(options), module_out));
    NN_TRY(check_gpt(call, &options));
    NN_TRY(make_gpt(&options, &module));
    return nn_module_finish(module, options.seed, options.device, module_out);
}

/* Units and checkpoints --------------------------------------------------------------------------------- */

static bool is_gpt(const shoal_module *module)
{
    const shoal_module_definition *definition = shoal_module_get_definition(module);
    return definition && definition->forward == forward_gpt;
}

shoal_module *shoal_nn_gpt_block(shoal_module *gpt, int64_t index)
{
    if (!is_gpt(gpt) || index < 0) {
        return NULL;
    }
    return shoal_module_child_at(shoal_module_find_child(gpt, "transformer.h"), (size_t)index, NULL);
}

/* The names that files of the hub have: those of the transformer alone. */
static shoal_status add_alias(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    static const char prefix[] = "transformer.";
    const size_t length = sizeof(prefix) - 1;
    (void)next;
    if (strncmp(entry->path, prefix, length) != 0) {
        return SHOAL_OK;
    }
    return shoal_items_add_alias(context, NULL, entry->path, entry->path + length);
}

shoal_status shoal_nn_gpt_add_items(shoal_module *gpt, shoal_items *items)
{
    const char *call = "nn_gpt_add_items";
    shoal_items *own = NULL;
    if (!gpt) {
        return shoal_fail_null(call, "gpt");
    }
    if (!items) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: items is NULL", call);
    }
    if (!is_gpt(gpt)) {
        return shoal_fail(SHOAL_ERR_INVALID,
                          "%s: gpt: a module \"%.64s\", which shoal_nn_gpt_create did not make", call,
                          shoal_module_type(gpt));
    }
    NN_TRY(shoal_items_create(&own));
    shoal_status status = shoal_items_add_module(own, "", gpt);
    if (status == SHOAL_OK) {
        status = shoal_module_walk(gpt, SHOAL_WALK_PARAMETERS, add_alias, own);
    }
    if (status == SHOAL_OK) {
        status = shoal_items_append(items, own);
    }
    shoal_items_free(own);
    return status;
}
