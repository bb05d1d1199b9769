/* SPDX-License-Identifier: MIT */
/*
 * The cases of `shoal bench nn`. Layers are compared with products of the same shapes on plain memory, attention with a
 * product of 1024 x 1024 x 1024, functions of elements and rows with memcpy of the bytes that they read and write.
 */
#include "bench/nn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shoal_nn/attention.h"
#include "shoal_nn/nn.h"
#include "shoal_nn/random.h"

enum {
    HEAD = 64,
    CUBE = 1024
};

/* Tensors ------------------------------------------------------------------------------------------------ */

/* Numbers from -1 to 1, the same in every run. A reference of the caller's. */
static shoal_tensor *make_numbers(const int64_t *shape, int n_dims, shoal_dtype dtype)
{
    shoal_tensor *floats = shoal_empty(shape, n_dims, SHOAL_F32);
    float *data = shoal_mutable_data(floats);
    uint32_t bits = 1;
    for (int64_t i = 0; data && i < shoal_tensor_count(floats); i++) {
        bits = bits * 1664525u + 1013904223u;
        data[i] = (float)(int32_t)bits * 0x1p-31f;
    }
    shoal_tensor *numbers = data ? shoal_to_dtype(floats, dtype) : NULL;
    return numbers ? shoal_tensor_ref(numbers) : NULL;
}

static shoal_tensor *make_classes(int64_t count, int64_t n_classes)
{
    shoal_tensor *tensor = shoal_empty(&count, 1, SHOAL_I64);
    int64_t *data = shoal_mutable_data(tensor);
    for (int64_t i = 0; data && i < count; i++) {
        data[i] = i * 7919 % n_classes;
    }
    return data ? shoal_tensor_ref(tensor) : NULL;
}

static bool make_layer(struct nn_state *state)
{
    const struct nn_case *which = state->which;
    const int64_t input[] = {state->size, which->in};
    const int64_t transposed[] = {which->out, which->in};
    const int64_t weight[] = {which->in, which->out};
    bool is_linear = strcmp(which->name, "linear") == 0;
    state->inputs[0] = make_numbers(input, 2, state->dtype);
    state->inputs[1] = make_numbers(is_linear ? transposed : weight, 2, state->dtype);
    state->inputs[2] = make_numbers(&which->out, 1, state->dtype);
    return state->inputs[0] && state->inputs[1] && state->inputs[2];
}

static bool make_heads(struct nn_state *state)
{
    const int64_t shape[] = {1, state->size, 3, state->which->in, HEAD};
    state->inputs[0] = make_numbers(shape, 5, state->dtype);
    return state->inputs[0] != NULL;
}

/* Rows of `in` elements. */
static bool make_rows(struct nn_state *state)
{
    int64_t n_rows = state->size / state->which->in > 0 ? state->size / state->which->in : 1;
    const int64_t shape[] = {n_rows, state->which->in};
    state->inputs[0] = make_numbers(shape, 2, state->dtype);
    return state->inputs[0] != NULL;
}

static bool make_norm(struct nn_state *state)
{
    if (!make_rows(state)) {
        return false;
    }
    state->inputs[1] = make_numbers(&state->which->in, 1, state->dtype);
    state->inputs[2] = make_numbers(&state->which->in, 1, state->dtype);
    return state->inputs[1] && state->inputs[2];
}

static bool make_logits(struct nn_state *state)
{
    if (!make_rows(state)) {
        return false;
    }
    state->inputs[1] = make_classes(shoal_tensor_shape(state->inputs[0])[0], state->which->in);
    return state->inputs[1] != NULL;
}

/* 4096 rows of a table, by as many indices as make `size` elements. */
static bool make_table(struct nn_state *state)
{
    const int64_t shape[] = {4096, state->which->in};
    int64_t count = state->size / state->which->in > 0 ? state->size / state->which->in : 1;
    state->inputs[0] = make_numbers(shape, 2, state->dtype);
    state->inputs[1] = make_classes(count, shape[0]);
    return state->inputs[0] && state->inputs[1];
}

static bool make_dropout(struct nn_state *state)
{
    if (!make_rows(state)) {
        return false;
    }
    const int64_t count = 3;
    shoal_tensor *position = shoal_zeros(&count, 1, SHOAL_I64);
    state->inputs[1] = position ? shoal_tensor_ref(position) : NULL;
    return position != NULL;
}

/* Forwards ----------------------------------------------------------------------------------------------- */

static shoal_tensor *run_linear(const struct nn_state *state)
{
    return shoal_nn_linear(state->inputs[0], state->inputs[1], state->inputs[2]);
}

