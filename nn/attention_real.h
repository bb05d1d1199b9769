/* SPDX-License-Identifier: MIT */
/* Rows of attention for one type; attention.c includes this once for floats and once for doubles. */

static double NAME(maximum)(size_t n, const real *x)
{
    real largest = -(real)INFINITY;
    for (size_t i = 0; i < n; i++) {
        largest = x[i] > largest || x[i] != x[i] ? x[i] : largest;
    }
    return (double)largest;
}

static double NAME(sum_exp)(size_t n, const real *x, real shift, real *y)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        y[i] = exp(x[i] - shift);
        sum += (double)y[i];
    }
    return sum;
}

/* Scores to weights, not yet divided by their sum; the output so far is made to fit when the largest score grew. */
static void NAME(weigh)(size_t n, void *scores, struct running *running, size_t size, void *output)
{
    double largest = NAME(maximum)(n, scores);
    largest = running->largest > largest ? running->largest : largest;
    /* Where all scores are -infinity, so far, 0 takes the place of the largest: the weights are 0, not NaN. */
    double shift = largest == -(double)INFINITY ? 0 : largest;
    double factor = exp(running->largest - shift);
    running->sum = running->sum * factor + NAME(sum_exp)(n, scores, (real)shift, scores);
    running->largest = largest;
    if (running->has_output && factor != 1) {
        real *row = output;
        for (size_t i = 0; i < size; i++) {
            row[i] *= (real)factor;
        }
    }
    running->has_output = true;
}

/* Of a query that saw keys. */
static void NAME(finish)(const struct running *running, size_t size, void *output, void *lse)
{
    real *row = output;
    const real factor = (real)(1 / running->sum);
    for (size_t i = 0; i < size; i++) {
        row[i] *= factor;
    }
    *(real *)lse = (real)(running->largest + log(running->sum));
}

static double NAME(sum_of_products)(size_t n, const void *a_values, const void *b_values)
{
    const real *a = a_values;
    const real *b = b_values;
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)a[i] * (double)b[i];
    }
    return sum;
}

/* Scores to weights again. */
static void NAME(weigh_again)(size_t n, const void *lse, void *scores)
{
    (void)NAME(sum_exp)(n, scores, *(const real *)lse, scores);
}

/* gradients = weights * (gradients - mean) */
static void NAME(softmax_backward)(size_t n, double mean, const void *weights, void *gradients)
{
    const real *w = weights;
    real *g = gradients;
    const real by = (real)mean;
    for (size_t i = 0; i < n; i++) {
        g[i] = w[i] * (g[i] - by);
    }
}

static const struct row_loops NAME(row_loops) = {
    .weigh = NAME(weigh),
    .finish = NAME(finish),
    .sum_of_products = NAME(sum_of_products),
    .weigh_again = NAME(weigh_again),
    .softmax_backward = NAME(softmax_backward),
};
