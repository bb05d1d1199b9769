/* SPDX-License-Identifier: MIT */
/* The loops of loops.h for doubles that floats have in vectors (loops_vectors.h): by libm, sums from first to last. */

static void tanh_forward_f64(size_t n, const void *x_values, void *y_values)
{
    const double *x = x_values;
    double *y = y_values;
    for (size_t i = 0; i < n; i++) {
        y[i] = tanh(x[i]);
    }
}

static void tanh_backward_f64(size_t n, const void *gradient, const void *saved, void *out_values)
{
    const double *g = gradient;
    const double *y = saved;
    double *out = out_values;
    for (size_t i = 0; i < n; i++) {
        out[i] = g[i] * (1 - y[i] * y[i]);
    }
}

static void gelu_forward_f64(size_t n, const void *x_values, void *y_values)
{
    const double *x = x_values;
    double *y = y_values;
    const double half_root = M_SQRT1_2;
    for (size_t i = 0; i < n; i++) {
        y[i] = x[i] * ((1 + erf(x[i] * half_root)) / 2);
    }
}

/* The normal distribution at x, plus x times its density. */
static void gelu_backward_f64(size_t n, const void *gradient, const void *saved, void *out_values)
{
    const double *g = gradient;
    const double *x = saved;
    double *out = out_values;
    const double half_root = M_SQRT1_2;
    const double density_at_0 = (0.5 * M_2_SQRTPI * M_SQRT1_2);
    for (size_t i = 0; i < n; i++) {
        double distribution = (1 + erf(x[i] * half_root)) / 2;
        double density = density_at_0 * exp(-(x[i] * x[i]) / 2);
        out[i] = g[i] * (distribution + x[i] * density);
    }
}

static void gelu_tanh_forward_f64(size_t n, const void *x_values, void *y_values)
{
    const double *x = x_values;
    double *y = y_values;
    const double scale = (M_2_SQRTPI * M_SQRT1_2);
    const double cubic = 0.044715;
    for (size_t i = 0; i < n; i++) {
        double inner = scale * (x[i] + cubic * (x[i] * x[i] * x[i]));
        y[i] = x[i] * ((1 + tanh(inner)) / 2);
    }
}

static void gelu_tanh_backward_f64(size_t n, const void *gradient, const void *saved, void *out_values)
{
    const double *g = gradient;
    const double *x = saved;
    double *out = out_values;
    const double scale = (M_2_SQRTPI * M_SQRT1_2);
    const double cubic = 0.044715;
    for (size_t i = 0; i < n; i++) {
        /* Beyond 16 tanh is 1 or -1, and at infinity the product below would be one with 0. A NaN stays one. */
        double c = x[i] > 16 ? 16 : x[i] < -16 ? -16 : x[i];
        double square = c * c;
        double t = tanh(scale * (c + cubic * (square * c)));
        double slope = scale * (1 + 3 * cubic * square);
        out[i] = g[i] * ((1 + t) / 2 + c * (1 - t * t) * slope / 2);
    }
}

static void exp_forward_f64(size_t n, const void *x_values, void *y_values)
{
    const double *x = x_values;
    double *y = y_values;
    for (size_t i = 0; i < n; i++) {
        y[i] = exp(x[i]);
    }
}

static void log_forward_f64(size_t n, const void *x_values, void *y_values)
{
    const double *x = x_values;
    double *y = y_values;
    for (size_t i = 0; i < n; i++) {
        y[i] = log(x[i]);
    }
}

static void sigmoid_forward_f64(size_t n, const void *x_values, void *y_values)
{
    const double *x = x_values;
    double *y = y_values;
    for (size_t i = 0; i < n; i++) {
        y[i] = 1 / (1 + exp(-x[i]));
    }
}

static void sigmoid_backward_f64(size_t n, const void *gradient, const void *saved, void *out_values)
{
    const double *g = gradient;
    const double *y = saved;
    double *out = out_values;
    for (size_t i = 0; i < n; i++) {
        out[i] = g[i] * ((1 - y[i]) * y[i]);
    }
}

static void silu_forward_f64(size_t n, const void *x_values, void *y_values)
{
    const double *x = x_values;
    double *y = y_values;
    for (size_t i = 0; i < n; i++) {
        y[i] = x[i] / (1 + exp(-x[i]));
    }
}

static void silu_backward_f64(size_t n, const void *gradient, const void *saved, void *out_values)
{
    const double *g = gradient;
    const double *x = saved;
    double *out = out_values;
    for (size_t i = 0; i < n; i++) {
        double s = 1 / (1 + exp(-x[i]));
        out[i] = g[i] * (s * (1 + x[i] * (1 - s)));
    }
}

static double mean_of_f64(size_t n, const double *x)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)x[i];
    }
    return sum / (double)n;
}

/* 1 / sqrt(variance + eps) */
static double scale_of_f64(size_t n, double eps, const double *x, double mean)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        double difference = (double)x[i] - mean;
        sum += difference * difference;
    }
    return 1 / sqrt(sum / (double)n + eps);
}

