/* SPDX-License-Identifier: MIT */
/*
 * Attention as ops: meta functions, the layout of their tensors, and the typed functions. The arithmetic is in
 * ops/attention_blocks.c. There are two forms, with three tensors and with one tensor that holds all three; both are turned into
 * the same struct nn_attention.
 */
#include <math.h>

#include "ops/attention_blocks.h"
#include "common/struct_size.h"
#include "ops/functions.h"
#include "shoal/autograd.h"
#include "shoal/ops.h"
#include "shoal/scope.h"
#include "shoal_nn/attention.h"
#include "common/try.h"
#include "ops/values.h"

enum {
    N_POSITION = 3, /* seed, step, first sample */
    N_PARTS = 3,    /* query, key, value */
    /* Dimensions of [samples, rows, heads, size] and of [samples, rows, 3, heads, size]. */
    N_DIMS = 4,
    N_PACKED_DIMS = 5,
    PART_DIM = 2
};

/* Arguments behind the tensors: position, is_causal, scale, dropout, stream. */
enum {
    POSITION,
    IS_CAUSAL,
    SCALE,
    DROPOUT,
    STREAM,
    N_OPTIONS
};

/* Arguments of a gradient in front of those of its op. */
enum {
    GRADIENT_ARGUMENT,
    OUTPUT_ARGUMENT,
    LSE_ARGUMENT,
    N_SAVED
};

/* Tensors in memory ------------------------------------------------------------------------------------ */

/* True when rows of the last dimension lie so that a product takes them. */
static bool lies_in_rows(const shoal_tensor *tensor)
{
    const int64_t *shape = shoal_tensor_shape(tensor);
    const int64_t *strides = shoal_tensor_strides(tensor);
    int last = shoal_tensor_n_dims(tensor) - 1;
    return shoal_tensor_dtype(tensor) == nn_real(shoal_tensor_dtype(tensor)) &&
           (strides[last] == 1 || shape[last] == 1) && (strides[1] >= shape[last] || shape[1] <= 1);
}

static size_t heads_bytes(const shoal_tensor *tensor)
{
    return lies_in_rows(tensor) ? 0
                                : nn_scratch_bytes((size_t)shoal_tensor_count(tensor),
                                                   shoal_dtype_bytes(nn_real(shoal_tensor_dtype(tensor))));
}

/* Heads of a tensor with these strides, or, without, of a contiguous copy of it. */
static struct nn_heads describe_heads(const shoal_tensor *tensor, const int64_t *strides, void *data)
{
    const int64_t *shape = shoal_tensor_shape(tensor);
    int n_dims = shoal_tensor_n_dims(tensor);
    int64_t size = shape[n_dims - 1];
    int64_t row_stride =
        n_dims == N_PACKED_DIMS ? size * shape[n_dims - 2] * N_PARTS : size * shape[n_dims - 2];
    return strides ? (struct nn_heads){.data = data,
                                       .sample_stride = strides[0],
                                       .row_stride = shape[1] > 1 ? strides[1] : size,
                                       .head_stride = strides[n_dims - 2]}
                   : (struct nn_heads){.data = data,
                                       .sample_stride = row_stride * shape[1],
                                       .row_stride = row_stride,
                                       .head_stride = size};
}

/* In place, or copied into the workspace. */
static shoal_status load_heads(shoal_op_call_context *call, const shoal_tensor *tensor,
                               struct nn_heads *heads_out)
{
    struct nn_values values;
    const void *data = shoal_data(tensor);
    if (!data) {
        return SHOAL_ERR_STATE; /* the text is there already */
    }
    if (lies_in_rows(tensor)) {
        /* Who loads does not write. */
        *heads_out = describe_heads(tensor, shoal_tensor_strides(tensor), (void *)(uintptr_t)data);
        return SHOAL_OK;
    }
    NN_TRY(nn_load(call, tensor, &values));
    *heads_out = describe_heads(tensor, NULL, values.data);
    return SHOAL_OK;
}

