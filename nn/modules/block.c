/* SPDX-License-Identifier: MIT */
/* Ready-made parts of transformers: self-attention, MLP, and a block of both, with the names of GPT-2. */
#include <inttypes.h>
#include <math.h>

#include "common/check.h"
#include "modules/module.h"
#include "shoal/op.h"
#include "shoal/ops.h"
#include "shoal/scope.h"
#include "shoal_nn/attention.h"
#include "shoal_nn/nn.h"
#include "common/try.h"

/* Streams of a module that has two. */
enum {
    ATTENTION_STREAM = 0,
    RESIDUAL_STREAM = 1
};

/*
 * The stream of a random number is the FNV-1a hash of a joined path, such as "h.0.attn.attn_dropout". FNV-1a can
 * continue from an earlier hash, so paths are never joined: the hash of the path so far, with its dot, is passed on and
 * extended by the next name.
 */
static uint64_t extend(uint64_t stream, const char *text)
{
    for (; *text; text++) {
        stream = (stream ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    }
    return stream;
}

static uint64_t begin_path(const char *path)
{
    uint64_t stream = shoal_nn_stream(path);
    return path && path[0] ? extend(stream, ".") : stream;
}

/* A child that is a projection [n_in, n_out] with a bias. */
static shoal_status add_projection(shoal_module *module, const char *name, int64_t n_in, int64_t n_out,
                                   double std, const shoal_nn_block_options *options)
{
    shoal_nn_linear_options linear = SHOAL_NN_LINEAR_OPTIONS_INIT;
    shoal_module *child = NULL;
    linear.n_in = n_in;
    linear.n_out = n_out;
    linear.is_projection = true;
    linear.std = std;
    linear.dtype = options->dtype;
    linear.device = options->device;
    NN_TRY(nn_make_linear(&linear, &child));
    return nn_module_adopt(module, name, child);
}

static double residual_std(const shoal_nn_block_options *options)
{
    return options->residual_std > 0 ? options->residual_std : options->std;
}

/* Self-attention ---------------------------------------------------------------------------------------- */

static shoal_tensor *attend(const struct nn_settings *settings, shoal_tensor *qkv, shoal_tensor *position)
{
    shoal_nn_attention_options options = SHOAL_NN_ATTENTION_OPTIONS_INIT;
    options.is_causal = settings->is_causal;
    if (position) {
        options.dropout = settings->dropout;
        options.position = position;
        options.stream = settings->streams[ATTENTION_STREAM];
    }
    return shoal_nn_attention_packed(qkv, &options);
}

static shoal_status forward_attention(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                      shoal_tensor **outputs, size_t n_outputs)
{
    const struct nn_settings *settings = nn_module_settings(module);
    struct nn_inputs in;
    (void)n_outputs;
    NN_TRY(nn_take_inputs(module, inputs, n_inputs, &in));
    if (shoal_tensor_n_dims(in.first) != 3) {
        return shoal_fail(SHOAL_ERR_INVALID, "input 0 has %d dimensions, not 3: batch, positions, width",
                          shoal_tensor_n_dims(in.first));
    }
    const int64_t *shape = shoal_tensor_shape(in.first);
    const int64_t heads[] = {shape[0], shape[1], 3, settings->n_heads, shape[2] / settings->n_heads};
    shoal_tensor *qkv = shoal_view(nn_call_child(module, "c_attn", in.first), heads, 5);
    shoal_tensor *mixed = shoal_reshape(attend(settings, qkv, in.position), shape, 3);
    outputs[0] = nn_drop(nn_call_child(module, "c_proj", mixed), in.position,
                         settings->streams[RESIDUAL_STREAM], settings->dropout);
    return SHOAL_OK;
}

static shoal_status make_attention(const shoal_nn_block_options *options, uint64_t path,
                                   shoal_module **module_out)
{
    const struct nn_settings settings = {
        .n_heads = options->n_heads,
        .is_causal = options->is_causal,
        .dropout = options->dropout,
        .streams = {extend(path, "attn_dropout"), extend(path, "resid_dropout")}};
    const int64_t width = options->width;
    shoal_module *module = NULL;
    shoal_status status = nn_module_make("self_attention", forward_attention, &settings, &module);
    NN_TRY_GOTO(status, status, failed);
    NN_TRY_GOTO(status, add_projection(module, "c_attn", width, 3 * width, options->std, options), failed);
    NN_TRY_GOTO(status, add_projection(module, "c_proj", width, width, residual_std(options), options),
                failed);
    *module_out = module;
    return SHOAL_OK;
failed:
    shoal_module_unref(module);
    return status;
}

/* MLP --------------------------------------------------------------------------------------------------- */

static shoal_status forward_mlp(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                shoal_tensor **outputs, size_t n_outputs)
{
    const struct nn_settings *settings = nn_module_settings(module);
    struct nn_inputs in;
    (void)n_outputs;
    NN_TRY(nn_take_inputs(module, inputs, n_inputs, &in));
    shoal_tensor *hidden = shoal_nn_gelu_tanh(nn_call_child(module, "c_fc", in.first));
    outputs[0] = nn_drop(nn_call_child(module, "c_proj", hidden), in.position,
                         settings->streams[RESIDUAL_STREAM], settings->dropout);
    return SHOAL_OK;
}

static shoal_status make_mlp(const shoal_nn_block_options *options, uint64_t path, shoal_module **module_out)
{
    const struct nn_settings settings = {.dropout = options->dropout,
                                         .streams = {[RESIDUAL_STREAM] = extend(path, "dropout")}};
    const int64_t hidden = options->hidden > 0 ? options->hidden : 4 * options->width;
    shoal_module *module = NULL;
    shoal_status status = nn_module_make("mlp", forward_mlp, &settings, &module);
    NN_TRY_GOTO(status, status, failed);
    NN_TRY_GOTO(status, add_projection(module, "c_fc", options->width, hidden, options->std, options),
                failed);
    NN_TRY_GOTO(status,
                add_projection(module, "c_proj", hidden, options->width, residual_std(options), options),
                failed);
    *module_out = module;
    return SHOAL_OK;
failed:
    shoal_module_unref(module);
    return status;
}

/* Block ------------------------------------------------------------------------------------------------- */

static shoal_status forward_block(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    struct nn_inputs in;
    (void)n_outputs;
    NN_TRY(nn_take_inputs(module, inputs, n_inputs, &in));
    shoal_tensor *x = in.first;
    x = shoal_add(x, nn_call_child_at(module, "attn", nn_call_child(module, "ln_1", x), in.position));
    x = shoal_add(x, nn_call_child_at(module, "mlp", nn_call_child(module, "ln_2", x), in.position));
    outputs[0] = x;
    return SHOAL_OK;
}

/* What is made, and under which name. */
struct part {
    const char *name;
    shoal_status (*make)(const shoal_nn_block_options *options, uint64_t path, shoal_module **module_out);
};

static shoal_status make_norm(const shoal_nn_block_options *options, uint64_t path, shoal_module **module_out)
{
    shoal_nn_norm_options norm = SHOAL_NN_NORM_OPTIONS_INIT;
    (void)path;
    norm.width = options->width;
    norm.eps = options->eps;
    norm.dtype = options->dtype;
    norm.device = options->device;
    return nn_make_layer_norm(&norm, module_out);
}

static const struct part parts[] = {
    {"ln_1", make_norm}, {"attn", make_attention}, {"ln_2", make_norm}, {"mlp", make_mlp}};

shoal_status nn_make_block(const shoal_nn_block_options *options, shoal_module **module_out)
{
    const struct nn_settings settings = {0};
    const uint64_t path = begin_path(options->path);
    shoal_module *module = NULL;
    NN_TRY(nn_module_make("block", forward_block, &settings, &module));
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        shoal_module *child = NULL;
        shoal_status status = parts[i].make(options, extend(extend(path, parts[i].name), "."), &child);
        if (status == SHOAL_OK) {
            status = nn_module_adopt(module, parts[i].name, child);
        }
        if (status != SHOAL_OK) {
            shoal_module_unref(module);
            return status;
        }
    }
    *module_out = module;
    return SHOAL_OK;
}

