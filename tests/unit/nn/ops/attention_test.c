/* SPDX-License-Identifier: MIT */
/*
 * Attention against a plain reference in f64: lengths around the sizes of blocks, heads that share keys, strides,
 * dtypes, dropout by the words of shoal_nn_words. The bits of a sample do not depend on threads, on other samples, on
 * strides or on capturing. Scratch memory does not grow with the length.
 */
#include "shoal_nn/attention.h"

#include <stdlib.h>

#include "nn/ops/attention_blocks.h"
#include "op/dispatch.h"
#include "shoal_nn/random.h"
#include "unit/nn/fixture.h"

static shoal_tensor *position_of(int64_t seed, int64_t step, int64_t sample)
{
    return make_indices(INTS(seed, step, sample), INTS(3), 1, SHOAL_I64);
}

/* The reference ---------------------------------------------------------------------------------------- */

struct sizes {
    int64_t n_samples;
    int64_t n_queries;
    int64_t n_keys;
    int64_t n_heads;
    int64_t n_kv_heads;
    int64_t size;
    bool is_causal;
    double scale; /* 0: the default */
    double dropout;
};

/* All of them [samples, rows, heads, size], contiguous. */
struct numbers {
    const double *query;
    const double *key;
    const double *value;
    const double *gradient;
    double *output;
    double *query_gradient;
    double *key_gradient;
    double *value_gradient;
};

#define SEED 5
#define STEP 6
#define FIRST_SAMPLE 100
#define STREAM 7

static double *zeros(int64_t count)
{
    double *numbers = calloc((size_t)count + 1, sizeof(double));
    CHECK(numbers != NULL);
    return numbers;
}

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

static void add_scaled(double *to, double factor, const double *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        to[i] += factor * from[i];
    }
}

/* What each weight of one query is multiplied with. */
static void make_mask(const struct sizes *s, int64_t sample, int64_t head, int64_t query, uint32_t *words,
                      double *mask)
{
    const shoal_nn_draws draws = {
        .seed = SEED, .stream = STREAM, .step = STEP, .sample = (uint64_t)(FIRST_SAMPLE + sample)};
    if (s->dropout > 0) {
        CHECK_OK(shoal_nn_words(&draws, (uint64_t)((head * s->n_queries + query) * s->n_keys),
                                (size_t)s->n_keys, words));
    }
    for (int64_t i = 0; i < s->n_keys; i++) {
        bool is_dropped = s->dropout > 0 && (double)words[i] < s->dropout * 0x1p32;
        mask[i] = is_dropped ? 0 : 1 / (1 - s->dropout);
    }
}

static void attend(const struct sizes *s, const struct numbers *n, int64_t sample, int64_t head,
                   int64_t query, double *weights, double *mask)
{
    double scale = s->scale != 0 ? s->scale : 1 / sqrt((double)s->size);
    int64_t row_q = ((sample * s->n_queries + query) * s->n_heads + head) * s->size;
    int64_t kv_head = head / (s->n_heads / s->n_kv_heads);
    int64_t n_seen = s->is_causal ? query + s->n_keys - s->n_queries + 1 : s->n_keys;
    double largest = -(double)INFINITY;
    double sum = 0;
    double mean = 0;
#define ROW_K(k) (((sample * s->n_keys + (k)) * s->n_kv_heads + kv_head) * s->size)
    for (int64_t k = 0; k < n_seen; k++) {
        weights[k] = scale * dot(n->query + row_q, n->key + ROW_K(k), s->size);
        largest = weights[k] > largest ? weights[k] : largest;
    }
    for (int64_t k = 0; k < n_seen; k++) {
        weights[k] = exp(weights[k] - largest);
        sum += weights[k];
    }
    for (int64_t k = 0; k < n_seen; k++) {
        weights[k] /= sum;
        add_scaled(n->output + row_q, weights[k] * mask[k], n->value + ROW_K(k), s->size);
        add_scaled(n->value_gradient + ROW_K(k), weights[k] * mask[k], n->gradient + row_q, s->size);
        mean += weights[k] * mask[k] * dot(n->gradient + row_q, n->value + ROW_K(k), s->size);
    }
    for (int64_t k = 0; k < n_seen; k++) {
        double flow = mask[k] * dot(n->gradient + row_q, n->value + ROW_K(k), s->size);
        double score = scale * weights[k] * (flow - mean);
        add_scaled(n->query_gradient + row_q, score, n->key + ROW_K(k), s->size);
        add_scaled(n->key_gradient + ROW_K(k), score, n->query + row_q, s->size);
    }
#undef ROW_K
}

