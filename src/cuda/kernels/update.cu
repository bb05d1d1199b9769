/* SPDX-License-Identifier: MIT */
/*
 * Updates of parameters, all in one launch: a block has a tile of one of them. What is computed, and in which order,
 * is said at enum kernel_rule; parameters and gradients of 16 bits are widened to f32, and parameters are rounded
 * once.
 */
#include "cuda/kernels/update.h"

#include "cuda/kernels/floats.h"
#include "cuda/kernels/numbers.h"

CUDA_SHARED_CODE_BEGIN
#include "kernel/kernel.h"
CUDA_SHARED_CODE_END

/* The table ---------------------------------------------------------------------------------------------- */

/* A word of 8 bytes. By value, as pointers to either place would bring the arguments into slow local memory. */
DEVICE_FUNCTION uint64_t table_word(const struct update_arguments *a, uint32_t at)
{
    if (a->staged == 0) {
        return a->table[at / 8];
    }
    struct vector word = vector_get(a->staged + at, 8);
    return word.x | (uint64_t)word.y << 32;
}

#define ITEM_WORD(item, member)                                   \
    table_word(a, (item) * (uint32_t)sizeof(struct update_item) + \
                      (uint32_t)offsetof(struct update_item, member))

#define RATE(name) half_f64_from_bits(table_word(a, rates_at + (uint32_t)offsetof(struct update_rates, name)))

