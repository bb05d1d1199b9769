/* SPDX-License-Identifier: MIT */
/* Attention in f32 has one result: with all vector instructions, on all machines, with any number of threads. */
#include "nn/math/attention_loops.h"
#include "nn/math/vector.h"
#include "shoal_nn/attention.h"
#include "unit/nn/fixture.h"

/* Variants --------------------------------------------------------------------------------------------- */

enum {
    QUERIES = NN_TILE_COLUMNS,
    KEYS = 45, /* not a multiple of anything */
    SIZE = 39,
    PADDED = SIZE + 64
};

static float query[QUERIES][SIZE];
static float key[KEYS][SIZE];
static float value[KEYS][SIZE];

static void fill_inputs(void)
{
    struct test_random random = test_random_begin(11);
    float *const arrays[] = {query[0], key[0], value[0]};
    const size_t counts[] = {QUERIES * SIZE, KEYS * SIZE, KEYS * SIZE};
    for (size_t i = 0; i < 3; i++) {
        for (size_t k = 0; k < counts[i]; k++) {
            arrays[i][k] = (float)(8 * test_random_unit(&random) - 4);
        }
    }
    key[7][0] = -(float)INFINITY; /* and others see +infinity and NaN */
}

/* Everything that the loops give for the queries, forward and backward. */
struct results {
    float output[QUERIES][SIZE];
    float lse[QUERIES];
    float weights[KEYS][QUERIES];
    float gradients[KEYS][QUERIES];
    float key_gradient[KEYS][SIZE];
};

static void run_tile(const struct nn_attention_loops *loops, size_t first, struct results *results)
{
    static float queries[SIZE * NN_TILE_COLUMNS];
    static float scores[KEYS * NN_TILE_COLUMNS];
    static float panels[PADDED * KEYS];
    static float sums[PADDED * NN_TILE_COLUMNS];
    float largest[NN_TILE_COLUMNS];
    float sum[NN_TILE_COLUMNS] = {0};
    float factors[NN_TILE_COLUMNS];
    const struct nn_tile_softmax softmax = {largest, sum, factors};
    const size_t n = loops->n_columns;
    const size_t n_rows = (SIZE + loops->n_rows - 1) / loops->n_rows * loops->n_rows;
    for (size_t i = 0; i < n; i++) {
        largest[i] = -(float)INFINITY;
    }
    loops->transpose(n, SIZE, query[first], SIZE, 0.3, queries);
    struct nn_tile_product product = {.n_rows = KEYS,
                                      .depth = SIZE,
                                      .a = key,
                                      .a_stride = SIZE,
                                      .b = queries,
                                      .b_stride = n,
                                      .c = scores,
                                      .c_stride = n};
    loops->multiply_rows(&product);
    product.c = &results->weights[0][first];
    product.c_stride = QUERIES;
    loops->multiply_rows(&product);
    product.a = value;
    product.c = &results->gradients[0][first];
    loops->multiply_rows(&product);
    /* Keys in two blocks. */
    for (size_t at = 0; at < KEYS; at += 32) {
        size_t n_keys = KEYS - at < 32 ? KEYS - at : 32;
        loops->weigh(n_keys, scores + at * n, &softmax);
        loops->pack_columns(n_keys, SIZE, value[at], SIZE, 1, panels);
        loops->multiply_columns(&(struct nn_tile_product){.n_rows = n_rows,
                                                          .depth = n_keys,
                                                          .a = panels,
                                                          .a_stride = n_keys * loops->n_rows,
                                                          .b = scores + at * n,
                                                          .b_stride = n,
                                                          .c = sums,
                                                          .c_stride = n},
                                at > 0 ? factors : NULL);
    }
    loops->finish(&softmax, &results->lse[first]);
    loops->transpose_back(n, SIZE, sums, sum, results->output[first], SIZE);
    loops->weigh_again(KEYS, QUERIES, &results->weights[0][first], &results->gradients[0][first],
                       &results->lse[first], sum, NULL);
}

static void run_all(const struct nn_attention_loops *loops, struct results *results)
{
    static float panels[PADDED * QUERIES];
    static float some[KEYS * NN_TILE_COLUMNS];
    const size_t n = loops->n_columns;
    memset(results, 0, sizeof(*results));
    for (size_t first = 0; first < QUERIES; first += n) {
        run_tile(loops, first, results);
    }
    loops->pack_rows(QUERIES, SIZE, query, SIZE, 0.3, panels);
    for (size_t column = 0; column < SIZE; column += n) {
        loops->multiply_rows(&(struct nn_tile_product){.n_rows = KEYS,
                                                       .depth = QUERIES,
                                                       .a = results->gradients,
                                                       .a_stride = QUERIES,
                                                       .b = panels + column * QUERIES,
                                                       .b_stride = n,
                                                       .c = some,
                                                       .c_stride = n});
        for (size_t k = 0; k < KEYS; k++) {
            memcpy(&results->key_gradient[k][column], &some[k * n],
                   (SIZE - column < n ? SIZE - column : n) * sizeof(float));
        }
    }
}

