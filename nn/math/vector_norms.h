/* SPDX-License-Identifier: MIT */
/*
 * Rows of layer norm, and of RMS norm, which uses 0 as the mean. Everything is computed in f64; only the result is
 * rounded. Part of vector_loops.h.
 */

/* The sum of (x - mean)^2. The zeros behind the end are not added. */
static double sum_of_squares(size_t n, const float *x, double mean)
{
    struct sums sums = no_sums();
    const struct wide shift = wide_all(mean);
    size_t first = 0;
    for (; first + SUM_LANES <= n; first += SUM_LANES) {
        for (int i = 0; i < STEPS; i++) {
            struct wide difference = wide_subtract(widen(load(x + first + i * LANES)), shift);
            sums.step[i] = wide_add(sums.step[i], wide_multiply(difference, difference));
        }
    }
    double lanes[SUM_LANES] = {0};
    for (size_t i = 0; first + i < n; i++) {
        lanes[i] = ((double)x[first + i] - mean) * ((double)x[first + i] - mean);
    }
    for (int i = 0; i < STEPS; i++) {
        sums.step[i] = wide_add(sums.step[i], wide_load(lanes + i * LANES));
    }
    return fold_sums(&sums);
}

struct moments {
    double mean;
    double scale; /* 1 / sqrt(variance + eps) */
};

static struct moments moments_of(size_t n, double eps, const float *x, bool is_rms)
{
    double mean = is_rms ? 0 : loop_sum(n, x) / (double)n;
    double variance = sum_of_squares(n, x, mean) / (double)n;
    return (struct moments){.mean = mean, .scale = 1 / sqrt(variance + eps)};
}

static inline struct wide normalise(vector x, struct wide mean, struct wide scale)
{
    return wide_multiply(wide_subtract(widen(x), mean), scale);
}

static inline vector norm_of(vector x, struct wide mean, struct wide scale, vector weight, vector bias)
{
    struct wide scaled = wide_multiply(normalise(x, mean, scale), widen(weight));
    return narrow(wide_add(scaled, widen(bias)).part);
}

static void normalise_row(size_t n, struct moments moments, const float *x, const float *weight,
                          const float *bias, float *y)
{
    const struct wide mean = wide_all(moments.mean);
    const struct wide scale = wide_all(moments.scale);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vector w = weight ? load(weight + i) : all(1.0f);
        vector b = bias ? load(bias + i) : all(0.0f);
        store(y + i, norm_of(load(x + i), mean, scale, w, b));
    }
    if (i < n) {
        vector w = weight ? load_some(weight + i, n - i) : all(1.0f);
        vector b = bias ? load_some(bias + i, n - i) : all(0.0f);
        store_some(y + i, n - i, norm_of(load_some(x + i, n - i), mean, scale, w, b));
    }
}

/* With h = gradient * weight and x' the normalized x: scale * (h - mean(h) - x' * mean(h x')). */
struct norm_gradient {
    struct wide mean, scale, mean_h, mean_hx;
};

static inline struct wide product_of(vector gradient, vector weight)
{
    return wide_multiply(widen(gradient), widen(weight));
}

static inline vector norm_gradient_of(const struct norm_gradient *by, vector g, vector x, vector w)
{
    struct wide along = wide_multiply(normalise(x, by->mean, by->scale), by->mean_hx);
    struct wide rest = wide_subtract(wide_subtract(product_of(g, w), by->mean_h), along);
    return narrow(wide_multiply(by->scale, rest).part);
}

/* The means of h and of h x', over n elements. */
static void average_gradient(size_t n, const float *g, const float *x, const float *w,
                             struct norm_gradient *by)
{
    struct sums h_sums = no_sums();
    struct sums hx_sums = no_sums();
    float buffers[3][SUM_LANES];
    for (size_t first = 0; first < n; first += SUM_LANES) {
        const float *g_block = block_at(g, n, first, buffers[0]); /* 0 behind the end, and so h */
        const float *x_block = block_at(x, n, first, buffers[1]);
        const float *w_block = w ? block_at(w, n, first, buffers[2]) : NULL;
        for (int i = 0; i < STEPS; i++) {
            vector weight = w ? load(w_block + i * LANES) : all(1.0f);
            struct wide h = product_of(load(g_block + i * LANES), weight);
            struct wide along = normalise(load(x_block + i * LANES), by->mean, by->scale);
            h_sums.step[i] = wide_add(h_sums.step[i], h);
            hx_sums.step[i] = wide_add(hx_sums.step[i], wide_multiply(h, along));
        }
    }
    by->mean_h = wide_all(fold_sums(&h_sums) / (double)n);
    by->mean_hx = wide_all(fold_sums(&hx_sums) / (double)n);
}

static void row_backward(size_t n, struct moments moments, bool is_rms, const float *gradient, const float *x,
                         const float *weight, float *out)
{
    struct norm_gradient by = {.mean = wide_all(moments.mean), .scale = wide_all(moments.scale)};
    average_gradient(n, gradient, x, weight, &by);
    if (is_rms) {
        by.mean_h = wide_all(0);
    }
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vector w = weight ? load(weight + i) : all(1.0f);
        store(out + i, norm_gradient_of(&by, load(gradient + i), load(x + i), w));
    }
    if (i < n) {
        vector w = weight ? load_some(weight + i, n - i) : all(1.0f);
        store_some(out + i, n - i,
                   norm_gradient_of(&by, load_some(gradient + i, n - i), load_some(x + i, n - i), w));
    }
}

static void row_weight_backward(size_t n, struct moments moments, const float *gradient, const float *x,
                                double *sums)
{
    const struct wide mean = wide_all(moments.mean);
    const struct wide scale = wide_all(moments.scale);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        struct wide product = wide_multiply(widen(load(gradient + i)), normalise(load(x + i), mean, scale));
        wide_store(sums + i, wide_add(wide_load(sums + i), product));
    }
    for (; i < n; i++) {
        sums[i] += (double)gradient[i] * (((double)x[i] - moments.mean) * moments.scale);
    }
}

static void loop_norm(size_t n, double eps, const float *x, const float *weight, const float *bias, float *y)
{
    normalise_row(n, moments_of(n, eps, x, /*is_rms=*/false), x, weight, bias, y);
}

static void loop_norm_backward(size_t n, double eps, const float *gradient, const float *x,
                               const float *weight, float *out)
{
    row_backward(n, moments_of(n, eps, x, /*is_rms=*/false), /*is_rms=*/false, gradient, x, weight, out);
}

static void loop_norm_weight_backward(size_t n, double eps, const float *gradient, const float *x,
                                      double *sums)
{
    row_weight_backward(n, moments_of(n, eps, x, /*is_rms=*/false), gradient, x, sums);
}

static void loop_rms_norm(size_t n, double eps, const float *x, const float *weight, float *y)
{
    normalise_row(n, moments_of(n, eps, x, /*is_rms=*/true), x, weight, NULL, y);
}

static void loop_rms_norm_backward(size_t n, double eps, const float *gradient, const float *x,
                                   const float *weight, float *out)
{
    row_backward(n, moments_of(n, eps, x, /*is_rms=*/true), /*is_rms=*/true, gradient, x, weight, out);
}

static void loop_rms_norm_weight_backward(size_t n, double eps, const float *gradient, const float *x,
                                          double *sums)
{
    row_weight_backward(n, moments_of(n, eps, x, /*is_rms=*/true), gradient, x, sums);
}
