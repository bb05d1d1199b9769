/* SPDX-License-Identifier: MIT */
/*
 * The loops of loops.h for one type. Included by loops.c once per type, with `real` defined as that type and NAME(x)
 * as its own name for x. Functions such as tanh are those of <tgmath.h>: they have the type of their argument.
 */

static void NAME(tanh_forward)(size_t n, const void *x_values, void *y_values)
{
    const real *x = x_values;
    real *y = y_values;
    for (size_t i = 0; i < n; i++) {
        y[i] = tanh(x[i]);
    }
}

static void NAME(tanh_backward)(size_t n, const void *gradient, const void *saved, void *out_values)
{
    const real *g = gradient;
    const real *y = saved;
    real *out = out_values;
    for (size_t i = 0; i < n; i++) {
        out[i] = g[i] * (1 - y[i] * y[i]);
    }
}

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
        out[i] = y[i] <= 0 ? 0 : g[i];
    }
}

static void NAME(gelu_forward)(size_t n, const void *x_values, void *y_values)
{
    const real *x = x_values;
    real *y = y_values;
    const real half_root = (real)M_SQRT1_2;
    for (size_t i = 0; i < n; i++) {
        y[i] = x[i] * ((1 + erf(x[i] * half_root)) / 2);
    }
}

/* The normal distribution at x, plus x times its density. */
static void NAME(gelu_backward)(size_t n, const void *gradient, const void *saved, void *out_values)
{
    const real *g = gradient;
    const real *x = saved;
    real *out = out_values;
    const real half_root = (real)M_SQRT1_2;
    const real density_at_0 = (real)(0.5 * M_2_SQRTPI * M_SQRT1_2);
    for (size_t i = 0; i < n; i++) {
        real distribution = (1 + erf(x[i] * half_root)) / 2;
        real density = density_at_0 * exp(-(x[i] * x[i]) / 2);
        out[i] = g[i] * (distribution + x[i] * density);
    }
}

static void NAME(gelu_tanh_forward)(size_t n, const void *x_values, void *y_values)
{
    const real *x = x_values;
    real *y = y_values;
    const real scale = (real)(M_2_SQRTPI * M_SQRT1_2);
    const real cubic = (real)0.044715;
    for (size_t i = 0; i < n; i++) {
        real inner = scale * (x[i] + cubic * (x[i] * x[i] * x[i]));
        y[i] = x[i] * ((1 + tanh(inner)) / 2);
    }
}

static void NAME(gelu_tanh_backward)(size_t n, const void *gradient, const void *saved, void *out_values)
{
    const real *g = gradient;
    const real *x = saved;
    real *out = out_values;
    const real scale = (real)(M_2_SQRTPI * M_SQRT1_2);
    const real cubic = (real)0.044715;
    for (size_t i = 0; i < n; i++) {
        real square = x[i] * x[i];
        real t = tanh(scale * (x[i] + cubic * (square * x[i])));
        real slope = scale * (1 + 3 * cubic * square);
        out[i] = g[i] * ((1 + t) / 2 + x[i] * (1 - t * t) * slope / 2);
    }
}

