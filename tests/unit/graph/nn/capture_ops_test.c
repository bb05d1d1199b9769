/* SPDX-License-Identifier: MIT */
/* Every op of a transformer, captured: the graph has the bits of an eager step, forward and backward. */
#include "shoal_nn/attention.h"
#include "shoal_nn/nn.h"
#include "unit/graph/capturing.h"

#define SHAPE(...) ((int64_t[]){__VA_ARGS__})

enum {
    BATCH = 2,
    T = 3,
    HEADS = 2,
    SIZE = 4,
    WIDTH = HEADS * SIZE,
    VOCABULARY = 7,
    N_LEAVES = 6,
    N_INPUTS = 3,
    N_OUTPUTS = 3
};

/* The first weight is that of the embedding and of the head. */
struct model {
    shoal_tensor *words;
    shoal_tensor *norm;
    shoal_tensor *qkv;
    shoal_tensor *qkv_bias;
    shoal_tensor *gate;
    shoal_tensor *up;
};

/* Heads in front, as batched products want them: a view. */
static shoal_tensor *heads_of(shoal_tensor *qkv, int64_t part)
{
    return shoal_transpose(shoal_select(qkv, 2, part), 1, 2);
}

static shoal_tensor *attend(const struct model *model, shoal_tensor *x, shoal_tensor *mask)
{
    shoal_tensor *qkv = shoal_reshape(shoal_nn_projection(x, model->qkv, model->qkv_bias),
                                      SHAPE(BATCH, T, 3, HEADS, SIZE), 5);
    shoal_tensor *q = shoal_transpose(shoal_nn_rotary(shoal_select(qkv, 2, 0), 0, 100), 1, 2);
    shoal_tensor *k = shoal_transpose(shoal_nn_rotary(shoal_select(qkv, 2, 1), 0, 100), 1, 2);
    shoal_tensor *scores = shoal_nn_masked_fill(shoal_nn_bmm(q, shoal_transpose(k, 2, 3)), mask, -1e9);
    shoal_tensor *mixed = shoal_nn_bmm(shoal_nn_softmax(scores, -1), heads_of(qkv, 2));
    return shoal_reshape(shoal_transpose(mixed, 1, 2), SHAPE(BATCH, T, WIDTH), 3);
}

static shoal_status run_model(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                              shoal_tensor **outputs, size_t n_outputs)
{
    const struct model *model = context;
    shoal_tensor *tokens = inputs[0];
    shoal_tensor *mask = inputs[1];
    shoal_tensor *h = shoal_nn_embedding(tokens, model->words);
    h = shoal_add(h, attend(model, shoal_nn_rms_norm(h, model->norm, 1e-5), mask));
    shoal_tensor *gate = shoal_nn_silu(shoal_nn_linear(h, model->gate, NULL));
    shoal_tensor *up = shoal_nn_gelu_tanh(shoal_nn_projection(h, model->up, NULL));
    h = shoal_nn_where(mask,
                       shoal_reshape(shoal_nn_index_select(gate, 1, inputs[2]), SHAPE(BATCH, T, 1, WIDTH), 4),
                       shoal_reshape(up, SHAPE(BATCH, T, 1, WIDTH), 4));
    h = shoal_add(shoal_nn_sigmoid(h), shoal_nn_log(shoal_nn_exp(shoal_nn_sqrt(shoal_nn_exp(h)))));
    shoal_tensor *logits = shoal_nn_linear(shoal_nn_max(h, 2, false), model->words, NULL);
    shoal_nn_cross_entropy_options options = SHOAL_NN_CROSS_ENTROPY_OPTIONS_INIT;
    options.ignore_index = 2;
    options.label_smoothing = 0.1;
    shoal_tensor *loss = shoal_nn_cross_entropy_with(logits, tokens, &options);
    shoal_tensor *mean = shoal_mean(shoal_nn_log_softmax(logits, 1), NULL, 0, /*keeps_dims=*/false);
    outputs[0] = shoal_add(loss, shoal_to_dtype(mean, shoal_tensor_dtype(loss)));
    outputs[1] = logits;
    outputs[2] = shoal_nn_argmax(logits, -1, false);
    return shoal_backward(outputs[0], NULL);
}

/* Integers that count up, modulo a number, as another dtype. */
static shoal_tensor *make_integers(const int64_t *shape, int n_dims, int64_t below, shoal_dtype dtype)
{
    if (!CHECK_OK(shoal_scope_begin())) {
        return NULL;
    }
    shoal_tensor *made = shoal_empty(shape, n_dims, SHOAL_I64);
    int64_t *numbers = shoal_mutable_data(made);
    for (int64_t i = 0; numbers && i < shoal_tensor_count(made); i++) {
        numbers[i] = i * 5 % below;
    }
    made = shoal_to_dtype(made, dtype);
    shoal_tensor *kept = made ? shoal_tensor_ref(made) : NULL;
    (void)CHECK_OK(shoal_scope_end());
    return kept;
}

static shoal_tensor *leaf(const int64_t *shape, int n_dims, shoal_dtype dtype, int seed, const char *name)
{
    shoal_tensor *tensor = capture_tensor(shape, n_dims, dtype, seed, name);
    (void)CHECK_OK(shoal_set_requires_grad(tensor, true));
    return tensor;
}

