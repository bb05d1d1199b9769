/* SPDX-License-Identifier: MIT */
/*
 * The collectives on four ranks: refusals, values, and a thousand at a time. README.md maps the cases of other
 * libraries' suites to the tests here, of which most have the name.
 */
#include "fixtures/descriptor_calls.h"
#include "conformance/collectives/basics.h"

/* Broadcast ------------------------------------------------------------------------------------------------ */

TEST_WORLD(empty_tensors, W)
{
    size_t zeroes[W] = {0, 0, 0, 0};
    shoal_part none = {.send = NULL, .recv = NULL, .count = 0};
    CHECK_OK(shoal_group_broadcast(all, NULL, 0, SHOAL_F32, 1));
    CHECK_OK(shoal_group_all_reduce(all, NULL, NULL, 0, SHOAL_F32, SHOAL_SUM));
    CHECK_OK(shoal_group_reduce(all, NULL, NULL, 0, SHOAL_F32, SHOAL_SUM, 2));
    CHECK_OK(shoal_group_all_gather(all, NULL, NULL, 0, SHOAL_F32));
    CHECK_OK(shoal_group_all_gather_v(all, NULL, NULL, zeroes, SHOAL_F32));
    CHECK_OK(shoal_group_reduce_scatter(all, NULL, NULL, 0, SHOAL_F32, SHOAL_SUM));
    CHECK_OK(shoal_group_reduce_scatter_v(all, NULL, NULL, zeroes, SHOAL_F32, SHOAL_SUM));
    CHECK_OK(shoal_group_all_to_all(all, NULL, NULL, 0, SHOAL_F32));
    CHECK_OK(shoal_group_all_to_all_v(all, NULL, zeroes, NULL, zeroes, SHOAL_F32));
    CHECK_OK(shoal_group_gather(all, NULL, NULL, 0, SHOAL_F32, 3));
    CHECK_OK(shoal_group_scatter(all, NULL, NULL, 0, SHOAL_F32, 3));
    CHECK_OK(group_all_reduce_list(all, &none, 1, SHOAL_F32, SHOAL_SUM));
    CHECK_OK(group_broadcast_list(all, &none, 1, SHOAL_F32, 0));
}

TEST_WORLD(broadcast_checks, W)
{
    float value = 1;
    shoal_part part = {.recv = &value, .count = 1};
    CHECK_REFUSED(shoal_group_broadcast(all, &value, 1, SHOAL_F32, -1), "root");
    CHECK_REFUSED(shoal_group_broadcast(all, &value, 1, SHOAL_F32, W), "root");
    CHECK_REFUSED(shoal_group_broadcast(all, NULL, 1, SHOAL_F32, 0), "NULL");
    CHECK_REFUSED(shoal_group_broadcast(all, &value, 1, (shoal_dtype)0, 0), "dtype");
    CHECK_REFUSED(shoal_group_broadcast(all, &value, 1, (shoal_dtype)99, 0), "dtype");
    CHECK_REFUSED(group_broadcast_list(all, NULL, 1, SHOAL_F32, 0), "NULL");
    CHECK_REFUSED(group_broadcast_list(all, &part, 1, SHOAL_F32, W), "root");
    CHECK_REFUSED(shoal_group_broadcast_start(all, &value, 1, SHOAL_F32, 0, NULL), "NULL");
    /* Nobody noticed: the group works. */
    CHECK_INT(shoal_group_sequence(all), 0);
    CHECK_OK(shoal_group_broadcast(all, &value, 1, SHOAL_F32, 0));
}

TEST_WORLD(broadcast_basics, W)
{
    for (int root = 0; root < W; root++) {
        float first[5];
        float second[3];
        fill(first, 5, self->rank == root ? (float)root : -1);
        CHECK_OK(shoal_group_broadcast(all, first, 5, SHOAL_F32, root));
        check_all(first, 5, (float)root, "one");
        fill(first, 5, self->rank == root ? 10 : -1);
        fill(second, 3, self->rank == root ? 20 : -1);
        shoal_part parts[2] = {{.recv = first, .count = 5}, {.recv = second, .count = 3}};
        CHECK_OK(group_broadcast_list(all, parts, 2, SHOAL_F32, root));
        check_all(first, 5, 10, "first of two");
        check_all(second, 3, 20, "second of two");
    }
}