static void attend_all(const struct sizes *s, const struct numbers *n)
{
    double *weights = zeros(s->n_keys);
    double *mask = zeros(s->n_keys);
    uint32_t *words = calloc((size_t)s->n_keys + 1, sizeof(uint32_t));
    REQUIRE(words != NULL);
    for (int64_t sample = 0; sample < s->n_samples; sample++) {
        for (int64_t head = 0; head < s->n_heads; head++) {
            for (int64_t query = 0; query < s->n_queries; query++) {
                make_mask(s, sample, head, query, words, mask);
                attend(s, n, sample, head, query, weights, mask);
            }
        }
    }
    free(weights);
    free(mask);
    free(words);
}

/* Against it ------------------------------------------------------------------------------------------- */

static shoal_nn_attention_options options_of(const struct sizes *s)
{
    shoal_nn_attention_options options = SHOAL_NN_ATTENTION_OPTIONS_INIT;
    options.is_causal = s->is_causal;
    options.scale = s->scale;
    options.dropout = s->dropout;
    options.stream = STREAM;
    options.position = s->dropout > 0 ? position_of(SEED, STEP, FIRST_SAMPLE) : NULL;
    return options;
}

/* Within a share of the largest number. */
static void check_near(const char *what, shoal_tensor *got, const double *wanted, double bound)
{
    REQUIRE(got != NULL);
    int64_t count = shoal_tensor_count(got);
    const double *numbers = doubles_of(got);
    double largest = 1e-3;
    for (int64_t i = 0; i < count; i++) {
        largest = fabs(wanted[i]) > largest ? fabs(wanted[i]) : largest;
    }
    for (int64_t i = 0; i < count && !test_has_failed(); i++) {
        if (!(fabs(numbers[i] - wanted[i]) <= bound * largest)) {
            test_failed(__FILE__, __LINE__, "%s[%lld]: %g, not %g (largest %g)", what, (long long)i,
                        numbers[i], wanted[i], largest);
        }
    }
}

/* How tensors lie: as they are; as views of [samples, heads, rows, size]; as every second of a larger one. */
enum placing {
    CONTIGUOUS,
    BY_HEADS,
    SCATTERED,
    N_LAYOUTS
};

/* The values of a contiguous tensor, in another layout: a leaf's gradient comes back through the views. */
static shoal_tensor *lay_out(shoal_tensor *tensor, enum placing layout)
{
    if (layout == BY_HEADS) {
        return shoal_transpose(shoal_contiguous(shoal_transpose(tensor, 1, 2)), 1, 2);
    }
    if (layout == SCATTERED) {
        return shoal_transpose(shoal_contiguous(shoal_transpose(tensor, 1, 3)), 1, 3);
    }
    return tensor;
}

static shoal_tensor *random_heads(struct test_random *random, int64_t n_samples, int64_t n_rows,
                                  int64_t n_heads, int64_t size, shoal_dtype dtype)
{
    return make_random(random, INTS(n_samples, n_rows, n_heads, size), 4, dtype);
}

static const struct {
    shoal_dtype dtype;
    double bound;
} dtypes[] = {{SHOAL_F64, 1e-13}, {SHOAL_F32, 2e-5}, {SHOAL_BF16, 2e-2}, {SHOAL_F16, 3e-3}};

#define N_DTYPES (sizeof(dtypes) / sizeof(dtypes[0]))

