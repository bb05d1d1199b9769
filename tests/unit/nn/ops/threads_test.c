/* SPDX-License-Identifier: MIT */
/*
 * Operations and optimizer steps give the same bits with any number of threads. Tensors are large enough to be cut into
 * several parts. Products are not among them: those are the BLAS's.
 */
#include "shoal_nn/optim.h"
#include "shoal_nn/random.h"
#include "unit/nn/fixture.h"

enum {
    ROWS = 96,
    SIZE = 1000,
    N_CLASSES = 50
};

/* Inputs of one dtype: x and z [ROWS, SIZE], weight and bias [SIZE], rows by index. */
struct inputs {
    shoal_tensor *x;
    shoal_tensor *weight;
    shoal_tensor *bias;
    shoal_tensor *indices;
    shoal_tensor *position;
};

typedef shoal_tensor *(*operation)(const struct inputs *in);

static shoal_tensor *run_gelu(const struct inputs *in)
{
    return shoal_nn_gelu(in->x);
}

static shoal_tensor *run_gelu_tanh(const struct inputs *in)
{
    return shoal_nn_gelu_tanh(shoal_transpose(in->x, 0, 1));
}

static shoal_tensor *run_dropout(const struct inputs *in)
{
    return shoal_nn_dropout(in->x, in->position, 7, 0.3);
}

static shoal_tensor *run_layer_norm(const struct inputs *in)
{
    return shoal_nn_layer_norm(in->x, in->weight, in->bias, 1e-5);
}

static shoal_tensor *run_softmax(const struct inputs *in)
{
    return shoal_nn_softmax(in->x, 0);
}

static shoal_tensor *run_cross_entropy(const struct inputs *in)
{
    return shoal_nn_cross_entropy(in->x, in->indices);
}

static shoal_tensor *run_embedding(const struct inputs *in)
{
    return shoal_nn_embedding(in->indices, in->x);
}

static const operation operations[] = {run_gelu,    run_gelu_tanh,     run_dropout,  run_layer_norm,
                                       run_softmax, run_cross_entropy, run_embedding};

static struct inputs make_inputs(shoal_dtype dtype)
{
    struct test_random random = test_random_begin(5);
    struct inputs in = {.x = make_random(&random, INTS(ROWS, SIZE), 2, dtype),
                        .weight = make_random(&random, INTS(SIZE), 1, dtype),
                        .bias = make_random(&random, INTS(SIZE), 1, dtype),
                        .indices = shoal_empty(INTS(ROWS), 1, SHOAL_I64),
                        .position = shoal_zeros(INTS(3), 1, SHOAL_I64)};
    int64_t *index = shoal_mutable_data(in.indices);
    for (int i = 0; index && i < ROWS; i++) {
        index[i] = i * 31 % N_CLASSES;
    }
    CHECK_OK(shoal_set_requires_grad(in.x, true));
    CHECK_OK(shoal_set_requires_grad(in.weight, true));
    CHECK_OK(shoal_set_requires_grad(in.bias, true));
    return in;
}

static uint64_t hash_tensor(uint64_t hash, const shoal_tensor *tensor)
{
    const unsigned char *bytes = tensor ? shoal_data(tensor) : NULL;
    size_t n_bytes =
        bytes ? (size_t)shoal_tensor_count(tensor) * shoal_dtype_bytes(shoal_tensor_dtype(tensor)) : 0;
    for (size_t i = 0; i < n_bytes; i++) {
        hash = (hash ^ bytes[i]) * UINT64_C(1099511628211);
    }
    return hash;
}

/* The bits of the result and of all gradients, with so many threads. */
static uint64_t run_with(operation run, shoal_dtype dtype, int n_threads)
{
    uint64_t hash = 1;
    CHECK_OK(shoal_scope_begin());
    CHECK_OK(shoal_nn_set_threads(n_threads));
    struct inputs in = make_inputs(dtype);
    shoal_tensor *output = run(&in);
    shoal_tensor *gradient = NULL;
    if (output && shoal_tensor_n_dims(output) > 0) {
        struct test_random random = test_random_begin(6);
        gradient = make_random(&random, shoal_tensor_shape(output), shoal_tensor_n_dims(output), dtype);
    }
    CHECK_OK(shoal_backward(output, gradient));
    hash = hash_tensor(hash, output);
    hash = hash_tensor(hash, shoal_grad(in.x));
    hash = hash_tensor(hash, shoal_grad(in.weight));
    hash = hash_tensor(hash, shoal_grad(in.bias));
    CHECK_OK(shoal_scope_end());
    return hash;
}

NN_TEST(operations_have_the_same_bits)
{
    const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_BF16, SHOAL_F64};
    const int n_dtypes = test_time_scale() > 1 ? 1 : 3; /* sanitizers are slow */
    for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]); i++) {
        for (int d = 0; d < n_dtypes; d++) {
            uint64_t expected = run_with(operations[i], dtypes[d], 1);
            for (int n_threads = 2; n_threads <= (n_dtypes == 1 ? 2 : 5); n_threads += 3) {
                uint64_t actual = run_with(operations[i], dtypes[d], n_threads);
                if (actual != expected) {
                    test_failed(__FILE__, __LINE__, "operation %zu in %s: other bits with %d threads", i,
                                shoal_dtype_name(dtypes[d]), n_threads);
                }
            }
        }
    }
}

enum {
    N_PARAMETERS = 50000
};

static uint64_t step_with(shoal_dtype dtype, int n_threads)
{
    CHECK_OK(shoal_scope_begin());
    CHECK_OK(shoal_nn_set_threads(n_threads));
    struct test_random random = test_random_begin(7);
    shoal_tensor *parameter = make_random(&random, INTS(N_PARAMETERS), 1, dtype);
    CHECK_OK(shoal_set_requires_grad(parameter, true));
    CHECK_OK(shoal_set_grad(parameter, make_random(&random, INTS(N_PARAMETERS), 1, dtype)));
    const shoal_nn_adamw_options options = SHOAL_NN_ADAMW_OPTIONS_INIT;
    shoal_nn_optimizer *optimizer = NULL;
    CHECK_OK(shoal_nn_adamw_create(&parameter, 1, &options, &optimizer));
    for (int i = 0; optimizer && i < 3; i++) {
        CHECK_OK(shoal_nn_optimizer_step(optimizer));
    }
    shoal_nn_optimizer_free(optimizer);
    uint64_t hash = hash_tensor(1, parameter);
    CHECK_OK(shoal_scope_end());
    return hash;
}

NN_TEST(steps_have_the_same_bits)
{
    const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_BF16};
    for (int d = 0; d < 2; d++) {
        uint64_t expected = step_with(dtypes[d], 1);
        CHECK(step_with(dtypes[d], 2) == expected);
        CHECK(step_with(dtypes[d], 4) == expected);
    }
}
