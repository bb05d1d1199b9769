/* SPDX-License-Identifier: MIT */
/*
 * The exact sum of squares. A float is m * 2^e with an integer m, so that its square is the integer m * m at
 * bit 2e: the sum is one long integer, and integers add in any order to the same bits.
 *
 * kernel/squares.h has the digits of that integer. Every call here leaves them normalized.
 *
 * Powers other than squares go in as doubles, each rounded once: their sum is as independent of order.
 */
#include "kernel/kernel.h"

#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/fp_mode.h"
#include "kernel/element.h"
#include "kernel/squares.h"

_Static_assert(SQUARES_DIGITS *SQUARES_DIGIT_BITS >= 2048 + SQUARES_UNIT_BIT + 64,
               "2^64 of the largest squares fit");

void kernel_squares_init(struct kernel_squares *squares)
{
    memset(squares, 0, sizeof(*squares));
}

void kernel_squares_normalise(struct kernel_squares *squares)
{
    squares_carry(squares->bins);
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
    uint64_t *digits = bins + bit / SQUARES_DIGIT_BITS;
    unsigned shift = bit % SQUARES_DIGIT_BITS;
    uint64_t low = (value & SQUARES_DIGIT_MASK) << shift;
    uint64_t high = (value >> SQUARES_DIGIT_BITS) << shift;
    digits[0] += low & SQUARES_DIGIT_MASK;
    digits[1] += (low >> SQUARES_DIGIT_BITS) + (high & SQUARES_DIGIT_MASK);
    digits[2] += high >> SQUARES_DIGIT_BITS;
}

/* f32, f16 and bf16 ------------------------------------------------------------------------------------ */

enum {
    MAX_EXPONENTS = 256,
    TABLE_LANES = 4,                 /* tables in turn: neighbours often share an exponent, and would wait */
    TABLE_BLOCK = TABLE_LANES << 16, /* a square is below 2^48, so that 2^16 fit into a sum per exponent */
    TABLE_FEW = 64                   /* fewer elements do not pay a table */
};

static inline uint32_t load_bits_F32(const void *src, size_t index)
{
    return half_f32_bits(((const element_F32 *)src)[index]);
}

static inline uint32_t load_bits_half(const void *src, size_t index)
{
    return ((const element_F16 *)src)[index];
}

typedef uint32_t load_function(const void *src, size_t index);

static inline void count_specials(struct kernel_squares *squares, struct squares_format format,
                                  load_function *load, const void *src, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = load(src, i);
        if (squares_exponent_of(format, bits) == format.n_exponents - 1) {
            squares->bins[squares_fraction_of(format, bits) == 0 ? SQUARES_INFINITIES : SQUARES_NANS]++;
        }
    }
}

static inline void add_few(struct kernel_squares *squares, struct squares_format format, load_function *load,
                           const void *src, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = load(src, i);
        unsigned exponent = squares_exponent_of(format, bits);
        if (exponent < format.n_exponents - 1) {
            add_at_bit(squares->bins, squares_bit_of(format, exponent), squares_square_of(format, bits));
        }
    }
    count_specials(squares, format, load, src, count);
}

static inline void add_block(struct kernel_squares *squares, struct squares_format format,
                             load_function *load, const void *src, size_t count)
{
    uint64_t sums[TABLE_LANES][MAX_EXPONENTS];
    for (size_t lane = 0; lane < TABLE_LANES; lane++) {
        memset(sums[lane], 0, format.n_exponents * sizeof(sums[lane][0]));
    }
    size_t i = 0;
    for (; i + TABLE_LANES <= count; i += TABLE_LANES) {
        for (size_t lane = 0; lane < TABLE_LANES; lane++) {
            uint32_t bits = load(src, i + lane);
            sums[lane][squares_exponent_of(format, bits)] += squares_square_of(format, bits);
        }
    }
    for (; i < count; i++) {
        uint32_t bits = load(src, i);
        sums[0][squares_exponent_of(format, bits)] += squares_square_of(format, bits);
    }
    for (unsigned exponent = 0; exponent < format.n_exponents - 1; exponent++) {
        for (size_t lane = 0; lane < TABLE_LANES; lane++) {
            if (sums[lane][exponent] != 0) {
                add_at_bit(squares->bins, squares_bit_of(format, exponent), sums[lane][exponent]);
            }
        }
    }
    const unsigned last = format.n_exponents - 1;
    if ((sums[0][last] | sums[1][last] | sums[2][last] | sums[3][last]) != 0) {
        count_specials(squares, format, load, src, count);
    }
}

