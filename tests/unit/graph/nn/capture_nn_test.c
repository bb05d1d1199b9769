/* SPDX-License-Identifier: MIT */
/* Networks of libshoal_nn, captured: the ops of an eager step, its bits, and eager steps that are not disturbed. */
#include "shoal_nn/nn.h"
#include "shoal_nn/optim.h"
#include "unit/graph/capturing.h"

#define SHAPE(...) ((int64_t[]){__VA_ARGS__})
#define N_LAYERS 3
#define WIDTH 8
#define N_CLASSES 5

struct mlp {
    shoal_tensor *weights[N_LAYERS];
    shoal_tensor *biases[N_LAYERS];
    shoal_tensor *norm;
    shoal_tensor *head;
};

static void begin_nn(void)
{
    size_t n_before = test_live_blocks();
    CHECK_OK(shoal_nn_init());
    test_keep_blocks(test_live_blocks() - n_before);
}

static struct mlp make_mlp(void)
{
    struct mlp mlp = {.norm = capture_leaf(SHAPE(WIDTH), 1, 1, "norm"),
                      .head = capture_leaf(SHAPE(N_CLASSES, WIDTH), 2, 2, "head")};
    for (int i = 0; i < N_LAYERS; i++) {
        mlp.weights[i] = capture_leaf(SHAPE(WIDTH, WIDTH), 2, 3 + i, "layer.weight");
        mlp.biases[i] = capture_leaf(SHAPE(WIDTH), 1, 30 + i, "layer.bias");
    }
    return mlp;
}

static size_t list_leaves(const struct mlp *mlp, shoal_tensor *leaves[2 * N_LAYERS + 2])
{
    for (size_t i = 0; i < N_LAYERS; i++) {
        leaves[2 * i] = mlp->weights[i];
        leaves[2 * i + 1] = mlp->biases[i];
    }
    leaves[2 * N_LAYERS] = mlp->norm;
    leaves[2 * N_LAYERS + 1] = mlp->head;
    return 2 * N_LAYERS + 2;
}

static void free_mlp(const struct mlp *mlp)
{
    shoal_tensor *leaves[2 * N_LAYERS + 2];
    size_t n_leaves = list_leaves(mlp, leaves);
    for (size_t i = 0; i < n_leaves; i++) {
        shoal_tensor_unref(leaves[i]);
    }
}

/* The embedding shares its weight with the head. */
static shoal_status run_mlp(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                            shoal_tensor **outputs, size_t n_outputs)
{
    const struct mlp *mlp = context;
    shoal_tensor *h = shoal_nn_embedding(inputs[0], mlp->head);
    for (int i = 0; i < N_LAYERS; i++) {
        shoal_tensor *inner = shoal_nn_gelu(shoal_nn_linear(h, mlp->weights[i], mlp->biases[i]));
        h = shoal_add(h, shoal_nn_layer_norm(inner, mlp->norm, NULL, 1e-5));
    }
    shoal_tensor *logits = shoal_nn_matmul(h, shoal_transpose(mlp->head, 0, 1));
    outputs[0] = shoal_nn_cross_entropy(logits, inputs[0]);
    outputs[1] = logits;
    return shoal_backward(outputs[0], NULL);
}

static shoal_tensor *make_tokens(int seed)
{
    shoal_tensor *tokens = NULL;
    if (!CHECK_OK(shoal_scope_begin())) {
        return NULL;
    }
    shoal_tensor *made = shoal_empty(SHAPE(6), 1, SHOAL_I64);
    int64_t *numbers = shoal_mutable_data(made);
    for (int i = 0; numbers && i < 6; i++) {
        numbers[i] = (i * 3 + seed) % N_CLASSES;
    }
    tokens = made ? shoal_tensor_ref(made) : NULL;
    (void)CHECK_OK(shoal_scope_end());
    return tokens;
}

TEST(a_network_has_the_bits_of_an_eager_step)
{
    begin_nn();
    struct mlp mlp = make_mlp();
    shoal_tensor *tokens = make_tokens(1);
    struct captured_step step = {
        .step = run_mlp, .context = &mlp, .inputs = &tokens, .n_inputs = 1, .n_outputs = 2};
    shoal_graph *graph = capture_check(&step, NULL);
    REQUIRE(graph != NULL);
    CHECK_INT(capture_n_outputs(graph), 2 + 2 * N_LAYERS + 2);
    CHECK(shoal_graph_find(graph, "layer.weight_1") != NULL);
    shoal_graph_free(graph);
    shoal_tensor_unref(tokens);
    free_mlp(&mlp);
}

