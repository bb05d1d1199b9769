/* SPDX-License-Identifier: MIT */
/*
 * Attention on plain memory, in blocks. A block of queries is multiplied with one block of keys after the other, and
 * only the scores of the current pair of blocks are in memory. The softmax is computed along the way, from a running
 * maximum and a running sum for each query. The backward pass computes the weights again from the logarithm of that
 * sum.
 *
 * Bits: the products of a block, and the order in which blocks are added, depend on the sizes only. They do not depend
 * on the number of threads, on other samples or heads, or on strides.
 */
#ifndef NN_OPS_ATTENTION_BLOCKS_H
#define NN_OPS_ATTENTION_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "math/draws.h"
#include "shoal/dtype.h"

/* [samples, rows, heads, size] in memory: the last dimension is contiguous, strides are in elements. */
struct nn_heads {
    char *data;
    int64_t sample_stride;
    int64_t row_stride;
    int64_t head_stride;
};

struct nn_attention {
    shoal_dtype real; /* SHOAL_F32 or SHOAL_F64, of all that follows */
    int64_t n_samples;
    int64_t n_queries;
    int64_t n_keys;
    int64_t n_heads;
    int64_t n_kv_heads; /* n_heads / n_kv_heads heads of queries share one of keys and values */
    int64_t size;
    bool is_causal; /* query i sees keys up to i + n_keys - n_queries */
    double scale;
    double dropout;
    struct nn_sequence draws; /* of the first sample */

    struct nn_heads query;
    struct nn_heads key;
    struct nn_heads value;
    struct nn_heads output; /* written by the forward pass, read by the backward pass */
    void *lse;              /* [samples, heads, queries], contiguous; as the output */

    struct nn_heads gradient; /* of the output; this and those that follow are for the backward pass only */
    struct nn_heads query_gradient;
    struct nn_heads key_gradient;
    struct nn_heads value_gradient;
};

/*
 * How many bytes of scratch memory the forward pass, or the backward pass, needs: blocks of scores, queries, keys and
 * results for each thread. The size does not grow with the number of queries or keys.
 */
size_t nn_attention_scratch_bytes(const struct nn_attention *attention, bool is_backward);

/* In scratch memory of that size. On as many threads as there is scratch memory for. */
void nn_attention_forward(const struct nn_attention *attention, void *scratch, size_t scratch_bytes);
void nn_attention_backward(const struct nn_attention *attention, void *scratch, size_t scratch_bytes);

#endif