static void NAME(exp_forward)(size_t n, const void *x_values, void *y_values)
{
    const real *x = x_values;
    real *y = y_values;
    for (size_t i = 0; i < n; i++) {
        y[i] = exp(x[i]);
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

static void NAME(log_forward)(size_t n, const void *x_values, void *y_values)
{
    const real *x = x_values;
    real *y = y_values;
    for (size_t i = 0; i < n; i++) {
        y[i] = log(x[i]);
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

static void NAME(sigmoid_forward)(size_t n, const void *x_values, void *y_values)
{
    const real *x = x_values;
    real *y = y_values;
    for (size_t i = 0; i < n; i++) {
        y[i] = 1 / (1 + exp(-x[i]));
    }
}

static void NAME(sigmoid_backward)(size_t n, const void *gradient, const void *saved, void *out_values)
{
    const real *g = gradient;
    const real *y = saved;
    real *out = out_values;
    for (size_t i = 0; i < n; i++) {
        out[i] = g[i] * ((1 - y[i]) * y[i]);
    }
}

static void NAME(silu_forward)(size_t n, const void *x_values, void *y_values)
{
    const real *x = x_values;
    real *y = y_values;
    for (size_t i = 0; i < n; i++) {
        y[i] = x[i] / (1 + exp(-x[i]));
    }
}

static void NAME(silu_backward)(size_t n, const void *gradient, const void *saved, void *out_values)
{
    const real *g = gradient;
    const real *x = saved;
    real *out = out_values;
    for (size_t i = 0; i < n; i++) {
        real s = 1 / (1 + exp(-x[i]));
        out[i] = g[i] * (s * (1 + x[i] * (1 - s)));
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

static double NAME(mean_of)(size_t n, const real *x)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)x[i];
    }
    return sum / (double)n;
}

/* 1 / sqrt(variance + eps) */
static double NAME(scale_of)(size_t n, double eps, const real *x, double mean)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        double difference = (double)x[i] - mean;
        sum += difference * difference;
    }
    return 1 / sqrt(sum / (double)n + eps);
}

static void NAME(norm)(size_t n, double eps, const void *x_values, const void *weight, const void *bias,
                       void *y_values)
{
    const real *x = x_values;
    const real *w = weight;
    const real *b = bias;
    real *y = y_values;
    double mean = NAME(mean_of)(n, x);
    double scale = NAME(scale_of)(n, eps, x, mean);
    for (size_t i = 0; i < n; i++) {
        double value = ((double)x[i] - mean) * scale;
        y[i] = (real)(value * (w ? (double)w[i] : 1) + (b ? (double)b[i] : 0));
    }
}

/* With h = gradient * weight and x' the normalised x: scale * (h - mean(h) - x' * mean(h x')). */
static void NAME(norm_backward)(size_t n, double eps, const void *gradient, const void *x_values,
                                const void *weight, void *out_values)
{
    const real *g = gradient;
    const real *x = x_values;
    const real *w = weight;
    real *out = out_values;
    double mean = NAME(mean_of)(n, x);
    double scale = NAME(scale_of)(n, eps, x, mean);
    double sum = 0;
    double sum_with_x = 0;
    for (size_t i = 0; i < n; i++) {
        double h = (double)g[i] * (w ? (double)w[i] : 1);
        sum += h;
        sum_with_x += h * (((double)x[i] - mean) * scale);
    }
    for (size_t i = 0; i < n; i++) {
        double h = (double)g[i] * (w ? (double)w[i] : 1);
        double normalised = ((double)x[i] - mean) * scale;
        out[i] = (real)(scale * (h - sum / (double)n - normalised * (sum_with_x / (double)n)));
    }
}

static void NAME(norm_weight_backward)(size_t n, double eps, const void *gradient, const void *x_values,
                                       double *sums)
{
    const real *g = gradient;
    const real *x = x_values;
    double mean = NAME(mean_of)(n, x);
    double scale = NAME(scale_of)(n, eps, x, mean);
    for (size_t i = 0; i < n; i++) {
        sums[i] += (double)g[i] * (((double)x[i] - mean) * scale);
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
static void NAME(matmul_block)(double alpha, const struct nn_matrix *a, const struct nn_matrix *b,
                               int64_t first_k, int64_t first_col, real *c, int64_t c_stride)
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
        real *row = c + i * c_stride + first_col;
        for (int64_t k = 0; k < n_k; k++) {
            real factor = (real)alpha * a_data[i * a->row_stride + (first_k + k) * a->col_stride];
            for (int64_t j = 0; j < n_cols; j++) {
                row[j] += factor * block[k][j];
            }
        }
    }
}

static void NAME(matmul_update)(double alpha, const struct nn_matrix *a, const struct nn_matrix *b, bool adds,
                                void *c, int64_t c_stride)
{
    for (int64_t i = 0; i < a->rows && !adds; i++) {
        NAME(fill)((size_t)b->cols, 0, (real *)c + i * c_stride);
    }
    for (int64_t k = 0; k < b->rows; k += BLOCK) {
        for (int64_t j = 0; j < b->cols; j += BLOCK) {
            NAME(matmul_block)(alpha, a, b, k, j, c, c_stride);
        }
    }
}

static void NAME(matmul)(const struct nn_matrix *a, const struct nn_matrix *b, bool adds, void *c)
{
    NAME(matmul_update)(1, a, b, adds, c, b->cols);
}

static void NAME(dropout)(size_t n, double p, const uint32_t *words, const void *x_values, void *y_values)
{
    const real *x = x_values;
    real *y = y_values;
    const real scale = p < 1 ? (real)(1.0 / (1.0 - p)) : 0;
    const double limit = p * 0x1p32;
    for (size_t i = 0; i < n; i++) {
        y[i] = (double)words[i] < limit ? 0 : x[i] * scale;
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

static void NAME(sgd)(size_t n, double lr, const void *gradient, void *parameter)
{
    const real *g = gradient;
    real *p = parameter;
    const real rate = (real)lr;
    for (size_t i = 0; i < n; i++) {
        p[i] = p[i] - rate * g[i];
    }
}

static void NAME(adamw)(size_t n, const struct nn_adamw_factors *factors, const void *gradient,
                        void *parameter, void *first_moment, void *second_moment)
{
    const real *restrict g = gradient;
    real *restrict p = parameter;
    real *restrict m = first_moment;
    real *restrict v = second_moment;
    const real decay = (real)factors->decay;
    const real beta1 = (real)factors->beta1;
    const real one_minus_beta1 = (real)factors->one_minus_beta1;
    const real beta2 = (real)factors->beta2;
    const real one_minus_beta2 = (real)factors->one_minus_beta2;
    const real step = (real)factors->step;
    const real root = (real)factors->root;
    const real eps = (real)factors->eps;
    for (size_t i = 0; i < n; i++) {
        real decayed = p[i] - decay * p[i];
        m[i] = beta1 * m[i] + one_minus_beta1 * g[i];
        v[i] = beta2 * v[i] + one_minus_beta2 * (g[i] * g[i]);
        p[i] = decayed - step * m[i] / (sqrt(v[i]) / root + eps);
    }
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
    .fill = NAME(fill),
    .add = NAME(add),
    .first = NAME(first),
    .from_doubles = NAME(from_doubles),
    .matmul = NAME(matmul),
    .matmul_update = NAME(matmul_update),
    .dropout = NAME(dropout),
    .scale = NAME(scale),
    .is_finite = NAME(is_finite),
    .sgd = NAME(sgd),
    .adamw = NAME(adamw),
};