/* Ops of the graph that stand for a call of `op`: in-place ones became others. */
static size_t count_calls(const shoal_graph *graph, const char *op)
{
    char fresh[64];
    size_t count = capture_count(graph, op);
    size_t length = strlen(op);
    if (length > 1 && length < sizeof fresh && op[length - 1] == '_') {
        memcpy(fresh, op, length - 1);
        fresh[length - 1] = '\0';
        count += capture_count(graph, fresh);
    }
    return count;
}

TEST(a_graph_has_the_ops_of_an_eager_step)
{
    begin_nn();
    struct mlp mlp = make_mlp();
    shoal_tensor *tokens = make_tokens(1);
    shoal_tensor *outputs[2] = {NULL, NULL};
    shoal_tensor *leaves[2 * N_LAYERS + 2];
    struct capture_counter counter = {.tracer = {.call = capture_count_call}};
    shoal_graph *graph = NULL;
    size_t n_calls = 0;
    size_t n_nodes = 0;
    REQUIRE_OK(shoal_capture(run_mlp, &mlp, &tokens, 1, 2, &graph));
    REQUIRE_OK(shoal_scope_begin());
    CHECK_OK(op_set_tracer(&counter.tracer));
    CHECK_OK(run_mlp(&mlp, &tokens, 1, outputs, 2));
    CHECK_OK(shoal_scope_end());
    size_t n_leaves = list_leaves(&mlp, leaves);
    for (size_t i = 0; i < n_leaves; i++) {
        CHECK_OK(shoal_set_grad(leaves[i], NULL));
    }
    for (size_t i = 0; i < counter.n_ops; i++) {
        const char *name = shoal_op_name(counter.ops[i]);
        bool is_twin = strcmp(name, "add") == 0; /* counted with add_ */
        n_calls += counter.counts[i];
        if (!is_twin && count_calls(graph, name) < counter.counts[i]) {
            test_failed(__FILE__, __LINE__, "%zu calls of %s, %zu nodes", counter.counts[i], name,
                        count_calls(graph, name));
        }
    }
    for (const shoal_node *node = shoal_graph_first(graph); node; node = shoal_node_next(node)) {
        n_nodes += shoal_node_get_kind(node) == SHOAL_NODE_CALL ? 1 : 0;
    }
    CHECK_INT(n_nodes, n_calls);
    shoal_graph_free(graph);
    shoal_tensor_unref(tokens);
    free_mlp(&mlp);
}

/* Four eager steps with an optimizer; all parameters at the end, as bytes. */
static void train(bool captures, unsigned char *bytes, size_t n_bytes)
{
    struct mlp mlp = make_mlp();
    shoal_tensor *leaves[2 * N_LAYERS + 2];
    size_t n_leaves = list_leaves(&mlp, leaves);
    shoal_nn_optimizer *optimizer = NULL;
    REQUIRE_OK(shoal_nn_adamw_create(leaves, n_leaves, NULL, &optimizer));
    for (int i = 0; i < 4; i++) {
        shoal_tensor *tokens = make_tokens(i);
        shoal_tensor *outputs[2] = {NULL, NULL};
        shoal_graph *graph = NULL;
        if (captures) {
            CHECK_OK(shoal_capture(run_mlp, &mlp, &tokens, 1, 2, &graph));
        }
        REQUIRE_OK(shoal_scope_begin());
        CHECK_OK(run_mlp(&mlp, &tokens, 1, outputs, 2));
        if (captures) {
            shoal_graph_free(graph);
            CHECK_OK(shoal_capture(run_mlp, &mlp, &tokens, 1, 2, &graph));
        }
        CHECK_OK(shoal_nn_optimizer_step(optimizer));
        CHECK_OK(shoal_nn_optimizer_zero_grad(optimizer));
        CHECK_OK(shoal_scope_end());
        shoal_graph_free(graph);
        shoal_tensor_unref(tokens);
    }
    size_t used = 0;
    for (size_t i = 0; i < n_leaves && used + tensor_bytes(leaves[i]) <= n_bytes; i++) {
        memcpy(bytes + used, shoal_data(leaves[i]), tensor_bytes(leaves[i]));
        used += tensor_bytes(leaves[i]);
    }
    shoal_nn_optimizer_free(optimizer);
    free_mlp(&mlp);
}

TEST(eager_steps_do_not_see_a_capture)
{
    begin_nn();
    static unsigned char plain[2048];
    static unsigned char captured[2048];
    train(false, plain, sizeof plain);
    train(true, captured, sizeof captured);
    CHECK_BYTES(captured, plain, sizeof plain);
}