/* The three parts of a packed one, which starts where the first does. */
static void split_heads(const struct nn_attention *attention, struct nn_heads whole, int64_t part_stride,
                        struct nn_heads *const parts[N_PARTS])
{
    for (int i = 0; i < N_PARTS; i++) {
        *parts[i] = whole;
        parts[i]->data += i * part_stride * (int64_t)shoal_dtype_bytes(attention->real);
    }
}

static shoal_status load_packed(shoal_op_call_context *call, const shoal_tensor *tensor,
                                struct nn_attention *attention)
{
    const int64_t *shape = shoal_tensor_shape(tensor);
    struct nn_heads whole;
    NN_TRY(load_heads(call, tensor, &whole));
    int64_t stride = lies_in_rows(tensor) ? shoal_tensor_strides(tensor)[PART_DIM] : shape[3] * shape[4];
    split_heads(attention, whole, stride,
                (struct nn_heads *const[]){&attention->query, &attention->key, &attention->value});
    return SHOAL_OK;
}

/* Shapes ----------------------------------------------------------------------------------------------- */

static shoal_status check_options(const shoal_value *options)
{
    const shoal_tensor *position = nn_argument(&options[POSITION]);
    double scale = options[SCALE].as.real;
    double dropout = options[DROPOUT].as.real;
    if (!isfinite(scale)) {
        return shoal_fail(SHOAL_ERR_INVALID, "scale: %g is not finite", scale);
    }
    if (!(dropout >= 0 && dropout <= 1)) {
        return shoal_fail(SHOAL_ERR_INVALID, "dropout: %g is not a probability from 0 to 1", dropout);
    }
    if (dropout > 0 && !position) {
        return shoal_fail(SHOAL_ERR_INVALID, "dropout is %g, but there is no position", dropout);
    }
    if (position && shoal_tensor_dtype(position) != SHOAL_I64) {
        return shoal_fail(SHOAL_ERR_INVALID, "position is %s, not i64",
                          shoal_dtype_name(shoal_tensor_dtype(position)));
    }
    return nn_check_vector(position, "position", N_POSITION, "seed, step and first sample");
}

static shoal_status check_dims(const shoal_tensor *tensor, const char *name, int n_dims, const char *dims)
{
    NN_TRY(nn_check_floating(tensor, name));
    if (shoal_tensor_n_dims(tensor) != n_dims) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s has shape %s, not [%s]", name, nn_shape_text(tensor).text,
                          dims);
    }
    if (shoal_tensor_shape(tensor)[n_dims - 1] < 1) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s has shape %s: heads of size 0", name,
                          nn_shape_text(tensor).text);
    }
    return SHOAL_OK;
}

static shoal_status check_parts(const shoal_tensor *query, const shoal_tensor *key, const shoal_tensor *value)
{
    NN_TRY(check_dims(query, "query", N_DIMS, "samples, queries, heads, size"));
    NN_TRY(check_dims(key, "key", N_DIMS, "samples, keys, heads, size"));
    NN_TRY(nn_check_dtype(key, "key", shoal_tensor_dtype(query), "query"));
    NN_TRY(nn_check_dtype(value, "value", shoal_tensor_dtype(query), "query"));
    NN_TRY(nn_check_same_shape(value, "value", key, "key"));
    const int64_t *shape = shoal_tensor_shape(query);
    const int64_t *key_shape = shoal_tensor_shape(key);
    if (shape[0] != key_shape[0] || shape[3] != key_shape[3]) {
        return shoal_fail(SHOAL_ERR_INVALID,
                          "query has shape %s, key %s: the numbers of samples or the sizes of heads differ",
                          nn_shape_text(query).text, nn_shape_text(key).text);
    }
    if (key_shape[2] < 1 || shape[2] % key_shape[2] != 0) {
        return shoal_fail(
            SHOAL_ERR_INVALID, "query has shape %s, key %s: %lld heads are not a multiple of %lld",
            nn_shape_text(query).text, nn_shape_text(key).text, (long long)shape[2], (long long)key_shape[2]);
    }
    return SHOAL_OK;
}

/* The output and the log-sum-exps. */
static shoal_status declare_results(shoal_op_call_context *call, const shoal_tensor *from, int64_t n_heads,
                                    int64_t size)
{
    const int64_t *shape = shoal_tensor_shape(from);
    const int64_t output[] = {shape[0], shape[1], n_heads, size};
    const int64_t lse[] = {shape[0], n_heads, shape[1]};
    NN_TRY(shoal_op_output(call, output, N_DIMS, shoal_tensor_dtype(from)));
    return shoal_op_output(call, lse, 3, nn_real(shoal_tensor_dtype(from)));
}

