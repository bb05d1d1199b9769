/* SPDX-License-Identifier: MIT */
/*
 * Every vector table that this machine can run against the plain one: the same bits (NaN payloads are free)
 * for every pattern, count, alignment and number of sources, and nothing written outside of the output. The
 * plain one is checked against half.h here and against arithmetic written out in reduce_test.c.
 */
#include "kernel/simd.h"

#include "base/mem.h"
#include "harness/harness.h"
#include "kernel/half.h"

#include <string.h>

enum {
    MAX_COUNT = 130,
    FEW_SRCS = 9,
    MAX_SRCS = 40, /* more than are folded directly, and several groups of them */
    MAX_SHIFT = 7, /* bytes off alignment */
    GUARD_BYTES = 128,
    BUFFER_BYTES = MAX_COUNT * 8 + MAX_SHIFT + 2 * GUARD_BYTES,
    LARGE_BYTES = HARNESS_HAS_TSAN ? 1 << 20 : 9 << 20,
    /* There is one thread: the thread sanitizer has little to see, and takes its time. */
    COUNT_STEP = HARNESS_HAS_TSAN ? 7 : 1,
    SHIFT_STEP = HARNESS_HAS_TSAN ? 5 : 1
};

struct cast_row {
    const char *name;
    enum simd_float from;
    enum simd_float to;
    size_t offset;        /* of the member in the table */
    size_t stream_offset; /* of the _stream member */
};

