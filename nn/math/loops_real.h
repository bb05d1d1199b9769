/* SPDX-License-Identifier: MIT */
/*
 * The loops of loops.h for one type. Included by loops.c once per type, with `real` defined as that type and NAME(x)
 * as its own name for x. Functions such as tanh are those of <tgmath.h>: they have the type of their argument.
 */

/* A NaN stays one. */
static void NAME(relu_forward)(size_t n, const void *x_values, void *y_values)
{
    const real *x = x_values;
    real *y = y_values;
    for (size_t i = 0; i < n; i++) {
        y[i] = x[i] <= 0 ? 0 : x[i];
    }
}

static void NAME(relu_backward)(size_t n, const void *gradient, const void *saved, void *out_values)
{
    const real *g = gradient;
    const real *y = saved;
    real *out = out_values;
    for (size_t i = 0; i < n; i++) {
        real value = g[i]; /* read in any case, so that the loop has no branch */
        out[i] = y[i] <= 0 ? 0 : value;
    }
}

static void NAME(exp_backward)(size_t n, const void *gradient, const void *saved, void *out_values)
{
    const real *g = gradient;
    const real *y = saved;
    real *out = out_values;
    for (size_t i = 0; i < n; i++) {
        out[i] = g[i] * y[i];
    }
}

static void NAME(log_backward)(size_t n, const void *gradient, const void *saved, void *out_values)
{
    const real *g = gradient;
    const real *x = saved;
    real *out = out_values;
    for (size_t i = 0; i < n; i++) {
        out[i] = g[i] / x[i];
    }
}

static void NAME(sqrt_forward)(size_t n, const void *x_values, void *y_values)
{
    const real *x = x_values;
    real *y = y_values;
    for (size_t i = 0; i < n; i++) {
        y[i] = sqrt(x[i]);
    }
}

static void NAME(sqrt_backward)(size_t n, const void *gradient, const void *saved, void *out_values)
{
    const real *g = gradient;
    const real *y = saved;
    real *out = out_values;
    for (size_t i = 0; i < n; i++) {
        out[i] = g[i] / (2 * y[i]);
    }
}

static double NAME(sum_of_squares)(size_t n, const void *a_values, const void *b_values)
{
    const real *a = a_values;
    const real *b = b_values;
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        double difference = (double)(real)(a[i] - b[i]);
        sum += difference * difference;
    }
    return sum;
}

static void NAME(mse_backward)(size_t n, double gradient, const void *a_values, const void *b_values,
                               void *out_values)
{
    const real *a = a_values;
    const real *b = b_values;
    real *out = out_values;
    const real factor = (real)gradient / (real)n;
    for (size_t i = 0; i < n; i++) {
        out[i] = factor * (2 * (a[i] - b[i]));
    }
}

static void NAME(fill)(size_t n, double value, void *to_values)
{
    real *to = to_values;
    for (size_t i = 0; i < n; i++) {
        to[i] = (real)value;
    }
}

static void NAME(add)(size_t n, const void *from_values, void *to_values)
{
    const real *from = from_values;
    real *to = to_values;
    for (size_t i = 0; i < n; i++) {
        to[i] += from[i];
    }
}

static double NAME(first)(const void *from)
{
    return (double)*(const real *)from;
}

static void NAME(from_doubles)(size_t n, const double *from, void *to_values)
{
    real *to = to_values;
    for (size_t i = 0; i < n; i++) {
        to[i] = (real)from[i];
    }
}

/* c[i, j] += a[i, from..to] b[from..to, j] for the columns of one block, which is copied so that it lies in rows. */
static void NAME(matmul_block)(const struct nn_matrix *a, const struct nn_matrix *b, int64_t first_k,
                               int64_t first_col, real *c)
{
    real block[BLOCK][BLOCK];
    const real *b_data = b->data;
    const real *a_data = a->data;
    int64_t n_k = b->rows - first_k < BLOCK ? b->rows - first_k : BLOCK;
    int64_t n_cols = b->cols - first_col < BLOCK ? b->cols - first_col : BLOCK;
    for (int64_t k = 0; k < n_k; k++) {
        for (int64_t j = 0; j < n_cols; j++) {
            block[k][j] = b_data[(first_k + k) * b->row_stride + (first_col + j) * b->col_stride];
        }
    }
    for (int64_t i = 0; i < a->rows; i++) {
        real *row = c + i * b->cols + first_col;
        for (int64_t k = 0; k < n_k; k++) {
            real factor = a_data[i * a->row_stride + (first_k + k) * a->col_stride];
            for (int64_t j = 0; j < n_cols; j++) {
                row[j] += factor * block[k][j];
            }
        }
    }
}

