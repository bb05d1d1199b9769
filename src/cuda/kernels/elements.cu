/* SPDX-License-Identifier: MIT */
/*
 * Arithmetic element by element: elements_any takes all dtypes and strides, elements_dense contiguous floats. A thread
 * reads its elements before it writes them, so that dst may coincide with an operand.
 */
#include "cuda/kernels/elements.h"

#include "cuda/kernels/numbers.h"

CUDA_SHARED_CODE_BEGIN
#include "kernel/arithmetic.h"
#include "kernel/kernel.h"
CUDA_SHARED_CODE_END

/* Any dtype ---------------------------------------------------------------------------------------------- */

#define CASE(NAME, OP, expression) \
    case (OP):                     \
        return number_bits_##NAME(element_store_##NAME(expression));
#define ELEMENTS_FLOAT(NAME)                                                                    \
    case SHOAL_##NAME: {                                                                        \
        compute_##NAME x = element_load_##NAME(number_value_##NAME(a));                         \
        compute_##NAME y =                                                                      \
            is_number ? number_compute_##NAME(b) : element_load_##NAME(number_value_##NAME(b)); \
        switch (op) {                                                                           \
            CASE(NAME, KERNEL_ADD, add_value_##NAME(x, y))                                      \
            CASE(NAME, KERNEL_SUB, sub_value_##NAME(x, y))                                      \
            CASE(NAME, KERNEL_MUL, mul_value_##NAME(x, y))                                      \
            CASE(NAME, KERNEL_DIV, div_value_##NAME(x, y))                                      \
            CASE(NAME, ELEMENTS_NEGATE, negate_value_##NAME(x))                                 \
        default:                                                                                \
            return a;                                                                           \
        }                                                                                       \
    }
#define ELEMENTS_UNSIGNED ELEMENTS_FLOAT
#define ELEMENTS_COMPLEX ELEMENTS_FLOAT
/* The host gives the unsigned dtype of that size, except in quotients. */
#define ELEMENTS_SIGNED(NAME) \
    case SHOAL_##NAME:        \
        return number_bits_##NAME(div_value_##NAME(number_value_##NAME(a), number_value_##NAME(b)));
#define ELEMENTS_BOOLEAN(NAME)                                                                         \
    case SHOAL_##NAME: {                                                                               \
        compute_##NAME x = element_load_##NAME(number_value_##NAME(a));                                \
        compute_##NAME y = element_load_##NAME(number_value_##NAME(b));                                \
        return number_bits_##NAME(op == KERNEL_ADD ? add_value_##NAME(x, y) : mul_value_##NAME(x, y)); \
    }
#define ELEMENTS_FLOAT8(NAME)

DEVICE_FUNCTION struct number_bits apply(uint32_t op, uint32_t dtype, struct number_bits a,
                                         struct number_bits b, bool is_number)
{
    switch (dtype) {
#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits) ELEMENTS_##kind(NAME)
#include "tensor/dtypes.def"
#undef DTYPE
    default:
        return a;
    }
}

/* Where an element of the operands lies. */
struct place {
    uint64_t dst;
    uint64_t a;
    uint64_t b;
};

DEVICE_FUNCTION struct place find_place(const struct elements_arguments *a, uint32_t index)
{
    struct place place = {a->dst, a->a, a->b};
    uint32_t rest = index;
    NOT_UNROLLED
    for (int i = a->n_dims - 1; i >= 0; i--) {
        /* All that is left belongs to the first dimension. */
        uint32_t outer = i == 0 ? 0 : vector_divide(rest, a->dims[i].magic, a->dims[i].shift);
        int64_t at = (int64_t)(rest - outer * a->dims[i].size);
        place.dst += (uint64_t)(at * a->dims[i].strides[0]);
        place.a += (uint64_t)(at * a->dims[i].strides[1]);
        place.b += (uint64_t)(at * a->dims[i].strides[2]);
        rest = outer;
    }
    return place;
}

CUDA_KERNEL_BOUNDS(elements_any, struct elements_arguments, ELEMENTS_THREADS, 4)
CUDA_KERNEL(elements_any, struct elements_arguments, 1)
{
    (void)PHASE;
    uint32_t index = self->block * (ELEMENTS_THREADS * ELEMENTS_EACH) + self->thread;
    const bool is_aligned = a->is_aligned != 0;
    const bool is_number = a->second == ELEMENTS_NUMBER;
    NOT_UNROLLED
    for (int i = 0; i < ELEMENTS_EACH && index < a->count; i++) {
        struct place place = find_place(a, index);
        struct number_bits second = {{a->number[0], a->number[1], a->number[2], a->number[3]}};
        struct number_bits first = number_load(place.a, a->bytes, is_aligned);
        if (a->second == ELEMENTS_ARRAY) {
            second = number_load(place.b, a->bytes, is_aligned);
        }
        number_store(place.dst, apply(a->op, a->dtype, first, second, is_number), a->bytes, is_aligned);
        index += ELEMENTS_THREADS;
    }
}

/* Contiguous floats -------------------------------------------------------------------------------------- */

#define LANES_LOOP(n_lanes, value)      \
    UNROLLED                            \
    for (int i = 0; i < n_lanes; i++) { \
        x[i] = (value);                 \
    }                                   \
    break

/* x = x op y. */
#define APPLY_LANES(NAME, ctype, n_lanes)                                    \
    DEVICE_FUNCTION void apply_##NAME(uint32_t op, ctype *x, const ctype *y) \
    {                                                                        \
        switch (op) {                                                        \
        case KERNEL_ADD:                                                     \
            LANES_LOOP(n_lanes, add_value_##NAME(x[i], y[i]));               \
        case KERNEL_SUB:                                                     \
            LANES_LOOP(n_lanes, sub_value_##NAME(x[i], y[i]));               \
        case KERNEL_MUL:                                                     \
            LANES_LOOP(n_lanes, mul_value_##NAME(x[i], y[i]));               \
        case KERNEL_DIV:                                                     \
            LANES_LOOP(n_lanes, div_value_##NAME(x[i], y[i]));               \
        default:                                                             \
            LANES_LOOP(n_lanes, negate_value_##NAME(x[i]));                  \
        }                                                                    \
    }
APPLY_LANES(F32, float, 4)
APPLY_LANES(F64, double, 2)

/* The second operand if it is one number. */
DEVICE_FUNCTION struct number_bits load_single(const struct elements_arguments *a)
{
    struct number_bits bits = {{a->number[0], a->number[1], 0, 0}};
    if (a->second == ELEMENTS_SINGLE) {
        bits = number_load(a->b, a->bytes, true);
        if (a->dtype != SHOAL_F64) {
            bits.words[0] = half_f32_bits(number_widen(a->dtype, bits));
        }
    }
    return bits;
}

DEVICE_FUNCTION void apply_vector_f64(const struct elements_arguments *a, uint32_t *first,
                                      const uint32_t *second)
{
    double x[2];
    double y[2];
    struct number_bits single = load_single(a);
    const bool is_array = a->second == ELEMENTS_ARRAY;
    UNROLLED
    for (int i = 0; i < 2; i++) {
        x[i] = lanes_f64(first + 2 * i);
        y[i] = is_array ? lanes_f64(second + 2 * i) : lanes_f64(single.words);
    }
    apply_F64(a->op, x, y);
    lanes_set_f64(first, x[0]);
    lanes_set_f64(first + 2, x[1]);
}

DEVICE_FUNCTION void apply_vector(const struct elements_arguments *a, uint32_t *first, const uint32_t *second)
{
    float x[LANES_MOST] = {0};
    float y[LANES_MOST] = {0};
    if (a->dtype == SHOAL_F64) {
        apply_vector_f64(a, first, second);
        return;
    }
    lanes_widen(a->dtype, first, x);
    if (a->second == ELEMENTS_ARRAY) {
        lanes_widen(a->dtype, second, y);
    } else {
        float single = half_f32_from_bits(load_single(a).words[0]);
        UNROLLED
        for (int i = 0; i < LANES_MOST; i++) {
            y[i] = single;
        }
    }
    apply_F32(a->op, x, y);
    if (a->dtype != SHOAL_F32) {
        apply_F32(a->op, x + 4, y + 4);
    }
    lanes_narrow(a->dtype, x, first);
}

/* The first and the last vector are not full: their elements one by one. */
DEVICE_FUNCTION void apply_edge(const struct elements_arguments *a, int64_t begin, int64_t end)
{
    const int64_t from = begin < 0 ? 0 : begin;
    const int64_t to = end < a->count ? end : a->count;
    struct number_bits second = {{a->number[0], a->number[1], 0, 0}};
    NOT_UNROLLED
    for (int64_t i = from; i < to; i++) {
        uint64_t offset = (uint64_t)i * a->bytes;
        struct number_bits first = number_load(a->a + offset, a->bytes, true);
        if (a->second != ELEMENTS_NUMBER) {
            second = number_load(a->second == ELEMENTS_SINGLE ? a->b : a->b + offset, a->bytes, true);
        }
        bool is_number = a->second == ELEMENTS_NUMBER;
        number_store(a->dst + offset, apply(a->op, a->dtype, first, second, is_number), a->bytes, true);
    }
}

/* A thread has one vector: of two operands and all threads that is enough to keep the memory busy. */
CUDA_KERNEL_BOUNDS(elements_dense, struct elements_arguments, ELEMENTS_THREADS, 4)
CUDA_KERNEL(elements_dense, struct elements_arguments, 1)
{
    (void)PHASE;
    const int64_t n_lanes = vector_lanes(a->bytes);
    const int64_t begin = (int64_t)(self->block * ELEMENTS_THREADS + self->thread) * n_lanes - a->shift;
    if (begin < 0 || begin + n_lanes > a->count) {
        apply_edge(a, begin, begin + n_lanes);
        return;
    }
    uint32_t first[VECTOR_WORDS];
    uint32_t second[VECTOR_WORDS] = {0, 0, 0, 0};
    const uint64_t offset = (uint64_t)begin * a->bytes;
    vector_load(first, a->a + offset, VECTOR_BYTES);
    if (a->second == ELEMENTS_ARRAY) {
        vector_load(second, a->b + offset, VECTOR_BYTES);
    }
    apply_vector(a, first, second);
    vector_store(a->dst + offset, first, VECTOR_BYTES);
}

/* Where two are equal ------------------------------------------------------------------------------------ */

DEVICE_FUNCTION bool is_equal(uint32_t dtype, struct number_bits a, struct number_bits b)
{
    switch (dtype) {
#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits)         \
    case SHOAL_##NAME:                                                         \
        return equal_value_##NAME(element_load_##NAME(number_value_##NAME(a)), \
                                  element_load_##NAME(number_value_##NAME(b)));
#include "tensor/dtypes.def"
#undef DTYPE
    default:
        return false;
    }
}

CUDA_KERNEL(elements_where, struct elements_where_arguments, 1)
{
    (void)PHASE;
    const bool is_aligned = a->is_aligned != 0;
    uint32_t index = self->block * (ELEMENTS_THREADS * ELEMENTS_EACH) + self->thread;
    NOT_UNROLLED
    for (int i = 0; i < ELEMENTS_EACH && index < a->count; i++) {
        uint64_t offset = (uint64_t)index * a->bytes;
        struct number_bits chosen = number_load(a->src + offset, a->bytes, is_aligned);
        struct number_bits x = number_load(a->a + offset, a->bytes, is_aligned);
        struct number_bits y = number_load(a->b + offset, a->bytes, is_aligned);
        /* Any true byte is stored as 1. */
        chosen.words[0] = a->dtype == SHOAL_BOOL ? chosen.words[0] != 0 : chosen.words[0];
        if (!is_equal(a->dtype, x, y)) {
            struct number_bits zero = {{0, 0, 0, 0}};
            chosen = zero;
        }
        number_store(a->dst + offset, chosen, a->bytes, is_aligned);
        index += ELEMENTS_THREADS;
    }
}
