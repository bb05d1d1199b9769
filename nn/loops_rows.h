/* SPDX-License-Identifier: MIT */
/*
 * The loops of loops.h over rows: softmax, cross-entropy. Included by loops.c once per type, as loops_real.h is. Sums
 * are made in eight lanes, element i in lane i % 8, which are added at the end: one order, whatever the vectors.
 */

static double NAME(add_lanes)(const double lanes[LANES])
{
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

/* lanes += x, of which the first is for lane 0 */
static void NAME(sum_into)(size_t n, const real *x, double lanes[LANES])
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (size_t k = 0; k < LANES; k++) {
            lanes[k] += (double)x[i + k];
        }
    }
    for (size_t k = 0; i + k < n; k++) {
        lanes[k] += (double)x[i + k];
    }
}

static double NAME(sum)(size_t n, const real *x)
{
    double lanes[LANES] = {0};
    NAME(sum_into)(n, x, lanes);
    return NAME(add_lanes)(lanes);
}

static double NAME(sum_of_products)(size_t n, const real *a, const real *b)
{
    double lanes[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (size_t k = 0; k < LANES; k++) {
            lanes[k] += (double)a[i + k] * (double)b[i + k];
        }
    }
    for (size_t k = 0; i + k < n; k++) {
        lanes[k] += (double)a[i + k] * (double)b[i + k];
    }
    return NAME(add_lanes)(lanes);
}

/* Of at least one element. With a NaN among them it is any element: what is made of it is a NaN then. */
static real NAME(largest)(size_t n, const real *x)
{
    real lanes[LANES];
    size_t i = 0;
    for (size_t k = 0; k < LANES; k++) {
        lanes[k] = x[k < n ? k : 0];
    }
    for (; i + LANES <= n; i += LANES) {
        for (size_t k = 0; k < LANES; k++) {
            lanes[k] = x[i + k] > lanes[k] ? x[i + k] : lanes[k];
        }
    }
    real largest = lanes[0];
    for (size_t k = 1; k < LANES; k++) {
        largest = lanes[k] > largest ? lanes[k] : largest;
    }
    for (; i < n; i++) {
        largest = x[i] > largest ? x[i] : largest;
    }
    return largest;
}

/* y = exp(x - largest) */
static void NAME(exponentials)(size_t n, const real *x, real largest, real *y)
{
    for (size_t i = 0; i < n; i++) {
        y[i] = exp((real)(x[i] - largest));
    }
}

/* The sum of exp(x - largest), without keeping them. */
static double NAME(sum_of_exponentials)(size_t n, const real *x, real largest)
{
    real chunk[CHUNK];
    double lanes[LANES] = {0};
    for (size_t i = 0; i < n; i += CHUNK) {
        size_t count = n - i < CHUNK ? n - i : CHUNK;
        NAME(exponentials)(count, x + i, largest, chunk);
        NAME(sum_into)(count, chunk, lanes);
    }
    return NAME(add_lanes)(lanes);
}

static void NAME(softmax_forward)(size_t n, const void *x_values, void *y_values)
{
    const real *x = x_values;
    real *y = y_values;
    if (n == 0) {
        return;
    }
    NAME(exponentials)(n, x, NAME(largest)(n, x), y);
    const double factor = 1 / NAME(sum)(n, y);
    for (size_t i = 0; i < n; i++) {
        y[i] = (real)((double)y[i] * factor);
    }
}

/* y (g - sum(g y)) */
static void NAME(softmax_backward)(size_t n, const void *gradient, const void *saved, void *out_values)
{
    const real *g = gradient;
    const real *y = saved;
    real *out = out_values;
    const double sum = NAME(sum_of_products)(n, g, y);
    for (size_t i = 0; i < n; i++) {
        out[i] = (real)((double)y[i] * ((double)g[i] - sum));
    }
}

static void NAME(log_softmax_forward)(size_t n, const void *x_values, void *y_values)
{
    const real *x = x_values;
    real *y = y_values;
    if (n == 0) {
        return;
    }
    real largest = NAME(largest)(n, x);
    const double log_of_sum = log(NAME(sum_of_exponentials)(n, x, largest));
    for (size_t i = 0; i < n; i++) {
        y[i] = (real)(((double)x[i] - (double)largest) - log_of_sum);
    }
}

/* g - exp(y) sum(g) */
static void NAME(log_softmax_backward)(size_t n, const void *gradient, const void *saved, void *out_values)
{
    const real *g = gradient;
    real *out = out_values;
    const double sum = NAME(sum)(n, g);
    NAME(exponentials)(n, saved, 0, out);
    for (size_t i = 0; i < n; i++) {
        out[i] = (real)((double)g[i] - (double)out[i] * sum);
    }
}

/* With smoothing s a class of n has the weight s / n, and the target 1 - s more. */
static double NAME(cross_entropy)(size_t n, const void *logits, size_t target, double smoothing)
{
    const real *x = logits;
    real largest = NAME(largest)(n, x);
    double loss = log(NAME(sum_of_exponentials)(n, x, largest)) + ((double)largest - (double)x[target]);
    if (smoothing > 0) {
        loss += smoothing * ((double)x[target] - NAME(sum)(n, x) / (double)n);
    }
    return loss;
}

static void NAME(cross_entropy_backward)(size_t n, const void *logits, size_t target, double smoothing,
                                         double factor, void *out_values)
{
    const real *x = logits;
    real *out = out_values;
    NAME(exponentials)(n, x, NAME(largest)(n, x), out);
    const double scale = 1 / NAME(sum)(n, out);
    const double share = smoothing / (double)n;
    const double at_target = ((double)out[target] * scale - (1 - smoothing) - share) * factor;
    for (size_t i = 0; i < n; i++) {
        out[i] = (real)(((double)out[i] * scale - share) * factor);
    }
    out[target] = (real)at_target;
}