DEVICE_FUNCTION uint32_t find_item(const struct update_arguments *a, uint32_t tile)
{
    uint32_t low = 0;
    uint32_t high = a->n_items;
    NOT_UNROLLED
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if ((uint32_t)ITEM_WORD(middle, first_tile) <= tile) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* What a thread updates: elements first .. first + n of an item. */
struct part {
    uint64_t data;
    uint64_t gradient;
    uint64_t first_moment;
    uint64_t second_moment;
    uint64_t first;
    uint32_t n;
    uint32_t dtype;
    uint32_t gradient_dtype;
    uint32_t rates_at;
    bool is_in_vectors;
    bool is_aligned;
};

DEVICE_FUNCTION struct part find_part(const struct update_arguments *a, const struct cuda_thread *self)
{
    const uint32_t item = find_item(a, self->block);
    const uint64_t numbers = ITEM_WORD(item, first_tile);
    const uint64_t flags = ITEM_WORD(item, is_in_vectors);
    const uint64_t count = ITEM_WORD(item, count);
    struct part part;
    part.data = ITEM_WORD(item, data);
    part.gradient = ITEM_WORD(item, gradient);
    part.first_moment = ITEM_WORD(item, moments[0]);
    part.second_moment = ITEM_WORD(item, moments[1]);
    part.first = (uint64_t)(self->block - (uint32_t)numbers) * UPDATE_TILE + self->thread * UPDATE_EACH;
    part.n = part.first >= count                 ? 0
             : count - part.first >= UPDATE_EACH ? UPDATE_EACH
                                                 : (uint32_t)(count - part.first);
    part.rates_at = a->rates_at + (uint32_t)(numbers >> 32 & 0xffff) * (uint32_t)sizeof(struct update_rates);
    part.dtype = (uint32_t)(numbers >> 48) & 0xff;
    part.gradient_dtype = (uint32_t)(numbers >> 56);
    part.is_in_vectors = (uint32_t)flags != 0;
    part.is_aligned = flags >> 32 != 0;
    return part;
}

/* Arithmetic --------------------------------------------------------------------------------------------- */

#define UPDATE_ELEMENT(name, ctype)                                                             \
    struct rates_##name {                                                                       \
        ctype lr;                                                                               \
        ctype decay;                                                                            \
        ctype beta1;                                                                            \
        ctype one_minus_beta1;                                                                  \
        ctype beta2;                                                                            \
        ctype one_minus_beta2;                                                                  \
        ctype step;                                                                             \
        ctype root;                                                                             \
        ctype eps;                                                                              \
    };                                                                                          \
    struct state_##name {                                                                       \
        ctype p;                                                                                \
        ctype g;                                                                                \
        ctype m;                                                                                \
        ctype v;                                                                                \
    };                                                                                          \
                                                                                                \
    DEVICE_FUNCTION struct rates_##name read_rates_##name(const struct update_arguments *a,     \
                                                          uint32_t rates_at)                    \
    {                                                                                           \
        struct rates_##name rates;                                                              \
        rates.lr = (ctype)RATE(lr);                                                             \
        rates.decay = (ctype)RATE(decay);                                                       \
        rates.beta1 = (ctype)RATE(beta1);                                                       \
        rates.one_minus_beta1 = (ctype)RATE(one_minus_beta1);                                   \
        rates.beta2 = (ctype)RATE(beta2);                                                       \
        rates.one_minus_beta2 = (ctype)RATE(one_minus_beta2);                                   \
        rates.step = (ctype)RATE(step);                                                         \
        rates.root = (ctype)RATE(root);                                                         \
        rates.eps = (ctype)RATE(eps);                                                           \
        return rates;                                                                           \
    }                                                                                           \
                                                                                                \
    DEVICE_FUNCTION struct state_##name update_##name(uint32_t rule, struct rates_##name rates, \
                                                      struct state_##name s)                    \
    {                                                                                           \
        if (rule == KERNEL_SGD) {                                                               \
            s.p = s.p - rates.lr * s.g;                                                         \
            return s;                                                                           \
        }                                                                                       \
        ctype decayed = s.p - rates.decay * s.p;                                                \
        s.m = rates.beta1 * s.m + rates.one_minus_beta1 * s.g;                                  \
        s.v = rates.beta2 * s.v + rates.one_minus_beta2 * (s.g * s.g);                          \
        s.p = decayed - rates.step * s.m / (device_sqrt_##name(s.v) / rates.root + rates.eps);  \
        return s;                                                                               \
    }
UPDATE_ELEMENT(f32, float)
UPDATE_ELEMENT(f64, double)

/* Element by element ------------------------------------------------------------------------------------- */

DEVICE_FUNCTION uint32_t bytes_of(uint32_t dtype)
{
    return dtype == SHOAL_F64 ? 8 : dtype == SHOAL_F32 ? 4 : 2;
}

DEVICE_FUNCTION double load_f64(struct part part, uint64_t address, uint32_t dtype)
{
    struct number_bits bits = number_load(address, bytes_of(dtype), part.is_aligned);
    return dtype == SHOAL_F64 ? number_value_F64(bits) : (double)number_widen(dtype, bits);
}

DEVICE_FUNCTION void update_elements_f64(const struct update_arguments *a, struct part part)
{
    struct rates_f64 rates = read_rates_f64(a, part.rates_at);
    NOT_UNROLLED
    for (uint64_t i = part.first; i < part.first + part.n; i++) {
        struct state_f64 state = {0.0, 0.0, 0.0, 0.0};
        const uint64_t at = i * sizeof(double);
        state.p = load_f64(part, part.data + at, SHOAL_F64);
        state.g = load_f64(part, part.gradient + i * bytes_of(part.gradient_dtype), part.gradient_dtype);
        if (a->rule == KERNEL_ADAMW) {
            state.m = load_f64(part, part.first_moment + at, SHOAL_F64);
            state.v = load_f64(part, part.second_moment + at, SHOAL_F64);
        }
        state = update_f64(a->rule, rates, state);
        number_store(part.data + at, number_bits_F64(state.p), sizeof(double), part.is_aligned);
        if (a->rule == KERNEL_ADAMW) {
            number_store(part.first_moment + at, number_bits_F64(state.m), sizeof(double), part.is_aligned);
            number_store(part.second_moment + at, number_bits_F64(state.v), sizeof(double), part.is_aligned);
        }
    }
}

DEVICE_FUNCTION void update_elements_f32(const struct update_arguments *a, struct part part)
{
    struct rates_f32 rates = read_rates_f32(a, part.rates_at);
    NOT_UNROLLED
    for (uint64_t i = part.first; i < part.first + part.n; i++) {
        struct state_f32 state = {0.0f, 0.0f, 0.0f, 0.0f};
        const uint64_t place = part.data + i * bytes_of(part.dtype);
        const uint64_t at = i * sizeof(float);
        /* A gradient of f64 is rounded; widening the others to f64 and back changes nothing. */
        state.g =
            (float)load_f64(part, part.gradient + i * bytes_of(part.gradient_dtype), part.gradient_dtype);
        state.p = number_widen(part.dtype, number_load(place, bytes_of(part.dtype), part.is_aligned));
        if (a->rule == KERNEL_ADAMW) {
            state.m = number_value_F32(number_load(part.first_moment + at, sizeof(float), part.is_aligned));
            state.v = number_value_F32(number_load(part.second_moment + at, sizeof(float), part.is_aligned));
        }
        state = update_f32(a->rule, rates, state);
        number_store(place, number_narrow(part.dtype, state.p), bytes_of(part.dtype), part.is_aligned);
        if (a->rule == KERNEL_ADAMW) {
            number_store(part.first_moment + at, number_bits_F32(state.m), sizeof(float), part.is_aligned);
            number_store(part.second_moment + at, number_bits_F32(state.v), sizeof(float), part.is_aligned);
        }
    }
}

/* Four elements together --------------------------------------------------------------------------------- */

DEVICE_FUNCTION struct floats load_four(uint64_t address, uint32_t dtype)
{
    return floats_read(dtype == SHOAL_F32 ? vector_get(address, 16) : vector_get(address, 8), dtype);
}

DEVICE_FUNCTION void store_four(uint64_t address, uint32_t dtype, struct floats values)
{
    if (dtype == SHOAL_F32) {
        vector_put(address, floats_write(values, SHOAL_F32), 16);
    } else {
        vector_put(address, floats_write(values, dtype), 8);
    }
}

#define UPDATE_LANE(lane)                                      \
    do {                                                       \
        struct state_f32 s = {p.lane, g.lane, m.lane, v.lane}; \
        s = update_f32(a->rule, rates, s);                     \
        p.lane = s.p;                                          \
        m.lane = s.m;                                          \
        v.lane = s.v;                                          \
    } while (0)

DEVICE_FUNCTION void update_four(const struct update_arguments *a, struct part part)
{
    const uint64_t place = part.data + part.first * bytes_of(part.dtype);
    const uint64_t at = part.first * sizeof(float);
    struct floats m = {0.0f, 0.0f, 0.0f, 0.0f};
    struct floats v = {0.0f, 0.0f, 0.0f, 0.0f};
    if (a->rule == KERNEL_ADAMW) {
        m = load_four(part.first_moment + at, SHOAL_F32);
        v = load_four(part.second_moment + at, SHOAL_F32);
    }
    struct floats p = load_four(place, part.dtype);
    struct floats g =
        load_four(part.gradient + part.first * bytes_of(part.gradient_dtype), part.gradient_dtype);
    struct rates_f32 rates = read_rates_f32(a, part.rates_at);
    UPDATE_LANE(x);
    UPDATE_LANE(y);
    UPDATE_LANE(z);
    UPDATE_LANE(w);
    store_four(place, part.dtype, p);
    if (a->rule == KERNEL_ADAMW) {
        store_four(part.first_moment + at, SHOAL_F32, m);
        store_four(part.second_moment + at, SHOAL_F32, v);
    }
}

CUDA_KERNEL_BOUNDS(update, struct update_arguments, UPDATE_THREADS, 3)
CUDA_KERNEL(update, struct update_arguments, 1)
{
    (void)PHASE;
    struct part part = find_part(a, self);
    if (part.dtype == SHOAL_F64) {
        update_elements_f64(a, part);
    } else if (part.is_in_vectors && part.n == UPDATE_EACH) {
        update_four(a, part);
    } else {
        update_elements_f32(a, part);
    }
}
