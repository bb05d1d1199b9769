/* SPDX-License-Identifier: MIT */
/*
 * The step that `shoal bench passes` captures: a transformer of pre-norm layers with 12 heads each, forward pass,
 * cross-entropy and backward pass. There is no op for softmax, so attention weights are relu(scores) divided by their
 * sum. Sizes are small: a capture computes nothing, and takes as long for large sizes.
 */
#include "bench/passes.h"

#include "base/mem.h"
#include "base/try.h"
#include "shoal/autograd.h"
#include "shoal/compile.h"
#include "shoal/ops.h"
#include "shoal/scope.h"
#include "shoal_nn/nn.h"

#include <stdint.h>

enum {
    N_HEADS = 12,
    HEAD_WIDTH = 8,
    WIDTH = N_HEADS * HEAD_WIDTH,
    N_TOKENS = 16,
    N_WORDS = 64,
    MAX_LAYERS = 12
};

/* Weights of a layer, in this order; those of products first. */
enum {
    QUERY,
    KEY,
    VALUE,
    JOINED,
    WIDE,
    NARROW,
    FIRST_NORM,
    SECOND_NORM,
    N_WEIGHTS
};

struct bench_passes_model {
    size_t n_layers;
    shoal_tensor *words; /* [N_WORDS, WIDTH], used at both ends */
    shoal_tensor *last_norm;
    shoal_tensor *layers[MAX_LAYERS][N_WEIGHTS];
    shoal_tensor *tokens;
};

/* The step ------------------------------------------------------------------------------------------------ */

static shoal_tensor *take_head(shoal_tensor *all, int head)
{
    return shoal_narrow(all, 1, (int64_t)head * HEAD_WIDTH, HEAD_WIDTH);
}

static shoal_tensor *attend(shoal_tensor *query, shoal_tensor *key, shoal_tensor *value)
{
    const int64_t row[] = {1};
    shoal_tensor *scores = shoal_nn_matmul(query, shoal_transpose(key, 0, 1));
    shoal_tensor *weights = shoal_nn_relu(shoal_mul_scalar(scores, 0.25));
    shoal_tensor *sums = shoal_add_scalar(shoal_sum(weights, row, 1, /*keeps_dims=*/true), 1e-6);
    return shoal_nn_matmul(shoal_div(weights, sums), value);
}

static shoal_tensor *run_layer(shoal_tensor *const *weights, shoal_tensor *values)
{
    shoal_tensor *heads[N_HEADS];
    shoal_tensor *normed = shoal_nn_layer_norm(values, weights[FIRST_NORM], NULL, 1e-5);
    shoal_tensor *query = shoal_nn_linear(normed, weights[QUERY], NULL);
    shoal_tensor *key = shoal_nn_linear(normed, weights[KEY], NULL);
    shoal_tensor *value = shoal_nn_linear(normed, weights[VALUE], NULL);
    for (int i = 0; i < N_HEADS; i++) {
        heads[i] = attend(take_head(query, i), take_head(key, i), take_head(value, i));
    }
    values = shoal_add(values, shoal_nn_linear(shoal_cat(heads, N_HEADS, 1), weights[JOINED], NULL));
    normed = shoal_nn_layer_norm(values, weights[SECOND_NORM], NULL, 1e-5);
    shoal_tensor *wide = shoal_nn_gelu(shoal_nn_linear(normed, weights[WIDE], NULL));
    return shoal_add(values, shoal_nn_linear(wide, weights[NARROW], NULL));
}

static shoal_status step(void *context, shoal_tensor *const *inputs, size_t n_inputs, shoal_tensor **outputs,
                         size_t n_outputs)
{
    const struct bench_passes_model *model = context;
    (void)n_inputs;
    (void)n_outputs;
    shoal_tensor *values = shoal_nn_embedding(inputs[0], model->words);
    for (size_t i = 0; i < model->n_layers; i++) {
        values = run_layer(model->layers[i], values);
    }
    values = shoal_nn_layer_norm(values, model->last_norm, NULL, 1e-5);
    outputs[0] = shoal_nn_cross_entropy(shoal_nn_linear(values, model->words, NULL), inputs[0]);
    return outputs[0] ? shoal_backward(outputs[0], NULL) : shoal_scope_error();
}