static const struct cast_row casts[] = {
#define SIMD_CAST(FROM, TO, member)                                        \
    {#member, SIMD_##FROM, SIMD_##TO, offsetof(struct simd_table, member), \
     offsetof(struct simd_table, member##_stream)},
#include "kernel/simd_members.def"
#undef SIMD_CAST
};

enum {
    CAST_COUNT = sizeof(casts) / sizeof(casts[0])
};

static simd_cast_function *cast_of(const struct simd_table *table, const struct cast_row *row, bool is_stream)
{
    simd_cast_function *cast;
    size_t offset = is_stream ? row->stream_offset : row->offset;
    memcpy(&cast, (const char *)table + offset, sizeof(cast));
    return cast;
}

static size_t bytes_of(enum simd_float type)
{
    return type == SIMD_F64 ? 8 : type == SIMD_F32 ? 4 : 2;
}

/* The bits of an element, and whether they are a NaN. */
static uint64_t bits_of(enum simd_float type, const void *base, size_t index, bool *is_nan)
{
    static const uint64_t infinities[SIMD_FLOAT_COUNT] = {
        [SIMD_F32] = 0x7f800000, [SIMD_F64] = 0x7ff0000000000000, [SIMD_BF16] = 0x7f80, [SIMD_F16] = 0x7c00};
    uint64_t bits = 0;
    memcpy(&bits, (const char *)base + index * bytes_of(type), bytes_of(type));
    uint64_t sign = (uint64_t)1 << (8 * bytes_of(type) - 1);
    *is_nan = (bits & ~sign) > infinities[type];
    return bits;
}

/* The first element that differs, other than in the payload of a NaN; count when there is none. */
static size_t find_difference(enum simd_float type, const void *a, const void *b, size_t count)
{
    if (memcmp(a, b, count * bytes_of(type)) == 0) {
        return count;
    }
    for (size_t i = 0; i < count; i++) {
        bool is_nan_a;
        bool is_nan_b;
        uint64_t bits_a = bits_of(type, a, i, &is_nan_a);
        uint64_t bits_b = bits_of(type, b, i, &is_nan_b);
        if (is_nan_a != is_nan_b || (!is_nan_a && bits_a != bits_b)) {
            return i;
        }
    }
    return count;
}

/* Half of them hard cases, in every type's own bits; the others any bits. */
static void fill(struct test_random *random, enum simd_float type, void *base, size_t count)
{
    static const uint32_t hard[] = {0x00000000, 0x80000000, 0x3f800000, 0xbf800000, 0x7f800000, 0xff800000,
                                    0x7fc00000, 0x7f800001, 0xffffffff, 0x00000001, 0x80000001, 0x007fffff,
                                    0x00800000, 0x7f7fffff, 0xff7fffff, 0x3f7fffff, 0x38800000, 0x387fffff,
                                    0x33000000, 0x33000001, 0x32ffffff, 0x477fefff, 0x477ff000, 0x477fffff,
                                    0x3f808000, 0x3f818000, 0x3f801000, 0x3f803000, 0x7f7f8000, 0x00008000};
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = test_random_u64(random);
        if (test_random_below(random, 2) == 0) {
            uint32_t f32_bits = hard[test_random_below(random, sizeof(hard) / sizeof(hard[0]))];
            double value = (double)half_f32_from_bits(f32_bits);
            bits = type == SIMD_F64    ? half_f64_bits(value)
                   : type == SIMD_F32  ? f32_bits
                   : type == SIMD_BF16 ? f32_bits >> 16
                                       : half_f32_to_f16(half_f32_from_bits(f32_bits));
        }
        memcpy((char *)base + i * bytes_of(type), &bits, bytes_of(type));
    }
}

static bool is_guard_whole(const unsigned char *buffer, size_t begin, size_t end)
{
    for (size_t i = 0; i < BUFFER_BYTES; i++) {
        if ((i < begin || i >= end) && buffer[i] != 0xa5) {
            return false;
        }
    }
    return true;
}

/* Casts -------------------------------------------------------------------------------------------------- */

TEST(plain_casts_are_those_of_half_h)
{
    for (uint32_t pattern = 0; pattern < 65536; pattern++) {
        uint16_t half = (uint16_t)pattern;
        float wide;
        float expected = half_bf16_to_f32(half);
        simd_plain.cast_bf16_f32(&wide, &half, 1);
        CHECK(find_difference(SIMD_F32, &wide, &expected, 1) == 1);
        expected = half_f16_to_f32(half);
        simd_plain.cast_f16_f32(&wide, &half, 1);
        CHECK(find_difference(SIMD_F32, &wide, &expected, 1) == 1);
        float value = half_f32_from_bits(pattern << 16 | 0x8000);
        uint16_t narrow;
        uint16_t expected_narrow = half_f32_to_bf16(value);
        simd_plain.cast_f32_bf16(&narrow, &value, 1);
        CHECK(find_difference(SIMD_BF16, &narrow, &expected_narrow, 1) == 1);
        expected_narrow = half_f32_to_f16(value);
        simd_plain.cast_f32_f16(&narrow, &value, 1);
        CHECK(find_difference(SIMD_F16, &narrow, &expected_narrow, 1) == 1);
        if (test_has_failed()) {
            return;
        }
    }
}

enum {
    PATTERN_COUNT = 65536
};

static void check_widening(const struct simd_table *table, simd_cast_function *cast,
                           simd_cast_function *plain)
{
    uint16_t *halves = mem_alloc(PATTERN_COUNT * sizeof(*halves));
    float *actual = mem_alloc(PATTERN_COUNT * sizeof(*actual));
    float *expected = mem_alloc(PATTERN_COUNT * sizeof(*expected));
    if (halves && actual && expected) {
        for (size_t i = 0; i < PATTERN_COUNT; i++) {
            halves[i] = (uint16_t)i;
        }
        plain(expected, halves, PATTERN_COUNT);
        cast(actual, halves, PATTERN_COUNT);
        size_t wrong = find_difference(SIMD_F32, actual, expected, PATTERN_COUNT);
        if (wrong != PATTERN_COUNT) {
            test_failed(__FILE__, __LINE__, "%s widens 0x%04zx to 0x%08x, not 0x%08x", table->name, wrong,
                        half_f32_bits(actual[wrong]), half_f32_bits(expected[wrong]));
        }
    } else {
        test_failed(__FILE__, __LINE__, "no memory");
    }
    mem_free(halves);
    mem_free(actual);
    mem_free(expected);
}

TEST(all_halves_widen_as_in_plain_c)
{
    const struct simd_table *table;
    for (size_t v = 1; (table = simd_variant(v)); v++) {
        check_widening(table, table->cast_bf16_f32, simd_plain.cast_bf16_f32);
        check_widening(table, table->cast_f16_f32, simd_plain.cast_f16_f32);
        check_widening(table, table->cast_bf16_f32_stream, simd_plain.cast_bf16_f32);
        check_widening(table, table->cast_f16_f32_stream, simd_plain.cast_f16_f32);
    }
}

/* Lower halves of an f32 that are ties and their neighbours for the 16 bits that bf16 drops and the 13 that
   f16 drops, with the last kept bit of f16 even and odd. */
static const uint32_t low_bits[] = {0x0000, 0x0001, 0x0fff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x2fff,
                                    0x3000, 0x3001, 0x7fff, 0x8000, 0x8001, 0x9000, 0xb000, 0xffff};

enum {
    LOW_COUNT = sizeof(low_bits) / sizeof(low_bits[0])
};

/* Variants round some positions in another way than others: each pattern shall come to each of them. */
enum {
    POSITION_STEP = 8,
    POSITION_PERIOD = 32
};

static void check_narrowing(const struct simd_table *table, enum simd_float to, simd_cast_function *cast,
                            simd_cast_function *plain)
{
    float values[64 * LOW_COUNT];
    uint16_t actual[64 * LOW_COUNT];
    uint16_t expected[64 * LOW_COUNT];
    for (uint32_t high = 0; high < 65536; high += 64) {
        for (size_t i = 0; i < 64 * LOW_COUNT; i++) {
            values[i] =
                half_f32_from_bits((high + (uint32_t)(i / LOW_COUNT)) << 16 | low_bits[i % LOW_COUNT]);
        }
        plain(expected, values, 64 * LOW_COUNT);
        for (size_t skip = 0; skip < POSITION_PERIOD; skip += POSITION_STEP) {
            size_t count = 64 * LOW_COUNT - skip;
            cast(actual, values + skip, count);
            size_t wrong = find_difference(to, actual, expected + skip, count);
            if (wrong != count) {
                test_failed(__FILE__, __LINE__, "%s narrows 0x%08x to 0x%04x, not 0x%04x", table->name,
                            half_f32_bits(values[skip + wrong]), actual[wrong], expected[skip + wrong]);
                return;
            }
        }
    }
}

TEST(every_upper_half_of_a_float_narrows_as_in_plain_c)
{
    const struct simd_table *table;
    for (size_t v = 1; (table = simd_variant(v)); v++) {
        check_narrowing(table, SIMD_BF16, table->cast_f32_bf16, simd_plain.cast_f32_bf16);
        check_narrowing(table, SIMD_F16, table->cast_f32_f16, simd_plain.cast_f32_f16);
        check_narrowing(table, SIMD_BF16, table->cast_f32_bf16_stream, simd_plain.cast_f32_bf16);
        check_narrowing(table, SIMD_F16, table->cast_f32_f16_stream, simd_plain.cast_f32_f16);
    }
}

/* A variant may look for NaNs a block at a time: none may be overlooked, wherever it is. */
TEST(one_nan_among_numbers_is_found)
{
    static const uint32_t nans[] = {0x7f800001, 0xff800001, 0x7fffffff, 0xffffffff};
    static float values[1200];
    static uint16_t actual[1200];
    static uint16_t expected[1200];
    const size_t count = sizeof(values) / sizeof(values[0]);
    const struct simd_table *table;
    for (size_t i = 0; i < count; i++) {
        values[i] = half_f32_from_bits(0x3f818000 + (uint32_t)i * 0x8000);
    }
    for (size_t i = 0; i < count && !test_has_failed(); i++) {
        float number = values[i];
        values[i] = half_f32_from_bits(nans[i % 4]);
        simd_plain.cast_f32_bf16(expected, values, count);
        for (size_t v = 1; (table = simd_variant(v)); v++) {
            table->cast_f32_bf16(actual, values, count);
            size_t wrong = find_difference(SIMD_BF16, actual, expected, count);
            if (wrong != count) {
                test_failed(__FILE__, __LINE__, "%s with a NaN at %zu: element %zu is 0x%04x, not 0x%04x",
                            table->name, i, wrong, actual[wrong], expected[wrong]);
            }
        }
        values[i] = number;
    }
}

static void check_cast(struct test_random *random, const struct simd_table *table, const struct cast_row *row,
                       bool is_stream, size_t count)
{
    unsigned char src[BUFFER_BYTES];
    unsigned char dst[BUFFER_BYTES];
    unsigned char expected[BUFFER_BYTES];
    size_t src_shift = test_random_below(random, MAX_SHIFT + 1);
    size_t dst_begin = GUARD_BYTES + test_random_below(random, MAX_SHIFT + 1);
    size_t dst_end = dst_begin + count * bytes_of(row->to);
    memset(dst, 0xa5, sizeof(dst));
    fill(random, row->from, src + src_shift, count);
    cast_of(&simd_plain, row, false)(expected, src + src_shift, count);
    cast_of(table, row, is_stream)(dst + dst_begin, src + src_shift, count);
    size_t wrong = find_difference(row->to, dst + dst_begin, expected, count);
    if (wrong != count || !is_guard_whole(dst, dst_begin, dst_end)) {
        test_failed(__FILE__, __LINE__, "%s %s stream %d count %zu shifts %zu %zu: element %zu, guard %s",
                    table->name, row->name, is_stream, count, src_shift, dst_begin - GUARD_BYTES, wrong,
                    is_guard_whole(dst, dst_begin, dst_end) ? "whole" : "overwritten");
    }
}

TEST(casts_take_any_count_and_alignment)
{
    struct test_random random = test_random_begin(1);
    const struct simd_table *table;
    for (size_t v = 0; (table = simd_variant(v)); v++) {
        for (size_t i = 0; i < 2 * CAST_COUNT * (MAX_COUNT + 1) * 4 && !test_has_failed(); i++) {
            size_t count = i / (2 * CAST_COUNT * 4);
            check_cast(&random, table, &casts[i / 2 % CAST_COUNT], i % 2 == 1, count);
        }
    }
}

/* Reductions --------------------------------------------------------------------------------------------- */

struct reduce_case {
    const struct simd_table *table;
    enum simd_float type;
    enum simd_fold fold;
    bool is_stream;
    size_t n_srcs;
    size_t begin;
    size_t end;
    size_t in_place; /* which source dst is; n_srcs: none */
};

static void check_reduce(struct test_random *random, const struct reduce_case *one)
{
    static unsigned char buffers[MAX_SRCS + 2][BUFFER_BYTES];
    const void *srcs[MAX_SRCS];
    for (size_t s = 0; s < one->n_srcs; s++) {
        unsigned char *src = buffers[s] + GUARD_BYTES + test_random_below(random, MAX_SHIFT + 1);
        memset(buffers[s], 0xa5, BUFFER_BYTES);
        fill(random, one->type, src, MAX_COUNT);
        srcs[s] = src;
    }
    unsigned char *dst = buffers[MAX_SRCS] + GUARD_BYTES + test_random_below(random, MAX_SHIFT + 1);
    memset(buffers[MAX_SRCS], 0xa5, BUFFER_BYTES);
    unsigned char *expected = buffers[MAX_SRCS + 1] + GUARD_BYTES;
    if (one->in_place < one->n_srcs) {
        size_t shift = (size_t)((const unsigned char *)srcs[one->in_place] - buffers[one->in_place]);
        dst = buffers[one->in_place] + shift;
        memcpy(expected, dst, MAX_COUNT * bytes_of(one->type));
    } else {
        memset(expected, 0xa5, MAX_COUNT * bytes_of(one->type));
    }
    simd_plain.reduce[one->type][one->fold](expected, srcs, one->n_srcs, one->begin, one->end);
    simd_reduce_function *reduce = one->is_stream ? one->table->reduce_stream[one->type][one->fold]
                                                  : one->table->reduce[one->type][one->fold];
    reduce(dst, srcs, one->n_srcs, one->begin, one->end);
    /* Compared as a whole: what lies before begin and after end must not have changed. */
    size_t wrong = find_difference(one->type, dst, expected, MAX_COUNT);
    if (wrong != MAX_COUNT) {
        test_failed(__FILE__, __LINE__, "%s type %d fold %d stream %d srcs %zu range %zu..%zu place %zu: %zu",
                    one->table->name, (int)one->type, (int)one->fold, one->is_stream, one->n_srcs, one->begin,
                    one->end, one->in_place, wrong);
    }
}

/* All lengths, for one operator, one number of sources: apart, streamed, and in place of each source. */
static void check_reduce_lengths(struct test_random *random, struct reduce_case one)
{
    for (size_t count = 0; count <= MAX_COUNT && !test_has_failed(); count += COUNT_STEP) {
        one.begin = test_random_below(random, MAX_COUNT - count + 1);
        one.end = one.begin + count;
        one.in_place = one.n_srcs;
        one.is_stream = false;
        check_reduce(random, &one);
        one.is_stream = true;
        check_reduce(random, &one);
        one.is_stream = false;
        one.in_place = count % one.n_srcs;
        check_reduce(random, &one);
    }
}

TEST(reduces_take_any_count_alignment_and_number_of_sources)
{
    struct test_random random = test_random_begin(2);
    struct reduce_case one = {.table = NULL};
    for (size_t v = 0; (one.table = simd_variant(v)); v++) {
        for (int i = 0; i < SIMD_FLOAT_COUNT * SIMD_FOLD_COUNT * FEW_SRCS; i++) {
            one.type = (enum simd_float)(i % SIMD_FLOAT_COUNT);
            one.fold = (enum simd_fold)(i / SIMD_FLOAT_COUNT % SIMD_FOLD_COUNT);
            one.n_srcs = (size_t)i / (SIMD_FLOAT_COUNT * SIMD_FOLD_COUNT) + 1;
            check_reduce_lengths(&random, one);
        }
    }
}

TEST(reduces_take_many_sources)
{
    static const size_t numbers[] = {16, 17, 24, 25, MAX_SRCS};
    struct test_random random = test_random_begin(5);
    struct reduce_case one = {.table = NULL};
    for (size_t v = 1; (one.table = simd_variant(v)); v++) {
        for (size_t i = 0; i < SIMD_FLOAT_COUNT * SIMD_FOLD_COUNT * 5 && !test_has_failed(); i++) {
            one.type = (enum simd_float)(i % SIMD_FLOAT_COUNT);
            one.fold = (enum simd_fold)(i / SIMD_FLOAT_COUNT % SIMD_FOLD_COUNT);
            one.n_srcs = numbers[i / (SIMD_FLOAT_COUNT * SIMD_FOLD_COUNT)];
            one.end = MAX_COUNT - i % 33;
            one.in_place = i % 2 ? one.n_srcs : i % one.n_srcs;
            one.is_stream = i % 2 == 1;
            check_reduce(&random, &one);
        }
    }
}

/* Every pair of two-byte patterns would be 2^32; every pattern against a few is enough to see each branch. */
TEST(all_halves_reduce_as_in_plain_c)
{
    static const uint16_t partners[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x3c00, 0x3f80, 0x7bff,
                                        0x7c00, 0x7e00, 0x7f7f, 0x7f80, 0x7fc0, 0xff80, 0xfc00};
    static uint16_t patterns[PATTERN_COUNT];
    static uint16_t partner[PATTERN_COUNT];
    static uint16_t actual[PATTERN_COUNT];
    static uint16_t expected[PATTERN_COUNT];
    const void *srcs[2] = {patterns, partner};
    const struct simd_table *table;
    for (size_t v = 1; (table = simd_variant(v)); v++) {
        for (size_t i = 0; i < SIMD_FOLD_COUNT * 4 * sizeof(partners) / sizeof(partners[0]); i++) {
            enum simd_float type = i % 2 ? SIMD_BF16 : SIMD_F16;
            size_t fold = i / 4 % SIMD_FOLD_COUNT;
            for (size_t k = 0; k < PATTERN_COUNT; k++) {
                patterns[k] = (uint16_t)k;
                partner[k] = partners[i / 4 / SIMD_FOLD_COUNT];
            }
            srcs[i / 2 % 2] = patterns;
            srcs[1 - i / 2 % 2] = partner;
            table->reduce[type][fold](actual, srcs, 2, 0, PATTERN_COUNT);
            simd_plain.reduce[type][fold](expected, srcs, 2, 0, PATTERN_COUNT);
            CHECK_INT(find_difference(type, actual, expected, PATTERN_COUNT), PATTERN_COUNT);
        }
    }
}

/* Large outputs ------------------------------------------------------------------------------------------ */

struct large {
    unsigned char *srcs[3];
    unsigned char *dst;
    unsigned char *expected;
};

static bool allocate_large(struct large *large)
{
    unsigned char **all[] = {&large->srcs[0], &large->srcs[1], &large->srcs[2], &large->dst,
                             &large->expected};
    bool is_complete = true;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        *all[i] = mem_alloc_aligned(LARGE_BYTES + 64, 64);
        is_complete = is_complete && *all[i];
    }
    return is_complete;
}

