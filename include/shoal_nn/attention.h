/* SPDX-License-Identifier: MIT */
/*
 * Scaled dot-product attention: softmax(scale * query key^T) value, for each head separately. Memory grows linearly
 * with the number of tokens: scores exist only in blocks, and the backward pass computes them again from the output and
 * one number per query (the logarithm of the sum of its exponentials).
 *
 *     shoal_tensor *qkv = shoal_nn_linear(x, weight, bias);               [batch, T, 3 * width]
 *     qkv = shoal_view(qkv, (int64_t[]){batch, T, 3, n_heads, size}, 5);  size = width / n_heads
 *     shoal_tensor *y = shoal_nn_attention_packed(qkv, NULL);             [batch, T, n_heads, size]
 *
 * Layout: dimensions are samples, tokens, heads, size. Any strides are used in place, also of parts of a larger
 * tensor and of transposed views of [samples, heads, tokens, size], if the last dimension is contiguous; otherwise the
 * tensor is copied first.
 *
 * Causal: with T queries and S keys, query i sees keys 0 .. i + S - T. The last query sees all keys, as in a decoder
 * that keeps the keys of earlier tokens. For T = S this is PyTorch's is_causal; for other lengths PyTorch counts from
 * the first query. A query that sees no key gives zeros. An infinity or NaN among the values can also turn queries into
 * NaN that do not see it: their weight for it is 0, and 0 times infinity is NaN.
 *
 * Dropout sets weights to 0 after the softmax, and multiplies the others by 1 / (1 - dropout). The mask is made as by
 * shoal_nn_dropout (shoal_nn/random.h), in which the weight of (head, query, key) is element (head * T + query) * S +
 * key of its sample. It is the same in the backward pass, in every micro-batch and on every rank.
 *
 * Dtypes: f64 is computed in f64; f32, bf16 and f16 in f32, with one rounding of the results. Gradients of 16-bit
 * results use the rounded output.
 * Bits: the results of a sample depend on its own values and on T, S and the number of heads, but not on the number of
 * threads, on other samples or on strides. Gradients of keys and values are summed in the order of queries. No BLAS is
 * used: f32, bf16 and f16 have the same bits on every machine. (f64 uses exp and log of libm.)
 *
 * Ownership, threads, errors: as in shoal_nn/nn.h.
 */
#ifndef SHOAL_NN_ATTENTION_H
#define SHOAL_NN_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/api.h"
#include "shoal/tensor.h"

SHOAL_BEGIN_DECLS

typedef struct shoal_nn_attention_options {
    size_t struct_size; /* sizeof(shoal_nn_attention_options) */
    bool is_causal;
    double scale;           /* factor of the scores; 0 means 1 / sqrt(size) */
    double dropout;         /* the probability that a weight is dropped; 0 means no dropout */
    shoal_tensor *position; /* i64 [3]: seed, step, first sample (shoal_nn_dropout); NULL without dropout */
    uint64_t stream;        /* of the dropout (shoal_nn_stream) */
} shoal_nn_attention_options;
#define SHOAL_NN_ATTENTION_OPTIONS_INIT                             \
    {                                                               \
        sizeof(shoal_nn_attention_options), true, 0.0, 0.0, NULL, 0 \
    }

/*
 * Computes the attention of query [batch, T, heads, size] to key and value [batch, S, kv_heads, size], all of one
 * dtype. The result is [batch, T, heads, size]. heads is a multiple of kv_heads: heads / kv_heads consecutive heads of
 * queries share one head of keys and values. If options is NULL, SHOAL_NN_ATTENTION_OPTIONS_INIT holds, which is
 * causal. The op is "nn.attention"; it also gives the logarithms of the sums of exponentials, [batch, heads, T] in f32
 * (f64 for f64), which have no gradient.
 */
SHOAL_API shoal_tensor *shoal_nn_attention(shoal_tensor *query, shoal_tensor *key, shoal_tensor *value,
                                           const shoal_nn_attention_options *options);

/*
 * Computes the attention of queries, keys and values that are one tensor [batch, T, 3, heads, size], in this order. The
 * result is [batch, T, heads, size]. The gradient is one tensor, too, without copies. The op is "nn.attention_packed".
 */
SHOAL_API shoal_tensor *shoal_nn_attention_packed(shoal_tensor *qkv,
                                                  const shoal_nn_attention_options *options);

SHOAL_END_DECLS

#endif
