/* SPDX-License-Identifier: MIT */
/*
 * The exact sum of squares. A float is m * 2^e with an integer m, so that its square is the integer m * m at
 * bit 2e: the sum is one long integer, and integers add in any order to the same bits.
 *
 *   bins[d], d < DIGITS   digit d counts 2^(32 d - 2148); normalised, it is below 2^32
 *   bins[INFINITIES]      how many infinities came by
 *   bins[NANS]            how many NaNs came by
 *
 * The smallest square of an f64 is 2^-2148, which is bit 0; the largest ends below bit 4196. The digits reach
 * bit 4544, so that no sum can leave them. Every call here leaves the digits normalised.
 */
#include "kernel/kernel.h"

#include <math.h>
#include <string.h>

#include "base/error.h"
#include "kernel/element.h"

enum {
    DIGIT_BITS = 32,
    DIGITS = KERNEL_SQUARES_BINS - 2,
    INFINITIES = DIGITS,
    NANS,
    UNIT_BIT = 2148, /* that of 1; bit 0 counts 2^-2148 */
};

_Static_assert(DIGITS *DIGIT_BITS >= 2048 + UNIT_BIT + 64, "2^64 of the largest squares fit");

#define DIGIT_MASK 0xffffffffull

void kernel_squares_init(struct kernel_squares *squares)
{
    memset(squares, 0, sizeof(*squares));
}

void kernel_squares_normalise(struct kernel_squares *squares)
{
    uint64_t carry = 0;
    for (int i = 0; i < DIGITS; i++) {
        /* Bins that many ranks added may be full: the carry goes in after the split. */
        uint64_t low = (squares->bins[i] & DIGIT_MASK) + (carry & DIGIT_MASK);
        carry = (squares->bins[i] >> DIGIT_BITS) + (carry >> DIGIT_BITS) + (low >> DIGIT_BITS);
        squares->bins[i] = low & DIGIT_MASK;
    }
}

void kernel_squares_merge(struct kernel_squares *into, const struct kernel_squares *from)
{
    for (int i = 0; i < KERNEL_SQUARES_BINS; i++) {
        into->bins[i] += from->bins[i];
    }
    kernel_squares_normalise(into);
}

/* Adds value * 2^bit, less than 2^32 to any digit. */
static inline void add_at_bit(uint64_t *bins, unsigned bit, uint64_t value)
{
    uint64_t *digits = bins + bit / DIGIT_BITS;
    unsigned shift = bit % DIGIT_BITS;
    uint64_t low = (value & DIGIT_MASK) << shift;
    uint64_t high = (value >> DIGIT_BITS) << shift;
    digits[0] += low & DIGIT_MASK;
    digits[1] += (low >> DIGIT_BITS) + (high & DIGIT_MASK);
    digits[2] += high >> DIGIT_BITS;
}

/* f32 -------------------------------------------------------------------------------------------------- */

enum {
    F32_EXPONENTS = 256,
    F32_LANES = 4,               /* tables in turn: neighbours often have one exponent, and would wait */
    F32_BLOCK = F32_LANES << 16, /* a square is below 2^48, so that 2^16 fit into a sum per exponent */
    F32_FEW = 128,               /* fewer elements do not pay a table */
};

static inline unsigned f32_exponent(uint32_t bits)
{
    return (bits >> 23) & 0xff;
}

/* Without the bit of normal numbers an exponent of 0 is the same scale as an exponent of 1. */
static inline uint64_t f32_square(uint32_t bits)
{
    uint64_t mantissa = (bits & 0x7fffff) | (uint32_t)(f32_exponent(bits) != 0) << 23;
    return mantissa * mantissa;
}

static inline unsigned f32_bit(unsigned exponent)
{
    unsigned scale = exponent == 0 ? 1 : exponent;
    return 2 * scale - 2 * 150 + UNIT_BIT;
}