/* In flight at once: a hundred, from one thread. Eight threads: threads_on_their_own_groups below. */
TEST_WORLD(broadcast_stress, W)
{
    static _Thread_local float values[STRESS_AT_ONCE];
    shoal_work *works[STRESS_AT_ONCE];
    for (int i = 0; i < STRESS && !test_has_failed(); i += STRESS_AT_ONCE) {
        for (int k = 0; k < STRESS_AT_ONCE; k++) {
            int root = (i + k) % W;
            values[k] = self->rank == root ? (float)((i + k) * W + root) : -1;
            REQUIRE_OK(shoal_group_broadcast_start(all, &values[k], 1, SHOAL_F32, root, &works[k]));
        }
        for (int k = 0; k < STRESS_AT_ONCE; k++) {
            CHECK_OK(finish(works[k]));
            CHECK_DOUBLE((double)values[k], (double)((i + k) * W + (i + k) % W));
        }
    }
}

/* 30 chunks of three dtypes in pieces of at most 256 bytes, from each root. */
TEST_WORLD(broadcast_coalesced, W)
{
    static const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_F64, SHOAL_F16};
    unsigned char bytes[10][256];
    for (int root = 0; root < W; root++) {
        for (int d = 0; d < 3; d++) {
            shoal_part parts[10];
            for (int i = 0; i < 10; i++) {
                memset(bytes[i], self->rank == root ? 16 * root + i : 0xEE, sizeof bytes[i]);
                size_t limit = sizeof bytes[i] / shoal_dtype_bytes(dtypes[d]);
                parts[i] = (shoal_part){.recv = bytes[i], .count = limit - (size_t)i};
            }
            CHECK_OK(group_broadcast_list(all, parts, 10, dtypes[d], root));
            for (int i = 0; i < 10; i++) {
                size_t n = parts[i].count * shoal_dtype_bytes(dtypes[d]);
                CHECK_INT(bytes[i][0], 16 * root + i);
                CHECK_INT(bytes[i][n - 1], 16 * root + i);
            }
        }
    }
}

TEST_WORLD(bool_tensors, W)
{
    unsigned char values[4] = {0, 0, 0, 0};
    if (self->rank == 2) {
        memcpy(values, (unsigned char[]){1, 0, 0, 1}, 4);
    }
    CHECK_OK(shoal_group_broadcast(all, values, 4, SHOAL_BOOL, 2));
    CHECK_BYTES(values, ((unsigned char[]){1, 0, 0, 1}), 4);
}

/* All-reduce ----------------------------------------------------------------------------------------------- */

TEST_WORLD(allreduce_checks, W)
{
    float value = 1;
    float out = 0;
    CHECK_REFUSED(shoal_group_all_reduce(all, NULL, &out, 1, SHOAL_F32, SHOAL_SUM), "NULL");
    CHECK_REFUSED(shoal_group_all_reduce(all, &value, NULL, 1, SHOAL_F32, SHOAL_SUM), "NULL");
    CHECK_REFUSED(shoal_group_all_reduce(all, &value, &out, 1, (shoal_dtype)77, SHOAL_SUM), "dtype");
    CHECK(shoal_group_all_reduce(all, &value, &out, 1, SHOAL_F32, (shoal_reduce_op)77) != SHOAL_OK);
    CHECK(shoal_group_all_reduce(all, &value, &out, 1, SHOAL_F32, SHOAL_PREMUL_SUM) != SHOAL_OK);
    CHECK_STATUS(shoal_group_all_reduce(all, &value, &out, 1, SHOAL_F32, SHOAL_BAND), SHOAL_ERR_UNSUPPORTED);
    CHECK_STATUS(shoal_group_all_reduce(all, &value, &out, 1, SHOAL_C64, SHOAL_MAX), SHOAL_ERR_UNSUPPORTED);
    CHECK(group_all_reduce_premul(all, &value, &out, 1, SHOAL_I32, 2) != SHOAL_OK);
    CHECK_REFUSED(shoal_group_all_reduce(NULL, &value, &out, 1, SHOAL_F32, SHOAL_SUM), "NULL");
    CHECK_INT(shoal_group_sequence(all), 0);
}