static shoal_tensor *run_projection(const struct nn_state *state)
{
    return shoal_nn_projection(state->inputs[0], state->inputs[1], state->inputs[2]);
}

static shoal_tensor *run_attention(const struct nn_state *state)
{
    return shoal_nn_attention_packed(state->inputs[0], NULL);
}

static shoal_tensor *run_layer_norm(const struct nn_state *state)
{
    return shoal_nn_layer_norm(state->inputs[0], state->inputs[1], state->inputs[2], 1e-5);
}

static shoal_tensor *run_softmax(const struct nn_state *state)
{
    return shoal_nn_softmax(state->inputs[0], -1);
}

static shoal_tensor *run_cross_entropy(const struct nn_state *state)
{
    return shoal_nn_cross_entropy(state->inputs[0], state->inputs[1]);
}

static shoal_tensor *run_embedding(const struct nn_state *state)
{
    return shoal_nn_embedding(state->inputs[1], state->inputs[0]);
}

static shoal_tensor *run_dropout(const struct nn_state *state)
{
    return shoal_nn_dropout(state->inputs[0], state->inputs[1], 1, 0.1);
}

#define FUNCTION(name)                                            \
    static shoal_tensor *run_##name(const struct nn_state *state) \
    {                                                             \
        return shoal_nn_##name(state->inputs[0]);                 \
    }
FUNCTION(relu)
FUNCTION(tanh)
FUNCTION(gelu)
FUNCTION(gelu_tanh)
FUNCTION(exp)
FUNCTION(log)
FUNCTION(sigmoid)
FUNCTION(silu)
#undef FUNCTION

