/* SPDX-License-Identifier: MIT */
/* The functions that the rows of ops.def name, once each. */
#ifndef NN_OPS_FUNCTIONS_H
#define NN_OPS_FUNCTIONS_H

#include "ops/ops.h"

META(matmul);
RUN(matmul);
WORKSPACE(matmul);
WORKSPACE(layer_norm);
WORKSPACE(layer_norm_backward);
GRADIENT(matmul);
META(linear);
RUN(linear);
WORKSPACE(linear);
GRADIENT(linear);

META(projection);
RUN(projection);
WORKSPACE(projection);
GRADIENT(projection);

META(bmm);
RUN(bmm);
WORKSPACE(bmm);
GRADIENT(bmm);

META(activation);
RUN(activation);
WORKSPACE(activation);
GRADIENT(activation);
META(activation_backward);
RUN(activation_backward);
WORKSPACE(activation_backward);

META(softmax);
RUN(softmax);
WORKSPACE(softmax);
GRADIENT(softmax);
META(softmax_backward);
RUN(softmax_backward);
WORKSPACE(softmax_backward);

META(mse);
RUN(mse);
GRADIENT(mse);
META(mse_backward);
RUN(mse_backward);
META(cross_entropy);
RUN(cross_entropy);
WORKSPACE(cross_entropy);
GRADIENT(cross_entropy);
META(cross_entropy_backward);
RUN(cross_entropy_backward);
WORKSPACE(cross_entropy_backward);

META(embedding);
RUN(embedding);
WORKSPACE(embedding);
GRADIENT(embedding);
META(embedding_backward);
RUN(embedding_backward);

META(dropout);
RUN(dropout);
GRADIENT(dropout);

META(attention);
RUN(attention);
WORKSPACE(attention);
GRADIENT(attention);
META(attention_backward);
RUN(attention_backward);
WORKSPACE(attention_backward);
META(attention_packed);
RUN(attention_packed);
WORKSPACE(attention_packed);
GRADIENT(attention_packed);
META(attention_packed_backward);
RUN(attention_packed_backward);
WORKSPACE(attention_packed_backward);

META(layer_norm);
RUN(layer_norm);
GRADIENT(layer_norm);
META(layer_norm_backward);
RUN(layer_norm_backward);
META(layer_norm_weight_backward);
RUN(layer_norm_weight_backward);
WORKSPACE(layer_norm_weight_backward);

META(rms_norm);
RUN(rms_norm);
WORKSPACE(rms_norm);
GRADIENT(rms_norm);
META(rms_norm_backward);
RUN(rms_norm_backward);
WORKSPACE(rms_norm_backward);
META(rms_norm_weight_backward);
RUN(rms_norm_weight_backward);
WORKSPACE(rms_norm_weight_backward);
META(rotary);
RUN(rotary);
WORKSPACE(rotary);
GRADIENT(rotary);

META(where);
RUN(where);
WORKSPACE(where);
GRADIENT(where);
META(masked_fill);
RUN(masked_fill);
WORKSPACE(masked_fill);
GRADIENT(masked_fill);
META(max);
RUN(max);
WORKSPACE(max);
GRADIENT(max);
META(max_backward);
RUN(max_backward);
WORKSPACE(max_backward);
META(argmax);
RUN(argmax);
WORKSPACE(argmax);
META(index_select);
RUN(index_select);
WORKSPACE(index_select);
GRADIENT(index_select);
META(index_select_backward);
RUN(index_select_backward);
WORKSPACE(index_select_backward);

#endif