struct vector {
    shoal_reduce_op reduce;
    double expected;
};

/* sum [r+1] -> W(W+1)/2; product -> W!; min -> 1; max -> W; avg -> (W+1)/2 */
static const struct vector vectors[] = {{SHOAL_SUM, W *(W + 1) / 2.0},
                                        {SHOAL_PRODUCT, 24},
                                        {SHOAL_MIN, 1},
                                        {SHOAL_MAX, W},
                                        {SHOAL_AVG, (W + 1) / 2.0}};
#define N_VECTORS (sizeof vectors / sizeof vectors[0])

TEST_WORLD(allreduce_basics, W)
{
    for (size_t v = 0; v < N_VECTORS; v++) {
        float value = (float)(self->rank + 1);
        float out = 0;
        CHECK_OK(shoal_group_all_reduce(all, &value, &out, 1, SHOAL_F32, vectors[v].reduce));
        CHECK_DOUBLE((double)out, vectors[v].expected);
        CHECK_OK(shoal_group_all_reduce(all, &value, &value, 1, SHOAL_F32, vectors[v].reduce));
        CHECK_DOUBLE((double)value, vectors[v].expected);
    }
}

/* band int32 r|(1<<i) -> 1<<i; bor and bxor of {r*i+j, j<i} over ranks -> or and xor of 0..W*i-1. */
TEST_WORLD(allreduce_basics_bits, W)
{
    for (int i = 0; i < 4; i++) {
        int32_t value = self->rank | (1 << i);
        int32_t expected = ~0;
        for (int r = 0; r < W; r++) {
            expected &= r | (1 << i);
        }
        CHECK_OK(shoal_group_all_reduce(all, &value, &value, 1, SHOAL_I32, SHOAL_BAND));
        CHECK_INT(value, expected);
    }
    for (int i = 1; i <= 4; i++) {
        int32_t any[4] = {0, 0, 0, 0};
        int32_t odd[4] = {0, 0, 0, 0};
        for (int j = 0; j < i; j++) {
            any[j] = odd[j] = self->rank * i + j;
        }
        CHECK_OK(shoal_group_all_reduce(all, any, any, (size_t)i, SHOAL_I32, SHOAL_BOR));
        CHECK_OK(shoal_group_all_reduce(all, odd, odd, (size_t)i, SHOAL_I32, SHOAL_BXOR));
        int32_t expected_any = 0;
        int32_t expected_odd = 0;
        int32_t got_any = 0;
        int32_t got_odd = 0;
        for (int k = 0; k < W * i; k++) {
            expected_any |= k;
            expected_odd ^= k;
        }
        for (int j = 0; j < i; j++) {
            got_any |= any[j];
            got_odd ^= odd[j];
        }
        CHECK_INT(got_any, expected_any);
        CHECK_INT(got_odd, expected_odd);
    }
}

/* f16: +-65504/W add up to what the gathered values add up to. */
TEST_WORLD(allreduce_basics_f16, W)
{
    /* 65504 / 4 = 16376 is 0x73ff. */
    uint16_t values[2] = {0x73ff, 0xf3ff};
    uint16_t sums[2] = {0, 0};
    CHECK_OK(shoal_group_all_reduce(all, values, sums, 2, SHOAL_F16, SHOAL_SUM));
    CHECK_INT(sums[0], 0x7bff);
    CHECK_INT(sums[1], 0xfbff);
}