/* Expanded once per format, with the format and the load known to the compiler. */
#define ADD_SMALL(name, format, load, element)                                            \
    static void add_##name(struct kernel_squares *squares, const void *src, size_t count) \
    {                                                                                     \
        const element *from = src;                                                        \
        while (count > 0) {                                                               \
            size_t part = count < TABLE_BLOCK ? count : TABLE_BLOCK;                      \
            if (part < TABLE_FEW) {                                                       \
                add_few(squares, format, load, from, part);                               \
            } else {                                                                      \
                add_block(squares, format, load, from, part);                             \
            }                                                                             \
            kernel_squares_normalise(squares);                                            \
            from += part;                                                                 \
            count -= part;                                                                \
        }                                                                                 \
    }
ADD_SMALL(f32, SQUARES_F32, load_bits_F32, element_F32)
ADD_SMALL(f16, SQUARES_F16, load_bits_half, element_F16)
ADD_SMALL(bf16, SQUARES_BF16, load_bits_half, element_BF16)

/* f64 -------------------------------------------------------------------------------------------------- */

enum {
    F64_LANES = 4, /* sets of bins in turn, for the same reason */
    F64_FEW = 256,
    F64_BLOCK = 1 << 28 /* an element adds less than 2^32 to a bin */
};

static inline void add_f64_element(struct kernel_squares *squares, double value)
{
    uint64_t bits = half_f64_bits(value);
    unsigned exponent = (bits >> 52) & 0x7ff;
    uint64_t fraction = bits & 0xfffffffffffff;
    if (exponent == 0x7ff) {
        squares->bins[fraction == 0 ? SQUARES_INFINITIES : SQUARES_NANS]++;
        return;
    }
    uint64_t mantissa = fraction | (uint64_t)(exponent != 0) << 52;
    unsigned scale = exponent == 0 ? 1 : exponent;
    unsigned bit = SQUARES_UNIT_BIT + 2 * scale - 2 * 1075;
    unsigned shift = bit % SQUARES_DIGIT_BITS;
    unsigned __int128 square = (unsigned __int128)mantissa * mantissa;
    /* 106 bits and a shift below 32: five digits. */
    unsigned __int128 low = (unsigned __int128)(uint64_t)square << shift;
    unsigned __int128 high = ((square >> 64) << shift) + (low >> 64);
    uint64_t *digits = squares->bins + bit / SQUARES_DIGIT_BITS;
    digits[0] += (uint64_t)low & SQUARES_DIGIT_MASK;
    digits[1] += (uint64_t)low >> SQUARES_DIGIT_BITS;
    digits[2] += (uint64_t)high & SQUARES_DIGIT_MASK;
    digits[3] += (uint64_t)high >> SQUARES_DIGIT_BITS;
    digits[4] += (uint64_t)(high >> 64);
}

static void add_f64_block(struct kernel_squares *squares, const element_F64 *src, size_t count)
{
    struct kernel_squares lanes[F64_LANES];
    memset(lanes, 0, sizeof(lanes));
    size_t i = 0;
    for (; i + F64_LANES <= count; i += F64_LANES) {
        for (size_t lane = 0; lane < F64_LANES; lane++) {
            add_f64_element(&lanes[lane], src[i + lane]);
        }
    }
    for (; i < count; i++) {
        add_f64_element(&lanes[0], src[i]);
    }
    for (size_t lane = 0; lane < F64_LANES; lane++) {
        kernel_squares_merge(squares, &lanes[lane]);
    }
}

