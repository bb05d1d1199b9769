/* SPDX-License-Identifier: MIT */
/*
 * The cases that PyTorch has for its functional collectives, with the numbers that it has, under its names; the map is in
 * README.md. And examples that are worked out by hand.
 */
#include "fixtures/groups.h"
#include "fixtures/functional.h"
#include "shoal_compat/torch.h"
#include "shoal/mesh.h"

enum {
    W = 4
};

/* A line of four, and a square of two by two. */
struct meshes {
    shoal_mesh *line;
    shoal_mesh *square;
};

static struct meshes make_meshes(const struct functional *self)
{
    struct meshes meshes = {NULL, NULL};
    CHECK_OK(shoal_mesh_create(self->world, "cpu", NULL, (const int[]){W}, 1, NULL, &meshes.line));
    CHECK_OK(shoal_mesh_create(self->world, "cpu", NULL, (const int[]){2, 2}, 2, NULL, &meshes.square));
    return meshes;
}

static void free_meshes(struct meshes *meshes)
{
    shoal_mesh_free(meshes->line);
    shoal_mesh_free(meshes->square);
}

/* test_functional_api ---------------------------------------------------------------------------------- */

FUNCTIONAL(broadcast, W)
{
    shoal_tensor *tensor = full_of(SHAPE(4), self->rank == 0, SHOAL_F32);
    CHECK_FULL(shoal_broadcast(tensor, 0, self->group), SHAPE(4), 1);
    CHECK_FULL(tensor, SHAPE(4), self->rank == 0);
}

FUNCTIONAL(all_reduce_eager, W)
{
    struct meshes meshes = make_meshes(self);
    shoal_tensor *ones = full_of(SHAPE(4), 1, SHOAL_F32);
    CHECK_FULL(shoal_all_reduce(ones, SHOAL_SUM, shoal_mesh_group(meshes.line, 0)), SHAPE(4), 4);
    CHECK_FULL(shoal_all_reduce(ones, SHOAL_SUM, shoal_mesh_group(meshes.square, 1)), SHAPE(4), 2);
    free_meshes(&meshes);
}

FUNCTIONAL(all_reduce_coalesced_eager, W)
{
    shoal_tensor *const tensors[2] = {full_of(SHAPE(4), 1, SHOAL_F32), full_of(SHAPE(6), 3, SHOAL_F32)};
    shoal_tensor *const *results = shoal_all_reduce_coalesced(tensors, 2, SHOAL_SUM, self->group);
    REQUIRE(results);
    CHECK_FULL(results[0], SHAPE(4), 4);
    CHECK_FULL(results[1], SHAPE(6), 12);
}

FUNCTIONAL(all_gather_tensor, W)
{
    struct meshes meshes = make_meshes(self);
    shoal_group *const groups[2] = {shoal_mesh_group(meshes.line, 0), shoal_mesh_group(meshes.square, 0)};
    for (int i = 0; i < 2; i++) {
        for (int dim = 0; dim < 3; dim++) {
            struct shape shape = SHAPE(3, 3, 3);
            shoal_tensor *ones = full_of(shape, 1, SHOAL_F32);
            shape.sizes[dim] *= shoal_group_n_ranks(groups[i]);
            CHECK_FULL(shoal_all_gather_tensor(ones, dim, groups[i]), shape, 1);
        }
    }
    free_meshes(&meshes);
}

FUNCTIONAL(all_gather_into_tensor_coalesced, W)
{
    shoal_tensor *const tensors[2] = {full_of(SHAPE(4), 1, SHOAL_F32), full_of(SHAPE(4), 2, SHOAL_F32)};
    shoal_tensor *const *results = shoal_all_gather_into_tensor_coalesced(tensors, 2, self->group);
    REQUIRE(results);
    CHECK_FULL(results[0], SHAPE(16), 1);
    CHECK_FULL(results[1], SHAPE(16), 2);
}