TEST_WORLD(allreduce_stress, W)
{
    static _Thread_local float values[STRESS_AT_ONCE];
    shoal_work *works[STRESS_AT_ONCE];
    for (int i = 0; i < STRESS && !test_has_failed(); i += STRESS_AT_ONCE) {
        for (int k = 0; k < STRESS_AT_ONCE; k++) {
            values[k] = (float)(i + k + self->rank);
            REQUIRE_OK(shoal_group_all_reduce_start(all, &values[k], &values[k], 1, SHOAL_F32, SHOAL_SUM,
                                                    &works[k]));
        }
        for (int k = 0; k < STRESS_AT_ONCE; k++) {
            CHECK_OK(finish(works[k]));
            CHECK_DOUBLE((double)values[k], (double)((i + k) * W + W * (W - 1) / 2));
        }
    }
}

TEST_WORLD(allreduce_coalesced_checks, W)
{
    float value = 1;
    shoal_part parts[2] = {{&value, &value, 1, SHOAL_CPU}, {NULL, &value, 1, SHOAL_CPU}};
    CHECK_REFUSED(group_all_reduce_list(all, NULL, 2, SHOAL_F32, SHOAL_SUM), "NULL");
    CHECK_REFUSED(group_all_reduce_list(all, parts, 2, SHOAL_F32, SHOAL_SUM), "NULL");
    CHECK_REFUSED(group_all_reduce_list(all, parts, 1, (shoal_dtype)0, SHOAL_SUM), "dtype");
    CHECK_STATUS(group_all_reduce_list(all, parts, 1, SHOAL_F32, SHOAL_BOR), SHOAL_ERR_UNSUPPORTED);
    CHECK_INT(shoal_group_sequence(all), 0);
}

TEST_WORLD(allreduce_coalesced_basics, W)
{
    for (size_t v = 0; v < N_VECTORS; v++) {
        float first[3];
        float second[70];
        float out[70];
        fill(first, 3, (float)(self->rank + 1));
        fill(second, 70, (float)(self->rank + 1));
        shoal_part parts[2] = {{first, first, 3, SHOAL_CPU}, {second, out, 70, SHOAL_CPU}};
        CHECK_OK(group_all_reduce_list(all, parts, 2, SHOAL_F32, vectors[v].reduce));
        check_all(first, 3, (float)vectors[v].expected, "in place");
        check_all(out, 70, (float)vectors[v].expected, "out of place");
        check_all(second, 70, (float)(self->rank + 1), "input");
    }
}

TEST_WORLD(allreduce_coalesced_stress, W)
{
    static _Thread_local float values[STRESS_AT_ONCE][2];
    shoal_work *works[STRESS_AT_ONCE];
    for (int i = 0; i < STRESS && !test_has_failed(); i += STRESS_AT_ONCE) {
        for (int k = 0; k < STRESS_AT_ONCE; k++) {
            values[k][0] = (float)(i + k + self->rank);
            values[k][1] = (float)(i + k + self->rank + 1);
            shoal_part parts[2] = {{&values[k][0], &values[k][0], 1, SHOAL_CPU},
                                   {&values[k][1], &values[k][1], 1, SHOAL_CPU}};
            REQUIRE_OK(group_all_reduce_list_start(all, parts, 2, SHOAL_F32, SHOAL_SUM, &works[k]));
        }
        for (int k = 0; k < STRESS_AT_ONCE; k++) {
            CHECK_OK(finish(works[k]));
            CHECK_DOUBLE((double)values[k][0], (double)((i + k) * W + W * (W - 1) / 2));
            CHECK_DOUBLE((double)values[k][1], (double)((i + k + 1) * W + W * (W - 1) / 2));
        }
    }
}

/* The list is the caller's again when _start returns; waiting twice says the same twice. */
TEST_WORLD(allreduce_coalesced_async, W)
{
    float values[2][8];
    fill(values[0], 8, 1);
    fill(values[1], 8, 2);
    shoal_work *work;
    shoal_part parts[2] = {{values[0], values[0], 8, SHOAL_CPU}, {values[1], values[1], 8, SHOAL_CPU}};
    REQUIRE_OK(group_all_reduce_list_start(all, parts, 2, SHOAL_F32, SHOAL_SUM, &work));
    memset(parts, 0, sizeof parts);
    CHECK_OK(shoal_work_wait(work, -1));
    CHECK(shoal_work_test(work));
    CHECK_OK(shoal_work_wait(work, 0));
    shoal_work_free(work);
    check_all(values[0], 8, W, "first");
    check_all(values[1], 8, 2 * W, "second");
}