static void check_numbers(const struct sizes *s, size_t dtype, enum placing layout)
{
    struct test_random random = test_random_begin(1);
    shoal_dtype type = dtypes[dtype].dtype;
    shoal_nn_attention_options options = options_of(s);
    shoal_tensor *q = random_heads(&random, s->n_samples, s->n_queries, s->n_heads, s->size, type);
    shoal_tensor *k = random_heads(&random, s->n_samples, s->n_keys, s->n_kv_heads, s->size, type);
    shoal_tensor *v = random_heads(&random, s->n_samples, s->n_keys, s->n_kv_heads, s->size, type);
    shoal_tensor *g = random_heads(&random, s->n_samples, s->n_queries, s->n_heads, s->size, type);
    struct numbers n = {.query = doubles_of(q),
                        .key = doubles_of(k),
                        .value = doubles_of(v),
                        .gradient = doubles_of(g),
                        .output = zeros(shoal_tensor_count(q)),
                        .query_gradient = zeros(shoal_tensor_count(q)),
                        .key_gradient = zeros(shoal_tensor_count(k)),
                        .value_gradient = zeros(shoal_tensor_count(k))};
    attend_all(s, &n);
    shoal_tensor *leaves[] = {require_grad(q), require_grad(k), require_grad(v)};
    shoal_tensor *y =
        shoal_nn_attention(lay_out(q, layout), lay_out(k, layout), lay_out(v, layout), &options);
    CHECK(y != NULL);
    if (y && CHECK_OK(shoal_backward(y, lay_out(g, layout)))) {
        CHECK_INT(shoal_tensor_dtype(y), type);
        check_near("output", y, n.output, dtypes[dtype].bound);
        check_near("query's gradient", shoal_grad(leaves[0]), n.query_gradient, dtypes[dtype].bound);
        check_near("key's gradient", shoal_grad(leaves[1]), n.key_gradient, dtypes[dtype].bound);
        check_near("value's gradient", shoal_grad(leaves[2]), n.value_gradient, dtypes[dtype].bound);
    }
    free(n.output);
    free(n.query_gradient);
    free(n.key_gradient);
    free(n.value_gradient);
}

/* samples, queries, keys, heads, heads of keys, size, causal, scale, dropout */
static const struct sizes shapes[] = {
    {2, 5, 5, 3, 3, 4, true, 0, 0},       {2, 5, 5, 3, 3, 4, false, 0, 0},
    {1, 1, 1, 1, 1, 1, true, 0, 0},       {2, 3, 8, 2, 1, 5, true, 0, 0},
    {2, 8, 3, 2, 1, 5, true, 0.3, 0},     {1, 7, 9, 6, 2, 3, false, -0.5, 0},
    {1, 1, 70, 2, 2, 8, true, 0, 0},      {1, 64, 64, 1, 1, 8, true, 0, 0},
    {1, 65, 65, 1, 1, 8, true, 0, 0},     {1, 130, 600, 2, 1, 16, true, 0, 0},
    {1, 70, 1030, 1, 1, 8, true, 0, 0},   {1, 600, 20, 1, 1, 8, true, 0, 0},
    {2, 6, 6, 2, 2, 4, true, 0, 0.3},     {2, 6, 7, 4, 2, 4, false, 0, 0.5},
    {1, 67, 521, 2, 2, 8, true, 0, 0.25}, {1, 1030, 1030, 1, 1, 4, true, 0, 0.1},
    {1, 4, 4, 1, 1, 4, true, 0, 1}};

#define N_SHAPES (sizeof(shapes) / sizeof(shapes[0]))

NN_TEST(values_and_gradients_are_those_of_a_plain_loop)
{
    for (size_t i = 0; i < N_SHAPES; i++) {
        if (test_time_scale() > 1 && shapes[i].n_queries * shapes[i].n_keys > 100000) {
            continue; /* sanitizers need seconds for the plain loops */
        }
        check_numbers(&shapes[i], 0, CONTIGUOUS);
        check_numbers(&shapes[i], 1, CONTIGUOUS);
    }
}

NN_TEST(of_every_dtype_and_layout)
{
    const struct sizes small[] = {{2, 9, 9, 4, 2, 8, true, 0, 0.2}, {2, 67, 70, 2, 2, 16, true, 0, 0}};
    for (size_t i = 0; i < 2; i++) {
        for (size_t dtype = 0; dtype < N_DTYPES; dtype++) {
            for (int layout = 0; layout < N_LAYOUTS; layout++) {
                check_numbers(&small[i], dtype, (enum placing)layout);
            }
        }
    }
}

/* Nothing to look at gives zeros, and nothing that looks gives nothing. */
NN_TEST(lengths_of_zero)
{
    const struct sizes rows[] = {{2, 0, 4, 2, 2, 3, true, 0, 0},    {2, 4, 0, 2, 1, 3, true, 0, 0},
                                 {2, 4, 0, 2, 2, 3, false, 0, 0.5}, {0, 4, 4, 2, 2, 3, true, 0, 0},
                                 {2, 4, 4, 0, 1, 3, true, 0, 0},    {2, 0, 0, 2, 2, 3, true, 0, 0.5}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        for (size_t dtype = 0; dtype < N_DTYPES; dtype++) {
            check_numbers(&rows[i], dtype, CONTIGUOUS);
        }
    }
}

