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
    {"f64", 8, encode_f64, 1u << 24},  {"f32", 4, encode_f32, 1u << 24}, {"f16", 2, encode_f16, 1u << 11},
    {"bf16", 2, encode_bf16, 1u << 8}, {"i8", 1, encode_int, 127},       {"i16", 2, encode_int, 1u << 14},
    {"i32", 4, encode_int, 1u << 24},  {"i64", 8, encode_int, 1u << 24}, {"u8", 1, encode_int, 255},
    {"u16", 2, encode_int, 1u << 14},  {"u32", 4, encode_int, 1u << 24}, {"u64", 8, encode_int, 1u << 24},
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

/* What element j is worth in the lookup table: scale * a(j, i) + offset. */
struct line {
    uint32_t iteration;
    uint32_t mask;
    uint32_t scale;
    uint32_t offset;
};

static inline uint32_t value_at(const struct line *line, size_t index)
{
    return line->scale * ((mix(index) + line->iteration) & line->mask) + line->offset;
}

#define DEFINE_WIDTH(type)                                                                                   \
    static void write_##type(type *data, size_t count, size_t first, const type *encoding, struct line line) \
    {                                                                                                        \
        for (size_t j = 0; j < count; j++) {                                                                 \
            data[j] = encoding[value_at(&line, first + j)];                                                  \
        }                                                                                                    \
    }                                                                                                        \
    static size_t count_wrong_##type(const type *data, size_t count, size_t first, const type *encoding,     \
                                     struct line line)                                                       \
    {                                                                                                        \
        size_t n_wrong = 0;                                                                                  \
        for (size_t j = 0; j < count; j++) {                                                                 \
            n_wrong += data[j] != encoding[value_at(&line, first + j)];                                      \
        }                                                                                                    \
        return n_wrong;                                                                                      \
    }

DEFINE_WIDTH(uint8_t)
DEFINE_WIDTH(uint16_t)
DEFINE_WIDTH(uint32_t)
DEFINE_WIDTH(uint64_t)

bool measure_pattern_init(struct measure_pattern *pattern, const struct measure_dtype *dtype, int n_ranks)
{
    enum {
        LARGEST_MASK = 255
    };
    *pattern = (struct measure_pattern){.dtype = dtype, .n_ranks = n_ranks, .mask = 1};
    /* The largest sum is n_ranks * 2 * mask; where that is not exact, integers wrap and floats have few ranks. */
    while (pattern->mask < LARGEST_MASK &&
           (uint64_t)n_ranks * 2 * (2 * pattern->mask + 1) <= dtype->largest) {
        pattern->mask = 2 * pattern->mask + 1;
    }
    size_t n_values = (size_t)n_ranks * 2 * pattern->mask + 1;
    char *encoding = malloc(n_values * dtype->bytes);
    for (size_t value = 0; encoding && value < n_values; value++) {
        uint64_t bits = dtype->encode((uint32_t)value);
        const uint8_t bits8 = (uint8_t)bits;
        const uint16_t bits16 = (uint16_t)bits;
        const uint32_t bits32 = (uint32_t)bits;
        const void *source = dtype->bytes == 1   ? (const void *)&bits8
                             : dtype->bytes == 2 ? (const void *)&bits16
                             : dtype->bytes == 4 ? (const void *)&bits32
                                                 : (const void *)&bits;
        memcpy(encoding + value * dtype->bytes, source, dtype->bytes);
    }
    pattern->encoding = encoding;
    return encoding;
}

void measure_pattern_fini(struct measure_pattern *pattern)
{
    free(pattern->encoding);
    pattern->encoding = NULL;
}

static struct line rank_line(const struct measure_pattern *pattern, int rank, uint32_t iteration)
{
    return (struct line){
        .iteration = iteration, .mask = pattern->mask, .scale = 1, .offset = (uint32_t)rank & pattern->mask};
}

void measure_pattern_write(const struct measure_pattern *pattern, void *data, size_t count, size_t first,
                           int rank, uint32_t iteration)
{
    struct line line = rank_line(pattern, rank, iteration);
    switch (pattern->dtype->bytes) {
    case 1:
        write_uint8_t(data, count, first, pattern->encoding, line);
        break;
    case 2:
        write_uint16_t(data, count, first, pattern->encoding, line);
        break;
    case 4:
        write_uint32_t(data, count, first, pattern->encoding, line);
        break;
    default:
        write_uint64_t(data, count, first, pattern->encoding, line);
    }
}

static size_t count_wrong(const struct measure_pattern *pattern, const void *data, size_t count, size_t first,
                          struct line line)
{
    switch (pattern->dtype->bytes) {
    case 1:
        return count_wrong_uint8_t(data, count, first, pattern->encoding, line);
    case 2:
        return count_wrong_uint16_t(data, count, first, pattern->encoding, line);
    case 4:
        return count_wrong_uint32_t(data, count, first, pattern->encoding, line);
    default:
        return count_wrong_uint64_t(data, count, first, pattern->encoding, line);
    }
}

size_t measure_pattern_count_wrong(const struct measure_pattern *pattern, const void *data, size_t count,
                                   size_t first, int rank, uint32_t iteration)
{
    return count_wrong(pattern, data, count, first, rank_line(pattern, rank, iteration));
}

size_t measure_pattern_count_wrong_sum(const struct measure_pattern *pattern, const void *data, size_t count,
                                       size_t first, uint32_t iteration)
{
    struct line line = rank_line(pattern, 0, iteration);
    line.scale = (uint32_t)pattern->n_ranks;
    for (int rank = 1; rank < pattern->n_ranks; rank++) {
        line.offset += rank_line(pattern, rank, iteration).offset;
    }
    return count_wrong(pattern, data, count, first, line);
}