static void norm_f64(size_t n, double eps, const void *x_values, const void *weight, const void *bias,
                     void *y_values)
{
    const double *x = x_values;
    const double *w = weight;
    const double *b = bias;
    double *y = y_values;
    double mean = mean_of_f64(n, x);
    double scale = scale_of_f64(n, eps, x, mean);
    for (size_t i = 0; i < n; i++) {
        double value = ((double)x[i] - mean) * scale;
        y[i] = (value * (w ? (double)w[i] : 1) + (b ? (double)b[i] : 0));
    }
}

/* With h = gradient * weight and x' the normalized x: scale * (h - mean(h) - x' * mean(h x')). */
static void norm_backward_f64(size_t n, double eps, const void *gradient, const void *x_values,
                              const void *weight, void *out_values)
{
    const double *g = gradient;
    const double *x = x_values;
    const double *w = weight;
    double *out = out_values;
    double mean = mean_of_f64(n, x);
    double scale = scale_of_f64(n, eps, x, mean);
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
        out[i] = (scale * (h - sum / (double)n - normalised * (sum_with_x / (double)n)));
    }
}

static void norm_weight_backward_f64(size_t n, double eps, const void *gradient, const void *x_values,
                                     double *sums)
{
    const double *g = gradient;
    const double *x = x_values;
    double mean = mean_of_f64(n, x);
    double scale = scale_of_f64(n, eps, x, mean);
    for (size_t i = 0; i < n; i++) {
        sums[i] += (double)g[i] * (((double)x[i] - mean) * scale);
    }
}

static void sgd_f64(size_t n, double lr, const void *gradient, void *parameter)
{
    const double *g = gradient;
    double *p = parameter;
    const double rate = lr;
    for (size_t i = 0; i < n; i++) {
        p[i] = p[i] - rate * g[i];
    }
}

static void adamw_f64(size_t n, const struct nn_adamw_factors *factors, const void *gradient, void *parameter,
                      void *first_moment, void *second_moment)
{
    const double *restrict g = gradient;
    double *restrict p = parameter;
    double *restrict m = first_moment;
    double *restrict v = second_moment;
    const double decay = factors->decay;
    const double beta1 = factors->beta1;
    const double one_minus_beta1 = factors->one_minus_beta1;
    const double beta2 = factors->beta2;
    const double one_minus_beta2 = factors->one_minus_beta2;
    const double step = factors->step;
    const double root = factors->root;
    const double eps = factors->eps;
    for (size_t i = 0; i < n; i++) {
        double decayed = p[i] - decay * p[i];
        m[i] = beta1 * m[i] + one_minus_beta1 * g[i];
        v[i] = beta2 * v[i] + one_minus_beta2 * (g[i] * g[i]);
        p[i] = decayed - step * m[i] / (sqrt(v[i]) / root + eps);
    }
}

/* Rows -------------------------------------------------------------------------------------------------- */

/* As nn_vector_table's: NaN if one is NaN, -infinity of none. */
static double maximum_f64(size_t n, const double *x)
{
    double largest = -(double)INFINITY;
    for (size_t i = 0; i < n; i++) {
        largest = x[i] != x[i] || x[i] > largest ? x[i] : largest;
        if (largest != largest) {
            break;
        }
    }
    return largest;
}

static double sum_f64(size_t n, const double *x)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += x[i];
    }
    return sum;
}

static double sum_of_products_f64(size_t n, const double *a, const double *b)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

static double sum_exp_f64(size_t n, const double *x, double shift, double *y)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        double value = exp(x[i] - shift);
        sum += value;
        if (y) {
            y[i] = value;
        }
    }
    return sum;
}

static void multiply_f64(size_t n, double factor, double *x)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = factor * x[i];
    }
}

static double rms_scale(size_t n, double eps, const double *x)
{
    return 1 / sqrt(sum_of_products_f64(n, x, x) / (double)n + eps);
}

static void rms_norm_f64(size_t n, double eps, const void *x_values, const void *weight, void *y_values)
{
    const double *x = x_values;
    const double *w = weight;
    double *y = y_values;
    const double scale = rms_scale(n, eps, x);
    for (size_t i = 0; i < n; i++) {
        y[i] = x[i] * scale * (w ? w[i] : 1);
    }
}

/* With h = gradient * weight and x' the normalized x: scale * (h - x' * mean(h x')). */
static void rms_norm_backward_f64(size_t n, double eps, const void *gradient, const void *x_values,
                                  const void *weight, void *out_values)
{
    const double *g = gradient;
    const double *x = x_values;
    const double *w = weight;
    double *out = out_values;
    const double scale = rms_scale(n, eps, x);
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += g[i] * (w ? w[i] : 1) * (x[i] * scale);
    }
    for (size_t i = 0; i < n; i++) {
        out[i] = scale * (g[i] * (w ? w[i] : 1) - x[i] * scale * (sum / (double)n));
    }
}

static void rms_norm_weight_backward_f64(size_t n, double eps, const void *gradient, const void *x_values,
                                         double *sums)
{
    const double *g = gradient;
    const double *x = x_values;
    const double scale = rms_scale(n, eps, x);
    for (size_t i = 0; i < n; i++) {
        sums[i] += g[i] * (x[i] * scale);
    }
}
