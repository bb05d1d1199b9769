/* SPDX-License-Identifier: MIT */
/* Picks the variant: the last row that this machine can run. Two threads that race pick the same one. */
#include "math/vector.h"

#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "math/processor.h"
#include "math/vector_variants.h"

struct variant {
    bool (*is_usable)(void);
    const struct nn_vector_table *table;
};

static bool is_always_usable(void)
{
    return true;
}

#if defined(__x86_64__)
static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && nn_processor_has_avx2();
}
#endif

/* Worst first. */
static const struct variant variants[] = {
    {is_always_usable, &nn_vectors_plain},
#if defined(__aarch64__) && !defined(__ARM_BIG_ENDIAN)
    {is_always_usable, &nn_vectors_neon},
#endif
#if defined(__x86_64__)
    {nn_processor_has_avx2, &nn_vectors_avx2},
    {has_avx512, &nn_vectors_avx512},
#endif
};

const struct nn_vector_table *nn_vectors_at(size_t index)
{
    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
        if (variants[i].is_usable() && index-- == 0) {
            return variants[i].table;
        }
    }
    return NULL;
}

static const struct nn_vector_table *find_best(void)
{
    const struct nn_vector_table *best = NULL;
    for (size_t i = 0; nn_vectors_at(i); i++) {
        best = nn_vectors_at(i);
    }
    return best;
}

const struct nn_vector_table *nn_vectors(void)
{
    static _Atomic(const struct nn_vector_table *) chosen;
    /* Relaxed, here and below: tables are constant, only the address is published. */
    const struct nn_vector_table *table = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (!table) { /* threads that only read share the line of cache */
        table = find_best();
        atomic_store_explicit(&chosen, table, memory_order_relaxed);
    }
    return table;
}

double nn_softmax_row(size_t n, const float *x, float *y)
{
    const struct nn_vector_table *vectors = nn_vectors();
    float largest = vectors->maximum(n, x);
    double sum = vectors->sum_exp(n, x, largest, y);
    vectors->scale(n, (float)(1 / sum), y, y);
    return log(sum) + (double)largest;
}

void nn_log_softmax_row(size_t n, const float *x, float *y)
{
    const struct nn_vector_table *vectors = nn_vectors();
    float largest = vectors->maximum(n, x);
    double shift = log(vectors->sum_exp(n, x, largest, NULL)) + (double)largest;
    for (size_t i = 0; i < n; i++) {
        y[i] = (float)((double)x[i] - shift);
    }
}
