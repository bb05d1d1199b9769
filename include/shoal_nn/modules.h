/* SPDX-License-Identifier: MIT */
/*
 * Ready-made modules: linear, embedding, layer norm, RMS norm, self-attention, MLP, transformer block, and a whole GPT.
 * Each is an ordinary module (shoal/module.h) whose parameters have initial values. It can be called, put inside other
 * modules, wrapped by shoal_ddp, sharded by shoal_fully_shard, compiled and saved.
 *
 *     shoal_nn_gpt_options options = SHOAL_NN_GPT_OPTIONS_INIT;         GPT-2 with 124 million parameters
 *     options.dropout = 0.1;
 *     status = shoal_nn_gpt_create(&options, &gpt);
 *     for (int64_t i = 0; i < options.n_layers; i++) {
 *         status = shoal_fully_shard(shoal_nn_gpt_block(gpt, i), &how);  a unit for each block
 *     }
 *     status = shoal_fully_shard(gpt, &how);                             and, last, one for the rest
 *     ...
 *     status = shoal_module_call(gpt, (shoal_tensor *[]){tokens, position}, 2, &logits, 1);
 *     status = shoal_backward(shoal_nn_cross_entropy(logits, targets), NULL);
 *
 * Initial values depend only on the seed and on the first path of a parameter from the module that was created
 * (shoal_nn_initialize): not on ranks, sharding or the order in which modules are made. Two modules of one kind that
 * are created separately with equal options therefore have equal values. If you build a model from several modules,
 * call shoal_nn_initialize_modules once for the whole; then paths begin at its root. A GPT needs no such call.
 *
 * Large models. With `device` SHOAL_META parameters have no memory and no values. Call shoal_fully_shard, and then
 * shoal_nn_initialize_modules, or load a checkpoint: no rank ever has the whole model.
 *
 * Devices. Parameters may be on any device (shoal_device_find), and have the values of the CPU there. The operations of
 * this library compute on the CPU.
 *
 * Dropout. Self-attention, MLP, block and GPT take a second input, `position`: the i64 [3] of shoal_nn_dropout (seed,
 * step, first sample). Without it, or with NULL, nothing is dropped: that is how a model is evaluated. The stream of a
 * dropout is shoal_nn_stream of its path in the model, "transformer.h.0.attn.attn_dropout" for example. A GPT knows
 * these paths; other modules are told their own in `path`.
 *
 * Parameters have the names that PyTorch uses. Self-attention, MLP, block and GPT use the names of Hugging Face's
 * GPT-2, with projections stored as [in, out]. All parameters require gradients.
 *
 * Ownership: a call that creates a module gives the caller a reference (shoal_module_unref). Options and their texts
 * are copied.
 * Threads: as for all modules (shoal/module.h).
 * Errors: status and text. SHOAL_ERR_INVALID names the field that is wrong; every size must be at least 1. A call that
 * fails has made nothing.
 */
#ifndef SHOAL_NN_MODULES_H
#define SHOAL_NN_MODULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/api.h"
#include "shoal/dtype.h"
#include "shoal/items.h"
#include "shoal/module.h"
#include "shoal/status.h"
#include "shoal/tensor.h"

SHOAL_BEGIN_DECLS

/* Layers ----------------------------------------------------------------------------------------------- */

/*
 * A linear layer: [..., n_in] -> [..., n_out]. Parameters: weight [n_out, n_in], or [n_in, n_out] if is_projection, and
 * bias [n_out]. Initial values: if std is 0, weight and bias are uniform from -1 / sqrt(n_in) to 1 / sqrt(n_in), as in
 * PyTorch; otherwise weights are normal with mean 0 and that standard deviation, and biases are 0.
 */