/* Scores without bound, and -infinity among them, in all blocks of keys. */
NN_TEST(large_scores_do_not_overflow)
{
    shoal_tensor *q = shoal_full(INTS(1, 1, 1, 1), 4, 1.0, SHOAL_F32);
    shoal_tensor *k = shoal_full(INTS(1, 1100, 1, 1), 4, -(double)INFINITY, SHOAL_F32);
    shoal_tensor *v = shoal_full(INTS(1, 1100, 1, 1), 4, 3.0, SHOAL_F32);
    CHECK(isnan(doubles_of(shoal_nn_attention(q, k, v, NULL))[0]));
    float *keys = shoal_mutable_data(k);
    keys[1050] = 3e38f;
    CHECK_DOUBLE(doubles_of(shoal_nn_attention(q, k, v, NULL))[0], 3);
    keys[3] = -3e38f;
    CHECK_DOUBLE(doubles_of(shoal_nn_attention(q, k, v, NULL))[0], 3);
    keys[600] = NAN;
    CHECK(isnan(doubles_of(shoal_nn_attention(q, k, v, NULL))[0]));
}

/* Packed ----------------------------------------------------------------------------------------------- */

static bool has_same_bits(shoal_tensor *a, shoal_tensor *b)
{
    a = shoal_contiguous(a);
    b = shoal_contiguous(b);
    size_t bytes = a ? (size_t)shoal_tensor_count(a) * shoal_dtype_bytes(shoal_tensor_dtype(a)) : 0;
    return a && b && shoal_tensor_count(a) == shoal_tensor_count(b) &&
           memcmp(shoal_data(a), shoal_data(b), bytes) == 0;
}

static void check_packed(shoal_dtype dtype, bool is_strided, double dropout)
{
    struct sizes s = {.is_causal = true, .dropout = dropout};
    struct test_random random = test_random_begin(2);
    shoal_nn_attention_options options = options_of(&s);
    shoal_tensor *qkv = require_grad(make_random(&random, INTS(2, 70, 3, 2, 8), 5, dtype));
    shoal_tensor *g = make_random(&random, INTS(2, 70, 2, 8), 4, dtype);
    shoal_tensor *lying =
        is_strided ? shoal_transpose(shoal_contiguous(shoal_transpose(qkv, 1, 4)), 1, 4) : qkv;
    shoal_tensor *packed = shoal_nn_attention_packed(lying, &options);
    REQUIRE_OK(shoal_backward(packed, g));
    shoal_tensor *gradient = shoal_clone(shoal_grad(qkv));
    REQUIRE_OK(shoal_set_grad(qkv, NULL));
    shoal_tensor *apart = shoal_nn_attention(shoal_select(qkv, 2, 0), shoal_select(qkv, 2, 1),
                                             shoal_select(qkv, 2, 2), &options);
    REQUIRE_OK(shoal_backward(apart, g));
    CHECK(has_same_bits(packed, apart));
    /* Equal as numbers: a gradient that is put together from three has been added to zeros, -0 then is 0. */
    check_near("gradient", gradient, doubles_of(shoal_grad(qkv)), 0);
}

NN_TEST(packed_is_the_same_as_three_tensors)
{
    for (size_t dtype = 0; dtype < N_DTYPES; dtype++) {
        check_packed(dtypes[dtype].dtype, false, 0);
        check_packed(dtypes[dtype].dtype, true, 0);
        check_packed(dtypes[dtype].dtype, false, 0.3);
    }
}

/* Bits ------------------------------------------------------------------------------------------------- */

struct bits {
    shoal_tensor *output;
    shoal_tensor *gradient; /* of qkv */
};

/* Samples first .. first + count - 1 of a batch of four. */
static struct bits train_samples(int64_t first, int64_t count, shoal_dtype dtype, double dropout)
{
    struct test_random random = test_random_begin(3);
    shoal_tensor *qkv = make_random(&random, INTS(4, 150, 3, 3, 16), 5, dtype);
    shoal_tensor *g = make_random(&random, INTS(4, 150, 3, 16), 4, dtype);
    shoal_nn_attention_options options = SHOAL_NN_ATTENTION_OPTIONS_INIT;
    shoal_tensor *part = require_grad(shoal_clone(shoal_narrow(qkv, 0, first, count)));
    options.dropout = dropout;
    options.position = position_of(1, 2, 50 + first);
    struct bits bits = {.output = shoal_nn_attention_packed(part, &options)};
    CHECK_OK(shoal_backward(bits.output, shoal_narrow(g, 0, first, count)));
    bits.gradient = shoal_grad(part);
    return bits;
}

