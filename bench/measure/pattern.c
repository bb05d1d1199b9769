/* SPDX-License-Identifier: MIT */
/* The values that ranks send, and what must become of them: looked up by small whole numbers, in any dtype. */
#include "measure/measure.h"

#include <stdlib.h>
#include <string.h>

/* Dtypes ----------------------------------------------------------------------------------------------- */

static uint64_t encode_f64(uint32_t value)
{
    double number = value;
    uint64_t bits;
    memcpy(&bits, &number, sizeof(bits));
    return bits;
}

static uint64_t encode_f32(uint32_t value)
{
    float number = (float)value;
    uint32_t bits;
    memcpy(&bits, &number, sizeof(bits));
    return bits;
}

static uint64_t encode_bf16(uint32_t value)
{
    return encode_f32(value) >> 16;
}

/* Whole numbers up to 2048 fit the 10 bits that f32 loses here; the exponent's bias is smaller by 112. */
static uint64_t encode_f16(uint32_t value)
{
    return value == 0 ? 0 : (encode_f32(value) >> 13) - ((uint64_t)112 << 10);
}

static uint64_t encode_int(uint32_t value)
{
    return value;
}

static const struct measure_dtype dtypes[] = {
    {"f64", false, 8, encode_f64, 1u << 24}, {"f32", false, 4, encode_f32, 1u << 24},
    {"f16", false, 2, encode_f16, 1u << 11}, {"bf16", false, 2, encode_bf16, 1u << 8},
    {"i8", true, 1, encode_int, 127},        {"i16", true, 2, encode_int, 1u << 14},
    {"i32", true, 4, encode_int, 1u << 24},  {"i64", true, 8, encode_int, 1u << 24},
    {"u8", true, 1, encode_int, 255},        {"u16", true, 2, encode_int, 1u << 14},
    {"u32", true, 4, encode_int, 1u << 24},  {"u64", true, 8, encode_int, 1u << 24},
};

const struct measure_redop_row measure_redops[MEASURE_N_REDOPS] = {
#define REDOP(name_, is_bitwise_) [MEASURE_REDOP_##name_] = {.name = #name_, .is_bitwise = (is_bitwise_)},
#include "measure/redops.def"
#undef REDOP
};

const struct measure_dtype *measure_dtype_at(size_t index)
{
    return index < sizeof(dtypes) / sizeof(dtypes[0]) ? &dtypes[index] : NULL;
}

const struct measure_dtype *measure_dtype_find(const char *name)
{
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            return &dtypes[i];
        }
    }
    return NULL;
}

/* Values ----------------------------------------------------------------------------------------------- */

/* Neighbours differ, and so do neighbouring blocks of many sizes. */
static inline uint32_t mix(size_t index)
{
    return (uint32_t)(index ^ (index >> 7) ^ (index >> 15) ^ (index >> 22));
}

#define MAX_MASK 255

/* a(j, i) */
static inline uint32_t place_at(size_t index, uint32_t iteration, uint32_t mask)
{
    return (mix(index) + iteration) & mask;
}

/*
 * v(a, r). Sums, minima and maxima are of a + r. For averages, pairs of ranks give a and a + 2, and a last one a + 1: the
 * average is a + 1. For products and bitwise reductions, one rank in turn decides, and the others give what changes
 * nothing.
 */
static uint32_t value_of(const struct measure_pattern *pattern, uint32_t a, int rank)
{
    bool is_turn = (int)(a % (uint32_t)pattern->n_ranks) == rank;
    bool is_last = rank % 2 == 0 && rank + 1 == pattern->n_ranks;
    switch (pattern->redop) {
    case MEASURE_REDOP_product:
        return is_turn ? 2 + (a & 1) : 1;
    case MEASURE_REDOP_avg:
        return a + (is_last ? 1 : rank % 2 == 0 ? 0 : 2);
    case MEASURE_REDOP_band:
        return is_turn ? a : pattern->mask;
    case MEASURE_REDOP_bor:
    case MEASURE_REDOP_bxor:
        return is_turn ? a : 0;
    case MEASURE_REDOP_sum:
    case MEASURE_REDOP_min:
    case MEASURE_REDOP_max:
    case MEASURE_N_REDOPS:
        break;
    }
    /* More ranks than a sum of this dtype can hold: the others give nothing. */
    bool is_too_many = (uint32_t)rank >= pattern->dtype->largest / 2;
    return is_too_many ? 0 : a + ((uint32_t)rank & pattern->mask);
}

static uint32_t reduce(enum measure_redop redop, uint32_t left, uint32_t right)
{
    switch (redop) {
    case MEASURE_REDOP_product:
        return left * right;
    case MEASURE_REDOP_min:
        return left < right ? left : right;
    case MEASURE_REDOP_max:
        return left > right ? left : right;
    case MEASURE_REDOP_band:
        return left & right;
    case MEASURE_REDOP_bor:
        return left | right;
    case MEASURE_REDOP_bxor:
        return left ^ right;
    case MEASURE_REDOP_sum:
    case MEASURE_REDOP_avg:
    case MEASURE_N_REDOPS:
        break;
    }
    return left + right;
}

static uint32_t reduced_of(const struct measure_pattern *pattern, uint32_t a)
{
    uint32_t value = value_of(pattern, a, 0);
    for (int rank = 1; rank < pattern->n_ranks; rank++) {
        value = reduce(pattern->redop, value, value_of(pattern, a, rank));
    }
    return pattern->redop == MEASURE_REDOP_avg ? value / (uint32_t)pattern->n_ranks : value;
}

/* Elements are looked up by a, in tables of the dtype's width. */
struct lookup {
    const void *table;
    uint32_t mask;
    uint32_t iteration;
};