typedef struct shoal_nn_linear_options {
    size_t struct_size; /* sizeof(shoal_nn_linear_options) */
    int64_t n_in;
    int64_t n_out;
    bool has_no_bias;
    bool is_projection; /* the weight is stored as [n_in, n_out], as in GPT-2 */
    double std;
    uint64_t seed;
    shoal_dtype dtype;   /* floating */
    shoal_device device; /* where parameters are; SHOAL_META: they have no memory and no values */
} shoal_nn_linear_options;
#define SHOAL_NN_LINEAR_OPTIONS_INIT                                                                \
    {                                                                                               \
        sizeof(shoal_nn_linear_options), 0, 0, false, false, 0.0, (uint64_t)0, SHOAL_F32, SHOAL_CPU \
    }
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_linear_create(const shoal_nn_linear_options *options,
                                                               SHOAL_GIVES shoal_module **module_out);

/* An embedding: integer indices [...] -> [..., width]. Parameter: weight [n_rows, width], normal with mean 0 and
   standard deviation std. */
typedef struct shoal_nn_embedding_options {
    size_t struct_size; /* sizeof(shoal_nn_embedding_options) */
    int64_t n_rows;
    int64_t width;
    double std;
    uint64_t seed;
    shoal_dtype dtype;
    shoal_device device;
} shoal_nn_embedding_options;
#define SHOAL_NN_EMBEDDING_OPTIONS_INIT                                                  \
    {                                                                                    \
        sizeof(shoal_nn_embedding_options), 0, 0, 1.0, (uint64_t)0, SHOAL_F32, SHOAL_CPU \
    }
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_embedding_create(const shoal_nn_embedding_options *options,
                                                                  SHOAL_GIVES shoal_module **module_out);

/* Norms over the last dimension: [..., width] -> [..., width]. Parameters: weight [width], initially 1, and bias
   [width], initially 0; an RMS norm has no bias. */
typedef struct shoal_nn_norm_options {
    size_t struct_size; /* sizeof(shoal_nn_norm_options) */
    int64_t width;
    double eps;
    bool has_no_bias; /* of a layer norm */
    shoal_dtype dtype;
    shoal_device device;
} shoal_nn_norm_options;
#define SHOAL_NN_NORM_OPTIONS_INIT                                          \
    {                                                                       \
        sizeof(shoal_nn_norm_options), 0, 1e-5, false, SHOAL_F32, SHOAL_CPU \
    }
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_layer_norm_create(const shoal_nn_norm_options *options,
                                                                   SHOAL_GIVES shoal_module **module_out);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_rms_norm_create(const shoal_nn_norm_options *options,
                                                                 SHOAL_GIVES shoal_module **module_out);

/* Transformers ----------------------------------------------------------------------------------------- */

/*
 * Options of self-attention, MLP and block. Fields that a kind does not have are ignored. All three take x [batch, T,
 * width] and position (which may be NULL or left out), and give [batch, T, width].
 *     self-attention   c_attn (projection to queries, keys and values of all heads), attention, c_proj, dropout
 *     mlp              c_fc, GELU in its tanh form, c_proj, dropout
 *     block            x = x + attn(ln_1(x)), then x + mlp(ln_2(x))
 * Initially weights are normal with mean 0, biases are 0, and norms have weight 1 and bias 0.
 */
typedef struct shoal_nn_block_options {
    size_t struct_size; /* sizeof(shoal_nn_block_options) */
    int64_t width;
    int64_t n_heads;     /* divides the width */
    int64_t hidden;      /* the inner width of the MLP; 0 means 4 * width */
    bool is_causal;      /* token t sees only tokens 0 to t */
    double dropout;      /* 0 to below 1: of attention weights, and of what each part adds to x */
    double eps;          /* of layer norms */
    double std;          /* standard deviation of initial weights */
    double residual_std; /* standard deviation of the two c_proj; 0 means std */
    const char *path;    /* the module's path in the model, for streams of dropout: "h.3"; NULL means "" */
    uint64_t seed;
    shoal_dtype dtype;
    shoal_device device;
} shoal_nn_block_options;
#define SHOAL_NN_BLOCK_OPTIONS_INIT                                                                        \
    {                                                                                                      \
        sizeof(shoal_nn_block_options), 0, 0, 0, true, 0.0, 1e-5, 0.02, 0.0, NULL, (uint64_t)0, SHOAL_F32, \
            SHOAL_CPU                                                                                      \
    }