NN_TEST(micro_batches_have_the_bits_of_the_whole_batch)
{
    const int64_t splits[][3] = {{0, 2, 4}, {0, 1, 4}, {0, 3, 4}};
    for (size_t dtype = 0; dtype < N_DTYPES; dtype++) {
        struct bits whole = train_samples(0, 4, dtypes[dtype].dtype, 0.2);
        for (size_t i = 0; i < 3; i++) {
            for (int part = 0; part < 2; part++) {
                int64_t first = splits[i][part];
                int64_t count = splits[i][part + 1] - first;
                struct bits bits = train_samples(first, count, dtypes[dtype].dtype, 0.2);
                CHECK(has_same_bits(bits.output, shoal_narrow(whole.output, 0, first, count)));
                CHECK(has_same_bits(bits.gradient, shoal_narrow(whole.gradient, 0, first, count)));
            }
        }
    }
}

NN_TEST(any_number_of_threads_gives_the_same_bits)
{
    REQUIRE_OK(shoal_nn_set_threads(1));
    struct bits one = train_samples(0, 4, SHOAL_F32, 0.2);
    for (int n_threads = 2; n_threads <= 5; n_threads++) {
        REQUIRE_OK(shoal_nn_set_threads(n_threads));
        struct bits several = train_samples(0, 4, SHOAL_F32, 0.2);
        CHECK(has_same_bits(one.output, several.output));
        CHECK(has_same_bits(one.gradient, several.gradient));
    }
    CHECK_OK(shoal_nn_set_threads(0));
}

/* Dropout ---------------------------------------------------------------------------------------------- */

/* Keys of zeros give equal weights; values of ones then tell the share of weights that are left. */
NN_TEST(the_share_of_dropped_weights_is_right)
{
    struct sizes s = {.dropout = 0.1};
    shoal_nn_attention_options options = options_of(&s);
    shoal_tensor *zero = shoal_zeros(INTS(2, 300, 2, 1), 4, SHOAL_F32);
    shoal_tensor *one = shoal_full(INTS(2, 300, 2, 1), 4, 1.0, SHOAL_F32);
    const double *y = doubles_of(shoal_nn_attention(zero, zero, one, &options));
    double mean = 0;
    for (int i = 0; i < 1200; i++) {
        mean += y[i] / 1200;
    }
    CHECK(fabs(mean - 1) < 5 * sqrt(0.1 / 0.9 / 360000));
}

/* The gradient reads a copy of the position. */
NN_TEST(the_gradient_has_its_own_position)
{
    int64_t numbers[] = {7, 8, 9};
    struct test_random random = test_random_begin(4);
    shoal_tensor *qkv = require_grad(make_random(&random, INTS(2, 9, 3, 2, 4), 5, SHOAL_F32));
    shoal_nn_attention_options options = SHOAL_NN_ATTENTION_OPTIONS_INIT;
    options.dropout = 0.5;
    options.position = position_of(7, 8, 9);
    REQUIRE_OK(shoal_backward(sum_all(shoal_nn_attention_packed(qkv, &options)), NULL));
    shoal_tensor *wanted = shoal_clone(shoal_grad(qkv));
    REQUIRE_OK(shoal_set_grad(qkv, NULL));
    options.position = shoal_from_memory(numbers, INTS(3), 1, SHOAL_I64, NULL, NULL, NULL);
    shoal_tensor *y = shoal_nn_attention_packed(qkv, &options);
    memset(numbers, 0, sizeof(numbers));
    REQUIRE_OK(shoal_backward(sum_all(y), NULL));
    CHECK(has_same_bits(shoal_grad(qkv), wanted));
}

/* Captured --------------------------------------------------------------------------------------------- */

/* inputs: x [2, 9, 8] and position; context: the weight [24, 8]. */
static shoal_status train_step(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                               shoal_tensor **outputs, size_t n_outputs)
{
    shoal_nn_attention_options options = SHOAL_NN_ATTENTION_OPTIONS_INIT;
    options.dropout = 0.3;
    options.position = inputs[1];
    options.stream = shoal_nn_stream("h.0.attn");
    shoal_tensor *qkv = shoal_view(shoal_nn_linear(inputs[0], context, NULL), INTS(2, 9, 3, 2, 4), 5);
    shoal_tensor *packed = shoal_nn_attention_packed(qkv, &options);
    shoal_tensor *apart = shoal_nn_attention(shoal_select(qkv, 2, 0), shoal_select(qkv, 2, 1),
                                             shoal_select(qkv, 2, 2), &options);
    outputs[0] = sum_all(shoal_mul(packed, shoal_nn_tanh(apart)));
    return shoal_backward(outputs[0], NULL);
}