/* Creating ---------------------------------------------------------------------------------------------- */

static shoal_status read_common(const char *call, const shoal_nn_block_options *given,
                                shoal_nn_block_options *options, shoal_module *const *module_out)
{
    *options = (shoal_nn_block_options)SHOAL_NN_BLOCK_OPTIONS_INIT;
    NN_TRY(nn_read_options(call, given, options, sizeof(*options), module_out));
    NN_TRY(nn_check_place(call, "SHOAL_NN_BLOCK_OPTIONS_INIT",
                          (struct nn_place){options->dtype, options->device}));
    NN_TRY(nn_check_count(call, "width", options->width));
    NN_TRY(nn_check_number(call, "dropout", options->dropout, 1));
    NN_TRY(nn_check_number(call, "std", options->std, (double)INFINITY));
    return nn_check_number(call, "residual_std", options->residual_std, (double)INFINITY);
}

static shoal_status check_heads(const char *call, const shoal_nn_block_options *options)
{
    NN_TRY(nn_check_count(call, "n_heads", options->n_heads));
    if (options->width % options->n_heads != 0) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: n_heads: %" PRId64 " does not divide the width %" PRId64,
                          call, options->n_heads, options->width);
    }
    return SHOAL_OK;
}

static shoal_status check_hidden(const char *call, const shoal_nn_block_options *options)
{
    return options->hidden == 0 ? SHOAL_OK : nn_check_count(call, "hidden", options->hidden);
}

shoal_status nn_check_block(const char *call, const shoal_nn_block_options *options)
{
    NN_TRY(check_heads(call, options));
    NN_TRY(check_hidden(call, options));
    return nn_check_number(call, "eps", options->eps, (double)INFINITY);
}

shoal_status shoal_nn_self_attention_create(const shoal_nn_block_options *given, shoal_module **module_out)
{
    const char *call = "nn_self_attention_create";
    shoal_nn_block_options options;
    shoal_module *module = NULL;
    NN_TRY(read_common(call, given, &options, module_out));
    NN_TRY(check_heads(call, &options));
    NN_TRY(make_attention(&options, begin_path(options.path), &module));
    return nn_module_finish(module, options.seed, options.device, module_out);
}

shoal_status shoal_nn_mlp_create(const shoal_nn_block_options *given, shoal_module **module_out)
{
    const char *call = "nn_mlp_create";
    shoal_nn_block_options options;
    shoal_module *module = NULL;
    NN_TRY(read_common(call, given, &options, module_out));
    NN_TRY(check_hidden(call, &options));
    NN_TRY(make_mlp(&options, begin_path(options.path), &module));
    return nn_module_finish(module, options.seed, options.device, module_out);
}

shoal_status shoal_nn_block_create(const shoal_nn_block_options *given, shoal_module **module_out)
{
    const char *call = "nn_block_create";
    shoal_nn_block_options options;
    shoal_module *module = NULL;
    NN_TRY(read_common(call, given, &options, module_out));
    NN_TRY(nn_check_block(call, &options));
    NN_TRY(nn_make_block(&options, &module));
    return nn_module_finish(module, options.seed, options.device, module_out);
}