FUNCTIONAL(reduce_scatter_tensor, W)
{
    struct meshes meshes = make_meshes(self);
    shoal_group *const groups[2] = {shoal_mesh_group(meshes.line, 0), shoal_mesh_group(meshes.square, 1)};
    for (int i = 0; i < 2; i++) {
        int n_ranks = shoal_group_n_ranks(groups[i]);
        for (int dim = 0; dim < 2; dim++) {
            struct shape shape = SHAPE(3, 3);
            shape.sizes[dim] *= n_ranks;
            shoal_tensor *ones = full_of(shape, 1, SHOAL_F32);
            CHECK_FULL(shoal_reduce_scatter_tensor(ones, SHOAL_SUM, dim, groups[i]), SHAPE(3, 3), n_ranks);
        }
    }
    free_meshes(&meshes);
}

FUNCTIONAL(reduce_scatter_into_tensor_coalesced, W)
{
    shoal_tensor *const tensors[2] = {full_of(SHAPE(4), 1, SHOAL_I64), full_of(SHAPE(4), 2, SHOAL_I64)};
    shoal_tensor *const *results =
        shoal_reduce_scatter_tensor_coalesced(tensors, 2, SHOAL_SUM, INTS64(0, 0), self->group);
    REQUIRE(results);
    CHECK_FULL(results[0], SHAPE(1), 4);
    CHECK_FULL(results[1], SHAPE(1), 8);
}

/* (r+1)(i+1) rows of r+1 to rank i, and as many of i+1 from it. */
static void all_to_all_of_ranks(struct functional *self, bool is_1d)
{
    int64_t splits[W];
    int64_t total = 0;
    double *expected = functional_alloc(sizeof(double) * W * (W + 1) / 2 * W * 5);
    size_t n = 0;
    for (int i = 0; i < W; i++) {
        splits[i] = (i + 1) * (self->rank + 1);
        total += splits[i];
        for (int64_t k = 0; k < splits[i] * (is_1d ? 1 : 5); k++) {
            expected[n++] = i + 1;
        }
    }
    CHECK_INT(total, W * (self->rank + 1) * (W + 1) / 2);
    struct shape shape = is_1d ? SHAPE(total) : SHAPE(total, 5);
    shoal_tensor *input = full_of(shape, self->rank + 1, SHOAL_F32);
    shoal_tensor *result = shoal_all_to_all_single(input, splits, splits, W, self->group);
    check_numbers(__FILE__, __LINE__, result, shape, expected);
}

FUNCTIONAL(all_to_all_single, W)
{
    all_to_all_of_ranks(self, /*is_1d=*/false);
}

FUNCTIONAL(all_to_all_single_1d_input, W)
{
    all_to_all_of_ranks(self, /*is_1d=*/true);
}

FUNCTIONAL(all_to_all_single_split_sizes_none, W)
{
    shoal_tensor *input = full_of(SHAPE(W, W), self->rank + 1, SHOAL_F32);
    CHECK_NUMBERS(shoal_all_to_all_single(input, NULL, NULL, 0, self->group), SHAPE(W, W), 1, 1, 1, 1, 2, 2,
                  2, 2, 3, 3, 3, 3, 4, 4, 4, 4);
}

FUNCTIONAL(permute_tensor_with_sub_group, W)
{
    struct meshes meshes = make_meshes(self);
    for (int dim = 0; dim < 2; dim++) {
        shoal_group *group = shoal_mesh_group(meshes.square, dim);
        int rank = shoal_group_rank(group);
        int other = 1 - rank;
        shoal_tensor *pair = shoal_cat((shoal_tensor *const[]){full_of(SHAPE(1), 2 * rank, SHOAL_F32),
                                                               full_of(SHAPE(1), 2 * rank + 1, SHOAL_F32)},
                                       2, 0);
        CHECK_NUMBERS(shoal_permute_tensor(pair, INTS64(1, 0), 2, group), SHAPE(2), 2 * other, 2 * other + 1);
    }
    free_meshes(&meshes);
}

/* test_functional_differentials, forward --------------------------------------------------------------- */