/* Make a self-attention, an MLP or a block. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_self_attention_create(const shoal_nn_block_options *options,
                                                                       SHOAL_GIVES shoal_module **module_out);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_mlp_create(const shoal_nn_block_options *options,
                                                            SHOAL_GIVES shoal_module **module_out);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_block_create(const shoal_nn_block_options *options,
                                                              SHOAL_GIVES shoal_module **module_out);

/*
 * A GPT like GPT-2. It takes tokens [batch, T], of any integer dtype but u64 and with T at most `context`, and position
 * (which may be NULL or left out), and gives logits [batch, T, vocabulary]. Its child "transformer" can be called
 * alone, with the same inputs: it gives the input of the output head, [batch, T, width].
 *
 * Names: transformer.wte.weight [vocabulary, width] and transformer.wpe.weight [context, width]; the blocks
 * transformer.h.0, ..., each with ln_1.{weight,bias}, attn.c_attn.{weight,bias}, attn.c_proj.{weight,bias},
 * ln_2.{weight,bias}, mlp.c_fc.{weight,bias} and mlp.c_proj.{weight,bias}; transformer.ln_f.{weight,bias}. The output
 * head uses transformer.wte.weight again; with is_untied it has lm_head.weight [vocabulary, width].
 *
 * Initial values are as in GPT-2: weights are normal with standard deviation 0.02, the weights of attn.c_proj and
 * mlp.c_proj with 0.02 / sqrt(2 * n_layers); biases are 0. Dropout applies to the sum of the embeddings, to attention
 * weights, and to what attention and MLP add. For dropout, each row of tokens is a sample.
 */
typedef struct shoal_nn_gpt_options {
    size_t struct_size; /* sizeof(shoal_nn_gpt_options) */
    int64_t n_layers;
    int64_t width;
    int64_t n_heads;
    int64_t context; /* the most tokens of a row */
    int64_t vocabulary;
    double dropout; /* 0 to below 1 */
    double eps;     /* of layer norms */
    bool is_untied;
    uint64_t seed;
    shoal_dtype dtype;
    shoal_device device;
} shoal_nn_gpt_options;
#define SHOAL_NN_GPT_OPTIONS_INIT                                                                         \
    {                                                                                                     \
        sizeof(shoal_nn_gpt_options), 12, 768, 12, 1024, 50257, 0.0, 1e-5, false, (uint64_t)0, SHOAL_F32, \
            SHOAL_CPU                                                                                     \
    }
/* Makes a GPT. If options is NULL, the defaults above hold, which are the smallest GPT-2 (124 million parameters). */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_gpt_create(const shoal_nn_gpt_options *options,
                                                            SHOAL_GIVES shoal_module **module_out);
/*
 * Returns block number `index` of a GPT, transformer.h.<index>, to make a unit of it with shoal_fully_shard. Borrowed.
 * Leave embeddings, ln_f and the output head together in the unit of the GPT itself, because the head uses the
 * embedding's weight. It is NULL if there is no such block, or if the module is no GPT.
 */
SHOAL_API shoal_module *shoal_nn_gpt_block(shoal_module *gpt, int64_t index);
/*
 * Adds all parameters of a GPT, sharded or not, to a list of items, as shoal_items_add_module does with the prefix "".
 * Each also gets its name without "transformer." as an alias. So shoal_checkpoint_load reads both the GPT-2 files on
 * Hugging Face's hub, which have these names, and what transformers writes for a GPT2LMHeadModel, which has the whole
 * ones. The hub's files also have masks (h.0.attn.bias): load them with `allows_unexpected`.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_gpt_add_items(shoal_module *gpt, shoal_items *items);

/* All modules ------------------------------------------------------------------------------------------ */

/*
 * Gives the parameters of all ready-made modules inside `module` their initial values, which depend on the seed and on
 * their first paths from `module`. Other parameters are left alone. It may be called before or after shoal_fully_shard,
 * with the same values; for parameters that were made on the meta device, after it. Every rank calls it; it does not
 * communicate. SHOAL_ERR_INVALID: there is no ready-made module. After an error no value has changed.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_initialize_modules(shoal_module *module, uint64_t seed);

SHOAL_END_DECLS

#endif