static void free_large(struct large *large)
{
    for (size_t s = 0; s < 3; s++) {
        mem_free(large->srcs[s]);
    }
    mem_free(large->dst);
    mem_free(large->expected);
}

static void check_large(const struct simd_table *table, struct large *large, size_t shift)
{
    unsigned char *dst = large->dst + shift;
    size_t bytes = LARGE_BYTES - 13;
    memset(dst, 0, bytes);
    table->copy_stream(dst, large->srcs[0] + 1, bytes);
    CHECK_BYTES(dst, large->srcs[0] + 1, bytes);
    table->copy(dst, large->srcs[1] + 1, bytes);
    CHECK_BYTES(dst, large->srcs[1] + 1, bytes);
    for (size_t i = 0; i < CAST_COUNT; i++) {
        size_t wider =
            bytes_of(casts[i].from) > bytes_of(casts[i].to) ? bytes_of(casts[i].from) : bytes_of(casts[i].to);
        size_t count = bytes / wider;
        cast_of(&simd_plain, &casts[i], false)(large->expected, large->srcs[0], count);
        cast_of(table, &casts[i], true)(dst, large->srcs[0], count);
        CHECK_INT(find_difference(casts[i].to, dst, large->expected, count), count);
    }
    for (int type = 0; type < SIMD_FLOAT_COUNT; type++) {
        size_t count = bytes / bytes_of((enum simd_float)type);
        const void *srcs[3] = {large->srcs[0], large->srcs[1], large->srcs[2]};
        simd_plain.reduce[type][SIMD_AVG](large->expected, srcs, 3, 0, count);
        table->reduce_stream[type][SIMD_AVG](dst, srcs, 3, 0, count);
        CHECK_INT(find_difference((enum simd_float)type, dst, large->expected, count), count);
    }
}