TEST_WORLD(dtype_complex, W)
{
    float values[2] = {(float)self->rank, 1};
    double pair[2] = {1, (double)-self->rank};
    CHECK_OK(shoal_group_all_reduce(all, values, values, 1, SHOAL_C64, SHOAL_SUM));
    CHECK_OK(shoal_group_all_reduce(all, pair, pair, 1, SHOAL_C128, SHOAL_AVG));
    CHECK_DOUBLE((double)values[0], W * (W - 1) / 2);
    CHECK_DOUBLE((double)values[1], W);
    CHECK_DOUBLE(pair[0], 1);
    CHECK_DOUBLE(pair[1], -(W - 1) / 2.0);
}

/* Reduce --------------------------------------------------------------------------------------------------- */

TEST_WORLD(reduce_checks, W)
{
    float value = 1;
    float out;
    CHECK_REFUSED(shoal_group_reduce(all, &value, &out, 1, SHOAL_F32, SHOAL_SUM, -1), "root");
    CHECK_REFUSED(shoal_group_reduce(all, &value, &out, 1, SHOAL_F32, SHOAL_SUM, W), "root");
    CHECK_REFUSED(shoal_group_reduce(all, NULL, &out, 1, SHOAL_F32, SHOAL_SUM, 0), "NULL");
    CHECK_REFUSED(shoal_group_reduce(all, &value, NULL, 1, SHOAL_F32, SHOAL_SUM, self->rank), "NULL");
    CHECK_INT(shoal_group_sequence(all), 0);
}

TEST_WORLD(reduce_basics, W)
{
    for (size_t v = 0; v < N_VECTORS; v++) {
        for (int root = 0; root < W; root++) {
            float value = (float)(self->rank + 1);
            float out = -1;
            float *recv = self->rank == root ? &out : NULL;
            CHECK_OK(shoal_group_reduce(all, &value, recv, 1, SHOAL_F32, vectors[v].reduce, root));
            CHECK_DOUBLE((double)out, self->rank == root ? vectors[v].expected : -1);
            CHECK_DOUBLE((double)value, self->rank + 1);
        }
    }
}

TEST_WORLD(reduce_stress, W)
{
    static _Thread_local float values[STRESS_AT_ONCE];
    static _Thread_local float results[STRESS_AT_ONCE];
    shoal_work *works[STRESS_AT_ONCE];
    for (int i = 0; i < STRESS && !test_has_failed(); i += STRESS_AT_ONCE) {
        for (int k = 0; k < STRESS_AT_ONCE; k++) {
            values[k] = (float)(i + k + self->rank);
            results[k] = -1;
            REQUIRE_OK(shoal_group_reduce_start(all, &values[k], &results[k], 1, SHOAL_F32, SHOAL_SUM,
                                                (i + k) % W, &works[k]));
        }
        for (int k = 0; k < STRESS_AT_ONCE; k++) {
            bool is_root = (i + k) % W == self->rank;
            CHECK_OK(finish(works[k]));
            CHECK_DOUBLE((double)results[k], is_root ? (double)((i + k) * W + W * (W - 1) / 2) : -1);
        }
    }
}

/* Reduce-scatter ------------------------------------------------------------------------------------------- */

/* Sizes 0..W-1. */
TEST_WORLD(reduce_scatter, W)
{
    size_t counts[W];
    float send[W * W];
    float recv[W];
    size_t total = 0;
    for (int r = 0; r < W; r++) {
        counts[r] = (size_t)r;
        fill(send + total, (size_t)r, (float)(r + 1));
        total += (size_t)r;
    }
    CHECK_OK(shoal_group_reduce_scatter_v(all, send, recv, counts, SHOAL_F32, SHOAL_SUM));
    check_all(recv, counts[self->rank], (float)((self->rank + 1) * W), "own part");
}