static void NAME(matmul)(const struct nn_matrix *a, const struct nn_matrix *b, bool adds, void *c)
{
    if (!adds) {
        NAME(fill)((size_t)(a->rows * b->cols), 0, c);
    }
    for (int64_t k = 0; k < b->rows; k += BLOCK) {
        for (int64_t j = 0; j < b->cols; j += BLOCK) {
            NAME(matmul_block)(a, b, k, j, c);
        }
    }
}

static void NAME(dropout)(size_t n, double p, const uint32_t *words, const void *x_values, void *y_values)
{
    const real *x = x_values;
    real *y = y_values;
    const real scale = p < 1 ? (real)(1.0 / (1.0 - p)) : 0;
    /* The largest word below the limit: integers are compared faster. */
    const double limit = ceil(p * 0x1p32);
    const uint32_t last_dropped = limit > 0 ? (uint32_t)(limit - 1) : 0;
    if (limit <= 0) {
        memmove(y, x, n * sizeof(y[0]));
        return;
    }
    /* Two loops: a compiler makes no vectors where arrays could overlap. */
    for (size_t i = 0; i < n && y == x; i++) {
        y[i] = words[i] <= last_dropped ? 0 : y[i] * scale;
    }
    for (size_t i = 0; i < n && y != x; i++) {
        y[i] = words[i] <= last_dropped ? 0 : x[i] * scale;
    }
}

static void NAME(scale)(size_t n, double factor, void *x_values)
{
    real *x = x_values;
    const real by = (real)factor;
    for (size_t i = 0; i < n; i++) {
        x[i] = x[i] * by;
    }
}

static bool NAME(is_finite)(size_t n, const void *x_values)
{
    const real *x = x_values;
    unsigned is_other = 0;
    for (size_t i = 0; i < n; i++) {
        is_other |= x[i] - x[i] != 0; /* NaN, which is not 0 */
    }
    return is_other == 0;
}

static const struct nn_loops NAME(loops) = {
    .tanh_forward = NAME(tanh_forward),
    .tanh_backward = NAME(tanh_backward),
    .relu_forward = NAME(relu_forward),
    .relu_backward = NAME(relu_backward),
    .gelu_forward = NAME(gelu_forward),
    .gelu_backward = NAME(gelu_backward),
    .gelu_tanh_forward = NAME(gelu_tanh_forward),
    .gelu_tanh_backward = NAME(gelu_tanh_backward),
    .exp_forward = NAME(exp_forward),
    .exp_backward = NAME(exp_backward),
    .log_forward = NAME(log_forward),
    .log_backward = NAME(log_backward),
    .sqrt_forward = NAME(sqrt_forward),
    .sqrt_backward = NAME(sqrt_backward),
    .sigmoid_forward = NAME(sigmoid_forward),
    .sigmoid_backward = NAME(sigmoid_backward),
    .silu_forward = NAME(silu_forward),
    .silu_backward = NAME(silu_backward),
    .softmax_forward = NAME(softmax_forward),
    .softmax_backward = NAME(softmax_backward),
    .log_softmax_forward = NAME(log_softmax_forward),
    .log_softmax_backward = NAME(log_softmax_backward),
    .sum_of_squares = NAME(sum_of_squares),
    .mse_backward = NAME(mse_backward),
    .cross_entropy = NAME(cross_entropy),
    .cross_entropy_backward = NAME(cross_entropy_backward),
    .norm = NAME(norm),
    .norm_backward = NAME(norm_backward),
    .norm_weight_backward = NAME(norm_weight_backward),
    .rms_norm = NAME(rms_norm),
    .rms_norm_backward = NAME(rms_norm_backward),
    .rms_norm_weight_backward = NAME(rms_norm_weight_backward),
    .argmax = NAME(argmax),
    .turns = NAME(turns),
    .turn = NAME(turn),
    .fill = NAME(fill),
    .add = NAME(add),
    .first = NAME(first),
    .from_doubles = NAME(from_doubles),
    .matmul = NAME(matmul),
    .dropout = NAME(dropout),
    .scale = NAME(scale),
    .is_finite = NAME(is_finite),
    .sgd = NAME(sgd),
    .adamw = NAME(adamw),
};
