/* SPDX-License-Identifier: MIT */
/* Compares a result, element by element, with the recorded one. */
#include "compare.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "calls.h"
#include "kernel/half.h"

#define LARGEST_BOUND 1e-5

/* Elements as numbers. Complex ones are two of their half, so that element i has the parts 2i and 2i + 1. */
#define READER(name, ctype, expression)                        \
    static double name(const void *data, int64_t i)            \
    {                                                          \
        ctype value;                                           \
        memcpy(&value, (const ctype *)data + i, sizeof value); \
        return expression;                                     \
    }
READER(read_f64, double, value)
READER(read_f32, float, (double)value)
READER(read_f16, uint16_t, (double)half_f16_to_f32(value))
READER(read_bf16, uint16_t, (double)half_bf16_to_f32(value))

struct float_row {
    double (*read)(const void *data, int64_t i);
    double eps; /* from 1 to the next larger number */
    int n_parts;
};

/* Dtypes without a row are integers. */
static const struct float_row float_rows[] = {
    [SHOAL_F64] = {read_f64, 0x1p-52, 1}, [SHOAL_F32] = {read_f32, 0x1p-23, 1},
    [SHOAL_F16] = {read_f16, 0x1p-10, 1}, [SHOAL_BF16] = {read_bf16, 0x1p-7, 1},
    [SHOAL_C64] = {read_f32, 0x1p-23, 2}, [SHOAL_C128] = {read_f64, 0x1p-52, 2},
};

static const struct float_row *float_row(shoal_dtype dtype)
{
    size_t n_rows = sizeof float_rows / sizeof float_rows[0];
    return (size_t)dtype < n_rows && float_rows[dtype].read ? &float_rows[dtype] : NULL;
}

enum compare_kind compare_kind_of(bool is_reduce, shoal_reduce_op reduce, shoal_dtype dtype)
{
    if (!is_reduce || !float_row(dtype)) {
        return COMPARE_BITS;
    }
    static const enum compare_kind kinds[] = {[SHOAL_SUM] = COMPARE_SUM,
                                              [SHOAL_AVG] = COMPARE_AVERAGE,
                                              [SHOAL_PREMUL_SUM] = COMPARE_PREMUL,
                                              [SHOAL_PRODUCT] = COMPARE_PRODUCT};
    return (size_t)reduce < sizeof kinds / sizeof kinds[0] ? kinds[reduce] : COMPARE_BITS;
}

bool compare_needs_sources(enum compare_kind kind)
{
    return kind == COMPARE_SUM || kind == COMPARE_AVERAGE || kind == COMPARE_PREMUL;
}

/* An error as a part of its bound. What is no number differs from everything, except from itself (is_same). */
static double part_of_bound(bool is_same, double error, double bound)
{
    if (is_same || error == 0) {
        return 0;
    }
    return bound > 0 && isfinite(error) && isfinite(bound) ? error / bound : (double)INFINITY;
}

