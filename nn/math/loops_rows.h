/* SPDX-License-Identifier: MIT */
/*
 * The loops of loops.h over rows: softmax, cross-entropy, RMS norm. Included by loops.c once per type, as loops_real.h
 * is. Sums, the largest element and exponentials are functions of loops.c: in vectors for floats, plain for doubles.
 */

static void NAME(softmax_forward)(size_t n, const void *x_values, void *y_values)
{
    real *y = y_values;
    real largest = NAME(maximum)(n, x_values);
    double sum = NAME(sum_exp)(n, x_values, largest, y);
    NAME(multiply)(n, (real)(1 / sum), y);
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
    real largest = NAME(maximum)(n, x);
    const double log_of_sum = log(NAME(sum_exp)(n, x, largest, NULL));
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
    (void)NAME(sum_exp)(n, saved, 0, out);
    for (size_t i = 0; i < n; i++) {
        out[i] = (real)((double)g[i] - (double)out[i] * sum);
    }
}

/* With smoothing s every one of n classes has the weight s / n, and the target 1 - s more. */
static double NAME(cross_entropy)(size_t n, const void *logits, size_t target, double smoothing)
{
    const real *x = logits;
    real largest = NAME(maximum)(n, x);
    double loss = log(NAME(sum_exp)(n, x, largest, NULL)) + ((double)largest - (double)x[target]);
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
    const double scale = 1 / NAME(sum_exp)(n, x, NAME(maximum)(n, x), out);
    const double share = smoothing / (double)n;
    const double at_target = ((double)out[target] * scale - (1 - smoothing) - share) * factor;
    NAME(multiply)(n, (real)(scale * factor), out);
    for (size_t i = 0; smoothing > 0 && i < n; i++) {
        out[i] = (real)((double)out[i] - share * factor);
    }
    out[target] = (real)at_target;
}

/* Cosines, then sines, of position * base^(-2 i / n) for i below n / 2. */
static void NAME(turns)(size_t n, double position, double base, void *turns_values)
{
    real *turns = turns_values;
    const size_t half = n / 2;
    for (size_t i = 0; i < half; i++) {
        double angle = position * pow(base, -2.0 * (double)i / (double)n);
        turns[i] = (real)cos(angle);
        turns[half + i] = (real)sin(angle);
    }
}

static void NAME(turn)(size_t n, bool is_inverse, const void *turns_values, const void *x_values,
                       void *y_values)
{
    const size_t half = n / 2;
    const real *cosines = turns_values;
    const real *sines = cosines + half;
    const real *x = x_values;
    real *y = y_values;
    const real sign = is_inverse ? -1 : 1;
    for (size_t i = 0; i < half; i++) {
        real sine = sign * sines[i];
        y[i] = x[i] * cosines[i] - x[half + i] * sine;
        y[half + i] = x[half + i] * cosines[i] + x[i] * sine;
    }
}

/* Of at least one element: the first of the largest ones, or the first NaN. */
static size_t NAME(argmax)(size_t n, const void *x_values)
{
    const real *x = x_values;
    const real largest = NAME(maximum)(n, x);
    size_t place = 0;
    while (place + 1 < n && x[place] != largest && x[place] == x[place]) {
        place++;
    }
    return place;
}