NN_TEST(a_compiled_step_has_the_bits_of_an_eager_one)
{
    struct test_random random = test_random_begin(5);
    shoal_tensor *weight = require_grad(make_random(&random, INTS(24, 8), 2, SHOAL_F32));
    shoal_tensor *inputs[] = {make_random(&random, INTS(2, 9, 8), 3, SHOAL_F32), NULL};
    shoal_compiled *compiled = NULL;
    REQUIRE_OK(shoal_compile(NULL, train_step, weight, 1, NULL, &compiled));
    for (int64_t step = 0; step < 4; step++) {
        shoal_tensor *eager = NULL;
        shoal_tensor *planned = NULL;
        inputs[1] = position_of(1, step, 4 * step);
        REQUIRE_OK(train_step(weight, inputs, 2, &eager, 1));
        shoal_tensor *wanted = shoal_clone(shoal_grad(weight));
        REQUIRE_OK(shoal_set_grad(weight, NULL));
        REQUIRE_OK(shoal_compiled_run(compiled, inputs, 2, &planned, 1));
        CHECK(has_same_bits(planned, eager));
        CHECK(has_same_bits(shoal_grad(weight), wanted));
        REQUIRE_OK(shoal_set_grad(weight, NULL));
        shoal_tensor_unref(planned);
    }
    shoal_compile_report report = SHOAL_COMPILE_REPORT_INIT;
    CHECK_OK(shoal_compiled_get_report(compiled, &report));
    CHECK_INT(report.n_compiles, 1);
    shoal_compiled_free(compiled);
}

/* Memory ----------------------------------------------------------------------------------------------- */

static size_t scratch_at(int64_t length, bool is_backward)
{
    struct nn_attention attention = {.real = SHOAL_F32,
                                     .n_samples = 1,
                                     .n_queries = length,
                                     .n_keys = length,
                                     .n_heads = 1,
                                     .n_kv_heads = 1,
                                     .size = 64};
    return nn_attention_scratch_bytes(&attention, is_backward);
}

/* The results, and scratch memory that is the same for every length. */
NN_TEST(memory_is_linear_in_the_length)
{
    REQUIRE_OK(shoal_nn_set_threads(1));
    for (int is_backward = 0; is_backward < 2; is_backward++) {
        CHECK(scratch_at(4096, is_backward) <= scratch_at(1024, is_backward));
        CHECK(scratch_at(4096, is_backward) < (size_t)4096 * 1024);
    }
    CHECK_OK(shoal_nn_set_threads(0));
}

/* What plans have ready for the ops, of tensors that have shapes only. */
static size_t declared_at(int64_t length, shoal_dtype dtype, bool is_backward)
{
    const shoal_op *op = NULL;
    shoal_tensor *qkv = shoal_empty_on(INTS(2, length, 3, 4, 64), 5, dtype, SHOAL_META);
    shoal_tensor *output = shoal_empty_on(INTS(2, length, 4, 64), 4, dtype, SHOAL_META);
    shoal_tensor *lse = shoal_empty_on(INTS(2, 4, length), 3, SHOAL_F32, SHOAL_META);
#define BOX(x) ((shoal_value){.kind = SHOAL_VALUE_TENSOR, .count = 1, .as.tensor = (x)})
    const shoal_value none = {.kind = SHOAL_VALUE_NONE};
    const shoal_value causal = {.kind = SHOAL_VALUE_BOOL, .count = 1, .as.boolean = true};
    const shoal_value zero = {.kind = SHOAL_VALUE_FLOAT, .count = 1};
    const shoal_value stream = {.kind = SHOAL_VALUE_INT, .count = 1};
    const shoal_value arguments[] = {BOX(output), BOX(output), BOX(lse), BOX(qkv), none,
                                     causal,      zero,        zero,     stream};
#undef BOX
    shoal_tensor *const outputs[] = {is_backward ? qkv : output, lse};
    CHECK_OK(shoal_op_find(is_backward ? "nn.attention_packed_backward" : "nn.attention_packed", &op));
    return is_backward ? op_workspace_bytes(op, arguments, outputs, 1)
                       : op_workspace_bytes(op, arguments + 3, outputs, 2);
}