TEST(large_outputs_are_right_at_any_alignment)
{
    static const size_t shifts[] = {0, 1, 2, 4, 8, 36};
    struct test_random random = test_random_begin(3);
    struct large large = {.dst = NULL};
    if (!allocate_large(&large)) {
        test_failed(__FILE__, __LINE__, "no memory");
        free_large(&large);
        return;
    }
    for (size_t s = 0; s < 3; s++) {
        fill(&random, SIMD_F32, large.srcs[s], LARGE_BYTES / 4);
    }
    const struct simd_table *table;
    for (size_t v = 1; (table = simd_variant(v)); v++) {
        for (size_t i = 0; i < sizeof(shifts) / sizeof(shifts[0]) && !test_has_failed(); i += SHIFT_STEP) {
            check_large(table, &large, shifts[i]);
        }
    }
    free_large(&large);
}

TEST(copies_take_any_count_and_alignment)
{
    struct test_random random = test_random_begin(4);
    const struct simd_table *table;
    for (size_t v = 0; (table = simd_variant(v)); v++) {
        for (size_t bytes = 0; bytes <= 8 * MAX_COUNT; bytes++) {
            unsigned char src[BUFFER_BYTES];
            unsigned char dst[BUFFER_BYTES];
            size_t src_shift = test_random_below(&random, MAX_SHIFT + 1);
            size_t dst_begin = GUARD_BYTES + test_random_below(&random, MAX_SHIFT + 1);
            for (size_t i = 0; i < sizeof(src); i++) {
                src[i] = (unsigned char)test_random_u64(&random);
            }
            memset(dst, 0xa5, sizeof(dst));
            (bytes % 2 ? table->copy_stream : table->copy)(dst + dst_begin, src + src_shift, bytes);
            CHECK_BYTES(dst + dst_begin, src + src_shift, bytes);
            CHECK(is_guard_whole(dst, dst_begin, dst_begin + bytes));
        }
    }
}