static void count_f32_specials(struct kernel_squares *squares, const element_F32 *src, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = half_f32_bits(src[i]);
        if (f32_exponent(bits) == 255) {
            squares->bins[(bits & 0x7fffff) == 0 ? INFINITIES : NANS]++;
        }
    }
}

static void add_few_f32(struct kernel_squares *squares, const element_F32 *src, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = half_f32_bits(src[i]);
        unsigned exponent = f32_exponent(bits);
        if (exponent < 255) {
            add_at_bit(squares->bins, f32_bit(exponent), f32_square(bits));
        }
    }
    count_f32_specials(squares, src, count);
}

static void add_f32_block(struct kernel_squares *squares, const element_F32 *src, size_t count)
{
    uint64_t sums[F32_LANES][F32_EXPONENTS];
    memset(sums, 0, sizeof(sums));
    size_t i = 0;
    for (; i + F32_LANES <= count; i += F32_LANES) {
        for (size_t lane = 0; lane < F32_LANES; lane++) {
            uint32_t bits = half_f32_bits(src[i + lane]);
            sums[lane][f32_exponent(bits)] += f32_square(bits);
        }
    }
    for (; i < count; i++) {
        uint32_t bits = half_f32_bits(src[i]);
        sums[0][f32_exponent(bits)] += f32_square(bits);
    }
    bool has_specials = false;
    for (size_t lane = 0; lane < F32_LANES; lane++) {
        for (unsigned exponent = 0; exponent < 255; exponent++) {
            add_at_bit(squares->bins, f32_bit(exponent), sums[lane][exponent]);
        }
        has_specials = has_specials || sums[lane][255] != 0;
    }
    if (has_specials) {
        count_f32_specials(squares, src, count);
    }
}

static void add_f32(struct kernel_squares *squares, const void *src, size_t count)
{
    const element_F32 *from = src;
    while (count > 0) {
        size_t part = count < F32_BLOCK ? count : F32_BLOCK;
        if (part < F32_FEW) {
            add_few_f32(squares, from, part);
        } else {
            add_f32_block(squares, from, part);
        }
        kernel_squares_normalise(squares);
        from += part;
        count -= part;
    }
}

/* f16 and bf16 ----------------------------------------------------------------------------------------- */

/* Widening is exact. */
static void add_halves(struct kernel_squares *squares, shoal_dtype dtype, const void *src, size_t count)
{
    float block[4096];
    const char *from = src;
    while (count > 0) {
        size_t part = count < 4096 ? count : 4096;
        kernel_cast(SHOAL_F32, block, dtype, from, part);
        add_f32(squares, block, part);
        from += part * sizeof(uint16_t);
        count -= part;
    }
}

static void add_f16(struct kernel_squares *squares, const void *src, size_t count)
{
    add_halves(squares, SHOAL_F16, src, count);
}

static void add_bf16(struct kernel_squares *squares, const void *src, size_t count)
{
    add_halves(squares, SHOAL_BF16, src, count);
}

/* f64 -------------------------------------------------------------------------------------------------- */

static inline void add_f64_element(struct kernel_squares *squares, double value)
{
    uint64_t bits = half_f64_bits(value);
    unsigned exponent = (bits >> 52) & 0x7ff;
    uint64_t fraction = bits & 0xfffffffffffff;
    if (exponent == 0x7ff) {
        squares->bins[fraction == 0 ? INFINITIES : NANS]++;
        return;
    }
    uint64_t mantissa = fraction | (uint64_t)(exponent != 0) << 52;
    unsigned scale = exponent == 0 ? 1 : exponent;
    unsigned __int128 square = (unsigned __int128)mantissa * mantissa;
    unsigned bit = 2 * scale - 2 * 1075 + UNIT_BIT;
    add_at_bit(squares->bins, bit, (uint64_t)square);
    add_at_bit(squares->bins, bit + 64, (uint64_t)(square >> 64));
}

