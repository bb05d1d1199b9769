/* SPDX-License-Identifier: MIT */
/*
 * The cost of the op layer: an addition of 4 floats, where the arithmetic takes almost no time. Several additions share
 * a scope, as the ops of a model's step do; opening and closing the scope is part of the time.
 */
#include "bench/cases.h"

#include "base/clock.h"
#include "kernel/kernel.h"
#include "shoal/ops.h"
#include "shoal/scope.h"

#include <math.h>

enum {
    ROUNDS = 20,
    SCOPES = 200,
    ADDITIONS = 32
};

/* One scope with ADDITIONS additions; false when something failed. */
static bool add_in_scope(shoal_tensor *a, shoal_tensor *b)
{
    if (shoal_scope_begin() != SHOAL_OK) {
        return false;
    }
    for (int i = 0; i < ADDITIONS; i++) {
        (void)shoal_add(a, b);
    }
    return shoal_scope_end() == SHOAL_OK;
}

static double time_op_ns(shoal_tensor *a, shoal_tensor *b)
{
    double best_ns = (double)INFINITY;
    for (int round = 0; round < ROUNDS; round++) {
        int64_t begin_ns = clock_now_ns();
        for (int i = 0; i < SCOPES; i++) {
            if (!add_in_scope(a, b)) {
                return (double)NAN;
            }
        }
        best_ns = fmin(best_ns, (double)(clock_now_ns() - begin_ns) / (SCOPES * ADDITIONS));
    }
    return best_ns;
}

static double time_kernel_ns(void)
{
    float values[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
    float sum[4];
    const int64_t shape[1] = {4};
    const int64_t strides[1] = {1};
    struct kernel_operand dst = {.data = address_of(sum), .strides = strides};
    struct kernel_operand a = {.data = address_of(values[0]), .strides = strides};
    struct kernel_operand b = {.data = address_of(values[1]), .strides = strides};
    double best_ns = (double)INFINITY;
    for (int round = 0; round < ROUNDS; round++) {
        int64_t begin_ns = clock_now_ns();
        for (int i = 0; i < SCOPES * ADDITIONS; i++) {
            if (kernel_binary_nd(KERNEL_ADD, SHOAL_F32, dst, a, b, 1, shape) != SHOAL_OK) {
                return (double)NAN;
            }
        }
        best_ns = fmin(best_ns, (double)(clock_now_ns() - begin_ns) / (SCOPES * ADDITIONS));
    }
    return best_ns;
}

double bench_op_overhead_ns(void)
{
    if (shoal_scope_begin() != SHOAL_OK) {
        return (double)NAN;
    }
    shoal_tensor *a = shoal_full((int64_t[]){4}, 1, 1.5, SHOAL_F32);
    shoal_tensor *b = shoal_full((int64_t[]){4}, 1, 2.25, SHOAL_F32);
    double op_ns = time_op_ns(a, b);
    double kernel_ns = time_kernel_ns();
    return shoal_scope_end() == SHOAL_OK ? op_ns - kernel_ns : (double)NAN;
}