FUNCTIONAL(differentials_forward, W)
{
    double r = self->rank;
    CHECK_FULL(shoal_all_reduce(full_of(SHAPE(3, 3), r, SHOAL_F32), SHOAL_SUM, self->group), SHAPE(3, 3), 6);
    for (int dim = 0; dim < 3; dim++) {
        struct shape shape = SHAPE(3, 3, 3);
        shoal_tensor *gathered = shoal_all_gather_tensor(full_of(shape, r, SHOAL_F32), dim, self->group);
        for (int p = 0; p < W; p++) {
            CHECK_FULL(shoal_narrow(gathered, dim, 3 * p, 3), shape, p);
        }
    }
    shoal_tensor *tall = full_of(SHAPE(16, 3), r, SHOAL_F32);
    shoal_tensor *wide = full_of(SHAPE(3, 16), r, SHOAL_F32);
    CHECK_FULL(shoal_reduce_scatter_tensor(tall, SHOAL_SUM, 0, self->group), SHAPE(4, 3), 6);
    CHECK_FULL(shoal_reduce_scatter_tensor(wide, SHOAL_SUM, 1, self->group), SHAPE(3, 4), 6);
    shoal_tensor *exchanged = shoal_all_to_all_single(tall, NULL, NULL, 0, self->group);
    for (int p = 0; p < W; p++) {
        CHECK_FULL(shoal_narrow(exchanged, 0, 4 * p, 4), SHAPE(4, 3), p);
    }
    shoal_tensor *const both[2] = {tall, wide};
    shoal_tensor *const *reduced = shoal_all_reduce_coalesced(both, 2, SHOAL_SUM, self->group);
    shoal_tensor *const *gathered = shoal_all_gather_into_tensor_coalesced(both, 2, self->group);
    shoal_tensor *const *scattered =
        shoal_reduce_scatter_tensor_coalesced(both, 2, SHOAL_SUM, INTS64(0, 1), self->group);
    REQUIRE(reduced && gathered && scattered);
    CHECK_FULL(reduced[0], SHAPE(16, 3), 6);
    CHECK_FULL(reduced[1], SHAPE(3, 16), 6);
    CHECK_FULL(scattered[0], SHAPE(4, 3), 6);
    CHECK_FULL(scattered[1], SHAPE(3, 4), 6);
    for (int p = 0; p < W; p++) {
        CHECK_FULL(shoal_narrow(gathered[0], 0, 16 * p, 16), SHAPE(16, 3), p);
        CHECK_FULL(shoal_narrow(gathered[1], 0, 3 * p, 3), SHAPE(3, 16), p);
    }
}

/* test_c10d_functional_native -------------------------------------------------------------------------- */

FUNCTIONAL(all_reduce_single, 2)
{
    shoal_tensor *input = full_of(SHAPE(10, 10), self->rank, SHOAL_F32);
    shoal_tensor *output = shoal_all_reduce(input, SHOAL_AVG, self->group);
    CHECK(output != input);
    CHECK_FULL(output, SHAPE(10, 10), 0.5);
    CHECK_FULL(input, SHAPE(10, 10), self->rank);
}

FUNCTIONAL(all_reduce_single_, 2)
{
    shoal_tensor *input = full_of(SHAPE(10, 10), self->rank, SHOAL_F32);
    CHECK(shoal_all_reduce_(input, SHOAL_AVG, self->group) == input);
    CHECK_FULL(input, SHAPE(10, 10), 0.5);
}

/* New ones, or with `is_in_place` the same. */
static void reduce_squares(struct functional *self, bool is_in_place)
{
    shoal_tensor *inputs[10];
    for (int i = 0; i < 10; i++) {
        inputs[i] = full_of(SHAPE(i, i), self->rank * i, SHOAL_F32);
    }
    shoal_tensor *const *outputs = is_in_place
                                       ? shoal_all_reduce_coalesced_(inputs, 10, SHOAL_AVG, self->group)
                                       : shoal_all_reduce_coalesced(inputs, 10, SHOAL_AVG, self->group);
    REQUIRE(outputs);
    for (int i = 0; i < 10; i++) {
        CHECK((outputs[i] == inputs[i]) == is_in_place);
        CHECK_FULL(outputs[i], SHAPE(i, i), 0.5 * i);
    }
}

FUNCTIONAL(all_reduce_coalesced, 2)
{
    reduce_squares(self, /*is_in_place=*/false);
}

FUNCTIONAL(all_reduce_coalesced_, 2)
{
    reduce_squares(self, /*is_in_place=*/true);
}