static void add_f64(struct kernel_squares *squares, const void *src, size_t count)
{
    const element_F64 *from = src;
    while (count > 0) {
        size_t part = count < F64_BLOCK ? count : F64_BLOCK;
        if (part >= F64_FEW) {
            add_f64_block(squares, from, part);
        }
        for (size_t i = 0; i < part && part < F64_FEW; i++) {
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
        return error_set(SHOAL_ERR_UNSUPPORTED, "the sum of squares is not supported for %s",
                         shoal_dtype_name(dtype));
    }
    row->add(squares, src, count * row->n_components);
    return SHOAL_OK;
}

/* Powers ----------------------------------------------------------------------------------------------- */

/* Elements that are converted at a time. */
#define POWERS_PIECE 512

/* A double of either sign counts as its absolute value. */
static inline void add_double(struct kernel_squares *squares, double value)
{
    uint64_t bits = half_f64_bits(value);
    unsigned exponent = (bits >> 52) & 0x7ff;
    uint64_t fraction = bits & 0xfffffffffffff;
    if (exponent == 0x7ff) {
        squares->bins[fraction == 0 ? SQUARES_INFINITIES : SQUARES_NANS]++;
        return;
    }
    unsigned scale = exponent == 0 ? 1 : exponent;
    add_at_bit(squares->bins, SQUARES_UNIT_BIT + scale - 1075, fraction | (uint64_t)(exponent != 0) << 52);
}

static FP_MODE_APART void add_powers(struct kernel_squares *squares, shoal_dtype dtype, const void *src,
                                     size_t count, double power)
{
    double piece[POWERS_PIECE];
    for (size_t done = 0; done < count; done += POWERS_PIECE) {
        size_t n = count - done < POWERS_PIECE ? count - done : POWERS_PIECE;
        kernel_cast(SHOAL_F64, piece, dtype, (const char *)src + done * dtype_bytes(dtype), n);
        for (size_t i = 0; i < n; i++) {
            add_double(squares, power == 1.0 ? piece[i] : pow(fabs(piece[i]), power));
        }
        kernel_squares_normalise(squares);
    }
}

shoal_status kernel_powers_add(struct kernel_squares *squares, shoal_dtype dtype, const void *src,
                               size_t count, double power)
{
    if (dtype_kind(dtype) != DTYPE_KIND_FLOAT) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "the sum of powers is not supported for %s",
                         shoal_dtype_name(dtype));
    }
    uint64_t mode = fp_mode_enter();
    add_powers(squares, dtype, src, count, power);
    fp_mode_leave(mode);
    return SHOAL_OK;
}

/* Rounding --------------------------------------------------------------------------------------------- */

/* 64 bits from `bit` on, of normalized digits. */
static uint64_t read_bits(const struct kernel_squares *squares, int bit)
{
    uint64_t value = 0;
    for (int i = 2; i >= 0; i--) {
        int digit = bit / SQUARES_DIGIT_BITS + i;
        int shift = i * SQUARES_DIGIT_BITS - bit % SQUARES_DIGIT_BITS;
        uint64_t bin = digit < SQUARES_DIGITS ? squares->bins[digit] : 0;
        if (shift < 64) {
            value |= shift >= 0 ? bin << shift : bin >> -shift;
        }
    }
    return value;
}

/* True when a bit below `bit` is set. */
static bool has_bits_below(const struct kernel_squares *squares, int bit)
{
    int digit = bit / SQUARES_DIGIT_BITS;
    for (int i = 0; i < digit; i++) {
        if (squares->bins[i] != 0) {
            return true;
        }
    }
    return (squares->bins[digit] & ((1ull << bit % SQUARES_DIGIT_BITS) - 1)) != 0;
}

/* The highest bit that is set, -1 for zero. */
static int find_top_bit(const struct kernel_squares *squares)
{
    for (int i = SQUARES_DIGITS - 1; i >= 0; i--) {
        if (squares->bins[i] != 0) {
            return i * SQUARES_DIGIT_BITS + 63 - __builtin_clzll(squares->bins[i]);
        }
    }
    return -1;
}

double kernel_squares_round(const struct kernel_squares *squares)
{
    struct kernel_squares digits = *squares;
    kernel_squares_normalise(&digits);
    if (digits.bins[SQUARES_NANS] != 0) {
        return (double)NAN;
    }
    if (digits.bins[SQUARES_INFINITIES] != 0) {
        return (double)INFINITY;
    }
    /* The last bit that the result keeps: 53 bits, or down to the smallest subnormal, 2^-1074. */
    const int lowest = SQUARES_UNIT_BIT - 1074;
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