/* f32 is used in place; 16-bit floats are copied into f32, which is linear. */
NN_TEST(ops_declare_memory_that_is_linear_in_the_length)
{
    for (int is_backward = 0; is_backward < 2; is_backward++) {
        CHECK_INT(declared_at(4096, SHOAL_F32, is_backward), declared_at(1024, SHOAL_F32, is_backward));
        CHECK(declared_at(4096, SHOAL_BF16, is_backward) <= 4 * declared_at(1024, SHOAL_BF16, is_backward));
        CHECK(declared_at(4096, SHOAL_BF16, is_backward) > declared_at(4096, SHOAL_F32, is_backward));
    }
}

/* Errors ----------------------------------------------------------------------------------------------- */

static shoal_tensor *heads(int64_t n_samples, int64_t n_rows, int64_t n_heads, int64_t size)
{
    return shoal_zeros(INTS(n_samples, n_rows, n_heads, size), 4, SHOAL_F32);
}

static void refuse(shoal_tensor *const *x, const shoal_nn_attention_options *options, shoal_status status,
                   const char *words)
{
    REQUIRE_OK(shoal_scope_begin());
    CHECK(shoal_nn_attention(x[0], x[1], x[2], options) == NULL);
    CHECK_STATUS(shoal_scope_error(), status);
    CHECK_ERROR_TEXT("attention: ");
    CHECK_ERROR_TEXT(words);
    CHECK_STATUS(shoal_scope_end(), status);
}

#define X(...) ((shoal_tensor *const[]){__VA_ARGS__})

NN_TEST(tensors_that_are_wrong)
{
    shoal_tensor *x = heads(2, 3, 4, 5);
    shoal_tensor *flat = shoal_zeros(INTS(2, 3, 4), 3, SHOAL_F32);
    refuse(X(NULL, x, x), NULL, SHOAL_ERR_INVALID, "query");
    refuse(X(x, x, NULL), NULL, SHOAL_ERR_INVALID, "value");
    refuse(X(flat, x, x), NULL, SHOAL_ERR_INVALID,
           "query has shape [2, 3, 4], not [samples, queries, heads, size]");
    refuse(X(x, flat, x), NULL, SHOAL_ERR_INVALID, "key has shape [2, 3, 4], not");
    refuse(X(x, x, flat), NULL, SHOAL_ERR_INVALID, "value has shape [2, 3, 4]");
    refuse(X(x, x, heads(2, 4, 4, 5)), NULL, SHOAL_ERR_INVALID, "value has shape [2, 4, 4, 5]");
    refuse(X(x, heads(1, 3, 4, 5), heads(1, 3, 4, 5)), NULL, SHOAL_ERR_INVALID,
           "the numbers of samples or the sizes of heads differ");
    refuse(X(x, heads(2, 3, 4, 6), heads(2, 3, 4, 6)), NULL, SHOAL_ERR_INVALID,
           "the numbers of samples or the sizes of heads differ");
    refuse(X(x, heads(2, 3, 3, 5), heads(2, 3, 3, 5)), NULL, SHOAL_ERR_INVALID,
           "4 heads are not a multiple of 3");
    refuse(X(x, heads(2, 3, 0, 5), heads(2, 3, 0, 5)), NULL, SHOAL_ERR_INVALID,
           "4 heads are not a multiple of 0");
    refuse(X(heads(2, 3, 4, 0), heads(2, 3, 4, 0), heads(2, 3, 4, 0)), NULL, SHOAL_ERR_INVALID,
           "heads of size 0");
    refuse(X(x, shoal_to_dtype(x, SHOAL_BF16), x), NULL, SHOAL_ERR_INVALID, "key is bf16, but query is f32");
    refuse(X(x, x, shoal_to_dtype(x, SHOAL_F64)), NULL, SHOAL_ERR_INVALID, "value is f64, but query is f32");
    shoal_tensor *whole = shoal_to_dtype(x, SHOAL_I32);
    refuse(X(whole, whole, whole), NULL, SHOAL_ERR_UNSUPPORTED, "query: i32");
}

NN_TEST(options_that_are_wrong)
{
    shoal_tensor *x = heads(2, 3, 4, 5);
    shoal_nn_attention_options options = SHOAL_NN_ATTENTION_OPTIONS_INIT;
    options.struct_size = 3;
    refuse(X(x, x, x), &options, SHOAL_ERR_INVALID, "nn_attention: options: struct_size 3");
    options = (shoal_nn_attention_options)SHOAL_NN_ATTENTION_OPTIONS_INIT;
    options.scale = (double)INFINITY;
    refuse(X(x, x, x), &options, SHOAL_ERR_INVALID, "scale: inf is not finite");
    options.scale = 0;
    options.dropout = 1.5;
    refuse(X(x, x, x), &options, SHOAL_ERR_INVALID, "dropout: 1.5 is not a probability");
    options.dropout = 0.5;
    refuse(X(x, x, x), &options, SHOAL_ERR_INVALID, "dropout is 0.5, but there is no position");
    options.position = shoal_zeros(INTS(2), 1, SHOAL_I64);
    refuse(X(x, x, x), &options, SHOAL_ERR_INVALID, "position has shape [2], not [3]");
    options.position = shoal_zeros(INTS(3), 1, SHOAL_I32);
    refuse(X(x, x, x), &options, SHOAL_ERR_INVALID, "position is i32, not i64");
}