FUNCTIONAL(all_gather_into_tensor_single, 2)
{
    shoal_tensor *input = full_of(SHAPE(10, 10), self->rank, SHOAL_F32);
    shoal_tensor *out = full_of(SHAPE(20, 10), -1, SHOAL_F32);
    shoal_tensor *output = shoal_all_gather_into_tensor(input, self->group);
    CHECK(shoal_all_gather_into_tensor_out(input, self->group, out) == out);
    for (int p = 0; p < 2; p++) {
        CHECK_FULL(shoal_narrow(output, 0, 10 * p, 10), SHAPE(10, 10), p);
        CHECK_FULL(shoal_narrow(out, 0, 10 * p, 10), SHAPE(10, 10), p);
    }
}

/* The conversion must wait: it may not read what has not arrived. */
FUNCTIONAL(functional_collectives_inference_mode, 2)
{
    CHECK_OK(shoal_scope_set_grad(false));
    shoal_tensor *input = full_of(SHAPE(10, 10), self->rank, SHOAL_F32);
    shoal_tensor *converted = shoal_to_dtype(shoal_all_gather_into_tensor(input, self->group), SHOAL_BF16);
    for (int p = 0; p < 2; p++) {
        CHECK_FULL(shoal_narrow(converted, 0, 10 * p, 10), SHAPE(10, 10), p);
    }
    CHECK_OK(shoal_scope_set_grad(true));
}

FUNCTIONAL(functional_collectives_batched, 2)
{
    TEST_NEEDS_HOST();
    shoal_group *group = group_of_name(self->world, "");
    shoal_tensor *tensor = full_of(SHAPE(10), self->rank == 0 ? 0 : 7, SHOAL_F32);
    shoal_p2p_op op = {self->rank == 0 ? SHOAL_SEND : SHOAL_RECV, tensor, 1 - self->rank, 0};
    shoal_tensor *const *results = shoal_batch_p2p_ops(&op, 1, group);
    REQUIRE(results);
    if (self->rank == 0) {
        CHECK_INT(shoal_tensor_count(results[0]), 0);
        CHECK(shoal_wait_tensor(results[0]) == results[0]);
    } else {
        CHECK(results[0] == tensor);
        CHECK_FULL(tensor, SHAPE(10), 0);
    }
}

FUNCTIONAL(all_gather_into_tensor_coalesced_of_10, 2)
{
    shoal_tensor *inputs[10];
    for (int i = 0; i < 10; i++) {
        inputs[i] = full_of(SHAPE(10, 10), self->rank * i, SHOAL_F32);
    }
    shoal_tensor *const *outputs = shoal_all_gather_into_tensor_coalesced(inputs, 10, self->group);
    REQUIRE(outputs);
    for (int i = 0; i < 10; i++) {
        CHECK_FULL(shoal_narrow(outputs[i], 0, 0, 10), SHAPE(10, 10), 0);
        CHECK_FULL(shoal_narrow(outputs[i], 0, 10, 10), SHAPE(10, 10), i);
    }
}

/* 0, 1, ..., W-1 times a factor, on every rank. */
static shoal_tensor *ramp(int64_t factor)
{
    shoal_tensor *tensor = shoal_empty(INTS64(2), 1, SHOAL_I64);
    int64_t *numbers = shoal_mutable_data(tensor);
    numbers[0] = 0;
    numbers[1] = factor;
    return tensor;
}

FUNCTIONAL(reduce_scatter_tensor_single, 2)
{
    shoal_tensor *input = ramp(1);
    shoal_tensor *out = full_of(SHAPE(1), 9, SHOAL_I64);
    CHECK_FULL(shoal_reduce_scatter_tensor(input, SHOAL_AVG, 0, self->group), SHAPE(1), self->rank);
    CHECK(shoal_reduce_scatter_tensor_out(input, SHOAL_AVG, self->group, out) == out);
    CHECK_FULL(out, SHAPE(1), self->rank);
}