META(attention)
{
    const shoal_tensor *query = arguments[0].as.tensor;
    NN_TRY(check_parts(query, arguments[1].as.tensor, arguments[2].as.tensor));
    NN_TRY(check_options(arguments + N_PARTS));
    return declare_results(call, query, shoal_tensor_shape(query)[2], shoal_tensor_shape(query)[3]);
}

static shoal_status check_packed(const shoal_tensor *self)
{
    NN_TRY(check_dims(self, "self", N_PACKED_DIMS, "samples, tokens, 3, heads, size"));
    if (shoal_tensor_shape(self)[PART_DIM] != N_PARTS) {
        return shoal_fail(SHOAL_ERR_INVALID, "self has shape %s: dimension 2 is not query, key and value",
                          nn_shape_text(self).text);
    }
    return SHOAL_OK;
}

META(attention_packed)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    NN_TRY(check_packed(self));
    NN_TRY(check_options(arguments + 1));
    return declare_results(call, self, shoal_tensor_shape(self)[3], shoal_tensor_shape(self)[4]);
}

/* What the gradients take in front: of the output, the output, and the log-sum-exps. */
static shoal_status check_saved(const shoal_value *arguments, const shoal_tensor *from, int64_t n_heads)
{
    const shoal_tensor *gradient = arguments[GRADIENT_ARGUMENT].as.tensor;
    const shoal_tensor *output = arguments[OUTPUT_ARGUMENT].as.tensor;
    const shoal_tensor *lse = arguments[LSE_ARGUMENT].as.tensor;
    shoal_dtype dtype = shoal_tensor_dtype(from);
    const int64_t *shape = shoal_tensor_shape(from);
    NN_TRY(check_dims(output, "output", N_DIMS, "samples, queries, heads, size"));
    NN_TRY(nn_check_dtype(output, "output", dtype, "query"));
    NN_TRY(nn_check_dtype(gradient, "gradient", dtype, "query"));
    NN_TRY(nn_check_same_shape(gradient, "gradient", output, "output"));
    NN_TRY(nn_check_dtype(lse, "lse", nn_real(dtype), "what is computed in"));
    const int64_t *output_shape = shoal_tensor_shape(output);
    if (output_shape[0] != shape[0] || output_shape[1] != shape[1] || output_shape[2] != n_heads ||
        output_shape[3] != shape[shoal_tensor_n_dims(from) - 1] ||
        shoal_tensor_count(lse) != shape[0] * shape[1] * n_heads) {
        return shoal_fail(SHOAL_ERR_INVALID, "output has shape %s, lse %s: not those of query %s",
                          nn_shape_text(output).text, nn_shape_text(lse).text, nn_shape_text(from).text);
    }
    return SHOAL_OK;
}

META(attention_backward)
{
    const shoal_value *parts = arguments + N_SAVED;
    const shoal_tensor *query = parts[0].as.tensor;
    NN_TRY(check_parts(query, parts[1].as.tensor, parts[2].as.tensor));
    NN_TRY(check_saved(arguments, query, shoal_tensor_shape(query)[2]));
    NN_TRY(check_options(parts + N_PARTS));
    for (int i = 0; i < N_PARTS; i++) {
        const shoal_tensor *part = parts[i].as.tensor;
        NN_TRY(shoal_op_output(call, shoal_tensor_shape(part), N_DIMS, shoal_tensor_dtype(part)));
    }
    return SHOAL_OK;
}

META(attention_packed_backward)
{
    const shoal_tensor *self = arguments[N_SAVED].as.tensor;
    NN_TRY(check_packed(self));
    NN_TRY(check_saved(arguments, self, shoal_tensor_shape(self)[3]));
    NN_TRY(check_options(arguments + N_SAVED + 1));
    return shoal_op_output(call, shoal_tensor_shape(self), N_PACKED_DIMS, shoal_tensor_dtype(self));
}