TEST_WORLD(reduce_scatter_tensor, W)
{
    enum {
        BLOCK = 20 * 20
    };
    float *send = malloc(W * BLOCK * sizeof *send);
    float recv[BLOCK];
    REQUIRE(send);
    for (int r = 0; r < W; r++) {
        fill(send + r * BLOCK, BLOCK, (float)r);
    }
    CHECK_OK(shoal_group_reduce_scatter(all, send, recv, BLOCK, SHOAL_F32, SHOAL_SUM));
    check_all(recv, BLOCK, (float)(self->rank * W), "own block");
    free(send);
}

TEST_WORLD(reduce_scatter_tensor_coalesced, W)
{
    static const size_t blocks[3] = {25, 100, 225};
    shoal_part parts[3];
    float *send[3];
    float recv[3][225];
    for (int p = 0; p < 3; p++) {
        send[p] = malloc(W * blocks[p] * sizeof(float));
        REQUIRE(send[p]);
        for (int r = 0; r < W; r++) {
            fill(send[p] + (size_t)r * blocks[p], blocks[p], (float)(r + p));
        }
        parts[p] = (shoal_part){send[p], recv[p], blocks[p], SHOAL_CPU};
    }
    CHECK_OK(group_reduce_scatter_list(all, parts, 3, SHOAL_F32, SHOAL_SUM));
    for (int p = 0; p < 3; p++) {
        check_all(recv[p], blocks[p], (float)((self->rank + p) * W), "own block");
        free(send[p]);
    }
}

/* Scatter and gather --------------------------------------------------------------------------------------- */

TEST_WORLD(scatter_checks, W)
{
    float send[W] = {0};
    float recv;
    CHECK_REFUSED(shoal_group_scatter(all, send, &recv, 1, SHOAL_F32, -1), "root");
    CHECK_REFUSED(shoal_group_scatter(all, send, &recv, 1, SHOAL_F32, W), "root");
    CHECK_REFUSED(shoal_group_scatter(all, NULL, &recv, 1, SHOAL_F32, self->rank), "NULL");
    CHECK_REFUSED(shoal_group_scatter(all, send, NULL, 1, SHOAL_F32, 0), "NULL");
    CHECK_REFUSED(shoal_group_scatter(all, send, &recv, 1, (shoal_dtype)0, 0), "dtype");
    CHECK_INT(shoal_group_sequence(all), 0);
}

TEST_WORLD(scatter_basics, W)
{
    for (int root = 0; root < W; root++) {
        float send[W];
        float recv = -1;
        for (int r = 0; r < W; r++) {
            send[r] = (float)(10 * root + r);
        }
        CHECK_OK(shoal_group_scatter(all, self->rank == root ? send : NULL, &recv, 1, SHOAL_F32, root));
        CHECK_DOUBLE((double)recv, 10 * root + self->rank);
    }
}

TEST_WORLD(scatter_stress, W)
{
    static _Thread_local float sends[STRESS_AT_ONCE][W];
    static _Thread_local float recvs[STRESS_AT_ONCE];
    shoal_work *works[STRESS_AT_ONCE];
    for (int i = 0; i < STRESS && !test_has_failed(); i += STRESS_AT_ONCE) {
        for (int k = 0; k < STRESS_AT_ONCE; k++) {
            for (int r = 0; r < W; r++) {
                sends[k][r] = (float)((i + k) * W + r);
            }
            REQUIRE_OK(
                shoal_group_scatter_start(all, sends[k], &recvs[k], 1, SHOAL_F32, (i + k) % W, &works[k]));
        }
        for (int k = 0; k < STRESS_AT_ONCE; k++) {
            CHECK_OK(finish(works[k]));
            CHECK_DOUBLE((double)recvs[k], (double)((i + k) * W + self->rank));
        }
    }
}