FUNCTIONAL(reduce_scatter_tensor_coalesced, 2)
{
    shoal_tensor *inputs[10];
    for (int i = 0; i < 10; i++) {
        inputs[i] = ramp(i);
    }
    shoal_tensor *const *outputs =
        shoal_reduce_scatter_tensor_coalesced(inputs, 10, SHOAL_AVG, NULL, self->group);
    REQUIRE(outputs);
    for (int i = 0; i < 10; i++) {
        CHECK_FULL(outputs[i], SHAPE(1), self->rank * i);
    }
}

/* Random numbers of rows, the same matrix on all ranks. */
FUNCTIONAL(all_to_all_single_random, 2)
{
    struct test_random random = test_random_begin(1);
    for (int round = 0; round < 20 && !test_has_failed(); round++) {
        int64_t matrix[2][2];
        for (int i = 0; i < 4; i++) {
            matrix[i / 2][i % 2] = (int64_t)test_random_below(&random, 20);
        }
        const int64_t ins[2] = {matrix[self->rank][0], matrix[self->rank][1]};
        const int64_t outs[2] = {matrix[0][self->rank], matrix[1][self->rank]};
        shoal_tensor *input = full_of(SHAPE(ins[0] + ins[1]), self->rank, SHOAL_F32);
        shoal_tensor *output = shoal_all_to_all_single(input, outs, ins, 2, self->group);
        CHECK_FULL(shoal_narrow(output, 0, 0, outs[0]), SHAPE(outs[0]), 0);
        CHECK_FULL(shoal_narrow(output, 0, outs[0], outs[1]), SHAPE(outs[1]), 1);
    }
}

FUNCTIONAL(broadcast_from_1, 2)
{
    shoal_tensor *input = full_of(SHAPE(10, 10), self->rank, SHOAL_F32);
    shoal_tensor *output = shoal_broadcast(input, 1, self->group);
    CHECK(output != input);
    CHECK_FULL(output, SHAPE(10, 10), 1);
    CHECK(shoal_broadcast_(input, 1, self->group) == input);
    CHECK_FULL(input, SHAPE(10, 10), 1);
}

/* Eager is contiguous, whatever the input was. */
FUNCTIONAL(output_stride, 2)
{
    shoal_tensor *tall = full_of(SHAPE(6, 4), self->rank, SHOAL_F32);
    shoal_tensor *output = shoal_all_reduce(shoal_transpose(tall, 0, 1), SHOAL_SUM, self->group);
    CHECK_FULL(output, SHAPE(4, 6), 1);
    CHECK_INT(shoal_tensor_strides(output)[0], 6);
    CHECK_INT(shoal_tensor_strides(output)[1], 1);
}

/* Reduce vectors --------------------------------------------------------------------------------------- */

FUNCTIONAL_ON_1_TO_5(reduce_vectors)
{
    int n = self->n_ranks;
    double factorial = 1;
    for (int r = 1; r <= n; r++) {
        factorial *= r;
    }
    const double expected[] = {[SHOAL_SUM] = n * (n + 1) / 2.0,
                               [SHOAL_AVG] = (n + 1) / 2.0,
                               [SHOAL_PRODUCT] = factorial,
                               [SHOAL_MIN] = 1,
                               [SHOAL_MAX] = n};
    for (int reduce = SHOAL_SUM; reduce <= SHOAL_MAX; reduce++) {
        shoal_tensor *input = full_of(SHAPE(1), self->rank + 1, SHOAL_F32);
        CHECK_FULL(shoal_all_reduce(input, (shoal_reduce_op)reduce, self->group), SHAPE(1), expected[reduce]);
    }
    for (int i = 0; i < 4; i++) {
        shoal_tensor *input = full_of(SHAPE(1), self->rank | 1 << i, SHOAL_I32);
        CHECK_FULL(shoal_all_reduce(input, SHOAL_BAND, self->group), SHAPE(1), 1 << i);
    }
    for (int i = 1; i <= 4; i++) {
        int bor = 0;
        int bxor = 0;
        for (int k = 0; k < n * i; k++) {
            bor |= k;
            bxor ^= k;
        }
        /* The i numbers of a rank are combined on it first. */
        int own_or = 0;
        int own_xor = 0;
        for (int j = 0; j < i; j++) {
            own_or |= self->rank * i + j;
            own_xor ^= self->rank * i + j;
        }
        shoal_tensor *ors = full_of(SHAPE(1), own_or, SHOAL_I32);
        shoal_tensor *xors = full_of(SHAPE(1), own_xor, SHOAL_I32);
        CHECK_FULL(shoal_all_reduce(ors, SHOAL_BOR, self->group), SHAPE(1), bor);
        CHECK_FULL(shoal_all_reduce(xors, SHOAL_BXOR, self->group), SHAPE(1), bxor);
    }
}