/* Sizes ------------------------------------------------------------------------------------------------ */

static struct nn_attention describe(const shoal_tensor *query, const shoal_tensor *key,
                                    const shoal_value *options)
{
    const int64_t *shape = shoal_tensor_shape(query);
    int n_dims = shoal_tensor_n_dims(query);
    int64_t size = shape[n_dims - 1];
    double scale = options[SCALE].as.real;
    return (struct nn_attention){.real = nn_real(shoal_tensor_dtype(query)),
                                 .n_samples = shape[0],
                                 .n_queries = shape[1],
                                 .n_keys = shoal_tensor_shape(key)[1],
                                 .n_heads = shape[n_dims - 2],
                                 .n_kv_heads = shoal_tensor_shape(key)[n_dims - 2],
                                 .size = size,
                                 .is_causal = options[IS_CAUSAL].as.boolean,
                                 .scale = scale != 0 ? scale : 1 / sqrt((double)size),
                                 .dropout = options[DROPOUT].as.real};
}

static struct nn_attention describe_parts(const shoal_value *parts)
{
    return describe(parts[0].as.tensor, parts[1].as.tensor, parts + N_PARTS);
}

static struct nn_attention describe_packed(const shoal_value *self)
{
    return describe(self->as.tensor, self->as.tensor, self + 1);
}

/* What is loaded and opened beside the parts: the position and the results, of which there are two or three. */
static size_t common_bytes(const struct nn_attention *attention, const shoal_value *options, bool is_backward,
                           shoal_tensor *const *outputs, size_t n_outputs)
{
    const shoal_tensor *position = nn_argument(&options[POSITION]);
    size_t bytes = nn_attention_scratch_bytes(attention, is_backward);
    bytes += attention->dropout > 0 ? nn_values_bytes(position) : 0;
    for (size_t i = 0; i < n_outputs; i++) {
        bytes += nn_values_bytes(outputs[i]);
    }
    return bytes;
}

static size_t saved_bytes(const shoal_value *arguments)
{
    return heads_bytes(arguments[GRADIENT_ARGUMENT].as.tensor) +
           heads_bytes(arguments[OUTPUT_ARGUMENT].as.tensor) +
           nn_values_bytes(arguments[LSE_ARGUMENT].as.tensor);
}

static size_t parts_bytes(const shoal_value *parts)
{
    return heads_bytes(parts[0].as.tensor) + heads_bytes(parts[1].as.tensor) +
           heads_bytes(parts[2].as.tensor);
}

WORKSPACE(attention)
{
    struct nn_attention attention = describe_parts(arguments);
    return parts_bytes(arguments) + common_bytes(&attention, arguments + N_PARTS, false, outputs, n_outputs);
}

WORKSPACE(attention_packed)
{
    struct nn_attention attention = describe_packed(arguments);
    return heads_bytes(arguments[0].as.tensor) +
           common_bytes(&attention, arguments + 1, false, outputs, n_outputs);
}

WORKSPACE(attention_backward)
{
    const shoal_value *parts = arguments + N_SAVED;
    struct nn_attention attention = describe_parts(parts);
    return saved_bytes(arguments) + parts_bytes(parts) +
           common_bytes(&attention, parts + N_PARTS, true, outputs, n_outputs);
}

WORKSPACE(attention_packed_backward)
{
    const shoal_value *self = arguments + N_SAVED;
    struct nn_attention attention = describe_packed(self);
    return saved_bytes(arguments) + heads_bytes(self->as.tensor) +
           common_bytes(&attention, self + 1, true, outputs, n_outputs);
}

/* Running ---------------------------------------------------------------------------------------------- */

static shoal_status load_parts(shoal_op_call_context *call, const shoal_value *parts,
                               struct nn_attention *attention)
{
    NN_TRY(load_heads(call, parts[0].as.tensor, &attention->query));
    NN_TRY(load_heads(call, parts[1].as.tensor, &attention->key));
    return load_heads(call, parts[2].as.tensor, &attention->value);
}

