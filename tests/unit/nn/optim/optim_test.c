/* SPDX-License-Identifier: MIT */
/* Optimizers: the exact arithmetic, shards against the whole, what is passed over, state, and what is refused. */
#include "shoal_nn/optim.h"

#include <stdio.h>

#include "tensor/handle.h"
#include "fixtures/on_device.h"
#include "unit/nn/fixture.h"

#define N 37
#define N_STEPS 5

static const shoal_nn_adamw_options golden = {
    .struct_size = sizeof(golden), .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

/* One step of AdamW in f32, every operation written out. */
static void step_plainly(const shoal_nn_adamw_options *o, int t, size_t n, const float *g, float *p, float *m,
                         float *v)
{
    volatile float x; /* no operation is contracted or kept wider */
    float decay = (float)(o->lr * o->weight_decay);
    float rate = (float)(o->lr / (1 - pow(o->beta1, t)));
    float root = (float)sqrt(1 - pow(o->beta2, t));
    for (size_t i = 0; i < n; i++) {
        x = decay * p[i];
        x = p[i] - x;
        float decayed = x;
        x = (float)o->beta1 * m[i];
        float old = x;
        x = (float)(1 - o->beta1) * g[i];
        m[i] = old + x;
        x = (float)o->beta2 * v[i];
        old = x;
        x = g[i] * g[i];
        x = (float)(1 - o->beta2) * x;
        v[i] = old + x;
        x = sqrtf(v[i]);
        x = x / root;
        float denominator = x + (float)o->eps;
        x = rate * m[i];
        x = x / denominator;
        p[i] = decayed - x;
    }
}

static void fill(struct test_random *random, size_t n, float *values)
{
    for (size_t i = 0; i < n; i++) {
        values[i] = (float)(2 * test_random_unit(random) - 1);
    }
}

static shoal_tensor *over(float *values, int64_t count)
{
    return shoal_from_memory(values, &count, 1, SHOAL_F32, NULL, NULL, NULL);
}

/* Afterwards the memory that a tensor was made over has its values: on another device than the CPU it is a copy. */
static void look(const shoal_tensor *tensor, void *values)
{
    if (test_device() != SHOAL_CPU) {
        CHECK_OK(shoal_read(tensor, values, tensor_bytes(tensor)));
    }
}

NN_TEST(adamw_has_the_arithmetic_it_says)
{
    struct test_random random = test_random_begin(10);
    float p[N];
    float g[N];
    float expected[N];
    float m[N] = {0};
    float v[N] = {0};
    fill(&random, N, p);
    memcpy(expected, p, sizeof(p));
    shoal_tensor *parameter = require_grad(over(p, N));
    shoal_nn_optimizer *optimizer;
    REQUIRE_OK(shoal_nn_adamw_create(&parameter, 1, &golden, &optimizer));
    for (int t = 1; t <= N_STEPS; t++) {
        fill(&random, N, g);
        g[3] = 0;
        CHECK_OK(shoal_set_grad(parameter, over(g, N)));
        uint64_t version = shoal_tensor_version(parameter);
        CHECK_OK(shoal_nn_optimizer_step(optimizer));
        CHECK(shoal_tensor_version(parameter) > version);
        step_plainly(&golden, t, N, g, expected, m, v);
        look(parameter, p);
        CHECK_BYTES(p, expected, sizeof(p));
    }
    CHECK_OK(shoal_nn_optimizer_zero_grad(optimizer));
    CHECK(shoal_grad(parameter) == NULL);
    shoal_nn_optimizer_free(optimizer);
}

NN_TEST(sgd_has_the_arithmetic_it_says)
{
    struct test_random random = test_random_begin(11);
    float p[N];
    float g[N];
    float expected[N];
    fill(&random, N, p);
    fill(&random, N, g);
    for (int i = 0; i < N; i++) {
        volatile float product = 0.3f * g[i];
        expected[i] = p[i] - product;
    }
    shoal_tensor *parameter = require_grad(over(p, N));
    CHECK_OK(shoal_set_grad(parameter, over(g, N)));
    shoal_nn_optimizer *optimizer;
    const shoal_nn_sgd_options options = {.struct_size = sizeof(options), .lr = 0.3};
    REQUIRE_OK(shoal_nn_sgd_create(&parameter, 1, &options, &optimizer));
    CHECK_OK(shoal_nn_optimizer_step(optimizer));
    look(parameter, p);
    CHECK_BYTES(p, expected, sizeof(p));
    CHECK_DOUBLE(shoal_nn_optimizer_lr(optimizer), 0.3);
    shoal_nn_optimizer_free(optimizer);
}

/* Any cut of the parameter, empty pieces too, over tensors and over raw memory: the bits of the whole. */
NN_TEST(shards_give_the_bits_of_the_whole)
{
    const size_t cuts[] = {0, 13, 13, 36, N, N};
    enum {
        N_SHARDS = 5
    };
    struct test_random random = test_random_begin(12);
    float whole[N];
    float pieces[N];
    float raw[N];
    float g[N];
    fill(&random, N, whole);
    memcpy(pieces, whole, sizeof(whole));
    memcpy(raw, whole, sizeof(whole));
    shoal_tensor *one = require_grad(over(whole, N));
    shoal_tensor *many[N_SHARDS];
    shoal_nn_shard shards[N_SHARDS];
    for (int i = 0; i < N_SHARDS; i++) {
        size_t count = cuts[i + 1] - cuts[i];
        many[i] = require_grad(over(pieces + cuts[i], (int64_t)count));
        shards[i] = (shoal_nn_shard){.data = raw + cuts[i],
                                     .gradient = g + cuts[i],
                                     .count = count,
                                     .dtype = SHOAL_F32,
                                     .gradient_dtype = SHOAL_F32};
    }
    shoal_nn_optimizer *optimizers[3];
    REQUIRE_OK(shoal_nn_adamw_create(&one, 1, &golden, &optimizers[0]));
    REQUIRE_OK(shoal_nn_adamw_create(many, N_SHARDS, &golden, &optimizers[1]));
    REQUIRE_OK(shoal_nn_adamw_create_raw(shards, N_SHARDS, &golden, &optimizers[2]));
    for (int t = 0; t < N_STEPS; t++) {
        fill(&random, N, g);
        CHECK_OK(shoal_set_grad(one, over(g, N)));
        for (int i = 0; i < N_SHARDS; i++) {
            CHECK_OK(shoal_set_grad(many[i], over(g + cuts[i], (int64_t)(cuts[i + 1] - cuts[i]))));
        }
        CHECK_OK(shoal_nn_optimizer_step(optimizers[0]));
        CHECK_OK(shoal_nn_optimizer_step(optimizers[1]));
        CHECK_OK(shoal_nn_optimizer_step_raw(optimizers[2], shards, N_SHARDS));
        look(one, whole);
        for (int i = 0; i < N_SHARDS; i++) {
            look(many[i], pieces + cuts[i]);
        }
        CHECK_BYTES(pieces, whole, sizeof(whole));
        CHECK_BYTES(raw, whole, sizeof(whole));
    }
    for (int i = 0; i < 3; i++) {
        shoal_nn_optimizer_free(optimizers[i]);
    }
}

/* t counts the updates of each parameter: one that had no gradient is behind. */
NN_TEST(parameters_without_gradient_are_passed_over)
{
    float values[4] = {1, 2, 3, 4};
    float g[2] = {1, -1};
    shoal_tensor *parameters[] = {require_grad(over(values, 2)), require_grad(over(values + 2, 2))};
    shoal_nn_optimizer *optimizer;
    REQUIRE_OK(shoal_nn_adamw_create(parameters, 2, NULL, &optimizer));
    CHECK_OK(shoal_set_grad(parameters[0], over(g, 2)));
    uint64_t version = shoal_tensor_version(parameters[1]);
    CHECK_OK(shoal_nn_optimizer_step(optimizer));
    CHECK_OK(shoal_nn_optimizer_step_one(optimizer, 0));
    CHECK_OK(shoal_nn_optimizer_step_one(optimizer, 1));
    look(parameters[0], values);
    look(parameters[1], values + 2);
    CHECK_DOUBLE((double)values[2], 3);
    CHECK_DOUBLE((double)values[3], 4);
    CHECK_INT(shoal_tensor_version(parameters[1]), version);
    CHECK(values[0] < 1 && values[1] > 1.9f);
    shoal_nn_optimizer_state state = {.struct_size = sizeof(state)};
    CHECK_OK(shoal_nn_optimizer_get_state(optimizer, 0, &state));
    CHECK_INT(state.n_updates, 2);
    CHECK_INT(shoal_tensor_count(state.first_moment), 2);
    CHECK_OK(shoal_nn_optimizer_get_state(optimizer, 1, &state));
    CHECK_INT(state.n_updates, 0);
    CHECK(state.first_moment == NULL && state.second_moment == NULL);
    shoal_nn_optimizer_free(optimizer);
}

/* A second optimizer with the state of the first goes on as the first does. */
NN_TEST(state_can_be_carried_over)
{
    struct test_random random = test_random_begin(13);
    float values[2][N];
    float g[N];
    fill(&random, N, values[0]);
    shoal_nn_shard shards[2];
    shoal_nn_optimizer *optimizers[2];
    for (int i = 0; i < 2; i++) {
        shards[i] = (shoal_nn_shard){
            .data = values[i], .gradient = g, .count = N, .dtype = SHOAL_F32, .gradient_dtype = SHOAL_F32};
        REQUIRE_OK(shoal_nn_adamw_create_raw(&shards[i], 1, &golden, &optimizers[i]));
    }
    fill(&random, N, g);
    CHECK_OK(shoal_nn_optimizer_step_raw(optimizers[0], &shards[0], 1));
    shoal_nn_optimizer_state state = {.struct_size = sizeof(state)};
    CHECK_OK(shoal_nn_optimizer_get_state(optimizers[0], 0, &state));
    CHECK_OK(shoal_nn_optimizer_set_state(optimizers[1], 0, &state));
    memcpy(values[1], values[0], sizeof(values[0]));
    fill(&random, N, g);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(shoal_nn_optimizer_step_raw(optimizers[i], &shards[i], 1));
    }
    CHECK_BYTES(values[1], values[0], sizeof(values[0]));
    state.first_moment = shoal_zeros(INTS(N + 1), 1, SHOAL_F32);
    CHECK_STATUS(shoal_nn_optimizer_set_state(optimizers[1], 0, &state), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("first_moment is f32 of shape [38], but the state has 37 elements of f32");
    state = (shoal_nn_optimizer_state){.struct_size = sizeof(state)};
    CHECK_OK(shoal_nn_optimizer_set_state(optimizers[1], 0, &state));
    CHECK_OK(shoal_nn_optimizer_step_raw(optimizers[1], &shards[1], 1));
    shoal_nn_optimizer_free(optimizers[0]);
    shoal_nn_optimizer_free(optimizers[1]);
}

/* bf16 and f16 parameters, with gradients of other dtypes: f32 inside, one rounding. More than one piece of them. */
NN_TEST(halves_are_computed_in_f32)
{
    enum {
        COUNT = 1300
    };
    const shoal_dtype dtypes[] = {SHOAL_BF16, SHOAL_F16};
    const shoal_dtype gradient_dtypes[] = {SHOAL_F32, SHOAL_BF16, SHOAL_F16, SHOAL_F64};
    struct test_random random = test_random_begin(14);
    for (int k = 0; k < 8; k++) {
        shoal_tensor *half = make_random(&random, INTS(COUNT), 1, dtypes[k / 4]);
        shoal_tensor *gradient = make_random(&random, INTS(COUNT), 1, gradient_dtypes[k % 4]);
        shoal_tensor *single = shoal_clone(shoal_to_dtype(half, SHOAL_F32));
        shoal_tensor *parameters[] = {require_grad(half), require_grad(single)};
        CHECK_OK(shoal_set_grad(half, gradient));
        CHECK_OK(shoal_set_grad(single, shoal_to_dtype(gradient, SHOAL_F32)));
        shoal_nn_optimizer *optimizer;
        REQUIRE_OK(shoal_nn_adamw_create(parameters, 2, &golden, &optimizer));
        CHECK_OK(shoal_nn_optimizer_step(optimizer));
        shoal_tensor *expected = shoal_to_dtype(shoal_detach(single), dtypes[k / 4]);
        CHECK_BYTES(shoal_data(half), shoal_data(expected), COUNT * 2);
        shoal_nn_optimizer_state state = {.struct_size = sizeof(state)};
        CHECK_OK(shoal_nn_optimizer_get_state(optimizer, 0, &state));
        CHECK_INT(shoal_tensor_dtype(state.first_moment), SHOAL_F32);
        shoal_nn_optimizer_free(optimizer);
    }
}

/* f64 is computed in f64; a gradient with other strides is read as it is meant. */
NN_TEST(doubles_and_strided_gradients)
{
    double p[6] = {1, 2, 3, 4, 5, 6};
    double g[6] = {10, 20, 30, 40, 50, 60}; /* [3, 2], used as its transpose */
    const double expected[6] = {1 - 0.1 * 10, 2 - 0.1 * 30, 3 - 0.1 * 50,
                                4 - 0.1 * 20, 5 - 0.1 * 40, 6 - 0.1 * 60};
    shoal_tensor *parameter = require_grad(shoal_from_memory(p, INTS(2, 3), 2, SHOAL_F64, NULL, NULL, NULL));
    shoal_tensor *gradient = shoal_from_memory(g, INTS(3, 2), 2, SHOAL_F64, NULL, NULL, NULL);
    CHECK_OK(shoal_set_grad(parameter, shoal_transpose(gradient, 0, 1)));
    shoal_nn_optimizer *optimizer;
    const shoal_nn_sgd_options options = {.struct_size = sizeof(options), .lr = 0.1};
    REQUIRE_OK(shoal_nn_sgd_create(&parameter, 1, &options, &optimizer));
    CHECK_OK(shoal_nn_optimizer_step(optimizer));
    look(parameter, p);
    CHECK_BYTES(p, expected, sizeof(p));
    shoal_nn_optimizer_free(optimizer);
}

/* A step that fails at its last parameter has changed none. */
NN_TEST(a_failed_step_changes_nothing)
{
    float values[2] = {1, 2};
    float g[2] = {1, 1};
    shoal_tensor *parameters[] = {require_grad(over(values, 2)),
                                  require_grad(shoal_zeros(INTS(2), 1, SHOAL_F32))};
    shoal_nn_optimizer *optimizer;
    REQUIRE_OK(shoal_nn_adamw_create(parameters, 2, NULL, &optimizer));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(shoal_set_grad(parameters[i], over(g, 2)));
    }
    CHECK_OK(shoal_tensor_set_name(parameters[1], "head"));
    CHECK_OK(shoal_tensor_release_data(parameters[1]));
    CHECK_STATUS(shoal_nn_optimizer_step(optimizer), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("head");
    look(parameters[0], values);
    CHECK_DOUBLE((double)values[0], 1);
    CHECK_OK(shoal_tensor_rebind_data(parameters[1], NULL, NULL, NULL));
    CHECK_OK(shoal_nn_optimizer_step(optimizer));
    look(parameters[0], values);
    CHECK(values[0] < 1);
    shoal_nn_optimizer_free(optimizer);
}

NN_TEST(optimizers_refuse_nonsense)
{
    shoal_tensor *x = shoal_zeros(INTS(2, 3), 2, SHOAL_F32);
    shoal_tensor *turned = shoal_transpose(x, 0, 1);
    shoal_tensor *whole = shoal_zeros(INTS(2), 1, SHOAL_I32);
    shoal_tensor *none = NULL;
    shoal_nn_optimizer *optimizer = NULL;
    CHECK_STATUS(shoal_nn_sgd_create(&x, 1, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_sgd_create: optimizer_out is NULL");
    CHECK_STATUS(shoal_nn_sgd_create(NULL, 1, NULL, &optimizer), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_nn_sgd_create(&none, 1, NULL, &optimizer), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_sgd_create: parameter 0 is NULL");
    CHECK_STATUS(shoal_nn_adamw_create(&turned, 1, NULL, &optimizer), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("of shape [3, 2], is not contiguous");
    CHECK_STATUS(shoal_nn_adamw_create(&whole, 1, NULL, &optimizer), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("nn_adamw_create: parameter 0: i32 is not one of");
    shoal_tensor *codes = shoal_zeros((int64_t[]){4}, 1, SHOAL_F8_E4M3FN);
    CHECK_STATUS(shoal_nn_adamw_create(&codes, 1, NULL, &optimizer), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("nn_adamw_create: parameter 0: f8_e4m3fn is not one of");
    shoal_nn_adamw_options bad = golden;
    bad.beta2 = 1;
    CHECK_STATUS(shoal_nn_adamw_create(&x, 1, &bad, &optimizer), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_adamw_create: beta2: 1 is not at least 0 and below 1");
    bad = golden;
    bad.lr = (double)NAN;
    CHECK_STATUS(shoal_nn_adamw_create(&x, 1, &bad, &optimizer), SHOAL_ERR_INVALID);
    bad = golden;
    bad.struct_size = 8;
    CHECK_STATUS(shoal_nn_adamw_create(&x, 1, &bad, &optimizer), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_adamw_create: options: struct_size 8 is not");
    CHECK_STATUS(shoal_nn_optimizer_step(NULL), SHOAL_ERR_INVALID);
    shoal_nn_optimizer_free(NULL);

    float values[2] = {1, 2};
    shoal_nn_shard shard = {
        .data = values, .gradient = values, .count = 2, .dtype = SHOAL_F32, .gradient_dtype = SHOAL_F32};
    REQUIRE_OK(shoal_nn_adamw_create_raw(&shard, 1, NULL, &optimizer));
    CHECK_STATUS(shoal_nn_optimizer_step(optimizer), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("nn_optimizer_step: the optimizer was created for raw memory");
    CHECK_STATUS(shoal_nn_optimizer_step_raw(optimizer, &shard, 2), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_optimizer_step_raw: 2 shards, but it was made with 1");
    shard.count = 1;
    CHECK_STATUS(shoal_nn_optimizer_step_raw(optimizer, &shard, 1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("shard 0 has 1 elements of f32, but was made with 2 of f32");
    shard.count = 2;
    shard.data = NULL;
    CHECK_STATUS(shoal_nn_optimizer_step_raw(optimizer, &shard, 1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("shard 0: data is NULL with 2 elements");
    shard.data = values;
    shard.gradient_dtype = SHOAL_I8;
    CHECK_STATUS(shoal_nn_optimizer_step_raw(optimizer, &shard, 1), SHOAL_ERR_UNSUPPORTED);
    CHECK_STATUS(shoal_nn_optimizer_set_lr(optimizer, -1), SHOAL_ERR_INVALID);
    CHECK_OK(shoal_nn_optimizer_set_lr(optimizer, 0));
    shoal_nn_optimizer_state state = {.struct_size = sizeof(state)};
    CHECK_STATUS(shoal_nn_optimizer_get_state(optimizer, 1, &state), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_optimizer_get_state: index 1, but there are 1 parameters");
    shoal_nn_optimizer_free(optimizer);
}

NN_TEST(empty_lists_are_refused)
{
    shoal_nn_optimizer *optimizer = NULL;
    CHECK_STATUS(shoal_nn_sgd_create(NULL, 0, NULL, &optimizer), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_sgd_create: no parameters: there is nothing to optimize");
    CHECK_STATUS(shoal_nn_adamw_create_raw(NULL, 0, NULL, &optimizer), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_adamw_create_raw: no shards: there is nothing to optimize");
    CHECK(optimizer == NULL);
}

NN_TEST(results_of_operations_are_refused)
{
    shoal_tensor *leaf = require_grad(shoal_zeros(INTS(2, 3), 2, SHOAL_F32));
    shoal_tensor *result = shoal_mul_scalar(leaf, 2);
    shoal_tensor *view = shoal_reshape(leaf, INTS(6), 1);
    shoal_nn_optimizer *optimizer = NULL;
    CHECK_STATUS(shoal_nn_sgd_create(&result, 1, NULL, &optimizer), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_sgd_create: parameter 0 (), of shape [2, 3], is the result of an operation");
    CHECK_STATUS(shoal_nn_adamw_create(&view, 1, NULL, &optimizer), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("give the leaf that it was computed from");
    /* A tensor that needs no gradient is a leaf, too. */
    shoal_tensor *frozen = shoal_zeros(INTS(2), 1, SHOAL_F32);
    REQUIRE_OK(shoal_nn_sgd_create(&frozen, 1, NULL, &optimizer));
    shoal_nn_optimizer_free(optimizer);
}

NN_TEST(dead_parameters_are_refused)
{
    handle_keep(10);
    shoal_nn_optimizer *optimizer = NULL;
    REQUIRE_OK(shoal_scope_begin());
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *gone = require_grad(shoal_zeros(INTS(2, 3), 2, SHOAL_F32));
    REQUIRE_OK(shoal_scope_end());
    CHECK_STATUS(shoal_nn_sgd_create(&gone, 1, NULL, &optimizer), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("nn_sgd_create: parameter 0: tensor, f32 [2, 3], was used after its scope ended");
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_STATE);
    handle_keep(0);
}

NN_TEST(zeros_of_adamw_are_refused_unless_asked_for)
{
    static const struct {
        const char *words;
        double beta1, beta2, eps;
    } rows[] = {
        {"nn_adamw_create: beta1 is 0, perhaps forgotten; begin with SHOAL_NN_ADAMW_OPTIONS_INIT (0.9)", 0,
         0.9, 1},
        {"nn_adamw_create: beta2 is 0", 0.9, 0, 1e-8},
        {"nn_adamw_create: eps is 0", 0.9, 0.999, 0},
    };
    shoal_tensor *x = require_grad(shoal_zeros(INTS(2), 1, SHOAL_F32));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        shoal_nn_optimizer *optimizer = NULL;
        shoal_nn_adamw_options options = {.struct_size = sizeof(options),
                                          .lr = 1e-3,
                                          .beta1 = rows[i].beta1,
                                          .beta2 = rows[i].beta2,
                                          .eps = rows[i].eps};
        CHECK_STATUS(shoal_nn_adamw_create(&x, 1, &options, &optimizer), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT(rows[i].words);
        options.allows_zeros = true;
        REQUIRE_OK(shoal_nn_adamw_create(&x, 1, &options, &optimizer));
        shoal_nn_optimizer_free(optimizer);
    }
}

/* The last warning, and how many there were. */
struct listener {
    int n_calls;
    char last[256];
};

static void hear(void *context, shoal_log_level level, const char *message)
{
    struct listener *listener = context;
    listener->n_calls += level == SHOAL_LOG_WARN;
    (void)snprintf(listener->last, sizeof(listener->last), "%s", message);
}

NN_TEST(steps_without_any_gradient_are_warned_of)
{
    struct listener listener = {0};
    float values[3] = {1, 2, 3};
    shoal_tensor *x = require_grad(over(values, 3));
    shoal_tensor *empty = require_grad(shoal_zeros(INTS(0), 1, SHOAL_F32));
    shoal_tensor *parameters[] = {x, empty};
    shoal_nn_optimizer *optimizer;
    shoal_log_set(hear, &listener, SHOAL_LOG_WARN);
    listener.n_calls = 0; /* options that were wrong are reported first */
    REQUIRE_OK(shoal_nn_sgd_create(parameters, 2, NULL, &optimizer));
    CHECK_OK(shoal_nn_optimizer_step(optimizer));
    CHECK_INT(listener.n_calls, 1);
    CHECK_STRING(listener.last, "optimizer step: none of 1 parameters has a gradient, nothing is updated");
    CHECK_OK(shoal_nn_optimizer_step(optimizer));
    CHECK_INT(listener.n_calls, 1); /* once */
    CHECK_OK(shoal_set_grad(x, shoal_full(INTS(3), 1, 1, SHOAL_F32)));
    CHECK_OK(shoal_nn_optimizer_step(optimizer));
    CHECK_OK(shoal_nn_optimizer_zero_grad(optimizer));
    CHECK_INT(listener.n_calls, 1);
    CHECK_OK(shoal_nn_optimizer_step(optimizer));
    CHECK_INT(listener.n_calls, 2);
    shoal_nn_optimizer_free(optimizer);

    /* A rank whose shards are all empty has no gradients, and that is right. */
    const shoal_nn_shard none = {.dtype = SHOAL_F32, .gradient_dtype = SHOAL_F32};
    REQUIRE_OK(shoal_nn_sgd_create_raw(&none, 1, NULL, &optimizer));
    CHECK_OK(shoal_nn_optimizer_step_raw(optimizer, &none, 1));
    CHECK_INT(listener.n_calls, 2);
    shoal_nn_optimizer_free(optimizer);
    shoal_log_set(NULL, NULL, SHOAL_LOG_WARN);
}

/* Moments come from the library's allocator: every one of them may fail. */
static shoal_status step_once(void *context)
{
    float values[3] = {1, 2, 3};
    const shoal_nn_shard shard = {
        .data = values, .gradient = values, .count = 3, .dtype = SHOAL_F32, .gradient_dtype = SHOAL_F32};
    shoal_nn_optimizer *optimizer;
    shoal_status status = shoal_nn_adamw_create_raw(&shard, 1, NULL, &optimizer);
    if (status == SHOAL_OK) {
        status = shoal_nn_optimizer_step_raw(optimizer, &shard, 1);
        CHECK(status == SHOAL_OK ? values[0] != 1 : values[0] == 1);
        shoal_nn_optimizer_free(optimizer);
    }
    return status;
}

TEST(failing_allocations_are_errors)
{
    begin_nn();
    CHECK(test_sweep_allocations(step_once, NULL) >= 2);
}