#define DEFINE_WIDTH(type)                                                                        \
    static void write_##type(type *data, size_t count, size_t first, const struct lookup *lookup) \
    {                                                                                             \
        const type *table = lookup->table;                                                        \
        for (size_t j = 0; j < count; j++) {                                                      \
            data[j] = table[place_at(first + j, lookup->iteration, lookup->mask)];                \
        }                                                                                         \
    }                                                                                             \
    static size_t count_wrong_##type(const type *data, size_t count, size_t first,                \
                                     const struct lookup *lookup)                                 \
    {                                                                                             \
        const type *table = lookup->table;                                                        \
        size_t n_wrong = 0;                                                                       \
        for (size_t j = 0; j < count; j++) {                                                      \
            n_wrong += data[j] != table[place_at(first + j, lookup->iteration, lookup->mask)];    \
        }                                                                                         \
        return n_wrong;                                                                           \
    }

DEFINE_WIDTH(uint8_t)
DEFINE_WIDTH(uint16_t)
DEFINE_WIDTH(uint32_t)
DEFINE_WIDTH(uint64_t)

/* Puts a small whole number into a table of the dtype. */
static void encode(const struct measure_dtype *dtype, void *table, size_t index, uint32_t value)
{
    uint64_t bits = dtype->encode(value);
    const uint8_t bits8 = (uint8_t)bits;
    const uint16_t bits16 = (uint16_t)bits;
    const uint32_t bits32 = (uint32_t)bits;
    const void *source = dtype->bytes == 1   ? (const void *)&bits8
                         : dtype->bytes == 2 ? (const void *)&bits16
                         : dtype->bytes == 4 ? (const void *)&bits32
                                             : (const void *)&bits;
    memcpy((char *)table + index * dtype->bytes, source, dtype->bytes);
}

bool measure_pattern_init(struct measure_pattern *pattern, const struct measure_dtype *dtype,
                          enum measure_redop redop, int n_ranks)
{
    *pattern = (struct measure_pattern){.dtype = dtype, .redop = redop, .n_ranks = n_ranks, .mask = 1};
    /* The largest sum is n_ranks * 2 * mask; where that is not exact, integers wrap and floats have few ranks. */
    while (pattern->mask < MAX_MASK && (uint64_t)n_ranks * 2 * (2 * pattern->mask + 1) <= dtype->largest) {
        pattern->mask = 2 * pattern->mask + 1;
    }
    size_t n_values = (size_t)2 * pattern->mask + 4;
    pattern->encoding = malloc(n_values * dtype->bytes);
    pattern->reduced = malloc(((size_t)pattern->mask + 1) * dtype->bytes);
    if (!pattern->encoding || !pattern->reduced) {
        measure_pattern_fini(pattern);
        return false;
    }
    for (size_t value = 0; value < n_values; value++) {
        encode(dtype, pattern->encoding, value, (uint32_t)value);
    }
    for (uint32_t a = 0; a <= pattern->mask; a++) {
        encode(dtype, pattern->reduced, a, reduced_of(pattern, a));
    }
    return true;
}

void measure_pattern_fini(struct measure_pattern *pattern)
{
    free(pattern->encoding);
    free(pattern->reduced);
    pattern->encoding = NULL;
    pattern->reduced = NULL;
}

/* The table of a rank's values. */
struct rank_table {
    uint64_t words[MAX_MASK + 1];
};

static struct lookup look_up_rank(const struct measure_pattern *pattern, int rank, uint32_t iteration,
                                  struct rank_table *table)
{
    size_t bytes = pattern->dtype->bytes;
    for (uint32_t a = 0; a <= pattern->mask; a++) {
        memcpy((char *)table->words + a * bytes,
               (const char *)pattern->encoding + value_of(pattern, a, rank) * bytes, bytes);
    }
    return (struct lookup){.table = table->words, .mask = pattern->mask, .iteration = iteration};
}

void measure_pattern_write(const struct measure_pattern *pattern, void *data, size_t count, size_t first,
                           int rank, uint32_t iteration)
{
    struct rank_table table;
    struct lookup lookup = look_up_rank(pattern, rank, iteration, &table);
    switch (pattern->dtype->bytes) {
    case 1:
        write_uint8_t(data, count, first, &lookup);
        break;
    case 2:
        write_uint16_t(data, count, first, &lookup);
        break;
    case 4:
        write_uint32_t(data, count, first, &lookup);
        break;
    default:
        write_uint64_t(data, count, first, &lookup);
    }
}

static size_t count_wrong(const struct measure_pattern *pattern, const void *data, size_t count, size_t first,
                          const struct lookup *lookup)
{
    switch (pattern->dtype->bytes) {
    case 1:
        return count_wrong_uint8_t(data, count, first, lookup);
    case 2:
        return count_wrong_uint16_t(data, count, first, lookup);
    case 4:
        return count_wrong_uint32_t(data, count, first, lookup);
    default:
        return count_wrong_uint64_t(data, count, first, lookup);
    }
}

size_t measure_pattern_count_wrong(const struct measure_pattern *pattern, const void *data, size_t count,
                                   size_t first, int rank, uint32_t iteration)
{
    struct rank_table table;
    struct lookup lookup = look_up_rank(pattern, rank, iteration, &table);
    return count_wrong(pattern, data, count, first, &lookup);
}

size_t measure_pattern_count_unreduced(const struct measure_pattern *pattern, const void *data, size_t count,
                                       size_t first, uint32_t iteration)
{
    const struct lookup lookup = {.table = pattern->reduced, .mask = pattern->mask, .iteration = iteration};
    return count_wrong(pattern, data, count, first, &lookup);
}