NN_TEST(packed_tensors_that_are_wrong)
{
    REQUIRE_OK(shoal_scope_begin());
    CHECK(shoal_nn_attention_packed(shoal_zeros(INTS(2, 3, 2, 4, 5), 5, SHOAL_F32), NULL) == NULL);
    CHECK_ERROR_TEXT(
        "nn.attention_packed: self has shape [2, 3, 2, 4, 5]: dimension 2 is not query, key and value");
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    REQUIRE_OK(shoal_scope_begin());
    CHECK(shoal_nn_attention_packed(heads(2, 3, 4, 5), NULL) == NULL);
    CHECK_ERROR_TEXT("self has shape [2, 3, 4, 5], not [samples, tokens, 3, heads, size]");
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
}

/* The second result of the op is for its gradient. */
NN_TEST(no_gradient_flows_through_the_log_sum_exps)
{
    const shoal_op *op = NULL;
    shoal_value result;
    shoal_tensor *x = require_grad(heads(2, 3, 4, 5));
    const shoal_value tensor = {.kind = SHOAL_VALUE_TENSOR, .count = 1, .as.tensor = x};
    const shoal_value none = {.kind = SHOAL_VALUE_NONE};
    const shoal_value real = {.kind = SHOAL_VALUE_FLOAT, .count = 1};
    const shoal_value yes = {.kind = SHOAL_VALUE_BOOL, .count = 1, .as.boolean = true};
    const shoal_value zero = {.kind = SHOAL_VALUE_INT, .count = 1};
    const shoal_value arguments[] = {tensor, tensor, tensor, none, yes, real, real, zero};
    REQUIRE_OK(shoal_op_find("nn.attention", &op));
    REQUIRE_OK(shoal_op_call(op, arguments, 8, &result));
    REQUIRE(result.kind == SHOAL_VALUE_TENSORS && result.count == 2);
    CHECK(fabs(doubles_of(result.as.tensors[1])[2] - log(3.0)) < 1e-6);
    CHECK_STATUS(shoal_backward(sum_all(result.as.tensors[1]), NULL), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("no gradient flows through the log-sum-exps");
}

NN_TEST(shapes_without_data)
{
    shoal_tensor *x = shoal_empty_on(INTS(2, 6, 3, 4, 5), 5, SHOAL_BF16, SHOAL_META);
    shoal_tensor *y = shoal_nn_attention_packed(x, NULL);
    CHECK_INT(shoal_tensor_device(y), SHOAL_META);
    CHECK_INT(shoal_tensor_dtype(y), SHOAL_BF16);
    CHECK_INT(shoal_tensor_n_dims(y), 4);
    CHECK_INT(shoal_tensor_shape(y)[1], 6);
}

static shoal_status train_once(void *context)
{
    shoal_nn_attention_options options = SHOAL_NN_ATTENTION_OPTIONS_INIT;
    shoal_status status = shoal_scope_begin();
    if (status != SHOAL_OK) {
        return status;
    }
    options.dropout = 0.5;
    shoal_tensor *x = shoal_full(INTS(1, 3, 3, 1, 2), 5, 0.5, SHOAL_BF16);
    options.position = shoal_zeros(INTS(3), 1, SHOAL_I64);
    if (options.position) {
        status = shoal_set_requires_grad(x, true);
    }
    shoal_tensor *y = options.position && status == SHOAL_OK ? shoal_nn_attention_packed(x, &options) : NULL;
    shoal_tensor *loss = y ? shoal_sum(y, NULL, 0, false) : NULL;
    if (loss) {
        status = shoal_backward(loss, NULL);
    }
    shoal_status ended = shoal_scope_end();
    return status == SHOAL_OK ? ended : status;
}

TEST(failing_allocations_are_errors)
{
    begin_nn();
    CHECK(test_sweep_allocations(train_once, NULL) > 5);
}