static shoal_status load_draws(shoal_op_call_context *call, const shoal_value *options,
                               struct nn_attention *attention)
{
    struct nn_values position;
    if (attention->dropout > 0) {
        NN_TRY(nn_load_integers(call, options[POSITION].as.tensor, &position));
        const int64_t *numbers = position.data;
        const shoal_nn_draws draws = {.seed = (uint64_t)numbers[0],
                                      .stream = (uint64_t)options[STREAM].as.integer,
                                      .step = (uint64_t)numbers[1],
                                      .sample = (uint64_t)numbers[2]};
        attention->draws = nn_sequence_of(&draws);
    }
    return SHOAL_OK;
}

static shoal_status run_forward(shoal_op_call_context *call, const shoal_value *options,
                                struct nn_attention *attention, shoal_tensor *const *outputs)
{
    struct nn_values output;
    struct nn_values lse;
    void *scratch;
    size_t scratch_bytes = nn_attention_scratch_bytes(attention, /*is_backward=*/false);
    NN_TRY(load_draws(call, options, attention));
    NN_TRY(nn_open(call, outputs[0], /*keeps_values=*/false, &output));
    NN_TRY(nn_open(call, outputs[1], /*keeps_values=*/false, &lse));
    NN_TRY(nn_scratch(call, scratch_bytes, 1, &scratch));
    attention->output = describe_heads(outputs[0], NULL, output.data);
    attention->lse = lse.data;
    nn_attention_forward(attention, scratch, scratch_bytes);
    nn_store(outputs[0], &output);
    nn_store(outputs[1], &lse);
    return SHOAL_OK;
}

RUN(attention)
{
    struct nn_attention attention = describe_parts(arguments);
    NN_TRY(load_parts(call, arguments, &attention));
    return run_forward(call, arguments + N_PARTS, &attention, outputs);
}

RUN(attention_packed)
{
    struct nn_attention attention = describe_packed(arguments);
    NN_TRY(load_packed(call, arguments[0].as.tensor, &attention));
    return run_forward(call, arguments + 1, &attention, outputs);
}

static shoal_status run_backward(shoal_op_call_context *call, const shoal_value *arguments,
                                 const shoal_value *options, struct nn_attention *attention)
{
    struct nn_values lse;
    void *scratch;
    size_t scratch_bytes = nn_attention_scratch_bytes(attention, /*is_backward=*/true);
    NN_TRY(load_draws(call, options, attention));
    NN_TRY(load_heads(call, arguments[GRADIENT_ARGUMENT].as.tensor, &attention->gradient));
    NN_TRY(load_heads(call, arguments[OUTPUT_ARGUMENT].as.tensor, &attention->output));
    NN_TRY(nn_load(call, arguments[LSE_ARGUMENT].as.tensor, &lse));
    NN_TRY(nn_scratch(call, scratch_bytes, 1, &scratch));
    attention->lse = lse.data;
    nn_attention_backward(attention, scratch, scratch_bytes);
    return SHOAL_OK;
}

RUN(attention_backward)
{
    const shoal_value *parts = arguments + N_SAVED;
    struct nn_attention attention = describe_parts(parts);
    struct nn_heads *const gradients[] = {&attention.query_gradient, &attention.key_gradient,
                                          &attention.value_gradient};
    struct nn_values values[N_PARTS];
    NN_TRY(load_parts(call, parts, &attention));
    for (int i = 0; i < N_PARTS; i++) {
        NN_TRY(nn_open(call, outputs[i], /*keeps_values=*/false, &values[i]));
        *gradients[i] = describe_heads(outputs[i], NULL, values[i].data);
    }
    NN_TRY(run_backward(call, arguments, parts + N_PARTS, &attention));
    for (int i = 0; i < N_PARTS; i++) {
        nn_store(outputs[i], &values[i]);
    }
    return SHOAL_OK;
}

RUN(attention_packed_backward)
{
    const shoal_value *self = arguments + N_SAVED;
    struct nn_attention attention = describe_packed(self);
    struct nn_heads *const gradients[] = {&attention.query_gradient, &attention.key_gradient,
                                          &attention.value_gradient};
    struct nn_values values;
    NN_TRY(load_packed(call, self->as.tensor, &attention));
    NN_TRY(nn_open(call, outputs[0], /*keeps_values=*/false, &values));
    split_heads(&attention, describe_heads(outputs[0], NULL, values.data), attention.n_heads * attention.size,
                gradients);
    NN_TRY(run_backward(call, arguments, self + 1, &attention));
    nn_store(outputs[0], &values);
    return SHOAL_OK;
}

