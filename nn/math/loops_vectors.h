/* SPDX-License-Identifier: MIT */
/*
 * The loops of loops.h for floats that use vector instructions (vector.h). Function names are in brackets, because
 * <tgmath.h> defines macros with the same names.
 */

#define FORWARD(name)                                                \
    static void name##_forward_f32(size_t n, const void *x, void *y) \
    {                                                                \
        (nn_vectors()->name)(n, x, y);                               \
    }

#define BACKWARD(name)                                                                   \
    static void name##_f32(size_t n, const void *gradient, const void *saved, void *out) \
    {                                                                                    \
        nn_vectors()->name(n, gradient, saved, out);                                     \
    }

FORWARD(tanh)
FORWARD(gelu)
FORWARD(gelu_tanh)
FORWARD(exp)
FORWARD(log)
FORWARD(sigmoid)
FORWARD(silu)
BACKWARD(tanh_backward)
BACKWARD(gelu_backward)
BACKWARD(gelu_tanh_backward)
BACKWARD(sigmoid_backward)
BACKWARD(silu_backward)

#undef FORWARD
#undef BACKWARD

static void norm_f32(size_t n, double eps, const void *x, const void *weight, const void *bias, void *y)
{
    nn_vectors()->norm(n, eps, x, weight, bias, y);
}

static void norm_backward_f32(size_t n, double eps, const void *gradient, const void *x, const void *weight,
                              void *out)
{
    nn_vectors()->norm_backward(n, eps, gradient, x, weight, out);
}

static void norm_weight_backward_f32(size_t n, double eps, const void *gradient, const void *x, double *sums)
{
    nn_vectors()->norm_weight_backward(n, eps, gradient, x, sums);
}

static void sgd_f32(size_t n, double lr, const void *gradient, void *parameter)
{
    nn_vectors()->sgd(n, lr, gradient, parameter);
}

static void adamw_f32(size_t n, const struct nn_adamw_factors *factors, const void *gradient, void *parameter,
                      void *first_moment, void *second_moment)
{
    nn_vectors()->adamw(n, factors, gradient, parameter, first_moment, second_moment);
}

/* Rows -------------------------------------------------------------------------------------------------- */

static float maximum_f32(size_t n, const float *x)
{
    return nn_vectors()->maximum(n, x);
}

static double sum_f32(size_t n, const float *x)
{
    return nn_vectors()->sum(n, x);
}

static double sum_of_products_f32(size_t n, const float *a, const float *b)
{
    return nn_vectors()->sum_of_products(n, a, b);
}

static double sum_exp_f32(size_t n, const float *x, float shift, float *y)
{
    return nn_vectors()->sum_exp(n, x, shift, y);
}

static void multiply_f32(size_t n, float factor, float *x)
{
    nn_vectors()->scale(n, factor, x, x);
}

static void rms_norm_f32(size_t n, double eps, const void *x, const void *weight, void *y)
{
    nn_vectors()->rms_norm(n, eps, x, weight, y);
}

static void rms_norm_backward_f32(size_t n, double eps, const void *gradient, const void *x,
                                  const void *weight, void *out)
{
    nn_vectors()->rms_norm_backward(n, eps, gradient, x, weight, out);
}

static void rms_norm_weight_backward_f32(size_t n, double eps, const void *gradient, const void *x,
                                         double *sums)
{
    nn_vectors()->rms_norm_weight_backward(n, eps, gradient, x, sums);
}