TEST_WORLD(gather_checks, W)
{
    float send = 1;
    float recv[W];
    CHECK_REFUSED(shoal_group_gather(all, &send, recv, 1, SHOAL_F32, -1), "root");
    CHECK_REFUSED(shoal_group_gather(all, &send, recv, 1, SHOAL_F32, W), "root");
    CHECK_REFUSED(shoal_group_gather(all, NULL, recv, 1, SHOAL_F32, 0), "NULL");
    CHECK_REFUSED(shoal_group_gather(all, &send, NULL, 1, SHOAL_F32, self->rank), "NULL");
    CHECK_REFUSED(shoal_group_gather(all, &send, recv, 1, (shoal_dtype)0, 0), "dtype");
    CHECK_INT(shoal_group_sequence(all), 0);
}

TEST_WORLD(gather_basics, W)
{
    for (int root = 0; root < W; root++) {
        float send = (float)self->rank;
        float recv[W] = {-1, -1, -1, -1};
        CHECK_OK(shoal_group_gather(all, &send, self->rank == root ? recv : NULL, 1, SHOAL_F32, root));
        for (int r = 0; r < W; r++) {
            CHECK_DOUBLE((double)recv[r], self->rank == root ? r : -1);
        }
    }
}

/* A column of a matrix: raw calls know no strides, so it is one call per row, at whatever address it has. */
TEST_WORLD(gather_noncontiguous, W)
{
    float matrix[5][3];
    float columns[5][W];
    for (int row = 0; row < 5; row++) {
        for (int column = 0; column < 3; column++) {
            matrix[row][column] = (float)(100 * self->rank + 10 * row + column);
        }
        CHECK_OK(shoal_group_gather(all, &matrix[row][1], columns[row], 1, SHOAL_F32, 0));
    }
    for (int row = 0; self->rank == 0 && row < 5; row++) {
        for (int r = 0; r < W; r++) {
            CHECK_DOUBLE((double)columns[row][r], 100 * r + 10 * row + 1);
        }
    }
}

TEST_WORLD(gather_stress, W)
{
    static _Thread_local float sends[STRESS_AT_ONCE];
    static _Thread_local float recvs[STRESS_AT_ONCE][W];
    shoal_work *works[STRESS_AT_ONCE];
    for (int i = 0; i < STRESS && !test_has_failed(); i += STRESS_AT_ONCE) {
        for (int k = 0; k < STRESS_AT_ONCE; k++) {
            sends[k] = (float)(i + k + self->rank);
            REQUIRE_OK(
                shoal_group_gather_start(all, &sends[k], recvs[k], 1, SHOAL_F32, (i + k) % W, &works[k]));
        }
        for (int k = 0; k < STRESS_AT_ONCE; k++) {
            CHECK_OK(finish(works[k]));
            for (int r = 0; r < W && (i + k) % W == self->rank; r++) {
                CHECK_DOUBLE((double)recvs[k][r], i + k + r);
            }
        }
    }
}

/* All-gather ----------------------------------------------------------------------------------------------- */

TEST_WORLD(allgather_checks, W)
{
    float send = 1;
    float recv[W];
    CHECK_REFUSED(shoal_group_all_gather(all, NULL, recv, 1, SHOAL_F32), "NULL");
    CHECK_REFUSED(shoal_group_all_gather(all, &send, NULL, 1, SHOAL_F32), "NULL");
    CHECK_REFUSED(shoal_group_all_gather(all, &send, recv, 1, (shoal_dtype)0), "dtype");
    CHECK_REFUSED(shoal_group_all_gather_v(all, &send, recv, NULL, SHOAL_F32), "NULL");
    CHECK_INT(shoal_group_sequence(all), 0);
}

/* One, two and three inputs per rank. */
TEST_WORLD(allgather_basics, W)
{
    for (size_t n = 1; n <= 3; n++) {
        float send[3];
        float recv[3][W];
        shoal_part parts[3];
        for (size_t i = 0; i < n; i++) {
            send[i] = (float)(self->rank * 10 + (int)i);
            parts[i] = (shoal_part){&send[i], recv[i], 1, SHOAL_CPU};
        }
        CHECK_OK(group_all_gather_list(all, parts, n, SHOAL_F32));
        for (size_t i = 0; i < n; i++) {
            for (int r = 0; r < W; r++) {
                CHECK_DOUBLE((double)recv[i][r], r * 10 + (int)i);
            }
        }
    }
}