static void check_capture(shoal_dtype dtype)
{
    struct model model = {.words = leaf(SHAPE(VOCABULARY, WIDTH), 2, dtype, 1, "words"),
                          .norm = leaf(SHAPE(WIDTH), 1, dtype, 2, "norm"),
                          .qkv = leaf(SHAPE(WIDTH, 3 * WIDTH), 2, dtype, 3, "qkv"),
                          .qkv_bias = leaf(SHAPE(3 * WIDTH), 1, dtype, 4, "qkv_bias"),
                          .gate = leaf(SHAPE(WIDTH, WIDTH), 2, dtype, 5, "gate"),
                          .up = leaf(SHAPE(WIDTH, WIDTH), 2, dtype, 6, "up")};
    shoal_tensor *inputs[N_INPUTS] = {make_integers(SHAPE(BATCH, T), 2, VOCABULARY, SHOAL_I64),
                                      make_integers(SHAPE(T, 1), 2, 2, SHOAL_BOOL),
                                      make_integers(SHAPE(T), 1, T, SHOAL_I32)};
    struct captured_step step = {
        .step = run_model, .context = &model, .inputs = inputs, .n_inputs = N_INPUTS, .n_outputs = N_OUTPUTS};
    shoal_graph *graph = capture_check(&step, NULL);
    CHECK(graph != NULL);
    if (graph) {
        CHECK_INT(capture_n_outputs(graph), N_OUTPUTS + N_LEAVES);
        CHECK_INT(capture_count(graph, "nn.bmm"), 6);
        CHECK_INT(capture_count(graph, "nn.rotary"), 4);
        CHECK_INT(capture_count(graph, "nn.cross_entropy_backward"), 1);
    }
    shoal_graph_free(graph);
    for (size_t i = 0; i < N_INPUTS; i++) {
        shoal_tensor_unref(inputs[i]);
    }
    shoal_tensor *const leaves[N_LEAVES] = {model.words,    model.norm, model.qkv,
                                            model.qkv_bias, model.gate, model.up};
    for (size_t i = 0; i < N_LEAVES; i++) {
        shoal_tensor_unref(leaves[i]);
    }
}

/* Attention gives two results, of which the second is read by the gradient alone. */
static shoal_status run_attention(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    const struct model *model = context;
    shoal_nn_attention_options options = SHOAL_NN_ATTENTION_OPTIONS_INIT;
    options.dropout = 0.3;
    options.position = inputs[1];
    options.stream = 9;
    shoal_tensor *x = shoal_nn_embedding(inputs[0], model->words);
    shoal_tensor *qkv = shoal_reshape(shoal_nn_projection(x, model->qkv, model->qkv_bias),
                                      SHAPE(BATCH, T, 3, HEADS, SIZE), 5);
    shoal_tensor *packed = shoal_nn_attention_packed(qkv, &options);
    shoal_tensor *key = shoal_narrow(shoal_select(qkv, 2, 1), 2, 0, 1);
    shoal_tensor *value = shoal_narrow(shoal_select(qkv, 2, 2), 2, 1, 1);
    shoal_tensor *shared = shoal_nn_attention(packed, key, value, NULL);
    shoal_tensor *y = shoal_nn_linear(shoal_reshape(shared, SHAPE(BATCH, T, WIDTH), 3), model->words, NULL);
    outputs[0] = shoal_nn_cross_entropy(y, inputs[0]);
    outputs[1] = packed;
    return shoal_backward(outputs[0], NULL);
}

static void check_attention(shoal_dtype dtype)
{
    struct model model = {.words = leaf(SHAPE(VOCABULARY, WIDTH), 2, dtype, 1, "words"),
                          .qkv = leaf(SHAPE(WIDTH, 3 * WIDTH), 2, dtype, 3, "qkv"),
                          .qkv_bias = leaf(SHAPE(3 * WIDTH), 1, dtype, 4, "qkv_bias")};
    shoal_tensor *inputs[] = {make_integers(SHAPE(BATCH, T), 2, VOCABULARY, SHOAL_I64),
                              make_integers(SHAPE(3), 1, 100, SHOAL_I64)};
    struct captured_step step = {
        .step = run_attention, .context = &model, .inputs = inputs, .n_inputs = 2, .n_outputs = 2};
    shoal_graph *graph = capture_check(&step, NULL);
    CHECK(graph != NULL);
    if (graph) {
        CHECK_INT(capture_n_outputs(graph), 2 + 3);
        CHECK_INT(capture_count(graph, "nn.attention"), 1);
        CHECK_INT(capture_count(graph, "nn.attention_backward"), 1);
        CHECK_INT(capture_count(graph, "nn.attention_packed_backward"), 1);
    }
    shoal_graph_free(graph);
    shoal_tensor *const made[] = {inputs[0], inputs[1], model.words, model.qkv, model.qkv_bias};
    for (size_t i = 0; i < sizeof(made) / sizeof(made[0]); i++) {
        shoal_tensor_unref(made[i]);
    }
}

static void begin_nn(void)
{
    size_t n_before = test_live_blocks();
    CHECK_OK(shoal_nn_init());
    test_keep_blocks(test_live_blocks() - n_before);
}

static const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_F64, SHOAL_BF16, SHOAL_F16};

TEST(attention_has_the_bits_of_an_eager_step)
{
    begin_nn();
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        check_attention(dtypes[i]);
    }
}

TEST(a_transformer_has_the_bits_of_an_eager_step)
{
    begin_nn();
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        check_capture(dtypes[i]);
    }
}