/* GPT-2 small, and the layers of a small GPT of width 256. */
#define LAYERS(name)                                                    \
    {"layer", #name, 768, 2304, make_layer, run_##name, true, 0.8},     \
        {"layer", #name, 768, 768, make_layer, run_##name, true, 0.8},  \
        {"layer", #name, 768, 3072, make_layer, run_##name, true, 0.8}, \
        {"layer", #name, 3072, 768, make_layer, run_##name, true, 0.8}, \
    {                                                                   \
        "layer", #name, 256, 1024, make_layer, run_##name, true, 0.8    \
    }
#define ELEMENTS(name)                                            \
    {                                                             \
        "element", #name, 1024, 0, make_rows, run_##name, true, 0 \
    }

const struct nn_case bench_nn_cases[] = {
    LAYERS(linear),
    LAYERS(projection),
    {"attention", "attention", 4, 0, make_heads, run_attention, true, 0.5},
    ELEMENTS(relu),
    ELEMENTS(tanh),
    ELEMENTS(gelu),
    ELEMENTS(gelu_tanh),
    ELEMENTS(exp),
    ELEMENTS(log),
    ELEMENTS(sigmoid),
    ELEMENTS(silu),
    {"row", "layer_norm", 768, 0, make_norm, run_layer_norm, true, 0},
    {"row", "softmax", 1024, 0, make_rows, run_softmax, true, 0},
    {"row", "cross_entropy", 50257, 0, make_logits, run_cross_entropy, true, 0},
    {"row", "embedding", 768, 0, make_table, run_embedding, true, 0},
    {"row", "dropout", 1024, 0, make_dropout, run_dropout, true, 0},
};
const size_t bench_nn_n_cases = sizeof(bench_nn_cases) / sizeof(bench_nn_cases[0]);

/* References --------------------------------------------------------------------------------------------- */

static bool is_kind(const struct nn_state *state, const char *kind)
{
    return strcmp(state->which->kind, kind) == 0;
}

/* How many floats each buffer holds. */
static size_t buffer_count(const struct nn_state *state)
{
    const struct nn_case *which = state->which;
    if (is_kind(state, "layer")) {
        size_t m = (size_t)state->size;
        size_t k = (size_t)which->in;
        size_t n = (size_t)which->out;
        size_t largest = m * k > m * n ? m * k : m * n;
        return largest > k * n ? largest : k * n;
    }
    return is_kind(state, "attention")
               ? (size_t)CUBE * CUBE
               : (size_t)shoal_tensor_count(state->inputs[0]) * 2 + (size_t)state->size * 2;
}

double bench_nn_work(const struct nn_state *state, bool is_backward)
{
    double size = (double)state->size;
    if (is_kind(state, "layer")) {
        return 2 * size * (double)state->which->in * (double)state->which->out * (is_backward ? 2 : 1);
    }
    if (is_kind(state, "attention")) {
        /* Two products forward and five backward, of which the half below the diagonal counts. */
        return (double)state->which->in * HEAD * size * size * (is_backward ? 5 : 2);
    }
    /* Input and output; backward: gradient, input and the input's gradient. Of a table, only rows read count. */
    bool is_table = state->which->make == make_table;
    const shoal_tensor *counted = is_table ? state->gradient : state->inputs[0];
    return (double)shoal_tensor_count(counted) * (double)shoal_dtype_bytes(state->dtype) *
           (is_backward ? 3 : 2);
}

static bool multiply_layer(const struct nn_state *state, bool is_backward)
{
    size_t m = (size_t)state->size;
    size_t k = (size_t)state->which->in;
    size_t n = (size_t)state->which->out;
    bool is_linear = strcmp(state->which->name, "linear") == 0;
    const float *a = state->buffers[0];
    const float *b = state->buffers[1];
    float *c = state->buffers[2];
    if (!is_backward) {
        return shoal_nn_sgemm(false, is_linear, m, n, k, a, b, false, c) == SHOAL_OK;
    }
    bool is_done = shoal_nn_sgemm(false, !is_linear, m, k, n, a, b, false, c) == SHOAL_OK;
    if (is_linear) {
        return is_done && shoal_nn_sgemm(true, false, n, k, m, a, b, false, c) == SHOAL_OK;
    }
    return is_done && shoal_nn_sgemm(true, false, k, n, m, a, b, false, c) == SHOAL_OK;
}

bool bench_nn_reference(const struct nn_state *state, bool is_backward, double *work_out)
{
    *work_out = bench_nn_work(state, is_backward);
    if (is_kind(state, "layer")) {
        return multiply_layer(state, is_backward);
    }
    if (is_kind(state, "attention")) {
        *work_out = 2.0 * CUBE * CUBE * CUBE;
        return shoal_nn_sgemm(false, false, CUBE, CUBE, CUBE, state->buffers[0], state->buffers[1], false,
                              state->buffers[2]) == SHOAL_OK;
    }
    memcpy(state->buffers[0], state->buffers[1], (size_t)(*work_out / 2));
    /* Nobody reads the copy: without this the compiler may leave it out. */
    __asm__ volatile("" : : "r"(state->buffers[0]) : "memory");
    return true;
}

/* States ------------------------------------------------------------------------------------------------- */

static bool make_gradient(struct nn_state *state)
{
    shoal_tensor *output = state->which->forward(state);
    if (!output) {
        return false;
    }
    state->gradient =
        make_numbers(shoal_tensor_shape(output), shoal_tensor_n_dims(output), shoal_tensor_dtype(output));
    bool is_made = state->gradient != NULL;
    for (int i = 0; i < NN_MAX_INPUTS && is_made; i++) {
        shoal_tensor *input = state->inputs[i];
        is_made = !input || !shoal_dtype_is_floating(shoal_tensor_dtype(input)) ||
                  shoal_set_requires_grad(input, true) == SHOAL_OK;
    }
    return is_made;
}

bool bench_nn_state_init(struct nn_state *state, const struct nn_case *which, int64_t size, shoal_dtype dtype)
{
    *state = (struct nn_state){.which = which, .size = size, .dtype = dtype};
    if (!which->make(state) || (which->has_backward && !make_gradient(state))) {
        return false;
    }
    size_t count = buffer_count(state);
    for (int i = 0; i < 3; i++) {
        state->buffers[i] = malloc(count * sizeof(float));
        if (!state->buffers[i]) {
            return false;
        }
        for (size_t k = 0; k < count; k++) {
            state->buffers[i][k] = (float)(k % 17) - 8;
        }
    }
    return true;
}

void bench_nn_state_fini(struct nn_state *state)
{
    for (int i = 0; i < NN_MAX_INPUTS; i++) {
        shoal_tensor_unref(state->inputs[i]);
        free(state->buffers[i]);
    }
    shoal_tensor_unref(state->gradient);
}

void bench_nn_shape_text(const struct nn_state *state, char *text, size_t text_bytes)
{
    const struct nn_case *which = state->which;
    long long size = (long long)state->size;
    if (is_kind(state, "layer")) {
        (void)snprintf(text, text_bytes, "%lldx%lldx%lld", size, (long long)which->in, (long long)which->out);
    } else if (is_kind(state, "attention")) {
        (void)snprintf(text, text_bytes, "%lldx%lldx%d", size, (long long)which->in, HEAD);
    } else {
        (void)snprintf(text, text_bytes, "%lldx%lld", (long long)shoal_tensor_shape(state->inputs[0])[0],
                       (long long)which->in);
    }
}