/* Finite numbers, of which sums have no NaN: its payload would be free. */
static void fill_finite(struct test_random *random, enum simd_float type, unsigned char *base, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float value = ((float)test_random_below(random, 20001) - 10000.0f) * 0x1.0624dep-7f;
        uint16_t half = half_f32_to_bf16(value);
        if (type == SIMD_F32) {
            memcpy(base + i * sizeof(value), &value, sizeof(value));
        } else {
            memcpy(base + i * sizeof(half), &half, sizeof(half));
        }
    }
}

TEST(sums_of_rows_are_those_of_the_plain_table)
{
    enum {
        N_ROWS = 11,
        MOST_COLUMNS = 45
    };
    struct test_random random = test_random_begin(5);
    unsigned char src[1 + N_ROWS * (MOST_COLUMNS + 3) * sizeof(float)];
    const struct simd_table *table;
    for (size_t v = 1; (table = simd_variant(v)); v++) {
        for (size_t i = 0; i < 2 * MOST_COLUMNS * N_ROWS; i++) {
            enum simd_float type = i % 2 ? SIMD_F32 : SIMD_BF16;
            size_t n_columns = i / 2 % MOST_COLUMNS;
            size_t n_rows = i / 2 / MOST_COLUMNS;
            ptrdiff_t row_bytes = (ptrdiff_t)((MOST_COLUMNS + 3) * (type == SIMD_F32 ? 4 : 2));
            double expected[MOST_COLUMNS + 1];
            double actual[MOST_COLUMNS + 1];
            fill_finite(&random, type, src + 1, (size_t)N_ROWS * (MOST_COLUMNS + 3));
            for (size_t k = 0; k <= MOST_COLUMNS; k++) {
                expected[k] = actual[k] = (double)k * 0.1;
            }
            (type == SIMD_F32 ? simd_plain.sum_rows_f32
                              : simd_plain.sum_rows_bf16)(expected, src + 1, row_bytes, n_rows, n_columns);
            (type == SIMD_F32 ? table->sum_rows_f32 : table->sum_rows_bf16)(actual, src + 1, row_bytes,
                                                                            n_rows, n_columns);
            CHECK_BYTES(actual, expected, sizeof(expected));
        }
    }
}

/* Selection ---------------------------------------------------------------------------------------------- */

TEST(rows_and_choices_have_the_same_order)
{
    static const char rows[] = "auto"
#define SIMD(name, architecture, is_usable) "|" #name
#include "kernel/simd.def"
#undef SIMD
        ;
    static const char *const choices[] = {
#define OPTION(NAME, type, default_text, low, high, choices, doc) #NAME, choices,
#include "base/options.def"
#undef OPTION
    };
    size_t found = 0;
    for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i += 2) {
        if (strcmp(choices[i], "SIMD") == 0) {
            CHECK_STRING(choices[i + 1], rows);
            found++;
        }
    }
    CHECK_INT(found, 1);
}

TEST(the_table_in_use_is_one_of_the_usable_ones)
{
    CHECK(simd_variant(0) == &simd_plain);
    size_t found = 0;
    const struct simd_table *table;
    for (size_t v = 0; (table = simd_variant(v)); v++) {
        found += table == simd_table();
    }
    CHECK_INT(found, 1);
    CHECK_STRING(simd_name(), simd_table()->name);
}