/* Worked out by hand ----------------------------------------------------------------------------------- */

FUNCTIONAL(uneven_all_to_all, W)
{
    static const int64_t ins[W][W] = {{2, 2, 1, 1}, {3, 2, 2, 2}, {2, 1, 1, 1}, {2, 2, 2, 1}};
    static const int64_t outs[W][W] = {{2, 3, 2, 2}, {2, 2, 1, 2}, {1, 2, 1, 2}, {1, 2, 1, 1}};
    static const int64_t counts[W] = {6, 9, 5, 7};
    static const struct {
        int64_t count;
        double numbers[9];
    } expected[W] = {{9, {0, 1, 10, 11, 12, 20, 21, 30, 31}},
                     {7, {2, 3, 13, 14, 22, 32, 33}},
                     {6, {4, 15, 16, 23, 34, 35}},
                     {5, {5, 17, 18, 24, 36}}};
    int r = self->rank;
    shoal_tensor *input = shoal_empty(&counts[r], 1, SHOAL_I32);
    int32_t *numbers = shoal_mutable_data(input);
    REQUIRE(numbers);
    for (int i = 0; i < counts[r]; i++) {
        numbers[i] = 10 * r + i;
    }
    check_numbers(__FILE__, __LINE__, shoal_all_to_all_single(input, outs[r], ins[r], W, self->group),
                  SHAPE(expected[r].count), expected[r].numbers);
}

FUNCTIONAL(equal_all_to_all, W)
{
    shoal_tensor *input = shoal_empty(INTS64(W), 1, SHOAL_F32);
    float *numbers = shoal_mutable_data(input);
    REQUIRE(numbers);
    for (int i = 0; i < W; i++) {
        numbers[i] = (float)(4 * self->rank + i);
    }
    CHECK_NUMBERS(shoal_all_to_all_single(input, NULL, NULL, 0, self->group), SHAPE(W), self->rank,
                  4 + self->rank, 8 + self->rank, 12 + self->rank);
}

/* Quotients are cut towards zero; sums do not wrap before they are divided. */
FUNCTIONAL(average_of_integers, 3)
{
    static const int8_t values[3][4] = {{-1, 127, -128, 1}, {-1, 127, -128, 1}, {0, 127, -128, 0}};
    shoal_tensor *input = shoal_empty(INTS64(4), 1, SHOAL_I8);
    int8_t *numbers = shoal_mutable_data(input);
    REQUIRE(numbers);
    memcpy(numbers, values[self->rank], 4);
    CHECK_NUMBERS(shoal_all_reduce(input, SHOAL_AVG, self->group), SHAPE(4), 0, 127, -128, 0);
}

FUNCTIONAL(bool_reductions, 2)
{
    static const double expected[] = {[SHOAL_SUM] = 1,  [SHOAL_PRODUCT] = 0, [SHOAL_MIN] = 0, [SHOAL_MAX] = 1,
                                      [SHOAL_BAND] = 0, [SHOAL_BOR] = 1,     [SHOAL_BXOR] = 1};
    for (int reduce = SHOAL_SUM; reduce <= SHOAL_BXOR; reduce++) {
        if (reduce != SHOAL_AVG) {
            shoal_tensor *mixed = full_of(SHAPE(2), self->rank, SHOAL_BOOL);
            shoal_tensor *both = full_of(SHAPE(2), 1, SHOAL_BOOL);
            CHECK_FULL(shoal_all_reduce(mixed, (shoal_reduce_op)reduce, self->group), SHAPE(2),
                       expected[reduce]);
            CHECK_FULL(shoal_all_reduce(both, (shoal_reduce_op)reduce, self->group), SHAPE(2),
                       reduce != SHOAL_BXOR);
        }
    }
}
