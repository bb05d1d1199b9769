/* SPDX-License-Identifier: MIT */
/* The table of a variant. Part of vector_loops.h. */

#define TABLE_NAME_(variant) nn_vectors_##variant
#define TABLE_NAME(variant) TABLE_NAME_(variant)
#define VARIANT_TEXT_(variant) #variant
#define VARIANT_TEXT(variant) VARIANT_TEXT_(variant)

static const struct nn_attention_loops attention_loops = ATTENTION_LOOPS;

const struct nn_vector_table TABLE_NAME(VARIANT) = {
    .name = VARIANT_TEXT(VARIANT),
    .exp = loop_exp,
    .log = loop_log,
    .tanh = loop_tanh,
    .erf = loop_erf,
    .sigmoid = loop_sigmoid,
    .silu = loop_silu,
    .gelu = loop_gelu,
    .gelu_tanh = loop_gelu_tanh,
    .tanh_backward = loop_tanh_backward,
    .sigmoid_backward = loop_sigmoid_backward,
    .silu_backward = loop_silu_backward,
    .gelu_backward = loop_gelu_backward,
    .gelu_tanh_backward = loop_gelu_tanh_backward,
    .from_f16 = loop_from_f16,
    .to_f16 = loop_to_f16,
    .from_bf16 = loop_from_bf16,
    .to_bf16 = loop_to_bf16,
    .maximum = loop_maximum,
    .sum = loop_sum,
    .sum_of_products = loop_sum_of_products,
    .sum_exp = loop_sum_exp,
    .scale = loop_scale,
    .attention = &attention_loops,
    .philox = loop_philox,
    .sgd = loop_sgd,
    .adamw = loop_adamw,
    .norm = loop_norm,
    .norm_backward = loop_norm_backward,
    .norm_weight_backward = loop_norm_weight_backward,
    .rms_norm = loop_rms_norm,
    .rms_norm_backward = loop_rms_norm_backward,
    .rms_norm_weight_backward = loop_rms_norm_weight_backward,
};