/* The model ----------------------------------------------------------------------------------------------- */

static shoal_status make_weight(int64_t rows, int64_t columns, shoal_tensor **weight_out)
{
    const int64_t shape[] = {rows, columns};
    shoal_tensor *weight =
        columns > 0 ? shoal_full(shape, 2, 0.01, SHOAL_F32) : shoal_full(shape, 1, 1, SHOAL_F32);
    TRY(weight ? SHOAL_OK : shoal_scope_error());
    TRY(shoal_set_requires_grad(weight, true));
    *weight_out = shoal_tensor_ref(weight);
    return SHOAL_OK;
}

static shoal_status fill(struct bench_passes_model *model)
{
    const int64_t count[] = {N_TOKENS};
    TRY(make_weight(N_WORDS, WIDTH, &model->words));
    TRY(make_weight(WIDTH, 0, &model->last_norm));
    for (size_t i = 0; i < model->n_layers; i++) {
        for (int k = 0; k < N_WEIGHTS; k++) {
            bool is_norm = k >= FIRST_NORM;
            TRY(make_weight(k == WIDE ? 4 * WIDTH : WIDTH,
                            is_norm       ? 0
                            : k == NARROW ? 4 * WIDTH
                                          : WIDTH,
                            &model->layers[i][k]));
        }
    }
    shoal_tensor *tokens = shoal_zeros(count, 1, SHOAL_I64);
    TRY(tokens ? SHOAL_OK : shoal_scope_error());
    model->tokens = shoal_tensor_ref(tokens);
    return SHOAL_OK;
}

shoal_status bench_passes_make_model(struct bench_passes_round *round, size_t n_layers)
{
    TRY(shoal_nn_init());
    round->model = mem_alloc_zeroed(1, sizeof(*round->model));
    TRY(round->model ? SHOAL_OK : SHOAL_ERR_NO_MEMORY);
    round->model->n_layers = n_layers < MAX_LAYERS ? n_layers : MAX_LAYERS;
    TRY(shoal_scope_begin());
    shoal_status status = fill(round->model);
    shoal_status ended = shoal_scope_end();
    return status == SHOAL_OK ? ended : status;
}

void bench_passes_free_model(struct bench_passes_model *model)
{
    if (!model) {
        return;
    }
    shoal_tensor_unref(model->words);
    shoal_tensor_unref(model->last_norm);
    shoal_tensor_unref(model->tokens);
    for (size_t i = 0; i < model->n_layers; i++) {
        for (int k = 0; k < N_WEIGHTS; k++) {
            shoal_tensor_unref(model->layers[i][k]);
        }
    }
    mem_free(model);
}

shoal_status bench_passes_capture(struct bench_passes_round *round)
{
    return shoal_capture(step, round->model, &round->model->tokens, 1, 1, &round->graph);
}

/* The loss and a gradient for each weight; a call for each op of each head at least. */
size_t bench_passes_check_captured(const struct bench_passes_round *round)
{
    size_t n_layers = round->model->n_layers;
    size_t n_args = 0;
    const shoal_arg *args = shoal_node_args(shoal_graph_last(round->graph), &n_args);
    bool has_all = n_args == 1 && args[0].kind == SHOAL_ARG_LIST &&
                   args[0].as.list.count == 3 + n_layers * (size_t)N_WEIGHTS;
    bool is_large = shoal_graph_n_nodes(round->graph) > n_layers * (size_t)N_HEADS * 12;
    bool is_sound = shoal_graph_lint(round->graph) == SHOAL_OK;
    return is_sound && has_all && is_large ? 0 : 1;
}