static void add_f64(struct kernel_squares *squares, const void *src, size_t count)
{
    /* An element adds less than 2^34 to a digit. */
    const size_t block = (size_t)1 << 28;
    const element_F64 *from = src;
    while (count > 0) {
        size_t part = count < block ? count : block;
        for (size_t i = 0; i < part; i++) {
            add_f64_element(squares, from[i]);
        }
        kernel_squares_normalise(squares);
        from += part;
        count -= part;
    }
}

/* The calls -------------------------------------------------------------------------------------------- */

static const struct squares_row {
    void (*add)(struct kernel_squares *squares, const void *src, size_t count);
    size_t n_components;
} squares_rows[DTYPE_COUNT] = {
    [SHOAL_F64] = {.add = add_f64, .n_components = 1}, [SHOAL_F32] = {.add = add_f32, .n_components = 1},
    [SHOAL_F16] = {.add = add_f16, .n_components = 1}, [SHOAL_BF16] = {.add = add_bf16, .n_components = 1},
    [SHOAL_C64] = {.add = add_f32, .n_components = 2}, [SHOAL_C128] = {.add = add_f64, .n_components = 2},
};

shoal_status kernel_squares_add(struct kernel_squares *squares, shoal_dtype dtype, const void *src,
                                size_t count)
{
    const struct squares_row *row = &squares_rows[dtype];
    if (!row->add) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "the sum of squares is not offered for %s",
                         shoal_dtype_name(dtype));
    }
    row->add(squares, src, count * row->n_components);
    return SHOAL_OK;
}

/* Rounding --------------------------------------------------------------------------------------------- */

/* 64 bits from `bit` on, of normalised digits. */
static uint64_t read_bits(const struct kernel_squares *squares, int bit)
{
    uint64_t value = 0;
    for (int i = 2; i >= 0; i--) {
        int digit = bit / DIGIT_BITS + i;
        int shift = i * DIGIT_BITS - bit % DIGIT_BITS;
        uint64_t bin = digit < DIGITS ? squares->bins[digit] : 0;
        if (shift < 64) {
            value |= shift >= 0 ? bin << shift : bin >> -shift;
        }
    }
    return value;
}

/* True when a bit below `bit` is set. */
static bool has_bits_below(const struct kernel_squares *squares, int bit)
{
    int digit = bit / DIGIT_BITS;
    for (int i = 0; i < digit; i++) {
        if (squares->bins[i] != 0) {
            return true;
        }
    }
    return (squares->bins[digit] & ((1ull << bit % DIGIT_BITS) - 1)) != 0;
}

/* The highest bit that is set, -1 for zero. */
static int find_top_bit(const struct kernel_squares *squares)
{
    for (int i = DIGITS - 1; i >= 0; i--) {
        if (squares->bins[i] != 0) {
            return i * DIGIT_BITS + 63 - __builtin_clzll(squares->bins[i]);
        }
    }
    return -1;
}

double kernel_squares_round(const struct kernel_squares *squares)
{
    struct kernel_squares digits = *squares;
    kernel_squares_normalise(&digits);
    if (digits.bins[NANS] != 0) {
        return (double)NAN;
    }
    if (digits.bins[INFINITIES] != 0) {
        return (double)INFINITY;
    }
    /* The last bit that the result keeps: 53 bits, or down to the smallest subnormal, 2^-1074. */
    const int lowest = UNIT_BIT - 1074;
    int top = find_top_bit(&digits);
    int last = top - 52 > lowest ? top - 52 : lowest;
    uint64_t kept = read_bits(&digits, last) & ((1ull << 53) - 1);
    bool is_half = (read_bits(&digits, last - 1) & 1) != 0;
    bool is_up = is_half && ((kept & 1) != 0 || has_bits_below(&digits, last - 1));
    /* The leading bit of `kept` and a carry out of it both count up the exponent. */
    uint64_t bits = kept + is_up + ((uint64_t)(last - lowest) << 52);
    const uint64_t infinity = 0x7ffull << 52;
    return last - lowest >= 2047 || bits > infinity ? (double)INFINITY : half_f64_from_bits(bits);
}
