/* SPDX-License-Identifier: MIT */
/* Updates of parameters. What is not of the type that is computed in goes through buffers, a piece at a time. */
#include "kernel/kernel.h"

#include <math.h>

#include "base/error.h"
#include "base/fp_mode.h"
#include "base/try.h"
#include "kernel/element.h"

/* Elements that are converted at a time. */
#define PIECE 512

/* For one type: sgd_F32, adamw_F32. */
#define LOOPS(NAME, real, square_root)                                                              \
    static void sgd_##NAME(const struct kernel_rates *rates, size_t count, const void *gradients,   \
                           void *data)                                                              \
    {                                                                                               \
        const element_##NAME *gradient = gradients;                                                 \
        element_##NAME *p = data;                                                                   \
        const real lr = (real)rates->lr;                                                            \
        ELEMENT_LOOP                                                                                \
        for (size_t i = 0; i < count; i++) {                                                        \
            p[i] = p[i] - lr * gradient[i];                                                         \
        }                                                                                           \
    }                                                                                               \
    static void adamw_##NAME(const struct kernel_rates *rates, size_t count, const void *gradients, \
                             void *data, void *first_moments, void *second_moments)                 \
    {                                                                                               \
        const element_##NAME *gradient = gradients;                                                 \
        element_##NAME *p = data;                                                                   \
        element_##NAME *m = first_moments;                                                          \
        element_##NAME *v = second_moments;                                                         \
        const real decay = (real)rates->decay;                                                      \
        const real beta1 = (real)rates->beta1;                                                      \
        const real one_minus_beta1 = (real)rates->one_minus_beta1;                                  \
        const real beta2 = (real)rates->beta2;                                                      \
        const real one_minus_beta2 = (real)rates->one_minus_beta2;                                  \
        const real step = (real)rates->step;                                                        \
        const real root = (real)rates->root;                                                        \
        const real eps = (real)rates->eps;                                                          \
        ELEMENT_LOOP                                                                                \
        for (size_t i = 0; i < count; i++) {                                                        \
            real g = gradient[i];                                                                   \
            real decayed = p[i] - decay * p[i];                                                     \
            m[i] = beta1 * m[i] + one_minus_beta1 * g;                                              \
            v[i] = beta2 * v[i] + one_minus_beta2 * (g * g);                                        \
            p[i] = decayed - step * m[i] / (square_root(v[i]) / root + eps);                        \
        }                                                                                           \
    }
LOOPS(F32, float, sqrtf)
LOOPS(F64, double, sqrt)
#undef LOOPS

static void run(enum kernel_rule rule, const struct kernel_update *update, size_t first, size_t count,
                const void *gradient, void *data)
{
    const bool is_f64 = update->dtype == SHOAL_F64;
    const struct kernel_rates *rates = &update->rates;
    if (rule == KERNEL_SGD) {
        (is_f64 ? sgd_F64 : sgd_F32)(rates, count, gradient, data);
        return;
    }
    size_t offset = first * (is_f64 ? sizeof(double) : sizeof(float));
    (is_f64 ? adamw_F64 : adamw_F32)(rates, count, gradient, data,
                                     (char *)address_pointer(update->moments[0]) + offset,
                                     (char *)address_pointer(update->moments[1]) + offset);
}

static FP_MODE_APART void run_update(enum kernel_rule rule, const struct kernel_update *update)
{
    double gradients[PIECE];
    double values[PIECE];
    const shoal_dtype real = update->dtype == SHOAL_F64 ? SHOAL_F64 : SHOAL_F32;
    char *data = address_pointer(update->data);
    const char *gradient = address_pointer(update->gradient);
    if (update->dtype == real && update->gradient_dtype == real) {
        run(rule, update, 0, update->count, gradient, data);
        return;
    }
    for (size_t first = 0; first < update->count; first += PIECE) {
        size_t count = update->count - first < PIECE ? update->count - first : PIECE;
        char *place = data + first * dtype_bytes(update->dtype);
        kernel_cast(real, gradients, update->gradient_dtype,
                    gradient + first * dtype_bytes(update->gradient_dtype), count);
        kernel_cast(real, values, update->dtype, place, count);
        run(rule, update, first, count, gradients, values);
        kernel_cast(update->dtype, place, real, values, count);
    }
}

static shoal_status check_dtype(const char *what, shoal_dtype dtype)
{
    return dtype_kind(dtype) == DTYPE_KIND_FLOAT
               ? SHOAL_OK
               : error_set(SHOAL_ERR_UNSUPPORTED, "%s of %s, not of f64, f32, f16, bf16", what,
                           shoal_dtype_name(dtype));
}

shoal_status kernel_update(enum kernel_rule rule, const struct kernel_update *updates, size_t n_updates)
{
    for (size_t i = 0; i < n_updates; i++) {
        TRY(check_dtype("a parameter", updates[i].dtype));
        TRY(check_dtype("a gradient", updates[i].gradient_dtype));
    }
    uint64_t mode = fp_mode_enter();
    for (size_t i = 0; i < n_updates; i++) {
        run_update(rule, &updates[i]);
    }
    fp_mode_leave(mode);
    return SHOAL_OK;
}
