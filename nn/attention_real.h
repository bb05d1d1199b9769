/* SPDX-License-Identifier: MIT */
/* Rows of attention for one type; attention.c includes this once for floats and once for doubles. It uses maximum,
   sum_exp, sum_of_products and scale of that type. */

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
        NAME(scale)(size, (real)factor, output);
    }
    running->has_output = true;
}

/* Of a query that saw keys. */
static void NAME(finish)(const struct running *running, size_t size, void *output, void *lse)
{
    NAME(scale)(size, (real)(1 / running->sum), output);
    *(real *)lse = (real)(running->largest + log(running->sum));
}

/* The sum of gradient * output: what each weight's gradient is compared with. */
static double NAME(mean)(size_t n, const void *gradient, const void *output)
{
    return NAME(sum_of_products)(n, gradient, output);
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
    .mean = NAME(mean),
    .weigh_again = NAME(weigh_again),
    .softmax_backward = NAME(softmax_backward),
};