/* Gradients -------------------------------------------------------------------------------------------- */

static shoal_status check_flow(shoal_tensor *const *output_gradients)
{
    return output_gradients[1]
               ? shoal_fail(SHOAL_ERR_UNSUPPORTED, "no gradient flows through the log-sum-exps")
               : SHOAL_OK;
}

GRADIENT(attention)
{
    shoal_tensor *gradients[N_PARTS];
    shoal_value values[N_SAVED + N_PARTS + N_OPTIONS] = {nn_tensor(output_gradients[0]),
                                                         nn_tensor(outputs[0]), nn_tensor(outputs[1])};
    NN_TRY(check_flow(output_gradients));
    for (int i = 0; i < N_PARTS + N_OPTIONS; i++) {
        values[N_SAVED + i] = arguments[i];
    }
    NN_TRY(nn_call_list(NN_OP_attention_backward, values, N_SAVED + N_PARTS + N_OPTIONS, gradients, N_PARTS));
    for (size_t i = 0; i < N_PARTS; i++) {
        input_gradients[i] = shoal_op_needs_gradient(call, i) ? gradients[i] : NULL;
    }
    return SHOAL_OK;
}

GRADIENT(attention_packed)
{
    shoal_value values[N_SAVED + 1 + N_OPTIONS] = {nn_tensor(output_gradients[0]), nn_tensor(outputs[0]),
                                                   nn_tensor(outputs[1])};
    NN_TRY(check_flow(output_gradients));
    for (int i = 0; i < 1 + N_OPTIONS; i++) {
        values[N_SAVED + i] = arguments[i];
    }
    input_gradients[0] = nn_call(NN_OP_attention_packed_backward, values, N_SAVED + 1 + N_OPTIONS);
    return shoal_scope_error();
}

/* Typed functions -------------------------------------------------------------------------------------- */

/* The first result of a call with these tensors. */
static shoal_tensor *call_attention(const char *name, enum nn_op op, shoal_tensor *const *tensors, size_t n,
                                    const shoal_nn_attention_options *given)
{
    shoal_nn_attention_options options = SHOAL_NN_ATTENTION_OPTIONS_INIT;
    shoal_value arguments[N_PARTS + N_OPTIONS];
    shoal_tensor *output = NULL;
    bool needs_gradient = false;
    shoal_status status =
        given ? nn_struct_read(name, "options", given, &options, sizeof(options)) : SHOAL_OK;
    if (status != SHOAL_OK) {
        (void)shoal_scope_fail(status);
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        arguments[i] = nn_tensor(tensors[i]);
        needs_gradient = needs_gradient || (tensors[i] && shoal_requires_grad(tensors[i]));
    }
    shoal_tensor *position = options.dropout > 0 ? options.position : NULL;
    /* The gradient reads the position again: it has a copy, as in shoal_nn_dropout. */
    if (position && needs_gradient) {
        position = shoal_clone(position);
    }
    arguments[n + POSITION] = nn_optional(position);
    arguments[n + IS_CAUSAL] = nn_bool(options.is_causal);
    arguments[n + SCALE] = nn_float(options.scale);
    arguments[n + DROPOUT] = nn_float(options.dropout);
    arguments[n + STREAM] = nn_int((int64_t)options.stream);
    return nn_call_list(op, arguments, n + N_OPTIONS, &output, 1) == SHOAL_OK ? output : NULL;
}

shoal_tensor *shoal_nn_attention(shoal_tensor *query, shoal_tensor *key, shoal_tensor *value,
                                 const shoal_nn_attention_options *options)
{
    shoal_tensor *const tensors[] = {query, key, value};
    return call_attention("nn_attention", NN_OP_attention, tensors, N_PARTS, options);
}

shoal_tensor *shoal_nn_attention_packed(shoal_tensor *qkv, const shoal_nn_attention_options *options)
{
    return call_attention("nn_attention_packed", NN_OP_attention_packed, &qkv, 1, options);
}