TEST_WORLD(allgather_noncontiguous, W)
{
    float matrix[5][3];
    float columns[5][W];
    for (int row = 0; row < 5; row++) {
        fill(matrix[row], 3, (float)(10 * self->rank + row));
        CHECK_OK(shoal_group_all_gather(all, &matrix[row][2], columns[row], 1, SHOAL_F32));
        for (int r = 0; r < W; r++) {
            CHECK_DOUBLE((double)columns[row][r], 10 * r + row);
        }
    }
}

TEST_WORLD(allgather_stress, W)
{
    static _Thread_local float sends[STRESS_AT_ONCE];
    static _Thread_local float recvs[STRESS_AT_ONCE][W];
    shoal_work *works[STRESS_AT_ONCE];
    for (int i = 0; i < STRESS && !test_has_failed(); i += STRESS_AT_ONCE) {
        for (int k = 0; k < STRESS_AT_ONCE; k++) {
            sends[k] = (float)(i + k + self->rank);
            REQUIRE_OK(shoal_group_all_gather_start(all, &sends[k], recvs[k], 1, SHOAL_F32, &works[k]));
        }
        for (int k = 0; k < STRESS_AT_ONCE; k++) {
            CHECK_OK(finish(works[k]));
            for (int r = 0; r < W; r++) {
                CHECK_DOUBLE((double)recvs[k][r], i + k + r);
            }
        }
    }
}

/* (5,5), (10,10), (15,15) with the same data everywhere: the data W times. */
TEST_WORLD(allgather_into_tensor_coalesced, W)
{
    static const size_t counts[3] = {25, 100, 225};
    float send[3][225];
    float *recv[3];
    shoal_part parts[3];
    for (int p = 0; p < 3; p++) {
        for (size_t i = 0; i < counts[p]; i++) {
            send[p][i] = (float)(1000 * p + (int)i);
        }
        recv[p] = malloc(W * counts[p] * sizeof(float));
        REQUIRE(recv[p]);
        parts[p] = (shoal_part){send[p], recv[p], counts[p], SHOAL_CPU};
    }
    CHECK_OK(group_all_gather_list(all, parts, 3, SHOAL_F32));
    for (int p = 0; p < 3; p++) {
        for (int r = 0; r < W; r++) {
            CHECK_BYTES(recv[p] + (size_t)r * counts[p], send[p], counts[p] * sizeof(float));
        }
        free(recv[p]);
    }
}

TEST_WORLD(allgather_coalesced_checks, W)
{
    float send = 1;
    float recv[W];
    shoal_part parts[2] = {{&send, recv, 1, SHOAL_CPU}, {&send, NULL, 1, SHOAL_CPU}};
    CHECK_REFUSED(group_all_gather_list(all, NULL, 1, SHOAL_F32), "NULL");
    CHECK_REFUSED(group_all_gather_list(all, parts, 2, SHOAL_F32), "NULL");
    CHECK_REFUSED(group_all_gather_list(all, parts, 1, (shoal_dtype)0), "dtype");
    CHECK_INT(shoal_group_sequence(all), 0);
}

TEST_WORLD(allgather_coalesced_async, W)
{
    float sends[2] = {(float)self->rank, (float)(10 + self->rank)};
    float recvs[2][W];
    shoal_part parts[2] = {{&sends[0], recvs[0], 1, SHOAL_CPU}, {&sends[1], recvs[1], 1, SHOAL_CPU}};
    shoal_work *work;
    REQUIRE_OK(group_all_gather_list_start(all, parts, 2, SHOAL_F32, &work));
    CHECK_OK(finish(work));
    for (int r = 0; r < W; r++) {
        CHECK_DOUBLE((double)recvs[0][r], r);
        CHECK_DOUBLE((double)recvs[1][r], 10 + r);
    }
}
