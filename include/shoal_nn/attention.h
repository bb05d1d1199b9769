/* SPDX-License-Identifier: MIT */
/*
 * Scaled dot-product attention: softmax(scale * query key^T) value, for each head by itself. Any length: scores exist
 * in blocks only, and the gradient makes them again from the output and one number for each query (the logarithm of the
 * sum of its exponentials). Memory grows linearly with the length.
 *
 * Layout: dimension 0 counts samples, 1 tokens, 2 heads. The last one lies contiguously in memory, or else the tensor
 * is copied first. Other strides are used in place: parts of a larger tensor, and transposed views of
 * [samples, heads, tokens, size], cost nothing.
 *
 * Causal: with T queries and S keys, query i sees keys 0 .. i + S - T. The last query sees all keys, as in a decoder
 * that keeps the keys of earlier tokens. For T = S this is PyTorch's is_causal, which for other lengths counts from
 * the first query instead. A query that sees no key gives zeros. A value that is not finite makes NaN of queries that
 * are computed with it, also of some that do not see it: their weights are 0, and 0 times infinity is NaN.
 *
 * Dropout drops weights after the softmax and multiplies the others by 1 / (1 - dropout). The weight of (head, query,
 * key) is element (head * T + query) * S + key of its sample, by the rules of shoal_nn_dropout (shoal_nn/random.h): the
 * mask is the same in the gradient, in every micro-batch and on every rank.
 *
 * Dtypes: f64 in f64; f32, bf16 and f16 in f32 with one rounding of the results. Gradients of 16-bit results use the
 * rounded output.
 * Bits: those of a sample depend on its own values and on T, S and the number of heads; not on the number of threads,
 * on the other samples or on strides. The gradients of keys and values are added in the order of queries. No BLAS is
 * used: f32, bf16 and f16 have the same bits on every machine. (f64 uses exp and log of libm.)
 *
 * Ownership, threads, errors: as in shoal_nn/nn.h.
 *
 *     shoal_tensor *qkv = shoal_nn_linear(x, weight, bias);               [batch, T, 3 * width]
 *     qkv = shoal_view(qkv, (int64_t[]){batch, T, 3, n_heads, size}, 5);  size = width / n_heads
 *     shoal_tensor *y = shoal_nn_attention_packed(qkv, NULL);             [batch, T, n_heads, size]
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
    double scale;           /* of the scores; 0: 1 / sqrt(size) */
    double dropout;         /* the probability; 0: none */
    shoal_tensor *position; /* i64 [3]: seed, step, first sample; may be NULL without dropout */
    uint64_t stream;        /* of the dropout */
} shoal_nn_attention_options;
#define SHOAL_NN_ATTENTION_OPTIONS_INIT                             \
    {                                                               \
        sizeof(shoal_nn_attention_options), true, 0.0, 0.0, NULL, 0 \
    }

/*
 * query [batch, T, heads, size], key and value [batch, S, kv_heads, size], of one dtype: [batch, T, heads, size]. heads
 * is a multiple of kv_heads: heads / kv_heads heads of queries, one after the other, share one of keys. NULL options
 * are SHOAL_NN_ATTENTION_OPTIONS_INIT. Op: "nn.attention", which gives the log-sum-exps [batch, heads, T] too (f32; f64
 * of f64), through which no gradient flows.
 */
SHOAL_API shoal_tensor *shoal_nn_attention(shoal_tensor *query, shoal_tensor *key, shoal_tensor *value,
                                           const shoal_nn_attention_options *options);

/*
 * Attention of queries, keys and values that lie in one tensor [batch, T, 3, heads, size], in this order. The gradient
 * is one tensor too, so that no copies are needed to make one. Op: "nn.attention_packed".
 */
SHOAL_API shoal_tensor *shoal_nn_attention_packed(shoal_tensor *qkv,
                                                  const shoal_nn_attention_options *options);

SHOAL_END_DECLS

#endif
