/* SPDX-License-Identifier: MIT */
/*
 * Ready-made modules: linear, embedding, layer norm, RMS norm, self-attention, MLP, transformer block, and a whole GPT.
 * Each is an ordinary module of shoal/module.h, with initial values: it can be called, walked by name, put inside other
 * modules, wrapped by shoal_ddp, fully sharded, captured and saved.
 *
 *     shoal_nn_gpt_options options = SHOAL_NN_GPT_OPTIONS_INIT;         GPT-2 with 124 million parameters
 *     options.dropout = 0.1;
 *     status = shoal_nn_gpt_create(&options, &gpt);
 *     for (int64_t i = 0; i < options.n_layers; i++) {
 *         status = shoal_fully_shard(shoal_nn_gpt_block(gpt, i), &how);  each block is a unit,
 *     }
 *     status = shoal_fully_shard(gpt, &how);                             and so is the rest, last of all
 *     ...
 *     status = shoal_module_call(gpt, (shoal_tensor *[]){tokens, position}, 2, &logits, 1);
 *     status = shoal_backward(shoal_nn_cross_entropy(logits, targets), NULL);
 *
 * Initial values. The values of a parameter depend on the seed and on its first path from the module that was created
 * (shoal_nn_initialize), and on nothing else: not on ranks, nor on sharding, nor on the order in which modules are
 * made. Modules of one kind that are created by themselves with equal options therefore begin with equal values. When
 * a model is put together of several, call shoal_nn_initialize_modules once for the whole: paths are those from its
 * root then. A GPT needs no such call. With `device` SHOAL_META parameters have no memory and no values. After
 * shoal_fully_shard call shoal_nn_initialize_modules, or load a checkpoint: no rank ever has a whole model.
 *
 * Dropout. Self-attention, MLP, block and GPT take a second input, `position`: the i64 [3] of shoal_nn_dropout (seed,
 * step, first sample). Without it, or with NULL, nothing is dropped: that is how a model is evaluated. The stream of
 * each dropout is shoal_nn_stream of its path within the model: "transformer.h.0.attn.attn_dropout". A GPT names them
 * itself; modules that are put together by hand are told their own path.
 *
 * Parameters are named as in PyTorch, those of self-attention, MLP, block and GPT as in Hugging Face's GPT-2, with
 * projections as [in, out]. All parameters require gradients.
 *
 * Ownership: a creating call gives the caller a reference (shoal_module_unref). Options are copied, texts in them too.
 * Threads: as for all modules (shoal/module.h).
 * Errors: status and text that names the value. A call that fails has made nothing. Every size is at least 1.
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
 * [..., n_in] -> [..., n_out]. Parameters: weight [n_out, n_in], or [n_in, n_out] if `is_projection`; bias [n_out].
 * Initial values: as in PyTorch, weight and bias are uniform from -1 / sqrt(n_in) to 1 / sqrt(n_in). If `std` is not 0,
 * weights are normal with mean 0, and biases are 0.
 */
typedef struct shoal_nn_linear_options {
    size_t struct_size; /* sizeof(shoal_nn_linear_options) */
    int64_t n_in;
    int64_t n_out;
    bool has_no_bias;
    bool is_projection; /* the weight lies as [n_in, n_out], as GPT-2's do */
    double std;
    uint64_t seed;
    shoal_dtype dtype;   /* floating */
    shoal_device device; /* SHOAL_META: without memory and values */
} shoal_nn_linear_options;
#define SHOAL_NN_LINEAR_OPTIONS_INIT                                                                \
    {                                                                                               \
        sizeof(shoal_nn_linear_options), 0, 0, false, false, 0.0, (uint64_t)0, SHOAL_F32, SHOAL_CPU \
    }
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_linear_create(const shoal_nn_linear_options *options,
                                                               shoal_module **module_out);

/* Integer indices [...] -> [..., width]. Parameter: weight [n_rows, width], normal with mean 0. */
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
                                                                  shoal_module **module_out);

/* [..., width] -> the same. Parameters: weight [width], all 1, and bias [width], all 0, which an RMS norm has not. */
typedef struct shoal_nn_norm_options {
    size_t struct_size; /* sizeof(shoal_nn_norm_options) */
    int64_t width;
    double eps;
    bool has_no_bias; /* an RMS norm never has one */
    shoal_dtype dtype;
    shoal_device device;
} shoal_nn_norm_options;
#define SHOAL_NN_NORM_OPTIONS_INIT                                          \
    {                                                                       \
        sizeof(shoal_nn_norm_options), 0, 1e-5, false, SHOAL_F32, SHOAL_CPU \
    }
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_layer_norm_create(const shoal_nn_norm_options *options,
                                                                   shoal_module **module_out);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_rms_norm_create(const shoal_nn_norm_options *options,
                                                                 shoal_module **module_out);

/* Transformers ----------------------------------------------------------------------------------------- */