/* Equal, or both NaN: which one it is differs between processors. */
static bool is_same(const float *a, const float *b, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (memcmp(&a[i], &b[i], sizeof(a[i])) != 0 && !(isnan(a[i]) && isnan(b[i]))) {
            return false;
        }
    }
    return true;
}

TEST(all_variants_have_the_same_bits)
{
    static struct results plain;
    static struct results other;
    fill_inputs();
    run_all(nn_vectors_at(0)->attention, &plain);
    CHECK(isfinite(plain.output[1][0]) || isnan(plain.output[1][0]));
    for (size_t i = 1; nn_vectors_at(i); i++) {
        run_all(nn_vectors_at(i)->attention, &other);
        CHECK(is_same(plain.output[0], other.output[0], QUERIES * SIZE));
        CHECK(is_same(plain.lse, other.lse, QUERIES));
        CHECK(is_same(plain.weights[0], other.weights[0], KEYS * QUERIES));
        CHECK(is_same(plain.gradients[0], other.gradients[0], KEYS * QUERIES));
        CHECK(is_same(plain.key_gradient[0], other.key_gradient[0], KEYS * SIZE));
    }
}

/* Machines and threads --------------------------------------------------------------------------------- */

static uint64_t hash_of(shoal_tensor *tensor)
{
    tensor = shoal_contiguous(tensor);
    const unsigned char *bytes = shoal_data(tensor);
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int64_t i = 0; bytes && i < 4 * shoal_tensor_count(tensor); i++) {
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

struct hashes {
    uint64_t output;
    uint64_t gradients[3];
};

/* The same numbers in every run. */
static shoal_tensor *make_numbers(uint32_t seed, int64_t n_rows, int64_t n_heads)
{
    shoal_tensor *tensor = shoal_empty(INTS(1, n_rows, n_heads, 20), 4, SHOAL_F32);
    float *data = shoal_mutable_data(tensor);
    for (int64_t i = 0; data && i < shoal_tensor_count(tensor); i++) {
        seed = seed * 1664525u + 1013904223u;
        data[i] = (float)(seed >> 8) * 0x1p-23f - 1;
    }
    return tensor;
}

/* One head of keys that two of queries look at, over several blocks of both. */
static struct hashes train(double dropout)
{
    shoal_tensor *q = require_grad(make_numbers(1, 290, 2));
    shoal_tensor *k = require_grad(make_numbers(2, 300, 1));
    shoal_tensor *v = require_grad(make_numbers(3, 300, 1));
    shoal_tensor *g = make_numbers(4, 290, 2);
    shoal_nn_attention_options options = SHOAL_NN_ATTENTION_OPTIONS_INIT;
    options.dropout = dropout;
    options.position = make_indices(INTS(1, 2, 3), INTS(3), 1, SHOAL_I64);
    shoal_tensor *y = shoal_nn_attention(q, k, v, &options);
    CHECK_OK(shoal_backward(y, g));
    return (struct hashes){hash_of(y),
                           {hash_of(shoal_grad(q)), hash_of(shoal_grad(k)), hash_of(shoal_grad(v))}};
}

/* On every machine. A change of the order of a sum changes them: say so in the changelog. */
NN_TEST(the_bits_are_these)
{
    const struct hashes wanted[] = {
        {UINT64_C(0x7dede6d3f7a5fb49),
         {UINT64_C(0x20411ebf98587754), UINT64_C(0xee765b07dc9f6fbc), UINT64_C(0xb5272d393c97c8a)}},
        {UINT64_C(0xc36c9769a5f7d46d),
         {UINT64_C(0xf71a0088de789b3d), UINT64_C(0x3bfcad0780d4136b), UINT64_C(0x193e220ed7576f9)}}};
    for (size_t i = 0; i < 2; i++) {
        struct hashes hashes = train(i == 0 ? 0 : 0.25);
        if (memcmp(&hashes, &wanted[i], sizeof(hashes)) != 0) {
            test_failed(__FILE__, __LINE__, "{%#llx, {%#llx, %#llx, %#llx}}",
                        (unsigned long long)hashes.output, (unsigned long long)hashes.gradients[0],
                        (unsigned long long)hashes.gradients[1], (unsigned long long)hashes.gradients[2]);
        }
    }
}

/* With more threads than heads the backward pass is cut by queries and by keys. */
NN_TEST(more_threads_than_heads_give_the_same_bits)
{
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(shoal_nn_set_threads(1));
        struct hashes one = train(i == 0 ? 0 : 0.25);
        for (int n_threads = 2; n_threads <= 4; n_threads += 2) {
            REQUIRE_OK(shoal_nn_set_threads(n_threads));
            struct hashes several = train(i == 0 ? 0 : 0.25);
            CHECK(memcmp(&one, &several, sizeof(one)) == 0);
        }
    }
    CHECK_OK(shoal_nn_set_threads(0));
}