static bool is_same_number(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

static void keep_worst(struct difference *worst, double part, int64_t element)
{
    if (part > worst->worst) {
        worst->worst = part;
        worst->element = element;
    }
}

/* Bits ------------------------------------------------------------------------------------------------- */

static void format_bits(char *text, size_t text_bytes, const unsigned char *bytes, size_t n_bytes)
{
    size_t length = (size_t)snprintf(text, text_bytes, "0x");
    for (size_t i = n_bytes; i > 0; i--) {
        length += (size_t)snprintf(text + length, text_bytes - length, "%02x", bytes[i - 1]);
    }
}

static struct difference compare_bits(const struct comparison *self)
{
    struct difference worst = {0};
    size_t bytes = shoal_dtype_bytes(self->dtype);
    for (int64_t i = 0; i < self->count; i++) {
        const unsigned char *got = (const unsigned char *)self->got + (size_t)i * bytes;
        const unsigned char *want = (const unsigned char *)self->want + (size_t)i * bytes;
        if (memcmp(got, want, bytes) != 0) {
            char a[40];
            char b[40];
            format_bits(a, sizeof a, got, bytes);
            format_bits(b, sizeof b, want, bytes);
            worst = (struct difference){.worst = (double)INFINITY, .element = i};
            (void)snprintf(worst.text, sizeof worst.text, "got the bits %s, expected %s", a, b);
            return worst;
        }
    }
    return worst;
}

/* Sums ------------------------------------------------------------------------------------------------- */

/* The sum of the absolute values of what part i of the result was added up from. */
static double add_absolutes(const struct comparison *self, const struct float_row *row, int64_t i)
{
    int64_t element = i / row->n_parts;
    double sum = 0;
    for (int rank = 0; self->ins && rank < self->n_ranks; rank++) {
        int64_t source =
            self->input_begin + element / self->block_elems * self->input_step + element % self->block_elems;
        sum += fabs(row->read(self->ins[rank], source * row->n_parts + i % row->n_parts));
    }
    return sum;
}

static double bound_sum(const struct comparison *self, double eps, double sum, double want)
{
    double bound = (self->n_ranks - 1) * eps * sum;
    if (self->kind == COMPARE_AVERAGE) {
        return bound / self->n_ranks + eps * fabs(want);
    }
    return self->kind == COMPARE_PREMUL ? self->n_ranks * eps * REPLAY_PREMUL_FACTOR * sum : bound;
}

static struct difference compare_sums(const struct comparison *self)
{
    const struct float_row *row = float_row(self->dtype);
    struct difference worst = {0};
    for (int64_t i = 0; i < self->count * row->n_parts; i++) {
        double got = row->read(self->got, i);
        double want = row->read(self->want, i);
        double bound = bound_sum(self, row->eps, add_absolutes(self, row, i), want);
        keep_worst(&worst, part_of_bound(is_same_number(got, want), fabs(got - want), bound),
                   i / row->n_parts);
        if (worst.worst > 1) {
            (void)snprintf(worst.text, sizeof worst.text, "got %.17g, expected %.17g", got, want);
            return worst;
        }
    }
    return worst;
}

/* Of the largest --------------------------------------------------------------------------------------- */

static struct difference compare_largest(const struct comparison *self)
{
    const struct float_row *row = float_row(self->dtype);
    struct difference worst = {0};
    double largest = 0;
    for (int64_t i = 0; i < self->count * row->n_parts; i++) {
        largest = fmax(largest, fabs(row->read(self->want, i)));
    }
    for (int64_t i = 0; i < self->count * row->n_parts; i++) {
        double got = row->read(self->got, i);
        double want = row->read(self->want, i);
        keep_worst(&worst,
                   part_of_bound(is_same_number(got, want), fabs(got - want), LARGEST_BOUND * largest),
                   i / row->n_parts);
        if (worst.worst > 1) {
            (void)snprintf(worst.text, sizeof worst.text, "got %.17g, expected %.17g", got, want);
            return worst;
        }
    }
    return worst;
}

/* Products --------------------------------------------------------------------------------------------- */

/* Of what is, as one number or two, at `element`. */
static double absolute(const struct float_row *row, const void *a, const void *b, int64_t element)
{
    double square = 0;
    for (int64_t i = element * row->n_parts; i < (element + 1) * row->n_parts; i++) {
        double part = row->read(a, i) - (b ? row->read(b, i) : 0);
        if (row->n_parts == 1) {
            return fabs(part);
        }
        square = hypot(square, part);
    }
    return square;
}

static bool is_same_element(const struct float_row *row, const struct comparison *self, int64_t element)
{
    for (int64_t i = element * row->n_parts; i < (element + 1) * row->n_parts; i++) {
        if (!is_same_number(row->read(self->got, i), row->read(self->want, i))) {
            return false;
        }
    }
    return true;
}

static struct difference compare_products(const struct comparison *self)
{
    const struct float_row *row = float_row(self->dtype);
    struct difference worst = {0};
    for (int64_t i = 0; i < self->count; i++) {
        int n_eps = row->n_parts == 1 ? self->n_ranks : 4 * self->n_ranks;
        double bound = n_eps * row->eps * absolute(row, self->want, NULL, i);
        keep_worst(
            &worst,
            part_of_bound(is_same_element(row, self, i), absolute(row, self->got, self->want, i), bound), i);
        if (worst.worst > 1) {
            (void)snprintf(worst.text, sizeof worst.text, "got %.17g, expected %.17g",
                           row->read(self->got, i * row->n_parts), row->read(self->want, i * row->n_parts));
            return worst;
        }
    }
    return worst;
}

struct difference compare(const struct comparison *comparison)
{
    static struct difference (*const kinds[])(const struct comparison *self) = {
        [COMPARE_BITS] = compare_bits,        [COMPARE_SUM] = compare_sums,
        [COMPARE_AVERAGE] = compare_sums,     [COMPARE_PREMUL] = compare_sums,
        [COMPARE_PRODUCT] = compare_products, [COMPARE_LARGEST] = compare_largest};
    return kinds[comparison->kind](comparison);
}