/*
 * What self-attention, MLP and block are made from; fields that the kind does not have are not looked at. All of them
 * take x [batch, T, width] and position (or NULL, or nothing) and give [batch, T, width].
 *     self-attention   c_attn (projection to queries, keys and values of all heads), attention, c_proj, dropout
 *     mlp              c_fc, GELU in its tanh form, c_proj, dropout
 *     block            x + attn(ln_1(x)), then x + mlp(ln_2(x)); without the dropout of the parts it is the same
 * Weights are normal with mean 0, biases 0, norms 1 and 0.
 */
typedef struct shoal_nn_block_options {
    size_t struct_size; /* sizeof(shoal_nn_block_options) */
    int64_t width;
    int64_t n_heads;     /* divides the width */
    int64_t hidden;      /* of the MLP; 0: 4 * width */
    bool is_causal;      /* position t looks at positions 0 to t only */
    double dropout;      /* from 0 to below 1: of attention weights, and of what each part adds to x */
    double eps;          /* of layer norms */
    double std;          /* of initial weights */
    double residual_std; /* of the two c_proj; 0: std */
    const char *path;    /* of the module within the model, for streams of dropout: "h.3"; NULL: "" */
    uint64_t seed;
    shoal_dtype dtype;
    shoal_device device;
} shoal_nn_block_options;
#define SHOAL_NN_BLOCK_OPTIONS_INIT                                                                        \
    {                                                                                                      \
        sizeof(shoal_nn_block_options), 0, 0, 0, true, 0.0, 1e-5, 0.02, 0.0, NULL, (uint64_t)0, SHOAL_F32, \
            SHOAL_CPU                                                                                      \
    }
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_self_attention_create(const shoal_nn_block_options *options,
                                                                       shoal_module **module_out);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_mlp_create(const shoal_nn_block_options *options,
                                                            shoal_module **module_out);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_block_create(const shoal_nn_block_options *options,
                                                              shoal_module **module_out);

/*
 * A GPT as GPT-2: tokens [batch, T] of any integer dtype but u64, T at most `context`, and position (or NULL, or
 * nothing) -> logits [batch, T, vocabulary]. Its child "transformer" can be called by itself, with the same inputs: it
 * gives what the output head gets, [batch, T, width].
 *
 * Names: transformer.wte.weight [vocabulary, width] and transformer.wpe.weight [context, width]; the blocks
 * transformer.h.0, ..., each with ln_1.{weight,bias}, attn.c_attn.{weight,bias}, attn.c_proj.{weight,bias},
 * ln_2.{weight,bias}, mlp.c_fc.{weight,bias} and mlp.c_proj.{weight,bias}; transformer.ln_f.{weight,bias}. The output
 * head is transformer.wte.weight once more; `is_untied`: it is lm_head.weight [vocabulary, width].
 *
 * Initial values as in GPT-2: weights are normal with std 0.02, those of attn.c_proj and mlp.c_proj 0.02 / sqrt(2 *
 * n_layers); biases are 0. Dropout: of the sum of the embeddings, of attention weights, and of what attention and MLP
 * add. Samples are rows of tokens: dimension 0 counts them.
 */
typedef struct shoal_nn_gpt_options {
    size_t struct_size; /* sizeof(shoal_nn_gpt_options) */
    int64_t n_layers;
    int64_t width;
    int64_t n_heads;
    int64_t context; /* the largest T */
    int64_t vocabulary;
    double dropout; /* from 0 to below 1 */
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
/* NULL options: the defaults above, the smallest GPT-2. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_gpt_create(const shoal_nn_gpt_options *options,
                                                            shoal_module **module_out);
/*
 * Block number `index` of a GPT, which is transformer.h.<index>, for a unit of shoal_fully_shard; borrowed. Embeddings,
 * ln_f and the output head belong together, to the unit of the GPT itself: the head reads the embedding once more. NULL
 * past the last block, without an error, and for a module that is no GPT.
 */
SHOAL_API shoal_module *shoal_nn_gpt_block(shoal_module *gpt, int64_t index);
/*
 * Adds all parameters of a GPT to a list, as shoal_items_add_module with the prefix "" does, sharded or not. Each also
 * has its name without "transformer." as an alias: files of GPT-2 on Hugging Face's hub have such names, files that
 * transformers writes of a GPT2LMHeadModel have the whole ones, and shoal_checkpoint_load takes both. What else is in
 * such files (masks: h.0.attn.bias) needs `allows_unexpected`.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_gpt_add_items(shoal_module *gpt, shoal_items *items);

/* All modules ------------------------------------------------------------------------------------------ */

/*
 * Gives the parameters of all ready-made modules in the tree their initial values again, with streams by their first
 * paths from `module`; other parameters are left alone. Before or after shoal_fully_shard, which makes no difference to
 * the values; also for parameters that were made on the meta device, after it. Not collective: every rank calls it. A
 * tree without ready-made modules is an error. After an error no value has changed.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_initialize_modules(shoal_module *module, uint64_t seed);

SHOAL_END_DECLS

#endif
